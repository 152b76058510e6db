/**
 * A session's tools as callers change them: bind, switch, refresh, for the next step or now; on doubles of store and
 * door.
 */
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import { NONE } from '../patterns.ts'
import { sessionOf, setUp, tool } from './session-tools-doubles.ts'

t.test('binding and unbinding answer with what changed, and make one revision each', async (t) => {
  const { create, add, said } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  add('one', { tools: [tool('a'), tool('b')] })
  add('two', { tools: [tool('a')] })
  await tools.open(session, [])
  t.strictSame(
    said.map(({ delta }) => delta.added),
    [['look_up']],
  )
  const first = await tools.bind(session, 'one', 'next', null)
  t.match(first, {
    tools_revision: 2,
    added: ['one.a', 'one.b'],
    removed: NONE,
    changed: NONE,
    prompt_cache: 'invalidated',
  })
  const second = await tools.bind(session, 'con_two', 'next', 'other')
  t.match(second, { tools_revision: 3, added: ['other.a'] })
  t.match(await tools.bind(session, 'one', 'next', null), {
    tools_revision: 3,
    added: NONE,
    prompt_cache: 'kept',
  })
  const gone = await tools.unbind(session, 'one', 'next')
  t.match(gone, { tools_revision: 4, removed: ['one.a', 'one.b'], added: NONE, changed: NONE })
  t.equal(tools.latestRevision('ses_1'), 4)
  const list = await tools.list(session, 'openai')
  t.strictSame(
    list.tools.map((one) => one.canonical_name),
    ['look_up', 'other.a'],
  )
  t.equal(list.declarations?.length, 2)
  t.match(list.tools[1], {
    provider_exposed_name: { openai: 'other__a', gemini: 'other__a' },
    server: 'other',
  })
  await t.rejects(tools.bind(session, 'nobody', 'next', null), { code: 'connector_not_found' })
  await t.rejects(tools.unbind(session, 'one', 'next'), { code: 'connector_not_found' })
  add('third', { tools: [] })
  await t.rejects(tools.bind(session, 'third', 'next', 'other'), { code: 'name_taken' })
  add('fourth', { tools: [] })
  const both = ['third', 'fourth'].map((name) => tools.bind(session, name, 'next', 'twin'))
  t.match(await Promise.allSettled(both), [
    { status: 'fulfilled' },
    { status: 'rejected', reason: { code: 'name_taken' } },
  ])
})

t.test('unbinding again takes out the tools that a failed try has left', async (t) => {
  const { create, add, store, told } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('one', { tools: [tool('a')] })])
  const { put } = store.registry
  store.registry.put = async () => {
    store.registry.put = put
    throw new BatonError('unavailable', 'The database is not available.')
  }
  await t.rejects(tools.unbind(session, 'one', 'now'), { code: 'unavailable' })
  t.match(await tools.unbind(session, 'one', 'now'), { removed: ['one.a'] })
  t.match(told, [{ removed: ['one.a'], isMoved: true, apply: 'now' }])
  await t.rejects(tools.unbind(session, 'one', 'now'), { code: 'connector_not_found' })
})

t.test('a session has 256 servers at most, and any of them can be bound anew', async (t) => {
  const { create, add } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(
    session,
    Array.from({ length: 255 }, (_, i) => add(`s${i}`, { tools: [] })),
  )
  add('last', { tools: [] })
  add('more', { tools: [] })
  await tools.bind(session, 'last', 'next', null)
  const refused = { code: 'invalid_request', param: 'connector', message: /256/ }
  await t.rejects(tools.bind(session, 'more', 'next', null), refused)
  await tools.bind(session, 'last', 'next', 'alias')
  await tools.unbind(session, 's0', 'next')
  await tools.bind(session, 'more', 'next', null)
})

t.test('a tool that is switched off and on again comes back behind the others', async (t) => {
  const { create, add, told } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a'), tool('b')] })])
  const order = async () => (await tools.list(session, null)).tools.map((one) => one.canonical_name)
  t.strictSame(await order(), ['look_up', 's.a', 's.b'])
  t.match(await tools.setEnabled(session, 's.a', false, 'next'), {
    changed: ['s.a'],
    prompt_cache: 'invalidated',
  })
  t.match(await tools.setEnabled(session, 's.a', false, 'next'), { changed: NONE, prompt_cache: 'kept' })
  await tools.setEnabled(session, 's.a', true, 'next')
  t.strictSame(told.at(-1)?.removed, [], 'its calls go on')
  t.strictSame(await order(), ['look_up', 's.b', 's.a'])
  const unknown = { code: 'tool_not_found', message: /canonical names/ }
  await t.rejects(tools.setEnabled(session, 's__a', true, 'next'), unknown)
})

