/** The emulated Anthropic API, driven by the vendor's own SDK, and each refusal that it knows provoked. */
import Anthropic from '@anthropic-ai/sdk'
import t from 'tap'
import {
  type AnthropicEmulator,
  anthropicError,
  anthropicFixture,
  createAnthropicEmulator,
} from './anthropic.ts'
import { gate } from './http.ts'
import { calls, text } from './scene.ts'

const KEY = 'sk-ant-api03-acme-1'
const TOKEN = 'sk-ant-oat01-acme-1'
const OAUTH = { 'anthropic-beta': 'oauth-2025-04-20' }
const BINDING = { 'anthropic-beta': 'thinking-binding-controls-2026-08-01' }
const VERSION = { 'anthropic-version': '2023-06-01' }

type Body = Record<string, unknown>

const emulate = async (test: { teardown(fn: () => unknown): unknown }): Promise<AnthropicEmulator> => {
  const emulator = await createAnthropicEmulator()
  test.teardown(() => emulator.close())
  return emulator
}
const sdk = ({ baseUrl }: AnthropicEmulator, options: ConstructorParameters<typeof Anthropic>[0] = {}) =>
  new Anthropic({ baseURL: baseUrl, apiKey: KEY, maxRetries: 0, ...options })

const failure = (promise: PromiseLike<unknown>): PromiseLike<unknown> =>
  promise.then(
    () => null,
    (thrown: unknown) => thrown,
  )

const weather = {
  name: 'get_weather',
  description: 'Weather of a place',
  input_schema: { type: 'object' as const, properties: { place: { type: 'string' } }, required: ['place'] },
}
const user = (content: unknown) => ({ role: 'user', content })
const assistant = (content: unknown) => ({ role: 'assistant', content })
const base = (patch: Body = {}): Body => ({
  model: 'claude-sonnet-4-6',
  max_tokens: 1000,
  messages: [user('hello')],
  ...patch,
})

