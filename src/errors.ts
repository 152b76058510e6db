/**
 * Every error that leaves Baton, in one catalogue: its HTTP status, what it means, and whether the same request may
 * succeed later. Nothing here knows HTTP frameworks or vendors; adapters map vendor failures to a code.
 */

interface Entry {
  status: number
  /** For callers; if it helps, what to do. Shown in the OpenAPI document. */
  meaning: string
  /** The same request may succeed later without a change by the caller. */
  retryable: boolean
}
const lasting = (status: number, meaning: string): Entry => ({ status, meaning, retryable: false })
const passing = (status: number, meaning: string): Entry => ({ status, meaning, retryable: true })

const CATALOGUE = {
  // The caller's request
  invalid_request: lasting(
    400,
    'The request does not fit its schema, or a field in it is wrong: `param` names it.',
  ),
  address_not_allowed: lasting(400, 'The URL leads to an address that callers may not use.'),
  context_splits_tool_exchange: lasting(400, 'The context edits would separate a tool call from its result.'),
  invalid_cursor: lasting(400, 'The cursor is malformed, or is that of another session.'),
  not_available: lasting(400, 'What is asked for does not exist here yet, or cannot be had in this case.'),
  unauthenticated: lasting(401, 'No key, or one that is unknown, revoked or expired.'),
  forbidden: lasting(403, 'The key may not do this, or the request comes from a page that may not call.'),
  oauth_not_enabled: lasting(403, "The provider's logins are not named in BATON_ENABLE_OAUTH."),
  not_found: lasting(404, 'There is nothing at this path.'),
  session_not_found: lasting(404, 'No such session, or it is not yours.'),
  turn_not_found: lasting(404, 'No such turn, or it is not yours.'),
  message_not_found: lasting(404, 'The session has no such message.'),
  connector_not_found: lasting(404, 'No such connector, or it is not yours; or the session does not use it.'),
  credential_not_found: lasting(404, 'No such credential, or it is not yours.'),
  tool_not_found: lasting(404, 'The session, or the connector, has no such tool.'),
  tool_call_not_found: lasting(404, 'The turn has no such tool call.'),
  tool_execution_not_found: lasting(404, 'No such tool execution, or it is not yours.'),
  key_not_found: lasting(404, 'No such key.'),
  method_not_allowed: lasting(405, 'The path exists, for other methods: the header Allow names them.'),
  turn_in_progress: lasting(409, 'The session is busy: `details.active_turn_id`. Wait, or use `on_busy`.'),
  not_restartable: lasting(409, 'No model call of the turn is in flight.'),
  restart_limit: lasting(409, 'The turn was restarted as often as it may be.'),
  not_awaiting: lasting(409, 'The tool call does not wait for an answer, or was decided already.'),
  name_taken: lasting(409, 'Another connector has this name.'),
  no_credential: lasting(409, 'No credential fits the provider: store one, or name one.'),
  credential_needs_reauth: lasting(409, 'The login has ended: log in again.'),
  read_only: lasting(409, 'It comes from the configuration or the environment: change it there.'),
  body_too_large: lasting(413, 'The body is larger than BATON_BODY_LIMIT.'),
  unsupported_media_type: lasting(415, 'Bodies are JSON: `content-type: application/json`.'),
  idempotency_mismatch: lasting(422, 'The Idempotency-Key was used with another body.'),
  context_too_long: lasting(
    422,
    'The conversation is longer than the model takes, or its messages are more than 128 MiB.',
  ),
  queue_full: passing(429, 'Too many turns wait in this session.'),
  rate_limited: passing(
    429,
    'Too many calls with this key, turns or logins of this owner, or requests sent ahead of their answers.',
  ),
  // A provider's failure
  upstream_auth: lasting(502, 'The provider refused the credential.'),
  upstream_rate_limited: passing(429, 'The provider limits the rate, or the plan is used up.'),
  upstream_overloaded: passing(503, 'The provider is overloaded, or failed.'),
  upstream_rejected: lasting(
    502,
    'The provider refused the request; `details.upstream` has its words, where there were any.',
  ),
  upstream_timeout: passing(504, 'The provider did not answer in time.'),
  upstream_disconnected: passing(
    502,
    'The connection to the provider could not be made, or broke before the end of the answer.',
  ),
  // A turn that Baton itself had to give up
  recovery_limit: lasting(500, 'The turn lost its replica too often.'),
  // Baton's own state
  internal: lasting(500, 'A defect of Baton. Its log has the reason, under `request_id` or the turn.'),
  draining: passing(503, 'This replica is shutting down: ask another one.'),
  unavailable: passing(
    503,
    'Something that is needed is away (the database, Redis, an MCP server) or has too much to do; `message` says what.',
  ),
}

