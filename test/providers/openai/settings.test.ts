/** Tool choice, effort, media and sampling, as each family of OpenAI's models takes them. */
import t from 'tap'
import { chatgpt, openai } from '../../../providers/openai/index.ts'
import { chatgptBody, publicBody } from '../../../providers/openai/render.ts'
import type { Deployment, ModelRequest, ModelSettings, UpstreamFailure } from '../../../src/provider.ts'
import { PDF, PNG } from '../../emulators/bytes.ts'
import { MODEL, requestFor, TOOLS } from './exchange.ts'

t.test('sampling, media and effort of a model are looked up by its family', async (t) => {
  const taken = {
    image: { type: 'image', media_type: 'image/png', data: PNG },
    pdf: { type: 'file', media_type: 'application/pdf', data: PDF },
    file: { type: 'file', media_type: 'text/plain', data: 'aGk=' },
    audio: { type: 'audio', media_type: 'audio/wav', data: 'aGk=' },
  } as const
  const kinds = (deployment: Deployment, model: string) => {
    const { takesMedia } = deployment.capabilities(model)
    return Object.entries(taken)
      .flatMap(([kind, part]) => (takesMedia(part) ? kind : []))
      .join()
  }
  const sampled = (model: string) => {
    const wish = requestFor({ model, settings: { temperature: 1 } })
    return [publicBody(wish), chatgptBody(wish)].map(({ body }) => 'temperature' in body)
  }
  for (const [model, sampling, media] of [
    ['gpt-6-sol', false, 'image,pdf,file'],
    ['gpt-5.6-sol', false, 'image,pdf,file'],
    ['gpt-5-chat-latest', true, 'image,pdf,file'],
    ['gpt-5.2-chat-latest', false, 'image,pdf,file'],
    ['gpt-4.1-mini', true, 'image,pdf,file'],
    ['ft:gpt-4o-2024-08-06:org::1', true, 'image,pdf,file'],
    ['gpt-4', true, 'file'],
    ['o3-mini', false, 'file'],
    ['o3', false, 'image,pdf,file'],
    ['gpt-5', false, 'image,pdf,file'],
    ['gpt-5-pro', false, 'image,pdf,file'],
    ['gpt-5-codex', false, 'image,pdf,file'],
    ['gpt-5.1-codex-max', false, 'image,pdf,file'],
    ['gpt-5.1-codex', false, 'image,pdf,file'],
    ['gpt-5.4-pro', false, 'image,pdf,file'],
    ['something-new', false, 'image,pdf,file'],
    ['openai/gpt-4o', true, 'image,pdf,file'],
    ['openai.gpt-4.1', true, 'image,pdf,file'],
    ['prod-GPT-4o', true, 'image,pdf,file'],
    ['gpt4o-prod', true, 'image,pdf,file'],
    ['our-gpt-35-turbo', true, 'file'],
    ['gpt-41', true, 'image,pdf,file'],
    ['our-gpt41-mini', true, 'image,pdf,file'],
    ['gpt-4-1-nano', true, 'image,pdf,file'],
    ['gpt-4-o', true, 'image,pdf,file'],
    ['gpt-4-0613', true, 'file'],
    ['gpt-4-1106-preview', true, 'file'],
    ['gpt-5-2025-08-07', false, 'image,pdf,file'],
    ['custom-o3-mini', false, 'file'],
    ['openai/gpt-oss-120b', false, 'image,pdf,file'],
  ] as const) {
    t.same(sampled(model), [sampling, false], model)
    t.equal(kinds(openai, model), media, model)
  }
  const unthinking = (model: string, effort: 'none' | 'low' | null) => {
    const settings = { temperature: 0.2, top_p: 0.5, ...(effort && { reasoning: { effort } }) }
    const { body } = publicBody(requestFor({ model, settings }))
    return [body.temperature, body.top_p]
  }
  for (const model of ['gpt-5.1', 'gpt-5.2-2025-12-11', 'gpt-5.4-mini', 'ptu-gpt-5.4-mini', 'gpt-5-4-nano']) {
    t.same(unthinking(model, 'none'), [0.2, 0.5], `${model} samples while it does not think`)
    t.same(unthinking(model, 'low'), [undefined, undefined], model)
    t.same(unthinking(model, null), [0.2, 0.5], `${model} does not think unless it is asked to`)
  }
  for (const model of ['gpt-5.5', 'gpt-5.6-sol', 'gpt-6-sol', 'gpt-6-luna']) {
    t.same(unthinking(model, 'none'), [0.2, 0.5], `${model} samples once its thinking is off`)
    t.same(unthinking(model, null), [undefined, undefined], model)
  }
  for (const model of [
    'gpt-6-astra',
    'gpt-6.1-sol',
    'gpt-6.2-sol',
    'gpt-5.1-codex',
    'gpt-5.3-codex',
    'gpt-5.2-pro',
    'gpt-5.2-chat-latest',
  ])
    for (const effort of ['none', null] as const)
      t.same(unthinking(model, effort), [undefined, undefined], model)
  const ofOpenAI = [
    'gpt-6.2-sol',
    'o4-mini',
    'ft:gpt-4o:org::1',
    'openai/gpt-5',
    'our-gpt-35-turbo',
    'codex-mini-latest',
    'computer-use-preview',
    'gpt4o-prod',
    'GPT5',
  ]
  for (const model of [...ofOpenAI, 'gpt-oss:20b', 'qwen3:8b', 'grok-4', 'qwen/qwen3.5'])
    t.equal(
      openai.capabilities(model).systemMessages,
      ofOpenAI.includes(model),
      `${model}: an instruction amid the conversation`,
    )
  t.ok(chatgpt.capabilities('something-new').systemMessages)
  t.same([openai.toolLimit, chatgpt.toolLimit], [128, null])
  t.equal(kinds(chatgpt, MODEL), 'image')
  t.equal(kinds(chatgpt, 'o3-mini'), '')

  const effort = (
    model: string,
    wish: NonNullable<ModelSettings['reasoning']>['effort'],
    reported?: string[],
  ) => {
    const request = requestFor({ model, settings: { reasoning: wish ? { effort: wish } : {} } })
    if (reported) request.reported = { id: model, efforts: reported }
    return [publicBody(request).body.reasoning?.effort, chatgptBody(request).body.reasoning?.effort]
  }
  t.same(effort('gpt-5', 'minimal'), ['minimal', 'low'], 'the ChatGPT path has no effort minimal')
  t.same(effort('gpt-5', 'none'), ['minimal', 'low'])
  t.same(effort('gpt-5.1', 'minimal'), ['low', 'low'])
  t.same(effort('gpt-5-codex', 'minimal'), ['low', 'low'])
  t.same(effort('gpt-5.5', 'max'), ['xhigh', 'xhigh'])
  t.same(effort('gpt-5-pro', 'low'), ['high', 'high'])
  t.same(effort('gpt-5.5-pro', 'low'), ['medium', 'medium'])
  t.same(effort('gpt-5.5-pro', 'none'), ['medium', 'medium'])
  t.same(effort('gpt-5.3-codex', 'none'), ['none', 'none'])
  t.same(effort('gpt-5.2-chat-latest', 'high'), ['medium', 'medium'])
  for (const model of ['gpt-6-astra', 'gpt-6.2-astra', 'gpt-6.2-astra-law', 'gpt-6.2-sol'])
    t.same(effort(model, 'none'), ['low', 'low'], model)
  t.same(effort('gpt-6.1-terra', 'none'), ['none', 'none'])
  for (const [model, low, medium, high, xhigh, max] of [
    ['o3-mini', 'low', 'medium', 'high', 'high', 'high'],
    ['gpt-5-codex', 'low', 'medium', 'high', 'high', 'high'],
    ['gpt-5.1-codex-max', 'low', 'medium', 'high', 'xhigh', 'xhigh'],
    ['gpt-5.1', 'low', 'medium', 'high', 'high', 'high'],
    ['gpt-5.4', 'low', 'medium', 'high', 'xhigh', 'xhigh'],
    ['gpt-5.4-pro', 'medium', 'medium', 'high', 'xhigh', 'xhigh'],
    ['gpt-5.3-codex', 'low', 'medium', 'high', 'xhigh', 'xhigh'],
    ['gpt-6.2-sol', 'low', 'medium', 'high', 'xhigh', 'max'],
    ['something-new', 'low', 'medium', 'high', 'xhigh', 'max'],
  ] as const) {
    const sent = (['low', 'medium', 'high', 'xhigh', 'max'] as const).map((wish) => effort(model, wish)[0])
    t.same(sent, [low, medium, high, xhigh, max], model)
  }
  t.same(effort('o3', 'xhigh'), ['high', 'high'])
  t.same(
    effort('gpt-6-sol', 'max', ['low', 'medium', 'ultra']),
    ['medium', 'medium'],
    'the list of models overrules the family',
  )
  t.same(effort('gpt-6-sol', undefined), [undefined, undefined])
})

