/** Thinking, sampling, limits and tool choice, as each family of Gemini's models takes them. */
import t from 'tap'
import { codeAssist, gemini, geminiOauth } from '../../../providers/gemini/index.ts'
import type { ToolCallPart } from '../../../src/chat/message.ts'
import type { Effort, ModelRequest } from '../../../src/provider.ts'
import { emulate, post } from '../../emulators/gemini-requests.ts'
import type { Request } from '../../emulators/gemini-rules.ts'
import { resultOf, said } from '../exchange.ts'
import { ask, bodyOf, fixture, IMAGE, requestFor, tool } from './exchange.ts'

/** Model, effort, the expected thinkingConfig, and whether a note says that the effort was changed. */
const THINKING: readonly (readonly [string, Effort | undefined, object | undefined, boolean?])[] = [
  ['gemini-2.0-flash', undefined, undefined],
  ['gemini-2.0-flash', 'high', undefined, true],
  ['gemini-2.5-pro', undefined, { includeThoughts: true }],
  ['gemini-2.5-pro', 'none', { includeThoughts: true, thinkingBudget: 128 }, true],
  ['gemini-2.5-pro', 'minimal', { includeThoughts: true, thinkingBudget: 512 }],
  ['gemini-2.5-pro', 'max', { includeThoughts: true, thinkingBudget: 32_768 }],
  ['gemini-2.5-flash', 'none', { includeThoughts: false, thinkingBudget: 0 }],
  ['gemini-2.5-flash', 'medium', { includeThoughts: true, thinkingBudget: 8192 }],
  ['gemini-2.5-flash', 'xhigh', { includeThoughts: true, thinkingBudget: 24_576 }],
  ['gemini-2.5-flash-lite', undefined, undefined],
  ['gemini-2.5-flash-lite', 'low', { includeThoughts: true, thinkingBudget: 1024 }],
  ['gemini-3-pro-preview', 'medium', { includeThoughts: true, thinkingLevel: 'HIGH' }, true],
  ['gemini-3-pro-preview', 'low', { includeThoughts: true, thinkingLevel: 'LOW' }],
  ['gemini-3.1-pro-preview', 'minimal', { includeThoughts: true, thinkingLevel: 'LOW' }, true],
  ['gemini-3-flash-preview', 'minimal', { includeThoughts: true, thinkingLevel: 'MINIMAL' }],
  ['gemini-3-flash-preview', 'none', { includeThoughts: true, thinkingLevel: 'MINIMAL' }, true],
  ['gemini-3.1-flash-image', 'low', { includeThoughts: true, thinkingLevel: 'MINIMAL' }, true],
  ['gemini-3.6-flash', 'minimal', { includeThoughts: true, thinkingLevel: 'MINIMAL' }],
  ['gemini-3.8-flash', undefined, { includeThoughts: true }],
  ['gemini-3.8-flash', 'none', { includeThoughts: true, thinkingLevel: 'LOW' }, true],
  ['gemini-4-argon', 'max', { includeThoughts: true, thinkingLevel: 'HIGH' }, true],
  ['gemini-4-carbon', 'xhigh', { includeThoughts: true, thinkingLevel: 'HIGH' }, true],
  ['gemini-4-neon', 'xhigh', { includeThoughts: true, thinkingLevel: 'XHIGH' }],
  ['gemini-4-hydrogen', 'xhigh', { includeThoughts: true, thinkingLevel: 'XHIGH' }],
  ['gemini-4-hydrogen', 'max', { includeThoughts: true, thinkingLevel: 'XHIGH' }, true],
  ['gemini-4-hydrogen', 'high', { includeThoughts: true, thinkingLevel: 'HIGH' }],
  ['gemini-4-hydrogen', 'minimal', { includeThoughts: true, thinkingLevel: 'LOW' }, true],
  ['gemini-flash-latest', 'medium', { includeThoughts: true, thinkingLevel: 'MEDIUM' }],
  ['gemma-4-31b-it', 'low', { includeThoughts: true, thinkingLevel: 'MINIMAL' }, true],
]

