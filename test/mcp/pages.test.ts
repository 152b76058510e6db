/** Tool lists over several pages, and long ones, as servers give them. */
import t from 'tap'
import { held } from '../memory.ts'
import { call, door, fails, list, RAN, specOf } from './door.ts'
import { type Rig, startRig, TOOL } from './servers/rig.ts'

for (const era of ['legacy', 'modern'] as const)
  t.test(`${era}: bad entries on any page cost only their own tools`, async (t) => {
    const rig = await startRig(t, era)
    const pages: Record<string, object> = {
      first: {
        tools: [
          { ...TOOL, title: 'First', outputSchema: { type: 'array' } },
          { name: 'bad', inputSchema: { type: 'string' } },
        ],
        nextCursor: 'second',
      },
      second: { tools: [{ name: 'plain', description: null }, TOOL, 17], nextCursor: 'empty' },
      empty: { tools: null, nextCursor: null },
    }
    rig.on('tools/list', ({ rpc, reply }) => reply(pages[rpc.params?.cursor ?? 'first']))
    const mcp = door(t)
    const { tools, left_out } = await list(mcp, specOf(rig))
    t.equal(rig.count('tools/list'), 3)
    t.same(
      tools.map(({ name }) => name),
      ['tool', 'plain'],
    )
    t.equal(tools[0]?.title, 'First')
    t.match(left_out, [{ tool: 'bad', problem: /^left out: / }])
    t.equal(left_out.length, 1, 'only the named tool that the list lacks is left out')
    t.same(await call(mcp, specOf(rig)), RAN)
  })

t.test('an empty cursor is one like any other in the newer revision, and the end in the older', async (t) => {
  for (const [era, names] of [
    ['legacy', ['tool']],
    ['modern', ['tool', 'last']],
  ] as const) {
    const rig = await startRig(t, era)
    const last = { tools: [{ ...TOOL, name: 'last' }] }
    rig.on('tools/list', ({ rpc, reply }) =>
      reply(rpc.params?.cursor === '' ? last : { tools: [TOOL], nextCursor: '' }),
    )
    const { tools } = await list(door(t), specOf(rig))
    t.same(
      tools.map(({ name }) => name),
      names,
    )
  }
  const rig = await startRig(t, 'modern')
  rig.on('tools/list', ({ reply }) => reply({ tools: [TOOL], nextCursor: '' }))
  t.match(await list(door(t), specOf(rig)), { tools: [TOOL] })
  t.equal(rig.count('tools/list'), 2, 'a page that comes again is the last')
})

t.test('a list of the newer revision that ends with an empty cursor all the same is read', async (t) => {
  const names = async (rig: Rig, mcp = door(t)) =>
    (await list(mcp, specOf(rig), true)).tools.map(({ name }) => name)
  const two = { tools: [{ ...TOOL, name: 'two' }], nextCursor: '' }
  for (const status of [200, 400]) {
    const rig = await startRig(t, 'modern')
    rig.on('tools/list', ({ rpc, reply, fail }) => {
      const { cursor } = rpc.params
      if (cursor === '') return fail(-32602, 'Invalid cursor', status)
      reply(cursor === undefined ? { tools: [TOOL], nextCursor: 'two' } : two)
    })
    const mcp = door(t)
    t.same(await names(rig, mcp), ['tool', 'two'], `the cursor is refused (${status})`)
    rig.on('tools/list', ({ fail }) => fail(-32602, 'Invalid cursor', status))
    await t.rejects(names(rig, mcp), /Invalid cursor/)
  }
  const rig = await startRig(t, 'modern')
  rig.on('tools/list', ({ rpc, reply }) =>
    reply(rpc.params.cursor ? two : { tools: [TOOL], nextCursor: 'two' }),
  )
  t.same(await names(rig), ['tool', 'two'])
  t.equal(rig.count('tools/list'), 3, 'the cursor begins the list anew')
})

