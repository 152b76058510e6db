/** What is sent to Gemini, by each of its paths. */

import t from 'tap'
import { codeAssist, gemini, geminiOauth } from '../../../providers/gemini/index.ts'
import { contentsOf } from '../../../providers/gemini/render.ts'
import type {
  MediaPart,
  MessageInput,
  Part,
  ToolCallPart,
  ToolResultPart,
} from '../../../src/chat/message.ts'
import { repair } from '../../../src/chat/repair.ts'
import type { Deployment, ModelRequest } from '../../../src/provider.ts'
import { JPEG, PDF, PNG } from '../../emulators/bytes.ts'
import { emulate } from '../../emulators/gemini-requests.ts'
import type { Request } from '../../emulators/gemini-rules.ts'
import { resultOf, said } from '../exchange.ts'
import { thrownBy } from '../streams.ts'
import { ask, bodyOf, IMAGE, MODEL, origin, requestFor, SECRET, tool } from './exchange.ts'

t.test(
  'signatures go back on their own parts, foreign calls get the dummy, and thoughts are not sent',
  async (t) => {
    const own = { ...origin, opaque: 'U0lH' }
    const call = (call_id: string, provenance?: typeof own): Part => ({
      type: 'tool_call',
      call_id,
      name: 'files__read',
      arguments: {},
      ...(provenance ? { provenance } : {}),
    })
    const messages: MessageInput[] = [
      said('one'),
      {
        role: 'assistant',
        parts: [
          { type: 'reasoning', text: 'hidden', provenance: own },
          { type: 'text', text: 'Signed.', provenance: own },
          call('c1', own),
          call('c2'),
        ],
      },
      { role: 'tool', parts: [resultOf(call('c1') as ToolCallPart), resultOf(call('c2') as ToolCallPart)] },
      { role: 'assistant', parts: [call('c3'), call('c4')] },
      { role: 'tool', parts: [resultOf(call('c3') as ToolCallPart), resultOf(call('c4') as ToolCallPart)] },
    ]
    const { contents = [] } = bodyOf({ messages })
    t.strictSame(contents[1]?.parts, [
      { text: 'Signed.', thoughtSignature: 'U0lH' },
      { functionCall: { name: 'files__read', args: {}, id: 'c1' }, thoughtSignature: 'U0lH' },
      { functionCall: { name: 'files__read', args: {}, id: 'c2' } },
    ])
    t.strictSame(
      contents[3]?.parts?.map((part) => part.thoughtSignature),
      ['skip_thought_signature_validator', undefined],
    )
    t.notMatch(JSON.stringify(contents), /hidden/)
    const older = bodyOf({ model: 'gemini-2.5-flash', messages: messages.slice(3) }).contents ?? []
    t.notMatch(JSON.stringify(older), /skip_thought|"id"/, 'older models get neither ids nor dummies')
    const first = { role: 'user', parts: [{ text: /starts with an answer/ }] }
    t.match(older[0], first, 'a history that starts with the model gets a user content before it')
    const answered: MessageInput = { role: 'assistant', parts: [{ type: 'text', text: 'so' }] }
    const last = bodyOf({ messages: [said('a'), answered] }).contents?.slice(1)
    t.match(last, [{ role: 'model' }, { role: 'user', parts: [{ text: 'Please continue.' }] }])
    const alone: MessageInput = {
      role: 'assistant',
      parts: [{ type: 'reasoning', text: 'hidden', provenance: own }],
    }
    t.match(
      bodyOf({ messages: [said('a'), alone, said('b')] }).contents?.length,
      1,
      'a message that had only thoughts is left out',
    )
    const refused = (message: string) => ({
      status: 400,
      headers: {},
      body: JSON.stringify({ error: { code: 400, message, status: 'INVALID_ARGUMENT' } }),
    })
    for (const message of [
      'Thought signature is not valid.',
      'Invalid thought signature.',
      'Invalid value at \'contents[1].parts[0].thought_signature\' (TYPE_BYTES), "{}"',
    ]) {
      const again = gemini.amend(refused(message), requestFor({ messages }))
      t.ok(again, message)
      t.notMatch(JSON.stringify(again?.messages), /U0lH/, 'signatures that cannot be verified are left out')
      t.equal(again && gemini.amend(refused(message), again), null, 'the request is amended only once')
    }
    const bad = refused('Corrupted thought signature.')
    const past: MessageInput = {
      role: 'assistant',
      parts: [{ type: 'text', text: '', provenance: { ...own, opaque: 'b2xk' } }],
    }
    const tail: MessageInput = { role: 'assistant', parts: [{ type: 'text', text: '', provenance: own }] }
    const twoTurns = requestFor({ messages: [said('zero'), past, ...messages, tail] })
    const kept = gemini.amend(bad, twoTurns)
    t.notMatch(JSON.stringify(kept?.messages), /b2xk/, 'signatures of earlier turns go first')
    t.match(kept?.messages, [said('zero'), ...messages, tail], 'signatures of the open turn stay')
    t.notMatch(
      JSON.stringify(kept && gemini.amend(bad, kept)),
      /U0lH/,
      'signatures of the open turn go once they are refused, too',
    )
    t.equal(gemini.amend(refused('Invalid JSON payload received.'), requestFor({ messages })), null)
    const strange = refused(
      'Invalid JSON payload received. Unknown name "id" at \'contents[1].parts[1].function_call\': Cannot find field.',
    )
    const plain = gemini.amend(strange, requestFor({ messages }))
    t.notMatch(
      JSON.stringify(plain && gemini.render(plain).body.contents),
      /"id"/,
      'call ids are left out if the server does not know them',
    )
    t.match(JSON.stringify(plain && gemini.render(plain).body.contents), /U0lH/)
    t.equal(plain && gemini.amend(strange, plain), null, 'the request is amended only once')
  },
)

