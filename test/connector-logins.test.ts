/**
 * Logins at MCP servers, from the first refusal to the last refresh: a gateway with two owners, a guarded
 * MCP server and its login service.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createApp } from '../src/app.ts'
import { loadConfig } from '../src/config/load.ts'
import { openConnector, sealConnector } from '../src/credentials/connector-secret.ts'
import { BatonError } from '../src/errors.ts'
import { createMcpOAuth, type McpLoginTarget } from '../src/mcp/oauth.ts'
import { ANN, connectorWorld, guardedServer } from './credentials/connector-world.ts'
import { eventually, visit } from './credentials/world.ts'
import { type Answer, createClient, type Json } from './e2e/client.ts'
import type { McpLogins } from './emulators/oauth-mcp.ts'

const ADMIN = 'the-bootstrap-admin-key'

type Call = (method: string, path: string, body?: unknown) => Promise<Answer>

/** A gateway that wants keys, and its callers. */
async function gateway(t: Test): Promise<{ url: string; ann: Call; bob: Call; admin: Call }> {
  const folder = mkdtempSync(join(tmpdir(), 'baton-connector-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const env = {
    BATON_DATA_DIR: folder,
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: ADMIN,
    BATON_CONNECTORS_ALLOW_PRIVATE: 'true',
    BATON_DRAIN_SECONDS: '0',
  }
  const app = await createApp(loadConfig(env, folder).config, { log: pino({ level: 'silent' }) })
  t.teardown(() => app.close())
  await app.http.listen({ host: '127.0.0.1', port: 0 })
  const url = `http://127.0.0.1:${(app.http.server.address() as AddressInfo).port}`
  const client = createClient(url)
  const as =
    (key: string): Call =>
    (method, path, body) =>
      client.call(method, path, body, { authorization: `Bearer ${key}` })
  const admin = as(ADMIN)
  const keyOf = async (owner: string) =>
    (await admin('POST', '/v1/keys', { owner, scopes: ['chat'] })).body.key as string
  return { url, ann: as(await keyOf('ann')), bob: as(await keyOf('bob')), admin }
}

t.test('an owner logs in at a server that wants it, and nobody else ever uses that login', async (t) => {
  const [guarded, { url, ann, bob, admin }] = [await guardedServer(t), await gateway(t)]
  /** The owner's name travels beside the token, so that the server can tell whose call it is. */
  const connectorOf = async (call: Call, owner: string): Promise<Json> => {
    const auth = { type: 'oauth' }
    const headers = { 'x-owner': owner }
    const body = { name: 'docs', transport: 'streamable_http', url: guarded.url, auth, headers }
    return (await call('POST', '/v1/connectors', body)).body
  }
  const connector = await connectorOf(ann, 'ann')
  const path = `/v1/connectors/${connector.id}`
  const logIn = async (call: Call, id: string) => {
    const begun = await call('POST', `/v1/connectors/${id}/login`)
    t.equal(begun.status, 200, JSON.stringify(begun.body))
    return { ...begun.body, back: await visit(begun.body.authorization_url) } as Json
  }
  const model = { provider: 'openai', model: 'gpt-5.6-sol' }
  const session = (await ann('POST', '/v1/sessions', { ...model, connectors: ['docs'] })).body.id

  await t.test('until then it says where to log in', async (t) => {
    const login_url = `${path}/login`
    t.match(connector.status, { state: 'auth_required', login_url })
    t.match((await ann('GET', path)).body.status, { state: 'auth_required', login_url })
    t.match((await ann('POST', `${path}/test`)).body, {
      ok: false,
      error: new RegExp(`docs needs a login: POST ${login_url}`),
    })
    t.equal(guarded.passed.length, 0)
  })

  await t.test('it is for the owner alone to begin, in their own browser', async (t) => {
    t.equal((await bob('POST', `${path}/login`)).status, 404)
    t.match(await admin('POST', `${path}/login`), { status: 403, body: { error: { code: 'forbidden' } } })
    const open = { name: 'open', transport: 'streamable_http', url: guarded.url }
    const plain = (await ann('POST', '/v1/connectors', open)).body
    t.match(await ann('POST', `/v1/connectors/${plain.id}/login`), {
      status: 400,
      body: { error: { code: 'invalid_request', message: /its auth is none/ } },
    })
  })

  await t.test('the browser goes there and back, once', async (t) => {
    const { authorization_url, state, expires_at, back } = await logIn(ann, connector.id)
    const asked = new URL(authorization_url).searchParams
    t.match(Object.fromEntries(asked), {
      response_type: 'code',
      code_challenge_method: 'S256',
      code_challenge: /^[\w-]{43}$/,
      redirect_uri: `${url}/v1/oauth/connectors/callback`,
      resource: guarded.url,
      scope: 'tools',
      state,
    })
    t.ok(Date.parse(expires_at) > Date.now())
    const forged = await fetch(`${url}/v1/oauth/connectors/callback?code=x&state=guess`)
    t.equal(forged.status, 400)
    t.match(await forged.text(), /No login with this state/)
    const page = await fetch(back)
    t.equal(page.status, 200)
    t.match(await page.text(), /You are logged in/)
    t.match(page.headers.get('referrer-policy'), 'no-referrer')
    const again = await fetch(back)
    t.equal(again.status, 400)
    t.match(await again.text(), /used already/)
    t.equal(guarded.clients.length, 1)
  })

  await t.test('then its tools come into the session by themselves', async (t) => {
    const look = await eventually(async () => {
      const tools = (await ann('GET', `/v1/sessions/${session}/tools`)).body.tools as Json[]
      return tools.find(({ server, status }) => server === 'docs' && status === 'available') ?? null
    })
    t.equal(look.canonical_name, 'docs.look')
    t.match((await ann('GET', path)).body.status, { state: 'ready' })
    t.match((await ann('POST', `${path}/test`)).body, { ok: true, tools: [{ name: 'look' }] })
  })

  await t.test('another owner has a login of his own', async (t) => {
    const own = await connectorOf(bob, 'bob')
    t.match((await bob('GET', `/v1/connectors/${own.id}`)).body.status, { state: 'auth_required' })
    await fetch((await logIn(bob, own.id)).back)
    t.match((await bob('POST', `/v1/connectors/${own.id}/test`)).body, { ok: true })
    const users = (owner: string) =>
      new Set(guarded.passed.filter(({ headers }) => headers['x-owner'] === owner).map(({ user }) => user))
    t.equal(users('ann').size, 1)
    t.equal(users('bob').size, 1)
    t.not([...users('ann')][0], [...users('bob')][0])
  })

  await t.test(
    'a login that the server ended is asked for anew, and a patch of something else keeps it',
    async (t) => {
      t.equal((await ann('PATCH', path, { require_approval: 'always' })).status, 200)
      t.equal((await ann('PATCH', path, { auth: connector.auth })).status, 200)
      t.match((await ann('POST', `${path}/test`)).body, { ok: true })
      guarded.revoke({ refresh: true })
      t.match((await ann('POST', `${path}/test`)).body, { ok: false, error: /needs a login/ })
      t.match((await ann('GET', path)).body.status, { state: 'auth_required' })
      await ann('POST', `/v1/sessions/${session}/tools/refresh`)
      const { tools } = (await ann('GET', `/v1/sessions/${session}/tools`)).body
      await fetch((await logIn(ann, connector.id)).back)
      t.match((await ann('POST', `${path}/test`)).body, { ok: true })
      t.equal(
        guarded.clients.length,
        3,
        'each login registers: the service may have forgotten the last client',
      )
      const look = (tools as Json[]).find(({ server }) => server === 'docs')
      t.match(look, { status: 'unavailable', reason: /needs a login: POST/ }, 'the registry says it, too')
      const moved = await ann('PATCH', path, { url: `${guarded.origin}/elsewhere` })
      t.match(moved.body.status, { state: 'auth_required' }, 'a login goes to no other server')
      const shown = JSON.stringify([moved.body, (await ann('GET', '/v1/connectors')).body])
      for (const secret of guarded.secrets) t.notMatch(shown, secret)
    },
  )
})

// ---------------------------------------------------------------- without a gateway

const { store, vault, bench } = await connectorWorld(t)
const target = ({ url }: McpLogins): McpLoginTarget => ({ name: 'docs', url, allowPrivate: true })

t.test('a token is refreshed once, however many calls and replicas need it at once', async (t) => {
  const guarded = await guardedServer(t, { expires_in: 600 })
  const { replica, logIn, time, read } = await bench(t, guarded)
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
  t.equal((await read()).config_revision, connector.config_revision, 'its connections stay')

  // The server refuses the token before its time: the same from everywhere.
  guarded.revoke()
  await Promise.all(replicas.map((one) => one.authFor(connector).onUnauthorized?.()))
  const third = new Set(await ask())
  t.equal(third.size, 1)
  t.equal(guarded.grants.refresh_token, 2)

  // Re-encryption reads the row, the refresh writes it: the old token must not come back.
  const [row] = await store.credentials.sealed('', 10)
  time.ahead += 590_000
  await ask()
  t.equal(guarded.grants.refresh_token, 3)
  if (!row) throw new Error('nothing is sealed')
  t.equal(await store.credentials.reseal('connector', row.id, row.version, row.secret), false)
})

t.test(
  'what may pass costs no login; what is final asks for a new one, and is not tried again',
  async (t) => {
    const guarded = await guardedServer(t, { expires_in: 600 })
    const { replica, logIn, time, read } = await bench(t, guarded)
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
    await t.rejects(
      replica()
        .authFor(await read())
        .token(),
      needed,
    )
    t.equal(guarded.grants.refresh_token, asked)
    t.equal(openConnector(vault, await read()).oauth?.tokens, undefined)
    await logIn(logins)
    t.ok(await logins.authFor(await read()).token())
  },
)

t.test('tokens that were rotated are stored through the store’s bad moments', async (t) => {
  const guarded = await guardedServer(t, { expires_in: 600 })
  const { replica, logIn, time, read } = await bench(t, guarded)
  const connector = await logIn()
  let refusals = 2
  const shaky: typeof store = {
    ...store,
    connectors: {
      ...store.connectors,
      keep(...given) {
        if (refusals-- > 0) throw new BatonError('unavailable', 'The database is not available.')
        return store.connectors.keep(...given)
      },
      release: () => Promise.reject(new BatonError('unavailable', 'The database is not available.')),
    },
  }
  time.ahead = 590_000
  const token = await replica(undefined, shaky).authFor(connector).token()
  t.equal(refusals, -1)
  t.equal(openConnector(vault, await read()).oauth?.tokens?.access_token, token)
  t.equal(guarded.grants.refresh_token, 1)
})

t.test('a refresh and a change of the connector leave each other’s work in place', async (t) => {
  const guarded = await guardedServer(t, { expires_in: 600 })
  const { replica, logIn, time, read } = await bench(t, guarded)
  const connector = await logIn()
  const over = (verb: 'keep' | 'update', meanwhile: () => Promise<unknown>): typeof store => {
    let isFirst = true
    const before = async () => {
      if (isFirst) await meanwhile()
      isFirst = false
    }
    const { keep, update } = store.connectors
    const connectors: typeof store.connectors = {
      ...store.connectors,
      ...(verb === 'keep'
        ? { keep: (...given) => before().then(() => keep(...given)) }
        : { update: (...given) => before().then(() => update(...given)) }),
    }
    return { ...store, connectors }
  }
  const held = async () => openConnector(vault, await read()).oauth?.tokens?.access_token
  const renamed = async () => store.connectors.update(ANN, await read(), { pin: 'block' })

  time.ahead = 590_000
  const former = await held()
  const token = await replica(undefined, over('keep', renamed)).authFor(connector).token()
  t.equal(guarded.grants.refresh_token, 1)
  t.not(token, former)
  t.equal(await held(), token, 'changed while the login service was asked')
  t.equal((await read()).pin, 'block')

  const signedOut = async () => {
    const row = await read()
    await store.connectors.update(ANN, row, { secret: sealConnector(vault, row, { headers: {}, env: {} }) })
  }
  time.ahead += 590_000
  const late = replica(undefined, over('keep', signedOut)).authFor(await read())
  await t.rejects(late.token(), { message: /docs needs a login/ })
  t.equal((await read()).secret, null, 'what was taken away stays away')

  const again = await logIn()
  time.ahead += 590_000
  const refreshed = () => replica().authFor(again).token()
  await logIn(replica(undefined, over('update', refreshed)))
  t.equal(guarded.grants.refresh_token, 3)
  const shared = await replica()
    .authFor(await read())
    .token()
  t.equal(shared, await held())
  t.equal((await read()).config_revision, again.config_revision + 1)
})

t.test('a login that does not fit ends in words, and in no token', async (t) => {
  const guarded = await guardedServer(t)
  const { replica, read } = await bench(t, guarded)
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
  guarded.instead(issuer, null)

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

  const mixed = await begin()
  mixed.searchParams.set('iss', 'https://other.test')
  await t.rejects(finish(mixed), { code: 'upstream_rejected', message: /issuer/ })
  const wrong = await begin()
  wrong.searchParams.set('code', 'made-up')
  await t.rejects(finish(wrong), { code: 'upstream_rejected' })
  await t.rejects(finish(wrong), { code: 'invalid_request', message: /used already/ })

  const late = await begin()
  await store.connectors.update(ANN, await read(), { pin: 'block' })
  await t.rejects(finish(late), { code: 'invalid_request', message: /changed or deleted since/ })
  t.equal((await read()).secret, null)

  const [first, second] = [await begin(), await begin()]
  await finish(first)
  await t.rejects(finish(second), { code: 'invalid_request', message: /is logged in/ })
})

t.test('where no client can register itself, the one that was given is used', async (t) => {
  const client = { client_id: 'known', client_secret: 'mcp-client-secret-of-known' }
  const guarded = await guardedServer(t, { client })
  const { replica, logIn, read, made } = await bench(t, guarded)
  await t.rejects(replica().begin(ANN, await read()), { code: 'not_available', message: /auth\.client_id/ })
  const secret = sealConnector(vault, made, { headers: {}, env: {}, oauth: { client } })
  await store.connectors.update(ANN, await read(), { secret })
  const connector = await logIn()
  t.match(await replica().authFor(connector).token(), /^mcp-access-/)
})

t.test('no address of a login leads where a connector may not go', async (t) => {
  const guarded = await guardedServer(t)
  const closed = createMcpOAuth({
    resolve: async (name) => [{ address: name === 'inner.test' ? '10.0.0.7' : '93.184.215.14', family: 4 }],
  })
  t.teardown(() => closed.close())
  const begin = (where: McpLoginTarget) =>
    closed.begin(where, { login: null, challenge: null, redirect_url: 'http://127.0.0.1:1/cb', state: 's' })
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
  await t.rejects(
    closed.begin(where, { login: null, challenge, redirect_url: 'http://127.0.0.1:1/cb', state: 's' }),
    refused,
    'metadata that the refusal names',
  )
  guarded.metadata({ resource: 'https://other.test/mcp', authorization_servers: [guarded.origin] })
  await t.rejects(begin(where), { code: 'upstream_rejected', message: /for another server/ })
})
