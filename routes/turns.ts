/** Turns: start, wait, cancel, restart; and people's decisions on their tool calls. */
import type { FastifyReply } from 'fastify'
import { type Static, Type } from 'typebox'
import { canonicalJson, sha256 } from '../src/chat/json.ts'
import { BatonError, invalid, noSession, UPSTREAM_CODES } from '../src/errors.ts'
import { FROM_START, hasBegun, turnEvents } from '../src/http/event-source.ts'
import { logLine } from '../src/log.ts'
import type { Caller, StartTurn } from '../src/ports.ts'
import type { Turn } from '../src/store/store.ts'
import type { App, RouteDeps } from './app.ts'
import { givenEdits, givenInput, reading } from './message-input.ts'
import {
  ContextEdits,
  closed,
  Flag,
  IdParam,
  Input,
  idParams,
  Json,
  listOf,
  Model,
  NoBody,
  Paging,
  Provider,
  pageOf,
  text,
} from './schemas.ts'
import { EventStream } from './turn-event.ts'
import { TurnView, turnView } from './turn-view.ts'

const NewTurn = Type.Object(
  {
    input: Input,
    context: Type.Optional(ContextEdits),
    on_busy: Type.Optional(
      Type.Enum(['reject', 'enqueue', 'interrupt'], {
        description: 'What to do while another turn is not over. Default reject',
      }),
    ),
    max_steps: Type.Optional(Type.Integer({ minimum: 1, maximum: 64, description: 'Default 16' })),
    provider: Type.Optional(Provider),
    model: Type.Optional(Model),
    stream: Type.Optional(Type.Boolean({ description: 'Default true' })),
    background: Type.Optional(Type.Boolean({ description: 'Default false. If true, `stream` is ignored' })),
  },
  {
    ...closed,
    examples: [
      { input: 'What changed in this folder since yesterday?' },
      {
        input: [{ type: 'text', text: 'Describe this.' }],
        context: [{ op: 'delete_at', index: -1 }],
        stream: false,
      },
    ],
  },
)
const StartHeaders = Type.Object({
  'idempotency-key': Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 255,
      pattern: '^[\\x20-\\x7e]+$',
      description:
        'Printable ASCII. The same key and body bring the same turn, also a failed one, for 24 hours',
    }),
  ),
})
/** Seconds that one request may wait at most: proxies cut connections that are silent for longer. */
const LONGEST_WAIT = 600
const Wait = Type.Object(
  {
    wait: Type.Optional(
      Type.Number({
        minimum: 0,
        maximum: LONGEST_WAIT,
        description: 'Seconds to wait for the end, or for input',
      }),
    ),
  },
  closed,
)
const WaitForEnd = Type.Object({ wait: Type.Optional(Flag) }, closed)
const Decision = Type.Object(
  {
    decision: Type.Enum(['approve', 'deny']),
    arguments: Type.Optional({
      ...Json,
      description:
        "In place of the model's. The ledger shows them; the message keeps what the model asked for",
    }),
    reason: Type.Optional(text(0, 4000, 'Told to the model when the call is denied')),
  },
  { ...closed, examples: [{ decision: 'approve' }, { decision: 'deny', reason: 'Not on a Friday.' }] },
)
const Answer = Type.Object({ answer: Type.Unknown() }, { ...closed, examples: [{ answer: 'blue' }] })

export function turnRoutes(app: App, deps: RouteDeps): void {
  const { turns, store, streams, log } = deps
  app.post(
    '/sessions/:id/turns',
    {
      schema: {
        operationId: 'startTurn',
        summary: 'Start a turn and stream its events',
        description:
          'Default: an event stream of the turn. `stream: false` waits and answers with the turn, or with its ' +
          'error. `background: true` answers at once with 202. A client that goes away never cancels a turn.',
        params: IdParam,
        headers: StartHeaders,
        body: NewTurn,
        errors: [
          'address_not_allowed',
          'context_splits_tool_exchange',
          'turn_in_progress',
          'no_credential',
          'credential_needs_reauth',
          'oauth_not_enabled',
          'idempotency_mismatch',
          'context_too_long',
          'queue_full',
          'recovery_limit',
          'draining',
          ...UPSTREAM_CODES,
        ],
        response: {
          200: {
            ...EventStream,
            // Clients generated from the document know the first type alone, and ask with `stream: false`.
            content: { 'application/json': { schema: TurnView }, ...EventStream.content },
          },
          202: TurnView,
        },
      },
    },
    async (request, reply) => {
      const { caller, body } = request
      const given = await startRequest(deps, body, request.headers['idempotency-key'])
      const { turn, outcome } = await turns.start(caller, request.params.id, given)
      const ids = { request_id: request.id, session_id: turn.session_id, turn_id: turn.id }
      logLine(log, 'turn accepted', { ...ids, outcome })
      reply.header('location', `/v1/turns/${turn.id}`).header('x-baton-turn', turn.id)
      if (outcome === 'replayed') reply.header('idempotent-replayed', 'true')
      if (body.background) return reply.code(202).send(turnView(turn))
      if (body.stream === false) return finished(deps, caller, turn, reply)
      const begun = outcome === 'replayed' && hasBegun(turn)
      return streams.send(reply, turnEvents(deps, caller, turn, FROM_START, begun))
    },
  )
  app.get(
    '/sessions/:id/turns',
    {
      schema: {
        operationId: 'listTurns',
        summary: "List a session's turns",
        params: IdParam,
        querystring: Paging,
        response: { 200: listOf(TurnView) },
      },
    },
    async (request) => {
      const page = await store.turns.list(request.caller, request.params.id, pageOf(request.query))
      if (page) return { ...page, data: page.data.map((turn) => turnView(turn)) }
      throw noSession(request.params.id)
    },
  )
  app.get(
    '/turns/:id',
    {
      schema: {
        operationId: 'getTurn',
        summary: 'Read a turn, or wait for it',
        params: IdParam,
        querystring: Wait,
        response: { 200: TurnView },
      },
    },
    async (request, reply) => {
      const signal = streams.leaving(reply)
      const turn = await turns.wait(request.caller, request.params.id, request.query.wait ?? 0, signal)
      return fullView(deps, turn)
    },
  )
  steeringRoutes(app, deps)
}

