/** The emulator against the vendor's own SDK, and one refusal after the other (wire/gemini.md 3 to 6). */
import { type Content, type FunctionDeclaration, GoogleGenAI, type Part } from '@google/genai'
import t, { type Test } from 'tap'
import { createGeminiEmulator, type GeminiEmulator, type GeminiOptions } from './gemini.ts'
import { gate } from './http.ts'
import { type Answer, calls, text } from './scene.ts'

async function start(test: Test, options: GeminiOptions = {}): Promise<GeminiEmulator> {
  const emulator = await createGeminiEmulator(options)
  test.teardown(() => emulator.close())
  return emulator
}

const sdk = (emulator: GeminiEmulator, apiKey = 'a-key') =>
  new GoogleGenAI({
    apiKey,
    httpOptions: { baseUrl: emulator.url, apiVersion: 'v1beta', retryOptions: { attempts: 1 } },
  })

const READ: FunctionDeclaration = {
  name: 'files__read',
  description: 'Reads a file',
  parametersJsonSchema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
}
const tools = [{ functionDeclarations: [READ] }]
const user = (value: string): Content => ({ role: 'user', parts: [{ text: value }] })

t.test(
  "the vendor's SDK streams, thinks, calls tools in parallel and goes on with their results",
  async (t) => {
    const emulator = await start(t)
    const ai = sdk(emulator)
    const config = { tools, thinkingConfig: { includeThoughts: true } }
    const ask = user(
      'think of files\nsay Both at once.\ncall files__read with {"path":"a"}\ncall files__read with {"path":"b"}',
    )
    const parts: Part[] = []
    let last: unknown
    for await (const chunk of await ai.models.generateContentStream({
      model: 'gemini-3-flash-preview',
      contents: [ask],
      config,
    })) {
      parts.push(...(chunk.candidates?.[0]?.content?.parts ?? []))
      last = chunk.candidates?.[0]?.finishReason
    }
    t.equal(last, 'STOP', 'a turn that calls tools ends like any other')
    t.equal(parts[0]?.thought, true)
    const called = parts.filter((part) => part.functionCall)
    t.match(called, [
      { functionCall: { name: 'files__read', args: { path: 'a' }, id: String }, thoughtSignature: String },
      { functionCall: { name: 'files__read', args: { path: 'b' }, id: String } },
    ])
    t.notOk(called[1]?.thoughtSignature, 'only the first of parallel calls is signed')
    const answer = await ai.models.generateContent({
      model: 'gemini-3-flash-preview',
      contents: [
        ask,
        { role: 'model', parts: parts.filter((part) => part.text !== '') },
        {
          role: 'user',
          parts: called.map(({ functionCall }) => ({
            functionResponse: {
              ...functionCall,
              args: undefined,
              response: { output: functionCall?.args?.path },
            },
          })) as Part[],
        },
      ],
      config,
    })
    t.equal(answer.text, 'The tools answered: a | b')
  },
)

t.test("the SDK's other calls: one answer at once, tokens, the list of models", async (t) => {
  const emulator = await start(t)
  const ai = sdk(emulator)
  const answer = await ai.models.generateContent({
    model: 'gemini-2.5-flash',
    contents: 'say Grüße, 世界 🚀',
  })
  t.equal(answer.text, 'Grüße, 世界 🚀')
  t.match(answer.usageMetadata, { promptTokenCount: Number, candidatesTokenCount: Number })
  const counted = await ai.models.countTokens({ model: 'gemini-2.5-flash', contents: 'four words are here' })
  t.ok(Number(counted.totalTokens) > 0)
  const names: (string | undefined)[] = []
  for await (const model of await ai.models.list()) names.push(model.name)
  t.ok(names.includes('models/gemini-3.8-flash'))
  t.equal(emulator.requests[0]?.path, '/v1beta/models/gemini-2.5-flash:generateContent')
})

const post = (url: string, body: unknown, headers: Record<string, string> = { 'x-goog-api-key': 'a-key' }) =>
  fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  })

interface Failed {
  error: { code: number; message: string; status: string; details?: { reason?: string }[] }
}

