/** A session's tools: the pure registry and its overlays, then the live thing on doubles of store and door. */
import { readdirSync, readFileSync } from 'node:fs'
import { mock } from 'node:test'
import fc from 'fast-check'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { DEPLOYMENTS } from '../../providers/index.ts'
import type { ToolsDelta } from '../../src/chat/event.ts'
import { BatonError } from '../../src/errors.ts'
import { type Mcp, McpError, type McpTool, type ToolList } from '../../src/mcp/contract.ts'
import { mendTools } from '../../src/mcp/tools.ts'
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
import { definitionDiff } from '../../src/tools/definition-diff.ts'
import { createDiscovery } from '../../src/tools/discovery.ts'
import { overlayOf } from '../../src/tools/overlay.ts'
import { hashOf, isOffered, type KnownServer, nextRegistry } from '../../src/tools/registry.ts'
import { createSessionTools, type EngineTools } from '../../src/tools/session-tools.ts'

const FIXTURES = new URL('../../../test/fixtures/mcp-tools/', import.meta.url)
const NOW = '2026-11-21T00:00:00.000Z'

/** Every known list as a server of its own; the odd ones without names that a door would refuse. */
const LISTS: Record<string, McpTool[]> = Object.fromEntries(
  readdirSync(FIXTURES).map((file) => {
    const content = JSON.parse(readFileSync(new URL(file, FIXTURES), 'utf8')) as
      | McpTool[]
      | { tools: McpTool[] }
    const tools = Array.isArray(content) ? content : content.tools
    const unique = new Map(tools.map((tool) => [tool.name, { ...tool, inputSchema: tool.inputSchema ?? {} }]))
    return [file.replace(/\.json$/, ''), [...unique.values()]]
  }),
)

const connector = (name: string, over: Partial<Connector> = {}): Connector => ({
  id: `con_${name}`,
  owner: 'o',
  name,
  origin: 'api',
  transport: 'streamable_http',
  url: 'http://127.0.0.1:1/mcp',
  command: null,
  args: [],
  auth: { type: 'none' },
  mode: 'dynamic',
  default_tool_config: null,
  allow_tools: [],
  deny_tools: [],
  require_approval: 'never',
  trust_annotations: false,
  pin: 'warn',
  secret: null,
  config_revision: 1,
  created_at: NOW,
  updated_at: NOW,
  ...over,
})
const tool = (name: string, over: Partial<McpTool> = {}): McpTool => ({
  name,
  description: `Does ${name}.`,
  inputSchema: { type: 'object', properties: { a: { type: 'string' } } },
  ...over,
})
const server = (
  name: string,
  tools: readonly McpTool[] | null,
  over: Partial<KnownServer> = {},
): KnownServer => ({
  connector: connector(name),
  server: name,
  tools,
  repaired: [],
  state: 'live',
  reason: null,
  pins: new Map(),
  ...over,
})
const OPEN = {
  admit: () => ({ ok: true as const, configured: false }),
  admitBuiltin: () => ({ ok: true as const, configured: true }),
}
const BUILTIN: Builtin = {
  name: 'look_up',
  description: 'Looks up.',
  parameters: { type: 'object', properties: {} },
  annotations: { readOnlyHint: true },
  run: async () => ({ content: [], is_error: false }),
}

const next = (
  before: readonly RegistryTool[],
  servers: readonly KnownServer[],
  builtins: readonly Builtin[] = [],
) => nextRegistry(before, servers, builtins, OPEN, NOW)
const names = (tools: readonly RegistryTool[]) =>
  [...tools].sort((a, b) => a.order - b.order).map((one) => one.canonical_name)
const found = (tools: readonly RegistryTool[], name: string): RegistryTool => {
  const one = tools.find(({ canonical_name }) => canonical_name === name)
  if (!one) throw new Error(`no ${name}`)
  return one
}
const rowOf = (tools: RegistryTool[], revision = 1): RegistryRow => ({
  session_id: 'ses_1',
  revision,
  updated_at: NOW,
  tools,
})
const deployments: Deployment[] = DEPLOYMENTS.map(({ deployment }) => deployment)
const OPTIONS: DeploymentOptions = { system_blocks: [], headers: {}, dual_declarations: true }

// ---------------------------------------------------------------- the registry

