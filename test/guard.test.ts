/** The guarded fetch: which addresses it refuses, and that it dials nothing but what it has checked. */
import { spawn, spawnSync } from 'node:child_process'
import type { LookupAddress } from 'node:dns'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import { connect, createServer as createSocketServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { isPublicAddress } from '../src/addresses.ts'
import { BodyTooLargeError, capBody } from '../src/guard/body.ts'
import { createGuard, createGuards, type Guard, type GuardOptions } from '../src/guard.ts'
import type { Resolve } from '../src/resolve.ts'
import { listening } from './listening.ts'
import type { SsrfReport } from './mcp/servers/ssrf.ts'
import { suspendedWhenAsked } from './suspended.ts'

const PUBLIC_V4 = '93.184.215.14'
const PUBLIC_V6 = '2606:2800:21f:cb07:6820:80da:af6b:8b2c'
const REFUSED = { name: 'BatonError', code: 'address_not_allowed' }

/** No packet leaves: names resolve by this table, and nothing public is ever dialled in these tests. */
const NAMES: Record<string, string[]> = {
  'public.test': [PUBLIC_V4, PUBLIC_V6],
  'inner.test': ['10.0.0.7'],
  'inner.contest': ['10.0.0.7'],
  'mixed.test': [PUBLIC_V4, '127.0.0.1'],
  'mapped.test': ['::ffff:169.254.169.254'],
  'zoned.test': ['fe80::1%eth0'],
}
const addresses = (list: string[]): LookupAddress[] =>
  list.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))
const resolve: Resolve = async (hostname) => {
  const found = NAMES[hostname]
  if (!found) throw Object.assign(new Error(`no ${hostname}`), { code: 'ENOTFOUND' })
  return addresses(found)
}

function guard(t: Test, options: Partial<GuardOptions> = {}): Guard {
  const made = createGuard({ allowPrivate: false, resolve, ...options })
  t.teardown(() => made.close())
  return made
}

/** A server on 127.0.0.1 that counts its connections. */
async function serve(
  t: Test,
  listener: RequestListener,
): Promise<{ origin: string; port: number; connections(): number }> {
  const server = createServer(listener)
  let connections = 0
  server.on('connection', () => connections++)
  const port = await listening(t, server)
  return { origin: `http://127.0.0.1:${port}`, port, connections: () => connections }
}

t.test('special addresses are refused in every spelling', async (t) => {
  const { assertUrl, fetch } = guard(t)
  const hosts = [
    '127.0.0.1',
    '2130706433',
    '0x7f.1',
    '0177.0.0.1',
    '127.1',
    '0x7f000001',
    '①②⑦.⓪.⓪.①',
    '0',
    '0.0.0.0',
    '10.1.2.3',
    '100.64.0.1',
    '168.63.129.16',
    '169.254.169.254',
    '172.16.0.1',
    '172.31.255.255',
    '192.0.0.8',
    '192.0.2.1',
    '192.88.99.1',
    '192.168.1.1',
    '198.18.0.1',
    '198.19.255.255',
    '198.51.100.1',
    '203.0.113.1',
    '224.0.0.1',
    '240.0.0.1',
    '255.255.255.255',
    '[::]',
    '[::1]',
    '[::127.0.0.1]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[::ffff:a00:1]',
    '[64:ff9b::127.0.0.1]',
    '[64:ff9b::a00:1]',
    '[64:ff9b::a83f:8110]',
    '[64:ff9b:1::7f00:1]',
    '[100::1]',
    '[2001::1]',
    '[2001:db8::1]',
    '[2002:7f00:1::]',
    '[2002:a00:1::1]',
    '[3fff::1]',
    '[fc00::1]',
    '[fd12:3456::1]',
    '[fe80::1]',
    '[fec0::1]',
    '[ff02::1]',
    'localhost',
    'LOCALHOST.',
    'api.localhost',
    'inner.test',
    'mixed.test',
    'mapped.test',
    'zoned.test',
  ]
  for (const host of hosts) {
    await t.rejects(assertUrl(`http://${host}/mcp`), { ...REFUSED, param: 'url' }, host)
    await t.rejects(fetch(`http://${host}/mcp`), REFUSED, `fetch of ${host}`)
  }
})

