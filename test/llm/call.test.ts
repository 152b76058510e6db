/** One call of a model: what is sent, what is read, and what is recorded of the call. */
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import { bodyBytes } from '../../src/llm/body.ts'
import { LlmStale } from '../../src/llm.ts'
import type { CredentialSecret, Deployment } from '../../src/provider.ts'
import { USER_AGENT } from '../../src/version.ts'
import { held } from '../memory.ts'
import { gate } from '../waiting.ts'
import {
  type Answer,
  bench,
  collect,
  failure,
  frame,
  KEY,
  REQUEST,
  rawServer,
  SSE,
  status,
  stream,
  textOf,
  USAGE,
  unended,
  upstream,
  upstreamServer,
  vendor,
  WHOLE,
  whole,
} from './made-up-vendor.ts'

t.test('a call sends what was rendered and yields what was parsed', async (t) => {
  const server = await upstreamServer(t, whole)
  const { call, calls, logged } = bench(t, `${server.url}/v1`)
  const { batches, thrown } = await collect(call())
  t.equal(thrown, undefined)
  t.same(batches.flat(), [
    { type: 'text.delta', index: 0, text: 'hello' },
    { type: 'usage', usage: USAGE },
    { type: 'finish', reason: 'stop' },
  ])
  const [request] = server.requests
  t.equal(request?.url, '/v1/answer?alt=sse')
  t.same(JSON.parse(request?.text ?? ''), { model: 'one', instructions: 'Be brief.' })
  t.equal(request?.headers['content-length'], String(request?.text.length), 'its length is stated')
  t.equal(request?.headers['content-type'], 'application/json')
  t.equal(request?.headers.accept, 'text/event-stream')
  t.equal(request?.headers['user-agent'], USER_AGENT)
  t.equal(request?.headers['accept-encoding'], 'identity', 'nothing unpacks an answer')
  t.equal(request?.headers.authorization, `Bearer ${KEY}`)
  t.equal(request?.headers['x-session'], 'ses_1')
  t.match(calls, [{ provider: 'made-up', model: 'one', outcome: 'ok', usage: USAGE }])
  t.ok((calls[0]?.firstEventMs ?? -1) >= 0)
  const ends = logged.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'model call ended')
  t.match(ends, [{ session_id: 'ses_1', turn_id: 'turn_1', outcome: 'ok' }], 'one line for each call')
  t.equal(ends.length, 1)
  t.notMatch(logged.join(''), KEY)
})

t.test('the duration of a call is never negative, even if the clock is set back meanwhile', async (t) => {
  const server = await upstreamServer(t, whole)
  const { call, calls } = bench(t, server.url)
  let clock = Date.now()
  mock.method(Date, 'now', () => (clock -= 60_000))
  t.teardown(() => mock.restoreAll())
  await collect(call())
  t.ok((calls[0]?.ms ?? -1) >= 0 && (calls[0]?.firstEventMs ?? -1) >= 0)
})

t.test('events of one network read come as one batch, in order, however the bytes are cut', async (t) => {
  const words = 'Grüße, 世界 🌍!'
  const bytes = Buffer.from(frame({ text: words }) + frame({ text: '-' }) + WHOLE)
  for (const size of [1, 2, 3, 7, bytes.length]) {
    const server = await rawServer(t, (socket) => {
      socket.setNoDelay(true)
      socket.once('data', async () => {
        socket.write('HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n')
        for (let at = 0; at < bytes.length; at += size) {
          const written = new Promise((resolve) => socket.write(bytes.subarray(at, at + size), resolve))
          // The reader's turn: pieces that lie there together are read as one.
          await written.then(() => new Promise(setImmediate))
        }
        socket.end()
      })
    })
    const { batches, thrown } = await collect(bench(t, `http://127.0.0.1:${server.port}`).call())
    t.equal(thrown, undefined)
    t.equal(textOf(batches), `${words}-hello`, `pieces of ${size}`)
    t.ok(batches.every((batch) => batch.length > 0))
    if (size === bytes.length) t.equal(batches.length, 1)
  }
})

