import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createAppends } from '../../src/bus/appends.ts'
import type { Bus } from '../../src/bus/bus.ts'
import { openBus } from '../../src/bus/index.ts'
import type { Link } from '../../src/bus/link.ts'
import { createMemoryBus } from '../../src/bus/memory.ts'
import { openRedisBus, type RedisBusDeps } from '../../src/bus/redis.ts'
import type { Group, Scripts } from '../../src/bus/scripts.ts'
import { createLog } from '../../src/telemetry.ts'
import { type BusBed, busContract, bytes, event, start } from '../contracts/bus.ts'

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

t.test('logs that begin anew do so some at a time', async (t) => {
  const calls: number[] = []
  const scripts = {
    async append(_: number, groups: Group[]) {
      calls.push(groups.length)
      if (calls.length < 3) throw new Error('away')
      return groups.map(() => [])
    },
  } as unknown as Scripts
  const link = { persist: (attempt: () => Promise<unknown>) => attempt() } as unknown as Link
  const { append, mend } = createAppends(link, scripts, undefined)
  await Promise.allSettled(Array.from({ length: 600 }, (_, i) => append(`ses_${i}`, [delta(1)])))
  mend()
  await append('ses_last', [])
  t.same(calls, [500, 100, 500, 101])
})

t.test('without a Redis URL the bus is in memory', async (t) => {
  const bus = await openBus({ redisUrl: null, log })
  t.equal(bus.kind, 'memory')
  await bus.close()
})

t.test('in memory cursors stay ordered, and good, where the clock goes back', async (t) => {
  let clock = 5_000
  const bus = createMemoryBus({ now: () => clock })
  t.teardown(() => bus.close())
  const [before = ''] = await bus.append(SESSION, [delta(1)])
  clock = 3_000
  const [after = ''] = await bus.append(SESSION, [delta(2)])
  t.match(await start(t, bus, { after: before }).item(0), { events: [{ cursor: after }] })
  t.equal(after.split('-')[0], before.split('-')[0])
})

t.test('in memory a log that nobody uses goes after a while, one that is read stays', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  let clock = 0
  const bus = createMemoryBus({ limits: { idleMs: 1_000 }, now: () => clock })
  t.teardown(() => bus.close())
  const [idle = ''] = await bus.append('ses_idle', [delta(1)])
  const [read = ''] = await bus.append(SESSION, [delta(1)])
  const reading = start(t, bus)
  await reading.events(1)
  clock = 1_001
  mock.timers.tick(60_000)
  await bus.append('ses_idle', [delta(2)])
  await bus.append(SESSION, [delta(2)])
  t.match(await start(t, bus, { after: idle }, 'ses_idle').item(0), { gap: true })
  const again = start(t, bus, { after: read })
  t.equal((await again.events(1)).length, 1)
  await again.stop()
  clock = 2_500
  await reading.stop()
  mock.timers.tick(60_000)
  t.match(
    await start(t, bus, { after: read }).item(0),
    { events: [{}] },
    'for a while, once its reader has left',
  )
})

t.test('in memory a reader whose next event is trimmed away is told so', async (t) => {
  const bus = createMemoryBus({ limits: { maxEvents: 10 } })
  t.teardown(() => bus.close())
  const { signal } = new AbortController()
  const reading = bus.read(SESSION, { after: 'start', signal })[Symbol.asyncIterator]()
  await bus.append(SESSION, [delta(1)])
  t.match(await reading.next(), { value: { events: [{ type: 'content.delta' }] } })
  for (let i = 0; i < 30; i++) await bus.append(SESSION, [delta(i)])
  t.strictSame(await reading.next(), { value: { lagged: true } })
})