t.test(
  'public addresses pass, also inside IPv6 forms, and so does a name that does not resolve',
  async (t) => {
    const { assertUrl } = guard(t)
    for (const host of [
      PUBLIC_V4,
      `[${PUBLIC_V6}]`,
      '[::ffff:5db8:d70e]',
      '[64:ff9b::5db8:d70e]',
      '[2002:5db8:d70e::1]',
      'public.test',
      'nowhere.test',
    ])
      await t.resolves(assertUrl(`https://${host}/mcp`), host)
    t.equal(isPublicAddress('no address'), false)
  },
)

t.test('names that nobody answers for pass in time, those of one request together', async (t) => {
  const asked: string[] = []
  const over = new AbortController()
  const { assertUrl, refusals } = guard(t, {
    resolve: (name) => {
      asked.push(name)
      if (name === 'in.test') return Promise.resolve(addresses(['10.0.0.7']))
      return sleep(60_000, [], { signal: over.signal })
    },
  })
  const slow = Array.from({ length: 50 }, (_, i) => `https://slow${i}.test/`)
  const began = performance.now()
  const all = ['https://in.test/a', 'https://in.test/b', ...slow, 'http://10.0.0.1/', 'ftp://out.test/']
  const [answers] = await Promise.all([refusals(all), assertUrl('https://alone.test/')])
  t.ok(performance.now() - began < 9_000, 'no longer than for one')
  t.strictSame(
    all.filter((_, i) => answers[i] !== null),
    ['https://in.test/a', 'https://in.test/b', 'http://10.0.0.1/', 'ftp://out.test/'],
  )
  t.match(answers.at(-2), REFUSED)
  const few = ['in.test', 'slow0.test', 'slow1.test', 'slow2.test', 'alone.test', 'slow3.test']
  t.strictSame(asked, few, 'few of one request at a time')
  over.abort()
  await new Promise(setImmediate)
  t.equal(asked.length, 6, 'for the others nobody waits any more')
})

t.test('a name without an address is let in, since it may get one later, but is not reachable', async (t) => {
  const answers: Record<string, string[]> = { 'out.test': ['93.184.215.14'], 'in.test': ['10.0.0.7'] }
  const { assertUrl, isReachable } = guard(t, {
    requireHttps: true,
    resolve: async (name) => addresses(answers[name] ?? []),
  })
  await t.resolves(assertUrl('https://nowhere.test/'))
  for (const [url, is] of [
    ['https://out.test/', true],
    ['https://93.184.215.14/', true],
    ['https://nowhere.test/', false],
    ['https://in.test/', false],
    ['https://10.0.0.7/', false],
    ['http://out.test/', false],
  ] as const)
    t.equal(await isReachable(url), is, url)
})

t.test('only http and https without user information are URLs to fetch', async (t) => {
  const { assertUrl, fetch } = guard(t)
  for (const url of [
    'ftp://public.test/',
    'file:///etc/passwd',
    'data:text/plain,x',
    'https://user:secret@public.test/',
    'https://user@public.test/',
    'https://:secret@public.test/',
  ])
    await t.rejects(assertUrl(url), REFUSED, url)
  await t.rejects(fetch('file:///etc/passwd'), REFUSED)
  await t.rejects(assertUrl('no url'), { code: 'invalid_request', param: 'url' })
  const plain = guard(t, { requireHttps: true }).assertUrl('http://public.test/a')
  await t.rejects(plain, { ...REFUSED, message: 'http://public.test is not allowed, only https URLs are.' })
  const long = guard(t, { requireHttps: true }).assertUrl(`http://${'a'.repeat(900_000)}.test/`)
  await t.rejects(long, { ...REFUSED, message: /^http:\/\/a{993}$/ }, 'no more is said of it')
  await t.resolves(guard(t, { requireHttps: true }).assertUrl('https://public.test/'))
  await t.rejects(guard(t, { requireHttps: true, allowPrivate: true }).fetch('http://127.0.0.1:1/'), REFUSED)
  const error = await assertUrl('https://user:secret@public.test/').catch((thrown) => thrown)
  t.notMatch(error.message, /secret/)
})

