/** What a connector shows and accepts, by who asks and by which of its secrets can still be opened. */
import t from 'tap'
import type { McpSetting } from '../src/config/config.ts'
import { configConnectors } from '../src/connectors/input.ts'
import { createConnectorViews } from '../src/connectors/view.ts'
import { createConnectors } from '../src/connectors.ts'
import { connectorKey, connectorSpec, openConnector } from '../src/credentials/connector-secret.ts'
import { createVault } from '../src/credentials/vault.ts'
import { BatonError } from '../src/errors.ts'
import { McpError } from '../src/mcp/contract.ts'
import type { Connector } from '../src/store/store.ts'
import { AVAILABLE, NONE } from './patterns.ts'
import { fakeBus } from './routes/fake-bus.ts'
import { gateway, vault } from './routes/gateway.ts'
import { ADMIN, gatewayOnStore, KEYS } from './routes/gateway-on-store.ts'

const g = await gatewayOnStore(t, KEYS)
const { as, store } = g
const admin = as(ADMIN)
const keyOf = async (owner: string): Promise<string> =>
  (await admin('POST', '/v1/keys', { owner, scopes: ['chat'] })).body.key
const ownerOf = async (owner: string) => as(await keyOf(owner))

const SETTING: McpSetting = {
  name: 'notes',
  transport: 'stdio',
  command: '/srv/operator/notes-server',
  args: ['--database', 'postgres://notes:hunter2@db/notes'],
  mode: 'dynamic',
  bind: 'auto',
}
const HTTP = { transport: 'streamable_http', mode: 'dynamic', bind: 'auto' } as const

t.test('an owner sees no command line of a configured server, and only the origin of its URL', async (t) => {
  const url = 'https://mcp.test/s/hunter2/mcp?api_key=hunter2#frag'
  await store.connectors.syncConfig(configConnectors([SETTING, { ...HTTP, name: 'search', url }], vault))
  const ann = await ownerOf('ann')
  for (const path of [
    '/v1/connectors/con_config_notes',
    '/v1/connectors/con_config_search',
    '/v1/connectors',
  ]) {
    const seen = await ann('GET', path)
    t.equal(seen.status, 200)
    t.notMatch(seen.text, /hunter2|srv/, path)
  }
  t.match((await ann('GET', '/v1/connectors/con_config_notes')).body, {
    name: 'notes',
    origin: 'config',
    command: null,
    args: NONE,
  })
  t.equal((await ann('GET', '/v1/connectors/con_config_search')).body.url, 'https://mcp.test')
  const whole = { command: SETTING.command, args: SETTING.args }
  t.match((await admin('GET', '/v1/connectors/con_config_notes')).body, whole, 'the operator sees all')
  t.equal((await admin('GET', '/v1/connectors/con_config_search')).body.url, url)
})

t.test('an owner sees the whole URL of a connector of their own', async (t) => {
  const bob = await ownerOf('bob')
  const url = 'https://mcp.test/mcp?tenant=1'
  const { body } = await bob('POST', '/v1/connectors', { name: 'mine', transport: 'sse', url })
  t.equal((await bob('GET', `/v1/connectors/${body.id}`)).body.url, url)
  const { data } = (await admin('GET', '/v1/audit')).body
  const made = data.find(({ subject }: { subject: string }) => subject === body.id)
  t.equal(made.details.url, 'https://mcp.test/mcp', 'the audit has it without what may be a secret')
})

