/**
 * Engines side by side: which events a turn sends and how it ends, whatever is asked of it while it runs. The parts, the
 * files `engine-….ts`, come first, all on one store.
 */
import { getEventListeners } from 'node:events'
import t from 'tap'
import type { BusEvent } from '../../src/bus/bus.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import type { ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { ModelCall } from '../../src/llm.ts'
import { createLog } from '../../src/log.ts'
import type { Settlement, Store } from '../../src/store/store.ts'
import { createMetrics } from '../../src/telemetry.ts'
import type { ExecutorCall } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { collect } from '../memory.ts'
import { eventually, gate } from '../waiting.ts'
import {
  asked,
  CALLER,
  calling,
  follow,
  NEVER,
  pieces,
  type Seen,
  session,
  settled,
  store,
  toolsThat,
  withTurns,
  world,
} from './engines.ts'
import './engine-cancel.ts'
import './engine-changed-tools.ts'
import './engine-handed-over.ts'
import './engine-lost-calls.ts'
import './engine-opening.ts'
import './engine-restart.ts'
import './engine-step.ts'
import './engine-unreadable.ts'
import './engine-waiting.ts'

t.test('a queued turn ends once it is cancelled, and begins once the turn before it ends', async (t) => {
  const { bus, say, replica } = world(t, { leaseSeconds: 600 })
  const one = replica()
  const { id } = await session()
  await one.start(CALLER, id, asked())
  const { turn: second } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  const { turn: third } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  const types = follow(t, bus, id, third.id)
  await one.cancel(CALLER, third.id, null)
  await eventually(() => types.includes('turn.cancelled'))
  say()
  const over = await one.wait(CALLER, second.id, 30, NEVER)
  t.match(over, { state: 'completed' })
})

