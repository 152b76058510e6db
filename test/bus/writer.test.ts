import { deepStrictEqual } from 'node:assert'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import type { Bus, BusEvent } from '../../src/bus/bus.ts'
import { createMemoryBus } from '../../src/bus/memory.ts'
import { createWriter } from '../../src/bus/writer.ts'
import type { TurnEvent, TurnEventBody } from '../../src/chat/event.ts'
import { BatonError } from '../../src/errors.ts'
import { heldClock } from '../waiting.ts'

const event = (body: TurnEventBody, step = 0): TurnEvent => ({
  ...body,
  session_id: 'ses_1',
  turn_id: 'turn_1',
  step,
  at: '2026-01-01T00:00:00.000Z',
})
const content = (text: string, step = 0) => event({ type: 'content.delta', text }, step)
const reasoning = (text: string) => event({ type: 'reasoning.delta', text })
const call = (call_id: string, arguments_delta: string) =>
  event({ type: 'tool_call.delta', call_id, name: 'x', arguments_delta })
const started = event({ type: 'turn.started' })

/** A bus whose appends a test settles by hand, and a writer on it. */
function held(t: Test, flushMs: number) {
  const memory = createMemoryBus()
  t.teardown(() => memory.close())
  const appends: { events: BusEvent[]; done(): void; fail(error: unknown): void }[] = []
  const bus: Bus = {
    ...memory,
    append: (_, events) =>
      new Promise((resolve, reject) => {
        appends.push({ events, done: resolve, fail: reject })
      }),
  }
  return { bus, appends, writer: createWriter(bus, 'ses_1', { flushMs, epoch: 1 }) }
}
/** Two rounds of the loop, since an append that is planned in one goes out in the next. */
const turnOfTheLoop = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
const told = (events: readonly BusEvent[] = []) =>
  events.map(({ data }) => {
    const { type, text, arguments_delta } = JSON.parse(data)
    return `${type}:${text ?? arguments_delta ?? ''}`
  })

t.test('deltas of one tick go out at once, together, as one event', async (t) => {
  const { appends, writer } = held(t, 60_000)
  for (const text of ['a', 'b', 'c']) writer.delta(content(text))
  await turnOfTheLoop()
  t.equal(appends.length, 1)
  t.same(JSON.parse(appends[0]?.events[0]?.data ?? ''), content('abc'), 'the whole event, encoded')
  t.match(appends[0]?.events, [{ type: 'content.delta', turn_id: 'turn_1', epoch: 1, again: false }])
})

t.test('events during an append go with the next; deltas of one kind, call, step are joined', async (t) => {
  const { appends, writer } = held(t, 0)
  writer.delta(content('first'))
  await turnOfTheLoop()
  writer.delta(content('a'))
  writer.delta(content('b'))
  writer.delta(reasoning('c'))
  writer.delta(reasoning('d'))
  writer.delta(call('call_1', 'e'))
  writer.delta(call('call_1', 'f'))
  writer.delta(call('call_2', 'g'))
  writer.delta(content('h'))
  writer.delta(content('i', 1))
  const said = writer.emit(started, 'turn_1:started', true)
  writer.delta(content('j', 1))
  await turnOfTheLoop()
  t.equal(appends.length, 1)
  appends[0]?.done()
  await turnOfTheLoop()
  t.same(told(appends[1]?.events), [
    'content.delta:ab',
    'reasoning.delta:cd',
    'tool_call.delta:ef',
    'tool_call.delta:g',
    'content.delta:h',
    'content.delta:i',
    'turn.started:',
    'content.delta:j',
  ])
  t.match(appends[1]?.events[6], { once: 'turn_1:started', lost: true })
  t.notOk(appends[1]?.events[7]?.lost)
  appends[1]?.done()
  await said
})

