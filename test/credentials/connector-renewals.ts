/** Logins at MCP servers, whatever befalls a renewal: no login is lost that could have been kept. */
import { setTimeout as sleepFor } from 'node:timers/promises'
import { inspect } from 'node:util'
import t from 'tap'
import { openConnector, sealConnector } from '../../src/credentials/connector-secret.ts'
import { BatonError } from '../../src/errors.ts'
import { toMcpError } from '../../src/mcp/failure.ts'
import { createMcpOAuth, type McpLogin } from '../../src/mcp/oauth.ts'
import type { McpLogins } from '../emulators/oauth-mcp.ts'
import { eventually, gate } from '../waiting.ts'
import { ANN, bench, store, storeWith, vault } from './connector-shared.ts'
import { guardedServer } from './guarded-server.ts'
import { visit } from './world.ts'

const NEEDED = { kind: 'auth_required', message: /docs needs a login/ }

/** Lets each path of the metadata answer badly, in many ways, and asks for a token each time. */
async function whileUnwell(guarded: McpLogins, ask: (words: string) => Promise<unknown>): Promise<void> {
  const resource = '/.well-known/oauth-protected-resource/mcp'
  const issuer = '/.well-known/oauth-authorization-server/as'
  for (const [path, status, body] of [
    [resource, 500],
    [resource, 502],
    [resource, 503],
    [resource, 429],
    [resource, 404],
    [resource, 200, '<html>One moment, please</html>'],
    [issuer, 404],
    [issuer, 502],
    [issuer, 200, '<html>One moment, please</html>'],
  ] as const) {
    guarded.instead(path, { status, ...(body && { body }) })
    await ask(`${path} ${status}`)
    guarded.instead(path, null)
  }
}

t.test('metadata that cannot be read for a moment costs no login and sends no refresh token', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600, tenant: '/as' })
  const connector = await logIn()
  const ask = () => replica().authFor(connector).token()
  const first = await ask()
  time.ahead = 601_000
  await whileUnwell(guarded, (words) => t.rejects(ask(), { code: 'upstream_overloaded' }, words))
  t.same(guarded.grants, { authorization_code: 1 })
  t.not(await ask(), first)

  guarded.metadata({ resource: guarded.url, authorization_servers: [`${guarded.origin}/other`] })
  time.ahead = 1_300_000
  await t.rejects(ask(), NEEDED, 'the server itself names another login service')
  t.equal(openConnector(vault, await read()).oauth?.tokens, undefined)
  t.equal(guarded.grants.refresh_token, 1)
})

t.test('nothing is kept of a renewal whose answer is too long', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  for (const name of ['access_token', 'refresh_token']) {
    guarded.told(null)
    const connector = await logIn()
    const before = openConnector(vault, await read())
    guarded.told((answer) => ({ ...answer, access_token: null, [name]: 'x'.repeat(200_000) }))
    time.ahead += 601_000
    const asked = replica().authFor(connector).token()
    await t.rejects(asked, { kind: 'auth_required', message: /answered is too long/ }, name)
    t.same(openConnector(vault, await read()), before)
  }
})

t.test('a failure that is remembered holds little of what the login service said', async (t) => {
  const { guarded, logIn, read } = await bench(t)
  await logIn()
  const { oauth: login = {} } = openConnector(vault, await read())
  const oauth = createMcpOAuth()
  t.teardown(() => oauth.close())
  const failed = async (code = 'upstream_overloaded') => {
    const target = { name: 'docs', url: guarded.url, allowPrivate: true }
    const failure: unknown = await oauth.renew(target, login).catch((error) => error)
    t.match(failure, { code })
    t.ok(inspect(failure, { maxStringLength: null }).length < 10_000)
  }
  const said = 'x'.repeat(900_000)
  guarded.instead('/token', { status: 500, body: said })
  await failed()
  const body = JSON.stringify({ error: 'server_error', error_description: said })
  guarded.instead('/token', { status: 200, body })
  await failed()
  const page = JSON.stringify({ error: 'server_error', error_uri: `https://x.test/${said}` })
  guarded.instead('/token', { status: 200, body: page })
  await failed()
  const tenant = `/${'x'.repeat(12_000)}`
  guarded.metadata({ resource: guarded.url, authorization_servers: [guarded.origin + tenant] })
  const issuer = '/.well-known/oauth-authorization-server'
  const metadata = await (await fetch(guarded.origin + issuer)).text()
  guarded.instead(issuer + tenant, { status: 200, body: metadata })
  await failed('upstream_rejected')
})

