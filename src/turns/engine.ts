/**
 * The engine as the rest of Baton sees it. What lies behind it:
 * - a turn is asked for: opening.ts, with histories.ts and room.ts (whether this replica takes one more)
 * - it is owned and run: owned.ts, and its loop in loop.ts: a model step (step.ts, prepare.ts), then the step's calls
 *   (calls.ts, job.ts is one of them, fate.ts one that was left open). run.ts is what the loop carries and how it
 *   commits
 * - its events: events.ts
 * - commands from outside: cancel.ts, restart.ts, approvals.ts. They meet the loop in active.ts, and reach other
 *   replicas by control.ts
 * - its owner is lost: leases.ts, rescue.ts
 * - nothing runs: preview.ts (`/render`), wait.ts
 */
import type { ToolsDelta } from '../chat/event.ts'
import { parseRecord } from '../chat/json.ts'
import { BatonError } from '../errors.ts'
import type { Caller, StartedTurn, StartTurn, Turns } from '../ports.ts'
import { CANCELLED, requestStop } from './active.ts'
import { findCall, recordDecision } from './approvals.ts'
import { createCancel } from './cancel.ts'
import { type Control, tell } from './control.ts'
import type { EngineDeps } from './deps.ts'
import { event, sayCreated } from './events.ts'
import { gathering } from './gather.ts'
import { createHistories } from './histories.ts'
import { type Leases, startLeases } from './leases.ts'
import { type Accepted, createOpening } from './opening.ts'
import { createOwned, type Owned } from './owned.ts'
import { renderPreview } from './preview.ts'
import { createRestarts, type Restarts } from './restart.ts'
import { createRoom, createSlots, watchLateness } from './room.ts'
import { createWait, findStanding, findTurn } from './wait.ts'

/**
 * Ends that were said within this time are noted together. An end that a crash left unnoted is said again; the bus
 * drops the copy.
 */
const GATHER_MS = 200

export interface Engine
  extends Turns,
    Pick<Restarts, 'takeEffect'>,
    Pick<Owned, 'isDraining' | 'handedOver'> {
  /** Takes over what crashed owners left, and keeps doing so. */
  begin(): void
  /** No new turns; running ones leave at the next step boundary, or at the deadline. */
  drain(ms: number): Promise<void>
  /**
   * Says on the session's stream that its tools changed, and tells the other replicas their revision. `turn`: the
   * session's turn that runs, if it runs elsewhere.
   */
  sayToolsChanged(session: string, delta: ToolsDelta, turn: string | null): Promise<void>
}

/**
 * Until `begin` the engine only runs the turns that it is asked for: it does not listen to other replicas, and does
 * not scan.
 */
export function createEngine(deps: EngineDeps): Engine {
  const { store, bus, settings, log } = deps
  const endsAnnounced = gathering(
    (turns) =>
      store.turns
        .forgetAnnouncements(turns, null)
        .catch((err: unknown) => log.warn({ err, turns: turns.length }, 'announcements were not noted')),
    GATHER_MS,
  )
  const histories = createHistories()
  const slots = createSlots(settings.concurrentTurns)
  const room = createRoom(
    slots,
    settings.concurrentTurns + settings.waitingTurns,
    watchLateness(settings.overloadMs),
  )
  let leases: Leases | null = null
  const owned = createOwned({
    deps,
    slots,
    noteEndAnnounced: endsAnnounced.add,
    keepHistory: histories.keep,
    onUnreadable: (turn, why) => leases?.leave(turn, why),
  })
  const open = createOpening(deps, histories, owned.isDraining)
  const wait = createWait(store, bus)
  const cancel = createCancel(deps, owned, wait, endsAnnounced.add)
  const restarts = createRestarts(deps, owned)

  function obey(message: string): void {
    // The channel is open to anybody who reaches Redis: what is no command must not end the process.
    const control = parseRecord(message) as Control | null
    switch (control?.op) {
      case 'revision':
        return deps.tools.noteAnnounced(control.session_id, control.revision)
      case 'handed_over':
        return void leases?.look()
      case 'cancel': {
        const mine = owned.active.get(control.session_id)
        if (!mine) leases?.retry(control.turn_id)
        else if (mine.turn.id === control.turn_id) requestStop(mine, CANCELLED)
        return
      }
      case 'restart':
      case 'tools':
        return restarts.carryOut(control)
      case 'answer':
        return restarts.answered(control.ask, control.answer)
      // A replica of a later version may send an op that this version does not know.
    }
  }

  async function start(caller: Caller, id: string, request: StartTurn): Promise<StartedTurn> {
    const leave = room.enter()
    try {
      const started = open(caller, id, request).then((opened) => accept(caller, opened))
      // A request that comes in a drain brings no turn here, and clients may repeat theirs without an end.
      return await (owned.isDraining() ? started : owned.track(started))
    } finally {
      leave()
    }
  }

  async function accept(caller: Caller, opened: Accepted): Promise<StartedTurn> {
    const { kind, turn } = opened
    if (kind === 'replayed') return { turn, outcome: kind }
    if (kind === 'running') {
      const { start, fence } = opened
      owned.launch(turn, fence, { kind: 'fresh', start })
      return { turn, outcome: 'created' }
    }
    await sayCreated(deps, turn)
    const { interrupted } = opened
    // The turn is stored: a caller who was told of a failure would ask for it twice.
    if (interrupted !== null)
      await cancel(caller, interrupted, null).catch((err: unknown) =>
        log.warn({ err, turn_id: interrupted }, 'a cancel is left to the heartbeat or the scan'),
      )
    return { turn, outcome: kind }
  }

  return {
    start,
    wait,
    cancel,
    restart: restarts.restart,
    takeEffect: restarts.takeEffect,
    async decide(caller, id, call, decision) {
      await findStanding(store, caller, id)
      await recordDecision(deps, caller, id, call, decision)
      await owned.resume(id)
      return findTurn(store, caller, id)
    },
    async answer(caller, id, call) {
      await findStanding(store, caller, id)
      await findCall(store, id, call)
      throw new BatonError('not_awaiting', `Tool call ${call} is not asking for input.`)
    },
    render: (caller, session, request) => renderPreview(deps, caller, session, request),
    begin() {
      bus.subscribe('control', obey)
      bus.subscribe('queue', (session_id) => {
        owned
          .startNext(session_id)
          .catch((err: unknown) => log.warn({ err, session_id }, 'a queued turn is left to the scan'))
      })
      leases = startLeases(deps, owned)
    },
    async drain(ms) {
      await owned.drain(ms)
      leases?.stop()
      room.close()
      await endsAnnounced.flush()
    },
    isDraining: owned.isDraining,
    handedOver: owned.handedOver,
    async sayToolsChanged(session_id, delta, turn) {
      const id = owned.active.get(session_id)?.turn.id ?? turn
      const changed = event({ id, session_id }, null, { type: 'tools.changed', ...delta })
      const data = JSON.stringify(changed)
      const alone = JSON.stringify({ ...changed, turn_id: null })
      // A full Redis refuses the event and still carries the message.
      const told = () => tell(bus, { op: 'revision', session_id, revision: delta.tools_revision })
      await bus.append(session_id, [{ type: changed.type, turn_id: id, data, alone }]).finally(told)
    },
  }
}
