/**
 * The loop of one turn, from the moment that this process owns it until it ends, waits for input, or is
 * given away: a model step, its tool calls, the next step. Only this file knows the order of things.
 */
import { createWriter, type Writer } from '../bus/writer.ts'
import { applyEdits } from '../chat/edits.ts'
import { isBlank, type Message } from '../chat/message.ts'
import type { ChosenCredential } from '../credentials/choose.ts'
import { asBatonError, BatonError, isUnavailable } from '../errors.ts'
import { logLine } from '../log.ts'
import type { AnnouncedEvent, Binding, Turn, TurnEnd, TurnStart } from '../store/store.ts'
import { StaleOwner, Unreadable } from '../store/store.ts'
import { SERVER_WAIT_MS } from '../tools/session-tools.ts'
import { unlessAborted } from '../within.ts'
import { type ActiveTurn, CANCELLED, DRAINING, type Entry, OWNER_LOST, requestStop } from './active.ts'
import { abandonCalls, resumeCalls, runCalls } from './calls.ts'
import { say, sayAll } from './events.ts'
import type { LoopDeps } from './loop-deps.ts'
import {
  type Change,
  type Committing,
  commit,
  committedSteps,
  connectorsIn,
  contextOf,
  endedStep,
  type Run,
} from './run.ts'
import { discard, discardLost, modelStep } from './step.ts'

/** Most times that a turn may lose its owner before it is failed. */
const RECOVERY_LIMIT = 3

/**
 * Whatever happens to the turn is written down, or left to its next owner. Rejects only with Unreadable, when the turn
 * is to be handed back.
 */
export async function runTurn(deps: LoopDeps, active: ActiveTurn, entry: Entry): Promise<void> {
  const { turn } = active
  const from = performance.now()
  const writer = createWriter(deps.bus, turn.session_id, {
    flushMs: deps.settings.flushMs,
    epoch: active.fence.epoch,
    again: entry.kind !== 'fresh',
  })
  active.phase = 'preparing'
  deps.metrics.turnStarted()
  try {
    await drive(deps, active, writer, entry)
  } catch (thrown) {
    if (thrown instanceof Unreadable) throw thrown
    // The lease is gone: the next owner reads what is committed. Nothing may be written here any more.
    if (!(thrown instanceof StaleOwner)) deps.log.error({ err: thrown, turn_id: turn.id }, 'turn loop failed')
  } finally {
    await writer.close().catch((err: unknown) => deps.log.warn({ err, turn_id: turn.id }, 'events were lost'))
    const ms = Math.round(performance.now() - from)
    deps.metrics.turnEnded(turn.state, ms)
    const { id: turn_id, session_id, state, error } = turn
    const failed = error ? { code: error.code, credential_id: active.credentialId } : {}
    const line = { turn_id, session_id, state, ...failed, steps: turn.steps.length, ms }
    logLine(deps.log, 'turn ended', line, error)
  }
}

async function drive(deps: LoopDeps, active: ActiveTurn, writer: Writer, entry: Entry): Promise<void> {
  const { turn } = active
  // After the first commit both events are in the stream. If the log was lost since, a second `turn.created` would make
  // the new log look whole, where later readers must get a gap.
  if (committedSteps(turn) === 0) {
    const whole = { deps, active, writer, index: null }
    say(whole, { type: 'turn.created' }, 'created')
    say(whole, { type: 'turn.started' }, 'started')
  }
  let run: Run
  try {
    run = await load(deps, active, writer, entry)
  } catch (thrown) {
    if (isLeft(active, entry, thrown)) throw thrown
    const ending = await endingUnloaded(deps, active, writer)
    // A message that cannot be read cannot be said.
    if (entry.kind !== 'fresh' && !(thrown instanceof Unreadable)) await sayLeft(ending, entry.announce)
    return fail(ending, thrown)
  }
  try {
    if (entry.kind !== 'fresh') await reenter(run, entry)
    // Its calls may have ended the turn (at the last step that it may take), or made it wait: its state says so.
    if (turn.state === 'running') await steps(run)
  } catch (thrown) {
    if (isLeft(active, entry, thrown)) throw thrown
    // A step in flight is lost with what it streamed. This is said here, since the next owner cannot know of the step.
    if (run.active.stop.signal.reason === DRAINING) await discard(run, 'owner_lost')
    await fail(run, thrown)
  }
  if (entry.kind === 'fresh' && entry.start) {
    deps.keepHistory(turn.session_id, entry.start.rewrites, run.history)
  }
}

