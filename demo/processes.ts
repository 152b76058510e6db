/** The processes that the demo starts: the gateway, and two MCP servers from the npm registry. */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { ENV_KEYS, SETTINGS } from '../src/config/settings.ts'
import { freePort } from '../test/servers.ts'

const root = join(dirname(fileURLToPath(import.meta.url)), '../..')
const require = createRequire(import.meta.url)
const started: ChildProcess[] = []
const SETTING_NAMES = new Set(
  [...Object.values(SETTINGS), ...Object.values(ENV_KEYS)].map(({ name }) => name),
)

/** Ends all processes, ready or not, the last one first. */
export async function stopAll(): Promise<void> {
  for (let child = started.pop(); child; child = started.pop()) await stop(child)
}

function start(args: string[], options: SpawnOptions): ChildProcess {
  const child = spawn(process.execPath, args, options)
  started.push(child)
  return child
}

/** Starts the gateway, and gives its address once it is ready. */
export async function startBaton(folder: string, env: Record<string, string>): Promise<string> {
  const port = await freePort()
  // The shell's variables and a baton.yaml in the checkout are for another gateway, with its own database and keys.
  const outer = Object.entries(process.env).filter(
    ([name]) => !/^BATON_/i.test(name) && !SETTING_NAMES.has(name.toUpperCase()),
  )
  const child = start(['--enable-source-maps', join(root, 'dist/src/server.js')], {
    cwd: folder,
    env: { ...Object.fromEntries(outer), BATON_PORT: String(port), BATON_LOG_LEVEL: 'warn', ...env },
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  const url = `http://127.0.0.1:${port}`
  await until(child, `${url}/readyz`, (status) => status === 200)
  return url
}

/** Starts the reference server with a tool of every kind, over streamable HTTP, and gives its address. */
export async function startEverything(): Promise<string> {
  const port = await freePort()
  const entry = require.resolve('@modelcontextprotocol/server-everything/dist/index.js')
  const child = start([entry, 'streamableHttp'], {
    env: { ...process.env, PORT: String(port) },
    stdio: 'ignore',
  })
  const url = `http://127.0.0.1:${port}/mcp`
  await until(child, url, () => true)
  return url
}

/** The knowledge-graph server, as a stdio command that the gateway starts itself. */
export function memoryServer(folder: string) {
  const entry = require.resolve('@modelcontextprotocol/server-memory/dist/index.js')
  return { command: process.execPath, args: [entry], env: { MEMORY_FILE_PATH: join(folder, 'memory.jsonl') } }
}

async function until(child: ChildProcess, url: string, ready: (status: number) => boolean): Promise<void> {
  for (let tries = 0; tries < 300; tries++) {
    const ended = child.signalCode ?? child.exitCode
    if (ended !== null) throw new Error(`process for ${url} ended with ${ended}`)
    const status = await fetch(url).then(
      (response) => response.status,
      () => 0,
    )
    if (status !== 0 && ready(status)) return
    await sleep(100)
  }
  throw new Error(`${url} did not come up in 30 s`)
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), 10_000)
  await once(child, 'exit')
  clearTimeout(timer)
}
