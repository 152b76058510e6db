import { once } from 'node:events'
import { Agent, type IncomingMessage, request } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import { NO_USAGE } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { HttpDeps } from '../../src/http.ts'
import type { Session, Store, Turn } from '../../src/store/store.ts'
import { createMetrics } from '../../src/telemetry.ts'
import { gateway } from './gateway.ts'

const SESSION = 'ses_1'
const turnRow = (fields: Partial<Turn> = {}): Turn => ({
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

/** The little of a store that a stream reads. */
function rows(turn: Turn): Store {
  const session = { id: SESSION, owner: 'local', active_turn_id: turn.id } as Session
  const message = { id: 'msg_1', session_id: SESSION, turn_id: turn.id, seq: 1, role: 'user', parts: [] }
  return {
    kind: 'embedded',
    sessions: { get: async (_: unknown, id: string) => (id === SESSION ? session : null) },
    turns: {
      get: async (_: unknown, id: string) => (id === turn.id ? turn : null),
      list: async () => ({ data: [turn], next_cursor: null }),
    },
    messages: { ofTurn: async () => [message], after: async () => [message] },
    keys: { used: async () => {} },
  } as unknown as Store
}

/** A listening gateway, its bus, and a client that reads as events come. */
async function serve(t: Test, turn: Turn, extra: Partial<HttpDeps> = {}) {
  const metrics = createMetrics({ defaults: false })
  const g = await gateway(rows(turn), {}, { metrics, ...extra })
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

/** Reads until the text holds this; what was read so far. */
async function until(stream: IncomingMessage, part: string): Promise<string> {
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
async function all(stream: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of stream.setEncoding('utf8')) text += chunk
  return text
}
const typesIn = (text: string) => [...text.matchAll(/^event: (.*)$/gm)].map(([, type]) => type)
const settled = async (check: () => Promise<boolean> | boolean) => {
  while (!(await check())) await new Promise((resolve) => setTimeout(resolve, 10))
}

t.test('the head leaves before there is any event', async (t) => {
  const { open, opened } = await serve(t, turnRow())
  const stream = await open('/v1/turns/turn_1/events')
  t.equal(stream.statusCode, 200)
  t.match(stream.headers, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-store',
    'x-request-id': /^req_/,
  })
  t.match(await until(stream, '\n\n'), /^: /, 'a comment')
  t.equal(await opened(), 1)
  stream.destroy()
  await settled(async () => (await opened()) === 0)
})

t.test("a turn's stream has its events alone, from the first, and ends with the terminal one", async (t) => {
  const { open, say } = await serve(t, turnRow())
  await say('turn.created')
  await say('turn.created', 'turn_other')
  await say('turn.completed', 'turn_other')
  const stream = await open('/v1/turns/turn_1/events')
  const reading = all(stream)
  await say('content.delta', 'turn_1', { text: 'Hällo' })
  await say('tools.changed', null)
  await say('turn.completed')
  await say('turn.created', 'turn_next')
  const text = await reading
  t.same(typesIn(text), ['turn.created', 'content.delta', 'turn.completed'])
  t.match(text, /id: ses_1:4\nevent: content\.delta\ndata: \{"type":"content\.delta","text":"Hällo"\}\n\n/)
})

t.test('a stream goes on after a cursor, and a turn that is over needs none', async (t) => {
  const { open, say } = await serve(t, turnRow())
  for (const type of ['turn.created', 'turn.started', 'content.delta', 'turn.completed']) await say(type)
  const resumed = await all(await open('/v1/turns/turn_1/events', { 'last-event-id': 'ses_1:2' }))
  t.same(typesIn(resumed), ['content.delta', 'turn.completed'])
  const both = await all(await open('/v1/turns/turn_1/events?after=start', { 'last-event-id': 'ses_1:3' }))
  t.same(typesIn(both), ['turn.completed'], 'the header comes before the query')
  t.equal(typesIn(await all(await open('/v1/turns/turn_1/events?after=start'))).length, 4)
  t.equal(typesIn(await all(await open('/v1/turns/turn_1/events', { 'last-event-id': '' }))).length, 4)
  for (const cursor of ['ses_1:4', 'ses_1:9']) {
    const over = await open(`/v1/turns/turn_1/events?after=${cursor}`)
    t.equal(over.statusCode, 204, cursor)
    t.equal(await all(over), '')
  }
  for (const path of ['/v1/turns/turn_1/events', '/v1/sessions/ses_1/events']) {
    for (const cursor of ['nonsense', 'ses_2:1', '']) {
      const refused = await open(`${path}?after=${cursor}`)
      t.equal(refused.statusCode, 400)
      t.match(
        JSON.parse(await all(refused)),
        { error: { code: 'invalid_cursor', param: 'after' } },
        `${path} ${cursor}`,
      )
    }
  }
  for (const path of ['/v1/turns/turn_1/events', '/v1/sessions/ses_1/events']) {
    for (const [header, query, param] of [
      ['nonsense', '', 'Last-Event-ID'],
      ['', 'nonsense', 'after'],
    ]) {
      const refused = await open(`${path}?after=${query}`, { 'last-event-id': header ?? '' })
      t.match(JSON.parse(await all(refused)), { error: { code: 'invalid_cursor', param } }, path)
    }
  }
  t.equal((await open('/v1/turns/turn_0/events')).statusCode, 404)
  t.equal((await open('/v1/turns/turn_1/events?from=1')).statusCode, 400)
})

t.test("a session's stream starts at the present and goes on over turns", async (t) => {
  const { open, say } = await serve(t, turnRow())
  await say('turn.created', 'turn_a')
  const live = await open('/v1/sessions/ses_1/events')
  const head = await until(live, '\n\n')
  await say('turn.completed', 'turn_a')
  await say('tools.changed', null)
  await say('turn.created', 'turn_b')
  const text = head + (await until(live, 'event: turn.created'))
  t.same(typesIn(text), ['turn.completed', 'tools.changed', 'turn.created'])
  live.destroy()
  const kept = await open('/v1/sessions/ses_1/events?after=start')
  t.equal(typesIn(await until(kept, 'event: tools.changed\ndata')).at(0), 'turn.created')
})

t.test('a new turn is answered with its stream', async (t) => {
  const turn = turnRow()
  const started = { outcome: 'created' as 'created' | 'replayed' }
  const seen: ReadOptions[] = []
  const turns = { start: async () => ({ turn, outcome: started.outcome }) } as unknown as HttpDeps['turns']
  const s = await serve(t, turn, { turns })
  const read = s.bus.bus.read
  s.bus.bus.read = (session, options) => {
    seen.push(options)
    return read(session, options)
  }
  await s.say('turn.created')
  await s.say('turn.completed')
  const stream = await s.open('/v1/sessions/ses_1/turns', {}, { input: 'Hi' })
  t.match(stream.headers, { location: '/v1/turns/turn_1', 'x-baton-turn': 'turn_1' })
  t.equal(stream.headers['idempotent-replayed'], undefined)
  t.same(typesIn(await all(stream)), ['turn.created', 'turn.completed'])
  started.outcome = 'replayed'
  const again = await s.open('/v1/sessions/ses_1/turns', { 'idempotency-key': 'k' }, { input: 'Hi' })
  t.equal(again.headers['idempotent-replayed'], 'true')
  await all(again)
  t.match(seen, [
    { turn: 'turn_1', after: 'start', begun: false },
    { turn: 'turn_1', after: 'start', begun: true },
  ])
})

/** A bus whose reads a test scripts. */
const scripted =
  (script: (options: ReadOptions) => AsyncIterable<ReadItem>) => (s: { bus: { bus: { read: unknown } } }) => {
    s.bus.bus.read = (_: string, options: ReadOptions) => script(options)
  }
const event = (type: string, n: number, fields: object = {}) => ({
  cursor: `ses_1:${n}`,
  type,
  turn_id: 'turn_1',
  data: JSON.stringify({ type, ...fields }),
})
const aborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) =>
    signal.aborted ? resolve() : signal.addEventListener('abort', () => resolve()),
  )