t.test('in memory all logs together are bounded, and the least used go first', async (t) => {
  let clock = 0
  const bus = createMemoryBus({ now: () => ++clock })
  t.teardown(() => bus.close())
  const large = 'x'.repeat(1 << 20)
  const fill = (session: string) =>
    bus.append(
      session,
      Array.from({ length: 12 }, () => delta(large)),
    )
  const reading = start(t, bus, {}, 'ses_1')
  const cursors: string[] = []
  for (let i = 0; i < 6; i++) {
    cursors.push((await fill(`ses_${i}`))[0] ?? '')
    if (i === 1) await reading.events(12)
  }
  const next = (i: number) => start(t, bus, { after: cursors[i] ?? '' }, `ses_${i}`).item(0)
  t.match(await next(0), { gap: true })
  t.match(await next(1), { gap: true })
  t.ok('events' in (await next(5)))
  await bus.append('ses_1', [delta('more')])
  t.equal((await reading.events(13)).length, 13)
  t.same(
    reading.items.filter((item) => !('events' in item)),
    [],
    'who reads a log keeps its place in it',
  )
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

    t.test('both keys expire, and what a trimmed log remembers is trimmed too', async (t) => {
      const bus = await redis.open(t, { maxEvents: 20, idleMs: 60_000 })
      for (let i = 0; i < 100; i++) {
        const turn = `turn_${i}`
        await bus.append(SESSION, [
          { ...event('turn.created', '', turn), once: `${turn}:created` },
          { ...event('turn.completed', '', turn), once: `${turn}:end` },
        ])
      }
      for (const part of ['log', 'meta']) {
        const ttl = Number(await command(t, bus, 'PTTL', `baton:{${SESSION}}:${part}`))
        t.ok(ttl > 0 && ttl <= 60_000, `${part} has ${ttl} ms`)
      }
      t.ok(Number(await command(t, bus, 'HLEN', `baton:{${SESSION}}:meta`)) < 60)
      t.ok(Number(await command(t, bus, 'XLEN', `baton:{${SESSION}}:log`)) <= 20)
      const reading = start(t, bus, { turn: 'turn_99' })
      await reading.ended
      t.equal(reading.items.length, 1)
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

    t.test('a short cut: appends go on, once and in order, and readers miss nothing', async (t) => {
      const proxy = await proxied(t)
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
      const proxy = await proxied(t)
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

    t.test('a new log that is heard of when it is lost, too, is not read again', async (t) => {
      const proxy = await proxied(t)
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
      const proxy = await proxied(t)
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
      const proxy = await proxied(t)
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

    t.test('Redis away: appends fail in time, then at once; readers get a gap when it is back', async (t) => {
      const proxy = await proxied(t)
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
      while (lines.length < 2) await sleep(100)
      t.same(lines, ['Redis is away', 'Redis is back'], 'and the log is told twice')
    })

    t.test('a connection that falls silent is given up', async (t) => {
      const proxy = await proxied(t)
      const bus = await openAt(t, { url: proxy.url })
      await bus.append(SESSION, [delta(1)])
      proxy.freeze()
      await t.rejects(bus.append(SESSION, [delta(2)]), { code: 'unavailable' })
      proxy.restore()
      while (!(await bus.append(SESSION, [delta(3)]).catch(() => null)))
        await new Promise((r) => setTimeout(r, 50))
      t.pass('and a new one is made')
    })

    t.test('Baton starts without Redis and finds it later', async (t) => {
      const proxy = await proxied(t)
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
const databaseOf = (bus: Bus) => new URL(urls.get(bus) ?? '').pathname.slice(1)

async function command(t: Test, bus: Bus, name: string, ...args: string[]): Promise<unknown> {
  const client = new Redis(urls.get(bus) ?? '')
  t.teardown(() => client.disconnect())
  return client.call(name, ...args)
}

const channelsOf = async (t: Test, bus: Bus) =>
  (await command(t, bus, 'PUBSUB', 'CHANNELS', `baton:${databaseOf(bus)}:log:*`)) as string[]

/** Stands between the bus and Redis, and fails as networks do. */
async function proxied(t: Test) {
  const direct = await freshUrl()
  const target = new URL(direct)
  const sockets = new Set<Socket>()
  let state: 'open' | 'cut' | 'frozen' = 'open'
  let isLosing = false
  let hasLost = false
  let keeping: { from: string; until: string; begun(): void } | null = null
  const server = createServer((near) => {
    if (state === 'cut') return near.destroy()
    const far = connect(Number(target.port), target.hostname)
    for (const socket of [near, far]) {
      sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => {
        sockets.delete(socket)
        near.destroy()
        far.destroy()
      })
    }
    let kept: Buffer | null = null
    near.on('data', (chunk) => {
      if (state !== 'frozen') far.write(chunk)
    })
    far.on('data', (chunk) => {
      if (state === 'frozen') return
      // An append of one session is answered with an array of one; what is published comes as three.
      if (isLosing && chunk.toString('latin1', 0, 4) === '*1\r\n') {
        isLosing = false
        hasLost = true
        near.destroy()
        return
      }
      if (keeping && (kept || chunk.includes(keeping.from))) {
        kept = Buffer.concat([kept ?? Buffer.alloc(0), chunk])
        keeping.begun()
        if (!kept.includes(keeping.until)) return
        near.write(kept)
        keeping = kept = null
        return
      }
      near.write(chunk)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const drop = () => {
    for (const socket of sockets) socket.destroy()
  }
  t.teardown(() => {
    drop()
    server.close()
  })
  const url = new URL(direct)
  url.port = String(port)
  return {
    url: url.href,
    direct,
    cut() {
      state = 'cut'
      drop()
    },
    freeze() {
      state = 'frozen'
    },
    restore() {
      if (state === 'frozen') drop()
      state = 'open'
    },
    loseNextAnswer() {
      isLosing = true
    },
    lost: () => hasLost,
    /** One connection's answers are kept from one that has these words on; with the last words all go in one piece. */
    keepBack: (from: string, until: string) =>
      new Promise<void>((begun) => {
        keeping = { from, until, begun }
      }),
  }
}
