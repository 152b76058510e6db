/** Whole turns against the emulated Anthropic, and arbitrary histories against its rules. */

import fc from 'fast-check'
import t from 'tap'
import { anthropic, anthropicOauth } from '../../../providers/anthropic/index.ts'
import type { WireRequest } from '../../../providers/anthropic/wire.ts'
import type { ModelEvent } from '../../../src/chat/event.ts'
import { createFold } from '../../../src/chat/fold.ts'
import { type MessageInput, type Part, toolCalls } from '../../../src/chat/message.ts'
import { repair } from '../../../src/chat/repair.ts'
import { BatonError } from '../../../src/errors.ts'
import type { Deployment, Effort, ModelSettings } from '../../../src/provider.ts'
import { ANY_CHARACTER } from '../../characters.ts'
import { type AnthropicEmulator, anthropicFixture, refusalOf } from '../../emulators/anthropic.ts'
import { MODELS } from '../../emulators/anthropic-models.ts'
import { emulate } from '../../emulators/anthropic-requests.ts'
import { JPEG, PDF, PNG, pdfOf, pngOf } from '../../emulators/bytes.ts'
import { declared, eventsOf, OPTIONS, parserOf, said, send } from '../exchange.ts'
import { fold, framesOf } from '../streams.ts'
import {
  answered,
  render,
  requestFor,
  results,
  returned,
  SECRET,
  TOOLS,
  thought,
  type Wish,
} from './exchange.ts'

/** One conversation with the emulator. The test does the engine's part: repair, render, send, parse, fold. */
interface Talk {
  emulator: AnthropicEmulator
  deployment: Deployment
  model: string
  credential_id: string
  secret: typeof SECRET
  wish: Wish
  history: MessageInput[]
}

interface Step {
  events: ModelEvent[]
  rendered: WireRequest
  /** What the API dropped of the request */
  dropped: unknown
  repaired: boolean
}

const talkWith = (
  emulator: AnthropicEmulator,
  model: string,
  wish: Wish = {},
  deployment: Deployment = anthropic,
): Talk => ({
  emulator,
  deployment,
  model,
  credential_id: 'cred_1',
  secret: SECRET,
  wish,
  history: [],
})

/** One model call and, if it asks for tools, their results; throws the adapter's error. */
async function step(talk: Talk, input?: string): Promise<Step> {
  if (input !== undefined) talk.history.push(said(input))
  const { emulator, deployment, secret, model, credential_id, wish, history } = talk
  const plain = requestFor({ ...wish, model })
  const head = JSON.stringify([plain.instructions, deployment.declare(plain.tools, plain.options)])
  const capabilities = deployment.capabilities(model, plain.reported)
  const target = { provider: 'anthropic', model, credential_id, ...capabilities }
  const { messages, prefix } = repair(history, target, head)
  const request = { ...plain, messages, credential: { id: credential_id } }
  const first = await send(deployment, emulator.url, secret, request)
  const amended = first.status === 200 ? null : (deployment.amend(first, request) ?? null)
  const answer = amended ? await send(deployment, emulator.url, secret, amended) : first
  if (answer.status !== 200) throw deployment.classify(answer)
  const parser = parserOf(deployment, { provider: 'anthropic', model, credential_id, prefix })
  const events = eventsOf(parser, framesOf(answer.body))
  const message = answered(...fold(events))
  history.push(message)
  const calls = toolCalls(message)
  if (calls.length > 0) history.push(results(...calls.map(({ call_id }) => returned(call_id))))
  const [, start] = /^data: (.*message_start.*)$/m.exec(answer.body) ?? []
  return {
    events,
    rendered: deployment.render(amended ?? request).body as unknown as WireRequest,
    dropped: JSON.parse(start ?? '{}').message.input_transformations ?? [],
    repaired: amended !== null,
  }
}
const thinkingIn = ({ rendered }: Step) =>
  rendered.messages.flatMap(({ content }) => content.filter(({ type }) => type.endsWith('thinking'))).length
