/**
 * The tool phase of a step: run its calls in parallel, settle each truthfully, and commit the results in call order as
 * one message. The ledger row of a call is committed before the call and settled after it; a process that takes the
 * turn over reads there what becomes of the call (fate.ts).
 */
import { newId } from '../chat/ids.ts'
import { type ToolCallPart, toolCalls } from '../chat/message.ts'
import { exposedName } from '../chat/names.ts'
import type { AnnouncedEvent, Connector, Execution, NewExecution, TurnEnd } from '../store/store.ts'
import type { Overlay } from '../tools/overlay.ts'
import { redactJson } from '../tools/redact.ts'
import { withoutMedia } from '../tools/results.ts'
import { CANCELLED, DRAINING } from './active.ts'
import { announced } from './events.ts'
import { type Fate, fateOf, LOST, MOST_CALLS, TOO_MANY, TOOL_GONE, TURN_CANCELLED } from './fate.ts'
import {
  completion,
  isSameTool,
  type Job,
  mediaRoom,
  recordEnd,
  runJob,
  sayAhead,
  toldOfLedger,
  toolOf,
  unsaid,
} from './job.ts'
import {
  type Change,
  type Committing,
  commit,
  committedSteps,
  connectorsOf,
  endOfSteps,
  overlayFor,
  type Run,
} from './run.ts'

/** A step's calls, and their rows in the ledger, made before the step is committed. */
export async function planCalls(
  run: Run,
  overlay: Overlay,
  calls: ToolCallPart[],
): Promise<{ jobs: Job[]; executions: NewExecution[] }> {
  const { active, deps } = run
  const connectors = await connectorsOf(run)
  const opened = calls.map(async (call, i) => {
    const job = newJob(call, undefined, overlay, connectors)
    const { declared, connector } = job
    const isSound = i < MOST_CALLS && declared !== undefined && call.arguments_text === undefined
    job.waits = isSound && deps.policy.needsApproval(declared.tool, connector)
    job.repeatable = isSound && deps.policy.isRepeatable(declared.tool, connector)
    const execution: NewExecution = {
      id: job.exec_id,
      turn_id: active.turn.id,
      step: run.index,
      call_id: call.call_id,
      tool: await toolOf(job),
      connector: connector?.name ?? null,
      tools_revision: overlay.revision,
      arguments: await redactJson(call.arguments),
      state: job.waits ? 'awaiting_approval' : 'started',
      repeatable: job.repeatable,
      ...(job.waits ? { lapses_in: deps.settings.approvalSeconds } : {}),
    }
    return { job, execution }
  })
  const all = await Promise.all(opened)
  return { jobs: all.map(({ job }) => job), executions: all.map(({ execution }) => execution) }
}

/** Runs a step's calls. True: go on with the next step. False: the turn ended or waits for input. */
export async function runCalls(run: Run, jobs: Job[]): Promise<boolean> {
  await Promise.all(jobs.slice(MOST_CALLS).map((job) => applyFate(run, job, TOO_MANY)))
  return settleAll(run, jobs)
}

/**
 * Takes up the calls of a turn that waited or lost its owner, each as its ledger row says (fate.ts). Null if its last
 * step left none open; otherwise as runCalls. If the turn waited, the commit that made it wait has said which calls
 * were settled.
 */
export async function resumeCalls(run: Run, kind: 'resumed' | 'recovered'): Promise<boolean | null> {
  const open = openCalls(run)
  if (!open) return null
  const { deps, active } = run
  const [connectors, rows, registry] = await Promise.all([
    connectorsOf(run),
    ledgerOf(run),
    deps.tools.newest(active.turn.session_id),
  ])
  const overlay = await overlayFor(run, registry)
  const turn = { asked_at: open.asked_at, isCancelled: active.stop.signal.reason === CANCELLED }
  const step = { ...run, index: open.index }
  const jobs = open.calls.map(async (call, i) => {
    const row = rows.get(call.call_id)
    const job = newJob(call, row, overlay, connectors)
    const fate = await takeUp(step, job, row, fateOf(job, row, i, turn))
    if (fate === 'settled') {
      const completed = completion(step, job)
      if (kind === 'recovered') sayAhead(step, job, completed)
      else for (const { key } of completed) job.said.add(key)
    }
    return job
  })
  return settleAll(step, await Promise.all(jobs))
}

/**
 * Settles the calls of a turn that is given up, without running any, and ends it. Returns false, and writes nothing,
 * if its last step left none open.
 */
