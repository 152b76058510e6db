import { readdirSync, readFileSync } from 'node:fs'
import fc from 'fast-check'
import type {
  ResponseCreateParamsStreaming,
  ResponseInputItem,
  ResponseOutputMessage,
  ResponseReasoningItem,
} from 'openai/resources/responses/responses'
import t from 'tap'
import { chatgpt, openai } from '../../providers/openai/index.ts'
import { chatgptBody, publicBody } from '../../providers/openai/render.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import { createFold, fold } from '../../src/chat/fold.ts'
import type { MessageInput, Part, Provenance } from '../../src/chat/message.ts'
import { exposedName } from '../../src/chat/names.ts'
import { repair } from '../../src/chat/repair.ts'
import { BatonError } from '../../src/errors.ts'
import type {
  CredentialSecret,
  Deployment,
  ModelRequest,
  ModelSettings,
  ToolChoice,
  ToolDeclaration,
  UpstreamFailure,
} from '../../src/provider.ts'
import { createDecoder, type SseFrame } from '../../src/sse.ts'
import { createOpenAiEmulator } from '../emulators/openai.ts'
import { checkBody } from '../emulators/openai-check.ts'
import { calls, text } from '../emulators/scene.ts'

const FIXTURES = 'test/fixtures/openai'
const fixture = (name: string) => readFileSync(`${FIXTURES}/${name}`, 'utf8')

const MODEL = 'gpt-6-sol'
const origin: Provenance = { provider: 'openai', model: MODEL, credential_id: 'cred_1' }

function framesOf(stream: string): SseFrame[] {
  const frames: SseFrame[] = []
  const decoder = createDecoder((frame) => frames.push(frame))
  decoder.push(stream)
  decoder.end()
  return frames
}

function newParser(deployment: Deployment = chatgpt, provenance = origin) {
  let made = 0
  return deployment.parser({
    callId: (vendorId) => vendorId ?? `call_made${++made}`,
    toolName: (exposed) => exposed.replace('__', '.'),
    provenance,
  })
}

function parse(frames: readonly SseFrame[]): ModelEvent[] {
  const parser = newParser()
  return [...frames.flatMap((frame) => parser.push(frame)), ...parser.end()]
}

/** Frames from event objects, as the wire has them. */
const wire = (...events: Record<string, unknown>[]): SseFrame[] =>
  events.map((event) => ({ event: String(event.type), data: JSON.stringify(event), id: undefined }))

const finishOf = (events: readonly ModelEvent[]) => {
  const folding = createFold()
  for (const event of events) folding.add(event)
  return folding.finish()?.reason
}

const thrownBy = (run: () => unknown): BatonError | null => {
  try {
    run()
    return null
  } catch (thrown) {
    if (thrown instanceof BatonError) return thrown
    throw thrown
  }
}

