import { setTimeout as sleepFor } from 'node:timers/promises'
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import { jwt } from '../emulators/oauth.ts'
import { ACCOUNT } from '../emulators/oauth-openai.ts'
import { eventually, gate } from '../waiting.ts'
import './renewal-outcomes.ts'
import './renewals-shared.ts'
import {
  chosen,
  emulators,
  ends,
  login,
  one,
  type Provider,
  read,
  storeWith,
  tokenOf,
  two,
  unauthorized,
  world,
} from './spent-logins.ts'
import { ME, refusal, sealedOf } from './world.ts'

const { store, openai, anthropic } = world
const PROVIDERS = Object.keys(emulators) as Provider[]

t.test('many callers on two replicas renew a spent token once', async (t) => {
  for (const provider of PROVIDERS) {
    const emulator = emulators[provider]
    const { id, secret } = await login(provider, -5)
    const before = emulator.renewals()
    const choices = await Promise.all(
      Array.from({ length: 10 }, (_, i) => chosen(i % 2 ? one : two, id, provider)),
    )
    const tokens = await Promise.all(choices.map(tokenOf))
    t.equal(emulator.renewals() - before, 1, provider)
    t.equal(new Set(tokens).size, 1)
    t.ok(emulator.isLive(tokens[0] ?? ''))
    const stored = await sealedOf(world, id)
    t.equal(stored.access_token, tokens[0], 'the token that they use is the stored one')
    t.equal(
      stored.refresh_token === secret.refresh_token,
      provider === 'gemini',
      'the refresh token is rotated where the vendor rotates it',
    )
    t.ok(Date.parse((await read(id)).expires_at ?? '') > Date.now())
    t.equal((await read(id)).hint, tokens[0]?.slice(-4))
  }
})

t.test('a token is renewed five minutes ahead of its end, and not before', async (t) => {
  for (const provider of PROVIDERS) {
    const emulator = emulators[provider]
    const fresh = await login(provider, 360)
    const due = await login(provider, 240)
    const before = emulator.renewals()
    t.equal(await tokenOf(await chosen(one, fresh.id, provider)), fresh.secret.access_token)
    t.equal(emulator.renewals() - before, 0)
    t.not(await tokenOf(await chosen(one, due.id, provider)), due.secret.access_token)
    t.equal(emulator.renewals() - before, 1)
  }
})

t.test('a short-lived token is not renewed as soon as it is issued', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-short', expires_in: 60 } })
  const before = anthropic.tokenRequests().length
  const choice = await chosen(one, id, 'anthropic')
  for (let uses = 0; uses < 3; uses++) t.equal(await tokenOf(choice), 'sk-ant-oat01-acme-short')
  t.equal(await tokenOf(await chosen(two, id, 'anthropic')), 'sk-ant-oat01-acme-short')
  t.equal(anthropic.tokenRequests().length - before, 1)
  const late = world.replica({ now: () => Date.now() + 46_000 })
  t.not(await tokenOf(await chosen(late, id, 'anthropic')), 'sk-ant-oat01-acme-short')

  await ends(id, -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-again', expires_in: 60 } })
  const later = await chosen(world.replica({ now: () => Date.now() + 3_600_000 }), id, 'anthropic')
  for (const words of ['renewed', 'the life of the new token counts, not the age of the login'])
    t.equal(await tokenOf(later), 'sk-ant-oat01-acme-again', words)
})

t.test('the lifetime of a token may be told as text, and one beyond all dates counts as none', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-text', expires_in: '3600' } })
  t.equal(await tokenOf(await chosen(one, id, 'anthropic')), 'sk-ant-oat01-acme-text')
  t.ok(Math.abs(Date.parse((await read(id)).expires_at ?? '') - Date.now() - 3_600_000) < 10_000)

  await ends(id, -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-aeon', expires_in: 1e16 } })
  t.equal(await tokenOf(await chosen(one, id, 'anthropic')), 'sk-ant-oat01-acme-aeon')
  t.match(await read(id), { expires_at: null }, 'no date is so far in the future')
})

t.test('a lifetime of zero counts as none, and is no reason to renew at every use', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-zero', expires_in: 0 } })
  const before = anthropic.tokenRequests().length
  for (const _ of [1, 2]) t.equal(await tokenOf(await chosen(one, id, 'anthropic')), 'sk-ant-oat01-acme-zero')
  t.equal(anthropic.tokenRequests().length - before, 1)
  t.match(await read(id), { expires_at: null })
})

