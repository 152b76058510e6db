/**
 * Tells from its row in the ledger what becomes of a call that was committed with its step and has no result yet. Its
 * turn goes on, under another owner or after it waited, or is given up. The row was written before the call and is
 * settled after it.
 */
import type { Outcome, ToolResultPart } from '../chat/message.ts'
import type { Execution } from '../store/store.ts'
import type { Job } from './job.ts'

/**
 * Most calls of one step that are run: a model stuck in repetition writes thousands, each with a row, a result and its
 * events.
 */
export const MOST_CALLS = 128

export type Fate =
  /** The ledger has its result */
  | { kind: 'settled'; result: ToolResultPart; duration_ms: number }
  /** It is not run any more, and gets this result */
  | { kind: 'unrun'; outcome: Exclude<Outcome, 'ok'>; text: string }
  /** A person is to say whether it may run */
  | { kind: 'waits' }
  | { kind: 'runs' }

/** A turn that goes on: when its calls were asked for, and whether it is only to be cancelled. */
interface GoesOn {
  asked_at: string
  isCancelled: boolean
}

/** `place`: the call's place among those of its step. `turn`: null if the turn is given up. */
export function fateOf(job: Job, row: Execution | undefined, place: number, turn: GoesOn | null): Fate {
  switch (row?.state) {
    case 'settled':
      if (!row.result) return LOST
      return { kind: 'settled', result: row.result, duration_ms: row.duration_ms ?? 0 }
    case 'started':
      if (place >= MOST_CALLS) return TOO_MANY
      if (isNoCall(job, row)) return turn ? RUNS : NO_CALL
      return turn && mayRepeat(job, row, turn) ? RUNS : LOST
    case 'awaiting_approval':
      if (!turn) return NOT_RUN
      if (isOfAnotherServer(job, row, turn)) return SERVER_CHANGED
      return row.approval ? decided(job, row.approval, turn) : { kind: 'waits' }
    case undefined:
      // Every call has a row. Were one missing, nobody could say whether its call ran.
      return LOST
  }
}

/** Nobody could have run it: no such tool, or no JSON. A repeatable row without a server is a built-in's. */
const isNoCall = ({ call, declared }: Job, row: Execution): boolean =>
  call.arguments_text !== undefined || (row.connector === null && declared === undefined && !row.repeatable)

/** Not if its tool is gone or the turn is to be cancelled: the call would be settled as not made, though it had begun. */
const mayRepeat = (job: Job, row: Execution, turn: GoesOn): boolean =>
  row.repeatable && job.declared !== undefined && !turn.isCancelled && !isOfAnotherServer(job, row, turn)

/**
 * The call was meant for another server: the one that has the tool now goes by another name, or is younger than the
 * call.
 */
const isOfAnotherServer = ({ connector }: Job, row: Execution, { asked_at }: GoesOn): boolean =>
  connector !== null && (row.connector !== connector.name || connector.created_at > asked_at)

function decided({ declared }: Job, approval: NonNullable<Execution['approval']>, turn: GoesOn): Fate {
  if (approval.decision === 'approve' && !turn.isCancelled) return declared ? RUNS : TOOL_GONE
  return notMade(approval)
}

/** A call that a person was asked about, if its turn is cancelled. `approval`: null if nobody has decided. */
export function notMade(approval: Execution['approval']) {
  if (approval === null || approval.decision === 'approve') return TURN_CANCELLED
  const { decision, reason } = approval
  // Told only that a call was denied, models make it again (microsoft/agent-framework#8503).
  if (decision === 'deny')
    return unrun('denied', `The user denied this call; it was not run${reason ? `: ${reason}` : '.'}`)
  return reason === null ? EXPIRED : unrun('cancelled', reason)
}

const RUNS: Fate = { kind: 'runs' }

const unrun = (outcome: Exclude<Outcome, 'ok'>, text: string) =>
  ({ kind: 'unrun', outcome, text }) as const satisfies Fate

export const TOO_MANY = unrun(
  'error',
  `The call was not run: it is beyond the ${MOST_CALLS} that one step may make. Ask again for what is still needed.`,
)
/** The tool went while its call waited for a person. */
export const TOOL_GONE = unrun(
  'cancelled',
  'The call was not run: its tool was taken out of this conversation while it waited.',
)
export const TURN_CANCELLED = unrun('cancelled', 'The call was not run: the turn was cancelled.')
const SERVER_CHANGED = unrun(
  'cancelled',
  "The call was not run: its tool's server was replaced or renamed while it waited.",
)
const NOT_RUN = unrun('cancelled', 'The call was not run: its turn ended while it waited.')
const EXPIRED = unrun('denied', 'The call was not run: nobody approved it in time.')
const NO_CALL = unrun('error', 'The call was not run: there was no such tool, or its arguments were no JSON.')
export const LOST = unrun(
  'outcome_unknown',
  'The server that ran this call went away before its result was known. It may or may not have taken effect.',
)
