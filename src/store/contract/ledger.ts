/** The ledger of tool calls. */
import type { Outcome, ToolResultPart } from '../../chat/message.ts'
import type { Page, PageRequest, Scope } from './scope.ts'
import type { Fence } from './turns.ts'

/** `started` may have had its effect; `settled` has its result. */
type ExecutionState = 'awaiting_approval' | 'started' | 'settled'
/** A ledger row. Arguments, error and output are redacted before they get here. */
export interface NewExecution {
  id: string
  turn_id: string
  step: number
  call_id: string
  tool: string
  connector: string | null
  tools_revision: number
  arguments: Record<string, unknown>
  state: Exclude<ExecutionState, 'settled'>
  /** May run again after a crash (trusted readOnlyHint or idempotentHint) */
  repeatable: boolean
  /** Seconds that the call waits for an approval */
  lapses_in?: number
}
/** How a call ended, redacted but for `result`. */
export interface Settlement {
  id: string
  outcome: Outcome
  is_error: boolean
  error: string | null
  /** 0: the call was not made, and does not count in durations */
  duration_ms: number
  bytes: number
  /** The full output, redacted: text, or JSON text with `structured` true */
  output: string
  structured: boolean
  /** The result as the conversation will hold it, kept until its message is committed: a crash loses none */
  result: ToolResultPart
}

export interface Execution extends Omit<NewExecution, 'state' | 'lapses_in'> {
  session_id: string
  state: ExecutionState
  outcome: Outcome | null
  is_error: boolean | null
  error: string | null
  started_at: string | null
  ended_at: string | null
  duration_ms: number | null
  bytes: number | null
  approved_by: string | null
  /** Null unless the call is settled and its message is not committed yet */
  result: ToolResultPart | null
  expires_at: string | null
  approval: {
    decision: 'approve' | 'deny' | 'expired'
    reason: string | null
    sealed_arguments: Uint8Array | null
  } | null
}
/** A call as people see it, without its result: that may not open any more, but the rest can be read. */
export type ShownExecution = Omit<Execution, 'result'>
export interface ExecutionFilter {
  session_id?: string
  turn_id?: string
  tool?: string
  outcome?: Outcome
  /** RFC 3339, of the call's start; both ends are included */
  since?: string
  until?: string
}
/** Verbs with a Fence throw StaleOwner. */
export interface Executions {
  get(scope: Scope, id: string): Promise<ShownExecution | null>
  /** Newest first. */
  list(scope: Scope, filter: ExecutionFilter, page: PageRequest): Promise<Page<ShownExecution>>
  /** Over settled calls: the 1,000 groups with the most of them. */
  stats(
    scope: Scope,
    groupBy: 'tool' | 'connector' | 'session',
    filter: ExecutionFilter,
  ): Promise<
    { key: string; count: number; failures: number; p50_ms: number; p95_ms: number; max_ms: number }[]
  >
  /** Null if the call is not to be seen, or has not ended. */
  output(scope: Scope, id: string): Promise<{ output: string; structured: boolean } | null>
  /**
   * In the order of their ids. Throws Unreadable for a result that does not open; with `told`, a text says so in its
   * place.
   */
  ofTurn(turn: string, lost?: 'told'): Promise<Execution[]>
  /** Marks a started execution as begun again (recovery) or moves an approved one to started. */
  begin(fence: Fence, id: string): Promise<void>
  /** An approved call that began and was not made is as it was before it began. */
  putBack(fence: Fence, id: string): Promise<void>
  settle(fence: Fence, settlement: Settlement): Promise<void>
  /**
   * Notes the decision on a waiting call: a person's, or `expired` if its time is over or its tool is gone.
   * `not_awaiting`: the call does not wait, was decided before, or has expired for people; null if there is no such
   * call, or it is not to be seen.
   */
  decide(
    scope: Scope,
    turn: string,
    call: string,
    decision: {
      decision: 'approve' | 'deny' | 'expired'
      reason: string | null
      /** A person's edit: what runs, sealed, and what the ledger shows of it */
      sealed_arguments: Uint8Array | null
      arguments?: Record<string, unknown>
      by: string
    },
  ): Promise<'decided' | 'not_awaiting' | null>
  /**
   * Deletes settled rows that ended `seconds` ago or earlier; returns how many. Rows of a turn that has not ended stay:
   * a call without its row would be made again. After the signal it deletes no more, though there may be more.
   */
  prune(seconds: number, signal?: AbortSignal): Promise<number>
}
