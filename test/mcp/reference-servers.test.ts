/** The MCP project's reference servers, over each transport. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import type { ContentPart } from '../../src/chat/message.ts'
import type { Mcp, McpServerSpec } from '../../src/mcp/contract.ts'
import { NONE } from '../patterns.ts'
import { scratch } from '../scratch.ts'
import { freePort } from '../servers.ts'
import { gate } from '../waiting.ts'
import { call, door, fails, list } from './door.ts'
import { child } from './processes.ts'

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
  await call(
    mcp,
    spec,
    'trigger-long-running-operation',
    { duration: 0.4, steps: 4 },
    {
      onProgress: ({ progress: step }) => void progress.push(step),
    },
  )
  t.same(progress, [1, 2, 3, 4])
}

t.test('Baton lists and calls server-everything over stdio', async (t) => {
  const mcp = door(t)
  await checkEverything(t, mcp, child('everything', { args: [EVERYTHING, 'stdio'] }))
})

for (const transport of ['streamable_http', 'sse'] as const)
  t.test(`Baton lists and calls server-everything over ${transport}, and notices its end`, async (t) => {
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
    // The server announces its start before it listens.
    await listening(port)
    await checkEverything(t, mcp, spec)
    const { opened: runs, open: onProgress } = gate()
    const asked = { duration: 30, steps: 300 }
    const lost = call(mcp, spec, 'trigger-long-running-operation', asked, { onProgress })
    await runs
    server.kill('SIGKILL')
    await fails(t, lost, { kind: 'disconnected', sent: true })
    await fails(t, call(mcp, spec, 'echo', { message: 'x' }), { kind: 'unavailable', sent: false })
  })

t.test('server-memory keeps an entity over a restart', async (t) => {
  const args = [bin('server-memory/dist/index.js')]
  const spec = child('memory', { args, env: { MEMORY_FILE_PATH: join(scratch(t), 'memory.jsonl') } })
  const mcp = door(t)
  const { tools } = await list(mcp, spec)
  t.equal(tools.length, 9)
  t.ok(tools.every(({ annotations }) => annotations))
  const entity = { name: 'Baton', entityType: 'gateway', observations: ['hands over'] }
  t.equal((await call(mcp, spec, 'create_entities', { entities: [entity] })).is_error, false)
  await mcp.close()
  t.match(await call(door(t), spec, 'read_graph'), { structured: { entities: [entity], relations: NONE } })
})

async function listening(port: number): Promise<void> {
  for (;;) {
    const answer = await fetch(`http://127.0.0.1:${port}/`).catch(() => null)
    if (answer) return void (await answer.body?.cancel())
    await sleep(50)
  }
}
