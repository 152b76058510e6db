/** Restarts the model call in flight: because a caller asks, or because the session's tools changed. */
import { BatonError } from '../errors.ts'
import type { Apply, ToolsEffect, ToolsMove, Turns } from '../ports.ts'
import { EVERYONE, type Session, type Standing, type Turn } from '../store/store.ts'
import {
  type ActiveTurn,
  cancelRemoved,
  RESTART_LIMIT,
  type RestartAnswer,
  requestRestart,
} from './active.ts'
import { expireRemoved } from './approvals.ts'
import { type Asked, createAsks, type ToolsCommand, tell } from './control.ts'
import type { EngineDeps } from './deps.ts'
import type { Owned } from './owned.ts'
import { findStanding, findTurn } from './wait.ts'

export interface Restarts {
  restart: Turns['restart']
  /** A session's tools changed: answers when that takes effect, and restarts the step in flight for `now`. */
  takeEffect(session: Session, move: ToolsMove, apply: Apply): Promise<ToolsEffect>
  /** Carries out another replica's command. If its turn does not run here, nothing happens, and nobody is answered. */
  carryOut(command: Asked): void
  /** Takes another replica's answer to a command of this one. */
  answered(ask: string, answer: RestartAnswer): void
}

export function createRestarts(
  { store, bus }: Pick<EngineDeps, 'store' | 'bus'>,
  { active, resume }: Owned,
): Restarts {
  const asks = createAsks(bus)

  /**
   * For a command without an answer: while the bus works, the owner may only be slow. Throws if the store shows that
   * the turn cannot restart.
   */
  async function assertMayRestart({ id, state, restarts }: Turn): Promise<void> {
    await bus.ready()
    if (restarts >= RESTART_LIMIT) throw refusal('limit')
    const calls = await store.executions.ofTurn(id, 'told')
    const isCalling = calls.some((row) => row.state !== 'settled')
    if (state !== 'running' || isCalling) throw refusal('not_restartable')
  }

  /** The session's turn that runs or waits for a person. */
  async function begunTurn(session: string): Promise<Standing | null> {
    const id = (await store.sessions.get(EVERYONE, session))?.active_turn_id ?? null
    const turn = id === null ? null : await store.turns.standing(EVERYONE, id)
    return turn?.state === 'queued' ? null : turn
  }

  return {
    async restart(caller, id) {
      const turn = await findStanding(store, caller, id)
      if (turn.state !== 'running') throw refusal('not_restartable')
      const mine = active.get(turn.session_id)
      const answer =
        mine?.turn.id === id
          ? requestRestart(mine)
          : await asks.ask({ op: 'restart', turn_id: id, session_id: turn.session_id })
      if (answer !== null && answer !== 'restarting') throw refusal(answer)
      const now = await findTurn(store, caller, id)
      if (answer === null) await assertMayRestart(now)
      return now
    },
    async takeEffect(session, { removed, tools_revision: revision, isMoved }, apply) {
      const last = active.get(session.id)
      // A turn that is over stays in `active` until its last events are in the stream.
      const mine = last?.turn.ended_at === null ? last : undefined
      const turn = mine?.turn ?? (await begunTurn(session.id))
      if (!turn) return { effective: { turn_id: null, from: 'next_turn' }, restarted_turn_id: null }
      if (apply !== 'now') return effect(turn.id, null)
      const command = { op: 'tools', session_id: session.id, apply, removed, revision, isMoved } as const
      const isElsewhere = !mine && turn.state === 'running'
      const answer = mine ? applyNow(mine, command) : isElsewhere ? await asks.ask(command) : null
      // Also for a turn that runs: it may have read its tools before the change, and begin to wait after it.
      if (await expireRemoved(store, turn.id, removed)) await resume(turn.id)
      return effect(turn.id, answer)
    },
    carryOut(command) {
      const mine = active.get(command.session_id)
      if (!mine || (command.op === 'restart' && mine.turn.id !== command.turn_id)) return
      const answer = command.op === 'restart' ? requestRestart(mine) : applyNow(mine, command)
      void tell(bus, { op: 'answer', ask: command.ask, answer })
    },
    answered: asks.answered,
  }
}

function applyNow(mine: ActiveTurn, { removed, revision, isMoved }: ToolsCommand): RestartAnswer {
  cancelRemoved(mine, new Set(removed))
  return requestRestart(mine, revision, isMoved)
}

/** What a change of tools does to the turn, by its owner's answer; null: there was none. */
const effect = (turn_id: string, answer: RestartAnswer | null): ToolsEffect =>
  answer === 'restarting'
    ? { effective: { turn_id, from: 'restart' }, restarted_turn_id: turn_id }
    : { effective: { turn_id, from: 'next_step' }, restarted_turn_id: null }

const refusal = (answer: Exclude<RestartAnswer, 'restarting'>) =>
  answer === 'limit'
    ? new BatonError('restart_limit', `A turn can be restarted ${RESTART_LIMIT} times.`)
    : new BatonError('not_restartable', 'No model call of this turn is in flight.')
