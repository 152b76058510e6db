/** Small pieces of SQL that several nouns share. */
import { type Param, type Querying, value, values } from './db.ts'
import { document } from './json.ts'
import { readCursor, toPage } from './page.ts'
import type { Page, PageRequest, Scope } from './store.ts'

/** For `($n::text is null or owner = $n)`: whose rows a verb may see, null for everyone's. */
export const visibleTo = (scope: Scope): string | null => (scope.admin ? null : scope.owner)

/** The same in a list, which goes by the owner's index and could not with an `or`: `$n` is what `visibleTo` gives. */
export const seenBy = (scope: Scope, n: number): string =>
  scope.admin ? `$${n}::text is null` : `owner = $${n}`

/** An owner's row as the schema's `<table>_json` gives it; null where it is not to be seen. */
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

/** All that are to be seen, newest first, each as `toRow` makes it. `list` is their name in cursors. */
export async function ownPage<Stored, Row extends { id: string }>(
  db: Querying,
  [table, list]: readonly ['session', 'sessions'] | ['credential', 'credentials'] | ['api_key', 'keys'],
  scope: Scope,
  page: PageRequest,
  toRow: (stored: Stored) => Row,
): Promise<Page<Row>> {
  const found = await values<Stored>(
    db,
    `select ${table}_json(r) from ${table} r
      where ${seenBy(scope, 1)} and ($2::text is null or id < $2) order by id desc limit $3`,
    [visibleTo(scope), readCursor(list, page), page.limit + 1],
  )
  return toPage(list, page, found.map(toRow), ({ id }) => id)
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