t.test('an emoji that the vendor cut in two is passed on whole', async (t) => {
  const cut = frame({ text: 'hi \ud83d' }) + frame({ text: '\ude00' }) + WHOLE
  const server = await upstreamServer(t, stream(cut))
  const { batches } = await collect(bench(t, server.url).call())
  const texts = batches.flat().flatMap((event) => (event.type === 'text.delta' ? [event.text] : []))
  t.strictSame(texts, ['hi ', '😀', 'hello'])
})

t.test('a usage figure that is no number of tokens counts as not told', async (t) => {
  for (const odd of [-5, 1.5, 1e308, 1e13]) {
    const usage = { ...USAGE, output_tokens: odd }
    const server = await upstreamServer(
      t,
      stream(frame({ text: 'hello' }) + frame({ usage }) + frame({ finish: true })),
    )
    const { call, calls } = bench(t, server.url)
    const { batches, thrown } = await collect(call())
    t.equal(thrown, undefined)
    const sound = { ...USAGE, output_tokens: 0 }
    t.strictSame(
      batches.flat().find(({ type }) => type === 'usage'),
      { type: 'usage', usage: sound },
      `${odd}`,
    )
    t.match(calls, [{ usage: sound }])
  }
})

t.test('a frame of several megabytes is one event', async (t) => {
  const text = 'x'.repeat(5 << 20)
  const server = await upstreamServer(t, stream(frame({ text }) + frame({ finish: true })))
  const { batches } = await collect(bench(t, server.url).call())
  t.equal(textOf(batches).length, text.length)
})

t.test('an answer without a content type, or under JSON’s, is read as the stream that it is', async (t) => {
  const server = await upstreamServer(
    t,
    (response) => response.writeHead(200).end(WHOLE),
    status(200, WHOLE, { 'content-type': 'application/json' }),
  )
  const { call } = bench(t, server.url)
  for (const type of ['none', 'JSON']) t.equal(textOf((await collect(call())).batches), 'hello', type)
})

t.test('a head that only announces the answer is passed over', async (t) => {
  const server = await rawServer(t, (socket) => {
    socket.once('data', async () => {
      socket.write('HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n')
      // A read of its own: the next head would take its place at once.
      await sleep(50)
      socket.end(`HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n${WHOLE}`)
    })
  })
  t.equal(textOf((await collect(bench(t, `http://127.0.0.1:${server.port}`).call())).batches), 'hello')
})

t.test('an answer that is no stream goes to classify, whatever its status', async (t) => {
  const cases: [name: string, type: Record<string, string>, body: string][] = [
    ['a page of HTML', { 'content-type': 'text/html; charset=utf-8' }, '<title>Blocked</title>'],
    ['JSON by its type', { 'content-type': 'application/json' }, '{"error":"by type"}'],
    ['JSON under the name of a stream', SSE, '{\n  "error": "bare"\n}'],
    ['words under the name of a stream', SSE, 'no healthy upstream'],
  ]
  for (const [name, headers, body] of cases) {
    const server = await upstreamServer(t, status(200, body, headers))
    const { call, retries } = bench(t, server.url)
    const error = await failure(call())
    t.equal(error.code, 'upstream_rejected', name)
    t.same(error.details, { upstream: { message: body } })
    t.same(retries, [])
  }
  const broken = await upstreamServer(t, (response) =>
    response.writeHead(400, { 'content-length': '99' }).write('Bad', () => response.destroy()),
  )
  const error = await failure(bench(t, broken.url).call())
  t.match(error, { code: 'upstream_rejected', details: { upstream: { message: 'Bad' } } }, 'or part of it')
})

t.test('an error that follows the events of a stream as bare JSON goes to classify, too', async (t) => {
  const begun = `trace-id: 4\n\n${frame({ text: 'hel' })}`
  for (const body of ['{"error":"in a line"}', '[{\r\n  "error": {\r\n    "code": 503\r\n  }\r\n}\r\n]']) {
    const server = await upstreamServer(t, stream(`${begun}${body}`))
    const { batches, thrown } = await collect(bench(t, server.url).call())
    t.equal(textOf(batches), 'hel')
    const message = body.replaceAll('\r', '')
    t.match(thrown, { code: 'upstream_rejected', details: { upstream: { message } } })
  }
  const ends: [rest: string, code: string | undefined][] = [
    ['trace-id: 5\n\n{"cut": ', 'upstream_disconnected'],
    [`${frame({ finish: true })}{"error": "late"}`, undefined],
  ]
  for (const [rest, code] of ends) {
    const server = await upstreamServer(t, stream(`${begun}${rest}`))
    const { thrown } = await collect(bench(t, server.url).call())
    t.equal((thrown as { code?: string } | undefined)?.code, code)
  }
})

