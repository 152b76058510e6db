/**
 * The embedded PostgreSQL, in its own thread: a query keeps its thread busy, and the event loop that
 * streams must not feel it. Answers in the order of the questions.
 */
import { mkdirSync, readFileSync, renameSync, rmSync, statfsSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import { type MessagePort, parentPort, workerData } from 'node:worker_threads'
import { messages, PGlite, protocol, types } from '@electric-sql/pglite'
import type { Param } from './db.ts'
import { unpack } from './template.ts'

export interface WorkerData {
  /** The data folder, or null: in memory */
  folder: string | null
  /** The archive of a fresh database to begin from; for a folder, one that is not there yet */
  template: string | null
}
export type Question =
  | { id: number; op: 'query'; text: string; params: readonly Param[] }
  /** Several statements, no parameters */
  | { id: number; op: 'script'; text: string }
  | { id: number; op: 'close' }
export type Answer =
  | { id: number; rows: Record<string, unknown>[]; json: string[] }
  | { id: number; failure: { message: string; code: string; constraint: string | null } }
/** The first says whether the database is open; all others answer a question, in the order asked. */
export type Report = { ready: true } | { ready: false; why: string } | Answer

// PGlite's own list, with small shared buffers in place of 128 MB (RSS 180 against 290 MB).
const SETTINGS = [
  'search_path=public',
  'exit_on_error=false',
  'log_checkpoints=false',
  'max_worker_processes=0',
  'max_parallel_workers=0',
  'max_parallel_workers_per_gather=0',
  'max_parallel_maintenance_workers=0',
  'io_method=sync',
  'shared_buffers=16MB',
  // What is older than the last checkpoint is deleted, not kept to be written over (createUpkeep).
  'max_wal_size=64MB',
  'min_wal_size=32MB',
  // A statement's plan is made once, as a rule while the tables are still empty, and nothing gathers statistics
  // here: whatever an index can answer is to be read by it, in its order.
  'plan_cache_mode=force_generic_plan',
  'enable_seqscan=off',
  'enable_bitmapscan=off',
]

// Five times V8's default: functions that only a start needs hot are not optimised, which saves a start nearly a
// second of CPU and 30 MB. Those of every statement pass this mark within seconds.
setFlagsFromString('--wasm-tiering-budget=9000000')

// Parsed by the reader: a string crosses threads at the price of a copy, an object tree does not.
const asText = (text: string) => text
const parsers = { [types.JSON]: asText, [types.JSONB]: asText }

/** Under another name until it is whole: a start that is killed half way leaves nothing half made. */
async function makeFolder(folder: string, template: string): Promise<void> {
  const unfinished = `${folder}.unfinished`
  rmSync(unfinished, { recursive: true, force: true })
  mkdirSync(unfinished, { mode: 0o700 })
  await unpack(template, unfinished)
  renameSync(unfinished, folder)
}

async function open({ folder, template }: WorkerData): Promise<PGlite> {
  if (folder !== null && template !== null) await makeFolder(folder, template)
  return PGlite.create({
    ...(folder === null ? {} : { dataDir: folder }),
    ...(folder === null && template !== null
      ? { loadDataDir: new Blob([readFileSync(template)], { type: 'application/gzip' }) }
      : {}),
    startParams: ['--single', '-F', '-O', '-j', ...SETTINGS.flatMap((setting) => ['-c', setting])],
    parsers,
  })
}

const { serialize } = protocol

/** The folder is written through as it is: there is nothing to synchronise after a query. */
const IN_PLACE = { syncToFs: false }

/** A statement that the database has parsed and keeps under a name. */
interface Prepared {
  name: string
  fields: { name: string; dataTypeID: number }[]
  /** Columns that the reader has to parse */
  json: string[]
}
type Ask = (text: string, params: readonly Param[]) => Promise<{ rows: Row[]; json: string[] }>
type Row = Record<string, unknown>

/** Texts differ by the columns that they set, so there are few; this many mean that something is wrong. */
const MOST_PREPARED = 500

/**
 * Queries by the extended protocol, each text parsed once and each execution one message: the library's own
 * `query` goes five times into the WebAssembly module, which takes longer than most of our statements.
 */
function createAsking(db: PGlite): { ask: Ask; forget(): Promise<void>; isFree(): boolean } {
  const prepared = new Map<string, Prepared>()
  let status = 'I'

  async function prepare(text: string): Promise<Prepared> {
    if (prepared.size >= MOST_PREPARED) await forget()
    const name = `s${prepared.size}`
    const { messages: answers } = await db.execProtocol(
      Buffer.concat([
        serialize.parse({ name, text }),
        serialize.describe({ type: 'S', name }),
        serialize.sync(),
      ]),
      IN_PLACE,
    )
    const described = answers.find((answer) => answer instanceof messages.RowDescriptionMessage)
    const fields = described?.fields ?? []
    const json = fields.filter(({ dataTypeID }) => dataTypeID in parsers).map((field) => field.name)
    const made = { name, fields, json }
    prepared.set(text, made)
    return made
  }

  async function forget(): Promise<void> {
    prepared.clear()
    await db.exec('deallocate all')
  }

  return {
    forget,
    /** No transaction is open */
    isFree: () => status === 'I',
    async ask(text, params) {
      const { name, fields, json } = prepared.get(text) ?? (await prepare(text))
      const { messages: answers } = await db.execProtocol(
        Buffer.concat([
          serialize.bind({ statement: name, values: params.map(inText) }),
          serialize.execute({}),
          serialize.sync(),
        ]),
        IN_PLACE,
      )
      const rows: Row[] = []
      let isWhole = false
      for (const answer of answers) {
        if (answer instanceof messages.ReadyForQueryMessage) {
          status = answer.status
          isWhole = true
        }
        if (!(answer instanceof messages.DataRowMessage)) continue
        const row: Row = {}
        for (const [i, field] of fields.entries()) {
          row[field.name] = types.parseType(answer.fields[i] ?? null, field.dataTypeID, db.parsers)
        }
        rows.push(row)
      }
      // PostgreSQL has given up, on a full disk for one, and says nothing more to whatever is asked.
      if (!isWhole) process.exit(1)
      return { rows, json }
    },
  }
}

/** A parameter as the protocol's text form has it; bytes travel as they are. */
function inText(param: Param): string | Uint8Array | null {
  if (param === null || typeof param === 'string' || param instanceof Uint8Array) return param
  if (typeof param !== 'object') return String(param)
  return `{${param.map((item) => `"${item.replace(/["\\]/g, '\\$&')}"`).join(',')}}`
}

