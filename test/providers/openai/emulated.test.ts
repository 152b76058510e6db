/** Whole turns against the emulated OpenAI, and arbitrary histories against its rules. */

import fc from 'fast-check'
import t from 'tap'
import { chatgpt, openai } from '../../../providers/openai/index.ts'
import type { ModelEvent } from '../../../src/chat/event.ts'
import { type MessageInput, NO_USAGE, type Part, type Provenance } from '../../../src/chat/message.ts'
import type {
  CredentialSecret,
  Deployment,
  ModelRequest,
  ModelSettings,
  ToolChoice,
} from '../../../src/provider.ts'
import { JPEG, PDF, PNG } from '../../emulators/bytes.ts'
import { checkBody } from '../../emulators/openai-check.ts'
import { emulate } from '../../emulators/openai-requests.ts'
import { calls, type SceneItem, text } from '../../emulators/scene.ts'
import { EMPTY } from '../../patterns.ts'
import { eventsOf, parserOf, resultOf, send } from '../exchange.ts'
import { finishOf, fold, framesOf } from '../streams.ts'
import { MODEL, origin, repaired, requestFor, TOOLS } from './exchange.ts'

interface Path {
  deployment: Deployment
  base: string
  secret: CredentialSecret
}

t.test('whole turns against the emulator', async (t) => {
  const emulator = await emulate(t)
  const paths: Path[] = [
    { deployment: openai, base: emulator.keyBaseUrl, secret: { api_key: 'sk-1' } },
    { deployment: chatgpt, base: emulator.chatgptBaseUrl, secret: { access_token: 'at-1' } },
  ]

  /** One model call: render, send, decode, parse. A refused request is amended and sent again. */
  async function call(path: Path, request: ModelRequest): Promise<ModelEvent[]> {
    const { deployment, base, secret } = path
    const answer = await send(deployment, base, secret, request)
    if (answer.status === 200) {
      const { model, credential } = request
      const parser = parserOf(deployment, { ...origin, model, credential_id: credential.id })
      return eventsOf(parser, framesOf(answer.body))
    }
    const again = deployment.amend(answer, request)
    if (again) return call(path, again)
    throw deployment.classify(answer)
  }

  /** A turn: the user's words, then steps until the model stops calling. */
  async function turn(
    path: Path,
    history: MessageInput[],
    words: string,
    change: Partial<ModelRequest> = {},
  ) {
    history.push({ role: 'user', parts: [{ type: 'text', text: words }] })
    for (let step = 0; step < 8; step++) {
      const model = change.model ?? MODEL
      const messages = repaired(path.deployment, history, model, change.credential?.id ?? 'cred_1')
      const events = await call(path, requestFor({ tools: TOOLS, ...change, messages, follow_up: step > 0 }))
      const parts = fold(events)
      history.push({ role: 'assistant', parts })
      if (finishOf(events) !== 'tool_calls') return parts
      const results = parts.flatMap((part): Part[] =>
        part.type === 'tool_call'
          ? [
              resultOf(part, {
                content: [{ type: 'text', text: `${part.name} ${JSON.stringify(part.arguments)}` }],
              }),
            ]
          : [],
      )
      history.push({ role: 'tool', parts: results })
    }
    throw new Error('the turn did not end')
  }

  for (const path of paths) {
    await t.test(
      `${path.deployment.id}: turns with reasoning, parallel calls and several steps keep their reasoning`,
      async (t) => {
        emulator.script(null)
        const history: MessageInput[] = []
        const words = [
          'think\nsay Looking.\ncall files__read with {"path":"a"}\ncall files__write with {"path":"b"}',
          'think\ncall files__read with {"path":"c"}',
          'think\nsay All read.',
        ].join('\nthen\n')
        t.match(await turn(path, history, words), [
          { type: 'reasoning' },
          { type: 'text', text: 'All read.' },
        ])
        t.match(history[2], {
          parts: [
            { content: [{ text: 'files.read {"path":"a"}' }] },
            { content: [{ text: 'files.write {"path":"b"}' }] },
          ],
        })
        t.match(await turn(path, history, 'say more'), [{ type: 'text', text: 'more' }])
        const last = emulator.requests.at(-1)?.body as { input: { type: string }[] }
        t.equal(
          last.input.filter(({ type }) => type === 'reasoning').length,
          3,
          'all reasoning was sent back and verified',
        )
        const before = emulator.requests.length
        t.match(await turn(path, history, 'say elsewhere', { model: 'gpt-5.6-sol' }), [{ text: 'elsewhere' }])
        t.equal(
          emulator.requests.length,
          before + 1,
          'another model takes over the history without a refusal',
        )
      },
    )

    await t.test(
      `${path.deployment.id}: all of a prompt is read from the cache by the next request`,
      async (t) => {
        for (const model of ['gpt-5.5', 'gpt-6.2-sol']) {
          const change = { model, session_id: model, instructions: 'Be brief. '.repeat(100) }
          const asked = async (...messages: MessageInput[]) => {
            const events = await call(path, requestFor({ ...change, messages }))
            const told = events.find(({ type }) => type === 'usage')
            return told?.type === 'usage' ? told.usage : NO_USAGE
          }
          const first: MessageInput = { role: 'user', parts: [{ type: 'text', text: 'say one' }] }
          const { input_tokens } = await asked(first)
          const { cached_tokens } = await asked(first, { ...first, role: 'assistant' }, first)
          // A login's path gets a few words behind the input all the same.
          t.ok(cached_tokens >= input_tokens - 10, `${model}: ${cached_tokens} of ${input_tokens}`)
        }
      },
    )

    await t.test(
      `${path.deployment.id}: reasoning that the vendor cannot verify is left out after one refusal`,
      async (t) => {
        const history: MessageInput[] = []
        await turn(path, history, 'think\nsay one')
        const before = emulator.requests.length
        // The credential is the same, but the account behind it is another one now.
        const other = { id: 'cred_1', account_id: 'acc-2' }
        const moved = { ...path, secret: { api_key: 'sk-2', access_token: 'at-2' } }
        t.match(await turn(moved, history, 'say two', { credential: other }), [{ text: 'two' }])
        t.equal(emulator.requests.length, before + 2)
      },
    )

    await t.test(`${path.deployment.id}: finishes, failures and usage are read`, async (t) => {
      const ask = (words: string, change: Partial<ModelRequest> = {}) =>
        call(
          path,
          requestFor({
            messages: [{ role: 'user', parts: [{ type: 'text', text: words }] }],
            ...change,
          }),
        )
      t.equal(finishOf(await ask('refuse')), 'refusal')
      t.equal(finishOf(await ask('length\nsay cut')), 'length')
      emulator.script(() => ({
        ...text('x'),
        usage: { input_tokens: 7, cached_tokens: 3, reasoning_tokens: 2 },
        chunk: 3,
      }))
      t.match(
        (await ask('x')).find(({ type }) => type === 'usage'),
        { usage: { input_tokens: 7, cached_tokens: 3, reasoning_tokens: 2 } },
      )
      emulator.script(() => ({ ...calls(['files__read', '{"cut']), finish: 'length' }))
      t.match(fold(await ask('x')), [{ arguments: EMPTY, arguments_text: '{"cut' }])
      const open = { goesOn: true } as const
      emulator.script(() => ({ ...text('x'), ...open }))
      t.match((await ask('x')).at(-1), { reason: 'stop', goes_on: true })
      const hm: SceneItem = { type: 'reasoning', parts: ['Hm.'] }
      for (const scene of [{ items: [hm] }, { items: [hm], ...open }, { items: [hm, ...text(' ').items] }]) {
        emulator.script(() => scene)
        t.strictSame((await ask('x')).at(-1), { type: 'finish', reason: 'stop', silent: 'thoughts' })
      }
      const refusal = { ...text('No.'), finish: 'refusal' } as const
      for (const scene of [
        { ...calls(['files__read', '{}']), ...open },
        { ...refusal, ...open },
        text('x'),
      ]) {
        emulator.script(() => scene)
        t.notOk(
          'goes_on' in ((await ask('x')).at(-1) ?? {}),
          'goes_on is absent if there is a call or the answer has ended',
        )
      }
      emulator.script(() => ({ ...text('half an answer'), ending: 'close', after: 6 }))
      await t.rejects(ask('x'), { code: 'upstream_disconnected' })
      emulator.script(() => ({ ...text('x'), ending: { code: 'slow_down', message: 'busy' }, after: 3 }))
      await t.rejects(ask('x'), { code: 'upstream_overloaded' })
      emulator.script(() => ({
        status: 429,
        headers: { 'retry-after': '3' },
        body: { error: { code: 'x' } },
      }))
      await t.rejects(ask('x'), { code: 'upstream_rate_limited', retryAfter: 3 })
      emulator.script(null)
      const settings = { max_output_tokens: 128_000 }
      t.equal(
        finishOf(await ask('x', { model: 'gpt-4.1', settings })),
        'stop',
        'max_output_tokens is lowered to what the model takes',
      )
      const plain = { model: 'our-chat', settings: { reasoning: { effort: 'low' } } } as const
      t.equal(finishOf(await ask('x', plain)), 'stop', 'reasoning is left out for a model without it')
      await t.rejects(ask('x', { model: 'missing' }), { code: 'upstream_rejected' })
    })
  }

  const [, login] = paths
  if (!login) throw new Error('two paths')
  await t.test("the login's list of models is read", async (t) => {
    const { deployment, secret, base } = login
    const { models } = deployment
    const response = await fetch(`${base}${models?.path}`, {
      headers: { ...models?.headers, ...deployment.authorize(secret, requestFor().credential) },
    })
    const list = models?.parse(await response.json()) ?? []
    t.match([list.length, ...list], [1, { id: 'gpt-5.6-sol', efforts: ['low'] }])
    t.same(models?.parse('nonsense'), [])
  })

  await t.test('a server that takes earlier answers only as strings goes on after a refusal', async (t) => {
    const typed = await emulate(t)
    typed.typed()
    const path = { deployment: openai, base: typed.keyBaseUrl, secret: { api_key: 'sk-1' } }
    const history: MessageInput[] = []
    const words = 'think\nsay Looking.\ncall files__read with {"path":"a"}\nthen\nsay Read.'
    t.match(await turn(path, history, words), [{ text: 'Read.' }])
    const reported = { id: MODEL, answer_lists: false } as const
    const before = typed.requests.length
    t.match(await turn(path, history, 'say more', { reported }), [{ text: 'more' }])
    t.equal(typed.requests.length, before + 1, 'once that is known, nothing is refused')
  })

  await t.test('a revoked credential fails with upstream_auth', async (t) => {
    emulator.revoke('at-1')
    await t.rejects(call(login, requestFor()), { code: 'upstream_auth' })
  })
})

