/** Logins at a guarded MCP server and its login service, without a gateway: begun, ended, kept and renewed. */
import t from 'tap'
import { openConnector, sealConnector } from '../../src/credentials/connector-secret.ts'
import { BatonError } from '../../src/errors.ts'
import { createMcpOAuth, type McpLoginTarget } from '../../src/mcp/oauth.ts'
import type { McpLogins } from '../emulators/oauth-mcp.ts'
import { gate } from '../waiting.ts'
import './connector-registrations.ts'
import './connector-renewals.ts'
import { ANN, bench, store, storeWith, vault } from './connector-shared.ts'
import { guardedServer } from './guarded-server.ts'
import { visit } from './world.ts'

const target = ({ url }: McpLogins): McpLoginTarget => ({ name: 'docs', url, allowPrivate: true })

t.test('a token is renewed once, however many calls and replicas need it at once', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const replicas = [replica(), replica(), replica()]
  const ask = () =>
    Promise.all(replicas.flatMap((one) => [1, 2, 3, 4].map(() => one.authFor(connector).token())))
  const first = new Set(await ask())
  t.equal(first.size, 1)
  t.same(guarded.grants, { authorization_code: 1 })

  time.ahead = 590_000
  const second = new Set(await ask())
  t.equal(second.size, 1)
  t.not([...second][0], [...first][0])
  t.same(guarded.grants, { authorization_code: 1, refresh_token: 1 })
  t.equal((await read()).config_revision, connector.config_revision, 'the connections of the connector stay')

  // The server refuses the token before its time, to several calls of each replica: they all name the same token.
  guarded.revoke()
  const [refused] = second
  const hear = () =>
    Promise.all(replicas.flatMap((one) => [1, 2].map(() => one.authFor(connector).onUnauthorized?.(refused))))
  await hear()
  await hear()
  const third = new Set(await ask())
  t.equal(third.size, 1)
  t.equal(guarded.grants.refresh_token, 2)

  // Re-encryption reads the row, the renewal writes it: the old token must not come back.
  const [row] = await store.sealed.secrets('', 10)
  time.ahead += 590_000
  await ask()
  t.equal(guarded.grants.refresh_token, 3)
  if (!row) throw new Error('nothing is sealed')
  t.equal(await store.sealed.putSecret(row, row.secret), false)
})

t.test(
  'a passing failure costs no login; a final refusal asks for a new login, and is not tried again',
  async (t) => {
    const { guarded, replica, logIn, time, read, tokenNow } = await bench(t, { expires_in: 600 })
    const connector = await logIn()
    const logins = replica()
    const token = () => logins.authFor(connector).token()
    const first = await token()
    guarded.outage(503)
    time.ahead = 570_000
    t.equal(await token(), first, 'a token that still holds will do')
    time.ahead = 601_000
    await t.rejects(token(), { code: 'upstream_overloaded' })
    guarded.outage(null)
    time.ahead = 607_000
    t.not(await token(), first, 'the login is still there')

    guarded.revoke({ refresh: true })
    time.ahead = 1_300_000
    const needed = {
      kind: 'auth_required',
      sent: false,
      message: /docs needs a login: POST \/v1\/connectors\/con_1\/login/,
    }
    await t.rejects(token(), needed)
    const asked = guarded.grants.refresh_token
    await t.rejects(token(), needed)
    await t.rejects(tokenNow(), needed)
    t.equal(guarded.grants.refresh_token, asked)
    t.equal(openConnector(vault, await read()).oauth?.tokens, undefined)
    await logIn(logins)
    t.ok(await tokenNow(logins))
  },
)

t.test('rotated tokens are stored, even if the store is away for a moment', async (t) => {
  const { guarded, replica, logIn, time, read } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  let refusals = 2
  const shaky = storeWith({
    keep(...given) {
      if (refusals-- > 0) throw new BatonError('unavailable', 'The database is not available.')
      return store.connectors.keep(...given)
    },
    release: () => Promise.reject(new BatonError('unavailable', 'The database is not available.')),
  })
  time.ahead = 590_000
  const token = await replica(undefined, shaky).authFor(connector).token()
  t.equal(refusals, -1)
  t.equal(openConnector(vault, await read()).oauth?.tokens?.access_token, token)
  t.equal(guarded.grants.refresh_token, 1)
})