t.test('a recorded stream becomes the parts of a message', async (t) => {
  const english = parse(framesOf(fixture('01-text.sse')))
  t.same(fold(english), [
    {
      type: 'text',
      text: 'The capital of France is **Paris**. Grüße! 👋',
      provenance: { ...origin, opaque: '{"phase":"final_answer"}' },
    },
  ])
  t.equal(english.filter(({ type }) => type === 'text.delta').length, 9, 'every delta is passed on')
  t.equal(finishOf(english), 'stop')

  const two = parse(framesOf(fixture('02-reasoning-two-tools.sse')))
  const parts = fold(two)
  t.match(parts, [
    {
      type: 'reasoning',
      text: '**Inspecting the config**\n\nI should read package.json and look for the entry point.\n\n**Planning parallel reads**\n\nBoth lookups are independent.',
      provenance: { ...origin, opaque: /"encrypted_content":"gAAAAABrAFMb8bf4/ },
    },
    {
      type: 'text',
      text: "I'll check the manifest and the imports.",
      provenance: { opaque: '{"phase":"commentary"}' },
    },
    {
      type: 'tool_call',
      call_id: 'call_q7ZkV2mXr0BfT9sLwYc3HnJd',
      name: 'read_file',
      arguments: { path: 'package.json' },
      provenance: origin,
    },
    { type: 'tool_call', name: 'grep' },
  ])
  t.equal(finishOf(two), 'tool_calls')
  t.same(
    two.filter(({ type }) => type === 'usage'),
    [
      {
        type: 'usage',
        usage: { input_tokens: 8210, output_tokens: 187, reasoning_tokens: 96, cached_tokens: 6912 },
      },
    ],
  )
  const streamed = two.map((event) => (event.type === 'reasoning.delta' ? event.text : '')).join('')
  t.equal(streamed, parts[0]?.type === 'reasoning' && parts[0].text, 'deltas and part agree on segments')
  const argued = two.map((event) =>
    event.type === 'tool_call.delta' && event.index === 2 ? event.arguments_delta : '',
  )
  t.equal(argued.join(''), '{"path":"package.json"}')

  const hosted = parse(framesOf(fixture('05-hosted-mcp-public-api-only.sse')))
  t.match(fold(hosted), [{ type: 'text', text: 'The spec supports **stdio** and **Streamable HTTP**.' }])
  t.equal(fold(hosted).length, 1, 'what the vendor ran itself leaves no call to run')
  t.equal(finishOf(hosted), 'stop')

  const filtered = parse(framesOf(fixture('03c-incomplete.sse')))
  t.equal(finishOf(filtered), 'refusal')
  t.match(fold(filtered), [{ type: 'reasoning', text: '' }])
})

t.test('a stream that fails says so in a code of the catalogue', async (t) => {
  const failure = (name: string) => thrownBy(() => parse(framesOf(fixture(name))))
  t.match(failure('03-midstream-failed.sse'), {
    code: 'upstream_overloaded',
    details: { upstream: { status: null, code: 'server_error' } },
  })
  t.match(failure('03b-overloaded-in-200.sse'), {
    code: 'upstream_overloaded',
    details: { upstream: { code: 'server_is_overloaded', message: /currently overloaded/ } },
  })
  t.match(failure('03d-eof-before-terminal.sse'), { code: 'upstream_disconnected' })
  t.match(failure('04-usage-limit-429.sse'), { code: 'upstream_disconnected' })
})

t.test('cut anywhere, a stream either ends well or throws: it never ends silently', async (t) => {
  for (const name of readdirSync(FIXTURES).filter((file) => file.endsWith('.sse'))) {
    const frames = framesOf(fixture(name))
    for (let count = 0; count <= frames.length; count++) {
      const error = thrownBy(() => {
        const reason = finishOf(parse(frames.slice(0, count)))
        if (!reason) throw new Error(`${name} cut at ${count} ended without a finish`)
      })
      if (error) t.match(error.code, /^upstream_/, `${name} cut at ${count}`)
    }
    const whole = fixture(name)
    const halves = framesOf(whole.slice(0, whole.length / 2))
    t.ok(halves.length <= frames.length)
  }
})

const item = (output_index: number, value: Record<string, unknown>) => ({
  type: 'response.output_item.done',
  output_index,
  item: value,
})
const added = (output_index: number, value: Record<string, unknown>) => ({
  ...item(output_index, value),
  type: 'response.output_item.added',
})
const completed = (response: Record<string, unknown> = {}) => ({
  type: 'response.completed',
  response: { status: 'completed', output: [], ...response },
})
const message = (words: string) => ({
  type: 'message',
  role: 'assistant',
  content: [{ type: 'output_text', text: words }],
})
const called = (call_id: string, args: string, more = {}) => ({
  type: 'function_call',
  call_id,
  name: 'files__read',
  arguments: args,
  ...more,
})

t.test('the quirks of the stream', async (t) => {
  const folded = (...events: Record<string, unknown>[]) => fold(parse(wire(...events)))

  await t.test('a finished item overrules its done event, and that its deltas', async (t) => {
    const at = { output_index: 0, content_index: 0 }
    const delta = { type: 'response.output_text.delta', ...at, delta: 'delt' }
    const done = { type: 'response.output_text.done', ...at, text: 'done' }
    t.match(folded(delta, done, item(0, message('item')), completed()), [{ text: 'item' }])
    t.match(folded(delta, done, completed()), [{ text: 'done' }])
    t.match(folded(delta, completed()), [{ text: 'delt' }])
    t.match(folded(delta, completed({ output: [message('output')] })), [{ text: 'output' }])
    t.match(folded(completed({ output: [message('only at the end')] })), [{ text: 'only at the end' }])
    t.match(folded(item(0, message('kept')), completed({ output: [message('late')] })), [{ text: 'kept' }])
    t.same(folded(completed()), [], 'an empty answer is an answer')
  })

  await t.test('parallel calls may interleave, and deltas may be absent', async (t) => {
    const delta = (output_index: number, text: string) => ({
      type: 'response.function_call_arguments.delta',
      output_index,
      delta: text,
      obfuscation: 'zzzz',
    })
    const events = parse(
      wire(
        added(1, called('call_b', '')),
        added(0, called('call_a', '')),
        delta(0, '{"n"'),
        delta(1, '{"n":2}'),
        delta(0, ':1}'),
        item(1, called('call_b', '{"n":2}', { status: 'completed' })),
        item(0, called('call_a', '{"n":1}', { status: 'completed' })),
        item(2, called('call_c', '')),
        completed(),
      ),
    )
    t.match(fold(events), [
      { call_id: 'call_a', name: 'files.read', arguments: { n: 1 } },
      { call_id: 'call_b', arguments: { n: 2 } },
      { call_id: 'call_c', arguments: {} },
    ])
    t.equal(finishOf(events), 'tool_calls')
    t.notMatch(JSON.stringify(events), /zzzz/)
  })

  await t.test('items are found by id where a relay lost their index', async (t) => {
    const at = { item_id: 'msg_1' }
    t.match(
      folded(
        { type: 'response.output_item.added', item: { ...message(''), id: 'msg_1', content: [] } },
        { type: 'response.output_text.delta', ...at, delta: 'a' },
        { type: 'response.output_text.delta', ...at, delta: 'b' },
        completed(),
      ),
      [{ text: 'ab' }],
    )
  })

  await t.test('a call is unfinished unless the response is complete', async (t) => {
    const events = [
      added(0, called('call_a', '', { status: 'in_progress' })),
      { type: 'response.function_call_arguments.delta', output_index: 0, delta: '{"n":1}' },
    ]
    const cut = {
      type: 'response.incomplete',
      response: { incomplete_details: { reason: 'max_output_tokens' } },
    }
    t.match(folded(...events, completed()), [{ arguments: { n: 1 } }])
    t.match(folded(...events, cut), [{ arguments: {}, arguments_text: '{"n":1}' }], 'it is not run')
    t.equal(finishOf(parse(wire(...events, cut))), 'length')
    t.same(folded(added(0, called('call_a', '')), cut), [], 'cut before its first argument it is nothing')
    const broken = item(0, called('call_a', '{"n":', { status: 'completed' }))
    t.match(folded(broken, completed()), [{ arguments: {}, arguments_text: '{"n":' }])
    const nameless = { type: 'response.function_call_arguments.done', output_index: 0, arguments: '{}' }
    t.same(folded(nameless, completed()), [])
  })

  await t.test('a refusal is text and a finish reason', async (t) => {
    const events = parse(
      wire(
        { type: 'response.refusal.delta', output_index: 0, content_index: 0, delta: 'No' },
        item(0, { type: 'message', content: [{ type: 'refusal', refusal: 'No.' }] }),
        completed(),
      ),
    )
    t.match(fold(events), [{ type: 'text', text: 'No.' }])
    t.equal(events[0]?.type, 'text.delta')
    t.equal(finishOf(events), 'refusal')
  })

  await t.test("a relay's response.done is told by its status", async (t) => {
    const end = (response: Record<string, unknown>) => wire({ type: 'response.done', response })
    t.equal(finishOf(parse(end({}))), 'stop')
    t.equal(finishOf(parse(end({ status: 'incomplete' }))), 'length')
    t.match(
      thrownBy(() => parse(end({ status: 'failed', error: { code: 'invalid_prompt' } }))),
      { code: 'upstream_rejected' },
    )
  })

  await t.test('a type may stand in the event line only, and unknown ones pass', async (t) => {
    const frames: SseFrame[] = [
      { event: undefined, data: '', id: undefined },
      { event: undefined, data: '[DONE]', id: undefined },
      ...wire({ type: 'response.teleported', output_index: 0 }, { type: 'keepalive' }),
      ...wire({ type: 'response.custom_tool_call_input.delta', output_index: 0, delta: 'x' }),
      ...wire(item(0, { type: 'custom_tool_call', call_id: 'c', name: 'x', input: 'y' })),
      { event: 'response.completed', data: '{"response":{}}', id: undefined },
      ...wire(item(1, message('after the end'))),
    ]
    const events = parse(frames)
    t.same(events, [{ type: 'finish', reason: 'stop' }])
  })

  await t.test('an image that the vendor made is a part', async (t) => {
    const made = { type: 'image_generation_call', status: 'completed', output_format: 'webp', result: 'AAAA' }
    t.same(folded(item(0, made), completed()), [{ type: 'image', media_type: 'image/webp', data: 'AAAA' }])
  })

  await t.test('raw reasoning of an open-weight model is shown, and nothing of it goes back', async (t) => {
    const delta = { type: 'response.reasoning_text.delta', output_index: 0, content_index: 0, delta: 'hm' }
    const whole = { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'hmm' }] }
    const events = parse(wire(delta, item(0, whole), completed()))
    t.same(events[0], { type: 'reasoning.delta', index: 0, text: 'hm' })
    t.same(fold(events), [{ type: 'reasoning', text: 'hmm', provenance: origin }])
  })

  await t.test('errors inside the stream have two shapes', async (t) => {
    const flat = { type: 'error', code: 'rate_limit_exceeded', message: 'Please try again in 1.5s.' }
    t.match(
      thrownBy(() => parse(wire(flat))),
      { code: 'upstream_rate_limited', retryAfter: 2 },
    )
    const relayed = JSON.parse(fixture('04b-usage-limit-ws-frame.json')) as Record<string, unknown>
    t.match(
      thrownBy(() => parse(wire(relayed))),
      { code: 'upstream_rate_limited', retryAfter: 5413, details: { upstream: { status: 429 } } },
    )
    t.match(
      thrownBy(() => parse([{ event: 'x', data: '{"type":', id: undefined }])),
      { code: 'upstream_disconnected' },
    )
  })
})

