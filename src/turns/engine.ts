/**
 * The engine as the rest of Baton sees it: starts turns, knows those that this process owns, and carries
 * wishes to whoever owns the others. The loop itself is loop.ts; leases and recovery are leases.ts.
 */
import type { ToolsDelta, TurnEvent } from '../chat/event.ts'
import { newId } from '../chat/ids.ts'
import { BatonError } from '../errors.ts'
import type { Apply, Caller, StartedTurn, StartTurn, ToolsChange, Turns } from '../ports.ts'
import { EVERYONE, type Fence, type Scope, type Session, type Turn, Unreadable } from '../store/store.ts'
import {
  type ActiveTurn,
  CANCELLED,
  cancelRemoved,
  createActive,
  DRAINING,
  OWNER_LOST,
  RESTART_LIMIT,
  type RestartAnswer,
  requestRestart,
  requestStop,
} from './active.ts'
import { expireRemoved, recordDecision } from './approvals.ts'
import { createAsks } from './asks.ts'
import type { EngineDeps, LoopDeps } from './deps.ts'
import { gathering } from './gather.ts'
import { createHistories } from './histories.ts'
import { type EngineState, type Leases, startLeases } from './leases.ts'
import { type Entry, runTurn } from './loop.ts'
import { type Accepted, createOpening } from './opening.ts'
import { patientDeps } from './patience.ts'
import { renderPreview } from './preview.ts'
import { createRoom, watchLateness } from './room.ts'
import { event, terminalEvent } from './run.ts'
import { createSlots } from './slots.ts'
import { createUnderWay } from './under-way.ts'
import { createWait } from './wait.ts'

/** How long a waiting cancel gives the running turn to end. */
const CANCEL_WAIT_SECONDS = 30
/** How long turns that were told to leave may take to let go. */
const STOP_MS = 5_000
/** Ends of turns that are noted together; what a crash leaves unnoted is said again, and dropped. */
const GATHER_MS = 200
/** A cancelled turn that is not over by then is taken from its owner, alive or not. */
const CANCEL_DEADLINE_MS = 10_000

export interface Engine extends Turns {
  /** A session's registry moved: tells when it takes effect, and restarts the step in flight for `now`. */
  toolsChanged(
    session: Session,
    delta: ToolsDelta,
    apply: Apply,
  ): Promise<Pick<ToolsChange, 'effective' | 'restarted_turn_id'>>
  /** Takes over what crashed owners left, and keeps doing so. */
  begin(): void
  /** No new turns; running ones leave at the next step's border, or at the deadline. */
  drain(ms: number): Promise<void>
  isDraining(): boolean
  running(): number
  /** The turn that this process runs in a session */
  activeTurn(session: string): string | null
}

/** What an owner of turns, or all replicas, must hear: a message of the bus's topic `control`. */
export type Control =
  | { op: 'cancel'; turn_id: string; session_id: string }
  | Wish
  | { op: 'answer'; ask: string; answer: RestartAnswer }
  | { op: 'revision'; session_id: string; revision: number }
  /** A turn was given away: whoever hears this first may have it */
  | { op: 'handed_over'; session_id: string }

/** What the owner of a turn answers, where it came with an id to `ask` by. */
type Wish = { session_id: string; ask?: string } & (
  | { op: 'restart'; turn_id: string }
  | { op: 'tools'; apply: Apply; removed: string[]; revision: number }
)

