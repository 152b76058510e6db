/** Claims on rows with a login: one process at a time renews it. A claim lapses by itself. */
import { type Db, value } from './db.ts'
import type { Claims } from './store.ts'

/** `toRow` turns a row as `<table>_json` gives it into the one that callers know. */
export const createClaims = <Stored, Row>(
  db: Db,
  table: 'credential' | 'connector',
  toRow: (stored: Stored) => Row,
): Claims<Row> => ({
  async claim(id, by, seconds) {
    const claimed = await value<{ row: Stored; has_lapsed: boolean }>(
      db,
      `with free as (
         select id, claimed_by from ${table}
          where id = $1 and (claimed_until is null or claimed_until <= clock_timestamp())
            for no key update
       )
       update ${table} c set claimed_by = $2, claimed_until = seconds_from_now($3)
         from free where c.id = free.id
       returning json_build_object('row', ${table}_json(c), 'has_lapsed', free.claimed_by is not null)`,
      [id, by, seconds],
    )
    return claimed && { row: toRow(claimed.row), hasLapsed: claimed.has_lapsed }
  },
  async release(id, by) {
    await db.query(
      `update ${table} set claimed_by = null, claimed_until = null where id = $1 and claimed_by = $2`,
      [id, by],
    )
  },
})
