/** One tool call over HTTP: how it is cut off, resumed and given up. */
import { getEventListeners, once } from 'node:events'
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { createGzip } from 'node:zlib'
import t from 'tap'
import { call, door, fails, RAN, specOf } from './door.ts'
import { startRig } from './servers/rig.ts'

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
    t.equal(rig.count('GET'), 0, 'the server is not asked to send the answer again')
    rig.on('tools/call', ({ reply }) => reply({ content: [] }))
    t.same(
      await call(mcp, specOf(rig)),
      { content: [], is_error: false },
      'the connection still serves calls',
    )
  }
})

t.test('a refusal of any length is reported as a refusal', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/call', ({ rpc, response }) => {
    response.writeHead(200, { 'content-type': 'application/json' })
    const error = { code: -32000, message: `Bearer ${'a'.repeat(7 * 1024 * 1024)}` }
    response.end(JSON.stringify({ jsonrpc: '2.0', id: rpc.id, error }))
  })
  await fails(t, call(door(t), specOf(rig)), { kind: 'protocol', message: /Bearer \*\*\*/ })
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
  await fails(
    t,
    call(mcp, specOf(rig)),
    { kind: 'disconnected', sent: true },
    'the stream is cut without an end',
  )
  rig.on('tools/call', ({ request }) => void request.socket.destroy())
  await fails(
    t,
    call(mcp, specOf(rig)),
    { kind: 'disconnected', sent: true },
    'the connection is cut before any answer',
  )
})

t.test(
  'a call whose stream breaks after an event id is resumed after that event, until it says more',
  async (t) => {
    for (const resumptions of [1, 3]) {
      const rig = await startRig(t)
      let callId: number | string | undefined
      rig.on('tools/call', ({ rpc, stream, response }) => {
        callId = rpc.id
        stream().raw('id: e1\nretry: 20\ndata: \n\n')
        response.end()
      })
      rig.on('GET', ({ stream, response }) => {
        if (rig.count('GET') === resumptions)
          stream().send({ id: callId, result: { content: [{ type: 'text', text: 'resumed' }] } }, 'e2')
        else stream().raw(': nothing yet\n\n')
        response.end()
      })
      t.match(await call(door(t), specOf(rig)), { content: [{ text: 'resumed' }] })
      const after = rig.asked.flatMap(({ http, headers }) =>
        http === 'GET' ? [headers['last-event-id']] : [],
      )
      t.strictSame(after, Array(resumptions).fill('e1'))
    }
  },
)

t.test('a call whose stream breaks at a modern server fails at once and is not resumed', async (t) => {
  for (const isCut of [false, true]) {
    const rig = await startRig(t, 'modern')
    rig.on('tools/call', ({ stream, response }) => {
      stream()
      // The server asks for a wait that the test would notice
      response.write('id: e1\nretry: 60000\ndata: \n\n', () => (isCut ? response.destroy() : response.end()))
    })
    await fails(t, call(door(t), specOf(rig)), { kind: 'disconnected', sent: true })
    t.equal(rig.count('GET'), 0)
  }
})

t.test(
  'a server that breaks every resumed stream is asked ever more rarely, and not after the call',
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
    await fails(t, call(door(t), specOf(rig), 'tool', {}, { timeoutMs: 700 }), {
      kind: 'timeout',
      sent: true,
    })
    const asked = rig.count('GET')
    t.ok(asked >= 1 && asked < 8, `the stream was resumed ${asked} times in 700 ms`)
    await sleep(1_000)
    t.ok(rig.count('GET') <= asked + 1, 'the server is not asked after the call')
  },
)

t.test('a stream that was to be resumed later is left alone once its call is over', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/call', ({ stream, response }) => {
    stream().raw('id: e1\nretry: 400\ndata: \n\n')
    response.end()
  })
  await fails(t, call(door(t), specOf(rig), 'tool', {}, { timeoutMs: 200 }), { kind: 'timeout', sent: true })
  await sleep(600)
  t.equal(rig.count('GET'), 0)
})

