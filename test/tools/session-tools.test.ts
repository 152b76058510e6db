/** A session's tools as they live: bound, announced, away, changed, on doubles of store and door. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import { McpError } from '../../src/mcp/contract.ts'
import type { Session } from '../../src/store/store.ts'
import { createDiscovery } from '../../src/tools/discovery.ts'
import { hashOf } from '../../src/tools/registry.ts'
import {
  connector,
  createDoor,
  createMemory,
  found,
  sessionOf,
  setUp,
  tool,
} from './session-tools-doubles.ts'

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
  add('fourth', { tools: [] })
  const both = ['third', 'fourth'].map((name) => tools.bind(session, name, 'next', 'twin'))
  t.match(await Promise.allSettled(both), [
    { status: 'fulfilled' },
    { status: 'rejected', reason: { code: 'name_taken' } },
  ])
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

t.test('a server is asked even in its back-off by who binds or refreshes, not by who opens', async (t) => {
  const { create, add, servers, insisted } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { error: new McpError('unavailable', 'refused', { sent: false }) })
  await tools.open(session, [one])
  t.strictSame(insisted, [])
  await tools.refresh(session, 'next')
  t.strictSame(insisted, ['con_s@1'])
  servers.set('con_s@1', { tools: [tool('a')] })
  t.match(await tools.bind(session, 's', 'next', null), { added: ['s.a'] })
  t.strictSame(insisted, ['con_s@1', 'con_s@1'])
  await tools.bind(session, 's', 'next', null)
  t.equal(insisted.length, 2, 'a list that is there is enough')
})

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

t.test('a change waits for its own server, and for no other one', async (t) => {
  const { create, add } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  let letGo = () => {}
  const when = new Promise<void>((resolve) => {
    letGo = resolve
  })
  t.teardown(() => letGo())
  const fast = ['f1', 'f2'].map((name) => add(name, { tools: [tool('a')] }))
  for (const name of ['h1', 'h2', 'f3']) add(name, { tools: [tool('a')], ...(name === 'f3' ? {} : { when }) })
  await tools.open(session, fast)
  const from = performance.now()
  const hung = ['h1', 'h2'].map((name) => tools.bind(session, name, 'next', null))
  t.match(await tools.unbind(session, 'f1', 'now'), { removed: ['f1.a'] })
  t.match(await tools.setEnabled(session, 'f2.a', false, 'now'), { changed: ['f2.a'] })
  t.match(await tools.bind(session, 'f3', 'now', null), { added: ['f3.a'] })
  t.ok(performance.now() - from < 2_000, 'not the five seconds of the others')
  letGo()
  for (const name of ['h1', 'h2']) {
    const answer = await hung.shift()
    t.match(answer, { added: [`${name}.a`], removed: [], changed: [] }, 'what others changed is not told')
  }
})

t.test('a refresh tells what became of the tools while it waited, whoever wrote it', async (t) => {
  const { create, add, servers, heard } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const all = ['fast', 'slow'].map((name) => add(name, { tools: [tool('a')] }))
  await tools.open(session, all)
  let letGo = () => {}
  const when = new Promise<void>((resolve) => {
    letGo = resolve
  })
  servers.set('con_slow@1', { tools: [tool('a')], when })
  servers.set('con_fast@1', { tools: [tool('a'), tool('b')] })
  const refreshed = tools.refresh(session, 'next')
  await heard((_, { added }) => added.includes('fast.b'))
  letGo()
  t.match(await refreshed, { added: ['fast.b'], prompt_cache: 'invalidated' })
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
  t.ok(await store.connectors.loadList('con_s@1'), 'and its list for a cold start')
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worse.' })] })
  announce('con_s@1')
  await heard((_, { changed }) => changed.includes('s.a'))
  t.match((await tools.list(session, null)).tools.at(-1), { status: 'changed' })
})

t.test('of two first uses at once the first counts, for both', async (t) => {
  const { create, add, store } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const { pinFirst, pin } = store.connectors
  store.connectors.pinFirst = async (id, definitions) => {
    await pin(id, 'a', hashOf(tool('a', { description: 'As another replica saw it.' })), {})
    return pinFirst(id, definitions)
  }
  await tools.open(session, [add('s', { tools: [tool('a')] }, { pin: 'block' })])
  t.match((await tools.list(session, null)).tools.at(-1), { status: 'changed', reason: /accept/ })
})

t.test('a turn waits for what a caller is changing, and for what a server has announced', async (t) => {
  const { create, add, mcp, servers, store } = setUp(t)
  let isOutdated = false
  const list: typeof mcp.list = (...asked) => {
    isOutdated = false
    return mcp.list(...asked)
  }
  const tools = create({ ...mcp, list, isOutdated: () => isOutdated })
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a')] })])
  const bindings = await store.connectors.bindings('ses_1')
  const { put } = store.registry
  store.registry.put = async (changes) => {
    await new Promise((resolve) => setTimeout(resolve, 20))
    return put(changes)
  }
  const changed = tools.setEnabled(session, 's.a', false, 'next')
  t.ok(tools.isBehind('ses_1'))
  await tools.bringUpToDate('ses_1', 1_000, bindings)
  t.match(found((await tools.current('ses_1')).tools, 's.a'), { enabled: false })
  await changed
  servers.set('con_s@1', { tools: [tool('b')] })
  isOutdated = true
  await tools.bringUpToDate('ses_1', 1_000, bindings)
  t.match((await tools.current('ses_1')).tools.at(-1), { canonical_name: 's.b' })
})

t.test('a connector that was changed elsewhere is asked anew by the next turn', async (t) => {
  const { create, add, store } = setUp(t)
  const tools = create()
  await tools.open(sessionOf('ses_1'), [add('s', { tools: [tool('a')] })])
  add('s', { tools: [tool('b')] }, { config_revision: 2 })
  await tools.bringUpToDate('ses_1', 1_000, await store.connectors.bindings('ses_1'))
  const names = (await tools.current('ses_1')).tools.map((one) => one.canonical_name)
  t.strictSame(names, ['look_up', 's.b'])
})

t.test('a session that could not be written with the others is written by itself', async (t) => {
  for (const fail of [async () => [], () => Promise.reject(new Error('one of them cannot be written'))]) {
    const { create, add, servers, announce, heard, store } = setUp(t)
    const tools = create()
    await tools.open(sessionOf('ses_1'), [add('s', { tools: [tool('a')] })])
    const { put } = store.registry
    store.registry.put = () => {
      store.registry.put = put
      return fail()
    }
    servers.set('con_s@1', { tools: [tool('a'), tool('b')] })
    announce('con_s@1')
    await heard((_, { added }) => added.includes('s.b'))
  }
})

t.test('a session whose turn waits is written before those that merely follow', async (t) => {
  const { create, add, servers, announce, store } = setUp(t)
  const tools = create()
  const one = add('s', { tools: [tool('a')] })
  const ids = Array.from({ length: 120 }, (_, i) => `ses_${i}`)
  for (const id of ids) await tools.open(sessionOf(id), [one])
  const { put } = store.registry
  const lots: string[][] = []
  const last = new Promise<void>((resolve) => {
    store.registry.put = async (changes) => {
      lots.push(changes.map(({ session_id }) => session_id))
      if (lots.length === 1) void tools.bringUpToDate('ses_119', 0)
      if (lots.length === 3) resolve()
      await new Promise(setImmediate)
      return put(changes)
    }
  })
  servers.set('con_s@1', { tools: [tool('b')] })
  announce('con_s@1')
  await last
  t.equal(lots[1]?.[0], 'ses_119')
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

t.test('an older list takes nothing away that another replica saw since', async (t) => {
  const { create, add, servers, said, asked, store } = setUp(t)
  const here = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')] })
  await here.open(session, [one])
  add('other', { tools: [tool('a')] })
  // Lists of one millisecond have no order.
  await new Promise((resolve) => setTimeout(resolve, 5))
  const newer = { tools: [tool('b')] }
  const door = createDoor()
  door.servers.set('con_s@1', newer)
  servers.set('con_s@1', newer)
  const there = create(door.mcp)
  t.match(await there.refresh(session, 'next'), { added: ['s.b'], removed: ['s.a'] })
  asked.splice(0)
  t.match(await here.bind(session, 'other', 'next', null), { added: ['other.a'], removed: [] })
  t.strictSame(asked, ['con_other@1', 'con_s@1'], 'and the newer one is asked for')
  await here.bringUpToDate('ses_1', 1_000, await store.connectors.bindings('ses_1'))
  t.equal(said.filter(({ delta }) => delta.removed.length > 0).length, 1)
})

t.test(
  'a list that is asked for here is taken over, however far ahead another replica’s clock is',
  async (t) => {
    mock.timers.enable({ apis: ['Date'], now: Date.now() })
    t.teardown(() => mock.timers.reset())
    const { create, add, servers } = setUp(t)
    const session = sessionOf('ses_1')
    const here = create()
    await here.open(session, [add('s', { tools: [tool('a')] })])
    const door = createDoor()
    door.servers.set('con_s@1', { tools: [tool('b')] })
    const there = create(door.mcp)
    mock.timers.tick(60_000)
    await there.refresh(session, 'next')
    mock.timers.setTime(Date.now() - 50_000)
    servers.set('con_s@1', {
      tools: [tool('c')],
      get when() {
        return new Promise((resolve) => setTimeout(resolve, 30))
      },
    })
    t.match(await here.refresh(session, 'next'), { added: ['s.c'], removed: ['s.b'] })
  },
)

t.test('a tool was last seen when its list was asked for last, whether or not it moved', async (t) => {
  const { create, add } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a')] })])
  const seen = async () => (await tools.list(session, null)).tools.at(-1)?.last_seen_at ?? ''
  const first = await seen()
  await new Promise((resolve) => setTimeout(resolve, 5))
  t.match(await tools.refresh(session, 'next'), { changed: [] })
  t.ok((await seen()) > first, `${await seen()} after ${first}`)
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

t.test('a change that another writer overtook is made anew', async (t) => {
  const { create, add, store, rows } = setUp(t)
  const [here, there] = [create(), create()]
  const session = sessionOf('ses_1')
  await here.open(session, [add('s', { tools: [tool('a'), tool('b')] })])
  const { put } = store.registry
  store.registry.put = async (changes) => {
    store.registry.put = put
    await there.setEnabled(session, 's.b', false, 'next')
    return put(changes)
  }
  t.match(await here.setEnabled(session, 's.a', false, 'next'), { tools_revision: 3, changed: ['s.a'] })
  t.strictSame(
    rows.get('ses_1')?.tools.map(({ enabled }) => enabled),
    [true, false, false],
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

t.test('a tool that is off stays off while its server is bound, whatever becomes of the list', async (t) => {
  const { create, add, servers, connectors } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a'), tool('b')] })
  await tools.open(session, [one])
  const enabled = async () =>
    (await tools.list(session, null)).tools.flatMap((it) =>
      it.server ? [[it.canonical_name, it.enabled]] : [],
    )
  const listing = async (names: string[]) => {
    servers.set(`${one.id}@${one.config_revision}`, { tools: names.map((name) => tool(name)) })
    await tools.refresh(session, 'next')
  }
  await tools.setEnabled(session, 's.a', false, 'next')
  await listing(['b'])
  t.strictSame(await enabled(), [['s.b', true]])
  await listing(['a', 'b'])
  t.strictSame(await enabled(), [
    ['s.b', true],
    ['s.a', false],
  ])
  connectors.set(one.id, { ...one, name: 'renamed' })
  await tools.refresh(session, 'next')
  t.strictSame(await enabled(), [
    ['renamed.a', false],
    ['renamed.b', true],
  ])
  await tools.setEnabled(session, 'renamed.a', true, 'next')
  await listing(['b'])
  await listing(['a', 'b'])
  t.strictSame(await enabled(), [
    ['renamed.b', true],
    ['renamed.a', true],
  ])
  await tools.setEnabled(session, 'renamed.b', false, 'next')
  await tools.unbind(session, one.id, 'next')
  await tools.bind(session, one.id, 'next', null)
  t.strictSame(
    await enabled(),
    [
      ['renamed.a', true],
      ['renamed.b', true],
    ],
    'bound anew, it begins anew',
  )
})

t.test('changes that come together take effect together', async (t) => {
  const { create, add, told } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const names = Array.from({ length: 45 }, (_, i) => `t${i}`)
  await tools.open(session, [add('s', { tools: names.map((name) => tool(name)) })])
  const changes = names.map((name) => tools.setEnabled(session, `s.${name}`, false, 'now'))
  const revisions = (await Promise.all(changes)).map(({ tools_revision }) => tools_revision)
  t.equal(new Set(revisions).size, 45)
  t.equal(told.length, 1)
  t.match(told, [{ apply: 'now', tools_revision: Math.max(...revisions) }])
  t.strictSame([...(told[0]?.removed ?? [])].sort(), names.map((name) => `s.${name}`).sort())
})

t.test('a turn waits for callers’ changes without losing the time that it has for servers', async (t) => {
  const { create, add, store } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a'), tool('b')] })])
  const { put } = store.registry
  store.registry.put = async (changes) => {
    await new Promise((resolve) => setTimeout(resolve, 60))
    return put(changes)
  }
  const changes = ['s.a', 's.b'].map((name) => tools.setEnabled(session, name, false, 'next'))
  t.ok(tools.isBehind('ses_1'))
  t.ok((await tools.bringUpToDate('ses_1', 0)) < 60)
  t.notOk((await tools.current('ses_1')).tools.some(({ server, enabled }) => server === 's' && enabled))
  await Promise.all(changes)
})

t.test('a change that nobody told of is in the list all the same', async (t) => {
  const { create, add } = setUp(t)
  const [here, there] = [create(), create()]
  const session = sessionOf('ses_1')
  await here.open(session, [])
  add('s', { tools: [tool('a')] })
  const { tools_revision } = await there.bind(session, 's', 'next', null)
  t.equal((await here.list(session, null)).revision, tools_revision)
  t.equal((await here.newest('ses_1')).revision, tools_revision)
})

t.test('what was changed for the next step can be made to hold now by asking again', async (t) => {
  const { create, add, told } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a')] })])
  for (const apply of ['next', 'now'] as const) await tools.setEnabled(session, 's.a', false, apply)
  const { revision } = await tools.current('ses_1')
  t.match(told, [
    { changed: ['s.a'], removed: ['s.a'], tools_revision: revision, apply: 'next' },
    { changed: [], removed: ['s.a'], tools_revision: revision, apply: 'now' },
  ])
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

t.test('what is accepted is taken over by a session’s next turn on any replica', async (t) => {
  const { create, add, servers, store } = setUp(t)
  const [here, there] = [create(), create()]
  const one = add('s', { tools: [tool('a')] }, { pin: 'block' })
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worse.' })] })
  await store.connectors.pin(one.id, 'a', hashOf(tool('a')), tool('a'))
  const places = [
    ['ses_here', here],
    ['ses_there', there],
  ] as const
  const status = async (tools: typeof here, id: string) =>
    (await tools.current(id)).tools.find(({ canonical_name }) => canonical_name === 's.a')?.status
  for (const [id, tools] of places) {
    await tools.open(sessionOf(id), [one])
    t.equal(await status(tools, id), 'changed')
  }
  // Theirs are too many to follow at once.
  store.connectors.sessionsOf = async () => []
  await here.accept({ owner: 'o', admin: false, key_id: null }, one, 'a')
  for (const [id, tools] of places) {
    await tools.bringUpToDate(id, 1_000, await store.connectors.bindings(id))
    t.equal(await status(tools, id), 'available', id)
  }
})

t.test('what is accepted reaches a session that waited for something else', async (t) => {
  const { create, add, servers, announce, heard, store } = setUp(t)
  const tools = create()
  const [session, busy] = [sessionOf('ses_1'), sessionOf('ses_2')]
  const one = add('s', { tools: [tool('a')] }, { pin: 'block' })
  await tools.open(session, [one])
  await tools.open(busy, [add('other', { tools: [tool('x')] })])
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worse.' })] })
  announce('con_s@1')
  await heard((_, { changed }) => changed.includes('s.a'))
  const { grounds } = store.registry
  let go = () => {}
  const held = new Promise<void>((resolve) => {
    go = resolve
  })
  store.registry.grounds = async (known) => {
    if (known.some(({ session_id }) => session_id === busy.id)) await held
    return grounds(known)
  }
  const soon = () => new Promise((resolve) => setTimeout(resolve, 20))
  servers.set('con_other@1', { tools: [tool('x'), tool('y')] })
  announce('con_other@1')
  await soon()
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worst.' })] })
  announce('con_s@1')
  await soon()
  await tools.refresh(session, 'next')
  const accepted = tools.accept({ owner: 'o', admin: false, key_id: null }, one, 'a')
  await soon()
  go()
  await accepted
  t.match((await tools.list(session, null)).tools.at(-1), { canonical_name: 's.a', status: 'available' })
})

t.test('what is accepted is the newest definition that any replica saw', async (t) => {
  const { create, add, servers, heard } = setUp(t)
  const here = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')] }, { pin: 'block' })
  await here.open(session, [one])
  const other = createDoor()
  other.servers.set('con_s@1', { tools: [tool('a', { description: 'Newer.' })] })
  // Lists of one millisecond have no order.
  await new Promise((resolve) => setTimeout(resolve, 5))
  const there = create(other.mcp)
  await there.refresh(session, 'next')
  await heard((_, { changed }) => changed.includes('s.a'))
  here.noteRevision('ses_1', there.latestRevision('ses_1'))
  t.match((await here.list(session, null)).tools.at(-1), { diff: [{ after: 'Newer.' }] })
  const caller = { owner: 'o', admin: false, key_id: null }
  const { hash } = await here.accept(caller, one, 'a')
  t.equal(hash, hashOf(tool('a', { description: 'Newer.' })))
  // After a start the server is away: what was seen of it is stored.
  servers.set('con_s@1', { error: new McpError('unavailable', 'refused', { sent: false }) })
  t.equal((await create(createDoor().mcp).accept(caller, one, 'a')).hash, hash)
  const unseen = add('unseen', { error: new McpError('unavailable', 'refused', { sent: false }) })
  await t.rejects(here.accept(caller, unseen, 'a'), { code: 'unavailable', message: /refused/ })
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

t.test('a server that takes longer than callers wait joins by the same attempt', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { mcp, servers, asked } = createDoor()
  let answer = () => {}
  const when = new Promise<void>((resolve) => {
    answer = resolve
  })
  servers.set('s', { tools: [tool('a')], when })
  const discovery = createDiscovery({
    store: createMemory().store,
    mcp,
    specFor: ({ name }) => ({ key: name, name, transport: 'streamable_http', allowPrivate: true }),
    log: pino({ level: 'silent' }),
  })
  const bindings = [{ connector: connector('s'), alias: null }]
  const bound = discovery.lookUp(bindings, { deadlineMs: 'budget' })
  mock.timers.tick(5_500)
  t.match(await bound, [{ state: 'away', reason: /not ready within 5000 ms/ }])
  t.match(await discovery.lookUp(bindings, { deadlineMs: 400 }), [{ state: 'away' }], 'no turn waits again')
  const arrived = new Promise((resolve) => discovery.onArrival(resolve))
  mock.timers.tick(10_000)
  answer()
  await arrived
  t.match(await discovery.lookUp(bindings, { deadlineMs: 0 }), [{ state: 'live', tools: [{ name: 'a' }] }])
  t.strictSame(asked, ['s'])
  servers.set('s', { tools: [tool('b')], when: new Promise(() => {}) })
  const again = discovery.lookUp(bindings, { deadlineMs: 'budget', refresh: true })
  mock.timers.tick(5_500)
  t.match(await again, [{ state: 'pending', tools: [{ name: 'a' }] }], 'it is there, and takes its time')
  t.match(await discovery.lookUp(bindings, { deadlineMs: 0 }), [{ state: 'live', tools: [{ name: 'a' }] }])
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

t.test('a list is asked for again when its server says that it is old, and not before', async (t) => {
  mock.timers.enable({ apis: ['Date'], now: Date.now() })
  t.teardown(() => mock.timers.reset())
  const { mcp, servers, asked } = createDoor()
  servers.set('brief', { tools: [tool('a')], ttlMs: 20_000 })
  servers.set('lasting', { tools: [tool('a')], ttlMs: 3_600_000 })
  const discovery = createDiscovery({
    store: createMemory().store,
    mcp,
    specFor: ({ name }) => ({ key: name, name, transport: 'streamable_http', allowPrivate: true }),
    log: pino({ level: 'silent' }),
  })
  const bindings = ['brief', 'lasting'].map((name) => ({ connector: connector(name), alias: null }))
  const lookUp = () => discovery.lookUp(bindings, { deadlineMs: 1_000, refresh: false })
  await lookUp()
  mock.timers.tick(10_000)
  await lookUp()
  t.strictSame(asked, ['brief', 'lasting'])
  mock.timers.tick(15_000)
  t.strictSame(
    discovery.marks(bindings).map((mark) => mark !== null),
    [false, true],
  )
  await lookUp()
  mock.timers.tick(30 * 60_000)
  await lookUp()
  t.strictSame(asked, ['brief', 'lasting', 'brief', 'brief'])
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
