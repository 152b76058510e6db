/** Servers over HTTP, well-behaved and hostile (the cases were seen in the wild; raw servers in servers/rig.ts). */
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import {
  createMcp,
  type Mcp,
  McpError,
  type McpOptions,
  type McpResult,
  type McpServerSpec,
} from '../../src/mcp/mcp.ts'
import { type Rig, startRig, TOOL } from './servers/rig.ts'

function door(t: Test, options: Partial<McpOptions> = {}): Mcp {
  const mcp = createMcp({ version: '0.1.0', drainMs: 500, ...options })
  t.teardown(() => mcp.close())
  return mcp
}

const specOf = (rig: Pick<Rig, 'url'>, more: Partial<McpServerSpec> = {}): McpServerSpec => ({
  key: 'server:1',
  name: 'rig',
  transport: 'streamable_http',
  url: rig.url,
  allowPrivate: true,
  ...more,
})

t.setTimeout(120_000)

/** Longer than any healthy exchange here takes on a slow machine: a test that has to wait for it fails. */
const PATIENCE = 20_000

function call(
  mcp: Mcp,
  spec: McpServerSpec,
  options: Partial<Parameters<Mcp['call']>[3]> = {},
  tool = 'tool',
  args = {},
): Promise<McpResult> {
  return mcp.call(spec, tool, args, {
    timeoutMs: PATIENCE,
    maxTotalMs: PATIENCE,
    signal: new AbortController().signal,
    ...options,
  })
}

const list = (mcp: Mcp, spec: McpServerSpec, refresh = false): ReturnType<Mcp['list']> =>
  mcp.list(spec, { timeoutMs: PATIENCE, refresh })

/** The work fails with an McpError like this. */
async function fails(t: Test, work: Promise<unknown>, expected: object, message = 'fails'): Promise<void> {
  const failure = await work.then(
    () => 'it succeeded',
    (error: unknown) => error,
  )
  t.type(failure, McpError, message)
  t.match(failure, expected, message)
}

const RAN = { content: [{ type: 'text', text: 'ran' }], is_error: false }

for (const era of ['legacy', 'modern'] as const)
  t.test(`${era}: lists, calls and presents itself without capabilities`, async (t) => {
    const rig = await startRig(t, era, era === 'legacy' ? 's1' : undefined)
    const mcp = door(t)
    const spec = specOf(rig, { headers: { 'x-api-key': 'k1' }, auth: { token: async () => 'token-1' } })
    t.same(mcp.status(spec.key), { state: 'idle' })
    const tools = await list(mcp, spec)
    t.match(tools, {
      server: {
        name: 'rig',
        version: '1.2.3',
        protocol_version: era === 'legacy' ? '2025-11-25' : '2026-07-28',
      },
      tools: [TOOL],
      repaired: [],
      hash: /^[0-9a-f]{64}$/,
    })
    t.same(await call(mcp, spec), RAN)
    t.equal(mcp.cached(spec.key), tools)
    t.same(mcp.status(spec.key), { state: 'ready' })
    for (const { headers, http } of rig.asked) {
      t.equal(headers['x-api-key'], 'k1')
      t.equal(headers.authorization, 'Bearer token-1')
      t.equal(headers['user-agent'], 'baton/0.1.0')
      t.equal(http, 'POST', 'no GET stream without interest')
    }
    const called = await rig.arrival('tools/call')
    if (era === 'legacy') {
      t.same((await rig.arrival('initialize')).rpc?.params.capabilities, {})
      t.equal(called.headers['mcp-session-id'], 's1')
    } else {
      t.equal(called.headers['mcp-name'], 'tool')
      t.same(called.rpc?.params._meta['io.modelcontextprotocol/clientCapabilities'], {})
    }
    await mcp.close()
    t.equal(rig.count('DELETE'), era === 'legacy' ? 1 : 0, 'a session is ended')
    await fails(t, call(mcp, spec), { kind: 'unavailable', sent: false })
  })

for (const era of ['legacy', 'modern'] as const)
  t.test(`${era}: one bad entry costs one tool, over all pages`, async (t) => {
    const rig = await startRig(t, era)
    const pages: Record<string, object> = {
      first: {
        tools: [
          { ...TOOL, outputSchema: { type: 'array' } },
          { name: 'bad', inputSchema: { type: 'string' } },
        ],
        nextCursor: 'second',
      },
      second: { tools: [{ name: 'plain', description: null }, TOOL, 17], nextCursor: null },
    }
    rig.on('tools/list', ({ rpc, reply }) => reply(pages[rpc.params?.cursor ?? 'first']))
    const mcp = door(t)
    const { tools, repaired } = await list(mcp, specOf(rig))
    t.same(
      tools.map(({ name }) => name),
      ['tool', 'plain'],
    )
    t.same(tools[0]?.outputSchema, { type: 'array' })
    t.same(
      repaired.map(({ tool, problem }) => [tool, problem.split(':')[0]]),
      [
        ['bad', 'left out'],
        ['plain', 'inputSchema set to an object without properties'],
        ['tool', 'left out'],
        ['#5', 'left out'],
      ],
    )
    const untold = repaired.filter(({ left_out }) => !left_out).map(({ tool }) => tool)
    t.same(untold, ['plain', 'tool', '#5'], 'only what the list lacks by its name is told as left out')
    t.same(await call(mcp, specOf(rig)), RAN)
  })

