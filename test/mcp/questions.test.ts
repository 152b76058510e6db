/** Requests of a server to its client: how many are answered at a time. */

import { mock } from 'node:test'
import type { JSONRPCMessage, Transport } from '@modelcontextprotocol/client'
import t from 'tap'
import { ATTEMPT_MS } from '../../src/mcp/contract.ts'
import { exchanges } from '../../src/mcp/exchange.ts'
import { tap } from '../../src/mcp/tap.ts'

/** A transport whose answers leave when the test lets them go, under a client that answers at once, or when it is told. */
function asked({ isAnswering = true } = {}) {
  const leaving: { id: unknown; go(): void }[] = []
  const transport: Transport = {
    start: async () => {},
    close: async () => {},
    send: (message) =>
      new Promise((go) => {
        leaving.push({ id: 'id' in message ? message.id : null, go })
      }),
  }
  const { deliver } = tap(transport, { onResult: (_, result) => result, answersInResponse: () => true })
  const heard: unknown[] = []
  const answer = (id: string | number) => void transport.send({ jsonrpc: '2.0', id, result: {} })
  transport.onmessage = (message: JSONRPCMessage) => {
    if (!('id' in message && 'method' in message) || message.id === undefined) return
    heard.push(message.id)
    if (isAnswering) answer(message.id)
  }
  const ask = (id: number, params = {}) => deliver({ jsonrpc: '2.0', id, method: 'ping', params })
  const cancel = (requestId: number) =>
    deliver({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } })
  return { leaving, heard, ask, answer, cancel }
}

const settled = () => new Promise(setImmediate)

t.test('every request of a burst is answered, a few at a time', async (t) => {
  const { leaving, ask } = asked()
  for (let id = 0; id < 40; id++) ask(id)
  t.equal(leaving.length, 4)
  for (let i = 0; i < 40; i++) {
    leaving[i]?.go()
    await settled()
  }
  t.same(
    leaving.map(({ id }) => id),
    Array.from({ length: 40 }, (_, id) => id),
  )
})

t.test('an answer counts until it has left, even if its request is cancelled', async (t) => {
  const { leaving, ask, cancel } = asked()
  for (let id = 0; id < 300; id++) {
    ask(id)
    cancel(id)
  }
  t.equal(leaving.length, 4)
  leaving[0]?.go()
  await settled()
  t.equal(leaving.length, 4, 'requests that were cancelled while they waited are not answered')
  ask(300)
  t.equal(leaving.at(-1)?.id, 300)
})

t.test('a request counts until it is answered or cancelled, itself and no other', async (t) => {
  const { leaving, heard, ask, answer, cancel } = asked({ isAnswering: false })
  for (let id = 1; id <= 8; id++) ask(id)
  t.same(heard, [1, 2, 3, 4])
  cancel(99)
  cancel(6)
  t.same(heard, [1, 2, 3, 4], 'neither an unknown one nor one that waits')
  answer(2)
  leaving[0]?.go()
  await settled()
  t.same(heard, [1, 2, 3, 4, 5])
  cancel(1)
  t.same(heard, [1, 2, 3, 4, 5, 7])
})

t.test('requests of a flood beyond those that may wait are not answered', async (t) => {
  const { leaving, ask } = asked()
  for (let id = 0; id < 1_000; id++) ask(id)
  for (let i = 0; i < leaving.length; i++) {
    leaving[i]?.go()
    await settled()
  }
  t.equal(leaving.length, 4 + 256)
})

t.test(
  'of the requests that wait none is large: a server may send megabytes and take no answer',
  async (t) => {
    const { leaving, ask } = asked()
    const large = [{ text: 'a'.repeat(20_000) }, { list: Array.from({ length: 2_000 }, () => 0) }]
    for (const [id, params] of [...large, {}, {}, ...large, {}].entries()) ask(id, params)
    for (let i = 0; i < leaving.length; i++) {
      leaving[i]?.go()
      await settled()
    }
    t.same(
      leaving.map(({ id }) => id),
      [0, 1, 2, 3, 6],
      'those that need not wait are answered, however large',
    )
  },
)

t.test('a notification that the server does not accept in time is given up', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const signals: (AbortSignal | undefined)[] = []
  let accept = (): void => {}
  const transport: Transport = {
    start: async () => {},
    close: async () => {},
    send: () => {
      signals.push(exchanges.getStore()?.signal)
      return new Promise((resolve) => {
        accept = resolve
      })
    },
  }
  tap(transport, { onResult: (_, result) => result, answersInResponse: () => true })
  const notify = () =>
    transport.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } })
  void notify()
  t.equal(signals[0]?.aborted, false)
  mock.timers.tick(ATTEMPT_MS)
  t.equal(signals[0]?.aborted, true)
  const accepted = notify()
  accept()
  await accepted
  t.equal(signals[1]?.aborted, true, 'one that is accepted is over at once')
})
