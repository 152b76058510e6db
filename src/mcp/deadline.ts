/** One caller's patience: a time limit and a cancellation, over work that others may share. */
import { unlessAborted } from '../within.ts'
import { McpError } from './contract.ts'

/** Its maker must clear it. */
interface Deadline {
  /** Aborts at the time limit and when the caller leaves */
  signal: AbortSignal
  /** Follows work without ending it: the race rejects when the patience is over, but the work goes on. */
  race<T>(work: Promise<T>): Promise<T>
  /** From now on a failure does not claim that nothing was run. */
  markSent(): void
  /** Why the patience ended; null while it lasts */
  failure(): McpError | null
  clear(): void
}

/** The patience of a caller who waits `ms` at most; it rejects with an McpError of kind timeout or cancelled. */
export function createDeadline(server: string, ms: number, caller?: AbortSignal): Deadline {
  const controller = new AbortController()
  let isSent = false
  // The first reason counts.
  const end = (kind: 'timeout' | 'cancelled', text: string): void =>
    controller.abort(new McpError(kind, `${server}: ${text}`, { sent: isSent }))
  const onAbort = (): void => end('cancelled', 'cancelled by the caller')
  const timer = setTimeout(() => end('timeout', `no answer within ${ms} ms`), ms)
  if (caller?.aborted) onAbort()
  else caller?.addEventListener('abort', onAbort, { once: true })
  const { signal } = controller
  return {
    signal,
    race: (work) => unlessAborted(signal, work),
    markSent() {
      isSent = true
    },
    failure: () => (signal.aborted ? signal.reason : null),
    clear() {
      clearTimeout(timer)
      caller?.removeEventListener('abort', onAbort)
    },
  }
}