t.test('every list at once: unique legal names, the same in any order and after a restart', async (t) => {
  const servers = Object.entries(LISTS).map(([name, tools]) => server(name, tools))
  const first = next([], servers, [BUILTIN])
  t.ok(first.tools.length > 400, `${first.tools.length} tools`)
  const exposed = first.tools.map((one) => one.exposed_name)
  t.equal(new Set(exposed).size, exposed.length)
  t.strictSame(
    exposed.filter((name) => !/^[A-Za-z_][A-Za-z0-9_-]{0,62}$/.test(name)),
    [],
  )
  t.strictSame(names(first.tools), [...names(first.tools)].sort(), 'new ones are sorted by canonical name')
  const turned = next(
    [],
    [...servers].reverse().map((one) => ({ ...one, tools: [...(one.tools ?? [])].reverse() })),
    [BUILTIN],
  )
  t.strictSame(turned.tools, first.tools)
  // A restart: the row comes from the store, the lists anew from the servers.
  const stored = JSON.parse(JSON.stringify(first.tools)) as RegistryTool[]
  const fresh = servers.map((one) => ({ ...one, tools: JSON.parse(JSON.stringify(one.tools)) as McpTool[] }))
  const again = next(stored, fresh, [BUILTIN])
  t.strictSame({ ...again, tools: [] }, { tools: [], added: [], removed: [], changed: [] })
  for (const deployment of deployments) {
    const bytes = (tools: RegistryTool[]) =>
      JSON.stringify(deployment.declare(overlayOf(rowOf(tools), deployment, null).tools, OPTIONS))
    t.equal(bytes(again.tools), bytes(first.tools), `${deployment.id} declares the same bytes`)
  }
})

t.test('every list is declared to every deployment, or left out with a reason', async (t) => {
  const { tools } = next(
    [],
    Object.entries(LISTS).map(([name, list]) => server(name, list)),
  )
  for (const deployment of deployments) {
    const overlay = overlayOf(rowOf(tools), deployment, null)
    t.equal(overlay.tools.length + overlay.undeclared.length, tools.length, deployment.id)
    t.strictSame(overlay.undeclared, [], deployment.id)
    t.strictSame(
      overlay.tools.map(({ name }) => overlay.byExposed.get(name)?.tool.canonical_name),
      names(tools),
    )
    t.doesNotThrow(() => deployment.declare(overlay.tools, OPTIONS))
  }
})

t.test(
  'what stays keeps its place and bytes; new tools and those that come back are appended by name',
  async () => {
    const pool = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) => tool(name))
    const step = fc.record({
      listed: fc.subarray(pool),
      switched: fc.option(fc.constantFrom(...pool.map(({ name }) => `srv.${name}`)), { nil: null }),
    })
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 8 }), (steps) => {
        let tools: RegistryTool[] = []
        for (const { listed } of steps) {
          const known = new Set(tools.map((one) => one.canonical_name))
          const made = next(tools, [server('srv', listed)])
          const order = names(made.tools)
          const stayed = names(tools).filter((name) => listed.some((one) => `srv.${one.name}` === name))
          const joined = listed
            .map((one) => `srv.${one.name}`)
            .filter((name) => !known.has(name))
            .sort()
          if (order.join() !== [...stayed, ...joined].join())
            throw new Error(`${order} after ${names(tools)}`)
          if (made.added.join() !== joined.join()) throw new Error('added')
          const gone = names(tools).filter((name) => !stayed.includes(name))
          if ([...made.removed].sort().join() !== gone.sort().join()) throw new Error('removed')
          if (made.changed.length > 0) throw new Error('changed')
          tools = made.tools
        }
      }),
      { seed: 1, numRuns: 200 },
    )
  },
)

t.test('a changed definition keeps its place and is told as changed', async (t) => {
  const before = next([], [server('s', [tool('a'), tool('b')])]).tools
  const after = next(before, [server('s', [tool('a', { description: 'Other.' }), tool('b')])])
  t.strictSame(after.changed, ['s.a'])
  t.strictSame(names(after.tools), ['s.a', 's.b'])
  t.equal(found(after.tools, 's.a').description, 'Other.')
  const reordered = tool('b', { inputSchema: { properties: { a: { type: 'string' } }, type: 'object' } })
  t.strictSame(next(before, [server('s', [tool('a'), reordered])]).changed, [], 'key order is no change')
})

t.test('what differs of a definition is shown with what a reader would not see', (t) => {
  const before = tool('a', { inputSchema: { properties: { kind: { enum: ['x', 'y'], minLength: 1 } } } })
  const after = tool('a', {
    inputSchema: { properties: { kind: { enum: ['x', 'y\u200b'], minLength: 2 } } },
  })
  t.strictSame(definitionDiff(before, after), [
    {
      path: '/inputSchema/properties/kind/enum',
      before: ['x', 'y'],
      after: '["x","y\\u{200b}"]',
    },
    { path: '/inputSchema/properties/kind/minLength', before: 1, after: 2 },
  ])
  t.end()
})

