/** Gateway keys and the rotation of encryption keys, for admins. */
import { Type } from 'typebox'
import { invalid } from '../src/errors.ts'
import type { App, RouteDeps } from './app.ts'
import { closed, Id, IdParam, Instant, listOf, NoBody, nullable, Paging, pageOf, text } from './schemas.ts'

const Scopes = Type.Array(Type.Enum(['chat', 'admin']), {
  minItems: 1,
  maxItems: 2,
  description: '`admin` includes `chat`',
})
const NewKey = Type.Object(
  {
    owner: Type.String({
      minLength: 1,
      maxLength: 128,
      pattern: '^[^\\s\\p{C}]+$',
      description: 'Whose things the key sees, without white space',
    }),
    scopes: Scopes,
    name: Type.Optional(text(1, 200)),
    expires_at: Type.Optional(Instant),
  },
  { ...closed, examples: [{ owner: 'team-a', scopes: ['chat'], name: 'laptop' }] },
)
const shown = {
  id: Id,
  owner: Type.String(),
  name: nullable(Type.String()),
  scopes: Scopes,
  hint: Type.String(),
  expires_at: nullable(Instant),
  last_used_at: nullable(Instant),
  revoked_at: nullable(Instant),
  created_at: Instant,
}
const KeyView = Type.Object(shown, { title: 'Key' })
const MadeKey = Type.Object(
  { ...shown, key: Type.String({ description: 'Shown this once' }) },
  { title: 'MadeKey' },
)

const Rotated = Type.Object(
  {
    resealed: Type.Integer({ description: 'Secrets that were re-encrypted' }),
    left: Type.Integer({ description: 'Secrets that kept changing; if not 0, ask again' }),
    unopened: Type.Array(Type.String(), {
      description:
        'The first hundred secrets that no configured key opens, each with the reason; they stay as they are',
    }),
    key: Type.String({
      description: 'The id of the first key, under which everything that opens is sealed now',
    }),
    others: Type.Array(Type.String(), { description: 'The ids of the other keys that are configured' }),
  },
  { title: 'Rotation' },
)

const config = { admin: true }

export function keyRoutes(app: App, { auth, store, rotateEncryption }: RouteDeps): void {
  app.post(
    '/keys',
    {
      config,
      schema: { operationId: 'createKey', summary: 'Create a key', body: NewKey, response: { 201: MadeKey } },
    },
    async (request, reply) => {
      const { expires_at } = request.body
      if (expires_at !== undefined && Date.parse(expires_at) <= Date.now()) {
        throw invalid('expires_at', 'expires_at is in the past.')
      }
      return reply.code(201).send(await auth.create(request.caller, request.body))
    },
  )
  app.get(
    '/keys',
    {
      config,
      schema: {
        operationId: 'listKeys',
        summary: 'List keys',
        querystring: Paging,
        response: { 200: listOf(KeyView) },
      },
    },
    (request) => store.keys.list(request.caller, pageOf(request.query)),
  )
  app.post(
    '/keys/rotate-encryption',
    {
      config,
      schema: {
        operationId: 'rotateEncryption',
        summary: 'Re-encrypt every stored secret with the first key of BATON_ENCRYPTION_KEYS',
        body: NoBody,
        response: { 200: Rotated },
      },
    },
    ({ caller }) => rotateEncryption(caller.owner),
  )
  app.delete(
    '/keys/:id',
    {
      config,
      schema: {
        operationId: 'revokeKey',
        summary: 'Revoke a key',
        description:
          'The key is refused within a second; event streams that it has open end at their next ping.',
        params: IdParam,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      await auth.revoke(request.caller, request.params.id)
      return reply.code(204).send()
    },
  )
}
