/** Which requests to vendors and to connectors take the forward proxy, and how the proxy is asked. */
import { createServer, type IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { request } from 'undici'
import { createGuard, type GuardOptions } from '../src/guard.ts'
import { type ForwardProxy, upstreamAgent } from '../src/outbound.ts'
import { listening } from './listening.ts'

const refuses = (socket: Duplex): unknown => socket.end('HTTP/1.1 403 Forbidden\r\n\r\n')

/** A proxy that notes what it is asked for. */
async function proxy(t: Test, answer: (socket: Duplex) => unknown = refuses) {
  const asked: IncomingMessage[] = []
  const server = createServer((_, response) => void response.end('not by CONNECT'))
  server.on('connect', (message, socket) => {
    asked.push(message)
    answer(socket)
  })
  const port = await listening(t, server)
  return { asked, port, url: `http://me:p%40ss@127.0.0.1:${port}` }
}

/** A proxy that leads nowhere: it keeps the bytes that a tunnel begins with, and closes the tunnel. */
async function tunnel(t: Test) {
  const hellos: Buffer[] = []
  const made = await proxy(t, (socket) => {
    socket.once('data', (hello: Buffer) => {
      hellos.push(hello)
      socket.destroy()
    })
    socket.write('HTTP/1.1 200 OK\r\n\r\n')
  })
  return { ...made, hellos }
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

  const nameless = url.replace('//me:', '//:')
  await get(t, { url: nameless, except: '' }, 'https://api.vendor.test/v1')
  t.equal(asked[1]?.headers['proxy-authorization'], `Basic ${Buffer.from(':p@ss').toString('base64')}`)
})

t.test('loopback roots, and hosts that the proxy is not for, are reached without it', async (t) => {
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
  const { url, hellos } = await tunnel(t)
  t.match(await get(t, { url, except: '' }, 'https://api.vendor.test/v1'), /ECONNRESET|UND_ERR_SOCKET/)
  t.equal(hellos[0]?.[0], 22, 'a handshake (RFC 8446 5.1)')
  t.match(hellos[0]?.toString('latin1'), /api\.vendor\.test/)
})

// ---------------------------------------------------------------- connectors, by the guarded fetch

const NAMES: Record<string, string[]> = {
  'public.test': ['93.184.215.14', '2606:2800:21f:cb07:6820:80da:af6b:8b2c'],
  'inner.test': ['10.0.0.7'],
  'here.test': ['127.0.0.1'],
  'wide.test': Array.from({ length: 4_000 }, (_, i) => `93.184.${i >> 8}.${i & 255}`),
}

/** The outcome of a connector's request, in words. */
function connectorGet(t: Test, options: Partial<GuardOptions>) {
  const guard = createGuard({
    allowPrivate: false,
    async resolve(name) {
      const found = NAMES[name]
      if (!found) throw Object.assign(new Error(`no ${name}`), { code: 'ENOTFOUND' })
      return found.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))
    },
    ...options,
  })
  t.teardown(() => guard.close())
  return (url: string): Promise<string> =>
    guard.fetch(url, { signal: AbortSignal.timeout(5_000) }).then(
      ({ status }) => `${status}`,
      (failure: Error & { code?: string; cause?: { code?: string } }) =>
        `${failure.cause?.code ?? failure.code}: ${failure.message}`,
    )
}

const targets = (asked: IncomingMessage[]) => asked.splice(0).map(({ url }) => url)

t.test(
  'a proxy is asked for the addresses of a connector that were checked, one after the other',
  async (t) => {
    const { asked, url } = await proxy(t)
    const get = connectorGet(t, { proxy: { url, except: '', asksFor: 'address' } })
    t.equal(
      await get('https://public.test/mcp'),
      'upstream_disconnected: public.test cannot be reached: the forward proxy gave no tunnel (403).',
    )
    const basic = `Basic ${Buffer.from('me:p@ss').toString('base64')}`
    t.equal(asked[0]?.headers['proxy-authorization'], basic)
    t.same(targets(asked), ['93.184.215.14:443', '[2606:2800:21f:cb07:6820:80da:af6b:8b2c]:443'])
    await get('https://[2606:4700::1]:8443/mcp')
    t.same(targets(asked), ['[2606:4700::1]:8443'])
    await get('https://wide.test/mcp')
    t.equal(targets(asked).length, 16, 'a name of thousands of addresses is no way to ask for all of them')
    t.match(await get('https://inner.test/mcp'), /^address_not_allowed/)
    t.match(await get('https://10.0.0.7/mcp'), /^address_not_allowed/)
    t.match(await get('https://unknown.test/mcp'), /^ENOTFOUND/)
    t.same(targets(asked), [])
  },
)

t.test('a proxy that is asked for names is asked for none that leads inside from here', async (t) => {
  const { asked, url } = await proxy(t)
  const through = { url, except: '', asksFor: 'name' as const }
  const get = connectorGet(t, { proxy: through })
  await get('https://public.test/mcp')
  await get('https://unknown.test:8443/mcp')
  t.same(targets(asked), ['public.test:443', 'unknown.test:8443'])
  t.match(await get('https://inner.test/mcp'), /^address_not_allowed/)
  t.same(targets(asked), [])
  const opened = connectorGet(t, { proxy: through, allowPrivate: ['inner.test'] })
  await opened('https://inner.test/mcp')
  t.same(
    targets(asked),
    ['inner.test:443'],
    'a name that the operator opened is asked for; to except it is for NO_PROXY',
  )
})

t.test('connectors on plain http, on this machine or excepted are reached without the proxy', async (t) => {
  const { asked, port, url } = await proxy(t)
  const except = '.Excepted.test inner.test:444'
  const get = connectorGet(t, { allowPrivate: true, proxy: { url, except, asksFor: 'name' } })
  for (const host of ['127.0.0.1', 'here.test']) t.equal(await get(`http://${host}:${port}/mcp`), '200')
  for (const host of [
    `127.0.0.1:${port}`,
    `[::1]:${port}`,
    `localhost:${port}`,
    'excepted.test',
    'a.excepted.test',
  ])
    t.match(await get(`https://${host}/mcp`), /^(ECONN|EADDRNOTAVAIL|ENOTFOUND|ERR_SSL)/, host)
  t.same(targets(asked), [])
  await get('https://inner.test:445/mcp')
  await get('https://notexcepted.test/mcp')
  t.same(targets(asked), ['inner.test:445', 'notexcepted.test:443'])
  const nobody = connectorGet(t, { proxy: { url: 'http://127.0.0.1:1', except: '', asksFor: 'name' } })
  t.equal(
    await nobody('https://public.test/mcp'),
    'upstream_disconnected: public.test cannot be reached: the forward proxy gave no tunnel (UNREACHABLE).',
  )
})

t.test('behind a tunnel to an address TLS is begun with the name of the connector’s host', async (t) => {
  const { asked, url, hellos } = await tunnel(t)
  const get = connectorGet(t, { proxy: { url, except: '', asksFor: 'address' } })
  t.match(await get('https://public.test/mcp'), /ECONNRESET|UND_ERR_SOCKET/)
  t.equal(hellos[0]?.[0], 22, 'a handshake (RFC 8446 5.1)')
  t.match(hellos[0]?.toString('latin1'), /public\.test/)
  t.same(targets(asked), ['93.184.215.14:443'])
})