t.test('a place that is no longer kept is answered with a snapshot, then live events', async (t) => {
  const s = await serve(t, turnRow())
  scripted(async function* () {
    yield { gap: true, cursor: 'ses_1:50' }
    yield { events: [event('content.delta', 51), event('turn.completed', 52)] }
  })(s)
  const text = await all(await s.open('/v1/turns/turn_1/events?after=ses_1:3'))
  t.same(typesIn(text), ['gap', 'content.delta', 'turn.completed'])
  const [, id, data = '{}'] = /id: (.*)\nevent: gap\ndata: (.*)\n/.exec(text) ?? []
  t.equal(id, 'ses_1:50')
  t.match(JSON.parse(data), {
    type: 'gap',
    session_id: 'ses_1',
    turn_id: 'turn_1',
    step: null,
    at: String,
    snapshot: { turn: { id: 'turn_1', state: 'running' }, messages: [{ id: 'msg_1' }] },
  })
})

t.test('how a turn began is told once, also where the log was lost under the reader', async (t) => {
  const s = await serve(t, turnRow())
  const begin = (n: number) => [event('turn.created', n), event('turn.started', n + 1)]
  scripted(async function* () {
    yield { events: [...begin(1), event('content.delta', 3)] }
    yield { events: [...begin(4), event('step.discarded', 6)] }
    yield { gap: true, cursor: 'ses_1:50' }
    yield { events: [...begin(51), event('turn.completed', 53)] }
  })(s)
  const types = typesIn(await all(await s.open('/v1/turns/turn_1/events')))
  const rest = ['content.delta', 'step.discarded', 'gap', 'turn.completed']
  t.same(types, ['turn.created', 'turn.started', ...rest])
})

