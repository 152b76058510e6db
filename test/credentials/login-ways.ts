/** The ways to a login beside pasting: loopback, the gateway's own callback, a device, files, workloads, given tokens. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import { connect } from 'node:net'
import t from 'tap'
import { openaiLogins } from '../../providers/openai/oauth.ts'
import { createLoopback } from '../../src/credentials/logins/loopback.ts'
import { within } from '../../src/within.ts'
import { jwt } from '../emulators/oauth.ts'
import { FEDERATION } from '../emulators/oauth-anthropic.ts'
import { freePort } from '../servers.ts'
import { eventually, gate } from '../waiting.ts'
import { world } from './shared-world.ts'
import { invalid, loggedIn, ME, OTHER, refusal, sealedOf, visit } from './world.ts'

const { store, openai, google } = world
const one = world.replica()
const two = world.replica()

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
  for (const provider of ['openai', 'anthropic']) {
    const { authorization_url } = await local.logins.authorize(ME, provider, null)
    const redirect = new URL(authorization_url).searchParams.get('redirect_uri')
    t.match(
      redirect,
      /^http:\/\/localhost:\d+\/(auth\/)?callback$/,
      'the vendor takes no other path, not even the gateway’s own',
    )
  }
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
    const look = await fetch(at.href.replace('localhost', '127.0.0.1'), { method: 'HEAD' })
    t.equal(look.status, 404, 'a look at the address uses no code up')
    const page = await fetch(at.href.replace('localhost', '127.0.0.1'))
    t.equal(page.status, 200)
    t.match(await page.text(), /You are logged in/)
    t.match(page.headers.get('content-security-policy'), "default-src 'none'")
    t.match(page.headers.get('referrer-policy'), 'no-referrer')
    t.equal(page.headers.get('cache-control'), 'no-store', 'the address of the page holds a code')
    const { state, credential_id = '' } = await replica.logins.status(ME, provider, login.state)
    t.equal(state, 'done')
    await t.rejects(fetch(at.href.replace('localhost', '127.0.0.1')), 'nobody listens any more')
    await store.credentials.delete(ME, credential_id)
  }
})

t.test('a busy port is passed over; if all ports are busy, the error says so', async (t) => {
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
  await new Promise((resolve) => squatters[1]?.close(resolve))
  const late = await blocked.logins.authorize(ME, 'openai', 'loopback')
  t.match(
    new URL(late.authorization_url).searchParams.get('redirect_uri'),
    String(second),
    'the port is free again',
  )
})

t.test('a login that cannot begin leaves its port free', async (t) => {
  const port = await freePort()
  const full = { ...store, logins: { ...store.logins, create: async () => null } }
  const replica = world.replica({ ports: [port], store: full })
  t.teardown(() => replica.close())
  t.match(await refusal(replica.logins.authorize(ME, 'openai', 'loopback')), { code: 'rate_limited' })
  await t.rejects(fetch(`http://127.0.0.1:${port}/auth/callback`))
})

const done = async () => ({ status: 200, html: 'done' }) as const

t.test('logins that begin at once share a port', async (t) => {
  const loopback = createLoopback(done)
  t.teardown(() => loopback.close())
  const port = await freePort()
  const vendor = {
    provider: 'openai',
    loopback: { host: 'localhost', ports: [port], path: '/auth', anyPath: false },
  } as const
  const hold = (login: string) => loopback.hold(login, vendor, 60)
  const addresses = await Promise.all(['a', 'b', 'c'].map(hold))
  t.same(new Set(addresses), new Set([`http://localhost:${port}/auth`]))
  const answers = async () => (await fetch(`http://127.0.0.1:${port}/auth`)).text()
  loopback.release('a')
  loopback.release('b')
  t.equal(await answers(), 'done', 'the port is held as long as one of the logins needs it')
  loopback.release('c')
  await t.rejects(answers())
  await hold('d')
  t.equal(await answers(), 'done', 'the port is held again for the next login')
  loopback.release('d')
  await loopback.hold('e', vendor, 0.05)
  const closed = await eventually(
    () => answers().catch(() => 'closed'),
    (answer) => answer === 'closed',
  )
  t.equal(closed, 'closed', 'the port is held no longer than a login may take')
})

const VENDOR = {
  provider: 'openai',
  loopback: { host: '127.0.0.1', ports: [], path: '/auth', anyPath: false },
} as const

t.test('a spare connection that a browser has opened ends with its login', async (t) => {
  const loopback = createLoopback(done)
  const address = await loopback.hold('a', VENDOR, 60)
  const spare = connect(Number(new URL(address).port), '127.0.0.1')
  t.teardown(() => spare.destroy())
  await once(spare, 'connect')
  t.equal(await (await fetch(address)).text(), 'done')
  const ended = once(spare, 'close').then(() => 'ended')
  loopback.release('a')
  t.equal(await within(5_000, ended), 'ended')
})

t.test('a login whose answer has come is finished before its listener closes', async (t) => {
  const { opened: granted, open: grant } = gate()
  const { opened: arrived, open: arrive } = gate()
  const loopback = createLoopback(async () => {
    arrive()
    await granted
    return done()
  })
  const address = await loopback.hold('a', VENDOR, 60)
  const page = fetch(address).then((answer) => answer.text())
  await arrived
  let isClosed = false
  const closing = loopback.close().then(() => {
    isClosed = true
  })
  await new Promise(setImmediate)
  t.notOk(isClosed)
  grant()
  t.equal(await page, 'done')
  await closing
})

t.test('the gateway’s own callback serves vendors that take any address', async (t) => {
  const replica = world.replica({ ownUrl: 'http://127.0.0.1:8787' })
  const login = await replica.logins.authorize(ME, 'gemini', null)
  const at = await visit(login.authorization_url)
  t.equal(at.origin + at.pathname, 'http://127.0.0.1:8787/v1/oauth/callback/gemini')
  const query = Object.fromEntries(at.searchParams)
  const wrong = { ...query, iss: 'https://evil.example' }
  t.match(await two.logins.callback('gemini', wrong), { status: 400, html: /does not fit this login/ })

  const again = await replica.logins.authorize(ME, 'gemini', null)
  const answer = Object.fromEntries((await visit(again.authorization_url)).searchParams)
  t.match(await two.logins.callback('gemini', answer), { status: 200, html: /You are logged in/ })
  const { credential_id = '' } = await two.logins.status(ME, 'gemini', again.state)
  t.ok(await store.credentials.delete(ME, credential_id))
  const page = await two.logins.callback('gemini', answer)
  t.match(page, { status: 400, html: /complete already/ }, 'a second visit redeems nothing')
  t.notMatch(page.html, /did not succeed/, 'nor does it say that the first one failed')
})

t.test('a device login ends once a person has granted or denied it', async (t) => {
  const denied = await one.logins.authorize(ME, 'openai', 'device')
  openai.denyDevice(denied.user_code ?? '')
  const login = await one.logins.authorize(ME, 'openai', 'device')
  t.match(login, { mode: 'device', user_code: /^ABCD-/, authorization_url: /\/codex\/device$/ })
  t.match(
    await refusal(one.logins.exchange(ME, 'openai', { state: login.state, code: 'c' })),
    invalid('state', /ends by itself/),
  )
  t.match(await one.logins.status(ME, 'openai', login.state), { state: 'pending' })
  openai.grantDevice(login.user_code ?? '')
  const over = ({ state }: { state: string }) =>
    eventually(
      () => one.logins.status(ME, 'openai', state),
      (status) => status.state !== 'pending',
    )
  const done = await over(login)
  t.match(done, { state: 'done' })
  t.match(await over(denied), { state: 'failed', error: /refused the device login \(access_denied\)/ })
  t.notMatch(world.logged.join('\n'), /no longer watched/, 'a denial is no failure of the watch')
  t.ok(await store.credentials.delete(ME, done.credential_id ?? ''))
})

t.test('a device login ends even if nobody asks for its status', async (t) => {
  const before = Date.now()
  const { user_code = '', expires_at } = await one.logins.authorize(ME, 'openai', 'device')
  t.ok(Math.abs(Date.parse(expires_at) - before - 900_000) < 30_000, 'the login has fifteen minutes')
  openai.grantDevice(user_code)
  const [made] = await eventually(
    async () => (await store.credentials.list(ME, { limit: 1 })).data,
    ([latest]) => latest?.provider === 'openai',
  )
  t.ok(await store.credentials.delete(ME, made?.id ?? ''))
})

t.test('another replica goes on with a device login whose first replica is gone', async (t) => {
  const first = world.replica()
  const login = await first.logins.authorize(ME, 'openai', 'device')
  await first.close()
  openai.grantDevice(login.user_code ?? '')
  const done = await eventually(
    () => two.logins.status(ME, 'openai', login.state),
    ({ state }) => state !== 'pending',
  )
  t.match(done, { state: 'done' })
  await store.credentials.delete(ME, done.credential_id ?? '')
})

t.test('a device login is refused where the vendor says that it offers none', async (t) => {
  openai.offerDevices(false)
  t.match(
    await refusal(one.logins.authorize(ME, 'openai', null)),
    invalid('mode', /does not offer device logins/),
  )
  openai.offerDevices(true)
})

t.test('a device login that was denied or has expired ends, whatever the HTTP status of the answer', (t) => {
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

t.test('a login file with an impossible expiry is imported without an expiry', async (t) => {
  const milliseconds = 1_795_300_000_000
  const files: [provider: string, format: string, content: object][] = [
    ['anthropic', 'anthropic-profile', { access_token: 'sk-ant-oat01-t', expires_at: milliseconds }],
    ['anthropic', 'claude', { claudeAiOauth: { accessToken: 'sk-ant-oat01-t', expiresAt: 8e15 } }],
    ['openai', 'codex', { tokens: { access_token: jwt({ exp: milliseconds }) } }],
    ['gemini', 'gemini-cli', { access_token: 'ya29.t', expiry_date: 8e15 }],
  ]
  for (const [provider, format, content] of files) {
    const project = provider === 'gemini' ? { project_id: 'mine' } : {}
    const view = await one.logins.importFile(ME, { provider, format, content, ...project })
    t.equal(view.expires_at, null, format)
    await store.credentials.delete(ME, view.id)
  }
})

t.test('a project can be given with a login file of Google only', async (t) => {
  const take = (provider: string, format: string, content: object) =>
    one.logins.importFile(ME, { provider, format, content, project_id: 'mine' })
  const view = await take('gemini', 'gemini-cli', { access_token: 'ya29.t' })
  t.equal(view.project_id, 'mine')
  await store.credentials.delete(ME, view.id)
  const other = refusal(take('openai', 'codex', { tokens: { access_token: 'at' } }))
  t.match(await other, invalid('project_id', /openai logins take no project_id/))
})

t.test('a field of a login file has the same bounds as in a login that is given by hand', async (t) => {
  const take = (content: unknown) =>
    one.logins.importFile(ME, { provider: 'openai', format: 'codex', content })
  const access_token = jwt({ exp: 4_000_000_000 })
  for (const [name, tokens] of [
    ['account_id', { access_token, account_id: 'a\nb' }],
    ['account_id', { access_token, account_id: 'ünï' }],
    ['access_token', { access_token: 'at\0' }],
    ['refresh_token', { access_token, refresh_token: 'r'.repeat(20_000) }],
  ] as const) {
    t.match(await refusal(take({ tokens })), invalid('content', new RegExp(`${name} must be printable`)))
  }
  const view = await take(`\uFEFF${JSON.stringify({ tokens: { access_token } })}`)
  t.match(view, { provider: 'openai' }, 'a byte order mark is passed over')
  await store.credentials.delete(ME, view.id)
})

t.test('login files of other programs are imported', async (t) => {
  const take = (provider: string, format: string, content: unknown) =>
    one.logins.importFile(ME, { provider, format, content })
  const tokens = {
    access_token: jwt({ exp: 4_000_000_000, 'https://api.openai.com/auth': { chatgpt_account_id: 'acc-1' } }),
    refresh_token: 'rt_imported',
  }
  const codex = await take('openai', 'codex', JSON.stringify({ OPENAI_API_KEY: null, tokens }))
  t.match(codex, { account_id: 'acc-1', expires_at: '2096-10-02T07:06:40.000Z', warning: /Codex CLI/ })
  const named = await take('openai', 'codex', { tokens: { ...tokens, account_id: 'acc-2' } })
  t.match(
    named,
    { account_id: 'acc-2' },
    'the content may be an object, and the account that the file names counts',
  )

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

  const gemini = await loggedIn(one, 'gemini')
  const { refresh_token } = await sealedOf(world, gemini.id)
  const spent = { access_token: 'ya29.old', refresh_token, expiry_date: 1_600_000_000_000 }
  const cli = await take('gemini', 'gemini-cli', spent)
  t.match(cli, { project_id: 'acme-dev-482910', path: 'code_assist', warning: /may suspend/ })
  const renewed = await sealedOf(world, cli.id)
  t.equal(renewed.refresh_token, refresh_token, 'a renewal that brings no refresh token keeps the former one')
  t.ok(google.isLive(renewed.access_token ?? ''))
  const given = await one.logins.importFile(ME, {
    provider: 'gemini',
    format: 'gemini-cli',
    content: { access_token: 'ya29.x', expiry_date: 4_000_000_000_000 },
    project_id: 'mine',
  })
  t.match(given, { project_id: 'mine' }, 'Google is not asked for a project that is given')

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

t.test('a login file that holds a refresh token alone is renewed when it is imported', async (t) => {
  const { id } = await loggedIn(one, 'gemini')
  const { refresh_token } = await sealedOf(world, id)
  await store.credentials.delete(ME, id)
  const content = { refresh_token }
  const view = await one.logins.importFile(ME, { provider: 'gemini', format: 'gemini-cli', content })
  t.match(view, { state: 'active', project_id: 'acme-dev-482910' })
  t.ok(google.isLive((await sealedOf(world, view.id)).access_token ?? ''))
  await store.credentials.delete(ME, view.id)
})

t.test('a workload’s assertion stands in for a refresh token', async (t) => {
  const login = { provider: 'anthropic', kind: 'oauth' as const }
  const view = await one.credentials.create('me', { ...login, federation: { ...FEDERATION } })
  const chosen = await one.choice.resolve(
    { owner: 'me', provider: 'anthropic', credential_id: view.id },
    'anthropic',
  )
  t.match(await chosen.secret(), { access_token: /^sk-ant-oat01-acme-federated-/ })
  t.match(
    await chosen.secret(),
    { access_token: /federated-1$/ },
    'one exchange serves for as long as its token lasts',
  )
  await store.credentials.delete(ME, view.id)

  t.match(
    await refusal(
      one.credentials.create('me', { ...login, provider: 'openai', federation: { ...FEDERATION } }),
    ),
    invalid('federation', /takes no federation/),
  )
  t.match(await refusal(one.credentials.create('me', login)), invalid('access_token', /is required/))
})

t.test('a given token names its account and expiry itself, unless the caller names them', async (t) => {
  const access_token = jwt({
    exp: 4_000_000_000,
    'https://api.openai.com/auth': { chatgpt_account_id: 'acc-9' },
  })
  const view = await one.credentials.create('me', { provider: 'openai', kind: 'oauth', access_token })
  t.match(view, { account_id: 'acc-9', expires_at: '2096-10-02T07:06:40.000Z' })
  const own = { account_id: 'acc-1', expires_at: '2090-01-01T00:00:00.000Z' }
  const told = await one.credentials.create('me', { provider: 'openai', kind: 'oauth', access_token, ...own })
  t.match(told, own, 'the account and expiry that the caller names count')
  const org = jwt({ 'https://api.openai.com/auth': { chatgpt_account_id: 'org-1' } })
  const none = await one.credentials.create('me', { provider: 'openai', kind: 'oauth', access_token: org })
  t.notOk(none.account_id, 'an organisation is no account')
  const claim = { chatgpt_account_id: 'acc-2', chatgpt_account_is_fedramp: true }
  const government = jwt({ 'https://api.openai.com/auth': claim })
  const fenced = await one.credentials.create('me', {
    provider: 'openai',
    kind: 'oauth',
    access_token: government,
  })
  const facts = async ({ id }: { id: string }) => (await store.credentials.get(ME, id))?.facts
  t.same(await facts(fenced), { account_id: 'acc-2', fedramp: 'true' })
  t.same(await facts(view), { account_id: 'acc-9' })
  for (const { id } of [view, told, none, fenced]) await store.credentials.delete(ME, id)
})
