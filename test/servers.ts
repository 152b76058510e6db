/**
 * Real servers for tests: a PostgreSQL and a Redis of their own in the temporary folder, on a free loopback
 * port. They end with `stop()` and with the process. Both programs must be installed; `newDatabase` needs only
 * the address of a server.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { randomBytes, randomInt } from 'node:crypto'
import { once } from 'node:events'
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import type { Test } from 'tap'

export interface RunningServer {
  url: string
  /** Ends the server, by default as an orderly stop does; its data and its port stay. */
  down(signal?: NodeJS.Signals): Promise<void>
  /** Starts the server again where it was. */
  up(): Promise<void>
  stop(): Promise<void>
}

/**
 * With `durable` the server syncs to disk as a real one does; tests have no use for that. initdb and the server
 * refuse to run as root: then they run as the user `postgres`.
 */
export async function startPostgres({ durable = false } = {}): Promise<RunningServer> {
  const bin = postgresBin()
  const dir = ownFolder('baton-pg-')
  const user = unprivileged()
  if (user) chownSync(dir, user.uid, user.gid)
  const data = join(dir, 'data')
  execFileSync(
    join(bin, 'initdb'),
    ['-D', data, '-U', 'baton', '-A', 'trust', '-E', 'UTF8', '--locale=C', '-N'],
    {
      ...user,
      cwd: dir,
      stdio: 'ignore',
    },
  )
  const port = await freePort()
  const careless = durable
    ? []
    : ['-c', 'fsync=off', '-c', 'synchronous_commit=off', '-c', 'full_page_writes=off']
  const args = ['-D', data, '-k', dir, '-h', '127.0.0.1', '-p', String(port), ...careless]
  const start = () =>
    spawn(join(bin, 'postgres'), args, { ...user, cwd: dir, stdio: ['ignore', 'ignore', 'pipe'] })
  return running(`postgresql://baton@127.0.0.1:${port}/postgres`, dir, 'SIGINT', start)
}

/** `more`: further options of its command line. */
export async function startRedis(...more: string[]): Promise<RunningServer> {
  const dir = ownFolder('baton-redis-')
  const port = await freePort()
  const args = [
    '--port',
    String(port),
    '--bind',
    '127.0.0.1',
    '--dir',
    dir,
    '--save',
    '',
    '--appendonly',
    'no',
    // A copy begins at once.
    '--repl-diskless-sync-delay',
    '0',
    ...more,
  ]
  const start = () => spawn('redis-server', args, { stdio: ['ignore', 'pipe', 'ignore'] })
  return running(`redis://127.0.0.1:${port}`, dir, 'SIGTERM', start)
}

/** A folder that is deleted with the process, too, which ends the server in it first. */
function ownFolder(prefix: string): string {
  const dir = mkdtempSync(join(tmpdir(), prefix))
  // PostgreSQL's processes outlive the first of them for a moment, and may write meanwhile.
  process.once('exit', () => rmSync(dir, { recursive: true, force: true, maxRetries: 10 }))
  return dir
}

/** Makes a database of the test's own on that server, dropped afterwards, and gives its address. `how` is SQL. */
export async function newDatabase(t: Test, server: string, how = ''): Promise<string> {
  const name = `baton_test_${randomBytes(6).toString('hex')}`
  const admin = (sql: string) => onConnection(server, (client) => client.query(sql))
  await admin(`create database ${name} ${how}`)
  t.teardown(() => admin(`drop database if exists ${name} with (force)`))
  return databaseOn(server, name)
}

/** The address of a server's database. */
export function databaseOn(server: string, name: string): string {
  const url = new URL(server)
  url.pathname = `/${name}`
  return url.href
}

/** Works on a connection of its own. */
export async function onConnection<T>(server: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: server })
  await client.connect()
  return work(client).finally(() => client.end())
}

/** Debian keeps the server programs out of the PATH, by version. */
function postgresBin(): string {
  const root = '/usr/lib/postgresql'
  const versions = existsSync(root) ? readdirSync(root).sort((a, b) => Number(b) - Number(a)) : []
  const found = versions
    .map((version) => join(root, version, 'bin'))
    .find((bin) => existsSync(join(bin, 'initdb')))
  return found ?? ''
}

function unprivileged(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined
  const id = (flag: string) => Number(execFileSync('id', [flag, 'postgres'], { encoding: 'utf8' }))
  return { uid: id('-u'), gid: id('-g') }
}

/** A free port below the range from which outgoing connections take theirs. */
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < 50; tries++) {
    const port = randomInt(20_000, 32_000)
    const isFree = await new Promise<boolean>((resolve) => {
      const server = createServer().once('error', () => resolve(false))
      server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
    })
    if (isFree) return port
  }
  throw new Error('no free port found')
}

/** Both servers say that they are ready in nearly the same words, each on the one stream that is read. */
function saidReady(child: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    let said = ''
    const stream = child.stdout ?? child.stderr
    stream?.on('data', (chunk: Buffer) => {
      if (READY.test(said)) return
      said += chunk.toString()
      if (READY.test(said)) resolve()
    })
    child.once('error', reject)
    child.once('exit', (code) => reject(new Error(`${child.spawnfile} ended with ${code}:\n${said}`)))
  })
}
const READY = /ready to accept connections/i

async function running(
  url: string,
  dir: string,
  orderly: NodeJS.Signals,
  start: () => ChildProcess,
): Promise<RunningServer> {
  let child = start()
  const withProcess = () => void child.kill('SIGKILL')
  process.prependOnceListener('exit', withProcess)
  await saidReady(child)
  const down = async (signal: NodeJS.Signals = orderly) => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.kill(signal)
    await exited
  }
  return {
    url,
    down,
    async up() {
      child = start()
      await saidReady(child)
    },
    async stop() {
      await down()
      process.off('exit', withProcess)
      rmSync(dir, { recursive: true, force: true })
    },
  }
}
