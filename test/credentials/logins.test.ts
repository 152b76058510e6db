/** Every way to log in, against emulated vendors that refuse what the real ones refuse. */
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openaiLogins } from '../../providers/openai/oauth.ts'
import { createApp } from '../../src/app.ts'
import { loadConfig } from '../../src/config/load.ts'
import { createLoopback } from '../../src/credentials/loopback.ts'
import { readPasted } from '../../src/credentials/pasted.ts'
import { BatonError } from '../../src/errors.ts'
import { createAnthropicEmulator } from '../emulators/anthropic.ts'
import { createGeminiEmulator } from '../emulators/gemini.ts'
import { jwt } from '../emulators/oauth.ts'
import { CLIENT, FEDERATION } from '../emulators/oauth-anthropic.ts'
import { ACCOUNT } from '../emulators/oauth-openai.ts'
import { createOpenAiEmulator } from '../emulators/openai.ts'
import { freePort } from '../servers.ts'
import { createWorld, eventually, ME, OTHER, type Replica, sealedOf, visit } from './world.ts'

const world = await createWorld()
const { store, openai, anthropic, google, logged } = world
const one = world.replica()
const two = world.replica()
t.teardown(() => world.close())

/** What was thrown; a resolved promise is a failure of the test. */
async function refusal(work: Promise<unknown>): Promise<BatonError> {
  const thrown = await work.then(
    () => new Error('it was not refused'),
    (error: unknown) => error,
  )
  if (thrown instanceof BatonError) return thrown
  throw thrown
}
const invalid = (param: string | null, message: RegExp) => ({ code: 'invalid_request', param, message })

/** Begins a login by paste and goes through the vendor's page; what the browser ended at. */
async function begun(provider: string, replica: Replica = one): Promise<{ state: string; at: URL }> {
  const login = await replica.logins.authorize(ME, provider, 'paste')
  return { state: login.state, at: await visit(login.authorization_url) }
}

t.test('a pasted answer ends a login, in any of its forms, on any replica', async (t) => {
  const forms: ((at: URL, state: string) => { code: string } | { pasted: string })[] = [
    (at) => ({ pasted: at.href }),
    (at, state) => ({ pasted: ` ${at.searchParams.get('code')}#${state}\n` }),
    (at) => ({ pasted: at.search }),
    (at) => ({ pasted: at.searchParams.get('code') ?? '' }),
    (at) => ({ code: at.searchParams.get('code') ?? '' }),
  ]
  for (const provider of ['openai', 'anthropic', 'gemini']) {
    for (const form of forms) {
      const { state, at } = await begun(provider)
      const view = await two.logins.exchange(ME, provider, { state, ...form(at, state) })
      t.match(view, { provider, kind: 'oauth', state: 'active', owner: 'me', origin: 'api' })
      t.match(await one.logins.status(ME, provider, state), { state: 'done', credential_id: view.id })
      await store.credentials.delete(ME, view.id)
    }
  }
})

t.test('a login keeps what its tokens say', async (t) => {
  const login = async (provider: string) => {
    const { state, at } = await begun(provider)
    return one.logins.exchange(ME, provider, { state, pasted: at.href })
  }
  const chatgpt = await login('openai')
  t.match(chatgpt, { account_id: ACCOUNT, name: 'zoë@example.com' })
  const days = (Date.parse(chatgpt.expires_at ?? '') - Date.now()) / 86_400_000
  t.equal(Math.round(days), 10)
  const secret = await sealedOf(world, chatgpt.id)
  t.ok(openai.isLive(secret.access_token ?? ''))
  t.match(secret, { refresh_token: /^rt_/, id_token: /^ey/, client_id: /^app_/ })
  t.equal(chatgpt.hint, secret.access_token?.slice(-4))

  const claude = await login('anthropic')
  t.match(claude, { name: 'me@example.com' })
  t.ok(anthropic.isLive((await sealedOf(world, claude.id)).access_token ?? ''))

  const gemini = await login('gemini')
  t.match(gemini, { name: 'me@example.com', path: 'code_assist', project_id: 'acme-dev-482910' })
  for (const { id } of [chatgpt, claude, gemini]) await store.credentials.delete(ME, id)
})

t.test('the mode that fits where Baton runs is the default', async (t) => {
  const local = world.replica({ ownUrl: 'http://127.0.0.1:8787', ports: [await freePort()] })
  for (const [replica, modes] of [
    [one, { openai: 'device', anthropic: 'paste', gemini: 'paste' }],
    [local, { openai: 'loopback', anthropic: 'loopback', gemini: 'loopback' }],
  ] as const) {
    for (const [provider, mode] of Object.entries(modes)) {
      t.equal((await replica.logins.authorize(ME, provider, null)).mode, mode, `${provider}: ${mode}`)
    }
  }
  t.match(await refusal(one.logins.authorize(ME, 'anthropic', 'device')), invalid('mode', /loopback, paste/))
  t.match(openaiLogins.loopback, { host: 'localhost', ports: [1455, 1457], path: '/auth/callback' })
  await local.close()
})

