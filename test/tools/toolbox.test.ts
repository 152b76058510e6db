/** The operator's rules: what may be registered, for how long it runs, what needs an approval. */
import t from 'tap'
import type { Toolbox } from '../../src/config/config.ts'
import { createToolboxRules } from '../../src/tools/startup.ts'
import { createToolboxPolicy } from '../../src/tools/toolbox.ts'
import { connector, tool, toolbox } from './declared-tool.ts'

t.test('the toolbox says which tools are admitted, how long and how often at once they run', async (t) => {
  const policy = createToolboxPolicy(
    toolbox({
      tools: [{ name: 'srv.read', maxInstances: 2 }, { name: 'write', timeoutMs: 9 }, { name: 'look_up' }],
    }),
  )
  const strict = { name: 'srv', mode: 'strict' } as const
  t.match(policy.admit(strict, 'read'), { ok: true })
  t.match(
    policy.admit({ ...strict, name: 'other' }, 'write'),
    { ok: true },
    'a bare name counts for every server',
  )
  t.match(policy.admit(strict, 'delete'), {
    ok: false,
    // Each refused tool of each session has it: it may not grow with the toolbox.
    reason: /srv\.delete under toolbox\.tools, or set mode: dynamic\.$/,
  })
  t.match(policy.admit({ ...strict, mode: 'dynamic' }, 'delete'), { ok: true, configured: false })
  t.ok(policy.offersBuiltin('look_up'))
  t.notOk(policy.offersBuiltin('other'))
  t.ok(policy.offersBuiltin('inspect_tool_output'))
  t.notOk(createToolboxPolicy(toolbox({ inspect: false })).offersBuiltin('inspect_tool_output'))
  const dynamic = {
    ...connector,
    mode: 'dynamic' as const,
    default_tool_config: { max_instances: 7, timeout: 'PT2S' },
  }
  t.strictSame(
    policy.limits(tool(), dynamic),
    { maxInstances: 2, timeoutMs: 2_000 },
    'a setting that is left out has its default',
  )
  t.strictSame(policy.limits(tool({ mcp_tool_name: 'write' }), dynamic), { maxInstances: 7, timeoutMs: 9 })
  t.strictSame(policy.limits(tool(), { ...dynamic, mode: 'strict' }), {
    maxInstances: 2,
    timeoutMs: 30_000,
  })
})

t.test('a server gains nothing by naming a tool like another server’s', async (t) => {
  const mcps = [{ name: 'bank' }] as unknown as Toolbox['mcps']
  const tools = [{ name: 'bank.pay', requireApproval: 'never' as const }, { name: 'a.dotted.one' }]
  const policy = createToolboxPolicy(toolbox({ mcps, tools }))
  const evil = { ...connector, name: 'evil', mode: 'strict' as const, require_approval: 'always' as const }
  t.match(policy.admit(evil, 'bank.pay'), { ok: false })
  t.equal(policy.needsApproval(tool({ mcp_tool_name: 'bank.pay' }), evil), true)
  t.match(policy.admit({ ...evil, name: 'bank' }, 'pay'), { ok: true })
  t.match(policy.admit(evil, 'a.dotted.one'), { ok: true }, 'a bare name may have dots')
})

t.test('the log names only the host of a caller’s server, whose path may hold its key', async (t) => {
  const said: string[] = []
  const rules = createToolboxRules({
    log: { warn: (words: string) => said.push(words) },
    toolbox: toolbox({}),
  } as unknown as Parameters<typeof createToolboxRules>[0])
  const url = 'https://mcp.test/s/key-of-ann/mcp?key=too'
  for (const origin of ['api', 'config'] as const) await rules.note({ ...connector, url, origin }, null, [])
  t.strictSame(said, [
    "MCP server 'srv' at https://mcp.test returned no tools",
    "MCP server 'srv' at https://mcp.test/s/key-of-ann/mcp returned no tools",
  ])
})

t.test(
  'the log names only a hundred tools of a caller’s list, and all of a configured server’s',
  async (t) => {
    const said: string[] = []
    const limits = toolbox({})
    const rules = createToolboxRules({
      log: { info: (words: string) => said.push(words) },
      toolbox: limits,
      policy: createToolboxPolicy(limits),
    } as unknown as Parameters<typeof createToolboxRules>[0])
    const names = Array.from({ length: 300 }, (_, i) => `tool-${i}`)
    const lists = { ...connector, mode: 'dynamic' as const, allow_tools: [], deny_tools: [] }
    await rules.note({ ...lists, origin: 'api' }, null, names)
    t.equal(said.length, 101)
    t.equal(said.at(-1), "200 more tools came from MCP server 'srv'")
    await rules.note({ ...lists, origin: 'config' }, null, names)
    t.equal(said.length, 101 + 300)
  },
)

t.test('the log misses a tool only at a server whose tool the toolbox names', async (t) => {
  const said: string[] = []
  const named = toolbox({
    mcps: [{ name: 'bank' }] as unknown as Toolbox['mcps'],
    tools: [{ name: 'bank.pay' }, { name: 'look' }],
  })
  const rules = createToolboxRules({
    log: { warn: (words: string) => said.push(words) },
    toolbox: named,
    policy: createToolboxPolicy(named),
  } as unknown as Parameters<typeof createToolboxRules>[0])
  const lists = { ...connector, mode: 'dynamic' as const, allow_tools: [], deny_tools: [] }
  const gone = (name: string, tool: string) =>
    `Tool '${tool}' was configured but is no longer available from MCP server '${name}'`
  for (const [name, ...tools] of [
    ['bank', 'pay', 'look', 'other'],
    ['evil', 'bank.pay', 'pay', 'look'],
  ] as const)
    await rules.note({ ...lists, name }, [...tools, 'stays'], ['stays'])
  t.strictSame(said, [gone('bank', 'pay'), gone('bank', 'look'), gone('evil', 'look')])
})

t.test('hints count if the operator trusts the server, and absent hints mean the worst', async (t) => {
  const policy = createToolboxPolicy(toolbox({ tools: [{ name: 'srv.asks', requireApproval: 'always' }] }))
  const harmless = tool({ annotations: { readOnlyHint: true } })
  const trusted = { ...connector, trust_annotations: true, require_approval: 'destructive' as const }
  const strange = { ...trusted, trust_annotations: false }
  t.equal(policy.needsApproval(harmless, trusted), false)
  t.equal(policy.needsApproval(harmless, strange), true)
  t.equal(policy.needsApproval(tool({ annotations: { destructiveHint: false } }), trusted), false)
  t.equal(policy.needsApproval(tool(), trusted), true)
  t.equal(policy.needsApproval(tool(), { ...trusted, require_approval: 'never' }), false)
  t.equal(
    policy.needsApproval(tool({ mcp_tool_name: 'asks' }), { ...trusted, require_approval: 'never' }),
    true,
  )
  t.equal(policy.isRepeatable(tool({ annotations: { idempotentHint: true } }), trusted), true)
  t.equal(policy.isRepeatable(tool({ annotations: { idempotentHint: true } }), strange), false)
  t.equal(
    policy.isRepeatable(tool({ annotations: { readOnlyHint: true } }), null),
    true,
    'the hints of built-ins always count',
  )
})