const declared = (canonical: string, parameters = {}): ToolDeclaration => ({
  name: exposedName(canonical),
  canonical_name: canonical,
  description: `Does ${canonical}`,
  parameters: { type: 'object', properties: {}, ...parameters },
})
const TOOLS = [declared('files.read'), declared('files.write')]

function requestFor(deployment: Deployment, change: Partial<ModelRequest> = {}): ModelRequest {
  const model = change.model ?? MODEL
  return {
    model,
    instructions: 'Be brief.',
    messages: [{ role: 'user', parts: [{ type: 'text', text: 'hi' }] }],
    tools: [],
    settings: {},
    session_id: 'ses_1',
    follow_up: false,
    capabilities: deployment.capabilities(model),
    credential: { id: 'cred_1', account_id: 'acc-1' },
    options: { system_blocks: [], headers: {}, dual_declarations: false },
    ...change,
  }
}

/** The history as the engine would hand it to this deployment. */
function repaired(
  deployment: Deployment,
  history: readonly MessageInput[],
  model = MODEL,
  credential_id = 'cred_1',
) {
  const target = { provider: 'openai', model, credential_id, ...deployment.capabilities(model) }
  return repair(history, target).messages
}

/**
 * The SDK's own types, but for the fields that a stateless caller must leave out (wire/openai.md 4): the
 * SDK demands `id` and `status` of the items that it once answered with.
 */
type Sendable =
  | ResponseInputItem
  | Omit<ResponseReasoningItem, 'id'>
  | Omit<ResponseOutputMessage, 'id' | 'status'>
type SdkBody = Omit<ResponseCreateParamsStreaming, 'input'> & { input: Sendable[] }

