/** Messages of a session: appended, edited and deleted without a turn, and what a message may hold. */
import t from 'tap'
import { gatewayOnStore, user } from './gateway-on-store.ts'

const { call, newSession } = await gatewayOnStore(t)

t.test('messages are appended, listed, edited and deleted', async (t) => {
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
    'the results go with the message of their calls',
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

t.test('a message in the shape of another API is refused with what it should be', async (t) => {
  const url = `/v1/sessions/${await newSession()}/messages`
  for (const [body, param, message] of [
    [{ role: 'user', content: 'Hi' }, 'parts', /required. 'content' is not a known field/],
    [{ parts: [] }, 'role', /required. Write one of: user, assistant, tool, system/],
    [{ role: 'user', parts: [{ text: 'Hi' }] }, 'parts[0].type', /required. Write one of: text, reasoning/],
  ] as const)
    t.match(await call('POST', url, body), { status: 400, body: { error: { param, message } } })
})

t.test(
  'reasoning whose text is edited loses its token; reasoning that is given back as it was keeps it',
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

t.test('an edited text or call loses its token, and a part that stays beside it keeps its own', async (t) => {
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

t.test('a URL is kept in its parsed form', async (t) => {
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

t.test('a message of each role takes the parts that its role may hold, and no other', async (t) => {
  const url = `/v1/sessions/${await newSession()}/messages`
  const parts = {
    text: { text: 'a' },
    reasoning: { text: 'a', provenance: { provider: 'openai', model: 'm', credential_id: null } },
    tool_call: { call_id: 'call_1', name: 'files.read', arguments: {} },
    tool_result: { call_id: 'call_1', name: 'files.read', content: [] },
    image: { media_type: 'image/png', data: 'aaaa' },
    audio: { media_type: 'audio/wav', data: 'aaaa' },
    file: { media_type: 'application/pdf', data: 'aaaa' },
    notice: { text: 'a' },
  }
  const taken = async (role: string) => {
    const held: string[] = []
    for (const [type, fields] of Object.entries(parts)) {
      const { status } = await call('POST', url, { role, parts: [{ type, ...fields }] })
      if (status === 201) held.push(type)
    }
    return held
  }
  t.same(await taken('user'), ['text', 'image', 'audio', 'file', 'notice'])
  t.same(await taken('assistant'), ['text', 'reasoning', 'tool_call', 'image', 'audio', 'file', 'notice'])
  t.same(await taken('tool'), ['tool_result'])
  t.same(await taken('system'), ['text', 'notice'])
})

t.test('a message with a bad part is refused, and the error names the part and the reason', async (t) => {
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