async function answer(
  db: PGlite,
  asking: ReturnType<typeof createAsking>,
  question: Question,
): Promise<Answer> {
  const { id, op } = question
  try {
    if (op === 'query') return { id, ...(await asking.ask(question.text, question.params)) }
    if (op === 'script') {
      await db.exec(question.text)
      // It may have changed what the statements stand on.
      await asking.forget()
    } else await db.close()
    return { id, rows: [], json: [] }
  } catch (err) {
    const { message, code, constraint } = err as Error & { code?: string; constraint?: string }
    return { id, failure: { message, code: code ?? 'XX000', constraint: constraint ?? null } }
  }
}

/** No room for its log ends PostgreSQL. PGlite goes on as if it had not, and never comes back from the next statement. */
const isTheEnd = ({ code, message }: { code?: string; message: string }): boolean =>
  code === '53100' && message.includes('pg_wal')

/** Statements between two looks, each of which costs about one statement */
const LOOK_EVERY = 100
const MOST_LOG = 32 << 20
/** Bytes on the disk that no vacuum may need */
const SPARE = 64 << 20
/** Without a statement for so long: whoever asks next has most likely not begun yet */
const QUIET_MS = 300
/** Longest that such a moment is waited for */
const PATIENCE_MS = 600_000

/**
 * How long the log is, and the table that needs a vacuum most: for its dead rows, counted much as a server's autovacuum
 * does, or for rows that are 200 million transactions old: at two billion old rows would be out of sight. What is counted
 * is lost when a process ends, so that each vacuums all tables once.
 */