t.test('a request takes the shape that the path accepts', async (t) => {
  const settings: ModelSettings = {
    temperature: 0.5,
    top_p: 0.9,
    max_output_tokens: 5,
    reasoning: { effort: 'minimal' },
    tool_choice: { name: 'files.read' },
  }
  const change = { settings, tools: TOOLS, instructions: '' }

  await t.test('with a key', async (t) => {
    const { body, notes } = publicBody(requestFor(openai, change))
    const typed: SdkBody = body
    t.same(typed, {
      model: MODEL,
      input: [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: 'hi' }] }],
      tools: TOOLS.map(({ name, description, parameters }) => ({
        type: 'function',
        name,
        description,
        strict: false,
        parameters,
      })),
      tool_choice: { type: 'function', name: 'files__read' },
      reasoning: { effort: 'low', summary: 'auto' },
      include: ['reasoning.encrypted_content'],
      store: false,
      stream: true,
      prompt_cache_key: 'ses_1',
      max_output_tokens: 16,
    })
    t.same(
      notes.map((note) => note.split(':')[0]),
      ['reasoning.effort', 'temperature', 'top_p', 'max_output_tokens'],
    )
    const { headers, path, method } = openai.render(requestFor(openai, change))
    t.same(
      { headers, path, method },
      { headers: { accept: 'text/event-stream' }, path: '/responses', method: 'POST' },
    )

    const plain = publicBody(requestFor(openai, { ...change, model: 'gpt-4.1', tools: [] }))
    t.match(plain.body, { temperature: 0.5, top_p: 0.9 })
    t.same(
      plain.notes.map((note) => note.split(':')[0]),
      ['tool_choice', 'reasoning.effort', 'max_output_tokens'],
    )
    for (const field of ['reasoning', 'include', 'tools', 'tool_choice', 'instructions']) {
      t.notOk(field in plain.body, `${field} is left out`)
    }
  })

  await t.test('with a ChatGPT login', async (t) => {
    const { body, notes } = chatgptBody(requestFor(chatgpt, change))
    const typed: SdkBody = body
    t.match(typed, { instructions: 'You are a helpful assistant.', parallel_tool_calls: true, store: false })
    t.same(
      notes.map((note) => note.split(':')[0]),
      ['reasoning.effort', 'instructions', 'temperature', 'top_p', 'max_output_tokens'],
    )
    const follow = (settings: ModelSettings) =>
      chatgptBody(requestFor(chatgpt, { tools: TOOLS, follow_up: true, settings })).body.parallel_tool_calls
    t.equal(follow({}), false)
    t.equal(follow({ parallel_tool_calls: true }), true)
    t.same(chatgpt.render(requestFor(chatgpt)).headers, {
      accept: 'text/event-stream',
      'chatgpt-account-id': 'acc-1',
      originator: 'baton',
      'openai-beta': 'responses=experimental',
      'session-id': 'ses_1',
      'thread-id': 'ses_1',
      session_id: 'ses_1',
    })
  })

  await t.test("the operator's blocks lead, and his headers overrule", async (t) => {
    const options = {
      system_blocks: ['First.'],
      headers: { Version: '0.169.0', Originator: 'mine' },
      dual_declarations: false,
    }
    const rendered = chatgpt.render(
      requestFor(chatgpt, {
        options,
        credential: { id: null, account_id: 'org-1' },
        session_id: 's'.repeat(80),
      }),
    )
    t.equal(rendered.body.instructions, 'First.\n\nBe brief.')
    t.match(rendered.headers, { version: '0.169.0', originator: 'mine' })
    t.notOk('chatgpt-account-id' in rendered.headers, 'an organisation is no workspace')
    t.equal(String(rendered.body.prompt_cache_key).length, 64)
  })

  await t.test('a choice that cannot be met is left out and told', async (t) => {
    const note = (change: Partial<ModelRequest>) => {
      const { body, notes } = publicBody(requestFor(openai, change))
      return [body.tool_choice, notes]
    }
    t.same(note({ settings: { tool_choice: 'required' } }), [undefined, ['tool_choice: no tool is declared']])
    t.same(note({ settings: { tool_choice: { name: 'a.b' } }, tools: TOOLS }), [
      undefined,
      ['tool_choice: tool a.b is not declared'],
    ])
    t.same(note({ settings: { tool_choice: 'required' }, tools: TOOLS }), ['required', []])
    t.same(note({ settings: { tool_choice: 'none' }, tools: TOOLS }), ['none', []])
    t.same(note({ settings: { tool_choice: 'none' } }), [undefined, []])
    const capabilities = { ...openai.capabilities(MODEL), forcedToolChoice: false }
    t.same(note({ settings: { tool_choice: 'required' }, tools: TOOLS, capabilities }), [
      undefined,
      [`tool_choice: not accepted by ${MODEL}`],
    ])
  })

  await t.test('content of every kind', async (t) => {
    const data = 'QUJD'
    const { body } = publicBody(
      requestFor(openai, {
        messages: [
          { role: 'system', parts: [{ type: 'text', text: 'Mind the gap.' }] },
          {
            role: 'user',
            parts: [
              { type: 'image', media_type: 'image/png', data },
              { type: 'image', media_type: 'image/png', url: 'https://x.test/a.png' },
              { type: 'image', media_type: 'image/svg+xml', data, name: 'a.svg' },
              { type: 'file', media_type: 'application/pdf', data },
              { type: 'file', media_type: 'text/x-c++', data },
              { type: 'file', media_type: 'application/pdf', url: 'https://x.test/a.pdf' },
              { type: 'image', media_type: 'image/jpg', data },
              { type: 'file', media_type: 'image/png', data, name: 'a.png' },
              { type: 'file', media_type: 'application/zip', data, name: 'a.zip' },
              { type: 'file', media_type: 'video/mp4', data },
            ],
          },
        ],
      }),
    )
    const typed: SdkBody = body
    t.same(typed.input, [
      { type: 'message', role: 'developer', content: [{ type: 'input_text', text: 'Mind the gap.' }] },
      {
        type: 'message',
        role: 'user',
        content: [
          { type: 'input_image', image_url: 'data:image/png;base64,QUJD', detail: 'auto' },
          { type: 'input_image', image_url: 'https://x.test/a.png', detail: 'auto' },
          { type: 'input_text', text: '[image a.svg, image/svg+xml: not shown to this model]' },
          { type: 'input_file', filename: 'file.pdf', file_data: 'data:application/pdf;base64,QUJD' },
          { type: 'input_file', filename: 'file.txt', file_data: 'data:text/x-c++;base64,QUJD' },
          { type: 'input_file', file_url: 'https://x.test/a.pdf' },
          { type: 'input_image', image_url: 'data:image/jpeg;base64,QUJD', detail: 'auto' },
          { type: 'input_image', image_url: 'data:image/png;base64,QUJD', detail: 'auto' },
          { type: 'input_text', text: '[file a.zip, application/zip: not shown to this model]' },
          { type: 'input_text', text: '[file, video/mp4: not shown to this model]' },
        ],
      },
    ])
  })

  await t.test('results tell what became of the call', async (t) => {
    const outcomes = ['ok', 'error', 'cancelled', 'denied', 'outcome_unknown'] as const
    const parts: Part[] = outcomes.map((outcome) => ({
      type: 'tool_result',
      call_id: outcome,
      name: 'files__read',
      content: outcome === 'cancelled' ? [] : [{ type: 'text', text: 'words' }],
      is_error: outcome !== 'ok',
      outcome,
    }))
    const odd: Part[] = [
      { type: 'tool_result', call_id: 'flag', name: 'x', content: [], is_error: true, outcome: 'ok' },
      {
        type: 'tool_result',
        call_id: 'data',
        name: 'x',
        content: [],
        structured: { a: 1 },
        is_error: false,
        outcome: 'ok',
      },
      { type: 'tool_result', call_id: 'none', name: 'x', content: [], is_error: false, outcome: 'ok' },
      {
        type: 'tool_result',
        call_id: 'image',
        name: 'x',
        content: [
          { type: 'text', text: 'see' },
          { type: 'image', media_type: 'image/png', data: 'QUJD' },
        ],
        is_error: false,
        outcome: 'ok',
      },
      {
        type: 'tool_result',
        call_id: 'both',
        name: 'x',
        content: [{ type: 'image', media_type: 'image/png', data: 'QUJD' }],
        structured: { a: 1 },
        is_error: false,
        outcome: 'ok',
      },
    ]
    const { body } = publicBody(
      requestFor(openai, { messages: [{ role: 'tool', parts: [...parts, ...odd] }] }),
    )
    const outputs = body.input.map((item) => (item.type === 'function_call_output' ? item.output : null))
    t.same(outputs, [
      'words',
      '[The tool call failed]\nwords',
      '[The tool call was cancelled]',
      '[The tool call was denied]\nwords',
      '[The outcome of the tool call is unknown]\nwords',
      '[The tool call failed]',
      '{"a":1}',
      '(no output)',
      [
        { type: 'input_text', text: 'see' },
        { type: 'input_image', image_url: 'data:image/png;base64,QUJD', detail: 'auto' },
      ],
      [
        { type: 'input_image', image_url: 'data:image/png;base64,QUJD', detail: 'auto' },
        { type: 'input_text', text: '{"a":1}' },
      ],
    ])
  })
})

