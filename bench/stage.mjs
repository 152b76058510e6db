/**
 * The processes of a run, on loopback: the fake upstream, the reference gateway, and Baton. The gateways share one
 * core, the load and everything else the other, so that a gateway's figures are those of one core.
 */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { freePort, newDatabase, startPostgres, startRedis } from '../dist/test/servers.js'
import { descendants } from './instruments/measure.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
const instrument = (name) => join(root, 'bench/instruments', name)
const SERVER = join(root, 'dist/src/server.js')

const canPin = availableParallelism() > 1 && existsSync('/usr/bin/taskset')
const GATEWAY_CORE = '0'
const OTHER_CORE = '1'
const ANY_CORE = '0,1'
/** Other variables of the shell are for another gateway, with its own database. */
const { PATH, NODE_OPTIONS } = process.env

function start(command, args, { core, env }) {
  const [program, ...rest] = canPin ? ['taskset', '-c', core, command, ...args] : [command, ...args]
  const child = spawn(program, rest, {
    cwd: root,
    env: { PATH, NODE_OPTIONS, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let said = ''
  child.stdout.on('data', (chunk) => {
    if (said.length < 4096) said += chunk
  })
  return { child, said: () => said }
}

async function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return
  // npm and its shell end with the process that they have started.
  process.kill(descendants(child.pid).at(-1), 'SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), 15_000)
  await once(child, 'exit')
  clearTimeout(timer)
}

async function until(ready, child, what) {
  const end = Date.now() + 90_000
  while (Date.now() < end) {
    if (child.exitCode !== null) throw new Error(`${what} ended with ${child.exitCode}`)
    if (await ready()) return
    await sleep(10)
  }
  throw new Error(`${what} did not come up in 90 s`)
}

/** Everything that a run started, and the folder that goes with it. */
export function createStage() {
  if (canPin) execFileSync('taskset', ['-apc', OTHER_CORE, String(process.pid)], { stdio: 'ignore' })
  const folder = mkdtempSync(join(tmpdir(), 'baton-bench-'))
  const closers = [async () => rmSync(folder, { recursive: true, force: true })]
  let folders = 0
  let closed
  /** Runs once: a run that is told to stop fails meanwhile, and must wait for the stop that is under way. */
  const close = () => {
    closed ??= closeAll()
    return closed
  }
  async function closeAll() {
    for (let one = closers.pop(); one; one = closers.pop()) await one().catch((err) => console.error(err))
  }
  const end = () => close().then(() => process.exit(1))
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, end)
  // Whoever reads the figures has gone.
  process.stdout.on('error', end)

  async function startUpstream(env = {}) {
    const port = await freePort()
    const { child, said } = start(process.execPath, [instrument('upstream.mjs'), '--port', String(port)], {
      core: OTHER_CORE,
      env,
    })
    closers.push(() => stop(child))
    await until(() => said().includes('upstream on'), child, 'the upstream')
    return { port, pid: child.pid, base: `http://127.0.0.1:${port}` }
  }

  /** One of the reference gateways, on the gateways' core. */
  async function startReference(file, upstream, env, ...args) {
    const port = await freePort()
    const command = [instrument(file), String(port), String(upstream.port), ...args]
    const { child, said } = start(process.execPath, command, { core: GATEWAY_CORE, env })
    closers.push(() => stop(child))
    await until(() => said().includes('ready'), child, file)
    return { base: `http://127.0.0.1:${port}`, pid: child.pid, stop: () => stop(child) }
  }

  const startBare = (upstream, api = 'responses') =>
    startReference('bare-xcode.mjs', upstream, { XC_API: api })

  /** bare-durable, which keeps its turns where Baton with this environment keeps them. */
  const startDurable = (upstream, env = {}) =>
    startReference('bare-durable.mjs', upstream, env, join(folder, `durable-${++folders}`))

  /**
   * `dir`: a data folder to use again; `npm`: as `npm start`, on any core. Answers with the time to the first 200 of
   * /readyz.
   */
  async function startBaton(upstream, { env = {}, dir, npm = false } = {}) {
    const port = await freePort()
    const dataDir = dir ?? join(folder, `data-${++folders}`)
    const began = performance.now()
    const command = npm ? ['npm', ['start', '-s']] : [process.execPath, [SERVER]]
    const { child } = start(...command, {
      core: npm ? ANY_CORE : GATEWAY_CORE,
      env: {
        BATON_PORT: String(port),
        // A baton.yaml in the checkout is another gateway's, too.
        BATON_CONFIG: '/dev/null',
        BATON_DATA_DIR: dataDir,
        BATON_LOG_LEVEL: 'info',
        BATON_OPENAI_BASE_URL: `${upstream.base}/v1`,
        BATON_ANTHROPIC_BASE_URL: upstream.base,
        OPENAI_API_KEY: 'sk-bench-0000000000',
        ANTHROPIC_API_KEY: 'sk-ant-bench-0000000000',
        ...env,
      },
    })
    const base = `http://127.0.0.1:${port}`
    closers.push(() => stop(child))
    const isReady = () =>
      fetch(`${base}/readyz`).then(
        (response) => response.status === 200,
        () => false,
      )
    await until(isReady, child, 'baton')
    return { base, pid: child.pid, dir: dataDir, readyMs: performance.now() - began, stop: () => stop(child) }
  }

  const own = (close) => closers.push(close)

  /** These servers with an empty database of their own there. */
  const afresh = async ({ database, redis }) => ({
    database: await newDatabase({ teardown: own }, database),
    redis,
  })

  return {
    startUpstream,
    startBare,
    startDurable,
    startBaton,
    afresh,
    /** Given by TEST_DATABASE_URL and TEST_REDIS_URL, else started if installed; null where there is neither. */
    async startServers() {
      const given = { database: process.env.TEST_DATABASE_URL, redis: process.env.TEST_REDIS_URL }
      if (given.database && given.redis) return afresh(given)
      try {
        const [database, redis] = [await startPostgres({ durable: true }), await startRedis()]
        closers.push(database.stop, redis.stop)
        return { database: database.url, redis: redis.url }
      } catch (cause) {
        console.log(`without PostgreSQL and Redis: ${cause.message}`)
        return null
      }
    },
    own,
    close,
  }
}

export const serverEnv = (servers) => ({
  DATABASE_URL: servers.database,
  REDIS_URL: servers.redis,
  BATON_ENCRYPTION_KEYS: `bench:${Buffer.alloc(32, 7).toString('base64')}`,
})
