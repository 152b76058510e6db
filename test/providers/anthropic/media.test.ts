/** How images, documents and results are sent to Anthropic: as they are, in words, or left out with a note. */
import t from 'tap'
import { anthropic } from '../../../providers/anthropic/index.ts'
import type { ContentPart, MediaPart, MessageInput, Part } from '../../../src/chat/message.ts'
import { repair } from '../../../src/chat/repair.ts'
import { refusalOf } from '../../emulators/anthropic.ts'
import { JPEG, PDF, PNG, pngOf } from '../../emulators/bytes.ts'
import { NONE } from '../../patterns.ts'
import { said } from '../exchange.ts'
import { answered, called, render, requestFor, results, returned } from './exchange.ts'

/** Beginnings of image files of a given size. The JPEG's frame follows a segment, a fill byte and a table. */
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

const targetOf = (model: string) => ({
  provider: 'anthropic',
  model,
  credential_id: null,
  ...anthropic.capabilities(model),
})

t.test('images, documents and texts of results keep their kinds', async (t) => {
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

t.test('a failed result has only text, and its media follow the results', async (t) => {
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
  t.match(failed([])[0], {
    is_error: true,
    content: [{ text: 'The tool failed without a message.' }],
  })
  t.match(failed([image, { type: 'text', text: 'no such page' }], [said('and?')]), [
    { tool_use_id: 'c', is_error: true, content: [{ text: 'no such page' }] },
    { tool_use_id: 'd' },
    { text: '[From the result of weather__get:]' },
    { type: 'image' },
    { text: 'and?' },
  ])
})

t.test('two hundred thousand media of a failed result are sent, with its call and without it', async (t) => {
  const image: ContentPart = { type: 'image', media_type: 'image/png', data: PNG }
  const content = Array.from({ length: 200_000 }, () => image)
  const failed = results(returned('c', { content, is_error: true, outcome: 'error' }))
  for (const before of [[said('a'), answered(called('c'))], []]) {
    const { messages } = repair([...before, failed], targetOf('claude-opus-5'))
    const sent = render({ messages }).body.messages.at(-1)?.content ?? []
    t.ok(sent.length > content.length)
  }
})

t.test('media that the API takes go as they are, and others are named in text', async (t) => {
  const text = (data: string) => Buffer.from(data).toString('base64')
  const media = (part: Partial<Part> & { media_type: string }) => {
    const repaired = repair([{ role: 'user', parts: [part as Part] }], targetOf('claude-opus-5'))
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
  t.match(media({ type: 'image', media_type: 'image/svg+xml', data: text('<svg/>'), name: 'a.svg' }), {
    type: 'document',
    source: { type: 'text', data: '<svg/>' },
    title: 'a.svg',
  })
  t.match(media({ type: 'image', media_type: 'image/svg+xml', url }), refused)
  t.match(media({ type: 'file', media_type: 'application/zip', data: 'UEsDBA==', name: 'a.zip' }), refused)
  t.match(media({ type: 'file', media_type: 'text/plain', url }), refused)
  const open = url.replace('https', 'http')
  t.match(media({ type: 'image', media_type: 'image/png', url: open }), refused)
  t.match(media({ type: 'file', media_type: 'application/pdf', url: open }), refused)
  t.match(media({ type: 'file', media_type: 'text/plain', data: '' }), refused)
  t.match(media({ type: 'audio', media_type: 'audio/wav', data: 'aGk=' }), refused)
})

t.test(
  'models of other vendors are given files of text as text, for they refuse such documents',
  async (t) => {
    const file = (name: string, data: string) => ({
      type: 'file' as const,
      media_type: name.endsWith('pdf') ? 'application/pdf' : 'text/markdown',
      name,
      data,
    })
    const parts = [file('a.md', Buffer.from('# A').toString('base64')), file('b.pdf', PDF)]
    const shown = (model: string) => {
      const repaired = repair([{ role: 'user', parts }], targetOf(model))
      const { body } = render({ model, messages: repaired.messages })
      return body.messages[0]?.content
    }
    const text = { type: 'text', text: '[a.md]\n# A' }
    t.match(shown('claude-opus-5'), [{ type: 'document' }, { type: 'document' }])
    t.match(shown('claude-opus-9'), [{ type: 'document' }, { type: 'document' }])
    t.match(shown('kimi-k3'), [text, { type: 'document' }])
    t.match(shown('deepseek-flash'), [text, { type: 'text', text: /b\.pdf.*not shown to this model/ }])
  },
)

t.test('a document’s name is cut to the length that its title may have', async (t) => {
  const pdf = (name: string) => ({ type: 'file' as const, media_type: 'application/pdf', data: PDF, name })
  const address = `https://bucket.example/a.pdf?signature=${'x'.repeat(900)}`
  const rendered = render({
    messages: [
      { role: 'user', parts: [pdf(`${'x'.repeat(499)}\u{1f600}`)] },
      answered(called('c')),
      results(returned('c', { content: [pdf(address)] })),
    ],
  })
  t.equal(refusalOf(rendered), null)
  t.match(rendered.body.messages, [
    { content: [{ title: `${'x'.repeat(499)}\ufffd` }] },
    {},
    { content: [{ content: [{ title: address.slice(0, 500) }] }] },
  ])
})

t.test('of too many images the oldest are left out, and the others stay where they are', async (t) => {
  const image = { type: 'image' as const, media_type: 'image/png', data: PNG }
  const history = (count: number): MessageInput[] =>
    Array.from({ length: count }, (_, i) => [
      said(`look ${i}`),
      answered(called(`c${i}`)),
      results(returned(`c${i}`, { content: [image] })),
    ]).flat()
  const sent = (count: number, model: string, more: MessageInput[] = []) => {
    const rendered = render({ model, messages: [...more, ...history(count)] })
    t.equal(refusalOf(rendered), null)
    const { body, notes } = rendered
    return { left: JSON.stringify(body.messages).match(/"type":"image"/g)?.length, notes, body }
  }
  t.match(sent(100, 'claude-haiku-4-5'), { left: 100, notes: NONE })
  const over = sent(101, 'claude-haiku-4-5')
  t.match(over, { left: 76, notes: [/oldest 25 images/] })
  t.equal(sent(125, 'claude-haiku-4-5').left, 100)
  t.match(over.body.messages[2]?.content, [{ content: [{ type: 'text' }] }])
  t.match(over.body.messages.at(-1)?.content, [{ content: [{ type: 'image' }] }])
  t.match(sent(101, 'claude-opus-5'), { left: 101, notes: NONE })
  const file = { type: 'file' as const, media_type: 'application/pdf', data: PDF }
  const beside = (count: number) => sent(count, 'claude-haiku-4-5', [{ role: 'user', parts: [file] }])
  t.match(beside(99), { left: 99, notes: NONE })
  t.match(beside(100), { left: 75, notes: [/at most 100 with documents/] }, 'a document counts, too')
  const message = 'The model returned the following errors: too many images and documents: 25 + 0 > 20'
  const failure = { status: 400, headers: {}, body: JSON.stringify({ error: { message } }) }
  const again = anthropic.amend(failure, requestFor({ messages: history(25) }))
  const shown = JSON.stringify(again && anthropic.render(again).body).match(/"type":"image"/g)
  t.equal(shown?.length, 20, 'another cloud may take fewer')
  t.equal(again && anthropic.amend(failure, again), null, 'the request is amended only once')
})

t.test('an image with too many pixels or bytes is not taken', async (t) => {
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
    t.ok(takes(media_type, cut), `${media_type} that ends before its size is taken`)
  }
  const large = (length: number) => PNG.slice(0, 8).padEnd(length, 'A')
  t.ok(takes('image/png', large(10_485_760)))
  t.notOk(takes('image/png', large(10_485_764)))
})

t.test('a JPEG of short segments is read in few pieces, and a medium once for all requests', async (t) => {
  const { takesMedia } = anthropic.capabilities('claude-opus-5')
  const frame = (side: number) => ['\xff\xc0\x00\x11\x08', be(side, 2), be(1, 2), '\x03']
  const jpeg = (side: number) => base64('\xff\xd8', '\xff\xe0\x00\x02'.repeat(998), ...frame(side))
  let reads = 0
  const given = (data: string): MediaPart => ({
    type: 'image',
    media_type: 'image/jpeg',
    get data() {
      reads++
      return data
    },
  })
  const decoded = t.capture(Buffer, 'from', Buffer.from)
  const large = given(jpeg(8001))
  t.notOk(takesMedia(large), 'its size is behind 998 segments')
  t.ok(decoded().length < 10)
  decoded.restore()
  t.ok(takesMedia(given(jpeg(8000))))
  const before = reads
  t.notOk(takesMedia(large))
  t.equal(reads, before)
})

t.test('among many images the oldest of more than 2000 pixels are left out', async (t) => {
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
  t.match(many(21, 3, 7), { gone: [3, 7], notes: [/2 images are left out, among more than 20/] })
  const all = (count: number) => many(count, ...Array.from({ length: count }, (_, i) => i)).gone
  t.same(all(21), [0, 1, 2, 3, 4], 'a quarter of the large images goes at a time')
  t.same(all(25), [0, 1, 2, 3, 4])
  t.equal(all(26).length, 10)
  t.match(many(120, 119), { gone: [119] })
})

t.test('media that the vendor cannot read become text, except those of the open turn', async (t) => {
  const linked = { type: 'image' as const, media_type: 'image/png', url: 'https://a.example/b.png' }
  const image = { type: 'image' as const, media_type: 'image/png', data: PNG }
  const file = { type: 'file' as const, media_type: 'application/pdf', data: PDF }
  const shot = returned('c', { content: [image], structured: { size: 1 } })
  const given: MessageInput = { role: 'user', parts: [linked, image, file] }
  const before = [given, answered(called('c')), results(shot)]
  const unread = (message: string, messages: MessageInput[], error_code?: string, status = 400) => {
    const body = JSON.stringify({
      error: { type: 'invalid_request_error', message, details: { error_code } },
    })
    return anthropic.amend({ status, headers: {}, body }, requestFor({ messages }))?.messages
  }
  const kept = (message: string, error_code?: string) =>
    unread(message, [...before, said('b')], error_code)?.[0]?.parts.filter(({ type }) => type !== 'text')
  t.same(kept('Unable to download the file. Please verify the URL and try again.'), [image, file])
  t.same(kept('messages.0.content.0.image.source.url: The image dimensions exceed max allowed size'), [file])
  t.same(kept('Scale it down.', 'image_dimensions_too_large'), [file])
  for (const blind of [
    'this model does not support image input',
    'messages[0].content: unknown variant `image`, expected one of `text`, `tool_use`, `tool_result`',
    'image input is not supported - hint: if this is unexpected, you may need to provide the mmproj',
  ])
    t.same(kept(blind), [file])
  t.same(kept('messages.0.content.2.pdf.source.base64.data: It is password protected.'), [linked, image])
  t.same(kept("messages.0.content.2: Input tag 'document' found using 'type'"), [linked, image])
  t.same(kept('Too much media: 99 document pages + 2 images > 100'), [linked, image])
  t.same(kept('too many images and documents: 2 + 599 > 600'), [linked, image])
  t.same(kept('messages: It is too long.'), undefined)

  const DAMAGED = 'Could not process image'
  const after = unread(DAMAGED, [...before, said('b')])
  t.match(after?.[0]?.parts[1], { text: /^\[image, image\/png: not shown to this model\]$/ })
  t.match(
    after?.[2]?.parts,
    [{ content: [{ text: '{"size":1}' }, { text: /not shown/ }] }],
    'the result keeps its text',
  )
  const now = [{ ...given }, ...before.slice(1)]
  const earlier = unread(DAMAGED, [...before, ...now]) ?? []
  t.same(earlier.slice(3), now, 'media of the open turn stay')
  const all = unread(DAMAGED, earlier) ?? []
  t.same(all.slice(3, 5), now.slice(0, 2))
  t.match(
    all[5]?.parts,
    [{ content: [{}, { text: /not shown/ }] }],
    'media of the open turn go once they are refused, too',
  )
  t.equal(unread(DAMAGED, all), undefined)

  const last: MessageInput = { role: 'user', parts: given.parts.map((part) => ({ ...part })) }
  const fewer = unread('Request exceeds the maximum size', [said('a'), ...before, last], undefined, 413)
  t.same(fewer?.[0], said('a'))
  t.match(
    fewer?.[1]?.parts,
    [{ text: /not shown/ }, { text: /not shown/ }, { text: /not shown/ }],
    'a request that is too large loses its earlier media',
  )
  t.match(fewer?.[3]?.parts, [{ content: [{ text: '{"size":1}' }, { text: /not shown/ }] }], 'and no texts')
  t.same(fewer?.at(-1), last)
  const turn = [
    said('look'),
    ...['c', 'd'].flatMap((id) => [answered(called(id)), results(returned(id, { content: [image] }))]),
  ]
  const newest = unread('Request exceeds the maximum size', turn, undefined, 413)
  t.match(
    newest?.[2]?.parts,
    [{ content: [{ text: /not shown/ }] }],
    'earlier media of the open turn go, too',
  )
  t.same(newest?.at(-1), turn.at(-1), 'the newest result keeps its media')
})