const usageOf = ({ events }: Step) => {
  const folding = createFold()
  for (const event of events) folding.add(event)
  return folding.usage()
}

t.test('whole turns against the emulator', async (t) => {
  const emulator = await emulate(t)
  const TWICE =
    'think hard\ncall weather__get with {"place":"Bern"}\nthen\nthink again\ncall list_files\nthen\nthink redacted\nsay done'

  await t.test(
    'a turn of three steps keeps all thinking and reads the cache, on every model and path',
    async (t) => {
      for (const { id, types } of MODELS) {
        for (const deployment of [anthropic, anthropicOauth]) {
          const settings: ModelSettings = { reasoning: { effort: 'high' } }
          const talk = talkWith(emulator, id, { settings }, deployment)
          const steps = [await step(talk, TWICE), await step(talk), await step(talk)]
          const next = await step(talk, 'say more')
          const name = `${id} by ${deployment.id} (${types.join(', ')})`
          t.strictSame([...steps, next].map(thinkingIn), [0, 1, 2, 3], name)
          t.strictSame(
            [...steps, next].map(({ dropped }) => dropped),
            [[], [], [], []],
            name,
          )
          t.notOk(
            [...steps, next].some(({ repaired }) => repaired),
            name,
          )
          t.ok(
            steps.slice(1).every((one) => usageOf(one).cached_tokens > 0),
            `${name} reads its cache`,
          )
          t.match(talk.history.at(-1), answered({ type: 'text', text: 'more' } as Part))
        }
      }
    },
  )

  await t.test(
    'what came before a long turn is read from the cache, though that turn has changed',
    async (t) => {
      const talk = talkWith(emulator, 'claude-opus-5')
      await step(talk, `say ${'much '.repeat(1000)}`)
      const before = await step(talk, 'say enough')
      const context = talk.history.push(said('It is noon.')) - 1
      await step(talk, 'call list_files\nthen\n'.repeat(12))
      while (talk.history.at(-1)?.role === 'tool') await step(talk)
      talk.history.splice(context, 1)
      const { cached_tokens } = usageOf(await step(talk, 'say more'))
      const { input_tokens } = usageOf(before)
      t.ok(cached_tokens >= input_tokens, `${cached_tokens} of at least ${input_tokens}`)
    },
  )

  await t.test('a model that thinks only between calls keeps what it said there', async (t) => {
    const talk = talkWith(emulator, 'claude-sonnet-5-5', { settings: { reasoning: { effort: 'none' } } })
    const steps = [
      await step(talk, 'say Looking.\ncall weather__get with {"place":"Bern"}\nthen\nsay done'),
      await step(talk),
      await step(talk, 'say more'),
    ]
    t.match(talk.history[1]?.parts, [{ type: 'reasoning', text: 'Looking.' }, { type: 'tool_call' }])
    t.strictSame(steps.map(thinkingIn), [0, 1, 1])
    t.notOk(steps.some(({ repaired }) => repaired))
  })

  await t.test('every setting on every model renders to a request that is accepted', async (t) => {
    const efforts: (Effort | undefined)[] = [
      undefined,
      'none',
      'minimal',
      'low',
      'medium',
      'high',
      'xhigh',
      'max',
    ]
    const others: ModelSettings[] = [
      { temperature: 0.4, top_p: 0.5, max_output_tokens: 1_000_000 },
      { temperature: 2, tool_choice: 'required', parallel_tool_calls: false },
      { top_p: 0.97, tool_choice: { name: 'weather.get' }, max_output_tokens: 1025 },
      { tool_choice: 'none', max_output_tokens: 16 },
    ]
    const reports = anthropic.models?.parse(JSON.parse(await modelsBody(emulator))) ?? []
    const wishes = MODELS.flatMap(({ id }) =>
      efforts.flatMap((effort) =>
        others.map((other, i): Wish => {
          const reported = reports.find((report) => report.id === id)
          const settings = { ...other, ...(effort ? { reasoning: { effort } } : {}) }
          return { model: id, settings, request: i % 2 === 1 && reported ? { reported } : {} }
        }),
      ),
    )
    const refused = wishes.flatMap((wish) => {
      const words = refusalOf(render(wish))
      return words === null ? [] : [`${wish.model} ${JSON.stringify(wish.settings)}: ${words}`]
    })
    t.strictSame(refused, [])
  })

  await t.test('changed tools, instructions or history lose bound thinking, never the request', async (t) => {
    for (const model of ['claude-opus-5-5', 'claude-opus-5']) {
      const talk = talkWith(emulator, model)
      await step(talk, TWICE)
      talk.wish = { tools: [...TOOLS, declared('new.tool')] }
      const isBound = model === 'claude-opus-5-5'
      const second = await step(talk)
      t.equal(thinkingIn(second), isBound ? 0 : 1, `${model}, after a change of tools`)
      t.equal(thinkingIn(await step(talk)), isBound ? 1 : 2, `${model}, in the next step`)
      talk.wish = { ...talk.wish, request: { instructions: 'Be long.' } }
      t.equal(
        thinkingIn(await step(talk, 'say a')),
        isBound ? 0 : 3,
        `${model}, after a change of instructions`,
      )
      talk.history[0] = said('other words')
      t.equal(thinkingIn(await step(talk, 'say b')), isBound ? 0 : 3, `${model}, after a change of history`)
    }
  })

  await t.test('thinking that repair does not know to be unbound is dropped by the API', async (t) => {
    const talk = talkWith(emulator, 'claude-sonnet-5-5', {}, anthropicOauth)
    await step(talk, TWICE)
    talk.wish = { request: { options: { ...OPTIONS, system_blocks: ['A new first block.'] } } }
    const second = await step(talk)
    t.match(second.dropped, [{ type: 'thinking_dropped', reason: 'prefix_binding_mismatch' }])
    t.notOk(second.repaired)
  })

  await t.test('thinking that the API cannot verify is left out, once', async (t) => {
    for (const model of ['claude-opus-5-5', 'claude-haiku-4-5']) {
      const talk = talkWith(emulator, model, { settings: { reasoning: { effort: 'low' } } })
      await step(talk, TWICE)
      for (const { parts } of talk.history) {
        for (const part of parts) if (part.type === 'reasoning') part.text += ' (edited)'
      }
      const second = await step(talk)
      t.ok(second.repaired, model)
      t.equal(thinkingIn(second), 0)
      const { thinking } = second.rendered
      t.equal(thinking?.type, model === 'claude-haiku-4-5' ? 'disabled' : 'adaptive')
    }
    const refused = (message: string) => ({
      status: 400,
      headers: {},
      body: JSON.stringify({ error: { type: 'invalid_request_error', message } }),
    })
    const failure = refused('messages.1.content.0: Invalid `signature` in `thinking` block')
    t.equal(anthropic.amend(failure, requestFor()), null, 'a request without thinking is not amended')
    const thinks = requestFor({ messages: [said('a'), answered(thought('t', 'signed:x')), said('b')] })
    t.match(anthropic.amend(failure, thinks)?.messages, [said('a'), said('b')])
    const hidden = refused('messages.1.content.0: Invalid `data` in `redacted_thinking` block')
    t.match(anthropic.amend(hidden, thinks)?.messages, [said('a'), said('b')])
    const unknown = refused(
      "56 validation errors:\n  {'type': 'string_type', 'loc': ('body', 'messages', 1, 'content', 'str'), 'msg': 'Input should be a valid string', 'input': [{'type': 'thinking', 'thinking': 't'",
    )
    t.match(anthropic.amend(unknown, thinks)?.messages, [said('a'), said('b')])
    const now = answered(thought('u', 'signed:y'), { type: 'text', text: 'so' })
    const goesOn = anthropic.amend(failure, { ...thinks, messages: [...thinks.messages, now] })
    t.match(goesOn?.messages, [said('a'), said('b'), now], 'thinking of the open turn stays')
    t.match(goesOn && anthropic.amend(failure, goesOn)?.messages.at(-1)?.parts, [{ text: 'so' }])
    t.equal(anthropic.amend({ ...failure, status: 500 }, thinks), null)
    t.equal(anthropic.amend({ ...failure, body: '{}' }, thinks), null)
  })

  await t.test('files with too many pages do not end a conversation', async (t) => {
    const talk = talkWith(emulator, 'claude-haiku-4-5')
    const file = (data: string): Part => ({ type: 'file', media_type: 'application/pdf', data })
    const given = (...parts: Part[]) => talk.history.push({ role: 'user', parts })
    given(file(pdfOf(60)), { type: 'text', text: 'say one' })
    t.notOk((await step(talk)).repaired)
    given(file(pdfOf(41)), { type: 'text', text: 'say two' })
    const second = await step(talk)
    t.ok(second.repaired)
    t.match(second.rendered.messages, [
      { content: [{ type: 'text', text: /not shown/ }, {}] },
      {},
      { content: [{ type: 'document' }, {}] },
    ])
    t.match((await step(talk, 'say three')).events.at(-1), { reason: 'stop' })
  })

  await t.test('another credential or model takes the conversation over without its thinking', async (t) => {
    const talk = talkWith(emulator, 'claude-opus-5')
    await step(talk, TWICE)
    talk.credential_id = 'cred_2'
    talk.secret = { ...SECRET, api_key: 'sk-ant-api03-other-1' }
    t.equal(thinkingIn(await step(talk)), 0)
    talk.model = 'claude-haiku-4-5'
    talk.wish = { settings: { reasoning: { effort: 'high' } } }
    const third = await step(talk)
    t.equal(third.rendered.thinking?.type, 'disabled', 'the open turn was begun by another model')
    t.equal((await step(talk, 'say a')).rendered.thinking?.type, 'enabled')
  })

  await t.test("the vendor's failures arrive as errors of the catalogue", async (t) => {
    const talk = talkWith(emulator, 'claude-opus-5')
    const codeOf = (error: unknown) => (error instanceof BatonError ? error.code : String(error))
    const failing = async (input = 'hi') => codeOf(await step(talk, input).catch((thrown: unknown) => thrown))
    emulator.script(() => anthropicFixture('error-429.json'))
    t.equal(await failing(), 'upstream_rate_limited')
    emulator.script(() => ({ items: [], ending: { code: 'overloaded_error', message: 'Overloaded' } }))
    t.equal(await failing(), 'upstream_overloaded')
    emulator.script(() => ({ items: [{ type: 'text', text: 'half' }], ending: 'close' }))
    t.equal(await failing(), 'upstream_disconnected')
    emulator.script(null)
    t.equal(await failing('x'.repeat(4_100_000)), 'context_too_long')
    talk.secret = { ...SECRET, api_key: 'nonsense' }
    t.equal(await failing(), 'upstream_auth')
  })

  await t.test('the models endpoint is read by key and by login', async (t) => {
    for (const deployment of [anthropic, anthropicOauth]) {
      const models = deployment.models?.parse(JSON.parse(await modelsBody(emulator, deployment))) ?? []
      t.match(
        models.find(({ id }) => id === 'claude-sonnet-5-5'),
        {
          max_output_tokens: 128_000,
          thinking_types: ['adaptive', 'between_tools'],
          efforts: ['low', 'medium', 'high', 'xhigh', 'max'],
        },
      )
      t.equal(models.length, MODELS.length)
    }
    const parsed = anthropic.models?.parse({
      data: [{ id: 'a', capabilities: null, max_tokens: null }, { nothing: 1 }, 5],
    })
    t.strictSame(parsed, [{ id: 'a' }])
    const types = { enabled: { supported: false }, adaptive: { supported: true } }
    t.strictSame(
      anthropic.models?.parse({ data: [{ id: 'claude-opus-5', capabilities: { thinking: { types } } }] }),
      [{ id: 'claude-opus-5', thinking_types: ['adaptive', 'disabled'] }],
      'of types that the list does not name, the known ones stay',
    )
    t.strictSame(anthropic.models?.parse('<html>'), [])
  })

  await t.test('any repaired history is accepted by every family', async () => {
    const models = ['claude-opus-5-5', 'claude-opus-4-8', 'claude-sonnet-5', 'claude-haiku-4-5']
    fc.assert(
      fc.property(histories, fc.constantFrom(...models), fc.boolean(), (history, model, thinks) => {
        const settings: ModelSettings = thinks ? { reasoning: { effort: 'medium' } } : {}
        const target = {
          provider: 'anthropic',
          model,
          credential_id: 'cred_1',
          ...anthropic.capabilities(model),
        }
        const words = refusalOf(render({ model, settings, messages: repair(history, target).messages }))
        if (words !== null) throw new Error(words)
      }),
      { numRuns: 500, seed: 7 },
    )
  })
})

