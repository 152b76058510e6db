import t from 'tap'
import { credentialView } from '../../src/credentials/credentials.ts'
import { BatonError } from '../../src/errors.ts'
import { openStore } from '../../src/store/open.ts'
import type { Fence, Turn } from '../../src/store/store.ts'
import { type Document, gateway } from './gateway.ts'

const store = await openStore({ databaseUrl: null, dataDir: null, poolSize: 1 })
const g = await gateway(store, { OPENAI_API_KEY: 'sk-env-9876', BATON_ENABLE_OAUTH: 'gemini' })
t.teardown(async () => {
  await g.close()
  await store.close()
})
const { call } = g

const user = (text: string) => ({ role: 'user', parts: [{ type: 'text', text }] })
const newSession = async (fields: object = {}) => {
  const { status, body } = await call('POST', '/v1/sessions', { provider: 'openai', model: 'm', ...fields })
  if (status !== 201) throw new Error(`no session: ${JSON.stringify(body)}`)
  return body.id as string
}
/** Ends a turn as the engine would. */
async function end(turn: Turn, fence: Pick<Fence, 'epoch'>, fields: object = {}): Promise<void> {
  await store.turns.commit(
    { session_id: turn.session_id, owner: 'test', ...fence },
    { turn_id: turn.id, end: { state: 'completed', finish_reason: 'stop', error: null }, ...fields },
  )
}

