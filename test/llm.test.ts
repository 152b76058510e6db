import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from 'node:net'
import fc from 'fast-check'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { Agent } from 'undici'
import type { ModelEvent } from '../src/chat/event.ts'
import { BatonError } from '../src/errors.ts'
import { bodyBytes } from '../src/llm/body.ts'
import { createLlm, type LlmDeps, LlmStale, type ModelCall } from '../src/llm.ts'
import type { CredentialSecret, Deployment, ModelRequest, UpstreamFailure } from '../src/provider.ts'
import type { ModelCallRecord } from '../src/telemetry.ts'

// ---------------------------------------------------------------- a made-up vendor

const KEY = 'made-up-key-0123456789'
const USAGE = { input_tokens: 3, output_tokens: 5, reasoning_tokens: 0, cached_tokens: 1 }

/** Frames are JSON: {text}, {usage}, {finish}, {error, wait?}. Errors quote the body, as vendors do. */
const vendor: Deployment = {
  id: 'made-up-key',
  provider: 'made-up',
  credential: { kind: 'api_key' },
  schema: {
    rootCombinators: true,
    const: true,
    tuples: true,
    refs: true,
    mixedEnums: true,
    propertyPattern: /./,
  },
  capabilities: () => ({
    sampling: true,
    forcedToolChoice: true,
    boundThinking: false,
    userMedia: new Set(),
    resultMedia: new Set(),
    systemMessages: true,
    toolLimit: null,
  }),
  declare: () => [],
  render: (request) => ({
    method: 'POST',
    path: '/answer?alt=sse',
    headers: { 'x-session': request.session_id, ...request.options.headers },
    body: { model: request.model, instructions: request.instructions },
    notes: ['temperature: not accepted by this model'],
  }),
  parser() {
    let isWhole = false
    return {
      push({ data }): ModelEvent[] {
        const frame: { text?: string; usage?: typeof USAGE; finish?: true; error?: string; wait?: number } =
          JSON.parse(data)
        if (frame.error) throw upstream(frame.error, data, frame.wait)
        if (frame.usage) return [{ type: 'usage', usage: frame.usage }]
        if (frame.finish) isWhole = true
        if (frame.finish) return [{ type: 'finish', reason: 'stop' }]
        return frame.text === undefined ? [] : [{ type: 'text.delta', index: 0, text: frame.text }]
      },
      end() {
        if (isWhole) return []
        throw new BatonError('upstream_disconnected', 'The stream ended early.')
      },
    }
  },
  classify: ({ status, headers, body }: UpstreamFailure) => {
    const wait = headers['retry-after']
    const code = BY_STATUS[status] ?? (status >= 500 ? 'upstream_overloaded' : 'upstream_rejected')
    const told = headers['x-should-retry']
    const details = told === undefined ? {} : { should_retry: told === 'true' }
    return upstream(code, body, wait === undefined ? undefined : Number(wait), details)
  },
  authorize: ({ api_key }) => ({ authorization: `Bearer ${api_key}` }),
  models: { path: '/models', headers: { 'x-list': '1' }, parse: (body) => body as { id: string }[] },
}
const BY_STATUS: Record<number, string> = {
  401: 'upstream_auth',
  408: 'upstream_timeout',
  429: 'upstream_rate_limited',
}
const upstream = (code: string, body: string, retryAfter?: number, details = {}) =>
  new BatonError(code as BatonError['code'], 'The vendor failed.', {
    details: { upstream: { message: body }, ...details },
    ...(retryAfter === undefined ? {} : { retryAfter }),
  })

const REQUEST: ModelRequest = {
  model: 'one',
  instructions: 'Be brief.',
  messages: [],
  tools: [],
  settings: {},
  session_id: 'ses_1',
  follow_up: false,
  capabilities: vendor.capabilities('one'),
  credential: { id: 'cred_1' },
  options: { system_blocks: [], headers: {}, dual_declarations: false },
}

const frame = (value: unknown) => `data: ${JSON.stringify(value)}\n\n`
const WHOLE = frame({ text: 'hello' }) + frame({ usage: USAGE }) + frame({ finish: true })
const SSE = { 'content-type': 'text/event-stream' }