t.test('the tokens of a new login are stored, even if the store is away for a moment', async (t) => {
  const { guarded, replica, logIn, read } = await bench(t)
  const { get, update } = store.connectors
  let refusals = 0
  let isWritten = false
  const shaky = <Given extends unknown[], T>(verb: (...given: Given) => Promise<T>) => {
    let isAway = true
    return async (...given: Given): Promise<T> => {
      if (!isAway) return verb(...given)
      isAway = false
      refusals++
      if (isWritten) await verb(...given)
      throw new BatonError('unavailable', 'The database is not available.')
    }
  }
  const before = await logIn(replica(undefined, storeWith({ get: shaky(get), update: shaky(update) })))
  t.equal(refusals, 2)
  t.ok(openConnector(vault, await read()).oauth?.tokens)
  t.same(guarded.grants, { authorization_code: 1 })
  isWritten = true
  const after = await logIn(replica(undefined, storeWith({ update: shaky(update) })))
  t.equal(
    after.config_revision,
    before.config_revision + 1,
    'a login whose answer the store lost is done, too',
  )
  t.equal(refusals, 3)
})

t.test('a caller who comes again while a login is being finished is not told to begin anew', async (t) => {
  const { guarded, replica, read } = await bench(t)
  const [one, two] = [replica(), replica()]
  const { authorization_url } = await one.begin(ANN, await read())
  const query = Object.fromEntries((await visit(authorization_url)).searchParams)
  const [asked, answered] = [gate(), gate()]
  guarded.hold('token', () => {
    asked.open()
    return answered.opened
  })
  const finished = one.finish(query)
  await asked.opened
  await t.rejects(two.finish(query), { code: 'invalid_request', message: /is being finished/ })
  answered.open()
  await finished
  await t.rejects(two.finish(query), { code: 'invalid_request', message: /complete already/ })
})

t.test('a renewal and a change of the connector leave each other’s work in place', async (t) => {
  const { guarded, replica, logIn, time, read, tokenNow } = await bench(t, { expires_in: 600 })
  const connector = await logIn()
  const over = (verb: 'keep' | 'update', meanwhile: () => Promise<unknown>): typeof store => {
    let isFirst = true
    const before = async () => {
      if (isFirst) await meanwhile()
      isFirst = false
    }
    const { keep, update } = store.connectors
    return storeWith(
      verb === 'keep'
        ? { keep: (...given) => before().then(() => keep(...given)) }
        : { update: (...given) => before().then(() => update(...given)) },
    )
  }
  const held = async () => openConnector(vault, await read()).oauth?.tokens?.access_token
  const renamed = async () => store.connectors.update(ANN, await read(), { pin: 'block' })

  time.ahead = 590_000
  const former = await held()
  const token = await replica(undefined, over('keep', renamed)).authFor(connector).token()
  t.equal(guarded.grants.refresh_token, 1)
  t.not(token, former)
  t.equal(await held(), token, 'the connector changed while the login service was asked')
  t.equal((await read()).pin, 'block')

  const signedOut = async () => {
    const row = await read()
    await store.connectors.update(ANN, row, { secret: sealConnector(vault, row, { headers: {}, env: {} }) })
  }
  time.ahead += 590_000
  const late = replica(undefined, over('keep', signedOut)).authFor(await read())
  await t.rejects(late.token(), { message: /docs needs a login/ })
  t.equal((await read()).secret, null, 'a secret that was taken away stays away')

  const again = await logIn()
  time.ahead += 590_000
  const renewed = () => replica().authFor(again).token()
  await logIn(replica(undefined, over('update', renewed)))
  t.equal(guarded.grants.refresh_token, 3)
  const shared = await tokenNow()
  t.equal(shared, await held())
  t.equal((await read()).config_revision, again.config_revision + 1)

  const last = await read()
  const deleted = () => store.connectors.delete(ANN, last.id)
  time.ahead += 590_000
  const orphan = replica(undefined, over('keep', deleted)).authFor(last)
  await t.rejects(orphan.token(), { message: /docs needs a login/ }, 'a connector that is gone has no token')
})

