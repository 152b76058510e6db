/**
 * The HTTP side for tests: the real app on a real store, with doubles for the parts behind it. Each answer
 * to an injected request is held against the OpenAPI document: undocumented statuses and fields fail.
 */
import { pino } from 'pino'
import { DEPLOYMENTS, LOGINS } from '../../providers/index.ts'
import type { App } from '../../routes/app.ts'
import { createAuth } from '../../src/auth.ts'
import { newId } from '../../src/chat/ids.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { PROVIDER_IDS } from '../../src/config/settings.ts'
import { createConnectors } from '../../src/connectors.ts'
import { createConnectorLogins } from '../../src/credentials/connector-logins.ts'
import { connectorSpec } from '../../src/credentials/connector-secret.ts'
import { createCredentials } from '../../src/credentials/credentials.ts'
import { createVendors } from '../../src/credentials/logins/vendors.ts'
import { createLogins } from '../../src/credentials/logins.ts'
import { createVault } from '../../src/credentials/vault.ts'
import { BatonError } from '../../src/errors.ts'
import { buildHttp, type HttpDeps } from '../../src/http.ts'
import type { Mcp, ToolList } from '../../src/mcp/contract.ts'
import { McpError } from '../../src/mcp/contract.ts'
import { createMcpOAuth } from '../../src/mcp/oauth.ts'
import type { Caller, SessionTools, StartTurn, ToolsChange, Turns } from '../../src/ports.ts'
import { createSessions } from '../../src/sessions.ts'
import type { Session, Store, Turn } from '../../src/store/store.ts'
import { createMetrics } from '../../src/telemetry.ts'
import { type Answer, calling, documented } from './document.ts'
import { fakeBus } from './fake-bus.ts'

export const vault = createVault([{ id: 'k1', key: new Uint8Array(32).fill(1) }])

// ---------------------------------------------------------------- doubles

/** An engine that stores turns and runs none; a test ends them. */
function fakeTurns(store: Store) {
  const calls: { verb: string; args: unknown[] }[] = []
  const state = { refuse: null as BatonError | null, seen: null as StartTurn | null }
  const find = async (caller: Caller, id: string): Promise<Turn> => {
    const turn = await store.turns.get(caller, id)
    if (turn) return turn
    throw new BatonError('turn_not_found', `No turn ${id} exists.`)
  }
  const turns: Turns = {
    async start(caller, session, request) {
      state.seen = request
      if (state.refuse) throw state.refuse
      const id = newId('turn')
      const { on_busy, ...turn } = request
      const opened = await store.turns.open(caller, {
        turn: { id, session_id: session, ...turn },
        message: { id: newId('msg') },
        on_busy: on_busy === 'enqueue' ? 'enqueue' : 'reject',
        queue_limit: 16,
        lease: { owner: 'test', seconds: 600 },
      })
      if (!opened) throw new BatonError('session_not_found', `No session ${session} exists.`)
      if (opened.kind === 'busy') {
        const details = { active_turn_id: opened.active_turn_id }
        throw new BatonError('turn_in_progress', 'A turn is running.', { details })
      }
      if (opened.kind === 'mismatch') throw new BatonError('idempotency_mismatch', 'Another body.')
      if (opened.kind === 'queue_full') throw new BatonError('queue_full', 'Too many.')
      const outcome = opened.kind === 'running' ? 'created' : opened.kind
      return { turn: opened.turn, outcome }
    },
    async wait(caller, known, seconds, signal) {
      const id = typeof known === 'string' ? known : known.id
      calls.push({ verb: 'wait', args: [id, seconds] })
      if (seconds === 0) return find(caller, id)
      for (;;) {
        const turn = await find(caller, id)
        if (turn.ended_at !== null || turn.state === 'awaiting_input' || signal.aborted) return turn
        await new Promise((resolve) => setTimeout(resolve, 5))
      }
    },
    async cancel(caller, id, waits) {
      calls.push({ verb: 'cancel', args: [id, waits !== null] })
      return find(caller, id)
    },
    async restart(caller, id) {
      await find(caller, id)
      throw new BatonError('not_restartable', 'No model call is in flight.')
    },
    async decide(caller, id, call, decision) {
      calls.push({ verb: 'decide', args: [id, call, decision] })
      return find(caller, id)
    },
    async answer(caller, id, call) {
      await find(caller, id)
      throw new BatonError('not_awaiting', `Tool call ${call} is not asking for input.`)
    },
    async render(_, session, request) {
      calls.push({ verb: 'render', args: [session, request] })
      if (state.refuse) throw state.refuse
      return {
        provider: request.provider ?? 'openai',
        method: 'POST',
        url: 'https://api.test/v1',
        headers: { authorization: '***' },
        body: {},
        tools_revision: 0,
        notes: [],
      }
    },
  }
  return { turns, calls, state }
}

const NO_CHANGE: ToolsChange = {
  tools_revision: 1,
  added: [],
  removed: [],
  changed: [],
  effective: { turn_id: null, from: 'next_turn' },
  restarted_turn_id: null,
  prompt_cache: 'kept',
}

