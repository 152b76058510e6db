/** The GET stream by which older servers tell of changes: what ends it for good, and what is tried again. */
import t from 'tap'
import { readGetStream } from '../../src/mcp/channel.ts'

const asked = (response: Response) =>
  readGetStream(
    { fetch: async () => response, url: 'http://mcp.test/', headers: new Headers(), onMessage() {} },
    new AbortController().signal,
    { lastEventId: '7' },
  )

t.test('a server that offers no such stream, or lost the session, is not asked again', async (t) => {
  for (const status of [204, 400, 404, 405, 410, 501])
    t.match(await asked(new Response(null, { status })), { isUnsupported: true }, `HTTP ${status}`)
})

t.test('a refusal that may pass is no word on whether there is such a stream', async (t) => {
  for (const status of [401, 403, 408, 425, 429, 500, 502, 503])
    t.same(await asked(new Response('', { status })), { lastEventId: '7' }, `HTTP ${status}`)
})

t.test('a busy server is asked again when it says', async (t) => {
  const busy = new Response('', { status: 429, headers: { 'retry-after': '20' } })
  t.same(await asked(busy), { lastEventId: '7', retryMs: 20_000 })
})
