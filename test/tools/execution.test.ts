/** One tool call from the model's arguments to the settled result; what is stored of it, and read again. */
import fc from 'fast-check'
import { pino } from 'pino'
import t from 'tap'
import { inspectToolOutput } from '../../src/builtins/inspect_tool_output.ts'
import type { ContentPart, ToolCallPart } from '../../src/chat/message.ts'
import type { Toolbox } from '../../src/config/config.ts'
import { BatonError } from '../../src/errors.ts'
import { McpError, type McpResult } from '../../src/mcp/contract.ts'
import type { Connector, Execution, RegistryTool } from '../../src/store/store.ts'
import type { Builtin } from '../../src/tools/builtin.ts'
import {
  createExecutor,
  type ExecutorCall,
  type ExecutorDeps,
  type Settled,
  ToolBusy,
  type ToolProgress,
} from '../../src/tools/execute.ts'
import { createGate } from '../../src/tools/gate.ts'
import { MASK } from '../../src/tools/redact.ts'
import { MODEL_LIMIT, shapeResult } from '../../src/tools/results.ts'
import { outputSlice } from '../../src/tools/slice.ts'
import { cutUtf8, endUtf8 } from '../../src/tools/text.ts'
import { createToolboxPolicy } from '../../src/tools/toolbox.ts'
import { createValidator, type Problem } from '../../src/tools/validate.ts'

const SECRET = `ghp_${'a1B2'.repeat(9)}`

const tool = (over: Partial<RegistryTool> = {}): RegistryTool => ({
  canonical_name: 'srv.read',
  exposed_name: 'srv__read',
  source: 'mcp',
  connector_id: 'con_srv',
  server: 'srv',
  mcp_tool_name: 'read',
  description: '',
  parameters: { type: 'object', properties: {} },
  input_schema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
  annotations: {},
  enabled: true,
  status: 'available',
  reason: null,
  is_blocked: false,
  last_seen_at: null,
  hash: 'h',
  order: 1,
  ...over,
})
const connector = { id: 'con_srv', name: 'srv', trust_annotations: false } as Connector
const text = (words: string): ContentPart => ({ type: 'text', text: words })
const words = ({ result }: Settled): string =>
  result.content.map((part) => (part.type === 'text' ? part.text : `<${part.type}>`)).join('\n')

interface Given {
  answer?: (args: Record<string, unknown>, signal: AbortSignal) => Promise<McpResult>
  deps?: Partial<ExecutorDeps>
}
const ok = async (): Promise<McpResult> => ({ content: [text('fine')], is_error: false })

const toolbox = (over: Partial<Toolbox>): Toolbox => ({
  configured: true,
  maxConcurrent: 10,
  tools: [],
  mcps: [],
  inspect: true,
  ...over,
})

/** An executor over a double of the door; `sent` are the arguments that reached it. */
function setUp({ answer = ok, deps = {} }: Given = {}) {
  const sent: Record<string, unknown>[] = []
  const executor = createExecutor({
    store: { executions: {} as ExecutorDeps['store']['executions'] },
    mcp: {
      call: (_spec, _name, args, { signal }) => {
        sent.push(args)
        return answer(args, signal)
      },
    },
    builtins: [inspectToolOutput],
    specFor: ({ name }) => ({ key: name, name, transport: 'streamable_http', allowPrivate: true }),
    place: async () => () => {},
    isRepeatable: createToolboxPolicy(toolbox({})).isRepeatable,
    log: pino({ level: 'silent' }),
    ...deps,
  })
  t.teardown(() => executor.close())
  const run = (call: Partial<ToolCallPart>, over: Partial<ExecutorCall> = {}) =>
    executor.run({
      scope: { owner: 'o', admin: false },
      session_id: 'ses_1',
      exec_id: 'exec_1',
      call: { type: 'tool_call', call_id: 'call_1', name: 'srv.read', arguments: { path: 'x' }, ...call },
      declared: { tool: tool(), rename: null },
      connector,
      timeoutMs: 1_000,
      signal: new AbortController().signal,
      onProgress: () => {},
      ...over,
    })
  return { executor, run, sent }
}
const failing = (error: unknown): Given => ({ answer: () => Promise.reject(error) })

// ---------------------------------------------------------------- running

