/** What the gateway says of itself: its readiness, figures, and the document of its operations. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { mock } from 'node:test'
import { Ajv2020 } from 'ajv/dist/2020.js'
import t from 'tap'
import { EventStream } from '../../routes/turn-event.ts'
import { ERROR_CODES } from '../../src/errors.ts'
import { VERSION } from '../../src/version.ts'
import { gate } from '../waiting.ts'
import type { Document, Schema } from './document.ts'
import { gateway } from './gateway.ts'
import { gatewayOnStore } from './gateway-on-store.ts'

const g = await gatewayOnStore(t)
const { call, store } = g

t.test('the gateway tells its health, its readiness, its figures and its documents', async (t) => {
  t.match(await call('GET', '/healthz'), { status: 200, body: { status: 'ok', version: VERSION } })
  t.match(await call('GET', '/readyz'), { status: 200, body: { status: 'ready' } })
  g.drain.now = true
  const draining = await call('GET', '/readyz')
  g.drain.now = false
  t.match(draining, {
    status: 503,
    body: { error: { code: 'draining', details: { reason: /shutting down/ } } },
  })
  t.equal(draining.headers['retry-after'], '1')
  t.match(await call('HEAD', '/healthz'), { status: 200, text: '' })
  t.ok(g.app.server.keepAliveTimeout > 620_000, 'a balancer is to close an idle connection first')
  const metrics = await call('GET', '/metrics')
  t.match(metrics.text, /baton_http_requests_total\{method="GET",route="\/healthz",status="200"\} 1/)
  const document = await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
  t.match(document.json(), { openapi: '3.1.0', info: { version: VERSION } })
  const page = await g.app.inject({ url: '/docs/', headers: { host: 'localhost' } })
  t.match(page.statusCode, 200)
  t.match(page.headers['content-security-policy'], /script-src 'self'/)
  t.notMatch(page.headers['content-security-policy'], /upgrade-insecure|https:|swagger\.io/)
  t.match(page.body, /swagger-ui/)
})

t.test('the document is written once, however often and by whichever address it is asked for', async (t) => {
  const write = mock.method(JSON, 'stringify')
  t.teardown(() => write.mock.restore())
  const texts = new Set<string>()
  for (const url of ['/openapi.json', '/docs/json', '/docs/yaml', '/openapi.json', '/docs/json']) {
    const { headers, body } = await g.app.inject({ url, headers: { host: 'localhost' } })
    t.match(headers['content-type'], 'application/json; charset=utf-8')
    texts.add(body)
  }
  t.equal(texts.size, 1)
  const written = write.mock.calls.filter(({ result }) => result?.startsWith('{"openapi"'))
  t.ok(written.length <= 1, `written ${written.length} times`)
})

t.test('the address that a start prints leads to the page of the API’s description', async (t) => {
  for (const method of ['GET', 'HEAD'] as const) {
    const { statusCode, headers } = await g.app.inject({ method, url: '/', headers: { host: 'localhost' } })
    t.match(
      { statusCode, headers },
      { statusCode: 302, headers: { location: '/docs', 'x-request-id': /^req_/ } },
    )
  }
  t.match(await call('POST', '/'), { status: 405, headers: { allow: 'GET, HEAD' } })
  for (const headers of [{ host: 'baton.test' }, { host: 'localhost', origin: 'https://page.test' }])
    t.equal(
      (await g.app.inject({ url: '/', headers })).statusCode,
      403,
      'while auth is off, only this machine may call',
    )
  t.notOk((await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })).json().paths['/'])
})

t.test('readiness names the dependency that is not ready', async (t) => {
  const bus = { ...g.bus.bus, ready: () => Promise.reject(new Error('no Redis')) }
  const other = await gateway(store, {}, { bus })
  t.match(await other.call('GET', '/readyz'), {
    status: 503,
    body: { error: { code: 'unavailable', details: { reason: 'bus: no Redis' } } },
  })
  await other.close()
})

t.test('readiness is told in time, even if a dependency never answers', async (t) => {
  const { opened: isAsked, open: ask } = gate()
  const ready = () => {
    ask()
    return new Promise<void>(() => {})
  }
  const other = await gateway(store, {}, { bus: { ...g.bus.bus, ready } })
  t.teardown(() => other.close())
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const answer = other.call('GET', '/readyz')
  await isAsked
  await new Promise(setImmediate)
  mock.timers.tick(3_000)
  t.match(await answer, {
    status: 503,
    body: { error: { code: 'unavailable', details: { reason: 'bus: no answer' } } },
  })
})

t.test('every operation is documented: summary, tag, id, examples of its body', async (t) => {
  const { body } = await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
  const document = JSON.parse(body) as Document
  const ajv = new Ajv2020({ strict: false, validateFormats: false }).addSchema(document, 'api')
  const takes = (schema: Schema, value: unknown) =>
    ajv.validate({ ...schema, components: document.components }, value)
  const ids = new Set<string>()
  for (const [path, operations] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const name = `${method} ${path}`
      t.ok(operation.summary && operation.tags?.length === 1, `${name} has a summary and a tag`)
      t.match(operation.operationId, /^[a-z]+[A-Z][A-Za-z]+$/, `${name} is named as a function would be`)
      t.notOk(ids.has(operation.operationId), `${name} has an id of its own`)
      ids.add(operation.operationId)
      t.ok(operation.responses.default, `${name} documents its errors`)
      for (const { name: field, schema } of operation.parameters ?? []) {
        t.type(schema, 'object', `${name} says what ${field} is`)
      }
      const content = operation.requestBody?.content['application/json']
      const needsBody = content !== undefined && !takes(content.schema, {})
      t.equal(operation.requestBody?.required ?? false, needsBody, `${name} says whether it needs its body`)
      t.equal(
        operation.security?.length === 0,
        !path.startsWith('/v1/') || /callback|oauth\/connectors\/client$/.test(path),
        `${name} says whether it needs a key`,
      )
      const isEmpty = content && Object.keys(content.schema.properties ?? { any: 1 }).length === 0
      if (content && !isEmpty) {
        t.ok(content.example || content.examples || content.schema.$ref, `${name} has an example`)
      }
    }
  }
  for (const path of ['/v1/oauth/callback/{provider}', '/v1/oauth/connectors/callback']) {
    const named = document.paths[path]?.get?.parameters?.map(({ name }) => name)
    t.ok(named?.includes('iss'), `${path}: the parameter that decides over a login is named`)
  }
  t.ok(document.components.schemas.Message)
  const { discriminator, oneOf } = document.components.schemas.ContextEdit ?? {}
  t.same(discriminator, {
    propertyName: 'op',
    mapping: {
      insert_before: '#/components/schemas/ContextEditInsertBefore',
      insert_after: '#/components/schemas/ContextEditInsertBefore',
      replace_at: '#/components/schemas/ContextEditInsertBefore',
      delete_at: '#/components/schemas/ContextEditDeleteAt',
    },
  })
  t.equal((oneOf as unknown[]).length, 2, 'each branch stands by its name')
  for (const [, name = ''] of body.matchAll(/"#\/components\/schemas\/(\w+)"/g)) {
    t.ok(document.components.schemas[name], `${name} is there`)
  }
  t.notMatch(JSON.stringify(document.paths), /Default Response/)
  // Generators of clients read an object that says nothing of its fields as one that can have none, a choice between required
  // fields as one between unknown types, and lose the null of an enumeration. Their patterns have no flag `u`.
  const silent: string[] = []
  JSON.stringify(document, (key, value) => {
    const isEmpty =
      value?.type === 'object' && !value.properties && !value.oneOf && !('additionalProperties' in value)
    const isNullable = Array.isArray(value?.enum) && (value.type !== 'string' || value.enum.includes(null))
    const isUntyped = Array.isArray(value?.anyOf) && value.anyOf.some((one: Schema) => !one.type && !one.$ref)
    const needsFlag = typeof value?.pattern === 'string' && value.pattern.includes('\\p{')
    if (isEmpty || isNullable || isUntyped || needsFlag) silent.push(`${key} ${JSON.stringify(value)}`)
    return value
  })
  t.same(silent, [])
  const { Session, SessionTool, Turn, Connector, ToolExecution } = document.components.schemas
  t.match(Session, { properties: { provider: { enum: ['openai', 'anthropic', 'gemini'] } } })
  t.match(SessionTool, {
    properties: { provider_exposed_name: { required: ['openai', 'anthropic', 'gemini'] } },
  })
  const orNull = (...words: string[]) => ({ anyOf: [{ type: 'string', enum: words }, { type: 'null' }] })
  t.match(Turn, { properties: { finish_reason: orNull('stop', 'length', 'refusal', 'max_steps') } })
  t.match(Connector, {
    properties: { mode: { enum: Array }, pin: { enum: Array }, transport: { enum: Array } },
  })
  t.match(ToolExecution, {
    properties: { outcome: orNull('ok', 'error', 'cancelled', 'denied', 'outcome_unknown') },
  })
  t.match(document.components.schemas.ErrorCode, {
    enum: ERROR_CODES,
    description: /\n- `queue_full` \(429, may succeed later\): Too many turns/,
  })
  const started = document.paths['/v1/sessions/{id}/turns']?.post?.responses[200]?.content
  t.same(
    Object.keys(started ?? {}),
    ['application/json', 'text/event-stream'],
    'first what generators can read',
  )
  t.match(document.paths['/v1/turns/{id}/events']?.get?.responses[200]?.content, {
    'text/event-stream': { schema: { contentSchema: { $ref: '#/components/schemas/Event' } } },
  })
  const { examples = [] } = EventStream.content['text/event-stream'].schema
  for (const example of examples) {
    const [, event, data = ''] = /^id: \S+\nevent: (\S+)\ndata: (.*)\n\n$/.exec(example) ?? []
    t.equal(JSON.parse(data).type, event)
    t.ok(ajv.validate('api#/components/schemas/Event', JSON.parse(data)), ajv.errorsText())
  }
  t.match(document.components.schemas.EventStepDiscarded, {
    properties: {
      type: { enum: ['step.discarded'] },
      reason: { enum: ['tools_changed', 'owner_lost', 'retry'] },
    },
  })
})

t.test(
  'every text of an answer that has a pattern is in an example, which fits, so that no page has to make it up',
  async (t) => {
    const { body } = await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
    const { paths, components } = JSON.parse(body) as Document
    const ajv = new Ajv2020({ strict: false, validateFormats: false })
    const made: string[] = []
    const seen = new Set<string>()
    const look = (value: unknown, at: string): void => {
      if (typeof value !== 'object' || value === null) return
      const { $ref, pattern, examples } = value as { $ref?: string; pattern?: string; examples?: unknown[] }
      for (const example of examples ?? []) t.ok(ajv.validate({ ...value, components }, example), at)
      if (examples) return
      if (typeof pattern === 'string') made.push(at)
      const name = $ref?.split('/schemas/')[1]
      if (name && !seen.has(name)) {
        seen.add(name)
        look(components.schemas[name], name)
      }
      for (const [key, item] of Object.entries(value)) look(item, `${at}/${key}`)
    }
    for (const [path, operations] of Object.entries(paths))
      for (const [method, { responses }] of Object.entries(operations)) look(responses, `${method} ${path}`)
    t.ok(seen.has('Part') && seen.has('ContentPart'))
    t.same(made, [])
  },
)

/** Fields that docs/api.md names in sections 4 to 7. `call` finds fields that answers have beyond the document, or lack. */
const NAMED = {
  Session:
    'id provider model credential_id instructions settings title metadata tools_revision active_turn_id usage',
  Message: 'id session_id turn_id seq role parts incomplete created_at',
  Provenance: 'provider model credential_id opaque',
  PartText: 'type text provenance',
  PartReasoning: 'type text provenance',
  PartToolCall: 'type call_id name arguments arguments_text provenance',
  PartToolResult: 'type call_id name content structured is_error outcome spill',
  PartImage: 'type media_type data url name',
  PartAudio: 'type media_type data url name',
  PartFile: 'type media_type data url name',
  PartNotice: 'type text',
  Turn: 'id session_id state provider model attempt steps usage finish_reason error messages output_text',
  Step: 'index attempt provider model tools_revision tool_count finish_reason usage started_at ended_at discarded',
  Usage: 'input_tokens output_tokens reasoning_tokens cached_tokens',
  Rendered: 'provider method url headers body tools_revision notes',
  ToolsChange: 'tools_revision added removed changed effective restarted_turn_id prompt_cache',
  SessionToolList: 'revision updated_at tools declarations',
  SessionTool:
    'canonical_name provider_exposed_name connector_id mcp_tool_name server description parameters enabled source ' +
    'last_seen_at status reason',
  ConnectorTest: 'ok latency_ms server tools error',
  ToolExecution:
    'id session_id turn_id step call_id tool connector tools_revision arguments outcome is_error error started_at ' +
    'ended_at duration_ms bytes approved_by',
  ToolOutput: 'exec_id path offset limit total_bytes next_offset content',
  EventGap: 'snapshot',
}