const call = (name: string, extra: object = {}) => ({ functionCall: { name, args: {}, id: 'c1' }, ...extra })
const response = (name: string, extra: object = {}) => ({
  functionResponse: { name, id: 'c1', response: { output: 'x' }, ...extra },
})
const SIGNED = { thoughtSignature: 'skip_thought_signature_validator' }
const exchange = (modelParts: unknown[], userParts: unknown[]) => ({
  contents: [user('hi'), { role: 'model', parts: modelParts }, { role: 'user', parts: userParts }],
})
const hi = { contents: [user('hi')] }
const declare = (...list: object[]) => ({ ...hi, tools: [{ functionDeclarations: list }] })
const thinking = (thinkingConfig: object) => ({ ...hi, generationConfig: { thinkingConfig } })

/** What is sent, to which model (3.8-flash where none is named), and the words of the refusal. */
const REFUSED: readonly (readonly [string, unknown, RegExp, string?])[] = [
  ['an unknown field', { ...hi, stream: true }, /Unknown name "stream": Cannot find field/],
  [
    'an unknown field of a part',
    { contents: [{ role: 'user', parts: [{ txt: 'hi' }] }] },
    /Unknown name "txt" at 'contents\[0\]\.parts\[0\]'/,
  ],
  ['a field in both spellings', { ...hi, generationConfig: { topP: 1, top_p: 1 } }, /set in two spellings/],
  [
    'declarations that differ between the spellings',
    { ...hi, tools: [{ functionDeclarations: [READ], function_declarations: [] }] },
    /set in two spellings/,
  ],
  ['a bare system text', { ...hi, systemInstruction: 'Be short.' }, /Invalid value at 'system_instruction'/],
  ['a list where one value belongs', { ...hi, toolConfig: [] }, /Proto field is not repeating/],
  ['a wrong type', { ...hi, generationConfig: { temperature: 'hot' } }, /TYPE_FLOAT/],
  [
    'data that is no base64',
    { contents: [{ parts: [{ inlineData: { mimeType: 'image/png', data: '!' } }] }] },
    /TYPE_BYTES/,
  ],
  ['half of a character', { contents: [user('\ud83d')] }, /Invalid JSON payload/],
  [
    'an image of a kind that it does not read',
    { contents: [{ parts: [{ inlineData: { mimeType: 'image/gif', data: 'aaaa' } }] }] },
    /Unsupported MIME type: image\/gif/,
  ],
  [
    'more output than there is',
    { ...hi, generationConfig: { maxOutputTokens: 65_537 } },
    /supported range is from 1/,
  ],
  [
    'more output than an older model has',
    { ...hi, generationConfig: { maxOutputTokens: 8_193 } },
    /supported range is from 1/,
    'gemini-2.0-flash',
  ],
  ['an unknown mode', { ...hi, toolConfig: { functionCallingConfig: { mode: 'SOME' } } }, /TYPE_ENUM/],
  ['no contents', { contents: [] }, /contents is not specified/],
  ['no parts', { contents: [{ role: 'user', parts: [] }] }, /parts must not be empty/],
  ['a part without data', { contents: [{ parts: [{}] }] }, /required oneof field 'data'/],
  ['an empty text', { contents: [{ parts: [{ text: '' }] }] }, /required oneof field 'data'/],
  [
    'a part with two kinds of data',
    { contents: [{ parts: [{ text: 'a', inlineData: { mimeType: 'image/png', data: 'aaaa' } }] }] },
    /oneof field 'data' is already set/,
  ],
  ['another role', { contents: [{ role: 'tool', parts: [{ text: 'a' }] }] }, /valid role: user, model/],
  [
    'a model turn first',
    { contents: [{ role: 'model', parts: [{ text: 'a' }] }, user('hi')] },
    /start with a user/,
  ],
  [
    'a model turn last',
    { contents: [user('hi'), { role: 'model', parts: [{ text: 'a' }] }] },
    /ending with a model turn/,
  ],
  [
    'a call turn after a model turn',
    {
      contents: [
        user('hi'),
        { role: 'model', parts: [{ text: 'a' }] },
        ...exchange([call('f', SIGNED)], [response('f')]).contents.slice(1),
      ],
    },
    /function call turn comes immediately after/,
  ],
  [
    'a response to nothing',
    { contents: [{ role: 'user', parts: [response('f')] }] },
    /response turn comes immediately/,
  ],
  [
    'text between call and response',
    {
      contents: [
        user('hi'),
        { role: 'model', parts: [call('f', SIGNED)] },
        user('wait'),
        { role: 'user', parts: [response('f')] },
      ],
    },
    /number of function response parts|response turn comes immediately/,
  ],
  [
    'a response after text',
    exchange([call('f', SIGNED)], [{ text: 'a' }, response('f')]),
    /response turn comes immediately/,
  ],
  [
    'a call without its response',
    exchange([call('f', SIGNED)], [{ text: 'a' }]),
    /number of function response parts is equal/,
  ],
  [
    'responses in two contents',
    {
      contents: [
        ...exchange([call('f', SIGNED), call('g')], [response('f')]).contents,
        { role: 'user', parts: [response('g')] },
      ],
    },
    /number of function response parts is equal/,
  ],
  ['a response of another name', exchange([call('f', SIGNED)], [response('g')]), /name and id/],
  ['a response of another id', exchange([call('f', SIGNED)], [response('f', { id: 'c2' })]), /name and id/],
  [
    'responses out of order',
    exchange([call('f', SIGNED), call('g')], [response('g'), response('f')]),
    /name and id/,
  ],
  [
    'a response that is no object',
    exchange([call('f', SIGNED)], [response('f', { response: 'x' })]),
    /Struct/,
  ],
  [
    'a response without a response',
    exchange([call('f', SIGNED)], [{ functionResponse: { name: 'f' } }]),
    /is required/,
  ],
  [
    'sound inside of a response',
    exchange(
      [call('f', SIGNED)],
      [response('f', { parts: [{ inlineData: { mimeType: 'audio/wav', data: 'aaaa' } }] })],
    ),
    /Unsupported MIME type/,
  ],
  [
    'a gif inside of a response',
    exchange(
      [call('f', SIGNED)],
      [response('f', { parts: [{ inlineData: { mimeType: 'image/gif', data: 'aaaa' } }] })],
    ),
    /Unsupported MIME type in a function response: image\/gif/,
  ],
  [
    'media inside of a response for an older model',
    exchange(
      [call('f')],
      [response('f', { parts: [{ inlineData: { mimeType: 'image/png', data: 'aaaa' } }] })],
    ),
    /Multimodal function responses are not supported/,
    'gemini-2.5-flash',
  ],
  [
    'an unsigned call of this turn',
    exchange([call('f')], [response('f')]),
    /missing a thought_signature.*`default_api:f` , position 2/,
  ],
  [
    'a foreign signature',
    exchange([call('f', { thoughtSignature: 'Zm9yZWlnbg==' })], [response('f')]),
    /Thought signature is not valid/,
  ],
  ['a name with a space', declare({ name: 'read file' }), /Invalid function name/],
  ['a name of 65 characters', declare({ name: 'x'.repeat(65) }), /maximum length of 64/],
  ['one name twice', declare(READ, READ), /Duplicate function declaration found: files__read/],
  [
    '513 declarations',
    declare(...Array.from({ length: 513 }, (_, i) => ({ name: `f${i}` }))),
    /At most 512 function declarations/,
  ],
  ['both kinds of schema', declare({ ...READ, parameters: { type: 'OBJECT' } }), /mutually exclusive/],
  [
    'a JSON Schema keyword in parameters',
    declare({ name: 'f', parameters: { type: 'OBJECT', properties: { a: { $ref: '#/$defs/a' } } } }),
    /Unknown name "\$ref" at 'tools\[0\]\.function_declarations\[0\]\.parameters\.properties\[a\]'/,
  ],
  [
    'a schema of no object',
    declare({ name: 'f', parametersJsonSchema: { type: 'string' } }),
    /describe an object/,
  ],
  [
    'allowed names in mode AUTO',
    { ...declare(READ), toolConfig: { functionCallingConfig: { allowedFunctionNames: ['files__read'] } } },
    /only be set when mode is ANY/,
  ],
  [
    'an allowed name that is not declared',
    { ...declare(READ), toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['f'] } } },
    /Allowed function name f/,
  ],
  [
    'mode ANY without tools',
    { ...hi, toolConfig: { functionCallingConfig: { mode: 'ANY' } } },
    /needs a function/,
  ],
  [
    'budget and level',
    thinking({ thinkingBudget: 1024, thinkingLevel: 'LOW' }),
    /only one of thinking budget/,
  ],
  ['a level that the model lacks', thinking({ thinkingLevel: 'MINIMAL' }), /MINIMAL is not supported/],
  ['a level for 2.5', thinking({ thinkingLevel: 'LOW' }), /LOW is not supported/, 'gemini-2.5-flash'],
  ['no budget for 2.5 pro', thinking({ thinkingBudget: 0 }), /budget 0 is invalid/, 'gemini-2.5-pro'],
  ['a budget too small', thinking({ thinkingBudget: 100 }), /between 512 and 24576/, 'gemini-2.5-flash-lite'],
  [
    'thoughts without thinking',
    thinking({ thinkingBudget: 0, includeThoughts: true }),
    /include_thoughts is only enabled/,
    'gemini-2.5-flash',
  ],
  ['thinking for 2.0', thinking({ includeThoughts: true }), /Thinking is not supported/, 'gemini-2.0-flash'],
  ['sampling for 3.8', { ...hi, generationConfig: { topP: 0.5 } }, /topP is not supported/],
]

