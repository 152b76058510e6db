/** What the engine needs of the rest, as narrow as it uses it; src/app.ts hands the real parts in. */
import type { Logger } from 'pino'
import type { Bus } from '../bus/bus.ts'
import type { Message, ToolCallPart } from '../chat/message.ts'
import type { Llm } from '../llm.ts'
import type { ChosenCredential } from '../ports.ts'
import type { Deployment, DeploymentOptions } from '../provider.ts'
import type { Connector, CredentialCandidates, RegistryTool, Store } from '../store/store.ts'
import type { DeclaredTool, ExecutorCall, Settled } from '../tools/execute.ts'
import type { EngineTools } from '../tools/session-tools.ts'

export type { Overlay } from '../tools/overlay.ts'

/** The credential a turn runs with; its secret is opened only at the door that sends it. */
export interface ResolvedCredential
  extends Pick<ChosenCredential, 'facts' | 'kind' | 'path' | 'secret' | 'complete'> {
  /** After a refusal that `renewOn` names: true when another token is there to try with */
  onUnauthorized?(): Promise<boolean>
}

export interface Credentials {
  /** Providers whose keys the environment holds */
  readonly environment: readonly string[]
  /** Throws `no_credential` or `credential_needs_reauth`. */
  resolve(
    owner: string,
    credential: string | null,
    provider: string,
    known?: CredentialCandidates,
  ): Promise<ResolvedCredential>
}

export type TurnTools = Pick<
  EngineTools,
  | 'bringUpToDate'
  | 'isBehind'
  | 'current'
  | 'keep'
  | 'keptRevision'
  | 'latestRevision'
  | 'overlay'
  | 'noteRevision'
>

interface Policy {
  /** Milliseconds that one call of this tool may take */
  timeoutMs(tool: RegistryTool, connector: Connector | null): number
  needsApproval(tool: RegistryTool, connector: Connector | null): boolean
  /** Trusted readOnlyHint or idempotentHint: may run again after a crash */
  isRepeatable(tool: RegistryTool, connector: Connector | null): boolean
}

interface Executor {
  /** Never throws: whatever goes wrong is a truthful result for the model. */
  run(call: ExecutorCall): Promise<Settled>
  /** A result without running anything: cancelled, denied, lost with its owner. */
  settleUnrun(
    call: ToolCallPart,
    execId: string,
    outcome: 'cancelled' | 'denied' | 'outcome_unknown' | 'error',
    text: string,
  ): Promise<Settled>
  /** Why these arguments do not fit the tool, in the names that the model was given; null where they do. */
  misfits(declared: DeclaredTool, args: Record<string, unknown>): Promise<string | null>
  /** What may be written to the ledger of these arguments. */
  redactArguments(args: Record<string, unknown>): Promise<Record<string, unknown>>
}

export interface Metrics {
  turnStarted(): void
  turnEnded(state: string, ms: number): void
  /** It got its slot after this many ms */
  turnQueued(ms: number): void
  turnRecovered(reason: 'handed_over' | 'lost'): void
  stepEnded(provider: string, finish: string): void
  toolEnded(tool: string, outcome: string, ms: number): void
}

export interface EngineDeps {
  store: Store
  bus: Bus
  llm: Pick<Llm, 'stream' | 'preview' | 'reported'>
  credentials: Credentials
  tools: TurnTools
  policy: Policy
  executor: Executor
  /** The deployment that serves this provider with this kind of credential */
  deploymentFor(provider: string, credential: Pick<ResolvedCredential, 'kind' | 'path'>): Deployment
  optionsFor(deployment: Deployment): DeploymentOptions
  /** An operator's edit of a call's arguments, at rest: sealed with the execution's id as context */
  sealed: {
    seal(args: Record<string, unknown>, execution: string): Uint8Array
    open(sealed: Uint8Array, execution: string): Record<string, unknown>
  }
  metrics: Metrics
  log: Logger
  settings: {
    /** Identifies this process as a lease owner */
    replica: string
    leaseSeconds: number
    concurrentTurns: number
    /** Turns that may wait for a slot; more are refused */
    waitingTurns: number
    /** Milliseconds that the event loop may be late for long before new turns are refused */
    overloadMs: number
    /** Most turns of one owner that run or wait; null: no limit */
    turnsPerOwner: number | null
    /** Most turns waiting in one session */
    queueLimit: number
    /** Milliseconds that deltas may be held to travel together; 0 with the in-process bus */
    flushMs: number
    approvalSeconds: number
  }
}

/** What the engine gives its loops beside that. */
export interface LoopDeps extends EngineDeps {
  /** The end of this turn is in the stream. */
  noteAnnounced(turn: string): void
  /** For the session's next turn here. */
  keepHistory(session: string, rewrites: number, messages: readonly Message[]): void
}
