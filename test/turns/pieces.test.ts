/** The loop's small parts by themselves: slots, gathered writes, patience, commands, and which events are said. */
import { pino } from 'pino'
import t from 'tap'
import type { Bus, LoggedEvent, ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import type { TurnEvent } from '../../src/chat/event.ts'
import type { Message } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { AnnouncedEvent, Session, Store, Turn, TurnEnd } from '../../src/store/store.ts'
import {
  type ActiveTurn,
  CANCELLED,
  cancelRemoved,
  createActive,
  RESTART,
  requestRestart,
  requestStop,
  TOOL_REMOVED,
} from '../../src/turns/active.ts'
import { createAsks } from '../../src/turns/control.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { announcedEnd, hydrate } from '../../src/turns/events.ts'
import { gathering } from '../../src/turns/gather.ts'
import { createLoopDeps, patiently } from '../../src/turns/loop-deps.ts'
import { createSlots } from '../../src/turns/room.ts'
import { catchUp, commit, contextOf, type Run } from '../../src/turns/run.ts'
import { createWait } from '../../src/turns/wait.ts'
import { announced } from '../contracts/store-rows.ts'
import { gate } from '../waiting.ts'

const never = new AbortController().signal
const NOW = '2026-11-22T00:00:00.000Z'

t.test('slots are given to the owners in turn, even if one owner asked more often', async (t) => {
  const slots = createSlots(1)
  const first = await slots.take('greedy', never)
  const served: string[] = []
  const owners = ['greedy', 'greedy', 'greedy', 'modest', 'other']
  const all = owners.map(async (owner, i) => {
    const giveBack = await slots.take(owner, never)
    served.push(`${owner} ${i}`)
    giveBack()
  })
  t.ok(slots.isFull())
  t.equal(slots.count(), 6)
  first()
  await Promise.all(all)
  t.strictSame(served, ['greedy 0', 'modest 3', 'other 4', 'greedy 1', 'greedy 2'])
  t.equal(slots.count(), 0)
})

t.test('a turn that leaves the line for a slot takes no slot, and the next one gets it', async (t) => {
  const slots = createSlots(1)
  const giveBack = await slots.take('a', never)
  const gone = new AbortController()
  const last = slots.take('c', gone.signal)
  const left = slots.take('b', gone.signal)
  const stays = slots.take('b', never)
  gone.abort(CANCELLED)
  const without = [await left, await last, await slots.take('b', AbortSignal.abort(CANCELLED))]
  for (const leave of without) leave()
  t.equal(slots.count(), 2, 'one has the slot, and one waits')
  giveBack()
  ;(await stays)()
  t.notOk(slots.isFull())
})

t.test('each command to another replica gets its own answer', async (t) => {
  const sent: string[] = []
  const asks = createAsks({ publish: async (_, message) => void sent.push(JSON.parse(message).ask) })
  const ask = () => asks.ask({ op: 'restart', turn_id: 'turn_1', session_id: 'ses_1' })
  const both = Promise.all([ask(), ask()])
  for (const [i, answer] of [
    [1, 'limit'],
    [0, 'restarting'],
    [2, 'limit'],
  ] as const)
    asks.answered(sent[i] ?? '', answer)
  t.strictSame(await both, ['restarting', 'limit'])
})

t.test('ids that are added within a moment are written together, each once', async (t) => {
  const writes: string[][] = []
  const { opened: again, open } = gate()
  const write = async (ids: string[]) => {
    await new Promise(setImmediate)
    if (writes.push(ids) === 2) open()
  }
  const gathered = gathering(write, 5)
  for (const id of ['a', 'b', 'a']) gathered.add(id)
  await gathered.flush()
  t.strictSame(writes, [['a', 'b']])
  await gathered.flush()
  t.equal(writes.length, 1, 'nothing is written while nothing waits')
  gathered.add('c')
  await again
  t.strictSame(writes[1], ['c'])
})

t.test('patiently waits for a store that is away and throws every other failure', async (t) => {
  const lines: string[] = []
  const log = pino({ level: 'debug' }, { write: (line) => void lines.push(line) })
  let asked = 0
  const back = await patiently(log, async () => {
    if (++asked < 3) throw new BatonError('unavailable', 'away')
    return 'back'
  })
  t.strictSame([back, asked], ['back', 3])
  t.equal(lines.length, 1, 'the log gets one line')
  await t.rejects(
    patiently(log, async () => {
      asked++
      throw new BatonError('invalid_request', 'no')
    }),
    { code: 'invalid_request' },
  )
  t.equal(asked, 4)
})

t.test('all that a turn asks of its login is asked again while the store is away', async (t) => {
  const shaky = <T>(answer: T) => {
    let isAway = true
    return async () => {
      if (!isAway) return answer
      isAway = false
      throw new BatonError('unavailable', 'away')
    }
  }
  const login = { secret: shaky('secret'), onUnauthorized: shaky(true), complete: shaky('facts') }
  const verbs = new Proxy({}, { get: () => () => {} })
  const store = new Proxy({}, { get: () => verbs })
  const log = pino({ level: 'silent' })
  const given = { log, store, tools: verbs, credentials: { resolve: shaky(login) } }
  const { credentials } = createLoopDeps(
    given as unknown as EngineDeps,
    {} as Parameters<typeof createLoopDeps>[1],
  )
  const asked = await credentials.resolve({} as Session, 'openai')
  t.strictSame(
    [await asked.secret(), await asked.onUnauthorized?.(), await asked.complete?.()],
    ['secret', true, 'facts'],
  )
})

const turn = {
  id: 'turn_1',
  session_id: 'ses_1',
  restarts: 0,
  base_seq: 2,
  context: [] as Turn['context'],
  usage: { input_tokens: 1, output_tokens: 2, reasoning_tokens: 0, cached_tokens: 0 },
} as Turn
const activeIn = (phase: ActiveTurn['phase']): ActiveTurn => {
  const fence = { session_id: 'ses_1', owner: 'r', epoch: 1 }
  const active = createActive({ ...turn }, fence)
  active.phase = phase
  active.model = new AbortController()
  return active
}

t.test('a turn restarts only in a model call, once for several commands, at most eight times', async (t) => {
  const active = activeIn('model')
  t.equal(requestRestart(active), 'restarting')
  t.equal(active.model?.signal.reason, RESTART)
  t.equal(requestRestart(active), 'restarting', 'a second command joins the pending restart')
  active.sent = { revision: 7, isRestart: false }
  t.equal(
    requestRestart(active, 7),
    'restarting',
    'a command also joins if the request that is given up was made with its change',
  )
  for (const phase of ['preparing', 'tools', 'committing', 'waiting'] as const) {
    t.equal(requestRestart(activeIn(phase)), 'not_restartable', phase)
    const sent = { revision: 7, isRestart: true }
    t.equal(requestRestart({ ...activeIn(phase), sent }, 7), 'not_restartable', `${phase} after a request`)
  }
  const fresh = activeIn('model')
  fresh.sent = { revision: 7, isRestart: true }
  t.equal(requestRestart(fresh, 7), 'restarting', 'the request in flight was made with the change')
  t.equal(
    requestRestart(fresh, 7, false),
    'not_restartable',
    'a command that changed nothing claims no restart',
  )
  t.notOk(fresh.model?.signal.aborted)
  t.equal(requestRestart({ ...fresh, sent: { revision: 7, isRestart: false } }, 7), 'not_restartable')
  t.equal(requestRestart(fresh, 8), 'restarting')
  t.ok(fresh.model?.signal.aborted)
  const often = activeIn('model')
  often.turn.restarts = 8
  t.equal(requestRestart(often), 'limit')
  t.equal(requestRestart({ ...often, phase: 'preparing' }), 'limit', 'the limit counts before the phase')
  const stopped = activeIn('model')
  requestStop(stopped, CANCELLED)
  t.equal(requestRestart(stopped), 'not_restartable')
})

t.test(
  'calls of removed tools are stopped and others go on; a turn keeps the first reason to stop',
  async (t) => {
    const active = activeIn('tools')
    const calls = ['a.x', 'a.x', 'b.y'].map((tool, i) => {
      const abort = new AbortController()
      active.calls.set(`call_${i}`, { tool, abort })
      return abort
    })
    cancelRemoved(active, new Set(['a.x']))
    t.strictSame(
      calls.map(({ signal }) => signal.reason),
      [TOOL_REMOVED, TOOL_REMOVED, undefined],
    )
    requestStop(active, CANCELLED)
    requestStop(active, Symbol('later'))
    t.equal(active.stop.signal.reason, CANCELLED)
  },
)

const message = (seq: number, text: string): Message => ({
  id: `msg_${seq}`,
  session_id: 'ses_1',
  turn_id: null,
  seq,
  role: 'user',
  parts: [{ type: 'text', text }],
  created_at: NOW,
})

t.test('the model is shown the edited history, the messages since, and the hint', async (t) => {
  const active = activeIn('preparing')
  const history = [message(1, 'old'), message(2, 'old too'), message(3, 'new')]
  const edited = [message(1, 'edited')]
  const run = { active, history, edited, hint: 'Call better.' } as unknown as Run
  const texts = contextOf(run).map(({ parts: [part] }) => part?.type === 'text' && part.text)
  t.strictSame(texts, ['edited', 'new', 'Call better.'])
})

t.test('an announced message event is said with the stored message', async (t) => {
  const stub = { ...message(0, ''), id: 'msg_3', parts: [] }
  const said = {
    type: 'message',
    message: stub,
    session_id: 'ses_1',
    turn_id: 'turn_1',
    step: 0,
    at: NOW,
  } as const
  const stored = message(3, 'whole')
  t.match(hydrate(said, [stored]), { message: stored })
  t.equal(hydrate(said, []), null, 'nothing is said of a message that has been deleted')
  const other = {
    type: 'turn.cancelled',
    session_id: 'ses_1',
    turn_id: 'turn_1',
    step: null,
    at: NOW,
  } as const
  t.equal(hydrate(other, [stored]), other)
})

t.test('an announced result is said as its message has it, else as it was announced', async (t) => {
  const call = { call_id: 'call_1', is_error: false, outcome: 'ok' as const }
  const content = [{ type: 'image' as const, media_type: 'image/png', data: 'AAAA' }]
  const said: TurnEvent = {
    type: 'tool_execution.completed',
    ...call,
    exec_id: 'exec_1',
    duration_ms: 1,
    content: [{ type: 'text', text: 'an image' }],
    session_id: 'ses_1',
    turn_id: 'turn_1',
    step: 0,
    at: NOW,
  }
  const result = { type: 'tool_result' as const, ...call, name: 'docs.look', content }
  const answer: Message = { ...message(3, ''), role: 'tool', turn_id: 'turn_1', parts: [result] }
  t.match(hydrate(said, [answer, message(4, 'so')]), { exec_id: 'exec_1', content })
  t.equal(hydrate(said, [{ ...answer, turn_id: 'turn_0' }, message(4, 'so')]), said)
})

t.test('all waits of a turn for servers together take no longer than its share of time', async (t) => {
  const waits: number[] = []
  const tools = {
    isBehind: () => true,
    async bringUpToDate(_: string, ms: number) {
      waits.push(ms)
      return 300
    },
  }
  const run = { active: activeIn('preparing'), deps: { tools }, serverWaitMs: 400 } as unknown as Run
  for (let i = 0; i < 3; i++) await catchUp(run)
  t.strictSame(waits, [400, 100, 0])
})

const CALLER = { owner: 'local', admin: true, key_id: null }
const present = async () => 'place'
const logged = (type: string): LoggedEvent => ({ cursor: 'c', type, turn_id: turn.id, data: '{}' })

t.test('a wait for a turn ends with the turn although the bus is away or silent', async (t) => {
  const away = () => {
    throw new BatonError('unavailable', 'away')
  }
  const silent = () => ({ [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}) }) })
  for (const read of [away, silent]) {
    let isOver = false
    const get = async () => ({ ...turn, ended_at: isOver ? NOW : null })
    const bus = { read, present } as unknown as Bus
    const wait = createWait({ turns: { get, standing: get } } as unknown as Store, bus)
    const waited = wait(CALLER, turn.id, 600, never)
    await new Promise(setImmediate)
    isOver = true
    t.match(await waited, { ended_at: NOW })
  }
})

