/**
 * Logins by paste, and what holds for every login, against emulated vendors that refuse what the real ones refuse. The
 * other tests that want such a world are its parts: they share it.
 */
import t from 'tap'
import { createPendingLogins } from '../../src/credentials/logins/pending.ts'
import { sleepFor } from '../../src/credentials/renew-once.ts'
import { createVault } from '../../src/credentials/vault.ts'
import { ACCOUNT } from '../emulators/oauth-openai.ts'
import { gate } from '../waiting.ts'
import './away.ts'
import './choose.ts'
import './login-refusals.ts'
import './login-ways.ts'
import './logins-over-http.ts'
import { world } from './shared-world.ts'
import { begun, invalid, loggedIn, ME, noSecretIn, OTHER, refusal, sealedOf, visit } from './world.ts'

const { store, openai, anthropic, google, logged } = world
const one = world.replica()
const two = world.replica()

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
      const { state, at } = await begun(one, provider)
      const view = await two.logins.exchange(ME, provider, { state, ...form(at, state) })
      t.match(view, { provider, kind: 'oauth', state: 'active', owner: 'me', origin: 'api' })
      t.match(await one.logins.status(ME, provider, state), { state: 'done', credential_id: view.id })
      await store.credentials.delete(ME, view.id)
    }
  }
})

t.test('a login whose encryption key was taken out meanwhile must be begun anew', async (t) => {
  const keys = ['k1', 'k2'].map((id, i) => createVault([{ id, key: new Uint8Array(32).fill(i + 1) }]))
  const [before, after] = keys.map((vault) => createPendingLogins(store, vault, sleepFor))
  const begun = {
    owner: ME.owner,
    provider: 'openai',
    mode: 'paste',
    redirect_uri: 'http://x',
    seconds: 60,
  } as const
  const login = await before?.begin({ ...begun, state: 'of-the-old-key', kept: {} })
  if (!login) return t.fail('not begun')
  t.throws(() => after?.kept(login), invalid('state', /begin a new one/))
})

t.test('a login keeps the account, the name and the expiry that the vendor tells', async (t) => {
  const chatgpt = await loggedIn(one, 'openai')
  t.match(chatgpt, { account_id: ACCOUNT, name: 'zoë@example.com' })
  const days = (Date.parse(chatgpt.expires_at ?? '') - Date.now()) / 86_400_000
  t.equal(Math.round(days), 10)
  const secret = await sealedOf(world, chatgpt.id)
  t.ok(openai.isLive(secret.access_token ?? ''))
  t.match(secret, { refresh_token: /^rt_/, id_token: /^ey/, client_id: /^app_/ })
  t.equal(chatgpt.hint, secret.access_token?.slice(-4))

  const claude = await loggedIn(one, 'anthropic')
  t.match(claude, { name: 'me@example.com' })
  t.ok(anthropic.isLive((await sealedOf(world, claude.id)).access_token ?? ''))

  const gemini = await loggedIn(one, 'gemini')
  t.match(gemini, { name: 'me@example.com', path: 'code_assist', project_id: 'acme-dev-482910' })
  for (const { id } of [chatgpt, claude, gemini]) await store.credentials.delete(ME, id)
})

t.test('a state is accepted once, from its owner, at its provider, and in time', async (t) => {
  const { state, at } = await begun(one, 'openai')
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
  for (const query of [{ code: 'c', state: 'guess' }, { code: 'c' }]) {
    t.match(await one.logins.callback('openai', query), { status: 400, html: /No login of yours/ })
  }
  t.match(await one.logins.status({ owner: 'root', admin: true }, 'openai', state), { state: 'pending' })

  const other = await begun(one, 'openai')
  t.match(
    await refusal(one.logins.exchange(ME, 'openai', { state, pasted: other.at.href })),
    invalid('pasted', /belongs to another login/),
  )
  for (const text of ['', 'https://example.com/?x=1', 'state=abc', 'Copy this code: abc']) {
    t.match(await refusal(one.logins.exchange(ME, 'openai', { state, pasted: text })), {
      code: 'invalid_request',
    })
  }

  const both = await Promise.allSettled(
    [one, two].map(({ logins }) => logins.exchange(ME, 'openai', { state, pasted })),
  )
  t.same(
    both.map(({ status }) => status).sort(),
    ['fulfilled', 'rejected'],
    'of two calls at once one is served',
  )
  t.match(
    both.find(({ status }) => status === 'rejected'),
    { reason: invalid('state', /is being finished/) },
  )
  t.match(
    await refusal(two.logins.exchange(ME, 'openai', { state, pasted })),
    invalid('state', /complete already/),
  )

  const wrong = await begun(one, 'anthropic')
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
  const pastedWrong = (await begun(one, 'anthropic')).state
  t.match(
    await refusal(one.logins.exchange(ME, 'anthropic', { state: pastedWrong, pasted: 'no-such-code' })),
    invalid('pasted', /did not take the code/),
    'the field at fault is the one that was given',
  )

  const short = world.replica({
    store: {
      ...store,
      logins: {
        ...store.logins,
        create: (login, most) => store.logins.create({ ...login, seconds: 0 }, most),
      },
    },
  })
  const late = await begun(short, 'openai')
  t.match(await one.logins.status(ME, 'openai', late.state), { state: 'expired' })
  t.match(
    await refusal(one.logins.exchange(ME, 'openai', { state: late.state, pasted: late.at.href })),
    invalid('state', /took too long/),
  )
  t.match(await one.logins.callback('openai', Object.fromEntries(late.at.searchParams)), {
    status: 400,
    html: /took too long/,
  })
})

