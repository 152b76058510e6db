import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import { createRoom, type Pace, watchPace } from '../../src/turns/room.ts'
import { createSlots } from '../../src/turns/slots.ts'

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

t.test('a replica that is behind takes no turn, however few it has', async (t) => {
  const pace: Pace = { isBehind: () => true, close() {} }
  const room = createRoom(createSlots(10), 10, pace)
  t.match(
    refusal(() => room.enter()),
    { code: 'unavailable', status: 503, retryAfter: 1 },
  )
})

t.test('late without a pause is behind; one long task is not', async (t) => {
  const pace = watchPace(20, 5, 4)
  t.teardown(pace.close)
  block(200)
  await sleep(6)
  t.notOk(pace.isBehind(), 'one long task')
  for (let i = 0; i < 20 && !pace.isBehind(); i++) {
    block(60)
    // As many timers as are due run, then the next task blocks them again.
    await new Promise(setImmediate)
  }
  t.ok(pace.isBehind(), 'one after the other')
  while (pace.isBehind()) await sleep(10)
})

function block(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end; );
}
