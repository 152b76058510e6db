/** The process: how it ends when it is told to or cannot listen, and that trouble with its log does not harm it. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, existsSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { anyStore } from './any-store.ts'
import { gatewayProcess } from './gateway-process.ts'
import { listening } from './listening.ts'
import { scratch } from './scratch.ts'
import { freePort } from './servers.ts'
import { eventually } from './waiting.ts'

const SERVER = fileURLToPath(new URL('../src/server.js', import.meta.url))
/** Of one process after the other */
const store = await anyStore(t)

t.test('a start that waits for its database ends at once when it is told to', async (t) => {
  const silent = createServer()
  const port = await listening(t, silent)
  const env = {
    PATH: process.env.PATH,
    BATON_PORT: '0',
    DATABASE_URL: `postgres://baton@127.0.0.1:${port}/baton`,
    BATON_ENCRYPTION_KEYS: `k1:${Buffer.alloc(32).toString('base64')}`,
  }
  for (const [signal, code] of [
    ['SIGTERM', 143],
    ['SIGINT', 130],
  ] as const) {
    const start = spawn(process.execPath, [SERVER], { cwd: scratch(t), env, stdio: 'ignore' })
    await Promise.race([once(silent, 'connection'), once(start, 'exit')])
    start.kill(signal)
    // The code shows a handler: process 1 of a container would ignore a signal that is left to its default.
    t.same(await once(start, 'exit'), [code, null], signal)
  }
})

t.test('a start that cannot listen fails, and says what to do', async (t) => {
  const port = await listening(t, createServer())
  const taken = new RegExp(
    `listen EADDRINUSE.*:${port}\\. Stop what listens there, or set BATON_HOST or BATON_PORT`,
  )
  const cases: [object, RegExp][] = [
    [{ BATON_PORT: String(port) }, taken],
    [
      { BATON_HOST: `127.0.0.1:${port}`, BATON_AUTH: 'keys' },
      /ENOTFOUND.*:\d+\. Correct BATON_HOST or BATON_PORT/,
    ],
  ]
  for (const [settings, words] of cases) {
    const env = { PATH: process.env.PATH, ...store, ...settings }
    const stdio = ['ignore', 'ignore', 'pipe'] as const
    const start = spawn(process.execPath, [SERVER], { cwd: scratch(t), env, stdio: [...stdio] })
    const [said, [code]] = await Promise.all([text(start.stderr), once(start, 'exit')])
    t.match(said, words)
    t.match(said, /^Baton cannot start: /)
    t.equal(code, 1)
  }
})

t.test('what an operator loads into the process, such as an agent, its threads do without', async (t) => {
  const folder = scratch(t)
  const agent = join(folder, 'agent.cjs')
  writeFileSync(agent, `require('node:fs').writeSync(1, 'loaded ')`)
  const src = new URL('../src/', import.meta.url).href
  const script = `
    import { openDatabase } from '${src}store/open.js'
    import { createValidator } from '${src}tools/schema/validate.js'
    const db = await openDatabase({ databaseUrl: null, dataDir: '${join(folder, 'data')}', poolSize: 1 })
    const [{ answer }] = await db.query('select 42 as answer')
    const validator = createValidator()
    const problems = await validator.problems({ type: 'object' }, [])
    await Promise.all([validator.close(), db.close()])
    process.stdout.write(answer + ' ' + problems.length)`
  const env = { PATH: process.env.PATH, NODE_OPTIONS: `--require ${agent}` }
  const args = ['--require', agent, '--input-type=module', '-e', script]
  const { stdout } = spawn(process.execPath, args, { env, stdio: ['ignore', 'pipe', 'inherit'] })
  t.equal(await text(stdout), 'loaded 42 1')
})

t.test('a process that was told to stop says what became of its turns', async (t) => {
  const silent = await listening(t, createServer())
  const { url, log, stop } = await gatewayProcess(t, scratch(t), {
    ...store,
    OPENAI_API_KEY: 'sk-made-up',
    BATON_OPENAI_BASE_URL: `http://127.0.0.1:${silent}/v1`,
    BATON_DRAIN_SECONDS: '0',
  })
  const post = async (path: string, body: object) => {
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${url}/v1${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
    return (await answer.json()) as { id: string }
  }
  const { id } = await post('/sessions', { provider: 'openai', model: 'gpt-5.6-sol' })
  await post(`/sessions/${id}/turns`, { input: 'Hi', background: true })
  t.equal(await stop(), 0)
  t.match(log.at(-1), { level: 30, msg: 'stopped', handed_over: 1, ms: Number })
})

t.test('the process ends even if the reader of its log has ended at the same moment', async (t) => {
  const { child, ended } = logging(t, 'pipe')
  for await (const piece of child.stdout ?? []) if (String(piece).includes('baton is ready')) break
  child.kill('SIGTERM')
  t.same(await ended, [0, null])
})

const isMissing = !existsSync('/dev/full') && 'there is no /dev/full'
t.test('a process whose log has no room serves on, and ends when told', { skip: isMissing }, async (t) => {
  const port = await freePort()
  const full = openSync('/dev/full', 'w')
  const { child, ended } = logging(t, full, { BATON_PORT: String(port) })
  closeSync(full)
  const isReady = () =>
    fetch(`http://127.0.0.1:${port}/readyz`)
      .then(({ ok }) => ok)
      .catch(() => false)
  await eventually(isReady)
  // The lines of the log are written a moment after they are said.
  await sleep(300)
  t.ok(await isReady())
  child.kill('SIGTERM')
  t.same(await ended, [0, null])
})

t.test(
  'the process ends when its terminal is closed',
  // Others of the name take other options, as on macOS.
  { skip: (process.platform !== 'linux' || !existsSync('/usr/bin/script')) && 'no script of util-linux' },
  async (t) => {
    const folder = scratch(t)
    const env = { PATH: process.env.PATH, BATON_PORT: '0', ...store }
    const command = `echo $$ > pid; exec "${process.execPath}" "${SERVER}"`
    const terminal = spawn('script', ['-qc', command, '/dev/null'], { cwd: folder, env, stdio: 'pipe' })
    for await (const piece of terminal.stdout) if (String(piece).includes('baton is ready')) break
    const pid = Number(readFileSync(join(folder, 'pid'), 'utf8'))
    t.teardown(() => isAlive(pid) && process.kill(pid, 'SIGKILL'))
    terminal.kill('SIGKILL')
    await eventually(() => !isAlive(pid))
  },
)

/** A process that has ended may wait long as a zombie, until somebody asks how it ended. */
function isAlive(pid: number): boolean {
  try {
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}

/** A gateway whose log goes to `stdout`. */
function logging(t: Test, stdout: 'pipe' | number, more: Record<string, string> = {}) {
  const env = { PATH: process.env.PATH, BATON_PORT: '0', ...store, ...more }
  const child = spawn(process.execPath, [SERVER], {
    cwd: scratch(t),
    env,
    stdio: ['ignore', stdout, 'inherit'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  return { child, ended: once(child, 'exit') }
}
