/**
 * The rules of one session's log, as the memory of a process keeps it: what is written, what is forgotten, where a
 * reader begins. The same rules are repeated in redis/scripts.ts: APPEND has `append`, `goesOn`, `isStale`, `mark` and
 * `trim`, READ has `startOf`, `gap` and `isOver`, and `pastEnd` is a function there. test/bus/alike.test.ts holds both
 * to one answer.
 */
import { FIRST_EVENT, isTerminal, STEP_BEGINS, STEP_ENDS } from '../chat/event.ts'
import type { BusEvent, LoggedEvent, ReadOptions } from './bus.ts'
import { formatCursor, newGeneration, numbersOf, type Position, sessionTag } from './cursor.ts'

/** Numbers of a turn's first and terminal event in its session's log; null: not there (any more) */
interface TurnMarks {
  first: number | null
  end: number | null
  /** Of the newest owner that spoke in the turn */
  epoch: number
}

/** Where a reader whose place is lost goes on: the next number, and the place before it. */
interface Gap {
  next: number
  cursor: string
}

const endsStep = (type: string): boolean => (STEP_ENDS as readonly string[]).includes(type)

/** A cursor as text can take more memory than an event's data: it is made when somebody reads the event. */
interface KeptEvent extends Omit<LoggedEvent, 'cursor'> {
  /** Bytes ever appended before it */
  before: number
}

/** What an event weighs besides its data. */
const OVERHEAD = 200

/** Events are numbered from 1; `base` is the number of the oldest one kept. */
export class Log {
  base = 1
  /** Bytes ever appended */
  total = 0
  readonly #tag: string
  readonly #generation = newGeneration()
  readonly #turns = new Map<string, TurnMarks>()
  /** Numbers of the events with a key */
  readonly #once = new Map<string, number>()
  #events: KeptEvent[] = []
  /** When the log began: cursors of the session's next log come after this one's, whose own are ordered by number */
  readonly #ms = Date.now()
  /** Of the newest owner that spoke */
  #epoch = 0
  /** Number of the first event of the step under way */
  #step: number | null = null

  constructor(session: string) {
    this.#tag = sessionTag(session)
  }

  get last(): number {
    return this.base + this.#events.length - 1
  }
  /** Events kept */
  get count(): number {
    return this.#events.length
  }
  /** Bytes kept */
  get bytes(): number {
    return this.total - this.bytesBefore(this.base)
  }
  /** Bytes ever appended before the event of this number, which is kept or comes next. */
  bytesBefore(n: number): number {
    return this.#events[n - this.base]?.before ?? this.total
  }

  #cursorAt(n: number): string {
    return formatCursor(this.#tag, { generation: this.#generation, id: `${this.#ms}-${n}` })
  }

  /** The cursor of the newest event. */
  get present(): string {
    return this.#cursorAt(this.last)
  }

  /** The cursor before the oldest event kept. */
  get oldest(): string {
    return this.#cursorAt(this.base - 1)
  }

  append(given: BusEvent): void {
    const event = this.#placed(given)
    const isKnown = event.once !== undefined && this.#once.has(event.once)
    if (isKnown || this.#isStale(event)) return
    const n = this.last + 1
    if (event.type === STEP_BEGINS) this.#step = n
    else if (endsStep(event.type)) this.#step = null
    const { type, turn_id, data, epoch = 0 } = event
    this.#events.push({ before: this.total, type, turn_id, data })
    this.total += data.length + OVERHEAD
    if (event.once !== undefined) this.#once.set(event.once, n)
    if (turn_id !== null) this.#mark(turn_id, type, n, epoch)
  }

  #placed(event: BusEvent): BusEvent {
    if (event.alone === undefined || this.#goesOn(event.turn_id ?? '')) return event
    return { ...event, turn_id: null, data: event.alone }
  }

  #goesOn(turn: string): boolean {
    return this.#turns.get(turn)?.end === null
  }

