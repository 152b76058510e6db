/** Properties of the canonical language: folding, edits, names, repair for any target. */
import fc from 'fast-check'
import t from 'tap'
import { parseArguments } from '../../src/chat/arguments.ts'
import { applyEdits, type ContextEdit } from '../../src/chat/edits.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import { createFold, fold } from '../../src/chat/fold.ts'
import { newId } from '../../src/chat/ids.ts'
import type {
  AssistantPart,
  MediaKind,
  MessageInput,
  Part,
  Provenance,
  ToolCallPart,
  ToolResultPart,
} from '../../src/chat/message.ts'
import { exposedName, legalCallId } from '../../src/chat/names.ts'
import { type RepairTarget, repair } from '../../src/chat/repair.ts'
import { BatonError } from '../../src/errors.ts'

const RUNS = { seed: 1, numRuns: 300 }

// ---------------------------------------------------------------- arbitrary histories

const PROVIDERS = ['openai', 'anthropic', 'gemini'] as const
const KINDS: readonly MediaKind[] = ['image', 'audio', 'file']

const provenance: fc.Arbitrary<Provenance> = fc.record(
  {
    provider: fc.constantFrom(...PROVIDERS),
    model: fc.constantFrom('m1', 'm2'),
    credential_id: fc.constantFrom('cred_a', null),
    opaque: fc.constantFrom('tok1', 'tok2'),
    prefix: fc.constantFrom('0'.repeat(64), 'ff'),
  },
  { requiredKeys: ['provider', 'model', 'credential_id'] },
) as fc.Arbitrary<Provenance>

// Few ids, so that histories repeat them, lose results and have results without a call.
const callId = fc.constantFrom('call_1', 'call_2', 'call_3', 'call_1_2', 'a|b/ü', 'x'.repeat(90))
const toolName = fc.constantFrom('srv.read', 'srv.写', 'built_in', `srv.${'n'.repeat(80)}`, 'srv.a.b')
const words = fc.constantFrom('', ' ', 'hello', 'π ≠ 3', 'two\nlines')
const media = fc.record({
  type: fc.constantFrom(...KINDS),
  media_type: fc.constantFrom('image/png', 'audio/wav', 'application/pdf'),
  data: fc.constant('AAAA'),
})
const text = fc.record({ type: fc.constant('text' as const), text: words })
const result: fc.Arbitrary<ToolResultPart> = fc.record({
  type: fc.constant('tool_result' as const),
  call_id: callId,
  name: toolName,
  content: fc.array(fc.oneof(text, media), { maxLength: 3 }),
  is_error: fc.boolean(),
  outcome: fc.constantFrom('ok' as const, 'error' as const),
})
const call: fc.Arbitrary<ToolCallPart> = fc
  .record({
    call_id: callId,
    name: toolName,
    arguments: fc.dictionary(fc.constantFrom('a', 'prefix'), fc.integer(), { maxKeys: 2 }),
    provenance: fc.option(provenance, { nil: undefined }),
  })
  .map(({ provenance: from, ...rest }) => ({
    type: 'tool_call' as const,
    ...rest,
    ...(from ? { provenance: from } : {}),
  }))
const reasoning = fc.record({ type: fc.constant('reasoning' as const), text: words, provenance })
const signedText = fc.record({ type: fc.constant('text' as const), text: words, provenance })
const notice = fc.record({ type: fc.constant('notice' as const), text: words })
const anyPart: fc.Arbitrary<Part> = fc.oneof(text, signedText, reasoning, call, result, media, notice)
const message: fc.Arbitrary<MessageInput> = fc.record({
  role: fc.constantFrom('user' as const, 'assistant' as const, 'tool' as const, 'system' as const),
  parts: fc.array(anyPart, { maxLength: 5 }),
})
const history = fc.array(message, { maxLength: 10 })

