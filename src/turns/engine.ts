/**
 * The engine as the rest of Baton sees it: starts turns, knows those that this process owns, and carries
 * wishes to whoever owns the others (cancel.ts, restart.ts). The loop itself is loop.ts; leases and recovery are
 * leases.ts.
 */
import { newId } from '../chat/ids.ts'
import { BatonError } from '../errors.ts'
import type { Caller, StartedTurn, StartTurn, Turns } from '../ports.ts'
import { type Fence, type Session, type Turn, Unreadable } from '../store/store.ts'
import {
  type ActiveTurn,
  CANCELLED,
  createActive,
  DRAINING,
  type Entry,
  OWNER_LOST,
  requestStop,
} from './active.ts'
import { recordDecision } from './approvals.ts'
import { createCancel } from './cancel.ts'
import { type Control, tell } from './control.ts'
import type { EngineDeps, LoopDeps } from './deps.ts'
import { append, event } from './events.ts'
import { gathering } from './gather.ts'
import { createHistories } from './histories.ts'
import { type EngineState, type Leases, startLeases } from './leases.ts'
import { runTurn } from './loop.ts'
import { type Accepted, createOpening } from './opening.ts'
import { patientDeps } from './patience.ts'
import { renderPreview } from './preview.ts'
import { createRestarts, type Restarts } from './restart.ts'
import { createRoom, watchLateness } from './room.ts'
import { createSlots } from './slots.ts'
import { createUnderWay } from './under-way.ts'
import { createWait, findTurn } from './wait.ts'

/** How long turns that were told to leave may take to let go. */
const STOP_MS = 5_000
/** Ends of turns that are noted together; what a crash leaves unnoted is said again, and dropped. */
const GATHER_MS = 200

export interface Engine extends Turns, Pick<Restarts, 'toolsChanged'> {
  /** Takes over what crashed owners left, and keeps doing so. */
  begin(): void
  /** No new turns; running ones leave at the next step's border, or at the deadline. */
  drain(ms: number): Promise<void>
  isDraining(): boolean
  /** The turn that this process runs in a session */
  activeTurn(session: string): string | null
}

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
    startNext: (session) => underWay.track(startNext(session)),
    resume: (turn) => underWay.track(resume(turn)),
    track: underWay.track,
  }

  async function startNext(session: string): Promise<void> {
    if (draining || active.has(session)) return
    const next = await store.turns.startQueued(session, { id: newId('msg') }, lease)
    if (next) state.launch(next.turn, next.fence, null, { kind: 'fresh' })
  }

  async function resume(turn: string): Promise<void> {
    const resumed = await store.turns.resumeAwaiting(turn, lease)
    if (resumed) state.launch(resumed.turn, resumed.fence, null, { kind: 'resumed' })
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
    await passOn(mine).catch((err: unknown) =>
      log.warn({ err, turn_id: turn.id }, 'what comes after a turn is left to the scan'),
    )
  }

  async function inItsSlot(mine: ActiveTurn, entry: Entry): Promise<void> {
    const { turn, session } = mine
    let giveBack = () => {}
    try {
      const isLate = entry.kind === 'fresh' && slots.isFull()
      // What was read when it was opened is old for a turn that has to wait for a slot.
      const begins: Entry = isLate ? { kind: 'fresh' } : entry
      // The first event of its log, also for those who speak of it or read it before it has its slot.
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
      await tell(bus, { op: 'handed_over', session_id: turn.session_id })
    }
  }

  /** The session's next turn: here, or elsewhere while this process takes no more. */
  const goOn = (session: string): Promise<void> =>
    draining ? bus.publish('queue', session) : state.startNext(session)

  const wait = createWait(store, bus)
  const cancel = createCancel(state, wait, announced.add)
  const restarts = createRestarts(state)

  function obey(message: string): void {
    const control = JSON.parse(message) as Control
    if (control.op === 'revision') return deps.tools.noteRevision(control.session_id, control.revision)
    if (control.op === 'handed_over') return void leases?.look()
    if (control.op === 'answer') return void restarts.answered(control.ask, control.answer)
    const mine = active.get(control.session_id)
    if (!mine) {
      if (control.op === 'cancel') leases?.retry(control.turn_id)
      return
    }
    if (control.op === 'cancel' && mine.turn.id === control.turn_id) requestStop(mine, CANCELLED)
    // A later version may say what this one does not know.
    else if (control.op === 'restart' || control.op === 'tools') restarts.grant(mine, control)
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
    if (opened.interrupted !== null) await cancel(caller, opened.interrupted, null)
    return { turn, outcome: kind }
  }

  /** Of one that does not begin yet. */
  async function sayCreated(turn: Turn): Promise<void> {
    const word = { key: `${turn.id}:created`, event: event(turn, null, { type: 'turn.created' }) }
    await append(bus, word).catch((err: unknown) => log.warn({ err, turn_id: turn.id }, 'an event was lost'))
  }

  return {
    start,
    wait,
    cancel,
    restart: restarts.restart,
    toolsChanged: restarts.toolsChanged,
    async decide(caller, id, call, decision) {
      await recordDecision(deps, caller, await findTurn(store, caller, id), call, decision)
      await state.resume(id)
      return findTurn(store, caller, id)
    },
    async answer(caller, id, call) {
      await findTurn(store, caller, id)
      const isKnown = (await store.executions.ofTurn(id)).some(({ call_id }) => call_id === call)
      if (!isKnown) throw new BatonError('tool_call_not_found', `The turn has no tool call ${call}.`)
      throw new BatonError('not_awaiting', `Tool call ${call} is not asking for input.`)
    },
    render: (caller, session, request) => renderPreview(deps, caller, session, request),
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
    activeTurn: (session) => active.get(session)?.turn.id ?? null,
  }
}
