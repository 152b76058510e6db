/**
 * What becomes of turns whose process dies (kill -9) or is told to leave (SIGTERM): the next process finishes them
 * or says truthfully what is not known, and a tool that may not run twice never does.
 */
import t, { type Test } from 'tap'
import { gate } from '../waiting.ts'
import { type Json, ofType, typesOf } from './client.ts'
import { BACKEND, everyBackend, openWorld, type Path, type World } from './harness.ts'
import { untilCancelled } from './held-turns.ts'
import { type ToolServer, textResult } from './tool-server.ts'

async function start(world: World, session: string, input: string) {
  const stream = await world.api.turn(session, input)
  return { session, stream, turn: stream.turn }
}

/** What was under way when the process died, one session each. */
async function killed(
  t: Test,
  world: World,
  tools: ToolServer & { id: string },
  held: ReturnType<typeof gate>,
) {
  const { api } = world
  const open = (path: Path) => world.session(path, { connectors: ['work', 'guarded'] })
  world.script((_, { user, step }) =>
    user === 'speak' && step === 0
      ? {
          items: [
            { type: 'text', text: 'I was say' },
            { type: 'wait', until: held.opened },
            { type: 'text', text: 'ing' },
          ],
        }
      : null,
  )
  const speaking = await start(world, await open('anthropic key'), 'speak')
  const waiting = (
    await api.post(`/v1/sessions/${speaking.session}/turns`, {
      input: 'I wait',
      on_busy: 'enqueue',
      background: true,
    })
  ).id
  const once = await start(world, await open('openai key'), 'think\ncall work__once with {}')
  const again = await start(world, await open('gemini key'), 'think\ncall work__again with {}')
  const half = await start(
    world,
    await open('anthropic key'),
    'think\ncall work__quick with {}\ncall work__once with {}',
  )
  const approval = await start(world, await open('openai key'), 'call guarded__wipe with {}')
  await speaking.stream.until('content.delta')
  await half.stream.until('tool_execution.completed')
  await approval.stream.until('turn.awaiting_input')
  await Promise.all([tools.called('once', 2), tools.called('again')])

  await world.restart('SIGKILL')
  held.open()
  world.script(null)
  const ended = async ({ turn }: { turn: string }) => world.api.get(`/v1/turns/${turn}?wait=60`)
  const results = (turn: Json) => turn.messages.find(({ role }: Json) => role === 'tool')?.parts

  await t.test('a model call that was under way is made again, and the queue goes on', async (t) => {
    const turn = await ended(speaking)
    t.match(turn, { state: 'completed', output_text: 'speak' })
    t.strictSame(
      turn.messages.map(({ role }: Json) => role),
      ['user', 'assistant'],
      'nothing of the lost answer is kept',
    )
    t.match(
      turn.steps,
      [
        { index: 0, attempt: 1, model: String, finish_reason: null, ended_at: String, discarded: true },
        { index: 0, attempt: 2, finish_reason: 'stop', discarded: undefined },
      ],
      'the step that was lost is told of',
    )
    t.match(turn, { attempt: 2, usage: turn.steps[1].usage }, 'what it cost is not known')
    t.match(await world.api.get(`/v1/turns/${waiting}?wait=60`), {
      state: 'completed',
      output_text: 'I wait',
    })
  })

  await t.test('a tool that may not run twice does not run again, and the model is told', async (t) => {
    const turn = await ended(once)
    t.equal(turn.state, 'completed')
    t.match(results(turn), [
      { outcome: 'outcome_unknown', is_error: true, content: [{ text: /may or may not/ }] },
    ])
    t.match(turn.output_text, /may or may not/)
    const { data } = await world.api.get(`/v1/tool-executions?turn_id=${once.turn}`)
    t.match(data, [{ outcome: 'outcome_unknown', ended_at: String }])
  })

  await t.test('a tool that may run twice runs again', async (t) => {
    const turn = await ended(again)
    t.match(turn, { state: 'completed', output_text: 'The tools answered: at last' })
    t.match(results(turn), [{ outcome: 'ok' }])
    t.equal(tools.count('again'), 2)
  })

  await t.test('a result that was there is used, and its tool does not run again', async (t) => {
    const turn = await ended(half)
    t.match(results(turn), [
      { outcome: 'ok', content: [{ text: 'quick ran' }] },
      { outcome: 'outcome_unknown' },
    ])
    t.equal(tools.count('quick'), 1)
    t.equal(tools.count('once'), 2, 'once in each of two turns')
  })

  await t.test('a turn that waited for a person still waits, and goes on once it is approved', async (t) => {
    const turn = await world.api.get(`/v1/turns/${approval.turn}`)
    t.equal(turn.state, 'awaiting_input')
    const call = turn.messages.at(-1).parts.find(({ type }: Json) => type === 'tool_call')
    await world.api.post(`/v1/turns/${turn.id}/approvals/${call.call_id}`, { decision: 'approve' })
    t.match(await ended(approval), { state: 'completed', output_text: 'The tools answered: wiped' })
  })

  await t.test('the events give the messages that are stored', async (t) => {
    for (const { turn, stream } of [speaking, once, again, half]) {
      const last = stream.frames.at(-1)
      const frames = await (
        await world.api.follow(`/v1/turns/${turn}/events`, { 'last-event-id': last?.id ?? '' })
      ).done
      const told = new Map<string, Json>()
      for (const { data } of [...stream.frames, ...frames]) {
        if (data.type === 'gap') for (const message of data.snapshot.messages) told.set(message.id, message)
        if (data.type === 'message') told.set(data.message.id, data.message)
      }
      const { messages } = await world.api.get(`/v1/turns/${turn}`)
      const kept = messages.filter(({ role }: Json) => role !== 'user')
      t.strictSame(
        kept.map(({ id }: Json) => told.get(id)),
        kept,
      )
      const types = typesOf([...stream.frames, ...frames])
      if (world.backend === 'embedded') {
        t.equal(types.filter((type) => type === 'gap').length, 1)
        continue
      }
      t.equal(types.filter((type) => type === 'turn.completed').length, 1)
      t.equal(types.filter((type) => type === 'turn.created').length, 1)
      t.notOk(types.includes('gap'), 'the bus kept the events')
    }
    if (world.backend === 'servers') {
      const whole = await (await world.api.follow(`/v1/turns/${speaking.turn}/events`)).done
      t.match(ofType(whole, 'step.discarded'), [{ reason: 'owner_lost' }])
    }
  })
}

