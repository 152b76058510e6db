/** The events of a turn and of a session, from the beginning or after a cursor. */
import { Type } from 'typebox'
import type { ResumePoint } from '../src/bus/cursor.ts'
import {
  FROM_START,
  hasBegun,
  isOver,
  resumeAt,
  sessionEvents,
  turnEvents,
} from '../src/http/event-source.ts'
import { findStanding } from '../src/turns/wait.ts'
import type { App, RouteDeps } from './app.ts'
import { closed, IdParam } from './schemas.ts'
import { EventStream } from './turn-event.ts'

const Resume = Type.Object(
  {
    after: Type.Optional(
      Type.String({
        description:
          'A cursor, or `start`: the oldest event kept. If `Last-Event-ID` is sent too, that one counts',
      }),
    ),
  },
  closed,
)
const ResumeHeaders = Type.Object({
  'last-event-id': Type.Optional(Type.String({ description: 'The last `id` received' })),
})

export function eventRoutes(app: App, deps: RouteDeps): void {
  const { store, bus, sessions, streams } = deps
  app.get(
    '/turns/:id/events',
    {
      exposeHeadRoute: false,
      schema: {
        operationId: 'streamTurnEvents',
        summary: "Follow a turn's events",
        description: 'From its first event, or after a cursor. 204 at or after its terminal event.',
        params: IdParam,
        querystring: Resume,
        headers: ResumeHeaders,
        errors: ['invalid_cursor'],
        response: { 200: EventStream, 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const turn = await findStanding(store, request.caller, request.params.id)
      const given = resumeAt(turn.session_id, request.headers['last-event-id'], request.query.after)
      const place = given ?? FROM_START
      if (await isOver(deps, turn, place)) return reply.code(204).send()
      return streams.send(reply, turnEvents(deps, request.caller, turn, place, hasBegun(turn)))
    },
  )
  app.get(
    '/sessions/:id/events',
    {
      exposeHeadRoute: false,
      schema: {
        operationId: 'streamSessionEvents',
        summary: 'Follow all turns and tool changes of a session',
        description:
          'From now on, or after a cursor. It does not carry what was asked, nor what is appended, edited or deleted under /messages.',
        params: IdParam,
        querystring: Resume,
        headers: ResumeHeaders,
        errors: ['invalid_cursor'],
        response: { 200: EventStream },
      },
    },
    async (request, reply) => {
      const find = () => sessions.get(request.caller, request.params.id)
      const session = await find()
      const given = resumeAt(session.id, request.headers['last-event-id'], request.query.after)
      const send = (place: ResumePoint) =>
        streams.send(reply, sessionEvents(deps, request.caller, session.id, place))
      if (given && given.after !== 'start') return send(given)
      // Known before the headers leave: from then on the client expects to hear what is said.
      const after = await (given ? bus.oldest(session.id) : bus.present(session.id))
      // A place of a session that was deleted meanwhile is that of an empty log, whose reader would wait for ever.
      await find()
      return send({ after })
    },
  )
}
