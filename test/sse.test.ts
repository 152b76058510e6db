import { deepStrictEqual } from 'node:assert'
import fc from 'fast-check'
import t from 'tap'
import { createDecoder, encodeComment, encodeEvent, type SseFrame } from '../src/sse.ts'
import { ANY_CHARACTER } from './characters.ts'

function decode(...chunks: string[]): SseFrame[] {
  const frames: SseFrame[] = []
  const decoder = createDecoder((frame) => frames.push(frame))
  for (const chunk of chunks) decoder.push(chunk)
  decoder.end()
  return frames
}
const frame = (data: string, event?: string, id?: string): SseFrame => ({ event, data, id })

t.test('the decoder reads the forms of an event stream that vendors use', async (t) => {
  t.same(
    decode('data: a\n\ndata:b\n\n'),
    [frame('a'), frame('b')],
    'with and without the blank after the colon',
  )
  t.same(decode('event: x\r\ndata: a\r\n\r\n'), [frame('a', 'x')], 'CR LF')
  t.same(decode('data: a\ndata: b\n\n'), [frame('a\nb')], 'several data lines are one text')
  t.same(decode(': ping\n\n: ping\n\ndata: a\n\n'), [frame('a')], 'comments are no frames')
  t.same(
    decode('id: 7\nretry: 10\nunknown: 1\ndata: a\n\n'),
    [frame('a', undefined, '7')],
    'unknown fields are passed over',
  )
  t.same(decode('', '\ufeffdata: a\n\n'), [frame('a')], 'a byte order mark is passed over')
  t.same(decode('data: a', '\ufeffb\n\n'), [frame('a\ufeffb')], 'but not within the stream')
  t.same(decode('data: a\r', '', '\ndata: b\n\n'), [frame('a\nb')], 'CR LF that is cut')
  t.same(decode('{"error":"no stream"}'), [], 'a text that is no stream has no frames')
})

t.test('a last frame without its blank line is delivered at the end', async (t) => {
  t.same(decode('data: a\n\ndata: b'), [frame('a'), frame('b')])
  t.same(decode('data: a\n\ndata: b\n'), [frame('a'), frame('b')])
  t.same(decode('data: a\r\n\r\ndata: b\r'), [frame('a'), frame('b')])
})

t.test('events that were encoded are decoded, wherever their text is cut', async () => {
  const line = fc.string({ unit: ANY_CHARACTER }).map((text) => JSON.stringify(text))
  const name = fc.stringMatching(/^[a-z][a-z._]{0,10}$/)
  const events = fc.array(fc.record({ name, data: line, id: name }))
  fc.assert(
    fc.property(
      events,
      fc.integer({ min: 1, max: 9 }),
      fc.constantFrom('\n', '\r\n', '\r'),
      (list, size, end) => {
        const text = list
          .map(({ name, data, id }) => encodeComment('ping') + encodeEvent(name, data, id))
          .join('')
          .replaceAll('\n', end)
        const chunks = Array.from({ length: Math.ceil(text.length / size) }, (_, i) =>
          text.slice(i * size, (i + 1) * size),
        )
        deepStrictEqual(
          decode(...chunks).map(({ data, event, id }) => frame(JSON.parse(data), event, id)),
          list.map(({ name, data, id }) => frame(JSON.parse(data), name, id)),
        )
      },
    ),
    { numRuns: 60 },
  )
})

t.test('a flood of line ends costs no more than its length', async (t) => {
  const frames: SseFrame[] = []
  const decoder = createDecoder((frame) => frames.push(frame))
  const { user: before } = process.cpuUsage()
  for (const end of ['\r', '\n', '\r\n', ':\r\r']) decoder.push(end.repeat(1 << 20))
  // Seconds of processor time: others may hold the machine.
  t.ok((process.cpuUsage().user - before) / 1e6 < 10)
  decoder.push('data: a\r\rdata: b\r\n\r\n')
  t.same(frames, [frame('a'), frame('b')])
})

t.test('an event of lines without end is given up', async (t) => {
  const frames: SseFrame[] = []
  const flood = (line: string, size = 1000) => {
    const decoder = createDecoder((frame) => frames.push(frame))
    decoder.push(`data: a\n\n${line.repeat(99_999)}`)
    decoder.push('\n')
    for (let sent = 0; sent < 101_000; sent += size) decoder.push(line.repeat(size))
  }
  const tooMany = { code: 'upstream_rejected', message: /more than 100000 lines/ }
  for (const line of ['data\n', 'data: x\r', ':\r\n', 'x\n']) t.throws(() => flood(line), tooMany, line)
  t.throws(() => flood('data\n', 1), tooMany)
  t.ok(frames.filter(({ data }) => data === 'a').length === 5, 'an event before it is delivered')
  for (const line of ['data\n\n', ':\r\r', '\r\n']) t.doesNotThrow(() => flood(line), line)
  const pieces = (...texts: string[]) => {
    const decoder = createDecoder(() => {})
    for (let i = 0; i <= 100_000; i++) for (const text of texts) decoder.push(text)
  }
  t.throws(() => pieces('data', '\n'), tooMany, 'the end of a line is not the end of its event')
  t.doesNotThrow(() => pieces('data\n', '\n'), 'many events that are cut within their ends')
  t.doesNotThrow(() => pieces('data', '\n\n'), 'before them')
  t.doesNotThrow(() => pieces('data\r', '\n', '\r', '\n'), 'or wherever they can be')
})

t.test('events and comments are encoded as clients read them', async (t) => {
  t.equal(
    encodeEvent('content.delta', '{"text":"a"}', '1-0'),
    'id: 1-0\nevent: content.delta\ndata: {"text":"a"}\n\n',
  )
  t.equal(
    encodeEvent('message', JSON.stringify({ text: 'a\u2028b\u2029c\u0085d' }), '1-1'),
    'id: 1-1\nevent: message\ndata: {"text":"a\\u2028b\\u2029c\\u0085d"}\n\n',
    'nothing but LF ends a line, whatever a reader takes for a line break',
  )
  t.equal(encodeComment('ping'), ': ping\n\n')
})