/** The gateway refuses new work, brings the step that runs to its end, and leaves the rest to the next process. */
async function toldToLeave(t: Test, world: World, tools: ToolServer, held: ReturnType<typeof gate>) {
  const { api } = world
  const session = await world.session('gemini key', { connectors: ['work'] })
  const other = await world.session('gemini key')
  world.script((_, { user, step }) =>
    user === 'speak' && step === 0
      ? {
          items: [
            { type: 'text', text: 'One moment. ' },
            { type: 'wait', until: held.opened },
            { type: 'call', name: 'work__quick', arguments: {} },
          ],
        }
      : null,
  )
  const quick = tools.count('quick')
  const { turn, stream } = await start(world, session, 'speak')
  await stream.until('content.delta')
  const back = world.restart('SIGTERM')
  let ready = await api.call('GET', '/readyz')
  while (ready.status === 200) ready = await api.call('GET', '/readyz')
  t.equal(ready.status, 503)
  t.equal((await api.call('GET', '/healthz')).status, 200)
  const refused = await api.call('POST', `/v1/sessions/${other}/turns`, { input: 'me too' })
  t.match([refused.status, refused.body.error.code], [503, 'draining'])
  t.ok(Number(refused.headers.get('retry-after')) > 0)
  t.equal(stream.frames.at(-1)?.type, 'content.delta', 'the turn that runs is left alone')
  held.open()
  await back
  await stream.done
  const said = typesOf(stream.frames)
  t.equal(said.filter((type) => type === 'step.completed').length, 1, 'the turn was left at a step boundary')
  t.notOk(said.includes('turn.failed'), 'leaving is no failure')
  const done = await world.api.get(`/v1/turns/${turn}?wait=60`)
  t.match(done, { state: 'completed', output_text: 'The tools answered: quick ran' })
  t.match(done.steps, [
    { index: 0, finish_reason: 'tool_calls' },
    { index: 1, finish_reason: 'stop' },
  ])
  t.equal(done.steps.length, 2, 'the step that had begun was finished where it began')
  t.equal(tools.count('quick') - quick, 1)
  world.script(null)
  t.match(await world.run(other, 'now?'), { state: 'completed', output_text: 'now?' })
}

