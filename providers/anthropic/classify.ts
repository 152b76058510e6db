/**
 * The vendor's failures as Baton's errors (wire/anthropic.md 7, 1.6, 3.2). The type in the body decides,
 * the status only where there is no known type: pages of the edge carry none. The vendor's words go to
 * `details.upstream` without any token that they might quote.
 */
import type { MessageInput } from '../../src/chat/message.ts'
import { BatonError, type ErrorCode, type ErrorOptions } from '../../src/errors.ts'
import type { ModelRequest, UpstreamFailure } from '../../src/provider.ts'
import { type Json, object, parseObject, string } from './json.ts'

interface Report {
  /** 0: the error came inside a stream */
  status: number
  type: string
  message: string
  headers: Readonly<Record<string, string>>
  facts: Json
}

export function classify({ status, headers, body }: UpstreamFailure): BatonError {
  const sent = parseObject(body)
  const report = reportOf(sent ?? {}, status, headers)
  if (report.message === '') report.message = body.slice(0, 500).trim()
  return errorOf(report)
}

/** An `error` event in place of the rest of a stream. */
export const streamError = (event: Json): BatonError => errorOf(reportOf(event, 0, {}))

function reportOf(sent: Json, status: number, headers: Report['headers']): Report {
  const error = object(sent.error)
  const requestId = string(sent.request_id) ?? headers['request-id']
  const code = string(object(error.details).error_code)
  const type = string(error.type)
  return {
    status,
    type: type ?? '',
    message: string(error.message) ?? '',
    headers,
    facts: {
      ...(status === 0 ? {} : { upstream_status: status }),
      ...(type === undefined ? {} : { upstream_type: type }),
      ...(code === undefined ? {} : { upstream_code: code }),
      ...(requestId === undefined ? {} : { upstream_request_id: requestId }),
    },
  }
}

type Verdict = [code: ErrorCode, message: string, options?: ErrorOptions]

function errorOf(report: Report): BatonError {
  const [code, message, options] = verdictOf(report)
  const upstream = report.message.replace(/sk-ant-[\w-]+/g, 'sk-ant-***')
  return new BatonError(code, message, {
    ...options,
    details: { upstream, ...report.facts, ...options?.details },
  })
}

const verdictOf = (report: Report): Verdict =>
  (BY_TYPE.get(report.type) ?? BY_STATUS.get(report.status) ?? unexpected)(report)

const always =
  (...verdict: Verdict) =>
  () =>
    verdict

const refusedCredential = always(
  'upstream_auth',
  'Anthropic refused the credential. Check that it is valid and may use this model.',
)
const unknownModel = always('upstream_rejected', 'Anthropic knows no such model, or no longer serves it.')
const unpaid = always('upstream_rejected', "Anthropic refused the request because of the account's billing.")
const busy = always('upstream_overloaded', 'Anthropic is overloaded or failed for a moment. Try again later.')
const late = always('upstream_timeout', 'Anthropic gave up on the request after its own time limit.')
const tooLarge = always(
  'context_too_long',
  'The request is larger than Anthropic takes. Shorten the conversation or its attachments.',
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
  [500, busy],
  [502, busy],
  [503, busy],
  [504, late],
  [529, busy],
])

function unexpected({ status }: Report): Verdict {
  if (status === 0)
    return ['upstream_overloaded', 'Anthropic broke the stream off with an error of a kind not known.']
  if (status < 300)
    return ['upstream_rejected', 'Anthropic answered with something other than a stream of events.']
  return ['upstream_rejected', `Anthropic refused the request with status ${status}.`]
}

/**
 * What the vendor says when a login may not be used this way, word for word (wire/anthropic.md 3.2).
 * The request is well formed, and neither sending it again nor another account's login would be right.
 */
const POLICY =
  /only authorized for use with Claude Code|Third-party apps now draw from your extra usage|out of extra usage|^Error$/

function invalidRequest({ message }: Report): Verdict {
  if (/prompt is too long/i.test(message)) {
    return ['context_too_long', "The conversation is longer than this model's context window."]
  }
  if (POLICY.test(message)) {
    return [
      'upstream_rejected',
      "Anthropic does not serve this login's plan here. Use an API key, or see the vendor's terms for logins.",
    ]
  }
  if (/specified API usage limits/.test(message)) {
    return ['upstream_rejected', "The account's own spending limit at Anthropic is reached."]
  }
  return ['upstream_rejected', 'Anthropic refused the request as invalid.']
}

