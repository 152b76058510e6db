/**
 * Embedded databases and stores of a test's own, closed with it. They begin from the template: a database from nothing
 * takes seconds.
 */
import type { Test } from 'tap'
import type { Db } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { readMigrations } from '../../src/store/migrate.ts'
import { openStore } from '../../src/store/open.ts'
import type { Store } from '../../src/store/store.ts'
import { readTemplate } from '../../src/store/template.ts'
import { scratch } from '../scratch.ts'

type StoreOptions = Parameters<typeof openStore>[0]

/**
 * Closes it with the test, unless the test has closed it before. What a test that failed leaves open keeps its process
 * from ending.
 */
export function closedWith<T extends { close(): Promise<void> }>(t: Test, opened: T): T {
  let closing: Promise<void> | undefined
  const close = () => {
    closing ??= opened.close()
    return closing
  }
  t.teardown(close)
  return { ...opened, close }
}

export const freshDatabase = async (t: Test, folder = scratch(t)): Promise<Db> =>
  closedWith(t, await openEmbedded(folder, () => readTemplate(readMigrations())))

/** A database without a schema: the template with its own taken out. */
export async function emptyDatabase(t: Test, folder?: string): Promise<Db> {
  const db = await freshDatabase(t, folder)
  await db.query('drop schema public cascade')
  await db.query('create schema public')
  return db
}

/** Embedded, unless a server is named. */
export const freshStore = async (t: Test, more: Partial<StoreOptions> = {}): Promise<Store> =>
  closedWith(t, await openStore({ databaseUrl: null, dataDir: scratch(t), poolSize: 1, ...more }))

/** A store on a database that is open. Closing the store closes the database. */
export const storeOn = (db: Db, more: Pick<StoreOptions, 'log' | 'codec'> = {}): Promise<Store> =>
  openStore({ databaseUrl: null, dataDir: '', poolSize: 1, ...more }, Promise.resolve(db))
