/** Servers as processes: hygiene (servers/child.ts misbehaves on demand), and the real servers of the MCP project. */

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import type { ContentPart } from '../../src/chat/message.ts'
import type { Mcp, McpResult, McpServerSpec } from '../../src/mcp/contract.ts'
import { createMcp, type McpOptions } from '../../src/mcp/mcp.ts'
import { type Isolation, openSandbox } from '../../src/mcp/sandbox.ts'
import { createStdioTransport } from '../../src/mcp/stdio.ts'
import { freePort } from '../servers.ts'
import { fails } from './door.ts'

t.setTimeout(120_000)

const CHILD = fileURLToPath(new URL('./servers/child.js', import.meta.url))
const GATEWAY = fileURLToPath(new URL('./servers/gateway.js', import.meta.url))
const PATIENCE = 60_000

function door(t: Test, options: Partial<McpOptions> = {}): Mcp {
  const mcp = createMcp({
    version: '0.1.0',
    drainMs: 500,
    connectMs: { http: PATIENCE, stdio: PATIENCE },
    ...options,
  })
  t.teardown(() => mcp.close())
  return mcp
}

const child = (mode: string, more: Partial<McpServerSpec> = {}): McpServerSpec => ({
  key: mode,
  name: 'child',
  transport: 'stdio',
  command: process.execPath,
  args: [CHILD, mode],
  allowPrivate: false,
  ...more,
})

function call(
  mcp: Mcp,
  spec: McpServerSpec,
  tool: string,
  args: Record<string, unknown> = {},
  timeoutMs = PATIENCE,
): Promise<McpResult> {
  return mcp.call(spec, tool, args, { timeoutMs, maxTotalMs: PATIENCE, signal: new AbortController().signal })
}

const list = (mcp: Mcp, spec: McpServerSpec): ReturnType<Mcp['list']> =>
  mcp.list(spec, { timeoutMs: PATIENCE })

/** What a tool of servers/child.ts says, parsed. */
async function told<T>(result: Promise<McpResult>): Promise<T> {
  const [part] = (await result).content
  return JSON.parse(part?.type === 'text' ? part.text : 'null') as T
}

/** Settles when the process is gone, or only waits for a parent that never reaps. */
async function ended(pid: number): Promise<void> {
  for (const started = Date.now(); ; ) {
    if (Date.now() - started > PATIENCE / 2) throw new Error(`process ${pid} still runs`)
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
      if (/^\d+ \(.*\) Z/s.test(stat)) return
    } catch {
      return
    }
    await sleep(20)
  }
}

t.test('a process gets the declared variables and harmless defaults, nothing of the gateway', async (t) => {
  process.env.GATEWAY_SECRET = 'do not leak'
  t.teardown(() => {
    delete process.env.GATEWAY_SECRET
  })
  const mcp = door(t)
  const env = await told<Record<string, string>>(
    call(mcp, child('good', { env: { API_TOKEN: 'x', HOME: '/srv' } }), 'env'),
  )
  // The test runner's own hook adds these to every child process; the gateway does not.
  const given = Object.keys(env).filter((name) => name !== 'NODE_OPTIONS' && !name.startsWith('_TAPJS_'))
  t.same(given.sort(), ['API_TOKEN', 'HOME', 'LOGNAME', 'PATH', 'SHELL', 'TERM', 'USER'])
  t.match(env, {
    API_TOKEN: 'x',
    HOME: '/srv',
    USER: 'baton',
    LOGNAME: 'baton',
    TERM: 'dumb',
    SHELL: '/bin/sh',
  })
  await fails(t, list(mcp, child('other', { env: { LD_PRELOAD: '/tmp/x.so' } })), {
    kind: 'unavailable',
    message: /LD_PRELOAD/,
  })
})

