/** Credentials and their renewal. */
import type { Test } from 'tap'
import type { NewCredential, Scope, Store } from '../../src/store/store.ts'
import {
  ADMIN,
  allPages,
  connector,
  endTurn,
  id,
  newSession,
  openRequest,
  owner,
  STRANGER,
} from './store-rows.ts'

export async function credentialContract(t: Test, store: Store): Promise<void> {
  await t.test('a turn opens at once if it surely has a credential', (t) => sureContract(t, store))
  await t.test('credentials are kept and chosen', (t) => rowContract(t, store))
  await t.test('credentials are renewed and sealed anew', (t) => secretContract(t, store))
}

export const credential = (scope: Scope, rest: Partial<NewCredential> = {}): NewCredential => ({
  id: id('cred'),
  owner: scope.owner,
  provider: 'acme',
  kind: 'oauth',
  name: null,
  state: 'active',
  reason: null,
  is_default: false,
  hint: 'wxyz',
  facts: { z: '1', a: '2' },
  expires_at: '2096-01-01T00:00:00.000Z',
  secret: new Uint8Array([1, 2, 3]),
  ...rest,
})

async function rowContract(t: Test, store: Store): Promise<void> {
  await t.test('credentials are stored as given, and only for their owner', async (t) => {
    const scope = owner()
    const given = credential(scope, { name: 'mine' })
    const made = await store.credentials.create(given)
    const { created_at, updated_at, version, ...rest } = made
    t.strictSame([rest, version], [given, 1])
    t.strictSame(await store.credentials.get(scope, given.id), made)
    t.strictSame(await store.credentials.get(ADMIN, given.id), made)
    t.equal(await store.credentials.get(STRANGER, given.id), null)
    t.equal(await store.credentials.update(STRANGER, given.id, { name: 'x' }), null)
    t.equal(await store.credentials.delete(STRANGER, given.id), false)
    const second = await store.credentials.create(credential(scope))
    const { rows, pages } = await allPages((page) => store.credentials.list(scope, page), 1)
    t.strictSame([rows.map((row) => row.id), pages], [[second.id, given.id], 2])
    t.equal(await store.credentials.delete(scope, given.id), true)
    t.equal(await store.credentials.delete(scope, given.id), false)
  })

  await t.test(
    'an owner has at most one default for a provider, however many are made default at once',
    async (t) => {
      const scope = owner()
      const many = Array.from({ length: 6 }, () => credential(scope, { is_default: true }))
      const other = await store.credentials.create(credential(scope, { provider: 'other', is_default: true }))
      const foreign = await store.credentials.create(credential(owner(), { is_default: true }))
      await Promise.all(many.map((one) => store.credentials.create(one)))
      const defaults = async () =>
        (await store.credentials.list(scope, { limit: 50 })).data.filter(
          (row) => row.is_default && row.provider === 'acme',
        )
      t.equal((await defaults()).length, 1)
      await Promise.all(many.map((one) => store.credentials.update(scope, one.id, { is_default: true })))
      const [only, ...more] = await defaults()
      t.equal(more.length, 0)
      t.equal((await store.credentials.preferred(scope.owner, 'acme'))?.id, only?.id)
      for (const { id } of [other, foreign]) {
        t.ok(
          (await store.credentials.get(ADMIN, id))?.is_default,
          'a default of another provider or another owner stays',
        )
      }
      t.equal(
        (await store.credentials.update(scope, only?.id ?? '', { is_default: false }))?.is_default,
        false,
      )
      t.equal(
        await store.credentials.preferred(scope.owner, 'acme'),
        null,
        'of several active credentials none is chosen',
      )
    },
  )

  await t.test('a default stays if its successor is deleted while it is made default', async (t) => {
    const scope = owner()
    const kept = await store.credentials.create(credential(scope, { is_default: true }))
    const lost = []
    for (let round = 0; round < 60; round++) {
      const { id } = await store.credentials.create(credential(scope))
      const [made] = await Promise.all([
        store.credentials.update(scope, id, { is_default: true }),
        store.credentials.delete(scope, id),
      ])
      const now = await store.credentials.get(scope, kept.id)
      if (made === null && !now?.is_default) lost.push(round)
      await store.credentials.update(scope, kept.id, { is_default: true })
    }
    t.strictSame(lost, [])
  })

  await t.test(
    'the preferred credential is the default, else the only active one, else one that needs a login',
    async (t) => {
      const scope = owner()
      const preferred = async () => (await store.credentials.preferred(scope.owner, 'acme'))?.id
      t.equal(await preferred(), undefined)
      const [one, two, three] = [credential(scope), credential(scope), credential(scope)]
      await store.credentials.create(one)
      t.equal(await preferred(), one.id)
      await store.credentials.fail(one.id, 1, 'revoked')
      t.equal(
        await preferred(),
        one.id,
        'a credential that needs a login is chosen, so that its state can be told',
      )
      await store.credentials.create(two)
      t.equal(await preferred(), two.id)
      await store.credentials.create(three)
      await store.credentials.fail(three.id, 1, 'revoked')
      t.equal(await preferred(), two.id, 'an active credential comes before newer ones that need a login')
      for (const { id } of [one, three]) {
        await store.credentials.update(scope, id, { is_default: true })
        t.equal(await preferred(), id, 'a default counts although it needs a new login')
      }
      await store.credentials.update(scope, three.id, { state: 'disabled' })
      t.equal(await preferred(), two.id, 'a disabled default is skipped')
      await store.credentials.update(scope, three.id, { state: 'active' })
      await store.credentials.fail(three.id, 1, 'revoked')
      await store.credentials.update(scope, three.id, { is_default: false })
      await store.credentials.update(scope, two.id, { state: 'disabled' })
      t.equal(await preferred(), three.id, 'of several that need a login the newest is chosen')
      for (const { id } of [one, three]) await store.credentials.update(scope, id, { state: 'disabled' })
      t.equal(await preferred(), undefined)
      t.equal(await store.credentials.preferred(STRANGER.owner, 'acme'), null)
    },
  )

  await t.test('a turn’s ground has the session, its named credential and the preferred one', async (t) => {
    const scope = owner()
    const { id: session, provider } = await newSession(store, scope)
    const ground = async (other: string | null = null) => {
      const found = await store.turns.ground(scope, session, other)
      return [found?.session, found?.credentials.named, found?.credentials.preferred]
    }
    t.strictSame(await ground(), [await store.sessions.get(scope, session), null, null])
    const own = await store.credentials.create(credential(scope, { provider }))
    const foreign = await store.credentials.create(credential(owner(), { provider }))
    const other = await store.credentials.create(credential(scope, { provider: 'other' }))
    const named = await store.sessions.update(scope, session, { credential_id: own.id })
    t.strictSame(await ground(), [named, own, own])
    t.strictSame(await ground('other'), [named, own, other])
    const lent = await store.sessions.update(scope, session, { credential_id: foreign.id })
    t.strictSame(await ground(), [lent, null, own], 'another owner’s credential is not the session’s')
    t.equal(await store.turns.ground(STRANGER, session, null), null)
    t.equal(await store.turns.ground(ADMIN, 'ses_none', null), null)
    t.strictSame((await store.turns.ground(ADMIN, session, null))?.session, lent)
  })
}