t.test('endless pages end with an error, not with an endless list', async (t) => {
  const rig = await startRig(t)
  let page = 0
  rig.on('tools/list', ({ reply }) =>
    reply({ tools: [{ ...TOOL, name: `t${page++}` }], nextCursor: `c${page}` }),
  )
  await fails(t, list(door(t), specOf(rig)), { kind: 'protocol', message: /pagination/ })
  t.ok(page <= 33)
})

t.test('a flood of entries costs neither the stack nor more pages', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/list', ({ reply }) =>
    reply({ tools: [TOOL, ...new Array(300_000).fill(0)], nextCursor: 'more' }),
  )
  const { tools, repaired } = await list(door(t), specOf(rig))
  t.equal(tools.length, 1)
  t.equal(repaired.length, 2_000)
  t.equal(rig.count('tools/list'), 1)
})

t.test('a server without tools is asked for none', async (t) => {
  const rig = await startRig(t)
  rig.on('initialize', ({ reply }) =>
    reply({ protocolVersion: '2025-03-26', capabilities: {}, serverInfo: { name: 'bare', version: '0' } }),
  )
  t.match(await list(door(t), specOf(rig)), {
    tools: [],
    server: { name: 'bare', protocol_version: '2025-03-26' },
  })
  t.equal(rig.count('tools/list'), 0)
})

t.test('a lost session is opened anew and each call is run once', async (t) => {
  for (const loss of ['404', '400', '503']) {
    const rig = await startRig(t, 'legacy', 'first')
    const mcp = door(t)
    const spec = specOf(rig)
    t.same(await call(mcp, spec), RAN)
    let ran = 0
    rig.on('initialize', ({ rpc, reply, response }) => {
      response.setHeader('mcp-session-id', 'second')
      reply({
        protocolVersion: rpc.params.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name: 'rig', version: '2' },
      })
    })
    rig.on('tools/call', ({ request, reply, status }) => {
      if (request.headers['mcp-session-id'] !== 'second') return status(Number(loss), {}, 'Session not found')
      ran++
      reply({ content: [] })
    })
    const results = await Promise.all([1, 2, 3, 4].map(() => call(mcp, spec)))
    t.equal(results.length, 4)
    t.equal(ran, 4, `${loss}: each of the parallel calls once`)
    t.equal(rig.count('initialize'), 2, `${loss}: one new session for all`)
  }
})

t.test('a session that is lost again is reported, not chased', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  rig.on('tools/call', ({ status }) => status(404, {}, 'Session not found'))
  await fails(t, call(door(t), specOf(rig)), { kind: 'unavailable', sent: false })
  t.equal(rig.count('tools/call'), 2)
})

t.test('an answer of 100 MB is cut at the cap', async (t) => {
  for (const shape of ['json', 'stream', 'stream with event ids']) {
    const rig = await startRig(t)
    let written = 0
    rig.on('tools/call', async ({ response, rpc }) => {
      const isStream = shape !== 'json'
      response.writeHead(200, { 'content-type': isStream ? 'text/event-stream' : 'application/json' })
      const head = `{"jsonrpc":"2.0","id":${rpc.id},"result":{"content":[{"type":"text","text":"`
      response.write(
        `${shape === 'stream with event ids' ? 'id: 1\n' : ''}${isStream ? 'data: ' : ''}${head}`,
      )
      const chunk = 'x'.repeat(1024 * 1024)
      while (written < 100 && !response.destroyed) {
        written++
        if (!response.write(chunk)) await Promise.race([once(response, 'drain'), once(response, 'close')])
      }
      response.end('"}]}}\n\n')
    })
    const mcp = door(t, { maxBytes: 2 * 1024 * 1024 })
    await fails(t, call(mcp, specOf(rig)), { kind: 'too_large', sent: true }, shape)
    t.ok(written < 50, `${shape}: the server was cut off after ${written} MB`)
    t.equal(rig.count('GET'), 0, 'and not asked to send it again')
    rig.on('tools/call', ({ reply }) => reply({ content: [] }))
    t.same(await call(mcp, specOf(rig)), { content: [], is_error: false }, 'the connection goes on')
  }
})

