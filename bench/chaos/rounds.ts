/** Rounds: a few turns on one replica, a fault at a random moment, the end of all, and the checker. */
import { setTimeout as sleep } from 'node:timers/promises'
import { checkTurn, type Finding, KINDS } from './check.ts'
import { type Fault, HARM } from './faults.ts'
import { inWords, type MemoryLife, watchMemory } from './memory.ts'
import { createRandom, type Random } from './random.ts'
import { follow, isTerminal } from './reader.ts'
import { type ChaosTurn, newSession, newTurn, planTurn } from './workload.ts'
import { LEASE_SECONDS, urlOf, type World } from './world.ts'

interface RoundOptions {
  rounds: number
  seed: number
  /** Turns of a round */
  turns: number
  faults: readonly Fault[]
  /** How long a turn may take after a fault, beside the lease; default 10 s */
  slackMs?: number
  say(line: string): void
}

interface Report {
  rounds: number
  seed: number
  turns: number
  /** Turns that were not over when the fault struck */
  struck: number
  findings: Finding[]
  /** For each struck turn the ms from the fault to its next event, and to its end, by fault */
  times: Partial<Record<Fault, { resumed: number[]; ended: number[] }>>
  calls: number
  requests: number
  events: number
  connections: number
  /** The memory of each process that lived long enough to be judged */
  memory: MemoryLife[]
  seconds: number
}

const SLACK_MS = 10_000
/** Events that were said before the fault may arrive this much later. */
const ON_ITS_WAY_MS = 200
/** After the last restart of a server everything has to come to its end. */
const ROUND_MS = 60_000

export async function runRounds(world: World, options: RoundOptions): Promise<Report> {
  const random = createRandom(options.seed)
  const started = Date.now()
  const report: Report = {
    rounds: 0,
    seed: options.seed,
    turns: 0,
    struck: 0,
    findings: [],
    times: {},
    calls: 0,
    requests: 0,
    events: 0,
    connections: 0,
    memory: [],
    seconds: 0,
  }
  const watch = watchMemory(world.replicas)
  for (let round = 0; round < options.rounds; round++) {
    const fault = random.pick(options.faults)
    const before = report.findings.length
    const ms = await playRound(world, fault, options, random, report)
    report.rounds++
    const found = report.findings.slice(before)
    options.say(`round ${round + 1}: ${fault}, ${ms} ms${found.length ? ', FINDINGS' : ''}`)
    for (const { kind, turn, what } of found) options.say(`  ${kind} ${turn}: ${what}`)
  }
  await Promise.all(world.replicas.map((replica) => replica.ready()))
  report.calls = world.tools.calls.length
  report.requests = world.requests()
  report.memory = watch.stop()
  report.findings.push(...checkRun(world, report.memory, options.say))
  report.seconds = Math.round((Date.now() - started) / 1000)
  return report
}

async function playRound(
  world: World,
  fault: Fault,
  options: RoundOptions,
  random: Random,
  report: Report,
): Promise<number> {
  const roundStarted = Date.now()
  const victim = report.rounds % world.replicas.length
  // The third replica may still be coming back from the round before.
  await Promise.all([0, 1].map((next) => world.replicas[(victim + next) % world.replicas.length]?.ready()))
  const end = AbortSignal.timeout(ROUND_MS + (options.slackMs ?? SLACK_MS))
  const turns = await Promise.all(
    Array.from({ length: options.turns }, async (_, i) => {
      const turn = await newTurn(world, planTurn(await newSession(world, victim), random), victim)
      turn.readings.push(...readers(world, turn, i === 0, random, end))
      return turn
    }),
  )
  await sleep(random.between(0, 900))
  const struckAt = Date.now()
  const struck = turns.filter((turn) => endOf(turn) === null)
  await HARM[fault]({
    world,
    victim,
    turns,
    random,
    join(turn) {
      turn.readings.push(...readers(world, turn, false, random, end))
      turns.push(turn)
    },
    report: (kind, what) => report.findings.push({ kind, turn: '', what: `${fault}: ${what}` }),
  })
  const mended = Date.now()
  await Promise.all(turns.flatMap(({ readings }) => readings.map(({ done }) => done)))
  report.turns += turns.length
  report.struck += struck.length
  for (const turn of struck) {
    const endedAt = endOf(turn) ?? Date.now()
    const times = report.times[fault] ?? { resumed: [], ended: [] }
    report.times[fault] = times
    const resumedAt = resumedAfter(turn, struckAt)
    if (resumedAt !== null) times.resumed.push(resumedAt - struckAt)
    times.ended.push(endedAt - struckAt)
    const since = fault === 'kill' || fault === 'freeze' ? struckAt : mended
    const late = endedAt - since - LEASE_SECONDS * 1000 - (options.slackMs ?? SLACK_MS)
    if (late > 0) report.findings.push({ kind: 'turn_late', turn: turn.id, what: `by ${late} ms` })
  }
  for (const turn of turns) report.findings.push(...(await check(world, turn, report)))
  return Date.now() - roundStarted
}

