/** What is done while a vendor or the store is away. */
import t from 'tap'
import { insist } from '../../src/credentials/renew-once.ts'
import { createBreaker } from '../../src/credentials/token-endpoints.ts'
import { BatonError } from '../../src/errors.ts'

t.test('after five failures in a row one asks at a time, and no sooner than the vendor wants', async (t) => {
  let clock = 0
  const breaker = createBreaker({ now: () => clock })
  for (let i = 0; i < 5; i++) {
    t.equal(breaker.waitMs(), 0)
    breaker.failed(0)
  }
  t.equal(breaker.waitMs(), 30_000)
  clock = 30_000
  t.equal(breaker.waitMs(), 0, 'one asks')
  t.equal(breaker.waitMs(), 30_000, 'whoever comes meanwhile waits')
  breaker.failed(120_000)
  clock = 149_999
  t.equal(breaker.waitMs(), 1)
  clock = 150_000
  t.equal(breaker.waitMs(), 0)
  breaker.succeeded()
  for (const _ of [1, 2]) t.equal(breaker.waitMs(), 0)
})

t.test('a write that fails oddly is tried a few times', async (t) => {
  for (const [failures, outcome] of [
    [3, 'written'],
    [4, 'failed'],
  ] as const) {
    let left = failures
    const write = async () => {
      if (left-- > 0) throw new Error('deadlock detected')
      return 'written'
    }
    const insisting = insist(write, async () => {}, new AbortController().signal)
    t.equal(await insisting.catch(() => 'failed'), outcome)
  }
})

t.test('when the process ends, what the store does not take is tried once more and no longer', async (t) => {
  const ending = new AbortController()
  let tries = 0
  const write = async () => {
    if (++tries === 3) ending.abort()
    if (tries > 9) throw new Error('tried for ever')
    throw new BatonError('unavailable', 'The database is not available.')
  }
  await t.rejects(
    insist(
      write,
      async (_, { aborted }) => {
        if (aborted) throw new Error('aborted')
      },
      ending.signal,
    ),
    { code: 'unavailable' },
  )
  t.equal(tries, 4)
})
