/**
 * The tool phase of a step: run its calls in parallel, settle each truthfully, and commit the results in
 * call order as one message. The ledger row of a call is committed before the call and settled after it;
 * whoever takes the turn over reads there what may run again.
 */
import { newId } from '../chat/ids.ts'
import { type Outcome, type ToolCallPart, type ToolResultPart, toolCalls } from '../chat/message.ts'
import { exposedName } from '../chat/names.ts'
import type { Connector, Execution, NewExecution, TurnEnd } from '../store/store.ts'
import type { Overlay } from '../tools/overlay.ts'
import { CANCELLED, DRAINING } from './active.ts'
import { event, say } from './events.ts'
import { completion, isSame, type Job, runJob, sayCompleted, toolOf } from './job.ts'
import { commit, committedSteps, connectorsIn, type Run } from './run.ts'

/** Of one step: a model that repeats itself writes thousands, and each is a row, a result and its events. */
const MOST_CALLS = 128
const TOO_MANY = `The call was not run: it is beyond the ${MOST_CALLS} that one step may make. Ask again for what is still needed.`

/** A step's calls, and their rows in the ledger, made before the step is committed. */
export async function planCalls(
  run: Run,
  overlay: Overlay,
  calls: ToolCallPart[],
): Promise<{ jobs: Job[]; executions: NewExecution[] }> {
  const { active, deps } = run
  const connectors = await connectorsOf(run)
  const opened = calls.map(async (call, i) => {
    const job = newJob(call, newId('exec'), overlay, connectors)
    const { declared, connector } = job
    const isSound = i < MOST_CALLS && declared !== undefined && call.arguments_text === undefined
    job.waits = isSound && deps.policy.needsApproval(declared.tool, connector)
    const execution: NewExecution = {
      id: job.exec_id,
      turn_id: active.turn.id,
      step: run.index,
      call_id: call.call_id,
      tool: await toolOf(job),
      connector: connector?.name ?? null,
      tools_revision: overlay.revision,
      arguments: await deps.executor.redactArguments(call.arguments),
      state: job.waits ? 'awaiting_approval' : 'started',
      repeatable: isSound && deps.policy.isRepeatable(declared.tool, connector),
      ...(job.waits ? { lapses_in: deps.settings.approvalSeconds } : {}),
    }
    return { job, execution }
  })
  const all = await Promise.all(opened)
  return { jobs: all.map(({ job }) => job), executions: all.map(({ execution }) => execution) }
}

/** Runs a step's calls. True: go on with the next step. False: the turn ended or waits for input. */
export async function runCalls(run: Run, jobs: Job[]): Promise<boolean> {
  await Promise.all(jobs.slice(MOST_CALLS).map((job) => leaveUnrun(run, job, 'error', TOO_MANY)))
  return settleAll(run, jobs)
}

/**
 * The calls of a turn that waited or lost its owner. Null when its last step left none open; else as
 * runCalls. A call that was started and not finished runs again only if it said that it may.
 */
export async function resumeCalls(run: Run): Promise<boolean | null> {
  const last = unansweredCalls(run)
  if (!last) return null
  // These calls are those of the step that is committed already: the one before `index`.
  run.index--
  const { deps, active } = run
  const [connectors, ledger, registry] = await Promise.all([
    connectorsOf(run),
    deps.store.executions.ofTurn(active.turn.id),
    deps.tools.newest(active.session.id),
  ])
  const overlay = deps.tools.overlay(registry, deps.deploymentFor(run.provider, run.credential))
  const rows = new Map(ledger.map((row) => [row.call_id, row]))
  const jobs = await Promise.all(
    last.calls.map(async (call, i) => {
      const row = rows.get(call.call_id)
      const job = newJob(call, row?.id ?? newId('exec'), overlay, connectors)
      if (i < MOST_CALLS || row?.state === 'settled') await resumeJob(run, job, row, last.asked_at)
      else await leaveUnrun(run, job, 'error', TOO_MANY)
      return job
    }),
  )
  const goesOn = await settleAll(run, jobs)
  run.index++
  return goesOn
}

/**
 * Settles the calls of a turn that is given up, without running any, and ends it. False, and nothing is
 * written, when its last step left none open.
 */
