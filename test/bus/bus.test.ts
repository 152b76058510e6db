import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import type { Bus } from '../../src/bus/bus.ts'
import { openBus } from '../../src/bus/index.ts'
import { createMemoryBus } from '../../src/bus/memory.ts'
import { openRedisBus, type RedisBusDeps } from '../../src/bus/redis.ts'
import { compareIds } from '../../src/bus/cursor.ts'
import { createLog } from '../../src/log.ts'
import { type BusBed, busContract, bytes, event, start } from '../contracts/bus.ts'
import { proxied } from './proxied.ts'

const log = pino({ level: 'silent' })

// ---------------------------------------------------------------- memory

const memory: BusBed = {
  async open(t, limits = {}) {
    const bus = createMemoryBus({ limits })
    t.teardown(() => bus.close())
    return bus
  },
  another: async (_, bus) => bus,
  // A restart: the process forgets.
  lose: (t) => memory.open(t),
}

t.test('in memory', async (t) => busContract(t, memory))

t.test('without a Redis URL the bus is in memory', async (t) => {
  const bus = await openBus({ redisUrl: null, log })
  t.equal(bus.kind, 'memory')
  await bus.close()
})

// ---------------------------------------------------------------- Redis

const { TEST_REDIS_URL, CI } = process.env

if (!TEST_REDIS_URL && CI === 'true') t.fail('TEST_REDIS_URL is needed: the bus must pass on a real Redis')

/** Each bed flushes a database of its own, of the upper half: other files may use the same server. */
let database = 8
const urls = new WeakMap<Bus, string>()

async function freshUrl(): Promise<string> {
  const url = new URL(TEST_REDIS_URL ?? '')
  database = database === 15 ? 8 : database + 1
  url.pathname = `/${database}`
  await flush(url.href)
  return url.href
}
async function flush(url: string): Promise<void> {
  const redis = new Redis(url)
  await redis.flushdb()
  redis.disconnect()
}
async function openAt(t: Test, deps: Omit<RedisBusDeps, 'log'> & Partial<RedisBusDeps>): Promise<Bus> {
  const bus = await openRedisBus({ log, ...deps })
  urls.set(bus, deps.url)
  t.teardown(() => bus.close())
  return bus
}

const redis: BusBed = {
  open: async (t, limits = {}) => openAt(t, { url: await freshUrl(), limits }),
  another: (t, bus, limits = {}) => openAt(t, { url: urls.get(bus) ?? '', limits }),
  async lose(_, bus) {
    await flush(urls.get(bus) ?? '')
    return bus
  },
}

t.test('on Redis', { skip: TEST_REDIS_URL ? false : 'TEST_REDIS_URL is not set' }, async (t) => {
  busContract(t, redis)
})