const target: fc.Arbitrary<RepairTarget> = fc.record({
  provider: fc.constantFrom(...PROVIDERS),
  model: fc.constantFrom('m1', 'm2'),
  credential_id: fc.constantFrom('cred_a', null),
  boundThinking: fc.boolean(),
  userMedia: fc.subarray([...KINDS]).map((kinds) => new Set(kinds)),
  resultMedia: fc.subarray([...KINDS]).map((kinds) => new Set(kinds)),
  systemMessages: fc.boolean(),
})

const callsOf = (one: MessageInput | undefined) =>
  one?.parts.filter((part): part is ToolCallPart => part.type === 'tool_call') ?? []
const resultsOf = (one: MessageInput | undefined) =>
  one?.parts.filter((part): part is ToolResultPart => part.type === 'tool_result') ?? []

// ---------------------------------------------------------------- repair

t.test('in any repaired history every call has exactly one result, in order, directly after', async () => {
  fc.assert(
    fc.property(history, target, (given, to) => {
      const { messages } = repair(given, to)
      messages.forEach((one, i) => {
        const calls = callsOf(one)
        if (calls.length > 0 && one.role !== 'assistant') throw new Error('a call outside of an answer')
        if (one.role === 'tool' && callsOf(messages[i - 1]).length === 0)
          throw new Error('a stray tool message')
        if (one.role !== 'tool' && resultsOf(one).length > 0) throw new Error('a stray result')
        if (calls.length === 0) return
        const next = messages[i + 1]
        if (next?.role !== 'tool' || next.parts.length !== calls.length)
          throw new Error('results are missing')
        resultsOf(next).forEach((found, n) => {
          if (found.call_id !== calls[n]?.call_id || found.name !== calls[n]?.name) throw new Error('order')
        })
      })
    }),
    RUNS,
  )
})

t.test('repaired ids are unique and legal, names are legal', async () => {
  fc.assert(
    fc.property(history, target, (given, to) => {
      const calls = repair(given, to).messages.flatMap(callsOf)
      const ids = calls.map((one) => one.call_id)
      if (new Set(ids).size !== ids.length) throw new Error(`repeated: ${ids}`)
      return (
        ids.every((id) => /^[A-Za-z0-9_-]{1,64}$/.test(id)) &&
        calls.every(({ name }) => /^[A-Za-z0-9_-]{1,63}$/.test(name))
      )
    }),
    RUNS,
  )
})

t.test(
  'a repaired history holds nothing that the target refuses, and loses no word of a person',
  async () => {
    fc.assert(
      fc.property(history, target, (given, to) => {
        const { messages } = repair(given, to)
        for (const { role, parts } of messages) {
          if (parts.length === 0) throw new Error('an empty message')
          if (role === 'system' && !to.systemMessages) throw new Error('a system message')
          for (const part of parts) checkPart(part, role, to)
        }
        const said = given
          .filter(({ role }) => role !== 'assistant')
          .flatMap(({ parts }) => parts.flatMap((part) => (part.type === 'text' ? part.text : [])))
          .filter((one) => one.trim() !== '')
        const kept = JSON.stringify(messages)
        return said.every((one) => kept.includes(JSON.stringify(one).slice(1, -1)))
      }),
      RUNS,
    )
  },
)

function checkPart(part: Part, role: string, to: RepairTarget): void {
  const provenanceOf = 'provenance' in part ? part.provenance : undefined
  if (provenanceOf?.opaque !== undefined) {
    const fits =
      provenanceOf.provider === to.provider &&
      provenanceOf.model === to.model &&
      provenanceOf.credential_id === to.credential_id
    if (!fits) throw new Error('an opaque token of someone else')
  }
  switch (part.type) {
    case 'notice':
      throw new Error('a notice')
    case 'reasoning':
      if (provenanceOf?.opaque === undefined) throw new Error('reasoning without a token')
      return
    case 'text':
      if (part.text.trim() === '' && !provenanceOf) throw new Error('an empty text')
      return
    case 'image':
    case 'audio':
    case 'file':
      if (role === 'assistant' || !to.userMedia.has(part.type)) throw new Error(`a refused ${part.type}`)
      return
    case 'tool_result':
      for (const inner of part.content) {
        if (inner.type === 'text' ? inner.text === '' : !to.resultMedia.has(inner.type)) {
          throw new Error(`${inner.type} in a result`)
        }
      }
      return
    case 'tool_call':
      return
    default:
      part satisfies never
  }
}

