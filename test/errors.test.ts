import t from 'tap'
import { inFull } from '../src/errors.ts'
import { unavailable } from '../src/store/db.ts'

t.test('operators are told where the database is', async (t) => {
  const away = unavailable('connect ECONNREFUSED 10.0.0.7:5432')
  t.equal(inFull(away), 'The database is not available. connect ECONNREFUSED 10.0.0.7:5432')
  const both = new AggregateError(
    ['::1', '127.0.0.1'].map((ip) => new Error(`connect ECONNREFUSED ${ip}:5432`)),
  )
  t.equal(inFull(unavailable('', both)), 'The database is not available. connect ECONNREFUSED ::1:5432')
})