t.test('what OpenAI made goes back as it came', async (t) => {
  const stream = fixture('02-reasoning-two-tools.sse')
  const parts = fold(parse(framesOf(stream)))
  const history: MessageInput[] = [
    { role: 'user', parts: [{ type: 'text', text: 'Look.' }] },
    { role: 'assistant', parts },
  ]
  // The items as the vendor sent them, without what it refuses to read again.
  const sent = framesOf(stream)
    .map(({ data }) => JSON.parse(data) as { type: string; item?: Record<string, unknown> })
    .filter(({ type }) => type === 'response.output_item.done')
    .map(({ item = {} }) => {
      const { id: _id, status: _status, ...rest } = item
      return JSON.parse(JSON.stringify(rest).replaceAll(',"logprobs":[]', '')) as unknown
    })
  const rendered = (model: string, credential = 'cred_1') => {
    const messages = repaired(chatgpt, history, model, credential)
    return chatgptBody(requestFor(chatgpt, { model, messages })).body.input
  }
  t.same(rendered(MODEL).slice(1, 5), sent, 'reasoning in its segments, phases, calls: all unchanged')
  t.equal(rendered(MODEL).length, 7, 'and both calls are answered')
  for (const elsewhere of [rendered('gpt-5.6-sol'), rendered(MODEL, 'cred_2')]) {
    t.same(
      elsewhere.map(({ type }) => type),
      [
        'message',
        'message',
        'function_call',
        'function_call',
        'function_call_output',
        'function_call_output',
      ],
      'another model or account sees the words only',
    )
    t.notOk(JSON.stringify(elsewhere).includes('phase'))
  }

  await t.test(
    'an edited summary is one segment, and reasoning that nothing follows stays here',
    async (t) => {
      const [reasoning] = parts
      if (reasoning?.type !== 'reasoning') throw new Error('the fixture begins with reasoning')
      const input = (...own: Part[]) =>
        chatgptBody(requestFor(chatgpt, { messages: [{ role: 'assistant', parts: own }] })).body.input
      const answer: Part = { type: 'text', text: 'So.' }
      t.match(input({ ...reasoning, text: 'edited' }, answer)[0], {
        summary: [{ type: 'summary_text', text: 'edited' }],
      })
      t.same(input(reasoning), [])
      t.equal(input(answer, reasoning).length, 1)
      const empty = {
        ...reasoning,
        text: '',
        provenance: { ...origin, opaque: '{"encrypted_content":"gA","segments":[]}' },
      }
      t.same(input(empty, answer)[0], { type: 'reasoning', summary: [], encrypted_content: 'gA' })
      t.equal(input({ ...reasoning, provenance: { ...origin, opaque: 'not ours' } }, answer).length, 1)
    },
  )
})

/** Any history a person could put together: ids repeated, results astray, empty texts, tokens of others. */
const histories = (() => {
  const words = fc.constantFrom('', ' ', 'hello', 'ü👋', '{"a":1}', 'half \ud83d')
  const own = JSON.stringify({ encrypted_content: 'own', segments: [5] })
  const provenance = fc.constantFrom<Provenance>(
    { ...origin, opaque: own },
    { ...origin, opaque: '{"phase":"commentary"}' },
    { ...origin, model: 'gpt-5.5', opaque: own.replace('own', 'foreign') },
    { ...origin, credential_id: 'cred_2', opaque: own.replace('own', 'foreign') },
    { provider: 'anthropic', model: 'm', credential_id: null, opaque: 'sig' },
  )
  const id = fc.constantFrom('call_1', 'call_2', 'toolu_x:1', 'c'.repeat(90), '')
  const name = fc.constantFrom('files.read', 'a.b.c', 'ünï.cødé', `long.${'x'.repeat(80)}`)
  const media = fc.record({
    type: fc.constantFrom('image' as const, 'audio' as const, 'file' as const),
    media_type: fc.constantFrom('image/png', 'image/svg+xml', 'audio/wav', 'application/pdf'),
    data: fc.constant('QUJD'),
  })
  const plain = fc.record({ type: fc.constant('text' as const), text: words })
  const part: fc.Arbitrary<Part> = fc.oneof(
    plain,
    fc.record({ type: fc.constant('text' as const), text: words, provenance }),
    fc.record({ type: fc.constant('reasoning' as const), text: words, provenance }),
    fc.record({
      type: fc.constant('tool_call' as const),
      call_id: id,
      name,
      arguments: fc.constantFrom({}, { a: 1 }, { '\udc4b': 'half \ud83d' }),
    }),
    fc.record({
      type: fc.constant('tool_result' as const),
      call_id: id,
      name,
      content: fc.array(fc.oneof(plain, media), { maxLength: 3 }),
      is_error: fc.boolean(),
      outcome: fc.constantFrom('ok' as const, 'error' as const, 'denied' as const),
    }),
    media,
    fc.record({ type: fc.constant('notice' as const), text: words }),
  )
  const role = fc.constantFrom('user' as const, 'assistant' as const, 'tool' as const, 'system' as const)
  return fc.array(fc.record({ role, parts: fc.array(part, { maxLength: 5 }) }), { maxLength: 8 })
})()

t.test('any history renders into what the services accept', async (t) => {
  const settings: fc.Arbitrary<ModelSettings> = fc.record(
    {
      temperature: fc.constant(1),
      max_output_tokens: fc.integer({ min: 1, max: 9000 }),
      reasoning: fc.record({
        effort: fc.constantFrom('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'),
      }),
      tool_choice: fc.constantFrom<ToolChoice>(
        'auto',
        'none',
        'required',
        { name: 'files.read' },
        { name: 'x.y' },
      ),
      parallel_tool_calls: fc.boolean(),
    },
    { requiredKeys: [] },
  )
  const models = fc.constantFrom(
    MODEL,
    'gpt-5',
    'gpt-5.1',
    'gpt-4.1',
    'gpt-6-astra',
    'o3',
    'ft:gpt-4o-mini:o::1',
  )
  const cases = fc.record({
    history: histories,
    settings,
    model: models,
    tools: fc.constantFrom([], TOOLS),
    follow_up: fc.boolean(),
  })
  for (const deployment of [openai, chatgpt]) {
    fc.assert(
      fc.property(cases, ({ history, model, ...change }) => {
        const messages = repaired(deployment, history, model)
        const { body } = deployment.render(requestFor(deployment, { ...change, model, messages }))
        checkBody(JSON.parse(JSON.stringify(body)), {
          chatgpt: deployment.id === 'chatgpt',
          verify: (token) => token === 'own' && model === MODEL,
        })
      }),
      { numRuns: 300, seed: 7 },
    )
  }
  t.pass()
})

