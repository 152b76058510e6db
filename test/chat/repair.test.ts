/** Any history, repaired for any target. */

import fc from 'fast-check'
import t from 'tap'
import {
  type MediaPart,
  type MessageInput,
  type Part,
  type Provenance,
  type TextPart,
  type ToolCallPart,
  type ToolResultPart,
  textOf,
} from '../../src/chat/message.ts'
import { marksOf, type RepairTarget, repair } from '../../src/chat/repair.ts'
import { PDF, PNG } from '../emulators/bytes.ts'
import { BOUND, history, KINDS, message, PROVIDERS, RUNS } from './histories.ts'

const target: fc.Arbitrary<RepairTarget> = fc.record({
  provider: fc.constantFrom(...PROVIDERS),
  model: fc.constantFrom('m1', 'm2'),
  credential_id: fc.constantFrom('cred_a', null),
  boundThinking: fc.boolean(),
  takesMedia: fc.subarray([...KINDS]).map(
    (kinds) =>
      ({ type }: MediaPart) =>
        kinds.includes(type),
  ),
  systemMessages: fc.boolean(),
})

const BLANK = /^[\s\u0085\u200b]*$/
const callsOf = (one: MessageInput | undefined) =>
  one?.parts.filter((part): part is ToolCallPart => part.type === 'tool_call') ?? []
const resultsOf = (one: MessageInput | undefined) =>
  one?.parts.filter((part): part is ToolResultPart => part.type === 'tool_result') ?? []

t.test('in any repaired history every call has exactly one result, in order, right after it', async () => {
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

t.test('a call becomes the same object when the history is repaired again', async () => {
  fc.assert(
    fc.property(history, target, (given, to) => {
      const parts = () => repair(given, to).messages.flatMap((one) => one.parts)
      const before = parts()
      parts().forEach((part, i) => {
        if (part.type === 'tool_call' && part !== before[i]) throw new Error('a new call')
      })
    }),
    RUNS,
  )
})

t.test('so does each message with media, whose bytes are many: they are written once', async (t) => {
  const image: Part = { type: 'image', media_type: 'image/png', data: PNG }
  const pdf: Part = { type: 'file', media_type: 'application/pdf', data: PDF }
  const given: MessageInput[] = [
    { role: 'user', parts: [image, pdf] },
    { role: 'user', parts: [{ ...image, media_type: 'image/PNG; q=1' }] },
    { role: 'assistant', parts: [{ type: 'text', text: 'Here.' }, image] },
  ]
  const shown = () => repair(given, { ...BOUND, takesMedia: ({ type }) => type === 'image' }).messages
  const before = shown()
  t.match(before, [
    { role: 'user', parts: [image, { text: /not shown/ }] },
    { role: 'user', parts: [image] },
    { role: 'assistant' },
    { role: 'user', parts: [{ type: 'text' }, image] },
  ])
  for (const [i, message] of shown().entries()) t.equal(message, before[i])
})

t.test('what the model refused is not sent again, except media that were just given', async (t) => {
  const provenance = { provider: 'p', model: 'm', credential_id: null, opaque: 'token' }
  const image: Part = { type: 'image', media_type: 'image/png', data: PNG }
  const called: Part = { type: 'tool_call', call_id: 'call_1', name: 't', arguments: {}, provenance }
  const found: Part = {
    type: 'tool_result',
    call_id: 'call_1',
    name: 't',
    content: [image],
    is_error: false,
    outcome: 'ok',
  }
  const given: MessageInput[] = [
    { role: 'user', parts: [{ ...image, media_type: 'image/PNG' }] },
    { role: 'assistant', parts: [{ type: 'reasoning', text: '', provenance }, called] },
    { role: 'tool', parts: [found] },
    { role: 'user', parts: [{ ...image }] },
    { role: 'assistant', parts: [{ type: 'text', text: 'Its' }] },
  ]
  const to = { ...BOUND, ...provenance, boundThinking: false, takesMedia: () => true }
  const shown = (refused?: ReadonlySet<string>) => {
    const { messages, notes } = repair(given, { ...to, refused })
    const parts = messages.flatMap(({ parts }) => parts)
    return [parts.map((part) => (part.type === 'tool_result' ? part.content[0]?.type : part.type)), notes]
  }
  const unpadded: Part = { ...image, data: PNG.replace(/=+$/, '') }
  t.strictSame(marksOf(unpadded), marksOf(image), 'a row of an earlier version')
  const whole = [['image', 'reasoning', 'tool_call', 'image', 'image', 'text'], []]
  t.strictSame(shown(), whole)
  t.strictSame(shown(new Set(['else'])), whole)
  t.strictSame(shown(new Set([...marksOf(image), ...marksOf(called)])), [
    ['text', 'tool_call', 'text', 'image', 'text'],
    ['messages: a medium of type image/png was refused; the model is told that it exists'],
  ])
})

t.test('the call ids of a repaired history are unique and legal, and its tool names are legal', async () => {
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
          .filter((one) => !BLANK.test(one))
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
      if (BLANK.test(part.text) && !provenanceOf) throw new Error('an empty text')
      return
    case 'image':
    case 'audio':
    case 'file':
      if (role === 'assistant' || !to.takesMedia(part)) throw new Error(`a refused ${part.type}`)
      return
    case 'tool_result':
      for (const inner of part.content) {
        if (inner.type === 'text' ? BLANK.test(inner.text) : !to.takesMedia(inner)) {
          throw new Error(`${inner.type} in a result`)
        }
      }
      return
    case 'tool_call':
      return
    default:
      part satisfies never
      throw new Error('a part of no type')
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
        // A message without results leaves every earlier byte as it was: the vendor's prompt cache holds.
        const more = { ...extra, parts: extra.parts.filter((part) => part.type !== 'tool_result') }
        const longer = repair([...given, more], to, 'head').messages
        return JSON.stringify(longer.slice(0, first.messages.length)) === JSON.stringify(first.messages)
      }),
      RUNS,
    )
  },
)

