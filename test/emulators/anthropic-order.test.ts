/** What the emulated Anthropic API refuses of messages: blocks and their order. */

import t from 'tap'
import { refusalOf } from './anthropic.ts'
import {
  assistant,
  type Body,
  base,
  emulate,
  png,
  type Refused,
  refuses,
  user,
  VERSION,
} from './anthropic-requests.ts'
import { DAMAGED, JPEG, PDF, PNG, pdfOf, pngOf } from './bytes.ts'

const use = (id: string, input: unknown = {}) => ({ type: 'tool_use', id, name: 'get_weather', input })
const result = (id: string, more: Body = {}) => ({
  type: 'tool_result',
  tool_use_id: id,
  content: 'ok',
  ...more,
})

const document = (pages: number) => ({
  type: 'document',
  source: { type: 'base64', media_type: 'application/pdf', data: pdfOf(pages) },
})
const PNG_OF_10_MB = PNG.slice(0, 8) + 'A'.repeat(10 * 1024 * 1024)

/** One case for each refusal of messages. */
const REFUSALS: Refused[] = [
  ['no messages', base({ messages: [] }), /at least one message/],
  ['a body without messages', { model: 'claude-opus-5', max_tokens: 5 }, /messages: Field required/],
  ['an unknown role', base({ messages: [{ role: 'tool', content: 'a' }] }), /messages\.0\.role/],
  [
    'an unknown member of a message',
    base({ messages: [{ ...user('a'), name: 'b' }] }),
    /messages\.0\.name: Extra/,
  ],
  [
    'an assistant message first',
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
    'an image of an unsupported type',
    base({ messages: [user([{ type: 'image', source: { ...png, media_type: 'image/svg+xml' } }])] }),
    /media_type/,
  ],
  [
    'one image more than the limit',
    base({
      model: 'claude-haiku-4-5',
      messages: [user(Array.from({ length: 101 }, () => ({ type: 'image', source: png })))],
    }),
    /too many images and documents: 101 \+ 0 > 100/,
  ],
  [
    'a document beside the most images that are allowed',
    base({
      model: 'claude-haiku-4-5',
      messages: [user([...Array.from({ length: 100 }, () => ({ type: 'image', source: png })), document(1)])],
    }),
    /too many images and documents: 100 \+ 1 > 100/,
  ],
  [
    'documents with too many pages together',
    base({ model: 'claude-haiku-4-5', messages: [user([document(60), document(41)])] }),
    /Too much media: 101 document pages \+ 0 images > 100/,
  ],
  [
    'an image with too many pixels',
    base({ messages: [user([{ type: 'image', source: { ...png, data: pngOf(1, 8001) } }])] }),
    /dimensions exceed max allowed size: 8000 pixels/,
  ],
  [
    'an image with too many bytes',
    base({ messages: [user([{ type: 'image', source: { ...png, data: PNG_OF_10_MB } }])] }),
    /image exceeds 10 MB maximum/,
  ],
  [
    'an image with too many pixels among more than 20 images',
    base({
      messages: [
        user(
          Array.from({ length: 21 }, (_, i) => ({
            type: 'image',
            source: { ...png, data: pngOf(2000, 2000 + (i === 7 ? 1 : 0)) },
          })),
        ),
      ],
    }),
    /for many-image requests: 2000 pixels/,
  ],
  [
    'image data that is no base64',
    base({ messages: [user([{ type: 'image', source: { ...png, data: 'ä' } }])] }),
    /invalid base64/,
  ],
  [
    'an image whose bytes have another type than it says',
    base({ messages: [user([{ type: 'image', source: { ...png, data: JPEG } }])] }),
    /appears to be a image\/jpeg image/,
  ],
  [
    'image data that is a PDF',
    base({ messages: [user([{ type: 'image', source: { ...png, data: PDF } }])] }),
    /Could not process image/,
  ],
  [
    'an image that is damaged',
    base({ messages: [user([{ type: 'image', source: { ...png, data: DAMAGED } }])] }),
    /Could not process image/,
  ],
  [
    'an image URL that leads nowhere',
    base({ messages: [user([{ type: 'image', source: { type: 'url', url: 'https://a.invalid/b.png' } }])] }),
    /Unable to download the file/,
  ],
  [
    'PDF data that is an image',
    base({
      messages: [
        user([{ type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: PNG } }]),
      ],
    }),
    /PDF specified was not valid/,
  ],
  [
    'an image source of unknown type',
    base({ messages: [user([{ type: 'image', source: { type: 'path' } }])] }),
    /image\.source\.type/,
  ],
  [
    'an image URL that is not HTTPS',
    base({ messages: [user([{ type: 'image', source: { type: 'url', url: 'http://a.example/b.png' } }])] }),
    /Only HTTPS/,
  ],
  [
    'a document of another type than PDF',
    base({ messages: [user([{ type: 'document', source: { ...png } }])] }),
    /application\/pdf/,
  ],
  [
    'PDF data that is no base64',
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
    'a document with too long a title',
    base({
      messages: [
        user([
          {
            type: 'document',
            source: { type: 'text', media_type: 'text/plain', data: 'a' },
            title: 'x'.repeat(501),
          },
        ]),
      ],
    }),
    /title: String should have at most 500/,
  ],
  [
    'a text document of another type',
    base({
      messages: [user([{ type: 'document', source: { type: 'text', media_type: 'text/html', data: 'a' } }])],
    }),
    /text\/plain/,
  ],
  [
    'a document source of unknown type',
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
    'a result with an unknown kind of content',
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
    'a failed result without content',
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
    'text after a call',
    base({
      messages: [
        user('a'),
        assistant([use('a'), { type: 'text', text: 'b' }]),
        user([result('a')]),
        user('c'),
      ],
    }),
    /does not support assistant message prefill/,
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
    'two results for the same call',
    base({ messages: [user('a'), assistant([use('a')]), user([result('a'), result('a')])] }),
    /must have a single result/,
  ],
  [
    'the same call id twice',
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
    'a system message for a model that takes none',
    base({ messages: [user('a'), { role: 'system', content: 'b' }] }),
    /role 'system' is not supported/,
  ],
  ...[
    [user('a'), assistant('b'), { role: 'system', content: 'c' }, user('d')],
    [user('a'), { role: 'system', content: 'c' }, user('d')],
  ].map(
    (messages, i): Refused => [
      `a system message in the wrong place (${i + 1})`,
      base({ model: 'claude-opus-4-8', messages }),
      /a system message must follow a user message/,
    ],
  ),
  [
    'thinking that the service did not sign',
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

t.test('wrong messages are refused', async (t) => refuses(t, await emulate(t), REFUSALS))

t.test('an image of megabytes is no long prompt', async (t) => {
  const image = { type: 'image', source: { ...png, data: PNG.slice(0, 11).padEnd(5 << 20, 'A') } }
  t.equal(refusalOf({ headers: VERSION, body: base({ messages: [user([image])] }) }), null)
})