t.test('a list above the cap is refused', async (t) => {
  const rig = await startRig(t)
  rig.tools = [{ ...TOOL, description: 'x'.repeat(300_000) }]
  await fails(t, list(door(t, { maxBytes: 200_000 }), specOf(rig)), { kind: 'too_large' })
})

t.test('a call fails at once when its stream ends without the answer', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  rig.on('tools/call', ({ stream, response }) => {
    stream().send({ method: 'notifications/message', params: { level: 'info', data: 'begun' } })
    response.end()
  })
  await fails(t, call(mcp, specOf(rig)), { kind: 'disconnected', sent: true })
  rig.on('tools/call', ({ stream, response }) => {
    stream()
    response.write(': begun\n\n', () => response.destroy())
  })
  await fails(t, call(mcp, specOf(rig)), { kind: 'disconnected', sent: true }, 'cut without an end')
  rig.on('tools/call', ({ request }) => void request.socket.destroy())
  await fails(t, call(mcp, specOf(rig)), { kind: 'disconnected', sent: true }, 'cut before any answer')
})

t.test(
  'a call whose stream breaks after an event id is resumed, at the pace that the server asks for',
  async (t) => {
    const rig = await startRig(t)
    let callId: number | string | undefined
    rig.on('tools/call', ({ rpc, stream, response }) => {
      callId = rpc.id
      stream().raw('id: e1\nretry: 20\ndata: \n\n')
      response.end()
    })
    rig.on('GET', ({ stream, response }) => {
      stream().send({ id: callId, result: { content: [{ type: 'text', text: 'resumed' }] } }, 'e2')
      response.end()
    })
    t.match(await call(door(t), specOf(rig)), { content: [{ text: 'resumed' }] })
    t.equal((await rig.arrival('GET')).headers['last-event-id'], 'e1')
  },
)

t.test(
  'a server that breaks every resumed stream is asked less and less, and not at all after the call',
  async (t) => {
    const rig = await startRig(t)
    rig.on('tools/call', ({ stream, response }) => {
      stream().raw('id: e1\nretry: 0\ndata: \n\n')
      response.end()
    })
    rig.on('GET', ({ stream, response }) => {
      stream().raw('id: e2\nretry: 0\ndata: \n\n')
      response.end()
    })
    await fails(t, call(door(t), specOf(rig), { timeoutMs: 700 }), { kind: 'timeout', sent: true })
    const asked = rig.count('GET')
    t.ok(asked >= 1 && asked < 8, `${asked} times in 700 ms`)
    await sleep(1_000)
    t.ok(rig.count('GET') <= asked + 1, 'quiet after the call')
  },
)

t.test('an answer that cannot come is not waited for', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  rig.on('tools/call', ({ status }) => status(202))
  await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: true, message: /without answering/ })
  rig.on(
    'tools/call',
    ({ response }) =>
      void response
        .writeHead(200, { 'content-type': 'application/json' })
        .end('{"jsonrpc":"2.0","id":987654,"result":{}}'),
  )
  await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: true }, 'an answer to something else')
  rig.on('tools/call', ({ status }) => status(200, { 'content-type': 'text/html' }, '<h1>Hello</h1>'))
  await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: true })
})

t.test('a hung call ends at its limits and with its caller, and the server is told', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const spec = specOf(rig)
  rig.on('tools/call', ({ stream }) => void stream())
  await fails(t, call(mcp, spec, { timeoutMs: 50 }), { kind: 'timeout', sent: true })
  t.equal(
    (await rig.arrival('notifications/cancelled')).rpc?.params.requestId,
    (await rig.arrival('tools/call')).rpc?.id,
  )
  await fails(t, call(mcp, spec, { maxTotalMs: 50 }), { kind: 'timeout', sent: true })

  const leaving = new AbortController()
  const left = call(mcp, spec, { signal: leaving.signal })
  await rig.arrival('tools/call', 3)
  leaving.abort()
  await fails(t, left, { kind: 'cancelled', sent: true })
  await rig.arrival('notifications/cancelled', 3)
  await fails(t, call(mcp, spec, { signal: AbortSignal.abort() }), { kind: 'cancelled', sent: false })
  t.equal(rig.count('tools/call'), 3, 'a call given up beforehand is not sent')
})

