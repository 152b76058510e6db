import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { connect } from 'node:net'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { type Answer, type Document, gateway, type Schema } from './gateway.ts'

const store = await openStore({ databaseUrl: null, dataDir: null, poolSize: 1 })
const g = await gateway(store, { BATON_BODY_LIMIT: '64KiB', BATON_ENABLE_OAUTH: 'openai' })
t.teardown(async () => {
  await g.close()
  await store.close()
})
const { call } = g
const json = { 'content-type': 'application/json' }
const raw = (method: string, url: string, payload: string | Buffer, headers: Record<string, string> = json) =>
  call(method, url, payload, headers)
const refused = (code: string, status: number, param: string | null = null) => ({
  status,
  body: { error: { code, param, message: String, request_id: String } },
})

t.test('an answer carries the id of its request', async (t) => {
  const made = await call('GET', '/v1/sessions/ses_0')
  t.match(made.headers['x-request-id'], /^req_/)
  t.equal(made.body.error.request_id, made.headers['x-request-id'])
  const given = await call('GET', '/healthz', undefined, { 'x-request-id': 'abc-1' })
  t.equal(given.headers['x-request-id'], 'abc-1')
  const odd = await call('GET', '/healthz', undefined, { 'x-request-id': 'a b\tc' })
  t.match(odd.headers['x-request-id'], /^req_/)
})

t.test('what does not exist, and what exists for another method', async (t) => {
  t.match(await call('GET', '/v1/nothing'), refused('not_found', 404))
  t.match(await call('GET', '/'), refused('not_found', 404))
  const wrong = await call('PUT', '/v1/sessions')
  t.match(wrong, refused('method_not_allowed', 405))
  t.equal(wrong.headers.allow, 'POST, GET')
  t.match(await call('DELETE', '/v1/turns/turn_1?x=1'), refused('method_not_allowed', 405))
  t.match(await call('OPTIONS', '/v1/sessions'), refused('method_not_allowed', 405))
  const head = await call('HEAD', '/v1/sessions')
  t.match(head, { status: 405, text: '' })
})

