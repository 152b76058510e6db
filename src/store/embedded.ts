/** The store without a server: PGlite in a worker thread, one connection, one process per folder. */
import { existsSync, mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { makeDataDir, unusable } from '../config/data-dir.ts'
import { type Db, inTransaction, type Param, type Queries, refusal, unavailable } from './db.ts'
import { plainParam } from './json.ts'
import { FolderInUse, lockFolder } from './lock.ts'
import type { Answer, Question, Report, WorkerData } from './pglite-worker.ts'

/**
 * A new database begins with the contents of the archive that `template` names, else empty. Throws FolderInUse when
 * another process has the folder, ConfigError if nothing can be kept in it.
 */
export async function openEmbedded(dataDir: string, template: () => string | null = () => null): Promise<Db> {
  makeDataDir(dataDir)
  const unlock = await lockFolder(dataDir).catch((failure: Error) => {
    throw failure instanceof FolderInUse ? failure : unusable(dataDir, failure)
  })
  try {
    const folder = join(dataDir, 'pg')
    makeWhole(folder)
    return await openWorker({ folder, template: existsSync(folder) ? null : template() }, unlock)
  } catch (err) {
    await unlock()
    throw err
  }
}

/**
 * Folders that PostgreSQL mostly has empty. Copies by git, rclone or to S3 leave empty folders out; without some of them
 * PostgreSQL does not open, without others its checkpoints fail (docker-library/postgres#1053, pgmoneta/pgmoneta#1261).
 */
const MOSTLY_EMPTY = [
  'pg_commit_ts',
  'pg_dynshmem',
  'pg_logical/mappings',
  'pg_logical/snapshots',
  'pg_notify',
  'pg_replslot',
  'pg_serial',
  'pg_snapshots',
  'pg_stat',
  'pg_stat_tmp',
  'pg_tblspc',
  'pg_twophase',
]

/**
 * Makes empty folders that are missing. Throws where PG_VERSION is missing: PGlite would make a new database over the
 * old one, of which nothing would be left.
 */
function makeWhole(folder: string): void {
  const names = existsSync(folder) ? namesIn(folder) : []
  if (names.length === 0) return
  if (!names.includes('PG_VERSION'))
    throw doesNotOpen(
      folder,
      'its file PG_VERSION is missing, and others may be, too. Restore the data folder from a backup. Or, if nothing is to be kept, delete this folder.',
    )
  try {
    for (const name of MOSTLY_EMPTY) mkdirSync(join(folder, name), { recursive: true, mode: 0o700 })
  } catch (failure) {
    throw unusable(folder, failure)
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch (failure) {
    throw unusable(folder, failure)
  }
}

const doesNotOpen = (folder: string, why: string) =>
  new Error(`The embedded database in ${folder} does not open: ${why}`)

interface Waiting {
  resolve: (rows: Record<string, unknown>[]) => void
  reject: (err: Error) => void
}
/** A question without its number. */
type Asked = Question extends infer Q ? (Q extends unknown ? Omit<Q, 'id'> : never) : never

async function openWorker(data: WorkerData, onClosed: () => Promise<void>): Promise<Db> {
  const worker = new Worker(new URL('./pglite-worker.js', import.meta.url), {
    workerData: data,
    // Else it would load what the operator has loaded into the process (`NODE_OPTIONS=--require …`): an agent of
    // OpenTelemetry takes a thread seconds and its memory, and has nothing to see here
    // (getsentry/sentry-javascript#14824).
    execArgv: [],
    env: {},
    // Megabytes. Objects made for a statement are garbage right after it. With V8's usual 48, resident memory grows by
    // 30.
    resourceLimits: { maxYoungGenerationSizeMb: 6 },
  })
  const waiting = new Map<number, Waiting>()
  let lastId = 0
  let dead: Error | null = null
  let isClosing = false
  let lose: (why: Error) => void = () => {}
  const lost = new Promise<Error>((resolve) => {
    lose = resolve
  })

  const die = (why: string) => {
    dead ??= unavailable(why)
    if (!isClosing) lose(dead)
    for (const { reject } of waiting.values()) reject(dead)
    waiting.clear()
  }
  worker.on('error', (err) => die(`its thread failed: ${err.message}`))
  worker.on('exit', () => die(isClosing ? 'it is closed.' : 'its thread has ended.'))
  await new Promise<void>((resolve, reject) => {
    worker.once('error', reject)
    worker.once('exit', () => reject(new Error('The embedded database ended while it was opened.')))
    worker.on('message', (report: Report) => {
      if (!('ready' in report)) return settle(waiting, report)
      if (report.ready) return resolve()
      reject(doesNotOpen(data.folder, report.why))
    })
  })

  const ask = (asked: Asked) =>
    new Promise<Record<string, unknown>[]>((resolve, reject) => {
      if (dead) return reject(dead)
      const id = ++lastId
      waiting.set(id, { resolve, reject })
      worker.postMessage({ ...asked, id } satisfies Question)
    })
  const close = async () => {
    isClosing = true
    if (!dead) await ask({ op: 'close' })
    await worker.terminate()
    await onClosed()
  }
  return { ...createDb(ask, close), lost }
}

function settle(waiting: Map<number, Waiting>, answer: Answer): void {
  const caller = waiting.get(answer.id)
  waiting.delete(answer.id)
  if ('failure' in answer) {
    return caller?.reject(refusal(answer.failure))
  }
  for (const row of answer.rows) {
    for (const name of answer.json) {
      const column = row[name]
      if (typeof column === 'string') row[name] = JSON.parse(column)
    }
  }
  caller?.resolve(answer.rows)
}

function createDb(ask: (asked: Asked) => Promise<Record<string, unknown>[]>, close: () => Promise<void>): Db {
  const queries: Queries = {
    query: async <Row>(text: string, params: readonly Param[] = []) =>
      (await ask({ op: 'query', text, params: params.map(plainParam) })) as Row[],
    script: async (text) => void (await ask({ op: 'script', text })),
  }
  // One connection serves everyone: while a transaction is open, everyone else waits for its end. Nothing is awaited
  // between the check and what follows it, so nobody can open another one in between.
  let transaction: Promise<unknown> | null = null
  return {
    kind: 'embedded',
    async query(text, params) {
      while (transaction) await transaction
      return queries.query(text, params)
    },
    async transaction<T>(work: (queries: Queries) => Promise<T>): Promise<T> {
      while (transaction) await transaction
      const running = inTransaction(queries, work)
      transaction = running.catch(() => {})
      try {
        return await running
      } finally {
        transaction = null
      }
    },
    async close() {
      while (transaction) await transaction
      await close()
    },
  }
}
