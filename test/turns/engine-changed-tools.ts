/** Engines side by side over one registry that the test changes: what a change of tools does to a turn. */
import { pino } from 'pino'
import t from 'tap'
import type { ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import type { Connector, RegistryRow, RegistryTool } from '../../src/store/store.ts'
import type { ExecutorCall } from '../../src/tools/execute.ts'
import { createRegistries } from '../../src/tools/registries.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { connector, endTurn, openRequest, runningTurn } from '../contracts/store-rows.ts'
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
  withTurns,
  world,
} from './engines.ts'

const CALLS = calling('call_1')

/** A connector `a` whose one tool is `a.b`. */
async function server(name = 'a') {
  const made = await store.connectors.create(connector(CALLER, name))
  if (made === 'name_taken') throw new Error(`${name} is taken`)
  const tool = { canonical_name: 'a.b', connector_id: made.id, enabled: true, status: 'available' }
  return { id: made.id, tool: tool as RegistryTool }
}

/** A registry that all replicas see at once, and the connectors at which the calls of its one tool ran. */
function toolbox(asks: (connector: Connector | null) => boolean = () => false) {
  const ran: (string | null)[] = []
  const row: RegistryRow = { session_id: '', revision: 0, updated_at: '', tools: [] }
  const executor = {
    async run({ call, exec_id, connector }: ExecutorCall) {
      ran.push(connector?.id ?? null)
      return settled(call, exec_id, 'ok')
    },
    settleUnrun: async (call: ToolCallPart, id: string, outcome: ToolResultPart['outcome']) =>
      settled(call, id, outcome),
  }
  const tools = {
    ...pieces(Promise.resolve(), []).tools,
    current: async () => row,
    newest: async () => row,
    overlay: ({ tools, revision }: RegistryRow) => ({
      tools: [],
      byExposed: new Map(tools.map((tool) => ['a__b', { tool, rename: null }])),
      revision,
    }),
  }
  const needsApproval = (_: RegistryTool, connector: Connector | null) => asks(connector)
  const policy = { needsApproval, isRepeatable: () => false, limits: () => ({ timeoutMs: 0 }) }
  return { row, ran, seen: { tools, policy, executor } as unknown as Pick<EngineDeps, Seen> }
}

/** The outcome of the turn's one call. */
const outcome = async (id: string) => {
  const results = (await store.messages.after(id, 0)).find(({ role }) => role === 'tool')
  return results?.parts.map((part) => part.type === 'tool_result' && part.outcome)
}

t.test('a call is not made at a server that took over the name of the server it is for', async (t) => {
  const { bus, say, replica } = world(t, {}, CALLS)
  const { row, ran, seen } = toolbox()
  const one = replica(seen)
  const [first, other] = [await server('first'), await server('other')]
  const { id } = await session()
  row.tools = [first.tool]
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  const types = follow(t, bus, id, turn.id)
  await eventually(() => types.includes('step.started'))
  row.tools = [other.tool]
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame([await outcome(id), ran], [['error'], []])
})

t.test('a turn calls the server that is bound while the turn begins', async (t) => {
  const { say, replica } = world(t, {}, CALLS)
  const { row, ran, seen } = toolbox()
  const { id: bound, tool } = await server('joining')
  const tools = {
    ...seen.tools,
    keptRevision: () => row.revision,
    async bringUpToDate(id: string) {
      await store.connectors.bind(id, bound, null)
      Object.assign(row, { tools: [tool], revision: 1 })
      return 0
    },
  }
  const one = replica({ ...seen, tools })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(ran, [bound])
})

t.test('a turn calls the server that is bound while the answer of its opening is on its way', async (t) => {
  const { say, replica } = world(t, {}, CALLS)
  const { row, ran, seen } = toolbox()
  const { id: bound, tool } = await server('overtaking')
  const overtaken = withTurns({
    async openSurely(...given) {
      const opened = await store.turns.openSurely(...given)
      await store.connectors.bind(given[1].turn.session_id, bound, null)
      Object.assign(row, { tools: [tool], revision: 1 })
      return opened
    },
  })
  const one = replica({
    ...seen,
    store: overtaken,
    tools: { ...seen.tools, keptRevision: () => row.revision },
  })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(ran, [bound])
})

t.test('a tool that another replica switched off is not run although no message told of it', async (t) => {
  const { bus, say, replica } = world(t, {}, CALLS)
  const { ran, seen } = toolbox()
  const registries = createRegistries({
    store,
    sayToolsChanged: async () => {},
    log: pino({ level: 'silent' }),
  })
  const one = replica({ ...seen, tools: { ...seen.tools, ...registries } as unknown as EngineDeps['tools'] })
  const { tool } = await server('switched')
  const { id } = await session()
  const write = (revision: number, enabled: boolean) =>
    store.registry.put([{ session_id: id, expected: revision - 1, tools: [{ ...tool, enabled }] }])
  await write(1, true)
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  const types = follow(t, bus, id, turn.id)
  await eventually(() => types.includes('step.started'))
  await write(2, false)
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame([await outcome(id), ran], [['error'], []])
  const rows = await store.executions.ofTurn(turn.id)
  t.match(rows, [{ tools_revision: 1 }], 'the ledger has the revision that the model was shown')
})

