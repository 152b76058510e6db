/** A server's process and its variables, without a protocol. */
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mock } from 'node:test'
import { promisify } from 'node:util'
import t from 'tap'
import { childEnv } from '../../src/mcp/child-env.ts'
import { createStdioTransport } from '../../src/mcp/stdio.ts'
import { held } from '../memory.ts'
import { eventually } from '../waiting.ts'
import { fails } from './door.ts'

t.test('a process that has ended is no longer watched, since its id may be used again', async (t) => {
  const told: string[] = []
  const watchdog = {
    add: (group: number) => told.push(`add ${group}`),
    remove: (group: number) => told.push(`remove ${group}`),
    stop() {},
  }
  const transport = createStdioTransport(
    { key: 'k', name: 's', transport: 'stdio', command: '/bin/sh', args: ['-c', ':'], allowPrivate: false },
    { maxBytes: 1_000, watchdog, sandbox: null },
  )
  const closed = new Promise<void>((resolve) => {
    transport.onclose = resolve
  })
  await transport.start()
  await closed
  const group = /\d+/.exec(told[0] ?? '')?.[0]
  t.same(told, [`add ${group}`, `remove ${group}`])
})

t.test('a process that is closed while it starts is ended, and so is the wait', async (t) => {
  const groups = new Set<number>()
  const watchdog = {
    add: (group: number) => void groups.add(group),
    remove: (group: number) => void groups.delete(group),
    stop() {},
  }
  const transport = createStdioTransport(
    { key: 'k', name: 's', transport: 'stdio', command: '/bin/cat', allowPrivate: false },
    { maxBytes: 1_000, watchdog, sandbox: null },
  )
  t.teardown(() => transport.close())
  const starting = transport.start()
  await transport.close()
  await starting
  t.match(transport.obituary(), { ending: /^(?:exited|was ended)/ })
  t.equal(groups.size, 0)
})

t.test('the output of a process that closes its pipes before it exits is not waited for', async (t) => {
  // No wait ends by its time.
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const transport = createStdioTransport(
    {
      key: 'k',
      name: 's',
      transport: 'stdio',
      command: '/bin/sh',
      args: ['-c', 'exec >&- 2>&-; sleep 0.3'],
      allowPrivate: false,
    },
    { maxBytes: 1_000, watchdog: { add() {}, remove() {}, stop() {} }, sandbox: null },
  )
  const closed = new Promise<void>((resolve) => {
    transport.onclose = resolve
  })
  await transport.start()
  await closed
  t.match(transport.obituary(), { ending: 'exited with code 0' })
})

t.test('a message to a process that has ended, or is being ended, is refused as never sent', async (t) => {
  const unsent = { kind: 'disconnected', sent: false }
  const ping = { jsonrpc: '2.0', id: 1, method: 'ping' } as const
  const started = async (script: string, remove = () => {}) => {
    const transport = createStdioTransport(
      {
        key: 'k',
        name: 's',
        transport: 'stdio',
        command: '/bin/sh',
        args: ['-c', script],
        allowPrivate: false,
      },
      { maxBytes: 1_000, watchdog: { add() {}, remove, stop() {} }, sandbox: null },
    )
    t.teardown(() => transport.close())
    await transport.start()
    return transport
  }
  const ended = new Promise((resolve) => {
    // A descendant that left the group holds the pipes: the end is known before all of the output is read.
    const dying = started('setsid sleep 5 & exit 0', () => resolve(dying.then(({ send }) => send(ping))))
  })
  await fails(t, ended, unsent, 'it has ended')
  const stubborn = await started("trap '' TERM; sleep 1; exit 0")
  void stubborn.close()
  await fails(t, stubborn.send(ping), unsent, 'it is being ended')
})

t.test('a line that comes byte by byte takes little more room than its bytes', async (t) => {
  const write = `for (let i = 0; i < 300_000; i++) fs.writeSync(1, ' '); fs.writeSync(2, 'all'); process.stdin.resume()`
  const spec = {
    key: 'k',
    name: 's',
    transport: 'stdio',
    command: process.execPath,
    allowPrivate: false,
  } as const
  const watchdog = { add() {}, remove() {}, stop() {} }
  const options = { maxBytes: 1_000_000, watchdog, sandbox: null }
  const transport = createStdioTransport({ ...spec, args: ['-e', write] }, options)
  t.teardown(() => transport.close())
  const before = await held('heapUsed')
  await transport.start()
  await eventually(() => transport.obituary().words === 'all')
  const kept = (await held('heapUsed')) - before
  t.ok(kept < 4_000_000, `${kept} bytes`)
})

t.test('a process that cannot start because too many files are open fails alone', async (t) => {
  const script = `
    import { openSync } from 'node:fs'
    import { createStdioTransport } from '${new URL('../../src/mcp/stdio.js', import.meta.url)}'
    const spec = { key: 'k', name: 'server', transport: 'stdio', command: '/bin/true', allowPrivate: false }
    const transport = createStdioTransport(spec, { maxBytes: 1_000, watchdog: null, sandbox: null })
    try { for (;;) openSync('/dev/null') } catch {}
    await transport.start().catch(({ kind, message }) => console.log(kind + ': ' + message))
    await transport.close()
  `
  const limited = ['-c', 'ulimit -n 100; exec "$0" --input-type=module -e "$1"', process.execPath, script]
  const { stdout } = await promisify(execFile)('/bin/sh', limited, { env: {} })
  t.equal(stdout, 'unavailable: server cannot be started: spawn /bin/true EMFILE\n')
})

t.test('a gateway that is killed takes along the groups that are watched then, and no others', async (t) => {
  const started = ['let go', 'ended', 'watched'].map(() => {
    const child = spawn('/bin/sleep', ['600'], { detached: true, stdio: 'ignore' })
    t.teardown(() => child.kill('SIGKILL'))
    return child
  })
  const [letGo, ended, watched] = started
  const script = `
    import { setTimeout as sleep } from 'node:timers/promises'
    import { createWatchdog } from '${new URL('../../src/mcp/watchdog.js', import.meta.url)}'
    const [letGo, ended, watched] = ${JSON.stringify(started.map(({ pid }) => pid))}
    const stopped = createWatchdog()
    stopped.add(letGo)
    stopped.stop()
    await sleep(200)
    const watchdog = createWatchdog()
    for (const group of [ended, watched]) watchdog.add(group)
    watchdog.remove(ended)
    await sleep(200)
    process.kill(process.pid, 'SIGKILL')
  `
  const gateway = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'ignore' })
  t.teardown(() => gateway.kill('SIGKILL'))
  t.same(await once(watched as typeof gateway, 'exit'), [null, 'SIGKILL'])
  t.equal(ended?.signalCode, null, 'an id that is watched no more may be of another group by now')
  t.equal(letGo?.signalCode, null, 'a gateway that left in good order kills nothing')
})

t.test('variables that make a program run other code are refused by name', (t) => {
  for (const name of [
    'NODE_OPTIONS',
    'LD_PRELOAD',
    'DYLD_INSERT_LIBRARIES',
    'PYTHONSTARTUP',
    'BASH_ENV',
    'ld_preload',
  ])
    t.throws(() => childEnv({ [name]: 'x' }), { code: 'invalid_request', param: `env.${name}` })
  t.throws(() => childEnv({ 'A=B': 'x' }), { code: 'invalid_request' })
  t.throws(() => childEnv({ A: 'x\0y' }), { code: 'invalid_request', param: 'env.A' })
  t.doesNotThrow(() => childEnv({ API_TOKEN: 'x', PATH: '/bin', NODE_ENV: 'production' }))
  t.end()
})
