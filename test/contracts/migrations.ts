import type { Test } from 'tap'
import { BatonError } from '../../src/errors.ts'
import { type Db, value } from '../../src/store/db.ts'
import { assertCurrent, type Migration, migrate, readMigrations } from '../../src/store/migrate.ts'
import { rejection } from './store-rows.ts'

export async function migrationContract(t: Test, open: (t: Test) => Promise<Db>): Promise<void> {
  const migrations = readMigrations()
  const next: Migration = { name: '9999_add_column.sql', sha256: 'n', sql: 'create table next_one ()' }
  const why = async (work: Promise<unknown>) => {
    const thrown = await rejection(work)
    return thrown instanceof BatonError ? `${thrown.code}: ${thrown.message}` : thrown
  }

  await t.test('migrations are applied once, by the replica that comes first', async (t) => {
    const [one, two] = [await open(t), await open(t)]
    t.match(
      await why(assertCurrent(one, migrations)),
      /schema_migration|unavailable/,
      'no migration is applied yet',
    )
    const applied = await Promise.all([migrate(one, migrations), migrate(two, migrations)])
    t.strictSame(
      applied.sort((a, b) => a.length - b.length),
      [[], migrations.map(({ name }) => name)],
    )
    t.equal(await assertCurrent(two, migrations), undefined)
  })

  await t.test('a database that takes no writes is not ready, though it can be read', async (t) => {
    const db = await open(t)
    await migrate(db, migrations)
    const demoted: Db = {
      ...db,
      query: (text, params) =>
        db.transaction(async (queries) => {
          await queries.query('set transaction read only')
          return queries.query(text, params)
        }),
    }
    t.match(await why(assertCurrent(demoted, migrations)), /^unavailable: .*read-only/)
  })

  await t.test('migrating refuses a schema that is newer than the code', async (t) => {
    const db = await open(t)
    t.strictSame(await migrate(db, [...migrations, next]), [next.name])
    t.match(await why(migrate(db, migrations)), /^internal: .*9999_add_column\.sql.*newer version/)
    t.equal(await assertCurrent(db, migrations), undefined, 'a running replica of the old code stays ready')
    await db.query('drop table next_one')
    await db.query('delete from schema_migration where name = $1', [next.name])
    t.match(
      await why(assertCurrent(db, [...migrations, next])),
      /^unavailable: /,
      'a running replica of the new code is not ready',
    )
  })

  await t.test('migrating refuses a file that was changed or comes before an applied one', async (t) => {
    const db = await open(t)
    const [first, ...rest] = migrations
    if (!first) throw new Error('there is a first migration')
    t.match(
      await why(migrate(db, [{ ...first, sha256: 'other' }, ...rest])),
      /^internal: .*was changed after/,
    )
    const early = { ...next, name: '0000_too_late.sql' }
    t.match(await why(migrate(db, [early, ...migrations])), /^internal: .*0000_too_late\.sql comes before/)
  })

  await t.test('migrations leave nothing behind if one of them fails, which is named', async (t) => {
    const db = await open(t)
    const broken = { ...next, name: '9999_broken.sql', sql: 'create table half (); select nonsense' }
    t.match(
      await why(migrate(db, [...migrations, next, broken])),
      /^internal: Migration 9999_broken\.sql failed: .*"nonsense"/,
    )
    t.equal(await value(db, `select to_regclass('half')::text`), null)
    t.strictSame(await migrate(db, migrations), [])
  })
}
