/** The turns that this process owns: taken, run in a slot, and passed on when they end here or the process leaves. */
import { newId } from '../chat/ids.ts'
import { type Fence, type Turn, Unreadable } from '../store/store.ts'
import { within } from '../within.ts'
import {
  type ActiveTurn,
  CANCELLED,
  createActive,
  DRAINING,
  type Entry,
  OWNER_LOST,
  requestStop,
} from './active.ts'
import { tell } from './control.ts'
import type { EngineDeps } from './deps.ts'
import { sayCreated } from './events.ts'
import { runTurn } from './loop.ts'
import { createLoopDeps, type FromEngine } from './loop-deps.ts'
import type { Slots } from './room.ts'

/** How long turns that were told to leave may take to let go. */
const STOP_MS = 5_000

export interface Owned {
  /** By session: one turn runs in a session at a time */
  active: ReadonlyMap<string, ActiveTurn>
  /** Runs it here, in the background; never throws. */
  launch(turn: Turn, fence: Fence, entry: Entry): void
  /** Launches the session's next queued turn, where there is one and none is active. */
  startNext(session: string): Promise<void>
  /** Launches a turn that waits for input, if all that it waits for is there. */
  resume(turn: string): Promise<void>
  /** Work that may bring turns here: a drain waits for it. Returns the same promise. */
  track<T>(work: Promise<T>): Promise<T>
  isDraining(): boolean
  /** How many turns a drain has given to other replicas, or to the next start. */
  handedOver(): number
  /** Takes no more turns; those that run leave at the next step boundary, or at the deadline. */
  drain(ms: number): Promise<void>
}

interface OwnedDeps extends Omit<FromEngine, 'isDraining'> {
  deps: EngineDeps
  slots: Slots
  /** A turn turned out to be unreadable while it ran here */
  onUnreadable(turn: string, why: Unreadable): void
}

export function createOwned({ deps, slots, onUnreadable, ...given }: OwnedDeps): Owned {
  const { store, bus, log, settings } = deps
  const active = new Map<string, ActiveTurn>()
  const underWay = createUnderWay()
  let isDraining = false
  let handedOver = 0
  const loopDeps = createLoopDeps(deps, { ...given, isDraining: () => isDraining })

  function launch(turn: Turn, fence: Fence, entry: Entry): void {
    underWay
      .track(own(turn, fence, entry))
      .catch((err: unknown) => log.error({ err, turn_id: turn.id }, 'a turn could not be run'))
  }

  async function startNext(session: string): Promise<void> {
    if (isDraining) return
    const next = await store.turns.startQueued(session, { id: newId('msg') }, settings.lease)
    if (next) launch(next.turn, next.fence, { kind: 'fresh', start: null })
  }

  async function resume(turn: string): Promise<void> {
    const resumed = await store.turns.resumeAwaiting(turn, settings.lease)
    if (!resumed) return
    const { fence, announce } = resumed
    launch(resumed.turn, fence, { kind: 'resumed', announce })
  }

  async function own(turn: Turn, fence: Fence, entry: Entry): Promise<void> {
    const mine = createActive(turn, fence)
    // Before anything is waited for: from here on the heartbeat keeps its lease, and the scan leaves it alone.
    active.set(turn.session_id, mine)
    // It was being opened when the drain began, and has no boundary to wait for: another replica takes it at once.
    if (isDraining) requestStop(mine, DRAINING)
    if (turn.cancel_requested) requestStop(mine, CANCELLED)
    await runInSlot(mine, entry).catch(async (thrown: unknown) => {
      if (!(thrown instanceof Unreadable)) throw thrown
      onUnreadable(turn.id, thrown)
      await store.turns.handOver(fence)
    })
    await passOn(mine).catch((err: unknown) =>
      log.warn({ err, turn_id: turn.id }, 'what comes after a turn is left to the scan'),
    )
  }

  async function runInSlot(mine: ActiveTurn, entry: Entry): Promise<void> {
    const { turn } = mine
    const isLate = entry.kind === 'fresh' && slots.isFull()
    // For a turn that has to wait for a slot, what was read when it was opened will be old.
    const begins: Entry = isLate ? { kind: 'fresh', start: null } : entry
    // Said now, it is the first event of the turn's log even if others read the log, or add to it, before the turn has
    // a slot.
    if (isLate) void sayCreated(deps, turn)
    const asked = performance.now()
    const giveBack = await slots.take(turn.owner, mine.stop.signal)
    deps.metrics.turnQueued(performance.now() - asked)
    try {
      const { reason } = mine.stop.signal
      if (reason !== DRAINING && reason !== OWNER_LOST) await runTurn(loopDeps, mine, begins)
    } finally {
      giveBack()
      // The session's next turn may have begun here already.
      if (active.get(turn.session_id) === mine) active.delete(turn.session_id)
    }
  }

  /** What is left to do once a turn's run here is over: for the next turn, the turn itself, or another replica. */
  async function passOn({ turn, fence, stop, hasQueued }: ActiveTurn): Promise<void> {
    const { id, session_id } = turn
    // While this process drains, another replica starts the next turn.
    if (hasQueued) await (isDraining ? bus.publish('queue', session_id) : startNext(session_id))
    // What it waits for may have come while the wait was written down.
    if (turn.state === 'awaiting_input') await resume(id)
    if (stop.signal.reason === DRAINING && turn.state === 'running') {
      await store.turns.handOver(fence)
      handedOver++
      await tell(bus, { op: 'handed_over', session_id })
    }
  }

  return {
    active,
    launch,
    startNext: (session) => underWay.track(startNext(session)),
    resume: (turn) => underWay.track(resume(turn)),
    track: underWay.track,
    isDraining: () => isDraining,
    handedOver: () => handedOver,
    async drain(ms) {
      isDraining = true
      // Those that have not begun have no boundary to wait for.
      for (const mine of active.values()) if (mine.phase === 'waiting') requestStop(mine, DRAINING)
      await underWay.over(ms)
      for (const mine of active.values()) requestStop(mine, DRAINING)
      await underWay.over(STOP_MS)
    },
  }
}

/** The work that a leaving process waits for: turns that are opened, taken, run or given away. */
function createUnderWay() {
  const works = new Set<Promise<unknown>>()
  /** Includes work that comes meanwhile: a turn that was being opened is given away. */
  const all = async () => {
    while (works.size > 0) await Promise.allSettled(works)
  }
  return {
    track<T>(work: Promise<T>): Promise<T> {
      works.add(work)
      const over = () => void works.delete(work)
      work.then(over, over)
      return work
    },
    /** Resolves when nothing is under way, or after `ms`. */
    over: (ms: number) => within(ms, all()),
  }
}
