/** Turns, and the ledger of the tool executions in them. */
import { pino } from 'pino'
import t from 'tap'
import { turnView } from '../../routes/turn-view.ts'
import type { Message } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { Fence, Turn } from '../../src/store/store.ts'
import { NONE } from '../patterns.ts'
import { gateway } from './gateway.ts'
import { gatewayOnStore, user } from './gateway-on-store.ts'
import { turnRow } from './served-streams.ts'

const g = await gatewayOnStore(t)
const { call, newSession, store } = g

/** Ends a turn as the engine would. */
async function end(turn: Turn, fence: Pick<Fence, 'epoch'>, fields: object = {}): Promise<void> {
  await store.turns.commit(
    { session_id: turn.session_id, owner: 'test', ...fence },
    { turn_id: turn.id, end: { state: 'completed', finish_reason: 'stop' }, ...fields },
  )
}

t.test('a turn is started in the background, read and waited for', async (t) => {
  const id = await newSession()
  const started = await call('POST', `/v1/sessions/${id}/turns`, {
    input: 'Hi',
    background: true,
    context: [{ op: 'insert_before', index: 0, message: user('Earlier') }],
    max_steps: 3,
  })
  const turn = started.body
  t.equal(started.status, 202)
  t.match(turn, { id: /^turn_/, session_id: id, state: 'running', steps: NONE, max_steps: 3, error: null })
  t.match(started.headers, { location: `/v1/turns/${turn.id}`, 'x-baton-turn': turn.id })
  t.match(g.turns.state.seen, {
    input: [{ type: 'text', text: 'Hi' }],
    on_busy: 'reject',
    provider: null,
    idempotency_key: null,
    // Only an idempotency key needs the hash.
    body_hash: '',
    context: [{ op: 'insert_before', index: 0 }],
  })
  t.match((await call('GET', `/v1/sessions/${id}`)).body, { active_turn_id: turn.id })

  const busy = await call('POST', `/v1/sessions/${id}/turns`, { input: 'Again' })
  t.match(busy, {
    status: 409,
    body: { error: { code: 'turn_in_progress', details: { active_turn_id: turn.id } } },
  })
  t.match(g.turns.state.seen, { max_steps: 16 }, 'so many where the caller says nothing')
  const append = await call('POST', `/v1/sessions/${id}/messages`, user('x'))
  t.match(append, {
    status: 409,
    body: { error: { code: 'turn_in_progress', details: { active_turn_id: turn.id } } },
  })
  t.match(await call('DELETE', `/v1/sessions/${id}`), { status: 409 })

  const warnings: Error[] = []
  const onWarning = (warning: Error) => void warnings.push(warning)
  process.on('warning', onWarning)
  // More listeners at one signal than Node takes without a warning.
  const others = Array.from({ length: 11 }, () => call('GET', `/v1/turns/${turn.id}?wait=30`))
  const waiting = call('GET', `/v1/turns/${turn.id}?wait=30`)
  const message = { id: 'msg_answer', turn_id: turn.id, role: 'assistant' as const }
  const messages = [
    { ...message, parts: [{ type: 'text' as const, text: 'Let me see.' }] },
    { ...message, id: 'msg_last', parts: [{ type: 'text' as const, text: 'Hello.' }] },
  ]
  await end((await store.turns.get({ owner: '', admin: true }, turn.id)) as Turn, { epoch: 1 }, { messages })
  const waited = await waiting
  for (const other of others) t.match(await other, { body: { state: 'completed' } })
  process.off('warning', onWarning)
  t.same(warnings, [])
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

t.test('a call that waits for its turn is answered with the turn, or with its error', async (t) => {
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
    param: 'model',
    details: { upstream: { message: 'Too fast' }, retry_after: 7 },
  }
  const { turn, answer: failed } = await ending({ end: { state: 'failed', error } })
  t.match(failed, {
    status: 429,
    body: {
      error: {
        code: 'upstream_rate_limited',
        param: 'model',
        details: { turn_id: turn.id, upstream: { message: 'Too fast' } },
      },
    },
  })
  t.match(failed.headers, { 'retry-after': '7', location: `/v1/turns/${turn.id}` })
  t.match(await call('GET', `/v1/turns/${turn.id}`), { status: 200, body: { state: 'failed', error } })
  // As when a login's service is away: it is left alone for some seconds.
  for (const [code, status] of [
    ['upstream_disconnected', 502],
    ['upstream_timeout', 504],
  ]) {
    const away = { code, message: 'Away.', param: null, details: { retry_after: 5 } }
    const { answer } = await ending({ end: { state: 'failed', error: away } })
    t.match(answer, { status, headers: { 'retry-after': '5' } })
  }
})

t.test('the text of a turn is the last that its model said, whatever the model did afterwards', async (t) => {
  const message = (role: string, parts: object[]) => ({ role, parts }) as unknown as Message
  const text = (text: string) => ({ type: 'text', text })
  const call = { type: 'tool_call', call_id: 'call_1', name: 'files.read', arguments: {} }
  const said = [
    message('assistant', [text('First.')]),
    message('assistant', [text('I look.'), call]),
    message('assistant', [call]),
    message('tool', [{ type: 'tool_result', call_id: 'call_1', name: 'files.read', content: [text('a')] }]),
  ]
  t.equal(turnView(turnRow(), said).output_text, 'I look.')
})

t.test('an Idempotency-Key brings the same turn again for the same body only', async (t) => {
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
    t.match(answer, { status: 400, body: { error: { param: 'Idempotency-Key', message: /ASCII/ } } }, bad)
  }
})

