/** What the engine's parts share: the turns that this process owns, and how it comes to own one more. */
import type { Fence, Session, Turn } from '../store/store.ts'
import type { ActiveTurn } from './active.ts'
import type { EngineDeps } from './deps.ts'
import type { Entry } from './loop.ts'

export interface EngineState {
  deps: EngineDeps
  /** By session: one turn runs in a session at a time */
  active: Map<string, ActiveTurn>
  launch(turn: Turn, fence: Fence, session: Session | null, entry: Entry): void
  startNext(session: string): Promise<void>
  resume(turn: string): Promise<void>
  isDraining(): boolean
}