/** Until `begin` it runs what it is asked for, and hears of nothing else. */
export function createEngine(deps: EngineDeps): Engine {
  const { store, bus, settings, log } = deps
  const announced = gathering(
    (turns) =>
      store.turns
        .forgetAnnouncements(turns)
        .catch((err: unknown) => log.warn({ err, turns: turns.length }, 'announcements were not noted')),
    GATHER_MS,
  )
  const histories = createHistories()
  const loopDeps: LoopDeps = {
    ...patientDeps(deps),
    noteAnnounced: announced.add,
    keepHistory: histories.keep,
  }
  const active = new Map<string, ActiveTurn>()
  const slots = createSlots(settings.concurrentTurns)
  const room = createRoom(
    slots,
    settings.concurrentTurns + settings.waitingTurns,
    watchLateness(settings.overloadMs),
  )
  const lease = { owner: settings.replica, seconds: settings.leaseSeconds }
  const open = createOpening(deps, histories, lease)
  const underWay = createUnderWay()
  /** Turns whose owner has been told to end them and has until a deadline */
  const watched = new Set<string>()
  let draining = false
  let leases: Leases | null = null

  const state: EngineState = {
    deps,
    active,
    isDraining: () => draining,
    launch(turn, fence, session, entry) {
      underWay
        .track(own(turn, fence, session, entry))
        .catch((err: unknown) => log.error({ err, turn_id: turn.id }, 'a turn could not be run'))
    },
    async startNext(session) {
      if (draining || active.has(session)) return
      const next = await store.turns.startQueued(session, { id: newId('msg') }, lease)
      if (next) state.launch(next.turn, next.fence, null, { kind: 'fresh' })
    },
    async resume(turn) {
      const resumed = await store.turns.resumeAwaiting(turn, lease)
      if (resumed) state.launch(resumed.turn, resumed.fence, null, { kind: 'resumed' })
    },
  }

  async function own(turn: Turn, fence: Fence, known: Session | null, entry: Entry): Promise<void> {
    const session = known ?? (await loopDeps.store.sessions.ofTurn(turn.id))
    if (!session) return
    const mine = createActive(turn, fence, session)
    active.set(session.id, mine)
    // It was being opened when the drain began, which waits for those that ran then: another replica has it at once.
    if (draining) requestStop(mine, DRAINING)
    if (turn.cancel_requested) requestStop(mine, CANCELLED)
    await inItsSlot(mine, entry).catch(async (thrown: unknown) => {
      if (!(thrown instanceof Unreadable)) throw thrown
      leases?.leave(turn.id, thrown)
      await store.turns.handOver(fence)
    })
    await passOn(mine)
  }

  async function inItsSlot(mine: ActiveTurn, entry: Entry): Promise<void> {
    const { turn, session } = mine
    let giveBack = () => {}
    try {
      const isLate = entry.kind === 'fresh' && slots.isFull()
      // What was read when it was opened is old for a turn that has to wait for a slot.
      const begins: Entry = isLate ? { kind: 'fresh' } : entry
      // Its log begins with this, whoever speaks of it or reads it before it has its slot.
      if (isLate) void sayCreated(turn)
      // One that is told to stop while it waits goes on without a slot: it only ends.
      const asked = performance.now()
      giveBack = await slots.take(turn.owner, mine.stop.signal).catch(() => () => {})
      deps.metrics.turnQueued(performance.now() - asked)
      const { reason } = mine.stop.signal
      if (reason !== DRAINING && reason !== OWNER_LOST) await runTurn(loopDeps, mine, begins)
    } finally {
      giveBack()
      // The session's next turn may have begun here already.
      if (active.get(session.id) === mine) active.delete(session.id)
    }
  }

  /** What the end of its run here leaves to do: for the next turn, for itself, or for another replica. */
  async function passOn({ turn, fence, stop, hasQueued }: ActiveTurn): Promise<void> {
    if (hasQueued) await goOn(turn.session_id)
    // What it waits for may have come while that was written.
    if (turn.state === 'awaiting_input') await state.resume(turn.id)
    if (stop.signal.reason === DRAINING && turn.ended_at === null) {
      await store.turns.handOver(fence)
      await tell({ op: 'handed_over', session_id: turn.session_id })
    }
  }

  /** The session's next turn: here, or elsewhere while this process takes no more. */
  const goOn = (session: string): Promise<void> =>
    draining ? bus.publish('queue', session) : state.startNext(session)

  async function find(caller: Scope, id: string): Promise<Turn> {
    const turn = await store.turns.get(caller, id)
    if (turn) return turn
    throw new BatonError('turn_not_found', `No turn ${id} exists.`)
  }

  const wait = createWait(bus, find)

  async function cancel(caller: Caller, id: string, waits: boolean): Promise<Turn> {
    // Marked first: whoever starts or resumes it after this look sees the mark.
    const epoch = await store.turns.requestCancel(caller, id)
    const turn = await find(caller, id)
    const mine = active.get(turn.session_id)
    if (mine?.turn.id === id) requestStop(mine, CANCELLED)
    else if (turn.state === 'queued') await endQueued(turn)
    else if (turn.state === 'awaiting_input') await state.resume(id)
    else if (turn.state === 'running') await tell({ op: 'cancel', turn_id: id, session_id: turn.session_id })
    if (epoch !== null && turn.state === 'running') breakLater(turn, epoch)
    const never = new AbortController().signal
    return waits
      ? wait(caller, id, CANCEL_WAIT_SECONDS, never, (now) => now.ended_at !== null)
      : find(caller, id)
  }

  /** An owner that does not act on a cancel in time loses the turn; whoever takes it only ends it. */
  function breakLater({ id, session_id }: Turn, epoch: number): void {
    if (watched.has(id)) return
    watched.add(id)
    const timer = setTimeout(() => {
      watched.delete(id)
      const broken = store.turns.breakLease(id, epoch).then(async (isBroken) => {
        if (!isBroken) return
        log.warn({ turn_id: id }, 'a cancelled turn was taken from its owner')
        await tell({ op: 'handed_over', session_id })
      })
      broken.catch((err: unknown) => log.warn({ err, turn_id: id }, 'a lease could not be broken'))
    }, CANCEL_DEADLINE_MS)
    timer.unref()
  }

  async function endQueued(turn: Turn): Promise<void> {
    const end = { state: 'cancelled', finish_reason: null, error: null } as const
    const word = { key: `${turn.id}:end`, event: event({ turn }, null, terminalEvent(end, turn.usage)) }
    // It may have begun to run meanwhile: then its owner sees the request before its first step.
    if (!(await store.turns.endQueued(turn, end, [word]))) return
    await append(word.event, word.key).then(
      () => announced.add(turn.id),
      (err: unknown) => log.warn({ err, turn_id: turn.id }, 'announcement is left to the scan'),
    )
  }

  const append = (said: TurnEvent, once: string) =>
    bus.append(said.session_id, [
      { type: said.type, turn_id: said.turn_id, data: JSON.stringify(said), once },
    ])

  const tell = (control: Control) => bus.publish('control', JSON.stringify(control))
  const asks = createAsks<Wish>(tell)

  function obey(message: string): void {
    const control = JSON.parse(message) as Control
    if (control.op === 'revision') return deps.tools.noteRevision(control.session_id, control.revision)
    if (control.op === 'handed_over') return void leases?.look()
    if (control.op === 'answer') return void asks.answered(control.ask, control.answer)
    const mine = active.get(control.session_id)
    if (!mine) {
      if (control.op === 'cancel') leases?.retry(control.turn_id)
      return
    }
    if (control.op === 'cancel' && mine.turn.id === control.turn_id) requestStop(mine, CANCELLED)
    if (control.op !== 'cancel') grant(mine, control)
  }

  function grant(mine: ActiveTurn, wish: Wish): void {
    if (wish.op === 'restart' && mine.turn.id !== wish.turn_id) return
    // The version before tells of those for the next step too.
    if (wish.op === 'tools' && wish.apply !== 'now') return
    const answer = wish.op === 'restart' ? requestRestart(mine) : applyNow(mine, wish.removed, wish.revision)
    if (wish.ask !== undefined) void tell({ op: 'answer', ask: wish.ask, answer })
  }

  async function start(caller: Caller, id: string, request: StartTurn): Promise<StartedTurn> {
    if (draining) throw new BatonError('draining', 'This replica is shutting down.', { retryAfter: 1 })
    const leave = room.enter()
    try {
      return await underWay.track(open(caller, id, request).then((opened) => accept(caller, opened)))
    } finally {
      leave()
    }
  }

  async function accept(caller: Caller, opened: Accepted): Promise<StartedTurn> {
    const { kind, turn } = opened
    if (kind === 'replayed') return { turn, outcome: kind }
    if (kind === 'running') {
      const { start, fence } = opened
      state.launch(turn, fence, start?.session ?? null, { kind: 'fresh', start })
      return { turn, outcome: 'created' }
    }
    await sayCreated(turn)
    // The running turn may have ended between the check and the insert: nobody else would look soon.
    await bus.publish('queue', turn.session_id).catch(() => {})
    if (opened.interrupted !== null) await cancel(caller, opened.interrupted, false)
    return { turn, outcome: kind }
  }

  /** Of one that does not begin yet. */
  async function sayCreated(turn: Turn): Promise<void> {
    await append(event({ turn }, null, { type: 'turn.created' }), `${turn.id}:created`).catch(
      (err: unknown) => log.warn({ err, turn_id: turn.id }, 'an event was lost'),
    )
  }

  function applyNow(mine: ActiveTurn, removed: string[], revision: number): RestartAnswer {
    cancelRemoved(mine, new Set(removed))
    return requestRestart(mine, revision)
  }

  return {
    start,
    wait,
    cancel,
    async restart(caller, id) {
      const turn = await find(caller, id)
      if (turn.state !== 'running') throw refusal(false)
      const mine = active.get(turn.session_id)
      const answer =
        mine?.turn.id === id
          ? requestRestart(mine)
          : await asks.ask({ op: 'restart', turn_id: id, session_id: turn.session_id })
      // Where the bus is well its owner may be slow, and do it yet.
      if (answer === null) await bus.ready()
      else if (answer !== 'restarting') throw refusal(answer === 'limit')
      return find(caller, id)
    },
    async decide(caller, id, call, decision) {
      await recordDecision(deps, caller, await find(caller, id), call, decision)
      await state.resume(id)
      return find(caller, id)
    },
    async answer(caller, id, call) {
      await find(caller, id)
      const isKnown = (await store.executions.ofTurn(id)).some(({ call_id }) => call_id === call)
      if (!isKnown) throw new BatonError('tool_call_not_found', `The turn has no tool call ${call}.`)
      throw new BatonError('not_awaiting', `Tool call ${call} asks nothing.`)
    },
    render: (caller, session, request) => renderPreview(deps, caller, session, request),
    async toolsChanged(session, delta, apply) {
      const mine = active.get(session.id)
      if (mine) {
        return effect(
          mine.turn.id,
          apply === 'now' ? applyNow(mine, delta.removed, delta.tools_revision) : null,
        )
      }
      const id = (await store.sessions.get(EVERYONE, session.id))?.active_turn_id ?? null
      const turn = id === null ? null : await store.turns.get(EVERYONE, id)
      if (!turn || turn.state === 'queued') {
        return { effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null }
      }
      if (apply !== 'now') return effect(turn.id, null)
      const { removed, tools_revision: revision } = delta
      if (turn.state === 'running') {
        return effect(
          turn.id,
          await asks.ask({ op: 'tools', session_id: session.id, apply, removed, revision }),
        )
      }
      if (await expireRemoved(deps, turn.id, removed)) await state.resume(turn.id)
      return effect(turn.id, null)
    },
    begin() {
      bus.subscribe('control', obey)
      bus.subscribe('queue', (session_id) => {
        state
          .startNext(session_id)
          .catch((err: unknown) => log.warn({ err, session_id }, 'a queued turn is left to the scan'))
      })
      leases = startLeases(state)
    },
    async drain(ms) {
      draining = true
      for (const mine of active.values()) {
        mine.leaveAtBorder = true
        // Not begun: there is no border to wait for.
        if (mine.phase === 'waiting') requestStop(mine, DRAINING)
      }
      await underWay.over(ms)
      for (const mine of active.values()) requestStop(mine, DRAINING)
      await underWay.over(STOP_MS)
      leases?.stop()
      room.close()
      await announced.flush()
    },
    isDraining: () => draining,
    running: () => active.size,
    activeTurn: (session) => active.get(session)?.turn.id ?? null,
  }
}

/** What a change of tools does to the turn: its owner says so, or nobody. */
const effect = (
  turn_id: string,
  answer: RestartAnswer | null,
): Pick<ToolsChange, 'effective' | 'restarted_turn_id'> =>
  answer === 'restarting'
    ? { effective: { turn_id, from: 'restart' }, restarted_turn_id: turn_id }
    : { effective: { turn_id, from: 'next_step' }, restarted_turn_id: null }

const refusal = (isLimit: boolean) =>
  isLimit
    ? new BatonError('restart_limit', `A turn can be restarted ${RESTART_LIMIT} times.`)
    : new BatonError('not_restartable', 'No model call of this turn is in flight.')
