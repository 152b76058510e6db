/** A store for tests to which its kind makes no difference: on the server where one is given, which opens sooner. */
import { randomBytes } from 'node:crypto'
import type { Test } from 'tap'
import { SERVERS } from './given-servers.ts'
import { scratch } from './scratch.ts'
import { migratedDatabase } from './store/migrated.ts'

/** A database of the test's own on the server, dropped afterwards, in the settings of a gateway. */
export const onServer = async (t: Test): Promise<Record<string, string>> => ({
  DATABASE_URL: await migratedDatabase(t, SERVERS.DATABASE_URL),
  BATON_ENCRYPTION_KEYS: `test:${randomBytes(32).toString('base64')}`,
})

/** The settings of a gateway with a store of the test's own. */
export const anyStore = async (t: Test): Promise<Record<string, string>> =>
  SERVERS.DATABASE_URL ? onServer(t) : { BATON_DATA_DIR: scratch(t) }
