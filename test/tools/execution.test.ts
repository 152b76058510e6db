/** One tool call from the model's arguments to the settled result. */
import { EventEmitter, getEventListeners, once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import { pino } from 'pino'
import t from 'tap'
import { inspectToolOutput } from '../../src/builtins/inspect_tool_output.ts'
import type { ToolCallPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { McpError, type McpProgress, type McpResult } from '../../src/mcp/contract.ts'
import type { Settlement } from '../../src/store/store.ts'
import type { Builtin } from '../../src/tools/builtin.ts'
import { createExecutor, type ExecutorCall, type ExecutorDeps, ToolBusy } from '../../src/tools/execute.ts'
import { MASK } from '../../src/tools/redact.ts'
import { createToolboxPolicy } from '../../src/tools/toolbox.ts'
import { connector, SECRET, text, tool, toolbox } from './declared-tool.ts'

const words = ({ result }: Settlement): string =>
  result.content.map((part) => (part.type === 'text' ? part.text : `<${part.type}>`)).join('\n')

interface Given {
  answer?: (args: Record<string, unknown>, signal: AbortSignal) => Promise<McpResult>
  deps?: Partial<ExecutorDeps>
}
const ok = async (): Promise<McpResult> => ({ content: [text('fine')], is_error: false })

/** An executor over a double of the MCP door. `sent`: the arguments that reached the door. */
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
    async slot(_tool, _connector, signal) {
      signal.throwIfAborted()
      return () => {}
    },
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
      // Without a schema the call needs no thread that checks its arguments.
      declared: { tool: tool({ input_schema: null }), rename: null },
      connector,
      canInspect: true,
      timeoutMs: 1_000,
      signal: new AbortController().signal,
      onProgress: () => {},
      ...over,
    })
  return { executor, run, sent }
}
/** For calls whose arguments are checked */
const CHECKED = { declared: { tool: tool(), rename: null } }
const failing = (error: unknown): Given => ({ answer: () => Promise.reject(error) })

t.test('a call that fits is sent with its arguments, and its answer is the result', async (t) => {
  const { run, sent } = setUp()
  const done = await run({}, CHECKED)
  t.match(done.result, {
    call_id: 'call_1',
    name: 'srv.read',
    outcome: 'ok',
    is_error: false,
    content: [text('fine')],
  })
  t.match(done, {
    id: 'exec_1',
    outcome: 'ok',
    error: null,
    output: 'fine',
    structured: false,
    bytes: 4,
  })
  t.ok(done.duration_ms > 0, 'a call that is made has a duration, however short')
  t.ok(Number.isInteger(done.duration_ms))
  t.strictSame(sent, [{ path: 'x' }])
})

t.test('a flood of progress becomes a few short reports', async (t) => {
  const told: McpProgress[] = []
  const mcp: ExecutorDeps['mcp'] = {
    async call(_spec, _name, _args, { onProgress }) {
      for (let progress = 1; progress <= 50_000; progress++)
        onProgress?.({ progress, message: 'é'.repeat(9_000) })
      return ok()
    },
  }
  const started = performance.now()
  await setUp({ deps: { mcp } }).run({}, { onProgress: (progress) => told.push(progress) })
  t.match(told[0], { progress: 1, message: /^é+$/ })
  t.equal(Buffer.byteLength(told[0]?.message ?? ''), 2_000)
  t.match(told.at(-1), { progress: 50_000 }, 'the last report is told before the end')
  t.ok(
    told.length <= 2 + (performance.now() - started) / 100,
    `${told.length} of fifty thousand reports were told`,
  )
})

t.test('the last progress of a burst is told before the call ends', async (t) => {
  const told: number[] = []
  const heard = new EventEmitter()
  const mcp: ExecutorDeps['mcp'] = {
    async call(_spec, _name, _args, { onProgress }) {
      for (const progress of [1, 2, 3]) onProgress?.({ progress })
      await once(heard, 'third', { signal: AbortSignal.timeout(5_000) })
      return ok()
    },
  }
  const onProgress = ({ progress }: McpProgress): void => {
    told.push(progress)
    if (progress === 3) heard.emit('third')
  }
  t.match(await setUp({ deps: { mcp } }).run({}, { onProgress }), { result: { outcome: 'ok' } })
  t.strictSame(told, [1, 3])
})