/** Routes that steer a turn that has begun. */
function steeringRoutes(app: App, deps: RouteDeps): void {
  const { turns, streams } = deps
  app.post(
    '/turns/:id/cancel',
    {
      schema: {
        operationId: 'cancelTurn',
        summary: 'Cancel a turn',
        description: 'Idempotent. 202 at once; with `wait=true` 200 after its end, or after 30 seconds.',
        params: IdParam,
        querystring: WaitForEnd,
        body: NoBody,
        errors: ['draining'],
        response: { 200: TurnView, 202: TurnView },
      },
    },
    async (request, reply) => {
      const waits = request.query.wait ? streams.leaving(reply) : null
      const turn = await turns.cancel(request.caller, request.params.id, waits)
      if (!waits) return reply.code(202).send(turnView(turn))
      if (waits.aborted && turn.ended_at === null) throw closing(turn, 'the turn is still being cancelled')
      return fullView(deps, turn)
    },
  )
  app.post(
    '/turns/:id/restart',
    {
      schema: {
        operationId: 'restartTurn',
        summary: 'Restart the model call in flight',
        description: '503 when the replica that runs the turn cannot be reached.',
        params: IdParam,
        body: NoBody,
        errors: ['not_restartable', 'restart_limit'],
        response: { 202: TurnView },
      },
    },
    async (request, reply) =>
      reply.code(202).send(turnView(await turns.restart(request.caller, request.params.id))),
  )
  app.post(
    '/turns/:id/approvals/:call_id',
    {
      schema: {
        operationId: 'decideToolCall',
        summary: 'Decide on a tool call that waits for approval',
        description:
          '`GET /v1/tool-executions?turn_id=` shows which calls wait: their `state` is `awaiting_approval`.',
        params: idParams('id', 'call_id'),
        body: Decision,
        errors: ['not_awaiting'],
        response: { 200: TurnView },
      },
    },
    async (request) => {
      const { id, call_id } = request.params
      if (request.body.decision === 'deny' && request.body.arguments) {
        throw invalid('arguments', 'A denied call takes no arguments.')
      }
      return turnView(await turns.decide(request.caller, id, call_id, request.body))
    },
  )
  app.post(
    '/turns/:id/answers/:call_id',
    {
      schema: {
        operationId: 'answerToolCall',
        summary: 'Answer a tool that asks (reserved)',
        params: idParams('id', 'call_id'),
        body: Answer,
        errors: ['not_awaiting'],
        response: { 200: TurnView },
      },
    },
    async (request) => {
      const { id, call_id } = request.params
      return turnView(await turns.answer(request.caller, id, call_id))
    },
  )
}

async function startRequest(
  deps: RouteDeps,
  body: Static<typeof NewTurn>,
  key: string | undefined,
): Promise<StartTurn> {
  const given = await reading(deps, (urls) => ({
    input: givenInput(urls, body.input),
    context: givenEdits(urls, body.context),
  }))
  return {
    ...given,
    on_busy: body.on_busy ?? 'reject',
    max_steps: body.max_steps ?? 16,
    provider: body.provider ?? null,
    model: body.model ?? null,
    idempotency_key: key ?? null,
    body_hash: key === undefined ? '' : sha256(canonicalJson(body)),
  }
}

/** Waits until the turn is over, the client has left, or the server closes. */
async function finished(deps: RouteDeps, caller: Caller, turn: Turn, reply: FastifyReply) {
  const now = await deps.turns.wait(caller, turn, null, deps.streams.leaving(reply))
  if (now.state === 'failed' && now.error) throw failure(now, now.error)
  if (now.ended_at !== null || now.state === 'awaiting_input') return fullView(deps, now)
  throw closing(turn, 'the turn goes on')
}

/** The turn with its messages. */
const fullView = async ({ store }: Pick<RouteDeps, 'store'>, turn: Turn) =>
  turnView(turn, await store.messages.ofTurn(turn.id, 'told'))

/** The error for a client that waits for a turn when the server closes. */
const closing = (turn: Turn, what: string) =>
  new BatonError('draining', `Baton is shutting down; ${what}.`, { details: { turn_id: turn.id } })

/** A failed turn's error as the answer to a client that waited for the turn. */
function failure(turn: Turn, error: NonNullable<Turn['error']>): BatonError {
  const { code, message, param, details } = error
  return new BatonError(code, message, { param, details: { ...details, turn_id: turn.id } })
}
