/**
 * The log: JSON lines without secrets, one line when a server that Baton depends on goes away, and the lines that turns
 * and their calls leave behind.
 */
import { type DestinationStream, type Logger, type LoggerOptions, pino } from 'pino'
import sonicBoom from 'sonic-boom'
import { isRecord } from './chat/json.ts'
import type { Outcome, Usage } from './chat/message.ts'
import { type ErrorBody, type ErrorCode, inFull, isCallersFault, isUnavailable } from './errors.ts'

/** Names under which a secret may appear: at the top of a line's fields, one level down, or among headers. */
const SECRET_NAMES = [
  'authorization',
  '["x-api-key"]',
  '["x-goog-api-key"]',
  '["proxy-authorization"]',
  'cookie',
  '["set-cookie"]',
  'api_key',
  'apiKey',
  'access_token',
  'refresh_token',
  'id_token',
  'client_secret',
  'password',
  'secret',
]

const below = (parent: string, name: string) => (name.startsWith('[') ? parent + name : `${parent}.${name}`)

/**
 * Longest that a line waits for others to be written with it: a blocking write for each took a fifth of what a turn
 * costs this process. A fatal line is written at once.
 */
const FLUSH_MS = 100
/** Bytes that wait for a reader, or for room on a disk; lines that do not fit are dropped, and counted */
const MOST_WAITING = 1 << 20
/** At exit, a pipe that stays full is tried this often, 100 ms apart. */
const LAST_TRIES = 20

/**
 * In place of pino's own stream, which ends the process when a disk is full, and hangs at the end of a process whose
 * reader has gone (Ctrl-C in `npm start | jq` ends both). `onLost` is told how many lines were dropped once there is
 * room again.
 */
function stdout(onLost: (lines: number) => void): DestinationStream {
  let tries = Number.POSITIVE_INFINITY
  let lost = 0
  const stream = new sonicBoom.SonicBoom({
    fd: 1,
    sync: false,
    minLength: 4096,
    periodicFlush: FLUSH_MS,
    maxLength: MOST_WAITING,
    retryEAGAIN: () => tries-- > 0,
  })
  // A log that cannot be written is no reason to fail a turn. It is tried again with the next flush.
  stream.on('error', () => {})
  stream.on('drop', () => lost++)
  stream.on('drain', () => {
    const lines = lost
    lost = 0
    if (lines > 0) onLost(lines)
  })
  process.once('exit', () => {
    tries = LAST_TRIES
    try {
      stream.flushSync()
    } catch {
      // Nobody reads it.
    }
  })
  return stream
}

/** JSON lines to stdout, or to `destination`. A secret under one of the usual names is written as `***`. */
export function createLog(level: string, destination?: DestinationStream): Logger {
  const paths = SECRET_NAMES.flatMap((name) => [
    name,
    below('*', name),
    below('headers', name),
    below('*.headers', name),
  ])
  const redact = { paths, censor: '***' }
  const tellLost = (lines: number) => log.warn({ lines }, 'lines of the log were lost')
  const options = { level, base: null, redact, hooks: { logMethod } }
  const log = pino(options, destination ?? stdout(tellLost))
  return log
}

/** Failures that doors have logged (createPresence). */
const told = new WeakSet<object>()
const isTold = (thrown: unknown): boolean =>
  thrown instanceof Error && (told.has(thrown) || isTold(thrown.cause))

/**
 * While a server is away, everything that needs it fails, again and again. Its door logs that once; all other lines
 * about it go to `debug`.
 */
const logMethod: LogHook = function (given, method, level) {
  const [line] = given as [{ err?: unknown } | undefined]
  const isRepetition = (level === WARN || level === ERROR) && isUnavailable(line?.err) && isTold(line?.err)
  return isRepetition ? this.debug(...given) : method.apply(this, given)
}
type LogHook = NonNullable<NonNullable<LoggerOptions['hooks']>['logMethod']>
const [WARN, ERROR] = [40, 50]

