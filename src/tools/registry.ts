/**
 * The session's tool registry as a pure function: from what it was, what the bound servers list now, and the operator's
 * rules, to what it is next. Effects are in registries.ts.
 */
import { isDeepStrictEqual } from 'node:util'
import type { ToolsDelta } from '../chat/event.ts'
import { exposedName } from '../chat/names.ts'
import type { McpTool, ToolProblem } from '../mcp/contract.ts'
import type { JsonSchema } from '../provider.ts'
import type { Connector, RegistryTool } from '../store/store.ts'
import { inSlices } from '../within.ts'
import type { Builtin } from './builtin.ts'
import { definitionOf, hashOf, schemaOf } from './definition.ts'
import { offered } from './offered.ts'
import type { Normalised } from './schema/normalise.ts'

/** A bound server and what is known of it. */
export interface KnownServer {
  connector: Connector
  /** The alias, else the connector's name: canonical names start with it */
  server: string
  /** The last list seen; null: none was */
  tools: readonly McpTool[] | null
  /** When that list came, RFC 3339 */
  seen_at: string | null
  /** The tools that were left out of that list */
  left_out: readonly ToolProblem[]
  /**
   * `live`: the list is the present one. `away`: the server cannot be reached. `pending`: nobody knows yet, so its
   * tools stay as the registry has them; if the registry has none of them, the last list's come in.
   */
  state: 'live' | 'away' | 'pending'
  /** Why it is not live, in words */
  reason: string | null
  /** Accepted definition hashes by tool; a tool without one is trusted on first use */
  pins: ReadonlyMap<string, string>
  /** The server's own names of its tools that were switched off */
  off: readonly string[]
  /** Why the operator's rules refuse the tool (ToolboxPolicy.admit); null: they admit it */
  refusalOf(tool: string): string | null
}

/** What became of the tools between two revisions, by canonical name. */
type Difference = Omit<ToolsDelta, 'tools_revision'>

/** A session's tools after a change, and the change itself. */
export interface NextRegistry extends Difference {
  tools: RegistryTool[]
}

/**
 * Limits for one server. The number of tools that a model gets from all servers has only its path's limit (api.md
 * "Names").
 */
const MOST_LIST_BYTES = 512 * 1024
/** … and for all servers of a session: no model reads more, and each revision is written as a whole. */
const MOST_BYTES = 4 * 1024 * 1024
const MOST_LEFT_OUT = 256

type Candidate = Omit<RegistryTool, 'order' | 'enabled'>

/**
 * `now` is RFC 3339. Order: tools that stay keep their places; those that are new, or come back, are appended by name.
 * A definition that did not change keeps its bytes, so that the declarations before and after are the same.
 */
export async function nextRegistry(
  before: readonly RegistryTool[],
  servers: readonly KnownServer[],
  builtins: readonly Builtin[],
  now: string,
): Promise<NextRegistry> {
  const known = new Map(before.map((tool) => [tool.canonical_name, tool]))
  const candidates = new Map<string, Candidate>()
  const room = { bytes: MOST_BYTES }
  const add = (tools: readonly Candidate[]) => {
    for (const tool of tools) candidates.set(tool.canonical_name, tool)
  }
  add(builtins.map((builtin) => builtinTool(builtin, now)))
  for (const server of servers) add(await toolsOf(server, before, room))
  // A tool's switch belongs to its server. The tool may have been here before, until its server dropped it, or under
  // its server's former name.
  const off = new Set([
    ...servers.flatMap((server) => server.off.map((name) => ownKey(server.connector.id, name))),
    ...before.flatMap((one) => (one.enabled ? [] : ownKey(one.connector_id, one.mcp_tool_name))),
  ])
  const isOff = ({ connector_id, mcp_tool_name: name }: Candidate) =>
    name !== null && off.has(ownKey(connector_id, name))
  const stay = await inSlices(before, (tool) => {
    const next = candidates.get(tool.canonical_name)
    if (!next) return []
    const isSame = next.connector_id === tool.connector_id
    return [{ ...merged(tool, next), enabled: isSame ? tool.enabled : !isOff(next) }]
  })
  const stays = stay.flat()
  const fresh = [...candidates.values()]
    .filter(({ canonical_name }) => !known.has(canonical_name))
    .map((tool) => ({ ...tool, enabled: !isOff(tool), order: 0 }))
  const isBack = (tool: RegistryTool) => isDeclarable(tool) && !isDeclarable(known.get(tool.canonical_name))
  const joining = [...stays.filter(isBack), ...fresh]
  const tools = withoutCollisions([...stays.filter((tool) => !isBack(tool)), ...appended(before, joining)])
  return { tools, ...difference(before, tools) }
}

/** A tool by its server and the name that it has there. */
const ownKey = (connector: string | null, tool: string | null): string => `${connector} ${tool}`

