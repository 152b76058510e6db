import type { Test } from 'tap'
import type { Db } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { readMigrations } from '../../src/store/migrate.ts'
import { readTemplate } from '../../src/store/template.ts'

/** A database without a schema: the template with its own taken out, since one from nothing takes seconds. */
export async function emptyDatabase(t: Test): Promise<Db> {
  const db = await openEmbedded(null, () => readTemplate(readMigrations()))
  t.teardown(() => db.close())
  await db.query('drop schema public cascade')
  await db.query('create schema public')
  return db
}
