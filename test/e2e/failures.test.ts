/** What goes wrong upstream and in a model's calls: one clean end, nothing half kept, the session goes on. */
import t, { type Test } from 'tap'
import type { JsonReply } from '../emulators/http.ts'
import { type Answer, calls, type Scene, text } from '../emulators/scene.ts'
import { type Json, ofType, outline, typesOf } from './client.ts'
import { everyBackend, PATH_NAMES, type Path, type World } from './harness.ts'
import { textResult } from './tool-server.ts'

// ---------------------------------------------------------------- upstream

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
      what: 'a key that it does not take',
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
    {
      what: 'a stream that falls silent',
      scene: half({ ending: 'hang', after: 6 }),
      code: 'upstream_timeout',
      status: 504,
    },
  ]
}

/** Which paths fail in which vendor's words; the second door of each takes every other failure. */
const DOORS = {
  openai: ['openai key', 'chatgpt login'],
  anthropic: ['anthropic key', 'anthropic bearer'],
  gemini: ['gemini key', 'code assist login'],
} as const

async function upstream(t: Test, world: World) {
  const { api } = world
  for (const vendor of ['openai', 'anthropic', 'gemini'] as const) {
    for (const [i, { what, scene, code, status }] of failuresOf(vendor).entries()) {
      const path: Path = DOORS[vendor][i % 2] ?? DOORS[vendor][0]
      await t.test(`${path}: ${what} is ${code}`, async (t) => {
        const session = await world.session(path)
        world.script(() => scene)
        const waited = await api.call('POST', `/v1/sessions/${session}/turns`, { input: 'go', stream: false })
        const told = await api.follow(`${waited.headers.get('location')}/events`)
        const frames = await told.done
        t.strictSame(outline(frames.filter(({ type }) => type !== 'content.delta')), [
          'turn.created',
          'turn.started',
          'step.started',
          'turn.failed',
        ])
        t.match(frames.at(-1)?.data, { error: { code } })
        t.equal(waited.status, status)
        t.equal(waited.body.error.code, code)
        t.match(waited.body.error.details.turn_id, /^turn_/)
        t.ok(
          waited.body.error.details.upstream !== undefined || /timeout|disconnected/.test(code),
          'the vendor’s own words',
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

  await t.test('an overload is tried again before the first word, and after it never', async (t) => {
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

  await t.test('a turn too many is refused before it exists, and taken once there is room', async (t) => {
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

  await t.test('what one request had to be amended for, the next ones of its turn do without', async (t) => {
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
    for (const path of PATH_NAMES) {
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

  for (const path of PATH_NAMES) {
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

// ---------------------------------------------------------------- a model's calls

async function badCalls(t: Test, world: World, kit: { count(tool: string): number }) {
  const { api } = world
  const OTHERS = PATH_NAMES.filter((path) => !isGemini(path))
  for (const path of OTHERS) {
    await t.test(`a tool that is not there, and arguments that are none: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      const ran = kit.count('echo')
      world.script((_, { step }) =>
        step === 0
          ? calls(
              ['nope__tool', { a: 1 }],
              ['kit__echo', '{"text": "unfini'],
              ['kit__echo', { text: 7 }],
              ['kit__echo', { text: 'good' }],
            )
          : null,
      )
      const frames = await (await api.turn(session, 'go')).done
      t.equal(frames.at(-1)?.type, 'turn.completed')
      t.match(ofType(frames, 'tool_call'), [
        { name: 'nope__tool', arguments: { a: 1 } },
        { name: 'kit.echo', arguments: {} },
        { name: 'kit.echo', arguments: { text: 7 } },
        { name: 'kit.echo', arguments: { text: 'good' } },
      ])
      const [said, results] = ofType(frames, 'message').map(({ message }) => message)
      const broken = said.parts.filter(({ type }: Json) => type === 'tool_call')[1]
      t.match(broken, { arguments: {}, arguments_text: '{"text": "unfini' })
      t.match(results.parts, [
        { outcome: 'error', is_error: true, content: [{ text: /no tool nope__tool/ }] },
        { outcome: 'error', is_error: true, content: [{ text: /not a JSON object/ }] },
        { outcome: 'error', is_error: true, content: [{ text: /schema/ }] },
        { outcome: 'ok', is_error: false, content: [{ text: 'good' }] },
      ])
      t.equal(kit.count('echo') - ran, 1)
      world.script(null)
      t.match(
        await world.run(session, 'go on'),
        { output_text: 'go on' },
        'the history is good for the next turn',
      )
    })
  }

  for (const path of PATH_NAMES) {
    await t.test(`a tool that was taken away a moment ago is not called: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      const ran = kit.count('echo')
      world.script(async (_, { step }) => {
        if (step > 0) return null
        await api.patch(`/v1/sessions/${session}/tools/kit.echo`, { enabled: false })
        return calls(['kit__echo', { text: 'gone?' }])
      })
      const turn = await world.run(session, 'go')
      t.equal(turn.state, 'completed')
      const results = turn.messages.find(({ role }: Json) => role === 'tool')
      t.match(results.parts, [{ outcome: 'error', content: [{ text: /taken out|no tool/ }] }])
      t.equal(kit.count('echo'), ran)
      t.match(turn.steps, [{ tool_count: 2 }, { tool_count: 1 }])
      world.script(null)
    })
  }

  await t.test(
    'a tool whose definition changed a moment ago is not called where that blocks it',
    async (t) => {
      const vault = await world.tools('vault', { open: {} })
      await api.patch(`/v1/connectors/${vault.id}`, { pin: 'block' })
      const session = await world.session('openai key', { connectors: ['vault'] })
      world.script(async (_, { step }) => {
        if (step > 0) return null
        vault.tools.set('open', { description: 'Opens it, and tells me.' })
        await api.post(`/v1/sessions/${session}/tools/refresh`)
        return calls(['vault__open', {}])
      })
      const turn = await world.run(session, 'go')
      const results = turn.messages.find(({ role }: Json) => role === 'tool')
      t.match(results.parts, [{ outcome: 'error', content: [{ text: /not called/ }] }])
      t.equal(vault.count('open'), 0)
      world.script(null)
    },
  )

  for (const path of PATH_NAMES.filter((name) => !isGemini(name))) {
    await t.test(`${path}: the name of a tool that the model made up fits into the history`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      world.script((_, { step }) => (step > 0 ? null : calls([`\0${'x'.repeat(600)}`, {}])))
      const frames = await (await api.turn(session, 'go')).done
      t.match(ofType(frames, 'tool_call'), [{ name: `_${'x'.repeat(511)}` }])
      t.equal(typesOf(frames).at(-1), 'turn.completed')
      world.script(null)
      t.match(await world.run(session, 'go on'), { output_text: 'go on' })
    })
  }

  for (const path of PATH_NAMES.filter(isGemini)) {
    const bad: [string, Answer][] = [
      ['an undeclared tool', calls(['nope__tool', { a: 1 }])],
      ['broken arguments', calls(['kit__echo', '{"text": "unfini'])],
      [
        'broken arguments after text',
        { items: [{ type: 'text', text: 'Let me look. ' }, ...calls(['kit__echo', '{"te']).items] },
      ],
    ]
    for (const [what, scene] of bad) {
      await t.test(`${path}: ${what}: the model is told, and goes on`, async (t) => {
        const session = await world.session(path, { connectors: ['kit'] })
        let asked = 0
        world.script(() => (asked++ === 0 ? scene : calls(['kit__echo', { text: 'better' }])))
        const asksBefore = world.sent(path).length
        const frames = await (await api.turn(session, { input: 'go', max_steps: 1 })).done
        t.strictSame(
          typesOf(frames).filter((type) => /^step\.|^turn\./.test(type)),
          [
            'turn.created',
            'turn.started',
            'step.started',
            'step.discarded',
            'step.started',
            'step.completed',
            'turn.completed',
          ],
        )
        t.match(ofType(frames, 'step.discarded'), [{ reason: 'retry' }])
        t.match(JSON.stringify(world.sent(path)[asksBefore + 1]?.body), /could not be made/)
        t.strictSame(
          (await world.messages(session)).map(({ role, parts }) => [role, parts.length]),
          [
            ['user', 1],
            ['assistant', 1],
            ['tool', 1],
          ],
          'no trace of it in the history',
        )
        world.script(null)
        t.match(await world.run(session, 'go on'), { output_text: 'go on' })
      })

      await t.test(`${path}: ${what}, again and again, ends in bounded time and says so`, async (t) => {
        const session = await world.session(path, { connectors: ['kit'] })
        world.script(() => scene)
        const asked = world.sent(path).length
        const { status, body } = await api.call('POST', `/v1/sessions/${session}/turns`, {
          input: 'go',
          stream: false,
        })
        t.equal(status, 200)
        t.match(body, { state: 'completed', finish_reason: 'stop' })
        t.equal(world.sent(path).length - asked, 3)
        const notice = body.messages.at(-1).parts.at(-1)
        t.match(notice, { type: 'notice', text: /could not be made/ })
        world.script(null)
        t.match(await world.run(session, 'go on'), { output_text: 'go on' })
      })
    }
  }

  await t.test('an answer of nothing is asked for once more, unless it stands behind results', async (t) => {
    const path = 'gemini key'
    const nothing: Answer = { items: [] }
    const thought: Answer = { items: [{ type: 'reasoning', parts: ['Hm.'] }] }
    const play = async (...scenes: Answer[]) => {
      const session = await world.session(path, { connectors: ['kit'] })
      const before = world.sent(path).length
      world.script(() => scenes[world.sent(path).length - before - 1] ?? nothing)
      const frames = await (await api.turn(session, 'go')).done
      const last = ofType(frames, 'message').at(-1)?.message as { role: string; parts: Json[] }
      const texts = last.parts.filter(({ type }) => type === 'text').map(({ text }) => text)
      return {
        requests: world.sent(path).length - before,
        discarded: ofType(frames, 'step.discarded').length,
        end: typesOf(frames).at(-1),
        said: texts.join(''),
      }
    }
    const completed = { end: 'turn.completed' }
    for (const first of [nothing, thought]) {
      t.match(await play(first, text('Here.')), { ...completed, requests: 2, discarded: 1, said: 'Here.' })
    }
    t.match(await play(), { ...completed, requests: 2, discarded: 1, said: '' }, 'once')
    t.match(await play(calls(['kit__echo', { text: 'a' }])), { ...completed, requests: 2, discarded: 0 })
    world.script(null)
  })

  await t.test('a model that calls what is not there for ever is stopped by max_steps', async (t) => {
    const session = await world.session('openai key')
    world.script(() => calls(['nope__tool', {}]))
    const turn = await world.run(session, { input: 'go', max_steps: 4 })
    t.match(turn, { state: 'completed', finish_reason: 'max_steps' })
    t.equal(turn.steps.length, 4)
    world.script(null)
  })

  await t.test('a tool that fails, times out or answers nonsense is a result', async (t) => {
    await world.tools('odd', {
      fails: { run: () => Promise.reject(new Error('out of paper')) },
      nonsense: { run: () => ({ content: 'no list' }) },
      empty: { run: () => ({ content: [] }) },
    })
    // Of its own, since what answers needs time on a busy machine, too.
    const mute = await world.tools('mute', {
      late: { run: () => new Promise(() => {}) },
      safe: { annotations: { readOnlyHint: true }, run: () => new Promise(() => {}) },
    })
    await api.patch(`/v1/connectors/${mute.id}`, {
      default_tool_config: { max_instances: 5, timeout: 'PT0.3S' },
      trust_annotations: true,
    })
    for (const path of ['openai key', 'anthropic key', 'gemini key'] as const) {
      const session = await world.session(path, { connectors: ['odd', 'mute'] })
      const tools = ['odd__fails', 'odd__nonsense', 'odd__empty', 'mute__late', 'mute__safe']
      const turn = await world.run(session, tools.map((name) => `call ${name} with {}`).join('\n'))
      t.equal(turn.state, 'completed', path)
      t.match(turn.messages[2].parts, [
        { outcome: 'error', content: [{ text: /out of paper/ }] },
        { outcome: 'ok', content: [{ text: 'no list' }] },
        { outcome: 'ok', content: [] },
        { outcome: 'outcome_unknown', is_error: true, content: [{ text: /not known/ }] },
        { outcome: 'error', is_error: true, content: [{ text: /safe to call again/ }] },
      ])
    }
  })
}

const isGemini = (path: Path) => path === 'gemini key' || path === 'code assist login'

await everyBackend(
  t,
  async (t, world) => {
    const kit = await world.tools('kit', {
      echo: {
        inputSchema: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] },
        run: ({ args }) => textResult(String(args.text)),
      },
    })
    await t.test('failures of a vendor', (t) => upstream(t, world))
    await t.test('calls that cannot be made', (t) => badCalls(t, world, kit))
  },
  {
    config: {
      limits: { firstByteTimeoutMs: 1_500, idleTimeoutMs: 1_500, concurrentTurns: 2, waitingTurns: 1 },
    },
  },
)
