/** Connectors: MCP servers that callers register, test and log in to, and whose changes they accept. */
import { Type } from 'typebox'
import { CONNECTOR_NAME } from '../src/config/connector-shape.ts'
import { PAGE_HEADERS } from '../src/credentials/logins/page.ts'
import { UPSTREAM_CODES } from '../src/errors.ts'
import type { App, RouteDeps } from './app.ts'
import {
  closed,
  Flag,
  Id,
  IdParam,
  Instant,
  idParams,
  Json,
  LoginReturn,
  listOf,
  NoBody,
  nullable,
  PAGE,
  PAGE_OR_ERROR,
  Paging,
  pageOf,
  Secret,
  Transport,
  taggedBy,
  text,
} from './schemas.ts'

const Pairs = Type.Record(Type.String(), Type.String({ maxLength: 65_536 }), {
  maxProperties: 100,
  description: 'Names with their values, such as {"NAME": "value"}',
})
const Globs = Type.Array(text(1, 256), {
  maxItems: 1000,
  description:
    "Names of the server's tools; * stands for any text, ? for one character. At most 1000 * in a list; a name with ? counts as often as it has characters",
})
const Auth = {
  ...taggedBy(
    'type',
    'ConnectorAuth',
    Type.Object({ type: Type.Literal('none') }, closed),
    Type.Object(
      {
        type: Type.Literal('oauth'),
        client_id: Type.Optional(Secret),
        client_secret: Type.Optional(Secret),
        issuer: Type.Optional(
          text(
            1,
            2048,
            "The login service's own name, if its metadata is at another address, or its address, if the server names several services or none",
          ),
        ),
        scope: Type.Optional(
          text(1, 4096, 'Scopes to ask for, in place of those that the server names; separated by spaces'),
        ),
      },
      { ...closed, description: 'Give a client if the server does not let clients register themselves' },
    ),
    Type.Object({ type: Type.Literal('bearer'), token: Type.Optional(Secret) }, closed),
  ),
  description: 'The token of `bearer` may stand in headers instead, as Authorization',
}
const Limits = Type.Object(
  {
    max_instances: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 10_000, description: 'Calls of one tool at once; default 5' }),
    ),
    timeout: Type.Optional(
      Type.String({ format: 'duration', description: 'ISO 8601; default PT30S, at most PT1H' }),
    ),
  },
  closed,
)

const Mode = Type.Enum(['strict', 'dynamic'], {
  description: 'Default dynamic. With strict, only tools that the toolbox names are offered',
})
const Approval = Type.Enum(['never', 'always', 'destructive'], {
  description:
    'Which calls a person must approve. Default never. `destructive`: all but calls of tools that say that they only read or ' +
    'destroy nothing; what tools say counts only with `trust_annotations`',
})
const Trust = Type.Boolean({
  description: 'Whether what the server says about its tools is believed. Default false',
})
const Pin = Type.Enum(['warn', 'block'], {
  description:
    'What becomes of a tool whose definition changes. Default warn. `block`: not offered until accepted',
})
const fields = {
  name: Type.String(CONNECTOR_NAME),
  url: Type.Optional(
    text(
      1,
      8192,
      'http or https. Needed for all transports but stdio. Stored as it is: put a key into headers, which are sealed',
    ),
  ),
  headers: Type.Optional(Pairs),
  command: Type.Optional(text(1, 4096, 'Needed for stdio, and only there')),
  args: Type.Optional(
    Type.Array(text(0, 65_536), { maxItems: 1000, description: 'One item for each argument of the command' }),
  ),
  env: Type.Optional(Pairs),
  auth: Type.Optional(Auth),
  mode: Type.Optional(Mode),
  default_tool_config: Type.Optional(Limits),
  allow_tools: Type.Optional(Globs),
  deny_tools: Type.Optional(Globs),
  require_approval: Type.Optional(Approval),
  trust_annotations: Type.Optional(Trust),
  pin: Type.Optional(Pin),
}
const sized = { ...closed, description: 'Each field is at most 128 KiB of JSON' }
const NewConnector = Type.Object(
  { ...fields, transport: Transport },
  {
    ...sized,
    examples: [
      {
        name: 'files',
        transport: 'streamable_http',
        url: 'https://mcp.example.com/mcp',
        auth: { type: 'bearer', token: 'secret' },
        require_approval: 'destructive',
      },
    ],
  },
)
const ConnectorPatch = Type.Object(
  { ...fields, name: Type.Optional(fields.name) },
  { ...sized, examples: [{ allow_tools: ['read_*'] }] },
)