// ---------------------------------------------------------------- the other end

type Answer = (response: ServerResponse, request: IncomingMessage & { text: string }) => void
const whole: Answer = (response) => response.writeHead(200, SSE).end(WHOLE)
const status =
  (code: number, body = '', headers = {}): Answer =>
  (response) =>
    response.writeHead(code, headers).end(body)

/** Answers the n-th request by the n-th function, the last one from then on. */
async function upstreamServer(t: Test, ...answers: Answer[]) {
  const requests: (IncomingMessage & { text: string })[] = []
  let connections = 0
  const server = createServer(async (incoming, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of incoming) chunks.push(chunk)
    const request = Object.assign(incoming, { text: Buffer.concat(chunks).toString('utf8') })
    requests.push(request)
    answers[Math.min(requests.length, answers.length) - 1]?.(response, request)
  })
  server.on('connection', () => connections++)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    connections: () => connections,
  }
}

/** A server that handles the raw socket; for what no HTTP library would send. */
async function rawServer(t: Test, onSocket: (socket: Socket) => void) {
  const sockets = new Set<Socket>()
  const server = createTcpServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    onSocket(socket)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return { port: (server.address() as AddressInfo).port, sockets }
}

interface Calling {
  /** What has come: those of one pass of the event loop together */
  batches: ModelEvent[][]
  first: Promise<unknown>
  done: Promise<void>
}
interface Bench {
  waits: number[]
  calls: ModelCallRecord[]
  retries: string[]
  logged: string[]
  call(options?: Partial<ModelCall>): Calling
  llm: ReturnType<typeof createLlm>
}

function bench(
  t: Test,
  url: string,
  options: Omit<Partial<LlmDeps>, 'limits'> & { limits?: Partial<LlmDeps['limits']> } = {},
): Bench {
  const waits: number[] = []
  const calls: ModelCallRecord[] = []
  const retries: string[] = []
  const logged: string[] = []
  const { limits, ...rest } = options
  const llm = createLlm({
    baseUrl: () => url,
    version: '1.2.3',
    metrics: {
      modelCallEnded: (call) => calls.push(call),
      modelRetried: (_, code) => retries.push(code),
    },
    log: pino({ level: 'trace' }, { write: (line: string) => logged.push(line) }),
    sleep: async (ms) => waits.push(ms),
    random: () => 0.5,
    ...rest,
    limits: {
      upstreamConnections: 8,
      connectTimeoutMs: 5000,
      firstByteTimeoutMs: 30_000,
      idleTimeoutMs: 30_000,
      ...limits,
    },
  })
  t.teardown(() => llm.close())
  const call = (options: Partial<ModelCall> = {}): Calling => {
    const batches: ModelEvent[][] = []
    let batch: ModelEvent[] | null = null
    let begun = () => {}
    const first = new Promise<void>((resolve) => {
      begun = resolve
    })
    const take = (event: ModelEvent) => {
      if (!batch) {
        batch = []
        batches.push(batch)
        queueMicrotask(() => {
          batch = null
        })
      }
      batch.push(event)
      begun()
    }
    const done = llm.stream({ ...CALL, signal: new AbortController().signal, ...options }, take)
    done.catch(() => {})
    return { batches, first, done }
  }
  return { waits, calls, retries, logged, llm, call }
}
const PROVENANCE = { provider: 'made-up', model: 'one', credential_id: 'cred_1' }
const CALL: Omit<ModelCall, 'signal'> = {
  deployment: vendor,
  request: REQUEST,
  secret: async () => ({ api_key: KEY }),
  context: { callId: () => 'call_1', toolName: (name) => name, provenance: PROVENANCE },
}

async function collect({ batches, done }: Calling): Promise<{ batches: ModelEvent[][]; thrown: unknown }> {
  const thrown = await done.then(
    () => undefined,
    (error: unknown) => error,
  )
  return { batches, thrown }
}
const textOf = (batches: ModelEvent[][]) =>
  batches
    .flat()
    .map((event) => (event.type === 'text.delta' ? event.text : ''))
    .join('')