t.test('a loopback login ends by itself, and its address is gone afterwards', async (t) => {
  const ports = [await freePort(), await freePort()]
  const replica = world.replica({ ports })
  t.teardown(() => replica.close())
  for (const provider of ['openai', 'anthropic', 'gemini']) {
    const login = await replica.logins.authorize(ME, provider, 'loopback')
    const at = await visit(login.authorization_url)
    t.match(at.hostname, /^(localhost|127\.0\.0\.1)$/)
    const elsewhere = await fetch(new URL('/cancel', at.href.replace('localhost', '127.0.0.1')))
    t.equal(elsewhere.status, 404)
    const page = await fetch(at.href.replace('localhost', '127.0.0.1'))
    t.equal(page.status, 200)
    t.match(await page.text(), /You are logged in/)
    t.match(page.headers.get('content-security-policy'), "default-src 'none'")
    t.match(page.headers.get('referrer-policy'), 'no-referrer')
    const { state, credential_id = '' } = await replica.logins.status(ME, provider, login.state)
    t.equal(state, 'done')
    await t.rejects(fetch(at.href.replace('localhost', '127.0.0.1')), 'nobody listens any more')
    await store.credentials.delete(ME, credential_id)
  }
})

t.test('a busy port is passed over, and if all are, it is said', async (t) => {
  const ports = [await freePort(), await freePort()]
  const [first = 0, second = 0] = ports
  const squatters = [createServer(), createServer()]
  const squat = (index: number, port: number) =>
    new Promise<void>((resolve) => squatters[index]?.listen(port, '127.0.0.1', resolve))
  t.teardown(() => squatters.forEach((server) => void server.close()))
  const replica = world.replica({ ports })
  t.teardown(() => replica.close())

  await squat(0, first)
  const login = await replica.logins.authorize(ME, 'openai', 'loopback')
  const shared = await replica.logins.authorize(OTHER, 'openai', 'loopback')
  for (const { authorization_url } of [login, shared]) {
    const redirect = new URL(authorization_url).searchParams.get('redirect_uri')
    t.equal(redirect, `http://localhost:${second}/auth/callback`)
  }
  await replica.close()
  await squat(1, second)
  const blocked = world.replica({ ports })
  t.teardown(() => blocked.close())
  const refused = await refusal(blocked.logins.authorize(ME, 'openai', 'loopback'))
  t.match(refused, { code: 'unavailable', message: new RegExp(`${first} or ${second}.*mode paste`) })
})

t.test('logins that begin at once share a port', async (t) => {
  const loopback = createLoopback()
  t.teardown(() => loopback.close())
  const port = await freePort()
  const vendor = {
    provider: 'openai',
    loopback: { host: 'localhost', ports: [port], path: '/auth', anyPath: false },
  } as const
  const hold = (login: string) =>
    loopback.hold(login, vendor, 60, async () => ({ status: 200, html: 'done' }))
  const addresses = await Promise.all(['a', 'b', 'c'].map(hold))
  t.same(new Set(addresses), new Set([`http://localhost:${port}/auth`]))
  const answers = async () => (await fetch(`http://127.0.0.1:${port}/auth`)).text()
  loopback.release('a')
  loopback.release('b')
  t.equal(await answers(), 'done', 'for as long as one of them holds it')
  loopback.release('c')
  await t.rejects(answers())
})

t.test('the gateway’s own callback serves vendors that take any address', async (t) => {
  const replica = world.replica({ ownUrl: 'http://127.0.0.1:8787' })
  const login = await replica.logins.authorize(ME, 'gemini', null)
  const at = await visit(login.authorization_url)
  t.equal(at.origin + at.pathname, 'http://127.0.0.1:8787/v1/oauth/callback/gemini')
  const query = Object.fromEntries(at.searchParams)
  const wrong = { ...query, iss: 'https://evil.example' }
  t.match(await two.logins.callback('gemini', wrong), { state: 'failed', error: /does not fit this login/ })

  const again = await replica.logins.authorize(ME, 'gemini', null)
  const answer = Object.fromEntries((await visit(again.authorization_url)).searchParams)
  const { credential_id = '' } = await two.logins.callback('gemini', answer)
  t.ok(await store.credentials.delete(ME, credential_id))
  const page = await two.logins.callbackPage('gemini', answer)
  t.match(page, { status: 400, html: /complete already/ }, 'a second visit redeems nothing')
})

