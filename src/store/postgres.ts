/** The store on a PostgreSQL server: a bounded pool of connections. */
import pg from 'pg'
import { type Db, inTransaction, type Param, type Queries, QueryFailure, refusal, unavailable } from './db.ts'
import { plainParam } from './json.ts'

const PATIENCE = {
  /** How long a caller waits for a free connection, or for a new one to be made */
  connectMs: 5_000,
  /** A statement of Baton takes milliseconds; one that takes this long hangs on a dead network or a lock */
  answerMs: 30_000,
}
/** How long the server's own word that it gave a statement up may take to arrive */
const GRACE_MS = 2_000
const NO_LIMIT_MS = 2 ** 31 - 1
/**
 * There are no more connections: PostgreSQL's code for it, those of poolers, and what the driver says if a pooler lets
 * the first statement wait.
 */
const FULL = /^(?:53300|08P01|XX000|Query read timeout)$/
/** How long the pool does not grow then */
const FULL_MS = 30_000

/**
 * Under a stricter default isolation of the server, a statement that waited for a session's lock would be refused, not
 * served. And the server has time limits of its own: a statement that went on waiting for its lock would hold a
 * connection beyond the pool, and write after its caller was refused; a replica that hangs in a transaction would hold
 * its locks. Compiling a statement (JIT) takes longer than any of Baton's.
 */
const settings = (answerMs: number): string =>
  `set session characteristics as transaction isolation level read committed;
   set statement_timeout = ${answerMs};
   set idle_in_transaction_session_timeout = ${answerMs};
   set jit = off`

/**
 * Words that the driver takes for `verify-full`. At each start it warns that its next version will verify less, unless
 * the URL asks for that with `uselibpqcompat`.
 */
const VERIFYING = /^(?!.*uselibpqcompat)(.*[?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/
/**
 * libpq's word for the usual CAs, which it takes only together with `verify-full`. Managed services put it into their
 * URLs, and the driver takes it for a file's name (brianc/node-postgres#3101).
 */
const USUAL_CAS = /([?&])sslrootcert=system(?=&|$)(.*)/

/** Connects with the first query: until then nobody knows whether the server is there. */
export function openPostgres(url: string, size: number, patience = PATIENCE): Db {
  const pool = new pg.Pool({
    connectionString: url.replace(USUAL_CAS, '$1$2&sslmode=verify-full').replace(VERIFYING, '$1verify-full'),
    max: size,
    connectionTimeoutMillis: patience.connectMs,
    // A new connection has to compile the schema's functions again: keep them.
    idleTimeoutMillis: 600_000,
    query_timeout: patience.answerMs + GRACE_MS,
    // Probed this often, connections stay open through balancers and firewalls that forget those that were silent for
    // minutes.
    keepAlive: true,
    keepAliveInitialDelayMillis: 60_000,
    application_name: 'baton',
    // A pooler lets everyone in, and answers nobody for whom it has no connection.
    onConnect: (client) =>
      client.query({
        text: settings(patience.answerMs),
        query_timeout: patience.connectMs,
      } as pg.QueryConfig),
  })
  // Without a listener the loss of a connection, idle or in the middle of a transaction, ends the process.
  pool.on('error', () => {})
  pool.on('connect', (client) => void client.on('error', () => {}))
  const connect = createConnect(pool, size)

  async function withClient<T>(work: (queries: Queries) => Promise<T>): Promise<T> {
    // Any failure to connect counts as unavailable: a password was changed, a pooler is full (XX000), a database is
    // being restored.
    const client = await connect().catch((err: Error) => {
      throw unavailable(err.message, err)
    })
    // pool.query() would throw the connection away for any error, a violated constraint included.
    let broken: Error | null = null
    const run = async (config: pg.QueryConfig & { query_timeout?: number }) => {
      // A rollback would wait as long again for an answer. Closing the connection undoes everything just as well.
      if (broken) throw broken
      try {
        return await client.query(config)
      } catch (err) {
        const known = failure(err)
        if (!(known instanceof QueryFailure)) broken = known
        throw known
      }
    }
    const queries: Queries = {
      query: async <Row>(text: string, params: readonly Param[] = []) => {
        const result = await run({ text, values: params.map(plainParam) })
        return result.rows as Row[]
      },
      script: async (text) => void (await run({ text, query_timeout: NO_LIMIT_MS })),
    }
    try {
      return await work(queries)
    } finally {
      client.release(broken !== null)
    }
  }

  return {
    kind: 'postgres',
    query: (text, params) => withClient((queries) => queries.query(text, params)),
    transaction: (work) => withClient((queries) => inTransaction(queries, work)),
    close: () => pool.end(),
  }
}

/** Takes connections from a pool of at most `size`. If it can get no more, callers wait for those that it has. */
function createConnect(pool: pg.Pool, size: number): () => Promise<pg.PoolClient> {
  const made = new Set<pg.PoolClient>()
  pool.on('connect', (client) => made.add(client))
  pool.on('remove', (client) => made.delete(client))
  const stopGrowing = () => {
    const wasGrowing = pool.options.max === size
    pool.options.max = made.size
    if (!wasGrowing) return
    setTimeout(() => {
      pool.options.max = size
    }, FULL_MS).unref()
  }
  return async () => {
    // Certificates that the URL names are read before `pool.connect` returns a promise: a failure has to become a
    // rejection.
    try {
      return await pool.connect()
    } catch (err) {
      const { code, message } = err as Error & { code?: string }
      if (made.size === 0 || !FULL.test(code ?? message)) throw err
      stopGrowing()
      return pool.connect()
    }
  }
}

function failure(err: unknown): Error {
  if (!(err instanceof Error)) return unavailable(String(err))
  if (!(err instanceof pg.DatabaseError) || err.code === undefined) return unavailable(err.message, err)
  const { message, code, severity, constraint = null } = err
  // The connection is over, whatever the code: Supavisor has one (XX000) for all that it lacks.
  if (severity === 'FATAL') return unavailable(message, err)
  return refusal({ message, code, constraint }, err)
}
