/** What conversations hold sealed, wherever it stands: for re-encryption alone. */
import { type Db, value } from './db.ts'
import { bytesOf } from './json.ts'
import type { Sealed, SealedPlace } from './store.ts'

const PLACES: Readonly<Record<SealedPlace, { table: string; column: string }>> = {
  'message.body': { table: 'message', column: 'body' },
  'turn.input': { table: 'turn', column: 'input' },
  'turn.context': { table: 'turn', column: 'context' },
  'turn.announce': { table: 'turn', column: 'announce' },
  'execution.result': { table: 'execution', column: 'result' },
}

export function createSealed(db: Db): Sealed {
  return {
    documents(place, after, limit) {
      const { table, column } = PLACES[place]
      // Inside a text the quotes would be escaped: only a part itself is found. No index finds it: a page is some rows
      // looked at, since one of so many found would be looked for in all the rest of a large table.
      return db.query(
        `select id::text, session_id::text,
                case when ${column}::text like '%"type":"sealed"%' then ${column}::text end as text
           from ${table} where id > $1 order by id limit $2`,
        [after, limit],
      )
    },
    async putDocument(place, id, before, after) {
      const { table, column } = PLACES[place]
      const text = `update ${table} set ${column} = $3::json where id = $1 and ${column}::text = $2 returning 1`
      return (await value(db, text, [id, before, after])) !== null
    },
    async arguments(after, limit) {
      const rows = await db.query<{ id: string; sealed: string | null }>(
        `select id::text, encode(sealed_arguments, 'base64') as sealed from execution
          where id > $1 order by id limit $2`,
        [after, limit],
      )
      return rows.map(({ id, sealed }) => ({ id, sealed: bytesOf(sealed) }))
    },
    async putArguments(id, before, after) {
      const text =
        'update execution set sealed_arguments = $3 where id = $1 and sealed_arguments = $2 returning 1'
      return (await value(db, text, [id, before, after])) !== null
    },
  }
}