t.test('a snapshot tells no more of how its turn began than it shows', async (t) => {
  const s = await serve(t, turnRow({ state: 'queued', started_at: null }))
  scripted(async function* () {
    yield { gap: true, cursor: 'ses_1:50' }
    yield { events: [event('turn.created', 51), event('turn.started', 52), event('turn.completed', 53)] }
  })(s)
  const types = typesIn(await all(await s.open('/v1/turns/turn_1/events?after=ses_1:3')))
  t.same(types, ['gap', 'turn.started', 'turn.completed'])
})

t.test('a gap in which the turn has ended is the last frame, and its id says so', async (t) => {
  const s = await serve(t, turnRow({ state: 'completed', ended_at: '2030-01-01T00:00:09.000Z' }))
  scripted(async function* ({ signal }) {
    yield { gap: true, cursor: 'ses_1:50' }
    await aborted(signal)
  })(s)
  const text = await all(await s.open('/v1/turns/turn_1/events'))
  t.same(typesIn(text), ['gap'])
  const id = /^id: (.*)$/m.exec(text)?.[1] ?? ''
  const resumed = await s.open('/v1/turns/turn_1/events', { 'last-event-id': id })
  t.equal(resumed.statusCode, 204, 'an EventSource then stops')
  resumed.resume()
})

t.test("the place of one turn's end is a place in the session's next turn", async (t) => {
  const s = await serve(t, turnRow({ id: 'turn_2' }))
  scripted(async function* ({ after }) {
    yield { events: [{ ...event('turn.completed', 51), data: JSON.stringify({ after }) }] }
  })(s)
  const text = await all(await s.open('/v1/turns/turn_2/events?after=ses_1:50.turn_1'))
  t.match(text, /data: {"after":"ses_1:50"}/)
})

