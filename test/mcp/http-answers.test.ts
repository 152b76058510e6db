/** What a server answers to a call over HTTP: results, refusals, and its own questions. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { BatonError } from '../../src/errors.ts'
import type { McpError } from '../../src/mcp/contract.ts'
import { eventually } from '../waiting.ts'
import { call, door, fails, list, PATIENCE, RAN, specOf } from './door.ts'
import { startRig, TOOL } from './servers/rig.ts'

/** Answers for which the SDK refuses a result */
const ODD = [
  { result: { content: [{ type: 'text', text: 'ran' }] }, error: null },
  { result: 'ran', method: null },
  { result: { content: [{ type: 'text', text: 'ran' }], _meta: null } },
]

t.test('a result that the SDK would reject arrives', async (t) => {
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
    t.ok(Date.now() - started < PATIENCE, 'the result is checked against no schema')
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

t.test(
  'an answer whose members are null, or whose type is not said, is read as far as it goes',
  async (t) => {
    for (const era of ['legacy', 'modern'] as const) {
      const rig = await startRig(t, era)
      const mcp = door(t)
      await list(mcp, specOf(rig))
      const answer = (body: object, type?: string) =>
        rig.on('tools/call', ({ rpc, status }) => {
          const headers = type === '' ? {} : { 'content-type': type ?? 'application/json' }
          status(200, headers, JSON.stringify({ jsonrpc: '2.0', id: rpc.id, ...body }))
        })
      const content = [{ type: 'text', text: 'ran' }]
      for (const body of ODD) {
        answer(body)
        t.same(await call(mcp, specOf(rig)), RAN, JSON.stringify(body))
      }
      for (const type of ['', 'text/plain; charset=utf-8']) {
        answer({ result: { content } }, type)
        t.same(await call(mcp, specOf(rig)), RAN, `type ${type}`)
      }
      answer({ result: null, error: { code: 'E_TABLE', message: 'No such table', data: null } })
      const failed = { kind: 'protocol', sent: true, rpcCode: -32603, message: 'rig: No such table' }
      await fails(t, call(mcp, specOf(rig)), failed)
    }
  },
)

t.test('an answer in an event stream whose members are null is read as far as it goes', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era)
    const mcp = door(t)
    await list(mcp, specOf(rig))
    for (const body of ODD) {
      rig.on('tools/call', ({ rpc, stream, response }) => {
        stream().send({ id: rpc.id, ...body })
        response.end()
      })
      t.same(await call(mcp, specOf(rig)), RAN, JSON.stringify(body))
    }
    rig.on('tools/call', ({ rpc, stream }) =>
      stream().send({ id: rpc.id, result: null, error: 'No such table' }),
    )
    const failed = { kind: 'protocol', sent: true, rpcCode: -32603, message: 'rig: No such table' }
    await fails(t, call(mcp, specOf(rig)), failed)
  }
})

t.test('what a server says unasked is read without the members that are null', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era)
    const mcp = door(t, { announceMs: 1 })
    const heard: string[] = []
    mcp.onListChanged((key) => heard.push(key))
    await list(mcp, specOf(rig))
    for (const odd of [{ params: null }, { params: [] }, { params: { _meta: null } }, { id: null }]) {
      rig.on('tools/call', ({ rpc, stream }) => {
        const { send, reply } = stream()
        send({ method: 'notifications/tools/list_changed', ...odd })
        const { progressToken } = rpc.params._meta
        const params = { progressToken, progress: 1, total: null, message: null }
        send({ method: 'notifications/progress', params })
        reply({ resultType: 'complete', ...RAN })
      })
      const progress: unknown[] = []
      const before = heard.length
      await call(mcp, specOf(rig), 'tool', {}, { onProgress: (one) => void progress.push(one) })
      t.same(progress, [{ progress: 1 }])
      await eventually(() => heard.length > before)
    }
  }
  const rig = await startRig(t)
  rig.on('tools/call', ({ stream }) => {
    const { send, reply } = stream()
    send({ id: 'question', method: 'ping', params: null })
    reply(RAN)
  })
  await call(door(t), specOf(rig))
  await eventually(() => rig.asked.some(({ rpc }) => rpc?.id === 'question'))
})