t.test(
  'repair is deterministic, changes nothing that it was given, and only grows with the history',
  async () => {
    fc.assert(
      fc.property(history, message, target, (given, extra, to) => {
        const before = JSON.stringify(given)
        const first = repair(given, to, 'head')
        if (JSON.stringify(repair(given, to, 'head')) !== JSON.stringify(first)) return false
        if (JSON.stringify(given) !== before) return false
        // A plain message at the end leaves every earlier byte as it was: the vendor's prompt cache holds.
        const plain: MessageInput = {
          role: 'user',
          parts: [{ type: 'text', text: 'more' }, ...extra.parts.filter((part) => part.type === 'text')],
        }
        const longer = repair([...given, plain], to, 'head').messages
        return JSON.stringify(longer.slice(0, first.messages.length)) === JSON.stringify(first.messages)
      }),
      RUNS,
    )
  },
)

const BOUND: RepairTarget = {
  provider: 'anthropic',
  model: 'm1',
  credential_id: null,
  boundThinking: true,
  userMedia: new Set(),
  resultMedia: new Set(),
  systemMessages: true,
}
const signed = (prefix: string): MessageInput => ({
  role: 'assistant',
  parts: [
    {
      type: 'reasoning',
      text: '',
      provenance: { provider: 'anthropic', model: 'm1', credential_id: null, opaque: 's', prefix },
    },
    { type: 'text', text: 'answer' },
  ],
})

t.test('a message that needs no repair is the one that was given, any other one is a copy', async (t) => {
  const from = { provider: 'p', model: 'm1', credential_id: null }
  const said = (text: string, provenance?: Provenance): MessageInput => ({
    role: 'assistant',
    parts: [{ type: 'text', text, ...(provenance ? { provenance } : {}) }],
  })
  const given: MessageInput[] = [
    { role: 'user', parts: [{ type: 'text', text: 'q' }] },
    said('plain'),
    said('from elsewhere', from),
    said('signed here', { ...from, opaque: 'tok' }),
    said('signed elsewhere', { ...from, model: 'm2', opaque: 'tok' }),
    {
      role: 'user',
      parts: [
        { type: 'text', text: 'r' },
        { type: 'notice', text: 'for people' },
      ],
    },
  ]
  const before = structuredClone(given)
  const { messages } = repair(given, { ...BOUND, ...from, boundThinking: false })
  t.strictSame(
    messages.map((message, i) => message === given[i]),
    [true, true, true, true, false, false],
  )
  t.strictSame(messages[4]?.parts, [{ type: 'text', text: 'signed elsewhere' }])
  t.strictSame(messages[5]?.parts, [{ type: 'text', text: 'r' }])
  t.strictSame(given, before)
})

t.test('what a system message shows stays, where it is given as a user’s', async (t) => {
  const text = (value: string): Part => ({ type: 'text', text: value })
  const image: Part = { type: 'image', media_type: 'image/png', data: 'aGk=' }
  const given: MessageInput = { role: 'system', parts: [text('a'), image, text('b')] }
  const to = { ...BOUND, systemMessages: false, userMedia: new Set(['image'] as const) }
  t.strictSame(repair([given], to).messages, [
    { role: 'user', parts: [text('[System message]\na\nb'), image] },
  ])
})