t.test('a call that cannot be made is not sent, and the model is told why', async (t) => {
  const { run, sent } = setUp()
  const none = await run({ name: 'srv__gone' }, { declared: undefined })
  t.match(words(none), /no tool srv__gone/)
  const broken = await run({ arguments: {}, arguments_text: `{"path": "${SECRET}` })
  t.match(words(broken), /not a JSON object.*too early.*in several calls\. Nothing was called/)
  t.notMatch(JSON.stringify(broken), SECRET)
  for (const cut of ['{', '{"path":', '{"path": "a"', '{"path": "a",'])
    t.match(words(await run({ arguments: {}, arguments_text: cut })), /too early/, cut)
  for (const wrong of ['{"path": "a"b"}', '{path: 1}', '{"path": 1}}', 'read a'])
    t.notMatch(words(await run({ arguments: {}, arguments_text: wrong })), /too early/, wrong)
  for (const space of [' ', '\n']) {
    const quoted = await run({ arguments: {}, arguments_text: `{"path":${space}${SECRET}` })
    t.match(words(quoted), /not a JSON object/)
    t.notMatch(words(quoted), /ghp_/, 'the parser would quote it')
  }
  t.match(words(await run({ arguments: {}, arguments_text: '[1]' })), /valid JSON, but no object/)
  const large = '{"path": 9007199254740993}'
  t.match(words(await run({ arguments: {}, arguments_text: large })), /too large.*Nothing was called/)
  const wrong = await run({ arguments: { path: 5 } }, CHECKED)
  t.match(words(wrong), /path must be string.*Nothing was called/)
  t.match(words(await run({ arguments: {} }, CHECKED)), /the arguments must have the property 'path'/)
  const unbound = await run({}, { connector: null })
  t.match(words(unbound), /no longer bound\. The call did not run/)
  for (const settled of [none, broken, wrong, unbound]) {
    t.match(settled.result, { outcome: 'error', is_error: true })
    t.match(settled, { outcome: 'error', error: /./ })
  }
  t.equal(wrong.duration_ms, 0, 'the check of the arguments is no time of the tool')
  const aborted = AbortSignal.abort()
  t.match((await run({}, { signal: aborted })).result, { outcome: 'cancelled' })
  t.strictSame(sent, [])
})

t.test('texts are given to the tool as the JSON that they hold, where its schema has no texts', async (t) => {
  const { run, sent } = setUp()
  const properties = {
    ids: { type: 'array', items: { type: 'string' } },
    by: { type: 'object', properties: { 'due.on': { type: 'integer' } }, additionalProperties: true },
    most: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
    all: { type: 'array', items: { type: 'boolean' } },
    said: { type: ['string', 'integer'] },
    '': { type: 'integer' },
  }
  const input_schema = { type: 'object', properties, required: ['ids'] }
  const declared = { tool: tool({ input_schema }), rename: new Map([['due_on_ab12cd', 'due.on']]) }
  const said = { ids: '["a"]', by: '{"due_on_ab12cd":1}', most: '5', all: ['true'], said: '[1]', '': '7' }
  const call = { arguments: said }
  t.match((await run(call, { declared })).result, { outcome: 'ok' })
  t.strictSame(sent, [{ ids: ['a'], by: { 'due.on': 1 }, most: 5, all: [true], said: '[1]', '': 7 }])
  t.equal(call.arguments.ids, '["a"]', 'the conversation keeps what the model said')
  const long = '9'.repeat(17)
  for (const ids of ['a', '["a"', '[1]', '"a"', '{}', '5', '['.repeat(300)]) {
    t.match(words(await run({ arguments: { ids } }, { declared })), /ids must be array/, ids)
  }
  t.match(words(await run({ arguments: { ids: [], most: long } }, { declared })), /most must be integer/)
  t.match(words(await run({ arguments: { ids: '[]', '': 'x' } }, { declared })), /ids must be array/)
  t.equal(sent.length, 1)
})