t.test('a call that is over holds no socket, and hung calls do not starve others', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const closed: Promise<void>[] = []
  rig.on('tools/call', ({ rpc, stream, response, reply }) => {
    if (rpc.params.name === 'quick') return reply({ content: [{ type: 'text', text: 'ran' }] })
    closed.push(new Promise((resolve) => response.once('close', resolve)))
    const begun = stream()
    if (rpc.params.name === 'answers and stays open') begun.reply({ content: [] })
  })
  const hung = Array.from({ length: 40 }, () =>
    fails(t, call(mcp, specOf(rig), { timeoutMs: 1_500 }), { kind: 'timeout' }),
  )
  await rig.arrival('tools/call', 40)
  t.same(await call(mcp, specOf(rig), {}, 'quick'), RAN)
  await Promise.all(hung)
  await Promise.all(closed)
  t.equal(closed.length, 40)
  await call(mcp, specOf(rig), {}, 'answers and stays open')
  await closed.at(-1)
})

t.test('a modern server sees a cancelled call by the end of its stream', async (t) => {
  const rig = await startRig(t, 'modern')
  const leaving = new AbortController()
  const closed = new Promise<void>((resolve) =>
    rig.on('tools/call', ({ stream, response }) => {
      stream()
      response.once('close', resolve)
      leaving.abort()
    }),
  )
  await fails(t, call(door(t), specOf(rig), { signal: leaving.signal }), { kind: 'cancelled', sent: true })
  await closed
  t.equal(rig.count('notifications/cancelled'), 0)
})

t.test('progress is passed on and keeps a slow call alive, up to the limit for the whole', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  let steps = 8
  rig.on('tools/call', ({ rpc, stream, response }) => {
    const { send, reply } = stream()
    const { progressToken } = rpc.params._meta
    let progress = 0
    const timer = setInterval(() => {
      send({
        method: 'notifications/progress',
        params: { progressToken, progress: ++progress, total: 8, message: 'on it' },
      })
      if (progress < steps) return
      clearInterval(timer)
      reply({ content: [{ type: 'text', text: 'done' }] })
    }, 50)
    response.once('close', () => clearInterval(timer))
  })
  const seen: number[] = []
  const result = await call(mcp, specOf(rig), {
    timeoutMs: 300,
    onProgress: ({ progress, total, message }) => {
      seen.push(progress)
      t.same([total, message], [8, 'on it'])
    },
  })
  t.match(result, { content: [{ text: 'done' }] })
  t.same(seen.slice(0, 7), [1, 2, 3, 4, 5, 6, 7])
  steps = Number.POSITIVE_INFINITY
  await fails(t, call(mcp, specOf(rig), { timeoutMs: 5_000, maxTotalMs: 300 }), {
    kind: 'timeout',
    message: /300 ms/,
  })
})

t.test('a result that the SDK would throw away arrives', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era)
    // A pattern that takes seconds to refuse, and a schema that no result below meets.
    const outputSchema = {
      type: 'object',
      required: ['x'],
      properties: { x: { type: 'string', pattern: '^(a+)+$' } },
    }
    rig.tools = [{ ...TOOL, outputSchema }]
    const mcp = door(t)
    await list(mcp, specOf(rig))
    rig.on('tools/call', ({ reply }) =>
      reply({
        content: [
          { type: 'hologram', data: 1 },
          { type: 'image', data: '%%%', mimeType: 'image/png' },
          { type: 'text', text: 'kept' },
        ],
        structuredContent: { x: `${'a'.repeat(40)}!` },
      }),
    )
    const started = Date.now()
    const result = await call(mcp, specOf(rig))
    t.match(result.content, [{ text: /hologram/ }, { text: /image/ }, { type: 'text', text: 'kept' }], era)
    t.match(result.structured, { x: /^a+!$/ })
    t.ok(Date.now() - started < PATIENCE, 'no schema is run against it')
    rig.on('tools/call', ({ reply }) =>
      reply({ content: 'bare text', structuredContent: [1], isError: true }),
    )
    t.same(await call(mcp, specOf(rig)), {
      content: [{ type: 'text', text: 'bare text' }],
      structured: [1],
      is_error: true,
    })
  }
})

t.test('an answer that gives the number of its request as text is read like any other', async (t) => {
  const rig = await startRig(t)
  rig.tools = [TOOL]
  const asText =
    (result: object): Parameters<typeof rig.on>[1] =>
    ({ rpc, response }) => {
      response.writeHead(200, { 'content-type': 'application/json' })
      response.end(JSON.stringify({ jsonrpc: '2.0', id: String(rpc.id), result }))
    }
  rig.on('tools/list', asText({ tools: rig.tools }))
  rig.on('tools/call', asText({ content: [{ type: 'text', text: 'ran' }] }))
  const mcp = door(t)
  t.match((await list(mcp, specOf(rig))).tools, [{ name: 'tool' }])
  t.same(await call(mcp, specOf(rig)), RAN)
})

