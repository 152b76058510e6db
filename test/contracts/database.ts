/** What the store needs of both databases: transactions, refusals, values. */
import type { Test } from 'tap'
import { type Db, QueryFailure, value } from '../../src/store/db.ts'
import { rejection } from './store-rows.ts'

export async function databaseContract(t: Test, db: Db): Promise<void> {
  await t.test('a transaction is done wholly or not at all, and other queries stay out of it', async (t) => {
    await db.query('create table port_test (n int primary key)')
    t.teardown(() => db.query('drop table port_test'))
    const failed = await rejection(
      db.transaction(async (queries) => {
        await queries.query('insert into port_test values (1)')
        throw new Error('changed my mind')
      }),
    )
    t.match(failed, { message: 'changed my mind' })
    const insert = (n: number) =>
      db.transaction(async (queries) => {
        await queries.query('insert into port_test values ($1)', [n])
        await queries.query('insert into port_test values ($1)', [n + 100])
      })
    await Promise.all([insert(2), insert(3), db.query('insert into port_test values (4)'), insert(5)])
    t.equal(await value(db, 'select count(*)::int from port_test'), 7)
    const duplicate = await rejection(db.query('insert into port_test values (4)'))
    t.ok(duplicate instanceof QueryFailure)
    t.match(duplicate, { code: '23505', constraint: 'port_test_pkey' })
  })

  await t.test('a full disk counts as a store that is away, with its own words as cause', async (t) => {
    const full = `do $$ begin raise 'No space left on device' using errcode = 'disk_full'; end $$`
    const refused = await rejection(db.query(full))
    const cause = { message: /No space left on device/ }
    t.match(refused, { code: 'unavailable', status: 503, retryAfter: 2, cause })
    t.equal(await value(db, 'select 1'), 1, 'the database answers the next query')
  })

  await t.test(
    'an answer larger than the server can build counts as a history that is too long',
    async (t) => {
      const long = `do $$ begin raise 'out of memory' using errcode = 'program_limit_exceeded'; end $$`
      t.match(await rejection(db.query(long)), { code: 'context_too_long', status: 422 })
    },
  )

  await t.test('values come back as they were written, except NUL in text', async (t) => {
    const [row] = await db.query(
      `select $1::text as t, $2::bytea as b, $3::json as j, $4::boolean as f, $5::text[] as a, $6::float8 as n`,
      ['a\0b', new Uint8Array([0, 255]), '{"b":"\\u0000","a":1}', false, ['x', 'y,"z\\'], 1.5],
    )
    const { b, ...rest } = row as { b: Uint8Array }
    t.strictSame(rest, { t: 'a\ufffdb', j: { b: '\0', a: 1 }, f: false, a: ['x', 'y,"z\\'], n: 1.5 })
    t.strictSame([...b], [0, 255])
  })
}
