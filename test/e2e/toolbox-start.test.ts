/** The operator's servers at start: real processes of Baton against real MCP servers (docs/toolbox.md). */

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { memoryServer, startEverything, stopAll } from '../../demo/processes.ts'
import { anyStore } from '../any-store.ts'
import { gatewayProcess } from '../gateway-process.ts'
import { startRig, TOOL } from '../mcp/servers/rig.ts'
import { scratch } from '../scratch.ts'
import { freePort } from '../servers.ts'
import { createClient } from './client.ts'
import { startToolServer } from './tool-server.ts'

const folder = scratch(t)
const store = await anyStore(t)

/** Starts Baton on a YAML file. */
async function start(t: Test, yaml: string, env: Record<string, string> = {}) {
  writeFileSync(join(folder, 'baton.yaml'), yaml)
  const baton = await gatewayProcess(t, folder, { BATON_LOG_LEVEL: 'debug', ...store, ...env })
  return { ...baton, said: (words: string) => baton.log.filter(({ msg }) => msg === words) }
}

const { command, args } = memoryServer(folder)
const MEMORY = `
    - name: memory
      transport: stdio
      command: ${command}
      args: [${args}]`
const MEMORY_TOOLS = [
  'create_entities',
  'create_relations',
  'add_observations',
  'delete_entities',
  'delete_observations',
  'delete_relations',
  'read_graph',
  'search_nodes',
  'open_nodes',
]

t.test('a strict server’s tool that is not configured stops the start', async (t) => {
  const { code, stderr, log } = await start(
    t,
    `toolbox:\n  tools: [{name: memory.read_graph}, {name: search_nodes}]\n  mcps:${MEMORY}\n      mode: strict\n`,
    { BATON_PROT: '1' },
  )
  t.equal(code, 78)
  t.match(log, [{ level: 40, msg: /^BATON_PROT is not a setting/ }], 'a possible cause is said, too')
  const blocks = stderr.trim().split('\n\n')
  t.equal(blocks.length, MEMORY_TOOLS.length - 2, 'one block for each missing tool, in plain text')
  const [block] = blocks.filter((text) => text.includes('create_entities'))
  t.match(block?.split('\n'), [
    "Tool 'create_entities' from MCP server 'memory' is not configured in the toolbox.",
    'MCP Server: memory',
    'Mode: strict',
    'Missing Tool: create_entities',
    'Configured tools: [memory.read_graph, search_nodes]',
    'To resolve:',
    /toolbox\.tools: {2}- name: memory\.create_entities/,
    /mode: dynamic with default_tool_config/,
  ])
})

t.test('servers that cannot be reached stop the start, each with its reason', async (t) => {
  const closed = `http://127.0.0.1:${await freePort()}/mcp`
  const { code, stderr } = await start(
    t,
    `
toolbox:
  mcps:
    - {name: closed, transport: streamable_http, url: "${closed}?key=hunter2", mode: strict}
    - {name: missing, transport: stdio, command: /no/such/program, args: [hunter2], mode: strict}
    - {name: notes, transport: stdio, command: /bin/sh, args: [-c, "echo no licence in /srv for TOKEN=sk-notyours0123456789abcdef >&2; exit 7"], mode: strict}
`,
  )
  t.equal(code, 69)
  const blocks = stderr.trim().split('\n\n')
  t.equal(blocks.length, 3)
  t.match(blocks[0]?.split('\n'), [
    `Failed to connect to MCP server 'closed' at ${closed}`,
    /^Error: .*(refused|ECONNREFUSED)/i,
    'The application cannot start without connecting to all configured MCP servers.',
  ])
  t.match(blocks[1]?.split('\n'), [
    "Failed to connect to MCP server 'missing' at /no/such/program",
    /^Error: ./,
    'The application cannot start without connecting to all configured MCP servers.',
  ])
  t.match(
    blocks[2],
    /^Error: .*exited with code 7.*no licence in \/srv/m,
    'the error of a program that ended has its own words',
  )
  t.notMatch(stderr, /hunter2/)
  t.notMatch(stderr, 'sk-notyours', 'a secret that the program found elsewhere is left out')
})