t.test('a tool name gets a first character that Google takes, in the call and its result', async (t) => {
  for (const [name, sent] of [
    ['9lives', '_9lives'],
    ['-x', '_-x'],
    ['files__read', 'files__read'],
  ] as const) {
    const call: ToolCallPart = { type: 'tool_call', call_id: 'c1', name, arguments: {} }
    const messages: MessageInput[] = [
      said('hi'),
      { role: 'assistant', parts: [call] },
      { role: 'tool', parts: [resultOf(call)] },
    ]
    const { contents = [] } = bodyOf({ messages })
    t.match(contents[1]?.parts, [{ functionCall: { name: sent } }])
    t.match(contents[2]?.parts, [{ functionResponse: { name: sent } }])
  }
})

t.test(
  'objects in results stay objects, text and errors are named, media go where the model takes them',
  async (t) => {
    const call: ToolCallPart = { type: 'tool_call', call_id: 'c1', name: 'files__read', arguments: {} }
    const after = (result: Partial<ToolResultPart>, model?: string, then: MessageInput[] = []) =>
      bodyOf({
        ...(model ? { model } : {}),
        messages: [
          said('hi'),
          { role: 'assistant', parts: [call] },
          { role: 'tool', parts: [resultOf(call, result)] },
          ...then,
        ],
      }).contents?.slice(2) ?? []
    const response = (result: Partial<ToolResultPart>) =>
      after(result)[0]?.parts?.[0]?.functionResponse?.response
    t.strictSame(response({}), { output: 'some text' })
    t.strictSame(
      response({ structured: { a: 1 } }),
      { output: 'some text' },
      'a text that says something else goes before the structured result',
    )
    const repeated = (structured: unknown) => {
      const content = [{ type: 'text', text: JSON.stringify(structured, null, 2) } as const]
      return response({ structured, content })
    }
    t.strictSame(repeated({ a: 1 }), { a: 1 })
    t.strictSame(repeated({ output: 1, more: 2 }), { output: { output: 1, more: 2 } })
    t.strictSame(repeated({ error: 1 }), { output: { error: 1 } })
    t.strictSame(repeated([1]), { output: [1] })
    t.strictSame(repeated({}), { output: {} })
    const exact = '{"id": 9007199254740993}'
    const rounded = response({ structured: JSON.parse(exact), content: [{ type: 'text', text: exact }] })
    t.strictSame(rounded, { output: exact }, 'a large id keeps its digits')
    t.strictSame(response({ structured: { a: 1 }, content: [] }), { a: 1 })
    const schema = { items: [{ $ref: '#/$defs/a' }] }
    t.strictSame(
      repeated(schema),
      { output: JSON.stringify(schema, null, 2) },
      'a result with a reference, which the server would look for among its media, is a text',
    )
    t.strictSame(response({ structured: schema, content: [] }), { output: JSON.stringify(schema) })
    t.strictSame(response({ structured: schema, content: [], is_error: true }), {
      error: JSON.stringify(schema),
    })
    t.strictSame(response({ structured: null }), { output: 'some text' })
    t.strictSame(response({ structured: [1], content: [] }), { output: [1] })
    for (const structured of [undefined, null])
      t.strictSame(response({ content: [], structured }), { output: '' })
    t.strictSame(response({ is_error: true }), { error: 'some text' })
    const lines = ['one', 'two'].map((text) => ({ type: 'text' as const, text }))
    t.strictSame(response({ content: lines }), { output: 'one\ntwo' })
    t.strictSame(response({ is_error: true, content: [], structured: { code: 7 } }), { error: { code: 7 } })
    t.strictSame(
      response({ structured: { a: 1 }, spill: { exec_id: 'exec_1', bytes: 9 } }),
      { output: 'some text' },
      'the shortened text of a spilled result is sent',
    )
    const pdf: MediaPart = { type: 'file', media_type: 'application/pdf', data: PDF }
    const sound: MediaPart = { type: 'audio', media_type: 'audio/wav', data: 'aaaa' }
    const caption = { text: '[From the result of files__read:]' }
    t.match(after({ content: [IMAGE, pdf, sound] }), [
      {
        role: 'user',
        parts: [
          {
            functionResponse: {
              id: 'c1',
              parts: [
                { inlineData: { mimeType: 'image/png' } },
                { inlineData: { mimeType: 'application/pdf' } },
              ],
            },
          },
        ],
      },
      { role: 'user', parts: [caption, { inlineData: { mimeType: 'audio/wav', data: 'aaaa' } }] },
    ])
    t.strictSame(after({ content: [IMAGE] }, 'gemini-2.5-flash', [said('Go on.')]), [
      {
        role: 'user',
        parts: [{ functionResponse: { name: 'files__read', response: { output: '' } } }],
      },
      {
        role: 'user',
        parts: [caption, { inlineData: { mimeType: 'image/png', data: PNG } }, { text: 'Go on.' }],
      },
    ])
    const link: MediaPart = { type: 'image', media_type: 'image/png', url: 'https://example.com/a.png' }
    t.match(after({ content: [link] })[1], { parts: [caption, { fileData: { fileUri: link.url } }] })
    const messages: MessageInput[] = [
      { role: 'assistant', parts: [call] },
      { role: 'tool', parts: [resultOf(call, { content: [IMAGE] })] },
    ]
    const inside = (target: Partial<ModelRequest>) =>
      JSON.stringify(bodyOf({ messages, ...target }).contents?.[2]).includes('inlineData')
    t.ok(inside({ reported: { id: MODEL, call_ids: false } }))
    t.notOk(inside({ model: 'gemini-2.5-flash' }), 'the same parts go to an older model in its own form')
  },
)

