/** What the engine's parts share: the turns that this process owns, and how it comes to own one more. */
import type { Fence, Session, Turn } from '../store/store.ts'
import type { ActiveTurn } from './active.ts'
import type { EngineDeps } from './deps.ts'
import type { Entry } from './loop.ts'

export interface EngineState {
  deps: EngineDeps
  /** By session: one turn runs in a session at a time */
  active: Map<string, ActiveTurn>
  /** Runs it here, in the background; never throws. `session` null: it is read. */
  launch(turn: Turn, fence: Fence, session: Session | null, entry: Entry): void
  /** Launches the session's next queued turn, where there is one and none runs here. */
  startNext(session: string): Promise<void>
  /** Launches a turn that waits for input, where nothing that it waits for is missing any more. */
  resume(turn: string): Promise<void>
  isDraining(): boolean
}
