/** Costs that grow with a conversation and with its tools, and what they do to other conversations. */
import { startToolServer } from '../../dist/test/e2e/tool-server.js'
import { bare, baton, call, historyOf, openSessions, seed } from '../client.mjs'
import { runBatch, summarise, warmUp } from '../instruments/load.mjs'
import { median, ms, quantiles } from '../instruments/measure.mjs'

const SESSION = { provider: 'openai', model: 'fake-d10-i5' }

/** Each target's median time to the first delta and CPU a turn, one stream, interleaved. */
async function measured(targets, rounds) {
  const times = {}
  const cpu = {}
  for (const name in targets) await runBatch(targets[name], { n: 1, streams: 8, slug: 'd3-i1' })
  for (let round = 0; round < rounds; round++) {
    for (const name in targets) {
      const batch = await runBatch(targets[name], { n: 1, streams: 12, slug: 'd3-i1' })
      const errors = Object.keys(batch.errors)
      if (errors.length > 0) throw new Error(`${name}: ${errors}`)
      times[name] = [...(times[name] ?? []), median(batch.ttft)]
      cpu[name] = [...(cpu[name] ?? []), batch.gwCpu / batch.done]
    }
  }
  const middle = (figures) =>
    Object.fromEntries(Object.entries(figures).map(([name, all]) => [name, median(all)]))
  return { times: middle(times), cpu: middle(cpu) }
}

/** The figures of targets named `<gateway> <size>`. */
function report(world, what, [small, large], { times, cpu }) {
  const grown = (figures, name) => figures[`${name} ${large}`] - figures[`${name} ${small}`]
  for (const name of [...Object.keys(world.gateways), 'bare-xcode']) {
    world.row(
      `${what} ${small} → ${large}`,
      name,
      `${ms(times[`${name} ${small}`])} → ${ms(times[`${name} ${large}`])} ms`,
      `+${ms(grown(times, name))} ms (${(grown(times, name) / grown(times, 'bare-xcode')).toFixed(2)} ×)`,
      `CPU +${ms(grown(cpu, name))} ms (${(grown(cpu, name) / grown(cpu, 'bare-xcode')).toFixed(2)} ×)`,
    )
  }
}

/** Time to the first delta with a history of 10 and of 2,000 messages (800 kB). */
export async function history(world) {
  const sizes = [10, 2000]
  const targets = {}
  for (const size of sizes) {
    const messages = historyOf(size)
    for (const [name, gateway] of Object.entries(world.gateways)) {
      const ids = await openSessions(gateway, 4, SESSION)
      for (const id of ids) await seed(gateway, id, messages)
      targets[`${name} ${size}`] = baton(gateway, ids)
    }
    targets[`bare-xcode ${size}`] = bare(world.plain, { history: messages })
  }
  report(world, 'messages', sizes, await measured(targets, world.rounds))
}

/** A tool of about 500 bytes as it is declared. */
const schemaOf = (i) => ({
  type: 'object',
  properties: {
    path: {
      type: 'string',
      description: `Where to look, number ${i}: ${'a path below the root '.repeat(4)}`,
    },
    depth: { type: 'integer', minimum: 0, description: 'How deep to go, at most' },
    kinds: { type: 'array', items: { type: 'string', enum: ['file', 'folder', 'link'] } },
  },
  required: ['path'],
})
/** Models are offered 512 KiB of one server's tools. */
const MOST_OF_A_SERVER = 250
const DESCRIPTION = 'Lists what lies below a path, with sizes and times, and says what was left out. '

/** Time to the first delta with 1 and with 500 tools declared (250 kB), on the path that takes so many. */
export async function tools(world) {
  const sizes = [1, 500]
  const plain = await world.stage.startBare(world.upstream, 'anthropic')
  await warmUp(bare(plain))
  const targets = {}
  for (const size of sizes) {
    const all = Array.from({ length: size }, (_, i) => i)
    const connectors = []
    for (let at = 0; at < size; at += MOST_OF_A_SERVER) {
      const some = all.slice(at, at + MOST_OF_A_SERVER)
      const server = await startToolServer(
        Object.fromEntries(
          some.map((i) => [`tool_${i}`, { description: DESCRIPTION, inputSchema: schemaOf(i) }]),
        ),
      )
      world.stage.own(server.close)
      const name = `many-${size}-${at}`
      connectors.push(name)
      for (const gateway of Object.values(world.gateways)) {
        const body = { name, transport: 'streamable_http', url: server.url }
        await call(gateway, 'POST', '/v1/connectors', body)
      }
    }
    for (const [name, gateway] of Object.entries(world.gateways)) {
      const ids = await openSessions(gateway, 4, { provider: 'anthropic', model: 'fake-d10-i5', connectors })
      const { body: sent } = await call(gateway, 'POST', `/v1/sessions/${ids[0]}/render`, { input: 'go' })
      if (sent.tools.length < size) throw new Error(`only ${sent.tools.length} tools are declared`)
      targets[`${name} ${size}`] = baton(gateway, ids)
    }
    targets[`bare-xcode ${size}`] = bare(plain, {
      tools: all.map((i) => ({ name: `tool_${i}`, description: DESCRIPTION, input_schema: schemaOf(i) })),
    })
  }
  report(world, 'tools', sizes, await measured(targets, world.rounds))
}

/** Transit of 20 streams alone, and beside turns of 2,000 messages, one after the other. */
export async function bystanders(world) {
  const messages = historyOf(2000)
  const heavy = { 'bare-xcode': bare(world.plain, { history: messages }) }
  const light = { 'bare-xcode': bare(world.plain) }
  for (const [name, gateway] of Object.entries(world.gateways)) {
    const ids = await openSessions(gateway, 2, SESSION)
    for (const id of ids) await seed(gateway, id, messages)
    heavy[name] = baton(gateway, ids)
    light[name] = baton(gateway, await openSessions(gateway, 60, SESSION))
  }
  const run = (name) => runBatch(light[name], { n: 20, streams: 40, slug: 'd100-i20', rampMs: 400 })
  for (const name in light) {
    await runBatch(heavy[name], { n: 1, streams: 4, slug: 'd3-i1' })
    const [alone, beside, heavies] = [[], [], []]
    for (let round = 0; round < world.rounds; round++) {
      alone.push(await run(name))
      const heavyTurns = runBatch(heavy[name], { n: 1, streams: 60, slug: 'd3-i20' })
      beside.push(await run(name))
      heavies.push(await heavyTurns)
    }
    // Turns that are refused do nothing to anybody.
    const { errors } = summarise([...alone, ...beside, ...heavies])
    const p99 = (batches) => median(batches.map(({ transit }) => quantiles(transit, 0.99)[0]))
    world.row(
      'bystanders, transit p99',
      name,
      `${ms(p99(alone))} ms alone, ${ms(p99(beside))} ms beside (${(p99(beside) / p99(alone)).toFixed(2)} ×)`,
      `p50 ${ms(summarise(alone).transit.p50)} and ${ms(summarise(beside).transit.p50)} ms`,
      `errors ${JSON.stringify(errors)}`,
    )
  }
}