t.test('an error answer is a protocol failure, and a refusal says that nothing was run', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  rig.on('tools/call', ({ fail }) => fail(-32602, 'Unknown tool'))
  await fails(t, call(mcp, specOf(rig)), {
    kind: 'protocol',
    sent: false,
    rpcCode: -32602,
    message: /Unknown tool/,
  })
  rig.on('tools/call', ({ fail }) => fail(-32603, 'Internal', 200, { stack: 'secret' }))
  const failure = await call(mcp, specOf(rig)).catch((error: McpError) => error)
  t.match(failure, { kind: 'protocol', sent: true, rpcCode: -32603 })
  t.same(mcp.status('server:1'), { state: 'ready' }, 'a tool that fails says nothing of the server')
})

t.test('a rate limit is waited for once if it is short, and reported if it is not', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  let refusals = 1
  rig.on('tools/call', ({ status, reply }) => {
    if (refusals-- > 0) return status(429, { 'retry-after': '0' })
    reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  t.same(await call(mcp, specOf(rig)), RAN)
  refusals = 2
  await fails(t, call(mcp, specOf(rig)), { kind: 'unavailable', sent: false })
  rig.on('tools/call', ({ status }) => status(429, { 'retry-after': '7' }))
  await fails(t, call(mcp, specOf(rig)), { kind: 'unavailable', sent: false, retryAfterMs: 7_000 })
  rig.on('tools/call', ({ status }) => status(503, { 'retry-after': '3' }))
  await fails(t, call(mcp, specOf(rig)), { kind: 'unavailable', sent: true, retryAfterMs: 3_000 })
})

t.test(
  'a refused token is renewed once; without a way to renew it the server waits for a login',
  async (t) => {
    const rig = await startRig(t)
    let token = 'old'
    let renewals = 0
    const accepts = new Set(['new'])
    const guarded = rig.on
    for (const method of ['server/discover', 'tools/call'])
      guarded(method, ({ request, status, reply, fail }) => {
        const [, bearer = ''] = (request.headers.authorization ?? '').split(' ')
        if (!accepts.has(bearer)) return status(401, { 'www-authenticate': 'Bearer' })
        if (method === 'tools/call') return reply({ content: [{ type: 'text', text: 'ran' }] })
        fail(-32601, 'Method not found')
      })
    const mcp = door(t)
    const auth = {
      token: async () => token,
      onUnauthorized: async () => {
        renewals++
        token = 'new'
      },
    }
    t.same(await call(mcp, specOf(rig, { auth })), RAN)
    t.equal(renewals, 1)
    accepts.clear()
    await fails(t, call(mcp, specOf(rig, { auth })), { kind: 'auth_required', sent: false })
    t.match(mcp.status('server:1'), { state: 'auth_required', error: /HTTP 401/ })
    await fails(t, call(mcp, specOf(rig, { key: 'server:2' })), { kind: 'auth_required', sent: false })
    accepts.add('new')
    t.same(
      await call(mcp, specOf(rig, { auth })),
      RAN,
      'no back-off stands between a login and the next call',
    )
    t.same(mcp.status('server:1'), { state: 'ready' })
  },
)

t.test('calls that are refused together renew the credential once', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  let token = 'old'
  let renewals = 0
  const auth = {
    token: async () => token,
    onUnauthorized: async () => {
      renewals++
      await rig.arrival('tools/call', 8)
      token = 'new'
    },
  }
  await list(mcp, specOf(rig, { auth }))
  rig.on('tools/call', ({ request, reply, status }) =>
    request.headers.authorization === 'Bearer new' ? reply({ content: [] }) : status(401),
  )
  await Promise.all(Array.from({ length: 8 }, () => call(mcp, specOf(rig, { auth }))))
  t.equal(renewals, 1)
})

t.test('the old SSE transport tells a refused credential from a server that is away', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  rig.on('GET', ({ status }) => status(401))
  const spec = specOf(rig, { transport: 'sse' })
  await fails(t, list(mcp, spec), { kind: 'auth_required', sent: false })
  rig.on('GET', ({ status }) => status(404))
  await fails(t, list(mcp, { ...spec, key: 'server:2' }), { kind: 'unavailable', message: /HTTP 404/ })
  rig.on('GET', ({ stream }) => stream().raw('event: endpoint\ndata: /messages\n\n'))
  rig.on('initialize', ({ status }) => status(401))
  await fails(t, list(mcp, { ...spec, key: 'server:3' }), { kind: 'auth_required', sent: false })
  rig.on('GET', () => {})
  const hasty = door(t, { connectMs: { http: 100, stdio: 100 } })
  await fails(t, list(hasty, { ...spec, key: 'server:4' }), { kind: 'timeout', sent: false })
})

