/**
 * Gemini's adapter: fixtures as events, failures as errors, and every request against the strict emulator,
 * whose own rules come from the wire page and not from the adapter.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  type FunctionDeclaration,
  type GenerateContentConfig,
  GoogleGenAI,
  type Content as SdkContent,
  type ThinkingConfig as SdkThinkingConfig,
} from '@google/genai'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import type { ThinkingConfig } from '../../providers/gemini/capabilities.ts'
import type { Content } from '../../providers/gemini/contents.ts'
import { codeAssist, gemini, geminiOauth } from '../../providers/gemini/index.ts'
import type { declareTools } from '../../providers/gemini/render.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import { fold } from '../../src/chat/fold.ts'
import type { MediaPart, MessageInput, Part, ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import { exposedName } from '../../src/chat/names.ts'
import { repair } from '../../src/chat/repair.ts'
import { BatonError } from '../../src/errors.ts'
import type {
  CredentialSecret,
  Deployment,
  Effort,
  ModelRequest,
  ParseContext,
  ToolDeclaration,
} from '../../src/provider.ts'
import { createDecoder, type SseFrame } from '../../src/sse.ts'
import { createGeminiEmulator, type GeminiEmulator } from '../emulators/gemini.ts'
import { checkRequest, createSignatures, type Request, traitsOf } from '../emulators/gemini-rules.ts'
import { PUBLIC_REQUEST, readBody } from '../emulators/gemini-shape.ts'
import { calls, text } from '../emulators/scene.ts'

const FIXTURES = join(resolve(dirname(fileURLToPath(import.meta.url)), '../../..'), 'test/fixtures/gemini')
const fixture = (name: string) => readFileSync(join(FIXTURES, name), 'utf8')

const tool = (canonical_name: string): ToolDeclaration => ({
  name: exposedName(canonical_name),
  canonical_name,
  description: 'Reads a file',
  parameters: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
})

function context(
  tools: readonly ToolDeclaration[] = [tool('files.read')],
  model = 'gemini-3.8-flash',
): ParseContext {
  let made = 0
  return {
    callId: (vendorId) => `call_${vendorId ?? `own${++made}`}`,
    toolName: (exposed) => tools.find(({ name }) => name === exposed)?.canonical_name ?? exposed,
    provenance: { provider: 'gemini', model, credential_id: 'cred_1' },
  }
}

function frames(stream: string): SseFrame[] {
  const list: SseFrame[] = []
  const decoder = createDecoder((frame) => list.push(frame))
  decoder.push(stream)
  decoder.end()
  return list
}

function parse(list: readonly SseFrame[], ended = true): ModelEvent[] {
  const parser = gemini.parser(context())
  const events = list.flatMap((frame) => parser.push(frame))
  return ended ? [...events, ...parser.end()] : events
}
const parseChunks = (...chunks: unknown[]) =>
  parse(chunks.map((chunk) => ({ event: undefined, id: undefined, data: JSON.stringify(chunk) })))
const candidate = (fields: object) => ({ candidates: [fields] })
const said = (...parts: object[]) => candidate({ content: { role: 'model', parts } })
const done = (finishReason = 'STOP', extra: object = {}) => candidate({ finishReason, ...extra })

const lastOf = (events: readonly ModelEvent[], type: ModelEvent['type']) =>
  events.filter((event) => event.type === type).at(-1)

const errorOf = (run: () => unknown): BatonError => {
  try {
    run()
  } catch (thrown) {
    if (thrown instanceof BatonError) return thrown
    throw thrown
  }
  throw new Error('nothing was thrown')
}

const PROVENANCE = { provider: 'gemini', model: 'gemini-3.8-flash', credential_id: 'cred_1' }
const usage = (input_tokens: number, output_tokens: number, reasoning_tokens = 0, cached_tokens = 0) => ({
  type: 'usage',
  usage: { input_tokens, output_tokens, reasoning_tokens, cached_tokens },
})

t.test('each recorded stream becomes the parts, usage and finish that it means', async (t) => {
  const read = (name: string) => {
    const events = parse(frames(fixture(name)))
    return { parts: fold(events), usage: lastOf(events, 'usage'), finish: events.at(-1), events }
  }
  const plain = read('text.sse')
  t.strictSame(plain.parts, [
    {
      type: 'text',
      text: 'A wire protocol is the exact form in which two programs exchange bytes: framing, fields and order.\n\nGrüße, 世界 🚀',
      provenance: PROVENANCE,
    },
  ])
  t.strictSame(plain.usage, usage(23, 27))
  t.strictSame(plain.finish, { type: 'finish', reason: 'stop' })
  t.equal(plain.events.filter(({ type }) => type === 'text.delta').length, 3)

  const parallel = read('thoughts-two-parallel-calls.sse')
  t.match(parallel.parts, [
    { type: 'reasoning', text: /^\*\*Planning the reads\*\*.*at the same time\.\n\n$/s },
    { type: 'text', text: 'I will read both files.' },
    {
      type: 'tool_call',
      call_id: 'call_a7k2m9qx',
      name: 'read_file',
      arguments: { path: 'src/a.ts', limit: 200 },
      provenance: { opaque: /^CiRSnm66/ },
    },
    { type: 'tool_call', call_id: 'call_p4t8w1zc', arguments: { path: 'src/b.ts', limit: 200 } },
  ])
  t.notMatch(parallel.parts[3], { provenance: { opaque: String } }, 'the signature stays on the first call')
  t.strictSame(parallel.usage, usage(812, 149, 96))
  t.strictSame(parallel.finish, { type: 'finish', reason: 'tool_calls' })

  const signed = read('public-text-signed-empty-tail.sse')
  t.match(signed.parts, [
    { type: 'text', text: 'Both files export `add`, but b.ts rounds the result.' },
    { type: 'text', text: '', provenance: { opaque: /^CiQtB0F0/ } },
  ])
  t.equal(signed.parts.length, 2)
  t.strictSame(signed.usage, usage(1490, 78, 64, 1024))

  t.match(read('max-tokens.sse'), {
    parts: [{ type: 'reasoning' }, { type: 'text', text: 'Part one. The first computers were people who' }],
    finish: { reason: 'length' },
  })
  t.match(read('max-tokens-empty.sse'), {
    parts: [],
    finish: { reason: 'length' },
    usage: usage(31, 256, 256),
  })
  t.match(read('prompt-blocked.sse'), { parts: [], finish: { reason: 'refusal' }, usage: usage(44, 0) })
  for (const name of ['unexpected-tool-call.sse', 'unexpected-tool-call-with-part.sse']) {
    const refused = read(name)
    t.strictSame(
      refused.finish,
      {
        type: 'finish',
        reason: 'error',
        invalid_call: 'Unexpected tool call: Model tried to call an undeclared function: run_shell_command',
      },
      name,
    )
    t.notOk(
      refused.events.some((event) => JSON.stringify(event).includes('"tool_call')),
      'the undeclared call never comes out',
    )
  }
  t.match(read('malformed-function-call.sse').finish, {
    reason: 'error',
    invalid_call: /^Malformed function call: print/,
  })
})

t.test('a stream cut anywhere before its end is disconnected, never finished', async (t) => {
  const names = readdirSync(FIXTURES).filter((name) => name.endsWith('.sse'))
  t.ok(names.length >= 10)
  for (const name of names.filter((file) => file !== 'midstream-error.sse')) {
    const whole = fixture(name)
    const list = frames(whole)
    const complete = name !== 'no-finish-reason.sse'
    for (let n = 0; n <= list.length; n++) {
      if (n === list.length && complete) continue
      t.equal(
        errorOf(() => parse(list.slice(0, n))).code,
        'upstream_disconnected',
        `${name} after ${n} frames`,
      )
    }
    const codes = new Set<string>()
    for (let at = 0; at < whole.trimEnd().length; at += 13) {
      codes.add(errorOf(() => parse(frames(whole.slice(0, at)))).code)
    }
    t.strictSame([...codes], ['upstream_disconnected'], `${name} cut inside of its frames`)
    const bare = frames(whole.trimEnd())
    t.equal(bare.length, list.length, `${name} without its last blank line loses nothing`)
  }
})

t.test('an error inside of a stream is read like one before it', async (t) => {
  const [first, second] = frames(fixture('midstream-error.sse'))
  const parser = gemini.parser(context())
  t.match(parser.push(first as SseFrame), [{ type: 'text.delta' }, { type: 'usage' }].reverse())
  const error = errorOf(() => parser.push(second as SseFrame))
  t.match(error, { code: 'upstream_overloaded', details: { upstream: { status: 503, code: 'UNAVAILABLE' } } })
  const wrapped = errorOf(() => parseChunks({ response: { error: { code: 429, message: 'Slow down.' } } }))
  t.match(wrapped, { code: 'upstream_rate_limited', retryAfter: 5 })
})

t.test('the odd shapes of a stream are read for what they mean', async (t) => {
  t.match(
    fold(parseChunks(said({ functionCall: { name: 'default_api:files__read', args: {} } }), done())),
    [{ type: 'tool_call', call_id: 'call_own1', name: 'files.read', arguments: {} }],
    'no id, and the internal namespace before the name',
  )
  t.match(fold(parseChunks(said({ functionCall: { name: 'files__read' } }), done())), [{ arguments: {} }])
  t.match(fold(parseChunks(said({ functionCall: { name: 'files__read', args: [1] } }), done())), [
    { arguments: {}, arguments_text: '[1]' },
  ])
  const late = parseChunks(
    said({ functionCall: { name: 'files__read', args: { path: 'a' } } }),
    said({ functionCall: { name: 'files__read', args: { path: 'a' } } }),
    said({ text: '' }),
    done(),
  )
  t.equal(fold(late).length, 2, 'two equal calls are two calls')
  t.match(late.at(-1), { reason: 'tool_calls' }, 'a call in any chunk counts')
  const delta = late.find(({ type }) => type === 'tool_call.delta')
  t.match(delta, { name: 'files.read', arguments_delta: '{"path":"a"}' })

  const undeclaredLater = parseChunks(
    said({ functionCall: { name: 'shell', args: {} } }),
    done('UNEXPECTED_TOOL_CALL', { finishMessage: 'Unexpected tool call: shell' }),
  )
  t.strictSame(undeclaredLater, [
    { type: 'finish', reason: 'error', invalid_call: 'Unexpected tool call: shell' },
  ])
  t.match(parseChunks(done('TOO_MANY_TOOL_CALLS')).at(-1), {
    reason: 'error',
    invalid_call: 'TOO_MANY_TOOL_CALLS',
  })

  t.match(fold(parseChunks(said({ inlineData: { mimeType: 'image/png', data: 'aaaa' } }), done())), [
    { type: 'image', media_type: 'image/png', data: 'aaaa' },
  ])
  t.match(
    fold(
      parseChunks(
        said({ executableCode: { language: 'PYTHON', code: '1' } }, { codeExecutionResult: { output: '1' } }),
        said({ text: 'one' }, { toolCall: { id: 'x' } }, { somethingNew: true }, { text: ' two' }),
        done(),
      ),
    ),
    [{ type: 'text', text: 'one two' }],
    'what has no canonical form is passed over',
  )
  const split = fold(
    parseChunks(
      said({ text: 'a', thoughtSignature: 'U0lH' }),
      said({ text: 'b' }, { text: 'hm', thought: true }, { text: 'c' }),
      done(),
    ),
  )
  t.match(split, [
    { type: 'text', text: 'a', provenance: { opaque: 'U0lH' } },
    { type: 'text', text: 'b' },
    { type: 'reasoning', text: 'hm' },
    { type: 'text', text: 'c' },
  ])
  t.equal(split.length, 4, 'a signature closes its part')

  const reasons = {
    CONTINUATION: 'length',
    IMAGE_SAFETY: 'refusal',
    SPII: 'refusal',
    LANGUAGE: 'stop',
    NEW: 'stop',
  }
  for (const [reason, meant] of Object.entries(reasons)) {
    t.match(parseChunks(said({ text: 'so' }), done(reason)).at(-1), { reason: meant }, reason)
  }
  t.match(parseChunks(done('OTHER')).at(-1), { reason: 'error' }, 'nothing said, for a reason not known')
  t.match(parseChunks(done('STOP'), done('MAX_TOKENS'), done('STOP')).at(-1), { reason: 'length' })
  t.match(fold(parseChunks([said({ text: 'as ' }), said({ text: 'an array' }), done()])), [
    { text: 'as an array' },
  ])
  t.match(parseChunks({ traceId: 'x' }, { response: {} }, said({ text: 'a' }), done()).at(-1), {
    reason: 'stop',
  })
  const partial = parseChunks(
    { usageMetadata: { promptTokenCount: 7, toolUsePromptTokenCount: 3 } },
    { ...done(), usageMetadata: { candidatesTokenCount: 2, trafficType: 'ON_DEMAND' } },
    { usageMetadata: { trafficType: 'ON_DEMAND' } },
  )
  t.strictSame(lastOf(partial, 'usage'), usage(10, 2), 'a partial count takes nothing away')
})

const classify = (body: unknown, status = 400, headers: Record<string, string> = {}) =>
  gemini.classify({ status, headers, body: typeof body === 'string' ? body : JSON.stringify(body) })
const error = (code: number, message: string, extra: object = {}) => ({ error: { code, message, ...extra } })
const because = (reason: string, metadata: object = {}) => ({
  details: [{ '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason, metadata }],
})

t.test('recorded failures become errors of the catalogue, with the words and links kept', async (t) => {
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

/** Body, status, expected code, and words that the message must hold. */
const FAILURES: readonly (readonly [unknown, number, string, RegExp?])[] = [
  [
    error(400, 'API key not valid. Please pass a valid API key.', because('API_KEY_INVALID')),
    400,
    'upstream_auth',
  ],
  [error(400, 'API key expired. Please renew the API key.'), 400, 'upstream_auth'],
  [error(403, 'Blocked.', because('API_KEY_SERVICE_BLOCKED')), 403, 'upstream_auth'],
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
  [error(404, 'Requested entity was not found.'), 404, 'upstream_rejected', /not available to this account/],
  [error(429, 'Quota exceeded for metric: x, limit: 0, model: y'), 429, 'upstream_rejected', /no quota/],
  [error(429, 'Credits.', because('INSUFFICIENT_G1_CREDITS_BALANCE')), 429, 'upstream_rejected'],
  [error(403, 'Too fast.', because('RATE_LIMIT_EXCEEDED')), 403, 'upstream_rate_limited'],
  [error(499, 'The operation was cancelled.'), 499, 'upstream_overloaded'],
  [error(500, 'Internal error encountered.'), 500, 'upstream_overloaded'],
  [error(503, 'No capacity available for model x on the server'), 503, 'upstream_overloaded'],
  [error(504, 'Deadline expired.'), 504, 'upstream_timeout'],
  [
    '<html><head><style>a{}</style></head><body>Error 413 (Request Too Large)!!1</body></html>',
    413,
    'context_too_long',
  ],
  ['<html><title>Error 502 (Server Error)!!1</title></html>', 502, 'upstream_overloaded', /said: Error 502/],
  ['', 503, 'upstream_overloaded'],
  [error(503, 'Overloaded.'), 200, 'upstream_overloaded'],
  [{ candidates: [] }, 200, 'upstream_rejected', /something else than an event stream/],
  [error(418, 'Teapot.'), 418, 'upstream_rejected'],
  [
    error(500, JSON.stringify([error(429, JSON.stringify(error(429, 'Deep.', because('QUOTA_EXHAUSTED'))))])),
    429,
    'upstream_rate_limited',
    /Deep\./,
  ],
  [
    '{\u00a0"error":\u00a0{"code":403,"message":"Broken.",,"details":[{" @type ":"x/google.rpc.ErrorInfo","reason":"TOS_VIOLATION"}]}}',
    403,
    'upstream_auth',
    /terms/,
  ],
]

