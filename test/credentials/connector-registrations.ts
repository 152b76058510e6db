/** Logins at services that forget clients, say little, write nulls, or call themselves something else. */
import t from 'tap'
import { openConnector, sealConnector } from '../../src/credentials/connector-secret.ts'
import type { McpLogins } from '../emulators/oauth-mcp.ts'
import { ANN, bench, store, vault } from './connector-shared.ts'
import { guardedServer } from './guarded-server.ts'
import { visit } from './world.ts'

const SERVICE = '/.well-known/oauth-authorization-server'
const RESOURCE = '/.well-known/oauth-protected-resource/mcp'

/** Lets the service give out this document with some fields changed. */
async function retell(guarded: McpLogins, path: string, change: object): Promise<void> {
  const document = await documentAt(guarded, path)
  guarded.instead(path, { status: 200, body: JSON.stringify({ ...document, ...change }) })
}

const documentAt = async (guarded: McpLogins, path: string) =>
  (await (await fetch(`${guarded.origin}${path}`)).json()) as object

/** Metadata as OpenID Connect Discovery wants them. */
const oidc = (metadata: object): string =>
  JSON.stringify({
    ...metadata,
    jwks_uri: 'https://as.test/jwks',
    subject_types_supported: ['public'],
    id_token_signing_alg_values_supported: ['RS256'],
  })

t.test('the next login registers a new client at a service that forgot the former one', async (t) => {
  const { guarded, replica, logIn, time, tokenNow } = await bench(t, { expires_in: 600 })
  await logIn()
  guarded.forget()
  await logIn()
  guarded.forget()
  const logins = replica()
  time.ahead = 601_000
  await t.rejects(tokenNow(logins), { message: /needs a login/ })
  await logIn(logins)
  t.ok(await tokenNow(logins))
})

t.test('a refused registration asks for a client by hand; an outage does not', async (t) => {
  const { guarded, replica, read } = await bench(t)
  const begin = async () => replica().begin(ANN, await read())
  guarded.instead('/register', { status: 403, body: 'Forbidden' })
  await t.rejects(begin(), {
    code: 'not_available',
    message: /register itself \(HTTP 403\).*auth\.client_id/,
  })
  guarded.instead('/register', { status: 400, body: '{"error":"invalid_redirect_uri"}' })
  await t.rejects(begin(), { message: /\(HTTP 400, invalid_redirect_uri\)/ })
  for (const status of [503, 429]) {
    guarded.instead('/register', { status })
    await t.rejects(begin(), { code: 'upstream_overloaded' }, `${status}`)
  }
})

t.test('a login says so where there is no login service, rather than ask for a client by hand', async (t) => {
  const { guarded, replica, read } = await bench(t, { tenant: '/as' })
  guarded.metadata({ resource: guarded.url, authorization_servers: [guarded.url] })
  guarded.instead('/register', { status: 404, body: 'Not Found' })
  const message = `No login service of docs was found (${guarded.url}). If it has one elsewhere, give its address as auth.issuer.`
  const begin = async () => replica().begin(ANN, await read())
  await t.rejects(begin(), { code: 'not_available', message })
  for (const status of [503, 429]) {
    guarded.instead('/register', { status })
    await t.rejects(begin(), { code: 'upstream_overloaded' }, `${status}`)
  }
  guarded.instead('/register', { status: 400, body: '{"error":"invalid_redirect_uri"}' })
  await t.rejects(begin(), { message: /auth\.client_id/ }, 'what refuses a registration is such a service')
})

t.test(
  'nulls and empty texts are passed over, and a registration may be answered with the client alone',
  async (t) => {
    const registered = ({ client_id, client_secret }: Record<string, unknown>) => ({
      client_id,
      client_secret,
      grant_types: null,
      client_uri: '',
    })
    const { guarded, logIn, time, tokenNow } = await bench(t, { expires_in: 600, registered })
    await retell(guarded, RESOURCE, { resource_name: null, jwks_uri: '' })
    await retell(guarded, SERVICE, { scopes_supported: null, service_documentation: '' })
    await logIn()
    time.ahead = 590_000
    t.ok(await tokenNow())
    t.same(guarded.grants, { authorization_code: 1, refresh_token: 1 })
  },
)