t.test('paths at their limits', async (t) => {
  const long = (length: number) => call('GET', `/v1/sessions/${'x'.repeat(length)}`)
  t.match(await long(512), refused('session_not_found', 404))
  t.match(await long(513), refused('invalid_request', 400))
  t.match(await call('GET', `/v1/sessions/${'%C3%A4'.repeat(512)}`), refused('session_not_found', 404))
  t.match(await call('GET', '/v1/sessions/%zz'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions/%c3'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions/a%00b'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions?cursor=%00'), refused('invalid_request', 400))
  t.match(await call('GET', '/v1/sessions/%F0%9F%92%A9%2F..%27%3B'), refused('session_not_found', 404))
})

t.test('bodies that are none', async (t) => {
  const url = '/v1/sessions'
  for (const text of [
    '{',
    '{"a":}',
    'null',
    '5',
    '"x"',
    '[]',
    '{"__proto__": {}}',
    '{"constructor": {"prototype": 1}}',
  ]) {
    t.match(await raw('POST', url, text), refused('invalid_request', 400), text)
  }
  t.match(await raw('POST', url, ''), refused('invalid_request', 400), 'empty')
  t.match(await raw('POST', url, Buffer.from([0xff, 0xfe])), refused('invalid_request', 400), 'no UTF-8')
  t.match(
    await raw('POST', url, 'a=b', { 'content-type': 'application/x-www-form-urlencoded' }),
    refused('unsupported_media_type', 415),
  )
  t.match(await raw('POST', url, '{}', { 'content-type': 'garbage' }), refused('unsupported_media_type', 415))
  t.match(await raw('POST', url, '{}', {}), { status: 415 })
  t.match(await raw('POST', url, `{"a":"${'x'.repeat(65_536)}"}`), refused('body_too_large', 413))
  const deep = `{"provider":"openai","model":"m","metadata":{"a":${'['.repeat(5000)}${']'.repeat(5000)}}}`
  t.match(await raw('POST', url, deep), refused('invalid_request', 400), 'nested too deep')
  const fine = `{"provider":"openai","model":"m","metadata":{"a":${'['.repeat(100)}${']'.repeat(100)}}}`
  t.match(await raw('POST', url, fine), { status: 201 })
  t.match(
    await raw('POST', url, '{"provider":"openai","model":"m"}', {
      'content-type': 'application/json; charset=utf-8',
    }),
    { status: 201 },
  )
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
  t.match(await raw('DELETE', `/v1/sessions/${session.id}`, '', json), { status: 204 })
})

t.test('what is no HTTP is answered in the same shape', async (t) => {
  await g.app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = g.app.server.address() as AddressInfo
  const say = async (text: string): Promise<string> => {
    const socket = connect(port, '127.0.0.1')
    let answer = ''
    socket.setEncoding('utf8').on('data', (chunk) => {
      answer += chunk
    })
    socket.end(text)
    await once(socket, 'close')
    return answer
  }
  for (const [text, status] of [
    ['NONSENSE\r\n\r\n', 'HTTP/1.1 400 Bad Request'],
    [`GET / HTTP/1.1\r\nhost: a\r\nx: ${'y'.repeat(20_000)}\r\n\r\n`, 'HTTP/1.1 431 '],
  ] as const) {
    const [head = '', body = ''] = (await say(text)).split('\r\n\r\n')
    t.ok(head.startsWith(status), head)
    t.match(JSON.parse(body), { error: { code: 'invalid_request', param: null, request_id: /^req_/ } })
    t.match(head, /x-request-id: req_/)
  }
})

t.test('a failure of our own is a 500 that says nothing', async (t) => {
  const other = await gateway(
    store,
    {},
    {
      store: {
        ...store,
        sessions: { ...store.sessions, list: () => Promise.reject(new Error('password=hunter2')) },
      },
    },
  )
  const answer = await other.call('GET', '/v1/sessions')
  t.match(answer, refused('internal', 500))
  t.notMatch(answer.text, /hunter2/)
  await other.close()
})

// ---------------------------------------------------------------- the sweep

const JUNK: unknown[] = [
  null,
  true,
  7,
  -1.5,
  1e308,
  '',
  'x',
  '\u0000',
  '\ud800',
  'x'.repeat(9000),
  [],
  {},
  [1],
  [null],
  { a: 1 },
]
const ODD_TEXTS = [
  '',
  'x',
  '-1',
  '1e9',
  'true',
  'null',
  '%F0%9F%92%A9',
  '9'.repeat(400),
  "';--",
  '%5B%5D',
  '2026-13-45T99:99:99Z',
]

/** Bodies near a good one: each field of it, at every depth, replaced by what does not belong there. */
function* mutations(value: unknown): Generator<unknown> {
  if (Array.isArray(value)) {
    for (const [i, item] of value.entries()) {
      for (const junk of JUNK) yield value.with(i, junk)
      for (const changed of mutations(item)) yield value.with(i, changed)
    }
  } else if (typeof value === 'object' && value !== null) {
    for (const [key, item] of Object.entries(value)) {
      const { [key]: _, ...without } = value as Record<string, unknown>
      yield without
      for (const junk of JUNK) yield { ...value, [key]: junk }
      for (const changed of mutations(item)) yield { ...value, [key]: changed }
    }
    yield { ...value, unknown_field: 1 }
  }
}

/** A value with every field that a schema names, so that none is left out of the sweep. */
function sample(schema: Schema, resolve: (schema: Schema) => Schema): unknown {
  const { type, properties = {}, items, oneOf, anyOf, enum: values } = resolve(schema)
  const branch = oneOf?.[0] ?? anyOf?.[0]
  if (branch) return sample(branch, resolve)
  if (values) return values[0]
  const kind = Array.isArray(type) ? type[0] : type
  if (kind === 'object') {
    return Object.fromEntries(Object.entries(properties).map(([key, field]) => [key, sample(field, resolve)]))
  }
  if (kind === 'array') return items ? [sample(items, resolve)] : []
  return { string: 'x', integer: 1, number: 1, boolean: true }[kind ?? ''] ?? 'x'
}

t.test(
  'no input whatever makes a 500: every operation, every field, every kind of wrong value',
  async (t) => {
    const document = JSON.parse(
      (await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })).body,
    ) as Document
    const resolve = (schema: Schema): Schema =>
      schema.$ref
        ? resolve(document.components.schemas[schema.$ref.split('/').at(-1) ?? ''] as Schema)
        : schema
    const { body: session } = await call('POST', '/v1/sessions', { provider: 'openai', model: 'm' })
    const { body: connector } = await call('POST', '/v1/connectors', {
      name: 'swept',
      transport: 'sse',
      url: 'https://a.test',
    })
    const { body: credential } = await call('POST', '/v1/credentials', {
      provider: 'openai',
      kind: 'api_key',
      api_key: 'k-12345',
    })
    const { body: turn } = await call('POST', `/v1/sessions/${session.id}/turns`, {
      input: 'a',
      background: true,
    })
    const ids: Record<string, string> = {
      sessions: session.id,
      turns: turn.id,
      connectors: connector.id,
      credentials: credential.id,
    }
    const faults: string[] = []
    const sent = new Map<string, number>()
    const pages = new Set(
      Object.values(document.paths)
        .flatMap((operations) => Object.values(operations))
        .filter(({ responses }) => responses[400]?.content?.['text/html'])
        .map(({ operationId }) => operationId),
    )
    const send = async (name: string, method: string, url: string, body?: unknown): Promise<Answer> => {
      const answer = await call(
        method.toUpperCase(),
        url,
        body === undefined ? undefined : JSON.stringify(body),
        body === undefined ? {} : json,
      )
      sent.set(name, (sent.get(name) ?? 0) + 1)
      const isPage = answer.status === 400 && pages.has(name) && answer.text.startsWith('<!doctype html>')
      const inShape = answer.status < 400 || isPage || typeof answer.body?.error?.request_id === 'string'
      if (answer.status >= 500 || !inShape)
        faults.push(`${method} ${url} ${JSON.stringify(body)} → ${answer.status} ${answer.text}`)
      return answer
    }
    for (const [path, operations] of Object.entries(document.paths)) {
      const noun = path.split('/')[2] ?? ''
      const endless = /\/events$|^\/metrics|^\/(healthz|readyz)/.test(path)
      const known = path
        .replace('{id}', ids[noun] ?? 'x_0')
        .replace('{provider}', 'openai')
        .replace(/\{\w+\}/g, 'x_0')
      const unknown = path.replace('{provider}', 'openai').replace(/\{\w+\}/g, 'x_0')
      for (const [method, { operationId, parameters = [], requestBody }] of Object.entries(operations)) {
        const target = endless || method === 'delete' ? unknown : known
        for (const { name } of parameters.filter((parameter) => parameter.in === 'query')) {
          for (const text of ODD_TEXTS) await send(operationId, method, `${target}?${name}=${text}`)
          await send(operationId, method, `${target}?${name}=1&${name}=2`)
        }
        for (const text of ODD_TEXTS.slice(1)) {
          await send(operationId, method, path.replace('{provider}', text).replace(/\{\w+\}/g, text))
        }
        const content = requestBody?.content['application/json']
        if (!content) continue
        const isTurn = operationId === 'post_sessions_id_turns'
        const shapes = resolve(content.schema).oneOf ?? [content.schema]
        const good = shapes.map((shape, i) => ({
          ...(sample(shape, resolve) as object),
          ...(i === 0 ? (content.example ?? {}) : {}),
        }))
        for (const body of [...JUNK, ...good.flatMap((one) => [...mutations(one)])]) {
          await send(operationId, method, target, isTurn ? inBackground(body) : body)
        }
        const extra = await send(operationId, method, target, { ...good[0], unknown_field: 1 })
        t.match(
          extra,
          refused('invalid_request', 400, 'unknown_field'),
          `${operationId} refuses an unknown field`,
        )
      }
    }
    t.same(faults, [])
    const missing = Object.values(document.paths)
      .flatMap((operations) => Object.values(operations))
      .filter(({ operationId }) => !sent.has(operationId))
    t.same(missing, [], 'every operation was asked')
  },
)

/** A good turn would stream without end: whoever is no good stays as bad as it was. */
const inBackground = (body: unknown): unknown =>
  typeof body === 'object' &&
  body !== null &&
  !Array.isArray(body) &&
  !('background' in body && body.background !== false)
    ? { ...body, background: true }
    : body