t.test('bound reasoning goes back under its own prefix only', async (t) => {
  const earlier = (args: Record<string, unknown>): MessageInput[] => [
    { role: 'user', parts: [{ type: 'text', text: 'q' }] },
    { role: 'assistant', parts: [{ type: 'tool_call', call_id: 'c', name: 's.t', arguments: args }] },
    {
      role: 'tool',
      parts: [
        { type: 'tool_result', call_id: 'c', name: 's.t', content: [], is_error: false, outcome: 'ok' },
      ],
    },
  ]
  const { prefix } = repair(earlier({ prefix: 'a' }), BOUND, 'head')
  const kinds = (given: MessageInput[], head = 'head') =>
    repair(given, BOUND, head)
      .messages.at(-1)
      ?.parts.map((part) => part.type)
  t.strictSame(kinds([...earlier({ prefix: 'a' }), signed(prefix)]), ['reasoning', 'text'])
  t.strictSame(
    kinds([...earlier({ prefix: 'b' }), signed(prefix)]),
    ['text'],
    'an argument named prefix counts',
  )
  t.strictSame(kinds([...earlier({ prefix: 'a' }), signed(prefix)], 'other tools'), ['text'])
  const loose = repair([...earlier({}), signed('stale')], { ...BOUND, boundThinking: false }, 'x')
  t.strictSame(
    loose.messages.at(-1)?.parts.map((part) => part.type),
    ['reasoning', 'text'],
  )
  t.equal(loose.prefix, '')
})

t.test('an unanswered call and a result without a call are told truthfully', async (t) => {
  const open: MessageInput = {
    role: 'assistant',
    parts: [{ type: 'tool_call', call_id: 'c', name: 's.t', arguments: {} }],
  }
  const [, tool] = repair([open], BOUND).messages
  t.match(tool?.parts[0], { outcome: 'outcome_unknown', is_error: true, name: 's__t' })
  const orphan: MessageInput = {
    role: 'tool',
    parts: [
      {
        type: 'tool_result',
        call_id: 'gone',
        name: 's.t',
        content: [{ type: 'text', text: 'found it' }],
        is_error: false,
        outcome: 'ok',
      },
    ],
  }
  const [user] = repair([orphan], BOUND).messages
  t.equal(user?.role, 'user')
  t.match(JSON.stringify(user), /earlier call of s\.t.*found it/)
})

// ---------------------------------------------------------------- fold

/** A stream that builds these parts: deltas in any pieces, interleaved, each part when it is done. */
function streamOf(parts: AssistantPart[], cuts: number[]): ModelEvent[] {
  const queues = parts.map((part, index): ModelEvent[] => {
    const whole = part.type === 'tool_call' ? JSON.stringify(part.arguments) : 'text' in part ? part.text : ''
    const size = Math.max(1, cuts[index] ?? 3)
    const pieces = Array.from({ length: Math.ceil(whole.length / size) }, (_, i) =>
      whole.slice(i * size, (i + 1) * size),
    )
    const deltas = pieces.map((piece): ModelEvent => {
      if (part.type === 'tool_call') {
        return {
          type: 'tool_call.delta',
          index,
          call_id: part.call_id,
          name: part.name,
          arguments_delta: piece,
        }
      }
      return { type: part.type === 'reasoning' ? 'reasoning.delta' : 'text.delta', index, text: piece }
    })
    return [...deltas, { type: 'part', index, part }]
  })
  const events: ModelEvent[] = []
  for (let turn = 0; ; turn++) {
    const open = queues.filter((queue) => queue.length > 0)
    if (open.length === 0) break
    events.push(...(open[(cuts[turn % cuts.length] ?? 0) % open.length]?.splice(0, 1) ?? []))
  }
  return events
}

t.test('folding a stream gives the parts that it told, in their order', async () => {
  const parts = fc.array(fc.oneof(text, signedText, reasoning, call), { minLength: 1, maxLength: 5 })
  fc.assert(
    fc.property(
      parts,
      fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 5, maxLength: 5 }),
      (given, cuts) => {
        const events = streamOf(given, cuts)
        const folding = createFold()
        let longest = ''
        for (const event of events) {
          folding.add(event)
          const seen = folding.textSoFar()
          if (seen.length >= longest.length) longest = seen
        }
        const texts = given.map((part) => (part.type === 'text' ? part.text : '')).join('')
        return (
          JSON.stringify(fold(events)) === JSON.stringify(given) &&
          JSON.stringify(folding.parts()) === JSON.stringify(given) &&
          folding.textSoFar() === texts &&
          longest === texts
        )
      },
    ),
    RUNS,
  )
})