t.test('a turn that ended in the queue, and whose log is gone, is told by a snapshot too', async (t) => {
  const fields = { state: 'cancelled', started_at: null, ended_at: '2030-01-01T00:00:09.000Z' } as const
  const s = await serve(t, turnRow(fields))
  scripted(async function* ({ begun }) {
    if (begun) yield { gap: true, cursor: 'ses_1:50' }
  })(s)
  const text = await all(await s.open('/v1/turns/turn_1/events'))
  t.match(text, /event: gap\ndata: .*"state":"cancelled"/)
})

t.test("a session's snapshot holds its latest turn and all messages", async (t) => {
  const s = await serve(t, turnRow())
  scripted(async function* () {
    yield { gap: true, cursor: 'ses_1:50' }
  })(s)
  const text = await all(await s.open('/v1/sessions/ses_1/events?after=ses_1:3'))
  t.match(JSON.parse(/data: (.*)/.exec(text)?.[1] ?? '{}'), {
    snapshot: { turn: { id: 'turn_1' }, messages: [{ id: 'msg_1' }] },
  })
})

t.test('pings keep a silent stream alive', async (t) => {
  const { open } = await serve(t, turnRow(), { pingMs: 20 })
  const stream = await open('/v1/sessions/ses_1/events')
  await until(stream, ': ping\n\n')
  t.match(await until(stream, ': ping\n\n'), /: ping/, 'again and again')
})

t.test('a stream ends once its key may call no more, and stays while nobody can tell', async (t) => {
  let refusal: BatonError | null = null
  const auth = {
    assertLocal() {},
    async authenticate() {
      if (refusal) throw refusal
      return { owner: 'local', admin: true, key_id: 'key_1' }
    },
    close: async () => {},
  } as unknown as HttpDeps['auth']
  const { open, opened } = await serve(t, turnRow(), { pingMs: 20, auth })
  for (const path of ['/v1/sessions/ses_1/events', '/v1/turns/turn_1/events']) {
    const stream = await open(path)
    refusal = new BatonError('unavailable', 'The store is away.')
    await until(stream, ': ping\n\n')
    await until(stream, ': ping\n\n')
    t.equal(await opened(), 1, 'still open')
    refusal = new BatonError('unauthenticated', 'The key was revoked.')
    await all(stream)
    await settled(async () => (await opened()) === 0)
    refusal = null
  }
})

t.test('a reader too slow for its buffer is told so and closed', async (t) => {
  const s = await serve(t, turnRow())
  scripted(async function* () {
    yield { events: [event('content.delta', 1)] }
    yield { lagged: true }
    yield { events: [event('content.delta', 2)] }
  })(s)
  t.match(await all(await s.open('/v1/turns/turn_1/events')), /id: ses_1:1\n.*\n.*\n\n: lagged\n\n$/)
})

t.test('a bus that fails in the middle ends the stream and nothing else', async (t) => {
  const s = await serve(t, turnRow())
  scripted(async function* () {
    yield { events: [event('content.delta', 1)] }
    throw new BatonError('unavailable', 'The event bus is away.')
  })(s)
  t.same(typesIn(await all(await s.open('/v1/turns/turn_1/events'))), ['content.delta'])
  t.equal((await s.call('GET', '/healthz')).status, 200)
})

