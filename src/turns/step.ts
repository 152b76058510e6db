/**
 * One model step: read the newest state, render, stream, fold, commit. A change of tools before the
 * request leaves renders it again; a restart while it streams discards what was streamed and runs the
 * same step once more from the same history.
 */
import type { ModelEvent, StepFinish, TurnFinish } from '../chat/event.ts'
import { createFold, type Finish, type Fold } from '../chat/fold.ts'
import { addUsage, NO_USAGE, type Part, toolCalls } from '../chat/message.ts'
import { LlmStale, noTries, type Tries } from '../llm.ts'
import type { Commit, Step } from '../store/store.ts'
import { type Overlay, ownPart } from '../tools/overlay.ts'
import { CANCELLED, RESTART, requestStop } from './active.ts'
import { planCalls } from './calls.ts'
import { announced, now, say } from './events.ts'
import type { Job } from './job.ts'
import { type Prepared, prepareStep } from './prepare.ts'
import { type Attempt, catchUp, commit, endedStep, endOfSteps, overlayFor, type Run } from './run.ts'

/** How often the model may retry a call that cannot be made; then the turn ends without it. */
const INVALID_CALL_LIMIT = 2

/** Runs the step at `run.index` to its commit. Null when the turn ended with it, else the calls to run, if any. */
export async function modelStep(run: Run): Promise<Job[] | null> {
  let tries = noTries()
  while (true) {
    const prepared = await prepareNewest(run)
    const attempt = { step: newStep(run, prepared.overlay), folding: createFold() }
    const again = await streamStep(run, prepared, attempt, tries)
    if (again !== null) {
      // Restarts are counted. Other changes of tools are not: with new tries for each, a step might never fail.
      if (again === 'tools_changed') tries = noTries()
      await discard(run, again)
      continue
    }
    const problem = attempt.folding.finish()?.invalid_call
    if (problem === undefined) return commitStep(run, prepared, attempt)
    const isEnd = await retryInvalidCall(run, attempt, problem)
    if (isEnd) return null
  }
}

/** Reads what is new, unless nothing can be, and makes the request of it. */
async function prepareNewest(run: Run): Promise<Prepared> {
  const { active, deps } = run
  active.phase = 'preparing'
  active.stop.signal.throwIfAborted()
  if (run.isCurrent) run.isCurrent = false
  else {
    await catchUp(run)
    run.heardRevision = deps.tools.latestRevision(active.turn.session_id)
    await readNew(run)
  }
  return prepareStep(run)
}

async function readNew(run: Run): Promise<void> {
  const { active, deps } = run
  const lastSeq = run.history.at(-1)?.seq ?? 0
  const { revision } = run.registry
  const read = await deps.store.turns.readStep(active.fence, active.turn.id, lastSeq, revision)
  run.history.push(...read.messages)
  run.bound = read.bound
  if (read.registry) run.registry = deps.tools.keep(read.registry)
  if (read.cancel_requested) requestStop(active, CANCELLED)
}

function newStep(run: Run, overlay: Overlay): Step {
  return {
    index: run.index,
    attempt: run.active.turn.attempt,
    provider: run.provider,
    model: run.model,
    tools_revision: overlay.revision,
    tool_count: overlay.tools.length,
    finish_reason: null,
    usage: NO_USAGE,
    started_at: now(),
    ended_at: null,
  }
}

/**
 * Streams the answer to readers and into the fold. Returns why the step must run again; null if the answer is whole.
 * Throws what failed; a stop wins over it.
 */
