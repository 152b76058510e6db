/** A turn that waits for a person has no owner: the events of its last owner must not be lost with it. */
import { once } from 'node:events'
import { mock } from 'node:test'
import t, { type Test } from 'tap'
import type { Bus, BusEvent } from '../../src/bus/bus.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import type { ToolCallPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { type RegistryRow, type RegistryTool, type Store, Unreadable } from '../../src/store/store.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { MOST_CALLS } from '../../src/turns/fate.ts'
import { id, LAPSED, message, runningTurn, unsaidOf } from '../contracts/store-rows.ts'
import { NONE } from '../patterns.ts'
import { eventually, gate } from '../waiting.ts'
import {
  asked,
  CALLER,
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

const call = (name: string) =>
  ({ type: 'tool_call', call_id: `call_${name}`, name: `a.${name}`, arguments: {} }) as const
const asEvents = (parts: readonly ToolCallPart[]): ModelEvent[] => [
  ...parts.map((part, index) => ({ type: 'part' as const, index, part })),
  { type: 'finish', reason: 'tool_calls' },
]
const CALLS = asEvents([call('plain'), call('asks')])

/** Three tools, of which two ask a person. `now`: the session's tools by the time when the person would be asked. */
function tools(now?: readonly Partial<RegistryTool>[]): Pick<EngineDeps, Seen> {
  const rows = ['plain', 'asks', 'asks_too'].map(
    (name) => ({ canonical_name: `a.${name}`, enabled: true, connector_id: null }) as RegistryTool,
  )
  const { executor, policy } = toolsThat(() => null)
  const made = pieces(Promise.resolve(), []).tools
  const registry = async (id: string) => ({ ...(await made.current(id)), tools: rows })
  const overlay = ({ tools, revision }: RegistryRow) => {
    const byExposed = new Map(tools.map((tool) => [tool.canonical_name.replace('.', '__'), { tool }]))
    return { tools: [], byExposed, revision }
  }
  return {
    executor,
    policy: { ...policy, needsApproval: (tool: RegistryTool) => tool.canonical_name !== 'a.plain' },
    tools: {
      ...made,
      current: registry,
      newest: async (id: string) => ({ ...(await registry(id)), ...(now && { tools: now }) }),
      overlay,
    },
  } as unknown as Pick<EngineDeps, Seen>
}

/** A turn that waits for a person. `append`, `turns`: how its last owner reaches the log and the store. */
async function waiting(
  test: Test,
  append: (bus: Bus) => Bus['append'] = (bus) => bus.append,
  turns: Partial<Store['turns']> = {},
) {
  // No replica looks for work unless told to.
  const { bus, say, replica } = world(test, { leaseSeconds: 600 }, CALLS)
  const owner = replica({ ...tools(), bus: { ...bus, append: append(bus) }, store: withTurns(turns) })
  const opened = await session()
  const { turn } = await owner.start(CALLER, opened.id, asked({ max_steps: 1 }))
  const types = follow(test, bus, opened.id, turn.id)
  say()
  await eventually(async () => (await store.turns.get(CALLER, turn.id))?.state === 'awaiting_input')
  return { bus, replica, owner, opened, turn: turn.id, types }
}

const UNSAID = [
  'tool_execution.started',
  'tool_execution.completed',
  'approval.required',
  'turn.awaiting_input',
]
const mute =
  (bus: Bus): Bus['append'] =>
  async (session, events) => {
    if (events.some(({ type }) => UNSAID.includes(type))) throw new BatonError('unavailable', 'away')
    return bus.append(session, events)
  }

t.test('the next owner of a turn that waited sends what its last owner could not send', async (t) => {
  const { replica, turn, types } = await waiting(t, mute)
  t.notOk(types.some((type) => UNSAID.includes(type)))
  await replica(tools()).decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  await eventually(() => types.includes('turn.completed'))
  t.strictSame(types.slice(types.indexOf('step.completed') + 1), [
    'tool_execution.completed',
    'approval.required',
    'turn.awaiting_input',
    'tool_execution.started',
    'tool_execution.completed',
    'message',
    'turn.completed',
  ])
})
t.test('a turn that waited goes on although its next owner cannot send those events, either', async (t) => {
  const { bus, replica, turn } = await waiting(t, mute)
  const next = replica({ ...tools(), bus: { ...bus, append: mute(bus) } })
  await next.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  t.match(await next.wait(CALLER, turn, 30, NEVER), { state: 'completed' })
})

t.test('the next owner of a turn that waited repeats no event that is in the stream', async (t) => {
  const { bus, replica, turn, types } = await waiting(t)
  await eventually(async () => types.includes('turn.awaiting_input') && !(await unsaidOf(store, turn)))
  const said: BusEvent[] = []
  const append: Bus['append'] = (session, events) => {
    said.push(...events)
    return bus.append(session, events)
  }
  const next = replica({ ...tools(), bus: { ...bus, append } })
  await next.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  await eventually(() => types.includes('turn.completed'))
  t.strictSame(
    said.filter(({ turn_id }) => turn_id === turn).map(({ type, data }) => [type, JSON.parse(data).step]),
    [
      ['tool_execution.started', 0],
      ['tool_execution.completed', 0],
      ['message', 0],
      ['turn.completed', null],
    ],
  )
})

t.test('of two decisions at the same moment one holds, and the other caller is told which', async (t) => {
  const { replica, turn } = await waiting(t)
  const next = replica(tools())
  const decisions = ['approve', 'deny'] as const
  const answers = await Promise.allSettled(
    decisions.map((decision) =>
      next.decide({ ...CALLER, key_id: `key_${decision}` }, turn, 'call_asks', { decision }),
    ),
  )
  const holds = decisions[answers.findIndex(({ status }) => status === 'fulfilled')]
  const refused = answers.find(({ status }) => status === 'rejected')
  t.match(refused, { reason: { code: 'not_awaiting', details: { decision: holds } } })
  const { data } = await store.executions.list(CALLER, { turn_id: turn }, { limit: 2 })
  t.ok(data.some(({ approved_by }) => approved_by === `key_${holds}`))
})

t.test('a late note that a wait was announced does not forget what was announced since', async (t) => {
  const { opened: isLate, open: letGo } = gate()
  const { opened: isNoted, open: noted } = gate()
  const forgetAnnouncements: Store['turns']['forgetAnnouncements'] = async (...given) => {
    await isLate
    await store.turns.forgetAnnouncements(...given)
    noted()
  }
  const { bus, replica, turn, types } = await waiting(t, undefined, { forgetAnnouncements })
  await eventually(() => types.includes('turn.awaiting_input'))
  const append: Bus['append'] = async (session, events) => {
    if (events.some(({ type }) => type === 'turn.completed')) throw new BatonError('unavailable', 'away')
    return bus.append(session, events)
  }
  const next = replica({ ...tools(), bus: { ...bus, append } })
  await next.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  await eventually(async () => (await store.turns.get(CALLER, turn))?.state === 'completed')
  letGo()
  await isNoted
  t.match((await unsaidOf(store, turn))?.events.at(-1), { key: `${turn}:end` })
})

t.test('a turn that waits for a person acts at once on a cancel or its tool’s removal', async (t) => {
  const removal = { tools_revision: 1, removed: ['a.asks'], isMoved: true }
  const ways: [end: string, act: (its: Awaited<ReturnType<typeof waiting>>) => Promise<unknown>][] = [
    ['turn.cancelled', ({ owner, turn }) => owner.cancel(CALLER, turn, null)],
    ['turn.completed', ({ owner, opened }) => owner.takeEffect(opened, removal, 'now')],
  ]
  for (const [end, act] of ways) {
    const its = await waiting(t)
    await its.owner.takeEffect(its.opened, { ...removal, removed: ['a.plain'] }, 'now')
    t.match(
      await store.turns.get(CALLER, its.turn),
      { state: 'awaiting_input' },
      'that one was not asked about',
    )
    const told: string[] = []
    its.bus.subscribe('control', (message) => told.push(JSON.parse(message).op))
    await t.rejects(its.owner.restart(CALLER, its.turn), { code: 'not_restartable' })
    await act(its)
    const asked = told.filter((op) => op === 'tools' || op === 'restart')
    t.strictSame(asked, [], 'no replica owns the turn: none is asked, nor its answer waited for')
    await eventually(() => its.types.at(-1) === end)
    const results = (await store.messages.ofTurn(its.turn)).find(({ role }) => role === 'tool')
    t.match(results?.parts, [{ outcome: 'ok' }, { outcome: 'cancelled' }], end)
  }
})

t.test('an approved call goes by tools that its replica was never told of', async (t) => {
  const { replica, turn, types } = await waiting(t)
  const { executor, ...seen } = tools([])
  const run: typeof executor.run = (given) => {
    t.fail('the tool was taken away while its call waited')
    return executor.run(given)
  }
  const next = replica({ ...seen, executor: { ...executor, run } })
  await next.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  await eventually(() => types.includes('turn.completed'))
  t.match((await store.executions.ofTurn(turn)).at(-1), { outcome: 'cancelled', started_at: null })
})

t.test('a turn waits once all that it said is in the stream', async (t) => {
  const { opened: isThere, open: arrive } = gate()
  const { opened: isHeld, open: hold } = gate()
  const order: string[] = []
  const { bus, say, replica } = world(t, {}, CALLS)
  const append: Bus['append'] = async (session, events) => {
    if (events.some(({ type }) => type === 'tool_execution.started')) {
      hold()
      await isThere
      order.push('streamed')
    }
    return bus.append(session, events)
  }
  const commit: Store['turns']['commit'] = (...given) => {
    if (given[1].state === 'awaiting_input') order.push('committed')
    return store.turns.commit(...given)
  }
  const one = replica({ ...tools(), bus: { ...bus, append }, store: withTurns({ commit }) })
  const { turn } = await one.start(CALLER, (await session()).id, asked({ max_steps: 1 }))
  say()
  await isHeld
  await new Promise((resolve) => setTimeout(resolve, 50))
  arrive()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'awaiting_input' })
  t.strictSame(order, ['streamed', 'committed'])
})

