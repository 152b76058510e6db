/**
 * Whole turns against the emulated Gemini, whose rules come from the wire page and not from the adapter. The vendor's
 * own SDK and arbitrary histories meet the same rules.
 */

import {
  type FunctionDeclaration,
  type GenerateContentConfig,
  GoogleGenAI,
  type Content as SdkContent,
  type ThinkingConfig as SdkThinkingConfig,
} from '@google/genai'
import fc from 'fast-check'
import t from 'tap'
import type { ThinkingConfig } from '../../../providers/gemini/capabilities.ts'
import type { Content } from '../../../providers/gemini/contents.ts'
import { codeAssist, gemini, geminiOauth } from '../../../providers/gemini/index.ts'
import type { declareTools } from '../../../providers/gemini/render.ts'
import {
  type MediaPart,
  type MessageInput,
  type Part,
  type ToolCallPart,
  type ToolResultPart,
  toolCalls,
} from '../../../src/chat/message.ts'
import { repair } from '../../../src/chat/repair.ts'
import { JPEG, PDF, pdfOf } from '../../emulators/bytes.ts'
import { traitsOf } from '../../emulators/gemini-models.ts'
import { emulate } from '../../emulators/gemini-requests.ts'
import { checkRequest, createSignatures, type Request } from '../../emulators/gemini-rules.ts'
import { PUBLIC_REQUEST, readBody } from '../../emulators/gemini-shape.ts'
import { calls, text } from '../../emulators/scene.ts'
import { EMPTY } from '../../patterns.ts'
import { resultOf, said } from '../exchange.ts'
import { ask, bodyOf, IMAGE, MODEL, origin, requestFor, tool } from './exchange.ts'

const target = (model: string) => ({
  provider: 'gemini',
  model,
  credential_id: 'cred_1',
  ...gemini.capabilities(model),
})

const isCall = (part: Part): part is ToolCallPart => part.type === 'tool_call'
const MODELS = [
  'gemini-2.0-flash',
  'gemini-2.5-pro',
  'gemini-2.5-flash',
  'gemini-2.5-flash-lite',
  'gemini-3-pro-preview',
  'gemini-3.1-pro-preview',
  'gemini-3-flash-preview',
  'gemini-3.5-flash',
  'gemini-3.5-flash-lite',
  'gemini-3.6-flash',
  'gemini-3.8-flash',
  'gemini-4-argon',
  'gemini-4-hydrogen',
  'gemini-4-neon',
  'gemma-4-31b-it',
]

t.test(
  'on every model and path a turn thinks, calls in parallel, and goes on with its results',
  async (t) => {
    const emulator = await emulate(t)
    const tools = [tool('files.read'), tool('files.view')]
    for (const deployment of [gemini, codeAssist, geminiOauth]) {
      for (const model of MODELS) {
        const settings = {
          temperature: 0.5,
          top_p: 0.9,
          max_output_tokens: 99,
          reasoning: { effort: 'low' as const },
        }
        const history: MessageInput[] = [
          said(
            'think of both\nsay Reading.\ncall files__read with {"path":"a"}\ncall files__view with {"path":"b"}\nthen\nsay Done.',
          ),
        ]
        const send = () =>
          ask(
            deployment,
            emulator,
            requestFor({ model, tools, settings, messages: repair(history, target(model)).messages }),
          )
        const first = await send()
        t.equal(first.error, null, `${deployment.id} ${model}: ${first.error?.message}`)
        const made = first.parts.filter(isCall)
        t.match(made, [
          { name: 'files.read', arguments: { path: 'a' } },
          { name: 'files.view', arguments: { path: 'b' } },
        ])
        t.match(first.events.at(-1), { reason: 'tool_calls' })
        history.push({ role: 'assistant', parts: first.parts })
        const [read, view] = made as [ToolCallPart, ToolCallPart]
        history.push({
          role: 'tool',
          parts: [
            resultOf(view, { content: [IMAGE, { type: 'audio', media_type: 'audio/wav', data: 'aaaa' }] }),
            resultOf(read, { content: [], structured: { lines: [{ $ref: '#/$defs/line' }] } }),
          ],
        })
        const second = await send()
        t.equal(second.error, null, `${deployment.id} ${model}: ${second.error?.message}`)
        t.match(second.parts[0], { type: 'text', text: 'Done.' })
        history.push({ role: 'assistant', parts: second.parts }, said('say Again.'))
        t.match(
          (await send()).parts[0],
          { text: 'Again.' },
          'the turn goes on after signed text was sent back',
        )
      }
    }
  },
)