/** Sends a body as it is; the answer's status and its error message, or its body's JSON. */
async function ask(
  { baseUrl }: AnthropicEmulator,
  body: Body | string,
  headers: Record<string, string> = {},
  path = '/v1/messages',
): Promise<{ status: number; words: string; json: Body }> {
  const response = await fetch(baseUrl + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-api-key': KEY, ...VERSION, ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  })
  const json = (await response.json()) as Body
  const { message = '' } = (json.error ?? {}) as { message?: string }
  return { status: response.status, words: message, json }
}

t.test('the vendor SDK talks to it', async (t) => {
  const emulator = await emulate(t)
  const client = sdk(emulator)

  await t.test('streams text and counts tokens', async (t) => {
    const stream = client.messages.stream({
      model: 'claude-sonnet-5-5',
      max_tokens: 1000,
      messages: [{ role: 'user', content: 'say Grüezi 🙂 from the lake' }],
    })
    const message = await stream.finalMessage()
    t.match(message.content, [{ type: 'text', text: 'Grüezi 🙂 from the lake' }])
    t.equal(message.stop_reason, 'end_turn')
    t.ok(message.usage.input_tokens > 0)
    t.ok(message.usage.output_tokens > 0)
  })

  await t.test('answers in one piece when no stream is wanted', async (t) => {
    const message = await client.messages.create({
      model: 'claude-haiku-4-5',
      max_tokens: 100,
      messages: [{ role: 'user', content: 'hello there' }],
    })
    t.match(message, {
      role: 'assistant',
      content: [{ type: 'text', text: 'hello there' }],
      stop_reason: 'end_turn',
    })
  })

  await t.test('calls tools in parallel and goes on after their results', async (t) => {
    const prompt = 'call get_weather with {"place":"Zürich"}\ncall get_weather with {}\nthen\nsay both done'
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: prompt }]
    const head = { model: 'claude-opus-5', max_tokens: 1000, tools: [weather] }
    const first = await client.messages.stream({ ...head, messages }).finalMessage()
    t.equal(first.stop_reason, 'tool_use')
    const uses = first.content.filter((block) => block.type === 'tool_use')
    t.match(uses, [{ input: { place: 'Zürich' } }, { input: {} }])
    t.not(uses[0]?.id, uses[1]?.id)
    messages.push({ role: 'assistant', content: first.content as Anthropic.ContentBlockParam[] })
    messages.push({
      role: 'user',
      content: uses.map(({ id }) => ({ type: 'tool_result', tool_use_id: id, content: '15 °C' })),
    })
    const second = await client.messages.stream({ ...head, messages }).finalMessage()
    t.match(second.content, [{ type: 'text', text: 'both done' }])
  })

  await t.test('lists its models with their kinds of thinking', async (t) => {
    const page = await client.models.list({ limit: 1000 })
    const opus = page.data.find(({ id }) => id === 'claude-opus-5-5')
    t.match(opus?.capabilities?.thinking.types, {
      adaptive: { supported: true },
      disabled: { supported: false },
    })
    t.equal(opus?.max_tokens, 128_000)
    t.equal((await client.models.retrieve('claude-haiku-4-5-20251001')).id, 'claude-haiku-4-5')
    t.match(await failure(client.models.retrieve('claude-opus-9')), { status: 404 })
  })

  await t.test('counts tokens', async (t) => {
    const { input_tokens } = await client.messages.countTokens({
      model: 'claude-opus-5-5',
      messages: [{ role: 'user', content: 'hello' }],
    })
    t.ok(input_tokens > 0)
  })

  await t.test('takes a login with its beta', async (t) => {
    const login = sdk(emulator, { apiKey: null, authToken: TOKEN, defaultHeaders: OAUTH })
    const message = await login.messages.create({
      model: 'claude-sonnet-5',
      max_tokens: 100,
      messages: [{ role: 'user', content: 'hi' }],
    })
    t.match(message.content, [{ type: 'text', text: 'hi' }])
  })

  await t.test('shows thinking by default, display and model', async (t) => {
    const think = async (model: string, thinking?: Anthropic.ThinkingConfigParam) => {
      const messages = [{ role: 'user' as const, content: 'think one step\nsay done' }]
      const body = { model, max_tokens: 4000, messages, ...(thinking ? { thinking } : {}) }
      const { content, usage } = await client.messages.stream(body).finalMessage()
      const block = content.find(({ type }) => type === 'thinking') as Anthropic.ThinkingBlock | undefined
      return block && { ...block, counted: (usage.output_tokens_details?.thinking_tokens ?? 0) > 0 }
    }
    t.match(await think('claude-opus-5-5'), { thinking: '', signature: /^E/, counted: true })
    t.match(await think('claude-opus-5-5', { type: 'adaptive', display: 'summarized' }), {
      thinking: 'one step',
    })
    t.match(await think('claude-opus-4-6', { type: 'adaptive' }), { thinking: 'one step' })
    t.match(await think('claude-haiku-4-5', { type: 'enabled', budget_tokens: 1024 }), {
      thinking: 'one step',
    })
    t.equal(await think('claude-opus-4-8'), undefined)
    t.equal(await think('claude-sonnet-5', { type: 'disabled' }), undefined)
    t.equal(await think('claude-sonnet-5-5', { type: 'between_tools' }), undefined)
  })

  await t.test('reads from the cache what an earlier request marked', async (t) => {
    const marked = (content: string): Anthropic.MessageParam => ({
      role: 'user',
      content: [{ type: 'text', text: content, cache_control: { type: 'ephemeral' } }],
    })
    const head = { model: 'claude-opus-5', max_tokens: 100, tools: [weather] }
    const first = await client.messages.create({ ...head, messages: [marked('a long question')] })
    t.equal(first.usage.cache_read_input_tokens, 0)
    t.ok((first.usage.cache_creation_input_tokens ?? 0) > 0)
    const longer = [marked('a long question'), { role: 'assistant' as const, content: 'yes' }, marked('and?')]
    const second = await client.messages.create({ ...head, messages: longer })
    t.equal(second.usage.cache_read_input_tokens, first.usage.cache_creation_input_tokens)
    const other = await client.messages.create({ ...head, tools: [], messages: longer })
    t.equal(other.usage.cache_read_input_tokens, 0)
  })
})

