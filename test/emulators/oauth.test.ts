/** What the emulated login services refuse, each provoked. */
import { createHash } from 'node:crypto'
import t, { type Test } from 'tap'
import type { LoginEmulator } from './oauth.ts'
import { CLIENT as ANTHROPIC, createAnthropicLogins, FEDERATION } from './oauth-anthropic.ts'
import { createGoogleLogins, CLIENT as GOOGLE, SECRET } from './oauth-google.ts'
import { createOpenAiLogins } from './oauth-openai.ts'

type Fields = Record<string, string>

const VERIFIER = 'v'.repeat(43)
const STATE = 's'.repeat(22)

/** A vendor's login with the fields of a correct client. */
interface Login {
  emulator: LoginEmulator
  authorize: string
  token: string
  encoding: 'json' | 'form'
  query: Fields
  /** Fields in every call of the token endpoint */
  client: Fields
  /** Fields in a code exchange besides those of every vendor */
  exchange: Fields
}

async function ask(url: string, encoding: 'json' | 'form', fields: Fields, headers: Fields = {}) {
  const isJson = encoding === 'json'
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'content-type': isJson ? 'application/json' : 'application/x-www-form-urlencoded',
      ...headers,
    },
    body: isJson ? JSON.stringify(fields) : new URLSearchParams(fields).toString(),
  })
  const text = await response.text()
  return { status: response.status, text, json: text.startsWith('{') ? JSON.parse(text) : {} }
}

function begin({ authorize, query }: Login, change: Fields = {}) {
  const asked = Object.entries({ ...query, ...change })
  const pairs = asked.map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
  return fetch(`${authorize}?${pairs.join('&')}`, { redirect: 'manual' })
}

/** Redeems a new code; `change`: fields with wrong values. */
async function redeem(login: Login, change: Fields = {}, encoding = login.encoding) {
  const { headers } = await begin(login)
  const { searchParams } = new URL(headers.get('location') ?? '')
  const fields = {
    grant_type: 'authorization_code',
    code: searchParams.get('code') ?? '',
    redirect_uri: login.query.redirect_uri ?? '',
    code_verifier: VERIFIER,
    ...login.client,
    ...login.exchange,
    ...change,
  }
  return { fields, ...(await ask(login.token, encoding, fields)) }
}

const renew = (login: Login, refresh_token: string, change: Fields = {}) =>
  ask(login.token, login.encoding, {
    grant_type: 'refresh_token',
    refresh_token,
    ...login.client,
    ...change,
  })

const asked = (client_id: string, redirect_uri: string, scope: string, more: Fields): Fields => ({
  response_type: 'code',
  client_id,
  redirect_uri,
  scope,
  state: STATE,
  code_challenge: createHash('sha256').update(VERIFIER).digest('base64url'),
  code_challenge_method: 'S256',
  ...more,
})

/** Checks what every vendor refuses at the authorize page and in a code exchange. */
async function refusesWhatAllRefuse(t: Test, login: Login): Promise<void> {
  const own = Object.keys(login.query).filter((name) => !(name in asked('', '', '', {})))
  const changes: Fields[] = [
    { client_id: 'another' },
    { redirect_uri: 'https://elsewhere.example/callback' },
    { response_type: 'token' },
    { scope: 'nothing' },
    { state: 'short' },
    { code_challenge: '' },
    { code_challenge_method: 'plain' },
    ...own.map((name) => ({ [name]: '' })),
  ]
  for (const change of changes) t.equal((await begin(login, change)).status, 400, JSON.stringify(change))
  const other = login.encoding === 'json' ? 'form' : 'json'
  t.match(await redeem(login, {}, other), { status: /^4/ }, `an exchange as ${other}`)
  for (const change of [
    { code: 'made-up' },
    { code_verifier: 'w'.repeat(43) },
    { code_verifier: 'short' },
    { redirect_uri: `${login.query.redirect_uri}/` },
    { grant_type: 'password' },
    { client_id: 'another' },
  ])
    t.match(await redeem(login, change), { status: /^4/ }, JSON.stringify(change))
  const open = { state: VERIFIER }
  const leaked = { ...login, query: { ...login.query, ...open } }
  t.match(
    await redeem(leaked, login.exchange.state ? open : {}),
    { status: /^4/ },
    'a verifier that was in the address',
  )
  const { fields, json } = await redeem(login)
  t.ok(login.emulator.isLive(json.access_token))
  t.match(
    await ask(login.token, login.encoding, fields),
    { status: 400 },
    'a code that is used twice is refused',
  )
  t.notOk(
    login.emulator.isLive(json.access_token),
    'a code that is used twice ends the access token that it was redeemed for',
  )
  t.match(await renew(login, json.refresh_token), { status: /^4/ })
  t.match(await renew(login, 'made-up'), { status: /^4/ })
}

/** Checks that each refresh token can be used once. */
async function rotates(t: Test, login: Login, again: object): Promise<void> {
  const { refresh_token } = (await redeem(login)).json
  const renewed = await renew(login, refresh_token)
  t.match(renewed, { status: 200, json: { access_token: /./, refresh_token: /./ } })
  t.not(renewed.json.refresh_token, refresh_token)
  t.match(await renew(login, refresh_token), again)
  t.match(await renew(login, renewed.json.refresh_token, { client_id: 'another' }), { status: 401 })
}

