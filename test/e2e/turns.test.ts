/** Turns from the outside (api.md section 4): how they answer, what they leave behind, how they end. */
import t, { type Test } from 'tap'
import { gate } from '../emulators/http.ts'
import { calls, type Scene, text } from '../emulators/scene.ts'
import { type EventStream, type Frame, type Json, ofType, outline, typesOf } from './client.ts'
import { everyBackend, PATH_NAMES, type World } from './harness.ts'
import { textResult } from './tool-server.ts'

/** A scene that says one word, and the second only when the gate opens. */
const held = (until: Promise<unknown>): Scene => ({
  items: [
    { type: 'text', text: 'first ' },
    { type: 'wait', until },
    { type: 'text', text: 'second' },
  ],
})

/** A turn whose model has said its first word and waits. */
async function speaking(
  world: World,
  session: string,
  body: Json = {},
): Promise<{ stream: EventStream; turn: string; open(): void }> {
  const { opened, open } = gate()
  world.script((_, { user }) => (user.startsWith('held') ? held(opened) : null))
  const stream = await world.api.turn(session, { input: 'held', ...body })
  await stream.until('content.delta')
  return { stream, open, turn: stream.headers.get('x-baton-turn') ?? '' }
}

const spoken = (messages: Json[]) =>
  messages.map(({ role, parts }) => [
    role,
    parts.map((part: Json) => part.text ?? part.name ?? part.type).join(''),
  ])

// ---------------------------------------------------------------- answers

/** The fields of every event beside type, session_id, turn_id, step and at (api.md section 6). */
const FIELDS: Record<string, string[]> = {
  'turn.created': [],
  'turn.started': [],
  'step.started': ['model', 'provider', 'tool_count', 'tools_revision'],
  'content.delta': ['text'],
  'reasoning.delta': ['text'],
  'tool_call.delta': ['arguments_delta', 'call_id', 'name'],
  tool_call: ['arguments', 'call_id', 'name'],
  'tool_execution.started': ['call_id', 'exec_id'],
  'tool_execution.progress': ['call_id', 'exec_id', 'message', 'progress', 'total'],
  'tool_execution.completed': ['call_id', 'content', 'duration_ms', 'exec_id', 'is_error', 'outcome'],
  usage: ['cached_tokens', 'input_tokens', 'output_tokens', 'reasoning_tokens'],
  message: ['message'],
  'step.completed': ['finish_reason', 'usage'],
  'turn.completed': ['finish_reason', 'usage'],
}