t.test('a call that fits is sent with its arguments, and its answer is the result', async (t) => {
  const { run, sent } = setUp()
  const done = await run({})
  t.match(done.result, {
    call_id: 'call_1',
    name: 'srv.read',
    outcome: 'ok',
    is_error: false,
    content: [text('fine')],
  })
  t.match(done.settlement, {
    id: 'exec_1',
    outcome: 'ok',
    error: null,
    output: 'fine',
    structured: false,
    bytes: 4,
  })
  t.strictSame(sent, [{ path: 'x' }])
})

t.test('a flood of progress is told in a few words, now and then', async (t) => {
  const told: ToolProgress[] = []
  const mcp: ExecutorDeps['mcp'] = {
    async call(_spec, _name, _args, { onProgress }) {
      for (let progress = 1; progress <= 50_000; progress++)
        onProgress({ progress, message: 'é'.repeat(9_000) })
      return ok()
    },
  }
  const started = performance.now()
  await setUp({ deps: { mcp } }).run({}, { onProgress: (progress) => told.push(progress) })
  t.match(told[0], { progress: 1, message: /^é+$/ })
  t.equal(Buffer.byteLength(told[0]?.message ?? ''), 2_000)
  t.ok(told.length <= 2 + (performance.now() - started) / 100, `${told.length} of fifty thousand`)
})

t.test('what cannot be called is not sent, and the model is told why', async (t) => {
  const { run, sent } = setUp()
  const none = await run({ name: 'srv__gone' }, { declared: undefined })
  t.match(words(none), /no tool srv__gone/)
  const broken = await run({ arguments: {}, arguments_text: `{"path": "${SECRET}` })
  t.match(words(broken), /no JSON object/)
  t.notMatch(JSON.stringify(broken), SECRET)
  t.match(words(await run({ arguments: {}, arguments_text: '[1]' })), /valid JSON, but no object/)
  const wrong = await run({ arguments: { path: 5 } })
  t.match(words(wrong), /path must be string.*Nothing was called/)
  t.match(words(await run({ arguments: {} })), /the arguments must have the property 'path'/)
  for (const settled of [none, broken, wrong]) {
    t.match(settled.result, { outcome: 'error', is_error: true })
    t.match(settled.settlement, { outcome: 'error', error: /./ })
  }
  const aborted = AbortSignal.abort()
  t.match((await run({}, { signal: aborted })).result, { outcome: 'cancelled' })
  t.strictSame(sent, [])
})

t.test(
  'renamed properties reach the server under their own names, and problems use the sent ones',
  async (t) => {
    const { run, sent } = setUp()
    const schema = {
      type: 'object',
      properties: { 'due.on': { type: 'string' } },
      required: ['due.on'],
      additionalProperties: false,
    }
    const declared = { tool: tool({ input_schema: schema }), rename: new Map([['due_on_ab12cd', 'due.on']]) }
    await run({ arguments: { due_on_ab12cd: 'today' } }, { declared })
    t.strictSame(sent, [{ 'due.on': 'today' }])
    t.match(
      words(await run({ arguments: { due_on_ab12cd: 3 } }, { declared })),
      /due_on_ab12cd must be string/,
    )
    t.match(words(await run({ arguments: {} }, { declared })), /must have the property 'due_on_ab12cd'/)
    t.match(
      words(await run({ arguments: { due_on_ab12cd: 'x', y: 1 } }, { declared })),
      /must not have the property 'y'/,
    )
  },
)

t.test('a failure says whether the call may have taken effect', async (t) => {
  const outcome = async (
    kind: McpError['kind'],
    sent: boolean,
    hints = {},
    trusted = false,
    rpcCode?: number,
  ) => {
    const { run } = setUp(failing(new McpError(kind, 'its words', { sent, rpcCode })))
    const done = await run(
      {},
      {
        declared: { tool: tool({ annotations: hints }), rename: null },
        connector: { ...connector, trust_annotations: trusted },
      },
    )
    t.equal(done.result.is_error, true)
    t.equal(done.settlement.outcome, done.result.outcome)
    return `${done.result.outcome}: ${words(done)}`
  }
  t.match(await outcome('timeout', true), /^outcome_unknown: .*within 1 s.*not known/s)
  t.match(await outcome('timeout', false), /^error: .*not sent/s)
  t.match(await outcome('timeout', true, { readOnlyHint: true }), /^outcome_unknown/, 'a hint nobody trusts')
  t.match(await outcome('timeout', true, { readOnlyHint: true }, true), /^error: .*safe to call again/s)
  t.match(await outcome('timeout', true, { idempotentHint: true }, true), /^error/)
  t.match(await outcome('disconnected', true), /^outcome_unknown: .*broke/s)
  t.match(await outcome('unavailable', false), /^error: .*not available: its words The call was not sent/s)
  t.match(await outcome('unavailable', true), /^outcome_unknown/, 'a 502 may have run')
  t.match(await outcome('cancelled', true), /^cancelled: .*not known/s)
  t.match(await outcome('cancelled', false), /^cancelled: .*not sent/s)
  t.match(await outcome('auth_required', false), /^error: .*login/s)
  t.match(await outcome('too_large', true), /^error: The tool ran/s)
  t.match(await outcome('protocol', true, {}, false, -32000), /^error: .*its words/s)
  t.match(await outcome('protocol', true), /^outcome_unknown: .*could not be read/s)
})