t.test('later deltas are held for flushMs after the last ones; other events go at once', async (t) => {
  const { bus, appends, writer } = held(t, 60_000)
  writer.delta(content('first'))
  await turnOfTheLoop()
  appends[0]?.done()
  await turnOfTheLoop()
  writer.delta(content('a'))
  await turnOfTheLoop()
  writer.delta(content('b'))
  await turnOfTheLoop()
  t.equal(appends.length, 1, 'the later deltas are held')
  void writer.emit(started)
  await turnOfTheLoop()
  t.same(told(appends[1]?.events), ['content.delta:ab', 'turn.started:'])
  appends[1]?.done()
  await turnOfTheLoop()
  writer.delta(content('of the next part'))
  await turnOfTheLoop()
  appends[2]?.done()
  await turnOfTheLoop()
  writer.delta(content('c'))
  await turnOfTheLoop()
  t.equal(appends.length, 3, 'a later delta is held again afterwards')
  void writer.flush()
  appends[3]?.done()

  const quick = createWriter(bus, 'ses_1', { flushMs: 3, epoch: 1 })
  quick.delta(content('first'))
  await turnOfTheLoop()
  appends[4]?.done()
  await turnOfTheLoop()
  quick.delta(content('a'))
  while (appends.length < 6) await turnOfTheLoop()
  t.same(told(appends[5]?.events), ['content.delta:a'], 'a delta is held until flushMs is over')
})

t.test('the first delta of a part goes at once; held deltas of many turns go in one tick', async (t) => {
  const pass = heldClock(t)
  const { bus, appends, writer } = held(t, 200)
  const others = [2, 3].map((i) => createWriter(bus, `ses_${i}`, { flushMs: 200, epoch: 1 }))
  const writers = [writer, ...others]
  for (const writer of writers) {
    const said = appends.length
    writer.delta(content('first'))
    await turnOfTheLoop()
    t.equal(appends.length, said + 1)
    appends[said]?.done()
    await turnOfTheLoop()
  }
  for (const text of ['later', 'later still']) {
    const said = appends.length
    for (const writer of writers) writer.delta(content(text))
    await pass(199)
    t.equal(appends.length, said)
    await pass(1)
    t.equal(appends.length, said + 3)
    for (const append of appends.slice(said)) append.done()
    await turnOfTheLoop()
  }
  for (const writer of writers) writer.delta(content('at last'))
  void writer.emit(started)
  await turnOfTheLoop()
  t.equal(appends.length, 10, 'an event takes along what its own turn holds')
  appends[9]?.done()
  await turnOfTheLoop()
  writer.delta(content('of the next part'))
  await turnOfTheLoop()
  t.equal(appends.length, 11)
  await pass(200)
  t.equal(appends.length, 13, 'what the other turns hold goes out all the same')
  for (const append of appends) append.done()
})

t.test('whatever the timing, no event is lost, doubled or put out of order', async (t) => {
  const step = fc.oneof(
    {
      weight: 5,
      arbitrary: fc.record({
        kind: fc.constantFrom('content', 'reasoning', 'one', 'two'),
        text: fc.string(),
      }),
    },
    { weight: 1, arbitrary: fc.constant('emit' as const) },
    { weight: 2, arbitrary: fc.constant('tick' as const) },
    { weight: 2, arbitrary: fc.constant('done' as const) },
  )
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
      const { appends, writer } = held(t, 0)
      const input: { name: string; text: string }[] = []
      let settled = 0
      for (const [i, action] of steps.entries()) {
        if (action === 'tick') await turnOfTheLoop()
        else if (action === 'done' && settled < appends.length) appends[settled++]?.done()
        else if (action === 'done') continue
        else if (action === 'emit') {
          input.push({ name: 'turn.started', text: String(i) })
          void writer.emit({ ...started, at: String(i) })
        } else {
          input.push({ name: action.kind, text: action.text })
          if (action.kind === 'content') writer.delta(content(action.text))
          else if (action.kind === 'reasoning') writer.delta(reasoning(action.text))
          else writer.delta(call(action.kind, action.text))
        }
      }
      const closing = writer.close()
      while (true) {
        for (; settled < appends.length; settled++) appends[settled]?.done()
        if ((await Promise.race([closing.then(() => 'closed'), turnOfTheLoop()])) === 'closed') break
      }
      const output = appends.flatMap(({ events }) =>
        events.map(({ type, data }) => {
          const said = JSON.parse(data)
          if (type === 'turn.started') return { name: type, text: said.at }
          return { name: said.call_id ?? type.split('.')[0], text: said.text ?? said.arguments_delta }
        }),
      )
      deepStrictEqual(runs(output), runs(input))
    }),
    { numRuns: 50 },
  )
})

