/** Whoever cancels a turn or waits for it, wherever it is. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t from 'tap'
import type { BusEvent } from '../../src/bus/bus.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import { BatonError } from '../../src/errors.ts'
import type { Store } from '../../src/store/store.ts'
import type { ExecutorCall } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { endTurn, openRequest, runningTurn } from '../contracts/store-rows.ts'
import { eventually, gate } from '../waiting.ts'
import {
  asked,
  CALLER,
  follow,
  pieces,
  type Seen,
  session,
  store,
  toolsThat,
  withTurns,
  world,
} from './engines.ts'

const CALLS: ModelEvent[] = [
  { type: 'part', index: 1, part: { type: 'tool_call', call_id: 'call_1', name: 'a.b', arguments: {} } },
  { type: 'finish', reason: 'tool_calls' },
]

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
  t.match(await one.cancel(CALLER, turn.id, null), { state: 'cancelled' }, 'which is done all the same')
  isAway = false
  await eventually(() => types.includes('turn.cancelled'))
  t.strictSame(types, ['turn.created', 'turn.cancelled'])
  say()
})

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
    await eventually(() => types.includes('step.started') || types.includes('turn.cancelled'))
    return seen
  }
  const one = replica({ store: withTurns({ get, startQueued: async () => null }) })
  replica()
  const { turn } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  isLooking = true
  await one.cancel(CALLER, turn.id, null)
  await eventually(async () => (await store.turns.get(CALLER, turn.id))?.ended_at !== null)
  t.match(await store.turns.get(CALLER, turn.id), { state: 'cancelled' })
})

/** Cancels a turn as its step is read; the first step of one that begins where it was opened reads nothing. */
const cancelledAsRead = withTurns({
  async readStep(fence, turn, ...rest) {
    await store.turns.requestCancel(CALLER, turn)
    return store.turns.readStep(fence, turn, ...rest)
  },
})

t.test('a cancel that only the store knows of is seen before the next request', async (t) => {
  const { bus, replica } = world(t, { leaseSeconds: 600 })
  const one = replica({ store: cancelledAsRead })
  const { id } = await session()
  const running = await store.turns.open(CALLER, openRequest(id))
  if (running?.kind !== 'running') return t.fail(`${running?.kind}`)
  const { turn } = await one.start(CALLER, id, asked({ on_busy: 'enqueue' }))
  const types = follow(t, bus, id, turn.id)
  await endTurn(store, running.fence, running.turn.id)
  await bus.publish('queue', id)
  await eventually(() => types.includes('step.started') || types.includes('turn.cancelled'))
  t.strictSame(types, ['turn.created', 'turn.started', 'turn.cancelled'])
})

t.test('a turn that is cancelled between two steps has said each word once', async (t) => {
  const { say, replica } = world(t, {}, [
    { type: 'part', index: 0, part: { type: 'text', text: 'Let me see.' } },
    ...CALLS,
  ])
  say()
  const one = replica({ ...toolsThat(() => null), store: cancelledAsRead })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  const over = await one.wait(CALLER, turn.id, 30, new AbortController().signal)
  t.match(over, { state: 'cancelled', steps: [{ finish_reason: 'tool_calls' }] })
  const roles = (await store.messages.after(id, 0)).map(({ role }) => role)
  t.strictSame(roles, ['user', 'assistant', 'tool'])
})

t.test('one that is cancelled after a restart keeps nothing of what that took back', async (t) => {
  const { replica, begin } = world(t)
  const one = replica({ store: cancelledAsRead })
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  await one.restart(CALLER, turn.id)
  await eventually(() => types.includes('turn.cancelled'))
  t.match(await store.turns.get(CALLER, turn.id), { steps: [{ attempt: 1, discarded: true }] })
})

t.test('a cancel that comes as a request is made stops it', async (t) => {
  const { tools } = pieces(Promise.resolve(), [])
  let wish: string | null = null
  const overlay: typeof tools.overlay = (...given) => {
    if (wish) void bus.publish('control', wish)
    return tools.overlay(...given)
  }
  const { bus, replica, begin } = world(t)
  const one = replica({ tools: { ...tools, overlay } })
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  wish = JSON.stringify({ op: 'cancel', session_id: turn.session_id, turn_id: turn.id })
  await one.restart(CALLER, turn.id)
  // The model does not answer.
  await eventually(() => types.includes('turn.cancelled'))
})

