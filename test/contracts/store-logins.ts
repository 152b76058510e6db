/** Logins that are under way, as every Store must keep them. */
import type { Test } from 'tap'
import type { NewOAuthLogin, Store } from '../../src/store/store.ts'
import { id, owner } from './store-rows.ts'

const login = (rest: Partial<NewOAuthLogin> = {}): NewOAuthLogin => ({
  state_hash: id('hash'),
  owner: owner().owner,
  provider: 'acme',
  mode: 'paste',
  redirect_uri: 'http://localhost:1455/auth/callback',
  sealed: new Uint8Array([1, 2, 3]),
  seconds: 600,
  ...rest,
})

export async function loginContract(t: Test, store: Store): Promise<void> {
  const { logins } = store

  await t.test('a login is kept as given, and an owner has only so many waiting at once', async (t) => {
    const given = login()
    const { seconds, ...stored } = given
    const made = await logins.create(given, 1)
    t.match(made, { ...stored, state: 'pending', credential_id: null, error: null, is_expired: false })
    t.strictSame(await logins.get(given.state_hash), made)
    t.equal(await logins.get('none'), null)
    t.equal(await logins.create(login({ owner: given.owner }), 1), null)
    t.ok(await logins.create(login(), 1), 'another owner’s logins do not count')
    t.ok(await logins.create(login({ owner: given.owner }), 2))
    await logins.finish(given.state_hash, { error: 'declined' })
    t.match(await logins.get(given.state_hash), { state: 'failed', credential_id: null, error: 'declined' })
    t.ok(await logins.create(login({ owner: given.owner }), 2), 'a login that is over does not count')
    await logins.create(login({ owner: given.owner, seconds: 0 }), 9)
    t.ok(await logins.create(login({ owner: given.owner }), 3), 'a login whose time is over does not count')
  })

  await t.test('a login is used once, by its provider, in its time', async (t) => {
    const [given, beside] = [login({ seconds: 60 }), login()]
    const made = await logins.create(given, 9)
    await logins.create(beside, 9)
    const bytes = [1, 2, 3].map((byte) => new Uint8Array([byte]))
    t.equal(await logins.take({ ...given, provider: 'other' }, new Uint8Array([1])), null)
    const take = () => Promise.all(bytes.map((own) => logins.take(given, own)))
    const [taken, again] = [await take(), await take()]
    t.equal(taken.filter((one) => one !== null).length, 1)
    const found = await logins.get(given.state_hash)
    t.match(found, { state: 'taken' })
    const repeated = again.map((one) => one?.sealed ?? null)
    t.strictSame(
      repeated,
      taken.map((one) => one?.sealed ?? null),
      'who has it gets it again, if only the answer was lost',
    )
    const [before = '', after = ''] = [made?.expires_at, found?.expires_at]
    t.ok(after > before, 'one that is answered just before its end has time to be finished')
    await logins.finish(given.state_hash, { credential_id: 'cred_1' })
    t.match(await logins.get(given.state_hash), { state: 'done', credential_id: 'cred_1', error: null })
    await logins.finish(given.state_hash, { error: 'too late' })
    t.match(await logins.get(given.state_hash), { state: 'done' }, 'the outcome of a login is final')
    t.match(await logins.get(beside.state_hash), { state: 'pending' }, 'another login has no outcome')
    const late = login({ seconds: 0 })
    await logins.create(late, 9)
    t.equal(await logins.take(late, late.sealed), null)
    t.equal(await logins.poll(late.state_hash, 0), null)
    t.match(await logins.get(late.state_hash), { state: 'pending', is_expired: true })
  })

  await t.test('one caller at a time asks for a device login, and its place lapses', async (t) => {
    const given = login({ mode: 'device' })
    await logins.create(given, 9)
    const places = await Promise.all([1, 2, 3].map(() => logins.poll(given.state_hash, 60)))
    t.equal(places.filter((one) => one !== null).length, 1)
    const next = login({ mode: 'device' })
    await logins.create(next, 9)
    t.ok(await logins.poll(next.state_hash, 0))
    t.ok(await logins.poll(next.state_hash, 0))
    await logins.finish(next.state_hash, { error: 'declined' })
    t.equal(await logins.poll(next.state_hash, 0), null)
  })

  await t.test('a login is forgotten when its time is long over', async (t) => {
    const [old, young] = [login({ seconds: -60 }), login()]
    await logins.create(old, 9)
    await logins.create(young, 9)
    await logins.prune(30)
    t.equal(await logins.get(old.state_hash), null)
    t.ok(await logins.get(young.state_hash))
  })
}
