/**
 * Runs one tool call and says truthfully what became of it. `run` never throws: an unknown tool, broken arguments, a
 * timeout or a lost server becomes a result in words that a model can act on.
 */
import type { Logger } from 'pino'
import { BEARABLE, isRecord, isWithin } from '../chat/json.ts'
import type { ContentPart, Outcome, ToolCallPart, ToolResultPart } from '../chat/message.ts'
import { LONGEST_MS } from '../duration.ts'
import { BatonError } from '../errors.ts'
import { type Mcp, McpError, type McpProgress, type McpResult, type McpServerSpec } from '../mcp/contract.ts'
import { createDeadline } from '../mcp/deadline.ts'
import type { Connector, RegistryTool, Scope, Settlement, Store } from '../store/store.ts'
import { cutUtf8 } from '../text.ts'
import type { Builtin } from './builtin.ts'
import { MASK, redactText } from './redact.ts'
import { shapeResult } from './results.ts'
import { ownNames, type Rename, sentByOwn } from './schema/adapt.ts'
import { createValidator, type Misfit } from './schema/validate.ts'

/** A tool as the model knows it. */
export interface DeclaredTool {
  tool: RegistryTool
  /** Of properties whose names the model's provider could not take */
  rename: Rename | null
}

/** One call that the ledger has a row for. */
export interface ExecutorCall {
  scope: Scope
  session_id: string
  exec_id: string
  call: ToolCallPart
  /** Undefined: the model called a tool that is not declared */
  declared: DeclaredTool | undefined
  connector: Connector | null
  /** The model has the built-in that reads the rest of a long result */
  canInspect: boolean
  timeoutMs: number
  signal: AbortSignal
  onProgress(progress: McpProgress): void
}

export interface ExecutorDeps {
  store: Pick<Store, 'executions'>
  mcp: Pick<Mcp, 'call'>
  builtins: readonly Builtin[]
  specFor(connector: Connector): McpServerSpec
  log: Pick<Logger, 'error'>
  /** Waits for a free slot of the tool; throws `ToolBusy` when the queue's deadline passes, or the signal's reason. */
  slot(tool: RegistryTool, connector: Connector | null, signal: AbortSignal): Promise<() => void>
  /** The tool may be called again, whatever became of a call (ToolboxPolicy) */
  isRepeatable(tool: RegistryTool, connector: Connector | null): boolean
}

/** No slot of the tool came free in time; the call was not sent. */
export class ToolBusy extends Error {}

/** How long progress may stretch a call, in ms: ten times its timeout, at most what a timer can run. */
const longest = (timeoutMs: number): number => Math.min(timeoutMs * 10, LONGEST_MS)
/** How often a call's progress is reported, and most bytes of its message: a flood would push all else out of the logs. */
const PROGRESS = { everyMs: 100, bytes: 2_000 }

/** Runs calls that have a row in the ledger; the answer's `result` is what the model is told. */
export interface Executor {
  /** Never throws: whatever goes wrong is a truthful result for the model. */
  run(call: ExecutorCall): Promise<Settlement>
  /** A result without running anything: cancelled, denied, lost with its owner. */
  settleUnrun(
    call: ToolCallPart,
    execId: string,
    outcome: Exclude<Outcome, 'ok'>,
    text: string,
  ): Promise<Settlement>
  /** Why these arguments do not fit the tool; null if they do. Names are the server's own. */
  misfits(tool: RegistryTool, args: Record<string, unknown>): Promise<string | null>
  close(): Promise<void>
}

