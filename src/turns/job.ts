/**
 * One call of a step: made under its connector's limits, stopped if need be, settled truthfully, and its completion
 * said.
 */
import type { TurnEventBody } from '../chat/event.ts'
import { canonicalJson } from '../chat/json.ts'
import type { ToolCallPart, ToolResultPart } from '../chat/message.ts'
import { logLine } from '../log.ts'
import type { AnnouncedEvent, Connector, Execution, RegistryTool, Settlement } from '../store/store.ts'
import { cutUtf8 } from '../text.ts'
import type { DeclaredTool } from '../tools/execute.ts'
import { redactJson, redactText } from '../tools/redact.ts'
import { isDeclarable } from '../tools/registry.ts'
import { INSPECT, withoutMedia } from '../tools/results.ts'
import { unlessAborted, within } from '../within.ts'
import { CANCELLED, DRAINING, OWNER_LOST, TOOL_REMOVED } from './active.ts'
import { announced, say } from './events.ts'
import { LOST } from './fate.ts'
import { overlayFor, type Run } from './run.ts'

/** One call with everything known about it. `result` is there once it is settled. */
export interface Job {
  call: ToolCallPart
  exec_id: string
  declared: DeclaredTool | undefined
  connector: Connector | null
  /** The edit of the arguments by the person who approved the call, if there is one */
  edited?: Record<string, unknown>
  /** A person is to say whether it may run */
  waits: boolean
  /** As its row says: an owner that takes it up may make it again */
  repeatable: boolean
  /** Its row's state before it was taken up: `started` if an owner that is gone had begun it, and may have made it */
  stateBefore?: Execution['state']
  /** Not in the ledger yet: the next commit writes it */
  settlement?: Settlement
  result?: ToolResultPart
  /** How long it ran */
  duration_ms?: number
  /** Keys of its announcements that are known to be in the stream */
  readonly said: Set<string>
}

/** Bytes of a made-up name in the ledger, which finds calls by it: PostgreSQL's indexes take no text of 2.7 kB. */
const MOST_NAME = 2048

/** The tool's name for the ledger and the log: one that a model made up may hold a secret, or the whole call. */
export const toolOf = async ({ call, declared }: Job): Promise<string> =>
  declared ? call.name : cutUtf8(await redactText(call.name), MOST_NAME)

/** How long a call may take to return after it was told to stop. */
const STOP_GRACE_MS = 3_000

/**
 * Most characters of media in the results of a step; most providers take fewer in a request. The results are one message,
 * and the store refuses a statement of a few times as many: then the turn could not even end.
 */
const MOST_MEDIA = 32 << 20

/** How many characters of media the calls of a step may still bring. */
interface MediaRoom {
  left: number
}

export const mediaRoom = (jobs: readonly Job[]): MediaRoom => ({
  left: jobs.reduce((left, { result }) => left - (result ? mediaIn(result) : 0), MOST_MEDIA),
})

const mediaIn = ({ content }: ToolResultPart): number =>
  content.reduce((sum, part) => sum + (part.type === 'text' ? 0 : (part.data?.length ?? 0)), 0)

/** The settlement, with its media in words if there is no room for them. */
export function fitted(settlement: Settlement, room: MediaRoom): Settlement {
  const size = mediaIn(settlement.result)
  if (size === 0) return settlement
  if (size > room.left) return { ...settlement, result: withoutMedia(settlement.result, NO_ROOM) }
  room.left -= size
  return settlement
}

const NO_ROOM = 'the results of this step hold as many bytes of media already as may be passed on at once'

/**
 * `countDown` is called once, when the call has returned. True: no other is open, so that the settlement may be written
 * with the results' commit.
 */
export async function runJob(run: Run, job: Job, room: MediaRoom, countDown: () => boolean): Promise<void> {
  const { active, deps } = run
  const { call, exec_id } = job
  const own = new AbortController()
  const signal = AbortSignal.any([active.stop.signal, own.signal])
  active.calls.set(call.call_id, { tool: call.name, abort: own })
  say(run, { type: 'tool_execution.started', call_id: call.call_id, exec_id })
  const ended = fitted(await withinGrace(run, job, signal, callTool(run, job, signal)), room)
  active.calls.delete(call.call_id)
  const travels = countDown()
  const { reason } = active.stop.signal
  if (reason === OWNER_LOST) return
  // It was stopped before it was sent, while it waited for a slot, say.
  const isUnsent = ended.outcome === 'cancelled' && ended.duration_ms === 0
  if (reason === DRAINING && ended.outcome === 'cancelled') {
    // Told that the call was not made, its model would make it again, and the person would be asked again.
    if (isUnsent && job.stateBefore === 'awaiting_approval')
      return deps.store.executions.putBack(active.fence, exec_id)
    // Left open: the next owner makes it again, or says that its outcome is unknown, which is untrue of one not made.
    if (!isUnsent || job.repeatable) return
  }
  const truth = isUnsent && job.stateBefore === 'started' ? await settleLost(run, job) : ended
  const settlement = { ...truth, result: await toldOfEdit(truth.result, job) }
  job.result = settlement.result
  job.duration_ms = settlement.duration_ms
  if (reason === CANCELLED || (reason === undefined && travels)) {
    job.settlement = settlement
    return
  }
  await deps.store.executions.settle(active.fence, settlement)
  await recordEnd(run, job, settlement)
  sayAhead(run, job, completion(run, job))
}

const settleLost = ({ deps }: Run, { call, exec_id }: Job): Promise<Settlement> =>
  deps.executor.settleUnrun(call, exec_id, LOST.outcome, LOST.text)

/**
 * Counts and logs a call's end, once the ledger has it: an end that the ledger lacks is settled and counted by the next
 * owner.
 */
