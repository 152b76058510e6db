/** Sessions: the settings of a conversation, and the preview of its next request. */
import { Type } from 'typebox'
import { invalid } from '../src/errors.ts'
import type { App, RouteDeps } from './app.ts'
import { givenEdits, givenInput, reading } from './message-input.ts'
import {
  ContextEdits,
  Count,
  closed,
  Id,
  IdParam,
  Input,
  Instant,
  Json,
  listOf,
  Metadata,
  Model,
  ModelSettings,
  nullable,
  Paging,
  Provider,
  pageOf,
  text,
  Usage,
} from './schemas.ts'

const Title = nullable(text(0, 500, 'For people'))
const Instructions = text(0, 1_000_000, 'The system prompt')
const CredentialId = nullable(text(1, 512, "Null: the owner's default for the provider"))

const SessionView = Type.Object(
  {
    id: Id,
    owner: Type.String(),
    provider: Provider,
    model: Type.String(),
    credential_id: nullable(Type.String()),
    instructions: Type.String(),
    settings: ModelSettings,
    title: nullable(Type.String()),
    metadata: Json,
    tools_revision: Count,
    active_turn_id: nullable(Id),
    usage: Usage,
    created_at: Instant,
    updated_at: Instant,
  },
  { title: 'Session' },
)

const changeable = {
  credential_id: Type.Optional(CredentialId),
  instructions: Type.Optional(Instructions),
  settings: Type.Optional(ModelSettings),
  title: Type.Optional(Title),
  metadata: Type.Optional(Metadata),
}
const NewSession = Type.Object(
  {
    provider: Provider,
    model: Model,
    ...changeable,
    connectors: Type.Optional(
      Type.Array(text(1, 512), {
        maxItems: 100,
        description: 'Ids or names, besides the connectors that every session binds',
      }),
    ),
    tool_profile: Type.Optional(Type.Unknown({ description: 'Reserved' })),
  },
  {
    ...closed,
    examples: [{ provider: 'openai', model: 'gpt-5.2', instructions: 'Be brief.', connectors: ['files'] }],
  },
)
const SessionPatch = Type.Object(
  { provider: Type.Optional(Provider), model: Type.Optional(Model), ...changeable },
  { ...closed, examples: [{ provider: 'anthropic', model: 'claude-sonnet-5' }] },
)

const RenderBody = Type.Object(
  {
    provider: Type.Optional(Provider),
    model: Type.Optional(Model),
    context: Type.Optional(ContextEdits),
    input: Type.Optional(Input),
  },
  { ...closed, examples: [{ provider: 'gemini', model: 'gemini-3.8-flash', input: 'Go on.' }] },
)
const Rendered = Type.Object(
  {
    provider: Provider,
    method: Type.String(),
    url: Type.String(),
    headers: Type.Record(Type.String(), Type.String()),
    body: Json,
    tools_revision: Count,
    notes: Type.Array(Type.String(), { description: 'What was left out or changed for this model' }),
  },
  { title: 'Rendered' },
)

/** A session's metadata is bounded, since every read returns it. Throws invalid_request. */
function assertSmall(metadata: Record<string, unknown> | undefined): void {
  if (metadata === undefined || Buffer.byteLength(JSON.stringify(metadata)) <= 16 * 1024) return
  throw invalid('metadata', 'metadata must be at most 16 KiB of JSON.')
}

export function sessionRoutes(app: App, { sessions, store, turns, refusals }: RouteDeps): void {
  app.post(
    '/sessions',
    {
      schema: {
        operationId: 'createSession',
        summary: 'Start a conversation',
        body: NewSession,
        errors: ['not_available', 'name_taken', 'session_not_found'],
        response: { 201: SessionView },
      },
    },
    async (request, reply) => {
      assertSmall(request.body.metadata)
      const session = await sessions.create(request.caller, request.body)
      return reply.code(201).header('location', `/v1/sessions/${session.id}`).send(session)
    },
  )
  app.get(
    '/sessions',
    {
      schema: {
        operationId: 'listSessions',
        summary: 'List sessions',
        querystring: Paging,
        response: { 200: listOf(SessionView) },
      },
    },
    (request) => store.sessions.list(request.caller, pageOf(request.query)),
  )
  app.get(
    '/sessions/:id',
    {
      schema: {
        operationId: 'getSession',
        summary: 'Read a session',
        params: IdParam,
        response: { 200: SessionView },
      },
    },
    (request) => sessions.get(request.caller, request.params.id),
  )
  app.patch(
    '/sessions/:id',
    {
      schema: {
        operationId: 'updateSession',
        summary: 'Change a session, its provider included',
        description: 'Takes effect from the next turn on. `settings` and `metadata` are replaced as a whole.',
        params: IdParam,
        body: SessionPatch,
        response: { 200: SessionView },
      },
    },
    (request) => {
      assertSmall(request.body.metadata)
      return sessions.update(request.caller, request.params.id, request.body)
    },
  )
  app.delete(
    '/sessions/:id',
    {
      schema: {
        operationId: 'deleteSession',
        summary: 'Delete a session with all that it holds',
        params: IdParam,
        errors: ['turn_in_progress'],
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      await sessions.delete(request.caller, request.params.id)
      return reply.code(204).send()
    },
  )
  app.post(
    '/sessions/:id/render',
    {
      schema: {
        operationId: 'renderSession',
        summary: 'Show what would be sent now; nothing is sent',
        params: IdParam,
        body: RenderBody,
        errors: [
          'address_not_allowed',
          'context_splits_tool_exchange',
          'no_credential',
          'credential_needs_reauth',
          'oauth_not_enabled',
          'context_too_long',
        ],
        response: { 200: Rendered },
      },
    },
    async (request) => {
      const { provider = null, model = null, context, input } = request.body
      const given = await reading({ refusals }, (urls) => ({
        context: givenEdits(urls, context),
        input: input === undefined ? [] : givenInput(urls, input),
      }))
      return turns.render(request.caller, request.params.id, { provider, model, ...given })
    },
  )
}
