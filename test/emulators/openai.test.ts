/** The emulated services of OpenAI, driven by the official SDK, by scripts and by a login. */
import OpenAI from 'openai'
import t from 'tap'
import { gate } from '../waiting.ts'
import { CHATGPT, emulate, LOGIN, onKey, onLogin, PUBLIC, tool, user } from './openai-requests.ts'
import { text } from './scene.ts'

t.test('the official SDK reads the emulator’s answers', async (t) => {
  const emulator = await emulate(t)
  const sdk = new OpenAI({ apiKey: 'sk-test', baseURL: emulator.keyBaseUrl, maxRetries: 0 })

  await t.test('the SDK reads a text, streamed and whole', async (t) => {
    const types: string[] = []
    let said = ''
    for await (const event of await sdk.responses.create({
      model: 'gpt-5.6-sol',
      input: 'say Grüße 👋 all',
      stream: true,
    })) {
      types.push(event.type)
      if (event.type === 'response.output_text.delta') said += event.delta
      if (event.type === 'response.completed') t.equal(event.response.output.length, 1)
    }
    t.equal(said, 'Grüße 👋 all')
    t.equal(types[0], 'response.created')
    t.equal(types.at(-1), 'response.completed')
    const whole = await sdk.responses.create({ model: 'gpt-5.6-sol', input: 'hello' })
    t.equal(whole.output_text, 'hello')
    t.ok((whole.usage?.input_tokens ?? 0) > 0)
  })

  await t.test('the SDK reads reasoning and parallel calls, and goes on with their results', async (t) => {
    const input: OpenAI.Responses.ResponseInputItem[] = [
      {
        role: 'user',
        content: 'think\ncall files__read with {"path":"a"}\ncall files__read with {"path":"b"}',
      },
    ]
    const request = {
      model: 'gpt-5.6-sol',
      store: false,
      include: ['reasoning.encrypted_content' as const],
      reasoning: { summary: 'auto' as const },
      tools: [{ ...tool(), type: 'function' as const, parameters: { type: 'object', properties: {} } }],
    }
    const first = await sdk.responses.create({ ...request, input })
    t.same(
      first.output.map(({ type }) => type),
      ['reasoning', 'function_call', 'function_call'],
    )
    for (const item of first.output) {
      if (item.type === 'reasoning') {
        // The SDK's type demands an id, the service without a store refuses one.
        const { id: _, ...own } = item
        input.push(own as OpenAI.Responses.ResponseReasoningItem)
      } else if (item.type === 'function_call') input.push(item)
    }
    for (const item of first.output) {
      if (item.type !== 'function_call') continue
      input.push({ type: 'function_call_output', call_id: item.call_id, output: `read ${item.arguments}` })
    }
    const second = await sdk.responses.create({ ...request, input })
    t.equal(second.output_text, 'The tools answered: read {"path":"a"} | read {"path":"b"}')
    const none = await sdk.responses.create({ ...request, tool_choice: 'none', input: 'call files__read' })
    t.same(
      none.output.map(({ type }) => type),
      ['message'],
    )
  })

  await t.test('the SDK reads errors of the request, of the key, and within a stream', async (t) => {
    const refused = sdk.responses.create({ model: 'gpt-5.6-sol', input: 'x', temperature: 1 })
    await t.rejects(refused, { status: 400, param: 'temperature', code: 'unsupported_parameter' })
    const stranger = new OpenAI({ apiKey: 'eyJ', baseURL: emulator.keyBaseUrl, maxRetries: 0 })
    await t.rejects(stranger.responses.create({ model: 'gpt-5.6-sol', input: 'x' }), {
      status: 401,
      code: 'invalid_api_key',
    })
    emulator.script(() => ({ ...text('half'), ending: { code: 'server_error', message: 'broke' }, after: 4 }))
    let last = ''
    const ids = new Set<string>()
    for await (const event of await sdk.responses.create({
      model: 'gpt-5.6-sol',
      input: 'x',
      stream: true,
    })) {
      if ('response' in event) ids.add(event.response.id)
      last = event.type === 'response.failed' ? `${event.type}: ${event.response.error?.message}` : event.type
    }
    t.equal(last, 'response.failed: broke')
    t.equal(ids.size, 1, 'all events have the same response id, up to the failure')
    emulator.script(() => ({ ...text('x'), ending: { code: 'server_is_overloaded', message: 'busy' } }))
    const stream = await sdk.responses.create({ model: 'gpt-5.6-sol', input: 'x', stream: true })
    const drained = async () => {
      for await (const _ of stream);
    }
    await t.rejects(drained(), { code: 'server_is_overloaded', message: 'busy' })
    await t.rejects(sdk.responses.create({ model: 'gpt-5.6-sol', input: 'x' }), {
      status: 500,
      code: 'server_is_overloaded',
    })
    emulator.script(() => ({
      status: 503,
      headers: { 'retry-after': '7' },
      body: { error: { code: 'slow_down' } },
    }))
    await t.rejects(sdk.responses.create({ model: 'gpt-5.6-sol', input: 'x' }), {
      status: 503,
      code: 'slow_down',
    })
    emulator.script(null)
    t.equal((await sdk.responses.create({ model: 'gpt-5.6-sol', input: 'again' })).output_text, 'again')
  })

  await t.test('the SDK reads the list of models', async (t) => {
    const ids: string[] = []
    for await (const { id } of sdk.models.list()) ids.push(id)
    t.same(ids, ['gpt-5.6-sol', 'gpt-4.1'])
  })
})

