/** Gemini's failures as errors of the catalogue. */
import t from 'tap'
import { gemini } from '../../../providers/gemini/index.ts'
import { fixture } from './exchange.ts'

const classify = (body: unknown, status = 400, headers: Record<string, string> = {}) =>
  gemini.classify({ status, headers, body: typeof body === 'string' ? body : JSON.stringify(body) })
const error = (code: number, message: string, extra: object = {}) => ({ error: { code, message, ...extra } })
const because = (reason: string, metadata: object = {}) => ({
  details: [{ '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason, metadata }],
})

t.test('recorded failures become errors of the catalogue, which keep the words and links', async (t) => {
  const read = (name: string, status: number) => classify(fixture(name), status)
  t.match(read('error-400-thought-signature.json', 400), {
    code: 'upstream_rejected',
    details: { upstream: { status: 400, code: 'INVALID_ARGUMENT', message: /missing a thought_signature/ } },
  })
  t.match(read('error-403-subscription-required.json', 403), { code: 'upstream_auth', message: /licence/ })
  t.match(read('error-403-tos-violation.json', 403), {
    code: 'upstream_auth',
    details: { upstream: { reason: 'TOS_VIOLATION', links: [{ url: 'https://forms.example/appeal' }] } },
  })
  const links = [
    { text: 'Verify your account', url: 'https://accounts.google.com/signin/continue?example=1' },
    { text: 'Learn more', url: 'https://support.google.com/accounts?p=al_alert' },
  ]
  const { details } = read('error-403-validation-required.json', 403)
  t.match(details, { upstream: { reason: 'VALIDATION_REQUIRED' } })
  t.strictSame((details as { upstream: { links: unknown } }).upstream.links, links)
  t.match(read('error-429.json', 429), { code: 'upstream_rate_limited', retryAfter: 31448 })
  t.match(read('error-429-rate-limit.json', 429), { code: 'upstream_rate_limited', retryAfter: 4 })
  t.match(read('error-429-public.json', 429), { code: 'upstream_rate_limited', retryAfter: 34 })
  const capacity = read('error-429-array.json', 429)
  t.match(capacity, {
    code: 'upstream_overloaded',
    details: { upstream: { reason: 'MODEL_CAPACITY_EXHAUSTED' } },
  })
})

t.test('of thousands of quotas and links some are told', async (t) => {
  const many = Array.from({ length: 5_000 }, (_, i) => i)
  const quotas = {
    '@type': 'type.googleapis.com/google.rpc.QuotaFailure',
    violations: many.map((i) => ({ quotaId: `PerMinute-${i}` })),
  }
  const help = {
    '@type': 'type.googleapis.com/google.rpc.Help',
    links: many.map((i) => ({ description: 'Help', url: `https://help.example/${i}` })),
  }
  const body = { error: { code: 429, status: 'RESOURCE_EXHAUSTED', message: 'No.', details: [quotas, help] } }
  const { upstream } = classify(JSON.stringify(body), 429).details as {
    upstream: { quotas: string[]; links: object[] }
  }
  t.equal(upstream.quotas.length, 20)
  t.equal(upstream.links.length, 20)
})

t.test('a link for help is found wherever Google puts it', async (t) => {
  const linksOf = (detail: object) => {
    const body = { error: { code: 403, message: 'Verify.', status: 'PERMISSION_DENIED', details: [detail] } }
    const { details } = classify(JSON.stringify(body), 403)
    return (details as { upstream: { links: unknown } }).upstream.links
  }
  const info = (metadata: object) => ({
    '@type': 'type.googleapis.com/google.rpc.ErrorInfo',
    reason: 'VALIDATION_REQUIRED',
    metadata,
  })
  const url = 'https://accounts.example/verify'
  t.same(linksOf(info({ validation_url: url })), [{ text: 'Verify the account', url }])
  t.same(linksOf(info({ validation_link: url })), [{ text: 'Verify the account', url }])
  t.same(linksOf(info({ validation_learn_more_url: url })), [{ text: 'Learn more', url }])
  t.same(linksOf(info({ appeal_url: url })), [{ text: 'Appeal', url }])
  t.same(
    linksOf(info({ appeal_url: url, appeal_url_link_text: 'Object', validation_learn_more_url: url })),
    [{ text: 'Object', url }],
    'an address is told once, as what it is first',
  )
  const help = { '@type': 'type.googleapis.com/google.rpc.Help', links: [{ url }] }
  t.same(linksOf(help), [{ text: 'Help', url }])
})

/** Body, status, expected code, and words that the message must hold. */
const FAILURES: readonly (readonly [unknown, number, string, RegExp?])[] = [
  [
    error(400, 'API key not valid. Please pass a valid API key.', because('API_KEY_INVALID')),
    400,
    'upstream_auth',
  ],
  [error(400, 'API key expired. Please renew the API key.'), 400, 'upstream_auth'],
  [error(400, 'Bad.', because('API_KEY_INVALID')), 400, 'upstream_auth', /this API key/],
  [error(403, 'Blocked.', because('API_KEY_SERVICE_BLOCKED')), 403, 'upstream_auth', /may not be used/],
  [error(403, 'Your project has been denied access. Please contact support.'), 403, 'upstream_auth'],
  [error(401, 'Expired.', because('ACCESS_TOKEN_TYPE_UNSUPPORTED')), 401, 'upstream_auth'],
  [error(403, 'Scopes.', because('ACCESS_TOKEN_SCOPE_INSUFFICIENT')), 403, 'upstream_auth', /its own path/],
  [
    error(403, 'Permission denied on resource project default.', because('CONSUMER_INVALID')),
    403,
    'upstream_auth',
    /project_id/,
  ],
  [
    error(403, 'Cloud Code Private API has not been used.', because('SERVICE_DISABLED')),
    403,
    'upstream_auth',
  ],
  [error(403, 'The caller does not have permission'), 403, 'upstream_auth'],
  [
    error(403, 'You do not have permission to access the File abc or it may not exist.'),
    403,
    'upstream_rejected',
    /expired/,
  ],
  [error(403, 'Off.', because('SERVICE_DISABLED')), 403, 'upstream_auth', /switched off in the Google Cloud/],
  [error(403, 'Who?', because('VALIDATION_REQUIRED')), 403, 'upstream_auth', /to be verified first/],
  [error(403, 'Gone.', because('UNSUPPORTED_CLIENT')), 403, 'upstream_auth', /API key instead/],
  [error(403, 'Used up.', because('QUOTA_EXHAUSTED')), 403, 'upstream_rate_limited'],
  [error(403, 'Slow.', { errors: [{ reason: 'rateLimitExceeded' }] }), 403, 'upstream_rate_limited'],
  [error(400, 'API key not valid. Please pass a valid API key.'), 400, 'upstream_auth', /this API key/],
  [error(400, 'API Key not found.'), 400, 'upstream_auth', /this API key/],
  [error(400, 'It exceeds the maximum number of tokens allowed (8).'), 400, 'context_too_long'],
  [error(400, 'The input token count (9) exceeds the maximum of 8.'), 400, 'context_too_long'],
  [
    error(400, 'The input token count is 1251952 but model only supports up to 1048576. Reduce it.'),
    400,
    'context_too_long',
  ],
  [error(429, 'No capacity available for model x on the server'), 429, 'upstream_overloaded'],
  [error(408, 'Late.'), 408, 'upstream_timeout'],
  [error(400, 'Bad.'), 400, 'upstream_rejected', /^Gemini rejected the request\. It said: Bad\.$/],
  [error(400, '17'), 400, 'upstream_rejected', /said: 17$/],
  [error(400, 'Bad.'), 503, 'upstream_overloaded'],
  [error(400, '[at] {here'), 400, 'upstream_rejected', /said: \[at\] \{here$/],
  [{ ineligibleTiers: [{ reasonCode: 'UNSUPPORTED_CLIENT' }] }, 200, 'upstream_auth', /API key instead/],
  [
    error(429, 'This client is no longer supported for Gemini Code Assist for individuals.'),
    429,
    'upstream_auth',
  ],
  [
    error(400, 'User location is not supported for the API use.', { status: 'FAILED_PRECONDITION' }),
    400,
    'upstream_rejected',
  ],
  [
    [error(400, 'The input token count (1054016) exceeds the maximum number of tokens allowed (1048576).')],
    400,
    'context_too_long',
  ],
  [
    error(400, 'Request payload size exceeds the limit: 20971520 bytes.', { status: 'INVALID_ARGUMENT' }),
    400,
    'context_too_long',
    /Shorten the conversation/,
  ],
  [
    error(400, "The request's total referenced files bytes are too large to be read"),
    400,
    'context_too_long',
  ],
  [{ error: { status: 'RESOURCE_EXHAUSTED', message: 'Slow.' } }, 200, 'upstream_rate_limited'],
  [{ error: { status: 'UNAVAILABLE' } }, 200, 'upstream_overloaded'],
  ...(
    [
      [0, 'OK', 'upstream_rejected'],
      [1, 'CANCELLED', 'upstream_overloaded'],
      [2, 'UNKNOWN', 'upstream_overloaded'],
      [3, 'INVALID_ARGUMENT', 'upstream_rejected'],
      [4, 'DEADLINE_EXCEEDED', 'upstream_timeout'],
      [5, 'NOT_FOUND', 'upstream_rejected'],
      [6, 'ALREADY_EXISTS', 'upstream_rejected'],
      [7, 'PERMISSION_DENIED', 'upstream_auth'],
      [8, 'RESOURCE_EXHAUSTED', 'upstream_rate_limited'],
      [9, 'FAILED_PRECONDITION', 'upstream_rejected'],
      [10, 'ABORTED', 'upstream_rejected'],
      [11, 'OUT_OF_RANGE', 'upstream_rejected'],
      [12, 'UNIMPLEMENTED', 'upstream_overloaded'],
      [13, 'INTERNAL', 'upstream_overloaded'],
      [14, 'UNAVAILABLE', 'upstream_overloaded'],
      [15, 'DATA_LOSS', 'upstream_overloaded'],
      [16, 'UNAUTHENTICATED', 'upstream_auth'],
    ] as const
  ).flatMap(([code, status, meant]) =>
    [{ code }, { status }].map(
      (told) => [{ error: told }, 200, meant, code === 0 ? /event stream/ : /^(?!.*event stream)/] as const,
    ),
  ),
  [{ error: { status: 'SOMETHING_NEW' } }, 200, 'upstream_rejected'],
  [error(404, 'Requested entity was not found.'), 404, 'upstream_rejected', /not available to this account/],
  [error(429, 'Quota exceeded for metric: x, limit: 0, model: y'), 429, 'upstream_rejected', /no quota/],
  [error(429, 'Your prepayment credits are depleted.'), 429, 'upstream_rejected', /AI Studio/],
  [error(429, 'Your project has exceeded its monthly spending cap.'), 429, 'upstream_rejected', /AI Studio/],
  [error(429, 'Credits.', because('INSUFFICIENT_G1_CREDITS_BALANCE')), 429, 'upstream_rejected'],
  [error(403, 'Too fast.', because('RATE_LIMIT_EXCEEDED')), 403, 'upstream_rate_limited'],
  [error(499, 'The operation was cancelled.'), 499, 'upstream_overloaded'],
  [error(500, 'Internal error encountered.'), 500, 'upstream_overloaded'],
  [error(429, 'Full.', because('MODEL_CAPACITY_EXHAUSTED')), 429, 'upstream_overloaded'],
  [error(429, 'Full.', because('MODEL_CAPACITY_EXCEEDED')), 429, 'upstream_overloaded'],
  [error(503, 'No capacity available for model x on the server'), 503, 'upstream_overloaded'],
  [error(504, 'Deadline expired.'), 504, 'upstream_timeout'],
  [
    '<html><head><style>a{}</style><script>b()</script></head><body>Error 413 (Request Too Large)!!1</body></html>',
    413,
    'context_too_long',
    /said: Error 413/,
  ],
  ['<style>a{} <title>not closed', 502, 'upstream_overloaded', /moment\.$/],
  ['<p>2 < 3</p> <b>is so', 502, 'upstream_overloaded', /said: 2 < 3 is so$/],
  ['<html><title>Error 502 (Server Error)!!1</title></html>', 502, 'upstream_overloaded', /said: Error 502/],
  ['', 503, 'upstream_overloaded'],
  [error(503, 'Overloaded.'), 200, 'upstream_overloaded'],
  [{ candidates: [] }, 200, 'upstream_rejected', /something other than an event stream/],
  [error(418, 'Teapot.'), 418, 'upstream_rejected'],
  [error(400, 'New.', because('toString')), 400, 'upstream_rejected'],
  [
    error(500, JSON.stringify([error(429, JSON.stringify(error(429, 'Deep.', because('QUOTA_EXHAUSTED'))))])),
    429,
    'upstream_rate_limited',
    /said: Deep\.$/,
  ],
  [
    '{\u00a0"error":\u00a0{"code":403,"message":"Broken.",,"details":[{" @type ":"x/google.rpc.ErrorInfo","reason":"TOS_VIOLATION"}]}}',
    403,
    'upstream_auth',
    /terms/,
  ],
]

t.test('each kind of failure that the wire page lists becomes its code, without keys', async (t) => {
  for (const [body, status, code, words] of FAILURES) {
    const found = classify(body, status)
    t.equal(found.code, code, JSON.stringify(body).slice(0, 90))
    if (words) t.match(found.message, words)
  }
  const key = `AIza${'Sy'.repeat(18)}`
  const leaked = classify(
    error(403, `Consumer 'api_key:short' has been suspended; ${key}, ya29.abc-def, AQ.${'Ab'.repeat(12)}`),
    403,
  )
  t.match(leaked.message, /'api_key:\*\*\*' has been suspended; \*\*\*, \*\*\*, \*\*\*$/)
})

t.test('the time to wait is read from wherever Google puts it', async (t) => {
  const retry = (retryDelay: string) => ({
    details: [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay }],
  })
  const quota = (quotaId: string, more: object[] = []) => ({
    details: [{ '@type': 'x/google.rpc.QuotaFailure', violations: [{ quotaId }] }, ...more],
  })
  const wait = (message: string, extra: object = {}, headers = {}) =>
    classify(error(429, message, extra), 429, headers).retryAfter
  t.equal(wait('x', retry('34.07s')), 35)
  t.equal(wait('x', retry('900ms')), 1)
  t.equal(wait('x', because('RATE_LIMIT_EXCEEDED', { quotaResetDelay: '161h39m41.3s' })), 581_982)
  t.equal(wait('Individual quota reached. Resets in 9h22m20s.'), 33_740)
  t.equal(wait('Please retry in 34.424813612s.'), 35)
  t.equal(wait('Your quota will reset after 33740.910400305s.'), 33_741)
  t.equal(wait('x', {}, { 'retry-after': '7' }), 7)
  const date = 'Sat, 21 Nov 2026 10:00:00 GMT'
  t.equal(wait('x', {}, { 'retry-after': 'Sat, 21 Nov 2026 10:01:00 GMT', date }), 60)
  const reset = because('QUOTA_EXHAUSTED', { quotaResetTimeStamp: '2026-11-21T10:30:00Z' })
  t.equal(wait('x', reset, { date }), 1800)
  const soon = because('QUOTA_EXHAUSTED', { quotaResetTimeStamp: '2026-11-21T10:00:00.4Z' })
  t.equal(wait('x', soon, { date }), 1, 'a part of a second is rounded up')
  t.equal(
    wait('x', reset),
    3600,
    'without a Date header the reset time cannot be read, and the wait is an hour',
  )
  t.equal(wait('x', because('RATE_LIMIT_EXCEEDED', { quotaResetTimeStamp: '2026-11-21T10:30:00Z' })), 5)
  t.equal(wait('x', quota('GenerateRequestsPerMinutePerProjectPerModel-FreeTier')), 60)
  t.equal(
    wait('x', quota('RequestsPerDay', [...retry('12s').details])),
    3600,
    'a short wait does not count for a quota of a day',
  )
  t.equal(wait('x', quota('DailyRequests')), 3600)
  t.equal(wait('x', quota('RequestsPerDay', [...retry('7200s').details])), 7200)
  t.match(classify(error(429, 'x', quota('RequestsPerDay')), 429).details, {
    upstream: { quotas: ['RequestsPerDay'] },
  })
  t.equal(wait('x', quota('InputTokensPerModel')), 5)
  t.equal(wait('x', quota('RequestsPerMinute', because('QUOTA_EXHAUSTED').details)), 3600)
  t.equal(wait('nothing said'), 5)
  t.equal(classify(error(503, 'x', retry('2s')), 503).retryAfter, 2)
  t.equal(classify(error(504, 'x', retry('2s')), 504).retryAfter, 2)
  t.equal(classify(error(503, 'x'), 503).retryAfter, undefined)
  t.equal(classify(error(504, 'x'), 504).retryAfter, undefined)
  t.equal(classify(error(400, 'x', retry('2s')), 400).retryAfter, undefined)
})