t.test('a server is one process for all callers, and ends when nobody uses it', async (t) => {
  const mcp = door(t, { idleMs: { http: 100, stdio: 100 } })
  const pids = await Promise.all([1, 2, 3].map(() => told<number>(call(mcp, child('good'), 'pid'))))
  t.equal(new Set(pids).size, 1)
  await ended(pids[0] ?? 0)
  t.same(mcp.status('good'), { state: 'idle' })
  t.not(await told<number>(call(mcp, child('good'), 'pid')), pids[0], 'started again when needed')
})

t.test('a process whose list fails is not ended: it may hold what its tools have begun', async (t) => {
  const mcp = door(t)
  const pid = await told<number>(call(mcp, child('listless'), 'pid'))
  await fails(t, list(mcp, child('listless')), { kind: 'protocol', message: /Not now/ })
  t.equal(await told<number>(call(mcp, child('listless'), 'pid')), pid)
})

t.test('a process that comes up after its callers have left ends when nobody uses it', async (t) => {
  const scratch = mkdtempSync(join(tmpdir(), 'baton-child-'))
  t.teardown(() => rmSync(scratch, { recursive: true }))
  const file = join(scratch, 'pid')
  const slow = `echo $$ > '${file}'; sleep 1; exec '${process.execPath}' '${CHILD}' good`
  const spec = child('late', { command: '/bin/sh', args: ['-c', slow] })
  const mcp = door(t, { idleMs: { http: 100, stdio: 100 } })
  const limits = { timeoutMs: 500, maxTotalMs: 500, signal: new AbortController().signal }
  await fails(t, mcp.call(spec, 'pid', {}, limits), { kind: 'timeout', sent: false })
  t.equal(mcp.status('late').state, 'connecting', 'it is waited for behind them')
  await ended(Number(readFileSync(file, 'utf8')))
  t.equal(mcp.status('late').state, 'idle', 'it had come up')
})

