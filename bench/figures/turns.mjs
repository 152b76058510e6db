/** What the steps of a turn cost, what they write, and what it costs to read a turn again. */
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { startToolServer, textResult } from '../../dist/test/e2e/tool-server.js'
import { baton, call, openSessions } from '../client.mjs'
import { Connection } from '../instruments/connection.mjs'
import { interleave, openPool, requestOf, runBatch } from '../instruments/load.mjs'
import { median, ms, nowUs } from '../instruments/measure.mjs'

const SESSION = { provider: 'openai', model: 'fake-d10-i5' }

/** The tool that the fake model calls, whatever is declared. */
export const NOOP = 'noop__nothing'

let server

/** The tool's server, started once. */
async function toolServer(stage) {
  if (server) return server
  server = await startToolServer({ nothing: { run: () => textResult('done') } })
  stage.own(server.close)
  return server
}

let isMade = false

/** A session's settings with the tool, whose connectors are made once. */
async function withTool({ stage, gateways }) {
  const body = { ...SESSION, connectors: ['noop'] }
  if (isMade) return body
  isMade = true
  const { url } = await toolServer(stage)
  for (const gateway of Object.values(gateways)) {
    await call(gateway, 'POST', '/v1/connectors', {
      name: 'noop',
      transport: 'streamable_http',
      url,
    })
  }
  return body
}

/** Turns by how many steps call the tool before the answer */
const TOOL_STEPS = [0, 1, 5]
const slugOf = (count) => (count === 0 ? 'd3-i1' : `d3-i1-t1-s${count}`)
const SAMPLES = 16

/**
 * What tool steps add to a turn. The added time is, here as everywhere, the time through Baton less the time of the
 * same work done directly: as many answers of the provider, and as many calls of the tool, one after the other. The own
 * share of a tool step is what a turn with it adds beyond a plain turn; a plain turn stands for a step without a tool.
 */
export async function steps(world) {
  const body = await withTool(world)
  const asked = await directly(world)
  for (const [name, gateway] of Object.entries(world.gateways)) {
    const target = baton(gateway, await openSessions(gateway, SAMPLES, body))
    const pool = openPool(target, 1)
    const turn = async (count) => {
      const { ttft, errors } = await runBatch(target, { streams: 1, slug: slugOf(count), pool })
      if (ttft.length === 0) throw new Error(JSON.stringify(errors))
      return ttft[0]
    }
    for (let i = 0; i < SAMPLES; i++) await turn(5)
    const rounds = []
    for (let round = 0; round < world.rounds; round++) rounds.push(await sampled({ asked, turn }))
    pool[0].destroy()
    const mid = (figure) => median(rounds.map(figure))
    const direct = TOOL_STEPS.map((count, i) => `${count}: ${ms(mid(({ asked }) => asked[i]))}`)
    const [plain, one, five] = TOOL_STEPS.map((_, i) => mid(({ turn, asked }) => turn[i] - asked[i]))
    const [each, all] = [one - plain, five - plain]
    world.row(
      'tool steps',
      name,
      `directly ${direct.join(', ')} ms`,
      `a plain turn adds ${ms(plain)} ms, one tool step ${ms(each)} ms more, five ${ms(all)} ms more`,
      `${(all / (5 * each)).toFixed(2)} × five times one tool step`,
      `${(all / (5 * plain)).toFixed(2)} × five plain turns`,
    )
  }
}

/** One round's medians by kind of turn. The kinds of turns and the two ways alternate. */
async function sampled(ways) {
  const times = Object.fromEntries(Object.keys(ways).map((way) => [way, TOOL_STEPS.map(() => [])]))
  for (let i = 0; i < SAMPLES; i++) {
    for (const [kind, count] of TOOL_STEPS.entries()) {
      for (const way in ways) times[way][kind].push(await ways[way](count))
    }
  }
  return Object.fromEntries(Object.keys(ways).map((way) => [way, times[way].map((all) => median(all))]))
}

