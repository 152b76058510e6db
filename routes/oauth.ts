import { type Static, Type } from 'typebox'
import { BatonError } from '../src/errors.ts'
import type { Logins } from '../src/ports.ts'
import type { App, RouteDeps } from './app.ts'
import { CredentialView } from './credentials.ts'
import { closed, Id, Instant, Provider } from './schemas.ts'

const ProviderParam = Type.Object({ provider: Provider })
const Mode = Type.Enum(['loopback', 'paste', 'device'])
const Authorize = Type.Object({ mode: Type.Optional(Mode) }, { ...closed, examples: [{ mode: 'paste' }] })
const Login = Type.Object(
  {
    authorization_url: Type.String(),
    state: Type.String(),
    expires_at: Instant,
    mode: Mode,
    user_code: Type.Optional(Type.String()),
  },
  { title: 'Login' },
)
const LoginStatus = Type.Object(
  {
    state: Type.Enum(['pending', 'done', 'failed', 'expired']),
    credential_id: Type.Optional(Id),
    error: Type.Optional(Type.String()),
  },
  { title: 'LoginStatus' },
)
const State = Type.String({ minLength: 1, maxLength: 1024 })
const Exchange = Type.Object(
  {
    state: State,
    code: Type.Optional(Type.String({ minLength: 1, maxLength: 8192 })),
    pasted: Type.Optional(
      Type.String({ minLength: 1, maxLength: 16_384, description: 'What the page showed, or its address' }),
    ),
  },
  { ...closed, examples: [{ state: 'st_1', pasted: 'code#st_1' }] },
)
const Import = Type.Object(
  {
    provider: Provider,
    format: Type.Enum(['codex', 'gemini-cli', 'claude', 'anthropic-profile']),
    content: Type.Unsafe<string | Record<string, unknown>>({
      type: ['string', 'object'],
      description: "The login file's text, or its JSON",
    }),
  },
  { ...closed, examples: [{ provider: 'openai', format: 'codex', content: '{"tokens":{}}' }] },
)

const tags = ['logins']

export function oauthRoutes(app: App, { credentials, logins }: RouteDeps): void {
  /** The flows, for a provider that the operator has switched on. */
  function flows(provider: string): Logins {
    credentials.assertOauth(provider)
    if (logins) return logins
    throw new BatonError(
      'not_available',
      'This gateway runs without login flows; add the tokens with POST /v1/credentials.',
    )
  }

  app.post(
    '/oauth/:provider/authorize',
    {
      schema: {
        tags,
        summary: "Begin a login at a provider's page",
        params: ProviderParam,
        body: Authorize,
        response: { 200: Login },
      },
    },
    (request) => {
      const { provider } = request.params
      return flows(provider).authorize(request.caller, provider, request.body.mode ?? null)
    },
  )
  app.get(
    '/oauth/callback/:provider',
    {
      config: { open: true },
      schema: {
        tags,
        summary: "Where a provider's page returns to",
        description: 'Needs no key: its single-use `state` authenticates it.',
        params: ProviderParam,
        querystring: Type.Record(Type.String(), Type.String({ maxLength: 16_384 })),
        response: {
          200: { description: 'A page for people', content: { 'text/html': { schema: { type: 'string' } } } },
        },
      },
    },
    async (request, reply) => {
      const { provider } = request.params
      const { state } = await flows(provider).callback(provider, request.query)
      const words =
        state === 'done' ? 'You are logged in. This page can be closed.' : 'The login did not succeed.'
      return reply.type('text/html; charset=utf-8').send(`<!doctype html><title>Baton</title><p>${words}</p>`)
    },
  )
  app.post(
    '/oauth/:provider/exchange',
    {
      schema: {
        tags,
        summary: 'Finish a login with the code that the page showed',
        params: ProviderParam,
        body: Exchange,
        response: { 200: CredentialView },
      },
    },
    async (request) => {
      const { provider } = request.params
      const credential = await flows(provider).exchange(request.caller, provider, answerOf(request.body))
      return credentials.get(request.caller, credential.id)
    },
  )
  app.get(
    '/oauth/:provider/status',
    {
      schema: {
        tags,
        summary: 'How far a login is',
        params: ProviderParam,
        querystring: Type.Object({ state: State }, closed),
        response: { 200: LoginStatus },
      },
    },
    (request) => {
      const { provider } = request.params
      return flows(provider).status(request.caller, provider, request.query.state)
    },
  )
  app.post(
    '/credentials/import',
    {
      schema: {
        tags,
        summary: "Take over a login file of a provider's own tool",
        body: Import,
        response: { 201: CredentialView },
      },
    },
    async (request, reply) => {
      const credential = await flows(request.body.provider).importFile(request.caller, request.body)
      return reply.code(201).send(await credentials.get(request.caller, credential.id))
    },
  )
}

function answerOf({ state, code, pasted }: Static<typeof Exchange>) {
  if (code !== undefined && pasted === undefined) return { state, code }
  if (pasted !== undefined && code === undefined) return { state, pasted }
  throw new BatonError('invalid_request', 'Give exactly one of code and pasted.', { param: 'code' })
}
