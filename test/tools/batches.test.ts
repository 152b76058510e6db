/** Which sessions are brought up to date together, in which order, and what each caller hears. */
import t from 'tap'
import { createBatches } from '../../src/tools/batches.ts'
import { gate } from '../waiting.ts'

interface Given {
  weightOf?: (session: string) => number
  isCurrent?: (session: string) => boolean
  together?: (sessions: readonly string[]) => Promise<readonly string[]>
}

/** Batches that note what they do. `batches`: the sessions of each batch · `alone`: sessions that were done alone. */
function setUp({ weightOf = () => 1, isCurrent = () => false, together = async () => [] }: Given = {}) {
  const batches: string[][] = []
  const alone: string[] = []
  const { join } = createBatches({
    weightOf,
    isCurrent,
    together(sessions) {
      batches.push([...sessions])
      return together(sessions)
    },
    async alone(session) {
      alone.push(session)
      if (session === 'broken') throw new Error('it cannot be written')
    },
  })
  return { join, batches, alone }
}

const many = (count: number) => Array.from({ length: count }, (_, i) => `ses_${i}`)

t.test('a batch is bounded in sessions and in weight', async (t) => {
  const { join, batches } = setUp()
  await Promise.all(many(60).map((id) => join(id)))
  t.same(
    batches.map(({ length }) => length),
    [50, 10],
  )
  const heavy = setUp({ weightOf: (id) => (id === 'ses_0' ? 5_000 : 500) })
  await Promise.all(many(6).map((id) => heavy.join(id)))
  t.same(
    heavy.batches.map(({ length }) => length),
    [1, 2, 2, 1],
    'a session that is too heavy for any batch gets a batch of its own',
  )
})

t.test('callers that join a session before its batch share the work, and may make it urgent', async (t) => {
  const { join, batches } = setUp()
  const waiting = [join('slow'), join('slow'), join('late'), join('late', { isUrgent: true }), join('late')]
  t.equal(waiting[2], waiting[3])
  await Promise.all(waiting)
  t.same(batches, [['late', 'slow']])
  await new Promise(setImmediate)
  await join('slow')
  t.same(
    batches,
    [['late', 'slow'], ['slow']],
    'a session that joins when nothing is left to do is served, too',
  )
})

t.test('a session that joins while a batch is under way waits for the next batch', async (t) => {
  const { opened: under, open: finish } = gate()
  const { join, batches } = setUp({ together: () => under.then(() => []) })
  const first = join('first')
  while (batches.length === 0) await new Promise(setImmediate)
  const others = [join('first'), join('second')]
  for (let i = 0; i < 5; i++) await new Promise(setImmediate)
  t.same(batches, [['first']])
  finish()
  await Promise.all([first, ...others])
  t.same(batches, [['first'], ['first', 'second']])
})

t.test('a session that is up to date is passed over unless a caller wants it in any case', async (t) => {
  const { join, batches } = setUp({ isCurrent: (session) => session !== 'behind' })
  const unlessCurrent = { unlessCurrent: true }
  await Promise.all([
    join('done', unlessCurrent),
    join('wanted', unlessCurrent),
    join('wanted'),
    join('other'),
    join('behind', unlessCurrent),
  ])
  t.same(batches, [['wanted', 'other', 'behind']])
})

t.test('a session that a batch leaves or fails with is done alone, and its callers hear of it', async (t) => {
  const batches: [together: NonNullable<Given['together']>, alone: string[]][] = [
    [async () => ['left', 'broken'], ['left', 'broken']],
    [() => Promise.reject(new Error('one of them')), ['fine', 'left', 'broken']],
  ]
  for (const [together, expected] of batches) {
    const { join, alone } = setUp({ together })
    const heard = await Promise.allSettled([join('fine'), join('left'), join('broken')])
    t.same(
      heard.map(({ status }) => status),
      ['fulfilled', 'fulfilled', 'rejected'],
    )
    t.same(alone, expected)
  }
})

t.test('what is to be done in any case is due until it is done alone, too', async (t) => {
  const { opened: written, open: write } = gate()
  const { join, isDue } = createBatches({
    weightOf: () => 1,
    isCurrent: () => false,
    together: async (sessions) => sessions,
    alone: () => written,
  })
  const all = [join('changed'), join('following', { unlessCurrent: true })]
  for (let i = 0; i < 5; i++) await new Promise(setImmediate)
  t.ok(isDue('changed'), 'another writer came first, and it is written once more')
  t.notOk(isDue('following'))
  write()
  await Promise.all(all)
  t.notOk(isDue('changed'))
})
