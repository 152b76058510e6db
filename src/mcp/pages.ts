/** A tool list page by page: what the SDK is shown of each, and what is kept of it for us. */
import { isRecord, isWithin } from '../chat/json.ts'
import { MAX_ENTRIES, MAX_LIST_BYTES, repairTools } from './repair.ts'

/** The pages of the list that is being read, or was read last. */
export interface Pages {
  /**
   * A page as the SDK accepts it in every revision: names, and input schemas that mirror arguments into headers, for the
   * SDK to judge (2026-07-28). It would walk all others, too, which may be megabytes.
   */
  read(result: unknown, isFirst: boolean): unknown
  /** Gives the entries away, as they came, and keeps none: the tools left out of a list may be larger than the others */
  take(): unknown[]
}

/** Most pages of one list; a server's pages may have no end. */
const MAX_PAGES = 32

export function createPages(): Pages {
  let entries: unknown[] = []
  /** What stood beside the entries of each page */
  let beside: unknown[] = []
  let count = 0
  const take = (): unknown[] => {
    const taken = entries
    entries = []
    beside = []
    count = 0
    return taken
  }
  return {
    take,
    read(result, isFirst) {
      if (isFirst) take()
      if (!isRecord(result)) return result
      const { nextCursor, ttlMs, tools, ...rest } = result
      // An empty slice of Go is null in JSON.
      const listed = tools === null ? [] : tools
      if (!Array.isArray(listed)) return result
      const page: unknown[] = listed.slice(0, MAX_ENTRIES - entries.length)
      entries.push(...page)
      count++
      // Some servers end with `nextCursor: null` or "". No page is asked for beyond what can ever be offered, nor after
      // as many bytes of anything else: to read a page of eight megabytes takes most of a second.
      const isOffered = typeof nextCursor === 'string' && nextCursor !== ''
      const isOpen = entries.length < MAX_ENTRIES && count < MAX_PAGES
      const hasNext = isOffered && isOpen && isWithin([entries, beside, rest], { bytes: MAX_LIST_BYTES })
      beside = hasNext ? [...beside, rest] : []
      return {
        ...rest,
        resultType: 'complete',
        ...(hasNext && { nextCursor }),
        ttlMs: Number.isInteger(ttlMs) ? Math.min(Math.max(Number(ttlMs), 0), Number.MAX_SAFE_INTEGER) : 0,
        cacheScope: 'private',
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
