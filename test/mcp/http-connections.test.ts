/** How long a connection to a server over HTTP lives: opened, lost, idle, given up, closed. */
import { createServer } from 'node:net'
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { CONNECT_MS, McpError } from '../../src/mcp/contract.ts'
import { listening } from '../listening.ts'
import { freePort } from '../servers.ts'
import { eventually } from '../waiting.ts'
import { call, door, fails, list, PATIENCE, RAN, specOf } from './door.ts'
import { type Exchange, legacyAnswers, startRig, TOOL } from './servers/rig.ts'

/** How servers that were restarted refuse requests of an earlier session. */
const LOSSES: Record<string, (exchange: Exchange) => void> = {
  ...Object.fromEntries(
    ['400', '401', '404', '503'].map((loss) => [
      loss,
      ({ status }: Exchange) => status(Number(loss), {}, 'Session not found'),
    ]),
  ),
  '410': ({ status }) => status(410),
  'the official one': ({ fail }) => fail(-32000, 'Bad Request: Server not initialized', 400),
  '422': ({ status }) => status(422, {}, 'Unexpected message, expect initialize request'),
  'an expired one': ({ status }) => status(400, {}, 'Session expired'),
  'an unknown one': ({ status }) => status(503, {}, 'Unknown session'),
  'an answer': ({ fail }) => fail(-32001, 'Session not found'),
  'an answer of a proxy': ({ fail }) => fail(-32600, 'Session not found'),
}

t.test('a lost session is opened anew, and each call runs once', async (t) => {
  for (const [loss, refuse] of Object.entries(LOSSES)) {
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
    rig.on('tools/call', (exchange) => {
      if (exchange.request.headers['mcp-session-id'] !== 'second') return refuse(exchange)
      ran++
      exchange.reply({ content: [] })
    })
    const results = await Promise.all([1, 2, 3, 4].map(() => call(mcp, spec)))
    t.equal(results.length, 4)
    t.equal(ran, 4, `${loss}: each of the parallel calls runs once`)
    t.equal(rig.count('initialize'), 2, `${loss}: all calls share one new session`)
  }
})

t.test('a session whose requests all fail is opened anew after three of them', async (t) => {
  const rig = await startRig(t, 'legacy', 'first')
  const mcp = door(t)
  const spec = specOf(rig)
  await list(mcp, spec)
  rig.on('tools/list', ({ status }) => status(503, {}, 'no healthy upstream'))
  for (let i = 0; i < 3; i++) await fails(t, list(mcp, spec, true), { kind: 'unavailable' })
  t.equal(mcp.status(spec.key).state, 'down')
  rig.on('tools/list', ({ reply }) => reply({ tools: [TOOL] }))
  t.match(await mcp.list(spec, { insists: true, refresh: true }), { tools: [TOOL] })
  t.equal(rig.count('initialize'), 2)
})

t.test('a caller waits until an attempt that takes its whole time can say how it ended', async (t) => {
  const rig = await startRig(t)
  const asked = new Promise<void>((resolve) => rig.on('initialize', () => resolve()))
  const mcp = door(t, { connectMs: CONNECT_MS })
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const listed = fails(t, mcp.list(specOf(rig)), { kind: 'timeout', message: /did not connect/ })
  await asked
  mock.timers.tick(CONNECT_MS.http)
  await listed
})

t.test('an error that only mentions a session or version does not make a call run again', async (t) => {
  const said: [string, number, number, string][] = [
    ['modern', 400, -32000, 'Paid, but the checkout session could not be closed'],
    ['modern', 422, -32000, 'Your login session expired'],
    ['modern', 200, -32022, 'Unsupported version of the document'],
    ['modern', 404, -32000, 'Session not found: there are no sessions'],
    ['modern', 200, -32600, 'Session not found: there are none'],
    ['legacy', 400, -32000, 'Paid, but the checkout session could not be closed'],
    ['legacy', 200, -32000, 'Session not found in the archive'],
    ['legacy', 200, -32600, 'Words of its own'],
    ['legacy', 200, -32020, 'A code of its own'],
  ]
  for (const [era, status, code, words] of said) {
    const rig = await startRig(t, era as 'modern' | 'legacy', 's')
    const mcp = door(t)
    t.same(await call(mcp, specOf(rig)), RAN)
    rig.on('tools/call', ({ fail }) => fail(code, words, status))
    await fails(t, call(mcp, specOf(rig)), { sent: code === -32000 && status !== 404 })
    t.equal(rig.count('tools/call'), 2, words)
  }
})

