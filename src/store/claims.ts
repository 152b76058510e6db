/** Claims on rows with a login: one process at a time renews it. A claim lapses by itself. */
import type { Db } from './db.ts'
import type { Claims } from './store.ts'

/** `toRow` turns a row as `<table>_json` gives it into the one that callers know. */
export const createClaims = <Stored, Row>(
  db: Db,
  table: 'credential' | 'connector',
  toRow: (stored: Stored) => Row,
): Claims<Row> => ({
  claim: (id, by, seconds) =>
    db.transaction(async (queries) => {
      // Two changes, since the first tells who had the claim. One statement that locked the row and then changed it would
      // go back to the version that it saw first, which whoever waits for this claim may have locked. And a lock in place
      // of the first change would let `syncConfig`, which locks the table, wait for this row.
      const [free] = await queries.query<{ claimed_by: string | null }>(
        `update ${table} set claimed_until = seconds_from_now($2)
          where id = $1 and (claimed_until is null or claimed_until <= clock_timestamp()) returning claimed_by`,
        [id, seconds],
      )
      if (!free) return null
      const [claimed] = await queries.query<{ row: Stored }>(
        `update ${table} c set claimed_by = $2 where id = $1 returning ${table}_json(c) as row`,
        [id, by],
      )
      return claimed ? { row: toRow(claimed.row), hasLapsed: free.claimed_by !== null } : null
    }),
  async release(id, by) {
    await db.query(
      `update ${table} set claimed_by = null, claimed_until = null where id = $1 and claimed_by = $2`,
      [id, by],
    )
  },
})
