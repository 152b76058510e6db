/** What event streams tell where the log no longer holds the events: a snapshot, and how they go on. */
import t from 'tap'
import { newId } from '../../src/chat/ids.ts'
import type { ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { NONE } from '../patterns.ts'
import { cursorAt } from './fake-bus.ts'
import {
  aborted,
  all,
  event,
  messageRow,
  scripted,
  serve,
  turnRow,
  typesIn,
  until,
} from './served-streams.ts'

t.test('a place that is no longer kept is answered with a snapshot, then live events', async (t) => {
  const s = await serve(t, turnRow())
  scripted(async function* () {
    yield { gap: true, cursor: cursorAt('ses_1', 50) }
    yield { events: [event('content.delta', 51), event('turn.completed', 52)] }
  })(s)
  const text = await all(await s.open(`/v1/turns/turn_1/events?after=${cursorAt('ses_1', 3)}`))
  t.same(typesIn(text), ['gap', 'content.delta', 'turn.completed'])
  const [, id, data = '{}'] = /id: (.*)\nevent: gap\ndata: (.*)\n/.exec(text) ?? []
  t.equal(id, `${cursorAt('ses_1', 50)}.1b.turn_1`)
  t.match(JSON.parse(data), {
    type: 'gap',
    session_id: 'ses_1',
    turn_id: 'turn_1',
    step: null,
    at: String,
    snapshot: { turn: { id: 'turn_1', state: 'running' }, messages: [{ id: 'msg_1' }] },
  })
  t.equal(JSON.parse(data).step, null, 'the field step is there, as in every event')
  t.notOk(
    'owner' in JSON.parse(data).snapshot.turn,
    'the turn is shown as callers read it, not as it is stored',
  )
})

t.test('the beginning of a turn is told once, also where the log was lost under the reader', async (t) => {
  const s = await serve(t, turnRow())
  const begin = (n: number) => [event('turn.created', n), event('turn.started', n + 1)]
  scripted(async function* () {
    yield { events: [...begin(1), event('content.delta', 3)] }
    yield { events: [...begin(4), event('step.discarded', 6)] }
    yield { gap: true, cursor: cursorAt('ses_1', 50) }
    yield { events: [...begin(51), event('turn.completed', 53)] }
  })(s)
  const types = typesIn(await all(await s.open('/v1/turns/turn_1/events')))
  const rest = ['content.delta', 'step.discarded', 'gap', 'turn.completed']
  t.same(types, ['turn.created', 'turn.started', ...rest])
})

t.test('the beginning of a turn that a snapshot does not show is told after it', async (t) => {
  const s = await serve(t, turnRow({ state: 'queued', started_at: null }))
  scripted(async function* () {
    yield { gap: true, cursor: cursorAt('ses_1', 50) }
    yield { events: [event('turn.created', 51), event('turn.started', 52), event('turn.completed', 53)] }
  })(s)
  const types = typesIn(await all(await s.open(`/v1/turns/turn_1/events?after=${cursorAt('ses_1', 3)}`)))
  t.same(types, ['gap', 'turn.started', 'turn.completed'])
})

t.test('a stream ends with a gap where its session was deleted since', async (t) => {
  for (const path of ['/v1/turns/turn_1/events', '/v1/sessions/ses_1/events']) {
    const s = await serve(t, turnRow())
    scripted(async function* ({ signal }) {
      Object.assign(s.store.sessions, { get: async () => null })
      Object.assign(s.store.turns, { get: async () => null })
      yield { gap: true, cursor: cursorAt('ses_1', 50) }
      await aborted(signal)
    })(s)
    t.same(typesIn(await all(await s.open(path))), ['gap'], path)
  }
})

t.test('a snapshot shows its turn as it is at the gap, not as it was when the reader came', async (t) => {
  const turn = turnRow({ id: newId('turn') })
  const s = await serve(t, turn)
  scripted(async function* ({ signal }) {
    Object.assign(turn, { state: 'completed', ended_at: '2030-01-01T00:00:09.000Z' })
    yield { gap: true, cursor: cursorAt('ses_1', 50) }
    await aborted(signal)
  })(s)
  const text = await all(await s.open(`/v1/turns/${turn.id}/events`))
  t.match(text, /event: gap\ndata: .*"state":"completed"/, 'nothing follows the snapshot')
})

t.test('a turn that ended in the queue, and whose log is gone, is told by a snapshot, too', async (t) => {
  const fields = { state: 'cancelled', started_at: null, ended_at: '2030-01-01T00:00:09.000Z' } as const
  const s = await serve(t, turnRow(fields))
  scripted(async function* ({ begun }) {
    if (begun) yield { gap: true, cursor: cursorAt('ses_1', 50) }
  })(s)
  const text = await all(await s.open('/v1/turns/turn_1/events'))
  t.match(text, /event: gap\ndata: .*"state":"cancelled"/)
})

t.test(
  "a session's snapshot holds the turn that is active, else the latest one, and all messages",
  async (t) => {
    const s = await serve(t, turnRow())
    const idle = { id: 'ses_1', owner: 'local', active_turn_id: null }
    Object.assign(s.store.sessions, { get: async () => idle })
    scripted(async function* () {
      yield { gap: true, cursor: cursorAt('ses_1', 50) }
    })(s)
    const text = await all(await s.open(`/v1/sessions/ses_1/events?after=${cursorAt('ses_1', 3)}`))
    t.match(JSON.parse(/data: (.*)/.exec(text)?.[1] ?? '{}'), {
      snapshot: { turn: { id: 'turn_1' }, messages: [{ id: 'msg_1' }] },
    })
    const waits = await serve(
      t,
      turnRow({ id: 'turn_2', state: 'queued' }),
      {},
      turnRow({ state: 'awaiting_input' }),
    )
    scripted(async function* () {
      yield { gap: true, cursor: cursorAt('ses_1', 50) }
    })(waits)
    t.match(
      await all(await waits.open(`/v1/sessions/ses_1/events?after=${cursorAt('ses_1', 3)}`)),
      /"turn":{"id":"turn_1"/,
    )
  },
)

t.test('the snapshot of a session that has had no turn yet has none, and its reader goes on', async (t) => {
  const s = await serve(t, turnRow())
  Object.assign(s.store.sessions, {
    get: async () => ({ id: 'ses_1', owner: 'local', active_turn_id: null }),
  })
  Object.assign(s.store.turns, { list: async () => ({ data: [], next_cursor: null }) })
  Object.assign(s.store.messages, { after: async () => [] })
  scripted(async function* () {
    yield { gap: true, cursor: cursorAt('ses_1', 50) }
    yield { events: [event('turn.created', 51)] }
  })(s)
  const text = await all(await s.open(`/v1/sessions/ses_1/events?after=${cursorAt('ses_1', 3)}`))
  t.same(typesIn(text), ['gap', 'turn.created'])
  t.match(text, `id: ${cursorAt('ses_1', 50)}.0\n`, 'an id to come back with')
  t.match(text, '"turn_id":null,')
  t.match(JSON.parse(/data: (.*)/.exec(text)?.[1] ?? '{}'), { snapshot: { turn: null, messages: NONE } })
})

t.test('a session of too many messages shows those of its turn, and its reader goes on', async (t) => {
  const s = await serve(t, turnRow({ id: newId('turn') }))
  let refusal = new BatonError('context_too_long', 'More than 128 MiB.')
  Object.assign(s.store.messages, { after: () => Promise.reject(refusal) })
  scripted(async function* ({ after }) {
    if (after === cursorAt('ses_1', 3)) yield { gap: true, cursor: cursorAt('ses_1', 50) }
    yield { events: [event('turn.completed', 51)] }
  })(s)
  const lost = await all(await s.open(`/v1/sessions/ses_1/events?after=${cursorAt('ses_1', 3)}`))
  t.same(typesIn(lost), ['gap', 'turn.completed'])
  t.match(JSON.parse(/data: (.*)/.exec(lost)?.[1] ?? '{}'), { snapshot: { messages: [{ id: 'msg_1' }] } })
  const [, gap = ''] = /id: (.*)\nevent: gap/.exec(lost) ?? []
  const again = await all(await s.open(`/v1/sessions/ses_1/events?after=${gap}`))
  t.same(typesIn(again), ['turn.completed'], 'a reader that comes back with the id of the gap goes on, too')
  const told = async () => all(await s.open(`/v1/sessions/ses_1/events?after=${cursorAt('ses_1', 3)}`))
  Object.assign(s.store.sessions, { get: async () => ({ id: 'ses_1', active_turn_id: null }) })
  Object.assign(s.store.turns, { list: async () => ({ data: [], next_cursor: null }) })
  t.match(await told(), '"snapshot":{"turn":null,"messages":[]}', 'also if it has had no turn')
  refusal = new BatonError('unavailable', 'The store is away.')
  t.same(typesIn(await told()), [], 'messages that cannot be read are not shown as if there were none')
})

const ANSWER = [
  'step.started',
  'step.discarded',
  'turn.restarted',
  'content.delta',
  'reasoning.delta',
  'tool_call.delta',
  'tool_call',
  'usage',
  'message',
  'step.completed',
]
const CALL = [
  'approval.required',
  ...['started', 'progress', 'completed'].map((end) => `tool_execution.${end}`),
]
const RESULT: ToolResultPart = {
  type: 'tool_result',
  call_id: 'call_1',
  name: 'x',
  content: [],
  is_error: false,
  outcome: 'ok',
}

t.test('events that the snapshot of a gap shows already are not told after it', async (t) => {
  const s = await serve(t, turnRow())
  const call = (call_id: string): ToolCallPart => ({ type: 'tool_call', call_id, name: 'x', arguments: {} })
  const messages = [
    messageRow(),
    messageRow({ id: 'msg_2', role: 'assistant', parts: [call('call_1')] }),
    messageRow({ id: 'msg_3', role: 'tool', parts: [RESULT] }),
    messageRow({ id: 'msg_4', role: 'assistant', parts: [call('call_2')] }),
  ]
  Object.assign(s.store.messages, { ofTurn: async () => messages })
  let n = 50
  const events = (types: string[], fields: object) => ({
    events: types.map((type) => event(type, ++n, fields)),
  })
  const told = { step: 0, call_id: 'call_1' }
  scripted(async function* () {
    yield { gap: true, cursor: cursorAt('ses_1', n) }
    yield events(ANSWER, { step: 0, message: { id: 'msg_2' } })
    yield events(CALL, told)
    yield events(['message'], { step: 0, message: { id: 'msg_3' } })
    yield events(['tools.changed'], told)
    yield events(ANSWER, { step: 1, message: { id: 'msg_4' } })
    yield events(CALL, { step: 1, call_id: 'call_2' })
    yield events(ANSWER, { step: 2, message: { id: 'msg_5' } })
    yield events(['turn.completed'], { step: null })
  })(s)
  const types = typesIn(await all(await s.open('/v1/turns/turn_1/events')))
  t.strictSame(types, ['gap', 'tools.changed', ...CALL, ...ANSWER, 'turn.completed'])
})

t.test("of a turn that has ended in a session's snapshot only changes of tools follow it", async (t) => {
  const s = await serve(t, turnRow({ state: 'completed', ended_at: '2030-01-01T00:00:09.000Z' }))
  scripted(async function* () {
    yield { gap: true, cursor: cursorAt('ses_1', 50) }
    yield {
      events: ['content.delta', 'tools.changed', 'turn.completed'].map((type, i) => event(type, 51 + i)),
    }
    yield { events: [{ ...event('turn.created', 54), turn_id: 'turn_2' }] }
  })(s)
  const told = typesIn(await all(await s.open(`/v1/sessions/ses_1/events?after=${cursorAt('ses_1', 3)}`)))
  t.strictSame(told, ['gap', 'tools.changed', 'turn.created'])
})

t.test('a reader that comes back right after a gap is not told again what the gap showed', async (t) => {
  const turn = turnRow({ id: newId('turn') })
  const s = await serve(t, turn)
  const user = messageRow({ turn_id: turn.id })
  const answer = messageRow({ id: 'msg_2', seq: 2, role: 'assistant', turn_id: turn.id })
  const result = messageRow({ id: 'msg_3', seq: 3, role: 'tool', parts: [RESULT], turn_id: turn.id })
  let messages = [user]
  Object.assign(s.store.messages, { ofTurn: async () => messages, after: async () => messages })
  const said = (type: string, n: number, fields: object) => ({
    ...event(type, n, { step: 0, ...fields }),
    turn_id: turn.id,
  })
  scripted(async function* ({ after }) {
    if (after === cursorAt('ses_1', 3)) yield { gap: true, cursor: cursorAt('ses_1', 50) }
    else t.equal(after, cursorAt('ses_1', 50), 'the log goes on at its own place')
    yield { events: [said('turn.created', 51, {}), said('turn.started', 52, {})] }
    yield { events: ANSWER.map((type, i) => said(type, 53 + i, { message: answer })) }
    yield { events: [said('message', 70, { message: result }), said('turn.completed', 71, {})] }
  })(s)
  for (const path of [`/v1/turns/${turn.id}/events`, '/v1/sessions/ses_1/events']) {
    const resume = async (id: string) => all(await s.open(path, { 'last-event-id': id }))
    const behind = async () => {
      const [, id = ''] = /id: (.*)\nevent: gap\n/.exec(await resume(cursorAt('ses_1', 3))) ?? []
      // Messages that are stored afterwards were not shown.
      messages = [user, answer, result]
      Object.assign(turn, { state: 'running', started_at: '2030-01-01T00:00:00.000Z' })
      return typesIn(await resume(id))
    }
    Object.assign(turn, { state: 'queued', started_at: null })
    messages = [user]
    t.strictSame(await behind(), ['turn.started', ...ANSWER, 'message', 'turn.completed'], path)
    messages = [user, answer]
    t.strictSame(await behind(), ['message', 'turn.completed'], path)
  }
  Object.assign(turn, { state: 'completed', ended_at: '2030-01-01T00:00:09.000Z' })
  const [, id = ''] =
    /id: (.*)/.exec(await all(await s.open(`/v1/sessions/ses_1/events?after=${cursorAt('ses_1', 3)}`))) ?? []
  t.strictSame(
    typesIn(await all(await s.open(`/v1/sessions/ses_1/events?after=${id}`))),
    [],
    'the snapshot showed all of it',
  )
  const over = await s.open(`/v1/turns/${turn.id}/events`, { 'last-event-id': id })
  t.equal(over.statusCode, 204, 'the same id is past the end of its turn')
  over.resume()
})

t.test('the head is sent even if all events so far were told before', async (t) => {
  const turn = turnRow({ id: newId('turn') })
  // Else a ping would bring the head along.
  const s = await serve(t, turn, { pingMs: 2 ** 28 })
  scripted(async function* ({ signal }) {
    yield { events: [{ ...event('turn.started', 51), turn_id: turn.id }] }
    await aborted(signal)
  })(s)
  const behind = `${cursorAt('ses_1', 50)}.1b.${turn.id}`
  const stream = await s.open(`/v1/turns/${turn.id}/events`, { 'last-event-id': behind })
  t.equal(await until(stream, '\n\n'), ': baton\n\n')
})
