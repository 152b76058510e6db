/** The outcome of a renewal: by the vendor's answer, by the kind of login, and by whether the login is used at all. */
import t from 'tap'
import { LOGINS } from '../../providers/index.ts'
import { claimsOf } from '../../providers/tokens.ts'
import { newId } from '../../src/chat/ids.ts'
import { BatonError } from '../../src/errors.ts'
import { USER_AGENT } from '../../src/version.ts'
import { jwt } from '../emulators/oauth.ts'
import { CLIENT, FEDERATION } from '../emulators/oauth-anthropic.ts'
import {
  at,
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

const { store, openai, anthropic, google } = world

t.test('a passing failure is no reason for a new login', async (t) => {
  let clock = Date.now()
  const replica = world.replica({ now: () => clock })
  const { id, secret } = await login('anthropic', 200)
  const before = anthropic.tokenRequests().length
  const asked = () => anthropic.tokenRequests().length - before
  const choice = await chosen(replica, id, 'anthropic')

  anthropic.answer({ status: 503, body: '<html>' })
  t.equal(await tokenOf(choice), secret.access_token, 'the old token serves')
  t.equal(await tokenOf(choice), secret.access_token)
  t.equal(asked(), 1, 'the vendor is left alone for a while')
  clock += 6_000
  const limited = { type: 'error', error: { type: 'rate_limit_error', message: 'Rate limited.' } }
  anthropic.answer({ status: 429, headers: { 'retry-after': '60' }, body: limited })
  t.equal(await tokenOf(choice), secret.access_token)
  clock += 59_000
  t.equal(await tokenOf(choice), secret.access_token)
  t.equal(asked(), 2, 'the vendor is left alone for as long as it says')
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
  anthropic.answer({ status: 429, headers: { 'retry-after': '86400' }, body: limited })
  t.match(await refusal(choice.secret()), { retryAfter: 300 }, 'a day is too long to be believed')
  clock += 290_000
  t.match(await refusal(choice.secret()), { retryAfter: 10 }, 'what is left of the pause')
  clock += 11_000
  t.ok(anthropic.isLive(await tokenOf(choice)))
  t.equal(asked(), 5)
})

t.test('a vendor that fails for all logins is asked by one login now and then', async (t) => {
  let clock = Date.now()
  const replica = world.replica({ now: () => clock })
  const logins = await Promise.all(Array.from({ length: 7 }, () => login('anthropic', -5)))
  const choices = await Promise.all(logins.map(({ id }) => chosen(replica, id, 'anthropic')))
  const before = anthropic.tokenRequests().length
  for (let i = 0; i < 5; i++) anthropic.answer({ status: 500, body: '' })
  for (const choice of choices) t.match(await refusal(choice.secret()), { code: 'upstream_overloaded' })
  t.equal(anthropic.tokenRequests().length - before, 5)
  clock += 31_000
  anthropic.answer({ status: 500, headers: { 'retry-after': '86400' }, body: '' })
  for (const choice of choices) await refusal(choice.secret())
  t.equal(anthropic.tokenRequests().length - before, 6, 'one login tries')
  clock += 299_500
  for (const choice of choices) t.match(await refusal(choice.secret()), { retryAfter: 1 })
  t.equal(anthropic.tokenRequests().length - before, 6, 'no login tries within the longest pause')
  clock += 2_000
  for (const choice of choices) t.ok(anthropic.isLive(await tokenOf(choice)))
})

t.test('logins that are refused, or whose client is, keep no other login from being renewed', async (t) => {
  let clock = Date.now()
  const replica = world.replica({ now: () => clock })
  const idle = await login('anthropic', 200)
  const logins = await Promise.all(Array.from({ length: 6 }, () => login('anthropic', -5)))
  for (const [status, error, code] of [
    [400, 'invalid_request', 'upstream_rejected'],
    [401, 'invalid_client', 'upstream_rejected'],
    [403, 'invalid_grant', 'credential_needs_reauth'],
  ] as const) {
    for (const { id } of logins) {
      anthropic.answer({ status, body: { error } })
      t.match(await refusal((await chosen(replica, id, 'anthropic')).secret()), { code }, error)
    }
    clock += 6_000
  }
  t.not(await tokenOf(await chosen(replica, idle.id, 'anthropic')), idle.secret.access_token)
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
    ['openai', openaiError(400, 'app_session_expired'), /^app_session_expired/],
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

t.test('a login that cannot be renewed serves until it ends', async (t) => {
  const given = { provider: 'anthropic', kind: 'oauth' as const, access_token: 'sk-ant-oat01-acme-bare' }
  const bare = await one.credentials.create(ME.owner, { ...given, expires_at: at(100) })
  const choice = await chosen(one, bare.id, 'anthropic')
  t.equal(await tokenOf(choice), given.access_token)
  t.equal(await unauthorized(choice), false)
  const ahead = world.replica({ now: () => Date.now() + 86_400_000 })
  t.equal(
    await tokenOf(await chosen(ahead, bare.id, 'anthropic')),
    given.access_token,
    'the token serves on a replica whose clock is ahead, too',
  )
  t.match(await read(bare.id), { state: 'active' })
  const begun = await chosen(one, bare.id, 'anthropic')
  await ends(bare.id, -1)
  t.match(await refusal(chosen(one, bare.id, 'anthropic')), { code: 'credential_needs_reauth' })
  t.match(await refusal(begun.secret()), { code: 'credential_needs_reauth' }, 'in a turn that runs, too')
  t.match(await read(bare.id), { state: 'needs_reauth', reason: /^expired: .*nothing to renew it with/ })

  const content = { claudeAiOauth: { accessToken: 'a', refreshToken: 'r', expiresAt: Date.now() + 60_000 } }
  const claude = await one.logins.importFile(ME, { provider: 'anthropic', format: 'claude', content })
  await ends(claude.id, -1)
  const before = anthropic.requests.length
  t.match(await refusal(chosen(one, claude.id, 'anthropic')), { code: 'credential_needs_reauth' })
  t.equal(anthropic.requests.length, before, 'the vendor is not asked')

  const endless = await one.credentials.create(ME.owner, given)
  t.equal(await tokenOf(await chosen(one, endless.id, 'anthropic')), given.access_token)
})

t.test(
  'a login that has ended before it is stored needs a new login from the start, if nothing can renew it',
  async (t) => {
    const given = { provider: 'anthropic', kind: 'oauth' as const, access_token: 'sk-ant-oat01-acme-bare' }
    const spent = { state: 'needs_reauth', reason: /^expired: .*nothing to renew it with/ }
    const bare = await one.credentials.create(ME.owner, { ...given, expires_at: at(-1) })
    t.match(bare, spent)
    t.strictSame(await one.credentials.get(ME, bare.id), bare)
    t.match(await refusal(chosen(one, bare.id, 'anthropic')), { code: 'credential_needs_reauth' })
    const content = { claudeAiOauth: { accessToken: 'a', refreshToken: 'r', expiresAt: Date.now() - 1000 } }
    t.match(await one.logins.importFile(ME, { provider: 'anthropic', format: 'claude', content }), spent)

    const renewable = { ...given, expires_at: at(-1), refresh_token: 'sk-ant-ort01-acme-bare' }
    t.match(await one.credentials.create(ME.owner, renewable), { state: 'active', reason: null })
    const clientless = world.replica({ env: { BATON_ANTHROPIC_OAUTH_CLIENT_ID: '' } })
    t.match(
      await clientless.credentials.create(ME.owner, renewable),
      { state: 'active' },
      'a missing client does not end a login',
    )
  },
)

t.test('a token that names no expiry is renewed after its vendor’s usual lifetime', async (t) => {
  let days = 7
  const replica = world.replica({ now: () => Date.now() + days * 86_400_000 })
  const { id, secret } = await login('openai', 3600)
  const row = await read(id)
  await store.credentials.delete(ME, id)
  await store.credentials.create({ ...row, expires_at: null })
  const choice = await chosen(replica, id, 'openai')
  t.equal(await tokenOf(choice), secret.access_token)
  days = 9
  t.not(await tokenOf(choice), secret.access_token)

  const claude = await login('anthropic', 3600)
  const endless = await read(claude.id)
  await store.credentials.delete(ME, claude.id)
  await store.credentials.create({ ...endless, expires_at: null })
  const kept = await chosen(replica, claude.id, 'anthropic')
  t.equal(
    await tokenOf(kept),
    claude.secret.access_token,
    'a token of a vendor whose tokens last is not renewed by age',
  )
})

t.test('each login is renewed at the address and with the client that it was made with', async (t) => {
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
    headers: { 'anthropic-beta': 'oauth-2025-04-20', 'user-agent': USER_AGENT },
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
    code: 'upstream_auth',
    param: null,
    message: /BATON_GOOGLE_OAUTH_CLIENT_SECRET/,
  })
  t.match(await read(gemini.id), { state: 'active' }, 'a wrong setting is not the login’s fault')
  const off = world.replica({ env: { BATON_ENABLE_OAUTH: 'openai' } })
  t.match(await refusal(chosen(off, gemini.id, 'gemini')), { code: 'oauth_not_enabled' })
})

t.test('a renewal without an access token is stored, and the vendor not asked again at once', async (t) => {
  for (const [seconds, isSpent] of [
    [-5, true],
    [100, false],
  ] as const) {
    const access_token = jwt({ exp: Math.floor(Date.now() / 1000) + seconds })
    const given = { provider: 'openai', kind: 'oauth' as const, access_token, refresh_token: 'rt_first' }
    const { id } = await one.credentials.create(ME.owner, given)
    openai.answer({ status: 200, body: { refresh_token: 'rt_second' } })
    const before = openai.requests.length
    let clock = Date.now()
    const choice = await chosen(world.replica({ now: () => clock }), id, 'openai')
    for (let tries = 0; tries < 3; tries++) {
      if (tries === 2) clock += 59_000
      if (isSpent)
        t.match(await refusal(choice.secret()), { code: 'upstream_rejected', message: /no_tokens/ })
      else t.equal(await tokenOf(choice), access_token)
    }
    t.match(await sealedOf(world, id), { refresh_token: 'rt_second', access_token })
    t.equal(openai.requests.length - before, 1)
  }
})

t.test('after a 401, a renewal without an access token fails, and its refresh token is stored', async (t) => {
  const { id } = await login('anthropic', 3600)
  const { expires_at } = await read(id)
  anthropic.answer({ status: 200, body: { refresh_token: 'sk-ant-ort01-acme-alone', expires_in: 28_800 } })
  const choice = await chosen(world.replica(), id, 'anthropic')
  t.match(await refusal(unauthorized(choice)), {
    code: 'upstream_rejected',
    message: /no_tokens/,
    retryAfter: 60,
  })
  t.match(await sealedOf(world, id), { refresh_token: 'sk-ant-ort01-acme-alone' })
  t.equal((await read(id)).expires_at, expires_at, 'the old token ends when it would have ended')
})

t.test('the set-up of a given login happens at its first use, once', async (t) => {
  const { id: source, secret } = await login('gemini', 3600)
  await store.credentials.delete(ME, source)
  const { access_token = '', refresh_token = '' } = secret
  const given = { provider: 'gemini', kind: 'oauth' as const, access_token, refresh_token }
  const view = await one.credentials.create(ME.owner, { ...given, expires_at: at(3600) })
  const before = google.requests.length
  const choices = await Promise.all([1, 2, 3].map(() => chosen(one, view.id, 'gemini')))
  const elsewhere = await chosen(two, view.id, 'gemini')
  t.same(google.requests.length, before, 'choosing asks nobody')
  const facts = await Promise.all(choices.map((choice) => choice.complete?.()))
  for (const found of facts) t.same(found, { id: view.id, project_id: 'acme-dev-482910' })
  t.equal(google.requests.length - before, 1)
  t.match((await read(view.id)).facts, { project_id: 'acme-dev-482910', path: 'code_assist' })
  await elsewhere.complete?.()
  t.equal(google.requests.length - before, 1, 'the set-up is kept')

  const stale = { ...given, access_token: 'ya29.stale' }
  const spent = await one.credentials.create(ME.owner, stale)
  const fresh = await chosen(one, spent.id, 'gemini')
  t.match(await fresh.complete?.(), { project_id: 'acme-dev-482910' }, 'a token that has ended is renewed')
  t.ok(google.isLive(await tokenOf(fresh)))
  const lone = await one.credentials.create(ME.owner, { ...stale, refresh_token: '1//of-nobody' })
  const left = await chosen(one, lone.id, 'gemini')
  t.match(await refusal(left.complete?.() ?? Promise.resolve()), { code: 'credential_needs_reauth' })
  const { refresh_token: _, ...bare } = stale
  const bearer = await chosen(one, (await one.credentials.create(ME.owner, bare)).id, 'gemini')
  const beforeBearer = google.requests.length
  t.match(await refusal(bearer.complete?.() ?? Promise.resolve()), {
    code: 'upstream_auth',
    details: { upstream: { status: 401 } },
  })
  t.equal(google.requests.length - beforeBearer, 1, 'a refused token that nothing renews is tried once')

  const asked = google.requests.length
  google.account('load-code-assist-unsupported-client')
  const refused = await one.credentials.create(ME.owner, given)
  for (let tries = 0; tries < 3; tries++) {
    const choice = await chosen(one, refused.id, 'gemini')
    t.match(await refusal(choice.complete?.() ?? Promise.resolve()), { code: 'upstream_auth' })
  }
  t.equal(google.requests.length - asked, 1, 'after a refusal Google is not asked again at once')
  google.account('load-code-assist')
})

t.test('a set-up that failed because the store was away is made at the next use', async (t) => {
  const { access_token = '' } = (await login('gemini', 3600)).secret
  const given = { provider: 'gemini', kind: 'oauth' as const, access_token, expires_at: at(3600) }
  const { id } = await one.credentials.create(ME.owner, given)
  let isAway = true
  const shaky = world.replica({
    store: storeWith({
      rotate: (...given) => {
        if (!isAway) return store.credentials.rotate(...given)
        throw new BatonError('unavailable', 'The database is not available.')
      },
    }),
  })
  const choice = await chosen(shaky, id, 'gemini')
  t.match(await refusal(choice.complete?.() ?? Promise.resolve()), { code: 'unavailable' })
  isAway = false
  t.match(await choice.complete?.(), { project_id: 'acme-dev-482910' })
})

t.test('logins that nobody uses are renewed where they would die otherwise', async (t) => {
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
  t.equal(await one.renewals.tend(), 2)
  t.equal(await two.renewals.tend(), 0, 'there is nothing left to do')
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

t.test('an idle login whose renewal failed is not even claimed during its pause', async (t) => {
  const { id } = await login('anthropic', 100)
  const claimed: string[] = []
  const claim: typeof store.credentials.claim = (...given) => {
    claimed.push(given[0])
    return store.credentials.claim(...given)
  }
  const { renewals } = world.replica({ store: storeWith({ claim }) })
  anthropic.answer({ status: 503, body: '<html>' })
  for (const _ of [1, 2]) t.equal(await renewals.tend(), 0)
  t.same(claimed, [id])
  await store.credentials.delete(ME, id)
})

t.test('any number of logins that cannot be renewed keep no idle login from its renewal', async (t) => {
  const { id } = await login('anthropic', 100)
  const unreadable = { ...(await read(id)), secret: new Uint8Array([1]), expires_at: at(-60) }
  for (let i = 0; i < 250; i++) await store.credentials.create({ ...unreadable, id: newId('cred') })
  const tending = world.replica()
  t.equal(await tending.renewals.tend(), 1)
  const told = () => world.logged.filter((line) => line.includes('login not renewed')).length
  const before = told()
  t.equal(await tending.renewals.tend(), 0)
  t.equal(told(), before, 'the log has each failure once')
})

t.test('claims are read from a token; a text without readable claims has none', async (t) => {
  const of = (id: string) => jwt({ 'https://api.openai.com/auth': { chatgpt_account_id: id } })
  const whose = LOGINS[0]?.vendor.identify({ id_token: of('a'), access_token: of('b') }).facts
  t.same(whose, { account_id: 'a' }, "the id token is the vendor's own source")
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
