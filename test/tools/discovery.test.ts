/** What is known of servers: when each server is asked, asked again and forgotten. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t from 'tap'
import { connectorKey } from '../../src/credentials/connector-secret.ts'
import { type Mcp, McpError, type McpState } from '../../src/mcp/contract.ts'
import type { Connector } from '../../src/store/store.ts'
import { createDiscovery, type Discovery } from '../../src/tools/discovery.ts'
import { NONE } from '../patterns.ts'
import { eventually, gate, heldClock } from '../waiting.ts'
import { connector, createDoor, createMemory, tool } from './session-tools-doubles.ts'

const over = (mcp: Mcp, onNews = () => {}, keyOf = ({ name }: Connector) => name): Discovery =>
  createDiscovery({
    store: createMemory().store,
    mcp,
    specFor: (one) => ({ key: keyOf(one), name: one.name, transport: 'streamable_http', allowPrivate: true }),
    onNews,
    log: pino({ level: 'silent' }),
  })

t.test('the server of a connector that was deleted while it was asked is not asked again', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { mcp, servers, asked } = createDoor()
  const { opened: when, open: answer } = gate()
  servers.set('s', { when })
  const gone = connector('s')
  const discovery = over(mcp)
  const known = discovery.lookUp([{ connector: gone, alias: null }], { deadlineMs: 1_000, refresh: true })
  discovery.forget(gone.id)
  answer()
  t.match(await known, [{ state: 'away', reason: /refused/ }])
  mock.timers.tick(60_000)
  t.strictSame(asked, ['s'])
})

t.test('a server that answers after its callers stopped waiting joins by the same attempt', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { mcp, servers, asked } = createDoor()
  const { opened: when, open: answer } = gate()
  servers.set('s', { tools: [tool('a')], when })
  const { opened: arrived, open: onNews } = gate()
  const discovery = over(mcp, onNews)
  const bindings = [{ connector: connector('s'), alias: null }]
  const bound = discovery.lookUp(bindings, { deadlineMs: 'budget' })
  mock.timers.tick(5_500)
  t.match(await bound, [{ state: 'away', reason: /not ready within 5000 ms/ }])
  t.match(
    await discovery.lookUp(bindings, { deadlineMs: 400 }),
    [{ state: 'away' }],
    'a turn does not wait again',
  )
  mock.timers.tick(10_000)
  answer()
  await arrived
  t.match(await discovery.lookUp(bindings, { deadlineMs: 0 }), [{ state: 'live', tools: [{ name: 'a' }] }])
  t.strictSame(asked, ['s'])
  servers.set('s', { tools: [tool('b')], when: new Promise(() => {}) })
  const again = discovery.lookUp(bindings, { deadlineMs: 'budget', refresh: true })
  mock.timers.tick(5_500)
  t.match(
    await again,
    [{ state: 'pending', tools: [{ name: 'a' }] }],
    'a known server that is slow is pending, with its last tools',
  )
  t.match(await discovery.lookUp(bindings, { deadlineMs: 0 }), [{ state: 'live', tools: [{ name: 'a' }] }])
})

t.test('however many turns use a list that has grown old, one attempt asks for a newer one', async (t) => {
  const { mcp, servers, asked } = createDoor()
  const { opened: when, open: answer } = gate()
  servers.set('s', { tools: [tool('a')], ttlMs: 0 })
  const discovery = over(mcp)
  const use = () => discovery.lookUp([{ connector: connector('s'), alias: null }], { deadlineMs: 1_000 })
  await use()
  servers.set('s', { tools: [tool('b')], when })
  for (let turn = 0; turn < 3; turn++) t.match(await use(), [{ state: 'live', tools: [{ name: 'a' }] }])
  t.strictSame(asked, ['s', 's'])
  answer()
  await eventually(async () => (await use())[0]?.tools?.[0]?.name === 'b')
})

t.test('however many callers ask together, a server that is away has failed once', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { mcp, servers, asked, announce } = createDoor()
  const discovery = over(mcp)
  t.teardown(() => discovery.close())
  const bindings = [{ connector: connector('s'), alias: null }]
  const refresh = () => discovery.lookUp(bindings, { deadlineMs: 'budget', refresh: true })
  const passes = async (ms: number) => {
    mock.timers.tick(ms)
    await new Promise(setImmediate)
  }
  await Promise.all(Array.from({ length: 5 }, refresh))
  const before = asked.length
  await passes(1_000)
  await passes(2_000)
  t.equal(asked.length - before, 2, 'it is asked again after one second, and after two more')

  servers.set('s', { tools: [tool('a')] })
  await refresh()
  servers.delete('s')
  for (let i = 0; i < 2; i++) announce('s')
  await passes(0)
  t.ok(discovery.marks(bindings)[0], 'nor is it away for that')
})

t.test('a server that no session uses any more is not asked when it announces a change', async (t) => {
  let now = 0
  mock.method(performance, 'now', () => now)
  t.teardown(() => mock.restoreAll())
  const { mcp, servers, asked, announce } = createDoor()
  servers.set('s', { tools: [tool('a')] })
  const discovery = over(mcp)
  const use = (refresh: boolean) =>
    discovery.lookUp([{ connector: connector('s'), alias: null }], { deadlineMs: 1_000, refresh })
  await use(true)
  announce('s')
  t.strictSame(asked, ['s', 's'])
  now += 3 * 60_000
  await use(false)
  now += 9 * 60_000
  announce('s')
  t.strictSame(asked, ['s', 's', 's'], 'it was used ten minutes ago at most')
  now += 2 * 60_000
  announce('s')
  t.strictSame(asked, ['s', 's', 's'])
})

t.test('of very many servers only those that no session uses any more are forgotten', async (t) => {
  let now = 0
  mock.method(performance, 'now', () => now)
  t.teardown(() => mock.restoreAll())
  const { mcp, servers, asked, announce } = createDoor()
  const discovery = over(mcp)
  const use = (name: string) => {
    servers.set(name, { tools: [tool('a')] })
    return discovery.lookUp([{ connector: connector(name), alias: null }], { deadlineMs: 1_000 })
  }
  await Promise.all(Array.from({ length: 1_010 }, (_, i) => use(`s${i}`)))
  const before = asked.length
  announce('s0')
  t.strictSame(asked.slice(before), ['s0'])
  now += 11 * 60_000
  await use('s1')
  t.equal(discovery.lastSeen('con_s0', 'a'), null)
  t.not(discovery.lastSeen('con_s1', 'a'), null)
  await use('s0')
  t.not(discovery.lastSeen('con_s0', 'a'), null, 'it is known again with its next use')
})

t.test('a server that was away while nobody used it is asked by the next turn', async (t) => {
  const pass = heldClock(t)
  const { mcp, servers, asked } = createDoor()
  const discovery = over(mcp)
  const ofTurn = () => discovery.lookUp([{ connector: connector('s'), alias: null }], { deadlineMs: 400 })
  t.match(await ofTurn(), [{ state: 'away' }])
  await pass(11 * 60_000)
  t.strictSame(asked, ['s'])
  servers.set('s', { tools: [tool('a')] })
  t.match(await ofTurn(), [{ state: 'live' }])
})

t.test('a list stays known though its connector is looked up late as it was before a change', async (t) => {
  const { mcp, servers } = createDoor()
  const discovery = over(mcp, () => {}, connectorKey)
  t.teardown(() => discovery.close())
  const bindings = [2, 1, 2].map((revision) => {
    servers.set(`con_s@${revision}`, { tools: [tool('a')] })
    return { connector: connector('s', { config_revision: revision }), alias: null }
  })
  for (const binding of bindings) await discovery.lookUp([binding], { deadlineMs: 'budget' })
  t.match(discovery.marks(bindings.slice(-1)), [/^con_s@2 /])
})

t.test('a change that is announced while the list is read is asked for', async (t) => {
  const { mcp, servers, asked, announce } = createDoor()
  const { opened: when, open: answer } = gate()
  servers.set('s', { tools: [tool('a')], when })
  const discovery = over(mcp)
  const bindings = [{ connector: connector('s'), alias: null }]
  const read = [discovery.lookUp(bindings, { deadlineMs: 'budget' })]
  read.push(discovery.lookUp(bindings, { deadlineMs: 'budget' }))
  t.strictSame(asked, ['s'], 'callers share one request')
  announce('s')
  t.strictSame(asked, ['s', 's'])
  answer()
  t.match((await Promise.all(read)).flat(), [{ state: 'live' }, { state: 'live' }])
})

t.test('calls that find a server away do not hasten the attempts to reach it again', async (t) => {
  const { mcp, asked, announce } = createDoor()
  let state: McpState = 'down'
  const discovery = over({ ...mcp, status: () => ({ state }) })
  t.teardown(() => discovery.close())
  const bindings = [{ connector: connector('s'), alias: null }]
  t.match(await discovery.lookUp(bindings, { deadlineMs: 'budget' }), [{ state: 'away' }])
  for (let i = 0; i < 20; i++) announce('s')
  t.strictSame(asked, ['s'])
  state = 'ready'
  announce('s')
  t.strictSame(asked, ['s', 's'], 'a server that a call has reached is asked at once')
})

t.test('a server that fails once on an announcement is asked again before it counts as away', async (t) => {
  const { mcp, servers, asked, announce } = createDoor()
  const news: string[] = []
  const discovery = over(mcp, () => news.push('news'))
  t.teardown(() => discovery.close())
  servers.set('s', { tools: [tool('a')] })
  const bindings = [{ connector: connector('s'), alias: null }]
  const isLive = () => discovery.marks(bindings)[0] !== null
  await discovery.lookUp(bindings, { deadlineMs: 'budget' })
  t.strictSame(news.splice(0), ['news'])
  const away = { error: new McpError('unavailable', 'refused', { sent: false }) }
  servers.set('s', away)
  announce('s')
  await new Promise(setImmediate)
  servers.set('s', { tools: [tool('a')] })
  await eventually(() => asked.length === 3)
  t.match([isLive(), news], [true, NONE], 'a server that is back is no news')
  servers.set('s', away)
  announce('s')
  await eventually(() => asked.length === 5)
  t.match([isLive(), news], [false, ['news']], 'a second failure counts')
})

t.test('so is a server whose list has grown old', async (t) => {
  const { mcp, servers } = createDoor()
  const news: string[] = []
  const discovery = over(mcp, () => news.push('news'))
  t.teardown(() => discovery.close())
  servers.set('s', { tools: [tool('a')], ttlMs: 0 })
  const use = async () => {
    const [server] = await discovery.lookUp([{ connector: connector('s'), alias: null }], { deadlineMs: 400 })
    await new Promise(setImmediate)
    return [server?.state, ...news.splice(0)]
  }
  t.strictSame(await use(), ['live', 'news'])
  servers.delete('s')
  t.strictSame(await use(), ['live'])
  t.strictSame(await use(), ['live', 'news'], 'a second failure counts')
  t.strictSame(await use(), ['away'])
})

t.test('a list that the door remembers is no answer of a server that it has found away', async (t) => {
  const { mcp, servers } = createDoor()
  let state: McpState = 'ready'
  const discovery = over({ ...mcp, status: () => ({ state }) })
  t.teardown(() => discovery.close())
  servers.set('s', { tools: [tool('a')] })
  const bindings = [{ connector: connector('s'), alias: null }]
  t.match(await discovery.lookUp(bindings, { deadlineMs: 'budget' }), [{ state: 'live' }])
  servers.set('s', { tools: [tool('b')] })
  state = 'quarantined'
  const held = await discovery.lookUp(bindings, { deadlineMs: 'budget' })
  t.match(held, [{ state: 'live', tools: [{ name: 'a' }] }], 'a list that is held still stays')
  servers.delete('s')
  state = 'down'
  t.match(await discovery.lookUp(bindings, { deadlineMs: 'budget' }), [{ state: 'away', reason: /refused/ }])
})

t.test(
  'a list is heard of while no replica has seen a later one and its server has not failed',
  async (t) => {
    const { mcp, servers } = createDoor()
    const discovery = over(mcp, () => {}, connectorKey)
    t.teardown(() => discovery.close())
    servers.set('con_s@1', { tools: [tool('a')] })
    const bindings = [{ connector: connector('s'), alias: null }]
    const heard = (seen: string[]) => discovery.heard(bindings, new Map(seen.map((date) => ['con_s', date])))
    const [listed] = await discovery.lookUp(bindings, { deadlineMs: 'budget' })
    t.match([heard([]), heard([listed?.seen_at ?? ''])].flat(), [{ state: 'live' }, { state: 'live' }])
    t.match(heard(['9999-01-01T00:00:00.000Z']), [{ state: 'pending', tools: null }])
    servers.delete('con_s@1')
    await discovery.lookUp(bindings, { deadlineMs: 'budget', refresh: true })
    t.match(heard([]), [{ state: 'pending', tools: null }])
  },
)

t.test('a list is asked for again when its time to live is over, and not before', async (t) => {
  let now = 0
  mock.method(performance, 'now', () => now)
  t.teardown(() => mock.restoreAll())
  const { mcp, servers, asked } = createDoor()
  servers.set('brief', { tools: [tool('a')], ttlMs: 20_000 })
  servers.set('lasting', { tools: [tool('a')], ttlMs: 3_600_000 })
  const discovery = over(mcp)
  const bindings = ['brief', 'lasting'].map((name) => ({ connector: connector(name), alias: null }))
  const lookUp = () => discovery.lookUp(bindings, { deadlineMs: 1_000, refresh: false })
  await lookUp()
  now += 10_000
  await lookUp()
  t.strictSame(asked, ['brief', 'lasting'])
  now += 15_000
  t.strictSame(
    discovery.marks(bindings).map((mark) => mark !== null),
    [false, true],
  )
  await lookUp()
  now += 9 * 60_000
  await lookUp()
  t.strictSame(asked, ['brief', 'lasting', 'brief', 'brief'])
})

t.test(
  'a server that nobody followed for a while is asked again, however long its list is fresh',
  async (t) => {
    let now = 0
    mock.method(performance, 'now', () => now)
    t.teardown(() => mock.restoreAll())
    const { mcp, servers, asked } = createDoor()
    servers.set('s', { tools: [tool('a')], ttlMs: 24 * 3_600_000 })
    const discovery = over(mcp)
    t.teardown(() => discovery.close())
    const lookUp = () => discovery.lookUp([{ connector: connector('s'), alias: null }], { deadlineMs: 400 })
    await lookUp()
    now += 11 * 60_000
    t.match(await lookUp(), [{ state: 'live', tools: [{ name: 'a' }] }], 'without a wait')
    await lookUp()
    t.strictSame(asked, ['s', 's'])
  },
)

t.test('a server that was listed long before anybody used it is asked again', async (t) => {
  const { mcp, servers, asked } = createDoor()
  servers.set('s', { tools: [tool('a')], ttlMs: 24 * 3_600_000 })
  const start = Date.now() - 11 * 60_000
  const clock = mock.method(Date, 'now', () => start)
  await mcp.list({ key: 's', name: 's', transport: 'streamable_http', allowPrivate: true })
  clock.mock.restore()
  const discovery = over(mcp)
  t.teardown(() => discovery.close())
  for (let i = 0; i < 2; i++)
    t.match(await discovery.lookUp([{ connector: connector('s'), alias: null }], { deadlineMs: 400 }), [
      { state: 'live' },
    ])
  t.strictSame(asked, ['s', 's'], 'nobody has heard its announcements')
})
