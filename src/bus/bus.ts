/**
 * The bus: one ordered event log for each session, and wake-ups between replicas. It may be flushed at any time
 * without losing a conversation: a reader whose place is gone is told so (`gap`), never served wrongly.
 * Two implementations, memory and Redis, pass the same contract tests, and answer alike (test/bus/alike.test.ts): a rule
 * of a log is changed in both, memory-log.ts and the scripts of redis/scripts.ts.
 */

import type { Slots } from './slots.ts'

/** An event on its way into the log. `data` is its JSON, encoded once for every reader. */
export interface BusEvent {
  type: string
  turn_id: string | null
  data: string
  /**
   * `data` once more, without the turn, if somebody other than the turn's owner says the event. If the log does not
   * know the turn, or has its end already, this is logged in place of `data`, as an event of the session alone: nothing
   * of a turn may come before its first event or after its last.
   */
  alone?: string
  /**
   * Dropped if an event with this key is in the session's log already (an announcement repeated after a crash). The key
   * of a turn's event begins with the turn's id and a colon: it is remembered until the turn's end is no longer kept,
   * though the event itself may be gone before.
   */
  once?: string | undefined
  /**
   * The lease under which a turn's owner says the event. It is dropped once a later owner has spoken in the turn, or
   * the turn's end is in the log: a process that was frozen does not know that it owns nothing any more. If the log
   * does not know the turn, and this is not its first event, the newest owner that spoke in the session decides.
   */
  epoch?: number
  /**
   * The event may have been said before, by an owner that died or before its turn waited. If the log was lost since,
   * its readers get a gap and not the event twice.
   */
  again?: boolean
  /** Events that its owner said before this one were lost, and the log has no mark of that: readers get a gap. */
  lost?: boolean
}
/** An event in the log. `cursor` is opaque to clients, ordered within a session, and names its session. */
export interface LoggedEvent {
  cursor: string
  type: string
  turn_id: string | null
  data: string
}
/** Where a read begins, and what it passes on. */
export interface ReadOptions {
  /** Only this turn's events; a turn's stream starts at its first one */
  turn?: string
  /** A cursor, or `start`: the oldest kept, or the turn's first event */
  after: string
  signal: AbortSignal
  /** The store says that the turn had events before this read: a log that knows none of them has lost them */
  begun?: boolean
  /** The store says that the turn has committed no step: its first event may be on its way into the log */
  isYoung?: boolean
}
/**
 * What a reader gets: batches in order, none missing, none twice. `gap`: the place after which the reader asked, or the
 * turn's first event, is no longer kept; live events follow from `cursor` on. It comes first, or later if the log was
 * lost under the reader. A gap may hide a turn's end: ask the store. After `lagged`, after its turn's terminal event,
 * and when the session is dropped, the read ends.
 */
export type ReadItem = { events: LoggedEvent[] } | { gap: true; cursor: string } | { lagged: true }

export interface Bus {
  /**
   * Appends in order, atomically ordered against other writers. A turn's first event is its `turn.created`. Throws
   * `unavailable` within a bounded time; then the events are lost and their readers get a gap.
   */
  append(session: string, events: BusEvent[]): Promise<void>
  /**
   * Subscribes first, then reads the backlog, and drops what it has seen. Throws `invalid_cursor` at once;
   * everything else starts with the first `next`. While Redis is away it waits; for the first item ten seconds at
   * most, then it throws `unavailable`.
   */
  read(session: string, options: ReadOptions): AsyncIterable<ReadItem>
  /**
   * The cursor of the newest event: a reader from there on hears all that is said from now on. If the bus is away, one of
   * a place that is lost. Never rejects.
   */
  present(session: string): Promise<string>
  /**
   * The cursor before the oldest event kept, of a log that has begun by then: if it is dropped before the reader comes,
   * that gets a gap. If the bus is away, `start`. Never rejects.
   */
  oldest(session: string): Promise<string>
  /**
   * Whether the cursor is at or after the turn's terminal event; false if the log no longer knows, and while the bus is
   * away: then the reader waits in `read`. `hasEnded`: the store says that the turn is over. If the log keeps the
   * cursor's place and knows nothing of the turn any more, its end was forgotten before that place: the answer is
   * `hasEnded`. Throws `invalid_cursor` alone.
   */
  pastEnd(session: string, turn: string, cursor: string, hasEnded: boolean): Promise<boolean>
  /** For a deleted session: drops its log and ends its reads. */
  drop(session: string): Promise<void>
  /** A small message to every replica, this one included; may be lost, never relied on alone. Never rejects. */
  publish(topic: Topic, message: string): Promise<void>
  /** Until the bus is closed. */
  subscribe(topic: Topic, fn: (message: string) => void): void
  /** Counted slots, `total` of them, that everyone with this scope shares: all replicas, or this process alone. */
  slots(scope: string, total: number): Slots
  /**
   * Adds one to a count that all replicas share and that is forgotten after `seconds`. Returns the new count. Throws
   * `unavailable` at once while Redis is away.
   */
  tally(name: string, seconds: number): Promise<number>
  /** Throws `unavailable`. */
  ready(): Promise<void>
  close(): Promise<void>
}
/**
 * control: what an owner of turns, or all replicas, must hear (`Control`, turns/control.ts) · queue: a session has
 * work · keys: a key was revoked · connectors: nobody needs the connection of this key any more
 */
export type Topic = 'control' | 'queue' | 'keys' | 'connectors'

/** How much of a session's events both buses keep. What is gone costs a reader a snapshot, no more. */
export interface LogLimits {
  /**
   * About twenty-five turns as the writer merges them. A client that comes back after more has a faster
   * way to catch up: the messages themselves.
   */
  maxEvents: number
  /** Results of tools and messages may be large; a log never is. */
  maxBytes: number
  /** A log that nobody has used for this long is dropped: reconnecting is a matter of minutes. */
  idleMs: number
}
export const LOG_LIMITS: LogLimits = { maxEvents: 10_000, maxBytes: 16 << 20, idleMs: 3_600_000 }
/** Bytes of live events that may wait for one reader, behind the next one, before `lagged` ends its stream. */
export const MAX_BUFFER = 1 << 20
/** Most events in one batch of a replay. */
export const PAGE = 500
/** Bytes of one batch of a replay, unless its first event alone has more: each reader holds a batch until it is read. */
export const PAGE_BYTES = 512 << 10
