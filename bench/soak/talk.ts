/** The talk of a soak: its clients, its faults and their outcome. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Finding } from '../chaos/check.ts'
import { FAULTS, type Fault, HARM } from '../chaos/faults.ts'
import { inWords, type MemoryLife, watchMemory } from '../chaos/memory.ts'
import { createRandom, type Random } from '../chaos/random.ts'
import { follow } from '../chaos/reader.ts'
import { checkAfterwards, checkRun, tally } from '../chaos/rounds.ts'
import { type ChaosTurn, newSession, newTurn, planTurn, switchProvider } from '../chaos/workload.ts'
import { request, urlOf, type World } from '../chaos/world.ts'

interface SoakOptions {
  ms: number
  seed: number
  clients: number
  everyMs: number
  say(line: string): void
}

interface SoakReport {
  seconds: number
  turns: number
  sessions: number
  faults: Partial<Record<Fault, number>>
  findings: Finding[]
  memory: MemoryLife[]
}

interface Soak extends SoakOptions {
  world: World
  report: SoakReport
  /** Turns that are not over yet: those that a fault strikes */
  running: Set<ChaosTurn>
  until: number
}

const TURNS_OF_A_SESSION = 12
/** A turn with a fault or two on its way. */
const TURN_MS = 180_000
/** The clients switch and queue by themselves: each knows which provider its next turn has to ask. */
const STRIKES = FAULTS.filter((fault) => fault !== 'switch' && fault !== 'queue')

export async function soak(world: World, options: SoakOptions): Promise<SoakReport> {
  const started = Date.now()
  const report: SoakReport = { seconds: 0, turns: 0, sessions: 0, faults: {}, findings: [], memory: [] }
  const run: Soak = { ...options, world, report, running: new Set(), until: started + options.ms }
  const watch = watchMemory(world.replicas)
  const clients = Array.from({ length: options.clients }, (_, i) => talk(run, i))
  await Promise.all([strike(run), ...clients])
  await Promise.all(world.replicas.map((replica) => replica.ready()))
  report.memory = watch.stop()
  report.findings.push(...checkRun(world, report.memory, options.say))
  report.seconds = Math.round((Date.now() - started) / 1000)
  return report
}

async function talk(run: Soak, client: number): Promise<void> {
  const random = createRandom(run.seed * 1000 + client)
  while (Date.now() < run.until) {
    const session = await newSession(run.world, client)
    run.report.sessions++
    await converse(run, session, random)
    await request(run.world, 'DELETE', `/v1/sessions/${session}`, undefined, { first: client })
    run.world.forget()
  }
}

async function converse(run: Soak, session: string, random: Random): Promise<void> {
  const { world } = run
  let provider: string | null = null
  for (let i = 0; i < TURNS_OF_A_SESSION && Date.now() < run.until; i++) {
    const at = random.between(0, world.replicas.length)
    if (random.next() < 0.3) provider = await switchProvider(world, session, at)
    const turn = await newTurn(world, planTurn(session, random, provider), at)
    const done = followed(run, turn, random)
    const habit = random.next()
    if (habit < 0.1) await cancel(run, turn, at + 1)
    else if (habit < 0.3) await changeTools(world, session, at + 1, random)
    await done
  }
}

async function followed(run: Soak, turn: ChaosTurn, random: Random): Promise<void> {
  const { world, report, running } = run
  const start = random.between(0, world.replicas.length)
  const place = (i: number) => urlOf(world, start + i)
  const signal = AbortSignal.timeout(TURN_MS)
  turn.readings.push(
    follow(turn.id, { kind: 'staying', place, signal }),
    follow(turn.id, { kind: 'wandering', place, leaveAfter: () => 2 + random.between(0, 20), signal }),
  )
  running.add(turn)
  await Promise.all(turn.readings.map(({ done }) => done))
  running.delete(turn)
  const found = await checkAfterwards(world, turn)
  report.turns++
  report.findings.push(...found)
  for (const { kind, what } of found) run.say(`  ${kind} ${turn.id}: ${what}`)
}

async function cancel({ world }: Soak, turn: ChaosTurn, first: number): Promise<void> {
  turn.isCancelled = true
  await request(world, 'POST', `/v1/turns/${turn.id}/cancel`, undefined, { first })
}

async function changeTools(world: World, session: string, first: number, random: Random): Promise<void> {
  const path = `/v1/sessions/${session}/tools/kit.spare`
  await request(world, 'PATCH', path, { enabled: random.next() < 0.5, apply: 'now' }, { first })
}

/** The first replica is the one that dies and freezes; the others live as long as the run and show their memory. */
async function strike(run: Soak): Promise<void> {
  const { world, report, running } = run
  const random = createRandom(run.seed)
  while (Date.now() + run.everyMs < run.until) {
    await sleep(run.everyMs)
    await world.replicas[0]?.ready()
    const fault = random.pick(STRIKES)
    const joined: Promise<void>[] = []
    await HARM[fault]({
      world,
      victim: 0,
      turns: [...running],
      random,
      join: (turn) => void joined.push(followed(run, turn, random)),
      report: (kind, what) => report.findings.push({ kind, turn: '', what: `${fault}: ${what}` }),
    })
    await Promise.all(joined)
    report.faults[fault] = (report.faults[fault] ?? 0) + 1
    run.say(`${Math.round((run.until - Date.now()) / 1000)} s left: ${fault}, ${report.turns} turns over`)
  }
}

export function summarizeSoak({ seconds, turns, sessions, faults, findings, memory }: SoakReport): string {
  const struck = Object.entries(faults).map(([fault, count]) => `${fault} ${count}`)
  return [
    `${seconds} s: ${turns} turns in ${sessions} sessions`,
    `faults: ${struck.join(', ')}`,
    ...memory.map(inWords),
    tally(findings),
    findings.length === 0 ? 'nothing lost, nothing twice' : `${findings.length} FINDINGS`,
  ].join('\n')
}
