/** Cancelling a turn, and waiting for it, on whichever replica it is. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t from 'tap'
import type { Bus, BusEvent } from '../../src/bus/bus.ts'
import { BatonError } from '../../src/errors.ts'
import type { Store } from '../../src/store/store.ts'
import type { ExecutorCall } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { endTurn, openRequest, runningTurn, startTurn, unsaidOf } from '../contracts/store-rows.ts'
import { eventually, gate } from '../waiting.ts'
import {
  asked,
  CALLER,
  calling,
  follow,
  heldCommit,
  NEVER,
  pieces,
  type Seen,
  session,
  store,
  toolsThat,
  withTurns,
  world,
} from './engines.ts'

t.test('a queued turn that is cancelled while the bus is away gets its last event later', async (t) => {
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
  t.match(
    await one.cancel(CALLER, turn.id, null),
    { state: 'cancelled' },
    'the cancel is done without the bus',
  )
  isAway = false
  await eventually(() => types.includes('turn.cancelled'))
  t.strictSame(types, ['turn.created', 'turn.cancelled'])
  say()
})

t.test('a cancel reaches a queued turn that another replica starts meanwhile', async (t) => {
  const { bus, replica } = world(t, { leaseSeconds: 600 })
  const { id } = await session()
  const running = await startTurn(store, CALLER, openRequest(id))
  const [started, cancelled] = [gate(), gate()]
  let isLooking = false
  /** Returns the turn as it was before: the other replica has started it since. */
  const standing: Store['turns']['standing'] = async (scope, turn) => {
    const seen = await store.turns.standing(scope, turn)
    if (!isLooking) return seen
    isLooking = false
    await endTurn(store, running.fence, running.turn.id)
    await bus.publish('queue', id)
    await started.opened
    return seen
  }
  const one = replica({ store: withTurns({ standing, startQueued: async () => null }) })
  const startQueued: Store['turns']['startQueued'] = async (...given) => {
    const taken = await store.turns.startQueued(...given)
    started.open()
    await cancelled.opened
    return taken
  }
  replica({ store: withTurns({ startQueued }) })
  const { turn } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  const types = follow(t, bus, id, turn.id)
  const { turn: waiting } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  t.match(await one.cancel(CALLER, waiting.id, null), { state: 'cancelled' })
  isLooking = true
  t.match(await one.cancel(CALLER, turn.id, null), { state: 'running' })
  cancelled.open()
  await eventually(() => types.includes('turn.cancelled'))
  t.strictSame(types, ['turn.created', 'turn.started', 'turn.cancelled'], 'its new owner tells of its end')
  t.match(await store.turns.get(CALLER, turn.id), { state: 'cancelled' })
  // No replica looks for work: it is the cancel that notes that the end of the turn that waited is in the stream.
  await eventually(async () => !(await unsaidOf(store, waiting.id)))
})

/**
 * Asks for a turn's cancel as its step is read. The first step of a turn that begins where it was opened reads nothing.
 */
const cancelledAsRead = withTurns({
  async readStep(fence, turn, ...rest) {
    await store.turns.requestCancel(CALLER, turn)
    return store.turns.readStep(fence, turn, ...rest)
  },
})

t.test('a turn sees a cancel that only the store knows of before its next model request', async (t) => {
  const { bus, replica } = world(t, { leaseSeconds: 600 })
  const one = replica({ store: cancelledAsRead })
  const { id } = await session()
  const running = await startTurn(store, CALLER, openRequest(id))
  const { turn } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  const types = follow(t, bus, id, turn.id)
  await endTurn(store, running.fence, running.turn.id)
  await bus.publish('queue', id)
  await eventually(() => types.includes('step.started') || types.includes('turn.cancelled'))
  t.strictSame(types, ['turn.created', 'turn.started', 'turn.cancelled'])
})

