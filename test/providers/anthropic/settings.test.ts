/** Thinking, sampling, limits and tool choice, as each family of Anthropic's models takes them. */
import t from 'tap'
import { anthropic } from '../../../providers/anthropic/index.ts'
import type { MessageInput, Part } from '../../../src/chat/message.ts'
import type { Effort, ModelSettings } from '../../../src/provider.ts'
import { NONE } from '../../patterns.ts'
import { said } from '../exchange.ts'
import {
  answered,
  called,
  contents,
  render,
  requestFor,
  results,
  returned,
  thought,
  type Wish,
  words,
} from './exchange.ts'

t.test('thinking is asked for as each model takes it', async (t) => {
  const plan = (model: string, effort?: Effort, more: Wish = {}) => {
    const { body, headers, notes } = render({
      model,
      ...more,
      settings: { ...more.settings, ...(effort ? { reasoning: { effort } } : {}) },
    })
    return {
      thinking: body.thinking,
      effort: body.output_config?.effort,
      beta: headers['anthropic-beta'],
      notes,
    }
  }
  const quiet = { thinking: undefined, effort: undefined, beta: undefined, notes: [] }
  const shown = { type: 'adaptive', display: 'summarized' }
  const bound = { ...shown, block_binding: { prefix_mismatch_behavior: 'drop_block' } }
  const BINDING = 'thinking-binding-controls-2026-08-01'

  await t.test('without an effort only models that think by themselves are sent thinking', async (t) => {
    t.strictSame(plan('claude-haiku-4-5-20251001'), quiet)
    t.strictSame(plan('claude-haiku-4.5'), quiet, 'a name as proxies write it')
    t.strictSame(plan('claude-opus-4-6'), quiet)
    t.strictSame(plan('claude-opus-4-8'), quiet)
    t.strictSame(plan('claude-sonnet-5'), { ...quiet, thinking: shown })
    t.strictSame(plan('claude-opus-5-5'), { ...quiet, thinking: bound, beta: BINDING })
    t.strictSame(
      plan('claude-opus-7'),
      { ...quiet, thinking: bound, beta: BINDING },
      'an unknown Claude model is treated as a newer one',
    )
    t.strictSame(plan('glm-9'), quiet, 'a model that is no Claude gets no thinking settings')
  })

  await t.test('an effort that the model lacks becomes the next one, or is left out', async (t) => {
    t.strictSame(plan('claude-opus-4-8', 'xhigh'), { ...quiet, thinking: shown, effort: 'xhigh' })
    t.match(plan('claude-opus-4-6', 'xhigh'), {
      thinking: { type: 'adaptive' },
      effort: 'high',
      notes: [/"xhigh" was sent as "high"/],
    })
    t.match(plan('claude-opus-4-6', 'max'), { effort: 'max', notes: NONE })
    t.match(plan('claude-opus-5', 'minimal'), { effort: 'low', notes: [/"minimal" was sent as "low"/] })
    const reported = { id: 'claude-opus-5', efforts: [] }
    t.match(plan('claude-opus-5', 'low', { request: { reported } }), {
      thinking: shown,
      effort: undefined,
      notes: [/not accepted/],
    })
  })

  await t.test('a Claude by the name of a cloud or a gateway is known', async (t) => {
    for (const model of [
      'us.anthropic.claude-sonnet-4-5-20250929-v1:0',
      'claude-sonnet-4-5@20250929',
      'anthropic/claude-sonnet-4.5',
      'anthropic/claude-sonnet-4.5:beta',
      'databricks-claude-sonnet-4-5',
    ])
      t.match(plan(model, 'high'), { thinking: { type: 'enabled' }, notes: NONE }, model)
    t.match(plan('anthropic.claude-opus-5'), { thinking: shown }, 'its thoughts are shown')
    t.strictSame(
      plan('anthropic/claude-opus-5.5').thinking,
      shown,
      'fields that a relay may not know are left out',
    )
    t.match(plan('anthropic/claude-opus-9'), { thinking: undefined }, 'a Claude that is not known')
    t.match(
      plan('anthropic/claude-sonnet-4.5:thinking', undefined, { settings: { temperature: 0.5 } }),
      { thinking: undefined, notes: [/temperature/] },
      'a variant that always thinks takes none of the settings that thinking rules out',
    )
    const { boundThinking, systemMessages } = anthropic.capabilities('anthropic/claude-opus-5.5')
    t.same([boundThinking, systemMessages], [true, false])
    t.equal(anthropic.capabilities('glm-9').boundThinking, false)
  })

  await t.test('effort none stops thinking if the model can stop, and is noted otherwise', async (t) => {
    for (const model of ['claude-opus-5', 'claude-haiku-5-5', 'claude-haiku-4-5'])
      t.strictSame(plan(model, 'none'), { ...quiet, thinking: { type: 'disabled' } }, model)
    t.strictSame(plan('claude-sonnet-5-5', 'none'), { ...quiet, thinking: { type: 'between_tools' } })
    const always = plan('claude-opus-5-5', 'none')
    t.match(always, { thinking: bound, effort: 'low', notes: [/always thinks/] })
    t.equal(always.notes.length, 1)
    t.match(plan('glm-9', 'none'), { ...quiet, notes: [/left out/] })
    t.strictSame(plan('glm-9', 'high'), { ...quiet, thinking: shown, effort: 'high' })
  })

  await t.test('the 4.5 generation gets a thinking budget within max_tokens', async (t) => {
    const INTERLEAVED = 'interleaved-thinking-2025-05-14'
    t.strictSame(plan('claude-haiku-4-5', 'high'), {
      ...quiet,
      thinking: { type: 'enabled', budget_tokens: 16_384 },
      beta: INTERLEAVED,
    })
    const efforts: Effort[] = ['minimal', 'low', 'medium', 'high', 'xhigh']
    const budgets = efforts.map((effort) => {
      const { thinking } = plan('claude-haiku-4-5', effort)
      return thinking?.type === 'enabled' ? thinking.budget_tokens : 0
    })
    t.equal(budgets[0], 1024, 'the least that the API takes')
    t.same(
      budgets,
      [...new Set(budgets)].sort((a, b) => a - b),
      'a higher effort thinks longer',
    )
    const limited = (max_output_tokens: number) =>
      plan('claude-haiku-4-5', 'high', { settings: { max_output_tokens } })
    t.match(limited(6001), { thinking: { budget_tokens: 3000 } })
    t.match(limited(1500), { thinking: { budget_tokens: 1024 } })
    t.match(limited(1024), { thinking: { type: 'disabled' }, notes: [/above 1024/] })
  })

  await t.test('thinking is off for an open tool turn that began without thinking', async (t) => {
    const open = [said('a'), answered(called('c')), results(returned('c'))]
    const budget = (messages: MessageInput[]) => plan('claude-haiku-4-5', 'high', { messages })
    t.match(budget(open), { thinking: { type: 'disabled' }, notes: [/began without thinking/] })
    t.match(budget([...open, said('go on')]), { thinking: { type: 'disabled' } })
    t.match(budget([...open, answered(words('b')), said('c')]), { thinking: { type: 'enabled' } })
    const began = [said('a'), answered(thought('t', 'signed:x'), called('c')), results(returned('c'))]
    t.match(budget(began), { thinking: { type: 'enabled' } })
    t.match(budget([said('0'), answered(words('1')), ...began]), { thinking: { type: 'enabled' } })
    const unsigned = answered(thought('t'), called('c'))
    t.match(budget([said('a'), unsigned, results(returned('c'))]), { thinking: { type: 'disabled' } })
    t.match(budget([...began, answered(called('d')), results(returned('d'))]), {
      thinking: { type: 'enabled' },
    })
    t.match(plan('claude-opus-5', 'high', { messages: open }), { thinking: { type: 'adaptive' } })
  })

  await t.test('thinking blocks go back as they came, and not while thinking is off', async (t) => {
    const history = [
      said('a'),
      answered(thought('', 'signed:EAB'), thought('', 'redacted:xyz'), thought('unsigned'), words('b')),
      said('c'),
    ]
    const blocks = (model: string, effort?: Effort) =>
      render({ model, messages: history, settings: effort ? { reasoning: { effort } } : {} }).body.messages[1]
        ?.content
    t.strictSame(blocks('claude-opus-5'), [
      { type: 'thinking', thinking: '', signature: 'EAB' },
      { type: 'redacted_thinking', data: 'xyz' },
      { type: 'text', text: 'b' },
    ])
    for (const [model, effort] of [
      ['claude-opus-4-8', undefined],
      ['claude-opus-5', 'none'],
      ['claude-haiku-4-5', undefined],
    ] as const) {
      t.strictSame(blocks(model, effort), [{ type: 'text', text: 'b' }], `${model} ${effort}`)
    }
    for (const [model, effort] of [
      ['claude-sonnet-5-5', 'none'],
      ['deepseek-v4-flash', undefined],
      ['anthropic/claude-sonnet-4.5', undefined],
      ['anthropic/claude-sonnet-4.5:thinking', undefined],
      ['glm-9', 'none'],
    ] as const) {
      t.match(
        blocks(model, effort),
        [{ type: 'thinking' }, { type: 'redacted_thinking' }, { type: 'text' }],
        `${model} ${effort}`,
      )
    }
    const unsigned = render({
      model: 'mimo-v2-flash',
      messages: [said('a'), answered(thought('so', 'signed:'), called('c')), results(returned('c'))],
    })
    t.strictSame(unsigned.body.messages[1]?.content[0], { type: 'thinking', thinking: 'so', signature: '' })
  })

  await t.test('calls get a thought of their own for a model that misses one', async (t) => {
    const messages = [
      said('a'),
      answered(words('b'), called('c')),
      results(returned('c')),
      answered(thought('d', 'signed:e'), called('f')),
      results(returned('f')),
      answered(words('g')),
      said('h'),
    ]
    // DeepSeek serves the names of Claudes with models of its own.
    for (const [model, message, param] of [
      ['claude-haiku-4-5', 'The `content[].thinking` in the thinking mode must be passed back to the API.'],
      ['deepseek-v3.2', 'Missing thinking block in the assistant message at message index 1.'],
      [
        'mimo-v2.5-pro',
        'Param Incorrect',
        'The reasoning_content in the thinking mode must be passed back to the API.',
      ],
      [
        'kimi-k3',
        'thinking is enabled but reasoning_content is missing in assistant tool call message at index 4',
      ],
    ] as const) {
      const request = requestFor({ model, messages })
      const body = JSON.stringify({ error: { type: 'invalid_request_error', message, param } })
      const again = anthropic.amend({ status: 400, headers: {}, body }, request)
      t.match(
        anthropic.render(again ?? request).body,
        {
          messages: [
            { content: [{ text: 'a' }] },
            {
              content: [
                { type: 'thinking', thinking: '…', signature: /^$/ },
                { text: 'b' },
                { type: 'tool_use' },
              ],
            },
            { content: [{ type: 'tool_result' }] },
            { content: [{ type: 'thinking', thinking: 'd', signature: 'e' }, { type: 'tool_use' }] },
            { content: [{ type: 'tool_result' }] },
            { content: [{ text: 'g' }] },
            { content: [{ text: 'h' }] },
          ],
        },
        message,
      )
      t.equal(again && anthropic.amend({ status: 400, headers: {}, body }, again), null)
    }
  })

  await t.test('thinking that nothing follows is not sent', async (t) => {
    const history = (...parts: Part[]) => [said('a'), answered(...parts), said('b')]
    const opus = { model: 'claude-opus-5' }
    t.strictSame(contents(history(words('c'), thought('', 'signed:EAB'), thought('', 'redacted:x')), opus), [
      ['user', ['text']],
      ['assistant', ['text']],
      ['user', ['text']],
    ])
    t.strictSame(contents(history(thought('t', 'signed:EAB')), opus), [['user', ['text', 'text']]])
  })

  await t.test('reports of the models endpoint overrule the family', async (t) => {
    const reported = (thinking_types: string[]) => ({ request: { reported: { id: 'x', thinking_types } } })
    t.match(plan('claude-opus-9', 'high', reported(['enabled', 'disabled'])), {
      thinking: { type: 'enabled' },
    })
    t.match(plan('claude-opus-9', undefined, reported(['enabled', 'disabled'])), { thinking: undefined })
    t.match(plan('claude-opus-5-5', 'none', reported(['adaptive', 'disabled'])), {
      thinking: { type: 'disabled' },
    })
    for (const effort of ['high', 'none'] as const)
      t.match(plan('claude-opus-5', effort, reported([])), { thinking: undefined, notes: [/not accepted/] })
  })

  await t.test('a setting that a model of an unknown family refuses is left out later', async (t) => {
    const model = 'claude-opus-9'
    /** What a request asks for after these refusals, one after the other. */
    const after = (effort: Effort | undefined, ...refusals: string[]) => {
      const settings = effort ? { reasoning: { effort } } : {}
      let request = requestFor({ model, settings })
      for (const message of refusals) {
        const body = JSON.stringify({ error: { type: 'invalid_request_error', message } })
        const amended = anthropic.amend({ status: 400, headers: {}, body }, request)
        if (!amended) return null
        request = amended
      }
      return plan(model, effort, { request })
    }
    const adaptive = 'adaptive thinking is not supported on this model'
    const enabled = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
    const effort = 'This model does not support the effort parameter.'
    t.strictSame(after(undefined, adaptive), quiet)
    t.match(after('low', adaptive), { thinking: { type: 'enabled' }, effort: undefined, notes: NONE })
    t.match(after('low', adaptive, enabled), { thinking: undefined, notes: [/not accepted/] })
    t.match(after('low', effort), { thinking: bound, effort: undefined, notes: [/not accepted/] })
    const level =
      "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium."
    const relayed = 'level "xhigh" not supported, valid levels: low, medium, high'
    for (const refusal of [level, relayed])
      t.match(after('xhigh', refusal), { effort: /^high$/, notes: [/"xhigh" was sent as "high"/] }, refusal)
    // The others in the words of a relay (BerriAI/litellm#41202, #41203).
    for (const refusal of [
      'Unexpected value(s) `thinking-binding-controls-2026-08-01` for the `anthropic-beta` header',
      'BedrockException - {"message":"invalid beta flag"}',
      'BedrockException - {"message":"thinking.adaptive.block_binding: Extra inputs are not permitted"}',
    ]) {
      t.strictSame(after(undefined, refusal), { ...quiet, thinking: shown })
      t.equal(after(undefined, refusal, refusal), null, 'the request is amended only once')
    }
    const inWords = JSON.stringify({ error: { message: enabled } })
    t.match(after('low', adaptive, inWords), { thinking: undefined, notes: [/not accepted/] })
    for (const refusal of [adaptive, effort, level])
      t.equal(after('low', refusal, refusal), null, 'the request is amended only once')
    t.equal(after('low', enabled), null, 'a setting that was not sent is not amended')
  })
})