async function answers(t: Test, world: World) {
  const { api } = world
  await world.tools('kit', {
    add: {
      run: ({ args, progress }) => {
        progress(1, 2, 'half way')
        return textResult(String(Number(args.a) + Number(args.b)))
      },
    },
  })
  const ADD = 'think\nsay one moment\ncall kit__add with {"a": 1, "b": 2}'

  for (const path of PATH_NAMES) {
    await t.test(`streamed, by default: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      const stream = await api.turn(session, ADD)
      const id = stream.headers.get('x-baton-turn') ?? ''
      t.equal(stream.status, 200)
      t.match(stream.headers.get('content-type'), /^text\/event-stream/)
      t.equal(stream.headers.get('location'), `/v1/turns/${id}`)
      t.match(id, /^turn_/)
      const frames = await stream.done
      t.strictSame(outline(frames), [
        'turn.created',
        'turn.started',
        'step.started',
        'reasoning.delta',
        'content.delta',
        'tool_call.delta',
        'tool_call',
        'usage',
        'message',
        'step.completed',
        'tool_execution.started',
        'tool_execution.progress',
        'tool_execution.completed',
        'message',
        'step.started',
        'content.delta',
        'usage',
        'message',
        'step.completed',
        'turn.completed',
      ])
      assertFrames(t, frames, session, id)
      t.strictSame(await turnFacts(t, world, id, frames), {
        state: 'completed',
        finish_reason: 'stop',
        error: null,
        attempt: 1,
        output_text: 'The tools answered: 3',
        steps: [
          { index: 0, attempt: 1, finish_reason: 'tool_calls', tools_revision: 1, tool_count: 2 },
          { index: 1, attempt: 1, finish_reason: 'stop', tools_revision: 1, tool_count: 2 },
        ],
      })
    })
  }

  await t.test('waited for, with stream: false', async (t) => {
    const session = await world.session('gemini key', { connectors: ['kit'] })
    const { status, body, headers } = await api.call('POST', `/v1/sessions/${session}/turns`, {
      input: ADD,
      stream: false,
    })
    t.equal(status, 200)
    t.equal(body.state, 'completed')
    t.equal(body.output_text, 'The tools answered: 3')
    t.equal(headers.get('x-baton-turn'), body.id)
    t.strictSame(await api.get(`/v1/turns/${body.id}`), body)
    const answerText = spoken(body.messages).map(([role]) => role)
    t.strictSame(answerText, ['user', 'assistant', 'tool', 'assistant'])
    t.equal((await world.get(session)).active_turn_id, null)
    t.strictSame((await world.get(session)).usage, body.usage, 'the session counts what the turn used')
  })

  await t.test('in the background: 202 at once, and GET ?wait waits for the end', async (t) => {
    const session = await world.session('openai key')
    const { opened, open } = gate()
    world.script(() => held(opened))
    const { status, body, headers } = await api.call('POST', `/v1/sessions/${session}/turns`, {
      input: 'hello',
      background: true,
    })
    t.equal(status, 202)
    t.equal(headers.get('location'), `/v1/turns/${body.id}`)
    t.equal(body.state, 'running')
    t.equal((await world.get(session)).active_turn_id, body.id)
    const early = await api.get(`/v1/turns/${body.id}?wait=0.05`)
    t.equal(early.state, 'running', 'a wait that ends first answers with the turn as it is')
    const waiting = api.get(`/v1/turns/${body.id}?wait=60`)
    open()
    t.match(await waiting, { state: 'completed', output_text: 'first second' })
    world.script(null)
  })

  await t.test('a client that goes away cancels nothing', async (t) => {
    const session = await world.session('anthropic key')
    const { stream, turn, open } = await speaking(world, session)
    stream.leave()
    await stream.done
    open()
    t.match(await api.get(`/v1/turns/${turn}?wait=60`), { state: 'completed', output_text: 'first second' })
    const waiting = gate()
    world.script(() => held(waiting.opened))
    const gone = new AbortController()
    const left = fetch(`${api.url}/v1/sessions/${session}/turns`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ input: 'again', stream: false }),
      signal: gone.signal,
    })
    await world.emulators.anthropic.request(world.emulators.anthropic.requests.length)
    gone.abort()
    await t.rejects(left)
    const { active_turn_id } = await world.get(session)
    waiting.open()
    t.match(await api.get(`/v1/turns/${active_turn_id}?wait=60`), { state: 'completed' })
    world.script(null)
  })

  await t.test('a turn’s own provider and model hold for that turn', async (t) => {
    const session = await world.session('openai key')
    const turn = await world.run(session, { input: 'hi', provider: 'gemini', model: 'gemini-3.8-flash' })
    t.match(turn.steps, [{ provider: 'gemini', model: 'gemini-3.8-flash' }])
    const { provider } = await world.get(session)
    t.match(
      await world.run(session, { input: 'hi', provider }),
      { state: 'completed' },
      'its own needs no model',
    )
    t.match(await world.get(session), { provider: 'openai', model: 'gpt-5.6-sol' })
    t.match(await world.run(session, 'and you?'), { steps: [{ provider: 'openai' }] })
  })

  await t.test('each turn goes on from the history as it is now', async (t) => {
    const session = await world.session('openai key')
    const shown = async (input: string) => {
      await world.run(session, input)
      return wordsOf(world.sent('openai key').at(-1)?.body as Json)
    }
    t.strictSame(await shown('one'), ['one'])
    t.strictSame(await shown('two'), ['one', 'one', 'two'])
    const [first] = await world.messages(session)
    const said = (words: string) => ({ role: 'user', parts: [{ type: 'text', text: words }] })
    await api.patch(`/v1/sessions/${session}/messages/${first.id}`, said('uno'))
    t.strictSame(await shown('three'), ['uno', 'one', 'two', 'two', 'three'])
    await api.delete(`/v1/sessions/${session}/messages/${first.id}`)
    await api.post(`/v1/sessions/${session}/messages`, { messages: [said('more')] })
    const now = ['one', 'two', 'two', 'three', 'three', 'more', 'four']
    t.strictSame(await shown('four'), now)
    t.strictSame(await shown('five'), [...now, 'four', 'five'])
  })

  await t.test('a PATCH while a turn runs holds from the next turn on', async (t) => {
    const session = await world.session('openai key', { connectors: ['kit'] })
    const { opened, open } = gate()
    world.script(async (_, { step }) => {
      if (step === 0) await opened
      return null
    })
    const stream = await api.turn(session, ADD)
    await stream.until('step.started')
    await api.patch(`/v1/sessions/${session}`, { provider: 'gemini', model: 'gemini-3.8-flash' })
    open()
    const used = ofType(await stream.done, 'step.started').map(({ provider }) => provider)
    t.strictSame(used, ['openai', 'openai'])
    world.script(null)
    t.match(await world.run(session, 'hi'), { steps: [{ provider: 'gemini' }] })
  })

  for (const path of PATH_NAMES) {
    await t.test(`/render shows what is sent, to the byte, and no secret: ${path}`, async (t) => {
      const session = await world.session(path, {
        connectors: ['kit'],
        instructions: 'Be brief.',
        settings: { reasoning: { effort: 'low' } },
      })
      await world.run(session, ADD)
      const input = 'what was that?'
      const shown = await api.post(`/v1/sessions/${session}/render`, { input })
      await world.run(session, input)
      const sent = world.sent(path).at(-1)
      t.equal(JSON.stringify(shown.body), sent?.text)
      t.equal(shown.method, 'POST')
      t.ok(shown.url.endsWith(sent?.path ?? '?'), shown.url)
      for (const [name, value] of Object.entries<string>(shown.headers)) {
        const real = String(sent?.headers[name.toLowerCase()])
        if (value.includes('***')) t.not(real, value)
        else t.equal(value, real, name)
      }
      t.match(JSON.stringify(shown.headers), /\*\*\*/)
    })
  }

  await t.test('a forced tool choice holds for a turn’s first request', async (t) => {
    const choices = {
      'openai key': 'tool_choice',
      'chatgpt login': 'tool_choice',
      'gemini key': 'toolConfig',
    } as const
    for (const [path, field] of Object.entries(choices) as [keyof typeof choices, string][]) {
      const session = await world.session(path, {
        connectors: ['kit'],
        settings: { tool_choice: { name: 'kit.add' } },
      })
      const before = world.sent(path).length
      await world.run(session, 'call kit__add with {"a": 1, "b": 2}')
      const [first, second] = world
        .sent(path)
        .slice(before)
        .map(({ body }) => JSON.stringify((body as Json)[field]))
      t.match(first, /kit__add/, path)
      t.notMatch(second ?? '', /kit__add/)
      await api.patch(`/v1/sessions/${session}`, { settings: { tool_choice: { name: 'kit.gone' } } })
      const { body, notes } = await api.post(`/v1/sessions/${session}/render`, { input: 'x' })
      t.equal(body[field], undefined)
      t.match(notes, [/tool_choice: .*kit\.gone/], 'what is left out is named')
    }
  })

  await t.test('what cannot be run is refused before a turn exists', async (t) => {
    const session = await world.session('openai key')
    const refusal = async (body: Json, path = `/v1/sessions/${session}/turns`) => {
      const { status, body: answer, headers } = await api.call('POST', path, body)
      t.equal(answer.error.request_id, headers.get('x-request-id'))
      return [status, answer.error.code, answer.error.param]
    }
    t.strictSame(await refusal({ input: '' }), [400, 'invalid_request', 'input'])
    t.strictSame(await refusal({}), [400, 'invalid_request', 'input'])
    t.strictSame(await refusal({ input: 'x', max_steps: 65 }), [400, 'invalid_request', 'max_steps'])
    t.strictSame(await refusal({ input: 'x', provider: 'gemini' }), [400, 'invalid_request', 'model'])
    t.strictSame(await refusal({ input: 'x' }, '/v1/sessions/ses_unknown/turns'), [
      404,
      'session_not_found',
      null,
    ])
    await api.patch(`/v1/credentials/${world.credentials['gemini key']}`, { state: 'disabled' })
    await api.patch(`/v1/credentials/${world.credentials['code assist login']}`, { state: 'disabled' })
    const gemini = { input: 'x', provider: 'gemini', model: 'gemini-3.8-flash' }
    t.strictSame((await refusal(gemini)).slice(0, 2), [409, 'no_credential'])
    await api.patch(`/v1/credentials/${world.credentials['gemini key']}`, { state: 'active' })
    await api.patch(`/v1/credentials/${world.credentials['code assist login']}`, { state: 'active' })
    t.strictSame((await api.get(`/v1/sessions/${session}/turns`)).data, [])
    t.strictSame(await world.messages(session), [])
  })
}

/** Every frame has its id, its type, its head, and the fields of its type and no others. */
function assertFrames(t: Test, frames: Frame[], session: string, turn: string): void {
  const ids = frames.map(({ id }) => id)
  t.equal(new Set(ids).size, frames.length, 'every frame has an id of its own')
  for (const { type, data } of frames) {
    const { type: told, session_id, turn_id, step, at, ...rest } = data
    t.strictSame([told, session_id, turn_id], [type, session, turn])
    t.match(at, /^\d{4}-\d\d-\d\dT[\d:.]+Z$/)
    t.equal(step === null, /^turn\./.test(type), `${type} has a step where it belongs to one`)
    t.strictSame(Object.keys(rest).sort(), FIELDS[type], `fields of ${type}`)
  }
}

/** The turn as it can be read, checked against the events that told it. */
async function turnFacts(t: Test, { api }: World, id: string, frames: Frame[]): Promise<Json> {
  const turn = await api.get(`/v1/turns/${id}`)
  const told = ofType(frames, 'message').map(({ message }) => message)
  const kept = turn.messages.filter(({ role }: Json) => role !== 'user')
  t.strictSame(told, kept, 'the messages told are the messages kept')
  const usages = ofType(frames, 'step.completed').map(({ usage }) => usage)
  t.strictSame(
    turn.steps.map(({ usage }: Json) => usage),
    usages,
  )
  t.strictSame(turn.usage, ofType(frames, 'turn.completed')[0].usage)
  const total = usages.reduce((sum, { input_tokens }) => sum + input_tokens, 0)
  t.equal(turn.usage.input_tokens, total)
  t.ok(total > 0)
  const { state, finish_reason, error, attempt, output_text, steps } = turn
  return {
    state,
    finish_reason,
    error,
    attempt,
    output_text,
    steps: steps.map(({ provider: _, model: __, usage: ___, started_at, ended_at, ...step }: Json) => {
      t.ok(started_at <= ended_at)
      return step
    }),
  }
}

// ---------------------------------------------------------------- busy sessions

async function busySessions(t: Test, world: World) {
  const { api } = world
  const start = (session: string, body: Json) => api.call('POST', `/v1/sessions/${session}/turns`, body)

  await t.test('reject, the default, names the turn that runs', async (t) => {
    const session = await world.session('openai key')
    const { stream, turn, open } = await speaking(world, session)
    const { status, body } = await start(session, { input: 'me too', stream: false })
    t.equal(status, 409)
    t.match(body.error, { code: 'turn_in_progress', details: { active_turn_id: turn } })
    open()
    await stream.done
    t.strictSame(spoken(await world.messages(session)), [
      ['user', 'held'],
      ['assistant', 'first second'],
    ])
  })

  await t.test('enqueue runs them after, in order, each on what the one before left', async (t) => {
    const session = await world.session('gemini key')
    const { stream, open } = await speaking(world, session)
    const second = await api.turn(session, { input: 'two', on_busy: 'enqueue' })
    const third = (await start(session, { input: 'three', on_busy: 'enqueue', background: true })).body
    t.match(third, { state: 'queued', started_at: null })
    t.strictSame(typesOf(second.frames), second.frames.length === 0 ? [] : ['turn.created'])
    open()
    await stream.done
    t.strictSame(outline(await second.done), [
      'turn.created',
      'turn.started',
      'step.started',
      'content.delta',
      'usage',
      'message',
      'step.completed',
      'turn.completed',
    ])
    t.match(await api.get(`/v1/turns/${third.id}?wait=60`), { state: 'completed', output_text: 'three' })
    t.strictSame(spoken(await world.messages(session)), [
      ['user', 'held'],
      ['assistant', 'first second'],
      ['user', 'two'],
      ['assistant', 'two'],
      ['user', 'three'],
      ['assistant', 'three'],
    ])
  })

  await t.test('the queue holds sixteen, and a queued turn can be cancelled', async (t) => {
    const session = await world.session('openai key')
    const { stream, open } = await speaking(world, session)
    const queued = []
    for (let i = 0; i < 16; i++) {
      queued.push((await start(session, { input: `number ${i}`, on_busy: 'enqueue', background: true })).body)
    }
    const { status, headers, body } = await start(session, { input: 'one more', on_busy: 'enqueue' })
    t.equal(status, 429)
    t.equal(body.error.code, 'queue_full')
    t.ok(Number(headers.get('retry-after')) > 0)
    const events = await api.follow(`/v1/turns/${queued[3].id}/events`)
    for (const { id } of queued.slice(1)) {
      const { status, body } = await api.call('POST', `/v1/turns/${id}/cancel?wait=true`)
      t.match([status, body.state], [200, 'cancelled'])
    }
    t.strictSame(outline(await events.done), ['turn.created', 'turn.cancelled'])
    open()
    await stream.done
    await api.get(`/v1/turns/${queued[0].id}?wait=60`)
    t.strictSame(spoken(await world.messages(session)), [
      ['user', 'held'],
      ['assistant', 'first second'],
      ['user', 'number 0'],
      ['assistant', 'number 0'],
    ])
  })

  await t.test(
    'interrupt cancels the running turn, then runs; those that wait keep their place',
    async (t) => {
      const session = await world.session('anthropic key')
      const { stream, turn } = await speaking(world, session)
      const waiting = (await start(session, { input: 'I waited', on_busy: 'enqueue', background: true })).body
      const urgent = await api.turn(session, { input: 'urgent', on_busy: 'interrupt' })
      t.equal((await stream.done).at(-1)?.type, 'turn.cancelled')
      t.equal((await urgent.done).at(-1)?.type, 'turn.completed')
      t.match(await api.get(`/v1/turns/${turn}`), { state: 'cancelled' })
      t.match(await api.get(`/v1/turns/${waiting.id}?wait=60`), { state: 'completed' })
      const said = spoken(await world.messages(session))
      t.strictSame(said.slice(0, 2), [
        ['user', 'held'],
        ['assistant', 'first '],
      ])
      t.strictSame(
        said.slice(2).map(([, words]) => words),
        ['urgent', 'urgent', 'I waited', 'I waited'],
      )
      world.script(null)
    },
  )

  await t.test('where nothing runs, each way of being busy just runs', async (t) => {
    for (const on_busy of ['reject', 'enqueue', 'interrupt']) {
      const session = await world.session('gemini key')
      t.match(await world.run(session, { input: 'hi', on_busy }), { state: 'completed', output_text: 'hi' })
    }
  })

  await t.test('interrupt settles the calls that run, truthfully', async (t) => {
    const session = await world.session('openai key')
    const server = await world.tools('slow', { nap: { run: ({ signal }) => until(signal) } })
    await api.put(`/v1/sessions/${session}/connectors/slow`)
    const stream = await api.turn(session, 'call slow__nap with {}')
    await stream.until('tool_execution.started')
    while (server.count('nap') === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    const next = await api.turn(session, { input: 'never mind', on_busy: 'interrupt' })
    t.equal((await next.done).at(-1)?.type, 'turn.completed')
    const [done] = ofType(await stream.done, 'tool_execution.completed')
    t.match(done, { outcome: 'cancelled', is_error: true, content: [{ text: /not known/ }] })
    const messages = await world.messages(session)
    t.strictSame(
      messages.map(({ role }) => role),
      ['user', 'assistant', 'tool', 'user', 'assistant'],
    )
  })
}

/** Runs until it is cancelled. */
const until = (signal: AbortSignal): Promise<Json> =>
  new Promise((resolve) => signal.addEventListener('abort', () => resolve(textResult('stopped'))))

// ---------------------------------------------------------------- idempotency

const SAID = { role: 'user', parts: [{ type: 'text', text: 'Before.' }] }

async function idempotency(t: Test, world: World) {
  const { api } = world
  const session = await world.session('openai key')
  const start = (body: Json, key: string, into = session) =>
    api.call('POST', `/v1/sessions/${into}/turns`, { stream: false, ...body }, { 'idempotency-key': key })
  const first = await start({ input: 'once' }, 'a')
  t.equal(first.status, 200)
  t.equal(first.headers.get('idempotent-replayed'), null)
  await t.test('the same key and body bring the same turn', async (t) => {
    const again = await start({ input: 'once' }, 'a')
    t.equal(again.headers.get('idempotent-replayed'), 'true')
    t.strictSame(again.body, first.body)
    const streamed = await api.turn(session, { input: 'once', stream: false }, { 'idempotency-key': 'a' })
    t.equal(streamed.status, 200)
    t.equal(spoken(await world.messages(session)).length, 2)
  })
  await t.test('a replayed stream tells the turn from its first event', async (t) => {
    const streamed = await api.turn(session, 'told', { 'idempotency-key': 's' })
    const frames = (await streamed.done).map(({ raw }) => raw)
    const again = await api.turn(session, 'told', { 'idempotency-key': 's' })
    t.equal(again.headers.get('idempotent-replayed'), 'true')
    t.strictSame(
      (await again.done).map(({ raw }) => raw),
      frames,
    )
  })
  await t.test('a repeat that would be refused by now brings the turn all the same', async (t) => {
    const fresh = await world.session('gemini key')
    const body = { input: 'once more', context: [{ op: 'insert_after', index: -1, message: SAID }] }
    const one = await start(body, 'n', fresh)
    t.equal(one.status, 200)
    const path = `/v1/credentials/${world.credentials['gemini key']}`
    await api.patch(path, { state: 'disabled' })
    const two = await start(body, 'n', fresh)
    t.match(await start(body, 'm', fresh), { status: 409, body: { error: { code: 'no_credential' } } })
    await api.patch(path, { state: 'active', default: true })
    t.match(two, { status: 200, body: { id: one.body.id } })
    t.equal(two.headers.get('idempotent-replayed'), 'true')
  })
  await t.test('another body under the same key is refused', async (t) => {
    const { status, body } = await start({ input: 'twice' }, 'a')
    t.equal(status, 422)
    t.equal(body.error.code, 'idempotency_mismatch')
  })
  await t.test('keys belong to their session', async (t) => {
    const other = await world.session('openai key')
    const { status, headers } = await start({ input: 'twice' }, 'a', other)
    t.equal(status, 200)
    t.equal(headers.get('idempotent-replayed'), null)
  })
  await t.test('of ten at once one runs, and all answer with it', async (t) => {
    const fresh = await world.session('gemini key')
    const all = await Promise.all(Array.from({ length: 10 }, () => start({ input: 'race' }, 'r', fresh)))
    t.strictSame([...new Set(all.map(({ status }) => status))], [200])
    t.equal(new Set(all.map(({ body }) => body.id)).size, 1)
    t.equal(all.filter(({ headers }) => headers.get('idempotent-replayed') === null).length, 1)
    t.equal((await world.messages(fresh)).length, 2)
  })
  await t.test('a turn that failed is replayed as it failed', async (t) => {
    const fresh = await world.session('openai key')
    world.script(() => ({
      status: 400,
      body: { error: { message: 'no', type: 'x', param: null, code: 'x' } },
    }))
    const one = await start({ input: 'fail' }, 'f', fresh)
    world.script(null)
    const two = await start({ input: 'fail' }, 'f', fresh)
    t.strictSame([one.status, two.status], [502, 502])
    t.equal(two.headers.get('idempotent-replayed'), 'true')
    t.equal(two.body.error.details.turn_id, one.body.error.details.turn_id)
    t.match(await start({ input: 'fail' }, 'g', fresh), { status: 200 }, 'another key tries again')
  })
  await t.test('a replay reaches a turn that runs still', async (t) => {
    const fresh = await world.session('openai key')
    const { opened, open } = gate()
    world.script(() => held(opened))
    const [one, two] = [
      api.turn(fresh, 'x', { 'idempotency-key': 'k' }),
      api.turn(fresh, 'x', { 'idempotency-key': 'k' }),
    ]
    const streams = await Promise.all([one, two])
    for (const stream of streams) await stream.until('content.delta')
    open()
    const [a, b] = await Promise.all(streams.map(({ done }) => done))
    t.strictSame(a, b)
    world.script(null)
  })
}

// ---------------------------------------------------------------- max_steps

async function maxSteps(t: Test, world: World) {
  const server = await world.tools('loop', { again: {} })
  for (const path of ['openai key', 'anthropic key', 'gemini key'] as const) {
    await t.test(`the last calls are run and stored, and no request follows: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: ['loop'] })
      world.script((_, { tools }) =>
        calls(...tools.filter((name) => name.includes('again')).map((name) => [name, {}] as [string, Json])),
      )
      const ran = server.count('again')
      const asked = world.sent(path).length
      const turn = await world.run(session, { input: 'go on', max_steps: 3 })
      t.match(turn, { state: 'completed', finish_reason: 'max_steps' })
      t.equal(turn.steps.length, 3)
      t.equal(server.count('again') - ran, 3)
      t.equal(world.sent(path).length - asked, 3)
      t.equal(turn.messages.at(-1).role, 'tool')
      t.match(turn.messages.at(-1).parts, [{ type: 'tool_result', outcome: 'ok' }])
      world.script(null)
      t.match(await world.run(session, 'and now stop'), { state: 'completed', output_text: 'and now stop' })
    })
  }
}

