/** Failures as long as src/llm reads them, over which no adapter's patterns may take long, and as odd as can be. */
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

const FIELDS =
  `error detail message code type status status_code reason request_id error_type metadata raw headers
  details errors error_code loc msg retryDelay quotaResetDelay quotaResetTimeStamp violations quotaId links url
  description validation_url_link_text appeal_url_link_text resets_at resets_in_seconds`.split(/\s+/)

t.test('a failure is read whatever its fields hold', async (t) => {
  const each = (value: unknown) => Object.fromEntries(FIELDS.map((name) => [name, value]))
  for (const value of [null, true, 7, [], ['x'], {}]) {
    const odd = each(value)
    const details = ['ErrorInfo', 'RetryInfo'].map((type) => ({ ...each(odd), '@type': type }))
    for (const error of [value, odd, each([odd]), { ...each(odd), details }])
      for (const told of [error, [error], { error }, { error: odd, metadata: error }]) {
        const body = JSON.stringify(told)
        for (const { deployment } of DEPLOYMENTS) {
          const { details } = deployment.classify({ status: 400, headers: {}, body })
          const { message, code, type, reason, request_id } = (details?.upstream ?? {}) as Record<
            string,
            unknown
          >
          const texts = [message, code ?? '', type ?? '', reason ?? '', request_id ?? '']
          if (texts.some((text) => typeof text !== 'string')) t.fail(`${deployment.id} ${body}`)
        }
      }
  }
})