t.test('nothing makes a call throw', async (t) => {
  const { run } = setUp(failing(new TypeError('a defect at /home/secret/path')))
  const done = await run({})
  t.match(done.result, { outcome: 'outcome_unknown', is_error: true })
  t.notMatch(words(done), /secret/, 'our own words stay ours')
  const blocked = setUp(failing(new BatonError('address_not_allowed', 'The address is private.')))
  t.match(words(await blocked.run({})), /address is private/)
  let deep: unknown = 'x'
  for (let i = 0; i < 50_000; i++) deep = [deep]
  const nested = setUp({ answer: async () => ({ content: [], structured: deep, is_error: false }) })
  t.match(words(await nested.run({})), /nested more than 200 levels/)
  const args = { path: deep } as Record<string, unknown>
  t.match((await setUp().run({ arguments: args })).result, { call_id: 'call_1' })
  const placeless = setUp({ deps: { place: () => Promise.reject(new Error('no gate')) } })
  t.match((await placeless.run({})).result, { is_error: true })
  await fc.assert(
    fc.asyncProperty(fc.anything(), async (thrown) => {
      const { result } = await setUp(failing(thrown)).run({ arguments: { path: 'x' } })
      return result.is_error && result.content.length > 0
    }),
    { seed: 1, numRuns: 5 },
  )
})

t.test('a busy tool is an error, and its place is given back whatever happens', async (t) => {
  const busy = setUp({
    deps: { place: () => Promise.reject(new ToolBusy('srv.read is busy: 64 calls wait.')) },
  })
  t.match(words(await busy.run({})), /busy.*not sent/s)
  t.strictSame(busy.sent, [])
  let held = 0
  const place = async () => {
    held++
    return () => void held--
  }
  await setUp({ deps: { place } }).run({})
  await setUp({ ...failing(new Error('x')), deps: { place } }).run({})
  t.equal(held, 0)
})

t.test('the server’s own word that it failed is an error with its content', async (t) => {
  const { run } = setUp({ answer: async () => ({ content: [text('no such file')], is_error: true }) })
  const done = await run({})
  t.match(done.result, { outcome: 'error', is_error: true, content: [text('no such file')] })
  t.match(done.settlement, { error: 'no such file' })
})

t.test('a built-in is bounded by its timeout and by the signal', async (t) => {
  const slow: Builtin = {
    name: 'slow',
    description: '',
    parameters: { type: 'object', properties: {} },
    annotations: { readOnlyHint: true },
    run: () => new Promise(() => {}),
  }
  const { run } = setUp({ deps: { builtins: [slow] } })
  const declared = {
    tool: tool({
      canonical_name: 'slow',
      source: 'builtin',
      server: null,
      mcp_tool_name: null,
      connector_id: null,
      annotations: { readOnlyHint: true },
    }),
    rename: null,
  }
  t.match((await run({ name: 'slow' }, { declared, connector: null, timeoutMs: 20 })).result, {
    outcome: 'error',
  })
  const abort = new AbortController()
  const running = run(
    { name: 'slow' },
    { declared, connector: null, timeoutMs: 60_000, signal: abort.signal },
  )
  abort.abort()
  t.match((await running).result, { outcome: 'cancelled' })
})