t.test('a renewal names the resource as its metadata write it', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600 })
  guarded.metadata({ resource: guarded.origin, authorization_servers: [guarded.origin] })
  const connector = await logIn()
  const ask = () => replica().authFor(connector).token()
  const first = await ask()
  time.ahead = 601_000
  t.not(await ask(), first)
})

t.test('no refresh token goes to a login service that claims to be the one that made it', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600, tenant: '/as' })
  const connector = await logIn()
  const ask = () => replica().authFor(connector).token()
  await ask()
  const path = '/.well-known/oauth-authorization-server'
  const body = await (await fetch(`${guarded.origin}${path}/as`)).text()
  guarded.metadata({ resource: guarded.url, authorization_servers: [`${guarded.origin}/false`] })
  guarded.instead(`${path}/false`, { status: 200, body })
  time.ahead = 601_000
  await t.rejects(ask(), { message: /issuer/ })
  t.same(guarded.grants, { authorization_code: 1 })
})

t.test(
  'metadata that cannot be read costs no login either where a server is its own login service',
  async (t) => {
    const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600 })
    const connector = await logIn()
    const ask = () => replica().authFor(connector).token()
    time.ahead = 601_000
    guarded.instead('/.well-known/oauth-protected-resource/mcp', { status: 404 })
    await t.rejects(ask(), { code: 'upstream_overloaded' })
    guarded.instead('/.well-known/oauth-protected-resource/mcp', null)
    t.ok(await ask())
    t.same(guarded.grants, { authorization_code: 1, refresh_token: 1 })
  },
)

t.test('metadata that cannot be read costs no login either where the owner gave the issuer', async (t) => {
  const issuer = 'https://as.mcp.test'
  const { guarded, replica, logIn, time, read } = await bench(t, {
    expires_in: 600,
    tenant: '/as',
    named: () => issuer,
  })
  const secret = sealConnector(vault, await read(), { headers: {}, env: {}, oauth: { issuer } })
  await store.connectors.update(ANN, await read(), { secret })
  const connector = await logIn()
  const ask = () => replica().authFor(connector).token()
  time.ahead = 601_000
  await whileUnwell(guarded, (words) => t.rejects(ask(), { code: 'upstream_overloaded' }, words))
  t.ok(await ask())
  t.same(guarded.grants, { authorization_code: 1, refresh_token: 1 })
})

t.test('a renewal looks for the login service within a bound, and then sends no refresh token', async (t) => {
  const { guarded, logIn } = await bench(t)
  const { oauth: login } = openConnector(vault, await logIn())
  const hasty = createMcpOAuth({ discoveryMs: 300 })
  t.teardown(() => hasty.close())
  guarded.hold('metadata', () => sleepFor(200))
  const target = { name: 'docs', url: guarded.url, allowPrivate: true }
  await t.rejects(hasty.renew(target, login ?? {}), { code: 'upstream_overloaded' })
  t.equal(guarded.grants.refresh_token, undefined)
})

t.test('no refresh token is sent where an address of the metadata may not be used any more', async (t) => {
  const { guarded, logIn } = await bench(t)
  const { oauth: login } = openConnector(vault, await logIn())
  const oauth = createMcpOAuth()
  t.teardown(() => oauth.close())
  const metadata = { resource_metadata: 'https://10.0.0.1/metadata', has_resource: false, has_issuer: true }
  const target = { name: 'docs', url: guarded.url, allowPrivate: ['127.0.0.1'] }
  await t.rejects(oauth.renew(target, { ...login, metadata }), { code: 'address_not_allowed' })
  t.equal(guarded.grants.refresh_token, undefined)
})

