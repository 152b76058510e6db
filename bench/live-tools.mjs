/**
 * How fast a change of tools reaches the model: from `apply=now` to the restarted request's arrival at the provider, and from a
 * server's `list_changed` to the next request that carries it, at 1 and 100 sessions at once. The provider is the emulator.
 */

import { startToolServer } from '../dist/test/e2e/tool-server.js'
import { createOpenAiEmulator } from '../dist/test/emulators/openai.js'
import { call, openSessions } from './client.mjs'
import { ms, q } from './instruments/load.mjs'
import { createStage } from './stage.mjs'

const stage = createStage()
try {
  const openai = await createOpenAiEmulator()
  stage.own(openai.close)
  const [first, second] = [await startToolServer({ one: {} }), await startToolServer({ two: {} })]
  stage.own(first.close)
  stage.own(second.close)
  /** Arrivals by session: the time, and the names of the tools that the request declares */
  const arrivals = new Map()
  openai.script(({ body }) => {
    const seen = arrivals.get(body.prompt_cache_key) ?? []
    seen.push({ at: performance.now(), tools: (body.tools ?? []).map(({ name }) => name) })
    arrivals.set(body.prompt_cache_key, seen)
  })
  const env = { BATON_OPENAI_BASE_URL: openai.keyBaseUrl }
  const gateway = await stage.startBaton({ base: 'http://127.0.0.1:1' }, { env })
  for (const [name, { url }] of Object.entries({ first, second })) {
    await call(gateway, 'POST', '/v1/connectors', { name, transport: 'streamable_http', url })
  }
  for (const count of [1, 100]) {
    await applyNow(gateway, arrivals, count)
    await listChanged(gateway, arrivals, first, count)
  }
} finally {
  await stage.close()
}
process.exit(0)

function carries(arrivals, session, tool) {
  return arrivals.get(session)?.find(({ tools }) => tools.includes(tool))?.at
}

async function arrived(arrivals, session, tool) {
  for (const end = performance.now() + 20_000; performance.now() < end; ) {
    const at = carries(arrivals, session, tool)
    if (at !== undefined) return at
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
  throw new Error(`no request of ${session} carries ${tool}`)
}

function report(what, count, times) {
  const [p50, p99] = q(
    times.map((time) => time * 1000),
    0.5,
    0.99,
  )
  console.log(`| ${what} | ${count} | ${ms(p50)} ms | ${ms(p99)} ms |`)
}

async function applyNow(gateway, arrivals, count) {
  const times = []
  while (times.length < 100) {
    const sessions = await openSessions(gateway, count, {
      provider: 'openai',
      model: 'gpt-5.6-sol',
      connectors: ['first'],
    })
    const turns = await Promise.all(
      sessions.map((id) =>
        call(gateway, 'POST', `/v1/sessions/${id}/turns`, { input: 'slow 400 50', background: true }),
      ),
    )
    await Promise.all(sessions.map((id) => arrived(arrivals, id, 'first__one')))
    await new Promise((resolve) => setTimeout(resolve, 300))
    const asked = performance.now()
    await Promise.all(
      sessions.map(async (id) => {
        const changed = call(gateway, 'PUT', `/v1/sessions/${id}/connectors/second`, { apply: 'now' })
        times.push((await arrived(arrivals, id, 'second__two')) - asked)
        await changed
      }),
    )
    await Promise.all(turns.map(({ id }) => call(gateway, 'POST', `/v1/turns/${id}/cancel?wait=true`)))
  }
  report('apply=now → the restarted request arrives', count, times)
}

async function listChanged(gateway, arrivals, server, count) {
  const times = []
  const sessions = await openSessions(gateway, count, {
    provider: 'openai',
    model: 'gpt-5.6-sol',
    connectors: ['first'],
  })
  const name = `late_${count}`
  server.tools.set(name, {})
  const told = performance.now()
  await server.announce()
  await Promise.all(
    sessions.map(async (id) => {
      // A turn waits for servers only so long: the first one may leave without it.
      for (let turns = 0; turns < 50 && carries(arrivals, id, `first__${name}`) === undefined; turns++) {
        await call(gateway, 'POST', `/v1/sessions/${id}/turns`, { input: 'hello', stream: false })
      }
      times.push((await arrived(arrivals, id, `first__${name}`)) - told)
    }),
  )
  report('list_changed → the next request carries it', count, times)
}