t.test('after a call whose arguments were not kept, the turn goes on at once', async (t) => {
  const emulator = await emulate(t)
  const tools = [tool('files.read')]
  const history: MessageInput[] = [said('call files__read with {"path":9007199254740993}\nthen\nsay Done.')]
  const send = () =>
    ask(gemini, emulator, requestFor({ tools, messages: repair(history, target(MODEL)).messages }))
  const { parts } = await send()
  t.match(parts, [{ arguments: EMPTY, arguments_text: '{"path":9007199254740992}' }])
  history.push({ role: 'assistant', parts })
  history.push({
    role: 'tool',
    parts: toolCalls({ parts }).map((call) => resultOf(call, { is_error: true })),
  })
  const second = await send()
  t.equal(second.error, null)
  t.match(second.parts[0], { text: 'Done.' })
})

t.test('a signature that Google cannot verify is left out, and the request is amended once', async (t) => {
  const emulator = await emulate(t)
  const provenance = { ...origin, opaque: 'Zm9yZWlnbg==' }
  const call: ToolCallPart = {
    type: 'tool_call',
    call_id: 'c1',
    name: 'files__read',
    arguments: {},
    provenance,
  }
  const one = requestFor({
    tools: [tool('files.read')],
    messages: [
      said('hi'),
      { role: 'assistant', parts: [call, { type: 'text', text: '', provenance }] },
      { role: 'tool', parts: [resultOf(call)] },
    ],
  })
  const refused = await ask(gemini, emulator, one)
  t.match(refused.error, { code: 'upstream_rejected', details: { upstream: { message: /not valid/ } } })
  const again = refused.failure && gemini.amend(refused.failure, one)
  if (!again) return t.fail('the request was not amended')
  t.equal((await ask(gemini, emulator, again)).error, null)
  t.equal(gemini.amend({ ...refused.failure }, again), null, 'a request without signatures is not amended')
  t.equal(
    gemini.amend({ ...refused.failure, body: '{}' }, one),
    null,
    'another refusal does not amend the request',
  )
})

t.test('a model that wants the words of answers signed is given those of other models', async (t) => {
  const emulator = await emulate(t)
  const model = 'gemini-3-pro-image'
  const call: ToolCallPart = { type: 'tool_call', call_id: 'c1', name: 'files__read', arguments: {} }
  const messages: MessageInput[] = [
    said('hi'),
    { role: 'assistant', parts: [{ type: 'text', text: 'Hello.' }, call] },
    { role: 'tool', parts: [resultOf(call)] },
    said('say Done.'),
  ]
  for (const told of [{}, { tools: false }] as const) {
    const one = requestFor({ model, messages, reported: { id: model, ...told } })
    const { failure } = await ask(gemini, emulator, one)
    const again = failure && gemini.amend(failure, one)
    if (!again) return t.fail('the request was not amended')
    t.match(again.reported, { id: model, ...told, signed_texts: true }, 'the model is known for it')
    const { error, parts } = await ask(gemini, emulator, again)
    t.equal(error, null)
    t.match(parts[0], { text: 'Done.' })
    t.equal(gemini.amend(failure, again), null, 'the request is amended only once')
  }
})

