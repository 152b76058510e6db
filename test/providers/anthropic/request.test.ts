/** What is sent to Anthropic: messages, by key and by login, held against the vendor's own types. */

import { spawnSync } from 'node:child_process'
import t from 'tap'
import { anthropic, anthropicOauth } from '../../../providers/anthropic/index.ts'
import type { ContentPart, MessageInput, Part } from '../../../src/chat/message.ts'
import { repair } from '../../../src/chat/repair.ts'
import { refusalOf } from '../../emulators/anthropic.ts'
import { MODELS } from '../../emulators/anthropic-models.ts'
import { JPEG, PDF, PNG, pngOf } from '../../emulators/bytes.ts'
import {
  answered,
  called,
  contents,
  declared,
  OPTIONS,
  render,
  results,
  returned,
  SECRET,
  said,
  TOOLS,
  thought,
  words,
} from './exchange.ts'

const PICTURE: Part = { type: 'image', media_type: 'image/png', data: PNG }

/** The beginnings of files of a size; the JPEG's frame stands behind a segment, a fill byte and a table. */
const IMAGES: [media_type: string, of: (width: number, height: number) => string][] = [
  ['image/png', pngOf],
  ['image/gif', (width, height) => base64('GIF89a', le(width, 2), le(height, 2))],
  [
    'image/jpeg',
    (width, height) =>
      base64(
        ...['\xff\xd8\xff\xe1\x40\x00', 'x'.repeat(0x3ffe), '\xff\xff\xc4\x00\x02\xff\xc2\x00\x11\x08'],
        ...[be(height, 2), be(width, 2), '\x03'],
      ),
  ],
  ['image/webp', (width, height) => webp('VP8X', le(0, 4), le(width - 1, 3), le(height - 1, 3))],
  [
    'image/webp',
    (width, height) => webp('VP8 ', '\x00\x00\x00\x9d\x01\x2a', le(0x4000 | width, 2), le(height, 2)),
  ],
  ['image/webp', (width, height) => webp('VP8L', '\x2f', le(((height - 1) << 14) | (width - 1), 4))],
]
const base64 = (...bytes: string[]) => Buffer.from(bytes.join(''), 'latin1').toString('base64')
const webp = (chunk: string, ...bytes: string[]) =>
  base64('RIFF', le(0, 4), 'WEBP', chunk, le(0, 4), ...bytes)
const le = (value: number, bytes: number) =>
  String.fromCharCode(...Array.from({ length: bytes }, (_, i) => (value >>> (8 * i)) & 0xff))