async function failure(calling: Calling): Promise<BatonError> {
  const { thrown } = await collect(calling)
  if (thrown instanceof BatonError) return thrown
  throw new Error(`expected a BatonError, got ${String(thrown)}`)
}

// ---------------------------------------------------------------- tests

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
  t.equal(request?.headers['user-agent'], 'baton/1.2.3')
  t.equal(request?.headers.authorization, `Bearer ${KEY}`)
  t.equal(request?.headers['x-session'], 'ses_1')
  t.match(calls, [{ provider: 'made-up', model: 'one', outcome: 'ok', usage: USAGE }])
  t.ok((calls[0]?.firstEventMs ?? -1) >= 0)
  t.equal(logged.filter((line) => line.includes('model call ended')).length, 1, 'one line a call')
  t.notMatch(logged.join(''), KEY)
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
          await new Promise((resolve) => socket.write(bytes.subarray(at, at + size), resolve))
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

t.test('a frame of several megabytes is one event', async (t) => {
  const text = 'x'.repeat(5 << 20)
  const server = await upstreamServer(t, (response) =>
    response.writeHead(200, SSE).end(frame({ text }) + frame({ finish: true })),
  )
  const { batches } = await collect(bench(t, server.url).call())
  t.equal(textOf(batches).length, text.length)
})

t.test('an answer without a content type is read as a stream', async (t) => {
  const server = await upstreamServer(t, (response) => response.writeHead(200).end(WHOLE))
  t.equal(textOf((await collect(bench(t, server.url).call())).batches), 'hello')
})

t.test('what is no stream goes to classify, whatever its status', async (t) => {
  const cases: [name: string, type: Record<string, string>, body: string][] = [
    ['a page of HTML', { 'content-type': 'text/html; charset=utf-8' }, '<title>Blocked</title>'],
    ['JSON by its type', { 'content-type': 'application/json' }, '{"error":"by type"}'],
    ['JSON under the name of a stream', SSE, '{\n  "error": "bare"\n}'],
  ]
  for (const [name, headers, body] of cases) {
    const server = await upstreamServer(t, status(200, body, headers))
    const { call, retries } = bench(t, server.url)
    const error = await failure(call())
    t.equal(error.code, 'upstream_rejected', name)
    t.same(error.details, { upstream: { message: body } })
    t.same(retries, [])
  }
})

