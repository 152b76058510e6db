/** Which definitions count as accepted when a model is to get tools for the first time. */
import t from 'tap'
import type { McpTool } from '../../src/mcp/contract.ts'
import type { Store } from '../../src/store/store.ts'
import { hashOf } from '../../src/tools/definition.ts'
import { createFirstUse } from '../../src/tools/first-use.ts'

const tool = (name: string): McpTool => ({ name, inputSchema: { type: 'object' } })
const [read, write] = [tool('read'), tool('write')]

/** `held`: the definitions that the store has by then. Notes the tools that the store is asked to accept. */
function setUp(held: Record<string, string> = {}) {
  const pins = new Map(Object.entries(held))
  const asked: string[][] = []
  const connectors = {
    async pinFirst(_: string, tools: readonly { tool: string; hash: string }[]) {
      asked.push(tools.map(({ tool }) => tool))
      const fresh = tools.filter(({ tool }) => !pins.has(tool))
      for (const { tool, hash } of fresh) pins.set(tool, hash)
      return fresh.map(({ tool }) => tool)
    },
    pins: async () => [...pins].map(([tool, hash]) => ({ tool, hash, definition: null })),
  }
  const pinned = createFirstUse({ connectors } as unknown as Pick<Store, 'connectors'>)
  return { pinned, asked }
}

t.test('a tool that comes later is accepted as it is, and earlier tools as they were', async (t) => {
  const { pinned, asked } = setUp()
  const before = new Map([['con_1', new Map([['read', 'as it was']])]])
  const accepted = await pinned('con_1', [read, write], before)
  t.strictSame(Object.fromEntries(accepted), { read: 'as it was', write: hashOf(write) })
  t.strictSame(asked, [['write']])
})

t.test('the definition that another process saw first is accepted', async (t) => {
  const { pinned } = setUp({ read: 'as another saw it' })
  const accepted = await pinned('con_1', [read, write], new Map())
  t.strictSame(Object.fromEntries(accepted), { read: 'as another saw it', write: hashOf(write) })
})

t.test('nothing is accepted for a server that has no list or only known tools', async (t) => {
  const { pinned, asked } = setUp()
  const known = new Map([['read', 'as it was']])
  const before = new Map([['con_1', known]])
  for (const list of [null, [read]]) t.strictSame(await pinned('con_1', list, before), known)
  t.strictSame(asked, [])
})

t.test('sessions that share a list accept it once', async (t) => {
  const { pinned, asked } = setUp()
  const list = [read]
  const [one, other] = await Promise.all([0, 1].map(() => pinned('con_1', list, new Map())))
  t.strictSame(one, new Map([['read', hashOf(read)]]))
  t.strictSame(one, other)
  t.strictSame(asked, [['read']])
})

t.test('a session that joins has the definitions that were accepted since', async (t) => {
  const { pinned } = setUp()
  const list = [read, write]
  const before = (hash: string) => new Map([['con_1', new Map([['read', hash]])]])
  const [one, other] = await Promise.all(
    ['as it was', 'as a person accepted it'].map((hash) => pinned('con_1', list, before(hash))),
  )
  t.strictSame(Object.fromEntries(one ?? []), { read: 'as it was', write: hashOf(write) })
  t.strictSame(Object.fromEntries(other ?? []), { read: 'as a person accepted it', write: hashOf(write) })
})

t.test(
  'a server that names its tools anew in each list cannot make the accepted ones grow for ever',
  async (t) => {
    const { pinned, asked } = setUp()
    const list = Array.from({ length: 1_000 }, (_, i) => tool(`${i}`))
    const first = await pinned('con_1', list, new Map())
    t.equal(asked.at(-1)?.length, 1_000, 'the largest list is accepted whole')
    const held = new Map([...first, ...Array.from({ length: 2_999 }, (_, i) => [`former ${i}`, ''] as const)])
    const next = await pinned('con_1', [list[0] ?? read, read, write], new Map([['con_1', held]]))
    t.strictSame(asked.at(-1), ['read'])
    t.strictSame([next.get('0'), next.get('read')], [first.get('0'), hashOf(read)])
    t.notSame(next.get('write') ?? hashOf(write), hashOf(write), 'one beyond the bound counts as changed')
    await pinned('con_1', [write], new Map([['con_1', new Map([...held, ['read', '']])]]))
    t.equal(asked.length, 2, 'and is not written')
  },
)
