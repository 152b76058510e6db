/** Back-off for one server: after three failures in a row, one attempt at a time with growing random pauses. */

const TOLERATED = 3
const FIRST_MS = 500
const LONGEST_MS = 60_000

/** Whether a server may be asked now. Who asks reports what came of it. */
export interface Backoff {
  /** Milliseconds until the next attempt is allowed; 0: now */
  waitMs(): number
  /** The pause is over; the next failure makes a longer one */
  skip(): void
  succeeded(): void
  failed(): void
}

/** Full jitter (0 to 0.5 s · 2ⁿ, at most 60 s), so that many gateways do not come back at the same moment. */
export function createBackoff(
  random: () => number = Math.random,
  now: () => number = () => performance.now(),
): Backoff {
  let failures = 0
  let openUntil = 0
  return {
    waitMs: () => Math.max(0, openUntil - now()),
    skip() {
      openUntil = 0
    },
    succeeded() {
      failures = 0
      openUntil = 0
    },
    failed() {
      failures++
      if (failures < TOLERATED) return
      openUntil = now() + random() * Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 20))
    },
  }
}
