/**
 * The bus of a single process. Readers share each session's log and keep only their place in it, so that
 * a reader costs no copy; the log is bounded in events and bytes, and all logs together in bytes.
 */
import { FIRST_EVENT, isTerminal } from '../chat/event.ts'
import type { Metrics } from '../telemetry.ts'
import type { Bus, BusEvent, LoggedEvent, ReadItem, ReadOptions, Topic } from './bus.ts'
import {
  formatCursor,
  newGeneration,
  numbersOf,
  type Position,
  parseCursor,
  positionOf,
  sessionTag,
} from './cursor.ts'
import { LOG_LIMITS, type LogLimits, MAX_BUFFER, PAGE } from './limits.ts'
import { createMemoryPlaces } from './places.ts'

interface MemoryBusDeps {
  limits?: Partial<LogLimits>
  metrics?: Pick<Metrics, 'eventsAppended'>
  /** Of cursors. What is kept for how long goes by the monotonic clock: one that is set forward makes nothing old */
  now?(): number
}

interface Reader {
  wake(): void
}
/** Numbers of a turn's first and terminal event in its session's log; null: not there (any more) */
interface TurnMarks {
  first: number | null
  end: number | null
  /** Of the newest owner that spoke in it */
  epoch: number
}

/** All logs together; the least used ones go first. */
const MAX_TOTAL_BYTES = 64 << 20
const SWEEP_MS = 60_000
/** What an event weighs beside its data. */
const OVERHEAD = 200

/** One session's log. Events are numbered from 1; `base` is the number of the oldest one kept. */
class Log {
  readonly tag: string
  readonly generation = newGeneration()
  readonly readers = new Set<Reader>()
  readonly turns = new Map<string, TurnMarks>()
  readonly once = new Map<string, { n: number; cursor: string }>()
  events: LoggedEvent[] = []
  /** Bytes ever appended, up to and with the event at the same index */
  ends: number[] = []
  base = 1
  total = 0
  lastMs: number
  usedAt: number
  isDropped = false
  /** Of the newest owner that spoke */
  epoch = 0
  readonly now: () => number

  constructor(session: string, now: () => number) {
    this.tag = sessionTag(session)
    this.now = now
    this.lastMs = now()
    this.usedAt = performance.now()
  }

  get last(): number {
    return this.base + this.events.length - 1
  }
  /** Bytes kept */
  get bytes(): number {
    return this.total - this.bytesBefore(this.base)
  }
  /** Bytes ever appended before the event of this number. */
  bytesBefore(n: number): number {
    const end = this.ends[n - this.base - 1]
    if (end !== undefined) return end
    const first = this.events[0]
    return first && this.ends[0] !== undefined ? this.ends[0] - weight(first) : this.total
  }

  /** The place after the newest event. */
  cursor(): string {
    return this.#cursorAt(this.last)
  }

  #cursorAt(n: number): string {
    return formatCursor(this.tag, { generation: this.generation, id: `${this.lastMs}-${n}` })
  }

  append(given: BusEvent): string {
    const event = this.#placed(given)
    const known = event.once === undefined ? undefined : this.once.get(event.once)
    if (known) return known.cursor
    if (this.#isStale(event)) return this.cursor()
    // A clock that goes back does not: cursors stay ordered.
    this.lastMs = Math.max(this.lastMs, this.now())
    const n = this.last + 1
    const { type, turn_id, data, epoch = 0 } = event
    const logged: LoggedEvent = { cursor: this.#cursorAt(n), type, turn_id, data }
    this.total += weight(logged)
    this.events.push(logged)
    this.ends.push(this.total)
    if (event.once !== undefined) this.once.set(event.once, { n, cursor: logged.cursor })
    if (turn_id !== null) this.#mark(turn_id, type, n, epoch)
    return logged.cursor
  }

  #placed(event: BusEvent): BusEvent {
    if (event.alone === undefined || this.turns.get(event.turn_id ?? '')?.end === null) return event
    return { ...event, turn_id: null, data: event.alone }
  }

  #isStale({ epoch, turn_id, type }: BusEvent): boolean {
    if (epoch === undefined) return false
    const marks = this.turns.get(turn_id ?? '')
    const newest = marks?.epoch ?? (type === FIRST_EVENT ? 0 : this.epoch)
    return epoch < newest || (marks?.end ?? null) !== null
  }

  #mark(turn: string, type: string, n: number, epoch: number): void {
    const known = this.turns.get(turn)
    const marks: TurnMarks = known ?? { first: type === FIRST_EVENT ? n : null, end: null, epoch }
    marks.epoch = Math.max(marks.epoch, epoch)
    this.epoch = Math.max(this.epoch, epoch)
    if (isTerminal(type)) marks.end = n
    if (!known) this.turns.set(turn, marks)
  }

  /** Forgets the oldest events, down to these bounds. */
  trim(maxEvents: number, maxBytes: number): void {
    let count = Math.max(0, this.events.length - maxEvents)
    while (count < this.events.length && this.total - this.bytesBefore(this.base + count) > maxBytes) count++
    this.events.splice(0, count)
    this.ends.splice(0, count)
    this.base += count
    for (const [key, { n }] of this.once) if (n < this.base) this.once.delete(key)
    for (const [turn, marks] of this.turns) {
      if (marks.first !== null && marks.first < this.base) marks.first = null
      if (marks.end !== null && marks.end < this.base) this.turns.delete(turn)
    }
  }
}

const weight = (event: LoggedEvent): number => event.data.length + OVERHEAD

