/**
 * The session's tool registry as a pure function: from what it was, what the bound servers list now, and
 * the operator's rules, to what it is next. Effects are session-tools.ts.
 */
import { exposedName } from '../chat/names.ts'
import type { McpTool } from '../mcp/mcp.ts'
import type { Connector, RegistryTool } from '../store/store.ts'
import type { Builtin } from './builtin.ts'
import { canonicalJson, sha256 } from './json.ts'
import { normalise } from './schema.ts'
import { visibleText } from './text.ts'
import type { ToolboxPolicy } from './toolbox.ts'

/** A bound server and what is known of it. */
export interface KnownServer {
  connector: Connector
  /** The alias, else the connector's name: canonical names start with it */
  server: string
  /** Null: no list was ever seen. The tools of the registry stay, as unavailable. */
  tools: readonly McpTool[] | null
  /** The list is the server's present one; otherwise `reason` says why it is not */
  isLive: boolean
  reason: string | null
  /** Accepted definition hashes by tool; a tool without one is trusted on first use */
  pins: ReadonlyMap<string, string>
}

export interface NextRegistry {
  tools: RegistryTool[]
  added: string[]
  removed: string[]
  changed: string[]
}

const MOST_TOOLS = 256
const MOST_LIST_BYTES = 512 * 1024
const DESCRIPTION_BYTES = 4096

type Candidate = Omit<RegistryTool, 'order' | 'enabled'>

/** `now` is RFC 3339. Order: what stays keeps its place; what is new, or comes back, is appended by name. */
export function nextRegistry(
  before: readonly RegistryTool[],
  servers: readonly KnownServer[],
  builtins: readonly Builtin[],
  policy: Pick<ToolboxPolicy, 'admit' | 'admitBuiltin'>,
  now: string,
): NextRegistry {
  const known = new Map(before.map((tool) => [tool.canonical_name, tool]))
  const candidates = new Map<string, Candidate>()
  for (const builtin of builtins) {
    if (policy.admitBuiltin(builtin.name).ok) candidates.set(builtin.name, builtinTool(builtin, now))
  }
  for (const server of servers) {
    const list = server.tools ? listed(server, server.tools, policy, now) : remembered(server, before)
    for (const tool of list)
      if (!candidates.has(tool.canonical_name)) candidates.set(tool.canonical_name, tool)
  }
  const stays = before.flatMap((tool) => {
    const next = candidates.get(tool.canonical_name)
    return next ? [merged(tool, next)] : []
  })
  const added = [...candidates.keys()].filter((name) => !known.has(name)).sort()
  let order = before.reduce((most, tool) => Math.max(most, tool.order), 0)
  const fresh = added.flatMap((name) => {
    const next = candidates.get(name)
    return next ? [{ ...next, enabled: true, order: ++order }] : []
  })
  const tools = withoutCollisions([...stays, ...fresh])
  return {
    tools,
    added,
    removed: before.filter((tool) => !candidates.has(tool.canonical_name)).map((tool) => tool.canonical_name),
    changed: tools
      .filter((tool) => hasChanged(known.get(tool.canonical_name), tool))
      .map((tool) => tool.canonical_name),
  }
}

const merged = (before: RegistryTool, next: Candidate): RegistryTool => ({
  ...next,
  enabled: before.enabled,
  order: before.order,
  last_seen_at: next.last_seen_at ?? before.last_seen_at,
})

const hasChanged = (before: RegistryTool | undefined, after: RegistryTool): boolean =>
  before !== undefined &&
  (before.hash !== after.hash ||
    before.status !== after.status ||
    before.is_blocked !== after.is_blocked ||
    before.enabled !== after.enabled)

function builtinTool(builtin: Builtin, now: string): Candidate {
  const { name, description, parameters, annotations } = builtin
  return {
    canonical_name: name,
    exposed_name: exposedName(name),
    source: 'builtin',
    connector_id: null,
    server: null,
    mcp_tool_name: null,
    description,
    parameters,
    input_schema: parameters,
    annotations,
    status: 'available',
    reason: null,
    is_blocked: false,
    last_seen_at: now,
    hash: definitionHash(builtin.name, description, parameters, annotations),
  }
}

