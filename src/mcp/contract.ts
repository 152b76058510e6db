/**
 * What the rest of Baton knows about MCP: servers to reach, the tools that they list, results of calls and how a call
 * can fail. No type of the SDK appears here; mcp.ts is the one door to it.
 */
import type { ContentPart } from '../chat/message.ts'
import type { JsonSchema } from '../provider.ts'

/** How to talk to a server; `sse` is the HTTP transport of 2024-11-05. */
type McpTransport = 'streamable_http' | 'sse' | 'stdio'

/** How long a call waits for a connection, and how long a first attempt to connect or to list may take. */
export const CONNECT_MS = { http: 5_000, stdio: 15_000 }
/** Longest that a caller waits for a server to be reached and to list. */
export const connectBudgetMs = ({ transport }: { transport: McpTransport }): number =>
  transport === 'stdio' ? CONNECT_MS.stdio : CONNECT_MS.http
/** As long, and a moment more: the caller hears how an attempt ended that took the whole budget. */
export const waitOutMs = (server: { transport: McpTransport }): number => connectBudgetMs(server) + 500
/** Each attempt that takes too long gives the next one twice the time, up to this. */
export const ATTEMPT_MS = 60_000

/** A connector as the door needs it; built by the caller from a stored connector. */
export interface McpServerSpec {
  /**
   * Pool key: the connector's id and config revision. Specs with the same key share a connection, so everything below
   * must be equal, too.
   */
  key: string
  /** The connector's name, for messages only */
  name: string
  transport: McpTransport
  /** streamable_http, sse */
  url?: string
  headers?: Record<string, string>
  /** stdio: started without a shell, in its own process group */
  command?: string
  args?: string[]
  /** stdio: the only variables that the process gets besides HOME, USER, LOGNAME, SHELL, TERM, PATH */
  env?: Record<string, string>
  /** Private addresses that this connector (the operator's or the config's) may reach: all, or these CIDRs and hosts */
  allowPrivate: boolean | readonly string[]
  /** The operator's own server, which all owners use: its process's output is for the log, not for the owners */
  isConfigured?: boolean
  auth?: McpAuth
}

/** Gives a connection its bearer token, and hears of refusals. Verbs may throw McpError. */
export interface McpAuth {
  token(): Promise<string | undefined>
  /** The token that is held now, without a renewal: no error may contain it */
  held?(): string | undefined
  /** A 401 refused this token (undefined: none was sent); once for each request, which is then repeated */
  onUnauthorized?(refused: string | undefined): Promise<void>
  /** Hears what a refused request would have needed, before anything is done about it */
  onChallenge?(challenge: McpChallenge): void
}

/** The server's words, untrusted */
export interface McpChallenge {
  /** Separated by spaces */
  scope?: string
  /** Where the server says whom it trusts (RFC 9728) */
  resource_metadata?: string
}

/** Behaviour hints of the server; believed only if the connector's annotations are trusted. */
export interface McpAnnotations {
  readOnlyHint?: boolean
  destructiveHint?: boolean
  idempotentHint?: boolean
  openWorldHint?: boolean
}

/** A tool as its server defines it, repaired if it was malformed. */
export interface McpTool {
  name: string
  title?: string
  description?: string
  /** In the draft that the server chose; always `type: 'object'` at the root */
  inputSchema: JsonSchema
  annotations?: McpAnnotations
}

/** What the server says about itself, and the revision that was agreed on. */
export interface McpServerInfo {
  name: string
  version: string
  protocol_version: string
}

/** A tool that its server defines and that cannot be offered, and the reason, which registries show. */
export interface ToolProblem {
  tool: string
  problem: string
}

/** All that a server offers at one time. */
export interface ToolList {
  server: McpServerInfo
  /** In the server's order, names unique */
  tools: McpTool[]
  left_out: ToolProblem[]
  /** SHA-256 over the canonical JSON of `tools` and `left_out`, by name: equal lists have equal hashes */
  hash: string
  /** Milliseconds since the epoch */
  fetched_at: number
  /**
   * Until this time of this process's `performance.now()` the list need not be asked for again, as its server says,
   * unless a change is announced before
   */
  fresh_until: number
}

/** A progress notification of a running call; the numbers are the server's own. */
export interface McpProgress {
  progress: number
  total?: number
  message?: string
}

/** A result in canonical parts. `is_error` is the server's own word that the tool failed. */
export interface McpResult {
  content: ContentPart[]
  structured?: unknown
  is_error: boolean
}

