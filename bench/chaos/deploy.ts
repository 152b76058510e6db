/**
 * A deploy under load: every replica is stopped as a deploy stops it and started again, while clients talk. A client
 * behaves like an application: it asks for a turn and reads the answer's own stream, asks the next replica under the
 * same key where it is refused, and goes on with its cursor where its stream ends early.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { createRandom } from './random.ts'
import { follow } from './reader.ts'
import { checkAll, recoveriesOf } from './rounds.ts'
import type { Outcome } from './scenarios.ts'
import { type ChaosTurn, newSession, type Plan, planChat, planTurn } from './workload.ts'
import { urlOf, type World } from './world.ts'

/** So many clients, each with one turn after the other; or so many turns a second, however long each turn takes. */
type Load = { clients: number } | { rate: number }

interface DeployOptions {
  load: Load
  seed: number
  /** Share of turns of three steps with three tool calls; the others are answers of some tens of deltas */
  withTools: number
  /** How long the clients talk before the first replica is stopped */
  calmMs: number
  say(line: string): void
}

interface DeployReport extends Outcome {
  /** Turns begun a second, while replicas were replaced */
  rate: number
  seconds: number
  /** How each replica ended, how long that took, and how long it then took to be ready: ms */
  exits: (number | null)[]
  drained: number[]
  ready: number[]
  /** Turns that were taken from an owner that had not given them away */
  recoveries: number
  /** Failures that clients met and healed by asking again: refusals by their code, streams that ended early */
  healed: Record<string, number>
  gaps: number
  /** ms from the request to the turn's first event and to its first words, in the calm's second half and during the deploy */
  firstEvent: { calm: number[]; deploy: number[] }
  firstWords: { calm: number[]; deploy: number[] }
}

interface Talk {
  turn: ChaosTurn
  asked: number
}

/** A turn that takes longer is stuck. */
const TURN_MS = 90_000
/** A client that was refused everywhere waits before it asks again. */
const PAUSE_MS = 50
/** With a rate: turns may take this many seconds on the average before no session is left. */
const SESSIONS_A_TURN = 8
/** Sessions that are made at the same time. */
const AT_ONCE = 8

export async function rollingRestart(world: World, options: DeployOptions): Promise<DeployReport> {
  const { calmMs, say } = options
  const healed: Record<string, number> = {}
  const talking = await talk(world, options, (what) => {
    healed[what] = (healed[what] ?? 0) + 1
  })
  const calm = Date.now() + calmMs / 2
  await sleep(calmMs)
  const started = Date.now()
  const report = { exits: [] as (number | null)[], drained: [] as number[], ready: [] as number[] }
  for (const replica of world.replicas) {
    await sleep(500)
    const stopped = Date.now()
    report.exits.push(await replica.end('SIGTERM'))
    const down = Date.now()
    await replica.start()
    report.drained.push(down - stopped)
    report.ready.push(Date.now() - down)
    say(
      `${replica.name}: ended with ${report.exits.at(-1)} after ${down - stopped} ms, ready ${Date.now() - down} ms later; ${talking.state()}`,
    )
  }
  const ended = Date.now()
  const talks = await talking.stop()
  say(`all over; ${talking.state()}`)
  const turns = talks.map(({ turn }) => turn)
  const during = talks.filter(({ asked }) => asked >= started && asked < ended)
  const before = talks.filter(({ asked }) => asked >= calm && asked < started)
  const readings = turns.flatMap((turn) => turn.readings)
  return {
    ...report,
    turns: turns.length,
    rate: Math.round((10_000 * during.length) / (ended - started)) / 10,
    seconds: Math.round((ended - started) / 1000),
    recoveries: await recoveriesOf(world, turns),
    healed,
    gaps: readings.flatMap(({ events }) => events.filter(({ type }) => type === 'gap')).length,
    firstEvent: { calm: firsts(before, isAny), deploy: firsts(during, isAny) },
    firstWords: { calm: firsts(before, isWords), deploy: firsts(during, isWords) },
    findings: await checkAll(world, turns, say),
  }
}

const isAny = () => true
const isWords = (type: string) => type === 'content.delta'