async function modelsBody({ url }: AnthropicEmulator, deployment: Deployment = anthropic): Promise<string> {
  const { path = '', headers } = deployment.models ?? {}
  const response = await fetch(url + path, {
    headers: { ...headers, ...deployment.authorize(SECRET, { id: null }) },
  })
  return response.text()
}

/** Arbitrary histories: other vendors' reasoning, orphans, odd ids, empty and broken texts, all roles. */
const anyText = fc.oneof(
  fc.string({ unit: ANY_CHARACTER }),
  fc.constantFrom('', ' ', '\u200b', '\u0085\u001c', 'a\ud83d', 'say hi'),
)
const anyMedia: fc.Arbitrary<Part> = fc.record({
  type: fc.constantFrom('image', 'audio', 'file'),
  media_type: fc.constantFrom(
    'image/png',
    'image/JPG',
    'image/bmp',
    'application/pdf',
    'text/plain',
    'audio/wav',
    'application/zip',
  ),
  data: fc.constantFrom('aGFsbG8=', 'AAEC', PNG, PNG.replace('=', ''), pngOf(8001, 1), JPEG, PDF),
})
const anyId = fc.constantFrom('call_1', 'call_2', 'call_x|fc_y', 'ü', 'x'.repeat(90))
const anyResult: fc.Arbitrary<Part> = fc.record({
  type: fc.constant('tool_result'),
  call_id: anyId,
  name: fc.constant('a.b'),
  content: fc.array(
    fc.oneof(
      anyText.map((text) => ({ type: 'text' as const, text })),
      anyMedia as fc.Arbitrary<never>,
    ),
    { maxLength: 3 },
  ),
  is_error: fc.boolean(),
  outcome: fc.constantFrom('ok', 'error'),
})
const anyCall: fc.Arbitrary<Part> = fc.record({
  type: fc.constant('tool_call'),
  call_id: anyId,
  name: fc.constantFrom('weather.get', 'gone.tool', 'dots.and.more'),
  arguments: fc.dictionary(anyText, fc.jsonValue()),
})
const anyReasoning: fc.Arbitrary<Part> = fc.record({
  type: fc.constant('reasoning'),
  text: anyText,
  provenance: fc.constantFrom(
    { provider: 'openai', model: 'x', credential_id: null, opaque: 'gAAAA' },
    { provider: 'anthropic', model: 'claude-opus-4-6', credential_id: 'cred_1', opaque: 'signed:E' },
  ),
})
const textPart: fc.Arbitrary<Part> = anyText.map((text) => ({ type: 'text', text }))
const messageOf = (role: MessageInput['role'], part: fc.Arbitrary<Part>): fc.Arbitrary<MessageInput> =>
  fc.record({ role: fc.constant(role), parts: fc.array(part, { maxLength: 4 }) })
const histories = fc.array(
  fc.oneof(
    messageOf('user', fc.oneof(textPart, anyMedia)),
    messageOf('system', fc.oneof(textPart, anyMedia)),
    messageOf('assistant', fc.oneof(textPart, anyReasoning, anyCall, anyMedia)),
    messageOf('tool', anyResult),
  ),
  { maxLength: 10 },
)