t.test('settings become the vendor’s', async (t) => {
  const settle = (model: string, settings: ModelSettings, more: Wish = {}) => {
    const { body, notes } = render({ model, settings, ...more })
    const { temperature, top_p, tool_choice, max_tokens } = body
    return { temperature, top_p, tool_choice, max_tokens, notes }
  }
  await t.test('sampling settings are sent to families that take them', async (t) => {
    t.match(settle('claude-opus-4-6', { temperature: 0.3 }), { temperature: 0.3, notes: NONE })
    t.match(settle('claude-opus-4-6', { temperature: 1 }), { temperature: 1, notes: NONE })
    t.match(settle('claude-opus-4-6', { temperature: 1.7 }), { temperature: 1, notes: [/lowered to 1/] })
    t.match(settle('claude-haiku-4-5', { temperature: 0.3, top_p: 0.9 }), {
      temperature: 0.3,
      top_p: undefined,
      notes: [/top_p/],
    })
    t.match(settle('claude-haiku-4-5', { top_p: 0.9 }), { top_p: 0.9, notes: NONE })
    t.match(settle('claude-opus-4-7', { temperature: 0.3, top_p: 0.9 }), {
      temperature: undefined,
      top_p: undefined,
      notes: [/temperature: not accepted/, /top_p: not accepted/],
    })
    t.match(settle('anthropic/claude-opus-4.6', { temperature: 0.3 }), {
      temperature: 0.3,
      max_tokens: 32_000,
      notes: NONE,
    })
    const thinks = { reasoning: { effort: 'high' as const } }
    t.match(settle('claude-haiku-4-5', { ...thinks, temperature: 0.3, top_p: 0.96 }), {
      temperature: undefined,
      top_p: 0.96,
      notes: [/while the model thinks/],
    })
    t.match(settle('claude-opus-4-6', { ...thinks, top_p: 0.95 }), { top_p: 0.95, notes: NONE })
    t.match(settle('claude-opus-4-6', { ...thinks, top_p: 0.9 }), { top_p: undefined, notes: [/below 0.95/] })
  })
  await t.test('max_output_tokens is lowered to what the model takes', async (t) => {
    for (const max_output_tokens of [500, 64_000])
      t.match(settle('claude-haiku-4-5', { max_output_tokens }), {
        max_tokens: max_output_tokens,
        notes: NONE,
      })
    t.match(settle('claude-haiku-4-5', { max_output_tokens: 100_000 }), {
      max_tokens: 64_000,
      notes: [/lowered to 64000/],
    })
    t.match(settle('claude-opus-5', {}), { max_tokens: 128_000 })
    t.match(settle('claude-opus-9', {}), { max_tokens: 32_000 })
    t.match(settle('claude-opus-9', { max_output_tokens: 200_000 }), { max_tokens: 200_000, notes: NONE })
    const reported = { id: 'claude-opus-9', max_output_tokens: 256_000 }
    t.match(settle('claude-opus-9', {}, { request: { reported } }), { max_tokens: 256_000 })
    const wish = requestFor({ model: 'claude-opus-9', settings: { max_output_tokens: 200_000 } })
    const message =
      'max_tokens: 200000 > 128000, which is the maximum allowed number of output tokens for claude-opus-9'
    const refusal = { status: 400, headers: {}, body: JSON.stringify({ error: { message } }) }
    const request = anthropic.amend(refusal, wish)
    if (!request) return t.fail('the request was not amended')
    const lowered = { max_tokens: 128_000, notes: [/lowered to 128000/] }
    t.match(
      settle('claude-opus-9', wish.settings, { request }),
      lowered,
      'it is lowered to the limit that a refusal names',
    )
    t.equal(anthropic.amend(refusal, request), null, 'the request is amended only once')
    for (const message of [
      'Invalid max_tokens value, the valid range of max_tokens is [1, 8192]',
      'InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]',
    ]) {
      const body = JSON.stringify({ error: { type: 'invalid_request_error', message } })
      const foreign = anthropic.amend({ status: 400, headers: {}, body }, requestFor({ model: 'glm-9' }))
      t.match(
        foreign && settle('glm-9', {}, { request: foreign }),
        { max_tokens: 8192, notes: NONE },
        message,
      )
    }
  })
  await t.test('tool_choice is degraded if the model does not take it', async (t) => {
    const choice = (model: string, settings: ModelSettings, more: Wish = {}) => {
      const { tool_choice, notes } = settle(model, settings, more)
      return [tool_choice, notes.length]
    }
    const only = { disable_parallel_tool_use: true }
    t.strictSame(choice('claude-opus-5', {}), [undefined, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'auto' }), [undefined, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'none', parallel_tool_calls: false }), [
      { type: 'none' },
      0,
    ])
    t.strictSame(choice('claude-opus-5', { parallel_tool_calls: false }), [{ type: 'auto', ...only }, 0])
    t.strictSame(choice('claude-opus-5', { parallel_tool_calls: true }), [undefined, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'required' }), [{ type: 'any' }, 0])
    t.strictSame(choice('anthropic.claude-opus-5', { tool_choice: 'required' }), [{ type: 'any' }, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'required', parallel_tool_calls: false }), [
      { type: 'any', ...only },
      0,
    ])
    const named = { tool_choice: { name: 'weather.get' }, parallel_tool_calls: false }
    t.strictSame(choice('claude-opus-5', named), [{ type: 'tool', name: 'weather__get', ...only }, 0])
    t.strictSame(choice('claude-opus-5', { tool_choice: { name: 'gone.tool' } }), [{ type: 'auto' }, 1])
    t.strictSame(choice('claude-opus-5-5', named), [{ type: 'auto', ...only }, 1])
    const forced = { tool_choice: 'required' } as const
    t.strictSame(choice('claude-haiku-5-5', forced), [{ type: 'any' }, 0])
    const message = 'tool_choice: type "tool" and "any" are not supported for this model.'
    const refusal = { status: 400, headers: {}, body: JSON.stringify({ error: { message } }) }
    const wish = requestFor({ model: 'claude-haiku-5-5', settings: forced })
    const request = anthropic.amend(refusal, wish)
    if (!request) return t.fail('the request was not amended')
    t.strictSame(
      choice('claude-haiku-5-5', forced, { request }),
      [{ type: 'auto' }, 1],
      'a choice that was refused is degraded',
    )
    t.equal(anthropic.amend(refusal, request), null, 'the request is amended only once')
    t.strictSame(choice('claude-haiku-4-5', { tool_choice: 'required', reasoning: { effort: 'low' } }), [
      { type: 'auto' },
      1,
    ])
    t.strictSame(choice('claude-opus-5', { tool_choice: 'required' }, { tools: [] }), [undefined, 1])
    for (const unforced of [{}, { tool_choice: 'auto' }, { tool_choice: 'none' }] as const)
      t.strictSame(choice('claude-opus-5', unforced, { tools: [] }), [undefined, 0])
  })

  await t.test('only models that have system messages within a conversation get them', async (t) => {
    const having = 'opus-4-8 opus-5 fable-5 mythos-5 sonnet-5-5 opus-5-5 fable-5-2'
    for (const line of `${having} opus-4-7 sonnet-5 haiku-4-5 opus-9`.split(' ')) {
      const { systemMessages } = anthropic.capabilities(`claude-${line}`)
      t.equal(systemMessages, having.split(' ').includes(line), line)
    }
    const told: MessageInput = { role: 'system', parts: [words('b')] }
    for (const message of [
      "role 'system' is not supported on this model",
      'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter.',
      'messages[1].role: unknown variant `system`, expected `user` or `assistant`',
      'invalid params, chat content has invalid message role: system (2013)',
    ]) {
      const body = JSON.stringify({ error: { type: 'invalid_request_error', message } })
      const failure = { status: 400, headers: {}, body }
      const again = anthropic.amend(
        failure,
        requestFor({ model: 'claude-opus-5', messages: [said('a'), told] }),
      )
      t.match(again && anthropic.render(again).body.messages, [
        { role: 'user', content: [{ text: 'a' }, { text: '[System message]\nb' }] },
      ])
      t.equal(anthropic.capabilities('claude-opus-5', again?.reported).systemMessages, false, message)
      t.equal(again && anthropic.amend(failure, again), null, 'the request is amended only once')
    }
  })
})
