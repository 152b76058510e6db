/**
 * The store's contract: verbs of the domain, no SQL, no connection. One implementation serves the embedded
 * PostgreSQL and a server alike. Every verb that a caller's id can steer takes a Scope and applies it in
 * its own query, so that no route can forget it; the engine's verbs take a Fence instead, and a stale
 * owner's write fails. Times are RFC 3339 strings.
 */
import type { ContextEdit } from '../chat/edits.ts'
import type { StepFinish, ToolsDelta, TurnEvent, TurnFinish } from '../chat/event.ts'
import type { Message, MessageInput, Outcome, Part, ToolResultPart, Usage } from '../chat/message.ts'
import type { ErrorBody } from '../errors.ts'
import type { JsonSchema, ModelSettings } from '../provider.ts'

/** Whose rows a verb may see: an owner's own, or everything for an admin. */
export interface Scope {
  owner: string
  admin: boolean
}

export interface PageRequest {
  limit: number
  /** Opaque, from the page before */
  cursor?: string
}
export interface Page<T> {
  data: T[]
  next_cursor: string | null
}

// ---------------------------------------------------------------- sessions and messages

export interface NewSession {
  id: string
  owner: string
  provider: string
  model: string
  credential_id: string | null
  instructions: string
  settings: ModelSettings
  title: string | null
  metadata: Record<string, unknown>
}
export interface Session extends NewSession {
  tools_revision: number
  active_turn_id: string | null
  usage: Usage
  created_at: string
  updated_at: string
}
export type SessionPatch = Partial<
  Pick<Session, 'provider' | 'model' | 'credential_id' | 'instructions' | 'settings' | 'title' | 'metadata'>
>

export interface Sessions {
  create(session: NewSession): Promise<Session>
  get(scope: Scope, id: string): Promise<Session | null>
  list(scope: Scope, page: PageRequest): Promise<Page<Session>>
  update(scope: Scope, id: string, patch: SessionPatch): Promise<Session | null>
  /** Its messages, turns, bindings and executions go with it. `busy` while a turn is not ended. */
  delete(scope: Scope, id: string): Promise<'deleted' | 'busy' | null>
}

export interface NewMessage extends MessageInput {
  id: string
  turn_id: string | null
  incomplete?: true
}
export interface Messages {
  /** Ascending by seq. */
  list(scope: Scope, session: string, page: PageRequest): Promise<Page<Message> | null>
  /** The engine's read: everything after `seq` (0: all), ascending. */
  after(session: string, seq: number): Promise<Message[]>
  ofTurn(turn: string): Promise<Message[]>
  append(scope: Scope, session: string, messages: NewMessage[]): Promise<Message[] | 'busy' | null>
  replace(scope: Scope, session: string, id: string, message: MessageInput): Promise<Message | 'busy' | null>
  /** Deleting a message that holds tool calls deletes their results with it: the ids of all that went. */
  delete(scope: Scope, session: string, id: string): Promise<string[] | 'busy' | null>
}

// ---------------------------------------------------------------- turns

export type TurnState = 'queued' | 'running' | 'awaiting_input' | 'completed' | 'failed' | 'cancelled'

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
  /** How often it was taken from an owner that fell silent; a hand-over does not count */
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

/** The right to write for a session: a lease's owner and epoch. A stale one makes a write throw StaleOwner. */
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

export interface OpenTurn {
  turn: NewTurn
  message: NewMessage
  /** `interrupt`: marks the running turn as to be cancelled and queues this one before those that wait */
  on_busy: 'reject' | 'enqueue' | 'interrupt'
  /** Queued turns allowed in a session; those that interrupt are counted apart */
  queue_limit: number
  lease: { owner: string; seconds: number }
  /** Of the session's registry: then it is not read again */
  known_revision?: number
  /** The messages up to this seq are known as they were with that many rewrites: they are not read again */
  known_history?: { rewrites: number; seq: number }
}
/** What a running turn begins with, read by the statement that opened it. */
export interface TurnStart extends TurnGround {
  /** All of the session, the turn's input included, ascending; after `known_history` where that still holds */
  history: Message[]
  /** How often messages of the session were replaced or deleted */
  rewrites: number
  /** Null when the session's registry still has `known_revision` */
  registry: RegistryRow | null
  bindings: Binding[]
}
export type Opened =
  | { kind: 'running'; turn: Turn; fence: Fence; message: Message; start: TurnStart }
  /** `interrupted`: the turn that was marked, which its owner must be told */
  | { kind: 'queued'; turn: Turn; interrupted: string | null }
  | { kind: 'busy'; active_turn_id: string }
  | { kind: 'queue_full' }
  /** The same Idempotency-Key and body */
  | { kind: 'replayed'; turn: Turn }
  | { kind: 'mismatch' }