t.test('every kind of failure that the wire page lists has its code', async (t) => {
  for (const [body, status, code, words] of FAILURES) {
    const found = classify(body, status)
    t.equal(found.code, code, JSON.stringify(body).slice(0, 90))
    if (words) t.match(found.message, words)
  }
  const key = `AIza${'Sy'.repeat(18)}`
  const leaked = classify(
    error(403, `Consumer 'api_key:${key}' has been suspended; ${key}, ya29.abc-def`),
    403,
  )
  t.notMatch(JSON.stringify(leaked.toBody()), /AIza|ya29/)
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
  t.equal(wait('x', reset), 5, 'without a Date there is nothing to read it against')
  t.equal(wait('x', quota('GenerateRequestsPerMinutePerProjectPerModel-FreeTier')), 60)
  t.equal(
    wait('x', quota('RequestsPerDay', [...retry('12s').details])),
    3600,
    "a day's quota is not back in 12 s",
  )
  t.equal(wait('nothing said'), 5)
  t.equal(classify(error(503, 'x', retry('2s')), 503).retryAfter, 2)
  t.equal(classify(error(503, 'x'), 503).retryAfter, undefined)
  t.equal(classify(error(400, 'x', retry('2s')), 400).retryAfter, undefined)
})

const request = (extra: Partial<ModelRequest> = {}): ModelRequest => {
  const model = extra.model ?? 'gemini-3.8-flash'
  return {
    model,
    instructions: 'Be short.',
    messages: [{ role: 'user', parts: [{ type: 'text', text: 'hi' }] }],
    tools: [],
    settings: {},
    session_id: 'ses_1',
    follow_up: false,
    capabilities: gemini.capabilities(model),
    credential: { id: 'cred_1', project_id: 'acme-dev-482910' },
    options: { system_blocks: [], headers: {}, dual_declarations: true },
    ...extra,
  }
}
const target = (model: string) => ({
  provider: 'gemini',
  model,
  credential_id: 'cred_1',
  ...gemini.capabilities(model),
})
const bodyOf = (extra: Partial<ModelRequest> = {}) =>
  gemini.render(request(extra)).body as Request & Record<string, unknown>

