/** What a medium is, by its bytes and by a type that vendors know; and how a model is shown it. */
import t from 'tap'
import { asItIs } from '../../src/chat/media.ts'
import type { MediaKind, MediaPart, MessageInput, Part, ToolResultPart } from '../../src/chat/message.ts'
import { repair } from '../../src/chat/repair.ts'
import { JPEG, PDF, PNG } from '../emulators/bytes.ts'
import { NONE } from '../patterns.ts'
import { BOUND } from './histories.ts'

t.test('image/jpg is taken for image/jpeg, also where there are no bytes to look at', async (t) => {
  const url = 'https://pictures.example/1'
  t.same(asItIs({ type: 'image', media_type: 'image/JPG', url }), {
    type: 'image',
    media_type: 'image/jpeg',
    url,
  })
  const data = Buffer.from('this is no picture').toString('base64')
  t.equal(asItIs({ type: 'image', media_type: 'image/jpg', data }), null, 'not where its bytes deny it')
})

t.test('the parameters of a media type are left out', async (t) => {
  const data = Buffer.from('hello').toString('base64')
  const file = { type: 'file' as const, media_type: 'Text/Plain ; charset=utf-8', data }
  t.strictSame(asItIs(file), { ...file, media_type: 'text/plain' })
  const image = { type: 'image' as const, media_type: 'image/png;q=1', url: 'https://pictures.example/1' }
  t.strictSame(asItIs(image), { ...image, media_type: 'image/png' })
})

t.test('a text in UTF-16 is shown in UTF-8', async (t) => {
  const words = 'Zoë said 👋'
  const little = Buffer.from(`\ufeff${words}`, 'utf16le')
  for (const bytes of [little, Buffer.from(little).swap16()]) {
    const file: MediaPart = { type: 'file', media_type: 'text/csv', data: bytes.toString('base64') }
    t.strictSame(asItIs(file), { ...file, data: Buffer.from(words).toString('base64') })
    for (const media_type of ['application/octet-stream', 'application/x-yaml'])
      t.strictSame(asItIs({ ...file, media_type }), asItIs({ ...file, media_type: 'text/plain' }), media_type)
    const mark: MediaPart = { ...file, data: bytes.subarray(0, 2).toString('base64') }
    t.equal(asItIs(mark), mark, 'vendors refuse a file of no bytes')
    const binary = Buffer.concat([bytes, Buffer.alloc(4)])
    const other: MediaPart = { ...file, media_type: 'application/zip', data: binary.toString('base64') }
    t.equal(asItIs(other), other, 'only a text')
  }
  const bare: MediaPart = {
    type: 'file',
    media_type: 'text/plain',
    data: little.subarray(2).toString('base64'),
  }
  t.equal(asItIs(bare), bare, 'without its mark it might be anything')
})

t.test('a text in an older charset is shown in UTF-8', async (t) => {
  const shown = (media_type: string, bytes: Buffer) =>
    Buffer.from(asItIs({ type: 'file', media_type, data: bytes.toString('base64') })?.data ?? '', 'base64')
  const western = Buffer.from('Größe;5 \x80\r\n', 'latin1')
  for (const type of [
    'text/csv',
    'text/csv; charset=utf-8',
    'text/csv; charset=none-such',
    'application/vnd.ms-excel',
  ])
    t.equal(shown(type, western).toString(), 'Größe;5 €\r\n', type)
  const russian = Buffer.from('cff0e8e2e5f2', 'hex')
  for (const type of ['text/html;charset=windows-1251', 'Text/HTML; x=y; Charset="CP1251"'])
    t.equal(shown(type, russian).toString(), 'Привет', type)
  const utf8 = Buffer.from('Größe')
  t.strictSame(shown('text/csv; charset=iso-8859-1', utf8), utf8, 'whatever its type says of UTF-8')
  const cut = Buffer.from('日本語').subarray(0, -1)
  for (const type of ['text/plain', 'text/csv; charset=shift_jis'])
    t.equal(shown(type, cut).toString(), '日本\ufffd', 'nor of UTF-8 that was cut')
  t.equal(
    shown('text/plain', Buffer.concat([utf8, Buffer.of(0xff)])).toString(),
    'Größe\ufffd',
    'a stray byte',
  )
  const binary = Buffer.concat([western, Buffer.alloc(1)])
  t.strictSame(shown('text/plain', binary), binary, 'only a text')
})

t.test('the cost of a long media type does not grow faster than its length', async (t) => {
  const { user } = process.cpuUsage()
  asItIs({ type: 'image', media_type: `x${' '.repeat(200_000)}y`, data: 'aGk=' })
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 2)
})

