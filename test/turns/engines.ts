/**
 * Replicas without HTTP, for a test: engines over one store and one bus, with a model that answers when the test says
 * so.
 */
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createMemoryBus } from '../../src/bus/memory.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import type { ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import { LlmStale, type ModelCall } from '../../src/llm.ts'
import type { StartTurn } from '../../src/ports.ts'
import type { Deployment } from '../../src/provider.ts'
import type { Session, Settlement, Store } from '../../src/store/store.ts'
import { createMetrics } from '../../src/telemetry.ts'
import type { ExecutorCall } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { createEngine, type Engine } from '../../src/turns/engine.ts'
import { newSession } from '../contracts/store-rows.ts'
import { freshDatabase, storeOn } from '../store/fresh.ts'
import { gate } from '../waiting.ts'

export const CALLER = { owner: 'local', admin: true, key_id: null }
export const NEVER = new AbortController().signal

/** Of `store`; a part may have another store on it. */
export const database = await freshDatabase(t)
export const store = await storeOn(database)

const deployment = { capabilities: () => ({}) } as unknown as Deployment

export const HELLO: ModelEvent[] = [
  { type: 'text.delta', index: 0, text: 'hello' },
  { type: 'finish', reason: 'stop' },
]
/** An answer that calls the tool `a.b`, once with each of these ids. */
export const calling = (...ids: string[]): ModelEvent[] => [
  ...ids.map((call_id, index): ModelEvent => {
    return { type: 'part', index, part: { type: 'tool_call', call_id, name: 'a.b', arguments: {} } }
  }),
  { type: 'finish', reason: 'tool_calls' },
]

/** What an engine needs beside its store and bus. Its model answers once `said` is fulfilled. */
export function pieces(
  said: Promise<void>,
  answer: ModelEvent[],
): Omit<EngineDeps, 'store' | 'bus' | 'settings'> {
  const registry = { session_id: '', revision: 0, updated_at: '', tools: [] }
  const credential = { facts: { id: 'cred_1' }, kind: 'api_key', secret: async () => ({}) }
  return {
    llm: {
      async stream({ signal, beforeSend }: ModelCall, take: (event: ModelEvent) => void) {
        if (!beforeSend()) throw new LlmStale()
        signal.throwIfAborted()
        const stopped = new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
        await Promise.race([said, stopped])
        signal.throwIfAborted()
        answer.forEach(take)
      },
      models: { known: () => undefined, ask: () => {} },
      refused: { known: () => undefined },
      preview: (_: unknown, body: unknown) => ({ body, notes: [] }),
    },
    credentials: { environment: { keys: ['acme'], logins: [] }, resolve: async () => credential },
    tools: {
      bringUpToDate: async () => 0,
      isBehind: () => false,
      current: async () => registry,
      present: async () => registry,
      newest: async () => registry,
      keep: (row: unknown) => row,
      keptRevision: () => undefined,
      latestRevision: () => 0,
      overlay: () => ({ tools: [], byExposed: new Map(), undeclared: [], revision: 0 }),
      noteRevision() {},
      noteAnnounced() {},
    },
    servedBy: () => ({ deployment, options: {} }),
    metrics: createMetrics({ defaults: false }),
    log: pino({ level: 'silent' }),
  } as unknown as Omit<EngineDeps, 'store' | 'bus' | 'settings'>
}

const settings = {
  concurrentTurns: 10,
  waitingTurns: 10,
  overloadMs: 1e9,
  turnsPerOwner: null,
  flushMs: 0,
  approvalSeconds: 60,
}