const SECRET: CredentialSecret = { api_key: 'a-key', access_token: 'ya29.token' }

/** One call as the engine makes it. Throws what `classify` makes of a refusal. */
async function ask(deployment: Deployment, emulator: GeminiEmulator, one: ModelRequest) {
  const rendered = deployment.render(one)
  const base = deployment === codeAssist ? emulator.codeAssistBaseUrl : emulator.publicBaseUrl
  const response = await fetch(`${base}${rendered.path}`, {
    method: rendered.method,
    headers: {
      'content-type': 'application/json',
      ...rendered.headers,
      ...deployment.authorize(SECRET, one.credential),
    },
    body: JSON.stringify(rendered.body),
  })
  const body = await response.text()
  const failure = { status: response.status, headers: Object.fromEntries(response.headers), body }
  if (!response.ok) return { failure, error: deployment.classify(failure), events: [], parts: [] }
  const parser = deployment.parser(context(one.tools, one.model))
  const events = [...frames(body).flatMap((frame) => parser.push(frame)), ...parser.end()]
  return { failure: null, error: null, events, parts: fold(events) }
}

async function start(test: Test): Promise<GeminiEmulator> {
  const emulator = await createGeminiEmulator()
  test.teardown(() => emulator.close())
  return emulator
}

const user = (value: string): MessageInput => ({ role: 'user', parts: [{ type: 'text', text: value }] })
const resultOf = ({ call_id, name }: ToolCallPart, extra: Partial<ToolResultPart> = {}): ToolResultPart => ({
  type: 'tool_result',
  call_id,
  name,
  content: [{ type: 'text', text: 'some text' }],
  is_error: false,
  outcome: 'ok',
  ...extra,
})
const isCall = (part: Part): part is ToolCallPart => part.type === 'tool_call'

