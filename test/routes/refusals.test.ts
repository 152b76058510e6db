/** Bad input is refused everywhere, and the error names its field. */
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { connect } from 'node:net'
import { gzipSync } from 'node:zlib'
import { pino } from 'pino'
import t from 'tap'
import { unavailable } from '../../src/store/db.ts'
import { createMetrics } from '../../src/telemetry.ts'
import { EMPTY } from '../patterns.ts'
import { eventually } from '../waiting.ts'
import type { Document } from './document.ts'
import { gateway } from './gateway.ts'
import { gatewayOnStore } from './gateway-on-store.ts'

const g = await gatewayOnStore(t, { BATON_BODY_LIMIT: '64KiB', BATON_ENABLE_OAUTH: 'openai' })
const { call, store } = g
const json = { 'content-type': 'application/json' }
const raw = (method: string, url: string, payload: string | Buffer, headers: Record<string, string> = json) =>
  call(method, url, payload, headers)
const refused = (code: string, status: number, param: string | null = null) => ({
  status,
  body: { error: { code, param, message: String, details: Object, request_id: String } },
})

t.test('an answer carries the id of its request', async (t) => {
  const made = await call('GET', '/v1/sessions/ses_0')
  t.match(made.headers['x-request-id'], /^req_/)
  t.equal(made.body.error.request_id, made.headers['x-request-id'])
  const given = await call('GET', '/healthz', undefined, { 'x-request-id': 'abc-1' })
  t.equal(given.headers['x-request-id'], 'abc-1')
  for (const odd of ['a b\tc', '', 'x'.repeat(129)]) {
    const { headers } = await call('GET', '/healthz', undefined, { 'x-request-id': odd })
    t.match(headers['x-request-id'], /^req_/, `'${odd}'`)
  }
})

t.test('callers are not told where the database is', async (t) => {
  const away = unavailable('connect ECONNREFUSED 10.0.0.7:5432')
  const keys = { ...store.keys, byHash: () => Promise.reject(away) }
  const other = await gateway({ ...store, keys, ready: () => Promise.reject(away) }, { BATON_AUTH: 'keys' })
  t.teardown(() => other.close())
  const answers = [
    await other.call('GET', '/v1/sessions', undefined, { authorization: 'Bearer bk_x' }),
    await other.call('GET', '/readyz'),
  ]
  for (const { status, text } of answers) {
    t.equal(status, 503)
    t.match(text, /The database is not available/)
    t.notMatch(text, /10\.0\.0\.7/)
  }
})

t.test('a path that does not exist is a 404, and one that exists for another method a 405', async (t) => {
  const unknown = await call('POST', '/v1/chat/completions', {})
  t.match(unknown, refused('not_found', 404))
  t.match(unknown.body.error.message, /\/docs shows what there is/)
  t.match(await call('GET', '/nothing'), refused('not_found', 404))
  const wrong = await call('PUT', '/v1/sessions')
  t.match(wrong, refused('method_not_allowed', 405))
  t.equal(wrong.headers.allow, 'POST, GET, HEAD')
  t.match(await call('DELETE', '/v1/turns/turn_1?x=1'), refused('method_not_allowed', 405))
  t.match(await call('OPTIONS', '/v1/sessions'), refused('method_not_allowed', 405))
  t.match(await call('GET', '/docs/static/zz'), refused('not_found', 404))
  t.match(await call('POST', '/docs/static/zz'), refused('method_not_allowed', 405))
  for (const page of ['/docs', '/docs/']) {
    t.equal((await call('GET', page)).status, 200, page)
    t.match(await call('POST', page), refused('method_not_allowed', 405), page)
  }
  t.match(await call('POST', '/v1/sessions/'), refused('not_found', 404))
  t.match(await call('PUT', '/v1/sessions/'), refused('not_found', 404))
})

