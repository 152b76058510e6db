/**
 * What the engine needs of the rest; src/app.ts hands the real parts in. A turn's loop has them from loop-deps.ts, where a
 * store that is away is asked again.
 */
import type { Logger } from 'pino'
import type { Bus } from '../bus/bus.ts'
import type { ChooseCredential, ChosenCredential } from '../credentials/choose.ts'
import type { Serving } from '../deployments.ts'
import type { Llm } from '../llm.ts'
import type { SessionTools } from '../ports.ts'
import type { Lease, Store } from '../store/store.ts'
import type { Metrics } from '../telemetry.ts'
import type { Executor } from '../tools/execute.ts'
import type { EngineTools } from '../tools/session-tools.ts'
import type { ToolboxPolicy } from '../tools/toolbox.ts'

export interface EngineDeps {
  store: Store
  bus: Bus
  llm: Pick<Llm, 'stream' | 'preview' | 'models' | 'refused'>
  credentials: ChooseCredential
  tools: Omit<EngineTools, keyof SessionTools | 'close'>
  policy: Pick<ToolboxPolicy, 'limits' | 'needsApproval' | 'isRepeatable'>
  executor: Omit<Executor, 'close'>
  /** The deployment that serves this provider with this kind of credential. Throws invalid_request if there is none. */
  servedBy(provider: string, credential: Pick<ChosenCredential, 'kind' | 'path'>): Serving
  /** A person's edit of a call's arguments, at rest: sealed with the execution's id as context */
  sealed: {
    seal(args: Record<string, unknown>, execution: string): Uint8Array
    open(sealed: Uint8Array, execution: string): Record<string, unknown>
  }
  metrics: Pick<
    Metrics,
    'turnStarted' | 'turnEnded' | 'turnQueued' | 'turnRecovered' | 'stepEnded' | 'toolEnded'
  >
  log: Logger
  settings: {
    /** The lease of every turn that this process takes; `owner` identifies the process */
    lease: Lease
    concurrentTurns: number
    /** Turns that may wait for a slot; more are refused */
    waitingTurns: number
    /** Milliseconds that the event loop may be late; if it is later for long, new turns are refused */
    overloadMs: number
    /** Most turns of one owner that run or are queued; null: no limit */
    turnsPerOwner: number | null
    /** Milliseconds that deltas may be held to travel together; 0 with the in-process bus */
    flushMs: number
    approvalSeconds: number
  }
}