const IMAGE: MediaPart = { type: 'image', media_type: 'image/png', data: 'aaaa' }
const MODELS = [
  'gemini-2.0-flash',
  'gemini-2.5-pro',
  'gemini-2.5-flash',
  'gemini-2.5-flash-lite',
  'gemini-3-pro-preview',
  'gemini-3.1-pro-preview',
  'gemini-3-flash-preview',
  'gemini-3.5-flash',
  'gemini-3.6-flash',
  'gemini-3.8-flash',
  'gemini-4-argon',
  'gemma-4-31b-it',
]

t.test(
  'on every model and path a turn thinks, calls in parallel, and goes on with results of every kind',
  async (t) => {
    const emulator = await start(t)
    const tools = [tool('files.read'), tool('files.view')]
    for (const deployment of [gemini, codeAssist, geminiOauth]) {
      for (const model of MODELS) {
        const settings = {
          temperature: 0.5,
          top_p: 0.9,
          max_output_tokens: 99,
          reasoning: { effort: 'low' as const },
        }
        const history: MessageInput[] = [
          user(
            'think of both\nsay Reading.\ncall files__read with {"path":"a"}\ncall files__view with {"path":"b"}\nthen\nsay Done.',
          ),
        ]
        const send = () =>
          ask(
            deployment,
            emulator,
            request({ model, tools, settings, messages: repair(history, target(model)).messages }),
          )
        const first = await send()
        t.equal(first.error, null, `${deployment.id} ${model}: ${first.error?.message}`)
        const made = first.parts.filter(isCall)
        t.match(made, [
          { name: 'files.read', arguments: { path: 'a' } },
          { name: 'files.view', arguments: { path: 'b' } },
        ])
        t.match(first.events.at(-1), { reason: 'tool_calls' })
        history.push({ role: 'assistant', parts: first.parts })
        const [read, view] = made as [ToolCallPart, ToolCallPart]
        history.push({
          role: 'tool',
          parts: [
            resultOf(view, { content: [IMAGE, { type: 'audio', media_type: 'audio/wav', data: 'aaaa' }] }),
            resultOf(read, { structured: { lines: 3 } }),
          ],
        })
        const second = await send()
        t.equal(second.error, null, `${deployment.id} ${model}: ${second.error?.message}`)
        t.match(second.parts[0], { type: 'text', text: 'Done.' })
        history.push({ role: 'assistant', parts: second.parts }, user('say Again.'))
        t.match((await send()).parts[0], { text: 'Again.' }, 'signed text goes back too')
      }
    }
  },
)