t.test('the end of the answer is its finish, not the end of the body', async (t) => {
  let left = () => {}
  const closed = new Promise<void>((resolve) => {
    left = resolve
  })
  const server = await upstreamServer(t, (response) => {
    response.once('close', left)
    response.writeHead(200, SSE).write(WHOLE)
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
    setImmediate(() => response.end(': bye\n\ndata: [DONE]\n\n'))
  }
  const server = await upstreamServer(t, whole, status(400, 'no'), padded, whole)
  const dispatcher = new Agent()
  t.teardown(() => dispatcher.destroy())
  const { call } = bench(t, server.url, { dispatcher })
  for (let i = 0; i < 4; i++) {
    await collect(call())
    // The last bytes of a body and the release of its connection come in a later turn of the loop.
    while (!isFree(dispatcher, server.url)) await new Promise((resolve) => setImmediate(resolve))
  }
  t.equal(server.requests.length, 4)
  t.equal(server.connections(), 1)
})

function isFree(agent: Agent, origin: string): boolean {
  const stats = agent.stats[origin]
  return stats !== undefined && 'free' in stats && stats.free > 0
}

t.test('retries', async (t) => {
  t.test('an overload is tried again twice, with a growing wait, then given up', async (t) => {
    const server = await upstreamServer(t, status(503, 'busy'))
    const { call, waits, retries, calls } = bench(t, server.url)
    const error = await failure(call())
    t.equal(error.code, 'upstream_overloaded')
    t.same(error.details, { upstream: { message: 'busy' } })
    t.equal(server.requests.length, 3)
    t.same(waits, [200, 400])
    t.same(retries, ['upstream_overloaded', 'upstream_overloaded'])
    t.match(calls, [{ outcome: 'upstream_overloaded' }])
  })

  t.test('the second attempt may succeed', async (t) => {
    const server = await upstreamServer(t, status(500), whole)
    const { call, calls } = bench(t, server.url)
    t.equal(textOf((await collect(call())).batches), 'hello')
    t.match(calls, [{ outcome: 'ok' }])
  })

  t.test('a rate limit is waited for only if it says how long and that is short', async (t) => {
    const cases: [headers: Record<string, string>, hits: number, waits: number[]][] = [
      [{ 'retry-after': '2' }, 2, [2000]],
      [{ 'retry-after': '4' }, 2, [4000]],
      [{ 'retry-after': '5' }, 1, []],
      [{ 'retry-after': '60' }, 1, []],
      [{}, 1, []],
    ]
    for (const [headers, hits, expected] of cases) {
      const server = await upstreamServer(t, status(429, '', headers), whole)
      const { call, waits } = bench(t, server.url)
      const { thrown } = await collect(call())
      t.equal(server.requests.length, hits, JSON.stringify(headers))
      t.same(waits, expected)
      if (hits === 1) t.match(thrown, { code: 'upstream_rate_limited' })
    }
  })

  t.test('waits together stay under their limit', async (t) => {
    const server = await upstreamServer(t, status(503, '', { 'retry-after': '4' }))
    const { call, waits } = bench(t, server.url)
    const error = await failure(call())
    t.same(waits, [4000])
    t.equal(error.retryAfter, 4)
  })

  t.test('what the vendor says of trying again is heeded, within the same limits', async (t) => {
    const cases: [code: number, headers: Record<string, string>, hits: number][] = [
      [503, { 'x-should-retry': 'false' }, 1],
      [429, { 'x-should-retry': 'false', 'retry-after': '1' }, 1],
      [400, { 'x-should-retry': 'true' }, 3],
      [429, { 'x-should-retry': 'true' }, 1],
      [429, { 'x-should-retry': 'true', 'retry-after': '60' }, 1],
    ]
    for (const [code, headers, hits] of cases) {
      const server = await upstreamServer(t, status(code, '', headers))
      await failure(bench(t, server.url).call())
      t.equal(server.requests.length, hits, `${code} ${JSON.stringify(headers)}`)
    }
  })

  t.test('a request that was refused is not sent again', async (t) => {
    const server = await upstreamServer(t, status(400, 'bad'))
    const error = await failure(bench(t, server.url).call())
    t.equal(error.code, 'upstream_rejected')
    t.equal(server.requests.length, 1)
  })

  t.test('a connection that is refused or reset before the answer is tried again', async (t) => {
    let sockets = 0
    const server = await rawServer(t, (socket) => {
      sockets++
      socket.once('data', () => socket.resetAndDestroy())
    })
    const reset = await failure(bench(t, `http://127.0.0.1:${server.port}`).call())
    t.match(reset, { code: 'upstream_disconnected', details: { phase: 'headers' } })
    t.equal(sockets, 3)

    const { waits, call } = bench(t, await deadUrl())
    const refused = await failure(call())
    t.match(refused, { code: 'upstream_disconnected', details: { phase: 'connect', reason: 'ECONNREFUSED' } })
    t.equal(waits.length, 2)
  })

  t.test('an answer that was cut is never asked for again', async (t) => {
    const cases: [name: string, answer: Answer, text: string][] = [
      ['after an event', (response) => cut(response, frame({ text: 'so far' })), 'so far'],
      ['after bytes that are no event', (response) => cut(response, ': hello\n\n'), ''],
      [
        'ended without its last frame',
        (response) => response.writeHead(200, SSE).end(frame({ text: 'a' })),
        'a',
      ],
      ['ended with nothing', (response) => response.writeHead(200, SSE).end(), ''],
    ]
    for (const [name, answer, text] of cases) {
      const server = await upstreamServer(t, answer)
      const { batches, thrown } = await collect(bench(t, server.url).call())
      t.match(thrown, { code: 'upstream_disconnected' }, name)
      t.equal(textOf(batches), text)
      t.equal(server.requests.length, 1)
    }
  })

  t.test(
    'an overload told as the first event is tried again, with what came before it taken back',
    async (t) => {
      const overloaded =
        frame({}) + frame({ usage: { ...USAGE, input_tokens: 99 } }) + frame({ error: 'upstream_overloaded' })
      const server = await upstreamServer(
        t,
        (response) => response.writeHead(200, SSE).end(overloaded),
        whole,
      )
      const { call, calls } = bench(t, server.url)
      const { batches } = await collect(call())
      t.same(batches.flat().length, 3)
      t.match(calls, [{ outcome: 'ok', usage: USAGE }])
      t.equal(server.requests.length, 2)
    },
  )

  t.test('but not twice, and not after something was handed on', async (t) => {
    const inside: Answer = (response) =>
      response.writeHead(200, SSE).end(frame({ error: 'upstream_overloaded' }))
    const twice = await upstreamServer(t, inside)
    t.equal((await failure(bench(t, twice.url).call())).code, 'upstream_overloaded')
    t.equal(twice.requests.length, 2)

    const later = await upstreamServer(t, (response) =>
      response.writeHead(200, SSE).end(frame({ text: 'a' }) + frame({ error: 'upstream_overloaded' })),
    )
    const { batches, thrown } = await collect(bench(t, later.url).call())
    t.equal(textOf(batches), 'a', 'what stood before the error in the same read is delivered')
    t.match(thrown, { code: 'upstream_overloaded' })
    t.equal(later.requests.length, 1)
  })
})

t.test('a refused request is repaired once, where the deployment knows how', async (t) => {
  const server = await upstreamServer(t, status(400, 'bad reasoning'))
  const seen: UpstreamFailure[] = []
  const deployment: Deployment = {
    ...vendor,
    repair(failure, request) {
      seen.push(failure)
      return { ...request, instructions: 'repaired' }
    },
  }
  const error = await failure(bench(t, server.url).call({ deployment }))
  t.equal(error.code, 'upstream_rejected')
  t.match(seen, [{ status: 400, body: 'bad reasoning' }])
  t.same(
    server.requests.map(({ text }) => JSON.parse(text).instructions),
    ['Be brief.', 'repaired'],
  )

  const hopeless = await upstreamServer(t, status(400))
  await failure(bench(t, hopeless.url).call({ deployment: { ...vendor, repair: () => null } }))
  t.equal(hopeless.requests.length, 1)
})

t.test('a 401 refreshes the credential once', async (t) => {
  const accepting: Answer = (response, request) =>
    request.headers.authorization === 'Bearer second-token'
      ? whole(response, request)
      : status(401)(response, request)
  const server = await upstreamServer(t, accepting)
  let token = 'first-token'
  const refreshed = await collect(
    bench(t, server.url).call({
      secret: async () => ({ api_key: token }),
      onUnauthorized: async () => {
        token = 'second-token'
        return true
      },
    }),
  )
  t.equal(textOf(refreshed.batches), 'hello')

  let asked = 0
  const refusing = await upstreamServer(t, status(401))
  const onUnauthorized = async () => ++asked > 0
  t.equal((await failure(bench(t, refusing.url).call({ onUnauthorized }))).code, 'upstream_auth')
  t.equal(asked, 1)
  t.equal(refusing.requests.length, 2)
  await failure(bench(t, refusing.url).call({ onUnauthorized: async () => false }))
  t.equal(refusing.requests.length, 3, 'not again when the refresh did not help')
})

t.test(
  "a word on the account is final: another token is no cure, unless the vendor's table says so",
  async (t) => {
    let asked = 0
    const onUnauthorized = async () => ++asked > 0
    const denied = { ...vendor, classify: ({ body }: UpstreamFailure) => upstream('upstream_auth', body) }
    const closed = await upstreamServer(t, status(403, 'suspended'))
    const error = await failure(bench(t, closed.url).call({ deployment: denied, onUnauthorized }))
    t.equal(error.code, 'upstream_auth')
    t.equal(asked, 0)
    t.equal(closed.requests.length, 1)
    const revoked = await upstreamServer(t, status(403, 'revoked'), whole)
    const deployment = { ...denied, renewOn: [401, 403] }
    t.equal(
      textOf((await collect(bench(t, revoked.url).call({ deployment, onUnauthorized }))).batches),
      'hello',
    )
    t.equal(asked, 1)
  },
)

t.test('timeouts', async (t) => {
  t.test('for the first byte: not tried again', async (t) => {
    const server = await upstreamServer(t, () => {})
    const error = await failure(bench(t, server.url, { limits: { firstByteTimeoutMs: 500 } }).call())
    t.match(error, { code: 'upstream_timeout', details: { phase: 'headers' } })
    t.equal(server.requests.length, 1)
  })

  t.test('between bytes: what had come is delivered, a ping keeps the stream alive', async (t) => {
    let pings = 0
    const server = await upstreamServer(t, (response) => {
      response.writeHead(200, SSE).write(frame({ text: 'a' }))
      const timer = setInterval(() => {
        if (++pings < 12) return response.write(': ping\n\n')
        clearInterval(timer)
      }, 100)
    })
    const { batches, thrown } = await collect(
      bench(t, server.url, { limits: { idleTimeoutMs: 1000 } }).call(),
    )
    t.equal(textOf(batches), 'a')
    t.match(thrown, { code: 'upstream_timeout', details: { phase: 'body' } })
    t.equal(pings, 12, 'each ping put the end off')
  })

  t.test('for a free connection: not tried again', async (t) => {
    const server = await upstreamServer(t, (response) =>
      response.writeHead(200, SSE).write(frame({ text: 'a' })),
    )
    const { call, retries } = bench(t, server.url, {
      limits: { upstreamConnections: 1, firstByteTimeoutMs: 500 },
    })
    await call().first
    t.match(await failure(call()), { code: 'upstream_timeout', details: { phase: 'queue' } })
    t.same(retries, [])
    t.equal(server.requests.length, 1)
  })

  t.test('for the connection: tried again', async (t) => {
    // TLS is never answered, so the connection is never made.
    const server = await rawServer(t, () => {})
    const { call, waits } = bench(t, `https://127.0.0.1:${server.port}`, { limits: { connectTimeoutMs: 10 } })
    const error = await failure(call())
    t.match(error, { code: 'upstream_timeout', details: { phase: 'connect' } })
    t.equal(waits.length, 2)
  })
})

t.test('cancellation', async (t) => {
  t.test('destroys the socket at once and ends with the reason, wherever the call stands', async (t) => {
    const reason = new Error('cancelled by a person')
    const cases: [name: string, answer: Answer][] = [
      ['before the head', () => {}],
      ['in the body', (response) => response.writeHead(200, SSE).write(frame({ text: 'a' }))],
    ]
    for (const [name, answer] of cases) {
      let arrived = () => {}
      const asked = new Promise<void>((resolve) => {
        arrived = resolve
      })
      let gone = () => {}
      const closed = new Promise<void>((resolve) => {
        gone = resolve
      })
      const server = await upstreamServer(t, (response, request) => {
        response.once('close', gone)
        answer(response, request)
        arrived()
      })
      const abort = new AbortController()
      const { call, calls } = bench(t, server.url)
      const done = collect(call({ signal: abort.signal }))
      await asked
      abort.abort(reason)
      t.equal((await done).thrown, reason, name)
      await closed
      t.match(calls, [{ outcome: 'cancelled' }])
    }
  })

  t.test('before anything is sent, and while a retry waits', async (t) => {
    const server = await upstreamServer(t, status(503))
    const early = await collect(bench(t, server.url).call({ signal: AbortSignal.abort('early') }))
    t.equal(early.thrown, 'early')
    t.equal(server.requests.length, 0)

    const abort = new AbortController()
    const sleep: LlmDeps['sleep'] = (_, signal) =>
      new Promise((_, reject) => {
        signal.addEventListener('abort', () => reject(new Error('awake')))
        abort.abort('while waiting')
      })
    const late = await collect(bench(t, server.url, { sleep }).call({ signal: abort.signal }))
    t.equal(late.thrown, 'while waiting')
    t.equal(server.requests.length, 1)
  })

  t.test('by a fault of whoever takes the events closes the socket too', async (t) => {
    let gone = () => {}
    const closed = new Promise<void>((resolve) => {
      gone = resolve
    })
    const server = await upstreamServer(t, (response) => {
      response.once('close', gone)
      response.writeHead(200, SSE).write(frame({ text: 'a' }))
    })
    const fault = new Error('a fault of ours')
    const calling = bench(t, server.url).llm.stream({ ...CALL, signal: new AbortController().signal }, () => {
      throw fault
    })
    t.equal(await calling.catch((thrown: unknown) => thrown), fault)
    await closed
    t.equal(server.requests.length, 1)
  })

  t.test('of a call that waits for a connection leaves the one in use alone', async (t) => {
    const held: ServerResponse[] = []
    const server = await upstreamServer(t, (response) => {
      held.push(response)
      response.writeHead(200, SSE).write(frame({ text: 'a' }))
    })
    const { call } = bench(t, server.url, { limits: { upstreamConnections: 1 } })
    const running = call()
    await running.first
    const abort = new AbortController()
    const waiting = collect(call({ signal: abort.signal }))
    await new Promise((resolve) => setImmediate(resolve))
    abort.abort('no longer wanted')
    t.equal((await waiting).thrown, 'no longer wanted')
    held[0]?.end(frame({ text: 'b' }) + frame({ finish: true }))
    await running.done
    t.match(running.batches, [[{ text: 'a' }], [{ text: 'b' }, { type: 'finish' }]])
    t.equal(server.requests.length, 1)
  })
})

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
  t.equal(server.requests.length, 2, 'nothing was sent')
  t.same(calls, [], 'a stale request is no model call')
  const broken = new Error('defect')
  const throwing = () => {
    throw broken
  }
  t.equal((await collect(stale({ beforeSend: throwing }))).thrown, broken)
})

