/** The process: configuration, listening, signals. The only file that may end it. */
import { closeSync, openSync } from 'node:fs'
import { constants } from 'node:os'
import { isatty } from 'node:tty'
import { format } from 'node:util'
import closeWithGrace from 'close-with-grace'
import { ConfigError, EX_CONFIG, loadConfig } from './config/load.ts'
import { inFull } from './errors.ts'
import { openDatabase } from './store/open.ts'
import { oneLine } from './text.ts'

const started = performance.now()
const STOP_SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const
/** npm passes on a signal that the whole process group got already: one that comes again so soon is the same. */
const REPEAT_MS = 2_000

/**
 * Before the process serves there is nothing to hand over, and the store's work is one transaction. The default action
 * would do as well, but not in process 1 of a container, which ignores signals that it has no handler for.
 */
let stop = (signal: NodeJS.Signals): void => process.exit(128 + constants.signals[signal])
for (const signal of STOP_SIGNALS) process.on(signal, () => stop(signal))

/**
 * At exit, Node resets the terminal. If the terminal was closed meanwhile, Node 20 fails an assertion, and spins while
 * it reports the failure (nodejs/node#51519).
 */
const terminals = [0, 1, 2].filter((fd) => isatty(fd))
process.once('exit', () => {
  for (const fd of terminals.filter((fd) => !isatty(fd))) {
    closeSync(fd)
    // The new file gets the lowest free number, the closed one's. Node leaves it alone, since it is not the same file
    // any more.
    openSync('/dev/null', 'r+')
  }
})

function load() {
  try {
    return loadConfig(process.env, process.cwd())
  } catch (failure) {
    if (!(failure instanceof ConfigError)) throw failure
    process.stderr.write(`${failure.message}\n`)
    process.exit(EX_CONFIG)
  }
}

const { config, warnings } = load()
// The embedded database opens in its own thread while this one loads all the rest.
const { databaseUrl, dataDir, limits } = config
const database = openDatabase({ databaseUrl, dataDir, poolSize: limits.databasePool })
database.catch(() => {}) // createApp waits for it, and says why it failed
const [{ createApp }, { StartupError }, { loadRules }, { createLog }] = await Promise.all([
  import('./app.ts'),
  import('./tools/startup.ts'),
  import('./tools/redact.ts'),
  import('./log.ts'),
])
const log = createLog(config.logLevel)
// The MCP SDK writes names there that servers gave their tools: strangers' words, of several lines if they like.
console.warn = (...given) => {
  const words = oneLine(format(...given))
  if (words.startsWith('[mcp-sdk]')) log.debug(words)
  else log.warn(words)
}
for (const warning of warnings) log.warn(warning)
try {
  const app = await createApp(config, { database, log })
  // For `localhost` Fastify opens a second server, on ::1, that lacks all that src/http.ts adds to the first.
  const host = config.host === 'localhost' ? '127.0.0.1' : config.host
  const url = await app.http.listen({ host, port: config.port }).catch(async (failure: unknown) => {
    await app.close()
    const isTaken = (failure as NodeJS.ErrnoException).code === 'EADDRINUSE'
    const remedy = isTaken ? 'Stop what listens there, or set' : 'Correct'
    throw new Error(`${inFull(failure)}. ${remedy} BATON_HOST or BATON_PORT.`)
  })
  log.info({ url, ready_ms: Math.round(performance.now() - started) }, 'baton is ready')
  // Exit, so that the supervisor restarts the process.
  void (await database).lost?.then((err) => {
    log.fatal({ err }, 'the process is ending: its embedded database is gone')
    process.exit(1)
  })
  // The rules of redaction are loaded in the background: neither readiness nor the first tool call waits for them. A
  // failure shows where they are used.
  setTimeout(() => loadRules().catch(() => {}), 100).unref()
  // Past the drain the parts have a little time of their own to close.
  const delay = (config.drainSeconds + 15) * 1000
  let toldAt: number | null = null
  const { close } = closeWithGrace({ delay, skip: [...STOP_SIGNALS] }, async ({ err, signal }) => {
    toldAt ??= performance.now()
    if (err) log.fatal({ err }, 'the process is ending: an error was not caught')
    else if (signal) log.info({ signal }, 'shutting down')
    await app.close()
    const ms = Math.round(performance.now() - toldAt)
    log.info({ handed_over: app.handedOver(), ms }, 'stopped')
  })
  stop = (signal) => {
    if (toldAt === null) {
      log.info({ signal }, 'shutting down')
      close()
    } else if (performance.now() - toldAt > REPEAT_MS) {
      log.fatal({ signal }, 'the process is ending at once: a second signal came')
      process.exit(1)
    }
  }
} catch (failure) {
  if (failure instanceof StartupError || failure instanceof ConfigError) {
    process.stderr.write(`${failure.message}\n`)
    process.exit(failure instanceof StartupError ? failure.exitCode : EX_CONFIG)
  }
  process.stderr.write(`Baton cannot start: ${inFull(failure)}\n`)
  process.exit(1)
}