t.test('an interrupting turn begins as soon as the running turn has been cancelled', async (t) => {
  const { bus, replica, begin } = world(t, { leaseSeconds: 600 })
  const one = replica()
  const { session: opened, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  const { turn } = await one.start(CALLER, opened.id, asked({ on_busy: 'interrupt' }))
  const next = follow(t, bus, opened.id, turn.id)
  await eventually(() => next.includes('step.started'))
  t.equal(types.at(-1), 'turn.cancelled')
})

t.test('a turn that begins before the last turn has let go is the session’s running turn', async (t) => {
  const { bus, say, replica } = world(t)
  const { opened: spoken, open: speak } = gate()
  const { opened: held, open: letGo } = gate()
  let first = ''
  const append = async (id: string, events: BusEvent[]) => {
    if (events.some(({ type, turn_id }) => type === 'turn.completed' && turn_id === first)) await spoken
    return bus.append(id, events)
  }
  const commit: Store['turns']['commit'] = async (fence, change) => {
    if (change.turn_id !== first) await held
    return store.turns.commit(fence, change)
  }
  const one = replica({ bus: { ...bus, append }, store: withTurns({ commit }) })
  const { id } = await session()
  first = (await one.start(CALLER, id, asked())).turn.id
  say()
  await eventually(async () => (await store.turns.get(CALLER, first))?.ended_at !== null)
  const { turn } = await one.start(CALLER, id, asked())
  const types = follow(t, bus, id, first)
  speak()
  await eventually(() => types.includes('turn.completed'))
  await new Promise(setImmediate)
  const running = follow(t, bus, id, turn.id)
  await one.sayToolsChanged(id, { tools_revision: 1, added: [], removed: [], changed: [] }, null)
  await eventually(() => running.includes('tools.changed'))
  t.notOk(types.includes('tools.changed'), 'an event of the session goes to the turn that runs')
  letGo()
})

t.test(
  'a change of tools is said in the running turn’s stream on any replica, and told to all replicas',
  async (t) => {
    const { bus, say, replica, begin } = world(t)
    const { tools } = pieces(Promise.resolve(), [])
    const noted: [string, number][] = []
    const noteAnnounced = (...given: [string, number]) => void noted.push(given)
    const [owner, other] = [replica({ tools: { ...tools, noteAnnounced } }), replica()]
    const { session: opened, turn, types } = await begin(owner)
    await eventually(() => types.includes('step.started'))
    const change = (tools_revision: number) =>
      other.sayToolsChanged(opened.id, { tools_revision, added: [], removed: [], changed: [] }, turn.id)
    await change(7)
    await eventually(() => types.includes('tools.changed') && noted.length === 1)
    t.strictSame(noted, [[opened.id, 7]])
    say()
    await eventually(() => types.includes('turn.completed'))
    await change(8)
    for await (const item of bus.read(opened.id, { after: 'start', signal: NEVER })) {
      const last = 'events' in item ? item.events.at(-1) : undefined
      t.match(
        last,
        { type: 'tools.changed', turn_id: null },
        'the event is the session’s when the turn has ended',
      )
      t.equal(JSON.parse(last?.data ?? '').turn_id, null)
      break
    }
  },
)

t.test('the first 128 calls of one step are run, and the others get an error that says so', async (t) => {
  const ids = Array.from({ length: 130 }, (_, i) => `call_${i}`)
  const { say, replica } = world(t, {}, calling(...ids))
  const ran: string[] = []
  const { policy, executor } = toolsThat((call) => {
    ran.push(call)
    return null
  })
  const settleUnrun = async ({ call_id, name }: ToolCallPart, id: string, outcome: 'error', text: string) => {
    const ended = { outcome, is_error: true }
    const result: ToolResultPart = {
      type: 'tool_result',
      call_id,
      name,
      content: [{ type: 'text', text }],
      ...ended,
    }
    const left = { error: text, duration_ms: 0, bytes: 0, output: '', structured: false }
    return { id, ...ended, ...left, result }
  }
  const seen = { policy, executor: { ...executor, settleUnrun } }
  const one = replica(seen as unknown as Pick<EngineDeps, Seen>)
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { finish_reason: 'max_steps' })
  t.equal(ran.length, 128)
  const [, , answer] = await store.messages.after(id, 0)
  t.equal(answer?.parts.length, 130, 'every call has its result')
  t.match(answer?.parts.slice(127), [
    { outcome: 'ok' },
    { call_id: 'call_128', outcome: 'error', content: [{ text: /beyond the 128/ }] },
    { call_id: 'call_129', outcome: 'error' },
  ])
  const rows = await store.executions.ofTurn(turn.id)
  t.equal(rows.filter(({ state }) => state === 'settled').length, 130, 'every call is settled in the ledger')
})

t.test('media are passed on up to 32 MiB in a step, and further ones in words', async (t) => {
  const { say, replica } = world(t, {}, calling('call_0', 'call_1', 'call_2'))
  const { policy, executor } = toolsThat(() => null)
  const run = async ({ call, exec_id }: ExecutorCall): Promise<Settlement> => {
    const data = 'A'.repeat((call.call_id === 'call_2' ? 15 : 17) << 20)
    const done = settled(call, exec_id, 'ok')
    const content = [{ type: 'image', media_type: 'image/png', data }] as const
    return { ...done, result: { ...done.result, content: [...content], structured: { n: 1 } } }
  }
  const seen = { policy, executor: { ...executor, run } }
  const one = replica(seen as unknown as Pick<EngineDeps, Seen>)
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 60, NEVER), { finish_reason: 'max_steps' })
  const results = (await store.messages.after(id, 2)).flatMap(({ parts }) => parts)
  const shown = results.map((part) => part.type === 'tool_result' && part.content[0])
  t.strictSame(
    shown.map((part) => part && (part.type === 'text' ? part.text : part.type)),
    [
      'image',
      '[image, image/png: the results of this step hold as many bytes of media already as may be passed on at once]',
      'image',
    ],
  )
  for (const part of results) t.match(part, { structured: { n: 1 } })
})

