/** The turns of a run: what is said to the models, and what must come of it. */
import { randomUUID } from 'node:crypto'
import type { Random } from './random.ts'
import type { Reading } from './reader.ts'
import { MODELS, request, type World } from './world.ts'

export interface ChaosTurn {
  id: string
  session: string
  /** Ids that `charge` and `look` were to be called with */
  charges: string[]
  looks: string[]
  /** The last words of the model, where it comes to them */
  lastWords: string
  /** The replica that accepted it owns it at first */
  owner: number
  /** Someone asked for its end */
  isCancelled: boolean
  startedAt: number
  readings: Reading[]
}

let sessions = 0

/** A session with the tools, on the next provider in turn. */
export async function newSession(world: World, first = 0): Promise<string> {
  const { provider, model } = MODELS[sessions++ % MODELS.length] ?? MODELS[0]
  const body = { provider, model, connectors: ['kit'] }
  const reply = await request(world, 'POST', '/v1/sessions', body, { first })
  if (reply.status !== 201) throw new Error(`no session: ${JSON.stringify(reply.body)}`)
  return String(reply.body.id)
}

let turns = 0

/** Starts a turn of three steps at a replica; repeated under its key where that one goes away. */
export async function newTurn(
  world: World,
  session: string,
  owner: number,
  random: Random,
): Promise<ChaosTurn> {
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
  const startedAt = Date.now()
  const reply = await request(
    world,
    'POST',
    `/v1/sessions/${session}/turns`,
    { input, background: true },
    { first: owner, headers: { 'idempotency-key': randomUUID() } },
  )
  if (reply.status !== 202) throw new Error(`no turn: ${reply.status} ${JSON.stringify(reply.body)}`)
  return {
    id: String(reply.body.id),
    session,
    charges: [id('a'), id('c')],
    looks: [id('b')],
    lastWords,
    owner,
    isCancelled: false,
    startedAt,
    readings: [],
  }
}