t.test('no secret gets into an error', async (t) => {
  const quoting = JSON.stringify({ error: `Incorrect API key provided: ${KEY}` })
  const cases: Answer[] = [
    status(401, quoting),
    (response) => response.writeHead(200, SSE).end(frame({ error: 'upstream_auth', quoted: KEY })),
    (response) => response.writeHead(200, SSE).end(quoting),
  ]
  for (const answer of cases) {
    const server = await upstreamServer(t, answer)
    const { call, logged } = bench(t, server.url)
    const error = await failure(call())
    t.match(JSON.stringify(error.toBody()), '***')
    t.notMatch(JSON.stringify(error.toBody()), KEY)
    t.notMatch(logged.join(''), KEY)
  }
  const broken: CredentialSecret = { api_key: 'two\r\nlines: of-a-key' }
  const error = await failure(bench(t, 'http://127.0.0.1:1').call({ secret: async () => broken }))
  t.equal(error.code, 'upstream_auth')
  t.notMatch(JSON.stringify(error.toBody()), 'of-a-key')
})

t.test('an answer without end is given up at its limit', async (t) => {
  const server = await upstreamServer(t, (response) => {
    response.writeHead(200, SSE)
    const block = `: ${'x'.repeat(1 << 20)}\n\n`
    const more = () => {
      while (!response.destroyed && response.write(block));
    }
    response.on('drain', more)
    more()
  })
  const error = await failure(bench(t, server.url).call())
  t.equal(error.code, 'upstream_rejected')
  t.match(error.message, /larger than/)
})

