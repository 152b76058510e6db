/** Connectors, and the tools that sessions have of them. */
import type { McpAnnotations } from '../../mcp/contract.ts'
import type { JsonSchema } from '../../provider.ts'
import type { AuditEntry } from './access.ts'
import type { Claims, Page, PageRequest, Scope } from './scope.ts'

/** An MCP server as its owner, or the configuration, named it. */
export interface Connector {
  id: string
  owner: string
  name: string
  origin: 'api' | 'config'
  transport: 'streamable_http' | 'sse' | 'stdio'
  url: string | null
  /** Of `stdio`; the program's variables are sealed with the secret */
  command: string | null
  args: string[]
  auth: { type: 'none' | 'bearer' | 'oauth' }
  mode: 'strict' | 'dynamic'
  default_tool_config: { max_instances: number; timeout: string }
  allow_tools: string[]
  deny_tools: string[]
  require_approval: 'never' | 'always' | 'destructive'
  trust_annotations: boolean
  pin: 'warn' | 'block'
  /** headers, env, bearer and OAuth tokens, sealed by the vault; null when there are none */
  secret: Uint8Array | null
  /** Grows with each change: part of the connection pool's key */
  config_revision: number
  created_at: string
  updated_at: string
}
export type NewConnector = Omit<Connector, 'config_revision' | 'created_at' | 'updated_at'>
/** A connector in a session; `alias` stands in for its name there. */
export interface Binding {
  connector: Connector
  alias: string | null
  /** Tools that were switched off, by the connector's own names for them, whether or not it lists them now */
  off: string[]
}

/** One tool of a session, as its registry row keeps it. */
export interface RegistryTool {
  canonical_name: string
  exposed_name: string
  source: 'mcp' | 'builtin'
  connector_id: string | null
  /** The name that canonical names start with: the alias, else the connector's name */
  server: string | null
  mcp_tool_name: string | null
  description: string
  /** Clean canonical schema, before any provider's profile */
  parameters: JsonSchema
  /** The server's own schema, for validation of arguments */
  input_schema: unknown
  annotations: McpAnnotations
  enabled: boolean
  status: 'available' | 'unavailable' | 'changed' | 'undeclarable'
  reason: string | null
  /** The tool's definition changed, and the connector's policy blocks the tool until that is accepted */
  is_blocked: boolean
  last_seen_at: string | null
  /** Hash of name, description, schema, annotations */
  hash: string
  /** Place in the declarations; grows only */
  order: number
}
/** A session's tools; each change of them is one `revision` more. */
export interface RegistryRow {
  session_id: string
  revision: number
  updated_at: string
  tools: RegistryTool[]
}
/** What sessions' registries are made from, all of one moment. */
export interface RegistryGrounds {
  /**
   * One for each of the sessions that exist; `registry` is null if the caller has it, `age_ms` how long ago it was
   * written
   */
  sessions: { session_id: string; registry: RegistryRow | null; age_ms: number; bindings: Binding[] }[]
  /** Accepted definitions of the connectors that they bind */
  pins: { connector_id: string; tool: string; hash: string }[]
}
/** A registry's next revision. */
export interface RegistryChange {
  session_id: string
  /** The revision that it follows */
  expected: number
  tools: RegistryTool[]
}
export interface Registry {
  /** Throws session_not_found. */
  get(session: string): Promise<RegistryRow>
  /** `revision`: of the registry that the caller has; -1: none. */
  grounds(known: readonly { session_id: string; revision: number }[]): Promise<RegistryGrounds>
  /**
   * Compares and swaps by revision; no session may be named twice. Returns the sessions that were written, when, and
   * the turn that runs or waits in each; if another change came first, the session is missing.
   */
  put(
    changes: readonly RegistryChange[],
  ): Promise<(Pick<RegistryRow, 'session_id' | 'updated_at'> & { turn_id: string | null })[]>
}
/** A tool's accepted definition, and its hash. */
export interface Pin {
  tool: string
  hash: string
  definition: unknown
}
export interface Connectors extends Claims<Connector> {
  create(connector: NewConnector, entry?: AuditEntry): Promise<Connector | 'name_taken'>
  get(scope: Scope, id: string): Promise<Connector | null>
  /** By id or name, the owner's own before the configuration's. */
  find(of: Pick<Scope, 'owner'>, idOrName: string): Promise<Connector | null>
  list(scope: Scope, page: PageRequest): Promise<Page<Connector>>
  /**
   * Changes a connector as it was read: null if it is gone, or it or its secret was written since. Neither this nor
   * `delete` touches a connector of the configuration: only syncConfig does. `name_beside`: a session that binds the
   * connector without an alias has another server of its new name.
   */
  update(
    scope: Scope,
    read: Pick<Connector, 'id' | 'config_revision' | 'secret'>,
    patch: Partial<NewConnector>,
    entry?: AuditEntry,
  ): Promise<Connector | null | 'name_taken' | 'name_beside'>
  delete(scope: Scope, id: string, entry?: AuditEntry): Promise<boolean>
  /**
   * Stores a renewed login, which is not a change of the connector; false when the connector or its secret was written
   * since it was read.
   */
  keep(read: Pick<Connector, 'id' | 'config_revision' | 'secret'>, secret: Uint8Array): Promise<boolean>
  /**
   * Makes the configuration's connectors equal to this list, by name; returns them with their ids. A name
   * that is known keeps its row's id, whatever id comes with it: derive the id from the name, since a
   * secret is sealed under it. A secret alone, being sealed anew each time, does not move the revision.
   */
  syncConfig(connectors: NewConnector[]): Promise<Connector[]>
  /** What syncConfig would return now. Nothing is written. */
  planConfig(connectors: NewConnector[]): Promise<Connector[]>
  bindings(session: string): Promise<Binding[]>
  /** The same bindings for people: newest first, in pages. */
  listBound(session: string, page: PageRequest): Promise<Page<Pick<Binding, 'connector' | 'alias'>>>
  /**
   * False, and nothing is bound, if another server of the session has the name: the names of their tools would collide.
   */
  bind(session: string, connector: string, alias: string | null): Promise<boolean>
  unbind(session: string, connector: string): Promise<boolean>
  /** Notes that a tool of a bound connector is switched on or off. */
  switchTool(session: string, connector: string, tool: string, isOn: boolean): Promise<void>
  /** Sessions that bind a connector, the most recently used first. */
  sessionsOf(connector: string, limit: number): Promise<string[]>
  /**
   * Keeps the last known tool list of a connection key, so that a cold start has one; deletes lists of the connector's
   * former revisions.
   */
  saveList(key: string, connector: string, list: unknown): Promise<void>
  /** Null: no list is kept. */
  loadList(key: string): Promise<unknown>
  /** Keeps definitions that are met for the first time; an accepted one stays. Returns the tools that were new. */
  pinFirst(connector: string, tools: readonly Pin[]): Promise<string[]>
  /** The accepted definitions of these tools, as far as there are any. */
  pins(connector: string, tools: readonly string[]): Promise<Pin[]>
  /**
   * Accepts a definition; the connector's `updated_at` moves, so that sessions that bind the connector take the
   * definition over.
   */
  pin(
    connector: string,
    tool: string,
    hash: string,
    definition: unknown,
    by: string,
    entry?: AuditEntry,
  ): Promise<void>
}
