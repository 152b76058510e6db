/** Thinking that is sent back to the emulated Anthropic API: what it takes, and what it refuses. */
import t, { type Test } from 'tap'
import {
  ask,
  assistant,
  BINDING,
  type Body,
  drop,
  emulate,
  mark,
  user,
  weather,
} from './anthropic-requests.ts'

const emulator = await emulate(t)
const opening = (model: string, more: Body = {}): Body => ({
  model,
  max_tokens: 8000,
  tools: [weather],
  messages: [user('think first\nthink second\ncall get_weather with {"place":"Bern"}')],
  ...more,
})
type Blocks = Body[]
/** The next request, with the call's result and the assistant's blocks as `change` returns them. */
const next = (body: Body, content: Blocks, change: (blocks: Blocks) => Blocks = (blocks) => blocks): Body => {
  const id = content.find(({ type }) => type === 'tool_use')?.id
  const messages = body.messages as Blocks
  return {
    ...body,
    messages: [
      ...messages,
      assistant(change(structuredClone(content))),
      user([{ type: 'tool_result', tool_use_id: id, content: 'ok' }]),
    ],
  }
}
const content = async (t: Test, body: Body) => {
  const answer = await ask(emulator, body)
  t.equal(answer.status, 200, answer.words)
  return answer.json.content as Blocks
}
const enabled = { thinking: { type: 'enabled', budget_tokens: 2000 } }

t.test('unchanged thinking is taken back, also with another call id and a cache mark', async (t) => {
  for (const [model, more] of [
    ['claude-opus-5-5', {}],
    ['claude-opus-5', {}],
    ['claude-haiku-4-5', enabled],
  ] as const) {
    const body = opening(model, more)
    const blocks = await content(t, body)
    t.match(blocks, [{ type: 'thinking' }, { type: 'thinking' }, { type: 'tool_use' }])
    const second = next(body, blocks, (list) => [...list.slice(0, 2), { ...list[2], id: 'call_1', ...mark }])
    const renamed = JSON.stringify(second).replaceAll(String(blocks[2]?.id), 'call_1')
    t.match(await ask(emulator, renamed), { status: 200 }, model)
  }
})

t.test('thinking that is changed, reordered, cut or not at the head is refused', async (t) => {
  const body = opening('claude-haiku-4-5', enabled)
  const blocks = await content(t, body)
  const changed = next(body, blocks, ([a, ...rest]) => [{ ...a, thinking: 'other' }, ...rest])
  t.match(await ask(emulator, changed), {
    status: 400,
    words: /^messages\.1\.content\.0: Invalid `signature`/,
  })
  const cannotModify = { status: 400, words: /blocks in the latest assistant message cannot be modified/ }
  t.match(
    await ask(
      emulator,
      next(body, blocks, ([a, b, c]) => [b, a, c] as Blocks),
    ),
    cannotModify,
  )
  t.match(
    await ask(
      emulator,
      next(body, blocks, ([, b, c]) => [b, c] as Blocks),
    ),
    cannotModify,
  )
  const headless = await ask(
    emulator,
    next(body, blocks, (list) => list.slice(2)),
  )
  t.match(headless, {
    status: 400,
    words: /Expected `thinking` or `redacted_thinking`, but found `tool_use`/,
  })
  const said = next(body, blocks, (list) => [{ type: 'text', text: 'so' }, ...list])
  t.match(await ask(emulator, said), { status: 400, words: /Expected `thinking`/ })
  const so = { type: 'text', text: 'so' } as const
  const later = { ...body, messages: [user('a'), assistant([so, ...blocks.slice(0, 2), so]), user('b')] }
  t.match(await ask(emulator, later), { status: 400, words: /the first block must be `thinking`/ })
  const off = { ...next(body, blocks), thinking: { type: 'disabled' } }
  t.match(await ask(emulator, off), { status: 400, words: /When thinking is disabled/ })
  const plain = { ...next(body, blocks, (list) => list.slice(2)), thinking: { type: 'disabled' } }
  t.match(await ask(emulator, plain), { status: 200 })
})

t.test('thinking of another model or organization is refused', async (t) => {
  const body = opening('claude-opus-5')
  const blocks = await content(t, body)
  const foreign = { status: 400, words: /bound to a different conversation/ }
  t.match(await ask(emulator, { ...next(body, blocks), model: 'claude-sonnet-5' }), foreign)
  t.match(await ask(emulator, next(body, blocks), { 'x-api-key': 'sk-ant-api03-other-1' }), foreign)
  t.match(await ask(emulator, next(body, blocks), { 'x-api-key': 'sk-ant-api03-acme-2' }), { status: 200 })
})

t.test('thinking is bound to system, tools and earlier messages', async (t) => {
  const body = opening('claude-opus-5-5', { system: 'be brief' })
  const blocks = await content(t, body)
  const second = next(body, blocks)
  const changes: [string, Body][] = [
    ['system', { system: 'be long' }],
    ['tools', { tools: [{ ...weather, description: 'other' }] }],
    ['messages', { messages: [user('other words'), ...(second.messages as Blocks).slice(1)] }],
  ]
  for (const [name, change] of changes) {
    const broken = { ...second, ...change }
    t.match(await ask(emulator, broken), { status: 400, words: /prefix_binding_mismatch/ }, name)
    const dropped = await ask(emulator, { ...broken, thinking: { type: 'adaptive', ...drop } }, BINDING)
    t.equal(dropped.status, 200)
    t.strictSame(dropped.json.input_transformations, [
      { type: 'thinking_dropped', path: 'messages.1.content.0', reason: 'prefix_binding_mismatch' },
      { type: 'thinking_dropped', path: 'messages.1.content.1', reason: 'prefix_binding_mismatch' },
    ])
  }
  const unbound = opening('claude-opus-5', { system: 'be brief' })
  t.match(await ask(emulator, { ...next(unbound, await content(t, unbound)), system: 'be long' }), {
    status: 200,
  })
})

t.test('redacted thinking is taken back', async (t) => {
  const body = opening('claude-opus-5', { messages: [user('think redacted\ncall get_weather with {}')] })
  const blocks = await content(t, body)
  t.match(blocks, [{ type: 'redacted_thinking', data: /^E/ }, { type: 'tool_use' }])
  t.match(await ask(emulator, next(body, blocks)), { status: 200 })
  const broken = next(body, blocks, ([a, b]) => [{ ...a, data: `${a?.data}x` }, b] as Blocks)
  t.match(await ask(emulator, broken), { status: 400, words: /Invalid `data` in `redacted_thinking`/ })
})

t.test('with between_tools text before a call is thinking, and is taken back as thinking', async (t) => {
  const body = opening('claude-sonnet-5-5', {
    thinking: { type: 'between_tools' },
    messages: [user('say Looking.\ncall get_weather with {}\nthen\nsay Done.')],
  })
  const blocks = await content(t, body)
  t.match(blocks, [{ type: 'thinking', thinking: 'Looking.', signature: /^E/ }, { type: 'tool_use' }])
  t.match((await ask(emulator, next(body, blocks))).json.content, [{ type: 'text', text: 'Done.' }])
})