t.test('a login that begins deletes old logins whose outcome nobody asks for any more', async (t) => {
  const { replica, made } = await bench(t)
  const stale = { owner: ANN.owner, provider: 'connector:gone', mode: 'loopback', redirect_uri: '' } as const
  await store.logins.create({ ...stale, sealed: Buffer.of(1), state_hash: 'stale', seconds: -90_000 }, 100)
  await replica().begin(ANN, made)
  t.equal(await store.logins.get('stale'), null)
})

t.test('only the owner makes a login; it is on record, and leaves the other secrets in place', async (t) => {
  const { replica, logIn, read } = await bench(t)
  const given = { headers: { 'x-tenant': 'acme' }, env: {} }
  await store.connectors.update(ANN, await read(), { secret: sealConnector(vault, await read(), given) })
  const admin = { owner: 'root', admin: true }
  await t.rejects(replica().begin(admin, await read()), { code: 'forbidden', message: /Only ann/ })
  const none = { ...(await read()), auth: { type: 'none' } as const }
  await t.rejects(replica().begin(ANN, none), { code: 'invalid_request', message: /needs no login/ })
  const write = () => Promise.reject(new BatonError('unavailable', 'The database is not available.'))
  // The login and its record are written together, so `write` is not needed.
  await logIn(replica(undefined, { ...store, audit: { ...store.audit, write } }))
  const kept = openConnector(vault, await read())
  t.same(kept.headers, given.headers)
  t.ok(kept.oauth?.tokens)
  const { data } = await store.audit.list({ limit: 1 })
  t.match(data, [{ act: 'connector.login', subject: 'con_1' }])
})