t.test('an operator opens addresses by range, address, name or suffix, and nothing beyond', async (t) => {
  const cases: [allow: string[], open: string[], shut: string[]][] = [
    [
      ['10.0.0.0/8'],
      ['http://10.9.9.9/', 'http://[::ffff:10.0.0.1]/', 'http://[64:ff9b::a00:1]/', 'http://inner.test/'],
      ['http://192.168.0.1/', 'http://127.0.0.1/', 'http://zoned.test/'],
    ],
    [
      ['127.0.0.1'],
      ['http://127.0.0.1:1/', 'http://0x7f.1/', 'http://[::ffff:7f00:1]/'],
      ['http://127.0.0.2/', 'http://[::1]/', 'http://localhost/'],
    ],
    [
      ['127.0.0.0/8', '::1'],
      ['http://localhost/', 'http://[::1]/'],
      ['http://10.0.0.1/', 'http://[::]/'],
    ],
    [['::1'], ['http://[::1]/'], ['http://localhost/']],
    [['fd00::/8'], ['http://[fd00::1]/'], ['http://[fc00::1]/']],
    [
      ['Inner.Test'],
      ['http://inner.test/', 'http://INNER.test./'],
      ['http://mapped.test/', 'http://10.0.0.7/'],
    ],
    [
      ['*.test'],
      ['http://mapped.test/', 'http://mixed.test/'],
      ['http://inner.contest/', 'http://10.0.0.7/'],
    ],
    [['localhost'], ['http://localhost:8080/'], ['http://127.0.0.1/']],
  ]
  for (const [allowPrivate, open, shut] of cases) {
    const { assertUrl } = guard(t, { allowPrivate })
    for (const url of open) await t.resolves(assertUrl(url), `${allowPrivate} opens ${url}`)
    for (const url of shut) await t.rejects(assertUrl(url), REFUSED, `${allowPrivate} leaves ${url} shut`)
  }
  await t.resolves(guard(t, { allowPrivate: true }).assertUrl('http://169.254.169.254/'))
})

t.test('a name that is rebound between check and use is refused before anything is dialled', async (t) => {
  const server = await serve(t, (_request, response) => response.end('inner'))
  const answers = [[PUBLIC_V4], ['127.0.0.1']]
  const { assertUrl, fetch } = guard(t, { resolve: async () => addresses(answers.shift() ?? ['127.0.0.1']) })
  const url = `http://rebound.test:${server.port}/`
  await t.resolves(assertUrl(url))
  await t.rejects(fetch(url), REFUSED)
  await t.rejects(fetch(`http://127.0.0.1:${server.port}/`), REFUSED)
  t.equal(server.connections(), 0)
})

t.test('the socket uses exactly the addresses that were checked, resolved once', async (t) => {
  const server = await serve(t, (request, response) => response.end(request.headers.host))
  let lookups = 0
  const { fetch } = guard(t, {
    allowPrivate: ['127.0.0.0/8'],
    resolve: async () => {
      lookups++
      // A second answer would lead nowhere.
      return addresses([lookups === 1 ? '127.0.0.1' : '127.9.9.9'])
    },
  })
  const response = await fetch(`http://named.test:${server.port}/`)
  t.equal(await response.text(), `named.test:${server.port}`)
  t.equal(lookups, 1)
})

t.test('a host that is opened by its name is dialled, also with a dot at the end of the name', async (t) => {
  const server = await serve(t, (_request, response) => response.end('inner'))
  const resolve = async () => addresses(['127.0.0.1'])
  const { fetch } = guard(t, { allowPrivate: ['inner.test'], resolve })
  for (const name of ['inner.test', 'INNER.test.']) {
    t.equal(await (await fetch(`http://${name}:${server.port}/`)).text(), 'inner', name)
  }
  await t.rejects(fetch(`http://other.test:${server.port}/`), REFUSED)
})

