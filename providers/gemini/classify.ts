/**
 * Google's failures as Baton's errors (wire/gemini.md 7). The vendor's own words, its reason and its
 * links are kept in `details.upstream`.
 */
import { asJson, isRecord } from '../../src/chat/json.ts'
import { BatonError, type ErrorCode, isRetryable } from '../../src/errors.ts'
import type { UpstreamFailure } from '../../src/provider.ts'
import { type Json, number, object, objects, string } from '../json.ts'
import { masked } from '../masked.ts'
import { retryAfterIn, secondsUntil } from '../retry-after.ts'

/** A refused request, or a body that is not a stream. Never throws, whatever the body. */
export const classify = (failure: UpstreamFailure): BatonError =>
  toError(readFailure(failure.body, failure.status), failure.headers)

/** An error object that came as an event of a stream that had begun (6.1), under the response's headers. */
export const errorFromStream = (body: unknown, headers: UpstreamFailure['headers']): BatonError =>
  toError(readFailure(asJson(body) ?? '', 200), headers)

interface Failure {
  /** HTTP status; for an error inside a 200, the status that its body states */
  status: number
  /** google.rpc code: `RESOURCE_EXHAUSTED` */
  code: string | undefined
  /** ErrorInfo.reason, or the older `errors[0].reason` */
  reason: string | undefined
  message: string
  metadata: Json
  links: { text: string; url: string }[]
  retryDelay: string | undefined
  quotas: string[]
}

export function readFailure(body: string, status: number): Failure {
  const error = unwrap(parse(body))
  const details = objects(error.details)
  const info = details.find((detail) => typeOf(detail).endsWith('ErrorInfo')) ?? {}
  const metadata = object(info.metadata)
  const retry = details.find((detail) => typeOf(detail).endsWith('RetryInfo')) ?? {}
  const violations = details.flatMap((detail) => objects(detail.violations))
  return {
    status: status < 400 ? (statedStatus(error) ?? status) : status,
    code: string(error.status),
    reason: string(info.reason) ?? string(objects(error.errors)[0]?.reason),
    message: (string(error.message) ?? plainText(body)).slice(0, MOST_READ),
    metadata,
    links: links(details, metadata),
    retryDelay: string(retry.retryDelay),
    quotas: violations.flatMap(({ quotaId }) => string(quotaId) ?? []).slice(0, MOST_LISTED),
  }
}

/** google.rpc.Code in the order of its numbers, with the HTTP status of each (googleapis google/rpc/code.proto). */
const CODES: readonly (readonly [string, number])[] = [
  ['OK', 200],
  ['CANCELLED', 499],
  ['UNKNOWN', 500],
  ['INVALID_ARGUMENT', 400],
  ['DEADLINE_EXCEEDED', 504],
  ['NOT_FOUND', 404],
  ['ALREADY_EXISTS', 409],
  ['PERMISSION_DENIED', 403],
  ['RESOURCE_EXHAUSTED', 429],
  ['FAILED_PRECONDITION', 400],
  ['ABORTED', 409],
  ['OUT_OF_RANGE', 400],
  ['UNIMPLEMENTED', 501],
  ['INTERNAL', 500],
  ['UNAVAILABLE', 503],
  ['DATA_LOSS', 500],
  ['UNAUTHENTICATED', 401],
]

/**
 * An error's `code` is the HTTP status or, in an operation, the google.rpc number; some errors have only the code's
 * name.
 */
function statedStatus({ code, status }: Json): number | undefined {
  const stated = number(code)
  if (stated !== undefined) return CODES[stated]?.[1] ?? stated
  return CODES.find(([name]) => name === status)?.[1]
}

function parse(body: string): unknown {
  try {
    return JSON.parse(body)
  } catch {
    try {
      // Bodies with no-break spaces and doubled commas occur in the field (7.1).
      return JSON.parse(body.replaceAll('\u00a0', ' ').replace(/,(\s*,)+/g, ','))
    } catch {
      return undefined
    }
  }
}