t.test('a login whose provider is switched off refuses a turn and its preview, as documented', async (t) => {
  const id = await newSession()
  g.turns.state.refuse = new BatonError('oauth_not_enabled', 'OAuth for openai is off.')
  t.teardown(() => {
    g.turns.state.refuse = null
  })
  for (const path of ['turns', 'render']) {
    const answer = await call('POST', `/v1/sessions/${id}/${path}`, { input: 'Hi' })
    t.match(answer, { status: 403, body: { error: { code: 'oauth_not_enabled' } } }, path)
  }
})

t.test('a turn with a bad field is refused, and the error names the field and the reason', async (t) => {
  const url = `/v1/sessions/${await newSession()}/turns`
  const edit = (fields: object) => ({ input: 'a', context: [{ op: 'delete_at', index: 0 }, fields] })
  const cases: [unknown, string | null, RegExp][] = [
    [undefined, null, /The body is missing: send a JSON object/],
    [[], null, /The body must be an object/],
    [{ input: [{ role: 'user', content: 'a' }] }, 'input[0].type', /required.*text, image, audio, file/],
    [{ input: 'a', model: 'm\n' }, 'model', /without spaces around it/],
    [{}, 'input', /required/],
    [{ input: '' }, 'input', /not be empty. Text, or a list of parts/],
    [{ input: ' \n' }, 'input', /white space/],
    [{ input: '\u200b\u0085\u001c' }, 'input', /white space/],
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

t.test('a cancel, restart, approval or answer goes to the engine as given, or is refused', async (t) => {
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

t.test('render hands the request to the engine and answers with what would be sent', async (t) => {
  const id = await newSession()
  t.match(await call('POST', `/v1/sessions/${id}/render`), {
    status: 200,
    body: { method: 'POST', notes: NONE },
  })
  t.match(g.turns.calls.at(-1), { verb: 'render', args: [id, { context: NONE, input: NONE }] })
  const given = { provider: 'gemini', model: 'g', input: 'Hi', context: [{ op: 'delete_at', index: -1 }] }
  t.match(await call('POST', `/v1/sessions/${id}/render`, given), { body: { provider: 'gemini' } })
  t.match(g.turns.calls.at(-1)?.args[1], { ...given, input: [{ type: 'text', text: 'Hi' }] })
  t.equal((await call('POST', `/v1/sessions/${id}/render`, { provider: 'openai' })).status, 200)
  t.match(await call('POST', `/v1/sessions/${id}/render`, { input: 7 }), {
    status: 400,
    body: { error: { param: 'input' } },
  })
})

t.test('a history that is too long to be read is a documented 422 of render and of a new turn', async (t) => {
  const id = await newSession()
  g.turns.state.refuse = new BatonError('context_too_long', 'More than 128 MiB.')
  t.teardown(() => {
    g.turns.state.refuse = null
  })
  const refused = { status: 422, body: { error: { code: 'context_too_long' } } }
  t.match(await call('POST', `/v1/sessions/${id}/render`), refused)
  t.match(await call('POST', `/v1/sessions/${id}/turns`, { input: 'Hi' }), refused)
})

t.test('the ledger of tool executions is listed, filtered, read and summed up', async (t) => {
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
    'an unknown id in a filter gives an empty list',
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
  t.match(await call('GET', '/v1/tool-executions/exec_0/output'), {
    status: 404,
    body: { error: { message: 'No tool execution exec_0 exists that has ended and left an output.' } },
  })
})

t.test('the log leads from a request to its turn, and back', async (t) => {
  const lines: { level: number; msg: string }[] = []
  const log = pino({ level: 'debug' }, { write: (line) => void lines.push(JSON.parse(line)) })
  const logged = (level: number) => lines.splice(0).filter((line) => line.level === level)
  const other = await gateway(store, {}, { log })
  t.teardown(() => other.close())
  const session_id = await newSession()
  const begin = (request_id: string, input = 'Hi') => {
    const headers = { 'x-request-id': request_id, 'idempotency-key': 'k1' }
    return other.call('POST', `/v1/sessions/${session_id}/turns`, { input, background: true }, headers)
  }
  const { body } = await begin('my-req-1')
  const accepted = { msg: 'turn accepted', session_id, turn_id: body.id }
  t.match(logged(30), [{ ...accepted, request_id: 'my-req-1', outcome: 'created' }])
  await begin('my-req-2')
  t.match(logged(30), [{ ...accepted, request_id: 'my-req-2', outcome: 'replayed' }])
  t.equal((await begin('my-req-3', 'Other')).status, 422)
  t.match(
    lines,
    [{ level: 20, request_id: 'my-req-3', method: 'POST', route: '/v1/sessions/:id/turns', status: 422 }],
    'where no turn was begun, the line for debugging says so',
  )
  lines.splice(0)
  for (const path of ['/healthz', '/readyz', '/metrics']) await other.call('GET', path)
  t.strictSame(lines, [], 'calls that come every few seconds leave no line')
})