t.test('a wait for a turn ends as soon as the bus tells of its end, and then reads no more', async (t) => {
  const ends: ReadItem[] = [
    { events: [logged('turn.completed')] },
    { events: [logged('tool_execution.started'), logged('turn.awaiting_input')] },
    { gap: true, cursor: 'c' },
  ]
  for (const end of ends) {
    const { opened: isSaid, open: say } = gate()
    let asked: ReadOptions | undefined
    async function* read(_: string, options: ReadOptions): AsyncIterable<ReadItem> {
      asked = options
      yield { events: [logged('step.started')] }
      await isSaid
      yield end
    }
    let [reads, looks, isOver] = [0, 0, false]
    const standing = async () => {
      looks++
      return { ...turn, state: 'running', ended_at: isOver ? NOW : null }
    }
    const get = async () => {
      reads++
      return standing()
    }
    const wait = createWait({ turns: { get, standing } } as unknown as Store, { read, present })
    let waited: Turn | undefined
    void wait(CALLER, turn.id, null, never).then((seen) => {
      waited = seen
    })
    await new Promise(setImmediate)
    t.match(asked, { turn: turn.id, after: 'place' }, 'what was said before is not read')
    t.equal(looks, 2, 'another event is no reason to ask the store')
    t.equal(reads, 0, 'and a turn that goes on is not read as a whole')
    isOver = true
    say()
    await new Promise(setImmediate)
    t.match(waited, { ended_at: NOW })
    t.ok(asked?.signal.aborted)
  }
})

