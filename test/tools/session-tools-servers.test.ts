/** A session's tools while their servers are away, slow, changed or announcing; on doubles of store and door. */
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import { McpError } from '../../src/mcp/contract.ts'
import type { Session } from '../../src/store/store.ts'
import { AVAILABLE, NONE } from '../patterns.ts'
import { gate } from '../waiting.ts'
import { found, sessionOf, setUp, tool } from './session-tools-doubles.ts'

t.test(
  'an announced change reaches each session that binds the server once, if the list did change',
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
    t.equal(said.length, before + 2, 'nothing is said if nothing changed')
    t.ok(asked.length > 0)
  },
)

t.test('a server is not asked again once another replica has changed or deleted its connector', async (t) => {
  const { create, add, asked, mcp } = setUp(t)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const released: string[] = []
  mcp.release = (key) => void released.push(key)
  const tools = create()
  await tools.open(sessionOf('ses_1'), [add('gone', {}), add('there', {})])
  tools.letGo('con_gone@1')
  t.strictSame(released, ['con_gone@1'], 'nor is it connected')
  asked.length = 0
  mock.timers.tick(60_000)
  t.strictSame(asked, ['con_there@1'])
})

t.test('a session that is opened has the tools of a server that takes a while to answer', async (t) => {
  const { create, add } = setUp(t)
  const tools = create()
  const { opened: when, open: letGo } = gate()
  const opening = tools.open(sessionOf('ses_1'), [add('s', { tools: [tool('a')], when })])
  t.equal(await Promise.race([opening.then(() => 'opened'), sleep(100).then(() => 'waiting')]), 'waiting')
  letGo()
  await opening
  t.match((await tools.current('ses_1')).tools.at(-1), { canonical_name: 's.a', status: AVAILABLE })
})

t.test('a server that is away when it is bound joins when it is there, without a turn', async (t) => {
  const { create, add, servers, heard, said } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [])
  const one = add('s', { error: new McpError('unavailable', 'refused', { sent: false }) })
  t.match(await tools.bind(session, 's', 'next', null), { added: NONE, prompt_cache: 'kept' })
  servers.set(`${one.id}@1`, { tools: [tool('a')] })
  await heard((_, { added }) => added.includes('s.a'))
  t.equal(said.filter(({ delta }) => delta.added.includes('s.a')).length, 1)
  t.match((await tools.current('ses_1')).tools.at(-1), { canonical_name: 's.a', status: AVAILABLE })
})

t.test('a bind or refresh asks a server even in its back-off, and opening a session does not', async (t) => {
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
  t.equal(insisted.length, 2, 'a bind asks no server whose list is known')
})