t.test(
  'a connector that is changed or deleted lets its connection go, and its sessions hear of it',
  async (t) => {
    const ivy = await ownerOf('ivy')
    const input = { name: 'own', transport: 'sse', url: 'https://mcp.test/sse' }
    const { id } = (await ivy('POST', '/v1/connectors', input)).body
    const session = (await ivy('POST', '/v1/sessions', { ...MODEL, connectors: ['own'] })).body.id
    const key = async () => {
      const row = await store.connectors.get({ owner: 'ivy', admin: false }, id)
      return row && connectorKey(row)
    }
    const path = `/v1/connectors/${id}`
    const former = await key()
    t.match(await ivy('PATCH', path, { url: 'https://mcp.test/v2/sse' }), { status: 200 })
    t.match(g.tools.calls.slice(-2), [
      { verb: 'released', args: [former] },
      { verb: 'changed', args: ['own', undefined] },
    ])
    const latter = await key()
    t.equal((await ivy('DELETE', path)).status, 204)
    t.match(g.tools.calls.slice(-2), [
      { verb: 'released', args: [latter] },
      { verb: 'changed', args: ['own', [session]] },
    ])
    const told = g.bus.published.filter(([topic]) => topic === 'connectors')
    t.same(
      told,
      [former, latter].map((key) => ['connectors', key]),
      'the other replicas are told',
    )
    await g.bus.bus.publish('connectors', 'con_1@1')
    t.match(g.tools.calls.at(-1), { verb: 'released', args: ['con_1@1'] }, 'this one hears them, too')
  },
)

t.test('a write that the store failed lets a connection go if only its answer was lost', async (t) => {
  const jon = await ownerOf('jon')
  const input = { name: 'lost', transport: 'sse', url: 'https://mcp.test/sse' }
  const { id } = (await jon('POST', '/v1/connectors', input)).body
  const session = (await jon('POST', '/v1/sessions', { ...MODEL, connectors: ['lost'] })).body.id
  const { connectors } = store
  const { update, delete: remove } = connectors
  let isWritten = false
  const failed = async (write: () => Promise<unknown>): Promise<never> => {
    if (isWritten) await write()
    throw new BatonError('unavailable', 'The database is not available.')
  }
  connectors.update = (...given) => failed(() => update(...given))
  connectors.delete = (...given) => failed(() => remove(...given))
  t.teardown(() => Object.assign(connectors, { update, delete: remove }))
  // The bus is away: this replica hears nothing of itself over it.
  const { publish } = g.bus.bus
  g.bus.bus.publish = async () => {}
  t.teardown(() => Object.assign(g.bus.bus, { publish }))
  const tell = async (verb: string) => {
    const before = g.tools.calls.length
    const { status } = await jon(
      verb,
      `/v1/connectors/${id}`,
      verb === 'PATCH' ? { url: input.url } : undefined,
    )
    t.equal(status, 503)
    return g.tools.calls.slice(before)
  }
  t.strictSame([await tell('PATCH'), await tell('DELETE')], [[], []], 'one that stays is needed as before')
  isWritten = true
  t.match((await tell('PATCH')).at(-1), { verb: 'released', args: [`${id}@1`] })
  t.match((await tell('DELETE')).slice(-2), [
    { verb: 'released', args: [`${id}@2`] },
    { verb: 'changed', args: ['lost', [session]] },
  ])
  t.equal((await jon('DELETE', `/v1/connectors/${id}`)).status, 404)
})