t.test('so it is in the stream of the old SSE transport', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  let say = (_: object): void => {}
  rig.on('GET', ({ stream }) => {
    const events = stream()
    events.raw('event: endpoint\r\ndata: /messages\r\n\r\n')
    say = events.send
  })
  const answer = (method: string, body: object) =>
    rig.on(method, ({ rpc, status }) => {
      status(202)
      say({ id: rpc.id, ...body })
    })
  const serverInfo = { name: 'rig', version: '1' }
  answer('initialize', {
    result: { protocolVersion: '2024-11-05', capabilities: {}, serverInfo },
    error: null,
  })
  for (const body of ODD) {
    answer('tools/call', body)
    t.same(await call(mcp, specOf(rig, { transport: 'sse' })), RAN, JSON.stringify(body))
  }
})

t.test('an answer whose event has no end is read, and no part of one is', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  await list(mcp, specOf(rig))
  const sends = (isOver: boolean, written: (json: string) => string) =>
    rig.on('tools/call', ({ rpc, stream, response }) => {
      stream().raw(written(JSON.stringify({ jsonrpc: '2.0', id: rpc.id, result: RAN })))
      if (isOver) response.end()
    })
  for (const isOver of [true, false])
    for (const end of ['\n', '\r\n', '\nid: 7\n', '\n\n']) {
      sends(isOver, (json) => `event: message\ndata:${json}${end}`)
      t.same(await call(mcp, specOf(rig)), RAN, JSON.stringify(end))
    }
  sends(true, (json) => `data: ${json}`)
  t.same(await call(mcp, specOf(rig)), RAN, 'the last line has no end')
  sends(true, (json) => `data: ${json.slice(0, -1)}\ndata: }\n\n`)
  t.same(await call(mcp, specOf(rig)), RAN, 'an answer over two lines')
  sends(true, (json) => `data: ${json.slice(0, -1)}`)
  await fails(t, call(mcp, specOf(rig)), { kind: 'disconnected', sent: true })
})

t.test('an event stream that comes with status 202 is read', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era)
    const mcp = door(t)
    await list(mcp, specOf(rig))
    rig.on('tools/call', ({ rpc, response }) => {
      response.writeHead(202, { 'content-type': 'text/event-stream' })
      const answer = { jsonrpc: '2.0', id: rpc.id, result: { ...RAN, resultType: 'complete' } }
      response.end(`event: message\ndata: ${JSON.stringify(answer)}\n\n`)
    })
    t.same(await call(mcp, specOf(rig)), RAN, era)
  }
})

t.test('a server of an older revision may name any resultType', async (t) => {
  const rig = await startRig(t)
  for (const resultType of ['complete', 'task', 'input_required']) {
    rig.on('tools/call', ({ reply }) => reply({ resultType, content: [{ type: 'text', text: 'ran' }] }))
    t.same(await call(door(t), specOf(rig)), RAN, resultType)
  }
})

t.test('an answer that gives the id of its request as text is read like any other', async (t) => {
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

t.test('an error answer is a protocol failure, and a refused call counts as not sent', async (t) => {
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
  t.same(mcp.status('server:1'), { state: 'ready' }, 'a failed call does not change the server’s status')
  rig.on('tools/call', ({ fail }) => fail(-32603, ''))
  await fails(t, call(mcp, specOf(rig)), { message: 'rig: error -32603, without a word' })
})

t.test('an error that asks for a visit to a page names the page', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  await list(mcp, specOf(rig))
  const url = `https://login.example/authorize?request_uri=${'x'.repeat(2_000)}`
  const asked = [
    { mode: 'url', elicitationId: '1', url, message: 'Please log in' },
    { url: 'javascript:1' },
    null,
  ]
  for (const status of [200, 400]) {
    rig.on('tools/call', ({ fail }) =>
      fail(-32042, 'This request requires more information.', status, { elicitations: asked }),
    )
    const told = `rig: This request requires more information. ${url}`
    await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: false, rpcCode: -32042, message: told })
  }
  for (const data of [undefined, {}, { elicitations: null }]) {
    rig.on('tools/call', ({ fail }) => fail(-32042, 'More', 200, data))
    await fails(t, call(mcp, specOf(rig)), { message: 'rig: More' }, JSON.stringify(data))
  }
})