t.test('other replicas hear of a revision although the log refuses its event', async (t) => {
  const { bus, replica } = world(t)
  const heard: unknown[] = []
  const { tools } = pieces(Promise.resolve(), CALLS)
  replica({ tools: { ...tools, noteAnnounced: (...revision) => void heard.push(revision) } })
  const full = replica({ bus: { ...bus, append: () => Promise.reject(new Error('full')) } })
  const delta = { tools_revision: 2, added: [], removed: ['a.b'], changed: [] }
  await t.rejects(full.sayToolsChanged('ses_1', delta, null), { message: 'full' })
  await eventually(() => heard.length > 0)
  t.strictSame(heard, [['ses_1', 2]])
})

t.test('a model request is made anew if the tools changed after it was prepared', async (t) => {
  const { say, replica } = world(t)
  const { row, seen } = toolbox()
  const { overlay } = seen.tools
  let isFirst = true
  const tools = {
    ...seen.tools,
    keep: () => row,
    latestRevision: () => row.revision,
    overlay(...given: Parameters<typeof overlay>) {
      const made = overlay(...given)
      if (isFirst) row.revision++
      isFirst = false
      return made
    },
  }
  const one = replica({ ...seen, tools })
  say()
  const { turn } = await one.start(CALLER, (await session()).id, asked())
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { steps: [{ tools_revision: 1, attempt: 1 }] })
})

t.test('what a turn waits for servers as it begins counts as its wait', async (t) => {
  const { say, replica } = world(t, {}, CALLS)
  const { seen } = toolbox()
  const waits: number[] = []
  const bringUpToDate = async (_: string, ms: number) => {
    waits.push(ms)
    return 300
  }
  const one = replica({ ...seen, tools: { ...seen.tools, isBehind: () => true, bringUpToDate } })
  const { id } = await session()
  await one.start(CALLER, id, asked({ max_steps: 2 }))
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 2, on_busy: 'enqueue' }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(waits, [400, 100, 400, 100, 0], 'a queued turn looks at its tools again as it begins')
})

t.test('a connector’s new settings hold from the next step of a running turn on', async (t) => {
  const { say, replica } = world(t, {}, CALLS)
  const { row, ran, seen } = toolbox((connector) => connector?.require_approval === 'always')
  const { id } = await session()
  const bound = await server('strict')
  await store.connectors.bind(id, bound.id, 'a')
  const connector = await store.connectors.get(CALLER, bound.id)
  if (!connector) return t.fail('the connector is gone')
  row.tools = [bound.tool]
  const { run } = seen.executor
  const executor = {
    ...seen.executor,
    async run(call: ExecutorCall) {
      await store.connectors.update(CALLER, connector, { require_approval: 'always' })
      return run(call)
    },
  }
  const one = replica({ ...seen, executor })
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 3 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'awaiting_input', steps: [{}, {}] })
  t.strictSame(ran, [bound.id])
})

t.test('a connector’s new settings hold for a turn that was waiting for its slot', async (t) => {
  const { say, replica, begin } = world(t, { concurrentTurns: 1 }, CALLS)
  const { row, ran, seen } = toolbox((connector) => connector?.require_approval === 'always')
  const { id } = await session()
  const bound = await server('guarded')
  await store.connectors.bind(id, bound.id, 'a')
  const connector = await store.connectors.get(CALLER, bound.id)
  if (!connector) return t.fail('the connector is gone')
  row.tools = [bound.tool]
  const one = replica({
    ...seen,
    tools: { ...seen.tools, keptRevision: () => row.revision, keep: () => row },
  })
  await begin(one, { max_steps: 1 })
  const { turn } = await one.start(CALLER, id, asked())
  await store.connectors.update(CALLER, connector, { require_approval: 'always' })
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'awaiting_input' })
  t.strictSame(ran, [null], 'only the turn before it called the tool')
})

t.test('a turn that waited calls no server that was unbound while its approved call ran', async (t) => {
  const { say, replica } = world(t, {}, CALLS)
  const { row, ran, seen } = toolbox((connector) => connector !== null)
  const { id } = await session()
  const bound = await server('leaving')
  await store.connectors.bind(id, bound.id, 'a')
  row.tools = [bound.tool]
  const { run } = seen.executor
  const executor = {
    ...seen.executor,
    async run(call: ExecutorCall) {
      // As where the store fails before the server's tools are taken out of the registry, too.
      await store.connectors.unbind(id, bound.id)
      return run(call)
    },
  }
  const one = replica({ ...seen, executor })
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 2 }))
  say()
  await one.wait(CALLER, turn.id, 30, NEVER)
  await one.decide(CALLER, turn.id, 'call_1', { decision: 'approve' })
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(ran, [bound.id, null])
})