t.test('no call is sent for a turn that is cancelled while its step is committed', async (t) => {
  const { say, replica, begin } = world(t, {}, CALLS)
  const { opened: reached, open: reach } = gate()
  const { opened: committed, open: goOn } = gate()
  const commit: Store['turns']['commit'] = async (...given) => {
    reach()
    await committed
    return store.turns.commit(...given)
  }
  const { policy, executor } = toolsThat(() => null)
  const stopped: boolean[] = []
  const run = (call: ExecutorCall) => {
    stopped.push(call.signal.aborted)
    return executor.run(call)
  }
  const one = replica({ policy, executor: { ...executor, run }, store: withTurns({ commit }) })
  const { types, turn } = await begin(one)
  say()
  await reached
  await one.cancel(CALLER, turn.id, null)
  goOn()
  await eventually(() => types.includes('turn.cancelled'))
  t.strictSame(stopped, [true], 'the executor is told before it sends anything')
})

t.test('a turn that waits for a place is cancelled without one', async (t) => {
  const { say, replica, begin } = world(t, { concurrentTurns: 1 })
  const one = replica()
  await begin(one)
  const { turn } = await begin(one)
  t.match(await one.cancel(CALLER, turn.id, new AbortController().signal), { state: 'cancelled' })
  say()
})

t.test('a wish that names another turn of the session is none for the one that runs', async (t) => {
  const { bus, say, replica, begin } = world(t)
  const one = replica()
  const { turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  for (const op of ['restart', 'cancel']) {
    await bus.publish('control', JSON.stringify({ op, turn_id: 'turn_before', session_id: turn.session_id }))
  }
  await new Promise(setImmediate)
  say()
  await eventually(async () => (await store.turns.get(CALLER, turn.id))?.ended_at !== null)
  t.match(await store.turns.get(CALLER, turn.id), { state: 'completed', attempt: 1 })
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
  const never = new AbortController().signal
  t.match(await one.cancel(CALLER, turn.id, never), { state: 'cancelled' })
})

t.test('whoever waits for a cancel waits no longer than its client and the server', async (t) => {
  const { replica } = world(t)
  const one = replica()
  // Its owner lives, and hears nothing.
  const { turn } = await runningTurn(store, CALLER)
  const leave = new AbortController()
  const over = one.cancel(CALLER, turn.id, leave.signal)
  await eventually(async () => (await store.turns.get(CALLER, turn.id))?.cancel_requested === true)
  const left = performance.now()
  leave.abort()
  t.match(await over, { state: 'running' })
  t.ok(performance.now() - left < 5000, 'long before the turn is taken from its owner')
})

t.test('a turn whose owner does not act on a cancel is taken from it, and ended by another', async (t) => {
  const lines: string[] = []
  const log = pino({ level: 'warn' }, { write: (line: string) => void lines.push(line) })
  // Nobody looks for work unless told to.
  const { bus, replica } = world(t, { leaseSeconds: 600 })
  const one = replica({ log })
  replica()
  // Their owner lives, and hears nothing; one of them ends all the same.
  const [{ turn }, ended] = [await runningTurn(store, CALLER), await runningTurn(store, CALLER)]
  const types = follow(t, bus, turn.session_id, turn.id)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  for (const { id } of [turn, ended.turn]) await one.cancel(CALLER, id, null)
  await endTurn(store, ended.fence, ended.turn.id)
  mock.timers.tick(10_000)
  mock.timers.reset()
  await eventually(() => types.includes('turn.cancelled'))
  t.strictSame(types.slice(-2), ['step.discarded', 'turn.cancelled'], 'what it streamed is in no message')
  t.strictSame(
    lines.map((line) => JSON.parse(line)).map(({ turn_id, msg }) => [turn_id, msg]),
    [[turn.id, 'a cancelled turn was taken from its owner']],
  )
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
