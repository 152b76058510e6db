/** How much of a session's events is kept, in both buses. What is gone costs a reader a snapshot, no more. */
export interface LogLimits {
  /**
   * About twenty-five turns as the writer merges them. A client that comes back after more has a faster
   * way to catch up: the messages themselves.
   */
  maxEvents: number
  /** Results of tools and messages may be large; a log never is. */
  maxBytes: number
  /** A log nobody used for so long goes: reconnecting is a matter of minutes. */
  idleMs: number
}
export const LOG_LIMITS: LogLimits = { maxEvents: 10_000, maxBytes: 16 << 20, idleMs: 3_600_000 }

/** Bytes of live events that may wait for one reader. */
export const MAX_BUFFER = 1 << 20
/** Events a batch of a replay holds at most. */
export const PAGE = 500
