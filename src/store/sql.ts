/** Small pieces of SQL that several nouns share. */
import { type Param, type Querying, value, values } from './db.ts'
import { document } from './json.ts'
import { PAGE_BYTES, readCursor, toPage } from './page.ts'
import type { Page, PageRequest, Scope } from './store.ts'

/** For `($n::text is null or owner = $n)`: whose rows a verb may see, null for everyone's. */
export const visibleTo = (scope: Scope): string | null => (scope.admin ? null : scope.owner)

/** The same in a list, which goes by the owner's index and could not with an `or`: `$n` is what `visibleTo` gives. */
export const seenBy = (scope: Scope, n: number): string =>
  scope.admin ? `$${n}::text is null` : `owner = $${n}`

/** An owner's row as the schema's `<table>_json` gives it; null if it is not to be seen. */
export const ownRow = <Stored>(
  db: Querying,
  table: 'session' | 'turn' | 'execution' | 'credential',
  scope: Scope,
  id: string,
): Promise<Stored | null> =>
  value<Stored>(
    db,
    `select ${table}_json(r) from ${table} r where id = $1 and ($2::text is null or owner = $2)`,
    [id, visibleTo(scope)],
  )

/** Of each table, as SQL: the bytes in the columns that may hold megabytes. */
const BULK = {
  session: 'octet_length(instructions)',
  connector: `octet_length(args::text) + octet_length(allow_tools::text) + octet_length(deny_tools::text)
    + coalesce(octet_length(secret), 0)`,
  credential: 'octet_length(secret)',
  api_key: '0',
  execution: `octet_length(arguments::text) + coalesce(octet_length(sealed_arguments), 0)
    + coalesce(octet_length(result::text), 0)`,
} as const

/** A row of a page, as the schema's `<table>_json` gives it. */
export const pageRow = (table: keyof typeof BULK): string =>
  `(select ${table}_json(r) from ${table} r where r.id = page.id)`

/**
 * A statement for a page of rows, each as `shown` makes it. `listed` selects `bulkOf` the rows, and `order` sorts them.
 * Once the rows have more than `most` bytes together, the others are null, which `toPage` takes for the page's end. The
 * first row is always given.
 */
export const withinBytes = (
  table: keyof typeof BULK,
  listed: string,
  order: string,
  most: string,
  shown = pageRow(table),
): string =>
  `select case when sum <= ${most} or sum = bytes then ${shown} end
     from (select *, sum(bytes) over (order by ${order}) from (${listed}) listed) page order by ${order}`
export const bulkOf = (table: keyof typeof BULK): string => `id, (${BULK[table]})::bigint as bytes`

/** All that are to be seen, newest first, each as `toRow` makes it. `list` is their name in cursors. */
export async function ownPage<Stored, Row extends { id: string }>(
  db: Querying,
  [table, list]: readonly ['session', 'sessions'] | ['credential', 'credentials'] | ['api_key', 'keys'],
  scope: Scope,
  page: PageRequest,
  toRow: (stored: Stored) => Row,
): Promise<Page<Row>> {
  const listed = `select ${bulkOf(table)} from ${table}
    where ${seenBy(scope, 1)} and ($2::text is null or id < $2) order by id desc limit $3`
  const found = await values<Stored | null>(db, withinBytes(table, listed, 'id desc', '$4'), [
    visibleTo(scope),
    readCursor(list, page),
    page.limit + 1,
    page.bytes ?? PAGE_BYTES,
  ])
  const rows = found.map((stored) => stored && toRow(stored))
  return toPage(list, page, rows, ({ id }) => id)
}

/**
 * A patch's assignments, their values added to the params; `updated_at` moves with them. Only the columns
 * named here can ever be written, and only the patch's own fields are.
 */
export function setList<Column extends string>(
  columns: Readonly<Record<Column, 'text' | 'json' | 'boolean' | 'bytea'>>,
  patch: Partial<Record<NoInfer<Column>, unknown>>,
  params: Param[],
): string {
  const assignments = ['updated_at = clock_timestamp()']
  for (const column of Object.keys(columns) as Column[]) {
    const given = patch[column]
    if (given === undefined) continue
    const type = columns[column]
    params.push(type === 'json' && given !== null ? document(given) : (given as Param))
    assignments.push(`${column} = $${params.length}::${type}`)
  }
  return assignments.join(', ')
}
