/** The pure registry of a session's tools, and its overlays. */
import { readdirSync, readFileSync } from 'node:fs'
import fc from 'fast-check'
import t from 'tap'
import type { McpTool } from '../../src/mcp/contract.ts'
import { repairTools } from '../../src/mcp/repair.ts'
import type { Connector, RegistryRow, RegistryTool } from '../../src/store/store.ts'
import type { Builtin } from '../../src/tools/builtin.ts'
import { definitionDiff, hashOf } from '../../src/tools/definition.ts'
import { overlayOf } from '../../src/tools/overlay.ts'
import { type KnownServer, nextRegistry } from '../../src/tools/registry.ts'
import { AVAILABLE } from '../patterns.ts'
import { holdLoop, passesOf } from '../waiting.ts'
import { BUILTIN, connector, deployments, found, NOW, OPTIONS, tool } from './session-tools-doubles.ts'

/** Milliseconds of processor time, since other processes may slow the machine down. */
const worked = (): number => process.cpuUsage().user / 1000

const FIXTURES = new URL('../../../test/fixtures/mcp-tools/', import.meta.url)

/** Every known list as the tools of a server of its own, without repeated names, which the door would refuse. */
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

const server = (
  name: string,
  tools: readonly McpTool[] | null,
  over: Partial<KnownServer> = {},
): KnownServer => ({
  connector: connector(name),
  server: name,
  tools,
  seen_at: NOW,
  left_out: [],
  state: 'live',
  reason: null,
  pins: new Map(),
  off: [],
  refusalOf: () => null,
  ...over,
})
const next = (
  before: readonly RegistryTool[],
  servers: readonly KnownServer[],
  builtins: readonly Builtin[] = [],
) => nextRegistry(before, servers, builtins, NOW)
const names = (tools: readonly RegistryTool[]) =>
  [...tools].sort((a, b) => a.order - b.order).map((one) => one.canonical_name)
const rowOf = (tools: RegistryTool[]): RegistryRow => ({
  session_id: 'ses_1',
  revision: 1,
  updated_at: NOW,
  tools,
})

t.test('all lists together get unique legal names, the same in any order and after a restart', async (t) => {
  const servers = Object.entries(LISTS).map(([name, tools]) => server(name, tools))
  const first = await next([], servers, [BUILTIN])
  t.ok(first.tools.length > 400, `${first.tools.length} tools`)
  const exposed = first.tools.map((one) => one.exposed_name)
  t.equal(new Set(exposed).size, exposed.length)
  t.strictSame(
    exposed.filter((name) => !/^[A-Za-z_][A-Za-z0-9_-]{0,62}$/.test(name)),
    [],
  )
  t.strictSame(names(first.tools), [...names(first.tools)].sort(), 'new tools are sorted by canonical name')
  const turned = await next(
    [],
    [...servers].reverse().map((one) => ({ ...one, tools: [...(one.tools ?? [])].reverse() })),
    [BUILTIN],
  )
  t.strictSame(turned.tools, first.tools)
  // A restart: the row comes from the store, the lists anew from the servers.
  const stored = JSON.parse(JSON.stringify(first.tools)) as RegistryTool[]
  const fresh = servers.map((one) => ({ ...one, tools: JSON.parse(JSON.stringify(one.tools)) as McpTool[] }))
  const again = await next(stored, fresh, [BUILTIN])
  t.strictSame({ ...again, tools: [] }, { tools: [], added: [], removed: [], changed: [] })
  for (const deployment of deployments) {
    const bytes = async (tools: RegistryTool[]) =>
      JSON.stringify(deployment.declare((await overlayOf(rowOf(tools), deployment)).tools, OPTIONS))
    t.equal(await bytes(again.tools), await bytes(first.tools), `${deployment.id} declares the same bytes`)
  }
})

t.test('each session keeps the schema that its build made of a definition', async (t) => {
  const [deployment] = deployments
  if (!deployment) throw new Error('no deployment')
  const { tools } = await next([], [server('s', [tool('kept')])])
  const parameters = { type: 'object', properties: { before: {} } }
  for (const made of [tools, tools.map((one) => ({ ...one, parameters }))]) {
    const overlay = await overlayOf(rowOf(made), deployment)
    t.match(overlay.tools.at(-1)?.parameters, found(made, 's.kept').parameters)
  }
})

