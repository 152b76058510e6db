/** Connectors and tools for tests, and a session's tools on doubles of store and door. */
import { pino } from 'pino'
import type { Test } from 'tap'
import { DEPLOYMENTS } from '../../providers/index.ts'
import type { ToolsDelta } from '../../src/chat/event.ts'
import { CONNECT_MS, type Mcp, McpError, type McpTool, type ToolList } from '../../src/mcp/contract.ts'
import type { Apply, ToolsMove } from '../../src/ports.ts'
import type { Deployment, DeploymentOptions } from '../../src/provider.ts'
import type {
  Binding,
  Connector,
  Pin,
  RegistryChange,
  RegistryRow,
  RegistryTool,
  Session,
} from '../../src/store/store.ts'
import type { Builtin } from '../../src/tools/builtin.ts'
import { createSessionTools, type EngineTools } from '../../src/tools/session-tools.ts'
import { connector as newConnector } from '../contracts/store-rows.ts'

export const NOW = '2026-11-21T00:00:00.000Z'

export const connector = (name: string, over: Partial<Connector> = {}): Connector => ({
  ...newConnector({ owner: 'o', admin: false }, name),
  id: `con_${name}`,
  url: 'http://127.0.0.1:1/mcp',
  allow_tools: [],
  secret: null,
  config_revision: 1,
  created_at: NOW,
  updated_at: NOW,
  ...over,
})
export const tool = (name: string, over: Partial<McpTool> = {}): McpTool => ({
  name,
  description: `Does ${name}.`,
  inputSchema: { type: 'object', properties: { a: { type: 'string' } } },
  ...over,
})
const OPEN = { admit: () => ({ ok: true as const, configured: false }) }
export const BUILTIN: Builtin = {
  name: 'look_up',
  description: 'Looks up.',
  parameters: { type: 'object', properties: {} },
  annotations: { readOnlyHint: true },
  run: async () => ({ content: [], is_error: false }),
}

export const found = (tools: readonly RegistryTool[], name: string): RegistryTool => {
  const one = tools.find(({ canonical_name }) => canonical_name === name)
  if (!one) throw new Error(`no ${name}`)
  return one
}
export const deployments: Deployment[] = DEPLOYMENTS.map(({ deployment }) => deployment)
export const OPTIONS: DeploymentOptions = {
  system_blocks: [],
  headers: {},
  dual_declarations: true,
  unstored: false,
}

interface Answering {
  tools?: McpTool[]
  /** How long the list is fresh, in milliseconds; default 5 min */
  ttlMs?: number
  error?: McpError
  /** The server answers once this settles */
  when?: Promise<unknown>
}

export function createDoor() {
  const servers = new Map<string, Answering>()
  const lists = new Map<string, ToolList>()
  const listeners = new Set<(key: string) => void>()
  const asked: string[] = []
  /** Servers that were asked although they had failed before */
  const insisted: string[] = []
  const mcp: Mcp = {
    async list({ key }, { refresh, insists, timeoutMs = CONNECT_MS.http } = {}) {
      asked.push(key)
      if (insists) insisted.push(key)
      const kept = lists.get(key)
      if (kept && !refresh) return kept
      const answer = servers.get(key) ?? { error: new McpError('unavailable', 'refused', { sent: false }) }
      let timer: NodeJS.Timeout | undefined
      const over = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new McpError('timeout', 'too slow', { sent: false })), timeoutMs)
      })
      await Promise.race([answer.when, over]).finally(() => clearTimeout(timer))
      const now = servers.get(key) ?? answer
      if (now.error || !now.tools) throw now.error ?? new McpError('unavailable', 'refused', { sent: false })
      const hash = JSON.stringify(now.tools)
      const list = {
        server: { name: key, version: '1', protocol_version: 'x' },
        tools: now.tools,
        left_out: [],
        hash,
        fetched_at: Date.now(),
        fresh_until: performance.now() + (now.ttlMs ?? 300_000),
      }
      lists.set(key, list)
      return list
    },
    isOutdated: () => false,
    cached: (key) => lists.get(key) ?? null,
    call: () => Promise.reject(new Error('not in this test')),
    status: () => ({ state: 'idle' }),
    onListChanged: (fn) => void listeners.add(fn),
    interest: () => {},
    release: () => {},
    close: async () => {},
  }
  const announce = (key: string) => {
    for (const fn of listeners) fn(key)
  }
  return { mcp, servers, asked, insisted, announce }
}