t.test('a query that a call does not know is refused, also where the call takes no query', async (t) => {
  const { paths } = (await call('GET', '/openapi.json')).body as Document
  const strict = Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations)
      .filter(([, { requestBody, security = [] }]) => !requestBody?.required && security.length > 0)
      .map(([method]) => [
        method.toUpperCase(),
        path.replace('{provider}', 'openai').replace(/\{\w+\}/g, 'x'),
      ]),
  )
  t.ok(strict.length > 30)
  for (const [method = '', path] of strict)
    t.match(
      await call(method, `${path}?odd=1&state=x`),
      refused('invalid_request', 400, 'odd'),
      `${method} ${path}`,
    )
  const misplaced = await call('PUT', '/v1/sessions/ses_0/connectors/docs?apply=now')
  t.match(misplaced, refused('invalid_request', 400, 'apply'))
  t.match(misplaced.body.error.message, /nothing in the query/)
  t.match(await call('GET', '/v1/sessions?=1'), refused('invalid_request', 400, '""'))
  const unasked = await call('POST', '/v1/sessions/ses_0/turns?stream=false', { input: 'x' })
  t.match(unasked, refused('invalid_request', 400, 'stream'))
  t.equal((await call('GET', '/healthz?odd=1')).status, 200, 'probes are not refused')
})

t.test('a name that stands in a query twice is refused for that, whatever its values', async (t) => {
  for (const query of ['outcome=ok&outcome=error', 'tool=a&tool=b', 'limit=1&limit=1']) {
    const name = query.split('=')[0] ?? ''
    const answer = await call('GET', `/v1/tool-executions?${query}`)
    t.match(answer, refused('invalid_request', 400, name), query)
    t.match(answer.body.error.message, 'may be given only once', query)
  }
})

t.test('a body is refused by a call that takes none: it may say how the call is meant', async (t) => {
  const misplaced = await call('DELETE', '/v1/sessions/ses_0/connectors/docs', { apply: 'now' })
  t.match(misplaced, refused('invalid_request', 400, 'apply'))
  t.match(misplaced.body.error.message, /nothing in its body/)
  t.match(await call('DELETE', '/v1/sessions/ses_0/connectors/docs', {}), refused('session_not_found', 404))
})

t.test('HEAD answers as GET does, without the body', async (t) => {
  for (const path of [
    '/healthz',
    '/docs',
    '/docs/',
    '/docs/static/index.css',
    '/v1/sessions',
    '/v1/sessions/ses_0',
  ]) {
    const get = await call('GET', path)
    t.match(await call('HEAD', path), { status: get.status, text: '' }, path)
  }
  const length = (await call('HEAD', '/v1/sessions')).headers['content-length']
  t.equal(length, (await call('GET', '/v1/sessions')).headers['content-length'])
  for (const only of [
    '/v1/turns/turn_0/events',
    '/v1/sessions/ses_0/events',
    '/v1/oauth/callback/openai?state=x',
  ])
    t.match(await call('HEAD', only), { status: 405, headers: { allow: /^GET$/ } }, `${only} has effects`)
  t.notMatch((await call('GET', '/openapi.json')).text, '"head":')
})

t.test('a body is not read for a path or a method that does not exist', async (t) => {
  const long = 'x'.repeat(65_537)
  for (const body of ['{', long]) {
    const missing = await raw('POST', '/nothing', body)
    t.match(missing, refused('not_found', 404))
    t.ok(missing.headers['x-content-type-options'], 'the answer is hardened like every other')
    t.match(await raw('PUT', '/v1/sessions', body), refused('method_not_allowed', 405))
  }
})

t.test('a path is refused beyond 512 characters, and where it is malformed or holds NUL', async (t) => {
  const long = (length: number) => call('GET', `/v1/sessions/${'x'.repeat(length)}`)
  t.match(await long(512), refused('session_not_found', 404))
  t.match(await long(513), refused('invalid_request', 400, 'id'))
  t.match(await long(1025), refused('invalid_request', 400))
  const faces = (length: number) => call('GET', `/v1/sessions/${encodeURIComponent('🙂'.repeat(length))}`)
  t.match(
    await faces(512),
    refused('session_not_found', 404),
    'characters are counted, not halves of surrogate pairs',
  )
  t.match(await faces(513), refused('invalid_request', 400))
  t.match(await call('GET', `/v1/sessions/${'%C3%A4'.repeat(512)}`), refused('session_not_found', 404))
  t.match(await call('GET', '/v1/sessions/%zz'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions/%c3'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions/a%00b'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions?cursor=%00'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions/%F0%9F%92%A9%2F..%27%3B'), refused('session_not_found', 404))
})