async function streamStep(
  run: Run,
  prepared: Prepared,
  attempt: Attempt,
  tries: Tries,
): Promise<'retry' | 'tools_changed' | null> {
  const { active, deps } = run
  const { step, folding } = attempt
  // A stop that came while the request was being prepared had no model call to abort.
  active.stop.signal.throwIfAborted()
  const own = new AbortController()
  active.model = own
  const isRestart = active.restartPending
  const beforeSend = () => {
    const known = Math.max(prepared.overlay.revision, run.heardRevision)
    if (deps.tools.latestRevision(active.turn.session_id) > known) return false
    if (run.inFlight === attempt) return true
    run.inFlight = attempt
    active.phase = 'model'
    active.restartPending = false
    active.sent = { revision: prepared.overlay.revision, isRestart }
    const { provider, model, tools_revision, tool_count } = step
    say(run, { type: 'step.started', provider, model, tools_revision, tool_count })
    deps.log.debug({ turn_id: active.turn.id, step: step.index, tools_revision, tool_count }, 'step started')
    return true
  }
  try {
    const call = {
      turn_id: active.turn.id,
      deployment: prepared.deployment,
      request: prepared.request,
      secret: run.credential.secret,
      onUnauthorized: run.credential.onUnauthorized,
      context: prepared.context,
      signal: own.signal,
      beforeSend,
      amended: run.amended,
      tries,
    }
    await deps.llm.stream(call, (item) => take(run, folding, inOwnNames(item, prepared)))
  } catch (thrown) {
    // The tools changed before this request, or a retry of it, had left.
    if (thrown instanceof LlmStale) return 'retry'
    if (own.signal.reason === RESTART && !active.stop.signal.aborted) return 'tools_changed'
    throw thrown
  } finally {
    active.phase = 'committing'
  }
  active.stop.signal.throwIfAborted()
  // A restart was asked for while the last bytes were read: nothing is committed yet, so it still holds.
  if (active.restartPending) return 'tools_changed'
  const silent = folding.finish()?.silent
  if (!isAskedAgain(run, silent)) return null
  run.hint = silent === 'call' ? MISSING_CALL : SILENT
  return 'retry'
}

const SILENT = 'Your last answer had no words and no tool call. Please continue.'
const MISSING_CALL = 'Your last answer ended for a tool call, but had none. Please continue.'

/** Whether a silent answer is asked for again, once in a step: an empty one after tool results may be meant. */
function isAskedAgain({ index, active }: Run, silent: Finish['silent']): boolean {
  if (silent === undefined || (silent === 'empty' && index > 0)) return false
  return !active.turn.steps.some((step) => step.discarded && step.index === index)
}

const inOwnNames = (item: ModelEvent, { overlay }: Prepared): ModelEvent =>
  item.type === 'part' ? { ...item, part: ownPart(overlay, item.part) } : item

function take(run: Run, folding: Fold, item: ModelEvent): void {
  folding.add(item)
  const { writer } = run
  // Written out: nearly all events are of these kinds, and an object spread together from others costs several times
  // as much as one literal.
  const { id: turn_id, session_id } = run.active.turn
  const step = run.index
  switch (item.type) {
    case 'text.delta':
      return writer.delta({ type: 'content.delta', text: item.text, session_id, turn_id, step, at: now() })
    case 'reasoning.delta':
      return writer.delta({ type: 'reasoning.delta', text: item.text, session_id, turn_id, step, at: now() })
    case 'tool_call.delta': {
      const { call_id, name, arguments_delta } = item
      const type = 'tool_call.delta'
      return writer.delta({ type, call_id, name, arguments_delta, session_id, turn_id, step, at: now() })
    }
    case 'part':
      if (item.part.type !== 'tool_call') return
      return say(run, {
        type: 'tool_call',
        call_id: item.part.call_id,
        name: item.part.name,
        arguments: item.part.arguments,
      })
    case 'usage':
    case 'finish':
      return
    default:
      return item satisfies never
  }
}

/** Gives up the attempt whose request has left, if there is one: the turn keeps its record, the history nothing of it. */
export async function discard(run: Run, reason: 'tools_changed' | 'retry' | 'owner_lost'): Promise<void> {
  const { active, deps } = run
  const { turn } = active
  if (!run.inFlight) return
  const step: Step = { ...endedStep(run.inFlight, null), discarded: true }
  run.inFlight = null
  turn.steps.push(step)
  // The vendor charges for it all the same.
  turn.usage = addUsage(turn.usage, step.usage)
  turn.attempt++
  if (reason === 'tools_changed') turn.restarts++
  // Once: an owner that is lost before the commit has said it, and the next one takes back the same attempt.
  say(run, { type: 'step.discarded', reason }, `discarded:${turn.attempt}`)
  await deps.store.turns.commit(active.fence, {
    turn_id: turn.id,
    step,
    attempt: turn.attempt,
    restarts: turn.restarts,
  })
  active.phase = 'preparing'
  if (reason !== 'tools_changed') return
  await catchUp(run)
  const tools_revision = deps.tools.latestRevision(active.turn.session_id)
  say(run, { type: 'turn.restarted', attempt: turn.attempt, tools_revision })
}