async function sureContract(t: Test, store: Store): Promise<void> {
  const scope = owner()
  const { id: session, provider } = await newSession(store, scope)
  const opens = async (keys: string[] = [], other: string | null = null, logins = [provider]) => {
    const request = openRequest(session, { turn: { provider: other } })
    const opened = await store.turns.openSurely(scope, request, { keys, logins })
    if (opened?.kind === 'unsure') {
      t.strictSame(opened.ground, await store.turns.ground(scope, session, other))
      t.equal(
        await store.turns.get(scope, request.turn.id),
        null,
        'nothing is written if the credential is unsure',
      )
    } else if (opened?.kind === 'running') await endTurn(store, opened.fence, opened.turn.id)
    return opened?.kind
  }
  const add = (rest: Parameters<typeof credential>[1]) => store.credentials.create(credential(scope, rest))
  const disable = (id: string) => store.credentials.update(scope, id, { state: 'disabled' })
  const name = (id: string) => store.sessions.update(scope, session, { credential_id: id })

  await t.test('a credential of the provider in the store or the environment is enough', async (t) => {
    t.equal(await opens(), 'unsure')
    t.equal(await opens([provider]), 'running')
    t.equal(await opens([provider], 'other'), 'unsure')
    const only = await add({ provider })
    t.equal(await opens(), 'running')
    t.equal(await opens([], 'other'), 'unsure')
    await disable(only.id)
    t.equal(await opens(), 'unsure')
  })

  await t.test('a login whose token has ended is left to a closer look', async (t) => {
    const at = (seconds: number) => new Date(Date.now() + seconds * 1000).toISOString()
    const login = (seconds: number) => add({ provider, kind: 'oauth', expires_at: at(seconds) })
    const lasting = await login(600)
    t.equal(await opens(), 'running')
    await name(lasting.id)
    t.equal(await opens(), 'running')
    await store.sessions.update(scope, session, { credential_id: null })
    await disable(lasting.id)
    const ended = await login(-600)
    t.equal(await opens([provider]), 'unsure')
    await name(ended.id)
    t.equal(await opens(), 'unsure')
    await store.sessions.update(scope, session, { credential_id: null })
    await disable(ended.id)
  })

  await t.test('a login whose provider is switched off is left to a closer look', async (t) => {
    const login = await add({ provider, kind: 'oauth' })
    t.equal(await opens(), 'running')
    t.equal(await opens([provider], null, ['other']), 'unsure')
    await name(login.id)
    t.equal(await opens([provider], null, []), 'unsure')
    t.equal(await opens(), 'running')
    await store.sessions.update(scope, session, { credential_id: null })
    await disable(login.id)
  })

  await t.test(
    'a default that needs a new login is left to a closer look, whatever the environment has',
    async (t) => {
      const preferred = await add({ provider, is_default: true })
      t.equal(await opens(), 'running')
      await store.credentials.fail(preferred.id, 1, 'revoked')
      t.equal(await opens([provider]), 'unsure')
      await disable(preferred.id)
      t.equal(await opens(), 'unsure')
      t.equal(await opens([provider]), 'running', 'a disabled default is skipped')
    },
  )

  await t.test('for its provider only the credential that the session names counts', async (t) => {
    const own = await add({ provider })
    await name(own.id)
    t.equal(await opens(), 'running')
    await disable(own.id)
    await add({ provider, is_default: true })
    t.equal(await opens([provider]), 'unsure')
    t.equal(await opens(['other'], 'other'), 'running')
    await name('cred_gone')
    t.equal(await opens([provider]), 'unsure')
    t.equal(
      await store.turns.openSurely(STRANGER, openRequest(session), { keys: [provider], logins: [] }),
      null,
    )
  })
}