t.test('calls whose streams are cut together do not wait for each other to be resumed', async (t) => {
  const rig = await startRig(t)
  const CALLS = 12
  rig.on('tools/call', async ({ rpc, stream, response }) => {
    stream().raw(`id: e${rpc.id}\nretry: 20\ndata: \n\n`)
    await rig.arrival('tools/call', CALLS)
    response.end()
  })
  rig.on('GET', ({ request, stream, response }) => {
    const id = Number(String(request.headers['last-event-id']).slice(1))
    stream().send({ id, result: { content: [{ type: 'text', text: 'resumed' }] } }, 'last')
    response.end()
  })
  const mcp = door(t)
  const calls = Array.from({ length: CALLS }, () => call(mcp, specOf(rig), 'tool', {}, { timeoutMs: 5_000 }))
  for (const answer of await Promise.all(calls)) t.match(answer, { content: [{ text: 'resumed' }] })
})

t.test('a server that asks for a wait longer than a timer can hold is not asked at once', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/call', ({ stream, response }) => {
    stream().raw('id: e1\nretry: 99999999999\ndata: \n\n')
    response.end()
  })
  await fails(t, call(door(t), specOf(rig), 'tool', {}, { timeoutMs: 300 }), { kind: 'timeout', sent: true })
  t.equal(rig.count('GET'), 0)
})

t.test('a call fails at once if its answer cannot come any more', async (t) => {
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
  await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: true }, 'an answer to another request')
  rig.on('tools/call', ({ status }) => status(200, { 'content-type': 'text/html' }, '<h1>Hello</h1>'))
  await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: true })
})

t.test('an answer that is not valid JSON-RPC is reported in few words', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const members = Object.fromEntries(Array.from({ length: 10_000 }, (_, i) => [`member${i}`, i]))
  const frames: ((id: unknown) => string)[] = [
    (id) => JSON.stringify({ jsonrpc: '1.0', id, result: { content: [] } }),
    (id) => JSON.stringify({ jsonrpc: '2.0', id, result: { content: [] }, ...members }),
    (id) => `{"jsonrpc":"2.0","id":${id},"result":{"content":[],"structuredContent":NaN}}`,
    () => '',
  ]
  for (const frame of frames) {
    rig.on('tools/call', ({ rpc, status }) =>
      status(200, { 'content-type': 'application/json' }, frame(rpc.id)),
    )
    const message = 'rig: the answer is not valid JSON-RPC.'
    await fails(t, call(mcp, specOf(rig)), { kind: 'protocol', sent: true, message })
  }
})

t.test('progress is heard while a call runs, also of a server that compresses what it may', async (t) => {
  const rig = await startRig(t)
  let heard = () => {}
  const isHeard = new Promise<void>((resolve) => {
    heard = resolve
  })
  rig.on('tools/call', async ({ rpc, request, response }) => {
    const isPacked = /gzip/.test(String(request.headers['accept-encoding']))
    response.writeHead(200, {
      'content-type': 'text/event-stream',
      ...(isPacked && { 'content-encoding': 'gzip' }),
    })
    response.flushHeaders()
    const packed = createGzip()
    packed.pipe(response)
    const out = isPacked ? packed : response
    const send = (message: object) => out.write(`data: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`)
    const { progressToken } = rpc.params._meta
    send({ method: 'notifications/progress', params: { progressToken, progress: 1 } })
    await isHeard
    send({ id: rpc.id, result: { content: RAN.content } })
    out.end()
  })
  t.match(await call(door(t), specOf(rig), 'tool', {}, { onProgress: heard, timeoutMs: 2_000 }), RAN)
})

t.test('an event stream is recognised in whatever case its media type is written', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/call', ({ rpc, status }) => {
    const frame = JSON.stringify({ jsonrpc: '2.0', id: rpc.id, result: { content: RAN.content } })
    return status(200, { 'content-type': 'Text/Event-Stream;charset=utf-8' }, `data: ${frame}\n\n`)
  })
  t.match(await call(door(t), specOf(rig)), RAN)
})