t.test(
  'a signature goes back on its own part, the dummy stands in for a foreign call, thoughts stay',
  async (t) => {
    const own = { ...PROVENANCE, opaque: 'U0lH' }
    const call = (call_id: string, provenance?: typeof own): Part => ({
      type: 'tool_call',
      call_id,
      name: 'files__read',
      arguments: {},
      ...(provenance ? { provenance } : {}),
    })
    const messages: MessageInput[] = [
      user('one'),
      {
        role: 'assistant',
        parts: [
          { type: 'reasoning', text: 'hidden', provenance: own },
          { type: 'text', text: 'Signed.', provenance: own },
          call('c1', own),
          call('c2'),
        ],
      },
      { role: 'tool', parts: [resultOf(call('c1') as ToolCallPart), resultOf(call('c2') as ToolCallPart)] },
      { role: 'assistant', parts: [call('c3'), call('c4')] },
      { role: 'tool', parts: [resultOf(call('c3') as ToolCallPart), resultOf(call('c4') as ToolCallPart)] },
    ]
    const { contents = [] } = bodyOf({ messages })
    t.strictSame(contents[1]?.parts, [
      { text: 'Signed.', thoughtSignature: 'U0lH' },
      { functionCall: { name: 'files__read', args: {}, id: 'c1' }, thoughtSignature: 'U0lH' },
      { functionCall: { name: 'files__read', args: {}, id: 'c2' } },
    ])
    t.strictSame(
      contents[3]?.parts?.map((part) => part.thoughtSignature),
      ['skip_thought_signature_validator', undefined],
    )
    t.notMatch(JSON.stringify(contents), /hidden/)
    const older = bodyOf({ model: 'gemini-2.5-flash', messages: messages.slice(3) }).contents ?? []
    t.notMatch(JSON.stringify(older), /skip_thought|"id"/, 'older models get neither ids nor dummies')
    t.match(older[0], { role: 'user' }, 'a history that starts with the model gets a user content before it')
    const refused = (message: string) => ({
      status: 400,
      headers: {},
      body: JSON.stringify({ error: { code: 400, message, status: 'INVALID_ARGUMENT' } }),
    })
    for (const message of [
      'Thought signature is not valid.',
      'Invalid value at \'contents[1].parts[0].thought_signature\' (TYPE_BYTES), "{}"',
    ]) {
      const again = gemini.repair?.(refused(message), request({ messages }))
      t.ok(again, message)
      t.notMatch(JSON.stringify(again?.messages), /U0lH/, 'what cannot be verified is left out')
      t.equal(again && gemini.repair?.(refused(message), again), null, 'once')
    }
    t.equal(gemini.repair?.(refused('Invalid JSON payload received.'), request({ messages })), null)
    const strange = refused(
      'Invalid JSON payload received. Unknown name "id" at \'contents[1].parts[1].function_call\': Cannot find field.',
    )
    const plain = gemini.repair?.(strange, request({ messages }))
    t.notMatch(
      JSON.stringify(plain && gemini.render(plain).body.contents),
      /"id"/,
      'ids go where they are known',
    )
    t.match(JSON.stringify(plain && gemini.render(plain).body.contents), /U0lH/)
    t.equal(plain && gemini.repair?.(strange, plain), null, 'once')
  },
)

t.test('a signature that Google cannot verify is left out once', async (t) => {
  const emulator = await start(t)
  const provenance = { ...PROVENANCE, opaque: 'Zm9yZWlnbg==' }
  const call: ToolCallPart = {
    type: 'tool_call',
    call_id: 'c1',
    name: 'files__read',
    arguments: {},
    provenance,
  }
  const one = request({
    tools: [tool('files.read')],
    messages: [
      user('hi'),
      { role: 'assistant', parts: [call, { type: 'text', text: '', provenance }] },
      { role: 'tool', parts: [resultOf(call)] },
    ],
  })
  const refused = await ask(gemini, emulator, one)
  t.match(refused.error, { code: 'upstream_rejected', details: { upstream: { message: /not valid/ } } })
  const again = refused.failure && gemini.repair?.(refused.failure, one)
  if (!again) return t.fail('no repair')
  t.equal((await ask(gemini, emulator, again)).error, null)
  t.equal(gemini.repair?.({ ...refused.failure }, again), null, 'there is nothing more to leave out')
  t.equal(gemini.repair?.({ ...refused.failure, body: '{}' }, one), null, 'another refusal is not repaired')
})

t.test(
  'results keep their kind: objects whole, text and errors named, media where the model takes it',
  async (t) => {
    const call: ToolCallPart = { type: 'tool_call', call_id: 'c1', name: 'files__read', arguments: {} }
    const body = (result: Partial<ToolResultPart>, model?: string, after: MessageInput[] = []) =>
      bodyOf({
        ...(model ? { model } : {}),
        messages: [
          user('hi'),
          { role: 'assistant', parts: [call] },
          { role: 'tool', parts: [resultOf(call, result)] },
          ...after,
        ],
      }).contents?.[2]?.parts
    const response = (result: Partial<ToolResultPart>) => body(result)?.[0]?.functionResponse?.response
    t.strictSame(response({}), { output: 'some text' })
    t.strictSame(response({ structured: { a: 1 } }), { a: 1 })
    t.strictSame(response({ structured: { output: 1, more: 2 } }), { output: { output: 1, more: 2 } })
    t.strictSame(response({ structured: [1], content: [] }), { output: [1] })
    t.strictSame(response({ content: [] }), { output: '' })
    t.strictSame(response({ is_error: true }), { error: 'some text' })
    t.strictSame(response({ is_error: true, content: [], structured: { code: 7 } }), { error: { code: 7 } })
    t.strictSame(
      response({ structured: { a: 1 }, spill: { exec_id: 'exec_1', bytes: 9 } }),
      { output: 'some text' },
      'of a spilled result the shortened text is sent',
    )
    const pdf: MediaPart = { type: 'file', media_type: 'application/pdf', data: 'aaaa' }
    const sound: MediaPart = { type: 'audio', media_type: 'audio/wav', data: 'aaaa' }
    t.match(body({ content: [IMAGE, pdf, sound] }), [
      {
        functionResponse: {
          id: 'c1',
          parts: [{ inlineData: { mimeType: 'image/png' } }, { inlineData: { mimeType: 'application/pdf' } }],
        },
      },
      { text: '[From the result of files__read:]' },
      { inlineData: { mimeType: 'audio/wav', data: 'aaaa' } },
    ])
    const gif: MediaPart = { type: 'image', media_type: 'image/gif', data: 'aaaa' }
    t.match(body({ content: [gif] }), [
      { functionResponse: { parts: undefined } },
      { text: '[From the result of files__read:]' },
      { text: '[image, image/gif: not shown to this model]' },
    ])
    const older = body({ content: [IMAGE] }, 'gemini-2.5-flash', [user('Go on.')])
    t.strictSame(older, [
      { functionResponse: { name: 'files__read', response: { output: '' } } },
      { text: '[From the result of files__read:]' },
      { inlineData: { mimeType: 'image/png', data: 'aaaa' } },
      { text: 'Go on.' },
    ])
  },
)

