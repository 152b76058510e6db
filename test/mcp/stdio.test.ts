/** A server's process, without a protocol. */
import t from 'tap'
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
