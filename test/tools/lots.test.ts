/** Which sessions are brought up to date together, in which order, and what each of them hears. */
import t from 'tap'
import { createLots } from '../../src/tools/lots.ts'

interface Given {
  weightOf?: (session: string) => number
  together?: (sessions: readonly string[]) => Promise<readonly string[]>
}

/** Lots that note what they do: each lot as the names of its sessions, and who was done alone. */
function setUp({ weightOf = () => 1, together = async () => [] }: Given = {}) {
  const lots: string[][] = []
  const alone: string[] = []
  const { join } = createLots({
    weightOf,
    together(sessions) {
      lots.push([...sessions])
      return together(sessions)
    },
    async alone(session) {
      alone.push(session)
      if (session === 'broken') throw new Error('it cannot be written')
    },
  })
  return { join, lots, alone }
}

const many = (count: number) => Array.from({ length: count }, (_, i) => `ses_${i}`)

t.test('a lot has its bounds, in sessions and in weight', async (t) => {
  const { join, lots } = setUp()
  await Promise.all(many(60).map((id) => join(id)))
  t.same(
    lots.map(({ length }) => length),
    [50, 10],
  )
  const heavy = setUp({ weightOf: (id) => (id === 'ses_0' ? 5_000 : 500) })
  await Promise.all(many(6).map((id) => heavy.join(id)))
  t.same(
    heavy.lots.map(({ length }) => length),
    [1, 2, 2, 1],
    'one that is too heavy for any lot has one of its own',
  )
})

t.test('who joins before a lot is made shares the work, and may make it urgent', async (t) => {
  const { join, lots } = setUp()
  const waiting = [join('slow'), join('late'), join('late', { isUrgent: true })]
  t.equal(waiting[1], waiting[2])
  await Promise.all(waiting)
  t.same(lots, [['late', 'slow']])
})

t.test('who comes while a lot is under way waits for the next one', async (t) => {
  let finish = () => {}
  const under = new Promise<void>((resolve) => {
    finish = resolve
  })
  const { join, lots } = setUp({ together: () => under.then(() => []) })
  const first = join('first')
  while (lots.length === 0) await new Promise(setImmediate)
  const others = [join('first'), join('second')]
  for (let i = 0; i < 5; i++) await new Promise(setImmediate)
  t.same(lots, [['first']])
  finish()
  await Promise.all([first, ...others])
  t.same(lots, [['first'], ['first', 'second']])
})

t.test('one that is behind no more is passed over, unless somebody wants it in any case', async (t) => {
  const { join, lots } = setUp()
  const isBehind = () => false
  await Promise.all([join('done', { isBehind }), join('wanted', { isBehind }), join('wanted'), join('other')])
  t.same(lots, [['wanted', 'other']])
})

t.test('what a lot leaves, or fails with, is done alone, and each hears of its own', async (t) => {
  const lots: [together: NonNullable<Given['together']>, alone: string[]][] = [
    [async () => ['left', 'broken'], ['left', 'broken']],
    [() => Promise.reject(new Error('one of them')), ['fine', 'left', 'broken']],
  ]
  for (const [together, expected] of lots) {
    const { join, alone } = setUp({ together })
    const heard = await Promise.allSettled([join('fine'), join('left'), join('broken')])
    t.same(
      heard.map(({ status }) => status),
      ['fulfilled', 'fulfilled', 'rejected'],
    )
    t.same(alone, expected)
  }
})