/** The few verbs of the store that session tools use, with the same meaning. */
export function createMemory() {
  const connectors = new Map<string, Connector>()
  const bindings = new Map<string, { id: string; alias: string | null; off: string[] }[]>()
  const rows = new Map<string, RegistryRow>()
  const lists = new Map<string, unknown>()
  const pins = new Map<string, { tool: string; hash: string; definition: unknown }[]>()
  const written: RegistryRow[] = []
  const never = () => Promise.reject(new Error('not in this test'))
  const store = {
    registry: {
      get: async (session: string) => {
        const row = rows.get(session) ?? { session_id: session, revision: 0, updated_at: NOW, tools: [] }
        return JSON.parse(JSON.stringify(row)) as RegistryRow
      },
      grounds: async (known: readonly { session_id: string; revision: number }[]) => ({
        sessions: await Promise.all(
          known.map(async ({ session_id, revision }) => {
            const registry = await store.registry.get(session_id)
            const isKnown = registry.revision === revision
            const bindings = await store.connectors.bindings(session_id)
            return { session_id, registry: isKnown ? null : registry, age_ms: 3_600_000, bindings }
          }),
        ),
        pins: [...pins].flatMap(([connector_id, own]) => own.map((one) => ({ connector_id, ...one }))),
      }),
      put: async (changes: readonly RegistryChange[]) => {
        const fit = changes.filter(
          ({ session_id, expected }) => expected === (rows.get(session_id)?.revision ?? 0),
        )
        for (const { session_id, expected, tools } of fit) {
          const row = { session_id, revision: expected + 1, updated_at: NOW, tools: [...tools] }
          written.push(row)
          rows.set(session_id, row)
        }
        return fit.map(({ session_id }) => ({ session_id, updated_at: NOW, turn_id: null }))
      },
    },
    connectors: {
      create: never,
      get: never,
      list: never,
      update: never,
      delete: never,
      syncConfig: never,
      planConfig: never,
      claim: never,
      keep: never,
      release: never,
      find: async (_: unknown, idOrName: string) =>
        [...connectors.values()].find(({ id, name }) => id === idOrName || name === idOrName) ?? null,
      listBound: never,
      bindings: async (session: string): Promise<Binding[]> =>
        (bindings.get(session) ?? []).flatMap(({ id, alias, off }) => {
          const one = connectors.get(id)
          return one ? [{ connector: one, alias, off }] : []
        }),
      bind: async (session: string, id: string, alias: string | null) => {
        const own = bindings.get(session) ?? []
        const nameOf = (one: { id: string; alias: string | null }) =>
          one.alias ?? connectors.get(one.id)?.name
        if (own.some((one) => one.id !== id && nameOf(one) === nameOf({ id, alias }))) return false
        const { off = [] } = own.find((one) => one.id === id) ?? {}
        bindings.set(session, [...own.filter((one) => one.id !== id), { id, alias, off }])
        return true
      },
      unbind: async (session: string, id: string) => {
        const own = bindings.get(session) ?? []
        bindings.set(
          session,
          own.filter((one) => one.id !== id),
        )
        return own.some((one) => one.id === id)
      },
      switchTool: async (session: string, id: string, name: string, isOn: boolean) => {
        for (const one of bindings.get(session) ?? []) {
          if (one.id === id) one.off = [...one.off.filter((known) => known !== name), ...(isOn ? [] : [name])]
        }
      },
      sessionsOf: async (id: string) =>
        [...bindings].filter(([, own]) => own.some((one) => one.id === id)).map(([session]) => session),
      saveList: async (key: string, _: string, list: unknown) => void lists.set(key, list),
      loadList: async (key: string) => lists.get(key) ?? null,
      pinFirst: async (id: string, tools: readonly Pin[]) => {
        const own = pins.get(id) ?? []
        const news = tools.filter(({ tool }) => !own.some((one) => one.tool === tool))
        pins.set(id, [...own, ...news])
        return news.map(({ tool }) => tool)
      },
      pins: async (id: string, tools: readonly string[]) =>
        (pins.get(id) ?? []).filter(({ tool }) => tools.includes(tool)),
      pin: async (id: string, name: string, hash: string, definition: unknown) => {
        const others = (pins.get(id) ?? []).filter((one) => one.tool !== name)
        pins.set(id, [...others, { tool: name, hash, definition }])
        const one = connectors.get(id)
        const touched = new Date(Date.parse(one?.updated_at ?? NOW) + 1).toISOString()
        if (one) connectors.set(id, { ...one, updated_at: touched })
      },
    },
    sessions: { create: never, get: never, ofTurn: never, list: never, update: never, delete: never },
  }
  return { store, connectors, rows, written }
}