t.test('a turn that is cancelled between two steps keeps and streams its first step once', async (t) => {
  const { bus, say, replica } = world(t, {}, [
    { type: 'text.delta', index: 1, text: 'Let me see.' },
    ...calling('call_1'),
  ])
  say()
  const one = replica({ ...toolsThat(() => null), store: cancelledAsRead })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  const over = await one.wait(CALLER, turn.id, 30, NEVER)
  t.match(over, { state: 'cancelled', steps: [{ finish_reason: 'tool_calls' }] })
  const roles = (await store.messages.after(id, 0)).map(({ role }) => role)
  t.strictSame(roles, ['user', 'assistant', 'tool'])
  const streamed = await wordsOf(bus, id, turn.id)
  t.strictSame(streamed, ['Let me see.', 'assistant', 'tool'], 'the cancel streams no word again')
})

/** What a stream says until its turn is cancelled: each streamed text, and the role of each message. */
async function wordsOf(bus: Bus, session: string, turn: string): Promise<string[]> {
  const words: string[] = []
  const { signal } = new AbortController()
  for await (const item of bus.read(session, { turn, after: 'start', begun: true, signal })) {
    if (!('events' in item)) continue
    for (const { type, data } of item.events) {
      const { text, message } = JSON.parse(data)
      if (type === 'content.delta') words.push(text)
      if (type === 'message') words.push(message.role)
      if (type === 'turn.cancelled') return words
    }
  }
  return words
}

t.test('a turn that is cancelled after a restart records the first attempt as discarded', async (t) => {
  const { replica, begin } = world(t)
  const one = replica({ store: cancelledAsRead })
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  await one.restart(CALLER, turn.id)
  await eventually(() => types.includes('turn.cancelled'))
  t.match(await store.turns.get(CALLER, turn.id), { steps: [{ attempt: 1, discarded: true }] })
})

t.test('a cancel that arrives while a model request is prepared stops the request', async (t) => {
  const { tools } = pieces(Promise.resolve(), [])
  let command: string | null = null
  const overlay: typeof tools.overlay = (...given) => {
    if (command) void bus.publish('control', command)
    return tools.overlay(...given)
  }
  const { bus, replica, begin } = world(t)
  const one = replica({ tools: { ...tools, overlay } })
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  command = JSON.stringify({ op: 'cancel', session_id: turn.session_id, turn_id: turn.id })
  await one.restart(CALLER, turn.id)
  // The model does not answer.
  await eventually(() => types.includes('turn.cancelled'))
})

t.test('a turn that is cancelled as its step is committed stops its calls and waits for none', async (t) => {
  const { say, replica, begin } = world(t, {}, calling('call_1'))
  const held = heldCommit()
  const { policy, executor } = toolsThat(() => null)
  const { opened: called, open: callIt } = gate()
  const stopped: boolean[] = []
  const run = ({ signal }: ExecutorCall) => {
    stopped.push(signal.aborted)
    callIt()
    return new Promise<never>(() => {})
  }
  const one = replica({ policy, executor: { ...executor, run }, store: held.store })
  const { types, turn } = await begin(one, { max_steps: 1 })
  say()
  await held.reached
  await one.cancel(CALLER, turn.id, null)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  held.goOn()
  await called
  await new Promise(setImmediate)
  mock.timers.tick(3_000)
  mock.timers.reset()
  await eventually(() => types.includes('turn.cancelled'))
  t.strictSame(stopped, [true], 'the call’s signal is aborted before the executor sends anything')
  const [row] = await store.executions.ofTurn(turn.id)
  t.ok(row?.duration_ms, 'a call that did not return may have been made')
})

t.test('a cancel at another replica stops the model call at the turn’s owner', async (t) => {
  const lines: string[] = []
  const log = pino({ level: 'warn' }, { write: (line: string) => void lines.push(line) })
  const { replica, begin } = world(t, { leaseSeconds: 600 })
  const [owner, other] = [replica(), replica({ log })]
  const { turn, types } = await begin(owner)
  await eventually(() => types.includes('step.started'))
  t.match(await other.cancel(CALLER, turn.id, NEVER), { state: 'cancelled' })
  t.strictSame(lines, [], 'the owner heard of it: the turn did not have to be taken from it')
})

