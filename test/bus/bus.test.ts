import { pino } from 'pino'
import t from 'tap'
import { createMemoryBus } from '../../src/bus/memory.ts'
import { openBus } from '../../src/bus/open.ts'
import { busContract } from '../contracts/bus.ts'
import { type BusBed, delta, readAll, SESSION } from '../contracts/bus-bed.ts'
import { ON_REDIS } from '../given-servers.ts'
import { redisBeds } from './redis-bed.ts'

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

t.test('without a Redis URL the bus is in memory: no other process has its events', async (t) => {
  const open = async () => {
    const bus = await openBus({ redisUrl: null, log: pino({ level: 'silent' }) })
    t.teardown(() => bus.close())
    return bus
  }
  const [bus, other] = [await open(), await open()]
  await bus.append(SESSION, [delta('here')])
  t.match(await readAll(bus), [{ events: [{ data: delta('here').data }] }])
  t.same(await readAll(other), [])
})

t.test('on Redis', ON_REDIS, async (t) => busContract(t, redisBeds([8, 9, 10]).redis))
