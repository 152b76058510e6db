/**
 * What the rest of Baton knows of MCP: servers to reach, the tools that they list, results of calls and
 * how a call can fail. No type of the SDK appears here; mcp.ts is the one door to it.
 */
import type { ContentPart } from '../chat/message.ts'
import type { JsonSchema } from '../provider.ts'

/** How a server is spoken to; `sse` is the HTTP transport of 2024-11-05. */
type McpTransport = 'streamable_http' | 'sse' | 'stdio'

/** How long a call waits for a connection, and a first attempt to connect or to list may take. */
export const CONNECT_MS = { http: 5_000, stdio: 15_000 }
/** Longest that a caller waits for a server to be reached and to list. */
export const connectBudgetMs = ({ transport }: { transport: McpTransport }): number =>
  transport === 'stdio' ? CONNECT_MS.stdio : CONNECT_MS.http
/** Each attempt that takes too long gives the next one twice the time, up to this. */
export const ATTEMPT_MS = 60_000

/** A connector as the door needs it; built by the caller from a stored connector. */
export interface McpServerSpec {
  /**
   * Pool key: the connector's id and config revision. Two specs with one key share a connection, so everything below
   * must be equal for equal keys.
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
  /** Private addresses are open for this connector (operator's or config's), all or these CIDRs and hosts */
  allowPrivate: boolean | readonly string[]
  /** The operator's own, which all owners use: what its process says is for the log, not for them */
  isConfigured?: boolean
  auth?: McpAuth
}

/** Where a connection takes its bearer token from, and what it tells of refusals. Verbs may throw McpError. */
export interface McpAuth {
  token(): Promise<string | undefined>
  /** The token that is held now, without a renewal: what must stand in no error */
  held?(): string | undefined
  /** A 401 refused this token (undefined: none was sent); once for each request, which is then repeated */
  onUnauthorized?(refused: string | undefined): Promise<void>
  /** What a refused request would have needed; told before anything is done about it */
  onChallenge?(challenge: McpChallenge): void
}

/** The server's words, untrusted */
export interface McpChallenge {
  /** Separated by blanks */
  scope?: string
  /** Where the server says whom it trusts (RFC 9728) */
  resource_metadata?: string
}

/** Behaviour hints of the server; to be believed only where the connector's annotations are trusted. */
export interface McpAnnotations {
  readOnlyHint?: boolean
  destructiveHint?: boolean
  idempotentHint?: boolean
  openWorldHint?: boolean
}

/** A tool as its server defines it, mended where it was malformed. */
export interface McpTool {
  name: string
  title?: string
  description?: string
  /** Of whatever draft the server wrote; always `type: 'object'` at the root */
  inputSchema: JsonSchema
  annotations?: McpAnnotations
}

/** What the server says of itself, and the revision that was agreed on. */
export interface McpServerInfo {
  name: string
  version: string
  protocol_version: string
}

/** A tool that its server defines and that cannot be offered, and why: the reason that its registry gives. */
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
  /** SHA-256 over the canonical JSON of `tools`, and of what was left out, by name: equal lists have equal hashes */
  hash: string
  /** Milliseconds since the epoch */
  fetched_at: number
  /**
   * Up to this time of `performance.now()` here it need not be asked for again, as its server wishes, unless a change is
   * announced before
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
  /** The answer was larger than the cap; not sent: the server took the request for too large */
  | 'too_large'

/** What is known of a failure beside its kind and its words. */
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
  /** False only where the server certainly did not run the call: it may then be repeated safely. */
  readonly sent: boolean
  /** After how long another try makes sense, where that is known */
  readonly retryAfterMs: number | undefined
  /** The JSON-RPC error code of the server, where it sent one */
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

/** Of the connection; `quarantined`: its list changes too often and is held still. */
export type McpState = 'idle' | 'connecting' | 'ready' | 'down' | 'auth_required' | 'quarantined'
/** What is known of a key without asking its server. */
export interface McpStatus {
  state: McpState
  /** The last failure's text; gone after the next success */
  error?: string
}

/** What a server asks the user for (2025-11-25 "Elicitation"); only asked when a handler is given. */
export type ElicitHandler = (request: { message: string; [field: string]: unknown }) => Promise<{
  action: 'accept' | 'decline' | 'cancel'
  content?: Record<string, string | number | boolean | string[]>
}>

interface ListOptions {
  /** The call settles within this time, whatever the server does. Default: connectBudgetMs */
  timeoutMs?: number
  /** Ask the server even though a list is cached */
  refresh?: boolean
  /** A person wants it: the attempt is made even in its back-off */
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
   * Says that a server announced a changed tool list: at once, then at most every five seconds per key,
   * the last one never lost. Only the announcement: list again and compare hashes.
   */
  onListChanged(fn: (key: string) => void): void
  /** Keeps a channel for the server's notifications open for so long from now. */
  interest(spec: McpServerSpec, forMs: number): void
  /** Nobody asks for this key any more, for good: its connection ends with the calls that run on it, whoever is interested. */
  release(key: string): void
  /** For good: waits for running calls up to ten seconds, then kills process groups. */
  close(): Promise<void>
}
