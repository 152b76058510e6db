/** A turn under way is steered from the outside (api.md section 4): cancelled and restarted. */
import type { Test } from 'tap'
import { calls, text } from '../emulators/scene.ts'
import { gate } from '../waiting.ts'
import { ANSWERED, BEGUN, type Json, ofType, outline, spoken } from './client.ts'
import { PROVIDERS, pathsIn, type World } from './harness.ts'
import { held, isSpeaking, speaksThen, untilCancelled } from './held-turns.ts'

// ---------------------------------------------------------------- cancelling

export async function cancelling(t: Test, world: World) {
  const { api } = world
  const server = await world.tools('work', {
    quick: {},
    nap: { run: untilCancelled },
    deaf: { run: () => new Promise(() => {}) },
  })

  for (const path of pathsIn(world, PROVIDERS)) {
    await t.test(
      `a cancel while the model speaks keeps its text, and neither its reasoning nor its calls: ${path}`,
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
        await stream.until(({ type, data }) => type === 'content.delta' && data.text.endsWith('see. '))
        const { turn } = stream
        const { status, body } = await api.call('POST', `/v1/turns/${turn}/cancel?wait=true`)
        t.equal(status, 200)
        t.match(body, { state: 'cancelled', finish_reason: null, error: null })
        const frames = await stream.done
        t.strictSame(outline(frames).slice(-2), ['message', 'turn.cancelled'])
        const streamed = ofType(frames, 'content.delta').map(({ text }) => text)
        t.equal(streamed.join(''), 'Let me see. ', 'no word is streamed twice')
        t.equal(ofType(frames, 'message').length, 1)
        const [kept] = body.messages.slice(1)
        t.match(kept, { role: 'assistant', incomplete: true })
        t.strictSame(kept.parts, [{ type: 'text', text: 'Let me see. ' }])
        t.equal(await world.sent(path).at(-1)?.closed, 'aborted', 'the vendor’s stream is closed')
        t.equal(server.count('quick'), 0)
        open()
        world.script(null)
        const again = await api.call('POST', `/v1/turns/${turn}/cancel`)
        t.match([again.status, again.body.state], [202, 'cancelled'], 'cancelling again changes nothing')
        t.match(await world.run(session, 'go on'), { output_text: 'go on' })
      },
    )
  }

  await t.test('a cancel before the first word keeps nothing of the answer', async (t) => {
    const session = await world.session('openai key')
    const { opened, open } = gate()
    world.script(async () => {
      await opened
      return text('late')
    })
    const asked = world.emulators.openai.requests.length
    const stream = await api.turn(session, 'go')
    await world.emulators.openai.request(asked)
    const { status, body } = await api.call('POST', `/v1/turns/${stream.turn}/cancel`)
    t.equal(status, 202)
    t.match(body, { id: stream.turn })
    t.equal((await stream.done).at(-1)?.type, 'turn.cancelled')
    t.strictSame(spoken(await world.messages(session)), [['user', 'go']])
    open()
    world.script(null)
  })

  await t.test('a cancel during tools keeps finished results and settles the running calls', async (t) => {
    const session = await world.session('gemini key', { connectors: ['work'] })
    const stream = await api.turn(session, 'call work__quick with {}\ncall work__nap with {}')
    await stream.until('tool_execution.completed')
    await server.called('nap')
    const { turn } = stream
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

  await t.test('a call whose tool does not hear of the cancel is settled without the tool', async (t) => {
    const session = await world.session('openai key', { connectors: ['work'] })
    const stream = await api.turn(session, 'call work__deaf with {}')
    await server.called('deaf')
    const { body } = await api.call('POST', `/v1/turns/${stream.turn}/cancel?wait=true`)
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

// ---------------------------------------------------------------- restarting

export async function restarting(t: Test, world: World) {
  const { api } = world
  await t.test('a restart repeats the model call in flight, and discards what it streamed', async (t) => {
    const session = await world.session('anthropic key')
    const { open } = speaksThen(world, text('fresh'))
    const stream = await api.turn(session, 'go')
    await stream.until('content.delta')
    const { turn: id } = stream
    const { status, body } = await api.call('POST', `/v1/turns/${id}/restart`)
    t.equal(status, 202)
    t.equal(body.id, id)
    const frames = await stream.done
    t.strictSame(outline(frames), [
      ...BEGUN,
      'content.delta',
      'step.discarded',
      'turn.restarted',
      'step.started',
      ...ANSWERED,
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

  await t.test('a turn is restarted eight times at most, and not while tools run', async (t) => {
    const server = await world.tools('busy', { nap: { run: untilCancelled } })
    const session = await world.session('openai key', { connectors: ['busy'] })
    const { opened, open } = gate()
    const items = [...held(opened).items, ...calls(['busy__nap', {}]).items]
    world.script((_, { step }) => (step > 0 ? null : { items }))
    const stream = await api.turn(session, 'go')
    const { turn: id } = stream
    for (let i = 1; i <= 8; i++) {
      await isSpeaking(stream, i)
      t.equal((await api.call('POST', `/v1/turns/${id}/restart`)).status, 202)
    }
    await isSpeaking(stream, 9)
    const ninth = await api.call('POST', `/v1/turns/${id}/restart`)
    t.match([ninth.status, ninth.body.error.code], [409, 'restart_limit'])
    open()
    await server.called('nap')
    const during = await api.call('POST', `/v1/turns/${id}/restart`)
    t.equal(during.status, 409)
    await api.call('POST', `/v1/turns/${id}/cancel?wait=true`)
    const after = await api.call('POST', `/v1/turns/${id}/restart`)
    t.match([after.status, after.body.error.code], [409, 'not_restartable'])
    t.equal((await api.get(`/v1/turns/${id}`)).attempt, 9)
    world.script(null)
  })
}
