/** OpenAI's failures as errors of the catalogue, and what is sent again after a failure. */
import t from 'tap'
import { chatgpt, openai, responsesApi } from '../../../providers/openai/index.ts'
import { publicBody } from '../../../providers/openai/render.ts'
import type { MessageInput, Part } from '../../../src/chat/message.ts'
import type { UpstreamFailure } from '../../../src/provider.ts'
import { parserOf, said } from '../exchange.ts'
import { framed, thrownBy } from '../streams.ts'
import { fixture, origin, parse, requestFor } from './exchange.ts'

t.test('errors of another vendor of the same API name this vendor', async (t) => {
  const acme = responsesApi('acme', 'Acme')
  const parser = parserOf(acme, origin)
  const event = { type: 'error', code: 'server_is_overloaded', message: '' }
  const said = [
    acme.classify({ status: 401, headers: {}, body: '' }),
    thrownBy(() => framed(event).flatMap((frame) => parser.push(frame))),
    thrownBy(() => parserOf(acme, origin).push({ event: undefined, data: 'x', id: undefined })),
    thrownBy(() => parserOf(acme, origin).end()),
  ]
  for (const error of said) t.match(error?.message, /Acme/)
  t.match(acme, { id: 'acme', provider: 'acme' })
})

t.test('failures become codes of the catalogue', async (t) => {
  const limit = JSON.parse(fixture('04-usage-limit-429.headers.json')) as { headers: Record<string, string> }
  const json = (error: unknown) => JSON.stringify({ error })
  const tooLong = (param: string, most: number) => ({
    message: `Invalid '${param}': string too long. Expected a string with maximum length ${most}, but got a string with length 62114761 instead.`,
    param,
    code: 'string_above_max_length',
  })
  const rows: [
    status: number,
    body: string,
    code: string,
    says?: RegExp,
    headers?: Record<string, string>,
  ][] = [
    [
      400,
      '{"detail":"Unsupported parameter: temperature"}',
      'upstream_rejected',
      /Unsupported parameter: temp/,
    ],
    [
      400,
      '{"detail":"The \'gpt-x\' model is not supported when using Codex"}',
      'upstream_rejected',
      /cannot use this model/,
    ],
    [
      400,
      '{"detail":"The model requires a newer version of Codex."}',
      'upstream_rejected',
      /`version` among providers\.openai\.oauth\.headers/,
    ],
    [
      400,
      json({ message: 'Timeout while downloading https://a.example/b.png.', code: 'invalid_value' }),
      'upstream_timeout',
      /waited too long for a medium/,
    ],
    [
      404,
      json({ message: 'Model not found gpt-x' }),
      'upstream_rejected',
      /cannot use this model: check its name/,
    ],
    [
      400,
      json({ code: 'invalid_function_parameters', message: 'bad' }),
      'upstream_rejected',
      /refused the request/,
    ],
    [400, json({ code: 'cyber_policy', message: 'no' }), 'upstream_rejected', /policy/],
    ...['It violates our usage policy.', "We've limited access for safety reasons."].map(
      (message): (typeof rows)[number] => [
        400,
        json({ code: 'invalid_prompt', message }),
        'upstream_rejected',
        /by its policy/,
      ],
    ),
    [
      400,
      json({ code: 'invalid_prompt', message: 'Bad input.' }),
      'upstream_rejected',
      /refused the request\. It/,
    ],
    [
      200,
      json({ code: 'invalid_prompt', message: 'Bad input.' }),
      'upstream_rejected',
      /refused the request\. It/,
    ],
    [400, json({ code: 'invalid_image_url', message: 'no' }), 'upstream_rejected', /image/],
    [
      500,
      json({ code: 500, message: 'image input is not supported - hint: …', type: 'server_error' }),
      'upstream_rejected',
      /image of the conversation/,
    ],
    [400, json({ code: 'context_length_exceeded', message: 'x' }), 'context_too_long'],
    [400, json({ message: "This model's maximum context length is 9 tokens." }), 'context_too_long'],
    ...[
      'request (9 tokens) exceeds the available context size (8 tokens), try increasing it',
      'prompt too long; exceeded max context length by 9 tokens',
      "The input (9 tokens) is longer than the model's context length (8 tokens).",
      'Input length 9 exceeds the maximum allowed input length of 8 tokens',
      'Input length (9 tokens) exceeds the maximum allowed length (8 tokens). Use a shorter input.',
      'The engine prompt length 9 exceeds the max_model_len 8. Please reduce prompt.',
      'The decoder prompt (length 9) is longer than the maximum model length of 8. Make sure that `max_model_len` is no smaller.',
      'Trying to keep the first 9 tokens when context the overflows. However, the model is loaded with context length of only 8.',
      'Cannot truncate prompt with n_keep (9) >= n_ctx (8)',
      '<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 8]',
      'prompt token count of 9 exceeds the limit of 8',
      'The input token count (9) exceeds the maximum number of tokens allowed (8).',
      'Unable to submit request because the input token count is 9 but model only supports up to 8.',
    ].map((message): (typeof rows)[number] => [400, json({ message }), 'context_too_long']),
    [400, json({ message: 'user_id exceeds the maximum allowed length of 64.' }), 'upstream_rejected'],
    [
      400,
      '{"code":"invalid-argument","error":"This model\'s maximum prompt length is 9 but the request contains 12 tokens."}',
      'context_too_long',
    ],
    [
      400,
      '{"code":"invalid-argument","error":"Incorrect API key provided. You can obtain an API key elsewhere."}',
      'upstream_auth',
      /refused the credential/,
    ],
    [
      400,
      '{"error":"The number of tokens to keep from the initial prompt is greater than the context length."}',
      'context_too_long',
    ],
    [400, json(tooLong('input[0].content', 10_485_760)), 'context_too_long'],
    [400, json(tooLong('tools[0].name', 64)), 'upstream_rejected'],
    [
      400,
      json({ message: 'Your input exceeds the context window of this model.' }),
      'context_too_long',
      /longer than the model accepts/,
    ],
    [
      400,
      json({ message: 'Input tokens exceed the configured limit of 272000 tokens. Your messages …' }),
      'context_too_long',
    ],
    [404, json({ message: 'The model `x` does not exist' }), 'upstream_rejected', /cannot use this model/],
    [429, json({ code: 'server_is_overloaded' }), 'upstream_overloaded', /is overloaded\.$/],
    [429, json({ code: 'slow_down' }), 'upstream_overloaded'],
    [429, json({ code: 'slow_down', type: 'rate_limit_error' }), 'upstream_rate_limited', /limits the rate/],
    [
      429,
      json({ code: 'project_spend_limit_exceeded', type: 'rate_limit_error' }),
      'upstream_rejected',
      /plan and billing/,
    ],
    [400, json({ type: 'service_unavailable_error' }), 'upstream_overloaded'],
    [429, json({ code: 'billing_hard_limit_reached' }), 'upstream_rejected', /plan and billing/],
    [429, json({ code: 'billing_not_active' }), 'upstream_rejected', /plan and billing/],
    ...(
      [
        [403, 'run out of'],
        [429, 'used all available'],
      ] as const
    ).map(([status, spent]): (typeof rows)[number] => [
      status,
      `{"code":"permission-denied","error":"Your team has either ${spent} credits or reached its monthly spending limit."}`,
      'upstream_rejected',
      /plan and billing/,
    ]),
    [
      403,
      json({ code: 'insufficient_user_quota', type: 'v_api_error' }),
      'upstream_rejected',
      /plan and billing/,
    ],
    [400, json({ code: 'misalignment_policy_violation' }), 'upstream_rejected', /policy/],
    [400, json({ type: 'tokens' }), 'upstream_rate_limited'],
    [400, json({ type: 'requests' }), 'upstream_rate_limited'],
    [401, json({ code: 'token_invalidated', message: 'again' }), 'upstream_auth'],
    [401, '{"detail":"Unauthorized"}', 'upstream_auth', /Unauthorized/],
    [402, '{"detail":{"code":"deactivated_workspace"}}', 'upstream_rejected', /deactivated/],
    [403, '<!DOCTYPE html><title>Just a moment...</title>', 'upstream_rejected', /edge .* Just a moment/],
    [403, 'blocked', 'upstream_rejected', /edge/, { 'cf-mitigated': 'challenge' }],
    [403, json({ code: 'unsupported_country_region_territory' }), 'upstream_rejected', /region/],
    ...[
      '{"detail":"Workspace is not authorized in this region."}',
      'Workspace is not authorized in this region.',
    ].map((body): (typeof rows)[number] => [401, body, 'upstream_auth', /login's workspace in this region/]),
    [
      403,
      json({ message: 'You have insufficient permissions' }),
      'upstream_auth',
      /insufficient permissions/,
    ],
    [403, '{"detail":"Forbidden"}', 'upstream_auth', /Forbidden/],
    [403, 'Unknown error', 'upstream_rejected', /Unknown error/],
    [403, '{"success":false,"errors":[{"code":7003,"message":"No route"}]}', 'upstream_rejected', /No route/],
    [403, '{"message":"Forbidden"}', 'upstream_rejected', /Forbidden/],
    [
      403,
      json({ code: 'model_not_found', message: 'Project `p` does not have access to model `gpt-x`' }),
      'upstream_rejected',
      /cannot use this model/,
    ],
    [
      413,
      '<html><title>413 Request Entity Too Large</title></html>',
      'context_too_long',
      /request is too large/,
    ],
    [429, '<html><title>Too many requests</title></html>', 'upstream_rate_limited'],
    [404, json({ message: "Item with id 'rs_1' not found." }), 'upstream_rejected', /refused the request/],
    [413, '', 'context_too_long', /too large/],
    [429, json({ type: 'insufficient_quota', code: 'insufficient_quota' }), 'upstream_rejected', /quota/],
    [429, json({ type: 'usage_not_included' }), 'upstream_rejected', /plan/],
    [429, json({ type: 'tokens', code: 'rate_limit_exceeded', message: 'x' }), 'upstream_rate_limited'],
    [
      429,
      json({
        type: 'tokens',
        code: 'rate_limit_exceeded',
        message: 'Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 41000.',
      }),
      'context_too_long',
      /limit of tokens a minute/,
    ],
    [
      200,
      json({ type: 'server_error', code: 'rate_limit_exceeded', message: 'no_kv_space' }),
      'upstream_overloaded',
      /no_kv_space/,
    ],
    [429, 'slow down please', 'upstream_rate_limited', /slow down please/],
    [408, '', 'upstream_timeout'],
    [408, '<html><body><h1>408 Request Time-out</h1></body></html>', 'upstream_timeout'],
    [409, json({ message: 'locked' }), 'upstream_overloaded', /locked/],
    [500, json({ type: 'server_error', message: 'oops' }), 'upstream_overloaded', /oops/],
    [500, '<html><title>Internal error</title></html>', 'upstream_overloaded', /Internal error/],
    [502, '<html><title>Bad gateway</title></html>', 'upstream_overloaded', /Bad gateway/],
    [503, json({ code: 'slow_down' }), 'upstream_overloaded'],
    [503, json({ message: 'The server of the model was not found.' }), 'upstream_overloaded'],
    [504, '', 'upstream_timeout'],
    [200, '<html>', 'upstream_rejected', /edge/],
    [200, json({ type: 'usage_limit_reached' }), 'upstream_rate_limited'],
    [200, json({ type: 'server_error', message: 'oops' }), 'upstream_overloaded', /oops/],
    [200, json({ type: 'invalid_request_error', message: 'no' }), 'upstream_rejected'],
    [200, '{"id":"resp_1","output":[]}', 'upstream_rejected'],
    [
      422,
      '{"detail":[{"loc":["body","model"],"msg":"field required"},{"msg":"no"}]}',
      'upstream_rejected',
      /body\.model: field required; no$/,
    ],
    ...RELAYED,
    [400, json(['one', { message: 'two' }]), 'upstream_rejected', /one; two/],
    [400, JSON.stringify({ error: 'just words' }), 'upstream_rejected', /just words/],
    [
      400,
      fixture('05b-hosted-mcp-on-chatgpt-path-400.json'),
      'upstream_rejected',
      /Unsupported tool type: mcp/,
    ],
  ]
  for (const [status, body, code, says = /./, headers = {}] of rows) {
    const error = openai.classify({ status, body, headers })
    t.equal(error.code, code, `${status} ${body.slice(0, 60)}`)
    t.match(error.message, says)
    t.match(error.details, { upstream: { status } })
  }
  const limited = { code: 'rate_limit_exceeded', type: 'tokens', message: 'x'.repeat(3000) }
  t.strictSame(
    openai.classify({ status: 429, headers: {}, body: json(limited) }).details,
    { upstream: { status: 429, ...limited, message: 'x'.repeat(1000), request_id: null } },
    "the vendor's own words are kept, but not endless ones",
  )
  for (const name of ['x-request-id', 'x-oai-request-id']) {
    const { details } = openai.classify({ status: 500, body: '', headers: { [name]: 'req_011' } })
    t.match(
      details,
      { upstream: { request_id: 'req_011' } },
      "the request id is kept, since the vendor's support asks for it",
    )
  }
  const told = (word: string) =>
    openai.classify({ status: 500, headers: { 'x-should-retry': word }, body: '' }).details ?? {}
  t.match(told('true'), { should_retry: true }, 'x-should-retry is kept, which the vendor’s own client obeys')
  t.match(told('false'), { should_retry: false })
  t.notOk('should_retry' in told('perhaps'))
  const inStream = (error: Record<string, unknown>, error_type?: string) => {
    const response = { status: 'failed', error, error_type }
    return thrownBy(() => parse(framed({ type: 'response.failed', response })))?.code
  }
  const inStreams = {
    context_too_long: 'context_length_exceeded',
    upstream_rejected:
      'invalid_request_error insufficient_quota credit_balance_exhausted organization_spend_limit_exceeded organization_usage_limit_exceeded usage_not_included cyber_policy bio_policy invalid_prompt content_filter content_policy_violation image_too_large invalid_encrypted_content data_residency_mismatch',
    upstream_auth: 'invalid_api_key authentication_error',
    upstream_timeout: 'vector_store_timeout request_timeout',
    upstream_rate_limited: 'rate_limit_exceeded too_many_requests',
    upstream_overloaded: 'server_is_overloaded slow_down server_error whatever_comes',
  }
  for (const [meant, codes] of Object.entries(inStreams)) {
    for (const code of codes.split(' ')) t.equal(inStream({ code }), meant, code)
  }
  for (const type of ['authentication', 'permission_denied'])
    t.equal(inStream({ code: 'server_error' }, type), 'upstream_auth', 'a type beside the error counts')
  const stale = 'The encrypted content gAAA could not be verified.'
  t.equal(
    inStream({ code: 'server_error', message: stale }),
    'upstream_rejected',
    'the message decides, whichever code a relay gives',
  )

  await t.test('a failure has the wait that the vendor names', async (t) => {
    const date = 'Sat, 21 Nov 2026 12:00:00 GMT'
    const wait = (headers: Record<string, string>, error: Record<string, unknown> = {}) =>
      chatgpt.classify({ status: 429, headers, body: json(error) }).retryAfter
    const usage = { type: 'usage_limit_reached' }
    t.equal(
      chatgpt.classify({ status: 429, headers: limit.headers, body: fixture('04-usage-limit-429.body.json') })
        .retryAfter,
      5413,
    )
    t.equal(wait({ date }, { ...usage, resets_at: Date.parse(date) / 1000 + 90 }), 90)
    t.equal(
      wait({}, { ...usage, resets_at: 1795188800 }),
      5,
      'a reset time cannot be read without a Date header',
    )
    t.equal(wait({}, { code: 'usage_limit_reached', resets_in_seconds: 90 }), 90)
    t.equal(wait({}, { ...usage, resets_in_seconds: 0 }), 1, 'a wait is at least a second')
    t.equal(wait({}, { ...usage, resets_in_seconds: -9 }), 5, 'a reset that has passed counts as unknown')
    t.equal(wait({ date, 'x-codex-primary-reset-at': '1' }, usage), 5)
    t.equal(wait(limit.headers, usage), 5413, 'the wait is that of the window that is used up')
    t.equal(wait({ ...limit.headers, 'x-codex-secondary-used-percent': '100' }, usage), 301200)
    const ofWorkspace = { 'x-codex-rate-limit-reached-type': 'workspace_member_credits_depleted' }
    t.equal(
      wait({ ...limit.headers, ...ofWorkspace }, usage),
      5413,
      'so it is for a workspace without credits',
    )
    const used = { 'x-codex-primary-used-percent': '70', 'x-codex-primary-reset-after-seconds': '7200' }
    t.match(
      chatgpt.classify({ status: 429, headers: { ...used, ...ofWorkspace }, body: json(usage) }),
      { code: 'upstream_rejected', message: /workspace is out of credits/, retryAfter: undefined },
      'a workspace without credits whose windows are not used up has no wait',
    )
    t.equal(wait({ 'retry-after-ms': '1500' }), 2)
    t.equal(wait({ 'retry-after': '12' }), 12)
    t.equal(wait({ 'retry-after': 'Sat, 21 Nov 2026 12:00:30 GMT', date }), 30)
    const reset = { date, 'x-codex-primary-reset-at': String(Date.parse(date) / 1000 + 70) }
    t.equal(wait(reset, usage), 70)
    t.equal(
      wait({ 'x-codex-primary-reset-at': '1795190587' }, usage),
      5,
      'a reset time cannot be read without a Date header',
    )
    for (const [words, seconds] of [
      ['6m0s.', 360],
      ['20ms.', 1],
      ['30000 Milliseconds.', 30],
      ['1h12m3.5s. Visit the page', 4324],
      ['28m.', 1680],
      ['2 minutes.', 120],
      ['1 hour, 5 seconds', 3605],
      ['1.5 seconds', 2],
      ['9d', 777_600],
      ['a while', 5],
      ['3 weeks', 5],
    ] as const) {
      t.equal(wait({}, { message: `Please try again in ${words}` }), seconds, words)
    }
    t.equal(
      wait({}, { code: '429', message: 'Your requests are too many. Please retry after 60 seconds.' }),
      60,
    )
    const parser = parserOf(chatgpt, origin, { date })
    const event = { type: 'error', error: { ...usage, resets_at: Date.parse(date) / 1000 + 80 } }
    t.equal(thrownBy(() => framed(event).flatMap((frame) => parser.push(frame)))?.retryAfter, 80)
    const relayed = { type: 'error', status: 429, error: {}, headers: { 'retry-after': 7, vary: ['a'] } }
    t.equal(
      thrownBy(() => framed(relayed).flatMap((frame) => parserOf(openai, origin).push(frame)))?.retryAfter,
      7,
      "a relay's event has headers of its own",
    )
    const ended = {
      type: 'error',
      status_code: 429,
      error: usage,
      headers: { 'X-Codex-Primary-Used-Percent': '100', 'X-Codex-Primary-Reset-After-Seconds': '9569' },
    }
    t.match(
      thrownBy(() => framed(ended).flatMap((frame) => parserOf(chatgpt, origin).push(frame))),
      { code: 'upstream_rate_limited', retryAfter: 9569, details: { upstream: { status: 429 } } },
      'the ChatGPT path spells both in its own way',
    )
    const numbered = { error: { code: 402, message: 'Insufficient credits' } }
    t.match(
      thrownBy(() => framed(numbered).flatMap((frame) => parserOf(openai, origin).push(frame))),
      { code: 'upstream_rejected', details: { upstream: { status: 402 } } },
      'OpenRouter gives the status as the code',
    )
    for (const told of [numbered, { error: {}, status: 402 }, { ...numbered, status: 200 }])
      t.match(
        openai.classify({ status: 200, headers: {}, body: JSON.stringify(told) }),
        { code: 'upstream_rejected', details: { upstream: { status: 402 } } },
        '… and so it is read in place of a stream',
      )
    const whole = { object: 'response', status: 'completed', error: null, output: [] }
    t.match(
      openai.classify({ status: 200, headers: {}, body: JSON.stringify(whole) }),
      { code: 'upstream_rejected' },
      'a whole answer in place of a stream would be the same again',
    )
    const inText = { error: { message: 'litellm.AuthenticationError: no', type: 'None', code: '401' } }
    t.match(
      thrownBy(() => framed(inText).flatMap((frame) => parserOf(openai, origin).push(frame))),
      { code: 'upstream_auth', details: { upstream: { status: 401 } } },
      'LiteLLM as a text',
    )
    for (const code of [302, 1302, -32603, '1302'])
      t.match(
        thrownBy(() =>
          framed({ error: { code, message: 'x' } }).flatMap((frame) => parserOf(openai, origin).push(frame)),
        ),
        { code: 'upstream_overloaded', details: { upstream: { status: null } } },
        `${code}, a number of the vendor's own, is no status`,
      )
    const relaysLimit = (reset: unknown) => ({
      code: 429,
      message: 'Rate limit exceeded: free-models-per-day.',
      metadata: { headers: { 'X-RateLimit-Remaining': '0', 'X-RateLimit-Reset': reset } },
    })
    const inSixHours = `${Date.parse(date) + 6 * 3_600_000}`
    t.equal(wait({ date }, relaysLimit(inSixHours)), 21_600, "OpenRouter's own limit")
    t.equal(wait({ date, 'retry-after': '9' }, relaysLimit(inSixHours)), 9)
    for (const reset of [`${Date.parse(date) - 1}`, '', 'soon', null])
      t.equal(wait({ date }, relaysLimit(reset)), 5, `no time to come: ${reset}`)
    t.equal(
      wait({ 'x-codex-primary-reset-after-seconds': '7200' }),
      5,
      "the plan's window does not count for a short limit",
    )
    t.equal(openai.classify({ status: 503, headers: { 'retry-after': '9' }, body: '' }).retryAfter, 9)
    t.equal(openai.classify({ status: 504, headers: { 'retry-after': '9' }, body: '' }).retryAfter, 9)
    t.equal(openai.classify({ status: 503, headers: {}, body: '' }).retryAfter, undefined)
    t.equal(openai.classify({ status: 504, headers: {}, body: '' }).retryAfter, undefined)
    t.equal(openai.classify({ status: 400, headers: { 'retry-after': '9' }, body: '' }).retryAfter, undefined)
  })

  await t.test('the words of a failure are kept without secrets', async (t) => {
    const message =
      'Key sk-proj-abc123*~+/=x and eyJhbGciOi.eyJz.sig and gAAAAABr-x were wrong; Bearer abc.defg*~+/=x and rt_abc.def too. Use Bearer auth for the task-runner.'
    const error = openai.classify({ status: 401, headers: {}, body: json({ message }) })
    t.equal(
      error.details?.upstream && (error.details.upstream as { message: string }).message,
      'Key *** and *** and *** were wrong; Bearer *** and *** too. Use Bearer auth for the task-runner.',
    )
    for (const body of [message, json({ message }), JSON.stringify({ errors: [message] })])
      t.notMatch(
        openai.classify({ status: 500, headers: {}, body }).message,
        /abc123|eyJ|gAAAA|abc\.def/,
        'whatever the body',
      )
    const quoted = json({
      message: `GeminiException - Consumer 'api_key:AIza${'Sy'.repeat(18)}' is suspended.`,
    })
    const relayed = openai.classify({ status: 403, headers: {}, body: quoted })
    t.match(relayed.message, "'api_key:***' is suspended.", "a relay's key at another vendor")
    const elsewhere = openai.classify({
      status: 401,
      headers: {},
      body: json({ code: message, type: message }),
    })
    t.notMatch(JSON.stringify(elsewhere.toBody()), /abc123|eyJ|gAAAA|abc\.def/)
  })
})

t.test('a refused request is amended once, without what was refused', async (t) => {
  const parts: Part[] = [
    {
      type: 'reasoning',
      text: 'hm',
      provenance: { ...origin, opaque: '{"encrypted_content":"gA","segments":[2]}' },
    },
    { type: 'text', text: 'So.' },
  ]
  const alone: MessageInput = { role: 'assistant', parts: parts.slice(0, 1) }
  const request = requestFor({ messages: [{ role: 'assistant', parts }, alone] })
  const failed = (error: Record<string, unknown>, status = 400): UpstreamFailure => ({
    status,
    headers: {},
    body: JSON.stringify({ error }),
  })
  for (const failure of [
    failed({ code: 'invalid_encrypted_content' }),
    failed({ message: 'The encrypted content gAAA could not be verified.' }),
    failed({ message: "Item 'rs_1' of type 'reasoning' was provided without its required following item." }),
    failed({ message: "Item with id 'rs_1' not found." }, 404),
    failed({ message: 'Items are not persisted when `store` is set to false.' }),
    failed({ message: "Missing required parameter: 'input[2].id'.", code: 'missing_required_parameter' }),
    failed({ message: 'The provided data does not match the expected schema', code: 'invalid_payload' }),
    failed({ message: 'Conflicting authenticated continuation identities.', code: 'invalid_value' }),
    failed({ message: 'Failed: [x] reasoning `encrypted_content` was not issued to this caller' }),
    failed({ message: 'Could not decrypt the provided encrypted_content. Ensure the value is unmodified.' }),
  ]) {
    const again = openai.amend(failure, request)
    t.same(again?.messages, [{ role: 'assistant', parts: parts.slice(1) }])
    t.equal(again && openai.amend(failure, again), null, 'the request is amended only once')
  }
  const asked: MessageInput = { role: 'user', parts: [{ type: 'text', text: 'Go on.' }] }
  const now: MessageInput = { role: 'assistant', parts }
  const stale = failed({ code: 'invalid_encrypted_content' })
  const later = openai.amend(stale, requestFor({ messages: [asked, { ...now }, alone, asked, now] }))
  t.same(later?.messages, [asked, { role: 'assistant', parts: parts.slice(1) }, asked, now])
  t.equal(later?.messages.at(-1), now, 'reasoning of the open turn stays')
  const bare = later && openai.amend(stale, later)
  t.same(
    bare?.messages.at(-1)?.parts,
    parts.slice(1),
    'reasoning of the open turn goes once it is refused, too',
  )
  const unverified = failed({
    param: 'reasoning.summary',
    code: 'unsupported_value',
    message: 'must be verified',
  })
  const quiet = openai.amend(unverified, request)
  t.match(quiet && publicBody(quiet), {
    body: { reasoning: undefined, include: ['reasoning.encrypted_content'] },
    notes: ['reasoning.summary: refused to this credential'],
  })
  t.equal(quiet && openai.amend(unverified, quiet), null, 'the request is amended only once')
  const bold = requestFor({ model: 'gpt-6-sol', settings: { reasoning: { effort: 'none' } } })
  const lacks = (message: string) => failed({ param: 'reasoning.effort', code: 'unsupported_value', message })
  const listed = lacks("Unsupported value: 'none'. Supported values are: 'medium', 'high', and 'xhigh'.")
  const milder = openai.amend(listed, bold)
  t.match(milder && publicBody(milder).body.reasoning, { effort: 'medium' })
  t.equal(milder && openai.amend(listed, milder), null, 'the request is amended only once')
  t.equal(openai.amend(lacks('It is not supported.'), bold), null)
  const unknown = failed({ param: 'reasoning.effort', code: 'unsupported_parameter' })
  const plain = openai.amend(unknown, bold)
  t.match(plain && publicBody(plain), { body: { reasoning: { effort: undefined } }, notes: [/its default/] })
  t.equal(plain && openai.amend(unknown, plain), null, 'the request is amended only once')
  const unkept = failed({ param: 'include', message: 'Encrypted content is not supported with this model.' })
  const fleeting = openai.amend(unkept, bold)
  t.match(fleeting && publicBody(fleeting), {
    body: { include: undefined, reasoning: { summary: 'auto' } },
    notes: ['include: gpt-6-sol gives out no encrypted reasoning'],
  })
  t.equal(fleeting && openai.amend(unkept, fleeting), null, 'the request is amended only once')
  for (const [status, body] of TYPED) {
    const failure = { status, headers: {}, body }
    const strings = openai.amend(failure, request)
    t.match(strings && publicBody(strings).body.input.find((item) => 'role' in item), {
      role: 'assistant',
      content: 'So.',
    })
    t.equal(strings && openai.amend(failure, strings), null, 'the request is amended only once')
    t.equal(openai.amend(failure, requestFor({ messages: [asked] })), null, 'no answer has been given yet')
  }
  const refused = { error: { param: 'include', message: 'Encrypted content is not supported.', code: null } }
  for (const body of [openRouter(refused), liteLlm(`OpenAIException - ${JSON.stringify(refused)}`)])
    t.match(
      openai.amend({ status: 400, headers: {}, body }, bold)?.reported,
      { encrypted_reasoning: false },
      'a relay hands the refusal on',
    )
  t.equal(openai.amend(failed({ param: 'max_output_tokens' }), request), null)
  t.equal(openai.amend(failed({ code: 'invalid_value' }), request), null)
  t.equal(openai.amend(failed({ code: 'server_error' }, 500), request), null)
})

t.test('media that the vendor cannot read become text', (t) => {
  const image = { type: 'image' as const, media_type: 'image/png', data: 'iVBORw0KGgo=' }
  const linked = { type: 'image' as const, media_type: 'image/png', url: 'https://a.example/b.png' }
  const file = { type: 'file' as const, media_type: 'application/pdf', data: 'JVBERi0xLjQK' }
  const given: MessageInput = { role: 'user', parts: [image, linked, file] }
  const answered: MessageInput = { role: 'assistant', parts: [{ type: 'text', text: 'A picture.' }] }
  const request = requestFor({ messages: [given, said('Go on.')] })
  const kept = (error: Record<string, unknown>, status = 400) => {
    const again = openai.amend({ status, headers: {}, body: JSON.stringify({ error }) }, request)
    return again?.messages[0]?.parts.filter(({ type }) => type !== 'text')
  }
  const unreadable = 'The image data you provided does not represent a valid image.'
  t.same(kept({ param: 'input', code: 'invalid_value', message: unreadable }), [file])
  t.same(kept({ code: 'image_parse_error' }), [file])
  t.same(kept({ param: 'input[0].content[0].image_url', code: 'invalid_value', message: 'Too large.' }), [
    file,
  ])
  for (const message of [
    'Error while downloading https://a.example/b.png.',
    'Timeout while downloading it.',
    'Failed to download file.',
    'Failed to download image from https://a.example/b.png',
  ])
    t.same(kept({ param: 'url', code: 'invalid_value', message }), [image, file], message)
  t.same(kept({ code: 'unsupported_file', message: 'Expected a supported format.' }), [image, linked])
  const taken = "Invalid value: 'input_file'. Supported values are: 'input_text' and 'input_image'."
  t.same(
    kept({ param: 'input[0].content[2].type', code: 'invalid_value', message: taken }),
    [image, linked],
    'images stay if the vendor takes those and no files',
  )
  for (const reported of [undefined, { id: request.model, answer_lists: false } as const]) {
    const error = { message: "ResponseOutputMessageParam: Input should be 'output_text'; no input_image." }
    const shown = { ...request, messages: [given, answered, said('Go on.')], ...(reported && { reported }) }
    const again = openai.amend({ status: 400, headers: {}, body: JSON.stringify({ error }) }, shown)
    t.same(
      again?.messages[0]?.parts.filter(({ type }) => type !== 'text'),
      reported ? [file] : given.parts,
      'a server that names all types of messages may mean the image, if not the form of earlier answers',
    )
  }
  t.same(kept({ code: 400, message: "'input_file' is not supported by llamacpp at this moment" }), [
    image,
    linked,
  ])
  t.same(kept({ code: 400, message: "Output of tool call should be 'Input text'" }), [file])
  t.same(kept({ code: 'invalid_union', param: 'input', message: "Invalid type for 'input'." }), [file])
  t.equal(kept({ code: 'invalid_value', message: 'Something else.' }), undefined)
  t.equal(kept({ code: 'image_parse_error' }, 500), undefined)
  t.same(
    kept({ message: 'Request Entity Too Large' }, 413),
    [],
    'all media of a request that is too large become text',
  )
  t.end()
})

/** Servers that check the input against the SDK's types: vLLM, FastAPI as it comes, Envoy's gateway, OpenRouter, one in .NET. */
const TYPED: readonly [status: number, body: string][] = [
  [
    400,
    JSON.stringify({
      error: {
        message: `240 validation errors:\n  {'type': 'string_type', 'loc': ('body', 'input', 'str'), 'msg': 'Input should be a valid string', 'input': [${'x'.repeat(2000)}`,
        type: 'Bad Request',
      },
    }),
  ],
  [
    422,
    JSON.stringify({ detail: [{ loc: ['body', 'input', 1, 'ResponseOutputMessageParam', 'id'], msg: 'x' }] }),
  ],
  [
    400,
    '{"type":"error","error":{"type":"BadRequest","code":"400","message":"malformed request: failed to parse JSON for /v1/responses"}}',
  ],
  [400, '{"error":{"code":"invalid_prompt","message":"Invalid Responses API request"},"metadata":null}'],
  [
    400,
    JSON.stringify({
      title: 'One or more validation errors occurred.',
      errors: { $: ["type 'Input.ResponseOutputMessage' was missing required properties including: 'id'"] },
    }),
  ],
]

/** Refusals of other vendors as OpenRouter and LiteLLM hand them on. */
const RELAYED: readonly [status: number, body: string, code: string, says: RegExp][] = [
  [
    400,
    openRouter({ error: { code: 'context_length_exceeded', message: 'Long.' } }),
    'context_too_long',
    /Long\.$/,
  ],
  [
    403,
    openRouter({ error: { code: 'unsupported_country_region_territory', message: 'Not here.' } }),
    'upstream_rejected',
    /does not serve the region.*Not here\.$/,
  ],
  [
    400,
    '{"error":{"code":"invalid_prompt","message":"Invalid."},"metadata":{"raw":"Bad key safety_identifier."}}',
    'upstream_rejected',
    /refused the request\. It said: Bad key safety_identifier\.$/,
  ],
  [
    400,
    '{"error":{"code":"invalid_prompt","message":"Too much."},"error_type":"context_length_exceeded"}',
    'context_too_long',
    /Too much\.$/,
  ],
  [
    402,
    JSON.stringify({
      error: { code: 'server_error', message: 'Provider returned error' },
      metadata: { raw: '{"error": {"message": "AzureException - {\\"error\\": \\"Add more.\\"}"}}' },
      error_type: 'payment_required',
    }),
    'upstream_rejected',
    /no quota left.*Add more\.$/,
  ],
  [
    403,
    '{"error":{"code":"server_error"},"metadata":{"raw":"Flagged."},"error_type":"content_policy_violation"}',
    'upstream_rejected',
    /by its policy.*Flagged\.$/,
  ],
  [400, openRouter({ message: 'Bad role.' }), 'upstream_rejected', /said: Bad role\.$/],
  [400, openRouter({ detail: 'Bad field.' }), 'upstream_rejected', /said: Bad field\.$/],
  [429, openRouter('Rate-limited upstream.'), 'upstream_rate_limited', /said: Rate-limited upstream\.$/],
  [400, openRouter({ other: 1 }), 'upstream_rejected', /said: \{"other":1\}$/],
  [
    400,
    liteLlm(
      'AzureException - {"error": {"message": "Long {}.", "code": "context_length_exceeded"}}. Group={}',
    ),
    'context_too_long',
    /said: Long \{\}\.$/,
  ],
  [400, liteLlm('OpenAIException - {"input": 1} is bad'), 'upstream_rejected', /\{"input": 1\} is bad$/],
  [
    400,
    liteLlm('OpenAIException - {"message": "Hi"} is bad'),
    'upstream_rejected',
    /OpenAIException - \{"message": "Hi"\} is bad$/,
  ],
  [400, liteLlm('OpenAIException - {not JSON'), 'upstream_rejected', /\{not JSON$/],
]

function openRouter(raw: unknown): string {
  const metadata = { raw: typeof raw === 'string' ? raw : JSON.stringify(raw), provider_name: 'X' }
  return JSON.stringify({ error: { message: 'Provider returned error', code: 400, metadata } })
}

function liteLlm(words: string): string {
  const message = `litellm.BadRequestError: ${words}`
  return JSON.stringify({ error: { message, type: null, param: null, code: '400' } })
}