t.test('redirects are followed within the origin only', async (t) => {
  const inner = await serve(t, (_request, response) => response.end('inner'))
  const server = await serve(t, (request, response) => {
    const to = new URL(request.url ?? '/', 'http://x').searchParams.get('to')
    if (to === null) return response.end(`${request.method} arrived`)
    const status = Number(new URL(request.url ?? '/', 'http://x').searchParams.get('status') ?? 302)
    response.writeHead(status, { location: to }).end()
  })
  const { fetch } = guard(t, { allowPrivate: true })
  const at = (to: string, status = 302): string =>
    `${server.origin}/?to=${encodeURIComponent(to)}&status=${status}`
  t.equal(await (await fetch(at('/there'))).text(), 'GET arrived')
  t.equal(await (await fetch(at('/there', 307), { method: 'POST', body: 'x' })).text(), 'POST arrived')
  await t.rejects(
    fetch(at('/there', 302), { method: 'POST', body: 'x' }),
    REFUSED,
    'a POST must not become a GET',
  )
  await t.rejects(fetch(at(`${inner.origin}/`)), REFUSED)
  await t.rejects(fetch(at('//127.0.0.1:1/')), REFUSED)
  await t.rejects(fetch(at('file:///etc/passwd')), REFUSED)
  await t.rejects(fetch(at('/there'), { redirect: 'error' }), REFUSED)
  await t.rejects(fetch(`${server.origin}/?to=${encodeURIComponent('?to=')}`), REFUSED, 'a loop ends')
  t.equal((await fetch(at(`${inner.origin}/`), { redirect: 'manual' })).status, 302)
  t.equal(inner.connections(), 0)
})

t.test('a redirect with a sound Location is followed, and a POST only where it stays a POST', async (t) => {
  const server = await serve(t, (request, response) => {
    const [, status, location] = /^\/(\d+)(.*)$/.exec(request.url ?? '') ?? []
    if (status === undefined) return response.end(`${request.method} arrived`)
    // Far more than undici reads on by itself
    const body = Buffer.alloc(4_000_000)
    response.writeHead(Number(status), location ? { location: decodeURI(location.slice(1)) } : {}).end(body)
  })
  // One connection: a redirect's body must not hold it.
  const { fetch } = guard(t, { allowPrivate: true, connections: 1 })
  for (const status of [301, 302, 303, 307, 308]) {
    const get = await fetch(`${server.origin}/${status}?/there`)
    t.equal(await get.text(), 'GET arrived', `${status}`)
    t.equal((await fetch(`${server.origin}/${status}?/there`, { method: 'head' })).status, 200)
    const post = fetch(`${server.origin}/${status}?/there`, { method: 'POST', body: 'x' })
    if (status < 307) await t.rejects(post, REFUSED, `${status}`)
    else t.equal(await (await post).text(), 'POST arrived')
  }
  for (const path of ['/300?/there', '/302', '/302?http://[']) {
    const response = await fetch(server.origin + path)
    t.equal(response.status, Number(path.slice(1, 4)), `${path} is handed out`)
    await response.body?.cancel()
  }
})

t.test('guards are made once for each set of rules, with the same limits', async (t) => {
  const server = await serve(t, (_, response) => response.end('more'))
  const guards = createGuards({ resolve, maxBytes: 3 })
  t.teardown(() => guards.close())
  const open = guards.of({ allowPrivate: true })
  t.equal(guards.of({ allowPrivate: true, requireHttps: false }), open)
  t.not(guards.of({ allowPrivate: true, requireHttps: true }), open)
  t.not(guards.of({ allowPrivate: ['127.0.0.1'] }), guards.of({ allowPrivate: ['127.0.0.2'] }))
  await t.rejects((await open.fetch(server.origin)).text(), BodyTooLargeError)
  await t.rejects(guards.of({ allowPrivate: true, requireHttps: true }).fetch(server.origin), REFUSED)
  await guards.close()
  await t.rejects(open.fetch(server.origin))
})

