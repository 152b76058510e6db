/**
 * What the routes call and other parts implement: the engine (src/turns/) and the session's tools
 * (src/tools/). Types only. Every verb throws a BatonError of the catalogue, applies the caller's
 * scope, and answers in the shapes of api.md, so that a route is schema, call and reply.
 */
import type { ToolsDelta } from './chat/event.ts'
import type { JsonSchema } from './provider.ts'
import type { Connector, NewTurn, OpenTurn, Scope, Session, Standing, Turn } from './store/store.ts'
import type { DefinitionChange } from './tools/definition.ts'

/** Who calls: whose rows may be seen, and which key it was (null: auth is off), for the audit trail. */
export interface Caller extends Scope {
  key_id: string | null
}

// ---------------------------------------------------------------- turns

/** A validated request for a turn. Text input has become one text part. */
export interface StartTurn extends Omit<NewTurn, 'id' | 'session_id'> {
  on_busy: OpenTurn['on_busy']
}
export interface StartedTurn {
  turn: Turn
  outcome: 'created' | 'queued' | 'replayed'
}

export interface Decision {
  decision: 'approve' | 'deny'
  /** Replaces the model's arguments of an approved call */
  arguments?: Record<string, unknown>
  reason?: string
}

export type RenderRequest = Pick<StartTurn, 'provider' | 'model' | 'context' | 'input'>
/** Exactly what would be sent now, secrets as `***` (api.md section 4). */
export interface Rendered {
  provider: string
  method: string
  url: string
  headers: Record<string, string>
  body: Record<string, unknown>
  tools_revision: number
  notes: string[]
}

export interface Turns {
  /**
   * Returns once the turn is stored, before any upstream call. Throws session_not_found, turn_in_progress
   * (`details.active_turn_id`), queue_full, idempotency_mismatch, no_credential, credential_needs_reauth, context
   * errors, rate_limited, draining, and unavailable if there is too much to do.
   */
  start(caller: Caller, session: string, request: StartTurn): Promise<StartedTurn>
  /**
   * The turn, by its id or as it was just read, once it has ended or awaits input, or as it is after `seconds` (null:
   * no limit) or the signal. Throws turn_not_found.
   */
  wait(caller: Caller, turn: string | Standing, seconds: number | null, signal: AbortSignal): Promise<Turn>
  /** Idempotent; with a signal it resolves after the end, or when the signal fires. Throws turn_not_found. */
  cancel(caller: Caller, turn: string, waits: AbortSignal | null): Promise<Turn>
  /** Throws turn_not_found, not_restartable, restart_limit. */
  restart(caller: Caller, turn: string): Promise<Turn>
  /** Throws turn_not_found, tool_call_not_found, not_awaiting, invalid_request. */
  decide(caller: Caller, turn: string, call: string, decision: Decision): Promise<Turn>
  /** No tool asks a person yet. Throws turn_not_found, tool_call_not_found, not_awaiting. */
  answer(caller: Caller, turn: string, call: string): Promise<Turn>
  /** Nothing is sent. Throws session_not_found, no_credential and the like, context errors. */
  render(caller: Caller, session: string, request: RenderRequest): Promise<Rendered>
}

// ---------------------------------------------------------------- a session's tools

export type Apply = 'next' | 'now'

/** When a change of a session's tools takes effect, and what it restarts. */
export interface ToolsEffect {
  effective: { turn_id: string | null; from: 'next_step' | 'next_turn' | 'restart' }
  restarted_turn_id: string | null
}

/** What each change of a session's tools returns (api.md "Session tools"). */
export interface ToolsChange extends ToolsDelta, ToolsEffect {
  prompt_cache: 'kept' | 'invalidated'
}

/** What the turn under way has to know of a change of tools. */
export interface ToolsMove {
  tools_revision: number
  /** Calls of these tools are stopped if the change takes effect now */
  removed: string[]
  /** False if nothing changed */
  isMoved: boolean
}

export interface SessionTool {
  canonical_name: string
  /** By provider id */
  provider_exposed_name: Record<string, string>
  connector_id: string | null
  mcp_tool_name: string | null
  server: string | null
  description: string
  parameters: JsonSchema
  enabled: boolean
  source: 'mcp' | 'builtin'
  last_seen_at: string | null
  status: 'available' | 'unavailable' | 'changed' | 'undeclarable'
  reason?: string
  /** Of a changed definition: what differs from the accepted one */
  diff?: DefinitionChange[]
  /** Of a changed definition: what `accept` takes it by */
  hash?: string
}
export interface SessionToolList {
  revision: number
  updated_at: string
  tools: SessionTool[]
  /** In the provider's own shape; only if a provider was asked for */
  declarations?: unknown[]
}

/**
 * The route has read the session in the caller's scope. Connectors are looked up in the scope of the
 * session's owner, so that an admin never mixes two owners' things.
 */
export interface SessionTools {
  /**
   * Binds a new session's built-ins and these connectors, no two of which have one name, and waits for their tools up
   * to the connect budget. Never fails for a server that is not ready.
   */
  open(session: Session, connectors: Connector[]): Promise<void>
  list(session: Session, provider: string | null): Promise<SessionToolList>
  /** Throws connector_not_found, name_taken (another server of the session has the name). */
  bind(session: Session, idOrName: string, apply: Apply, alias: string | null): Promise<ToolsChange>
  /** Throws connector_not_found, also if it is not bound. */
  unbind(session: Session, idOrName: string, apply: Apply): Promise<ToolsChange>
  /** Throws tool_not_found. */
  setEnabled(session: Session, tool: string, enabled: boolean, apply: Apply): Promise<ToolsChange>
  refresh(session: Session, apply: Apply): Promise<ToolsChange>
  /**
   * Accepts a tool's changed definition; with a hash, only the definition of that hash. Throws tool_not_found,
   * invalid_request for another hash, unavailable if none of its lists is known.
   */
  accept(
    caller: Caller,
    connector: Connector,
    tool: string,
    hash?: string,
  ): Promise<{ tool: string; hash: string }>
  /**
   * Resolves once the change is noted; the sessions that bind the connector follow soon. `sessions`: those that bound
   * it, if it was deleted.
   */
  connectorChanged(connector: Connector, sessions?: string[]): Promise<void>
  /** The connector of this key (connectorKey) was changed or deleted: its server is neither connected nor asked any more. */
  letGo(key: string): void
}
