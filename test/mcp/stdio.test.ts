/** A server's process, what it says, and its variables, without a protocol. */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { Readable } from 'node:stream'
import { mock } from 'node:test'
import { promisify } from 'node:util'
import t from 'tap'
import { childEnv } from '../../src/mcp/child-env.ts'
import { type LineReader, readLines } from '../../src/mcp/lines.ts'
import { createStdioTransport } from '../../src/mcp/stdio.ts'
import type { Watchdog } from '../../src/mcp/watchdog.ts'
import { held } from '../memory.ts'
import { eventually, gate } from '../waiting.ts'
import { fails } from './door.ts'
import { ended } from './processes.ts'

/** A server's process that runs a script, watched by as much of a watchdog as is given. */
const shell = (script: string, watched: Partial<Watchdog> = {}) =>
  createStdioTransport(
    {
      key: 'k',
      name: 's',
      transport: 'stdio',
      command: '/bin/sh',
      args: ['-c', script],
      allowPrivate: false,
    },
    { maxBytes: 1_000, watchdog: { add() {}, remove() {}, stop() {}, ...watched }, sandbox: null },
  )

t.test('a process that has ended takes its descendants along, and its id is watched no more', async (t) => {
  const told: string[] = []
  const watchdog = {
    add: (group: number) => told.push(`add ${group}`),
    remove: (group: number) => told.push(`remove ${group}`),
  }
  const script = "trap '' TERM; sleep 600 >&- 2>&- & echo $! >&2"
  const transport = shell(script, watchdog)
  const closed = new Promise<void>((resolve) => {
    transport.onclose = resolve
  })
  await transport.start()
  await closed
  const group = /\d+/.exec(told[0] ?? '')?.[0]
  t.same(told, [`add ${group}`, `remove ${group}`])
  const { words } = transport.obituary()
  t.match(words, /^\d+$/)
  await ended(Number(words))
})

t.test('a process that is closed while it starts ends as its stdin does, and so does the wait', async (t) => {
  // No wait ends by its time.
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const groups = new Set<number>()
  const watchdog = {
    add: (group: number) => void groups.add(group),
    remove: (group: number) => void groups.delete(group),
  }
  const transport = shell('exec cat', watchdog)
  t.teardown(() => transport.close())
  const starting = transport.start()
  await transport.close()
  await starting
  t.match(transport.obituary(), { ending: 'exited with code 0' })
  t.equal(groups.size, 0)
})

t.test('the output of a process that closes its pipes before it exits is not waited for', async (t) => {
  // No wait ends by its time.
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const transport = shell('exec >&- 2>&-; sleep 0.3')
  const closed = new Promise<void>((resolve) => {
    transport.onclose = resolve
  })
  await transport.start()
  await closed
  t.match(transport.obituary(), { ending: 'exited with code 0' })
})

t.test('a message to a process that has ended, or is being ended, is refused as never sent', async (t) => {
  const unsent = { kind: 'disconnected', sent: false, message: 's is not running' }
  const ping = { jsonrpc: '2.0', id: 1, method: 'ping' } as const
  const started = async (script: string, remove = () => {}) => {
    const transport = shell(script, { remove })
    t.teardown(() => transport.close())
    await transport.start()
    return transport
  }
  let child: ChildProcess | undefined
  const hear = (message: unknown) => {
    child = (message as { process: ChildProcess }).process
  }
  subscribe('child_process', hear)
  t.teardown(() => unsubscribe('child_process', hear))
  const { opened: isDead, open: end } = gate()
  // A descendant that left the group holds the pipes: the end is known before all of the output is read.
  const leaving = `exec 3>&1; pid=$(setsid sh -c 'echo $$; exec sleep 600 >&3' &); echo $pid >&2`
  const dying = await started(leaving, end)
  const { stdout, stderr } = child ?? {}
  await isDead
  await fails(t, dying.send(ping), unsent, 'it has ended')
  await eventually(() => stdout?.destroyed && stderr?.destroyed)
  process.kill(Number(dying.obituary().words))
  const stubborn = await started("trap '' TERM; sleep 1; exit 0")
  void stubborn.close()
  await fails(t, stubborn.send(ping), unsent, 'it is being ended')
})