function fakeTools(store: Store) {
  const calls: { verb: string; args: unknown[] }[] = []
  const found = async (session: Session, idOrName: string) => {
    const connector = await store.connectors.find(session, idOrName)
    if (connector) return connector
    throw new BatonError('connector_not_found', `No connector ${idOrName} exists.`)
  }
  const noted = (verb: string, ...args: unknown[]) => {
    calls.push({ verb, args })
    return NO_CHANGE
  }
  const tools: SessionTools = {
    async open(session, connectors) {
      for (const { id } of connectors) await store.connectors.bind(session.id, id, null)
      noted(
        'open',
        session.id,
        connectors.map(({ name }) => name),
      )
    },
    async list(_, provider) {
      const tool = {
        canonical_name: 'files.read',
        provider_exposed_name: Object.fromEntries(PROVIDER_IDS.map((id) => [id, 'files__read'])),
        connector_id: null,
        mcp_tool_name: 'read',
        server: 'files',
        description: '',
        parameters: { type: 'object' },
        enabled: true,
        source: 'mcp' as const,
        last_seen_at: null,
        status: 'available' as const,
      }
      const list = { revision: 1, updated_at: new Date(0).toISOString(), tools: [tool] }
      return provider === null ? list : { ...list, declarations: [{ name: 'files__read' }] }
    },
    async bind(session, idOrName, apply, alias) {
      const connector = await found(session, idOrName)
      await store.connectors.bind(session.id, connector.id, alias)
      return noted('bind', connector.name, apply, alias)
    },
    async unbind(session, idOrName, apply) {
      const connector = await found(session, idOrName)
      await store.connectors.unbind(session.id, connector.id)
      return noted('unbind', connector.name, apply)
    },
    async setEnabled(_, tool, enabled, apply) {
      if (tool === 'no.such') throw new BatonError('tool_not_found', 'No such tool.')
      return noted('setEnabled', tool, enabled, apply)
    },
    refresh: async (_, apply) => noted('refresh', apply),
    async accept(_, connector, tool, hash) {
      noted('accept', connector.name, tool, hash)
      return { tool, hash: 'abc' }
    },
    async connectorChanged(connector, sessions) {
      noted('changed', connector.name, sessions)
    },
    letGo: (key) => void noted('released', key),
  }
  return { tools, calls }
}

const LIST: ToolList = {
  server: { name: 'files', version: '1.0.0', protocol_version: '2025-11-25' },
  tools: [{ name: 'read', inputSchema: { type: 'object' } }],
  left_out: [],
  hash: 'h',
  fetched_at: 0,
  fresh_until: 0,
}
const fakeMcp: Pick<Mcp, 'list' | 'status'> = {
  status: () => ({ state: 'idle' }),
  async list(spec) {
    if (spec.name !== 'down') return LIST
    throw new McpError('unavailable', 'Connection refused.', { sent: false })
  },
}

interface Gateway {
  app: App
  config: Config
  store: Store
  bus: ReturnType<typeof fakeBus>
  turns: ReturnType<typeof fakeTurns>
  tools: ReturnType<typeof fakeTools>
  drain: { now: boolean }
  /** Injects, and holds the answer against the document. */
  call(method: string, url: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>
  /** Calls with this key. */
  as(key: string): (method: string, url: string, body?: unknown) => Promise<Answer>
  close(): Promise<void>
}

/** No vendor is reached from here. */
const http = {
  send: async () => {
    throw new BatonError('upstream_disconnected', 'There is no vendor here.')
  },
  close: async () => {},
}

export async function gateway(
  store: Store,
  env: Record<string, string> = {},
  extra: Partial<HttpDeps> = {},
): Promise<Gateway> {
  const { config } = loadConfig(env, '/nowhere')
  const log = pino({ level: 'silent' })
  const bus = fakeBus()
  const turns = fakeTurns(store)
  const tools = fakeTools(store)
  const auth = createAuth({ config, store, bus: bus.bus })
  const drain = { now: false }
  const vendors = createVendors(LOGINS, config)
  const credentials = createCredentials({ store, vault, config, deployments: DEPLOYMENTS, vendors })
  const assertUrl = async (url: string) => {
    if (new URL(url).hostname !== '169.254.169.254') return
    throw new BatonError('address_not_allowed', 'That address is not public.', { param: 'elsewhere' })
  }
  const refusals = (urls: readonly string[]) =>
    Promise.all(
      urls.map((url) =>
        assertUrl(url).then(
          () => null,
          (error: Error) => error,
        ),
      ),
    )
  const connectorLogins = createConnectorLogins({
    store,
    vault,
    oauth: createMcpOAuth(),
    allowPrivate: false,
    publicUrl: () => null,
    isPublic: async () => false,
  })
  const logins = createLogins({ store, vault, vendors, http, credentials, log, ownUrl: () => null })
  const connectors = createConnectors({
    store,
    bus: bus.bus,
    vault,
    config,
    assertUrl,
    mcp: fakeMcp,
    logins: connectorLogins,
    specFor: (connector) =>
      connectorSpec(connector, vault, config.connectorsAllowPrivate, connectorLogins.authFor),
    tools: tools.tools,
  })
  const app = await buildHttp({
    config,
    log,
    store,
    bus: bus.bus,
    auth,
    sessions: createSessions({ store, bus: bus.bus, credentials, config, tools: tools.tools }),
    turns: turns.turns,
    tools: tools.tools,
    connectors,
    credentials,
    rotateEncryption: async () => ({ resealed: 0, left: 0, unopened: [], key: 'new', others: ['old'] }),
    logins,
    refusals,
    metrics: createMetrics({ defaults: false }),
    isDraining: () => drain.now,
    ...extra,
  })
  await app.ready()
  let conforms: ReturnType<typeof documented> | undefined
  const call: Gateway['call'] = async (method, url, body, headers = {}) => {
    conforms ??= documented((await app.inject({ url: '/openapi.json', headers: LOCAL })).json())
    return calling(app, conforms)(method, url, body, { ...LOCAL, ...headers })
  }
  return {
    app,
    config,
    store,
    bus,
    turns,
    tools,
    drain,
    call,
    as: (key) => (method, url, body) => call(method, url, body, bearer(key)),
    async close() {
      await app.close()
      await logins.close()
      await auth.close()
    },
  }
}

const LOCAL = { host: 'localhost:8787' }
export const bearer = (key: string) => ({ authorization: `Bearer ${key}` })