/**
 * This process must not end the turn. Another process owns it now, or will recover it: one that has its encryption key
 * or, if this one has waited for the store long enough, any process once the store is back. An unreadable turn that
 * began here fails and says why; a cancelled one is ended, which needs no key. A turn whose owners all wait in vain is
 * failed at last.
 */
const isLeft = ({ stop, turn }: ActiveTurn, entry: Entry, thrown: unknown): boolean =>
  thrown instanceof StaleOwner ||
  (thrown instanceof Unreadable && entry.kind !== 'fresh' && stop.signal.reason !== CANCELLED) ||
  (isUnavailable(thrown) && !stop.signal.aborted && turn.recoveries <= RECOVERY_LIMIT)

/** What it takes to end a turn that could not be loaded: it may have waited, or lost its owner, with calls open. */
async function endingUnloaded(deps: LoopDeps, active: ActiveTurn, writer: Writer): Promise<Ending> {
  const { turn } = active
  const history = await messagesSince(deps, turn)
  return { deps, active, writer, history, index: committedSteps(turn), inFlight: null }
}

/** Only the newest if all are too long to be read: it has the calls that are open, and the session must not stay busy. */
async function messagesSince({ store }: LoopDeps, { session_id, base_seq }: Turn): Promise<Message[]> {
  const { after, newest } = store.messages
  try {
    return await after(session_id, base_seq, 'told')
  } catch (thrown) {
    if (!(thrown instanceof BatonError) || thrown.code !== 'context_too_long') throw thrown
    const last = await newest(session_id, base_seq)
    return last ? [last] : []
  }
}

/**
 * The credential with the facts that only the vendor knows, which are asked for at the login's first use. Asking may
 * take minutes, and goes on for the next turn if this one is told to stop. Facts that are there already win: a turn that
 * was taken over only to be cancelled must still be loaded, since its calls are to be settled.
 */
async function completed(credential: ChosenCredential, stop: AbortSignal): Promise<ChosenCredential> {
  if (!credential.complete) return credential
  return { ...credential, facts: await unlessAborted(stop, credential.complete()) }
}

async function load(deps: LoopDeps, active: ActiveTurn, writer: Writer, entry: Entry): Promise<Run> {
  const { turn } = active
  const start = entry.kind === 'fresh' ? entry.start : null
  const session = start?.session ?? (await deps.store.sessions.ofTurn(turn.id))
  // Deleted, and its turns with it.
  if (!session) throw new StaleOwner()
  const provider = turn.provider ?? session.provider
  const model = turn.model ?? session.model
  const [credential, { history, ...tools }] = await Promise.all([
    deps.credentials
      .resolve(session, provider, start?.credentials)
      .then((credential) => completed(credential, active.stop.signal)),
    start ? fromStart(deps, start) : fromStore(deps, session.id),
  ])
  active.credentialId = credential.facts.id
  const run: Run = {
    deps,
    active,
    writer,
    session,
    provider,
    model,
    credential,
    history,
    edited: applyEdits(
      history.filter((message) => message.seq <= turn.base_seq),
      turn.context,
    ),
    ...tools,
    isCurrent: start !== null,
    heardRevision: 0,
    index: committedSteps(turn),
    invalidCalls: 0,
    amended: [],
    refused: undefined,
    hint: null,
    inFlight: null,
  }
  const target = { provider, model, credential_id: credential.facts.id }
  run.refused = deps.llm.refused.known(session.id, target, contextOf(run))
  return run
}

type Loaded = Pick<Run, 'history' | 'registry' | 'connectors' | 'bound' | 'serverWaitMs'>

