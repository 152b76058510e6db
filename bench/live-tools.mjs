/**
 * How fast a change of tools reaches the model: from `apply=now` to the restarted request's arrival at the provider, and from a
 * server's `list_changed` to the next request that carries it, at 1 and 100 sessions at once. The provider is the emulator.
 */

import { startToolServer } from '../dist/test/e2e/tool-server.js'
import { createOpenAiEmulator } from '../dist/test/emulators/openai.js'
import { call, openSessions } from './client.mjs'
import { cpuUs, ms, quantiles } from './instruments/measure.mjs'
import { createStage } from './stage.mjs'

const SESSION = { provider: 'openai', model: 'gpt-5.6-sol', connectors: ['first'] }
/** Restarts measured with one session */
const ROUNDS = 60

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
  // A hundred turns in one moment are what this measures, so none of them may be refused.
  const env = { BATON_OPENAI_BASE_URL: openai.keyBaseUrl, BATON__LIMITS__OVERLOAD_DELAY: 'PT1H' }
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
  for (const end = performance.now() + 60_000; performance.now() < end; ) {
    const at = carries(arrivals, session, tool)
    if (at !== undefined) return at
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
  throw new Error(`no request of ${session} carries ${tool}`)
}

/** Figures of one kind; a gateway's CPU tells its cost even on a machine that others use, too. */
function figures(gateway) {
  let times = []
  let cpu = 0
  return {
    async measure(work) {
      const before = cpuUs([gateway.pid])
      times = [...times, ...(await work())]
      cpu += cpuUs([gateway.pid]) - before
    },
    report(what, count) {
      const [p50, p99] = quantiles(
        times.map((time) => time * 1000),
        0.5,
        0.99,
      )
      console.log(`| ${what} | ${count} | ${ms(p50)} ms | ${ms(p99)} ms | ${ms(cpu / times.length)} ms |`)
    },
  }
}

async function applyNow(gateway, arrivals, count) {
  const figure = figures(gateway)
  // What a process does for the first time takes longest: the first rounds are not counted.
  const rounds = Math.max(2, Math.ceil(ROUNDS / count))
  for (let round = -Math.ceil(rounds / 3); round < rounds; round++) {
    const sessions = await openSessions(gateway, count, SESSION)
    const turns = await Promise.all(
      sessions.map((id) =>
        call(gateway, 'POST', `/v1/sessions/${id}/turns`, { input: 'slow 4000 50', background: true }),
      ),
    )
    await Promise.all(sessions.map((id) => arrived(arrivals, id, 'first__one')))
    await new Promise((resolve) => setTimeout(resolve, 300))
    const restarted = async () => {
      const asked = performance.now()
      const times = sessions.map(async (id) => {
        const changed = call(gateway, 'PUT', `/v1/sessions/${id}/connectors/second`, { apply: 'now' })
        const at = await arrived(arrivals, id, 'second__two')
        await changed
        return at - asked
      })
      return Promise.all(times)
    }
    if (round < 0) await restarted()
    else await figure.measure(restarted)
    await Promise.all(turns.map(({ id }) => call(gateway, 'POST', `/v1/turns/${id}/cancel?wait=true`)))
  }
  figure.report('apply=now → the restarted request arrives', count)
}

/** Turns without a change take time, too: they are measured for comparison. */
async function listChanged(gateway, arrivals, server, count) {
  const sessions = await openSessions(gateway, count, SESSION)
  const turns = async (tool, since) => {
    await Promise.all(
      sessions.map((id) =>
        call(gateway, 'POST', `/v1/sessions/${id}/turns`, { input: 'hello', stream: false }),
      ),
    )
    const first = sessions.map((id) => arrivals.get(id).find(({ at }) => at >= since))
    without += first.filter(({ tools }) => !tools.includes(tool)).length
    return first.map(({ at }) => at - since)
  }
  let without = 0
  const [plain, changed] = [figures(gateway), figures(gateway)]
  await turns('first__one', performance.now())
  const rounds = Math.max(3, Math.ceil(ROUNDS / 10 / count))
  for (let round = -1; round < rounds; round++) {
    const name = `first__late_${count}_${round}`
    const unchanged = () => turns('first__one', performance.now())
    const announced = async () => {
      server.tools.clear()
      for (const tool of ['one', name.slice('first__'.length)]) server.tools.set(tool, {})
      const since = performance.now()
      // The change is on its way to Baton, and so are the turns.
      await server.announce()
      return turns(name, since)
    }
    for (const [figure, work] of [
      [plain, unchanged],
      [changed, announced],
    ]) {
      if (round < 0) await work()
      else await figure.measure(work)
    }
    // A list that changes more than ten times a minute is held still.
    await new Promise((resolve) => setTimeout(resolve, 6_000))
  }
  plain.report('a turn begins → its request arrives, nothing changed', count)
  changed.report('list_changed, and a turn begins → its request arrives', count)
  console.log(`  ${without} first requests without the new tool`)
}