t.test('the ledger holds no secret, the conversation holds what was said', async (t) => {
  const { run, executor, sent } = setUp({
    answer: async () => ({ content: [text(`key ${SECRET}`)], structured: { key: SECRET }, is_error: false }),
  })
  const { result, settlement } = await run({ arguments: { path: SECRET } })
  t.strictSame(sent, [{ path: SECRET }])
  t.match(JSON.stringify(result), SECRET)
  t.notMatch(settlement.output, SECRET)
  t.strictSame(JSON.parse(settlement.output), { key: MASK })
  t.strictSame(await executor.redactArguments({ token: `x ${SECRET}` }), { token: `x ${MASK}` })
  const failed = setUp(
    failing(new McpError('protocol', `bad key ${SECRET}`, { sent: true, rpcCode: -32000 })),
  )
  t.notMatch((await failed.run({})).settlement.error, SECRET)
  t.match(
    await executor.settleUnrun(
      { type: 'tool_call', call_id: 'c', name: 'n', arguments: {} },
      'exec_9',
      'denied',
      'Denied.',
    ),
    {
      result: { outcome: 'denied', is_error: true, call_id: 'c' },
      settlement: { id: 'exec_9', outcome: 'denied', duration_ms: 0 },
    },
  )
})

// ---------------------------------------------------------------- arguments

const validator = createValidator()
t.teardown(() => validator.close())
const said = (problems: Problem[]) =>
  problems.map(({ path, message, property }) => [path.join('.'), message, property ?? ''].join('|'))

t.test('arguments are held against the server’s schema whatever its draft', async (t) => {
  const check = async (schema: unknown, value: unknown) => said(await validator.problems(schema, value))
  const bounds = {
    $schema: 'http://json-schema.org/draft-04/schema#',
    type: 'object',
    properties: { n: { type: 'integer', minimum: 0, exclusiveMinimum: true } },
  }
  t.strictSame(await check(bounds, { n: 0 }), ['n|must be > 0|'])
  const tuple = {
    type: 'object',
    properties: {
      p: { type: 'array', items: [{ type: 'string' }, { type: 'number' }], additionalItems: false },
    },
  }
  t.strictSame(await check(tuple, { p: ['a', 1] }), [])
  t.strictSame(await check(tuple, { p: ['a', 'b'] }), ['p.1|must be number|'])
  t.equal((await check(tuple, { p: ['a', 1, 2] })).length, 1)
  const referring = {
    type: 'object',
    properties: {
      a: { $ref: '#/definitions/A' },
      remote: { $ref: 'https://example.org/x.json' },
      b: { $ref: '#/properties/t/items/0' },
      t: { items: [{ type: 'boolean' }] },
      r: { $ref: '#' },
    },
    definitions: { A: { enum: ['x', 'y'] } },
  }
  t.strictSame(await check(referring, { a: 'z' }), ['a|must be one of ["x","y"]|'])
  t.strictSame(await check(referring, { a: 'x', remote: 5, b: true, r: { a: 'y' } }), [])
  t.strictSame(await check(referring, { b: 1 }), ['b|must be boolean|'])
  t.strictSame(await check(referring, { r: { r: { a: 1 } } }), ['r.r.a|must be one of ["x","y"]|'])
  t.strictSame(
    await check({ type: 'object', properties: { a: { type: 'string', nullable: true } } }, { a: null }),
    [],
  )
  t.strictSame(
    await check(
      { type: 'object', properties: { a: { type: 'file' }, b: { type: 'string', format: 'uri' } } },
      { a: 1, b: 'no uri' },
    ),
    [],
  )
  t.strictSame(
    await check(
      { type: 'object', properties: { a: { type: 'string', pattern: '^[\\w\\_-]+$' } } },
      { a: '!' },
    ),
    ['a|must match pattern "^[\\w\\_-]+$"|'],
  )
  t.strictSame(
    await check({ type: 'object', properties: { a: { type: 'string', pattern: '(' } } }, { a: 'x' }),
    [],
  )
  t.strictSame(await check({ type: 'object', properties: { a: true, b: false } }, { a: 1, b: 2 }), [
    'b|boolean schema is false|',
  ])
  // Formula 1's word for a team, and every object's for what made it.
  const inherited = {
    type: 'object',
    properties: { constructor: { type: 'string' }, toString: { type: 'boolean' } },
  }
  t.strictSame(await check(inherited, {}), [])
  t.strictSame(await check(inherited, { constructor: 5 }), ['constructor|must be string|'])
  t.strictSame(await check({ ...inherited, required: ['constructor'] }, {}), [
    '|must have the property|constructor',
  ])
  t.strictSame(await check({ type: 'object', required: 'nonsense', properties: [] }, {}), [])
  t.strictSame(await check(null, { a: 1 }), [])
})

