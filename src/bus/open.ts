/** Picks the bus: Redis if replicas share one, else the memory of this process. */
import type { Logger } from 'pino'
import type { Metrics } from '../telemetry.ts'
import type { Bus } from './bus.ts'
import { createMemoryBus } from './memory.ts'

interface OpenBus {
  redisUrl: string | null
  log: Logger
  metrics?: Pick<Metrics, 'eventsAppended' | 'eventsLost'>
}

/** Does not fail while Redis is away: the bus says so (`ready`) until it is there. */
export async function openBus({ redisUrl, ...deps }: OpenBus): Promise<Bus> {
  if (redisUrl === null) return createMemoryBus(deps)
  // The driver is loaded only if there is a server to talk to.
  const { openRedisBus } = await import('./redis.ts')
  return openRedisBus({ ...deps, url: redisUrl })
}
