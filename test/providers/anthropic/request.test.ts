/** What is sent to Anthropic: messages, by key and by login, checked against the vendor's own types. */

import { spawnSync } from 'node:child_process'
import t from 'tap'
import { anthropic, anthropicOauth } from '../../../providers/anthropic/index.ts'
import type { MessageInput, Part } from '../../../src/chat/message.ts'
import { refusalOf } from '../../emulators/anthropic.ts'
import { MODELS } from '../../emulators/anthropic-models.ts'
import { PNG } from '../../emulators/bytes.ts'
import { declared, OPTIONS, said } from '../exchange.ts'
import {
  answered,
  called,
  contents,
  render,
  results,
  returned,
  SECRET,
  TOOLS,
  thought,
  words,
} from './exchange.ts'

const PICTURE: Part = { type: 'image', media_type: 'image/png', data: PNG }

t.test('messages become the vendor’s', async (t) => {
  await t.test('a request has tools, a system text and messages with cache marks', async (t) => {
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

  await t.test('no empty text, description or list is sent', async (t) => {
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

  await t.test('results come together before the text, and equal roles become one message', async (t) => {
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

  await t.test('text after calls goes before them, and thinking stays where it was', async (t) => {
    const order = (...parts: Part[]) => {
      const ids = parts.flatMap((part) => (part.type === 'tool_call' ? [part.call_id] : []))
      const history = [said('a'), answered(...parts), results(...ids.map((id) => returned(id)))]
      const { content = [] } = render({ model: 'claude-opus-5', messages: history }).body.messages[1] ?? {}
      return content.map((block) =>
        block.type === 'text' ? block.text : block.type === 'tool_use' ? block.id : block.type,
      )
    }
    t.strictSame(order(called('c1'), words('b')), ['b', 'c1'])
    t.strictSame(order(called('c1'), words('a'), called('c2'), words('b')), ['a', 'b', 'c1', 'c2'])
    const first = thought('t', 'signed:x')
    const second = thought('u', 'signed:y')
    t.strictSame(order(first, called('c1'), words('b')), ['thinking', 'b', 'c1'])
    t.strictSame(order(words('a'), first, called('c1'), second, called('c2'), words('b')), [
      'a',
      'thinking',
      'c1',
      'thinking',
      'b',
      'c2',
    ])
    t.strictSame(order(first, called('c1'), second, words('b')), ['thinking', 'b', 'c1'])
    t.strictSame(order(called('c1'), first), ['c1'])
    const asItCame = [words('a'), called('c1'), words('b'), called('c2')]
    t.strictSame(order(...asItCame), ['a', 'c1', 'b', 'c2'])
  })

  await t.test('the first and the last message are the user’s', async (t) => {
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
    'a user text that was put after the assistant’s stays, so that thinking keeps its prefix',
    async (t) => {
      const history = [said('a'), answered(words('b'))]
      const wish = { model: 'claude-opus-5' }
      const asked = contents(history, wish)
      const later = contents([...history, answered(thought('t', 'signed:x'), words('c')), said('d')], wish)
      t.strictSame(later, [...asked, ['assistant', ['thinking', 'text']], ['user', ['text']]])
    },
  )

  await t.test('half characters are mended, and thinking with half characters is left out', async (t) => {
    const half = 'half \ud83d'
    const { body } = render({
      model: 'claude-opus-5',
      request: { instructions: half },
      tools: [{ ...declared('x', { properties: { a: { description: half } } }), description: half }],
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
          called('call_1', { [half]: [half, { deep: half }] }),
        ),
        results(returned('call_1', { name: half, is_error: true, content: [words(half), PICTURE] as never })),
      ],
    })
    t.ok(JSON.stringify(body).includes('half \ufffd'))
    t.notMatch(JSON.stringify(body), /\\ud8/)
    t.match(body.system, [{ text: 'half \ufffd' }])
    t.match(body.tools, [
      { description: 'half \ufffd', input_schema: { properties: { a: { description: 'half \ufffd' } } } },
    ])
    t.match(body.messages[1]?.content, [
      { type: 'thinking', thinking: 'whole', signature: 'b' },
      { type: 'tool_use', input: { 'half \ufffd': ['half \ufffd', { deep: 'half \ufffd' }] } },
    ])
  })

  await t.test('a system message goes after the user’s text, or becomes a text', async (t) => {
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

  await t.test(
    'cache marks are at the end of the system blocks, of two messages and where a turn began, none on thinking or tools',
    async (t) => {
      const history = [
        said('a'),
        answered(thought('t', 'signed:x'), called('c')),
        results(returned('c')),
        answered(called('e')),
        results(returned('e')),
        answered(words('b')),
        said('d'),
      ]
      const { body } = render({ model: 'claude-opus-5', messages: history })
      const marked = ({ messages }: typeof body) =>
        messages.flatMap(({ content }, i) =>
          content.flatMap((item) => ('cache_control' in item ? [`${i} ${item.type}`] : [])),
        )
      t.strictSame(marked(body), ['0 text', '4 tool_result', '6 text'])
      const later = [...history, answered(called('f')), results(returned('f'))]
      const { body: next } = render({ model: 'claude-opus-5', messages: later })
      t.strictSame(marked(next), ['0 text', '6 text', '8 tool_result'])
      t.equal(JSON.stringify(body.system).match(/cache_control/g)?.length, 1)
      t.equal(JSON.stringify(body).match(/cache_control/g)?.length, 4)
    },
  )
})

t.test(
  'a login sends the operator’s blocks and headers, and a stable user id, which a key does not',
  async (t) => {
    const options = {
      ...OPTIONS,
      system_blocks: ['First.', 'Second.'],
      headers: { 'anthropic-beta': 'context-1m-2025-08-07, oauth-2025-04-20,', 'x-app': 'own' },
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

    t.notOk('metadata' in render({ model: 'claude-opus-5-5' }).body)

    const newer = render(
      {
        model: 'claude-opus-4-6',
        settings: { temperature: 0.5 },
        request: { options: { ...OPTIONS, headers: { 'anthropic-version': '2026-10-21' } } },
      },
      anthropicOauth,
    )
    t.equal(refusalOf(newer), null, 'an API version without sampling gets no sampling settings')
    t.match(newer.notes, [/temperature: not accepted/])

    const facts = { id: 'cred_1', workspace_id: 'wrkspc_1' }
    t.strictSame(anthropicOauth.authorize(SECRET, facts), {
      authorization: 'Bearer sk-ant-oat01-acme-1',
      'anthropic-workspace-id': 'wrkspc_1',
    })
    t.strictSame(anthropicOauth.authorize(SECRET, { id: null }), {
      authorization: 'Bearer sk-ant-oat01-acme-1',
    })
    t.strictSame(anthropic.authorize(SECRET, facts), {
      'x-api-key': 'sk-ant-api03-acme-1',
      'anthropic-workspace-id': 'wrkspc_1',
    })
    t.strictSame(anthropic.authorize(SECRET, { id: null }), { 'x-api-key': 'sk-ant-api03-acme-1' })
  },
)

t.test("the vendor's own types accept the rendered requests", async (t) => {
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
  // The test runner hooks itself into every Node that a test starts, and the compiler's launcher fails with the hook.
  const bare = ['-u', 'NODE_OPTIONS', 'node_modules/.bin/tsc', '-p', folder]
  const { stdout, stderr, status } = spawnSync('env', bare, { encoding: 'utf8' })
  t.equal(stdout + stderr, '')
  t.equal(status, 0)
})
