/** Gemini's streams, recorded and made up, become the parts of a message; a broken stream is a failure. */
import { readdirSync } from 'node:fs'
import t from 'tap'
import { gemini } from '../../../providers/gemini/index.ts'
import type { ModelEvent } from '../../../src/chat/event.ts'
import type { SseFrame } from '../../../src/sse.ts'
import { EMPTY, NONE } from '../../patterns.ts'
import { eventsOf, parserOf } from '../exchange.ts'
import { fold, framed, framesOf, thrownBy } from '../streams.ts'
import { FIXTURES, fixture, origin } from './exchange.ts'

const newParser = () => parserOf(gemini, origin)
const parse = (frames: readonly SseFrame[]): ModelEvent[] => eventsOf(newParser(), frames)
const parseChunks = (...chunks: unknown[]) =>
  parse(chunks.map((chunk) => ({ event: undefined, id: undefined, data: JSON.stringify(chunk) })))
const candidate = (fields: object) => ({ candidates: [fields] })
const said = (...parts: object[]) => candidate({ content: { role: 'model', parts } })
const done = (finishReason = 'STOP', extra: object = {}) => candidate({ finishReason, ...extra })

const lastOf = (events: readonly ModelEvent[], type: ModelEvent['type']) =>
  events.filter((event) => event.type === type).at(-1)

const usage = (input_tokens: number, output_tokens: number, reasoning_tokens = 0, cached_tokens = 0) => ({
  type: 'usage',
  usage: { input_tokens, output_tokens, reasoning_tokens, cached_tokens },
})

