/**
 * The channel by which servers announce changes: how long it is kept, what ends it for good, and what is tried again.
 */
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { type ChannelEnd, keepChannel, readGetStream } from '../../src/mcp/channel.ts'
import { eventually } from '../waiting.ts'
import { call, door, list, RAN, specOf } from './door.ts'
import { beginChannel, legacyAnswers, modernAnswers, startRig } from './servers/rig.ts'

const asked = (response: Response, sent: Headers[] = [], lastEventId = '7', heard: unknown[] = []) =>
  readGetStream(
    {
      async fetch(_, { headers } = {}) {
        sent.push(new Headers(headers))
        return response
      },
      url: 'http://mcp.test/',
      headers: new Headers(),
      onOpen() {},
      onMessage: (message) => void heard.push(message),
    },
    new AbortController().signal,
    { lastEventId },
  )

const streamOf = (text: string) => new Response(text, { headers: { 'content-type': 'text/event-stream' } })

t.test('a server that offers no GET stream, or lost the session, is not asked again', async (t) => {
  for (const status of [204, 400, 404, 405, 410, 501])
    t.match(await asked(new Response(null, { status }), [], ''), { isUnsupported: true }, `HTTP ${status}`)
  t.match(await asked(new Response(null, { status: 404 })), { isUnsupported: true })
  t.same(await asked(Response.json({ jsonrpc: '2.0', id: 1, error: {} })), { isUnsupported: true })
  const page = new Response('<p>data:', { headers: { 'content-type': 'text/html' } })
  t.same(await asked(page), { isUnsupported: true })
})

t.test('a server that refuses an event id is asked again without one', async (t) => {
  t.strictSame(await asked(new Response(null, { status: 400 })), {})
})

t.test('a stream is resumed after its last event, and its end names the last event that came', async (t) => {
  const sent: Headers[] = []
  const heard: unknown[] = []
  const events = [
    'id: 8\ndata: {"n":1}',
    'id: 9\nevent: message\ndata: {"n":2}',
    'data:',
    'data: no JSON',
    'event: ping\ndata: {"n":3}',
  ]
  t.same(await asked(streamOf(`${events.join('\n\n')}\n\n`), sent, '7', heard), { lastEventId: '9' })
  t.strictSame(heard, [{ n: 1 }, { n: 2 }])
  t.equal(sent[0]?.get('last-event-id'), '7')
  t.equal(sent[0]?.get('accept'), 'text/event-stream')
  await asked(streamOf(''), sent, '')
  t.notOk(sent[1]?.has('last-event-id'))
})

t.test('an event id of any characters is sent back in UTF-8', async (t) => {
  const sent: Headers[] = []
  t.same(await asked(streamOf(''), sent, 'é→🙂'), { lastEventId: 'é→🙂' })
  t.equal(Buffer.from(sent[0]?.get('last-event-id') ?? '', 'latin1').toString(), 'é→🙂')
})

t.test('a refusal that may pass does not mean that the server offers no GET stream', async (t) => {
  t.same(await asked(new Response('', { status: 401 })), { lastEventId: '7', isUnauthorized: true })
  for (const status of [403, 408, 425, 429, 500, 502, 503])
    t.same(await asked(new Response('', { status })), { lastEventId: '7' }, `HTTP ${status}`)
})

t.test('the body of a refusal is cancelled, and holds no connection', async (t) => {
  for (const status of [503, 200]) {
    let isCancelled = false
    const body = new ReadableStream({
      cancel() {
        isCancelled = true
      },
    })
    await asked(new Response(body, { status }))
    t.ok(isCancelled, `HTTP ${status}`)
  }
})

t.test('a busy server is asked again after the time that it names', async (t) => {
  const busy = new Response('', { status: 429, headers: { 'retry-after': '20' } })
  t.same(await asked(busy), { lastEventId: '7', retryMs: 20_000 })
  t.same(await asked(streamOf('retry: 20000\n\n')), { lastEventId: '7', retryMs: 20_000 }, 'or its stream')
})

t.test('a channel ends when nobody is interested any more, or the server does not offer it', async (t) => {
  const alive = setInterval(() => {}, 1_000)
  t.teardown(() => clearInterval(alive))
  let opened = 0
  let aborted: Promise<void> | undefined
  const from = performance.now()
  const channel = keepChannel(async (signal) => {
    opened++
    aborted = new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
    await aborted
    return {}
  }, from + 20)
  channel.extend(from + 60)
  await aborted
  t.ok(performance.now() - from > 50, 'the stream stays as long as anybody is interested')
  t.equal(opened, 1, 'the stream is aborted when nobody is interested any more')
  t.notOk(channel.extend(performance.now() + 60_000), 'a channel that has ended cannot be extended')

  let asked = 0
  const unsupported = keepChannel(
    async () => {
      asked++
      return { isUnsupported: true }
    },
    performance.now() + 20,
    async () => {},
  )
  await new Promise(setImmediate)
  t.ok(unsupported.extend(performance.now() + 30))
  await sleep(60)
  t.ok(unsupported.extend(performance.now() + 60_000), 'no new channel is needed')
  t.equal(asked, 1, 'a server without such a channel is asked once')
})