/** What operators hear of something that Baton depends on: one line when it goes away, one when it is back. */
interface Presence {
  /** It cannot be used; `thrown` says why */
  away(thrown: unknown): void
  /** It has worked again */
  back(): void
  /** Nothing is said about it any more */
  close(): void
}

/**
 * The line is repeated after this time: by then the reason is the lasting one, not what connections met as it went
 * away.
 */
const SETTLED_MS = 60_000
/** … and then at this interval */
const REMIND_MS = 600_000
/** The server is back once nothing has failed for this long: if connections run out, some fail and others do not. */
const CALM_MS = 5_000

/** `isAway`, `isBack`: what the two lines say. */
export function createPresence(log: Pick<Logger, 'info' | 'warn'>, isAway: string, isBack: string): Presence {
  let saidAt: number | null = null
  let isRepeated = false
  let calm: NodeJS.Timeout | null = null
  let isClosed = false
  const sayBack = () => {
    saidAt = calm = null
    log.info(isBack)
  }
  return {
    away(thrown) {
      if (thrown instanceof Error) told.add(thrown)
      if (isClosed) return
      if (calm) clearTimeout(calm)
      calm = null
      const now = performance.now()
      if (saidAt !== null && now - saidAt < (isRepeated ? REMIND_MS : SETTLED_MS)) return
      isRepeated = saidAt !== null
      saidAt = now
      log.warn({ reason: inFull(thrown) }, isAway)
    },
    back() {
      if (saidAt !== null && !isClosed) calm ??= setTimeout(sayBack, CALM_MS).unref()
    },
    close() {
      isClosed = true
      if (calm) clearTimeout(calm)
    },
  }
}

/** The lines that a turn leaves behind: ids and figures, nothing that was said. */
type OfTurn<Told> = { session_id: string; turn_id: string } & Told
interface Lines {
  /** Leads from a request's id to its turn, and back */
  'turn accepted': OfTurn<{ request_id: string; outcome: 'created' | 'queued' | 'replayed' }>
  'model call ended': OfTurn<{
    provider: string
    deployment: string
    model: string
    credential_id: string | null
    outcome: string
    attempts: number
    ms: number
    first_event_ms: number | null
    usage: Usage | null
  }>
  'tool call ended': OfTurn<{
    call_id: string
    exec_id: string
    tool: string
    outcome: Outcome
    ms: number
  }>
  'turn ended': OfTurn<{
    state: string
    /** Of the error, if the turn failed */
    code?: ErrorCode
    /** If the turn failed; null if no credential had been chosen */
    credential_id?: string | null
    steps: number
    ms: number
  }>
}

/** Such lines have no place for a secret. They are not searched for one, since that costs more than writing them. */
const unsearched = new WeakMap<Logger, Logger>()

/** Logs a failure with what is known of its reason, at `warn` unless it is the caller's doing; all else at `info`. */
export function logLine<K extends keyof Lines>(
  log: Logger,
  message: K,
  fields: Lines[K],
  failure: Failure | null = null,
): void {
  const plain = unsearched.get(log) ?? log.child({}, { redact: [] })
  unsearched.set(log, plain)
  const line: object = failure ? { ...fields, ...reasonOf(failure) } : fields
  if (failure && !isCallersFault(failure.code)) plain.warn(line, message)
  else plain.info(line, message)
}

type Failure = { code: ErrorCode; details?: ErrorBody['details'] | undefined }

/**
 * A code that a system or a vendor has for programs. A vendor's words are for the caller alone: they may quote the
 * chat.
 */
const CODE = /^[\w.:-]{1,100}$/

function reasonOf({ details = {} }: Failure): object {
  const upstream = isRecord(details.upstream) ? details.upstream : {}
  const told = {
    reason: details.reason,
    phase: details.phase,
    upstream_status: upstream.status,
    upstream_type: upstream.type,
    upstream_code: upstream.code,
    upstream_reason: upstream.reason,
    upstream_request_id: upstream.request_id,
  }
  return Object.fromEntries(Object.entries(told).filter(([, value]) => isCode(value)))
}

const isCode = (value: unknown): boolean =>
  typeof value === 'number' || (typeof value === 'string' && CODE.test(value))