  #isStale({ epoch, turn_id, type }: BusEvent): boolean {
    if (epoch === undefined) return false
    const marks = this.#turns.get(turn_id ?? '')
    const newest = marks?.epoch ?? (type === FIRST_EVENT ? 0 : this.#epoch)
    return epoch < newest || (marks?.end ?? null) !== null
  }

  #mark(turn: string, type: string, n: number, epoch: number): void {
    const first = type === FIRST_EVENT ? n : null
    const marks: TurnMarks = this.#turns.get(turn) ?? { first, end: null, epoch }
    marks.epoch = Math.max(marks.epoch, epoch)
    this.#epoch = Math.max(this.#epoch, epoch)
    if (isTerminal(type)) marks.end = n
    this.#turns.set(turn, marks)
  }

  /**
   * Forgets the oldest events, down to these bounds. The keys of a turn are remembered with the turn: what it announced
   * last may be announced again, however much was said since.
   */
  trim(maxEvents: number, maxBytes: number): void {
    let count = Math.max(0, this.count - maxEvents)
    while (this.total - this.bytesBefore(this.base + count) > maxBytes) count++
    this.#events.splice(0, count)
    this.base += count
    if (this.#step !== null && this.#step < this.base) this.#step = null
    for (const [turn, marks] of this.#turns) {
      if (marks.first !== null && marks.first < this.base) marks.first = null
      if (marks.end !== null && marks.end < this.base) this.#turns.delete(turn)
    }
    let remembered = 0
    for (const [key, n] of this.#once) {
      if (n >= this.base) continue
      const [turn = ''] = key.split(':', 1)
      if (!this.#turns.has(turn) || ++remembered > maxEvents) this.#once.delete(key)
    }
  }

  /** The number of the first event to read; null when it, or one after it, is lost. */
  startOf(from: Position | null, { turn, begun }: Pick<ReadOptions, 'turn' | 'begun'>): number | null {
    if (from) {
      const n = this.#keptNumber(from)
      return n === null ? null : n + 1
    }
    if (turn === undefined) return this.base
    const marks = this.#turns.get(turn)
    return marks ? marks.first : begun ? null : this.last + 1
  }

  /**
   * The gap's reader goes on after the newest event. But a step under way is told from its beginning: what it has
   * streamed is in no snapshot.
   */
  gap(): Gap {
    const next = this.#step ?? this.last + 1
    return { next, cursor: this.#cursorAt(next - 1) }
  }

  /**
   * At most this many events and bytes from number `n` on. Event `n` must be kept, and is returned however large it is.
   */
  page(n: number, most: number, bytes: number): LoggedEvent[] {
    const room = this.bytesBefore(n) + bytes
    const limit = Math.min(n + most, this.last + 1)
    let end = n + 1
    while (end < limit && this.bytesBefore(end + 1) <= room) end++
    return this.#events
      .slice(n - this.base, end - this.base)
      .map(({ type, turn_id, data }, i) => ({ cursor: this.#cursorAt(n + i), type, turn_id, data }))
  }

  /** Whether the turn's terminal event comes before this number. */
  isOver(turn: string | undefined, n: number): boolean {
    const end = turn === undefined ? null : this.#turns.get(turn)?.end
    return typeof end === 'number' && n > end
  }

  /** As Bus.pastEnd. */
  pastEnd(turn: string, position: Position, hasEnded: boolean): boolean {
    const n = this.#keptNumber(position)
    if (n === null) return false
    return this.#turns.has(turn) ? this.isOver(turn, n + 1) : hasEnded
  }

  /** The number of the event that the position is right after; null if what follows it is not kept. */
  #keptNumber({ generation, id }: Position): number | null {
    const [ms, n] = numbersOf(id)
    const isOurs = generation === this.#generation && ms === this.#ms
    return isOurs && n >= this.base - 1 && n <= this.last ? n : null
  }
}