/** A turn whose wait for a person is being committed, until `goOn`. */
async function beginningToWait(test: Test, turns: Partial<Store['turns']> = {}) {
  const { opened: isReached, open: reach } = gate()
  const { opened: isHeld, open: goOn } = gate()
  const { bus, say, replica, begin } = world(test, { leaseSeconds: 600 }, CALLS)
  const commit: Store['turns']['commit'] = async (...given) => {
    if (given[1].state === 'awaiting_input') {
      reach()
      await isHeld
    }
    return (turns.commit ?? store.turns.commit)(...given)
  }
  const owner = replica({ ...tools(), store: withTurns({ ...turns, commit }) })
  const { turn } = await begin(owner)
  say()
  await isReached
  return { bus, owner, turn: turn.id, goOn }
}

t.test('a turn that begins to wait at the drain’s deadline is given away only if it could not', async (t) => {
  const commit: Store['turns']['commit'] = async (...given) => {
    if (given[1].state === 'awaiting_input') throw new Error('refused')
    return store.turns.commit(...given)
  }
  const ways = [
    [{}, [0, []]],
    [{ commit }, [1, ['handed_over']]],
  ] as const
  for (const [turns, given] of ways) {
    const { bus, owner, goOn } = await beginningToWait(t, turns)
    const told: string[] = []
    bus.subscribe('control', (message) => told.push(JSON.parse(message).op))
    const left = owner.drain(0)
    await new Promise((resolve) => setTimeout(resolve, 20))
    goOn()
    await left
    t.strictSame([owner.handedOver(), told], given)
  }
})