t.test(
  'Redis when things go wrong',
  { skip: TEST_REDIS_URL ? false : 'TEST_REDIS_URL is not set' },
  async (t) => {
    t.test('a flush in the middle of a replay is a gap, not silence', async (t) => {
      const bus = await redis.open(t)
      for (let i = 0; i < 30; i++) await bus.append(SESSION, many(40, `${i}.`))
      const abort = new AbortController()
      t.teardown(() => abort.abort())
      const options = { after: 'start', signal: abort.signal }
      const reading = bus.read(SESSION, options)[Symbol.asyncIterator]()
      const first = await reading.next()
      t.ok('events' in first.value && first.value.events.length < 1200, 'one page of several')
      await redis.lose(t, bus)
      t.match((await reading.next()).value, { gap: true })
      const next = reading.next()
      const [cursor] = await bus.append(SESSION, [delta('after')])
      t.match((await next).value, { events: [{ cursor }] })
    })

    t.test('a first event that is being said when its reader comes is no gap', async (t) => {
      const bus = await redis.open(t)
      const reading = start(t, bus, { turn: TURN, begun: true, isYoung: true })
      await sleep(20)
      await bus.append(SESSION, [event('turn.created'), delta(1)])
      t.strictSame(
        (await reading.events(2)).map(({ type }) => type),
        ['turn.created', 'content.delta'],
      )
      t.match(reading.items[0], { events: [{ type: 'turn.created' }] })
    })

    t.test('a flush under live readers costs them nothing that was said', async (t) => {
      const bus = await redis.open(t)
      const reading = start(t, bus)
      const [before = ''] = await bus.append(SESSION, [event('turn.created'), delta(1)])
      await reading.events(2)
      await redis.lose(t, bus)
      await bus.append(SESSION, [delta(2)])
      await bus.append(SESSION, [delta(3)])
      const all = await reading.events(4)
      t.same(
        all.map(({ data }) => JSON.parse(data).text),
        ['', 1, 2, 3],
      )
      t.equal(
        reading.items.some((item) => 'gap' in item),
        false,
      )
      t.match(
        await start(t, bus, { after: before }).item(0),
        { gap: true },
        'who comes back does not know that',
      )
      t.match(
        await start(t, bus, { turn: TURN }).item(0),
        { gap: true },
        'nor has the log the turn’s beginning',
      )
    })

    t.test('half a log is none: either key may be evicted', async (t) => {
      for (const part of ['log', 'meta']) {
        const bus = await redis.open(t)
        const [cursor = ''] = await bus.append(SESSION, [delta(1), delta(2)])
        await command(t, bus, 'DEL', `baton:{${SESSION}}:${part}`)
        t.match(await start(t, bus, { after: cursor }).item(0), { gap: true }, part)
        await bus.append(SESSION, [delta(3)])
        const kept = await start(t, bus).events(1)
        t.same(
          kept.map(({ data }) => JSON.parse(data).text),
          [3],
        )
      }
    })

    t.test('the gap of a log that begins anew lies behind all that the one before has said', async (t) => {
      const bus = await redis.open(t)
      const isBehind = async ([cursor = '']: string[]) => {
        const gap = await start(t, bus, { after: cursor }).item(0)
        const [next = ''] = await bus.append(SESSION, [delta('next')])
        t.match(gap, { gap: true })
        const [before, at, after] = [cursor, 'gap' in gap ? gap.cursor : '', next].map(idOf)
        return compareIds(before ?? '', at ?? '') <= 0 && compareIds(at ?? '', after ?? '') < 0
      }
      const client = new Redis(urls.get(bus) ?? '')
      t.teardown(() => client.disconnect())
      // Often enough for a loss within one millisecond.
      for (let i = 0; i < 100; i++) {
        const cursors = await bus.append(SESSION, [delta(1)])
        await client.flushdb()
        if (!(await isBehind(cursors))) return t.fail(`not in round ${i}`)
      }
      const [meta, log] = ['meta', 'log'].map((part) => `baton:{${SESSION}}:${part}`)
      await client.hset(meta ?? '', 'last', `${Date.now() + 60_000}-0`)
      const ahead = await bus.append(SESSION, [delta(1)])
      await client.del(log ?? '')
      t.ok(await isBehind(ahead), 'also where its clock was ahead')
    })

    t.test('both keys expire, and what a trimmed log remembers is trimmed too', async (t) => {
      const bus = await redis.open(t, { maxEvents: 20, idleMs: 60_000 })
      for (let i = 0; i < 100; i++) {
        const turn = `turn_${i}`
        await bus.append(SESSION, [
          { ...event('turn.created', '', turn), once: `${turn}:created` },
          { ...event('turn.completed', '', turn), once: `${turn}:end` },
        ])
      }
      const left = async (part: string, session = SESSION) =>
        Number(await command(t, bus, 'PTTL', `baton:{${session}}:${part}`))
      for (const part of ['log', 'meta']) {
        const ttl = await left(part)
        t.ok(ttl > 0 && ttl <= 60_000, `${part} has ${ttl} ms`)
      }
      t.ok(Number(await command(t, bus, 'HLEN', `baton:{${SESSION}}:meta`)) < 60)
      t.ok(Number(await command(t, bus, 'XLEN', `baton:{${SESSION}}:log`)) <= 20)
      const reading = start(t, bus, { turn: 'turn_99' })
      await reading.ended
      t.equal(reading.items.length, 1)
      await command(t, bus, 'HSET', `baton:{${SESSION}}:meta`, 'touched', '0')
      await command(t, bus, 'PEXPIRE', `baton:{${SESSION}}:log`, '9000')
      await bus.append(SESSION, [delta(1)])
      t.ok((await left('log')) > 9000, 'later where it is used')
      await bus.ready()
      await start(t, bus, { turn: TURN, begun: true }, 'ses_read').item(0)
      t.ok((await left('meta', 'ses_read')) > 0, 'one that was only read, too')
    })

    t.test('a session that Redis refuses costs the others nothing', async (t) => {
      const bus = await redis.open(t)
      await bus.append(SESSION, [delta(1)])
      await command(t, bus, 'SET', `baton:{${SESSION}}:log`, 'something else')
      const refused = bus.append(SESSION, [delta(2)])
      const [cursor] = await bus.append('ses_other', [delta(2)])
      t.type(cursor, 'string')
      await t.rejects(refused, { code: 'unavailable' })
    })

    t.test('a server that forgot its scripts is taught again', async (t) => {
      const bus = await redis.open(t)
      await bus.append(SESSION, [delta(1)])
      await command(t, bus, 'SCRIPT', 'FLUSH')
      await bus.append(SESSION, [delta(2)])
      t.equal((await start(t, bus).events(2)).length, 2)
    })

    t.test('readers share two connections', async (t) => {
      const bus = await openAt(t, { url: await freshUrl(), lingerMs: 0 })
      const readings = Array.from({ length: 200 }, (_, i) => start(t, bus, {}, `ses_${i % 100}`))
      await bus.append('ses_99', [delta(1)])
      await Promise.all([readings[99]?.events(1), readings[199]?.events(1)])
      const clients = String(await command(t, bus, 'CLIENT', 'LIST'))
      const mine = clients
        .split('\n')
        .filter((line) => / name=baton /.test(line) && line.includes(` db=${databaseOf(bus)} `))
      t.equal(mine.length, 2)
      for (const reading of readings) await reading.stop()
      await sleep(50)
      t.same(await channelsOf(t, bus), [], 'and leave no channel behind')
      const topics = `baton:${databaseOf(bus)}:topic:*`
      const listens = async () => ((await command(t, bus, 'PUBSUB', 'CHANNELS', topics)) as string[]).length
      bus.subscribe('queue', () => {})
      while ((await listens()) === 0) await sleep(5)
      for (const line of mine)
        await command(t, bus, 'CLIENT', 'KILL', 'ID', /^id=(\d+)/.exec(line)?.[1] ?? '')
      while ((await listens()) === 1) await sleep(1)
      while ((await listens()) === 0) await sleep(5)
      t.same(await channelsOf(t, bus), [], 'nor once it is connected again')
    })

    t.test(
      'a reader finds the channel of the one before open, and misses nothing that came between',
      async (t) => {
        const bus = await redis.open(t)
        const first = start(t, bus)
        await bus.append(SESSION, [delta(1)])
        const [one] = await first.events(1)
        await first.stop()
        t.equal((await channelsOf(t, bus)).length, 1, 'still listened to')
        await bus.append(SESSION, [delta(2)])
        const next = start(t, bus, { after: one?.cursor ?? '' })
        await bus.append(SESSION, [delta(3)])
        t.same(
          (await next.events(2)).map(({ data }) => JSON.parse(data).text),
          [2, 3],
        )
      },
    )

    t.test('a channel that was about to be left stays open for who comes', async (t) => {
      const bus = await openAt(t, { url: await freshUrl(), lingerMs: 1 })
      const first = start(t, bus)
      await bus.append(SESSION, [delta(1)])
      await first.events(1)
      await first.stop()
      const next = start(t, bus)
      await next.events(1)
      // Longer than the channel lingers.
      await sleep(5)
      await bus.append(SESSION, [delta(2)])
      t.equal((await next.events(2)).length, 2)
    })

    t.test('a short cut: appends go on, once and in order, and readers miss nothing', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      const other = await openAt(t, { url: proxy.direct })
      const reading = start(t, bus)
      await bus.append(SESSION, [delta(0)])
      await reading.events(1)
      for (let i = 1; i < 20; i++) {
        if (i % 6 === 0) proxy.cut()
        const said = [bus.append(SESSION, [delta(i)]), other.append(SESSION, [delta(`other ${i}`)])]
        proxy.restore()
        await Promise.all(said)
      }
      const all = await reading.events(39)
      t.notOk(reading.items.some((item) => 'gap' in item))
      t.equal(bytes(all), bytes(await start(t, other).events(39)))
      const own = all.map(({ data }) => JSON.parse(data).text).filter((text) => typeof text === 'number')
      t.same(
        own,
        Array.from({ length: 20 }, (_, i) => i),
      )
      proxy.cut()
      await other.append(SESSION, [delta('the last')])
      proxy.restore()
      t.equal((await reading.events(40)).length, 40, 'also where nothing follows that would show it')
    })

    t.test('a new log that is heard of before the break was noticed is a gap', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      const other = await openAt(t, { url: proxy.direct })
      const reading = start(t, bus)
      await other.append(SESSION, [delta('first')])
      await reading.events(1)
      proxy.cut()
      await other.append(SESSION, [delta('missed')])
      await command(t, other, 'FLUSHDB')
      const kept = proxy.keepBack('$9\r\nsubscribe', 'after')
      proxy.restore()
      await kept
      await other.append(SESSION, [delta('after')])
      t.match(await reading.item(1), { gap: true })
    })

    t.test(
      'what all replicas must hear is heard before their readers’ channels are open again',
      async (t) => {
        const proxy = await proxied(t, await freshUrl())
        const bus = await openAt(t, { url: proxy.url })
        const other = await openAt(t, { url: proxy.direct })
        const heard: string[] = []
        bus.subscribe('control', (message) => heard.push(message))
        const reading = start(t, bus)
        await other.append(SESSION, [delta('first')])
        await reading.events(1)
        proxy.cut()
        const kept = proxy.keepBack('$9\r\nsubscribe', 'said early')
        proxy.restore()
        await kept
        await other.publish('control', 'said early')
        await other.append(SESSION, [delta('after')])
        await reading.events(2)
        t.same(heard, ['said early'])
      },
    )

    t.test('a session that is deleted while Redis is away ends its reads once it is back', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      const reading = start(t, await openAt(t, { url: proxy.direct }))
      await bus.append(SESSION, [delta('first')])
      await reading.events(1)
      proxy.cut()
      await t.rejects(bus.drop(SESSION), { code: 'unavailable' })
      proxy.restore()
      await reading.ended
      t.equal(reading.items.length, 1)
    })

    t.test('a new log that is heard of when it is lost, too, is not read again', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      const other = await openAt(t, { url: proxy.direct })
      await other.append(SESSION, [delta('first')])
      await start(t, bus).events(1)
      await command(t, other, 'FLUSHDB')
      const kept = proxy.keepBack('old', 'last')
      await other.append(SESSION, [delta('old')])
      await kept
      await command(t, other, 'FLUSHDB')
      await other.append(SESSION, [delta('new')])
      const reading = start(t, bus)
      await reading.events(1)
      await other.append(SESSION, [delta('last')])
      t.same(
        (await reading.events(2)).map(({ data }) => JSON.parse(data).text),
        ['new', 'last'],
      )
    })

    t.test('an append whose answer is lost takes effect once', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      await bus.append(SESSION, [delta('first')])
      proxy.loseNextAnswer()
      const cursors = await bus.append(SESSION, [delta('a'), delta('b')])
      await bus.append(SESSION, [delta('last')])
      const all = await start(t, await openAt(t, { url: proxy.direct })).events(4)
      t.same(
        all.map(({ data }) => JSON.parse(data).text),
        ['first', 'a', 'b', 'last'],
      )
      t.same(
        all.slice(1, 3).map(({ cursor }) => cursor),
        cursors,
      )
      t.ok(proxy.lost(), 'an answer was lost')
    })

    t.test('events that are said again, since their log was lost before the answer, are a gap', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      const other = await openAt(t, { url: proxy.direct })
      const reading = start(t, other)
      await bus.append(SESSION, [delta('first')])
      await reading.events(1)
      proxy.loseNextAnswer()
      const said = bus.append(SESSION, [delta('twice')])
      await reading.events(2)
      proxy.cut()
      t.ok(proxy.lost())
      await command(t, other, 'FLUSHDB')
      proxy.restore()
      await said
      t.match(await reading.item(2), { gap: true })
    })

    t.test('so are those that an owner who died may have said', async (t) => {
      const bus = await openAt(t, { url: await freshUrl() })
      const reading = start(t, bus)
      await bus.append(SESSION, [delta('said')])
      await reading.events(1)
      await command(t, bus, 'FLUSHDB')
      await bus.append(SESSION, [{ ...delta('said'), again: true }])
      t.match(await reading.item(1), { gap: true })
      await bus.append(SESSION, [{ ...delta('next'), again: true }])
      t.match(await reading.item(2), { events: [{ data: /next/ }] })
    })

    t.test('also where a reader came first, and stands behind a gap already', async (t) => {
      const bus = await openAt(t, { url: await freshUrl() })
      const [cursor = ''] = await bus.append(SESSION, [delta('said')])
      await command(t, bus, 'FLUSHDB')
      const reading = start(t, bus, { after: cursor })
      t.match(await reading.item(0), { gap: true })
      await bus.append(SESSION, [{ ...delta('said'), again: true }])
      t.match(await reading.item(1), { gap: true })
    })

    t.test('a reader that leaves while its first page is on the way hears nothing of it', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      const other = await openAt(t, { url: proxy.direct })
      await other.append(SESSION, [delta('said')])
      const kept = proxy.keepBack('said', 'last')
      const leaving = new AbortController()
      const reading = start(t, bus, { signal: leaving.signal })
      await kept
      leaving.abort()
      await other.append(SESSION, [delta('last')])
      await start(t, bus).events(2)
      await reading.ended
      t.same(reading.items, [])
    })

    t.test('Redis away: appends fail in time, then at once; readers get a gap when it is back', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const counted = { appended: 0, lost: 0 }
      const metrics = {
        eventsAppended(count: number) {
          counted.appended += count
        },
        eventsLost(count: number) {
          counted.lost += count
        },
      }
      const lines: string[] = []
      const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line).msg) })
      const bus = await openAt(t, { url: proxy.url, metrics, log })
      const reading = start(t, bus)
      const [cursor = ''] = await bus.append(SESSION, [delta('before')])
      await reading.events(1)
      const heard: string[] = []
      bus.subscribe('control', (message) => heard.push(message))
      proxy.cut()
      await t.rejects(bus.append(SESSION, [delta('lost'), delta('lost')]), {
        code: 'unavailable',
        status: 503,
      })
      const began = performance.now()
      for (let i = 0; i < 20; i++)
        await t.rejects(bus.append(SESSION, [delta('lost')]), { code: 'unavailable' })
      t.ok(performance.now() - began < 2000, 'not each after the full time')
      await t.rejects(bus.ready(), { code: 'unavailable' })
      await t.rejects(bus.tally('count', 60), { code: 'unavailable' })
      await t.rejects(start(t, bus).ended, { code: 'unavailable' })
      await t.rejects(start(t, bus, {}, 'ses_other').ended, { code: 'unavailable' })
      await bus.publish('control', 'to itself at least')
      t.same(heard, ['to itself at least'])
      t.same(counted, { appended: 1, lost: 22 })
      proxy.restore()
      t.match(await reading.item(1), { gap: true }, 'without a further append')
      await bus.ready()
      await bus.append(SESSION, [delta('after')])
      t.same(
        (await reading.events(2)).map(({ data }) => JSON.parse(data).text),
        ['before', 'after'],
      )
      t.match(await start(t, bus, { after: cursor }).item(0), { gap: true })
      await bus.append('ses_other', [delta('after')])
      t.equal((await start(t, bus, {}, 'ses_other').events(1)).length, 1, 'also for who was refused before')
      while (lines.length < 2) await sleep(100)
      t.same(lines, ['Redis is away', 'Redis is back'], 'and the log is told twice')
    })

    t.test('a connection that falls silent is given up', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      await bus.append(SESSION, [delta(1)])
      proxy.freeze()
      await t.rejects(bus.append(SESSION, [delta(2)]), { code: 'unavailable' })
      proxy.restore()
      while (!(await bus.append(SESSION, [delta(3)]).catch(() => null)))
        await new Promise((r) => setTimeout(r, 50))
      t.pass('and a new one is made')
    })

    t.test('a reader hears on, though the connection that it heard by fell silent', async (t) => {
      mock.timers.enable({ apis: ['setInterval'] })
      t.teardown(() => mock.timers.reset())
      const proxy = await proxied(t, await freshUrl())
      const bus = await openAt(t, { url: proxy.url })
      const other = await openAt(t, { url: proxy.direct })
      const reading = start(t, bus)
      await other.append(SESSION, [delta(1)])
      await reading.events(1)
      proxy.hush()
      await other.append(SESSION, [delta(2)])
      mock.timers.tick(5_000)
      t.equal((await reading.events(2)).length, 2)
    })

    t.test('Baton starts without Redis and finds it later', async (t) => {
      const proxy = await proxied(t, await freshUrl())
      proxy.cut()
      const bus = await openAt(t, { url: proxy.url })
      t.equal(bus.kind, 'redis')
      await t.rejects(bus.ready(), { code: 'unavailable' })
      proxy.restore()
      while (
        !(await bus.ready().then(
          () => true,
          () => false,
        ))
      )
        await new Promise((r) => setTimeout(r, 20))
      await bus.append(SESSION, [delta(1)])
      t.equal((await start(t, bus).events(1)).length, 1)
    })
  },
)

const SESSION = 'ses_one'
const TURN = 'turn_one'
const delta = (text: string | number) => event('content.delta', text)
const many = (count: number, prefix: string) => Array.from({ length: count }, (_, i) => delta(prefix + i))
const idOf = (cursor: string) => cursor.slice(0, cursor.indexOf('.'))
const databaseOf = (bus: Bus) => new URL(urls.get(bus) ?? '').pathname.slice(1)

async function command(t: Test, bus: Bus, name: string, ...args: string[]): Promise<unknown> {
  const client = new Redis(urls.get(bus) ?? '')
  t.teardown(() => client.disconnect())
  return client.call(name, ...args)
}

const channelsOf = async (t: Test, bus: Bus) =>
  (await command(t, bus, 'PUBSUB', 'CHANNELS', `baton:${databaseOf(bus)}:log:*`)) as string[]