t.test('a hung call ends at its time limits or with its caller, and the server is told', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const spec = specOf(rig)
  rig.on('tools/call', ({ stream }) => void stream())
  await fails(t, call(mcp, spec, 'tool', {}, { timeoutMs: 1_000 }), { kind: 'timeout', sent: true })
  t.equal(
    (await rig.arrival('notifications/cancelled')).rpc?.params.requestId,
    (await rig.arrival('tools/call')).rpc?.id,
  )
  await fails(t, call(mcp, spec, 'tool', {}, { maxTotalMs: 1_000 }), { kind: 'timeout', sent: true })

  const leaving = new AbortController()
  const left = call(mcp, spec, 'tool', {}, { signal: leaving.signal })
  await rig.arrival('tools/call', 3)
  leaving.abort()
  await fails(t, left, { kind: 'cancelled', sent: true })
  await rig.arrival('notifications/cancelled', 3)
  await fails(t, call(mcp, spec, 'tool', {}, { signal: AbortSignal.abort() }), {
    kind: 'cancelled',
    sent: false,
  })
  t.equal(rig.count('tools/call'), 3, 'a call that was given up beforehand is not sent')
})

t.test('a call that is given up while it waits for the end of a rate limit is not sent again', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  rig.on('tools/call', ({ status }) => status(429, { 'retry-after': '1' }))
  for (const limit of [{ timeoutMs: 500 }, { maxTotalMs: 500 }])
    await fails(t, call(mcp, specOf(rig), 'tool', {}, limit), { kind: 'timeout', sent: false })
  const leaving = new AbortController()
  const left = call(mcp, specOf(rig), 'tool', {}, { signal: leaving.signal })
  await rig.arrival('tools/call', 3)
  await sleep(300)
  leaving.abort()
  await fails(t, left, { kind: 'cancelled', sent: false })
  await sleep(1_000)
  t.equal(rig.count('tools/call'), 3, 'none is sent at the end of its wait')
})

t.test('a call that is given up while it waits for its token is never sent', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  let held: Promise<unknown> = Promise.resolve()
  let release = (): void => {}
  const hold = () => {
    held = new Promise<void>((resolve) => {
      release = resolve
    })
  }
  const auth = { token: async () => held.then(() => 'token'), onUnauthorized: async () => void (await held) }
  const spec = specOf(rig, { auth })
  const unsent = { kind: 'timeout', sent: false, message: /not renewed in time|no answer within/ }
  await call(mcp, spec)

  for (const limit of [{ timeoutMs: 50 }, { maxTotalMs: 50 }]) {
    hold()
    await fails(t, call(mcp, spec, 'tool', {}, limit), unsent, Object.keys(limit).join())
    release()
  }
  const leaving = new AbortController()
  hold()
  const left = call(mcp, spec, 'tool', {}, { signal: leaving.signal })
  await sleep(20)
  leaving.abort()
  await fails(t, left, { kind: 'cancelled', sent: false })
  release()
  await rig.arrival('notifications/cancelled', 3)
  t.equal(rig.count('tools/call'), 1)

  hold()
  release()
  rig.on('tools/call', ({ status }) => {
    hold()
    status(401)
  })
  await fails(
    t,
    call(mcp, spec, 'tool', {}, { maxTotalMs: 1_500 }),
    unsent,
    'a call whose token was refused counts as not sent',
  )
  release()

  rig.on('tools/call', ({ stream, response }) => {
    stream().raw('id: e1\nretry: 20\ndata: \n\n')
    response.end()
  })
  for (const refusal of [401, 429]) {
    rig.on('GET', ({ status }) => {
      hold()
      status(refusal, { 'retry-after': '60' })
    })
    await fails(
      t,
      call(mcp, spec, 'tool', {}, { maxTotalMs: 750 }),
      { kind: 'timeout', sent: true },
      `a call whose stream began counts as sent, also if its resumption is refused (${refusal})`,
    )
    release()
  }
})

t.test('a call that is over holds no socket, and hung calls do not hold up others', async (t) => {
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
    fails(t, call(mcp, specOf(rig), 'tool', {}, { timeoutMs: 1_500 }), { kind: 'timeout' }),
  )
  await rig.arrival('tools/call', 40)
  t.same(await call(mcp, specOf(rig), 'quick'), RAN)
  await Promise.all(hung)
  await Promise.all(closed)
  t.equal(closed.length, 40)
  await call(mcp, specOf(rig), 'answers and stays open')
  await closed.at(-1)
})