t.test('a login needs no more of metadata and registrations than what is read of them', async (t) => {
  const [service, openid] = [`${SERVICE}/as`, '/.well-known/openid-configuration/as']
  const registered = (answer: Record<string, unknown>) => ({
    ...answer,
    redirect_uris: 'http://127.0.0.1:1',
    client_id_issued_at: '2026-11-30T00:00:00Z',
    client_secret_expires_at: '0',
    tos_uri: '/tos',
  })
  const odd: Record<string, (guarded: McpLogins) => Promise<void> | void> = {
    'plain OAuth at the path of OpenID': async (guarded) => {
      guarded.instead(openid, { status: 200, body: JSON.stringify(await documentAt(guarded, service)) })
      guarded.instead(service, { status: 404 })
    },
    'an empty object in the first place': async (guarded) => {
      guarded.instead(openid, { status: 200, body: oidc(await documentAt(guarded, service)) })
      guarded.instead(service, { status: 200, body: '{}' })
    },
    'members that nobody reads': (guarded) =>
      retell(guarded, service, { service_documentation: '/docs', response_types_supported: undefined }),
    'members of a wrong type': (guarded) =>
      guarded.metadata({
        resource: guarded.url,
        authorization_servers: [`${guarded.origin}/as`],
        scopes_supported: 'tools',
        resource_policy_uri: '/policy',
      }),
  }
  for (const [words, spoil] of Object.entries(odd)) {
    const { guarded, logIn, time, tokenNow } = await bench(t, { expires_in: 600, registered, tenant: '/as' })
    await spoil(guarded)
    await logIn()
    const first = await tokenNow()
    time.ahead = 601_000
    t.not(await tokenNow(), first, words)
    await store.connectors.delete(ANN, 'con_1')
  }
})

t.test('a registration asks for a way to prove the client that the service takes', async (t) => {
  for (const [methods, asked] of [
    [['none'], 'none'],
    [['none', 'client_secret_post'], 'client_secret_post'],
    [['none', 'client_secret_post', 'client_secret_basic'], undefined],
  ] as const) {
    const { guarded, logIn, time, tokenNow } = await bench(t, { expires_in: 600, methods })
    await logIn()
    t.equal(guarded.clients[0]?.token_endpoint_auth_method, asked, `${methods}`)
    time.ahead = 590_000
    await tokenNow()
    t.same(guarded.grants, { authorization_code: 1, refresh_token: 1 })
    await store.connectors.delete(ANN, 'con_1')
  }
})

t.test('a token whose lifetime is zero, null or endless is not renewed for that', async (t) => {
  for (const expires_in of [0, null, '1e999']) {
    const { guarded, logIn, tokenNow } = await bench(t)
    guarded.told((answer) => ({ ...answer, expires_in }))
    await logIn()
    for (const _ of [1, 2]) t.ok(await tokenNow(), `${expires_in}`)
    t.same(guarded.grants, { authorization_code: 1 })
    await store.connectors.delete(ANN, 'con_1')
  }
  const { guarded, logIn, time, tokenNow } = await bench(t, { expires_in: 600 })
  await logIn()
  guarded.told((answer) => ({ ...answer, expires_in: undefined }))
  time.ahead = 601_000
  for (const _ of [1, 2]) t.ok(await tokenNow())
  t.equal(guarded.grants.refresh_token, 1, 'a renewal that names no lifetime forgets the former one')
})

t.test('a slash at the end of its name makes no other issuer', async (t) => {
  const { guarded, logIn, time, tokenNow } = await bench(t, {
    expires_in: 600,
    named: (address) => `${address}/`,
  })
  await logIn()
  time.ahead = 590_000
  t.ok(await tokenNow())
  t.equal(guarded.grants.refresh_token, 1)
})

