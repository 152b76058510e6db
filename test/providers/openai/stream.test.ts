/** OpenAI's streams, recorded and made up, become the parts of a message; a broken stream is a failure. */
import { readdirSync } from 'node:fs'
import t from 'tap'
import { chatgpt } from '../../../providers/openai/index.ts'
import type { SseFrame } from '../../../src/sse.ts'
import { EMPTY } from '../../patterns.ts'
import { parserOf } from '../exchange.ts'
import { finishOf, fold, framed, framesOf, thrownBy } from '../streams.ts'
import { FIXTURES, fixture, origin, parse } from './exchange.ts'

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
  const streamed = two.flatMap((event) => (event.type === 'reasoning.delta' ? [event.text] : []))
  t.equal(streamed.length, 7, 'every delta is passed on')
  t.equal(
    streamed.join(''),
    parts[0]?.type === 'reasoning' && parts[0].text,
    'the deltas and the part have the same segments',
  )
  const argued = two.map((event) =>
    event.type === 'tool_call.delta' && event.index === 2 ? event.arguments_delta : '',
  )
  t.equal(argued.join(''), '{"path":"package.json"}')

  const hosted = parse(framesOf(fixture('05-hosted-mcp-public-api-only.sse')))
  t.match(fold(hosted), [{ type: 'text', text: 'The spec supports **stdio** and **Streamable HTTP**.' }])
  t.equal(fold(hosted).length, 1, 'tools that the vendor ran itself leave no call to run')
  t.equal(finishOf(hosted), 'stop')

  const filtered = parse(framesOf(fixture('03c-incomplete.sse')))
  t.strictSame(filtered.at(-1), { type: 'finish', reason: 'refusal', refusal: 'content_filter' })
  t.match(fold(filtered), [{ type: 'reasoning', text: '' }])
})

