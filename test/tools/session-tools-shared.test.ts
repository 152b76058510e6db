/**
 * A session's tools that several writers change: replicas, sessions of one server, callers that accept a definition; on
 * doubles of store and door.
 */
import { mock } from 'node:test'
import t from 'tap'
import { McpError } from '../../src/mcp/contract.ts'
import { hashOf } from '../../src/tools/definition.ts'
import { AVAILABLE, NONE } from '../patterns.ts'
import { gate } from '../waiting.ts'
import { createDoor, found, sessionOf, setUp, tool } from './session-tools-doubles.ts'

t.test('a refresh tells all changes of the tools while it waited, whoever wrote them', async (t) => {
  const { create, add, servers, heard } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const all = ['fast', 'slow'].map((name) => add(name, { tools: [tool('a')] }))
  await tools.open(session, all)
  const { opened: when, open: letGo } = gate()
  servers.set('con_slow@1', { tools: [tool('a')], when })
  servers.set('con_fast@1', { tools: [tool('a'), tool('b')] })
  const refreshed = tools.refresh(session, 'next')
  await heard((_, { added }) => added.includes('fast.b'))
  letGo()
  t.match(await refreshed, { added: ['fast.b'], prompt_cache: 'invalidated' })
})

t.test('a definition is pinned before a model can get it, also from a list that was cached', async (t) => {
  const { create, add, mcp, store, servers, heard, announce } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')] }, { pin: 'block' })
  await mcp.list({ key: 'con_s@1' } as never, { timeoutMs: 1_000 })
  const put = store.registry.put
  store.registry.put = async (changes) => {
    t.match(await store.connectors.pins('con_s', ['a']), [{ tool: 'a', hash: hashOf(tool('a')) }])
    return put(changes)
  }
  await tools.open(session, [one])
  store.registry.put = put
  t.ok(await store.connectors.loadList('con_s@1'), 'the list is kept for a cold start')
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worse.' })] })
  announce('con_s@1')
  await heard((_, { changed }) => changed.includes('s.a'))
  t.match((await tools.list(session, null)).tools.at(-1), { status: 'changed' })
})

