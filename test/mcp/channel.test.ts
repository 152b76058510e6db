/** The channel by which servers tell of changes: how long it is kept, what ends it for good, what is tried again. */
import t from 'tap'
import { keepChannel, readGetStream } from '../../src/mcp/channel.ts'

const asked = (response: Response, sent: Headers[] = [], lastEventId = '7') =>
  readGetStream(
    {
      async fetch(_, { headers } = {}) {
        sent.push(new Headers(headers))
        return response
      },
      url: 'http://mcp.test/',
      headers: new Headers(),
      onMessage() {},
    },
    new AbortController().signal,
    { lastEventId },
  )

t.test('a server that offers no such stream, or lost the session, is not asked again', async (t) => {
  for (const status of [204, 400, 404, 405, 410, 501])
    t.match(await asked(new Response(null, { status })), { isUnsupported: true }, `HTTP ${status}`)
})

t.test('a stream goes on after the last event that came, and a cut says where', async (t) => {
  const sent: Headers[] = []
  t.same(await asked(new Response('id: 8\ndata: {}\n\nid: 9\ndata: {}\n\n'), sent), { lastEventId: '9' })
  t.equal(sent[0]?.get('last-event-id'), '7')
})

t.test('an id of any characters is sent back in UTF-8', async (t) => {
  const sent: Headers[] = []
  t.same(await asked(new Response(''), sent, 'é→🙂'), { lastEventId: 'é→🙂' })
  t.equal(Buffer.from(sent[0]?.get('last-event-id') ?? '', 'latin1').toString(), 'é→🙂')
})

t.test('a refusal that may pass is no word on whether there is such a stream', async (t) => {
  for (const status of [401, 403, 408, 425, 429, 500, 502, 503])
    t.same(await asked(new Response('', { status })), { lastEventId: '7' }, `HTTP ${status}`)
})

t.test('a busy server is asked again when it says', async (t) => {
  const busy = new Response('', { status: 429, headers: { 'retry-after': '20' } })
  t.same(await asked(busy), { lastEventId: '7', retryMs: 20_000 })
})

t.test('a channel is reopened with growing pauses and ends with the interest or the server', async (t) => {
  const alive = setInterval(() => {}, 1_000)
  t.teardown(() => clearInterval(alive))
  let opened = 0
  let aborted: Promise<void> | undefined
  const channel = keepChannel(async (signal) => {
    opened++
    aborted = new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
    await aborted
    return {}
  }, performance.now() + 20)
  channel.extend(performance.now() + 60)
  await aborted
  t.equal(opened, 1, 'aborted when nobody is interested any more')
  t.notOk(channel.extend(performance.now() + 60_000), 'and over then')

  let asked = 0
  const unsupported = keepChannel(async () => {
    asked++
    return { isUnsupported: true }
  }, performance.now() + 60_000)
  await new Promise(setImmediate)
  t.ok(unsupported.extend(performance.now() + 90_000))
  t.equal(asked, 1, 'a server without such a channel is asked once')
})
