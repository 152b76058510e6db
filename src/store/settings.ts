/** What is neither a noun of the contract's resources nor a turn: the audit trail and single values. */
import { type Db, value } from './db.ts'
import { document } from './json.ts'
import type { Audit, Settings } from './store.ts'

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