t.test('what a model writes as null is not given, where its schema has no null', async (t) => {
  const { run, sent } = setUp()
  const properties = {
    query: { type: 'string' },
    country: { type: 'string', enum: ['de', 'us'] },
    until: { type: ['string', 'null'] },
    order: { enum: ['up', 'down'] },
    by: { type: 'object', properties: { 'a/b': { anyOf: [{ type: 'integer' }, { type: 'string' }] } } },
    all: { type: 'array', items: { type: 'string' } },
  }
  const declared = {
    tool: tool({ input_schema: { type: 'object', properties, required: ['query'] } }),
    rename: null,
  }
  const said = { query: 'x', country: null, until: null, order: null, by: { 'a/b': null }, all: null }
  t.match((await run({ arguments: said }, { declared })).result, { outcome: 'ok' })
  t.match((await run({ arguments: { query: 'x', by: '{"a/b":null}', all: '"[]"' } }, { declared })).result, {
    outcome: 'ok',
  })
  t.strictSame(sent, [
    { query: 'x', until: null, by: {} },
    { query: 'x', by: {}, all: [] },
  ])
  t.match(words(await run({ arguments: { query: null } }, { declared })), /query must be string/)
  t.match(words(await run({ arguments: { query: 'x', all: [null] } }, { declared })), /all\.0 must be string/)
  t.equal(sent.length, 2)
})

t.test('what is required and missing reaches the tool as its default, if the schema has one', async (t) => {
  const { run, sent } = setUp()
  const from = {
    type: 'object',
    properties: { topic: { type: 'string' }, start: { enum: ['latest', 'first'], default: 'latest' } },
    required: ['topic', 'start'],
  }
  const choice = (key: string) => ({ properties: { key: { const: key, default: key } }, required: ['key'] })
  const properties = {
    scale: { type: 'string', enum: ['css', 'device'], default: 'css' },
    from: { type: 'array', items: from },
    all: { type: 'boolean' },
    by: { type: 'object', anyOf: [choice('name'), choice('size')] },
    most: { type: 'integer', default: 10 },
    note: { type: 'integer', minimum: 1, default: 0 },
    never: { type: 'string', default: null },
  }
  const needs = (...required: string[]) => ({
    declared: { tool: tool({ input_schema: { type: 'object', properties, required } }), rename: null },
  })
  const call = { arguments: { from: [{ topic: 'a' }], all: 'true', by: {} } }
  t.match((await run(call, needs('scale', 'from'))).result, { outcome: 'ok' })
  t.strictSame(sent, [
    { from: [{ topic: 'a', start: 'latest' }], all: true, by: { key: 'name' }, scale: 'css' },
  ])
  t.strictSame(Object.keys(call.arguments), ['from', 'all', 'by'], 'the conversation keeps what was said')
  const bare = { arguments: {} }
  t.match(words(await run(bare, needs('scale', 'from'))), /must have the property 'from'/, 'it has none')
  t.match(words(await run(bare, needs('note'))), /must have the property 'note'/, 'its default does not fit')
  t.match(
    words(await run(bare, needs('never'))),
    /must have the property 'never'/,
    'nor does a default of null',
  )
  const none = { arguments: { scale: null, from: [] } }
  t.match((await run(none, needs('scale', 'from'))).result, { outcome: 'ok' })
  t.strictSame(sent.pop(), { scale: 'css', from: [] }, 'a null may have a default')
  t.equal(sent.length, 1)
})

t.test(
  'renamed properties reach the server under its names, and the model hears of problems under theirs',
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

t.test('the timeout of a call that progress has prolonged names the time that was waited', async (t) => {
  const answer = async () => {
    await sleep(1_010)
    throw new McpError('timeout', 'its words', { sent: true })
  }
  const begun = performance.now()
  const late = await setUp({ answer }).run({}, { timeoutMs: 101 })
  t.match(words(late), /within 1 s/)
  t.ok(late.duration_ms > 1_000, 'what a call took counts though it failed')
  t.ok(late.duration_ms <= Math.ceil(performance.now() - begun))
})

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
    t.equal(done.outcome, done.result.outcome)
    return `${done.result.outcome}: ${words(done)}`
  }
  t.match(await outcome('timeout', true), /^outcome_unknown: .*within 1 s.*not known/s)
  t.match(await outcome('timeout', false), /^error: .*not available: its words\. The call did not run\.$/s)
  t.match(
    await outcome('timeout', true, { readOnlyHint: true }),
    /^outcome_unknown/,
    'a hint of a server that is not trusted',
  )
  t.match(await outcome('timeout', true, { readOnlyHint: true }, true), /^error: .*safe to call again/s)
  t.match(await outcome('timeout', true, { idempotentHint: true }, true), /^error/)
  t.match(await outcome('disconnected', true), /^outcome_unknown: .*broke/s)
  t.match(
    await outcome('unavailable', false),
    /^error: .*not available: its words\. The call did not run\.$/s,
  )
  t.match(await outcome('unavailable', true), /^outcome_unknown/, 'the call behind a 502 may have run')
  t.match(await outcome('cancelled', true), /^cancelled: .*not known\.$/s)
  t.match(await outcome('cancelled', false), /^cancelled: .*did not run/s)
  t.match(await outcome('auth_required', false), /^error: .*login/s)
  t.match(await outcome('too_large', true), /^error: The tool ran/s)
  t.match(await outcome('too_large', false), /^error: The call did not run: its words$/)
  t.match(await outcome('protocol', true, {}, false, -32000), /^error: .*its words/s)
  t.match(await outcome('protocol', true), /^outcome_unknown: The answer cannot be used: its words\. Whether/)
})

