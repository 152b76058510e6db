/** Single values of the whole installation. */
import { type Db, sureValue } from './db.ts'
import type { Settings } from './store.ts'

export function createSettings(db: Db): Settings {
  return {
    async set(name, text) {
      await db.query(
        'insert into setting (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value',
        [name, text],
      )
    },
    init: (name, text) =>
      sureValue(
        db,
        // An update that changes nothing: `do nothing` would return no row, and a second statement could race.
        `insert into setting as s (name, value) values ($1, $2)
         on conflict (name) do update set value = s.value returning value`,
        [name, text],
      ),
  }
}