t.test('an endless list is read up to a number of pages', async (t) => {
  const rig = await startRig(t)
  let page = 0
  rig.on('tools/list', ({ reply }) =>
    reply({ tools: [{ ...TOOL, name: `t${page++}` }], nextCursor: `c${page}` }),
  )
  const mcp = door(t)
  for (const pages of [32, 64]) {
    const { tools } = await list(mcp, specOf(rig), true)
    t.equal(tools.length, 32)
    t.equal(page, pages)
  }
})

t.test('no more pages are asked for once they are too large together', async (t) => {
  const rig = await startRig(t)
  // Each entry is left out, and none may wait in memory until the list is whole.
  const entries = Array.from({ length: 4 }, () => ({ ...TOOL, description: 'x'.repeat(300_000) }))
  rig.on('tools/list', ({ reply }) => reply({ tools: entries, nextCursor: `c${rig.count('tools/list')}` }))
  const { left_out } = await list(door(t), specOf(rig))
  t.match(left_out, [{ tool: 'tool', problem: /larger than/ }])
  t.equal(rig.count('tools/list'), 2)
  rig.on('tools/list', ({ reply }) =>
    reply({ tools: [TOOL], more: 'x'.repeat(800_000), nextCursor: `c${rig.count('tools/list')}` }),
  )
  const { tools } = await list(door(t), specOf(rig))
  t.equal(tools.length, 1)
  t.equal(rig.count('tools/list'), 5, 'whatever it is that they hold')
})

t.test('a list is fresh for as long as its server says, at most for a day', async (t) => {
  const rig = await startRig(t, 'modern')
  const mcp = door(t)
  for (const [ttlMs, fresh] of [
    [3_600_000, 3_600_000],
    [30 * 24 * 3_600_000, 24 * 3_600_000],
    [1e300, 24 * 3_600_000],
    [-1, 300_000],
    [0, 300_000],
    [undefined, 300_000],
  ] as const) {
    rig.on('tools/list', ({ reply }) =>
      reply({ resultType: 'complete', ttlMs, cacheScope: 'private', tools: [TOOL] }),
    )
    const asked = performance.now()
    const { fresh_until } = await list(mcp, specOf(rig), true)
    const came = fresh_until - fresh
    t.ok(came >= asked && came <= performance.now(), `ttlMs: ${ttlMs}`)
  }
  rig.on('tools/list', ({ rpc, reply }) =>
    reply(
      rpc.params?.cursor ? { tools: [], ttlMs: 1_000 } : { tools: [], ttlMs: 60_000, nextCursor: 'last' },
    ),
  )
  const { fresh_until } = await list(mcp, specOf(rig), true)
  t.ok(fresh_until <= performance.now() + 1_000, 'the list is stale with the first of its pages')
})

t.test('a page with a flood of entries is read, and is the last page', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/list', ({ reply }) =>
    reply({ tools: [TOOL, ...new Array(300_000).fill(0)], nextCursor: 'more' }),
  )
  const { tools } = await list(door(t), specOf(rig))
  t.equal(tools.length, 1)
  t.equal(rig.count('tools/list'), 1)
})

t.test('a list larger than the size limit is refused', async (t) => {
  const rig = await startRig(t)
  rig.tools = [{ ...TOOL, description: 'x'.repeat(300_000) }]
  await fails(t, list(door(t, { maxBytes: 200_000 }), specOf(rig)), { kind: 'too_large' })
})

t.test('entries that are left out of a list are freed while the connection stays', async (t) => {
  const rig = await startRig(t)
  let page = 0
  rig.on('tools/list', ({ reply }) => {
    const inputSchema = { type: 'object', description: 'x'.repeat(1 << 20) }
    reply({
      tools: [1, 2, 3, 4, 5, 6, 7].map((n) => ({ name: `t${n}`, inputSchema })),
      nextCursor: `c${page++}`,
    })
  })
  const mcp = door(t)
  const before = await held('heapUsed')
  const { left_out } = await list(mcp, specOf(rig))
  t.equal(left_out.length, 7, 'seven entries of a megabyte each are left out')
  t.equal(page, 1, 'no more pages are asked for')
  const grown = (await held('heapUsed')) - before
  t.ok(grown < 5 << 20, `the heap grew by ${grown} bytes`)
  t.match(mcp.status(specOf(rig).key), { state: 'ready' })
})
