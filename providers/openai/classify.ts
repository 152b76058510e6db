/**
 * Failures of the Responses API as errors of the catalogue (wire/openai.md 7). Bodies are `{error: …}`, `{detail: …}`,
 * or a page of HTML from the network's edge; inside a stream the same codes come as events.
 */
import { parseRecord } from '../../src/chat/json.ts'
import { BatonError, type ErrorCode, isRetryable } from '../../src/errors.ts'
import type { UpstreamFailure } from '../../src/provider.ts'
import { statusIn } from '../frames.ts'
import { instantOf, type Json, number, object, string } from '../json.ts'
import { presentable } from '../masked.ts'
import { isAmong, isTooLong, isUnpaid } from '../refusals.ts'
import { vendorsError } from '../relayed.ts'
import { decimal, retryAfterIn, secondsUntil, shouldRetryIn } from '../retry-after.ts'

/** What a failure says, wherever it came from. `status` is null inside a stream that began well. */
export interface Facts {
  status: number | null
  code: string
  type: string
  message: string
  /** The body's error object, for its extra fields. */
  error: Json
  headers: Readonly<Record<string, string>>
  html: boolean
  /** The API itself wrote it, in one of its two shapes. */
  isApi: boolean
}

interface Rule {
  when(facts: Facts): boolean
  code: ErrorCode
  /** Comes before the vendor's own words; `{vendor}` is the service behind this API. */
  says: string
}

const named =
  (...names: string[]) =>
  ({ code, type }: Facts) =>
    names.includes(code) || names.includes(type)
const status =
  (...numbers: number[]) =>
  (facts: Facts) =>
    facts.status !== null && numbers.includes(facts.status)
const says = (pattern: RegExp) => (facts: Facts) => pattern.test(facts.message)

/** Refusals of reasoning sent back that is of another account or model, was never stored, or lacks its pair. */
export const isStale = isAmong([
  // "… was not issued to this caller" is a relay's (anomalyco/opencode#48773).
  /encrypted.content.*(could not be|not issued)/i,
  // xAI (Wei-Shaw/sub2api#4535)
  /could not decrypt the provided encrypted/i,
  /Item with id '[^']*' not found/i,
  /Items are not persisted/i,
  /without its required/i,
  // Azure, which takes some only with an id (openai/codex#3451, NousResearch/hermes-agent#63257)
  /Missing required parameter: 'input\[\d+\]\.id'/i,
  /provided data does not match the expected schema/i,
  // Azure, too, of GPT-6: reasoning of one answer alone (NousResearch/hermes-agent#105369, #106718)
  /Conflicting authenticated continuation/i,
])

/** A text of more than 10 MiB (Shopify/roast#52); with a smaller maximum the text is a name or an id. */
const LONG_TEXT = /string too long\. .* maximum length \d{7}/

