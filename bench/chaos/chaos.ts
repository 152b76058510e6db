/**
 * Chaos: three replicas under load, a seeded schedule of faults, and a checker that believes nobody.
 *
 *   npm run build && npm run chaos -- --rounds 200 --seed 1              kill -9 alone
 *   npm run chaos -- --rounds 100 --seed 1 --faults all                  everything that can go wrong
 *   npm run chaos -- --scenarios                                         a deploy, a database away, how fast wishes travel
 */
import { parseArgs } from 'node:util'
import { FAULTS, type Fault } from './faults.ts'
import { runRounds, spread, summarize } from './rounds.ts'
import { applyNow, cancelToQuiet, databaseAway, rollingRestart } from './scenarios.ts'
import { endOnSignals, openWorld } from './world.ts'

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '20' },
    seed: { type: 'string', default: '1' },
    faults: { type: 'string', default: 'kill' },
    turns: { type: 'string', default: '3' },
    logs: { type: 'string' },
    scenarios: { type: 'boolean', default: false },
    /** Turns a second while the replicas are replaced; absent: six clients */
    rate: { type: 'string' },
  },
})

const faults = values.faults === 'all' ? [...FAULTS] : values.faults.split(',').map(faultOf)

function faultOf(name: string): Fault {
  const found = FAULTS.find((fault) => fault === name)
  if (found) return found
  throw new Error(`--faults takes all, or some of: ${FAULTS.join(', ')}`)
}

endOnSignals()
const world = await openWorld({ logs: values.logs ?? null })
try {
  if (values.scenarios) await playScenarios()
  else await playRounds()
} finally {
  await world.close()
}

async function playRounds(): Promise<void> {
  const report = await runRounds(world, {
    rounds: Number(values.rounds),
    seed: Number(values.seed),
    turns: Number(values.turns),
    faults,
    say: (line) => console.log(line),
  })
  console.log(summarize(report))
  if (report.findings.length > 0) process.exitCode = 1
}

async function playScenarios(): Promise<void> {
  const seed = Number(values.seed)
  const load = values.rate === undefined ? { clients: 6 } : { rate: Number(values.rate) }
  const rolled = await rollingRestart(world, { ...load, seed })
  const away = await databaseAway(world, { ms: 10_000, seed, count: 6 })
  console.log(`rolling restart: ${JSON.stringify(rolled)}`)
  console.log(`database away for 10 s: ${JSON.stringify(away)}`)
  console.log(`cancel to quiet, across replicas: ${spread(await cancelToQuiet(world, 100))}`)
  console.log(`apply now to the old request closed, across replicas: ${spread(await applyNow(world, 100))}`)
  if (rolled.findings.length + away.findings.length > 0) process.exitCode = 1
}