t.test('a cancel that comes as a turn begins to wait returns once the turn is over', async (t) => {
  const { opened: isSeen, open: see } = gate()
  const { owner, turn, goOn } = await beginningToWait(t, {
    async standing(...given) {
      const seen = await store.turns.standing(...given)
      if (seen?.state === 'awaiting_input') setTimeout(see, 20)
      return seen
    },
    async resumeAwaiting(...given) {
      await isSeen
      return store.turns.resumeAwaiting(...given)
    },
  })
  const over = owner.cancel(CALLER, turn, NEVER)
  await eventually(async () => (await store.turns.get(CALLER, turn))?.cancel_requested)
  goOn()
  t.match(await over, { state: 'cancelled' })
})

t.test('a call that is approved while another runs goes on at once, after that one is settled', async (t) => {
  const { say, replica, begin } = world(t, {}, asEvents([call('plain'), call('asks'), call('asks_too')]))
  const [plain, approved] = [gate(), gate()]
  const { executor } = toolsThat((one) => (one === 'call_plain' ? plain : approved).opened)
  // Nobody has to decide on the third: its tool is gone by then.
  const asks = { canonical_name: 'a.asks', enabled: true, connector_id: null }
  const one = replica({ ...tools([asks]), executor })
  const { turn, types } = await begin(one, { max_steps: 1 })
  say()
  await eventually(() => types.includes('approval.required'))
  await one.decide(CALLER, turn.id, 'call_asks', { decision: 'approve' })
  plain.open()
  await eventually(() => types.filter((type) => type === 'tool_execution.started').length === 2)
  t.match(await store.executions.ofTurn(turn.id), [
    { state: 'settled' },
    { state: 'started' },
    { state: 'awaiting_approval' },
  ])
  approved.open()
  await eventually(() => types.includes('turn.completed'))
  t.notOk(types.includes('turn.awaiting_input'))
})