/** The first rule that fits counts: names before statuses, since a 429 may also mean an empty account. */
const RULES: readonly Rule[] = [
  {
    // Some statuses mean what they say even when they come with a page.
    when: (facts) => facts.html && (facts.status ?? 0) < 500 && !status(408, 413, 429)(facts),
    code: 'upstream_rejected',
    says: "{vendor}'s network edge refused this server's address with a web page. The credential is not at fault; use another egress or a proxy.",
  },
  {
    when: (facts) =>
      named('context_length_exceeded')(facts) || isTooLong(facts.message) || says(LONG_TEXT)(facts),
    code: 'context_too_long',
    says: 'The conversation is longer than the model accepts.',
  },
  {
    // A 429 that no wait gets past: more tokens in one request than the account may send in a minute.
    when: says(/^Request too large for /),
    code: 'context_too_long',
    says: "The request is larger than the account's limit of tokens a minute. Shorten the conversation, or raise the limit.",
  },
  {
    // The login's own windows are not used up (openai/codex#27598): no wait helps.
    when: (facts) => isOfWorkspace(facts) && usageLimitReset(facts) === undefined,
    code: 'upstream_rejected',
    says: "The login's workspace is out of credits, or reached its spend limit; its owner can change that.",
  },
  {
    when: named('usage_limit_reached'),
    code: 'upstream_rate_limited',
    says: "The plan's usage limit has been reached.",
  },
  {
    // By code too: the type is not always `insufficient_quota`, and in a stream there may be none.
    when: (facts) =>
      isUnpaid(facts.message) ||
      named(
        'insufficient_quota',
        // OpenRouter's
        'payment_required',
        // new-api's, with 403 (popjane/free_chatgpt_api#78)
        'insufficient_user_quota',
        'billing_hard_limit_reached',
        'billing_not_active',
        'credit_balance_exhausted',
        'organization_spend_limit_exceeded',
        'organization_usage_limit_exceeded',
        'project_spend_limit_exceeded',
      )(facts),
    code: 'upstream_rejected',
    says: 'The {vendor} account has no quota left; check its plan and billing.',
  },
  {
    when: named('usage_not_included'),
    code: 'upstream_rejected',
    says: "The login's plan does not include this use.",
  },
  {
    when: named('deactivated_workspace'),
    code: 'upstream_rejected',
    says: "The login's workspace is deactivated.",
  },
  {
    when: named('unsupported_country_region_territory'),
    code: 'upstream_rejected',
    says: '{vendor} does not serve the region of this server.',
  },
  {
    // With a 401 (openai/codex#16951), which a renewal may cure: a token from before the workspace was bound to a region
    // does not name that region (render.ts).
    when: says(/not authorized in this region/i),
    code: 'upstream_auth',
    says: "{vendor} does not serve the login's workspace in this region.",
  },
  {
    // Before the overload: with this type, `slow_down` says that the caller's rate grew too fast. As a fault of the
    // server's, Azure's `rate_limit_exceeded` says that it is full ("no_kv_space", anomalyco/opencode#5526).
    when: (facts) =>
      named('rate_limit_exceeded', 'rate_limit_error', 'too_many_requests', 'requests', 'tokens')(facts) &&
      facts.type !== 'server_error',
    code: 'upstream_rate_limited',
    says: '{vendor} limits the rate of requests.',
  },
  {
    when: named('server_is_overloaded', 'slow_down', 'service_unavailable_error'),
    code: 'upstream_overloaded',
    says: '{vendor} is overloaded.',
  },
  {
    // cyber_policy, bio_policy, content_policy_violation, … `invalid_prompt` comes "for safety reasons", too
    // (microsoft/PyRIT#1463); OpenRouter's is any malformed request (its page "Error Handling" of the Responses API;
    // can1357/oh-my-pi#9041).
    when: ({ code, type, message }) =>
      [code, type].some((name) => /_policy(_violation)?$|^content_filter$/.test(name)) ||
      (code === 'invalid_prompt' && /policy|safety reasons/i.test(message)),
    code: 'upstream_rejected',
    says: '{vendor} refused the conversation by its policy.',
  },
  {
    // In a stream these come without the type `invalid_request_error` (openclaw/openclaw#95587, the SDK's
    // ResponseError).
    when: (facts) =>
      named('invalid_encrypted_content', 'data_residency_mismatch', 'invalid_prompt')(facts) ||
      isStale(facts.message),
    code: 'upstream_rejected',
    says: '{vendor} refused the request.',
  },
  {
    // With a 500 if llama.cpp's model takes none (ggml-org/llama.cpp#15377)
    when: ({ code, message }) => code.includes('image') || /image input is not supported/.test(message),
    code: 'upstream_rejected',
    says: '{vendor} could not use an image of the conversation.',
  },
  {
    when: ({ status, code, message }) =>
      code === 'model_not_found' ||
      ((status === 400 || status === 404) &&
        /model\b.*(not found|not exist|not supported|newer version)/i.test(message)),
    code: 'upstream_rejected',
    says: 'The credential cannot use this model: check its name. Of a login, a new model may want a newer `version` among providers.openai.oauth.headers.',
  },
  {
    // The API fetched a medium too slowly: the next try may be faster (vercel/ai#8857).
    when: says(/^Timeout while downloading/),
    code: 'upstream_timeout',
    says: '{vendor} waited too long for a medium by its address.',
  },
  {
    // `request_timeout` is CLIProxyAPI's code, in a stream for 408.
    when: named('vector_store_timeout', 'request_timeout'),
    code: 'upstream_timeout',
    says: '{vendor} timed out.',
  },
  {
    // `authentication` is OpenRouter's type (wordsOf). CLIProxyAPI has the others in a stream for 401. xAI says so with
    // a 400.
    when: (facts) =>
      facts.status === 401 ||
      named('authentication', 'authentication_error', 'invalid_api_key')(facts) ||
      says(/^Incorrect API key provided/)(facts),
    code: 'upstream_auth',
    says: '{vendor} refused the credential.',
  },
  {
    // Only if the API says so itself: any other 403 is the network edge's, whatever the credential.
    when: (facts) => (facts.status === 403 && facts.isApi) || named('permission_denied')(facts),
    code: 'upstream_auth',
    says: '{vendor} does not permit this credential to do this.',
  },
  { when: status(408, 504), code: 'upstream_timeout', says: '{vendor} timed out.' },
  {
    when: status(413),
    code: 'context_too_long',
    says: 'The request is too large for {vendor}. Shorten the conversation or its attachments.',
  },
  { when: status(429), code: 'upstream_rate_limited', says: '{vendor} limits the rate of requests.' },
  {
    // A 409 is a lock that was not freed in time: the vendor's own client tries again.
    when: (facts) => facts.status === 409 || (facts.status !== null && facts.status >= 500),
    code: 'upstream_overloaded',
    says: '{vendor} could not serve the request.',
  },
  {
    // An error in a stream, or in place of a stream under a good status. A stream's may have its type as its code.
    when: (facts) => (facts.status ?? 0) < 300 && facts.isApi && !named('invalid_request_error')(facts),
    code: 'upstream_overloaded',
    says: '{vendor} failed while it answered.',
  },
]