t.test('a part that was repaired for one target is repaired anew for another', async () => {
  fc.assert(
    fc.property(history, target, target, (given, one, other) => {
      repair(given, one)
      const fresh = repair(structuredClone(given), other)
      return JSON.stringify(repair(given, other)) === JSON.stringify(fresh)
    }),
    RUNS,
  )
})

const from = { provider: 'p', model: 'm1', credential_id: null }
const here = { ...BOUND, ...from, boundThinking: false }

t.test('a token goes back on its part, only to the provider, model and credential it is from', async (t) => {
  const call = { type: 'tool_call', call_id: 'c', arguments: {} } as const
  const answer = (provenance: Provenance): MessageInput => ({
    role: 'assistant',
    parts: [
      { type: 'reasoning', text: '', provenance },
      { type: 'text', text: '', provenance },
      { ...call, name: 's.t', provenance },
    ],
  })
  const shown = (provenance: Provenance) => repair([answer(provenance)], here).messages[0]?.parts
  const whole = answer({ ...from, opaque: 'tok' })
  t.strictSame(shown({ ...from, opaque: 'tok' }), [
    ...whole.parts.slice(0, 2),
    { ...whole.parts[2], name: 's__t' },
  ])
  const bare = [{ ...call, name: 's__t' }]
  t.strictSame(shown({ ...from, model: 'm2', opaque: 'tok' }), bare)
  t.strictSame(shown({ ...from, provider: 'q', opaque: 'tok' }), bare)
  t.strictSame(shown({ ...from, credential_id: 'cred_b', opaque: 'tok' }), bare)
  t.strictSame(shown(from), bare, 'without a token there is nothing to give back')

  const shared = (provenance: Provenance) =>
    repair([answer(provenance)], { ...here, sharedTextTokens: true }).messages[0]?.parts.map(
      ({ type }) => type,
    )
  for (const other of [{ model: 'm2' }, { credential_id: 'cred_b' }]) {
    const types = shared({ ...from, ...other, opaque: 'tok' })
    t.same(types, ['text', 'tool_call'], "a text's token goes back where the provider's models share them")
  }
  t.same(shared({ ...from, provider: 'q', opaque: 'tok' }), ['tool_call'])
})

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

t.test('a message that needs no repair is the given object; any other message is a copy', async (t) => {
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
  const { messages } = repair(given, here)
  t.strictSame(
    messages.map((message, i) => message === given[i]),
    [true, true, true, true, false, false],
  )
  t.strictSame(messages[4]?.parts, [{ type: 'text', text: 'signed elsewhere' }])
  t.strictSame(messages[5]?.parts, [{ type: 'text', text: 'r' }])
  t.strictSame(given, before)
})

