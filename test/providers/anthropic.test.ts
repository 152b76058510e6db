/** The adapter for Anthropic: recorded streams in, rendered requests out, both held against the emulator. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import t from 'tap'
import { anthropic, anthropicOauth } from '../../providers/anthropic/index.ts'
import type { WireRequest } from '../../providers/anthropic/wire.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import { createFold, fold } from '../../src/chat/fold.ts'
import {
  type ContentPart,
  type MessageInput,
  type Part,
  type Provenance,
  toolCalls,
} from '../../src/chat/message.ts'
import { repair } from '../../src/chat/repair.ts'
import { BatonError } from '../../src/errors.ts'
import type { Deployment, Effort, ModelRequest, ModelSettings, ToolDeclaration } from '../../src/provider.ts'
import { createDecoder, type SseFrame } from '../../src/sse.ts'
import {
  type AnthropicEmulator,
  anthropicFixture,
  createAnthropicEmulator,
  refusalOf,
} from '../emulators/anthropic.ts'
import { MODELS } from '../emulators/anthropic-models.ts'

const FIXTURES = 'test/fixtures/anthropic'
const fixture = (name: string) => readFileSync(`${FIXTURES}/${name}.sse`, 'utf8')
const STREAMS = ['text', 'thinking-two-tools', 'thinking-omitted', 'overloaded-midstream', 'max-tokens']

const origin: Provenance = { provider: 'anthropic', model: 'claude-sonnet-5', credential_id: 'cred_1' }
const SECRET = { api_key: 'sk-ant-api03-acme-1', access_token: 'sk-ant-oat01-acme-1' }
const OPTIONS = { system_blocks: [], headers: {}, dual_declarations: false }

const declared = (name: string, parameters: Record<string, unknown> = {}): ToolDeclaration => ({
  name: name.replace('.', '__'),
  canonical_name: name,
  description: `Does ${name}`,
  parameters: { type: 'object', ...parameters },
})
const TOOLS = [
  declared('weather.get', { properties: { place: { type: 'string' } }, required: ['place'] }),
  declared('list_files'),
]

interface Wish {
  model?: string
  messages?: MessageInput[]
  settings?: ModelSettings
  tools?: ToolDeclaration[]
  request?: Partial<ModelRequest>
}

function requestFor(wish: Wish = {}, deployment: Deployment = anthropic): ModelRequest {
  const model = wish.model ?? 'claude-sonnet-4-6'
  const capabilities = deployment.capabilities(model, wish.request?.reported)
  return {
    model,
    instructions: 'Be brief.',
    messages: wish.messages ?? [said('hello')],
    tools: wish.tools ?? TOOLS,
    settings: wish.settings ?? {},
    session_id: 'ses_1',
    follow_up: false,
    capabilities,
    credential: { id: 'cred_1' },
    options: OPTIONS,
    ...wish.request,
  }
}

const said = (text: string): MessageInput => ({ role: 'user', parts: [{ type: 'text', text }] })
const answered = (...parts: Part[]): MessageInput => ({ role: 'assistant', parts })
const words = (text: string): Part => ({ type: 'text', text })
const thought = (text: string, opaque?: string): Part => ({
  type: 'reasoning',
  text,
  provenance: { ...origin, ...(opaque ? { opaque } : {}) },
})
const called = (call_id: string, args: Record<string, unknown> = {}): Part => ({
  type: 'tool_call',
  call_id,
  name: 'weather__get',
  arguments: args,
})
const returned = (call_id: string, more: Partial<Extract<Part, { type: 'tool_result' }>> = {}): Part => ({
  type: 'tool_result',
  call_id,
  name: 'weather__get',
  content: [{ type: 'text', text: '15 °C' }],
  is_error: false,
  outcome: 'ok',
  ...more,
})
const results = (...parts: Part[]): MessageInput => ({ role: 'tool', parts })

const render = (wish: Wish = {}, deployment: Deployment = anthropic) => {
  const rendered = deployment.render(requestFor(wish, deployment))
  // What render returns is a WireRequest; its test below proves that to the vendor's own types.
  return { ...rendered, body: rendered.body as unknown as WireRequest }
}
const contents = (messages: MessageInput[], wish: Wish = {}) =>
  render({ ...wish, messages }).body.messages.map(({ role, content }) => [
    role,
    content.map(({ type }) => type),
  ])

function framesOf(stream: string, size = stream.length): SseFrame[] {
  const frames: SseFrame[] = []
  const decoder = createDecoder((frame) => frames.push(frame))
  for (let at = 0; at < stream.length; at += size) decoder.push(stream.slice(at, at + size))
  return frames
}

function newParser(provenance = origin) {
  let made = 0
  return anthropic.parser({
    callId: (vendorId) => (vendorId ? `call_${vendorId}` : `call_made${++made}`),
    toolName: (exposed) => exposed.replace('__', '.'),
    provenance,
  })
}
const parse = (frames: readonly SseFrame[]): ModelEvent[] => {
  const parser = newParser()
  return [...frames.flatMap((frame) => parser.push(frame)), ...parser.end()]
}
/** Frames of made-up events, the opening and the end around them. */
const stream = (...events: Record<string, unknown>[]): SseFrame[] =>
  events.map((event) => ({ event: String(event.type), data: JSON.stringify(event), id: undefined }))
const block = (
  index: number,
  content_block: Record<string, unknown>,
  ...deltas: Record<string, unknown>[]
) => [
  { type: 'content_block_start', index, content_block },
  ...deltas.map((delta) => ({ type: 'content_block_delta', index, delta })),
  { type: 'content_block_stop', index },
]
const tool = (id: string, ...json: string[]) =>
  block(
    0,
    { type: 'tool_use', id, name: 'list_files', input: {} },
    ...json.map((partial_json) => ({ type: 'input_json_delta', partial_json })),
  )