t.test(
  'a call that is approved while another runs does not begin in a turn that is cancelled then',
  async (t) => {
    const { say, replica, begin } = world(t, {}, CALLS)
    const { opened: isDecided, open: decided } = gate()
    const { executor } = toolsThat((one) => (one === 'call_plain' ? isDecided : null))
    let cancel: (() => Promise<unknown>) | null = null
    const ofTurn: Store['executions']['ofTurn'] = async (...given) => {
      await cancel?.()
      return store.executions.ofTurn(...given)
    }
    const executions = { ...store.executions, ofTurn }
    const one = replica({ ...tools(), executor, store: { ...store, executions } })
    const { turn, types } = await begin(one, { max_steps: 1 })
    say()
    await eventually(() => types.includes('approval.required'))
    await one.decide(CALLER, turn.id, 'call_asks', { decision: 'approve' })
    cancel = () => one.cancel(CALLER, turn.id, null)
    decided()
    await eventually(() => types.includes('turn.cancelled'))
    t.equal(types.filter((type) => type === 'tool_execution.started').length, 1)
    t.match(await store.executions.ofTurn(turn.id), [
      { outcome: 'ok' },
      { outcome: 'cancelled', started_at: null },
    ])
  },
)

t.test('of calls that were approved while another ran all begin, or none, before a cancel', async (t) => {
  const asks = ['call_one', 'call_two'].map((call_id) => ({ ...call('asks'), call_id }))
  const { say, replica, begin } = world(t, {}, asEvents([call('plain'), ...asks]))
  const { opened: isDecided, open: decided } = gate()
  const { executor } = toolsThat(() => isDecided)
  const run: typeof executor.run = async (one) =>
    one.signal.aborted ? settled(one.call, one.exec_id, 'cancelled', 0) : executor.run(one)
  const started: Store['executions']['begin'] = async (...given) => {
    await store.executions.begin(...given)
    await one.cancel(CALLER, turn.id, null)
  }
  const executions = { ...store.executions, begin: started }
  const one = replica({ ...tools(), executor: { ...executor, run }, store: { ...store, executions } })
  const { turn, types } = await begin(one, { max_steps: 1 })
  say()
  await eventually(() => types.filter((type) => type === 'approval.required').length === 2)
  for (const { call_id } of asks) await one.decide(CALLER, turn.id, call_id, { decision: 'approve' })
  decided()
  await eventually(() => types.includes('turn.cancelled'))
  t.match(
    (await store.executions.ofTurn(turn.id)).map(({ outcome }) => outcome),
    ['ok', 'cancelled', 'cancelled'],
    'no call that was not sent is said to have run, perhaps',
  )
})

