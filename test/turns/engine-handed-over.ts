/** Turns that change their owner: given away by a drain, lost, or taken over to be cancelled. */
import { once } from 'node:events'
import { mock } from 'node:test'
import t, { type Test } from 'tap'
import type { Bus, BusEvent } from '../../src/bus/bus.ts'
import { isTerminal } from '../../src/chat/event.ts'
import { NO_USAGE } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { RegistryTool, Store } from '../../src/store/store.ts'
import type { ExecutorCall } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { PATIENCE_MS } from '../../src/turns/loop-deps.ts'
import { within } from '../../src/within.ts'
import {
  endTurn,
  LAPSED,
  newSession,
  openRequest,
  recoverAll,
  runningTurn,
  startTurn,
} from '../contracts/store-rows.ts'
import { eventually, gate } from '../waiting.ts'
import {
  asked,
  CALLER,
  calling,
  follow,
  heldCommit,
  looked,
  NEVER,
  pieces,
  session,
  settled,
  store,
  toolsThat,
  withTurns,
  world,
} from './engines.ts'

/** Drains a replica that has work under way until `goOn` is called, and checks that the drain does not end before. */
async function drainUntil(
  t: Test,
  leaving: ReturnType<ReturnType<typeof world>['replica']>,
  goOn: () => void,
): Promise<void> {
  let isOver = false
  const drained = leaving.drain(60_000).then(() => {
    isOver = true
  })
  await new Promise((resolve) => setTimeout(resolve, 20))
  t.notOk(isOver)
  goOn()
  await drained
}

t.test('a drain waits for a turn that the replica is taking over, beginning or resuming', async (t) => {
  const queued = async () => {
    const { fence, turn, session } = await runningTurn(store, CALLER)
    const next = openRequest(session.id, { on_busy: 'enqueue' })
    await store.turns.open(CALLER, next)
    await endTurn(store, fence, turn.id)
    return next.turn.id
  }
  const decided = async () => {
    const { fence, turn } = await runningTurn(store, CALLER)
    await store.turns.commit(fence, { turn_id: turn.id, state: 'awaiting_input' })
    return turn.id
  }
  const lost = async () => (await runningTurn(store, CALLER, LAPSED)).turn.id
  const ways = { startQueued: queued, recover: lost, resumeAwaiting: decided }
  for (const [verb, leave] of Object.entries(ways)) {
    const { replica } = world(t)
    const { opened: isAsked, open: ask } = gate()
    const { opened: reached, open: goOn } = gate()
    const slow = async (...given: unknown[]) => {
      ask()
      await reached
      return (store.turns[verb as 'recover'] as (...given: unknown[]) => Promise<unknown>)(...given)
    }
    const turn = await leave()
    const leaving = replica({ store: withTurns({ [verb]: slow }) })
    await isAsked
    await drainUntil(t, leaving, goOn)
    const taken = await recoverAll(store, { owner: 'next', seconds: 60 })
    t.match(
      taken.find((one) => one.turn.id === turn),
      { was_handed_over: true },
      `${verb}: no replica owns the turn any more`,
    )
  }
})

t.test('a turn marks its events after a change of owner or a wait as possible repeats', async (t) => {
  const { bus, say, replica } = world(t)
  const said: BusEvent[] = []
  const append: Bus['append'] = (session, events) => {
    said.push(...events)
    return bus.append(session, events)
  }
  const lost = await runningTurn(store, CALLER, LAPSED)
  const waited = await runningTurn(store, CALLER)
  await store.turns.commit(waited.fence, { turn_id: waited.turn.id, state: 'awaiting_input' })
  const engine = replica({ bus: { ...bus, append } })
  const { id } = await session()
  const { turn } = await engine.start(CALLER, id, asked())
  const of = (id: string) => said.filter(({ turn_id }) => turn_id === id)
  say()
  await eventually(() =>
    [lost.turn.id, waited.turn.id, turn.id].every((id) => of(id).some(({ type }) => isTerminal(type))),
  )
  for (const { turn } of [lost, waited]) t.ok(of(turn.id).every(({ again }) => again))
  t.notOk(of(turn.id).some(({ again }) => again))
  const leases = [lost.turn, waited.turn, turn].map(({ id }) => new Set(of(id).map(({ epoch }) => epoch)))
  t.strictSame(
    leases,
    [new Set([2]), new Set([2]), new Set([1])],
    'each event carries the epoch of the lease under which it was sent',
  )
})

