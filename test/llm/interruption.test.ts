/** What ends a call before its answer does: timeouts, cancellation, the end of the process. */
import { getEventListeners } from 'node:events'
import type { ServerResponse } from 'node:http'
import t from 'tap'
import type { LlmDeps, ModelCall } from '../../src/llm.ts'
import type { Deployment } from '../../src/provider.ts'
import { gate } from '../waiting.ts'
import {
  type Answer,
  bench,
  collect,
  cut,
  failure,
  frame,
  newCall,
  rawServer,
  SSE,
  status,
  textOf,
  USAGE,
  unended,
  upstreamServer,
  vendor,
  WHOLE,
  whole,
} from './made-up-vendor.ts'

t.test('timeouts', async (t) => {
  t.test('a call whose first byte does not come in time is not tried again', async (t) => {
    const server = await upstreamServer(t, () => {})
    const error = await failure(bench(t, server.url, { limits: { firstByteTimeoutMs: 500 } }).call())
    t.match(error, { code: 'upstream_timeout', details: { phase: 'headers' } })
    t.equal(server.requests.length, 1)
  })

  t.test('a stream that falls silent fails with its events delivered; pings keep it alive', async (t) => {
    let pings = 0
    const server = await upstreamServer(t, (response) => {
      response.writeHead(200, SSE).write(frame({ text: 'a' }))
      const timer = setInterval(() => {
        if (++pings < 12) return response.write(': ping\n\n')
        clearInterval(timer)
      }, 100)
    })
    const { batches, thrown } = await collect(
      bench(t, server.url, { limits: { firstByteTimeoutMs: 1000, idleTimeoutMs: 1000 } }).call(),
    )
    t.equal(textOf(batches), 'a')
    t.match(thrown, { code: 'upstream_timeout', details: { phase: 'body' } })
    t.equal(pings, 12, 'each ping put the end off')
    const silent = await upstreamServer(t, unended(frame({ text: 'a' })))
    const began = performance.now()
    const soon = await failure(bench(t, silent.url, { limits: { idleTimeoutMs: 50 } }).call())
    t.match(soon, { code: 'upstream_timeout', details: { phase: 'body' } })
    t.ok(performance.now() - began < 20_000, 'the limit for the first byte is another one')
  })

  t.test('a call that gets no free connection in time is not tried again', async (t) => {
    const server = await upstreamServer(t, unended(frame({ text: 'a' })))
    const { call, retries } = bench(t, server.url, {
      limits: { upstreamConnections: 1, firstByteTimeoutMs: 500 },
    })
    await call().first
    t.match(await failure(call()), { code: 'upstream_timeout', details: { phase: 'queue' } })
    t.same(retries, [])
    t.equal(server.requests.length, 1)
  })

  t.test('a call whose connection is not made in time is tried again', async (t) => {
    // TLS is never answered, so the connection is never made.
    const server = await rawServer(t, () => {})
    const { call, waits } = bench(t, `https://127.0.0.1:${server.port}`, { limits: { connectTimeoutMs: 10 } })
    const error = await failure(call())
    t.match(error, { code: 'upstream_timeout', details: { phase: 'connect' } })
    t.equal(waits.length, 2)
  })
})