t.test('the process, its readiness, figures and documents', async (t) => {
  t.match(await call('GET', '/healthz'), { status: 200, body: { status: 'ok', version: '9.9.9' } })
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
  const metrics = await call('GET', '/metrics')
  t.match(metrics.text, /baton_http_requests_total\{method="GET",route="\/healthz",status="200"\} 1/)
  const document = await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
  t.match(document.json(), { openapi: '3.1.0', info: { version: '9.9.9' } })
  const page = await g.app.inject({ url: '/docs/', headers: { host: 'localhost' } })
  t.match(page.statusCode, 200)
  t.match(page.headers['content-security-policy'], /script-src 'self'/)
  t.notMatch(page.headers['content-security-policy'], /upgrade-insecure|https:|swagger\.io/)
  t.match(page.body, /swagger-ui/)
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

t.test('every operation is documented: summary, tag, id, examples of its body', async (t) => {
  const { body } = await g.app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
  const document = JSON.parse(body) as Document
  const ids = new Set<string>()
  for (const [path, operations] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const name = `${method} ${path}`
      t.ok(operation.summary && operation.tags?.length === 1, `${name} has a summary and a tag`)
      t.notOk(ids.has(operation.operationId), `${name} has an id of its own`)
      ids.add(operation.operationId)
      t.ok(operation.responses.default, `${name} documents its errors`)
      for (const { name: field, schema } of operation.parameters ?? []) {
        t.type(schema, 'object', `${name} says what ${field} is`)
      }
      const content = operation.requestBody?.content['application/json']
      const needsBody = (content?.schema.required?.length ?? 0) > 0 || content?.schema.$ref !== undefined
      t.equal(operation.requestBody?.required ?? false, needsBody, `${name} says whether it needs its body`)
      t.equal(
        operation.security?.length === 0,
        !path.startsWith('/v1/') || path.includes('callback'),
        `${name} says whether it needs a key`,
      )
      const isEmpty = content && Object.keys(content.schema.properties ?? { any: 1 }).length === 0
      if (content && !isEmpty) {
        t.ok(content.example || content.examples || content.schema.$ref, `${name} has an example`)
      }
    }
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
  t.match(document.paths['/v1/turns/{id}/events']?.get?.responses[200]?.content, {
    'text/event-stream': { schema: { contentSchema: { $ref: '#/components/schemas/Event' } } },
  })
  t.match(document.components.schemas.EventStepDiscarded, {
    properties: {
      type: { enum: ['step.discarded'] },
      reason: { enum: ['tools_changed', 'owner_lost', 'retry'] },
    },
  })
})

t.test('sessions: made, read, listed, changed, deleted', async (t) => {
  const made = await call('POST', '/v1/sessions', {
    provider: 'openai',
    model: 'gpt-test',
    instructions: 'Be brief.',
    settings: { temperature: 0.5, reasoning: { effort: 'low' }, tool_choice: { name: 'files.read' } },
    title: 'First',
    metadata: { ticket: 7, deep: { text: 'NUL \u0000 and half \ud800 survive' } },
  })
  t.equal(made.status, 201)
  t.equal(made.headers.location, `/v1/sessions/${made.body.id}`)
  t.match(made.body, {
    id: /^ses_/,
    owner: 'local',
    provider: 'openai',
    credential_id: null,
    tools_revision: 0,
    active_turn_id: null,
    usage: { input_tokens: 0 },
    metadata: { deep: { text: 'NUL \u0000 and half \ud800 survive' } },
  })
  const url = `/v1/sessions/${made.body.id}`
  t.same((await call('GET', url)).body, made.body)
  const second = await newSession()
  const page = await call('GET', '/v1/sessions?limit=1')
  t.match(page.body, { data: [{ id: second }], next_cursor: String })
  const rest = await call('GET', `/v1/sessions?limit=1&cursor=${page.body.next_cursor}`)
  t.match(rest.body, { data: [{ id: made.body.id }], next_cursor: null })
  t.match(await call('GET', '/v1/sessions?cursor=nonsense'), {
    status: 400,
    body: { error: { param: 'cursor' } },
  })

  const changed = await call('PATCH', url, { title: null, settings: { top_p: 1 }, metadata: {} })
  t.same(changed.body.settings, { top_p: 1 }, 'settings are replaced as a whole')
  t.match(changed.body, { title: null, metadata: {}, instructions: 'Be brief.' })
  t.match(await call('PATCH', url, {}), { status: 200 })
  t.match(await call('PATCH', url, undefined), { status: 200 }, 'no body is as good as an empty one')

  t.equal((await call('DELETE', url)).status, 204)
  t.match(await call('DELETE', url), { status: 404, body: { error: { code: 'session_not_found' } } })
  t.match(await call('GET', url), { status: 404 })
})

t.test('a session switches its provider', async (t) => {
  const credential = await call('POST', '/v1/credentials', {
    provider: 'openai',
    kind: 'api_key',
    api_key: 'sk-1234',
  })
  const url = `/v1/sessions/${await newSession({ credential_id: credential.body.id })}`
  t.match(await call('PATCH', url, { provider: 'anthropic' }), {
    status: 400,
    body: { error: { param: 'model', message: /model of its own/ } },
  })
  t.match(
    await call('PATCH', url, { provider: 'anthropic', model: 'c', credential_id: credential.body.id }),
    {
      status: 400,
      body: { error: { param: 'credential_id', message: /is for openai, not for anthropic/ } },
    },
  )
  t.match(await call('PATCH', url, { provider: 'anthropic', model: 'c' }), {
    status: 200,
    body: { provider: 'anthropic', model: 'c', credential_id: null },
  })
  t.match(await call('PATCH', url, { credential_id: 'cred_env_openai' }), { status: 400 })
  t.match(await call('PATCH', url, { provider: 'openai', model: 'o', credential_id: 'cred_env_openai' }), {
    status: 200,
    body: { provider: 'openai', credential_id: 'cred_env_openai' },
  })
  await call('DELETE', `/v1/credentials/${credential.body.id}`)
})

t.test('what a new session refuses', async (t) => {
  const cases: [object, string, RegExp][] = [
    [{ model: 'm' }, 'provider', /required/],
    [{ provider: 'acme', model: 'm' }, 'provider', /one of: openai, anthropic, gemini/],
    [{ provider: 'openai', model: '' }, 'model', /not be empty/],
    [{ provider: 'openai', model: 'a\u0000' }, 'model', /must match/],
    [{ provider: 'openai', model: 5 }, 'model', /must be a string/],
    [
      { provider: 'openai', model: 'm', modle: 'm' },
      'modle',
      /not a known field.*Known fields here: provider, model/,
    ],
    [{ provider: 'openai', model: 'm', settings: { temperature: '1' } }, 'settings.temperature', /number/],
    [{ provider: 'openai', model: 'm', settings: { temperature: 3 } }, 'settings.temperature', /2 or less/],
    [
      { provider: 'openai', model: 'm', settings: { max_output_tokens: 0 } },
      'settings.max_output_tokens',
      /1 or more/,
    ],
    [
      { provider: 'openai', model: 'm', settings: { reasoning: { effort: 'huge' } } },
      'settings.reasoning.effort',
      /low, medium/,
    ],
    [
      { provider: 'openai', model: 'm', settings: { tool_choice: 'maybe' } },
      'settings.tool_choice',
      /auto, none, required/,
    ],
    [{ provider: 'openai', model: 'm', settings: { seed: 1 } }, 'settings.seed', /known field/],
    [{ provider: 'openai', model: 'm', credential_id: 'cred_0' }, 'credential_id', /No credential cred_0/],
    [{ provider: 'openai', model: 'm', connectors: ['nope'] }, 'connectors[0]', /No connector nope/],
    [{ provider: 'openai', model: 'm', connectors: [1] }, 'connectors[0]', /string/],
    [{ provider: 'openai', model: 'm', metadata: [] }, 'metadata', /object/],
    [{ provider: 'openai', model: 'm', metadata: { a: 'x'.repeat(17_000) } }, 'metadata', /16 KiB/],
  ]
  for (const [body, param, message] of cases) {
    const answer = await call('POST', '/v1/sessions', body)
    t.match(answer, { status: 400, body: { error: { code: 'invalid_request', param, message } } }, param)
  }
  t.match(await call('POST', '/v1/sessions', { provider: 'openai', model: 'm', tool_profile: 'x' }), {
    status: 400,
    body: { error: { code: 'not_available', param: 'tool_profile' } },
  })
})

t.test('messages: appended, listed, edited, deleted', async (t) => {
  const id = await newSession()
  const url = `/v1/sessions/${id}/messages`
  const first = await call('POST', url, user('Hello'))
  t.match(first, { status: 201, body: { id: /^msg_/, session_id: id, turn_id: null, seq: 1, role: 'user' } })
  const several = await call('POST', url, {
    messages: [
      {
        role: 'assistant',
        parts: [{ type: 'tool_call', call_id: 'call_1', name: 'files.read', arguments: { path: '/' } }],
      },
      {
        role: 'tool',
        parts: [
          {
            type: 'tool_result',
            call_id: 'call_1',
            name: 'files.read',
            content: [{ type: 'text', text: 'a' }],
          },
        ],
      },
    ],
  })
  t.match(several, {
    status: 201,
    body: { data: [{ seq: 2 }, { seq: 3, parts: [{ is_error: false, outcome: 'ok' }] }] },
  })
  const listed = await call('GET', url)
  t.same(
    listed.body.data.map(({ seq }: { seq: number }) => seq),
    [1, 2, 3],
    'ascending',
  )
  t.match((await call('GET', `${url}?limit=2`)).body, { data: [{ seq: 1 }, { seq: 2 }], next_cursor: String })

  const edited = await call('PATCH', `${url}/${first.body.id}`, { parts: [{ type: 'text', text: 'Bye' }] })
  t.match(edited, { status: 200, body: { id: first.body.id, role: 'user', parts: [{ text: 'Bye' }] } })
  const gone = await call('DELETE', `${url}/${several.body.data[0].id}`)
  t.same(
    gone.body.deleted,
    several.body.data.map((message: { id: string }) => message.id),
    'its results go with it',
  )
  t.equal((await call('GET', url)).body.data.length, 1)
  t.match(await call('DELETE', `${url}/msg_0`), {
    status: 404,
    body: { error: { code: 'message_not_found' } },
  })
  t.match(await call('PATCH', `${url}/msg_0`, user('x')), { status: 404 })
  t.match(await call('GET', '/v1/sessions/ses_0/messages'), {
    status: 404,
    body: { error: { code: 'session_not_found' } },
  })
})

t.test('what a message may hold', async (t) => {
  const url = `/v1/sessions/${await newSession()}/messages`
  const image = { type: 'image', media_type: 'image/png' }
  const cases: [object, string, RegExp][] = [
    [{ role: 'user' }, 'parts', /required/],
    [{ parts: [{ type: 'text', text: 'a' }] }, 'role', /required/],
    [{ role: 'user', parts: [] }, 'parts', /at least 1/],
    [{ role: 'human', parts: [] }, 'role', /user, assistant, tool, system/],
    [{ role: 'user', parts: [{ type: 'text', text: 5 }] }, 'parts[0].text', /must be a string/],
    [{ role: 'user', parts: [{ type: 'text', text: 'a', bold: true }] }, 'parts[0].bold', /known field/],
    [
      { role: 'user', parts: [{ type: 'video' }] },
      'parts[0].type',
      /must be one of: text, reasoning, tool_call/,
    ],
    [{ role: 'user', parts: [{ text: 'a' }] }, 'parts[0].type', /required/],
    [{ role: 'user', parts: ['a'] }, 'parts[0]', /object/],
    [
      { role: 'user', parts: [{ type: 'tool_call', call_id: 'c', name: 'n', arguments: {} }] },
      'parts[0].type',
      /role user holds: text/,
    ],
    [{ role: 'tool', parts: [{ type: 'text', text: 'a' }] }, 'parts[0].type', /role tool holds: tool_result/],
    [
      { role: 'assistant', parts: [{ type: 'tool_call', call_id: 'c', name: 'n', arguments: 'x' }] },
      'parts[0].arguments',
      /object/,
    ],
    [{ role: 'assistant', parts: [{ type: 'reasoning', text: 'a' }] }, 'parts[0].provenance', /required/],
    [{ role: 'user', parts: [image] }, 'parts[0]', /exactly one of data/],
    [
      { role: 'user', parts: [{ ...image, data: 'aaaa', url: 'https://a.test/' }] },
      'parts[0]',
      /exactly one/,
    ],
    [{ role: 'user', parts: [{ ...image, data: 'a?==' }] }, 'parts[0].data', /base64/],
    [{ role: 'user', parts: [{ ...image, data: 'aaaaa' }] }, 'parts[0].data', /base64/],
    [
      { role: 'user', parts: [{ ...image, url: 'data:image/png;base64,aaaa' }] },
      'parts[0].url',
      /http or https/,
    ],
    [
      { role: 'user', parts: [{ ...image, media_type: 'audio/wav', data: 'aaaa' }] },
      'parts[0].media_type',
      /Such as image\/png/,
    ],
    [{ messages: [user('a')], role: 'user' }, 'messages', /either/],
    [{ messages: [user('a'), { role: 'user', parts: [image] }] }, 'messages[1].parts[0]', /exactly one/],
  ]
  for (const [body, param, message] of cases) {
    const answer = await call('POST', url, body)
    t.match(
      answer,
      { status: 400, body: { error: { code: 'invalid_request', param, message } } },
      JSON.stringify(body),
    )
  }
  t.match(await call('POST', url, { role: 'user', parts: [{ ...image, url: 'http://169.254.169.254/x' }] }), {
    status: 400,
    body: { error: { code: 'address_not_allowed', param: 'parts[0].url' } },
  })
  const fine = {
    role: 'user',
    parts: [
      { ...image, data: 'aGk=' },
      { ...image, url: 'https://a.test/b.png' },
    ],
  }
  t.match(await call('POST', url, fine), { status: 201 })
})

t.test('a turn: started in the background, read, waited for', async (t) => {
  const id = await newSession()
  const started = await call('POST', `/v1/sessions/${id}/turns`, {
    input: 'Hi',
    background: true,
    context: [{ op: 'insert_before', index: 0, message: user('Earlier') }],
    max_steps: 3,
  })
  const turn = started.body
  t.equal(started.status, 202)
  t.match(turn, { id: /^turn_/, session_id: id, state: 'running', steps: [], max_steps: 3, error: null })
  t.match(started.headers, { location: `/v1/turns/${turn.id}`, 'x-baton-turn': turn.id })
  t.match(g.turns.state.seen, {
    input: [{ type: 'text', text: 'Hi' }],
    on_busy: 'reject',
    provider: null,
    idempotency_key: null,
    // Only a key asks for it.
    body_hash: '',
    context: [{ op: 'insert_before', index: 0 }],
  })
  t.match((await call('GET', `/v1/sessions/${id}`)).body, { active_turn_id: turn.id })

  const busy = await call('POST', `/v1/sessions/${id}/turns`, { input: 'Again' })
  t.match(busy, {
    status: 409,
    body: { error: { code: 'turn_in_progress', details: { active_turn_id: turn.id } } },
  })
  const append = await call('POST', `/v1/sessions/${id}/messages`, user('x'))
  t.match(append, {
    status: 409,
    body: { error: { code: 'turn_in_progress', details: { active_turn_id: turn.id } } },
  })
  t.match(await call('DELETE', `/v1/sessions/${id}`), { status: 409 })

  const waiting = call('GET', `/v1/turns/${turn.id}?wait=30`)
  const message = { id: 'msg_answer', turn_id: turn.id, role: 'assistant' as const }
  const messages = [
    { ...message, parts: [{ type: 'text' as const, text: 'Let me see.' }] },
    { ...message, id: 'msg_last', parts: [{ type: 'text' as const, text: 'Hello.' }] },
  ]
  await end((await store.turns.get({ owner: '', admin: true }, turn.id)) as Turn, { epoch: 1 }, { messages })
  const waited = await waiting
  t.match(waited, {
    status: 200,
    body: {
      state: 'completed',
      finish_reason: 'stop',
      output_text: 'Hello.',
      messages: [{ role: 'user' }, {}, {}],
    },
  })
  t.match(g.turns.calls.at(-1), { verb: 'wait', args: [turn.id, 30] })
  t.match((await call('GET', `/v1/sessions/${id}/turns`)).body, {
    data: [{ id: turn.id }],
    next_cursor: null,
  })
  t.match(await call('GET', '/v1/turns/turn_0'), { status: 404, body: { error: { code: 'turn_not_found' } } })
  for (const seconds of ['soon', '-1', '601', '9'.repeat(400), '']) {
    const answer = await call('GET', `/v1/turns/${turn.id}?wait=${seconds}`)
    t.match(answer, { status: 400, body: { error: { param: 'wait' } } }, `wait=${seconds}`)
  }
})

t.test('a turn that is waited for answers with itself, or with its error', async (t) => {
  const id = await newSession()
  const url = `/v1/sessions/${id}/turns`
  const ending = async (fields: object) => {
    const before = g.turns.calls.length
    const answer = call('POST', url, { input: 'Hi', stream: false })
    while (g.turns.calls.length === before) await new Promise((resolve) => setImmediate(resolve))
    const turn = (await store.turns.list({ owner: '', admin: true }, id, { limit: 1 }))?.data[0] as Turn
    const epoch = (await store.turns.list({ owner: '', admin: true }, id, { limit: 100 }))?.data.length ?? 1
    await end(turn, { epoch }, fields)
    return { turn, answer: await answer }
  }
  const { answer: completed } = await ending({})
  t.match(completed, { status: 200, body: { state: 'completed', output_text: '' } })
  const error = {
    code: 'upstream_rate_limited',
    message: 'Slow down.',
    param: null,
    details: { upstream: { message: 'Too fast' }, retry_after: 7 },
  }
  const { turn, answer: failed } = await ending({ end: { state: 'failed', finish_reason: null, error } })
  t.match(failed, {
    status: 429,
    body: {
      error: {
        code: 'upstream_rate_limited',
        details: { turn_id: turn.id, upstream: { message: 'Too fast' } },
      },
    },
  })
  t.match(failed.headers, { 'retry-after': '7', location: `/v1/turns/${turn.id}` })
  t.match(await call('GET', `/v1/turns/${turn.id}`), { status: 200, body: { state: 'failed', error } })
})

t.test('an Idempotency-Key brings the same turn again', async (t) => {
  const id = await newSession()
  const url = `/v1/sessions/${id}/turns`
  const key = { 'idempotency-key': 'abc' }
  const body = { input: 'Hi', background: true, max_steps: 2 }
  const first = await call('POST', url, body, key)
  t.equal(first.headers['idempotent-replayed'], undefined)
  const again = await call('POST', url, { max_steps: 2, background: true, input: 'Hi' }, key)
  t.match(again, { status: 202, body: { id: first.body.id } }, 'the order of keys does not matter')
  t.equal(again.headers['idempotent-replayed'], 'true')
  const other = await call('POST', url, { ...body, input: 'Ho' }, key)
  t.match(other, { status: 422, body: { error: { code: 'idempotency_mismatch' } } })
  for (const bad of ['', 'ü', 'x'.repeat(256)]) {
    const answer = await call('POST', url, body, { 'idempotency-key': bad })
    t.match(answer, { status: 400, body: { error: { param: 'idempotency-key' } } }, JSON.stringify(bad))
  }
})

t.test('what a turn refuses', async (t) => {
  const url = `/v1/sessions/${await newSession()}/turns`
  const edit = (fields: object) => ({ input: 'a', context: [{ op: 'delete_at', index: 0 }, fields] })
  const cases: [unknown, string | null, RegExp][] = [
    [undefined, null, /The body must be an object/],
    [{}, 'input', /required/],
    [{ input: '' }, 'input', /not be empty/],
    [{ input: ' \n' }, 'input', /white space/],
    [{ input: 5 }, 'input', /allowed shapes.*Text, or a list of parts/],
    [{ input: [] }, 'input', /at least 1/],
    [{ input: [{ type: 'text', text: 5 }] }, 'input[0].text', /string/],
    [
      { input: [{ type: 'tool_result', call_id: 'c', name: 'n', content: [] }] },
      'input[0].type',
      /text, image, audio, file/,
    ],
    [{ input: [{ type: 'image', media_type: 'image/png' }] }, 'input[0]', /exactly one/],
    [{ input: 'a', max_steps: 0 }, 'max_steps', /1 or more/],
    [{ input: 'a', max_steps: 65 }, 'max_steps', /64 or less/],
    [{ input: 'a', max_steps: 1.5 }, 'max_steps', /whole number/],
    [{ input: 'a', stream: 'false' }, 'stream', /true or false/],
    [{ input: 'a', on_busy: 'wait' }, 'on_busy', /reject, enqueue, interrupt/],
    [{ input: 'a', provider: 'gemini' }, 'model', /needs its own model/],
    [{ input: 'a', messages: [] }, 'messages', /known field/],
    [edit({ op: 'swap', index: 0 }), 'context[1].op', /insert_before, insert_after, replace_at, delete_at/],
    [edit({ op: 'delete_at' }), 'context[1].index', /required/],
    [edit({ op: 'delete_at', index: '0' }), 'context[1].index', /whole number/],
    [edit({ op: 'replace_at', index: 0 }), 'context[1].message', /required/],
    [
      edit({ op: 'replace_at', index: 0, message: { role: 'user', parts: [{ type: 'text' }] } }),
      'context[1].message.parts[0].text',
      /required/,
    ],
    [
      edit({ op: 'replace_at', index: 0, message: { role: 'tool', parts: [{ type: 'text', text: 'a' }] } }),
      'context[1].message.parts[0].type',
      /role tool/,
    ],
  ]
  for (const [body, param, message] of cases) {
    const answer = await call('POST', url, body)
    t.match(
      answer,
      { status: 400, body: { error: { code: 'invalid_request', param, message } } },
      JSON.stringify(body),
    )
  }
  t.match(await call('POST', '/v1/sessions/ses_0/turns', { input: 'a' }), { status: 404 })
  g.turns.state.refuse = new BatonError('draining', 'Shutting down.', { retryAfter: 2 })
  const draining = await call('POST', url, { input: 'a' })
  g.turns.state.refuse = null
  t.match(draining, { status: 503, body: { error: { code: 'draining' } } })
  t.equal(draining.headers['retry-after'], '2')
})

t.test('cancel, restart, approve, answer', async (t) => {
  const id = await newSession()
  const { body: turn } = await call('POST', `/v1/sessions/${id}/turns`, { input: 'Hi', background: true })
  const url = `/v1/turns/${turn.id}`
  const said = () => g.turns.calls.at(-1)
  t.match(await call('POST', `${url}/cancel`), { status: 202, body: { id: turn.id } })
  t.match(said(), { verb: 'cancel', args: [turn.id, false] })
  t.match(await call('POST', `${url}/cancel?wait=true`, undefined, { 'content-type': 'text/plain' }), {
    status: 200,
    body: { messages: [{ role: 'user' }] },
  })
  t.match(said(), { verb: 'cancel', args: [turn.id, true] })
  t.match(await call('POST', `${url}/cancel?wait=maybe`), { status: 400, body: { error: { param: 'wait' } } })
  t.match(await call('POST', `${url}/restart`), { status: 409, body: { error: { code: 'not_restartable' } } })
  const approval = { decision: 'approve', arguments: { a: 1 } }
  t.match(await call('POST', `${url}/approvals/call_1`, approval), { status: 200, body: { id: turn.id } })
  t.match(said(), { verb: 'decide', args: [turn.id, 'call_1', approval] })
  t.match(await call('POST', `${url}/approvals/call_1`, { decision: 'deny', arguments: {} }), { status: 400 })
  t.match(await call('POST', `${url}/approvals/call_1`, {}), {
    status: 400,
    body: { error: { param: 'decision' } },
  })
  t.match(await call('POST', `${url}/answers/call_1`, { answer: null }), {
    status: 409,
    body: { error: { code: 'not_awaiting' } },
  })
  t.match(await call('POST', `${url}/answers/call_1`, {}), {
    status: 400,
    body: { error: { param: 'answer' } },
  })
})

t.test('render hands on what would be sent', async (t) => {
  const id = await newSession()
  t.match(await call('POST', `/v1/sessions/${id}/render`), {
    status: 200,
    body: { method: 'POST', notes: [] },
  })
  t.match(g.turns.calls.at(-1), { verb: 'render', args: [id, { context: [], input: [] }] })
  const given = { provider: 'gemini', model: 'g', input: 'Hi', context: [{ op: 'delete_at', index: -1 }] }
  t.match(await call('POST', `/v1/sessions/${id}/render`, given), { body: { provider: 'gemini' } })
  t.match(g.turns.calls.at(-1)?.args[1], { ...given, input: [{ type: 'text', text: 'Hi' }] })
  t.match(await call('POST', `/v1/sessions/${id}/render`, { provider: 'gemini' }), {
    status: 400,
    body: { error: { code: 'invalid_request', param: 'model', message: /needs its own model/ } },
  })
  t.equal((await call('POST', `/v1/sessions/${id}/render`, { provider: 'openai' })).status, 200)
  t.match(await call('POST', `/v1/sessions/${id}/render`, { input: 7 }), {
    status: 400,
    body: { error: { param: 'input' } },
  })
})

const FILES = { name: 'files', transport: 'streamable_http', url: 'https://mcp.test/mcp' }

t.test('two changes at once both hold', async (t) => {
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
  t.match((await g.call('GET', path)).body, moved, 'no provider with the model of another')
})

t.test('connectors: made, shown without secrets, changed, tested, deleted', async (t) => {
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

  const patched = await call('PATCH', url, { allow_tools: ['read_*'], url: 'https://other.test/mcp' })
  t.match(patched.body, {
    allow_tools: ['read_*'],
    url: 'https://other.test/mcp',
    header_names: ['x-tenant'],
    auth: { type: 'bearer' },
  })
  t.match(g.tools.calls.at(-1), { verb: 'changed', args: ['files', []] })
  t.match(await call('PATCH', url, { transport: 'sse' }), {
    status: 400,
    body: { error: { param: 'transport' } },
  })
  t.match(await call('PATCH', url, { command: 'sh' }), { status: 400, body: { error: { param: 'command' } } })
  t.match(await call('PATCH', url, { auth: { type: 'none' }, headers: {} }), {
    body: { auth: { type: 'none' }, header_names: [] },
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
  t.match(await call('POST', `/v1/connectors/${down.id}/test`), {
    status: 200,
    body: { ok: false, server: null, tools: [], error: 'Connection refused.' },
  })
  t.match(await call('POST', `${url}/tools/read%2Fall/accept`), { status: 200, body: { tool: 'read/all' } })
  t.equal((await call('DELETE', url)).status, 204)
  t.match(await call('GET', url), { status: 404, body: { error: { code: 'connector_not_found' } } })
  t.match(await call('DELETE', url), { status: 404 })
  await call('DELETE', `/v1/connectors/${down.id}`)
})

t.test('what a connector refuses', async (t) => {
  const cases: [object, string, RegExp, string?][] = [
    [{ ...FILES, name: 'Files' }, 'name', /lower-case letter/],
    [{ ...FILES, name: 'a.b' }, 'name', /lower-case/],
    [{ name: 'a', transport: 'sse' }, 'url', /required for transport sse/],
    [{ ...FILES, url: 'ftp://a' }, 'url', /http or https/],
    [{ ...FILES, url: 'https://u:p@a.test' }, 'url', /user name/],
    [{ ...FILES, url: 'http://169.254.169.254/' }, 'url', /not public/, 'address_not_allowed'],
    [{ ...FILES, command: 'sh' }, 'command', /does not belong/],
    [{ ...FILES, headers: { 'a b': 'c' } }, 'headers.a b', /legal HTTP header/],
    [{ ...FILES, headers: { a: 'b\nc' } }, 'headers.a', /legal HTTP header/],
    [{ ...FILES, headers: { Host: 'evil' } }, 'headers.Host', /set by the connection/],
    [{ ...FILES, headers: { a: 1 } }, 'headers.a', /string/],
    [{ ...FILES, auth: { type: 'bearer' } }, 'auth.token', /required/],
    [{ ...FILES, auth: { type: 'basic' } }, 'auth.type', /none, oauth, bearer/],
    [{ ...FILES, default_tool_config: { timeout: 'P1M' } }, 'default_tool_config.timeout', /ISO 8601/],
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
      { name: 'a', transport: 'stdio', command: 'sh', env: { 'a-b': 'c' } },
      'env.a-b',
      /environment variable/,
    ],
    [
      { name: 'a', transport: 'stdio', command: 'sh', env: { NODE_OPTIONS: '--require ./x.js' } },
      'env.NODE_OPTIONS',
      /run other code/,
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

t.test("the tools of a session: bound, listed, switched, and the owner's word for all of it", async (t) => {
  await call('POST', '/v1/connectors', FILES)
  const id = await newSession({ connectors: ['files', 'files'] })
  t.match(g.tools.calls.at(-1), { verb: 'open', args: [id, ['files']] })
  const url = `/v1/sessions/${id}`
  t.match((await call('GET', `${url}/connectors`)).body, {
    data: [{ name: 'files', alias: null, status: String }],
  })
  const change = {
    status: 200,
    body: { tools_revision: 1, effective: { from: 'next_turn' }, prompt_cache: 'kept' },
  }
  t.match(await call('PUT', `${url}/connectors/files`, { apply: 'now', alias: 'docs' }), change)
  t.match(g.tools.calls.at(-1), { verb: 'bind', args: ['files', 'now', 'docs'] })
  t.match(await call('PUT', `${url}/connectors/files`, { alias: null }), change)
  t.match(await call('PUT', `${url}/connectors/files`), change)
  t.match(g.tools.calls.at(-1), { verb: 'bind', args: ['files', 'next', null] })
  t.match(await call('PUT', `${url}/connectors/files`, { alias: 'Docs' }), {
    status: 400,
    body: { error: { param: 'alias' } },
  })
  t.match(await call('PUT', `${url}/connectors/nope`), {
    status: 404,
    body: { error: { code: 'connector_not_found' } },
  })
  t.match(await call('GET', `${url}/tools`), {
    status: 200,
    body: { revision: 1, tools: [{ canonical_name: 'files.read' }] },
  })
  t.match((await call('GET', `${url}/tools?provider=openai`)).body, {
    declarations: [{ name: 'files__read' }],
  })
  t.match(await call('GET', `${url}/tools?provider=acme`), {
    status: 400,
    body: { error: { param: 'provider' } },
  })
  t.match(await call('PATCH', `${url}/tools/files.read%2Fall`, { enabled: false, apply: 'now' }), change)
  t.match(g.tools.calls.at(-1), { verb: 'setEnabled', args: ['files.read/all', false, 'now'] })
  t.match(await call('PATCH', `${url}/tools/files.read`, {}), {
    status: 400,
    body: { error: { param: 'enabled' } },
  })
  t.match(await call('PATCH', `${url}/tools/no.such`, { enabled: true }), {
    status: 404,
    body: { error: { code: 'tool_not_found' } },
  })
  t.match(await call('POST', `${url}/tools/refresh`), change)
  t.match(await call('POST', `${url}/tools/refresh`, { apply: 'later' }), {
    status: 400,
    body: { error: { param: 'apply' } },
  })
  t.match(await call('DELETE', `${url}/connectors/files?apply=now`), change)
  t.match(g.tools.calls.at(-1), { verb: 'unbind', args: ['files', 'now'] })
  t.match(await call('DELETE', `${url}/connectors/files?apply=x`), {
    status: 400,
    body: { error: { param: 'apply' } },
  })
  t.match(await call('GET', '/v1/sessions/ses_0/tools'), {
    status: 404,
    body: { error: { code: 'session_not_found' } },
  })
})

t.test('credentials: made, shown by their hint, changed, deleted', async (t) => {
  const key = {
    provider: 'anthropic',
    kind: 'api_key',
    api_key: 'sk-ant-secret-WXYZ',
    name: 'work',
    default: true,
  }
  const made = await call('POST', '/v1/credentials', key)
  t.equal(made.status, 201)
  t.match(made.body, {
    id: /^cred_/,
    provider: 'anthropic',
    hint: 'WXYZ',
    state: 'active',
    default: true,
    origin: 'api',
  })
  t.notMatch(JSON.stringify(made), /secret/)
  const short = await call('POST', '/v1/credentials', { ...key, api_key: 'WXYZ', default: false })
  t.match(short, { status: 201, body: { hint: '****' } }, 'a hint is never the whole of a secret')
  await call('DELETE', `/v1/credentials/${short.body.id}`)
  const url = `/v1/credentials/${made.body.id}`
  t.same((await call('GET', url)).body, made.body)
  t.match(await call('PATCH', url, { state: 'disabled', name: 'old', default: false }), {
    status: 200,
    body: { state: 'disabled', name: 'old', default: false },
  })
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
  t.match(await call('GET', '/v1/oauth/callback/acme?code=1'), {
    status: 400,
    body: { error: { param: 'provider' } },
  })
  t.match(await call('POST', '/v1/oauth/gemini/authorize'), {
    status: 400,
    body: { error: { code: 'not_available' } },
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

t.test('login flows, where there are any', async (t) => {
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
    callback: async () => ({ state: 'done' as const, credential_id: made.id }),
    callbackPage: async (provider: string, query: unknown) => {
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
  t.match(page.headers['content-security-policy'], "default-src 'none'", 'nothing else is loaded there')
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

t.test('the ledger of tool executions', async (t) => {
  const id = await newSession()
  const { body: turn } = await call('POST', `/v1/sessions/${id}/turns`, { input: 'Hi', background: true })
  const fence = { session_id: id, owner: 'test', epoch: 1 }
  const text = JSON.stringify({ items: ['häß', { deep: 1 }] })
  const execution = {
    id: 'exec_1',
    turn_id: turn.id,
    step: 0,
    call_id: 'call_1',
    tool: 'files.read',
    connector: 'files',
    tools_revision: 1,
    arguments: { path: '/' },
    state: 'started' as const,
    repeatable: false,
  }
  await store.turns.commit(fence, { turn_id: turn.id, executions: [execution] })
  await store.executions.settle(fence, {
    id: 'exec_1',
    outcome: 'ok',
    is_error: false,
    error: null,
    duration_ms: 12,
    bytes: text.length,
    output: text,
    structured: true,
    result: {
      type: 'tool_result',
      call_id: 'call_1',
      name: 'files.read',
      content: [],
      is_error: false,
      outcome: 'ok',
    },
  })
  const one = await call('GET', '/v1/tool-executions/exec_1')
  t.match(one, {
    status: 200,
    body: { id: 'exec_1', session_id: id, outcome: 'ok', duration_ms: 12, approved_by: null },
  })
  t.match((await call('GET', `/v1/tool-executions?session_id=${id}&tool=files.read&outcome=ok`)).body.data, [
    { id: 'exec_1' },
  ])
  t.same(
    (await call('GET', '/v1/tool-executions?session_id=ses_0')).body.data,
    [],
    'unknown in a filter: empty',
  )
  t.same((await call('GET', '/v1/tool-executions?since=2999-01-01T00:00:00Z')).body.data, [])
  for (const [query, param] of [
    ['since=yesterday', 'since'],
    ['outcome=good', 'outcome'],
    ['limit=0', 'limit'],
    ['limit=1001', 'limit'],
    ['sesion_id=x', 'sesion_id'],
  ]) {
    t.match(
      await call('GET', `/v1/tool-executions?${query}`),
      { status: 400, body: { error: { param } } },
      `?${query}`,
    )
  }
  const out = await call('GET', '/v1/tool-executions/exec_1/output?path=/items/0&limit=2')
  t.match(out.body, { exec_id: 'exec_1', path: '/items/0', content: 'h', total_bytes: 5, next_offset: 1 })
  const bad = await call('GET', '/v1/tool-executions/exec_1/output?path=/nope')
  t.match(bad, { status: 400, body: { error: { code: 'invalid_request', param: 'path' } } })
  const stats = await call('GET', '/v1/tool-executions/stats?group_by=session')
  t.match(stats.body.data, [{ key: id, count: 1, failures: 0, p50_ms: 12, max_ms: 12 }])
  t.match(await call('GET', '/v1/tool-executions/exec_0'), {
    status: 404,
    body: { error: { code: 'tool_execution_not_found' } },
  })
  t.match(await call('GET', '/v1/tool-executions/exec_0/output'), { status: 404 })
})