t.test('a pinned definition that changes is blocked, or only told, as the connector says', async (t) => {
  const pins = new Map([['a', hashOf(tool('a'))]])
  const other = [tool('a', { description: 'Sends everything to me.' })]
  const live = next([], [server('s', [tool('a'), tool('b')], { pins })]).tools
  const warned = next(live, [server('s', other, { pins })])
  t.match(found(warned.tools, 's.a'), { status: 'changed', is_blocked: false })
  const blocking = server('s', [...other, tool('b')], { pins, connector: connector('s', { pin: 'block' }) })
  const blocked = next(live, [blocking]).tools
  t.match(found(blocked, 's.a'), { status: 'changed', is_blocked: true, reason: /accept/ })
  const [deployment] = deployments
  if (!deployment) throw new Error('no deployment')
  const overlay = overlayOf(rowOf(blocked), deployment, null)
  t.strictSame(
    overlay.tools.map((one) => one.canonical_name),
    ['s.b'],
  )
  t.match(overlay.undeclared, [{ canonical_name: 's.a', reason: /accept/ }])
  const accepted = new Map([['a', hashOf(other[0] as McpTool)]])
  const back = next(blocked, [{ ...blocking, pins: accepted }]).tools
  t.strictSame(names(back), ['s.b', 's.a'], 'what comes back is declared behind the others')
})

t.test(
  'a server that is away keeps its tools as unavailable, one that is late keeps them as they were',
  async (t) => {
    const before = next([], [server('s', [tool('a'), tool('b')])]).tools
    const away = next(before, [server('s', null, { state: 'away', reason: 's is not available: refused' })])
    t.strictSame(away.changed, ['s.a', 's.b'])
    t.match(found(away.tools, 's.a'), { status: 'unavailable', reason: /refused/, last_seen_at: NOW })
    const late = next(before, [server('s', null, { state: 'pending', reason: 's is not ready yet' })])
    t.strictSame([late.added, late.removed, late.changed], [[], [], []])
    const known = next([], [server('s', [tool('a')], { state: 'away', reason: 'gone' })])
    t.match(known.tools, [{ canonical_name: 's.a', status: 'unavailable', last_seen_at: null }])
    const joined = next(known.tools, [server('s', [tool('a')])])
    t.strictSame(joined.changed, ['s.a'])
    t.match(joined.tools, [{ status: 'available', reason: null }])
  },
)

t.test('globs, limits and the operator decide what is there', async (t) => {
  const list = ['read_a', 'read_b', 'write_a'].map((name) => tool(name))
  const globbed = (over: Partial<Connector>) =>
    names(next([], [server('s', list, { connector: connector('s', over) })]).tools)
  t.strictSame(globbed({ allow_tools: ['read_*'] }), ['s.read_a', 's.read_b'])
  t.strictSame(globbed({ deny_tools: ['*_a'] }), ['s.read_b'])
  t.strictSame(globbed({ allow_tools: ['*'], deny_tools: ['write_a', 'read.b'] }), ['s.read_a', 's.read_b'])
  const refused = nextRegistry(
    [],
    [server('s', list)],
    [BUILTIN],
    {
      admit: (_, name) =>
        name === 'write_a' ? { ok: false, reason: 'not configured' } : { ok: true, configured: true },
      admitBuiltin: () => ({ ok: false, reason: 'strict' }),
    },
    NOW,
  ).tools
  t.match(found(refused, 's.write_a'), { status: 'undeclarable', reason: 'not configured' })
  t.notOk(refused.some(({ source }) => source === 'builtin'))
  const many = Array.from({ length: 300 }, (_, i) => tool(`t${String(i).padStart(3, '0')}`))
  const crowd = next([], [server('s', many)]).tools
  t.equal(crowd.filter(({ status }) => status === 'available').length, 256)
  t.match(found(crowd, 's.t299'), { status: 'undeclarable', reason: /more than 256 tools/ })
  const heavy = Array.from({ length: 60 }, (_, i) =>
    tool(`h${String(i).padStart(2, '0')}`, {
      inputSchema: {
        type: 'object',
        properties: { e: { type: 'string', enum: Array.from({ length: 900 }, (_, n) => `value_${n}_abc`) } },
      },
    }),
  )
  t.match(found(next([], [server('s', heavy)]).tools, 's.h59'), {
    status: 'undeclarable',
    reason: /524288 bytes/,
  })
  const refs = Array.from({ length: 1_200 }, (_, i) => `d${i}`)
  const large = Array.from({ length: 60 }, (_, i) =>
    tool(`l${i}`, {
      inputSchema: {
        type: 'object',
        properties: Object.fromEntries(refs.map((name) => [name, { $ref: `#/$defs/${name}` }])),
        $defs: Object.fromEntries(refs.map((name) => [name, { type: 'string', format: 'x'.repeat(40) }])),
      },
    }),
  )
  const { user: before } = process.cpuUsage()
  const read = next([], [server('s', large)]).tools
  const spent = (process.cpuUsage().user - before) / 1_000
  t.ok(spent < 10_000, `${Math.round(spent)} ms for megabytes of definitions that nobody gets`)
  t.ok(read.filter(({ reason }) => reason?.includes('this one is beyond')).length > 50)
})