export const sessionOf = (id: string): Session => ({
  id,
  owner: 'o',
  provider: 'openai',
  model: 'm',
  credential_id: null,
  instructions: '',
  settings: {},
  title: null,
  metadata: {},
  tools_revision: 0,
  active_turn_id: null,
  usage: { input_tokens: 0, output_tokens: 0, reasoning_tokens: 0, cached_tokens: 0 },
  created_at: NOW,
  updated_at: NOW,
})

export function setUp(t: Test) {
  const door = createDoor()
  const memory = createMemory()
  const said: { session: string; delta: ToolsDelta }[] = []
  /** The changes that were to take effect */
  const told: (ToolsMove & { apply: Apply })[] = []
  const waiting = new Set<() => void>()
  const [deployment] = deployments
  if (!deployment) throw new Error('no deployment')
  const create = (mcp: Mcp = door.mcp): EngineTools => {
    const tools = createSessionTools({
      store: memory.store,
      mcp,
      specFor: ({ id, config_revision, name }) => ({
        key: `${id}@${config_revision}`,
        name,
        transport: 'streamable_http',
        allowPrivate: true,
      }),
      builtins: [BUILTIN],
      policy: OPEN,
      viewOf: async () => ({ deployment, options: OPTIONS }),
      providers: ['openai', 'gemini'],
      sayToolsChanged: async (session, delta) => {
        said.push({ session, delta })
        for (const wake of waiting) wake()
      },
      takeEffect: async (_, move, apply) => {
        told.push({ ...move, apply })
        return { effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null }
      },
      log: pino({ level: 'silent' }),
    })
    t.teardown(() => tools.close())
    return tools
  }
  /** Resolves when an event fits, also a past one. */
  const heard = (fits: (session: string, delta: ToolsDelta) => boolean): Promise<void> =>
    new Promise((resolve) => {
      // Timers of the product do not keep a process alive; this timer does while the test waits.
      const alive = setInterval(() => {}, 1_000)
      const look = () => {
        if (!said.some(({ session, delta }) => fits(session, delta))) return
        waiting.delete(look)
        clearInterval(alive)
        resolve()
      }
      waiting.add(look)
      look()
    })
  const add = (name: string, answer: Answering, over: Partial<Connector> = {}) => {
    const one = connector(name, over)
    memory.connectors.set(one.id, one)
    door.servers.set(`${one.id}@${one.config_revision}`, answer)
    return one
  }
  return { ...door, ...memory, create, said, told, heard, add }
}
