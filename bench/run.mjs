/**
 * The figures of bench/README.md: Baton beside the provider itself and a bare Fastify gateway (bare-xcode), interleaved in one
 * run on loopback, medians over rounds. `--rounds N` (3). Start with an idle machine: quote the ratios, not the milliseconds.
 */
import { parseArgs } from 'node:util'
import { bare, baton, direct, historyOf, openSessions, seed } from './client.mjs'
import { idle, interleave, median, ms, runBatch } from './instruments/load.mjs'
import { createStage, serverEnv } from './stage.mjs'

const { values } = parseArgs({ options: { rounds: { type: 'string', default: '3' } } })
const rounds = Number(values.rounds)
const SESSION = { provider: 'openai', model: 'fake-d10-i5' }
const row = (...cells) => console.log(`| ${cells.join(' | ')} |`)

const stage = createStage()
try {
  const upstream = await stage.startUpstream()
  const plain = await stage.startBare(upstream)
  const gateways = { embedded: await stage.startBaton(upstream) }
  const servers = await stage.startServers()
  if (servers) gateways['PostgreSQL + Redis'] = await stage.startBaton(upstream, { env: serverEnv(servers) })
  row(
    'ready, first start',
    ...Object.entries(gateways).map(([name, { readyMs }]) => `${name} ${Math.round(readyMs)} ms`),
  )
  const sessions = {}
  for (const name in gateways) sessions[name] = await openSessions(gateways[name], 260, SESSION)
  const targets = { direct: direct(upstream), 'bare-xcode': bare(plain) }
  for (const name in gateways) targets[name] = baton(gateways[name], sessions[name])

  await streams(targets, 1, 40)
  await streams(targets, 50, 300)
  await growth(gateways.embedded, plain)
  for (const name in gateways) await open(name, targets[name])
} finally {
  await stage.close()
}
process.exit(0)

/** Added time to the first delta, and the gateway's CPU for each delta, of turns of 60 deltas 20 ms apart. */
async function streams(targets, n, count) {
  const sum = await interleave(targets, {
    n,
    streams: count,
    slug: n === 1 ? 'd10-i5' : 'd60-i20',
    rounds,
    rampMs: n === 1 ? 0 : 400,
  })
  const base = sum['bare-xcode']
  for (const [name, { vs, gwCpuPerEvent, transit, errors }] of Object.entries(sum)) {
    if (name === 'direct') continue
    const added = vs.addTtftP50
    const ratio = (added / base.vs.addTtftP50).toFixed(1)
    const cpu = `${gwCpuPerEvent.toFixed(0)} µs (${(gwCpuPerEvent / base.gwCpuPerEvent).toFixed(2)} ×)`
    row(
      `${n} streams`,
      name,
      `first delta +${ms(added)} ms (${ratio} ×)`,
      `CPU a delta ${cpu}`,
      `transit p50 ${ms(transit.p50)} ms`,
      JSON.stringify(errors),
    )
  }
}

/** Time to the first delta with a history of 10 and of 2,000 messages. */
async function growth(gateway, plain) {
  const figures = {}
  for (const size of [10, 2000]) {
    const history = historyOf(size)
    const ids = await openSessions(gateway, 8, SESSION)
    for (const id of ids) await seed(gateway, id, history)
    for (const [name, target] of [
      ['baton', baton(gateway, ids)],
      ['bare-xcode', bare(plain, { history })],
    ]) {
      await runBatch(target, { n: 1, streams: 4, slug: 'd3-i1' })
      figures[`${name} ${size}`] = median((await runBatch(target, { n: 1, streams: 24, slug: 'd3-i1' })).ttft)
    }
  }
  const grown = (name) => figures[`${name} 2000`] - figures[`${name} 10`]
  row(
    'history 10 → 2,000',
    `baton +${ms(grown('baton'))} ms`,
    `bare-xcode +${ms(grown('bare-xcode'))} ms`,
    `${(grown('baton') / grown('bare-xcode')).toFixed(2)} ×`,
  )
}

async function open(name, target) {
  const result = await idle(target, { n: 200, settleMs: 3000 })
  row('idle streams', name, JSON.stringify(result))
}