t.test('a cut stream leaves the text so far, and neither reasoning nor half a call', async (t) => {
  const folding = createFold()
  folding.add({ type: 'reasoning.delta', index: 0, text: 'secret' })
  folding.add({ type: 'text.delta', index: 1, text: 'half an ' })
  folding.add({ type: 'text.delta', index: 1, text: 'answer' })
  folding.add({ type: 'tool_call.delta', index: 2, call_id: 'c', name: 'n', arguments_delta: '{"a"' })
  t.equal(folding.textSoFar(), 'half an answer')
  t.strictSame(folding.parts(), [])
  t.equal(folding.finish(), null)
  const usage = { input_tokens: 1, output_tokens: 2, reasoning_tokens: 0, cached_tokens: 0 }
  folding.add({ type: 'usage', usage })
  folding.add({ type: 'usage', usage: { ...usage, output_tokens: 9 } })
  folding.add({ type: 'finish', reason: 'stop', invalid_call: 'no such tool' })
  t.equal(folding.usage().output_tokens, 9, 'the last one counts')
  t.strictSame(folding.finish(), { reason: 'stop', invalid_call: 'no such tool' })
})

// ---------------------------------------------------------------- edits

const said = (word: string): MessageInput => ({ role: 'user', parts: [{ type: 'text', text: word }] })
const edit: fc.Arbitrary<ContextEdit> = fc.oneof(
  fc.record({
    op: fc.constantFrom('insert_before' as const, 'insert_after' as const, 'replace_at' as const),
    index: fc.integer({ min: -6, max: 6 }),
    message: fc.constantFrom(said('x'), said('y')),
  }),
  fc.record({ op: fc.constant('delete_at' as const), index: fc.integer({ min: -6, max: 6 }) }),
)

/** The same by slices. */
function plainly(list: MessageInput[], one: ContextEdit): MessageInput[] | null {
  const isFirst =
    list.length === 0 &&
    ((one.op === 'insert_before' && one.index === 0) || (one.op === 'insert_after' && one.index === -1))
  if (isFirst && 'message' in one) return [one.message]
  const at = one.index < 0 ? list.length + one.index : one.index
  if (at < 0 || at >= list.length) return null
  const [before, after] = [list.slice(0, at), list.slice(at + 1)]
  const here = list.slice(at, at + 1)
  switch (one.op) {
    case 'insert_before':
      return [...before, one.message, ...here, ...after]
    case 'insert_after':
      return [...before, ...here, one.message, ...after]
    case 'replace_at':
      return [...before, one.message, ...after]
    case 'delete_at':
      return [...before, ...after]
  }
}

t.test('edits apply in order, each on the list that the one before left', async () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 5 }), fc.array(edit, { maxLength: 5 }), (length, edits) => {
      const given = Array.from({ length }, (_, i) => said(`m${i}`))
      let expected: MessageInput[] | null = given
      let failed = -1
      edits.forEach((one, i) => {
        if (!expected) return
        expected = plainly(expected, one)
        if (!expected) failed = i
      })
      try {
        const got = applyEdits(given, edits)
        return JSON.stringify(got) === JSON.stringify(expected)
      } catch (thrown) {
        return (
          thrown instanceof BatonError &&
          thrown.code === 'invalid_request' &&
          thrown.param === `context[${failed}].index`
        )
      }
    }),
    RUNS,
  )
})