/** A turn that begins where it was opened has everything; only its servers may have to be waited for. */
async function fromStart(deps: LoopDeps, start: TurnStart): Promise<Loaded> {
  const { session, history, bindings, bound } = start
  if (start.registry) deps.tools.keep(start.registry)
  const { registry, serverWaitMs } = await upToDate(deps, session.id, bindings)
  // If the registry has moved since the turn was opened, a new binding may be the cause. What is kept here may have moved
  // before the opening's answer came.
  const isSame = registry.revision === session.tools_revision
  const connectors = isSame ? connectorsIn(bindings, registry.revision, bound) : null
  return { history, registry, connectors, bound, serverWaitMs }
}

async function fromStore(deps: LoopDeps, session: string): Promise<Loaded> {
  const [history, tools] = await Promise.all([deps.store.messages.after(session, 0), upToDate(deps, session)])
  return { history, ...tools, connectors: null, bound: null }
}

/** The session's tools with what its servers list now, as far as the turn may wait for that. */
async function upToDate({ tools }: LoopDeps, session: string, bindings?: readonly Binding[]) {
  const waited = await tools.bringUpToDate(session, SERVER_WAIT_MS, bindings)
  return { registry: await tools.current(session), serverWaitMs: SERVER_WAIT_MS - waited }
}

async function steps(run: Run): Promise<void> {
  const { active, deps } = run
  while (!deps.isDraining()) {
    const calls = await modelStep(run)
    if (calls === null) return
    if (calls.length > 0 && !(await runCalls(run, calls))) return
    run.index++
  }
  requestStop(active, DRAINING)
  // A cancel that came while the last step was committed wins: the turn ends here, since nobody would hand it over.
  active.stop.signal.throwIfAborted()
}

/** A turn that was interrupted or waited goes on where its ledger says. */
async function reenter(run: Run, entry: Exclude<Entry, { kind: 'fresh' }>): Promise<void> {
  const { active } = run
  await sayLeft(run, entry.announce)
  if (entry.kind === 'recovered' && active.turn.recoveries > RECOVERY_LIMIT) {
    throw new BatonError('recovery_limit', 'The turn lost its owner more than three times and was given up.')
  }
  const goesOn = await resumeCalls(run, entry.kind)
  if (entry.kind !== 'recovered' || goesOn !== null) return
  // The turn may have lost its owner in a model call, and what that streamed is in nobody's history. An owner that
  // handed the turn over has said so itself. Two kinds of owner have not: one that took the turn from a lost owner and
  // could not read it, and one from which a cancel took it.
  const { recoveries, cancel_requested } = active.turn
  if (!entry.was_handed_over || recoveries > 0 || cancel_requested) await discardLost(run)
}

/** Says what the turn's last owner committed and may not have said. */
async function sayLeft(run: Ending, announce: AnnouncedEvent[]): Promise<void> {
  await sayAll(run, announce).catch((err: unknown) =>
    run.deps.log.warn({ err, turn_id: run.active.turn.id }, 'announcements are left to the next commit'),
  )
}

/** Turns whatever ended the loop into the turn's end. A failed step leaves no message. */
async function fail(run: Ending, thrown: unknown): Promise<void> {
  const { reason } = run.active.stop.signal
  if (reason === OWNER_LOST || reason === DRAINING) return
  if (reason === CANCELLED) return end(run, { state: 'cancelled' })
  const error = asBatonError(thrown)
  if (error.code === 'internal')
    run.deps.log.error({ err: thrown, turn_id: run.active.turn.id }, 'turn failed')
  await end(run, { state: 'failed', error: error.toBody() })
}

type Ending = Committing & Pick<Run, 'inFlight'>

/** Ends the turn with what its last step left: calls that are open, or a step in flight. */
async function end(run: Ending, how: TurnEnd): Promise<void> {
  if (!(await abandonCalls(run, how))) await endInStep(run, how)
}

/** Ends the turn and the step in flight: failed, or cancelled with the text so far. */
async function endInStep(run: Ending, how: TurnEnd): Promise<void> {
  const text = how.state === 'cancelled' ? (run.inFlight?.folding.textSoFar() ?? '') : ''
  const step = run.inFlight ? endedStep(run.inFlight, how.state === 'failed' ? 'error' : null) : undefined
  if (step) run.active.turn.steps.push(step)
  const partial: Change['message'] = { role: 'assistant', parts: [{ type: 'text', text }], incomplete: true }
  await commit(run, { message: isBlank(text) ? undefined : partial, end: how, step })
}
