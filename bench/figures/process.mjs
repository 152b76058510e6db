/** Starting, and having more to do than there is time for. */
import { setTimeout as sleep } from 'node:timers/promises'
import { baton, openSessions } from '../client.mjs'
import { Connection } from '../instruments/connection.mjs'
import { deltasOf, ramp, requestOf } from '../instruments/load.mjs'
import { descendants, median, ms, quantiles, rssKiB, Samples } from '../instruments/measure.mjs'

/** Time from `npm start` to the first 200 of /readyz: on an empty folder, then on the same one. */
export async function ready({ stage, upstream, rounds, row }) {
  const figures = { 'first start': [], 'later start': [] }
  for (let round = 0; round < rounds; round++) {
    let dir
    for (const what in figures) {
      const gateway = await stage.startBaton(upstream, { npm: true, ...(dir ? { dir } : {}) })
      await sleep(1000)
      const pid = descendants(gateway.pid).at(-1)
      figures[what].push({ readyMs: gateway.readyMs, rss: rssKiB([pid]) / 1024 })
      await gateway.stop()
      dir = gateway.dir
    }
  }
  for (const what in figures) {
    row(
      `ready, ${what}`,
      `${median(figures[what].map(({ readyMs }) => readyMs)).toFixed(0)} ms`,
      `${median(figures[what].map(({ rss }) => rss)).toFixed(0)} MiB a second later`,
    )
  }
}

const SLUG = 'd200-i20'
const RUN_MS = 20_000

/** Twice as many clients as can be served, who wait a second or two when they are refused. */
export async function overload({ stage, upstream, row }) {
  const gateway = await stage.startBaton(upstream)
  const sessions = await openSessions(gateway, 900, { provider: 'openai', model: 'fake-d10-i5' })
  const target = baton(gateway, sessions)
  const best = await ramp(target, [500, 1000, 2000, 3000, 4000, 6000, 8000])
  const clients = Math.round((2 * best * 20) / 1000)
  const seen = { done: 0, refused: new Samples(), transit: new Samples(), errors: {} }
  const until = performance.now() + RUN_MS
  const client = async (i) => {
    await sleep((4000 * i) / clients)
    const connection = new Connection(target.base)
    while (performance.now() < until) {
      const wanted = { expect: deltasOf(SLUG), transit: seen.transit }
      const { error, status, total } = await connection.run(await requestOf(target, { slug: SLUG }), wanted)
      if (!error) seen.done++
      else if (status === 503 || status === 429) seen.refused.push(total)
      else seen.errors[error] = (seen.errors[error] ?? 0) + 1
      if (error) await sleep(1000 + Math.random() * 1000)
    }
    connection.destroy()
  }
  await Promise.all(Array.from({ length: clients }, (_, i) => client(i)))
  await gateway.stop()
  const [refused50, refused90] = quantiles(seen.refused, 0.5, 0.9)
  const [transit50, transit90] = quantiles(seen.transit, 0.5, 0.9)
  row(
    `overload: ${clients} clients, saturation at ${best} deltas/s`,
    `${seen.done} turns done, ${seen.refused.length} refused in ${ms(refused50)} (p90 ${ms(refused90)}) ms`,
    `transit p50 ${ms(transit50)}, p90 ${ms(transit90)} ms`,
    `errors ${JSON.stringify(seen.errors)}`,
  )
}