const end = (stop_reason: string | null) => [
  { type: 'message_delta', delta: { stop_reason }, usage: {} },
  { type: 'message_stop' },
]
const finishOf = (events: Iterable<ModelEvent>) => {
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

t.test('a stream becomes the parts of a message', async (t) => {
  await t.test('text, with its usage and every delta', async (t) => {
    const events = parse(framesOf(fixture('text')))
    const answer =
      'A gateway sits between your client and the API.\n\nIt forwards the request, keeps the stream alive — “ping” events included 🙂 — and maps errors.'
    t.strictSame(fold(events), [{ type: 'text', text: answer, provenance: origin }])
    t.equal(events.filter(({ type }) => type === 'text.delta').length, 5)
    t.strictSame(events.filter(({ type }) => type === 'usage').at(-1), {
      type: 'usage',
      usage: { input_tokens: 2423, output_tokens: 43, reasoning_tokens: 0, cached_tokens: 2048 },
    })
    t.strictSame(events.at(-1), { type: 'finish', reason: 'stop' })
  })

  await t.test('thinking, text and parallel calls, in any chunking', async (t) => {
    const events = parse(framesOf(fixture('thinking-two-tools')))
    t.match(fold(events), [
      {
        type: 'reasoning',
        text: 'The user wants the weather in two cities and both lookups are independent, so I can ask for them in parallel.',
        provenance: { opaque: /^signed:EvBjcy3p0s/ },
      },
      { type: 'text', text: "I'll check both cities at once." },
      {
        type: 'tool_call',
        call_id: 'call_toolu_01Za7nUK7xM8tjSKqi4Pb1Ht',
        name: 'get_weather',
        arguments: { location: 'Zürich, CH', unit: 'celsius' },
        provenance: origin,
      },
      { type: 'tool_call', call_id: /KYGc/, arguments: { location: 'Tokyo, JP', unit: 'celsius' } },
    ])
    t.equal(finishOf(events), 'tool_calls')
    t.match(events.filter(({ type }) => type === 'usage').at(-1), {
      usage: { input_tokens: 2486, output_tokens: 187, reasoning_tokens: 41 },
    })
    for (const size of [1, 7, 64]) t.strictSame(parse(framesOf(fixture('thinking-two-tools'), size)), events)
  })

  await t.test(
    'thinking that shows nothing keeps its signature, and a call without arguments is one',
    async (t) => {
      const events = parse(framesOf(fixture('thinking-omitted')))
      t.match(fold(events), [
        { type: 'reasoning', text: '', provenance: { opaque: /^signed:EvgzLP4/ } },
        { type: 'tool_call', name: 'list_files', arguments: {} },
      ])
      t.equal(finishOf(events), 'tool_calls')
    },
  )

  await t.test('redacted thinking keeps its data, a signature all its pieces', async (t) => {
    const piece = (signature: string) => ({ type: 'signature_delta', signature })
    const signed = block(0, { type: 'thinking', thinking: '', signature: '' }, piece('EA'), piece('BC'))
    t.match(fold(parse(stream(...signed, ...end('end_turn')))), [{ provenance: { opaque: 'signed:EABC' } }])
    const unsigned = block(0, { type: 'thinking', thinking: 'so' })
    t.strictSame(fold(parse(stream(...unsigned, ...end('end_turn')))), [
      { type: 'reasoning', text: 'so', provenance: origin },
    ])
    const events = parse(stream(...block(0, { type: 'redacted_thinking', data: 'abc' }), ...end('end_turn')))
    t.match(fold(events), [{ type: 'reasoning', text: '', provenance: { opaque: 'redacted:abc' } }])
  })

  await t.test('a call cut by the length limit keeps its text and finishes as length', async (t) => {
    const events = parse(framesOf(fixture('max-tokens')))
    t.match(fold(events), [
      { type: 'text', text: "I'll write the file now." },
      { type: 'tool_call', name: 'write_file', arguments: {}, arguments_text: /^\{"path": .*const serv$/ },
    ])
    t.equal(finishOf(events), 'length')
  })

  await t.test('a call cut before its first argument is no call', async (t) => {
    const cut = parse(stream(...tool('a', ''), ...end('max_tokens')))
    t.strictSame(fold(cut), [])
    t.equal(finishOf(cut), 'length')
    const whole = parse(stream(...tool('a', ''), ...end('tool_use')))
    t.match(fold(whole), [{ type: 'tool_call', call_id: 'call_a', arguments: {} }])
    const second = tool('b', '').map((event) => ({ ...event, index: 1 }))
    t.match(fold(parse(stream(...tool('a', ''), ...second, ...end('max_tokens')))), [{ call_id: 'call_a' }])
  })

  await t.test('arguments given at once, and arguments that are no JSON', async (t) => {
    const given = block(0, { type: 'tool_use', id: 'a', name: 'x', input: { y: 1 } })
    t.match(fold(parse(stream(...given, ...end('tool_use')))), [{ arguments: { y: 1 } }])
    t.match(fold(parse(stream(...tool('a', '[1', ']'), ...end('tool_use')))), [
      { arguments: {}, arguments_text: '[1]' },
    ])
  })

  await t.test('every stop reason has its finish', async (t) => {
    const text = block(0, { type: 'text', text: '' }, { type: 'text_delta', text: 'a' })
    const reasons: [string | null, string, string][] = [
      ['end_turn', 'stop', 'tool_calls'],
      ['stop_sequence', 'stop', 'tool_calls'],
      ['pause_turn', 'stop', 'tool_calls'],
      ['something_new', 'stop', 'tool_calls'],
      ['constructor', 'stop', 'tool_calls'],
      [null, 'stop', 'tool_calls'],
      ['max_tokens', 'length', 'length'],
      ['model_context_window_exceeded', 'length', 'length'],
      ['refusal', 'refusal', 'refusal'],
    ]
    for (const [reason, plain, withCall] of reasons) {
      t.equal(finishOf(parse(stream(...text, ...end(reason)))), plain, String(reason))
      t.equal(finishOf(parse(stream(...tool('a', '{}'), ...end(reason)))), withCall, `${reason} with a call`)
    }
  })

  await t.test('what is not known is passed over', async (t) => {
    const events = parse(
      stream(
        { type: 'ping' },
        { type: 'something_new', index: 0 },
        { type: 'toString' },
        ...block(
          0,
          { type: 'server_tool_use', id: 'srvtoolu_1', name: 'web_search', input: {} },
          { type: 'input_json_delta', partial_json: '{"q":' },
        ),
        ...block(1, { type: 'web_search_tool_result', tool_use_id: 'srvtoolu_1', content: [] }),
        ...block(2, { type: 'constructor' }, { type: 'novel_delta', text: 'x' }),
        ...block(
          3,
          { type: 'text', text: 'so' },
          { type: 'citations_delta', citation: {} },
          { type: 'text_delta', text: ' it is' },
        ),
        { type: 'content_block_delta', index: 9, delta: { type: 'text_delta', text: 'of no block' } },
        ...end('end_turn'),
      ),
    )
    t.match(fold(events), [{ type: 'text', text: 'so it is' }])
    t.equal(fold(events).length, 1)
  })

  await t.test('a count that is null keeps its last value', async (t) => {
    const usage = {
      input_tokens: 5,
      cache_read_input_tokens: 7,
      cache_creation_input_tokens: 11,
      output_tokens: 1,
    }
    const later = {
      input_tokens: null,
      cache_read_input_tokens: null,
      output_tokens: 9,
      output_tokens_details: { thinking_tokens: 4 },
    }
    const events = parse(
      stream(
        { type: 'message_start', message: { usage } },
        { type: 'message_delta', delta: {}, usage: later },
        ...end('end_turn'),
      ),
    )
    t.match(events.filter(({ type }) => type === 'usage').at(-1), {
      usage: { input_tokens: 23, cached_tokens: 7, output_tokens: 9, reasoning_tokens: 4 },
    })
  })
})

t.test('a stream that breaks is a failure, wherever it breaks', async (t) => {
  for (const name of STREAMS) {
    const frames = framesOf(fixture(name))
    const whole = name === 'overloaded-midstream' ? null : fold(parse(frames))
    for (let cut = 0; cut < frames.length; cut++) {
      const parser = newParser()
      const folding = createFold()
      for (const frame of frames.slice(0, cut)) for (const event of parser.push(frame)) folding.add(event)
      const error = thrownBy(() => parser.end())
      if (error?.code !== 'upstream_disconnected' || !error.retryable || folding.finish())
        t.fail(`${name} cut at ${cut}`)
      if (whole)
        t.strictSame(folding.parts(), whole.slice(0, folding.parts().length), `${name} cut at ${cut}`)
    }
  }
  const overloaded = thrownBy(() => parse(framesOf(fixture('overloaded-midstream'))))
  t.match(overloaded, {
    code: 'upstream_overloaded',
    details: {
      upstream: { status: null, type: 'overloaded_error', message: 'Overloaded', request_id: /^req_/ },
    },
  })
  const garbage = { event: 'message_start', data: '<html>', id: undefined }
  t.match(
    thrownBy(() => parse([garbage])),
    { code: 'upstream_disconnected', details: { upstream: '<html>' } },
  )
})

t.test('messages', async (t) => {
  await t.test('the request as a whole', async (t) => {
    const { path, headers, body, notes } = render({ model: 'claude-opus-4-8' })
    t.equal(path, '/v1/messages')
    t.strictSame(headers, { 'anthropic-version': '2023-06-01' })
    t.strictSame(notes, [])
    const cached = { cache_control: { type: 'ephemeral' } }
    t.strictSame(body, {
      model: 'claude-opus-4-8',
      max_tokens: 128_000,
      stream: true,
      system: [{ type: 'text', text: 'Be brief.', ...cached }],
      tools: [
        {
          name: 'weather__get',
          description: 'Does weather.get',
          input_schema: { type: 'object', properties: { place: { type: 'string' } }, required: ['place'] },
        },
        { name: 'list_files', description: 'Does list_files', input_schema: { type: 'object' } },
      ],
      messages: [{ role: 'user', content: [{ type: 'text', text: 'hello', ...cached }] }],
    })
    t.strictSame(body.tools, anthropic.declare(TOOLS, OPTIONS))
  })

  await t.test('nothing empty is sent', async (t) => {
    const blank = [{ ...declared('x'), description: ' ' }]
    const { body } = render({
      tools: blank,
      request: { instructions: ' \n' },
      messages: [said('a'), answered(words(' ')), said('b')],
    })
    t.notOk('system' in body)
    t.strictSame(body.tools?.[0], { name: 'x', input_schema: { type: 'object' } })
    t.match(body.messages, [{ role: 'user', content: [{ text: 'a' }, { text: 'b' }] }])
    t.notOk('tools' in render({ tools: [] }).body)
  })

  await t.test('results come first and together, then the text; equal roles are one message', async (t) => {
    const history = [
      said('a'),
      said('b'),
      answered(words('looking'), called('call_1'), called('call_2')),
      results(returned('call_1'), returned('call_2')),
      said('and?'),
    ]
    t.strictSame(contents(history), [
      ['user', ['text', 'text']],
      ['assistant', ['text', 'tool_use', 'tool_use']],
      ['user', ['tool_result', 'tool_result', 'text']],
    ])
    const [, , answers] = render({ messages: history }).body.messages
    t.match(answers?.content, [{ tool_use_id: 'call_1' }, { tool_use_id: 'call_2' }, { text: 'and?' }])
    t.strictSame(contents([said('a'), answered(words('b')), answered(words('c')), said('d')]), [
      ['user', ['text']],
      ['assistant', ['text', 'text']],
      ['user', ['text']],
    ])
  })

  await t.test('the user begins and has the last word', async (t) => {
    const { body, notes } = render({
      messages: [answered(words('welcome')), said('hi'), answered(words('so'))],
    })
    t.match(body.messages, [
      { role: 'user', content: [{ text: 'Begin.' }] },
      { role: 'assistant' },
      { role: 'user' },
      { role: 'assistant' },
      { role: 'user', content: [{ text: 'Continue.' }] },
    ])
    t.match(notes, [/the last one is the assistant's/])
    t.match(render({ messages: [] }).body.messages, [{ role: 'user', content: [{ text: 'Begin.' }] }])
  })

  await t.test(
    'what was put after the assistant stays there, so that thinking keeps its prefix',
    async (t) => {
      const history = [said('a'), answered(words('b'))]
      const wish = { model: 'claude-opus-5' }
      const asked = contents(history, wish)
      const later = contents([...history, answered(thought('t', 'signed:x'), words('c')), said('d')], wish)
      t.strictSame(later.slice(0, asked.length), asked)
    },
  )

  await t.test('results keep their kinds', async (t) => {
    const image = { type: 'image' as const, media_type: 'image/png', data: 'aGFsbG8=' }
    const pdf = { type: 'file' as const, media_type: 'application/pdf', data: 'aGFsbG8=', name: 'a.pdf' }
    const content = (more: Parameters<typeof returned>[1]) => {
      const { body } = render({ messages: [said('a'), answered(called('c')), results(returned('c', more))] })
      const [result] = body.messages[2]?.content ?? []
      const { cache_control: _, ...rest } = result as { cache_control?: unknown }
      return rest
    }
    t.match(content({ content: [image, pdf, { type: 'text', text: 'x' }] }), {
      content: [{ type: 'image' }, { type: 'document', title: 'a.pdf' }, { type: 'text' }],
    })
    t.strictSame(content({ content: [] }), { type: 'tool_result', tool_use_id: 'c' })
    t.match(content({ content: [], structured: { a: 1 } }), { content: [{ type: 'text', text: '{"a":1}' }] })
    t.match(content({ structured: { a: 1 } }), { content: [{ type: 'text', text: '15 °C' }] })
  })

  await t.test(
    'a failed result has words and nothing else; its media stand behind the results',
    async (t) => {
      const image = { type: 'image' as const, media_type: 'image/png', data: 'aGFsbG8=' }
      const failed = (content: ContentPart[], more: MessageInput[] = []) => {
        const history = [
          said('a'),
          answered(called('c'), called('d')),
          results(returned('c', { content, is_error: true, outcome: 'error' }), returned('d')),
          ...more,
        ]
        const rendered = render({ messages: history })
        t.equal(refusalOf(rendered), null)
        return rendered.body.messages[2]?.content ?? []
      }
      for (const silent of [[], [{ type: 'text' as const, text: ' ' }]]) {
        t.match(failed(silent)[0], {
          is_error: true,
          content: [{ text: 'The tool failed without a message.' }],
        })
      }
      t.match(failed([image, { type: 'text', text: 'no such page' }], [said('and?')]), [
        { tool_use_id: 'c', is_error: true, content: [{ text: 'no such page' }] },
        { tool_use_id: 'd' },
        { text: '[From the result of weather__get:]' },
        { type: 'image' },
        { text: 'and?' },
      ])
    },
  )

  await t.test('media: what the API takes as it is, the rest named', async (t) => {
    const text = (data: string) => Buffer.from(data).toString('base64')
    const media = (part: Partial<Part> & { media_type: string }) => {
      const { body, notes } = render({ messages: [{ role: 'user', parts: [part as Part] }] })
      const [first = {}] = body.messages[0]?.content ?? []
      return { ...first, notes }
    }
    const url = 'https://a.example/x'
    t.match(media({ type: 'image', media_type: 'image/jpg', data: 'aGk=' }), {
      source: { type: 'base64', media_type: 'image/jpeg' },
    })
    t.match(media({ type: 'image', media_type: 'image/webp', url }), {
      type: 'image',
      source: { type: 'url', url },
    })
    t.match(media({ type: 'file', media_type: 'application/pdf', url }), {
      type: 'document',
      source: { type: 'url', url },
    })
    t.match(media({ type: 'file', media_type: 'text/csv; charset=utf-8', data: text('a,ä') }), {
      source: { type: 'text', media_type: 'text/plain', data: 'a,ä' },
    })
    t.match(media({ type: 'file', media_type: 'application/ld+json', data: text('{}') }), {
      source: { type: 'text' },
    })
    const refused = { type: 'text', text: /not shown to this model/, notes: [/is not accepted/] }
    t.match(media({ type: 'image', media_type: 'image/svg+xml', data: 'aGk=' }), refused)
    t.match(media({ type: 'file', media_type: 'application/zip', data: 'aGk=', name: 'a.zip' }), refused)
    t.match(media({ type: 'file', media_type: 'text/plain', url }), refused)
    const open = url.replace('https', 'http')
    t.match(media({ type: 'image', media_type: 'image/png', url: open }), refused)
    t.match(media({ type: 'file', media_type: 'application/pdf', url: open }), refused)
    t.match(media({ type: 'file', media_type: 'text/plain', data: '' }), refused)
    t.match(media({ type: 'audio', media_type: 'audio/wav', data: 'aGk=' }), refused)
    t.notOk(anthropic.capabilities('claude-opus-5').userMedia.has('audio'))
  })

  await t.test('of too many images the oldest give way, and the rest stay where they are', async (t) => {
    const image = { type: 'image' as const, media_type: 'image/png', data: 'aGFsbG8=' }
    const history = (count: number): MessageInput[] =>
      Array.from({ length: count }, (_, i) => [
        said(`look ${i}`),
        answered(called(`c${i}`)),
        results(returned(`c${i}`, { content: [image] })),
      ]).flat()
    const sent = (count: number, model: string) => {
      const rendered = render({ model, messages: history(count) })
      t.equal(refusalOf(rendered), null)
      const { body, notes } = rendered
      return { left: JSON.stringify(body.messages).match(/"type":"image"/g)?.length, notes, body }
    }
    t.match(sent(100, 'claude-haiku-4-5'), { left: 100, notes: [] })
    const over = sent(101, 'claude-haiku-4-5')
    t.match(over, { left: 76, notes: [/oldest 25 images/] })
    t.equal(sent(125, 'claude-haiku-4-5').left, 100)
    t.match(over.body.messages[2]?.content, [{ content: [{ type: 'text' }] }])
    t.match(over.body.messages.at(-1)?.content, [{ content: [{ type: 'image' }] }])
    t.match(sent(101, 'claude-opus-5'), { left: 101, notes: [] })
  })

  await t.test('a system message goes after what the user said, or becomes a text', async (t) => {
    const system = (text: string): MessageInput => ({ role: 'system', parts: [{ type: 'text', text }] })
    const opus = { model: 'claude-opus-4-8' }
    t.strictSame(contents([system('s'), said('a'), answered(words('b')), system('t'), said('c')], opus), [
      ['user', ['text']],
      ['system', ['text']],
      ['assistant', ['text']],
      ['user', ['text']],
      ['system', ['text']],
    ])
    const alone = render({ ...opus, messages: [said('a'), answered(words('b')), system('t')] }).body.messages
    t.match(alone[2], { role: 'user', content: [{ text: '[System message]\nt' }] })
    const shown: MessageInput = {
      role: 'system',
      parts: [{ type: 'image', media_type: 'image/png', data: 'aGk=' }, words('see')],
    }
    t.strictSame(contents([said('a'), shown], opus), [
      ['user', ['text', 'image']],
      ['system', ['text']],
    ])
  })

  await t.test('halves of characters never leave', async (t) => {
    const half = 'a\ud83d'
    const history = [
      said(half),
      answered(words(half), called('c', { [half]: [half, { deep: half }] })),
      results(returned('c', { content: [{ type: 'text', text: half }] })),
    ]
    const tools = [{ ...declared('x', { properties: { a: { description: half } } }), description: half }]
    const { body } = render({ messages: history, tools, request: { instructions: half } })
    t.notMatch(JSON.stringify(body), /\\ud83d/)
    t.match(JSON.stringify(body), /a\ufffd/)
  })

  await t.test(
    'breakpoints: the end of the system blocks and of two messages, none on thinking or a tool',
    async (t) => {
      const history = [
        said('a'),
        answered(thought('t', 'signed:x'), called('c')),
        results(returned('c')),
        answered(words('b')),
        said('d'),
      ]
      const { body } = render({ model: 'claude-opus-5', messages: history })
      const marked = body.messages.flatMap(({ content }, i) =>
        content.flatMap((item) => ('cache_control' in item ? [`${i} ${item.type}`] : [])),
      )
      t.strictSame(marked, ['2 tool_result', '4 text'])
      t.equal(JSON.stringify(body.system).match(/cache_control/g)?.length, 1)
      t.equal(JSON.stringify(body).match(/cache_control/g)?.length, 3)
    },
  )
})

t.test('thinking', async (t) => {
  const plan = (model: string, effort?: Effort, more: Wish = {}) => {
    const { body, headers, notes } = render({
      model,
      ...more,
      settings: { ...more.settings, ...(effort ? { reasoning: { effort } } : {}) },
    })
    return {
      thinking: body.thinking,
      effort: body.output_config?.effort,
      beta: headers['anthropic-beta'],
      notes,
    }
  }
  const quiet = { thinking: undefined, effort: undefined, beta: undefined, notes: [] }
  const shown = { type: 'adaptive', display: 'summarized' }
  const bound = { ...shown, block_binding: { prefix_mismatch_behavior: 'drop_block' } }
  const BINDING = 'thinking-binding-controls-2026-08-01'

  await t.test('unasked: only where the model thinks by itself', async (t) => {
    t.strictSame(plan('claude-haiku-4-5-20251001'), quiet)
    t.strictSame(plan('claude-opus-4-6'), quiet)
    t.strictSame(plan('claude-opus-4-8'), quiet)
    t.strictSame(plan('claude-sonnet-5'), { ...quiet, thinking: shown })
    t.strictSame(plan('claude-opus-5-5'), { ...quiet, thinking: bound, beta: BINDING })
    t.strictSame(
      plan('claude-opus-7'),
      { ...quiet, thinking: bound, beta: BINDING },
      'an unknown one is taken for newer',
    )
    t.strictSame(plan('glm-9'), quiet, 'one that is no Claude is told nothing')
  })

  await t.test('an effort, or the next lower one', async (t) => {
    t.strictSame(plan('claude-opus-4-8', 'xhigh'), { ...quiet, thinking: shown, effort: 'xhigh' })
    t.match(plan('claude-opus-4-6', 'xhigh'), {
      thinking: { type: 'adaptive' },
      effort: 'high',
      notes: [/"xhigh" was sent as "high"/],
    })
    t.match(plan('claude-opus-5', 'minimal'), { effort: 'low', notes: [/"minimal" was sent as "low"/] })
    const reported = { id: 'claude-opus-5', efforts: [] }
    t.match(plan('claude-opus-5', 'low', { request: { reported } }), {
      thinking: shown,
      effort: undefined,
      notes: [/not accepted/],
    })
  })

  await t.test('none', async (t) => {
    t.strictSame(plan('claude-opus-5', 'none'), { ...quiet, thinking: { type: 'disabled' } })
    t.strictSame(plan('claude-haiku-5-5', 'none'), { ...quiet, thinking: { type: 'disabled' } })
    t.strictSame(plan('claude-sonnet-5-5', 'none'), { ...quiet, thinking: { type: 'between_tools' } })
    t.match(plan('claude-opus-5-5', 'none'), { thinking: bound, effort: 'low', notes: [/always thinks/] })
  })

  await t.test('a budget for the 4.5 generation, within max_tokens', async (t) => {
    const INTERLEAVED = 'interleaved-thinking-2025-05-14'
    t.strictSame(plan('claude-haiku-4-5', 'high'), {
      ...quiet,
      thinking: { type: 'enabled', budget_tokens: 16_384 },
      beta: INTERLEAVED,
    })
    const limited = (max_output_tokens: number) =>
      plan('claude-haiku-4-5', 'high', { settings: { max_output_tokens } })
    t.match(limited(6000), { thinking: { budget_tokens: 3000 } })
    t.match(limited(1500), { thinking: { budget_tokens: 1024 } })
    t.match(limited(1024), { thinking: { type: 'disabled' }, notes: [/above 1024/] })
  })

  await t.test('off for a tool turn that began without it', async (t) => {
    const open = [said('a'), answered(called('c')), results(returned('c'))]
    const budget = (messages: MessageInput[]) => plan('claude-haiku-4-5', 'high', { messages })
    t.match(budget(open), { thinking: { type: 'disabled' }, notes: [/began without thinking/] })
    t.match(budget([...open, said('go on')]), { thinking: { type: 'disabled' } })
    t.match(budget([...open, answered(words('b')), said('c')]), { thinking: { type: 'enabled' } })
    const began = [said('a'), answered(thought('t', 'signed:x'), called('c')), results(returned('c'))]
    t.match(budget(began), { thinking: { type: 'enabled' } })
    t.match(budget([...began, answered(called('d')), results(returned('d'))]), {
      thinking: { type: 'enabled' },
    })
    t.match(plan('claude-opus-5', 'high', { messages: open }), { thinking: { type: 'adaptive' } })
  })

  await t.test('blocks go back as they came, and not where thinking is off', async (t) => {
    const history = [
      said('a'),
      answered(thought('', 'signed:EAB'), thought('', 'redacted:xyz'), thought('unsigned'), words('b')),
      said('c'),
    ]
    const blocks = (model: string, effort?: Effort) =>
      render({ model, messages: history, settings: effort ? { reasoning: { effort } } : {} }).body.messages[1]
        ?.content
    t.strictSame(blocks('claude-opus-5'), [
      { type: 'thinking', thinking: '', signature: 'EAB' },
      { type: 'redacted_thinking', data: 'xyz' },
      { type: 'text', text: 'b' },
    ])
    for (const [model, effort] of [
      ['claude-opus-4-8', undefined],
      ['claude-opus-5', 'none'],
      ['claude-haiku-4-5', undefined],
    ] as const) {
      t.strictSame(blocks(model, effort), [{ type: 'text', text: 'b' }], `${model} ${effort}`)
    }
    t.match(blocks('claude-sonnet-5-5', 'none'), [
      { type: 'thinking' },
      { type: 'redacted_thinking' },
      { type: 'text' },
    ])
  })

  await t.test('what the models endpoint reports wins', async (t) => {
    const reported = (thinking_types: string[]) => ({ request: { reported: { id: 'x', thinking_types } } })
    t.match(plan('claude-opus-9', 'high', reported(['enabled', 'disabled'])), {
      thinking: { type: 'enabled' },
    })
    t.match(plan('claude-opus-9', undefined, reported(['enabled', 'disabled'])), { thinking: undefined })
    t.match(plan('claude-opus-5-5', 'none', reported(['adaptive', 'disabled'])), {
      thinking: { type: 'disabled' },
    })
    t.match(plan('claude-opus-5', 'high', reported([])), { thinking: undefined, notes: [/not accepted/] })
  })
})

t.test('settings', async (t) => {
  const settle = (model: string, settings: ModelSettings, more: Wish = {}) => {
    const { body, notes } = render({ model, settings, ...more })
    const { temperature, top_p, tool_choice, max_tokens } = body
    return { temperature, top_p, tool_choice, max_tokens, notes }
  }
  await t.test('sampling goes where the family takes it', async (t) => {
    t.match(settle('claude-opus-4-6', { temperature: 0.3 }), { temperature: 0.3, notes: [] })
    t.match(settle('claude-opus-4-6', { temperature: 1.7 }), { temperature: 1, notes: [/lowered to 1/] })
    t.match(settle('claude-haiku-4-5', { temperature: 0.3, top_p: 0.9 }), {
      temperature: 0.3,
      top_p: undefined,
      notes: [/top_p/],
    })
    t.match(settle('claude-haiku-4-5', { top_p: 0.9 }), { top_p: 0.9, notes: [] })
    t.match(settle('claude-opus-4-7', { temperature: 0.3, top_p: 0.9 }), {
      temperature: undefined,
      top_p: undefined,
      notes: [/temperature: not accepted/, /top_p: not accepted/],
    })
    const thinks = { reasoning: { effort: 'high' as const } }
    t.match(settle('claude-haiku-4-5', { ...thinks, temperature: 0.3, top_p: 0.96 }), {
      temperature: undefined,
      top_p: 0.96,
      notes: [/while the model thinks/],
    })
    t.match(settle('claude-opus-4-6', { ...thinks, top_p: 0.9 }), { top_p: undefined, notes: [/below 0.95/] })
  })
  await t.test('max_output_tokens up to what the model takes', async (t) => {
    t.match(settle('claude-haiku-4-5', { max_output_tokens: 500 }), { max_tokens: 500 })
    t.match(settle('claude-haiku-4-5', { max_output_tokens: 100_000 }), {
      max_tokens: 64_000,
      notes: [/lowered to 64000/],
    })
    t.match(settle('claude-opus-5', {}), { max_tokens: 128_000 })
    t.match(settle('claude-opus-9', {}), { max_tokens: 32_000 })
    t.match(settle('claude-opus-9', { max_output_tokens: 200_000 }), { max_tokens: 200_000, notes: [] })
    const reported = { id: 'claude-opus-9', max_output_tokens: 256_000 }
    t.match(settle('claude-opus-9', {}, { request: { reported } }), { max_tokens: 256_000 })
  })
  await t.test('tool_choice, degraded where it is refused', async (t) => {
    const choice = (model: string, settings: ModelSettings, more: Wish = {}) => {
      const { tool_choice, notes } = settle(model, settings, more)
      return [tool_choice, notes.length]
    }
    const only = { disable_parallel_tool_use: true }
    t.strictSame(choice('claude-opus-5', {}), [undefined, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'auto' }), [undefined, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'none', parallel_tool_calls: false }), [
      { type: 'none' },
      0,
    ])
    t.strictSame(choice('claude-opus-5', { parallel_tool_calls: false }), [{ type: 'auto', ...only }, 0])
    t.strictSame(choice('claude-opus-5', { parallel_tool_calls: true }), [undefined, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'required' }), [{ type: 'any' }, 0])
    const named = { tool_choice: { name: 'weather.get' }, parallel_tool_calls: false }
    t.strictSame(choice('claude-opus-5', named), [{ type: 'tool', name: 'weather__get', ...only }, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: { name: 'gone.tool' } }), [{ type: 'auto' }, 1])
    t.strictSame(choice('claude-opus-5-5', named), [{ type: 'auto', ...only }, 1])
    t.strictSame(choice('claude-haiku-4-5', { tool_choice: 'required', reasoning: { effort: 'low' } }), [
      { type: 'auto' },
      1,
    ])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'required' }, { tools: [] }), [undefined, 1])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'none' }, { tools: [] }), [undefined, 0])
  })
})

