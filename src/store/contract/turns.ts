/** Turns: opened for a caller, written by their owner alone. */
import type { ContextEdit } from '../../chat/edits.ts'
import type { StepFinish, TurnEvent, TurnFinish } from '../../chat/event.ts'
import type { Message, Part, Usage } from '../../chat/message.ts'
import { BatonError, type ErrorBody, inFull } from '../../errors.ts'
import type { CredentialCandidates } from './access.ts'
import type { Binding, RegistryRow } from './connectors.ts'
import type { NewMessage, Session } from './conversation.ts'
import type { NewExecution, Settlement } from './ledger.ts'
import type { Page, PageRequest, Scope } from './scope.ts'

/** `queued` and `awaiting_input` have no owner; all but the last three keep their session busy. */
type TurnState = 'queued' | 'running' | 'awaiting_input' | 'completed' | 'failed' | 'cancelled'

/** One attempt at a step. A discarded attempt left no message, but its usage counts all the same. */
export interface Step {
  index: number
  attempt: number
  provider: string
  model: string
  tools_revision: number
  tool_count: number
  finish_reason: StepFinish | null
  usage: Usage
  started_at: string
  ended_at: string | null
  discarded?: true
}

export interface NewTurn {
  id: string
  session_id: string
  input: Part[]
  context: ContextEdit[]
  max_steps: number
  /** A turn's own override of the session's provider and model */
  provider: string | null
  model: string | null
  idempotency_key: string | null
  /** Hash of the request body, compared when the key comes again */
  body_hash: string
}
export interface Turn extends Omit<NewTurn, 'body_hash'> {
  owner: string
  state: TurnState
  /** 1 at first; grows with each restart of a step */
  attempt: number
  restarts: number
  /** How often the turn was taken from an owner that fell silent; a hand-over does not count */
  recoveries: number
  steps: Step[]
  usage: Usage
  finish_reason: TurnFinish | null
  error: ErrorBody | null
  /** The highest message seq at acceptance: context edits index the history up to here */
  base_seq: number
  cancel_requested: boolean
  created_at: string
  started_at: string | null
  ended_at: string | null
}

/** How far a turn is, without what it holds, which may be megabytes. `steps`: one for each attempt at a step. */
export type Standing = Pick<Turn, 'id' | 'session_id' | 'state' | 'started_at' | 'ended_at'> & {
  steps: readonly unknown[]
}

/** The right to write for a session: a lease's owner and epoch. A write with a stale one throws StaleOwner. */
export interface Fence {
  session_id: string
  owner: string
  epoch: number
}
/** Thrown by a fenced write whose lease was lost: another replica owns the session now. */
export class StaleOwner extends Error {
  constructor() {
    super('the lease of this session was lost')
    this.name = 'StaleOwner'
  }
}

/**
 * What is stored does not open: its key is not among this process's. The message is the cause's, which names the key: a
 * turn that fails with it shows it to its owner, who can only ask for that key.
 */
export class Unreadable extends BatonError {
  /** The turn that was taken over, and is handed back */
  readonly turn: string | null

  constructor(cause: unknown, turn: string | null = null) {
    super('internal', inFull(cause), { cause })
    this.name = 'Unreadable'
    this.turn = turn
  }
}

/** A session's lease as its owner asks for it. */
export interface Lease {
  owner: string
  seconds: number
}

export interface OpenTurn {
  turn: NewTurn
  /** What the turn's input becomes */
  message: { id: string }
  /** `interrupt`: marks the running turn as to be cancelled and queues this one before those that wait */
  on_busy: 'reject' | 'enqueue' | 'interrupt'
  /** Queued turns allowed in a session; those that interrupt are counted apart */
  queue_limit: number
  lease: Lease
  /** Revision of the session's registry that the caller has: if it is still that, it is not read again */
  known_revision?: number
  /**
   * The caller has the messages up to this seq, as of that many rewrites: without a further one, they are not read
   * again
   */
  known_history?: { rewrites: number; seq: number }
}
/** What a running turn begins with, read by the statement that opened it. */
export interface TurnStart extends TurnGround {
  /** All of the session, the turn's input included, ascending; after `known_history` if that still holds */
  history: Message[]
  /** How often messages of the session were replaced or deleted */
  rewrites: number
  /** Null when the session's registry still has `known_revision` */
  registry: RegistryRow | null
  bindings: Binding[]
  /** These bindings as a text, as StepRead has it */
  bound: string
}
export type Opened =
  /** `start`: null if earlier messages cannot be read */
  | { kind: 'running'; turn: Turn; fence: Fence; start: TurnStart | null }
  /** `interrupted`: the turn that was marked as to be cancelled; its owner must be told */
  | { kind: 'queued'; turn: Turn; interrupted: string | null }
  | { kind: 'busy'; active_turn_id: string }
  | { kind: 'queue_full' }
  /** The same Idempotency-Key and body */
  | { kind: 'replayed'; turn: Turn }
  | { kind: 'mismatch' }

