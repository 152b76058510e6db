/** What is noted of a server's answers beside their bodies. */
import { getEventListeners, getMaxListeners } from 'node:events'
import t from 'tap'
import { challengeIn } from '../../src/mcp/challenge.ts'
import { type Exchange, exchanges, holdingBack, inExchange } from '../../src/mcp/exchange.ts'
import { createMcpFetch } from '../../src/mcp/http.ts'
import { gate } from '../waiting.ts'

function exchange() {
  const over = new AbortController()
  const made: Exchange = { isStreaming: false, abort: () => over.abort(), signal: over.signal }
  return made
}
const fetchFrom = (answer: () => Response, maxBytes = 1_000) =>
  createMcpFetch({ fetch: async () => answer(), maxBytes, keepsGetStream: false })

t.test('a challenge in a refusal is read, whether it asks for a login or for more scope', async (t) => {
  const where = 'https://mcp.test/.well-known/oauth-protected-resource'
  const refused = (status: number) =>
    challengeIn(
      new Response('', {
        status,
        headers: { 'www-authenticate': `Bearer scope="files:write", resource_metadata="${where}"` },
      }),
    )
  for (const status of [401, 403])
    t.same(refused(status), { scope: 'files:write', resource_metadata: where }, `HTTP ${status}`)
  t.equal(refused(400), null)
  t.equal(challengeIn(new Response('', { status: 401 })), null)
})

t.test('a challenge is read in whatever form, and beside others', async (t) => {
  const where = 'https://mcp.test/metadata'
  for (const told of [
    `Bearer scope="a b", resource_metadata="${where}"`,
    `bearer scope = "a b", resource_metadata = "${where}"`,
    `Bearer scope='a b', resource_metadata='${where}'`,
    `Basic realm="x, y", Bearer scope="a b", resource_metadata=${where}`,
    `Negotiate, DPoP algs="ES256", scope="a b", resource_metadata="${where}"`,
  ]) {
    const response = new Response('', { status: 401, headers: { 'www-authenticate': told } })
    t.same(challengeIn(response), { scope: 'a b', resource_metadata: where }, told)
  }
  const headers = { 'x-amzn-remapped-www-authenticate': 'Bearer scope="a b"' }
  const renamed = new Response('', { status: 403, headers })
  t.same(challengeIn(renamed), { scope: 'a b' }, 'as Amazon’s API Gateway renames it')
  const basic = new Response('', { status: 401, headers: { 'www-authenticate': 'Basic realm="bearer x"' } })
  t.same(challengeIn(basic), {})
})

t.test('simultaneous exchanges are told apart until each one ends', async (t) => {
  const [one, two] = [exchange(), exchange()]
  const isOver = gate()
  const longer = inExchange(two, async () => {
    await isOver.opened
    return exchanges.getStore()
  })
  t.equal(await inExchange(one, async () => exchanges.getStore()), one)
  isOver.open()
  t.equal(await longer, two)
})

t.test('an answer larger than the size limit ends its exchange, which keeps the reason', async (t) => {
  const own = exchange()
  const fetch = fetchFrom(() => new Response('x'.repeat(100)), 10)
  await inExchange(own, async () => {
    await t.rejects(fetch('http://mcp.test/', { method: 'POST' }).then((response) => response.text()))
  })
  t.match(own.failure, { message: /larger than 10 bytes/ })
  t.ok(own.signal.aborted, 'the exchange is aborted, so that the same body is not fetched again')
  const channel = fetchFrom(() => new Response('x'.repeat(100)), 10)('http://mcp.test/')
  await t.rejects(
    channel.then((response) => response.text()),
    { message: /larger than 10 bytes/ },
  )
})

t.test('of a batch of thousands only answers are read', async (t) => {
  const notice = { jsonrpc: '2.0', method: 'notifications/message' }
  const answer = { jsonrpc: '2.0', id: 1, result: {} }
  const read = async (batch: unknown[]) =>
    (await fetchFrom(() => Response.json(batch), 1_000_000)('http://mcp.test/', { method: 'POST' })).json()
  const few = [...Array(900).fill(notice), answer]
  t.same(await read(few), few)
  t.same(await read([...Array(5_000).fill(notice), answer, ...Array(5_000).fill(notice)]), [answer])
  t.same(await read(Array(5_000).fill(answer)), Array(1_000).fill(answer))
})

t.test('a request ends with its exchange or its connection, whose signal keeps nothing of it', async (t) => {
  const given: AbortSignal[] = []
  const fetch = createMcpFetch({
    async fetch(_, init) {
      if (init?.signal) given.push(init.signal)
      return new Response('{}')
    },
    maxBytes: 1_000,
    keepsGetStream: false,
  })
  const connection = new AbortController()
  const ask = (own: Exchange) =>
    inExchange(own, () => fetch('http://mcp.test/', { method: 'POST', signal: connection.signal }))
  const [answered, pending] = [exchange(), exchange()]
  await ask(answered)
  await ask(pending)
  answered.abort()
  t.same(
    given.map(({ aborted }) => aborted),
    [true, false],
  )
  t.equal(getEventListeners(connection.signal, 'abort').length, 1, 'it listens for the pending request alone')
  t.ok(getMaxListeners(connection.signal) > 10, 'no warning is printed for many requests at once')
  // Node's own list of the signals that follow one; Node 20 takes none from it.
  const isOfOthers = ({ description = '' }: symbol) => description === 'kDependantSignals'
  t.notOk(Object.getOwnPropertySymbols(connection.signal).some(isOfOthers), 'no signal is made of it')
  connection.abort(new Error('closed'))
  t.match(given[1]?.reason, { message: 'closed' })
  await ask(exchange())
  t.ok(given[2]?.aborted, 'a connection that is closed already ends a request at once')
})

t.test('a request whose exchange is over gets no token, and so is not sent', async (t) => {
  const own = exchange()
  let renew = () => {}
  const renewed = new Promise<void>((resolve) => {
    renew = resolve
  })
  const waiting = inExchange(own, () => holdingBack(() => renewed))
  own.abort()
  renew()
  await t.rejects(waiting, { name: 'AbortError' })
})

t.test("a server's own headers are sent in place of Baton's", async (t) => {
  const fetch = createMcpFetch({
    fetch: async (_, init) => Response.json(Object.fromEntries(new Headers(init?.headers))),
    maxBytes: 1_000,
    keepsGetStream: false,
  })
  const own = { 'user-agent': 'agent/1', 'accept-encoding': 'gzip' }
  t.same(await (await fetch('http://mcp.test/', { method: 'POST', headers: own })).json(), own)
})

t.test('a refusal whose rate limit is waited for is cancelled, and holds no connection', async (t) => {
  let isCancelled = false
  const body = new ReadableStream({
    cancel() {
      isCancelled = true
    },
  })
  const answers = [new Response(body, { status: 429, headers: { 'retry-after': '0' } }), new Response('done')]
  const fetch = fetchFrom(() => answers.shift() ?? new Response('too many'))
  t.equal(await (await fetch('http://mcp.test/', { method: 'POST' })).text(), 'done')
  t.ok(isCancelled)
})