function listed(
  server: KnownServer,
  tools: readonly McpTool[],
  policy: Pick<ToolboxPolicy, 'admit'>,
  now: string,
): Candidate[] {
  let bytes = 0
  return tools
    .filter(({ name }) => isOffered(server.connector, name))
    .map((tool, i) => {
      const candidate = mcpTool(server, tool, policy, now)
      bytes += JSON.stringify(candidate.parameters).length + candidate.description.length
      if (i < MOST_TOOLS && bytes <= MOST_LIST_BYTES) return candidate
      const reason = `The server lists more than ${MOST_TOOLS} tools or ${MOST_LIST_BYTES} bytes of them; this one is beyond.`
      return undeclarable(candidate, reason)
    })
}

function mcpTool(
  server: KnownServer,
  tool: McpTool,
  policy: Pick<ToolboxPolicy, 'admit'>,
  now: string,
): Candidate {
  const { connector } = server
  const canonical = `${server.server}.${tool.name}`
  const description = visibleText(tool.description ?? tool.title ?? '', DESCRIPTION_BYTES)
  const annotations = tool.annotations ?? {}
  const hash = definitionHash(tool.name, tool.description ?? '', tool.inputSchema, annotations)
  const schema = normalise(tool.inputSchema)
  const pinned = server.pins.get(tool.name)
  const isChanged = pinned !== undefined && pinned !== hash
  const candidate: Candidate = {
    canonical_name: canonical,
    exposed_name: exposedName(canonical),
    source: 'mcp',
    connector_id: connector.id,
    server: server.server,
    mcp_tool_name: tool.name,
    description,
    parameters: 'schema' in schema ? schema.schema : { type: 'object', properties: {} },
    input_schema: tool.inputSchema,
    annotations,
    status: isChanged ? 'changed' : server.isLive ? 'available' : 'unavailable',
    reason: isChanged ? changedReason(connector) : server.isLive ? null : server.reason,
    is_blocked: isChanged && connector.pin === 'block',
    last_seen_at: server.isLive ? now : null,
    hash,
  }
  const admitted = policy.admit(connector, tool.name)
  if (!admitted.ok) return undeclarable(candidate, admitted.reason)
  return 'undeclarable' in schema ? undeclarable(candidate, schema.undeclarable) : candidate
}

const changedReason = ({ pin, id }: Connector): string =>
  pin === 'block'
    ? `Its definition changed since it was first used; it is blocked until it is accepted (POST /v1/connectors/${id}/tools/{tool}/accept).`
    : 'Its definition changed since it was first used.'

const undeclarable = (tool: Candidate, reason: string): Candidate => ({
  ...tool,
  status: 'undeclarable',
  reason,
})

/** A server that was never heard since: its tools of the last revision stay in their places. */
const remembered = (server: KnownServer, before: readonly RegistryTool[]): Candidate[] =>
  before
    .filter((tool) => tool.connector_id === server.connector.id && tool.server === server.server)
    .map((tool) => ({ ...tool, status: 'unavailable', reason: server.reason, last_seen_at: null }))

/** Two names may be exposed alike after cutting: the earlier keeps it, the later is left out with a reason. */
function withoutCollisions(tools: RegistryTool[]): RegistryTool[] {
  const taken = new Map<string, string>()
  return tools.map((tool) => {
    const first = taken.get(tool.exposed_name)
    if (first === undefined) {
      taken.set(tool.exposed_name, tool.canonical_name)
      return tool
    }
    return {
      ...tool,
      status: 'undeclarable',
      reason: `Its exposed name ${tool.exposed_name} is that of ${first}.`,
    }
  })
}

/** A definition's identity: what the server says of the tool, and nothing of where it was seen. */
export const definitionHash = (
  name: string,
  description: string,
  schema: unknown,
  annotations: unknown,
): string => sha256(canonicalJson({ name, description, schema, annotations }))

/** Whether the connector's own lists let a tool through: named by `allow_tools` if there are any, not by `deny_tools`. */
export function isOffered({ allow_tools, deny_tools }: Connector, tool: string): boolean {
  const isAllowed = allow_tools.length === 0 || allow_tools.some((glob) => matches(glob, tool))
  return isAllowed && !deny_tools.some((glob) => matches(glob, tool))
}

/** `*` stands for any run of characters; everything else for itself. */
function matches(glob: string, name: string): boolean {
  const pattern = glob.split('*').map((piece) => piece.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'))
  return new RegExp(`^${pattern.join('.*')}$`, 's').test(name)
}