t.test('a glob means the same however many stars it has, and costs no more', async (t) => {
  const passes = (glob: string, name: string) => isOffered(connector('s', { allow_tools: [glob] }), name)
  const table: [glob: string, fits: string[], fitsNot: string[]][] = [
    ['read', ['read'], ['reader', 'read*', '']],
    ['*', ['read', ''], []],
    ['a*a', ['aa', 'aba'], ['a', 'ab']],
    ['*b*', ['b', 'abc', 'a\nb'], ['ac']],
    ['a**c*d', ['acd', 'abcxd', 'accdd'], ['adc', 'acdx']],
    ['*ab*abc', ['ab_abc', 'ababc'], ['abc', 'ab_abc_']],
    ['a.c', ['a.c'], ['abc']],
  ]
  for (const [glob, fits, fitsNot] of table) {
    for (const name of fits) t.ok(passes(glob, name), `${glob} lets ${JSON.stringify(name)} through`)
    for (const name of fitsNot) t.notOk(passes(glob, name), `${glob} keeps ${JSON.stringify(name)} out`)
  }
  const started = performance.now()
  t.notOk(passes(`${'*a'.repeat(100)}b`, 'a'.repeat(400)))
  t.ok(performance.now() - started < 1_000)
})

t.test('a tool that the MCP door left out is told with its reason, and takes no place', async (t) => {
  const { tools, repaired } = mendTools([
    tool('fine'),
    { name: 'text', inputSchema: { type: 'string' } },
    { name: 'fine', inputSchema: { type: 'object' } },
    { name: 'mended', inputSchema: null },
    { inputSchema: { type: 'object' } },
    ...Array.from({ length: 300 }, (_, i) => ({ name: `flood${i}`, inputSchema: 7 })),
  ])
  const first = next([], [server('s', tools, { repaired })])
  t.equal(first.tools.length, 2 + 256, 'bounded, and nothing of what has no name or is there by it')
  t.match(found(first.tools, 's.text'), { status: 'undeclarable', reason: /describes "string"/ })
  t.match(found(first.tools, 's.mended'), { status: 'available', reason: null })
  const mended = next(first.tools, [server('s', [...tools, tool('text')])])
  t.match(found(mended.tools, 's.text'), { status: 'available', reason: null })
  t.equal(names(mended.tools).at(-1), 's.text', 'once it can be declared, it is new')
})

t.test('of two names that are exposed alike the later is left out with a reason', async (t) => {
  const dotted = next([], [server('s', [tool('a.b')])]).tools[0]?.exposed_name ?? ''
  const twin = dotted.slice('s__'.length)
  const { tools } = next([], [server('s', [tool('a.b'), tool(twin)])])
  t.match(found(tools, 's.a.b'), { status: 'available' })
  t.match(found(tools, `s.${twin}`), { status: 'undeclarable', reason: /is that of s\.a\.b/ })
})

t.test('a deployment takes as many tools as it can, in order, and says what it left out', async (t) => {
  const { tools } = next(
    [],
    [
      server(
        's',
        Array.from({ length: 5 }, (_, i) => tool(`t${i}`)),
      ),
    ],
  )
  const [deployment] = deployments
  if (!deployment) throw new Error('no deployment')
  const switched = tools.map((one) => (one.canonical_name === 's.t1' ? { ...one, enabled: false } : one))
  const overlay = overlayOf(rowOf(switched), deployment, 3)
  t.strictSame(
    overlay.tools.map((one) => one.canonical_name),
    ['s.t0', 's.t2', 's.t3'],
  )
  t.match(overlay.undeclared, [{ canonical_name: 's.t4', reason: /at most 3 tools/ }])
  t.equal(overlay.byExposed.has('s__t1'), false, 'one that is switched off is not callable')
})

t.test('two hundred tools cost little once they were seen', async (t) => {
  const list = Object.values(LISTS).flat().slice(0, 200)
  const unique = [...new Map(list.map((one) => [one.name, one])).values()]
  const { tools } = next([], [server('s', unique)])
  const started = performance.now()
  for (let i = 0; i < 20; i++) next(tools, [server('s', unique)])
  t.ok(performance.now() - started < 2_000, 'schemas are not read anew')
})

// ---------------------------------------------------------------- the live thing

