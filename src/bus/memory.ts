/**
 * The bus of a single process. Readers share each session's log and keep only their place in it, so that
 * a reader costs no copy; the log is bounded in events and bytes, and all logs together in bytes.
 */
import type { Metrics } from '../telemetry.ts'
import {
  type Bus,
  LOG_LIMITS,
  type LogLimits,
  MAX_BUFFER,
  PAGE,
  PAGE_BYTES,
  type ReadItem,
  type ReadOptions,
  type Topic,
} from './bus.ts'
import { type Position, parseCursor, positionOf } from './cursor.ts'
import { Log } from './memory-log.ts'
import { createMemorySlots } from './slots.ts'

interface MemoryBusDeps {
  limits?: Partial<LogLimits>
  metrics?: Pick<Metrics, 'eventsAppended'>
}

/** All logs together; the least recently used ones go first. */
const MAX_TOTAL_BYTES = 64 << 20
const SWEEP_MS = 60_000

/** A session's log with those who read it. */
class SharedLog extends Log {
  readonly readers = new Set<Following>()
  /** By the monotonic clock: a wall clock that is set forward makes no log old */
  usedAt = performance.now()
  isDropped = false
}

/**
 * A read of a log, as a plain iterator: what is appended reaches its reader in one hop. A generator takes four, which
 * cost more than all else of a delta here.
 */
class Following implements AsyncIterator<ReadItem> {
  readonly #open: () => SharedLog
  readonly #from: Position | null
  readonly #options: ReadOptions
  /** Null before the first `next` */
  #log: SharedLog | null = null
  #next = 0
  /** Bytes appended up to here are no sign of a slow reader: they were there before it, or came while it waited */
  #history = 0
  #isOver = false
  #asked: ((result: IteratorResult<ReadItem>) => void) | null = null

  constructor(open: () => SharedLog, from: Position | null, options: ReadOptions) {
    this.#open = open
    this.#from = from
    this.#options = options
  }

  next(): Promise<IteratorResult<ReadItem>> {
    const result = this.#look()
    if (result) return Promise.resolve(result)
    return new Promise((resolve) => {
      this.#asked = resolve
    })
  }

