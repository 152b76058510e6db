/** Logins at providers: begin, finish, status; the page that browsers come back to; import of login files. */
import { type Static, Type } from 'typebox'
import { LOGINS } from '../providers/index.ts'
import { FACT_FORM } from '../src/credentials/logins/file.ts'
import { PAGE_HEADERS } from '../src/credentials/logins/page.ts'
import { invalid, UPSTREAM_CODES } from '../src/errors.ts'
import { LOGIN_MODES } from '../src/oauth-vendor.ts'
import type { App, RouteDeps } from './app.ts'
import { ApiPath, CredentialView } from './credentials.ts'
import { closed, Id, Instant, LoginReturn, PAGE, PAGE_OR_ERROR, Provider } from './schemas.ts'

const ProviderParam = Type.Object({ provider: { ...Provider, description: 'Whose login it is' } })
const Mode = Type.Enum(LOGIN_MODES)
const GoogleFact = Type.String({
  ...FACT_FORM,
  description: `Gemini alone: a Google Cloud project. ${FACT_FORM.description}`,
})
const Authorize = Type.Object(
  {
    mode: Type.Optional(Mode),
    path: ApiPath,
    project_id: Type.Optional(GoogleFact),
    quota_project: Type.Optional(GoogleFact),
  },
  { ...closed, examples: [{ mode: 'paste' }] },
)
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
    format: Type.Enum(LOGINS.flatMap(({ vendor }) => Object.keys(vendor.imports))),
    content: Type.Unsafe<string | Record<string, unknown>>({
      type: ['string', 'object'],
      description: "The login file's text, or its JSON",
    }),
    project_id: Type.Optional(GoogleFact),
  },
  {
    ...closed,
    examples: [
      {
        provider: 'openai',
        format: 'codex',
        content: '{"tokens":{"access_token":"yours","refresh_token":"yours","account_id":"yours"}}',
      },
    ],
  },
)

const Imported = Type.Object(
  { ...CredentialView.properties, warning: Type.String() },
  { title: 'ImportedCredential' },
)

export function oauthRoutes(app: App, { logins }: RouteDeps): void {
  app.post(
    '/oauth/:provider/authorize',
    {
      schema: {
        operationId: 'beginLogin',
        summary: "Begin a login at a provider's page",
        params: ProviderParam,
        body: Authorize,
        errors: ['oauth_not_enabled', ...UPSTREAM_CODES],
        response: { 200: Login },
      },
    },
    (request) => {
      const { provider } = request.params
      const { mode = null, ...choices } = request.body
      return logins.authorize(request.caller, provider, mode, choices)
    },
  )
  app.get(
    '/oauth/callback/:provider',
    {
      // A program that only previews the link must not use up its `state`.
      exposeHeadRoute: false,
      config: { open: true },
      schema: {
        operationId: 'loginCallback',
        summary: "Where a provider's page returns to",
        description: 'Needs no key: its single-use `state` authenticates it.',
        params: ProviderParam,
        querystring: LoginReturn,
        errors: ['oauth_not_enabled'],
        response: { 200: PAGE, 400: PAGE_OR_ERROR },
      },
    },
    async (request, reply) => {
      const { provider } = request.params
      const { status, html } = await logins.callback(provider, request.query)
      return reply.code(status).headers(PAGE_HEADERS).send(html)
    },
  )
  app.post(
    '/oauth/:provider/exchange',
    {
      schema: {
        operationId: 'finishLogin',
        summary: 'Finish a login with the code that the page showed',
        params: ProviderParam,
        body: Exchange,
        errors: ['oauth_not_enabled', ...UPSTREAM_CODES],
        response: { 200: CredentialView },
      },
    },
    (request) => {
      const { provider } = request.params
      return logins.exchange(request.caller, provider, answerOf(request.body))
    },
  )
  app.get(
    '/oauth/:provider/status',
    {
      schema: {
        operationId: 'getLoginStatus',
        summary: "Read a login's status",
        params: ProviderParam,
        querystring: Type.Object({ state: State }, closed),
        errors: ['oauth_not_enabled'],
        response: { 200: LoginStatus },
      },
    },
    (request) => {
      const { provider } = request.params
      return logins.status(request.caller, provider, request.query.state)
    },
  )
  app.post(
    '/credentials/import',
    {
      schema: {
        operationId: 'importLogin',
        summary: "Take over a login file of a provider's own tool",
        body: Import,
        errors: ['oauth_not_enabled', ...UPSTREAM_CODES],
        response: { 201: Imported },
      },
    },
    async (request, reply) => {
      const credential = await logins.importFile(request.caller, request.body)
      return reply.code(201).header('location', `/v1/credentials/${credential.id}`).send(credential)
    },
  )
}

function answerOf({ state, code, pasted }: Static<typeof Exchange>) {
  if (code !== undefined && pasted === undefined) return { state, code }
  if (pasted !== undefined && code === undefined) return { state, pasted }
  throw invalid('code', 'Give exactly one of code and pasted.')
}
