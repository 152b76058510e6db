/** The tools of a server that its connector's own lists of globs (`allow_tools`, `deny_tools`) let through. */
import { once } from '../chat/once.ts'
import type { Connector } from '../store/store.ts'
import { inSlices } from '../within.ts'

/** Whether the lists let a tool through: named by `allow_tools` if there are any, not by `deny_tools`. */
export function isOffered({ allow_tools, deny_tools }: Connector, tool: string): boolean {
  const isAllowed = allow_tools.length === 0 || testsOf(allow_tools).some((fits) => fits(tool))
  return isAllowed && !testsOf(deny_tools).some((fits) => fits(tool))
}

/** In slices: a thousand names against two thousand globs, all of them long, take seconds. */
export async function offered<T>(
  connector: Connector,
  list: readonly T[],
  nameOf: (one: T) => string,
): Promise<T[]> {
  const all = await inSlices(list, (one) => (isOffered(connector, nameOf(one)) ? [one] : []))
  return all.flat()
}

/** Globs are read once for all names of a list. */
const testsOf = once((globs: readonly string[]) => globs.map(testOf))

/**
 * `*` stands for any run of characters, `?` for one; everything else for itself. Goes piece by piece and never
 * backtracks: as a regular expression, a few stars would hold the event loop for minutes over one long name, and
 * strangers write both globs and names.
 */
function testOf(glob: string): (name: string) => boolean {
  if (!glob.includes('*')) return (name) => name.length === glob.length && standsAt(glob, name, 0)
  const [first = '', ...between] = glob.split('*')
  const last = between.pop() ?? ''
  return (name) => {
    if (!standsAt(first, name, 0)) return false
    let at = first.length
    for (const piece of between) {
      const found = placeOf(piece, name, at)
      if (found < 0) return false
      at = found + piece.length
    }
    return name.length - last.length >= at && standsAt(last, name, name.length - last.length)
  }
}

function placeOf(piece: string, name: string, from: number): number {
  if (!piece.includes('?')) return name.indexOf(piece, from)
  for (let at = from; at + piece.length <= name.length; at++) if (standsAt(piece, name, at)) return at
  return -1
}

function standsAt(piece: string, name: string, at: number): boolean {
  if (!piece.includes('?')) return name.startsWith(piece, at)
  if (at + piece.length > name.length) return false
  for (let i = 0; i < piece.length; i++) if (piece[i] !== '?' && piece[i] !== name[at + i]) return false
  return true
}