t.test('every rule of the wire page is kept by a refusal', async (t) => {
  const emulator = await start(t)
  for (const [name, body, words, model = 'gemini-3.8-flash'] of REFUSED) {
    const refused = await post(
      `${emulator.publicBaseUrl}/models/${model}:streamGenerateContent?alt=sse`,
      body,
    )
    const { error } = (await refused.json()) as Failed
    t.match(
      { http: refused.status, ...error },
      { http: 400, code: 400, status: 'INVALID_ARGUMENT', message: words },
      name,
    )
  }
  const lost = await post(`${emulator.publicBaseUrl}/models/gemini-0:streamGenerateContent?alt=sse`, hi)
  t.match(
    [lost.status, await lost.json()],
    [404, { error: { status: 'NOT_FOUND', message: /is not found/ } }],
  )
})

t.test('snake_case, both spellings of equal declarations and the dummy signature pass', async (t) => {
  const emulator = await start(t)
  const body = {
    ...exchange([call('files__read', SIGNED)], [response('files__read')]),
    tools: [{ functionDeclarations: [READ], function_declarations: [READ] }],
    generation_config: { max_output_tokens: 5, thinking_config: { thinking_level: 'LOW' } },
    system_instruction: { parts: [{ text: 'Be short.' }] },
  }
  const passed = await post(`${emulator.publicBaseUrl}/models/gemini-3.8-flash:generateContent`, body)
  t.equal(passed.status, 200, await passed.text())
})

