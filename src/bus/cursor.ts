/**
 * Cursors: `<ms>-<n>.<session><generation>`. Milliseconds and a counter order the events of a session, also across a
 * restart; six hex digits name the session, six more the generation of its log. A log that was lost begins a new
 * generation, so that a cursor of the old one is a gap and never a wrong place.
 */
import { randomBytes } from 'node:crypto'
import { BoundedMap } from '../bounded-map.ts'
import { sha256 } from '../chat/json.ts'
import { BatonError } from '../errors.ts'

/** Where a reader stands: right after the event of this id, `<ms>-<n>`, in this generation of the log. */
export interface Position {
  generation: string
  id: string
}

/** Milliseconds and counter of an id. */
export const numbersOf = (id: string): [ms: number, n: number] => {
  const [ms, n] = id.split('-')
  return [Number(ms), Number(n)]
}

/** Less than 0 where `a` comes before `b`. By their numbers: as texts, 10 comes before 9. */
export const compareIds = (a: string, b: string): number => {
  const [ams, an] = numbersOf(a)
  const [bms, bn] = numbersOf(b)
  return ams - bms || an - bn
}

const DIGITS = 6

/** Tags of recent sessions: hashing one costs more than the rest of a cursor. */
const tags = new BoundedMap<string>(10_000)

/** Six digits that name the session in its cursors. */
export function sessionTag(session: string): string {
  const known = tags.get(session)
  if (known !== undefined) return known
  const tag = sha256(session).slice(0, DIGITS)
  tags.put(session, tag)
  return tag
}

/** Names a log until it is lost. */
export const newGeneration = (): string => randomBytes(DIGITS / 2).toString('hex')

/** For a new log in Redis, which counts from up to a million on, and for one in memory, which counts all its events. */
const COUNTER_DIGITS = 9

/** Padded: cursors are opaque to clients, so whether they are in order is seen by comparing them as texts. */
export function formatCursor(tag: string, { generation, id }: Position): string {
  const n = id.indexOf('-') + 1
  return `${id.slice(0, n)}${id.slice(n).padStart(COUNTER_DIGITS, '0')}.${tag}${generation}`
}

const FORM = /^(\d{1,15})-(\d{1,15})\.([0-9a-f]{6})([0-9a-f]{6})$/

/** Throws `invalid_cursor` for what is not a cursor, or is another session's. */
export function parseCursor(cursor: string, session: string): Position {
  const parts = FORM.exec(cursor)
  if (!parts) throw invalid('The cursor is malformed. Send an id of this stream unchanged, or none.')
  const [, ms, n, tag, generation = ''] = parts
  if (tag !== sessionTag(session)) throw invalid('The cursor belongs to another session.')
  return { generation, id: `${Number(ms)}-${Number(n)}` }
}

/** The position that a read's `after` names; null for `start`. Throws `invalid_cursor`. */
export const positionOf = (session: string, after: string): Position | null =>
  after === 'start' ? null : parseCursor(after, session)

/** A place in no log. */
export const NOWHERE: Position = { generation: '000000', id: '0-0' }

/**
 * The id of a turn's last event. A log that was lost does not know the turn's end, so the id must state it; and it
 * names the turn, since the cursor is a place in the session's other turns, too. To clients, cursors are opaque.
 */
export const endId = (cursor: string, turn: string): string => `${cursor}.${turn}`

/** How far a gap's snapshot reaches: messages up to this `seq`, and how far its turn is. */
export interface SnapshotExtent {
  seq: number
  turn: { id: string; state: 'queued' | 'begun' | 'ended' } | null
}

/**
 * The id of a gap. The log has events after the gap that its snapshot includes, too. The id says how far the snapshot
 * reaches, so that a reader who comes back with it does not get those events.
 */
export const gapId = (cursor: string, { seq, turn }: SnapshotExtent): string =>
  turn ? `${cursor}.${seq}${turn.state[0]}.${turn.id}` : `${cursor}.${seq}`

/** Where a client goes on. */
export interface ResumePoint {
  /** A cursor, or `start` */
  after: string
  /** The turn that had ended there */
  ended?: string | undefined
  /** The place is right after a gap with this snapshot */
  snapshot?: SnapshotExtent | undefined
}

const GIVEN = /^([^.]+\.[^.]+)(?:\.(\d{1,15})([qbe]?))?(?:\.(turn_[0-9a-z]{24}))?$/
const STATES = { q: 'queued', b: 'begun', e: 'ended' } as const

/** Reads an id that a client sends. An id with a suffix of another form stays as it is, which no cursor parser takes. */
export function readId(given: string): ResumePoint {
  const [, after = given, seq, letter, turn] = GIVEN.exec(given) ?? []
  if (seq === undefined) return { after, ended: turn }
  const state = STATES[letter as keyof typeof STATES]
  // Neither comes without the other.
  if (!turn !== !state) return { after: given }
  const snapshot = { seq: Number(seq), turn: turn && state ? { id: turn, state } : null }
  return { after, ended: state === 'ended' ? turn : undefined, snapshot }
}

const invalid = (message: string) => new BatonError('invalid_cursor', message, { param: 'after' })
