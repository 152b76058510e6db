/** Slots that replicas share, where what Redis says comes late, twice, or never. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createSharedSlots } from '../../src/bus/redis/slots.ts'

const ticket = (id: string) => ({ id, tool: 'read', most: 1, total: 10 })

/** One replica's slots; a test answers what they ask of Redis, or lets it be away. */
function served(t: Test) {
  const asked: { args: (string | number)[]; resolve(answer: unknown): void; reject(error: Error): void }[] =
    []
  const state = { isAway: false }
  const link = {
    database: 0,
    subscribe: async () => {},
    run: (_: unknown, __: string[], args: (string | number)[]) =>
      state.isAway
        ? Promise.reject(new Error('away'))
        : new Promise((resolve, reject) => asked.push({ args, resolve, reject })),
  }
  const log = pino({ level: 'silent' })
  const slots = createSharedSlots({ link, scope: 'all', replica: 'r1', leaseMs: 6_000, log })
  t.teardown(() => slots.close())
  const granted: string[] = []
  slots.onGranted((id) => granted.push(id))
  /** How many calls this replica counts as running, by whether there is room for one more. */
  const hasRoom = async () => {
    state.isAway = true
    return (await slots.enter(ticket('probe'), 0)) === 'in'
  }
  return { slots, asked, granted, state, hasRoom }
}

t.test('a grant may come before the answer to its question, and twice', async (t) => {
  for (const isLost of [false, true]) {
    const { slots, asked, granted, state, hasRoom } = served(t)
    const entering = slots.enter(ticket('1'), 9)
    slots.hear('r1.1/1/read')
    slots.hear('r1.1/1/read')
    if (isLost) asked[0]?.reject(new Error('the answer was lost'))
    else asked[0]?.resolve(['line', '7'])
    t.equal(await entering, 'in')
    t.same(granted, [], 'the answer tells it')
    state.isAway = true
    await slots.leave(ticket('1'))
    t.ok(await hasRoom(), 'it was counted once')
  }
})

t.test('a slot that was granted in line is held, and told once', async (t) => {
  const { slots, asked, granted, hasRoom } = served(t)
  const entering = slots.enter(ticket('1'), 9)
  asked[0]?.resolve(['line', '7'])
  t.equal(await entering, 'line')
  slots.hear('r1.1/1/read')
  slots.hear('r1.1/1/read')
  t.same(granted, ['1'])
  t.notOk(await hasRoom())
})

t.test('a grant for who has left the line holds nothing', async (t) => {
  const { slots, asked, granted, hasRoom } = served(t)
  const entering = slots.enter(ticket('1'), 9)
  asked[0]?.resolve(['line', '7'])
  await entering
  void slots.leave(ticket('1'))
  slots.hear('r1.1/1/read')
  t.same(granted, [])
  t.ok(await hasRoom())
})

t.test('who has no answer yet is not put in line by a renewal', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  const { slots, asked, granted } = served(t)
  const entering = slots.enter(ticket('1'), 9)
  mock.timers.tick(2_000)
  t.equal(asked.length, 1, 'else it would stand there before all others')
  asked[0]?.resolve(['line', '7'])
  await entering
  mock.timers.tick(2_000)
  t.same(asked[1]?.args.slice(3), ['line', '7', 'r1.1/1/read'])
  asked[1]?.resolve(['r1.1/1/read'])
  await new Promise(setImmediate)
  t.same(granted, ['1'], 'and a grant whose word was lost is told by one')
})
