/**
 * Databases and stores of a test's own, closed with it. Embedded ones begin from the template: a database from nothing
 * takes seconds.
 */
import type { Test } from 'tap'
import type { Db } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { readMigrations } from '../../src/store/migrate.ts'
import { openStore } from '../../src/store/open.ts'
import type { Store } from '../../src/store/store.ts'
import { readTemplate } from '../../src/store/template.ts'
import { SERVERS } from '../given-servers.ts'
import { scratch } from '../scratch.ts'
import { migratedDatabase } from './migrated.ts'

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
export const emptyDatabase = async (t: Test, folder?: string): Promise<Db> =>
  emptied(await freshDatabase(t, folder))

export async function emptied(db: Db): Promise<Db> {
  await db.query('drop schema public cascade')
  await db.query('create schema public')
  return db
}

/**
 * Embedded if a folder is named; else on the server where one is given, which opens sooner. There, too, one connection
 * serves all callers in their order, unless a `poolSize` is given.
 */
export async function freshStore(t: Test, { dataDir, ...more }: Partial<StoreOptions> = {}): Promise<Store> {
  const isEmbedded = dataDir !== undefined || SERVERS.DATABASE_URL === ''
  const own = isEmbedded ? null : (more.databaseUrl ?? (await migratedDatabase(t, SERVERS.DATABASE_URL)))
  return closedWith(
    t,
    await openStore({ poolSize: 1, ...more, databaseUrl: own, dataDir: dataDir ?? scratch(t) }),
  )
}

/** A store on a database that is open. Closing the store closes the database. */
export const storeOn = (db: Db, more: Pick<StoreOptions, 'log' | 'codec'> = {}): Promise<Store> =>
  openStore({ databaseUrl: null, dataDir: '', poolSize: 1, ...more }, Promise.resolve(db))