t.test('every field that docs/api.md names is in the document', async (t) => {
  const { body } = await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
  const { schemas } = (JSON.parse(body) as Document).components
  for (const [name, fields] of Object.entries({ ...NAMED, ...tabledEvents() })) {
    const there = Object.keys(schemas[name]?.properties ?? {})
    const missing = fields.split(' ').filter((field) => !there.includes(field))
    t.same(missing, [], name)
  }
})

t.test('docs/api.md tells every event of the document', async (t) => {
  const { body } = await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
  const { schemas } = (JSON.parse(body) as Document).components
  const events = Object.keys(schemas).filter((name) => /^Event./.test(name) && name !== 'EventGap')
  t.same(Object.keys(tabledEvents()).sort(), events.sort())
})

/** The events' table of docs/api.md: the fields of each beside those that all have, by its schema's name in the document. */
function tabledEvents(): Record<string, string> {
  const page = readFileSync(join(import.meta.dirname, '../../../docs/api.md'), 'utf8')
  const rows = (page.split('| event | with |')[1] ?? '').matchAll(/^\| (`[^|]+) \|(.*)\|$/gm)
  return Object.fromEntries(
    [...rows].flatMap(([, names = '', what = '']) => {
      const [, fields = ''] = /`([^`:]+)/.exec(what) ?? []
      const named = fields.split(', ').map((field) => field.replace('?', ''))
      return [...names.matchAll(/`([^`]+)`/g)].map(([, name = '']) => [
        `Event${name.replace(/(?:^|[._])([a-z])/g, (_, letter: string) => letter.toUpperCase())}`,
        ['type session_id turn_id step at', ...named].join(' ').trim(),
      ])
    }),
  )
}