t.test('a wait for a turn that was just opened goes on while the store is away', async (t) => {
  let isAway = true
  const get = async () => {
    if (isAway) throw new BatonError('unavailable', 'away')
    return { ...turn, ended_at: NOW }
  }
  const { opened: hasEnded, open: end } = gate()
  async function* read(): AsyncIterable<ReadItem> {
    await hasEnded
    yield { events: [logged('turn.completed')] }
  }
  const wait = createWait({ turns: { get, standing: get } } as unknown as Store, { read, present })
  const waited = wait(CALLER, { ...turn, state: 'running', ended_at: null }, null, never)
  await new Promise(setImmediate)
  isAway = false
  end()
  t.match(await waited, { ended_at: NOW })
})

t.test('a wait for a turn that is resumed between its two reads goes on', async (t) => {
  let decided = false
  const standing = async () => ({ ...turn, state: decided ? 'running' : 'awaiting_input', ended_at: null })
  const get = async () => {
    decided = true
    return standing()
  }
  const read = () => ({ [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}) }) })
  const bus = { read, present } as unknown as Bus
  const wait = createWait({ turns: { get, standing } } as unknown as Store, bus)
  let isBack = false
  const leave = new AbortController()
  const waited = wait(CALLER, turn.id, null, leave.signal).finally(() => {
    isBack = true
  })
  await new Promise(setImmediate)
  t.notOk(isBack)
  leave.abort()
  await waited
})