t.test('the login', async (t) => {
  const options = {
    ...OPTIONS,
    system_blocks: ['First.', 'Second.'],
    headers: { 'Anthropic-Beta': 'context-1m-2025-08-07, oauth-2025-04-20', 'X-App': 'own' },
  }
  const wish = { model: 'claude-opus-5-5', request: { options } }
  const { path, headers, body } = render(wish, anthropicOauth)
  t.equal(path, '/v1/messages?beta=true')
  t.strictSame(headers, {
    'anthropic-version': '2023-06-01',
    'x-app': 'own',
    'anthropic-beta': 'oauth-2025-04-20,thinking-binding-controls-2026-08-01,context-1m-2025-08-07',
  })
  t.match(body.system, [
    { text: 'First.' },
    { text: 'Second.' },
    { text: 'Be brief.', cache_control: { type: 'ephemeral' } },
  ])
  t.equal(body.system?.filter((part) => 'cache_control' in part).length, 1)
  t.match(body.metadata?.user_id, /^[0-9a-f]{64}$/)
  t.strictSame(render(wish, anthropicOauth).body, body, 'stable')
  const other = render({ ...wish, request: { options, session_id: 'ses_2' } }, anthropicOauth)
  t.not(other.body.metadata?.user_id, body.metadata?.user_id)

  const byKey = render(wish)
  t.notOk('metadata' in byKey.body)
  t.match(byKey.body.system, [{ text: 'Be brief.' }], "a key's requests get no blocks meant for logins")
  t.notOk('x-app' in byKey.headers)

  const facts = { id: 'cred_1', workspace_id: 'wrkspc_1' }
  t.strictSame(anthropicOauth.authorize(SECRET, facts), {
    authorization: 'Bearer sk-ant-oat01-acme-1',
    'anthropic-workspace-id': 'wrkspc_1',
  })
  t.strictSame(anthropicOauth.authorize(SECRET, { id: null }), {
    authorization: 'Bearer sk-ant-oat01-acme-1',
  })
  t.strictSame(anthropic.authorize(SECRET, facts), { 'x-api-key': 'sk-ant-api03-acme-1' })
})