t.test('an effort becomes the budget or the level that the model has', async (t) => {
  const emulator = await emulate(t)
  for (const [model, effort, expected, noted = false] of THINKING) {
    const one = requestFor({ model, settings: effort ? { reasoning: { effort } } : {} })
    const { body, notes } = gemini.render(one)
    const { generationConfig } = body as Request
    t.strictSame(generationConfig?.thinkingConfig, expected, `${model} ${effort}`)
    t.equal(notes.length, noted ? 1 : 0, `${model} ${effort}: ${notes}`)
    if (model !== 'gemini-flash-latest') t.equal((await ask(gemini, emulator, one)).error, null)
  }
  const still = gemini.render(
    requestFor({
      reported: { id: 'gemini-3.8-flash', efforts: [] },
      settings: { reasoning: { effort: 'low' } },
    }),
  )
  t.equal(
    (still.body as Request).generationConfig,
    undefined,
    'a model whose report says that it does not think is not asked to think',
  )
  t.match(still.notes, [/not accepted/])
})

t.test('thinking that a model of an unknown family refuses is left out with a note', async (t) => {
  const emulator = await emulate(t)
  const wish = requestFor({
    model: 'gemini-robotics-er-1.5-preview',
    settings: { reasoning: { effort: 'low' } },
  })
  const { failure } = await ask(gemini, emulator, wish)
  const again = failure && gemini.amend(failure, wish)
  if (!again) return t.fail('the request was not amended')
  t.equal((await ask(gemini, emulator, again)).error, null)
  t.strictSame(gemini.render(again).notes, ['reasoning.effort: not accepted by this model'])
  t.equal(gemini.amend(failure, again), null, 'the request is amended only once')
  for (const [message, isOfThinking] of [
    ['Thinking level is not supported for this model.', true],
    ['Unable to submit request because thinking_level MEDIUM is not supported by this model.', true],
    ['Thinking_config.include_thoughts is only enabled when thinking is enabled.', true],
    ['Thinking is not enabled for models/gemini-x', true],
    ['Budget 0 is invalid. This model only works in thinking mode.', true],
    ['Function call is missing a thought_signature in functionCall parts.', false],
    ['Request contains an invalid argument.', false],
  ] as const) {
    const body = JSON.stringify({ error: { code: 400, message, status: 'INVALID_ARGUMENT' } })
    const amended = codeAssist.amend({ status: 400, headers: {}, body }, wish)
    t.same(amended?.reported?.efforts, isOfThinking ? [] : undefined, message)
  }
})

t.test('a model under an older id that cannot stop thinking is not asked to', async (t) => {
  const emulator = await emulate(t)
  const wish = requestFor({
    model: 'gemini-2.5-flash',
    tools: [tool('files.read')],
    settings: { reasoning: { effort: 'none' }, tool_choice: 'required' },
  })
  const sent = (request: ModelRequest) => {
    const { body } = gemini.render(request)
    return post(`${emulator.publicBaseUrl}/models/gemini-3.5-flash-lite:streamGenerateContent?alt=sse`, body)
  }
  const refused = await sent(wish)
  const failure = { status: refused.status, headers: {}, body: await refused.text() }
  const again = gemini.amend(failure, wish)
  if (!again) return t.fail('the request was not amended')
  t.equal((await sent(again)).status, 200)
  const { body, notes } = gemini.render(again)
  t.equal((body as Request).generationConfig, undefined)
  t.strictSame(notes, ['reasoning.effort: this model cannot stop thinking'])
  t.equal(again.settings.tool_choice, 'required', 'its choice of tools is not taken for the fault')
  const free = gemini.amend(failure, again)
  t.equal(free && gemini.amend(failure, free), null, 'the request is amended only once for each')
  const high = bodyOf({ ...again, settings: { reasoning: { effort: 'high' } } })
  t.strictSame(
    high.generationConfig?.thinkingConfig,
    { includeThoughts: true, thinkingBudget: 24_576 },
    'other efforts are asked for as before',
  )
})