const LOOK = `
  select pg_wal_lsn_diff(pg_current_wal_lsn(), redo_lsn)::float8 as bytes, (
    select oid::regclass::text from pg_class
     where relkind in ('r', 't') and (
       pg_stat_get_dead_tuples(oid) > 1000 + pg_stat_get_live_tuples(oid) / 10
       or age(relfrozenxid) > 200000000
       or relkind = 'r' and relnamespace = 'public'::regnamespace
          and pg_stat_get_vacuum_count(oid) = 0 and pg_relation_size(oid) > 0
     )
     order by pg_stat_get_dead_tuples(oid) desc limit 1
  ) as worn from pg_control_checkpoint()`
const SIZE = 'select pg_total_relation_size($1::regclass)::float8 as bytes'
/** What a vacuum notes of a table while it is small would be planned for ever: see SETTINGS. */
const FORGET_SIZES = `
  select pg_clear_relation_stats('public', relname::text) from pg_class
   where relnamespace = 'public'::regnamespace
     and (oid = $1::regclass or oid in (select indexrelid from pg_index where indrelid = $1::regclass))`

/**
 * What PostgreSQL does not do standing alone. Without checkpoints its write-ahead log would grow for as long as the
 * process lives, and after a kill the next start would go through all of it. Without vacuums the room of deleted rows
 * would never be used again.
 */
function createUpkeep(
  db: PGlite,
  folder: string | null,
  isFree: () => boolean,
  inLine: (work: () => Promise<void>) => void,
) {
  let count = 0
  let worn: string | null = null
  let wornAt = 0
  let quiet: NodeJS.Timeout | undefined

  async function look(): Promise<void> {
    const { rows } = await db.query<{ bytes: number; worn: string | null }>(LOOK)
    if ((rows[0]?.bytes ?? 0) > MOST_LOG) await db.exec('checkpoint')
    if (worn === null) wornAt = performance.now()
    worn = rows[0]?.worn ?? null
  }

  async function vacuum(): Promise<void> {
    // Inside a transaction it would fail, and the transaction with it.
    if (worn === null || !isFree()) return
    const table = worn
    worn = null
    // The first vacuum writes all of the table into the log as well, which no checkpoint shortens meanwhile.
    const { rows } = await db.query<{ bytes: number }>(SIZE, [table])
    const bytes = rows[0]?.bytes ?? 0
    if (folder !== null && freeIn(folder) < bytes + SPARE) return
    if (bytes > MOST_LOG) await db.exec('checkpoint')
    await db.exec(`vacuum ${table}`)
    await db.query(FORGET_SIZES, [table])
    await look()
  }

  /** Once its caller has its answer: one that comes meanwhile waits. */
  async function after(due: () => Promise<void>): Promise<void> {
    clearTimeout(quiet)
    // Within a transaction that has failed, on a full disk, or closed meanwhile: the next look is soon.
    await due().catch((err: Error) => {
      if (isTheEnd(err)) process.exit(1)
    })
    if (worn !== null) quiet = setTimeout(() => inLine(() => after(vacuum)), QUIET_MS)
  }

  return () =>
    after(async () => {
      if (++count % LOOK_EVERY === 0) await look()
      if (worn !== null && performance.now() - wornAt > PATIENCE_MS) await vacuum()
    })
}

function freeIn(folder: string): number {
  const { bavail, bsize } = statfsSync(folder)
  return bavail * bsize
}

async function serve(port: MessagePort, data: WorkerData): Promise<void> {
  const report = (message: Report) => port.postMessage(message)
  try {
    const db = await open(data)
    const asking = createAsking(db)
    // One after the other: a statement is prepared and executed in two messages.
    let last = Promise.resolve()
    const inLine = (work: () => Promise<void>) => {
      last = last.then(work)
    }
    const keepUp = createUpkeep(db, data.folder, asking.isFree, inLine)
    port.on('message', (question: Question) => {
      inLine(async () => {
        const given = await answer(db, asking, question)
        report(given)
        if ('failure' in given && isTheEnd(given.failure)) process.exit(1)
        await keepUp()
      })
    })
    report({ ready: true })
  } catch (err) {
    report({ ready: false, why: err instanceof Error ? err.message : String(err) })
    port.close()
  }
}

if (parentPort) await serve(parentPort, workerData as WorkerData)