t.test('a login that does not fit ends with a reason, and without a token', async (t) => {
  const { guarded, replica, read } = await bench(t)
  await t.rejects(replica(null).begin(ANN, await read()), {
    code: 'not_available',
    message: /BATON_PUBLIC_URL/,
  })
  const logins = replica()
  const begin = async () => visit((await logins.begin(ANN, await read())).authorization_url)
  const finish = (at: URL) => logins.finish(Object.fromEntries(at.searchParams))

  const issuer = '/.well-known/oauth-authorization-server'
  const metadata = (await (await fetch(`${guarded.origin}${issuer}`)).json()) as object
  const elsewhere = { ...metadata, authorization_endpoint: 'file:///etc/hosts' }
  guarded.instead(issuer, { status: 200, body: JSON.stringify(elsewhere) })
  await t.rejects(begin(), { code: 'upstream_rejected', message: /no page to log in at/ })
  const plain = { ...metadata, code_challenge_methods_supported: ['plain'] }
  guarded.instead(issuer, { status: 200, body: JSON.stringify(plain) })
  await t.rejects(begin(), { code: 'upstream_rejected', message: /not support code challenge method S256/ })
  guarded.instead(issuer, { status: 200, body: JSON.stringify({ ...metadata, token_endpoint: '/token' }) })
  await t.rejects(begin(), { code: 'upstream_rejected', message: /answered is not valid \(token_endpoint\)/ })
  const scopes_supported = Array.from({ length: 5_000 }, (_, i) => `https://scopes.test/of/many/${i}`)
  guarded.instead(issuer, { status: 200, body: JSON.stringify({ ...metadata, scopes_supported }) })
  await t.rejects(begin(), { code: 'upstream_rejected', message: /answered is too long/ })
  const zeros = JSON.stringify({ ...metadata, scopes_supported: new Array(500_000).fill(0) })
  guarded.instead(issuer, { status: 200, body: zeros })
  await t.rejects(begin(), { code: 'upstream_overloaded', cause: { message: /too many values/ } })
  const far = { ...metadata, authorization_endpoint: `${guarded.origin}/authorize?${'x'.repeat(20_000)}` }
  guarded.instead(issuer, { status: 200, body: JSON.stringify(far) })
  await t.rejects(begin(), { code: 'upstream_rejected', message: /address of its page is too long/ })
  guarded.instead(issuer, null)
  guarded.metadata({ resource: `${guarded.url}/`, authorization_servers: [guarded.origin] })
  const withSlash = /for another server \(http:.*\/mcp\/\) than the connector's url/
  await t.rejects(begin(), { code: 'upstream_rejected', message: withSlash })
  guarded.metadata(null)

  const denied = await begin()
  denied.searchParams.delete('code')
  denied.searchParams.set('error', 'access_denied')
  denied.searchParams.set('error_description', 'words of a stranger')
  const refusal: Error = await finish(denied).then(
    () => new Error('it went through'),
    (error) => error,
  )
  t.match(refusal.message, /it answered access_denied/)
  t.notMatch(refusal.message, /stranger/)
  const foreign = await begin()
  foreign.searchParams.delete('code')
  foreign.searchParams.set('error', 'access_denied')
  foreign.searchParams.set('iss', 'https://other.test')
  const notOurs = /^The login at docs failed: its issuer is not the one expected\.$/
  await t.rejects(finish(foreign), { code: 'upstream_rejected', message: notOurs })

  const mixed = await begin()
  mixed.searchParams.set('iss', 'https://other.test')
  await t.rejects(finish(mixed), { code: 'upstream_rejected', message: /issuer is not the one expected/ })
  const unnamed = await begin()
  unnamed.searchParams.delete('iss')
  await t.rejects(finish(unnamed), { code: 'upstream_rejected', message: /does not name its issuer/ })
  const wrong = await begin()
  wrong.searchParams.set('code', 'made-up')
  const before = guarded.grants.authorization_code ?? 0
  await t.rejects(finish(wrong), { code: 'upstream_rejected' })
  t.equal(guarded.grants.authorization_code, before + 1, 'no code is sent twice')
  await t.rejects(finish(wrong), { code: 'invalid_request', message: /used already/ })
  guarded.told(() => ({ token_type: 'Bearer' }))
  await t.rejects(finish(await begin()), { code: 'upstream_rejected', message: /gave no token/ })
  guarded.told((answer) => ({ ...answer, access_token: 'x'.repeat(200_000) }))
  await t.rejects(finish(await begin()), { code: 'upstream_rejected', message: /answered is too long/ })
  guarded.told(null)

  const late = await begin()
  await store.connectors.update(ANN, await read(), { pin: 'block' })
  await t.rejects(finish(late), { code: 'invalid_request', message: /changed or deleted since/ })
  t.equal((await read()).secret, null)

  const [first, second] = [await begin(), await begin()]
  await finish(first)
  await t.rejects(finish(second), { code: 'invalid_request', message: /is logged in/ })
})

t.test('where no client can register itself, the client that was given is used', async (t) => {
  const client = { client_id: 'known', client_secret: 'mcp-client-secret-of-known' }
  const { guarded, replica, logIn, read, made } = await bench(t, { client })
  await t.rejects(replica().begin(ANN, await read()), { code: 'not_available', message: /auth\.client_id/ })
  const secret = sealConnector(vault, made, { headers: {}, env: {}, oauth: { client } })
  await store.connectors.update(ANN, await read(), { secret })
  const connector = await logIn()
  t.match(await replica().authFor(connector).token(), /^mcp-access-/)
  const other = await guardedServer(t)
  guarded.metadata({ resource: guarded.url, authorization_servers: [other.origin] })
  await replica().begin(ANN, await read())
  t.equal(other.clients.length, 1, 'a client is for the login service that it was first used with')
})

