/**
 * Every error that leaves Baton, in one catalogue: its HTTP status and whether the same request may
 * succeed later. Nothing here knows HTTP frameworks or vendors; adapters map vendor failures to a code.
 */

interface Entry {
  status: number
  /** The same request may succeed later without a change by the caller. */
  retryable?: true
}

const CATALOGUE = {
  // The caller's request
  invalid_request: { status: 400 },
  address_not_allowed: { status: 400 },
  context_splits_tool_exchange: { status: 400 },
  invalid_cursor: { status: 400 },
  not_available: { status: 400 },
  unauthenticated: { status: 401 },
  forbidden: { status: 403 },
  oauth_not_enabled: { status: 403 },
  not_found: { status: 404 },
  session_not_found: { status: 404 },
  turn_not_found: { status: 404 },
  message_not_found: { status: 404 },
  connector_not_found: { status: 404 },
  credential_not_found: { status: 404 },
  tool_not_found: { status: 404 },
  tool_call_not_found: { status: 404 },
  tool_execution_not_found: { status: 404 },
  key_not_found: { status: 404 },
  method_not_allowed: { status: 405 },
  turn_in_progress: { status: 409 },
  not_restartable: { status: 409 },
  restart_limit: { status: 409 },
  not_awaiting: { status: 409 },
  name_taken: { status: 409 },
  no_credential: { status: 409 },
  credential_needs_reauth: { status: 409 },
  read_only: { status: 409 },
  body_too_large: { status: 413 },
  unsupported_media_type: { status: 415 },
  idempotency_mismatch: { status: 422 },
  context_too_long: { status: 422 },
  queue_full: { status: 429, retryable: true },
  rate_limited: { status: 429, retryable: true },
  // A provider's failure
  upstream_auth: { status: 502 },
  upstream_rate_limited: { status: 429, retryable: true },
  upstream_overloaded: { status: 503, retryable: true },
  upstream_rejected: { status: 502 },
  upstream_timeout: { status: 504, retryable: true },
  upstream_disconnected: { status: 502, retryable: true },
  // A turn that Baton itself had to give up
  recovery_limit: { status: 500 },
  // Baton's own state
  internal: { status: 500 },
  draining: { status: 503, retryable: true },
  unavailable: { status: 503, retryable: true },
} as const satisfies Record<string, Entry>

export type ErrorCode = keyof typeof CATALOGUE
export const ERROR_CODES: readonly string[] = Object.keys(CATALOGUE)

export interface ErrorOptions {
  /** The request field at fault, as a path: `input[0].text`. */
  param?: string
  /** Extra facts for the caller; never a secret. A provider's own words go to `details.upstream`. */
  details?: Record<string, unknown>
  /** Seconds after which a retry makes sense, a month at most; becomes the Retry-After header. */
  retryAfter?: number
  cause?: unknown
}

/** The body that api.md section 3 prescribes, without its `request_id`. */
export interface ErrorBody {
  code: ErrorCode
  message: string
  param: string | null
  details: Record<string, unknown>
}

/** Others state waits as they like; the longest real ones, of a vendor's weekly or monthly limits, are below it. */
const LONGEST_WAIT = 31 * 86_400

/** The only error type that crosses module borders on purpose; everything else is a defect (500). */
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
    const entry: Entry = CATALOGUE[code]
    this.status = entry.status
    this.retryable = entry.retryable ?? false
    this.param = options.param ?? null
    this.details = options.details
    const { retryAfter } = options
    this.retryAfter = retryAfter === undefined ? undefined : Math.min(retryAfter, LONGEST_WAIT)
  }

  /** `retry_after` is among the details, since a stored error is answered later, with its header. */
  toBody(): ErrorBody {
    const details = {
      ...this.details,
      ...(this.retryAfter === undefined ? {} : { retry_after: this.retryAfter }),
    }
    return { code: this.code, message: this.message, param: this.param, details }
  }
}

/** One field of the request is at fault. */
export const invalid = (param: string, message: string): BatonError =>
  new BatonError('invalid_request', message, { param })

/** Of an unknown session, and of another owner's. */
export const noSession = (id: string): BatonError =>
  new BatonError('session_not_found', `No session ${id} exists.`)

/** What it needs is away: the store, or the bus; it may come back. */
export const isUnavailable = (thrown: unknown): boolean =>
  thrown instanceof BatonError && thrown.code === 'unavailable'

/** In words for operators: with the cause at the bottom, which callers are not told. */
export function inFull(thrown: unknown): string {
  if (!(thrown instanceof Error)) return String(thrown)
  let root = thrown
  while (root.cause instanceof Error) root = root.cause
  // A name with several addresses: one failure each, and no words of its own.
  if (root instanceof AggregateError && root.message === '') root = root.errors[0]
  return thrown.message.includes(root.message) ? thrown.message : `${thrown.message} ${root.message}`
}

/** Wraps whatever was thrown: a BatonError stays, anything else becomes `internal` with its cause kept. */
export function asBatonError(thrown: unknown): BatonError {
  if (thrown instanceof BatonError) return thrown
  return new BatonError('internal', 'An internal error occurred.', { cause: thrown })
}