export async function recordEnd(
  { active, deps }: Pick<Run, 'active' | 'deps'>,
  job: Job,
  { outcome, duration_ms }: Settlement,
): Promise<void> {
  const { call, exec_id, declared } = job
  // Undeclared names count as one: those that models make up would leave no room for those of tools.
  deps.metrics.toolEnded(declared ? call.name : 'unknown', outcome, duration_ms || null)
  logLine(deps.log, 'tool call ended', {
    session_id: active.turn.session_id,
    turn_id: active.turn.id,
    call_id: call.call_id,
    exec_id,
    tool: await toolOf(job),
    outcome,
    ms: duration_ms,
  })
}

/** Says a job's events at once. The commit that follows says what is still unsaid by then. */
export function sayAhead({ deps, active, writer }: Run, { said }: Job, events: AnnouncedEvent[]): void {
  for (const { key, event } of events) {
    writer.emit(event, key).then(
      () => said.add(key),
      (err: unknown) =>
        deps.log.warn({ err, turn_id: active.turn.id, type: event.type }, 'an event is left to the commit'),
    )
  }
}

/** Those of a job's events that are not known to be in the stream. */
export const unsaid = ({ said }: Job, events: AnnouncedEvent[]): AnnouncedEvent[] =>
  events.filter(({ key }) => !said.has(key))

/** Whether it is still the same server's tool: another server may have taken over its name. */
export const isSameTool = (declared: RegistryTool, newest: RegistryTool | undefined): boolean =>
  newest?.canonical_name === declared.canonical_name && newest.connector_id === declared.connector_id

async function callTool(run: Run, job: Job, signal: AbortSignal): Promise<Settlement> {
  const { active, deps } = run
  const { call, exec_id, connector } = job
  const registry = await deps.tools.current(active.turn.session_id)
  const newest = registry.tools.find((tool) => tool.canonical_name === call.name)
  if (job.declared && !(isDeclarable(newest) && isSameTool(job.declared.tool, newest))) {
    const text = `The tool ${call.name} was taken out of this conversation a moment ago; it was not called.`
    return deps.executor.settleUnrun(call, exec_id, 'error', text)
  }
  const overlay = await overlayFor(run, registry)
  return deps.executor.run({
    scope: { owner: active.turn.owner, admin: false },
    session_id: active.turn.session_id,
    exec_id,
    call: job.edited ? { ...call, arguments: job.edited } : call,
    declared: job.declared,
    connector,
    canInspect: overlay.byExposed.has(INSPECT),
    timeoutMs: job.declared ? deps.policy.limits(job.declared.tool, connector).timeoutMs : 0,
    signal,
    onProgress: (progress) =>
      say(run, { type: 'tool_execution.progress', call_id: call.call_id, exec_id, ...progress }),
  })
}

/** Bytes of an edit that a model is told of. */
const MOST_EDIT = 4096

/**
 * Tells the model of an edit. It knows only the arguments that it wrote: it would report these, or call again with them
 * (langchain-ai/langchain#33784). The note comes last, so that it does not hide the result (sandialabs/atlas-ui-3#796).
 */
async function toldOfEdit(result: ToolResultPart, { call, edited }: Job): Promise<ToolResultPart> {
  if (!edited || canonicalJson(edited) === canonicalJson(call.arguments)) return result
  return withEdit(result, await redactJson(edited))
}

/**
 * The same of a call that its owner left begun, by what the ledger shows of it: the edit itself may not open any more,
 * and nobody would put its key back for a call that is not made again.
 */
export async function toldOfLedger(
  result: ToolResultPart,
  { call }: Job,
  { approval, arguments: shown }: Execution,
): Promise<ToolResultPart> {
  const isSame = async () => canonicalJson(shown) === canonicalJson(await redactJson(call.arguments))
  return !approval?.sealed_arguments || (await isSame()) ? result : withEdit(result, shown)
}

function withEdit(result: ToolResultPart, shown: unknown): ToolResultPart {
  const json = JSON.stringify(shown)
  const now = cutUtf8(json, MOST_EDIT)
  const rest = now === json ? '' : '…'
  const text = `[The arguments of this call were changed by the person who approved it, to: ${now}${rest}]`
  return { ...result, content: [...result.content, { type: 'text', text }] }
}

/** A call that was told to stop and does not return in time is settled without its answer. */
async function withinGrace(
  run: Run,
  job: Job,
  signal: AbortSignal,
  work: Promise<Settlement>,
): Promise<Settlement> {
  const begun = performance.now()
  // If the work has failed, it fails again below.
  await unlessAborted(signal, work).catch(() => {})
  const settlement = await within(STOP_GRACE_MS, work)
  if (settlement) return settlement
  const why = signal.reason === TOOL_REMOVED ? 'its tool was removed' : 'the turn was cancelled'
  const text = `The call was stopped because ${why}; whether it took effect is not known.`
  const stopped = await run.deps.executor.settleUnrun(job.call, job.exec_id, 'cancelled', text)
  // It may have been made.
  return { ...stopped, duration_ms: Math.ceil(performance.now() - begun) }
}

/** What is announced of a call that has a result. */
export function completion({ active, index }: Pick<Run, 'active' | 'index'>, job: Job): AnnouncedEvent[] {
  const { call, exec_id, result, duration_ms = 0 } = job
  if (!result) return []
  const body: TurnEventBody = {
    type: 'tool_execution.completed',
    call_id: call.call_id,
    exec_id,
    outcome: result.outcome,
    is_error: result.is_error,
    duration_ms,
    content: result.content,
  }
  return [announced(active.turn, index, exec_id, body)]
}
