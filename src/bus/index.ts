/** Picks the bus: Redis where several replicas share one, else the memory of this process. */
import type { Logger } from 'pino'
import type { Metrics } from '../telemetry.ts'
import type { Bus } from './bus.ts'
import { createMemoryBus } from './memory.ts'
import { openRedisBus } from './redis.ts'

export interface OpenBus {
  redisUrl: string | null
  log: Logger
  metrics?: Pick<Metrics, 'eventsAppended' | 'eventsLost'>
}

/** Does not fail while Redis is away: the bus says so (`ready`) until it is there. */
export const openBus = async ({ redisUrl, ...deps }: OpenBus): Promise<Bus> =>
  redisUrl === null ? createMemoryBus(deps) : openRedisBus({ ...deps, url: redisUrl })
