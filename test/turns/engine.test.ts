/** Replicas without HTTP: engines over one store and one bus, with a model that a test holds in its hand. */
import { pino } from 'pino'
import t, { type Test } from 'tap'
import type { BusEvent } from '../../src/bus/bus.ts'
import { createMemoryBus } from '../../src/bus/memory.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import { NO_USAGE, type Part, type ToolCallPart, type ToolResultPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { ModelCall } from '../../src/llm.ts'
import type { StartTurn } from '../../src/ports.ts'
import type { Deployment } from '../../src/provider.ts'
import { openStore } from '../../src/store/open.ts'
import { type Session, StaleOwner, type Store } from '../../src/store/store.ts'
import { createLog, createMetrics } from '../../src/telemetry.ts'
import type { ExecutorCall, Settled } from '../../src/tools/execute.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { createEngine } from '../../src/turns/engine.ts'
import {
  COMPLETED,
  endTurn,
  LAPSED,
  message,
  newSession,
  openRequest,
  text,
} from '../contracts/store-rows.ts'
import { gate } from '../emulators/http.ts'

const CALLER = { owner: 'local', admin: true, key_id: null }

const store = await openStore({ databaseUrl: null, dataDir: null, poolSize: 1 })
t.teardown(() => store.close())

const deployment = { capabilities: () => ({ toolLimit: null }) } as unknown as Deployment

const HELLO: ModelEvent[] = [
  { type: 'text.delta', index: 0, text: 'hello' },
  { type: 'finish', reason: 'stop' },
]

/** What an engine needs beside its store and bus; the model answers once `said` has come. */
function pieces(said: Promise<void>, answer: ModelEvent[]): Omit<EngineDeps, 'store' | 'bus' | 'settings'> {
  const registry = { session_id: '', revision: 0, updated_at: '', tools: [] }
  const credential = { facts: { id: 'cred_1' }, kind: 'api_key', secret: async () => ({}) }
  return {
    llm: {
      async stream({ signal, beforeSend }: ModelCall, take: (event: ModelEvent) => void) {
        beforeSend?.()
        const stopped = new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
        await Promise.race([said, stopped])
        signal.throwIfAborted()
        answer.forEach(take)
      },
      reported: () => undefined,
    },
    credentials: { environment: ['acme'], resolve: async () => credential },
    tools: {
      bringUpToDate: async () => 0,
      isBehind: () => false,
      current: async () => registry,
      keep: (row: unknown) => row,
      keptRevision: () => undefined,
      latestRevision: () => 0,
      overlay: () => ({ tools: [], byExposed: new Map(), revision: 0 }),
      noteRevision() {},
    },
    deploymentFor: () => deployment,
    optionsFor: () => ({}),
    metrics: createMetrics({ defaults: false }),
    log: pino({ level: 'silent' }),
  } as unknown as Omit<EngineDeps, 'store' | 'bus' | 'settings'>
}

const settings = {
  leaseSeconds: 60,
  concurrentTurns: 10,
  waitingTurns: 10,
  overloadMs: 1e9,
  turnsPerOwner: null,
  queueLimit: 16,
  flushMs: 0,
  approvalSeconds: 60,
}

type Seen = 'store' | 'log' | 'metrics' | 'policy' | 'executor' | 'tools' | 'credentials'
let replicas = 0
/** Each replica may see the store, and say what it has to, in its own way. */
function world(t: Test, own: Partial<EngineDeps['settings']> = {}, answer = HELLO) {
  const bus = createMemoryBus()
  const { opened: said, open: say } = gate()
  t.teardown(() => bus.close())
  return {
    bus,
    say,
    replica(seen: { bus?: typeof bus } & Partial<Pick<EngineDeps, Seen>> = {}) {
      const replica = `replica-${++replicas}`
      const engine = createEngine({
        ...pieces(said, answer),
        store,
        bus,
        ...seen,
        settings: { ...settings, ...own, replica },
      })
      engine.begin()
      t.teardown(() => engine.drain(0))
      return engine
    },
  }
}

const asked = (rest: Partial<StartTurn> = {}): StartTurn => ({
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
const session = (): Promise<Session> => newSession(store, { owner: 'local', admin: false })
const withTurns = (turns: Partial<Store['turns']>): Store => ({
  ...store,
  turns: { ...store.turns, ...turns },
})
const until = async (holds: () => boolean | Promise<boolean>) => {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5))
}