t.test('a refusal for an unknown reason makes no call run again where the revision is sure', async (t) => {
  const rig = await startRig(t)
  let isRefusing = true
  rig.on('tools/call', ({ rpc, reply, status }) => {
    if (rpc.params.name === 'hang') return
    if (isRefusing) return status(400, {}, 'no such header')
    reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  const refused = { sent: true, message: /no such header/ }
  await fails(t, call(door(t), specOf(rig)), refused, 'the revision was just agreed on')
  t.equal(rig.count('tools/call'), 1)

  isRefusing = false
  const mcp = door(t, { idleMs: { http: 30, stdio: 30 } })
  await list(mcp, specOf(rig))
  await eventually(() => mcp.status('server:1').state === 'idle')
  const leaving = new AbortController()
  const hanging = call(mcp, specOf(rig), 'hang', {}, { signal: leaving.signal })
  t.same(await call(mcp, specOf(rig)), RAN)
  isRefusing = true
  await fails(t, call(mcp, specOf(rig)), refused, 'a call was answered in the remembered one')
  t.equal(rig.count('tools/call'), 4, 'one hangs, and two more were sent')
  leaving.abort()
  await fails(t, hanging, { kind: 'cancelled' })
})

t.test('a call that began is not run again if its broken stream cannot be resumed', async (t) => {
  for (const status of [400, 404, 405]) {
    const rig = await startRig(t, 'legacy', 's')
    rig.on('tools/call', ({ stream, response }) => {
      stream().raw('id: e1\nretry: 10\ndata: \n\n')
      response.end()
    })
    rig.on('GET', (exchange) => exchange.status(status, {}, 'Session not found'))
    await fails(t, call(door(t), specOf(rig)), { kind: 'disconnected', sent: true })
    t.ok(rig.count('GET') > 0)
    t.equal(rig.count('tools/call'), 1, `${status}`)
  }
})

t.test('a session that is lost twice is reported, and not opened a third time', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  rig.on('tools/call', ({ status }) => status(404, {}, 'Session not found'))
  await fails(t, call(door(t), specOf(rig)), { kind: 'unavailable', sent: false })
  t.equal(rig.count('tools/call'), 2)
})

t.test('a server that never answers the first requests is given up after the connect time', async (t) => {
  const rig = await startRig(t)
  for (const method of ['server/discover', 'initialize']) rig.on(method, () => {})
  const mcp = door(t, { connectMs: { http: 150, stdio: 150 } })
  await fails(t, list(mcp, specOf(rig)), { kind: 'timeout', sent: false, message: /150 ms/ })
  t.match(mcp.status('server:1'), { state: 'down', error: /150 ms/ })
})

t.test(
  'after failed attempts a dead server is left alone for a while, and a new key is tried at once',
  async (t) => {
    let connections = 0
    const dead = createServer((socket) => {
      connections++
      socket.destroy()
    })
    const mcp = door(t)
    const spec = specOf({ url: `http://127.0.0.1:${await listening(t, dead)}/mcp` })
    let refused = 0
    for (let i = 0; i < 30; i++) {
      const failure = await call(mcp, spec).catch((error: McpError) => error)
      t.match(failure, { kind: 'unavailable', sent: false })
      if (failure instanceof McpError && failure.retryAfterMs !== undefined) refused++
    }
    t.ok(refused >= 20, `${refused} of 30 were refused without an attempt`)
    t.ok(mcp.status(spec.key).state === 'down')
    const paused = connections
    await fails(t, mcp.list(spec, { timeoutMs: PATIENCE, insists: true }), {
      kind: 'unavailable',
      retryAfterMs: undefined,
    })
    t.ok(connections > paused, 'a caller that insists makes an attempt at once')
    const before = connections
    await fails(t, call(mcp, { ...spec, key: 'server:2' }), { kind: 'unavailable', sent: false })
    t.ok(connections > before)
  },
)

t.test('a refused connection counts as a call that was not sent, over either transport', async (t) => {
  const spec = specOf({ url: `http://127.0.0.1:${await freePort()}/mcp` })
  for (const transport of ['streamable_http', 'sse'] as const)
    await fails(t, call(door(t), { ...spec, transport }), { kind: 'unavailable', sent: false }, transport)
})

t.test('a call whose server could not be reached at all runs over a new connection', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const answers = {
    ...legacyAnswers(rig, 's'),
    'notifications/initialized': ({ status }: Exchange) => status(202),
  }
  for (const [method, answer] of Object.entries(answers))
    rig.on(method, (exchange) => {
      exchange.response.setHeader('connection', 'close')
      answer(exchange)
    })
  let isAway = false
  const mcp = door(t, {
    async resolve() {
      if (!isAway) return [{ address: '127.0.0.1', family: 4 }]
      isAway = false
      throw Object.assign(new Error('no answer'), { code: 'EAI_AGAIN' })
    },
  })
  const spec = specOf(rig, { url: rig.url.replace('127.0.0.1', 'rig.test') })
  await list(mcp, spec)
  isAway = true
  t.same(await call(mcp, spec), RAN)
  t.notOk(isAway)
  t.equal(rig.count('initialize'), 2)
  t.equal(rig.count('tools/call'), 1)
})