t.test('a time that no calendar or no clock has is refused', async (t) => {
  const login = { provider: 'openai', kind: 'oauth', access_token: 'x' }
  for (const time of [
    '2026-02-29T00:00:00Z',
    '2026-04-31T00:00:00Z',
    '2026-13-01T00:00:00Z',
    '2026-01-01T24:00:00Z',
    '2026-01-01T00:00:00+16:00',
    '9999-12-31T23:59:59-00:01',
    '2026-01-01T00:00:00+01:60',
  ]) {
    const answer = await call('POST', '/v1/credentials', { ...login, expires_at: time })
    t.match(answer, refused('invalid_request', 400, 'expires_at'), time)
    const list = await call('GET', `/v1/tool-executions?since=${encodeURIComponent(time)}`)
    t.match(list, refused('invalid_request', 400, 'since'), time)
  }
  // As Python's isoformat() writes it, put into a URL as it is.
  const spaced = await call('GET', '/v1/tool-executions?since=2026-01-01T00:00:00.000001+00:00')
  t.match(spaced, refused('invalid_request', 400, 'since'))
  t.match(spaced.body.error.message, /write \+ as %2B in a URL/)
  const noZone = await call('GET', '/v1/tool-executions?since=2026-01-01%2012:00')
  t.notMatch(noZone.body.error.message, /%2B/, 'a time after a space is no offset')
  for (const time of ['2028-02-29T23:59:59.5Z', '2026-01-01T00:00:00-12:00', '2026-01-01T00:00:00+15:59']) {
    t.equal((await call('POST', '/v1/credentials', { ...login, expires_at: time })).status, 201, time)
  }
  const made = [
    await call('POST', '/v1/credentials', { ...login, expires_at: '9999-12-31T23:59:59.9999999Z' }),
    await call('POST', '/v1/keys', {
      owner: 'a',
      scopes: ['chat'],
      expires_at: '9999-12-31T23:59:59.9999999Z',
    }),
  ]
  for (const { body } of made) t.equal(body.expires_at, '9999-12-31T23:59:59.999Z')
})