t.test('a user text after unanswered results is not read as a result', async (t) => {
  const call: ToolCallPart = { type: 'tool_call', call_id: 'c1', name: 'files__read', arguments: {} }
  const messages: MessageInput[] = [
    said('hi'),
    { role: 'assistant', parts: [call] },
    { role: 'tool', parts: [resultOf(call)] },
    said('say so'),
  ]
  const emulator = await emulate(t)
  for (const deployment of [gemini, codeAssist]) {
    const { error, parts } = await ask(deployment, emulator, requestFor({ messages }))
    t.equal(error, null, deployment.id)
    t.match(parts[0], { text: 'so' })
  }
  const ordered = (words: string) => ({
    status: 400,
    headers: {},
    body: JSON.stringify({ error: { code: 400, message: `Please ensure that ${words}.` } }),
  })
  for (const words of [
    'function response turn comes immediately after a function call turn',
    'multiturn requests alternate between user and model',
  ]) {
    const joined = gemini.amend(ordered(words), requestFor({ messages }))
    t.match(
      joined?.reported,
      { results_apart: false },
      'the request notes a backend that wants both in one content',
    )
    t.match(joined && contentsOf(joined).slice(2), [
      { role: 'user', parts: [{ functionResponse: {} }, { text: 'say so' }] },
    ])
    t.equal(joined && gemini.amend(ordered(words), joined), null, 'the request is amended only once')
    const rest = requestFor({ messages: messages.slice(0, 3) })
    t.equal(gemini.amend(ordered(words), rest), null, 'a request without a text after results is not amended')
  }
})