t.test('failures', async (t) => {
  const fail = (
    status: number,
    type: string | null,
    message: string,
    headers: Record<string, string> = {},
  ) => {
    const error = anthropic.classify({
      status,
      headers,
      body:
        type === null
          ? message
          : JSON.stringify({ type: 'error', error: { type, message, details: null }, request_id: 'req_1' }),
    })
    return {
      code: error.code,
      retryable: error.retryable,
      retryAfter: error.retryAfter,
      details: error.details,
      message: error.message,
    }
  }
  const wait = { 'retry-after': '30' }
  const CASES: [number, string | null, string, string, Record<string, string>?][] = [
    [400, 'invalid_request_error', 'messages: bad', 'upstream_rejected'],
    [400, 'invalid_request_error', 'prompt is too long: 210000 tokens > 200000 maximum', 'context_too_long'],
    [400, 'invalid_request_error', 'You have reached your specified API usage limits.', 'upstream_rejected'],
    [400, 'invalid_request_error', 'Error', 'upstream_rejected'],
    [
      400,
      'invalid_request_error',
      "You're out of extra usage. Add more at claude.ai/settings/usage and keep going.",
      'upstream_rejected',
    ],
    [401, 'authentication_error', 'OAuth token has expired.', 'upstream_auth'],
    [402, 'billing_error', 'Pay.', 'upstream_rejected'],
    [403, 'permission_error', 'OAuth token has been revoked.', 'upstream_auth'],
    [404, 'not_found_error', 'model: x', 'upstream_rejected'],
    [409, 'conflict_error', 'Again.', 'upstream_overloaded'],
    [413, 'request_too_large', 'Too large.', 'context_too_long'],
    [429, 'rate_limit_error', 'Slow down.', 'upstream_rate_limited', wait],
    [429, 'rate_limit_error', 'Slow down.', 'upstream_rate_limited'],
    [429, 'rate_limit_error', 'Spending cap.', 'upstream_rejected'],
    [500, 'api_error', 'Oops.', 'upstream_overloaded'],
    [504, 'timeout_error', 'Late.', 'upstream_timeout'],
    [529, 'overloaded_error', 'Overloaded', 'upstream_overloaded'],
    [401, null, 'no', 'upstream_auth'],
    [402, null, 'no', 'upstream_rejected'],
    [403, null, '<html><title>Blocked</title></html>', 'upstream_rejected'],
    [404, null, 'no', 'upstream_rejected'],
    [408, null, '', 'upstream_timeout'],
    [413, null, '<html></html>', 'context_too_long'],
    [418, 'new_error', 'Tea.', 'upstream_rejected'],
    [429, null, 'slow', 'upstream_rate_limited', wait],
    [502, null, '<html></html>', 'upstream_overloaded'],
    [503, null, '', 'upstream_overloaded'],
    [200, null, 'hello', 'upstream_rejected'],
    [200, 'overloaded_error', 'Overloaded', 'upstream_overloaded'],
  ]
  for (const [status, type, message, code, headers] of CASES) {
    t.equal(fail(status, type, message, headers).code, code, `${status} ${type} ${message}`)
  }
  const RETRYABLE = ['upstream_overloaded', 'upstream_rate_limited', 'upstream_timeout']
  for (const [status, type, message, code, headers] of CASES) {
    t.equal(fail(status, type, message, headers).retryable, RETRYABLE.includes(code))
  }

  await t.test("the vendor's words are kept, and no token with them", async (t) => {
    const { details, message } = fail(401, 'authentication_error', 'bad key sk-ant-api03-abc_DEF-1')
    t.strictSame(details, {
      upstream: {
        status: 401,
        type: 'authentication_error',
        code: null,
        message: 'bad key sk-ant-***',
        request_id: 'req_1',
      },
    })
    t.match(message, /refused the credential.*It said: bad key sk-ant-\*\*\*$/)
    t.match(fail(403, null, '<html><title>Blocked</title></html>').details, {
      upstream: { message: 'Blocked', request_id: null },
    })
    t.match(fail(500, null, '', { 'request-id': 'req_2' }).details, {
      upstream: { message: '', request_id: 'req_2' },
    })
    const body = {
      error: { type: 'invalid_request_error', message: 'x', details: { error_code: 'tool_name_conflict' } },
    }
    const coded = anthropic.classify({ status: 400, headers: {}, body: JSON.stringify(body) })
    t.match(coded.details, { upstream: { code: 'tool_name_conflict' } })
  })

  await t.test('how long to wait', async (t) => {
    const limit = (headers: Record<string, string>) => fail(429, 'rate_limit_error', 'x', headers)
    t.equal(limit({ 'retry-after': '1.2' }).retryAfter, 2)
    t.equal(limit({ 'retry-after-ms': '1500' }).retryAfter, 2)
    const dates = { 'retry-after': 'Sat, 21 Nov 2026 10:01:00 GMT', date: 'Sat, 21 Nov 2026 10:00:00 GMT' }
    t.equal(limit(dates).retryAfter, 60)
    t.match(limit({ 'retry-after': 'soon' }), { code: 'upstream_rate_limited', retryAfter: undefined })
    t.match(limit({ 'x-should-retry': 'true' }), {
      code: 'upstream_rate_limited',
      retryAfter: undefined,
      details: { should_retry: true },
    })
    t.match(limit({ 'x-should-retry': 'false' }).details, { should_retry: false })
    t.notOk('should_retry' in (limit({ 'x-should-retry': 'perhaps' }).details ?? {}))
    const counters = {
      'anthropic-ratelimit-requests-remaining': '0',
      'anthropic-ratelimit-requests-reset': '2026-11-21T10:00:05Z',
      'anthropic-ratelimit-tokens-remaining': '5',
      'anthropic-ratelimit-tokens-reset': '2026-11-21T11:00:00Z',
    }
    t.match(limit(counters), {
      code: 'upstream_rate_limited',
      details: { reset_at: '2026-11-21T10:00:05.000Z' },
    })
    t.equal(limit(counters).retryAfter, undefined)
    t.equal(limit({ ...counters, date: 'Sat, 21 Nov 2026 09:59:00 GMT' }).retryAfter, 65)
    t.equal(limit({ ...counters, 'retry-after': '7', date: 'Sat, 21 Nov 2026 09:59:00 GMT' }).retryAfter, 7)
    t.match(
      limit({
        'anthropic-ratelimit-unified-status': 'rejected',
        'anthropic-ratelimit-unified-reset': 'never',
      }),
      { code: 'upstream_rate_limited', details: { reset_at: undefined } },
    )
    const { status, headers, body } = anthropicFixture('error-429.json')
    const login = anthropicOauth.classify({ status, headers: headers ?? {}, body: JSON.stringify(body) })
    t.match(login, {
      code: 'upstream_rate_limited',
      retryAfter: 5318,
      details: { reset_at: new Date(1795285200000).toISOString() },
    })
  })
})

