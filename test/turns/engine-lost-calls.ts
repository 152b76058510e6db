/**
 * The calls of a step whose owner was lost while they ran: which calls are made again, and what the others are told.
 */
import { once } from 'node:events'
import t, { type Test } from 'tap'
import type { ToolCallPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { RegistryTool } from '../../src/store/store.ts'
import { createMetrics } from '../../src/telemetry.ts'
import type { ExecutorCall } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import type { Engine } from '../../src/turns/engine.ts'
import { unlessAborted } from '../../src/within.ts'
import { id, LAPSED, message, runningTurn } from '../contracts/store-rows.ts'
import { eventually, gate } from '../waiting.ts'
import { asked, CALLER, NEVER, pieces, type Seen, settled, store, toolsThat, world } from './engines.ts'

const call = (name: string, rest: Partial<ToolCallPart> = {}): ToolCallPart => ({
  type: 'tool_call',
  call_id: `call_${name}`,
  name,
  arguments: {},
  ...rest,
})
/** The calls with their ledger rows: whether each may be made again, and which server it was for. */
const CALLS = [
  { ...call('look'), repeatable: true, connector: null },
  { ...call('write', { arguments_text: '{"at": ' }), repeatable: false, connector: null },
  { ...call('unknown'), repeatable: false, connector: null },
  { ...call('gone.look'), repeatable: true, connector: 'gone' },
  { ...call('gone.write'), repeatable: false, connector: 'gone' },
]

/**
 * A turn whose owner died with its calls begun. `isNoted` false: the ledger has no rows of them, which cannot happen.
 */
async function lost(isNoted = true) {
  const { fence, turn, session } = await runningTurn(store, CALLER, LAPSED)
  const executions = CALLS.map(({ call_id, name, repeatable, connector }) => ({
    id: id('exec'),
    turn_id: turn.id,
    step: 0,
    call_id,
    tool: name,
    connector,
    tools_revision: 0,
    arguments: {},
    state: 'started' as const,
    repeatable,
  }))
  const parts = CALLS.map(({ repeatable: _, connector: __, ...part }) => part)
  const said = message('', { role: 'assistant', turn_id: turn.id, parts })
  await store.turns.commit(fence, {
    turn_id: turn.id,
    messages: [said],
    executions: isNoted ? executions : [],
  })
  return { turn: turn.id, session: session.id, fence }
}

/**
 * Lets a replica take the turn over. `made`: the calls that it hands to the executor · `others`: results of the other
 * calls
 */
async function takenOver(
  test: Test,
  { turn, session }: Awaited<ReturnType<typeof lost>>,
  more: object = {},
  isDrainedFirst = false,
  meanwhile: (by: Engine) => Promise<unknown> = async () => {},
) {
  const { say, replica, bus } = world(test)
  say()
  const made: string[] = []
  const tools = ['look', 'write'].map(
    (name) => ({ canonical_name: name, connector_id: null, enabled: true }) as RegistryTool,
  )
  const registry = { session_id: '', revision: 0, updated_at: '', tools }
  const byExposed = new Map(tools.map((tool) => [tool.canonical_name, { tool, rename: null }]))
  const start = (wait: Parameters<typeof toolsThat>[0], own: object = {}) => {
    return replica({
      ...toolsThat(wait),
      tools: {
        ...pieces(Promise.resolve(), []).tools,
        current: async () => registry,
        newest: async () => registry,
        overlay: () => ({ tools: [], byExposed, revision: 0 }),
      },
      ...more,
      ...own,
    } as unknown as Pick<EngineDeps, Seen>)
  }
  if (isDrainedFirst) {
    const { opened: isBegun, open: begin } = gate()
    const run = async ({ call, exec_id, signal }: ExecutorCall) => {
      if (call.name !== 'look') return settled(call, exec_id, 'error', 0)
      begin()
      await once(signal, 'abort')
      return settled(call, exec_id, 'cancelled', 0)
    }
    const first = start(() => null, { executor: { ...toolsThat(() => null).executor, run } })
    await isBegun
    await first.drain(0)
  }
  const by = start((one) => {
    made.push(one)
    return null
  })
  await meanwhile(by)
  await eventually(async () => ((await store.turns.get(CALLER, turn))?.ended_at ?? null) !== null)
  const results = (await store.messages.after(session, 0)).flatMap(({ parts }) => parts)
  const others = results.filter((part) => part.type === 'tool_result' && !made.includes(part.call_id))
  return { made, others, bus }
}

const UNKNOWN = { outcome: 'outcome_unknown' }

t.test('a new owner takes up repeatable and impossible calls; the others’ outcome is unknown', async (t) => {
  const { made, others } = await takenOver(t, await lost())
  t.strictSame(made, ['call_look', 'call_write', 'call_unknown'])
  t.match(others, [
    { name: 'gone.look', ...UNKNOWN },
    { name: 'gone.write', ...UNKNOWN },
  ])
})

/** Each of the named verbs is away the first time that it is called. */
const awayOnce = <Verbs extends object>(verbs: Verbs, ...names: (keyof Verbs)[]): Verbs => {
  const away = names.map((name) => {
    let isAway = true
    const verb = verbs[name] as (...given: unknown[]) => Promise<unknown>
    const asked = (...given: unknown[]) => {
      if (!isAway) return verb(...given)
      isAway = false
      return Promise.reject(new BatonError('unavailable', 'away'))
    }
    return [name, asked]
  })
  return { ...verbs, ...Object.fromEntries(away) }
}

t.test('a store that is away once at each verb fails neither the turn nor a call', async (t) => {
  const { sessions, turns, messages, executions, connectors } = store
  const own = {
    ...store,
    sessions: awayOnce(sessions, 'ofTurn'),
    turns: awayOnce(turns, 'commit', 'readStep'),
    messages: awayOnce(messages, 'after'),
    executions: awayOnce(executions, 'begin', 'settle', 'ofTurn'),
    connectors: awayOnce(connectors, 'bindings'),
  }
  const turn = await lost()
  const { made, others } = await takenOver(t, turn, { store: own })
  t.strictSame(made, ['call_look', 'call_write', 'call_unknown'])
  t.equal(others.length, 2)
  t.match(await store.turns.get(CALLER, turn.turn), { state: 'completed' })

  const { say, replica } = world(t)
  say()
  const one = replica({ tools: awayOnce(pieces(Promise.resolve(), []).tools, 'bringUpToDate', 'current') })
  const { turn: plain } = await one.start(CALLER, turn.session, asked())
  const over = await one.wait(CALLER, plain.id, 30, NEVER)
  t.match(over, { state: 'completed' }, 'a turn completes if the store is away when its tools are read')
})

t.test('the replica that settles a call of unknown outcome counts it without a duration', async (t) => {
  const metrics = createMetrics({ defaults: false })
  await takenOver(t, await lost(), { metrics })
  const page = await metrics.text()
  t.match(page, 'baton_tool_calls_total{tool="unknown",outcome="outcome_unknown"} 2\n')
  const timed = [...page.matchAll(/^baton_tool_call_seconds_count.* (\d+)$/gm)].map(([, count]) =>
    Number(count),
  )
  t.equal(
    timed.reduce((sum, count) => sum + count, 0),
    3,
    'only the calls that were made again have a duration',
  )
})

t.test('a call that a drained owner settled without a commit is counted once', async (t) => {
  const metrics = createMetrics({ defaults: false })
  const { made } = await takenOver(t, await lost(), { metrics }, true)
  t.strictSame(made, ['call_look'], 'the next owner makes what was not sent, and none of unknown outcome')
  t.match(await metrics.text(), 'baton_tool_calls_total{tool="unknown",outcome="outcome_unknown"} 2\n')
})

t.test('the replica that takes a turn over announces a call that was settled before', async (t) => {
  const lostTurn = await lost()
  const [row] = await store.executions.ofTurn(lostTurn.turn)
  if (!row) return t.fail('the ledger is empty')
  const { id, call_id, tool: name } = row
  await store.executions.settle(lostTurn.fence, settled(call(name, { call_id }), id, 'ok'))
  const { made, bus } = await takenOver(t, lostTurn)
  t.notOk(made.includes(call_id), 'the settled call is not made again')
  const told = []
  const place = { turn: lostTurn.turn, after: 'start', signal: NEVER }
  for await (const item of bus.read(lostTurn.session, place)) {
    if ('events' in item) told.push(...item.events.map(({ data }) => JSON.parse(data)))
  }
  const completed = told.filter(({ type, exec_id }) => type === 'tool_execution.completed' && exec_id === id)
  t.match(completed, [{ call_id, outcome: 'ok', duration_ms: 1 }])
})

t.test('a call that the ledger does not know is not run', async (t) => {
  const { made, others } = await takenOver(t, await lost(false))
  t.strictSame(made, [])
  t.match(
    others,
    CALLS.map(() => UNKNOWN),
  )
})

t.test('no repeatable call is made again for a turn that is to be cancelled', async (t) => {
  const turn = await lost()
  await store.turns.requestCancel(CALLER, turn.turn)
  const { made, others } = await takenOver(t, turn)
  t.strictSame(
    made,
    ['call_write', 'call_unknown'],
    'only calls that the executor answers without calling anything',
  )
  t.match(others, [
    { name: 'look', ...UNKNOWN },
    { name: 'gone.look', ...UNKNOWN },
    { name: 'gone.write', ...UNKNOWN },
  ])
})

t.test(
  'a call that is taken up and cancelled unsent is of unknown outcome: its first owner may have made it',
  async (t) => {
    const turn = await lost()
    const waits = gate()
    async function run({ call: { call_id }, call, exec_id, signal }: ExecutorCall) {
      // No such tool, or no JSON
      if (call_id !== 'call_look') return settled(call, exec_id, 'error', 0)
      waits.open()
      await unlessAborted(signal, new Promise(() => {})).catch(() => {})
      return settled(call, exec_id, 'cancelled', 0)
    }
    const executor = { ...toolsThat(() => null).executor, run }
    const { others } = await takenOver(t, turn, { executor }, false, async (by) => {
      await waits.opened
      await by.cancel(CALLER, turn.turn, null)
    })
    t.match(others, [
      { name: 'look', ...UNKNOWN },
      { name: 'write', outcome: 'error' },
      { name: 'unknown', outcome: 'error' },
      { name: 'gone.look', ...UNKNOWN },
      { name: 'gone.write', ...UNKNOWN },
    ])
  },
)

t.test('a turn whose messages are too long to be read ends, and its calls with it', async (t) => {
  const after = async () => Promise.reject(new BatonError('context_too_long', 'They are too long.'))
  const turn = await lost()
  const own = { ...store, messages: { ...store.messages, after } }
  const { made, others } = await takenOver(t, turn, { store: own })
  t.match(await store.turns.get(CALLER, turn.turn), { state: 'failed', error: { code: 'context_too_long' } })
  t.strictSame(made, [])
  t.equal(others.length, CALLS.length, 'every call has a result')
})

t.test('in a turn that cannot go on, only calls that could never run are told as not run', async (t) => {
  const credentials = {
    resolve: async () => Promise.reject(new BatonError('no_credential', 'There is none.')),
  }
  const { made, others } = await takenOver(t, await lost(), { credentials })
  t.strictSame(made, [])
  t.match(others, [
    { name: 'look', ...UNKNOWN },
    { name: 'write', outcome: 'error' },
    { name: 'unknown', outcome: 'error' },
    { name: 'gone.look', ...UNKNOWN },
    { name: 'gone.write', ...UNKNOWN },
  ])
})