t.test('the issuer of a login service is the address of its metadata, or what the owner gave', async (t) => {
  const { guarded, replica, logIn, time, read, tokenNow } = await bench(t, {
    expires_in: 600,
    named: () => 'https://cf.mcp.test',
  })
  const tell = async (issuer: string) => {
    const secret = sealConnector(vault, await read(), { headers: {}, env: {}, oauth: { issuer } })
    await store.connectors.update(ANN, await read(), { secret })
  }
  const begin = async () => replica().begin(ANN, await read())
  const another = /another issuer \(https:\/\/cf\.mcp\.test\/\); if that is right, give it as auth\.issuer/
  await t.rejects(begin(), { code: 'upstream_rejected', message: another })
  await tell('https://other.test')
  await t.rejects(begin(), { code: 'upstream_rejected', message: another })
  t.same(guarded.clients, [], 'no client is registered there')

  await tell('https://cf.mcp.test')
  for (const metadata of ['', 'none of the resource']) {
    // Then the service is looked for at the server itself.
    if (metadata !== '') guarded.instead(RESOURCE, { status: 404 })
    await logIn()
    time.ahead += 590_000
    t.ok(await tokenNow(), metadata)
  }
  t.same(guarded.grants, { authorization_code: 2, refresh_token: 2 })
})

t.test('where nothing says whom the server trusts, it is the issuer that the owner gave', async (t) => {
  const { guarded, logIn, time, read, tokenNow } = await bench(t, { expires_in: 600, tenant: '/as' })
  guarded.instead(RESOURCE, { status: 404 })
  const issuer = `${guarded.origin}/as`
  const secret = sealConnector(vault, await read(), { headers: {}, env: {}, oauth: { issuer } })
  await store.connectors.update(ANN, await read(), { secret })
  const { tokens } = openConnector(vault, await logIn()).oauth ?? {}
  t.equal(tokens?.issuer, issuer)
  const first = await tokenNow()
  guarded.instead(`${SERVICE}/as`, { status: 404 })
  time.ahead = 601_000
  await t.rejects(tokenNow(), { code: 'upstream_overloaded' })
  guarded.instead(`${SERVICE}/as`, null)
  time.ahead = 1_200_000
  t.not(await tokenNow(), first, 'a renewal goes there, too')
  t.same(guarded.grants, { authorization_code: 1, refresh_token: 1 })
})

t.test('the owner’s issuer chooses among services, and stands in for one that is none', async (t) => {
  const { guarded, logIn, time, read, tokenNow } = await bench(t, { expires_in: 600, tenant: '/as' })
  const elsewhere = await guardedServer(t)
  const issuer = `${guarded.origin}/as`
  const secret = sealConnector(vault, await read(), { headers: {}, env: {}, oauth: { issuer } })
  await store.connectors.update(ANN, await read(), { secret })
  for (const authorization_servers of [[elsewhere.origin, issuer], [guarded.url], [], undefined]) {
    guarded.metadata({ resource: guarded.url, ...(authorization_servers && { authorization_servers }) })
    const { grants } = guarded
    const before = grants.refresh_token ?? 0
    const { tokens } = openConnector(vault, await logIn()).oauth ?? {}
    t.equal(tokens?.issuer, issuer, `${authorization_servers}`)
    time.ahead += 601_000
    t.not(await tokenNow(), tokens?.access_token)
    t.equal(grants.refresh_token, before + 1)
  }
  t.same(elsewhere.clients, [])
})

t.test('a refresh token goes to the issuer only if the login was made there', async (t) => {
  const named = await guardedServer(t)
  const { guarded, logIn, time, read, tokenNow } = await bench(t, {
    expires_in: 600,
    named: () => named.origin,
  })
  guarded.instead(RESOURCE, { status: 404 })
  const oauth = { issuer: named.origin }
  const secret = sealConnector(vault, await read(), { headers: {}, env: {}, oauth })
  await store.connectors.update(ANN, await read(), { secret })
  await logIn()
  const first = await tokenNow()
  // The metadata of the service that calls itself so are away for a while.
  guarded.instead(SERVICE, { status: 404 })
  time.ahead = 601_000
  await t.rejects(tokenNow(), { code: 'upstream_overloaded' })
  guarded.instead(SERVICE, null)
  time.ahead = 1_200_000
  t.not(await tokenNow(), first)
  t.same([guarded.grants, named.grants], [{ authorization_code: 1, refresh_token: 1 }, {}])
})

t.test(
  'an issuer is taken as the refusal told it, though its name holds what an address encodes',
  async (t) => {
    const { guarded, logIn, time, read, tokenNow } = await bench(t, {
      expires_in: 600,
      named: () => 'https://login.test/{tenantid}/v2.0',
    })
    const issuer = 'https://login.test/%7Btenantid%7D/v2.0'
    await t.rejects(logIn(), { message: `is that of another issuer (${issuer})` })
    const secret = sealConnector(vault, await read(), { headers: {}, env: {}, oauth: { issuer } })
    await store.connectors.update(ANN, await read(), { secret })
    await logIn()
    time.ahead = 590_000
    t.ok(await tokenNow())
    t.equal(guarded.grants.refresh_token, 1)
  },
)