t.test('an unused connection is closed, and the next one needs no probe', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era, 's')
    const mcp = door(t, { idleMs: { http: 30, stdio: 30 } })
    await list(mcp, specOf(rig))
    await eventually(() => mcp.status('server:1').state === 'idle')
    t.same(await call(mcp, specOf(rig)), RAN)
    t.equal(rig.count('server/discover'), 1, `${era}: the revision is asked for once`)
    t.equal(rig.count('initialize'), era === 'legacy' ? 2 : 0)
    if (era === 'legacy') await rig.arrival('DELETE')
  }
})

t.test('a server that changed its revision while idle is asked for its revision anew', async (t) => {
  const refusals: ((exchange: Exchange) => void)[] = [
    ...[400, 404, 405].map(
      (code) =>
        ({ status }: Exchange) =>
          status(code, {}, 'Bad request'),
    ),
    ...[-32601, -32022].map(
      (code) =>
        ({ fail }: Exchange) =>
          fail(code, 'Bad request'),
    ),
  ]
  for (const refuse of refusals) {
    const rig = await startRig(t, 'modern')
    const mcp = door(t, { idleMs: { http: 30, stdio: 30 } })
    t.equal((await list(mcp, specOf(rig))).server.protocol_version, '2026-07-28')
    await eventually(() => mcp.status('server:1').state === 'idle')
    rig.on('server/discover', ({ fail }) => fail(-32601, 'Method not found'))
    rig.on('initialize', ({ rpc, reply }) =>
      reply({
        protocolVersion: rpc.params.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name: 'old', version: '1' },
      }),
    )
    for (const method of ['tools/list', 'tools/call'])
      rig.on(method, (exchange) => {
        if (exchange.rpc.params?._meta?.['io.modelcontextprotocol/protocolVersion']) return refuse(exchange)
        exchange.reply(
          method === 'tools/list' ? { tools: [TOOL] } : { content: [{ type: 'text', text: 'ran' }] },
        )
      })
    t.same(await call(mcp, specOf(rig)), RAN, `${refuse}`)
    t.match(await list(mcp, specOf(rig), true), { server: { name: 'old', protocol_version: '2025-11-25' } })
  }
})

t.test('a url that was right before is not doubted', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t, { idleMs: { http: 30, stdio: 30 } })
  await list(mcp, specOf(rig))
  await eventually(() => mcp.status('server:1').state === 'idle')
  rig.on('initialize', ({ status }) => status(404))
  rig.on('server/discover', ({ status }) => status(503))
  await fails(t, list(mcp, specOf(rig), true), { kind: 'unavailable', message: /HTTP 404\.$/ })
})

