/** Opens the store: a PostgreSQL server if one is configured, else the embedded one; its schema is the code's. */
import type { Logger } from 'pino'
import { BatonError, isUnavailable } from '../errors.ts'
import { createPresence } from '../log.ts'
import { createAudit } from './audit.ts'
import { createConnectors } from './connectors.ts'
import { createCredentials } from './credentials.ts'
import { type Db, QueryFailure } from './db.ts'
import { openEmbedded } from './embedded.ts'
import { createExecutions } from './executions.ts'
import { createKeys } from './keys.ts'
import { createLogins } from './logins.ts'
import { createMessages } from './messages.ts'
import { assertCurrent, assertNotOlder, migrate, readMigrations } from './migrate.ts'
import { createParts, type PartsCodec, PLAIN_PARTS } from './parts.ts'
import { createRegistry } from './registry.ts'
import { createSealed } from './sealed.ts'
import { createSessions } from './sessions.ts'
import { createSettings } from './settings.ts'
import type { Store } from './store.ts'
import { readTemplate } from './template.ts'
import { createTurns } from './turns.ts'

interface DatabaseOptions {
  databaseUrl: string | null
  /** The embedded database's folder, if there is no server */
  dataDir: string
  /** Most connections to a server */
  poolSize: number
}
interface StoreOptions extends DatabaseOptions {
  /** How parts are stored (parts.ts); without it they are stored as they are */
  codec?: PartsCodec
  /** Gets a line when the database goes away, and when it is back */
  log?: Logger
  /** For a process that is not a gateway: refuses the schema of an older version, and leaves it as it is */
  keepsSchema?: boolean
}

/**
 * For a process that has more to load meanwhile: the embedded database opens in its own thread. Loads only the driver
 * that is used. Throws as openStore does.
 */
export async function openDatabase({ databaseUrl, dataDir, poolSize }: DatabaseOptions): Promise<Db> {
  if (!databaseUrl) return openEmbedded(dataDir, () => readTemplate(readMigrations()))
  const { openPostgres } = await import('./postgres.ts')
  return openPostgres(databaseUrl, poolSize)
}

/**
 * Throws BatonError `unavailable` when the server does not answer, `internal` for a schema that is not
 * ours, FolderInUse for a data folder that another process has, and ConfigError for one that cannot be used.
 */
export async function openStore(options: StoreOptions, opening = openDatabase(options)): Promise<Store> {
  const migrations = readMigrations()
  const opened = await opening
  try {
    // Not watched: a table that somebody holds does not mean that the database is away.
    if (options.keepsSchema) await assertNotOlder(opened, migrations)
    await migrate(opened, migrations)
    if (opened.kind === 'embedded') await opened.query(END_LEASES_AND_CLAIMS)
  } catch (err) {
    await opened.close()
    throw options.databaseUrl ? atServer(options.databaseUrl, err) : err
  }
  const db = options.log ? watched(opened, options.log) : opened
  const parts = createParts(options.codec ?? PLAIN_PARTS)
  return {
    sessions: createSessions(db),
    messages: createMessages(db, parts),
    turns: createTurns(db, parts),
    connectors: createConnectors(db),
    registry: createRegistry(db),
    executions: createExecutions(db, parts),
    credentials: createCredentials(db),
    logins: createLogins(db),
    keys: createKeys(db),
    sealed: createSealed(db),
    audit: createAudit(db),
    settings: createSettings(db),
    ready: () => assertCurrent(db, migrations),
    close: db.close,
  }
}

/**
 * The embedded database is this process's alone, so every owner of a lease or a claim is dead. If the clock was set
 * back meanwhile, a lease would hold its turns, and a claim its login, for that much longer.
 */
const END_LEASES_AND_CLAIMS = `
  with credentials as (
    update credential set claimed_until = '-infinity' where claimed_until > clock_timestamp()
  ), connectors as (
    update connector set claimed_until = '-infinity' where claimed_until > clock_timestamp()
  )
  update session set lease_until = '-infinity'
   where id in (select session_id from turn where state in ('queued', 'running', 'awaiting_input'))
     and lease_until > clock_timestamp()`

/** Says when the database goes away and when it is back: everyone who needs it fails meanwhile. */
function watched(db: Db, log: Logger): Db {
  const name = db.kind === 'postgres' ? 'PostgreSQL' : 'the embedded database'
  const presence = createPresence(log, `${name} is away`, `${name} is back`)
  async function watch<T>(work: Promise<T>): Promise<T> {
    try {
      const result = await work
      presence.back()
      return result
    } catch (thrown) {
      if (isUnavailable(thrown)) presence.away(thrown)
      throw thrown
    }
  }
  return {
    kind: db.kind,
    query: (text, params) => watch(db.query(text, params)),
    transaction: (work) => watch(db.transaction(work)),
    close() {
      presence.close()
      return db.close()
    },
  }
}

/** For the person who starts Baton: where it looked for the server and what to do, without the URL's password. */
function atServer(url: string, thrown: unknown): unknown {
  const { hostname, port, pathname, searchParams } = new URL(url)
  const host = hostname || searchParams.get('host') || 'localhost'
  const place = `PostgreSQL at ${host}:${port || 5432} (database ${decodeURIComponent(pathname.slice(1))})`
  // Mostly of a role that may not create anything in the schema "public", as from PostgreSQL 15 on.
  if (thrown instanceof QueryFailure) {
    const needed = 'USAGE and CREATE on one schema that it finds by its search_path'
    const words = `${place} refuses Baton's schema: ${thrown.message}. Baton's role needs ${needed}.`
    return new BatonError('internal', words, { cause: thrown })
  }
  if (!isUnavailable(thrown)) return thrown
  return new BatonError('unavailable', `${place} cannot be used. Start it, or correct DATABASE_URL.`, {
    retryAfter: 2,
    cause: thrown,
  })
}