t.test('no commit has the media of a result twice, or again while a bus refuses its event', async (t) => {
  let made = 0
  const llm = {
    ...pieces(Promise.resolve(), []).llm,
    async stream({ beforeSend }: ModelCall, take: (event: ModelEvent) => void) {
      beforeSend()
      const part = { type: 'tool_call', call_id: `call_${made++}`, name: 'a.b', arguments: {} } as const
      take({ type: 'part', index: 0, part })
      take({ type: 'finish', reason: 'tool_calls' })
    },
  }
  const { policy, executor } = toolsThat(() => null)
  const run = async ({ call, exec_id }: ExecutorCall): Promise<Settlement> => {
    const done = settled(call, exec_id, 'ok')
    const image = { type: 'image', media_type: 'image/png', data: 'A'.repeat(1 << 20) } as const
    return { ...done, result: { ...done.result, content: [{ type: 'text', text: 'a chart' }, image] } }
  }
  const told: string[] = []
  const commit: Store['turns']['commit'] = (fence, change) => {
    told.push(JSON.stringify(change.announce))
    return store.turns.commit(fence, change)
  }
  const { bus, replica } = world(t)
  const append = async () => {
    throw new BatonError('unavailable', 'away')
  }
  const seen = { policy, executor: { ...executor, run }, llm, store: withTurns({ commit }) }
  const one = replica({ ...(seen as unknown as Pick<EngineDeps, Seen>), bus: { ...bus, append } })
  const { turn } = await one.start(CALLER, (await session()).id, asked({ max_steps: 4 }))
  t.match(await one.wait(CALLER, turn.id, 60, NEVER), { finish_reason: 'max_steps' })
  t.ok(Math.max(...told.map(({ length }) => length)) < 20_000, 'they are in the messages that are committed')
  t.match(told.at(-1), /a chart.*\[image, image\/png: left to the message/, 'for who finds no such message')
})

t.test('the log line of a failed turn names the code of its error and its credential', async (t) => {
  const { tools } = pieces(Promise.resolve(), [])
  const lines: { msg: string; state?: string; code?: string }[] = []
  const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  let isBroken = true
  const overlay = () => {
    if (isBroken) throw new BatonError('context_too_long', 'It does not fit.')
    return { tools: [], byExposed: new Map(), revision: 0 }
  }
  const { say, replica } = world(t)
  const one = replica({ log, tools: { ...tools, overlay } as unknown as EngineDeps['tools'] })
  say()
  const { id } = await session()
  for (const state of ['failed', 'completed']) {
    const { turn } = await one.start(CALLER, id, asked())
    t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state })
    isBroken = false
  }
  await eventually(() => lines.filter(({ msg }) => msg === 'turn ended').length === 2)
  const ends = lines.filter(({ msg }) => msg === 'turn ended')
  t.match(ends, [
    { state: 'failed', code: 'context_too_long', credential_id: 'cred_1' },
    { state: 'completed', code: undefined, credential_id: undefined },
  ])
})

t.test('the log line of a turn that ends within a step counts the step', async (t) => {
  const lines: { msg: string; steps?: number }[] = []
  const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  const { replica, begin } = world(t)
  const one = replica({ log })
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  const over = await one.cancel(CALLER, turn.id, NEVER)
  const ended = await eventually(() => lines.find(({ msg }) => msg === 'turn ended'))
  t.match([ended.steps, over.steps.length], [1, 1])
})

t.test('a store that is away right after a turn costs one warning, and the next turn is run', async (t) => {
  const lines: { level: number; msg: string }[] = []
  const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  let isAway = true
  const startQueued: Store['turns']['startQueued'] = (...given) => {
    if (!isAway) return store.turns.startQueued(...given)
    isAway = false
    return Promise.reject(new BatonError('unavailable', 'away'))
  }
  const { say, replica } = world(t, { leaseSeconds: 1 })
  const one = replica({ log, store: withTurns({ startQueued }) })
  const { id } = await session()
  await one.start(CALLER, id, asked())
  const { turn } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(
    lines.filter(({ level }) => level > 30).map(({ level, msg }) => [level, msg]),
    [[40, 'what comes after a turn is left to the scan']],
  )
})

