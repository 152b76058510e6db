/** Engines side by side: what a turn says and how it ends, whatever is asked of it meanwhile. */
import t from 'tap'
import type { BusEvent } from '../../src/bus/bus.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import type { ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { StaleOwner, type Store } from '../../src/store/store.ts'
import type { Settled } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { endTurn, openRequest } from '../contracts/store-rows.ts'
import { gate } from '../emulators/http.ts'
import {
  asked,
  CALLER,
  follow,
  pieces,
  type Seen,
  session,
  store,
  toolsThat,
  until,
  withTurns,
  world,
} from './engines.ts'

t.test('a queued turn’s end is said, however it went with the bus then', async (t) => {
  const { bus, say, replica } = world(t, { leaseSeconds: 3 })
  let isAway = false
  const append = (id: string, events: BusEvent[]) =>
    isAway && events.some(({ type }) => type === 'turn.cancelled')
      ? Promise.reject(new BatonError('unavailable', 'away'))
      : bus.append(id, events)
  const one = replica({ bus: { ...bus, append } })
  const { id } = await session()
  await one.start(CALLER, id, asked())
  const { turn } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  const types = follow(t, bus, id, turn.id)
  isAway = true
  t.match(await one.cancel(CALLER, turn.id, false), { state: 'cancelled' }, 'which is done all the same')
  isAway = false
  await until(() => types.includes('turn.cancelled'))
  t.strictSame(types, ['turn.created', 'turn.cancelled'])
  say()
})

t.test('a refusal takes back the calls that were made before it', async (t) => {
  const { say, replica } = world(t, {}, [
    { type: 'part', index: 0, part: { type: 'text', text: 'Let me see.' } },
    { type: 'part', index: 1, part: { type: 'tool_call', call_id: 'call_1', name: 'a.b', arguments: {} } },
    { type: 'finish', reason: 'refusal' },
  ])
  const one = replica()
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  say()
  const over = await one.wait(CALLER, turn.id, 30, new AbortController().signal)
  t.match(over, { state: 'completed', finish_reason: 'refusal', steps: [{ finish_reason: 'refusal' }] })
  const [, answer] = await store.messages.after(id, 0)
  t.match(answer?.parts, [{ type: 'text', text: 'Let me see.' }])
  t.equal(answer?.parts.length, 1)
})

t.test('of the calls of one step so many are run, and the rest is told so', async (t) => {
  const calls = Array.from({ length: 130 }, (_, index): ModelEvent => {
    const call_id = `call_${index}`
    return { type: 'part', index, part: { type: 'tool_call', call_id, name: 'a.b', arguments: {} } }
  })
  const { say, replica } = world(t, {}, [...calls, { type: 'finish', reason: 'tool_calls' }])
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
    return { result, settlement: { id, ...ended, ...left, result } }
  }
  const seen = { policy, executor: { ...executor, settleUnrun } }
  const one = replica(seen as unknown as Pick<EngineDeps, Seen>)
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, new AbortController().signal), { finish_reason: 'max_steps' })
  t.equal(ran.length, 128)
  const [, , answer] = await store.messages.after(id, 0)
  t.equal(answer?.parts.length, 130, 'every call has its result')
  t.match(answer?.parts.slice(127), [
    { outcome: 'ok' },
    { call_id: 'call_128', outcome: 'error', content: [{ text: /beyond the 128/ }] },
    { call_id: 'call_129', outcome: 'error' },
  ])
  const rows = await store.executions.ofTurn(turn.id)
  t.equal(rows.filter(({ state }) => state === 'settled').length, 130, 'and the ledger too')
})

