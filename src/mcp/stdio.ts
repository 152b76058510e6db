/**
 * A stdio server as a transport for the SDK: its own process group, an environment of declared names only, stderr
 * always drained, and an end that takes every descendant along. The SDK's own transport hands six variables of the
 * gateway down and signals only the direct child. lines.ts reads what the process says.
 */
import { type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import type { Transport } from '@modelcontextprotocol/client'
import { within } from '../within.ts'
import { childEnv } from './child-env.ts'
import { McpError, type McpServerSpec } from './contract.ts'
import { type LineReader, readLines } from './lines.ts'
import type { Sandbox } from './sandbox.ts'
import { scrubbedEnd, scrubbedText } from './scrub.ts'
import type { Watchdog } from './watchdog.ts'

const STDERR_BYTES = 8 * 1024
/** Characters shown of it. Node gives an error's reason first, then pages of places and properties; Python gives it last. */
const SHOWN = { start: 400, end: 600 }
/** Longest wait for the end after stdin closed, and again after SIGTERM. */
const GRACE_MS = 1_500
const DRAIN_MS = 500

interface StdioOptions {
  maxBytes: number
  watchdog: Watchdog
  /** The sandbox that the process runs in; null: none */
  sandbox: Sandbox | null
}

/** A transport with the facts that explain how its process ended. */
export interface StdioTransport extends Transport, LineReader {
  /** Ends the process: EOF, SIGTERM, SIGKILL, the latter two to the whole group. */
  close(): Promise<void>
  /** How the process ended and the last lines that it wrote to stderr; both empty while it runs quietly. */
  obituary(): { ending: string; words: string }
}

type Child = ChildProcessByStdio<Writable, Readable, Readable>

/** A transport that is not started yet. `start` rejects with an McpError if the program cannot be run. */
export function createStdioTransport(spec: McpServerSpec, options: StdioOptions): StdioTransport {
  const env = childEnv(spec.env ?? {})
  const plain = { command: spec.command ?? '', args: spec.args ?? [] }
  const { command, args } = options.sandbox?.around(plain.command, plain.args) ?? plain
  let running: { child: Child; group: number; ended: Promise<void> } | null = null
  let ending = ''
  /** The process reads no more: nobody runs what is sent now, though its last output is still being read */
  let isLeaving = false
  let stderr = Buffer.alloc(0)

  const transport: StdioTransport = {
    async start() {
      const child = spawn(command, args, { env, detached: true, stdio: 'pipe', shell: false })
      const started = spawned(child, spec)
      const group = child.pid
      // A process that did not start may have no pipes either, as with too many open files.
      if (group === undefined) return started
      child.stderr.on('data', (chunk: Buffer) => {
        stderr = Buffer.concat([stderr, chunk]).subarray(-STDERR_BYTES)
      })
      // Without its pipes the process is of no use, however long it lives on: a call would wait for its whole timeout.
      child.stdout.once('close', () => void transport.close())
      child.stdin.on('error', () => void transport.close())
      // Before the wait, in which the process may be closed already: then it must not be left running.
      options.watchdog.add(group)
      const closed = new Promise((resolve) => child.once('close', resolve))
      const ended = exit(child).then(async (how) => {
        isLeaving = true
        // The leader is gone, its group may not be. A group's id is not given out again before the group is empty.
        killGroup(group, 'SIGKILL')
        options.watchdog.remove(group)
        await drained(child, closed)
        ending = how
        transport.onclose?.()
      })
      running = { child, group, ended }
      readLines(child.stdout, transport, options.maxBytes)
      return started
    },
    send(message) {
      return new Promise((resolve, reject) => {
        if (!running || isLeaving)
          return reject(new McpError('disconnected', `${spec.name} is not running`, { sent: false }))
        const { child, ended } = running
        child.stdin.write(`${JSON.stringify(message)}\n`, (error) => {
          if (!error) return resolve()
          // The process closed its end, as a rule because it ends; else it is ended now. How it ended says more than the
          // pipe's error, and is heard first.
          void ended.then(() => reject(error))
        })
      })
    },
    async close() {
      if (!running) return transport.onclose?.()
      const { child, group, ended } = running
      isLeaving = true
      child.stdin.end()
      if (await settles(ended, GRACE_MS)) return
      killGroup(group, 'SIGTERM')
      if (await settles(ended, GRACE_MS)) return
      killGroup(group, 'SIGKILL')
      await ended
    },
    obituary() {
      const isWhole = stderr.length < STDERR_BYTES
      const words = (isWhole ? scrubbedText : scrubbedEnd)(stderr.toString('utf8'), spec).trim()
      if (words.length <= SHOWN.start + SHOWN.end) return { ending, words }
      const start = isWhole ? words.slice(0, SHOWN.start) : ''
      return { ending, words: `${start} … ${words.slice(-SHOWN.end)}`.trim() }
    },
  }
  return transport
}

/** Resolves once the program runs; a missing or forbidden command rejects. */
function spawned(child: Child, { name, command = '', isConfigured }: McpServerSpec): Promise<void> {
  return new Promise((resolve, reject) => {
    child.once('spawn', resolve)
    child.once('error', (error: NodeJS.ErrnoException) => {
      // The error's words name the program, which is not for all owners.
      const said = isConfigured ? ` (${error.code})` : `: ${error.message}`
      const why = error.code === 'ENOENT' ? said + whyMissing(command) : said
      const facts = { sent: false, lastWords: isConfigured ? error.message : undefined, cause: error }
      reject(new McpError('unavailable', `${name} cannot be started${why}`, facts))
    })
  })
}

function whyMissing(command: string): string {
  if (/\s/.test(command)) return ' [Its command is the program alone; arguments go into args.]'
  if (command.includes('/')) return ''
  return " [Baton does not search your shell's PATH: write the program's whole path, or set PATH in env.]"
}

/** `exit`, not `close`: a grandchild may hold the pipes open for ever. */
const exit = (child: Child): Promise<string> =>
  new Promise((resolve) => {
    child.once('exit', (code, signal) =>
      resolve(signal ? `was ended by ${signal}` : `exited with code ${code}`),
    )
  })

/**
 * Waits until the process's last output is read, then cuts pipes that a runaway descendant still holds. `closed` was
 * asked for at the start: a process that had closed its pipes itself is closed as it exits.
 */
async function drained(child: Child, closed: Promise<unknown>): Promise<void> {
  await settles(closed, DRAIN_MS)
  for (const stream of [child.stdout, child.stderr]) stream.destroy()
}

function killGroup(group: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-group, signal)
  } catch {
    // The group is empty.
  }
}

const settles = async (promise: Promise<unknown>, ms: number): Promise<boolean> =>
  (await within(
    ms,
    promise.then(() => true),
  )) !== null