t.test(
  'the words of a call are not in the status that every owner of a configured server reads',
  async (t) => {
    const rig = await startRig(t)
    const mcp = door(t)
    rig.on('tools/call', ({ rpc, fail }) => fail(-32000, `no room for ${rpc.params.arguments.text}`, 503))
    for (const [key, isConfigured, error] of [
      ['own', false, 'rig answered HTTP 503: no room for a secret wish'],
      ['shared', true, 'rig: a call failed (unavailable).'],
    ] as const) {
      const made = call(mcp, specOf(rig, { key, isConfigured }), 'tool', { text: 'a secret wish' })
      await fails(t, made, { message: /a secret wish/ }, 'the caller itself is told')
      t.same(mcp.status(key), { state: 'ready', error })
    }
  },
)

t.test('an error answer says the same whatever HTTP status it comes with', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  for (const status of [200, 400, 422, 500]) {
    rig.on('tools/call', ({ fail }) => fail(-32602, 'Unknown tool', status))
    const refused = { kind: 'protocol', sent: false, rpcCode: -32602, message: 'rig: Unknown tool' }
    await fails(t, call(mcp, specOf(rig)), refused, `${status}`)
    rig.on('tools/call', ({ fail }) => fail(-32603, 'No such table', status))
    const failed = { kind: 'protocol', sent: true, rpcCode: -32603, message: 'rig: No such table' }
    await fails(t, call(mcp, specOf(rig)), failed, `${status}`)
  }
  rig.on('tools/call', ({ fail }) => fail(-32603, 'No replica', 503))
  await fails(t, call(mcp, specOf(rig)), {
    kind: 'unavailable',
    message: 'rig answered HTTP 503: No replica',
  })
})

t.test('an error answer that names no request is of the request that it comes back to', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  await list(mcp, specOf(rig))
  const error = { code: -32602, message: 'Unknown tool' }
  const refused = { kind: 'protocol', sent: false, rpcCode: -32602, message: 'rig: Unknown tool' }
  for (const answer of [{ error }, { id: null, error, result: null }]) {
    const said = JSON.stringify({ jsonrpc: '2.0', ...answer })
    rig.on('tools/call', ({ status }) => status(200, { 'content-type': 'application/json' }, said))
    await fails(t, call(mcp, specOf(rig)), refused, said)
    // The stream stays open, as it does at some servers.
    rig.on('tools/call', ({ stream }) => stream().raw(`data: ${said}\n\n`))
    await fails(t, call(mcp, specOf(rig)), refused, `${said} in a stream`)
  }
})

t.test('a refusal that is made to be read slowly is read at once', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  await list(mcp, specOf(rig))
  // Half a minute, if each of these were read to the end of the body.
  const body = ' (redirectPolicy: '.repeat(40_000)
  rig.on('tools/call', ({ response }) => void response.writeHead(500).end(body))
  const { user } = process.cpuUsage()
  await fails(t, call(mcp, specOf(rig)), { kind: 'unavailable', message: 'rig answered HTTP 500.' })
  t.ok(process.cpuUsage({ user, system: 0 }).user < 5_000_000)
})

t.test(
  'an error tells in one line what a server said in its refusal, or where its answer does not fit',
  async (t) => {
    const rig = await startRig(t)
    const mcp = door(t)
    rig.on('tools/call', ({ response }) => void response.writeHead(400).end('no such header'))
    await fails(t, call(mcp, specOf(rig)), { message: 'rig answered HTTP 400: no such header', sent: true })
    rig.on('tools/call', ({ response }) => void response.writeHead(409).end())
    await fails(t, call(mcp, specOf(rig)), { message: 'rig answered HTTP 409', sent: true })
    rig.on('tools/call', ({ status }) => status(301, { location: '/elsewhere' }))
    await fails(t, call(mcp, specOf(rig)), {
      message: /^rig answered HTTP 301: Redirect to .*server$/,
      sent: true,
    })
    rig.on('tools/list', ({ reply }) => reply({ tools: { length: 1 } }))
    await fails(t, list(mcp, specOf(rig), true), {
      kind: 'protocol',
      message: 'rig: Invalid result for tools/list: tools: Invalid input: expected array, received object',
    })
  },
)