t.test('many who ask at once make one connection and one list', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const lists = await Promise.all(Array.from({ length: 10 }, () => list(mcp, specOf(rig))))
  t.equal(new Set(lists).size, 1)
  t.equal(rig.count('initialize'), 1)
  t.equal(rig.count('tools/list'), 1)
  await list(mcp, specOf(rig))
  t.equal(rig.count('tools/list'), 1, 'fresh: from the cache')
  await list(mcp, specOf(rig), true)
  t.equal(rig.count('tools/list'), 2)
})

t.test('a slow server costs a caller no more than its patience, and joins later', async (t) => {
  const rig = await startRig(t)
  let release = (): void => {}
  const slow = rig.on
  slow('tools/list', ({ reply }) => {
    release = () => reply({ tools: [TOOL] })
  })
  const mcp = door(t)
  await fails(t, mcp.list(specOf(rig), { timeoutMs: 100 }), { kind: 'timeout', sent: false })
  await fails(t, mcp.list(specOf(rig), { timeoutMs: PATIENCE, signal: AbortSignal.abort() }), {
    kind: 'cancelled',
  })
  t.equal(mcp.cached('server:1'), null)
  await rig.arrival('tools/list')
  const joined = list(mcp, specOf(rig))
  release()
  t.match(await joined, { tools: [TOOL] })
  t.equal(rig.count('tools/list'), 1, 'what was begun for the first caller served the second')
  t.match(mcp.cached('server:1'), { tools: [TOOL] })
})

t.test('a server that never answers the first request is given up at the connect budget', async (t) => {
  const rig = await startRig(t)
  rig.on('server/discover', () => {})
  const mcp = door(t, { connectMs: { http: 150, stdio: 150 } })
  await fails(t, list(mcp, specOf(rig)), { kind: 'timeout', sent: false, message: /150 ms/ })
  t.match(mcp.status('server:1'), { state: 'down', error: /150 ms/ })
})

t.test(
  'after three failed attempts a dead server is left alone for a while; a new key starts afresh',
  async (t) => {
    let connections = 0
    const dead = createServer((socket) => {
      connections++
      socket.destroy()
    })
    await new Promise<void>((done) => dead.listen(0, '127.0.0.1', done))
    t.teardown(() => dead.close())
    const mcp = door(t)
    const spec = specOf({ url: `http://127.0.0.1:${(dead.address() as AddressInfo).port}/mcp` })
    let refused = 0
    for (let i = 0; i < 30; i++) {
      const failure = await call(mcp, spec).catch((error: McpError) => error)
      t.match(failure, { kind: 'unavailable', sent: false })
      if (failure instanceof McpError && failure.retryAfterMs !== undefined) refused++
    }
    t.ok(refused >= 20, `${refused} of 30 were refused without an attempt`)
    t.ok(mcp.status(spec.key).state === 'down')
    const before = connections
    await fails(t, call(mcp, { ...spec, key: 'server:2' }), { kind: 'unavailable', sent: false })
    t.ok(connections > before)
    await mcp.close(spec.key)
    const again = connections
    await fails(t, call(mcp, spec), { kind: 'unavailable', sent: false })
    t.ok(connections > again, 'closing a key forgets its failures')
  },
)

t.test('a connection refused was no call, whichever way it is noticed', async (t) => {
  const gone = createServer()
  await new Promise<void>((done) => gone.listen(0, '127.0.0.1', done))
  const { port } = gone.address() as AddressInfo
  await new Promise((done) => gone.close(done))
  const spec = specOf({ url: `http://127.0.0.1:${port}/mcp` })
  for (const transport of ['streamable_http', 'sse'] as const)
    await fails(t, call(door(t), { ...spec, transport }), { kind: 'unavailable', sent: false }, transport)
})

t.test('the guard stands before every server that is not exempt', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  for (const transport of ['streamable_http', 'sse'] as const)
    await fails(t, call(mcp, specOf(rig, { key: transport, transport, allowPrivate: false })), {
      kind: 'unavailable',
      sent: false,
      message: /not allowed/,
    })
  t.equal(rig.connections(), 0)
  t.same(await call(mcp, specOf(rig, { allowPrivate: ['127.0.0.0/8'] })), RAN)
})

t.test('a redirect to another origin is refused and carries nothing there', async (t) => {
  const other = await startRig(t)
  const rig = await startRig(t)
  for (const method of ['server/discover', 'initialize'])
    rig.on(method, ({ status }) => status(307, { location: other.url }))
  await fails(t, call(door(t), specOf(rig, { headers: { 'x-api-key': 'k' } })), {
    sent: false,
    message: /[Rr]edirect/,
  })
  t.equal(other.connections(), 0)
})