t.test('a tool choice that cannot be met is left out with a note', async (t) => {
  const note = (change: Partial<ModelRequest>) => {
    const { body, notes } = publicBody(requestFor(change))
    return [body.tool_choice, notes]
  }
  t.same(note({ settings: { tool_choice: 'required' } }), [undefined, ['tool_choice: no tool is declared']])
  t.same(note({ settings: { tool_choice: { name: 'a.b' } }, tools: TOOLS }), [
    undefined,
    ['tool_choice: tool a.b is not declared'],
  ])
  t.same(note({ settings: { tool_choice: 'required' }, tools: TOOLS }), ['required', []])
  t.same(note({ settings: { tool_choice: 'auto' }, tools: TOOLS }), ['auto', []])
  t.same(note({ settings: { tool_choice: 'none' }, tools: TOOLS }), ['none', []])
  t.same(note({ settings: { tool_choice: 'none' } }), [undefined, []])
})

t.test('what a refusal tells of a model holds for later requests, which note it', async (t) => {
  const model = 'gpt-4.1'
  const failed = (error: Record<string, unknown>): UpstreamFailure => ({
    status: 400,
    headers: {},
    body: JSON.stringify({ error }),
  })
  /** What is sent of each of these settings after a request with the first settings was refused with this error. */
  const later = (error: Record<string, unknown>, first: ModelSettings, ...others: ModelSettings[]) => {
    const wish = requestFor({ model, settings: first, tools: TOOLS })
    const amended = openai.amend(failed(error), wish)
    if (!amended) return null
    t.equal(amended.settings, wish.settings, 'the settings that were asked for stay unchanged')
    const again = openai.amend(failed(error), amended)
    t.equal(again?.reported ?? amended.reported, amended.reported, 'the same refusal teaches nothing more')
    return [first, ...others].map((settings) => {
      const { body, notes } = publicBody({ ...amended, settings })
      const { temperature, top_p, parallel_tool_calls, max_output_tokens } = body
      return [temperature ?? top_p ?? parallel_tool_calls ?? max_output_tokens, ...notes]
    })
  }
  const left = (name: string) => [undefined, `${name}: not accepted by ${model}`]
  const unsupported = (param: string) => ({ param, code: 'unsupported_parameter' })
  t.strictSame(later(unsupported('temperature'), { temperature: 0.5 }, { temperature: 1 }, { top_p: 1 }), [
    left('temperature'),
    left('temperature'),
    [1],
  ])
  t.strictSame(later(unsupported('top_p'), { top_p: 0.5 }, {}), [left('top_p'), [undefined]])
  t.strictSame(later(unsupported('parallel_tool_calls'), { parallel_tool_calls: false }), [
    left('parallel_tool_calls'),
  ])
  t.strictSame(later(unsupported('max_output_tokens'), { max_output_tokens: 99 }), [
    left('max_output_tokens'),
  ])
  const both = requestFor({ model, settings: { temperature: 0.5, top_p: 0.5 } })
  const once = openai.amend(failed(unsupported('temperature')), both)
  const twice = once && openai.amend(failed(unsupported('top_p')), once)
  t.ok(twice)
  const sampling = twice ? Object.keys(publicBody(twice).body) : []
  t.notOk(sampling.includes('temperature') || sampling.includes('top_p'), 'what was refused first stays out')
  const value = { param: 'temperature', code: 'unsupported_value' }
  t.strictSame(
    later(value, { temperature: 1.5 }, { temperature: 0.5 }),
    [left('temperature'), [0.5]],
    'another value of the setting is still sent',
  )
  t.equal(
    later({ ...value, code: 'decimal_above_max_value' }, { temperature: 3 }),
    null,
    "a value that no model takes is the caller's mistake",
  )
  t.equal(later(unsupported('top_p'), { temperature: 1 }), null, 'a setting that was not sent is not amended')
  t.equal(later(unsupported('tools'), { temperature: 1 }), null)

  const above = (words: string) => ({ param: 'max_output_tokens', code: 'unsupported_value', message: words })
  const most = 'integer above maximum value. Expected a value <= 16384, but got 128000 instead.'
  const wishes = [
    { max_output_tokens: 128_000 },
    { max_output_tokens: 16_384 },
    { max_output_tokens: 9 },
  ] as const
  t.strictSame(later(above(most), ...wishes), [
    [16_384, 'max_output_tokens: lowered to 16384, the most that this model takes'],
    [16_384],
    [16, 'max_output_tokens: raised to 16, the least that the API accepts'],
  ])
  t.strictSame(later(above('This model supports at most 4096 completion tokens.'), wishes[0])?.[0]?.[0], 4096)
  for (const [limit, words] of [
    [100, 'This model supports at most 4096 completion tokens.'],
    [100, 'Expected a value <= 0.'],
    [128_000, 'Too large.'],
  ] as const) {
    const wish = requestFor({ settings: { max_output_tokens: limit, temperature: 1 } })
    t.strictSame(openai.amend(failed(above(words)), wish), { ...wish, settings: { temperature: 1 } })
  }
  const lowered = requestFor({
    settings: { max_output_tokens: 128_000 },
    reported: { id: MODEL, max_output_tokens: 16_384 },
  })
  t.strictSame(
    openai.amend(failed(above(most)), lowered)?.settings,
    {},
    'a limit that is refused although it was kept is left out',
  )

  const parallel = requestFor({ settings: { parallel_tool_calls: true }, tools: TOOLS })
  const amended = chatgpt.amend(failed(unsupported('parallel_tool_calls')), parallel)
  const { body, notes = [] } = amended ? chatgptBody(amended) : {}
  t.notOk(body && 'parallel_tool_calls' in body, 'the setting is not sent by default, either')
  t.strictSame(notes.slice(-1), [`parallel_tool_calls: not accepted by ${MODEL}`])
})
