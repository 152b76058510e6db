/** A Redis that answers pings and refuses other commands that Baton needs. */
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createLink } from '../../src/bus/redis/link.ts'
import { openRedisBus } from '../../src/bus/redis.ts'
import { inFull } from '../../src/errors.ts'
import { createLog } from '../../src/log.ts'
import { delta, event, SESSION, start, textsOf } from '../contracts/bus-bed.ts'
import { rejection } from '../contracts/store-rows.ts'
import { ON_REDIS, SERVERS } from '../given-servers.ts'
import { freePort, startRedis } from '../servers.ts'
import { eventually } from '../waiting.ts'

const url = SERVERS.REDIS_URL

/** A bus of a Redis user with these rights, and the lines that it logs. */
async function limitedBus(t: Test, rights: string[]) {
  const admin = new Redis(url)
  t.teardown(() => admin.disconnect())
  const name = `test_${randomBytes(6).toString('hex')}`
  await admin.call('ACL', 'SETUSER', name, 'on', '>secret', 'resetchannels', ...rights)
  t.teardown(() => admin.call('ACL', 'DELUSER', name))
  const own = new URL(url)
  own.username = name
  own.password = 'secret'
  const lines: { msg: string }[] = []
  const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  const bus = await openRedisBus({ url: own.href, log })
  t.teardown(() => bus.close())
  return { bus, admin, name, lines }
}

t.test('refusals', ON_REDIS, async (t) => {
  for (const [missing, rights] of Object.entries({
    'to speak on channels': ['~baton:*', '+@all'],
    'to write streams': ['~baton:*', '&baton:*', '+@all', '-xadd'],
    'to run scripts': ['~baton:*', '&baton:*', '+@all', '-@scripting'],
  })) {
    t.test(`the log says in one line that the Redis user has not the right ${missing}`, async (t) => {
      const { bus, admin, name, lines } = await limitedBus(t, rights)
      const session = `ses_${name}`
      for (let i = 0; i < 3; i++)
        await t.rejects(bus.append(session, [event('content.delta', i)]), { code: 'unavailable' })
      if (missing !== 'to write streams') await t.rejects(bus.ready(), { code: 'unavailable' })
      t.match(lines, [{ msg: 'Redis is away', reason: /NOPERM|ACL|The user executing/ }])
      t.equal(lines.length, 1)
      t.not(await admin.pttl(`baton:{${session}}:meta`), -1, 'what was begun of the log expires')
    })
  }

  t.test(
    'the log says that the Redis user has not the right to count calls, which nobody limits then',
    async (t) => {
      const { bus, lines } = await limitedBus(t, ['~baton:*', '&baton:*', '+@all', '-incr'])
      await bus.ready()
      await t.rejects(bus.tally('calls', 60), { code: 'unavailable' })
      t.match(lines, [{ msg: 'Redis is away', reason: /NOPERM|ACL|The user executing/ }])
    },
  )

  for (const [what, { change, reason }] of Object.entries({
    'a database that the server does not have': { change: { pathname: '/99999' }, reason: /DB index/ },
    'a password that the server does not know': {
      change: { username: 'nobody', password: 'wrong', pathname: '/1' },
      reason: /WRONGPASS/,
    },
  })) {
    t.test(`with ${what} nothing works, and everything that fails says why`, async (t) => {
      const lines: object[] = []
      const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
      const bus = await openRedisBus({ url: Object.assign(new URL(url), change).href, log })
      t.teardown(() => bus.close())
      t.match(await rejection(bus.ready()), { code: 'unavailable' })
      const session = `ses_${randomBytes(6).toString('hex')}`
      t.match(inFull(await rejection(bus.append(session, [event('content.delta', 1)]))), reason)
      const first = new Redis(url)
      t.teardown(() => first.disconnect())
      t.equal(await first.exists(`baton:{${session}}:meta`), 0, 'nothing was written elsewhere')
      t.match(lines, [{ msg: 'Redis is away', reason }])
    })
  }

  t.test(
    'a server of a cluster is not ready, since it refuses events of several sessions at once',
    async (t) => {
      // By default the bus of a cluster is 10,000 above, among the ports of outgoing connections.
      const server = await startRedis('--cluster-enabled', 'yes', '--cluster-port', String(await freePort()))
      t.teardown(() => server.stop())
      const admin = new Redis(server.url)
      t.teardown(() => admin.disconnect())
      await admin.call('CLUSTER', 'ADDSLOTS', ...Array.from({ length: 16_384 }, (_, slot) => String(slot)))
      await eventually(async () => String(await admin.call('CLUSTER', 'INFO')).includes('cluster_state:ok'))
      const bus = await openRedisBus({ url: server.url, log: pino({ level: 'silent' }) })
      t.teardown(() => bus.close())
      t.match(inFull(await rejection(bus.ready())), /CROSSSLOT/)
    },
  )

  t.test('while a server is full readers wait, and get one gap once it has room', async (t) => {
    const server = await startRedis('--maxmemory-policy', 'noeviction')
    t.teardown(() => server.stop())
    const admin = new Redis(server.url)
    t.teardown(() => admin.disconnect())
    const bus = await openRedisBus({ url: server.url, log: pino({ level: 'silent' }) })
    t.teardown(() => bus.close())
    const reading = start(t, bus)
    await bus.append(SESSION, [delta('before')])
    await reading.events(1)
    await admin.config('SET', 'maxmemory', '1')
    for (let i = 0; i < 5; i++) await t.rejects(bus.append(SESSION, [delta('lost')]), { code: 'unavailable' })
    t.equal(reading.items.length, 1)
    await admin.config('SET', 'maxmemory', '0')
    await bus.ready()
    t.match(await reading.item(1), { gap: true })
    await bus.append(SESSION, [delta('after')])
    t.same(textsOf(await reading.events(2)), ['before', 'after'])
    t.equal(reading.items.filter((item) => 'gap' in item).length, 1)
  })

  t.test('a server that has become a replica is left for the server that is the primary now', async (t) => {
    let ups = 0
    let isDemoted = false
    const refusing = async () => {
      throw new Error("READONLY You can't write against a read only replica.")
    }
    let heard = () => {}
    const listening = () => new Promise<void>((resolve) => (heard = resolve))
    const link = createLink({
      url,
      log: pino({ level: 'silent' }),
      onMessage() {},
      onUp() {
        ups++
        if (isDemoted) void link.persist(refusing).catch(() => {})
      },
      onMissed: () => heard(),
    })
    t.teardown(() => link.close())
    const first = listening()
    await link.open()
    await first
    const again = listening()
    let tries = 0
    await link.persist(async () => {
      if (++tries === 1) await refusing()
      await link.publish('baton:test', '')
    })
    await again
    t.equal(ups, 2)
    isDemoted = true
    await link.persist(refusing).catch(() => {})
    await sleep(2_000)
    t.ok(ups <= 8, `while no server is the primary, the link looks once a second, not ${ups} times`)
  })
})