/** Arbitrary histories: repeated ids, stray results, empty texts, tokens of other vendors and credentials. */
const histories = (() => {
  const words = fc.constantFrom('', ' ', 'hello', 'ü👋', '{"a":1}', 'half \ud83d')
  const own = JSON.stringify({ encrypted_content: 'own', segments: [5] })
  const provenance = fc.constantFrom<Provenance>(
    { ...origin, opaque: own },
    { ...origin, opaque: '{"phase":"commentary"}' },
    { ...origin, model: 'gpt-5.5', opaque: own.replace('own', 'foreign') },
    { ...origin, credential_id: 'cred_2', opaque: own.replace('own', 'foreign') },
    { provider: 'anthropic', model: 'm', credential_id: null, opaque: 'sig' },
  )
  const id = fc.constantFrom('call_1', 'call_2', 'toolu_x:1', 'c'.repeat(90), '')
  const name = fc.constantFrom('files.read', 'a.b.c', 'ünï.cødé', `long.${'x'.repeat(80)}`)
  const file = fc.constantFrom(
    'notes',
    'a.txt',
    'server.log',
    'SCAN.PDF',
    'a.png',
    'https://docs.example.com',
  )
  const media = fc.record({
    type: fc.constantFrom('image' as const, 'audio' as const, 'file' as const),
    media_type: fc.constantFrom(
      'image/png',
      'image/svg+xml',
      'audio/wav',
      'application/pdf',
      'text/plain',
      'text/x-c++',
      'text/yaml',
    ),
    data: fc.constantFrom('QUJD', PNG, JPEG, PDF),
    name: file,
  })
  const plain = fc.record({ type: fc.constant('text' as const), text: words })
  const part: fc.Arbitrary<Part> = fc.oneof(
    plain,
    fc.record({ type: fc.constant('text' as const), text: words, provenance }),
    fc.record({ type: fc.constant('reasoning' as const), text: words, provenance }),
    fc.record({
      type: fc.constant('tool_call' as const),
      call_id: id,
      name,
      arguments: fc.constantFrom({}, { a: 1 }, { '\udc4b': 'half \ud83d' }),
    }),
    fc.record({
      type: fc.constant('tool_result' as const),
      call_id: id,
      name,
      content: fc.array(fc.oneof(plain, media), { maxLength: 3 }),
      is_error: fc.boolean(),
      outcome: fc.constantFrom('ok' as const, 'error' as const, 'denied' as const),
    }),
    media,
    fc.record({ type: fc.constant('notice' as const), text: words }),
  )
  const role = fc.constantFrom('user' as const, 'assistant' as const, 'tool' as const, 'system' as const)
  return fc.array(fc.record({ role, parts: fc.array(part, { maxLength: 5 }) }), { maxLength: 8 })
})()