t.test('a service without metadata is logged in at though it shows a page for each path', async (t) => {
  const { guarded, logIn, tokenNow } = await bench(t)
  for (const path of [SERVICE, '/.well-known/openid-configuration'])
    guarded.instead(path, { status: 200, body: '<!doctype html>' })
  guarded.instead(RESOURCE, { status: 404 })
  await logIn()
  t.ok(await tokenNow())
})

t.test('metadata that only a challenge names are found where the server knows no GET', async (t) => {
  const { logIn, tokenNow, time } = await bench(t, { hidden: '/metadata', expires_in: 600 })
  await logIn()
  const first = await tokenNow()
  time.ahead = 601_000
  t.not(await tokenNow(), first, 'a renewal finds the metadata, too')
})

t.test('metadata that only a challenge names are found where a GET leads to another host', async (t) => {
  const { guarded, logIn, tokenNow } = await bench(t, { hidden: '/metadata' })
  const headers = { location: 'https://docs.mcp.test/' }
  guarded.instead('/mcp', { method: 'GET', status: 302, headers })
  await logIn()
  t.ok(await tokenNow())
})

t.test(
  'metadata are found, too, after a refusal for lack of a scope that does not say where they are',
  async (t) => {
    const { guarded, replica, logIn, read } = await bench(t, { hidden: '/metadata' })
    const connector = await logIn()
    const one = replica()
    one.authFor(connector).onChallenge?.({ scope: 'write' })
    const asked = new URL((await one.begin(ANN, await read())).authorization_url).searchParams
    t.match(Object.fromEntries(asked), { resource: guarded.url, scope: 'tools write' })
  },
)

t.test('Google is asked for a refresh token with the parameters of its own', async (t) => {
  const { guarded, replica, read } = await bench(t)
  const asked = async () => {
    const { authorization_url } = await replica().begin(ANN, await read())
    return new URL(authorization_url).searchParams
  }
  t.equal((await asked()).get('access_type'), null)
  await retell(guarded, SERVICE, { authorization_endpoint: 'https://accounts.google.com/o/oauth2/v2/auth' })
  t.match(Object.fromEntries(await asked()), { access_type: 'offline', prompt: 'consent', scope: 'tools' })
})

t.test('Microsoft is named the scope in each request, and no resource beside it', async (t) => {
  const { guarded, replica, read, time, tokenNow } = await bench(t, { expires_in: 600 })
  const authorize = 'https://login.microsoftonline.com/common/oauth2/v2.0/authorize'
  await retell(guarded, SERVICE, { authorization_endpoint: authorize, scopes_supported: ['offline_access'] })
  guarded.beMicrosofts()
  // It adds what it would not take back (github/copilot-cli#4464).
  guarded.told((answer) => ({ ...answer, scope: 'tools https://mcp.test/.default' }))
  const logins = replica()
  const { authorization_url } = await logins.begin(ANN, await read())
  const asked = new URL(authorization_url)
  t.equal(`${asked.origin}${asked.pathname}`, authorize)
  const { scope, resource, prompt } = Object.fromEntries(asked.searchParams)
  t.strictSame({ scope, resource }, { scope: 'tools offline_access', resource: undefined })
  t.equal(prompt, undefined, 'nobody is asked for a consent that an administrator has given')
  const back = await visit(`${guarded.origin}/authorize${asked.search}`)
  await logins.finish(Object.fromEntries(back.searchParams))
  const first = await tokenNow()
  time.ahead = 601_000
  const second = await tokenNow()
  t.not(second, first, 'the token is renewed')
  time.ahead += 601_000
  t.not(await tokenNow(), second, 'and renewed again')
  const again = new URL((await logins.begin(ANN, await read())).authorization_url)
  t.equal(again.searchParams.get('scope'), scope, 'the next login asks for the same')
  guarded.metadata({ resource: 'https://other.test/mcp', authorization_servers: [guarded.origin] })
  await t.rejects(logins.begin(ANN, await read()), { message: /metadata is for another server/ })
})

