/** Buses on the Redis of TEST_REDIS_URL, each in a database of its own. */
import { Redis } from 'ioredis'
import { pino } from 'pino'
import type { Test } from 'tap'
import type { Bus } from '../../src/bus/bus.ts'
import { openRedisBus, type RedisBusDeps } from '../../src/bus/redis.ts'
import type { BusBed } from '../contracts/bus-bed.ts'
import { SERVERS } from '../given-servers.ts'

export const isReady = (bus: Bus): Promise<boolean> =>
  bus.ready().then(
    () => true,
    () => false,
  )

/** `databases`: flushed one after the other, so no other file may use them (the lower half is for everybody). */
export function redisBeds(databases: readonly number[]) {
  const urls = new WeakMap<Bus, string>()
  let count = 0
  const urlOf = (bus: Bus): string => urls.get(bus) ?? ''
  const databaseOf = (bus: Bus): string => new URL(urlOf(bus)).pathname.slice(1)

  async function flush(url: string): Promise<void> {
    const redis = new Redis(url)
    await redis.flushdb().finally(() => redis.disconnect())
  }
  async function freshUrl(): Promise<string> {
    const url = new URL(SERVERS.REDIS_URL)
    url.pathname = `/${databases[count++ % databases.length]}`
    await flush(url.href)
    return url.href
  }
  async function openAt(t: Test, deps: Omit<RedisBusDeps, 'log'> & Partial<RedisBusDeps>): Promise<Bus> {
    const bus = await openRedisBus({ log: pino({ level: 'silent' }), ...deps })
    urls.set(bus, deps.url)
    t.teardown(() => bus.close())
    return bus
  }
  function clientOf(t: Test, bus: Bus): Redis {
    const client = new Redis(urlOf(bus))
    t.teardown(() => client.disconnect())
    return client
  }
  const command = (t: Test, bus: Bus, name: string, ...args: string[]): Promise<unknown> =>
    clientOf(t, bus).call(name, ...args)
  const redis: BusBed = {
    open: async (t, limits = {}) => openAt(t, { url: await freshUrl(), limits }),
    another: (t, bus, limits = {}) => openAt(t, { url: urlOf(bus), limits }),
    async lose(_, bus) {
      await flush(urlOf(bus))
      return bus
    },
  }
  return {
    redis,
    freshUrl,
    openAt,
    clientOf,
    command,
    databaseOf,
    channelsOf: async (t: Test, bus: Bus) =>
      (await command(t, bus, 'PUBSUB', 'CHANNELS', `baton:${databaseOf(bus)}:log:*`)) as string[],
  }
}
