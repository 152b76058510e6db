/** The registry of a session's tools. */
import type { Test } from 'tap'
import type { RegistryChange, RegistryTool, Store } from '../../src/store/store.ts'
import { NONE } from '../patterns.ts'
import { connector, endTurn, LEASE, newSession, openRequest, owner, startTurn } from './store-rows.ts'

export async function registryContract(t: Test, store: Store): Promise<void> {
  const scope = owner()
  const { id: session } = await newSession(store, scope)
  t.match(await store.registry.get(session), {
    session_id: session,
    revision: 0,
    tools: NONE,
    updated_at: /Z$/,
  })
  const tool: RegistryTool = {
    canonical_name: 'files.read',
    exposed_name: 'files__read',
    source: 'mcp',
    connector_id: 'con_1',
    server: 'files',
    mcp_tool_name: 'read',
    description: 'Reads \0',
    parameters: { type: 'object', properties: { zebra: { type: 'string' }, a: { type: 'string' } } },
    input_schema: { properties: { zebra: {}, a: {} } },
    annotations: { readOnlyHint: true },
    enabled: true,
    is_blocked: false,
    status: 'available',
    reason: null,
    last_seen_at: null,
    hash: 'h',
    order: 1,
  }
  const put = (session_id: string, expected: number, tools: RegistryTool[]) =>
    store.registry.put([{ session_id, expected, tools }])
  const both = await Promise.all([1, 2].map(() => put(session, 0, [tool])))
  const row = await store.registry.get(session)
  t.strictSame(
    both.sort((a, b) => a.length - b.length),
    [[], [{ session_id: session, updated_at: row.updated_at, turn_id: null }]],
    'of two changes of the same revision one is written',
  )
  t.equal(row.revision, 1)
  t.equal(JSON.stringify(row.tools), JSON.stringify([tool]), 'the declarations’ bytes are kept')
  t.equal((await put(session, 1, [])).length, 1)
  t.equal((await store.sessions.get(scope, session))?.tools_revision, 2)
  t.strictSame(await put('ses_none', 0, []), [])

  await t.test('many registries are read and written together', async (t) => {
    const { id: other } = await newSession(store, scope)
    const one = connector(scope, 'many')
    await store.connectors.create(one)
    await store.connectors.bind(session, one.id, 'me')
    const stranger = owner()
    const elsewhere = connector(stranger, 'many')
    await store.connectors.create(elsewhere)
    await store.connectors.bind((await newSession(store, stranger)).id, elsewhere.id, null)
    for (const { id } of [elsewhere, one])
      await store.connectors.pinFirst(id, [{ tool: 'x', hash: 'h1', definition: { a: '\0' } }])
    const known = [
      { session_id: session, revision: 2 },
      { session_id: other, revision: -1 },
      { session_id: 'ses_none', revision: -1 },
    ]
    const { sessions, pins } = await store.registry.grounds(known)
    t.strictSame(pins, [{ connector_id: one.id, tool: 'x', hash: 'h1' }])
    t.equal(sessions.length, 2)
    const ground = sessions.find(({ session_id }) => session_id === session)
    t.ok(ground && ground.age_ms >= 0 && ground.age_ms < 60_000, 'by the store’s own clock')
    t.match(ground, {
      registry: null,
      bindings: [{ alias: 'me', connector: { id: one.id, owner: scope.owner } }],
    })
    t.match(
      sessions.find(({ session_id }) => session_id === other),
      { registry: { revision: 0 }, bindings: NONE },
    )
    const open = openRequest(other)
    const opened = await startTurn(store, scope, open)
    const change = (session_id: string, expected: number) => ({
      session_id,
      expected,
      tools: [tool],
    })
    const put = async (...changes: RegistryChange[]) =>
      (await store.registry.put(changes)).map(({ session_id, turn_id }) => ({ session_id, turn_id }))
    t.strictSame(await put(change(session, 2), change(other, 5)), [{ session_id: session, turn_id: null }])
    t.strictSame(await put(change(session, 2), change(other, 0)), [
      { session_id: other, turn_id: open.turn.id },
    ])
    await store.turns.commit(opened.fence, { turn_id: open.turn.id, state: 'awaiting_input' })
    const [waiting] = await put(change(other, 1))
    t.equal(waiting?.turn_id, open.turn.id)
    const resumed = await store.turns.resumeAwaiting(open.turn.id, LEASE)
    if (resumed) await endTurn(store, resumed.fence, open.turn.id)
    await put(change(session, 3))
    t.strictSame(await put(change(other, 2)), [{ session_id: other, turn_id: null }])
    const all = [change(session, 4), change(other, 3)]
    const overlapping = Array.from({ length: 8 }, (_, i) =>
      store.registry.put(i % 2 ? all : [...all].reverse()),
    )
    t.equal(
      (await Promise.all(overlapping)).flat().length,
      2,
      'each change is written once, and no writer waits forever',
    )
  })
}
