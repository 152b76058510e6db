/** Failures as long as src/llm reads them: no adapter's patterns may take long over a failure. */
import t from 'tap'
import { DEPLOYMENTS } from '../../providers/index.ts'

/** How much src/llm reads of an error's body. */
const LENGTH = 256 << 10
/** On a machine with other work, too; a pattern that takes the square of the length takes far longer. */
const MOST_MS = 5_000
const PIECES = [
  '<',
  '<style',
  '<script>',
  '<title>',
  '{',
  '[',
  ', ',
  '"',
  ' ',
  '\u00a0',
  'eyJ',
  'AIza',
  'api_key:',
]
const WORDS = [
  'input token count ',
  'quota ',
  'resets in ',
  'try again in 1s, ',
  'encrypted content ',
  'thinking ',
]

for (const { deployment } of DEPLOYMENTS) {
  t.test(`${deployment.id} reads a long failure within seconds`, async (t) => {
    for (const piece of [...PIECES, ...WORDS]) {
      const text = piece.repeat(LENGTH / piece.length)
      for (const body of [text, JSON.stringify({ error: { code: 400, message: text } })]) {
        const began = process.cpuUsage()
        const error = deployment.classify({ status: 400, headers: {}, body })
        const ms = process.cpuUsage(began).user / 1000
        t.ok(ms < MOST_MS, `${JSON.stringify(piece)} took ${Math.round(ms)} ms`)
        t.ok(error.message.length < 3000, "the vendor's words are cut")
      }
    }
  })
}
