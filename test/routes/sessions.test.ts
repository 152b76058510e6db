/** Sessions and their tools. */
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import { EMPTY } from '../patterns.ts'
import { FILES, gatewayOnStore } from './gateway-on-store.ts'

const g = await gatewayOnStore(t)
const { call, newSession } = g

t.test('sessions are made, read, listed, changed and deleted', async (t) => {
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
  t.match(changed.body, { title: null, metadata: EMPTY, instructions: 'Be brief.' })
  t.match(await call('PATCH', url, {}), { status: 200 })
  t.match(
    await call('PATCH', url, undefined),
    { status: 200 },
    'a PATCH without a body counts as one with an empty body',
  )

  const dropped: string[] = []
  const { drop } = g.bus.bus
  g.bus.bus.drop = async (session) => {
    dropped.push(session)
    throw new Error('away')
  }
  t.equal((await call('DELETE', url)).status, 204, 'also while the bus is away')
  g.bus.bus.drop = drop
  t.strictSame(dropped, [made.body.id], 'its events go, too')
  t.match(await call('DELETE', url), { status: 404, body: { error: { code: 'session_not_found' } } })
  t.match(await call('GET', url), { status: 404 })
})

t.test('a deletion whose answer the store lost ends the streams, and one that failed does not', async (t) => {
  const id = await newSession()
  const { bus } = g.bus
  const { sessions } = g.store
  const { drop } = bus
  const { delete: remove } = sessions
  t.teardown(() => Object.assign(bus, { drop }) && Object.assign(sessions, { delete: remove }))
  const dropped: string[] = []
  bus.drop = async (session) => void dropped.push(session)
  let isWritten = false
  sessions.delete = async (...given) => {
    if (isWritten) await remove(...given)
    throw new BatonError('unavailable', 'The database is not available.')
  }
  t.equal((await call('DELETE', `/v1/sessions/${id}`)).status, 503)
  t.strictSame(dropped, [])
  isWritten = true
  t.equal((await call('DELETE', `/v1/sessions/${id}`)).status, 503)
  t.strictSame(dropped, [id])
})

t.test('a session switches its provider with a model and a credential of the new one only', async (t) => {
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

t.test('a new session with a bad field is refused, and the error names field and reason', async (t) => {
  const cases: [object, string, RegExp][] = [
    [{ model: 'm' }, 'provider', /required\. Write one of: openai, anthropic, gemini\. Whose model/],
    [{ model: 'm', provder: 'openai' }, 'provider', /required\. 'provder' is not a known field\./],
    [{ provider: 'nobody', model: 'm' }, 'provider', /one of: openai, anthropic, gemini/],
    [{ provider: 'openai', model: '' }, 'model', /not be empty/],
    [{ provider: 'openai', model: 'a\u0000' }, 'model', /must match/],
    [{ provider: 'openai', model: 5 }, 'model', /must be a string/],
    [
      { provider: 'openai', model: 'm', modle: 'm' },
      'modle',
      /not a known field.*Known fields here: provider, model/,
    ],
    [{ provider: 'openai', model: 'm', '': 1 }, '""', /^"" is not a known field/],
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
    [
      { provider: 'openai', model: 'm', credential_id: 'cred_0' },
      'credential_id',
      /No credential has the id cred_0/,
    ],
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

t.test('a connector that is deleted as a session begins is unknown, and no session stays', async (t) => {
  const { id } = (await call('POST', '/v1/connectors', { ...FILES, name: 'leaving' })).body
  const before = (await call('GET', '/v1/sessions?limit=1')).body.data[0]?.id
  const { open } = g.tools.tools
  g.tools.tools.open = async (session, connectors) => {
    g.tools.tools.open = open
    t.equal((await call('DELETE', `/v1/connectors/${id}`)).status, 204)
    return open(session, connectors)
  }
  t.match(await call('POST', '/v1/sessions', { provider: 'openai', model: 'm', connectors: ['leaving'] }), {
    status: 400,
    body: { error: { code: 'invalid_request', param: 'connectors[0]' } },
  })
  t.equal((await call('GET', '/v1/sessions?limit=1')).body.data[0]?.id, before)
})

t.test('a session that is deleted as it begins is answered as an unknown one', async (t) => {
  const { open } = g.tools.tools
  g.tools.tools.open = async ({ id }) => {
    g.tools.tools.open = open
    await call('DELETE', `/v1/sessions/${id}`)
  }
  const answer = await call('POST', '/v1/sessions', { provider: 'openai', model: 'm' })
  t.match(answer, { status: 404, body: { error: { code: 'session_not_found' } } })
})

t.test('the tools of a session are bound, listed and switched as the caller says', async (t) => {
  await call('POST', '/v1/connectors', FILES)
  const id = await newSession({ connectors: ['files', 'files'] })
  t.match(g.tools.calls.at(-1), { verb: 'open', args: [id, ['files']] })
  const url = `/v1/sessions/${id}`
  t.match((await call('GET', `${url}/connectors`)).body, {
    data: [{ name: 'files', alias: null, status: String }],
  })
  const { body: later } = await call('POST', '/v1/connectors', { ...FILES, name: 'later' })
  await g.store.connectors.bind(id, later.id, null)
  const { body: page } = await call('GET', `${url}/connectors?limit=1`)
  t.match(page, { data: [{ name: 'later' }], next_cursor: String })
  const { body: rest } = await call('GET', `${url}/connectors?limit=1&cursor=${page.next_cursor}`)
  t.match(rest, { data: [{ name: 'files' }], next_cursor: null })
  t.match(await call('GET', `${url}/connectors?limit=abc`), { status: 400 })
  await g.store.connectors.unbind(id, later.id)
  t.match(
    await call('GET', `${url}/connectors?cursor=${page.next_cursor}`),
    { status: 200, body: { data: [{ name: 'files' }], next_cursor: null } },
    'also where the connector at the cursor is bound no longer',
  )
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
  t.match(await call('GET', `${url}/tools?provider=nobody`), {
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
