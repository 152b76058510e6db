/** A turn that waits for a person: its calls approved, denied or given up (api.md section 4). */
import type { Test } from 'tap'
import { EMPTY, NONE } from '../patterns.ts'
import { gate } from '../waiting.ts'
import { type Json, ofType } from './client.ts'
import { type Path, type World, wordsOf } from './harness.ts'
import { textResult } from './tool-server.ts'

export async function approvals(t: Test, world: World) {
  const { api } = world
  const server = await world.tools('guarded', { wipe: {}, look: { annotations: { readOnlyHint: true } } })
  await api.patch(`/v1/connectors/${server.id}`, { require_approval: 'always' })

  const waiting = async (path: Path) => {
    const session = await world.session(path, { connectors: ['guarded'] })
    const stream = await api.turn(session, 'call guarded__wipe with {"disk": 1}\ncall guarded__look with {}')
    await stream.until('turn.awaiting_input')
    const turn = await api.get(`/v1/turns/${stream.turn}`)
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

  await t.test('a turn waits for the decisions on both calls, then goes on with them', async (t) => {
    const { session, stream, turn, asked, decide } = await waiting('anthropic key')
    t.equal(turn.state, 'awaiting_input')
    t.match(asked, [
      { name: 'guarded.wipe', arguments: { disk: 1 } },
      { name: 'guarded.look', arguments: EMPTY },
    ])
    t.equal(server.calls.length, 0)
    const { body: rendered } = await api.post(`/v1/sessions/${session}/render`, { input: 'x' })
    t.match(JSON.stringify(rendered).match(/was not run/g), { length: 2 }, 'neither call may have run')
    t.notMatch(JSON.stringify(rendered), 'may or may not')
    const context = [{ op: 'delete_at', index: -1 }]
    const { body: without } = await api.post(`/v1/sessions/${session}/render`, { context })
    t.notMatch(JSON.stringify(without), /was not run|earlier call/, 'calls that are edited away')
    const busy = await api.call('POST', `/v1/sessions/${session}/turns`, { input: 'x' })
    t.match(busy.body.error, {
      code: 'turn_in_progress',
      message: /busy: wait, or give on_busy/,
      details: { active_turn_id: turn.id },
    })
    const [wipe, look] = asked
    t.equal((await decide(wipe, { decision: 'deny', reason: 'not today' })).status, 200)
    t.equal((await api.get(`/v1/turns/${turn.id}`)).state, 'awaiting_input')
    const { body: decided } = await api.post(`/v1/sessions/${session}/render`, {})
    t.match(
      JSON.stringify(decided),
      /user denied.*not today.*turn was cancelled/,
      'a preview tells the denial',
    )
    const rows = (await api.get(`/v1/tool-executions?turn_id=${turn.id}`)).data
    const states = Object.fromEntries(rows.map(({ tool, state }: Json) => [tool, state]))
    t.strictSame(
      states,
      { 'guarded.wipe': 'decided', 'guarded.look': 'awaiting_approval' },
      'the ledger shows which call still waits for a decision',
    )
    t.match(await api.get(`/v1/tool-executions/${rows[1].id}`), { tool: 'guarded.wipe', state: 'decided' })
    t.equal((await decide(look, { decision: 'approve', arguments: { at: 'it' } })).status, 200)
    const frames = await stream.done
    t.equal(frames.at(-1)?.type, 'turn.completed')
    t.strictSame(server.calls, [{ tool: 'look', args: { at: 'it' } }])
    const results = (await world.messages(session)).find(({ role }) => role === 'tool')
    t.match(results.parts, [
      { outcome: 'denied', is_error: true, content: [{ text: /not today/ }] },
      { outcome: 'ok', content: [{}, { text: /changed by the person who approved it, to: {"at":"it"}\]$/ }] },
    ])
    const again = await decide(look, { decision: 'approve' })
    t.match([again.status, again.body.error.code], [409, 'not_awaiting'])
    t.match(again.body.error.details, { decision: 'approve' }, 'the refusal names the decision that holds')
    const { data } = await api.get(`/v1/tool-executions?turn_id=${turn.id}`)
    t.strictSame(Object.fromEntries(data.map(({ tool, approved_by }: Json) => [tool, approved_by])), {
      'guarded.wipe': null,
      'guarded.look': 'local',
    })
    const looked = data.find(({ tool }: Json) => tool === 'guarded.look')
    t.strictSame(looked.arguments, { at: 'it' }, 'the ledger has the arguments that the tool ran with')
  })

  await t.test('only a model sees argument names made for it, all others the server’s', async (t) => {
    const inputSchema = { type: 'object', properties: { $top: { type: 'integer' } } }
    const page = { number: 7, of: 9 }
    const run = () => ({ content: [], structuredContent: page })
    const odd = await world.tools('odd', { page: { inputSchema, run } })
    await api.patch(`/v1/connectors/${odd.id}`, { require_approval: 'always' })
    const session = await world.session('anthropic key', { connectors: ['odd'] })
    const { declarations } = await api.get(`/v1/sessions/${session}/tools?provider=anthropic`)
    const [, given = ''] = /"(_top_[0-9a-f]+)"/.exec(JSON.stringify(declarations)) ?? []
    for (const [edit, ran] of [
      [{}, 1],
      [{ arguments: { $top: 1 } }, 1],
      [{ arguments: { $top: 3 } }, 3],
    ] as const) {
      const stream = await api.turn(session, `call odd__page with {"${given}": 1}`)
      await stream.until('turn.awaiting_input')
      const [said, asked] = ['tool_call', 'approval.required'].map((type) => ofType(stream.frames, type)[0])
      t.match([said, asked], [{ arguments: { $top: 1 } }, { arguments: { $top: 1 } }])
      t.match((await world.messages(session)).at(-1).parts, [{ type: 'tool_call', arguments: { $top: 1 } }])
      const row = async () =>
        (await api.get(`/v1/tool-executions?turn_id=${asked.turn_id}`)).data[0].arguments
      t.strictSame(await row(), { $top: 1 }, 'the ledger has the server’s names while the call waits')
      const url = `/v1/turns/${asked.turn_id}/approvals/${asked.call_id}`
      t.match(await api.call('POST', url, { decision: 'approve', arguments: { $top: 'x' } }), {
        status: 400,
        body: { error: { param: 'arguments', message: /\$top must be integer/ } },
      })
      await api.post(url, { decision: 'approve', ...edit })
      t.equal((await stream.done).at(-1)?.type, 'turn.completed')
      t.strictSame([odd.calls.at(-1)?.args, await row()], [{ $top: ran }, { $top: ran }])
      const results = (await world.messages(session)).filter(({ role }) => role === 'tool')
      const told = JSON.stringify(results.at(-1).parts).includes('changed by the person who approved it')
      t.equal(told, ran === 3, 'the model is told of an edit')
      t.strictSame(results.at(-1).parts[0].structured, page, 'programs get what the tool answered')
    }
    const inputs = async (provider: string, model: string) => {
      const rendered = await api.post(`/v1/sessions/${session}/render`, { provider, model })
      return JSON.stringify(rendered.body).match(/[\w$]*top[\w]*\\*":1/g)
    }
    t.strictSame(await inputs('anthropic', 'claude-opus-4-5'), Array(3).fill(`${given}":1`))
    t.strictSame(await inputs('openai', 'gpt-5.5'), Array(3).fill('$top\\":1'))
    for (const [provider, model] of [
      ['anthropic', 'claude-opus-4-5'],
      ['openai', 'gpt-5.5'],
      ['gemini', 'gemini-3.8-flash'],
    ] as const) {
      const { url, body } = await api.post(`/v1/sessions/${session}/render`, { provider, model })
      t.match(url + JSON.stringify(body), model)
      t.match(JSON.stringify(body), /number.*who approved it, to: \{[\\"$]+top[\\"]+:3\}\]/, provider)
    }
  })

  await t.test('a caller who waits is answered once the turn waits; a cancel ends it', async (t) => {
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

  await t.test('a decision or a cancel counts also while other calls of the turn run', async (t) => {
    let held = gate()
    const slow = await world.tools('other', {
      quick: {},
      slow: { run: () => held.opened.then(() => textResult('slow')) },
    })
    for (const end of ['approve', 'cancel'] as const) {
      held = gate()
      const before = slow.count('slow')
      const session = await world.session('anthropic key', { connectors: ['guarded', 'other'] })
      const calls = ['guarded__look', 'other__quick', 'other__slow'].map((name) => `call ${name} with {}`)
      const stream = await api.turn(session, calls.join('\n'))
      const { data } = await stream.until('approval.required')
      const id = data.turn_id
      await slow.called('slow', before + 1)
      await stream.until('tool_execution.completed')
      const { body: rendered } = await api.post(`/v1/sessions/${session}/render`, {})
      t.match(
        JSON.stringify(rendered),
        /was not run.*quick ran.*may or may not have run/,
        'a preview tells what is known of each call by now',
      )
      if (end === 'approve') {
        const waited = api.get(`/v1/turns/${id}?wait=60`)
        await api.post(`/v1/turns/${id}/approvals/${data.call_id}`, { decision: 'approve' })
        held.open()
        const frames = await stream.done
        t.equal(frames.at(-1)?.type, 'turn.completed')
        t.match(ofType(frames, 'turn.awaiting_input'), NONE, 'no decision is missing')
        t.match(ofType(frames, 'tool_execution.completed'), { length: 3 })
        t.match(await waited, { state: 'completed' })
        const results = (await world.messages(session)).find(({ role }) => role === 'tool')
        t.match(results.parts, [{ outcome: 'ok' }, {}, { outcome: 'ok', content: [{ text: 'slow' }] }])
      } else {
        const { body } = await api.call('POST', `/v1/turns/${id}/cancel?wait=true`)
        t.equal(body.state, 'cancelled')
        t.match(body.messages.at(-1).parts, [{ outcome: 'cancelled' }, {}, { outcome: 'cancelled' }])
        held.open()
      }
    }
  })

  await t.test('a PATCH of the session while a turn waits holds from the next turn on', async (t) => {
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
    const before = world.sent('openai key').length
    const context = [{ op: 'delete_at', index: -1 }]
    const urgent = await api.turn(session, { input: 'never mind', on_busy: 'interrupt', context })
    t.equal((await urgent.done).at(-1)?.type, 'turn.completed')
    t.match(await api.get(`/v1/turns/${turn.id}`), { state: 'cancelled' })
    t.strictSame(
      (await world.messages(session)).map(({ role }) => role),
      ['user', 'assistant', 'tool', 'user', 'assistant'],
    )
    t.strictSame(
      wordsOf(world.sent('openai key')[before]?.body as Json),
      [turn.input[0].text, 'never mind'],
      'an edit that takes the open calls out takes their results along, which come later',
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
