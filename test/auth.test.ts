/** Who may call: what a key opens, how often it may call, and how soon a revoked key opens nothing more. */
import { mock } from 'node:test'
import t from 'tap'
import { createAuth, createKey } from '../src/auth.ts'
import { createRateLimit } from '../src/http/rate.ts'
import { fakeBus } from './routes/fake-bus.ts'
import { bearer, gateway } from './routes/gateway.ts'
import { ADMIN, gatewayOnStore, KEYS } from './routes/gateway-on-store.ts'

const g = await gatewayOnStore(t, { ...KEYS, OPENAI_API_KEY: 'sk-env' })
const { as, store } = g
const admin = as(ADMIN)
const keyFor = async (owner: string, scopes = ['chat']) => {
  const { body } = await admin('POST', '/v1/keys', { owner, scopes })
  return body as { id: string; key: string; hint: string }
}
const unauthenticated = { status: 401, body: { error: { code: 'unauthenticated', param: null } } }

t.test('every call below /v1 needs a key; health checks, metrics and documents need none', async (t) => {
  const none = await g.call('GET', '/v1/sessions')
  t.match(none, unauthenticated)
  t.equal(none.headers['www-authenticate'], 'Bearer')
  for (const path of ['callback/openai', 'connectors/callback'])
    t.not(
      (await g.call('GET', `/v1/oauth/${path}?state=x`)).status,
      401,
      'a browser that comes back from a login has no key',
    )
  for (const headers of [
    bearer('bk_wrong'),
    { authorization: 'Basic YTpi' },
    { authorization: 'Bearer' },
    { authorization: `Bearer ${ADMIN} x` },
    { 'x-api-key': '' },
    { 'x-api-key': 'bk_wrong' },
  ]) {
    t.match(await g.call('GET', '/v1/sessions', undefined, headers), unauthenticated, JSON.stringify(headers))
  }
  for (const url of ['/healthz', '/readyz', '/metrics', '/openapi.json']) {
    t.equal((await g.app.inject(url)).statusCode, 200, url)
  }
  const refused = await g.call('POST', '/v1/sessions', '{broken', { 'content-type': 'application/json' })
  t.match(refused, unauthenticated, 'the key is checked before the body is read')
})

t.test('a key is shown once, stored hashed, and works in both headers', async (t) => {
  const made = await admin('POST', '/v1/keys', { owner: 'ada', scopes: ['chat', 'chat'], name: 'laptop' })
  t.equal(made.status, 201)
  t.strictSame(made.body.scopes, ['chat'])
  const { key, id } = made.body
  t.match(key, /^bk_[\w-]{43}$/)
  t.match(made.body, { id: /^key_/, owner: 'ada', scopes: ['chat'], name: 'laptop', hint: key.slice(-4) })
  // Later the gateway may have written its use down.
  t.equal(made.body.last_used_at, null)
  t.match(await as(key)('GET', '/v1/sessions'), { status: 200 })
  t.match(await g.call('GET', '/v1/sessions', undefined, { 'x-api-key': key }), { status: 200 })
  t.match(await g.call('GET', '/v1/sessions', undefined, { authorization: `bearer   ${key}` }), {
    status: 200,
  })
  const listed = await admin('GET', '/v1/keys')
  t.match(listed.body.data[0], { id, revoked_at: null })
  t.notMatch(listed.text, key)
  t.equal(await store.keys.byHash(key), null, 'the store does not hold the key itself')
})

t.test('only an admin may make, list and revoke keys; the scope admin includes chat', async (t) => {
  const { key } = await keyFor('ada')
  for (const [method, url] of [
    ['POST', '/v1/keys'],
    ['GET', '/v1/keys'],
    ['DELETE', '/v1/keys/key_0'],
  ] as const) {
    const answer = await as(key)(
      method,
      url,
      method === 'POST' ? { owner: 'a', scopes: ['chat'] } : undefined,
    )
    t.match(answer, { status: 403, body: { error: { code: 'forbidden' } } }, `${method} ${url}`)
  }
  const { key: root } = await keyFor('root', ['admin'])
  t.match(await as(root)('GET', '/v1/keys'), { status: 200 })
  t.match(await as(root)('POST', '/v1/sessions', { provider: 'openai', model: 'm' }), {
    status: 201,
    body: { owner: 'root' },
  })
  for (const [body, param] of [
    [{ scopes: ['chat'] }, 'owner'],
    [{ owner: 'a b', scopes: ['chat'] }, 'owner'],
    [{ owner: '', scopes: ['chat'] }, 'owner'],
    [{ owner: 'a', scopes: [] }, 'scopes'],
    [{ owner: 'a', scopes: ['root'] }, 'scopes[0]'],
    [{ owner: 'a', scopes: ['chat'], expires_at: 'tomorrow' }, 'expires_at'],
    [{ owner: 'a', scopes: ['chat'], expires_at: '2020-01-01T00:00:00Z' }, 'expires_at'],
  ] as const) {
    t.match(await admin('POST', '/v1/keys', body), { status: 400, body: { error: { param } } }, param)
  }
  t.match(await admin('DELETE', '/v1/keys/key_0'), {
    status: 404,
    body: { error: { code: 'key_not_found' } },
  })
})