t.test('a call that waits for a person is left alone when another tool is removed', async (t) => {
  const { say, replica } = world(t, {}, CALLS)
  const { row, seen } = toolbox(() => true)
  row.tools = [(await server('left')).tool]
  const one = replica(seen)
  const opened = await session()
  const { turn } = await one.start(CALLER, opened.id, asked({ max_steps: 1 }))
  say()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'awaiting_input' })
  await one.takeEffect(opened, { tools_revision: 1, removed: ['a.c'], isMoved: true }, 'now')
  t.match(await store.executions.ofTurn(turn.id), [{ state: 'awaiting_approval', approval: null }])
  t.match(await store.turns.get(CALLER, turn.id), { state: 'awaiting_input' })
})

t.test('a change takes effect with the next turn while the session’s only turn is queued', async (t) => {
  const { replica } = world(t)
  const one = replica()
  const { session: opened, turn, fence } = await runningTurn(store, CALLER)
  const queued = openRequest(opened.id, { on_busy: 'enqueue' })
  await store.turns.open(CALLER, queued)
  await endTurn(store, fence, turn.id)
  const effect = await one.takeEffect(opened, { tools_revision: 1, removed: [], isMoved: true }, 'now')
  await store.turns.endQueued(queued.turn, { state: 'cancelled' }, [])
  t.strictSame(effect, { effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null })
})

t.test('an approved call is not run at another server that took over the name or alias', async (t) => {
  const turned = async (change: (bound: { id: string }, session: string) => Promise<RegistryTool>) => {
    const { say, replica } = world(t, {}, CALLS)
    const { row, ran, seen } = toolbox(() => true)
    const one = replica(seen)
    const bound = await server(`name-${Math.random()}`.replace('.', ''))
    const { id } = await session()
    await store.connectors.bind(id, bound.id, 'a')
    row.tools = [bound.tool]
    const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
    say()
    t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'awaiting_input' })
    row.tools = [await change(bound, id)]
    await one.decide(CALLER, turn.id, 'call_1', { decision: 'approve' })
    await one.wait(CALLER, turn.id, 30, NEVER)
    return { ran, bound, outcome: await outcome(id) }
  }
  const same = await turned(
    async ({ id }) => ({ connector_id: id, canonical_name: 'a.b', enabled: true }) as RegistryTool,
  )
  t.strictSame([same.ran, same.outcome], [[same.bound.id], ['ok']])
  const anew = await turned(async ({ id }, session) => {
    const { name } = (await store.connectors.get(CALLER, id)) ?? { name: '' }
    await store.connectors.delete(CALLER, id)
    const other = await server(name)
    await store.connectors.bind(session, other.id, 'a')
    return other.tool
  })
  t.strictSame([anew.ran, anew.outcome], [[], ['cancelled']])
  const older = await server('older')
  const aliased = await turned(async ({ id }, session) => {
    await store.connectors.unbind(session, id)
    await store.connectors.bind(session, older.id, 'a')
    return older.tool
  })
  t.strictSame([aliased.ran, aliased.outcome], [[], ['cancelled']])
})

t.test('a call is cancelled if its tool is removed while its turn begins to wait for a person', async (t) => {
  for (const isElsewhere of [false, true]) {
    const { say, replica, begin } = world(t, {}, CALLS)
    const { row, ran, seen } = toolbox(() => true)
    const { tool } = await server(isElsewhere ? 'c' : 'd')
    row.tools = [tool]
    const { opened: committed, open: commit } = gate()
    const { opened: reached, open: reach } = gate()
    const slow = withTurns({
      async commit(...args) {
        if (args[1].state === 'awaiting_input') {
          reach()
          await committed
        }
        return store.turns.commit(...args)
      },
    })
    const owner = replica({ ...seen, store: slow })
    const other = replica(seen)
    const { session: opened, turn, types } = await begin(owner, { max_steps: 1 })
    say()
    await reached
    row.tools = []
    const move = { tools_revision: 1, removed: ['a.b'], isMoved: true }
    const change = (isElsewhere ? other : owner).takeEffect(opened, move, 'now')
    t.match(await change, { effective: { turn_id: turn.id, from: 'next_step' }, restarted_turn_id: null })
    commit()
    await eventually(() => types.includes('turn.completed'))
    t.strictSame([await outcome(opened.id), ran], [['cancelled'], []])
  }
})