t.test('the tools last listed by a server that is away are unavailable', async (t) => {
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

t.test('a read asks no server because its list has grown old, and writes nothing', async (t) => {
  const { create, add, servers, asked, written, store } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a')], ttlMs: 200 })
  await tools.open(session, [one])
  servers.set(`${one.id}@1`, { error: new McpError('unavailable', 'refused', { sent: false }) })
  await sleep(250)
  const before = [asked.length, written.length]
  t.match((await tools.list(session, null)).tools.at(-1), { canonical_name: 's.a', status: AVAILABLE })
  t.strictSame([asked.length, written.length], before)
  await tools.bringUpToDate('ses_1', 1_000, await store.connectors.bindings('ses_1'))
  t.ok(asked.length > (before[0] ?? 0), 'the next turn asks')
})

t.test('news of a server that come while the store is away are taken over by the next turn', async (t) => {
  const { create, add, servers, announce, store } = setUp(t)
  const tools = create()
  const one = add('s', { tools: [tool('a')] })
  await tools.open(sessionOf('ses_1'), [one])
  const { opened: failed, open: fail } = gate()
  store.connectors.sessionsOf = async () => {
    fail()
    throw new BatonError('unavailable', 'away')
  }
  servers.set(`${one.id}@1`, { tools: [tool('a'), tool('b')] })
  announce(`${one.id}@1`)
  await failed
  await tools.bringUpToDate('ses_1', 1_000)
  t.ok(found((await tools.current('ses_1')).tools, 's.b'))
})

t.test('a gateway that shuts down does not write that its servers are away', async (t) => {
  const { create, add, mcp, announce, rows } = setUp(t)
  const one = add('s', { tools: [tool('a')] })
  const { opened: cut, open: cutOff } = gate()
  let isEnding = false
  const closed = async () => {
    await cut
    throw new McpError('unavailable', 'The gateway is shutting down.', { sent: false })
  }
  const tools = create({
    ...mcp,
    list: (...wanted) => (isEnding ? closed() : mcp.list(...wanted)),
    cached: (key) => (isEnding ? null : mcp.cached(key)),
  })
  await tools.open(sessionOf('ses_1'), [one])
  isEnding = true
  announce(`${one.id}@1`)
  await tools.close()
  cutOff()
  await tools.connectorChanged(one)
  await sleep(200)
  t.equal(found(rows.get('ses_1')?.tools ?? [], 's.a').status, 'available')
})

t.test('a turn waits for all servers together no longer than it was told', async (t) => {
  const { create, add, heard } = setUp(t)
  const seed = create()
  const { opened: when, open: letGo } = gate()
  const session = sessionOf('ses_1')
  await seed.open(session, [])
  for (const name of ['slow', 'other']) add(name, { tools: [tool('a')], when })
  const bound = Promise.all(['slow', 'other'].map((name) => seed.bind(session, name, 'next', null)))
  const started = performance.now()
  await seed.bringUpToDate('ses_1', 50)
  t.ok(performance.now() - started < 4_000, 'it does not wait the five seconds of a bind')
  t.notOk((await seed.current('ses_1')).tools.some(({ server: name }) => name === 'slow'))
  letGo()
  await bound
  await heard((_, { added }) => added.includes('slow.a'))
})

t.test('a change waits for its own server only', async (t) => {
  const { create, add } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const { opened: when, open: letGo } = gate()
  t.teardown(() => letGo())
  const fast = ['f1', 'f2'].map((name) => add(name, { tools: [tool('a')] }))
  for (const name of ['h1', 'h2', 'f3']) add(name, { tools: [tool('a')], ...(name === 'f3' ? {} : { when }) })
  await tools.open(session, fast)
  const from = performance.now()
  const hung = ['h1', 'h2'].map((name) => tools.bind(session, name, 'next', null))
  t.match(await tools.unbind(session, 'f1', 'now'), { removed: ['f1.a'] })
  t.match(await tools.setEnabled(session, 'f2.a', false, 'now'), { changed: ['f2.a'] })
  t.match(await tools.bind(session, 'f3', 'now', null), { added: ['f3.a'] })
  t.ok(performance.now() - from < 2_000, 'they do not wait the five seconds of the others')
  letGo()
  for (const name of ['h1', 'h2']) {
    const answer = await hung.shift()
    t.match(
      answer,
      { added: [`${name}.a`], removed: NONE, changed: NONE },
      'an answer names no change of other callers',
    )
  }
})

t.test('simultaneous changes take effect together although their servers answer one by one', async (t) => {
  const { create, add, told } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [])
  const changes = [0, 30, 60].map(async (ms) => {
    const { name } = add(`s${ms}`, { tools: [tool('a')], when: sleep(ms) })
    const { added } = await tools.bind(session, name, 'now', null)
    // Another server may have answered before the revision was written.
    t.ok(added.includes(`${name}.a`))
  })
  await Promise.all(changes)
  t.equal(told.length, 1)
})

t.test('the next turn takes over what servers have announced, however slow the store is', async (t) => {
  const { create, add, servers, store, rows } = setUp(t)
  const tools = create()
  const sessions = ['ses_1', 'ses_2'].map(sessionOf)
  const one = add('s', { tools: [tool('a')] })
  for (const session of sessions) await tools.open(session, [one])
  const bindings = await store.connectors.bindings('ses_1')
  const put = store.registry.put
  const { opened: isSlow, open: letGo } = gate()
  store.registry.put = async (changes) => {
    await isSlow
    return put(changes)
  }
  servers.set('con_s@1', { tools: [tool('a'), tool('b')] })
  const refreshed = tools.refresh(sessions[0] as Session, 'next')
  // The list is known by then. Writing it for every session takes the time.
  while (!tools.isBehind('ses_2')) await new Promise((resolve) => setImmediate(resolve))
  const alive = setTimeout(letGo, 400)
  const waited = await tools.bringUpToDate('ses_2', 20, bindings)
  t.ok(waited < 400, 'time in the store does not count as time for servers')
  t.match(found(rows.get('ses_2')?.tools ?? [], 's.b'), { status: AVAILABLE })
  t.notOk(tools.isBehind('ses_2'))
  await refreshed
  clearTimeout(alive)
})

t.test('a turn waits for a caller’s change and for a change that a server has announced', async (t) => {
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
  servers.set('con_s@1', { tools: [tool('c')], when: sleep(30) })
  isOutdated = true
  await tools.bringUpToDate('ses_1', 1_000)
  t.match((await tools.current('ses_1')).tools.at(-1), { canonical_name: 's.c' }, 'a later step waits, too')
})

t.test('a turn does not go on with the tools that it has while the store is away', async (t) => {
  const { create, add, store } = setUp(t)
  await create().open(sessionOf('ses_1'), [add('s', { tools: [tool('a')] })])
  store.registry.grounds = () => Promise.reject(new BatonError('unavailable', 'away'))
  await t.rejects(create().bringUpToDate('ses_1', 1_000), { code: 'unavailable' })
})

t.test('the next turn asks the server of a connector that was changed at another replica', async (t) => {
  const { create, add, store } = setUp(t)
  const tools = create()
  await tools.open(sessionOf('ses_1'), [add('s', { tools: [tool('a')] })])
  add('s', { tools: [tool('b')], when: sleep(30) }, { config_revision: 2 })
  await tools.bringUpToDate('ses_1', 1_000, await store.connectors.bindings('ses_1'))
  const names = (await tools.current('ses_1')).tools.map((one) => one.canonical_name)
  t.strictSame(names, ['look_up', 's.b'])
})

t.test(
  'a server is followed for as long as turns use it, however long its list is to be fresh',
  async (t) => {
    const { create, add, mcp, store, asked } = setUp(t)
    let now = 0
    mock.method(performance, 'now', () => now)
    t.teardown(() => mock.restoreAll())
    let followedUntil = 0
    const interest: typeof mcp.interest = (_, forMs) => {
      followedUntil = now + forMs
    }
    const tools = create({ ...mcp, interest })
    await tools.open(sessionOf('ses_1'), [add('s', { tools: [tool('a')], ttlMs: 24 * 3_600_000 })])
    const bindings = await store.connectors.bindings('ses_1')
    for (let i = 0; i < 5; i++) {
      now += 4 * 60_000
      t.ok(now < followedUntil, 'its announcements are heard')
      await tools.bringUpToDate('ses_1', 400, bindings)
    }
    t.strictSame(asked, ['con_s@1'])
  },
)