t.test('every tool of every list is declared to every deployment', async (t) => {
  const { tools } = await next(
    [],
    Object.entries(LISTS).map(([name, list]) => server(name, list)),
  )
  for (const deployment of deployments) {
    const overlay = await overlayOf(rowOf(tools), { ...deployment, toolLimit: null })
    t.equal(overlay.tools.length + overlay.undeclared.length, tools.length, deployment.id)
    t.strictSame(overlay.undeclared, [], deployment.id)
    t.strictSame(
      overlay.tools.map(({ name }) => overlay.byExposed.get(name)?.tool.canonical_name),
      names(tools),
    )
    t.doesNotThrow(() => deployment.declare(overlay.tools, OPTIONS))
  }
})

t.test('tools that stay keep their place and bytes; all others are appended by name', async () => {
  const pool = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) =>
    tool(name, { inputSchema: { type: 'object', properties: { x: { type: 'string' }, y: {} } } }),
  )
  /** The same definition from a server that writes its properties the other way round. */
  const turned = (one: McpTool) =>
    tool(one.name, { inputSchema: { type: 'object', properties: { y: {}, x: { type: 'string' } } } })
  const bytesOf = (tools: readonly RegistryTool[], name: string) => {
    const { exposed_name, description, parameters } = found(tools, name)
    return JSON.stringify({ exposed_name, description, parameters })
  }
  const step = fc.record({
    listed: fc.subarray(pool),
    isTurned: fc.boolean(),
  })
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 8 }), async (steps) => {
      let tools: RegistryTool[] = []
      for (const { listed, isTurned } of steps) {
        const known = new Set(tools.map((one) => one.canonical_name))
        const made = await next(tools, [server('srv', isTurned ? listed.map(turned) : listed)])
        const order = names(made.tools)
        const stayed = names(tools).filter((name) => listed.some((one) => `srv.${one.name}` === name))
        const joined = listed
          .map((one) => `srv.${one.name}`)
          .filter((name) => !known.has(name))
          .sort()
        if (order.join() !== [...stayed, ...joined].join()) throw new Error(`${order} after ${names(tools)}`)
        if (made.added.join() !== joined.join()) throw new Error('added')
        const gone = names(tools).filter((name) => !stayed.includes(name))
        if (made.removed.join() !== gone.sort().join()) throw new Error('removed')
        if (new Set(made.tools.map((one) => one.order)).size < made.tools.length) throw new Error('places')
        if (made.changed.length > 0) throw new Error('changed')
        const other = stayed.filter((name) => bytesOf(made.tools, name) !== bytesOf(tools, name))
        if (other.length > 0) throw new Error(`${other} got other bytes`)
        tools = made.tools
      }
    }),
    { seed: 1, numRuns: 200 },
  )
})

t.test('a tool whose definition changes keeps its place and is reported as changed', async (t) => {
  const before = (await next([], [server('s', [tool('a'), tool('b')])])).tools
  const after = await next(before, [server('s', [tool('a', { description: 'Other.' }), tool('b')])])
  t.strictSame(after.changed, ['s.a'])
  t.strictSame(names(after.tools), ['s.a', 's.b'])
  t.equal(found(after.tools, 's.a').description, 'Other.')
  const reordered = tool('b', { inputSchema: { properties: { a: { type: 'string' } }, type: 'object' } })
  t.strictSame(
    (await next(before, [server('s', [tool('a'), reordered])])).changed,
    [],
    'key order is no change',
  )
  const { tools } = await next([], [], [BUILTIN])
  t.strictSame((await next(tools, [], [{ ...BUILTIN, annotations: {} }])).changed, ['look_up'])
})

t.test(
  'a schema that is another only by the order of its required names keeps its declared bytes',
  async (t) => {
    const properties = { a: { type: 'string' }, b: { type: 'string' } }
    const listed = (inputSchema: McpTool['inputSchema']) => [server('s', [tool('t', { inputSchema })])]
    const { tools } = await next([], listed({ type: 'object', properties, required: ['a', 'b'] }))
    const turned = await next(tools, listed({ required: ['b', 'a'], type: 'object', properties }))
    const bytes = (one: readonly RegistryTool[]) => JSON.stringify(found(one, 's.t').parameters)
    t.equal(bytes(turned.tools), bytes(tools))
    const fewer = await next(turned.tools, listed({ type: 'object', properties, required: ['b'] }))
    t.strictSame(found(fewer.tools, 's.t').parameters.required, ['b'])
  },
)

