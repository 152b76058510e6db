/** What is neither a noun of the contract's resources nor a turn: the audit trail and single values. */
import { type Db, value, values } from './db.ts'
import { document } from './json.ts'
import { readCursor, SEQ, toPage } from './page.ts'
import type { Audit, AuditRecord, Settings } from './store.ts'

export function createAudit(db: Db): Audit {
  return {
    async write({ owner, act, subject, details }) {
      await db.query('insert into audit (owner, act, subject, details) values ($1, $2, $3, $4)', [
        owner,
        act,
        subject,
        document(details),
      ])
    },
    async list(page) {
      const found = await values<AuditRecord & { place: string }>(
        db,
        `select json_build_object(
                  'id', 'audit_' || lpad(id::text, 15, '0'), 'at', rfc3339(at), 'owner', owner, 'act', act,
                  'subject', subject, 'details', details, 'place', id::text)
           from audit where ($1::text is null or id < $1::bigint) order by id desc limit $2`,
        [readCursor('audit', page, SEQ), page.limit + 1],
      )
      const { data, next_cursor } = toPage('audit', page, found, ({ place }) => place)
      return { data: data.map(({ place: _, ...record }) => record), next_cursor }
    },
  }
}

export function createSettings(db: Db): Settings {
  return {
    get: (name) => value<string>(db, 'select value from setting where name = $1', [name]),
    async set(name, text) {
      await db.query(
        'insert into setting (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value',
        [name, text],
      )
    },
    async init(name, text) {
      // An update that changes nothing: `do nothing` would return no row, and a second statement could race.
      const stored = await value<string>(
        db,
        `insert into setting as s (name, value) values ($1, $2)
         on conflict (name) do update set value = s.value returning value`,
        [name, text],
      )
      return stored ?? text
    },
  }
}
