/** A turn under way is steered from the outside (api.md section 4): cancelled, restarted, its calls approved or denied. */
import t, { type Test } from 'tap'
import { gate } from '../emulators/http.ts'
import { text } from '../emulators/scene.ts'
import { type Json, ofType, outline, spoken } from './client.ts'
import { everyBackend, PATH_NAMES, type Path, type World } from './harness.ts'
import { held, until } from './held-turns.ts'
import { textResult } from './tool-server.ts'

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
    const after = await api.call('POST', `/v1/turns/${id}/restart`)
    t.match([after.status, after.body.error.code], [409, 'not_restartable'])
    t.equal((await api.get(`/v1/turns/${id}`)).attempt, 9)
    world.script(null)
  })
}

// ---------------------------------------------------------------- approvals

async function approvals(t: Test, world: World) {
  const { api } = world
  const server = await world.tools('guarded', { wipe: {}, look: { annotations: { readOnlyHint: true } } })
  await api.patch(`/v1/connectors/${server.id}`, { require_approval: 'always' })

  const waiting = async (path: Path) => {
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
    t.match(again.body.error.details, { decision: 'approve' }, 'what holds, for whoever lost the answer')
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
  await t.test('cancelling', (t) => cancelling(t, world))
  await t.test('restarting', (t) => restarting(t, world))
  await t.test('approvals', (t) => approvals(t, world))
})
