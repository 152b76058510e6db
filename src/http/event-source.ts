/**
 * What a turn's and a session's event streams hold: events of the bus from a cursor on, and the snapshot that replaces
 * events that are no longer kept.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { RouteDeps } from '../../routes/app.ts'
import { turnView } from '../../routes/turn-view.ts'
import { gapId, positionOf, type ResumePoint, readId, type SnapshotExtent } from '../bus/cursor.ts'
import type { Message } from '../chat/message.ts'
import { BatonError, refuseAt } from '../errors.ts'
import type { Scope, Standing, Turn } from '../store/store.ts'
import type { StreamSource } from './sse.ts'

/** A turn that was cancelled in the queue has ended without having started. */
export const hasBegun = (turn: Standing): boolean => turn.started_at !== null || turn.ended_at !== null

/**
 * The turn's first event may still be on its way: its owner publishes it a moment after the store knows that the turn
 * began. The steps tell how old the turn is, since clocks differ.
 */
const isYoung = ({ started_at, steps }: Standing): boolean => started_at !== null && steps.length === 0

type Deps = Pick<RouteDeps, 'store' | 'bus'>

/**
 * The header overrules the query, unless it is empty: a client that has seen nothing sends it so. Throws invalid_cursor
 * with the name under which the cursor was sent. Null: none was sent.
 */
export function resumeAt(
  session: string,
  header: string | undefined,
  query: string | undefined,
): ResumePoint | null {
  const given = header || query
  if (given === undefined) return null
  const place = readId(given)
  try {
    positionOf(session, place.after)
  } catch (thrown) {
    if (!header) throw thrown
    refuseAt('Last-Event-ID')(thrown)
  }
  return place
}

/** A turn's first event, or the oldest that is kept of a session's. */
export const FROM_START: ResumePoint = { after: 'start' }

/** A turn's events from a place on. `begun`: the turn may have had events before this request. */
export function turnEvents(
  { store, bus }: Deps,
  scope: Scope,
  turn: Standing,
  place: ResumePoint,
  begun: boolean,
): StreamSource {
  const messages = () => store.messages.ofTurn(turn.id, 'told')
  return {
    endsWithTurn: true,
    known: snapshotAt(place, messages),
    read: (signal) =>
      bus.read(turn.session_id, {
        turn: turn.id,
        after: place.after,
        signal,
        begun,
        isYoung: isYoung(turn),
      }),
    async gap(cursor) {
      const now = await store.turns.get(scope, turn.id)
      // A turn that was deleted with its session has no more events.
      const last = now === null || now.ended_at !== null
      return { ...gapAt(cursor, turn.session_id, now, await messages()), last }
    },
  }
}

/** All events of a session from a place on. */
export function sessionEvents(
  { store, bus }: Deps,
  scope: Scope,
  session: string,
  place: ResumePoint,
): StreamSource {
  // If there are more messages than can be read at once, only the turn's: without a snapshot the reader would never get
  // on.
  const messages = (turn: { id: string } | null) =>
    store.messages.after(session, 0, 'told').catch((thrown: unknown) => {
      if (!(thrown instanceof BatonError) || thrown.code !== 'context_too_long') throw thrown
      return turn ? store.messages.ofTurn(turn.id, 'told') : []
    })
  return {
    endsWithTurn: false,
    known: snapshotAt(place, messages),
    read: (signal) => bus.read(session, { after: place.after, signal }),
    async gap(cursor) {
      // Turns may be queued behind one that runs or waits for a person: then the newest turn is not the one that goes
      // on.
      const found = await store.sessions.get(scope, session)
      const active = found?.active_turn_id
      const newest = async () => (await store.turns.list(scope, session, { limit: 1 }))?.data[0] ?? null
      const turn = active ? await store.turns.get(scope, active) : await newest()
      // The session may have been deleted while this reader could not hear of it.
      return { ...gapAt(cursor, session, turn, await messages(turn)), last: found === null }
    },
  }
}

function gapAt(cursor: string, session: string, turn: Turn | null, messages: Message[]) {
  const extent: SnapshotExtent = {
    seq: messages.at(-1)?.seq ?? 0,
    turn: turn && { id: turn.id, state: turn.ended_at ? 'ended' : turn.started_at ? 'begun' : 'queued' },
  }
  return {
    id: gapId(cursor, extent),
    snapshot: { turn: extent.turn, messages },
    data: JSON.stringify({
      type: 'gap',
      session_id: session,
      turn_id: turn?.id ?? null,
      step: null,
      at: new Date().toISOString(),
      snapshot: { turn: turn && turnView(turn), messages },
    }),
  }
}

/** The snapshot of the gap right before the place, as far as its messages are still stored. */
const snapshotAt = (
  { snapshot: extent }: ResumePoint,
  messages: (turn: SnapshotExtent['turn']) => Promise<Message[]>,
) => {
  if (!extent) return
  return async () => ({
    turn: extent.turn,
    messages: (await messages(extent.turn)).filter(({ seq }) => seq <= extent.seq),
  })
}

/** Milliseconds that the events of a commit may take to reach the log. */
const SOON_MS = 250

/** Whether nothing of the turn follows this place. */
export async function isOver(
  { bus }: Pick<Deps, 'bus'>,
  turn: Standing,
  { after, ended }: ResumePoint,
): Promise<boolean> {
  if (after === 'start') return false
  const hasEnded = turn.ended_at !== null
  // The place itself says so, even if the log is gone.
  if (hasEnded && ended === turn.id) return true
  const isPast = (hasEnded: boolean) => bus.pastEnd(turn.session_id, turn.id, after, hasEnded)
  if (!hasEnded || !isYoung(turn)) return isPast(hasEnded)
  // The log may know nothing yet of a turn that ended as soon as it began.
  if (await isPast(false)) return true
  await sleep(SOON_MS)
  return isPast(true)
}