t.test("a user's media goes inline, by address, or in words where Gemini has no eyes for it", async (t) => {
  const link: MediaPart = { type: 'file', media_type: 'application/pdf', url: 'https://example.com/a.pdf' }
  const archive: MediaPart = { type: 'file', media_type: 'application/zip', data: 'aaaa', name: 'a.zip' }
  for (const media_type of ['image/gif', 'image/svg+xml', 'image/tiff', 'application/zip']) {
    const odd: MediaPart = { type: 'image', media_type, data: 'aaaa' }
    const { body, notes } = gemini.render(request({ messages: [{ role: 'user', parts: [odd] }] }))
    t.match((body as Request).contents?.[0]?.parts, [{ text: /not shown to this model/ }], media_type)
    t.equal(notes.length, 1)
  }
  const photo: MediaPart = { type: 'image', media_type: 'image/jpg', data: 'aaaa' }
  const one = request({ messages: [{ role: 'user', parts: [IMAGE, photo, link, archive] }] })
  const open = gemini.render(one)
  t.strictSame((open.body as Request).contents, [
    {
      role: 'user',
      parts: [
        { inlineData: { mimeType: 'image/png', data: 'aaaa' } },
        { inlineData: { mimeType: 'image/jpeg', data: 'aaaa' } },
        { fileData: { mimeType: 'application/pdf', fileUri: 'https://example.com/a.pdf' } },
        { text: '[file a.zip, application/zip: not shown to this model]' },
      ],
    },
  ])
  t.match(open.notes, [/application\/zip/])
  const closed = codeAssist.render(one)
  t.notMatch(JSON.stringify(closed.body), /fileData/)
  t.match(closed.notes, [/by URL/, /application\/zip/])
})

t.test('Code Assist has an envelope of its own, the same for every step of a prompt', async (t) => {
  const tools = [tool('files.read')]
  const { path, body } = codeAssist.render(request({ model: 'models/gemini-2.5-flash', tools }))
  t.equal(path, ':streamGenerateContent?alt=sse')
  t.equal(
    gemini.render(request({ model: 'models/gemini-2.5-flash' })).path,
    '/models/gemini-2.5-flash:streamGenerateContent?alt=sse',
    'the public path names the model itself',
  )
  t.match(body, {
    model: 'gemini-2.5-flash',
    project: 'acme-dev-482910',
    user_prompt_id: 'ses_1-1',
    request: { session_id: 'ses_1', contents: [{ role: 'user' }] },
  })
  const [both] = (body.request as { tools: Record<string, unknown>[] }).tools
  t.strictSame(both?.function_declarations, both?.functionDeclarations)
  t.strictSame(codeAssist.declare(tools, request().options), [both])
  const single = { ...request().options, dual_declarations: false }
  t.strictSame(Object.keys(codeAssist.declare(tools, single)[0] as object), ['functionDeclarations'])
  t.strictSame(gemini.declare(tools, request().options), bodyOf({ tools }).tools)
  t.strictSame(gemini.declare([], single), [])
  const emulator = await start(t)
  const sent = await ask(codeAssist, emulator, request({ tools, options: single }))
  t.equal(sent.error, null)

  for (const project_id of [undefined, '', ' ', '482910553377']) {
    const credential = { id: 'cred_1', ...(project_id === undefined ? {} : { project_id }) }
    const refused = errorOf(() => codeAssist.render(request({ credential })))
    t.match(refused, { code: 'invalid_request', param: 'project_id', message: /project/ })
  }
})

t.test('each path authorizes in its own way, and only a login takes the operator’s additions', async (t) => {
  const facts = { id: 'cred_1', quota_project: 'billed' }
  t.strictSame(gemini.authorize(SECRET, facts), { 'x-goog-api-key': 'a-key' })
  t.strictSame(codeAssist.authorize(SECRET, facts), { authorization: 'Bearer ya29.token' })
  t.strictSame(geminiOauth.authorize(SECRET, facts), {
    authorization: 'Bearer ya29.token',
    'x-goog-user-project': 'billed',
  })
  t.strictSame(geminiOauth.authorize(SECRET, { id: null }), { authorization: 'Bearer ya29.token' })
  const options = { system_blocks: ['First.'], headers: { 'X-Extra': '1' }, dual_declarations: true }
  const system = (deployment: Deployment) => {
    const { headers, body } = deployment.render(request({ options }))
    const { systemInstruction } = (body.request ?? body) as Record<string, unknown>
    return { headers, systemInstruction }
  }
  t.strictSame(system(gemini), {
    headers: {},
    systemInstruction: { role: 'user', parts: [{ text: 'Be short.' }] },
  })
  t.strictSame(system(geminiOauth), {
    headers: { 'x-extra': '1' },
    systemInstruction: { role: 'user', parts: [{ text: 'First.' }, { text: 'Be short.' }] },
  })
  t.equal(bodyOf({ instructions: ' ' }).systemInstruction, undefined)
})

