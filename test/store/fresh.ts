/** Embedded databases and stores of a test's own, from the template: a database from nothing takes seconds. */
import type { Test } from 'tap'
import type { Db } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { readMigrations } from '../../src/store/migrate.ts'
import { openStore } from '../../src/store/open.ts'
import type { Store } from '../../src/store/store.ts'
import { readTemplate } from '../../src/store/template.ts'
import { scratch } from '../scratch.ts'

type StoreOptions = Parameters<typeof openStore>[0]

/** The test closes the database. */
export const freshDatabase = (t: Test, folder = scratch(t)): Promise<Db> =>
  openEmbedded(folder, () => readTemplate(readMigrations()))

/** A database without a schema: the template with its own taken out. */
export async function emptyDatabase(t: Test, folder?: string): Promise<Db> {
  const db = await freshDatabase(t, folder)
  t.teardown(() => db.close())
  await db.query('drop schema public cascade')
  await db.query('create schema public')
  return db
}

/** Embedded, unless a server is named. Closed with the test. */
export async function freshStore(t: Test, more: Partial<StoreOptions> = {}): Promise<Store> {
  const store = await openStore({ databaseUrl: null, dataDir: scratch(t), poolSize: 1, ...more })
  t.teardown(() => store.close())
  return store
}

/** A store on a database that is open. Closing the store closes the database. */
export const storeOn = (db: Db, more: Pick<StoreOptions, 'log' | 'codec'> = {}): Promise<Store> =>
  openStore({ databaseUrl: null, dataDir: '', poolSize: 1, ...more }, Promise.resolve(db))