t.test('no edit parts a call from its result', async (t) => {
  const exchange: MessageInput[] = [
    said('q'),
    {
      role: 'assistant',
      parts: ['a', 'b'].map((id) => ({ type: 'tool_call', call_id: id, name: 's.t', arguments: {} })),
    },
    {
      role: 'tool',
      parts: ['a', 'b'].map((id) => ({
        type: 'tool_result',
        call_id: id,
        name: 's.t',
        content: [],
        is_error: false,
        outcome: 'ok',
      })),
    },
    said('thanks'),
  ]
  const refused = (...edits: ContextEdit[]) => {
    try {
      applyEdits(exchange, edits)
      return 'accepted'
    } catch (thrown) {
      return thrown instanceof BatonError ? thrown.code : thrown
    }
  }
  const split = 'context_splits_tool_exchange'
  t.equal(refused({ op: 'delete_at', index: 1 }), split, 'the calls go alone')
  t.equal(refused({ op: 'delete_at', index: 2 }), split, 'the results go alone')
  t.equal(refused({ op: 'replace_at', index: 2, message: said('x') }), split)
  t.equal(refused({ op: 'insert_after', index: 1, message: said('x') }), split, 'something comes between')
  t.equal(refused({ op: 'insert_before', index: -2, message: said('x') }), split)
  t.equal(refused({ op: 'delete_at', index: 1 }, { op: 'delete_at', index: 1 }), 'accepted', 'both go')
  t.equal(refused({ op: 'insert_after', index: 2, message: said('x') }), 'accepted')
  t.equal(refused({ op: 'insert_before', index: 1, message: said('x') }), 'accepted')
  const call = exchange[1] as MessageInput
  t.equal(
    refused({ op: 'insert_before', index: 0, message: { ...call, parts: call.parts.slice(0, 1) } }),
    split,
    'a second call of the same id, alone',
  )
  const broken = exchange.slice(0, 2)
  t.equal(
    applyEdits(broken, [{ op: 'insert_after', index: 1, message: said('x') }]).length,
    3,
    'old gaps stay',
  )
})

// ---------------------------------------------------------------- names, ids, arguments

t.test('exposed names follow the contract', async (t) => {
  t.equal(exposedName('srv.read_file'), 'srv__read_file')
  t.equal(exposedName('srv.a.b'), exposedName('srv.a.b'))
  t.match(exposedName('srv.a.b'), /^srv__a_b_[0-9a-f]{6}$/, 'a replaced character brings the hash')
  t.match(exposedName('srv.行'), /^srv____[0-9a-f]{6}$/)
  const long = `srv.${'x'.repeat(40)}${'y'.repeat(40)}`
  t.match(exposedName(long), /^srv__x{23}_y{27}_[0-9a-f]{6}$/)
  t.equal(exposedName(long).length, 63)
  t.equal(exposedName(`srv.${'x'.repeat(58)}`).length, 63, 'exactly 63 stays as it is')
  fc.assert(
    fc.property(fc.string({ minLength: 1, unit: 'binary' }), (name) => {
      const exposed = exposedName(`srv.${name}`)
      return /^[A-Za-z_][A-Za-z0-9_-]{0,62}$/.test(exposed) && exposedName(`srv.${name}`) === exposed
    }),
    RUNS,
  )
})

t.test('call ids are legal and never meet', async () => {
  fc.assert(
    fc.property(fc.uniqueArray(fc.string({ maxLength: 80 }), { maxLength: 20 }), (ids) => {
      const legal = ids.map(legalCallId)
      return new Set(legal).size === ids.length && legal.every((id) => /^[A-Za-z0-9_-]{1,64}$/.test(id))
    }),
    RUNS,
  )
})

t.test('ids sort by the time they were made', async (t) => {
  const ids = Array.from({ length: 500 }, () => newId('msg'))
  t.strictSame([...ids].sort(), ids)
  t.equal(new Set(ids).size, ids.length)
  t.match(ids[0], /^msg_[0-9a-z]{24}$/)
})

t.test('arguments are an object, or nothing with the text kept', async (t) => {
  t.strictSame(parseArguments('{"a":1}'), { arguments: { a: 1 } })
  t.strictSame(parseArguments('  '), { arguments: {} })
  const deep = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`
  t.strictSame(parseArguments(deep), { arguments: {}, arguments_text: deep }, 'nested without end')
  for (const broken of ['{"a":', '[1]', 'null', '"x"', 'x']) {
    t.strictSame(parseArguments(broken), { arguments: {}, arguments_text: broken }, broken)
  }
})
