/** Streams folded into parts, and the arguments of calls. */
import fc from 'fast-check'
import t from 'tap'
import type { ModelEvent } from '../../src/chat/event.ts'
import { createFold } from '../../src/chat/fold.ts'
import { type AssistantPart, parseArguments } from '../../src/chat/message.ts'
import { fold } from '../providers/streams.ts'
import { call, RUNS, reasoning, signedText, text } from './histories.ts'

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
  t.equal(folding.usage().output_tokens, 9, 'the last usage counts')
  t.strictSame(folding.finish(), { reason: 'stop', invalid_call: 'no such tool' })
})

t.test('the text of a finished part counts, whatever its deltas said', async (t) => {
  const folding = createFold()
  const text = (index: number, text: string) => folding.add({ type: 'text.delta', index, text })
  text(0, 'said in hal')
  folding.add({ type: 'part', index: 0, part: { type: 'text', text: 'said whole, ' } })
  text(1, 'half')
  t.equal(folding.textSoFar(), 'said whole, half')
  t.strictSame(
    folding.parts(),
    [{ type: 'text', text: 'said whole, ' }],
    'a part that was left open is left out',
  )
})

t.test('arguments with a whole number that parsing would change are kept as text', async (t) => {
  for (const text of [
    '{"id":9007199254740993}',
    '{"ids":[1,{"of":-725653563933458432}]}',
    '{"from":9007199254740992,"to":9007199254740993}',
    '{"id":123456789012345678901234}',
    `{"id":1${'0'.repeat(400)}}`,
    '{"of":"\\\\","id":9007199254740993}',
  ]) {
    t.strictSame(parseArguments(text), { arguments: {}, arguments_text: text })
  }
  for (const text of [
    '{"id":9007199254740992}',
    '{"id":"9007199254740993"}',
    '{"of":"\\" 9007199254740993","many":100e18,"on":"9007199254740993"}',
    '{"wei":1000000000000000000}',
    '{"pi":3.14159265358979323846,"far":1.5e300,"many":1000000000000000000000}',
  ]) {
    t.strictSame(parseArguments(text), { arguments: JSON.parse(text) }, text)
  }
})

t.test('arguments that a model or a server wrote as JSON twice are the object that it meant', async (t) => {
  const twice = (json: string) => JSON.stringify(json)
  t.strictSame(parseArguments(twice('{"path":"a\\"b"}')), { arguments: { path: 'a"b' } })
  t.strictSame(parseArguments(` ${twice('{}')}\n`), { arguments: {} })
  t.strictSame(parseArguments(twice('')), { arguments: {} })
  for (const text of [
    twice('{"id":9007199254740993}'),
    twice('[1]'),
    twice('{"a":'),
    '"{}',
    twice(twice('{}')),
  ])
    t.strictSame(parseArguments(text), { arguments: {}, arguments_text: text }, text)
})

t.test('arguments that are no object, or too much to handle, are empty with their text kept', async (t) => {
  t.strictSame(parseArguments('{"a":1}'), { arguments: { a: 1 } })
  t.strictSame(parseArguments('  '), { arguments: {} })
  const deep = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`
  t.strictSame(parseArguments(deep), { arguments: {}, arguments_text: deep }, 'nested without end')
  const many = `{"a":[${'{},'.repeat(200_000)}{}]}`
  t.strictSame(parseArguments(many), { arguments: {}, arguments_text: many }, 'more than can be handled')
  for (const broken of ['{"a":', '[1]', 'null', '"x"', 'x']) {
    t.strictSame(parseArguments(broken), { arguments: {}, arguments_text: broken }, broken)
  }
})