const SEALED = 'Their values are never shown. Null: no configured encryption key opens them'
const ConnectorView = Type.Object(
  {
    id: Id,
    owner: Type.String(),
    name: Type.String(),
    origin: Type.Enum(['api', 'config']),
    transport: Transport,
    url: nullable(
      Type.String({
        description: 'Of a connector from the configuration, only admins see more than its host',
      }),
    ),
    header_names: nullable(Type.Array(Type.String(), { description: SEALED })),
    command: nullable(
      Type.String({ description: 'Of a connector from the configuration, only admins see it' }),
    ),
    args: Type.Array(Type.String(), {
      description:
        'Of a connector from the configuration, only admins see them; the list is empty for others',
    }),
    env_names: nullable(Type.Array(Type.String(), { description: SEALED })),
    auth: Type.Object({ type: Type.Enum(['none', 'bearer', 'oauth']) }),
    mode: Mode,
    default_tool_config: Type.Object({ max_instances: Type.Integer(), timeout: Type.String() }),
    allow_tools: Type.Array(Type.String()),
    deny_tools: Type.Array(Type.String()),
    require_approval: Approval,
    trust_annotations: Trust,
    pin: Pin,
    status: Type.Object({
      state: Type.Enum(['idle', 'connecting', 'ready', 'down', 'auth_required', 'quarantined'], {
        description:
          'Of the connection from this replica. `idle`: there is none now. `quarantined`: the server changes its list of tools ' +
          'too often, so it is not asked for a minute',
      }),
      error: Type.Optional(Type.String()),
      login_url: Type.Optional(Type.String({ description: 'POST there to log in at the server' })),
    }),
    created_at: Instant,
    updated_at: Instant,
  },
  { title: 'Connector' },
)
const ConnectorTest = Type.Object(
  {
    ok: Flag,
    latency_ms: Type.Number(),
    server: nullable(
      Type.Object({ name: Type.String(), version: Type.String(), protocol_version: Type.String() }),
    ),
    tools: Type.Array(Json, {
      description: 'As the server has them: `name`, `title`, `description`, `inputSchema`, `annotations`',
    }),
    error: Type.Optional(Type.String()),
  },
  { title: 'ConnectorTest' },
)
const Login = Type.Object(
  { authorization_url: Type.String(), state: Type.String(), expires_at: Instant },
  { title: 'ConnectorLogin' },
)
const ClientDocument = Type.Object(
  {
    client_id: Type.String({ description: "The document's own address" }),
    client_name: Type.String(),
    client_uri: Type.String(),
    redirect_uris: Type.Array(Type.String()),
    grant_types: Type.Array(Type.String()),
    response_types: Type.Array(Type.String()),
    application_type: Type.Literal('web'),
    token_endpoint_auth_method: Type.Literal('none'),
  },
  { title: 'ClientDocument' },
)
const Acceptance = Type.Object(
  {
    hash: Type.Optional(
      Type.String({
        maxLength: 128,
        description: 'The hash that the tool shows beside its `diff`: no other definition is accepted',
      }),
    ),
  },
  { ...closed, examples: [{ hash: '6cf615d5bcaac778352a8f1f3360d23f02f34ec182e259897fd6ce485d7870d4' }] },
)
const Accepted = Type.Object({ tool: Type.String(), hash: Type.String() })