t.test('cancellation', async (t) => {
  t.test('a cancel destroys the socket and ends with its reason, wherever the call stands', async (t) => {
    const reason = new Error('cancelled by a person')
    const cases: [name: string, answer: Answer][] = [
      ['before the head', () => {}],
      ['in the body', unended(frame({ text: 'a' }))],
      ['in a refusal', (response) => response.writeHead(400).write('no')],
    ]
    for (const [name, answer] of cases) {
      const { opened: asked, open: arrived } = gate()
      const { opened: closed, open: gone } = gate()
      const server = await upstreamServer(t, (response, request) => {
        response.once('close', gone)
        answer(response, request)
        // Once the call has read what there is.
        setTimeout(arrived, 20)
      })
      const abort = new AbortController()
      const { call, calls, logged } = bench(t, server.url)
      const done = collect(call({ signal: abort.signal }))
      await asked
      abort.abort(reason)
      t.equal((await done).thrown, reason, name)
      await closed
      t.match(calls, [{ outcome: 'cancelled' }])
      t.match(
        logged.map((line) => JSON.parse(line)),
        [{ level: 30, outcome: 'cancelled' }],
      )
    }
  })

  t.test('a cancel ends a call before anything is sent, and while a retry waits', async (t) => {
    const server = await upstreamServer(t, status(503))
    const early = await collect(bench(t, server.url).call({ signal: AbortSignal.abort('early') }))
    t.equal(early.thrown, 'early')
    t.equal(server.requests.length, 0)

    const abort = new AbortController()
    const pause: LlmDeps['pause'] = async () => abort.abort('while waiting')
    const { call, logged } = bench(t, server.url, { pause })
    const late = await collect(call({ signal: abort.signal }))
    t.equal(late.thrown, 'while waiting')
    t.match(JSON.parse(logged.at(-1) ?? ''), { outcome: 'cancelled', attempts: 1 })
    t.equal(server.requests.length, 1)
  })

  t.test('a cancel ends a call while its credential is renewed', async (t) => {
    const server = await upstreamServer(t, status(401))
    const abort = new AbortController()
    const { signal } = abort
    const renewal = () => {
      setImmediate(() => abort.abort('no longer wanted'))
      return new Promise<never>(() => {})
    }
    const before = await collect(bench(t, server.url).call({ signal, secret: renewal }))
    t.equal(before.thrown, 'no longer wanted')
    t.equal(server.requests.length, 0)
    const again = new AbortController()
    const onUnauthorized = () => {
      setImmediate(() => again.abort('nor now'))
      return new Promise<never>(() => {})
    }
    const after = await collect(bench(t, server.url).call({ signal: again.signal, onUnauthorized }))
    t.equal(after.thrown, 'nor now')
    t.equal(server.requests.length, 1)
    t.strictSame(getEventListeners(again.signal, 'abort'), [])
  })

  t.test('a fault in the code that takes the events ends the call and closes the socket', async (t) => {
    const { opened: closed, open: gone } = gate()
    const server = await upstreamServer(t, (response) => {
      response.once('close', gone)
      response.writeHead(200, SSE).write(frame({ text: 'a' }))
    })
    const fault = new Error('a fault of ours')
    const calling = bench(t, server.url).llm.stream(newCall(), () => {
      throw fault
    })
    t.equal(await calling.catch((thrown: unknown) => thrown), fault)
    await closed
    t.equal(server.requests.length, 1)
  })

  t.test('a cancel of a call that waits for a connection leaves the connection in use alone', async (t) => {
    const held: ServerResponse[] = []
    const server = await upstreamServer(t, (response) => {
      held.push(response)
      response.writeHead(200, SSE).write(frame({ text: 'a' }))
    })
    const { call } = bench(t, server.url, { limits: { upstreamConnections: 1 } })
    const running = call()
    await running.first
    const abort = new AbortController()
    const beforeSend = () => t.fail('nobody waits for its answer')
    const waiting = collect(call({ signal: abort.signal, beforeSend }))
    await new Promise((resolve) => setImmediate(resolve))
    abort.abort('no longer wanted')
    t.equal((await waiting).thrown, 'no longer wanted')
    held[0]?.end(frame({ text: 'b' }) + frame({ finish: true }))
    await running.done
    t.match(running.batches, [[{ text: 'a' }], [{ text: 'b' }, { type: 'finish' }]])
    const next = call()
    await next.first
    held[1]?.end(frame({ finish: true }))
    await next.done
    t.equal(server.requests.length, 2)
  })
})

t.test('closing ends the calls in flight', async (t) => {
  const server = await upstreamServer(t, unended(frame({ text: 'a' })), () => {})
  const { call, llm, retries } = bench(t, server.url)
  const { first, done } = call()
  await first
  const unanswered = call()
  await llm.close()
  for (const one of [done, unanswered.done]) await t.rejects(one, { code: 'draining' })
  t.same(retries, [])
})

t.test('a call that is over no longer listens to the signal of its caller, nor has a clock', async (t) => {
  const clocks = () => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length
  const cases = [[whole], [unended(WHOLE)], [status(400)], [status(503), whole], [cut(frame({ text: 'a' }))]]
  for (const answers of cases) {
    const server = await upstreamServer(t, ...answers)
    const { signal } = new AbortController()
    const before = clocks()
    await collect(bench(t, server.url).call({ signal }))
    t.strictSame(getEventListeners(signal, 'abort'), [])
    t.equal(clocks(), before)
  }
})

t.test('what the vendor counted before its first word is passed on if the call ends then', async (t) => {
  const counted = frame({ usage: USAGE })
  const ended = async (answer: Answer, own: Partial<ModelCall>, outcome: string) => {
    const { call, calls } = bench(t, (await upstreamServer(t, answer)).url)
    const { batches } = await collect(call(own))
    t.strictSame(batches.flat(), [{ type: 'usage', usage: USAGE }], outcome)
    t.match(calls, [{ outcome, usage: USAGE, firstEventMs: null }])
  }
  await ended(cut(counted), {}, 'upstream_disconnected')

  const abort = new AbortController()
  const parser: Deployment['parser'] = (...given) => {
    const { push, end } = vendor.parser(...given)
    const pushed: typeof push = (frame) => {
      setImmediate(() => abort.abort('no longer wanted'))
      return push(frame)
    }
    return { push: pushed, end }
  }
  await ended(unended(counted), { signal: abort.signal, deployment: { ...vendor, parser } }, 'cancelled')
})
