/** Keeps a failing login service from being hammered: a login whose renewal failed is left alone for a while. */
import { BoundedMap } from '../bounded-map.ts'
import { BatonError } from '../errors.ts'

/** A login is left alone this long after a failure, unless its service names another time. */
const SHORTEST_PAUSE_MS = 5_000
/** Longest time that a service may name. */
export const LONGEST_PAUSE_MS = 300_000
/** Logins come and go in a long-lived process. */
const MOST_PAUSES = 1000

interface Pauses {
  /** Begins a pause of `ms`, within bounds; returns the error with that time, which nobody need come back before. */
  begin(id: string, error: BatonError, ms?: number): BatonError
  /** Throws the error of the login's last failure during the pause after it, with what is left of that. */
  assertOver(id: string): void
  /** Whether the login's last renewal failed a moment ago. */
  isPaused(id: string): boolean
}

/** `uptime`: a clock that is set back must not make pauses longer. */
export function createPauses(uptime: () => number): Pauses {
  const pauses = new BoundedMap<{ until: number; error: BatonError }>(MOST_PAUSES)
  const current = (id: string) => {
    const last = pauses.get(id)
    return last && last.until > uptime() ? last : null
  }
  return {
    begin(id, error, ms = 0) {
      const pauseMs = Math.min(Math.max(ms, SHORTEST_PAUSE_MS), LONGEST_PAUSE_MS)
      pauses.put(id, { until: uptime() + pauseMs, error })
      return withWait(error, pauseMs)
    },
    assertOver(id) {
      const paused = current(id)
      if (paused) throw withWait(paused.error, paused.until - uptime())
    },
    isPaused: (id) => current(id) !== null,
  }
}

const withWait = ({ code, message, param, details, cause }: BatonError, ms: number): BatonError =>
  new BatonError(code, message, { param, details, cause, retryAfter: Math.ceil(ms / 1000) })
