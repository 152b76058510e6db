/** Maps errors of the SDK, fetch and child processes to McpErrors, and says whether a call may have been run. */
import {
  InsufficientScopeError,
  ProtocolError,
  ProtocolErrorCode,
  SdkError,
  SdkErrorCode,
  SdkHttpError,
  SseError,
  UnauthorizedError,
} from '@modelcontextprotocol/client'
import { isRecord, parseRecord } from '../chat/json.ts'
import { BatonError } from '../errors.ts'
import { BodyTooLargeError } from '../guard/body.ts'
import { McpError, type McpErrorKind } from './contract.ts'
import type { Exchange } from './exchange.ts'
import { type Secretive, scrubbedText } from './scrub.ts'
import { localKind } from './tap.ts'

/**
 * MCP 2025-11-25: the call can run once a person has visited a page, as to log in elsewhere. Some servers say so to every
 * client (Amazon's AgentCore: copilot-cli#4371).
 */
const PAGE_WANTED = -32042
/** JSON-RPC errors by which a server refuses a request without running it (JSON-RPC 5.1; MCP 2026-07-28). */
const REFUSALS = new Set([-32700, -32600, -32601, -32602, -32020, -32021, -32022, PAGE_WANTED])
/** The request never left: no connection was made. */
const UNSENT = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
  'ERR_TLS_CERT_ALTNAME_INVALID',
  'CERT_HAS_EXPIRED',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'ENOENT',
  'EACCES',
])

type Server = Secretive & { name: string }

/** The result has `sent: false` only if the server surely ran nothing. */
export function toMcpError(thrown: unknown, server: Server, exchange?: Exchange): McpError {
  if (thrown instanceof McpError) return thrown
  const chain = causes(thrown)
  for (const error of chain) {
    const known = fromKnownError(error, server, exchange)
    if (known) return known
  }
  const [first] = chain
  const message = first instanceof Error ? first.message : String(first)
  return new McpError('disconnected', `${server.name}: the connection failed: ${excerpt(message, server)}`, {
    sent: true,
    cause: thrown,
  })
}

/** The error and what caused it; the SDK keeps some causes in `data`. */
function causes(thrown: unknown): unknown[] {
  const chain: unknown[] = []
  for (let error: unknown = thrown; error != null && chain.length < 6; ) {
    chain.push(error)
    // Our own error says all that a caller may read: its cause may be the database's, with an address.
    if (error instanceof BatonError) break
    const data: unknown = error instanceof SdkError ? error.data : undefined
    const inner: unknown = isRecord(data) && 'cause' in data ? data.cause : undefined
    error = error instanceof Error ? (error.cause ?? inner) : undefined
  }
  // The innermost error says most: `fetch failed` is caused by ECONNREFUSED.
  return chain.reverse()
}

function fromKnownError(error: unknown, server: Server, exchange?: Exchange): McpError | null {
  const { name } = server
  const failed = (kind: McpErrorKind, words: string, sent: boolean, retryAfterMs?: number) =>
    new McpError(kind, words, { sent, cause: error, retryAfterMs })
  if (error instanceof McpError) return error
  if (error instanceof BatonError) {
    const retryAfterMs = error.retryAfter && error.retryAfter * 1000
    return failed('unavailable', `${name}: ${error.message}`, false, retryAfterMs)
  }
  if (error instanceof BodyTooLargeError) return failed('too_large', `${name}: ${error.message}`, true)
  if (error instanceof InsufficientScopeError)
    return failed('auth_required', `${name} wants more rights than the login has (HTTP 403).`, false)
  if (error instanceof UnauthorizedError || error instanceof SdkHttpError)
    return fromHttp(error instanceof SdkHttpError ? error.status : 401, error, server, exchange)
  const status = sseStatus(error)
  if (status !== undefined) return fromHttp(status, error as Error, server, exchange)
  if (error instanceof ProtocolError) return fromProtocol(error, server)
  if (error instanceof SdkError) return fromSdk(error, server)
  // Errors of the SDK's parsers quote the answer, and may list each of a million members.
  if (error instanceof SyntaxError || (error instanceof Error && error.name === 'ZodError'))
    return failed('protocol', `${name}: the answer is not valid JSON-RPC.`, true)
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  if (typeof code === 'string' && UNSENT.has(code))
    return failed('unavailable', `${name} cannot be reached: ${(error as Error).message}`, false)
  if (code === 'ERR_SSL_WRONG_VERSION_NUMBER')
    return failed('unavailable', `${name} does not answer with TLS: its url may want http://.`, true)
  return null
}

/** The legacy SSE transport gives a status as a code, or only in words. */
export function sseStatus(error: unknown): number | undefined {
  if (error instanceof SseError) return error.code
  const told =
    error instanceof Error ? /^Error POSTing to endpoint \(HTTP (\d{3})\)/.exec(error.message) : null
  return told ? Number(told[1]) : undefined
}