t.test('frames that relays put into a stream are passed over, wherever they stand', async (t) => {
  const added = [frame({ text: 'hel' }), 'event: ping\ndata:\n\n', 'data: [DONE]\n\n', frame({ text: 'lo' })]
  const server = await upstreamServer(
    t,
    stream(`data:\n\n${added.join('')}${frame({ finish: true })}data: [DONE]\n\n`),
  )
  const { batches, thrown } = await collect(bench(t, server.url).call())
  t.equal(thrown, undefined)
  t.equal(textOf(batches), 'hello')
})

t.test('the end of the answer is its finish, not the end of the body', async (t) => {
  const { opened: closed, open: left } = gate()
  const server = await upstreamServer(t, (response) => {
    response.writeHead(200, SSE).write(WHOLE + frame({ error: 'upstream_overloaded' }))
    const pings = setInterval(() => response.write(': ping\n\n'), 100)
    response.once('close', () => {
      clearInterval(pings)
      left()
    })
  })
  const { batches, thrown } = await collect(bench(t, server.url).call())
  t.equal(thrown, undefined)
  t.equal(textOf(batches), 'hello')
  await closed
  t.pass('a body that never ends gives its connection up')
})

t.test('a connection is used again after a whole answer, an error, and a padded end', async (t) => {
  const padded: Answer = (response) => {
    response.writeHead(200, SSE).write(WHOLE)
    setTimeout(() => response.end(': bye\n\ndata: [DONE]\n\n'), 50)
  }
  const server = await upstreamServer(t, whole, status(400, 'no'), padded, whole)
  // The last bytes of a body may come after the answer's end: the next call waits for the only connection.
  const { call } = bench(t, server.url, { limits: { upstreamConnections: 1 } })
  for (let i = 0; i < 4; i++) await collect(call())
  t.equal(server.requests.length, 4)
  t.equal(server.connections(), 1)
})

t.test(
  'a connection from before the machine slept is not used again, nor cut while it is in use',
  async (t) => {
    const { opened: ending, open: end } = gate()
    const long: Answer = async (response) => {
      response.writeHead(200, SSE).write(frame({ text: 'hello' }))
      await ending
      response.end(WHOLE)
    }
    const server = await upstreamServer(t, whole, whole, long, whole)
    const { call } = bench(t, server.url, { limits: { upstreamConnections: 1 } })
    await collect(call())
    let clock = Date.now()
    mock.method(Date, 'now', () => clock)
    t.teardown(() => mock.restoreAll())
    clock += 60_000
    t.equal((await collect(call())).thrown, undefined)
    t.equal(server.connections(), 2)
    const inUse = call()
    await inUse.first
    clock += 60_000
    t.equal((await collect(call())).thrown, undefined)
    end()
    t.equal((await collect(inUse)).thrown, undefined)
    t.equal(server.connections(), 3, 'one before, and one after each sleep')
  },
)

t.test('beforeSend is asked right before each sending, and may forbid it', async (t) => {
  const server = await upstreamServer(t, status(503), whole)
  let asked = 0
  const hits: number[] = []
  const { call } = bench(t, server.url)
  const beforeSend = () => {
    asked++
    hits.push(server.requests.length)
    return true
  }
  t.equal(textOf((await collect(call({ beforeSend }))).batches), 'hello')
  t.equal(asked, 2)
  t.same(hits, [0, 1])

  const { call: stale, calls } = bench(t, server.url)
  t.ok((await collect(stale({ beforeSend: () => false }))).thrown instanceof LlmStale)
  t.same(calls, [], 'a stale request is no model call')
  const broken = new Error('defect')
  const throwing = () => {
    throw broken
  }
  t.equal((await collect(stale({ beforeSend: throwing }))).thrown, broken)
  t.equal(textOf((await collect(stale())).batches), 'hello')
  t.equal(server.requests.length, 3, 'nothing was sent for the two calls before')
})