t.test('scripts and scenes', async (t) => {
  const emulator = await emulate(t)
  const client = sdk(emulator)
  const run = () =>
    client.messages
      .stream({
        model: 'claude-sonnet-5',
        max_tokens: 500,
        messages: [{ role: 'user', content: 'go' }],
        tools: [weather],
      })
      .finalMessage()

  await t.test('a script sees the request and may answer with a failure', async (t) => {
    emulator.script((request, input) => {
      t.equal(request.method, 'POST')
      t.strictSame(input, { tools: ['get_weather'], user: 'go', step: 0, results: [] })
      return anthropicFixture('error-429.json')
    })
    t.match(await failure(run()), { status: 429, type: 'rate_limit_error' })
    emulator.script(() => anthropicError(529, 'overloaded_error', 'Overloaded'))
    t.match(await failure(run()), { status: 529 })
    emulator.script(() => null)
    t.match((await run()).content, [{ text: 'go' }])
  })

  await t.test('an error inside the stream follows the frames that were asked for', async (t) => {
    emulator.script(() => ({
      ...text('half an answer'),
      ending: { code: 'overloaded_error', message: 'Overloaded' },
      after: 4,
    }))
    await t.rejects(run(), { message: /Overloaded/ })
  })

  await t.test('a stream may be cut, end early, or be chopped anywhere', async (t) => {
    emulator.script(() => ({ ...text('half'), ending: 'cut' }))
    await t.rejects(run())
    emulator.script(() => ({ ...text('half'), ending: 'close' }))
    await t.rejects(run(), { message: /without|ended|stop/i })
    emulator.script(() => ({ ...text('Zürich 🙂 ganz'), chunk: 3 }))
    t.match((await run()).content, [{ text: 'Zürich 🙂 ganz' }])
  })

  await t.test('a silent stream stays open until the client leaves', async (t) => {
    emulator.script(() => ({ ...text('half'), ending: 'hang' }))
    const index = emulator.requests.length
    const stream = client.messages.stream({
      model: 'claude-sonnet-5',
      max_tokens: 500,
      messages: [{ role: 'user', content: 'go' }],
    })
    const failed = t.rejects(stream.finalMessage())
    const request = await emulator.request(index)
    await stream.emitted('text')
    stream.abort()
    await failed
    t.equal(await request.closed, 'aborted')
  })

  await t.test('a scene may wait for the test', async (t) => {
    const door = gate()
    emulator.script(() => ({
      items: [
        { type: 'text', text: 'before' },
        { type: 'wait', until: door.opened },
        { type: 'text', text: 'after' },
      ],
    }))
    const stream = client.messages.stream({
      model: 'claude-sonnet-5',
      max_tokens: 500,
      messages: [{ role: 'user', content: 'go' }],
    })
    await stream.emitted('text')
    door.open()
    t.match((await stream.finalMessage()).content, [{ text: 'before' }, { text: 'after' }])
  })

  await t.test('the length limit cuts the last call, and a refusal says so', async (t) => {
    emulator.script(() => ({ ...calls(['get_weather', { place: 'a far away place' }]), finish: 'length' }))
    const { json } = await ask(emulator, base({ tools: [weather] }))
    t.equal(json.stop_reason, 'max_tokens')
    const streamed = await fetch(`${emulator.baseUrl}/v1/messages`, {
      method: 'POST',
      headers: { 'x-api-key': KEY, ...VERSION },
      body: JSON.stringify(base({ tools: [weather], stream: true })),
    })
    const deltas = [...(await streamed.text()).matchAll(/"partial_json":("(?:[^"\\]|\\.)*")/g)]
    t.throws(() => JSON.parse(deltas.map(([, json = '""']) => JSON.parse(json)).join('')))
    emulator.script(() => ({ ...text('no'), finish: 'refusal' }))
    t.match((await ask(emulator, base())).json, { stop_reason: 'refusal', stop_details: { type: 'refusal' } })
  })
})

const use = (id: string, input: unknown = {}) => ({ type: 'tool_use', id, name: 'get_weather', input })
const result = (id: string, more: Body = {}) => ({
  type: 'tool_result',
  tool_use_id: id,
  content: 'ok',
  ...more,
})
const schema = (input_schema: unknown, name = 'get_weather') => ({ tools: [{ name, input_schema }] })
const png = { type: 'base64', media_type: 'image/png', data: 'aGFsbG8=' }
const mark = { cache_control: { type: 'ephemeral' } }
const budget = (budget_tokens: number) => ({
  thinking: { type: 'enabled', budget_tokens },
  model: 'claude-haiku-4-5',
})
const drop = { block_binding: { prefix_mismatch_behavior: 'drop_block' } }

type Case = [name: string, body: Body, words: RegExp, headers?: Record<string, string>]

/** One case for each thing that is refused. */
const REFUSALS: Case[] = [
  ['an unknown version', base(), /anthropic-version/, { 'anthropic-version': '2024-01-01' }],
  [
    'an unknown beta',
    base(),
    /Unexpected value\(s\) `made-up-2030-01-01`/,
    { 'anthropic-beta': 'made-up-2030-01-01' },
  ],
  ['no model', { max_tokens: 5, messages: [user('a')] }, /model: Field required/],
  ['no max_tokens', { model: 'claude-opus-5', messages: [user('a')] }, /max_tokens: Field required/],
  ['max_tokens of nothing', base({ max_tokens: 0 }), /max_tokens/],
  ['max_tokens beyond the model', base({ max_tokens: 200_000 }), /128000, which is the maximum/],
  ['an unknown field', base({ stream_options: {} }), /stream_options: Extra inputs are not permitted/],
  ['a gated field without its beta', base({ context_management: {} }), /context_management: Extra inputs/],
  [
    'a prompt beyond the window',
    base({ model: 'claude-haiku-4-5', system: 'x'.repeat(810_000) }),
    /prompt is too long/,
  ],
  [
    'sampling under the newer version',
    base({ temperature: 1 }),
    /temperature: Extra/,
    { 'anthropic-version': '2026-10-21' },
  ],
  [
    'sampling on newer models',
    base({ model: 'claude-opus-4-8', temperature: 0.5 }),
    /`temperature` is deprecated/,
  ],
  ['top_p on newer models', base({ model: 'claude-opus-4-8', top_p: 0.5 }), /`top_p` is deprecated/],
  ['top_k on newer models', base({ model: 'claude-opus-4-8', top_k: 5 }), /`top_k` is deprecated/],
  ['temperature out of range', base({ temperature: 1.5 }), /range/],
  ['temperature with top_p', base({ temperature: 0.5, top_p: 0.9 }), /cannot both be specified/],
  [
    'temperature with thinking',
    base({ temperature: 0.5, thinking: { type: 'adaptive' } }),
    /may only be set to 1/,
  ],
  ['a low top_p with thinking', base({ top_p: 0.5, thinking: { type: 'adaptive' } }), /0\.95/],
  ['top_k with thinking', base({ top_k: 5, thinking: { type: 'adaptive' } }), /`top_k` must be unset/],
  ['a blank stop sequence', base({ stop_sequences: ['\n'] }), /non-whitespace/],
  ['more than an id as metadata', base({ metadata: { email: 'a@b.c' } }), /metadata\.email: Extra/],
  ['a stream of words', base({ stream: 'yes' }), /stream: Input should be a valid boolean/],
  ['a system prompt that is an object', base({ system: {} }), /system: Input should be/],
  [
    'an empty system block',
    base({ system: [{ type: 'text', text: '' }] }),
    /system: text content blocks must be non-empty/,
  ],
  [
    'a system block of another kind',
    base({ system: [{ type: 'image', source: png }] }),
    /system\.0\.source: Extra/,
  ],
  [
    'a tool name with a dot',
    base(schema({ type: 'object' }, 'a.b')),
    /tools\.0\.custom\.name: String should match/,
  ],
  ['two tools of one name', base({ tools: [weather, weather] }), /Tool names must be unique/],
  ['an unknown member of a tool', base({ tools: [{ ...weather, parameters: {} }] }), /parameters: Extra/],
  ['an empty description', base({ tools: [{ ...weather, description: '' }] }), /description/],
  ['a schema without type', base(schema({ properties: {} })), /input_schema\.type: Field required/],
  ['a schema that is no object', base(schema({ type: 'string' })), /input_schema\.type: Input should be/],
  [
    'anyOf at the root',
    base(schema({ type: 'object', anyOf: [] })),
    /oneOf, allOf, or anyOf at the top level/,
  ],
  [
    'a property name with a bracket',
    base(schema({ type: 'object', properties: { 'a[]': {} } })),
    /Property keys should match/,
  ],
  [
    'a tuple of an older draft',
    base(schema({ type: 'object', properties: { a: { type: 'array', items: [{ type: 'string' }] } } })),
    /must match JSON Schema draft 2020-12/,
  ],
  [
    'a pattern that is no regex',
    base(schema({ type: 'object', properties: { a: { pattern: '(' } } })),
    /draft 2020-12/,
  ],
  [
    'a tool choice without tools',
    base({ tool_choice: { type: 'auto' } }),
    /only be specified while providing tools/,
  ],
  [
    'an unknown tool choice',
    base({ tools: [weather], tool_choice: { type: 'required' } }),
    /Input tag 'required'/,
  ],
  [
    'a choice of no tool',
    base({ tools: [weather], tool_choice: { type: 'tool', name: 'x' } }),
    /Tool 'x' not found/,
  ],
  [
    'parallel calls ruled with none',
    base({ tools: [weather], tool_choice: { type: 'none', disable_parallel_tool_use: true } }),
    /Extra/,
  ],
  ...['claude-opus-5-5', 'claude-sonnet-5-5', 'claude-fable-5-1'].map(
    (model): Case => [
      `a forced tool on ${model}`,
      base({ model, tools: [weather], tool_choice: { type: 'any' } }),
      /type "tool" and "any" are not supported/,
    ],
  ),
  [
    'a forced tool with a thinking budget',
    base({ ...budget(1024), max_tokens: 4000, tools: [weather], tool_choice: { type: 'any' } }),
    /when tool_choice forces tool use/,
  ],
  ['an unknown effort', base({ output_config: { effort: 'minimal' } }), /output_config\.effort/],
  ['xhigh before 4.7', base({ output_config: { effort: 'xhigh' } }), /output_config\.effort/],
  [
    'effort on the 4.5 generation',
    base({ model: 'claude-haiku-4-5', output_config: { effort: 'low' } }),
    /effort/,
  ],
  [
    'a high effort without thinking',
    base({ model: 'claude-opus-5', thinking: { type: 'disabled' }, output_config: { effort: 'max' } }),
    /requires thinking/,
  ],
  [
    'adaptive thinking on 4.5',
    base({ model: 'claude-haiku-4-5', thinking: { type: 'adaptive' } }),
    /adaptive thinking is not supported/,
  ],
  [
    'a budget on 4.7',
    base({ model: 'claude-opus-4-7', thinking: { type: 'enabled', budget_tokens: 1024 } }),
    /"thinking.type.enabled" is not supported/,
  ],
  [
    'no thinking on Opus 5.5',
    base({ model: 'claude-opus-5-5', thinking: { type: 'disabled' } }),
    /"thinking.type.disabled" is not supported/,
  ],
  [
    'a budget that is too small',
    base({ ...budget(1023), max_tokens: 4000 }),
    /greater than or equal to 1024/,
  ],
  ['a budget of all tokens', base({ ...budget(4000), max_tokens: 4000 }), /`max_tokens` must be greater/],
  [
    'no budget',
    base({ model: 'claude-haiku-4-5', thinking: { type: 'enabled' } }),
    /budget_tokens: Field required/,
  ],
  [
    'display before 4.7',
    base({ thinking: { type: 'adaptive', display: 'summarized' } }),
    /thinking\.adaptive\.display: Extra/,
  ],
  [
    'block_binding without its beta',
    base({ model: 'claude-opus-5-5', thinking: { type: 'adaptive', ...drop } }),
    /block_binding: Extra/,
  ],
  [
    'block_binding with thinking off',
    base({ model: 'claude-haiku-5-5', thinking: { type: 'disabled', ...drop } }),
    /block_binding: Extra/,
    BINDING,
  ],
  [
    'five cache marks',
    base({
      tools: [{ ...weather, ...mark }],
      messages: [user([1, 2, 3, 4].map((n) => ({ type: 'text', text: `${n}`, ...mark })))],
    }),
    /maximum of 4 blocks with cache_control may be provided. Found 5/,
  ],
  [
    'a cache mark of another type',
    base({ tools: [{ ...weather, cache_control: { type: 'forever' } }] }),
    /cache_control\.type/,
  ],
  [
    'a cache mark on empty text',
    base({ messages: [user([{ type: 'text', text: '', ...mark }])] }),
    /cannot be set for empty text/,
  ],
  ['no messages', base({ messages: [] }), /at least one message/],
  ['messages that are missing', { model: 'claude-opus-5', max_tokens: 5 }, /messages: Field required/],
  ['an unknown role', base({ messages: [{ role: 'tool', content: 'a' }] }), /messages\.0\.role/],
  [
    'an unknown member of a message',
    base({ messages: [{ ...user('a'), name: 'b' }] }),
    /messages\.0\.name: Extra/,
  ],
  [
    'an assistant who begins',
    base({ messages: [assistant('a'), user('b')] }),
    /first message must use the "user" role/,
  ],
  ['prefill', base({ messages: [user('a'), assistant('b')] }), /does not support assistant message prefill/],
  [
    'prefill that ends with a space',
    base({ model: 'claude-haiku-4-5', messages: [user('a'), assistant('b ')] }),
    /cannot end with trailing whitespace/,
  ],
  ['a message without content', base({ messages: [user([])] }), /all messages must have non-empty content/],
  ['empty text', base({ messages: [user('')] }), /text content blocks must be non-empty/],
  [
    'blank text',
    base({ messages: [user([{ type: 'text', text: ' \n' }])] }),
    /must contain non-whitespace text/,
  ],
  ['a block of the other role', base({ messages: [user([use('a')])] }), /Input tag 'tool_use'/],
  [
    'an unknown member of a block',
    base({ messages: [user([{ type: 'text', text: 'a', index: 0 }])] }),
    /messages\.0\.content\.0\.text\.index: Extra/,
  ],
  [
    'an image of another type',
    base({ messages: [user([{ type: 'image', source: { ...png, media_type: 'image/svg+xml' } }])] }),
    /media_type/,
  ],
  [
    'an image too many',
    base({
      model: 'claude-haiku-4-5',
      messages: [user(Array.from({ length: 101 }, () => ({ type: 'image', source: png })))],
    }),
    /too many images: 101 > 100/,
  ],
  [
    'an image that is no base64',
    base({ messages: [user([{ type: 'image', source: { ...png, data: 'ä' } }])] }),
    /invalid base64/,
  ],
  [
    'an image from nowhere',
    base({ messages: [user([{ type: 'image', source: { type: 'path' } }])] }),
    /image\.source\.type/,
  ],
  [
    'an image URL of another scheme',
    base({ messages: [user([{ type: 'image', source: { type: 'url', url: 'http://a.example/b.png' } }])] }),
    /Only HTTPS/,
  ],
  [
    'a document that is no PDF',
    base({ messages: [user([{ type: 'document', source: { ...png } }])] }),
    /application\/pdf/,
  ],
  [
    'a PDF that is no base64',
    base({
      messages: [
        user([{ type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: '-' } }]),
      ],
    }),
    /invalid base64/,
  ],
  [
    'an empty text document',
    base({
      messages: [user([{ type: 'document', source: { type: 'text', media_type: 'text/plain', data: '' } }])],
    }),
    /non-empty/,
  ],
  [
    'a text document of another type',
    base({
      messages: [user([{ type: 'document', source: { type: 'text', media_type: 'text/html', data: 'a' } }])],
    }),
    /text\/plain/,
  ],
  [
    'a document from nowhere',
    base({ messages: [user([{ type: 'document', source: { type: 'path' } }])] }),
    /document\.source\.type/,
  ],
  [
    'a call id with a bar',
    base({ messages: [user('a'), assistant([use('a|b')]), user([result('a|b')])] }),
    /tool_use\.id: String should match/,
  ],
  [
    'a call id that is too long',
    base({ messages: [user('a'), assistant([use('a'.repeat(65))]), user([result('a'.repeat(65))])] }),
    /tool_use\.id/,
  ],
  [
    'arguments that are no object',
    base({ messages: [user('a'), assistant([use('a', '{}')]), user([result('a')])] }),
    /valid dictionary/,
  ],
  [
    'a result of another kind',
    base({
      messages: [user('a'), assistant([use('a')]), user([result('a', { content: [{ type: 'audio' }] })])],
    }),
    /Input tag 'audio'/,
  ],
  [
    'empty text in a result',
    base({
      messages: [
        user('a'),
        assistant([use('a')]),
        user([result('a', { content: [{ type: 'text', text: '' }] })]),
      ],
    }),
    /must be non-empty/,
  ],
  [
    'a failed result without a word',
    base({
      messages: [user('a'), assistant([use('a')]), user([result('a', { is_error: true, content: '' })])],
    }),
    /content cannot be empty if `is_error` is true/,
  ],
  [
    'a failed result with an image',
    base({
      messages: [
        user('a'),
        assistant([use('a')]),
        user([result('a', { is_error: true, content: [{ type: 'image', source: png }] })]),
      ],
    }),
    /all content must be type `text` if `is_error` is true/,
  ],
  [
    'a call without a result',
    base({ messages: [user('a'), assistant([use('a')]), user('b')] }),
    /`tool_use` ids were found without `tool_result` blocks immediately after: a/,
  ],
  [
    'one of two calls without a result',
    base({ messages: [user('a'), assistant([use('a'), use('b')]), user([result('a')])] }),
    /immediately after: b/,
  ],
  [
    'text before the results',
    base({ messages: [user('a'), assistant([use('a')]), user([{ type: 'text', text: 'x' }, result('a')])] }),
    /immediately after: a/,
  ],
  [
    'a result without a call',
    base({ messages: [user('a'), assistant('b'), user([result('a')])] }),
    /unexpected `tool_use_id` found/,
  ],
  [
    'two results of one call',
    base({ messages: [user('a'), assistant([use('a')]), user([result('a'), result('a')])] }),
    /must have a single result/,
  ],
  [
    'one call id twice',
    base({
      messages: [
        user('a'),
        assistant([use('a')]),
        user([result('a')]),
        assistant([use('a')]),
        user([result('a')]),
      ],
    }),
    /`tool_use` ids must be unique/,
  ],
  [
    'a system message where the model has none',
    base({ messages: [user('a'), { role: 'system', content: 'b' }] }),
    /role 'system' is not supported/,
  ],
  ...[
    [user('a'), assistant('b'), { role: 'system', content: 'c' }, user('d')],
    [user('a'), { role: 'system', content: 'c' }, user('d')],
  ].map(
    (messages, i): Case => [
      `a system message in the wrong place (${i + 1})`,
      base({ model: 'claude-opus-4-8', messages }),
      /a system message must follow a user message/,
    ],
  ),
  [
    'thinking that it never signed',
    base({
      messages: [
        user('a'),
        assistant([
          { type: 'thinking', thinking: 'b', signature: 'Eabc' },
          { type: 'text', text: 'c' },
        ]),
        user('d'),
      ],
    }),
    /Invalid `signature` in `thinking` block/,
  ],
  [
    'an answer that ends with thinking',
    base({
      messages: [user('a'), assistant([{ type: 'thinking', thinking: 'b', signature: 'Eabc' }]), user('c')],
    }),
    /The final block in an assistant message cannot be `thinking`/,
  ],
]