/** `close` ends the validator's thread. */
export function createExecutor(deps: ExecutorDeps): Executor {
  const validator = createValidator()
  const builtins = new Map(deps.builtins.map((builtin) => [builtin.name, builtin]))

  async function attempt(execution: ExecutorCall): Promise<Attempt> {
    const { call, declared } = execution
    if (!declared)
      return failure('error', `There is no tool ${call.name} in this conversation; it was not called.`)
    if (call.arguments_text !== undefined) {
      return failure('error', `${jsonProblem(call.arguments_text)} Nothing was called.`)
    }
    // In calls of steps that an earlier build stored, the names are still those that the model was given.
    const args = ownNames(call.arguments, declared.rename)
    const { problems, value } = await validator.read(declared.tool.input_schema, args)
    const misfit = misfitOf(problems, declared.rename)
    if (misfit) return failure('error', `${misfit} Nothing was called.`)
    // A text that was read may hold names that the model was given, too.
    return send(execution, declared, ownNames(value, declared.rename))
  }

  async function send(
    execution: ExecutorCall,
    declared: DeclaredTool,
    args: Record<string, unknown>,
  ): Promise<Attempt> {
    let giveBack: () => void
    try {
      giveBack = await deps.slot(declared.tool, execution.connector, execution.signal)
    } catch (thrown) {
      if (execution.signal.aborted) return failure('cancelled', 'The call was cancelled before it was sent.')
      if (thrown instanceof ToolBusy)
        return failure('error', `${thrown.message} The call was not sent; try again later.`)
      throw thrown
    }
    const started = performance.now()
    try {
      return { outcome: 'ok', raw: await invoke(execution, declared.tool, args), isMade: true }
    } catch (thrown) {
      const { tool } = declared
      const error = asMcpError(thrown, tool, deps.log)
      const isRepeatable = deps.isRepeatable(tool, execution.connector)
      // Progress may have stretched the call beyond its timeout.
      const waitedS = Math.max(execution.timeoutMs / 1000, Math.floor((performance.now() - started) / 1000))
      const failed = failureOf(error, tool.server ?? 'the server', waitedS, isRepeatable)
      return { ...failed, isMade: error.sent }
    } finally {
      giveBack()
    }
  }

  async function invoke(
    execution: ExecutorCall,
    tool: RegistryTool,
    args: Record<string, unknown>,
  ): Promise<McpResult> {
    const { scope, session_id, connector, signal, timeoutMs } = execution
    const builtin = tool.source === 'builtin' ? builtins.get(tool.canonical_name) : undefined
    if (builtin) {
      const work = builtin.run(args, { store: deps.store, scope, session_id })
      return bounded(work, execution)
    }
    if (!connector || tool.mcp_tool_name === null) {
      throw new McpError('unavailable', 'its server is no longer bound', { sent: false })
    }
    const progress = paced(execution.onProgress)
    return deps.mcp
      .call(deps.specFor(connector), tool.mcp_tool_name, args, {
        timeoutMs,
        maxTotalMs: longest(timeoutMs),
        signal,
        onProgress: progress.report,
      })
      .finally(progress.end)
  }

  return {
    async run(execution) {
      const { call, exec_id, canInspect } = execution
      const started = performance.now()
      const duration = () => Math.ceil(performance.now() - started)
      try {
        const done = await attempt(execution)
        return await settle(call, exec_id, done, done.isMade ? duration() : 0, canInspect)
      } catch (thrown) {
        deps.log.error({ err: thrown, exec_id, tool: call.name }, 'a tool call failed in the gateway')
        const broken = failure('outcome_unknown', `${BROKEN} Whether it took effect is not known.`)
        return settle(call, exec_id, broken, duration(), canInspect)
      }
    },
    settleUnrun: (call, execId, outcome, text) => settle(call, execId, failure(outcome, text), 0, false),
    misfits: async (tool, args) => misfitOf(await validator.problems(tool.input_schema, args), null),
    close: () => validator.close(),
  }
}

const BROKEN = 'The call failed inside the gateway.'

/**
 * An error that is no McpError, or a BatonError `internal`, is a defect of ours or the operator's concern: the model
 * gets none of its words. BatonErrors are thrown before anything is sent.
 */
function asMcpError(thrown: unknown, tool: RegistryTool, log: ExecutorDeps['log']): McpError {
  if (thrown instanceof McpError) return thrown
  const isForeseen = thrown instanceof BatonError
  if (isForeseen && thrown.code !== 'internal') {
    return new McpError('unavailable', thrown.message, { sent: false })
  }
  log.error({ err: thrown, tool: tool.canonical_name }, 'a tool call failed in the gateway')
  return new McpError(isForeseen ? 'unavailable' : 'protocol', BROKEN, { sent: !isForeseen })
}

/** A built-in keeps no deadline of its own. */
async function bounded<T>(work: Promise<T>, { timeoutMs, signal }: ExecutorCall): Promise<T> {
  const deadline = createDeadline('', timeoutMs, signal)
  deadline.markSent()
  return deadline.race(work).finally(deadline.clear)
}

/**
 * Progress that comes too soon after the last report waits, and newer progress replaces it. What still waits at the end
 * is reported.
 */
function paced(report: ExecutorCall['onProgress']): {
  report: ExecutorCall['onProgress']
  end: () => void
} {
  let held: McpProgress | undefined
  let pause: NodeJS.Timeout | undefined
  const flush = (): void => {
    pause = undefined
    if (!held) return
    const { message, ...done } = held
    held = undefined
    pause = setTimeout(flush, PROGRESS.everyMs)
    report({ ...done, ...(message === undefined ? {} : { message: cutUtf8(message, PROGRESS.bytes) }) })
  }
  return {
    report(progress) {
      held = progress
      if (!pause) flush()
    },
    end() {
      clearTimeout(pause)
      flush()
      clearTimeout(pause)
    },
  }
}

/** With `rename`, in the names that the model was given; null if there are no problems. */
function misfitOf(problems: readonly Misfit[], rename: Rename | null): string | null {
  if (problems.length === 0) return null
  const words = problems.map((problem) => inWords(problem, rename)).join('; ')
  return `The arguments do not fit the tool's schema: ${words}.`
}