/** One conversation with the emulator, the engine's part played here: repair, render, send, parse, fold. */
interface Talk {
  emulator: AnthropicEmulator
  deployment: Deployment
  model: string
  credential_id: string
  secret: typeof SECRET
  wish: Wish
  history: MessageInput[]
}

interface Step {
  events: ModelEvent[]
  rendered: WireRequest
  /** What the API dropped of the request */
  dropped: unknown
  repaired: boolean
}

const talkWith = (
  emulator: AnthropicEmulator,
  model: string,
  wish: Wish = {},
  deployment: Deployment = anthropic,
): Talk => ({
  emulator,
  deployment,
  model,
  credential_id: 'cred_1',
  secret: SECRET,
  wish,
  history: [],
})

const post = async ({ emulator, deployment, secret, credential_id }: Talk, request: ModelRequest) => {
  const { path, headers, body } = deployment.render(request)
  const response = await fetch(emulator.baseUrl + path, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      ...headers,
      ...deployment.authorize(secret, { id: credential_id }),
    },
    body: JSON.stringify(body),
  })
  return {
    body,
    status: response.status,
    headers: Object.fromEntries(response.headers),
    text: await response.text(),
  }
}

/** One model call and, if it asks for tools, their results; throws the adapter's error. */
async function step(talk: Talk, input?: string): Promise<Step> {
  if (input !== undefined) talk.history.push(said(input))
  const { deployment, model, credential_id, wish, history } = talk
  const plain = requestFor({ ...wish, model }, deployment)
  const head = JSON.stringify([plain.instructions, deployment.declare(plain.tools, plain.options)])
  const target = { provider: 'anthropic', model, credential_id, ...plain.capabilities }
  const { messages, prefix } = repair(history, target, head)
  const request = { ...plain, messages }
  let answer = await post(talk, request)
  const mended =
    answer.status === 200 ? null : (deployment.repair?.({ ...answer, body: answer.text }, request) ?? null)
  if (mended) answer = await post(talk, mended)
  if (answer.status !== 200) throw deployment.classify({ ...answer, body: answer.text })
  const parser = newParser({ provider: 'anthropic', model, credential_id, prefix })
  const frames = framesOf(answer.text)
  const events = [...frames.flatMap((frame) => parser.push(frame)), ...parser.end()]
  const message = answered(...fold(events))
  history.push(message)
  const calls = toolCalls(message)
  if (calls.length > 0) history.push(results(...calls.map(({ call_id }) => returned(call_id))))
  const [, start] = /^data: (.*message_start.*)$/m.exec(answer.text) ?? []
  return {
    events,
    rendered: answer.body as unknown as WireRequest,
    dropped: JSON.parse(start ?? '{}').message.input_transformations ?? [],
    repaired: mended !== null,
  }
}
const thinkingIn = ({ rendered }: Step) =>
  rendered.messages.flatMap(({ content }) => content.filter(({ type }) => type.endsWith('thinking'))).length
