/** A turn's edits of its context. */
import fc from 'fast-check'
import t from 'tap'
import { afterEdits, applyEdits, type ContextEdit } from '../../src/chat/edits.ts'
import type { MessageInput } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { RUNS } from './histories.ts'

const said = (word: string): MessageInput => ({ role: 'user', parts: [{ type: 'text', text: word }] })
const edit: fc.Arbitrary<ContextEdit> = fc.oneof(
  fc.record({
    op: fc.constantFrom('insert_before' as const, 'insert_after' as const, 'replace_at' as const),
    index: fc.integer({ min: -6, max: 6 }),
    message: fc.constantFrom(said('x'), said('y')),
  }),
  fc.record({ op: fc.constant('delete_at' as const), index: fc.integer({ min: -6, max: 6 }) }),
)

/** One edit, applied by slices; null where its index is out of range. */
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

t.test('a conversation without a message takes insertions at its beginning, and nothing else', async (t) => {
  const message = said('x')
  t.strictSame(applyEdits([], [{ op: 'insert_before', index: 0, message }]), [message])
  t.strictSame(applyEdits([], [{ op: 'insert_after', index: -1, message }]), [message])
  const refused: ContextEdit[] = [
    { op: 'insert_before', index: -1, message },
    { op: 'insert_before', index: 1, message },
    { op: 'insert_after', index: 0, message },
    { op: 'replace_at', index: 0, message },
    { op: 'delete_at', index: -1 },
  ]
  for (const edit of refused) t.throws(() => applyEdits([], [edit]), { code: 'invalid_request' })
})

t.test('an edit that separates a call from its result is refused', async (t) => {
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
  t.equal(refused({ op: 'delete_at', index: 1 }), split, 'the calls are deleted alone')
  t.equal(refused({ op: 'delete_at', index: 2 }), split, 'the results are deleted alone')
  t.equal(refused({ op: 'replace_at', index: 2, message: said('x') }), split)
  t.equal(
    refused({ op: 'insert_after', index: 1, message: said('x') }),
    split,
    'a message comes between them',
  )
  t.equal(refused({ op: 'insert_before', index: -2, message: said('x') }), split)
  t.equal(
    refused({ op: 'delete_at', index: 1 }, { op: 'delete_at', index: 1 }),
    'accepted',
    'both are deleted',
  )
  t.equal(refused({ op: 'insert_after', index: 2, message: said('x') }), 'accepted')
  t.equal(refused({ op: 'insert_before', index: 1, message: said('x') }), 'accepted')
  const call = exchange[1] as MessageInput
  t.equal(
    refused({ op: 'insert_before', index: 0, message: { ...call, parts: call.parts.slice(0, 1) } }),
    split,
    'a second call of the same id, alone',
  )
  const twice = [...exchange.slice(0, 2), ...exchange]
  t.throws(
    () => applyEdits(twice, [{ op: 'delete_at', index: 4 }]),
    { code: split },
    'nor may a result go whose id an earlier, unanswered call bears, too',
  )
  t.equal(applyEdits(twice, [{ op: 'delete_at', index: 1 }]).length, 5, 'the unanswered call alone may go')
  const broken = exchange.slice(0, 2)
  t.equal(
    applyEdits(broken, [{ op: 'insert_after', index: 1, message: said('x') }]).length,
    3,
    'a call that had no result before is no obstacle',
  )
})

t.test('a part that an edit gives back with other words loses its token', async (t) => {
  const signed = (text: string, opaque?: string): MessageInput => ({
    role: 'assistant',
    parts: [
      {
        type: 'text',
        text,
        provenance: { provider: 'gemini', model: 'm', credential_id: null, ...(opaque && { opaque }) },
      },
    ],
  })
  const history = [said('a'), signed('b', 'one')]
  const replaced = (message: MessageInput) =>
    applyEdits(history, [{ op: 'replace_at', index: 1, message }])[1]
  t.strictSame(replaced(signed('b', 'one')), signed('b', 'one'))
  t.strictSame(replaced(signed('other', 'one')), signed('other'))
  t.strictSame(replaced(signed('other', 'of another session')), signed('other', 'of another session'))
  history[0] = signed('c', 'one')
  for (const words of ['b', 'c']) {
    t.strictSame(replaced(signed(words, 'one')), signed(words, 'one'), 'one token may be on several parts')
  }
})

t.test('edits cost as much as they and the history are long, not as much as the product', async (t) => {
  const provenance = { provider: 'gemini', model: 'm', credential_id: null }
  const signed = (name: string): MessageInput => ({
    role: 'assistant',
    parts: Array.from({ length: 10 }, (_, i) => ({
      type: 'text',
      text: name,
      provenance: { ...provenance, opaque: `${name} ${i}` },
    })),
  })
  const history = Array.from({ length: 2_000 }, (_, i) => signed(`old ${i}`))
  const edits = Array.from({ length: 1_000 }, (_, i) => ({
    op: 'insert_after' as const,
    index: -1,
    message: signed(`new ${i}`),
  }))
  const { user } = process.cpuUsage()
  t.equal(applyEdits(history, edits).length, 3_000)
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 1)
})

t.test('edits stay cheap where thousands of parts, before and after, bear one token', async (t) => {
  const provenance = { provider: 'gemini', model: 'm', credential_id: null, opaque: 'one' }
  const signed = (name: string): MessageInput => ({
    role: 'assistant',
    parts: Array.from({ length: 4_000 }, (_, i) => ({ type: 'text', text: `${name} ${i}`, provenance })),
  })
  const edits: ContextEdit[] = [{ op: 'insert_after', index: 0, message: signed('new') }]
  const { user } = process.cpuUsage()
  const [, edited] = applyEdits([signed('old')], edits)
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 1)
  t.notMatch(JSON.stringify(edited), 'opaque')
})

t.test('of results that come later, those stay whose calls the edits left', async (t) => {
  const asked = (...ids: string[]): MessageInput => ({
    role: 'assistant',
    parts: ids.map((call_id) => ({ type: 'tool_call', call_id, name: 's.t', arguments: {} })),
  })
  const answered = (...ids: string[]): MessageInput => ({
    role: 'tool',
    parts: ids.map((call_id) => ({
      type: 'tool_result',
      call_id,
      name: 's.t',
      content: [],
      is_error: false,
      outcome: 'ok',
    })),
  })
  const before = [said('look'), asked('a', 'b')]
  const since = [answered('a', 'b'), said('go on'), asked('c'), answered('c')]
  const [, ...later] = since
  t.strictSame(afterEdits(before, before, since), since)
  const left = afterEdits(before, [said('look'), asked('b')], since)
  t.strictSame(left, [answered('b'), ...later])
  t.ok(
    later.every((message, i) => message === left[i + 1]),
    'the others are the same objects, of which adapters remember what they rendered',
  )
  t.strictSame(afterEdits(before, [said('look')], since), later)
})