t.test('arguments are held against a schema however many others came after it', async (t) => {
  const bounded = (maxLength: number) => ({
    type: 'object',
    properties: { a: { type: 'string', maxLength } },
  })
  const check = async (a: unknown) => said(await validator.problems(bounded(7), { a }))
  t.strictSame(await check(1), ['a|must be string|'])
  for (let i = 1_000; i < 1_310; i++) await validator.problems(bounded(i), { a: 'x' })
  t.strictSame(await check(1), ['a|must be string|'])
  t.strictSame(await check('fits'), [])
})

t.test('a hostile schema costs its own thread, not the gateway', async (t) => {
  const own = createValidator(1_000)
  t.teardown(() => own.close())
  await own.problems({ type: 'object' }, {})
  const slow = { type: 'object', properties: { s: { type: 'string', pattern: '^(a+)+$' } } }
  const bomb = {
    type: 'object',
    properties: Object.fromEntries(
      Array.from({ length: 3_000 }, (_, i) => [
        `p${i}`,
        {
          anyOf: [
            { type: 'string', minLength: i },
            { type: 'object', properties: { x: { const: i } } },
          ],
        },
      ]),
    ),
  }
  let longest = 0
  let last = performance.now()
  const beat = setInterval(() => {
    longest = Math.max(longest, performance.now() - last)
    last = performance.now()
  }, 5)
  t.strictSame(
    await own.problems(slow, { s: `${'a'.repeat(40)}!` }),
    [],
    'let through: the server checks too',
  )
  await own.problems(bomb, { p1: 'x' })
  clearInterval(beat)
  t.ok(longest < 3_000, `the event loop was held for ${Math.round(longest)} ms`)
  const started = performance.now()
  t.strictSame(await own.problems(slow, { s: `${'a'.repeat(40)}!` }), [])
  t.ok(performance.now() - started < 900, 'a refused schema is not tried again')
  const fine = { type: 'object', properties: { a: { type: 'string' } } }
  t.strictSame(said(await own.problems(fine, { a: 1 })), ['a|must be string|'], 'the next thread works')
  let deep: Record<string, unknown> = {}
  for (let i = 0; i < 100_000; i++) deep = { a: deep }
  t.strictSame(await own.problems(fine, deep), [])
  t.strictSame(await own.problems(deep, {}), [])
})

t.test('a closed validator leaves nobody waiting', async (t) => {
  const own = createValidator()
  const waiting = Promise.all(
    [1, 2, 3].map((a) => own.problems({ type: 'object', properties: { a: { const: 9 } } }, { a })),
  )
  await own.close()
  t.strictSame(await waiting, [[], [], []])
  t.strictSame(await own.problems({ type: 'object' }, {}), [])
})

// ---------------------------------------------------------------- results

const shape = (content: ContentPart[], structured?: unknown, canInspect = true) =>
  shapeResult(
    { content, ...(structured === undefined ? {} : { structured }), is_error: false },
    'exec_7',
    canInspect,
  )

t.test('a long text is kept whole and given as head, tail and a way to read on', async (t) => {
  const whole = `${'début '.repeat(20_000)}the end`
  const { content, spill, stored, bytes } = await shape([text(whole)])
  t.equal(stored.output, whole)
  t.strictSame(spill, { exec_id: 'exec_7', bytes: Buffer.byteLength(whole) })
  t.equal(bytes, Buffer.byteLength(whole))
  const [part] = content
  const given = part?.type === 'text' ? part.text : ''
  t.ok(Buffer.byteLength(given) <= MODEL_LIMIT)
  t.match(given, /^début début/)
  t.match(given, /the end$/)
  const [, offset] = given.match(/"exec_id": "exec_7", "offset": (\d+)/) ?? []
  const next = outputSlice(stored, { path: '', offset: Number(offset), limit: 12 })
  t.equal(given.indexOf(`\n\n[The result is`), Buffer.from(whole).toString('utf8', 0, Number(offset)).length)
  t.equal(next.offset, Number(offset), 'the notice points between characters')
  const unread = JSON.stringify((await shape([text(whole)], undefined, false)).content)
  t.match(unread, /The rest is kept/)
  t.notMatch(unread, /inspect_tool_output/)
})

