/** Failures upstream: the turn has one clean end, nothing is half kept, and the session goes on. */
import t, { type Test } from 'tap'
import type { JsonReply } from '../emulators/http.ts'
import type { Answer, Scene } from '../emulators/scene.ts'
import { BEGUN, type Json, outline, typesOf } from './client.ts'
import { BACKEND, everyBackend, type Path, PROVIDERS, pathsIn, type World } from './harness.ts'
import { ECHO } from './tool-server.ts'

/** A failed response in each vendor's words (wire pages, "errors"). */
const BODIES: Record<
  'openai' | 'anthropic' | 'gemini',
  (status: number, code: string, message: string) => JsonReply
> = {
  openai: (status, code, message) => ({
    status,
    body: { error: { message, type: 'invalid_request_error', param: null, code } },
  }),
  anthropic: (status, type, message) => ({ status, body: { type: 'error', error: { type, message } } }),
  gemini: (status, code, message) => ({ status, body: { error: { code: status, message, status: code } } }),
}

interface Failure {
  what: string
  scene: Scene
  code: string
  status: number
}

const LONG = {
  openai: ['context_length_exceeded', 'Your input exceeds the context window of this model.'],
  anthropic: ['invalid_request_error', 'prompt is too long: 1200000 tokens > 1000000 maximum'],
  gemini: [
    'INVALID_ARGUMENT',
    'The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).',
  ],
} as const
const IN_STREAM = { openai: 'server_error', anthropic: 'api_error', gemini: 'INTERNAL' } as const
const DENIED = {
  openai: 'invalid_api_key',
  anthropic: 'authentication_error',
  gemini: 'UNAUTHENTICATED',
} as const
const LIMITED = {
  openai: 'rate_limit_exceeded',
  anthropic: 'rate_limit_error',
  gemini: 'RESOURCE_EXHAUSTED',
} as const

const SILENT = { what: 'a stream that falls silent', code: 'upstream_timeout', status: 504 }

function failuresOf(vendor: keyof typeof BODIES): Failure[] {
  const reply = BODIES[vendor]
  const [long, words] = LONG[vendor]
  const half = (rest: Partial<Answer>): Answer => ({
    items: [{ type: 'text', text: 'one two three four' }],
    ...rest,
  })
  return [
    {
      what: 'a request that the vendor refuses',
      scene: reply(400, 'INVALID_ARGUMENT', 'no such thing'),
      code: 'upstream_rejected',
      status: 502,
    },
    {
      what: 'a key that the vendor does not take',
      scene: reply(401, DENIED[vendor], 'bad key'),
      code: 'upstream_auth',
      status: 502,
    },
    {
      what: 'a rate limit',
      scene: { ...reply(429, LIMITED[vendor], 'slow down'), headers: { 'retry-after': '77' } },
      code: 'upstream_rate_limited',
      status: 429,
    },
    {
      what: 'a conversation that is too long',
      scene: reply(400, long, words),
      code: 'context_too_long',
      status: 422,
    },
    {
      what: 'a page of the network’s edge',
      scene: { status: 405, headers: { 'content-type': 'text/html' }, body: '<html>Blocked</html>' },
      code: 'upstream_rejected',
      status: 502,
    },
    {
      what: 'an error inside of a 200',
      scene: half({ ending: { code: IN_STREAM[vendor], message: 'it broke' }, after: 6 }),
      code: 'upstream_overloaded',
      status: 503,
    },
    {
      what: 'a stream that is cut',
      scene: half({ ending: 'cut', after: 6 }),
      code: 'upstream_disconnected',
      status: 502,
    },
    {
      what: 'a stream that ends early',
      scene: half({ ending: 'close', after: 6 }),
      code: 'upstream_disconnected',
      status: 502,
    },
    // Waiting is the same for every vendor.
    ...(vendor === 'openai' ? [{ ...SILENT, scene: half({ ending: 'hang', after: 6 }) }] : []),
  ]
}

/** The paths on which each vendor fails; the second path of each takes every other failure. */
const DOORS = {
  openai: ['openai key', 'chatgpt login'],
  anthropic: ['anthropic key', 'anthropic bearer'],
  gemini: ['gemini key', 'code assist login'],
} as const

