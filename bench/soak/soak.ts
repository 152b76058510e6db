/**
 * Soak: clients that talk on and on in sessions of many turns, switch providers, change tools, cancel and come
 * back, while a fault strikes every now and then; every turn is checked as in bench/chaos, and memory by its floor.
 *
 *   npm run build && npm run soak -- --minutes 60
 *   npm run soak -- --minutes 2 --clients 2 --every 15           small enough for a CI
 */
import { parseArgs } from 'node:util'
import { endOnSignals, openWorld } from '../chaos/world.ts'
import { numbersIn } from '../options.ts'
import { soak, summarizeSoak } from './talk.ts'

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '5' },
    seed: { type: 'string', default: '1' },
    clients: { type: 'string', default: '4' },
    /** Seconds between two faults */
    every: { type: 'string', default: '20' },
    logs: { type: 'string' },
  },
})

const { minutes, seed, clients, every } = numbersIn(values, 'minutes', 'seed', 'clients', 'every')
endOnSignals()
const world = await openWorld({ logs: values.logs ?? null })
try {
  const report = await soak(world, {
    ms: minutes * 60_000,
    seed,
    clients,
    everyMs: every * 1000,
    say: (line) => console.log(line),
  })
  console.log(summarizeSoak(report))
  if (report.findings.length > 0) process.exitCode = 1
} finally {
  await world.close()
}