t.test('a body that is no JSON object, packed, too large or too deep is refused', async (t) => {
  const url = '/v1/sessions'
  for (const text of ['{', '{"a":}', 'null', '5', '"x"', '[]']) {
    t.match(await raw('POST', url, text), refused('invalid_request', 400), text)
  }
  for (const [text, param] of [
    ['{"__proto__": {}}', '__proto__'],
    ['{"constructor": {"prototype": 1}}', 'constructor.prototype'],
    ['{"parts": [{"a": 1}, {"arguments": {"__proto__": {"x": 1}}}]}', 'parts[1].arguments.__proto__'],
  ] as const) {
    const named = await raw('POST', url, text)
    t.match(named, refused('invalid_request', 400, param), text)
    t.match(named.body.error.message, /leave it out/)
  }
  t.match(await raw('POST', url, ''), refused('invalid_request', 400), 'empty')
  const python = await raw('POST', url, "{'provider': 'openai'}")
  t.match(python.body.error.message, /not valid JSON.*double quotes/)
  const foreign = await raw(
    'POST',
    url,
    Buffer.from('{"provider":"openai","model":"m","title":"caf\xe9"}', 'latin1'),
  )
  t.match(foreign, refused('invalid_request', 400))
  t.match(foreign.body.error.message, /UTF-8/)
  t.match(
    await raw('POST', url, 'a=b', { 'content-type': 'application/x-www-form-urlencoded' }),
    refused('unsupported_media_type', 415),
  )
  t.match(await raw('POST', url, '{}', { 'content-type': 'garbage' }), refused('unsupported_media_type', 415))
  t.match(await raw('POST', url, '{}', {}), { status: 415 })
  const zipped = gzipSync('{"provider":"openai","model":"m"}')
  for (const encoding of ['gzip', 'br, gzip']) {
    const packed = await raw('POST', url, zipped, { ...json, 'content-encoding': encoding })
    t.match(packed, refused('unsupported_media_type', 415), encoding)
    t.match(packed.body.error.message, /content-encoding/)
  }
  const plain = { ...json, 'content-encoding': 'Identity' }
  t.match(await raw('POST', url, '{"provider":"openai","model":"m"}', plain), { status: 201 })
  t.match(await raw('POST', url, `{"a":"${'x'.repeat(65_536)}"}`), refused('body_too_large', 413))
  const nested = (lists: string) => `{"provider":"openai","model":"m","metadata":{"a":${lists}}}`
  const deep = (levels: number) => nested(`${'['.repeat(levels)}${']'.repeat(levels)}`)
  for (const levels of [5000, 199])
    t.match(await raw('POST', url, deep(levels)), refused('invalid_request', 400), 'nested too deep')
  t.match(await raw('POST', url, deep(198)), { status: 201 }, '200 levels with the two around it')
  for (const item of ['[]', '{}'])
    t.match(
      await raw('POST', url, nested(`[${`${item},`.repeat(300)}0]`)),
      { status: 201 },
      'values side by side are no nesting',
    )
  const words = `{"provider":"openai","model":"m","metadata":{"a":"\\"${'['.repeat(300)}"}}`
  t.match(await raw('POST', url, words), { status: 201 }, 'brackets in a text are no nesting')
  t.match(
    await raw('POST', url, '{"provider":"openai","model":"m"}', {
      'content-type': 'application/json; charset=utf-8',
    }),
    { status: 201 },
  )
})

t.test(
  'a body whose number would become another one is refused, and one that says the same is not',
  async (t) => {
    const url = '/v1/sessions'
    const holding = (text: string) => `{"provider":"openai","model":"m","metadata":{"a":[{"b":${text}}]}}`
    for (const number of [
      '1234567890123456789',
      '-9007199254740993',
      '12345678901234567.5',
      '9'.repeat(50_000),
      '1e400',
      '-1.5E+309',
    ]) {
      const answer = await raw('POST', url, holding(number))
      t.match(answer, refused('invalid_request', 400, 'metadata.a[0].b'), number.slice(0, 30))
      t.match(answer.body.error.message, /send it as text/)
    }
    for (const same of [
      '9007199254740992',
      '12345678901234567000',
      '1e300',
      '1E+0000300',
      '0.0001e311',
      '1e-400',
      '"1e400"',
      '0.1234567890123456789',
      '"1234567890123456789"',
      '"\\\\\\"1234567890123456789"',
    ]) {
      t.match(await raw('POST', url, holding(same)), { status: 201 }, same)
    }
  },
)

