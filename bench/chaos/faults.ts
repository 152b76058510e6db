/** What can go wrong in a round: each fault does its harm, and puts right afterwards what it broke. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import type { Random } from './random.ts'
import type { ChaosTurn } from './workload.ts'
import { request, type World } from './world.ts'

export const FAULTS = [
  'kill',
  'freeze',
  'redis_restart',
  'redis_flush',
  'postgres_restart',
  'cancel',
  'tools',
] as const
export type Fault = (typeof FAULTS)[number]

export interface Harm {
  world: World
  /** The replica that the round's turns were given to */
  victim: number
  turns: ChaosTurn[]
  random: Random
}

/** Does the harm; what it resolves with is done before the next round. */
export const HARM: Record<Fault, (harm: Harm) => Promise<() => Promise<unknown>>> = {
  async kill({ world, victim }) {
    const replica = world.replicas[victim]
    await replica?.end('SIGKILL')
    void replica?.start()
    // It may come back during the next rounds: they begin when those that they need are there.
    return async () => {}
  },
  /** Longer than a lease: it wakes as an owner who does not know that he is none any more. */
  async freeze({ world, victim, random }) {
    const replica = world.replicas[victim]
    replica?.signal('SIGSTOP')
    const back = sleep(world.leaseSeconds * 1000 * (1.2 + random.next())).then(() =>
      replica?.signal('SIGCONT'),
    )
    return async () => back
  },
  async redis_restart({ world, random }) {
    await world.servers?.redis.down('SIGKILL')
    const back = sleep(random.between(0, 3000)).then(() => world.servers?.redis.up())
    return async () => back
  },
  async redis_flush({ world }) {
    const redis = new Redis(world.redisUrl)
    await redis.flushall().finally(() => redis.disconnect())
    return async () => {}
  },
  async postgres_restart({ world, random }) {
    // SIGQUIT: as after a crash, without a checkpoint.
    await world.servers?.postgres.down(random.next() < 0.5 ? 'SIGQUIT' : 'SIGINT')
    const back = sleep(random.between(0, 5000)).then(() => world.servers?.postgres.up())
    return async () => back
  },
  async cancel({ world, victim, turns }) {
    for (const turn of turns) {
      turn.isCancelled = true
      await request(world, 'POST', `/v1/turns/${turn.id}/cancel`, undefined, { first: victim + 1 })
    }
    return async () => {}
  },
  async tools({ world, victim, turns, random }) {
    for (const { session } of turns) {
      const path = `/v1/sessions/${session}/tools/refresh`
      const switched = `/v1/sessions/${session}/tools/kit.spare`
      const enabled = random.next() < 0.5
      await request(
        world,
        'PATCH',
        switched,
        { enabled, apply: 'now' },
        { first: victim + random.between(0, 2) },
      )
      await request(world, 'POST', path, { apply: 'now' }, { first: victim })
    }
    return async () => {}
  },
}