interface Answering {
  tools?: McpTool[]
  error?: McpError
  /** Answers once this settles */
  when?: Promise<unknown>
}

function createDoor() {
  const servers = new Map<string, Answering>()
  const lists = new Map<string, ToolList>()
  const listeners = new Set<(key: string) => void>()
  const asked: string[] = []
  const mcp: Mcp = {
    async list({ key }, { refresh, timeoutMs }) {
      asked.push(key)
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
        repaired: [],
        hash,
        fetched_at: Date.now(),
      }
      lists.set(key, list)
      return list
    },
    isOutdated: () => false,
    cached: (key) => lists.get(key) ?? null,
    call: () => Promise.reject(new Error('not in this test')),
    status: () => ({ state: 'idle' }),
    onListChanged(fn) {
      listeners.add(fn)
      return () => void listeners.delete(fn)
    },
    interest: () => {},
    release: () => {},
    close: async () => {},
  }
  const announce = (key: string) => {
    for (const fn of listeners) fn(key)
  }
  return { mcp, servers, asked, announce }
}

/** The few verbs that session tools use, with the same meaning as the store's. */
function createMemory() {
  const connectors = new Map<string, Connector>()
  const bindings = new Map<string, { id: string; alias: string | null }[]>()
  const rows = new Map<string, RegistryRow>()
  const lists = new Map<string, unknown>()
  const pins = new Map<string, { tool: string; hash: string; definition: unknown }[]>()
  const written: ToolsDelta[] = []
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
            return { session_id, registry: isKnown ? null : registry, bindings }
          }),
        ),
        pins: [...pins].flatMap(([connector_id, own]) => own.map((one) => ({ connector_id, ...one }))),
      }),
      put: async (changes: readonly RegistryChange[]) => {
        const fit = changes.filter(
          ({ session_id, expected }) => expected === (rows.get(session_id)?.revision ?? 0),
        )
        for (const { session_id, tools, delta } of fit) {
          written.push(delta)
          rows.set(session_id, {
            session_id,
            revision: delta.tools_revision,
            updated_at: NOW,
            tools: [...tools],
          })
        }
        return fit.map(({ session_id }) => ({ session_id, turn_id: null }))
      },
    },
    connectors: {
      create: never,
      get: never,
      list: never,
      update: never,
      delete: never,
      syncConfig: never,
      claim: never,
      keep: never,
      release: never,
      find: async (_: unknown, idOrName: string) =>
        [...connectors.values()].find(({ id, name }) => id === idOrName || name === idOrName) ?? null,
      bindings: async (session: string): Promise<Binding[]> =>
        (bindings.get(session) ?? []).flatMap(({ id, alias }) => {
          const one = connectors.get(id)
          return one ? [{ connector: one, alias }] : []
        }),
      bind: async (session: string, id: string, alias: string | null) => {
        const others = (bindings.get(session) ?? []).filter((one) => one.id !== id)
        bindings.set(session, [...others, { id, alias }])
      },
      unbind: async (session: string, id: string) => {
        const own = bindings.get(session) ?? []
        bindings.set(
          session,
          own.filter((one) => one.id !== id),
        )
        return own.some((one) => one.id === id)
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
      pins: async (id: string) => pins.get(id) ?? [],
      pin: async (id: string, name: string, hash: string, definition: unknown) => {
        const others = (pins.get(id) ?? []).filter((one) => one.tool !== name)
        pins.set(id, [...others, { tool: name, hash, definition }])
      },
    },
    sessions: { create: never, get: never, ofTurn: never, list: never, update: never, delete: never },
  }
  return { store, connectors, rows, lists, written }
}