t.test('logins of OpenAI refuse what the service refuses', async (t) => {
  const emulator = await createOpenAiLogins()
  t.teardown(() => emulator.close())
  const client_id = 'app_EMoamEEZ73f0CkXaXp7hrann'
  const flags = {
    originator: 'test',
    codex_cli_simplified_flow: 'true',
    id_token_add_organizations: 'true',
  }
  const scope = 'openid profile email offline_access'
  const login: Login = {
    emulator,
    authorize: `${emulator.url}/oauth/authorize`,
    token: `${emulator.url}/oauth/token`,
    encoding: 'form',
    query: asked(client_id, 'http://localhost:1455/auth/callback', scope, flags),
    client: { client_id },
    exchange: {},
  }
  await refusesWhatAllRefuse(t, login)
  await rotates(t, login, { status: 401, json: { error: { code: 'refresh_token_reused' } } })
  const plus = await fetch(`${login.authorize}?${new URLSearchParams(login.query)}`, { redirect: 'manual' })
  t.equal(plus.status, 400, 'a plus in the scope is not read as a blank')

  const device = (path: string, fields: Fields) =>
    ask(`${emulator.url}/api/accounts/deviceauth/${path}`, 'json', fields)
  t.match(await device('usercode', { client_id: 'another' }), { status: 404 })
  const { device_auth_id, user_code } = (await device('usercode', { client_id })).json
  t.match(
    await device('token', { device_auth_id, user_code }),
    { status: 403 },
    'a device code that no person has granted',
  )
  emulator.grantDevice(user_code)
  t.match(await device('token', { device_auth_id, user_code: 'another' }), { status: 404 })
  t.match(await device('token', { device_auth_id, user_code }), { json: { authorization_code: /./ } })
  t.match(
    await device('token', { device_auth_id, user_code }),
    { status: 404 },
    'a device code can be redeemed only once',
  )
})

t.test('logins of Anthropic refuse what the service refuses', async (t) => {
  const emulator = await createAnthropicLogins()
  t.teardown(() => emulator.close())
  const login: Login = {
    emulator,
    authorize: emulator.authorizeUrl,
    token: emulator.tokenUrl,
    encoding: 'json',
    query: asked(ANTHROPIC, 'http://localhost:54545/callback', 'user:inference', { code: 'true' }),
    client: { client_id: ANTHROPIC },
    exchange: { state: STATE },
  }
  await refusesWhatAllRefuse(t, login)
  await rotates(t, login, { status: 400, json: { error: 'invalid_grant' } })
  t.match(await redeem(login, { state: 'x'.repeat(22) }), { status: 400 }, 'the state of another login')
  const disguised = await ask(login.token, 'json', login.client, {
    'user-agent': 'claude-cli/2.1.0 (external)',
  })
  t.equal(disguised.status, 404, "a client with the name of the vendor's own client")

  const oauth = 'oauth-2025-04-20'
  const federate = (fields: Fields, betas: string) =>
    ask(`${emulator.url}/v1/oauth/token`, 'json', fields, { 'anthropic-beta': betas })
  const grant = { grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', ...FEDERATION }
  const both = `${oauth},oidc-federation-2026-04-01`
  t.match(await federate(grant, both), { status: 200, json: { access_token: /^sk-ant-oat01-/ } })
  t.match(await federate(grant, ''), { status: 400 })
  t.match(await federate(grant, oauth), { status: 401 })
  t.match(await federate({ ...grant, organization_id: 'another' }, both), { status: 401 })
  const { refresh_token } = (await redeem(login)).json
  const console = { refresh_token, ...login.client }
  t.match(await federate({ ...console, grant_type: 'password' }, oauth), { status: 400 })
  t.match(await federate({ ...console, grant_type: 'refresh_token' }, oauth), { status: 200 })
})

t.test('logins of Google, and the set-up of Code Assist, refuse what the service refuses', async (t) => {
  const emulator = await createGoogleLogins()
  t.teardown(() => emulator.close())
  const kept = { access_type: 'offline', prompt: 'consent' }
  const scope = 'https://www.googleapis.com/auth/cloud-platform'
  const login: Login = {
    emulator,
    authorize: emulator.authorizeUrl,
    token: emulator.tokenUrl,
    encoding: 'form',
    query: asked(GOOGLE, 'http://127.0.0.1:8085/oauth2callback', scope, kept),
    client: { client_id: GOOGLE, client_secret: SECRET },
    exchange: {},
  }
  await refusesWhatAllRefuse(t, login)
  t.match(await redeem(login, { client_secret: 'another' }), { status: 401 })
  const { access_token, refresh_token } = (await redeem(login)).json
  const renewed = await renew(login, refresh_token)
  t.match([renewed.status, 'refresh_token' in renewed.json], [200, false], 'the old refresh token stays')
  t.match(await renew(login, refresh_token), { status: 200 })
  const secretless = { grant_type: 'refresh_token', refresh_token, client_id: GOOGLE }
  t.match(await ask(login.token, 'form', secretless), { status: 400, text: /client_secret is missing/ })

  const setUp = async (method: string, body: object, token = access_token) => {
    const response = await fetch(`${emulator.codeAssistUrl}:${method}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
      body: JSON.stringify(body),
    })
    return response.status
  }
  const metadata = { ideType: 'IDE_UNSPECIFIED' }
  t.equal(await setUp('loadCodeAssist', { metadata }), 200)
  t.equal(await setUp('loadCodeAssist', { metadata }, 'made-up'), 401)
  t.equal(await setUp('loadCodeAssist', { metadata: { ideType: 'BATON' } }), 400)
  t.equal(await setUp('onboardUser', { metadata, tierId: 'another' }), 400)
  t.equal(await setUp('another', { metadata }), 404)
})
