/** Brings the schema up to the code: migrations/NNNN_verb_noun.sql, forward only, all in one transaction. */
import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { sha256 } from '../chat/json.ts'
import { BatonError, inFull } from '../errors.ts'
import { type Db, LOCK_NOT_AVAILABLE, type Queries, sureValue, value, values } from './db.ts'

/** One file of migrations/; the hash of its text tells whether it was edited after it ran. */
export interface Migration {
  name: string
  sha256: string
  sql: string
}

/** Compiled, this file is dist/src/store/migrate.js. */
const FOLDER = fileURLToPath(new URL('../../../migrations/', import.meta.url))

/** The migrations in their order. */
export const readMigrations = (): Migration[] =>
  readdirSync(FOLDER)
    .filter((name) => /^\d{4}_\w+\.sql$/.test(name))
    .sort()
    .map((name) => {
      const sql = readFileSync(`${FOLDER}/${name}`, 'utf8')
      return { name, sha256: sha256(sql), sql }
    })

/** Of PostgreSQL: the oldest major version that the schema and its statements are written for. */
const OLDEST = 13

/** An arbitrary number that means "Baton's schema is being changed" to every replica. */
const LOCK = 7_220_194_186

/**
 * While a change waits for a table, every statement that comes after it waits as well: while a backup holds the table,
 * every replica would stand still. So the change steps aside, and tries again. The wait is below PostgreSQL's
 * `deadlock_timeout` of a second.
 */
const PATIENCE = { lockMs: 500, pauseMs: 2_500, tries: 30 }

/**
 * Applies what is missing and returns its names. Replicas that start at once take turns. Throws a BatonError `internal`
 * in plain words if the database has a newer schema or another history than this code, is not UTF-8 or too old, refuses
 * a migration, or has a table that something else holds for more than a minute.
 */
export async function migrate(
  db: Db,
  migrations: readonly Migration[],
  { lockMs, pauseMs, tries } = PATIENCE,
): Promise<string[]> {
  await assertFit(db)
  for (let left = tries; ; left--) {
    try {
      return await db.transaction((queries) => applyMissing(queries, migrations, lockMs))
    } catch (thrown) {
      if (!isHeld(thrown)) throw thrown
      if (left <= 1)
        refuse(
          'The schema cannot be brought up to date: something holds a table, such as a backup (pg_dump) or an open transaction. Start again when it is over; replicas that run go on meanwhile.',
        )
      await sleep(pauseMs)
    }
  }
}

async function assertFit(db: Db): Promise<void> {
  const names = `array['server_encoding', 'server_version']`
  const [encoding, version = ''] = await values<string>(db, `select current_setting(unnest(${names}))`)
  if (encoding !== 'UTF8')
    refuse(`The database's encoding is ${encoding}; Baton needs one with encoding UTF8.`)
  if (Number.parseFloat(version) < OLDEST)
    refuse(`The server is PostgreSQL ${version}; Baton needs ${OLDEST} or later.`)
}

const isHeld = (thrown: unknown): boolean =>
  thrown instanceof BatonError &&
  (thrown.cause as { code?: unknown } | undefined)?.code === LOCK_NOT_AVAILABLE

async function applyMissing(
  queries: Queries,
  migrations: readonly Migration[],
  lockMs: number,
): Promise<string[]> {
  await queries.query('set local statement_timeout = 0')
  // As a script, since those have no time limit: it may wait as long as another replica's migration takes.
  await queries.script(`select pg_advisory_xact_lock(${LOCK})`)
  await queries.script(
    `create table if not exists schema_migration (
       name text primary key, sha256 text not null, applied_at timestamptz not null default now()
     )`,
  )
  const missing = await pending(queries, migrations)
  await queries.script(`set local lock_timeout = ${lockMs}`)
  for (const { name, sha256, sql } of missing) {
    await queries.script(sql).catch((cause: unknown) => {
      // What may pass, a held table among it, is no fault of the migration.
      if (cause instanceof BatonError) throw cause
      throw new BatonError('internal', `Migration ${name} failed: ${inFull(cause)}.`, { cause })
    })
    await queries.query('insert into schema_migration (name, sha256) values ($1, $2)', [name, sha256])
  }
  return missing.map(({ name }) => name)
}

async function pending(queries: Queries, migrations: readonly Migration[]): Promise<Migration[]> {
  const applied = await queries.query<{ name: string; sha256: string }>(
    'select name, sha256 from schema_migration order by name collate "C"',
  )
  applied.forEach(({ name, sha256 }, i) => {
    const known = migrations.find((migration) => migration.name === name)
    if (!known) {
      refuse(
        `The database has migration ${name}, which this version of Baton does not know: it was used by a newer version. Start that one, or restore a backup from before.`,
      )
    }
    if (known.sha256 !== sha256) {
      refuse(
        `Migration ${name} was changed after it was applied to this database. Migrations are never edited: restore the file and put the change into a new one.`,
      )
    }
    if (migrations[i]?.name !== name) {
      refuse(
        `Migration ${migrations[i]?.name} comes before ${name}, which is applied already. Give it a number after the last one.`,
      )
    }
  })
  return migrations.slice(applied.length)
}

/**
 * Throws `internal` if a gateway of an older version has worked on the database: a migration cannot be undone, so only
 * the start of a gateway may apply it.
 */
export async function assertNotOlder(db: Db, migrations: readonly Migration[]): Promise<void> {
  if ((await value<string>(db, `select to_regclass('schema_migration')::text`)) === null) return
  // An older build may have left its template (template.ts), on which nothing has worked yet.
  const count = 'select count(*)::int from schema_migration where exists (select from setting)'
  const applied = await sureValue<number>(db, count)
  if (applied > 0 && applied < migrations.length)
    refuse(
      "The database has the schema of an older version of Baton. The command line leaves it as it is, since there is no way back: make a backup, and start a gateway of this version, which brings the schema up to date. Until then use the older version's command line, or --url with its gateway.",
    )
}

/**
 * Throws `unavailable` unless the database can be written and its schema is the code's, or a newer one that follows
 * from it: a migration leaves what replicas of the version before need until they are replaced.
 */
export async function assertCurrent(db: Db, migrations: readonly Migration[]): Promise<void> {
  // A server that a failover left behind, or has not promoted yet, still answers reads.
  if ((await value<string>(db, `select current_setting('transaction_read_only')`)) === 'on')
    throw new BatonError('unavailable', 'The database is read-only.', { retryAfter: 5 })
  const names = await values<string>(db, 'select name from schema_migration order by name collate "C"')
  if (migrations.every(({ name }, i) => names[i] === name)) return
  throw new BatonError('unavailable', 'The database schema is not that of this version of Baton.', {
    retryAfter: 5,
  })
}

function refuse(message: string): never {
  throw new BatonError('internal', message)
}