t.test('the scene language decides the stream', async (t) => {
  const emulator = await emulate(t)
  const said = async (words: string) => (await onKey(emulator, { ...PUBLIC, input: [user(words)] })).text()

  const slow = await said('slow 3 1')
  t.match(slow, /word1/)
  t.equal(slow.match(/event: response\.output_text\.delta/g)?.length, 3)
  t.match(await said('length\nsay cut'), /"incomplete_details":\{"reason":"max_output_tokens"\}/)
  t.match(await said('refuse'), /event: response\.refusal\.done/)
  t.match(await said('call nobody'), /There is no tool nobody/)
  await t.rejects(said('say x\ncut'), /terminated/)

  await t.test('a hanging stream ends when the caller leaves, and the emulator sees it', async (t) => {
    const controller = new AbortController()
    const at = emulator.requests.length
    const hanging = await fetch(`${emulator.keyBaseUrl}/responses`, {
      method: 'POST',
      signal: controller.signal,
      headers: { 'content-type': 'application/json', authorization: 'Bearer sk-test' },
      body: JSON.stringify({ ...PUBLIC, input: [user('say x\nhang')] }),
    })
    const reader = hanging.body?.getReader()
    await reader?.read()
    controller.abort()
    t.equal(await (await emulator.request(at)).closed, 'aborted')
  })

  await t.test('a script can hold a stream and cut its bytes anywhere', async (t) => {
    const { opened, open } = gate()
    emulator.script((_request, { user }) => ({
      items: [
        { type: 'text', text: `Zürich ${user}` },
        { type: 'wait', until: opened },
        { type: 'text', text: 'after' },
      ],
      chunk: 1,
    }))
    const response = await onKey(emulator, PUBLIC)
    const reader = response.body?.getReader()
    const decoder = new TextDecoder()
    let seen = ''
    while (!seen.includes('output_item.done'))
      seen += decoder.decode((await reader?.read())?.value, { stream: true })
    t.notMatch(seen, /after/)
    open()
    for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
      seen += decoder.decode(piece.value, { stream: true })
    }
    t.match(seen, /Zürich hi/)
    t.match(seen, /"after"/)
    emulator.script(null)
  })

  await t.test('a conversation’s former prompt counts as cached', async (t) => {
    const cached = async (input: unknown[]) => {
      const answer = await onKey(emulator, { ...PUBLIC, stream: false, prompt_cache_key: 'ses_1', input })
      const { usage } = (await answer.json()) as {
        usage: { input_tokens_details: { cached_tokens: number } }
      }
      return usage.input_tokens_details.cached_tokens
    }
    t.equal(await cached([user('one')]), 0)
    t.ok((await cached([user('one'), user('two')])) > 10)
  })
})

t.test('the ChatGPT path answers only logins, with events and models of its own', async (t) => {
  const emulator = await emulate(t)
  const answer = await (await onLogin(emulator, CHATGPT)).text()
  t.match(answer, /event: codex\.rate_limits\ndata: \{"type":"codex\.rate_limits"(?!.*sequence_number)/)
  t.match(answer, /event: keepalive/)
  t.match(answer, /"type":"response\.completed".*"output":\[\]/)
  const models = await fetch(`${emulator.chatgptBaseUrl}/models?client_version=1`, { headers: LOGIN })
  t.match(await models.json(), { models: [{ slug: 'gpt-5.6-sol' }, { slug: 'codex-auto-review' }] })
  const list = await fetch(`${emulator.chatgptBaseUrl}/models`)
  t.equal(list.status, 401)
  t.equal((await fetch(`${emulator.chatgptBaseUrl}/nothing`)).status, 404)

  for (const [what, headers] of [
    ['no account', { 'chatgpt-account-id': '' }],
    ['an organisation in place of a workspace', { 'chatgpt-account-id': 'org-1' }],
    ['no originator', { originator: '' }],
    ['no token', { authorization: '' }],
    ['an API key', { authorization: 'Bearer sk-1' }],
  ] as const) {
    const response = await onLogin(emulator, CHATGPT, headers)
    t.equal(response.status, 401, what)
    t.same(await response.json(), { detail: 'Unauthorized' })
  }
  emulator.revoke('login-token')
  const revoked = await onLogin(emulator, CHATGPT)
  t.equal(revoked.status, 401)
  t.match(await revoked.json(), { error: { code: 'token_invalidated' } })
})