export type ExecutionState = 'awaiting_approval' | 'started' | 'settled'
/** A ledger row. Arguments, error and output are redacted before they get here. */
export interface NewExecution {
  id: string
  turn_id: string
  step: number
  call_id: string
  tool: string
  connector: string | null
  tools_revision: number
  arguments: Record<string, unknown>
  state: ExecutionState
  /** May run again after a crash (trusted readOnlyHint or idempotentHint) */
  repeatable: boolean
  /** When an approval lapses */
  expires_at?: string
}
export interface Settlement {
  id: string
  outcome: Outcome
  is_error: boolean
  error: string | null
  duration_ms: number
  bytes: number
  /** The full output, redacted: text, or JSON text with `structured` true */
  output: string
  structured: boolean
  /** The result as the conversation will hold it, kept until its message is committed: a crash loses none */
  result: ToolResultPart
}
export interface TurnEnd {
  state: 'completed' | 'failed' | 'cancelled'
  finish_reason: TurnFinish | null
  error: ErrorBody | null
}
/**
 * One atomic write of the engine; absent members are not touched. `announce` are the events that follow
 * from it: kept with the turn until they are known to be in the stream (see Turns.announced).
 */
export interface Commit {
  turn_id: string
  /**
   * Appended to the turn's steps, or replacing the last one of the same index and attempt. What it adds to
   * the turn's usage and to the session's is added in the same write, discarded steps included.
   */
  step?: Step
  messages?: NewMessage[]
  executions?: NewExecution[]
  settlements?: Settlement[]
  state?: 'running' | 'awaiting_input'
  attempt?: number
  restarts?: number
  /** Ends the turn and gives the lease back, as `awaiting_input` does: whoever is asked may resume it */
  end?: TurnEnd
  announce?: AnnouncedEvent[]
}
/** `key` is unique in the session: an event announced again under the same key is dropped by the bus. */
export interface AnnouncedEvent {
  key: string
  event: TurnEvent
}

/** What a step reads, in one round trip, right before it renders. */
export interface StepRead {
  messages: Message[]
  /** Null when the session's registry still has `knownRevision` */
  registry: RegistryRow | null
  cancel_requested: boolean
}

/** What must be known before a turn is opened. */
export interface TurnGround {
  session: Session
  credentials: CredentialCandidates
}

export interface Committed {
  /** As they are stored, with their seq */
  messages: Message[]
  /** The turn has ended and another one of its session waits */
  has_queued: boolean
}

export interface Turns {
  /** Null for an unknown session and another owner's. `provider` null: the session's. */
  ground(scope: Scope, session: string, provider: string | null): Promise<TurnGround | null>
  open(scope: Scope, open: OpenTurn): Promise<Opened | null>
  /**
   * Opens it where an active credential is there, in the store or for one of the environment's providers;
   * else answers `unsure`, and nothing is written.
   */
  openSurely(
    scope: Scope,
    open: OpenTurn,
    environment: readonly string[],
  ): Promise<Opened | { kind: 'unsure'; ground: TurnGround } | null>
  get(scope: Scope, id: string): Promise<Turn | null>
  /** The session's turn of this Idempotency-Key, while the key is kept. */
  ofKey(session: string, key: string): Promise<{ turn: Turn; body_hash: string } | null>
  list(scope: Scope, session: string, page: PageRequest): Promise<Page<Turn> | null>
  /**
   * The owner's turns that run or wait, up to `most`; 0 where the session has a turn of this key already: a
   * repeat adds none.
   */
  load(
    owner: string,
    repeat: { session: string; idempotency_key: string | null },
    most: number,
  ): Promise<number>
  /** Marks it; the owner acts on it. False when the turn had already ended. */
  requestCancel(scope: Scope, id: string): Promise<boolean | null>
  /** A queued turn that is cancelled ends here. */
  endQueued(id: string, end: TurnEnd): Promise<boolean>

