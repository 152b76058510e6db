/** What can go wrong in a round: each fault does its harm, and puts right afterwards what it broke. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import type { Kind } from './check.ts'
import type { Random } from './random.ts'
import {
  ask,
  askOnce,
  type ChaosTurn,
  newSession,
  newTurn,
  planChat,
  planTurn,
  switchProvider,
} from './workload.ts'
import { LEASE_SECONDS, type Reply, request, type World } from './world.ts'

export const FAULTS = [
  'kill',
  'freeze',
  'redis_restart',
  'redis_mute',
  'redis_flush',
  'postgres_restart',
  'disk_full',
  'pool_exhausted',
  'cancel',
  'tools',
  'switch',
  'twice',
  'queue',
] as const
export type Fault = (typeof FAULTS)[number]

interface Harm {
  world: World
  /** The replica that the round's turns were given to */
  victim: number
  turns: ChaosTurn[]
  random: Random
  /** Takes one more turn into the round: followed, awaited and checked like the others */
  join(turn: ChaosTurn): void
  report(kind: Kind, what: string): void
}

/** Does the harm, and resolves once what it broke is right again. */
export const HARM: Record<Fault, (harm: Harm) => Promise<unknown>> = {
  async kill({ world, victim }) {
    await kill(world, victim)
  },
  /** Longer than a lease: the replica wakes as an owner that does not know that it has lost its turns. */
  async freeze({ world, victim, random }) {
    const replica = world.replicas[victim]
    replica?.signal('SIGSTOP')
    await sleep(LEASE_SECONDS * 1000 * (1.2 + random.next()))
    replica?.signal('SIGCONT')
  },
  /** At times the log comes back with what it had a moment before; at times the owner dies, too. */
  async redis_restart({ world, victim, random }) {
    if (random.next() < 0.5) {
      const redis = new Redis(world.servers.redis.url)
      await redis.save().finally(() => redis.disconnect())
      await sleep(random.between(0, 1000))
    }
    await world.servers.redis.down('SIGKILL')
    const back = sleep(random.between(0, 3000)).then(() => world.servers.redis.up())
    if (random.next() < 0.5) await kill(world, victim)
    await back
  },
  /** No event that is committed can be announced; then the owner dies. The next owner has to say the events, once. */
  async redis_mute({ world, victim, random }) {
    const redis = new Redis(world.servers.redis.url)
    const ms = random.between(500, 2500)
    await redis.call('CLIENT', 'PAUSE', String(ms), 'WRITE').finally(() => redis.disconnect())
    await sleep(random.between(50, ms))
    await kill(world, victim)
  },
  /** At times the owner dies, too: then nobody knows that there was more in the log. */
  async redis_flush({ world, victim, random }) {
    const redis = new Redis(world.servers.redis.url)
    await redis.flushall().finally(() => redis.disconnect())
    if (random.next() < 0.5) await kill(world, victim)
  },
  async postgres_restart({ world, random }) {
    // A replica that is still starting would end without its database, and nothing here starts it again.
    await Promise.all(world.replicas.map((replica) => replica.ready()))
    // SIGQUIT: as after a crash, without a checkpoint.
    await world.servers.postgres.down(random.next() < 0.5 ? 'SIGQUIT' : 'SIGINT')
    await sleep(random.between(0, 5000))
    await world.servers.postgres.up()
  },
  /** The error that a server with a full disk answers every insertion with. */
  async disk_full({ world, victim, random, report }) {
    const session = await newSession(world, victim)
    await world.database.query(FILL_DISK)
    const over = sleep(random.between(300, 3000))
    judge(await askOnce(world, session, victim), 'disk full', report)
    await over
    await world.database.query(FREE_DISK)
  },
  /** A lock holds every connection that a replica has; a request that needs one more waits until it gives up. */
  async pool_exhausted({ world, victim, report }) {
    const session = await newSession(world, victim)
    const holder = await world.database.connect()
    await holder.query('begin; lock table turn in access exclusive mode')
    const back = sleep(POOL_HELD_MS).then(async () => {
      await holder.query('commit')
      holder.release()
    })
    const crowd = Array.from({ length: POOL_CROWD }, () => askOnce(world, session, victim))
    await back
    const replies = await Promise.all(crowd)
    const turnedAway = replies.filter(({ status }) => status !== 202 && status !== 409)
    if (turnedAway.length === 0) report('refusal_unclear', 'no request was refused for want of a connection')
    for (const reply of turnedAway) judge(reply, 'pool exhausted', report)
  },
  /** At times the owner dies before it has acted on the command. */
  async cancel({ world, victim, turns, random }) {
    for (const turn of turns) {
      turn.isCancelled = true
      await request(world, 'POST', `/v1/turns/${turn.id}/cancel`, undefined, { first: victim + 1 })
    }
    if (random.next() < 0.5) await kill(world, victim)
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
  },
  /** Sessions go on with the next provider, whose first turn waits behind the running one; at times the owner dies. */
  async switch({ world, victim, turns, random, join }) {
    for (const { session } of [...turns]) {
      const provider = await switchProvider(world, session, victim + random.between(0, 2))
      join(await newTurn(world, planTurn(session, random, provider), victim + random.between(0, 2)))
    }
    if (random.next() < 0.5) await kill(world, victim)
  },
  /** Clients repeat their requests at every replica at once; at times the owner dies meanwhile. */
  async twice({ world, victim, turns, random, join, report }) {
    const everywhere = world.replicas.map((_, i) => victim + i)
    const fresh = planTurn(await newSession(world, victim), random)
    const first = everywhere.map((at) => ask(world, fresh, at))
    const again = turns.map(async (turn) => ({
      turn,
      replies: await Promise.all(everywhere.map((at) => ask(world, turn, at))),
    }))
    if (random.next() < 0.5) await kill(world, victim)
    const replies = await Promise.all(first)
    const turn = { ...fresh, id: String(replies[0]?.body.id), isCancelled: false, readings: [] }
    for (const one of [{ turn, replies }, ...(await Promise.all(again))]) {
      // A client of a soak may have deleted its session meanwhile.
      const ids = one.replies.filter(({ status }) => status !== 404).map(({ body }) => body.id)
      if (ids.some((id) => id !== one.turn.id)) report('turn_repeated', `${one.turn.id} answered as ${ids}`)
    }
    join(turn)
  },
  /** Short turns wait behind the running ones, from elsewhere: one may begin while the end of the last is still to be said. */
  async queue({ world, victim, turns, random, join }) {
    for (const { session } of [...turns]) {
      for (let i = 1; i <= QUEUED; i++) {
        join(await newTurn(world, planChat(session, random), victim + i))
      }
    }
  },
}

/** Turns that wait in one session. */
const QUEUED = 4

/** The replica may come back during the next rounds, which begin when the replicas that they need are there. */
async function kill({ replicas }: World, victim: number): Promise<void> {
  await replicas[victim]?.end('SIGKILL')
  void replicas[victim]?.start()
}

const FILL_DISK = `
  create function no_space() returns trigger language plpgsql as $$ begin
    raise exception 'could not extend file "base/1/2": No space left on device' using errcode = '53100';
  end $$;
  create trigger no_space before insert on message for each row execute function no_space()`
const FREE_DISK = 'drop function no_space() cascade'

/** Longer than a request waits for a connection. */
const POOL_HELD_MS = 7_000
/** More requests than a replica has connections. */
const POOL_CROWD = 20

/** The answer must say what is wrong and when to come again. */
function judge({ status, body, retryAfter }: Reply, what: string, report: Harm['report']): void {
  const { code } = (body.error ?? {}) as { code?: string }
  if (status === 503 && code === 'unavailable' && retryAfter !== null) return
  report('refusal_unclear', `${what}: ${status} ${code}, Retry-After ${retryAfter}`)
}
