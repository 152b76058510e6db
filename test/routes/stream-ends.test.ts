/** How streams and waiting calls end: with clients that do not read or that leave, and with a server that closes. */
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { connect, type Socket } from 'node:net'
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import type { Turn } from '../../src/store/store.ts'
import { collect } from '../memory.ts'
import { eventually, gate } from '../waiting.ts'
import { aborted, all, event, scripted, serve, turnRow, typesIn, until } from './served-streams.ts'

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
      await aMoment()
    } finally {
      state.ended = true
    }
  }
  return { state, script }
}
/** Waits for a turn that never ends: the first tells that it is there, and that its caller is let go or is gone. */
function waits(turn: Turn) {
  const { opened: begun, open: begin } = gate()
  const { opened: ended, open: end } = gate()
  async function untilLeft(signal: AbortSignal | null) {
    begin()
    if (signal) await aborted(signal)
    end()
    return turn
  }
  return {
    begun,
    ended,
    turns: {
      start: async () => ({ turn, outcome: 'created' as const }),
      wait: (_: unknown, __: string, ___: unknown, signal: AbortSignal) => untilLeft(signal),
      cancel: (_: unknown, __: string, signal: AbortSignal | null) => untilLeft(signal),
    },
  }
}
/** A request that a client sends, maybe ahead of the answer to the one before. */
const ask = (path: string) => `GET ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n`
/** A bus may notice the close of a stream later than the server. */
const aMoment = () => new Promise(setImmediate)
/** Waits until the client's unread data keeps the server from taking more. */
async function blocked(state: { taken: number }): Promise<void> {
  let before = -1
  await eventually(async () => {
    const still = state.taken > 0 && state.taken === before
    before = state.taken
    if (!still) await new Promise((resolve) => setTimeout(resolve, 100))
    return still
  })
}

