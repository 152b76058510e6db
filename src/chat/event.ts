/**
 * Two event languages. A ModelEvent is what one model call yields: adapters make them, the engine folds
 * them. A TurnEvent is what a client reads (api.md section 6): the engine makes them, the bus orders
 * them. Both use the noun-first names of the public contract.
 */
import type { ErrorBody } from '../errors.ts'
import type { AssistantPart, ContentPart, Message, Outcome, Usage } from './message.ts'

export type StepFinish = 'stop' | 'length' | 'tool_calls' | 'refusal' | 'error'
export type TurnFinish = 'stop' | 'length' | 'refusal' | 'max_steps'

/**
 * One model call as a stream. `index` is a part's place in the message: parts may interleave, their
 * order in the message is by index. Deltas are for display; the `part` event is the truth and replaces
 * what the deltas of its index built. Exactly one `finish` ends the stream; failures throw a BatonError.
 */
export type ModelEvent =
  | { type: 'text.delta'; index: number; text: string }
  | { type: 'reasoning.delta'; index: number; text: string }
  | { type: 'tool_call.delta'; index: number; call_id: string; name: string; arguments_delta: string }
  | { type: 'part'; index: number; part: AssistantPart }
  /** Cumulative for the call: the last one counts. */
  | { type: 'usage'; usage: Usage }
  | {
      type: 'finish'
      reason: StepFinish
      /**
       * Always there with reason `error`: which call could not be made and why (undeclared tool, malformed), in words.
       */
      invalid_call?: string
      /** Why the vendor refused, in its own words, if the answer's text does not say so. */
      refusal?: string
      /**
       * The answer has nothing to read or to do, and this vendor's models mean nothing by that, unless it is quite empty
       * and follows tool results. `lost`: it is empty, and the vendor counts no token of it. `call`: it may have words, but
       * ended for a call, and has none.
       */
      silent?: 'thoughts' | 'empty' | 'lost' | 'call'
      /** The model said something, called nothing, and says that it is not done: it wants to be asked again at once. */
      goes_on?: true
    }

/** Fields that every turn event carries besides its own; `step` is null outside a step. */
interface EventHead {
  session_id: string
  turn_id: string | null
  step: number | null
  /** RFC 3339 */
  at: string
}

export interface ToolsDelta {
  tools_revision: number
  added: string[]
  removed: string[]
  changed: string[]
}

export type TurnEventBody =
  | { type: 'turn.created' }
  | { type: 'turn.started' }
  | { type: 'step.started'; provider: string; model: string; tools_revision: number; tool_count: number }
  | { type: 'content.delta'; text: string }
  | { type: 'reasoning.delta'; text: string }
  | { type: 'tool_call.delta'; call_id: string; name: string; arguments_delta: string }
  | { type: 'tool_call'; call_id: string; name: string; arguments: Record<string, unknown> }
  | { type: 'tool_execution.started'; call_id: string; exec_id: string }
  | {
      type: 'tool_execution.progress'
      call_id: string
      exec_id: string
      progress: number
      total?: number
      message?: string
    }
  | {
      type: 'tool_execution.completed'
      call_id: string
      exec_id: string
      outcome: Outcome
      is_error: boolean
      duration_ms: number
      content: ContentPart[]
    }
  | { type: 'approval.required'; call_id: string; name: string; arguments: Record<string, unknown> }
  | { type: 'input.required'; call_id: string; prompt: string; schema?: unknown }
  | ({ type: 'usage' } & Usage)
  | { type: 'message'; message: Message }
  | { type: 'step.completed'; finish_reason: StepFinish; usage: Usage }
  | { type: 'step.discarded'; reason: 'tools_changed' | 'owner_lost' | 'retry' }
  | ({ type: 'tools.changed' } & ToolsDelta)
  | { type: 'turn.restarted'; attempt: number; tools_revision: number }
  | { type: 'turn.awaiting_input' }
  | { type: 'turn.completed'; finish_reason: TurnFinish; usage: Usage }
  | { type: 'turn.failed'; error: ErrorBody }
  | { type: 'turn.cancelled' }

export type TurnEvent = TurnEventBody & EventHead

/** Every turn's first event: a log that knows a turn but not this event of it has lost the turn's beginning. */
export const FIRST_EVENT = 'turn.created'
export const TERMINAL = ['turn.completed', 'turn.failed', 'turn.cancelled'] as const
export const isTerminal = (type: string): boolean => (TERMINAL as readonly string[]).includes(type)
/** STEP_BEGINS is the first event of a step. With any of STEP_ENDS, what the step has said is committed or dropped. */
export const STEP_BEGINS = 'step.started'
export const STEP_ENDS = ['message', 'step.completed', 'step.discarded', ...TERMINAL] as const