t.test('what an owner says about a login service is kept sealed, with the login', async (t) => {
  const gil = await ownerOf('gil')
  const url = 'https://mcp.test/mcp'
  const told = {
    client_id: 'known',
    client_secret: 'hidden',
    issuer: 'https://cf.test',
    scope: 'read offline',
  }
  const connector = { name: 'guarded', transport: 'streamable_http', url, auth: { type: 'oauth', ...told } }
  const { body, text } = await gil('POST', '/v1/connectors', connector)
  t.same(body.auth, { type: 'oauth' })
  t.notMatch(text, /hidden/)
  const kept = async () => {
    const row = await store.connectors.get({ owner: 'gil', admin: false }, body.id)
    return row && openConnector(vault, row).oauth
  }
  const { client_id, client_secret, ...rest } = told
  t.same(await kept(), { client: { client_id, client_secret }, ...rest })
  await gil('PATCH', `/v1/connectors/${body.id}`, { auth: { type: 'oauth' }, pin: 'block' })
  t.same(
    await kept(),
    { client: { client_id, client_secret }, ...rest },
    'an auth as GET shows it changes nothing',
  )
  await gil('PATCH', `/v1/connectors/${body.id}`, { url: 'https://mcp.test/v2/mcp' })
  t.same(await kept(), { client: { client_id, client_secret }, ...rest }, 'another path changes nothing')
  for (const auth of [undefined, { type: 'oauth' }]) {
    const moved = await gil('PATCH', `/v1/connectors/${body.id}`, { url: 'https://else.test/mcp', auth })
    if (auth) t.notOk(await kept(), 'another origin drops what was said')
    else t.match(moved, { status: 400, body: { error: { param: 'auth', message: /given again/ } } })
  }
  await gil('PATCH', `/v1/connectors/${body.id}`, { auth: { type: 'oauth', scope: 'read' } })
  t.same(await kept(), { scope: 'read' }, 'a new auth replaces the former one as a whole')
})

const never = () => {
  throw new Error('nobody calls this')
}
const IDLE = {
  store,
  vault,
  config: { allowStdioConnectors: false, toolbox: g.config.toolbox },
  assertUrl: never,
  mcp: { list: never, status: never },
  logins: { authFor: never, begin: never, finish: never, clientDocument: never, close: never },
  specFor: (row: Connector) => connectorSpec(row, vault, false, never),
  tools: { accept: never, connectorChanged: never, letGo: never, list: never },
}

t.test('a test that fails within Baton is answered with 503, not as a fault of the server', async (t) => {
  const fay = await ownerOf('fay')
  const url = 'https://away.test/mcp'
  const { body } = await fay('POST', '/v1/connectors', { name: 'away', transport: 'sse', url })
  const away = new BatonError('unavailable', 'The database is not available.')
  const list = () => Promise.reject(new McpError('unavailable', 'away: …', { sent: false, cause: away }))
  const connectors = createConnectors({ ...IDLE, bus: fakeBus().bus, mcp: { list, status: never } })
  const caller = { owner: 'fay', admin: false, key_id: null }
  await t.rejects(connectors.test(caller, body.id), { code: 'unavailable', status: 503 })
})

t.test('a login lets the connection of the former login go, on every replica', async (t) => {
  const lea = await ownerOf('lea')
  const input = { name: 'kept', transport: 'sse', url: 'https://mcp.test/sse', auth: { type: 'oauth' } }
  const { id } = (await lea('POST', '/v1/connectors', input)).body
  const finish = async () => {
    const found = await store.connectors.get({ owner: 'lea', admin: false }, id)
    return { ...(found as Connector), config_revision: 2 }
  }
  const { bus, published } = fakeBus()
  const changed: string[] = []
  const tools = {
    ...IDLE.tools,
    letGo: () => {},
    connectorChanged: async (one: Connector) => void changed.push(connectorKey(one)),
  }
  const connectors = createConnectors({ ...IDLE, bus, tools, logins: { ...IDLE.logins, finish } })
  t.match(await connectors.loginPage({}), { status: 200 })
  t.strictSame(published, [['connectors', `${id}@1`]])
  t.strictSame(changed, [`${id}@2`])
})

