/** What an owner of turns, or all replicas, must hear: the messages of the bus's topic `control`. */
import type { Bus } from '../bus/bus.ts'
import type { Apply } from '../ports.ts'

export type Control =
  | { op: 'cancel'; turn_id: string; session_id: string }
  | { op: 'restart'; turn_id: string; session_id: string }
  | { op: 'tools'; session_id: string; apply: Apply; removed: string[]; revision: number }
  | { op: 'revision'; session_id: string; revision: number }
  /** A turn was given away: whoever hears this first may have it */
  | { op: 'handed_over'; session_id: string }

export const tell = (bus: Pick<Bus, 'publish'>, control: Control): Promise<void> =>
  bus.publish('control', JSON.stringify(control))
