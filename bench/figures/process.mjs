/** Starting, and having more to do than there is time for. */
import { setTimeout as sleep } from 'node:timers/promises'
import { baton, openSessions } from '../client.mjs'
import {
  Conn,
  deltasOf,
  descendants,
  hostPort,
  median,
  ms,
  q,
  ramp,
  rssKiB,
  Vec,
  wire,
} from '../instruments/load.mjs'

/** From `npm start` to the first 200 of /readyz: on an empty folder, then on the same one. */
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

/** Twice as many clients as can be served, who wait as long as they are told to when they are refused. */
export async function overload({ stage, upstream, row }) {
  const gateway = await stage.startBaton(upstream)
  const sessions = await openSessions(gateway, 900, { provider: 'openai', model: 'fake-d10-i5' })
  const target = baton(gateway, sessions)
  const best = await ramp(target, { rates: [500, 1000, 2000, 3000, 4000, 6000, 8000], d: 200 })
  const clients = Math.round((2 * best * 20) / 1000)
  const seen = { done: 0, refused: new Vec(), transit: new Vec(), errors: {} }
  const until = performance.now() + RUN_MS
  const client = async (i) => {
    await sleep((4000 * i) / clients)
    const conn = new Conn(...hostPort(target.base))
    while (performance.now() < until) {
      const rec = { expect: deltasOf(SLUG), transit: seen.transit }
      const { err, status, total } = await conn.run(await wire(target, { slug: SLUG }), rec)
      if (!err) seen.done++
      else if (status === 503 || status === 429) seen.refused.push(total)
      else seen.errors[err] = (seen.errors[err] ?? 0) + 1
      if (err) await sleep(1000 + Math.random() * 1000)
    }
    conn.destroy()
  }
  await Promise.all(Array.from({ length: clients }, (_, i) => client(i)))
  await gateway.stop()
  const [refused50, refused90] = q(seen.refused, 0.5, 0.9)
  const [transit50, transit90] = q(seen.transit, 0.5, 0.9)
  row(
    `overload: ${clients} clients, saturation at ${best} deltas/s`,
    `${seen.done} turns done, ${seen.refused.n} refused in ${ms(refused50)} (p90 ${ms(refused90)}) ms`,
    `transit p50 ${ms(transit50)}, p90 ${ms(transit90)} ms`,
    `errors ${JSON.stringify(seen.errors)}`,
  )
}
