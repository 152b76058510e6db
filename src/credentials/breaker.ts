/**
 * Stands in front of one endpoint: after failures of several logins in a row nobody asks for a while, then one caller
 * asks first. A single login that fails again and again says nothing about the endpoint.
 */
export interface Breaker {
  /** Milliseconds until it is worth asking again; 0: ask now, and report what came of it. */
  waitMs(): number
  succeeded(): void
  /** `retryMs`: how long the endpoint itself asked to be left alone */
  failed(login: string, retryMs: number): void
}

/** Logins whose failures, without a success between them, open the breaker. */
const MOST_FAILED = 5
/** Nobody asks for this long then, or for longer if the endpoint says so. */
const COOL_MS = 30_000

/** `uptime`: a clock that is set back must not make a pause longer. */
export function createBreaker(uptime: () => number): Breaker {
  const failed = new Set<string>()
  let openUntil = 0
  return {
    waitMs() {
      if (failed.size < MOST_FAILED) return 0
      const left = openUntil - uptime()
      if (left > 0) return left
      // This caller is the one that tries; others who come meanwhile wait.
      openUntil = uptime() + COOL_MS
      return 0
    },
    succeeded: () => failed.clear(),
    failed(login, retryMs) {
      failed.add(login)
      openUntil = uptime() + Math.max(COOL_MS, retryMs)
    },
  }
}
