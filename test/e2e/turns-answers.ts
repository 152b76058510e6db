/** Turns from the outside (api.md section 4): how they answer, what they leave behind, how they end. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { DAMAGED, PNG } from '../emulators/bytes.ts'
import type { Recorded } from '../emulators/http.ts'
import { type Answer, calls, type SceneItem, text } from '../emulators/scene.ts'
import { gate } from '../waiting.ts'
import { type Frame, type Json, ofType, outline, spoken } from './client.ts'
import { PATH_NAMES, PATHS, PROVIDERS, pathsIn, type World, wordsOf } from './harness.ts'
import { held, speaking } from './held-turns.ts'
import { textResult } from './tool-server.ts'

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

export async function answers(t: Test, world: World) {
  const { api } = world
  await world.tools('kit', {
    add: {
      run: ({ args, progress }) => {
        progress(1, 2, 'half way')
        return textResult(String(Number(args.a) + Number(args.b)))
      },
    },
    photograph: {
      run: () => ({ content: [{ type: 'image', mimeType: 'image/png', data: DAMAGED }] }),
    },
  })
  const ADD = 'think\nsay one moment\ncall kit__add with {"a": 1, "b": 2}'

  await t.test('/render sends nothing, not even to a provider that was never asked before', async (t) => {
    for (const path of PATH_NAMES) {
      await api.post(`/v1/sessions/${await world.session(path)}/render`, { input: 'hi' })
    }
    await sleep(100)
    for (const [vendor, { requests }] of Object.entries(world.emulators)) t.strictSame(requests, [], vendor)
  })

  for (const path of pathsIn(world)) {
    await t.test(`a turn is streamed by default: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      const stream = await api.turn(session, ADD)
      const { turn: id } = stream
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
          { index: 0, attempt: 1, finish_reason: 'tool_calls', tools_revision: 1, tool_count: 3 },
          { index: 1, attempt: 1, finish_reason: 'stop', tools_revision: 1, tool_count: 3 },
        ],
      })
    })
  }

  for (const path of pathsIn(world)) {
    await t.test(`an image of a tool that the provider cannot read is told in words: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      t.match(await world.run(session, 'call kit__photograph with {}'), { state: 'completed' })
      const damaged = { type: 'image', media_type: 'image/png', data: DAMAGED }
      const turns = `/v1/sessions/${session}/turns`
      const refused = await api.call('POST', turns, { input: [damaged], stream: false })
      t.match(
        refused.body.error,
        { code: 'upstream_rejected' },
        'a caller who gave such an image just now hears of it',
      )
      t.match(await world.run(session, 'hello'), { state: 'completed', output_text: 'hello' })
      const shownBy = ({ body }: Pick<Recorded, 'body'>) =>
        [DAMAGED, PNG].map((data) => JSON.stringify(body).includes(data))
      const sent = world.sent(path).slice(-2)
      t.strictSame(
        sent.map((request) => [request.status, ...shownBy(request)]),
        [
          [400, true, false],
          [200, false, false],
        ],
      )
      t.match(await world.run(session, { input: [{ ...damaged, data: PNG }] }), { state: 'completed' })
      const preview = await api.post(`/v1/sessions/${session}/render`, { input: 'hello' })
      t.match(preview.notes, ['messages: a medium of type image/png was refused'])
      t.match(await world.run(session, 'hello'), { state: 'completed', output_text: 'hello' })
      t.strictSame(
        world
          .sent(path)
          .slice(-2)
          .map((request) => [request.status, ...shownBy(request)]),
        [
          [200, false, true],
          [200, false, true],
        ],
        'later turns do without it, and show the images since',
      )
      t.strictSame(shownBy(preview), [false, true])
    })
  }

  await t.test('an image that was refused is left out where each turn puts it in by an edit', async (t) => {
    const path = 'openai key'
    const session = await world.session(path)
    const image = { type: 'image', media_type: 'image/png', data: DAMAGED }
    const message = { role: 'user', parts: [image] }
    const given = { input: 'hello', context: [{ op: 'insert_before', index: 0, message }] }
    for (const statuses of [[400, 200], [200]]) {
      const before = world.sent(path).length
      t.match(await world.run(session, given), { state: 'completed' })
      t.strictSame(
        world
          .sent(path)
          .slice(before)
          .map(({ status }) => status),
        statuses,
      )
    }
    const { body, notes } = await api.post(`/v1/sessions/${session}/render`, given)
    t.match(notes, ['messages: a medium of type image/png was refused'])
    t.notOk(JSON.stringify(body).includes(DAMAGED))
  })

  await t.test('a turn with stream: false is answered at its end', async (t) => {
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

  await t.test('a turn in the background gives 202 at once, and GET ?wait waits for its end', async (t) => {
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
      'the session’s own provider needs no model',
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

  for (const path of pathsIn(world)) {
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

  await t.test('a forced tool choice holds for a turn’s first request only', async (t) => {
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
      const force = (name: string) =>
        api.patch(`/v1/sessions/${session}`, { settings: { tool_choice: { name } } })
      await force('kit__add')
      const exposed = await api.post(`/v1/sessions/${session}/render`, { input: 'x' })
      t.match(JSON.stringify(exposed.body[field]), /kit__add/, 'the name that models see is accepted, too')
      await force('kit.gone')
      const { body, notes } = await api.post(`/v1/sessions/${session}/render`, { input: 'x' })
      t.equal(body[field], undefined)
      t.match(notes, [/tool_choice: .*kit\.gone/], 'a choice that is left out is named')
    }
  })

  await t.test(
    'a model that is not done goes on in the same turn, and any other model may go on after it',
    async (t) => {
      const session = await world.session('chatgpt login')
      const thought: SceneItem = { type: 'reasoning', parts: ['Hm.'] }
      const scenes: Answer[] = [
        { items: [thought, ...text('First,').items], goesOn: true },
        text('and then.'),
      ]
      world.script(() => scenes.shift())
      const turn = await world.run(session, 'tell me')
      world.script(null)
      t.match(turn, { finish_reason: 'stop', output_text: 'and then.', steps: [{}, {}] })
      t.match(world.sent('chatgpt login').at(-1)?.body, {
        input: [
          { role: 'user' },
          { type: 'reasoning' },
          { role: 'assistant', content: [{ text: 'First,' }] },
        ],
      })
      for (const path of PROVIDERS) {
        await api.patch(`/v1/sessions/${session}`, { ...PATHS[path], credential_id: world.credentials[path] })
        t.match(await world.run(session, 'say on'), { state: 'completed', output_text: 'on' }, path)
      }
    },
  )

  await t.test('a turn that cannot run is refused before it exists', async (t) => {
    const session = await world.session('openai key')
    const refusal = async (body: Json, path = `/v1/sessions/${session}/turns`) => {
      const { status, body: answer, headers } = await api.call('POST', path, body)
      t.equal(answer.error.request_id, headers.get('x-request-id'))
      return [status, answer.error.code, answer.error.param]
    }
    t.strictSame(await refusal({ input: '' }), [400, 'invalid_request', 'input'])
    t.strictSame(await refusal({}), [400, 'invalid_request', 'input'])
    t.strictSame(await refusal({ input: 'x', max_steps: 65 }), [400, 'invalid_request', 'max_steps'])
    for (const verb of ['turns', 'render']) {
      const path = `/v1/sessions/${session}/${verb}`
      t.strictSame(await refusal({ input: 'x', provider: 'gemini' }, path), [400, 'invalid_request', 'model'])
    }
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

// ---------------------------------------------------------------- max_steps

export async function maxSteps(t: Test, world: World) {
  const server = await world.tools('loop', { again: {} })
  for (const path of pathsIn(world, PROVIDERS)) {
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