export async function abandonCalls(run: Committing, end: TurnEnd): Promise<boolean> {
  const open = openCalls(run)
  if (!open) return false
  const rows = await ledgerOf(run, 'told')
  const jobs = open.calls.map(async (call, i) => {
    const row = rows.get(call.call_id)
    const job = newJob(call, row)
    await applyFate(run, job, fateOf(job, row, i, null), row)
    return job
  })
  await commitResults({ ...run, index: open.index }, await Promise.all(jobs), end)
  return true
}

/** The calls of the turn's last committed step that have no results yet; null if there are none. */
function openCalls({ history, active }: Pick<Run, 'history' | 'active'>) {
  const last = history.at(-1)
  if (last?.role !== 'assistant' || last.turn_id !== active.turn.id) return null
  const calls = toolCalls(last)
  // `run.index` may be that step's or the next one's: it depends on how far the turn is.
  const index = committedSteps(active.turn) - 1
  return calls.length === 0 ? null : { calls, index, asked_at: last.created_at }
}

/** The turn's rows in the ledger, by call id. */
async function ledgerOf(
  { deps, active }: Pick<Run, 'deps' | 'active'>,
  lost?: 'told',
): Promise<Map<string, Execution>> {
  const rows = await deps.store.executions.ofTurn(active.turn.id, lost)
  return new Map(rows.map((row) => [row.call_id, row]))
}

/** Without a row the call is new; without an overlay it is not to run. */
function newJob(
  call: ToolCallPart,
  row: Execution | undefined,
  overlay?: Overlay,
  connectors?: ReadonlyMap<string, Connector>,
): Job {
  const declared = overlay?.byExposed.get(exposedName(call.name))
  const connector = connectors?.get(declared?.tool.connector_id ?? '') ?? null
  const { id: exec_id = newId('exec'), repeatable = false } = row ?? {}
  return { call, exec_id, declared, connector, repeatable, waits: false, said: new Set() }
}

/** Writes the fate into the job; a job that is to run stays as it is. */
async function applyFate({ deps }: Pick<Run, 'deps'>, job: Job, fate: Fate, row?: Execution): Promise<void> {
  const { call, exec_id } = job
  if (fate.kind === 'waits') job.waits = true
  else if (fate.kind === 'settled') Object.assign(job, { result: fate.result, duration_ms: fate.duration_ms })
  else if (fate.kind === 'unrun') {
    const settlement = await deps.executor.settleUnrun(call, exec_id, fate.outcome, fate.text)
    const { result } = settlement
    job.result = fate === LOST && row ? await toldOfLedger(result, job, row) : result
    job.settlement = { ...settlement, result: job.result }
  }
}

/** Applies the fate to the job. If the call is to run, its row is marked as begun. */
async function takeUp(run: Run, job: Job, row: Execution | undefined, fate: Fate): Promise<Fate['kind']> {
  job.waits = false
  await applyFate(run, job, fate, row)
  if (row && fate.kind === 'runs') await begin(run, job, row)
  return fate.kind
}

/**
 * An approved edit is what runs, also when the call is repeated. It is decrypted first: after `begin` the call counts
 * as run. So one that was approved does not begin in a turn that is told to stop, which would not send it.
 */
async function begin({ deps, active }: Run, job: Job, { id, approval, state }: Execution): Promise<void> {
  job.stateBefore = state
  const edit = approval?.sealed_arguments
  if (edit) job.edited = deps.sealed.open(edit, id)
  if (approval) active.stop.signal.throwIfAborted()
  await deps.store.executions.begin(active.fence, id)
}

async function settleAll(run: Run, jobs: Job[]): Promise<boolean> {
  const { active } = run
  active.phase = 'tools'
  const waiting = jobs.filter((job) => job.waits)
  for (const job of waiting) sayAhead(run, job, [question(run, job)])
  const running = jobs.filter((job) => !job.waits && !job.result)
  const room = mediaRoom(jobs)
  let open = running.length
  // The last result is written with the message's commit: one write less for the common single call.
  const countDown = () => --open === 0 && waiting.length === 0
  const settled = await Promise.allSettled(running.map((job) => runJob(run, job, room, countDown)))
  const broken = settled.find((one) => one.status === 'rejected')
  if (broken) throw broken.reason
  await withdraw(run, waiting)
  const areSettled = jobs.every(({ result }) => result !== undefined)
  const { aborted, reason } = active.stop.signal
  if (aborted && !(reason === DRAINING && areSettled)) return stopHere(run, jobs)
  if (!areSettled) return (await takeUpDecided(run, jobs)) ? settleAll(run, jobs) : awaitInput(run, jobs)
  const end = endOfSteps(run)
  await commitResults(run, jobs, end)
  return end === undefined
}