t.test('a token answer with nulls, or without a token type, is accepted', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  guarded.told(({ token_type: _, ...answer }) => ({ ...answer, scope: null, id_token: null }))
  const connector = await logIn()
  time.ahead = 590_000
  const logins = replica()
  const ask = () => logins.authFor(connector).token()
  const token = await ask()
  t.match(openConnector(vault, await read()).oauth?.tokens, { access_token: token, token_type: 'Bearer' })
  t.equal(guarded.grants.refresh_token, 1)

  guarded.told(({ refresh_token }) => ({ refresh_token, access_token: null }))
  time.ahead = 1_150_000
  t.equal(await ask(), token, 'the rotated refresh token alone is kept, too')
  guarded.told(null)
  t.not(await ask(), token)
  t.equal(guarded.grants.refresh_token, 3)
})

t.test(
  'a refresh token that was answered is not sent again, and the access token serves to its end',
  async (t) => {
    const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
    const connector = await logIn()
    const logins = replica()
    const ask = () => logins.authFor(connector).token()
    const token = await ask()
    guarded.told(() => ({ token_type: 'Bearer' }))
    time.ahead = 590_000
    for (const _ of [1, 2]) t.equal(await ask(), token)
    t.equal(guarded.grants.refresh_token, 1)
    time.ahead = 601_000
    await t.rejects(ask(), NEEDED)
    t.equal(guarded.grants.refresh_token, 1)
    t.equal(openConnector(vault, await read()).oauth?.tokens, undefined)
  },
)

t.test('an answer that is not the login service’s own costs no refresh token', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const ask = () => replica().authFor(connector).token()
  const token = await ask()
  guarded.instead('/token', { status: 200, body: '{"message":"upstream connect timeout"}' })
  time.ahead = 590_000
  t.equal(await ask(), token)
  guarded.instead('/token', null)
  time.ahead = 601_000
  t.not(await ask(), token)
})

t.test(
  'a login that an older version stored is renewed where its login service has no metadata',
  async (t) => {
    const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
    const connector = await logIn()
    const { oauth, ...rest } = openConnector(vault, await read())
    const { metadata: _, ...older } = oauth ?? {}
    const secret = sealConnector(vault, await read(), { ...rest, oauth: older })
    t.ok(secret && (await store.connectors.keep(await read(), secret)))
    guarded.instead('/.well-known/oauth-authorization-server', { status: 404 })
    time.ahead = 601_000
    t.not(await replica().authFor(connector).token(), older.tokens?.access_token)
  },
)

t.test('a short-lived token is not renewed as soon as it is issued', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 40 })
  const auth = replica().authFor(await logIn())
  const token = await auth.token()
  t.equal(await auth.token(), token)
  t.equal(guarded.grants.refresh_token, undefined)
  time.ahead = 21_000
  t.not(await auth.token(), token)
})

t.test('a token goes to no other address than the one that the call was made for', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  await store.connectors.update(ANN, await read(), { url: `${guarded.url}?moved` })
  time.ahead = 590_000
  await t.rejects(replica().authFor(connector).token(), NEEDED)
  t.equal(guarded.grants.refresh_token, undefined)
})

t.test('a token that another process renewed in the meantime goes to no other address either', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  time.ahead = 601_000
  await store.connectors.claim(connector.id, 'another', 60)
  const asked = t.rejects(replica().authFor(connector).token(), NEEDED)
  await sleepFor(20)
  const row = await read()
  const held = openConnector(vault, row)
  const oauth = { ...held.oauth, expires_at: Date.now() + 3_600_000 }
  const secret = sealConnector(vault, row, { ...held, oauth })
  await store.connectors.update(ANN, row, { url: `${guarded.url}?moved`, secret })
  await asked
})