/**
 * A read of a log, as a plain iterator: what is appended reaches its reader in one hop, where a generator takes four,
 * which cost more than all else of a delta here.
 */
class Following implements AsyncIterator<ReadItem>, Reader {
  readonly #open: () => Log
  readonly #from: Position | null
  readonly #options: ReadOptions
  /** Null before the first `next` */
  #log: Log | null = null
  #next = 0
  /** Bytes appended up to here are no sign of a slow reader: history that waits to be read, or what it waited for */
  #history = 0
  #isOver = false
  #asked: ((result: IteratorResult<ReadItem>) => void) | null = null

  constructor(open: () => Log, from: Position | null, options: ReadOptions) {
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
    // It waits: however much has just come, that is no sign of a slow reader.
    if (this.#log) this.#history = this.#log.total
    const result = this.#look()
    if (!result) return
    this.#asked = null
    give(result)
  }

  /** Null: there is nothing yet. */
  #look(): IteratorResult<ReadItem> | null {
    const { turn, signal, maxBuffer = MAX_BUFFER } = this.#options
    if (this.#isOver || signal.aborted) return this.#end()
    const known = this.#log
    const log = known ?? this.#open()
    if (!known && !this.#begin(log)) return { value: { gap: true, cursor: log.cursor() } }
    while (!log.isDropped && !isOver(log, turn, this.#next)) {
      if (this.#next > log.last) return null
      const unread = log.total - Math.max(this.#history, log.bytesBefore(this.#next))
      if (this.#next < log.base || unread > maxBuffer) {
        this.#end()
        return { value: { lagged: true } }
      }
      const from = this.#next - log.base
      const page = log.events.slice(from, from + PAGE)
      this.#next += page.length
      const events = turn === undefined ? page : page.filter(({ turn_id }) => turn_id === turn)
      if (events.length > 0) return { value: { events } }
    }
    return this.#end()
  }

  /** Whether it begins where it was asked to; else after a gap. */
  #begin(log: Log): boolean {
    this.#log = log
    log.readers.add(this)
    this.#options.signal.addEventListener('abort', this.wake)
    this.#history = log.total
    const start = startOf(log, this.#from, this.#options)
    this.#next = start ?? log.last + 1
    return start !== null
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
  const now = deps.now ?? Date.now
  const logs = new Map<string, Log>()
  const topics = new Map<Topic, Set<(message: string) => void>>()
  let total = 0

  const logOf = (session: string): Log => {
    const there = logs.get(session)
    if (there) return there
    const log = new Log(session, now)
    logs.set(session, log)
    return log
  }
  const forget = (session: string, log: Log) => {
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
  /** A log that nobody reads goes whole; one with readers keeps its generation, and they their place. */
  const evict = () => {
    const byUse = [...logs].sort(([, a], [, b]) => a.usedAt - b.usedAt)
    for (const [session, log] of byUse) {
      if (total <= MAX_TOTAL_BYTES * 0.75) return
      if (log.readers.size === 0) forget(session, log)
      else trim(log, 0, 0)
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
    kind: 'memory',
    append(session, events) {
      const log = logOf(session)
      const before = log.total
      const cursors = events.map((event) => log.append(event))
      total += log.total - before
      log.usedAt = performance.now()
      if (log.events.length > limits.maxEvents || log.bytes > limits.maxBytes) {
        // A tenth at once, so that not every event pays for the move.
        trim(log, Math.floor(limits.maxEvents * 0.9), limits.maxBytes * 0.9)
      }
      for (const reader of log.readers) reader.wake()
      if (total > MAX_TOTAL_BYTES) evict()
      deps.metrics?.eventsAppended(events.length)
      return Promise.resolve(cursors)
    },
    read(session, options) {
      const from = positionOf(session, options.after)
      return { [Symbol.asyncIterator]: () => new Following(() => logOf(session), from, options) }
    },
    async pastEnd(session, turn, cursor, hasEnded) {
      const position = parseCursor(cursor, session)
      const log = logs.get(session)
      const n = log ? keptNumber(log, position) : null
      if (!log || n === null) return false
      const marks = log.turns.get(turn)
      return marks ? marks.end !== null && n >= marks.end : hasEnded
    },
    async drop(session) {
      const log = logs.get(session)
      if (log) forget(session, log)
    },
    async publish(topic, message) {
      // Later, as over a network: a subscriber never runs inside of the publisher.
      for (const fn of topics.get(topic) ?? []) queueMicrotask(() => fn(message))
    },
    subscribe(topic, fn) {
      const known = topics.get(topic) ?? new Set()
      topics.set(topic, known.add(fn))
      return () => void known.delete(fn)
    },
    places: createMemoryPlaces,
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

/** The number of the first event to read; null when it, or one after it, is lost. */
function startOf(log: Log, from: Position | null, { after, turn, begun }: ReadOptions): number | null {
  if (from) {
    const n = keptNumber(log, from)
    return n === null ? null : n + 1
  }
  if (after === 'now') return log.last + 1
  if (turn === undefined) return log.base
  const marks = log.turns.get(turn)
  return marks ? marks.first : begun ? null : log.last + 1
}

/** The number of the event that the position is right after; null where what follows it is not kept. */
function keptNumber(log: Log, { generation, id }: Position): number | null {
  const [ms, n] = numbersOf(id)
  const isReal = generation === log.generation && n <= log.last && ms <= log.lastMs
  return isReal && n >= log.base - 1 ? n : null
}

const isOver = (log: Log, turn: string | undefined, next: number): boolean => {
  const end = turn === undefined ? null : log.turns.get(turn)?.end
  return typeof end === 'number' && next > end
}