t.test('a preview shows the request with its secrets masked and sends nothing', async (t) => {
  const { llm } = bench(t, 'https://api.example.test/v1')
  const request = { ...REQUEST, options: { ...REQUEST.options, headers: { 'X-Proxy-Key': 'operators-own' } } }
  t.same(llm.preview(vendor, request), {
    method: 'POST',
    url: 'https://api.example.test/v1/answer?alt=sse',
    headers: {
      'x-session': 'ses_1',
      'X-Proxy-Key': '***',
      'content-type': 'application/json',
      accept: 'text/event-stream',
      'user-agent': 'baton/1.2.3',
      authorization: 'Bearer ***',
    },
    body: { model: 'one', instructions: 'Be brief.' },
    notes: ['temperature: not accepted by this model'],
  })
})

t.test('lists of models', async (t) => {
  const list = [{ id: 'one', max_input_tokens: 1000 }, { id: 'two' }]
  const caller = { facts: { id: 'cred_1' }, secret: async () => ({ api_key: KEY }) }

  t.test('are asked for once an hour and credential, however many want them', async (t) => {
    const server = await upstreamServer(
      t,
      status(200, JSON.stringify(list), { 'content-type': 'application/json' }),
    )
    let time = 0
    const { llm } = bench(t, server.url, { now: () => time })
    t.equal(llm.reported(vendor, caller, 'one'), undefined, 'unknown at first, and nobody waits')
    const [a, b] = await Promise.all([llm.models(vendor, caller), llm.models(vendor, caller)])
    t.same(a, list)
    t.same(b, list)
    t.same(llm.reported(vendor, caller, 'one'), list[0])
    t.equal(llm.reported(vendor, caller, 'three'), undefined)
    t.equal(server.requests.length, 1)
    t.match(server.requests[0], {
      method: 'GET',
      url: '/models',
      headers: { 'x-list': '1', authorization: `Bearer ${KEY}` },
    })
    await llm.models(vendor, { ...caller, facts: { id: 'cred_2' } })
    t.equal(server.requests.length, 2, 'each credential has its own')
    time = 3_600_001
    t.same(llm.reported(vendor, caller, 'one'), list[0], 'an old list answers while it is renewed')
    await llm.models(vendor, caller)
    t.equal(server.requests.length, 3)
  })

  t.test('that fail are not asked for again within a minute', async (t) => {
    const server = await upstreamServer(
      t,
      status(500, 'down'),
      status(200, 'not json'),
      status(200, JSON.stringify(list)),
    )
    let time = 0
    const { llm } = bench(t, server.url, { now: () => time })
    await t.rejects(llm.models(vendor, caller), { code: 'upstream_overloaded' })
    await t.rejects(llm.models(vendor, caller), { code: 'upstream_overloaded' })
    t.equal(llm.reported(vendor, caller, 'one'), undefined)
    t.equal(server.requests.length, 1)
    time = 60_001
    await t.rejects(llm.models(vendor, caller), { code: 'upstream_rejected' })
    time = 120_002
    t.same(await llm.models(vendor, caller), list)
  })

  t.test('are empty for a vendor without one', async (t) => {
    const { models: _, ...without } = vendor
    const { llm } = bench(t, 'http://127.0.0.1:1')
    t.same(await llm.models(without, caller), [])
    t.equal(llm.reported(without, caller, 'one'), undefined)
  })
})