/** A server's tools for the registry: from its list, or as the registry knew them before. */
async function toolsOf(
  server: KnownServer,
  before: readonly RegistryTool[],
  room: Room,
): Promise<Candidate[]> {
  const own = before.filter((tool) => tool.connector_id === server.connector.id)
  const isKept = server.tools === null || (server.state === 'pending' && own.length > 0)
  return isKept ? remembered(server, own) : listed(server, server.tools ?? [], room)
}

export function difference(before: readonly RegistryTool[], after: readonly RegistryTool[]): Difference {
  const known = new Map(before.map((tool) => [tool.canonical_name, tool]))
  const there = new Set(after.map((tool) => tool.canonical_name))
  const namesOf = (tools: readonly RegistryTool[]) => tools.map((tool) => tool.canonical_name).sort()
  return {
    added: namesOf(after.filter((tool) => !known.has(tool.canonical_name))),
    removed: namesOf(before.filter((tool) => !there.has(tool.canonical_name))),
    changed: namesOf(after.filter((tool) => hasChanged(known.get(tool.canonical_name), tool))),
  }
}

/** Whether anything changed: only then is there a new revision. */
export const hasMoved = ({ added, removed, changed }: Difference): boolean =>
  added.length + removed.length + changed.length > 0

/**
 * The registry with one of its tools switched on or off. A tool that comes back is declared after the others, so that
 * the declarations that the model has seen stay in place.
 */
export function switched(tools: readonly RegistryTool[], tool: RegistryTool, enabled: boolean): NextRegistry {
  const next = enabled
    ? [...tools.filter((one) => one !== tool), ...appended(tools, [{ ...tool, enabled }])]
    : tools.map((one) => (one === tool ? { ...one, enabled } : one))
  return { tools: next, ...difference(tools, next) }
}

/** Whether a model may get it, as far as the registry knows. */
export const isDeclarable = (tool: RegistryTool | undefined): boolean =>
  tool?.enabled === true && tool.status !== 'undeclarable' && !tool.is_blocked

/** These tools with places after all others, by name: all that was declared before keeps its place. */
function appended(before: readonly RegistryTool[], joining: readonly RegistryTool[]): RegistryTool[] {
  const last = before.reduce((most, { order }) => Math.max(most, order), 0)
  return [...joining]
    .sort((a, b) => (a.canonical_name < b.canonical_name ? -1 : 1))
    .map((tool, i) => ({ ...tool, order: last + 1 + i }))
}

const merged = (before: RegistryTool, next: Candidate): Omit<RegistryTool, 'enabled'> => ({
  ...next,
  ...bytesKept(before, next),
  order: before.order,
  last_seen_at: next.last_seen_at ?? before.last_seen_at,
})

/** What prompt caches have of a tool. A schema that differs only in its order stays as it was declared. */
function bytesKept(before: RegistryTool, next: Candidate): Partial<Candidate> {
  const { parameters } = before
  if (before.hash === next.hash && !isPlaceholder(before)) return bytesOf(before)
  return isDeepStrictEqual(unordered(parameters), unordered(next.parameters)) ? { parameters } : {}
}

/**
 * A schema without the order of its required names, which says nothing: FastMCP may list them in another one after each
 * start (PrefectHQ/fastmcp#4565).
 */
const unordered = (schema: JsonSchema): unknown =>
  JSON.parse(
    JSON.stringify(schema, (key, value) =>
      key === 'required' && Array.isArray(value) ? [...value].sort() : value,
    ),
  )

const bytesOf = ({ description, parameters, input_schema, annotations }: RegistryTool) => ({
  description,
  parameters,
  input_schema,
  annotations,
})

/** Stands in for a schema that was not worked out. A tool without properties may have it as its real one. */
const ANY = { type: 'object', properties: {} }
/** Whether the tool has ANY for its schema. */
const isPlaceholder = ({ parameters }: Pick<RegistryTool, 'parameters'>): boolean =>
  // The cheaper check first: it is made for thousands of tools at each revision.
  Object.keys(parameters).length === 2 && isDeepStrictEqual(parameters, ANY)

const hasChanged = (before: RegistryTool | undefined, after: RegistryTool): boolean =>
  before !== undefined &&
  (before.hash !== after.hash ||
    before.connector_id !== after.connector_id ||
    isPlaceholder(before) !== isPlaceholder(after) ||
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
    hash: hashOf({ name, description, inputSchema: parameters, annotations }),
  }
}