t.test('a stream that fails throws an error of the catalogue', async (t) => {
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

t.test('a stream that is cut anywhere finishes or throws, and never ends silently', async (t) => {
  const check = (frames: readonly SseFrame[], what: string) => {
    const error = thrownBy(() => {
      const reason = finishOf(parse(frames))
      if (!reason) throw new Error(`${what} ended without a finish`)
    })
    if (error) t.match(error.code, /^upstream_/, what)
  }
  for (const name of readdirSync(FIXTURES).filter((file) => file.endsWith('.sse'))) {
    const whole = fixture(name)
    const frames = framesOf(whole)
    for (let count = 0; count <= frames.length; count++)
      check(frames.slice(0, count), `${name} cut after ${count} events`)
    for (let end = whole.indexOf('\n\n'); end >= 0; end = whole.indexOf('\n\n', end + 1))
      check(framesOf(whole.slice(0, end - 10)), `${name} cut within the event that ends at ${end}`)
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

t.test('quirks of the stream are read', async (t) => {
  const folded = (...events: Record<string, unknown>[]) => fold(parse(framed(...events)))

  await t.test('a finished item overrules its done event, and this event its deltas', async (t) => {
    const at = { output_index: 0, content_index: 0 }
    const delta = { type: 'response.output_text.delta', ...at, delta: 'delt' }
    const done = { type: 'response.output_text.done', ...at, text: 'done' }
    t.match(folded(delta, done, item(0, message('item')), completed()), [{ text: 'item' }])
    t.match(folded(delta, done, completed()), [{ text: 'done' }])
    t.match(folded(delta, completed()), [{ text: 'delt' }])
    t.match(folded(delta, { ...done, text: null }, completed()), [{ text: 'delt' }])
    t.match(folded(delta, completed({ output: [message('output')] })), [{ text: 'output' }])
    t.match(folded(completed({ output: [message('only at the end')] })), [{ text: 'only at the end' }])
    t.match(folded(item(0, message('kept')), completed({ output: [message('late')] })), [{ text: 'kept' }])
    const phased = { ...message('said'), phase: 'commentary' }
    t.match(folded(added(0, message('')), item(0, phased), completed()), [
      { text: 'said', provenance: { opaque: '{"phase":"commentary"}' } },
    ])
    const thinking = item(0, { type: 'reasoning', encrypted_content: 'gAAAA' })
    const [, only] = folded(thinking, item(1, message('kept')), completed({ output: [message('kept')] }))
    t.match(only, { text: 'kept' }, 'also if the last list lacks the item before it')
    t.equal(folded(thinking, item(1, message('kept')), completed({ output: [message('kept')] })).length, 2)
    const wondered = { type: 'response.reasoning_text.delta', ...at, delta: 'hm' }
    const [hm, spoken] = folded(wondered, item(1, message('kept')), completed({ output: [message('kept')] }))
    t.match(
      [hm, spoken],
      [{ type: 'reasoning', text: 'hm' }, { text: 'kept' }],
      'the item before it keeps its words',
    )
    t.same(folded(completed()), [], 'an empty answer gives no parts')
  })

  await t.test('a content index may be of any size, or no index at all', async (t) => {
    const delta = (kind: string, content_index: number, text: string) => ({
      type: `response.${kind}.delta`,
      output_index: kind === 'output_text' ? 1 : 0,
      content_index,
      delta: text,
    })
    const thought = [delta('reasoning_text', 4_294_967_290, 'b'), delta('reasoning_text', 0, 'a')]
    const said = [delta('output_text', 4_294_967_290, 'o'), delta('output_text', 0.5, 'l')]
    t.match(
      folded(...thought, ...said, delta('output_text', -1, 'he'), delta('output_text', 7, 'l'), completed()),
      [
        { type: 'reasoning', text: 'a\n\nb' },
        { type: 'text', text: 'hello' },
      ],
    )
    t.strictSame(
      parse(framed(...said, completed())).flatMap((event) => (event.type === 'text.delta' ? event.text : [])),
      ['o', 'l'],
      'readers are shown no break between the contents of a text, which the part does not have either',
    )
  })

  await t.test('parallel calls may interleave, and deltas may be absent', async (t) => {
    const delta = (output_index: number, text: string) => ({
      type: 'response.function_call_arguments.delta',
      output_index,
      delta: text,
      obfuscation: 'zzzz',
    })
    const events = parse(
      framed(
        added(1, called('call_b', '')),
        added(0, called('call_a', '')),
        delta(0, '{"n"'),
        delta(1, '{"n":2}'),
        delta(0, ':9}'),
        item(1, called('call_b', '{"n":2}', { status: 'completed' })),
        item(0, called('call_a', '{"n":1}', { status: 'completed' })),
        item(2, called('call_c', '')),
        completed(),
      ),
    )
    t.match(fold(events), [
      { call_id: 'call_a', name: 'files.read', arguments: { n: 1 } },
      { call_id: 'call_b', arguments: { n: 2 } },
      { call_id: 'call_c', arguments: EMPTY },
    ])
    t.equal(finishOf(events), 'tool_calls')
    t.notMatch(JSON.stringify(events), /zzzz/)
  })

  await t.test('items are found by id if a relay lost their index', async (t) => {
    const announced = (id: string) => ({
      type: 'response.output_item.added',
      item: { ...message(''), id, content: [] },
    })
    const said = (item_id: string, delta: string) => ({
      type: 'response.output_text.delta',
      item_id,
      delta,
    })
    const mixed = [said('msg_1', 'a'), said('msg_2', 'c'), said('msg_1', 'b')]
    for (const begun of [[announced('msg_1'), announced('msg_2')], []])
      t.match(folded(...begun, ...mixed, completed()), [{ text: 'ab' }, { text: 'c' }])
  })

  await t.test('items to which a relay gives the same index are all kept', async (t) => {
    const told = framesOf(fixture('02-reasoning-two-tools.sse'))
    const alike = (idless: boolean) =>
      told.map((frame) => {
        const drop = (key: string) => idless && (key === 'item_id' || key === 'id')
        const data = JSON.stringify(JSON.parse(frame.data), (key, value) =>
          key === 'output_index' ? 0 : drop(key) ? undefined : value,
        )
        return { ...frame, data }
      })
    const parts = fold(parse(told))
    t.equal(parts.length, 4)
    t.same(fold(parse(alike(false))), parts)
    t.same(fold(parse(alike(true))), parts, 'items without ids are kept in the order in which they come')

    const said = (item_id: string, delta: string) => ({
      type: 'response.output_text.delta',
      output_index: 3,
      item_id,
      delta,
    })
    const [a, b] = [
      { ...message('one'), id: 'a' },
      { ...message('two'), id: 'b' },
    ]
    t.match(folded(item(0, a), item(0, b), item(0, a), completed()), [{ text: 'one' }, { text: 'two' }])
    const begun = [added(3, { ...a, content: [] }), added(3, { ...b, content: [] })]
    const mixed = [said('a', '1'), said('b', '2'), said('a', '3')]
    t.match(folded(...begun, ...mixed, completed()), [{ text: '13' }, { text: '2' }])
    t.match(folded(...begun, ...mixed, completed({ output: [a, b] })), [{ text: 'one' }, { text: 'two' }])
    const thought = (item_id: string, delta: string) => ({
      ...said(item_id, delta),
      type: 'response.reasoning_text.delta',
    })
    t.match(
      folded(thought('x', 'h'), thought('y', 'm'), added(3, a), said('a', '1'), said('a', '3'), completed()),
      [
        { type: 'reasoning', text: 'hm' },
        { type: 'text', text: '13' },
      ],
      'an item that was never announced and changes its id is kept, too',
    )
  })

  await t.test('an item to which a relay gives several indexes is one', async (t) => {
    const at = (begins: number, goesOn: number, ends: number, n: number) => {
      const call = { ...called(`call_${n}`, `{"n":${n}}`), id: `fc_${n}` }
      const args = { item_id: call.id, output_index: goesOn, arguments: call.arguments }
      return [
        added(begins, { ...call, arguments: '' }),
        { type: 'response.function_call_arguments.done', ...args },
        item(ends, call),
      ]
    }
    const calls = [{ arguments: { n: 0 } }, { arguments: { n: 1 } }]
    const order = ({ type }: { type: string }) => (type === 'response.output_item.added' ? 0 : 1)
    for (const told of [
      [...at(1, 0, 0, 0), ...at(2, 1, 1, 1)],
      [...at(0, 1, 0, 0), ...at(1, 2, 1, 1)],
      [...at(0, 0, 0, 0), ...at(1, 1, 0, 1)],
      [...at(0, 1, 0, 0), ...at(1, 0, 1, 1)].sort((a, b) => order(a) - order(b)),
    ])
      for (const lost of ['none', 'response.output_item.added', 'response.output_item.done']) {
        const answer = parse(framed(...told.filter(({ type }) => type !== lost), completed()))
        t.match(fold(answer), calls)
        t.equal(fold(answer).length, 2)
        t.equal(finishOf(answer), 'tool_calls')
      }
    const crossed = [0, 1].map((n) => item(1 - n, { ...called(`call_${n}`, `{"n":${n}}`), id: `x_${n}` }))
    const announced = [...at(0, 0, 0, 0), ...at(1, 1, 1, 1)].filter(
      ({ type }) => type !== 'response.output_item.done',
    )
    t.match(folded(...announced, ...crossed, completed()), calls, 'a call is one, whatever its id')
    const said = (output_index: number, delta: string, kind = 'output_text') => ({
      type: `response.${kind}.delta`,
      output_index,
      item_id: 'm',
      delta,
    })
    const one = { ...message('one'), id: 'm' }
    const begun = added(3, { ...one, content: [] })
    const alike = [
      said(0, 'o'),
      said(1, 'hm', 'reasoning_text'),
      item(0, one),
      said(2, 'two'),
      begun,
      said(3, 'three'),
    ]
    t.match(
      folded(...alike, completed()),
      [{ text: 'one' }, { type: 'reasoning', text: 'hm' }, { text: 'two' }, { text: 'three' }],
      'items to which it gives the same id are as many as their indexes',
    )
    for (const id of ['m', undefined]) {
      const both = [0, 1].map((place) => added(place, { ...one, id, content: [] }))
      t.match(
        folded(...both, said(0, 'one'), said(1, 'two'), completed()),
        [{ text: 'one' }, { text: 'two' }],
        'also if both are open, or were announced without it',
      )
    }
    const thought = { type: 'reasoning', id: 'm' }
    const output = [{ ...thought, summary: [{ type: 'summary_text', text: 'hm' }] }, one]
    t.match(
      folded(added(0, thought), added(1, { ...one, content: [] }), completed({ output })),
      [{ type: 'reasoning', text: 'hm' }, { text: 'one' }],
      'each is found in the last list by its kind',
    )
    const bare = { ...one, id: undefined }
    const unnamed = added(0, { ...bare, content: [] })
    const beginning = { ...said(0, 'o'), item_id: undefined }
    for (const told of [
      [beginning, added(0, { ...one, content: [] }), item(0, one)],
      [unnamed, beginning, unnamed, item(0, bare)],
      [item(0, one), { ...said(0, 'more'), item_id: 'n' }],
    ])
      t.equal(folded(...told, completed()).length, 1, 'an item is one, however it is announced')
  })

  await t.test('an event that names no item belongs to the item that began last', async (t) => {
    const bare = (type: string, more: Record<string, unknown>) => ({ type: `response.${type}`, ...more })
    const args = (delta: string) => bare('function_call_arguments.delta', { delta })
    const events = parse(
      framed(
        bare('output_item.added', { item: { ...message(''), phase: 'commentary', content: [] } }),
        bare('output_text.delta', { delta: 'a' }),
        bare('output_text.delta', { delta: '' }),
        bare('output_text.delta', { delta: null }),
        bare('output_text.delta', { delta: 'b' }),
        bare('output_item.done', { item: message('ab') }),
        bare('output_item.added', { item: called('call_a', '') }),
        args('{"n":'),
        args(''),
        args('1}'),
        bare('output_item.done', { item: called('call_a', '{"n":1}') }),
        bare('output_item.added', { item: called('call_b', '') }),
        args('{}'),
        completed(),
      ),
    )
    const provenance = { ...origin, opaque: '{"phase":"commentary"}' }
    const written = (index: number, call_id: string, arguments_delta: string) => ({
      type: 'tool_call.delta',
      index,
      call_id,
      name: 'files.read',
      arguments_delta,
    })
    const call = { type: 'tool_call', name: 'files.read', provenance: origin }
    t.strictSame(events, [
      { type: 'text.delta', index: 0, text: 'a' },
      { type: 'text.delta', index: 0, text: 'b' },
      { type: 'part', index: 0, part: { type: 'text', text: 'ab', provenance } },
      written(1, 'call_a', '{"n":'),
      written(1, 'call_a', '1}'),
      { type: 'part', index: 1, part: { ...call, call_id: 'call_a', arguments: { n: 1 } } },
      written(2, 'call_b', '{}'),
      { type: 'part', index: 2, part: { ...call, call_id: 'call_b', arguments: {} } },
      { type: 'finish', reason: 'tool_calls' },
    ])
  })

  await t.test('items that only end, and name neither a place nor an id, are all kept', async (t) => {
    const ended = (text: string) => ({
      type: 'response.output_item.done',
      item: { type: 'message', content: [{ type: 'output_text', text }] },
    })
    const events = parse(framed(ended('one'), ended('two'), completed()))
    t.match(
      events.filter(({ type }) => type === 'part'),
      [
        { index: 0, part: { text: 'one' } },
        { index: 1, part: { text: 'two' } },
      ],
    )
  })

  await t.test('events after the end of their item change nothing', async (t) => {
    const at = { output_index: 0, content_index: 0, summary_index: 0 }
    const late = (kind: string, whole: object) => [
      { type: `response.${kind}.delta`, ...at, delta: '{}' },
      { type: `response.${kind}.done`, ...at, ...whole },
    ]
    for (const [value, behind] of [
      [message('a'), late('output_text', { text: 'b' })],
      [called('call_a', '{}'), late('function_call_arguments', { arguments: '{"n":1}' })],
      [{ type: 'reasoning', encrypted_content: 'g' }, late('reasoning_summary_text', { text: 'b' })],
    ] as const) {
      const whole = parse(framed(item(0, value), completed()))
      t.strictSame(parse(framed(item(0, value), ...behind, item(0, value), completed())), whole, value.type)
    }
  })

  await t.test('reasoning may get its token in the terminal event alone', async (t) => {
    const summary = [{ type: 'summary_text', text: 'Plan' }]
    for (const bare of [{ type: 'reasoning', summary, encrypted_content: null }, { type: 'reasoning' }]) {
      const output = [{ ...bare, summary, encrypted_content: 'gA' }, message('So.')]
      const events = parse(framed(item(0, bare), item(1, message('So.')), completed({ output })))
      const opaque = '{"encrypted_content":"gA","segments":[4]}'
      t.match(fold(events), [{ text: 'Plan', provenance: { opaque } }, { text: 'So.' }])
      const thoughts = events.filter(({ type }) => type === 'reasoning.delta')
      t.match(thoughts, [{ text: 'Plan' }], 'readers are shown it once')
      t.equal(thoughts.length, 1)
      const [whole = {}] = output
      const again = parse(framed(item(0, whole), item(1, message('So.')), completed({ output })))
      t.equal(again.filter(({ type }) => type === 'part').length, 2, 'a token that came in time comes once')
    }
  })

  await t.test('an empty item becomes no part', async (t) => {
    const stop = { type: 'finish', reason: 'stop' }
    for (const [value, finish] of [
      [message(''), stop],
      [{ type: 'message' }, stop],
      [
        { type: 'reasoning', summary: [] },
        { ...stop, silent: 'thoughts' },
      ],
    ] as const)
      t.strictSame(parse(framed(item(0, value), completed())), [finish])
  })

  await t.test('an empty answer of which no token is counted is marked as lost', async (t) => {
    const last = (usage: unknown, ...items: Record<string, unknown>[]) =>
      parse(framed(...items, completed({ usage }))).at(-1)
    const stop = { type: 'finish', reason: 'stop' }
    t.strictSame(last({ input_tokens: 5, output_tokens: 0 }), { ...stop, silent: 'lost' })
    for (const usage of [null, undefined, { input_tokens: 5 }, { output_tokens: 2 }])
      t.strictSame(last(usage), stop, 'it may be meant')
    t.strictSame(last({ output_tokens: 0 }, item(0, message('So.'))), stop)
    const thought = item(0, { type: 'reasoning', summary: [] })
    t.strictSame(last({ output_tokens: 0 }, thought), { ...stop, silent: 'thoughts' })
    const made = { type: 'image_generation_call', status: 'completed', result: 'AAAA' }
    for (const told of [message('So.'), made]) {
      const events = parse(
        framed(item(0, told), item(1, { type: 'reasoning', encrypted_content: 'g' }), completed()),
      )
      t.strictSame(events.at(-1), stop, 'reasoning beside an answer is not all there is')
      t.notOk(
        events.some(({ type }) => type === 'reasoning.delta'),
        'no reader is told nothing',
      )
    }
  })

  await t.test('a missing count is 0', async (t) => {
    const [counted] = parse(framed(completed({ usage: { output_tokens: 3 } })))
    const usage = { input_tokens: 0, output_tokens: 3, reasoning_tokens: 0, cached_tokens: 0 }
    t.strictSame(counted, { type: 'usage', usage })
    const [other] = parse(framed(completed({ usage: { input_tokens: 3 } })))
    t.strictSame(other, { type: 'usage', usage: { ...usage, input_tokens: 3, output_tokens: 0 } })
  })

  await t.test(
    'calls to which a relay gives the same index and the same or no id are told apart by call id',
    async (t) => {
      const streamOf = (more: object) =>
        ['1', '2'].map((call) => [
          added(0, called(`call_${call}`, '', more)),
          { type: 'response.function_call_arguments.done', output_index: 0, arguments: `{"n":${call}}` },
          item(0, called(`call_${call}`, `{"n":${call}}`, more)),
        ])
      const both = [
        { call_id: 'call_1', arguments: { n: 1 } },
        { call_id: 'call_2', arguments: { n: 2 } },
      ]
      for (const more of [{}, { id: 'fc' }]) {
        const [one = [], two = []] = streamOf(more)
        for (const [how, events] of Object.entries({
          'one after the other': [...one, ...two],
          mixed: one.flatMap((event, at) => [event, two[at] ?? event]),
          'only their ends': [...one.slice(2), ...two.slice(2)],
        })) {
          const parts = folded(...events, completed())
          t.equal(parts.length, 2, how)
          t.match(parts, both, how)
          const unplaced = events.map(({ output_index: _, ...event }) => event)
          if (how !== 'mixed') t.match(folded(...unplaced, completed()), both, `${how}, without an index`)
        }
      }
    },
  )

  await t.test('an item without an end is found by its id anywhere in the last list', async (t) => {
    const [a, b] = [
      { ...message('one'), id: 'a' },
      { ...message('two'), id: 'b' },
    ]
    const thought = { type: 'reasoning', id: 'r', summary: [] }
    const said = { type: 'response.output_text.delta', item_id: 'b', delta: 'tw' }
    for (const output of [
      [thought, b],
      [a, b],
      [b, a],
    ]) {
      const parts = folded(said, completed({ output }))
      t.equal(parts.filter((part) => 'text' in part && part.text === 'two').length, 1)
      t.match(parts[0], { text: 'two' })
    }
    const announced = { ...added(0, { ...b, content: [] }) }
    t.equal(folded(announced, { ...said, output_index: 0 }, completed({ output: [thought, b] })).length, 1)
    t.match(
      folded(item(1, { ...b, id: 'c' }), completed({ output: [{ ...thought, encrypted_content: 'x' }, b] })),
      [{ type: 'reasoning' }, { text: 'two' }],
      'an item that came only there is in the message',
    )
  })

  await t.test(
    'the last list names the items of a relay that counts with gaps, and changes their ids',
    async (t) => {
      const said = (output_index: number, id: string) =>
        added(output_index, { ...message(''), id, content: [] })
      const call = called('call_a', '{"n":1}')
      const output = [
        { ...message('one'), id: 'x' },
        { ...call, id: 'y' },
        { ...message('two'), id: 'z' },
      ]
      const whole = [{ text: 'one' }, { arguments: { n: 1 } }, { text: 'two' }]
      for (const [first, second, third] of [
        [1, 3, 5],
        [5, 3, 1],
        [0, 0, 0],
      ] as const)
        for (const own of [item, added]) {
          const events = [said(first, 'a'), own(second, { ...call, id: 'b' }), said(third, 'c')]
          const parts = folded(...events, completed({ output }))
          t.match(parts, whole, `${own(0, {}).type} at ${second}`)
          t.equal(parts.length, 3)
        }
      const ended = [item(1, { ...message('one'), id: 'a' }), item(3, { ...call, id: 'b' })]
      t.equal(
        folded(...ended, completed({ output: output.slice(1, 2) })).length,
        2,
        'a call is known by its own id',
      )
      const id = 'same'
      const [lost, kept] = [called('call_a', '{"n":1}', { id }), called('call_b', '{"n":2}', { id })]
      const begun = [
        added(0, { ...kept, arguments: '' }),
        { type: 'response.function_call_arguments.delta', output_index: 0, delta: '{"n":2}' },
      ]
      t.match(
        folded(...begun, completed({ output: [lost, kept] })),
        [{ call_id: 'call_b', arguments: { n: 2 } }],
        "not by its item's id, which another call may have, too",
      )
    },
  )

  await t.test('a call that names no tool is left out, and the finish says so to the model', async (t) => {
    const nameless = [
      added(0, called('call_a', '', { name: '' })),
      { type: 'response.function_call_arguments.delta', output_index: 0, delta: '{}' },
      item(0, called('call_a', '{}', { name: null })),
    ]
    const events = parse(framed(item(1, called('call_b', '{}')), ...nameless, completed()))
    t.match(fold(events), [{ call_id: 'call_b' }])
    t.equal(fold(events).length, 1)
    t.notMatch(JSON.stringify(events), 'call_a', 'the invalid call is in no event')
    t.strictSame(events.at(-1), {
      type: 'finish',
      reason: 'error',
      invalid_call: 'It did not name its tool.',
    })
    const delta = { type: 'response.output_text.delta', output_index: 2, delta: 'So.' }
    const rest = parse(framed(...nameless, delta, completed({ usage: { input_tokens: 1 } })))
    t.match(fold(rest), [{ text: 'So.' }], 'the other parts are kept')
    t.match(rest.at(-2), { type: 'usage' }, 'the usage is kept')
    const refused = item(1, { type: 'message', content: [{ type: 'refusal', refusal: 'No.' }] })
    t.equal(finishOf(parse(framed(...nameless, refused, completed()))), 'refusal')
    const cut = { type: 'response.incomplete', response: {} }
    t.equal(finishOf(parse(framed(...nameless.slice(0, 2), cut))), 'length', 'a cut call is no invalid one')
    const late = [...nameless.slice(0, 2), item(0, called('call_a', '{}')), completed()]
    t.equal(finishOf(parse(framed(...late))), 'tool_calls', 'a call’s name may come with its end')
  })

  await t.test('an item that is announced without its type gets the type of its events', async (t) => {
    const at = { output_index: 0, content_index: 0 }
    const delta = { type: 'response.output_text.delta', ...at, delta: 'a' }
    const end = { type: 'response.output_item.done', output_index: 0 }
    t.match(folded({ type: 'response.output_item.added', output_index: 0 }, delta, end, completed()), [
      { type: 'text', text: 'a' },
    ])
  })

  await t.test('a call without an end is kept as text unless its arguments are whole', async (t) => {
    const told = (what: string, more: Record<string, unknown>) => ({
      type: `response.function_call_arguments.${what}`,
      output_index: 0,
      ...more,
    })
    const events = [
      added(0, called('call_a', '', { status: 'in_progress' })),
      told('delta', { delta: '{"n"' }),
      told('delta', { delta: ':1}' }),
    ]
    const cut = {
      type: 'response.incomplete',
      response: { incomplete_details: { reason: 'max_output_tokens' } },
    }
    t.match(folded(...events, completed()), [{ arguments: { n: 1 } }])
    t.match(
      folded(...events, told('done', {}), completed()),
      [{ arguments: { n: 1 } }],
      'an end that does not repeat the arguments takes none away',
    )
    t.match(
      folded(...events.slice(0, 2), cut),
      [{ arguments: EMPTY, arguments_text: '{"n"' }],
      'the call is kept as text',
    )
    t.match(
      folded(...events, told('delta', { delta: '\n\n  ' }), cut),
      [{ arguments: { n: 1 }, arguments_text: undefined }],
      'the limit was met after the arguments',
    )
    t.equal(finishOf(parse(framed(...events, cut))), 'length')
    t.same(
      folded(added(0, called('call_a', '')), told('delta', { delta: ' ' }), cut),
      [],
      'a call that was cut before its first argument is left out',
    )
    const broken = item(0, called('call_a', '{"n":', { status: 'completed' }))
    t.match(folded(broken, completed()), [{ arguments: EMPTY, arguments_text: '{"n":' }])
    const silent = item(0, called('call_a', '{"n":1}', { status: null }))
    t.match(folded(silent, completed()), [{ arguments: { n: 1 } }], 'a call without a status is not cut')
    const nameless = { type: 'response.function_call_arguments.done', output_index: 0, arguments: '{}' }
    t.same(folded(nameless, completed()), [])
  })

  await t.test('arguments that a relay gives as a JSON value are read', async (t) => {
    const { arguments: _, ...call } = called('call_a', '')
    const given = (told: unknown) => folded(item(0, { ...call, arguments: told }), completed())
    t.match(given({ n: 1 }), [{ arguments: { n: 1 }, arguments_text: undefined }])
    t.match(
      given([1]),
      [{ arguments: EMPTY, arguments_text: '[1]' }],
      'arguments that are no object are kept as text',
    )
    t.match(given(null), [{ arguments: EMPTY, arguments_text: undefined }])
    const done = { type: 'response.function_call_arguments.done', output_index: 0, arguments: { n: 2 } }
    t.match(folded(added(0, called('call_a', '')), done, completed()), [{ arguments: { n: 2 } }])
  })

  await t.test('a refusal becomes text, and the finish is refusal', async (t) => {
    const events = parse(
      framed(
        { type: 'response.refusal.delta', output_index: 0, content_index: 0, delta: 'No' },
        item(0, { type: 'message', content: [{ type: 'refusal', refusal: 'No.' }] }),
        completed(),
      ),
    )
    t.match(fold(events), [{ type: 'text', text: 'No.' }])
    t.equal(events[0]?.type, 'text.delta')
    t.equal(finishOf(events), 'refusal')
    const [said] = message('Well, ').content
    const mixed = { type: 'message', content: [said, { type: 'refusal', refusal: 'no.' }] }
    const only = parse(framed(item(0, mixed), completed()))
    t.match(fold(only), [{ type: 'text', text: 'Well, no.' }])
    t.equal(finishOf(only), 'refusal')
    for (const last of ['delta', 'refusal']) {
      const type = `response.refusal.${last === 'delta' ? 'delta' : 'done'}`
      t.equal(finishOf(parse(framed({ type, output_index: 0, [last]: 'No.' }, completed()))), 'refusal', type)
    }
  })

  await t.test("a relay's response.done is read by its status", async (t) => {
    const end = (response: Record<string, unknown>) => framed({ type: 'response.done', response })
    t.equal(finishOf(parse(end({}))), 'stop')
    t.equal(finishOf(parse(end({ status: 'incomplete' }))), 'length')
    t.equal(finishOf(parse(framed(completed({ status: 'incomplete' })))), 'length', 'as vLLM says it')
    t.match(
      thrownBy(() => parse(end({ status: 'failed', error: { code: 'invalid_prompt' } }))),
      { code: 'upstream_rejected' },
    )
  })

  await t.test('response.failed is a failure at once, whatever its status', async (t) => {
    for (const status of ['in_progress', 'completed', 'incomplete', null, 5]) {
      const event = { type: 'response.failed', response: { status, error: { code: 'invalid_prompt' } } }
      const parser = parserOf(chatgpt, origin)
      t.match(
        // The connection may stay open: nobody says that this is the end.
        thrownBy(() => framed(event).map((frame) => parser.push(frame))),
        { code: 'upstream_rejected' },
      )
    }
  })

  await t.test('the reason of a failed response may come in an error event after it', async (t) => {
    const frames = framed({ type: 'response.failed', response: { status: 'failed', error: null } })
    t.match(
      thrownBy(() => parse(frames)),
      { code: 'upstream_overloaded' },
      'it is a failure without, too',
    )
    const reason = { code: 'content_policy_violation', message: 'The prompt was filtered.' }
    t.match(
      thrownBy(() => parse([...frames, ...framed({ type: 'error', error: reason })])),
      { code: 'upstream_rejected', details: { upstream: reason } },
    )
  })

  await t.test('a type may be in the event line only, and unknown types are skipped', async (t) => {
    const frames: SseFrame[] = [
      ...framed({ type: 'response.teleported', output_index: 0 }, { type: 'keepalive' }),
      ...framed({ type: 'response.custom_tool_call_input.delta', output_index: 0, delta: 'x' }),
      ...framed(item(0, { type: 'custom_tool_call', call_id: 'c', name: 'x', input: 'y' })),
      { event: 'response.completed', data: '{"response":{}}', id: undefined },
    ]
    const events = parse(frames)
    t.same(events, [{ type: 'finish', reason: 'stop' }])
    const told = framed(item(0, message('a')), completed())
    for (const event of [undefined, 'message'])
      t.match(
        fold(parse(told.map((frame) => ({ ...frame, event })))),
        [{ text: 'a' }],
        `events named ${event} are read by the type in their data`,
      )
  })

  await t.test('an image that the vendor made becomes a part', async (t) => {
    const made = { type: 'image_generation_call', status: 'completed', output_format: 'webp', result: 'AAAA' }
    t.same(folded(item(0, made), completed()), [{ type: 'image', media_type: 'image/webp', data: 'AAAA' }])
    t.same(folded(item(0, { ...made, result: 'A-8' }), completed()), [
      { type: 'image', media_type: 'image/webp', data: 'A+8=' },
    ])
    t.same(folded(item(0, { ...made, result: 'no base64!' }), completed()), [])
    t.match(folded(item(0, { ...made, output_format: null }), completed()), [{ media_type: 'image/png' }])
    t.same(
      folded(item(0, { ...made, type: 'file_search_call' }), completed()),
      [],
      'only the result of an image call is content',
    )
  })

  await t.test('raw reasoning of an open-weight model is kept without a token to send back', async (t) => {
    const delta = { type: 'response.reasoning_text.delta', output_index: 0, content_index: 0, delta: 'hm' }
    const whole = { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'hmm' }] }
    const events = parse(framed(delta, item(0, whole), completed()))
    t.same(events[0], { type: 'reasoning.delta', index: 0, text: 'hm' })
    t.same(fold(events), [{ type: 'reasoning', text: 'hmm', provenance: origin }])
  })

  await t.test('errors within the stream are read in each of their shapes', async (t) => {
    const flat = { type: 'error', code: 'rate_limit_exceeded', message: 'Please try again in 1.5s.' }
    t.match(
      thrownBy(() => parse(framed(flat))),
      { code: 'upstream_rate_limited', retryAfter: 2, details: { upstream: { type: null } } },
    )
    const relayed = JSON.parse(fixture('04b-usage-limit-ws-frame.json')) as Record<string, unknown>
    t.match(
      thrownBy(() => parse(framed(relayed))),
      { code: 'upstream_rate_limited', retryAfter: 5413, details: { upstream: { status: 429 } } },
    )
    const odd = { ...flat, message: '', headers: { 'retry-after-ms': 7000, a: { toString: 1 }, b: null } }
    t.match(
      thrownBy(() => parse(framed(odd))),
      { code: 'upstream_rate_limited', retryAfter: 7 },
    )
    const bare = { error: { message: 'The request queue is full.', code: '503' } }
    t.match(
      thrownBy(() => parse([{ event: undefined, data: JSON.stringify(bare), id: undefined }])),
      { code: 'upstream_overloaded', message: /queue is full/ },
      'an error of a relay may have no type',
    )
    const words = 'The upstream is gone.'
    for (const event of [
      { type: 'error', error: words },
      { type: 'response.failed', response: { status: 'failed', error: words } },
    ]) {
      t.match(
        thrownBy(() => parse(framed(event))),
        { code: 'upstream_overloaded', details: { upstream: { message: words } } },
        `${event.type} whose error is only words`,
      )
    }
    t.match(
      thrownBy(() => parse([{ event: 'x', data: '{"type":', id: undefined }])),
      { code: 'upstream_disconnected' },
    )
    const told = { type: 'server_error', code: 'server_is_overloaded', message: 'Try again later.' }
    const wrapped = { type: 'upstream', error: told }
    for (const [event, data] of [
      ['error', told],
      ['message', wrapped],
    ] as const)
      t.match(
        thrownBy(() => parse([{ event, data: JSON.stringify(data), id: undefined }])),
        { code: 'upstream_overloaded', details: { upstream: { message: told.message, type: told.type } } },
        'an error is found, whatever its type',
      )
  })
})

t.test('an answer that comes only in `.done` events is whole', async (t) => {
  const at = (output_index: number) => ({ output_index, content_index: 0, summary_index: 0 })
  const added = (output_index: number, item: object) => ({
    type: 'response.output_item.added',
    output_index,
    item,
  })
  const events = parse(
    framed(
      added(0, { type: 'reasoning', id: 'rs_1' }),
      { type: 'response.reasoning_summary_text.done', output_index: 0, summary_index: 1, text: 'Twice.' },
      { type: 'response.reasoning_summary_text.done', output_index: 0, summary_index: 0, text: 'Thought.' },
      added(1, { type: 'reasoning', id: 'rs_2' }),
      { type: 'response.reasoning_text.done', ...at(1), text: 'Raw.' },
      { type: 'response.reasoning_text.done', ...at(1), content_index: 1, text: 'Rare.' },
      added(2, { type: 'message', id: 'msg_1' }),
      { type: 'response.refusal.done', ...at(2), refusal: 'No.' },
      added(3, { type: 'function_call', id: 'fc_1', call_id: 'call_1', name: 'look' }),
      { type: 'response.function_call_arguments.done', ...at(3), arguments: '{"a":1}' },
      { type: 'response.completed', response: { status: 'completed', output: [] } },
    ),
  )
  t.match(fold(events), [
    { type: 'reasoning', text: 'Thought.\n\nTwice.' },
    { type: 'reasoning', text: 'Raw.\n\nRare.' },
    { type: 'text', text: 'No.' },
    { type: 'tool_call', name: 'look', arguments: { a: 1 } },
  ])
  t.same(
    events.filter(({ type }) => type.endsWith('.delta')),
    [
      { type: 'reasoning.delta', index: 0, text: 'Thought.\n\nTwice.' },
      { type: 'reasoning.delta', index: 1, text: 'Raw.\n\nRare.' },
      { type: 'text.delta', index: 2, text: 'No.' },
    ],
    'its texts are streamed, too',
  )
})

t.test('an answer that breaks off and is followed by another answer is a failure', async (t) => {
  const begun = (id?: string) => ({ type: 'response.created', response: { id } })
  const answer = (...events: Record<string, unknown>[]) => parse(framed(...events, completed()))
  const call = item(0, called('call_a', '{}'))
  t.match(
    thrownBy(() => answer(begun('resp_1'), call, begun('resp_2'), item(0, called('call_b', '{}')))),
    { code: 'upstream_disconnected', message: /began another/ },
    'its call is not made beside those of the other answer',
  )
  for (const same of [
    [begun('resp_1'), call, begun('resp_1')],
    [begun('resp_1'), call, begun()],
    [begun(), call, begun('resp_1')],
    [begun('resp_1'), begun('resp_2'), call],
  ])
    t.equal(
      finishOf(answer(...same)),
      'tool_calls',
      'a new start is fine before the first item, or of the same id',
    )
})
