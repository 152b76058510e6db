/** Servers over HTTP, well-behaved and hostile (the cases were seen in the wild; raw servers in servers/rig.ts). */
import { getEventListeners } from 'node:events'
import { mock } from 'node:test'
import t, { type Test } from 'tap'
import { openConnection } from '../../src/mcp/connection.ts'
import { exchanges } from '../../src/mcp/exchange.ts'
import { createWatchdog } from '../../src/mcp/watchdog.ts'
import type { ConnectionContext } from '../../src/mcp/wire.ts'
import { USER_AGENT } from '../../src/version.ts'
import { collect, held } from '../memory.ts'
import { NONE } from '../patterns.ts'
import { eventually } from '../waiting.ts'
import { call, door, fails, list, PATIENCE, RAN, specOf } from './door.ts'
import { type Exchange, modernAnswers, startRig, TOOL } from './servers/rig.ts'

/** With which a server answers what it does not know; from 2026-07-28 on with 404 */
const UNKNOWN = [200, 404]

for (const era of ['legacy', 'modern'] as const)
  t.test(`${era}: the client lists, calls and declares no capabilities`, async (t) => {
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
      left_out: NONE,
      hash: /^[0-9a-f]{64}$/,
    })
    t.same(await call(mcp, spec), RAN)
    t.equal(mcp.cached(spec.key), tools)
    t.same(mcp.status(spec.key), { state: 'ready' })
    for (const { headers, http } of rig.asked) {
      t.equal(headers['x-api-key'], 'k1')
      t.equal(headers.authorization, 'Bearer token-1')
      t.equal(headers['user-agent'], USER_AGENT)
      t.equal(http, 'POST', 'no GET stream is opened without interest')
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
    t.equal(rig.count('DELETE'), era === 'legacy' ? 1 : 0, 'closing ends the session')
    await fails(t, call(mcp, spec), { kind: 'unavailable', sent: false })
  })

t.test('odd members of the answer to initialize cost neither the server nor its tools', async (t) => {
  const sound = {
    protocolVersion: '2025-06-18',
    capabilities: { tools: {} },
    serverInfo: { name: 'odd', version: '1' },
  }
  const greetings: Record<string, [answer: object, server: object]> = {
    'a null': [{ ...sound, instructions: null }, {}],
    'capabilities that are null': [{ ...sound, capabilities: { tools: {}, prompts: null, logging: [] } }, {}],
    'an empty list of PHP': [{ ...sound, capabilities: { tools: [] } }, {}],
    'the tools themselves': [{ ...sound, capabilities: { tools: [TOOL] } }, {}],
    'no capabilities': [{ ...sound, capabilities: undefined }, {}],
    'empty capabilities': [{ ...sound, capabilities: {} }, {}],
    'no name': [
      { ...sound, serverInfo: { title: null } },
      { name: 'rig', version: '' },
    ],
    'a version that is a number': [
      { ...sound, serverInfo: { name: 'odd', version: 1.5 } },
      { version: '1.5' },
    ],
    'no revision': [{ ...sound, protocolVersion: undefined }, { protocol_version: '2024-11-05' }],
  }
  for (const [what, [answer, server]] of Object.entries(greetings)) {
    const rig = await startRig(t)
    rig.on('initialize', ({ reply }) => reply(answer))
    const listed = await list(door(t), specOf(rig))
    t.match(listed, { tools: [TOOL], server: { name: 'odd', ...server } }, what)
  }
  const rig = await startRig(t)
  rig.on('initialize', ({ reply }) => reply({ ...sound, capabilities: { tools: null } }))
  t.same((await list(door(t), specOf(rig))).tools, [], 'null means that there are no tools')
})