t.test('a rotated refresh token is kept though no access token came with it', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { refresh_token: 'sk-ant-ort01-acme-next' } })
  t.match(await refusal((await chosen(one, id, 'anthropic')).secret()), { code: 'upstream_rejected' })
  t.match(await read(id), { state: 'active' })
  t.match(await sealedOf(world, id), { refresh_token: 'sk-ant-ort01-acme-next' })
})

t.test('a vendor that does not answer is given up in time', async (t) => {
  const { id } = await login('openai', -5)
  const never = gate()
  t.teardown(never.open)
  openai.hold(never.opened)
  const hasty = world.replica({ timeoutMs: 100 })
  t.match(await refusal((await chosen(hasty, id, 'openai')).secret()), {
    code: 'upstream_timeout',
    message: /did not answer within 100 ms/,
  })
  t.match(await read(id), { state: 'active' })
  const asked = openai.tokenRequests().length
  t.match(await refusal((await chosen(hasty, id, 'openai')).secret()), { code: 'upstream_timeout' })
  t.equal(openai.tokenRequests().length, asked, 'the vendor is left alone for a while')
  const others = await Promise.all(Array.from({ length: 5 }, () => login('openai', -5)))
  for (const [i, other] of others.entries()) {
    const isLeftAlone = i === 4
    if (!isLeftAlone) openai.hold(never.opened)
    t.match(await refusal((await chosen(hasty, other.id, 'openai')).secret()), {
      code: isLeftAlone ? 'upstream_overloaded' : 'upstream_timeout',
    })
  }
})

t.test('a turn does not wait for a slow vendor while its token lasts', async (t) => {
  const { id, secret } = await login('openai', 60)
  const answered = gate()
  t.teardown(answered.open)
  const before = openai.renewals()
  openai.hold(answered.opened)
  const choice = await chosen(one, id, 'openai')
  const started = performance.now()
  t.equal(await tokenOf(choice), secret.access_token)
  t.ok(performance.now() - started < 10_000)
  answered.open()
  const renewed = await eventually(
    () => sealedOf(world, id),
    ({ access_token }) => access_token !== secret.access_token,
  )
  t.equal(await tokenOf(choice), renewed.access_token, 'the renewal has gone on')
  t.equal(openai.renewals() - before, 1)
})

t.test('a claim that cannot be given back costs no turn', async (t) => {
  const { id } = await login('openai', -5)
  const release = () => Promise.reject(new BatonError('unavailable', 'The database is not available.'))
  const shaky = world.replica({ store: storeWith({ release }) })
  t.ok(openai.isLive(await tokenOf(await chosen(shaky, id, 'openai'))))
})

t.test('the account and the expiry that renewed tokens name are kept', async (t) => {
  const { secret } = await login('openai', 3600)
  const { refresh_token = '' } = secret
  const given = { provider: 'openai', kind: 'oauth' as const, access_token: jwt({ exp: 1 }), refresh_token }
  const { id } = await one.credentials.create(ME.owner, given)
  const ends = Math.floor(Date.now() / 1000) + 7200
  const claims = { exp: ends, 'https://api.openai.com/auth': { chatgpt_account_id: ACCOUNT } }
  openai.answer({ status: 200, body: { access_token: jwt(claims), expires_in: 60 } })
  await tokenOf(await chosen(one, id, 'openai'))
  const row = await read(id)
  t.match(row.facts, { account_id: ACCOUNT })
  t.equal(
    Date.parse(row.expires_at ?? ''),
    ends * 1000,
    'the expiry in the token counts before the one in the answer',
  )

  const named = await one.credentials.create(ME.owner, { ...given, account_id: 'workspace-2' })
  openai.answer({ status: 200, body: { access_token: jwt(claims) } })
  await tokenOf(await chosen(one, named.id, 'openai'))
  t.match(
    (await read(named.id)).facts,
    { account_id: 'workspace-2' },
    'nothing overrules the account that was given',
  )
})

t.test(
  'a rotation that was lost before it was stored ends the login, with that reason, at once',
  async (t) => {
    for (const [provider, code] of [
      ['openai', 'refresh_token_reused'],
      ['anthropic', 'invalid_grant'],
    ] as const) {
      const emulator = emulators[provider]
      const { id } = await login(provider, -5)
      // The vendor does its work, and the answer never arrives: as if the process had died there.
      emulator.lose()
      const lost = await refusal((await chosen(world.replica(), id, provider)).secret())
      t.match(lost, { code: 'upstream_disconnected', details: { reason: /^(UND_ERR_SOCKET|ECONNRESET)$/ } })
      t.match(await read(id), { state: 'active' }, 'the loss is not known yet')

      const before = emulator.tokenRequests().length
      const dead = await refusal((await chosen(one, id, provider)).secret())
      t.match(dead, { code: 'credential_needs_reauth', message: /used already.*lost before it was stored/ })
      t.match(await read(id), { state: 'needs_reauth', reason: new RegExp(`^${code}: `) })
      t.equal(emulator.tokenRequests().length - before, 1)
      await refusal(chosen(two, id, provider))
      t.equal(emulator.tokenRequests().length - before, 1, 'nobody asks again')
    }
  },
)