t.test('an approved call does not begin under an owner that leaves: the next one makes it', async (t) => {
  const { replica, turn, types } = await waiting(t)
  const { opened: hasLeft, open } = gate()
  const seen = tools()
  const newest: typeof seen.tools.newest = async (id) => {
    void leaving.drain(0).then(open)
    // Its timer comes first: the turn is told to stop by then.
    await new Promise((resolve) => setTimeout(resolve, 5))
    return seen.tools.newest(id)
  }
  const run: typeof seen.executor.run = async ({ call, exec_id, signal }) =>
    settled(call, exec_id, signal.aborted ? 'cancelled' : 'ok')
  const executor = { ...seen.executor, run }
  const leaving = replica({ ...seen, executor, tools: { ...seen.tools, newest } })
  await leaving.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  await hasLeft
  replica(tools())
  await eventually(() => types.includes('turn.completed'))
  t.match(await store.executions.ofTurn(turn), [{ outcome: 'ok' }, { outcome: 'ok' }])
})

t.test('an approved call that its owner leaves unmade is made by the next one, and only that', async (t) => {
  const waits = { state: 'awaiting_approval', approval: { decision: 'approve' } }
  for (const [outcome, left] of [
    ['cancelled', waits],
    ['ok', { state: 'settled', outcome: 'ok' }],
  ] as const) {
    const { replica, owner, turn, types } = await waiting(t)
    // Else it would take the call up before that is looked at below.
    await owner.drain(0)
    const { executor, policy, ...seen } = tools()
    const { opened: isAsked, open } = gate()
    const run: typeof executor.run = async ({ call, exec_id, signal }) => {
      open()
      await once(signal, 'abort')
      return settled(call, exec_id, outcome, 0)
    }
    // Its tool's hints have changed since the call was written down.
    const leaving = replica({
      ...seen,
      policy: { ...policy, isRepeatable: () => true },
      executor: { ...executor, run },
    })
    await leaving.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
    await isAsked
    await leaving.drain(0)
    t.match((await store.executions.ofTurn(turn)).at(-1), left)
    replica(tools())
    await eventually(() => types.includes('turn.completed'))
    t.match(await store.executions.ofTurn(turn), [{ outcome: 'ok' }, { outcome: 'ok' }])
  }
})

t.test('an approved call that is cancelled unsent was not made, also if it might be repeated', async (t) => {
  const { replica, owner, turn, types } = await waiting(t)
  await owner.drain(0)
  const { executor, ...seen } = tools()
  const { opened: isAsked, open } = gate()
  const run: typeof executor.run = async ({ call, exec_id, signal }) => {
    open()
    await once(signal, 'abort')
    return settled(call, exec_id, 'cancelled', 0)
  }
  const { executions } = store
  const ofTurn: typeof executions.ofTurn = async (...given) =>
    (await executions.ofTurn(...given)).map((row) => ({ ...row, repeatable: true }))
  const own = { ...store, executions: { ...executions, ofTurn } }
  const one = replica({ ...seen, executor: { ...executor, run }, store: own })
  await one.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  await isAsked
  await one.cancel(CALLER, turn, null)
  await eventually(() => types.includes('turn.cancelled'))
  t.match((await executions.ofTurn(turn)).at(-1), { outcome: 'cancelled' })
})

t.test('a call whose edit cannot be opened does not begin until a replica can open it', async (t) => {
  const { replica, turn, types } = await waiting(t)
  const { opened: isGiven, open: give } = gate()
  const handOver: Store['turns']['handOver'] = async (fence) => {
    await store.turns.handOver(fence)
    give()
  }
  const { executor, ...seen } = tools()
  const opening = (open: () => Record<string, unknown>) => {
    const sealed = { seal: () => new Uint8Array([1]), open }
    return { ...seen, executor: { ...executor, misfits: async () => null }, sealed }
  }
  const lost = opening(() => {
    throw new Unreadable(new Error('its key is lost'))
  })
  const next = replica({ ...lost, store: withTurns({ handOver }) })
  await next.decide(CALLER, turn, 'call_asks', { decision: 'approve', arguments: {} })
  await isGiven
  replica(opening(() => ({})))
  await eventually(() => types.includes('turn.completed'))
  const results = (await store.messages.ofTurn(turn)).find(({ role }) => role === 'tool')
  t.match(results?.parts, [{ outcome: 'ok' }, { outcome: 'ok' }])
})