/** What is read of pieces of output: methods and ids, refusals, and the end that a lost answer asks for. */
async function read(pieces: (string | Buffer)[], maxBytes = 1_000): Promise<string[]> {
  const heard: string[] = []
  const stdout = new Readable({ read() {} })
  const reader: LineReader = {
    onmessage: (message) => void heard.push('method' in message ? message.method : `answer ${message.id}`),
    onrefused: (id, kind) => void heard.push(`${id} ${kind}`),
    close: async () => void heard.push('closed'),
  }
  readLines(stdout, reader, maxBytes)
  for (const piece of pieces) stdout.push(typeof piece === 'string' ? Buffer.from(piece) : piece)
  stdout.push(null)
  await once(stdout, 'end')
  return heard
}

const bytewise = (text: string): Buffer[] => [...Buffer.from(text)].map((byte) => Buffer.of(byte))

t.test('what a process says is read line by line, wherever it is cut', async (t) => {
  const answer = (text = '') => `{"jsonrpc":"2.0","id":0,"result":{"text":"${text}"}}`
  const plain = answer('ä€🙂')
  const x = (count: number) => 'x'.repeat(count)
  for (const [output, expected, why] of [
    [`${plain}\r\n\n${plain}\n`, ['answer 0', 'answer 0'], 'CR LF, and an empty line'],
    [`\ufeff${plain}\n\ufeff${plain}\n`, ['answer 0', 'answer 0'], 'byte order marks'],
    [
      ` \t${plain}\n[${plain}]\n0\n\u0000${plain}\n${plain}`,
      ['answer 0'],
      'what does not begin with {, or is cut',
    ],
    [`${answer(x(9_000))}\n${plain}\n`, ['0 too_large', 'answer 0'], 'a line above the cap'],
    [`\t{ "id" : 12, "jsonrpc" : "2.0", "result": "${x(9_000)}" }\n`, ['12 too_large'], 'its id comes first'],
    [
      `{"jsonrpc": "2.0", "result": "${x(9_000)}", "id": 7 }\r\n`,
      ['7 too_large'],
      'its id comes last, as from Go',
    ],
    [
      `{"result": "${x(9_000)}", "id" : 7 , "jsonrpc" : "2.0" }\n`,
      ['7 too_large'],
      'last but one, as from C#',
    ],
    [
      `{"jsonrpc":"2.0","id":"a","result":{"text":"${x(9_000)}","id":7}}\n`,
      ['closed'],
      'an inner id at the end',
    ],
    [`{"jsonrpc":"2.0","method":"m","params":{"id":7,"text":"${x(9_000)}"}}\n`, [], 'it answers nothing'],
    [`{"jsonrpc":"2.0","id":"7","result":{"text":"${x(9_000)}"}}\n`, ['7 too_large'], 'its id as text'],
    [`{"result":{"text":"${x(9_000)}"},"id":"7"}\n`, ['7 too_large'], 'and at the end'],
    [`${x(9_000)}{"jsonrpc":"2.0","id":7}, ${x(300)}\n${plain}\n`, ['closed', 'answer 0'], 'no id at an end'],
    ['{"jsonrpc":"2.0","id":7,"result":{"method":NaN}}\n', ['7 protocol'], 'no JSON, as Python writes it'],
    ['{"jsonrpc":"2.0","result":NaN,"id":7}\n', ['7 protocol'], 'its id comes last'],
    [' {"jsonrpc":"2.0","id":7,"method":"m",NaN}\n{"id":7,"result":NaN}\n', [], 'a question, and a log'],
    ['{"jsonrpc":"2.0","result":{},"id":7,"more":1}\n', ['7 protocol'], 'no JSON-RPC'],
    [
      '{"jsonrpc":"2.0","id":"7"}\n{"jsonrpc":"2.0","id":7,"method":1}\n{"id":7}\n',
      [],
      'neither, nor an answer',
    ],
  ] as const) {
    t.same(await read([output]), expected, why)
    t.same(await read(bytewise(output)), expected, `${why}, byte by byte`)
  }
  const { length } = Buffer.from(plain)
  t.same(await read([plain, '\n'], length), ['answer 0'], 'a line as large as the cap')
  t.same(await read([plain, '\n'], length - 1), ['0 too_large'], 'a line one byte above it')
})