/** Reads `{error}`, `[{error}]`, and either of them again as a string in `message`, several levels deep. */
function unwrap(value: unknown, depth = 0): Json {
  const outer = object(Array.isArray(value) ? value[0] : value)
  const error = isRecord(outer.error) ? outer.error : outer
  const message = string(error.message)?.trim()
  if (depth >= 10 || !message || !/^[[{]/.test(message)) return error
  const inner = parse(message)
  return inner === undefined ? error : unwrap(inner, depth + 1)
}

/** Keys with spaces around `@type` occur in the field, too. */
function typeOf(detail: Json): string {
  const key = Object.keys(detail).find((name) => name.trim() === '@type')
  return key === undefined ? '' : (string(detail[key]) ?? '')
}

/** Quotas and addresses of one failure: each of them is shown, stored and searched for secrets. */
const MOST_LISTED = 20

/** Characters of a message that are read: a pattern with a gap takes time quadratic in the length. */
const MOST_READ = 10_000

/**
 * The front end answers in HTML (502, 413): its words without the markup. Both patterns take linear time, however many
 * tags are left open.
 */
const plainText = (body: string): string =>
  body
    .replace(/<(style|script)\b[\s\S]*?(?:<\/\1>|$)/gi, ' ')
    .replace(/<[^<>]*>/g, ' ')
    .replace(/\s+/g, ' ')
    .trim()

/** Addresses where people can help themselves: verification, appeal, documentation. */
function links(details: readonly Json[], metadata: Json): { text: string; url: string }[] {
  const help = details.flatMap((detail) => objects(detail.links))
  const found = [
    { text: string(metadata.validation_url_link_text) ?? 'Verify the account', url: metadata.validation_url },
    { text: 'Verify the account', url: metadata.validation_link },
    { text: string(metadata.appeal_url_link_text) ?? 'Appeal', url: metadata.appeal_url },
    ...help.map((link) => ({ text: string(link.description) ?? 'Help', url: link.url })),
    { text: 'Learn more', url: metadata.validation_learn_more_url },
  ]
  const unique = new Map<string, { text: string; url: string }>()
  for (const { text: label, url } of found) {
    const address = string(url)
    if (address !== undefined && !unique.has(address)) unique.set(address, { text: label, url: address })
  }
  return [...unique.values()].slice(0, MOST_LISTED)
}

type Verdict = readonly [ErrorCode, string]

const SEE_LINKS = 'details.upstream.links has the address.'
const OVERLOADED: Verdict = ['upstream_overloaded', 'Google has no capacity for this model at the moment.']
const QUOTA: Verdict = ['upstream_rate_limited', 'A quota of Gemini is used up for the moment.']
const RETIRED: Verdict = [
  'upstream_auth',
  'Google no longer serves this account through Code Assist. Use a Gemini API key instead.',
]
const TOO_LONG: Verdict = ['context_too_long', 'The conversation is longer than the model can read.']
const TOO_LARGE: Verdict = [
  'context_too_long',
  'The request is larger than Gemini accepts. Shorten the conversation or its attachments.',
]
const BAD_KEY: Verdict = ['upstream_auth', 'Google does not accept this API key.']

const BY_REASON: Readonly<Record<string, Verdict>> = {
  API_KEY_INVALID: BAD_KEY,
  API_KEY_SERVICE_BLOCKED: ['upstream_auth', 'This API key may not be used for the Gemini API.'],
  ACCESS_TOKEN_SCOPE_INSUFFICIENT: [
    'upstream_auth',
    'This login does not cover the Gemini API: a Code Assist login works on its own path only.',
  ],
  CONSUMER_INVALID: [
    'upstream_auth',
    "Google does not accept the project. Check the credential's project_id.",
  ],
  INSUFFICIENT_G1_CREDITS_BALANCE: ['upstream_rejected', "The account's Google One credits are used up."],
  MODEL_CAPACITY_EXCEEDED: OVERLOADED,
  MODEL_CAPACITY_EXHAUSTED: OVERLOADED,
  QUOTA_EXHAUSTED: QUOTA,
  RATE_LIMIT_EXCEEDED: QUOTA,
  rateLimitExceeded: QUOTA,
  SERVICE_DISABLED: ['upstream_auth', `The API is switched off in the Google Cloud project. ${SEE_LINKS}`],
  SUBSCRIPTION_REQUIRED: [
    'upstream_auth',
    'The account lacks a Gemini Code Assist licence for this project.',
  ],
  TOS_VIOLATION: ['upstream_auth', `Google disabled this account for a violation of its terms. ${SEE_LINKS}`],
  UNSUPPORTED_CLIENT: RETIRED,
  VALIDATION_REQUIRED: ['upstream_auth', `Google wants the account to be verified first. ${SEE_LINKS}`],
}

/**
 * With status 400, of what the request holds (google-gemini/deprecated-generative-ai-android#26) and of what it has by
 * address (googleapis/python-genai#308).
 */
export const TOO_MANY_BYTES = /request payload size exceeds the limit|referenced files bytes are too large/i

/**
 * With status 403: a file that was uploaded to Google has expired after two days, or belongs to the project of another
 * key (googleapis/python-genai#1218, snailyp/gemini-balance#401).
 */
export const NO_FILE = /permission to access the File\b/i

/** Words that say more than the reason that comes with them, which may be missing or general. */
const BY_MESSAGE: readonly (readonly [RegExp, Verdict])[] = [
  [/UNSUPPORTED_CLIENT|no longer supported for Gemini Code Assist/i, RETIRED],
  // "… the input token count is 1251952 but model only supports up to 1048576": Vertex AI's and Code Assist's words
  // (google-gemini/gemini-cli#19727).
  [
    /input token count.*(?:exceeds the maximum|supports up to)|exceeds the maximum number of tokens/is,
    TOO_LONG,
  ],
  [TOO_MANY_BYTES, TOO_LARGE],
  [NO_FILE, ['upstream_rejected', 'A file has expired at Google, or belongs to another project.']],
  [/API key (not valid|expired|not found)/i, BAD_KEY],
  // The model has no free quota at all, so waiting does not help (7.2).
  [/quota.*\blimit: 0\b/is, ['upstream_rejected', 'This key has no quota for this model.']],
  // No wait gets past these, though they come as rate limits.
  [
    /prepayment credits|spending cap/i,
    [
      'upstream_rejected',
      'The project has spent its credits or up to its limit; see its billing in AI Studio.',
    ],
  ],
  [/no capacity available for model/i, OVERLOADED],
]

const BY_STATUS: Readonly<Record<number, Verdict>> = {
  401: ['upstream_auth', 'Google does not accept the credential.'],
  403: ['upstream_auth', 'Google does not permit this credential to do this.'],
  404: ['upstream_rejected', 'The model is unknown, or not available to this account.'],
  408: ['upstream_timeout', 'Gemini took too long to answer.'],
  413: TOO_LARGE,
  429: QUOTA,
  // Cancelled on Google's side; the vendor's own client treats it like a full queue.
  499: ['upstream_overloaded', 'Gemini dropped the request.'],
  504: ['upstream_timeout', 'Gemini took too long to answer.'],
}

function verdict({ status, reason, message }: Failure): Verdict {
  const [, byMessage] = BY_MESSAGE.find(([words]) => words.test(message)) ?? []
  const byReason = reason !== undefined && Object.hasOwn(BY_REASON, reason) ? BY_REASON[reason] : undefined
  const known = byMessage ?? byReason ?? BY_STATUS[status]
  if (known) return known
  if (status >= 500) return ['upstream_overloaded', 'Gemini is not able to answer at the moment.']
  if (status >= 400) return ['upstream_rejected', 'Gemini rejected the request.']
  return ['upstream_rejected', 'Gemini answered with something other than an event stream.']
}

function toError(failure: Failure, headers: Readonly<Record<string, string>>): BatonError {
  const [code, says] = verdict(failure)
  const words = masked(failure.message).slice(0, 2000)
  return new BatonError(code, words === '' ? says : `${says} It said: ${words}`, {
    details: {
      upstream: {
        status: failure.status,
        code: failure.code,
        reason: failure.reason,
        message: words,
        ...(failure.quotas.length > 0 ? { quotas: failure.quotas } : {}),
        ...(failure.links.length > 0 ? { links: failure.links } : {}),
      },
    },
    retryAfter: waitFor(code, failure, headers),
  })
}

const HOUR = 3600

/** Seconds to wait; a rate limit always has some, since Baton's answer must name them. */
function waitFor(
  code: ErrorCode,
  failure: Failure,
  headers: Readonly<Record<string, string>>,
): number | undefined {
  if (!isRetryable(code)) return undefined
  const { reason, retryDelay, metadata, message, quotas } = failure
  const told =
    seconds(retryDelay) ??
    seconds(string(metadata.quotaResetDelay)) ??
    secondsUntil(string(metadata.quotaResetTimeStamp), headers) ??
    seconds(/(?:resets? (?:after|in)|retry in) ([\dhms.]+)/i.exec(message)?.[1]) ??
    retryAfterIn(headers)
  const given = told === undefined ? undefined : Math.ceil(told)
  // A day's quota comes with the same short delay as a minute's, which does not help (7.3).
  if (quotas.some((id) => /PerDay|Daily/i.test(id))) return Math.max(given ?? 0, HOUR)
  if (given !== undefined || code !== 'upstream_rate_limited') return given
  if (reason === 'QUOTA_EXHAUSTED') return HOUR
  return quotas.some((id) => /PerMinute/i.test(id)) ? 60 : 5
}

/** Proto JSON (`34.07s`, `900ms`) and Go (`8h44m7.312s`, `161h39m41.3s`) durations (7.2). */
function seconds(duration: string | undefined): number | undefined {
  const match = /^(?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?(?:([\d.]+)ms)?\.?$/.exec(duration ?? '')
  if (!match) return undefined
  const [hours, minutes, whole, milliseconds] = match.slice(1).map((digits) => Number(digits ?? 0))
  const total = (hours ?? 0) * HOUR + (minutes ?? 0) * 60 + (whole ?? 0) + (milliseconds ?? 0) / 1000
  return Number.isFinite(total) ? total : undefined
}
