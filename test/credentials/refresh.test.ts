/** Renewal: once, by one, stored before it is used, and never in a loop. */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { LOGINS } from '../../providers/index.ts'
import { claimsOf } from '../../providers/jwt.ts'
import { createApp } from '../../src/app.ts'
import { loadConfig } from '../../src/config/load.ts'
import type { ChosenCredential } from '../../src/credentials/credentials.ts'
import { BatonError } from '../../src/errors.ts'
import type { LoginSecret } from '../../src/oauth-vendor.ts'
import type { Credential, Store } from '../../src/store/store.ts'
import { createAnthropicEmulator } from '../emulators/anthropic.ts'
import { gate } from '../emulators/http.ts'
import { jwt } from '../emulators/oauth.ts'
import { CLIENT, FEDERATION } from '../emulators/oauth-anthropic.ts'
import { newDatabase } from '../servers.ts'
import { createWorld, ME, type Replica, sealedOf, visit } from './world.ts'

const world = await createWorld()
const { store, vault, openai, anthropic, google } = world
const emulators = { openai, anthropic, gemini: google }
type Provider = keyof typeof emulators
const PROVIDERS = Object.keys(emulators) as Provider[]
const one = world.replica()
const two = world.replica()
t.teardown(() => world.close())

const at = (seconds: number): string => new Date(Date.now() + seconds * 1000).toISOString()
const read = async (id: string): Promise<Credential> => {
  const row = await store.credentials.get(ME, id)
  if (!row) throw new Error(`no credential ${id}`)
  return row
}

/** A login whose access token ends in so many seconds. */
async function login(provider: Provider, seconds: number): Promise<{ id: string; secret: LoginSecret }> {
  const { authorization_url, state } = await one.logins.authorize(ME, provider, 'paste')
  const answer = await visit(authorization_url)
  const { id } = await one.logins.exchange(ME, provider, { state, pasted: answer.href })
  await ends(id, seconds)
  return { id, secret: await sealedOf(world, id) }
}
/** As if it had been given with that end. */
async function ends(id: string, seconds: number): Promise<void> {
  const row = await read(id)
  await store.credentials.delete(ME, id)
  await store.credentials.create({ ...row, expires_at: at(seconds) })
}
const chosen = (replica: Replica, id: string, provider: Provider): Promise<ChosenCredential> =>
  replica.credentials.resolve(ME.owner, id, provider)
const tokenOf = async (choice: ChosenCredential) => (await choice.secret()).access_token ?? ''
const unauthorized = (choice: ChosenCredential) => choice.onUnauthorized?.() ?? Promise.resolve(false)

async function refusal(work: Promise<unknown>): Promise<BatonError> {
  const thrown = await work.then(
    () => new Error('it was not refused'),
    (error: unknown) => error,
  )
  if (thrown instanceof BatonError) return thrown
  throw thrown
}
/** The store with some verbs of its credentials replaced. */
const storeWith = (verbs: Partial<Store['credentials']>): Store => ({
  ...store,
  credentials: { ...store.credentials, ...verbs },
})

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
    t.equal(stored.access_token, tokens[0], 'what they use is what is stored')
    t.equal(stored.refresh_token === secret.refresh_token, provider === 'gemini', 'rotated where it rotates')
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

t.test('a short-lived token is not due as soon as it is born', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-short', expires_in: 60 } })
  const before = anthropic.tokenRequests().length
  const choice = await chosen(one, id, 'anthropic')
  for (let uses = 0; uses < 3; uses++) t.equal(await tokenOf(choice), 'sk-ant-oat01-acme-short')
  t.equal(await tokenOf(await chosen(two, id, 'anthropic')), 'sk-ant-oat01-acme-short')
  t.equal(anthropic.tokenRequests().length - before, 1)
  const late = world.replica({ now: () => Date.now() + 46_000 })
  t.not(await tokenOf(await chosen(late, id, 'anthropic')), 'sk-ant-oat01-acme-short')
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
})