t.test('a body is the JSON of its value, and what is frozen in it is written once', async (t) => {
  const list = fc.array(fc.tuple(fc.jsonValue(), fc.boolean())).map((items) =>
    // Only frozen objects are kept: primitives always count as frozen.
    items.map(([item, isKept]) => (isKept ? Object.freeze(item) : item)),
  )
  const member = fc.oneof(list, list.map(Object.freeze), fc.jsonValue(), fc.constant(undefined))
  const body = fc.dictionary(fc.string(), fc.oneof(member, fc.dictionary(fc.string(), member)))
  fc.assert(
    fc.property(body, (value) => {
      const expected = JSON.stringify(value)
      return bodyBytes(value).toString() === expected && bodyBytes(value).toString() === expected
    }),
  )
  let written = 0
  const counted = Object.freeze({
    toJSON: () => {
      written++
      return 'text'
    },
  })
  const send = () => bodyBytes({ a: [counted, {}, 'π'], b: { c: counted } }).toString()
  t.equal(send(), send())
  t.equal(written, 1)
})

t.test('closing ends the calls in flight', async (t) => {
  const server = await upstreamServer(t, (response) =>
    response.writeHead(200, SSE).write(frame({ text: 'a' })),
  )
  const { call, llm } = bench(t, server.url)
  const { first, done } = call()
  await first
  await llm.close()
  await t.rejects(done, { code: 'draining' })
})

function cut(response: ServerResponse, text: string): void {
  response.writeHead(200, SSE)
  response.write(text, () => response.destroy())
}

/** A port that nobody listens on. */
async function deadUrl(): Promise<string> {
  const server = createTcpServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  await new Promise<void>((resolve) => connect(port, '127.0.0.1').once('error', () => resolve()))
  return `http://127.0.0.1:${port}`
}
