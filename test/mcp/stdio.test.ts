/** A server's process and its variables, without a protocol. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'
import { childEnv } from '../../src/mcp/child-env.ts'
import { createStdioTransport } from '../../src/mcp/stdio.ts'

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