t.test('the offset to read on at is one of the stored text, whose secrets are gone', async (t) => {
  const lines = Array.from({ length: 9_000 }, (_, i) => `line ${i} ${i % 50 === 0 ? SECRET : 'nothing'}`)
  const { content, stored } = await shape([text(lines.join('\n'))])
  const given = content[0]?.type === 'text' ? content[0].text : ''
  const [head = ''] = given.split('\n\n[The result is')
  const [, offset] = given.match(/"offset": (\d+)/) ?? []
  const after = outputSlice(stored, { path: '', offset: Number(offset), limit: 40 }).content
  t.notMatch(stored.output, SECRET)
  const cut = lines.join('\n').slice(head.length, head.length + 20)
  t.equal(after.slice(0, 8), cut.slice(0, 8))
})

t.test('what is structured keeps its structure, and nothing is cut in silence', async (t) => {
  const small = { items: [1, 2, 3] }
  t.match(await shape([], small), {
    content: [text(JSON.stringify(small))],
    structured: small,
    stored: { structured: true },
  })
  t.match(await shape([text('three items')], small), { content: [text('three items')], structured: small })
  const big = { items: Array.from({ length: 9_000 }, (_, i) => ({ id: i })) }
  const repeated = await shape([text(JSON.stringify(big, null, 2))], big)
  t.equal(repeated.structured, undefined)
  t.equal(repeated.content.length, 1)
  t.strictSame(JSON.parse(repeated.stored.output), big)
  t.equal(outputSlice(repeated.stored, { path: '/items/8999/id', offset: 0, limit: 10 }).content, '8999')
  const told = await shape([text('9000 items')], big)
  t.match(told.content, [text('9000 items'), { text: /structured result of \d+ bytes.*exec_7/ }])
  t.strictSame(JSON.parse(told.stored.output), big)
  const long = 'z'.repeat(MODEL_LIMIT + 1)
  const both = await shape([text(long)], big)
  t.equal(outputSlice(both.stored, { path: '/text', offset: MODEL_LIMIT, limit: 10 }).content, 'z')
  t.equal(outputSlice(both.stored, { path: '/structured/items/1/id', offset: 0, limit: 10 }).content, '1')
  const wordy = await shape([text(long)], small)
  t.match(wordy, { structured: small, stored: { output: long, structured: false } })
})

