/**
 * The vendor's failures as Baton's errors (wire/anthropic.md 7, 1.6, 3.2). The type in the body decides, the status
 * only if there is no known type: pages of the edge carry none. The vendor's words go to `details.upstream`.
 */
import { parseRecord } from '../../src/chat/json.ts'
import { BatonError, type ErrorCode, type ErrorOptions } from '../../src/errors.ts'
import type { UpstreamFailure } from '../../src/provider.ts'
import { statusIn } from '../frames.ts'
import { instantOf, type Json, object, string } from '../json.ts'
import { presentable } from '../masked.ts'
import { isTooLong, isUnpaid } from '../refusals.ts'
import { vendorsError } from '../relayed.ts'
import { retryAfterIn, secondsUntil, shouldRetryIn } from '../retry-after.ts'

interface Report {
  /** null: the error came inside a stream, and names none */
  status: number | null
  headers: Readonly<Record<string, string>>
  type: string
  /** `error.details.error_code` */
  code: string | null
  message: string
  request_id: string | null
}

/** A refused request, or a body that is not a stream. Never throws, whatever the body is. */
export function classify(failure: UpstreamFailure, vendor: string): BatonError {
  return errorOf(reportOf(failure), vendor)
}

/** An `error` event in place of the rest of a stream, under the response's headers. */
export const streamError = (event: Json, vendor: string, headers: Report['headers']): BatonError =>
  errorOf({ status: statusOf(event), headers, ...wordsOf(event, headers) }, vendor)

/** What a failed response says. */
export function reportOf({ status, headers, body }: UpstreamFailure): Report {
  const sent = parseRecord(body) ?? {}
  const words = wordsOf(sent, headers)
  return {
    status: status < 300 ? (statusOf(sent) ?? status) : status,
    headers,
    ...words,
    message: words.message || plainText(body),
  }
}

const statusOf = ({ error }: Json): number | null => statusIn(object(error).code)

function wordsOf(sent: Json, headers: Report['headers']): Omit<Report, 'status' | 'headers'> {
  // Relays write the error's fields flat, or only its words.
  const error = vendorsError(
    typeof sent.error === 'string' ? { message: sent.error } : object(sent.error ?? sent),
  )
  return {
    type: string(error.type) ?? '',
    code: string(object(error.details).error_code) ?? null,
    message: presentable(string(error.message)),
    request_id: string(sent.request_id) ?? headers['request-id'] ?? null,
  }
}

/** The words of a body that is no API error: the title of an edge's page, or the text itself. */
const plainText = (body: string): string =>
  presentable(/<title>([^<]*)<\/title>/i.exec(body)?.[1] ?? (/^\s*</.test(body) ? '' : body))

/** In `says`, `{vendor}` is the service behind this API. */
type Verdict = [code: ErrorCode, says: string, options?: ErrorOptions]

function errorOf(report: Report, vendor: string): BatonError {
  const [verdict, words, options] = verdictOf(report)
  const says = words.replaceAll('{vendor}', vendor)
  const { status, headers, type, code, message, request_id } = report
  return new BatonError(verdict, message === '' ? says : `${says} It said: ${message}`, {
    ...options,
    details: {
      upstream: { status, type: type || null, code, message, request_id },
      ...shouldRetryIn(headers),
      ...options?.details,
    },
  })
}

function verdictOf(report: Report): Verdict {
  if (isUnpaid(report.message)) return unpaid()
  // Said in a stream, it may come without a type and a status.
  if (isTooLong(report.message)) return tooLong()
  return (BY_TYPE.get(report.type) ?? BY_STATUS.get(report.status ?? 0) ?? unexpected)(report)
}

const always =
  (...verdict: Verdict) =>
  () =>
    verdict

const refusedCredential = always(
  'upstream_auth',
  '{vendor} refused the credential. Check that it is valid and may use this model.',
)
const unknownModel = always('upstream_rejected', '{vendor} knows no such model, or no longer serves it.')
const unpaid = always('upstream_rejected', "{vendor} refused the request because of the account's billing.")
const tooLong = always('context_too_long', "The conversation is longer than this model's context window.")
/** A failure that may pass, after the wait that the vendor names. */
const passing =
  (code: ErrorCode, says: string) =>
  ({ headers }: Report): Verdict => [code, says, { retryAfter: retryAfterIn(headers) }]
const busy = passing('upstream_overloaded', '{vendor} is overloaded or failed for a moment. Try again later.')
const late = passing('upstream_timeout', '{vendor} gave up on the request after its own time limit.')
const tooLarge = always(
  'context_too_long',
  'The request is larger than {vendor} takes. Shorten the conversation or its attachments.',
)

