/** A tool list page by page: what the SDK is shown of each, and what is kept of it for us. */
import { isRecord, isWithin } from '../chat/json.ts'
import { MAX_ENTRIES, MAX_LIST_BYTES, repairTools } from './repair.ts'

/** The pages of the list that is being read, or was read last. */
export interface Pages {
  /**
   * A page as the SDK accepts it in every revision: names, and input schemas that mirror arguments into headers, for the
   * SDK to judge (2026-07-28). It would walk all others, too, which may be megabytes.
   */
  read(result: unknown, asked: { cursor: unknown; isModern: boolean }): unknown
  /**
   * Gives the entries away, as they came, and keeps none: the tools left out of a list may be larger than the others.
   * `ttlMs`: how long all pages hold, as their server says; 0: one of them does not say it
   */
  take(): { entries: unknown[]; ttlMs: number }
}

/** A last page without tools, as the SDK accepts it in every revision. */
export const LAST_PAGE = { resultType: 'complete', ttlMs: 0, cacheScope: 'private', tools: [] }

/** Most pages of one list; a server's pages may have no end. */
const MAX_PAGES = 32

export function createPages(): Pages {
  let entries: unknown[] = []
  /** What stood beside the entries of each page before this one */
  let beside: Record<string, unknown>[] = []
  /** The list is stale with the first of its pages: each has a time of its own (MCP 2026-07-28, "Caching"). */
  let ttl: number | undefined
  const take = () => {
    const taken = { entries, ttlMs: ttl ?? 0 }
    entries = []
    beside = []
    ttl = undefined
    return taken
  }
  return {
    take,
    read(result, { cursor, isModern }) {
      if (cursor === undefined) take()
      if (!isRecord(result)) return result
      const { ttlMs, tools, ...rest } = result
      const { nextCursor } = rest
      // An empty slice of Go is null in JSON.
      const listed = tools === null ? [] : tools
      if (!Array.isArray(listed)) return result
      const page: unknown[] = listed.slice(0, MAX_ENTRIES - entries.length)
      entries.push(...page)
      const own = Number.isInteger(ttlMs) ? Math.max(Number(ttlMs), 0) : 0
      ttl = Math.min(ttl ?? own, own)
      // Some servers end with `nextCursor: null`, or with "", which is a cursor like any other from 2026-07-28 on.
      const isOffered = typeof nextCursor === 'string' && (isModern || nextCursor !== '')
      // A cursor that comes back begins the list anew: "" may mean its first page. (The same one twice is the SDK's to judge.)
      const isAgain = nextCursor !== cursor && beside.some((page) => page.nextCursor === nextCursor)
      // No page is asked for beyond what can ever be offered, nor after as many bytes of anything else: to read a page of
      // eight megabytes takes most of a second.
      const isOpen = !isAgain && entries.length < MAX_ENTRIES && beside.length + 1 < MAX_PAGES
      const hasNext = isOffered && isOpen && isWithin([entries, beside, rest], { bytes: MAX_LIST_BYTES })
      beside = hasNext ? [...beside, rest] : []
      return {
        ...rest,
        ...LAST_PAGE,
        nextCursor: hasNext ? nextCursor : undefined,
        tools: repairTools(page).tools.map(({ name, inputSchema }) => ({
          name,
          inputSchema: JSON.stringify(inputSchema).includes('"x-mcp-header"')
            ? inputSchema
            : { type: 'object' },
        })),
      }
    },
  }
}