const usageOf = ({ events }: Step) => {
  const folding = createFold()
  for (const event of events) folding.add(event)
  return folding.usage()
}

t.test('against the emulator', async (t) => {
  const emulator = await createAnthropicEmulator()
  t.teardown(() => emulator.close())
  const TWICE =
    'think hard\ncall weather__get with {"place":"Bern"}\nthen\nthink again\ncall list_files\nthen\nthink redacted\nsay done'

  await t.test(
    'a turn of three steps keeps all thinking and reads the cache, on every model and path',
    async (t) => {
      for (const { id, types } of MODELS) {
        for (const deployment of [anthropic, anthropicOauth]) {
          const settings: ModelSettings = { reasoning: { effort: 'high' } }
          const talk = talkWith(emulator, id, { settings }, deployment)
          const steps = [await step(talk, TWICE), await step(talk), await step(talk)]
          const next = await step(talk, 'say more')
          const name = `${id} by ${deployment.id} (${types.join(', ')})`
          t.strictSame([...steps, next].map(thinkingIn), [0, 1, 2, 3], name)
          t.strictSame(
            [...steps, next].map(({ dropped }) => dropped),
            [[], [], [], []],
            name,
          )
          t.notOk(
            [...steps, next].some(({ repaired }) => repaired),
            name,
          )
          t.ok(
            steps.slice(1).every((one) => usageOf(one).cached_tokens > 0),
            `${name} reads its cache`,
          )
          t.match(talk.history.at(-1), answered({ type: 'text', text: 'more' } as Part))
        }
      }
    },
  )

  await t.test('every setting on every model renders to what is accepted', async (t) => {
    const efforts: (Effort | undefined)[] = [
      undefined,
      'none',
      'minimal',
      'low',
      'medium',
      'high',
      'xhigh',
      'max',
    ]
    const others: ModelSettings[] = [
      { temperature: 0.4, top_p: 0.5, max_output_tokens: 1_000_000 },
      { temperature: 2, tool_choice: 'required', parallel_tool_calls: false },
      { top_p: 0.97, tool_choice: { name: 'weather.get' }, max_output_tokens: 1025 },
      { tool_choice: 'none', max_output_tokens: 16 },
    ]
    const reports = anthropic.models?.parse(JSON.parse(await modelsBody(emulator))) ?? []
    const wishes = MODELS.flatMap(({ id }) =>
      efforts.flatMap((effort) =>
        others.map((other, i): Wish => {
          const reported = reports.find((report) => report.id === id)
          const settings = { ...other, ...(effort ? { reasoning: { effort } } : {}) }
          return { model: id, settings, request: i % 2 === 1 && reported ? { reported } : {} }
        }),
      ),
    )
    const refused = wishes.flatMap((wish) => {
      const words = refusalOf(render(wish))
      return words === null ? [] : [`${wish.model} ${JSON.stringify(wish.settings)}: ${words}`]
    })
    t.strictSame(refused, [])
  })

  await t.test('changed tools, instructions or history cost bound thinking, never the request', async (t) => {
    for (const model of ['claude-opus-5-5', 'claude-opus-5']) {
      const talk = talkWith(emulator, model)
      await step(talk, TWICE)
      talk.wish = { tools: [...TOOLS, declared('new.tool')] }
      const isBound = model === 'claude-opus-5-5'
      const second = await step(talk)
      t.equal(thinkingIn(second), isBound ? 0 : 1, `${model}, tools`)
      t.equal(thinkingIn(await step(talk)), isBound ? 1 : 2, `${model}, goes on`)
      talk.wish = { ...talk.wish, request: { instructions: 'Be long.' } }
      t.equal(thinkingIn(await step(talk, 'say a')), isBound ? 0 : 3, `${model}, instructions`)
      talk.history[0] = said('other words')
      t.equal(thinkingIn(await step(talk, 'say b')), isBound ? 0 : 3, `${model}, history`)
    }
  })

  await t.test('what repair cannot know is dropped by the API', async (t) => {
    const talk = talkWith(emulator, 'claude-sonnet-5-5', {}, anthropicOauth)
    await step(talk, TWICE)
    talk.wish = { request: { options: { ...OPTIONS, system_blocks: ['A new first block.'] } } }
    const second = await step(talk)
    t.match(second.dropped, [{ type: 'thinking_dropped', reason: 'prefix_binding_mismatch' }])
    t.notOk(second.repaired)
  })

  await t.test('thinking that the API cannot verify is left out, once', async (t) => {
    for (const model of ['claude-opus-5-5', 'claude-haiku-4-5']) {
      const talk = talkWith(emulator, model, { settings: { reasoning: { effort: 'low' } } })
      await step(talk, TWICE)
      for (const { parts } of talk.history) {
        for (const part of parts) if (part.type === 'reasoning') part.text += ' (edited)'
      }
      const second = await step(talk)
      t.ok(second.repaired, model)
      t.equal(thinkingIn(second), 0)
      const { thinking } = second.rendered
      t.equal(thinking?.type, model === 'claude-haiku-4-5' ? 'disabled' : 'adaptive')
    }
    const refused = (message: string) => ({
      status: 400,
      headers: {},
      body: JSON.stringify({ error: { type: 'invalid_request_error', message } }),
    })
    const failure = refused('messages.1.content.0: Invalid `signature` in `thinking` block')
    t.equal(anthropic.repair?.(failure, requestFor()), null, 'nothing to leave out')
    const thinks = requestFor({ messages: [said('a'), answered(thought('t', 'signed:x')), said('b')] })
    t.match(anthropic.repair?.(failure, thinks)?.messages, [said('a'), said('b')])
    const hidden = refused('messages.1.content.0: Invalid `data` in `redacted_thinking` block')
    t.match(anthropic.repair?.(hidden, thinks)?.messages, [said('a'), said('b')])
    t.equal(anthropic.repair?.({ ...failure, status: 500 }, thinks), null)
    t.equal(anthropic.repair?.({ ...failure, body: '{}' }, thinks), null)
  })

  await t.test('thinking that nothing follows stays out of the history', async (t) => {
    const history = (...parts: Part[]) => [said('a'), answered(...parts), said('b')]
    const opus = { model: 'claude-opus-5' }
    t.strictSame(contents(history(words('c'), thought('', 'signed:EAB'), thought('', 'redacted:x')), opus), [
      ['user', ['text']],
      ['assistant', ['text']],
      ['user', ['text']],
    ])
    t.strictSame(contents(history(thought('t', 'signed:EAB')), opus), [['user', ['text', 'text']]])
  })

  await t.test('another credential or model takes the conversation over without its thinking', async (t) => {
    const talk = talkWith(emulator, 'claude-opus-5')
    await step(talk, TWICE)
    talk.credential_id = 'cred_2'
    talk.secret = { ...SECRET, api_key: 'sk-ant-api03-other-1' }
    t.equal(thinkingIn(await step(talk)), 0)
    talk.model = 'claude-haiku-4-5'
    talk.wish = { settings: { reasoning: { effort: 'high' } } }
    const third = await step(talk)
    t.equal(third.rendered.thinking?.type, 'disabled', 'the open turn was begun by another model')
    t.equal((await step(talk, 'say a')).rendered.thinking?.type, 'enabled')
  })

  await t.test("the vendor's failures arrive as errors of the catalogue", async (t) => {
    const talk = talkWith(emulator, 'claude-opus-5')
    const codeOf = (error: unknown) => (error instanceof BatonError ? error.code : String(error))
    const failing = async (input = 'hi') => codeOf(await step(talk, input).catch((thrown: unknown) => thrown))
    emulator.script(() => anthropicFixture('error-429.json'))
    t.equal(await failing(), 'upstream_rate_limited')
    emulator.script(() => ({ items: [], ending: { code: 'overloaded_error', message: 'Overloaded' } }))
    t.equal(await failing(), 'upstream_overloaded')
    emulator.script(() => ({ items: [{ type: 'text', text: 'half' }], ending: 'close' }))
    t.equal(await failing(), 'upstream_disconnected')
    emulator.script(null)
    t.equal(await failing('x'.repeat(4_100_000)), 'context_too_long')
    talk.secret = { ...SECRET, api_key: 'nonsense' }
    t.equal(await failing(), 'upstream_auth')
  })

  await t.test('the models endpoint, by key and by login', async (t) => {
    for (const deployment of [anthropic, anthropicOauth]) {
      const models = deployment.models?.parse(JSON.parse(await modelsBody(emulator, deployment))) ?? []
      t.match(
        models.find(({ id }) => id === 'claude-sonnet-5-5'),
        {
          max_input_tokens: 1_000_000,
          max_output_tokens: 128_000,
          thinking_types: ['adaptive', 'between_tools'],
          efforts: ['low', 'medium', 'high', 'xhigh', 'max'],
        },
      )
      t.equal(models.length, MODELS.length)
    }
    const parsed = anthropic.models?.parse({
      data: [{ id: 'a', capabilities: null, max_tokens: null }, { nothing: 1 }, 5],
    })
    t.strictSame(parsed, [{ id: 'a' }])
    t.strictSame(anthropic.models?.parse('<html>'), [])
  })

  await t.test('any repaired history is accepted by every family', async () => {
    const models = ['claude-opus-5-5', 'claude-opus-4-8', 'claude-sonnet-5', 'claude-haiku-4-5']
    fc.assert(
      fc.property(histories, fc.constantFrom(...models), fc.boolean(), (history, model, thinks) => {
        const settings: ModelSettings = thinks ? { reasoning: { effort: 'medium' } } : {}
        const target = {
          provider: 'anthropic',
          model,
          credential_id: 'cred_1',
          ...anthropic.capabilities(model),
        }
        const words = refusalOf(render({ model, settings, messages: repair(history, target).messages }))
        if (words !== null) throw new Error(words)
      }),
      { numRuns: 500, seed: 7 },
    )
  })
})