async function secretContract(t: Test, store: Store): Promise<void> {
  await t.test('logins whose token ends soon are found unless a replica has claimed them', async (t) => {
    const { credentials } = store
    const provider = id('vendor')
    const make = async (seconds: number | null, rest: Partial<NewCredential> = {}) => {
      const expires_at = seconds === null ? null : new Date(Date.now() + seconds * 1000).toISOString()
      const made = await credentials.create(credential(owner(), { provider, expires_at, ...rest }))
      return { id: made.id, owner: made.owner }
    }
    const soon = await make(60)
    const sooner = await make(-60)
    await make(3600)
    await make(null)
    await make(60, { state: 'needs_reauth' })
    t.strictSame(await credentials.due([provider], 300), [sooner, soon])
    t.strictSame(await credentials.due(['other'], 300), [])
    await credentials.claim(sooner.id, 'replica', 60)
    await credentials.claim(soon.id, 'a replica that died', 0)
    t.strictSame(await credentials.due([provider], 300), [soon])
  })

  const next = { secret: new Uint8Array([4]), hint: 'next', expires_at: null, facts: { b: '1' } }

  await t.test('a renewal is claimed by one replica and stored by version', async (t) => {
    const scope = owner()
    const { id: login, updated_at } = await store.credentials.create(credential(scope))
    const claims = await Promise.all(
      ['r1', 'r2', 'r3', 'r1'].map((by) => store.credentials.claim(login, by, 60)),
    )
    const held = claims.filter((claim) => claim !== null)
    t.equal(held.length, 1)
    await new Promise((resolve) => setTimeout(resolve, 2))
    t.equal(await store.credentials.rotate(login, 1, next), true)
    t.equal(await store.credentials.rotate(login, 1, next), false, 'the version has changed')
    const rotated = await store.credentials.get(scope, login)
    t.match(rotated, { version: 2, hint: 'next', expires_at: null, facts: { b: '1' }, state: 'active' })
    t.strictSame(rotated?.secret, next.secret)
    t.ok((rotated?.updated_at ?? '') > updated_at, 'updated_at is the time of the rotation')
    for (const by of ['r1', 'r2', 'r3']) await store.credentials.release(login, by)
    const released = await store.credentials.claim(login, 'r4', 0)
    t.match(released, { row: { version: 2 }, hasLapsed: false }, 'released')
    t.match(
      await store.credentials.claim(login, 'r5', 60),
      { hasLapsed: true },
      'a lapsed claim can be claimed',
    )
    await store.credentials.release(login, 'r4')
    t.equal(
      await store.credentials.claim(login, 'r6', 60),
      null,
      'a replica cannot release another replica’s claim',
    )
  })

  await t.test(
    'a failed renewal needs a new login, a rotation ends this, and a disabled one stays disabled',
    async (t) => {
      const scope = owner()
      const { id: login } = await store.credentials.create(credential(scope))
      t.equal(await store.credentials.fail(login, 7, 'not this version'), false)
      t.equal((await store.credentials.get(scope, login))?.state, 'active')
      t.equal(await store.credentials.fail(login, 1, 'invalid_grant'), true)
      t.match(await store.credentials.get(scope, login), { state: 'needs_reauth', reason: 'invalid_grant' })
      const revived = await store.credentials.update(scope, login, { state: 'active' })
      t.match(revived, { state: 'active', reason: null })
      t.equal(await store.credentials.fail(login, 1, 'invalid_grant'), true)
      await store.credentials.rotate(login, 1, next)
      t.match(await store.credentials.get(scope, login), { state: 'active', reason: null })
      await store.credentials.update(scope, login, { state: 'disabled', name: 'off' })
      await store.credentials.rotate(login, 2, next)
      await store.credentials.fail(login, 3, 'too late')
      t.match(await store.credentials.get(scope, login), {
        state: 'disabled',
        reason: null,
        name: 'off',
        version: 3,
      })
    },
  )

  await t.test('whether a token has ended is decided by the store’s clock', async (t) => {
    const scope = owner()
    const fails = async (expires_at: string | null) => {
      const { id: login } = await store.credentials.create(credential(scope, { expires_at }))
      return store.credentials.fail(login, 1, 'expired', 'ended')
    }
    t.equal(await fails('9999-01-01T00:00:00.000Z'), false)
    t.equal(await fails(null), false)
    t.equal(await fails('2020-01-01T00:00:00.000Z'), true)
  })

  await t.test('every secret is found page by page and sealed anew if nobody else wrote it', async (t) => {
    const scope = owner()
    const login = await store.credentials.create(credential(scope))
    const server = connector(scope, 'sealed')
    await store.connectors.create(server)
    await store.connectors.create(connector(scope, 'open', { secret: null }))
    const mine = []
    for (let after = ''; ; ) {
      const page = await store.sealed.secrets(after, 2)
      mine.push(...page.filter((row) => row.owner === scope.owner))
      const last = page.at(-1)
      if (!last) break
      after = last.id
    }
    t.strictSame(mine, [
      { table: 'connector', id: server.id, owner: scope.owner, secret: server.secret, version: 1 },
      { table: 'credential', id: login.id, owner: scope.owner, secret: login.secret, version: 1 },
    ])
    const anew = new Uint8Array([8, 8])
    for (const row of mine) {
      t.equal(await store.sealed.putSecret({ ...row, version: 2 }, anew), false)
      t.equal(await store.sealed.putSecret(row, anew), true)
    }
    t.strictSame((await store.credentials.get(scope, login.id))?.secret, anew)
    t.match(await store.connectors.get(scope, server.id), { secret: anew, config_revision: 1 })
    t.equal(
      await store.credentials.rotate(login.id, 1, next),
      true,
      'sealing anew keeps the version for a renewal under way',
    )
  })

  await t.test('sealing anew does not overwrite a secret that was written since it was read', async (t) => {
    const scope = owner()
    const login = await store.credentials.create(credential(scope))
    const server = connector(scope, 'renewed')
    await store.connectors.create(server)
    const file = connector(scope, 'file-sealed', { origin: 'config' })
    await store.connectors.syncConfig([file])
    const read = await store.sealed.secrets('', 100_000)
    const written = new Uint8Array([4])
    await store.credentials.rotate(login.id, 1, next)
    await store.connectors.keep({ ...server, config_revision: 1 }, written)
    await store.connectors.syncConfig([{ ...file, secret: written }])
    for (const { id } of [login, server, file]) {
      const row = read.find((one) => one.id === id)
      t.equal(row && (await store.sealed.putSecret(row, new Uint8Array([8]))), false)
    }
    const now = await store.sealed.secrets('', 100_000)
    t.strictSame(
      [login, server, file].map(({ id }) => now.find((one) => one.id === id)?.secret),
      [written, written, written],
    )
    await store.connectors.syncConfig([])
  })
}