t.test('a server that says of no tools, and knows no list of them, is one without tools', async (t) => {
  for (const status of UNKNOWN) {
    const rig = await startRig(t, 'modern')
    const said = { resultType: 'complete', supportedVersions: ['2026-07-28'], capabilities: {} }
    rig.on('server/discover', ({ reply }) => reply({ ...said, ttlMs: 0, cacheScope: 'private' }))
    rig.on('tools/list', ({ fail }) => fail(-32601, 'Method not found', status))
    t.same((await list(door(t), specOf(rig))).tools, [], `${status}`)
  }
  for (const capabilities of [{}, { tools: {} }]) {
    const rig = await startRig(t)
    rig.on('initialize', ({ reply }) =>
      reply({ protocolVersion: '2025-06-18', capabilities, serverInfo: {} }),
    )
    rig.on('tools/list', ({ fail }) => fail(-32601, 'Method not found'))
    const mcp = door(t)
    if ('tools' in capabilities) await fails(t, list(mcp, specOf(rig)), { rpcCode: -32601 })
    else t.same((await list(mcp, specOf(rig))).tools, [])
  }
})

t.test(
  'a server of the newer revision is known by the name that it gives beside the rest, too',
  async (t) => {
    const rig = await startRig(t, 'modern')
    const answer = { resultType: 'complete', supportedVersions: ['2026-07-28'], capabilities: { tools: {} } }
    rig.on('server/discover', ({ reply }) =>
      reply({ ...answer, serverInfo: { name: 'drafted', version: '3' } }),
    )
    t.match(await list(door(t), specOf(rig)), { server: { name: 'drafted', version: '3' } })
  },
)

t.test('a server that declares other things than tools is not asked for its list', async (t) => {
  const rig = await startRig(t)
  const serverInfo = { name: `bare\n\u202e${'x'.repeat(1_000_000)}`, version: '0' }
  const capabilities = { prompts: {} }
  rig.on('initialize', ({ reply }) => reply({ protocolVersion: '2025-03-26', capabilities, serverInfo }))
  const { tools, server } = await list(door(t), specOf(rig))
  t.match(tools, NONE)
  t.match(
    server,
    { name: /^bare x{300,400}…$/, protocol_version: '2025-03-26' },
    'the server’s name is cut to a line',
  )
  t.equal(rig.count('tools/list'), 0)
})

t.test('a refused token is renewed once, and without renewal the server is `auth_required`', async (t) => {
  const rig = await startRig(t)
  let token = 'old'
  let renewals = 0
  const accepts = new Set(['new'])
  for (const method of ['server/discover', 'tools/call'])
    rig.on(method, ({ request, status, reply, fail }) => {
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
  t.same(await call(mcp, specOf(rig, { auth })), RAN, 'the first call after a login is not held back')
  t.same(mcp.status('server:1'), { state: 'ready' })
})

t.test('each of several calls that are refused at once names the token that was refused', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  let token = 'old'
  const told: (string | undefined)[] = []
  const auth = {
    token: async () => token,
    onUnauthorized: async (refused: string | undefined) => {
      told.push(refused)
      await rig.arrival('tools/call', 8)
      token = 'new'
    },
  }
  await list(mcp, specOf(rig, { auth }))
  rig.on('tools/call', ({ request, reply, status }) =>
    request.headers.authorization === 'Bearer new' ? reply({ content: [] }) : status(401),
  )
  await Promise.all(Array.from({ length: 8 }, () => call(mcp, specOf(rig, { auth }))))
  t.same(told, new Array(8).fill('old'))
})

t.test('a token that is refused after a rate limit is renewed, too', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  let token = 'old'
  const auth = {
    token: async () => token,
    onUnauthorized: async () => {
      token = 'new'
    },
  }
  await list(mcp, specOf(rig, { auth }))
  let isLimited = true
  rig.on('tools/call', ({ request, reply, status }) => {
    if (request.headers.authorization === 'Bearer new') return reply(RAN)
    if (!isLimited) return status(401)
    isLimited = false
    status(429, { 'retry-after': '0' })
  })
  await call(mcp, specOf(rig, { auth }))
  t.equal(token, 'new')
})