t.test('a renewal whose answer names no scope keeps the scope that was granted', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  guarded.told(({ scope: _, ...answer }) => answer)
  time.ahead = 590_000
  const access_token = await replica().authFor(connector).token()
  t.match(openConnector(vault, await read()).oauth?.tokens, { access_token, scope: 'tools' })
  t.equal(guarded.grants.refresh_token, 1)
})

t.test('a scope that a server finds lacking is asked for by the next login on any replica', async (t) => {
  const { replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const [one, other] = [replica(), replica()]
  const auth = one.authFor(await logIn())
  const told = async (scope: string) => {
    auth.onChallenge?.({ scope })
    await one.close()
  }
  const asked = async () => {
    const { authorization_url } = await other.begin(ANN, await read())
    return new URL(authorization_url).searchParams.get('scope')
  }
  // The other replica has read the login before, and must not hold to what it read.
  await other.authFor(await read()).token()
  await told('tools')
  t.equal(await asked(), 'tools')
  await told('write')
  const { secret } = await read()
  await told('write')
  t.same((await read()).secret, secret, 'what is known is not stored again')
  await told('tools admin')
  t.equal(await asked(), 'tools write admin')
  time.ahead = 590_000
  await replica()
    .authFor(await read())
    .token()
  t.equal(await asked(), 'tools write admin', 'the lacking scopes are asked for after a renewal, too')
  await logIn(other)
  t.notOk(
    openConnector(vault, await read()).oauth?.lacking,
    'the login that asked for the scopes has them or was refused them',
  )
  const row = await read()
  await store.connectors.update(ANN, row, { secret: row.secret })
  await told('late')
  t.notOk(openConnector(vault, await read()).oauth?.lacking, 'what it lacked before a change counts no more')
})

t.test('the scope that was asked for counts as granted where the service does not say', async (t) => {
  const { guarded, replica, logIn, read } = await bench(t)
  guarded.told(({ scope: _, ...answer }) => answer)
  const one = replica()
  one.authFor(await logIn()).onChallenge?.({ scope: 'write' })
  t.match(openConnector(vault, await read()).oauth?.tokens, { scope: 'tools' })
  const { authorization_url } = await one.begin(ANN, await read())
  t.equal(
    new URL(authorization_url).searchParams.get('scope'),
    'tools write',
    'the granted scope is not lost',
  )
})

t.test(
  'the scope of a login that has ended is not asked for again: its service may know it no more',
  async (t) => {
    const { guarded, replica, logIn, read } = await bench(t)
    const auth = replica().authFor(await logIn())
    const token = await auth.token()
    guarded.revoke({ refresh: true })
    await t.rejects(async () => auth.onUnauthorized?.(token), NEEDED)
    const where = `${guarded.origin}/.well-known/oauth-protected-resource/mcp`
    const challenge = `Bearer resource_metadata="${where}", scope="files"`
    guarded.instead('/mcp', { status: 401, headers: { 'www-authenticate': challenge } })
    const { authorization_url } = await replica().begin(ANN, await read())
    t.equal(new URL(authorization_url).searchParams.get('scope'), 'files')
  },
)

t.test('a token that another replica has renewed already is not renewed again', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const [one, two] = [replica().authFor(connector), replica().authFor(connector)]
  for (const auth of [one, two]) t.ok(await auth.token())
  time.ahead = 601_000
  const token = await one.token()
  t.equal(await two.token(), token)
  t.equal(guarded.grants.refresh_token, 1)
})

t.test('a replica waits for another’s claim within a bound, and no longer when it closes', async (t) => {
  const { replica, logIn, time } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const busy = { kind: 'unavailable', sent: false, message: /docs: its login is being renewed by another/ }
  const [patient, leaving] = [replica(), replica()]
  time.ahead = 601_000
  await store.connectors.claim(connector.id, 'another', 60)
  const asked = t.rejects(patient.authFor(connector).token(), busy)
  const askedLast = t.rejects(leaving.authFor(connector).token(), busy)
  await sleepFor(20)
  await leaving.close()
  await askedLast
  time.ahead += 61_000
  await asked
})