t.test('each recorded stream becomes its parts, usage and finish', async (t) => {
  const read = (name: string) => {
    const events = parse(framesOf(fixture(name)))
    return { parts: fold(events), usage: lastOf(events, 'usage'), finish: events.at(-1), events }
  }
  const plain = read('text.sse')
  t.strictSame(plain.parts, [
    {
      type: 'text',
      text: 'A wire protocol is the exact form in which two programs exchange bytes: framing, fields and order.\n\nGrüße, 世界 🚀',
      provenance: origin,
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
    parts: NONE,
    finish: { reason: 'length' },
    usage: usage(31, 256, 256),
  })
  t.match(read('prompt-blocked.sse'), {
    parts: NONE,
    finish: { reason: 'refusal', refusal: /./ },
    usage: usage(44, 0),
  })
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

t.test('a stream that is cut anywhere before its end fails as disconnected', async (t) => {
  const names = readdirSync(FIXTURES).filter((name) => name.endsWith('.sse'))
  t.ok(names.length >= 10)
  for (const name of names.filter((file) => file !== 'midstream-error.sse')) {
    const whole = fixture(name)
    const list = framesOf(whole)
    const complete = name !== 'no-finish-reason.sse'
    for (let n = 0; n <= list.length; n++) {
      if (n === list.length && complete) continue
      t.equal(
        thrownBy(() => parse(list.slice(0, n)))?.code,
        'upstream_disconnected',
        `${name} after ${n} frames`,
      )
    }
    const codes = new Set<string | undefined>()
    for (let at = 0; at < whole.trimEnd().length; at += 13) {
      codes.add(thrownBy(() => parse(framesOf(whole.slice(0, at))))?.code)
    }
    t.strictSame([...codes], ['upstream_disconnected'], `${name} cut within its frames`)
    const bare = framesOf(whole.trimEnd())
    t.equal(bare.length, list.length, `${name} without its last blank line has all frames`)
  }
})

t.test('an error within a stream is read like an error instead of a stream', async (t) => {
  const [first, second] = framesOf(fixture('midstream-error.sse'))
  const parser = newParser()
  t.match(parser.push(first as SseFrame), [{ type: 'text.delta' }, { type: 'usage' }].reverse())
  const error = thrownBy(() => parser.push(second as SseFrame))
  t.match(error, { code: 'upstream_overloaded', details: { upstream: { status: 503, code: 'UNAVAILABLE' } } })
  const wrapped = thrownBy(() => parseChunks({ response: { error: { code: 429, message: 'Slow down.' } } }))
  t.match(wrapped, { code: 'upstream_rate_limited', retryAfter: 5 })
  const beside = thrownBy(() => parseChunks({ response: {}, error: { code: 503, message: 'Full.' } }))
  t.match(beside, { code: 'upstream_overloaded' })
  const headers = { date: 'Tue, 01 Dec 2026 06:00:00 GMT' }
  const details = [
    {
      '@type': 'type.googleapis.com/google.rpc.ErrorInfo',
      metadata: { quotaResetTimeStamp: '2026-12-01T06:00:40Z' },
    },
  ]
  const [limited] = framed({ error: { code: 429, details } })
  t.match(
    thrownBy(() => parserOf(gemini, origin, headers).push(limited as SseFrame)),
    { retryAfter: 40 },
    "a time is counted from the response's own",
  )
  const broken = [JSON.stringify(done()), '{"candidates":'].map((data) => ({
    event: undefined,
    id: undefined,
    data,
  }))
  t.match(
    thrownBy(() => parse(broken)),
    { code: 'upstream_disconnected' },
    'half an event after a finish',
  )
  const data = `{"error":{"code":503,"details":${'['.repeat(50_000)}${']'.repeat(50_000)}}}`
  const deep = thrownBy(() => parse([{ event: undefined, id: undefined, data }]))
  t.match(deep?.code, /^upstream_/)
})

t.test('a call part without a name completes the call before it, and is no call of its own', async (t) => {
  const call = (functionCall: object, extra: object = {}) => said({ functionCall, ...extra })
  const named = call({ name: 'files__read', args: {} })
  const nameless = call({ args: { path: 'a' } }, { thoughtSignature: 'U0lH' })
  const whole = parseChunks(named, nameless, call({ name: 'files__read', args: { path: 'b' } }), done())
  t.match(fold(whole), [
    { name: 'files.read', arguments: { path: 'a' }, provenance: { opaque: 'U0lH' } },
    { name: 'files.read', arguments: { path: 'b' } },
  ])
  t.equal(fold(whole).length, 2)
  const signed = call({ name: 'files__read', args: {} }, { thoughtSignature: 'QUJD' })
  t.match(fold(parseChunks(call({ name: 'files__read', args: { path: 'b' } }), signed, nameless, done())), [
    { arguments: { path: 'b' } },
    { arguments: { path: 'a' }, provenance: { opaque: 'QUJD' } },
  ])
  const failures = [
    [nameless],
    [named, nameless, nameless],
    [call({ name: 'files__read', args: { path: 'a' } }), call({ name: '' })],
  ]
  for (const chunks of failures) {
    t.strictSame(parseChunks(...chunks, done()), [
      { type: 'finish', reason: 'error', invalid_call: 'It did not name its tool.' },
    ])
  }
  t.match(parseChunks(nameless, done('SAFETY')).at(-1), { reason: 'refusal' })
})

t.test('text, calls and media keep the order in which they came', async (t) => {
  const call = (path: string, more: object = {}) => ({
    functionCall: { id: path, name: 'files__read', args: { path } },
    ...more,
  })
  const blob = (more: object) => ({ inlineData: { data: 'aaaa', ...more } })
  const text = (index: number, words: string) => [
    { type: 'text.delta', index, text: words },
    { type: 'part', index, part: { type: 'text', text: words, provenance: origin } },
  ]
  const written = (index: number, path: string, provenance: object = origin) => {
    const named = { call_id: `call_${path}`, name: 'files.read' }
    return [
      { type: 'tool_call.delta', index, ...named, arguments_delta: JSON.stringify({ path }) },
      { type: 'part', index, part: { type: 'tool_call', ...named, arguments: { path }, provenance } },
    ]
  }
  const events = parseChunks(
    said({ text: 'a' }, call('x', { thoughtSignature: 'U0lH' }), { text: 'b' }),
    said(blob({ mimeType: 'application/pdf' }), blob({}), { text: 'c' }, call('y')),
    done(),
  )
  t.strictSame(events, [
    ...text(0, 'a'),
    ...text(2, 'b'),
    { type: 'part', index: 3, part: { type: 'file', media_type: 'application/pdf', data: 'aaaa' } },
    { type: 'part', index: 4, part: { type: 'file', media_type: 'application/octet-stream', data: 'aaaa' } },
    ...text(5, 'c'),
    ...written(1, 'x', { ...origin, opaque: 'U0lH' }),
    ...written(6, 'y'),
    { type: 'finish', reason: 'tool_calls' },
  ])
})

t.test('an image alone is an answer, and an image within thoughts is not', async (t) => {
  const image = { inlineData: { mimeType: 'image/png', data: 'aaaa' } }
  for (const reason of ['STOP', 'OTHER'])
    t.strictSame(parseChunks(said(image), done(reason)).at(-1), { type: 'finish', reason: 'stop' })
  t.strictSame(parseChunks(said({ ...image, thought: true }), done()), [
    { type: 'finish', reason: 'stop', silent: 'empty' },
  ])
})

t.test('an answer may have more calls than a function takes arguments', async (t) => {
  const calls = Array.from({ length: 70_000 }, () => ({ functionCall: { name: 'files__read' } }))
  t.equal(fold(parseChunks(said(...calls), done())).length, calls.length)
})

t.test('arguments that nest too deep are kept as text', async (t) => {
  const nested = (levels: number) => {
    const args = `${'{"a":'.repeat(levels)}1${'}'.repeat(levels)}`
    const call = `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"files__read","args":${args}}}]}}]}`
    const frames = [call, JSON.stringify(done())].map((data) => ({ event: undefined, id: undefined, data }))
    return { args, parts: fold(parse(frames)) }
  }
  const deep = nested(300)
  t.match(deep.parts, [{ arguments: EMPTY, arguments_text: deep.args }])
  // How deep a value JSON.stringify can write depends on Node.
  t.match(nested(50_000).parts, [{ arguments: EMPTY, arguments_text: /^(…|\{"a":.*\})$/ }])
})

t.test('a call with a whole number that Google may have rounded is not run', async (t) => {
  const called = (args: string) => {
    const call = `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"files__read","args":${args}}}]}}]}`
    const frames = [call, JSON.stringify(done())].map((data) => ({ event: undefined, id: undefined, data }))
    return fold(parse(frames))
  }
  for (const [args, arguments_text] of [
    ['{"id":1.2345678901234568e+18}', '{"id":1234567890123456800}'],
    ['{"id":1234567890123456789}', '{"id":1234567890123456800}'],
    ['{"ids":[1,{"of":-9007199254740992}]}', '{"ids":[1,{"of":-9007199254740992}]}'],
  ] as const)
    t.match(called(args), [{ arguments: EMPTY, arguments_text }])
  for (const args of [
    '{"id":9007199254740991,"on":"1234567890123456789"}',
    '{"wei":1.23456789012345e18,"far":1.5e300,"none":null}',
    '{"pi":3.141592653589793,"n":[-0.30000000000000004]}',
  ])
    t.strictSame(called(args), [
      {
        type: 'tool_call',
        call_id: 'call_made1',
        name: 'files.read',
        arguments: JSON.parse(args),
        provenance: origin,
      },
    ])
})

t.test('an answer with nothing to read and no call is marked as silent', async (t) => {
  const thought = said({ text: 'hm', thought: true })
  const blank = said({ text: '\n' })
  for (const [silent, ...chunks] of [
    ['empty'],
    ['empty', blank],
    ['thoughts', thought],
    ['thoughts', thought, blank],
  ] as const) {
    t.strictSame(parseChunks(...chunks, done('STOP')).at(-1), { type: 'finish', reason: 'stop', silent })
  }
  t.strictSame(parseChunks(blank, done('OTHER')).at(-1), { type: 'finish', reason: 'stop', silent: 'empty' })
  for (const chunks of [[], [thought], [said({ text: '\n' })]]) {
    const after = parseChunks(said({ text: 'a' }), ...chunks, done('OTHER')).at(-1)
    t.strictSame(
      after,
      { type: 'finish', reason: 'stop' },
      'an answer that said something earlier is not silent',
    )
  }
})

t.test(
  'an answer that Google ends for what it holds against the account is a refused credential',
  async (t) => {
    const finishMessage = 'See the policy.'
    for (const begun of [[], [said({ text: 'Let me' })], [said({ functionCall: { name: 'files__read' } })]]) {
      t.match(
        thrownBy(() => parseChunks(...begun, done('PUP_LIMITED_DISABLED', { finishMessage }))),
        {
          code: 'upstream_auth',
          message: /limited or disabled .* See the policy\./,
          details: { upstream: { reason: 'PUP_LIMITED_DISABLED', message: finishMessage } },
        },
      )
    }
  },
)

t.test('an answer that ends for an unknown reason without content fails with Google’s words', async (t) => {
  for (const reason of ['OTHER', 'LANGUAGE', 'NO_IMAGE', 'NEW', 'constructor']) {
    const finishMessage = `Unable to answer: ${reason}`
    const thought = said({ text: 'hm', thought: true })
    t.match(
      thrownBy(() => parseChunks(thought, done(reason, { finishMessage }))),
      {
        code: 'upstream_rejected',
        message: new RegExp(finishMessage),
        details: { upstream: { reason, message: finishMessage } },
      },
    )
  }
  const finishMessage = 'x'.repeat(3000)
  t.match(
    thrownBy(() => parseChunks(done('OTHER', { finishMessage }))),
    { details: { upstream: { message: finishMessage } } },
    'the words are not cut here: secrets are taken out of them first',
  )
  t.match(
    thrownBy(() => parseChunks(done('OTHER'))),
    { message: /\(OTHER\)\. It gave no words/ },
  )
})

t.test('an unspecified reason counts as none, since backends write it into every chunk', async (t) => {
  const unspecified = (...parts: object[]) => ({
    ...candidate({ content: { role: 'model', parts }, finishReason: 'FINISH_REASON_UNSPECIFIED' }),
    promptFeedback: { blockReason: 'BLOCK_REASON_UNSPECIFIED' },
  })
  const call = { functionCall: { name: 'files__read', args: {} } }
  for (const part of [{ text: 'half a' }, call])
    t.match(
      thrownBy(() => parseChunks(unspecified(part))),
      { code: 'upstream_disconnected' },
    )
  for (const blockReason of ['BLOCK_REASON_UNSPECIFIED', 'BLOCKED_REASON_UNSPECIFIED'])
    t.match(
      thrownBy(() => parseChunks({ promptFeedback: { blockReason } })),
      { code: 'upstream_disconnected' },
    )
  const thought = unspecified({ text: 'hm', thought: true })
  t.match(parseChunks(thought, done()).at(-1), { reason: 'stop', silent: 'thoughts' })
  t.match(parseChunks(unspecified(call), done()).at(-1), { reason: 'tool_calls' })
})

t.test('odd shapes of a stream are read', async (t) => {
  t.match(
    fold(parseChunks(said({ functionCall: { name: 'files__read', args: {} } }), done())),
    [{ type: 'tool_call', call_id: 'call_made1', name: 'files.read', arguments: EMPTY }],
    'a call without an id gets one',
  )
  t.match(parseChunks(said({ text: 'I' }), done('SAFETY')).at(-1), { reason: 'refusal', refusal: 'SAFETY' })
  const words = { finishMessage: 'It was recited.' }
  t.match(parseChunks(done('RECITATION', words)).at(-1), { reason: 'refusal', refusal: 'It was recited.' })
  t.match(fold(parseChunks(said({ functionCall: { name: 'files__read' } }), done())), [{ arguments: EMPTY }])
  t.match(fold(parseChunks(said({ functionCall: { name: 'files__read', args: [1] } }), done())), [
    { arguments: EMPTY, arguments_text: '[1]' },
  ])
  const call = {
    functionCall: { name: 'files__read', args: { path: 'a' } },
    thoughtSignature: 'c2lnbmF0dXJl',
  }
  const called = {
    type: 'tool_call',
    arguments: { path: 'a' },
    provenance: { opaque: call.thoughtSignature },
  }
  t.match(fold(parseChunks(said({ text: '', ...call }), done())), [called], 'a call in a part of empty text')
  t.match(
    fold(parseChunks(said({ text: 'So.', ...call }), done())),
    [{ text: 'So.', provenance: { opaque: undefined } }, called],
    'a call in a part of text',
  )
  const halves = [{ name: 'files__read' }, { args: { path: 'a' } }].map((half) => ({ functionCall: half }))
  t.match(
    fold(parseChunks(...halves.map((half) => said({ text: '', ...half })), done())),
    [{ arguments: { path: 'a' } }],
    'a call in two parts of empty text',
  )
  const unset = said({ text: 'So.', thoughtSignature: 'c2ln', functionCall: {}, inlineData: {} })
  const alone = parseChunks(unset, done())
  t.match(
    fold(alone),
    [{ text: 'So.', provenance: { opaque: 'c2ln' } }],
    'fields that are not set say nothing',
  )
  t.match(alone.at(-1), { reason: 'stop' })
  const late = parseChunks(
    said({ functionCall: { name: 'files__read', args: { path: 'a' } } }),
    said({ functionCall: { name: 'files__read', args: { path: 'a' } } }),
    said({ text: '' }),
    done(),
  )
  t.equal(fold(late).length, 2, 'two equal calls are two calls')
  t.match(late.at(-1), { reason: 'tool_calls' }, 'a call in an earlier chunk decides the finish')
  const delta = late.find(({ type }) => type === 'tool_call.delta')
  t.match(delta, { name: 'files.read', arguments_delta: '{"path":"a"}' })

  const undeclaredLater = parseChunks(
    said({ functionCall: { name: 'shell', args: {} } }),
    done('UNEXPECTED_TOOL_CALL', { finishMessage: 'Unexpected tool call: shell' }),
  )
  t.strictSame(undeclaredLater, [
    { type: 'finish', reason: 'error', invalid_call: 'Unexpected tool call: shell' },
  ])
  t.strictSame(
    parseChunks(said({ functionCall: { name: 'files__read', args: {} } }), done('SAFETY')),
    [{ type: 'finish', reason: 'refusal', refusal: 'SAFETY' }],
    'a call of a refused answer is dropped',
  )
  for (const [blockReasonMessage, refusal] of [
    ['It is not allowed.', 'It is not allowed.'],
    [undefined, 'SAFETY'],
  ]) {
    const blocked = { promptFeedback: { blockReason: 'SAFETY', blockReasonMessage } }
    t.strictSame(parseChunks(blocked, {}), [{ type: 'finish', reason: 'refusal', refusal }])
  }
  t.match(parseChunks(done('TOO_MANY_TOOL_CALLS')).at(-1), {
    reason: 'error',
    invalid_call: 'TOO_MANY_TOOL_CALLS',
  })

  t.match(fold(parseChunks(said({ inlineData: { mimeType: 'image/png', data: 'aaaa' } }), done())), [
    { type: 'image', media_type: 'image/png', data: 'aaaa' },
  ])
  const images = ['a-8', 'no base64!'].map((data) => ({ inlineData: { mimeType: 'image/png', data } }))
  t.strictSame(fold(parseChunks(said(...images), done())), [
    { type: 'image', media_type: 'image/png', data: 'a+8=' },
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
    'parts without a canonical form are skipped',
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
  t.equal(split.length, 4, 'a signature ends its part')

  const reasons = {
    length: 'MAX_TOKENS CONTINUATION',
    refusal:
      'SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR ESCALATION IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION IMAGE_OTHER',
    error:
      'MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS MALFORMED_RESPONSE MISSING_THOUGHT_SIGNATURE',
    stop: 'LANGUAGE OTHER NO_IMAGE NEW',
  }
  for (const [meant, names] of Object.entries(reasons)) {
    for (const name of names.split(' '))
      t.match(parseChunks(said({ text: 'so' }), done(name)).at(-1), { reason: meant }, name)
  }
  t.match(parseChunks(done('STOP'), done('MAX_TOKENS'), done('STOP')).at(-1), { reason: 'length' })
  t.match(fold(parseChunks([said({ text: 'as ' }), said({ text: 'an array' }), done()])), [
    { text: 'as an array' },
  ])
  t.match(parseChunks({ error: null, response: { ...said({ text: 'a' }), error: null } }, done()).at(-1), {
    reason: 'stop',
  })
  t.match(parseChunks({ traceId: 'x' }, { response: {} }, said({ text: 'a' }), done()).at(-1), {
    reason: 'stop',
  })
  const partial = parseChunks(
    { usageMetadata: { promptTokenCount: 7, toolUsePromptTokenCount: 3 } },
    { ...done(), usageMetadata: { candidatesTokenCount: 2, trafficType: 'ON_DEMAND' } },
    { usageMetadata: { trafficType: 'ON_DEMAND', promptTokenCount: null } },
  )
  t.strictSame(lastOf(partial, 'usage'), usage(10, 2), 'a partial count does not reset the other counts')
})