await everyBackend(
  t,
  async (t, world) => {
    const tool = gate()
    const work = await world.tools('work', {
      quick: {},
      once: {
        run: untilCancelled,
      },
      again: {
        annotations: { readOnlyHint: true },
        async run() {
          if (work.count('again') === 1) await tool.opened
          return textResult('at last')
        },
      },
    })
    await world.api.patch(`/v1/connectors/${work.id}`, { trust_annotations: true })
    const guarded = await world.tools('guarded', { wipe: { run: () => textResult('wiped') } })
    await world.api.patch(`/v1/connectors/${guarded.id}`, { require_approval: 'always' })
    await t.test('killed', async (t) => {
      await killed(t, world, work, gate())
      tool.open()
    })
    await t.test('told to leave', (t) => toldToLeave(t, world, work, gate()))
  },
  { process: true, env: { BATON_LEASE_SECONDS: '2', BATON_DRAIN_SECONDS: '30' } },
)

t.test('calls that are under way at the end of a drain', async (t) => {
  const world = await openWorld(t, BACKEND)
  await t.test('a call that a drain cuts short is for the next process to judge', async (t) => {
    const bank = await world.tools('bank', {
      charge: {
        run: untilCancelled,
      },
    })
    const { turn } = await start(
      world,
      await world.session('openai key', { connectors: ['bank'] }),
      'call bank__charge with {}',
    )
    await bank.called('charge')
    // This drain gives turns no time to reach a step boundary.
    await world.restart()
    const { state, messages } = await world.api.get(`/v1/turns/${turn}?wait=60`)
    t.equal(state, 'completed')
    const results = messages.find(({ role }: Json) => role === 'tool')?.parts
    t.match(results, [{ outcome: 'outcome_unknown' }])
    const { data } = await world.api.get(`/v1/tool-executions?turn_id=${turn}`)
    t.match(data, [{ outcome: 'outcome_unknown', ended_at: String }], 'the ledger says so, too')
    t.equal(bank.count('charge'), 1)
  })

  await t.test('a call that was approved as edited runs again as edited', async (t) => {
    const press = await world.tools('press', {
      print: {
        annotations: { idempotentHint: true },
        run: (call) => (press.count('print') > 1 ? textResult('printed') : untilCancelled(call)),
      },
    })
    await world.api.patch(`/v1/connectors/${press.id}`, {
      require_approval: 'always',
      trust_annotations: true,
    })
    const session = await world.session('gemini key', { connectors: ['press'] })
    const { id, messages } = await world.run(session, 'call press__print with {"copies": 1000}')
    const call = messages.at(-1).parts.find(({ type }: Json) => type === 'tool_call')
    const answer = { decision: 'approve', arguments: { copies: 1 } }
    await world.api.post(`/v1/turns/${id}/approvals/${call.call_id}`, answer)
    await press.called('print')
    await world.restart()
    t.match(await world.api.get(`/v1/turns/${id}?wait=60`), {
      state: 'completed',
      output_text: 'The tools answered: printed',
    })
    t.strictSame(
      press.calls.map(({ args }) => args),
      [{ copies: 1 }, { copies: 1 }],
    )
  })
})
