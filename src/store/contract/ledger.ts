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
  /** How many seconds an approval is waited for */
  lapses_in?: number
}
/** How a call ended, redacted but for `result`. */
export interface Settlement {
  id: string
  outcome: Outcome
  is_error: boolean
  error: string | null
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
  /** Settled, but its message is not committed yet */
  result: ToolResultPart | null
  expires_at: string | null
  approval: {
    decision: 'approve' | 'deny' | 'expired'
    reason: string | null
    sealed_arguments: Uint8Array | null
  } | null
}
/** As people see it: whatever its result is sealed with, the rest is to be read. */
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
  /** Of settled calls: the groups with the most of them, up to 1,000. */
  stats(
    scope: Scope,
    groupBy: 'tool' | 'connector' | 'session',
    filter: ExecutionFilter,
  ): Promise<
    { key: string; count: number; failures: number; p50_ms: number; p95_ms: number; max_ms: number }[]
  >
  /** Null where the call is not to be seen, or has not ended. */
  output(scope: Scope, id: string): Promise<{ output: string; structured: boolean } | null>
  /** In the order of their ids. Throws Unreadable, unless a result that is lost is `told` in its place. */
  ofTurn(turn: string, lost?: 'told'): Promise<Execution[]>
  /** Marks a started execution as begun again (recovery) or moves an approved one to started. */
  begin(fence: Fence, id: string): Promise<void>
  settle(fence: Fence, settlement: Settlement): Promise<void>
  /**
   * What a person decided on a call that waits, or its time or its tool's end. `not_awaiting`: it does not wait, was decided
   * before, or has lapsed for people; null: there is no such call, or it is not to be seen.
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
   * Deletes settled rows that ended so many seconds ago; how many. Not those of a turn that goes on: a call without
   * its row would be made again.
   */
  prune(seconds: number): Promise<number>
}
