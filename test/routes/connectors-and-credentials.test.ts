/** What owners keep beside sessions: connectors, credentials and logins. */
import t from 'tap'
import { sealConnector } from '../../src/credentials/connector-secret.ts'
import { credentialView } from '../../src/credentials/credentials.ts'
import { NONE } from '../patterns.ts'
import { gateway, vault } from './gateway.ts'
import { FILES, gatewayOnStore } from './gateway-on-store.ts'

const g = await gatewayOnStore(t)
const { call, store } = g

t.test('two changes of a connector or a session at once both hold', async (t) => {
  let meanwhile: (() => Promise<unknown>) | null = null
  /** As if the other change came between the reading and the writing of this one. */
  const late = async <T>(read: Promise<T>): Promise<T> => {
    const found = await read
    const other = meanwhile
    meanwhile = null
    await other?.()
    return found
  }
  const g = await gateway({
    ...store,
    sessions: { ...store.sessions, get: (...given) => late(store.sessions.get(...given)) },
    connectors: { ...store.connectors, get: (...given) => late(store.connectors.get(...given)) },
  })
  t.teardown(() => g.close())
  const race = async (path: string, first: unknown, second: unknown) => {
    meanwhile = async () => t.equal((await g.call('PATCH', path, first)).status, 200)
    return g.call('PATCH', path, second)
  }
  const { id } = (await g.call('POST', '/v1/connectors', { ...FILES, name: 'raced' })).body
  const changed = await race(`/v1/connectors/${id}`, { headers: { 'x-a': '1' } }, { allow_tools: ['look'] })
  t.match(changed.body, { header_names: ['x-a'], allow_tools: ['look'] })

  const made = (await g.call('POST', '/v1/sessions', { provider: 'openai', model: 'gpt' })).body
  const path = `/v1/sessions/${made.id}`
  t.match((await race(path, { title: 'a' }, { metadata: { b: 1 } })).body, { title: 'a', metadata: { b: 1 } })
  const moved = { provider: 'gemini', model: 'g' }
  t.match(await race(path, moved, { provider: 'openai' }), {
    status: 400,
    body: { error: { param: 'model' } },
  })
  t.match((await g.call('GET', path)).body, moved, 'the session has no provider with the model of another')
})