/** Tools that answer nothing, once what they wait for has come. */
function toolsThat(wait: (call: string) => Promise<void> | null) {
  const policy = { needsApproval: () => false, isRepeatable: () => false, timeoutMs: () => 0 }
  const executor = {
    redactArguments: async (given: unknown) => given,
    async run({ call, exec_id }: ExecutorCall): Promise<Settled> {
      await wait(call.call_id)
      const { call_id, name } = call
      const ended = { outcome: 'ok', is_error: false } as const
      const result: ToolResultPart = { type: 'tool_result', call_id, name, content: [], ...ended }
      const left = { error: null, duration_ms: 1, bytes: 0, output: '', structured: false }
      return { result, settlement: { id: exec_id, ...ended, ...left, result } }
    },
  }
  return { policy, executor } as unknown as Pick<EngineDeps, 'policy' | 'executor'>
}

/** Types of a turn's events, as they come. */
function follow(t: Test, bus: ReturnType<typeof createMemoryBus>, id: string, turn: string): string[] {
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

t.test('a drain is over when its turns have been given away', async (t) => {
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
})

t.test('a turn handed over between two steps discards none', async (t) => {
  const call = { type: 'tool_call', call_id: 'call_1', name: 'a.b', arguments: {} } as const
  const { bus, say, replica } = world(t, {}, [
    { type: 'part', index: 0, part: call },
    { type: 'finish', reason: 'tool_calls' },
  ])
  const { opened: answered, open: answer } = gate()
  const tools = toolsThat(() => answered)
  const leaving = replica(tools)
  const { id } = await session()
  const { turn } = await leaving.start(CALLER, id, asked({ max_steps: 2 }))
  const types = follow(t, bus, id, turn.id)
  say()
  await until(() => types.includes('tool_execution.started'))
  const left = leaving.drain(5000)
  answer()
  await left
  replica(tools)
  await until(() => types.includes('turn.completed'))
  const steps = types.filter((type) => type.startsWith('step.'))
  t.strictSame(steps, ['step.started', 'step.completed', 'step.started', 'step.completed'])
})

t.test('a turn handed over within a step takes back what that streamed, and keeps its record', async (t) => {
  const { bus, say, replica } = world(t)
  const leaving = replica()
  const { id } = await session()
  const { turn } = await leaving.start(CALLER, id, asked())
  const types = follow(t, bus, id, turn.id)
  await until(() => types.includes('step.started'))
  await leaving.drain(0)
  say()
  replica()
  await until(() => types.includes('turn.completed'))
  const steps = types.filter((type) => type.startsWith('step.'))
  t.strictSame(steps, ['step.started', 'step.discarded', 'step.started', 'step.completed'])
  t.match((await store.turns.get(CALLER, turn.id))?.steps, [
    { index: 0, attempt: 1, discarded: true, finish_reason: null },
    { index: 0, attempt: 2, finish_reason: 'stop' },
  ])
})

t.test('a drain waits for a turn that was being opened', async (t) => {
  const { say, replica } = world(t)
  const { opened: reached, open: goOn } = gate()
  const openSurely: Store['turns']['openSurely'] = async (...request) => {
    await reached
    return store.turns.openSurely(...request)
  }
  const { id } = await session()
  const leaving = replica({ store: withTurns({ openSurely }) })
  const started = leaving.start(CALLER, id, asked())
  let isOver = false
  const drained = leaving.drain(1000).then(() => {
    isOver = true
  })
  await new Promise((resolve) => setTimeout(resolve, 20))
  t.notOk(isOver)
  goOn()
  const { turn } = await started
  await drained
  const taken = await store.turns.recover({ owner: 'next', seconds: 60 }, 10)
  t.match(
    taken.find((one) => one.turn.id === turn.id),
    { turn: { recoveries: 0 } },
    'nobody has it any more',
  )
  say()
})

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
      tools: { ...tools, current: async () => registry, overlay: () => overlay },
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

t.test('what cannot be read keeps no other from being taken on, and waits for its key', async (t) => {
  let isBroken = false
  let unread = 0
  const open = (stored: unknown): Part[] => {
    if (!isBroken || !JSON.stringify(stored).includes('broken')) return stored as Part[]
    unread++
    throw new Error('it cannot be opened')
  }
  const own = await openStore({
    databaseUrl: null,
    dataDir: null,
    poolSize: 1,
    codec: { seal: (parts) => parts, open },
  })
  t.teardown(() => own.close())
  const scope = { owner: 'local', admin: false }
  const said = async (words: string, rest: Parameters<typeof openRequest>[1]) => {
    const { id } = await newSession(own, scope)
    const opened = await own.turns.open(scope, openRequest(id, { ...rest, turn: { input: text(words) } }))
    if (opened?.kind !== 'running') throw new Error(`${opened?.kind}`)
    return { id, ...opened }
  }
  const ended = async (words: string) => {
    const { id, turn, fence } = await said(words, {})
    // An event of this type has no other words by which `open` could know it.
    const event = { type: 'turn.cancelled' as const, session_id: id, turn_id: turn.id, step: null, at: words }
    const end = { state: 'cancelled' as const, finish_reason: null, error: null }
    await own.turns.commit(fence, { turn_id: turn.id, end, announce: [{ key: `${turn.id}:end`, event }] })
    return { id, turn }
  }
  const waiting = async (words: string) => {
    const { id, turn, fence } = await said('first', {})
    const queued = openRequest(id, { on_busy: 'enqueue', turn: { input: text(words) } })
    await own.turns.open(scope, queued)
    await own.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
    return queued.turn
  }
  const leave = async (words: string) => ({
    lost: await said(words, { lease: LAPSED }),
    queued: await waiting(words),
    silent: await ended(words),
  })
  const broken = [await leave('broken')]
  // As many as one scan takes.
  const silenced = await Promise.all(Array.from({ length: 20 }, () => ended('broken')))
  const { lost, queued, silent } = await leave('whole')
  // Whichever comes first, one that cannot be read is ahead.
  broken.push(await leave('broken'))
  isBroken = true
  const { bus, say, replica } = world(t, { leaseSeconds: 3 })
  say()
  let scans = 0
  const unannounced: Store['turns']['unannounced'] = (...given) => {
    scans++
    return own.turns.unannounced(...given)
  }
  const lines: { level: number; turn_id?: string; reason?: string }[] = []
  const log = createLog('warn', { write: (line) => void lines.push(JSON.parse(line)) })
  const first = createMetrics({ defaults: false })
  replica({ store: { ...own, turns: { ...own.turns, unannounced } }, log, metrics: first })
  const state = async (id: string) => (await own.turns.get(scope, id))?.state
  await until(async () => (await state(lost.turn.id)) === 'completed')
  await until(async () => (await state(queued.id)) === 'completed')
  const types = follow(t, bus, silent.id, silent.turn.id)
  await until(() => types.includes('turn.cancelled'))
  const [tried, seen] = [unread, scans]
  const [stuck, waits] = [broken.map((one) => one.lost.turn.id), broken.map((one) => one.queued.id)]
  const unsaid = [...silenced, ...broken.map((one) => one.silent)].map(({ turn }) => turn.id)
  await until(() => scans > seen + 1)
  t.equal(unread, tried, 'those that cannot be read are not tried again')
  const told = lines.filter(({ level }) => level === 50)
  t.same(
    told.map(({ turn_id }) => turn_id).sort(),
    [...stuck, ...waits, ...unsaid].sort(),
    'each is told once',
  )
  for (const { reason } of told) t.match(reason, /it cannot be opened$/)
  t.match(await first.text(), 'baton_turns_recovered_total{reason="lost"} 1\n')

  isBroken = false
  const second = createMetrics({ defaults: false })
  replica({ store: own, metrics: second })
  for (const id of [...stuck, ...waits]) await until(async () => (await state(id)) === 'completed')
  const recoveries = await Promise.all(stuck.map(async (id) => (await own.turns.get(scope, id))?.recoveries))
  t.same(recoveries, [1, 1], 'lost once, however often it was looked at')
  t.match(await second.text(), 'baton_turns_recovered_total{reason="handed_over"} 4\n')
})

t.test('a turn whose conversation cannot be read waits for its key, and a new one says so', async (t) => {
  let isBroken = false
  const open = (stored: unknown): Part[] => {
    if (!isBroken || !JSON.stringify(stored).includes('broken')) return stored as Part[]
    throw new Error('it cannot be opened')
  }
  const codec = { seal: (parts: Part[]) => parts, open }
  const own = await openStore({ databaseUrl: null, dataDir: null, poolSize: 1, codec })
  t.teardown(() => own.close())
  const broken = async () => {
    const { id } = await newSession(own, CALLER)
    await own.messages.append(CALLER, id, [message('broken')])
    return id
  }
  const lost = async (id: string) => {
    const opened = await own.turns.open(CALLER, openRequest(id, { lease: LAPSED }))
    if (opened?.kind !== 'running') throw new Error(`${opened?.kind}`)
    return opened
  }
  const lostWithin = async () => {
    const opened = await lost((await newSession(own, CALLER)).id)
    const turn_id = opened.turn.id
    const messages = [message('broken', { turn_id, role: 'assistant' })]
    await own.turns.commit(opened.fence, { turn_id, messages })
    return opened
  }
  const before = await lost(await broken())
  const within = await lostWithin()
  const turn_id = within.turn.id
  const given = [await lost(await broken()), await lostWithin()].map(({ turn }) => turn)
  const fresh = await broken()
  isBroken = true
  const { bus, say, replica } = world(t, { leaseSeconds: 3 })
  say()
  let scans = 0
  const unannounced: Store['turns']['unannounced'] = (...given) => {
    scans++
    return own.turns.unannounced(...given)
  }
  const lines: { level: number; msg: string; turn_id?: string; reason?: string }[] = []
  const log = createLog('error', { write: (line) => void lines.push(JSON.parse(line)) })
  const one = replica({ store: { ...own, turns: { ...own.turns, unannounced } }, log })
  const left = [before.turn.id, turn_id]
  const all = [...left, ...given.map(({ id }) => id)]
  await until(() => lines.length >= all.length)
  const seen = scans
  await until(() => scans > seen + 3)
  t.same(lines.map((line) => line.turn_id).sort(), all.sort(), 'each is told once')
  for (const line of lines)
    t.match(line, { msg: /waits for its encryption key/, reason: 'it cannot be opened' })
  for (const { id, session_id } of given) {
    t.match(await one.cancel(CALLER, id, true), { state: 'cancelled' }, 'a cancel needs no key')
    t.equal(await own.sessions.delete(CALLER, session_id), 'deleted')
  }
  const { turn } = await one.start(CALLER, fresh, asked())
  const failed = await one.wait(CALLER, turn.id, 30, new AbortController().signal)
  t.match(failed, { state: 'failed', error: { code: 'internal', message: 'it cannot be opened' } })

  const types = follow(t, bus, within.fence.session_id, turn_id)
  isBroken = false
  replica({ store: own })
  const state = async (id: string) => (await own.turns.get(CALLER, id))?.state
  for (const id of left) await until(async () => (await state(id)) === 'completed')
  await until(() => types.includes('turn.completed'))
  t.ok(types.includes('step.discarded'), 'what its lost owner streamed is taken back')
})

t.test('whoever takes a turn over to cancel it says what its last owner had left to say', async (t) => {
  const { id } = await newSession(store, CALLER)
  const opened = await store.turns.open(CALLER, openRequest(id, { lease: LAPSED }))
  if (opened?.kind !== 'running') throw new Error(`${opened?.kind}`)
  const turn_id = opened.turn.id
  const event = { type: 'usage' as const, session_id: id, turn_id, step: 0, at: '', ...NO_USAGE }
  await store.turns.commit(opened.fence, { turn_id, announce: [{ key: `${turn_id}:usage`, event }] })
  await store.turns.requestCancel(CALLER, turn_id)
  const { bus, replica } = world(t)
  const types = follow(t, bus, id, turn_id)
  // As every login: asked whether its vendor has to set it up first.
  const login = {
    facts: { id: 'cred_1' },
    kind: 'oauth',
    secret: async () => ({}),
    complete: () => Promise.resolve({}).then((facts) => facts),
  }
  replica({
    credentials: { environment: [], resolve: async () => login } as unknown as EngineDeps['credentials'],
  })
  await until(() => types.includes('turn.cancelled'))
  t.same(types.slice(types.indexOf('usage')), ['usage', 'step.discarded', 'turn.cancelled'])
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