t.test('the model is told when a server that limits its calls can be asked again', async (t) => {
  const told = async (facts: { sent: boolean; retryAfterMs: number }) =>
    words(await setUp(failing(new McpError('unavailable', 'its words', facts))).run({}))
  t.match(await told({ sent: false, retryAfterMs: 29_001 }), /did not run\. It can be asked again in 30 s\.$/)
  t.match(await told({ sent: false, retryAfterMs: 0 }), /did not run\.$/)
  t.match(await told({ sent: true, retryAfterMs: 3_000 }), /do not simply repeat it\.$/)
})

t.test('no failure makes a call throw', async (t) => {
  const { run } = setUp(failing(new TypeError('a defect at /home/secret/path')))
  const done = await run({})
  t.match(done.result, { outcome: 'outcome_unknown', is_error: true })
  t.notMatch(words(done), /secret/, 'the message of an internal error is not told')
  const blocked = setUp(failing(new BatonError('address_not_allowed', 'The address is private.')))
  const refused = await blocked.run({})
  t.match(words(refused), /address is private/)
  t.equal(refused.duration_ms, 0, 'nor is the way to a server that cannot be asked')
  const unopened = setUp({
    deps: {
      specFor: () => {
        throw new BatonError('internal', 'A stored secret is sealed under the encryption key k1.')
      },
    },
  })
  const closed = await unopened.run({})
  t.match(words(closed), /failed inside the gateway.*did not run/s)
  t.notMatch(words(closed), /k1/, 'an error that concerns the operator is not told')
  let deep: unknown = 'x'
  for (let i = 0; i < 50_000; i++) deep = [deep]
  const nested = setUp({ answer: async () => ({ content: [], structured: deep, is_error: false }) })
  t.match(words(await nested.run({})), /nested more than 200 levels/)
  const many = setUp({
    answer: async () => ({ content: [], structured: new Array(200_001).fill({}), is_error: false }),
  })
  const spared = await many.run({})
  t.match(words(spared), /more than 200000 values, and was left out/)
  t.match(spared.result, { outcome: 'ok', structured: undefined })
  const args = { path: deep } as Record<string, unknown>
  t.match((await setUp().run({ arguments: args }, CHECKED)).result, { call_id: 'call_1' })
  const shapeless = setUp({ answer: async () => ({ is_error: false }) as McpResult })
  t.match((await shapeless.run({})).result, { outcome: 'outcome_unknown' })
  const slotless = setUp({ deps: { slot: () => Promise.reject(new Error('no gate')) } })
  const unslotted = await slotless.run({})
  t.match(unslotted.result, { is_error: true })
  t.notMatch(words(unslotted), /no gate/)
  t.strictSame(slotless.sent, [])
  await fc.assert(
    fc.asyncProperty(fc.anything(), async (thrown) => {
      const { result } = await setUp(failing(thrown)).run({ arguments: { path: 'x' } })
      return result.is_error && result.content.length > 0
    }),
    { seed: 1, numRuns: 5 },
  )
})

t.test('progress stretches a call to ten times its timeout, or to what a timer can hold', async (t) => {
  let total = 0
  const call: ExecutorDeps['mcp']['call'] = async (_spec, _name, _args, { maxTotalMs }) => {
    total = maxTotalMs
    return ok()
  }
  const { run } = setUp({ deps: { mcp: { call } } })
  await run({}, { timeoutMs: 30_000 })
  t.equal(total, 300_000)
  await run({}, { timeoutMs: 3 * 86_400_000 })
  t.equal(total, 2 ** 31 - 1)
})