t.test('an image in a system message stays where the message is sent as a user’s', async (t) => {
  const text = (value: string): Part => ({ type: 'text', text: value })
  const image: Part = { type: 'image', media_type: 'image/png', data: PNG }
  const given: MessageInput = { role: 'system', parts: [text('a'), image, text('b')] }
  const to = { ...BOUND, systemMessages: false, takesMedia: () => true }
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

t.test('a prefix is made of what is sent, and of nothing else', async (t) => {
  const origin = { ...from, provider: 'anthropic' }
  const prefixOf = (text: string, provenance?: Provenance) =>
    repair([{ role: 'assistant', parts: [{ type: 'text', text, ...(provenance && { provenance }) }] }], BOUND)
      .prefix
  const token = (opaque: string, prefix?: string) => ({ ...origin, opaque, ...(prefix && { prefix }) })
  const bound = repair([], BOUND).prefix
  t.equal(prefixOf('a', origin), prefixOf('a'), 'provenance without a token goes nowhere')
  t.equal(prefixOf('a', { ...origin, prefix: bound }), prefixOf('a'))
  t.equal(prefixOf('a', token('one')), prefixOf('a'), 'nor does a token that is bound to another prefix')
  t.not(prefixOf('a', token('one', bound)), prefixOf('a'))
  t.not(prefixOf('a', token('two', bound)), prefixOf('a', token('one', bound)))
  t.not(prefixOf('b', token('one', bound)), prefixOf('a', token('one', bound)))
  const asked: MessageInput = { role: 'user', parts: [{ type: 'text', text: 'a' }] }
  t.not(repair([asked], BOUND).prefix, prefixOf('a'), 'who said it counts')
})

t.test('a call without a result has an unknown outcome, a result without a call is user text', async (t) => {
  const open: MessageInput = {
    role: 'assistant',
    parts: [{ type: 'tool_call', call_id: 'c', name: 's.t', arguments: {} }],
  }
  const [, tool] = repair([open], BOUND).messages
  t.match(tool?.parts[0], {
    outcome: 'outcome_unknown',
    is_error: true,
    name: 's__t',
    content: [{ text: /may or may not have run/ }],
  })
  const orphan = (result: Pick<ToolResultPart, 'content' | 'structured'>): MessageInput => ({
    role: 'tool',
    parts: [{ type: 'tool_result', call_id: 'gone', name: 's.t', ...result, is_error: false, outcome: 'ok' }],
  })
  const told = (result: Pick<ToolResultPart, 'content' | 'structured'>) => {
    const [user] = repair([orphan(result)], BOUND).messages
    t.equal(user?.role, 'user')
    return user?.parts.map((part) => (part.type === 'text' ? part.text : part.type)).join(' ')
  }
  const found: TextPart = { type: 'text', text: 'found it' }
  const result = orphan({ content: [found], structured: { n: 1 } })
  const call: MessageInput = { ...open, parts: open.parts.map((part) => ({ ...part, call_id: 'gone' })) }
  t.match(repair([call, result], BOUND).messages[1]?.parts, [{ content: [found], structured: { n: 1 } }])
  t.equal(told({ content: [found] }), '[Result of an earlier call of s.t] found it')
  t.equal(told({ content: [], structured: { n: 1 } }), '[Result of an earlier call of s.t] {"n":1}')
  t.equal(told({ content: [found], structured: { n: 1 } }), '[Result of an earlier call of s.t] found it')
})

t.test('a result answers the call before it, also where ids are used again', async (t) => {
  const ask: MessageInput = {
    role: 'assistant',
    parts: [{ type: 'tool_call', call_id: 'call_0', name: 's.t', arguments: {} }],
  }
  const answer = (text: string): MessageInput => ({
    role: 'tool',
    parts: [
      {
        type: 'tool_result',
        call_id: 'call_0',
        name: 's.t',
        content: [{ type: 'text', text }],
        is_error: false,
        outcome: 'ok',
      },
    ],
  })
  const go: MessageInput = { role: 'user', parts: [{ type: 'text', text: 'go on' }] }
  const told = (given: MessageInput[]) =>
    repair(given, BOUND).messages.flatMap((one) =>
      resultsOf(one).map(({ content, outcome }) =>
        outcome === 'ok' ? textOf({ role: 'user', parts: content }) : outcome,
      ),
    )
  t.same(told([ask, go, { ...ask }, answer('two')]), ['outcome_unknown', 'two'])
  t.same(told([ask, answer('one'), answer('one again'), { ...ask }, answer('two')]), ['one', 'two'])
  t.same(told([ask, go, answer('one'), { ...ask }, answer('two')]), ['one', 'two'])
  t.same(told([answer('none of these'), ask, answer('one')]), ['one'])
  t.same(told([{ ...ask, role: 'user' }, ask, answer('one')]), ['one'], 'only an answer has calls')
  // This must be quick: a history of half a megabyte must not hold everybody else up for seconds.
  const long = Array.from({ length: 5_000 }, (_, i) =>
    ask.parts.map((part) => ({ ...part, call_id: `call_${String(i).padStart(59, '0')}` })),
  ).flat()
  const { user } = process.cpuUsage()
  t.equal(told([{ ...ask, parts: Array.from({ length: 10_000 }, () => ask.parts).flat() }]).length, 10_000)
  t.equal(told([{ ...ask, parts: [...long, ...long] }]).length, 10_000)
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 3)
  const both = { ...ask, parts: [...ask.parts, ...ask.parts] }
  t.same(
    repair([both, both], BOUND)
      .messages.flatMap(callsOf)
      .map(({ call_id }) => call_id),
    ['call_0', 'call_0_2', 'call_0_3', 'call_0_4'],
  )
  t.same(told([both, answer('one'), answer('two')]), ['one', 'two'])
  t.same(told([ask, answer('one'), both, answer('two'), answer('three')]), ['one', 'two', 'three'])
  const answered = [ask, answer('one'), answer('one again')]
  const shown = repair(answered, BOUND).messages
  t.same(
    shown.map(({ role }) => role),
    ['assistant', 'tool'],
    'a second result of the call is told nowhere else',
  )
  const [exchange, afresh] = [1, 2].map(() => repair(answered, BOUND).messages.flatMap(({ parts }) => parts))
  t.ok(
    exchange?.every((part, i) => part === afresh?.[i]),
    'an exchange that is repaired again consists of the same objects',
  )
})