  // The engine's verbs
  readStep(fence: Fence, turn: string, afterSeq: number, knownRevision: number): Promise<StepRead>
  /** Throws StaleOwner. */
  commit(fence: Fence, commit: Commit): Promise<Committed>
  /** The session's oldest queued turn becomes running under this owner; its input becomes a message. */
  startQueued(
    session: string,
    message: { id: string },
    lease: OpenTurn['lease'],
  ): Promise<{ turn: Turn; fence: Fence; message: Message } | null>
  /**
   * A turn that waits for input goes on under this owner; null while an approval is open (unless a cancel
   * was requested) or another owner has it.
   */
  resumeAwaiting(turn: string, lease: OpenTurn['lease']): Promise<{ turn: Turn; fence: Fence } | null>
  /** Prolongs the leases; returns the sessions that are still ours, and whose running turn is to be cancelled. */
  heartbeat(
    owner: string,
    sessions: string[],
    seconds: number,
  ): Promise<{ session_id: string; cancelled_turn: string | null }[]>
  /**
   * Takes over up to `limit` sessions whose running turn has a lapsed lease, or was handed over. `announce`
   * are the events of its last commit, which may or may not be in the stream already.
   */
  recover(
    lease: OpenTurn['lease'],
    limit: number,
  ): Promise<{ turn: Turn; fence: Fence; announce: AnnouncedEvent[] }[]>
  /** Sessions with a queued turn and no active one, for a scan. */
  idleQueues(limit: number): Promise<string[]>
  /** Turns in `awaiting_input` with an approval that has lapsed. */
  lapsedApprovals(limit: number): Promise<{ turn_id: string; call_id: string }[]>
  /**
   * Turns in `awaiting_input` that nothing holds up any more (every call is decided, or a cancel was
   * requested): whoever decided may have died before it could resume them.
   */
  resumable(limit: number): Promise<string[]>
  /** Gives the lease back without ending the turn: another replica takes it at once. */
  handOver(fence: Fence): Promise<void>
  /**
   * Takes the lease of a running turn that was to be cancelled from its owner, who may live and not act;
   * it is recovered as one that was handed over. False when there is nothing to break.
   */
  breakLease(turn: string): Promise<boolean>
  /** Events of this turn are in the stream: forget them. */
  announced(turns: string[]): Promise<void>
  /** Events that a crash left unannounced, of turns that ended or wait (those of a running one come with `recover`). */
  unannounced(limit: number): Promise<{ session_id: string; turn_id: string; events: AnnouncedEvent[] }[]>
}

// ---------------------------------------------------------------- connectors and the tool registry

export interface Connector {
  id: string
  owner: string
  name: string
  origin: 'api' | 'config'
  transport: 'streamable_http' | 'sse' | 'stdio'
  url: string | null
  /** Names only are shown; the values are sealed with the secret */
  command: string | null
  args: string[]
  auth: { type: 'none' | 'bearer' | 'oauth' }
  mode: 'strict' | 'dynamic'
  default_tool_config: { max_instances: number; timeout: string } | null
  allow_tools: string[]
  deny_tools: string[]
  require_approval: 'never' | 'always' | 'destructive'
  trust_annotations: boolean
  pin: 'warn' | 'block'
  /** headers, env, bearer and OAuth tokens, sealed by the vault; null when there are none */
  secret: Uint8Array | null
  /** Grows with each change: part of the connection pool's key */
  config_revision: number
  created_at: string
  updated_at: string
}
export type NewConnector = Omit<Connector, 'config_revision' | 'created_at' | 'updated_at'>
export interface Binding {
  connector: Connector
  alias: string | null
}