t.test('media pass whole within their limits, and are named where they do not', async (t) => {
  const image = (media_type: string, bytes: number, start = 'iVBORw0KGgo'): ContentPart => ({
    type: 'image',
    media_type,
    data: start + 'A'.repeat(Math.ceil((bytes * 4) / 3) - start.length),
  })
  const fine = image('image/jpg', 1_000)
  const { content, stored } = await shape([
    text('see'),
    fine,
    image('image/tiff', 10, 'SUkqAAg'),
    image('image/png', 6 * 1024 * 1024),
  ])
  t.strictSame(content.at(-1), { ...fine, media_type: 'image/png' }, 'as what it is')
  t.match(content, [
    text('see'),
    { text: /image\/tiff.*not passed on/ },
    { text: /bytes is more than/ },
    { type: 'image' },
  ])
  t.match(stored.output, /^see\n\n\[image, image\/tiff/)
  t.match(stored.output, /\[image, image\/png, 1\d{3} bytes\]/)
  const starts = { jpeg: '/9j/4AAQSkZJRgABAQAA', gif: 'R0lGODlhAQABAIAAAAAA', webp: 'UklGRiQAAABXRUJQVlA4' }
  for (const [kind, start] of Object.entries(starts)) {
    const shaped = await shape([image('image/png', 100, start), image('image/jpg', 100, start)])
    t.match(shaped.content, [{ media_type: `image/${kind}` }, { media_type: `image/${kind}` }], 'as it is')
  }
  const many = await shape(Array.from({ length: 70 }, (_, i) => text(`t${i}`)))
  t.equal(many.content.length, 65)
  t.match(many.content.at(-1), { text: /6 more items/ })
  t.match((await shape([text('a\ud800b\u0000c')])).content, [text('a\ufffdb\ufffdc')])
})

t.test('slices put together are the whole, and none splits a character', async () => {
  fc.assert(
    fc.property(
      fc.string({ unit: 'grapheme', maxLength: 60 }),
      fc.integer({ min: 1, max: 9 }),
      (whole, limit) => {
        const stored = { output: whole, structured: false }
        let read = ''
        for (let offset: number | null = 0; offset !== null; ) {
          const slice = outputSlice(stored, { path: '', offset, limit })
          if (
            slice.total_bytes !== Buffer.byteLength(whole) ||
            slice.content.includes('\ufffd') !== whole.includes('\ufffd')
          )
            return false
          if (slice.next_offset !== null && slice.next_offset <= offset) return false
          read += slice.content
          offset = slice.next_offset
        }
        const bytes = limit * 3
        return (
          read === whole &&
          whole.startsWith(cutUtf8(whole, bytes)) &&
          whole.endsWith(endUtf8(whole, bytes)) &&
          Buffer.byteLength(endUtf8(whole, bytes)) <= bytes
        )
      },
    ),
    { seed: 1, numRuns: 300 },
  )
})

t.test('a path leads into what is structured, or is refused by name', async (t) => {
  const stored = { output: JSON.stringify({ 'a/b': { 'c~d': ['x', { y: 'words' }] } }), structured: true }
  const at = (path: string) => outputSlice(stored, { path, offset: 0, limit: 100 }).content
  t.equal(at('/a~1b/c~0d/1/y'), 'words')
  t.equal(at('/a~1b/c~0d/1'), '{"y":"words"}')
  for (const path of ['a', '/none', '/a~1b/c~0d/length', '/a~1b/c~0d/01', '/a~1b/c~0d/0/0', '/__proto__']) {
    t.throws(() => at(path), { code: 'invalid_request', param: 'path' }, path)
  }
  t.throws(() => outputSlice({ output: 'plain', structured: false }, { path: '/a', offset: 0, limit: 1 }), {
    code: 'invalid_request',
  })
})

t.test('inspect_tool_output reads on in this conversation only', async (t) => {
  const output = 'é'.repeat(20_000)
  const executions = {
    get: async (_: unknown, id: string) =>
      id === 'exec_1' ? ({ id, session_id: 'ses_1' } as Execution) : null,
    output: async (_: unknown, id: string) => (id === 'exec_1' ? { output, structured: false } : null),
  } as unknown as ExecutorDeps['store']['executions']
  const look = (args: Record<string, unknown>, session_id = 'ses_1') =>
    inspectToolOutput.run(args, { store: { executions }, scope: { owner: 'o', admin: false }, session_id })
  t.match(await look({ exec_id: 'exec_1' }), {
    is_error: false,
    content: [{ text: /Bytes 0 to 16384 of 40000\. Go on at offset 16384/ }],
  })
  t.match(await look({ exec_id: 'exec_1', offset: 39_999 }), {
    content: [{ text: /^é\n\n.*This is the end/s }],
  })
  t.match(await look({ exec_id: 'exec_1' }, 'ses_2'), {
    is_error: true,
    content: [{ text: /no stored output/ }],
  })
  t.match(await look({ exec_id: 'exec_2' }), { is_error: true })
  t.match(await look({ exec_id: 'exec_1', path: '/x' }), { is_error: true, content: [{ text: /is text/ }] })
})

// ---------------------------------------------------------------- the operator's rules

t.test('a gate lets in as many calls as there are places, in the order in which they came', async (t) => {
  const gate = createGate({ maxConcurrent: 3, queueLimit: 2, queueMs: 60_000 })
  const { signal } = new AbortController()
  const order: string[] = []
  const enter = (tool: string, name: string) =>
    gate.enter(tool, 2, signal).then((leave) => {
      order.push(name)
      return leave
    })
  const [first, second] = [await enter('a', 'a1'), await enter('a', 'a2')]
  const waiting = [enter('a', 'a3'), enter('a', 'a4')]
  await t.rejects(gate.enter('a', 2, signal, 'srv.a'), { message: /srv\.a is busy: 2 calls wait/ })
  const other = await enter('b', 'b1')
  const crowded = enter('b', 'b2')
  t.strictSame(order, ['a1', 'a2', 'b1'], 'one tool’s queue does not hold another’s call')
  first()
  first()
  const third = await waiting[0]
  t.strictSame(order.at(-1), 'a3')
  second()
  const fourth = await waiting[1]
  other()
  const fifth = await crowded
  for (const leave of [third, fourth, fifth]) leave?.()
  t.equal(gate.waiting(), 0)
  await (await gate.enter('a', 1, signal))()
})

t.test('who waits at a gate leaves when he is told to, or when it takes too long', async (t) => {
  const gate = createGate({ maxConcurrent: 10, queueMs: 20 })
  const leave = await gate.enter('a', 1, new AbortController().signal)
  await t.rejects(gate.enter('a', 1, new AbortController().signal), { message: /no place came free/ })
  const abort = new AbortController()
  const waiting = createGate({ maxConcurrent: 0 }).enter('a', 1, abort.signal)
  abort.abort(new Error('cancelled'))
  await t.rejects(waiting, { message: 'cancelled' })
  await t.rejects(gate.enter('a', 1, abort.signal), { message: 'cancelled' })
  leave()
  t.equal(gate.waiting(), 0)
})

t.test('the toolbox says what may be registered, for how long it runs and how often at once', async (t) => {
  const policy = createToolboxPolicy(
    toolbox({
      tools: [{ name: 'srv.read', maxInstances: 2 }, { name: 'write', timeoutMs: 9 }, { name: 'look_up' }],
    }),
  )
  const strict = { name: 'srv', mode: 'strict' } as const
  t.match(policy.admit(strict, 'read'), { ok: true })
  t.match(
    policy.admit({ ...strict, name: 'other' }, 'write'),
    { ok: true },
    'a bare name holds for every server',
  )
  t.match(policy.admit(strict, 'delete'), {
    ok: false,
    reason: /srv\.delete under toolbox\.tools.*srv\.read, write/,
  })
  t.match(policy.admit({ ...strict, mode: 'dynamic' }, 'delete'), { ok: true, configured: false })
  t.match(policy.admitBuiltin('look_up'), { ok: true })
  t.match(policy.admitBuiltin('other'), { ok: false })
  t.match(policy.admitBuiltin('inspect_tool_output'), { ok: true })
  t.match(createToolboxPolicy(toolbox({ inspect: false })).admitBuiltin('inspect_tool_output'), { ok: false })
  const dynamic = {
    ...connector,
    mode: 'dynamic' as const,
    default_tool_config: { max_instances: 7, timeout: 'PT2S' },
  }
  t.strictSame(policy.limits(tool(), dynamic), { maxInstances: 2, timeoutMs: 2_000 }, 'left out: the default')
  t.strictSame(policy.limits(tool({ mcp_tool_name: 'write' }), dynamic), { maxInstances: 7, timeoutMs: 9 })
  t.strictSame(policy.limits(tool(), { ...connector, mode: 'strict', default_tool_config: null }), {
    maxInstances: 2,
    timeoutMs: 30_000,
  })
})

t.test('a server gets nothing by naming a tool as another server’s', async (t) => {
  const mcps = [{ name: 'bank' }] as unknown as Toolbox['mcps']
  const tools = [{ name: 'bank.pay', requireApproval: 'never' as const }, { name: 'a.dotted.one' }]
  const policy = createToolboxPolicy(toolbox({ mcps, tools }))
  const evil = { ...connector, name: 'evil', mode: 'strict' as const, require_approval: 'always' as const }
  t.match(policy.admit(evil, 'bank.pay'), { ok: false })
  t.equal(policy.needsApproval(tool({ mcp_tool_name: 'bank.pay' }), evil), true)
  t.match(policy.admit({ ...evil, name: 'bank' }, 'pay'), { ok: true })
  t.match(policy.admit(evil, 'a.dotted.one'), { ok: true }, 'a bare name may have dots')
})

t.test('hints are believed where the operator says so, and absent ones mean the worst', async (t) => {
  const policy = createToolboxPolicy(toolbox({ tools: [{ name: 'srv.asks', requireApproval: 'always' }] }))
  const harmless = tool({ annotations: { readOnlyHint: true } })
  const trusted = { ...connector, trust_annotations: true, require_approval: 'destructive' as const }
  const strange = { ...trusted, trust_annotations: false }
  t.equal(policy.needsApproval(harmless, trusted), false)
  t.equal(policy.needsApproval(harmless, strange), true)
  t.equal(policy.needsApproval(tool({ annotations: { destructiveHint: false } }), trusted), false)
  t.equal(policy.needsApproval(tool(), trusted), true)
  t.equal(policy.needsApproval(tool(), { ...trusted, require_approval: 'never' }), false)
  t.equal(
    policy.needsApproval(tool({ mcp_tool_name: 'asks' }), { ...trusted, require_approval: 'never' }),
    true,
  )
  t.equal(policy.isRepeatable(tool({ annotations: { idempotentHint: true } }), trusted), true)
  t.equal(policy.isRepeatable(tool({ annotations: { idempotentHint: true } }), strange), false)
  t.equal(
    policy.isRepeatable(tool({ annotations: { readOnlyHint: true } }), null),
    true,
    'built-ins are ours',
  )
})