/**
 * Gives up the attempt that was under way when the turn lost its owner. All that is known here is that it followed the
 * last message: its record has the present tools, and no usage.
 */
export async function discardLost(run: Run): Promise<void> {
  const registry = await run.deps.tools.newest(run.active.turn.session_id)
  const overlay = await overlayFor(run, registry)
  const started_at = run.history.at(-1)?.created_at ?? now()
  run.inFlight = { step: { ...newStep(run, overlay), started_at }, folding: createFold() }
  await discard(run, 'owner_lost')
}

/**
 * The model wrote a call that could not be made at all (undeclared or malformed, wire/gemini.md 6.4). It is told so
 * once or twice; after that the turn ends with a notice (returns true), since the same context may repeat it forever.
 */
async function retryInvalidCall(run: Run, attempt: Attempt, problem: string): Promise<boolean> {
  run.invalidCalls++
  if (run.invalidCalls <= INVALID_CALL_LIMIT) {
    run.hint = `Your last tool call could not be made: ${problem}\nCall only tools that are declared, with arguments that fit their schema, or answer without a tool.`
    await discard(run, 'retry')
    return false
  }
  const text = attempt.folding.textSoFar()
  const parts: Part[] = [
    ...(text === '' ? [] : [{ type: 'text', text } as const]),
    { type: 'notice', text: `The model tried a tool call that could not be made: ${problem}` },
  ]
  await endStep(run, attempt, parts, 'stop')
  return true
}

async function commitStep(run: Run, { overlay }: Prepared, attempt: Attempt): Promise<Job[] | null> {
  const { folding } = attempt
  const { reason = 'stop', refusal, goes_on } = folding.finish() ?? {}
  // With a refusal the vendor takes its answer back: the calls that the answer asked for are not made, and the turn
  // ends.
  const parts: Part[] = folding.parts().filter(({ type }) => reason !== 'refusal' || type !== 'tool_call')
  if (refusal) parts.push({ type: 'notice', text: `The provider refused to answer: ${refusal}` })
  const calls = toolCalls({ parts })
  run.hint = null
  if (goes_on) return goOn(run, attempt, parts)
  if (calls.length === 0) {
    await endStep(run, attempt, parts, reason === 'length' || reason === 'refusal' ? reason : 'stop')
    return null
  }
  const { jobs, executions } = await planCalls(run, overlay, calls)
  await writeStep(run, attempt, parts, 'tool_calls', { executions })
  return jobs
}

/** The next step follows without calls between, if the turn may take one more. */
async function goOn(run: Run, attempt: Attempt, parts: Part[]): Promise<[] | null> {
  const end = endOfSteps(run)
  await writeStep(run, attempt, parts, 'stop', { end })
  return end ? null : []
}

async function endStep(
  run: Run,
  attempt: Attempt,
  parts: Part[],
  reason: TurnFinish & StepFinish,
): Promise<void> {
  await writeStep(run, attempt, parts, reason, {
    end: { state: 'completed', finish_reason: reason },
  })
}

async function writeStep(
  run: Run,
  attempt: Attempt,
  parts: Part[],
  finish_reason: StepFinish,
  rest: Pick<Commit, 'executions' | 'end'>,
): Promise<void> {
  const { active, deps } = run
  const done = endedStep(attempt, finish_reason)
  const { usage } = done
  const completed = { type: 'step.completed', finish_reason, usage } as const
  active.turn.steps.push(done)
  active.turn.usage = addUsage(active.turn.usage, usage)
  run.inFlight = null
  say(run, { type: 'usage', ...usage })
  // A crash right after the commit must not cost readers deltas of a message that is stored.
  await run.writer.flush()
  await commit(run, {
    step: done,
    message: { role: 'assistant', parts },
    events: [announced(active.turn, done.index, `step:${done.index}`, completed)],
    ...rest,
  })
  deps.metrics.stepEnded(run.provider, finish_reason)
}