t.test(
  'a model of Gemini 3 under an older id gets signed calls once it has refused unsigned ones',
  async (t) => {
    const call: ToolCallPart = { type: 'tool_call', call_id: 'call_1', name: 'f', arguments: {} }
    const wish = (model: string) =>
      requestFor({
        model,
        messages: [
          said('a'),
          { role: 'assistant', parts: [call] },
          { role: 'tool', parts: [resultOf(call, {})] },
        ],
      })
    const refused = (wish: ModelRequest) =>
      gemini.amend(
        { status: 400, headers: {}, body: JSON.stringify(fixture('error-400-thought-signature.json')) },
        wish,
      )
    const called = (wish: ModelRequest) => (gemini.render(wish).body as Request).contents?.[1]?.parts
    t.strictSame(called(wish('gemini-2.5-flash')), [{ functionCall: { name: 'f', args: {} } }])
    const again = refused(wish('gemini-2.5-flash'))
    if (!again) return t.fail('the request was not amended')
    t.strictSame(called(again), [
      {
        functionCall: { name: 'f', args: {}, id: 'call_1' },
        thoughtSignature: 'skip_thought_signature_validator',
      },
    ])
    t.equal(refused(again), null, 'the request is amended only once')
    t.equal(refused(wish('gemini-3.8-flash')), null)
  },
)

t.test('sampling that a model under an older id refuses is left out with a note', async (t) => {
  const wish = requestFor({ model: 'gemini-2.5-pro', settings: { temperature: 1, top_p: 0.5 } })
  const refused = (message: string, request = wish) => {
    const body = JSON.stringify({ error: { code: 400, message, status: 'INVALID_ARGUMENT' } })
    return gemini.amend({ status: 400, headers: {}, body }, request) ?? null
  }
  for (const words of ['topP is not supported by this model.', 'Unsupported parameter: temperature']) {
    const again = refused(words)
    if (!again) return t.fail('the request was not amended')
    const { body, notes } = gemini.render(again)
    t.match((body as Request).generationConfig, { temperature: undefined, topP: undefined }, words)
    t.match(notes, ['temperature: not accepted by this model', 'top_p: not accepted by this model'])
    t.equal(refused(words, again), null, 'the request is amended only once')
  }
  t.equal(refused('temperature must be in the range [0.0, 2.0].'), null)
})

t.test('tools and instructions go as words to a model that says it takes none', async (t) => {
  const call: ToolCallPart = {
    type: 'tool_call',
    call_id: 'call_1',
    name: 'files__read',
    arguments: { path: 'a' },
  }
  const wish = requestFor({
    model: 'gemma-3-27b-it',
    tools: [tool('files.read')],
    settings: { tool_choice: 'required' },
    messages: [
      said('read a'),
      { role: 'assistant', parts: [call] },
      { role: 'tool', parts: [resultOf(call, { content: [{ type: 'text', text: 'A' }, IMAGE] })] },
      said('again'),
    ],
  })
  const refused = (message: string) => ({
    status: 400,
    headers: {},
    body: JSON.stringify({ error: { code: 400, message } }),
  })
  const refusal = (what: string) => refused(`${what} is not enabled for models/gemma-3-27b-it`)
  const vertex = 'Unable to submit request because the model does not support function calling.'
  t.match(gemini.amend(refused(vertex), wish)?.reported, { tools: false })
  const bare = gemini.amend(refusal('Function calling'), wish)
  const again = bare && gemini.amend(refusal('Developer instruction'), bare)
  if (!again) return t.fail('the request was not amended')
  const { body, notes } = gemini.render(again)
  t.strictSame(body, {
    contents: [
      { role: 'user', parts: [{ text: 'Be brief.' }, { text: 'read a' }] },
      { role: 'model', parts: [{ text: '[Call of files__read: {"path":"a"}]' }] },
      {
        role: 'user',
        parts: [
          { text: '[Result of files__read: {"output":"A"}]' },
          { inlineData: { mimeType: 'image/png', data: IMAGE.data } },
          { text: 'again' },
        ],
      },
    ],
  })
  t.match(notes, [/^tools: left out/, /^tool_choice:/])
  for (const what of ['Function calling', 'Developer instruction'])
    t.equal(gemini.amend(refusal(what), again), null, 'the request is amended only once')
})