t.test('a wait for a turn ends when its time is over, or its caller leaves', async (t) => {
  const get = async () => ({ ...turn, state: 'running', ended_at: null })
  const read = () => ({ [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}) }) })
  const bus = { read, present } as unknown as Bus
  const wait = createWait({ turns: { get, standing: get } } as unknown as Store, bus)
  const begun = performance.now()
  t.match(await wait(CALLER, turn.id, 0.02, never), { state: 'running' })
  t.ok(performance.now() - begun >= 20)
  const leave = new AbortController()
  const left = wait(CALLER, turn.id, null, leave.signal)
  await new Promise(setImmediate)
  leave.abort()
  t.match(await left, { state: 'running' })
})

t.test('each end of a turn has its event', async (t) => {
  const { usage } = turn
  const error = new BatonError('upstream_timeout', 'late').toBody()
  const said = (end: TurnEnd) => announcedEnd(turn, end).event
  t.match(said({ state: 'completed', finish_reason: 'length' }), {
    type: 'turn.completed',
    finish_reason: 'length',
    usage,
  })
  t.match(said({ state: 'cancelled' }), { type: 'turn.cancelled' })
  t.match(said({ state: 'failed', error }), { type: 'turn.failed', error })
})

t.test('an announced wait is noted at once, an announced end later with those of other turns', async (t) => {
  const noted: string[] = []
  const deps = {
    store: {
      turns: {
        commit: async () => ({ messages: [], has_queued: false }),
        forgetAnnouncements: async (turns: string[]) => void noted.push(`now ${turns}`),
      },
    },
    noteEndAnnounced: (id: string) => noted.push(`later ${id}`),
  } as unknown as Run['deps']
  const active = activeIn('tools')
  const writer = {
    emit: async () => {},
    flush: async () => {},
    isBroken: () => false,
  } as unknown as Run['writer']
  const run = { active, deps, writer, history: [], index: 0 }
  await commit(run, { state: 'awaiting_input' })
  await new Promise(setImmediate)
  await commit(run, { end: { state: 'cancelled' } })
  await new Promise(setImmediate)
  t.strictSame(noted, [`now ${turn.id}`, `later ${turn.id}`])
})