// ---------------------------------------------------------------- context edits

async function contextEdits(t: Test, world: World) {
  const { api } = world
  await world.tools('ctx', { look: { run: () => textResult('seen') } })
  const session = await world.session('openai key', { connectors: ['ctx'] })
  await world.run(session, 'one')
  await world.run(session, 'call ctx__look with {}')
  const history = await world.messages(session)
  t.strictSame(
    history.map(({ role }) => role),
    ['user', 'assistant', 'user', 'assistant', 'tool', 'assistant'],
  )
  const message = (words: string) => ({ role: 'user', parts: [{ type: 'text', text: words }] })
  /** What a turn with these edits sends, as role and words. */
  const shown = async (context: Json[], input = 'now') => {
    const asked = world.sent('openai key').length
    await world.run(session, { input, context })
    for (const { id } of (await world.messages(session)).slice(history.length)) {
      // Results go with the message of their calls.
      await api.call('DELETE', `/v1/sessions/${session}/messages/${id}`)
    }
    return world
      .sent('openai key')
      .slice(asked)
      .map(({ body }) => wordsOf(body as Json))
  }
  const plain = ['one', 'one', 'call ctx__look with {}', '<look>', '=seen', 'The tools answered: seen', 'now']

  await t.test('each op, indexes from both ends, in order', async (t) => {
    t.strictSame(await shown([]), [plain])
    t.strictSame(await shown([{ op: 'delete_at', index: 0 }]), [plain.slice(1)])
    t.strictSame(await shown([{ op: 'delete_at', index: -1 }]), [[...plain.slice(0, 5), 'now']])
    t.strictSame(await shown([{ op: 'insert_before', index: 0, message: message('zero') }]), [
      ['zero', ...plain],
    ])
    t.strictSame(await shown([{ op: 'insert_after', index: -1, message: message('last') }]), [
      [...plain.slice(0, 6), 'last', 'now'],
    ])
    t.strictSame(await shown([{ op: 'insert_before', index: -1, message: message('mid') }]), [
      [...plain.slice(0, 5), 'mid', ...plain.slice(5)],
    ])
    t.strictSame(await shown([{ op: 'replace_at', index: -6, message: message('uno') }]), [
      ['uno', ...plain.slice(1)],
    ])
    t.strictSame(
      await shown([
        { op: 'delete_at', index: 0 },
        { op: 'delete_at', index: 0 },
        { op: 'insert_before', index: 0, message: message('first') },
        { op: 'replace_at', index: 0, message: message('really first') },
      ]),
      [['really first', ...plain.slice(2)]],
      'each index is read on the list that the one before left',
    )
    t.strictSame(
      await shown([
        { op: 'delete_at', index: 3 },
        { op: 'delete_at', index: 3 },
      ]),
      [[...plain.slice(0, 3), ...plain.slice(5)]],
      'a call may go with its result',
    )
  })

  await t.test('the edited history is the base of every step, and the real one is untouched', async (t) => {
    const sent = await shown([{ op: 'delete_at', index: 0 }], 'call ctx__look with {}')
    t.equal(sent.length, 2)
    for (const words of sent) t.strictSame(words.slice(0, 5), plain.slice(1, 6))
    t.strictSame(sent[1]?.slice(5), ['call ctx__look with {}', '<look>', '=seen'])
    t.strictSame(await world.messages(session), history)
    t.strictSame(await shown([]), [plain], 'the next turn has no edits')
  })

  await t.test('what does not fit is refused, and nothing is stored', async (t) => {
    const refused = async (context: Json[]) => {
      const { status, body } = await api.call('POST', `/v1/sessions/${session}/turns`, {
        input: 'x',
        context,
      })
      return [status, body.error.code, body.error.param]
    }
    const outside = [400, 'invalid_request', 'context[1].index']
    t.strictSame(await refused([{ op: 'delete_at', index: 3 }]), [
      400,
      'context_splits_tool_exchange',
      'context',
    ])
    t.strictSame(await refused([{ op: 'delete_at', index: -2 }]), [
      400,
      'context_splits_tool_exchange',
      'context',
    ])
    t.strictSame(await refused([{ op: 'insert_after', index: 3, message: message('between') }]), [
      400,
      'context_splits_tool_exchange',
      'context',
    ])
    const ok = { op: 'insert_before', index: 0, message: message('x') }
    t.strictSame(await refused([ok, { op: 'delete_at', index: 7 }]), outside)
    t.strictSame(await refused([ok, { op: 'delete_at', index: -8 }]), outside)
    t.strictSame(await world.messages(session), history)
  })

  await t.test('a queued turn’s edits are read on the history at its acceptance', async (t) => {
    const fresh = await world.session('openai key')
    await world.run(fresh, 'alpha')
    const { stream, open } = await speaking(world, fresh)
    const before = world.sent('openai key').length
    const queued = await api.turn(fresh, {
      input: 'queued',
      on_busy: 'enqueue',
      context: [{ op: 'delete_at', index: -1 }],
    })
    open()
    await Promise.all([stream.done, queued.done])
    const sent = wordsOf(world.sent('openai key').slice(before)[0]?.body as Json)
    t.strictSame(
      sent,
      ['alpha', 'alpha', 'first ', 'second', 'queued'],
      'the running turn’s input was the last message then',
    )
  })
}