t.test('calls whose executor throws are given up, and their events name the step of the calls', async (t) => {
  for (const waits of [false, true]) {
    const { bus, say, replica } = world(t, {}, calling('call_1'))
    const tool = { canonical_name: 'a.b', enabled: true }
    const registry = { session_id: '', revision: 0, updated_at: '', tools: [tool] }
    const overlay = { tools: [], byExposed: new Map([['a__b', { tool, rename: null }]]), revision: 0 }
    const executor = {
      run: () => Promise.reject(new Error('it throws after all')),
      async settleUnrun({ call_id, name }: ToolCallPart, id: string): Promise<Settlement> {
        const ended = { outcome: 'outcome_unknown', is_error: true } as const
        const result: ToolResultPart = { type: 'tool_result', call_id, name, content: [], ...ended }
        const left = { error: null, duration_ms: 0, bytes: 0, output: '', structured: false }
        return { id, ...ended, ...left, result }
      },
    }
    const policy = { needsApproval: () => waits, isRepeatable: () => false, limits: () => ({ timeoutMs: 0 }) }
    const { tools } = pieces(Promise.resolve(), [])
    const seen = {
      policy,
      executor,
      tools: {
        ...tools,
        current: async () => registry,
        newest: async () => registry,
        overlay: () => overlay,
      },
    }
    const one = replica(seen as unknown as Pick<EngineDeps, Seen>)
    const { id } = await session()
    const { turn } = await one.start(CALLER, id, asked())
    say()
    if (waits) {
      await one.wait(CALLER, turn.id, 30, NEVER)
      await one.decide(CALLER, turn.id, 'call_1', { decision: 'approve' })
    }
    const over = await one.wait(CALLER, turn.id, 30, NEVER)
    t.match(over, { state: 'failed', steps: [{ index: 0, finish_reason: 'tool_calls' }] })
    const said: { type: string; step: number | null; message?: { role: string } }[] = []
    for await (const item of bus.read(id, {
      turn: turn.id,
      after: 'start',
      signal: NEVER,
    }))
      if ('events' in item) said.push(...item.events.map(({ data }) => JSON.parse(data)))
    const [completed, results] = said.filter(
      ({ type, message }) => type === 'tool_execution.completed' || message?.role === 'tool',
    )
    t.match(
      [completed, results],
      [
        { type: 'tool_execution.completed', step: 0 },
        { type: 'message', step: 0 },
      ],
    )
  }
})

