/** Sessions, their messages and their tools. */
import t from 'tap'
import { FILES, gatewayOnStore, user } from './gateway-on-store.ts'

const g = await gatewayOnStore(t)
const { call, newSession } = g

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

t.test('a connector that is deleted as a session begins is none, and no session stays behind', async (t) => {
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
  const elsewhere = `/v1/sessions/${await newSession()}/messages`
  for (const [given, kept] of [
    [{ outcome: 'denied' }, { is_error: true, outcome: 'denied' }],
    [{ is_error: true }, { is_error: true, outcome: 'error' }],
  ]) {
    const result = { type: 'tool_result', call_id: 'call_1', name: 'files.read', content: [], ...given }
    t.match(await call('POST', elsewhere, { role: 'tool', parts: [result] }), {
      status: 201,
      body: { parts: [kept] },
    })
  }
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

t.test(
  'reasoning whose text is edited loses its token, and keeps it where it is given back as it was',
  async (t) => {
    const url = `/v1/sessions/${await newSession()}/messages`
    const origin = { provider: 'anthropic', model: 'm', credential_id: null }
    const reasoning = (text: string, opaque: string) => ({
      type: 'reasoning',
      text,
      provenance: { ...origin, opaque },
    })
    const first = reasoning('a', 'one')
    const given = [first, reasoning('b', 'two'), reasoning('b too', 'two')]
    const { body } = await call('POST', url, { role: 'assistant', parts: given })
    const patch = async (parts: object[]) => (await call('PATCH', `${url}/${body.id}`, { parts })).body.parts
    t.same(await patch(given), given)
    const added = reasoning('c', 'three')
    t.same(await patch([first, reasoning('edited', 'two'), added]), [
      first,
      { type: 'reasoning', text: 'edited', provenance: origin },
      added,
    ])
  },
)

t.test('a text or a call that is edited loses its token, and what stays beside it does not', async (t) => {
  const url = `/v1/sessions/${await newSession()}/messages`
  const origin = { provider: 'gemini', model: 'm', credential_id: null }
  const said = (text: string, opaque?: string) => ({
    type: 'text',
    text,
    provenance: { ...origin, ...(opaque && { opaque }) },
  })
  const asked = (path: string, opaque?: string) => ({
    type: 'tool_call',
    call_id: 'call_1',
    name: 'files.read',
    arguments: { path, depth: 1 },
    provenance: { ...origin, ...(opaque && { opaque }) },
  })
  const { body } = await call('POST', url, {
    role: 'assistant',
    parts: [said('a', 'one'), said('', 'two'), asked('a.txt', 'three')],
  })
  const patch = async (parts: object[]) => (await call('PATCH', `${url}/${body.id}`, { parts })).body.parts
  const edited = await patch([said('a', 'one'), said('b', 'two'), asked('b.txt', 'three')])
  t.same(edited, [said('a', 'one'), said('b'), asked('b.txt')])
})

t.test('an answer with nothing in it can be given to another session', async (t) => {
  const url = `/v1/sessions/${await newSession()}/messages`
  const empty = { role: 'assistant', parts: [] }
  t.match(await call('POST', url, empty), { status: 201, body: empty })
  const { body } = await call('POST', url, { messages: [user('a'), empty] })
  t.match(body.data, [{ role: 'user' }, empty])
  t.match(await call('PATCH', `${url}/${body.data[0].id}`, { parts: [] }), {
    status: 400,
    body: { error: { param: 'parts', message: /at least 1/ } },
  })
})

t.test('a URL is kept as it was read', async (t) => {
  const url = `/v1/sessions/${await newSession()}/messages`
  const image = { type: 'image', media_type: 'image/png', url: ' HTTPS://a.test/\ud800 b' }
  const read = { ...image, url: 'https://a.test/%EF%BF%BD%20b' }
  const result = { type: 'tool_result', call_id: 'c', name: 'n', content: [image] }
  const { body } = await call('POST', url, {
    messages: [
      { role: 'user', parts: [image] },
      { role: 'tool', parts: [result] },
    ],
  })
  t.match(body.data, [{ parts: [read] }, { parts: [{ content: [read] }] }])
})

t.test('what a message may hold', async (t) => {
  const url = `/v1/sessions/${await newSession()}/messages`
  const image = { type: 'image', media_type: 'image/png' }
  const cases: [object, string, RegExp][] = [
    [{ role: 'user' }, 'parts', /required/],
    [{ parts: [{ type: 'text', text: 'a' }] }, 'role', /required/],
    [{ role: 'user', parts: [] }, 'parts', /at least 1/],
    [{ role: 'tool', parts: [] }, 'parts', /at least 1/],
    [{ messages: [{ role: 'system', parts: [] }] }, 'messages[0].parts', /at least 1/],
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
    [
      { role: 'user', parts: [{ type: 'file', media_type: 'text/plain; charset', data: 'aaaa' }] },
      'parts[0].media_type',
      /Such as .*charset=utf-8/,
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
      { type: 'file', media_type: 'text/plain; charset=utf-8', data: 'aGk=' },
      { type: 'file', media_type: 'text/csv;charset="utf-8";header=present', data: 'aGk=' },
    ],
  }
  t.match(await call('POST', url, fine), { status: 201 })
})

t.test("the tools of a session: bound, listed, switched, and the owner's word for all of it", async (t) => {
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
    'also where the one at the cursor is bound no longer',
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