t.test('a store that is away for a while costs no login', async (t) => {
  const away = new BatonError('unavailable', 'The database is not available.')
  let failures = 2
  const shaky = world.replica({
    sleep: async () => {},
    store: storeWith({
      rotate: async (...given) => {
        if (failures-- > 0) throw away
        return store.credentials.rotate(...given)
      },
    }),
  })
  const { id } = await login('openai', -5)
  const before = openai.renewals()
  const token = await tokenOf(await chosen(shaky, id, 'openai'))
  t.equal((await sealedOf(world, id)).access_token, token)

  await ends(id, -5)
  failures = 20
  const late = await tokenOf(await chosen(shaky, id, 'openai'))
  t.equal(failures, -1, 'the tokens are written, however long it takes')
  t.equal(openai.renewals() - before, 2, 'the vendor is not asked again')
  t.match(await sealedOf(world, id), { access_token: late })
})

t.test('new tokens make a login active that a sibling found dead while the store was away', async (t) => {
  const { id } = await login('openai', -5)
  let isBack = false
  const shaky = world.replica({
    sleep: async () => {},
    store: storeWith({
      async rotate(...given) {
        if (isBack) return store.credentials.rotate(...given)
        // The claim has lapsed, and the sibling was faster.
        isBack = true
        await store.credentials.fail(id, (await read(id)).version, 'invalid_grant')
        throw new BatonError('unavailable', 'The database is not available.')
      },
    }),
  })
  const token = await tokenOf(await chosen(shaky, id, 'openai'))
  t.match(await read(id), { state: 'active', reason: null })
  t.match(await sealedOf(world, id), { access_token: token })
})

t.test('a login that was written by another while it was renewed is used as it was written', async (t) => {
  const { id } = await login('openai', -5)
  const overtaken = world.replica({
    store: storeWith({
      async rotate(...given) {
        const row = await read(id)
        await store.credentials.rotate(id, row.version, row)
        return store.credentials.rotate(...given)
      },
    }),
  })
  const token = await tokenOf(await chosen(overtaken, id, 'openai'))
  t.equal(token, (await sealedOf(world, id)).access_token)
})

t.test('a replica that closes tries once more to store tokens that the store did not take yet', async (t) => {
  const { id } = await login('openai', -5)
  const tried = gate()
  let isAway = true
  const leaving = world.replica({
    store: storeWith({
      async rotate(...given) {
        if (!isAway) return store.credentials.rotate(...given)
        tried.open()
        throw new BatonError('unavailable', 'The database is not available.')
      },
    }),
    sleep: (_, signal) => sleepFor(60_000, undefined, signal && { signal }),
  })
  const token = tokenOf(await chosen(leaving, id, 'openai'))
  await tried.opened
  isAway = false
  await leaving.renewals.close()
  t.match(await sealedOf(world, id), { access_token: await token })
})

t.test('a replica that closes while its store stays away tries once more, and ends', async (t) => {
  const { id } = await login('openai', -5)
  const [tried, closing] = [gate(), gate()]
  let tries = 0
  const leaving = world.replica({
    store: storeWith({
      async rotate() {
        tries++
        tried.open()
        await closing.opened
        await sleepFor(1)
        throw new BatonError('unavailable', 'The database is not available.')
      },
    }),
  })
  const lost = t.rejects(tokenOf(await chosen(leaving, id, 'openai')), { code: 'unavailable' })
  await tried.opened
  const closed = leaving.renewals.close()
  closing.open()
  await closed
  await lost
  t.equal(tries, 2)
})

t.test('a login that was disabled, deleted or found dead since it was chosen is not renewed', async (t) => {
  for (const [end, code] of [
    [(id: string) => one.credentials.update(ME, id, { state: 'disabled' }), 'no_credential'],
    [(id: string) => one.credentials.delete(ME, id), 'no_credential'],
    [(id: string) => store.credentials.fail(id, 1, 'invalid_grant'), 'credential_needs_reauth'],
  ] as const) {
    const { id } = await login('openai', -5)
    const choice = await chosen(one, id, 'openai')
    await end(id)
    const before = openai.tokenRequests().length
    t.match(await refusal(choice.secret()), { code })
    t.equal(openai.tokenRequests().length, before)
  }
})

