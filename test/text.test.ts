/** Pieces and overlaps of texts are found in a time that the texts' own repetitions do not stretch. */
import { ok, strictEqual } from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { overlap, placeIn } from '../src/text.ts'

t.test('a piece is where the plain search finds it', async (t) => {
  // Long enough not to be left to the plain search itself.
  const words = fc.string({ unit: fc.constantFrom('a', 'b'), minLength: 1, maxLength: 4 })
  const cases = fc.record({
    word: words,
    times: fc.integer({ min: 500, max: 800 }),
    before: words,
    after: words,
    from: fc.integer({ min: 0, max: 3000 }),
  })
  fc.assert(
    fc.property(cases, ({ word, times, before, after, from }) => {
      const piece = word.repeat(times) + after
      const text = `${(word.repeat(times) + before).repeat(6)}${piece}${before.repeat(2000)}`
      ok(piece.length > 250)
      strictEqual(placeIn(text, piece, from), text.indexOf(piece, from))
    }),
    { numRuns: 50 },
  )
  t.equal(placeIn('a'.repeat(1 << 20), 'b'.repeat(9)), -1)
})

t.test('two texts overlap where the second goes on with the end of the first', async () => {
  const words = fc.string({ unit: fc.constantFrom('a', 'b'), maxLength: 12 })
  fc.assert(
    fc.property(words, words, (text, next) => {
      const ends = Array.from({ length: text.length }, (_, at) => text.slice(at + 1))
      strictEqual(overlap(text, next), ends.find((end) => next.startsWith(end))?.length ?? 0)
    }),
  )
})
