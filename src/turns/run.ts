/** What a turn's loop carries from step to step, and how steps and tool calls write it down; neither knows the loop. */
import type { Writer } from '../bus/writer.ts'
import { afterEdits } from '../chat/edits.ts'
import type { Fold } from '../chat/fold.ts'
import { newId } from '../chat/ids.ts'
import type { Message, MessageInput } from '../chat/message.ts'
import type { ChosenCredential } from '../credentials/choose.ts'
import type { UpstreamFailure } from '../provider.ts'
import type {
  AnnouncedEvent,
  Binding,
  Commit,
  Connector,
  NewMessage,
  RegistryRow,
  Session,
  Step,
  Turn,
  TurnEnd,
} from '../store/store.ts'
import type { Overlay } from '../tools/overlay.ts'
import type { ActiveTurn } from './active.ts'
import { announcedEnd, announcedMessage, now, sayAll } from './events.ts'
import type { LoopDeps } from './loop-deps.ts'

export interface Run {
  readonly deps: LoopDeps
  readonly active: ActiveTurn
  readonly writer: Writer
  /** As it was when the turn began */
  readonly session: Session
  readonly provider: string
  readonly model: string
  readonly credential: ChosenCredential
  /** Everything stored in the session, ascending; a commit adds its messages */
  readonly history: Message[]
  /** History up to acceptance with the turn's context edits applied */
  edited: readonly MessageInput[]
  registry: RegistryRow
  /**
   * The bound connectors, and the registry's revision and `bound` that they were read under. Both, since the registry may
   * have come from memory and be newer than `bound` (Registries.keep).
   */
  connectors: { revision: number; bound: string | null; byId: ReadonlyMap<string, Connector> } | null
  /** What was bound when the step was read: a text to compare, StepRead.bound. Null: no step was read yet */
  bound: string | null
  /**
   * The newest revision of the tools that was known when the step was read: the step has it, unless the store has lost
   * it
   */
  heardRevision: number
  /** How long the turn may still wait for servers of its session */
  serverWaitMs: number
  /** Nothing can have changed since the run was loaded: the next step need not read again */
  isCurrent: boolean
  /** Index of the step that runs or comes next */
  index: number
  /** Calls of this turn so far that could not be made at all (INVALID_CALL_LIMIT in step.ts) */
  invalidCalls: number
  /** Refusals for which this turn's requests were amended: later requests need not meet them again */
  amended: UpstreamFailure[]
  /**
   * What the model had refused when this turn began: a change amid the turn would unbind its thinking from its prefix
   */
  refused: ReadonlySet<string> | undefined
  /** Told to the model until this step is committed: why its last call was not made, or its answer not taken */
  hint: string | null
  /** The attempt whose request has left and which is neither committed nor discarded */
  inFlight: Attempt | null
}

/** One try at a step: its record, and what its answer comes to. */
export interface Attempt {
  readonly step: Step
  readonly folding: Fold
}

/**
 * Takes over what a server has announced and what callers are changing right now, so that the very next
 * request has it, and changes that come together are one restart.
 */
export async function catchUp(run: Run): Promise<void> {
  const { session_id } = run.active.turn
  if (!run.deps.tools.isBehind(session_id)) return
  run.serverWaitMs -= await run.deps.tools.bringUpToDate(session_id, Math.max(0, run.serverWaitMs))
}

/** The record of a step that is over, with what its model call used so far. */
export const endedStep = ({ step, folding }: Attempt, finish_reason: Step['finish_reason']): Step => ({
  ...step,
  finish_reason,
  usage: folding.usage(),
  ended_at: now(),
})

/** How many of the turn's steps are in its history: the next one's index. */
export const committedSteps = ({ steps }: Pick<Turn, 'steps'>): number =>
  steps.filter(({ ended_at, discarded }) => ended_at !== null && !discarded).length

/** The turn's end where its step is the last that it may take. */
export const endOfSteps = ({ active, index }: Pick<Run, 'active' | 'index'>): TurnEnd | undefined =>
  index + 1 < active.turn.max_steps ? undefined : { state: 'completed', finish_reason: 'max_steps' }

/** The connectors of a session's bindings, as of then. */
export const connectorsIn = (
  bindings: readonly Binding[],
  revision: number,
  bound: string | null,
): NonNullable<Run['connectors']> => ({
  revision,
  bound,
  byId: new Map(bindings.map(({ connector }) => [connector.id, connector])),
})