t.test('who finds the renewal taken waits for its result, or goes on with what still lasts', async (t) => {
  const { id, secret } = await login('openai', -5)
  const answered = gate()
  const before = openai.renewals()
  openai.hold(answered.opened)
  const asked = openai.request(openai.requests.length)
  const first = tokenOf(await chosen(one, id, 'openai'))
  await asked
  const second = tokenOf(await chosen(two, id, 'openai'))
  answered.open()
  t.equal(await second, await first)
  t.equal(openai.renewals() - before, 1)

  await ends(id, 200)
  const still = await chosen(two, id, 'openai')
  const old = (await sealedOf(world, id)).access_token
  t.not(old, secret.access_token)
  t.ok(await store.credentials.claim(id, 'elsewhere', 60))
  t.equal(await tokenOf(still), old, 'nobody waits for what lasts some minutes more')
  t.equal(openai.renewals() - before, 1)
})

t.test('a renewal whose process died before the vendor was asked costs a wait, nothing else', async (t) => {
  const quick = world.replica({ claimSeconds: 1 })
  const { id } = await login('anthropic', -5)
  t.ok(await store.credentials.claim(id, 'the dead one', 1))
  t.ok(anthropic.isLive(await tokenOf(await chosen(quick, id, 'anthropic'))))
  t.match(await read(id), { state: 'active' })
})