t.test('interest that ends earlier than other interest shortens no channel', async (t) => {
  const channel = keepChannel(() => new Promise(() => {}), performance.now() + 60_000)
  channel.extend(performance.now() + 10)
  await sleep(50)
  t.ok(channel.extend(performance.now() + 60_000), 'the channel is still there')
  channel.stop()
})

t.test('a channel that could not be reopened is asked for again after the same event', async (t) => {
  const resumed: (string | undefined)[] = []
  await new Promise<void>((resolve) => {
    const channel = keepChannel(
      async (_, { lastEventId }) => {
        resumed.push(lastEventId)
        if (resumed.length === 2) throw new Error('no connection')
        return { lastEventId: '9' }
      },
      performance.now() + 60_000,
      async () => {
        if (resumed.length < 3) return
        channel.stop()
        resolve()
      },
    )
  })
  t.same(resumed, [undefined, '9', '9'])
})

/** The pauses after channels that end so, each after it was open for that long. */
async function pausesAfter(t: Test, ends: readonly (ChannelEnd & { openMs?: number })[]): Promise<number[]> {
  let clock = 0
  mock.method(performance, 'now', () => clock)
  t.teardown(() => mock.restoreAll())
  const pauses: number[] = []
  let opened = 0
  await new Promise<void>((resolve) => {
    const channel = keepChannel(
      async () => {
        const { openMs = 0, ...end } = ends[opened++] ?? {}
        clock += openMs
        return end
      },
      1e9,
      async (ms) => {
        pauses.push(ms)
        if (pauses.length < ends.length) return
        channel.stop()
        resolve()
      },
    )
  })
  return pauses
}

t.test('a channel is reopened after pauses that double up to half a minute', async (t) => {
  const pauses = await pausesAfter(t, [...Array(7).fill({}), { openMs: 60_000 }, { openMs: 60_001 }, {}])
  t.strictSame(pauses.slice(0, 8), [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000])
  t.strictSame(pauses.slice(8), [1_000, 2_000], 'a channel that lived for more than a minute was no failure')
})

t.test('a channel is reopened after the longer pause that its server asks for, up to a limit', async (t) => {
  const named = [5_000, 0, 3_000, 86_400_000]
  const pauses = await pausesAfter(
    t,
    named.map((retryMs) => ({ retryMs })),
  )
  t.strictSame(pauses, [5_000, 2_000, 4_000, 30_000])
})

t.test('a flood of announcements is told once at once, and then once per interval', async (t) => {
  const rig = await startRig(t, 'legacy', 's')
  const mcp = door(t, { announceMs: 1_000 })
  const heard: string[] = []
  mcp.onListChanged((key) => heard.push(key))
  const spec = specOf(rig, { headers: { 'x-api-key': 'k1' }, auth: { token: async () => 'token-1' } })
  const flooded = new Promise<void>((resolve) =>
    rig.on('GET', ({ stream }) => {
      const { send } = stream()
      for (let i = 0; i < 2_000; i++) send({ method: 'notifications/tools/list_changed' })
      resolve()
    }),
  )
  mcp.interest(spec, 60_000)
  await list(mcp, spec)
  await flooded
  const { headers } = await rig.arrival('GET')
  t.match(headers, {
    'mcp-session-id': 's',
    'mcp-protocol-version': '2025-11-25',
    authorization: 'Bearer token-1',
    'x-api-key': 'k1',
  })
  const started = Date.now()
  await eventually(() => heard.length > 1)
  t.ok(
    heard.length <= 2 + (Date.now() - started) / 1_000,
    `2000 announcements were told ${heard.length} times`,
  )
  t.same(new Set(heard), new Set([spec.key]))
  t.equal(rig.count('tools/list'), 1, 'an announcement alone asks for no list')
  await list(mcp, spec)
  t.equal(rig.count('tools/list'), 2, 'the kept list counts as old')
})

