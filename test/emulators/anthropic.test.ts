/** The emulated Anthropic API, driven by the vendor's own SDK and by scripts. */
import Anthropic from '@anthropic-ai/sdk'
import t from 'tap'
import { EMPTY } from '../patterns.ts'
import { gate } from '../waiting.ts'
import { type AnthropicEmulator, anthropicError, anthropicFixture } from './anthropic.ts'
import { ask, base, emulate, KEY, OAUTH, TOKEN, VERSION, weather } from './anthropic-requests.ts'
import { calls, text } from './scene.ts'

const sdk = ({ url }: AnthropicEmulator, options: ConstructorParameters<typeof Anthropic>[0] = {}) =>
  new Anthropic({ baseURL: url, apiKey: KEY, maxRetries: 0, ...options })

t.test('the emulator answers the vendor’s SDK', async (t) => {
  const emulator = await emulate(t)
  const client = sdk(emulator)

  await t.test('the SDK streams text and reads the counted tokens', async (t) => {
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

  await t.test('a request without a stream gets one message', async (t) => {
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

  await t.test('the model calls tools in parallel and goes on after their results', async (t) => {
    const prompt = 'call get_weather with {"place":"Zürich"}\ncall get_weather with {}\nthen\nsay both done'
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: prompt }]
    const head = { model: 'claude-opus-5', max_tokens: 1000, tools: [weather] }
    const first = await client.messages.stream({ ...head, messages }).finalMessage()
    t.equal(first.stop_reason, 'tool_use')
    const uses = first.content.filter((block) => block.type === 'tool_use')
    t.match(uses, [{ input: { place: 'Zürich' } }, { input: EMPTY }])
    t.not(uses[0]?.id, uses[1]?.id)
    messages.push({ role: 'assistant', content: first.content as Anthropic.ContentBlockParam[] })
    messages.push({
      role: 'user',
      content: uses.map(({ id }) => ({ type: 'tool_result', tool_use_id: id, content: '15 °C' })),
    })
    const second = await client.messages.stream({ ...head, messages }).finalMessage()
    t.match(second.content, [{ type: 'text', text: 'both done' }])
  })

  await t.test('the model calls no tool with tool_choice none', async (t) => {
    const messages = [{ role: 'user' as const, content: 'call get_weather with {}' }]
    const none = {
      model: 'claude-opus-5',
      max_tokens: 1000,
      tools: [weather],
      tool_choice: { type: 'none' as const },
    }
    const { stop_reason } = await client.messages.stream({ ...none, messages }).finalMessage()
    t.equal(stop_reason, 'end_turn')
  })

  await t.test('the list of models names their kinds of thinking', async (t) => {
    const page = await client.models.list({ limit: 1000 })
    const opus = page.data.find(({ id }) => id === 'claude-opus-5-5')
    t.match(opus?.capabilities?.thinking.types, {
      adaptive: { supported: true },
      disabled: { supported: false },
    })
    t.equal(opus?.max_tokens, 128_000)
  })

  await t.test('a login is accepted with its beta', async (t) => {
    const login = sdk(emulator, { apiKey: null, authToken: TOKEN, defaultHeaders: OAUTH })
    const message = await login.messages.create({
      model: 'claude-sonnet-5',
      max_tokens: 100,
      messages: [{ role: 'user', content: 'hi' }],
    })
    t.match(message.content, [{ type: 'text', text: 'hi' }])
  })

  await t.test('thinking is shown as the model’s default and `display` say', async (t) => {
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

  await t.test('the cache has what an earlier request marked', async (t) => {
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

t.test('scripts and scenes decide the answers', async (t) => {
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
    await t.rejects(run(), { status: 429, type: 'rate_limit_error', message: /^429 / })
    emulator.script(() => anthropicError(529, 'overloaded_error', 'Overloaded'))
    await t.rejects(run(), { status: 529, message: /Overloaded/ })
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

  await t.test('a stream may be cut, end early, or be split anywhere', async (t) => {
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
    const streamed = await fetch(`${emulator.url}/v1/messages`, {
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
