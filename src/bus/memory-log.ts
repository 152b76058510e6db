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
  ms: number
}

/** What an event weighs besides its data. */
const OVERHEAD = 200
const weight = (event: KeptEvent): number => event.data.length + OVERHEAD

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
  /** Bytes ever appended, up to and including the event at the same index */
  #ends: number[] = []
  #lastMs = Date.now()
  /** Of the newest owner that spoke */
  #epoch = 0
  /** The beginning of the step under way: the number of its first event, and the milliseconds of the one before */
  #step: { next: number; ms: number } | null = null

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
  /** Bytes ever appended before the event of this number. */
  bytesBefore(n: number): number {
    const end = this.#ends[n - this.base - 1]
    if (end !== undefined) return end
    const [first, firstEnd] = [this.#events[0], this.#ends[0]]
    return first && firstEnd !== undefined ? firstEnd - weight(first) : this.total
  }

  #cursorAt(n: number, ms = this.#lastMs): string {
    return formatCursor(this.#tag, { generation: this.#generation, id: `${ms}-${n}` })
  }

  /** The cursor of the newest event. */
  get present(): string {
    return this.#cursorAt(this.last)
  }

  append(given: BusEvent): void {
    const event = this.#placed(given)
    const isKnown = event.once !== undefined && this.#once.has(event.once)
    if (isKnown || this.#isStale(event)) return
    const n = this.last + 1
    if (event.type === STEP_BEGINS) this.#step = { next: n, ms: this.#lastMs }
    else if (endsStep(event.type)) this.#step = null
    // Never less than before, even if the clock goes back: cursors stay ordered.
    this.#lastMs = Math.max(this.#lastMs, Date.now())
    const { type, turn_id, data, epoch = 0 } = event
    const kept: KeptEvent = { ms: this.#lastMs, type, turn_id, data }
    this.total += weight(kept)
    this.#events.push(kept)
    this.#ends.push(this.total)
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
    const known = this.#turns.get(turn)
    const marks: TurnMarks = known ?? { first: type === FIRST_EVENT ? n : null, end: null, epoch }
    marks.epoch = Math.max(marks.epoch, epoch)
    this.#epoch = Math.max(this.#epoch, epoch)
    if (isTerminal(type)) marks.end = n
    if (!known) this.#turns.set(turn, marks)
  }

  /**
   * Forgets the oldest events, down to these bounds. The keys of a turn are remembered with the turn: what it announced
   * last may be announced again, however much was said since.
   */
  trim(maxEvents: number, maxBytes: number): void {
    let count = Math.max(0, this.count - maxEvents)
    while (this.total - this.bytesBefore(this.base + count) > maxBytes) count++
    this.#events.splice(0, count)
    this.#ends.splice(0, count)
    this.base += count
    if (this.#step && this.#step.next < this.base) this.#step = null
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
  startOf(from: Position | null, { turn, begun }: ReadOptions): number | null {
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
    const { next, ms } = this.#step ?? { next: this.last + 1, ms: this.#lastMs }
    return { next, cursor: this.#cursorAt(next - 1, ms) }
  }

  /**
   * At most this many events and bytes from number `n` on. Event `n` must be kept, and is returned however large it is.
   */
  page(n: number, most: number, bytes: number): LoggedEvent[] {
    const from = n - this.base
    const room = this.bytesBefore(n) + bytes
    let to = from + 1
    while (to < from + most && (this.#ends[to] ?? Number.POSITIVE_INFINITY) <= room) to++
    return this.#events
      .slice(from, to)
      .map(({ ms, type, turn_id, data }, i) => ({ cursor: this.#cursorAt(n + i, ms), type, turn_id, data }))
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
    const isReal = generation === this.#generation && n <= this.last && ms <= this.#lastMs
    return isReal && n >= this.base - 1 ? n : null
  }
}