/** One tool of a session, as its registry row keeps it. */
export interface RegistryTool {
  canonical_name: string
  exposed_name: string
  source: 'mcp' | 'builtin'
  connector_id: string | null
  /** The name that canonical names start with: the alias, else the connector's name */
  server: string | null
  mcp_tool_name: string | null
  description: string
  /** Clean canonical schema, before any provider's profile */
  parameters: JsonSchema
  /** The server's own schema, for validation of arguments */
  input_schema: unknown
  annotations: {
    readOnlyHint?: boolean
    destructiveHint?: boolean
    idempotentHint?: boolean
    openWorldHint?: boolean
  }
  enabled: boolean
  status: 'available' | 'unavailable' | 'changed' | 'undeclarable'
  reason: string | null
  /** Its definition changed, and the connector's policy blocks it until it is accepted */
  is_blocked: boolean
  last_seen_at: string | null
  /** Hash of name, description, schema, annotations */
  hash: string
  /** Place in the declarations; grows only */
  order: number
}
export interface RegistryRow {
  session_id: string
  revision: number
  updated_at: string
  tools: RegistryTool[]
}
/** What sessions' registries are made of, of one moment. */
export interface RegistryGrounds {
  /** Those of the sessions that exist; `registry` is null where the caller has it */
  sessions: { session_id: string; registry: RegistryRow | null; bindings: Binding[] }[]
  /** Accepted definitions of the connectors that they bind */
  pins: { connector_id: string; tool: string; hash: string }[]
}
export interface RegistryChange {
  session_id: string
  /** The revision that it follows */
  expected: number
  tools: RegistryTool[]
  delta: ToolsDelta
}
export interface Registry {
  get(session: string): Promise<RegistryRow>
  /** `revision`: the one that the caller has; -1: none. */
  grounds(known: readonly { session_id: string; revision: number }[]): Promise<RegistryGrounds>
  /**
   * Compare and swap on each revision, for sessions of which none is named twice. Answers with those that
   * were written and the turn that runs or waits in them; where another change came first, a session is missing.
   */
  put(changes: readonly RegistryChange[]): Promise<{ session_id: string; turn_id: string | null }[]>
}
/** The definition of a tool that is accepted, and its hash. */
export interface Pin {
  tool: string
  hash: string
  definition: unknown
}
export interface Connectors {
  create(connector: NewConnector): Promise<Connector | 'name_taken'>
  get(scope: Scope, id: string): Promise<Connector | null>
  /** By id or name, the owner's own before the configuration's. */
  find(scope: Scope, idOrName: string): Promise<Connector | null>
  list(scope: Scope, page: PageRequest): Promise<Page<Connector>>
  /** Never one of the configuration's: those change with syncConfig alone. So for delete. */
  update(scope: Scope, id: string, patch: Partial<NewConnector>): Promise<Connector | null | 'name_taken'>
  delete(scope: Scope, id: string): Promise<boolean>
  /** Claims the refresh of its login until a time; null when anybody holds it, or the connector is gone. */
  claim(id: string, by: string, seconds: number): Promise<Connector | null>
  /** Stores a refreshed login, which is no change of the connector; false when the claim or the revision is another. */
  keep(id: string, revision: number, by: string, secret: Uint8Array): Promise<boolean>
  release(id: string, by: string): Promise<void>
  /**
   * Makes the configuration's connectors equal to this list, by name; returns them with their ids. A name
   * that is known keeps its row's id, whatever id comes with it: derive the id from the name, since a
   * secret is sealed under it. A secret alone, being sealed anew each time, does not move the revision.
   */
  syncConfig(connectors: NewConnector[]): Promise<Connector[]>
  bindings(session: string): Promise<Binding[]>
  bind(session: string, connector: string, alias: string | null): Promise<void>
  unbind(session: string, connector: string): Promise<boolean>
  /** Sessions that bind a connector, newest use first. */
  sessionsOf(connector: string, limit: number): Promise<string[]>
  /** Last known tool list of a connection key, so that a cold start has one. */
  saveList(key: string, connector: string, list: unknown): Promise<void>
  loadList(key: string): Promise<unknown>
  /** Keeps definitions that are met for the first time; an accepted one stays. */
  pinFirst(connector: string, tools: readonly Pin[]): Promise<void>
  pins(connector: string): Promise<Pin[]>
  pin(connector: string, tool: string, hash: string, definition: unknown, by: string): Promise<void>
}

// ---------------------------------------------------------------- the ledger