/** Model, effort, the thinkingConfig expected, and whether a note says that it is not exact. */
const THINKING: readonly (readonly [string, Effort | undefined, object | undefined, boolean?])[] = [
  ['gemini-2.0-flash', undefined, undefined],
  ['gemini-2.0-flash', 'high', undefined, true],
  ['gemini-2.5-pro', undefined, { includeThoughts: true }],
  ['gemini-2.5-pro', 'none', { includeThoughts: true, thinkingBudget: 128 }, true],
  ['gemini-2.5-pro', 'minimal', { includeThoughts: true, thinkingBudget: 512 }],
  ['gemini-2.5-pro', 'max', { includeThoughts: true, thinkingBudget: 32_768 }],
  ['gemini-2.5-flash', 'none', { includeThoughts: false, thinkingBudget: 0 }],
  ['gemini-2.5-flash', 'medium', { includeThoughts: true, thinkingBudget: 8192 }],
  ['gemini-2.5-flash', 'xhigh', { includeThoughts: true, thinkingBudget: 24_576 }],
  ['gemini-2.5-flash-lite', undefined, undefined],
  ['gemini-2.5-flash-lite', 'low', { includeThoughts: true, thinkingBudget: 1024 }],
  ['gemini-3-pro-preview', 'medium', { includeThoughts: true, thinkingLevel: 'HIGH' }, true],
  ['gemini-3-pro-preview', 'low', { includeThoughts: true, thinkingLevel: 'LOW' }],
  ['gemini-3.1-pro-preview', 'minimal', { includeThoughts: true, thinkingLevel: 'LOW' }, true],
  ['gemini-3-flash-preview', 'minimal', { includeThoughts: true, thinkingLevel: 'MINIMAL' }],
  ['gemini-3-flash-preview', 'none', { includeThoughts: true, thinkingLevel: 'MINIMAL' }, true],
  ['gemini-3.6-flash', 'minimal', { includeThoughts: true, thinkingLevel: 'MINIMAL' }],
  ['gemini-3.8-flash', undefined, { includeThoughts: true }],
  ['gemini-3.8-flash', 'none', { includeThoughts: true, thinkingLevel: 'LOW' }, true],
  ['gemini-4-argon', 'max', { includeThoughts: true, thinkingLevel: 'HIGH' }, true],
  ['gemini-flash-latest', 'medium', { includeThoughts: true, thinkingLevel: 'MEDIUM' }],
  ['gemma-4-31b-it', 'low', { includeThoughts: true, thinkingLevel: 'MINIMAL' }, true],
]

t.test('an effort becomes the budget or the level that the model has', async (t) => {
  const emulator = await start(t)
  for (const [model, effort, expected, noted = false] of THINKING) {
    const one = request({ model, settings: effort ? { reasoning: { effort } } : {} })
    const { body, notes } = gemini.render(one)
    const { generationConfig } = body as Request
    t.strictSame(generationConfig?.thinkingConfig, expected, `${model} ${effort}`)
    t.equal(notes.length, noted ? 1 : 0, `${model} ${effort}: ${notes}`)
    if (model !== 'gemini-flash-latest') t.equal((await ask(gemini, emulator, one)).error, null)
  }
  const still = gemini.render(
    request({
      reported: { id: 'gemini-3.8-flash', efforts: [] },
      settings: { reasoning: { effort: 'low' } },
    }),
  )
  t.equal(
    (still.body as Request).generationConfig,
    undefined,
    'a model that says it does not think is not asked to',
  )
  t.match(still.notes, [/does not think/])
})

t.test('settings that Gemini lacks are left out and named', async (t) => {
  const tools = [tool('files.read')]
  const settings = { temperature: 1, top_p: 0.5, max_output_tokens: 10, parallel_tool_calls: false }
  const recent = gemini.render(request({ settings }))
  t.strictSame(recent.body.generationConfig, {
    maxOutputTokens: 10,
    thinkingConfig: { includeThoughts: true },
  })
  t.match(recent.notes, [
    'parallel_tool_calls: Gemini has no such setting',
    'temperature: not accepted by this model',
    'top_p: not accepted by this model',
  ])
  t.match(bodyOf({ model: 'gemini-2.5-pro', settings }).generationConfig, { temperature: 1, topP: 0.5 })

  const limit = (model: string, max_output_tokens: number, reported?: ModelRequest['reported']) => {
    const wish = request({ model, settings: { max_output_tokens }, ...(reported ? { reported } : {}) })
    const { body, notes } = gemini.render(wish)
    return [(body as Request).generationConfig?.maxOutputTokens, notes.length]
  }
  t.strictSame(limit('gemini-3.8-flash', 128_000), [65_536, 1])
  t.strictSame(limit('gemini-3.8-flash', 65_536), [65_536, 0])
  t.strictSame(limit('gemini-2.0-flash', 65_536), [8192, 1])
  t.strictSame(limit('gemini-3.8-flash', 128_000, { id: 'x', max_output_tokens: 99_999 }), [99_999, 1])
  t.strictSame(limit('somebody-elses', 128_000), [128_000, 0])

  const choice = (tool_choice: ModelRequest['settings']['tool_choice'], list = tools) => {
    const { body, notes } = gemini.render(
      request({ tools: list, settings: tool_choice ? { tool_choice } : {} }),
    )
    const { toolConfig } = body as Request
    return { config: toolConfig?.functionCallingConfig, notes: notes.length }
  }
  t.strictSame(choice(undefined), { config: undefined, notes: 0 })
  t.strictSame(choice('auto'), { config: undefined, notes: 0 })
  t.strictSame(choice('none'), { config: { mode: 'NONE' }, notes: 0 })
  t.strictSame(choice('required'), { config: { mode: 'ANY' }, notes: 0 })
  t.strictSame(choice({ name: 'files.read' }), {
    config: { mode: 'ANY', allowedFunctionNames: ['files__read'] },
    notes: 0,
  })
  t.strictSame(choice({ name: 'files.gone' }), { config: undefined, notes: 1 })
  t.strictSame(choice('required', []), { config: undefined, notes: 1 })
  t.strictSame(choice('none', []), { config: undefined, notes: 0 })
})

t.test('the list of models is read for what generates content', async (t) => {
  t.strictSame(gemini.models?.parse(JSON.parse(fixture('public-models.json'))), [
    { id: 'gemini-3.8-flash', max_input_tokens: 1_048_576, max_output_tokens: 65_536 },
  ])
  const plain = { name: 'models/old', supportedGenerationMethods: ['generateContent'] }
  t.strictSame(gemini.models?.parse({ models: [plain, null, { name: 7 }] }), [{ id: 'old', efforts: [] }])
  t.strictSame(gemini.models?.parse('nonsense'), [])
  t.equal(codeAssist.models, undefined)
})