t.test('a tool that another server has taken over in between is reported as changed', async (t) => {
  const { tools } = await next([], [server('s', [tool('a')])])
  const over = await next(tools, [server('s', [tool('a')], { connector: connector('s', { id: 'con_2' }) })])
  t.strictSame(over.changed, ['s.a'], 'calls must reach the server that is bound now')
  t.equal(found(over.tools, 's.a').connector_id, 'con_2')
})

t.test('two servers that swap names in one revision take along which of their tools are off', async (t) => {
  const both = (one: string, other: string) => [
    server(one, [tool('x'), tool('y')], { connector: connector('one'), off: ['x'] }),
    server(other, [tool('x'), tool('y')], { connector: connector('other') }),
  ]
  const { tools } = await next([], both('a', 'b'))
  const swapped = await next(tools, both('b', 'a'))
  const off = swapped.tools.filter(({ enabled }) => !enabled)
  t.strictSame(names(off), ['b.x'])
  t.strictSame(
    names(swapped.tools),
    ['a.y', 'b.x', 'b.y', 'a.x'],
    'one that is on now comes after the others',
  )
})

t.test('the diff of a definition makes invisible characters visible', (t) => {
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

t.test('the diff of a definition does not repeat a name that goes on for thousands of characters', (t) => {
  const having = (type: string) =>
    tool('a', { inputSchema: { properties: { ['\u200b'.repeat(1_000)]: { b: type, c: type } } } })
  const paths = definitionDiff(having('string'), having('number')).map(({ path }) => path.length)
  t.ok(paths.length === 2 && paths.every((length) => length < 5_000), `${paths}`)
  t.end()
})

t.test('a property that is named like an inherited one is reported as added or removed', (t) => {
  const without = tool('a', { inputSchema: { properties: {} } })
  const properties = JSON.parse('{"constructor": {"type": "string"}, "__proto__": {"type": "number"}}')
  const having = tool('a', { inputSchema: { properties } })
  t.strictSame(definitionDiff(without, having), [
    { path: '/inputSchema/properties/constructor', after: { type: 'string' } },
    { path: '/inputSchema/properties/__proto__', after: { type: 'number' } },
  ])
  t.strictSame(definitionDiff(having, without), [
    { path: '/inputSchema/properties/constructor', before: { type: 'string' } },
    { path: '/inputSchema/properties/__proto__', before: { type: 'number' } },
  ])
  t.end()
})

t.test('a tool that was switched off at one server is off at that server alone, also renamed', async (t) => {
  const both = (off: readonly string[]) => [
    server('a', [tool('x'), tool('y')], { off }),
    server('b', [tool('x')]),
  ]
  const isOn = (tools: readonly RegistryTool[]) =>
    Object.fromEntries(tools.map((one) => [one.canonical_name, one.enabled]))
  const first = await next([], both(['x']))
  t.strictSame(isOn(first.tools), { 'a.x': false, 'a.y': true, 'b.x': true })
  const renamed = both([]).map((one) => ({ ...one, server: `${one.server}2` }))
  t.strictSame(isOn((await next(first.tools, renamed)).tools), { 'a2.x': false, 'a2.y': true, 'b2.x': true })
  const builtins = [BUILTIN, { ...BUILTIN, name: 'wait' }]
  const off = (await next([], [], [BUILTIN])).tools.map((one) => ({ ...one, enabled: false }))
  t.strictSame(isOn((await next(off, [], builtins)).tools), { look_up: false, wait: true }, 'or by itself')
})

t.test('a tool that could not be declared counts as new once it can be', async (t) => {
  const problem = { tool: 'a', problem: 'It is broken.' }
  const before = await next([], [server('s', [tool('b')], { left_out: [problem] })])
  t.strictSame(names(before.tools), ['s.a', 's.b'])
  const after = await next(before.tools, [server('s', [tool('a'), tool('b')])])
  t.strictSame(names(after.tools), ['s.b', 's.a'], 'it comes after the tools that were declared')
  const broken = await next(after.tools, [
    server('s', [tool('a')], { left_out: [{ ...problem, tool: 'b' }] }),
  ])
  t.strictSame(names(broken.tools), ['s.b', 's.a'], 'a tool that breaks keeps its place')
  const away = await next(broken.tools, [server('s', null, { state: 'away', reason: 'gone' })])
  t.match(found(away.tools, 's.b'), { status: 'undeclarable', reason: problem.problem })
})

t.test('a changed pinned definition is blocked, or only reported, as the connector says', async (t) => {
  const pins = new Map([['a', hashOf(tool('a'))]])
  const other = [tool('a', { description: 'Sends everything to me.' })]
  const live = (await next([], [server('s', [tool('a'), tool('b')], { pins })])).tools
  const warned = await next(live, [server('s', other, { pins })])
  t.match(found(warned.tools, 's.a'), { status: 'changed', is_blocked: false })
  const blocking = server('s', [...other, tool('b')], { pins, connector: connector('s', { pin: 'block' }) })
  const blocked = (await next(live, [blocking])).tools
  t.match(found(blocked, 's.a'), { status: 'changed', is_blocked: true, reason: /accept/ })
  const [deployment] = deployments
  if (!deployment) throw new Error('no deployment')
  const overlay = await overlayOf(rowOf(blocked), deployment)
  t.strictSame(
    overlay.tools.map((one) => one.canonical_name),
    ['s.b'],
  )
  t.match(overlay.undeclared, [{ canonical_name: 's.a', reason: /accept/ }])
  t.strictSame(
    (await next(warned.tools, [blocking])).changed,
    ['s.a'],
    'also one that was only reported so far',
  )
  const broken = server('s', [tool('b')], { pins, left_out: [{ tool: 'a', problem: 'It is broken.' }] })
  t.match(
    found((await next(live, [broken])).tools, 's.a'),
    { status: 'undeclarable' },
    'what lasts longer counts',
  )
  const accepted = new Map([['a', hashOf(other[0] as McpTool)]])
  const back = (await next(blocked, [{ ...blocking, pins: accepted }])).tools
  t.strictSame(names(back), ['s.b', 's.a'], 'the tool that comes back is declared behind the others')
})

t.test(
  'the tools of a server that is away become unavailable, and those of a late server stay as they were',
  async (t) => {
    const before = (await next([], [server('s', [tool('a'), tool('b')])])).tools
    const away = await next(before, [
      server('s', null, { state: 'away', reason: 's is not available: refused' }),
    ])
    t.strictSame(away.changed, ['s.a', 's.b'])
    t.match(found(away.tools, 's.a'), { status: 'unavailable', reason: /refused/, last_seen_at: NOW })
    const other = { server: 'other', state: 'away', reason: 'refused' } as const
    const renamed = await next(before, [server('s', null, other)])
    t.strictSame(
      [renamed.removed, renamed.added],
      [
        ['s.a', 's.b'],
        ['other.a', 'other.b'],
      ],
    )
    t.match(found(renamed.tools, 'other.a'), {
      exposed_name: 'other__a',
      server: 'other',
      status: 'unavailable',
    })
    const soon = await next(before, [server('s', null, { ...other, state: 'pending' })])
    t.match(found(soon.tools, 'other.a'), { status: AVAILABLE, reason: null })
    const live = await next(soon.tools, [server('s', [tool('a'), tool('b')], { server: 'other' })])
    t.strictSame([live.added, live.removed, live.changed], [[], [], []], 'a new name is one revision')
    const older = server('s', [tool('a')], { state: 'away', reason: 'refused', seen_at: null })
    t.match((await next(before, [older])).tools, [{ status: 'unavailable', last_seen_at: NOW }])
    const late = await next(before, [server('s', null, { state: 'pending', reason: 's is not ready yet' })])
    t.strictSame([late.added, late.removed, late.changed], [[], [], []])
    const known = await next([], [server('s', [tool('a')], { state: 'away', reason: 'gone' })])
    t.match(known.tools, [{ canonical_name: 's.a', status: 'unavailable', last_seen_at: null }])
    const first = await next([], [server('s', [tool('a')], { state: 'pending', reason: 'not ready' })])
    t.match(first.tools, [{ canonical_name: 's.a', status: 'unavailable', reason: 'not ready' }])
    const joined = await next(known.tools, [server('s', [tool('a')])])
    t.strictSame(joined.changed, ['s.a'])
    t.match(joined.tools, [{ status: AVAILABLE, reason: null }])
  },
)

t.test('what the connector or the operator forbids holds before the server lists again', async (t) => {
  const before = (await next([], [server('s', [tool('a'), tool('b')])])).tools
  const late = (over: Partial<Connector>, pins = new Map<string, string>(), tools: McpTool[] | null = null) =>
    server('s', tools, {
      state: 'pending',
      reason: 's is not ready yet',
      connector: connector('s', over),
      pins,
    })
  const refused = await next(before, [{ ...late({ mode: 'strict' }), refusalOf: () => 'not configured' }])
  t.strictSame(refused.changed, ['s.a', 's.b'])
  t.match(found(refused.tools, 's.a'), { status: 'undeclarable', reason: 'not configured' })
  const pins = new Map([['a', hashOf(tool('a', { description: 'As it was accepted' }))]])
  t.strictSame((await next(before, [late({ pin: 'warn' }, pins)])).changed, [])
  for (const one of [
    late({ pin: 'block' }, pins),
    late({ pin: 'block' }, pins, [tool('a')]),
    { ...late({ pin: 'block' }, pins), state: 'away' as const },
  ]) {
    const blocked = (await next(before, [one])).tools
    t.match(found(blocked, 's.a'), { status: 'changed', is_blocked: true, reason: /until it is accepted/ })
    t.match(found(blocked, 's.b'), { is_blocked: false })
  }
})

t.test('globs, limits and the operator decide which tools are available', async (t) => {
  const list = ['read_a', 'read_b', 'write_a'].map((name) => tool(name))
  const left_out = [{ tool: 'broken_a', problem: 'It is broken.' }]
  const globbed = async (over: Partial<Connector>) =>
    names((await next([], [server('s', list, { connector: connector('s', over), left_out })])).tools)
  t.strictSame(await globbed({ allow_tools: ['read_*'] }), ['s.read_a', 's.read_b'])
  t.strictSame(await globbed({ deny_tools: ['*_a'] }), ['s.read_b'])
  t.strictSame(await globbed({ allow_tools: ['*'], deny_tools: ['write_a', 'read.b'] }), [
    's.broken_a',
    's.read_a',
    's.read_b',
  ])
  const refusalOf = (name: string) => (name === 'write_a' ? 'not configured' : null)
  const { tools: refused } = await next([], [server('s', list, { refusalOf })])
  t.match(found(refused, 's.write_a'), { status: 'undeclarable', reason: 'not configured' })
  const many = Array.from({ length: 600 }, (_, i) => tool(`t${i}`))
  const crowd = (await next([], [server('s', many)])).tools
  t.equal(
    crowd.filter(({ status }) => status === 'available').length,
    600,
    'the number of tools is not limited',
  )
  const heavy = Array.from({ length: 60 }, (_, i) =>
    tool(`h${String(i).padStart(2, '0')}`, {
      inputSchema: {
        type: 'object',
        properties: { e: { type: 'string', enum: Array.from({ length: 900 }, (_, n) => `value_${n}_abc`) } },
      },
    }),
  )
  const offered = (await next([], [server('s', heavy)])).tools
  t.match(found(offered, 's.h59'), { status: 'undeclarable', reason: /524288 bytes/, description: '' })
  const turned = (await next([], [server('s', [...heavy].reverse())])).tools
  t.strictSame(turned, offered, 'the same tools are within the limit, in whatever order they are listed')
  t.ok(JSON.stringify(offered.map((one) => one.input_schema)).length < 600_000, 'nothing beyond is kept')
  const all = (
    await next(
      [],
      Array.from({ length: 12 }, (_, i) => server(`s${i + 10}`, heavy)),
    )
  ).tools
  t.match(found(all, 's17.h00'), { status: AVAILABLE })
  const beyond = {
    status: 'undeclarable',
    reason: /4194304 bytes/,
    description: '',
    input_schema: { properties: {} },
  }
  t.match(found(all, 's21.h00'), beyond, 'all servers together')
  t.strictSame(Object.keys(found(all, 's21.h00').input_schema as object), ['type', 'properties'])
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
  const read = (await next([], [server('s', large)])).tools
  const spent = (process.cpuUsage().user - before) / 1_000
  t.ok(spent < 10_000, `${Math.round(spent)} ms for megabytes of definitions that are not declared`)
  t.ok(read.filter(({ reason }) => reason?.includes('this one is beyond')).length > 50)
})

t.test(
  'a tool that comes within the limits, or was stored without its schema, is declared with its schema',
  async (t) => {
    const inputSchema = {
      type: 'object',
      properties: { a: { type: 'string', description: 'x'.repeat(5_100) } },
    }
    const many = Array.from({ length: 102 }, (_, i) => tool(`t${100 + i}`, { inputSchema }))
    const last = 's.t201'
    const first = (await next([], [server('s', many)])).tools
    t.match(found(first, last), { status: 'undeclarable' })
    const { parameters } = found(first, 's.t100')
    const within = await next(first, [server('s', many.slice(1))])
    t.match(found(within.tools, last), { status: AVAILABLE, parameters })
    t.strictSame(within.changed, [last])
    const beyond = (await next(within.tools, [server('s', many)])).tools
    t.match(
      found(beyond, last),
      { status: 'undeclarable', parameters },
      'a tool beyond the limits keeps its schema',
    )

    const stripped = within.tools.map((one) => ({ ...one, parameters: { type: 'object', properties: {} } }))
    const [deployment] = deployments
    if (!deployment) throw new Error('no deployment')
    const declared = async (tools: RegistryTool[]) => {
      const overlay = await overlayOf(rowOf(tools), { ...deployment, toolLimit: null })
      return overlay.tools.find((one) => one.canonical_name === last)?.parameters
    }
    t.strictSame((await declared(stripped))?.properties, {})
    t.match(
      (await declared(within.tools))?.properties,
      { a: {} },
      'a row that is stored with schemas is declared with them',
    )
    const healed = await next(stripped, [server('s', many.slice(1))])
    t.match(found(healed.tools, last), { parameters })
    t.equal(healed.changed.length, 101, 'the tools that get their schemas back count as changed')
  },
)

t.test('many long globs are tried on long names while others have the event loop', async (t) => {
  const globs = Array.from({ length: 1_000 }, (_, i) => `${'a'.repeat(240)}*b${i}`)
  const denying = connector('s', { deny_tools: globs })
  const list = Array.from({ length: 60 }, (_, i) => tool(`${'a'.repeat(390)}${i}`))
  const left_out = list.map(({ name }) => ({ tool: name, problem: 'It is broken.' }))
  const { tools } = await next([], [server('s', list)])
  for (const one of [server('s', list), server('s', [], { left_out }), server('s', null)])
    t.ok((await passesOf(() => next(tools, [{ ...one, connector: denying }]))) > 2)
})

t.test('a tool that the MCP door left out is listed with its reason, and keeps no place', async (t) => {
  const { tools, left_out } = repairTools([
    tool('fine'),
    { name: 'text', inputSchema: { type: 'string' } },
    { name: 'fine', inputSchema: { type: 'object' } },
    { name: 'repaired', inputSchema: null },
    { inputSchema: { type: 'object' } },
    ...Array.from({ length: 300 }, (_, i) => ({ name: `flood${i}`, inputSchema: 7 })),
  ])
  const first = await next([], [server('s', tools, { left_out })])
  t.equal(
    first.tools.length,
    2 + 256,
    'at most 256 of them, and none without a name or with a name that is taken',
  )
  t.match(found(first.tools, 's.text'), { status: 'undeclarable', reason: /describes "string"/ })
  t.match(found(first.tools, 's.repaired'), { status: AVAILABLE, reason: null })
  const repaired = await next(first.tools, [server('s', [...tools, tool('text')])])
  t.match(found(repaired.tools, 's.text'), { status: AVAILABLE, reason: null })
  t.equal(names(repaired.tools).at(-1), 's.text', 'once it can be declared, it counts as new')
})

t.test('of two tools with the same exposed name the later is left out with a reason', async (t) => {
  const dotted = (await next([], [server('s', [tool('a.b')])])).tools[0]?.exposed_name ?? ''
  const twin = dotted.slice('s__'.length)
  const { tools } = await next([], [server('s', [tool('a.b'), tool(twin)])])
  t.match(found(tools, 's.a.b'), { status: AVAILABLE })
  t.match(found(tools, `s.${twin}`), { status: 'undeclarable', reason: /is that of s\.a\.b/ })
})

t.test('a deployment takes the first tools up to its limit, and says which it left out', async (t) => {
  const { tools } = await next(
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
  const overlay = await overlayOf(rowOf(switched), { ...deployment, toolLimit: 3 })
  t.strictSame(
    overlay.tools.map((one) => one.canonical_name),
    ['s.t0', 's.t2', 's.t3'],
  )
  t.match(overlay.undeclared, [{ canonical_name: 's.t4', reason: /at most 3 tools/ }])
  t.equal(overlay.byExposed.has('s__t1'), false, 'a tool that is switched off is not callable')
})

t.test('replacing ten thousand tools that are switched off is quick', async (t) => {
  const lists = (of: string) =>
    Array.from({ length: 10 }, (_, i) =>
      server(
        `s${i}`,
        Array.from({ length: 1_000 }, (_, k) => tool(`${of}${k}`)),
      ),
    )
  const off = (tools: readonly RegistryTool[]) => tools.map((one) => ({ ...one, enabled: false }))
  const { tools } = await next([], lists('a'))
  const started = worked()
  await next(off(tools), lists('b'))
  t.ok(worked() - started < 2_000)
})

t.test('two hundred tools cost little once they have been seen', async (t) => {
  const list = Object.values(LISTS).flat().slice(0, 200)
  const unique = [...new Map(list.map((one) => [one.name, one])).values()]
  const { tools } = await next([], [server('s', unique)])
  const started = worked()
  for (let i = 0; i < 20; i++) await next(tools, [server('s', unique)])
  t.ok(worked() - started < 2_000, 'their schemas are not read anew')
})

t.test('a list at the limits is read, and declared, while others have the event loop', async (t) => {
  const [deployment] = deployments
  if (!deployment) return t.fail('no deployment')
  const known = Object.values(LISTS).flat()
  const tools = Array.from({ length: 800 }, (_, i): McpTool => {
    const { inputSchema } = structuredClone(known[i % known.length] as McpTool)
    return tool(`t${i}`, { inputSchema: { ...inputSchema, title: `Not declared before: ${i}` } })
  })
  let made: RegistryTool[] = []
  const reading = async () => {
    made = (await next([], [server('s', tools)])).tools
  }
  const declaring = () => overlayOf(rowOf(made), { ...deployment, toolLimit: null })
  t.ok((await passesOf(reading)) > 5, 'its schemas take a fifth of a second')
  t.ok((await passesOf(declaring)) > 1)
  t.ok(made.some(({ status }) => status === 'available'))
})

t.test(
  'many short lists, of one session or of several, are read while others have the event loop',
  async (t) => {
    const refusalOf = () => {
      holdLoop(4)
      return null
    }
    const servers = Array.from({ length: 10 }, (_, i) => server(`s${i}`, [tool('a')], { refusalOf }))
    t.ok((await passesOf(() => next([], servers))) > 1)
    t.ok((await passesOf(() => Promise.all(servers.map((one) => next([], [one]))))) > 1)
  },
)

t.test('adapted schemas are kept up to a total size, not up to a number', async (t) => {
  const [deployment] = deployments
  if (!deployment) return t.fail('no deployment')
  const values = Array.from({ length: 500 }, (_, i) => `value ${i} ${'x'.repeat(50)}`)
  const making = Array.from({ length: 90 }, async (_, set) => {
    const tools = Array.from({ length: 15 }, (_, i) =>
      tool(`large_${i}`, {
        inputSchema: { type: 'object', properties: { [`p${set}_${i}`]: { enum: values } } },
      }),
    )
    return (await next([], [server(`s${set}`, tools)])).tools
  })
  const sets = await Promise.all(making)
  const declared = async (tools: RegistryTool[]) =>
    (await overlayOf(rowOf(tools), deployment)).tools.map((one) => one.parameters)
  const first: unknown[][] = []
  for (const tools of sets) first.push(await declared(tools))
  t.equal(first.flat().length, 1_350)
  const [oldest, newest] = [sets.at(0) ?? [], sets.at(-1) ?? []]
  t.equal((await declared(newest))[0], first.at(-1)?.[0], 'a schema that is kept is adapted once')
  const [again] = await declared(oldest)
  t.same(again, first[0]?.[0])
  t.not(again, first[0]?.[0], 'the oldest schema was dropped')
})