t.test('a model without inspect_tool_output is not told to call it', async (t) => {
  const { run } = setUp({ answer: async () => ({ content: [text('x'.repeat(100_000))], is_error: false }) })
  t.match(words(await run({})), /Read on with inspect_tool_output/)
  const alone = words(await run({}, { canInspect: false }))
  t.match(alone, /cannot be read from here/)
  t.notMatch(alone, /inspect_tool_output/)
})

t.test('a busy tool gives an error, and a call’s slot is given back after success or failure', async (t) => {
  const busy = setUp({
    deps: { slot: () => Promise.reject(new ToolBusy('srv.read is busy: 64 calls wait.')) },
  })
  t.match(words(await busy.run({})), /busy.*not sent/s)
  t.strictSame(busy.sent, [])
  let held = 0
  const slot = async () => {
    held++
    return () => void held--
  }
  await setUp({ deps: { slot } }).run({})
  await setUp({ ...failing(new Error('x')), deps: { slot } }).run({})
  t.equal(held, 0)
})

t.test('a call that is cancelled while it waits for its slot, or for its answer, says so', async (t) => {
  const cancelled = async (given: (abort: () => void) => Given) => {
    const ending = new AbortController()
    return words(await setUp(given(() => ending.abort())).run({}, { signal: ending.signal }))
  }
  let isLineTold = false
  const waiting = await cancelled((abort) => {
    const slot: ExecutorDeps['slot'] = async (_tool, _connector, signal) => {
      abort()
      isLineTold = signal.aborted
      throw new ToolBusy('srv.read is busy.')
    }
    return { deps: { slot } }
  })
  t.match(waiting, /cancelled before it was sent/)
  t.ok(isLineTold)
  const running = await cancelled((abort) => {
    const answer: Given['answer'] = async (_args, signal) => {
      abort()
      throw new McpError(signal.aborted ? 'cancelled' : 'protocol', 'over', { sent: true })
    }
    return { answer }
  })
  t.match(running, /was cancelled\. Whether it took effect is not known/)
})

t.test('a result that the server marks as an error is an error with its content', async (t) => {
  const { run } = setUp({ answer: async () => ({ content: [text('no such file')], is_error: true }) })
  const done = await run({})
  t.match(done.result, { outcome: 'error', is_error: true, content: [text('no such file')] })
  t.match(done, { error: 'no such file' })
})

t.test('a built-in ends at its timeout and at its signal', async (t) => {
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
  const abort = new AbortController()
  const over = { declared, connector: null, signal: abort.signal }
  const late = await run({ name: 'slow' }, { ...over, timeoutMs: 20 })
  t.match(late.result, { outcome: 'error' })
  t.match(words(late), /^No answer came/)
  t.strictSame(getEventListeners(abort.signal, 'abort'), [], 'nothing of it is left behind')
  const running = run({ name: 'slow' }, { ...over, timeoutMs: 60_000 })
  abort.abort()
  t.match((await running).result, { outcome: 'cancelled' })
})

t.test('the ledger holds no secret, and the conversation holds the result as it came', async (t) => {
  const { run, executor, sent } = setUp({
    answer: async () => ({ content: [text(`key ${SECRET}`)], structured: { key: SECRET }, is_error: false }),
  })
  const { result, output } = await run({ arguments: { path: SECRET } })
  t.strictSame(sent, [{ path: SECRET }])
  t.match(JSON.stringify(result), SECRET)
  t.notMatch(output, SECRET)
  t.strictSame(JSON.parse(output), { key: MASK })
  const failed = setUp(
    failing(new McpError('protocol', `bad key ${SECRET}`, { sent: true, rpcCode: -32000 })),
  )
  t.notMatch((await failed.run({})).error, SECRET)
  t.match(
    await executor.settleUnrun(
      { type: 'tool_call', call_id: 'c', name: 'n', arguments: {} },
      'exec_9',
      'denied',
      'Denied.',
    ),
    {
      result: { outcome: 'denied', is_error: true, call_id: 'c' },
      id: 'exec_9',
      outcome: 'denied',
      duration_ms: 0,
    },
  )
})