function fromHttp(status: number, cause: Error, server: Server, exchange?: Exchange): McpError {
  const failed = (kind: McpErrorKind, words: string, sent: boolean) =>
    new McpError(kind, `${server.name} ${words}`, { sent, cause, retryAfterMs: exchange?.retryAfterMs })
  if (status === 401 || status === 403) {
    const what = status === 401 ? 'wants a valid credential' : 'denied access'
    return failed('auth_required', `${what} (HTTP ${status}).`, false)
  }
  if (status === 413) return failed('too_large', 'refused the request as too large.', false)
  const body = cause.message.replace(POSTING, '')
  const answer = rpcErrorIn(body)
  // From 2026-07-28 on, this is how a server says that it does not know a method.
  const isUnknown = status === 404 && answer?.code === ProtocolErrorCode.MethodNotFound
  if (answer && (isUnknown || ANSWERING.has(status))) return refusal(answer, server, cause)
  const refusesUnrun = [404, 405, 406, 410, 415, 429].includes(status)
  const inWords = (text = '') => `answered HTTP ${status}${text && `: ${excerpt(text, server)}`}`
  if (refusesUnrun || status >= 500) {
    const words = inWords(answer?.message)
    return failed('unavailable', answer ? words : `${words}.`, !refusesUnrun)
  }
  return failed('protocol', inWords(body), true)
}

/**
 * Words that both transports put before the body of a refusal, and after a redirection that they do not follow. Bounded:
 * a body of such beginnings, each read to the end of its megabytes, would take an hour.
 */
const POSTING = /^Error POSTing to endpoint(?: \(HTTP \d+\))?(?:: )?| \(redirectPolicy: [^)]{0,40}\)$/g

/** With these, many servers send the JSON-RPC error that others send with 200; a proxy sends none. */
const ANSWERING: ReadonlySet<number> = new Set([400, 422, 500])

/** A server's answer in JSON-RPC. */
interface RpcError {
  code: number
  message: string
  data?: unknown
}

/** Undefined if the body of a refusal is no JSON-RPC error. */
function rpcErrorIn(body: string): RpcError | undefined {
  const answer = body.length > LONGEST ? null : parseRecord(body)
  if (!isRecord(answer?.error)) return undefined
  const { code, message, data } = answer.error
  return typeof code === 'number' && typeof message === 'string' ? { code, message, data } : undefined
}

function fromProtocol(error: ProtocolError, server: Server): McpError {
  const local = localKind(error.data)
  if (local) return new McpError(local, `${server.name}: ${error.message}`, { sent: true })
  return refusal(error, server, error)
}

function refusal({ code, message, data }: RpcError, server: Server, cause: Error): McpError {
  const said = excerpt(message, server) || `error ${code}, without a word`
  const words = code === PAGE_WANTED ? [said, ...pagesIn(data)].join(' ') : said
  return new McpError('protocol', `${server.name}: ${words}`, {
    sent: !REFUSALS.has(code),
    rpcCode: code,
    cause,
  })
}

/** The pages' addresses, which stand beside the words. A login's is long: cut, it would lead nowhere. */
function pagesIn(data: unknown): string[] {
  const pages: unknown[] = isRecord(data) && Array.isArray(data.elicitations) ? data.elicitations : []
  const urls = pages
    .slice(0, 4)
    .map((page) => (isRecord(page) && typeof page.url === 'string' ? page.url : ''))
  return urls.filter((url) => url.length <= 4_096 && /^https?:/i.test(url))
}

function fromSdk(error: SdkError, server: Server): McpError | null {
  // The tool has begun, and waits for what its `input_required` asks for (MCP 2026-07-28).
  if (error.code === SdkErrorCode.CapabilityNotSupported && isRecord(error.data) && 'key' in error.data)
    return new McpError('protocol', `${server.name}: the tool asks for input, which Baton does not give.`, {
      sent: true,
      cause: error,
    })
  const [kind, sent] = SDK_CODES[error.code] ?? []
  if (kind === undefined || sent === undefined) return null
  const message = `${server.name}: ${excerpt(misfitInWords(error.message), server)}`
  return new McpError(kind, message, { sent, cause: error })
}

/** The SDK ends some messages with all problems that a schema found, as JSON: the first of them says enough. */
function misfitInWords(words: string): string {
  const [, what, found] = /^(.*?): (\[\s.*)$/s.exec(words) ?? []
  if (what === undefined || found === undefined) return words
  try {
    const [first] = JSON.parse(found) as { path: unknown[]; message: string }[]
    return first ? `${what}: ${[...first.path, first.message].join(': ')}` : what
  } catch {
    return what
  }
}

const SDK_CODES: Partial<Record<string, [McpErrorKind, boolean]>> = {
  [SdkErrorCode.NotConnected]: ['unavailable', false],
  [SdkErrorCode.ConnectionClosed]: ['disconnected', true],
  [SdkErrorCode.RequestTimeout]: ['timeout', true],
  [SdkErrorCode.InvalidResult]: ['protocol', true],
  [SdkErrorCode.UnsupportedResultType]: ['protocol', true],
  [SdkErrorCode.InputRequiredRoundsExceeded]: ['protocol', true],
  [SdkErrorCode.CapabilityNotSupported]: ['protocol', false],
  [SdkErrorCode.MethodNotSupportedByProtocolVersion]: ['protocol', false],
  [SdkErrorCode.ClientHttpUnexpectedContent]: ['protocol', true],
}

/** How many characters of a server's words are read: over megabytes a regular expression's stack would overflow. */
const LONGEST = 65_536

/** A server's words, bounded: they end up in results and logs. */
function excerpt(text: string, server: Server): string {
  // Secrets go before the text is cut: a cut may leave half of one, which nothing would recognise.
  const told = scrubbedText(text.slice(0, LONGEST), server)
  return told.length > 500 ? `${told.slice(0, 500)}…` : told
}