async function failures(t: Test, world: World) {
  const { api } = world
  await world.tools('kit', { echo: ECHO })
  const vendors = ['openai', 'anthropic', 'gemini'] as const
  for (const vendor of world.backend === BACKEND ? vendors : vendors.slice(0, 1)) {
    for (const [i, { what, scene, code, status }] of failuresOf(vendor).entries()) {
      const path: Path = DOORS[vendor][i % 2] ?? DOORS[vendor][0]
      await t.test(`${path}: ${what} is ${code}`, async (t) => {
        const session = await world.session(path)
        world.script(() => scene)
        const waited = await api.call('POST', `/v1/sessions/${session}/turns`, { input: 'go', stream: false })
        const told = await api.follow(`${waited.headers.get('location')}/events`)
        const frames = await told.done
        t.strictSame(outline(frames.filter(({ type }) => type !== 'content.delta')), [
          ...BEGUN,
          'turn.failed',
        ])
        t.match(frames.at(-1)?.data, { error: { code } })
        t.equal(waited.status, status)
        t.equal(waited.body.error.code, code)
        t.match(waited.body.error.details.turn_id, /^turn_/)
        t.ok(
          waited.body.error.details.upstream !== undefined || /timeout|disconnected/.test(code),
          'the error has the vendor’s own words',
        )
        if (code === 'upstream_rate_limited') t.equal(waited.headers.get('retry-after'), '77')
        t.notMatch(JSON.stringify([frames, waited.body]), SECRETS)
        const turn = await api.get(`/v1/turns/${waited.body.error.details.turn_id}`)
        t.match(turn, { state: 'failed', finish_reason: null, error: { code }, output_text: '' })
        t.match(turn.steps, [{ index: 0, attempt: 1, finish_reason: 'error', ended_at: String }])
        t.strictSame(
          (await world.messages(session)).map(({ role }) => role),
          ['user'],
          'a failed step leaves no message',
        )
        world.script(null)
        t.match(await world.run(session, 'better now?'), { state: 'completed', output_text: 'better now?' })
      })
    }
  }

  await t.test('a vendor that never answers is timed out', async (t) => {
    const session = await world.session('gemini key')
    world.script(() => new Promise(() => {}))
    const { status, body } = await api.call('POST', `/v1/sessions/${session}/turns`, {
      input: 'go',
      stream: false,
    })
    t.match([status, body.error.code], [504, 'upstream_timeout'])
    world.script(null)
  })

  await t.test('an overload before the first word is tried again within the same step', async (t) => {
    const session = await world.session('anthropic key')
    let asked = 0
    world.script(() => (asked++ < 2 ? BODIES.anthropic(529, 'overloaded_error', 'Overloaded') : null))
    const frames = await (await api.turn(session, 'go')).done
    t.strictSame(
      typesOf(frames).filter((type) => type === 'step.started' || type === 'step.discarded'),
      ['step.started'],
    )
    t.equal(frames.at(-1)?.type, 'turn.completed')
    t.equal(asked, 3)
    world.script(null)
  })

  await t.test('tools that change between the tries bring no further tries', async (t) => {
    const session = await world.session('anthropic key', { connectors: ['kit'] })
    let asked = 0
    world.script(async () => {
      asked++
      const tool = `/v1/sessions/${session}/tools/kit.echo`
      if (asked < 8) await api.call('PATCH', tool, { enabled: asked % 2 === 0 })
      return BODIES.anthropic(529, 'overloaded_error', 'Overloaded')
    })
    const frames = await (await api.turn(session, 'go')).done
    t.equal(frames.at(-1)?.type, 'turn.failed')
    t.equal(asked, 3)
    world.script(null)
  })

  await t.test('a turn beyond the limits is refused before it exists, and taken once one ends', async (t) => {
    const sessions = await Promise.all([0, 1, 2, 3].map(() => world.session('openai key')))
    const start = (session: string | undefined) =>
      api.call('POST', `/v1/sessions/${session}/turns`, { input: 'slow 3000 20', background: true })
    const taken: string[] = []
    for (const session of sessions.slice(0, 3)) {
      const { status, body } = await start(session)
      t.equal(status, 202)
      taken.push(body.id)
    }
    const refused = await start(sessions[3])
    t.match([refused.status, refused.body.error.code], [503, 'unavailable'])
    t.match(refused.headers.get('retry-after'), /^[1-9]\d*$/)
    t.strictSame((await api.get(`/v1/sessions/${sessions[3]}/turns`)).data, [])
    const states = await Promise.all(taken.map(async (id) => (await api.get(`/v1/turns/${id}`)).state))
    t.strictSame(states, ['running', 'running', 'running'])
    for (const id of taken) await api.post(`/v1/turns/${id}/cancel?wait=true`)
    t.match(await world.run(sessions[3] ?? '', 'now?'), { state: 'completed' })
  })

  await t.test('settings that one request had to drop or lower stay so to the turn’s end', async (t) => {
    const settings = { max_output_tokens: 90_000 }
    const session = await world.session('openai key', { connectors: ['kit'], settings })
    const before = world.sent('openai key').length
    const refuse = (param: string, message: string): JsonReply => ({
      status: 400,
      body: { error: { message, type: 'invalid_request_error', param, code: 'unsupported_value' } },
    })
    world.script(({ body }) => {
      const { reasoning, max_output_tokens } = body as Json
      if (reasoning?.summary) return refuse('reasoning.summary', 'Your organization must be verified.')
      return max_output_tokens > 5000 ? refuse('max_output_tokens', 'Expected a value <= 5000') : null
    })
    const turn = await world.run(session, 'call kit__echo with {"text": "a"}\nthen\nsay done')
    world.script(null)
    t.match(turn, { state: 'completed', output_text: 'done' })
    const sent = world.sent('openai key').slice(before)
    t.strictSame(
      sent.map(({ status, body }) => [status, (body as Json).max_output_tokens]),
      [
        [400, 90_000],
        [400, 90_000],
        [200, 5000],
        [200, 5000],
      ],
    )
  })

  await t.test('a failure after tools keeps the whole exchange', async (t) => {
    for (const path of pathsIn(world, PROVIDERS)) {
      const session = await world.session(path, { connectors: ['kit'] })
      world.script((_, { step }) =>
        step > 0 ? { items: [{ type: 'text', text: 'so' }], ending: 'cut', after: 4 } : null,
      )
      const frames = await (await api.turn(session, 'think\ncall kit__echo with {"text": "kept"}')).done
      t.equal(frames.at(-1)?.type, 'turn.failed', path)
      t.strictSame(
        (await world.messages(session)).map(({ role }) => role),
        ['user', 'assistant', 'tool'],
      )
      world.script(null)
      t.match(await world.run(session, 'go on'), { state: 'completed', output_text: 'go on' })
    }
  })

  for (const path of pathsIn(world, PROVIDERS)) {
    await t.test(`a refusal and a cut answer are finish reasons, no errors: ${path}`, async (t) => {
      const session = await world.session(path)
      const refused = await world.run(session, 'say no\nrefuse')
      t.match(refused, {
        state: 'completed',
        finish_reason: 'refusal',
        error: null,
        steps: [{ finish_reason: 'refusal' }],
      })
      const why = refused.messages.at(-1).parts.find(({ type }: Json) => type === 'notice')
      if (!path.startsWith('openai') && !path.startsWith('chatgpt'))
        t.match(why?.text, /refused to answer: \w+/)
      const cut = await world.run(session, 'say only so far\nlength')
      t.match(cut, { state: 'completed', finish_reason: 'length', output_text: 'only so far' })
      t.match(await world.run(session, 'fine'), { finish_reason: 'stop', output_text: 'fine' })
    })
  }
}

const SECRETS = /sk-test-openai|test-chatgpt|sk-ant-|"test-gemini"|ya29\.test/

await everyBackend(t, failures, {
  config: {
    limits: { firstByteTimeoutMs: 1_500, idleTimeoutMs: 1_500, concurrentTurns: 2, waitingTurns: 1 },
  },
})