t.test('more than a call takes is refused, and the error names the field', async (t) => {
  const { body: session } = await call('POST', '/v1/sessions', { provider: 'openai', model: 'm' })
  const of = (path: string) => `/v1/sessions/${session.id}/${path}`
  const many = <T>(count: number, item: T) => Array.from({ length: count }, () => item)
  const fields = (count: number) => Object.fromEntries(many(count, 0).map((_, i) => [`f${i}`, 'x']))
  const said = { role: 'user', parts: [{ type: 'text', text: 'a' }] }
  const server = (more: object) => ({
    name: 'files',
    transport: 'streamable_http',
    url: 'https://mcp.test/',
    ...more,
  })
  const chat = (more: object) => ({ provider: 'openai', model: 'm', ...more })
  const cases: [string, object, string][] = [
    ['/v1/sessions', chat({ model: 'm'.repeat(257) }), 'model'],
    ['/v1/sessions', chat({ title: 't'.repeat(501) }), 'title'],
    ['/v1/sessions', chat({ metadata: fields(101) }), 'metadata'],
    ['/v1/sessions', chat({ connectors: many(101, 'files') }), 'connectors'],
    ['/v1/sessions', chat({ settings: { temperature: -0.1 } }), 'settings.temperature'],
    ['/v1/sessions', chat({ settings: { top_p: 1.1 } }), 'settings.top_p'],
    ['/v1/sessions', chat({ settings: { max_output_tokens: 10_000_001 } }), 'settings.max_output_tokens'],
    [of('messages'), { messages: many(1001, said) }, 'messages'],
    [of('messages'), { messages: [] }, 'messages'],
    [of('messages'), { role: 'user', parts: many(1001, said.parts[0]) }, 'parts'],
    [of('turns'), { input: many(1001, said.parts[0]), background: true }, 'input'],
    [of('turns'), { input: 'a', background: true, context: many(10_001, {}) }, 'context'],
    ['/v1/turns/turn_0/approvals/c', { decision: 'deny', reason: 'r'.repeat(4001) }, 'reason'],
    ['/v1/connectors', server({ headers: fields(101) }), 'headers'],
    ['/v1/connectors', server({ allow_tools: many(1001, 'a') }), 'allow_tools'],
    ['/v1/connectors', server({ deny_tools: ['a'.repeat(257)] }), 'deny_tools[0]'],
    ['/v1/connectors', server({ url: `https://mcp.test/${'a'.repeat(8192)}` }), 'url'],
    [
      '/v1/connectors',
      server({ default_tool_config: { max_instances: 10_001 } }),
      'default_tool_config.max_instances',
    ],
    ['/v1/credentials', { provider: 'openai', kind: 'api_key', api_key: 'k', name: 'n'.repeat(201) }, 'name'],
    ['/v1/keys', { owner: 'a', scopes: ['chat'], name: 'n'.repeat(201) }, 'name'],
    ['/v1/keys', { owner: 'a'.repeat(129), scopes: ['chat'] }, 'owner'],
  ]
  for (const [url, body, param] of cases) {
    const answer = await call('POST', url, body)
    t.match(answer, refused('invalid_request', 400, param), `${url} ${param}`)
    t.equal(answer.body.error?.param, param, 'the field itself, not an item of it')
  }
})

t.test('a body of very many values is refused before it is parsed', async (t) => {
  const other = await gateway(store, { BATON_BODY_LIMIT: '8MiB' })
  t.teardown(() => other.close())
  const many = (item: string, count: number) =>
    `{"provider":"openai","model":"m","metadata":{"a":[${`${item},`.repeat(count)}0]}}`
  for (const body of [many('{}', 500_001), many('1', 1_000_001)]) {
    // A body that was parsed would be found to be no JSON.
    const answer = await other.call('POST', '/v1/sessions', `${body}!`, json)
    t.match(answer, refused('invalid_request', 400))
    t.match(answer.body.error.message, /more than 1000000 values; send fewer/)
  }
  const text = await other.call('POST', '/v1/sessions', `{"a":"${'[{,'.repeat(400_000)}"}`, json)
  t.match(text, refused('invalid_request', 400, 'provider'), 'a long text is one value')
})

t.test('a name that no object may have is found in a moment, however long other names are', async (t) => {
  const other = await gateway(store, { BATON_BODY_LIMIT: '8MiB' })
  t.teardown(() => other.close())
  const members = Array.from({ length: 32_000 }, () => '{"prototype": 1}').join()
  const body = `{"${'a'.repeat(512_000)}": [${members}], "__proto__": 1}`
  const before = process.cpuUsage()
  const answer = await other.call('POST', '/v1/sessions', body, json)
  const { user, system } = process.cpuUsage(before)
  t.match(answer, refused('invalid_request', 400, '__proto__'))
  t.ok((user + system) / 1e6 < 3)
})