t.test('refusals', async (t) => {
  const emulator = await emulate(t)
  for (const [name, body, words, headers] of REFUSALS) {
    await t.test(name, async (t) => {
      const answer = await ask(emulator, body, headers)
      t.match(answer, {
        status: 400,
        words,
        json: { type: 'error', error: { type: 'invalid_request_error' } },
      })
    })
  }

  await t.test('halves of characters', async (t) => {
    const broken = JSON.stringify(base()).replace('hello', 'a\\ud83d')
    t.match(await ask(emulator, broken), { status: 400, words: /surrogates not allowed/ })
    t.match(await ask(emulator, 'no json'), { status: 400, words: /not valid JSON/ })
  })

  await t.test('an unknown model, an unknown path', async (t) => {
    t.match(await ask(emulator, base({ model: 'claude-opus-9' })), {
      status: 404,
      words: 'model: claude-opus-9',
    })
    t.match(await ask(emulator, base(), {}, '/v1/complete'), { status: 404 })
  })

  await t.test('no version header', async (t) => {
    const response = await fetch(`${emulator.baseUrl}/v1/messages`, {
      method: 'POST',
      headers: { 'x-api-key': KEY },
      body: JSON.stringify(base()),
    })
    t.equal(response.status, 400)
    t.match(await response.text(), /anthropic-version: header is required/)
  })

  await t.test('credentials', async (t) => {
    const asked = async (headers: Record<string, string>) => {
      const response = await fetch(`${emulator.baseUrl}/v1/models`, { headers: { ...VERSION, ...headers } })
      return `${response.status} ${await response.text()}`
    }
    const bearer = (token: string) => ({ authorization: `Bearer ${token}` })
    t.match(await asked({}), /^401 .*x-api-key header is required/)
    t.match(await asked({ 'x-api-key': 'something' }), /^401 .*invalid x-api-key/)
    t.match(await asked({ 'x-api-key': TOKEN, ...OAUTH }), /^401 .*invalid x-api-key/, 'a login as a key')
    t.match(
      await asked({ 'x-api-key': KEY, ...bearer(TOKEN), ...OAUTH }),
      /^401 .*invalid x-api-key/,
      'both at once',
    )
    t.match(await asked(bearer(TOKEN)), /^401 .*OAuth authentication is currently not supported/, 'no beta')
    t.match(await asked({ ...bearer('nonsense'), ...OAUTH }), /^401 .*Invalid bearer token/)
    t.match(
      await asked({ 'x-api-key': KEY, origin: 'https://a.example' }),
      /^401 .*CORS requests are not allowed/,
    )
    emulator.refuse(TOKEN, 'expired')
    t.match(await asked({ ...bearer(TOKEN), ...OAUTH }), /^401 .*has expired/)
    emulator.refuse(TOKEN, 'revoked')
    t.match(await asked({ ...bearer(TOKEN), ...OAUTH }), /^403 .*permission_error.*has been revoked/)
    t.match(await asked(bearer(KEY)), /^200 /, 'an API key may come as a bearer')
  })

  await t.test('counting has the same rules, but for two fields', async (t) => {
    const { max_tokens: _, ...rest } = base()
    t.match(await ask(emulator, rest, {}, '/v1/messages/count_tokens'), { status: 200 })
    const bad = { ...rest, messages: [user('')] }
    t.match(await ask(emulator, bad, {}, '/v1/messages/count_tokens'), { status: 400, words: /non-empty/ })
  })
})

