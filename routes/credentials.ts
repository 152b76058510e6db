/** Keys and logins of providers. Their secrets are taken and never returned. */
import { Type } from 'typebox'
import { FACT_FORM } from '../src/credentials/logins/file.ts'
import { BatonError } from '../src/errors.ts'
import type { App, RouteDeps } from './app.ts'
import {
  closed,
  Flag,
  Id,
  IdParam,
  Instant,
  listOf,
  nullable,
  Paging,
  Provider,
  pageOf,
  Secret,
  taggedBy,
  text,
} from './schemas.ts'

/** A text that can stand in an HTTP header. */
const Fact = Type.String(FACT_FORM)
const Workspace = Type.String({
  ...FACT_FORM,
  description: 'Anthropic: the workspace that requests act in, of a key or login that may act in several',
})
/** Anthropic: what a workload authenticates with, in place of a refresh token. */
const Federation = Type.Object(
  {
    assertion: Secret,
    federation_rule_id: Fact,
    organization_id: Fact,
    service_account_id: Type.Optional(Fact),
    workspace_id: Type.Optional(Fact),
  },
  { ...closed, description: 'Workload identity federation: fetches access tokens by itself' },
)
export const ApiPath = Type.Optional(
  Type.Enum(['code_assist', 'public'], { description: 'Gemini: which API the login is for' }),
)
const Name = Type.Optional(nullable(text(1, 200, 'For people')))
const common = {
  provider: Provider,
  name: Name,
  default: Type.Optional(Flag),
}
const NewCredential = {
  ...taggedBy(
    'kind',
    'NewCredential',
    Type.Object(
      {
        ...common,
        kind: Type.Literal('api_key'),
        api_key: Secret,
        workspace_id: Type.Optional(Workspace),
      },
      closed,
    ),
    Type.Object(
      {
        ...common,
        kind: Type.Literal('oauth'),
        access_token: Type.Optional(Secret),
        refresh_token: Type.Optional(Secret),
        id_token: Type.Optional(Secret),
        expires_at: Type.Optional(Instant),
        account_id: Type.Optional(Fact),
        project_id: Type.Optional(Fact),
        path: ApiPath,
        quota_project: Type.Optional(Fact),
        workspace_id: Type.Optional(Workspace),
        federation: Type.Optional(Federation),
      },
      closed,
    ),
  ),
  examples: [
    { provider: 'anthropic', kind: 'api_key', api_key: 'sk-ant-example', name: 'work', default: true },
  ],
}
const CredentialPatch = Type.Object(
  {
    name: Name,
    state: Type.Optional(Type.Enum(['active', 'disabled'])),
    default: Type.Optional(Flag),
  },
  { ...closed, examples: [{ state: 'disabled' }] },
)
export const CredentialView = Type.Object(
  {
    id: Id,
    owner: Type.String(),
    provider: Provider,
    kind: Type.Enum(['api_key', 'oauth']),
    name: nullable(Type.String()),
    state: Type.Enum(['active', 'needs_reauth', 'disabled']),
    reason: nullable(Type.String()),
    default: Flag,
    origin: Type.Enum(['api', 'env']),
    hint: Type.String({ description: 'The last four characters of the secret' }),
    account_id: Type.Optional(Type.String()),
    project_id: Type.Optional(Type.String()),
    path: ApiPath,
    quota_project: Type.Optional(Type.String()),
    workspace_id: Type.Optional(Type.String()),
    expires_at: nullable(Instant),
    created_at: Instant,
    updated_at: Instant,
  },
  { title: 'Credential' },
)

export function credentialRoutes(app: App, { credentials }: RouteDeps): void {
  app.post(
    '/credentials',
    {
      schema: {
        operationId: 'createCredential',
        summary: 'Add a key or login of a provider',
        description: 'Secrets are written, never returned.',
        body: NewCredential,
        errors: ['oauth_not_enabled'],
        response: { 201: CredentialView },
      },
    },
    async (request, reply) => {
      const credential = await credentials.create(request.caller.owner, request.body)
      return reply.code(201).header('location', `/v1/credentials/${credential.id}`).send(credential)
    },
  )
  app.get(
    '/credentials',
    {
      schema: {
        operationId: 'listCredentials',
        summary: 'List keys and logins',
        querystring: Paging,
        response: { 200: listOf(CredentialView) },
      },
    },
    (request) => credentials.list(request.caller, pageOf(request.query)),
  )
  app.get(
    '/credentials/:id',
    {
      schema: {
        operationId: 'getCredential',
        summary: 'Read a key or login',
        params: IdParam,
        response: { 200: CredentialView },
      },
    },
    async (request) => {
      const credential = await credentials.get(request.caller, request.params.id)
      if (credential) return credential
      throw new BatonError('credential_not_found', `No credential has the id ${request.params.id}.`)
    },
  )
  app.patch(
    '/credentials/:id',
    {
      schema: {
        operationId: 'updateCredential',
        summary: 'Rename, disable, or make it the default',
        params: IdParam,
        body: CredentialPatch,
        errors: ['read_only'],
        response: { 200: CredentialView },
      },
    },
    (request) => credentials.update(request.caller, request.params.id, request.body),
  )
  app.delete(
    '/credentials/:id',
    {
      schema: {
        operationId: 'deleteCredential',
        summary: 'Delete a credential',
        params: IdParam,
        errors: ['read_only'],
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      await credentials.delete(request.caller, request.params.id)
      return reply.code(204).send()
    },
  )
}
