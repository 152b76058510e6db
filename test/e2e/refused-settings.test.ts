/** What a provider refused is left out from then on: a setting, which is named, and a chat's reasoning. */
import { pino } from 'pino'
import t from 'tap'
import type { Json } from './client.ts'
import { BACKEND, openWorld } from './harness.ts'

const MODEL = 'gpt-4.1'
const LEFT_OUT = `temperature: not accepted by ${MODEL}`
const LOWERED = 'max_output_tokens: lowered to 5000, the most that this model takes'
/** Of two requests, the first is refused. */
const AT_FIRST = [
  [400, 0.5],
  [200, null],
]

t.test('a setting that a model refused is left out of later turns, and /render names it', async (t) => {
  const lines: Json[] = []
  const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(JSON.parse(line)) })
  const world = await openWorld(t, BACKEND, { log })
  let refused = ['temperature']
  world.script(({ body }) => {
    const { model, temperature, max_output_tokens } = body as Json
    const refuse = (param: string, code: string, message: string) => ({
      status: 400,
      body: { error: { message, type: 'invalid_request_error', param, code } },
    })
    if (model === MODEL && temperature !== undefined && refused.includes('temperature'))
      return refuse('temperature', 'unsupported_parameter', "Unsupported parameter: 'temperature'.")
    return max_output_tokens > 5000 ? refuse('max_output_tokens', 'x', 'Expected a value <= 5000') : null
  })
  const settings = { temperature: 0.5, top_p: 0.9 }
  const open = (more: Json = {}) => world.session('openai key', { model: MODEL, settings, ...more })
  const render = (session: string): Promise<Json> =>
    world.api.post(`/v1/sessions/${session}/render`, { input: 'hello' })
  /** Status and temperature of each request that a turn makes; the first is the one that was shown. */
  const turn = async (session: string) => {
    const before = world.sent('openai key').length
    const shown = await render(session)
    t.match(await world.run(session, 'hello'), { state: 'completed', output_text: 'hello' })
    const sent = world.sent('openai key').slice(before)
    t.strictSame(sent[0]?.body, shown.body, 'the preview is exactly what is sent')
    return sent.map(({ status, body }) => [status, (body as Json).temperature ?? null])
  }
  const told = () =>
    lines.flatMap(({ level, known, provider, model }) => (known ? [{ level, known, provider, model }] : []))

  const session = await open()
  t.match(
    await render(session),
    { body: { temperature: 0.5 }, notes: { length: 0 } },
    'no refusal is known yet',
  )
  t.strictSame(await turn(session), AT_FIRST)
  const shown = await render(session)
  t.strictSame([shown.body.temperature, shown.body.top_p, shown.notes], [undefined, 0.9, [LEFT_OUT]])
  t.strictSame(await turn(session), [[200, null]])
  t.strictSame(told(), [
    { level: 30, known: { refused: { temperature: 'any' }, id: MODEL }, provider: 'openai', model: MODEL },
  ])

  await t.test('the setting is left out in sessions of this credential and model alone', async (t) => {
    const { id } = await world.api.post('/v1/credentials', {
      provider: 'openai',
      kind: 'api_key',
      api_key: 'sk-test-other',
    })
    t.strictSame(await turn(await open({ settings: { temperature: 1 } })), [[200, null]])
    const plain = await render(await open({ settings: { top_p: 0.9 } }))
    t.strictSame(plain.notes, [], 'a setting that is not asked for is not named')
    for (const more of [{ credential_id: id }, { model: 'gpt-4o' }]) {
      const shown = await render(await open(more))
      t.strictSame([shown.body.temperature, shown.notes], [0.5, []])
    }
    t.strictSame(await turn(await open({ model: 'gpt-4o' })), [[200, 0.5]])
    t.strictSame(await turn(await open({ credential_id: id })), AT_FIRST)
  })

  await t.test('a limit that the model named lowers the values above it, and no others', async (t) => {
    const long = await open({ settings: { max_output_tokens: 20_000 } })
    t.equal((await turn(long)).length, 2)
    t.equal((await turn(long)).length, 1)
    const limits = await Promise.all(
      [20_000, 5000, 400].map(async (max_output_tokens) => {
        const { body, notes } = await render(await open({ settings: { max_output_tokens } }))
        return [body.max_output_tokens, ...notes]
      }),
    )
    t.strictSame(limits, [[5000, LOWERED], [5000], [400]])
    t.strictSame((await render(session)).notes, [LEFT_OUT], 'the refused setting is known as before')
  })

  await t.test('after an hour the setting is sent again', async (t) => {
    const { now } = performance
    let later = 3_500_000
    performance.now = () => now.call(performance) + later
    t.teardown(() => {
      performance.now = now
    })
    t.strictSame(await turn(session), [[200, null]])
    later = 3_600_000
    t.match(await render(session), { body: { temperature: 0.5 }, notes: { length: 0 } })
    t.strictSame(await turn(session), AT_FIRST, 'the setting is refused again')
    t.strictSame(await turn(session), [[200, null]])
    later = 7_200_001
    refused = []
    t.strictSame(await turn(session), [[200, 0.5]], 'the setting is accepted now')
    t.strictSame((await render(session)).notes, [])
  })
})

t.test(
  'reasoning that was refused is left out of later turns, and /render; later reasoning is not',
  async (t) => {
    const world = await openWorld(t, BACKEND)
    const session = await world.session('openai key')
    const tokensIn = (body: unknown) =>
      [...JSON.stringify(body).matchAll(/"encrypted_content":"([^"]+)"/g)].map(([, token]) => token)
    /** Status and tokens of each request that a turn makes; the first is the one that was shown. */
    const turn = async () => {
      const before = world.sent('openai key').length
      const shown: Json = await world.api.post(`/v1/sessions/${session}/render`, { input: 'hello' })
      t.match(await world.run(session, 'hello'), { state: 'completed' })
      const sent = world.sent('openai key').slice(before)
      t.strictSame(sent[0]?.body, shown.body, 'the preview is exactly what is sent')
      return sent.map(({ status, body }) => [status, tokensIn(body)] as const)
    }
    let bad: string | undefined
    let thoughts = 0
    world.script(({ body }) => {
      if (bad && tokensIn(body).includes(bad))
        return { status: 400, body: { error: { message: 'x', code: 'invalid_encrypted_content' } } }
      return {
        items: [
          { type: 'reasoning', parts: [`Thought ${++thoughts}`] },
          { type: 'text', text: 'hello' },
        ],
      }
    })
    await turn()
    bad = (await turn())[0]?.[1][0]
    t.ok(bad)
    const tokens = async () => (await turn()).map(([status, { length }]) => [status, length])
    t.strictSame(
      await tokens(),
      [
        [400, 2],
        [200, 0],
      ],
      'the vendor does not say which it refused',
    )
    t.strictSame(await tokens(), [[200, 1]])
    t.strictSame(await tokens(), [[200, 2]])
  },
)