t.test('connectors are made, shown without secrets, changed, tested and deleted', async (t) => {
  const made = await call('POST', '/v1/connectors', {
    ...FILES,
    headers: { 'x-tenant': 'hidden-value' },
    auth: { type: 'bearer', token: 'hidden-token' },
    default_tool_config: { timeout: 'PT5S' },
    require_approval: 'destructive',
  })
  t.equal(made.status, 201)
  t.match(made.body, {
    id: /^con_/,
    name: 'files',
    origin: 'api',
    auth: { type: 'bearer' },
    header_names: ['x-tenant'],
    mode: 'dynamic',
    default_tool_config: { max_instances: 5, timeout: 'PT5S' },
    require_approval: 'destructive',
    trust_annotations: false,
    pin: 'warn',
  })
  t.notMatch(JSON.stringify(made), /hidden/)
  const url = `/v1/connectors/${made.body.id}`
  t.same((await call('GET', url)).body, made.body)
  t.match((await call('GET', '/v1/connectors')).body, { data: [{ name: 'files' }], next_cursor: null })
  t.match(await call('POST', '/v1/connectors', FILES), {
    status: 409,
    body: { error: { code: 'name_taken', param: 'name' } },
  })

  const patch = { mode: 'strict', deny_tools: ['read_all'], trust_annotations: true, pin: 'block' }
  t.match((await call('PATCH', url, patch)).body, patch)
  const patched = await call('PATCH', url, { allow_tools: ['read_*'], url: 'https://mcp.test/other' })
  t.match(patched.body, {
    ...patch,
    allow_tools: ['read_*'],
    url: 'https://mcp.test/other',
    header_names: ['x-tenant'],
    auth: { type: 'bearer' },
    default_tool_config: { max_instances: 5, timeout: 'PT5S' },
    require_approval: 'destructive',
  })
  t.match(g.tools.calls.at(-1), { verb: 'changed', args: ['files', undefined] })
  t.match(await call('PATCH', url, { transport: 'sse' }), {
    status: 400,
    body: { error: { param: 'transport' } },
  })
  t.match(await call('PATCH', url, { command: 'sh' }), { status: 400, body: { error: { param: 'command' } } })
  t.match(await call('PATCH', url, { auth: { type: 'none' }, headers: {} }), {
    body: { auth: { type: 'none' }, header_names: NONE },
  })

  t.match(await call('POST', `${url}/test`), {
    status: 200,
    body: { ok: true, latency_ms: Number, server: { name: 'files' }, tools: [{ name: 'read' }] },
  })
  const { body: down } = await call('POST', '/v1/connectors', {
    ...FILES,
    name: 'down',
    auth: { type: 'bearer' },
    headers: { Authorization: 'Bearer t' },
  })
  t.same(down.auth, { type: 'bearer' }, 'the token may stand among the headers')
  const token = { auth: { type: 'bearer', token: 'u' } }
  const both = { status: 400, body: { error: { param: 'headers' } } }
  t.match(await call('PATCH', `/v1/connectors/${down.id}`, token), both)
  const scope = { owner: 'local', admin: true }
  const row = await store.connectors.get(scope, down.id)
  if (!row) throw new Error('the connector is gone')
  const held = { headers: { Authorization: 'Bearer t' }, env: {}, bearer: 'u' }
  await store.connectors.update(scope, row, { secret: sealConnector(vault, row, held) })
  t.match(await call('PATCH', `/v1/connectors/${down.id}`, { pin: 'block' }), { body: { pin: 'block' } })
  t.match(
    await call('PATCH', `/v1/connectors/${down.id}`, { headers: held.headers }),
    both,
    'what is given now is checked',
  )
  t.match(await call('POST', `/v1/connectors/${down.id}/test`), {
    status: 200,
    body: { ok: false, server: null, tools: NONE, error: 'Connection refused.' },
  })
  t.match(await call('POST', `${url}/tools/read%2Fall/accept`), { status: 200, body: { tool: 'read/all' } })
  t.match(await call('POST', `${url}/tools/read/accept`, { hash: 'ab' }), { status: 200 })
  t.same(
    g.tools.calls.filter(({ verb }) => verb === 'accept').map(({ args }) => args.slice(1)),
    [
      ['read/all', undefined],
      ['read', 'ab'],
    ],
  )
  t.equal((await call('DELETE', url)).status, 204)
  t.match(await call('GET', url), { status: 404, body: { error: { code: 'connector_not_found' } } })
  t.match(await call('DELETE', url), { status: 404 })
  await call('DELETE', `/v1/connectors/${down.id}`)
})

t.test('a connector with a bad field is refused, and the error names the field and the reason', async (t) => {
  const cases: [object, string, RegExp, string?][] = [
    [{ ...FILES, name: 'Files' }, 'name', /lower-case letter/],
    [{ ...FILES, name: 'a.b' }, 'name', /lower-case/],
    [{ name: 'a', transport: 'sse' }, 'url', /required for transport sse/],
    [{ ...FILES, url: 'ftp://a' }, 'url', /http or https/],
    [{ ...FILES, url: 'https://:p@a.test' }, 'url', /user name/],
    [{ ...FILES, url: 'http://169.254.169.254/' }, 'url', /not public/, 'address_not_allowed'],
    [{ ...FILES, command: 'sh' }, 'command', /does not belong/],
    [{ ...FILES, headers: { 'a b': 'c' } }, 'headers.a b', /legal HTTP header/],
    [{ ...FILES, headers: { a: 'b\nc' } }, 'headers.a', /legal HTTP header: .*one line/],
    [{ ...FILES, headers: { Host: 'evil' } }, 'headers.Host', /for the connection alone/],
    [{ ...FILES, headers: { a: 1 } }, 'headers.a', /string/],
    [{ ...FILES, auth: { type: 'bearer' } }, 'auth.token', /required/],
    [{ ...FILES, auth: { type: 'basic' } }, 'auth.type', /none, oauth, bearer/],
    [{ ...FILES, default_tool_config: { timeout: '30s' } }, 'default_tool_config.timeout', /ISO 8601/],
    [{ ...FILES, default_tool_config: { timeout: 30 } }, 'default_tool_config.timeout', /such as PT30S/],
    [
      { ...FILES, default_tool_config: { max_instances: 0 } },
      'default_tool_config.max_instances',
      /1 or more/,
    ],
    [
      { name: 'a', transport: 'stdio', command: 'sh' },
      'transport',
      /BATON_ALLOW_STDIO_CONNECTORS/,
      'forbidden',
    ],
    [{ name: 'a', transport: 'stdio' }, 'command', /required/],
    [
      { name: 'a', transport: 'stdio', command: 'sh', auth: { type: 'bearer', token: 't' } },
      'auth',
      /does not belong/,
    ],
    [
      { ...FILES, auth: { type: 'oauth' }, headers: { authorization: 'Bearer t' } },
      'headers',
      /the login makes the Authorization/,
    ],
    [
      { ...FILES, auth: { type: 'bearer', token: 't' }, headers: { Authorization: 'Bearer u' } },
      'headers',
      /^auth\.token makes the Authorization/,
    ],
    [
      { name: 'a', transport: 'stdio', command: 'sh', env: { 'a-b': 'c' } },
      'env.a-b',
      /environment variable/,
    ],
    [
      { name: 'a', transport: 'stdio', command: 'sh', env: { NODE_OPTIONS: '--require ./x.js' } },
      'env.NODE_OPTIONS',
      /^"NODE_OPTIONS" .*run other code/,
    ],
  ]
  for (const [body, param, message, code = 'invalid_request'] of cases) {
    const answer = await call('POST', '/v1/connectors', body)
    t.match(
      answer,
      { status: code === 'forbidden' ? 403 : 400, body: { error: { code, param, message } } },
      JSON.stringify(body),
    )
  }
})

