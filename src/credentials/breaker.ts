/**
 * A circuit breaker in front of one endpoint: after several failures in a row nobody asks for a while, then
 * one asks first. Time is the caller's, so that tests drive it.
 */
export interface Breaker {
  /** Milliseconds until it is worth asking again; 0: ask now, and report what came of it. */
  waitMs(): number
  succeeded(): void
  /** `retryMs`: how long the endpoint itself asked to be left alone */
  failed(retryMs: number): void
}

/** Failures in a row that open it. */
const MOST_FAILURES = 5
/** Nobody asks for so long then, or for longer where the endpoint wants it. */
const COOL_MS = 30_000

export function createBreaker({ now }: { now(): number }): Breaker {
  let inARow = 0
  let openUntil = 0
  return {
    waitMs() {
      if (inARow < MOST_FAILURES) return 0
      const left = openUntil - now()
      if (left > 0) return left
      // This caller is the one that tries; whoever comes while it does, waits.
      openUntil = now() + COOL_MS
      return 0
    },
    succeeded() {
      inARow = 0
    },
    failed(retryMs) {
      inARow++
      openUntil = now() + Math.max(COOL_MS, retryMs)
    },
  }
}
