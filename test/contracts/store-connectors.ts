/** Connectors and their bindings to sessions. */
import type { Test } from 'tap'
import { BatonError } from '../../src/errors.ts'
import type { Store } from '../../src/store/store.ts'
import { ADMIN, allPages, connector, id, newSession, owner, rejection, STRANGER } from './store-rows.ts'

export async function connectorContract(t: Test, store: Store): Promise<void> {
  await t.test('connectors', (t) => rowContract(t, store))
  await t.test('bindings, lists and pins of connectors', (t) => bindingContract(t, store))
}

async function rowContract(t: Test, store: Store): Promise<void> {
  await t.test('connectors are stored as given, named once per owner, and seen by their owner', async (t) => {
    const scope = owner()
    const given = connector(scope, 'files')
    const made = await store.connectors.create(given)
    if (made === 'name_taken') return t.fail(made)
    const { created_at, updated_at, config_revision, ...rest } = made
    t.strictSame([rest, config_revision], [given, 1])
    t.equal(await store.connectors.create(connector(scope, 'files')), 'name_taken')
    t.type(
      await store.connectors.create(connector(owner(), 'files')),
      'object',
      'another owner may use the name',
    )
    t.strictSame(await store.connectors.get(scope, made.id), made)
    t.strictSame(await store.connectors.find(scope, 'files'), made)
    t.strictSame(await store.connectors.find(scope, made.id), made)
    t.equal(await store.connectors.get(STRANGER, made.id), null)
    t.equal(await store.connectors.find(STRANGER, 'files'), null)
    t.equal(await store.connectors.find(STRANGER, made.id), null, 'a stranger does not find it by its id')
    t.equal(
      await store.connectors.find({ ...ADMIN, owner: STRANGER.owner }, made.id),
      null,
      'an admin does not find it among their own',
    )
    t.equal(await store.connectors.find(scope, 'other'), null)
    t.strictSame(await store.connectors.get(ADMIN, made.id), made)
    const bare = await store.connectors.create(connector(scope, 'bare', { secret: null, url: null }))
    t.match(bare, { secret: null, url: null })
  })

  await t.test('connectors are changed and deleted only by their owner or an admin', async (t) => {
    const scope = owner()
    const given = connector(scope, 'one')
    const made = await store.connectors.create(given)
    if (made === 'name_taken') return t.fail(made)
    await store.connectors.create(connector(scope, 'two'))
    const secret = new Uint8Array([9])
    const changed = await store.connectors.update(scope, made, {
      url: null,
      allow_tools: ['x*'],
      trust_annotations: true,
      secret,
    })
    t.match(changed, {
      url: null,
      allow_tools: ['x*'],
      trust_annotations: true,
      config_revision: 2,
      name: 'one',
    })
    if (typeof changed === 'string' || !changed) return t.fail('the connector was not changed')
    t.strictSame(changed.secret, secret)
    t.equal(await store.connectors.update(scope, changed, { name: 'two' }), 'name_taken')
    t.equal(await store.connectors.update(STRANGER, changed, { name: 'stolen' }), null)
    t.equal(
      await store.connectors.update(scope, made, { pin: 'block' }),
      null,
      'the connector was changed since it was read',
    )
    t.ok(await store.connectors.claim(given.id, 'a replica', 60))
    t.equal(await store.connectors.keep(changed, new Uint8Array([10])), true)
    t.equal(
      await store.connectors.keep(changed, new Uint8Array([11])),
      false,
      'the login was renewed since it was read',
    )
    t.equal(
      await store.connectors.keep({ ...made, secret: new Uint8Array([10]) }, secret),
      false,
      'the connector was changed',
    )
    t.equal(
      await store.connectors.update(scope, changed, { pin: 'block' }),
      null,
      'the connector’s login was renewed since',
    )
    t.match(await store.connectors.get(scope, given.id), { pin: 'warn', secret: { 0: 10 } })
    t.equal(await store.connectors.delete(STRANGER, given.id), false)
    t.equal(await store.connectors.delete(scope, given.id), true)
    t.equal(await store.connectors.delete(scope, given.id), false)
    const { rows } = await allPages((page) => store.connectors.list(scope, page), 1)
    t.strictSame(
      rows.filter((row) => row.origin === 'api').map((row) => row.name),
      ['two'],
    )
    const [two] = rows.filter((row) => row.name === 'two')
    if (!two) return t.fail('the connector is not listed')
    const renamed = await store.connectors.update(ADMIN, two, { name: 'three' })
    t.match(renamed, { id: two.id, owner: scope.owner, name: 'three', config_revision: 2 })
    t.equal(
      await store.connectors.update(scope, two, { pin: 'block' }),
      null,
      'it was changed since it was read, and has the secret of before',
    )
    t.match(await store.connectors.get(scope, two.id), { name: 'three', pin: 'warn' })
    t.equal(await store.connectors.delete(ADMIN, two.id), true)
    t.equal(await store.connectors.get(scope, two.id), null)
  })

  await t.test('connectors are listed newest first, in pages, to their owner and to admins', async (t) => {
    const scope = owner()
    const made: string[] = []
    for (const name of ['one', 'two', 'three']) {
      const given = connector(scope, name)
      await store.connectors.create(given)
      made.unshift(given.id)
    }
    const seenBy = async (by: typeof scope) => {
      const { rows } = await allPages((page) => store.connectors.list(by, page), 1)
      return rows.map(({ id }) => id)
    }
    const mine = await seenBy(scope)
    t.strictSame(mine.slice(0, 3), made)
    const cut = await allPages((page) => store.connectors.list(scope, { ...page, bytes: 1 }), 100)
    t.strictSame(
      [cut.rows.map(({ id }) => id), cut.pages],
      [mine, mine.length],
      'large connectors come one per page',
    )
    const { id: session } = await newSession(store, scope)
    for (const id of made) await store.connectors.bind(session, id, null)
    const bound = await allPages(async (page) => {
      const { data, next_cursor } = await store.connectors.listBound(session, { ...page, bytes: 1 })
      return { data: data.map(({ connector }) => connector), next_cursor }
    }, 100)
    t.strictSame([bound.rows.map(({ id }) => id), bound.pages], [made.toReversed(), made.length])
    const all = await seenBy(ADMIN)
    t.strictSame(
      all.filter((id) => mine.includes(id)),
      mine,
    )
  })

  await t.test('the configuration’s connectors follow it, keep their ids, and are seen by all', async (t) => {
    const scope = owner()
    const config = { owner: 'config', admin: false }
    const older = connector(owner(), 'older')
    await store.connectors.create(older)
    const [a, b] = [
      connector(config, 'conf-a', { origin: 'config' }),
      connector(config, 'conf-b', { origin: 'config' }),
    ]
    const [first] = await store.connectors.syncConfig([a, b])
    t.match(first, { id: a.id, origin: 'config', config_revision: 1 })
    t.equal(await store.connectors.create(connector(scope, 'conf-a')), 'name_taken')
    for (const one of [a, b]) {
      for (const way of [one.name, one.id]) t.equal((await store.connectors.find(scope, way))?.id, one.id)
    }
    t.equal(await store.connectors.find(scope, 'conf-c'), null)
    t.equal((await store.connectors.get(scope, a.id))?.name, 'conf-a')
    const newer = { ...connector(scope, 'newer'), id: `a${a.id}` }
    await store.connectors.create(newer)
    const seen = await allPages((page) => store.connectors.list(ADMIN, page), 2)
    t.equal(seen.rows.filter((row) => [older.id, a.id, b.id].includes(row.id)).length, 3, 'an admin sees all')
    const { rows } = await allPages((page) => store.connectors.list(scope, page), 1)
    t.strictSame(
      rows.map((row) => row.id),
      [newer.id, ...[a.id, b.id].sort().reverse()],
      'connectors of the configuration come last, as if oldest',
    )
    for (const by of [scope, config, ADMIN]) {
      t.equal(
        await store.connectors.update(by, { ...a, config_revision: 1 }, { url: 'https://evil.test' }),
        null,
      )
      t.equal(await store.connectors.delete(by, a.id), false)
    }
    const secret = new Uint8Array([7])
    const [same] = await store.connectors.syncConfig([{ ...a, id: id('con'), secret }])
    t.match(same, { id: a.id, config_revision: 1 }, 'only the secret changed, which makes no new revision')
    t.strictSame(same?.secret, secret)
    t.equal(
      await store.connectors.get(scope, b.id),
      null,
      'a connector that the configuration leaves out is deleted',
    )
    const change = [{ ...a, url: 'https://new.test/' }]
    const [planned] = await store.connectors.planConfig([...change, b])
    t.match(planned, { id: a.id, config_revision: 2, url: 'https://new.test/' })
    t.match(await store.connectors.get(scope, a.id), { config_revision: 1, url: same?.url }, 'only planned')
    t.equal(await store.connectors.get(scope, b.id), null)
    const [moved] = await store.connectors.syncConfig(change)
    t.match(moved, { id: a.id, config_revision: 2, url: 'https://new.test/' })
    const own = connector(scope, 'mine')
    await store.connectors.create(own)
    const twice = await Promise.all(
      [1, 2].map(() => store.connectors.syncConfig([a, connector(config, 'mine', { origin: 'config' })])),
    )
    t.strictSame(
      twice[0]?.map((row) => row.id),
      twice[1]?.map((row) => row.id),
      'two replicas that start at once get the same ids',
    )
    t.equal(
      (await store.connectors.find(scope, 'mine'))?.id,
      own.id,
      'an owner’s own connector comes before the configuration’s',
    )
    t.strictSame(await store.connectors.syncConfig([]), [])
    t.ok(
      await store.connectors.get(scope, own.id),
      'an owner’s own connector stays when the configuration’s go',
    )
  })
}

