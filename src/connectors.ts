/**
 * What callers may do with connectors. Connecting is the MCP door's work, a session's tools are src/tools/'s; both are
 * told what changed here.
 */
import type { Bus } from './bus/bus.ts'
import { newId } from './chat/ids.ts'
import type { Config } from './config/config.ts'
import type { ConnectorInput } from './config/connector-shape.ts'
import { assertLimits, assertShape, type ConnectorPatch, patched, rowOf } from './connectors/input.ts'
import { type BoundConnector, type ConnectorView, createConnectorViews } from './connectors/view.ts'
import type { ClientDocument, ConnectorLogin, ConnectorLogins } from './credentials/connector-logins.ts'
import { connectorKey } from './credentials/connector-secret.ts'
import { type LoginPage, pageOf } from './credentials/logins/page.ts'
import type { Vault } from './credentials/vault.ts'
import { BatonError, isUnavailable, refuseAt } from './errors.ts'
import { type Mcp, McpError, type McpServerInfo, type McpServerSpec, type McpTool } from './mcp/contract.ts'
import type { Caller, SessionTools } from './ports.ts'
import {
  type AuditEntry,
  type Connector,
  EVERYONE,
  type NewConnector,
  type Page,
  type PageRequest,
  type Scope,
  type Session,
  type Store,
} from './store/store.ts'
import { FOLLOWERS } from './tools/session-tools.ts'

/** The result of connecting and listing now; if it failed, `error` says why and the rest is empty. */
interface ConnectorTest {
  ok: boolean
  latency_ms: number
  server: McpServerInfo | null
  tools: McpTool[]
  error?: string
}

/** Verbs throw connector_not_found for an unknown id and another owner's, read_only for the configuration's. */
export interface Connectors {
  /** Throws invalid_request, address_not_allowed, forbidden (stdio), name_taken. */
  create(caller: Caller, input: ConnectorInput): Promise<ConnectorView>
  get(scope: Scope, id: string): Promise<ConnectorView>
  list(scope: Scope, page: PageRequest): Promise<Page<ConnectorView>>
  /** What a session binds. */
  boundTo(session: Session, page: PageRequest): Promise<Page<BoundConnector>>
  update(caller: Caller, id: string, patch: ConnectorPatch): Promise<ConnectorView>
  delete(caller: Caller, id: string): Promise<void>
  /** Connects and lists, within the connect budget; a failure of the server is an answer, not an error. */
  test(caller: Caller, id: string): Promise<ConnectorTest>
  /** Begins a login at the server. Throws forbidden, not_available, or the failure of the server's login service. */
  login(caller: Caller, id: string): Promise<ConnectorLogin>
  /** Ends a login with what the browser brings back. */
  loginPage(query: Readonly<Record<string, string>>): Promise<LoginPage>
  /** Who Baton is to login services. Throws not_found if the gateway has no https address. */
  clientDocument(): ClientDocument
  /**
   * Takes a tool's changed definition. Throws tool_not_found, and forbidden for a connector of the configuration: it
   * serves every owner, so only an admin may.
   */
  accept(caller: Caller, id: string, tool: string, hash?: string): Promise<{ tool: string; hash: string }>
}

interface ConnectorDeps {
  bus: Pick<Bus, 'publish' | 'subscribe'>
  store: Pick<Store, 'connectors'>
  vault: Pick<Vault, 'seal' | 'open'>
  config: Pick<Config, 'allowStdioConnectors' | 'toolbox'>
  /** Rejects with address_not_allowed (src/guard.ts) */
  assertUrl(url: string): Promise<void>
  mcp: Pick<Mcp, 'list' | 'status'>
  logins: ConnectorLogins
  specFor(connector: Connector): McpServerSpec
  tools: Pick<SessionTools, 'accept' | 'connectorChanged' | 'letGo' | 'list'>
}

