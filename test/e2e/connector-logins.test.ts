/** Logins at an MCP server through a gateway with two owners, from the first refusal to the next login. */
import t, { type Test } from 'tap'
import { anyStore } from '../any-store.ts'
import { guardedServer } from '../credentials/guarded-server.ts'
import { visit } from '../credentials/world.ts'
import { eventually } from '../waiting.ts'
import { wholeGateway } from '../whole-gateway.ts'
import { type Answer, createClient, type Json } from './client.ts'
import { BACKEND, openWorld } from './harness.ts'

const ADMIN = 'the-bootstrap-admin-key'

type Call = (method: string, path: string, body?: unknown) => Promise<Answer>

/** A gateway that wants keys, and its callers. */
async function gateway(
  t: Test,
  env: Record<string, string> = {},
): Promise<{ url: string; ann: Call; bob: Call; admin: Call }> {
  const { listen } = await wholeGateway(t, {
    ...(await anyStore(t)),
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: ADMIN,
    BATON_CONNECTORS_ALLOW_PRIVATE: 'true',
    BATON_DRAIN_SECONDS: '0',
    ...env,
  })
  const url = await listen()
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

t.test('an owner logs in at a server that wants a login, and nobody else ever uses that login', async (t) => {
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

  await t.test('before its login the connector says where to log in', async (t) => {
    const login_url = `${path}/login`
    t.match(connector.status, { state: 'auth_required', login_url })
    t.match((await ann('GET', path)).body.status, { state: 'auth_required', login_url })
    t.match((await ann('POST', `${path}/test`)).body, {
      ok: false,
      error: new RegExp(`docs needs a login: POST ${login_url}`),
    })
    t.equal(guarded.passed.length, 0)
  })

  await t.test('only the owner can begin a login, and only at a connector that wants one', async (t) => {
    t.equal((await bob('POST', `${path}/login`)).status, 404)
    t.match(await admin('POST', `${path}/login`), { status: 403, body: { error: { code: 'forbidden' } } })
    const open = { name: 'open', transport: 'streamable_http', url: guarded.url }
    const plain = (await ann('POST', '/v1/connectors', open)).body
    t.match(await ann('POST', `/v1/connectors/${plain.id}/login`), {
      status: 400,
      body: { error: { code: 'invalid_request', message: /its auth is none/ } },
    })
  })

  await t.test('the browser goes to the login service and back, once', async (t) => {
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
    t.match(await again.text(), /complete already/)
    t.equal(guarded.clients.length, 1)
    t.equal((await fetch(`${url}/v1/oauth/connectors/client`)).status, 404, 'it is no client by a document')
  })

  await t.test('after the login the tools of the server come into the session by themselves', async (t) => {
    const look = await eventually(async () => {
      const tools = (await ann('GET', `/v1/sessions/${session}/tools`)).body.tools as Json[]
      return tools.find(({ server, status }) => server === 'docs' && status === 'available')
    })
    t.equal(look.canonical_name, 'docs.look')
    t.match((await ann('GET', path)).body.status, { state: 'ready' })
    t.match((await ann('POST', `${path}/test`)).body, { ok: true, tools: [{ name: 'look' }] })
  })

  await t.test('another owner has a login of their own', async (t) => {
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
    'a login outlives a patch of other fields, and is asked for anew once the server ended it',
    async (t) => {
      t.equal((await ann('PATCH', path, { require_approval: 'always' })).status, 200)
      t.equal((await ann('PATCH', path, { auth: connector.auth })).status, 200)
      t.match((await ann('POST', `${path}/test`)).body, { ok: true })
      guarded.revoke({ refresh: true })
      const ended = /docs needs a login: POST .* \(its login service answered invalid_grant to the renewal/
      t.match((await ann('POST', `${path}/test`)).body, { ok: false, error: ended })
      t.match((await ann('GET', path)).body.status, { state: 'auth_required', error: ended })
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
      t.match(
        look,
        { status: 'unavailable', reason: /needs a login: POST/ },
        'the list of tools says so, too',
      )
      const moved = await ann('PATCH', path, { url: `${guarded.origin}/elsewhere` })
      t.match(moved.body.status, { state: 'auth_required' }, 'a login goes to no other server')
      const shown = JSON.stringify([moved.body, (await ann('GET', '/v1/connectors')).body])
      for (const secret of guarded.secrets) t.notMatch(shown, secret)
    },
  )
})

t.test(
  'once a call finds its login ended, the tools of the server say so until the next login',
  async (t) => {
    const guarded = await guardedServer(t)
    const world = await openWorld(t, BACKEND, { env: { BATON_CONNECTORS_ALLOW_PRIVATE: 'true' } })
    const { api } = world
    const body = { name: 'docs', transport: 'streamable_http', url: guarded.url, auth: { type: 'oauth' } }
    const { id } = await api.post('/v1/connectors', body)
    const logIn = async () => {
      const { authorization_url } = await api.post(`/v1/connectors/${id}/login`)
      t.equal((await fetch(await visit(authorization_url))).status, 200)
    }
    await logIn()
    const session = await world.session('openai key', { connectors: ['docs'] })
    const look = async (): Promise<Json> => {
      const { tools } = await api.get(`/v1/sessions/${session}/tools`)
      return tools.find(({ server }: Json) => server === 'docs')
    }
    const call = () => world.run(session, 'call docs__look with {}')
    t.match(await call(), { output_text: /look ran/ })
    guarded.revoke({ refresh: true })
    t.match(await call(), { output_text: /docs wants a login, or another one/ })
    const ended = await eventually(look, ({ status }) => status === 'unavailable')
    t.match(ended, { canonical_name: 'docs.look', reason: /docs needs a login: POST/ })
    await logIn()
    await eventually(look, ({ status }) => status === 'available')
    t.match(await call(), { output_text: /look ran/ })
  },
)

t.test('a gateway with a public https address is known to login services by its document', async (t) => {
  const root = 'https://93.184.215.14/chat'
  const { url, ann } = await gateway(t, { BATON_PUBLIC_URL: `${root}/` })
  const here = (address: URL | string) => `${address}`.replace(root, url)
  const document = async (client_id: string) => {
    const answer = await fetch(here(client_id))
    t.match(answer.headers.get('content-type'), /^application\/json/)
    return (await answer.json()) as Json
  }
  const guarded = await guardedServer(t, { document })
  const auth = { type: 'oauth' }
  const body = { name: 'docs', transport: 'streamable_http', url: guarded.url, auth }
  const { id } = (await ann('POST', '/v1/connectors', body)).body
  const begun = (await ann('POST', `/v1/connectors/${id}/login`)).body
  const client_id = `${root}/v1/oauth/connectors/client`
  t.equal(new URL(begun.authorization_url).searchParams.get('client_id'), client_id)
  t.same(await document(client_id), {
    client_id,
    client_uri: root,
    client_name: 'Baton',
    redirect_uris: [`${root}/v1/oauth/connectors/callback`],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    application_type: 'web',
    token_endpoint_auth_method: 'none',
  })
  t.equal((await fetch(here(await visit(begun.authorization_url)))).status, 200)
  t.match((await ann('POST', `/v1/connectors/${id}/test`)).body, { ok: true })
  t.same(guarded.clients, [])

  const inner = await gateway(t, { BATON_PUBLIC_URL: 'https://10.0.0.7' })
  const there = (await inner.ann('POST', '/v1/connectors', body)).body.id
  const asked = (await inner.ann('POST', `/v1/connectors/${there}/login`)).body.authorization_url
  t.match(
    new URL(asked).searchParams.get('client_id'),
    /^client-/,
    'a gateway that the internet does not reach registers a client',
  )
})