  return(): Promise<IteratorResult<ReadItem>> {
    return Promise.resolve(this.#end())
  }

  readonly wake = (): void => {
    const give = this.#asked
    if (!give) return
    // The reader waits: however much has just come, that is no sign of a slow one.
    if (this.#log) this.#history = this.#log.total
    const result = this.#look()
    if (!result) return
    this.#asked = null
    give(result)
  }

  /** Null: there is nothing yet. */
  #look(): IteratorResult<ReadItem> | null {
    const { turn, signal } = this.#options
    if (this.#isOver || signal.aborted) return this.#end()
    const known = this.#log
    const log = known ?? this.#open()
    const gap = known ? null : this.#begin(log)
    if (gap !== null) return { value: { gap: true, cursor: gap } }
    while (!log.isDropped && !log.isOver(turn, this.#next)) {
      if (this.#next > log.last) return null
      // What waits first is no sign of a slow reader, however large it is.
      const behind = log.total - Math.max(this.#history, log.bytesBefore(this.#next + 1))
      if (this.#next < log.base || behind > MAX_BUFFER) {
        this.#end()
        return { value: { lagged: true } }
      }
      const page = log.page(this.#next, PAGE, PAGE_BYTES)
      this.#next += page.length
      const events = turn === undefined ? page : page.filter(({ turn_id }) => turn_id === turn)
      if (events.length > 0) return { value: { events } }
    }
    return this.#end()
  }

  /** Null if the read begins where it was asked to; else the place after the gap. */
  #begin(log: SharedLog): string | null {
    this.#log = log
    log.readers.add(this)
    this.#options.signal.addEventListener('abort', this.wake)
    this.#history = log.total
    const start = log.startOf(this.#from, this.#options)
    const { next, cursor } = start === null ? log.gap() : { next: start, cursor: null }
    this.#next = next
    return cursor
  }

  #end(): IteratorResult<ReadItem> {
    this.#isOver = true
    if (this.#log?.readers.delete(this)) {
      this.#log.usedAt = performance.now()
      this.#options.signal.removeEventListener('abort', this.wake)
    }
    return { value: undefined, done: true }
  }
}

export function createMemoryBus(deps: MemoryBusDeps = {}): Bus {
  const limits: LogLimits = { ...LOG_LIMITS, ...deps.limits }
  const logs = new Map<string, SharedLog>()
  const topics = new Map<Topic, Set<(message: string) => void>>()
  let total = 0

  const logOf = (session: string): SharedLog => {
    const there = logs.get(session)
    if (there) return there
    const log = new SharedLog(session)
    logs.set(session, log)
    return log
  }
  const forget = (session: string, log: SharedLog) => {
    logs.delete(session)
    total -= log.bytes
    log.isDropped = true
    for (const reader of log.readers) reader.wake()
  }
  const trim = (log: Log, maxEvents: number, maxBytes: number) => {
    const before = log.bytes
    log.trim(maxEvents, maxBytes)
    total -= before - log.bytes
  }
  /** A log that nobody reads is dropped whole. A log with readers keeps its generation, and the readers their place. */
  const evict = () => {
    const byUse = [...logs].sort(([, a], [, b]) => a.usedAt - b.usedAt)
    for (const [session, log] of byUse) {
      if (total <= MAX_TOTAL_BYTES * 0.75) return
      if (log.readers.size === 0) forget(session, log)
      else trim(log, limits.maxEvents, 0)
    }
  }
  const tallies = new Map<string, { count: number; until: number }>()
  const sweep = setInterval(() => {
    const ms = performance.now()
    for (const [name, { until }] of tallies) if (until <= ms) tallies.delete(name)
    const oldest = ms - limits.idleMs
    for (const [session, log] of logs) {
      if (log.readers.size === 0 && log.usedAt < oldest) forget(session, log)
    }
  }, SWEEP_MS).unref()

  return {
    async append(session, events) {
      const log = logOf(session)
      const before = log.total
      for (const event of events) log.append(event)
      total += log.total - before
      log.usedAt = performance.now()
      for (const reader of log.readers) reader.wake()
      if (log.count > limits.maxEvents || log.bytes > limits.maxBytes) {
        // A tenth at once, so that not every event pays for the move.
        trim(log, Math.floor(limits.maxEvents * 0.9), limits.maxBytes * 0.9)
      }
      if (total > MAX_TOTAL_BYTES) evict()
      deps.metrics?.eventsAppended(events.length)
    },
    read(session, options) {
      const from = positionOf(session, options.after)
      return { [Symbol.asyncIterator]: () => new Following(() => logOf(session), from, options) }
    },
    present: async (session) => logOf(session).present,
    oldest: async (session) => logOf(session).oldest,
    async pastEnd(session, turn, cursor, hasEnded) {
      const position = parseCursor(cursor, session)
      return logs.get(session)?.pastEnd(turn, position, hasEnded) ?? false
    },
    async drop(session) {
      const log = logs.get(session)
      if (log) forget(session, log)
    },
    async publish(topic, message) {
      // Later, as over a network: a subscriber never runs inside the publisher's call.
      for (const fn of topics.get(topic) ?? []) queueMicrotask(() => fn(message))
    },
    subscribe(topic, fn) {
      const known = topics.get(topic) ?? new Set()
      topics.set(topic, known.add(fn))
    },
    slots: (_, total) => createMemorySlots(total),
    async tally(name, seconds) {
      const known = tallies.get(name)
      const ms = performance.now()
      const tally = known && known.until > ms ? known : { count: 0, until: ms + seconds * 1000 }
      tallies.set(name, tally)
      return ++tally.count
    },
    async ready() {},
    async close() {
      clearInterval(sweep)
      for (const [session, log] of logs) forget(session, log)
    },
  }
}