t.test('a body whose fields are all optional may be absent, whatever the content type', async (t) => {
  const { body: session } = await call('POST', '/v1/sessions', { provider: 'openai', model: 'm' })
  const url = `/v1/sessions/${session.id}/render`
  for (const type of ['application/json', 'text/plain', 'garbage', 'multipart/form-data', '']) {
    t.match(
      await raw('POST', url, '', type === '' ? {} : { 'content-type': type }),
      { status: 200 },
      `'${type}'`,
    )
  }
  t.match(
    await raw('POST', url, 'x', { 'content-type': 'text/plain' }),
    refused('unsupported_media_type', 415),
  )
  t.match(await raw('POST', url, 'null'), refused('invalid_request', 400))
  t.match(
    await raw('POST', `/v1/sessions/${session.id}/messages`, '', json),
    { status: 400, body: { error: { param: null, message: /^The body is missing/ } } },
    'not where one or another of its fields is needed',
  )
  t.match(await raw('DELETE', `/v1/sessions/${session.id}`, '', json), { status: 204 })
})

await g.app.listen({ host: '127.0.0.1', port: 0 })
const { port } = g.app.server.address() as AddressInfo

/** Sends these bytes, and gives all that is answered until the connection closes. */
async function say(text: string): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  let answer = ''
  socket.setEncoding('utf8').on('data', (chunk) => {
    answer += chunk
  })
  socket.end(text)
  await once(socket, 'close')
  return answer
}

t.test('a body that is too large gets an error in words, however much of it is still to come', async (t) => {
  const head = `POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`
  const body = 'x'.repeat(8 * 2 ** 20)
  const answer = await say(
    `${head}content-length: ${body.length}\r\n\r\n${body}GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n`,
  )
  t.match(answer, /^HTTP\/1.1 413 .*body_too_large.*HTTP\/1.1 200 OK/s)
})

t.test(
  'a client that wants no other answer can send all of its body before it reads a refusal',
  async (t) => {
    // More than the kernel holds for a server that does not read.
    const body = Buffer.alloc(32 * 2 ** 20, 'x')
    for (const [start, end, status] of [
      ['POST /v1/sessions HTTP/1.1', 'connection: close\r\n', 413],
      ['POST /v1/sessions HTTP/1.0', '', 413],
      ['POST /v1/nothing HTTP/1.1', 'connection: close\r\n', 404],
    ] as const) {
      const head = `${start}\r\nhost: localhost\r\ncontent-type: application/json\r\n${end}`
      const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
      socket.write(`${head}content-length: ${body.length}\r\n\r\n`)
      await new Promise<void>((sent, failed) => {
        socket.write(body, (error) => (error ? failed(error) : sent()))
      })
      const answer = (await socket.setEncoding('utf8').toArray()).join('')
      t.match(answer, new RegExp(`^HTTP/1.1 ${status} .*request_id`, 's'), head)
      socket.end()
    }
  },
)

t.test('a body that turns out to be empty counts as absent, whatever its content type', async (t) => {
  const { body: session } = await call('POST', '/v1/sessions', { provider: 'openai', model: 'm' })
  for (const type of ['garbage', '', 'a/', 'text/plain;;', 'application/json'])
    for (const chunks of ['0\r\n\r\n', '1\r\nx\r\n0\r\n\r\n']) {
      const head = `POST /v1/sessions/${session.id}/render HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n`
      const answer = await say(`${head}content-type: ${type}\r\ntransfer-encoding: chunked\r\n\r\n${chunks}`)
      const refused = type === 'application/json' ? 400 : 415
      t.ok(answer.startsWith(`HTTP/1.1 ${chunks.startsWith('0') ? 200 : refused} `), `${type}: ${answer}`)
    }
})

t.test('an Expect header that nobody knows is ignored', async (t) => {
  const answer = await say(
    'GET /healthz HTTP/1.1\r\nhost: localhost\r\nexpect: foo\r\nconnection: close\r\n\r\n',
  )
  t.match(answer, /^HTTP\/1.1 200 .*x-request-id: /is)
})