export type Seen = 'store' | 'log' | 'metrics' | 'policy' | 'executor' | 'tools' | 'credentials' | 'sealed'
let replicas = 0
type Settings = Omit<EngineDeps['settings'], 'lease'> & { leaseSeconds: number }
/** Each replica may get a store, a bus and other parts of its own. */
export function world(t: Test, { leaseSeconds = 60, ...own }: Partial<Settings> = {}, answer = HELLO) {
  const bus = createMemoryBus()
  const { opened: said, open: say } = gate()
  // Comes last: no replica of a later test takes over what this one leaves.
  t.teardown(() => database.query('delete from turn'))
  t.teardown(() => bus.close())
  return {
    bus,
    say,
    replica(seen: { bus?: typeof bus } & Partial<Pick<EngineDeps, Seen>> = {}) {
      const lease = { owner: `replica-${++replicas}`, seconds: leaseSeconds }
      const engine = createEngine({
        ...pieces(said, answer),
        store,
        bus,
        ...seen,
        settings: { ...settings, ...own, lease },
      })
      engine.begin()
      t.teardown(() => engine.drain(0))
      return engine
    },
    /** Begins a turn in a session of its own. `types`: the types of its events as they arrive. */
    async begin(at: Engine, rest: Partial<StartTurn> = {}) {
      const opened = await session()
      const { turn } = await at.start(CALLER, opened.id, asked(rest))
      return { session: opened, turn, types: follow(t, bus, opened.id, turn.id) }
    },
  }
}

export const asked = (rest: Partial<StartTurn> = {}): StartTurn => ({
  input: [{ type: 'text', text: 'hi' }],
  context: [],
  on_busy: 'reject',
  max_steps: 4,
  provider: null,
  model: null,
  idempotency_key: null,
  body_hash: '',
  ...rest,
})
export const session = (): Promise<Session> => newSession(store, { owner: 'local', admin: false })
export const withTurns = (turns: Partial<Store['turns']>): Store => ({
  ...store,
  turns: { ...store.turns, ...turns },
})

/** A store for a replica whose commits wait. `reached`: one has come; `goOn` lets them through. */
export function heldCommit() {
  const { opened: reached, open: reach } = gate()
  const { opened: committed, open: goOn } = gate()
  const commit: Store['turns']['commit'] = async (...given) => {
    reach()
    await committed
    return store.turns.commit(...given)
  }
  return { reached, goOn, store: withTurns({ commit }) }
}

/**
 * A store for a replica. `hasLooked`: the replica has looked there for work. A look ends by asking for announcements.
 */
export function looked(turns: Partial<Store['turns']> = {}) {
  const { opened: hasLooked, open } = gate()
  const unannounced: Store['turns']['unannounced'] = (...given) => {
    open()
    return store.turns.unannounced(...given)
  }
  return { hasLooked, store: withTurns({ unannounced, ...turns }) }
}

/** A call that ended with this outcome and an empty result. */
export function settled(
  { call_id, name }: ToolCallPart,
  id: string,
  outcome: ToolResultPart['outcome'],
  duration_ms = 1,
): Settlement {
  const ended = { outcome, is_error: outcome !== 'ok' }
  const result: ToolResultPart = { type: 'tool_result', call_id, name, content: [], ...ended }
  const left = { error: null, duration_ms, bytes: 0, output: '', structured: false }
  return { id, ...ended, ...left, result }
}

/** Tools that give an empty result once the promise for their call is fulfilled. */
export function toolsThat(wait: (call: string) => Promise<void> | null) {
  const policy = { needsApproval: () => false, isRepeatable: () => false, limits: () => ({ timeoutMs: 0 }) }
  const executor = {
    async run({ call, exec_id }: ExecutorCall) {
      await wait(call.call_id)
      return settled(call, exec_id, 'ok')
    },
    settleUnrun: async (call: ToolCallPart, exec_id: string, outcome: ToolResultPart['outcome']) =>
      settled(call, exec_id, outcome, 0),
  }
  return { policy, executor } as unknown as Pick<EngineDeps, 'policy' | 'executor'>
}

/** The types of a turn's events, as they arrive. */
export function follow(t: Test, bus: ReturnType<typeof createMemoryBus>, id: string, turn: string): string[] {
  const types: string[] = []
  const leave = new AbortController()
  t.teardown(() => leave.abort())
  void (async () => {
    for await (const item of bus.read(id, { turn, after: 'start', begun: true, signal: leave.signal })) {
      types.push(
        ...('events' in item ? item.events.map(({ type }) => type) : ['gap' in item ? 'gap' : 'lagged']),
      )
    }
  })()
  return types
}