const BY_TYPE = new Map<string, (report: Report) => Verdict>([
  ['invalid_request_error', invalidRequest],
  ['authentication_error', refusedCredential],
  // A revoked login is 403, not 401 (wire/anthropic.md 1.6).
  ['permission_error', refusedCredential],
  ['billing_error', unpaid],
  ['not_found_error', unknownModel],
  ['conflict_error', busy],
  ['request_too_large', tooLarge],
  ['rate_limit_error', rateLimited],
  ['api_error', busy],
  ['timeout_error', late],
  ['overloaded_error', busy],
])

const BY_STATUS = new Map<number, (report: Report) => Verdict>([
  [401, refusedCredential],
  [402, unpaid],
  [404, unknownModel],
  [408, late],
  [409, busy],
  [413, tooLarge],
  [429, rateLimited],
  [504, late],
])

function unexpected(report: Report): Verdict {
  const { status, message } = report
  // Of llama.cpp, as a failure of its own (ggml-org/llama.cpp#15377)
  if (/image input is not supported/.test(message))
    return ['upstream_rejected', '{vendor} could not use an image of the conversation.']
  if (status === null)
    return ['upstream_overloaded', '{vendor} broke the stream off with an unknown kind of error.']
  if (status < 300)
    return ['upstream_rejected', '{vendor} answered with something other than a stream of events.']
  if (status >= 500) return busy(report)
  return ['upstream_rejected', `{vendor} refused the request with status ${status}.`]
}

/**
 * What the vendor says when a login may not be used this way, word for word (wire/anthropic.md 3.2).
 * The request is well formed, and neither sending it again nor another account's login would be right.
 */
const POLICY =
  /only authorized for use with Claude Code|Third-party apps now draw from your extra usage|out of extra usage|^Error$/

function invalidRequest({ message }: Report): Verdict {
  if (POLICY.test(message)) {
    return [
      'upstream_rejected',
      "{vendor} does not serve this login's plan here. Use an API key, or see the vendor's terms for logins.",
    ]
  }
  // "… is required when authenticating with an identity-linked API key", "… must be a valid workspace ID."
  if (/anthropic-workspace-id/.test(message)) {
    return [
      'upstream_auth',
      'The key may act in several workspaces: store it with the workspace_id of one, or set ANTHROPIC_WORKSPACE_ID.',
    ]
  }
  if (/specified API usage limits/.test(message)) {
    return ['upstream_rejected', "The account's own spending limit at {vendor} is reached."]
  }
  return ['upstream_rejected', '{vendor} refused the request as invalid.']
}

/**
 * A 429 that names no wait may be a spending cap, which no retry gets past (wire/anthropic.md 7), but only its words
 * say so. Any other is reported to the caller as a rate limit, and Baton does not try again (src/llm/retry.ts).
 */
function rateLimited({ headers, code, message }: Report): Verdict {
  const retryAfter = retryAfterIn(headers)
  if (retryAfter === undefined && /spend|extra usage/i.test(`${code} ${message}`)) {
    return ['upstream_rejected', "The account's spending limit at {vendor} is reached; raise it to go on."]
  }
  const reset = resetOf(headers)
  const wait = retryAfter ?? secondsUntil(reset, headers)
  return [
    'upstream_rate_limited',
    "The account's rate limit at {vendor} is reached. Try again later.",
    {
      retryAfter: wait,
      ...(reset === undefined ? {} : { details: { reset_at: reset } }),
    },
  ]
}

/**
 * When the limit is lifted, RFC 3339: the last reset among a login's windows that rejected it (unix seconds), or among
 * a key's counters that are used up. Usage that is bought beyond a plan (`overage`) is no window: it is mostly rejected
 * and resets with the month, and nobody has to wait for that.
 */
function resetOf(headers: Report['headers']): string | undefined {
  const resets = Object.entries(headers).flatMap(([name, value]) => {
    const [, window] = /^(anthropic-ratelimit-unified(?!-overage)(?:-.+)?)-status$/.exec(name) ?? []
    if (window && value === 'rejected') return instantOf(Number(headers[`${window}-reset`]) * 1000) ?? []
    const [, counter] = /^(anthropic-ratelimit-.+)-remaining$/.exec(name) ?? []
    if (counter && value === '0') return instantOf(Date.parse(headers[`${counter}-reset`] ?? '')) ?? []
    return []
  })
  return resets.sort().at(-1)
}
