/** The gateway's keys, the audit, and the installation's settings. */
import type { Test } from 'tap'
import type { Store } from '../../src/store/store.ts'
import { credential } from './store-credentials.ts'
import { ADMIN, connector, id, owner, STRANGER } from './store-rows.ts'

export async function keyContract(t: Test, store: Store): Promise<void> {
  await t.test('a key is found by its hash, listed for its owner, and revoked once', async (t) => {
    const scope = owner()
    const given = {
      id: id('key'),
      owner: scope.owner,
      name: null,
      scopes: ['chat' as const],
      hint: 'abcd',
      expires_at: null,
    }
    const made = await store.keys.create({ ...given, hash: `hash of ${given.id}` })
    const { created_at, ...rest } = made
    t.strictSame(rest, { ...given, last_used_at: null, revoked_at: null })
    t.strictSame(await store.keys.byHash(`hash of ${given.id}`), { ...made, is_expired: false })
    for (const [expires_at, is_expired] of [
      ['2020-01-01T00:00:00.000Z', true],
      ['9999-01-01T00:00:00.000Z', false],
    ] as const) {
      const other = id('key')
      await store.keys.create({
        ...given,
        id: other,
        owner: owner().owner,
        expires_at,
        hash: `hash of ${other}`,
      })
      t.match(await store.keys.byHash(`hash of ${other}`), { expires_at, is_expired })
    }
    t.equal(await store.keys.byHash('another'), null)
    await store.keys.used([given.id])
    t.match(await store.keys.byHash(`hash of ${given.id}`), { last_used_at: /Z$/ })
    t.strictSame(
      (await store.keys.list(scope, { limit: 5 })).data.map((key) => key.id),
      [given.id],
    )
    t.strictSame((await store.keys.list(STRANGER, { limit: 5 })).data, [])
    t.equal(await store.keys.revoke(STRANGER, given.id, 'eve'), false)
    t.equal(await store.keys.revoke(scope, given.id, 'ann'), true)
    const entry = { owner: 'ann', act: 'key.revoke', subject: given.id, details: {} }
    t.match((await store.audit.list({ limit: 1 })).data, [entry], 'the revocation is in the audit')
    const revoked = await store.keys.byHash(`hash of ${given.id}`)
    t.match(revoked, { revoked_at: /Z$/ }, 'a revoked key is still found')
    t.equal(await store.keys.revoke(ADMIN, given.id, 'eve'), true)
    t.strictSame(await store.keys.byHash(`hash of ${given.id}`), revoked, 'the first revocation counts')
    t.match((await store.audit.list({ limit: 1 })).data, [entry], 'only the first revocation is in the audit')
    await store.keys.used([given.id])
    const last = await store.keys.byHash(`hash of ${given.id}`)
    t.equal(
      last?.last_used_at,
      revoked?.revoked_at,
      'a use that is noted after the revocation does not count as later',
    )
  })

  await t.test('a change and its audit entry are written together or not at all', async (t) => {
    const scope = owner()
    const did = (act: string, subject: string) => ({ owner: scope.owner, act, subject, details: { a: '\0' } })
    const written = async () =>
      (await store.audit.list({ limit: 50 })).data.flatMap((one) =>
        one.owner === scope.owner ? one.act : [],
      )
    const key = { id: id('key'), owner: scope.owner, name: null, scopes: [], hint: 'abcd', expires_at: null }
    await store.keys.create({ ...key, hash: key.id }, did('key.create', key.id))
    t.match((await store.audit.list({ limit: 1 })).data, [did('key.create', key.id)])
    const login = credential(scope, { is_default: true })
    await store.credentials.create(login, did('credential.create', login.id))
    const server = connector(scope, 'noted')
    const made = await store.connectors.create(server, did('connector.create', server.id))
    if (made === 'name_taken') return t.fail(made)
    const change = did('credential.update', login.id)
    t.equal((await store.credentials.update(scope, login.id, { name: 'x' }, change))?.name, 'x')
    const renamed = await store.connectors.update(
      scope,
      made,
      { name: 'anew' },
      did('connector.update', made.id),
    )
    t.match(renamed, { name: 'anew' })
    await store.connectors.pin(made.id, 'a', 'hash', {}, 'ann', did('connector.accept', made.id))
    t.equal(await store.credentials.delete(scope, login.id, did('credential.delete', login.id)), true)
    t.equal(await store.connectors.delete(scope, made.id, did('connector.delete', made.id)), true)
    const acts = await written()
    t.strictSame(acts, [
      'connector.delete',
      'credential.delete',
      'connector.accept',
      'connector.update',
      'credential.update',
      'connector.create',
      'credential.create',
      'key.create',
    ])

    await t.rejects(store.keys.create({ ...key, hash: key.id }, did('key.create', key.id)))
    t.equal(await store.credentials.update(scope, login.id, { name: 'y' }, change), null)
    t.equal(await store.credentials.delete(scope, login.id, change), false)
    t.equal(await store.connectors.update(scope, made, { url: null }, change), null)
    t.equal(await store.connectors.delete(scope, made.id, change), false)
    await t.rejects(store.connectors.pin(made.id, 'a', 'hash', {}, 'ann', change))
    await store.connectors.create(server, did('connector.create', server.id))
    t.equal(await store.connectors.create({ ...server, id: id('con') }, change), 'name_taken')
    t.strictSame(
      await written(),
      ['connector.create', ...acts],
      'a change that was not made has no audit entry',
    )
  })

  await t.test('an act is written to the audit', async (t) => {
    const entry = { owner: 'ann', act: 'key.create', subject: 'key_1', details: { a: '\0' } }
    t.equal(await store.audit.write(entry), undefined)
    await store.audit.write({ ...entry, subject: 'key_2' })
    const { data, next_cursor } = await store.audit.list({ limit: 1 })
    t.match(data, [{ ...entry, subject: 'key_2', id: /^audit_\d{15}$/, at: /Z$/ }])
    const before = await store.audit.list({ limit: 1, cursor: next_cursor ?? '' })
    t.match(before.data, [{ subject: 'key_1' }])
    t.ok(String(before.data[0]?.id) < String(data[0]?.id), 'ids sort by time')
  })

  await t.test('a setting is initialised once and can be replaced', async (t) => {
    const name = id('setting')
    const both = await Promise.all(['a', 'b', 'c'].map((value) => store.settings.init(name, value)))
    t.equal(new Set(both).size, 1, 'all callers read the same value')
    t.equal(await store.settings.init(name, 'late'), both[0])
    await store.settings.set(name, 'new')
    t.equal(await store.settings.init(name, 'ignored'), 'new')
  })
}
