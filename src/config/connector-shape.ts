/**
 * What a connector may be, in the file and over the API alike: which fields go with which transport, and what they may
 * hold.
 */
import { httpUrl } from '../addresses.ts'
import { envProblem } from '../mcp/child-env.ts'
import type { Connector } from '../store/store.ts'
import type { Problem } from '../validation.ts'

/** The schema for names of connectors and their aliases: canonical names of tools begin with one. */
export const CONNECTOR_NAME = {
  pattern: '^[a-z][a-z0-9-]{0,31}$',
  description: 'A lower-case letter, then up to 31 lower-case letters, digits or hyphens',
} as const

/**
 * A connector as a caller or the configuration asks for it; `rowOf` (src/connectors/input.ts) fills in the defaults.
 */
export interface ConnectorInput {
  name: string
  transport: Connector['transport']
  url?: string
  headers?: Record<string, string>
  command?: string
  args?: string[]
  env?: Record<string, string>
  /** The token of `bearer` may stand in the headers instead */
  auth?: {
    type: Connector['auth']['type']
    token?: string
    /** Of `oauth`: a client that the server knows already, if it lets no client register itself */
    client_id?: string
    client_secret?: string
    /** The login service's own name, if its metadata is at another address or the server names several or none */
    issuer?: string
    /** Scopes to ask for, instead of those that the server names; separated by spaces */
    scope?: string
  }
  mode?: Connector['mode']
  default_tool_config?: { max_instances?: number; timeout?: string }
  allow_tools?: string[]
  deny_tools?: string[]
  require_approval?: Connector['require_approval']
  trust_annotations?: boolean
  pin?: Connector['pin']
}

/** A tool's limits unless somebody says otherwise (api.md section 1). */
export const DEFAULT_LIMITS = { max_instances: 5, timeout: 'PT30S' }

/** A connector's fields as they were given; at most their types were checked. */
type ConnectorShape = Partial<
  Pick<ConnectorInput, 'transport' | 'url' | 'command'> & Record<'headers' | 'args' | 'env', object>
>

/** Headers with which a connection would send no request. */
export const UNSENDABLE: ReadonlySet<string> = new Set([
  'keep-alive',
  'expect',
  'content-length',
  'transfer-encoding',
  'upgrade',
])

/** … and those that a connection to an MCP server sets itself. */
const OWN_HEADERS: ReadonlySet<string> = new Set([
  ...UNSENDABLE,
  'host',
  'connection',
  'content-type',
  'accept',
  'mcp-session-id',
  'mcp-protocol-version',
])

/** Everything that is wrong with the connector, each at its field (`headers.x-key`). */
export function shapeProblems(given: ConnectorShape): Problem[] {
  return [
    ...transportProblems(given),
    ...Object.entries(given.headers ?? {}).flatMap(([name, value]) =>
      said(`headers.${name}`, headerProblem(name, String(value), OWN_HEADERS)),
    ),
    ...Object.entries(given.env ?? {}).flatMap(([name, value]) =>
      said(`env.${name}`, envProblem(name, String(value))),
    ),
  ]
}

const said = (path: string, problem: string | null, remedy = ''): Problem[] =>
  problem === null ? [] : [{ path, problem, remedy }]

function transportProblems(given: ConnectorShape): Problem[] {
  const { transport, command, url } = given
  if (transport === undefined) return []
  const isStdio = transport === 'stdio'
  const foreign = isStdio ? (['url', 'headers'] as const) : (['command', 'args', 'env'] as const)
  const missing = `is required for transport ${transport}`
  return [
    ...foreign
      .filter((field) => given[field] !== undefined)
      .flatMap((field) => said(field, `does not belong to transport ${transport}`, 'Leave it out')),
    ...(isStdio ? said('command', command ? null : missing) : url ? urlProblems(url) : said('url', missing)),
  ]
}

function urlProblems(text: string): Problem[] {
  const url = httpUrl(text)
  if (!url) return said('url', 'must be an http or https URL', 'Write it like https://mcp.example.com/mcp')
  if (!url.username && !url.password) return []
  return said('url', 'must not hold a user name or password', 'Put them into headers')
}

/** `own`: names that the connection sets itself. */
export function headerProblem(name: string, value: string, own: ReadonlySet<string>): string | null {
  if (!isHeader(name, value)) return NO_HEADER
  return own.has(name.toLowerCase()) ? 'is for the connection alone to set' : null
}

const NO_HEADER =
  'is not a legal HTTP header: a name is letters, digits and hyphens, a value is one line of Latin-1 characters'

/** A field name (RFC 9110 section 5.1) and a value without control characters. */
const isHeader = (name: string, value: string): boolean =>
  /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/.test(name) && /^[\t\x20-\x7e\x80-\xff]*$/.test(value)
