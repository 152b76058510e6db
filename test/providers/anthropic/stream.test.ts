/** Anthropic's streams, recorded and made up, become the parts of a message; a broken stream is a failure. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { anthropic } from '../../../providers/anthropic/index.ts'
import type { ModelEvent } from '../../../src/chat/event.ts'
import { createFold } from '../../../src/chat/fold.ts'
import type { SseFrame } from '../../../src/sse.ts'
import { EMPTY } from '../../patterns.ts'
import { eventsOf, parserOf } from '../exchange.ts'
import { finishOf, fold, framed, framesOf, thrownBy } from '../streams.ts'
import { origin } from './exchange.ts'

const FIXTURES = 'test/fixtures/anthropic'
const fixture = (name: string) => readFileSync(`${FIXTURES}/${name}.sse`, 'utf8')
const STREAMS = ['text', 'thinking-two-tools', 'thinking-omitted', 'overloaded-midstream', 'max-tokens']

const newParser = () => parserOf(anthropic, origin)
const parse = (frames: readonly SseFrame[]): ModelEvent[] => eventsOf(newParser(), frames)
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

t.test('a stream becomes the parts of a message', async (t) => {
  await t.test('text arrives with its usage and every delta', async (t) => {
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

  await t.test('blocks whose ends a proxy left out are in the message', async (t) => {
    const open = (events: Record<string, unknown>[], stop_reason: string) =>
      parse(framed(...events.filter(({ type }) => type !== 'content_block_stop'), ...end(stop_reason)))
    const told = [
      ...block(0, { type: 'thinking' }, { type: 'thinking_delta', thinking: 'hm' }),
      ...block(1, { type: 'text', text: '' }, { type: 'text_delta', text: 'So.' }),
      ...[2, 3].flatMap((index) => block(index, { type: 'tool_use', id: `t${index}`, name: 'list_files' })),
    ]
    const whole = open(told, 'tool_use')
    t.match(fold(whole), [
      { type: 'reasoning', text: 'hm' },
      { type: 'text', text: 'So.' },
      { call_id: 'call_t2', arguments: EMPTY },
      { call_id: 'call_t3', arguments: EMPTY },
    ])
    t.equal(finishOf(whole), 'tool_calls')
    const cut = open(told.slice(3, 8), 'max_tokens')
    t.strictSame(
      fold(cut),
      [{ type: 'text', text: 'So.', provenance: origin }],
      'a call without an end is left out after max_tokens, since it may have been cut',
    )
  })

  await t.test('thinking, text and parallel calls arrive, however the stream is chunked', async (t) => {
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
    'thinking without text keeps its signature, and a call without arguments is a call',
    async (t) => {
      const events = parse(framesOf(fixture('thinking-omitted')))
      t.match(fold(events), [
        { type: 'reasoning', text: '', provenance: { opaque: /^signed:EvgzLP4/ } },
        { type: 'tool_call', name: 'list_files', arguments: EMPTY },
      ])
      t.equal(finishOf(events), 'tool_calls')
    },
  )

  await t.test('redacted thinking keeps its data, and a signature keeps all its pieces', async (t) => {
    const piece = (signature: string) => ({ type: 'signature_delta', signature })
    const signed = block(0, { type: 'thinking', thinking: '', signature: '' }, piece('EA'), piece('BC'))
    t.match(fold(parse(framed(...signed, ...end('end_turn')))), [{ provenance: { opaque: 'signed:EABC' } }])
    const unsigned = block(0, { type: 'thinking', thinking: 'so' })
    t.strictSame(fold(parse(framed(...unsigned, ...end('end_turn')))), [
      { type: 'reasoning', text: 'so', provenance: origin },
    ])
    const kept = (model: string) => {
      const parser = parserOf(anthropic, { ...origin, model })
      const [part] = fold(eventsOf(parser, framed(...unsigned, ...end('end_turn'))))
      return part?.type === 'reasoning' && part.provenance.opaque
    }
    for (const model of ['claude-test', 'anthropic/claude-sonnet-5', 'test-model'])
      t.equal(kept(model), undefined, `thinking of ${model} goes back only with a signature`)
    for (const model of ['MiMo-V2-Flash', 'z-ai/glm-5', 'kimi-k3', 'deepseek/deepseek-v4-pro'])
      t.equal(kept(model), 'signed:', `thinking of ${model}, which may sign none, can go back all the same`)
    const events = parse(framed(...block(0, { type: 'redacted_thinking', data: 'abc' }), ...end('end_turn')))
    t.match(fold(events), [{ type: 'reasoning', text: '', provenance: { opaque: 'redacted:abc' } }])
    for (const data of [undefined, ''])
      t.strictSame(
        fold(parse(framed(...block(0, { type: 'redacted_thinking', data }), ...end('end_turn')))),
        [],
        'no block that the API would refuse is given back',
      )
  })

  await t.test('each block streams its deltas and becomes a part at its end', async (t) => {
    const opaque = 'signed:EABC'
    const call = { call_id: 'call_a', name: 'list_files' }
    const written = (arguments_delta: string) => ({
      type: 'tool_call.delta',
      index: 2,
      ...call,
      arguments_delta,
    })
    const events = parse(
      framed(
        ...block(
          0,
          { type: 'thinking', thinking: 'h', signature: 'EA' },
          { type: 'thinking_delta', thinking: '' },
          { type: 'thinking_delta', thinking: 'm' },
          { type: 'signature_delta', signature: 'BC' },
        ),
        ...block(1, { type: 'text', text: 'S' }, { type: 'text_delta', text: 'o' }),
        ...tool('a', '{"n":', '', '1}').map((event) => ({ ...event, index: 2 })),
        ...block(3, { type: 'redacted_thinking', data: 'abc' }),
        { type: 'message_delta', delta: { stop_reason: 'tool_use' }, usage: null },
        { type: 'message_stop' },
      ),
    )
    t.strictSame(events, [
      { type: 'reasoning.delta', index: 0, text: 'h' },
      { type: 'reasoning.delta', index: 0, text: 'm' },
      { type: 'part', index: 0, part: { type: 'reasoning', text: 'hm', provenance: { ...origin, opaque } } },
      { type: 'text.delta', index: 1, text: 'S' },
      { type: 'text.delta', index: 1, text: 'o' },
      { type: 'part', index: 1, part: { type: 'text', text: 'So', provenance: origin } },
      written(''),
      written('{"n":'),
      written('1}'),
      {
        type: 'part',
        index: 2,
        part: { type: 'tool_call', ...call, arguments: { n: 1 }, provenance: origin },
      },
      {
        type: 'part',
        index: 3,
        part: { type: 'reasoning', text: '', provenance: { ...origin, opaque: 'redacted:abc' } },
      },
      { type: 'finish', reason: 'tool_calls' },
    ])
  })

  await t.test('an empty block becomes no part', async (t) => {
    const nothing = [...block(0, { type: 'text', text: '' }), ...block(1, { type: 'thinking', thinking: '' })]
    t.strictSame(parse(framed(...nothing, { type: 'message_stop' })), [{ type: 'finish', reason: 'stop' }])
  })

  await t.test('a call that the length limit cut keeps its text, and the finish is length', async (t) => {
    const events = parse(framesOf(fixture('max-tokens')))
    t.match(fold(events), [
      { type: 'text', text: "I'll write the file now." },
      { type: 'tool_call', name: 'write_file', arguments: EMPTY, arguments_text: /^\{"path": .*const serv$/ },
    ])
    t.equal(finishOf(events), 'length')
  })

  await t.test('a call that was cut before its first argument is left out', async (t) => {
    const cut = parse(framed(...tool('a', ''), ...end('max_tokens')))
    t.strictSame(fold(cut), [])
    t.equal(finishOf(cut), 'length')
    const whole = parse(framed(...tool('a', ''), ...end('tool_use')))
    t.match(fold(whole), [{ type: 'tool_call', call_id: 'call_a', arguments: EMPTY }])
    const second = tool('b', '').map((event) => ({ ...event, index: 1 }))
    const text = block(1, { type: 'text', text: 'So.' })
    const both = parse(framed(...tool('a', ''), ...text, ...end('tool_use')))
    t.equal(both.filter(({ type }) => type === 'part').length, 2, 'each part is told once')
    t.match(fold(parse(framed(...tool('a', ''), ...second, ...end('max_tokens')))), [{ call_id: 'call_a' }])
    const together = tool('a', '').flatMap((event, i) => [event, second[i] ?? event])
    for (const [order, events] of Object.entries({
      same: together,
      reverse: together.toSpliced(-2, 2, ...together.slice(-2).reverse()),
    })) {
      const whole = fold(parse(framed(...events, ...end('tool_use'))))
      t.match(whole, [{ call_id: 'call_a' }, { call_id: 'call_b' }], `closed in the ${order} order`)
      const [only, ...others] = fold(parse(framed(...events, ...end('max_tokens'))))
      t.match(only, { call_id: 'call_a' }, 'the one that opened first was whole')
      t.same(others, [])
    }
    const beside = [...text.slice(0, -1), ...tool('a', ''), ...end('max_tokens')]
    t.match(
      fold(parse(framed(...beside))),
      [{ text: 'So.' }],
      'also if the cut call comes while another block is open',
    )
    t.equal(fold(parse(framed(...beside))).length, 1)
  })

  await t.test('arguments may come at once, and others than JSON objects are kept as text', async (t) => {
    const given = block(0, { type: 'tool_use', id: 'a', name: 'x', input: { y: 1 } })
    t.match(fold(parse(framed(...given, ...end('tool_use')))), [{ arguments: { y: 1 } }])
    t.match(fold(parse(framed(...tool('a', ' ', '\n'), ...end('tool_use')))), [
      { arguments: EMPTY, arguments_text: undefined },
    ])
    t.match(fold(parse(framed(...tool('a', '[1', ']'), ...end('tool_use')))), [
      { arguments: EMPTY, arguments_text: '[1]' },
    ])
  })

  await t.test('arguments that nest too deep are kept as text', async (t) => {
    const nested = (levels: number) =>
      framed(...block(0, { type: 'tool_use', id: 'a', name: 'x', input: { y: 1 } }), ...end('tool_use')).map(
        (frame) => ({
          ...frame,
          data: frame.data.replace(':1}', `:${'['.repeat(levels)}${']'.repeat(levels)}}`),
        }),
      )
    t.match(fold(parse(nested(100))), [{ arguments: { y: [] }, arguments_text: undefined }])
    t.match(fold(parse(nested(300))), [{ arguments: EMPTY, arguments_text: /^\{"y":\[+\]+\}$/ }])
    // How deep a value JSON.stringify can write depends on Node.
    t.match(fold(parse(nested(50_000))), [{ arguments: EMPTY, arguments_text: /^(…|\{"y":\[+\]+\})$/ }])
  })

  await t.test('blocks to which a relay gave the same index, or none, are all in the message', async (t) => {
    const told = [
      ...block(0, { type: 'thinking' }, { type: 'thinking_delta', thinking: 'hm' }),
      ...block(0, { type: 'text', text: '' }, { type: 'text_delta', text: 'So.' }),
      ...tool('a', '{"n":1}'),
      ...tool('b', ''),
      ...end('tool_use'),
    ]
    const withoutEnds = told.filter(({ type }) => type !== 'content_block_stop')
    for (const [index, given] of [0, undefined, 'one'].flatMap(
      (one) =>
        [
          [one, told],
          [one, withoutEnds],
        ] as const,
    )) {
      const events = parse(framed(...given.map((event) => ('index' in event ? { ...event, index } : event))))
      t.match(fold(events), [
        { type: 'reasoning', text: 'hm' },
        { type: 'text', text: 'So.' },
        { call_id: 'call_a', arguments: { n: 1 } },
        { call_id: 'call_b', arguments: EMPTY },
      ])
    }
  })

  await t.test('words without a block, or in a block of another kind, are in the message', async (t) => {
    const delta = (index: number, told: Record<string, unknown>) => ({
      type: 'content_block_delta',
      index,
      delta: told,
    })
    const thought = { type: 'thinking_delta', thinking: 'hm' }
    const words = { type: 'text_delta', text: 'So.' }
    const signed = { type: 'signature_delta', signature: 'EA' }
    for (const [given, ...parts] of [
      [[delta(-1, { ...words, text: 'S' }), delta(-1, { ...words, text: 'o.' })], { text: 'So.' }],
      [
        [delta(-1, thought), delta(-1, words), ...tool('a', '{}')],
        { text: 'hm' },
        { text: 'So.' },
        { call_id: 'call_a' },
      ],
      [block(0, { type: 'text', text: '' }, thought), { type: 'reasoning', text: 'hm' }],
      [
        block(0, { type: 'thinking', thinking: '' }, { ...thought, text: 'hm' }, signed),
        { type: 'reasoning', text: 'hm' },
      ],
      [
        block(0, { type: 'text', text: '' }, thought, signed, words),
        { type: 'reasoning', text: 'hm' },
        { text: 'So.' },
      ],
      [
        block(0, { type: 'thinking', thinking: 'hm' }, words),
        { type: 'reasoning', text: 'hm' },
        { text: 'So.' },
      ],
    ] as const) {
      const events = parse(framed(...given, ...end('end_turn')))
      t.match(fold(events), parts)
      t.equal(fold(events).length, parts.length)
    }
    const beside = block(0, { type: 'tool_use', id: 'a', name: 'x' }, words, { partial_json: '{"n":1}' })
    t.match(
      fold(parse(framed(...beside, ...end('tool_use')))),
      [{ arguments: { n: 1 } }],
      'a call stays whole',
    )
  })

  await t.test('each of several open blocks gets its own deltas', async (t) => {
    const called = (index: number) =>
      block(
        index,
        { type: 'tool_use', id: `t${index}`, name: 'list_files' },
        { type: 'input_json_delta', partial_json: `{"n":${index}}` },
      )
    const mixed = called(0).flatMap((event, i) => [event, called(1)[i] ?? event])
    t.match(fold(parse(framed(...mixed, ...end('tool_use')))), [
      { arguments: { n: 0 } },
      { arguments: { n: 1 } },
    ])
  })

  await t.test('arguments that come after the end of their call are its own', async (t) => {
    const called = (index: number) => block(index, { type: 'tool_use', id: `t${index}`, name: 'list_files' })
    const written = (index: number, partial_json: string) => ({
      type: 'content_block_delta',
      index,
      delta: { type: 'input_json_delta', partial_json },
    })
    const [first, second] = [called(0), called(1)]
    const whole = (...events: Record<string, unknown>[]) => fold(parse(framed(...events, ...end('tool_use'))))
    t.match(
      whole(...first, ...second, written(0, '{"n":'), written(1, '{"n":1}'), written(0, '0}')),
      [{ arguments: { n: 0 } }, { arguments: { n: 1 } }],
      'none had come before',
    )
    t.match(
      whole(...first.toSpliced(1, 0, written(0, '{"n":')), ...second, written(0, '0}')),
      [{ arguments: { n: 0 }, arguments_text: undefined }, { arguments: EMPTY }],
      'some had come before',
    )
    const given = first.toSpliced(1, 0, written(0, '{"n":0}'))
    t.match(whole(...given, written(0, '{"n":0}')), [{ arguments: { n: 0 } }], 'whole ones do not grow')
    const [, words] = block(0, { type: 'text' }, { type: 'text_delta', text: 'So.' })
    t.match(whole(...first, words ?? {}), [{ arguments: EMPTY }, { text: 'So.' }], 'words are not its own')
    const others = second.toSpliced(1, 0, written(1, '{"n":1}'))
    t.match(
      parse(framed(...first, ...others, ...end('tool_use'))).filter(({ type }) => type === 'part'),
      [{ part: { call_id: 't0' } }, { part: { call_id: 't1' } }],
      'while they may come, no later call is told',
    )
    const unnumbered = { ...written(0, '{"n":0}'), index: undefined }
    t.match(
      whole(...first.slice(0, 1), unnumbered, ...first.slice(1)),
      [{ arguments: { n: 0 } }],
      'those without an index are of the call that began last',
    )
    const invalid_call = 'Its arguments came apart from it. Make one call at a time.'
    for (const [begun, late] of [
      [given, written(2, '{"n":1}')],
      [block(0, { type: 'text', text: 'So.' }), written(0, '{"n":1}')],
      [[...given, ...second], written(0, '{"n":1}')],
      [[...first, ...block(0, { type: 'text', text: 'So.' }).slice(0, 1)], written(0, '{"n":0}')],
    ] as const)
      t.strictSame(
        parse(framed(...begun, late, ...end('tool_use'))).at(-1),
        { type: 'finish', reason: 'error', invalid_call },
        'arguments that are of no call may be those of a call without arguments',
      )
    const text = block(1, { type: 'text', text: 'So.' }).slice(0, 1)
    for (const late of [[written(2, ' ')], [written(0, '{"n":0}')], [...text, written(0, '{"n":0}')]])
      t.equal(finishOf(parse(framed(...given, ...late, ...end('tool_use')))), 'tool_calls')
  })

  await t.test('a call that names no tool is left out, and the finish says so to the model', async (t) => {
    const nameless = (name: unknown) => [
      ...block(0, { type: 'text', text: 'So.' }),
      ...block(
        1,
        { type: 'tool_use', id: 'a', name, input: {} },
        { type: 'input_json_delta', partial_json: '{}' },
      ),
    ]
    for (const name of ['', null, undefined, 5]) {
      const events = parse(framed(...nameless(name), ...end('tool_use')))
      t.match(fold(events), [{ type: 'text', text: 'So.' }])
      t.equal(fold(events).length, 1)
      t.notOk(events.some(({ type }) => type === 'tool_call.delta'))
      t.strictSame(events.at(-1), {
        type: 'finish',
        reason: 'error',
        invalid_call: 'It did not name its tool.',
      })
    }
    t.equal(finishOf(parse(framed(...nameless(''), ...end('refusal')))), 'refusal')
    const others = [
      ...tool('b', '{}'),
      ...nameless('').slice(2),
      ...tool('c', '{}'),
      ...block(3, { type: 'text', text: 'So.' }),
    ]
    const rest = parse(framed(...others.slice(0, -1), ...end('tool_use')))
    t.match(
      fold(rest),
      [{ call_id: 'call_b' }, { call_id: 'call_c' }, { text: 'So.' }],
      'all other parts are kept',
    )
    t.equal(finishOf(rest), 'error')
  })

  await t.test('an answer that ended for a call, but has none, says so', async (t) => {
    const leaked = block(0, { type: 'text', text: 'court\n<invoke name="list_files">\n</invoke>' })
    for (const events of [[], leaked, block(0, { type: 'thinking', thinking: '', signature: 'EA' })])
      t.strictSame(parse(framed(...events, ...end('tool_use'))).at(-1), {
        type: 'finish',
        reason: 'stop',
        silent: 'call',
      })
  })

  await t.test('each stop reason becomes its finish', async (t) => {
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
      t.equal(finishOf(parse(framed(...text, ...end(reason)))), plain, String(reason))
      t.equal(finishOf(parse(framed(...tool('a', '{}'), ...end(reason)))), withCall, `${reason} with a call`)
    }
  })

  await t.test('thinking with nothing to read or to do after it is marked as silent', async (t) => {
    const thinking = block(0, { type: 'thinking', thinking: '', signature: 'EA' })
    const redacted = block(0, { type: 'redacted_thinking', data: 'abc' })
    const text = (words: string) => block(1, { type: 'text', text: words })
    const last = (...events: Record<string, unknown>[]) => parse(framed(...events)).at(-1)
    for (const alone of [thinking, redacted, [...thinking, ...text('\n')]])
      t.strictSame(last(...alone, ...end('end_turn')), { type: 'finish', reason: 'stop', silent: 'thoughts' })
    for (const [reason, ...events] of [
      ['end_turn', ...thinking, ...text('So.')],
      ['end_turn', ...text('So.'), ...thinking],
      ['end_turn', ...text('')],
      ['max_tokens', ...thinking],
      ['refusal', ...thinking],
      ['tool_use', ...thinking, ...tool('a', '{}')],
    ] as const)
      t.notOk('silent' in (last(...events, ...end(reason)) ?? {}), reason)
  })

  await t.test('an empty answer of which no token is counted is marked as lost', async (t) => {
    const last = (usage: unknown, stop_reason = 'end_turn', ...events: Record<string, unknown>[]) =>
      parse(
        framed(
          { type: 'message_start', message: { id: 'msg_a', usage } },
          ...events,
          { type: 'message_delta', delta: { stop_reason }, usage },
          { type: 'message_stop' },
        ),
      ).at(-1)
    const stop = { type: 'finish', reason: 'stop' }
    const none = { input_tokens: 0, output_tokens: 0 }
    t.strictSame(last(none), { ...stop, silent: 'lost' })
    for (const usage of [null, undefined, {}, { input_tokens: 5, output_tokens: 2 }])
      t.strictSame(last(usage), stop, 'it may be meant')
    t.strictSame(last(none, 'max_tokens'), { ...stop, reason: 'length' })
    t.strictSame(last(none, 'end_turn', ...block(0, { type: 'text', text: 'So.' })), stop)
  })

  await t.test('unknown events, blocks and deltas are skipped', async (t) => {
    const events = parse(
      framed(
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
          { type: 'text_delta', text: '' },
          { type: 'text_delta', text: ' it is' },
        ),
        { type: 'content_block_delta', index: 9, delta: { type: 'novel_delta', words: 'of no block' } },
        { type: 'content_block_stop', index: 9 },
        ...end('end_turn'),
      ),
    )
    t.match(fold(events), [{ type: 'text', text: 'so it is' }])
    t.equal(fold(events).length, 1)
    t.equal(events.filter(({ type }) => type === 'text.delta').length, 2, 'no reader is told nothing')
  })

  await t.test('a refusal gives the vendor’s reason, if there is one', async (t) => {
    const why = (stop_details: unknown, stop_reason = 'refusal') => {
      const delta = { type: 'message_delta', delta: { stop_reason, stop_details } }
      return parse(framed(delta, { type: 'message_stop' })).at(-1)
    }
    const finish = { type: 'finish', reason: 'refusal' }
    const details = { type: 'refusal', category: 'cyber', explanation: 'It may do harm.' }
    t.strictSame(why(details), { ...finish, refusal: 'It may do harm.' })
    t.strictSame(why({ ...details, explanation: null }), { ...finish, refusal: 'cyber' })
    t.strictSame(why(null), finish)
    t.strictSame(why(details, 'end_turn'), { type: 'finish', reason: 'stop' })
    const delta = { type: 'message_delta', delta: { stop_reason: 'refusal', stop_details: details } }
    const later = { type: 'message_delta', delta: { stop_reason: null, stop_details: null } }
    const kept = parse(framed(delta, later, { type: 'message_stop' })).at(-1)
    t.strictSame(
      kept,
      { ...finish, refusal: 'It may do harm.' },
      'a later delta does not take the reason back',
    )
  })

  await t.test('a count that is null, or 0 at the end, keeps its former value', async (t) => {
    const usage = {
      input_tokens: 5,
      cache_read_input_tokens: 7,
      cache_creation_input_tokens: 11,
      output_tokens: 1,
    }
    const later = {
      input_tokens: null,
      cache_read_input_tokens: 0,
      output_tokens: 9,
      output_tokens_details: { thinking_tokens: 4 },
    }
    const events = parse(
      framed(
        { type: 'message_start', message: { usage } },
        { type: 'message_delta', delta: {}, usage: later },
        {
          type: 'message_delta',
          delta: {},
          usage: { input_tokens: 0, cache_creation_input_tokens: 0, output_tokens: 0 },
        },
        ...end('end_turn'),
      ),
    )
    t.match(events.filter(({ type }) => type === 'usage').at(-1), {
      usage: { input_tokens: 23, cached_tokens: 7, output_tokens: 9, reasoning_tokens: 4 },
    })
    const alone = parse(framed({ type: 'message_delta', usage: { output_tokens: 3 } }, ...end('end_turn')))
    const counted = { input_tokens: 0, cached_tokens: 0, output_tokens: 3, reasoning_tokens: 0 }
    t.strictSame(alone[0], { type: 'usage', usage: counted }, 'a proxy may send a single count')
    const first = parse(
      framed({ type: 'message_start', message: { usage: { input_tokens: 3 } } }, ...end(null)),
    )
    t.strictSame(first[0], { type: 'usage', usage: { ...counted, input_tokens: 3, output_tokens: 0 } })
  })
})

t.test('a stream that breaks off anywhere is a failure', async (t) => {
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
  const bare = { error: { message: 'No deployment is left.', code: '429' } }
  t.match(
    thrownBy(() => parse([{ event: undefined, data: JSON.stringify(bare), id: undefined }])),
    { code: 'upstream_rate_limited', details: { upstream: { message: 'No deployment is left.' } } },
    'an error of a relay may have no type',
  )
  const words = { type: 'overloaded_error', message: 'Overloaded' }
  for (const [event, data] of [
    ['error', words],
    ['message', { type: 'upstream', error: words }],
    ['message', { error: words.message }],
  ] as const)
    t.match(
      thrownBy(() => parse([{ event, data: JSON.stringify(data), id: undefined }])),
      { code: 'upstream_overloaded', details: { upstream: { message: words.message } } },
      'an error is found, whatever its form and type',
    )
  const told = framed(...tool('a', '{}'), ...end('tool_use'))
  for (const event of [undefined, 'message'])
    t.equal(
      finishOf(parse(told.map((frame) => ({ ...frame, event })))),
      'tool_calls',
      `events named ${event} are read by the type in their data`,
    )
  const untyped = told.map(({ data, ...frame }) => ({
    ...frame,
    data: JSON.stringify({ ...JSON.parse(data), type: undefined }),
  }))
  t.equal(
    finishOf(parse(untyped)),
    'tool_calls',
    'events are read by their event line if their data have no type',
  )
  const garbage = { event: 'message_start', data: '<html>', id: undefined }
  t.match(
    thrownBy(() => parse([garbage])),
    { code: 'upstream_disconnected', details: { upstream: '<html>' } },
  )
})

t.test('an answer whose end the vendor does not tell is whole with the second ping', async (t) => {
  const ping = { type: 'ping' }
  const told = [...tool('a', '{}'), ...end('tool_use').slice(0, 1), ping]
  const begun = [{ type: 'message_start', message: {} }, ping, ping, ...told]
  const counts = { type: 'message_delta', delta: {}, usage: { output_tokens: 7 } }
  const events = parse(framed(...begun, counts, ping))
  t.match(fold(events), [{ type: 'tool_call', call_id: 'call_a' }])
  t.equal(finishOf(events), 'tool_calls')
  const usage = events.filter(({ type }) => type === 'usage').at(-1)
  t.match(usage, { usage: { output_tokens: 7 } }, 'counts may follow the first')
  t.match(
    thrownBy(() => parse(framed(...begun))),
    { code: 'upstream_disconnected' },
  )
})

t.test('an answer that breaks off and is followed by another answer is a failure', async (t) => {
  const start = (id: string) => ({ type: 'message_start', message: { id, usage: { input_tokens: 7 } } })
  const text = block(0, { type: 'text', text: '' }, { type: 'text_delta', text: 'So.' })
  const after = (...begun: Record<string, unknown>[]) => parse(framed(...begun, ...text, ...end('end_turn')))
  const begun = [start('msg_a'), ...text.slice(0, 2)]
  t.match(
    thrownBy(() => after(...begun, start('msg_b'))),
    { code: 'upstream_disconnected' },
  )
  const bare = { type: 'message_start', message: {} }
  for (const same of [
    [...begun, text[2], start('msg_a')],
    [...begun, text[2], bare, start('msg_a')],
    [bare, ...text, start('msg_a')],
    [start('msg_a'), start('msg_b')],
  ])
    t.match(
      after(...same.flatMap((event) => event ?? [])).at(-1),
      { reason: 'stop' },
      'a new start is fine before the first content, or if its id is no other',
    )
})