/** A turn's exchanges without a gateway, from the first request to the first delta of the answer. */
async function directly({ stage, upstream }) {
  const provider = new Connection(upstream.base)
  stage.own(async () => provider.destroy())
  const callTool = await bareTool(stage)
  const exchange = (slug, done) => {
    const input = [{ type: 'message', role: 'user', content: 'go' }, ...Array(done).fill(EXCHANGE).flat()]
    const tools = [{ type: 'function', name: NOOP, parameters: { type: 'object', properties: {} } }]
    return post(`${upstream.base}/v1/responses`, { model: `fake-${slug}`, stream: true, input, tools })
  }
  return async (count) => {
    const slug = slugOf(count)
    const began = nowUs()
    for (let done = 0; done < count; done++) {
      whole(await provider.run(await exchange(slug, done), { needle: 'response.completed' }))
      await callTool()
    }
    const last = await exchange(slug, count)
    const before = nowUs() - began
    return before + whole(await provider.run(last, { expect: 3 })).ttft
  }
}

const ARGUMENTS = { text: 'hello from the fake upstream' }
const EXCHANGE = [
  { type: 'function_call', call_id: 'call_0', name: NOOP, arguments: JSON.stringify(ARGUMENTS) },
  { type: 'function_call_output', call_id: 'call_0', output: 'done' },
]

/** The exchange that Baton makes for a call (MCP 2025-11-25, Streamable HTTP), on a connection kept alive. */
async function bareTool(stage) {
  const { url } = await toolServer(stage)
  const version = '2025-11-25'
  const headers = {
    accept: 'application/json, text/event-stream',
    'content-type': 'application/json',
    'mcp-protocol-version': version,
  }
  const hello = { protocolVersion: version, capabilities: {}, clientInfo: { name: 'bench', version: '1' } }
  const begun = await fetch(url, { method: 'POST', headers, body: message('initialize', hello) })
  const session = { 'mcp-session-id': begun.headers.get('mcp-session-id') }
  const params = { name: 'nothing', arguments: ARGUMENTS }
  const request = await post(url, message('tools/call', params), { ...headers, ...session })
  const connection = new Connection(url)
  stage.own(async () => connection.destroy())
  return async () => whole(await connection.run(request, { needle: 'event: message' }))
}

const message = (method, params) => JSON.stringify({ jsonrpc: '2.0', id: 1, method, params })

const post = (url, body, headers = {}) => {
  const { origin, pathname } = new URL(url)
  return requestOf({ base: origin, build: () => ({ path: pathname, headers, body }) }, {})
}

function whole(answer) {
  if (answer.error || answer.count === 0)
    throw new Error(answer.error ?? 'an answer without what it should hold')
  return answer
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
  // A connection hands its counts over once a second while it is used, the last counts after ten idle seconds.
  const settled = () => sleep(12_000)
  await call(gateway, 'POST', `/v1/sessions/${session}/turns`, body)
  await settled()
  const before = await counted()
  const TURNS = 10
  for (let i = 0; i < TURNS; i++) await call(gateway, 'POST', `/v1/sessions/${session}/turns`, body)
  await settled()
  const after = await counted()
  // The server may be one that the environment gives.
  await client.query('alter system reset track_functions')
  await client.query('select pg_reload_conf()')
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
    const connection = new Connection(gateway.base)
    const request = Buffer.from(
      `GET /v1/turns/${id}/events HTTP/1.1\r\nhost: ${new URL(gateway.base).host}\r\n\r\n`,
    )
    const again = () => connection.run(request, { needle: '\nevent: ' })
    const times = []
    let events = 0
    for (let i = 0; i < 60; i++) {
      const { total, count, error } = await again()
      if (error) throw new Error(error)
      events = count
      if (i >= 20) times.push(total)
    }
    connection.destroy()
    world.row('replay of a turn', name, `${events} events`, `${ms(median(times))} ms`)
  }
}