t.test('a server that is replaced by one of the other revision runs the next call once', async (t) => {
  const isModern = ({ rpc }: Exchange): boolean =>
    rpc.params?._meta?.['io.modelcontextprotocol/protocolVersion'] !== undefined
  const body = (id: unknown, code: number, message: string): string =>
    JSON.stringify({ jsonrpc: '2.0', id, error: { code, message } })
  const noSession = 'Bad Request: No valid session ID provided'
  const noVersion = 'Bad Request: Unsupported protocol version: 2026-07-28'
  const refusals: ['legacy' | 'modern', string, (exchange: Exchange) => void][] = [
    ['legacy', noSession, ({ status }) => status(400, {}, body(null, -32000, noSession))],
    [
      'legacy',
      'the refusal has the request id',
      ({ rpc, status }) => status(400, {}, body(rpc.id, -32000, noSession)),
    ],
    ['legacy', noVersion, ({ status }) => status(400, {}, body(null, -32000, noVersion))],
    [
      'modern',
      'a refusal of the older revision’s request',
      ({ status }) => status(400, {}, body(null, -32022, 'Unsupported')),
    ],
    ['modern', 'an answer', ({ fail }) => fail(-32022, 'Unsupported', 400)],
  ]
  for (const [now, how, refuse] of refusals) {
    const rig = await startRig(t, now === 'modern' ? 'legacy' : 'modern')
    const mcp = door(t)
    const spec = specOf(rig)
    t.same(await call(mcp, spec), RAN)
    rig.become(now)
    let ran = 0
    rig.on('tools/call', (exchange) => {
      if (isModern(exchange) !== (now === 'modern')) return refuse(exchange)
      ran++
      exchange.reply({ resultType: 'complete', content: [{ type: 'text', text: 'ran' }] })
    })
    t.same(await call(mcp, spec), RAN, how)
    t.equal(ran, 1)
  }
})

t.test('a list that is refused for an unknown reason is asked for on a new connection', async (t) => {
  for (const status of [400, 401]) {
    const rig = await startRig(t, 'legacy', 's')
    const mcp = door(t)
    await list(mcp, specOf(rig))
    rig.on('tools/list', ({ status: refuse }) => refuse(status, {}, 'Gone'))
    await fails(t, list(mcp, specOf(rig), true), { kind: status === 401 ? 'auth_required' : 'protocol' })
    rig.on('tools/list', ({ reply }) => reply({ tools: [TOOL] }))
    t.match(await list(mcp, specOf(rig), true), { tools: [TOOL] })
    t.equal(rig.count('server/discover'), 2, `${status}: the revision is asked for too`)
    t.equal(rig.count('initialize'), 2)
  }
})

t.test('an unused connection is closed although the clock was set back', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const mcp = door(t, { idleMs: { http: 100, stdio: 100 } })
  await list(mcp, specOf(rig))
  const before = Date.now() - 365 * 86_400_000
  mock.method(Date, 'now', () => before)
  t.teardown(() => mock.restoreAll())
  await rig.arrival('DELETE')
})

t.test('a server that takes too long gets more time with each attempt', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t, { connectMs: { http: 400, stdio: 400 }, attemptMs: 1_000 })
  // The second attempt, which has 800 ms, needs more than the first one has.
  rig.on('tools/list', ({ reply }) => {
    if (rig.count('tools/list') === 2) setTimeout(() => reply({ tools: [TOOL] }), 450)
  })
  await fails(t, list(mcp, specOf(rig)), { kind: 'timeout' })
  t.match(await list(mcp, specOf(rig)), { tools: [TOOL] })
  for (const method of ['server/discover', 'initialize']) rig.on(method, () => {})
  const other = specOf(rig, { key: 'server:2' })
  for (const ms of [400, 800, 1_000])
    await fails(t, list(mcp, other), { kind: 'timeout', message: new RegExp(` ${ms} ms`) })
})

