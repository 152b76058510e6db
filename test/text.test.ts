/** A piece is found in a text as by `indexOf`, in a time that its own repetitions do not stretch. */
import fc from 'fast-check'
import t from 'tap'
import { placeIn } from '../src/text.ts'

t.test('a piece is where the plain search finds it', async (t) => {
  // Long enough not to be left to the plain search itself.
  const words = fc.string({ unit: fc.constantFrom('a', 'b'), minLength: 1, maxLength: 4 })
  const cases = fc.record({
    word: words,
    times: fc.integer({ min: 200, max: 400 }),
    before: words,
    after: words,
    from: fc.integer({ min: 0, max: 3000 }),
  })
  fc.assert(
    fc.property(cases, ({ word, times, before, after, from }) => {
      const piece = word.repeat(times) + after
      const text = `${(word.repeat(times) + before).repeat(6)}${piece}${before.repeat(2000)}`
      t.ok(text.length * piece.length > 1 << 20)
      t.equal(placeIn(text, piece, from), text.indexOf(piece, from))
    }),
    { numRuns: 50 },
  )
  t.equal(placeIn('a'.repeat(1 << 20), 'b'.repeat(9)), -1)
})
