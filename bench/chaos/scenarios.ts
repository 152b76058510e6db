/** Courses of events that a round cannot test: a database that is away, and how fast commands travel. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Finding } from './check.ts'
import { createRandom, type Random } from './random.ts'
import { type Follow, follow } from './reader.ts'
import { checkAll, recoveriesOf } from './rounds.ts'
import { askOnce, type ChaosTurn, newSession, newTurn, planTurn } from './workload.ts'
import { type Reply, request, urlOf, type World } from './world.ts'

export interface Outcome {
  findings: Finding[]
  turns: number
}

const TURN_MS = 120_000

/** A turn with one reader that stays as long as it can. */
async function followed(world: World, at: number, random: Random): Promise<ChaosTurn> {
  const turn = await newTurn(world, planTurn(await newSession(world, at), random), at)
  const signal = AbortSignal.timeout(TURN_MS)
  turn.readings.push(follow(turn.id, { kind: 'staying', place: (i) => urlOf(world, at + i), signal }))
  return turn
}

const overAll = (turns: ChaosTurn[]): Promise<unknown> =>
  Promise.all(turns.flatMap(({ readings }) => readings.map(({ done }) => done)))

/** PostgreSQL goes away in the middle of turns, and comes back once both questions have their answers. */
export async function databaseAway(
  world: World,
  { ms, seed, count }: { ms: number; seed: number; count: number },
): Promise<Outcome & { recoveries: number; refusal: Reply; ready: { status: number; reason: string } }> {
  const random = createRandom(seed)
  const turns = await Promise.all(Array.from({ length: count }, (_, i) => followed(world, i, random)))
  const session = await newSession(world)
  await sleep(300)
  await world.servers.postgres.down('SIGINT')
  const over = sleep(ms)
  const refusal = await askOnce(world, session, 0)
  const readiness = await fetch(`${urlOf(world, 1)}/readyz`)
  const ready = { status: readiness.status, reason: await readiness.text() }
  await over
  await world.servers.postgres.up()
  await overAll(turns)
  return {
    findings: await checkAll(world, turns),
    turns: turns.length,
    recoveries: await recoveriesOf(world, turns),
    refusal,
    ready,
  }
}

/**
 * A command given to another replica than the owner: ms until the provider's old stream is closed, and until the step's
 * new request has arrived.
 */
interface Travelled {
  closed: number[]
  again: number[]
}

export const cancelToQuiet = (world: World, count: number): Promise<Travelled> =>
  travel(world, count, false, async (turn, _, other) => {
    await request(world, 'POST', `/v1/turns/${turn}/cancel`, undefined, { first: other })
  })

/** The same for a change of tools. */
export const applyNow = (world: World, count: number): Promise<Travelled> =>
  travel(world, count, true, async (_, session, other) => {
    const body = { enabled: false, apply: 'now' }
    await request(world, 'PATCH', `/v1/sessions/${session}/tools/kit.spare`, body, { first: other })
  })

/** A counter, so that each turn has words of its own. */
let commands = 0

async function travel(
  world: World,
  count: number,
  beginsAnew: boolean,
  command: (turn: string, session: string, other: number) => Promise<void>,
): Promise<Travelled> {
  const times: Travelled = { closed: [], again: [] }
  for (let i = 0; i < count; i++) {
    const words = `command ${++commands} travels`
    const { session, turn, reading } = await longTurn(world, words, i)
    await until(() => reading.events.some(({ type }) => type === 'content.delta'))
    const old = world.requestWith(words)
    const asked = performance.now()
    const closed = old?.closed.then(() => times.closed.push(performance.now() - asked))
    const answered = command(turn, session, i + 1)
    if (beginsAnew) {
      await until(() => world.requestWith(words) !== old, 1)
      times.again.push(performance.now() - asked)
    }
    await Promise.all([answered, closed])
    await request(world, 'POST', `/v1/turns/${turn}/cancel?wait=true`, undefined, { first: i })
    await reading.done
  }
  return times
}

/** Ten seconds of deltas, 25 ms apart. */
async function longTurn(world: World, words: string, at: number, how: Partial<Follow> = {}) {
  const session = await newSession(world, at)
  const input = `slow 400 25\nsay ${`${words} far `.repeat(30)}`
  const path = `/v1/sessions/${session}/turns`
  const reply = await request(world, 'POST', path, { input, background: true }, { first: at })
  const turn = String(reply.body.id)
  const signal = AbortSignal.timeout(TURN_MS)
  const reading = follow(turn, { kind: 'staying', place: () => urlOf(world, at), signal, ...how })
  return { session, turn, reading }
}

/**
 * Readers that miss some deltas of a running turn and come back with their cursor, each time at the next replica: ms
 * from that request to the first event.
 */
export async function resume(world: World, turns: number): Promise<number[]> {
  const readings = Array.from({ length: turns }, async (_, i) => {
    const place = (connection: number) => urlOf(world, i + connection)
    const { reading } = await longTurn(world, `reader ${i} comes back`, i, {
      kind: 'wandering',
      place,
      leaveAfter: () => 20,
      awayMs: 100,
    })
    await reading.done
    return reading.resumed
  })
  return (await Promise.all(readings)).flat()
}

async function until(isSo: () => boolean, everyMs = 10): Promise<void> {
  for (const end = Date.now() + 30_000; !isSo(); await sleep(everyMs)) {
    if (Date.now() > end) throw new Error('it did not come to be')
  }
}
