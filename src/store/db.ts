/**
 * The port to SQL: what both stores offer, a PostgreSQL server (postgres.ts) and the embedded one (embedded.ts). Rows
 * come with json columns parsed. Nothing outside src/store/ sees this.
 */
import { BatonError } from '../errors.ts'

/** A parameter of a statement: bytes for a bytea, a list for a text[]. */
export type Param = string | number | boolean | null | Uint8Array | readonly string[]

export interface Querying {
  /**
   * One statement, one round trip. Throws QueryFailure for what the database refuses, BatonError
   * `unavailable` when it cannot be reached, has no connection free, or does not answer in time.
   */
  query<Row>(text: string, params?: readonly Param[]): Promise<Row[]>
}

export interface Queries extends Querying {
  /** Several statements in one text. No time limit but the transaction's own, if it has one (migrate.ts). */
  script(text: string): Promise<void>
}

export interface Db extends Querying {
  readonly kind: 'postgres' | 'embedded'
  /**
   * All or nothing: `work` throws to undo. Never call the Db itself inside `work`: the embedded one would wait for
   * ever.
   */
  transaction<T>(work: (queries: Queries) => Promise<T>): Promise<T>
  /**
   * Only the embedded database has it: resolves with the reason when the database ended and nobody closed it. It does
   * not come back.
   */
  readonly lost?: Promise<Error>
  close(): Promise<void>
}

/** The database understood and refused. `code` is the SQLSTATE, `constraint` the one that was violated. */
export class QueryFailure extends Error {
  readonly code: string
  readonly constraint: string | null

  constructor(message: string, code: string, constraint: string | null, options?: ErrorOptions) {
    super(message, options)
    this.name = 'QueryFailure'
    this.code = code
    this.constraint = constraint
  }
}

/** The constraint that a statement violated, or null for any other failure. */
export const violated = (thrown: unknown): string | null =>
  thrown instanceof QueryFailure && thrown.code.startsWith('23') ? thrown.constraint : null

/** `why` is for operators: it may name addresses and users, and callers are told no cause. */
export const unavailable = (why: string, cause: unknown = new Error(why)): BatonError =>
  new BatonError('unavailable', 'The database is not available.', { retryAfter: 2, cause })

/**
 * SQLSTATE classes that are about the server, not the statement: connection, resources (a full disk), shutdown, system.
 */
const SERVER_CLASSES = new Set(['08', '53', '57', '58', '25', '40'])
/** Somebody held a lock that the statement wants for longer than `lock_timeout`. */
export const LOCK_NOT_AVAILABLE = '55P03'
/** Raised by `history` in the schema, and by the server itself if an answer would have more than 1 GiB. */
const TOO_LONG = new Set(['BT001', '54000'])

/**
 * What a database answered in place of rows: `unavailable` if a later try may succeed, `context_too_long` for a history
 * that no process can hold, else QueryFailure.
 */
export function refusal(
  { message, code, constraint }: { message: string; code: string; constraint: string | null },
  cause?: unknown,
): BatonError | QueryFailure {
  if (code === LOCK_NOT_AVAILABLE || SERVER_CLASSES.has(code.slice(0, 2))) return unavailable(message, cause)
  if (TOO_LONG.has(code)) {
    const remedy = 'Delete some of them, or go on in a new session.'
    return new BatonError('context_too_long', `The session's messages are more than 128 MiB. ${remedy}`, {
      cause,
    })
  }
  return new QueryFailure(message, code, constraint, { cause })
}

/** The only value of the only row, null when there is no row. */
export async function value<T>(db: Querying, text: string, params?: readonly Param[]): Promise<T | null> {
  const [row] = await db.query<Record<string, T>>(text, params)
  return row ? (Object.values(row)[0] ?? null) : null
}

/** The same of a statement that always has one. */
export async function sureValue<T>(db: Querying, text: string, params?: readonly Param[]): Promise<T> {
  const found = await value<T>(db, text, params)
  if (found === null) throw new Error('a statement that always returns a value returned none')
  return found
}

/** Whether the statement found, or changed, any row. It must return something of each. */
export const matched = async (db: Querying, text: string, params: readonly Param[]): Promise<boolean> =>
  (await db.query(text, params)).length > 0

/** Every row's only value. */
export async function values<T>(db: Querying, text: string, params?: readonly Param[]): Promise<T[]> {
  const rows = await db.query<Record<string, T>>(text, params)
  return rows.map((row) => Object.values(row)[0] as T)
}

/** Begins, runs the work, commits; on any failure rolls back and rethrows it. */
export async function inTransaction<T>(queries: Queries, work: (queries: Queries) => Promise<T>): Promise<T> {
  await queries.query('begin')
  let result: T
  try {
    result = await work(queries)
  } catch (thrown) {
    // The rollback's own failure means a dead connection, which undoes everything just as well.
    await queries.query('rollback').catch(() => {})
    throw thrown
  }
  await queries.query('commit')
  return result
}