t.test('metadata are found where they belong if nothing is where the refusal says', async (t) => {
  const [guarded, service] = [await guardedServer(t), await guardedServer(t)]
  guarded.metadata({ resource: guarded.url, authorization_servers: [service.origin] })
  const oauth = createMcpOAuth()
  t.teardown(() => oauth.close())
  const challenge = { resource_metadata: `${guarded.url}/mcp` }
  const begun = { login: null, redirect_url: 'http://127.0.0.1:1/cb', client_metadata_url: '', state: 's' }
  const { authorization_url } = await oauth.begin(target(guarded), { ...begun, challenge })
  t.match(authorization_url, service.origin)
  t.match(new URL(authorization_url).searchParams.get('resource'), guarded.url)
})

t.test('an address of a login is refused where a connector may not go there', async (t) => {
  const guarded = await guardedServer(t)
  const closed = createMcpOAuth({
    resolve: async (name) => [{ address: name === 'inner.test' ? '10.0.0.7' : '93.184.215.14', family: 4 }],
  })
  t.teardown(() => closed.close())
  const begun = { login: null, redirect_url: 'http://127.0.0.1:1/cb', client_metadata_url: '', state: 's' }
  const begin = (where: McpLoginTarget) => closed.begin(where, { ...begun, challenge: null })
  const refused = { code: 'address_not_allowed' }
  await t.rejects(begin({ ...target(guarded), allowPrivate: false }), refused, 'the server itself')
  await t.rejects(
    begin({ name: 'docs', url: 'http://public.test/mcp', allowPrivate: false }),
    refused,
    'plain http',
  )
  for (const issuer of [
    'https://10.0.0.7',
    'https://inner.test',
    'https://169.254.169.254',
    'http://public.test',
  ]) {
    guarded.metadata({ resource: guarded.url, authorization_servers: [issuer] })
    await t.rejects(begin({ ...target(guarded), allowPrivate: ['127.0.0.1'] }), refused, issuer)
  }
  const challenge = { resource_metadata: 'https://inner.test/metadata' }
  const where = { ...target(guarded), allowPrivate: ['127.0.0.1'] }
  await t.rejects(closed.begin(where, { ...begun, challenge }), refused, 'metadata that the refusal names')
  for (const page of ['http://10.0.0.7/login', 'https://inner.test/login', 'http://public.test/login']) {
    const lures = { ...target(await guardedServer(t, { page })), allowPrivate: ['127.0.0.1'] }
    await t.rejects(begin(lures), refused, `nobody is sent to ${page}`)
  }
  guarded.metadata({ resource: 'https://other.test/mcp', authorization_servers: [guarded.origin] })
  await t.rejects(begin(where), { code: 'upstream_rejected', message: /for another server/ })
  guarded.metadata(null)
  const service = '/.well-known/oauth-authorization-server'
  const metadata = (await (await fetch(guarded.origin + service)).json()) as object
  const told = { ...metadata, token_endpoint: 'http://public.test/token' }
  guarded.instead(service, { status: 200, body: JSON.stringify(told) })
  await t.rejects(begin(where), refused, 'nobody is sent to a login whose code could not be exchanged')
})

t.test('no step of a login goes where the operator lets connectors go no more', async (t) => {
  const { guarded, replica, read, logIn, time } = await bench(t, { expires_in: 600 })
  const [open, closed] = [replica(), replica(undefined, store, false)]
  const refused = { code: 'address_not_allowed' }
  await t.rejects(closed.begin(ANN, await read()), refused)
  const { authorization_url } = await open.begin(ANN, await read())
  const answer = Object.fromEntries((await visit(authorization_url)).searchParams)
  await t.rejects(closed.finish(answer), refused)
  t.equal(guarded.grants.authorization_code, undefined)
  await logIn(open)
  time.ahead = 601_000
  await t.rejects(closed.authFor(await read()).token(), refused)
  t.equal(guarded.grants.refresh_token, undefined)
})
