/** Announcements that may have been lost: a channel was cut, a session or a connection lost, a token refused. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createServer } from 'node:http'
import { mock } from 'node:test'
import t, { type Test } from 'tap'
import type { McpServerSpec } from '../../src/mcp/contract.ts'
import { listening } from '../listening.ts'
import { eventually } from '../waiting.ts'
import { call, door, fails, list, specOf } from './door.ts'
import { beginChannel, type Rig, startRig } from './servers/rig.ts'

/** A door whose announcements are counted, with a first list over an open channel. */
async function following(t: Test, spec: McpServerSpec) {
  const mcp = door(t, { announceMs: 1 })
  const heard: string[] = []
  mcp.onListChanged((key) => heard.push(key))
  mcp.interest(spec, 60_000)
  await list(mcp, spec)
  return { mcp, heard }
}

/** The open channels of the rig, newest last. */
function channelsOf(rig: Rig): ServerResponse[] {
  const open: ServerResponse[] = []
  for (const method of ['GET', 'subscriptions/listen'])
    rig.on(method, (exchange) => {
      beginChannel(exchange)
      open.push(exchange.response)
    })
  return open
}

t.test('after a cut the channel is opened again, and what it missed is asked for', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era, 's')
    const channels = channelsOf(rig)
    const { mcp, heard } = await following(t, specOf(rig))
    await eventually(() => channels.length === 1)
    t.same(heard, [], `${era}: a first channel has missed nothing`)
    channels[0]?.end()
    await eventually(() => channels.length === 2)
    await eventually(() => heard.length === 1)
    t.notOk(mcp.isOutdated('server:1'), `${era}: no turn waits for a list that may be the same`)
  }
})

t.test('what a server announced while its first channel could not be opened is asked for', async (t) => {
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era, 's')
    for (const method of ['GET', 'subscriptions/listen'])
      rig.on(method, (exchange) => {
        if (rig.count(method) === 1) exchange.status(503)
        else beginChannel(exchange)
      })
    const { heard } = await following(t, specOf(rig))
    await eventually(() => heard.length === 1)
  }
})

t.test('what a server announced before anybody followed it is asked for', async (t) => {
  const isAsked = async (rig: Rig) => {
    const mcp = door(t, { announceMs: 1 })
    const heard: string[] = []
    mcp.onListChanged((key) => heard.push(key))
    await list(mcp, specOf(rig))
    mcp.interest(specOf(rig), 60_000)
    await eventually(() => heard.length === 1)
  }
  for (const era of ['legacy', 'modern'] as const) {
    const rig = await startRig(t, era, 's')
    channelsOf(rig)
    await isAsked(rig)
  }
  const restarted = await startRig(t, 'legacy', 's')
  restarted.on('GET', ({ status }) => status(404))
  await isAsked(restarted)
})

t.test('a server that was replaced is asked for its list as soon as its channel shows that', async (t) => {
  for (const [era, method, refusal] of [
    ['legacy', 'GET', 404],
    // By one that speaks only older revisions, and misses a session.
    ['modern', 'subscriptions/listen', 400],
  ] as const) {
    const rig = await startRig(t, era, 's')
    const channels = channelsOf(rig)
    const { mcp, heard } = await following(t, specOf(rig))
    await eventually(() => channels.length === 1)
    rig.become('legacy')
    rig.on(method, ({ status }) => status(refusal, {}, 'Bad Request: Mcp-Session-Id header is required'))
    channels[0]?.end()
    await eventually(() => heard.length === 1)
    rig.tools = [{ name: 'other', inputSchema: { type: 'object' } }]
    t.match(await mcp.list(specOf(rig), { refresh: true }), { tools: [{ name: 'other' }] }, era)
  }
})

t.test(
  'a server that offers no channel is asked for its list after a call that opened a session',
  async (t) => {
    const rig = await startRig(t, 'legacy', 'first')
    const { mcp, heard } = await following(t, specOf(rig))
    await call(mcp, specOf(rig))
    t.same(heard, [])
    let isLost = true
    rig.on('tools/call', ({ status, reply }) => {
      if (!isLost) return reply({ content: [] })
      isLost = false
      status(404)
    })
    await call(mcp, specOf(rig))
    t.equal(rig.count('initialize'), 2)
    t.same(heard, ['server:1'])
    await list(mcp, specOf(rig), true)
    await call(mcp, specOf(rig))
    t.same(heard, ['server:1'], 'the list came over this connection')
  },
)

