/**
 * The embedded PostgreSQL, in its own thread: a query keeps its thread busy, and the event loop that
 * streams must not feel it. Answers in the order of the questions.
 */
import { mkdirSync, renameSync, rmSync } from 'node:fs'
import { getPriority, setPriority } from 'node:os'
import { setFlagsFromString } from 'node:v8'
import { type MessagePort, parentPort, workerData } from 'node:worker_threads'
import { messages, PGlite, protocol, types } from '@electric-sql/pglite'
import type { Param } from './db.ts'
import { createMaintenance, isTheEnd } from './pglite-maintenance.ts'
import { unpack } from './template.ts'

export interface WorkerData {
  folder: string
  /** The archive of a fresh database to begin from, if the folder does not exist yet */
  template: string | null
}
export type Question =
  | { id: number; op: 'query'; text: string; params: readonly Param[] }
  /** Several statements, no parameters */
  | { id: number; op: 'script'; text: string }
  | { id: number; op: 'close' }
export type Answer =
  | { id: number; rows: Record<string, unknown>[]; json: string[] }
  | { id: number; failure: Failure }
interface Failure {
  message: string
  code: string
  constraint: string | null
  severity: string | undefined
}
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
  // Logs older than the last checkpoint are deleted, not kept to be written over (pglite-maintenance.ts).
  'max_wal_size=64MB',
  'min_wal_size=32MB',
  // A statement's plan is made once, as a rule while the tables are still empty, and nothing gathers statistics here:
  // whatever an index can answer is to be read through it, in its order.
  'plan_cache_mode=force_generic_plan',
  'enable_seqscan=off',
  'enable_bitmapscan=off',
]

// A function is optimised once it has run for about a second in all, not for some milliseconds. So functions that only
// a start uses much are never optimised, which saves a start 0.3 s, 0.8 s of CPU and 35 MB. A statement's time shows no
// difference.
setFlagsFromString('--wasm-tiering-budget=800000000')

/**
 * Where the two threads share a core, a query of milliseconds gives way to the event loop: streams beside turns with a
 * long history have a fifth of the delay (p99). Linux alone has a priority for each thread.
 */
function giveWay(): void {
  if (process.platform !== 'linux') return
  try {
    setPriority(0, Math.min(getPriority(0) + 5, 19))
  } catch {
    // A sandbox may refuse it.
  }
}

giveWay()

// Parsed by the reader: a string crosses threads at the price of a copy, an object tree does not.
const asText = (text: string) => text
const parsers = { [types.JSON]: asText, [types.JSONB]: asText }

/** The folder has another name until it is whole: a start that is killed half way leaves no half-made one. */
async function makeFolder(folder: string, template: string): Promise<void> {
  const unfinished = `${folder}.unfinished`
  rmSync(unfinished, { recursive: true, force: true })
  mkdirSync(unfinished, { mode: 0o700 })
  await unpack(template, unfinished)
  renameSync(unfinished, folder)
}

async function open({ folder, template }: WorkerData): Promise<PGlite> {
  if (template !== null) await makeFolder(folder, template)
  return PGlite.create({
    dataDir: folder,
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

/** Texts differ only by the columns that they set, so there are few; this many mean that something is wrong. */
const MOST_PREPARED = 500

/**
 * Queries by the extended protocol, each text parsed once and each execution one message: the library's own
 * `query` goes five times into the WebAssembly module, which takes longer than most of our statements.
 */
function createAsking(db: PGlite): { ask: Ask; forget(): Promise<void>; isFree(): boolean } {
  const prepared = new Map<string, Prepared>()
  let status = 'I'

  async function prepare(text: string): Promise<Prepared> {
    // A failed transaction takes nothing but its rollback, which may be the very statement to prepare.
    if (prepared.size >= MOST_PREPARED && status === 'I') await forget()
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
      // PostgreSQL has given up, for instance on a full disk, and answers nothing any more.
      if (!isWhole) process.exit(1)
      return { rows, json }
    },
  }
}

/** A parameter in the protocol's text form; bytes travel as they are. */
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
      // The script may have changed tables and functions that prepared statements use.
      await asking.forget()
    } else await db.close()
    return { id, rows: [], json: [] }
  } catch (err) {
    const { message, code = 'XX000', constraint = null, severity } = err as Error & Partial<Failure>
    return { id, failure: { message, code, constraint, severity } }
  }
}

/** What PGlite says when PostgreSQL has ended: what PostgreSQL said of it is lost. */
const GAVE_UP = /^(Aborted\(|PGlite failed to initialize|unreachable)/

/** PGlite's file system throws no Error but an object with WASI's number for what the system refused. */
function inWords(thrown: unknown): string {
  if (thrown instanceof Error) {
    if (!GAVE_UP.test(thrown.message)) return thrown.message
    return 'PostgreSQL gave up. Is the disk full? Otherwise files are missing, damaged, or of another version of PostgreSQL, as after a power failure or a copy while it ran: restore the data folder from a backup.'
  }
  const { errno } = thrown as { errno?: number }
  return `one of its files cannot be used (${errno === 2 ? 'permission denied' : `WASI error ${errno}`}). All must be there, and belong to the user that Baton runs as.`
}

async function serve(port: MessagePort, data: WorkerData): Promise<void> {
  const report = (message: Report) => port.postMessage(message)
  try {
    const db = await open(data)
    const asking = createAsking(db)
    // One question after the other: a statement is prepared and executed in two messages.
    let last = Promise.resolve()
    const inLine = (work: () => Promise<void>) => {
      last = last.then(work)
    }
    const maintain = createMaintenance(db, data.folder, asking.isFree, inLine)
    port.on('message', (question: Question) => {
      inLine(async () => {
        const given = await answer(db, asking, question)
        report(given)
        if ('failure' in given && isTheEnd(given.failure)) process.exit(1)
        await maintain()
      })
    })
    report({ ready: true })
  } catch (err) {
    report({ ready: false, why: inWords(err) })
    port.close()
  }
}

if (parentPort) await serve(parentPort, workerData as WorkerData)