t.test(
  'no call waits for another’s claim while its token lasts, or once its connector is gone',
  async (t) => {
    const { replica, logIn, time } = await bench(t, { expires_in: 600 })
    const connector = await logIn()
    await store.connectors.claim(connector.id, 'another', 60)
    let claims = 0
    const claim: typeof store.connectors.claim = (...given) => {
      claims++
      return store.connectors.claim(...given)
    }
    const counted = { ...store, connectors: { ...store.connectors, claim } }
    const auth = replica(undefined, counted).authFor(connector)
    time.ahead = 550_000
    t.ok(await auth.token())
    t.equal(claims, 1)
    await auth.onUnauthorized?.('an older token')
    t.equal(claims, 1, 'a token that came since needs no renewal')
    time.ahead = 601_000
    const asked = t.rejects(auth.token(), NEEDED)
    await sleepFor(20)
    await store.connectors.delete(ANN, connector.id)
    await asked
  },
)

t.test(
  'a renewal that is refused with any code asks for a login, and keeps what may still renew it',
  async (t) => {
    const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600 })
    const auth = replica().authFor(await logIn())
    const token = await auth.token()
    const answer = (status: number, error: string) =>
      guarded.instead('/token', { status, body: JSON.stringify({ error, error_description: 'refused' }) })
    answer(400, 'invalid_request')
    time.ahead = 590_000
    t.equal(await auth.token(), token, 'a token that lasts serves')
    time.ahead = 601_000
    const needed = (code: string) => ({
      ...NEEDED,
      message: RegExp(`docs needs a login.*it answered ${code}`),
    })
    await t.rejects(auth.token(), needed('invalid_request'))
    answer(200, 'bad_refresh_token')
    time.ahead += 5_001
    await t.rejects(auth.token(), needed('bad_refresh_token'))
    answer(429, 'invalid_request')
    time.ahead += 5_001
    await t.rejects(auth.token(), { code: 'upstream_overloaded' }, 'too many requests are no refusal')
    guarded.instead('/token', null)
    time.ahead += 5_001
    t.not(await auth.token(), token)
  },
)

t.test('a refusal in words of the service’s own is told from an outage', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600 })
  const auth = replica().authFor(await logIn())
  time.ahead = 601_000
  for (const [status, body, code] of [
    [400, '{"code":400,"error_code":"refresh_token_not_found","msg":"Not Found"}', 'refresh_token_not_found'],
    [401, '{"code":"bad_token"}', 'bad_token'],
    [422, '{"message":"Unrecognized client_id"}', 'http_422'],
    [400, '{"error":"invalid_target","error_description":null}', 'invalid_target'],
    [401, '[{"logref":"5","message":"Bad credentials"}]', 'http_401'],
    [401, 'Unauthorized', 'http_401'],
    [400, '', 'http_400'],
    [400, '<html>Bad Request</html>', null],
    [403, '{"message":"Forbidden"}', null],
    [502, '{"message":"Bad Gateway"}', null],
  ] as const) {
    guarded.instead('/token', { status, body })
    const refused = { ...NEEDED, message: RegExp(`docs needs a login.*it answered ${code}`) }
    await t.rejects(auth.token(), code === null ? { code: 'upstream_overloaded' } : refused, body)
    time.ahead += 5_001
  }
  guarded.instead('/token', null)
  t.ok(await auth.token())
})

t.test('a login service that fails is asked by one replica, not by all that waited for it', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600, tenant: '/as' })
  const connector = await logIn()
  time.ahead = 601_000
  const answered = gate()
  let requests = 0
  guarded.hold('metadata', () => {
    requests++
    return answered.opened
  })
  guarded.instead('/.well-known/oauth-protected-resource/mcp', { status: 503 })
  const ask = () => t.rejects(replica().authFor(connector).token(), { code: 'upstream_overloaded' })
  const asked = [ask(), ask(), ask()]
  await sleepFor(100)
  answered.open()
  await Promise.all(asked)
  const shared = requests
  await ask()
  t.equal(requests - shared, shared, 'a replica that comes later asks by itself')
})