t.test('a server may give all answers in the GET stream while that is open', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  await list(mcp, specOf(rig))
  let say = (_: object) => {}
  let isCut = false
  rig.on('GET', ({ stream, response }) => {
    response.on('close', () => {
      isCut = true
    })
    say = stream().send
    say({ method: 'notifications/tools/list_changed' })
  })
  const opened = new Promise((resolve) => mcp.onListChanged(resolve))
  mcp.interest(specOf(rig), 60_000)
  await opened
  const receipts = [[202], [200, { 'content-type': 'application/json' }, '{"accepted":true}']] as const
  for (const [status, headers, body] of receipts)
    for (const lateMs of [0, 50]) {
      rig.on('tools/call', ({ rpc, status: answer }) => {
        answer(status, headers, body)
        setTimeout(() => say({ id: rpc.id, result: { content: RAN.content } }), lateMs)
      })
      t.same(await call(mcp, specOf(rig)), RAN, `${status}, ${lateMs} ms`)
    }
  rig.on('tools/call', ({ rpc, status: answer }) => {
    answer(202)
    mcp.release('server:1')
    setTimeout(() => say({ id: rpc.id, result: { content: RAN.content } }), 200)
  })
  t.same(
    await call(mcp, specOf(rig)),
    RAN,
    'the stream stays for the call that runs when its connection is let go',
  )
  t.equal(mcp.status('server:1').state, 'idle')
  await eventually(() => isCut)
})

t.test('a server that ends the GET stream at once is not asked again and again', async (t) => {
  const rig = await startRig(t)
  rig.on('GET', ({ stream, response }) => {
    stream().raw('retry: 0\n\n')
    response.end()
  })
  const mcp = door(t)
  await list(mcp, specOf(rig))
  t.equal(rig.count('GET'), 0, 'no GET stream is opened before anybody is interested')
  mcp.interest(specOf(rig), 60_000)
  await rig.arrival('GET')
  await sleep(500)
  t.equal(rig.count('GET'), 1)
})

t.test(
  'the channel for announcements closes when interest ends and comes back with it, in both revisions',
  async (t) => {
    const legacy = await startRig(t)
    const modern = await startRig(t, 'modern')
    const closed = [
      new Promise<void>((resolve) =>
        legacy.on('GET', (exchange) => {
          beginChannel(exchange)
          exchange.response.once('close', resolve)
        }),
      ),
      new Promise<void>((resolve) =>
        modern.on('subscriptions/listen', (exchange) => {
          beginChannel(exchange)()
          exchange.response.once('close', resolve)
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
      mcp.interest(spec, 2_000)
      await list(mcp, spec)
    }
    t.equal(await heard, 'modern')
    await Promise.all(closed)
    for (const [rig, key, method] of [
      [legacy, 'legacy', 'GET'],
      [modern, 'modern', 'subscriptions/listen'],
    ] as const) {
      mcp.interest(specOf(rig, { key }), 60_000)
      await rig.arrival(method, 2)
      t.equal(rig.count('tools/list'), 1, 'the channel comes back on the same connection')
    }
  },
)

t.test('a server that announces no changes is asked for no channel', async (t) => {
  for (const [era, greeting] of [
    ['legacy', 'initialize'],
    ['modern', 'server/discover'],
  ] as const) {
    const rig = await startRig(t, era)
    const own = (era === 'legacy' ? legacyAnswers(rig) : modernAnswers(rig))[greeting]
    rig.on(greeting, (asked) =>
      own?.({ ...asked, reply: (result) => asked.reply({ ...Object(result), capabilities: { tools: {} } }) }),
    )
    const mcp = door(t)
    mcp.interest(specOf(rig), 60_000)
    await list(mcp, specOf(rig))
    await sleep(300)
    t.equal(rig.count('GET') + rig.count('subscriptions/listen'), 0, era)
  }
})

t.test('announcements are heard after a redirect within the same server', async (t) => {
  const rig = await startRig(t)
  rig.on('GET', ({ status, request, stream }) => {
    if (request.url === '/mcp') return status(307, { location: '/mcp/' })
    stream().send({ method: 'notifications/tools/list_changed' })
  })
  const mcp = door(t)
  const heard = new Promise<string>((resolve) => mcp.onListChanged(resolve))
  await list(mcp, specOf(rig))
  mcp.interest(specOf(rig), 60_000)
  t.equal(await heard, 'server:1')
})

t.test('a channel that is opened because of an announcement within a call outlives the call', async (t) => {
  const mcp = door(t)
  const outlives = async (era: 'legacy' | 'modern') => {
    const caller = await startRig(t)
    const other = await startRig(t, era)
    const method = era === 'legacy' ? 'GET' : 'subscriptions/listen'
    let isCut = false
    other.on(method, (exchange) => {
      beginChannel(exchange)
      exchange.response.once('close', () => {
        isCut = true
      })
    })
    caller.on('tools/call', async ({ stream }) => {
      const { send, reply } = stream()
      send({ method: 'notifications/tools/list_changed' })
      await other.arrival(method)
      reply({ content: [] })
    })
    const [spec, key] = [specOf(other, { key: `other ${era}` }), `caller ${era}`]
    mcp.onListChanged((changed) => {
      if (changed !== key) return
      mcp.interest(spec, 60_000)
      void list(mcp, spec)
    })
    await call(mcp, specOf(caller, { key }))
    // The rest of an answered call may take as long.
    await sleep(2_500)
    t.notOk(isCut, era)
    t.equal(other.count(method), 1, era)
  }
  await Promise.all([outlives('legacy'), outlives('modern')])
})