t.test('the cap counts for each event of a stream, however the bytes of the events are cut', async (t) => {
  const read = (type: string, chunks: string[]) => {
    const body = ReadableStream.from(chunks.map((chunk) => Buffer.from(chunk)))
    return capBody(new Response(body, { headers: { 'content-type': type } }), 8).text()
  }
  for (const chunks of [
    ['123456\n\n', '123456\n\n'],
    ['123456\n', '\n123456\n\n'],
    ['12345\r\n', '\r\n123456'],
    ['1234\r\n\r', '\n', '\r\n123456'],
    ['123456\n', '\n', '12345678'],
    ['1234\r\n\r', '\n12\r\n\r', '\n12'],
    ['1234\r', '\r1234\r\r', '12345678'],
  ])
    t.equal(await read('Text/Event-Stream; charset=utf-8', chunks), chunks.join(''), JSON.stringify(chunks))
  for (const chunks of [['123456789'], ['1234\n', '1234\n'], ['1234\r', '\n123'], ['12345\n\n123456', '789']])
    await t.rejects(read('text/event-stream', chunks), BodyTooLargeError, JSON.stringify(chunks))
  t.equal(await read('text/plain', ['1234', '5678']), '12345678', 'a body of exactly as many bytes')
  await t.rejects(read('text/plain', ['123456\n\n', '1']), BodyTooLargeError)
})

t.test(
  'a body fails at the cap, compressed or not, and an event stream at the cap of one event',
  async (t) => {
    const server = await serve(t, (request, response) => {
      if (request.url === '/plain') return response.end(Buffer.alloc(200_000, 'x'))
      if (request.url === '/zipped')
        return response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(Buffer.alloc(5_000_000)))
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      if (request.url === '/events') {
        for (let i = 0; i < 50; i++) response.write(`data: ${'x'.repeat(5_000)}\r\n\r\n`)
        return response.end()
      }
      response.write('data: ')
      response.end(Buffer.alloc(200_000, 'x'))
    })
    const { fetch } = guard(t, { allowPrivate: true, maxBytes: 100_000 })
    for (const path of ['/plain', '/zipped', '/one-event'])
      await t.rejects((await fetch(server.origin + path)).text(), BodyTooLargeError, path)
    t.equal((await (await fetch(`${server.origin}/events`)).text()).length, 50 * 5_010)
  },
)

t.test('the time limit covers the whole exchange', async (t) => {
  const server = await serve(t, (request, response) => {
    if (request.url === '/body') response.write('begun')
  })
  const { fetch } = guard(t, { allowPrivate: true, timeoutMs: 500 })
  await t.rejects(fetch(server.origin), { name: 'TimeoutError' })
  await t.rejects((await fetch(`${server.origin}/body`)).text(), { name: 'TimeoutError' })
  const gone = new AbortController()
  const patient = guard(t, { allowPrivate: true, timeoutMs: 0 }).fetch(server.origin, { signal: gone.signal })
  gone.abort()
  await t.rejects(patient, { name: 'AbortError' })
  const { signal } = new AbortController()
  await t.rejects(fetch(server.origin, { signal }), { name: 'TimeoutError' }, 'beside a signal, too')
  const leaving = guard(t, { allowPrivate: true }).fetch(server.origin, { signal: AbortSignal.abort() })
  await t.rejects(leaving, { name: 'AbortError' })
})

t.test('an answer that came while the process stood still is read, however late', async (t) => {
  const url = await suspendedWhenAsked(t, 1_500)
  const { fetch } = guard(t, { allowPrivate: true, timeoutMs: 1_000 })
  t.equal(await (await fetch(url)).text(), 'answered')
})

/** A network of its own: the kernel must allow it, and `ip` must be there to set it up. */
const UNSHARE = ['--net', '--map-root-user']
const canUnshare = spawnSync('unshare', [...UNSHARE, 'ip', 'link', 'set', 'lo', 'up']).status === 0