t.test('failures become codes of the catalogue', async (t) => {
  const limit = JSON.parse(fixture('04-usage-limit-429.headers.json')) as { headers: Record<string, string> }
  const json = (error: unknown) => JSON.stringify({ error })
  const rows: [
    status: number,
    body: string,
    code: string,
    says?: RegExp,
    headers?: Record<string, string>,
  ][] = [
    [
      400,
      '{"detail":"Unsupported parameter: temperature"}',
      'upstream_rejected',
      /Unsupported parameter: temp/,
    ],
    [
      400,
      '{"detail":"The \'gpt-x\' model is not supported when using Codex"}',
      'upstream_rejected',
      /cannot use this model/,
    ],
    [400, '{"detail":"The model requires a newer version of Codex."}', 'upstream_rejected', /`version`/],
    [404, json({ message: 'Model not found gpt-x' }), 'upstream_rejected', /cannot use this model/],
    [
      400,
      json({ code: 'invalid_function_parameters', message: 'bad' }),
      'upstream_rejected',
      /refused the request/,
    ],
    [400, json({ code: 'cyber_policy', message: 'no' }), 'upstream_rejected', /policy/],
    [400, json({ code: 'invalid_image_url', message: 'no' }), 'upstream_rejected', /image/],
    [400, json({ code: 'context_length_exceeded', message: 'x' }), 'context_too_long'],
    [400, json({ message: "This model's maximum context length is 9 tokens." }), 'context_too_long'],
    [401, json({ code: 'token_invalidated', message: 'again' }), 'upstream_auth'],
    [401, '{"detail":"Unauthorized"}', 'upstream_auth', /Unauthorized/],
    [402, '{"detail":{"code":"deactivated_workspace"}}', 'upstream_rejected', /deactivated/],
    [403, '<!DOCTYPE html><title>Just a moment...</title>', 'upstream_rejected', /edge .* Just a moment/],
    [403, 'blocked', 'upstream_rejected', /edge/, { 'cf-mitigated': 'challenge' }],
    [403, json({ code: 'unsupported_country_region_territory' }), 'upstream_rejected', /region/],
    [
      403,
      json({ message: 'You have insufficient permissions' }),
      'upstream_auth',
      /insufficient permissions/,
    ],
    [403, '{"detail":"Forbidden"}', 'upstream_auth', /Forbidden/],
    [403, 'Unknown error', 'upstream_rejected', /Unknown error/],
    [403, '{"success":false}', 'upstream_rejected'],
    [403, '{"message":"Forbidden"}', 'upstream_rejected', /Forbidden/],
    [
      403,
      json({ code: 'model_not_found', message: 'Project `p` does not have access to model `gpt-x`' }),
      'upstream_rejected',
      /cannot use this model/,
    ],
    [
      413,
      '<html><title>413 Request Entity Too Large</title></html>',
      'context_too_long',
      /request is too large/,
    ],
    [429, '<html><title>Too many requests</title></html>', 'upstream_rate_limited'],
    [404, json({ message: "Item with id 'rs_1' not found." }), 'upstream_rejected', /refused the request/],
    [413, '', 'context_too_long', /too large/],
    [429, json({ type: 'insufficient_quota', code: 'insufficient_quota' }), 'upstream_rejected', /quota/],
    [429, json({ type: 'usage_not_included' }), 'upstream_rejected', /plan/],
    [429, json({ type: 'tokens', code: 'rate_limit_exceeded', message: 'x' }), 'upstream_rate_limited'],
    [429, 'slow down please', 'upstream_rate_limited', /slow down please/],
    [408, '', 'upstream_timeout'],
    [500, json({ type: 'server_error', message: 'oops' }), 'upstream_overloaded', /oops/],
    [502, '<html><title>Bad gateway</title></html>', 'upstream_overloaded', /Bad gateway/],
    [503, json({ code: 'slow_down' }), 'upstream_overloaded'],
    [504, '', 'upstream_timeout'],
    [200, '<html>', 'upstream_rejected', /edge/],
    [200, json({ type: 'usage_limit_reached' }), 'upstream_rate_limited'],
    [400, JSON.stringify({ error: 'just words' }), 'upstream_rejected', /just words/],
    [
      400,
      fixture('05b-hosted-mcp-on-chatgpt-path-400.json'),
      'upstream_rejected',
      /Unsupported tool type: mcp/,
    ],
  ]
  for (const [status, body, code, says = /./, headers = {}] of rows) {
    const error = openai.classify({ status, body, headers })
    t.equal(error.code, code, `${status} ${body.slice(0, 60)}`)
    t.match(error.message, says)
    t.match(error.details, { upstream: { status } })
  }
  const inStream = (error: Record<string, unknown>) =>
    thrownBy(() => parse(wire({ type: 'response.failed', response: { status: 'failed', error } })))?.code
  t.equal(inStream({ code: 'context_length_exceeded' }), 'context_too_long')
  t.equal(inStream({ code: 'insufficient_quota' }), 'upstream_rejected')
  t.equal(inStream({ code: 'vector_store_timeout' }), 'upstream_timeout')
  t.equal(inStream({ code: 'image_too_large' }), 'upstream_rejected')
  t.equal(inStream({ code: 'whatever_comes' }), 'upstream_overloaded')

  await t.test('with the wait that the vendor names', async (t) => {
    const date = 'Sat, 21 Nov 2026 12:00:00 GMT'
    const wait = (headers: Record<string, string>, error: Record<string, unknown> = {}) =>
      chatgpt.classify({ status: 429, headers, body: json(error) }).retryAfter
    const usage = { type: 'usage_limit_reached' }
    t.equal(
      chatgpt.classify({ status: 429, headers: limit.headers, body: fixture('04-usage-limit-429.body.json') })
        .retryAfter,
      5413,
    )
    t.equal(wait({ date }, { ...usage, resets_at: Date.parse(date) / 1000 + 90 }), 90)
    t.equal(wait(limit.headers, usage), 5413, 'of the window that is used up')
    t.equal(wait({ ...limit.headers, 'x-codex-secondary-used-percent': '100' }, usage), 301200)
    t.equal(wait({ 'retry-after-ms': '1500' }), 2)
    t.equal(wait({ 'retry-after': '12' }), 12)
    t.equal(wait({ 'retry-after': 'Sat, 21 Nov 2026 12:00:30 GMT', date }), 30)
    t.equal(wait({}, { message: 'Please try again in 6m0s.' }), 360)
    t.equal(wait({}, { message: 'Please try again in 20ms.' }), 1)
    t.equal(wait({ 'x-codex-primary-reset-after-seconds': '7200' }), 5, "a short limit is not the plan's")
    t.equal(openai.classify({ status: 503, headers: { 'retry-after': '9' }, body: '' }).retryAfter, 9)
    t.equal(openai.classify({ status: 503, headers: {}, body: '' }).retryAfter, undefined)
    t.equal(openai.classify({ status: 400, headers: { 'retry-after': '9' }, body: '' }).retryAfter, undefined)
  })

  await t.test('and never a secret', async (t) => {
    const message =
      'Key sk-proj-abc123 and eyJhbGciOi.eyJz.sig and gAAAAABr-x were wrong; Bearer abc.def too.'
    const error = openai.classify({ status: 401, headers: {}, body: json({ message }) })
    t.equal(
      error.details?.upstream && (error.details.upstream as { message: string }).message,
      'Key *** and *** and *** were wrong; *** too.',
    )
    t.notMatch(error.message, /abc123|eyJ|gAAAA|abc\.def/)
  })
})