const firsts = (talks: readonly Talk[], isIt: (type: string) => boolean): number[] =>
  talks.flatMap(({ turn, asked }) => {
    const event = turn.readings[0]?.events.find(({ type }) => isIt(type))
    return event ? [event.at - asked] : []
  })

interface Talking {
  state(): string
  /** Starts no new turns; resolves with all turns once they are over. */
  stop(): Promise<Talk[]>
}

/** Keeps starting turns. Sessions are made before the clock starts, and used again when their turn is over. */
async function talk(world: World, options: DeployOptions, heal: (what: string) => void): Promise<Talking> {
  const { load, seed, withTools, say } = options
  const random = createRandom(seed)
  const free = await makeSessions(world, 'rate' in load ? load.rate * SESSIONS_A_TURN : load.clients)
  say(`${free.length} sessions`)
  const talks: Promise<Talk>[] = []
  let underWay = 0
  let isOver = false
  const one = async (session: string): Promise<Talk> => {
    underWay++
    const plan = random.next() < withTools ? planTurn(session, random) : planChat(session, random)
    const done = await converse(world, plan, random.between(0, world.replicas.length), heal)
    underWay--
    free.push(session)
    return done
  }
  /** Null: every session has a turn. */
  const begin = (): Promise<Talk> | null => {
    const session = free.shift()
    if (session === undefined) return null
    const turn = one(session)
    // The caller that waits for all turns hears of a failure.
    turn.catch(() => {})
    talks.push(turn)
    return turn
  }
  const converseOn = async () => {
    while (!isOver) await begin()
  }
  const keepPace = async (rate: number) => {
    const started = performance.now()
    for (let begun = 0; !isOver; await sleep(1000 / rate)) {
      for (; begun < ((performance.now() - started) * rate) / 1000; begun++) {
        if (!begin()) heal('every session had a turn')
      }
    }
  }
  const going =
    'rate' in load ? keepPace(load.rate) : Promise.all(Array.from({ length: load.clients }, converseOn))
  going.catch(() => {})
  return {
    state: () => `${talks.length} turns begun, ${underWay} under way`,
    async stop() {
      isOver = true
      await going
      return Promise.all(talks)
    },
  }
}

async function makeSessions(world: World, count: number): Promise<string[]> {
  const made: string[] = []
  const some = async (at: number) => {
    for (let i = at; i < count; i += AT_ONCE) made.push(await newSession(world, i))
  }
  await Promise.all(Array.from({ length: AT_ONCE }, (_, at) => some(at)))
  return made
}

/** One turn, from the request to the end of what it says. */
async function converse(
  world: World,
  plan: Plan,
  first: number,
  heal: (what: string) => void,
): Promise<Talk> {
  const asked = Date.now()
  const signal = AbortSignal.timeout(TURN_MS)
  const { opened, at } = await ask(world, plan, first, signal, heal)
  const id = opened.headers.get('x-baton-turn') ?? ''
  const place = (i: number) => urlOf(world, at + i)
  const reading = follow(id, { kind: 'staying', place, signal, opened })
  await reading.done
  if (reading.connections > 1) heal('stream ended early')
  return { turn: { ...plan, id, isCancelled: false, readings: [reading] }, asked }
}

/** Asks one replica after the other, under the plan's key. */
async function ask(
  world: World,
  plan: Plan,
  first: number,
  signal: AbortSignal,
  heal: (what: string) => void,
): Promise<{ opened: Response; at: number }> {
  const { length } = world.replicas
  for (let tries = 0; ; tries++) {
    const at = first + tries
    const opened = await fetch(`${urlOf(world, at)}/v1/sessions/${plan.session}/turns`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': plan.key },
      body: JSON.stringify({ input: plan.input }),
      signal,
    }).catch(() => null)
    signal.throwIfAborted()
    if (opened?.status === 200) return { opened, at }
    const answer = (await opened?.text().catch(() => '')) ?? ''
    if (opened && opened.status < 500) throw new Error(`no turn: ${opened.status} ${answer}`)
    heal(opened ? `${opened.status} ${/"code":"(\w+)"/.exec(answer)?.[1]}` : 'no connection')
    if (tries % length === length - 1) await sleep(PAUSE_MS)
  }
}