t.test('if two replicas use a tool first at once, the definition that was pinned first counts', async (t) => {
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

t.test('a turn goes on with the tools that it has if other writers always come first', async (t) => {
  const { create, add, servers, store, announce } = setUp(t)
  const tools = create()
  await tools.open(sessionOf('ses_1'), [add('s', { tools: [tool('a')] })])
  const bindings = await store.connectors.bindings('ses_1')
  let tries = 0
  store.registry.put = async () => {
    tries++
    return []
  }
  servers.set('con_s@1', { tools: [tool('a'), tool('b')] })
  announce('con_s@1')
  while (!tools.isBehind('ses_1')) await new Promise((resolve) => setImmediate(resolve))
  await tools.bringUpToDate('ses_1', 20, bindings)
  t.ok(tries > 1, 'the write was tried again')
  t.ok(found((await tools.current('ses_1')).tools, 's.a'))
  const late = tools.setEnabled(sessionOf('ses_1'), 's.a', false, 'next')
  await t.rejects(late, { code: 'unavailable', retryAfter: 1 }, 'a caller is told to try again')
})

t.test('a session that could not be written with others is written alone', async (t) => {
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

t.test('a session whose turn waits is written before sessions without a turn', async (t) => {
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

t.test('a process that knows no list yet leaves tools that another process wrote as they are', async (t) => {
  const { create, add, servers, written } = setUp(t)
  const [a, b] = [add('a', { tools: [tool('x')] }), add('b', { tools: [tool('y')] })]
  const session = sessionOf('ses_1')
  await create().open(session, [a, b])
  const { opened: when, open: letGo } = gate()
  servers.set('con_b@1', { tools: [tool('y')], when })
  const door = createDoor()
  for (const [key, answer] of servers) door.servers.set(key, answer)
  const restarted = create(door.mcp)
  const gone = await restarted.unbind(session, 'a', 'next')
  t.match(gone, { removed: ['a.x'], changed: NONE, added: NONE }, 'the other server does not count as away')
  t.match(found((await restarted.current('ses_1')).tools, 'b.y'), { status: AVAILABLE, reason: null })
  letGo()
  await restarted.bringUpToDate('ses_1', 1_000)
  t.equal(written.length, 2)
})

t.test('a list and a preview show at once what a change of a connector leaves', async (t) => {
  const { create, add, store } = setUp(t)
  const session = sessionOf('ses_1')
  const tools = create()
  await tools.open(session, [add('s', { tools: [tool('a'), tool('b')] })])
  const names = ({ tools }: { tools: readonly { canonical_name: string }[] }) =>
    tools.map(({ canonical_name }) => canonical_name).filter((name) => name.startsWith('s.'))
  add('s', { tools: [tool('a'), tool('c')] }, { config_revision: 2 })
  t.strictSame(names(await tools.list(session, null)), ['s.a', 's.c'])
  add('s', { tools: [tool('a')] }, { config_revision: 3 })
  t.strictSame(names(await tools.present('ses_1')), ['s.a'])
  await store.connectors.unbind('ses_1', 'con_s')
  t.strictSame(names(await tools.present('ses_1')), [])
})

t.test('a list and a preview wait for a changed server that is being asked already', async (t) => {
  const { create, add, servers } = setUp(t)
  const session = sessionOf('ses_1')
  const tools = create()
  await tools.open(session, [add('s', { tools: [tool('a')] })])
  const patched = add('s', {}, { config_revision: 2 })
  const { opened: when, open: letGo } = gate()
  servers.set('con_s@2', { tools: [tool('a'), tool('b')], when })
  await tools.connectorChanged(patched)
  t.ok(tools.isBehind('ses_1'), 'a step of a turn waits for it, too, also before the server is asked')
  await tools.bringUpToDate('ses_1', 0)
  t.ok(tools.isBehind('ses_1'), 'and then')
  const [listed, present] = [tools.list(session, null), tools.present('ses_1')]
  letGo()
  t.ok((await listed).tools.some(({ canonical_name }) => canonical_name === 's.b'))
  t.ok(found((await present).tools, 's.b'))
})

t.test('a list after a start shows what was configured meanwhile, and asks no server', async (t) => {
  const { create, add, connectors, said } = setUp(t)
  const session = sessionOf('ses_1')
  const all = ['gone', 'moved', 'narrowed', 'still'].map((name) =>
    add(name, { tools: [tool('a'), tool('b')] }),
  )
  const former = create()
  await former.open(session, all)
  await former.close()
  const before = said.length
  connectors.delete('con_gone')
  add('moved', { tools: [tool('b'), tool('c')] }, { config_revision: 2 })
  add('narrowed', {}, { config_revision: 2, deny_tools: ['b'] })
  const next = createDoor()
  next.servers.set('con_moved@2', { tools: [tool('b'), tool('c')] })
  // The start does this for the servers of the configuration.
  await next.mcp.list({ key: 'con_moved@2' } as never)
  const tools = create(next.mcp)
  const { revision, tools: shown } = await tools.list(session, null)
  t.strictSame(
    shown.map(({ canonical_name, status }) => `${canonical_name} ${status}`),
    [
      'look_up available',
      'moved.b available',
      'narrowed.a available',
      'still.a available',
      'still.b available',
      'moved.c available',
    ],
  )
  t.equal((await tools.present(session.id)).revision, revision)
  t.strictSame(next.asked, ['con_moved@2'])
  // The process before may have had an update under way, which saw some of it.
  const told = (which: 'added' | 'removed' | 'changed') =>
    said
      .slice(before)
      .flatMap(({ delta }) => delta[which])
      .sort()
  t.strictSame(told('added'), ['moved.c'])
  t.strictSame(told('removed'), ['gone.a', 'gone.b', 'moved.a', 'narrowed.b'])
  t.strictSame(told('changed'), [])
  await tools.bringUpToDate(session.id, 1_000)
  t.ok(next.asked.includes('con_still@1'), 'the next turn asks the servers')
})

t.test('a list does not write that a server is away which only this replica cannot reach', async (t) => {
  const { create, add, written } = setUp(t)
  const session = sessionOf('ses_1')
  await create().open(session, [add('s', { tools: [tool('a')] })])
  const door = createDoor()
  const cutOff = create(door.mcp)
  const { tools } = await cutOff.list(session, null)
  t.match(
    tools.find(({ canonical_name }) => canonical_name === 's.a'),
    { status: AVAILABLE },
  )
  t.equal(written.length, 1)
  t.same(door.asked, [])
})

t.test(
  'a server that another replica has found again is not away because this one has yet to try',
  async (t) => {
    const { create, add, servers, store, written } = setUp(t)
    const session = sessionOf('ses_1')
    const here = create()
    await here.open(session, [add('s', { tools: [tool('a')] })])
    const bindings = await store.connectors.bindings('ses_1')
    const door = createDoor()
    const there = create(door.mcp)
    const isAt = async (status: unknown, words: string) =>
      t.match((await here.current('ses_1')).tools.at(-1), { canonical_name: 's.a', status }, words)
    servers.delete('con_s@1')
    await here.refresh(session, 'next')
    await there.refresh(session, 'next')
    await isAt('unavailable', 'neither reaches it')
    await new Promise((resolve) => setTimeout(resolve, 5))
    servers.set('con_s@1', { tools: [tool('a')] })
    await here.refresh(session, 'next')
    await isAt(AVAILABLE, 'one does')
    const count = written.length
    await there.bringUpToDate('ses_1', 400, bindings)
    t.equal(written.length, count, 'the other has not tried since')
    await new Promise((resolve) => setTimeout(resolve, 5))
    await there.refresh(session, 'next')
    t.match(written.at(-1)?.tools.at(-1), { status: 'unavailable' }, 'it has tried')
  },
)

t.test('an older list removes no tool that another replica has seen since', async (t) => {
  const { create, add, servers, said, asked, store } = setUp(t)
  const here = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')] })
  await here.open(session, [one])
  add('other', { tools: [tool('a')] })
  // Two lists of the same millisecond would have no order.
  await new Promise((resolve) => setTimeout(resolve, 5))
  const newer = { tools: [tool('b')] }
  const door = createDoor()
  door.servers.set('con_s@1', newer)
  servers.set('con_s@1', newer)
  const there = create(door.mcp)
  t.match(await there.refresh(session, 'next'), { added: ['s.b'], removed: ['s.a'] })
  const other = sessionOf('ses_2')
  await there.open(other, [one])
  t.match((await here.list(other, null)).tools.at(-1), { canonical_name: 's.b', status: AVAILABLE })
  asked.splice(0)
  t.match(await here.bind(session, 'other', 'next', null), { added: ['other.a'], removed: NONE })
  t.strictSame(asked, ['con_other@1', 'con_s@1'], 'the replica asks the server for the newer list')
  await here.bringUpToDate('ses_1', 1_000, await store.connectors.bindings('ses_1'))
  t.equal(said.filter(({ delta }) => delta.removed.length > 0).length, 1)
})

t.test(
  'a list that this replica asked for is taken over although another replica’s clock is ahead',
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

t.test('a tool’s last_seen_at is the time of its last list, whether or not the tool changed', async (t) => {
  const { create, add } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a')] })])
  const seen = async () => (await tools.list(session, null)).tools.at(-1)?.last_seen_at ?? ''
  const first = await seen()
  await new Promise((resolve) => setTimeout(resolve, 5))
  t.match(await tools.refresh(session, 'next'), { changed: NONE })
  t.ok((await seen()) > first, `${await seen()} after ${first}`)
})

t.test('two replicas that write at once lose no change', async (t) => {
  const { create, add, written } = setUp(t)
  const [left, right] = [create(), create()]
  const session = sessionOf('ses_1')
  const all = Array.from({ length: 6 }, (_, i) => add(`s${i}`, { tools: [tool('a')] }))
  await left.open(session, [])
  await Promise.all(all.map(({ name }, i) => (i % 2 ? left : right).bind(session, name, 'next', null)))
  await Promise.all([left.bringUpToDate('ses_1', 1_000), right.bringUpToDate('ses_1', 1_000)])
  right.noteRevision('ses_1', written.at(-1)?.revision ?? 0)
  left.noteRevision('ses_1', written.at(-1)?.revision ?? 0)
  for (const tools of [left, right]) {
    t.strictSame((await tools.current('ses_1')).tools.map((one) => one.canonical_name).sort(), [
      'look_up',
      ...all.map(({ name }) => `${name}.a`),
    ])
  }
  t.strictSame(
    written.map(({ revision }) => revision),
    written.map((_, i) => i + 1),
    'the revisions are consecutive',
  )
})

t.test('a change that another writer overtook is made again on the newer registry', async (t) => {
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

t.test('no revision is served that is older than the one announced', async (t) => {
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

t.test('a list shows a change of another replica that no message told of', async (t) => {
  const { create, add } = setUp(t)
  const [here, there] = [create(), create()]
  const session = sessionOf('ses_1')
  await here.open(session, [])
  add('s', { tools: [tool('a')] })
  const { tools_revision } = await there.bind(session, 's', 'next', null)
  t.equal((await here.list(session, null)).revision, tools_revision)
  t.equal((await here.newest('ses_1')).revision, tools_revision)
})

t.test('a changed definition is blocked until somebody accepts it', async (t) => {
  const { create, add, servers, announce, heard, said, store } = setUp(t)
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
  const { hash } = (await tools.list(session, null)).tools.at(-1) ?? {}
  servers.set('con_s@1', { tools: [tool('a', { description: 'Worse still.' })] })
  await tools.refresh(session, 'next')
  await t.rejects(
    tools.accept(caller, one, 'a', hash),
    { code: 'invalid_request', param: 'hash' },
    'a definition that the caller has not read is not accepted',
  )
  const read = (await tools.list(session, null)).tools.at(-1)
  t.match(read, { status: 'changed', diff: [{ after: 'Worse still.' }], hash: /^[0-9a-f]{64}$/ })
  t.notOk('declarations' in (await tools.list(session, null)), 'no provider is named, so none has its form')
  const before = said.length
  const { pin } = store.connectors
  store.connectors.pin = async (...pinned: Parameters<typeof pin>) => {
    const entry = { owner: 'o', act: 'connector.accept', subject: one.id, details: { tool: 'a' } }
    t.match(pinned.at(-1), entry, 'the audit has it, whatever comes after')
    return pin(...pinned)
  }
  t.same(await tools.accept(caller, one, 'a', read?.hash), { tool: 'a', hash: read?.hash })
  t.equal(said.length, before + 1, 'its sessions follow at once')
  t.match((await tools.list(session, 'openai')).tools.at(-1), { status: AVAILABLE })
  const unknown = { code: 'tool_not_found', message: /name that its server gives/ }
  await t.rejects(tools.accept(caller, one, 'one.a'), unknown)
})

t.test('definitions that changed are not all compared for one answer if that is long', async (t) => {
  const manyUnder = (type: string) => {
    const properties = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`${i}`, { type }]))
    return { inputSchema: { type: 'object', properties: { ['x'.repeat(4_000)]: { properties } } } }
  }
  for (const [before, after] of [
    [{ description: 'x'.repeat(200_000) }, {}],
    // Each difference names the whole way to it.
    [manyUnder('string'), manyUnder('number')],
  ]) {
    const { create, add, store } = setUp(t)
    const tools = create()
    const names = Array.from({ length: 40 }, (_, i) => `${i}`)
    const pins = names.map((name) => ({ tool: name, hash: 'former', definition: tool(name, before) }))
    await store.connectors.pinFirst('con_s', pins)
    await tools.open(sessionOf('ses_1'), [add('s', { tools: names.map((name) => tool(name, after)) })])
    const shown = (await tools.list(sessionOf('ses_1'), null)).tools
    const changed = shown.filter(({ status }) => status === 'changed')
    t.equal(changed.filter(({ hash }) => hash !== undefined).length, 40, 'each can be accepted by its hash')
    const compared = changed.filter(({ diff }) => diff !== undefined)
    t.ok(compared.length > 10 && compared.length < 40, `${compared.length}`)
  }
})

t.test('a session’s next turn on any replica takes over an accepted definition', async (t) => {
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
  // As if the connector had too many sessions to follow at once.
  store.connectors.sessionsOf = async () => []
  await here.accept({ owner: 'o', admin: false, key_id: null }, one, 'a')
  for (const [id, tools] of places) {
    await tools.bringUpToDate(id, 1_000, await store.connectors.bindings(id))
    t.equal(await status(tools, id), 'available', id)
  }
})

t.test('an accepted definition reaches a session whose update waited behind another', async (t) => {
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
  const { opened: held, open: go } = gate()
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
  t.match((await tools.list(session, null)).tools.at(-1), { canonical_name: 's.a', status: AVAILABLE })
})

t.test('accepting a tool accepts the newest definition that any replica saw', async (t) => {
  const { create, add, servers, heard } = setUp(t)
  const here = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')] }, { pin: 'block' })
  await here.open(session, [one])
  const other = createDoor()
  other.servers.set('con_s@1', { tools: [tool('a', { description: 'Newer.' })] })
  // Two lists of the same millisecond would have no order.
  await new Promise((resolve) => setTimeout(resolve, 5))
  const there = create(other.mcp)
  await there.refresh(session, 'next')
  await heard((_, { changed }) => changed.includes('s.a'))
  here.noteRevision('ses_1', there.latestRevision('ses_1'))
  t.match((await here.list(session, null)).tools.at(-1), { diff: [{ after: 'Newer.' }] })
  const caller = { owner: 'o', admin: false, key_id: null }
  const { hash } = await here.accept(caller, one, 'a')
  t.equal(hash, hashOf(tool('a', { description: 'Newer.' })))
  // The server is away after a start: its last definition is stored.
  servers.set('con_s@1', { error: new McpError('unavailable', 'refused', { sent: false }) })
  t.equal((await create(createDoor().mcp).accept(caller, one, 'a')).hash, hash)
  const unseen = add('unseen', { error: new McpError('unavailable', 'refused', { sent: false }) })
  await t.rejects(here.accept(caller, unseen, 'a'), { code: 'unavailable', message: /refused/ })
})