export async function abandonCalls(run: Committing, end: TurnEnd): Promise<boolean> {
  const last = unansweredCalls(run)
  if (!last) return false
  const ledger = await run.deps.store.executions.ofTurn(run.active.turn.id)
  // `run.index` may be that step's still or the next one's: it depends on where the turn was given up.
  const step = { ...run, index: committedSteps(run.active.turn) - 1 }
  const jobs = last.calls.map(async (call) => {
    const row = ledger.find((one) => one.call_id === call.call_id)
    const job = newJob(call, row?.id ?? newId('exec'))
    if (row?.state === 'settled' && row.result) takeResult(job, row, row.result)
    else if (row?.state === 'awaiting_approval') await leaveUnrun(run, job, 'cancelled', NOT_RUN)
    else if (row && isNoCall(job, row)) await leaveUnrun(run, job, 'error', NO_CALL)
    else await leaveUnrun(run, job, 'outcome_unknown', LOST)
    return job
  })
  await commitResults(step, await Promise.all(jobs), end)
  return true
}

/** The calls that the turn's last step made and that have no results yet; null where there are none. */
function unansweredCalls({ history, active }: Pick<Run, 'history' | 'active'>) {
  const last = history.at(-1)
  if (last?.role !== 'assistant' || last.turn_id !== active.turn.id) return null
  const calls = toolCalls(last)
  return calls.length === 0 ? null : { calls, asked_at: last.created_at }
}

/** Without an overlay: of a call that is not to run. */
function newJob(
  call: ToolCallPart,
  exec_id: string,
  overlay?: Overlay,
  connectors?: ReadonlyMap<string, Connector>,
): Job {
  const declared = overlay?.byExposed.get(exposedName(call.name))
  const connector = connectors?.get(declared?.tool.connector_id ?? '') ?? null
  return { call, exec_id, declared, connector, waits: false }
}

/** Settles the call with a result that no run of it gave. */
async function leaveUnrun(
  { deps }: Pick<Run, 'deps'>,
  job: Job,
  outcome: Exclude<Outcome, 'ok'>,
  text: string,
): Promise<void> {
  Object.assign(job, await deps.executor.settleUnrun(job.call, job.exec_id, outcome, text))
}

/** The result that the ledger has of it. */
function takeResult(job: Job, { duration_ms }: Execution, result: ToolResultPart): void {
  Object.assign(job, { result, duration_ms: duration_ms ?? 0 })
}

/** The call was asked of another server: this one took over its name since, or is younger than the call. */
const isOthers = (row: Execution, connector: Connector | null, asked_at: string): boolean =>
  connector !== null && (row.connector !== connector.name || connector.created_at > asked_at)

/** It could not be run by any owner: no such tool, or no JSON. A row without a server that may be repeated is a built-in's. */
const isNoCall = ({ call, declared }: Job, row: Execution): boolean =>
  call.arguments_text !== undefined || (row.connector === null && declared === undefined && !row.repeatable)

/** Settles the job where its row says how; else it waits for a person, or is to run. */
async function resumeJob(run: Run, job: Job, row: Execution | undefined, asked_at: string): Promise<void> {
  const { store, sealed } = run.deps
  // Every call has a row. Were one missing, nobody could say whether its call ran.
  if (!row) return leaveUnrun(run, job, 'outcome_unknown', LOST)
  if (row.state === 'settled') {
    if (!row.result) return leaveUnrun(run, job, 'outcome_unknown', RESULT_LOST)
    takeResult(job, row, row.result)
    return sayCompleted(run, job)
  }
  const isVain = isNoCall(job, row)
  const isGone = !isVain && isOthers(row, job.connector, asked_at)
  // Run again without its tool, or in a turn that is being cancelled, it would be settled as never called.
  const isCancelled = run.active.stop.signal.reason === CANCELLED
  const mayRepeat = row.repeatable && !isGone && !isCancelled && job.declared
  if (row.state === 'started' && !isVain && !mayRepeat) return leaveUnrun(run, job, 'outcome_unknown', LOST)
  if (isGone) return leaveUnrun(run, job, 'cancelled', SERVER_CHANGED)
  if (row.state === 'awaiting_approval') {
    if (!row.approval) {
      job.waits = true
      return
    }
    const refused = refusalIn(row.approval)
    if (refused) return leaveUnrun(run, job, ...refused)
  }
  // Also of one that was started: what runs again is what was approved. Opened before `begin`, after which it counts as run.
  const edit = row.approval?.sealed_arguments
  if (edit) job.edited = sealed.open(edit, row.id)
  await store.executions.begin(run.active.fence, row.id)
}

/** What was decided against a call, and how that is told; null: it may run. */
function refusalIn({
  decision,
  reason,
}: NonNullable<Execution['approval']>): [outcome: 'cancelled' | 'denied', text: string] | null {
  if (decision === 'approve') return null
  if (decision === 'deny') return ['denied', `The call was denied${reason ? `: ${reason}` : '.'}`]
  return reason === TOOL_GONE
    ? ['cancelled', TOOL_GONE]
    : ['denied', 'The call was not run: nobody approved it in time.']
}

