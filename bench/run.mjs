/**
 * The figures of bench/README.md: Baton beside the provider itself, a bare Fastify gateway (bare-xcode) and one that keeps its
 * turns and does nothing else (bare-durable, the floor), interleaved in one run on loopback, medians over rounds. `--rounds N`
 * (3), `--only ready,growth`. Start with an idle machine: quote the ratios, not the milliseconds.
 */
import { parseArgs } from 'node:util'
import { roundsIn } from '../dist/bench/options.js'
import { bystanders, history, tools } from './figures/growth.mjs'
import { overload, ready } from './figures/process.mjs'
import {
  bursts,
  idleStreams,
  longTurns,
  manyStreams,
  streams,
  sustained,
  turns,
  warm,
} from './figures/streams.mjs'
import { NOOP, replay, steps, toolTurns, writes } from './figures/turns.mjs'
import { createStage, serverEnv } from './stage.mjs'

const FIGURES = {
  ready,
  streams,
  long: longTurns,
  bursts,
  many: manyStreams,
  turns,
  sustained,
  history,
  tools,
  bystanders,
  steps,
  toolTurns,
  writes,
  replay,
  overload,
  idle: idleStreams,
}

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '3' },
    only: { type: 'string', default: Object.keys(FIGURES).join(',') },
  },
})

const rounds = roundsIn(values)
const names = values.only.split(',')
if (!names.every((name) => name in FIGURES))
  throw new Error(`--only takes some of: ${Object.keys(FIGURES).join(', ')}`)

const stage = createStage()
try {
  const upstream = await stage.startUpstream({ FAKE_TOOL_NAME: NOOP })
  const servers = await stage.startServers()
  // A shared machine's pauses are not the gateway's overload, which has a figure of its own.
  const env = { BATON__LIMITS__OVERLOAD_DELAY: 'PT1H' }
  const gateways = { embedded: await stage.startBaton(upstream, { env }) }
  if (servers)
    gateways['PostgreSQL + Redis'] = await stage.startBaton(upstream, {
      env: { ...env, ...serverEnv(servers) },
    })
  const floors = { 'floor, embedded': await stage.startDurable(upstream) }
  if (servers) floors['floor, servers'] = await stage.startDurable(upstream, serverEnv(servers))
  const world = {
    stage,
    upstream,
    servers,
    gateways,
    plain: await stage.startBare(upstream),
    floors,
    rounds,
    row: (...cells) => console.log(`| ${cells.join(' | ')} |`),
  }
  await warm(world)
  for (const name of names) {
    console.log(`\n${name}, ${new Date().toISOString()}`)
    await FIGURES[name](world)
  }
} finally {
  await stage.close()
}
process.exit(0)
