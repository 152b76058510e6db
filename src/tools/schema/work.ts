/** Counts the work of reading a node of a server's schema. */
import type { JsonSchema } from '../../provider.ts'

/** Characters of a text that count as one member. */
const TEXT_SHARE = 64
/** Most members that one text, list or map counts for. */
const MOST_COUNTED = 1_000

/** The node's work, in members of its objects and lists; of its subschemas only their number counts. */
export function workOf(raw: JsonSchema): number {
  // The values of `enum` are compared as JSON texts, whatever they are: all inside them counts.
  let work = 1 + membersIn(raw.enum)
  for (const [keyword, value] of Object.entries(raw)) {
    if (keyword === 'enum') continue
    if (typeof value === 'string') work += Math.min(value.length / TEXT_SHARE, MOST_COUNTED)
    else if (typeof value === 'object' && value !== null) {
      work += Math.min(Array.isArray(value) ? value.length : Object.keys(value).length, MOST_COUNTED)
    }
  }
  return work
}

function membersIn(value: unknown): number {
  const open = [value]
  let count = 0
  while (open.length > 0 && count + open.length < MOST_COUNTED) {
    const next = open.pop()
    if (typeof next === 'object' && next !== null) open.push(...Object.values(next).slice(0, MOST_COUNTED))
    count++
  }
  return count + open.length
}