t.test('a refused request may be sent once more without what was refused', async (t) => {
  const parts: Part[] = [
    {
      type: 'reasoning',
      text: 'hm',
      provenance: { ...origin, opaque: '{"encrypted_content":"gA","segments":[2]}' },
    },
    { type: 'text', text: 'So.' },
  ]
  const alone: MessageInput = { role: 'assistant', parts: parts.slice(0, 1) }
  const request = requestFor(openai, { messages: [{ role: 'assistant', parts }, alone] })
  const failed = (error: Record<string, unknown>, status = 400): UpstreamFailure => ({
    status,
    headers: {},
    body: JSON.stringify({ error }),
  })
  for (const failure of [
    failed({ code: 'invalid_encrypted_content' }),
    failed({ message: 'The encrypted content gAAA could not be verified.' }),
    failed({ message: "Item with id 'rs_1' not found. Items are not persisted when `store` is false." }, 404),
  ]) {
    const again = openai.repair?.(failure, request)
    t.same(again?.messages, [{ role: 'assistant', parts: parts.slice(1) }])
    t.equal(again && openai.repair?.(failure, again), null, 'once')
  }
  const unverified = failed({
    param: 'reasoning.summary',
    code: 'unsupported_value',
    message: 'must be verified',
  })
  const quiet = openai.repair?.(unverified, request)
  t.match(quiet && publicBody(quiet).body, { reasoning: undefined, include: ['reasoning.encrypted_content'] })
  t.equal(quiet && openai.repair?.(unverified, quiet), null, 'once')
  const limited = (max_output_tokens: number, message: string) => {
    const wish = requestFor(openai, { settings: { max_output_tokens, temperature: 1 } })
    const again = openai.repair?.(failed({ param: 'max_output_tokens', message }), wish)
    return again?.settings
  }
  const above = 'integer above maximum value. Expected a value <= 16384, but got 128000 instead.'
  t.same(limited(128_000, above), { temperature: 1, max_output_tokens: 16_384 })
  t.same(limited(128_000, 'This model supports at most 4096 completion tokens.')?.max_output_tokens, 4096)
  t.same(limited(128_000, 'Too large.'), { temperature: 1 })
  t.equal(openai.repair?.(failed({ param: 'max_output_tokens' }), request), null)
  t.equal(openai.repair?.(failed({ code: 'invalid_value' }), request), null)
  t.equal(openai.repair?.(failed({ code: 'server_error' }, 500), request), null)
})

t.test('what a model accepts is looked up by its family', async (t) => {
  const kinds = (deployment: Deployment, model: string) =>
    [...deployment.capabilities(model).userMedia].join()
  for (const [model, sampling, media] of [
    ['gpt-6-sol', false, 'image,file'],
    ['gpt-5.6-sol', false, 'image,file'],
    ['gpt-5-chat-latest', true, 'image,file'],
    ['gpt-4.1-mini', true, 'image,file'],
    ['ft:gpt-4o-2024-08-06:org::1', true, 'image,file'],
    ['gpt-4', true, 'file'],
    ['o3-mini', false, 'file'],
    ['o3', false, 'image,file'],
    ['something-new', false, 'image,file'],
  ] as const) {
    t.equal(openai.capabilities(model).sampling, sampling, model)
    t.equal(kinds(openai, model), media, model)
    t.equal(chatgpt.capabilities(model).sampling, false)
  }
  t.match(openai.capabilities(MODEL), { toolLimit: 128, boundThinking: false, forcedToolChoice: true })
  t.equal(chatgpt.capabilities(MODEL).toolLimit, null)
  t.equal(kinds(chatgpt, MODEL), 'image')

  const effort = (
    model: string,
    wish: NonNullable<ModelSettings['reasoning']>['effort'],
    reported?: string[],
  ) => {
    const request = requestFor(chatgpt, { model, settings: { reasoning: wish ? { effort: wish } : {} } })
    if (reported) request.reported = { id: model, efforts: reported }
    return [publicBody(request).body.reasoning?.effort, chatgptBody(request).body.reasoning?.effort]
  }
  t.same(effort('gpt-5', 'minimal'), ['minimal', 'low'], 'the ChatGPT path knows no minimal')
  t.same(effort('gpt-5', 'none'), ['minimal', 'low'])
  t.same(effort('gpt-5.1', 'minimal'), ['low', 'low'])
  t.same(effort('gpt-5.5', 'max'), ['xhigh', 'xhigh'])
  t.same(effort('gpt-5-pro', 'low'), ['high', 'high'])
  t.same(effort('gpt-6-astra', 'none'), ['low', 'low'])
  t.same(effort('o3', 'xhigh'), ['high', 'high'])
  t.same(effort('gpt-6-sol', 'max', ['low', 'medium', 'ultra']), ['medium', 'medium'], 'the list overrules')
  t.same(effort('gpt-6-sol', undefined), [undefined, undefined])
})

t.test('a credential without its secret is told apart from one that is refused', async (t) => {
  const facts = { id: 'cred_1', account_id: 'acc-1' }
  t.same(openai.authorize({ api_key: 'sk-1' }, facts), { authorization: 'Bearer sk-1' })
  t.same(chatgpt.authorize({ access_token: 'at' }, facts), {
    authorization: 'Bearer at',
    'chatgpt-account-id': 'acc-1',
  })
  t.match(
    thrownBy(() => openai.authorize({ access_token: 'at' }, facts)),
    { code: 'no_credential' },
  )
})

interface Path {
  deployment: Deployment
  base: string
  secret: CredentialSecret
}

