/** One gateway process of the run: on a port of its own, killed, frozen and started again at will. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '../../..')
const SERVER = join(root, 'dist/src/server.js')
const READY_MS = 60_000

export interface Replica {
  readonly name: string
  readonly url: string
  /** Resolves when the replica is ready */
  start(): Promise<void>
  /** Resolves when what was started last is ready */
  ready(): Promise<void>
  signal(signal: NodeJS.Signals): void
  /** Sends the signal, waits for the end, and tells how the process ended. */
  end(signal: NodeJS.Signals): Promise<number | null>
  /** Null when the replica is down */
  pid(): number | null
  /** What its processes logged as an error */
  errors(): readonly string[]
}

/** `logs`: a folder for its whole log, or null. */
export function createReplica(
  name: string,
  port: number,
  env: Record<string, string>,
  logs: string | null,
): Replica {
  let child: ChildProcess | null = null
  let starting = Promise.resolve()
  /** The lines that it logged at level error and above, each as JSON, and texts on stderr */
  const errors: string[] = []
  const url = `http://127.0.0.1:${port}`
  const isUp = () => child !== null && child.exitCode === null && child.signalCode === null

  // A run that fails must not leave processes behind.
  process.once('exit', () => void child?.kill('SIGKILL'))

  async function startProcess(): Promise<void> {
    const mine = spawn(process.execPath, ['--enable-source-maps', SERVER], {
      cwd: root,
      // A baton.yaml in the checkout is another gateway's.
      env: { PATH: process.env.PATH, BATON_CONFIG: '/dev/null', BATON_PORT: String(port), ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    child = mine
    mine.stdout?.setEncoding('utf8').on('data', (text: string) => {
      if (logs) appendFileSync(join(logs, `${name}.log`), text)
      keepErrors(text, errors)
    })
    mine.stderr?.setEncoding('utf8').on('data', (text: string) => errors.push(text))
    for (let waited = 0; waited < READY_MS; waited += 50) {
      if (mine.exitCode !== null) throw new Error(`${name} ended with ${mine.exitCode}: ${errors.at(-1)}`)
      // Killed while it was starting: the code that killed it starts the next process.
      if (mine.signalCode !== null) return
      const status = await fetch(`${url}/readyz`, { signal: AbortSignal.timeout(2000) }).then(
        (answer) => answer.status,
        () => 0,
      )
      if (status === 200) return
      await sleep(50)
    }
    throw new Error(`${name} did not become ready`)
  }

  return {
    name,
    url,
    start() {
      starting = startProcess()
      // The code that needs the replica asks for this promise; until then its failure must not end the run.
      starting.catch(() => {})
      return starting
    },
    ready: () => starting,
    errors: () => errors.filter((line) => line.startsWith('{')),
    pid: () => (isUp() ? (child?.pid ?? null) : null),
    signal: (signal) => void child?.kill(signal),
    async end(signal) {
      if (!child || !isUp()) return child?.exitCode ?? null
      const exited = once(child, 'exit')
      child.kill(signal)
      await exited
      return child.exitCode
    },
  }
}

/** Levels of pino: 50 is error. */
function keepErrors(text: string, errors: string[]): void {
  for (const line of text.split('\n')) if (/"level":(50|60)/.test(line)) errors.push(line)
}