/** Why a call that waited for a person is settled without one. */
export const TOOL_GONE = 'The call was not run: its tool was taken out of this conversation while it waited.'

const SERVER_CHANGED = "The call was not run: its tool's server was replaced or renamed while it waited."

const NOT_RUN = 'The call was not run: its turn ended while it waited.'

const NO_CALL = 'The call was not run: there was no such tool, or its arguments were no JSON.'

const RESULT_LOST = 'The result of this call was lost with its server.'

const LOST =
  'The server that ran this call went away before its result was known. It may or may not have taken effect.'

async function settleAll(run: Run, jobs: Job[]): Promise<boolean> {
  const { active } = run
  active.phase = 'tools'
  const waiting = jobs.filter((job) => job.waits)
  for (const { call } of waiting) {
    const body = { call_id: call.call_id, name: call.name, arguments: call.arguments }
    say(run, { type: 'approval.required', ...body }, `approval:${call.call_id}`)
  }
  const running = jobs.filter((job) => !job.waits && !job.result)
  let open = running.length
  // The last result travels with the message's commit: one write less for the common single call.
  const isLast = () => --open === 0 && waiting.length === 0
  const settled = await Promise.allSettled(running.map((job) => runJob(run, job, isLast)))
  const broken = settled.find((one) => one.status === 'rejected')
  if (broken) throw broken.reason
  await withdraw(run, waiting)
  const isHome = jobs.every(({ result }) => result !== undefined)
  if (active.stop.signal.aborted && !(active.stop.signal.reason === DRAINING && isHome)) {
    return stopHere(run, jobs)
  }
  if (waiting.some((job) => !job.result)) return awaitInput(run, jobs)
  const isEnd = run.index + 1 >= active.turn.max_steps
  await commitResults(
    run,
    jobs,
    isEnd ? { state: 'completed', finish_reason: 'max_steps', error: null } : null,
  )
  return !isEnd
}

/** Nobody is asked about a call whose tool is gone. */
async function withdraw(run: Run, waiting: readonly Job[]): Promise<void> {
  if (waiting.length === 0) return
  const { tools } = await run.deps.tools.newest(run.active.session.id)
  for (const job of waiting) {
    const { declared } = job
    const isThere = tools.some(
      (tool) =>
        tool.canonical_name === job.call.name && tool.enabled && (!declared || isSame(declared.tool, tool)),
    )
    if (isThere) continue
    await leaveUnrun(run, job, 'cancelled', TOOL_GONE)
  }
}

/** The turn is stopped: a cancel settles what is open and ends it; anything else leaves it to the next owner. */
async function stopHere(run: Run, jobs: Job[]): Promise<false> {
  if (run.active.stop.signal.reason !== CANCELLED) throw run.active.stop.signal.reason
  const text = 'The call was not run: the turn was cancelled.'
  for (const job of jobs) if (!job.result) await leaveUnrun(run, job, 'cancelled', text)
  await commitResults(run, jobs, { state: 'cancelled', finish_reason: null, error: null })
  return false
}

async function awaitInput(run: Run, jobs: Job[]): Promise<false> {
  const { active, deps } = run
  const key = `${active.turn.id}:awaiting:${run.index}`
  const body = event(active.turn, run.index, { type: 'turn.awaiting_input' })
  const settlements = jobs.flatMap((job) => job.settlement ?? [])
  active.turn.state = 'awaiting_input'
  await commit(run, { state: 'awaiting_input', settlements, events: [{ key, event: body }] })
  deps.log.info({ turn_id: active.turn.id }, 'turn waits for input')
  return false
}

type Committing = Pick<Run, 'active' | 'deps' | 'writer' | 'history' | 'index'>

async function commitResults(run: Committing, jobs: Job[], end: TurnEnd | null): Promise<void> {
  const { active } = run
  const parts = jobs.flatMap((job) => job.result ?? [])
  const events = jobs.flatMap((job) => (job.isSaid ? [] : completion(run, job)))
  const stored = await commit(run, {
    messages: [{ id: newId('msg'), turn_id: active.turn.id, role: 'tool', parts }],
    settlements: jobs.flatMap((job) => job.settlement ?? []),
    before: events,
    ...(end ? { end } : {}),
  })
  run.history.push(...stored)
}

/** The session's connectors, read again only when its registry or one of them has moved since the step before. */
async function connectorsOf(run: Run): Promise<ReadonlyMap<string, Connector>> {
  const revision = run.registry?.revision ?? -1
  const { bound, connectors: known } = run
  if (known?.revision === revision && known.bound === bound) return known.byId
  const bindings = await run.deps.store.connectors.bindings(run.active.session.id)
  const connectors = connectorsIn(bindings, revision, bound)
  run.connectors = connectors
  return connectors.byId
}