t.test('settings that Gemini lacks are left out with notes', async (t) => {
  const tools = [tool('files.read')]
  const settings = { temperature: 1, top_p: 0.5, max_output_tokens: 10, parallel_tool_calls: false }
  const recent = gemini.render(requestFor({ settings }))
  t.strictSame(recent.body.generationConfig, {
    maxOutputTokens: 10,
    thinkingConfig: { includeThoughts: true },
  })
  t.match(recent.notes, [
    'parallel_tool_calls: Gemini has no such setting',
    'temperature: not accepted by this model',
    'top_p: not accepted by this model',
  ])
  for (const model of ['gemini-2.5-pro', 'gemini-3.5-flash'])
    t.match(bodyOf({ model, settings }).generationConfig, { temperature: 1, topP: 0.5 }, model)
  t.match(bodyOf({ model: 'gemini-3.5-flash-lite', settings }).generationConfig, {
    temperature: undefined,
    topP: undefined,
  })
  t.strictSame(gemini.render(requestFor({ settings: { parallel_tool_calls: true } })).notes, [])

  const limit = (model: string, max_output_tokens: number, reported?: ModelRequest['reported']) => {
    const wish = requestFor({ model, settings: { max_output_tokens }, ...(reported ? { reported } : {}) })
    const { body, notes } = gemini.render(wish)
    return [(body as Request).generationConfig?.maxOutputTokens, notes.length]
  }
  t.strictSame(limit('gemini-3.8-flash', 128_000), [65_536, 1])
  t.strictSame(limit('gemini-3.8-flash', 65_536), [65_536, 0])
  t.strictSame(limit('gemini-2.0-flash', 65_536), [8192, 1])
  t.strictSame(limit('gemini-3.8-flash', 128_000, { id: 'x', max_output_tokens: 99_999 }), [99_999, 1])
  t.strictSame(limit('somebody-elses', 128_000), [128_000, 0])

  const choice = (tool_choice: ModelRequest['settings']['tool_choice'], list = tools) => {
    const { body, notes } = gemini.render(
      requestFor({ tools: list, settings: tool_choice ? { tool_choice } : {} }),
    )
    const { toolConfig } = body as Request
    return { config: toolConfig?.functionCallingConfig, notes: notes.length }
  }
  t.strictSame(choice(undefined), { config: undefined, notes: 0 })
  t.strictSame(choice('auto'), { config: undefined, notes: 0 })
  t.strictSame(choice('none'), { config: { mode: 'NONE' }, notes: 0 })
  t.strictSame(choice('required'), { config: { mode: 'ANY' }, notes: 0 })
  t.strictSame(choice({ name: 'files.read' }), {
    config: { mode: 'ANY', allowedFunctionNames: ['files__read'] },
    notes: 0,
  })
  t.strictSame(choice({ name: 'files.gone' }), { config: undefined, notes: 1 })
  t.strictSame(choice('required', []), { config: undefined, notes: 1 })
  t.strictSame(choice('none', []), { config: undefined, notes: 0 })
  for (const message of [
    'The specified schema produces a constraint that has too many states for serving.',
    'Request contains an invalid argument.',
  ]) {
    const refusal = { status: 400, headers: {}, body: JSON.stringify({ error: { code: 400, message } }) }
    const forced = requestFor({ tools, settings: { tool_choice: 'required', max_output_tokens: 9 } })
    const free = gemini.amend(refusal, forced)
    t.strictSame(
      free?.settings,
      { max_output_tokens: 9 },
      'a forced tool choice that the server cannot keep is dropped',
    )
    t.equal(free && gemini.amend(refusal, free), null, 'the request is amended only once')
  }
  for (const { id, toolLimit } of [gemini, codeAssist, geminiOauth]) t.equal(toolLimit, 512, id)
})

t.test('only models that generate content are read from the list of models', async (t) => {
  t.strictSame(gemini.models?.parse(JSON.parse(fixture('public-models.json'))), [
    { id: 'gemini-3.8-flash', max_output_tokens: 65_536 },
  ])
  const plain = { name: 'models/old', supportedGenerationMethods: ['generateContent'] }
  t.strictSame(gemini.models?.parse({ models: [plain, null, { name: 7 }] }), [{ id: 'old', efforts: [] }])
  t.strictSame(gemini.models?.parse('nonsense'), [])
  t.equal(codeAssist.models, undefined)
})