t.test('a request that is no HTTP is answered with an error of the same shape', async (t) => {
  for (const [text, status] of [
    ['NONSENSE\r\n\r\n', 'HTTP/1.1 400 Bad Request'],
    ['GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n', 'HTTP/1.1 400 Bad Request'],
    [`GET / HTTP/1.1\r\nhost: a\r\nx: ${'y'.repeat(20_000)}\r\n\r\n`, 'HTTP/1.1 431 '],
  ] as const) {
    const [head = '', body = ''] = (await say(text)).split('\r\n\r\n')
    t.ok(head.startsWith(status), head)
    t.match(JSON.parse(body), {
      error: { code: 'invalid_request', param: null, details: EMPTY, request_id: /^req_/ },
    })
    t.match(head, /x-request-id: req_/)
  }
})

t.test('a path that begins without a slash is refused, for rules of a proxy do not know it', async (t) => {
  for (const path of ['*metrics', '*healthz']) {
    const answer = await say(`GET ${path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n`)
    t.match(answer, /^HTTP\/1.1 400 .*invalid_request.*does not begin with/s)
  }
})

t.test(
  'a client whose request does not arrive in time is told so, and cannot keep its connection',
  async (t) => {
    const late = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
    t.teardown(() => late.destroy())
    const [socket] = await once(g.app.server, 'connection')
    const failure = Object.assign(new Error('Request timeout'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' })
    g.app.server.emit('clientError', failure, socket)
    t.match(String((await once(late, 'data'))[0]), /^HTTP\/1\.1 408 .*did not arrive in time/s)
    if (!socket.destroyed) await once(socket, 'close')
    t.ok(g.app.server.requestTimeout > 0)
  },
)

t.test('a client whose request names no host, or two, is told so', async (t) => {
  const two = 'Host: localhost\r\nhost: elsewhere.test\r\n'
  for (const begins of ['1.1\r\n', `1.1\r\n${two}`, `1.0\r\n${two}`]) {
    const refused = await say(`GET /healthz HTTP/${begins}connection: close\r\n\r\n`)
    t.match(refused, /^HTTP\/1\.1 400 .*needs a Host header, and only one/s, begins)
  }
  const answer = await say('GET /healthz HTTP/1.0\r\n\r\n')
  t.match(answer, /^HTTP\/1\.1 403 .*A Host header is required/s)
})

t.test('a failure within Baton is a 500 that hides its cause; the log names the request', async (t) => {
  const lines: unknown[] = []
  const other = await gateway(
    store,
    {},
    {
      store: {
        ...store,
        sessions: { ...store.sessions, list: () => Promise.reject(new Error('password=hunter2')) },
      },
      log: pino({}, { write: (line) => void lines.push(JSON.parse(line)) }),
    },
  )
  const answer = await other.call('GET', '/v1/sessions')
  t.match(answer, refused('internal', 500))
  t.match(lines, [{ request_id: answer.headers['x-request-id'], code: 'internal' }])
  t.notMatch(answer.text, /hunter2/)
  await other.close()
})

t.test('a client that leaves in the middle of its body is no failure of Baton', async (t) => {
  const lines: string[] = []
  const metrics = createMetrics({ defaults: false })
  const log = pino({ level: 'warn' }, { write: (line) => void lines.push(line) })
  const other = await gateway(store, {}, { log, metrics })
  t.teardown(() => other.close())
  await other.app.listen({ host: '127.0.0.1', port: 0 })
  const client = connect((other.app.server.address() as AddressInfo).port, '127.0.0.1')
  const head = 'POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n'
  client.write(`${head}content-length: 100\r\n\r\n{"prov`)
  const [request, response] = await once(other.app.server, 'request')
  await eventually(() => request.listenerCount('data') > 0)
  client.destroy()
  await eventually(() => response.writableEnded)
  t.notMatch(await metrics.text(), /status="/)
  t.same(lines, [])
})
