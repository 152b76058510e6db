/** What event streams tell: of a turn, of a session, after a cursor. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t from 'tap'
import type { ReadOptions } from '../../src/bus/bus.ts'
import { endId } from '../../src/bus/cursor.ts'
import { newId } from '../../src/chat/ids.ts'
import { BatonError } from '../../src/errors.ts'
import type { Session, Turn } from '../../src/store/store.ts'
import { eventually, gate } from '../waiting.ts'
import { cursorAt } from './fake-bus.ts'
import { aborted, all, event, scripted, serve, turnRow, typesIn, until } from './served-streams.ts'

const step = { index: 0, attempt: 1, finish_reason: 'stop' } as Turn['steps'][number]

t.test('the head is sent before there is any event', async (t) => {
  const lines: object[] = []
  const log = pino({ level: 'debug' }, { write: (line) => void lines.push(JSON.parse(line)) })
  const { open, opened, call } = await serve(t, turnRow(), { log })
  const stream = await open('/v1/turns/turn_1/events')
  t.equal(stream.statusCode, 200)
  const answered = { msg: 'request answered', request_id: stream.headers['x-request-id'] }
  const head = { ...answered, level: 20, method: 'GET', route: '/v1/turns/:id/events', status: 200 }
  t.match(
    lines,
    [{ level: 30 }, head],
    'the log leads from the request to its stream, as from any other to its answer',
  )
  t.match(stream.headers, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-store, no-transform',
    'x-accel-buffering': 'no',
    'x-request-id': /^req_/,
    'x-content-type-options': 'nosniff',
  })
  t.match(await until(stream, '\n\n'), /^: /, 'a comment comes with the head')
  t.equal(await opened(), 1)
  const { text } = await call('GET', '/metrics')
  t.match(
    text,
    /^baton_http_requests_total\{method="GET",route="\/v1\/turns\/:id\/events",status="200"\} 1$/m,
  )
  stream.destroy()
  await eventually(async () => (await opened()) === 0)
})

t.test('a stream is opened without a look at what its turn holds, which may be megabytes', async (t) => {
  const { open, say, store } = await serve(t, turnRow())
  Object.assign(store.turns, { get: async () => t.fail('the whole turn is read') })
  const reading = open('/v1/turns/turn_1/events').then(all)
  await say('turn.completed')
  t.same(typesIn(await reading), ['turn.completed'])
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
  t.match(
    text,
    `id: ${cursorAt('ses_1', 4)}\nevent: content.delta\ndata: {"type":"content.delta","text":"Hällo"}\n\n`,
  )
})

t.test(
  'a reader waits for a turn that has said nothing yet, however far the clocks of replicas are apart',
  async (t) => {
    for (const [row, isYoung] of [
      [turnRow({ started_at: '2020-01-01T00:00:00.000Z', steps: [] }), true],
      [turnRow({ started_at: '2020-01-01T00:00:00.000Z', steps: [step] }), false],
      [turnRow({ started_at: null }), false],
    ] as const) {
      const asked: unknown[] = []
      const s = await serve(t, row)
      scripted(async function* (options) {
        asked.push(options.isYoung)
        yield { events: [event('turn.completed', 1)] }
      })(s)
      await all(await s.open('/v1/turns/turn_1/events'))
      t.same(asked, [isYoung])
    }
  },
)

t.test('a stream goes on after a cursor; after the end of its turn the answer is 204', async (t) => {
  const { open, say } = await serve(t, turnRow())
  for (const type of ['turn.created', 'turn.started', 'content.delta', 'turn.completed']) await say(type)
  const resumed = await all(await open('/v1/turns/turn_1/events', { 'last-event-id': cursorAt('ses_1', 2) }))
  t.same(typesIn(resumed), ['content.delta', 'turn.completed'])
  t.ok(
    resumed.includes(`id: ${endId(cursorAt('ses_1', 4), 'turn_1')}\n`),
    'the last id says that the turn is over',
  )
  const both = await all(
    await open('/v1/turns/turn_1/events?after=start', { 'last-event-id': cursorAt('ses_1', 3) }),
  )
  t.same(typesIn(both), ['turn.completed'], 'the header wins over the query')
  t.equal(typesIn(await all(await open('/v1/turns/turn_1/events?after=start'))).length, 4)
  t.equal(typesIn(await all(await open('/v1/turns/turn_1/events', { 'last-event-id': '' }))).length, 4)
  for (const cursor of [cursorAt('ses_1', 4), cursorAt('ses_1', 9)]) {
    const over = await open(`/v1/turns/turn_1/events?after=${cursor}`)
    t.equal(over.statusCode, 204, cursor)
    t.equal(await all(over), '')
  }
  for (const path of ['/v1/turns/turn_1/events', '/v1/sessions/ses_1/events']) {
    for (const cursor of ['nonsense', cursorAt('ses_2', 1), '']) {
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

t.test("a session's stream knows its place before its head leaves", async (t) => {
  const { open, say, bus } = await serve(t, turnRow())
  const { present } = bus.bus
  bus.bus.present = async (session) => {
    const place = await present(session)
    await say('turn.created')
    return place
  }
  const live = await open('/v1/sessions/ses_1/events')
  t.same(typesIn(await until(live, '\n\n')), ['turn.created'])
})

t.test('a session that is deleted while its stream is opened has none', async (t) => {
  const is = async () => ({ id: 'ses_1' }) as Session
  let find = is
  const { open, bus } = await serve(t, turnRow(), { sessions: { get: () => find() } })
  const { present, oldest } = bus.bus
  const deleted = (place: (session: string) => Promise<string>) => (session: string) => {
    find = async () => Promise.reject(new BatonError('session_not_found', 'It is deleted.'))
    return place(session)
  }
  Object.assign(bus.bus, { present: deleted(present), oldest: deleted(oldest) })
  for (const from of ['', '?after=start']) {
    find = is
    t.equal((await open(`/v1/sessions/ses_1/events${from}`)).statusCode, 404, from)
  }
})

t.test('a new turn is answered with its stream', async (t) => {
  const turn = turnRow()
  let outcome: 'created' | 'replayed' = 'created'
  const seen: ReadOptions[] = []
  const s = await serve(t, turn, { turns: { start: async () => ({ turn, outcome }) } })
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
  outcome = 'replayed'
  const again = await s.open('/v1/sessions/ses_1/turns', { 'idempotency-key': 'k' }, { input: 'Hi' })
  t.equal(again.headers['idempotent-replayed'], 'true')
  await all(again)
  t.match(seen, [
    { turn: 'turn_1', after: 'start', begun: false },
    { turn: 'turn_1', after: 'start', begun: true },
  ])
})

t.test('a gap in which the turn has ended is the last frame, and its id says so', async (t) => {
  const turn = newId('turn')
  const s = await serve(t, turnRow({ id: turn, state: 'completed', ended_at: '2030-01-01T00:00:09.000Z' }))
  scripted(async function* ({ signal }) {
    yield { gap: true, cursor: cursorAt('ses_1', 1) }
    await aborted(signal)
  })(s)
  const text = await all(await s.open(`/v1/turns/${turn}/events`))
  t.same(typesIn(text), ['gap'])
  const id = /^id: (.*)$/m.exec(text)?.[1] ?? ''
  const resumed = await s.open(`/v1/turns/${turn}/events`, { 'last-event-id': id })
  t.equal(resumed.statusCode, 204, 'an EventSource then stops')
  resumed.resume()
})

t.test('a reader that has the end of its turn gets a 204 even while the bus is away', async (t) => {
  const turn = turnRow({ id: newId('turn'), state: 'completed', ended_at: '2030-01-01T00:00:09.000Z' })
  const s = await serve(t, turn)
  s.bus.bus.pastEnd = async () => false
  const resume = async (id: string) => {
    const answer = await s.open(`/v1/turns/${turn.id}/events`, { 'last-event-id': id })
    answer.destroy()
    return answer.statusCode
  }
  t.equal(await resume(endId(cursorAt('ses_1', 1), turn.id)), 204)
  t.equal(await resume(endId(cursorAt('ses_2', 1), turn.id)), 400, 'a cursor of another session is refused')
  t.equal(await resume(endId('nonsense', turn.id)), 400)
  t.equal(await resume(cursorAt('ses_1', 1)), 200, 'a cursor that does not name the end has to be looked up')
  Object.assign(turn, { state: 'running', ended_at: null })
  t.equal(
    await resume(endId(cursorAt('ses_1', 1), turn.id)),
    200,
    'a cursor that the store contradicts has to be looked up',
  )
})

t.test('a cursor before a turn that ended as soon as it began is not taken for past its end', async (t) => {
  const at = new Date().toISOString()
  const turn = turnRow({ state: 'failed', started_at: at, ended_at: at })
  const s = await serve(t, turn)
  let isHeard = false
  // Like a log that hears of the turn a moment later, behind the cursor.
  s.bus.bus.pastEnd = async (_session, _turn, _cursor, hasEnded) => {
    setTimeout(() => {
      isHeard = true
    }, 50)
    return hasEnded && !isHeard
  }
  scripted(async function* () {
    yield { events: [event('turn.created', 51), event('turn.completed', 52)] }
  })(s)
  const text = await all(await s.open(`/v1/turns/turn_1/events?after=${cursorAt('ses_1', 50)}`))
  t.same(typesIn(text), ['turn.created', 'turn.completed'])
})

t.test('a turn that is over is past the cursor if the log says so, or has forgotten it', async (t) => {
  const at = new Date().toISOString()
  const young: Partial<Turn> = { state: 'failed', started_at: at, ended_at: at, steps: [] }
  const cases: [turn: Partial<Turn>, isKnown: boolean, asked: boolean[], status: number][] = [
    [young, false, [false, true], 204],
    [young, true, [false], 204],
    [{ ...young, steps: [step] }, false, [true], 204],
    [{ ...young, state: 'running', ended_at: null }, false, [false], 200],
  ]
  for (const [turn, isKnown, asked, status] of cases) {
    const s = await serve(t, turnRow(turn))
    const told: boolean[] = []
    s.bus.bus.pastEnd = async (_session, _turn, _cursor, hasEnded) => {
      told.push(hasEnded)
      return hasEnded || isKnown
    }
    const answer = await s.open(`/v1/turns/turn_1/events?after=${cursorAt('ses_1', 50)}`)
    answer.destroy()
    t.same([told, answer.statusCode], [asked, status])
  }
})

t.test('a caller who waits for a turn is answered when the turn waits for a person', async (t) => {
  const turn = turnRow({ state: 'awaiting_input' })
  const start = async () => ({ turn, outcome: 'created' as const })
  const { open } = await serve(t, turn, { turns: { start, wait: async () => turn } })
  const answer = await open('/v1/sessions/ses_1/turns', {}, { input: 'Hi', stream: false })
  t.equal(answer.statusCode, 200)
  t.match(JSON.parse(await all(answer)), { id: 'turn_1', state: 'awaiting_input' })
})

t.test("the id of one turn's end is a cursor in the session's next turn", async (t) => {
  const s = await serve(t, turnRow({ id: 'turn_2' }))
  scripted(async function* ({ after }) {
    yield { events: [{ ...event('turn.completed', 51), data: JSON.stringify({ after }) }] }
  })(s)
  const text = await all(
    await s.open(`/v1/turns/turn_2/events?after=${endId(cursorAt('ses_1', 50), newId('turn'))}`),
  )
  t.match(text, `data: {"after":"${cursorAt('ses_1', 50)}"}`)
})

t.test('pings keep a silent stream alive', async (t) => {
  const { open } = await serve(t, turnRow(), { pingMs: 20 })
  const stream = await open('/v1/sessions/ses_1/events')
  await until(stream, ': ping\n\n')
  t.match(await until(stream, ': ping\n\n'), /: ping/, 'the stream is pinged again and again')
})

t.test('a stream ends once its key may call no more, and stays open while nobody can tell', async (t) => {
  let refusal: BatonError | null = null
  const auth = {
    assertLocal() {},
    async authenticate() {
      if (refusal) throw refusal
      return { owner: 'local', admin: true, key_id: 'key_1' }
    },
  }
  const { open, opened } = await serve(t, turnRow(), { pingMs: 20, auth })
  for (const path of ['/v1/sessions/ses_1/events', '/v1/turns/turn_1/events']) {
    const stream = await open(path)
    refusal = new BatonError('unavailable', 'The store is away.')
    await until(stream, ': ping\n\n')
    await until(stream, ': ping\n\n')
    t.equal(await opened(), 1, 'still open')
    refusal = new BatonError('unauthenticated', 'The key was revoked.')
    await all(stream)
    await eventually(async () => (await opened()) === 0)
    refusal = null
  }
})

t.test(
  'a stream with events to send ends without waiting for a ping once its key may call no more',
  async (t) => {
    const auth = {
      assertLocal() {},
      async authenticate() {
        if (isRevoked) throw new BatonError('unauthenticated', 'The key was revoked.')
        return { owner: 'local', admin: true, key_id: 'key_1' }
      },
    }
    let isRevoked = false
    const s = await serve(t, turnRow(), { pingMs: 600_000, auth })
    let sent = 0
    scripted(async function* ({ signal }) {
      while (sent < 200 && !signal.aborted) {
        yield { events: [event('content.delta', ++sent)] }
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    })(s)
    const stream = await s.open('/v1/sessions/ses_1/events')
    await until(stream, 'event: content.delta')
    isRevoked = true
    await all(stream)
    t.ok(sent < 200, 'it ended before its source did')
  },
)

t.test(
  'the key of a stream with events to send is looked at once a second, not with each event',
  async (t) => {
    const asked: string[] = []
    let doing = 'opening'
    let look = async () => {}
    const auth = {
      assertLocal() {},
      async authenticate() {
        asked.push(doing)
        await look()
        return { owner: 'local', admin: true, key_id: 'key_1' }
      },
    }
    mock.timers.enable({ apis: ['setInterval'] })
    t.teardown(() => mock.timers.reset())
    const s = await serve(t, turnRow(), { pingMs: 600_000, auth })
    let now = 0
    const clock = mock.method(performance, 'now', () => now)
    t.teardown(() => clock.mock.restore())
    const stream = await s.open('/v1/sessions/ses_1/events')
    await until(stream, '\n\n')
    for (const [ms, text] of [
      [1000, 'first'],
      [1, 'second'],
      [1000, 'third'],
    ] as const) {
      now += ms
      doing = text
      await s.say('content.delta', 'turn_1', { text })
      await until(stream, `"${text}"`)
    }
    t.same(asked, ['opening', 'second'])
    now += 1001
    look = () => new Promise(() => {})
    await s.say('content.delta', 'turn_1', { text: 'fourth' })
    await until(stream, '"fourth"')
    now += 1001
    look = async () => {
      await new Promise(setImmediate)
      throw new BatonError('unauthenticated', 'The key was revoked.')
    }
    // The ping looks at the key, too: the event comes while that look is under way.
    mock.timers.tick(600_000)
    await s.say('content.delta', 'turn_1', { text: 'fifth' })
    t.notMatch(await all(stream), 'fifth', 'what comes after the end of the key does not reach its stream')
  },
)

t.test('a reader that is too slow for its buffer is told that it lagged, and its stream ends', async (t) => {
  const s = await serve(t, turnRow())
  scripted(async function* () {
    yield { events: [event('content.delta', 1)] }
    yield { lagged: true }
    yield { events: [event('content.delta', 2)] }
  })(s)
  t.match(
    await all(await s.open('/v1/turns/turn_1/events')),
    new RegExp(`id: ${cursorAt('ses_1', 1)}\n.*\n.*\n\n: lagged\n\n$`),
  )
})

t.test('a stream that ends before there was any event is an empty one', async (t) => {
  const s = await serve(t, turnRow())
  scripted(async function* () {})(s)
  t.equal(await all(await s.open('/v1/turns/turn_1/events')), '')
  // A head for a stream that has ended would be an error that nobody hears.
  await new Promise((resolve) => setTimeout(resolve, 30))
  t.equal((await s.call('GET', '/healthz')).status, 200)
})

t.test('a bus that fails in the middle ends the stream and nothing else', async (t) => {
  const lines: { msg: string }[] = []
  const log = pino({ level: 'warn' }, { write: (line) => void lines.push(JSON.parse(line)) })
  const s = await serve(t, turnRow(), { log })
  scripted(async function* () {
    yield { events: [event('content.delta', 1)] }
    throw new BatonError('unavailable', 'The event bus is away.')
  })(s)
  t.same(typesIn(await all(await s.open('/v1/turns/turn_1/events'))), ['content.delta'])
  t.match(lines, [{ msg: 'an event stream broke', err: { message: /bus is away/ } }])
  t.equal((await s.call('GET', '/healthz')).status, 200)
})

t.test('a bus that fails as a reader leaves is no news', async (t) => {
  const { opened: over, open: end } = gate()
  const s = await serve(t, turnRow(), {
    log: pino({ level: 'warn' }, { write: (line) => void t.fail(line) }),
  })
  scripted(async function* ({ signal }) {
    yield { events: [event('content.delta', 1)] }
    await aborted(signal)
    setImmediate(end)
    throw new BatonError('unavailable', 'The event bus is away.')
  })(s)
  const stream = await s.open('/v1/turns/turn_1/events')
  stream.destroy()
  await over
})

t.test('events that are there together are sent in few writes', async (t) => {
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
