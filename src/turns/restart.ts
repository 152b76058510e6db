/** The model call in flight, made once more: because somebody asks for it, or because the session's tools changed. */
import type { ToolsDelta } from '../chat/event.ts'
import { BatonError } from '../errors.ts'
import type { Apply, ToolsChange, Turns } from '../ports.ts'
import { EVERYONE, type Session } from '../store/store.ts'
import { type ActiveTurn, cancelRemoved, RESTART_LIMIT, requestRestart } from './active.ts'
import { expireRemoved } from './approvals.ts'
import { tell } from './control.ts'
import type { EngineState } from './leases.ts'
import { findTurn } from './wait.ts'

export interface Restarts {
  restart: Turns['restart']
  /** A session's registry moved: tells when it takes effect, and restarts the step in flight for `now`. */
  toolsChanged(
    session: Session,
    delta: ToolsDelta,
    apply: Apply,
  ): Promise<Pick<ToolsChange, 'effective' | 'restarted_turn_id'>>
}

export function createRestarts({ deps, active, resume }: EngineState): Restarts {
  const { store, bus } = deps

  const isCalling = async (turn: string): Promise<boolean> =>
    (await store.executions.ofTurn(turn)).some((row) => row.state !== 'settled')

  return {
    async restart(caller, id) {
      const turn = await findTurn(store, caller, id)
      const mine = active.get(turn.session_id)
      if (mine?.turn.id === id) {
        const answer = requestRestart(mine)
        if (answer === 'restarting') return findTurn(store, caller, id)
        throw refusal(answer === 'limit')
      }
      if (turn.state !== 'running' || (await isCalling(id))) throw refusal(false)
      if (turn.restarts >= RESTART_LIMIT) throw refusal(true)
      await tell(bus, { op: 'restart', turn_id: id, session_id: turn.session_id })
      return turn
    },
    async toolsChanged(session, delta, apply) {
      const { removed, tools_revision: revision } = delta
      const mine = active.get(session.id)
      if (mine) {
        const from = takeEffect(mine, apply, removed, revision)
        return {
          effective: { turn_id: mine.turn.id, from },
          restarted_turn_id: from === 'restart' ? mine.turn.id : null,
        }
      }
      const id = (await store.sessions.get(EVERYONE, session.id))?.active_turn_id ?? null
      const turn = id === null ? null : await store.turns.get(EVERYONE, id)
      if (!turn || turn.state === 'queued') {
        return { effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null }
      }
      if (turn.state === 'awaiting_input' && apply === 'now') {
        if (await expireRemoved(deps, turn.id, removed)) await resume(turn.id)
      } else {
        await tell(bus, { op: 'tools', session_id: session.id, apply, removed, revision })
      }
      const mayRestart = apply === 'now' && turn.state === 'running' && turn.restarts < RESTART_LIMIT
      const restarts = mayRestart && !(await isCalling(turn.id))
      return {
        effective: { turn_id: turn.id, from: restarts ? 'restart' : 'next_step' },
        restarted_turn_id: restarts ? turn.id : null,
      }
    },
  }
}

/** A change of tools, at the turn that runs here; from when on it counts. */
export function takeEffect(
  mine: ActiveTurn,
  apply: Apply,
  removed: readonly string[],
  revision: number,
): 'restart' | 'next_step' {
  if (apply !== 'now') return 'next_step'
  cancelRemoved(mine, new Set(removed))
  return requestRestart(mine, revision) === 'restarting' ? 'restart' : 'next_step'
}

const refusal = (isLimit: boolean) =>
  isLimit
    ? new BatonError('restart_limit', `A turn can be restarted ${RESTART_LIMIT} times.`)
    : new BatonError('not_restartable', 'No model call of this turn is in flight.')
