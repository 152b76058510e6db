/** Which requests to the vendors take the forward proxy, and how it is asked. */
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { request } from 'undici'
import { type ForwardProxy, upstreamAgent } from '../src/outbound.ts'

const refuses = (socket: Duplex): unknown => socket.end('HTTP/1.1 403 Forbidden\r\n\r\n')

/** A proxy that notes what it is asked for. */
async function proxy(t: Test, answer: (socket: Duplex) => unknown = refuses) {
  const asked: IncomingMessage[] = []
  const sockets: Duplex[] = []
  const server = createServer((_, response) => void response.end('not by CONNECT'))
  server.on('connect', (message, socket) => {
    asked.push(message)
    sockets.push(socket)
    socket.on('error', () => {})
    answer(socket)
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    return new Promise((done) => server.close(done))
  })
  const { port } = server.address() as AddressInfo
  return { asked, port, url: `http://me:p%40ss@127.0.0.1:${port}` }
}

async function get(t: Test, through: ForwardProxy | null, url: string) {
  const dispatcher = upstreamAgent(through, { connectTimeout: 500 })
  t.teardown(() => dispatcher.destroy())
  return request(url, { dispatcher, signal: AbortSignal.timeout(5000) }).then(
    ({ body }) => body.text(),
    (failure: Error & { code?: string }) => failure.code ?? failure.message,
  )
}

t.test('https goes through the proxy, which is told who asks', async (t) => {
  const { asked, url } = await proxy(t)
  t.equal(await get(t, { url, except: '' }, 'https://api.vendor.test/v1'), 'FORWARD_PROXY_403')
  t.equal(asked.length, 1)
  t.equal(asked[0]?.url, 'api.vendor.test:443')
  const basic = `Basic ${Buffer.from('me:p@ss').toString('base64')}`
  t.equal(asked[0]?.headers['proxy-authorization'], basic)
})

t.test('loopback roots, and what it is not for, are reached without it', async (t) => {
  const { asked, port, url } = await proxy(t)
  t.equal(await get(t, { url, except: '' }, `http://127.0.0.1:${port}/v1`), 'not by CONNECT')
  for (const except of ['', '*', 'x, *']) {
    for (const host of ['127.0.0.1', 'localhost', '[::1]'])
      t.match(await get(t, { url, except }, `https://${host}:1/`), /ECONNREFUSED|EADDRNOTAVAIL|^$/)
  }
  await get(t, { url, except: 'other.test, vendor.localhost' }, 'https://api.vendor.localhost:1/')
  await get(t, null, 'https://127.0.0.1:1/')
  t.same(asked, [])
})

t.test('a proxy that gives no tunnel is asked once for each request, and not waited for', async (t) => {
  for (const answer of [(socket: Duplex) => socket.destroy(), () => {}]) {
    const { asked, url } = await proxy(t, answer)
    const began = performance.now()
    t.equal(await get(t, { url, except: '' }, 'https://api.vendor.test/v1'), 'FORWARD_PROXY_UNREACHABLE')
    t.ok(performance.now() - began < 3000)
    await sleep(50)
    t.equal(asked.length, 1)
  }
})

t.test('behind the tunnel TLS is begun with the host that was asked for', async (t) => {
  let bytes: Buffer = Buffer.alloc(0)
  const { url } = await proxy(t, (socket) => {
    socket.once('data', (hello: Buffer) => {
      bytes = hello
      socket.destroy()
    })
    socket.write('HTTP/1.1 200 OK\r\n\r\n')
  })
  t.match(await get(t, { url, except: '' }, 'https://api.vendor.test/v1'), /ECONNRESET|UND_ERR_SOCKET/)
  t.equal(bytes[0], 22, 'a handshake (RFC 8446 5.1)')
  t.match(bytes.toString('latin1'), /api\.vendor\.test/)
})