t.test(
  'a login service that fails is left alone for five seconds, and for no changed connector',
  async (t) => {
    const { guarded, replica, logIn, read, time } = await bench(t, { expires_in: 600 })
    await logIn()
    const logins = replica()
    const ask = async () => logins.authFor(await read()).token()
    time.ahead = 601_000
    guarded.outage(500)
    for (const _ of [1, 2, 3]) await t.rejects(ask(), { code: 'upstream_overloaded' })
    t.equal(guarded.grants.refresh_token, 1)
    time.ahead += 5_001
    await t.rejects(ask(), { code: 'upstream_overloaded' })
    t.equal(guarded.grants.refresh_token, 2, 'the service is asked again after the pause')
    guarded.outage(null)
    const row = await read()
    const headers = { 'x-other': '1' }
    const secret = sealConnector(vault, row, { ...openConnector(vault, row), headers })
    await store.connectors.update(ANN, row, { secret })
    t.ok(await ask())
    t.equal(guarded.grants.refresh_token, 3)
  },
)

t.test('a login service that limits its renewals is left alone for as long as it says', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 600 })
  const auth = replica().authFor(await logIn())
  const away = (retryAfter: number) => t.rejects(auth.token(), { code: 'upstream_overloaded', retryAfter })
  time.ahead = 601_000
  guarded.instead('/token', { status: 429, headers: { 'retry-after': '60' } })
  await away(60)
  guarded.instead('/token', null)
  time.ahead += 50_000
  await away(10)
  time.ahead += 10_001
  t.ok(await auth.token())
  time.ahead += 601_000
  guarded.instead('/token', { status: 429, headers: { 'retry-after': '86400' } })
  await away(300)
})

t.test('while a token lasts, a failing login service is asked only now and then for another', async (t) => {
  const { guarded, replica, logIn, read, time } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const auth = replica().authFor(connector)
  const token = await auth.token()
  time.ahead = 560_000
  guarded.outage(503)
  for (const _ of [1, 2, 3]) t.equal(await auth.token(), token)
  t.equal(guarded.grants.refresh_token, 1)
  t.same((await read()).secret, connector.secret, 'a login that stays as it was is not stored again')
  time.ahead += 5_001
  t.equal(await auth.token(), token)
  t.equal(guarded.grants.refresh_token, 2)
})

t.test('a call does not wait for a slow login service while its token lasts', async (t) => {
  const { guarded, replica, logIn, read, time } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const auth = replica().authFor(connector)
  const token = await auth.token()
  time.ahead = 550_000
  const answered = gate()
  t.teardown(answered.open)
  guarded.hold('token', () => answered.opened)
  t.equal(await auth.token(), token)
  answered.open()
  const renewed = await eventually(
    async () => openConnector(vault, await read()).oauth?.tokens?.access_token,
    (stored) => stored !== token,
  )
  t.equal(await auth.token(), renewed, 'the renewal has gone on')
  t.equal(guarded.grants.refresh_token, 1)
})

t.test('a renewal waits for no other, which would cost its answer time', async (t) => {
  const guarded = await guardedServer(t)
  const oauth = createMcpOAuth()
  t.teardown(() => oauth.close())
  const target = { name: 'docs', url: guarded.url, allowPrivate: true }
  const redirect_url = 'http://127.0.0.1:1/cb'
  const given = { login: null, challenge: null, redirect_url, client_metadata_url: '', state: 's' }
  const logins: McpLogin[] = []
  for (let i = 0; i < 20; i++) {
    const { authorization_url, pending } = await oauth.begin(target, given)
    logins.push(await oauth.finish(target, pending, (await visit(authorization_url)).searchParams))
  }
  const all = gate()
  t.teardown(all.open)
  guarded.hold('token', () => {
    if (guarded.grants.refresh_token === logins.length) all.open()
    return all.opened
  })
  const renewed = await Promise.all(logins.map((login) => oauth.renew(target, login)))
  t.equal(new Set(renewed.map((login) => typeof login !== 'string' && login.tokens?.access_token)).size, 20)
})

