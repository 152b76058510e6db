/**
 * What replicas tell and ask each other about turns: the messages of the bus's topic `control`. Any of them may be
 * lost, and nobody answers for an owner that died. Without an answer Baton does not claim that anything was done.
 */
import type { Bus } from '../bus/bus.ts'
import { newId } from '../chat/ids.ts'
import { within } from '../within.ts'
import type { RestartAnswer } from './active.ts'

export type Control =
  | { op: 'cancel'; turn_id: string; session_id: string }
  | Asked
  | { op: 'answer'; ask: string; answer: RestartAnswer }
  | { op: 'revision'; session_id: string; revision: number }
  /** A turn was given away: the first replica that hears this may take it */
  | { op: 'handed_over'; session_id: string }

/** What only a turn's owner can do. */
type OwnerCommand = { session_id: string } & ({ op: 'restart'; turn_id: string } | ToolsCommand)
/** `ask`: the id under which the owner answers */
export type Asked = OwnerCommand & { ask: string }
/**
 * `apply`: replicas of former versions act on no other value · `isMoved`: something changed; some former versions omit
 * it
 */
export type ToolsCommand = {
  op: 'tools'
  apply: 'now'
  removed: string[]
  revision: number
  isMoved?: boolean
}

export const tell = (bus: Pick<Bus, 'publish'>, control: Control): Promise<void> =>
  bus.publish('control', JSON.stringify(control))

const ANSWER_MS = 1_000

/** Commands that only a turn's owner can answer: each is sent with an id, which its answer repeats. */
export function createAsks(bus: Pick<Bus, 'publish'>) {
  const open = new Map<string, (answer: RestartAnswer) => void>()
  return {
    /** Null: nobody answered in time. */
    async ask(command: OwnerCommand): Promise<RestartAnswer | null> {
      const ask = newId('req')
      const answered = new Promise<RestartAnswer>((resolve) => {
        open.set(ask, resolve)
      })
      void tell(bus, { ...command, ask })
      return within(ANSWER_MS, answered).finally(() => open.delete(ask))
    },
    answered(ask: string, answer: RestartAnswer): void {
      open.get(ask)?.(answer)
    },
  }
}
