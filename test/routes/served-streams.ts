/** A gateway that listens, over one turn's row and a bus that a test fills, and what its clients read from it. */
import { once } from 'node:events'
import { type Agent, type IncomingMessage, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'
import type { ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import { type Message, NO_USAGE } from '../../src/chat/message.ts'
import type { HttpDeps } from '../../src/http.ts'
import type { Session, Store, Turn } from '../../src/store/store.ts'
import { createMetrics } from '../../src/telemetry.ts'
import { cursorAt } from './fake-bus.ts'
import { gateway } from './gateway.ts'

const SESSION = 'ses_1'
export const turnRow = (fields: Partial<Turn> = {}): Turn => ({
  id: 'turn_1',
  session_id: SESSION,
  owner: 'local',
  input: [],
  context: [],
  max_steps: 16,
  provider: null,
  model: null,
  idempotency_key: null,
  state: 'running',
  attempt: 1,
  restarts: 0,
  recoveries: 0,
  steps: [],
  usage: NO_USAGE,
  finish_reason: null,
  error: null,
  base_seq: 0,
  cancel_requested: false,
  created_at: '2030-01-01T00:00:00.000Z',
  started_at: '2030-01-01T00:00:00.000Z',
  ended_at: null,
  ...fields,
})

export const messageRow = (fields: Partial<Message> = {}): Message => ({
  id: 'msg_1',
  session_id: SESSION,
  turn_id: 'turn_1',
  seq: 1,
  role: 'user',
  parts: [],
  created_at: '2030-01-01T00:00:00.000Z',
  ...fields,
})

/** The rows of a store that a stream reads: the session's newest turn, and its active turn. */
function rows(turn: Turn, active: Turn): Store {
  const session = { id: SESSION, owner: 'local', active_turn_id: active.id } as Session
  const message = messageRow({ turn_id: turn.id })
  const turnOf = async (_: unknown, id: string) => {
    const found = [turn, active].find((one) => one.id === id)
    return found ? { ...found } : null
  }
  return {
    kind: 'embedded',
    sessions: { get: async (_: unknown, id: string) => (id === SESSION ? session : null) },
    turns: {
      get: turnOf,
      standing: turnOf,
      list: async () => ({ data: [turn], next_cursor: null }),
    },
    messages: {
      ofTurn: async () => [message],
      after: async (_: unknown, seq: number) => [message].filter((one) => one.seq > seq),
    },
    keys: { used: async () => {} },
  } as unknown as Store
}

/** Doubles of the gateway's parts, with what their test needs of them. */
type Doubles = { [Part in keyof HttpDeps]?: Partial<HttpDeps[Part]> }

/** A listening gateway, its bus, and a client that reads as events come. */
export async function serve(t: Test, turn: Turn, doubles: Doubles = {}, active = turn) {
  const metrics = createMetrics({ defaults: false })
  const g = await gateway(rows(turn, active), {}, { metrics, ...doubles } as Partial<HttpDeps>)
  await g.app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = g.app.server.address() as AddressInfo
  t.teardown(() => g.close())
  const open = async (
    path: string,
    headers: Record<string, string> = {},
    body?: object,
    agent?: Agent,
  ): Promise<IncomingMessage> => {
    const options = {
      ...(agent ? { agent } : {}),
      host: '127.0.0.1',
      port,
      path,
      headers: { ...headers, ...(body ? { 'content-type': 'application/json' } : {}) },
    }
    const outgoing = request({ ...options, method: body ? 'POST' : 'GET' })
    outgoing.end(body ? JSON.stringify(body) : undefined)
    const [incoming] = await once(outgoing, 'response')
    t.teardown(() => incoming.destroy())
    return incoming
  }
  const opened = async () => Number(/^baton_streams_open (\d+)/m.exec(await metrics.text())?.[1])
  const say = (type: string, turn_id: string | null = turn.id, fields: object = {}) =>
    g.bus.bus.append(SESSION, [{ type, turn_id, data: JSON.stringify({ type, ...fields }) }])
  return { ...g, open, opened, say, port }
}

/** Reads until the text holds `part`, and gives the text so far. */
export async function until(stream: IncomingMessage, part: string): Promise<string> {
  let text = ''
  stream.setEncoding('utf8')
  for (;;) {
    const chunk: string | null = stream.read()
    if (chunk !== null) text += chunk
    if (text.includes(part)) return text
    if (chunk === null) {
      if (stream.readableEnded) throw new Error(`ended without '${part}': ${text}`)
      await Promise.race([once(stream, 'readable'), once(stream, 'end')])
    }
  }
}
export { text as all } from 'node:stream/consumers'
export const typesIn = (text: string) => [...text.matchAll(/^event: (.*)$/gm)].map(([, type]) => type)

/** A bus whose reads a test scripts. */
export const scripted =
  (script: (options: ReadOptions) => AsyncIterable<ReadItem>) => (s: { bus: { bus: { read: unknown } } }) => {
    s.bus.bus.read = (_: string, options: ReadOptions) => script(options)
  }
export const event = (type: string, n: number, fields: object = {}) => ({
  cursor: cursorAt('ses_1', n),
  type,
  turn_id: 'turn_1',
  data: JSON.stringify({ type, ...fields }),
})
export const aborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) =>
    signal.aborted ? resolve() : signal.addEventListener('abort', () => resolve()),
  )