/**
 * A 429 that names no wait is the tier's spending cap, which no retry gets past (wire/anthropic.md 7): it
 * counts as a rejection. Any sign of a wait makes it a rate limit. Inside a stream there are no headers
 * to tell by, and a request that was let in is no spending cap.
 */
function rateLimited({ status, headers }: Report): Verdict {
  const retryAfter = secondsToWait(headers)
  const reset = resetOf(headers)
  if (
    status !== 0 &&
    retryAfter === undefined &&
    reset === undefined &&
    headers['x-should-retry'] !== 'true'
  ) {
    return ['upstream_rejected', "The account's spending limit at Anthropic is reached; raise it to go on."]
  }
  return [
    'upstream_rate_limited',
    "The account's rate limit at Anthropic is reached. Try again later.",
    {
      ...(retryAfter === undefined ? {} : { retryAfter }),
      ...(reset === undefined ? {} : { details: { reset_at: reset } }),
    },
  ]
}

/** Retry-After in seconds; its date form is read against the response's own Date, so no clock is needed. */
function secondsToWait(headers: Report['headers']): number | undefined {
  const ms = Number(headers['retry-after-ms'] ?? Number.NaN)
  if (ms > 0) return Math.ceil(ms / 1000)
  const value = headers['retry-after']
  if (value === undefined) return undefined
  const seconds = /^\d+(\.\d+)?$/.test(value)
    ? Number(value)
    : (Date.parse(value) - Date.parse(headers.date ?? '')) / 1000
  return seconds >= 0 ? Math.ceil(seconds) : undefined
}

/**
 * When the limit is lifted, RFC 3339. A login has several windows and waits for the last of those that
 * rejected it (unix seconds); a key waits for the first of its counters that is used up.
 */
function resetOf(headers: Report['headers']): string | undefined {
  const windows = Object.entries(headers).flatMap(([name, value]) => {
    const [, window] = /^anthropic-ratelimit-unified-(?:(.+)-)?status$/.exec(name) ?? []
    if (value !== 'rejected' || !name.startsWith('anthropic-ratelimit-unified')) return []
    const reset = Number(headers[`anthropic-ratelimit-unified-${window ? `${window}-` : ''}reset`])
    return reset > 0 ? [reset] : []
  })
  if (windows.length > 0) return new Date(Math.max(...windows) * 1000).toISOString()
  const exhausted = Object.entries(headers).flatMap(([name, value]) => {
    const [, counter] = /^anthropic-ratelimit-(.+)-remaining$/.exec(name) ?? []
    return counter && value === '0' ? [headers[`anthropic-ratelimit-${counter}-reset`] ?? ''] : []
  })
  return exhausted
    .filter((reset) => reset !== '')
    .sort()
    .at(-1)
}

/** Refusals of thinking that goes back: not its own, changed, or missing at the head of a tool turn. */
const BAD_THINKING =
  /Invalid `signature` in `thinking` block|`thinking` or `redacted_thinking` blocks .* cannot be modified|Expected `thinking` or `redacted_thinking`|the first block must be `?thinking|cannot contain `?thinking/

/**
 * The vendor refuses thinking that went back: once more without any of it. With a budget the request
 * then has a tool turn without thinking, which thinking.ts answers by leaving thinking off.
 */
export function withoutThinking(
  { status, body }: UpstreamFailure,
  request: ModelRequest,
): ModelRequest | null {
  const { message } = reportOf(parseObject(body) ?? {}, status, {})
  if (status !== 400 || !BAD_THINKING.test(message)) return null
  const messages = request.messages.flatMap(withoutReasoning)
  const parts = (list: readonly MessageInput[]) => list.reduce((count, { parts }) => count + parts.length, 0)
  return parts(messages) < parts(request.messages) ? { ...request, messages } : null
}

function withoutReasoning(message: MessageInput): MessageInput[] {
  const parts = message.parts.filter(({ type }) => type !== 'reasoning')
  return parts.length > 0 ? [{ ...message, parts }] : []
}