export function connectorRoutes(app: App, { connectors }: RouteDeps): void {
  app.post(
    '/connectors',
    {
      schema: {
        operationId: 'createConnector',
        summary: 'Add an MCP server',
        body: NewConnector,
        errors: ['address_not_allowed', 'name_taken'],
        response: { 201: ConnectorView },
      },
    },
    async (request, reply) => {
      const connector = await connectors.create(request.caller, request.body)
      return reply.code(201).header('location', `/v1/connectors/${connector.id}`).send(connector)
    },
  )
  app.get(
    '/connectors',
    {
      schema: {
        operationId: 'listConnectors',
        summary: 'List MCP servers',
        querystring: Paging,
        response: { 200: listOf(ConnectorView) },
      },
    },
    (request) => connectors.list(request.caller, pageOf(request.query)),
  )
  app.get(
    '/connectors/:id',
    {
      schema: {
        operationId: 'getConnector',
        summary: 'Read an MCP server',
        params: IdParam,
        response: { 200: ConnectorView },
      },
    },
    (request) => connectors.get(request.caller, request.params.id),
  )
  app.patch(
    '/connectors/:id',
    {
      schema: {
        operationId: 'updateConnector',
        summary: 'Change an MCP server',
        description:
          'A field that is given is replaced as a whole; headers, env and auth stay if they are left out. But if url moves to ' +
          'another origin, or command or args change, those of these three that hold secrets must be given again: no secret goes along.',
        params: IdParam,
        body: ConnectorPatch,
        errors: ['address_not_allowed', 'name_taken', 'read_only'],
        response: { 200: ConnectorView },
      },
    },
    (request) => connectors.update(request.caller, request.params.id, request.body),
  )
  app.delete(
    '/connectors/:id',
    {
      schema: {
        operationId: 'deleteConnector',
        summary: 'Remove an MCP server',
        params: IdParam,
        errors: ['read_only'],
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      await connectors.delete(request.caller, request.params.id)
      return reply.code(204).send()
    },
  )
  app.post(
    '/connectors/:id/test',
    {
      schema: {
        operationId: 'testConnector',
        summary: 'Connect and list the tools now',
        params: IdParam,
        body: NoBody,
        response: { 200: ConnectorTest },
      },
    },
    (request) => connectors.test(request.caller, request.params.id),
  )
  app.post(
    '/connectors/:id/login',
    {
      schema: {
        operationId: 'beginConnectorLogin',
        summary: 'Begin a login at an MCP server',
        description: 'For `auth: oauth`; by the owner of the connector only.',
        params: IdParam,
        body: NoBody,
        errors: ['address_not_allowed', 'not_available', ...UPSTREAM_CODES],
        response: { 200: Login },
      },
    },
    (request) => connectors.login(request.caller, request.params.id),
  )
  app.get(
    '/oauth/connectors/callback',
    {
      // A program that only previews the link must not use up its `state`.
      exposeHeadRoute: false,
      config: { open: true },
      schema: {
        operationId: 'connectorLoginCallback',
        summary: "Where an MCP server's login returns to",
        description: 'Needs no key: its single-use `state` authenticates it.',
        querystring: LoginReturn,
        response: { 200: PAGE, 400: PAGE_OR_ERROR },
      },
    },
    async (request, reply) => {
      const { status, html } = await connectors.loginPage(request.query)
      return reply.code(status).headers(PAGE_HEADERS).send(html)
    },
  )
  app.get(
    '/oauth/connectors/client',
    {
      config: { open: true },
      schema: {
        operationId: 'getClientDocument',
        summary: "Who this gateway is to MCP servers' login services",
        description:
          'A client ID metadata document, which login services read by themselves. It is there only while BATON_PUBLIC_URL is https.',
        errors: ['not_found'],
        response: { 200: ClientDocument },
      },
    },
    () => connectors.clientDocument(),
  )
  app.post(
    '/connectors/:id/tools/:tool/accept',
    {
      schema: {
        operationId: 'acceptTool',
        summary: "Accept a tool's changed definition",
        params: idParams('id', 'tool'),
        body: Acceptance,
        response: { 200: Accepted },
      },
    },
    ({ caller, params, body }) => connectors.accept(caller, params.id, params.tool, body.hash),
  )
}