t.test('a state is worth something once, for its owner, at its provider, in its time', async (t) => {
  const { state, at } = await begun('openai')
  const pasted = at.href
  const unknown = invalid('state', /No login of yours/)
  t.match(await refusal(one.logins.exchange(OTHER, 'openai', { state, pasted })), unknown)
  t.match(
    await refusal(one.logins.exchange({ owner: 'root', admin: true }, 'openai', { state, pasted })),
    unknown,
  )
  t.match(await refusal(one.logins.exchange(ME, 'anthropic', { state, pasted })), unknown)
  t.match(await refusal(one.logins.exchange(ME, 'openai', { state: 'guess', pasted })), unknown)
  t.match(await refusal(one.logins.status(OTHER, 'openai', state)), unknown)
  t.match(await refusal(one.logins.callback('openai', { code: 'c', state: 'guess' })), unknown)
  t.match(await refusal(one.logins.callback('openai', { code: 'c' })), unknown)
  t.match(await one.logins.status({ owner: 'root', admin: true }, 'openai', state), { state: 'pending' })

  const other = await begun('openai')
  t.match(
    await refusal(one.logins.exchange(ME, 'openai', { state, pasted: other.at.href })),
    invalid('pasted', /belongs to another login/),
  )
  for (const text of ['', 'https://example.com/?x=1', 'state=abc']) {
    t.match(await refusal(one.logins.exchange(ME, 'openai', { state, pasted: text })), {
      code: 'invalid_request',
    })
  }

  const both = await Promise.allSettled(
    [one, two].map(({ logins }) => logins.exchange(ME, 'openai', { state, pasted })),
  )
  t.same(both.map(({ status }) => status).sort(), ['fulfilled', 'rejected'], 'of two at once one is served')
  t.match(
    await refusal(two.logins.exchange(ME, 'openai', { state, pasted })),
    invalid('state', /complete already/),
  )

  const wrong = await begun('anthropic')
  const { state: spoilt } = wrong
  t.match(
    await refusal(one.logins.exchange(ME, 'anthropic', { state: spoilt, code: 'no-such-code' })),
    invalid('code', /did not take the code \(invalid_grant.*Begin the login again/),
  )
  t.match(
    await refusal(one.logins.exchange(ME, 'anthropic', { state: spoilt, pasted: wrong.at.href })),
    invalid('state', /used already/),
  )
  t.match(await one.logins.status(ME, 'anthropic', spoilt), { state: 'failed', error: /invalid_grant/ })

  const short = world.replica({
    store: {
      ...store,
      logins: {
        ...store.logins,
        create: (login, most) => store.logins.create({ ...login, seconds: 0 }, most),
      },
    },
  })
  const late = await begun('openai', short)
  t.match(await one.logins.status(ME, 'openai', late.state), { state: 'expired' })
  t.match(
    await refusal(one.logins.exchange(ME, 'openai', { state: late.state, pasted: late.at.href })),
    invalid('state', /took too long/),
  )
  t.match(
    await refusal(one.logins.callback('openai', Object.fromEntries(late.at.searchParams))),
    invalid('state', /took too long/),
  )
})

t.test('what the vendor refuses is said in words, on the page too', async (t) => {
  openai.decline('access_denied', 'missing_codex_entitlement <b>')
  const { state, at } = await begun('openai')
  const answer = Object.fromEntries(at.searchParams)
  const page = await one.logins.callbackPage('openai', answer)
  t.match(page, {
    status: 400,
    html: /The login was declined \(access_denied: missing_codex_entitlement &lt;b&gt;\)/,
  })
  t.match(await one.logins.status(ME, 'openai', state), { state: 'failed', error: /declined/ })

  openai.decline('server_error')
  const second = await begun('openai')
  const refused = await refusal(
    one.logins.exchange(ME, 'openai', { state: second.state, pasted: second.at.href }),
  )
  t.match(refused, { code: 'invalid_request', message: /refused the login \(server_error\)/ })

  openai.decline(null)

  anthropic.answer({ status: 503, body: 'upstream connect error' })
  const third = await begun('anthropic')
  t.match(
    await refusal(one.logins.exchange(ME, 'anthropic', { state: third.state, pasted: third.at.href })),
    { code: 'upstream_overloaded' },
  )
  anthropic.answer({ status: 200, body: { token_type: 'Bearer' } })
  const fourth = await begun('anthropic')
  t.match(
    await refusal(one.logins.exchange(ME, 'anthropic', { state: fourth.state, pasted: fourth.at.href })),
    { code: 'upstream_rejected' },
  )
})

t.test('logins are off until the operator names the vendor, and need a client', async (t) => {
  const off = world.replica({ env: { BATON_ENABLE_OAUTH: 'openai' } })
  t.match(await refusal(off.logins.authorize(ME, 'gemini', null)), { code: 'oauth_not_enabled' })
  t.match(await refusal(off.logins.callback('gemini', {})), { code: 'oauth_not_enabled' })
  t.match(await refusal(off.logins.status(ME, 'gemini', 's')), { code: 'oauth_not_enabled' })
  t.match(
    await refusal(off.logins.importFile(ME, { provider: 'gemini', format: 'gemini-cli', content: '{}' })),
    { code: 'oauth_not_enabled' },
  )
  t.match(
    await refusal(off.logins.authorize(ME, 'acme', null)),
    invalid('provider', /openai, anthropic, gemini/),
  )

  const bare = world.replica({
    env: { BATON_ANTHROPIC_OAUTH_CLIENT_ID: '', BATON_GOOGLE_OAUTH_CLIENT_SECRET: '' },
  })
  t.match(
    await refusal(bare.logins.authorize(ME, 'anthropic', null)),
    invalid('provider', /BATON_ANTHROPIC_OAUTH_CLIENT_ID/),
  )
  t.match(
    await refusal(bare.logins.authorize(ME, 'gemini', null)),
    invalid('provider', /BATON_GOOGLE_OAUTH_CLIENT_SECRET/),
  )
  const login = await bare.logins.authorize(ME, 'openai', 'paste')
  t.equal(new URL(login.authorization_url).searchParams.get('originator'), 'baton', 'as itself')
})

t.test('a login is for one API, where the vendor has several', async (t) => {
  const login = await one.logins.authorize(ME, 'gemini', 'paste', { path: 'public', quota_project: 'p-1' })
  const scope = new URL(login.authorization_url).searchParams.get('scope') ?? ''
  t.match(scope, /generative-language/)
  const before = google.requests.length
  const at = await visit(login.authorization_url)
  const view = await one.logins.exchange(ME, 'gemini', { state: login.state, pasted: at.href })
  t.match(view, { path: 'public', quota_project: 'p-1' })
  t.notOk(view.project_id)
  t.notOk(google.requests.slice(before).some(({ path }) => path.includes('v1internal')))
  await store.credentials.delete(ME, view.id)
  t.match(
    await refusal(one.logins.authorize(ME, 'openai', 'paste', { project_id: 'p' })),
    invalid('project_id', /take no project_id/),
  )
})

t.test('Code Assist is set up before its login counts', async (t) => {
  const login = async (project_id?: string) => {
    const wish = project_id === undefined ? {} : { project_id }
    const { authorization_url, state } = await quick.logins.authorize(ME, 'gemini', 'paste', wish)
    const at = await visit(authorization_url)
    return quick.logins.exchange(ME, 'gemini', { state, pasted: at.href })
  }
  const waits: number[] = []
  const quick = world.replica({ sleep: async (ms) => void waits.push(ms) })

  google.account('load-code-assist-needs-onboarding')
  google.pending(2)
  const onboarded = await login()
  t.match(onboarded, { project_id: 'core-gravity-a1b2c' })
  t.same(waits, [5000, 5000], 'the operation is asked for every five seconds')

  google.account('load-code-assist-needs-project')
  t.match(await refusal(login()), invalid('project_id', /needs a Google Cloud project/))
  t.match(await refusal(login('482910553377')), invalid('project_id', /number/))
  t.match(await login('acme-dev'), { project_id: 'acme-dev' })

  google.account('load-code-assist-unsupported-client')
  const before = google.requests.length
  t.match(await refusal(login()), { code: 'upstream_auth', message: /API key instead/ })
  t.notOk(
    google.requests.slice(before).some(({ path }) => path.includes('onboardUser')),
    'it ends there',
  )
  google.account('load-code-assist-validation-required')
  t.match(await refusal(login()), { code: 'upstream_auth', message: /accounts\.google\.com\/signin/ })
  google.account('load-code-assist')
})

t.test('a device login ends once a person has granted it', async (t) => {
  const login = await one.logins.authorize(ME, 'openai', 'device')
  t.match(login, { mode: 'device', user_code: /^ABCD-/, authorization_url: /\/codex\/device$/ })
  t.match(
    await refusal(one.logins.exchange(ME, 'openai', { state: login.state, code: 'c' })),
    invalid('state', /ends by itself/),
  )
  t.match(await one.logins.status(ME, 'openai', login.state), { state: 'pending' })
  openai.grantDevice(login.user_code ?? '')
  const done = await eventually(async () => {
    const status = await one.logins.status(ME, 'openai', login.state)
    return status.state === 'pending' ? null : status
  })
  t.match(done, { state: 'done' })
  t.ok(await store.credentials.delete(ME, done.credential_id ?? ''))
})

t.test('another replica goes on with a device login whose first one is gone', async (t) => {
  const first = world.replica()
  const login = await first.logins.authorize(ME, 'openai', 'device')
  await first.close()
  openai.grantDevice(login.user_code ?? '')
  const done = await eventually(async () => {
    const status = await two.logins.status(ME, 'openai', login.state)
    return status.state === 'pending' ? null : status
  })
  t.match(done, { state: 'done' })
  await store.credentials.delete(ME, done.credential_id ?? '')
})

t.test('a vendor without device logins says so', async (t) => {
  openai.offerDevices(false)
  t.match(
    await refusal(one.logins.authorize(ME, 'openai', null)),
    invalid('mode', /does not offer device logins/),
  )
  openai.offerDevices(true)
})

t.test('a device login that was denied or has expired ends, whatever the status says so', (t) => {
  const poll = (status: number, error: object | string) =>
    openaiLogins.device?.readPoll({ status, headers: {}, body: JSON.stringify({ error }) })
  for (const code of ['access_denied', 'expired_token']) {
    for (const status of [400, 403]) {
      t.throws(
        () => poll(status, { code }),
        { code: 'upstream_rejected', message: code },
        `${status} ${code}`,
      )
      t.throws(() => poll(status, code), { code: 'upstream_rejected' }, `${status} '${code}'`)
    }
  }
  t.match(poll(403, { code: 'deviceauth_authorization_pending' }), { state: 'pending', isTooFast: false })
  t.match(poll(400, 'slow_down'), { state: 'pending', isTooFast: true })
  t.end()
})

t.test('an owner has only so many logins under way', async (t) => {
  const busy = { owner: 'busy', admin: false }
  for (let count = 0; count < 100; count++) await one.logins.authorize(busy, 'openai', 'paste')
  t.match(await refusal(one.logins.authorize(busy, 'openai', 'paste')), { code: 'rate_limited' })
})

t.test('a new login takes the place of a default that needed one', async (t) => {
  const { state, at } = await begun('openai')
  const old = await one.logins.exchange(ME, 'openai', { state, pasted: at.href })
  t.equal(old.default, false)
  await one.credentials.update(ME, old.id, { default: true })
  await store.credentials.fail(old.id, 1, 'refresh_token_reused')
  const next = await begun('openai')
  const view = await one.logins.exchange(ME, 'openai', { state: next.state, pasted: next.at.href })
  t.equal(view.default, true)
  t.equal((await one.credentials.resolve('me', null, 'openai')).facts.id, view.id)
  for (const { id } of [old, view]) await store.credentials.delete(ME, id)
})

t.test('a login file whose times are none is taken over without them', async (t) => {
  const milliseconds = 1_795_300_000_000
  const files: [provider: string, format: string, content: object][] = [
    ['anthropic', 'anthropic-profile', { access_token: 'sk-ant-oat01-t', expires_at: milliseconds }],
    ['anthropic', 'claude', { claudeAiOauth: { accessToken: 'sk-ant-oat01-t', expiresAt: 8e15 } }],
    ['openai', 'codex', { tokens: { access_token: jwt({ exp: milliseconds }) } }],
    ['gemini', 'gemini-cli', { access_token: 'ya29.t', expiry_date: 8e15 }],
  ]
  for (const [provider, format, content] of files) {
    const view = await one.logins.importFile(ME, { provider, format, content, project_id: 'mine' })
    t.equal(view.expires_at, null, format)
    await store.credentials.delete(ME, view.id)
  }
})

t.test('login files are taken over', async (t) => {
  const take = (provider: string, format: string, content: unknown) =>
    one.logins.importFile(ME, { provider, format, content })
  const tokens = {
    access_token: jwt({ exp: 4_000_000_000, 'https://api.openai.com/auth': { chatgpt_account_id: 'acc-1' } }),
    refresh_token: 'rt_imported',
  }
  const codex = await take('openai', 'codex', JSON.stringify({ OPENAI_API_KEY: null, tokens }))
  t.match(codex, { account_id: 'acc-1', expires_at: '2096-10-02T07:06:40.000Z', warning: /Codex CLI/ })
  const named = await take('openai', 'codex', { tokens: { ...tokens, account_id: 'acc-2' } })
  t.match(named, { account_id: 'acc-2' }, 'an object does as well, and the file’s own word counts')

  const claude = await take('anthropic', 'claude', {
    claudeAiOauth: {
      accessToken: 'sk-ant-oat01-x',
      refreshToken: 'sk-ant-ort01-x',
      expiresAt: 1_795_300_000_000,
    },
  })
  t.match(claude, { expires_at: '2026-11-21T22:26:40.000Z', warning: /does not permit/ })
  t.same(
    await sealedOf(world, claude.id),
    { access_token: 'sk-ant-oat01-x' },
    'its refresh token stays behind',
  )

  const profile = await take('anthropic', 'anthropic-profile', {
    type: 'oauth_token',
    access_token: 'sk-ant-oat01-p',
    refresh_token: 'sk-ant-ort01-p',
    expires_at: 1_795_300_000,
    workspace_id: 'wrkspc_1',
    authentication: { client_id: 'console-client' },
  })
  t.match(profile, { expires_at: '2026-11-21T22:26:40.000Z', workspace_id: 'wrkspc_1' })
  t.match(await sealedOf(world, profile.id), { client_id: 'console-client', refresh_token: 'sk-ant-ort01-p' })

  const { state, at } = await begun('gemini')
  const gemini = await one.logins.exchange(ME, 'gemini', { state, pasted: at.href })
  const { refresh_token } = await sealedOf(world, gemini.id)
  const spent = { access_token: 'ya29.old', refresh_token, expiry_date: 1_600_000_000_000 }
  const cli = await take('gemini', 'gemini-cli', spent)
  t.match(cli, { project_id: 'acme-dev-482910', path: 'code_assist', warning: /may suspend/ })
  const renewed = await sealedOf(world, cli.id)
  t.equal(renewed.refresh_token, refresh_token, 'a renewal that brings none keeps it')
  t.ok(google.isLive(renewed.access_token ?? ''))
  const given = await one.logins.importFile(ME, {
    provider: 'gemini',
    format: 'gemini-cli',
    content: { access_token: 'ya29.x', expiry_date: 4_000_000_000_000 },
    project_id: 'mine',
  })
  t.match(given, { project_id: 'mine' }, 'a project that is given is not asked for')

  t.match(await refusal(take('openai', 'claude', {})), invalid('format', /must be one of codex/))
  t.match(await refusal(take('openai', 'codex', 'no json')), invalid('content', /not JSON/))
  t.match(await refusal(take('openai', 'codex', '[]')), invalid('content', /JSON object/))
  t.match(await refusal(take('openai', 'codex', '{}')), invalid('content', /no tokens\.access_token/))
  t.match(
    await refusal(take('openai', 'codex', { OPENAI_API_KEY: 'sk-1' })),
    invalid('content', /kind api_key/),
  )
  t.match(await refusal(take('anthropic', 'claude', {})), invalid('content', /claudeAiOauth/))
  t.match(await refusal(take('anthropic', 'anthropic-profile', {})), invalid('content', /access_token/))
  t.match(await refusal(take('gemini', 'gemini-cli', {})), invalid('content', /keychain/))
  const dead = { access_token: 'ya29.x', refresh_token: '1//dead', expiry_date: 1_600_000_000_000 }
  t.match(await refusal(take('gemini', 'gemini-cli', dead)), invalid('content', /invalid_grant/))
  for (const { id } of (await one.credentials.list(ME, { limit: 100 })).data)
    await store.credentials.delete(ME, id)
})

t.test('a workload’s assertion stands in for a refresh token', async (t) => {
  const login = { provider: 'anthropic', kind: 'oauth' as const }
  const view = await one.credentials.create('me', { ...login, federation: { ...FEDERATION } })
  const chosen = await one.credentials.resolve('me', view.id, 'anthropic')
  t.match(await chosen.secret(), { access_token: /^sk-ant-oat01-acme-federated-/ })
  t.match(await chosen.secret(), { access_token: /federated-1$/ }, 'one exchange for as long as it lasts')
  await store.credentials.delete(ME, view.id)

  const missing = { assertion: 'a', organization_id: 'o' }
  t.match(
    await refusal(one.credentials.create('me', { ...login, federation: missing })),
    invalid('federation.federation_rule_id', /is required/),
  )
  t.match(
    await refusal(
      one.credentials.create('me', { ...login, provider: 'openai', federation: { ...FEDERATION } }),
    ),
    invalid('federation', /takes no federation/),
  )
  t.match(await refusal(one.credentials.create('me', login)), invalid('access_token', /is required/))
})

t.test('tokens that are given say who and until when by themselves', async (t) => {
  const access_token = jwt({
    exp: 4_000_000_000,
    'https://api.openai.com/auth': { chatgpt_account_id: 'acc-9' },
  })
  const view = await one.credentials.create('me', { provider: 'openai', kind: 'oauth', access_token })
  t.match(view, { account_id: 'acc-9', expires_at: '2096-10-02T07:06:40.000Z' })
  const own = { account_id: 'acc-1', expires_at: '2090-01-01T00:00:00.000Z' }
  const told = await one.credentials.create('me', { provider: 'openai', kind: 'oauth', access_token, ...own })
  t.match(told, own, 'but what the caller says counts')
  const org = jwt({ 'https://api.openai.com/auth': { chatgpt_account_id: 'org-1' } })
  const none = await one.credentials.create('me', { provider: 'openai', kind: 'oauth', access_token: org })
  t.notOk(none.account_id, 'an organisation is no account')
  for (const { id } of [view, told, none]) await store.credentials.delete(ME, id)
})

t.test('the emulated vendors refuse what the real ones refuse', async (t) => {
  const page = async (provider: string, change: (query: URLSearchParams) => void) => {
    const { authorization_url } = await one.logins.authorize(ME, provider, 'paste')
    const url = new URL(authorization_url)
    const query = new URLSearchParams(url.search)
    change(query)
    // A blank as %20, as the client sends it.
    return fetch(`${url.origin}${url.pathname}?${query.toString().replaceAll('+', '%20')}`, {
      redirect: 'manual',
    })
  }
  const changes: [string, (query: URLSearchParams) => void][] = [
    ['another client', (query) => query.set('client_id', 'x')],
    ['another address', (query) => query.set('redirect_uri', 'https://evil.example/cb')],
    ['no challenge', (query) => query.delete('code_challenge')],
    ['a plain challenge', (query) => query.set('code_challenge_method', 'plain')],
    ['no state', (query) => query.delete('state')],
    ['the challenge as state', (query) => query.set('state', query.get('code_challenge') ?? '')],
    ['no scope', (query) => query.delete('scope')],
  ]
  for (const provider of ['openai', 'anthropic', 'gemini']) {
    t.equal((await page(provider, () => {})).status, 302, provider)
    for (const [name, change] of changes)
      t.equal((await page(provider, change)).status, 400, `${provider}: ${name}`)
  }
  const plus = await one.logins.authorize(ME, 'openai', 'paste')
  t.equal((await fetch(plus.authorization_url.replaceAll('%20', '+'), { redirect: 'manual' })).status, 400)

  const token = async (fields: Record<string, string>) => {
    const { at } = await begun('gemini')
    const exact = {
      grant_type: 'authorization_code',
      client_id: 'emulated.apps.example.com',
      client_secret: 'emulated-client-secret',
      redirect_uri: at.origin + at.pathname,
      code: at.searchParams.get('code') ?? '',
      code_verifier: 'v'.repeat(43),
      ...fields,
    }
    const answer = await fetch(google.tokenUrl, { method: 'POST', body: new URLSearchParams(exact) })
    const { error } = (await answer.json()) as { error: string }
    return [answer.status, error]
  }
  t.same(await token({}), [400, 'invalid_grant'], 'a verifier that does not fit the challenge')
  t.same(await token({ client_secret: 'x' }), [401, 'invalid_client'])
  t.same(await token({ redirect_uri: 'http://127.0.0.1:1/' }), [400, 'redirect_uri_mismatch'])
  const form = new URLSearchParams({ grant_type: 'refresh_token', refresh_token: 'x', client_id: 'y' })
  t.equal(
    (await fetch(anthropic.tokenUrl, { method: 'POST', body: form })).status,
    400,
    'a form in place of JSON',
  )
})

t.test('pasted texts are read as people copy them', async (t) => {
  const read = (text: string) => Object.fromEntries(readPasted(text))
  t.same(read('"http://localhost:1455/auth/callback?code=c&state=s"'), { code: 'c', state: 's' })
  t.same(read('<https://x.test/cb#code=c&state=s>'), { code: 'c', state: 's' })
  t.same(read('http://[broken'), {})
  t.same(read('?error=access_denied&state=s'), { error: 'access_denied', state: 's' })
  t.same(read('4/0Ab_c-d#s'), { code: '4/0Ab_c-d', state: 's' })
  t.same(read('code'), { code: 'code' })
})

/** What of the API's answers is read here. */
interface Body {
  id: string
  state: string
  authorization_url: string
  error: { code: string }
}

t.test('over HTTP, a login serves a turn and is renewed in its middle', async (t) => {
  const [model, claude] = await Promise.all([createOpenAiEmulator(), createAnthropicEmulator()])
  const dataDir = mkdtempSync(join(tmpdir(), 'baton-login-'))
  const { config } = loadConfig(
    {
      BATON_DATA_DIR: dataDir,
      BATON_ENABLE_OAUTH: 'openai,anthropic',
      BATON_ANTHROPIC_BASE_URL: claude.baseUrl,
      BATON_ANTHROPIC_OAUTH_TOKEN_URL: anthropic.tokenUrl,
      BATON_ANTHROPIC_OAUTH_CLIENT_ID: CLIENT,
      BATON_OPENAI_OAUTH_ISSUER: openai.url,
      BATON_CHATGPT_BASE_URL: model.chatgptBaseUrl,
      BATON_LOG_LEVEL: 'fatal',
    },
    dataDir,
  )
  const app = await createApp(config)
  t.teardown(async () => {
    await app.close()
    await Promise.all([model.close(), claude.close()])
    rmSync(dataDir, { recursive: true, force: true })
  })
  const root = await app.http.listen({ host: '127.0.0.1', port: 0 })
  const call = async (method: string, path: string, body?: unknown) => {
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${root}/v1${path}`, {
      method,
      ...(body === undefined ? {} : { headers, body: JSON.stringify(body) }),
    })
    return { status: answer.status, body: (await answer.json()) as Body }
  }
  const login = await call('POST', '/oauth/openai/authorize', { mode: 'paste' })
  t.match(login, { status: 200, body: { mode: 'paste' } })
  const at = await visit(login.body.authorization_url)
  const { state } = login.body
  const made = await call('POST', '/oauth/openai/exchange', { state, pasted: at.href })
  t.match(made, { status: 200, body: { provider: 'openai', kind: 'oauth', account_id: ACCOUNT } })
  t.notMatch(JSON.stringify(made.body), /eyJ|rt_openai/, 'no token leaves')
  t.match(await call('GET', `/oauth/openai/status?state=${state}`), {
    body: { state: 'done', credential_id: made.body.id },
  })
  t.match(await call('POST', '/oauth/openai/exchange', { state, pasted: at.href }), { status: 400 })

  const session = await call('POST', '/sessions', { provider: 'openai', model: 'gpt-5.6-sol' })
  const turn = (input: string) => call('POST', `/sessions/${session.body.id}/turns`, { input, stream: false })
  t.match(await turn('say hello'), { status: 200, body: { output_text: 'hello' } })
  const used = String(model.requests.at(-1)?.headers.authorization).slice(7)
  model.revoke(used)
  const before = openai.renewals()
  t.match(await turn('say again'), { status: 200, body: { output_text: 'again' } })
  t.equal(openai.renewals() - before, 1)
  t.not(String(model.requests.at(-1)?.headers.authorization).slice(7), used)

  const ours = await begun('anthropic')
  const { id } = await one.logins.exchange(ME, 'anthropic', { state: ours.state, pasted: ours.at.href })
  const { access_token = '', refresh_token } = await sealedOf(world, id)
  const given = { provider: 'anthropic', kind: 'oauth', access_token, refresh_token }
  t.match(await call('POST', '/credentials', given), { status: 201 })
  await call('PATCH', `/sessions/${session.body.id}`, { provider: 'anthropic', model: 'claude-opus-5-5' })
  claude.refuse(access_token, 'revoked')
  const renewals = anthropic.renewals()
  t.match(
    await turn('say hi'),
    { status: 200, body: { output_text: 'hi' } },
    'a token revoked is as one expired',
  )
  t.equal(anthropic.renewals() - renewals, 1)
  await call('PATCH', `/sessions/${session.body.id}`, { provider: 'openai', model: 'gpt-5.6-sol' })

  for (const token of openai.live()) openai.revoke(token)
  model.revoke(String(model.requests.at(-1)?.headers.authorization).slice(7))
  const third = await turn('say more')
  t.equal(third.body.error.code, 'upstream_auth', 'a second refusal so soon is not cured by another renewal')
  const file = { tokens: { access_token: 'eyJ.x.y', refresh_token: 'rt_spent' } }
  const taken = await call('POST', '/credentials/import', {
    provider: 'openai',
    format: 'codex',
    content: file,
  })
  t.match(taken, { status: 201, body: { warning: /Codex CLI/, hint: '.x.y' } })
  model.revoke('eyJ.x.y')
  await call('PATCH', `/sessions/${session.body.id}`, { credential_id: taken.body.id })
  const dead = await turn('say more')
  t.match(dead, { status: 409, body: { error: { code: 'credential_needs_reauth' } } })
  t.match(await call('GET', `/credentials/${taken.body.id}`), {
    body: { state: 'needs_reauth', reason: /^refresh_token_invalidated: / },
  })
  t.match(await turn('say more'), { status: 409, body: { error: { code: 'credential_needs_reauth' } } })
})

/** Anthropic's API as one address: its token endpoint, and its models. */
async function anthropicApi(models: string): Promise<{ url: string; close(): Promise<void> }> {
  const server = createServer((incoming, response) => {
    const { url = '', method, headers } = incoming
    const to = url === '/v1/oauth/token' ? anthropic.url : models
    const outgoing = request(to + url, { method, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 500, answer.headers)
      answer.pipe(response)
    })
    incoming.pipe(outgoing)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

t.test(
  'the bearers that vendors mean for programs serve turns, and are renewed after a refusal',
  async (t) => {
    const [claude, model] = await Promise.all([createAnthropicEmulator(), createGeminiEmulator()])
    const api = await anthropicApi(claude.baseUrl)
    const dataDir = mkdtempSync(join(tmpdir(), 'baton-bearer-'))
    const env = {
      ...world.env,
      BATON_DATA_DIR: dataDir,
      BATON_ANTHROPIC_BASE_URL: api.url,
      BATON_GEMINI_BASE_URL: model.publicBaseUrl,
      BATON_LOG_LEVEL: 'fatal',
    }
    const app = await createApp(loadConfig(env, dataDir).config)
    t.teardown(async () => {
      await app.close()
      await Promise.all([claude.close(), model.close(), api.close()])
      rmSync(dataDir, { recursive: true, force: true })
    })
    const call = async (method: 'POST' | 'PATCH', url: string, payload: object) => {
      const answer = await app.http.inject({
        method,
        url: `/v1${url}`,
        headers: { host: 'localhost' },
        payload,
      })
      return { status: answer.statusCode, body: answer.json() as Body }
    }
    const { id: session } = (
      await call('POST', '/sessions', { provider: 'anthropic', model: 'claude-opus-5-5' })
    ).body
    const say = async (credential: Body, chat: object) => {
      t.match(await call('PATCH', `/sessions/${session}`, { ...chat, credential_id: credential.id }), {
        status: 200,
      })
      const answer = await call('POST', `/sessions/${session}/turns`, { input: 'say hi', stream: false })
      t.match(answer, { status: 200, body: { output_text: 'hi' } })
    }
    const opus = { provider: 'anthropic', model: 'claude-opus-5-5' }
    const sentTo = (emulator: typeof claude | typeof model) => emulator.requests.at(-1)?.headers ?? {}

    const bearer = { provider: 'anthropic', kind: 'oauth' }
    const workload = await call('POST', '/credentials', { ...bearer, federation: FEDERATION })
    t.equal(workload.status, 201)
    const exchanges = anthropic.federated()
    await say(workload.body, opus)
    const first = String(sentTo(claude).authorization)
    t.match(first, /^Bearer sk-ant-oat01-acme-federated-/)
    t.match(sentTo(claude)['anthropic-beta'], /oauth-2025-04-20/)
    t.notMatch(sentTo(claude)['anthropic-beta'], /oidc-federation/, 'that is for the exchange alone')
    claude.refuse(first.slice(7), 'expired')
    await say(workload.body, opus)
    t.not(sentTo(claude).authorization, first)
    t.equal(anthropic.federated() - exchanges, 2, 'exchanged once, and once more after the refusal')

    const ours = await begun('anthropic')
    const { id } = await one.logins.exchange(ME, 'anthropic', { state: ours.state, pasted: ours.at.href })
    const { access_token, refresh_token } = await sealedOf(world, id)
    const content = {
      type: 'oauth_token',
      access_token,
      refresh_token,
      expires_at: 1_500_000_000,
      workspace_id: 'wrkspc_1',
      authentication: { client_id: CLIENT },
    }
    const profile = await call('POST', '/credentials/import', {
      provider: 'anthropic',
      format: 'anthropic-profile',
      content,
    })
    t.equal(profile.status, 201, JSON.stringify(profile.body))
    await say(profile.body, opus)
    t.match(sentTo(claude), { authorization: /^Bearer sk-ant-oat01-/, 'anthropic-workspace-id': 'wrkspc_1' })
    t.not(
      sentTo(claude).authorization,
      `Bearer ${access_token}`,
      'it had ended, and was renewed at the API itself',
    )

    const wish = { mode: 'paste', path: 'public', quota_project: 'billed-project' }
    const login = await call('POST', '/oauth/gemini/authorize', wish)
    const at = await visit(login.body.authorization_url)
    const { state } = login.body
    const own = await call('POST', '/oauth/gemini/exchange', { state, pasted: at.href })
    t.match(own, { status: 200, body: { path: 'public', quota_project: 'billed-project' } })
    const flash = { provider: 'gemini', model: 'gemini-3.8-flash' }
    await say(own.body, flash)
    t.match(sentTo(model), { authorization: /^Bearer ya29\./, 'x-goog-user-project': 'billed-project' })
    t.notOk(sentTo(model)['x-goog-api-key'])
    t.match(model.requests.at(-1)?.path, /^\/v1beta\/models\/gemini-3\.8-flash:/)
    const spent = String(sentTo(model).authorization)
    model.revoke(spent.slice(7))
    await say(own.body, flash)
    t.not(sentTo(model).authorization, spent)
  },
)

t.test('no secret is in any log line or error', async (t) => {
  const said = logged.join('\n')
  t.match(said, /login failed/)
  for (const secret of [
    'rt_openai',
    'sk-ant-o',
    'ya29.',
    '1//',
    'eyJ',
    'code_verifier',
    'emulated-client-secret',
  ]) {
    t.notOk(said.includes(secret), secret)
  }
  const { state, at } = await begun('gemini')
  const code = at.searchParams.get('code') ?? ''
  google.answer({
    status: 400,
    body: { error: 'invalid_grant', error_description: `Malformed auth code ${code}` },
  })
  const refused = await refusal(one.logins.exchange(ME, 'gemini', { state, code }))
  t.match(refused.message, /Malformed auth code \*\*\*/)
  t.notMatch(JSON.stringify(refused.details), code)
})