t.test('the completion of a call is counted and said once the ledger has it', async (t) => {
  const { say, replica, begin } = world(t, {}, calling('call_1', 'call_2'))
  const [isSettled, isAsked, isLast] = [gate(), gate(), gate()]
  const settle: Store['executions']['settle'] = async (...given) => {
    isAsked.open()
    await isSettled.opened
    return store.executions.settle(...given)
  }
  const tools = toolsThat((call) => (call === 'call_2' ? isLast.opened : null))
  const metrics = createMetrics({ defaults: false })
  const executions = { ...store.executions, settle }
  const one = replica({ ...tools, metrics, store: { ...store, executions } })
  const { types } = await begin(one, { max_steps: 1 })
  say()
  await isAsked.opened
  await new Promise((resolve) => setTimeout(resolve, 20))
  t.notOk(types.includes('tool_execution.completed'))
  t.notMatch(await metrics.text(), /^baton_tool_calls_total\{/m, 'else the next owner would count it again')
  isSettled.open()
  await eventually(() => types.includes('tool_execution.completed'))
  isLast.open()
  await eventually(() => types.includes('turn.completed'))
})

t.test('the metrics tell that a turn runs, its wait for a slot, its steps and its end', async (t) => {
  const { say, replica, begin } = world(t)
  const metrics = createMetrics({ defaults: false })
  const { types } = await begin(replica({ metrics }))
  await eventually(() => types.includes('step.started'))
  const running = await metrics.text()
  t.match(running, 'baton_turns_active 1\n')
  t.match(running, 'baton_turn_queue_seconds_count 1\n')
  say()
  await eventually(async () => (await metrics.text()).includes('baton_turns_active 0\n'))
  const over = await metrics.text()
  t.match(over, 'baton_steps_total{provider="acme",finish="stop"} 1\n')
  t.match(over, 'baton_turns_total{state="completed"} 1\n')
  t.match(over, 'baton_turn_seconds_count{state="completed"} 1\n')
})

t.test('nothing listens any more to what would have stopped a call once the call has ended', async (t) => {
  const { say, replica } = world(t, {}, calling('call_1'))
  const { policy, executor } = toolsThat(() => null)
  const signals: AbortSignal[] = []
  const run: typeof executor.run = (call) => {
    signals.push(call.signal)
    return executor.run(call)
  }
  const one = replica({ policy, executor: { ...executor, run } })
  const { turn } = await one.start(CALLER, (await session()).id, asked({ max_steps: 1 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(
    signals.map((signal) => getEventListeners(signal, 'abort')),
    [[]],
    'else Node keeps the signal, and all that the listener holds',
  )
})

t.test('a call whose executor throws leaves a parallel call its result', async (t) => {
  const { say, replica } = world(t, {}, calling('call_1', 'call_2'))
  const tools = toolsThat(async (call) => {
    if (call === 'call_1') throw new Error('it throws after all')
    await new Promise((resolve) => setTimeout(resolve, 50))
  })
  const one = replica(tools)
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'failed' })
  const [, , results] = await store.messages.after(id, 0)
  t.match(results?.parts, [{ outcome: 'error' }, { outcome: 'ok' }])
})

t.test(
  'the completion of a parallel call that the bus refused is said with the step’s results',
  async (t) => {
    const { bus, say, replica, begin } = world(t, {}, calling('call_1', 'call_2'))
    const { opened: refused, open: refuse } = gate()
    let isAway = true
    const append = (id: string, events: BusEvent[]) => {
      if (!isAway || !events.some(({ type }) => type === 'tool_execution.completed'))
        return bus.append(id, events)
      isAway = false
      refuse()
      return Promise.reject(new BatonError('unavailable', 'away'))
    }
    const tools = toolsThat((call) => (call === 'call_2' ? refused : null))
    const one = replica({ bus: { ...bus, append }, ...tools })
    const { types } = await begin(one, { max_steps: 1 })
    say()
    await eventually(() => types.includes('turn.completed'))
    t.strictSame(
      types.filter((type) => /tool_execution.completed|turn.completed/.test(type)),
      ['tool_execution.completed', 'tool_execution.completed', 'turn.completed'],
    )
  },
)

t.test('a replica ignores a control message whose op it does not know', async (t) => {
  const { bus, say, replica, begin } = world(t)
  const one = replica()
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  const command = { op: 'of_a_later_version', turn_id: turn.id, session_id: turn.session_id }
  await bus.publish('control', JSON.stringify(command))
  say()
  await eventually(() => types.includes('turn.completed'))
  t.notOk(types.includes('step.discarded'))
})

t.test('a turn that waits for a slot has turn.created as the first event of its stream', async (t) => {
  const { bus, say, replica } = world(t, { concurrentTurns: 1 })
  const one = replica()
  const { id: first } = await session()
  const { id: second } = await session()
  await one.start(CALLER, first, asked())
  const { turn } = await one.start(CALLER, second, asked())
  // The turn's tools may change before it begins: `tools.changed` must not become its first event.
  const said = { type: 'tools.changed', turn_id: turn.id, data: '{}' }
  await bus.append(second, [said])
  const types = follow(t, bus, second, turn.id)
  say()
  await eventually(() => types.includes('turn.completed'))
  t.strictSame(types.slice(0, 3), ['turn.created', 'tools.changed', 'turn.started'])
})

t.test('the signal of a tool call is collected once the call has returned', async (t) => {
  const { say, replica } = world(t, {}, calling('call_1'))
  say()
  const signals: WeakRef<AbortSignal>[] = []
  const { policy, executor } = toolsThat(() => null)
  const run: EngineDeps['executor']['run'] = (execution) => {
    signals.push(new WeakRef(execution.signal))
    return executor.run(execution)
  }
  const one = replica({ policy, executor: { ...executor, run } })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 3 }))
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { finish_reason: 'max_steps' })
  await collect()
  t.strictSame(
    signals.map((signal) => signal.deref()),
    [undefined, undefined, undefined],
  )
})