t.test('a signature holds only for its model, and only on the part that it came on', async (t) => {
  const emulator = await start(t)
  const url = (model: string) => `${emulator.publicBaseUrl}/models/${model}:generateContent`
  const first = await post(url('gemini-3.8-flash'), {
    ...declare(READ),
    contents: [user('call files__read with {"path":"a"}')],
  })
  const { candidates } = (await first.json()) as { candidates: { content: { parts: Part[] } }[] }
  const [part] = candidates[0]?.content.parts ?? []
  const again = (modelPart: Part | undefined) =>
    exchange([modelPart], [{ functionResponse: { name: 'files__read', response: { output: 'x' } } }])
  t.equal((await post(url('gemini-3.8-flash'), again(part))).status, 200)
  t.equal((await post(url('gemini-3.7-flash'), again(part))).status, 400)
  const moved = { ...part, functionCall: { ...part?.functionCall, args: { path: 'other' } } }
  t.equal((await post(url('gemini-3.8-flash'), again(moved))).status, 400)
  t.equal((await post(url('gemini-2.5-flash'), again(part))).status, 200, 'older models do not look at it')
})

t.test('the public door takes one credential of its own kind', async (t) => {
  const emulator = await start(t)
  const url = `${emulator.publicBaseUrl}/models/gemini-3.8-flash:generateContent`
  const answer = async (headers: Record<string, string>) => {
    const got = await post(url, hi, headers)
    const { error } = (await got.json()) as Partial<Failed>
    return [got.status, error?.details?.[0]?.reason ?? error?.message]
  }
  t.strictSame(await answer({ authorization: 'Bearer good' }), [200, undefined])
  for (const secret of ['gone-key', 'gone-token']) emulator.revoke(secret)
  t.match(await answer({}), [403, /unregistered callers/])
  t.match(await answer({ 'x-goog-api-key': 'k', authorization: 'Bearer t' }), [
    400,
    /Multiple authentication/,
  ])
  t.strictSame(await answer({ 'x-goog-api-key': 'gone-key' }), [400, 'API_KEY_INVALID'])
  t.strictSame(await answer({ authorization: 'Bearer gone-token' }), [401, 'ACCESS_TOKEN_EXPIRED'])
  t.strictSame(await answer({ authorization: 'Bearer code-assist' }), [
    403,
    'ACCESS_TOKEN_SCOPE_INSUFFICIENT',
  ])
})

