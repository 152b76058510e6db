/** What a delta and a turn cost: added time, CPU, throughput, and the memory of streams that wait. */
import { bare, baton, direct, openSessions } from '../client.mjs'
import { idle, interleave, ramp, runBatch, warmUp } from '../instruments/load.mjs'
import { median, ms } from '../instruments/measure.mjs'
import { serverEnv } from '../stage.mjs'

const SESSION = { provider: 'openai', model: 'fake-d10-i5' }
const ONE = { n: 1, streams: 60, slug: 'd10-i5', rampMs: 0 }
/** 1,350 deltas and 22 turns a second, each stream at another place of its turn */
const FIFTY = { n: 50, streams: 150, slug: 'd60-i37', rampMs: 2220 }
/** The same rate in turns of usual length, where the beginning of a turn hardly counts */
const LONG = { n: 50, streams: 50, slug: 'd370-i37', rampMs: 400 }
/** Streams that all begin within 0.4 s, over and over */
const BURST = { n: 50, streams: 200, slug: 'd60-i20', rampMs: 400 }
/** 3,300 deltas and 123 turns a second */
const MANY = { n: 500, streams: 1000, slug: 'd27-i150', rampMs: 4000 }

export const streams = (world) => loads(world, { '1 stream': ONE, '50 streams': FIFTY })
export const longTurns = (world) => loads(world, { '50 streams, turns of 370 deltas': LONG })
export const bursts = (world) => loads(world, { '50 streams begun at once': BURST })
export const manyStreams = (world) => loads(world, { '500 streams': MANY })

async function targetsOf({ upstream, plain, floors = {}, gateways }, sessions) {
  const targets = { direct: direct(upstream), 'bare-xcode': bare(plain) }
  for (const [name, gateway] of Object.entries(floors)) targets[name] = bare(gateway)
  for (const [name, gateway] of Object.entries(gateways)) {
    targets[name] = baton(gateway, await openSessions(gateway, sessions, SESSION))
  }
  return targets
}

export async function warm(world) {
  const { direct: _, ...targets } = await targetsOf(world, 300)
  for (const name in targets) await warmUp(targets[name])
}

const times = (value, base) => `${(value / base).toFixed(2)} ×`

/** Added time to the first delta, transit, and the gateway's CPU for each delta, a turn's own cost included. */
async function loads(world, sizes) {
  const targets = await targetsOf(world, 1200)
  for (const [title, size] of Object.entries(sizes)) {
    const sum = await interleave(targets, { ...size, rounds: world.rounds })
    const base = sum['bare-xcode']
    for (const [name, { vs, gwCpuPerEvent, transit, errors }] of Object.entries(sum)) {
      if (name === 'direct') continue
      world.row(
        title,
        name,
        `first delta +${ms(vs.addTtftP50)} ms (${times(vs.addTtftP50, base.vs.addTtftP50)})`,
        `transit p50 ${ms(transit.p50)} ms, added ${ms(vs.addTransitP50)} ms (${times(vs.addTransitP50, base.vs.addTransitP50)})`,
        `CPU a delta ${gwCpuPerEvent.toFixed(0)} µs (${times(gwCpuPerEvent, base.gwCpuPerEvent)})`,
        `errors ${JSON.stringify(errors)}`,
      )
    }
  }
}

/** Turns of one delta, as many as a core can do. */
export async function turns(world) {
  const targets = await targetsOf(world, 300)
  const sum = await interleave(targets, { n: 24, streams: 300, slug: 'd1-i0', rounds: world.rounds })
  const base = sum['bare-xcode']
  for (const [name, { gwCpuPerStream, streamsPerS, errors }] of Object.entries(sum)) {
    if (name === 'direct') continue
    const cpu = `${ms(gwCpuPerStream)} ms (${times(gwCpuPerStream, base.gwCpuPerStream)})`
    world.row(
      'turns of one delta',
      name,
      `${streamsPerS.toFixed(0)} a second`,
      `CPU a turn ${cpu}`,
      `errors ${JSON.stringify(errors)}`,
    )
  }
}

const RATES = [1000, 2000, 3000, 4000, 6000, 8000, 10_000]

/** The highest rate of RATES that is kept up with, transit p90 below 50 ms: turns of 200 deltas 20 ms apart. */
export async function sustained(world) {
  const { direct: _, ...targets } = await targetsOf(world, 700)
  const best = Object.fromEntries(Object.keys(targets).map((name) => [name, []]))
  for (let round = 0; round < world.rounds; round++) {
    for (const name in targets) best[name].push(await ramp(targets[name], RATES))
  }
  for (const name in best) {
    const rate = median(best[name])
    world.row(
      'sustained deltas/s',
      name,
      rate,
      times(rate, median(best['bare-xcode'])),
      best[name].join(', '),
    )
  }
}

/** Resident memory of an open stream that has had its first delta and waits, in gateways that did nothing before. */
export async function idleStreams(world) {
  const rounds = []
  for (let round = 0; round < world.rounds; round++) rounds.push(await idleRound(world))
  for (const name in rounds[0]) {
    const middle = (read) => median(rounds.map((round) => read(round[name])))
    world.row(
      'idle streams',
      name,
      `${middle(({ begun }) => begun)} streams, ${middle(({ perStreamKiB }) => perStreamKiB).toFixed(0)} KiB each`,
      rounds.map((round) => round[name].perStreamKiB.toFixed(0)).join(', '),
      `before ${(middle(({ baseKiB }) => baseKiB) / 1024).toFixed(0)} MiB`,
      `after ${(middle(({ afterCloseKiB }) => afterCloseKiB) / 1024).toFixed(0)} MiB`,
      `${(middle(({ idleCores }) => idleCores) * 100).toFixed(1)} % of a core`,
    )
  }
}

async function idleRound({ stage, upstream, servers }) {
  const gateways = { embedded: await stage.startBaton(upstream) }
  // A gateway that shared a database would take over the turns that the round before left.
  if (servers) {
    const env = serverEnv(await stage.afresh(servers))
    gateways['PostgreSQL + Redis'] = await stage.startBaton(upstream, { env })
  }
  const plain = await stage.startBare(upstream)
  const { direct: _, ...targets } = await targetsOf({ upstream, plain, gateways }, 1000)
  // A process takes its fixed memory, the embedded database's buffers too, with its first turns.
  for (const name in targets) await runBatch(targets[name], { n: 50, streams: 300, slug: 'd3-i1' })
  const seen = {}
  for (const name in targets) seen[name] = await idle(targets[name], { n: 1000, settleMs: 3000 })
  for (const gateway of [plain, ...Object.values(gateways)]) await gateway.stop()
  return seen
}
