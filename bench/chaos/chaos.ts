/**
 * Chaos: three replicas under load, a seeded schedule of faults, and a checker that believes nobody.
 *
 *   npm run build && npm run chaos -- --rounds 200 --seed 1              kill -9 alone
 *   npm run chaos -- --rounds 100 --seed 1 --faults all                  everything that can go wrong
 */
import { parseArgs } from 'node:util'
import { FAULTS, type Fault } from './faults.ts'
import { runRounds, summarize } from './rounds.ts'
import { openWorld } from './world.ts'

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '20' },
    seed: { type: 'string', default: '1' },
    faults: { type: 'string', default: 'kill' },
    turns: { type: 'string', default: '3' },
    logs: { type: 'string' },
  },
})

const faults = values.faults === 'all' ? [...FAULTS] : values.faults.split(',').map(faultOf)

function faultOf(name: string): Fault {
  const found = FAULTS.find((fault) => fault === name)
  if (found) return found
  throw new Error(`--faults takes all, or some of: ${FAULTS.join(', ')}`)
}

const world = await openWorld({ logs: values.logs ?? null })
try {
  const report = await runRounds(world, {
    rounds: Number(values.rounds),
    seed: Number(values.seed),
    turns: Number(values.turns),
    faults,
    say: (line) => console.log(line),
  })
  console.log(summarize(report))
  if (report.findings.length > 0) process.exitCode = 1
} finally {
  await world.close()
}