t.test('a server that is connected is available once it has listed its tools', async (t) => {
  const hal = await ownerOf('hal')
  const url = 'https://mcp.test/mcp'
  const { body } = await hal('POST', '/v1/connectors', { name: 'mute', transport: 'sse', url })
  const made = await hal('POST', '/v1/sessions', { provider: 'openai', model: 'm', connectors: ['mute'] })
  const scope = { owner: 'hal', admin: false }
  const [connector, session] = await Promise.all([
    store.connectors.get(scope, body.id),
    store.sessions.get(scope, made.body.id),
  ])
  if (!connector || !session) throw new Error('the connector or the session is missing')
  await store.connectors.bind(session.id, connector.id, null)
  const { boundTo } = createConnectorViews({
    store,
    vault,
    mcp: { status: () => ({ state: 'ready' }) },
    // One tool, of another server
    tools: g.tools.tools,
  })
  const bound = async () => (await boundTo(session, { limit: 1 })).data
  t.match(await bound(), [{ status: 'unavailable', reason: 'mute is not ready yet' }])
  await store.connectors.saveList(connectorKey(connector), connector.id, { tools: [] })
  t.match(await bound(), [{ status: AVAILABLE }], 'a server without tools is available, too')
})

t.test('a connector whose encryption key is gone can be changed with its secrets given again', async (t) => {
  const eve = await ownerOf('eve')
  const made = await eve('POST', '/v1/connectors', {
    name: 'files',
    transport: 'streamable_http',
    url: 'https://files.test/mcp',
    headers: { 'x-tenant': 'told' },
    auth: { type: 'bearer', token: 'told' },
  })
  const url = `/v1/connectors/${made.body.id}`
  const scope = { owner: 'eve', admin: false }
  const before = await store.connectors.get(scope, made.body.id)
  if (!before) throw new Error('the connector was not kept')
  const lost = createVault([{ id: 'lost', key: new Uint8Array(32).fill(9) }])
  const secret = lost.seal('{}', 'elsewhere')
  await store.connectors.update(scope, before, { ...before, secret })
  t.match((await eve('GET', url)).body, { header_names: null })

  for (const [patch, param] of [
    [{ allow_tools: ['read_*'] }, 'headers'],
    [{ headers: {} }, 'auth'],
  ] as const) {
    t.match(await eve('PATCH', url, patch), {
      status: 400,
      body: { error: { code: 'invalid_request', param, message: /given again/ } },
    })
  }
  const given = { headers: { 'x-tenant': 'again' }, auth: { type: 'bearer', token: 'again' } }
  t.match(await eve('PATCH', url, { ...given, allow_tools: ['read_*'] }), {
    status: 200,
    body: { header_names: ['x-tenant'], allow_tools: ['read_*'], auth: { type: 'bearer' } },
  })
  t.match(await eve('PATCH', url, { allow_tools: [] }), { status: 200 }, 'the connector can be opened again')
})

const MODEL = { provider: 'openai', model: 'm' }
const refused = (param: string) => ({ status: 409, body: { error: { code: 'name_taken', param } } })

t.test('a connector gets no name that another server has in a session that binds it', async (t) => {
  const ann = await ownerOf('ann')
  const [one, two] = await Promise.all(
    ['one', 'two'].map(async (name) => {
      const input = { name, transport: 'streamable_http', url: 'https://mcp.test/mcp' }
      return (await ann('POST', '/v1/connectors', input)).body.id as string
    }),
  )
  const session = (await ann('POST', '/v1/sessions', { ...MODEL, connectors: ['two'] })).body.id
  await ann('PUT', `/v1/sessions/${session}/connectors/one`, { alias: 'three' })
  t.match(await ann('PATCH', `/v1/connectors/${two}`, { name: 'three' }), refused('name'))
  t.match(await ann('PATCH', `/v1/connectors/${two}`, { name: 'four' }), { body: { name: 'four' } })
  t.match(await ann('PATCH', `/v1/connectors/${one}`, { name: 'two' }), { body: { name: 'two' } })
})