/**
 * All calls that waited may have been decided while others ran. Then they go on at once: clients must not hear that
 * the turn waits when nothing is left to decide. Returns false while one is undecided.
 */
async function takeUpDecided(run: Run, jobs: readonly Job[]): Promise<boolean> {
  const rows = await ledgerOf(run)
  const waiting = jobs.filter((job) => job.waits && !job.result)
  if (!waiting.every(({ call }) => rows.get(call.call_id)?.approval)) return false
  const turn = { asked_at: run.history.at(-1)?.created_at ?? '', isCancelled: false }
  // At once: of calls that begin one after the other, a stop would leave the first ones begun and never sent.
  const taken = waiting.map((job) => {
    const row = rows.get(job.call.call_id)
    return takeUp(run, job, row, fateOf(job, row, jobs.indexOf(job), turn))
  })
  await Promise.all(taken)
  return true
}

/** Nobody is asked about a call whose tool is gone. */
async function withdraw(run: Run, waiting: readonly Job[]): Promise<void> {
  if (waiting.length === 0) return
  const { tools } = await run.deps.tools.newest(run.active.turn.session_id)
  for (const job of waiting) {
    const { declared } = job
    const isThere = tools.some(
      (tool) =>
        tool.canonical_name === job.call.name &&
        tool.enabled &&
        (!declared || isSameTool(declared.tool, tool)),
    )
    if (isThere) continue
    await applyFate(run, job, TOOL_GONE)
  }
}

/** The turn is stopped: a cancel settles what is open and ends it; anything else leaves it to the next owner. */
async function stopHere(run: Run, jobs: Job[]): Promise<false> {
  if (run.active.stop.signal.reason !== CANCELLED) throw run.active.stop.signal.reason
  for (const job of jobs) if (!job.result) await applyFate(run, job, TURN_CANCELLED)
  await commitResults(run, jobs, { state: 'cancelled' })
  return false
}

async function awaitInput(run: Run, jobs: Job[]): Promise<false> {
  const { active, deps } = run
  const waits = announced(active.turn, run.index, `awaiting:${run.index}`, { type: 'turn.awaiting_input' })
  // Nobody enters the turn again before a person has answered: events that are not in the stream would die with this
  // owner.
  await run.writer.flush()
  const before = jobs.flatMap((job) => unsaid(job, job.result ? completion(run, job) : [question(run, job)]))
  await commitEnds(run, jobs, { state: 'awaiting_input', before, events: [waits] })
  active.turn.state = 'awaiting_input'
  deps.log.info({ turn_id: active.turn.id }, 'turn waits for input')
  return false
}

/** What a person is asked about a call. */
function question({ active, index }: Pick<Run, 'active' | 'index'>, { call }: Job): AnnouncedEvent {
  const { call_id, name, arguments: args } = call
  const body = { type: 'approval.required', call_id, name, arguments: args } as const
  return announced(active.turn, index, `approval:${call_id}`, body)
}

/**
 * The job as it is announced with the message that has its result: media are not kept twice, and are put back when the
 * event is said (hydrate). Who cannot put them back (the message is deleted by then, or a replica of an earlier build
 * says it) tells of them.
 */
const inWords = (job: Job): Job =>
  job.result ? { ...job, result: withoutMedia(job.result, 'left to the message that has this result') } : job

async function commitResults(run: Committing, jobs: Job[], end: TurnEnd | undefined): Promise<void> {
  await commitEnds(run, jobs, {
    message: { role: 'tool', parts: jobs.flatMap((job) => job.result ?? []) },
    before: jobs.flatMap((job) => unsaid(job, completion(run, inWords(job)))),
    end,
  })
}

/** Commits, with the settlements that are not in the ledger yet. */
async function commitEnds(run: Committing, jobs: Job[], rest: Change): Promise<void> {
  const ended = jobs.flatMap((job) => (job.settlement ? [{ job, settlement: job.settlement }] : []))
  await commit(run, { ...rest, settlements: ended.map(({ settlement }) => settlement) })
  for (const { job, settlement } of ended) await recordEnd(run, job, settlement)
}