export type TurnEnd =
  | { state: 'completed'; finish_reason: TurnFinish }
  | { state: 'failed'; error: ErrorBody }
  | { state: 'cancelled' }
/**
 * One atomic write of the engine; absent members are not touched. `announce` are the events that follow from the write.
 * They are kept with the turn until they are known to be in the stream (see Turns.forgetAnnouncements).
 */
export interface Commit {
  turn_id: string
  /**
   * Appended to the turn's steps, or put in place of the last one of the same index and attempt. Its usage is added to
   * the turn's and the session's in the same write, also that of a discarded step.
   */
  step?: Step | undefined
  messages?: NewMessage[]
  executions?: NewExecution[]
  settlements?: Settlement[]
  state?: 'awaiting_input'
  attempt?: number
  restarts?: number
  /** Ends the turn and gives the lease back. (So does `awaiting_input`: any replica may resume the turn.) */
  end?: TurnEnd | undefined
  announce?: AnnouncedEvent[]
}
/** `key` is unique in the session: an event announced again under the same key is dropped by the bus. */
export interface AnnouncedEvent {
  key: string
  event: TurnEvent
  /** As in a BusEvent */
  lost?: true
}

/** Announced events of a turn that are not known to be in the stream, after a crash or while the bus was away. */
export interface Unannounced {
  session_id: string
  turn_id: string
  /** As forgetAnnouncements takes it */
  epoch: number | null
  /**
   * Read for each turn by itself: they quote results, and those of many turns may be gigabytes. None if the turn runs by
   * now, or they were said. Throws Unreadable if they cannot be read.
   */
  events(): Promise<AnnouncedEvent[]>
}

/** What a step reads, in one round trip, right before it renders. */
export interface StepRead {
  messages: Message[]
  /** Null when the session's registry still has `knownRevision` */
  registry: RegistryRow | null
  cancel_requested: boolean
  /** The session's connectors and their revisions in one text, to be compared with the text of a step before */
  bound: string
}

/** What must be known before a turn is opened. */
export interface TurnGround {
  session: Session
  credentials: CredentialCandidates
}

/** A turn that goes on under a new owner. `announce`: its events that may not have been said yet. */
export interface Taken {
  turn: Turn
  fence: Fence
  announce: AnnouncedEvent[]
}

interface Committed {
  /** As they are stored, with their seq */
  messages: Message[]
  /** The turn has ended and another one of its session waits */
  has_queued: boolean
  /** With calls: the revision of the session's registry as they begin */
  tools_revision?: number
}

/** Providers whose keys the environment holds, and those whose logins it switches on. */
export interface Environment {
  keys: readonly string[]
  logins: readonly string[]
}