t.test('a channel ends with its connection, however long there is interest', async (t) => {
  const rig = await startRig(t)
  const channels = channelsOf(rig)
  const mcp = door(t)
  mcp.interest(specOf(rig), 600_000)
  await list(mcp, specOf(rig))
  await eventually(() => channels.length === 1)
  mcp.release('server:1')
  await eventually(() => channels[0]?.closed)
})

t.test('a call that finds its server away lets it be asked whether it is there', async (t) => {
  const rig = await startRig(t)
  const { mcp, heard } = await following(t, specOf(rig))
  rig.on('tools/call', ({ fail }) => fail(-32602, 'Unknown tool'))
  await fails(t, call(mcp, specOf(rig)), { kind: 'protocol' })
  t.same(heard, [], 'a refusal of the call is no sign of that')
  rig.on('tools/call', ({ status }) => status(401))
  await fails(t, call(mcp, specOf(rig)), { kind: 'auth_required' })
  t.same(heard, ['server:1'])
})

t.test('a channel whose token was refused is opened with the next one, which is renewed once', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  let token = 'old'
  const refused: (string | undefined)[] = []
  const auth = {
    token: async () => token,
    async onUnauthorized(old: string | undefined) {
      refused.push(old)
      token = 'new'
    },
  }
  let accepted = ''
  let gets = 0
  rig.on('GET', ({ request, status, stream }) => {
    gets++
    if (request.headers.authorization !== accepted) return status(401)
    stream().send({ method: 'notifications/tools/list_changed' })
  })
  const { heard } = await following(t, specOf(rig, { auth }))
  await eventually(() => gets > 1)
  t.same(refused, ['old'], 'the new token is refused as well, and not renewed')
  accepted = 'Bearer new'
  await eventually(() => heard.length > 0)
  t.same(refused, ['old'])
})

/** A server of the transport of 2024-11-05: announcements and answers come over one long GET stream. */
async function startSse(t: Test) {
  const open: ServerResponse[] = []
  const send = (message: object) =>
    open.at(-1)?.write(`event: message\ndata: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`)
  const results: Record<string, object> = {
    initialize: {
      protocolVersion: '2024-11-05',
      capabilities: { tools: { listChanged: true } },
      serverInfo: { name: 'sse', version: '1' },
    },
    'tools/list': { tools: [] },
  }
  const sse = { url: '', open, token: 'old' }
  const server = createServer(async (request: IncomingMessage, response: ServerResponse) => {
    if (request.headers.authorization !== `Bearer ${sse.token}`) return response.writeHead(401).end()
    if (request.method === 'GET') {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write('event: endpoint\ndata: /messages\n\n')
      return open.push(response)
    }
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    const { id, method } = JSON.parse(Buffer.concat(chunks).toString())
    response.writeHead(202).end()
    if (id !== undefined) send({ id, result: results[method] ?? {} })
  })
  sse.url = `http://127.0.0.1:${await listening(t, server)}/sse`
  return sse
}

t.test(
  'the SSE transport’s stream is opened again after its end, with a new token where that is due',
  async (t) => {
    const sse = await startSse(t)
    let [token, clock] = ['old', 0]
    mock.method(performance, 'now', () => clock)
    t.teardown(() => mock.restoreAll())
    const auth = {
      token: async () => token,
      async onUnauthorized() {
        token = 'new'
      },
    }
    const spec = specOf(sse, { transport: 'sse', auth })
    const { mcp, heard } = await following(t, spec)
    clock = 20_000
    sse.token = 'new'
    sse.open[0]?.end()
    await eventually(() => heard.length === 1)
    await list(mcp, spec, true)
    t.equal(sse.open.length, 2)
    clock = 21_000
    sse.open[1]?.end()
    await eventually(() => mcp.status(spec.key).state === 'idle')
    t.equal(heard.length, 1, 'a stream that ended soon is left to the next use')
  },
)