/** Joins neighbours of one name, which the writer may merge. */
function runs(list: { name: string; text: string }[]) {
  const joined: { name: string; text: string }[] = []
  for (const { name, text } of list) {
    const last = joined.at(-1)
    if (last?.name === name && name !== 'turn.started') last.text += text
    else joined.push({ name, text })
  }
  return joined
}

t.test('a loss rejects the emit that is awaited and the close, and nothing else', async (t) => {
  const { appends, writer } = held(t, 0)
  const away = new BatonError('unavailable', 'The event bus is away.')
  writer.delta(content('a'))
  // Nobody awaits this one: its rejection must not end the process.
  void writer.emit(started)
  const listened = writer.emit(started)
  await turnOfTheLoop()
  appends[0]?.fail(away)
  await t.rejects(listened, away)
  writer.delta(content('b'))
  const flushed = writer.flush()
  await turnOfTheLoop()
  t.same(told(appends[1]?.events), ['content.delta:b'], 'the writer goes on with the next delta')
  appends[1]?.done()
  await flushed
  await t.rejects(writer.close(), away, 'a delta was lost')
  await t.rejects(writer.emit(started), { code: 'internal' }, 'a closed writer says nothing more')
  writer.delta(content('late'))
  await turnOfTheLoop()
  t.equal(appends.length, 2)
})

t.test('a close sends what is held, and waits until it is in the log', async (t) => {
  const { appends, writer } = held(t, 60_000)
  writer.delta(content('first'))
  await turnOfTheLoop()
  appends[0]?.done()
  await turnOfTheLoop()
  writer.delta(content('later'))
  let isClosed = false
  const closing = writer.close().then(() => {
    isClosed = true
  })
  await turnOfTheLoop()
  t.same(told(appends[1]?.events), ['content.delta:later'])
  t.notOk(isClosed)
  appends[1]?.done()
  await closing
})

t.test('a close during an append sends the rest after it, and waits for both', async (t) => {
  const { appends, writer } = held(t, 0)
  writer.delta(content('first'))
  await turnOfTheLoop()
  void writer.emit(started)
  let isClosed = false
  const closing = writer.close().then(() => {
    isClosed = true
  })
  await turnOfTheLoop()
  t.equal(appends.length, 1)
  appends[0]?.done()
  await turnOfTheLoop()
  t.same(told(appends[1]?.events), ['turn.started:'])
  t.notOk(isClosed)
  appends[1]?.done()
  await closing
})

t.test('after a loss a flush marks the log, since the process may die and nobody else knows', async (t) => {
  const { appends, writer } = held(t, 0)
  writer.delta(content('a'))
  const flushed = writer.flush()
  await turnOfTheLoop()
  appends[0]?.fail(new BatonError('unavailable', 'The event bus is away.'))
  await turnOfTheLoop()
  t.same(told(appends[1]?.events), [], 'the mark is an append without events')
  t.ok(writer.isBroken())
  appends[1]?.done()
  await flushed
  t.notOk(writer.isBroken())
  await writer.flush()
  t.equal(appends.length, 2, 'the log is marked once')
})

t.test('through a bus in memory events are read in order, and a repeated event once', async (t) => {
  const bus = createMemoryBus()
  t.teardown(() => bus.close())
  const writer = createWriter(bus, 'ses_1', { flushMs: 0, epoch: 1 })
  for (const _ of ['said', 'repeated']) {
    await writer.emit(event({ type: 'turn.created' }), 'turn_1:created')
  }
  writer.delta(content('a'))
  writer.delta(content('b'))
  void writer.emit(event({ type: 'turn.cancelled' }), 'turn_1:end')
  await writer.close()
  const texts: string[] = []
  const options = { turn: 'turn_1', after: 'start', signal: new AbortController().signal }
  for await (const item of bus.read('ses_1', options)) if ('events' in item) texts.push(...told(item.events))
  t.same(texts, ['turn.created:', 'content.delta:ab', 'turn.cancelled:'])
})
