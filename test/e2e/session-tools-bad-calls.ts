/** Bad calls of a model, and tools that fail: the model is told, and the turn ends in bounded time. */
import type { Test } from 'tap'
import { type Answer, calls, text } from '../emulators/scene.ts'
import { EMPTY, NONE } from '../patterns.ts'
import { type Json, ofType, typesOf } from './client.ts'
import { type Path, PROVIDERS, pathsIn, type World } from './harness.ts'
import { ECHO } from './tool-server.ts'

/** Gemini itself reports a broken call; elsewhere the call is in the answer, and gets a result. */
const GEMINI = ['gemini key', 'code assist login'] as const
const OTHERS = ['chatgpt login', 'anthropic key'] as const

export async function badCalls(t: Test, world: World) {
  const { api } = world
  const kit = await world.tools('kit', { echo: ECHO })
  for (const path of pathsIn(world, OTHERS)) {
    await t.test(`a call of a missing tool or with bad arguments gets an error: ${path}`, async (t) => {
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
        { name: 'kit.echo', arguments: EMPTY },
        { name: 'kit.echo', arguments: { text: 7 } },
        { name: 'kit.echo', arguments: { text: 'good' } },
      ])
      const [said, results] = ofType(frames, 'message').map(({ message }) => message)
      const broken = said.parts.filter(({ type }: Json) => type === 'tool_call')[1]
      t.match(broken, { arguments: EMPTY, arguments_text: '{"text": "unfini' })
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

  for (const path of pathsIn(world, PROVIDERS)) {
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
    'a tool whose definition changed a moment ago is not called where its connector blocks changed tools',
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

  for (const path of pathsIn(world, OTHERS)) {
    await t.test(`${path}: a tool name that the model made up is cut to fit into the history`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      world.script((_, { step }) => (step > 0 ? null : calls([`\0${'x'.repeat(600)}`, {}])))
      const frames = await (await api.turn(session, 'go')).done
      t.match(ofType(frames, 'tool_call'), [{ name: `_${'x'.repeat(511)}` }])
      t.equal(typesOf(frames).at(-1), 'turn.completed')
      world.script(null)
      t.match(await world.run(session, 'go on'), { output_text: 'go on' })
    })
  }

  for (const path of pathsIn(world, GEMINI)) {
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
          'the bad call leaves no trace in the history',
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

  await t.test('a silent answer is asked for once more if its vendor means nothing by that', async (t) => {
    const nothing: Answer = { items: [] }
    const thought: Answer = { items: [{ type: 'reasoning', parts: ['Hm.'] }] }
    const play = async (path: Path, ...scenes: Answer[]) => {
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
      const answer = await play('gemini key', first, text('Here.'))
      t.match(answer, { ...completed, requests: 2, discarded: 1, said: 'Here.' })
    }
    t.match(
      await play('gemini key'),
      { ...completed, requests: 2, discarded: 1, said: '' },
      'an empty answer is asked for once more only',
    )
    const called = await play('gemini key', calls(['kit__echo', { text: 'a' }]))
    t.match(called, { ...completed, requests: 2, discarded: 0 }, 'after results it may be meant')
    const working = await play('gemini key', calls(['kit__echo', { text: 'a' }]), thought, text('Here.'))
    t.match(working, { ...completed, requests: 3, discarded: 1, said: 'Here.' }, 'and thoughts are not')
    const open: Answer = { ...thought, goesOn: true }
    for (const [path, first] of [
      ['anthropic key', thought],
      ['anthropic bearer', thought],
      ['openai key', thought],
      ['chatgpt login', open],
    ] as const) {
      const answer = await play(path, first, text('Here.'))
      t.match(answer, { ...completed, requests: 2, discarded: 1, said: 'Here.' }, path)
      t.match(
        JSON.stringify(world.sent(path).at(-1)?.body),
        /no words and no tool call\. Please continue\./,
        'the model is told so',
      )
      const silent = await play(path, first, first)
      t.match(silent, { ...completed, requests: 2, discarded: 1, said: '' }, `${path}, once more only`)
    }
    for (const path of OTHERS) {
      const answer = await play(path, nothing, text('Here.'))
      t.match(
        answer,
        { ...completed, requests: 1, discarded: 0, said: '' },
        `${path} may mean its empty answer`,
      )
    }
    world.script(null)
  })

  await t.test('a model that calls a missing tool for ever is stopped by max_steps', async (t) => {
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
    // A server of its own with a short timeout: on a busy machine tools that do answer need longer.
    const mute = await world.tools('mute', {
      late: { run: () => new Promise(() => {}) },
      safe: { annotations: { readOnlyHint: true }, run: () => new Promise(() => {}) },
    })
    await api.patch(`/v1/connectors/${mute.id}`, {
      default_tool_config: { max_instances: 5, timeout: 'PT0.3S' },
      trust_annotations: true,
    })
    const session = await world.session('openai key', { connectors: ['odd', 'mute'] })
    const tools = ['odd__fails', 'odd__nonsense', 'odd__empty', 'mute__late', 'mute__safe']
    const turn = await world.run(session, tools.map((name) => `call ${name} with {}`).join('\n'))
    t.equal(turn.state, 'completed')
    t.match(turn.messages[2].parts, [
      { outcome: 'error', content: [{ text: /out of paper/ }] },
      { outcome: 'ok', content: [{ text: 'no list' }] },
      { outcome: 'ok', content: NONE },
      { outcome: 'outcome_unknown', is_error: true, content: [{ text: /not known/ }] },
      { outcome: 'error', is_error: true, content: [{ text: /safe to call again/ }] },
    ])
  })
}
