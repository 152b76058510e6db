/** What the steps of a turn cost, what they write, and what it costs to hear a turn again. */
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { startToolServer, textResult } from '../../dist/test/e2e/tool-server.js'
import { baton, call, direct, openSessions } from '../client.mjs'
import { Conn, hostPort, interleave, median, ms, runBatch } from '../instruments/load.mjs'

const SESSION = { provider: 'openai', model: 'fake-d10-i5' }

/** What the fake model calls, whatever is declared. */
export const NOOP = 'noop__nothing'

let isMade = false

/** A session's settings with the tool, whose server and connectors are made once. */
async function withTool({ stage, gateways }) {
  const body = { ...SESSION, connectors: ['noop'] }
  if (isMade) return body
  isMade = true
  const server = await startToolServer({ nothing: { run: () => textResult('done') } })
  stage.own(server.close)
  for (const gateway of Object.values(gateways)) {
    await call(gateway, 'POST', '/v1/connectors', {
      name: 'noop',
      transport: 'streamable_http',
      url: server.url,
    })
  }
  return body
}

/** The time of five steps that call a tool which does nothing, against that of a turn's one step. */
export async function steps(world) {
  const body = await withTool(world)
  const first = async (target, slug) => median((await runBatch(target, { n: 1, streams: 16, slug })).ttft)
  for (const [name, gateway] of Object.entries(world.gateways)) {
    const target = baton(gateway, await openSessions(gateway, 16, body))
    await first(target, 'd3-i1-t1-s5')
    const [one, five] = [[], []]
    for (let round = 0; round < world.rounds; round++) {
      const itself = await first(direct(world.upstream), 'd3-i1')
      const plain = await first(target, 'd3-i1')
      one.push(plain - itself)
      five.push((await first(target, 'd3-i1-t1-s5')) - plain)
    }
    world.row(
      'five tool steps',
      name,
      `one step adds ${ms(median(one))} ms, five tool steps add ${ms(median(five))} ms`,
      `${(median(five) / (5 * median(one))).toFixed(2)} × five such steps`,
    )
  }
}

/** Turns of two tool steps and an answer of ten deltas, as many as a core can do. */
export async function toolTurns(world) {
  const body = await withTool(world)
  const targets = {}
  for (const [name, gateway] of Object.entries(world.gateways)) {
    targets[name] = baton(gateway, await openSessions(gateway, 200, body))
  }
  const sum = await interleave(targets, { n: 16, streams: 200, slug: 'd10-i5-t1-s2', rounds: world.rounds })
  for (const [name, { gwCpuPerStream, streamsPerS, errors }] of Object.entries(sum)) {
    world.row(
      'turns of two tool steps and an answer',
      name,
      `${streamsPerS.toFixed(0)} a second`,
      `CPU a turn ${ms(gwCpuPerStream)} ms`,
      `errors ${JSON.stringify(errors)}`,
    )
  }
}

/** Statements by the server's own count: what a turn of two tool steps and an answer writes and reads. */
export async function writes(world) {
  if (!world.servers) return world.row('round trips of a turn of three steps', 'no PostgreSQL')
  const gateway = world.gateways['PostgreSQL + Redis']
  const [session] = await openSessions(gateway, 1, await withTool(world))
  const body = { input: 'go', model: 'fake-d3-i1-t1-s2', stream: false }
  const client = new pg.Client({ connectionString: world.servers.database })
  await client.connect()
  await client.query(`alter system set track_functions = 'pl'`)
  await client.query('select pg_reload_conf()')
  const counted = async () => {
    const { rows } = await client.query('select funcname, calls::int from pg_stat_user_functions')
    return Object.fromEntries(rows.map(({ funcname, calls }) => [funcname, calls]))
  }
  // A connection hands its counts over once a second while it is used, the last ones when it was idle for ten.
  const settled = () => sleep(12_000)
  await call(gateway, 'POST', `/v1/sessions/${session}/turns`, body)
  await settled()
  const before = await counted()
  const TURNS = 10
  for (let i = 0; i < TURNS; i++) await call(gateway, 'POST', `/v1/sessions/${session}/turns`, body)
  await settled()
  const after = await counted()
  await client.end()
  const each = TOP.map((name) => [name, ((after[name] ?? 0) - (before[name] ?? 0)) / TURNS])
  world.row(
    'round trips of a turn of three steps',
    each
      .filter(([, count]) => count > 0)
      .map(([name, count]) => `${name} ${count.toFixed(1)}`)
      .join(', '),
  )
}

/** Functions that statements call; the others are called by these. */
const TOP = ['turn_ground', 'open_turn', 'read_step', 'commit_turn', 'begin_execution', 'settle_execution']

/** A finished turn of 372 events, read again from its first one. */
export async function replay(world) {
  for (const [name, gateway] of Object.entries(world.gateways)) {
    const [session] = await openSessions(gateway, 1, SESSION)
    const { id } = await call(gateway, 'POST', `/v1/sessions/${session}/turns`, {
      input: 'go',
      model: 'fake-d365-i5',
      stream: false,
    })
    const conn = new Conn(...hostPort(gateway.base))
    const request = Buffer.from(
      `GET /v1/turns/${id}/events HTTP/1.1\r\nhost: ${new URL(gateway.base).host}\r\n\r\n`,
    )
    const again = () => conn.run(request, { counter: { needle: '\nevent: ' }, transit: null, late: null })
    const times = []
    let events = 0
    for (let i = 0; i < 60; i++) {
      const { total, n, err } = await again()
      if (err) throw new Error(err)
      events = n
      if (i >= 20) times.push(total)
    }
    conn.destroy()
    world.row('replay of a turn', name, `${events} events`, `${ms(median(times))} ms`)
  }
}
