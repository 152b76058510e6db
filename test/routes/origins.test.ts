/** Pages of other origins and other names of this machine: who may call, who may read, and what hardens answers. */
import t from 'tap'
import type { Document } from './document.ts'
import { bearer, gateway } from './gateway.ts'
import { ADMIN, gatewayOnStore, KEYS } from './gateway-on-store.ts'

const g = await gatewayOnStore(t, {
  ...KEYS,
  BATON_CORS_ORIGINS: 'https://app.test',
  BATON_BODY_LIMIT: '64KiB',
})

t.test('a caller who has a key may call by any name of the gateway, and from any page', async (t) => {
  for (const headers of [
    { host: 'baton.test' },
    { host: '10.0.0.7:8787' },
    { origin: 'https://page.test' },
  ]) {
    const answer = await g.call('GET', '/v1/sessions', undefined, { ...bearer(ADMIN), ...headers })
    t.equal(answer.status, 200, JSON.stringify(headers))
  }
})

t.test('pages of an allowed origin may read the answers, pages of other origins may not', async (t) => {
  const preflight = await g.app.inject({
    method: 'OPTIONS',
    url: '/v1/sessions',
    headers: {
      origin: 'https://app.test',
      'access-control-request-method': 'PATCH',
      'access-control-request-headers': 'authorization',
    },
  })
  t.equal(preflight.statusCode, 204)
  t.match(preflight.headers, {
    'access-control-allow-origin': 'https://app.test',
    'access-control-allow-methods': 'GET, POST, PUT, PATCH, DELETE',
    'access-control-allow-headers': 'authorization',
  })
  const vague = { method: 'OPTIONS', url: '/v1/sessions', headers: { origin: 'https://app.test' } } as const
  t.equal((await g.app.inject(vague)).statusCode, 204, 'also for a preflight that names no method')
  const { headers } = await g.call('GET', '/v1/sessions', undefined, {
    ...bearer(ADMIN),
    origin: 'https://app.test',
  })
  const exposed = String(headers['access-control-expose-headers']).split(', ')
  t.same(exposed, ['Location', 'x-baton-turn', 'x-request-id', 'Idempotent-Replayed', 'Retry-After'])
  const refused = await g.call('GET', '/v1/sessions', undefined, { origin: 'https://app.test' })
  t.equal(
    refused.headers['access-control-allow-origin'],
    'https://app.test',
    'a page can read why it was refused',
  )
  const url = (id: string) => `/v1/sessions/${id}`
  for (const [method, path, status, payload, type = 'application/json'] of [
    ['GET', '/v1/nothing', 404],
    ['PUT', '/v1/sessions', 405],
    ['POST', '/v1/sessions', 400, '{'],
    ['POST', '/v1/sessions', 413, 'x'.repeat(2 ** 16 + 1)],
    ['POST', '/v1/sessions', 415, 'a', 'text/plain'],
    ['GET', url('x'.repeat(513)), 400],
    ['GET', url('x'.repeat(1025)), 400],
    ['GET', url('%zz'), 400],
    ['GET', url('%00'), 400],
  ] as const) {
    const answer = await g.call(method, path, payload, {
      ...bearer(ADMIN),
      origin: 'https://app.test',
      ...(payload === undefined ? {} : { 'content-type': type }),
    })
    t.match(
      answer,
      {
        status,
        headers: {
          'access-control-allow-origin': 'https://app.test',
          'access-control-expose-headers': /x-request-id/,
          vary: /Origin/,
          'x-content-type-options': 'nosniff',
        },
        body: { error: { request_id: String } },
      },
      `${method} ${path.slice(0, 20)} ${status}`,
    )
  }
  const tooLong = await g.call('GET', url('x'.repeat(1025)), undefined, { origin: 'https://evil.test' })
  t.match(tooLong, { status: 400, headers: { 'access-control-allow-origin': undefined } })
  const other = await g.call('GET', '/v1/sessions', undefined, {
    ...bearer(ADMIN),
    origin: 'https://evil.test',
  })
  t.equal(other.headers['access-control-allow-origin'], undefined)
  const nothing = await g.call('GET', '/v1/nothing', undefined, bearer(ADMIN))
  t.match(
    nothing,
    { status: 404, body: { error: { code: 'not_found' } } },
    'preflights make no route of an unknown path',
  )
})

