/** Counts the work of reading a node of a server's schema. */
import type { JsonSchema } from '../../provider.ts'

/** Characters of a text that count as one member. */
const TEXT_SHARE = 64
/** Most members that one text, list or map counts for, the first time that it is read. */
const MOST_COUNTED = 1_000
/** Keywords whose values are read, compared or written down with all that is inside them */
const DATA = new Set(['enum', 'const', 'default', 'examples', 'dependentRequired', 'dependencies'])

/**
 * The node's work, in members of its objects and lists; of its subschemas only their number counts. Once, a node may be
 * large: all of them together are no larger than the schema. `isAgain`: it was read before, and counts for all it is.
 */
export function workOf(raw: JsonSchema, isAgain: boolean): number {
  const most = isAgain ? Number.POSITIVE_INFINITY : MOST_COUNTED
  let work = 1
  for (const [keyword, value] of Object.entries(raw)) {
    work += DATA.has(keyword) ? membersIn(value, most) : Math.min(sizeOf(value), most)
  }
  return work
}

/** Members, or a text's share; a mere number says nothing. */
function sizeOf(value: unknown): number {
  if (typeof value === 'string') return value.length / TEXT_SHARE
  if (typeof value !== 'object' || value === null) return 0
  return Array.isArray(value) ? value.length : Object.keys(value).length
}

/** … with all that is inside them. */
function membersIn(value: unknown, most: number): number {
  const open = [value]
  let count = 0
  while (open.length > 0 && count + open.length < most) {
    const next = open.pop()
    if (typeof next === 'string') count += next.length / TEXT_SHARE
    else if (typeof next === 'object' && next !== null) {
      for (const member of Object.values(next)) if (open.length < most) open.push(member)
    }
    count++
  }
  return Math.min(count + open.length, most)
}