t.test('the old SSE transport distinguishes a refused credential from a server that is away', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  rig.on('GET', ({ status }) => status(401))
  const spec = specOf(rig, { transport: 'sse' })
  await fails(t, list(mcp, spec), { kind: 'auth_required', sent: false })
  rig.on('GET', ({ status }) => status(404))
  const misplaced = /HTTP 404\. \[Check its url, and whether its transport is streamable_http\.\]$/
  await fails(t, list(mcp, { ...spec, key: 'server:2' }), { kind: 'unavailable', message: misplaced })
  rig.on('GET', ({ stream }) => stream().raw('event: endpoint\ndata: /messages\n\n'))
  rig.on('initialize', ({ status }) => status(401))
  await fails(t, list(mcp, { ...spec, key: 'server:3' }), { kind: 'auth_required', sent: false })
  rig.on('GET', () => {})
  const hasty = door(t, { connectMs: { http: 100, stdio: 100 } })
  await fails(t, list(hasty, { ...spec, key: 'server:4' }), { kind: 'timeout', sent: false })
})

t.test('an address of the old SSE transport is told as such', async (t) => {
  const rig = await startRig(t)
  for (const method of ['server/discover', 'initialize']) rig.on(method, ({ status }) => status(405))
  const message = 'rig answered HTTP 405. [Check its url, and whether its transport is sse.]'
  await fails(t, list(door(t), specOf(rig)), { kind: 'unavailable', message })
})

t.test('a server without TLS that is asked by https is told as such', async (t) => {
  const rig = await startRig(t)
  const spec = specOf(rig)
  const url = spec.url?.replace('http:', 'https:') ?? ''
  const message = 'rig does not answer with TLS: its url may want http://.'
  await fails(t, list(door(t), { ...spec, url }), { kind: 'unavailable', message })
})

/** A rig in the transport of 2024-11-05, and a way to cut its stream. */
async function startOldRig(t: Test) {
  const rig = await startRig(t)
  let say = (_: object): void => {}
  let cut = (): void => {}
  rig.on('GET', ({ stream, response }) => {
    const events = stream()
    events.raw('event: endpoint\ndata: /messages\n\n')
    say = events.send
    cut = () => response.destroy()
  })
  const answer = (method: string, result: (params: { protocolVersion: string }) => object) =>
    rig.on(method, ({ rpc, status }) => {
      status(202)
      say({ id: rpc.id, result: result(rpc.params) })
    })
  answer('initialize', ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: 'rig', version: '1' },
  }))
  answer('tools/list', () => ({ tools: [TOOL] }))
  answer('tools/call', () => ({ content: [] }))
  return { rig, answer, cut: () => cut() }
}

t.test('a session of the old SSE transport ends with its stream, and a new one is opened', async (t) => {
  const { rig, cut } = await startOldRig(t)
  const mcp = door(t)
  const spec = specOf(rig, { transport: 'sse' })
  await call(mcp, spec)
  cut()
  await eventually(() => mcp.status(spec.key).state !== 'ready')
  await call(mcp, spec)
  t.equal(rig.count('initialize'), 2)
})

t.test('a session that a server of the old SSE transport has forgotten is opened anew', async (t) => {
  for (const refusal of [400, 404, 500]) {
    const { rig, answer } = await startOldRig(t)
    const mcp = door(t)
    const spec = specOf(rig, { transport: 'sse' })
    await call(mcp, spec)
    rig.on('tools/call', ({ status }) => {
      status(refusal)
      answer('tools/call', () => RAN)
    })
    // The server may have run the call before it failed.
    if (refusal === 500) await fails(t, call(mcp, spec), { sent: true })
    else t.same(await call(mcp, spec), RAN, `${refusal}`)
    t.equal(rig.count('initialize'), refusal === 500 ? 1 : 2, `${refusal}`)
  }
})

t.test(
  'an attempt that was given up while its stream names no address leaves no exchange open',
  async (t) => {
    const rig = await startRig(t)
    rig.on(
      'GET',
      ({ response }) => void response.writeHead(200, { 'content-type': 'text/event-stream' }).write(':\n\n'),
    )
    const mcp = door(t, { connectMs: { http: 300, stdio: 300 } })
    await fails(t, list(mcp, specOf(rig, { transport: 'sse' })), { kind: 'timeout' })
    // Node 20 and 22 have this property: while it is true, every promise of the process takes longer.
    t.notOk((exchanges as { enabled?: boolean }).enabled)
  },
)

