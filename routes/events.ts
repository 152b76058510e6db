/** The events of a turn and of a session, as streams that can be resumed. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { endedAt, parseCursor, readEnd } from '../src/bus/cursor.ts'
import type { TurnEvent } from '../src/chat/event.ts'
import { BatonError } from '../src/errors.ts'
import type { StreamSource } from '../src/http-sse.ts'
import type { Scope, Turn } from '../src/store/store.ts'
import type { App, RouteDeps } from './app.ts'
import { IdParam } from './schemas.ts'
import { Event } from './turn-event.ts'
import { turnView } from './turn-view.ts'

/** One that was cancelled in the queue has ended without having started. */
export const hasBegun = (turn: Turn): boolean => turn.started_at !== null || turn.ended_at !== null

/** Its owner says its first event a moment after the store knows that it began. By no clock: each replica has its own. */
const isYoung = ({ started_at, steps }: Turn): boolean => started_at !== null && steps.length === 0

type Deps = Pick<RouteDeps, 'store' | 'bus'>

/**
 * A turn's events from a cursor, or from its first one (null). `begun`: it may have had events before this
 * request. Throws invalid_cursor when it is read.
 */
export function turnEvents(
  { store, bus }: Deps,
  scope: Scope,
  turn: Turn,
  after: string | null,
  begun: boolean,
): StreamSource {
  return {
    endsWithTurn: true,
    read: (signal) =>
      bus.read(turn.session_id, {
        turn: turn.id,
        after: after ?? 'start',
        signal,
        begun,
        isYoung: isYoung(turn),
      }),
    async gap(cursor) {
      const found = await store.turns.get(scope, turn.id)
      const now = found ?? turn
      const messages = await store.messages.ofTurn(turn.id, 'told')
      // Deleted with its session, it says nothing more.
      const last = found === null || now.ended_at !== null
      return {
        id: last ? endedAt(cursor, turn.id) : cursor,
        data: gapData(turn.session_id, now, messages),
        turn: now,
        last,
      }
    },
  }
}

function sessionEvents(
  { store, bus }: Deps,
  scope: Scope,
  session: string,
  after: string | null,
): StreamSource {
  return {
    endsWithTurn: false,
    read: (signal) => bus.read(session, { after: after ?? 'now', signal }),
    async gap(cursor) {
      // Others may wait behind the one that runs, or waits for a person: the newest is not what goes on.
      const found = await store.sessions.get(scope, session)
      const active = found?.active_turn_id ?? null
      const newest = async () => (await store.turns.list(scope, session, { limit: 1 }))?.data[0] ?? null
      const turn = active === null ? await newest() : await store.turns.get(scope, active)
      const messages = await store.messages.after(session, 0, 'told')
      // That it was deleted may have been said while this reader could not hear.
      return { id: cursor, data: gapData(session, turn, messages), turn, last: found === null }
    },
  }
}

const gapData = (session: string, turn: Turn | null, messages: unknown[]): string =>
  JSON.stringify({
    type: 'gap',
    session_id: session,
    turn_id: turn?.id ?? null,
    step: null,
    at: new Date().toISOString(),
    snapshot: { turn: turn && turnView(turn), messages },
  })

const Resume = Type.Object(
  {
    after: Type.Optional(
      Type.String({
        description: 'A cursor, or `start`: the oldest event kept. `Last-Event-ID` comes before it',
      }),
    ),
  },
  { additionalProperties: false },
)
const ResumeHeaders = Type.Object({
  'last-event-id': Type.Optional(Type.String({ description: 'The last `id` received' })),
})

const EXAMPLE: Extract<TurnEvent, { type: 'content.delta' }> = {
  type: 'content.delta',
  session_id: 'ses_01j9z',
  turn_id: 'turn_01j9z',
  step: 0,
  at: '2026-11-23T12:00:00.000Z',
  text: 'Hello',
}

/** Documents an event stream: `contentSchema` is what each frame's data holds. */
export const EventStream = {
  description: 'Server-sent events: `id` is a cursor, `event` a type, `data` an Event as JSON',
  content: {
    'text/event-stream': {
      schema: {
        type: 'string',
        contentMediaType: 'text/event-stream',
        contentSchema: Event,
        examples: [`id: 7-1.ab\nevent: ${EXAMPLE.type}\ndata: ${JSON.stringify(EXAMPLE)}\n\n`],
      },
    },
  },
}

/** Where to go on, and which turn had ended there. An empty header is what a client sends that has seen nothing. */
function resumeAt(
  header: string | undefined,
  query: string | undefined,
): Partial<ReturnType<typeof readEnd>> {
  const given = header || query
  return given === undefined ? {} : readEnd(given)
}

/** A cursor that is refused is named as it was sent. */
async function namingHeader(
  header: string | undefined,
  open: () => Promise<FastifyReply>,
): Promise<FastifyReply> {
  try {
    return await open()
  } catch (thrown) {
    if (!header || !(thrown instanceof BatonError) || thrown.code !== 'invalid_cursor') throw thrown
    throw new BatonError(thrown.code, thrown.message, { param: 'Last-Event-ID' })
  }
}

/** How long the events of a commit may take into the log. */
const SOON_MS = 250

/** Nothing of the turn follows this cursor. Throws invalid_cursor. */
async function isOver(
  bus: Deps['bus'],
  turn: Turn,
  after: string,
  ended: string | undefined,
): Promise<boolean> {
  const hasEnded = turn.ended_at !== null
  if (hasEnded && ended === turn.id) {
    // The cursor itself says it: the log need not be there.
    parseCursor(after, turn.session_id)
    return true
  }
  const isPast = (hasEnded: boolean) => bus.pastEnd(turn.session_id, turn.id, after, hasEnded)
  if (!hasEnded || !isYoung(turn)) return isPast(hasEnded)
  // Of one that ended as soon as it began the log may know nothing yet.
  if (await isPast(false)) return true
  await sleep(SOON_MS)
  return isPast(true)
}

const isCursor = (after: string | null): after is string =>
  after !== null && after !== 'start' && after !== 'now'

const tags = ['events']

export function eventRoutes(app: App, deps: RouteDeps): void {
  const { store, bus, sessions, streams } = deps
  app.get(
    '/turns/:id/events',
    {
      schema: {
        tags,
        summary: "Follow a turn's events",
        description: 'From its first event, or after a cursor. 204 at or after its terminal event.',
        params: IdParam,
        querystring: Resume,
        headers: ResumeHeaders,
        response: { 200: EventStream, 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const turn = await store.turns.get(request.caller, request.params.id)
      if (!turn) throw new BatonError('turn_not_found', `No turn ${request.params.id} exists.`)
      const header = request.headers['last-event-id']
      const { after = null, ended } = resumeAt(header, request.query.after)
      return namingHeader(header, async () => {
        if (isCursor(after) && (await isOver(bus, turn, after, ended))) return reply.code(204).send()
        return streams.send(reply, turnEvents(deps, request.caller, turn, after, hasBegun(turn)))
      })
    },
  )
  app.get(
    '/sessions/:id/events',
    {
      schema: {
        tags,
        summary: 'Follow all turns and tool changes of a session',
        description: 'From now on, or after a cursor.',
        params: IdParam,
        querystring: Resume,
        headers: ResumeHeaders,
        response: { 200: EventStream },
      },
    },
    async (request, reply) => {
      const session = await sessions.get(request.caller, request.params.id)
      const header = request.headers['last-event-id']
      const { after = null } = resumeAt(header, request.query.after)
      return namingHeader(header, async () =>
        streams.send(reply, sessionEvents(deps, request.caller, session.id, after)),
      )
    },
  )
}