t.test('a claim that nobody gives up is waited for within a bound', async (t) => {
  let clock = Date.now()
  const sleep = async (ms: number) => {
    clock += ms * 10
  }
  const patient = world.replica({ now: () => clock, sleep })
  const { id } = await login('anthropic', -5)
  t.ok(await store.credentials.claim(id, 'the stuck one', 3600))
  const refused = await refusal((await chosen(patient, id, 'anthropic')).secret())
  t.match(refused, { code: 'unavailable', message: /renewed by another process/, retryAfter: 2 })
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
      t.match(lost, { code: 'upstream_disconnected' })
      t.match(await read(id), { state: 'active' }, 'nothing is known yet')

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

t.test('the store’s bad moment costs no login', async (t) => {
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
  failures = 4
  t.equal(await refusal((await chosen(shaky, id, 'openai')).secret()), away)
  t.equal(openai.renewals() - before, 2)
  // Meanwhile another replica spends the old token in vain.
  await refusal((await chosen(one, id, 'openai')).secret())
  t.match(await read(id), { state: 'needs_reauth' })
  await store.credentials.update(ME, id, { state: 'active' })
  const late = await tokenOf(await chosen(shaky, id, 'openai'))
  t.equal(openai.renewals() - before, 2, 'the tokens that were kept are stored, without asking again')
  t.ok(openai.isLive(late))
  t.match(await sealedOf(world, id), { access_token: late })
})

t.test('a replica whose token was spent by another uses the other’s', async (t) => {
  const { id } = await login('openai', -5)
  const row = await read(id)
  const next = { ...(await sealedOf(world, id)), access_token: 'at-of-the-sibling' }
  const late = world.replica({
    store: storeWith({
      async fail(...given) {
        const secret = vault.seal(JSON.stringify(next), `${row.owner}/${row.id}`)
        await store.credentials.rotate(id, row.version, { ...row, secret, expires_at: at(3600) })
        return store.credentials.fail(...given)
      },
    }),
  })
  openai.spend((await sealedOf(world, id)).refresh_token ?? '')
  t.equal(await tokenOf(await chosen(late, id, 'openai')), 'at-of-the-sibling')
  t.match(await read(id), { state: 'active' })
})

t.test('after a 401 there is one other token to try with', async (t) => {
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
  t.equal(await unauthorized(here), false, 'a token that is refused right after helps nobody')
  t.equal(anthropic.renewals() - before, 1)

  anthropic.revoke((await sealedOf(world, id)).refresh_token ?? '')
  const third = await chosen(two, id, 'anthropic')
  t.match(await refusal(unauthorized(third)), { code: 'credential_needs_reauth' })
})

t.test('what passes is no reason for a new login', async (t) => {
  let clock = Date.now()
  const replica = world.replica({ now: () => clock })
  const { id, secret } = await login('anthropic', 200)
  const before = anthropic.tokenRequests().length
  const asked = () => anthropic.tokenRequests().length - before
  const choice = await chosen(replica, id, 'anthropic')

  anthropic.answer({ status: 503, body: '<html>' })
  t.equal(await tokenOf(choice), secret.access_token, 'the old token serves')
  t.equal(await tokenOf(choice), secret.access_token)
  t.equal(asked(), 1, 'and the vendor is left alone for a while')
  clock += 6_000
  const limited = { type: 'error', error: { type: 'rate_limit_error', message: 'Rate limited.' } }
  anthropic.answer({ status: 429, headers: { 'retry-after': '60' }, body: limited })
  t.equal(await tokenOf(choice), secret.access_token)
  clock += 59_000
  t.equal(await tokenOf(choice), secret.access_token)
  t.equal(asked(), 2, 'for as long as it says')
  clock += 130_000
  anthropic.answer({ status: 429, headers: { 'retry-after': '1' }, body: limited })
  t.match(await refusal(choice.secret()), {
    code: 'upstream_rate_limited',
    retryAfter: 5,
    details: { upstream: { status: 429, code: 'rate_limit_error' } },
  })
  t.match(await refusal(choice.secret()), { code: 'upstream_rate_limited' })
  t.equal(asked(), 3)
  t.match(await read(id), { state: 'active', reason: null })
  clock += 6_000
  t.ok(anthropic.isLive(await tokenOf(choice)))
  t.equal(asked(), 4)
})

t.test('a vendor that fails for everybody is asked by one, now and then', async (t) => {
  let clock = Date.now()
  const replica = world.replica({ now: () => clock })
  const logins = await Promise.all(Array.from({ length: 7 }, () => login('anthropic', -5)))
  const choices = await Promise.all(logins.map(({ id }) => chosen(replica, id, 'anthropic')))
  const before = anthropic.tokenRequests().length
  for (let i = 0; i < 5; i++) anthropic.answer({ status: 500, body: '' })
  for (const choice of choices) t.match(await refusal(choice.secret()), { code: 'upstream_overloaded' })
  t.equal(anthropic.tokenRequests().length - before, 5)
  clock += 31_000
  anthropic.answer({ status: 500, body: '' })
  for (const choice of choices) await refusal(choice.secret())
  t.equal(anthropic.tokenRequests().length - before, 6, 'one tries')
  clock += 31_000
  for (const choice of choices) t.ok(anthropic.isLive(await tokenOf(choice)))
})

t.test('failures are told apart by the vendor’s code', async (t) => {
  const openaiError = (status: number, code: string) => ({
    status,
    body: { error: { message: 'No.', code } },
  })
  const oauthError = (status: number, error: string, rest = {}) => ({ status, body: { error, ...rest } })
  const cases: [Provider, { status: number; body: unknown }, RegExp | null][] = [
    ['openai', openaiError(400, 'refresh_token_expired'), /^refresh_token_expired: No\.$/],
    [
      'openai',
      openaiError(400, 'refresh_token_reused'),
      /^refresh_token_reused: No\. Its refresh token was used/,
    ],
    ['openai', openaiError(401, 'refresh_token_invalidated'), /^refresh_token_invalidated/],
    ['openai', oauthError(400, 'invalid_grant'), /^invalid_grant/],
    ['openai', { status: 400, body: { code: 'app_session_terminated' } }, /^app_session_terminated/],
    ['openai', openaiError(401, 'something_new'), /^something_new/],
    ['openai', openaiError(400, 'something_new'), null],
    ['openai', { status: 502, body: '<html>' }, null],
    ['openai', { status: 403, body: 'Just a moment' }, null],
    [
      'anthropic',
      oauthError(400, 'invalid_grant', { error_description: 'Gone' }),
      /^invalid_grant: Gone\. Its/,
    ],
    [
      'anthropic',
      { status: 401, body: { error: { type: 'authentication_error' } } },
      /^authentication_error/,
    ],
    ['anthropic', oauthError(401, 'invalid_client'), null],
    ['anthropic', { status: 404, body: '' }, null],
    [
      'gemini',
      oauthError(400, 'invalid_grant', { error_description: 'Bad Request' }),
      /^invalid_grant: Bad Request/,
    ],
    [
      'gemini',
      oauthError(400, 'invalid_grant', { error_subtype: 'invalid_rapt' }),
      /^invalid_rapt: The organisation/,
    ],
    ['gemini', oauthError(401, 'invalid_client'), null],
    ['gemini', oauthError(400, 'invalid_request'), null],
  ]
  for (const [provider, answer, reason] of cases) {
    const { id } = await login(provider, -5)
    emulators[provider].answer(answer)
    const refused = await refusal((await chosen(world.replica(), id, provider)).secret())
    const row = await read(id)
    const name = `${provider} ${JSON.stringify(answer.body)} ${answer.status}`
    if (reason) {
      t.equal(refused.code, 'credential_needs_reauth', name)
      t.match(row, { state: 'needs_reauth', reason }, name)
    } else {
      t.match(refused.code, /^upstream_(rejected|overloaded)$/, name)
      t.match(row, { state: 'active' }, name)
    }
  }
})

t.test('what cannot be renewed serves until it ends', async (t) => {
  const given = { provider: 'anthropic', kind: 'oauth' as const, access_token: 'sk-ant-oat01-acme-bare' }
  const bare = await one.credentials.create(ME.owner, { ...given, expires_at: at(100) })
  const choice = await chosen(one, bare.id, 'anthropic')
  t.equal(await tokenOf(choice), given.access_token)
  t.equal(await unauthorized(choice), false)
  await ends(bare.id, -1)
  t.match(await refusal((await chosen(one, bare.id, 'anthropic')).secret()), {
    code: 'credential_needs_reauth',
  })
  t.match(await read(bare.id), { state: 'needs_reauth', reason: /^expired: .*nothing to renew it with/ })

  const content = { claudeAiOauth: { accessToken: 'a', refreshToken: 'r', expiresAt: Date.now() - 1000 } }
  const claude = await one.logins.importFile(ME, { provider: 'anthropic', format: 'claude', content })
  const before = anthropic.requests.length
  t.match(await refusal((await chosen(one, claude.id, 'anthropic')).secret()), {
    code: 'credential_needs_reauth',
  })
  t.equal(anthropic.requests.length, before, 'its vendor hears nothing of it')

  const endless = await one.credentials.create(ME.owner, given)
  t.equal(await tokenOf(await chosen(one, endless.id, 'anthropic')), given.access_token)
})

t.test('each login is renewed where and by whom it was issued', async (t) => {
  const { id, secret } = await login('anthropic', 3600)
  const profile = await one.logins.importFile(ME, {
    provider: 'anthropic',
    format: 'anthropic-profile',
    content: {
      access_token: 'sk-ant-oat01-acme-old',
      refresh_token: secret.refresh_token,
      expires_at: 1_600_000_000,
      client_id: CLIENT,
    },
  })
  t.ok(anthropic.isLive(await tokenOf(await chosen(one, profile.id, 'anthropic'))))
  const asked = anthropic.requests.at(-1)
  t.match(asked, {
    path: '/v1/oauth/token',
    headers: { 'anthropic-beta': 'oauth-2025-04-20', 'user-agent': 'baton/0.0.0' },
    body: { client_id: CLIENT },
  })
  await store.credentials.delete(ME, id)

  const federated = await one.credentials.create(ME.owner, {
    provider: 'anthropic',
    kind: 'oauth',
    federation: { ...FEDERATION },
  })
  await tokenOf(await chosen(one, federated.id, 'anthropic'))
  const before = anthropic.federated()
  await ends(federated.id, -5)
  await tokenOf(await chosen(one, federated.id, 'anthropic'))
  t.equal(anthropic.federated() - before, 1, 'the assertion is exchanged anew')
  const stranger = await one.credentials.create(ME.owner, {
    provider: 'anthropic',
    kind: 'oauth',
    federation: { ...FEDERATION, organization_id: 'org-2' },
  })
  t.match(await refusal((await chosen(one, stranger.id, 'anthropic')).secret()), {
    code: 'credential_needs_reauth',
  })

  const moved = world.replica({ env: { BATON_GOOGLE_OAUTH_CLIENT_ID: 'another.apps.example.com' } })
  const gemini = await login('gemini', -5)
  t.match(await refusal((await chosen(moved, gemini.id, 'gemini')).secret()), {
    code: 'upstream_auth',
    message: /another OAuth client/,
  })
  const bare = world.replica({ env: { BATON_GOOGLE_OAUTH_CLIENT_SECRET: '' } })
  t.match(await refusal((await chosen(bare, gemini.id, 'gemini')).secret()), {
    message: /BATON_GOOGLE_OAUTH_CLIENT_SECRET/,
  })
  t.match(await read(gemini.id), { state: 'active' }, 'a wrong setting is not the login’s fault')
  const off = world.replica({ env: { BATON_ENABLE_OAUTH: 'openai' } })
  t.match(await refusal(chosen(off, gemini.id, 'gemini')), { code: 'oauth_not_enabled' })
})

t.test('an answer without an access token is stored, and not asked for again at once', async (t) => {
  for (const [seconds, isSpent] of [
    [-5, true],
    [100, false],
  ] as const) {
    const access_token = jwt({ exp: Math.floor(Date.now() / 1000) + seconds })
    const given = { provider: 'openai', kind: 'oauth' as const, access_token, refresh_token: 'rt_first' }
    const { id } = await one.credentials.create(ME.owner, given)
    openai.answer({ status: 200, body: { refresh_token: 'rt_second' } })
    const before = openai.requests.length
    const choice = await chosen(world.replica(), id, 'openai')
    for (let tries = 0; tries < 3; tries++) {
      if (isSpent)
        t.match(await refusal(choice.secret()), { code: 'upstream_rejected', message: /no_tokens/ })
      else t.equal(await tokenOf(choice), access_token)
    }
    t.match(await sealedOf(world, id), { refresh_token: 'rt_second', access_token })
    t.equal(openai.requests.length - before, 1)
  }
})

t.test('the set-up of a given login happens at its first use, once', async (t) => {
  const { id: source, secret } = await login('gemini', 3600)
  await store.credentials.delete(ME, source)
  const { access_token = '', refresh_token = '' } = secret
  const given = { provider: 'gemini', kind: 'oauth' as const, access_token, refresh_token }
  const view = await one.credentials.create(ME.owner, { ...given, expires_at: at(3600) })
  const before = google.requests.length
  const choices = await Promise.all([1, 2, 3].map(() => chosen(one, view.id, 'gemini')))
  t.same(google.requests.length, before, 'choosing asks nobody')
  const facts = await Promise.all(choices.map((choice) => choice.complete?.()))
  for (const found of facts) t.same(found, { id: view.id, project_id: 'acme-dev-482910' })
  t.equal(google.requests.length - before, 1)
  t.match((await read(view.id)).facts, { project_id: 'acme-dev-482910', path: 'code_assist' })
  await (await chosen(two, view.id, 'gemini')).complete?.()
  t.equal(google.requests.length - before, 1, 'it is kept')

  google.account('load-code-assist-unsupported-client')
  const refused = await one.credentials.create(ME.owner, given)
  for (let tries = 0; tries < 3; tries++) {
    const choice = await chosen(one, refused.id, 'gemini')
    t.match(await refusal(choice.complete?.() ?? Promise.resolve()), { code: 'upstream_auth' })
  }
  t.equal(google.requests.length - before, 2, 'a refusal is not asked for again at once')
  google.account('load-code-assist')
})

t.test('idle logins are kept alive where that keeps them', async (t) => {
  for (const { id } of (await store.credentials.list({ owner: '', admin: true }, { limit: 500 })).data) {
    await store.credentials.delete({ owner: '', admin: true }, id)
  }
  const [chatgpt, claude, gemini] = [
    await login('openai', 100),
    await login('anthropic', -3600),
    await login('gemini', -3600),
  ]
  const fresh = await login('openai', 3600)
  const bare = await one.credentials.create(ME.owner, {
    provider: 'anthropic',
    kind: 'oauth',
    access_token: 'sk-ant-oat01-acme-bare',
    expires_at: at(-1),
  })
  t.equal(await one.refresher.tend(), 2)
  t.equal(await two.refresher.tend(), 0, 'there is nothing left to do')
  for (const { id, secret } of [chatgpt, claude]) {
    t.not((await sealedOf(world, id)).access_token, secret.access_token)
  }
  for (const { id, secret } of [gemini, fresh]) {
    t.equal((await sealedOf(world, id)).access_token, secret.access_token)
  }
  t.match(await read(bare.id), { state: 'needs_reauth' })
  t.same(
    LOGINS.flatMap(({ vendor }) => (vendor.keepAlive ? [vendor.provider] : [])),
    ['openai', 'anthropic'],
  )
})

t.test('closing waits for a renewal under way', async (t) => {
  const leaving = world.replica()
  const { id } = await login('openai', -5)
  const answered = gate()
  const asked = openai.request(openai.requests.length)
  openai.hold(answered.opened)
  const token = tokenOf(await chosen(leaving, id, 'openai'))
  await asked
  const closed = leaving.refresher.close()
  answered.open()
  await closed
  t.equal((await sealedOf(world, id)).access_token, await token)
})

const url = process.env.TEST_DATABASE_URL
const isWaived = !url && process.env.CI !== 'true' && 'TEST_DATABASE_URL is not set: no PostgreSQL to test on'

const redisUrl = process.env.TEST_REDIS_URL
const isAlone = isWaived || (!redisUrl && process.env.CI !== 'true' && 'TEST_REDIS_URL is not set')

t.test(
  'ten turns at once on two replicas renew a spent login once, and all of them end well',
  { skip: isAlone },
  async (t) => {
    if (!url || !redisUrl) return t.fail('CI must set TEST_DATABASE_URL and TEST_REDIS_URL')
    const claude = await createAnthropicEmulator()
    t.teardown(() => claude.close())
    const env = {
      DATABASE_URL: await newDatabase(t, url),
      REDIS_URL: redisUrl,
      BATON_ENCRYPTION_KEYS: `k1:${randomBytes(32).toString('base64')}`,
      BATON_ENABLE_OAUTH: 'anthropic',
      BATON_ANTHROPIC_BASE_URL: claude.baseUrl,
      BATON_ANTHROPIC_OAUTH_TOKEN_URL: anthropic.tokenUrl,
      BATON_ANTHROPIC_OAUTH_CLIENT_ID: CLIENT,
      BATON_LOG_LEVEL: 'fatal',
      BATON_DRAIN_SECONDS: '0',
    }
    const replicas = await Promise.all([1, 2].map(() => createApp(loadConfig(env, '/nowhere').config)))
    t.teardown(() => Promise.all(replicas.map((replica) => replica.close())))
    const post = async (i: number, path: string, payload: object) => {
      const headers = { host: 'localhost' }
      const answer = await replicas[i % 2]?.http.inject({
        method: 'POST',
        url: `/v1${path}`,
        headers,
        payload,
      })
      return { status: answer?.statusCode, body: answer?.json() }
    }
    const { secret } = await login('anthropic', 3600)
    const { access_token, refresh_token } = secret
    const spent = { provider: 'anthropic', kind: 'oauth', access_token, refresh_token, expires_at: at(-60) }
    const { body: credential } = await post(0, '/credentials', spent)
    const chat = { provider: 'anthropic', model: 'claude-opus-5-5', credential_id: credential.id }
    const ten = Array.from({ length: 10 }, (_, i) => i)
    const sessions = await Promise.all(ten.map((i) => post(i, '/sessions', chat)))
    const before = anthropic.tokenRequests().length
    const said = await Promise.all(
      sessions.map(({ body }, i) =>
        post(i, `/sessions/${body.id}/turns`, { input: `say ${i}`, stream: false }),
      ),
    )
    t.match(
      said,
      ten.map((i) => ({ status: 200, body: { state: 'completed', output_text: String(i) } })),
    )
    t.equal(anthropic.tokenRequests().length - before, 1, 'one request at the token endpoint')
    const used = claude.requests.filter(({ path }) => path.startsWith('/v1/messages'))
    t.equal(new Set(used.map(({ headers }) => headers.authorization)).size, 1, 'the new token alone is used')
    t.not(used[0]?.headers.authorization, `Bearer ${access_token}`)
  },
)

t.test(
  'killed in the middle of a renewal, a process leaves what the vendor knows',
  { skip: isWaived },
  async (t) => {
    if (!url) return t.fail('CI must set TEST_DATABASE_URL')
    const databaseUrl = await newDatabase(t, url)
    const key = randomBytes(32)
    const shared = await createWorld({ databaseUrl, key: new Uint8Array(key) })
    t.teardown(() => shared.close())
    const survivor = shared.replica({ claimSeconds: 2 })

    async function spentLogin(): Promise<string> {
      const { authorization_url, state } = await survivor.logins.authorize(ME, 'openai', 'paste')
      const { href } = await visit(authorization_url)
      const { id } = await survivor.logins.exchange(ME, 'openai', { state, pasted: href })
      const row = await shared.store.credentials.get(ME, id)
      if (row) await shared.store.credentials.rotate(id, 1, { ...row, expires_at: at(-5) })
      return id
    }
    /** Another process asks for its token, and dies while the vendor has its request. */
    async function dieRenewing(id: string): Promise<void> {
      const script = fileURLToPath(new URL('./renewer.js', import.meta.url))
      const asked = shared.openai.request(shared.openai.requests.length)
      const args = [script, databaseUrl, key.toString('base64'), id, 'openai', JSON.stringify(shared.env)]
      const renewer = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'inherit'] })
      const exited = once(renewer, 'exit')
      await asked
      renewer.kill('SIGKILL')
      await exited
    }
    const asking = gate()
    t.teardown(asking.open)

    const early = await spentLogin()
    shared.openai.stall(asking.opened)
    await dieRenewing(early)
    const choice = await survivor.credentials.resolve(ME.owner, early, 'openai')
    t.ok(
      shared.openai.isLive((await choice.secret()).access_token ?? ''),
      'not asked yet: the login lives on',
    )

    const late = await spentLogin()
    shared.openai.hold(asking.opened)
    await dieRenewing(late)
    const dead = await refusal((await survivor.credentials.resolve(ME.owner, late, 'openai')).secret())
    t.match(dead, { code: 'credential_needs_reauth', message: /lost before it was stored/ })
  },
)

t.test('claims are read tolerantly', async (t) => {
  t.same(claimsOf(jwt({ name: 'zoë', n: 1 })), { name: 'zoë', n: 1 })
  for (const none of [
    undefined,
    '',
    'opaque',
    'a.b',
    'a.b.c',
    `a.${Buffer.from('[1').toString('base64url')}.c`,
  ]) {
    t.same(claimsOf(none), {})
  }
})