t.test('a line takes little more room than its bytes, and hardly any above the cap', async (t) => {
  const stdout = new Readable({ read() {} })
  readLines(stdout, { close: async () => {} }, 1_000_000)
  const before = await held('heapUsed')
  for (let i = 0; i < 300_000; i++) stdout.emit('data', Buffer.of(32))
  const kept = (await held('heapUsed')) - before
  t.ok(kept < 4_000_000, `${kept} bytes of single ones`)
  const outside = await held('arrayBuffers')
  for (let i = 0; i < 3; i++) stdout.emit('data', Buffer.alloc(2_000_000, 32))
  const left = (await held('arrayBuffers')) - outside
  t.ok(left < 100_000, `${left} bytes above the cap`)
  stdout.destroy(new Error('EIO'))
  await new Promise((resolve) => stdout.once('close', resolve))
})

t.test('lines of a flood are read piece by piece, and other work goes on in between', async (t) => {
  const stdout = new Readable({ read() {} })
  const done: string[] = []
  readLines(stdout, { close: async () => {}, onmessage: () => void done.push('line') }, 1_000)
  for (let i = 0; i < 2; i++) stdout.push('{"jsonrpc":"2.0","method":"m"}\n')
  setImmediate(() => done.push('other work'))
  stdout.push(null)
  await once(stdout, 'end')
  t.same(done, ['line', 'other work', 'line'])
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
  const started = ['let go', 'ended', 'ended', 'watched', 'watched'].map(() => {
    const child = spawn('/bin/sleep', ['600'], { detached: true, stdio: 'ignore' })
    t.teardown(() => child.kill('SIGKILL'))
    return child
  })
  const [letGo, ...groups] = started
  const script = `
    import { subscribe } from 'node:diagnostics_channel'
    import { once } from 'node:events'
    import { setTimeout as sleep } from 'node:timers/promises'
    import { createWatchdog } from '${new URL('../../src/mcp/watchdog.js', import.meta.url)}'
    const [letGo, ...groups] = ${JSON.stringify(started.map(({ pid }) => pid))}
    const shells = []
    subscribe('child_process', ({ process }) => shells.push(process))
    const stopped = createWatchdog()
    stopped.add(letGo)
    stopped.stop()
    const isLeft = await Promise.race([once(shells[0], 'exit').then(() => false), sleep(5_000, true)])
    const watchdog = createWatchdog()
    for (const group of groups) watchdog.add(group)
    for (const group of groups.slice(0, 2)) watchdog.remove(group)
    await sleep(200)
    if (!isLeft) process.kill(process.pid, 'SIGKILL')
    process.exit()
  `
  const gateway = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'ignore' })
  t.teardown(() => gateway.kill('SIGKILL'))
  const left = once(gateway, 'exit')
  const exits = groups.slice(2).map((watched) => once(watched, 'exit'))
  for (const exit of await Promise.all(exits)) t.same(exit, [null, 'SIGKILL'])
  for (const ended of groups.slice(0, 2))
    t.equal(ended.signalCode, null, 'an id that is watched no more may be of another group by now')
  t.same(await left, [null, 'SIGKILL'], 'a watchdog that is stopped ends by itself')
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