const OTHERWISE: Omit<Rule, 'when'> = { code: 'upstream_rejected', says: '{vendor} refused the request.' }

/** A response that is not a stream: an HTTP error, or a body of another kind with a good status. */
export function classifyFailure(failure: UpstreamFailure, vendor: string): BatonError {
  return toError(factsOf(failure), vendor)
}

/**
 * An event that ends a stream and holds an `error`; relays may add a `status` and more `headers`, and the ChatGPT path
 * its own (earendil-works/pi#4172).
 */
export function classifyEvent(event: Json, vendor: string, answered: Facts['headers']): BatonError {
  const own = Object.entries(object(event.headers)).flatMap(([name, value]) =>
    typeof value === 'object' ? [] : [[name.toLowerCase(), String(value)]],
  )
  const status = statedStatus(event, event.error)
  const headers = { ...answered, ...Object.fromEntries(own) }
  return toError({ ...wordsOf(event.error, event), status, headers, html: false, isApi: true }, vendor)
}

const statedStatus = ({ status, status_code }: Json, error: unknown): number | null =>
  statusIn(status) ?? statusIn(status_code) ?? statusIn(object(error).code)

function toError(facts: Facts, vendor: string): BatonError {
  const rule = RULES.find(({ when }) => when(facts)) ?? OTHERWISE
  const { status, code, type, message, headers } = facts
  const request_id = headers['x-request-id'] ?? headers['x-oai-request-id'] ?? null
  const says = rule.says.replaceAll('{vendor}', vendor)
  return new BatonError(rule.code, message === '' ? says : `${says} It said: ${message}`, {
    details: {
      upstream: { status, code: code || null, type: type || null, message, request_id },
      ...shouldRetryIn(headers),
    },
    retryAfter: retryAfterOf(facts, rule.code),
  })
}

export function factsOf({ status, headers, body }: UpstreamFailure): Facts {
  const html = /^\s*<(!doctype|html)/i.test(body) || 'cf-mitigated' in headers
  const json = parseRecord(body)
  if (!json) {
    const words = html ? (/<title>([^<]*)<\/title>/i.exec(body)?.[1] ?? '') : body
    const message = presentable(words)
    return { status, headers, html, isApi: false, error: {}, code: '', type: '', message }
  }
  // Whole answers have `error`, too, which is null.
  const error = json.error ?? json.detail ?? json
  const words = wordsOf(Array.isArray(error) ? listed(error) : error, json)
  const isApi = error !== json
  const stated = status < 300 ? statedStatus(json, error) : null
  // Gateways have shapes of their own (Cloudflare's `errors`: anomalyco/opencode#23773).
  const message = words.message || (isApi ? '' : presentable(body))
  return { ...words, message, status: stated ?? status, headers, html, isApi }
}