t.test('an end is committed after the stream’s flush, and says if the flush lost events', async (t) => {
  const kept: AnnouncedEvent[] = []
  const write = async (_: unknown, { announce }: { announce: AnnouncedEvent[] }) => {
    kept.push(...announce)
    return { messages: [], has_queued: false }
  }
  const deps = { store: { turns: { commit: write } }, noteEndAnnounced() {} } as unknown as Run['deps']
  let isBroken = false
  const flush = async () => {
    isBroken = true
  }
  const writer = { emit: async () => {}, flush, isBroken: () => isBroken } as unknown as Run['writer']
  const end = { state: 'cancelled' } as const
  await commit({ active: activeIn('model'), deps, writer, history: [], index: 0 }, { end })
  t.match(kept, [{ key: `${turn.id}:end`, lost: true }])
})

t.test('events that are not known to be in the stream are kept with the next commit, too', async (t) => {
  const kept: (string[] | undefined)[] = []
  const { opened: isThere, open: arrive } = gate()
  const write = async (_: unknown, { announce }: { announce?: AnnouncedEvent[] }) => {
    kept.push(announce?.map(({ key }) => key))
    return { messages: [], has_queued: false }
  }
  const deps = { store: { turns: { commit: write } } } as unknown as Run['deps']
  const writer = { emit: () => isThere, isBroken: () => false } as unknown as Run['writer']
  const run = { active: activeIn('tools'), deps, writer, history: [], index: 0 }
  const say = (key: string) => commit(run, { events: [announced(turn.id, 'ses_1', key)] })
  await say('one')
  await say('two')
  arrive()
  await new Promise(setImmediate)
  await say('three')
  t.strictSame(kept, [['one'], ['one', 'two'], ['three']])
})

t.test('of events that a bus refuses for long only the newest 32 MiB are kept', async (t) => {
  const kept: AnnouncedEvent[] = []
  const write = async (_: unknown, { announce }: { announce: AnnouncedEvent[] }) => {
    kept.push(...announce)
    return { messages: [], has_queued: false }
  }
  const deps = { store: { turns: { commit: write } } } as unknown as Run['deps']
  const writer = { emit: async () => {}, isBroken: () => false } as unknown as Run['writer']
  const active = activeIn('tools')
  for (const key of ['one', 'two'])
    active.unsaid.push(announced(turn.id, 'a session of long name '.repeat(1 << 20), key))
  await commit(
    { active, deps, writer, history: [], index: 0 },
    { events: [announced(turn.id, 'ses_1', 'three')] },
  )
  t.match(kept, [{ key: 'two', lost: true }, { key: 'three' }])
  t.equal(kept.length, 2, 'whoever says them tells readers that there were others')
})