t.test('a gateway with a good toolbox starts, logs what it made of it, and serves the tools', async (t) => {
  t.teardown(stopAll)
  const url = await startEverything()
  const empty = await startToolServer()
  t.teardown(() => empty.close())
  const rig = await startRig(t, 'modern')
  const properties = { a: { type: 'string', 'x-mcp-header': 'no\n{"level":60}' } }
  rig.tools = [TOOL, { name: 'b\nc', inputSchema: { type: 'object', properties } }]
  const tools = [
    ...MEMORY_TOOLS.map((name) => `memory.${name}`),
    'everything.echo',
    'everything.gone',
    'absent',
    'later.tool',
  ]
  const denied = ['everything.echo', '"everything.get-*"', 'delete', 'get-tiny-image', '"*_delete"']
  const file = `
toolbox:
  tools:
    - {name: everything.get-sum, max_instances: 3}
${tools.map((name) => `    - {name: ${name}}`).join('\n')}
  mcps:${MEMORY}
      mode: strict
      default_tool_config: {max_instances: 9, timeout: PT7S}
    - {name: everything, transport: streamable_http, url: "${url}", mode: dynamic, default_tool_config: {timeout: PT9S}, deny_tools: [${denied.join(', ')}]}
    - {name: empty, transport: streamable_http, url: "${empty.url}", mode: strict}
    - {name: rig, transport: streamable_http, url: "${rig.url}", mode: dynamic, default_tool_config: {timeout: PT5S}}
`
  const one = await start(t, file, { BATON__TOOLBOX__TOOLS__0__MAX_INSTANCES: '2' })
  t.ok(one.url, one.stderr)
  const absent = "' was configured but is no longer available from MCP server "
  t.match(one.said(`Tool 'gone${absent}'everything'`), [{ level: 40 }])
  t.equal(one.said(`MCP server 'empty' at ${empty.url} returned no tools`).length, 1)
  t.ok(one.log.some(({ msg, level }) => level === 40 && msg.startsWith(`Tool 'absent${absent}`)))
  const idle = one.log.flatMap(
    ({ msg }) => /^'(.*)' in deny_tools of MCP server 'everything' is none/.exec(msg)?.[1] ?? [],
  )
  t.strictSame(
    idle,
    ['everything.echo', 'everything.get-*', 'delete'],
    'a denial that denies nothing is told',
  )
  t.equal(one.said("Tool 'later.tool' is configured, but no MCP server 'later' is").length, 1)
  t.match(
    one.said('tool configuration merged').find(({ tool }) => tool === 'get-sum'),
    { level: 20, server: 'everything', maxInstances: 2, timeoutMs: 9_000 },
  )
  t.match(
    one.said('tool configuration merged').find(({ tool }) => tool === 'read_graph'),
    { maxInstances: 5, timeoutMs: 30_000 },
  )
  const byDefault = (tool: string, mcp: string) =>
    `Tool '${tool}' from MCP '${mcp}' not explicitly configured, using default configuration`
  t.match(one.said(byDefault('get-env', 'everything')), [{ level: 30 }])
  for (const tool of ['echo', 'get-tiny-image']) t.equal(one.said(byDefault(tool, 'everything')).length, 0)
  const api = createClient(one.url ?? '')
  const { id } = await api.post('/v1/sessions', { provider: 'openai', model: 'any' })
  const names = (await api.get(`/v1/sessions/${id}/tools`)).tools.map(
    ({ canonical_name }: { canonical_name: string }) => canonical_name,
  )
  for (const name of ['memory.read_graph', 'everything.get-env', 'inspect_tool_output']) {
    t.ok(names.includes(name), name)
  }
  const excluded = /excluding tool 'b c'.*'no {"level":60}'/
  t.ok(
    one.log.some(({ level, msg }) => level === 20 && excluded.test(msg)),
    'what the MCP package says about a server’s tools is a line of the log',
  )
  t.equal(one.stderr, '')
  t.equal(await one.stop(), 0)
})

t.test('a data folder that cannot be made ends the start', async (t) => {
  const BATON_ENCRYPTION_KEYS = `k:${Buffer.alloc(32).toString('base64')}`
  for (const [dir, more] of [
    [join(folder, 'baton.yaml'), {}],
    ['/proc/baton', { BATON_ENCRYPTION_KEYS }],
  ] as const) {
    const refused = await start(t, '', { DATABASE_URL: '', BATON_DATA_DIR: dir, ...more })
    t.equal(refused.code, 78, refused.stderr)
    t.ok(refused.stderr.startsWith(`BATON_DATA_DIR: Baton cannot keep its data in ${dir} (`))
  }
})