t.test('a header that HTTP cannot carry is a fault of the configuration, and not tried again', async (t) => {
  // Left to operators, since `connection: close` is of use.
  const render: Deployment['render'] = (request) => ({
    ...vendor.render(request),
    headers: { connection: 'not a token' },
  })
  const { call, retries } = bench(t, 'http://127.0.0.1:1')
  const error = await failure(call({ deployment: { ...vendor, render } }))
  t.match(error, { code: 'internal', message: /headers that the configuration adds/ })
  t.same(retries, [])
})

t.test('no secret gets into an error', async (t) => {
  const LONG = 'x'.repeat(945)
  const quoting = JSON.stringify({ error: `Incorrect API key provided: ${KEY}` })
  const cases: Answer[] = [
    status(401, quoting),
    stream(frame({ error: 'upstream_auth', quoted: KEY })),
    stream(frame({ error: 'upstream_auth', quoted: LONG + KEY })),
    stream(frame({ last: 'x'.repeat(2480) + KEY })),
    stream(quoting),
  ]
  for (const answer of cases) {
    const server = await upstreamServer(t, answer)
    const { call, logged } = bench(t, server.url)
    const error = await failure(call())
    t.match(JSON.stringify(error.toBody()), '***')
    t.notMatch(JSON.stringify(error.toBody()), KEY.slice(0, 12))
    t.notMatch(logged.join(''), KEY.slice(0, 12))
  }
  const relay = await upstreamServer(t, status(502, '', { 'x-request-id': KEY }))
  const telling: Deployment = {
    ...vendor,
    classify: ({ headers: { 'x-request-id': message } }) =>
      new BatonError('upstream_rejected', `No: ${message}`, { details: { upstream: { message } } }),
  }
  const told = await failure(bench(t, relay.url).call({ deployment: telling }))
  t.match(
    told,
    { message: /^No: \*\*\*$/, details: { upstream: { message: '***' } } },
    'a header that a relay sends back',
  )
  const page = await upstreamServer(t, status(400, LONG + KEY))
  const cutting: Deployment = {
    ...vendor,
    classify: ({ body }) => upstream('upstream_rejected', body.slice(0, 955)),
  }
  const cut = await failure(bench(t, page.url).call({ deployment: cutting }))
  t.match(
    cut.details,
    { upstream: { message: /x\*\*\*$/ } },
    'half of a secret, where an adapter cuts the body',
  )
  const invalid = 'x'.repeat(2490) + KEY
  const server = await upstreamServer(t, stream(frame({ finish: true, invalid })))
  const [finish] = (await collect(bench(t, server.url).call())).batches.flat()
  t.match(finish, { invalid_call: /x\*\*\*$/, refusal: /x\*\*\*$/ })
  const headers = { 'x-proxy-key': 'operators-own', 'x-team': 'research' }
  const request = { ...REQUEST, options: { ...REQUEST.options, headers } }
  const proxy = await upstreamServer(t, status(403, 'operators-own may not use deep-research'))
  const refused = await failure(bench(t, proxy.url).call({ request }))
  t.match(JSON.stringify(refused.toBody()), '*** may not use deep-research', 'other values are no secrets')
  t.notMatch(JSON.stringify(refused.toBody()), 'operators-own', 'nor a key among the headers of the operator')
  const broken: CredentialSecret = { api_key: 'two\r\nlines: of-a-key' }
  const error = await failure(bench(t, 'http://127.0.0.1:1').call({ secret: async () => broken }))
  t.equal(error.code, 'upstream_auth')
  t.notMatch(JSON.stringify(error.toBody()), 'of-a-key')
})

t.test("a secret that is written as an error's own JSON leaves the error whole", async (t) => {
  const server = await upstreamServer(t, status(401, 'refused', { 'x-should-retry': 'false' }))
  const secret = async () => ({ api_key: '"should_retry":' })
  const error = await failure(bench(t, server.url).call({ secret }))
  t.equal(error.code, 'upstream_auth')
  t.same(error.details, { upstream: { message: 'refused' }, should_retry: false })
})

/** An answer that repeats `block` for as long as somebody reads it, and how many bytes of it were sent. */
function endless(code: number, headers: Record<string, string>, block: string) {
  let sent = 0
  const answer: Answer = (response) => {
    response.writeHead(code, headers)
    const more = () => {
      do sent += block.length
      while (!response.destroyed && response.write(block))
    }
    response.on('drain', more)
    more()
  }
  return { answer, sent: () => sent }
}