t.test('a setup seals its login anew, so that no re-encryption is undone', async (t) => {
  const { id } = await login('gemini', 3600)
  const row = await read(id)
  await store.credentials.rotate(id, row.version, { ...row, facts: { path: 'code_assist' } })
  t.match(await (await chosen(one, id, 'gemini')).complete?.(), { project_id: row.facts.project_id })
  const after = await read(id)
  t.equal(after.version, row.version + 2)
  t.notSame(after.secret, row.secret)
})

t.test('after a 401 a turn gets one other token to try with', async (t) => {
  const { id, secret } = await login('anthropic', 3600)
  const [here, there] = [await chosen(one, id, 'anthropic'), await chosen(two, id, 'anthropic')]
  const before = anthropic.renewals()
  t.equal(await tokenOf(here), secret.access_token)
  t.equal(await unauthorized(here), true)
  const renewed = await tokenOf(here)
  t.not(renewed, secret.access_token)
  t.equal(anthropic.renewals() - before, 1)
  t.equal(await unauthorized(there), true)
  t.equal(await tokenOf(there), renewed, 'the other replica takes what is stored')
  t.equal(anthropic.renewals() - before, 1)
  t.equal(await unauthorized(here), false, 'a new token that is refused right away is not renewed again')
  t.equal(anthropic.renewals() - before, 1)

  const later = world.replica({ now: () => Date.now() + ahead })
  let ahead = 0
  const again = await chosen(later, (await login('anthropic', -5)).id, 'anthropic')
  await tokenOf(again)
  t.equal(
    await unauthorized(again),
    true,
    'a token that was renewed for its age alone is renewed for a refusal',
  )
  t.equal(await unauthorized(again), false)
  ahead = 301_000
  t.equal(await unauthorized(again), true, 'the token is renewed once more when some minutes have passed')

  anthropic.revoke((await sealedOf(world, id)).refresh_token ?? '')
  const third = await chosen(two, id, 'anthropic')
  t.match(await refusal(unauthorized(third)), { code: 'credential_needs_reauth' })
})

t.test('logins that nobody uses are not renewed any more once the process closes', async (t) => {
  const leaving = world.replica()
  const logins = [await login('openai', -5), await login('openai', -5)]
  const answered = gate()
  const before = openai.tokenRequests().length
  const asked = openai.request(openai.requests.length)
  openai.hold(answered.opened)
  const tended = leaving.renewals.tend()
  await asked
  const closed = leaving.renewals.close()
  answered.open()
  await Promise.all([closed, tended])
  t.equal(openai.tokenRequests().length - before, 1)
  for (const { id } of logins) await store.credentials.delete(ME, id)
})

t.test('a renewal or a set-up that only waits keeps no process from closing', async (t) => {
  const leaving = () => {
    const { opened: waits, open } = gate()
    const sleep = (_: number, signal?: AbortSignal) => {
      open()
      return sleepFor(3_600_000, undefined, signal && { signal })
    }
    return { replica: world.replica({ sleep }), waits }
  }
  const [first, second] = [leaving(), leaving()]
  const { id } = await login('openai', -5)
  t.ok(await store.credentials.claim(id, 'another process', 3600))
  const renewal = refusal((await chosen(first.replica, id, 'openai')).secret())
  await first.waits
  const closing = performance.now()
  await first.replica.renewals.close()
  t.ok(performance.now() - closing < 30_000, 'it does not wait as long as the claim might last')
  t.match(await renewal, { code: 'unavailable', message: /renewed by another process/ })

  const { gemini } = emulators
  const { access_token = '' } = (await login('gemini', 3600)).secret
  const given = await one.credentials.create(ME.owner, { provider: 'gemini', kind: 'oauth', access_token })
  gemini.account('load-code-assist-needs-onboarding')
  gemini.pending(1)
  const choice = await chosen(second.replica, given.id, 'gemini')
  const setup = t.rejects(async () => void (await choice.complete?.()))
  await second.waits
  await second.replica.renewals.close()
  await setup
  gemini.account('load-code-assist')
})

t.test('closing waits for a renewal under way', async (t) => {
  const leaving = world.replica()
  const { id } = await login('openai', -5)
  const answered = gate()
  const asked = openai.request(openai.requests.length)
  openai.hold(answered.opened)
  const token = tokenOf(await chosen(leaving, id, 'openai'))
  await asked
  const closed = leaving.renewals.close()
  answered.open()
  await closed
  t.equal((await sealedOf(world, id)).access_token, await token)
  await ends(id, -5)
  const before = openai.tokenRequests().length
  t.match(await refusal((await chosen(leaving, id, 'openai')).secret()), { code: 'unavailable' })
  t.equal(openai.tokenRequests().length, before, 'nor does another one begin')
})