t.test('credentials are made, shown by their hint, changed and deleted', async (t) => {
  const key = {
    provider: 'anthropic',
    kind: 'api_key',
    api_key: 'sk-ant-secret-WXYZ',
    workspace_id: 'wrkspc_1',
    name: 'work',
    default: true,
  }
  const made = await call('POST', '/v1/credentials', key)
  t.equal(made.status, 201)
  t.match(made.body, {
    id: /^cred_/,
    provider: 'anthropic',
    hint: 'WXYZ',
    workspace_id: 'wrkspc_1',
    state: 'active',
    default: true,
    origin: 'api',
  })
  t.notMatch(JSON.stringify(made), /secret/)
  const short = await call('POST', '/v1/credentials', { ...key, api_key: 'WXYZ', default: false })
  t.match(short, { status: 201, body: { hint: '****' } }, 'a hint is never the whole of a secret')
  await call('DELETE', `/v1/credentials/${short.body.id}`)
  const login = { provider: 'openai', kind: 'oauth', access_token: 'at', account_id: 'my account' }
  t.match(await call('POST', '/v1/credentials', login), {
    status: 400,
    body: { error: { param: 'account_id', message: /without spaces/ } },
  })
  const url = `/v1/credentials/${made.body.id}`
  t.same((await call('GET', url)).body, made.body)
  t.match(await call('PATCH', url, { state: 'disabled', name: 'old', default: false }), {
    status: 200,
    body: { state: 'disabled', name: 'old', default: false },
  })
  t.match((await call('PATCH', url, { name: null })).body, { state: 'disabled', name: null })
  t.match(await call('PATCH', url, { state: 'needs_reauth' }), {
    status: 400,
    body: { error: { param: 'state' } },
  })
  const all = await call('GET', '/v1/credentials')
  t.match(all.body, {
    data: [{ id: made.body.id }, { id: 'cred_env_openai', origin: 'env', hint: '9876' }],
    next_cursor: null,
  })
  const first = await call('GET', '/v1/credentials?limit=1')
  t.match(first.body, { data: [{ id: made.body.id }], next_cursor: String })
  const last = await call('GET', `/v1/credentials?limit=1&cursor=${first.body.next_cursor}`)
  t.match(last.body, { data: [{ id: 'cred_env_openai' }], next_cursor: null })
  t.match(await call('GET', '/v1/credentials/cred_env_openai'), { status: 200 })
  for (const method of ['PATCH', 'DELETE']) {
    const answer = await call(method, '/v1/credentials/cred_env_openai')
    t.match(answer, { status: 409, body: { error: { code: 'read_only' } } }, method)
  }
  t.equal((await call('DELETE', url)).status, 204)
  t.match(await call('GET', url), { status: 404, body: { error: { code: 'credential_not_found' } } })
  t.match(await call('PATCH', url, {}), { status: 404 })
})

