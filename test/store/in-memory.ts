import type { Test } from 'tap'
import type { Db } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { readMigrations } from '../../src/store/migrate.ts'
import { readTemplate } from '../../src/store/template.ts'

/** An embedded database in memory. From the template: one from nothing takes seconds. */
export const inMemory = (): Promise<Db> => openEmbedded(null, () => readTemplate(readMigrations()))

/** A database without a schema: the template with its own taken out. */
export async function emptyDatabase(t: Test): Promise<Db> {
  const db = await inMemory()
  t.teardown(() => db.close())
  await db.query('drop schema public cascade')
  await db.query('create schema public')
  return db
}
