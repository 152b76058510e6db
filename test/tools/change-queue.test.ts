import t from 'tap'
import type { ToolsMove } from '../../src/ports.ts'
import type { Session } from '../../src/store/store.ts'
import { createChangeQueue } from '../../src/tools/change-queue.ts'
import { gate, heldClock } from '../waiting.ts'

t.test(
  'changes that are to hold at once take effect together although a busy store writes them slowly',
  async (t) => {
    const pass = heldClock(t)
    const effects: string[][] = []
    const queue = createChangeQueue(async (_, { removed }) => {
      effects.push(removed)
      return { effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null }
    })
    const session = { id: 'ses_1' } as Session
    const changes = ['one', 'two', 'three', 'four'].map((name) => {
      const { opened, open } = gate()
      const told = queue
        .take(session.id, () => opened)
        .then(() => queue.applyNow(session, { tools_revision: 1, removed: [name], isMoved: true }))
      return { open, told }
    })
    for (const { open } of changes) {
      open()
      await pass(900)
    }
    await Promise.all(changes.map(({ told }) => told))
    t.strictSame(effects, [['one', 'two', 'three', 'four']])
  },
)

t.test(
  'changes that take effect together are a change if one of them is, at the newest revision',
  async (t) => {
    const moves: ToolsMove[] = []
    const queue = createChangeQueue(async (_, move) => {
      moves.push(move)
      return { effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null }
    })
    const session = { id: 'ses_1' } as Session
    await Promise.all([
      queue.applyNow(session, { tools_revision: 2, removed: [], isMoved: false }),
      queue.applyNow(session, { tools_revision: 4, removed: ['a'], isMoved: true }),
      queue.applyNow(session, { tools_revision: 3, removed: ['b'], isMoved: false }),
    ])
    t.strictSame(moves, [{ tools_revision: 4, removed: ['a', 'b'], isMoved: true }])
  },
)

t.test('a change begins only once all those before it are over', async (t) => {
  const queue = createChangeQueue(() => Promise.reject(new Error('not in this test')))
  const [first, second] = [gate(), gate()]
  const begun: string[] = []
  const take = (name: string, until?: Promise<void>) =>
    queue.take('ses_1', async () => {
      begun.push(name)
      await until
    })
  const one = take('one', first.opened)
  void take('two', second.opened)
  first.open()
  await one
  await new Promise(setImmediate)
  const three = take('three')
  await new Promise(setImmediate)
  t.strictSame(begun, ['one', 'two'])
  t.ok(queue.isTaken('ses_1'))
  second.open()
  await three
  await new Promise(setImmediate)
  t.notOk(queue.isTaken('ses_1'))
})

t.test('the wait for changes that are being written is bounded', async (t) => {
  const pass = heldClock(t)
  const queue = createChangeQueue(() => Promise.reject(new Error('not in this test')))
  void queue.take('ses_1', () => new Promise(() => {}))
  let isOver = false
  void queue.whenEmpty('ses_1').then(() => {
    isOver = true
  })
  for (const [ms, over] of [
    [900, false],
    [200, true],
  ] as const) {
    await pass(ms)
    t.equal(isOver, over)
  }
})