t.test('Code Assist wants its envelope, a bearer token and a project', async (t) => {
  const emulator = await start(t, { loadCodeAssist: { ineligibleTiers: [] } })
  const bearer = { authorization: 'Bearer ya29.code-assist' }
  const envelope = { model: 'gemini-2.5-flash', project: 'acme', user_prompt_id: 'p', request: hi }
  const ask = async (body: unknown, method = 'generateContent', headers: Record<string, string> = bearer) => {
    const got = await post(`${emulator.codeAssistBaseUrl}:${method}`, body, headers)
    return { status: got.status, body: await got.json() }
  }
  t.match(await ask(envelope), {
    status: 200,
    body: { response: { candidates: [{ content: { parts: [{ text: 'hi' }] } }] }, traceId: String },
  })
  t.match(await ask({ ...envelope, project: null }), { status: 500, body: { error: { status: 'INTERNAL' } } })
  t.match(await ask({ ...envelope, project: 'default' }), {
    status: 403,
    body: { error: { details: [{ reason: 'CONSUMER_INVALID' }] } },
  })
  t.match(await ask({ ...envelope, model: 'gemini-0' }), { status: 404 })
  t.match(await ask({ ...envelope, model: 'models/gemini-2.5-flash' }), { status: 400 })
  t.match(await ask({ ...envelope, session_id: 's' }), {
    body: { error: { message: /Unknown name "session_id"/ } },
  })
  t.match(await ask(envelope, 'generateContent', { 'x-goog-api-key': 'k' }), { status: 401 })
  t.match(
    await ask({ request: { model: 'models/gemini-2.5-flash', contents: hi.contents } }, 'countTokens'),
    {
      status: 200,
      body: { totalTokens: Number },
    },
  )
  t.match(await ask({ request: { contents: [{ parts: [{ text: 'a', thought: true }] }] } }, 'countTokens'), {
    status: 400,
  })
  t.strictSame((await ask({}, 'loadCodeAssist')).body, { ineligibleTiers: [] })
  t.match((await ask({}, 'onboardUser')).body, { done: true })
})

t.test('scripted endings: an error inside the stream, no end, a cut, a silent stream', async (t) => {
  const emulator = await start(t)
  const url = `${emulator.publicBaseUrl}/models/gemini-3.8-flash:streamGenerateContent`
  const play = async (answer: Answer, query = '?alt=sse') => {
    emulator.script(() => answer)
    return post(`${url}${query}`, hi)
  }
  const failed = await (
    await play({ ...text('Half of it'), ending: { code: 'UNAVAILABLE', message: 'Overloaded.' } })
  ).text()
  t.match(failed, /Half.*\r\n\r\ndata: \{"error":\{"code":503,"message":"Overloaded\."/s)
  const open = await (await play({ ...text('Half'), ending: 'close' })).text()
  t.notMatch(open, /finishReason/)
  await t.rejects(play({ ...text('Half'), ending: 'cut' }).then((got) => got.text()))
  t.match(await (await play(text('whole'), '')).json(), [{ candidates: Array }, { candidates: Array }])

  const { opened, open: letGo } = gate()
  const held = await play({
    items: [
      { type: 'wait', until: opened },
      { type: 'text', text: 'at last' },
    ],
  })
  letGo()
  t.match(await held.text(), /at/)

  const silent = await play({ ...text('Half'), ending: 'hang' })
  await silent.body?.cancel()
  t.equal(await emulator.requests.at(-1)?.closed, 'aborted')
})

t.test('a call that cannot be made ends the turn with a reason of its own', async (t) => {
  const emulator = await start(t)
  const url = `${emulator.publicBaseUrl}/models/gemini-3.8-flash:generateContent`
  const finish = async (answer: Answer, body: unknown = declare(READ)) => {
    emulator.script(() => answer)
    const got = (await (await post(url, body)).json()) as { candidates: { finishReason: string }[] }
    return got.candidates[0]?.finishReason
  }
  t.equal(await finish(calls(['shell', {}])), 'UNEXPECTED_TOOL_CALL')
  t.equal(await finish(calls(['files__read', '{"path":'])), 'MALFORMED_FUNCTION_CALL')
  const none = { ...declare(READ), toolConfig: { functionCallingConfig: { mode: 'NONE' } } }
  t.equal(await finish(calls(['files__read', {}]), none), 'UNEXPECTED_TOOL_CALL')
  t.equal(await finish({ ...text('no'), finish: 'refusal' }), 'SAFETY')
  t.equal(await finish({ ...text('cut off'), finish: 'length' }), 'MAX_TOKENS')
})
