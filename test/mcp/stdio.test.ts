/** A server's process and its variables, without a protocol. */
import t from 'tap'
import { childEnv } from '../../src/mcp/child-env.ts'
import { createStdioTransport } from '../../src/mcp/stdio.ts'

t.test('a process that has ended is watched no longer: its number may become another one’s', async (t) => {
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