t.test('a caller who comes again while a login is being finished is not told to begin anew', async (t) => {
  const { state, at } = await begun(one, 'openai')
  const answered = gate()
  const asked = openai.request(openai.requests.length)
  openai.hold(answered.opened)
  const finished = one.logins.exchange(ME, 'openai', { state, pasted: at.href })
  await asked
  const again = await two.logins.callback('openai', Object.fromEntries(at.searchParams))
  t.match(again, { status: 400, html: /is being finished/ })
  answered.open()
  const view = await finished
  t.match(await two.logins.status(ME, 'openai', state), { state: 'done', credential_id: view.id })
  await store.credentials.delete(ME, view.id)
})

t.test('a login whose outcome cannot be written down counts all the same', async (t) => {
  const outcomes = new Set<string>()
  const shaky = world.replica({
    sleep: async () => {},
    store: {
      ...store,
      logins: {
        ...store.logins,
        async finish(_, outcome) {
          outcomes.add(JSON.stringify(outcome))
          throw new Error('deadlock detected')
        },
      },
    },
  })
  const view = await loggedIn(shaky, 'openai')
  t.match(view, { state: 'active' })
  t.same([...outcomes], [JSON.stringify({ credential_id: view.id })], 'the login is not called a failure')
  await store.credentials.delete(ME, view.id)
  anthropic.answer({ status: 400, body: { error: 'invalid_grant', error_description: 'Invalid code.' } })
  t.match(
    await refusal(loggedIn(shaky, 'anthropic')),
    { message: /Invalid code/ },
    'a login that failed says why',
  )
})

t.test('the status of a login that failed by a fault within Baton does not tell the fault', async (t) => {
  const create = () => Promise.reject(new Error('column "secret" is out of space'))
  const broken = world.replica({ store: { ...store, credentials: { ...store.credentials, create } } })
  const { state, at } = await begun(broken, 'openai')
  await t.rejects(broken.logins.exchange(ME, 'openai', { state, pasted: at.href }))
  t.same(await one.logins.status(ME, 'openai', state), {
    state: 'failed',
    error: 'An internal error occurred.',
  })
})

t.test('a login that begins deletes old logins whose outcome nobody asks for any more', async (t) => {
  const stale = {
    owner: ME.owner,
    provider: 'openai',
    mode: 'paste',
    redirect_uri: '',
    sealed: Buffer.of(1),
  } as const
  await store.logins.create({ ...stale, state_hash: 'stale', seconds: -90_000 }, 100)
  await store.logins.create({ ...stale, state_hash: 'ended', seconds: -80_000 }, 100)
  await one.logins.authorize(ME, 'openai', 'paste')
  t.equal(await store.logins.get('stale'), null)
  t.ok(await store.logins.get('ended'), 'an outcome is kept for a day')
})

