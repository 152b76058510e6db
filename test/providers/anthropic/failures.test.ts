/** Anthropic's failures as errors of the catalogue. */
import t from 'tap'
import { anthropic, anthropicOauth, messagesApi } from '../../../providers/anthropic/index.ts'
import { anthropicFixture } from '../../emulators/anthropic.ts'
import { parserOf } from '../exchange.ts'
import { framed, thrownBy } from '../streams.ts'
import { origin, requestFor } from './exchange.ts'

t.test('errors of another vendor of the same API name this vendor', async (t) => {
  const acme = messagesApi('acme', 'Acme')
  const parser = () => parserOf(acme, origin)
  const told = (...events: Record<string, unknown>[]) =>
    thrownBy(() => {
      const reading = parser()
      for (const frame of framed(...events)) reading.push(frame)
    })
  const begun = (id: string) => ({ type: 'message_start', message: { id } })
  const block = { type: 'content_block_start', index: 0, content_block: { type: 'text', text: 'Hm' } }
  const said = [
    ...[200, 400, 401, 402, 404, 408, 413, 418, 429, 500].map((status) =>
      acme.classify({ status, headers: {}, body: '' }),
    ),
    told({ type: 'error', error: { type: 'overloaded_error' } }),
    told({ type: 'error', error: { type: 'unheard_of' } }),
    told(begun('msg_a'), block, begun('msg_b')),
    thrownBy(() => parser().push({ event: undefined, data: 'x', id: undefined })),
    thrownBy(() => parser().end()),
  ]
  for (const error of said) t.match(error?.message, /\bAcme\b/)
  t.match(acme, { id: 'acme', provider: 'acme' })
})