t.test('calls that could not be run to their end are given up under their own step', async (t) => {
  for (const waits of [false, true]) {
    const { bus, say, replica } = world(t, {}, [
      { type: 'part', index: 0, part: { type: 'tool_call', call_id: 'call_1', name: 'a.b', arguments: {} } },
      { type: 'finish', reason: 'tool_calls' },
    ])
    const tool = { canonical_name: 'a.b', enabled: true }
    const registry = { session_id: '', revision: 0, updated_at: '', tools: [tool] }
    const overlay = { tools: [], byExposed: new Map([['a__b', { tool, rename: null }]]), revision: 0 }
    const executor = {
      redactArguments: async (given: unknown) => given,
      run: () => Promise.reject(new Error('it throws after all')),
      async settleUnrun({ call_id, name }: ToolCallPart, id: string): Promise<Settled> {
        const ended = { outcome: 'outcome_unknown', is_error: true } as const
        const result: ToolResultPart = { type: 'tool_result', call_id, name, content: [], ...ended }
        const left = { error: null, duration_ms: 0, bytes: 0, output: '', structured: false }
        return { result, settlement: { id, ...ended, ...left, result } }
      },
    }
    const policy = { needsApproval: () => waits, isRepeatable: () => false, timeoutMs: () => 0 }
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
      await one.wait(CALLER, turn.id, 30, new AbortController().signal)
      await one.decide(CALLER, turn.id, 'call_1', { decision: 'approve' })
    }
    const over = await one.wait(CALLER, turn.id, 30, new AbortController().signal)
    t.match(over, { state: 'failed', steps: [{ index: 0, finish_reason: 'tool_calls' }] })
    const said: { type: string; step: number | null; message?: { role: string } }[] = []
    for await (const item of bus.read(id, {
      turn: turn.id,
      after: 'start',
      signal: new AbortController().signal,
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

t.test(
  'the end of a parallel call is said with its step’s results where the bus refused it before',
  async (t) => {
    const call = (id: string): ModelEvent => ({
      type: 'part',
      index: Number(id),
      part: { type: 'tool_call', call_id: `call_${id}`, name: 'a.b', arguments: {} },
    })
    const { bus, say, replica } = world(t, {}, [
      call('1'),
      call('2'),
      { type: 'finish', reason: 'tool_calls' },
    ])
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
    const { id } = await session()
    const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
    const types = follow(t, bus, id, turn.id)
    say()
    await until(() => types.includes('turn.completed'))
    t.strictSame(
      types.filter((type) => /tool_execution.completed|turn.completed/.test(type)),
      ['tool_execution.completed', 'tool_execution.completed', 'turn.completed'],
    )
  },
)

t.test('a cancel reaches a turn that another replica starts meanwhile', async (t) => {
  const { bus, replica } = world(t, { leaseSeconds: 600 })
  const { id } = await session()
  const running = await store.turns.open(CALLER, openRequest(id))
  if (running?.kind !== 'running') return t.fail(`${running?.kind}`)
  let isLooking = false
  /** What it brings is old: the other replica has started the turn since. */
  const get: Store['turns']['get'] = async (scope, turn) => {
    const seen = await store.turns.get(scope, turn)
    if (!isLooking) return seen
    isLooking = false
    await endTurn(store, running.fence, running.turn.id)
    await bus.publish('queue', id)
    const types = follow(t, bus, id, turn)
    await until(() => types.includes('step.started') || types.includes('turn.cancelled'))
    return seen
  }
  const one = replica({ store: withTurns({ get, startQueued: async () => null }) })
  replica()
  const { turn } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  isLooking = true
  await one.cancel(CALLER, turn.id, false)
  await until(async () => (await store.turns.get(CALLER, turn.id))?.ended_at !== null)
  t.match(await store.turns.get(CALLER, turn.id), { state: 'cancelled' })
})

t.test('a cancel does not wait for what a login asks its vendor at its first use', async (t) => {
  const { replica } = world(t)
  const { opened: asks, open: ask } = gate()
  const complete = () => {
    ask()
    return new Promise<never>(() => {})
  }
  const resolve = async () => ({ facts: { id: 'cred_1' }, kind: 'oauth', complete })
  const one = replica({ credentials: { environment: ['acme'], resolve } } as unknown as Pick<
    EngineDeps,
    Seen
  >)
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  await asks
  t.match(await one.cancel(CALLER, turn.id, true), { state: 'cancelled' })
})

t.test('whoever reads a turn and does not wait asks the bus nothing', async (t) => {
  const { bus, say, replica } = world(t)
  let reads = 0
  const read: typeof bus.read = (...asked) => {
    reads++
    return bus.read(...asked)
  }
  const one = replica({ bus: { ...bus, read } })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  const never = new AbortController().signal
  t.match(await one.wait(CALLER, turn.id, 0, never), { state: 'running' })
  t.equal(reads, 0)
  const over = one.wait(CALLER, turn.id, 30, never)
  say()
  t.match(await over, { state: 'completed' })
  t.equal(reads, 1)
})

t.test('a turn that waits for a place can be read from its first event', async (t) => {
  const { bus, say, replica } = world(t, { concurrentTurns: 1 })
  const one = replica()
  const { id: first } = await session()
  const { id: second } = await session()
  await one.start(CALLER, first, asked())
  const { turn } = await one.start(CALLER, second, asked())
  // Its tools may change before it begins: that is not its first event.
  const said = { type: 'tools.changed', turn_id: turn.id, data: '{}' }
  await bus.append(second, [said])
  const types = follow(t, bus, second, turn.id)
  say()
  await until(() => types.includes('turn.completed'))
  t.strictSame(types.slice(0, 3), ['turn.created', 'tools.changed', 'turn.started'])
})

t.test('nothing is said of a commit that could not be made', async (t) => {
  const { bus, say, replica } = world(t)
  const commit: Store['turns']['commit'] = async () => {
    throw new StaleOwner()
  }
  const former = replica({ store: withTurns({ commit }) })
  const { id } = await session()
  const { turn } = await former.start(CALLER, id, asked())
  const types = follow(t, bus, id, turn.id)
  say()
  await until(() => former.running() === 0 && types.includes('usage'))
  t.strictSame(types, ['turn.created', 'turn.started', 'step.started', 'content.delta', 'usage'])
})
