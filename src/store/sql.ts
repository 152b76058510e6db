/** Small pieces of SQL that several nouns share. */
import type { Param } from './db.ts'
import { document } from './json.ts'
import type { Scope } from './store.ts'

/** For `($n::text is null or owner = $n)`: whose rows a verb may see, null for everyone's. */
export const visibleTo = (scope: Scope): string | null => (scope.admin ? null : scope.owner)

/** The same in a list, where it must name the index: `$n` is what `visibleTo` gives. */
export const seenBy = (scope: Scope, n: number): string =>
  scope.admin ? `$${n}::text is null` : `owner = $${n}`

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
