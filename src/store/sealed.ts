/** All that is sealed, wherever it is: for re-encryption alone. */
import { type Db, matched } from './db.ts'
import { bytesOf } from './json.ts'
import { PAGE_BYTES } from './page.ts'
import type { Sealed, SealedPlace, SealedSecret } from './store.ts'

const PLACES: Readonly<Record<SealedPlace, { table: string; column: string }>> = {
  'message.body': { table: 'message', column: 'body' },
  'turn.input': { table: 'turn', column: 'input' },
  'turn.context': { table: 'turn', column: 'context' },
  'turn.announce': { table: 'turn', column: 'announce' },
  'execution.result': { table: 'execution', column: 'result' },
}

// The version stays: the secret is the same, and a renewal under way must still find the version that it read.
const PUT_SECRET: Readonly<Record<SealedSecret['table'], string>> = {
  credential: 'update credential set secret = $3 where id = $1 and version = $2 returning 1',
  // Both only grow: while their sum is the same, neither has changed.
  connector:
    'update connector set secret = $3 where id = $1 and config_revision + secret_version = $2 returning 1',
}

const ARGUMENTS = 'r.sealed_arguments'

/**
 * A page of the table `r`: in the column `name` what a row holds, null where its `size` is. The sizes are summed apart,
 * since the server keeps all that it sums over.
 */
const pageOf = (table: string, name: string, what: string, size: string): string =>
  `select r.id::text, r.session_id::text, case when page.size is not null then ${what} end as ${name}
     from (
       select *, coalesce(sum(size) over (order by id), 0) as sum, row_number() over (order by id) as place
         from (select r.id, ${size} as size from ${table} r where r.id > $1 order by r.id limit $2) looked
     ) page
     join ${table} r on r.id = page.id
    where page.sum <= $3 or page.place = 1 order by r.id`

export function createSealed(db: Db): Sealed {
  return {
    async secrets(after, limit) {
      const found = await db.query<Omit<SealedSecret, 'secret'> & { secret: string }>(
        `select "table", id, owner, encode(secret, 'base64') as secret, version from (
           select 'credential' as "table", id, owner, secret, version::float8 from credential
           union all
           select 'connector', id, owner, secret, (config_revision + secret_version)::float8 from connector
            where secret is not null
         ) held
         where id > $1 order by id limit $2`,
        [after, limit],
      )
      return found.map((row) => ({ ...row, secret: bytesOf(row.secret) }))
    },
    putSecret: ({ table, id, version }, secret) => matched(db, PUT_SECRET[table], [id, version, secret]),
    documents(place, after, limit, bytes = PAGE_BYTES) {
      const { table, column } = PLACES[place]
      const text = `r.${column}::text`
      // Inside a text the quotes would be escaped, so that this finds only a part itself. No index finds it. So a page
      // is `limit` rows that are looked at: to find `limit` sealed ones, it might have to read the whole rest of a
      // large table.
      const size = `case when ${text} like '%"type":"sealed"%' then octet_length(${text}) end`
      return db.query(pageOf(table, 'text', text, size), [after, limit, bytes])
    },
    putDocument(place, id, before, after) {
      const { table, column } = PLACES[place]
      const text = `update ${table} set ${column} = $3::json where id = $1 and ${column}::text = $2 returning 1`
      return matched(db, text, [id, before, after])
    },
    async arguments(after, limit, bytes = PAGE_BYTES) {
      const rows = await db.query<{ id: string; sealed: string | null }>(
        pageOf('execution', 'sealed', `encode(${ARGUMENTS}, 'base64')`, `octet_length(${ARGUMENTS})`),
        [after, limit, bytes],
      )
      return rows.map(({ id, sealed }) => ({ id, sealed: bytesOf(sealed) }))
    },
    putArguments: (id, before, after) =>
      matched(
        db,
        'update execution set sealed_arguments = $3 where id = $1 and sealed_arguments = $2 returning 1',
        [id, before, after],
      ),
  }
}