/** In slices: a schema that is read for the first time takes a millisecond. */
async function listed(server: KnownServer, tools: readonly McpTool[], room: Room): Promise<Candidate[]> {
  const most = Math.min(MOST_LIST_BYTES, room.bytes)
  const beyond = most < MOST_LIST_BYTES ? BEYOND_ALL : BEYOND
  let bytes = 0
  // By name: the same tools stay within the limit whatever order the server lists them in.
  const mine = await offered(server.connector, tools, ({ name }) => name)
  mine.sort((a, b) => (a.name < b.name ? -1 : 1))
  const usable = await inSlices(mine, (tool) => {
    bytes += definitionOf(tool).bytes
    return mcpTool(server, tool, bytes <= most ? schemaOf(tool) : beyond)
  })
  room.bytes -= Math.min(bytes, most)
  const problems = await offered(server.connector, server.left_out, ({ tool }) => tool)
  const leftOut = problems
    .slice(0, MOST_LEFT_OUT)
    .map(({ tool: name, problem }) => mcpTool(server, { name, inputSchema: ANY }, { undeclarable: problem }))
  return [...usable, ...leftOut]
}

const BEYOND = {
  undeclarable: `The server lists more than ${MOST_LIST_BYTES} bytes of tools; this one is beyond.`,
}
const BEYOND_ALL = {
  undeclarable: `The session's servers list more than ${MOST_BYTES} bytes of tools; this one is beyond.`,
}

/** What is left of MOST_BYTES, server by server. */
interface Room {
  bytes: number
}

function mcpTool(server: KnownServer, tool: McpTool, schema: Normalised): Candidate {
  const { connector } = server
  const { hash, description } = definitionOf(tool)
  const { refusal, isChanged } = ruled(server, tool.name, hash)
  const problem = refusal ?? ('undeclarable' in schema ? schema.undeclarable : null)
  // Tools beyond the limit are kept without their texts: else each session would store the lists of a hundred servers.
  const isKept = schema !== BEYOND && schema !== BEYOND_ALL
  return {
    ...named(server, tool.name),
    source: 'mcp',
    connector_id: connector.id,
    mcp_tool_name: tool.name,
    description: isKept ? description : '',
    parameters: 'schema' in schema ? schema.schema : ANY,
    input_schema: isKept ? tool.inputSchema : ANY,
    annotations: tool.annotations ?? {},
    ...statusOf(server, isChanged, problem),
    is_blocked: isChanged && connector.pin === 'block',
    last_seen_at: server.state === 'live' ? server.seen_at : null,
    hash,
  }
}

function named(
  { server }: KnownServer,
  tool: string,
): Pick<Candidate, 'canonical_name' | 'exposed_name' | 'server'> {
  const canonical = `${server}.${tool}`
  return { canonical_name: canonical, exposed_name: exposedName(canonical), server }
}

/** What the rules say of one of the server's tools. They hold whether or not the server's list is known. */
function ruled(
  { pins, refusalOf }: KnownServer,
  tool: string,
  hash: string,
): { refusal: string | null; isChanged: boolean } {
  const pinned = pins.get(tool)
  return { refusal: refusalOf(tool), isChanged: pinned !== undefined && pinned !== hash }
}

/** What stands in a tool's way, the most lasting first. */
function statusOf(
  { connector, state, reason }: KnownServer,
  isChanged: boolean,
  problem: string | null,
): Pick<Candidate, 'status' | 'reason'> {
  if (problem !== null) return { status: 'undeclarable', reason: problem }
  if (isChanged) return { status: 'changed', reason: changedReason(connector) }
  return state === 'live' ? { status: 'available', reason: null } : { status: 'unavailable', reason }
}

const changedReason = ({ pin, id }: Connector): string =>
  pin === 'block'
    ? `Its definition is not the one that was accepted; it is blocked until it is accepted (POST /v1/connectors/${id}/tools/{tool}/accept).`
    : 'Its definition is not the one that was accepted.'

/**
 * The tools of a server that the registry has, under its present name: as they were while its state is pending, else
 * unavailable; the rules always hold.
 */
async function remembered(server: KnownServer, own: readonly RegistryTool[]): Promise<Candidate[]> {
  const { connector, state, reason } = server
  const mine = await offered(connector, own, ({ mcp_tool_name }) => mcp_tool_name ?? '')
  return mine.map((one) => {
    const name = one.mcp_tool_name ?? ''
    const tool = one.server === server.server ? one : { ...one, ...named(server, name) }
    const { refusal, isChanged } = ruled(server, name, tool.hash)
    if (refusal !== null) return { ...tool, status: 'undeclarable', reason: refusal }
    if (isChanged && connector.pin === 'block')
      return { ...tool, status: 'changed', reason: changedReason(connector), is_blocked: true }
    const isAsItWas = state === 'pending' || tool.status === 'undeclarable'
    return isAsItWas ? tool : { ...tool, status: 'unavailable', reason }
  })
}

/**
 * Exposed names may be equal once they are cut: the earlier tool keeps the name, the later is left out with a reason.
 */
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