t.test('interest keeps a process beyond its idle time', async (t) => {
  const mcp = door(t, { idleMs: { http: 50, stdio: 50 } })
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  mcp.interest(child('good'), 60_000)
  await sleep(300)
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('a process that is released ends with its last call, whatever interest there was', async (t) => {
  const mcp = door(t)
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  mcp.interest(child('good'), 60_000)
  const leaving = new AbortController()
  const limits = { timeoutMs: PATIENCE, maxTotalMs: PATIENCE, signal: leaving.signal }
  const running = mcp.call(child('good'), 'hang', {}, limits)
  await sleep(100)
  mcp.release('good')
  t.not(await told<number>(call(mcp, child('good'), 'pid')), pid, 'who still asks gets another')
  process.kill(pid, 0)
  leaving.abort()
  await fails(t, running, { kind: 'cancelled' })
  await ended(pid)
})

t.test('a process that comes up after its release ends with who asked for it', async (t) => {
  const mcp = door(t)
  const spec = child('good')
  mcp.interest(spec, PATIENCE)
  const listed = list(mcp, spec)
  mcp.release(spec.key)
  await listed
  t.equal(mcp.status(spec.key).state, 'idle')
  mcp.interest(spec, PATIENCE)
  await told(call(mcp, spec, 'pid'))
  t.equal(mcp.status(spec.key).state, 'idle', 'also where somebody has not heard of it yet')
})

t.test('a process that closes a pipe and lives on is ended, and the next call has another', async (t) => {
  const mcp = door(t, { connectMs: { http: 10_000, stdio: 10_000 } })
  for (const pipe of [0, 1]) {
    const spec = child(`closing ${pipe}`)
    const pid = await told<number>(call(mcp, spec, 'pid'))
    const closing = call(mcp, spec, 'close', { pipe })
    if (pipe === 0) await closing
    // The one without an answer is over with its process.
    else await fails(t, closing, { kind: 'disconnected', message: /was ended by SIGTERM/ })
    if (pipe === 0) await fails(t, call(mcp, spec, 'pid'), { kind: 'disconnected' })
    await ended(pid)
    t.not(await told<number>(call(mcp, spec, 'pid')), pid)
  }
})

t.test('chatter on stdout and a flood on stderr disturb nothing', async (t) => {
  const mcp = door(t)
  t.equal((await list(mcp, child('noisy'))).server.name, 'child')
  t.equal(await told(call(mcp, child('noisy'), 'complain')), 'still here')
  t.same(await told(call(mcp, child('noisy'), 'echo', { a: 'ä€🙂' })), { a: 'ä€🙂' })
})

t.test('chatter of many short lines costs next to nothing', async (t) => {
  const mcp = door(t)
  await list(mcp, child('good'))
  for (const line of ['5\n', 'x\n', '\n']) {
    const before = process.cpuUsage()
    t.equal(await told(call(mcp, child('good'), 'chatter', { line, times: 300_000 })), 'said')
    const { user } = process.cpuUsage(before)
    t.ok(user < 1_500_000, `${user} µs for ${JSON.stringify(line)}`)
  }
})

t.test('a server that cannot start says why', async (t) => {
  const mcp = door(t)
  await fails(t, list(mcp, child('dead')), {
    kind: 'unavailable',
    sent: false,
    message: /exited with code 7; stderr: cannot find my config/,
  })
  await fails(t, list(mcp, child('missing', { command: '/no/such/program' })), {
    kind: 'unavailable',
    message: /ENOENT/,
  })
  t.match(mcp.status('dead'), { state: 'down', error: /cannot find my config/ })
})

t.test('a server that ends before it reads is told of by its end, not by the pipe', async (t) => {
  const words = "exec 0<&-; sleep 0.3; echo 'no licence' >&2; exit 7"
  const spec = child('gone', { command: '/bin/sh', args: ['-c', words] })
  const watchdog = { add() {}, remove() {}, stop() {} }
  const transport = createStdioTransport(spec, { maxBytes: 1024, watchdog, sandbox: null })
  t.teardown(() => transport.close())
  let obituary = {}
  transport.onclose = () => {
    obituary = transport.obituary()
  }
  await transport.start()
  // It has closed its end by then.
  await sleep(150)
  await t.rejects(transport.send({ jsonrpc: '2.0', id: 1, method: 'ping' }), { code: 'EPIPE' })
  t.same(obituary, { ending: 'exited with code 7', words: 'no licence' }, 'which was said before')
})

t.test('a crash fails the call at once, and the next call starts a new process', async (t) => {
  const scratch = mkdtempSync(join(tmpdir(), 'baton-child-'))
  t.teardown(() => rmSync(scratch, { recursive: true }))
  const mcp = door(t)
  const grandchild = await told<number>(call(mcp, child('good'), 'grandchild'))
  await fails(t, call(mcp, child('good'), 'crash'), {
    kind: 'disconnected',
    sent: true,
    message: /exited with code 3; stderr: last words/,
  })
  await ended(grandchild)
  t.pass('what the process had started went with it')
  const spec = child('good', { key: 'once', args: [CHILD, 'good', join(scratch, 'died')] })
  await fails(
    t,
    call(mcp, spec, 'once'),
    { kind: 'disconnected', sent: true },
    'a call that may have run is not repeated',
  )
  t.equal(await told(call(mcp, spec, 'once')), 'second life')
})

t.test('a hung call times out alone', async (t) => {
  const mcp = door(t)
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  await fails(t, call(mcp, child('good'), 'hang', {}, 50), { kind: 'timeout', sent: true })
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('an answer above the cap fails its call and no other', async (t) => {
  const mcp = door(t, { maxBytes: 300_000 })
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  await fails(t, call(mcp, child('good'), 'big', { bytes: 3_000_000 }), { kind: 'too_large', sent: true })
  t.equal((await told<string>(call(mcp, child('good'), 'big', { bytes: 200_000 }))).length, 200_000)
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('an answer that is not valid JSON-RPC fails its call at once', async (t) => {
  const mcp = door(t)
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  for (const answer of [{ result: { content: [] }, error: null }, { result: null }, {}])
    await fails(t, call(mcp, child('good'), 'broken', answer), { kind: 'protocol', sent: true })
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('a server that never answers is given up, and its process ended', async (t) => {
  const mcp = door(t, { connectMs: { http: 300, stdio: 300 } })
  await fails(t, list(mcp, child('silent')), { kind: 'timeout', sent: false })
  await mcp.close()
  t.pass('close waits for the process to end')
})

t.test('a process that ignores EOF and SIGTERM is killed, and its descendants with it', async (t) => {
  const mcp = door(t)
  const pids = [
    await told<number>(call(mcp, child('stubborn'), 'pid')),
    await told<number>(call(mcp, child('stubborn'), 'grandchild')),
  ]
  await mcp.close()
  for (const pid of pids) await ended(pid)
  t.pass('both are gone')
})

t.test('when the gateway is killed, servers and their descendants go too', async (t) => {
  const gateway: ChildProcess = spawn(process.execPath, [GATEWAY, CHILD, 'stubborn'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  t.teardown(() => gateway.kill('SIGKILL'))
  if (!gateway.stdout) throw new Error('no stdout')
  const [line] = (await once(createInterface({ input: gateway.stdout }), 'line')) as [string]
  const pids = JSON.parse(line) as number[]
  t.equal(pids.length, 2)
  for (const pid of pids) t.doesNotThrow(() => process.kill(pid, 0), 'runs')
  gateway.kill('SIGKILL')
  for (const pid of pids) await ended(pid)
})

/** Ids of the processes whose command line holds a text, as the machine sees them. */
const running = (text: string): number[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => commandLine(pid).includes(text))
    .map(Number)

function commandLine(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return ''
  }
}

interface Probe {
  user: number
  processes: number
  readable: string[]
  writable: string[]
  isReached: boolean
}

const isolation = 'bubblewrap' as const
const cannot = await openSandbox({ isolation, hidden: [] }).then(
  () => '',
  (failure: Error) => failure.message,
)

t.test(
  'a program in bubblewrap sees nothing of the gateway, writes nothing that stays, and reaches nobody',
  { skip: process.env.CI === 'true' ? false : cannot },
  async (t) => {
    const folder = mkdtempSync(join(fileURLToPath(new URL('.', import.meta.url)), 'sandboxed-'))
    t.teardown(() => rmSync(folder, { recursive: true, force: true }))
    const [secret, file, open] = [
      join(folder, 'data', 'key'),
      join(folder, 'baton.yaml'),
      join(folder, 'open'),
    ]
    mkdirSync(join(folder, 'data'))
    for (const path of [secret, file, open]) writeFileSync(path, 'text')
    const listening = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1')
    await once(listening, 'listening')
    t.teardown(() => listening.close())
    const hidden = [join(folder, 'data'), file, join(folder, 'not there')]
    const asked = {
      read: [secret, file, open, `/proc/${process.pid}/environ`],
      write: ['/tmp', folder, '/var/tmp', process.cwd()],
      port: (listening.address() as AddressInfo).port,
    }
    const probe = async (level: Isolation): Promise<Probe> => {
      const mcp = door(t, { sandbox: await openSandbox({ isolation: level, hidden }) })
      const answer = await told<Probe>(call(mcp, child('good'), 'probe', asked))
      await mcp.close()
      return answer
    }
    t.match(await probe('none'), { readable: asked.read, isReached: true }, 'without it')
    const shut = await probe('bubblewrap')
    t.match(shut, { user: 65534, readable: [open], writable: ['/tmp'], isReached: false })
    t.ok(shut.processes <= 3, `${shut.processes} processes`)
    t.match(await probe('bubblewrap-network'), { readable: [open], writable: ['/tmp'], isReached: true })
  },
)

t.test(
  'a program in bubblewrap ends with its descendants, closed or orphaned',
  { skip: process.env.CI === 'true' ? false : cannot },
  async (t) => {
    const mark = (name: string) => `mark-${name}-${process.pid}`
    const mcp = door(t, { sandbox: await openSandbox({ isolation, hidden: [] }) })
    const spec = child('stubborn', { args: [CHILD, 'stubborn', mark('closed')] })
    await call(mcp, spec, 'grandchild')
    t.ok(running(mark('closed')).length > 0)
    await mcp.close()
    for (const pid of running(mark('closed'))) await ended(pid)

    const gateway = spawn(process.execPath, [GATEWAY, CHILD, 'stubborn', mark('orphaned')], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, TEST_ISOLATION: isolation },
    })
    t.teardown(() => gateway.kill('SIGKILL'))
    await once(createInterface({ input: gateway.stdout }), 'line')
    const pids = running(mark('orphaned')).filter((pid) => pid !== gateway.pid)
    t.ok(pids.length > 0)
    gateway.kill('SIGKILL')
    for (const pid of pids) await ended(pid)
  },
)

t.test('isolation that is asked for and cannot be had is no isolation to start with', async (t) => {
  const program = '/no/such/bwrap'
  await t.rejects(openSandbox({ isolation, hidden: [], program }), {
    message: /bubblewrap.*is not installed/,
  })
  await t.rejects(openSandbox({ isolation, hidden: [], program: '/bin/false' }), {
    message: /does not work here/,
  })
  t.equal(await openSandbox({ isolation: 'none', hidden: [], program }), null)
})

t.test('the number of processes is capped: an idle one makes room, a busy one does not', async (t) => {
  const mcp = door(t, { maxProcesses: 1 })
  const first = await told<number>(call(mcp, child('good', { key: 'a' }), 'pid'))
  t.ok(await told<number>(call(mcp, child('good', { key: 'b' }), 'pid')))
  await ended(first)
  const leaving = new AbortController()
  const busy = mcp.call(
    child('good', { key: 'b' }),
    'hang',
    {},
    { timeoutMs: PATIENCE, maxTotalMs: PATIENCE, signal: leaving.signal },
  )
  await fails(t, list(mcp, child('good', { key: 'c' })), {
    kind: 'unavailable',
    sent: false,
    message: /1 server processes are busy/,
  })
  leaving.abort()
  await fails(t, busy, { kind: 'cancelled' })
  t.equal((await list(mcp, child('good', { key: 'c' }))).server.name, 'child')
  t.ok(mcp.cached('a') === null)
})

t.test('a server that knows only the new revision is found out', async (t) => {
  const mcp = door(t, { idleMs: { http: 100, stdio: 100 } })
  const { server, tools } = await list(mcp, child('modern'))
  t.equal(server.protocol_version, '2026-07-28')
  t.ok(tools.length > 5)
  const pid = await told<number>(call(mcp, child('modern'), 'pid'))
  await ended(pid)
  t.ok((await told<number>(call(mcp, child('modern'), 'pid'))) > 0, 'and remembered for the next process')
})

// ---------------------------------------------------------------- the real servers

const bin = (path: string): string => fileURLToPath(import.meta.resolve(`@modelcontextprotocol/${path}`))
const EVERYTHING = bin('server-everything/dist/index.js')

async function checkEverything(t: Test, mcp: Mcp, spec: McpServerSpec): Promise<void> {
  const { tools, server, left_out } = await list(mcp, spec)
  t.match(server, { name: 'mcp-servers/everything', protocol_version: '2025-11-25' })
  const names = tools.map(({ name }) => name)
  for (const name of ['echo', 'get-sum', 'get-tiny-image', 'get-structured-content'])
    t.ok(names.includes(name), name)
  for (const name of ['trigger-sampling-request', 'get-roots-list', 'trigger-elicitation-request'])
    t.notOk(names.includes(name), `${name} needs a capability that is not declared`)
  t.match(left_out, [{ tool: 'simulate-research-query', problem: /task/ }])
  const answer = (tool: string, args: Record<string, unknown> = {}): Promise<ContentPart[]> =>
    call(mcp, spec, tool, args).then(({ content }) => content)
  t.same(await answer('echo', { message: 'hi' }), [{ type: 'text', text: 'Echo: hi' }])
  t.match(await answer('get-tiny-image'), [
    { type: 'text' },
    { type: 'image', media_type: 'image/png', data: /^iVBOR/ },
    { type: 'text' },
  ])
  t.match(await answer('get-resource-links', { count: 2 }), [
    {},
    { text: /^\[link: / },
    { text: /^\[link: / },
  ])
  t.match(await answer('get-resource-reference', { resourceType: 'Text', resourceId: 1 }), [
    {},
    { text: /^\[demo:\/\/resource/ },
    {},
  ])
  const weather = await call(mcp, spec, 'get-structured-content', { location: 'New York' })
  t.match(weather, { structured: { temperature: Number, conditions: String }, is_error: false })
  t.match(await call(mcp, spec, 'get-sum', { a: 'no number' }), {
    is_error: true,
    content: [{ type: 'text', text: /number/ }],
  })
  const progress: number[] = []
  await mcp.call(
    spec,
    'trigger-long-running-operation',
    { duration: 0.4, steps: 4 },
    {
      timeoutMs: PATIENCE,
      maxTotalMs: PATIENCE,
      signal: new AbortController().signal,
      onProgress: ({ progress: step }) => void progress.push(step),
    },
  )
  t.same(progress.slice(0, 3), [1, 2, 3])
}

t.test('server-everything over stdio', async (t) => {
  const mcp = door(t)
  await checkEverything(t, mcp, child('everything', { args: [EVERYTHING, 'stdio'] }))
})

for (const transport of ['streamable_http', 'sse'] as const)
  t.test(`server-everything over ${transport}`, async (t) => {
    const port = await freePort()
    const kind = transport === 'sse' ? 'sse' : 'streamableHttp'
    const server = spawn(process.execPath, [EVERYTHING, kind], {
      env: { PORT: String(port) },
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    t.teardown(() => server.kill('SIGKILL'))
    await once(createInterface({ input: server.stderr }), 'line')
    const url = `http://127.0.0.1:${port}/${transport === 'sse' ? 'sse' : 'mcp'}`
    const spec: McpServerSpec = { key: kind, name: kind, transport, url, allowPrivate: true }
    const mcp = door(t)
    // The server says that it starts before it listens.
    await listening(port)
    await checkEverything(t, mcp, spec)
    const lost = call(mcp, spec, 'trigger-long-running-operation', { duration: 30, steps: 1 })
    await sleep(100)
    server.kill('SIGKILL')
    await fails(t, lost, { kind: 'disconnected', sent: true })
    await fails(t, call(mcp, spec, 'echo', { message: 'x' }), { kind: 'unavailable', sent: false })
  })

t.test('server-memory keeps what it is told', async (t) => {
  const scratch = mkdtempSync(join(tmpdir(), 'baton-memory-'))
  t.teardown(() => rmSync(scratch, { recursive: true }))
  const args = [bin('server-memory/dist/index.js')]
  const spec = child('memory', { args, env: { MEMORY_FILE_PATH: join(scratch, 'memory.jsonl') } })
  const mcp = door(t)
  const { tools } = await list(mcp, spec)
  t.equal(tools.length, 9)
  t.ok(tools.every(({ annotations, outputSchema }) => annotations && outputSchema))
  const entity = { name: 'Baton', entityType: 'gateway', observations: ['hands over'] }
  t.equal((await call(mcp, spec, 'create_entities', { entities: [entity] })).is_error, false)
  await mcp.close()
  t.match(await call(door(t), spec, 'read_graph'), { structured: { entities: [entity], relations: [] } })
})

async function listening(port: number): Promise<void> {
  for (;;) {
    const answer = await fetch(`http://127.0.0.1:${port}/`).catch(() => null)
    if (answer) return void (await answer.body?.cancel())
    await sleep(50)
  }
}