export type ErrorCode = keyof typeof CATALOGUE
export const ERROR_CODES = Object.keys(CATALOGUE) as ErrorCode[]
/** The request is at fault, or something that its caller has stored: an operator has nothing to look into. */
export const isCallersFault = (code: ErrorCode): boolean =>
  CATALOGUE[code].status < 500 && !CATALOGUE[code].retryable
/** The codes of a provider's failures */
export const UPSTREAM_CODES = ERROR_CODES.filter((code) => code.startsWith('upstream_'))
export const statusOf = (code: ErrorCode): number => CATALOGUE[code].status
export const isRetryable = (code: ErrorCode): boolean => CATALOGUE[code].retryable
/** Each with its status and meaning, as Markdown */
export const errorList = (codes: readonly ErrorCode[]): string =>
  codes
    .map((code) => {
      const { status, retryable, meaning }: Entry = CATALOGUE[code]
      return `- \`${code}\` (${status}${retryable ? ', may succeed later' : ''}): ${meaning}`
    })
    .join('\n')

export interface ErrorOptions {
  /** The request field at fault, as a path: `input[0].text`; null: no single one. */
  param?: string | null
  /** Extra facts for the caller; never a secret. A provider's own words go to `details.upstream`. */
  details?: Record<string, unknown> | undefined
  /** Seconds after which a retry makes sense, a month at most; becomes the Retry-After header. */
  retryAfter?: number | undefined
  cause?: unknown
}

/** The body that api.md section 3 prescribes, without its `request_id`. */
export interface ErrorBody {
  code: ErrorCode
  message: string
  param: string | null
  details: Record<string, unknown>
}

/**
 * Services may name any wait; the longest real ones, for a vendor's weekly or monthly limits, are shorter than this.
 */
const LONGEST_WAIT = 31 * 86_400

/** Seconds to wait after a 429 or 503 that names none */
const WAIT_SECONDS = 5

/** The only error type that crosses module boundaries on purpose; everything else is a defect (500). */
export class BatonError extends Error {
  readonly code: ErrorCode
  readonly status: number
  readonly retryable: boolean
  readonly param: string | null
  readonly details: Record<string, unknown> | undefined
  readonly retryAfter: number | undefined

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'BatonError'
    this.code = code
    const { status, retryable } = CATALOGUE[code]
    this.status = status
    this.retryable = retryable
    this.param = options.param ?? null
    this.details = options.details
    const { retryAfter } = options
    this.retryAfter = retryAfter === undefined ? undefined : Math.min(retryAfter, LONGEST_WAIT)
  }

  /**
   * `retry_after` is among the details: a stored error is answered later, with its header, and an event has no headers.
   */
  toBody(): ErrorBody {
    const isLimit = this.retryable && [429, 503].includes(this.status)
    const wait = this.retryAfter ?? (isLimit ? WAIT_SECONDS : undefined)
    const details = { ...(wait === undefined ? {} : { retry_after: wait }), ...this.details }
    return { code: this.code, message: this.message, param: this.param, details }
  }
}

/** One field of the request is at fault. */
export const invalid = (param: string, message: string): BatonError =>
  new BatonError('invalid_request', message, { param })

/** Passes a refusal on as one of the request's field `param`. */
export const refuseAt =
  (param: string) =>
  (thrown: unknown): never => {
    if (!(thrown instanceof BatonError)) throw thrown
    const { code, message, details } = thrown
    throw new BatonError(code, message, { param, details })
  }

/** For an unknown session, and for another owner's. */
export const noSession = (id: string): BatonError =>
  new BatonError('session_not_found', `No session ${id} exists.`)

/** Something that was needed is away, such as the store or the bus; it may come back. */
export const isUnavailable = (thrown: unknown): boolean =>
  thrown instanceof BatonError && thrown.code === 'unavailable'

/** A failure in words for operators: with the cause at the bottom, which callers are not told. */
export function inFull(thrown: unknown): string {
  if (!(thrown instanceof Error)) return String(thrown)
  let root = thrown
  while (root.cause instanceof Error) root = root.cause
  // A connection to a name with several addresses has one failure for each, and no message of its own.
  if (root instanceof AggregateError && root.message === '') root = root.errors[0]
  return thrown.message.includes(root.message) ? thrown.message : `${thrown.message} ${root.message}`
}

/** Wraps whatever was thrown: a BatonError stays, anything else becomes `internal` with its cause kept. */
export function asBatonError(thrown: unknown): BatonError {
  if (thrown instanceof BatonError) return thrown
  return new BatonError('internal', 'An internal error occurred.', { cause: thrown })
}