const contextOf = (ending: AbortController, onClose = () => {}): ConnectionContext => ({
  fetch: (url: string | URL, init?: RequestInit) => fetch(url, init),
  maxBytes: 1_000_000,
  watchdog: createWatchdog(),
  allowStdio: false,
  sandbox: null,
  onListChanged() {},
  onClose,
  closing() {},
  ending: ending.signal,
})

t.test('a server that knows no channel of the newer revision is not asked for it again', async (t) => {
  for (const [code, status] of [
    [-32601, 200],
    [-32601, 404],
    // The last two speak only older revisions.
    [-32022, 400],
    [-32600, 422],
  ] as const) {
    const rig = await startRig(t, 'modern')
    rig.on('subscriptions/listen', ({ fail }) => fail(code, 'Refused', status))
    const made = await openConnection(specOf(rig), contextOf(new AbortController()), null, PATIENCE)
    const { signal } = new AbortController()
    t.same(
      await made.listen(signal, {}, () => t.fail('it is not open')),
      { isUnsupported: true },
      `${code} ${status}`,
    )
    rig.on('subscriptions/listen', ({ fail }) => fail(-32603, 'Too many streams'))
    await t.rejects(
      made.listen(signal, {}, () => {}),
      /Too many streams/,
      'what may pass is tried again',
    )
    await made.close()
  }
})

t.test('a connection that is made depends no more on what its attempt depended on', async (t) => {
  const { rig } = await startOldRig(t)
  const ending = new AbortController()
  let isClosed = false
  const context = contextOf(ending, () => {
    isClosed = true
  })
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const made = await openConnection(specOf(rig, { transport: 'sse' }), context, null, 10_000)
  mock.timers.tick(10_000)
  mock.timers.reset()
  const { signal } = new AbortController()
  t.match(
    await made.list({ timeoutMs: PATIENCE, signal }),
    { tools: [TOOL] },
    'the time for connecting is over',
  )
  t.notOk(isClosed)
  t.same(getEventListeners(ending.signal, 'abort'), [], 'each connection would leave a listener behind')
  await made.close()
})

t.test('many callers that ask at once share one connection and one list request', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const lists = await Promise.all(Array.from({ length: 10 }, () => list(mcp, specOf(rig))))
  t.equal(new Set(lists).size, 1)
  t.equal(rig.count('initialize'), 1)
  t.equal(rig.count('tools/list'), 1)
  await list(mcp, specOf(rig))
  t.equal(rig.count('tools/list'), 1, 'a fresh list comes from the cache')
  await list(mcp, specOf(rig), true)
  t.equal(rig.count('tools/list'), 2)
})

t.test('a caller waits for a slow server only for its timeout, and a later one gets the list', async (t) => {
  const rig = await startRig(t)
  let release = (): void => {}
  rig.on('tools/list', ({ reply }) => {
    release = () => reply({ tools: [TOOL] })
  })
  const mcp = door(t)
  await fails(t, mcp.list(specOf(rig), { timeoutMs: 100 }), { kind: 'timeout', sent: false })
  t.equal(mcp.cached('server:1'), null)
  await rig.arrival('tools/list')
  const joined = list(mcp, specOf(rig))
  release()
  t.match(await joined, { tools: [TOOL] })
  t.equal(rig.count('tools/list'), 1, 'the request that was made for the first caller serves the second')
  t.match(mcp.cached('server:1'), { tools: [TOOL] })
})