t.test('a token without a refresh token serves to its end, and one refusal does not end it', async (t) => {
  const { replica, logIn, time, read } = await bench(t, { expires_in: 600, refreshless: true })
  const connector = await logIn()
  const logins = replica()
  const auth = logins.authFor(connector)
  const token = await auth.token()
  time.ahead = 595_000
  await store.connectors.claim(connector.id, 'another', 60)
  t.equal(await auth.token(), token, 'without waiting for a claim, since there is nothing to renew')
  await store.connectors.release(connector.id, 'another')
  await t.rejects(auth.onUnauthorized?.(token) ?? Promise.resolve(), NEEDED)
  t.equal(await auth.token(), token, 'the process keeps the token')
  t.equal(openConnector(vault, await read()).oauth?.tokens?.access_token, token, 'the store keeps the token')
  time.ahead = 601_000
  await store.connectors.claim(connector.id, 'another', 60)
  const asked = t.rejects(auth.token(), NEEDED, 'also after the wait for another replica')
  await sleepFor(20)
  await store.connectors.release(connector.id, 'another')
  await asked
  t.equal(openConnector(vault, await read()).oauth?.tokens, undefined)
  t.equal(auth.held?.(), undefined)
})

t.test('a call whose renewal a new login overtakes uses the new login', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  time.ahead = 590_000
  const [asked, answered] = [gate(), gate()]
  guarded.hold('token', () => {
    asked.open()
    return answered.opened
  })
  const token = replica().authFor(connector).token()
  await asked.opened
  guarded.hold('token', null)
  await logIn()
  answered.open()
  t.equal(await token, openConnector(vault, await read()).oauth?.tokens?.access_token)
})

t.test(
  'new tokens are stored once the store is back, even if the claim lapsed and a sibling found the old ones dead',
  async (t) => {
    const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
    const connector = await logIn()
    time.ahead = 590_000
    let failures = 12
    const away = storeWith({
      async keep(...given) {
        if (failures-- > 0) throw new BatonError('unavailable', 'The database is not available.')
        // The store is back, and the claim has lapsed meanwhile.
        const row = await store.connectors.get(ANN, connector.id)
        if (failures === -1 && row) {
          const { tokens: _, ...oauth } = openConnector(vault, row).oauth ?? {}
          const secret = sealConnector(vault, row, { headers: {}, env: {}, oauth })
          if (secret) t.ok(await store.connectors.keep(row, secret))
        }
        return store.connectors.keep(...given)
      },
    })
    const token = await replica(undefined, away).authFor(connector).token()
    t.equal(openConnector(vault, await read()).oauth?.tokens?.access_token, token)
    t.equal(guarded.grants.refresh_token, 1)
  },
)

t.test('a sibling that found the old tokens dead takes the new ones that were stored late', async (t) => {
  const { replica, logIn, time } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  time.ahead = 601_000
  // The claim of the other replica has lapsed.
  const claim = async (id: string) => {
    const row = await store.connectors.get(ANN, id)
    return row && { row, hasLapsed: true }
  }
  const sibling = replica(undefined, storeWith({ claim }))
  const again = sibling.authFor(connector)
  const late = storeWith({
    async keep(...given) {
      await t.rejects(again.token(), NEEDED)
      return store.connectors.keep(...given)
    },
  })
  const token = await replica(undefined, late).authFor(connector).token()
  t.equal(await again.token(), token)
  t.equal(again.held?.(), token)
})

