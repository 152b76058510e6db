/** Databases on a server that have Baton's schema already: to copy them from one takes a fraction of migrating each. */
import type { Test } from 'tap'
import { sha256 } from '../../src/chat/json.ts'
import { readMigrations } from '../../src/store/migrate.ts'
import { openStore } from '../../src/store/open.ts'
import { databaseOn, newDatabase, onConnection } from '../servers.ts'

/** An arbitrary number that means "the template is being made" to every process with tests. */
const LOCK = 5_310_442_907

const made = new Map<string, Promise<string>>()

/** As newDatabase does, with the schema. The server keeps the template for further runs. */
export async function migratedDatabase(t: Test, server: string): Promise<string> {
  const copy = made.get(server) ?? copyOfTemplate(server)
  made.set(server, copy)
  return newDatabase(t, server, await copy)
}

async function copyOfTemplate(server: string): Promise<string> {
  const hashes = readMigrations().map((migration) => migration.sha256)
  // What another role's template holds could not be used, and a lock is known to one database alone.
  const { username, pathname } = new URL(server)
  const name = `baton_template_${sha256([username, pathname, ...hashes].join()).slice(0, 12)}`
  return onConnection(server, async (client) => {
    await client.query(`select pg_advisory_lock(${LOCK})`)
    const { rows } = await client.query(
      `select current_setting('server_version_num')::int as version,
              exists (select from pg_database where datname = $1 and datistemplate) as whole`,
      [name],
    )
    // From PostgreSQL 15 on the usual way of copying takes as long as the migrations.
    const copy = `template ${name} ${rows[0].version < 150_000 ? '' : 'strategy file_copy'}`
    if (rows[0].whole) return copy
    // A process that was ended half way has left one without the mark.
    await client.query(`drop database if exists ${name} with (force)`)
    await client.query(`create database ${name}`)
    const store = await openStore({ databaseUrl: databaseOn(server, name), dataDir: '', poolSize: 1 })
    await store.close()
    // One that somebody is connected to is not copied.
    await client.query(`alter database ${name} is_template true allow_connections false`)
    return copy
  })
}