t.test('a tool that is off stays off while its server is bound, even if it leaves the list', async (t) => {
  const { create, add, servers, connectors } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a'), tool('b')] })
  await tools.open(session, [one])
  const enabled = async () =>
    (await tools.list(session, null)).tools.flatMap((it) =>
      it.server ? [[it.canonical_name, it.enabled]] : [],
    )
  const listing = async (names: string[]) => {
    servers.set(`${one.id}@${one.config_revision}`, { tools: names.map((name) => tool(name)) })
    await tools.refresh(session, 'next')
  }
  await tools.setEnabled(session, 's.a', false, 'next')
  await listing(['b'])
  t.strictSame(await enabled(), [['s.b', true]])
  await listing(['a', 'b'])
  t.strictSame(await enabled(), [
    ['s.b', true],
    ['s.a', false],
  ])
  connectors.set(one.id, { ...one, name: 'renamed' })
  await tools.refresh(session, 'next')
  t.strictSame(await enabled(), [
    ['renamed.a', false],
    ['renamed.b', true],
  ])
  await tools.setEnabled(session, 'renamed.a', true, 'next')
  await listing(['b'])
  await listing(['a', 'b'])
  t.strictSame(await enabled(), [
    ['renamed.b', true],
    ['renamed.a', true],
  ])
  await tools.setEnabled(session, 'renamed.b', false, 'next')
  await tools.unbind(session, one.id, 'next')
  await tools.bind(session, one.id, 'next', null)
  t.strictSame(
    await enabled(),
    [
      ['renamed.a', true],
      ['renamed.b', true],
    ],
    'a server that is bound anew has all its tools on',
  )
})

t.test(
  'a tool stays off that an older version switched off, which did not note this with the binding',
  async (t) => {
    const { create, add, servers, connectors, store } = setUp(t)
    const tools = create()
    const session = sessionOf('ses_1')
    const one = add('s', { tools: [tool('a'), tool('b')] })
    await tools.open(session, [one])
    for (const name of ['a', 'b']) {
      await tools.setEnabled(session, `s.${name}`, false, 'next')
      await store.connectors.switchTool('ses_1', one.id, name, true)
    }
    const listing = async (names: string[]) => {
      servers.set(`${one.id}@${one.config_revision}`, { tools: names.map((name) => tool(name)) })
      await tools.refresh(session, 'next')
    }
    await listing(['b'])
    connectors.set(one.id, { ...one, name: 'renamed' })
    await listing(['a', 'b'])
    const { tools: shown } = await tools.list(session, null)
    t.strictSame(
      shown.flatMap((it) => (it.server ? [[it.canonical_name, it.enabled]] : [])),
      [
        ['renamed.a', false],
        ['renamed.b', false],
      ],
    )
  },
)

t.test('changes that are made at once take effect together', async (t) => {
  const { create, add, told } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const names = Array.from({ length: 45 }, (_, i) => `t${i}`)
  await tools.open(session, [add('s', { tools: names.map((name) => tool(name)) })])
  const changes = names.map((name) => tools.setEnabled(session, `s.${name}`, false, 'now'))
  const revisions = (await Promise.all(changes)).map(({ tools_revision }) => tools_revision)
  t.equal(new Set(revisions).size, 45)
  t.equal(told.length, 1)
  t.match(told, [{ apply: 'now', tools_revision: Math.max(...revisions) }])
  t.strictSame([...(told[0]?.removed ?? [])].sort(), names.map((name) => `s.${name}`).sort())
})

t.test('a turn waits for callers’ changes without using up its time for servers', async (t) => {
  const { create, add, store } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a'), tool('b')] })])
  const { put } = store.registry
  store.registry.put = async (changes) => {
    await new Promise((resolve) => setTimeout(resolve, 60))
    return put(changes)
  }
  const changes = ['s.a', 's.b'].map((name) => tools.setEnabled(session, name, false, 'next'))
  t.ok(tools.isBehind('ses_1'))
  t.ok((await tools.bringUpToDate('ses_1', 0)) < 60)
  t.notOk((await tools.current('ses_1')).tools.some(({ server, enabled }) => server === 's' && enabled))
  await Promise.all(changes)
  const { unbind } = store.connectors
  store.connectors.unbind = async (...given) => {
    t.ok(tools.isBehind('ses_1'), 'also while a binding is written')
    return unbind(...given)
  }
  await tools.unbind(session, 's', 'next')
})

t.test('a change for the next step can be asked for again to hold now', async (t) => {
  const { create, add, told } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  await tools.open(session, [add('s', { tools: [tool('a'), tool('b')] })])
  for (const apply of ['next', 'now'] as const) await tools.setEnabled(session, 's.a', false, apply)
  const { revision } = await tools.current('ses_1')
  t.match(told, [
    { isMoved: true, removed: ['s.a'], tools_revision: revision, apply: 'next' },
    { isMoved: false, removed: ['s.a'], tools_revision: revision, apply: 'now' },
  ])
  await Promise.all(['s.a', 's.b'].map((name) => tools.setEnabled(session, name, false, 'now')))
  t.equal(told.length, 3, 'and takes effect together with others')
})

t.test('a change or deletion of a connector removes its tools from sessions', async (t) => {
  const { create, add, connectors, heard } = setUp(t)
  const tools = create()
  const session = sessionOf('ses_1')
  const one = add('s', { tools: [tool('a'), tool('b')] })
  await tools.open(session, [one])
  connectors.set(one.id, { ...one, deny_tools: ['b'] })
  await tools.connectorChanged(one)
  await heard((_, { removed }) => removed.includes('s.b'))
  connectors.delete(one.id)
  await tools.connectorChanged(one, ['ses_1'])
  await heard((_, { removed }) => removed.includes('s.a'))
  t.strictSame(
    (await tools.current('ses_1')).tools.map((left) => left.canonical_name),
    ['look_up'],
  )
})

t.test('a tool cannot be switched in a session that has no tools yet', async (t) => {
  const { create } = setUp(t)
  await t.rejects(create().setEnabled(sessionOf('ses_1'), 'x', true, 'next'), { code: 'tool_not_found' })
})