t.test('logins are off until the operator names their provider', async (t) => {
  const login = { provider: 'openai', kind: 'oauth', access_token: 'at-12345' }
  const off = { status: 403, body: { error: { code: 'oauth_not_enabled' } } }
  t.match(await call('POST', '/v1/credentials', login), off)
  t.match(await call('POST', '/v1/oauth/openai/authorize'), off)
  t.match(
    await call('POST', '/v1/credentials/import', { provider: 'openai', format: 'codex', content: '{}' }),
    off,
  )
  t.match(await call('GET', '/v1/oauth/callback/openai?code=1&state=2'), off)
  t.match(await call('POST', '/v1/oauth/openai/exchange', { state: 's', code: 'c' }), off)
  t.match(await call('GET', '/v1/oauth/openai/status?state=s'), off)
  t.match(await call('GET', '/v1/oauth/callback/acme?code=1'), {
    status: 400,
    body: { error: { param: 'provider' } },
  })
  t.match(await call('POST', '/v1/oauth/gemini/authorize'), {
    status: 400,
    body: { error: { param: 'provider', message: /BATON_GOOGLE_OAUTH_CLIENT_ID/ } },
  })
  t.match(await call('POST', '/v1/oauth/acme/authorize'), {
    status: 400,
    body: { error: { param: 'provider' } },
  })
  const made = await call('POST', '/v1/credentials', {
    ...login,
    provider: 'gemini',
    project_id: 'p-1',
    refresh_token: 'r',
  })
  t.match(made, {
    status: 201,
    body: { kind: 'oauth', hint: '2345', project_id: 'p-1', path: 'code_assist' },
  })
  t.match(await call('POST', '/v1/credentials', { ...login, provider: 'gemini', path: 'public' }), {
    body: { path: 'public' },
  })
  for (const { id } of (await call('GET', '/v1/credentials')).body.data)
    await call('DELETE', `/v1/credentials/${id}`)
})

t.test('the routes of a login pass on what they are given, and answer what the logins say', async (t) => {
  const made = await store.credentials.create({
    id: 'cred_login',
    owner: 'local',
    provider: 'openai',
    kind: 'oauth',
    name: null,
    state: 'active',
    reason: null,
    is_default: false,
    hint: 'abcd',
    facts: {},
    expires_at: null,
    secret: new Uint8Array(1),
  })
  const seen: unknown[] = []
  const logins = {
    authorize: async (_: unknown, provider: string, mode: unknown) => {
      seen.push(['authorize', provider, mode])
      return {
        authorization_url: 'https://a.test',
        state: 's',
        expires_at: new Date(0).toISOString(),
        mode: 'paste' as const,
      }
    },
    callback: async (provider: string, query: unknown) => {
      seen.push(['callback', provider, query])
      return { status: 200 as const, html: '<p>You are logged in' }
    },
    exchange: async (_: unknown, provider: string, answer: unknown) => {
      seen.push(['exchange', provider, answer])
      return credentialView(made)
    },
    status: async () => ({ state: 'pending' as const }),
    importFile: async (_: unknown, file: unknown) => {
      seen.push(['import', file])
      return { ...credentialView(made), warning: 'It is ours now.' }
    },
    close: async () => {},
  }
  const other = await gateway(store, { BATON_ENABLE_OAUTH: 'openai' }, { logins })
  t.teardown(() => other.close())
  t.match(await other.call('POST', '/v1/oauth/openai/authorize', { mode: 'paste' }), {
    status: 200,
    body: { state: 's' },
  })
  const page = await other.call('GET', '/v1/oauth/callback/openai?code=c&state=s')
  t.match(page, { status: 200, text: /You are logged in/ })
  t.match(page.headers['content-security-policy'], "default-src 'none'", 'the page loads nothing else')
  t.match(await other.call('POST', '/v1/oauth/openai/exchange', { state: 's', code: 'c' }), {
    status: 200,
    body: { id: made.id },
  })
  for (const body of [{ state: 's' }, { state: 's', code: 'c', pasted: 'p' }]) {
    t.match(await other.call('POST', '/v1/oauth/openai/exchange', body), {
      status: 400,
      body: { error: { param: 'code' } },
    })
  }
  t.match(await other.call('GET', '/v1/oauth/openai/status?state=s'), {
    status: 200,
    body: { state: 'pending' },
  })
  const file = { provider: 'openai', format: 'codex', content: { tokens: {} } }
  t.match(await other.call('POST', '/v1/credentials/import', file), {
    status: 201,
    body: { id: made.id, warning: 'It is ours now.' },
  })
  t.same(seen, [
    ['authorize', 'openai', 'paste'],
    ['callback', 'openai', { code: 'c', state: 's' }],
    ['exchange', 'openai', { state: 's', code: 'c' }],
    ['import', file],
  ])
  await store.credentials.delete({ owner: '', admin: true }, made.id)
})