t.test('a cancelled call at a modern server closes its stream and sends no notification', async (t) => {
  const rig = await startRig(t, 'modern')
  const leaving = new AbortController()
  const closed = new Promise<void>((resolve) =>
    rig.on('tools/call', ({ stream, response }) => {
      stream()
      response.once('close', resolve)
      leaving.abort()
    }),
  )
  await fails(t, call(door(t), specOf(rig), 'tool', {}, { signal: leaving.signal }), {
    kind: 'cancelled',
    sent: true,
  })
  await closed
  t.equal(rig.count('notifications/cancelled'), 0)
})

t.test('progress is passed on and prolongs a slow call up to the limit for the whole call', async (t) => {
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
    }, 150)
    response.once('close', () => clearInterval(timer))
  })
  const seen: number[] = []
  t.teardown(() => mock.restoreAll())
  const result = await call(
    mcp,
    specOf(rig),
    'tool',
    {},
    {
      timeoutMs: 1_000,
      onProgress: ({ progress, total, message }) => {
        if (seen.push(progress) === 1) {
          const tomorrow = Date.now() + 86_400_000
          mock.method(Date, 'now', () => tomorrow)
        }
        t.same([total, message], [8, 'on it'])
      },
    },
  )
  t.match(result, { content: [{ text: 'done' }] })
  t.same(seen, [1, 2, 3, 4, 5, 6, 7, 8])
  steps = Number.POSITIVE_INFINITY
  await fails(t, call(mcp, specOf(rig), 'tool', {}, { timeoutMs: 5_000, maxTotalMs: 300 }), {
    kind: 'timeout',
    message: /300 ms/,
  })
})

t.test('a flood of messages is read piece by piece, and other work goes on in between', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/call', ({ rpc, stream }) => {
    const { raw, reply } = stream()
    const params = { progressToken: rpc.params._meta.progressToken, progress: 1 }
    raw(
      `data: ${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/progress', params })}\n\n`.repeat(500),
    )
    reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  let seen = 0
  let seenInBetween = 0
  const onProgress = (): void => {
    if (seen++ > 0) return
    setImmediate(() => {
      seenInBetween = seen
    })
  }
  t.same(await call(door(t), specOf(rig), 'tool', {}, { onProgress }), RAN)
  t.equal(seen, 500)
  t.ok(seenInBetween > 0 && seenInBetween < 500, `other work had its turn after ${seenInBetween} messages`)
})

t.test('a server that floods the client with requests is answered a few at a time', async (t) => {
  const rig = await startRig(t)
  rig.on('tools/call', ({ rpc, stream }) => {
    const { raw, reply } = stream()
    const ping = (id: number): string => `data: ${JSON.stringify({ jsonrpc: '2.0', id, method: 'ping' })}\n\n`
    raw(Array.from({ length: 800 }, (_, i) => ping(i % 20)).join(''))
    reply({ content: [{ type: 'text', text: rpc.method }] })
  })
  const mcp = door(t)
  t.match(await call(mcp, specOf(rig)), { content: [{ text: 'tools/call' }] })
  rig.on('tools/call', ({ stream }) => {
    const { send, reply } = stream()
    send({ id: 'last', method: 'ping' })
    reply({ content: [{ type: 'text', text: 'ran' }] })
  })
  t.same(await call(mcp, specOf(rig)), RAN)
  const answers = () => rig.asked.filter(({ http, rpc }) => http === 'POST' && rpc?.method === undefined)
  while (!answers().some(({ rpc }) => String(rpc?.id) === 'last')) await new Promise(setImmediate)
  t.ok(answers().length < 400, `${answers().length} answers were sent to the flood and to the last ping`)
})

t.test('a call that is over leaves no listener on its caller’s signal', async (t) => {
  const rig = await startRig(t)
  const mcp = door(t)
  const { signal } = new AbortController()
  const made = () => call(mcp, specOf(rig), 'tool', {}, { signal })
  rig.on('tools/call', ({ reply }) => reply({ content: [] }))
  await made()
  rig.on('tools/call', ({ request }) => void request.socket.destroy())
  await fails(t, made(), { kind: 'disconnected' })
  t.strictSame(getEventListeners(signal, 'abort'), [])
})
