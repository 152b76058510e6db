/** A session's messages: read, and appended, replaced or deleted without a turn. */
import { type Static, Type } from 'typebox'
import { fittingTokens } from '../src/chat/edits.ts'
import { newId } from '../src/chat/ids.ts'
import { BatonError, invalid, noSession } from '../src/errors.ts'
import { busyError } from '../src/sessions.ts'
import type { App, RouteDeps } from './app.ts'
import { givenMessage, givenParts, reading } from './message-input.ts'
import {
  closed,
  GivenMessage,
  GivenParts,
  Id,
  IdParam,
  idParams,
  listOf,
  Message,
  Paging,
  pageOf,
  Role,
} from './schemas.ts'

type One = Static<typeof GivenMessage>
const GivenMessages = Type.Unsafe<(One & { messages?: undefined }) | (Partial<One> & { messages: One[] })>(
  Type.Object(
    {
      role: Type.Optional(Role),
      parts: Type.Optional(GivenParts),
      messages: Type.Optional(
        Type.Array(GivenMessage, {
          minItems: 1,
          maxItems: 1000,
          description: 'Several at once, in order, in place of `role` and `parts`',
        }),
      ),
    },
    {
      ...closed,
      anyOf: [{ required: ['role', 'parts'] }, { required: ['messages'] }],
      description: 'One message as `role` and `parts`, or several as `messages`',
      examples: [{ role: 'user', parts: [{ type: 'text', text: 'My name is Ada.' }] }],
    },
  ),
)
const MessagePatch = Type.Object(
  { role: Type.Optional(Role), parts: GivenParts },
  { ...closed, examples: [{ parts: [{ type: 'text', text: 'My name is Grace.' }] }] },
)

export function messageRoutes(app: App, { sessions, store, refusals }: RouteDeps): void {
  app.get(
    '/sessions/:id/messages',
    {
      schema: {
        operationId: 'listMessages',
        summary: 'The canonical history, ascending by seq',
        params: IdParam,
        querystring: Paging,
        response: { 200: listOf(Message) },
      },
    },
    async (request) => {
      const page = await store.messages.list(request.caller, request.params.id, pageOf(request.query))
      if (page) return page
      throw noSession(request.params.id)
    },
  )
  app.post(
    '/sessions/:id/messages',
    {
      schema: {
        operationId: 'appendMessages',
        summary: 'Append without running a turn',
        description: 'Answers with the message, or with `{data}` for several.',
        params: IdParam,
        body: GivenMessages,
        errors: ['address_not_allowed', 'turn_in_progress'],
        response: { 201: Type.Union([Message, Type.Object({ data: Type.Array(Message) })]) },
      },
    },
    async (request, reply) => {
      const session = await sessions.get(request.caller, request.params.id)
      const ready = await reading({ refusals }, (urls) =>
        messagesIn(request.body).map(({ path, message }) => {
          return { id: newId('msg'), turn_id: null, ...givenMessage(urls, message, path) }
        }),
      )
      const stored = await store.messages.append(request.caller, session.id, ready)
      if (stored === 'busy') throw await busyError(store, request.caller, session.id)
      if (!stored) throw noSession(session.id)
      return reply.code(201).send(request.body.messages ? { data: stored } : stored[0])
    },
  )
  app.patch(
    '/sessions/:id/messages/:message',
    {
      schema: {
        operationId: 'updateMessage',
        summary: 'Replace what a message says, for good',
        params: idParams('id', 'message'),
        body: MessagePatch,
        errors: ['address_not_allowed', 'turn_in_progress'],
        response: { 200: Message },
      },
    },
    async (request) => {
      const { id, message } = request.params
      const session = await sessions.get(request.caller, id)
      const before = await store.messages.get(request.caller, session.id, message)
      if (!before) throw notFound(message)
      const role = request.body.role ?? before.role
      const given = await reading({ refusals }, (urls) => {
        return givenParts(urls, role, request.body.parts, 'parts')
      })
      const parts = given.map(fittingTokens(before.parts))
      const stored = await store.messages.replace(request.caller, session.id, message, { role, parts })
      if (stored === 'busy') throw await busyError(store, request.caller, session.id)
      if (!stored) throw notFound(message)
      return stored
    },
  )
  app.delete(
    '/sessions/:id/messages/:message',
    {
      schema: {
        operationId: 'deleteMessage',
        summary: 'Delete a message; with tool calls, their results too',
        params: idParams('id', 'message'),
        errors: ['turn_in_progress'],
        response: { 200: Type.Object({ deleted: Type.Array(Id, { description: 'Ids of all that went' }) }) },
      },
    },
    async (request) => {
      const { id, message } = request.params
      const session = await sessions.get(request.caller, id)
      const deleted = await store.messages.delete(request.caller, session.id, message)
      if (deleted === 'busy') throw await busyError(store, request.caller, session.id)
      if (!deleted) throw notFound(message)
      return { deleted }
    },
  )
}

/** The messages of a body, each with its path in the body ('' for the body itself). Throws invalid_request. */
function messagesIn(body: Static<typeof GivenMessages>) {
  if (!body.messages) return [{ path: '', message: body }]
  if (body.role || body.parts) throw invalid('messages', 'Give either messages, or role and parts.')
  return body.messages.map((message, i) => ({ path: `messages[${i}]`, message }))
}

const notFound = (id: string) =>
  new BatonError('message_not_found', `No message ${id} exists in this session.`)
