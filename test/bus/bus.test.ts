import { Redis } from 'ioredis'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import type { Bus } from '../../src/bus/bus.ts'
import { openBus } from '../../src/bus/index.ts'
import { createMemoryBus } from '../../src/bus/memory.ts'
import { openRedisBus, type RedisBusDeps } from '../../src/bus/redis.ts'
import { type BusBed, busContract } from '../contracts/bus.ts'

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

/** Each bed takes a database of its own, so that tests do not see each other's keys. */
let database = 0
const urls = new WeakMap<Bus, string>()

async function freshUrl(): Promise<string> {
  const url = new URL(TEST_REDIS_URL ?? '')
  database = (database + 1) % 16
  url.pathname = `/${database}`
  await flush(url.href)
  return url.href
}
async function flush(url: string): Promise<void> {
  const redis = new Redis(url)
  await redis.flushdb()
  redis.disconnect()
}
async function openAt(t: Test, deps: Omit<RedisBusDeps, 'log'>): Promise<Bus> {
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
