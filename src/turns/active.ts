/**
 * A turn that this process owns and runs: the one place where a command from outside (cancel, restart, removal of a
 * tool) meets the loop. The loop says which phase it is in; commands act at once where they can.
 */
import type { AnnouncedEvent, Fence, Turn, TurnStart } from '../store/store.ts'

/** Why a signal was aborted; the loop tells them apart by identity. */
export const CANCELLED = Symbol('cancelled')
export const RESTART = Symbol('restart')
export const OWNER_LOST = Symbol('owner lost')
export const DRAINING = Symbol('draining')
export const TOOL_REMOVED = Symbol('tool removed')

/**
 * `preparing`: no request has left, and the newest tools are read anyway · `model`: a request is in flight ·
 * `committing`, `tools`: nothing to restart
 */
type Phase = 'waiting' | 'preparing' | 'model' | 'committing' | 'tools'

/** How this process came to own a turn. `announce`: events that its former owner committed and may not have said. */
export type Entry =
  /** `start`: the turn begins right where it was opened, and its first step need not read anything; null: it has to read */
  | { kind: 'fresh'; start: TurnStart | null }
  | { kind: 'resumed'; announce: AnnouncedEvent[] }
  | { kind: 'recovered'; announce: AnnouncedEvent[]; was_handed_over: boolean }

export interface ActiveTurn {
  readonly turn: Turn
  readonly fence: Fence
  phase: Phase
  /** The id of the credential that serves the turn, once it is chosen */
  credentialId: string | null
  /** Aborted for a cancel, a lost lease, or a drain at a step boundary */
  readonly stop: AbortController
  /** Stops the model call in flight; aborted with `stop`, too */
  model: AbortController | null
  /** A restart was asked for and the step's new request has not left yet */
  restartPending: boolean
  /** The request that left last: the revision of its tools, and whether a restart caused it */
  sent: { revision: number; isRestart: boolean } | null
  /** Events that a commit announced and that are not known to be in the stream yet: the next commit keeps them, too */
  unsaid: AnnouncedEvent[]
  /** Tool calls in flight by call id, each with what stops it alone */
  readonly calls: Map<string, { tool: string; abort: AbortController }>
  /** Another turn of the session was queued when this one ended */
  hasQueued: boolean
}

export function createActive(turn: Turn, fence: Fence): ActiveTurn {
  return {
    turn,
    fence,
    phase: 'waiting',
    credentialId: null,
    stop: new AbortController(),
    model: null,
    restartPending: false,
    sent: null,
    unsaid: [],
    calls: new Map(),
    hasQueued: false,
  }
}

/** Most restarts of one turn (api.md "Session tools"); a later change falls back to `next`. */
export const RESTART_LIMIT = 8

export type RestartAnswer = 'restarting' | 'not_restartable' | 'limit'

/**
 * Restarts the model call in flight, for a change of tools or because a caller asks. Several commands become one
 * restart: while one is pending, the step will read the newest tools anyway.
 *
 * `revision`: the registry's revision after the change. A request that left with this revision, or with a newer one,
 * has the change and is left alone; without a revision, any request is made again. `isMoved`: the command changed
 * something. If so, and a restart caused the request that has the change, that restart was for this command, too: the
 * answer is `restarting`.
 */
export function requestRestart(
  active: ActiveTurn,
  revision = Number.POSITIVE_INFINITY,
  isMoved = true,
): RestartAnswer {
  if (active.stop.signal.aborted) return 'not_restartable'
  if (active.restartPending) return 'restarting'
  if (active.phase === 'model' && active.sent && active.sent.revision >= revision) {
    return active.sent.isRestart && isMoved ? 'restarting' : 'not_restartable'
  }
  if (active.phase !== 'model' && active.phase !== 'preparing') return 'not_restartable'
  if (active.turn.restarts >= RESTART_LIMIT) return 'limit'
  // Not sent yet: the step picks up the new overlay by itself, and nothing has to be discarded.
  if (active.phase === 'preparing') return 'not_restartable'
  active.restartPending = true
  active.model?.abort(RESTART)
  return 'restarting'
}

/**
 * The first reason counts. The signals of tool calls follow it, in flight or later. The model call in flight has a
 * signal of its own: one combined from two would take a kilobyte more for as long as the answer streams.
 */
export function requestStop(active: ActiveTurn, reason: symbol): void {
  active.stop.abort(reason)
  active.model?.abort(reason)
}

/** Calls of tools that are gone are cancelled and settled; the others go on. */
export function cancelRemoved(active: ActiveTurn, removed: ReadonlySet<string>): void {
  for (const call of active.calls.values()) if (removed.has(call.tool)) call.abort.abort(TOOL_REMOVED)
}