// What Baton writes must be what the vendor's own types allow; the compiler fails otherwise.
type Extends<A extends B, B> = [A, B]
type Loose<T> = { [K in keyof T]: K extends 'thinkingLevel' ? `${T[K] & string}` : T[K] }
export type SdkAgrees = [
  Extends<Content, SdkContent>,
  Extends<ReturnType<typeof declareTools>[number]['functionDeclarations'][number], FunctionDeclaration>,
  Extends<ThinkingConfig, Loose<SdkThinkingConfig>>,
]

t.test("the vendor's SDK writes the same body for the same request", async (t) => {
  const emulator = await start(t)
  const call: ToolCallPart = {
    type: 'tool_call',
    call_id: 'c1',
    name: 'files__read',
    arguments: { path: 'a' },
    provenance: { ...PROVENANCE, opaque: 'c2tpcA==' },
  }
  const one = request({
    model: 'gemini-2.5-flash',
    tools: [tool('files.read')],
    settings: {
      temperature: 0.5,
      top_p: 0.9,
      max_output_tokens: 10,
      reasoning: { effort: 'low' },
      tool_choice: 'required',
    },
    messages: [
      { role: 'user', parts: [{ type: 'text', text: 'hi' }, IMAGE] },
      { role: 'assistant', parts: [{ type: 'text', text: 'Reading.' }, call] },
      { role: 'tool', parts: [resultOf(call)] },
    ],
  })
  emulator.script(() => calls(['files__read', {}]))
  await ask(gemini, emulator, one)
  const { contents, systemInstruction, tools, toolConfig, generationConfig } = bodyOf(one)
  const sdk = new GoogleGenAI({
    apiKey: 'a-key',
    httpOptions: { baseUrl: emulator.url, apiVersion: 'v1beta' },
  })
  const stream = await sdk.models.generateContentStream({
    model: one.model,
    contents: contents as SdkContent[],
    config: { systemInstruction, tools, toolConfig, ...generationConfig } as GenerateContentConfig,
  })
  const reasons: unknown[] = []
  for await (const chunk of stream) reasons.push(chunk.candidates?.[0]?.finishReason)
  t.equal(reasons.at(-1), 'STOP')
  const [ours, theirs] = emulator.requests
  t.strictSame(ours?.body, theirs?.body)
  t.equal(ours?.path, theirs?.path)
})

t.test('any history, repaired, keeps every rule of the server', async (t) => {
  const name = fc.constantFrom('files.read', 'files.view', 'search')
  const opaque = fc.option(fc.constant('Zm9yZWlnbg=='), { nil: undefined })
  const foreign = { provider: 'openai', model: 'gpt', credential_id: null }
  const words = fc.constantFrom('', ' ', 'text', 'two\nlines', 'half \ud83d')
  const media = fc.constantFrom<MediaPart>(
    IMAGE,
    { type: 'image', media_type: 'image/gif', data: 'aaaa' },
    { type: 'image', media_type: 'image/svg+xml', url: 'https://example.com/a.svg' },
    { type: 'audio', media_type: 'audio/wav', data: 'aaaa' },
    { type: 'file', media_type: 'application/zip', data: 'aaaa' },
    { type: 'image', media_type: 'image/png', url: 'https://example.com/a.png' },
  )
  const textPart = words.map((value): Part => ({ type: 'text', text: value }))
  const part: fc.Arbitrary<Part> = fc.oneof(
    textPart,
    media,
    fc.tuple(words, opaque).map(
      ([value, token]): Part => ({
        type: 'reasoning',
        text: value,
        provenance: { ...foreign, ...(token ? { opaque: token } : {}) },
      }),
    ),
    fc.tuple(fc.nat(5), name).map(
      ([n, called]): Part => ({
        type: 'tool_call',
        call_id: `call ${n}`,
        name: called,
        arguments: { n, '\udc4b': 'half \ud83d' },
      }),
    ),
    fc.tuple(fc.nat(5), name, fc.boolean(), fc.array(fc.oneof(textPart, media), { maxLength: 2 })).map(
      ([n, called, is_error, content]): Part => ({
        type: 'tool_result',
        call_id: `call ${n}`,
        name: called,
        content: content as ToolResultPart['content'],
        is_error,
        outcome: is_error ? 'error' : 'ok',
      }),
    ),
    fc.constant<Part>({ type: 'notice', text: 'for people' }),
  )
  const message: fc.Arbitrary<MessageInput> = fc.record({
    role: fc.constantFrom('user', 'assistant', 'tool', 'system'),
    parts: fc.array(part, { maxLength: 4 }),
  })
  const tools = [tool('files.read'), tool('files.view'), tool('search')]
  fc.assert(
    fc.property(fc.array(message, { maxLength: 8 }), fc.constantFrom(...MODELS), (history, model) => {
      const { messages } = repair(history, target(model))
      const { body } = gemini.render(request({ model, messages, tools }))
      const traits = traitsOf(model)
      if (!traits) throw new Error(`${model} is unknown to the emulator`)
      const sent = readBody(JSON.parse(JSON.stringify(body)), PUBLIC_REQUEST) as Request
      checkRequest(sent, model, traits, createSignatures())
    }),
    { numRuns: 400 },
  )
  t.pass('no history was refused')
})

t.test('an answer in pieces of any size is the same answer', async (t) => {
  const emulator = await start(t)
  emulator.script(() => ({ ...text('Grüße, 世界 🚀'), chunk: 3 }))
  const { parts } = await ask(codeAssist, emulator, request())
  t.match(parts[0], { type: 'text', text: 'Grüße, 世界 🚀' })
})