t.test('Microsoft is known by its token endpoint, too, behind a page of the server’s own', async (t) => {
  const { guarded, replica, read } = await bench(t)
  const token_endpoint = 'https://login.microsoftonline.com/common/oauth2/v2.0/token'
  await retell(guarded, SERVICE, { token_endpoint })
  for (const metadata of ['there', 'missing']) {
    if (metadata === 'missing') guarded.instead(RESOURCE, { status: 404 })
    const { authorization_url } = await replica().begin(ANN, await read())
    t.equal(new URL(authorization_url).searchParams.get('resource'), null, metadata)
  }
})

t.test(
  'metadata are looked for further where a service shows a page for what it does not know',
  async (t) => {
    const { guarded, logIn, tokenNow, time } = await bench(t, { tenant: '/as', expires_in: 600 })
    const metadata = await documentAt(guarded, `${SERVICE}/as`)
    const html = { status: 200, body: '<!doctype html>' }
    guarded.instead(`${SERVICE}/as`, html)
    guarded.instead('/.well-known/openid-configuration/as', html)
    guarded.instead('/as/.well-known/openid-configuration', { status: 200, body: oidc(metadata) })
    await logIn()
    const first = await tokenNow()
    time.ahead = 601_000
    t.not(await tokenNow(), first, 'a renewal finds the metadata, too')
  },
)

t.test('a login asks for the scope that the owner gave in place of those of the service', async (t) => {
  const { guarded, replica, logIn, read } = await bench(t)
  await retell(guarded, SERVICE, { scopes_supported: ['tools:read', 'profile', 'offline_access'] })
  const asked = async () => {
    const { authorization_url } = await replica().begin(ANN, await read())
    const { scope, prompt } = Object.fromEntries(new URL(authorization_url).searchParams)
    return { scope, prompt }
  }
  for (const [scope, prompt] of [
    ['tools:read profile', undefined],
    ['tools:read offline_access', 'consent'],
  ] as const) {
    await store.connectors.update(ANN, await read(), {
      secret: sealConnector(vault, await read(), { headers: {}, env: {}, oauth: { scope } }),
    })
    t.strictSame(await asked(), { scope, prompt }, 'a consent is for `offline_access`')
    await logIn()
    t.equal((await asked()).scope, scope, 'the owner’s scope is asked for at each login')
  }
})

t.test('a service that reads client documents needs no registration of the client', async (t) => {
  const asked: string[] = []
  const { guarded, replica, logIn, time, tokenNow } = await bench(t, {
    expires_in: 600,
    async document(client_id) {
      asked.push(client_id)
      return { ...replica(new URL(client_id).origin).clientDocument() }
    },
  })
  await logIn(replica('https://baton.test'))
  t.same(guarded.clients, [], 'no client is registered')
  time.ahead = 590_000
  t.ok(await tokenNow(), 'the login is renewed')
  t.equal(guarded.grants.refresh_token, 1)
  await retell(guarded, SERVICE, { token_endpoint_auth_methods_supported: undefined })
  await logIn(replica('https://moved.test'))
  t.same(asked, [
    'https://baton.test/v1/oauth/connectors/client',
    'https://moved.test/v1/oauth/connectors/client',
  ])

  await logIn(replica('http://127.0.0.1:1'))
  t.equal(guarded.clients.length, 1, 'a service could not read the document at a loopback address')
  t.throws(() => replica('http://127.0.0.1:1').clientDocument(), { code: 'not_found' })
  await retell(guarded, SERVICE, { token_endpoint_auth_methods_supported: ['client_secret_post'] })
  await logIn(replica('https://baton.test'))
  t.equal(guarded.clients.length, 2, 'a client that is known by a document has no secret')
})

t.test('a client that was given by hand is used in place of the document', async (t) => {
  const client = { client_id: 'by-hand', client_secret: 'mcp-client-secret-1' }
  const document = async () => ({})
  const { guarded, replica, logIn, read } = await bench(t, { client, document })
  await store.connectors.update(ANN, await read(), {
    secret: sealConnector(vault, await read(), { headers: {}, env: {}, oauth: { client } }),
  })
  await logIn(replica('https://baton.test'))
  await logIn(replica('https://baton.test'))
  t.equal(guarded.grants.authorization_code, 2)
})
