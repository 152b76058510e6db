/** Deltas of whole characters, however the vendor cut its text. */
import fc from 'fast-check'
import t from 'tap'
import type { ModelEvent } from '../../src/chat/event.ts'
import { NO_USAGE } from '../../src/chat/message.ts'
import { wholeCharacters } from '../../src/llm/characters.ts'
import { ANY_CHARACTER } from '../characters.ts'

const passed = (events: ModelEvent[]): ModelEvent[] => {
  const taken: ModelEvent[] = []
  const pass = wholeCharacters((event) => taken.push(event))
  for (const event of events) pass(event)
  return taken
}

const text = (text: string, index = 0): ModelEvent => ({ type: 'text.delta', index, text })
const FINISH: ModelEvent = { type: 'finish', reason: 'stop' }

t.test('a text of whole characters has no delta with half of one, wherever it was cut', async () => {
  const pieces = fc.array(fc.string({ unit: ANY_CHARACTER }))
  fc.assert(
    fc.property(pieces, fc.infiniteStream(fc.integer({ min: 1, max: 3 })), (words, sizes) => {
      const whole = words.join('')
      const given: ModelEvent[] = []
      for (let at = 0; at < whole.length; ) {
        const size = sizes.next().value
        given.push(text(whole.slice(at, at + size)))
        at += size
      }
      const deltas = passed([...given, FINISH]).flatMap((event) =>
        event.type === 'text.delta' ? [event.text] : [],
      )
      return deltas.join('') === whole && deltas.every((delta) => delta !== '' && delta.isWellFormed())
    }),
  )
})

t.test('an emoji that a service cut in two arrives in one delta', async (t) => {
  const call = { type: 'tool_call.delta', index: 1, call_id: 'call_1', name: 'a.b' } as const
  t.strictSame(
    passed([
      { type: 'reasoning.delta', index: 0, text: 'so \ud83d' },
      { type: 'reasoning.delta', index: 0, text: '\ude00!' },
      { ...call, arguments_delta: '{"a":"\ud83d' },
      { ...call, arguments_delta: '\ude00"}' },
      FINISH,
    ]),
    [
      { type: 'reasoning.delta', index: 0, text: 'so ' },
      { type: 'reasoning.delta', index: 0, text: '😀!' },
      { ...call, arguments_delta: '{"a":"' },
      { ...call, arguments_delta: '😀"}' },
      FINISH,
    ],
  )
})

t.test('what was counted between the halves of a character does not part them', async (t) => {
  const usage: ModelEvent = { type: 'usage', usage: { ...NO_USAGE, output_tokens: 1 } }
  t.strictSame(passed([text('\ud83d'), usage, text('\ude00'), FINISH]), [usage, text('😀'), FINISH])
})

t.test('half a character whose other half never comes is passed on before what follows', async (t) => {
  const part: ModelEvent = { type: 'part', index: 0, part: { type: 'text', text: 'a\ud83d' } }
  t.strictSame(passed([text('a\ud83d'), part, FINISH]), [text('a'), text('\ud83d'), part, FINISH])
  t.strictSame(passed([text('\ud83d'), text('b', 1), text('\ude00')]), [
    text('\ud83d'),
    text('b', 1),
    text('\ude00'),
  ])
  t.strictSame(passed([text('\ud83d'), text('\ud83d'), text('\ude00')]), [text('\ud83d'), text('😀')])
})
