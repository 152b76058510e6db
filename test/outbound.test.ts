/** Which requests to the vendors take the forward proxy, and how it is asked. */
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { request } from 'undici'
import { type ForwardProxy, upstreamAgent } from '../src/outbound.ts'

/** A proxy that notes what it is asked for and lets nothing through. */
async function proxy(t: Test) {
  const asked: IncomingMessage[] = []
  const server = createServer((_, response) => void response.end('not by CONNECT'))
  server.on('connect', (message, socket) => {
    asked.push(message)
    socket.end('HTTP/1.1 403 Forbidden\r\n\r\n')
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  t.teardown(() => new Promise((done) => server.close(done)))
  const { port } = server.address() as AddressInfo
  return { asked, port, url: `http://me:p%40ss@127.0.0.1:${port}` }
}

async function get(t: Test, through: ForwardProxy | null, url: string) {
  const dispatcher = upstreamAgent(through, {})
  t.teardown(() => dispatcher.destroy())
  return request(url, { dispatcher, signal: AbortSignal.timeout(5000) }).then(
    ({ body }) => body.text(),
    (failure: Error) => failure.message,
  )
}

t.test('https goes through the proxy, which is told who asks', async (t) => {
  const { asked, url } = await proxy(t)
  t.match(await get(t, { url, except: '' }, 'https://api.vendor.test/v1'), /403/)
  t.equal(asked.length, 1)
  t.equal(asked[0]?.url, 'api.vendor.test:443')
  const basic = `Basic ${Buffer.from('me:p@ss').toString('base64')}`
  t.equal(asked[0]?.headers['proxy-authorization'], basic)
})

t.test('loopback roots, and what it is not for, are reached without it', async (t) => {
  const { asked, port, url } = await proxy(t)
  t.equal(await get(t, { url, except: '' }, `http://127.0.0.1:${port}/v1`), 'not by CONNECT')
  for (const except of ['', '*']) {
    for (const host of ['127.0.0.1', 'localhost', '[::1]'])
      t.match(await get(t, { url, except }, `https://${host}:1/`), /ECONNREFUSED|EADDRNOTAVAIL|^$/)
  }
  await get(t, { url, except: 'other.test, vendor.localhost' }, 'https://api.vendor.localhost:1/')
  await get(t, null, 'https://127.0.0.1:1/')
  t.same(asked, [])
})
