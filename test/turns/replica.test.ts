import { mock } from 'node:test'
import t, { type Test } from 'tap'
import type { Message } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { createHistories, wholeHistory } from '../../src/turns/histories.ts'
import { createRoom, createSlots, type Lateness, watchLateness } from '../../src/turns/room.ts'

// ---------------------------------------------------------------- what it takes

const NEVER = new AbortController().signal

const refusal = (work: () => unknown): BatonError | null => {
  try {
    work()
  } catch (thrown) {
    if (thrown instanceof BatonError) return thrown
    throw thrown
  }
  return null
}

t.test('turns that are being opened, run or wait share one limit', async (t) => {
  const slots = createSlots(1)
  const room = createRoom(slots, 3, { isBehind: () => false, close() {} })
  const giveBack = await slots.take('one', NEVER)
  const second = slots.take('two', NEVER)
  const leave = room.enter()
  const refused = refusal(() => room.enter())
  t.match(refused, { code: 'unavailable', status: 503, retryAfter: 2 })
  leave()
  room.enter()()
  giveBack()
  ;(await second)()
  t.equal(slots.count(), 0)
  const all = [room.enter(), room.enter(), room.enter()]
  t.match(
    refusal(() => room.enter()),
    { code: 'unavailable' },
  )
  for (const one of all) one()
})

t.test('a replica opens more than 32 turns at once only while its event loop keeps up', async (t) => {
  let isBehind = true
  const lateness: Lateness = { isBehind: () => isBehind, close() {} }
  const room = createRoom(createSlots(1000), 1000, lateness)
  const leaves = Array.from({ length: 32 }, () => room.enter())
  t.match(
    refusal(() => room.enter()),
    { code: 'unavailable', status: 503, retryAfter: 1 },
  )
  leaves.pop()?.()
  t.doesNotThrow(() => room.enter())
  isBehind = false
  t.doesNotThrow(() => room.enter())
})

/** A simulated machine: the test says how much time passes, and what share of a processor the process gets. */
function machine(t: Test): { pass(ms: number, share: number): void } {
  let now = 0
  let used = 0
  mock.timers.enable({ apis: ['setInterval'] })
  mock.method(performance, 'now', () => now)
  mock.method(process, 'cpuUsage', () => ({ user: used * 300, system: used * 700 }))
  t.teardown(() => {
    mock.timers.reset()
    mock.restoreAll()
  })
  return {
    pass(ms, share) {
      now += ms
      used += ms * share
      // One tick, however much time passed: a late interval fires once for all the looks that it missed.
      mock.timers.tick(SAMPLE_MS)
    },
  }
}
/** How often the replica looks; it judges by the last 20 looks. */
const SAMPLE_MS = 50

t.test('a process that is often late is behind; one long task or a busy machine does not count', (t) => {
  const { pass } = machine(t)
  const lateness = watchLateness(20)
  t.teardown(lateness.close)
  pass(200, 1)
  t.notOk(lateness.isBehind(), 'one long task is not behind')
  for (let i = 0; i < 20; i++) pass(SAMPLE_MS + 19, 1)
  t.notOk(lateness.isBehind(), 'a little late is not behind')
  for (let i = 0; i < 20; i++) pass(200, 0.4)
  t.notOk(lateness.isBehind(), 'late because others had the processor is not behind')
  for (let i = 0; i < 9; i++) {
    pass(100, 1)
    pass(SAMPLE_MS, 1)
  }
  t.notOk(lateness.isBehind())
  pass(100, 0.6)
  t.ok(lateness.isBehind(), 'late every other time is behind')
  pass(SAMPLE_MS, 1)
  pass(SAMPLE_MS, 1)
  t.notOk(lateness.isBehind(), 'lateness of long ago is forgotten')
  t.end()
})

// ---------------------------------------------------------------- what it keeps

const message = (seq: number, words = 'x'.repeat(700)): Message => ({
  id: `msg_${seq}`,
  session_id: 'ses_1',
  turn_id: null,
  seq,
  role: 'user',
  parts: [{ type: 'text', text: words }],
  created_at: '2030-01-01T00:00:00.000Z',
})
const messages = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, i) => message(from + i))
/** Messages that tell when they are measured. */
const counted = (list: Message[], count: () => void): Message[] =>
  list.map(({ parts, ...rest }) => ({
    ...rest,
    get parts() {
      count()
      return parts
    },
  }))
const start = (history: Message[], rewrites: number) => ({ history, rewrites })

t.test('the kept history precedes the new messages unless the history was rewritten', async (t) => {
  const histories = createHistories()
  t.equal(histories.kept('ses_1'), undefined)
  histories.keep('ses_1', 3, messages(1, 4))
  const kept = histories.kept('ses_1')
  t.match(kept, { rewrites: 3, seq: 4 })
  const whole = wholeHistory(start(messages(5, 6), 3), kept)
  t.strictSame(
    whole.map(({ seq }) => seq),
    [1, 2, 3, 4, 5, 6],
  )
  whole.push(message(7))
  t.equal(kept?.messages.length, 4, 'the kept list is not the one that was handed out')
  const all = messages(1, 6)
  t.equal(wholeHistory(start(all, 4), kept), all)
  t.equal(wholeHistory(start(all, 0), undefined), all)
})

t.test('the least recently used history is dropped, and no history takes above a quarter', async (t) => {
  // A message counts about a thousand characters.
  const histories = createHistories(10_000)
  for (const session of ['a', 'b', 'c', 'd']) histories.keep(session, 0, messages(1, 2))
  histories.keep('a', 0, messages(1, 2))
  histories.keep('e', 0, messages(1, 2))
  t.strictSame(
    ['a', 'b', 'c', 'd', 'e'].filter((session) => histories.kept(session)),
    ['a', 'c', 'd', 'e'],
  )
  histories.keep('a', 0, messages(1, 3))
  t.equal(histories.kept('a'), undefined, 'a history above a quarter of the room is not kept')
  histories.keep('a', 0, [])
  t.equal(histories.kept('a'), undefined)
})

t.test('a history that is too long to be kept is not measured to its end', async (t) => {
  let measured = 0
  const histories = createHistories(10_000)
  histories.keep(
    'a',
    0,
    counted(messages(1, 1000), () => measured++),
  )
  t.equal(histories.kept('a'), undefined)
  t.equal(measured, 3, 'about a thousand characters each, and a quarter of the room')
})

t.test('a history that grows is measured by its new messages', async (t) => {
  let measured = 0
  const histories = createHistories(10_000)
  const long = counted(messages(1, 2), () => measured++)
  histories.keep('a', 0, long)
  histories.keep('a', 0, [...long, message(3)])
  t.equal(histories.kept('a'), undefined, 'the messages that were kept before count, too')
  histories.keep('a', 0, long)
  measured = 0
  histories.keep('a', 0, [...long, message(3, 'short')])
  t.equal(histories.kept('a')?.seq, 3)
  t.equal(measured, 0, 'no message is measured twice')
  for (const session of ['b', 'c', 'd']) histories.keep(session, 0, messages(1, 2))
  t.ok(histories.kept('a'), 'the kept messages count once')
  histories.keep('a', 1, messages(1, 3))
  t.equal(histories.kept('a'), undefined, 'a history that was rewritten is measured anew')
})