const be = (value: number, bytes: number) => [...le(value, bytes)].reverse().join('')

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
    const image = { type: 'image' as const, media_type: 'image/png', data: PNG }
    const pdf = { type: 'file' as const, media_type: 'application/pdf', data: PDF, name: 'a.pdf' }
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
      const image = { type: 'image' as const, media_type: 'image/png', data: PNG }
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
      const target = {
        provider: 'anthropic',
        model: 'm',
        credential_id: null,
        ...anthropic.capabilities('m'),
      }
      const repaired = repair([{ role: 'user', parts: [part as Part] }], target)
      const { body, notes } = render({ messages: repaired.messages })
      const [first = {}] = body.messages[0]?.content ?? []
      return { ...first, notes: [...repaired.notes, ...notes] }
    }
    const url = 'https://a.example/x'
    t.match(media({ type: 'image', media_type: 'image/jpg', data: JPEG }), {
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
    t.match(media({ type: 'image', media_type: 'image/svg+xml', url }), refused)
    t.match(media({ type: 'file', media_type: 'application/zip', data: 'aGk=', name: 'a.zip' }), refused)
    t.match(media({ type: 'file', media_type: 'text/plain', url }), refused)
    const open = url.replace('https', 'http')
    t.match(media({ type: 'image', media_type: 'image/png', url: open }), refused)
    t.match(media({ type: 'file', media_type: 'application/pdf', url: open }), refused)
    t.match(media({ type: 'file', media_type: 'text/plain', data: '' }), refused)
    t.match(media({ type: 'audio', media_type: 'audio/wav', data: 'aGk=' }), refused)
  })

  await t.test('of too many images the oldest give way, and the rest stay where they are', async (t) => {
    const image = { type: 'image' as const, media_type: 'image/png', data: PNG }
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

  await t.test('an image of too many pixels or bytes is named', async (t) => {
    const { takesMedia } = anthropic.capabilities('claude-opus-5')
    const takes = (media_type: string, data: string) => takesMedia({ type: 'image', media_type, data })
    for (const [media_type, of] of IMAGES) {
      for (const [width, height, expected] of [
        [8000, 1, true],
        [1, 8000, true],
        [8001, 1, false],
        [1, 8001, false],
      ] as const) {
        t.equal(takes(media_type, of(width, height)), expected, `${media_type} ${width} × ${height}`)
      }
      const cut = of(8001, 8001).slice(0, media_type === 'image/gif' ? 8 : 16)
      t.ok(takes(media_type, cut), `${media_type} that ends early`)
    }
    const large = (length: number) => PNG.slice(0, 8).padEnd(length, 'A')
    t.ok(takes('image/png', large(10_485_760)))
    t.notOk(takes('image/png', large(10_485_764)))
  })

  await t.test('among many images the oldest of more than 2000 pixels give way', async (t) => {
    const image = (data: string): Part => ({ type: 'image', media_type: 'image/png', data })
    const sent = (sides: number[]) => {
      const rendered = render({
        messages: sides.map((side) => ({ role: 'user', parts: [image(pngOf(side, 10))] })),
      })
      t.equal(refusalOf(rendered), null)
      const kinds = rendered.body.messages.flatMap(({ content }) => content.map(({ type }) => type))
      return { gone: kinds.flatMap((type, i) => (type === 'image' ? [] : [i])), notes: rendered.notes }
    }
    const many = (count: number, ...large: number[]) =>
      sent(Array.from({ length: count }, (_, i) => (large.includes(i) ? 2001 : 2000)))
    t.same(many(20, 0, 7), { gone: [], notes: [] })
    t.match(many(21, 3, 7), { gone: [3, 7], notes: [/2 images are left out, beside more than 20/] })
    const all = (count: number) => many(count, ...Array.from({ length: count }, (_, i) => i)).gone
    t.same(all(21), [0, 1, 2, 3, 4], 'a quarter at a time')
    t.same(all(25), [0, 1, 2, 3, 4])
    t.equal(all(26).length, 10)
    t.match(many(120, 119), { gone: [119] })
  })

  await t.test('no half of a character is sent, nor thinking that would be mended', async (t) => {
    const half = 'half \ud83d'
    const { body } = render({
      model: 'claude-opus-5',
      messages: [
        {
          role: 'user',
          parts: [words(half), { type: 'file', media_type: 'text/plain', data: 'aGk=', name: half }],
        },
        answered(
          thought(half, 'signed:a'),
          thought('whole', 'signed:\ud800'),
          thought('', 'redacted:\ud800'),
          thought('whole', 'signed:b'),
          called('call_1', { [half]: half }),
        ),
        results(returned('call_1', { name: half, is_error: true, content: [words(half), PICTURE] as never })),
      ],
    })
    t.ok(JSON.stringify(body).includes('half \ufffd'))
    t.notMatch(JSON.stringify(body), /\\ud8/)
    t.match(body.messages[1]?.content, [
      { type: 'thinking', thinking: 'whole', signature: 'b' },
      { type: 'tool_use', input: { 'half \ufffd': 'half \ufffd' } },
    ])
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
      parts: [{ type: 'image', media_type: 'image/png', data: PNG }, words('see')],
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

t.test('the login', async (t) => {
  const options = {
    ...OPTIONS,
    system_blocks: ['First.', 'Second.'],
    headers: { 'anthropic-beta': 'context-1m-2025-08-07, oauth-2025-04-20', 'x-app': 'own' },
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

t.test("the vendor's own types accept what is rendered", async (t) => {
  const image: Part = { type: 'image', media_type: 'image/png', data: PNG }
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
