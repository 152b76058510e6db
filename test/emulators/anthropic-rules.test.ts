/** What the emulated Anthropic API refuses of headers and fields, each provoked. */
import t from 'tap'
import {
  ask,
  BINDING,
  base,
  drop,
  emulate,
  KEY,
  mark,
  OAUTH,
  type Refused,
  refuses,
  TOKEN,
  user,
  VERSION,
  weather,
} from './anthropic-requests.ts'

const schema = (input_schema: unknown, name = 'get_weather') => ({ tools: [{ name, input_schema }] })
const budget = (budget_tokens: number) => ({
  thinking: { type: 'enabled', budget_tokens },
  model: 'claude-haiku-4-5',
})

/** One case for each refusal. */
const REFUSALS: Refused[] = [
  ['an unknown version', base(), /anthropic-version/, { 'anthropic-version': '2024-01-01' }],
  [
    'an unknown beta',
    base(),
    /Unexpected value\(s\) `made-up-2030-01-01`/,
    { 'anthropic-beta': 'made-up-2030-01-01' },
  ],
  ['no model', { max_tokens: 5, messages: [user('a')] }, /model: Field required/],
  ['no max_tokens', { model: 'claude-opus-5', messages: [user('a')] }, /max_tokens: Field required/],
  ['max_tokens of 0', base({ max_tokens: 0 }), /max_tokens/],
  ['a text block without a text', base({ messages: [user([{ type: 'text' }])] }), /text: Field required/],
  ['max_tokens beyond the model', base({ max_tokens: 200_000 }), /128000, which is the maximum/],
  ['an unknown field', base({ stream_options: {} }), /stream_options: Extra inputs are not permitted/],
  ['a gated field without its beta', base({ context_management: {} }), /context_management: Extra inputs/],
  [
    'a prompt beyond the window',
    base({ model: 'claude-haiku-4-5', system: 'x'.repeat(810_000) }),
    /prompt is too long/,
  ],
  [
    'temperature under the newer API version',
    base({ temperature: 1 }),
    /temperature: Extra/,
    { 'anthropic-version': '2026-10-21' },
  ],
  [
    'temperature on newer models',
    base({ model: 'claude-opus-4-8', temperature: 0.5 }),
    /`temperature` is deprecated/,
  ],
  ['top_p on newer models', base({ model: 'claude-opus-4-8', top_p: 0.5 }), /`top_p` is deprecated/],
  ['top_k on newer models', base({ model: 'claude-opus-4-8', top_k: 5 }), /`top_k` is deprecated/],
  ['temperature out of range', base({ temperature: 1.5 }), /range/],
  ['temperature with top_p', base({ temperature: 0.5, top_p: 0.9 }), /cannot both be specified/],
  [
    'temperature with thinking',
    base({ temperature: 0.5, thinking: { type: 'adaptive' } }),
    /may only be set to 1/,
  ],
  ['a low top_p with thinking', base({ top_p: 0.5, thinking: { type: 'adaptive' } }), /0\.95/],
  ['top_k with thinking', base({ top_k: 5, thinking: { type: 'adaptive' } }), /`top_k` must be unset/],
  ['a blank stop sequence', base({ stop_sequences: ['\n'] }), /non-whitespace/],
  ['stop sequences that are no list', base({ stop_sequences: 'x' }), /stop_sequences: Input .* valid array/],
  ['tools that are no list', base({ tools: {} }), /tools: Input should be a valid array/],
  ['metadata that is no object', base({ metadata: 'x' }), /metadata: Input does not match/],
  ['a temperature that is no number', base({ temperature: '1' }), /temperature: Input .* valid number/],
  ['metadata with more than a user id', base({ metadata: { email: 'a@b.c' } }), /metadata\.email: Extra/],
  ['a user id that is no text', base({ metadata: { user_id: 5 } }), /user_id: Input should be/],
  ['an unknown service tier', base({ service_tier: 'gold' }), /service_tier: Input should be 'auto'/],
  ['stream that is no boolean', base({ stream: 'yes' }), /stream: Input should be a valid boolean/],
  ['a system prompt that is an object', base({ system: {} }), /system: Input should be/],
  [
    'an empty system block',
    base({ system: [{ type: 'text', text: '' }] }),
    /system: text content blocks must be non-empty/,
  ],
  [
    'a system block of another kind',
    base({ system: [{ type: 'document', text: 'a' }] }),
    /system\.0\.type: Input should be 'text'/,
  ],
  [
    'a tool name with a dot',
    base(schema({ type: 'object' }, 'a.b')),
    /tools\.0\.custom\.name: String should match/,
  ],
  ['two tools with the same name', base({ tools: [weather, weather] }), /Tool names must be unique/],
  ['an unknown member of a tool', base({ tools: [{ ...weather, parameters: {} }] }), /parameters: Extra/],
  ['an empty description', base({ tools: [{ ...weather, description: '' }] }), /description/],
  ['a schema without type', base(schema({ properties: {} })), /input_schema\.type: Field required/],
  ['a schema that is no object', base(schema({ type: 'string' })), /input_schema\.type: Input should be/],
  [
    'anyOf at the root',
    base(schema({ type: 'object', anyOf: [] })),
    /oneOf, allOf, or anyOf at the top level/,
  ],
  [
    'a property name with a bracket',
    base(schema({ type: 'object', properties: { 'a[]': {} } })),
    /Property keys should match/,
  ],
  [
    'a tuple of an older draft',
    base(schema({ type: 'object', properties: { a: { type: 'array', items: [{ type: 'string' }] } } })),
    /must match JSON Schema draft 2020-12/,
  ],
  [
    'a pattern that is no regex',
    base(schema({ type: 'object', properties: { a: { pattern: '(' } } })),
    /draft 2020-12/,
  ],
  [
    'a tool choice without tools',
    base({ tool_choice: { type: 'auto' } }),
    /only be specified while providing tools/,
  ],
  [
    'an unknown tool choice',
    base({ tools: [weather], tool_choice: { type: 'required' } }),
    /Input tag 'required'/,
  ],
  [
    'a choice of a tool that is not declared',
    base({ tools: [weather], tool_choice: { type: 'tool', name: 'x' } }),
    /Tool 'x' not found/,
  ],
  [
    'disable_parallel_tool_use beside tool_choice none',
    base({ tools: [weather], tool_choice: { type: 'none', disable_parallel_tool_use: true } }),
    /Extra/,
  ],
  ...['claude-opus-5-5', 'claude-sonnet-5-5', 'claude-fable-5-1'].map(
    (model): Refused => [
      `a forced tool on ${model}`,
      base({ model, tools: [weather], tool_choice: { type: 'any' } }),
      /type "tool" and "any" are not supported/,
    ],
  ),
  [
    'a forced tool with a thinking budget',
    base({ ...budget(1024), max_tokens: 4000, tools: [weather], tool_choice: { type: 'any' } }),
    /when tool_choice forces tool use/,
  ],
  ['an unknown effort', base({ output_config: { effort: 'minimal' } }), /effort level 'minimal'/],
  ['xhigh before 4.7', base({ output_config: { effort: 'xhigh' } }), /effort level 'xhigh'/],
  [
    'effort on the 4.5 generation',
    base({ model: 'claude-haiku-4-5', output_config: { effort: 'low' } }),
    /not support the effort parameter/,
  ],
  [
    'a high effort without thinking',
    base({ model: 'claude-opus-5', thinking: { type: 'disabled' }, output_config: { effort: 'max' } }),
    /requires thinking/,
  ],
  [
    'a high effort with thinking only between tools',
    base({
      model: 'claude-sonnet-5-5',
      thinking: { type: 'between_tools' },
      output_config: { effort: 'xhigh' },
    }),
    /requires thinking/,
  ],
  [
    'adaptive thinking on 4.5',
    base({ model: 'claude-haiku-4-5', thinking: { type: 'adaptive' } }),
    /adaptive thinking is not supported/,
  ],
  [
    'a budget on 4.7',
    base({ model: 'claude-opus-4-7', thinking: { type: 'enabled', budget_tokens: 1024 } }),
    /"thinking.type.enabled" is not supported/,
  ],
  [
    'no thinking on Opus 5.5',
    base({ model: 'claude-opus-5-5', thinking: { type: 'disabled' } }),
    /"thinking.type.disabled" is not supported/,
  ],
  [
    'a budget that is too small',
    base({ ...budget(1023), max_tokens: 4000 }),
    /greater than or equal to 1024/,
  ],
  [
    'a thinking budget of all max_tokens',
    base({ ...budget(4000), max_tokens: 4000 }),
    /`max_tokens` must be greater/,
  ],
  [
    'enabled thinking without a budget',
    base({ model: 'claude-haiku-4-5', thinking: { type: 'enabled' } }),
    /budget_tokens: Field required/,
  ],
  [
    'display before 4.7',
    base({ thinking: { type: 'adaptive', display: 'summarized' } }),
    /thinking\.adaptive\.display: Extra/,
  ],
  [
    'an unknown display',
    base({ model: 'claude-opus-5', thinking: { type: 'adaptive', display: 'updates' } }),
    /thinking\.adaptive\.display: Input should be 'summarized' or 'omitted'/,
  ],
  [
    'an unknown block_binding',
    base({
      model: 'claude-opus-5-5',
      thinking: { type: 'adaptive', block_binding: { prefix_mismatch_behavior: 'drop' } },
    }),
    /block_binding: Input should be 'error' or 'drop_block'/,
    BINDING,
  ],
  [
    'block_binding without its beta',
    base({ model: 'claude-opus-5-5', thinking: { type: 'adaptive', ...drop } }),
    /block_binding: Extra/,
  ],
  [
    'block_binding with thinking off',
    base({ model: 'claude-haiku-5-5', thinking: { type: 'disabled', ...drop } }),
    /block_binding: Extra/,
    BINDING,
  ],
  [
    'five cache marks',
    base({
      tools: [{ ...weather, ...mark }],
      messages: [user([1, 2, 3, 4].map((n) => ({ type: 'text', text: `${n}`, ...mark })))],
    }),
    /maximum of 4 blocks with cache_control may be provided. Found 5/,
  ],
  [
    'a cache mark of another type',
    base({ tools: [{ ...weather, cache_control: { type: 'forever' } }] }),
    /cache_control\.type/,
  ],
  [
    'a cache mark of an unknown time',
    base({ tools: [{ ...weather, cache_control: { type: 'ephemeral', ttl: '2h' } }] }),
    /cache_control\.ttl/,
  ],
  [
    'a longer cache mark after a shorter one',
    base({
      tools: [{ ...weather, ...mark }],
      system: [{ type: 'text', text: 'x', cache_control: { type: 'ephemeral', ttl: '1h' } }],
    }),
    /ttl='1h' must not come after/,
  ],
  [
    'a cache mark on empty text',
    base({ messages: [user([{ type: 'text', text: '', ...mark }])] }),
    /cannot be set for empty text/,
  ],
]

