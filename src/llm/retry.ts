/** When a failed attempt is made again, and after what wait. Pure: chance is handed in. */
import { type BatonError, UPSTREAM_CODES } from '../errors.ts'

const RETRIES = 2
/**
 * Full jitter below 400 ms, then below 800 ms, also after a wait that the vendor names: all calls of a burst are told the
 * same, and must not come back as a burst (NousResearch/hermes-agent#109234).
 */
const BASE_MS = 400
/**
 * A longer wait is the caller's decision: the error goes out at once with its Retry-After. So does the error of a rate
 * limit that names no wait: adapters state five seconds for it.
 */
const LONGEST_WAIT_MS = 4000
const MOST_TOLD_MS = 6000

/** The retries used so far, for one request and for those that take its place. */
export interface Tries {
  retries: number
  /** Waits that the vendor named, together */
  toldMs: number
  /** Codes of the errors that came when a stream had begun */
  begunWith: Set<string>
}
export const noTries = (): Tries => ({ retries: 0, toldMs: 0, begunWith: new Set() })

/**
 * Milliseconds until the next attempt, which then counts as one of the tries; null: give up with this error. `begun`: a
 * stream had begun to answer, so that the vendor may have charged for the attempt. `chance`: in [0, 1).
 */
export function retryWait(tries: Tries, error: BatonError, begun: boolean, chance: number): number | null {
  if (tries.retries >= RETRIES || !mayPass(error)) return null
  const phase = error.details?.phase
  // The whole time limit has passed in the queue or while the vendor was silent: the next attempt would wait as long.
  if (error.code === 'upstream_timeout' && phase !== undefined && phase !== 'connect') return null
  if (begun) {
    // Tried again only after an error that the vendor itself sent in place of an answer, and once for each code.
    if (error.code === 'upstream_disconnected' || tries.begunWith.has(error.code)) return null
    tries.begunWith.add(error.code)
  }
  const told = toldWait(error)
  if (told === null || tries.toldMs + told > MOST_TOLD_MS) return null
  const backoff = chance * BASE_MS * 2 ** tries.retries
  tries.retries++
  tries.toldMs += told
  return told + backoff
}

/** Whether a later attempt may succeed: as the vendor says, else by the kind of failure. The limits hold either way. */
function mayPass({ code, retryable, details }: BatonError): boolean {
  const told = details?.should_retry
  return typeof told === 'boolean' ? told : retryable && UPSTREAM_CODES.includes(code)
}

/** The wait that the error names, 0 if it needs none; null: it is too long, or needed and not named. */
function toldWait({ retryAfter, code }: BatonError): number | null {
  if (retryAfter === undefined) return code === 'upstream_rate_limited' ? null : 0
  const told = retryAfter * 1000
  return told <= LONGEST_WAIT_MS ? told : null
}