t.test('closing the gateway ends a connection attempt and a list request at once', async (t) => {
  for (const method of ['server/discover', 'tools/list']) {
    const rig = await startRig(t)
    rig.on(method, () => {})
    const mcp = door(t, { connectMs: { http: PATIENCE, stdio: PATIENCE }, drainMs: PATIENCE })
    const closed = { kind: 'unavailable', sent: false, message: 'rig is being closed.' }
    const listed = fails(t, list(mcp, specOf(rig)), closed)
    await rig.arrival(method)
    const from = performance.now()
    await mcp.close()
    t.ok(performance.now() - from < PATIENCE / 2)
    await listed
  }
})

t.test('a server that does not answer the end of its session keeps nobody from closing', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  rig.on('DELETE', () => {})
  const mcp = door(t)
  await list(mcp, specOf(rig))
  const late = sleep(PATIENCE / 2, 'late', { ref: false })
  t.not(await Promise.race([mcp.close(), late]), 'late')
  t.equal(rig.count('DELETE'), 1)
})

t.test('closing waits for running calls, and then cuts them off', async (t) => {
  const rig = await startRig(t)
  let finish = (): void => {}
  rig.on('tools/call', ({ reply }) => {
    finish = () => reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  const patient = door(t, { drainMs: PATIENCE })
  const first = call(patient, specOf(rig))
  await rig.arrival('tools/call')
  const closing = patient.close()
  finish()
  t.same(await first, RAN)
  await closing

  const hasty = door(t, { drainMs: 100 })
  const second = call(hasty, specOf(rig))
  await rig.arrival('tools/call', 2)
  const cut = fails(t, second, { kind: 'disconnected', sent: true })
  await hasty.close()
  await cut
})

t.test('a server that answers calls in between does not count as stuck', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const mcp = door(t)
  rig.on('tools/call', ({ rpc, reply }) => {
    if (rpc.params.name === 'quick') reply({ content: [] })
  })
  for (const _ of [1, 2, 3]) {
    await call(mcp, specOf(rig), 'quick')
    for (const _ of [1, 2])
      await fails(t, call(mcp, specOf(rig), 'tool', {}, { timeoutMs: 20 }), { kind: 'timeout' })
  }
  t.equal(rig.count('initialize'), 1)
})

t.test('three unanswered calls make a new connection, and others finish on the old one', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const mcp = door(t)
  let finish = (): void => {}
  rig.on('tools/call', ({ rpc, reply }) => {
    if (rpc.params.name === 'slow') finish = () => reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  const slow = call(mcp, specOf(rig), 'slow')
  await rig.arrival('tools/call')
  for (let i = 0; i < 3; i++)
    await fails(t, call(mcp, specOf(rig), 'tool', {}, { timeoutMs: 20 }), { kind: 'timeout' })
  t.equal(rig.count('DELETE'), 0)
  rig.on('tools/call', ({ reply }) => reply({ content: [] }))
  await call(mcp, specOf(rig))
  finish()
  t.same(await slow, RAN)
  await rig.arrival('DELETE')
  for (let i = 0; i < 5; i++) await call(mcp, specOf(rig))
  t.equal(rig.count('initialize'), 2, 'the end of the old connection leaves the new one alone')
})

t.test('failures of calls on a former connection do not count against the next connection', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const mcp = door(t)
  rig.on('tools/call', ({ rpc, reply }) => {
    if (rpc.params.name === 'tool') reply({ content: [] })
  })
  const threeHang = (timeoutMs: number) =>
    Promise.all(
      [1, 2, 3].map(() => fails(t, call(mcp, specOf(rig), 'hang', {}, { timeoutMs }), { kind: 'timeout' })),
    )
  await call(mcp, specOf(rig))
  const late = threeHang(1_500)
  await threeHang(500)
  await call(mcp, specOf(rig))
  t.equal(rig.count('initialize'), 2)
  await late
  await call(mcp, specOf(rig))
  t.equal(rig.count('initialize'), 2)
  t.equal(rig.count('DELETE'), 1)
})