async function bindingContract(t: Test, store: Store): Promise<void> {
  await t.test('sessions can bind connectors while a replica writes the configuration’s', async (t) => {
    const scope = owner()
    const config = { owner: 'config', admin: false }
    const file = ['one', 'two', 'three', 'four']
      .map((name) => connector(config, `file-${name}`, { origin: 'config' }))
      .sort((a, b) => b.id.localeCompare(a.id))
    await store.connectors.syncConfig(file)
    let isStarting = true
    const binding = Array.from({ length: 8 }, async () => {
      while (isStarting) {
        const { id } = await newSession(store, scope)
        for (const one of file) await store.connectors.bind(id, one.id, null)
      }
    })
    for (let starts = 0; starts < 10; starts++) await store.connectors.syncConfig(file)
    isStarting = false
    await t.resolves(Promise.all(binding))
    await store.connectors.syncConfig([])
  })
  await t.test('a session’s connectors come in the order in which they were bound', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const [one, two] = [connector(scope, 'one'), connector(scope, 'two')]
    await store.connectors.create(one)
    await store.connectors.create(two)
    await store.connectors.bind(session, two.id, null)
    await store.connectors.bind(session, one.id, 'alias')
    await store.connectors.bind(session, two.id, 'again')
    const bound = await store.connectors.bindings(session)
    t.strictSame(
      bound.map((binding) => [binding.connector.id, binding.alias]),
      [
        [two.id, 'again'],
        [one.id, 'alias'],
      ],
    )
    const off = async () => (await store.connectors.bindings(session)).map((binding) => binding.off)
    for (const isOn of [false, false, true, false])
      await store.connectors.switchTool(session, one.id, 'a b', isOn)
    await store.connectors.switchTool(session, one.id, 'c', false)
    await store.connectors.switchTool(session, one.id, 'c', true)
    t.strictSame(await off(), [[], ['a b']])
    t.equal(
      await store.connectors.bind(session, one.id, 'alias'),
      true,
      'a connector may be bound again under its own alias',
    )
    t.strictSame(await off(), [[], ['a b']], 'binding again keeps the tools that are off')
    t.strictSame(bound[1]?.connector, await store.connectors.get(scope, one.id))
    const renamed = async (of: { id: string }, name: string) => {
      const now = await store.connectors.get(scope, of.id)
      return now && (await store.connectors.update(scope, now, { name }))
    }
    t.match(
      await renamed(two, 'alias'),
      { name: 'alias' },
      'a connector with an alias may take another’s alias as its name',
    )
    t.equal(await store.connectors.bind(session, two.id, null), false)
    t.match(await renamed(two, 'two'), { name: 'two' })
    t.equal(await store.connectors.bind(session, two.id, null), true)
    t.equal(await renamed(two, 'alias'), 'name_beside')
    t.match(await renamed(two, 'two'), { name: 'two' })
    t.match(await renamed(one, 'other'), { name: 'other' })
    t.match(await renamed(one, 'one'), { name: 'one' })
    t.equal(await store.connectors.bind(session, one.id, 'two'), false)
    t.equal(await store.connectors.bind(session, one.id, null), true)
    t.equal(await renamed(one, 'two'), 'name_beside')
    const later = await newSession(store, scope)
    await store.connectors.bind(later.id, one.id, null)
    t.strictSame(
      await store.connectors.sessionsOf(one.id, 9),
      [later.id, session],
      'the newest session comes first',
    )
    t.strictSame(await store.connectors.sessionsOf(one.id, 1), [later.id])
    t.equal(await store.connectors.unbind(session, one.id), true)
    t.strictSame(await store.connectors.sessionsOf(one.id, 9), [later.id])
    t.strictSame(await store.connectors.sessionsOf(two.id, 9), [session])
    t.equal(await store.connectors.unbind(session, one.id), false)
    await store.connectors.delete(scope, two.id)
    t.strictSame(await store.connectors.bindings(session), [], 'a deleted connector is bound nowhere')
    const gone = [
      store.connectors.bind(session, two.id, null),
      store.connectors.bind('ses_none', one.id, null),
    ]
    const codes = (await Promise.all(gone.map(rejection))).map(
      (thrown) => thrown instanceof BatonError && thrown.code,
    )
    t.strictSame(codes, ['connector_not_found', 'session_not_found'])
  })

  await t.test('of two connectors that take a name in a session at once one gets it', async (t) => {
    const scope = owner()
    for (let i = 0; i < 10; i++) {
      const { id: session } = await newSession(store, scope)
      const [one, two] = [connector(scope, `one-${i}`), connector(scope, `two-${i}`)]
      for (const each of [one, two]) await store.connectors.create(each)
      const bound = await Promise.all([one, two].map(({ id }) => store.connectors.bind(session, id, 'same')))
      t.strictSame([...bound].sort(), [false, true])
      const read = await store.connectors.get(scope, one.id)
      if (!read) return t.fail('the connector is gone')
      const later = (await newSession(store, scope)).id
      await store.connectors.bind(later, one.id, null)
      const [renamed, isBound] = await Promise.all([
        store.connectors.update(scope, read, { name: `new-${i}` }),
        store.connectors.bind(later, two.id, `new-${i}`),
      ])
      t.equal(renamed === 'name_beside', isBound, 'either the rename or the binding gets the name')
    }
  })

  await t.test('a connection’s last list and a tool’s accepted definition are kept', async (t) => {
    const scope = owner()
    const one = connector(scope, 'one')
    await store.connectors.create(one)
    const beside = await store.connectors.create(connector(owner(), 'one'))
    if (beside === 'name_taken') return t.fail(beside)
    await store.connectors.saveList(beside.id, beside.id, [])
    const key = `${one.id}@1`
    t.equal(await store.connectors.loadList(key), null)
    const list = {
      tools: [{ name: 'x', inputSchema: { type: 'object', properties: { z: {}, a: { const: '\0' } } } }],
    }
    await store.connectors.saveList(key, one.id, { tools: [] })
    await store.connectors.saveList(key, one.id, list)
    t.equal(
      JSON.stringify(await store.connectors.loadList(key)),
      JSON.stringify(list),
      'the key order of a schema is kept',
    )
    const first = await store.connectors.get(scope, one.id)
    const unpinned = first && (await store.connectors.update(scope, first, { url: 'https://mcp.test/2' }))
    if (!unpinned || typeof unpinned === 'string') return t.fail('the connector was not changed')
    await store.connectors.saveList(`${one.id}@2`, one.id, list)
    t.equal(await store.connectors.loadList(key), null, 'a former revision’s list is gone')
    await store.connectors.saveList(key, one.id, list)
    t.strictSame(
      await store.connectors.loadList(`${one.id}@2`),
      list,
      'a late list of a former revision does not replace the current list',
    )
    await new Promise((resolve) => setTimeout(resolve, 2))
    await store.connectors.pin(one.id, 'x', 'h1', { v: 1 }, 'first seen')
    const pinned = await store.connectors.get(scope, one.id)
    t.ok(
      (pinned?.updated_at ?? '') > unpinned.updated_at,
      'accepting a tool touches the connector, so that sessions notice',
    )
    t.equal(pinned?.config_revision, 2, 'accepting a tool keeps the connection')
    await store.connectors.pin(one.id, 'a', 'h2', { v: 2 }, 'first seen')
    await store.connectors.pin(one.id, 'x', 'h3', { v: 3 }, 'ann')
    const news = await store.connectors.pinFirst(one.id, [
      { tool: 'x', hash: 'h4', definition: { v: 4 } },
      { tool: 'b', hash: 'h5', definition: { v: '\0' } },
    ])
    t.strictSame(news, ['b'])
    t.strictSame(await store.connectors.pins(one.id, ['x', 'b', 'a']), [
      { tool: 'a', hash: 'h2', definition: { v: 2 } },
      { tool: 'b', hash: 'h5', definition: { v: '\0' } },
      { tool: 'x', hash: 'h3', definition: { v: 3 } },
    ])
    t.match(await store.connectors.pins(one.id, ['b', 'c']), [{ tool: 'b' }], 'only those asked for')
    t.strictSame(
      await store.connectors.get(ADMIN, beside.id),
      beside,
      'another owner’s connector is not touched',
    )
    t.strictSame(await store.connectors.loadList(beside.id), [], 'another owner’s connector keeps its list')
    t.strictSame(
      await store.connectors.pins(beside.id, ['x']),
      [],
      'and has no tool that was accepted of this one',
    )
    await store.connectors.delete(scope, one.id)
    t.strictSame(
      [await store.connectors.pins(one.id, ['x']), await store.connectors.loadList(key)],
      [[], null],
    )
    await store.connectors.saveList(key, one.id, list)
    t.equal(await store.connectors.loadList(key), null, 'no list is kept for a deleted connector')
  })
}