export function createConnectors(deps: ConnectorDeps): Connectors {
  const { store, bus, vault, tools } = deps
  const { view, boundTo } = createConnectorViews(deps)
  bus.subscribe('connectors', tools.letGo)

  /** On every replica. One that the message does not reach keeps the connection for some minutes after its last use. */
  function letGo(connector: Connector): void {
    const key = connectorKey(connector)
    tools.letGo(key)
    void bus.publish('connectors', key)
  }

  async function row(scope: Scope, id: string): Promise<Connector> {
    const found = await store.connectors.get(scope, id)
    if (found) return found
    throw notFound(id)
  }

  async function writable(scope: Scope, id: string): Promise<Connector> {
    const found = await row(scope, id)
    if (found.origin === 'api') return found
    throw new BatonError(
      'read_only',
      `Connector ${found.name} comes from the configuration; change it there.`,
    )
  }

  /**
   * After a write has failed: perhaps only the store's answer was lost, and a repeat knows nothing of `before`. If that
   * is still stored, its connection must not be let go: it would be made anew for each call.
   */
  const ifChanged = (before: Connector, follow: () => unknown) => async (thrown: unknown) => {
    const now = await store.connectors.get(EVERYONE, before.id)
    if (now?.config_revision !== before.config_revision) await follow()
    throw thrown
  }

  function assertNotConfigured(name: string): void {
    if (deps.config.toolbox.mcps.some((mcp) => mcp.name === name)) throw taken(name)
  }

  /** `given`: what of it is given now. An address that is stored is checked whenever it is asked for something. */
  async function check(input: ConnectorInput, given: ConnectorPatch): Promise<void> {
    assertShape(input, given)
    if (input.transport === 'stdio' && !deps.config.allowStdioConnectors) {
      throw new BatonError(
        'forbidden',
        'Connectors that start programs are off. The operator can allow them with BATON_ALLOW_STDIO_CONNECTORS=true.',
        { param: 'transport' },
      )
    }
    if (given.url !== undefined) await deps.assertUrl(given.url).catch(refuseAt('url'))
  }

  async function create(caller: Caller, input: ConnectorInput): Promise<ConnectorView> {
    assertNotConfigured(input.name)
    assertLimits(input)
    await check(input, input)
    const { owner } = caller
    const made = rowOf(vault, { id: newId('con'), owner, origin: 'api' }, input)
    const connector = await store.connectors.create(made, entryOf(caller, 'connector.create', made))
    if (connector === 'name_taken') throw taken(input.name)
    return view(caller, connector)
  }

  async function update(caller: Caller, id: string, patch: ConnectorPatch): Promise<ConnectorView> {
    const before = await writable(caller, id)
    const { input, login } = patched(vault, before, patch)
    // A connector that was there before the configuration took its name keeps the name.
    if (input.name !== before.name) assertNotConfigured(input.name)
    assertLimits(patch)
    await check(input, patch)
    const after = rowOf(vault, before, input, login)
    const entry = entryOf(caller, 'connector.update', after)
    const connector = await store.connectors
      .update(caller, before, after, entry)
      .catch(ifChanged(before, () => letGo(before)))
    // Another change or a renewed login came between: this patch goes on top of it.
    if (!connector) return update(caller, id, patch)
    if (connector === 'name_taken') throw taken(input.name)
    if (connector === 'name_beside') throw beside(input.name)
    letGo(before)
    await tools.connectorChanged(connector)
    return view(caller, connector)
  }

  async function remove(caller: Caller, id: string): Promise<void> {
    const connector = await writable(caller, id)
    const sessions = await store.connectors.sessionsOf(id, FOLLOWERS)
    const entry = entryOf(caller, 'connector.delete', connector)
    const follow = () => {
      letGo(connector)
      return tools.connectorChanged(connector, sessions)
    }
    const isDeleted = await store.connectors.delete(caller, id, entry).catch(ifChanged(connector, follow))
    await follow()
    if (!isDeleted) throw notFound(id)
  }

  function loggedIn(connector: Connector): Promise<void> {
    // The login is a revision of its own: the one before has the former login.
    letGo({ ...connector, config_revision: connector.config_revision - 1 })
    return tools.connectorChanged(connector)
  }

  async function test(caller: Caller, id: string): Promise<ConnectorTest> {
    const connector = await row(caller, id)
    const from = performance.now()
    const took = () => Math.round(performance.now() - from)
    try {
      const found = await deps.mcp.list(deps.specFor(connector), { refresh: true, insists: true })
      return { ok: true, latency_ms: took(), server: found.server, tools: found.tools }
    } catch (error) {
      if (!(error instanceof McpError) && !(error instanceof BatonError)) throw error
      // If Baton's own store is away, that says nothing about the server.
      if (isUnavailable(error.cause)) throw error.cause
      if (isUnavailable(error)) throw error
      return { ok: false, latency_ms: took(), server: null, tools: [], error: error.message }
    }
  }

  return {
    create,
    update,
    test,
    boundTo,
    delete: remove,
    login: async (caller, id) => deps.logins.begin(caller, await row(caller, id)),
    loginPage: (query) => pageOf(deps.logins.finish(query).then(loggedIn)),
    clientDocument: deps.logins.clientDocument,
    get: async (scope, id) => view(scope, await row(scope, id)),
    async list(scope, page) {
      const { data, next_cursor } = await store.connectors.list(scope, page)
      return { data: data.map((connector) => view(scope, connector)), next_cursor }
    },
    async accept(caller, id, tool, hash) {
      const connector = await row(caller, id)
      if (connector.origin === 'config' && !caller.admin) {
        const words = `Connector ${connector.name} serves every owner; an admin accepts its definitions.`
        throw new BatonError('forbidden', words)
      }
      return tools.accept(caller, connector, tool, hash)
    },
  }
}

const entryOf = ({ owner }: Caller, act: string, { id, name, transport, url }: NewConnector): AuditEntry => ({
  owner,
  act,
  subject: id,
  // Some servers take their key in the query.
  details: { name, transport, url: url?.replace(/[?#].*/s, '') ?? null },
})

const taken = (name: string) =>
  new BatonError('name_taken', `A connector named ${name} exists already.`, { param: 'name' })

const beside = (name: string) =>
  new BatonError(
    'name_taken',
    `A session that binds this connector has another server named ${name}; bind one of them with an alias.`,
    { param: 'name' },
  )

const notFound = (id: string) => new BatonError('connector_not_found', `No connector has the id ${id}.`)
