/** Servers as processes: their variables, how long they live, and how they end. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { createStdioTransport } from '../../src/mcp/stdio.ts'
import { scratch } from '../scratch.ts'
import { eventually } from '../waiting.ts'
import { call, door, fails, list, PATIENCE } from './door.ts'
import { CHILD, child, ended, told } from './processes.ts'

t.test('a process gets its declared variables and harmless defaults, none of the gateway’s', async (t) => {
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
  t.not(
    await told<number>(call(mcp, child('good'), 'pid')),
    pids[0],
    'the server is started again when it is needed',
  )
})

t.test('a process whose list fails is kept, since it may hold work that its tools have begun', async (t) => {
  const mcp = door(t)
  const pid = await told<number>(call(mcp, child('listless'), 'pid'))
  await fails(t, list(mcp, child('listless')), { kind: 'protocol', message: /Not now/ })
  t.equal(await told<number>(call(mcp, child('listless'), 'pid')), pid)
})

t.test('a list that failed after its first page leaves nothing of that in the next one', async (t) => {
  const mcp = door(t)
  await fails(t, list(mcp, child('torn')), { kind: 'protocol', message: /Not now/ })
  const { tools } = await list(mcp, child('torn'), true)
  t.match(tools, [{ name: 'env', title: 'New' }])
})

t.test('a process that comes up after its callers have left ends when nobody uses it', async (t) => {
  const folder = scratch(t)
  const file = join(folder, 'pid')
  const slow = `echo $$ > '${file}'; sleep 1; exec '${process.execPath}' '${CHILD}' good`
  const spec = child('late', { command: '/bin/sh', args: ['-c', slow] })
  const mcp = door(t, { idleMs: { http: 100, stdio: 100 } })
  const hasty = { timeoutMs: 500, maxTotalMs: 500 }
  await fails(t, call(mcp, spec, 'pid', {}, hasty), { kind: 'timeout', sent: false })
  t.equal(mcp.status('late').state, 'connecting', 'the start goes on without its caller')
  await ended(await eventually(() => (existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0)))
  t.equal(mcp.status('late').state, 'idle', 'the process came up and ended as idle')
})

t.test('interest keeps a process beyond its idle time', async (t) => {
  const mcp = door(t, { idleMs: { http: 50, stdio: 50 } })
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  mcp.interest(child('good'), 60_000)
  await sleep(300)
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('a process that is released ends with its last call, although there was interest', async (t) => {
  const mcp = door(t)
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  mcp.interest(child('good'), 60_000)
  const leaving = new AbortController()
  const running = call(mcp, child('good'), 'hang', {}, { signal: leaving.signal })
  await sleep(100)
  mcp.release('good')
  t.not(
    await told<number>(call(mcp, child('good'), 'pid')),
    pid,
    'a caller that still asks gets another process',
  )
  process.kill(pid, 0)
  leaving.abort()
  await fails(t, running, { kind: 'cancelled' })
  await ended(pid)
})

t.test('a process that comes up after its release ends with the request that started it', async (t) => {
  const mcp = door(t)
  const spec = child('good')
  mcp.interest(spec, PATIENCE)
  const listed = list(mcp, spec)
  mcp.release(spec.key)
  await listed
  t.equal(mcp.status(spec.key).state, 'idle')
  mcp.interest(spec, PATIENCE)
  await told(call(mcp, spec, 'pid'))
  t.equal(
    mcp.status(spec.key).state,
    'idle',
    'a later call’s process ends with the call, although its caller did not know of the release',
  )
})

t.test('a process that closes a pipe and lives on is ended, and the next call starts another', async (t) => {
  const mcp = door(t, { connectMs: { http: 10_000, stdio: 10_000 } })
  for (const pipe of [0, 1]) {
    const spec = child(`closing ${pipe}`)
    const pid = await told<number>(call(mcp, spec, 'pid'))
    const closing = call(mcp, spec, 'close', { pipe })
    if (pipe === 0) await closing
    // The call without an answer ends with its process.
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

t.test('an announcement is heard whatever a program writes for no members', async (t) => {
  const mcp = door(t, { announceMs: 1 })
  const heard: string[] = []
  mcp.onListChanged((key) => heard.push(key))
  await list(mcp, child('good'))
  for (const params of ['null', '[]']) {
    const line = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":${params}}\n`
    const before = heard.length
    await call(mcp, child('good'), 'chatter', { line, times: 1 })
    await eventually(() => heard.length > before)
  }
})

t.test('progress that comes together with the answer is heard', async (t) => {
  const heard: unknown[] = []
  const onProgress = (progress: unknown) => void heard.push(progress)
  t.equal(await told(call(door(t), child('good'), 'report', {}, { onProgress })), 'reported')
  t.same(heard, [{ progress: 1 }])
})

t.test('chatter of many short lines costs next to nothing', async (t) => {
  const mcp = door(t)
  await list(mcp, child('good'))
  for (const line of ['5\n', 'x\n', '\n', '{}\n']) {
    const before = process.cpuUsage()
    t.equal(await told(call(mcp, child('good'), 'chatter', { line, times: 300_000 })), 'said')
    const { user } = process.cpuUsage(before)
    t.ok(user < 1_500_000, `${user} µs for ${JSON.stringify(line)}`)
  }
})

t.test('the failure of a server that cannot start says why', async (t) => {
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

t.test('a server that ends before it reads is reported by its end, not by the broken pipe', async (t) => {
  const folder = scratch(t)
  const [closed, sent] = [join(folder, 'closed'), join(folder, 'sent')]
  const words = `exec 0<&-; touch '${closed}'; until [ -e '${sent}' ]; do sleep 0.05; done; echo 'no licence' >&2; exit 7`
  const spec = child('gone', { command: '/bin/sh', args: ['-c', words] })
  const watchdog = { add() {}, remove() {}, stop() {} }
  const transport = createStdioTransport(spec, { maxBytes: 1024, watchdog, sandbox: null })
  t.teardown(() => transport.close())
  let obituary = {}
  transport.onclose = () => {
    obituary = transport.obituary()
  }
  await transport.start()
  await eventually(() => existsSync(closed))
  const sending = transport.send({ jsonrpc: '2.0', id: 1, method: 'ping' })
  writeFileSync(sent, '')
  await t.rejects(sending, { code: 'EPIPE' })
  t.same(
    obituary,
    { ending: 'exited with code 7', words: 'no licence' },
    'its end was known before the send failed',
  )
})

t.test('a crash fails the call at once, and the next call starts a new process', async (t) => {
  const folder = scratch(t)
  const mcp = door(t)
  const grandchild = await told<number>(call(mcp, child('good'), 'grandchild'))
  await fails(t, call(mcp, child('good'), 'crash'), {
    kind: 'disconnected',
    sent: true,
    message: /exited with code 3; stderr: last words/,
  })
  await ended(grandchild)
  t.pass('the process’s descendants ended with it')
  const spec = child('good', { key: 'once', args: [CHILD, 'good', join(folder, 'died')] })
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
  await fails(t, call(mcp, child('good'), 'hang', {}, { timeoutMs: 50 }), { kind: 'timeout', sent: true })
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('an answer larger than the size limit fails its call and no other', async (t) => {
  const mcp = door(t, { maxBytes: 300_000 })
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  await fails(t, call(mcp, child('good'), 'big', { bytes: 3_000_000 }), { kind: 'too_large', sent: true })
  t.equal((await told<string>(call(mcp, child('good'), 'big', { bytes: 200_000 }))).length, 200_000)
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('a line larger than the size limit that answers nothing known ends its process', async (t) => {
  const mcp = door(t, { maxBytes: 300_000 })
  const flood = call(mcp, child('good'), 'chatter', { line: 'x', times: 3_000_000 })
  await fails(t, flood, { kind: 'disconnected', sent: true }, 'the answer may be a part of the line')
})

t.test('an answer that is not valid JSON-RPC fails its call at once', async (t) => {
  const mcp = door(t)
  const pid = await told<number>(call(mcp, child('good'), 'pid'))
  for (const answer of [{ result: { content: [] }, more: 1 }, {}])
    await fails(t, call(mcp, child('good'), 'broken', answer), { kind: 'protocol', sent: true })
  t.equal(await told<number>(call(mcp, child('good'), 'pid')), pid)
})

t.test('an answer whose members are null is read as far as it goes', async (t) => {
  const mcp = door(t)
  const ran = { content: [], is_error: false }
  for (const answer of [
    { result: { content: [] }, error: null },
    { result: null },
    { result: { _meta: [] } },
  ])
    t.same(await call(mcp, child('good'), 'broken', answer), ran, JSON.stringify(answer))
  const failed = { kind: 'protocol', rpcCode: -32603, message: 'child: no such table' }
  await fails(t, call(mcp, child('good'), 'broken', { result: null, error: 'no such table' }), failed)
})

t.test('a server of an unknown revision is reported with that revision', async (t) => {
  const message = /protocol version is not supported: 2023-01-01/
  await fails(t, list(door(t), child('ancient')), { kind: 'unavailable', sent: false, message })
})

t.test('a server that refuses the older revision is reported as it answers in the newer one', async (t) => {
  const refused = { kind: 'protocol', sent: false, message: 'child: No licence' }
  await fails(t, list(door(t), child('unlicensed')), refused, 'it does not speak that: its refusal counts')
  const hasty = door(t, { connectMs: { http: 3_000, stdio: 3_000 } })
  await fails(
    t,
    list(hasty, child('undecided')),
    { kind: 'timeout' },
    'it may speak that: its silence counts',
  )
})

t.test('a server that never answers is given up, and its process is ended', async (t) => {
  const mcp = door(t, { connectMs: { http: 300, stdio: 300 } })
  await fails(t, list(mcp, child('silent')), { kind: 'timeout', sent: false })
  await mcp.close()
  t.pass('close waits for the process to end')
})

t.test('no process is started for a door that is closed before', async (t) => {
  const file = join(scratch(t), 'started')
  const mcp = door(t)
  const args = ['-c', 'touch "$0"', file]
  const listed = list(mcp, child('late', { command: '/bin/sh', args }))
  await mcp.close()
  await fails(t, listed, { kind: 'unavailable', sent: false, message: /is being closed/ })
  await sleep(500)
  t.notOk(existsSync(file))
})

t.test('a process that ignores EOF and SIGTERM is killed, and its descendants with it', async (t) => {
  const mcp = door(t)
  const pids = [
    await told<number>(call(mcp, child('stubborn'), 'pid')),
    await told<number>(call(mcp, child('stubborn'), 'grandchild')),
  ]
  await mcp.close()
  t.throws(() => process.kill(pids[0] ?? 0, 0), { code: 'ESRCH' }, 'close waits for the end')
  for (const pid of pids) await ended(pid)
})

t.test('at the limit of processes an idle process is ended for a new one, a busy one is not', async (t) => {
  const mcp = door(t, { maxProcesses: 1 })
  const first = await told<number>(call(mcp, child('good', { key: 'a' }), 'pid'))
  t.ok(await told<number>(call(mcp, child('good', { key: 'b' }), 'pid')))
  await ended(first)
  const leaving = new AbortController()
  const busy = call(mcp, child('good', { key: 'b' }), 'hang', {}, { signal: leaving.signal })
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

t.test('where callers may start no programs, only a configured server is started', async (t) => {
  const mcp = door(t, { allowStdio: false })
  await fails(t, list(mcp, child('good')), {
    kind: 'unavailable',
    sent: false,
    message: /BATON_ALLOW_STDIO_CONNECTORS/,
  })
  t.match(mcp.status(child('good').key), { state: 'down', error: /BATON_ALLOW_STDIO_CONNECTORS/ })
  const configured = { ...child('good', { key: 'configured' }), isConfigured: true }
  t.equal((await list(mcp, configured)).server.name, 'child')
})

t.test('a released process counts against the limit until its last call has ended', async (t) => {
  const mcp = door(t, { maxProcesses: 1 })
  const leaving = new AbortController()
  const busy = call(mcp, child('good', { key: 'a' }), 'hang', {}, { signal: leaving.signal })
  const pid = await told<number>(call(mcp, child('good', { key: 'a' }), 'pid'))
  mcp.release('a')
  await fails(t, list(mcp, child('good', { key: 'b' })), { kind: 'unavailable', sent: false })
  leaving.abort()
  await fails(t, busy, { kind: 'cancelled' })
  t.equal((await list(mcp, child('good', { key: 'b' }))).server.name, 'child')
  await ended(pid)
})

t.test('a server that knows only the newer revision is recognised', async (t) => {
  const mcp = door(t, { idleMs: { http: 100, stdio: 100 } })
  const { server, tools } = await list(mcp, child('modern'))
  t.equal(server.protocol_version, '2026-07-28')
  t.ok(tools.length > 5)
  const pid = await told<number>(call(mcp, child('modern'), 'pid'))
  await ended(pid)
  const heard = await told(call(mcp, child('modern'), 'heard'))
  t.same(heard, ['tools/call'], 'the revision is remembered for the next process')
})