t.test('a medium is shown as what its bytes are, and only named where they belie its type', async (t) => {
  const shown = (part: Omit<MediaPart, 'type'> & { type?: MediaKind }) => {
    const one: MediaPart = { type: 'image', ...part }
    const to = { ...BOUND, takesMedia: () => true }
    const { messages, notes } = repair([{ role: 'user', parts: [one] }], to)
    const [ready] = messages[0]?.parts ?? []
    return ready === one ? 'as it is' : { ...ready, notes }
  }
  t.match(shown({ media_type: 'image/png', data: JPEG }), {
    type: 'image',
    media_type: 'image/jpeg',
    notes: NONE,
  })
  t.match(shown({ media_type: 'image/JPG', data: JPEG }), { media_type: 'image/jpeg' })
  t.match(shown({ media_type: 'image/jpeg', data: PDF }), { type: 'file', media_type: 'application/pdf' })
  t.match(shown({ type: 'file', media_type: 'application/octet-stream', data: PNG }), { type: 'image' })
  t.match(shown({ type: 'file', media_type: 'image/png', url: 'https://x.test/a' }), { type: 'image' })
  const riff = (form: string) => Buffer.from(`RIFF\x01\x02\x03\x04${form}VP8 `).toString('base64')
  t.match(shown({ media_type: 'image/png', data: riff('WEBP') }), { media_type: 'image/webp' })
  const heif = (brand: string) => Buffer.from(`\0\0\0\x18ftyp${brand}\0\0\0\0`).toString('base64')
  for (const media_type of ['image/png', 'image/jpeg', 'application/octet-stream', 'image/heif'])
    t.match(shown({ type: 'file', media_type, data: heif('heic') }), {
      type: 'image',
      media_type: 'image/heic',
    })
  t.equal(shown({ media_type: 'image/heic', data: heif('mif1') }), 'as it is')
  t.equal(shown({ type: 'file', media_type: 'video/mp4', data: heif('isom') }), 'as it is')
  const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"/>').toString('base64')
  for (const [media_type, data] of [
    ['image/png', svg],
    ['image/webp', riff('WAVE')],
    ['image/gif', Buffer.from('GIF files').toString('base64')],
    ['application/pdf', Buffer.from('hello').toString('base64')],
  ] as const) {
    const notes = [
      `messages: a medium of type ${media_type} is of another type by its bytes; the model is told that it exists`,
    ]
    t.match(shown({ media_type, data }), { type: 'text', text: /not shown/, notes }, media_type)
  }
  const late = Buffer.from(`\n${' '.repeat(900)}%PDF-1.4`).toString('base64')
  t.equal(shown({ type: 'file', media_type: 'application/pdf', data: late }), 'as it is')
  t.equal(shown({ type: 'file', media_type: 'text/plain', data: late }), 'as it is')
  const gif = Buffer.from('GIF89a').toString('base64')
  for (const medium of [PNG, JPEG, PDF, gif, riff('WEBP')]) {
    const data = Buffer.concat([Buffer.from('>'), Buffer.from(medium, 'base64')]).toString('base64')
    t.equal(shown({ type: 'file', media_type: 'text/plain', data }), 'as it is', 'no sign stands later')
  }
  t.equal(shown({ media_type: 'image/png', url: 'https://x.test/a.svg' }), 'as it is')
})

t.test('a text is shown as one, whatever the browser that sent it takes its type for', async (t) => {
  const shown = (media_type: string, bytes: string | Buffer) => {
    const data = Buffer.from(bytes).toString('base64')
    return asItIs({ type: 'file', media_type, data, name: 'a' })?.media_type
  }
  const words = '\ufefflist:\r\n\t- Zoë 👋 \x1b[1mbold\x1b[0m\f'
  for (const type of [
    'application/octet-stream',
    'application/x-yaml',
    'application/toml',
    'application/sql',
    'application/javascript',
    'application/x-sh',
    'application/vnd.ms-excel',
    'video/mp2t',
    'image/svg+xml',
  ]) {
    t.equal(shown(type, words), 'text/plain', type)
    t.equal(shown(type, `${words}${'x'.repeat(5000)}`), 'text/plain', `a long ${type}`)
    for (const binary of ['PK\x03\x04', 'G\x00\x11', ''])
      t.equal(shown(type, binary), type, `${type} that is none`)
    // Only CSV files of Excel's are known to be texts in an older charset.
    if (type === 'application/vnd.ms-excel') continue
    for (const binary of ['Zo\xeb', `${'x'.repeat(5000)}\xff`])
      t.equal(shown(type, Buffer.from(binary, 'latin1')), type, 'bytes that are no text')
  }
  const known = 'application/json application/atom+xml text/csv application/rtf message/rfc822 audio/webm'
  for (const type of known.split(' ')) t.equal(shown(type, words), type, `${type} is known for what it is`)
  const url = 'https://x.test/a.yaml'
  t.equal(asItIs({ type: 'file', media_type: 'application/yaml', url })?.media_type, 'application/yaml')
})

t.test('a medium that was stored in a lenient form is shown in the strict one', async (t) => {
  const shown = (part: Omit<MediaPart, 'type'>) => {
    const given: MessageInput = { role: 'user', parts: [{ type: 'file', ...part }] }
    return repair([given], { ...BOUND, takesMedia: () => true }).messages[0]?.parts[0]
  }
  t.hasStrict(shown({ media_type: 'image/png', data: PNG.replace('=', '') }), { type: 'image', data: PNG })
  t.hasStrict(shown({ media_type: 'text/plain', data: 'aGk' }), { data: 'aGk=' })
  t.hasStrict(shown({ media_type: 'text/plain', data: 'aGkh==' }), { data: 'aGkh' })
  t.hasStrict(shown({ media_type: 'image/png', url: ' HTTPS://x.test/\ud800' }), {
    url: 'https://x.test/%EF%BF%BD',
  })
  t.hasStrict(shown({ media_type: 'image/png', url: 'no address' }), { url: 'no address' })
})

