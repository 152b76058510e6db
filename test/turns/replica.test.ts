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

t.test('turns that are opened, run or wait take room together', async (t) => {
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
  t.strictSame([slots.running(), slots.waiting()], [0, 0])
  const all = [room.enter(), room.enter(), room.enter()]
  t.match(
    refusal(() => room.enter()),
    { code: 'unavailable' },
  )
  for (const one of all) one()
})

t.test('a replica that is behind takes no more turns than a few', async (t) => {
  const lateness: Lateness = { isBehind: () => true, close() {} }
  const room = createRoom(createSlots(1000), 1000, lateness)
  const leaves = Array.from({ length: 32 }, () => room.enter())
  t.match(
    refusal(() => room.enter()),
    { code: 'unavailable', status: 503, retryAfter: 1 },
  )
  leaves.pop()?.()
  t.doesNotThrow(() => room.enter())
})

/** A machine in place of this one: time passes, and the process gets its share of a processor, as the test says. */
function machine(t: Test): { pass(ms: number, share: number): void } {
  let now = 0
  let used = 0
  mock.timers.enable({ apis: ['setInterval'] })
  mock.method(performance, 'now', () => now)
  mock.method(process, 'cpuUsage', () => ({ user: used * 1000, system: 0 }))
  t.teardown(() => {
    mock.timers.reset()
    mock.restoreAll()
  })
  return {
    pass(ms, share) {
      now += ms
      used += ms * share
      // However late: of an interval's looks that were missed one is made up for.
      mock.timers.tick(SAMPLE_MS)
    },
  }
}
const SAMPLE_MS = 5

t.test('late more often than not is behind; one long task is not, nor want of a processor', (t) => {
  const { pass } = machine(t)
  const lateness = watchLateness(20, SAMPLE_MS, 4)
  t.teardown(lateness.close)
  pass(200, 1)
  t.notOk(lateness.isBehind(), 'one long task')
  for (let i = 0; i < 4; i++) pass(SAMPLE_MS + 19, 1)
  t.notOk(lateness.isBehind(), 'a little late')
  for (let i = 0; i < 4; i++) pass(200, 0.4)
  t.notOk(lateness.isBehind(), 'others had the processor')
  pass(60, 1)
  pass(SAMPLE_MS, 1)
  t.notOk(lateness.isBehind())
  pass(60, 0.6)
  t.ok(lateness.isBehind(), 'every other time')
  pass(SAMPLE_MS, 1)
  pass(SAMPLE_MS, 1)
  t.notOk(lateness.isBehind(), 'what was long ago is forgotten')
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
const start = (history: Message[], rewrites: number) => ({ history, rewrites })

t.test('what is kept goes before what is new, while nothing was rewritten', async (t) => {
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
  t.equal(kept?.messages.length, 4, 'the list is its own')
  const all = messages(1, 6)
  t.equal(wholeHistory(start(all, 4), kept), all)
  t.equal(wholeHistory(start(all, 0), undefined), all)
})

t.test('the least recently used goes first, and nobody takes all the room', async (t) => {
  // A message counts about a thousand.
  const histories = createHistories(10_000)
  for (const session of ['a', 'b', 'c', 'd']) histories.keep(session, 0, messages(1, 2))
  histories.keep('a', 0, messages(1, 2))
  histories.keep('e', 0, messages(1, 2))
  t.strictSame(
    ['a', 'b', 'c', 'd', 'e'].filter((session) => histories.kept(session)),
    ['a', 'c', 'd', 'e'],
  )
  histories.keep('a', 0, messages(1, 3))
  t.equal(histories.kept('a'), undefined, 'more than a quarter')
  histories.keep('a', 0, [])
  t.equal(histories.kept('a'), undefined)
})

t.test('a history that goes on is measured by what is new', async (t) => {
  const histories = createHistories(10_000)
  const long = messages(1, 2)
  histories.keep('a', 0, long)
  histories.keep('a', 0, [...long, message(3)])
  t.equal(histories.kept('a'), undefined, 'all of it counts')
  histories.keep('a', 0, long)
  histories.keep('a', 0, [...long, message(3, 'short')])
  t.equal(histories.kept('a')?.seq, 3)
  for (const session of ['b', 'c', 'd']) histories.keep(session, 0, messages(1, 2))
  t.ok(histories.kept('a'), 'and counts once')
})