t.test(
  'a turn that waits for a slot is cancelled without getting one, or a message over the bus',
  async (t) => {
    const { bus, say, replica, begin } = world(t, { concurrentTurns: 1, leaseSeconds: 600 })
    const one = replica({ bus: { ...bus, publish: async () => {} } })
    await begin(one)
    const { turn } = await begin(one)
    t.match(await one.cancel(CALLER, turn.id, NEVER), { state: 'cancelled' })
    say()
  },
)

t.test('what comes over the bus and is no command is passed over', async (t) => {
  const { bus, replica, begin } = world(t)
  const one = replica()
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  for (const stray of ['', 'ready', 'null', '[]', '{"op":"later"}']) await bus.publish('control', stray)
  t.match(await one.cancel(CALLER, turn.id, NEVER), { state: 'cancelled' })
})

t.test(
  'a restart or cancel that names another turn, or is a stranger’s, leaves the session’s running turn alone',
  async (t) => {
    const { bus, say, replica, begin } = world(t)
    // As the turn before was read a moment ago.
    const get: Store['turns']['get'] = async (scope, id) =>
      id === 'turn_before' ? { ...turn, id } : store.turns.get(scope, id)
    const one = replica({ store: withTurns({ get, standing: get }) })
    const { turn, types } = await begin(one)
    await eventually(() => types.includes('step.started'))
    for (const op of ['restart', 'cancel']) {
      await bus.publish(
        'control',
        JSON.stringify({ op, turn_id: 'turn_before', session_id: turn.session_id }),
      )
    }
    await one.cancel(CALLER, 'turn_before', null)
    await one.restart(CALLER, 'turn_before')
    const stranger = { owner: 'stranger', admin: false, key_id: null }
    await t.rejects(one.cancel(stranger, turn.id, null), { code: 'turn_not_found' })
    await new Promise(setImmediate)
    say()
    await eventually(async () => (await store.turns.get(CALLER, turn.id))?.ended_at !== null)
    const left = { state: 'completed', attempt: 1, cancel_requested: false }
    t.match(await store.turns.get(CALLER, turn.id), left)
  },
)

t.test('a cancel does not wait for the request that a login makes at its first use', async (t) => {
  const { replica } = world(t)
  const { opened: asks, open: ask } = gate()
  const complete = () => {
    ask()
    return new Promise<never>(() => {})
  }
  const resolve = async () => ({ facts: { id: 'cred_1' }, kind: 'oauth', complete })
  const one = replica({
    credentials: { environment: { keys: ['acme'], logins: [] }, resolve },
  } as unknown as Pick<EngineDeps, Seen>)
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  await asks
  t.match(await one.cancel(CALLER, turn.id, NEVER), { state: 'cancelled' })
})

t.test('a cancel stops waiting for the turn’s end when its client leaves', async (t) => {
  const { replica } = world(t)
  const one = replica()
  // The turn's owner is alive and hears nothing.
  const { turn } = await runningTurn(store, CALLER)
  const leave = new AbortController()
  const over = one.cancel(CALLER, turn.id, leave.signal)
  await eventually(async () => (await store.turns.get(CALLER, turn.id))?.cancel_requested === true)
  const left = performance.now()
  leave.abort()
  t.match(await over, { state: 'running' })
  t.ok(performance.now() - left < 5000, 'it returns long before the turn is taken from its owner')
})

