/** The turns of a run: what is said to the models, and what must come of it. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Random } from './random.ts'
import type { Reading } from './reader.ts'
import { MODELS, once, type Reply, request, urlOf, type World } from './world.ts'

/** What a client asks for, and under which key: asking again must bring the same turn. */
export interface Plan {
  session: string
  key: string
  input: string
  /** Ids that `charge` and `look` are to be called with */
  charges: string[]
  looks: string[]
  /** The last words of the model, if the turn comes so far */
  lastWords: string
  /** The provider that all its steps must ask; null: the one that the session had at first */
  provider: string | null
}

export interface ChaosTurn extends Plan {
  id: string
  /** Whether somebody asked for the turn's end */
  isCancelled: boolean
  readings: Reading[]
}

let sessions = 0

/** A session with the tools, on the next provider in turn. */
export async function newSession(world: World, first = 0): Promise<string> {
  const { provider, model } = MODELS[sessions++ % MODELS.length] ?? MODELS[0]
  const body = { provider, model, connectors: ['kit'] }
  const reply = await request(world, 'POST', '/v1/sessions', body, { first })
  if (reply.status !== 201) throw new Error(`no session: ${JSON.stringify(reply.body)}`)
  const id = String(reply.body.id)
  await hasTools(world, id, first)
  return id
}

/** A turn waits less than half a second for its servers: a loaded machine may need longer to list their tools. */
async function hasTools(world: World, session: string, first: number): Promise<void> {
  for (const until = Date.now() + TOOLS_MS; ; await sleep(50)) {
    const { body } = await request(world, 'GET', `/v1/sessions/${session}/tools`, undefined, { first })
    const tools = (body.tools ?? []) as { canonical_name: string; status: string }[]
    if (tools.some((tool) => tool.canonical_name === 'kit.charge' && tool.status === 'available')) return
    if (Date.now() > until) throw new Error(`no tools: ${JSON.stringify(body)}`)
  }
}
const TOOLS_MS = 60_000

/** Hands the session to the next provider, from its next turn on. */
export async function switchProvider(world: World, session: string, first: number): Promise<string> {
  const path = `/v1/sessions/${session}`
  const { body } = await request(world, 'GET', path, undefined, { first })
  const at = MODELS.findIndex(({ provider }) => provider === body.provider)
  const { provider, model } = MODELS[(at + 1) % MODELS.length] ?? MODELS[0]
  const reply = await request(world, 'PATCH', path, { provider, model }, { first })
  if (reply.status !== 200) throw new Error(`no switch: ${JSON.stringify(reply.body)}`)
  return provider
}

let turns = 0

/** A turn of three steps, three calls and some seconds at most. */
export function planTurn(session: string, random: Random, provider: string | null = null): Plan {
  const name = `t${++turns}`
  const lastWords = `done ${name}`
  const id = (what: string) => `${name}-${what}`
  const call = (tool: string, what: string) =>
    `call kit__${tool} with ${JSON.stringify({ id: id(what), ms: random.between(1, 150) })}`
  const input = [
    `slow ${random.between(2, 12)} ${random.between(5, 25)}`,
    ...(random.next() < 0.3 ? ['think'] : []),
    `say first step of ${name}, which takes a while`,
    call('charge', 'a'),
    'then',
    `slow ${random.between(2, 8)} ${random.between(5, 25)}`,
    `say second step of ${name}`,
    call('look', 'b'),
    call('charge', 'c'),
    'then',
    `slow ${random.between(2, 12)} ${random.between(5, 25)}`,
    `say ${lastWords}`,
  ].join('\n')
  const charges = [id('a'), id('c')]
  return { session, key: randomUUID(), input, charges, looks: [id('b')], lastWords, provider }
}

/** An answer of some tens of deltas, without tools. */
export function planChat(session: string, random: Random): Plan {
  const name = `t${++turns}`
  const lastWords = `done ${name}, ${'and a few words more, '.repeat(8)}and no more`
  const input = `slow ${random.between(15, 30)} ${random.between(20, 40)}\nsay ${lastWords}`
  return { session, key: randomUUID(), input, charges: [], looks: [], lastWords, provider: null }
}

/** Asks a replica for the turn, and the next one under the same key where that replica goes away. */
export const ask = (world: World, plan: Plan, first: number): Promise<Reply> =>
  request(
    world,
    'POST',
    `/v1/sessions/${plan.session}/turns`,
    { input: plan.input, background: true, on_busy: 'enqueue' },
    { first, headers: { 'idempotency-key': plan.key } },
  )

/** Asks one replica for a turn, once, whatever the answer. */
export const askOnce = (world: World, session: string, at: number): Promise<Reply> =>
  once(
    `${urlOf(world, at)}/v1/sessions/${session}/turns`,
    'POST',
    { input: 'hello', background: true },
    {},
  ).catch((err: unknown) => ({ status: 0, body: { error: { code: String(err) } }, retryAfter: null }))

export async function newTurn(world: World, plan: Plan, first: number): Promise<ChaosTurn> {
  const { status, body } = await ask(world, plan, first)
  if (status !== 202) throw new Error(`no turn: ${status} ${JSON.stringify(body)}`)
  return { ...plan, id: String(body.id), isCancelled: false, readings: [] }
}