t.test('the next owner marks as lost what the last owner could not send without its bus', async (t) => {
  const { bus, say, replica, begin } = world(t, { leaseSeconds: 1.5 })
  const said: BusEvent[] = []
  const append: Bus['append'] = (session, events) => {
    said.push(...events)
    return bus.append(session, events)
  }
  let isAway = false
  const breaking: Bus['append'] = async (session, events) => {
    if (isAway) throw new BatonError('unavailable', 'The event bus is away.')
    return bus.append(session, events)
  }
  const { types: heard } = await begin(replica({ bus: { ...bus, append: breaking } }))
  await eventually(() => heard.includes('step.started'))
  isAway = true
  say()
  replica({ bus: { ...bus, append } })
  await eventually(() => heard.includes('turn.completed'))
  t.notOk(heard.includes('content.delta'))
  t.match(said, [{ type: 'message', lost: true }, { type: 'step.completed' }, { type: 'turn.completed' }])
})

t.test('a lost turn that has to wait for a slot of its next owner is not taken for a new one', async (t) => {
  const { bus, say, replica, begin } = world(t, { concurrentTurns: 1, leaseSeconds: 600 })
  const next = replica()
  const { types } = await begin(next)
  await eventually(() => types.includes('step.started'))
  const { turn } = await runningTurn(store, CALLER, LAPSED)
  // This makes the replica look for work.
  await bus.publish('control', JSON.stringify({ op: 'handed_over', session_id: turn.session_id }))
  await eventually(async () => (await store.turns.get(CALLER, turn.id))?.recoveries === 1)
  say()
  t.match(await next.wait(CALLER, turn.id, 30, NEVER), {
    state: 'completed',
    steps: [{ discarded: true }, { finish_reason: 'stop' }],
  })
})

t.test('a turn that its owner takes for lost is not ended there, but left to the next owner', async (t) => {
  const { bus, replica, begin } = world(t, { leaseSeconds: 600 })
  let isLost = false
  const heartbeat: Store['turns']['heartbeat'] = async () => {
    isLost = true
    return []
  }
  const former = replica({ store: withTurns({ heartbeat }) })
  const { turn, types } = await begin(former)
  await eventually(() => types.includes('step.started'))
  // This makes the replica look for work, and for its own leases before.
  await bus.publish('control', JSON.stringify({ op: 'handed_over', session_id: turn.session_id }))
  await eventually(() => isLost)
  await former.drain(60_000)
  t.match(await store.turns.get(CALLER, turn.id), { state: 'running', steps: [] })
})

t.test('a drain ends once its turns have been given away', async (t) => {
  const { bus, replica } = world(t)
  const given: string[] = []
  const handOver: Store['turns']['handOver'] = async (fence) => {
    await new Promise((resolve) => setTimeout(resolve, 20))
    await store.turns.handOver(fence)
    given.push(fence.session_id)
  }
  bus.subscribe('control', (message) => given.push(JSON.parse(message).op))
  const { id } = await session()
  const leaving = replica({ store: withTurns({ handOver }) })
  await leaving.start(CALLER, id, asked())
  await leaving.drain(0)
  await new Promise(setImmediate)
  t.strictSame(given, [id, 'handed_over'])
  t.equal(leaving.handedOver(), 1)
})

t.test('a turn that waits for a slot is given away as the drain begins', async (t) => {
  const { bus, say, replica, begin } = world(t, { concurrentTurns: 1 })
  const leaving = replica()
  const { types } = await begin(leaving)
  await eventually(() => types.includes('step.started'))
  const { turn } = await leaving.start(CALLER, (await session()).id, asked())
  const given: string[] = []
  bus.subscribe('control', (message) => given.push(JSON.parse(message).session_id))
  const left = leaving.drain(60_000)
  await eventually(() => given.includes(turn.session_id))
  t.notOk(types.includes('step.completed'), 'the running turn may go on')
  say()
  await left
})

