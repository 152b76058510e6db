/**
 * Remembers a server's failures, to say whether it may be asked now, how patiently, and what its state is. After three
 * failed attempts in a row there is one at a time, with growing random pauses. src/tools/watch.ts decides what callers
 * get meanwhile.
 */
import type { McpError } from './contract.ts'

const TOLERATED = 3
const FIRST_MS = 500
const LONGEST_MS = 60_000
/** After this many requests in a row without an answer, the server counts as stuck. */
const MAX_TIMEOUTS = 3

/** The code that asks the server reports the outcome here. */
export interface Health {
  /** Milliseconds until the next attempt is allowed; 0: now */
  waitMs(): number
  /** The pause is over; the next failure makes a longer one */
  skipPause(): void
  /** How long an attempt may take now: longer after each that was too slow, so that a slow server connects in the end. */
  patienceMs(): number
  /** Too many requests in a row had no answer */
  isStuck(): boolean
  /** The last failure; null after a success */
  last(): LastFailure | null
  succeeded(): void
  /** An attempt that succeeded took this long. */
  took(ms: number): void
  /** Calls do not count for the pauses: many of them share one cause. */
  failed(error: McpError, what: 'attempt' | 'call'): void
  /** The next requests go over another connection. */
  reconnects(): void
  /** Nobody asks for the server any more: its last failure is no news. */
  rests(): void
}
/** Only words: the error itself holds its stack, and with that its attempt's client and transport. */
type LastFailure = Pick<McpError, 'kind' | 'message'>

export interface HealthOptions {
  /** Time for a first attempt; each that takes too long gives the next one twice the time, up to `attemptMs` */
  connectMs: number
  attemptMs: number
  random?(): number
  now?(): number
}

export function createHealth({
  connectMs,
  attemptMs,
  random = Math.random,
  now = () => performance.now(),
}: HealthOptions): Health {
  /** Attempts that failed in a row */
  let failures = 0
  let pausedUntil = 0
  /** Attempts that took too long since one was quick */
  let late = 0
  /** Requests in a row without an answer */
  let timeouts = 0
  let last: LastFailure | null = null
  return {
    waitMs: () => Math.max(0, pausedUntil - now()),
    skipPause() {
      pausedUntil = 0
    },
    patienceMs: () => Math.min(connectMs * 2 ** late, attemptMs),
    isStuck: () => timeouts >= MAX_TIMEOUTS,
    last: () => last,
    succeeded() {
      failures = 0
      pausedUntil = 0
      timeouts = 0
      last = null
    },
    took(ms) {
      if (ms < connectMs) late = 0
    },
    failed({ kind, message }, what) {
      if (kind === 'cancelled' || (what === 'call' && kind === 'protocol')) return
      last = { kind, message }
      if (kind === 'timeout') timeouts++
      if (what === 'call') return
      if (kind === 'timeout') late++
      // No pause for a missing login, which may be there in a moment.
      if (kind === 'auth_required' || ++failures < TOLERATED) return
      // Full jitter (0 to 0.5 s · 2ⁿ), so that many gateways do not come back at the same moment.
      pausedUntil = now() + random() * Math.min(LONGEST_MS, FIRST_MS * 2 ** failures)
    },
    reconnects() {
      timeouts = 0
    },
    rests() {
      last = null
    },
  }
}