export interface Execution extends Omit<NewExecution, 'state' | 'repeatable' | 'expires_at'> {
  session_id: string
  state: ExecutionState
  repeatable: boolean
  outcome: Outcome | null
  is_error: boolean | null
  error: string | null
  started_at: string | null
  ended_at: string | null
  duration_ms: number | null
  bytes: number | null
  approved_by: string | null
  /** Settled, but its message is not committed yet */
  result: ToolResultPart | null
  expires_at: string | null
  approval: {
    decision: 'approve' | 'deny' | 'expired'
    reason: string | null
    sealed_arguments: Uint8Array | null
  } | null
}
export interface ExecutionFilter {
  session_id?: string
  turn_id?: string
  tool?: string
  outcome?: Outcome
  since?: string
  until?: string
}
export interface Executions {
  get(scope: Scope, id: string): Promise<Execution | null>
  list(scope: Scope, filter: ExecutionFilter, page: PageRequest): Promise<Page<Execution>>
  stats(
    scope: Scope,
    groupBy: 'tool' | 'connector' | 'session',
    filter: ExecutionFilter,
  ): Promise<
    { key: string; count: number; failures: number; p50_ms: number; p95_ms: number; max_ms: number }[]
  >
  output(scope: Scope, id: string): Promise<{ output: string; structured: boolean } | null>
  ofTurn(turn: string): Promise<Execution[]>
  /** Marks a started execution as begun anew (recovery) or moves an approved one to started. */
  begin(fence: Fence, id: string): Promise<void>
  settle(fence: Fence, settlement: Settlement): Promise<void>
  decide(
    scope: Scope,
    turn: string,
    call: string,
    decision: {
      decision: 'approve' | 'deny' | 'expired'
      reason: string | null
      /** A person's edit: what runs, sealed, and what the ledger shows of it */
      sealed_arguments: Uint8Array | null
      arguments?: Record<string, unknown>
      by: string
    },
  ): Promise<'decided' | 'not_awaiting' | null>
  /** Deletes settled rows that ended before this time; how many. */
  prune(before: string): Promise<number>
}

// ---------------------------------------------------------------- credentials and keys

export interface Credential {
  id: string
  owner: string
  provider: string
  kind: 'api_key' | 'oauth'
  name: string | null
  state: 'active' | 'needs_reauth' | 'disabled'
  reason: string | null
  is_default: boolean
  /** Last four characters of the key or access token */
  hint: string
  /** account_id, project_id, quota_project, workspace_id, path, … never a secret */
  facts: Record<string, string>
  expires_at: string | null
  secret: Uint8Array
  /** Grows with each write of the secret: a refresh compares before it swaps */
  version: number
  created_at: string
  updated_at: string
}
export type NewCredential = Omit<Credential, 'version' | 'created_at' | 'updated_at'>
/** The credentials that may serve a session's turn. */
export interface CredentialCandidates {
  /** The session's own, of its owner */
  named: Credential | null
  /** What `Credentials.preferred` finds */
  preferred: Credential | null
}

export interface Credentials {
  create(credential: NewCredential): Promise<Credential>
  get(scope: Scope, id: string): Promise<Credential | null>
  list(scope: Scope, page: PageRequest): Promise<Page<Credential>>
  /** Setting is_default clears it on the owner's others of the provider. */
  update(
    scope: Scope,
    id: string,
    patch: { name?: string; state?: 'active' | 'disabled'; is_default?: boolean },
  ): Promise<Credential | null>
  delete(scope: Scope, id: string): Promise<boolean>
  /**
   * The owner's default for the provider, in any state; else its only active one; else, where none is
   * active, the newest that needs its login anew; else null.
   */
  preferred(owner: string, provider: string): Promise<Credential | null>
  /** Claims the refresh until a time; null when anybody holds it, the same owner included. */
  claim(id: string, owner: string, seconds: number): Promise<Credential | null>
  /** Stores a rotated secret; false when the version moved. */
  rotate(
    id: string,
    version: number,
    next: { secret: Uint8Array; hint: string; expires_at: string | null; facts: Record<string, string> },
  ): Promise<boolean>
  release(id: string, owner: string): Promise<void>
  fail(id: string, version: number, reason: string): Promise<void>
  /** For re-encryption: every row's secret in pages by id (`''`: the first), written back by version. */
  sealed(
    after: string,
    limit: number,
  ): Promise<
    { table: 'credential' | 'connector'; id: string; owner: string; secret: Uint8Array; version: number }[]
  >
  reseal(table: 'credential' | 'connector', id: string, version: number, secret: Uint8Array): Promise<boolean>
}

