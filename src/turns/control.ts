/** What an owner of turns, or all replicas, must hear: the messages of the bus's topic `control`. */
import type { Bus } from '../bus/bus.ts'
import type { Apply } from '../ports.ts'
import type { RestartAnswer } from './active.ts'

export type Control =
  | { op: 'cancel'; turn_id: string; session_id: string }
  | Wish
  | { op: 'answer'; ask: string; answer: RestartAnswer }
  | { op: 'revision'; session_id: string; revision: number }
  /** A turn was given away: whoever hears this first may have it */
  | { op: 'handed_over'; session_id: string }

/** What the owner of a turn answers, where it came with an id to `ask` by. */
export type Wish = { session_id: string; ask?: string } & (
  | { op: 'restart'; turn_id: string }
  | { op: 'tools'; apply: Apply; removed: string[]; revision: number }
)

export const tell = (bus: Pick<Bus, 'publish'>, control: Control): Promise<void> =>
  bus.publish('control', JSON.stringify(control))
