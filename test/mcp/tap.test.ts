/** Requests to a server: each has one answer. */
import type { Transport } from '@modelcontextprotocol/client'
import t from 'tap'
import { tap } from '../../src/mcp/tap.ts'

/** A tap whose transport sends with `send`, and what the client hears through it. */
function tapped(send: Transport['send'] = async () => {}) {
  const transport: Transport = { start: async () => {}, close: async () => {}, send }
  const read: unknown[] = []
  const heard: unknown[] = []
  const { deliver, fail } = tap(transport, {
    onResult: ({ id }, result) => {
      read.push(id)
      return result
    },
    answersInResponse: () => false,
  })
  transport.onmessage = (message) => heard.push(message)
  const ask = (id: number) => transport.send({ jsonrpc: '2.0', id, method: 'tools/call' })
  const answer = async (id: number | string) => deliver({ jsonrpc: '2.0', id, result: {} })
  return { transport, read, heard, ask, answer, fail }
}

t.test('a request that was answered is over, and so is one that failed', async (t) => {
  const { read, heard, ask, answer, fail } = tapped()
  await ask(1)
  await answer(1)
  fail(1, 'disconnected', 'the stream ended')
  await answer(1)
  t.same(read, [1])
  t.equal(heard.length, 2, 'the second answer is left to the client')
  await ask(2)
  fail(2, 'disconnected', 'the stream ended')
  await answer(2)
  t.same(read, [1])
  t.match(heard[2], { id: 2, error: { message: 'the stream ended' } })
  await ask(3)
  await answer('3')
  fail(3, 'disconnected', 'the stream ended')
  t.same(read, [1, 3], 'its id may come back as text')
  t.equal(heard.length, 5)
})

t.test('a request that was not sent, or was cancelled, is over', async (t) => {
  const refused = tapped(async () => {
    throw new Error('away')
  })
  await t.rejects(refused.ask(1), { message: 'away' })
  await refused.answer(1)
  t.same(refused.read, [])
  const { transport, read, ask, answer } = tapped()
  await ask(1)
  await transport.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } })
  await answer(1)
  const leaving = new AbortController()
  const { signal: requestSignal } = leaving
  await transport.send({ jsonrpc: '2.0', id: 2, method: 'tools/call' }, { requestSignal })
  leaving.abort()
  await answer(2)
  t.same(read, [])
})