async function modelsBody(
  { baseUrl }: AnthropicEmulator,
  deployment: Deployment = anthropic,
): Promise<string> {
  const { path = '', headers } = deployment.models ?? {}
  const response = await fetch(baseUrl + path, {
    headers: { ...headers, ...deployment.authorize(SECRET, { id: null }) },
  })
  return response.text()
}

/** Histories of any making: other vendors' reasoning, orphans, odd ids, empty and broken texts, all roles. */
const anyText = fc.oneof(fc.string({ unit: 'binary' }), fc.constantFrom('', ' ', 'a\ud83d', 'say hi'))
const anyMedia: fc.Arbitrary<Part> = fc.record({
  type: fc.constantFrom('image', 'audio', 'file'),
  media_type: fc.constantFrom(
    'image/png',
    'image/bmp',
    'application/pdf',
    'text/plain',
    'audio/wav',
    'application/zip',
  ),
  data: fc.constantFrom('aGFsbG8=', 'AAEC'),
})
const anyId = fc.constantFrom('call_1', 'call_2', 'call_x|fc_y', 'ü', 'x'.repeat(90))
const anyResult: fc.Arbitrary<Part> = fc.record({
  type: fc.constant('tool_result'),
  call_id: anyId,
  name: fc.constant('a.b'),
  content: fc.array(
    fc.oneof(
      anyText.map((text) => ({ type: 'text' as const, text })),
      anyMedia as fc.Arbitrary<never>,
    ),
    { maxLength: 3 },
  ),
  is_error: fc.boolean(),
  outcome: fc.constantFrom('ok', 'error'),
})
const anyCall: fc.Arbitrary<Part> = fc.record({
  type: fc.constant('tool_call'),
  call_id: anyId,
  name: fc.constantFrom('weather.get', 'gone.tool', 'dots.and.more'),
  arguments: fc.dictionary(anyText, fc.jsonValue()),
})
const anyReasoning: fc.Arbitrary<Part> = fc.record({
  type: fc.constant('reasoning'),
  text: anyText,
  provenance: fc.constantFrom(
    { provider: 'openai', model: 'x', credential_id: null, opaque: 'gAAAA' },
    { provider: 'anthropic', model: 'claude-opus-4-6', credential_id: 'cred_1', opaque: 'signed:E' },
  ),
})
const textPart: fc.Arbitrary<Part> = anyText.map((text) => ({ type: 'text', text }))
const messageOf = (role: MessageInput['role'], part: fc.Arbitrary<Part>): fc.Arbitrary<MessageInput> =>
  fc.record({ role: fc.constant(role), parts: fc.array(part, { maxLength: 4 }) })
