/** How often a key may call: counted by the minute, over all replicas if they share a bus. */
import type { Bus } from '../bus/bus.ts'
import type { Config } from '../config/config.ts'
import { BatonError } from '../errors.ts'
import type { Caller } from '../ports.ts'

interface RateLimitDeps {
  config: Pick<Config, 'rateLimitPerMinute'>
  bus: Pick<Bus, 'tally'>
}

const WINDOW_MS = 60_000

/**
 * Returns the function that counts a caller's request. It throws rate_limited if there were too many. The bootstrap
 * admin is never refused: somebody must be able to look.
 */
export function createRateLimit({ config, bus }: RateLimitDeps) {
  const most = config.rateLimitPerMinute
  return async ({ key_id, owner }: Caller): Promise<void> => {
    if (most === null || key_id === 'bootstrap') return
    const now = Date.now()
    const minute = Math.floor(now / WINDOW_MS)
    // While Redis is away nobody counts, and nobody is refused for it.
    const calls = await bus.tally(`${key_id ?? owner}:${minute}`, WINDOW_MS / 1000).catch(() => 0)
    if (calls <= most) return
    throw new BatonError('rate_limited', `This key may call ${most} times a minute.`, {
      // From when it came: the minute may be over by the time that it is counted.
      retryAfter: Math.ceil(((minute + 1) * WINDOW_MS - now) / 1000),
    })
  }
}
