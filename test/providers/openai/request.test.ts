/** What is sent to OpenAI, by key and by ChatGPT login, and how OpenAI's own items are sent back. */

import type {
  ResponseCreateParamsStreaming,
  ResponseInputItem,
  ResponseOutputMessage,
  ResponseReasoningItem,
} from 'openai/resources/responses/responses'
import t from 'tap'
import { chatgpt, openai } from '../../../providers/openai/index.ts'
import { chatgptBody, publicBody } from '../../../providers/openai/render.ts'
import type { ContentPart, MessageInput, Part, ToolResultPart } from '../../../src/chat/message.ts'
import type { ModelSettings } from '../../../src/provider.ts'
import { JPEG, PDF, PNG } from '../../emulators/bytes.ts'
import { jwt } from '../../emulators/oauth.ts'
import { NONE } from '../../patterns.ts'
import { OPTIONS, resultOf } from '../exchange.ts'
import { fold, framesOf } from '../streams.ts'
import { fixture, MODEL, origin, parse, repaired, requestFor, TOOLS } from './exchange.ts'

/**
 * The SDK's own types without the fields that a stateless caller must leave out (wire/openai.md 4): the SDK demands
 * `id` and `status` of items that the API once answered with.
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

  await t.test('with a key, settings that do not fit are changed or left out with a note', async (t) => {
    const { body, notes } = publicBody(requestFor(change))
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
    const { headers, path } = openai.render(requestFor(change))
    t.same({ headers, path }, { headers: {}, path: '/responses' })

    const plain = publicBody(requestFor({ ...change, model: 'gpt-4.1', tools: [] }))
    t.match(plain.body, { temperature: 0.5, top_p: 0.9 })
    t.same(
      plain.notes.map((note) => note.split(':')[0]),
      ['tool_choice', 'reasoning.effort', 'max_output_tokens'],
    )
    for (const field of ['reasoning', 'include', 'tools', 'tool_choice', 'instructions']) {
      t.notOk(field in plain.body, `${field} is left out`)
    }
  })

  await t.test('with a key, settings that fit are sent as they are', async (t) => {
    const settings = { parallel_tool_calls: false, max_output_tokens: 16 }
    const options = { ...OPTIONS, system_blocks: ['First.'] }
    const { body, notes } = publicBody(requestFor({ tools: TOOLS, settings, options }))
    t.match(body, { ...settings, instructions: 'First.\n\nBe brief.' })
    const instructed = (change: Parameters<typeof requestFor>[0]) =>
      publicBody(requestFor(change)).body.instructions
    t.equal(instructed({ options, instructions: '' }), 'First.')
    t.equal(instructed({ instructions: 'half \ud83d' }), 'half \ufffd')
    t.same(notes, [])
    const bare = publicBody(requestFor({ settings: { parallel_tool_calls: false } })).body
    t.notOk(
      'parallel_tool_calls' in bare,
      'parallel_tool_calls is left out without tools, since the API refuses it',
    )
    t.notOk('max_output_tokens' in bare)
  })

  await t.test('models that put instructions after the input get them as its first message', async (t) => {
    for (const [made, field] of [
      [publicBody, undefined],
      [chatgptBody, 'You are a helpful assistant.'],
    ] as const)
      for (const model of [
        'gpt-6.2-sol',
        'gpt-6.2-astra-law',
        'gpt-6.3',
        'gpt-7-sol',
        'ft:gpt-6.2-sol:o::1',
        'openai/gpt-6.2-sol',
      ]) {
        const { body, notes } = made(requestFor({ model }))
        t.equal(body.instructions, field, 'only a login’s path wants some there')
        const words = {
          type: 'message',
          role: 'developer',
          content: [{ type: 'input_text', text: 'Be brief.' }],
        }
        t.match(body.input, [words, { role: 'user' }])
        const silent = made(requestFor({ model, instructions: '' }))
        t.match([silent.body.input.length, silent.body.instructions, notes], [1, field, NONE])
      }
    for (const model of ['gpt-6', 'gpt-6.1-sol', 'gpt-5.2', 'o3', 'other'])
      t.equal(publicBody(requestFor({ model })).body.instructions, 'Be brief.')
  })

  await t.test('a request with a ChatGPT login leaves out what this path refuses', async (t) => {
    const { body, notes } = chatgptBody(requestFor(change))
    const typed: SdkBody = body
    t.match(typed, { instructions: 'You are a helpful assistant.', parallel_tool_calls: true, store: false })
    t.same(
      notes.map((note) => note.split(':')[0]),
      ['reasoning.effort', 'instructions', 'temperature', 'top_p', 'max_output_tokens'],
    )
    const follow = (settings: ModelSettings) =>
      chatgptBody(requestFor({ tools: TOOLS, follow_up: true, settings })).body.parallel_tool_calls
    t.equal(follow({}), false)
    const bare = chatgptBody(requestFor())
    t.notOk('parallel_tool_calls' in bare.body)
    t.same(bare.notes, [])
    t.equal(follow({ parallel_tool_calls: true }), true)
    t.same(chatgpt.render(requestFor()).headers, {
      originator: 'baton',
      'openai-beta': 'responses=experimental',
      'session-id': 'ses_1',
      'thread-id': 'ses_1',
      'x-client-request-id': 'ses_1',
      session_id: 'ses_1',
    })
  })

  await t.test("the operator's blocks go first, and the operator's headers overrule ours", async (t) => {
    const options = {
      ...OPTIONS,
      system_blocks: ['First.'],
      headers: { version: '0.169.0', originator: 'mine' },
    }
    const rendered = chatgpt.render(
      requestFor({
        options,
        session_id: 's'.repeat(80),
      }),
    )
    t.equal(rendered.body.instructions, 'First.\n\nBe brief.')
    t.match(rendered.headers, { version: '0.169.0', originator: 'mine' })
    t.equal(String(rendered.body.prompt_cache_key).length, 64)
  })

  await t.test('content of every kind is sent as it is, or named in text', async (t) => {
    const data = 'QUJD'
    const { body } = publicBody(
      requestFor({
        messages: repaired(openai, [
          {
            role: 'system',
            parts: [
              { type: 'image', media_type: 'image/png', data: PNG },
              { type: 'text', text: 'Mind the gap.' },
            ],
          },
          {
            role: 'user',
            parts: [
              { type: 'image', media_type: 'image/png', data: PNG },
              { type: 'image', media_type: 'image/png', url: 'https://x.test/a.png' },
              { type: 'image', media_type: 'image/webp', url: 'https://x.test/a.webp' },
              { type: 'image', media_type: 'image/gif', url: 'https://x.test/a.gif' },
              { type: 'image', media_type: 'image/svg+xml', data, name: 'a.svg' },
              { type: 'image', media_type: 'image/heic', url: 'https://x.test/a.heic' },
              { type: 'file', media_type: 'application/pdf', data: PDF },
              { type: 'file', media_type: 'text/x-c++', data },
              { type: 'file', media_type: 'application/pdf', url: 'https://x.test/a.pdf' },
              { type: 'image', media_type: 'image/jpg', data: JPEG },
              { type: 'file', media_type: 'image/png', data: PNG, name: 'a.png' },
              { type: 'file', media_type: 'application/zip', data: 'UEsDBA==', name: 'a.zip' },
              { type: 'file', media_type: 'video/mp4', data: 'AAAAIGZ0' },
            ],
          },
        ]),
      }),
    )
    const typed: SdkBody = body
    t.same(typed.input, [
      { type: 'message', role: 'developer', content: [{ type: 'input_text', text: 'Mind the gap.' }] },
      {
        type: 'message',
        role: 'user',
        content: [{ type: 'input_image', image_url: `data:image/png;base64,${PNG}`, detail: 'auto' }],
      },
      {
        type: 'message',
        role: 'user',
        content: [
          { type: 'input_image', image_url: `data:image/png;base64,${PNG}`, detail: 'auto' },
          { type: 'input_image', image_url: 'https://x.test/a.png', detail: 'auto' },
          { type: 'input_image', image_url: 'https://x.test/a.webp', detail: 'auto' },
          { type: 'input_image', image_url: 'https://x.test/a.gif', detail: 'auto' },
          { type: 'input_file', filename: 'a.svg.txt', file_data: 'data:text/plain;base64,QUJD' },
          {
            type: 'input_text',
            text: '[image, image/heic, https://x.test/a.heic: not shown to this model]',
          },
          { type: 'input_file', filename: 'file.pdf', file_data: `data:application/pdf;base64,${PDF}` },
          { type: 'input_file', filename: 'file.txt', file_data: 'data:text/x-c++;base64,QUJD' },
          { type: 'input_file', file_url: 'https://x.test/a.pdf' },
          { type: 'input_image', image_url: `data:image/jpeg;base64,${JPEG}`, detail: 'auto' },
          { type: 'input_image', image_url: `data:image/png;base64,${PNG}`, detail: 'auto' },
          { type: 'input_text', text: '[file a.zip, application/zip: not shown to this model]' },
          { type: 'input_text', text: '[file, video/mp4: not shown to this model]' },
        ],
      },
    ])
  })

  await t.test('with a ChatGPT login text files are sent as text and others are named', async (t) => {
    const data = Buffer.from('# Notes').toString('base64')
    const parts: Part[] = [
      { type: 'file', media_type: 'text/markdown', data, name: 'notes.md' },
      { type: 'file', media_type: 'application/pdf', data: PDF, name: 'a.pdf' },
    ]
    const messages = repaired(chatgpt, [{ role: 'user', parts }])
    const [sent] = chatgptBody(requestFor({ messages })).body.input
    t.match(sent, {
      content: [
        { type: 'input_text', text: '[notes.md]\n# Notes' },
        { type: 'input_text', text: '[file a.pdf, application/pdf: not shown to this model]' },
      ],
    })
  })

  await t.test('a file name gets the ending of its type unless its own ending fits', async (t) => {
    const office = 'application/vnd.openxmlformats-officedocument'
    for (const [media_type, name, expected] of [
      ['text/plain', undefined, 'file.txt'],
      ['Text/Plain; charset=utf-8', 'notes', 'notes.txt'],
      ['text/markdown', 'v1.2', 'v1.2.md'],
      ['text/csv', 'a.tsv', 'a.tsv'],
      ['text/html', undefined, 'file.html'],
      ['text/javascript', undefined, 'file.js'],
      ['application/json', undefined, 'file.json'],
      ['application/msword', undefined, 'file.doc'],
      [`${office}.wordprocessingml.document`, 'letter', 'letter.docx'],
      [`${office}.spreadsheetml.sheet`, undefined, 'file.xlsx'],
      [`${office}.presentationml.presentation`, undefined, 'file.pptx'],
      ['text/x-c++', undefined, 'file.txt'],
      ['application/x-unheard-of', undefined, 'file.txt'],
      ['text/yaml', undefined, 'file.txt'],
      ['application/sql', undefined, 'file.txt'],
      ['text/yaml', 'config.yaml', 'config.yaml.txt'],
      ['text/plain', 'server.log', 'server.log.txt'],
      ['text/plain', 'REPORT.TXT', 'REPORT.TXT.txt'],
      ['text/html', 'https://docs.example.com', 'https://docs.example.com.html'],
      ['text/plain', 'a.pdf', 'a.pdf.txt'],
      ['text/plain', 'main.py', 'main.py'],
      ['application/pdf', 'SCAN.PDF', 'SCAN.PDF.pdf'],
      ['application/pdf', 'scan.png', 'scan.png.pdf'],
      ['application/pdf', 'a.pdf', 'a.pdf'],
      ['application/vnd.ms-excel', 'a.csv', 'a.csv'],
      ['application/msword', 'a.docx', 'a.docx'],
    ] as const) {
      const part: Part = { type: 'file', media_type, data: 'QUJD', ...(name ? { name } : {}) }
      const { body } = publicBody(requestFor({ messages: [{ role: 'user', parts: [part] }] }))
      const [file] = body.input.flatMap((item) => (item.type === 'message' ? [item.content].flat() : []))
      t.hasStrict(file, { filename: expected }, media_type)
    }
  })

  await t.test('results tell the outcome of their calls', async (t) => {
    const outcomes = ['ok', 'error', 'cancelled', 'denied', 'outcome_unknown'] as const
    const result = (call_id: string, own: Partial<ToolResultPart>) =>
      resultOf({ call_id, name: 'files__read' }, { content: [], ...own })
    const words = { content: [{ type: 'text' as const, text: 'words' }] }
    const parts = outcomes.map((outcome) =>
      result(outcome, { ...(outcome !== 'cancelled' && words), is_error: outcome !== 'ok', outcome }),
    )
    const image: ContentPart = { type: 'image', media_type: 'image/png', data: 'QUJD' }
    const odd = [
      result('flag', { is_error: true }),
      result('data', { structured: { a: 1 } }),
      result('told', { ...words, structured: { a: 1 } }),
      result('none', {}),
      result('image', { content: [{ type: 'text', text: 'see' }, image] }),
      result('both', { content: [image], structured: { a: 1 } }),
    ]
    const { body } = publicBody(requestFor({ messages: [{ role: 'tool', parts: [...parts, ...odd] }] }))
    const outputs = body.input.map((item) => (item.type === 'function_call_output' ? item.output : null))
    t.same(outputs, [
      'words',
      '[The tool call failed]\nwords',
      '[The tool call was cancelled]',
      '[The tool call was denied]\nwords',
      '[The outcome of the tool call is unknown]\nwords',
      '[The tool call failed]',
      '{"a":1}',
      'words',
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

t.test('items that OpenAI made go back as they came', async (t) => {
  const stream = fixture('02-reasoning-two-tools.sse')
  const parts = fold(parse(framesOf(stream)))
  const history: MessageInput[] = [
    { role: 'user', parts: [{ type: 'text', text: 'Look.' }] },
    { role: 'assistant', parts },
  ]
  // The items as the vendor sent them, without the fields that it refuses to read again.
  const sent = framesOf(stream)
    .map(({ data }) => JSON.parse(data) as { type: string; item?: Record<string, unknown> })
    .filter(({ type }) => type === 'response.output_item.done')
    .map(({ item = {} }) => {
      const { id: _id, status: _status, ...rest } = item
      return JSON.parse(JSON.stringify(rest).replaceAll(',"logprobs":[]', '')) as unknown
    })
  const rendered = (model: string, credential = 'cred_1') => {
    const messages = repaired(chatgpt, history, model, credential)
    return chatgptBody(requestFor({ model, messages })).body.input
  }
  t.same(rendered(MODEL).slice(1, 5), sent, 'reasoning with its segments, phases and calls are unchanged')
  t.equal(rendered(MODEL).length, 7, 'both calls get a result')
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
      'another model or account gets only the words',
    )
    t.match(elsewhere[1], { phase: 'commentary' }, '… and, on a text, its phase')
  }
  t.notOk(JSON.stringify(rendered('gpt-4.1')).includes('phase'), 'a model from before phases gets none')

  await t.test(
    'an edited summary becomes one segment, and reasoning that nothing follows is not sent',
    async (t) => {
      const [reasoning] = parts
      if (reasoning?.type !== 'reasoning') throw new Error('the fixture begins with reasoning')
      const input = (...own: Part[]) =>
        chatgptBody(requestFor({ messages: [{ role: 'assistant', parts: own }] })).body.input
      const answer: Part = { type: 'text', text: 'So.' }
      const [whole] = input(reasoning, answer)
      for (const text of ['edited', '']) {
        const summary = text === '' ? [] : [{ type: 'summary_text', text }]
        t.strictSame(input({ ...reasoning, text }, answer)[0], { ...whole, summary })
      }
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

t.test('each path authorizes in its own way', async (t) => {
  const facts = { id: 'cred_1', account_id: 'acc-1' }
  t.same(openai.authorize({ api_key: 'sk-1' }, facts), { authorization: 'Bearer sk-1' })
  t.same(chatgpt.authorize({ access_token: 'at' }, facts), {
    authorization: 'Bearer at',
    'chatgpt-account-id': 'acc-1',
  })
  const organisation = chatgpt.authorize({ access_token: 'at' }, { id: null, account_id: 'org-1' })
  t.same(organisation, { authorization: 'Bearer at' }, 'an organisation is not sent as a workspace')
  t.match(chatgpt.authorize({ access_token: 'at' }, { ...facts, fedramp: 'true' }), {
    'chatgpt-account-id': 'acc-1',
    'x-openai-fedramp': 'true',
  })
  const bound = (chatgpt_compute_residency?: string) =>
    chatgpt.authorize(
      { access_token: jwt({ 'https://api.openai.com/auth': { chatgpt_compute_residency } }) },
      facts,
    )['x-openai-internal-codex-residency']
  t.equal(bound('eu'), 'eu', "a workspace's region is named")
  t.equal(bound('no_constraint'), undefined)
  t.equal(bound(), undefined)
})