const histories = fc.array(
  fc.oneof(
    messageOf('user', fc.oneof(textPart, anyMedia)),
    messageOf('system', fc.oneof(textPart, anyMedia)),
    messageOf('assistant', fc.oneof(textPart, anyReasoning, anyCall)),
    messageOf('tool', anyResult),
  ),
  { maxLength: 10 },
)

t.test("the vendor's own types accept what is rendered", async (t) => {
  const image: Part = { type: 'image', media_type: 'image/png', data: 'aGk=' }
  const history = [
    said('a'),
    answered(thought('t', 'signed:E'), thought('', 'redacted:x'), words('b'), called('c', { place: 'Bern' })),
    results(
      returned('c', {
        content: [image, { type: 'file', media_type: 'application/pdf', url: 'https://a.example' }] as never,
        is_error: true,
      }),
    ),
    {
      role: 'user' as const,
      parts: [image, { type: 'file' as const, media_type: 'text/plain', data: 'aGk=', name: 'n' }],
    },
    { role: 'system' as const, parts: [words('s')] },
  ]
  const bodies = [
    ...MODELS.map(({ id }) =>
      render({ model: id, messages: history, settings: { reasoning: { effort: 'high' } } }, anthropicOauth),
    ),
    render({
      model: 'claude-opus-4-6',
      messages: history,
      settings: { tool_choice: 'required', parallel_tool_calls: false },
    }),
    render({
      model: 'claude-sonnet-5-5',
      messages: history,
      settings: { reasoning: { effort: 'none' }, tool_choice: 'none' },
    }),
    render({ model: 'claude-opus-5', settings: { tool_choice: { name: 'weather.get' } } }),
  ].map(({ body }) => JSON.stringify(body))
  const source = [
    "import type { MessageCreateParamsStreaming as Beta } from '@anthropic-ai/sdk/resources/beta/messages/messages'",
    "import type { MessageCreateParamsStreaming as Stable } from '@anthropic-ai/sdk/resources/messages/messages'",
    ...bodies.map(
      (body, i) => `export const body${i}: ${body.includes('block_binding') ? 'Beta' : 'Stable'} = ${body}`,
    ),
  ]
  const folder = t.testdir({
    'captured.ts': source.join('\n'),
    'tsconfig.json': JSON.stringify({
      compilerOptions: {
        strict: true,
        noEmit: true,
        module: 'nodenext',
        target: 'es2023',
        skipLibCheck: true,
        types: ['node'],
      },
      files: ['captured.ts'],
    }),
  })
  // The runner hooks itself into every Node that a test starts; the compiler's launcher cannot bear it.
  const bare = ['-u', 'NODE_OPTIONS', 'node_modules/.bin/tsc', '-p', folder]
  const { stdout, stderr, status } = spawnSync('env', bare, { encoding: 'utf8' })
  t.equal(stdout + stderr, '')
  t.equal(status, 0)
})
