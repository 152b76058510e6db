/** The emulated Gemini at each of its endpoints, driven by the vendor's own SDK and by scripts. */
import { GoogleGenAI, type Part } from '@google/genai'
import t from 'tap'
import { gate } from '../waiting.ts'
import type { GeminiEmulator } from './gemini.ts'
import { declare, emulate, type Failed, hi, post, READ, user } from './gemini-requests.ts'
import { type Answer, calls, text } from './scene.ts'

const sdk = (emulator: GeminiEmulator) =>
  new GoogleGenAI({
    apiKey: 'a-key',
    httpOptions: { baseUrl: emulator.url, apiVersion: 'v1beta', retryOptions: { attempts: 1 } },
  })

const tools = [{ functionDeclarations: [READ] }]

t.test(
  "the vendor's SDK streams, thinks, calls tools in parallel and goes on with their results",
  async (t) => {
    const emulator = await emulate(t)
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

t.test("the SDK's generateContent and list of models are answered", async (t) => {
  const emulator = await emulate(t)
  const ai = sdk(emulator)
  const answer = await ai.models.generateContent({
    model: 'gemini-2.5-flash',
    contents: 'say Grüße, 世界 🚀',
  })
  t.equal(answer.text, 'Grüße, 世界 🚀')
  t.match(answer.usageMetadata, { promptTokenCount: Number, candidatesTokenCount: Number })
  const names: (string | undefined)[] = []
  for await (const model of await ai.models.list()) names.push(model.name)
  t.ok(names.includes('models/gemini-3.8-flash'))
  t.equal(emulator.requests[0]?.path, '/v1beta/models/gemini-2.5-flash:generateContent')
})

t.test('the public endpoint takes exactly one credential, of its own kind', async (t) => {
  const emulator = await emulate(t)
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

t.test('Code Assist requires its envelope, a bearer token and a project', async (t) => {
  const emulator = await emulate(t)
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
  const file = { fileData: { mimeType: 'application/pdf', fileUri: 'https://example.com/a.pdf' } }
  t.match(await ask({ ...envelope, request: { contents: [{ role: 'user', parts: [file] }] } }), {
    status: 400,
    body: { error: { message: /use inline data/ } },
  })
  const account = 'acme-dev-482910'
  t.match((await ask({}, 'loadCodeAssist')).body, { cloudaicompanionProject: account })
  t.match((await ask({}, 'onboardUser')).body, { response: { cloudaicompanionProject: { id: account } } })
})

t.test('a script can end a stream with an error, without an end, by a cut, or in silence', async (t) => {
  const emulator = await emulate(t)
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

t.test('a call that cannot be made, and each scripted finish, has its own finish reason', async (t) => {
  const emulator = await emulate(t)
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
  t.equal(await finish({ items: [], ending: { code: 'OTHER', message: 'No reason.' } }), 'OTHER')
  t.equal(await finish({ items: [] }), 'STOP')
  emulator.script(() => ({ items: [], finish: 'refusal' }))
  const blocked = (await (await post(url, hi)).json()) as Record<string, unknown>
  t.match(blocked, { promptFeedback: { blockReason: 'PROHIBITED_CONTENT' } })
  t.notOk(blocked.candidates, 'a blocked prompt has no candidate')
})