t.test('thinking that comes back', async (t) => {
  const emulator = await emulate(t)
  const opening = (model: string, more: Body = {}): Body => ({
    model,
    max_tokens: 8000,
    tools: [weather],
    messages: [user('think first\nthink second\ncall get_weather with {"place":"Bern"}')],
    ...more,
  })
  type Blocks = Body[]
  /** The request after the call was answered, with the assistant's blocks as `change` leaves them. */
  const next = (
    body: Body,
    content: Blocks,
    change: (blocks: Blocks) => Blocks = (blocks) => blocks,
  ): Body => {
    const id = content.find(({ type }) => type === 'tool_use')?.id
    const messages = body.messages as Blocks
    return {
      ...body,
      messages: [...messages, assistant(change(structuredClone(content))), user([result(String(id))])],
    }
  }
  const content = async (body: Body, headers?: Record<string, string>) => {
    const answer = await ask(emulator, body, headers)
    t.equal(answer.status, 200, answer.words)
    return answer.json.content as Blocks
  }
  const enabled = { thinking: { type: 'enabled', budget_tokens: 2000 } }

  await t.test('goes on unchanged, bound or not, marks or none', async (t) => {
    for (const [model, more] of [
      ['claude-opus-5-5', {}],
      ['claude-opus-5', {}],
      ['claude-haiku-4-5', enabled],
    ] as const) {
      const body = opening(model, more)
      const blocks = await content(body)
      t.match(blocks, [{ type: 'thinking' }, { type: 'thinking' }, { type: 'tool_use' }])
      const second = next(body, blocks, (list) => [
        ...list.slice(0, 2),
        { ...list[2], id: 'call_1', ...mark },
      ])
      const renamed = JSON.stringify(second).replaceAll(String(blocks[2]?.id), 'call_1')
      t.match(await ask(emulator, renamed), { status: 200 }, model)
    }
  })

  await t.test('refuses it changed, reordered, in part, or without its head', async (t) => {
    const body = opening('claude-haiku-4-5', enabled)
    const blocks = await content(body)
    const changed = next(body, blocks, ([a, ...rest]) => [{ ...a, thinking: 'other' }, ...rest])
    t.match(await ask(emulator, changed), {
      status: 400,
      words: /^messages\.1\.content\.0: Invalid `signature`/,
    })
    const cannotModify = { status: 400, words: /blocks in the latest assistant message cannot be modified/ }
    t.match(
      await ask(
        emulator,
        next(body, blocks, ([a, b, c]) => [b, a, c] as Blocks),
      ),
      cannotModify,
    )
    t.match(
      await ask(
        emulator,
        next(body, blocks, ([, b, c]) => [b, c] as Blocks),
      ),
      cannotModify,
    )
    const headless = await ask(
      emulator,
      next(body, blocks, (list) => list.slice(2)),
    )
    t.match(headless, {
      status: 400,
      words: /Expected `thinking` or `redacted_thinking`, but found `tool_use`/,
    })
    const said = next(body, blocks, (list) => [{ type: 'text', text: 'so' }, ...list])
    t.match(await ask(emulator, said), { status: 400, words: /Expected `thinking`/ })
    const so = { type: 'text', text: 'so' } as const
    const later = { ...body, messages: [user('a'), assistant([so, ...blocks.slice(0, 2), so]), user('b')] }
    t.match(await ask(emulator, later), { status: 400, words: /the first block must be `thinking`/ })
    const off = { ...next(body, blocks), thinking: { type: 'disabled' } }
    t.match(await ask(emulator, off), { status: 400, words: /When thinking is disabled/ })
    const plain = { ...next(body, blocks, (list) => list.slice(2)), thinking: { type: 'disabled' } }
    t.match(await ask(emulator, plain), { status: 200 })
  })

  await t.test('refuses what another model or organization thought', async (t) => {
    const body = opening('claude-opus-5')
    const blocks = await content(body)
    const foreign = { status: 400, words: /bound to a different conversation/ }
    t.match(await ask(emulator, { ...next(body, blocks), model: 'claude-sonnet-5' }), foreign)
    t.match(await ask(emulator, next(body, blocks), { 'x-api-key': 'sk-ant-api03-other-1' }), foreign)
    t.match(await ask(emulator, next(body, blocks), { 'x-api-key': 'sk-ant-api03-acme-2' }), { status: 200 })
  })

  await t.test('binds it to system, tools and earlier messages', async (t) => {
    const body = opening('claude-opus-5-5', { system: 'be brief' })
    const blocks = await content(body)
    const second = next(body, blocks)
    const changes: [string, Body][] = [
      ['system', { system: 'be long' }],
      ['tools', { tools: [{ ...weather, description: 'other' }] }],
      ['messages', { messages: [user('other words'), ...(second.messages as Blocks).slice(1)] }],
    ]
    for (const [name, change] of changes) {
      const broken = { ...second, ...change }
      t.match(await ask(emulator, broken), { status: 400, words: /prefix_binding_mismatch/ }, name)
      t.match(
        await ask(emulator, broken, {}, '/v1/messages/count_tokens'),
        { status: 400 },
        `${name}, counted`,
      )
      const dropped = await ask(emulator, { ...broken, thinking: { type: 'adaptive', ...drop } }, BINDING)
      t.equal(dropped.status, 200)
      t.strictSame(dropped.json.input_transformations, [
        { type: 'thinking_dropped', path: 'messages.1.content.0', reason: 'prefix_binding_mismatch' },
        { type: 'thinking_dropped', path: 'messages.1.content.1', reason: 'prefix_binding_mismatch' },
      ])
    }
    const unbound = opening('claude-opus-5', { system: 'be brief' })
    t.match(await ask(emulator, { ...next(unbound, await content(unbound)), system: 'be long' }), {
      status: 200,
    })
  })

  await t.test('takes redacted thinking back', async (t) => {
    const body = opening('claude-opus-5', { messages: [user('think redacted\ncall get_weather with {}')] })
    const blocks = await content(body)
    t.match(blocks, [{ type: 'redacted_thinking', data: /^E/ }, { type: 'tool_use' }])
    t.match(await ask(emulator, next(body, blocks)), { status: 200 })
    const broken = next(body, blocks, ([a, b]) => [{ ...a, data: `${a?.data}x` }, b] as Blocks)
    t.match(await ask(emulator, broken), { status: 400, words: /Invalid `data` in `redacted_thinking`/ })
  })
})