t.test('a medium that is not shown has a note, and the structured result beside it is shown', async (t) => {
  const image: MediaPart = { type: 'image', media_type: 'image/png', data: PNG }
  const link: MediaPart = { type: 'file', media_type: 'application/pdf', url: 'https://x.test/a' }
  const words: Part = { type: 'text', text: 'see' }
  const given = (content: ToolResultPart['content'], rest: Partial<ToolResultPart>): MessageInput[] => [
    { role: 'user', parts: [image] },
    { role: 'assistant', parts: [{ type: 'tool_call', call_id: 'c', name: 's.t', arguments: {} }, link] },
    {
      role: 'tool',
      parts: [
        {
          type: 'tool_result',
          call_id: 'c',
          name: 's.t',
          content,
          is_error: false,
          outcome: 'ok',
          ...rest,
        },
      ],
    },
  ]
  const structure: Partial<ToolResultPart> = { structured: { a: 1 } }
  const shown = (content: ToolResultPart['content'], to = BOUND, rest = structure) => {
    const { messages, notes } = repair(given(content, rest), to)
    const [result] = messages.flatMap(({ parts }) => parts.filter((part) => part.type === 'tool_result'))
    const { content: texts = [], structured } = result ?? {}
    return { texts: texts.map((part) => (part.type === 'text' ? part.text : part.type)), structured, notes }
  }
  const named = '[file, application/pdf, https://x.test/a: not shown to this model]'
  t.strictSame(shown([link]), {
    texts: ['{"a":1}', named],
    structured: undefined,
    notes: [
      'messages: a medium of type image/png is not accepted; the model is told that it exists',
      'messages: a medium of type application/pdf by URL is not accepted; the model is told that it exists',
    ],
  })
  t.match(shown([words, link]), { texts: ['see', named], structured: undefined })
  const blank: Part = { type: 'text', text: ' ' }
  t.match(shown([blank, link]), { texts: ['{"a":1}', named], structured: undefined })
  t.match(shown([link], BOUND, {}), { texts: { length: 1, 0: named }, structured: undefined })
  const takesData = { ...BOUND, takesMedia: ({ url }: MediaPart) => url === undefined }
  t.match(shown([image, link], takesData), { texts: ['{"a":1}', 'image', named], structured: undefined })
  for (const medium of [image, { ...image, media_type: 'image/jpeg' }]) {
    t.match(shown([words, medium], takesData), { texts: ['see', 'image'], structured: { a: 1 } })
  }
})

t.test("an answer's media are shown after it, as a user's, to a model that takes them", async (t) => {
  const image: MediaPart = { type: 'image', media_type: 'image/png', data: PNG }
  const call: Part = { type: 'tool_call', call_id: 'c', name: 't', arguments: {} }
  const words: Part = { type: 'text', text: 'Drawn.' }
  const shown = (parts: Part[], takesMedia = true) => {
    const to = { ...BOUND, takesMedia: () => takesMedia }
    const { messages } = repair([{ role: 'assistant', parts }], to)
    return messages.map((message) => [message.role, message.parts.map((part) => part.type).join(' ')])
  }
  const given = ['user', 'text image']
  t.strictSame(shown([image, words]), [['assistant', 'text'], given])
  t.strictSame(shown([image]), [given])
  t.strictSame(shown([call, image]), [['assistant', 'tool_call'], ['tool', 'tool_result'], given])
  t.strictSame(shown([image, words], false), [['assistant', 'text text']])
})

t.test('a text file is shown as text to a model that takes no files', async (t) => {
  const shown = (media_type: string, data: Buffer, more: Partial<MediaPart> = {}) => {
    const part: MediaPart = { type: 'file', media_type, data: data.toString('base64'), ...more }
    const { messages, notes } = repair([{ role: 'user', parts: [part] }], BOUND)
    return [messages[0]?.parts[0], notes.length]
  }
  const words = Buffer.from('Zoë said 👋')
  const text = (name: string) => [{ type: 'text', text: `[${name}]\nZoë said 👋` }, 0]
  t.strictSame(shown('text/plain', words), text('file'))
  t.strictSame(shown('Text/Markdown; charset=utf-8', words, { name: 'a.md' }), text('a.md'))
  t.strictSame(shown('application/json', words, { name: 'a.json' }), text('a.json'))
  for (const [media_type, data] of [
    ['application/zip', Buffer.from('PK\x03\x04')],
    ['text/plain', Buffer.from([0x5a, 0x6f, 0xeb, 0])],
    ['text/plain', Buffer.from(' \n')],
  ] as const)
    t.match(shown(media_type, data), [{ text: /not shown/ }, 1], media_type)
})