/** The input of a Responses request in words: texts, <call>, =result. */
const wordsOf = ({ input }: Json): string[] =>
  input.flatMap((item: Json) => {
    if (item.type === 'function_call') return [`<${item.name.replace(/^.*__/, '')}>`]
    if (item.type === 'function_call_output')
      return [`=${typeof item.output === 'string' ? item.output : item.output.map(({ text }: Json) => text)}`]
    if (item.type !== 'message' && item.role === undefined) return []
    return [
      typeof item.content === 'string' ? item.content : item.content.map(({ text }: Json) => text).join(''),
    ]
  })

// ---------------------------------------------------------------- cancelling

async function cancelling(t: Test, world: World) {
  const { api } = world
  const server = await world.tools('work', {
    quick: {},
    nap: { run: ({ signal }) => until(signal) },
    deaf: { run: () => new Promise(() => {}) },
  })

  for (const path of PATH_NAMES) {
    await t.test(
      `while the model speaks: its text is kept, its reasoning and calls are not: ${path}`,
      async (t) => {
        const session = await world.session(path, { connectors: ['work'] })
        const { opened, open } = gate()
        world.script(() => ({
          items: [
            { type: 'reasoning', parts: ['**Hm**\n\nA thought.'] },
            { type: 'text', text: 'Let me see. ' },
            { type: 'call', name: 'work__quick', arguments: {} },
            { type: 'wait', until: opened },
            { type: 'text', text: 'never said' },
          ],
        }))
        const stream = await api.turn(session, 'go')
        await stream.until('content.delta')
        const turn = stream.headers.get('x-baton-turn')
        const { status, body } = await api.call('POST', `/v1/turns/${turn}/cancel?wait=true`)
        t.equal(status, 200)
        t.match(body, { state: 'cancelled', finish_reason: null, error: null })
        const frames = await stream.done
        t.strictSame(outline(frames).slice(-2), ['message', 'turn.cancelled'])
        const [kept] = body.messages.slice(1)
        t.match(kept, { role: 'assistant', incomplete: true })
        t.strictSame(kept.parts, [{ type: 'text', text: 'Let me see. ' }])
        t.equal(await lastClosed(world, path), 'aborted', 'the vendor’s stream is closed')
        t.equal(server.count('quick'), 0)
        open()
        world.script(null)
        const again = await api.call('POST', `/v1/turns/${turn}/cancel`)
        t.match([again.status, again.body.state], [202, 'cancelled'], 'cancelling again changes nothing')
        t.match(await world.run(session, 'go on'), { output_text: 'go on' })
      },
    )
  }

  await t.test('before the first word nothing is kept', async (t) => {
    const session = await world.session('openai key')
    const { opened, open } = gate()
    world.script(async () => {
      await opened
      return text('late')
    })
    const asked = world.emulators.openai.requests.length
    const stream = await api.turn(session, 'go')
    await world.emulators.openai.request(asked)
    const { status, body } = await api.call('POST', `/v1/turns/${stream.headers.get('x-baton-turn')}/cancel`)
    t.equal(status, 202)
    t.match(body, { id: stream.headers.get('x-baton-turn') })
    t.equal((await stream.done).at(-1)?.type, 'turn.cancelled')
    t.strictSame(spoken(await world.messages(session)), [['user', 'go']])
    open()
    world.script(null)
  })

  await t.test('during tools: finished results stay, running ones are settled, none is lost', async (t) => {
    const session = await world.session('gemini key', { connectors: ['work'] })
    const stream = await api.turn(session, 'call work__quick with {}\ncall work__nap with {}')
    await stream.until('tool_execution.completed')
    while (server.count('nap') === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    const turn = stream.headers.get('x-baton-turn')
    const { body } = await api.call('POST', `/v1/turns/${turn}/cancel?wait=true`)
    t.equal(body.state, 'cancelled')
    const results = body.messages.at(-1)
    t.equal(results.role, 'tool')
    t.match(results.parts, [
      { outcome: 'ok', is_error: false },
      { outcome: 'cancelled', is_error: true },
    ])
    const { data } = await api.get(`/v1/tool-executions?turn_id=${turn}`)
    t.strictSame(data.map(({ outcome }: Json) => outcome).sort(), ['cancelled', 'ok'])
    t.strictSame(outline(await stream.done).slice(-3), [
      'tool_execution.completed',
      'message',
      'turn.cancelled',
    ])
    t.match(await world.run(session, 'on we go'), { state: 'completed', output_text: 'on we go' })
  })

  await t.test('a tool that does not hear of it is settled without it', async (t) => {
    const session = await world.session('openai key', { connectors: ['work'] })
    const stream = await api.turn(session, 'call work__deaf with {}')
    while (server.count('deaf') === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    const { body } = await api.call(
      'POST',
      `/v1/turns/${stream.headers.get('x-baton-turn')}/cancel?wait=true`,
    )
    t.equal(body.state, 'cancelled')
    t.match(body.messages.at(-1).parts, [{ outcome: 'cancelled', content: [{ text: /not known/ }] }])
  })

  await t.test('an unknown turn is 404 for every verb', async (t) => {
    for (const verb of ['cancel', 'restart']) {
      const { status, body } = await api.call('POST', `/v1/turns/turn_unknown/${verb}`)
      t.match([status, body.error.code], [404, 'turn_not_found'])
    }
    t.equal((await api.call('GET', '/v1/turns/turn_unknown/events')).status, 404)
  })
}

/** How the newest request on a path ended for the vendor. */
const lastClosed = (world: World, path: (typeof PATH_NAMES)[number]) => world.sent(path).at(-1)?.closed

// ---------------------------------------------------------------- restarting

async function restarting(t: Test, world: World) {
  const { api } = world
  await t.test('the model call in flight is made anew; what it streamed is discarded', async (t) => {
    const session = await world.session('anthropic key')
    const { opened, open } = gate()
    let asked = 0
    world.script(() => (asked++ === 0 ? held(opened) : text('fresh')))
    const stream = await api.turn(session, 'go')
    await stream.until('content.delta')
    const id = stream.headers.get('x-baton-turn')
    const { status, body } = await api.call('POST', `/v1/turns/${id}/restart`)
    t.equal(status, 202)
    t.equal(body.id, id)
    const frames = await stream.done
    t.strictSame(outline(frames), [
      'turn.created',
      'turn.started',
      'step.started',
      'content.delta',
      'step.discarded',
      'turn.restarted',
      'step.started',
      'content.delta',
      'usage',
      'message',
      'step.completed',
      'turn.completed',
    ])
    t.match(ofType(frames, 'step.discarded'), [{ step: 0, reason: 'tools_changed' }])
    t.match(ofType(frames, 'turn.restarted'), [{ attempt: 2, tools_revision: Number }])
    const turn = await api.get(`/v1/turns/${id}`)
    t.match(turn, { attempt: 2, output_text: 'fresh' })
    t.match(turn.steps, [
      { index: 0, attempt: 1, discarded: true },
      { index: 0, attempt: 2, finish_reason: 'stop' },
    ])
    t.strictSame(spoken(await world.messages(session)), [
      ['user', 'go'],
      ['assistant', 'fresh'],
    ])
    open()
    world.script(null)
    const after = await api.call('POST', `/v1/turns/${id}/restart`)
    t.match([after.status, after.body.error.code], [409, 'not_restartable'])
  })

  await t.test('eight times, then no more; and not while tools run', async (t) => {
    const server = await world.tools('busy', { nap: { run: ({ signal }) => until(signal) } })
    const session = await world.session('openai key', { connectors: ['busy'] })
    const gates = [gate()]
    world.script((_, { step }) => {
      const mine = gate()
      gates.push(mine)
      if (step > 0) return null
      return {
        items: [
          { type: 'text', text: 'x' },
          { type: 'wait', until: mine.opened },
          { type: 'call', name: 'busy__nap', arguments: {} },
        ],
      }
    })
    const stream = await api.turn(session, 'go')
    const id = stream.headers.get('x-baton-turn')
    for (let i = 1; i <= 8; i++) {
      await stream.until(
        () =>
          ofType(stream.frames, 'step.started').length === i &&
          stream.frames.at(-1)?.type === 'content.delta',
      )
      t.equal((await api.call('POST', `/v1/turns/${id}/restart`)).status, 202)
    }
    await stream.until(
      () =>
        ofType(stream.frames, 'step.started').length === 9 && stream.frames.at(-1)?.type === 'content.delta',
    )
    const ninth = await api.call('POST', `/v1/turns/${id}/restart`)
    t.match([ninth.status, ninth.body.error.code], [409, 'restart_limit'])
    for (const { open } of gates) open()
    while (server.count('nap') === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    const during = await api.call('POST', `/v1/turns/${id}/restart`)
    t.equal(during.status, 409)
    await api.call('POST', `/v1/turns/${id}/cancel?wait=true`)
    t.equal((await api.get(`/v1/turns/${id}`)).attempt, 9)
    world.script(null)
  })
}

// ---------------------------------------------------------------- approvals

async function approvals(t: Test, world: World) {
  const { api } = world
  const server = await world.tools('guarded', { wipe: {}, look: { annotations: { readOnlyHint: true } } })
  await api.patch(`/v1/connectors/${server.id}`, { require_approval: 'always' })

  const waiting = async (path: (typeof PATH_NAMES)[number]) => {
    const session = await world.session(path, { connectors: ['guarded'] })
    const stream = await api.turn(session, 'call guarded__wipe with {"disk": 1}\ncall guarded__look with {}')
    await stream.until('turn.awaiting_input')
    const turn = await api.get(`/v1/turns/${stream.headers.get('x-baton-turn')}`)
    const asked = ofType(stream.frames, 'approval.required')
    return {
      session,
      stream,
      turn,
      asked,
      decide: (call: Json, body: Json) =>
        api.call('POST', `/v1/turns/${turn.id}/approvals/${call.call_id}`, body),
    }
  }

  await t.test('a turn waits for both, then goes on with what was decided', async (t) => {
    const { session, stream, turn, asked, decide } = await waiting('anthropic key')
    t.equal(turn.state, 'awaiting_input')
    t.match(asked, [
      { name: 'guarded.wipe', arguments: { disk: 1 } },
      { name: 'guarded.look', arguments: {} },
    ])
    t.equal(server.calls.length, 0)
    const busy = await api.call('POST', `/v1/sessions/${session}/turns`, { input: 'x' })
    t.match(busy.body.error, { code: 'turn_in_progress', details: { active_turn_id: turn.id } })
    const [wipe, look] = asked
    t.equal((await decide(wipe, { decision: 'deny', reason: 'not today' })).status, 200)
    t.equal((await api.get(`/v1/turns/${turn.id}`)).state, 'awaiting_input')
    t.equal((await decide(look, { decision: 'approve', arguments: { at: 'it' } })).status, 200)
    const frames = await stream.done
    t.equal(frames.at(-1)?.type, 'turn.completed')
    t.strictSame(server.calls, [{ tool: 'look', args: { at: 'it' } }])
    const results = (await world.messages(session)).find(({ role }) => role === 'tool')
    t.match(results.parts, [
      { outcome: 'denied', is_error: true, content: [{ text: /not today/ }] },
      { outcome: 'ok' },
    ])
    const again = await decide(look, { decision: 'approve' })
    t.match([again.status, again.body.error.code], [409, 'not_awaiting'])
    const { data } = await api.get(`/v1/tool-executions?turn_id=${turn.id}`)
    t.strictSame(Object.fromEntries(data.map(({ tool, approved_by }: Json) => [tool, approved_by])), {
      'guarded.wipe': null,
      'guarded.look': 'local',
    })
  })

  await t.test('whoever waits is answered; a waiting turn can be cancelled', async (t) => {
    const session = await world.session('gemini key', { connectors: ['guarded'] })
    const before = server.calls.length
    const { status, body } = await api.call('POST', `/v1/sessions/${session}/turns`, {
      input: 'call guarded__wipe with {}',
      stream: false,
    })
    t.equal(status, 200)
    t.equal(body.state, 'awaiting_input')
    t.match(await api.get(`/v1/turns/${body.id}?wait=60`), { state: 'awaiting_input' })
    const cancelled = await api.call('POST', `/v1/turns/${body.id}/cancel?wait=true`)
    t.match(cancelled.body, { state: 'cancelled' })
    t.match(cancelled.body.messages.at(-1), { role: 'tool', parts: [{ outcome: 'cancelled' }] })
    t.equal(server.calls.length, before)
    t.match(await world.run(session, 'fine'), { output_text: 'fine' })
  })

  await t.test('a call whose tool is taken away now is settled without a person', async (t) => {
    const { session, stream, turn, asked } = await waiting('gemini key')
    const before = server.calls.length
    const other = await api.call('DELETE', `/v1/sessions/${session}/connectors/guarded?apply=now`)
    t.match(other.body, {
      removed: ['guarded.look', 'guarded.wipe'],
      effective: { turn_id: turn.id, from: 'next_step' },
      restarted_turn_id: null,
    })
    const frames = await stream.done
    t.equal(frames.at(-1)?.type, 'turn.completed')
    t.match(ofType(frames, 'tool_execution.completed'), [
      { call_id: asked[0].call_id, outcome: 'cancelled', content: [{ text: /taken out/ }] },
      { call_id: asked[1].call_id, outcome: 'cancelled' },
    ])
    t.equal(server.calls.length, before)
    const late = await api.call('POST', `/v1/turns/${turn.id}/approvals/${asked[0].call_id}`, {
      decision: 'approve',
    })
    t.match([late.status, late.body.error.code], [409, 'not_awaiting'])
  })

  await t.test('what is decided or cancelled while other calls run holds once they are done', async (t) => {
    let held = gate()
    const slow = await world.tools('other', {
      slow: { run: () => held.opened.then(() => textResult('slow')) },
    })
    for (const end of ['approve', 'cancel'] as const) {
      held = gate()
      const before = slow.count('slow')
      const session = await world.session('anthropic key', { connectors: ['guarded', 'other'] })
      const stream = await api.turn(session, 'call guarded__look with {}\ncall other__slow with {}')
      const { data } = await stream.until('approval.required')
      const id = data.turn_id
      while (slow.count('slow') === before) await new Promise((resolve) => setTimeout(resolve, 5))
      if (end === 'approve') {
        await api.post(`/v1/turns/${id}/approvals/${data.call_id}`, { decision: 'approve' })
        held.open()
        t.equal((await stream.done).at(-1)?.type, 'turn.completed')
        const results = (await world.messages(session)).find(({ role }) => role === 'tool')
        t.match(results.parts, [{ outcome: 'ok' }, { outcome: 'ok', content: [{ text: 'slow' }] }])
      } else {
        const { body } = await api.call('POST', `/v1/turns/${id}/cancel?wait=true`)
        t.equal(body.state, 'cancelled')
        t.match(body.messages.at(-1).parts, [{ outcome: 'cancelled' }, { outcome: 'cancelled' }])
        held.open()
      }
    }
  })

  await t.test('what a PATCH changes while a turn waits holds from the next turn on', async (t) => {
    const { session, stream, asked, decide } = await waiting('openai key')
    await api.patch(`/v1/sessions/${session}`, { model: 'gpt-5.5', settings: { tool_choice: 'none' } })
    await api.patch(`/v1/sessions/${session}`, {
      provider: 'gemini',
      model: 'gemini-3.8-flash',
      instructions: 'Speak Latin.',
    })
    for (const call of asked) await decide(call, { decision: 'approve' })
    const used = ofType(await stream.done, 'step.started').map(({ provider, model }) => [provider, model])
    t.strictSame(used, [
      ['openai', 'gpt-5.6-sol'],
      ['openai', 'gpt-5.6-sol'],
    ])
    const last = world.sent('openai key').at(-1)?.body as Json
    t.notOk(last.tool_choice)
    t.notMatch(JSON.stringify(last), /Latin/)
    t.match(await world.run(session, 'hi'), { steps: [{ provider: 'gemini' }] })
    t.match(world.sent('gemini key').at(-1)?.text, /Latin/)
  })

  await t.test('an interrupt ends a waiting turn too', async (t) => {
    const { session, turn } = await waiting('openai key')
    const urgent = await api.turn(session, { input: 'never mind', on_busy: 'interrupt' })
    t.equal((await urgent.done).at(-1)?.type, 'turn.completed')
    t.match(await api.get(`/v1/turns/${turn.id}`), { state: 'cancelled' })
    t.strictSame(
      (await world.messages(session)).map(({ role }) => role),
      ['user', 'assistant', 'tool', 'user', 'assistant'],
    )
  })

  await t.test('a waiting turn that cannot go on leaves no call open', async (t) => {
    const credential = `/v1/credentials/${world.credentials['anthropic key']}`
    for (const end of ['failed', 'cancelled'] as const) {
      const { session, stream, turn, asked, decide } = await waiting('anthropic key')
      await api.patch(credential, { state: 'disabled' })
      if (end === 'cancelled') await api.post(`/v1/turns/${turn.id}/cancel`)
      else for (const call of asked) await decide(call, { decision: 'approve' })
      t.equal((await stream.done).at(-1)?.type, `turn.${end}`)
      await api.patch(credential, { state: 'active' })
      const { state, error, messages } = await api.get(`/v1/turns/${turn.id}`)
      t.match([state, error?.code], [end, end === 'failed' ? 'no_credential' : undefined])
      t.match(messages.at(-1), { role: 'tool', parts: [{ outcome: 'cancelled' }, { outcome: 'cancelled' }] })
      const { data } = await api.get(`/v1/tool-executions?turn_id=${turn.id}`)
      t.strictSame(
        data.map(({ outcome }: Json) => outcome),
        ['cancelled', 'cancelled'],
      )
      t.match(await world.run(session, 'fine'), { output_text: 'fine' })
    }
  })

  await t.test('a waiting turn outlives its process', async (t) => {
    const { session, stream, turn, asked } = await waiting('openai key')
    const before = server.calls.length
    await world.restart()
    await stream.done
    for (const call of asked) {
      await world.api.post(`/v1/turns/${turn.id}/approvals/${call.call_id}`, { decision: 'approve' })
    }
    t.match(await world.api.get(`/v1/turns/${turn.id}?wait=60`), { state: 'completed' })
    t.equal(server.calls.length - before, 2)
    t.equal((await world.messages(session)).length, 4)
  })
}

// ---------------------------------------------------------------- all of it

await everyBackend(t, async (t, world) => {
  await t.test('how a turn answers', (t) => answers(t, world))
  await t.test('a busy session', (t) => busySessions(t, world))
  await t.test('Idempotency-Key', (t) => idempotency(t, world))
  await t.test('max_steps', (t) => maxSteps(t, world))
  await t.test('context edits', (t) => contextEdits(t, world))
  await t.test('cancelling', (t) => cancelling(t, world))
  await t.test('restarting', (t) => restarting(t, world))
  await t.test('approvals', (t) => approvals(t, world))
})