t.test("a user's media go inline, by address, or as text if Gemini does not take them", async (t) => {
  const link: MediaPart = { type: 'file', media_type: 'application/pdf', url: 'https://example.com/a.pdf' }
  const archive: MediaPart = { type: 'file', media_type: 'application/zip', data: 'aaaa', name: 'a.zip' }
  for (const media_type of ['image/gif', 'image/svg+xml', 'image/tiff', 'application/zip']) {
    t.notOk(gemini.capabilities(MODEL).takesMedia({ type: 'image', media_type, data: 'aaaa' }), media_type)
  }
  for (const media_type of ['text/x-python', 'text/markdown', 'application/json', 'application/ld+json']) {
    const parts: MediaPart[] = [{ type: 'file', media_type, data: 'aGk=' }]
    t.ok(
      parts.every((part) => gemini.capabilities(MODEL).takesMedia(part)),
      media_type,
    )
    t.match(bodyOf({ messages: [{ role: 'user', parts }] }).contents, [
      { parts: [{ inlineData: { mimeType: 'text/plain', data: 'aGk=' } }] },
    ])
  }
  const photo: MediaPart = { type: 'image', media_type: 'image/jpg', data: JPEG }
  const sent = (deployment: Deployment) => {
    const target = {
      provider: 'gemini',
      model: MODEL,
      credential_id: null,
      ...deployment.capabilities(MODEL),
    }
    const { messages, notes } = repair([{ role: 'user', parts: [IMAGE, photo, link, archive] }], target)
    return { body: deployment.render(requestFor({ messages })).body, notes }
  }
  const open = sent(gemini)
  t.strictSame((open.body as Request).contents, [
    {
      role: 'user',
      parts: [
        { inlineData: { mimeType: 'image/png', data: PNG } },
        { inlineData: { mimeType: 'image/jpeg', data: JPEG } },
        { fileData: { mimeType: 'application/pdf', fileUri: 'https://example.com/a.pdf' } },
        { text: '[file a.zip, application/zip: not shown to this model]' },
      ],
    },
  ])
  t.match(open.notes, [/application\/zip/])
  const closed = sent(codeAssist)
  t.notMatch(JSON.stringify(closed.body), /fileData/)
  t.match(closed.notes, [/by URL/, /application\/zip/])
})

t.test('Code Assist gets an envelope with model, project, prompt id and request', async (t) => {
  const tools = [tool('files.read')]
  const { path, body } = codeAssist.render(requestFor({ model: 'models/gemini-2.5-flash', tools }))
  const renamed = codeAssist.render(requestFor({ model: 'models/gemini-3.5-flash' }))
  t.match(renamed, {
    body: { model: 'gemini-3-flash' },
    notes: [/gemini-3.5-flash is called gemini-3-flash/],
  })
  t.equal(path, ':streamGenerateContent?alt=sse')
  t.equal(
    gemini.render(requestFor({ model: 'models/gemini-2.5-flash' })).path,
    '/models/gemini-2.5-flash:streamGenerateContent?alt=sse',
    'the public path names the model in its address',
  )
  t.match(gemini.render(requestFor({ model: '../x?y' })).path, /^\/models\/\.\.%2Fx%3Fy:/)
  t.match(body, {
    model: 'gemini-2.5-flash',
    project: 'acme-dev-482910',
    user_prompt_id: 'ses_1-1',
    request: { session_id: 'ses_1', contents: [{ role: 'user' }] },
  })
  const [both] = (body.request as { tools: Record<string, unknown>[] }).tools
  t.strictSame(both?.function_declarations, both?.functionDeclarations)
  t.strictSame(codeAssist.declare(tools, requestFor().options), [both])
  const single = { ...requestFor().options, dual_declarations: false }
  t.strictSame(Object.keys(codeAssist.declare(tools, single)[0] as object), ['functionDeclarations'])
  t.match(codeAssist.render(requestFor({ tools, options: single })).body.request, {
    tools: [{ function_declarations: undefined }],
  })
  const unstored = requestFor({ options: { ...requestFor().options, unstored: true } })
  const stores = [gemini, geminiOauth, codeAssist].map((one) => JSON.stringify(one.render(unstored).body))
  t.match(stores, [/"store":false/, /"store":false/, /^(?!.*"store")/])
  t.strictSame(gemini.declare(tools, requestFor().options), bodyOf({ tools }).tools)
  t.strictSame(gemini.declare([], single), [])
  const emulator = await emulate(t)
  const sent = await ask(codeAssist, emulator, requestFor({ tools, options: single }))
  t.equal(sent.error, null)

  for (const project_id of [undefined, '', ' ', '482910553377']) {
    const credential = { id: 'cred_1', ...(project_id === undefined ? {} : { project_id }) }
    const refused = thrownBy(() => codeAssist.render(requestFor({ credential })))
    t.match(refused, { code: 'invalid_request', param: 'project_id', message: /project/ })
  }
})