t.test('a server that quotes its request gives none of the operator’s secrets away', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const bare = specOf(rig)
  const own = {
    url: `${bare.url}/key-within-the-path/mcp?key=qu%2fery-secret&v=2`,
    headers: { 'x-api-key': 'header-secret', 'x-region': 'eu-central' },
  }
  const spec = { ...bare, ...own, isConfigured: true }
  rig.on('tools/call', ({ request, fail }) => fail(-32603, `${request.url} and qu/ery-secret failed, v=2`))
  const failure = await call(mcp, spec).catch((error: McpError) => error)
  t.match(failure, { message: 'rig: *** and *** failed, v=2' })
  t.equal((failure as McpError).kind, 'protocol')
  t.notMatch((failure as McpError).message, /ery-secret/)
  rig.on('tools/call', ({ fail }) => fail(-32603, `${'x'.repeat(491)} header-secret`))
  const long = await call(mcp, spec).catch((error: McpError) => error)
  t.match(long, { message: /x \*\*\*$/ }, 'a cut message does not end in half a secret')

  rig.on('tools/call', ({ status }) => status(308, { location: 'https://other.test/s/key7/mcp?v=2' }))
  const short = { ...spec, key: 'short', url: new URL('/s/key7/mcp?v=2', rig.url).href }
  await fails(
    t,
    call(mcp, short),
    { message: /https:\/\/other\.test\*\*\* not followed/ },
    'a short key in the path',
  )

  rig.on('tools/call', ({ request, reply }) => {
    const text = `sent "${request.headers['x-api-key']}" to ${request.headers['x-region']}`
    reply({ content: [{ type: 'text', text }], structuredContent: { headers: request.headers } })
  })
  t.match(await call(mcp, spec), {
    content: [{ type: 'text', text: 'sent "***" to eu-central' }],
    structured: { headers: { 'x-api-key': '***', 'x-region': 'eu-central' } },
  })

  rig.on('tools/call', ({ request, reply }) => {
    const text = `sent ${request.headers['x-api-key']}`
    reply({ content: [{ type: 'text', text }], structuredContent: { many: Array(200_001).fill(1) } })
  })
  t.match(
    await call(mcp, spec),
    { content: [{ type: 'text', text: 'sent ***' }] },
    'a secret is masked beside a result that is too large',
  )
})

t.test("a configured server's definitions, progress and variables give no secret away", async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const bare = specOf(rig)
  const given = {
    url: `${bare.url}?key=query-secret&region=eu-central`,
    headers: { 'x-api-key': 'header-secret', 'x-bf-vk': 'virtual-key' },
    env: {
      APP_TOKEN: 'variable-secret',
      DB_PWD: 'variable-pwd',
      GITHUB_PAT: 'variable-pat',
      CREDENTIALS: 'variable-credentials',
      DB: 'postgres://u:hunter22@db/x',
      FORMAT: 'production',
    },
  }
  const all = [
    ...Object.values(given.headers),
    'query-secret',
    ...Object.values(given.env),
    'eu-central',
  ].join(' ')
  rig.tools = [{ ...TOOL, description: all }]
  rig.on('tools/call', ({ rpc, stream }) => {
    const { send, reply } = stream()
    const params = { progressToken: rpc.params._meta.progressToken, progress: 1, message: all }
    send({ method: 'notifications/progress', params })
    const resource = { uri: all, blob: 'aGVsbG8=', mimeType: 'image/png' }
    reply({
      content: [
        { type: 'text', text: all },
        { type: 'resource', resource },
      ],
    })
  })
  const read = async (spec: typeof bare) => {
    const progress: unknown[] = []
    const { tools } = await mcp.list(spec, { timeoutMs: 5_000 })
    const result = await call(
      mcp,
      spec,
      'tool',
      {},
      { onProgress: ({ message }) => void progress.push(message) },
    )
    const said = result.content.map((part) => (part.type === 'text' ? part.text : part.name))
    return [tools[0]?.description, ...progress, ...said]
  }
  const clean = '*** *** *** *** *** *** *** *** production eu-central'
  t.same(await read({ ...bare, ...given, isConfigured: true }), [clean, clean, clean, clean])
  t.same(
    await read({ ...bare, ...given, key: 'own' }),
    [all, all, all, all],
    'owners may read their own secrets',
  )
})