export type McpErrorKind =
  /** Not reachable, refused, or in its back-off after repeated failures */
  | 'unavailable'
  | 'timeout'
  | 'cancelled'
  /** The connection or stream broke after the request was sent */
  | 'disconnected'
  /** The server answered with a JSON-RPC error or with what is no valid answer */
  | 'protocol'
  | 'auth_required'
  /** The answer was larger than the cap; if not `sent`, the server found the request too large */
  | 'too_large'

/** What is known of a failure besides its kind and its words. */
interface McpErrorFacts {
  sent: boolean
  retryAfterMs?: number | undefined
  rpcCode?: number | undefined
  lastWords?: string | undefined
  cause?: unknown
}

/** Every failure of this door. */
export class McpError extends Error {
  readonly kind: McpErrorKind
  /** False only if the server certainly did not run the call: it may then be repeated safely. */
  readonly sent: boolean
  /** After how many milliseconds another try makes sense, if known */
  readonly retryAfterMs: number | undefined
  /** The server's JSON-RPC error code, if it sent one */
  readonly rpcCode: number | undefined
  /** What a configured server's process said last: for the operator alone */
  readonly lastWords: string | undefined

  constructor(kind: McpErrorKind, message: string, facts: McpErrorFacts) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause })
    this.name = 'McpError'
    this.kind = kind
    this.sent = facts.sent
    this.retryAfterMs = facts.retryAfterMs
    this.rpcCode = facts.rpcCode
    this.lastWords = facts.lastWords
  }

  /** The same failure with some facts of it changed */
  but(changes: Partial<McpErrorFacts> & { kind?: McpErrorKind; message?: string }): McpError {
    const { sent, retryAfterMs, rpcCode, lastWords, cause } = this
    const { kind = this.kind, message = this.message, ...facts } = changes
    return new McpError(kind, message, { sent, retryAfterMs, rpcCode, lastWords, cause, ...facts })
  }

  /** The message and the last words */
  get forOperator(): string {
    return this.lastWords ? `${this.message} stderr: ${this.lastWords}` : this.message
  }
}

/** The state of a connection; `quarantined`: the server's list changes too often and is held still. */
export type McpState = 'idle' | 'connecting' | 'ready' | 'down' | 'auth_required' | 'quarantined'
/** What is known of a key without asking its server. */
export interface McpStatus {
  state: McpState
  /** The last failure's text, until the next success */
  error?: string
}

/** Answers what a server asks the user for (2025-11-25 "Elicitation"); servers may ask only if a handler is given. */
export type ElicitHandler = (request: { message: string; [field: string]: unknown }) => Promise<{
  action: 'accept' | 'decline' | 'cancel'
  content?: Record<string, string | number | boolean | string[]>
}>

interface ListOptions {
  /** The call settles within this time, whatever the server does. Default: waitOutMs */
  timeoutMs?: number
  /** Ask the server even though a list is cached */
  refresh?: boolean
  /** A person wants the list: the attempt is made even in the server's back-off */
  insists?: boolean
}

interface CallOptions {
  /** Longest silence: each progress notification starts it anew */
  timeoutMs: number
  /** Longest duration in all, connecting included */
  maxTotalMs: number
  signal: AbortSignal
  onProgress?: (progress: McpProgress) => void
}

/** The door to MCP servers: connects when needed, and shares what equal keys may share. */
export interface Mcp {
  /**
   * The server's tools; connects first if needed. One request at a time per key: callers that come
   * meanwhile share it, each with its own deadline. Throws McpError.
   */
  list(spec: McpServerSpec, options?: ListOptions): Promise<ToolList>
  /** The last list of this key, however old. */
  cached(key: string): ToolList | null
  /** The server has announced a change that the cached list does not show; known at once, unlike onListChanged. */
  isOutdated(key: string): boolean
  /** Runs one tool once. `tool` is the server's own name for it. Throws McpError. */
  call(
    spec: McpServerSpec,
    tool: string,
    args: Record<string, unknown>,
    options: CallOptions,
  ): Promise<McpResult>
  status(key: string): McpStatus
  /**
   * Calls `fn` when a server announced a changed tool list, may have done so unheard (before somebody was interested,
   * its channel was cut, its session lost), or was away for a call: at once, then at most every five seconds per key, the
   * last one never lost. List again and compare hashes.
   */
  onListChanged(fn: (key: string) => void): void
  /** Keeps a channel for the server's notifications open for `forMs` from now. */
  interest(spec: McpServerSpec, forMs: number): void
  /** Nobody will ask for this key again: its connection ends with the calls that run on it, whatever interest there was. */
  release(key: string): void
  /** Closes for good: waits for running calls up to ten seconds, then kills process groups. */
  close(): Promise<void>
}