t.test('the steps of a turn have one prompt id, and the next turn has another', async (t) => {
  const call: ToolCallPart = { type: 'tool_call', call_id: 'c1', name: 'files__read', arguments: {} }
  const steps: MessageInput[] = [
    said('one'),
    { role: 'assistant', parts: [call] },
    { role: 'tool', parts: [resultOf(call)] },
  ]
  const answered: MessageInput = { role: 'assistant', parts: [{ type: 'text', text: 'Done.' }] }
  const idOf = (...messages: MessageInput[]) =>
    codeAssist.render(requestFor({ messages })).body.user_prompt_id as string
  const first = idOf(said('one'))
  t.equal(idOf(...steps), first)
  t.not(idOf(...steps, answered, said('two')), first)
  t.not(
    codeAssist.render(requestFor({ session_id: 'ses_2' })).body.user_prompt_id,
    first,
    'another session’s first turn has another id, too',
  )
})

t.test('each path authorizes in its own way, and sends the operator’s additions', async (t) => {
  const facts = { id: 'cred_1', quota_project: 'billed' }
  t.strictSame(gemini.authorize(SECRET, facts), { 'x-goog-api-key': 'a-key' })
  t.strictSame(codeAssist.authorize(SECRET, facts), { authorization: 'Bearer ya29.token' })
  t.strictSame(geminiOauth.authorize(SECRET, facts), {
    authorization: 'Bearer ya29.token',
    'x-goog-user-project': 'billed',
  })
  t.strictSame(geminiOauth.authorize(SECRET, { id: null }), { authorization: 'Bearer ya29.token' })
  const options = { ...requestFor().options, system_blocks: ['First.'], headers: { 'x-extra': '1' } }
  const system = (deployment: Deployment) => {
    const { headers, body } = deployment.render(requestFor({ options }))
    const { systemInstruction } = (body.request ?? body) as Record<string, unknown>
    return { headers, systemInstruction }
  }
  t.strictSame(system(geminiOauth), {
    headers: { 'x-extra': '1' },
    systemInstruction: { role: 'user', parts: [{ text: 'First.' }, { text: 'Be brief.' }] },
  })
  t.equal(bodyOf({ instructions: ' ' }).systemInstruction, undefined)
  t.match(bodyOf({ instructions: 'half \ud83d' }).systemInstruction, { parts: [{ text: 'half \ufffd' }] })
})

t.test('a hundred thousand media of results are sent', async (t) => {
  const content = Array.from({ length: 1_000 }, (): MediaPart => ({ ...IMAGE, data: PNG }))
  const parts = Array.from(
    { length: 150 },
    (_, i): ToolResultPart => resultOf({ call_id: `c${i}`, name: 'files__read' }, { content }),
  )
  const contents = contentsOf(
    requestFor({
      model: 'gemini-2.5-pro',
      messages: [said('one'), { role: 'tool', parts }],
      reported: { id: 'gemini-2.5-pro', results_apart: false },
    }),
  )
  t.equal(contents.flatMap((one) => one.parts).filter((part) => 'inlineData' in part).length, 150_000)
})
