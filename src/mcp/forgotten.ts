/**
 * Tells when a request was not run because its server has forgotten the session, or speaks another revision than the one
 * that is remembered of it: over a new connection it may run. A server that was replaced may say either.
 */
import { ProtocolError, ProtocolErrorCode, SdkHttpError } from '@modelcontextprotocol/client'
import type { McpError, McpErrorKind } from './contract.ts'
import type { Exchange } from './exchange.ts'
import { sseStatus } from './failure.ts'
import type { Transports } from './transport.ts'

/** A request that failed: as it was thrown, and as it is told. */
interface FailedRequest {
  error: unknown
  failure: McpError
  exchange: Exchange
  over: Transports
  /** The connection has answered a request in the revision that was remembered, or none was */
  isProven: boolean
}

const { MethodNotFound, UnsupportedProtocolVersion } = ProtocolErrorCode

/** Failures that come from a server's own answer to the request. */
const ANSWERED: ReadonlySet<McpErrorKind> = new Set(['protocol', 'unavailable', 'auth_required'])

export function isForgotten({ error, failure, exchange, over, isProven }: FailedRequest): boolean {
  const { kind, rpcCode = 0 } = failure
  const isBroken = kind === 'unavailable' || kind === 'disconnected'
  // No answer at all: the server may be back at the next attempt.
  if (isBroken && !failure.sent && exchange.status === undefined) return true
  // The request began, whatever was said when its stream was asked for again.
  if (!ANSWERED.has(kind)) return false
  if (!over.http && !over.stdio) return [400, 404].includes(sseStatus(error) ?? 0)
  const refusal = error instanceof SdkHttpError ? error : null
  const { status = 0 } = refusal ?? exchange
  const { message } = refusal ?? failure
  const hasSession = over.http?.sessionId !== undefined
  if (saysSo(status, message, hasSession)) return true
  // A remembered revision that no longer holds shows at the first request.
  if (refusal) return !isProven && [400, 404, 405].includes(status)
  // Or an answer says -32001. A proxy turns the 404 that a server gave it into an answer (python-sdk: -32600).
  if (hasSession && [-32001, -32600].includes(rpcCode) && /session not found/i.test(message)) return true
  if (rpcCode === UnsupportedProtocolVersion && status === 400) return true
  return !isProven && [UnsupportedProtocolVersion, MethodNotFound].includes(rpcCode)
}

/** Statuses by which servers of older revisions refuse a request that names no session. */
const WITHOUT_SESSION: readonly number[] = [400, 422]

/**
 * Whether a server that speaks only older revisions has refused a request of 2026-07-28. One that speaks this revision
 * gives a 400 as the answer to the request's id, which the SDK throws as such.
 */
export const isOfOlderRevision = (error: unknown): boolean =>
  error instanceof SdkHttpError
    ? WITHOUT_SESSION.includes(error.status)
    : error instanceof ProtocolError && error.code === UnsupportedProtocolVersion

/**
 * How a refusal says that the server knows nothing of this session, or of this revision. The patterns are narrow: a
 * tool that ran and speaks of some session of its own must not run again.
 */
const NEVER_AGREED = /session.?id|not initialized|expect initialize|protocol.version|-32022/i
const FORGOTTEN =
  /session (?:was |has been |is )?(?:not found|unknown|invalid|expired|terminated)|(?:invalid|unknown|expired) session/i

/**
 * By the specification the status is 404; some servers give 410 (typescript-sdk#1402), or another one and say it in words
 * (rust-sdk#559; the official server says 400 `Server not initialized`).
 */
function saysSo(status: number, words: string, hasSession: boolean): boolean {
  const refusals = hasSession ? [400, 401, 404, 410, 422, 503] : WITHOUT_SESSION
  if (!refusals.includes(status)) return false
  return status === 404 || status === 410 || NEVER_AGREED.test(words) || (hasSession && FORGOTTEN.test(words))
}
