/** A Redis that starts again with all of its data, or with an older state: from its disk, or a copy that lagged behind. */
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import type { Bus } from '../../src/bus/bus.ts'
import { appended, delta, event, SESSION, start, TURN } from '../contracts/bus-bed.ts'
import { ON_REDIS } from '../given-servers.ts'
import { startRedis } from '../servers.ts'
import { eventually } from '../waiting.ts'
import { isReady, redisBeds } from './redis-bed.ts'

const { openAt } = redisBeds([])

async function ownRedis(t: Test) {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const client = new Redis(server.url)
  t.teardown(() => client.disconnect())
  client.on('error', () => {})
  return {
    url: server.url,
    client,
    /** Follows that server, and has all of its data in place of its own. */
    async copy(of: string) {
      const { hostname, port } = new URL(of)
      await client.call('REPLICAOF', hostname, port)
      await eventually(async () => (await client.info('replication')).includes('master_link_status:up'))
    },
    async restart(...buses: Bus[]) {
      await server.down('SIGKILL')
      await server.up()
      for (const bus of buses) await eventually(() => isReady(bus))
    },
  }
}

t.test('after Redis came back with older data a reader that resumes gets a gap', ON_REDIS, async (t) => {
  const { url, client, restart } = await ownRedis(t)
  const [bus, other] = [await openAt(t, { url }), await openAt(t, { url })]
  const [, kept = ''] = await appended(bus, SESSION, [event('turn.created'), delta('kept')])
  const open = start(t, other, { after: kept })
  await client.save()
  const [lost = ''] = await appended(bus, SESSION, [event('turn.completed')])
  await open.events(1)
  await restart(bus, other)
  t.equal(await bus.pastEnd(SESSION, TURN, lost, true), false, 'nobody knows which events this log lacks')
  await other.append(SESSION, [event('turn.created', '', 'turn_next')])
  t.match(await open.item(1), { gap: true })
  for (const after of [kept, lost]) t.match(await start(t, bus, { after }).item(0), { gap: true })
  t.match(await start(t, bus, { turn: TURN, begun: true }).item(0), { gap: true })
})

t.test(
  'a primary that served as a copy for a while and is back may have older data, too',
  ON_REDIS,
  async (t) => {
    const [primary, other] = [await ownRedis(t), await ownRedis(t)]
    const bus = await openAt(t, { url: primary.url })
    const [, kept = ''] = await appended(bus, SESSION, [event('turn.created'), delta('kept')])
    const open = start(t, bus, { after: kept })
    await other.copy(primary.url)
    await other.client.call('REPLICAOF', 'NO', 'ONE')
    await bus.append(SESSION, [delta('lost')])
    await open.events(1)
    await primary.copy(other.url)
    await primary.client.call('REPLICAOF', 'NO', 'ONE')
    // As a sentinel does; until then a bus keeps its connection, since nothing was said meanwhile.
    for (const type of ['normal', 'pubsub']) await primary.client.call('CLIENT', 'KILL', 'TYPE', type)
    await eventually(() => isReady(bus))
    await bus.append(SESSION, [event('turn.created', '', 'turn_next')])
    t.match(await open.item(1), { gap: true })
    t.match(await start(t, bus, { after: kept }).item(0), { gap: true })
  },
)

t.test('a log that began anew after a restart of Redis has no further gap', ON_REDIS, async (t) => {
  const { url, client, restart } = await ownRedis(t)
  const bus = await openAt(t, { url })
  await bus.append(SESSION, [delta(1)])
  await client.save()
  await restart(bus)
  const [second = ''] = await appended(bus, SESSION, [delta(2)])
  const third = await openAt(t, { url })
  await third.append(SESSION, [delta(3)])
  await client.del('baton:era')
  const fourth = await openAt(t, { url })
  await fourth.append(SESSION, [delta(4)])
  await bus.append(SESSION, [delta(5)])
  t.same(
    (await start(t, third, { after: second }).events(3)).map(({ data }) => JSON.parse(data).text),
    [3, 4, 5],
    'also for replicas that come later, and after the era was evicted',
  )
})

t.test('a Redis user that may not call INFO can write and read logs all the same', ON_REDIS, async (t) => {
  const { url, client } = await ownRedis(t)
  await client.call('ACL', 'SETUSER', 'baton', 'on', '>word', '~baton:*', '&baton:*', '+@all', '-info')
  t.intercept(console, 'warn', { value: () => {} })
  const bus = await openAt(t, { url: url.replace('//', '//baton:word@') })
  await bus.append(SESSION, [delta(1)])
  t.equal((await start(t, bus).events(1)).length, 1)
})