t.test('media that Google cannot read become text', async (t) => {
  const emulator = await emulate(t)
  const image = { type: 'image' as const, media_type: 'image/png', url: 'https://a.invalid/b.png' }
  const request = requestFor({ messages: [{ role: 'user', parts: [image, IMAGE] }, said('hi')] })
  const { failure } = await ask(gemini, emulator, request)
  const again = failure && gemini.amend(failure, request)
  t.match(again?.messages[0]?.parts, [{ text: /b\.png: not shown to this model/ }, IMAGE])
  t.equal(again && (await ask(gemini, emulator, again)).error, null)
  const book = { type: 'file' as const, media_type: 'application/pdf', data: pdfOf(1001) }
  const long = requestFor({ messages: [{ role: 'user', parts: [book, IMAGE] }, said('hi')] })
  const { failure: refused } = await ask(gemini, emulator, long)
  const short = refused && gemini.amend(refused, long)
  t.match(
    short?.messages[0]?.parts,
    [{ text: /not shown to this model/ }, IMAGE],
    'a file with too many pages becomes text',
  )
  t.equal(short && (await ask(gemini, emulator, short)).error, null)
  const sound = { type: 'audio' as const, media_type: 'audio/x-odd', data: 'aaaa' }
  const strange = requestFor({ messages: [{ role: 'user', parts: [sound, IMAGE] }, said('hi')] })
  const refusal = (message: string, status = 400) => ({
    status,
    headers: {},
    body: JSON.stringify({ error: { code: status, message } }),
  })
  const untaken = [
    'Unsupported MIME type: audio/x-odd',
    'Unable to submit request because it has a mimeType parameter with value audio/x-odd, which is not supported.',
    'Unable to submit request because the mime_type: audio/x-odd is not supported in `function_response.parts`.',
  ]
  for (const words of untaken) {
    t.match(
      gemini.amend(refusal(words), strange)?.messages[0]?.parts,
      [{ text: /^\[audio, audio\/x-odd/ }, IMAGE],
      words,
    )
  }
  const deaf = gemini.amend(refusal('Audio input modality is not enabled for models/gemma-9'), strange)
  t.match(
    deaf?.messages[0]?.parts,
    [{ text: /^\[audio, audio\/x-odd/ }, IMAGE],
    'a medium of an unsupported kind becomes text',
  )
  const gone = refusal('You do not have permission to access the File b or it may not exist.', 403)
  t.match(
    gemini.amend(gone, request)?.messages[0]?.parts,
    [{ text: /b\.png: not shown/ }, IMAGE],
    'a file that has expired becomes text',
  )
  t.equal(gemini.amend(refusal('The caller does not have permission', 403), request), null)
  const large = refusal('Request payload size exceeds the limit: 20971520 bytes.')
  const linked = refusal("The request's total referenced files bytes are too large to be read")
  const page = { status: 413, headers: {}, body: '<html><title>413</title></html>' }
  for (const failure of [large, linked, page]) {
    const seen = gemini.amend(failure, strange)
    t.match(
      seen?.messages[0]?.parts,
      [{ text: /^\[audio/ }, { text: /^\[image/ }],
      'all media of a request that is too large become text',
    )
    t.equal(seen && gemini.amend(failure, seen), null)
  }
  const unnamed = refusal('Request contains an invalid argument.')
  const bare = gemini.amend(unnamed, strange)
  t.match(
    bare?.messages[0]?.parts,
    [{ text: /^\[audio/ }, { text: /^\[image/ }],
    'any medium may be at fault where Google names nothing',
  )
  t.equal(bare && gemini.amend(unnamed, bare), null)
  for (const words of ['Unable to process input image. Please retry', 'Provided image is not valid.']) {
    const seen = gemini.amend(refusal(words), strange)
    t.match(seen?.messages[0]?.parts, [sound, { text: /^\[image, image\/png: not shown/ }], words)
  }
})

t.test('a blocked prompt ends as a refusal, and a finish that means failure is a failure', async (t) => {
  const emulator = await emulate(t)
  emulator.script(() => ({ items: [], finish: 'refusal' }))
  const refused = await ask(gemini, emulator, requestFor())
  t.match(refused.events.at(-1), { type: 'finish', reason: 'refusal' })
  emulator.script(() => ({ items: [], ending: { code: 'OTHER', message: 'For no reason.' } }))
  await t.rejects(ask(gemini, emulator, requestFor()), {
    code: 'upstream_rejected',
    message: /For no reason/,
  })
})

t.test('an answer in small chunks is read whole', async (t) => {
  const emulator = await emulate(t)
  emulator.script(() => ({ ...text('Grüße, 世界 🚀'), chunk: 3 }))
  const { parts } = await ask(codeAssist, emulator, requestFor())
  t.match(parts[0], { type: 'text', text: 'Grüße, 世界 🚀' })
})

// The vendor's own types must allow what Baton writes; the compiler fails otherwise.
type Extends<A extends B, B> = [A, B]
type Loose<T> = { [K in keyof T]: K extends 'thinkingLevel' ? `${T[K] & string}` : T[K] }
export type SdkAgrees = [
  Extends<Content, SdkContent>,
  Extends<ReturnType<typeof declareTools>[number]['functionDeclarations'][number], FunctionDeclaration>,
  Extends<ThinkingConfig, Loose<SdkThinkingConfig>>,
]

t.test("the vendor's SDK writes the same body for the same request", async (t) => {
  const emulator = await emulate(t)
  const call: ToolCallPart = {
    type: 'tool_call',
    call_id: 'c1',
    name: 'files__read',
    arguments: { path: 'a' },
    provenance: { ...origin, opaque: 'c2tpcA==' },
  }
  const one = requestFor({
    model: 'gemini-2.5-flash',
    tools: [tool('files.read')],
    settings: {
      temperature: 0.5,
      top_p: 0.9,
      max_output_tokens: 10,
      reasoning: { effort: 'low' },
      tool_choice: 'required',
    },
    messages: [
      { role: 'user', parts: [{ type: 'text', text: 'hi' }, IMAGE] },
      { role: 'assistant', parts: [{ type: 'text', text: 'Reading.' }, call] },
      { role: 'tool', parts: [resultOf(call)] },
    ],
  })
  emulator.script(() => calls(['files__read', {}]))
  await ask(gemini, emulator, one)
  const { contents, systemInstruction, tools, toolConfig, generationConfig } = bodyOf(one)
  const sdk = new GoogleGenAI({
    apiKey: 'a-key',
    httpOptions: { baseUrl: emulator.url, apiVersion: 'v1beta' },
  })
  const stream = await sdk.models.generateContentStream({
    model: one.model,
    contents: contents as SdkContent[],
    config: { systemInstruction, tools, toolConfig, ...generationConfig } as GenerateContentConfig,
  })
  const reasons: unknown[] = []
  for await (const chunk of stream) reasons.push(chunk.candidates?.[0]?.finishReason)
  t.equal(reasons.at(-1), 'STOP')
  const [ours, theirs] = emulator.requests
  t.strictSame(ours?.body, theirs?.body)
  t.equal(ours?.path, theirs?.path)
})

t.test('any repaired history keeps every rule of the server', async (t) => {
  const name = fc.constantFrom('files.read', 'files.view', 'search', '', '9lives', '-x')
  const opaque = fc.option(fc.constant('Zm9yZWlnbg=='), { nil: undefined })
  const foreign = { provider: 'openai', model: 'gpt', credential_id: null }
  const words = fc.constantFrom('', ' ', 'text', 'two\nlines', 'half \ud83d')
  const media = fc.constantFrom<MediaPart>(
    IMAGE,
    { type: 'image', media_type: 'image/gif', data: 'aaaa' },
    { type: 'file', media_type: 'image/png', data: JPEG },
    { type: 'image', media_type: 'image/webp', data: PDF },
    { type: 'file', media_type: 'application/pdf', data: 'aaaa' },
    { type: 'image', media_type: 'image/svg+xml', url: 'https://example.com/a.svg' },
    { type: 'audio', media_type: 'audio/wav', data: 'aaaa' },
    { type: 'file', media_type: 'application/zip', data: 'aaaa' },
    { type: 'file', media_type: 'text/x-python', data: 'aaaa' },
    { type: 'image', media_type: 'image/png', url: 'https://example.com/a.png' },
  )
  const textPart = words.map((value): Part => ({ type: 'text', text: value }))
  const part: fc.Arbitrary<Part> = fc.oneof(
    textPart,
    media,
    fc.tuple(words, opaque).map(
      ([value, token]): Part => ({
        type: 'reasoning',
        text: value,
        provenance: { ...foreign, ...(token ? { opaque: token } : {}) },
      }),
    ),
    fc.tuple(fc.nat(5), name).map(
      ([n, called]): Part => ({
        type: 'tool_call',
        call_id: `call ${n}`,
        name: called,
        arguments: { n, '\udc4b': 'half \ud83d' },
      }),
    ),
    fc.tuple(fc.nat(5), name, fc.boolean(), fc.array(fc.oneof(textPart, media), { maxLength: 2 })).map(
      ([n, called, is_error, content]): Part => ({
        type: 'tool_result',
        call_id: `call ${n}`,
        name: called,
        content: content as ToolResultPart['content'],
        is_error,
        outcome: is_error ? 'error' : 'ok',
      }),
    ),
    fc.constant<Part>({ type: 'notice', text: 'for people' }),
  )
  const message: fc.Arbitrary<MessageInput> = fc.record({
    role: fc.constantFrom('user', 'assistant', 'tool', 'system'),
    parts: fc.array(part, { maxLength: 4 }),
  })
  const tools = [tool('files.read'), tool('files.view'), tool('search')]
  fc.assert(
    fc.property(fc.array(message, { maxLength: 8 }), fc.constantFrom(...MODELS), (history, model) => {
      const { messages } = repair(history, target(model))
      const { body } = gemini.render(requestFor({ model, messages, tools }))
      const traits = traitsOf(model)
      if (!traits) throw new Error(`${model} is unknown to the emulator`)
      const sent = readBody(JSON.parse(JSON.stringify(body)), PUBLIC_REQUEST) as Request
      checkRequest(sent, model, traits, createSignatures())
    }),
    { numRuns: 400 },
  )
  t.pass('no history was refused')
})