t.test('a call waits once for a short rate limit, and reports a long one', async (t) => {
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
  const sent = rig.count('tools/call')
  await fails(t, call(mcp, specOf(rig)), { kind: 'unavailable', sent: false, retryAfterMs: 7_000 })
  t.equal(rig.count('tools/call'), sent + 1, 'a long one is not waited for')
  rig.on('tools/call', ({ status }) => status(503, { 'retry-after': '1' }))
  await fails(t, call(mcp, specOf(rig)), { kind: 'unavailable', sent: true, retryAfterMs: 1_000 })
  t.equal(rig.count('tools/call'), sent + 2, 'a server that is away may have run the call')
  const limited = new BatonError('upstream_overloaded', 'The login service is away.', { retryAfter: 60 })
  const auth = { token: () => Promise.reject(limited) }
  const login = { kind: 'unavailable', sent: false, message: /login service/, retryAfterMs: 60_000 } as const
  await fails(t, call(mcp, specOf(rig, { key: 'server:2', auth })), login)
})

t.test('arguments are mirrored into headers, after a mismatch as the newer schema says', async (t) => {
  const rig = await startRig(t, 'modern')
  const withHeader = (header: string): object => ({
    ...TOOL,
    inputSchema: { type: 'object', properties: { region: { type: 'string', 'x-mcp-header': header } } },
  })
  rig.tools = [withHeader('Old'), { ...withHeader('not a token'), name: 'broken' }]
  const mcp = door(t)
  const { tools, left_out } = await list(mcp, specOf(rig))
  t.same(
    tools.map(({ name }) => name),
    ['tool'],
  )
  t.match(left_out, [{ tool: 'broken', problem: /x-mcp-header/ }])
  rig.tools = [withHeader('Region')]
  rig.on('tools/call', ({ request, reply, fail }) => {
    if (request.headers['mcp-param-region'] !== 'eu') return fail(-32020, 'Header mismatch', 400)
    reply({ resultType: 'complete', content: [{ type: 'text', text: 'ran' }] })
  })
  t.same(await call(mcp, specOf(rig), 'tool', { region: 'eu' }), RAN)
  t.equal(rig.count('tools/call'), 2)
})

t.test('a call that is given up while the newer schema is read has not run', async (t) => {
  const rig = await startRig(t, 'modern')
  const mcp = door(t)
  await list(mcp, specOf(rig))
  rig.on('tools/call', ({ fail }) => fail(-32020, 'Header mismatch', 400))
  rig.on('tools/list', () => {})
  const leaving = new AbortController()
  const left = call(mcp, specOf(rig), 'tool', {}, { signal: leaving.signal })
  await rig.arrival('tools/list', 2)
  leaving.abort()
  await fails(t, left, { kind: 'cancelled', sent: false })
  t.equal(rig.count('tools/call'), 1)
})

t.test('a modern server is called with the list that is known, and not without a list', async (t) => {
  const rig = await startRig(t, 'modern')
  const mcp = door(t)
  rig.on('tools/list', ({ fail }) => fail(-32603, 'The list is out of order'))
  await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: false })
  t.equal(rig.count('tools/call'), 0)
  const short = { resultType: 'complete', ttlMs: 1, cacheScope: 'private', tools: rig.tools }
  rig.on('tools/list', ({ reply }) => reply(short))
  await list(mcp, specOf(rig))
  const lists = rig.count('tools/list')
  rig.on('tools/list', () => {})
  await sleep(5)
  t.same(await call(mcp, specOf(rig)), RAN, 'an old list serves, too')
  t.equal(rig.count('tools/list'), lists)
})

t.test('a server’s request for a capability that was not declared is refused', async (t) => {
  const rig = await startRig(t)
  const answered = new Promise<unknown>((resolve) =>
    rig.on('tools/call', ({ stream, response }) => {
      const { send, reply } = stream()
      send({ id: 'question', method: 'sampling/createMessage', params: { messages: [], maxTokens: 1 } })
      const wait = setInterval(() => {
        // An answer has no method, so the rig records it as a POST without a method.
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

t.test('the failure of a modern tool that asks for input says that the call may have begun', async (t) => {
  const rig = await startRig(t, 'modern')
  for (const method of ['elicitation/create', 'sampling/createMessage', 'roots/list']) {
    const params = { message: 'Which?', requestedSchema: { type: 'object', properties: {} } }
    rig.on('tools/call', ({ reply }) =>
      reply({ resultType: 'input_required', inputRequests: { which: { method, params } } }),
    )
    const failed = { kind: 'protocol', sent: true, message: /^rig: the tool asks for input/ }
    await fails(t, call(door(t), specOf(rig)), failed, method)
  }
})