export interface Turns {
  /** Null for an unknown session and another owner's. `provider` null: the session's. */
  ground(scope: Scope, session: string, provider: string | null): Promise<TurnGround | null>
  /**
   * Null as `ground`. `fits` is shown the exact history that the turn is accepted on. If it throws, nothing is opened,
   * and `open` throws the same.
   */
  open(scope: Scope, open: OpenTurn, fits?: (history: Message[]) => void): Promise<Opened | null>
  /**
   * Opens the turn if there is an active credential, in the store or in the environment; else returns `unsure`, and
   * nothing is written.
   */
  openSurely(
    scope: Scope,
    open: OpenTurn,
    environment: Environment,
  ): Promise<Opened | { kind: 'unsure'; ground: TurnGround } | null>
  /** For people, as are `ofKey` and `list`: a text replaces a part that cannot be opened. */
  get(scope: Scope, id: string): Promise<Turn | null>
  standing(scope: Scope, id: string): Promise<Standing | null>
  /** The session's turn of this Idempotency-Key, while the key is kept. */
  ofKey(session: string, key: string): Promise<{ turn: Turn; body_hash: string } | null>
  /** Newest first; null as `ground`. */
  list(scope: Scope, session: string, page: PageRequest): Promise<Page<Turn> | null>
  /**
   * How many turns of the owner run or are queued, counted up to `most`, before one more is opened in a session. 0 if
   * that session has a turn of this key already, since a repeat adds none. With `interrupts` the turn that runs in the
   * session does not count: it makes room.
   */
  countOpen(
    owner: string,
    beside: { session: string; idempotency_key: string | null; interrupts: boolean },
    most: number,
  ): Promise<number>
  /**
   * Marks the turn; its owner acts on that. Returns the epoch of the session's lease; null if the turn has ended, or is
   * not to be seen.
   */
  requestCancel(scope: Scope, id: string): Promise<number | null>
  /** Ends a queued turn that is cancelled; `announce` is kept as in a commit. */
  endQueued(turn: Pick<Turn, 'id' | 'session_id'>, end: TurnEnd, announce: AnnouncedEvent[]): Promise<boolean>

  // The engine's verbs
  /** Throws StaleOwner, Unreadable. */
  readStep(fence: Fence, turn: string, afterSeq: number, knownRevision: number): Promise<StepRead>
  /** Throws StaleOwner. */
  commit(fence: Fence, commit: Commit): Promise<Committed>
  /**
   * Starts the session's next queued turn, the oldest or one that interrupts, under this owner; its input becomes a
   * message. Null: no turn is queued, or another one runs or waits for input. Throws Unreadable.
   */
  startQueued(session: string, message: { id: string }, lease: Lease): Promise<Taken | null>
  /**
   * Takes up a turn that waits for input under this owner; null while an approval is open (unless a cancel was
   * requested) or another owner has it. Throws Unreadable.
   */
  resumeAwaiting(turn: string, lease: Lease): Promise<Taken | null>
  /**
   * Renews the leases; returns the sessions that are still the owner's, each with its running turn if that is to be
   * cancelled.
   */
  heartbeat(
    owner: string,
    sessions: string[],
    seconds: number,
  ): Promise<{ session_id: string; cancelled_turn: string | null }[]>
  /**
   * Takes over a session whose running turn has a lapsed lease, or was handed over, unless the turn is in `except`.
   * Null: there is none. One session at a time, since a turn that cannot be read must not fail others. Throws
   * Unreadable.
   */
  recover(lease: Lease, except?: readonly string[]): Promise<(Taken & { was_handed_over: boolean }) | null>
  /** Sessions with a queued turn and no active one, for a scan. */
  idleQueues(limit: number): Promise<string[]>
  /** Turns in `awaiting_input` with an approval that has expired. */
  expiredApprovals(limit: number): Promise<{ turn_id: string; call_id: string }[]>
  /**
   * Turns in `awaiting_input` that nothing blocks any more (every call is decided, or a cancel was requested): the
   * replica that took the decision may have died before it could resume them.
   */
  resumable(limit: number): Promise<string[]>
  /** Gives the lease back without ending the turn: another replica takes it at once. */
  handOver(fence: Fence): Promise<void>
  /**
   * Takes the lease of a running turn that is to be cancelled from its owner, who may be alive and not act. The turn is
   * then recovered as if it was handed over. False when there is nothing to break, or the lease has another epoch by
   * now.
   */
  breakLease(turn: string, epoch: number): Promise<boolean>
  /**
   * What these turns announced is in the stream. They have ended (`epoch` null), or wait for input since they were
   * owned under this epoch. A turn that has gone on since then has announced more, which is kept.
   */
  forgetAnnouncements(turns: string[], epoch: number | null): Promise<void>
  /** For turns that ended or wait; a running turn's announcements come with `recover`. */
  unannounced(limit: number, except?: readonly string[]): Promise<Unannounced[]>
}
