/** A session's tools and connectors, and their changes mid-chat. */
import { Type } from 'typebox'
import { CONNECTOR_NAME } from '../src/config/connector-shape.ts'
import { PROVIDER_IDS } from '../src/config/settings.ts'
import type { Caller } from '../src/ports.ts'
import type { App, RouteDeps } from './app.ts'
import {
  Apply,
  Count,
  closed,
  Flag,
  Id,
  IdParam,
  Instant,
  idParams,
  Json,
  listOf,
  nullable,
  Paging,
  Provider,
  pageOf,
  Transport,
  toolsDelta,
} from './schemas.ts'

const Name = Type.String()

const ToolsChange = Type.Object(
  {
    ...toolsDelta,
    effective: Type.Object({
      turn_id: nullable(Id),
      from: Type.Enum(['next_step', 'next_turn', 'restart']),
    }),
    restarted_turn_id: nullable(Id),
    prompt_cache: Type.Enum(['kept', 'invalidated']),
  },
  {
    title: 'ToolsChange',
    examples: [
      {
        tools_revision: 4,
        added: ['files.read'],
        removed: [],
        changed: [],
        effective: { turn_id: null, from: 'next_turn' },
        restarted_turn_id: null,
        prompt_cache: 'invalidated',
      },
    ],
  },
)
const SessionTool = Type.Object(
  {
    canonical_name: Name,
    provider_exposed_name: Type.Object(Object.fromEntries(PROVIDER_IDS.map((id) => [id, Name]))),
    connector_id: nullable(Id),
    mcp_tool_name: nullable(Name),
    server: nullable(Name),
    description: Type.String(),
    parameters: Json,
    enabled: Flag,
    source: Type.Enum(['mcp', 'builtin']),
    last_seen_at: nullable(Instant),
    status: Type.Enum(['available', 'unavailable', 'changed', 'undeclarable'], {
      description:
        '`unavailable`: its server is away; models still see it. `changed`: its definition is not the accepted one. ' +
        '`undeclarable`: no model sees it. `reason` says more',
    }),
    reason: Type.Optional(Type.String()),
    diff: Type.Optional(
      Type.Array(
        Type.Object({
          path: Type.String({
            description: 'JSON Pointer into `{description, inputSchema, annotations}`',
          }),
          before: Type.Optional(Type.Unknown()),
          after: Type.Optional(Type.Unknown()),
        }),
        { description: 'Of a changed definition: what differs from the accepted one' },
      ),
    ),
    hash: Type.Optional(
      Type.String({ description: 'Of a changed definition: with it, this one is accepted and no other' }),
    ),
  },
  { title: 'SessionTool' },
)
const SessionToolList = Type.Object(
  {
    revision: Count,
    updated_at: Instant,
    tools: Type.Array(SessionTool),
    declarations: Type.Optional(
      Type.Array(Type.Unknown(), { description: 'As the provider gets them; with `?provider=`' }),
    ),
  },
  { title: 'SessionToolList' },
)
const BoundConnector = Type.Object(
  {
    id: Id,
    name: Type.String(),
    alias: nullable(Type.String()),
    origin: Type.Enum(['api', 'config']),
    transport: Transport,
    status: Type.Enum(['available', 'unavailable']),
    reason: Type.Optional(Type.String()),
  },
  { title: 'BoundConnector' },
)
const Bind = Type.Object(
  {
    apply: Apply,
    alias: Type.Optional(
      nullable(
        Type.String({
          pattern: CONNECTOR_NAME.pattern,
          description: "Replaces the server's name in the names of its tools: a-z, 0-9 and -, a letter first",
        }),
      ),
    ),
  },
  { ...closed, examples: [{ apply: 'now' }, { alias: 'docs' }] },
)
const Toggle = Type.Object({ enabled: Flag, apply: Apply }, { ...closed, examples: [{ enabled: false }] })
const ApplyBody = Type.Object({ apply: Apply }, { ...closed, examples: [{ apply: 'now' }] })
const ApplyQuery = Type.Object({ apply: Apply }, closed)
const OfProvider = Type.Object(
  {
    provider: Type.Optional({ ...Provider, description: 'Adds `declarations`, as this provider gets them' }),
  },
  closed,
)

const change = { 200: ToolsChange }

export function sessionToolRoutes(app: App, { sessions, tools, connectors }: RouteDeps): void {
  const sessionOf = ({ caller, params }: { caller: Caller; params: { id: string } }) =>
    sessions.get(caller, params.id)

  app.get(
    '/sessions/:id/connectors',
    {
      schema: {
        operationId: 'listSessionConnectors',
        summary: 'Connectors that the session binds',
        params: IdParam,
        querystring: Paging,
        response: { 200: listOf(BoundConnector) },
      },
    },
    async (request) => connectors.boundTo(await sessionOf(request), pageOf(request.query)),
  )
  app.put(
    '/sessions/:id/connectors/:connector',
    {
      schema: {
        operationId: 'bindConnector',
        summary: 'Bind a connector by id or name',
        params: idParams('id', 'connector'),
        body: Bind,
        errors: ['name_taken'],
        response: change,
      },
    },
    async (request) => {
      const { apply = 'next', alias = null } = request.body
      return tools.bind(await sessionOf(request), request.params.connector, apply, alias)
    },
  )
  app.delete(
    '/sessions/:id/connectors/:connector',
    {
      schema: {
        operationId: 'unbindConnector',
        summary: 'Unbind a connector',
        params: idParams('id', 'connector'),
        querystring: ApplyQuery,
        response: change,
      },
    },
    async (request) => {
      const { params, query } = request
      return tools.unbind(await sessionOf(request), params.connector, query.apply ?? 'next')
    },
  )
  app.get(
    '/sessions/:id/tools',
    {
      schema: {
        operationId: 'listSessionTools',
        summary: 'The tools that the session may call',
        params: IdParam,
        querystring: OfProvider,
        response: { 200: SessionToolList },
      },
    },
    async (request) => tools.list(await sessionOf(request), request.query.provider ?? null),
  )
  app.patch(
    '/sessions/:id/tools/:tool',
    {
      schema: {
        operationId: 'switchTool',
        summary: 'Switch a tool on or off, by its canonical name',
        params: idParams('id', 'tool'),
        body: Toggle,
        response: change,
      },
    },
    async (request) => {
      const { enabled, apply = 'next' } = request.body
      return tools.setEnabled(await sessionOf(request), request.params.tool, enabled, apply)
    },
  )
  app.post(
    '/sessions/:id/tools/refresh',
    {
      schema: {
        operationId: 'refreshTools',
        summary: 'Ask all servers for their tools again',
        params: IdParam,
        body: ApplyBody,
        response: change,
      },
    },
    async (request) => tools.refresh(await sessionOf(request), request.body.apply ?? 'next'),
  )
}
