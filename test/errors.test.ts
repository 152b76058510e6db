import t from 'tap'
import { BatonError, type ErrorCode, inFull } from '../src/errors.ts'
import { unavailable } from '../src/store/db.ts'

t.test('a retry_after that someone else states is cut to a month', async (t) => {
  const wait = (retryAfter: number) =>
    new BatonError('upstream_rate_limited', '', { retryAfter }).toBody().details
  t.strictSame(wait(99_999_999_999), { retry_after: 31 * 86_400 })
  t.strictSame(wait(600_000), { retry_after: 600_000 }, 'the wait of a weekly limit stays')
})

t.test(
  'a limit or an overload that names no wait is told with one, also where there are no headers',
  async (t) => {
    const told = (code: ErrorCode, details?: Record<string, unknown>) =>
      new BatonError(code, '', { details }).toBody().details
    for (const code of ['upstream_rate_limited', 'upstream_overloaded', 'unavailable'] as const)
      t.strictSame(told(code), { retry_after: 5 }, code)
    t.strictSame(told('upstream_rate_limited', { retry_after: 7 }), { retry_after: 7 }, 'a stored one stays')
    for (const code of ['upstream_rejected', 'upstream_timeout'] as const) t.strictSame(told(code), {}, code)
  },
)

t.test('the full text of an error tells operators where the database is', async (t) => {
  const away = unavailable('connect ECONNREFUSED 10.0.0.7:5432')
  t.equal(inFull(away), 'The database is not available. connect ECONNREFUSED 10.0.0.7:5432')
  const both = new AggregateError(
    ['::1', '127.0.0.1'].map((ip) => new Error(`connect ECONNREFUSED ${ip}:5432`)),
  )
  t.equal(inFull(unavailable('', both)), 'The database is not available. connect ECONNREFUSED ::1:5432')
})