t.test('whole turns against the emulator', async (t) => {
  const emulator = await createOpenAiEmulator()
  t.teardown(() => emulator.close())
  const paths: Path[] = [
    { deployment: openai, base: emulator.keyBaseUrl, secret: { api_key: 'sk-1' } },
    { deployment: chatgpt, base: emulator.chatgptBaseUrl, secret: { access_token: 'at-1' } },
  ]

  const headersFor = ({ deployment, secret }: Path, request: ModelRequest) => ({
    'content-type': 'application/json',
    'user-agent': 'baton/test',
    ...deployment.authorize(secret, request.credential),
  })

  /** One model call: render, send, decode, parse; a refused request is repaired once. */
  async function send(path: Path, request: ModelRequest): Promise<ModelEvent[]> {
    const { body, headers, path: route, method } = path.deployment.render(request)
    const response = await fetch(path.base + route, {
      method,
      headers: { ...headers, ...headersFor(path, request) },
      body: JSON.stringify(body),
    })
    const answer = await response.text()
    if (response.ok) {
      const parser = newParser(path.deployment, {
        ...origin,
        model: request.model,
        credential_id: request.credential.id,
      })
      return [...framesOf(answer).flatMap((frame) => parser.push(frame)), ...parser.end()]
    }
    const failure = { status: response.status, headers: Object.fromEntries(response.headers), body: answer }
    const again = path.deployment.repair?.(failure, request)
    if (again) return send(path, again)
    throw path.deployment.classify(failure)
  }

  /** A turn: the user's words, then steps until the model stops calling. */
  async function turn(
    path: Path,
    history: MessageInput[],
    words: string,
    change: Partial<ModelRequest> = {},
  ) {
    history.push({ role: 'user', parts: [{ type: 'text', text: words }] })
    for (let step = 0; step < 8; step++) {
      const model = change.model ?? MODEL
      const messages = repaired(path.deployment, history, model, change.credential?.id ?? 'cred_1')
      const events = await send(
        path,
        requestFor(path.deployment, { tools: TOOLS, ...change, messages, follow_up: step > 0 }),
      )
      const parts = fold(events)
      history.push({ role: 'assistant', parts })
      if (finishOf(events) !== 'tool_calls') return parts
      const results = parts.flatMap((part): Part[] =>
        part.type === 'tool_call'
          ? [
              {
                type: 'tool_result',
                call_id: part.call_id,
                name: part.name,
                content: [{ type: 'text', text: `${part.name} ${JSON.stringify(part.arguments)}` }],
                is_error: false,
                outcome: 'ok',
              },
            ]
          : [],
      )
      history.push({ role: 'tool', parts: results })
    }
    throw new Error('the turn did not end')
  }

  for (const path of paths) {
    await t.test(
      `${path.deployment.id}: reasoning, parallel calls, several steps, several turns`,
      async (t) => {
        emulator.script(null)
        const history: MessageInput[] = []
        const words = [
          'think\nsay Looking.\ncall files__read with {"path":"a"}\ncall files__write with {"path":"b"}',
          'think\ncall files__read with {"path":"c"}',
          'think\nsay All read.',
        ].join('\nthen\n')
        t.match(await turn(path, history, words), [
          { type: 'reasoning' },
          { type: 'text', text: 'All read.' },
        ])
        t.match(history[2], {
          parts: [
            { content: [{ text: 'files.read {"path":"a"}' }] },
            { content: [{ text: 'files.write {"path":"b"}' }] },
          ],
        })
        t.match(await turn(path, history, 'say more'), [{ type: 'text', text: 'more' }])
        const last = emulator.requests.at(-1)?.body as { input: { type: string }[] }
        t.equal(
          last.input.filter(({ type }) => type === 'reasoning').length,
          3,
          'all reasoning went back, verified',
        )
        const before = emulator.requests.length
        t.match(await turn(path, history, 'say elsewhere', { model: 'gpt-5.6-sol' }), [{ text: 'elsewhere' }])
        t.equal(emulator.requests.length, before + 1, 'another model takes the history without a refusal')
      },
    )

    await t.test(
      `${path.deployment.id}: tokens that the vendor no longer verifies are left out, once`,
      async (t) => {
        const history: MessageInput[] = []
        await turn(path, history, 'think\nsay one')
        const before = emulator.requests.length
        // Stored as the same credential's, but the account behind it is another one now.
        const other = { id: 'cred_1', account_id: 'acc-2' }
        const moved = { ...path, secret: { api_key: 'sk-2', access_token: 'at-2' } }
        t.match(await turn(moved, history, 'say two', { credential: other }), [{ text: 'two' }])
        t.equal(emulator.requests.length, before + 2)
      },
    )

    await t.test(`${path.deployment.id}: finishes, failures and usage`, async (t) => {
      const ask = (words: string, change: Partial<ModelRequest> = {}) =>
        send(
          path,
          requestFor(path.deployment, {
            messages: [{ role: 'user', parts: [{ type: 'text', text: words }] }],
            ...change,
          }),
        )
      t.equal(finishOf(await ask('refuse')), 'refusal')
      t.equal(finishOf(await ask('length\nsay cut')), 'length')
      emulator.script(() => ({
        ...text('x'),
        usage: { input_tokens: 7, cached_tokens: 3, reasoning_tokens: 2 },
        chunk: 3,
      }))
      t.match(
        (await ask('x')).find(({ type }) => type === 'usage'),
        { usage: { input_tokens: 7, cached_tokens: 3, reasoning_tokens: 2 } },
      )
      emulator.script(() => ({ ...calls(['files__read', '{"cut']), finish: 'length' }))
      t.match(fold(await ask('x')), [{ arguments: {}, arguments_text: '{"cut' }])
      emulator.script(() => ({ ...text('half an answer'), ending: 'close', after: 6 }))
      await t.rejects(ask('x'), { code: 'upstream_disconnected' })
      emulator.script(() => ({ ...text('x'), ending: { code: 'slow_down', message: 'busy' }, after: 3 }))
      await t.rejects(ask('x'), { code: 'upstream_overloaded' })
      emulator.script(() => ({
        status: 429,
        headers: { 'retry-after': '3' },
        body: { error: { code: 'x' } },
      }))
      await t.rejects(ask('x'), { code: 'upstream_rate_limited', retryAfter: 3 })
      emulator.script(null)
      const settings = { max_output_tokens: 128_000 }
      t.equal(finishOf(await ask('x', { model: 'gpt-4.1', settings })), 'stop', 'within what the model has')
      await t.rejects(ask('x', { model: 'missing' }), { code: 'upstream_rejected' })
    })

    await t.test(`${path.deployment.id}: the list of models`, async (t) => {
      const { models } = path.deployment
      const request = requestFor(path.deployment)
      const response = await fetch(`${path.base}${models?.path}`, {
        headers: { ...models?.headers, ...headersFor(path, request) },
      })
      const list = models?.parse(await response.json()) ?? []
      t.equal(list[0]?.id, 'gpt-5.6-sol')
      if (path.deployment.id === 'chatgpt') t.match(list, [{ max_input_tokens: 272000, efforts: ['low'] }])
      t.same(models?.parse('nonsense'), [])
    })
  }

  await t.test('a revoked credential is an upstream_auth', async (t) => {
    emulator.revoke('at-1')
    const [, login] = paths
    if (!login) throw new Error('two paths')
    await t.rejects(send(login, requestFor(chatgpt)), { code: 'upstream_auth' })
  })
})