/** When the first reader learned of the turn's end. */
function endOf({ readings }: ChaosTurn): number | null {
  const ends = readings.flatMap(({ events }) => events.filter(({ type }) => isTerminal(type)))
  return ends.length === 0 ? null : Math.min(...ends.map(({ at }) => at))
}

/** When the reader that stays got something new; an event that was on its way at the fault is not new. */
function resumedAfter({ readings }: ChaosTurn, struckAt: number): number | null {
  return readings[0]?.events.find(({ at }) => at > struckAt + ON_ITS_WAY_MS)?.at ?? null
}

/** A reader that stays; for one turn of a round also one that leaves after every event, and one that leaves at times. */
function readers(world: World, { id }: ChaosTurn, isFirst: boolean, random: Random, signal: AbortSignal) {
  const offset = random.between(0, world.replicas.length)
  const staying = follow(id, { kind: 'staying', place: (i) => urlOf(world, offset + i), signal })
  if (!isFirst) return [staying]
  return [
    staying,
    follow(id, { kind: 'hopping', place: (i) => urlOf(world, i), leaveAfter: () => 1, signal }),
    follow(id, {
      kind: 'wandering',
      place: (i) => urlOf(world, offset + 1 + i),
      leaveAfter: () => 2 + random.between(0, 20),
      signal,
    }),
  ]
}

async function check(world: World, turn: ChaosTurn, report: Report): Promise<Finding[]> {
  for (const { events, connections } of turn.readings) {
    report.events += events.length
    report.connections += connections
  }
  return checkAfterwards(world, turn)
}

/** Checks against the whole stream, as a reader has it that comes when all is over. */
export async function checkAfterwards(world: World, turn: ChaosTurn, first = 0): Promise<Finding[]> {
  const reference = follow(turn.id, {
    kind: 'later',
    place: (i) => urlOf(world, first + i),
    signal: AbortSignal.timeout(ROUND_MS),
  })
  await reference.done
  return checkTurn(world, turn, reference)
}

/** Checks many turns, some at once. */
export async function checkAll(
  world: World,
  turns: readonly ChaosTurn[],
  say: (line: string) => void = () => {},
): Promise<Finding[]> {
  const left = [...turns]
  const found: Finding[] = []
  const some = async () => {
    for (let turn = left.pop(); turn; turn = left.pop()) {
      found.push(...(await checkAfterwards(world, turn, left.length)))
      if (left.length > 0 && left.length % 500 === 0) say(`${left.length} turns are still to be checked`)
    }
  }
  await Promise.all(Array.from({ length: CHECKS_AT_ONCE }, some))
  return found
}
const CHECKS_AT_ONCE = 4

export async function recoveriesOf({ database }: World, turns: readonly ChaosTurn[]): Promise<number> {
  const sum = 'select coalesce(sum(recoveries), 0)::int as count from turn where id = any($1)'
  const { rows } = await database.query(sum, [turns.map(({ id }) => id)])
  return rows[0].count
}

/** What no turn shows, said here: requests that a provider refused, errors in the logs, and memory that grew. */
export function checkRun(world: World, lives: readonly MemoryLife[], say: (line: string) => void): Finding[] {
  const found: Finding[] = []
  const report = (kind: Finding['kind'], what: string) => {
    found.push({ kind, turn: '', what })
    say(`  ${kind}: ${what}`)
  }
  for (const { status, path } of world.refused()) report('request_refused', `${status} ${path}`)
  for (const { name, errors } of world.replicas)
    for (const line of errors()) report('error_logged', `${name}: ${line}`)
  for (const life of lives) if (life.grew) report('memory_grew', inWords(life))
  return found
}

export function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0
}

export const tally = (findings: readonly Finding[]): string =>
  KINDS.map((kind) => `${kind} ${findings.filter((one) => one.kind === kind).length}`).join(', ')

export function summarize(report: Report): string {
  const times = Object.entries(report.times).map(
    ([fault, { resumed, ended }]) =>
      `  ${fault}: ${ended.length} turns struck; next event ${spread(resumed)}; end ${spread(ended)}`,
  )
  return [
    `${report.rounds} rounds, seed ${report.seed}, ${report.seconds} s: ${report.turns} turns (${report.struck} struck), ${report.requests} model calls, ${report.calls} tool calls`,
    `readers: ${report.events} events over ${report.connections} connections`,
    ...times,
    ...report.memory.map(inWords),
    tally(report.findings),
    report.findings.length === 0 ? 'nothing lost, nothing twice' : `${report.findings.length} FINDINGS`,
  ].join('\n')
}

export const spread = (ms: readonly number[]): string =>
  `p50 ${Math.round(percentile(ms, 0.5))}, p99 ${Math.round(percentile(ms, 0.99))}, most ${Math.round(Math.max(...ms))} ms, of ${ms.length}`