t.test('events that are there together travel in one write', async (t) => {
  const s = await serve(t, turnRow())
  const events = Array.from({ length: 200 }, (_, i) => event('content.delta', i, { text: 'x'.repeat(20) }))
  scripted(async function* () {
    yield { events }
    yield { events: [event('turn.completed', 201)] }
  })(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  let chunks = 0
  let text = ''
  for await (const chunk of stream.setEncoding('utf8')) {
    chunks++
    text += chunk
  }
  t.equal(typesIn(text).length, 201)
  t.ok(chunks < 20, `${chunks} chunks`)
})

/** Many more events than any buffer holds, as fast as they are taken. */
function flood() {
  const state = { taken: 0, ended: false }
  async function* script({ signal }: ReadOptions): AsyncGenerator<ReadItem> {
    try {
      while (!signal.aborted && state.taken < 2000) {
        state.taken++
        yield { events: [event('content.delta', state.taken, { text: 'x'.repeat(65_536) })] }
      }
      await aborted(signal)
    } finally {
      state.ended = true
    }
  }
  return { state, script }
}
/** Until the client's unread data keeps the server from taking more. */
async function blocked(state: { taken: number }): Promise<void> {
  let before = -1
  await settled(async () => {
    const still = state.taken > 0 && state.taken === before
    before = state.taken
    if (!still) await new Promise((resolve) => setTimeout(resolve, 100))
    return still
  })
}

t.test('a client that does not read is waited for; when it leaves, its reader is let go', async (t) => {
  const s = await serve(t, turnRow())
  const { state, script } = flood()
  scripted(script)(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  await blocked(state)
  t.ok(state.taken < 1000, `${state.taken} events were taken, not all there are`)
  t.notOk(state.ended)
  stream.destroy()
  await settled(() => state.ended)
  await settled(async () => (await s.opened()) === 0)
})

t.test('a client that never reads again is let go too', async (t) => {
  const s = await serve(t, turnRow(), { pingMs: 50 })
  const { state, script } = flood()
  scripted(script)(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  stream.on('error', () => {})
  await settled(() => state.ended)
  t.ok(state.taken > 0)
})

t.test('a client that does not read the end of its stream is let go as well', async (t) => {
  const s = await serve(t, turnRow(), { pingMs: 50 })
  scripted(async function* () {
    // More than the sockets' buffers hold, in one item: the stream itself is done with it at once.
    yield { events: [event('turn.completed', 1, { text: 'x'.repeat(32 << 20) })] }
  })(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  stream.on('error', () => {})
  t.equal(await s.opened(), 1)
  await settled(async () => (await s.opened()) === 0)
})

t.test('a client that left before its stream could begin leaves nothing behind', async (t) => {
  let left = () => {}
  const gone = new Promise<void>((resolve) => {
    left = resolve
  })
  let began = () => {}
  const begun = new Promise<void>((resolve) => {
    began = resolve
  })
  const turns = {
    async start() {
      outgoing.destroy()
      await gone
      return { turn: turnRow(), outcome: 'created' }
    },
  } as unknown as HttpDeps['turns']
  const s = await serve(t, turnRow(), { turns, pingMs: 5 })
  scripted(async function* ({ signal }) {
    began()
    yield { events: [event('turn.created', 1)] }
    await aborted(signal)
  })(s)
  s.app.server.once('request', (_, response) => response.once('close', left))
  const headers = { 'content-type': 'application/json' }
  const where = { host: '127.0.0.1', port: s.port, path: '/v1/sessions/ses_1/turns', method: 'POST', headers }
  const outgoing = request(where).on('error', () => {})
  outgoing.end(JSON.stringify({ input: 'Hi' }))
  await begun
  await settled(async () => (await s.opened()) === 0)
  // A ping onto what is closed would be an error that nobody hears.
  await new Promise((resolve) => setTimeout(resolve, 30))
})

t.test('closing the server ends its streams cleanly, with what was said before', async (t) => {
  const s = await serve(t, turnRow())
  const ofTurn = await s.open('/v1/turns/turn_1/events')
  const ofSession = await s.open('/v1/sessions/ses_1/events')
  await until(ofSession, '\n\n')
  await until(ofTurn, '\n\n')
  await s.say('content.delta')
  const texts = Promise.all([all(ofTurn), all(ofSession)])
  await s.app.close()
  for (const text of await texts) t.same(typesIn(text), ['content.delta'])
})

t.test('a connection serves one stream after the other, and keeps no server from closing', async (t) => {
  const s = await serve(t, turnRow())
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.teardown(() => agent.destroy())
  await s.say('turn.completed')
  const ports = new Set<number | undefined>()
  for (let i = 0; i < 3; i++) {
    const stream = await s.open('/v1/turns/turn_1/events', {}, undefined, agent)
    ports.add(stream.socket.localPort)
    t.same(typesIn(await all(stream)), ['turn.completed'])
  }
  t.equal(ports.size, 1)
  const last = await s.open('/v1/sessions/ses_1/events', {}, undefined, agent)
  await until(last, '\n\n')
  const over = once(last.socket, 'close')
  await Promise.all([all(last), s.app.close()])
  await over
})

t.test('a connection that was opened in advance keeps no server from closing', async (t) => {
  const s = await serve(t, turnRow())
  const { port } = s.app.server.address() as AddressInfo
  const socket = connect(port, '127.0.0.1')
  await Promise.all([once(socket, 'connect'), once(s.app.server, 'connection')])
  const over = once(socket, 'close')
  const late = sleep(5000, 'late', { ref: false })
  t.not(await Promise.race([s.app.close(), late]), 'late')
  await over
})

t.test('a client that does not read cannot keep the server from closing', async (t) => {
  const s = await serve(t, turnRow())
  const { state, script } = flood()
  scripted(script)(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  stream.on('error', () => {})
  await blocked(state)
  await s.app.close()
  t.ok(state.ended)
})

t.test('a waiting caller is answered when the server closes', async (t) => {
  const turn = turnRow()
  const waiting = { signal: null as AbortSignal | null }
  const turns = {
    start: async () => ({ turn, outcome: 'created' }),
    wait: async (_: unknown, __: string, ___: unknown, signal: AbortSignal) => {
      waiting.signal = signal
      await aborted(signal)
      return turn
    },
  } as unknown as HttpDeps['turns']
  const s = await serve(t, turn, { turns })
  const agent = new Agent({ keepAlive: true })
  t.teardown(() => agent.destroy())
  const answer = s.open('/v1/sessions/ses_1/turns', {}, { input: 'Hi', stream: false }, agent)
  await settled(() => waiting.signal !== null)
  const closing = s.app.close()
  const stream = await answer
  t.equal(stream.headers.connection, 'close', 'its connection keeps no server from closing')
  t.equal(stream.statusCode, 503)
  t.match(JSON.parse(await all(stream)), { error: { code: 'draining', details: { turn_id: 'turn_1' } } })
  await closing
})

t.test('a caller who left while the turn was opened is not waited for', async (t) => {
  const turn = turnRow()
  const state = { gone: false, left: false }
  const turns = {
    start: async () => {
      outgoing.destroy()
      await settled(() => state.gone)
      return { turn, outcome: 'created' }
    },
    wait: async (_: unknown, __: string, ___: unknown, signal: AbortSignal) => {
      await aborted(signal)
      state.left = true
      return turn
    },
  } as unknown as HttpDeps['turns']
  const s = await serve(t, turn, { turns })
  s.app.server.on('connection', (socket) => socket.on('close', () => (state.gone = true)))
  const outgoing = request({
    host: '127.0.0.1',
    port: s.port,
    path: '/v1/sessions/ses_1/turns',
    method: 'POST',
  })
  outgoing.on('error', () => {})
  outgoing.setHeader('content-type', 'application/json')
  outgoing.end(JSON.stringify({ input: 'Hi', stream: false }))
  await settled(() => state.left)
  t.ok(state.left)
})

t.test('a waiting caller who leaves is waited for no longer', async (t) => {
  const turn = turnRow()
  const state = { waiting: false, gone: false }
  const turns = {
    wait: async (_: unknown, __: string, ___: unknown, signal: AbortSignal) => {
      state.waiting = true
      await aborted(signal)
      state.gone = true
      return turn
    },
  } as unknown as HttpDeps['turns']
  const s = await serve(t, turn, { turns })
  const outgoing = request({ host: '127.0.0.1', port: s.port, path: '/v1/turns/turn_1?wait=500' })
  outgoing.on('error', () => {})
  outgoing.end()
  await settled(() => state.waiting)
  outgoing.destroy()
  await settled(() => state.gone)
  t.ok(state.gone)
})