function inWords({ path, message, property }: Misfit, rename: Rename | null): string {
  const sent = rename && sentByOwn(rename)
  const nameOf = (key: string) => sent?.get(key) ?? key
  const where = path.length === 0 ? 'the arguments' : path.map(nameOf).join('.')
  return `${where} ${message}${property === undefined ? '' : ` '${nameOf(property)}'`}`.slice(0, 300)
}

interface Attempt {
  outcome: Outcome
  raw: McpResult
  /** The call may have run. The time of one that surely did not would make the tool look quick, or slow */
  isMade: boolean
}

const failure = (outcome: Exclude<Outcome, 'ok'>, text: string): Attempt => ({
  outcome,
  raw: { content: [{ type: 'text', text }], is_error: true },
  isMade: false,
})

/** What became of a call that failed: whether it may have taken effect is never hidden. */
function failureOf(error: McpError, server: string, waitedS: number, isRepeatable: boolean): Attempt {
  const unknown: Outcome = error.sent && !isRepeatable ? 'outcome_unknown' : 'error'
  const effect = !error.sent
    ? 'The call did not run.'
    : isRepeatable
      ? 'It is safe to call again.'
      : 'Whether it took effect is not known; do not simply repeat it.'
  const waitS = unknown === 'error' ? Math.ceil((error.retryAfterMs ?? 0) / 1000) : 0
  const patience = waitS > 0 ? ` It can be asked again in ${waitS} s.` : ''
  const why = /[.!?…]$/.test(error.message) ? error.message : `${error.message}.`
  const away = `The server is not available: ${why} ${effect}${patience}`
  switch (error.kind) {
    case 'cancelled':
      return failure(
        'cancelled',
        `The call was cancelled. ${error.sent ? 'Whether it took effect is not known.' : effect}`,
      )
    case 'timeout':
      // If nothing was sent, the connection took too long. It has a limit of its own, which the error names.
      return error.sent
        ? failure(unknown, `No answer came from ${server} within ${waitedS} s. ${effect}`)
        : failure('error', away)
    case 'disconnected':
      return failure(unknown, `The connection to ${server} broke during the call. ${effect}`)
    case 'too_large':
      return failure(
        'error',
        error.sent
          ? `The tool ran, but its answer is too large to take: ${error.message}`
          : `The call did not run: ${error.message}`,
      )
    case 'auth_required':
      return failure('error', `The server ${server} wants a login, or another one. ${effect}`)
    case 'unavailable':
      return failure(unknown, away)
    case 'protocol':
      return error.rpcCode === undefined
        ? failure(unknown, `The answer cannot be used: ${why} ${effect}`)
        : failure('error', `The server answered with an error: ${error.message}`)
    default:
      return error.kind satisfies never
  }
}

/** If the server itself says that the tool failed, that is an error, though the call went well. */
async function settle(
  call: ToolCallPart,
  execId: string,
  { outcome: attempted, raw }: Attempt,
  durationMs: number,
  canInspect: boolean,
): Promise<Settlement> {
  const shaped = await shapeResult(raw, execId, canInspect)
  const outcome: Outcome = attempted === 'ok' && raw.is_error ? 'error' : attempted
  const is_error = outcome !== 'ok'
  const result: ToolResultPart = {
    type: 'tool_result',
    call_id: call.call_id,
    name: call.name,
    content: shaped.content,
    ...(shaped.structured === undefined ? {} : { structured: shaped.structured }),
    is_error,
    outcome,
    ...(shaped.spill ? { spill: shaped.spill } : {}),
  }
  return {
    id: execId,
    outcome,
    is_error,
    error: is_error ? (await redactText(firstText(shaped.content))).slice(0, 2_000) : null,
    duration_ms: durationMs,
    bytes: shaped.bytes,
    output: shaped.stored.output,
    structured: shaped.stored.structured,
    result,
  }
}

const firstText = (content: readonly ContentPart[]): string =>
  content.find((part): part is Extract<ContentPart, { type: 'text' }> => part.type === 'text')?.text ??
  'no text'

function jsonProblem(text: string): string {
  try {
    const value: unknown = JSON.parse(text)
    return isRecord(value) && isWithin(value, BEARABLE)
      ? 'The arguments hold a whole number that is too large to be passed on exactly; give it as a text, if the tool takes one, or rounded to 15 digits.'
      : 'The arguments are valid JSON, but no object, or one of too many values or levels.'
  } catch (err) {
    // The parser quotes the text, which may hold a secret: the quotation is masked.
    const why = (err instanceof Error ? err.message : 'broken').replace(/".*"/s, MASK).slice(0, 200)
    return `The arguments are not a JSON object (${why}).${endsEarly(why, text) ? CUT : ''}`
  }
}

/** The parser wanted more than there is. */
const endsEarly = (why: string, { length }: string): boolean =>
  /end of JSON input/.test(why) || Number(/ at position (\d+)/.exec(why)?.[1]) >= length

/** Not told of the length limit, models write the same again, turn after turn (lobehub/lobehub#13817). */
const CUT =
  ' They end too early, as when the answer has become too long: call again with less in it, or in several calls.'