t.test('a refused token costs the login only where the login service says so', async (t) => {
  const { guarded, replica, logIn, read, time } = await bench(t, { expires_in: 600 })
  const auth = replica().authFor(await logIn())
  const token = await auth.token()
  const refused = async () => auth.onUnauthorized?.(token)
  guarded.outage(503)
  await t.rejects(refused(), { code: 'upstream_overloaded' })
  t.equal(await auth.token(), token)
  guarded.outage(null)
  time.ahead = 5_001
  guarded.revoke({ refresh: true })
  await t.rejects(refused(), NEEDED)
  t.equal(openConnector(vault, await read()).oauth?.tokens, undefined, 'the refused token is not kept')
})

t.test('a server that refuses each new token costs its login service no rotation a request', async (t) => {
  const { guarded, replica, logIn, time } = await bench(t, { expires_in: 3600 })
  const connector = await logIn()
  const [auth, sibling] = [replica().authFor(connector), replica().authFor(connector)]
  /** Has the token refused that is held, and gives the one that is held then. */
  const refused = async (by: typeof auth) => {
    await by.onUnauthorized?.(await by.token())
    return by.token()
  }
  const first = await auth.token()
  const second = await refused(auth)
  t.not(second, first)
  t.equal(await refused(auth), second, 'a second refusal so soon is not cured by another renewal')
  t.equal(guarded.grants.refresh_token, 1)
  t.equal(await refused(sibling), second, 'it takes over the renewed token')
  t.equal(await refused(sibling), second)
  t.equal(guarded.grants.refresh_token, 1)
  time.ahead = 300_001
  const third = await refused(auth)
  t.not(third, second)
  t.equal(await refused(sibling), third)
  t.equal(guarded.grants.refresh_token, 2)
})

t.test('a login whose refresh token was refused keeps that reason when its token ends', async (t) => {
  const { guarded, replica, logIn, read, time } = await bench(t, { expires_in: 600 })
  const auth = replica().authFor(await logIn())
  const token = await auth.token()
  const reason = async () => openConnector(vault, await read()).oauth?.over
  time.ahead = 560_000
  guarded.revoke({ refresh: true })
  t.equal(await auth.token(), token)
  const first = await reason()
  t.type(first, 'string')
  time.ahead = 601_000
  await t.rejects(auth.token(), NEEDED)
  t.equal(await reason(), first)
})

t.test('a replica that closes stores the tokens that wait for the store', async (t) => {
  const { replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  time.ahead = 590_000
  const tried = gate()
  let isAway = true
  const away = storeWith({
    async keep(...given) {
      if (!isAway) return store.connectors.keep(...given)
      tried.open()
      throw new BatonError('unavailable', 'The database is not available.')
    },
  })
  const leaving = replica(undefined, away)
  const token = leaving.authFor(connector).token()
  await tried.opened
  isAway = false
  await leaving.close()
  t.equal(openConnector(vault, await read()).oauth?.tokens?.access_token, await token)
})

t.test('a replica that has closed begins no renewal, whose tokens would be lost', async (t) => {
  const { guarded, replica, logIn, time, tokenNow } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const leaving = replica()
  const first = await leaving.authFor(connector).token()
  time.ahead = 601_000
  await leaving.close()
  await t.rejects(leaving.authFor(connector).token(), { message: /docs: its login is being renewed/ })
  t.same(guarded.grants, { authorization_code: 1 })
  t.not(await tokenNow(), first)
})

t.test('an error that keeps a call from its token is told without the error that caused it', async (t) => {
  const { replica, logIn, time } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  time.ahead = 590_000
  const cause = Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:5432'), { code: 'ECONNREFUSED' })
  const away = storeWith({
    claim: () => Promise.reject(new BatonError('unavailable', 'The database is not available.', { cause })),
  })
  const thrown: unknown = await replica(undefined, away)
    .authFor(connector)
    .token()
    .then(
      () => null,
      (error) => error,
    )
  const told = toMcpError(new TypeError('fetch failed', { cause: thrown }), { name: 'docs' })
  t.match(told, { kind: 'unavailable', sent: false, message: 'docs: The database is not available.' })
  t.equal(told.cause, thrown)
})
