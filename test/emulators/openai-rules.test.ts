/** What the emulated services of OpenAI refuse, each provoked. */

import t, { type Test } from 'tap'
import { DAMAGED, PNG } from './bytes.ts'
import { type Body, CHATGPT, emulate, onKey, onLogin, PUBLIC, tool, user } from './openai-requests.ts'
import { calls, text } from './scene.ts'

const call = { type: 'function_call', call_id: 'call_1', name: 'files__read', arguments: '{}' }
const output = { type: 'function_call_output', call_id: 'call_1', output: 'ok' }
const input = (...items: unknown[]) => ({ input: [user('x'), ...items] })
const answer = (content: unknown, extra = {}) => ({ type: 'message', role: 'assistant', content, ...extra })
const picture = (image_url: unknown, role = 'user') => ({
  input: [{ type: 'message', role, content: [{ type: 'input_image', image_url }] }],
})
const many = Array.from({ length: 129 }, (_, i) => tool(`t${i}`))
const schema = (parameters: unknown) => ({ tools: [tool('a', parameters)] })
const object = (properties: Body, extra = {}) => ({ type: 'object', properties, ...extra })

/** What both services refuse, with words of the message, and the status if it is not 400. */
const REFUSED: [what: string, body: Body, words: RegExp, status?: number][] = [
  ['no model', { model: undefined }, /'model'/],
  ['sampling of a reasoning model', { top_p: 1 }, /top_p/],
  [
    'an effort that the model lacks',
    { reasoning: { effort: 'minimal' } },
    /Supported values are: 'none', 'low'/,
  ],
  ['effort none for a model without it', { model: 'gpt-6-astra', reasoning: { effort: 'none' } }, /'none'/],
  ['reasoning for a model without it', { model: 'gpt-4.1', reasoning: {} }, /reasoning.effort/],
  [
    'encrypted content for a model without reasoning',
    { model: 'gpt-4.1', include: ['reasoning.encrypted_content'] },
    /Encrypted content is not/,
  ],
  ['an unknown kind of summary', { reasoning: { summary: 'full' } }, /'full'/],
  ['an unknown member of reasoning', { reasoning: { display: 'auto' } }, /'reasoning\.display'/],
  ['an unknown thing to include', { include: ['reasoning'] }, /'reasoning'/],
  [
    'log probabilities of a reasoning model',
    { include: ['message.output_text.logprobs'] },
    /logprobs are not supported/,
  ],
  ['a long cache key', { prompt_cache_key: 'k'.repeat(65) }, /prompt_cache_key/],
  ['tools that are no list', { tools: {} }, /'tools'/],
  ['an unknown kind of tool', { tools: [{ type: 'teleport' }] }, /Unsupported tool type: teleport/],
  ['a nested function', { tools: [{ type: 'function', function: { name: 'a' } }] }, /'tools\[0\]\.name'/],
  ['a dot in a name', { tools: [tool('a.b')] }, /does not match pattern/],
  ['a long name', { tools: [tool('a'.repeat(65))] }, /maximum length 64/],
  [
    'an unknown member of a tool',
    { tools: [{ ...tool(), cache_control: {} }] },
    /'tools\[0\]\.cache_control'/,
  ],
  ['the same tool name twice', { tools: [tool('a'), tool('a')] }, /Duplicate function name/],
  ['no schema', schema(null), /'type: .*None/],
  ['a schema of another type', schema({ type: 'string' }), /got 'type: .*string/],
  ['a combinator at the root', schema(object({}, { anyOf: [] })), /top level/],
  ['an object without properties', schema({ type: 'object' }), /missing properties/],
  ['an inner object without properties', schema(object({ a: { type: 'object' } })), /missing properties/],
  [
    'a pattern with a lookaround',
    schema({ type: 'object', properties: { a: { type: 'string', pattern: '^(?!b)' } } }),
    /lookaround is not supported/,
  ],
  [
    'a pattern that Python cannot read',
    schema({ type: 'object', properties: { a: { type: 'string', pattern: '\\p{L}' } } }),
    /is not a 'regex'/,
  ],
  [
    'an array among other types without items',
    schema(object({ a: { type: ['null', 'array'] } })),
    /missing items/,
  ],
  [
    'an array in a map without items',
    schema(object({ a: { additionalProperties: { type: 'array' } } })),
    /missing items/,
  ],
  ['an array without items', schema(object({ a: { anyOf: [{ type: 'array' }] } })), /missing items/],
  [
    'a loose schema without strict: false',
    { tools: [{ ...tool(), strict: undefined }] },
    /additionalProperties/,
  ],
  [
    'a strict schema that leaves a field optional',
    { tools: [{ ...tool('a', object({ x: {} }, { additionalProperties: false })), strict: true }] },
    /Missing 'x'/,
  ],
  [
    'a keyword that is not strict',
    {
      tools: [
        { ...tool('a', object({}, { additionalProperties: false, patternProperties: {} })), strict: true },
      ],
    },
    /'patternProperties' is not permitted/,
  ],
  ['a forced choice without tools', { tool_choice: 'required' }, /must be specified with 'tools'/],
  [
    'a choice of a tool that is not declared',
    { tools: [tool()], tool_choice: { type: 'function', name: 'b' } },
    /not found in/,
  ],
  ['an item that is no object', input('x'), /'input\[1\]'/],
  ['an item of an unknown type', input({ type: 'thought' }), /'thought'/],
  ['an item without its fields', input({ type: 'function_call', call_id: 'c' }), /'input\[1\]\.name'/],
  ['an unknown field of an item', input({ ...call, mood: 1 }, output), /'input\[1\]\.mood'/],
  ['a foreign id', input({ ...call, id: 'item_1' }, output), /begins with 'fc'/],
  [
    'a long id',
    input(answer([{ type: 'output_text', text: 'x' }], { id: `msg_${'a'.repeat(64)}` })),
    /begins with 'msg'/,
  ],
  ['an unknown role', { input: [{ ...user('x'), role: 'tool' }] }, /'tool'/],
  ['a message without content', { input: [{ ...user('x'), content: [] }] }, /content\[0\]/],
  [
    'input_text in an assistant message',
    input(answer([{ type: 'input_text', text: 'x' }])),
    /'output_text' and 'refusal'/,
  ],
  [
    'output_text in a user message',
    { input: [{ ...user('x'), content: [{ type: 'output_text', text: 'x' }] }] },
    /'input_text'/,
  ],
  [
    'a text that is no string',
    { input: [{ ...user('x'), content: [{ type: 'input_text', text: 1 }] }] },
    /expected a string/,
  ],
  ['an image as an object', picture({ url: 'https://x/y.png' }), /image_url/],
  ['PNG data that is no image', picture('data:image/png;base64,AAAA'), /valid image/],
  ['an image that is damaged', picture(`data:image/png;base64,${DAMAGED}`), /valid image/],
  ['an image URL that leads nowhere', picture('https://a.invalid/b.png'), /Error while downloading/],
  [
    'an image in a developer message',
    picture(`data:image/png;base64,${PNG}`, 'developer'),
    /'input_image'\. Supported values are: 'input_text'\./,
  ],
  ['an image of an unsupported type', picture('data:image/svg+xml;base64,AAAA'), /valid image/],
  [
    'an unknown detail of an image',
    {
      input: [
        {
          ...user('x'),
          content: [{ type: 'input_image', image_url: `data:image/png;base64,${PNG}`, detail: 'best' }],
        },
      ],
    },
    /'best'/,
  ],
  [
    'an unknown member of a text',
    input(answer([{ type: 'output_text', text: 'x', cache_control: {} }])),
    /'input\[1\]\.content\[0\]\.cache_control'/,
  ],
  ['a phase on a user message', { input: [{ ...user('x'), phase: 'commentary' }] }, /'commentary'/],
  ['an unknown phase', input(answer([{ type: 'output_text', text: 'x' }], { phase: 'draft' })), /'draft'/],
  ['a call with arguments that are no JSON', input({ ...call, arguments: '{' }, output), /arguments/],
  ['a call with arguments as an object', input({ ...call, arguments: {} }, output), /arguments/],
  ['a long call id', input({ ...call, call_id: 'c'.repeat(65) }), /call_id/],
  ['an illegal called name', input({ ...call, name: 'a.b' }, output), /does not match pattern/],
  ['an empty result list', input(call, { ...output, output: [] }), /output\[0\]/],
  ['a call without its result', input(call), /No tool output found for function call call_1/],
  [
    'a custom call without its result',
    input({ type: 'custom_tool_call', call_id: 'call_1', name: 'a', input: '' }),
    /No tool output found .* call_1/,
  ],
  ['a result without its call', input(output), /No tool call found .* call_1/],
  ['a result before its call', input(output, call), /No tool call found/],
  ['the same call id twice', input(call, output, call, output), /Duplicate call_id/],
  [
    'reasoning by reference',
    input({ type: 'reasoning', id: 'rs_1', summary: [] }, answer([])),
    /'rs_1' not found/,
    404,
  ],
  ['reasoning without a token', input({ type: 'reasoning', summary: [] }, call, output), /not found/, 404],
  [
    'reasoning with a foreign token',
    input({ type: 'reasoning', summary: [], encrypted_content: 'gAAAAAforeign' }, call, output),
    /could not be verified/,
  ],
]

const REFUSED_WITH_KEY: typeof REFUSED = [
  ['an unknown model', { model: 'missing-1' }, /missing-1/, 404],
  [
    'an image for a model that cannot see',
    { ...picture(`data:image/png;base64,${PNG}`), model: 'o3-mini' },
    /only supported by certain models/,
  ],
  ['an unknown field', { teleport: 1 }, /Unknown parameter: 'teleport'/],
  ['no input', { input: undefined }, /'input'/],
  ['too many tools', { tools: many }, /maximum length 128/],
  ['parallel_tool_calls without tools', { parallel_tool_calls: false }, /only allowed when 'tools'/],
  [
    'metadata that is no object',
    { metadata: 'x' },
    /'metadata': expected a metadata object, but got a string/,
  ],
  [
    'metadata that is no text',
    { metadata: { a: 1 } },
    /'metadata\.a': expected a string, but got an integer/,
  ],
  ['a temperature that is no number', { temperature: '1' }, /'temperature': expected a decimal/],
  ['half a token', { max_output_tokens: 16.5 }, /expected an integer, but got a decimal number/],
  ['tools that are no list', { tools: {} }, /'tools': expected an array of tools, but got an object/],
  ['an unknown verbosity', { text: { verbosity: 'chatty' } }, /'chatty'.*'low', 'medium', and 'high'/],
  ['max_output_tokens below the least', { max_output_tokens: 15 }, />= 16/],
  ['max_output_tokens above the most', { max_output_tokens: 128_001 }, /<= 128000/],
  [
    'max_output_tokens above a smaller model’s most',
    { model: 'gpt-4.1', max_output_tokens: 32_769 },
    /<= 32768/,
  ],
  ['half a character', { input: [user('\ud83d')] }, /could not parse/],
  ['previous_response_id', { previous_response_id: 'resp_1' }, /resp_1/],
  [
    'a nameless file',
    {
      input: [
        { ...user('x'), content: [{ type: 'input_file', file_data: 'data:application/pdf;base64,AA' }] },
      ],
    },
    /filename/,
  ],
  [
    'a file of an unknown kind',
    {
      input: [
        {
          ...user('x'),
          content: [{ type: 'input_file', filename: 'file.plain', file_data: 'data:text/plain;base64,AAAA' }],
        },
      ],
    },
    /supported format/,
  ],
  [
    'PDF data that is no PDF',
    {
      input: [
        {
          ...user('x'),
          content: [{ type: 'input_file', filename: 'a.pdf', file_data: 'data:application/pdf;base64,AAAA' }],
        },
      ],
    },
    /cannot be read/,
  ],
]

const REFUSED_WITH_LOGIN: typeof REFUSED = [
  ['an unknown model', { model: 'missing-1' }, /missing-1/],
  ...['temperature', 'max_output_tokens', 'previous_response_id', 'metadata', 'user', 'truncation'].map(
    (field): [string, Body, RegExp] => [
      `field ${field}`,
      { [field]: 1 },
      new RegExp(`Unsupported parameter: ${field}`),
    ],
  ),
  [
    'effort minimal, also for a model that has it by key',
    { model: 'gpt-5', reasoning: { effort: 'minimal' } },
    /Supported values are: 'low'/,
  ],
  ['no instructions', { instructions: undefined }, /Instructions are required/],
  ['empty instructions', { instructions: '' }, /Instructions are required/],
  ['a string as input', { input: 'hi' }, /Input must be a list/],
  ['store', { store: true }, /Store must be set to false/],
  ['no stream', { stream: false }, /Stream must be set to true/],
  ['a system message', { input: [{ ...user('x'), role: 'system' }] }, /System messages are not allowed/],
  ['a status', input({ ...call, status: 'completed' }, output), /'input\[1\]\.status'/],
  [
    'content as a string',
    { input: [{ type: 'message', role: 'user', content: 'x' }] },
    /'input\[0\]\.content'/,
  ],
  ['hosted MCP', { tools: [{ type: 'mcp', server_label: 'x' }] }, /Unsupported tool type: mcp/],
  [
    'a file',
    { input: [{ ...user('x'), content: [{ type: 'input_file', file_url: 'https://x/y.pdf' }] }] },
    /input_file/,
  ],
]

t.test('the emulator refuses what the services refuse', async (t) => {
  const emulator = await emulate(t)
  const refused = async (t: Test, response: Response, words: RegExp, status: number, what: string) => {
    t.equal(response.status, status, what)
    t.match(await response.text(), words, what)
  }
  await t.test('a request with a key is refused in the vendor’s words', async (t) => {
    for (const [what, extra, words, status = 400] of [...REFUSED, ...REFUSED_WITH_KEY]) {
      await refused(t, await onKey(emulator, { ...PUBLIC, ...extra }), words, status, what)
    }
    await refused(t, await onKey(emulator, '{"model":'), /could not parse/, 400, 'broken JSON')
  })
  await t.test('a request with a login is refused in the vendor’s words', async (t) => {
    for (const [what, extra, words, status = 400] of [...REFUSED, ...REFUSED_WITH_LOGIN]) {
      await refused(t, await onLogin(emulator, { ...CHATGPT, ...extra }), words, status, what)
    }
    const lite = await onLogin(emulator, CHATGPT, { 'x-openai-internal-codex-responses-lite': 'true' })
    await refused(t, lite, /Responses-Lite/, 400, 'the lite header')
    const plain = await onLogin(emulator, CHATGPT, { 'content-type': 'text/plain' })
    await refused(t, plain, /Unsupported Media Type/, 415, 'no JSON')
  })
  await t.test('the emulator accepts what the services accept', async (t) => {
    const accepted: Body[] = [
      { input: 'a string' },
      { input: [{ role: 'system', content: 'x' }, user('y')] },
      { tools: many.slice(1), tool_choice: 'required', parallel_tool_calls: false },
      { model: 'gpt-4.1', temperature: 0.5 },
      { model: 'gpt-5.1', temperature: 0.5, reasoning: { effort: 'none' } },
      { model: 'gpt-5.1', temperature: 0.5, reasoning: { summary: 'auto' } },
      { model: 'gpt-5.6-sol', temperature: 0.5, reasoning: { effort: 'none' } },
      { model: 'gpt-5', reasoning: { effort: 'minimal' } },
      { tools: [{ type: 'mcp', server_label: 'x' }] },
      input({ ...call, id: 'fc_1', status: 'completed' }, output),
    ]
    for (const extra of accepted) {
      const response = await onKey(emulator, { ...PUBLIC, ...extra })
      t.equal(response.status, 200, JSON.stringify(extra).slice(0, 60))
      await response.text()
    }
    const listed = [{ type: 'output_text', text: 'x', annotations: [] }]
    const whole = { id: 'msg_1', status: 'completed' }
    for (const [typed, statuses] of [
      [false, [200, 200, 200]],
      [true, [200, 200, 400]],
    ] as const) {
      if (typed) emulator.typed()
      for (const [i, said] of [answer('x'), answer(listed, whole), answer(listed)].entries()) {
        const response = await onKey(emulator, { ...PUBLIC, ...input(said) })
        t.equal(response.status, statuses[i])
        await response.text()
      }
    }
    const tools = await onLogin(emulator, { ...CHATGPT, tools: many })
    t.equal(tools.status, 200, 'with a login no limit of tools is known')
    await tools.text()
  })
})

t.test('reasoning is bound to the account, the model and the summary that it was issued with', async (t) => {
  const emulator = await emulate(t)
  emulator.script((_request, { step }) =>
    step > 0
      ? text('done')
      : { items: [{ type: 'reasoning', parts: ['one', 'two'] }, ...calls(['files__read', {}]).items] },
  )
  const asking = {
    ...CHATGPT,
    tools: [tool()],
    reasoning: { summary: 'auto' },
    include: ['reasoning.encrypted_content'],
  }
  const stream = await (await onLogin(emulator, asking)).text()
  const items = [...stream.matchAll(/^data: (\{"type":"response\.output_item\.done".*)$/gm)].map(
    ([, json = '']) => (JSON.parse(json) as { item: Body }).item,
  )
  const [reasoning, made] = items.map(({ id: _id, status: _status, ...item }) => item)
  const early = /"encrypted_content":"([^"]+)"/.exec(stream)?.[1]
  const result = { type: 'function_call_output', call_id: made?.call_id, output: 'ok' }
  const again = (item: unknown, extra: Body = {}, headers = {}) =>
    onLogin(emulator, { ...asking, ...input(item, made, result), ...extra }, headers)
  const fine = await again(reasoning)
  t.equal(fine.status, 200)
  await fine.text()
  for (const [what, response] of [
    ['another account', await again(reasoning, {}, { 'chatgpt-account-id': 'acc-2' })],
    ['another model', await again(reasoning, { model: 'gpt-6-sol' })],
    [
      'a merged summary',
      await again({ ...reasoning, summary: [{ type: 'summary_text', text: 'one\n\ntwo' }] }),
    ],
    ['the token of the item’s first event', await again({ ...reasoning, encrypted_content: early })],
  ] as const) {
    t.equal(response.status, 400, what)
    t.match(await response.json(), { error: { code: 'invalid_encrypted_content' } }, what)
  }
  const last = await onLogin(emulator, { ...asking, ...input(reasoning) })
  t.match(await last.json(), { error: { message: /without its required following item/ } })
})