/** A server that accepts nothing for a while: with its queue full, a client has to ask again after a second. */
const DEAF = `
  const { createServer } = require('node:net')
  const answer = (socket) => socket.on('error', () => {}).on('data', () =>
    socket.end('HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok'))
  const server = createServer(answer).listen({ host: '127.0.0.1', port: 0, backlog: 1 }, () => {
    require('node:fs').writeSync(1, server.address().port + '\\n')
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 800)
  })`

t.test(
  'a host that is slow to accept a connection is reached even if its other address is not there',
  {
    skip:
      process.platform === 'linux' ? false : 'only Linux drops connections that do not fit into the queue',
  },
  async (t) => {
    const child = spawn(process.execPath, ['-e', DEAF], { stdio: ['ignore', 'pipe', 'inherit'] })
    t.teardown(() => child.kill())
    const port = Number(String((await once(child.stdout, 'data'))[0]))
    const fillers = Array.from({ length: 4 }, () => connect(port, '127.0.0.1').on('error', () => {}))
    t.teardown(() => {
      for (const filler of fillers) filler.destroy()
    })
    await sleep(100)
    const both: Resolve = async () => addresses(['127.0.0.1', '::1'])
    const { fetch } = guard(t, { allowPrivate: true, resolve: both })
    t.equal(await (await fetch(`http://far.test:${port}/`)).text(), 'ok')
  },
)

/** Answers every connection with these pieces, then ends or resets it. */
async function answering(t: Test, head: string, body: Buffer, isReset: boolean): Promise<string> {
  const server = createSocketServer((socket) => {
    socket.once('data', () => {
      socket.write(`HTTP/1.1 200 OK\r\n${head}Connection: close\r\n\r\n`)
      socket.write(body, () => (isReset ? setTimeout(() => socket.resetAndDestroy(), 50) : socket.end()))
    })
  })
  return `http://127.0.0.1:${await listening(t, server)}/`
}

t.test('a connection that ends while nobody reads its answer does not end the process', async (t) => {
  const { fetch } = guard(t, { allowPrivate: true })
  const readLate = async (size: number, isTold: boolean, isReset: boolean) => {
    const head = isTold ? `Content-Length: ${size}\r\n` : ''
    const response = await fetch(await answering(t, head, Buffer.alloc(size, 'a'), isReset))
    // undici has stopped reading for want of a reader; nobody could catch what it throws in a socket's listener.
    await sleep(150)
    const read = await response.text().catch((failure: Error) => failure)
    // After a reset the kernel may have thrown the rest away.
    if (!isReset)
      t.equal(
        String(read).length,
        size,
        isTold ? 'an answer with its length' : 'an answer without its length',
      )
  }
  // undici stops after some reads: it does not see the end of a longer answer, and does not stop in a shorter one.
  for (const size of [100, 110, 120, 256].map((kilobytes) => kilobytes * 1024)) {
    for (const isReset of [false, true]) {
      await Promise.all([readLate(size, true, isReset), readLate(size, false, isReset)])
    }
  }
})

t.test(
  'in a network where private addresses do lead somewhere, none of them is reached',
  {
    skip:
      canUnshare || process.env.CI === 'true'
        ? false
        : 'unshare --net is not allowed here, or there is no ip',
  },
  async (t) => {
    const child = fileURLToPath(new URL('./mcp/servers/ssrf.js', import.meta.url))
    const { status, stdout, stderr } = spawnSync(
      'unshare',
      [...UNSHARE, process.execPath, '--enable-source-maps', child],
      { encoding: 'utf8' },
    )
    t.equal(status, 0, stderr)
    const { refused, open } = JSON.parse(stdout) as SsrfReport
    t.equal(open.length, 17)
    for (const { target, status } of open) t.equal(status, 200, `${target} is there`)
    t.equal(refused.length, open.length + 5)
    for (const { target, code, reached } of refused) {
      t.equal(code, 'address_not_allowed', target)
      t.equal(reached, target.startsWith('redirect') ? 1 : 0, `${target}: only where it was allowed`)
    }
  },
)