const sessionOf = (id: string): Session => ({
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

function setUp(t: Test) {
  const door = createDoor()
  const memory = createMemory()
  const said: { session: string; delta: ToolsDelta }[] = []
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
      autoBound: () => [],
      viewOf: async () => ({ deployment, options: OPTIONS, toolLimit: null }),
      providers: ['openai', 'gemini'],
      emit: async (session, delta) => {
        said.push({ session, delta })
        for (const wake of waiting) wake()
      },
      takeEffect: async () => ({ effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null }),
      log: pino({ level: 'silent' }),
    })
    t.teardown(() => tools.close())
    return tools
  }
  /** Resolves when an event fits, past ones included. */
  const heard = (fits: (session: string, delta: ToolsDelta) => boolean): Promise<void> =>
    new Promise((resolve) => {
      // Timers of the product do not keep a process alive; this one does while the test waits.
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
  return { ...door, ...memory, create, said, heard, add }
}

t.test('binding and unbinding answer with what changed, one revision each', async (t) => {
  const { create, add, said } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  add('one', { tools: [tool('a'), tool('b')] })
  add('two', { tools: [tool('a')] })
  await tools.open(session, [])
  t.strictSame(
    said.map(({ delta }) => delta.added),
    [['look_up']],
  )
  const first = await tools.bind(session, 'one', 'next', null)
  t.match(first, {
    tools_revision: 2,
    added: ['one.a', 'one.b'],
    removed: [],
    changed: [],
    prompt_cache: 'invalidated',
  })
  const second = await tools.bind(session, 'con_two', 'next', 'other')
  t.match(second, { tools_revision: 3, added: ['other.a'] })
  t.match(await tools.bind(session, 'one', 'next', null), {
    tools_revision: 3,
    added: [],
    prompt_cache: 'kept',
  })
  const gone = await tools.unbind(session, 'one', 'next')
  t.match(gone, { tools_revision: 4, removed: ['one.a', 'one.b'], added: [], changed: [] })
  t.equal(tools.latestRevision('ses_1'), 4)
  const list = await tools.list(session, 'openai')
  t.strictSame(
    list.tools.map((one) => one.canonical_name),
    ['look_up', 'other.a'],
  )
  t.equal(list.declarations?.length, 2)
  t.match(list.tools[1], {
    provider_exposed_name: { openai: 'other__a', gemini: 'other__a' },
    server: 'other',
  })
  await t.rejects(tools.bind(session, 'nobody', 'next', null), { code: 'connector_not_found' })
  await t.rejects(tools.unbind(session, 'one', 'next'), { code: 'connector_not_found' })
  add('third', { tools: [] })
  await t.rejects(tools.bind(session, 'third', 'next', 'other'), { code: 'name_taken' })
})

t.test('a tool that is switched off and on again comes back behind the others', async (t) => {
  const { create, add } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a'), tool('b')] })])
  const order = async () => (await tools.list(session, null)).tools.map((one) => one.canonical_name)
  t.strictSame(await order(), ['look_up', 's.a', 's.b'])
  t.match(await tools.setEnabled(session, 's.a', false, 'next'), {
    changed: ['s.a'],
    prompt_cache: 'invalidated',
  })
  t.match(await tools.setEnabled(session, 's.a', false, 'next'), { changed: [], prompt_cache: 'kept' })
  await tools.setEnabled(session, 's.a', true, 'next')
  t.strictSame(await order(), ['look_up', 's.b', 's.a'])
  await t.rejects(tools.setEnabled(session, 's.zzz', true, 'next'), { code: 'tool_not_found' })
})

t.test(
  'an announced change reaches every session that binds the server, once, and only if it is one',
  async (t) => {
    const { create, add, announce, servers, heard, said, asked } = setUp(t)
    const tools = create()
    const sessions = ['ses_1', 'ses_2', 'ses_3'].map(sessionOf)
    const one = add('s', { tools: [tool('a')] })
    for (const session of sessions) await tools.open(session, session.id === 'ses_3' ? [] : [one])
    const before = said.length
    const key = 'con_s@1'
    announce(key)
    servers.set(key, { tools: [tool('a'), tool('b')] })
    announce(key)
    await Promise.all(
      ['ses_1', 'ses_2'].map((id) => heard((session, { added }) => session === id && added.includes('s.b'))),
    )
    t.equal(said.length, before + 2)
    for (let i = 0; i < 50; i++) announce(key)
    await tools.refresh(sessions[0] as Session, 'next')
    t.equal(said.length, before + 2, 'nothing changed, nothing is said')
    t.ok(asked.length > 0)
  },
)

t.test(
  'a server that is away is bound as unavailable and joins when it is there, without a turn',
  async (t) => {
    const { create, add, servers, heard, said } = setUp(t)
    const tools = create()
    const session = sessionOf('ses_1')
    await tools.open(session, [])
    const one = add('s', { error: new McpError('unavailable', 'refused', { sent: false }) })
    t.match(await tools.bind(session, 's', 'next', null), { added: [], prompt_cache: 'kept' })
    servers.set(`${one.id}@1`, { tools: [tool('a')] })
    await heard((_, { added }) => added.includes('s.a'))
    t.equal(said.filter(({ delta }) => delta.added.includes('s.a')).length, 1)
    t.match((await tools.current('ses_1')).tools.at(-1), { canonical_name: 's.a', status: 'available' })
  },
)

t.test('the last known list of a server that is away is there as unavailable', async (t) => {
  const { create, add, servers } = setUp(t)
  const one = add('s', { tools: [tool('a')] })
  await create().open(sessionOf('ses_1'), [one])
  servers.set(`${one.id}@1`, { error: new McpError('unavailable', 'refused', { sent: false }) })
  const later = create()
  const session = sessionOf('ses_2')
  await later.open(session, [])
  await later.bind(session, 's', 'next', null)
  await later.refresh(session, 'next')
  t.match((await later.list(session, null)).tools.at(-1), {
    canonical_name: 's.a',
    status: 'unavailable',
    reason: /refused/,
  })
})

t.test('a turn waits for no server longer than it was told, however many there are', async (t) => {
  const { create, add, heard } = setUp(t)
  const seed = create()
  let letGo = () => {}
  const when = new Promise<void>((resolve) => {
    letGo = resolve
  })
  const session = sessionOf('ses_1')
  await seed.open(session, [])
  for (const name of ['slow', 'other']) add(name, { tools: [tool('a')], when })
  const bound = Promise.all(['slow', 'other'].map((name) => seed.bind(session, name, 'next', null)))
  const started = performance.now()
  await seed.bringUpToDate('ses_1', 50)
  t.ok(performance.now() - started < 4_000, 'not the five seconds of a bind')
  t.notOk((await seed.current('ses_1')).tools.some(({ server: name }) => name === 'slow'))
  letGo()
  await bound
  await heard((_, { added }) => added.includes('slow.a'))
})

t.test('what servers have announced is taken over by the next turn, however slow the store is', async (t) => {
  const { create, add, servers, store, rows } = setUp(t)
  const tools = create()
  const sessions = ['ses_1', 'ses_2'].map(sessionOf)
  const one = add('s', { tools: [tool('a')] })
  for (const session of sessions) await tools.open(session, [one])
  const bindings = await store.connectors.bindings('ses_1')
  const put = store.registry.put
  let letGo = () => {}
  const isSlow = new Promise<void>((resolve) => {
    letGo = resolve
  })
  store.registry.put = async (changes) => {
    await isSlow
    return put(changes)
  }
  servers.set('con_s@1', { tools: [tool('a'), tool('b')] })
  const refreshed = tools.refresh(sessions[0] as Session, 'next')
  // The list is known by then; that it is written everywhere is what takes its time.
  while (!tools.isBehind('ses_2')) await new Promise((resolve) => setImmediate(resolve))
  const alive = setTimeout(letGo, 400)
  const waited = await tools.bringUpToDate('ses_2', 20, bindings)
  t.ok(waited < 400, 'the store’s time is none that was spent on servers')
  t.match(found(rows.get('ses_2')?.tools ?? [], 's.b'), { status: 'available' })
  t.notOk(tools.isBehind('ses_2'))
  await refreshed
  clearTimeout(alive)
})

t.test('a definition is kept before a model can get it, whichever way its list came', async (t) => {
  const { create, add, mcp, store, servers, heard, announce } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')] }, { pin: 'block' })
  await mcp.list({ key: 'con_s@1' } as never, { timeoutMs: 1_000 })
  const put = store.registry.put
  store.registry.put = async (changes) => {
    t.match(await store.connectors.pins('con_s'), [{ tool: 'a', hash: hashOf(tool('a')) }])
    return put(changes)
  }
  await tools.open(session, [one])
  store.registry.put = put
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worse.' })] })
  announce('con_s@1')
  await heard((_, { changed }) => changed.includes('s.a'))
  t.match((await tools.list(session, null)).tools.at(-1), { status: 'changed' })
})

t.test('a process that knows no list yet changes nothing that another wrote', async (t) => {
  const { create, add, servers, written } = setUp(t)
  const [a, b] = [add('a', { tools: [tool('x')] }), add('b', { tools: [tool('y')] })]
  const session = sessionOf('ses_1')
  await create().open(session, [a, b])
  let letGo = () => {}
  const when = new Promise<void>((resolve) => {
    letGo = resolve
  })
  servers.set('con_b@1', { tools: [tool('y')], when })
  const door = createDoor()
  for (const [key, answer] of servers) door.servers.set(key, answer)
  const restarted = create(door.mcp)
  const gone = await restarted.unbind(session, 'a', 'next')
  t.match(gone, { removed: ['a.x'], changed: [], added: [] }, 'the other server is not called away')
  t.match(found((await restarted.current('ses_1')).tools, 'b.y'), { status: 'available', reason: null })
  letGo()
  await restarted.bringUpToDate('ses_1', 1_000)
  t.equal(written.length, 2)
})

t.test('two writers at once lose nothing', async (t) => {
  const { create, add, written } = setUp(t)
  const [left, right] = [create(), create()]
  const session = sessionOf('ses_1')
  const all = Array.from({ length: 6 }, (_, i) => add(`s${i}`, { tools: [tool('a')] }))
  await left.open(session, [])
  await Promise.all(all.map(({ name }, i) => (i % 2 ? left : right).bind(session, name, 'next', null)))
  await Promise.all([left.bringUpToDate('ses_1', 1_000), right.bringUpToDate('ses_1', 1_000)])
  right.noteRevision('ses_1', written.at(-1)?.tools_revision ?? 0)
  left.noteRevision('ses_1', written.at(-1)?.tools_revision ?? 0)
  for (const tools of [left, right]) {
    t.strictSame((await tools.current('ses_1')).tools.map((one) => one.canonical_name).sort(), [
      'look_up',
      ...all.map(({ name }) => `${name}.a`),
    ])
  }
  t.strictSame(
    written.map((delta) => delta.tools_revision),
    written.map((_, i) => i + 1),
    'revisions in a row',
  )
})

t.test('an older revision is never served than was announced', async (t) => {
  const { create, add } = setUp(t)
  const [here, there] = [create(), create()]
  const session = sessionOf('ses_1')
  await here.open(session, [])
  t.equal((await here.current('ses_1')).revision, 1)
  add('s', { tools: [tool('a')] })
  const { tools_revision } = await there.bind(session, 's', 'next', null)
  here.noteRevision('ses_1', tools_revision)
  t.equal(here.latestRevision('ses_1'), tools_revision)
  t.equal((await here.current('ses_1')).revision, tools_revision)
})

t.test('a changed definition is blocked until somebody accepts it', async (t) => {
  const { create, add, servers, announce, heard } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')] }, { pin: 'block' })
  await tools.open(session, [one])
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worse.' })] })
  announce('con_s@1')
  await heard((_, { changed }) => changed.includes('s.a'))
  t.match((await tools.list(session, 'openai')).tools.at(-1), { status: 'changed', reason: /accept/ })
  t.equal((await tools.list(session, 'openai')).declarations?.length, 1)
  const caller = { owner: 'o', admin: false, key_id: null }
  t.match(await tools.accept(caller, one, 'a'), { tool: 'a', hash: /^[0-9a-f]{64}$/ })
  t.match((await tools.list(session, 'openai')).tools.at(-1), { status: 'available' })
  await t.rejects(tools.accept(caller, one, 'none'), { code: 'tool_not_found' })
})

t.test('a connector that is changed or deleted takes its tools along', async (t) => {
  const { create, add, connectors, heard } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a'), tool('b')] })
  await tools.open(session, [one])
  connectors.set(one.id, { ...one, deny_tools: ['b'] })
  tools.connectorChanged(one, ['ses_1'])
  await heard((_, { removed }) => removed.includes('s.b'))
  connectors.delete(one.id)
  tools.connectorChanged(one, ['ses_1'])
  await heard((_, { removed }) => removed.includes('s.a'))
  t.strictSame(
    (await tools.current('ses_1')).tools.map((left) => left.canonical_name),
    ['look_up'],
  )
})

t.test('a connector that was deleted while its server was asked is not asked for again', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { mcp, servers, asked } = createDoor()
  let answer = () => {}
  const when = new Promise<void>((resolve) => {
    answer = resolve
  })
  servers.set('s', { when })
  const gone = connector('s')
  const discovery = createDiscovery({
    store: createMemory().store,
    mcp,
    specFor: ({ name }) => ({ key: name, name, transport: 'streamable_http', allowPrivate: true }),
    log: pino({ level: 'silent' }),
  })
  const known = discovery.lookUp([{ connector: gone, alias: null }], { deadlineMs: 1_000, refresh: true })
  discovery.forget(gone.id)
  answer()
  t.match(await known, [{ state: 'away', reason: /refused/ }])
  mock.timers.tick(60_000)
  t.strictSame(asked, ['s'])
})

t.test('a server that no session uses any more is not kept by what it announces', async (t) => {
  mock.timers.enable({ apis: ['Date'], now: Date.now() })
  t.teardown(() => mock.timers.reset())
  const { mcp, servers, asked, announce } = createDoor()
  servers.set('s', { tools: [tool('a')] })
  const discovery = createDiscovery({
    store: createMemory().store,
    mcp,
    specFor: ({ name }) => ({ key: name, name, transport: 'streamable_http', allowPrivate: true }),
    log: pino({ level: 'silent' }),
  })
  await discovery.lookUp([{ connector: connector('s'), alias: null }], { deadlineMs: 1_000, refresh: true })
  announce('s')
  t.strictSame(asked, ['s', 's'])
  mock.timers.tick(11 * 60_000)
  announce('s')
  t.strictSame(asked, ['s', 's'])
})

t.test('errors are of the catalogue', async (t) => {
  const { create } = setUp(t)
  const error = await create()
    .setEnabled(sessionOf('ses_1'), 'x', true, 'next')
    .then(
      () => null,
      (thrown: unknown) => thrown,
    )
  t.ok(error instanceof BatonError)
})