t.test('a client that does not read is waited for, and its reader ends when the client leaves', async (t) => {
  const s = await serve(t, turnRow())
  const { state, script } = flood()
  scripted(script)(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  await blocked(state)
  t.ok(state.taken < 1000, `${state.taken} events were taken, not all there are`)
  t.notOk(state.ended)
  stream.destroy()
  await eventually(() => state.ended)
  await eventually(async () => (await s.opened()) === 0)
})

t.test('a client that leaves ends all requests that it has sent ahead, too', async (t) => {
  const { begun, ended, turns } = waits(turnRow())
  const s = await serve(t, turnRow(), { turns })
  const client = connect(s.port, '127.0.0.1')
  client.write(ask('/v1/sessions/ses_1/events').repeat(3) + ask('/v1/turns/turn_1?wait=500'))
  await begun
  await eventually(async () => (await s.opened()) === 3)
  client.destroy()
  await t.resolves(ended)
  await eventually(async () => (await s.opened()) === 0)
})

t.test(
  'of requests that a client sends ahead on a connection 32 are served, and the others refused',
  async (t) => {
    const { opened: over, open: end } = gate()
    const turn = turnRow()
    const s = await serve(t, turn, { turns: { wait: () => over.then(() => turn) } })
    let asked = 0
    s.app.server.on('request', () => asked++)
    const client = connect(s.port, '127.0.0.1').setEncoding('utf8')
    t.teardown(() => client.destroy())
    let told = ''
    client.on('data', (text: string) => {
      told += text
    })
    const statuses = () => [...told.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status)
    client.write(ask('/v1/turns/turn_1?wait=500') + ask('/docs/static/index.css').repeat(40))
    await eventually(() => asked === 41)
    end()
    await eventually(() => statuses().length === 41)
    t.strictSame(statuses(), [...Array(32).fill('200'), ...Array(9).fill('429')])
    t.match(told, /"code":"rate_limited"/)
    client.write(ask('/healthz'))
    await eventually(() => statuses().length === 42)
    t.equal(statuses().at(-1), '200', 'what comes after the answers is served')
  },
)

t.test('a client that never reads again is disconnected', async (t) => {
  const s = await serve(t, turnRow(), { pingMs: 50 })
  const { state, script } = flood()
  scripted(script)(s)
  const deaf = connect(s.port, '127.0.0.1').pause()
  t.teardown(() => deaf.destroy())
  deaf.on('error', () => {})
  // The connection's time limit holds for the answer whose turn it is.
  deaf.write(ask('/healthz') + ask('/v1/turns/turn_1/events'))
  await eventually(() => state.ended)
  t.ok(state.taken > 0)
})

t.test('a client that reads slowly is not disconnected', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  let asked = 0
  const auth = {
    assertLocal() {},
    async authenticate() {
      asked++
      return { owner: 'local', admin: true, key_id: null }
    },
  }
  const s = await serve(t, turnRow(), { auth, pingMs: 250 })
  const { opened: pinged, open: isPinged } = gate()
  scripted(async function* () {
    // More than the sockets' buffers hold.
    yield { events: [event('content.delta', 1, { text: 'x'.repeat(32 << 20) })] }
    await pinged
    yield { events: [event('turn.completed', 2)] }
  })(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  let size = 0
  for await (const chunk of stream) {
    size += chunk.length
    // Once it has taken the event it is pinged again.
    if (String(chunk.subarray(-9)).includes(': ping')) isPinged()
    await sleep(1)
    mock.timers.tick(250)
  }
  t.ok(size > 32 << 20)
  await eventually(async () => (await s.opened()) === 0)
  const before = asked
  mock.timers.tick(10_000)
  t.equal(asked, before, 'the key of a stream that is over is checked no more')
})

t.test('a client that does not read the end of its stream is disconnected', async (t) => {
  const s = await serve(t, turnRow(), { pingMs: 50 })
  const accepted: Socket[] = []
  s.app.server.on('connection', (socket) => accepted.push(socket))
  scripted(async function* () {
    // Until the system takes no more: what is left then is too little to be waited for, and the stream ends.
    for (let taken = 1; accepted[0]?.writableLength === 0; taken++) {
      yield { events: [event('content.delta', taken, { text: 'x'.repeat(8192) })] }
      await aMoment()
    }
    yield { events: [event('turn.completed', 1)] }
  })(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  stream.on('error', () => {})
  t.equal(await s.opened(), 1)
  await eventually(async () => (await s.opened()) === 0)
})

t.test(
  'a client that does not read its answer is disconnected; one that waits for its next answer is not',
  async (t) => {
    // More than the sockets' buffers hold.
    const turn = turnRow({ input: [{ type: 'text', text: 'x'.repeat(32 << 20) }] })
    const { opened, open } = gate()
    const next = opened.then(() => turnRow({ id: 'turn_2' }))
    const turns = { wait: async (_: unknown, __: string, seconds: number | null) => (seconds ? next : turn) }
    const s = await serve(t, turn, { pingMs: 50, turns })

    const deaf = connect(s.port, '127.0.0.1').pause()
    deaf.on('error', () => {})
    deaf.write(ask('/v1/turns/turn_1'))
    const [socket] = (await once(s.app.server, 'connection')) as [Socket]
    await eventually(() => socket.writableLength > 0)
    await eventually(() => socket.destroyed)
    deaf.destroy()

    const patient = connect(s.port, '127.0.0.1')
    t.teardown(() => patient.destroy())
    patient.write(ask('/healthz') + ask('/v1/turns/turn_1?wait=30'))
    const said: string[] = []
    patient.setEncoding('utf8').on('data', (text: string) => void said.push(text))
    await eventually(() => said.length > 0)
    await sleep(500)
    open()
    await eventually(() => said.join('').includes('turn_2'))
  },
)

t.test('a client that left before its stream could begin leaves nothing behind', async (t) => {
  const { opened: gone, open: left } = gate()
  const { opened: begun, open: began } = gate()
  const { opened: ended, open: end } = gate()
  const turns = {
    async start() {
      outgoing.destroy()
      await gone
      return { turn: turnRow(), outcome: 'created' as const }
    },
  }
  const s = await serve(t, turnRow(), { turns, pingMs: 5 })
  scripted(async function* ({ signal }) {
    began()
    try {
      yield { events: [event('turn.created', 1)] }
      await aborted(signal)
    } finally {
      end()
    }
  })(s)
  s.app.server.once('request', (_, response) => response.once('close', left))
  const headers = { 'content-type': 'application/json' }
  const where = { host: '127.0.0.1', port: s.port, path: '/v1/sessions/ses_1/turns', method: 'POST', headers }
  const outgoing = request(where).on('error', () => {})
  outgoing.end(JSON.stringify({ input: 'Hi' }))
  await begun
  await eventually(async () => (await s.opened()) === 0)
  await t.resolves(ended)
  // A ping on a closed connection would be an error that nobody hears.
  await new Promise((resolve) => setTimeout(resolve, 30))
})

t.test('a server that closes ends its streams cleanly, after the events that were said before', async (t) => {
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
  scripted(async function* ({ signal }) {
    yield { events: [event('content.delta', 1)] }
    await aborted(signal)
    await aMoment()
  })(s)
  const last = await s.open('/v1/sessions/ses_1/events', {}, undefined, agent)
  await until(last, '\n\n')
  const over = once(last.socket, 'close')
  // A connection that is still open a second later would be cut.
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  await Promise.all([all(last), s.app.close()])
  await over
})

t.test('of answers, streams and connections that are over nothing is kept', async (t) => {
  const s = await serve(t, turnRow())
  const over: { what: string; ref: WeakRef<object> }[] = []
  s.app.server.on('connection', (socket) => over.push({ what: 'connection', ref: new WeakRef(socket) }))
  s.app.server.on('request', ({ url }, response) => over.push({ what: `${url}`, ref: new WeakRef(response) }))
  await s.say('turn.completed')
  const agent = new Agent({ keepAlive: false })
  for (const path of ['/healthz', '/v1/turns/turn_1', '/v1/turns/turn_1/events'])
    await all(await s.open(path, {}, undefined, agent))
  const kept = () => over.filter(({ ref }) => ref.deref()).map(({ what }) => what)
  for (let tries = 0; kept().length > 0 && tries < 20; tries++) await collect()
  t.equal(over.length, 6)
  t.same(kept(), [])
})

t.test(
  'a server that closes lets go of idle connections at once, and of half a request a second later',
  async (t) => {
    const s = await serve(t, turnRow())
    const accepted: Socket[] = []
    s.app.server.on('connection', (socket) => accepted.push(socket))
    const opened = async (text = '') => {
      const socket = connect(s.port, '127.0.0.1').resume()
      t.teardown(() => socket.destroy())
      if (text) socket.write(text)
      await once(socket, text.endsWith('\r\n\r\n') ? 'data' : 'connect')
    }
    await opened()
    await opened('GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n')
    await opened('GET /hea')
    await eventually(() => accepted.length === 3 && accepted[2]?.bytesRead)
    mock.timers.enable({ apis: ['setTimeout'] })
    t.teardown(() => mock.timers.reset())
    const closing = s.app.close()
    while (s.app.server.listening) await aMoment()
    mock.timers.tick(100)
    await aMoment()
    const areOpen = () => accepted.map(({ destroyed }) => !destroyed)
    t.same(areOpen(), [false, false, true])
    mock.timers.tick(900)
    t.same(areOpen(), [false, false, false])
    await closing
  },
)

t.test('an idle connection has the time limit of the server again', async (t) => {
  const s = await serve(t, turnRow())
  const client = connect(s.port, '127.0.0.1')
  t.teardown(() => client.destroy())
  client.write('GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n')
  const [socket] = (await once(s.app.server, 'connection')) as [Socket]
  t.ok(await eventually(() => (socket.timeout ?? 0) >= s.app.server.keepAliveTimeout))
})

t.test('a request that does not arrive whole keeps no server from closing', async (t) => {
  const s = await serve(t, turnRow())
  const posted = (path: string) =>
    `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`
  const begun = [
    'GET /healthz HTTP/1.1\r\nho',
    'GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea',
    `${posted('/v1/sessions')}content-length: 100\r\n\r\n{"prov`,
    `${posted('/v1/sessions')}transfer-encoding: chunked\r\n\r\n1\r\n{\r\n`,
    // Answered already, but the rest of the body is still to come
    `${posted('/v1/nothing')}content-length: 100\r\n\r\n{"prov`,
  ]
  const over = begun.map(async (text) => {
    const socket = connect(s.port, '127.0.0.1').resume()
    socket.write(text)
    await once(socket, 'close')
  })
  const arrived = await new Promise<Socket[]>((resolve) => {
    const sockets: Socket[] = []
    s.app.server.on('connection', (socket) => sockets.push(socket) === begun.length && resolve(sockets))
  })
  await eventually(() => arrived.every(({ bytesRead }) => bytesRead > 0))
  const late = sleep(5000, 'late', { ref: false })
  t.not(await Promise.race([s.app.close(), late]), 'late')
  await Promise.all(over)
})

t.test('a client that does not read cannot keep the server from closing', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  // Else the time limit of the stream would close it.
  const pingMs = 60_000
  const s = await serve(t, turnRow(), { pingMs })
  const { state, script } = flood()
  scripted(script)(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  stream.on('error', () => {})
  await blocked(state)
  const closing = s.app.close()
  await eventually(() => state.ended)
  await aMoment()
  // A ping behind the end would be an error that nobody hears.
  mock.timers.tick(3 * pingMs)
  await closing
})

t.test('an answer that is on its way when the server closes arrives whole, if it is read', async (t) => {
  // More than the sockets' buffers hold.
  const turn = turnRow({ input: [{ type: 'text', text: 'x'.repeat(32 << 20) }] })
  const s = await serve(t, turn, { turns: { wait: async () => turn } })
  const [read, deaf] = await Promise.all([s.open('/v1/turns/turn_1'), s.open('/v1/turns/turn_1')])
  deaf.on('error', () => {})
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const closing = s.app.close()
  while (s.app.server.listening) await aMoment()
  t.equal((await all(read)).length, Number(read.headers['content-length']))
  const open = () => new Promise((resolve) => s.app.server.getConnections((_, count) => resolve(count)))
  // The one that was read is closed at once.
  while ((await open()) !== 1) await aMoment()
  mock.timers.tick(4000)
  await aMoment()
  t.equal(await open(), 1)
  mock.timers.tick(1000)
  await closing
})

t.test('a stream or a waiting call that begins while the server closes ends with the server', async (t) => {
  const turn = turnRow()
  const { opened, open } = gate()
  let starts = 0
  const turns = {
    ...waits(turn).turns,
    async start() {
      starts++
      await opened
      return { turn, outcome: 'created' as const }
    },
  }
  const s = await serve(t, turn, { turns })
  scripted(async function* ({ signal }) {
    yield { events: [event('turn.created', 1)] }
    await aborted(signal)
  })(s)
  const answers = [true, false].map((stream) =>
    s.open('/v1/sessions/ses_1/turns', {}, { input: 'Hi', stream }),
  )
  await eventually(() => starts === 2)
  const closing = s.app.close()
  await eventually(() => !s.app.server.listening)
  open()
  const [streamed, waited] = await Promise.all(answers)
  t.equal(streamed?.statusCode, 200)
  t.equal(waited?.statusCode, 503)
  for (const answer of [streamed, waited]) answer?.resume()
  await closing
})

t.test('calls from before a close, and calls during it, are answered while the server closes', async (t) => {
  const { opened: cancelled, open: cancel } = gate()
  const { opened: isAsked, open: ask } = gate()
  const turns = {
    async cancel() {
      ask()
      await cancelled
      return turnRow({ state: 'cancelled', ended_at: '2030-01-01T00:00:09.000Z' })
    },
  }
  const s = await serve(t, turnRow(), { turns })
  const late = connect(s.port, '127.0.0.1')
  await once(s.app.server, 'connection')
  const again = connect(s.port, '127.0.0.1')
  const asked = 'GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n'
  again.write(asked)
  await once(again, 'data')
  const ahead = connect(s.port, '127.0.0.1')
  let answers = ''
  ahead.setEncoding('utf8').on('data', (text: string) => (answers += text))
  ahead.write(`${asked}POST /v1/turns/turn_1/cancel HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n`)
  await isAsked
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const closing = s.app.close()
  while (s.app.server.listening) await aMoment()
  const told = [late, again].map(async (socket) => {
    socket.write(asked)
    return String((await once(socket, 'data'))[0])
  })
  for (const head of await Promise.all(told)) t.match(head, /^HTTP\/1.1 200 /)
  mock.timers.tick(100)
  await aMoment()
  cancel()
  await once(ahead, 'close')
  t.match(answers, /^HTTP\/1.1 200 .*HTTP\/1.1 202 /s)
  await closing
})

t.test('a waiting caller is answered when the server closes', async (t) => {
  const { begun, turns } = waits(turnRow())
  const s = await serve(t, turnRow(), { turns })
  const agent = new Agent({ keepAlive: true })
  t.teardown(() => agent.destroy())
  const answer = s.open('/v1/sessions/ses_1/turns', {}, { input: 'Hi', stream: false }, agent)
  await begun
  const closing = s.app.close()
  const stream = await answer
  t.equal(stream.headers.connection, 'close', 'the connection keeps no server from closing')
  t.match(stream.headers['retry-after'], /^[1-9]\d*$/)
  t.equal(stream.statusCode, 503)
  t.match(JSON.parse(await all(stream)), { error: { code: 'draining', details: { turn_id: 'turn_1' } } })
  await closing
})

const TCP = '/proc/net/tcp'
t.test('a connection is kept up while its answer is silent', { skip: !existsSync(TCP) }, async (t) => {
  const { begun, turns } = waits(turnRow())
  const s = await serve(t, turnRow(), { turns })
  const answer = s.open('/v1/turns/turn_1/cancel?wait=true', {}, {})
  await begun
  const port = s.port.toString(16).toUpperCase().padStart(4, '0')
  // Established, with the timer of TCP's keep-alive.
  const keptUp = new RegExp(`: 0100007F:${port} \\S+ 01 \\S+ 02:`)
  await eventually(() => keptUp.test(readFileSync(TCP, 'utf8')))
  t.pass('by the system')
  const closing = s.app.close()
  await all(await answer)
  await closing
})

t.test('a caller who waits for a cancel is answered when the server closes', async (t) => {
  const { begun, turns } = waits(turnRow())
  const s = await serve(t, turnRow(), { turns })
  const answer = s.open('/v1/turns/turn_1/cancel?wait=true', {}, {})
  await begun
  const closing = s.app.close()
  const stream = await answer
  t.equal(stream.statusCode, 503)
  t.match(JSON.parse(await all(stream)), { error: { code: 'draining', details: { turn_id: 'turn_1' } } })
  await closing
})

t.test('a caller who left while the turn was opened is not waited for', async (t) => {
  const turn = turnRow()
  const { opened: gone, open: left } = gate()
  const { ended, turns } = waits(turn)
  const start = async () => {
    outgoing.destroy()
    await gone
    return turns.start()
  }
  const s = await serve(t, turn, { turns: { ...turns, start } })
  s.app.server.on('connection', (socket) => socket.on('close', left))
  const outgoing = request({
    host: '127.0.0.1',
    port: s.port,
    path: '/v1/sessions/ses_1/turns',
    method: 'POST',
  })
  outgoing.on('error', () => {})
  outgoing.setHeader('content-type', 'application/json')
  outgoing.end(JSON.stringify({ input: 'Hi', stream: false }))
  await t.resolves(ended)
})

t.test('the wait of a caller who leaves ends, and does not count as refused', async (t) => {
  const posted = { method: 'POST', headers: { 'content-type': 'application/json' } }
  const waiting = [
    ['/v1/sessions/ses_1/turns', posted, { input: 'Hi', stream: false }],
    ['/v1/turns/turn_1?wait=500', {}],
    ['/v1/turns/turn_1/cancel?wait=true', posted, {}],
  ] as const
  for (const [path, how, body] of waiting) {
    const { begun, ended, turns } = waits(turnRow())
    const s = await serve(t, turnRow(), { turns })
    const outgoing = request({ host: '127.0.0.1', port: s.port, path, ...how })
    outgoing.on('error', () => {})
    outgoing.end(body && JSON.stringify(body))
    await begun
    outgoing.destroy()
    await t.resolves(ended, path)
    for (let i = 0; i < 10; i++) await aMoment()
    const { payload } = await s.app.inject({ url: '/metrics', headers: { host: 'localhost' } })
    t.notMatch(payload, /http_requests_total\{.*status="503"/, path)
  }
})