t.test('failures become errors of the catalogue', async (t) => {
  const fail = (status: number, type: string | null, message: string, headers: Record<string, string> = {}) =>
    anthropic.classify({
      status,
      headers,
      body:
        type === null
          ? message
          : JSON.stringify({ type: 'error', error: { type, message, details: null }, request_id: 'req_1' }),
    })
  const wait = { 'retry-after': '30' }
  const CASES: [number, string | null, string, string, Record<string, string>?][] = [
    [400, 'invalid_request_error', 'messages: bad', 'upstream_rejected'],
    [400, 'invalid_request_error', 'prompt is too long: 210000 tokens > 200000 maximum', 'context_too_long'],
    [
      400,
      'invalid_request_error',
      'input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length or `max_tokens` and try again',
      'context_too_long',
    ],
    [
      400,
      'invalid_request_error',
      "This model's maximum context length is 131072 tokens.",
      'context_too_long',
    ],
    [400, 'invalid_request_error', 'Your request exceeded model token limit: 262144', 'context_too_long'],
    [400, 'invalid_request_error', 'You have reached your specified API usage limits.', 'upstream_rejected'],
    [400, 'invalid_request_error', 'Error', 'upstream_rejected'],
    [400, 'invalid_request_error', 'Your credit balance is too low to access the API.', 'upstream_rejected'],
    [
      400,
      'invalid_request_error',
      "You're out of extra usage. Add more at claude.ai/settings/usage and keep going.",
      'upstream_rejected',
    ],
    [
      400,
      'invalid_request_error',
      'anthropic-workspace-id is required when authenticating with an identity-linked API key',
      'upstream_auth',
    ],
    [401, 'authentication_error', 'OAuth token has expired.', 'upstream_auth'],
    [402, 'billing_error', 'Pay.', 'upstream_rejected'],
    [403, 'permission_error', 'OAuth token has been revoked.', 'upstream_auth'],
    [404, 'not_found_error', 'model: x', 'upstream_rejected'],
    [409, 'conflict_error', 'Again.', 'upstream_overloaded'],
    [413, 'request_too_large', 'Too large.', 'context_too_long'],
    [429, 'rate_limit_error', 'Slow down.', 'upstream_rate_limited', wait],
    [429, 'rate_limit_error', 'Slow down.', 'upstream_rate_limited'],
    [429, 'rate_limit_error', 'Spending cap.', 'upstream_rejected'],
    [429, 'rate_limit_error', 'Spending cap.', 'upstream_rate_limited', wait],
    [429, 'rate_limit_error', 'Extra usage is required for long context requests.', 'upstream_rejected'],
    [429, '1113', 'Insufficient balance or no resource package. Please recharge.', 'upstream_rejected'],
    [500, 'api_error', 'insufficient balance (1008)', 'upstream_rejected'],
    [429, 'exceeded_current_quota_error', 'organization <x> exceeded current quota', 'upstream_rejected'],
    [500, 'api_error', 'Oops.', 'upstream_overloaded'],
    [504, 'timeout_error', 'Late.', 'upstream_timeout'],
    [529, 'overloaded_error', 'Overloaded', 'upstream_overloaded'],
    [401, null, 'no', 'upstream_auth'],
    [402, null, 'no', 'upstream_rejected'],
    [403, null, '<html><title>Blocked</title></html>', 'upstream_rejected'],
    [404, null, 'no', 'upstream_rejected'],
    [408, null, '', 'upstream_timeout'],
    [413, null, '<html></html>', 'context_too_long'],
    [418, 'new_error', 'Tea.', 'upstream_rejected'],
    [429, null, 'slow', 'upstream_rate_limited', wait],
    [502, null, '<html></html>', 'upstream_overloaded'],
    [503, null, '', 'upstream_overloaded'],
    [501, null, '', 'upstream_overloaded'],
    [500, null, 'image input is not supported - hint: …', 'upstream_rejected'],
    [522, null, '<html></html>', 'upstream_overloaded'],
    [520, 'new_error', 'Coffee.', 'upstream_overloaded'],
    [200, null, 'hello', 'upstream_rejected'],
    [200, 'overloaded_error', 'Overloaded', 'upstream_overloaded'],
  ]
  const RETRYABLE = ['upstream_overloaded', 'upstream_rate_limited', 'upstream_timeout']
  for (const [status, type, message, code, headers] of CASES) {
    const failure = fail(status, type, message, headers)
    t.match(failure, { code, retryable: RETRYABLE.includes(code) }, `${status} ${type} ${message}`)
  }

  await t.test('the error’s type decides if a relay gives every failure the same status', async (t) => {
    for (const [, type, message, code, headers] of CASES) {
      if (type === null || type === 'new_error') continue
      for (const status of [400, 500]) t.equal(fail(status, type, message, headers).code, code, type)
    }
    for (const status of [402, 404, 504])
      t.notMatch(fail(status, null, 'no').message, /with status|overloaded/)
    // MiniMax and llama.cpp have types of their own, LiteLLM and Bedrock none.
    for (const [type, message] of [
      ['exceed_context_size_error', 'request (9 tokens) exceeds the available context size (8 tokens)'],
      ['invalid_request_error', 'prompt too long; exceeded max context length by 9 tokens'],
      ['bad_request_error', 'invalid params, context window exceeds limit (2013)'],
      ['', 'litellm.ContextWindowExceededError: prompt is too long: 2 tokens > 1 maximum'],
      ['', 'The model returned the following errors: Input is too long for requested model.'],
      ['', 'Prompt exceeds max length'],
    ] as const)
      t.equal(fail(400, type, message).code, 'context_too_long', 'a status of 400 says as much as the type')
  })

  await t.test(
    'a login that may not be used here, or a spent limit, is not reported as a malformed request',
    async (t) => {
      const policy = [
        'This credential is only authorized for use with Claude Code and cannot be used for other API requests.',
        'Third-party apps now draw from your extra usage, not your plan limits.',
        "You're out of extra usage. Add more at claude.ai/settings/usage and keep going.",
        'Error',
      ]
      for (const words of policy) t.match(fail(400, 'invalid_request_error', words).message, /Use an API key/)
      for (const words of ['Error: bad', 'Validation Error'])
        t.match(fail(400, 'invalid_request_error', words).message, /as invalid/)
      const spent = fail(400, 'invalid_request_error', 'You have reached your specified API usage limits.')
      t.match(spent.message, /spending limit/)
      const poor = 'Your credit balance is too low to access the Anthropic API.'
      t.match(fail(400, 'invalid_request_error', poor).message, /^Anthropic refused .* billing/)
    },
  )

  await t.test('an error in a stream has the status that its code is', async (t) => {
    const read = (error: Record<string, unknown>) =>
      thrownBy(() => framed({ error }).flatMap((frame) => parserOf(anthropic, origin).push(frame)))
    const words = { message: 'litellm.RateLimitError: slow', type: 'None' }
    const usedUp = {
      'anthropic-ratelimit-tokens-remaining': '0',
      'anthropic-ratelimit-tokens-reset': '2026-12-01T06:00:30Z',
    }
    const tooLong = { message: 'Prompt exceeds max length', code: '1261' }
    t.match(
      read(tooLong),
      { code: 'context_too_long' },
      'a chat that is too long is known by its words alone',
    )
    for (const [code, meant, status] of [
      ['429', 'upstream_rate_limited', 429],
      [402, 'upstream_rejected', 402],
      ['1302', 'upstream_overloaded', null],
      [null, 'upstream_overloaded', null],
    ] as const)
      t.match(read({ ...words, code }), { code: meant, details: { upstream: { status } } })
    const plain = JSON.stringify({ error: { ...words, code: 429 } })
    t.match(
      anthropic.classify({ status: 200, headers: {}, body: plain }),
      { code: 'upstream_rate_limited', details: { upstream: { status: 429 } } },
      '… and so has one in place of a stream',
    )
    const headers = { 'request-id': 'req_3', date: 'Tue, 01 Dec 2026 06:00:00 GMT', ...usedUp }
    const parser = parserOf(anthropic, origin, headers)
    t.match(
      thrownBy(() => framed({ error: { type: 'rate_limit_error' } }).flatMap((frame) => parser.push(frame))),
      { retryAfter: 30, details: { upstream: { request_id: 'req_3' } } },
      '… and whatever else the response said before',
    )
  })

  await t.test('where the answer counts as part of the window, less of an answer is asked for', async (t) => {
    const amend = (message: string, request = requestFor({ model: 'glm-9' })) =>
      anthropic.amend({ status: 400, headers: {}, body: JSON.stringify({ error: { message } }) }, request)
    const vllm = (used: string) =>
      `This model's maximum context length is 40000 tokens. However, you requested 32000 output tokens and your prompt contains ${used} input tokens.`
    for (const [message, most] of [
      ['input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease them', 21041],
      [vllm('30000'), 10_000],
      [vllm('at least 8001'), 3999],
      [vllm('990000 characters (more than 960000 characters, which is the upper bound for 8000'), 4000],
      [
        "You passed 8001 input tokens and requested 32000 output tokens. However, the model's context length is only 40000 tokens, resulting in a maximum input length of 8000 tokens.",
        3999,
      ],
      [
        "'max_tokens' is too large: 32000. This model's maximum context length is 20000 tokens and your request has 16614 input tokens (32000 > 20000 - 16614).",
        3386,
      ],
      [
        "Requested token count exceeds the model's maximum context length of 40000 tokens. You requested a total of 62000 tokens: 30000 tokens from the input messages and 32000 tokens for the completion.",
        10_000,
      ],
      [
        "This model's maximum context length is 40000 tokens. However, you requested 62000 tokens (30000 in the messages, 32000 in the completion).",
        10_000,
      ],
      ["Request 30000 input tokens exceeds the model's maximum context length 40000", 10_000],
    ] as const) {
      const amended = amend(message)
      t.match(amended && anthropic.render(amended).body, { max_tokens: most }, message)
      t.equal(amended?.reported, undefined, 'other chats leave other room')
      const less = amended && amend(message, amended)
      t.equal(less && amend(message, less), null, 'an answer that was not short enough is made so once more')
    }
    for (const message of [vllm('39001'), vllm('50000'), 'prompt is too long: 2 > 1'])
      t.equal(amend(message), null, 'a chat that leaves no room is too long')
    const local = amend(
      'max_tokens=32000cannot be greater than max_model_len=max_total_tokens=16384. Please request fewer output tokens.',
    )
    t.match(local && anthropic.render(local).body, { max_tokens: 16_384 }, 'of the whole window at most')
    for (const message of [
      "This model's maximum context length is 16384 tokens. However, you requested 16384 output tokens and your prompt contains 90 characters (more than 0 characters, which is the upper bound for 0 input tokens).",
      "You passed 90 input characters and requested 16384 output tokens. However, the model's context length is only 16384 tokens, resulting in a maximum input length of 0 tokens (at most 0 characters).",
    ]) {
      const fit = local && amend(message, local)
      t.match(fit && anthropic.render(fit).body, { max_tokens: 2048 }, message)
      const beside = message
        .replaceAll('16384 output', '2048 output')
        .replace(/\b0 (?=input t|tokens)/, '14336 ')
      t.equal(fit && amend(beside, fit), null, 'a chat that leaves less is too long')
    }
  })

  await t.test('the words of the vendor behind a relay count', async (t) => {
    const own = (type: string, message: string) => JSON.stringify({ type: 'error', error: { type, message } })
    const openRouter = (raw: string) => ({ message: 'Provider returned error', code: 400, metadata: { raw } })
    const liteLlm = (words: string) => ({ message: words, type: 'None', param: 'None', code: '400' })
    const tooLong = own('invalid_request_error', 'prompt is too long: 2 tokens > 1 maximum')
    const said = 'prompt is too long: 2 tokens > 1 maximum'
    for (const [status, error, code, words] of [
      [400, openRouter(tooLong), 'context_too_long', said],
      [
        400,
        openRouter('{"message":"Input must be a string"}'),
        'upstream_rejected',
        'Input must be a string',
      ],
      [
        429,
        openRouter('x is rate-limited upstream.'),
        'upstream_rate_limited',
        'x is rate-limited upstream.',
      ],
      [502, openRouter(own('overloaded_error', 'Overloaded')), 'upstream_overloaded', 'Overloaded'],
      [400, liteLlm(tooLong), 'context_too_long', said],
      [
        400,
        liteLlm(`litellm.BadRequestError: AnthropicException - ${tooLong}No fallback={}`),
        'context_too_long',
        said,
      ],
    ] as const) {
      const failure = anthropic.classify({ status, headers: {}, body: JSON.stringify({ error }) })
      t.match(failure, { code, details: { upstream: { message: words } } })
    }
  })

  await t.test("the vendor's words are kept without tokens", async (t) => {
    const { details, message } = fail(401, 'authentication_error', 'bad key sk-ant-api03-abc_DEF-1')
    t.strictSame(details, {
      upstream: {
        status: 401,
        type: 'authentication_error',
        code: null,
        message: 'bad key ***',
        request_id: 'req_1',
      },
    })
    t.match(message, /refused the credential.*It said: bad key \*\*\*$/)
    t.match(fail(403, null, '<html><title>Blocked</title></html>').details, {
      upstream: { message: 'Blocked', request_id: null },
    })
    t.match(fail(200, null, 'hello').message, /other than a stream of events\. It said: hello$/)
    t.match(fail(418, null, '').message, /^Anthropic refused the request with status 418\.$/)
    t.match(fail(502, null, ' <html>Bad gateway</html>').details, { upstream: { message: '' } })
    t.match(fail(502, null, 'sk-ant-a, 2 < 3, %20sk-ant-b').message, /said: \*\*\*, 2 < 3, %20\*\*\*$/)
    const endless = fail(400, 'invalid_request_error', ` ${'x'.repeat(3000)}`).details
    t.strictSame(endless?.upstream, {
      status: 400,
      type: 'invalid_request_error',
      code: null,
      message: 'x'.repeat(1000),
      request_id: 'req_1',
    })
    t.match(fail(500, null, '', { 'request-id': 'req_2' }).details, {
      upstream: { message: '', request_id: 'req_2' },
    })
    const body = {
      error: { type: 'invalid_request_error', message: 'x', details: { error_code: 'tool_name_conflict' } },
    }
    const coded = anthropic.classify({ status: 400, headers: {}, body: JSON.stringify(body) })
    t.match(coded.details, { upstream: { code: 'tool_name_conflict' } })
  })

  await t.test('the time to wait comes from the headers, or is unknown', async (t) => {
    const limit = (headers: Record<string, string>) => fail(429, 'rate_limit_error', 'x', headers)
    t.equal(limit({ 'retry-after': '1.2' }).retryAfter, 2)
    t.equal(limit({ 'retry-after-ms': '1500' }).retryAfter, 2)
    t.equal(limit({ 'retry-after-ms': '0', 'retry-after': '30' }).retryAfter, 30)
    for (const status of [409, 500, 502, 503, 504, 524, 529]) {
      t.equal(
        fail(status, null, '', { 'retry-after': '40' }).retryAfter,
        40,
        `a ${status} may name a wait, too`,
      )
    }
    t.equal(fail(529, 'overloaded_error', '', { 'retry-after-ms': '2500' }).retryAfter, 3)
    t.equal(fail(529, 'overloaded_error', '').retryAfter, undefined)
    const dates = { 'retry-after': 'Sat, 21 Nov 2026 10:01:00 GMT', date: 'Sat, 21 Nov 2026 10:00:00 GMT' }
    t.equal(limit(dates).retryAfter, 60)
    t.match(limit({ 'retry-after': 'soon' }), { code: 'upstream_rate_limited', retryAfter: undefined })
    t.match(limit({ 'x-should-retry': 'true' }), {
      code: 'upstream_rate_limited',
      retryAfter: undefined,
      details: { should_retry: true },
    })
    t.match(limit({ 'x-should-retry': 'false' }).details, { should_retry: false })
    t.notOk('should_retry' in (limit({ 'x-should-retry': 'perhaps' }).details ?? {}))
    const counters = {
      'anthropic-ratelimit-requests-remaining': '0',
      'anthropic-ratelimit-requests-reset': '2026-11-21T10:00:05Z',
      'anthropic-ratelimit-tokens-remaining': '5',
      'anthropic-ratelimit-tokens-reset': '2026-11-21T11:00:00Z',
    }
    t.match(limit({ ...counters, 'anthropic-ratelimit-input-remaining': '0' }), {
      code: 'upstream_rate_limited',
      details: { reset_at: '2026-11-21T10:00:05.000Z' },
    })
    const more = { ...counters, 'anthropic-ratelimit-tokens-remaining': '0' }
    for (const headers of [more, Object.fromEntries(Object.entries(more).reverse())])
      t.match(
        limit(headers).details,
        { reset_at: '2026-11-21T11:00:00.000Z' },
        'the limit that is lifted last counts',
      )
    t.notOk('reset_at' in (limit({ 'anthropic-ratelimit-tokens-remaining': '0' }).details ?? {}))
    t.equal(limit(counters).retryAfter, undefined)
    t.equal(limit({ ...counters, date: 'Sat, 21 Nov 2026 09:59:00 GMT' }).retryAfter, 65)
    t.equal(limit({ ...counters, 'retry-after': '7', date: 'Sat, 21 Nov 2026 09:59:00 GMT' }).retryAfter, 7)
    for (const reset of ['never', '0', '1795285200000000'])
      t.match(
        limit({
          'anthropic-ratelimit-unified-status': 'rejected',
          'anthropic-ratelimit-unified-reset': reset,
        }),
        { code: 'upstream_rate_limited', details: { reset_at: undefined } },
        reset,
      )
    const { status, headers, body } = anthropicFixture('error-429.json')
    for (const more of [{}, { 'anthropic-ratelimit-unified-overage-reset': '1796083200' }]) {
      const failure = { status, headers: { ...headers, ...more }, body: JSON.stringify(body) }
      t.match(anthropicOauth.classify(failure), {
        code: 'upstream_rate_limited',
        retryAfter: 5318,
        details: { reset_at: new Date(1795285200000).toISOString() },
      })
    }
  })
})