t.test('a connector keeps a name that the configuration takes later; no session gets both', async (t) => {
  const key = await keyOf('zoe')
  const url = 'https://mcp.test/mcp'
  const input = { name: 'shared', transport: 'streamable_http', url }
  const { id } = (await as(key)('POST', '/v1/connectors', input)).body
  const configured = await gateway(store, {
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: ADMIN,
    BATON__TOOLBOX__MCPS__0__NAME: 'shared',
    BATON__TOOLBOX__MCPS__0__TRANSPORT: 'streamable_http',
    BATON__TOOLBOX__MCPS__0__URL: url,
    BATON__TOOLBOX__MCPS__0__MODE: 'strict',
    BATON__TOOLBOX__MCPS__1__NAME: 'asked-for',
    BATON__TOOLBOX__MCPS__1__TRANSPORT: 'streamable_http',
    BATON__TOOLBOX__MCPS__1__URL: url,
    BATON__TOOLBOX__MCPS__1__MODE: 'strict',
    BATON__TOOLBOX__MCPS__1__BIND: 'manual',
  })
  t.teardown(() => configured.close())
  await store.connectors.syncConfig(configConnectors(configured.config.toolbox.mcps, vault))
  const zoe = configured.as(key)

  const made = await zoe('POST', '/v1/sessions', MODEL)
  t.equal(made.status, 201)
  const bound = await store.connectors.bindings(made.body.id)
  t.strictSame(
    bound.map(({ connector }) => connector.id),
    ['con_config_shared'],
    'the operator’s server, not the one of the same name, and none that is bound by hand',
  )
  t.match(await zoe('POST', '/v1/sessions', { ...MODEL, connectors: ['shared'] }), refused('connectors[0]'))
  t.match(
    await as(key)('POST', '/v1/sessions', { ...MODEL, connectors: [id, 'con_config_shared'] }),
    refused('connectors[1]'),
    'also where neither server is bound unasked',
  )
  t.equal((await zoe('GET', '/v1/sessions')).body.data.length, 1, 'the refused calls left no session')

  const path = `/v1/connectors/${id}`
  t.match(await zoe('PATCH', path, {}), { status: 200, body: { name: 'shared' } })
  t.match(await zoe('PATCH', path, { name: 'own' }), { status: 200, body: { name: 'own' } })
  t.match(await zoe('PATCH', path, { name: 'shared' }), refused('name'))
})

t.test('secrets stay with the server that they were given for', async (t) => {
  const fay = await ownerOf('fay')
  const held = { headers: { 'x-tenant': 'told' }, auth: { type: 'bearer', token: 'told' } }
  const address = 'https://files.test/mcp'
  const made = await fay('POST', '/v1/connectors', {
    name: 'files',
    transport: 'streamable_http',
    url: address,
    ...held,
  })
  const path = `/v1/connectors/${made.body.id}`
  for (const call of [fay, admin]) {
    for (const url of ['https://elsewhere.test/mcp', 'http://files.test/mcp', 'https://files.test:444/mcp']) {
      for (const [given, param] of [
        [{}, 'headers'],
        [{ headers: {} }, 'auth'],
        [{ auth: { type: 'none' } }, 'headers'],
      ] as const) {
        t.match(
          await call('PATCH', path, { url, ...given }),
          {
            status: 400,
            body: { error: { code: 'invalid_request', param, message: /given again: .* another server/ } },
          },
          `${url}, ${param}`,
        )
      }
    }
  }
  const other = { status: 200, body: { header_names: ['x-tenant'], auth: { type: 'bearer' } } }
  t.match(await fay('PATCH', path, { url: `${address}/v2?a=1` }), other, 'another path is the same server')
  t.match(await fay('PATCH', path, { url: 'https://elsewhere.test/mcp', ...held }), other)

  const open = await fay('POST', '/v1/connectors', { name: 'open', transport: 'sse', url: address })
  const moved = await fay('PATCH', `/v1/connectors/${open.body.id}`, { url: 'https://elsewhere.test/sse' })
  t.match(moved, { status: 200 }, 'a connector without secrets may move to any server')
})