t.test('of an edited call that does not stop, the model is told the edit, too', async (t) => {
  const { replica, owner, turn, types } = await waiting(t)
  await owner.drain(0)
  const { executor, ...seen } = tools()
  const { opened: isAsked, open } = gate()
  const run = () => {
    open()
    return new Promise<never>(() => {})
  }
  const edit = { to: 'e'.repeat(5_000) }
  const sealed = { seal: () => new Uint8Array([1]), open: () => edit }
  const misfits = async () => null
  const one = replica({ ...seen, sealed, executor: { ...executor, run, misfits } })
  await one.decide(CALLER, turn, 'call_asks', { decision: 'approve', arguments: edit })
  await isAsked
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  await one.cancel(CALLER, turn, null)
  await new Promise(setImmediate)
  mock.timers.tick(3_000)
  mock.timers.reset()
  await eventually(() => types.includes('turn.cancelled'))
  const results = (await store.messages.ofTurn(turn)).find(({ role }) => role === 'tool')
  t.match(results?.parts[1], {
    outcome: 'cancelled',
    content: [{ text: /changed by .* to: {"to":"e{4089}…\]$/ }],
  })
})

t.test('a call that nobody approves in time is denied, and its turn goes on', async (t) => {
  const { bus, say, replica, begin } = world(t, { approvalSeconds: 0, leaseSeconds: 600 }, CALLS)
  const { turn, types } = await begin(replica(tools()), { max_steps: 1 })
  say()
  await eventually(() => types.includes('turn.awaiting_input'))
  // This makes the replica look for work.
  await bus.publish('control', JSON.stringify({ op: 'handed_over', session_id: turn.session_id }))
  await eventually(() => types.includes('turn.completed'))
  const results = (await store.messages.ofTurn(turn.id)).find(({ role }) => role === 'tool')
  t.match(results?.parts, [{ outcome: 'ok' }, { outcome: 'denied' }])
})

t.test('a turn does not wait for a person’s decision on a tool that is gone by then', async (t) => {
  const asks = { canonical_name: 'a.asks', enabled: true, connector_id: null }
  const changes = {
    'taken away': [],
    'switched off': [{ ...asks, enabled: false }],
    'another server’s by now': [{ ...asks, connector_id: 'con_other' }],
  }
  for (const [what, now] of Object.entries(changes)) {
    const { say, replica } = world(t, {}, CALLS)
    const { id } = await session()
    const { turn } = await replica(tools(now)).start(CALLER, id, asked({ max_steps: 1 }))
    say()
    await eventually(async () => (await store.turns.get(CALLER, turn.id))?.state !== 'running')
    t.match(await store.turns.get(CALLER, turn.id), { state: 'completed' }, what)
    t.match(
      (await store.messages.after(id, 2)).at(-1)?.parts,
      [{ outcome: 'ok' }, { outcome: 'cancelled' }],
      what,
    )
  }
})

/** A lost owner's turn: a person approved the first and the last of its three calls, which began; the second waits. */
async function lostWithApproved() {
  const { fence, turn } = await runningTurn(store, CALLER, LAPSED)
  const parts = [call('plain'), call('asks'), call('asks_too')]
  const executions = parts.map(waitingRow(turn.id))
  const said = message('', { role: 'assistant', turn_id: turn.id, parts })
  await store.turns.commit(fence, { turn_id: turn.id, messages: [said], executions })
  const approve = async (at: 0 | 2, args: Record<string, unknown>) => {
    const edit = { sealed_arguments: new Uint8Array([1]), arguments: args }
    const approved = { decision: 'approve', reason: null, by: 'local', ...edit } as const
    await store.executions.decide(CALLER, turn.id, parts[at]?.call_id ?? '', approved)
    await store.executions.begin(fence, executions[at]?.id ?? '')
  }
  await approve(0, {})
  await approve(2, { to: 'eve' })
  return turn.id
}

const waitingRow = (turn_id: string) => (one: ToolCallPart) => ({
  ...{ id: id('exec'), turn_id, step: 0, call_id: one.call_id, tool: one.name, connector: 'a' },
  ...{ tools_revision: 0, arguments: {}, repeatable: false, lapses_in: 60 },
  state: 'awaiting_approval' as const,
})
const resultsOf = async (turn: string) =>
  (await store.messages.ofTurn(turn)).find(({ role }) => role === 'tool')?.parts
const EDIT_TOLD = { outcome: 'outcome_unknown', content: [{ text: /changed by .* to: {"to":"eve"}\]$/ }] }

t.test('a call that waited for a person when its owner was lost waits under the next owner', async (t) => {
  const turn = await lostWithApproved()
  const { say, replica } = world(t)
  say()
  const next = replica(tools())
  await eventually(async () => (await store.turns.get(CALLER, turn))?.state === 'awaiting_input')
  t.match(await store.executions.ofTurn(turn), [
    { state: 'settled', outcome: 'outcome_unknown' },
    { state: 'awaiting_approval', approval: null },
    { state: 'settled', outcome: 'outcome_unknown' },
  ])
  await next.decide(CALLER, turn, 'call_asks', { decision: 'approve' })
  await eventually(async () => (await store.turns.get(CALLER, turn))?.state === 'completed')
  t.match(await resultsOf(turn), [
    { outcome: 'outcome_unknown', content: NONE },
    { outcome: 'ok' },
    EDIT_TOLD,
  ])
})

t.test('the edit of a lost call is told also where its turn is given up', async (t) => {
  const turn = await lostWithApproved()
  const resolve = async () => Promise.reject(new BatonError('no_credential', 'There is none.'))
  world(t).replica({ ...tools(), credentials: { resolve } as unknown as EngineDeps['credentials'] })
  await eventually(async () => (await store.turns.get(CALLER, turn))?.state === 'failed')
  t.match(await resultsOf(turn), [{ content: NONE }, { outcome: 'cancelled' }, EDIT_TOLD])
})

t.test('a preview shows no result of a step that is committed while it reads', async (t) => {
  const { fence, turn } = await runningTurn(store, CALLER)
  const asks = call('asks')
  const execution = waitingRow(turn.id)(asks)
  const said = message('', { role: 'assistant', turn_id: turn.id, parts: [asks] })
  const after: Store['messages']['after'] = async (...given) => {
    const read = await store.messages.after(...given)
    await store.turns.commit(fence, { turn_id: turn.id, messages: [said], executions: [execution] })
    return read
  }
  const { replica } = world(t, { leaseSeconds: 600 })
  const engine = replica({ store: { ...store, messages: { ...store.messages, after } } })
  const request = { input: [], context: [], provider: null, model: null }
  const { body } = await engine.render(CALLER, turn.session_id, request)
  t.notMatch(JSON.stringify(body), 'Result of an earlier call')
})

t.test('no person is asked about a call that will not be made', async (t) => {
  const plain = Array.from({ length: MOST_CALLS }, (_, i) => ({ ...call('plain'), call_id: `call_${i}` }))
  const answers = {
    'its arguments cannot be read': [{ ...call('asks'), arguments_text: '{"at": ' }],
    'it is one call too many': [...plain, call('asks')],
  }
  for (const [why, parts] of Object.entries(answers)) {
    const { say, replica, begin } = world(t, {}, asEvents(parts))
    const { types } = await begin(replica(tools()), { max_steps: 1 })
    say()
    await eventually(() => ['turn.completed', 'turn.awaiting_input'].includes(types.at(-1) ?? ''))
    t.equal(types.at(-1), 'turn.completed', why)
    t.notOk(types.includes('approval.required'), why)
  }
})