t.test('the guard refuses private addresses of every server that is not exempt', async (t) => {
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

t.test('a redirect to another origin is refused, and nothing is sent there', async (t) => {
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

t.test('a server that fails at the probe is asked in the older revision', async (t) => {
  for (const choke of ['500', 'html', '202', '401', '403'] as const) {
    const rig = await startRig(t)
    rig.on('server/discover', ({ status }) => {
      if (choke === 'html') return status(200, { 'content-type': 'text/html' }, '<p>')
      status(Number(choke))
    })
    t.match(await list(door(t), specOf(rig)), { server: { protocol_version: '2025-11-25' } }, choke)
  }
  const rig = await startRig(t)
  for (const outage of [502, 503, 504]) {
    rig.on('server/discover', ({ status }) => status(outage))
    await fails(t, list(door(t), specOf(rig)), { kind: 'unavailable' }, `${outage}`)
  }
  t.equal(rig.count('initialize'), 0, 'an outage does not count as an answer about the revision')
})

t.test('a server that denies access in either revision is reported by that denial', async (t) => {
  const denied = { kind: 'auth_required', sent: false, message: /HTTP 403/ } as const
  const rig = await startRig(t, 'modern')
  rig.on('server/discover', ({ status }) => status(403))
  for (const status of UNKNOWN) {
    rig.on('initialize', ({ fail }) => fail(-32601, 'Method not found', status))
    await fails(t, list(door(t), specOf(rig)), denied, `the server knows the newer revision only (${status})`)
  }
  rig.on('initialize', ({ status }) => status(403))
  await fails(t, list(door(t), specOf(rig)), denied, 'the server denies all')
  const login = { token: async () => 'old', onUnauthorized: async () => {} }
  rig.on('server/discover', ({ status }) => status(401))
  await fails(t, list(door(t), specOf(rig, { auth: login })), { kind: 'auth_required' })
  t.equal(rig.count('initialize'), 3, 'a login is not asked for another token in each revision')
})

t.test('a server that refuses to hear that the client is ready is used all the same', async (t) => {
  for (const refusal of [400, 404, 405]) {
    const rig = await startRig(t)
    rig.on('notifications/initialized', ({ status }) => status(refusal))
    t.same(await call(door(t), specOf(rig)), RAN, `${refusal}`)
  }
  for (const [refusal, kind] of [
    [401, 'auth_required'],
    [403, 'auth_required'],
    [503, 'unavailable'],
  ] as const) {
    const rig = await startRig(t)
    rig.on('notifications/initialized', ({ status }) => status(refusal))
    await fails(t, call(door(t), specOf(rig)), { kind, sent: false }, `${refusal}`)
  }
})

t.test(
  'a server that never ends its answer to hearing that the client is ready is used all the same',
  async (t) => {
    const rig = await startRig(t)
    for (const answer of [() => {}, ({ stream }: Exchange) => void stream()]) {
      rig.on('notifications/initialized', answer)
      t.same(await call(door(t), specOf(rig)), RAN)
    }
  },
)

t.test('a server that speaks none of our revisions is reported as such', async (t) => {
  const failed = {
    kind: 'protocol',
    sent: false,
    message: /^rig speaks no protocol revision that Baton does/,
  } as const
  for (const status of UNKNOWN) {
    const rig = await startRig(t)
    rig.on('initialize', ({ fail }) => fail(-32601, 'Method not found', status))
    await fails(t, list(door(t), specOf(rig)), failed, `the server speaks no revision (${status})`)
    const newer = { resultType: 'complete', supportedVersions: ['2099-01-01'], capabilities: {} }
    rig.on('server/discover', ({ reply }) => reply({ ...newer, ttlMs: 0, cacheScope: 'private' }))
    await fails(t, list(door(t), specOf(rig)), failed, `the server speaks a newer revision (${status})`)
  }
})

t.test(
  'a server that does not answer the probe is asked in the older revision within the same attempt',
  async (t) => {
    const rig = await startRig(t)
    rig.on('server/discover', () => {})
    const mcp = door(t, { connectMs: { http: 2_500, stdio: 2_500 } })
    t.match(await list(mcp, specOf(rig)), { server: { protocol_version: '2025-11-25' } })
    t.equal(rig.count('server/discover'), 1)
  },
)

t.test(
  'a server that hangs in the newer revision, which it claims to speak, is asked in the older one',
  async (t) => {
    const rig = await startRig(t)
    const answers = modernAnswers(rig)
    rig.on('server/discover', (asked) => answers['server/discover']?.(asked))
    rig.on('tools/list', ({ rpc, reply }) => {
      if (rpc.params?._meta === undefined) reply({ tools: rig.tools })
    })
    const mcp = door(t, { connectMs: { http: 300, stdio: 300 }, attemptMs: 60_000 })
    const anew = { timeoutMs: PATIENCE, insists: true }
    for (const _ of [1, 2, 3]) await fails(t, list(mcp, specOf(rig)), { kind: 'timeout' })
    t.equal(rig.count('initialize'), 0, 'a server that hangs may just be slow')
    t.match(await mcp.list(specOf(rig), anew), { server: { protocol_version: '2025-11-25' }, tools: [TOOL] })

    const slow = await startRig(t, 'modern')
    slow.on('initialize', ({ fail }) => fail(-32601, 'Method not found'))
    slow.on('tools/list', () => {})
    const other = { ...specOf(slow), key: 'slow' }
    for (const _ of [1, 2, 3]) await fails(t, list(mcp, other), { kind: 'timeout' })
    slow.on('tools/list', (asked) => answers['tools/list']?.(asked))
    await fails(t, mcp.list(other, anew), { kind: 'protocol' }, 'the server knows no other revision')
    t.match(
      await mcp.list(other, anew),
      { server: { protocol_version: '2026-07-28' } },
      'the server is asked for its revision anew',
    )
  },
)

t.test('a server of the newer revision alone that was asleep at the probe is asked once more', async (t) => {
  const rig = await startRig(t, 'modern')
  const { 'server/discover': discover } = modernAnswers(rig)
  rig.on('server/discover', (asked) => {
    if (rig.count('initialize') > 0) discover?.(asked)
  })
  rig.on('initialize', ({ fail }) => fail(-32601, 'Method not found'))
  const mcp = door(t, { connectMs: { http: 2_500, stdio: 2_500 } })
  t.match(await list(mcp, specOf(rig)), { server: { protocol_version: '2026-07-28' } })
})

t.test('a slow server that speaks only the newer revision gets more time with each attempt', async (t) => {
  const rig = await startRig(t, 'modern')
  const { 'server/discover': discover } = modernAnswers(rig)
  // Each attempt probes twice; the first probe of the second attempt, which has 1,200 ms, needs more than the first had.
  rig.on('server/discover', (asked) => {
    if (rig.count('server/discover') === 3) setTimeout(() => discover?.(asked), 700)
  })
  rig.on('initialize', ({ fail }) => fail(-32601, 'Method not found'))
  const mcp = door(t, { connectMs: { http: 1_000, stdio: 1_000 }, attemptMs: 60_000 })
  await fails(t, list(mcp, specOf(rig)), { kind: 'timeout', message: /not say in time which/ })
  t.match(await list(mcp, specOf(rig)), { server: { protocol_version: '2026-07-28' } })
})

t.test('a server that is down leaves an error text in memory, not the error itself', async (t) => {
  const mcp = door(t)
  const spec = specOf({ url: 'http://127.0.0.1:1/mcp' })
  const failure = await list(mcp, spec).then(
    () => new WeakRef({}),
    (thrown: object) => new WeakRef(thrown),
  )
  for (let tries = 0; failure.deref() && tries < 20; tries++) await collect()
  t.equal(failure.deref(), undefined, 'the error is collected: its stack holds the client and the transport')
  t.match(mcp.status(spec.key), { state: 'down', error: /rig/ })
})

t.test('of what a server says of itself only as much is kept as is used', async (t) => {
  const rig = await startRig(t, 'modern')
  const own = modernAnswers(rig)['server/discover']
  rig.on('server/discover', (asked) =>
    own?.({
      ...asked,
      reply: (result) => asked.reply({ ...Object(result), instructions: 'x'.repeat(7 << 20) }),
    }),
  )
  const mcp = door(t)
  const before = await held('heapUsed')
  t.match(await list(mcp, specOf(rig)), { server: { name: 'rig', protocol_version: '2026-07-28' } })
  const grown = (await held('heapUsed')) - before
  t.ok(grown < 5 << 20, `the heap grew by ${grown} bytes`)
})