t.test('environment variables stay with the program that they were given for', async (t) => {
  const own = await gateway(store, { BATON_ALLOW_STDIO_CONNECTORS: 'true' })
  t.teardown(() => own.close())
  const made = await own.call('POST', '/v1/connectors', {
    name: 'program',
    transport: 'stdio',
    command: 'files-server',
    args: ['/srv'],
    env: { API_KEY: 'told' },
  })
  const path = `/v1/connectors/${made.body.id}`
  for (const [patch, args] of [
    [{ command: 'env' }, ['/srv']],
    [{ args: ['/srv', '-v'] }, ['/srv', '-v']],
  ] as const) {
    const refused = { status: 400, body: { error: { param: 'env', message: /given again/ } } }
    t.match(await own.call('PATCH', path, patch), refused)
    const given = await own.call('PATCH', path, { ...patch, env: { API_KEY: 'again' } })
    t.match(given, { status: 200, body: { command: 'env', args } })
  }
  t.match(
    await own.call('PATCH', path, { command: 'env', args: ['/srv', '-v'] }),
    { status: 200 },
    'a patch that changes nothing needs no variables',
  )
})

t.test('the timeout for tools of an owner’s server is an hour at most', async (t) => {
  const gus = await ownerOf('gus')
  const asked = (timeout: string) =>
    gus('POST', '/v1/connectors', {
      name: 'slow',
      transport: 'sse',
      url: 'https://slow.test/sse',
      default_tool_config: { timeout },
    })
  const error = { code: 'invalid_request', param: 'default_tool_config.timeout', message: /PT1H/ }
  t.match(await asked('PT1H1S'), { status: 400, body: { error } })
  t.match(await asked('PT60M'), { status: 201 })
})

t.test('a field of a connector is 128 KiB of JSON at most, whenever it is given', async (t) => {
  const ivo = await ownerOf('ivo')
  const headers = (count: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, i) => [`x-${i}`, 'v'.repeat(65_000)]))
  const asked = (given: object) =>
    ivo('POST', '/v1/connectors', { name: 'wide', transport: 'sse', url: 'https://wide.test/sse', ...given })
  const refused = (param: string) => ({
    status: 400,
    body: { error: { code: 'invalid_request', param, message: `${param} must be at most 128 KiB of JSON.` } },
  })
  t.match(await asked({ headers: headers(3) }), refused('headers'))
  t.match(await asked({ deny_tools: Array(1000).fill('a'.repeat(200)) }), refused('deny_tools'))
  const made = await asked({ headers: headers(2) })
  t.match(made, { status: 201 })
  const path = `/v1/connectors/${made.body.id}`
  t.match(await ivo('PATCH', path, { headers: headers(3) }), refused('headers'))
  t.match(await ivo('PATCH', path, { pin: 'block' }), { status: 200 }, 'what is stored stays')
})

t.test(
  'the patterns of a list of tools hold a thousand stars at most, and each character of one with ? is a star',
  async (t) => {
    const hal = await ownerOf('hal')
    const asked = (given: object) =>
      hal('POST', '/v1/connectors', {
        name: 'many',
        transport: 'sse',
        url: 'https://many.test/sse',
        ...given,
      })
    const full = Array.from({ length: 1000 }, (_, i) => `t${i}_*`)
    const more = [...full.slice(1), '*a*']
    for (const field of ['allow_tools', 'deny_tools'])
      t.match(await asked({ [field]: more }), {
        status: 400,
        body: { error: { code: 'invalid_request', param: field, message: /1000/ } },
      })
    const long = (count: number) => Array.from({ length: count }, (_, i) => `*${i}?*`.padEnd(250, 'a'))
    t.match(await asked({ deny_tools: long(5) }), { status: 400, body: { error: { param: 'deny_tools' } } })
    const made = await asked({ allow_tools: full, deny_tools: long(4) })
    t.match(made, { status: 201 })
    t.match(await hal('PATCH', `/v1/connectors/${made.body.id}`, { deny_tools: more }), {
      status: 400,
      body: { error: { param: 'deny_tools' } },
    })
  },
)