t.test('another replica begins at once a turn that is queued behind one that ends in a drain', async (t) => {
  const { say, replica, begin } = world(t, { leaseSeconds: 600 })
  const begun: string[] = []
  const startQueued: Store['turns']['startQueued'] = (id, ...rest) => {
    begun.push(id)
    return store.turns.startQueued(id, ...rest)
  }
  const leaving = replica({ store: withTurns({ startQueued }) })
  const { store: lookedAt, hasLooked } = looked()
  const other = replica({ store: lookedAt })
  await hasLooked
  const { session: opened, types } = await begin(leaving)
  const { turn } = await leaving.start(CALLER, opened.id, asked({ on_busy: 'enqueue' }))
  await eventually(() => types.includes('step.started'))
  const left = leaving.drain(60_000)
  say()
  await left
  t.match(await other.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(begun, [], 'the leaving replica takes no queued turn, though it hears of one, too')
})

t.test('a drain waits until the last event of a turn is in the stream', async (t) => {
  const { bus, say, replica, begin } = world(t)
  const { opened: isSent, open: send } = gate()
  const { opened: isThere, open: arrive } = gate()
  const append: Bus['append'] = async (session, events) => {
    if (events.some(({ type }) => type === 'turn.completed')) {
      send()
      await isThere
    }
    return bus.append(session, events)
  }
  const leaving = replica({ bus: { ...bus, append } })
  await begin(leaving)
  say()
  await isSent
  await drainUntil(t, leaving, arrive)
})

t.test('a turn whose last step is being committed at the drain’s deadline is not given away', async (t) => {
  const { bus, say, replica, begin } = world(t)
  const held = heldCommit()
  const told: string[] = []
  bus.subscribe('control', (message) => told.push(JSON.parse(message).op))
  const leaving = replica({ store: held.store })
  const { turn } = await begin(leaving)
  say()
  await held.reached
  const left = leaving.drain(0)
  await new Promise((resolve) => setTimeout(resolve, 20))
  held.goOn()
  await left
  t.match(await store.turns.get(CALLER, turn.id), { state: 'completed' })
  t.strictSame([leaving.handedOver(), told], [0, []])
})

t.test(
  'of the calls that a drain stops the next owner judges only those that may run again, or ran',
  async (t) => {
    const tool = { canonical_name: 'a.b', connector_id: null, enabled: true } as RegistryTool
    const byExposed = new Map([['a__b', { tool, rename: null }]])
    const { tools } = pieces(Promise.resolve(), [])
    const seen = {
      ...tools,
      current: async (id: string) => ({ ...(await tools.current(id)), tools: [tool] }),
      overlay: () => ({ tools: [], byExposed, revision: 0 }),
    } as unknown as EngineDeps['tools']
    for (const isRepeatable of [false, true]) {
      const { say, replica, begin } = world(t, {}, calling('cut', 'home', 'unsent'))
      const { opened: isCut, open: cut } = gate()
      const { policy, executor } = toolsThat(() => null)
      const run = async ({ call, exec_id, signal }: ExecutorCall) => {
        if (call.call_id === 'cut') {
          await once(signal, 'abort')
          cut()
          return settled(call, exec_id, 'cancelled')
        }
        await isCut
        // A call that was not made has no duration.
        if (call.call_id === 'unsent') return settled(call, exec_id, 'cancelled', 0)
        await new Promise(setImmediate)
        return settled(call, exec_id, 'ok')
      }
      const leaving = replica({
        policy: { ...policy, isRepeatable: () => isRepeatable },
        executor: { ...executor, run },
        tools: seen,
      })
      const { turn, types } = await begin(leaving, { max_steps: 1 })
      say()
      await eventually(() => types.filter((type) => type === 'tool_execution.started').length === 3)
      await leaving.drain(0)
      const rows = (await store.executions.ofTurn(turn.id)).map(({ call_id, state, outcome }) => [
        call_id,
        [state, outcome],
      ])
      const left = ['started', null]
      t.strictSame(Object.fromEntries(rows), {
        cut: left,
        home: ['settled', 'ok'],
        unsent: isRepeatable ? left : ['settled', 'cancelled'],
      })
    }
  },
)

t.test('a turn is given up when it loses its owner for the fourth time, not for the third', async (t) => {
  const ends = [
    [3, 'running', { state: 'completed', recoveries: 3 }],
    [4, 'running', { state: 'failed', error: { code: 'recovery_limit' } }],
    [4, 'cancelled', { state: 'cancelled', error: null }],
  ] as const
  for (const [losses, left, end] of ends) {
    const { turn } = await runningTurn(store, CALLER, LAPSED)
    for (let i = 1; i < losses; i++) await store.turns.recover({ ...LAPSED, owner: 'another' })
    if (left === 'cancelled') await store.turns.requestCancel(CALLER, turn.id)
    const { say, replica } = world(t)
    say()
    replica()
    await eventually(async () => (await store.turns.get(CALLER, turn.id))?.ended_at ?? null)
    t.match(await store.turns.get(CALLER, turn.id), end)
  }
})

t.test('a process takes none of its own turns for lost, however long its store takes', async (t) => {
  const { turn } = await runningTurn(store, CALLER, LAPSED)
  const { say, replica } = world(t, { leaseSeconds: 0 })
  const { opened: hasLooked, open } = gate()
  let looks = 0
  const unannounced: Store['turns']['unannounced'] = (...given) => {
    if (++looks === 5) open()
    return store.turns.unannounced(...given)
  }
  const ofTurn: Store['sessions']['ofTurn'] = async (id) => {
    await hasLooked
    return store.sessions.ofTurn(id)
  }
  const sessions = { ...store.sessions, ofTurn }
  const one = replica({ store: { ...withTurns({ unannounced }), sessions } })
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed', recoveries: 1 })
})

t.test('a turn whose owner waits in vain for the store is recovered, not failed', async (t) => {
  const { say, replica } = world(t, { leaseSeconds: 1 })
  say()
  const real = performance.now.bind(performance)
  let passed = 0
  mock.method(performance, 'now', () => real() + passed)
  t.teardown(() => mock.restoreAll())
  let isAway = true
  const commit: Store['turns']['commit'] = async (...given) => {
    if (!isAway) return store.turns.commit(...given)
    isAway = false
    passed = PATIENCE_MS + 1
    throw new BatonError('unavailable', 'away')
  }
  const one = replica({ store: withTurns({ commit }) })
  const { turn } = await one.start(CALLER, (await session()).id, asked())
  const over = await one.wait(CALLER, turn.id, null, NEVER)
  t.match(over, { state: 'completed', recoveries: 1 })
})

t.test('a turn that no owner can load is given up when it loses the fourth', async (t) => {
  const { turn } = await runningTurn(store, CALLER, LAPSED)
  for (let i = 1; i < 4; i++) await store.turns.recover({ ...LAPSED, owner: 'another' })
  const { replica } = world(t)
  const real = performance.now.bind(performance)
  let passed = 0
  mock.method(performance, 'now', () => real() + passed)
  t.teardown(() => mock.restoreAll())
  const after: Store['messages']['after'] = async (session, seq, mode) => {
    if (session !== turn.session_id || mode === 'told') return store.messages.after(session, seq, mode)
    passed += PATIENCE_MS + 1
    throw new BatonError('unavailable', 'The history takes too long.')
  }
  const one = replica({ store: { ...store, messages: { ...store.messages, after } } })
  const over = await one.wait(CALLER, turn.id, null, AbortSignal.timeout(30_000))
  t.match(over, { state: 'failed', recoveries: 4, error: { code: 'unavailable' } })
})

t.test('a turn that is handed over between two steps discards neither step', async (t) => {
  const { say, replica, begin } = world(t, {}, calling('call_1'))
  const { opened: answered, open: answer } = gate()
  const tools = toolsThat(() => answered)
  const leaving = replica(tools)
  const { types } = await begin(leaving, { max_steps: 2 })
  say()
  await eventually(() => types.includes('tool_execution.started'))
  const left = leaving.drain(5000)
  answer()
  await left
  replica(tools)
  await eventually(() => types.includes('turn.completed'))
  const steps = types.filter((type) => type.startsWith('step.'))
  t.strictSame(steps, ['step.started', 'step.completed', 'step.started', 'step.completed'])
})

t.test('a turn that is handed over before its model goes on discards no step', async (t) => {
  const { say, replica, begin } = world(t, {}, [
    { type: 'part', index: 0, part: { type: 'text', text: 'First, ' } },
    { type: 'finish', reason: 'stop', goes_on: true },
  ])
  const leaving = replica()
  const { types } = await begin(leaving, { max_steps: 2 })
  await eventually(() => types.includes('step.started'))
  const left = leaving.drain(5000)
  say()
  await left
  t.notOk(types.includes('turn.completed'))
  replica()
  await eventually(() => types.includes('turn.completed'))
  const steps = types.filter((type) => type.startsWith('step.'))
  t.strictSame(steps, ['step.started', 'step.completed', 'step.started', 'step.completed'])
})

t.test('a turn that waited for a person is given away in a drain once its calls have ended', async (t) => {
  const answer = calling('call_1')
  const { say, replica, begin } = world(t, {}, answer)
  const { opened: worked, open: work } = gate()
  const { executor, policy } = toolsThat(() => worked)
  const tool = { canonical_name: 'a.b', enabled: true, connector_id: null }
  const { tools } = pieces(worked, answer)
  const overlay = { tools: [], byExposed: new Map([['a__b', { tool }]]), revision: 0 }
  const leaving = replica({
    executor,
    policy: { ...policy, needsApproval: () => true },
    tools: {
      ...tools,
      current: async (id: string) => ({ ...(await tools.current(id)), tools: [tool] }),
      newest: async (id: string) => ({ ...(await tools.current(id)), tools: [tool] }),
      overlay: () => overlay,
    } as unknown as EngineDeps['tools'],
  })
  const { turn, types } = await begin(leaving)
  say()
  await eventually(() => types.includes('turn.awaiting_input'))
  await leaving.decide(CALLER, turn.id, 'call_1', { decision: 'approve' })
  await eventually(() => types.includes('tool_execution.started'))
  const ledger = await store.executions.ofTurn(turn.id)
  t.match(
    ledger,
    [{ state: 'started' }],
    'the call is marked as begun before it runs, so that no later owner runs it anew',
  )
  const left = leaving.drain(5000)
  work()
  await left
  t.equal(types.filter((type) => type === 'step.started').length, 1, 'no other request was made')
  const taken = await recoverAll(store, { owner: 'next', seconds: 60 })
  t.match(
    taken.find((one) => one.turn.id === turn.id),
    { turn: { recoveries: 0 } },
  )
})

t.test('a turn that is handed over within a step records that attempt as discarded', async (t) => {
  const { say, replica, begin } = world(t)
  const leaving = replica()
  const { turn, types } = await begin(leaving)
  await eventually(() => types.includes('step.started'))
  await leaving.drain(0)
  say()
  replica()
  await eventually(() => types.includes('turn.completed'))
  const steps = types.filter((type) => type.startsWith('step.'))
  t.strictSame(steps, ['step.started', 'step.discarded', 'step.started', 'step.completed'])
  const whole = types.filter((type) => type.startsWith('turn.'))
  t.strictSame(whole, ['turn.created', 'turn.started', 'turn.completed'], 'the turn begins once')
  t.match((await store.turns.get(CALLER, turn.id))?.steps, [
    { index: 0, attempt: 1, discarded: true, finish_reason: null },
    { index: 0, attempt: 2, finish_reason: 'stop' },
  ])
})

t.test(
  'a drain waits until the replica’s look for work is over, since the store may be closed after the drain',
  async (t) => {
    const { replica } = world(t)
    const { opened: isAsked, open: ask } = gate()
    const { opened: reached, open: goOn } = gate()
    const unannounced: Store['turns']['unannounced'] = async () => {
      ask()
      await reached
      return []
    }
    const leaving = replica({ store: withTurns({ unannounced }) })
    await isAsked
    await drainUntil(t, leaving, goOn)
  },
)

t.test('a drain waits for a turn that is being opened, and gives it away', async (t) => {
  const { say, replica } = world(t)
  const { opened: reached, open: goOn } = gate()
  const openSurely: Store['turns']['openSurely'] = async (...request) => {
    await reached
    return store.turns.openSurely(...request)
  }
  const { id } = await session()
  const leaving = replica({ store: withTurns({ openSurely }) })
  const started = leaving.start(CALLER, id, asked())
  await drainUntil(t, leaving, goOn)
  const { turn } = await started
  const taken = await recoverAll(store, { owner: 'next', seconds: 60 })
  t.match(
    taken.find((one) => one.turn.id === turn.id),
    { turn: { recoveries: 0 } },
    'no replica owns the turn any more',
  )
  say()
})

t.test('a replica that drains starts no turn, but tells of one that its key brought before', async (t) => {
  const { replica } = world(t)
  const { id } = await session()
  const { opened: reached, open: goOn } = gate()
  const ground: Store['turns']['ground'] = (...session) => reached.then(() => store.turns.ground(...session))
  const leaving = replica({ store: withTurns({ ground }) })
  const request = asked({ idempotency_key: 'k', body_hash: 'a' })
  const { turn } = await leaving.start(CALLER, id, request)
  const left = leaving.drain(0).then(() => true)
  const repeated = leaving.start(CALLER, id, request)
  t.ok(await within(2_000, left), 'it waits for no such request: clients may repeat theirs without an end')
  goOn()
  t.match(await repeated, { outcome: 'replayed', turn: { id: turn.id } })
  const draining = { code: 'draining', retryAfter: 1 }
  for (const [other, refusal] of [
    [{ body_hash: 'b' }, { code: 'idempotency_mismatch' }],
    [{ idempotency_key: 'l', on_busy: 'enqueue' }, draining],
    [{ idempotency_key: null, on_busy: 'enqueue' }, draining],
  ] as const)
    await t.rejects(leaving.start(CALLER, id, { ...request, ...other }), refusal)
})

t.test('a replica that takes a turn over to end it first sends its last owner’s unsent events', async (t) => {
  // Like every login, it is asked whether its vendor has to set it up first.
  const login = {
    facts: { id: 'cred_1' },
    kind: 'oauth',
    secret: async () => ({}),
    complete: () => Promise.resolve({}).then((facts) => facts),
  }
  const none = new BatonError('no_credential', 'There is none.')
  const ways = [
    { resolve: async () => login, isCancelled: true, told: ['step.discarded', 'turn.cancelled'] },
    { resolve: () => Promise.reject(none), isCancelled: false, told: ['turn.failed'] },
  ]
  for (const { resolve, isCancelled, told } of ways) {
    const { id } = await newSession(store, CALLER)
    const opened = await startTurn(store, CALLER, openRequest(id, { lease: LAPSED }))
    const turn_id = opened.turn.id
    const event = { type: 'usage' as const, session_id: id, turn_id, step: 0, at: '', ...NO_USAGE }
    await store.turns.commit(opened.fence, { turn_id, announce: [{ key: `${turn_id}:usage`, event }] })
    if (isCancelled) await store.turns.requestCancel(CALLER, turn_id)
    const { bus, replica } = world(t)
    const types = follow(t, bus, id, turn_id)
    replica({
      credentials: { environment: { keys: [], logins: [] }, resolve } as unknown as EngineDeps['credentials'],
    })
    await eventually(() => told.at(-1) === types.at(-1))
    t.same(types.slice(types.indexOf('usage')), ['usage', ...told])
  }
})