t.test('any repaired history renders into a request that the services accept', async (t) => {
  const settings: fc.Arbitrary<ModelSettings> = fc.record(
    {
      temperature: fc.constant(1),
      max_output_tokens: fc.integer({ min: 1, max: 9000 }),
      reasoning: fc.record({
        effort: fc.constantFrom('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'),
      }),
      tool_choice: fc.constantFrom<ToolChoice>(
        'auto',
        'none',
        'required',
        { name: 'files.read' },
        { name: 'x.y' },
      ),
      parallel_tool_calls: fc.boolean(),
    },
    { requiredKeys: [] },
  )
  const models = fc.constantFrom(
    MODEL,
    'gpt-5',
    'gpt-5.1',
    'gpt-4.1',
    'gpt-6-astra',
    'gpt-6.2-sol',
    'o3',
    'ft:gpt-4o-mini:o::1',
    'o3-mini',
    'gpt-4',
  )
  const cases = fc.record({
    history: histories,
    settings,
    model: models,
    tools: fc.constantFrom([], TOOLS),
    follow_up: fc.boolean(),
  })
  for (const deployment of [openai, chatgpt]) {
    fc.assert(
      fc.property(cases, ({ history, model, ...change }) => {
        const messages = repaired(deployment, history, model)
        const { body } = deployment.render(requestFor({ ...change, model, messages }))
        checkBody(JSON.parse(JSON.stringify(body)), {
          chatgpt: deployment.id === 'chatgpt',
          verify: (token) => token === 'own' && model === MODEL,
        })
      }),
      { numRuns: 300, seed: 7 },
    )
  }
  t.pass()
})