t.test('wrong requests are refused', async (t) => {
  const emulator = await emulate(t)
  await refuses(t, emulator, REFUSALS)

  await t.test('betas without an effect, and efforts of Opus 4.5, are accepted', async (t) => {
    const betas = { 'anthropic-beta': 'extended-cache-ttl-2025-04-11, pdfs-2024-09-25' }
    t.match(await ask(emulator, base(), betas), { status: 200 })
    const model = 'claude-opus-4-5'
    t.match(await ask(emulator, base({ model, output_config: { effort: 'low' } })), { status: 200 })
  })

  await t.test('a body with half a character, or that is no JSON, is refused', async (t) => {
    const broken = JSON.stringify(base()).replace('hello', 'a\\ud83d')
    t.match(await ask(emulator, broken), { status: 400, words: /surrogates not allowed/ })
    t.match(await ask(emulator, 'no json'), { status: 400, words: /not valid JSON/ })
  })

  await t.test('a request that is too large is refused before it is read', async (t) => {
    t.match(await ask(emulator, 'x'.repeat(33 * 1024 * 1024)), {
      status: 413,
      json: { error: { type: 'request_too_large' } },
    })
  })

  await t.test('an unknown model and an unknown path are not found', async (t) => {
    t.match(await ask(emulator, base({ model: 'claude-opus-9' })), {
      status: 404,
      words: 'model: claude-opus-9',
    })
    t.match(await ask(emulator, base(), {}, '/v1/complete'), { status: 404 })
  })

  await t.test('a request without a version is refused', async (t) => {
    const response = await fetch(`${emulator.url}/v1/messages`, {
      method: 'POST',
      headers: { 'x-api-key': KEY },
      body: JSON.stringify(base()),
    })
    t.equal(response.status, 400)
    t.match(await response.text(), /anthropic-version: header is required/)
  })

  await t.test('exactly one known credential is accepted, in the header of its kind', async (t) => {
    const asked = async (headers: Record<string, string>) => {
      const response = await fetch(`${emulator.url}/v1/models`, { headers: { ...VERSION, ...headers } })
      return `${response.status} ${await response.text()}`
    }
    const bearer = (token: string) => ({ authorization: `Bearer ${token}` })
    t.match(await asked({}), /^401 .*x-api-key header is required/)
    t.match(await asked({ 'x-api-key': 'something' }), /^401 .*invalid x-api-key/)
    t.match(
      await asked({ 'x-api-key': TOKEN, ...OAUTH }),
      /^401 .*invalid x-api-key/,
      'a login token in the header for keys',
    )
    t.match(
      await asked({ 'x-api-key': KEY, ...bearer(TOKEN), ...OAUTH }),
      /^401 .*invalid x-api-key/,
      'a key and a login at once',
    )
    t.match(
      await asked(bearer(TOKEN)),
      /^401 .*OAuth authentication is currently not supported/,
      'a login without its beta',
    )
    t.match(await asked({ ...bearer('nonsense'), ...OAUTH }), /^401 .*Invalid bearer token/)
    t.match(
      await asked({ 'x-api-key': KEY, origin: 'https://a.example' }),
      /^401 .*CORS requests are not allowed/,
    )
    emulator.refuse(TOKEN, 'expired')
    t.match(await asked({ ...bearer(TOKEN), ...OAUTH }), /^401 .*has expired/)
    emulator.refuse(TOKEN, 'revoked')
    t.match(await asked({ ...bearer(TOKEN), ...OAUTH }), /^403 .*permission_error.*has been revoked/)
    t.match(await asked(bearer(KEY)), /^200 /, 'an API key may come as a bearer')
  })
})
