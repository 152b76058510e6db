/** Courses of events that a round cannot tell: a database that is away, and how fast wishes travel. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Finding } from './check.ts'
import { createRandom, type Random } from './random.ts'
import { follow, type Reading } from './reader.ts'
import { checkAll, recoveriesOf } from './rounds.ts'
import { type ChaosTurn, newSession, newTurn, planTurn } from './workload.ts'
import { request, type World } from './world.ts'

export interface Outcome {
  findings: Finding[]
  turns: number
}

const TURN_MS = 120_000
const urlOf = ({ replicas }: World, i: number) => replicas[i % replicas.length]?.url ?? ''

/** A turn with one reader that stays as long as it can. */
async function followed(world: World, at: number, random: Random): Promise<ChaosTurn> {
  const turn = await newTurn(world, planTurn(await newSession(world, at), random), at)
  const signal = AbortSignal.timeout(TURN_MS)
  turn.readings.push(follow(turn.id, { kind: 'staying', place: (i) => urlOf(world, at + i), signal }))
  return turn
}

const overAll = (turns: ChaosTurn[]): Promise<unknown> =>
  Promise.all(turns.flatMap(({ readings }) => readings.map(({ done }: Reading) => done)))

/** PostgreSQL goes away in the middle of turns, and comes back. */
export async function databaseAway(
  world: World,
  { ms, seed, count }: { ms: number; seed: number; count: number },
): Promise<Outcome & { recoveries: number; refusal: Refusal; ready: { status: number; reason: string } }> {
  const random = createRandom(seed)
  const turns = await Promise.all(Array.from({ length: count }, (_, i) => followed(world, i, random)))
  const session = await newSession(world)
  await sleep(300)
  await world.servers.postgres.down('SIGINT')
  const back = sleep(ms).then(() => world.servers.postgres.up())
  const refusal = await refusalOf(`${urlOf(world, 0)}/v1/sessions/${session}/turns`)
  const readiness = await fetch(`${urlOf(world, 1)}/readyz`)
  const ready = { status: readiness.status, reason: await readiness.text() }
  await back
  await overAll(turns)
  return {
    findings: await checkAll(world, turns),
    turns: turns.length,
    recoveries: await recoveriesOf(world, turns),
    refusal,
    ready,
  }
}

export interface Refusal {
  status: number
  code: string
  retryAfter: string | null
}

async function refusalOf(url: string): Promise<Refusal> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ input: 'hello', background: true }),
  })
  const { error } = (await response.json()) as { error?: { code: string } }
  return {
    status: response.status,
    code: error?.code ?? '',
    retryAfter: response.headers.get('retry-after'),
  }
}

/** A wish made at another replica than the owner's: ms until the provider's stream is closed. */
export const cancelToQuiet = (world: World, count: number): Promise<number[]> =>
  travel(world, count, async (turn, _, other) => {
    await request(world, 'POST', `/v1/turns/${turn}/cancel`, undefined, { first: other })
  })

/** … until the step has begun anew with the changed tools. */
export const applyNow = (world: World, count: number): Promise<number[]> =>
  travel(world, count, async (_, session, other) => {
    const body = { enabled: false, apply: 'now' }
    await request(world, 'PATCH', `/v1/sessions/${session}/tools/kit.spare`, body, { first: other })
  })

async function travel(
  world: World,
  count: number,
  wish: (turn: string, session: string, other: number) => Promise<void>,
): Promise<number[]> {
  const times: number[] = []
  for (let i = 0; i < count; i++) {
    const session = await newSession(world, i)
    const words = `wish ${i} travels`
    const input = `slow 400 25\nsay ${`${words} far `.repeat(30)}`
    const reply = await request(
      world,
      'POST',
      `/v1/sessions/${session}/turns`,
      { input, background: true },
      { first: i },
    )
    const turn = String(reply.body.id)
    const reading = follow(turn, {
      kind: 'staying',
      place: () => urlOf(world, i),
      signal: AbortSignal.timeout(TURN_MS),
    })
    await until(() => reading.events.some(({ type }) => type === 'content.delta'))
    const asked = performance.now()
    const closed = world.requestWith(words)?.closed.then(() => performance.now())
    await wish(turn, session, i + 1)
    times.push(((await closed) ?? Number.NaN) - asked)
    await request(world, 'POST', `/v1/turns/${turn}/cancel?wait=true`, undefined, { first: i })
    await reading.done
  }
  return times.map((ms) => Math.round(ms))
}

async function until(isSo: () => boolean): Promise<void> {
  for (let tries = 0; !isSo(); tries++) {
    if (tries > 3000) throw new Error('it did not come to be')
    await sleep(10)
  }
}