t.test('a turn whose owner does not act on a cancel is ended by another replica', async (t) => {
  const lines: string[] = []
  const log = pino({ level: 'warn' }, { write: (line: string) => void lines.push(line) })
  // No replica looks for work unless told to.
  const { bus, replica } = world(t, { leaseSeconds: 600 })
  const broken: string[] = []
  const breakLease: Store['turns']['breakLease'] = async (...given) => {
    if (broken.push(given[0]) === 1) throw new BatonError('unavailable', 'away')
    return store.turns.breakLease(...given)
  }
  const one = replica({ log, store: withTurns({ breakLease }) })
  replica()
  // The owner of both turns is alive and hears nothing. The second turn ends anyway.
  const [{ turn }, ended] = [await runningTurn(store, CALLER), await runningTurn(store, CALLER)]
  const types = follow(t, bus, turn.session_id, turn.id)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  for (const { id } of [turn, turn, ended.turn]) await one.cancel(CALLER, id, null)
  await endTurn(store, ended.fence, ended.turn.id)
  mock.timers.tick(10_000)
  // The store was away when the lease was to be broken. The turn can be cancelled again.
  await one.cancel(CALLER, turn.id, null)
  mock.timers.tick(10_000)
  mock.timers.reset()
  await eventually(() => types.includes('turn.cancelled'))
  t.strictSame(
    types.slice(-2),
    ['step.discarded', 'turn.cancelled'],
    'what the turn streamed is taken back before its end',
  )
  const started_at = (await store.messages.ofTurn(turn.id)).at(-1)?.created_at
  t.match(
    await store.turns.get(CALLER, turn.id),
    { steps: [{ discarded: true, started_at }] },
    'nobody knows when the lost owner’s step began: it followed the last message',
  )
  t.strictSame(
    lines.map((line) => JSON.parse(line)).map(({ turn_id, msg }) => [turn_id, msg]),
    [
      [turn.id, 'a lease could not be broken'],
      [turn.id, 'a cancelled turn was taken from its owner'],
    ],
  )
  t.strictSame(broken, [turn.id, ended.turn.id, turn.id], 'one deadline serves all cancels before it')
})

t.test('reading a turn without waiting for its end does not read the bus', async (t) => {
  const { bus, say, replica } = world(t)
  let reads = 0
  const read: typeof bus.read = (...asked) => {
    reads++
    return bus.read(...asked)
  }
  const one = replica({ bus: { ...bus, read } })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  t.match(await one.wait(CALLER, turn.id, 0, NEVER), { state: 'running' })
  t.equal(reads, 0)
  const over = one.wait(CALLER, turn.id, 30, NEVER)
  say()
  t.match(await over, { state: 'completed' })
  t.equal(reads, 1)
})

t.test('a caller who waits for a turn is told its end, though the store is away meanwhile', async (t) => {
  const { say, replica, begin } = world(t)
  let [good, away] = [1, Number.POSITIVE_INFINITY]
  const assertThere = () => {
    if (good-- <= 0 && away-- > 0) throw new BatonError('unavailable', 'away')
  }
  const get: Store['turns']['get'] = async (...given) => {
    assertThere()
    return store.turns.get(...given)
  }
  const standing: Store['turns']['standing'] = async (...given) => {
    assertThere()
    return store.turns.standing(...given)
  }
  const one = replica({ store: withTurns({ get, standing }) })
  const { turn } = await begin(one)
  await t.rejects(
    one.wait(CALLER, turn.id, 0.01, NEVER),
    { code: 'unavailable' },
    'it is away at the end, too',
  )
  good = 1
  away = 1
  const over = one.wait(CALLER, turn.id, 30, NEVER)
  await eventually(() => away < 1)
  say()
  t.match(await over, { state: 'completed' })
})

t.test('a turn that is cancelled while the step before a drain is committed ends there', async (t) => {
  const { say, replica, begin } = world(t, {}, [
    { type: 'part', index: 0, part: { type: 'text', text: 'First, ' } },
    { type: 'finish', reason: 'stop', goes_on: true },
  ])
  const held = heldCommit()
  const leaving = replica({ store: held.store })
  const { turn } = await begin(leaving, { max_steps: 2 })
  say()
  await held.reached
  const left = leaving.drain(60_000)
  await leaving.cancel(CALLER, turn.id, null)
  held.goOn()
  await left
  t.match(await store.turns.get(CALLER, turn.id), { state: 'cancelled', steps: [{ finish_reason: 'stop' }] })
})