t.test('an answer without end is given up at its limit', async (t) => {
  const { answer } = endless(200, SSE, `: ${'x'.repeat(1 << 20)}\n\n`)
  const server = await upstreamServer(t, answer)
  const error = await failure(bench(t, server.url).call())
  t.equal(error.code, 'upstream_rejected')
  t.match(error.message, /larger than/)
})

t.test('the bytes that an answer begins with are let go while the rest is awaited', async (t) => {
  const beginning = `: ${'x'.repeat(32 << 10)}\n\n${frame({ text: 'a' })}`
  const server = await upstreamServer(t, unended(beginning))
  const { call, llm } = bench(t, server.url, { limits: { upstreamConnections: 30 } })
  const before = await held('arrayBuffers')
  const calls = Array.from({ length: 30 }, () => call())
  await Promise.all(calls.map(({ first }) => first))
  const kept = (await held('arrayBuffers')) - before
  t.ok(kept < 30 * 16_384, `30 answers of 32 KiB keep ${kept} bytes`)
  await Promise.all([llm.close(), ...calls.map(({ done }) => t.rejects(done))])
})

t.test('an event of lines without end is given up long before the limit of an answer', async (t) => {
  const { answer, sent } = endless(200, SSE, 'data: x\n'.repeat(10_000))
  const server = await upstreamServer(t, answer)
  const error = await failure(bench(t, server.url).call())
  t.match(error, { code: 'upstream_rejected', message: /more than 100000 lines/ })
  t.ok(sent() < 32 << 20, `${sent()} bytes were sent`)
})

t.test('only the beginning of a refusal without end is read', async (t) => {
  const { answer, sent } = endless(400, {}, 'x'.repeat(100_000))
  const server = await upstreamServer(t, answer)
  const read: number[] = []
  const classify: Deployment['classify'] = (refusal) => {
    read.push(refusal.body.length)
    return vendor.classify(refusal)
  }
  const error = await failure(bench(t, server.url).call({ deployment: { ...vendor, classify } }))
  t.equal(error.code, 'upstream_rejected')
  t.strictSame(read, [256 << 10])
  t.ok(sent() < 32 << 20, `${sent()} bytes were sent`)
})

t.test('a preview shows the request with its secrets masked and sends nothing', async (t) => {
  const { llm } = bench(t, 'https://api.example.test/v1')
  const request = { ...REQUEST, options: { ...REQUEST.options, headers: { 'x-proxy-key': 'operators-own' } } }
  t.same(llm.preview(vendor, request), {
    method: 'POST',
    url: 'https://api.example.test/v1/answer?alt=sse',
    headers: {
      'x-session': 'ses_1',
      'x-proxy-key': '***',
      'content-type': 'application/json',
      accept: 'text/event-stream',
      'accept-encoding': 'identity',
      'user-agent': USER_AGENT,
      authorization: 'Bearer ***',
    },
    body: { model: 'one', instructions: 'Be brief.' },
    notes: ['temperature: not accepted by this model'],
  })
})

t.test('a body is the JSON of its value, and a frozen item in it is written once', async (t) => {
  const item = fc.oneof(fc.jsonValue(), fc.constant(undefined), fc.date())
  const list = fc.array(fc.tuple(item, fc.boolean())).map((items) =>
    // Only frozen objects are kept: primitives always count as frozen.
    items.map(([item, isKept]) => (isKept ? Object.freeze(item) : item)),
  )
  const member = fc.oneof(list, list.map(Object.freeze), fc.jsonValue(), fc.constant(undefined))
  const body = fc.dictionary(fc.string(), fc.oneof(member, fc.dictionary(fc.string(), member)))
  await fc.assert(
    fc.asyncProperty(body, async (value) => {
      const expected = JSON.stringify(value)
      const [first, again] = [await bodyBytes(value), await bodyBytes(value)]
      return first.toString() === expected && again.toString() === expected
    }),
  )
  let written = 0
  const counted = Object.freeze({
    toJSON: () => {
      written++
      return 'text'
    },
  })
  const send = async () =>
    (await bodyBytes({ a: [counted, {}, 'π'], b: { c: [{ d: [counted] }] } })).toString()
  t.equal(await send(), await send())
  t.equal(written, 1)
})
