/** Keeps the ledger of tool calls for as long as the operator wants it, and no longer. */
import type { Logger } from 'pino'
import type { Store } from '../store/store.ts'
import { repeat } from '../within.ts'

interface RetentionDeps {
  store: Pick<Store, 'executions'>
  /** Null: for ever */
  retentionMs: number | null
  log: Pick<Logger, 'info' | 'warn'>
}

/** An hour more or less matters to nobody, and a look costs one indexed statement. */
const EVERY_MS = 3_600_000

/** Looks at once, then every hour. `close` waits for the statement that is under way: a look may take minutes. */
export function startRetention({ store, retentionMs, log }: RetentionDeps) {
  if (retentionMs === null) return { close: async () => {} }
  const closing = new AbortController()
  const look = async () => {
    try {
      const count = await store.executions.prune(retentionMs / 1000, closing.signal)
      if (count > 0) log.info({ count }, 'ended tool calls were deleted from the ledger')
    } catch (err) {
      log.warn({ err }, 'the ledger was not pruned')
    }
  }
  const first = look()
  const further = repeat(EVERY_MS, look)
  return {
    async close() {
      closing.abort()
      await Promise.all([first, further.stop()])
    },
  }
}