/** The session's connectors by id, read again only when its registry or one of them has moved since the step before. */
export async function connectorsOf(run: Run): Promise<ReadonlyMap<string, Connector>> {
  const { registry, bound, connectors: known } = run
  const { revision } = registry
  if (known?.revision === revision && known.bound === bound) return known.byId
  const bindings = await run.deps.store.connectors.bindings(run.active.turn.session_id)
  run.connectors = connectorsIn(bindings, revision, bound)
  return run.connectors.byId
}

/** The registry as the run's model sees it. */
export const overlayFor = ({ deps, provider, credential }: Run, registry: RegistryRow): Promise<Overlay> =>
  deps.tools.overlay(registry, deps.servedBy(provider, credential).deployment)

/** What the model is shown: the edited past, then everything since acceptance. */
export function contextOf(run: Run): MessageInput[] {
  const { base_seq, context } = run.active.turn
  const all = run.history.filter((message) => message.seq > base_seq)
  const past = context.length === 0 ? [] : run.history.filter((message) => message.seq <= base_seq)
  const since = afterEdits(past, run.edited, all)
  const hint: MessageInput[] = run.hint ? [{ role: 'user', parts: [{ type: 'text', text: run.hint }] }] : []
  return [...run.edited, ...since, ...hint]
}

/** What it takes to commit, which a turn that could not be loaded has, too */
export type Committing = Pick<Run, 'active' | 'deps' | 'writer' | 'history' | 'index'>

/** What a run commits, with at most one message. `before` and `events` come before and after the message in the stream. */
export interface Change extends Omit<Commit, 'turn_id' | 'messages' | 'announce'> {
  message?: Omit<NewMessage, 'id' | 'turn_id'> | undefined
  before?: AnnouncedEvent[]
  events?: AnnouncedEvent[]
}

/**
 * Commits, then announces what follows from it: nothing is said before it is true. Sets the end of `active.turn`, and
 * `active.hasQueued`. Throws StaleOwner.
 */
export async function commit(run: Committing, change: Change): Promise<void> {
  const { active, deps } = run
  const { message, before = [], events = [], ...rest } = change
  const messages = message ? [{ id: newId('msg'), turn_id: active.turn.id, ...message }] : []
  // What is not in the stream yet would die with the turn's owner.
  if (rest.end) await run.writer.flush()
  const isLossy = boundUnsaid(active) || run.writer.isBroken()
  const announce = [
    ...before,
    ...messages.map((one) => announcedMessage(active.turn, run.index, one)),
    ...events,
    ...(rest.end ? [announcedEnd(active.turn, rest.end)] : []),
  ]
  const {
    messages: stored,
    has_queued,
    tools_revision,
  } = await deps.store.turns.commit(active.fence, {
    turn_id: active.turn.id,
    ...rest,
    messages,
    announce: afterLoss([...active.unsaid, ...announce], isLossy),
  })
  run.history.push(...stored)
  active.hasQueued = has_queued
  // The step's calls go by this revision: another replica's message about a newer registry may have been lost.
  if (tools_revision !== undefined) deps.tools.noteRevision(active.turn.session_id, tools_revision)
  if (rest.end) Object.assign(active.turn, { ...rest.end, ended_at: now() })
  // Once all events are in the stream, that is noted, so that nobody says them again. If the bus is away, the scan
  // says them later.
  void sayAll(run, announce)
    .then(async () => {
      if (rest.end) deps.noteEndAnnounced(active.turn.id)
      else if (rest.state === 'awaiting_input')
        await deps.store.turns.forgetAnnouncements([active.turn.id], active.fence.epoch)
    })
    .catch((err: unknown) =>
      deps.log.warn({ err, turn_id: active.turn.id }, 'announcement is left to the scan'),
    )
}

/**
 * If events of the owner were lost, marks the first announcement: a process that says it in the owner's place then
 * tells readers of the loss.
 */
const afterLoss = ([first, ...others]: AnnouncedEvent[], isLossy: boolean): AnnouncedEvent[] =>
  first ? [isLossy ? { ...first, lost: true } : first, ...others] : []

/**
 * Most characters of events that a commit keeps beside its own. While the bus is away they gather, and the store refuses
 * a statement of some hundreds of millions: then the turn could not even end.
 */
const MOST_UNSAID = 32 << 20

/** Gives up the oldest events that were not said, beyond MOST_UNSAID. Returns whether there were any. */
function boundUnsaid({ unsaid }: ActiveTurn): boolean {
  let size = 0
  const last = unsaid.findLastIndex((one) => {
    size += JSON.stringify(one).length
    return size > MOST_UNSAID
  })
  return unsaid.splice(0, last + 1).length > 0
}