t.test('logins are off until the operator names the vendor, and need a client', async (t) => {
  const off = world.replica({ env: { BATON_ENABLE_OAUTH: 'openai' } })
  t.match(await refusal(off.logins.authorize(ME, 'gemini', null)), {
    code: 'oauth_not_enabled',
    message: /by naming gemini in BATON_ENABLE_OAUTH/,
  })
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
  t.equal(
    new URL(login.authorization_url).searchParams.get('originator'),
    'baton',
    'Baton names itself as the originator',
  )
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
    const choices = project_id === undefined ? {} : { project_id }
    const { authorization_url, state } = await quick.logins.authorize(ME, 'gemini', 'paste', choices)
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

  google.pending(1)
  google.operation({ status: 503, body: { error: { code: 503, message: 'Busy.', status: 'UNAVAILABLE' } } })
  t.match(await login(), { project_id: 'core-gravity-a1b2c' }, 'a poll that fails is not the end')
  const over = (outcome: object) => google.operation({ status: 200, body: { done: true, ...outcome } })
  over({ error: { code: 7, message: 'The caller does not have permission' } })
  t.match(await refusal(login()), {
    code: 'upstream_auth',
    message: /The caller does not have permission/,
    details: { upstream: { status: 403 } },
  })
  over({ response: {} })
  t.match(
    await login('acme-dev'),
    { project_id: 'acme-dev' },
    'Google named no project, so the given one counts',
  )
  t.match(
    await login('acme-dev'),
    { project_id: 'core-gravity-a1b2c' },
    'else the project that Google named counts',
  )
  google.pending(25)
  t.match(await refusal(login()), { code: 'upstream_timeout' }, 'the operation is not asked for ever')
  google.operation({ status: 200, body: {} })
  t.match(await login('acme-dev'), { project_id: 'acme-dev' }, 'an operation without a name is over')
  const ineligibleTiers = [{ reasonCode: 'RESTRICTED_AGE', reasonMessage: 'Not at this age.' }]
  google.account({ status: 200, body: { ineligibleTiers } })
  google.operation({ status: 200, body: {} })
  t.match(await refusal(login()), { code: 'upstream_auth', message: /Not at this age/ })
  google.pending(1)
  google.operation({ status: 200, body: {} })
  t.match(await login(), { project_id: 'core-gravity-a1b2c' }, 'a poll need not repeat the name')
  google.account({ status: 200, body: { currentTier: { name: 'Standard' }, cloudaicompanionProject: 'p-1' } })
  t.match(await login(), { project_id: 'p-1' }, 'a tier counts without its id')
  google.account({ status: 200, body: {} })
  t.match(await login(), { project_id: 'core-gravity-a1b2c' }, 'an account without tiers has the legacy one')

  const details = [{ '@type': 'x/google.rpc.ErrorInfo', reason: 'SECURITY_POLICY_VIOLATED' }]
  const error = { code: 403, status: 'PERMISSION_DENIED', message: 'Prohibited.', details }
  google.account({ status: 403, body: { error } })
  t.match(await login('acme-dev'), { project_id: 'acme-dev' }, 'VPC Service Controls hide a paid tier')
  t.match(await refusal(login()), invalid('project_id', /needs a Google Cloud project/))
  const stranger = {
    code: 403,
    status: 'PERMISSION_DENIED',
    message: 'Permission denied on resource acme-dev.',
  }
  google.account({ status: 403, body: { error: stranger } })
  t.match(await refusal(login('acme-dev')), { message: /on resource acme-dev/ }, 'a project is no secret')

  google.account('load-code-assist-needs-project')
  t.match(await refusal(login()), invalid('project_id', /needs a Google Cloud project/))
  t.match(await refusal(login('482910553377')), invalid('project_id', /number/))
  t.match(await login('acme-dev'), { project_id: 'acme-dev' })

  google.account('load-code-assist-unsupported-client')
  const before = google.requests.length
  t.match(await refusal(login()), { code: 'upstream_auth', message: /API key instead/ })
  t.notOk(
    google.requests.slice(before).some(({ path }) => path.includes('onboardUser')),
    'the account is not onboarded',
  )
  google.account('load-code-assist-validation-required')
  t.match(await refusal(login()), { code: 'upstream_auth', message: /accounts\.google\.com\/signin/ })
  google.account('load-code-assist')
})

t.test('an owner has at most a hundred logins under way', async (t) => {
  const busy = { owner: 'busy', admin: false }
  for (let count = 0; count < 100; count++) await one.logins.authorize(busy, 'openai', 'paste')
  t.match(await refusal(one.logins.authorize(busy, 'openai', 'paste')), { code: 'rate_limited' })
})

t.test('a new login takes the place of a default credential that needed a login', async (t) => {
  const { data: earlier } = await store.credentials.list(ME, { limit: 100 })
  for (const { id } of earlier) await store.credentials.delete(ME, id)
  const old = await loggedIn(one, 'openai')
  t.equal(old.default, false)
  await store.credentials.fail(old.id, 1, 'refresh_token_reused')
  const beside = await loggedIn(one, 'openai')
  t.equal(beside.default, false, 'no default, no successor')
  await one.credentials.update(ME, old.id, { default: true })
  const view = await loggedIn(one, 'openai')
  t.equal(view.default, true)
  t.equal(
    (await one.choice.resolve({ owner: 'me', provider: 'openai', credential_id: null }, 'openai')).facts.id,
    view.id,
  )
  const another = await loggedIn(one, 'openai')
  t.equal(another.default, false, 'a default credential that works stays')
  for (const { id } of [old, beside, view, another]) await store.credentials.delete(ME, id)
})

t.test('no secret is in any log line', async (t) => noSecretIn(t, logged))
