/** Secrets are kept out of the words of services that are not ours; and how their Retry-After is read. */
import t from 'tap'
import { endWithoutSecrets, retryAfterMs, withoutSecrets } from '../src/foreign.ts'

t.test('a secret that was sent is hidden in whatever form it comes back', async (t) => {
  const key = '1//0a/b+"c"'
  const hidden = (text: string, ...sent: string[]) => withoutSecrets(text, sent)
  t.equal(hidden(`bad key ${key}.`, key), 'bad key ***.')
  t.equal(hidden(`?key=${encodeURIComponent(key)}&x`, key), '?key=***&x', 'as a form holds the secret')
  t.equal(hidden(JSON.stringify({ key }), key), '{"key":"***"}', 'as a JSON text holds the secret')
  t.equal(
    hidden('token sk-12345678 refused', 'Bearer sk-12345678'),
    'token *** refused',
    'a token without its scheme',
  )
  t.equal(
    hidden('sk-12345678-long', 'sk-12345678', 'sk-12345678-long'),
    '***',
    'nothing is left of the longer secret',
  )
  t.equal(hidden('abcdefgh, ABCDEFG', 'abcdefgh', 'ABCDEFG'), '***, ABCDEFG', 'from eight characters on')
  t.equal(hidden('half a character: \ud800', 'abcdefgh\ud800'), 'half a character: \ud800')
  t.equal(hidden('an id of a b', 'a', 'id', ''), 'an id of a b', 'short secrets stand in innocent texts')
})

t.test('a secret and a text that repeat themselves are compared within seconds', async (t) => {
  const secret = `ab${'a'.repeat(4000)}`
  const text = 'a'.repeat(4 << 20)
  const { user: before } = process.cpuUsage()
  t.equal(withoutSecrets(text + secret + text + secret, [secret]).length, 2 * text.length + 6)
  const long = `${'a'.repeat(60_000)}b`
  const end = 'a'.repeat(8_192)
  for (let values = 0; values < 20; values++) t.equal(endWithoutSecrets(end, [long]), end)
  const nearly = `${'a'.repeat(3_000)}b`
  t.equal(withoutSecrets(`${'a'.repeat(2_800)}${nearly}`.repeat(1_400), [nearly]).length, 1_400 * 2_803)
  t.ok((process.cpuUsage().user - before) / 1e6 < 5, 'a search that starts anew at each place takes a minute')
})

t.test('the end of a longer text holds no half of a secret', async (t) => {
  const key = 'ab/cdefgh"ijkl-ab'
  const hidden = (text: string) => endWithoutSecrets(text, [key, 'Bearer other-secret'])
  t.equal(hidden('efgh"ijkl-ab was refused'), ' was refused')
  t.equal(hidden('fgh\\"ijkl-ab was refused'), ' was refused', 'as a JSON text has the secret')
  t.equal(hidden('-secret was refused'), ' was refused')
  t.equal(
    hidden(`${key} was refused, ${key}`),
    '*** was refused, ***',
    'a whole secret that ends as it begins',
  )
  t.equal(hidden('it was refused'), 'it was refused')
})

t.test('Retry-After is seconds or a date', async (t) => {
  const now = Date.parse('2026-01-01T00:00:00Z')
  t.equal(retryAfterMs(' 7 ', now), 7000)
  t.equal(retryAfterMs('0', now), 0)
  t.equal(retryAfterMs('1.5', now), 1500, 'as some services send it')
  t.equal(retryAfterMs('Thu, 01 Jan 2026 00:00:10 GMT', now), 10_000)
  t.equal(retryAfterMs('Wed, 31 Dec 2025 00:00:00 GMT', now), 0)
  t.equal(retryAfterMs('99999999999', now), 86_400_000, 'a day at most')
  t.equal(retryAfterMs('Fri, 01 Jan 2027 00:00:00 GMT', now), 86_400_000)
  for (const none of [null, undefined, '', 'soon', '-1', '2, 2'])
    t.equal(retryAfterMs(none, now), undefined, String(none))
})
