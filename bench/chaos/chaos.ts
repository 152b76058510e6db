/**
 * Chaos: three replicas under load, a seeded schedule of faults, and a checker that takes nobody's word.
 *
 *   npm run build && npm run chaos -- --rounds 200 --seed 1              kill -9 alone
 *   npm run chaos -- --rounds 100 --seed 1 --faults all                  everything that can go wrong
 *   npm run chaos -- --scenarios all                                     a deploy, a database away, how fast commands travel
 *   npm run chaos -- --scenarios deploy --rate 50                        one of them: deploy, away, cancel, apply, resume
 */
import { parseArgs } from 'node:util'
import { numbersIn, roundsIn } from '../options.ts'
import type { Finding } from './check.ts'
import { rollingRestart } from './deploy.ts'
import { FAULTS, type Fault } from './faults.ts'
import { runRounds, spread, summarize, tally } from './rounds.ts'
import { applyNow, cancelToQuiet, databaseAway, resume } from './scenarios.ts'
import { endOnSignals, openWorld } from './world.ts'

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '20' },
    seed: { type: 'string', default: '1' },
    faults: { type: 'string', default: 'kill' },
    turns: { type: 'string', default: '3' },
    logs: { type: 'string' },
    scenarios: { type: 'string' },
    /** Turns a second while the replicas are replaced */
    rate: { type: 'string', default: '50' },
    /** Share of the turns that call tools */
    tools: { type: 'string', default: '0.1' },
  },
})

const rounds = roundsIn(values)
const { seed, turns, rate, tools } = numbersIn(values, 'seed', 'turns', 'rate', 'tools')
const faults = values.faults === 'all' ? [...FAULTS] : values.faults.split(',').map(faultOf)

function faultOf(name: string): Fault {
  const found = FAULTS.find((fault) => fault === name)
  if (found) return found
  throw new Error(`--faults takes all, or some of: ${FAULTS.join(', ')}`)
}

const SCENARIOS: Record<string, () => Promise<Finding[]>> = {
  async deploy() {
    const { findings, firstEvent, firstWords, ...report } = await rollingRestart(world, {
      load: { rate },
      seed,
      withTools: tools,
      calmMs: 20_000,
      say: (line) => console.log(line),
    })
    console.log(`rolling restart: ${JSON.stringify(report)}`)
    for (const [what, { calm, deploy }] of Object.entries({
      'first event': firstEvent,
      'first words': firstWords,
    })) {
      console.log(`${what}: before ${spread(calm)}; during the deploy ${spread(deploy)}`)
    }
    return findings
  },
  async away() {
    const { findings, ...report } = await databaseAway(world, {
      ms: 10_000,
      seed,
      count: 6,
    })
    console.log(`database away for 10 s: ${JSON.stringify(report)}`)
    return findings
  },
  async cancel() {
    const { closed } = await cancelToQuiet(world, 100)
    console.log(`cancel to quiet, across replicas: ${spread(closed)}`)
    return []
  },
  async apply() {
    const { closed, again } = await applyNow(world, 100)
    console.log(`apply now across replicas, to the old request closed: ${spread(closed)}`)
    console.log(`apply now across replicas, to the new request: ${spread(again)}`)
    return []
  },
  async resume() {
    console.log(`a reconnection with a cursor, to its first event: ${spread(await resume(world, 10))}`)
    return []
  },
}

const scenarios = values.scenarios === 'all' ? Object.keys(SCENARIOS) : values.scenarios?.split(',')
if (scenarios?.some((name) => !SCENARIOS[name]))
  throw new Error(`--scenarios takes all, or some of: ${Object.keys(SCENARIOS).join(', ')}`)

endOnSignals()
const world = await openWorld({ logs: values.logs ?? null })
try {
  if (scenarios) await playScenarios(scenarios)
  else await playRounds()
} finally {
  await world.close()
}

async function playRounds(): Promise<void> {
  const report = await runRounds(world, {
    rounds,
    seed,
    turns,
    faults,
    say: (line) => console.log(line),
  })
  console.log(summarize(report))
  if (report.findings.length > 0) process.exitCode = 1
}

async function playScenarios(names: readonly string[]): Promise<void> {
  for (const name of names) {
    const findings = (await SCENARIOS[name]?.()) ?? []
    console.log(findings.length === 0 ? `${name}: nothing found` : tally(findings))
    for (const { kind, turn, what } of findings) console.log(`  ${kind} ${turn}: ${what}`)
    if (findings.length > 0) process.exitCode = 1
  }
}
