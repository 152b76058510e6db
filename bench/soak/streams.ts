/**
 * One replica with a thousand open idle streams and two hundred that stream, for as long as asked: memory must
 * stay flat, and the time to the first delta must not grow.
 *
 *   npm run build && node dist/bench/soak/streams.js --minutes 10 --idle 1000 --streaming 200
 */
import { parseArgs } from 'node:util'
import { inWords, memoryOf, watchMemory } from '../chaos/memory.ts'
import { percentile, spread } from '../chaos/rounds.ts'
import { endOnSignals, MODELS, openWorld, request, urlOf, type World } from '../chaos/world.ts'
import { numbersIn } from '../options.ts'

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '10' },
    idle: { type: 'string', default: '1000' },
    streaming: { type: 'string', default: '200' },
    /** Deltas a second of each stream, and how many a turn has */
    rate: { type: 'string', default: '2' },
    deltas: { type: 'string', default: '60' },
  },
})
const { minutes, idle, streaming, rate, deltas } = numbersIn(
  values,
  'minutes',
  'idle',
  'streaming',
  'rate',
  'deltas',
)

const figures = { first: [] as number[], events: 0, turns: 0, refused: 0, cut: 0, failed: 0 }

endOnSignals()
const world = await openWorld({ replicas: 1 })
try {
  await run(world)
} finally {
  await world.close()
}

async function run(world: World): Promise<void> {
  const [replica] = world.replicas
  if (!replica) return
  const over = new AbortController()
  const resident = async () => Math.round((await memoryOf(replica))?.rss ?? 0)
  const before = await resident()
  const idling = await openIdle(world, over.signal)
  const withIdle = await resident()
  console.log(`${idle} idle streams: ${before} → ${withIdle} MiB resident`)
  const watch = watchMemory(world.replicas)
  const until = Date.now() + minutes * 60_000
  const early: number[] = []
  const halfTime = setTimeout(() => early.push(...figures.first.splice(0)), (minutes * 60_000) / 2)
  await Promise.all(Array.from({ length: streaming }, (_, i) => stream(world, i, until)))
  clearTimeout(halfTime)
  const lives = watch.stop()
  over.abort()
  await Promise.allSettled(idling)
  console.log(
    `${streaming} streams of ${rate} deltas/s for ${minutes} min: ${figures.turns} turns, ${figures.events} events`,
  )
  console.log(`to the first delta, first half: ${spread(early)}; second half: ${spread(figures.first)}`)
  console.log(
    `idle streams that ended: ${figures.cut}; turns that did not complete: ${figures.failed}; refused for want of time: ${figures.refused}`,
  )
  console.log(lives.map(inWords).join('\n'))
  const isSlower = percentile(figures.first, 0.5) > 2 * percentile(early, 0.5)
  // Where every turn was refused, nothing was measured.
  const isVoid = figures.turns === 0 && figures.refused > 0
  if (isVoid || figures.cut > 0 || figures.failed > 0 || isSlower || lives.some(({ grew }) => grew))
    process.exitCode = 1
}

async function newSession(world: World, i: number): Promise<string> {
  const { provider, model } = MODELS[i % MODELS.length] ?? MODELS[0]
  const { body } = await request(world, 'POST', '/v1/sessions', { provider, model })
  return String(body.id)
}

/** Streams that are opened one after the other; each resolves when it ends. */
async function openIdle(world: World, signal: AbortSignal): Promise<Promise<void>[]> {
  const idling: Promise<void>[] = []
  for (let i = 0; i < idle; i++) {
    const url = `${urlOf(world, 0)}/v1/sessions/${await newSession(world, i)}/events`
    const response = await fetch(url, { signal })
    idling.push(
      drain(response, () => {}).then(
        () => void figures.cut++,
        () => void (signal.aborted || figures.cut++),
      ),
    )
  }
  return idling
}

/** Turn after turn in one session for a while, then in the next one: histories grow and are let go. */
async function stream(world: World, i: number, until: number): Promise<void> {
  // The streams do not begin all at once.
  await new Promise((resolve) => setTimeout(resolve, ((i / streaming) * deltas * 1000) / rate))
  for (let n = 0; Date.now() < until; n++) {
    const session = await newSession(world, i + n)
    for (let turn = 0; turn < 5 && Date.now() < until; turn++) await streamTurn(world, session)
    await request(world, 'DELETE', `/v1/sessions/${session}`)
    world.forget()
  }
}

async function streamTurn(world: World, session: string): Promise<void> {
  const asked = performance.now()
  const response = await fetch(`${urlOf(world, 0)}/v1/sessions/${session}/turns`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ input: `slow ${deltas} ${1000 / rate}` }),
  })
  if (response.status === 503) {
    figures.refused++
    await response.body?.cancel()
    const seconds = Number(response.headers.get('retry-after') ?? 1)
    return new Promise((resolve) => setTimeout(resolve, seconds * 1000))
  }
  let isFirst = true
  let isCompleted = false
  await drain(response, (text) => {
    figures.events += text.split('\nevent: ').length - 1
    if (isFirst && text.includes('event: content.delta')) {
      figures.first.push(Math.round(performance.now() - asked))
      isFirst = false
    }
    isCompleted ||= text.includes('event: turn.completed')
  })
  figures.turns++
  if (!isCompleted) figures.failed++
}

async function drain(response: Response, seen: (text: string) => void): Promise<void> {
  const utf8 = new TextDecoder()
  for await (const chunk of response.body ?? []) seen(utf8.decode(chunk, { stream: true }))
}