t.test('a revoked key is refused here at once, and the bus tells the other replicas', async (t) => {
  const { id, key } = await keyFor('ada')
  t.match(await as(key)('GET', '/v1/sessions'), { status: 200 })
  t.equal((await admin('DELETE', `/v1/keys/${id}`)).status, 204)
  t.match(await as(key)('GET', '/v1/sessions'), {
    ...unauthenticated,
    body: { error: { message: /revoked/ } },
  })
  t.same(g.bus.published.at(-1), ['keys', id])
  t.match(await admin('GET', '/v1/keys'), { body: { data: [{ id, revoked_at: String }] } })
  t.equal((await admin('DELETE', `/v1/keys/${id}`)).status, 204, 'a second revocation gets the same answer')
  const { data } = (await admin('GET', '/v1/audit')).body
  const acts = data.filter(({ subject }: { subject: string }) => subject === id)
  t.same(
    acts.map(({ act }: { act: string }) => act),
    ['key.revoke', 'key.create'],
    'the audit has the revocation once',
  )
})

t.test('other replicas hear of a revocation even if the answer of the store was lost', async (t) => {
  const { id } = await keyFor('ada')
  const bus = fakeBus()
  const revoke: typeof store.keys.revoke = async (...given) => {
    await store.keys.revoke(...given)
    throw new Error('away')
  }
  const auth = createAuth({
    config: { auth: 'keys', adminKey: ADMIN, corsOrigins: [] },
    store: { keys: { ...store.keys, revoke } },
    bus: bus.bus,
  })
  t.teardown(() => auth.close())
  await t.rejects(auth.revoke({ owner: 'admin', admin: true, key_id: null }, id), /away/)
  t.same(bus.published, [['keys', id]])
})

t.test('a revocation holds here even if the bus loses its message', async (t) => {
  const { id, key } = await keyFor('ada')
  t.match(await as(key)('GET', '/v1/sessions'), { status: 200 })
  const { publish } = g.bus.bus
  g.bus.bus.publish = async () => {}
  t.equal((await admin('DELETE', `/v1/keys/${id}`)).status, 204)
  g.bus.bus.publish = publish
  t.match(await as(key)('GET', '/v1/sessions'), unauthenticated)
})

t.test(
  'a key that was found is looked up again after a second, or when its revocation is heard',
  async (t) => {
    let now = 0
    mock.method(performance, 'now', () => now)
    t.teardown(() => mock.restoreAll())
    let lookups = 0
    const keys = {
      ...store.keys,
      byHash: (hash: string) => {
        lookups++
        return store.keys.byHash(hash)
      },
    }
    const { bus } = fakeBus()
    const config = { auth: 'keys' as const, adminKey: null, corsOrigins: [] }
    const auth = createAuth({ config, store: { keys }, bus })
    t.teardown(() => auth.close())
    const expires_at = '2020-01-01T00:00:00.000Z'
    const late = await createKey(store, 'test', { owner: 'ada', scopes: ['chat'], expires_at })
    const { id, key } = await createKey(store, 'test', { owner: 'ada', scopes: ['chat'] })
    const ask = () => auth.authenticate(bearer(key))
    t.same(await ask(), { owner: 'ada', admin: false, key_id: id })
    now += 999
    await ask()
    t.equal(lookups, 1)
    now += 2
    await ask()
    t.equal(lookups, 2, 'after a second')
    await bus.publish('keys', id)
    await ask()
    t.equal(lookups, 3, 'after word of a revocation')
    await bus.publish('keys', 'key_other')
    await ask()
    t.equal(lookups, 3)
    await t.rejects(auth.authenticate(bearer(late.key)), { code: 'unauthenticated', message: /expired/ })
    await t.rejects(auth.authenticate(bearer(ADMIN)), { code: 'unauthenticated' }, 'no bootstrap key is set')
    await auth.close()
    t.type((await store.keys.list({ owner: '', admin: true }, { limit: 1 })).data[0]?.last_used_at, 'string')
  },
)

