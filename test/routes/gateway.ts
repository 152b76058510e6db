/**
 * The HTTP side for tests: the real app on a real store in memory, with twins for what lies beyond it. Each
 * answer that is injected is held against the OpenAPI document: undocumented statuses and fields fail.
 */
import type { LightMyRequestResponse } from 'fastify'
import { pino } from 'pino'
import { DEPLOYMENTS, LOGINS } from '../../providers/index.ts'
import type { App } from '../../routes/app.ts'
import { type Auth, createAuth } from '../../src/auth.ts'
import type { Bus, BusEvent, LoggedEvent, ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import { createMemoryPlaces } from '../../src/bus/places.ts'
import { newId } from '../../src/chat/ids.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { PROVIDER_IDS } from '../../src/config/settings.ts'
import { createConnectors } from '../../src/connectors.ts'
import { createConnectorLogins } from '../../src/credentials/connector-logins.ts'
import { connectorSpec } from '../../src/credentials/connector-secret.ts'
import { createCredentials } from '../../src/credentials/credentials.ts'
import { createLoginTable } from '../../src/credentials/login-table.ts'
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
import { documented } from './document.ts'

export const vault = createVault([{ id: 'k1', key: new Uint8Array(32).fill(1) }])

// ---------------------------------------------------------------- twins

/** A bus whose logs a test fills; readers see what is there and what comes. */
export function fakeBus() {
  const logs = new Map<string, LoggedEvent[]>()
  const waiting = new Set<() => void>()
  const topics = new Map<string, Set<(message: string) => void>>()
  const published: [string, string][] = []
  const tallies = new Map<string, number>()
  const logOf = (session: string) => {
    const log = logs.get(session) ?? []
    logs.set(session, log)
    return log
  }
  const place = (session: string, cursor: string): number => {
    const match = /^(\w+):(\d+)$/.exec(cursor)
    if (match?.[1] === session) return Number(match[2])
    throw new BatonError('invalid_cursor', 'The cursor is malformed.', { param: 'after' })
  }
  async function* follow(session: string, options: ReadOptions, from: number): AsyncGenerator<ReadItem> {
    let next = from
    while (!options.signal.aborted) {
      const events = logOf(session)
        .slice(next)
        .filter(({ turn_id }) => options.turn === undefined || turn_id === options.turn)
      next = logOf(session).length
      if (events.length > 0) yield { events }
      else await new Promise<void>((resolve) => wake(resolve, options.signal))
    }
  }
  function wake(resolve: () => void, signal: AbortSignal): void {
    const once = () => {
      waiting.delete(once)
      signal.removeEventListener('abort', once)
      resolve()
    }
    waiting.add(once)
    signal.addEventListener('abort', once)
  }
  const bus: Bus = {
    kind: 'memory',
    places: createMemoryPlaces,
    async append(session, events: BusEvent[]) {
      const log = logOf(session)
      const cursors = events.map(({ type, turn_id, data }) => {
        log.push({ cursor: `${session}:${log.length + 1}`, type, turn_id, data })
        return `${session}:${log.length}`
      })
      for (const once of [...waiting]) once()
      return cursors
    },
    read(session, options) {
      const { after, turn } = options
      const from = after === 'now' ? logOf(session).length : after === 'start' ? 0 : place(session, after)
      return follow(session, options, turn === undefined || after !== 'now' ? from : logOf(session).length)
    },
    async pastEnd(session, turn, cursor) {
      const at = place(session, cursor)
      const end = logOf(session).findIndex(
        ({ type, turn_id }) => turn_id === turn && /^turn\.(completed|failed|cancelled)$/.test(type),
      )
      return end >= 0 && at > end
    },
    drop: async (session) => void logs.delete(session),
    async publish(topic, message) {
      published.push([topic, message])
      for (const fn of topics.get(topic) ?? []) fn(message)
    },
    subscribe(topic, fn) {
      const fns = topics.get(topic) ?? new Set()
      topics.set(topic, fns.add(fn))
      return () => void fns.delete(fn)
    },
    async tally(name) {
      tallies.set(name, (tallies.get(name) ?? 0) + 1)
      return tallies.get(name) ?? 0
    },
    ready: async () => {},
    close: async () => {},
  }
  return { bus, published, readers: () => waiting.size }
}

/** An engine that stores turns and runs none; a test ends them. */
export function fakeTurns(store: Store) {
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
        message: { id: newId('msg'), turn_id: id, role: 'user', parts: request.input },
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
    async wait(caller, id, seconds, signal) {
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

export const NO_CHANGE: ToolsChange = {
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
    connectorChanged: (connector, sessions) => void noted('changed', connector.name, sessions),
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
const fakeMcp: Pick<Mcp, 'list' | 'status' | 'release'> = {
  status: () => ({ state: 'idle' }),
  release: () => {},
  async list(spec) {
    if (spec.name !== 'down') return LIST
    throw new McpError('unavailable', 'Connection refused.', { sent: false })
  },
}

export interface Gateway {
  app: App
  auth: Auth
  config: Config
  store: Store
  bus: ReturnType<typeof fakeBus>
  turns: ReturnType<typeof fakeTurns>
  tools: ReturnType<typeof fakeTools>
  drain: { now: boolean }
  /** Injects, and holds the answer against the document. */
  call(method: string, url: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>
  close(): Promise<void>
}
export interface Answer {
  status: number
  headers: LightMyRequestResponse['headers']
  // biome-ignore lint/suspicious/noExplicitAny: the tests look into answers of every shape
  body: any
  text: string
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
  const table = createLoginTable(LOGINS, config)
  const credentials = createCredentials({ store, vault, config, deployments: DEPLOYMENTS, table })
  const assertUrl = async (url: string) => {
    if (new URL(url).hostname !== '169.254.169.254') return
    throw new BatonError('address_not_allowed', 'That address is not public.', { param: 'elsewhere' })
  }
  const connectorLogins = createConnectorLogins({
    store,
    vault,
    oauth: createMcpOAuth(),
    allowPrivate: false,
    publicUrl: () => null,
  })
  const logins = createLogins({ store, vault, table, http, credentials, log, ownUrl: () => null })
  const connectors = createConnectors({
    store,
    vault,
    config,
    assertUrl,
    mcp: fakeMcp,
    logins: connectorLogins,
    specFor: (connector) => connectorSpec(connector, vault, config.connectorsAllowPrivate),
    tools: tools.tools,
  })
  const app = await buildHttp({
    config,
    version: '9.9.9',
    log,
    store,
    bus: bus.bus,
    auth,
    sessions: createSessions({ store, bus: bus.bus, credentials, config, tools: tools.tools }),
    turns: turns.turns,
    tools: tools.tools,
    connectors,
    credentials,
    rotateEncryption: async () => ({ resealed: 0, left: 0 }),
    logins,
    assertUrl,
    metrics: createMetrics({ defaults: false }),
    isDraining: () => drain.now,
    ...extra,
  })
  await app.ready()
  let conforms: ReturnType<typeof documented> | undefined
  return {
    app,
    auth,
    config,
    store,
    bus,
    turns,
    tools,
    drain,
    async call(method, url, body, headers = {}) {
      const answer = await app.inject({
        method: method as 'GET',
        url,
        headers: { ...LOCAL, ...headers },
        ...(body === undefined ? {} : { payload: body as object }),
      })
      const isJson =
        method !== 'HEAD' && String(answer.headers['content-type'] ?? '').startsWith('application/json')
      const parsed = isJson ? answer.json() : undefined
      conforms ??= documented((await app.inject({ url: '/openapi.json', headers: LOCAL })).json())
      conforms(method, url, answer.statusCode, isJson ? parsed : undefined, answer.headers)
      return { status: answer.statusCode, headers: answer.headers, body: parsed, text: answer.body }
    },
    async close() {
      await app.close()
      await logins.close()
      await auth.close()
    },
  }
}

const LOCAL = { host: 'localhost:8787' }