// ---------------------------------------------------------------- logins on their way

export interface NewOAuthLogin {
  /** SHA-256 of the state, in hex: the state itself is nowhere stored */
  state_hash: string
  owner: string
  provider: string
  mode: 'loopback' | 'paste' | 'device'
  redirect_uri: string
  /** The PKCE verifier and what else only the login's end needs */
  sealed: Uint8Array
  /** How long it may take */
  seconds: number
}
export interface OAuthLogin extends Omit<NewOAuthLogin, 'seconds'> {
  /** `taken`: its one answer has come and is being redeemed */
  state: 'pending' | 'taken' | 'done' | 'failed'
  credential_id: string | null
  /** In words; never a secret */
  error: string | null
  expires_at: string
  is_expired: boolean
}
export interface OAuthLogins {
  /** Null where the owner has `most` pending ones already. */
  create(login: NewOAuthLogin, most: number): Promise<OAuthLogin | null>
  get(stateHash: string): Promise<OAuthLogin | null>
  /** Single use: the first caller gets it; null for everybody else, another provider, or after its time. */
  take(stateHash: string, provider: string): Promise<OAuthLogin | null>
  finish(stateHash: string, result: { credential_id: string } | { error: string }): Promise<void>
  /** The place to ask the vendor whether a device login was granted, for some seconds; null while taken. */
  poll(stateHash: string, seconds: number): Promise<OAuthLogin | null>
  /** Forgets those that ended this long ago. */
  prune(seconds: number): Promise<void>
  /** Active logins whose access token ends within that time and that nobody renews now; the first to end first. */
  due(providers: readonly string[], seconds: number, limit: number): Promise<{ id: string; owner: string }[]>
}

export interface ApiKey {
  id: string
  owner: string
  name: string | null
  scopes: ('chat' | 'admin')[]
  hint: string
  expires_at: string | null
  last_used_at: string | null
  revoked_at: string | null
  created_at: string
}
export interface Keys {
  create(key: Omit<ApiKey, 'last_used_at' | 'revoked_at' | 'created_at'> & { hash: string }): Promise<ApiKey>
  /** By SHA-256 of the key, whatever its state. */
  byHash(hash: string): Promise<ApiKey | null>
  list(scope: Scope, page: PageRequest): Promise<Page<ApiKey>>
  revoke(scope: Scope, id: string): Promise<boolean>
  used(ids: string[]): Promise<void>
}

export interface Audit {
  write(entry: {
    owner: string
    act: string
    subject: string
    details: Record<string, unknown>
  }): Promise<void>
}

/** Where conversations hold sealed parts. */
export type SealedPlace =
  | 'message.body'
  | 'turn.input'
  | 'turn.context'
  | 'turn.announce'
  | 'execution.result'
/**
 * For re-encryption, with Credentials.sealed: what conversations hold sealed, in pages by id (`''`: the
 * first), written back only over what was read.
 */
export interface Sealed {
  /** Documents with sealed parts (src/credentials/sealed-parts.ts) in them, as JSON text. */
  documents(
    place: SealedPlace,
    after: string,
    limit: number,
  ): Promise<{ id: string; session_id: string; text: string }[]>
  putDocument(place: SealedPlace, id: string, before: string, after: string): Promise<boolean>
  /** Arguments that a person gave an approved call. */
  arguments(after: string, limit: number): Promise<{ id: string; sealed: Uint8Array }[]>
  putArguments(id: string, before: Uint8Array, after: Uint8Array): Promise<boolean>
}

/** Single values of the whole installation. */
export interface Settings {
  get(name: string): Promise<string | null>
  set(name: string, value: string): Promise<void>
  /** Sets it unless it is there; what it is now. */
  init(name: string, value: string): Promise<string>
}

export interface Store {
  readonly kind: 'postgres' | 'embedded'
  sessions: Sessions
  messages: Messages
  turns: Turns
  connectors: Connectors
  registry: Registry
  executions: Executions
  credentials: Credentials
  logins: OAuthLogins
  keys: Keys
  sealed: Sealed
  audit: Audit
  settings: Settings
  /** Cheap: the store answers and its schema is the code's. */
  ready(): Promise<void>
  close(): Promise<void>
}