t.test('a server that chokes on the probe is asked the old way', async (t) => {
  for (const choke of ['500', 'html', '202'] as const) {
    const rig = await startRig(t)
    rig.on('server/discover', ({ status }) => {
      if (choke === 'html') return status(200, { 'content-type': 'text/html' }, '<p>')
      status(Number(choke))
    })
    t.match(await list(door(t), specOf(rig)), { server: { protocol_version: '2025-11-25' } }, choke)
  }
  const rig = await startRig(t)
  rig.on('server/discover', ({ status }) => status(503))
  await fails(t, list(door(t), specOf(rig)), { kind: 'unavailable' })
  t.equal(rig.count('initialize'), 0, 'an outage says nothing of the revision')
})

t.test('an unused connection is closed, and the next one needs no probe', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era, 's')
    const mcp = door(t, { idleMs: { http: 30, stdio: 30 } })
    await list(mcp, specOf(rig))
    while (mcp.status('server:1').state !== 'idle') await sleep(10)
    t.same(await call(mcp, specOf(rig)), RAN)
    t.equal(rig.count('server/discover'), 1, `${era}: probed once`)
    t.equal(rig.count('initialize'), era === 'legacy' ? 2 : 0)
    if (era === 'legacy') await rig.arrival('DELETE')
  }
})

t.test('a server that changed its revision meanwhile is asked anew', async (t) => {
  const rig = await startRig(t, 'modern')
  const mcp = door(t, { idleMs: { http: 30, stdio: 30 } })
  t.equal((await list(mcp, specOf(rig))).server.protocol_version, '2026-07-28')
  while (mcp.status('server:1').state !== 'idle') await sleep(10)
  rig.on('server/discover', ({ fail }) => fail(-32601, 'Method not found'))
  rig.on('initialize', ({ rpc, reply }) =>
    reply({
      protocolVersion: rpc.params.protocolVersion,
      capabilities: { tools: {} },
      serverInfo: { name: 'old', version: '1' },
    }),
  )
  for (const method of ['tools/list', 'tools/call'])
    rig.on(method, ({ rpc, status, reply }) => {
      if (rpc.params?._meta?.['io.modelcontextprotocol/protocolVersion'])
        return status(400, {}, 'Bad request')
      reply(method === 'tools/list' ? { tools: [TOOL] } : { content: [{ type: 'text', text: 'ran' }] })
    })
  t.same(await call(mcp, specOf(rig)), RAN)
  t.match(await list(mcp, specOf(rig), true), { server: { name: 'old', protocol_version: '2025-11-25' } })
})

t.test('arguments are mirrored into headers, after a mismatch by the newer schema', async (t) => {
  const rig = await startRig(t, 'modern')
  const withHeader = (header: string): object => ({
    ...TOOL,
    inputSchema: { type: 'object', properties: { region: { type: 'string', 'x-mcp-header': header } } },
  })
  rig.tools = [withHeader('Old'), { ...withHeader('not a token'), name: 'broken' }]
  const mcp = door(t)
  const { tools, repaired } = await list(mcp, specOf(rig))
  t.same(
    tools.map(({ name }) => name),
    ['tool'],
  )
  t.match(repaired, [{ tool: 'broken', problem: /x-mcp-header/, left_out: true }])
  rig.tools = [withHeader('Region')]
  rig.on('tools/call', ({ request, reply, fail }) => {
    if (request.headers['mcp-param-region'] !== 'eu') return fail(-32020, 'Header mismatch', 400)
    reply({ resultType: 'complete', content: [{ type: 'text', text: 'ran' }] })
  })
  t.same(await call(mcp, specOf(rig), {}, 'tool', { region: 'eu' }), RAN)
  t.equal(rig.count('tools/call'), 2)
})

t.test('a flood of announcements is told once, and once more', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const mcp = door(t, { announceMs: 1_000 })
  const heard: string[] = []
  mcp.onListChanged((key) => heard.push(key))
  const spec = specOf(rig, { auth: { token: async () => 'token-1' } })
  const flooded = new Promise<void>((resolve) =>
    rig.on('GET', ({ stream }) => {
      const { send } = stream()
      for (let i = 0; i < 2_000; i++) send({ method: 'notifications/tools/list_changed' })
      resolve()
    }),
  )
  mcp.interest(spec, Date.now() + 60_000)
  await list(mcp, spec)
  await flooded
  const { headers } = await rig.arrival('GET')
  t.match(headers, {
    'mcp-session-id': 's',
    'mcp-protocol-version': '2025-11-25',
    authorization: 'Bearer token-1',
  })
  const started = Date.now()
  while (heard.length < 2) await sleep(10)
  t.ok(
    heard.length <= 2 + (Date.now() - started) / 1_000,
    `2000 announcements were told ${heard.length} times`,
  )
  t.same(new Set(heard), new Set([spec.key]))
  t.equal(rig.count('tools/list'), 1, 'the door itself asks for nothing')
  await list(mcp, spec)
  t.equal(rig.count('tools/list'), 2, 'what is kept counts as old')
})