t.test('each use of a key is written down once; that it cannot be is nobody’s failure', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  const written: string[][] = []
  let isAway = false
  const used: typeof store.keys.used = async (ids) => {
    written.push([...ids])
    if (isAway) throw new Error('away')
  }
  const auth = createAuth({
    config: { auth: 'keys', adminKey: null, corsOrigins: [] },
    store: { keys: { ...store.keys, used } },
    bus: fakeBus().bus,
  })
  const { id, key } = await createKey(store, 'test', { owner: 'ada', scopes: ['chat'] })
  await auth.authenticate(bearer(key))
  await auth.authenticate(bearer(key))
  mock.timers.tick(60_000)
  t.strictSame(written, [[id]], 'while the gateway runs')
  isAway = true
  await auth.authenticate(bearer(key))
  mock.timers.tick(60_000)
  t.strictSame(written, [[id], [id]])
  await auth.authenticate(bearer(key))
  await t.resolves(auth.close())
  t.equal(written.length, 3)
})

t.test(
  'a key that has used up its calls per minute is refused with 429; the bootstrap key never is',
  async (t) => {
    const limited = await gateway(store, { ...KEYS, BATON_RATE_LIMIT_PER_MINUTE: '3' })
    t.teardown(limited.close)
    const [one, two] = [await keyFor('ida'), await keyFor('ida')]
    const call = (key: string) => limited.as(key)('GET', '/v1/sessions')
    const callOften = async (key: string) => {
      const answers = []
      for (let n = 0; n < 8; n++) answers.push(await call(key))
      return answers
    }
    // Of eight calls at least four fall into one minute, even if a minute ends among them.
    const answers = await callOften(one.key)
    t.same(new Set(answers.slice(0, 3).map(({ status }) => status)), new Set([200]))
    const refused = answers.find(({ status }) => status === 429)
    t.match(refused?.body, { error: { code: 'rate_limited', details: { retry_after: Number } } })
    const seconds = Number(refused?.headers['retry-after'])
    t.ok(seconds >= 1 && seconds <= 60)
    t.equal((await call(two.key)).status, 200, 'another key has its own count')
    t.notOk((await callOften(ADMIN)).some(({ status }) => status === 429))
  },
)

t.test('calls are counted anew each minute; while the bus is away nobody is refused', async (t) => {
  const uncounted = createRateLimit({
    config: { rateLimitPerMinute: 1 },
    bus: { tally: () => Promise.reject(new Error('away')) },
  })
  for (let n = 0; n < 3; n++) await uncounted({ owner: 'ida', admin: false, key_id: 'key_1' })
  let clock = 15_000
  let countingMs = 0
  mock.method(Date, 'now', () => clock)
  t.teardown(() => mock.restoreAll())
  const counts = new Map<string, number>()
  const counted = createRateLimit({
    config: { rateLimitPerMinute: 1 },
    bus: {
      async tally(name, seconds) {
        t.equal(seconds, 60)
        clock += countingMs
        counts.set(name, (counts.get(name) ?? 0) + 1)
        return counts.get(name) ?? 0
      },
    },
  })
  const ida = { owner: 'ida', admin: false, key_id: null }
  await counted(ida)
  await t.rejects(counted(ida), { code: 'rate_limited', retryAfter: 45 })
  clock += 44_999
  countingMs = 2_000
  await t.rejects(
    counted(ida),
    { code: 'rate_limited', retryAfter: 1 },
    'the minute ends while the bus counts',
  )
  await t.resolves(counted(ida), 'the next minute begins anew')
})

t.test('an admin sees what is another owner’s, and uses no credential of theirs', async (t) => {
  const ada = as((await keyFor('ada')).key)
  const login = { provider: 'openai', kind: 'api_key', api_key: 'sk-ada' }
  const credential_id = (await ada('POST', '/v1/credentials', login)).body.id
  const chat = { provider: 'openai', model: 'm', credential_id }
  const session = (await ada('POST', '/v1/sessions', chat)).body.id
  const turn = (await ada('POST', `/v1/sessions/${session}/turns`, { input: 'a', background: true })).body.id
  t.match(await admin('GET', `/v1/sessions/${session}`), { status: 200, body: { owner: 'ada' } })
  t.match(await admin('GET', `/v1/turns/${turn}`), { status: 200 })
  t.match(await admin('GET', `/v1/credentials/${credential_id}`), { status: 200 })
  const refused = { status: 400, body: { error: { param: 'credential_id' } } }
  t.match(await admin('POST', '/v1/sessions', chat), refused)
  const lent = { credential_id: (await admin('POST', '/v1/credentials', login)).body.id }
  t.match(await admin('PATCH', `/v1/sessions/${session}`, lent), refused, 'an admin lends none either')
  t.match(await admin('PATCH', `/v1/sessions/${session}`, { credential_id }), { status: 200 })
})

t.test(
  'a key of the environment serves every owner, and a connector’s name is its owner’s alone',
  async (t) => {
    for (const owner of ['cara', 'dave']) {
      const call = as((await keyFor(owner)).key)
      t.match((await call('GET', '/v1/credentials')).body.data, [{ origin: 'env' }], owner)
      const files = { name: 'files', transport: 'sse', url: 'https://a.test' }
      t.equal((await call('POST', '/v1/connectors', files)).status, 201, owner)
    }
  },
)