t.test('where every origin is allowed, any page may read every answer', async (t) => {
  const open = await gateway(g.store, { ...KEYS, BATON_CORS_ORIGINS: '*' })
  t.teardown(() => open.close())
  for (const [url, status] of [
    ['/v1/sessions', 401],
    ['/v1/sessions/%zz', 400],
  ] as const) {
    const answer = await open.call('GET', url, undefined, { origin: 'https://page.test' })
    t.match(answer, { status, headers: { 'access-control-allow-origin': '*' } }, url)
  }
})

t.test('answers carry the headers that harden them', async (t) => {
  const { headers } = await g.call('GET', '/healthz')
  t.match(headers, {
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
    'x-frame-options': /SAMEORIGIN|DENY/,
    'content-security-policy': /default-src 'none'/,
    'cross-origin-resource-policy': 'same-origin',
  })
  t.equal(headers['strict-transport-security'], undefined)
})

t.test('with auth off the caller is the admin local, and only this machine may call', async (t) => {
  const allowed = 'http://localhost:5173,capacitor://localhost'
  const open = await gateway(g.store, { BATON_CORS_ORIGINS: allowed })
  t.teardown(() => open.close())
  t.match(await open.call('POST', '/v1/sessions', { provider: 'openai', model: 'm' }), {
    status: 201,
    body: { owner: 'local' },
  })
  t.match(await open.call('GET', '/v1/keys'), { status: 200 })
  t.match(
    await open.call('GET', '/v1/nothing'),
    { status: 404 },
    'preflights make no route of an unknown path',
  )
  const status = async (headers: Record<string, string>) =>
    (await open.app.inject({ url: '/v1/sessions', headers })).statusCode
  for (const host of [
    'localhost',
    'localhost:8787',
    '127.0.0.1:1',
    '127.9.9.9',
    '[::1]:8787',
    'LOCALHOST',
    'app.localhost',
  ]) {
    t.equal(await status({ host }), 200, host)
  }
  for (const host of [
    'evil.test',
    'localhost.evil.test',
    '127.0.0.1.evil.test',
    '10.0.0.1',
    '0.0.0.0',
    '[::]',
    'localhost/x',
    'a@localhost:1:2',
    'localhost?.evil.test',
    'localhost#.evil.test',
    'evil.test@localhost',
    'localhost\\.evil.test',
  ]) {
    t.equal(await status({ host }), 403, `'${host}'`)
  }
  const host = 'localhost:8787'
  for (const origin of ['http://localhost:8787', 'http://localhost:5173', 'capacitor://localhost'])
    t.equal(await status({ host, origin }), 200, origin)
  for (const origin of [
    'null',
    'http://localhost:9999',
    'https://localhost:8787',
    'http://evil.test',
    'http://127.0.0.1:8787',
  ]) {
    t.equal(await status({ host, origin }), 403, origin)
  }
  const document: Document = (await open.app.inject({ url: '/openapi.json', headers: { host } })).json()
  for (const [path, operations] of Object.entries(document.paths)) {
    for (const method of Object.keys(operations)) {
      const url = path.replace(/\{\w+\}/g, 'x')
      for (const headers of [{ host: 'evil.test' }, { host, origin: 'http://evil.test' }]) {
        const answer = await open.app.inject({ method: method as 'get', url, headers })
        const what = `${method} ${path} ${JSON.stringify(headers)}`
        t.match([answer.statusCode, answer.json().error.code], [403, 'forbidden'], what)
      }
    }
  }
  const refused = await open.app.inject({ url: '/healthz', headers: { host: 'evil.test' } })
  t.match(refused.json(), { error: { code: 'forbidden', message: /loopback/, request_id: String } })
  for (const [origin, remedy] of [
    ['http://evil.test', /add it to BATON_CORS_ORIGINS/],
    // Which takes no `null`.
    ['null', /opened from a file, may not call; serve it over http/],
  ] as const) {
    const drivenBy = await open.app.inject({ url: '/v1/sessions', headers: { host, origin } })
    t.match(drivenBy.json().error.message, remedy, `what helps ${origin} is said`)
  }
  const preflight = await open.app.inject({
    method: 'OPTIONS',
    url: '/v1/sessions',
    headers: { host, origin: 'http://evil.test', 'access-control-request-method': 'POST' },
  })
  t.equal(preflight.statusCode, 403)
})