t.test('a server that ends the GET stream at once is not asked again and again', async (t) => {
  const rig = await startRig(t)
  rig.on('GET', ({ stream, response }) => {
    stream().raw('retry: 0\n\n')
    response.end()
  })
  const mcp = door(t)
  await list(mcp, specOf(rig))
  t.equal(rig.count('GET'), 0, 'nobody listens')
  mcp.interest(specOf(rig), Date.now() + 60_000)
  await rig.arrival('GET')
  await sleep(500)
  t.equal(rig.count('GET'), 1)
})

t.test(
  'the channel for announcements closes with the interest and comes back with it, in both revisions',
  async (t) => {
    const legacy = await startRig(t)
    const modern = await startRig(t, 'modern')
    const closed = [
      new Promise<void>((resolve) =>
        legacy.on('GET', ({ stream, response }) => {
          stream()
          response.once('close', resolve)
        }),
      ),
      new Promise<void>((resolve) =>
        modern.on('subscriptions/listen', ({ rpc, stream, response }) => {
          const { send } = stream()
          const _meta = { 'io.modelcontextprotocol/subscriptionId': rpc.id }
          send({
            method: 'notifications/subscriptions/acknowledged',
            params: { notifications: { toolsListChanged: true }, _meta },
          })
          send({ method: 'notifications/tools/list_changed', params: { _meta } })
          response.once('close', resolve)
        }),
      ),
    ]
    const mcp = door(t)
    const heard = new Promise<string>((resolve) => mcp.onListChanged(resolve))
    for (const [rig, key] of [
      [legacy, 'legacy'],
      [modern, 'modern'],
    ] as const) {
      const spec = specOf(rig, { key })
      await list(mcp, spec)
      mcp.interest(spec, Date.now() + 400)
    }
    t.equal(await heard, 'modern')
    await Promise.all(closed)
    for (const [rig, key, method] of [
      [legacy, 'legacy', 'GET'],
      [modern, 'modern', 'subscriptions/listen'],
    ] as const) {
      mcp.interest(specOf(rig, { key }), Date.now() + 60_000)
      while (rig.count(method) < 2) await sleep(10)
      t.equal(rig.count('tools/list'), 1, 'on the same connection')
    }
  },
)

t.test('what a server asks of the client is refused where it was not declared', async (t) => {
  const rig = await startRig(t)
  const answered = new Promise<unknown>((resolve) =>
    rig.on('tools/call', ({ stream, response }) => {
      const { send, reply } = stream()
      send({ id: 'question', method: 'sampling/createMessage', params: { messages: [], maxTokens: 1 } })
      const wait = setInterval(() => {
        // An answer has no method, so the rig records it as an unnamed POST.
        const answer = rig.asked.find(({ rpc }) => rpc?.id === 'question')?.rpc
        if (!answer) return
        clearInterval(wait)
        resolve(answer)
        reply({ content: [] })
      }, 10)
      response.once('close', () => clearInterval(wait))
    }),
  )
  await call(door(t), specOf(rig))
  t.match(await answered, { error: { code: -32601 } })
})

t.test('closing waits for running calls, then cuts them off', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t, { drainMs: 100 })
  let finish = (): void => {}
  rig.on('tools/call', ({ reply }) => {
    finish = () => reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  const first = call(mcp, specOf(rig))
  await rig.arrival('tools/call')
  const closing = mcp.close('server:1')
  finish()
  t.same(await first, RAN)
  await closing

  const second = call(mcp, specOf(rig))
  await rig.arrival('tools/call', 2)
  const cut = fails(t, second, { kind: 'disconnected', sent: true })
  await mcp.close()
  await cut
})

t.test('three calls without an answer make a new connection; the others finish on the old one', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const mcp = door(t)
  let finish = (): void => {}
  rig.on('tools/call', ({ rpc, reply }) => {
    if (rpc.params.name === 'slow') finish = () => reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  const slow = call(mcp, specOf(rig), {}, 'slow')
  await rig.arrival('tools/call')
  for (let i = 0; i < 3; i++) await fails(t, call(mcp, specOf(rig), { timeoutMs: 20 }), { kind: 'timeout' })
  t.equal(rig.count('DELETE'), 0)
  finish()
  t.same(await slow, RAN)
  await rig.arrival('DELETE')
  rig.on('tools/call', ({ reply }) => reply({ content: [] }))
  await call(mcp, specOf(rig))
  t.equal(rig.count('initialize'), 2)
})
