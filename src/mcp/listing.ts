/**
 * One server's tool list: asked for once for all who want it, kept while it is fresh, and held still if it changes too
 * often.
 */
import type { ListedTools } from './connection.ts'
import type { McpServerInfo, McpServerSpec, ToolList } from './contract.ts'
import { hashTools } from './repair.ts'

const FRESH_MS = 5 * 60_000
const LONGEST_TTL_MS = 24 * 3_600_000
const MINUTE_MS = 60_000
/** A list that changes more often than this in a minute is noise: its announcements are ignored for a while. */
const MAX_CHANGES = 10
/**
 * How long they are ignored. No longer: some servers open sets of tools by calls and announce each set, and their last
 * list is as true as the first.
 */
const QUARANTINE_MS = MINUTE_MS

/** The list of one server. `get` rejects with the failure of `fetch`. */
interface Listing {
  /** The kept list while it is fresh or held still (unless `refresh`), else one from the server. */
  get(spec: McpServerSpec, refresh: boolean): Promise<ToolList>
  cached(): ToolList | null
  /** The server announced a change: the kept list, and one that is under way, count as old. */
  markChanged(): void
  /** A change was announced after the last complete list was asked for; false while the list is held still */
  isOutdated(): boolean
  isQuarantined(): boolean
}

type Fetch = (spec: McpServerSpec) => Promise<ListedTools & { server: McpServerInfo }>

/** Where the list is kept. The list may be gone when it is looked for: then the server is asked again. */
export interface KeptList {
  get(): ToolList | null
  put(list: ToolList): void
}

/** A listing that asks with `fetch`, one request at a time. */
export function createListing(
  fetch: Fetch,
  kept: KeptList,
  now: () => number = () => performance.now(),
): Listing {
  /** How many announcements came: in all, and before the last finished fetch began */
  const announced = { all: 0, known: 0 }
  let underWay: Promise<ToolList> | null = null
  /** How many had come when the fetch under way began; null: it begins only once the one before it is over */
  let asked: number | null = null
  let changes: number[] = []
  let quarantinedUntil = 0

  const fetchList = async (spec: McpServerSpec): Promise<ToolList> => {
    const { all } = announced
    asked = all
    const { server, tools, left_out, ttlMs } = await fetch(spec)
    const hash = await hashTools({ tools, left_out })
    const fetched_at = Date.now()
    const fresh_until = now() + Math.min(ttlMs ?? FRESH_MS, LONGEST_TTL_MS)
    const list: ToolList = { server, tools, left_out, hash, fetched_at, fresh_until }
    const before = kept.get()
    // Only changes that were announced count: one that a person's request finds is no noise.
    if (all > announced.known && before && before.hash !== list.hash) countChange()
    kept.put(list)
    announced.known = all
    return list
  }

  const countChange = (): void => {
    changes = [...changes.filter((at) => now() - at < MINUTE_MS), now()]
    if (changes.length > MAX_CHANGES) quarantinedUntil = now() + QUARANTINE_MS
  }

  /** The fetch under way or, if a change was announced after it began, the one that follows it. */
  const share = (spec: McpServerSpec): Promise<ToolList> => {
    if (underWay && (asked === null || asked === announced.all)) return underWay
    const before = underWay
    asked = null
    const next = before ? before.catch(() => {}).then(() => fetchList(spec)) : fetchList(spec)
    underWay = next
    const done = (): void => {
      if (underWay === next) underWay = null
    }
    next.then(done, done)
    return next
  }

  const isBehind = (): boolean => announced.known < announced.all

  return {
    async get(spec, refresh) {
      const list = kept.get()
      const isFresh = list !== null && !isBehind() && list.fresh_until > now()
      const isHeld = quarantinedUntil > now() || isFresh
      return list && isHeld && !refresh ? list : share(spec)
    },
    cached: kept.get,
    markChanged() {
      announced.all++
    },
    isOutdated: () => isBehind() && quarantinedUntil <= now(),
    isQuarantined: () => quarantinedUntil > now(),
  }
}