/** Validation errors, one per field: `{loc: ["body", "model"], msg: "field required"}`. */
const listed = (errors: readonly unknown[]): string =>
  errors
    .map((one) => {
      const { loc, msg, message } = object(one)
      const words = typeof one === 'string' ? one : (string(msg) ?? string(message) ?? '')
      return Array.isArray(loc) ? `${loc.join('.')}: ${words}` : words
    })
    .join('; ')

/**
 * The code, type and message of an error, which may be an object or only a text. OpenRouter has the vendor's words
 * beside it (openai/codex#18307), and the type that its codes leave open: `server_error` is a refused key, too.
 */
function wordsOf(told: unknown, { metadata, error_type: type }: Json) {
  const error = vendorsError({
    metadata,
    type,
    ...(typeof told === 'string' ? { message: told } : object(told)),
  })
  return {
    error,
    code: presentable(string(error.code)),
    type: presentable(string(error.type)),
    message: presentable(string(error.message)),
  }
}

/** Seconds to wait; no clock is needed, since the response says when it was made (`date`). */
function retryAfterOf(facts: Facts, code: ErrorCode): number | undefined {
  if (!isRetryable(code)) return undefined
  const told =
    (named('usage_limit_reached')(facts) ? usageLimitReset(facts) : undefined) ??
    retryAfterIn(facts.headers) ??
    relaysReset(facts) ??
    waitInWords(facts.message)
  if (told === undefined || !(told >= 0)) return code === 'upstream_rate_limited' ? SHORT_WAIT : undefined
  return Math.max(1, Math.ceil(told))
}

/** Seconds to wait if a rate limit does not say how long. */
const SHORT_WAIT = 5

/**
 * Seconds until the limit resets: from the body, relative or absolute; else from the headers on the window that is used
 * up (wire/openai.md 7.1, 7.3).
 */
function usageLimitReset(facts: Facts): number | undefined {
  const { error, headers } = facts
  const relative = number(error.resets_in_seconds)
  if (relative !== undefined) return relative
  const absolute = number(error.resets_at)
  const made = Date.parse(headers.date ?? '')
  if (absolute !== undefined && Number.isFinite(made)) return absolute - made / 1000
  const full = ['secondary', 'primary'].find((one) => Number(headers[`x-codex-${one}-used-percent`]) >= 100)
  if (!full && isOfWorkspace(facts)) return undefined
  const window = full ?? 'primary'
  const at = decimal(headers[`x-codex-${window}-reset-at`]) ?? Number.NaN
  return decimal(headers[`x-codex-${window}-reset-after-seconds`]) ?? (at - made / 1000 || undefined)
}

/** OpenRouter's own limits come without Retry-After, and end at a time in milliseconds (dirge-code/dirge#719). */
function relaysReset({ error, headers }: Facts): number | undefined {
  const { 'X-RateLimit-Reset': reset } = object(object(error.metadata).headers)
  return secondsUntil(instantOf(Number(reset)), headers)
}

/** The limit reached is the workspace's, on credits or spending. */
const isOfWorkspace = (facts: Facts): boolean =>
  named('usage_limit_reached')(facts) &&
  /^workspace_/.test(facts.headers['x-codex-rate-limit-reached-type'] ?? '')

/**
 * "Please try again in 1h12m3.5s", "… in 250ms", "… in 2 minutes"; Azure's "Please retry after 60 seconds"
 * (dyad-sh/dyad#1849).
 */
function waitInWords(message: string): number | undefined {
  const [, words] = /(?:try again in|retry after) ((?:\d+(?:\.\d+)? ?[a-z]+[, ]*)+)/i.exec(message) ?? []
  if (words === undefined) return undefined
  const pieces = words.toLowerCase().matchAll(/([\d.]+) ?(ms|milli|[dhms])/g)
  const sum = [...pieces].reduce(
    (sum, [, amount, unit]) => sum + Number(amount) * (UNITS[unit ?? ''] ?? 0),
    0,
  )
  // Zero if no unit is known.
  return sum || undefined
}

/** Seconds, by the unit's beginning. */
const UNITS: Readonly<Record<string, number>> = { ms: 0.001, milli: 0.001, s: 1, m: 60, h: 3600, d: 86_400 }
