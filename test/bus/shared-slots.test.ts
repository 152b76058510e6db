/** Slots that replicas share, where a message or an answer of Redis comes late, twice, or never. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createSharedSlots } from '../../src/bus/redis/slots.ts'

const ticket = (id: string) => ({ id, tool: 'read', most: 1 })

/** One replica's slots; a test gives the answers of Redis itself, or lets Redis be away. */
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
  const lines: string[] = []
  const log = pino({ base: null }, { write: (line) => void lines.push(JSON.parse(line).msg) })
  const slots = createSharedSlots({ link, scope: 'all', total: 10, replica: 'r1', leaseMs: 6_000, log })
  t.teardown(() => slots.close())
  const granted: string[] = []
  slots.onGranted((id) => granted.push(id))
  /** Whether this replica counts no call as running: then there is room for one. */
  const hasRoom = async () => {
    state.isAway = true
    return (await slots.enter(ticket('probe'), 0)) === 'in'
  }
  return { slots, asked, granted, state, hasRoom, lines }
}

t.test('a slot is held once, even if its grant comes before the answer, and twice', async (t) => {
  for (const isLost of [false, true]) {
    const { slots, asked, granted, state, hasRoom } = served(t)
    const entering = slots.enter(ticket('1'), 9)
    slots.hear('r1.1/1/read')
    slots.hear('r1.1/1/read')
    if (isLost) asked[0]?.reject(new Error('the answer was lost'))
    else asked[0]?.resolve(['line', '7'])
    t.equal(await entering, 'in')
    t.same(granted, [], 'the answer of enter tells the grant')
    state.isAway = true
    await slots.leave(ticket('1'))
    t.ok(await hasRoom(), 'the slot was counted once')
  }
})

t.test('a slot that is granted to a call in line is held, and told once', async (t) => {
  const { slots, asked, granted, hasRoom } = served(t)
  const entering = slots.enter(ticket('1'), 9)
  asked[0]?.resolve(['line', '7'])
  t.equal(await entering, 'line')
  slots.hear('r1.1/1/read')
  slots.hear('r1.1/1/read')
  t.same(granted, ['1'])
  t.notOk(await hasRoom())
})

t.test('a grant for a call that has left the line holds no slot', async (t) => {
  const { slots, asked, granted, hasRoom } = served(t)
  const entering = slots.enter(ticket('1'), 9)
  asked[0]?.resolve(['line', '7'])
  await entering
  void slots.leave(ticket('1'))
  slots.hear('r1.1/1/read')
  t.same(granted, [])
  t.ok(await hasRoom())
})

t.test('a renewal does not put a call in line that has no answer yet', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  const { slots, asked, granted } = served(t)
  const entering = slots.enter(ticket('1'), 9)
  mock.timers.tick(2_000)
  t.equal(asked.length, 1, 'else the call would stand before all others')
  asked[0]?.resolve(['line', '7'])
  await entering
  mock.timers.tick(2_000)
  t.same(asked[1]?.args.slice(3), ['line', '7', 'r1.1/1/read'])
  asked[1]?.resolve(['r1.1/1/read'])
  await new Promise(setImmediate)
  t.same(granted, ['1'], 'a renewal tells a grant whose message was lost')
})

t.test('a slot that a renewal takes again after its release is given back', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  const { slots, asked } = served(t)
  const entering = slots.enter(ticket('1'), 9)
  asked[0]?.resolve(['in', '7'])
  await entering
  mock.timers.tick(2_000)
  asked[1]?.resolve(['r1.1/1/read'])
  mock.timers.tick(2_000)
  await new Promise(setImmediate)
  t.equal(asked.length, 3, 'a call that runs keeps its slot')
  void slots.leave(ticket('1'))
  await new Promise(setImmediate)
  t.equal(asked.length, 4, 'the renewal has no answer yet: Redis does not know its script')
  asked[2]?.resolve(['r1.1/1/read'])
  await new Promise(setImmediate)
  t.same(asked[4]?.args.slice(3), ['r1.1/1/read'])
})

t.test('the log has one line while a full Redis refuses some operations and takes others', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { slots, asked, lines } = served(t)
  const use = async (isRefused: boolean) => {
    const entering = slots.enter(ticket('1'), 9)
    if (isRefused) asked.pop()?.reject(new Error('OOM command not allowed'))
    else asked.pop()?.resolve(['in', '7'])
    await entering
    const leaving = slots.leave(ticket('1'))
    await new Promise(setImmediate)
    asked.pop()?.resolve(1)
    await leaving
  }
  for (let i = 0; i < 3; i++) await use(true)
  t.same(lines, ['limits of tools are counted by each replica alone'])
  await use(false)
  mock.timers.tick(5_000)
  t.same(lines.slice(1), ['limits of tools are shared again'])
})
