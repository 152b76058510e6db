/** The HTTP client for vendors' token endpoints, against one that quotes its request and one that does not stop. */
import { createServer, type ServerResponse } from 'node:http'
import t from 'tap'
import { createOAuthHttp } from '../../src/credentials/oauth-http.ts'
import { USER_AGENT } from '../../src/version.ts'
import { listening } from '../listening.ts'
import { freePort } from '../servers.ts'
import { suspendedWhenAsked } from '../suspended.ts'

const server = createServer(async (request, response) => {
  if (request.url === '/endless') return void response.end(Buffer.alloc((1 << 20) + 1, 'x'))
  if (request.url === '/silent') return
  if (request.url === '/echo') return void response.end(JSON.stringify(request.headers))
  let body = ''
  for await (const chunk of request) body += chunk
  const status = Number(request.url?.slice(1)) || 200
  response.writeHead(status).end(`${request.headers.authorization} ${body}`)
})
const root = `http://127.0.0.1:${await listening(t, server)}`
const http = createOAuthHttp({})
t.teardown(() => http.close())
/** Renewed at once */
const LOGINS = 100
const open = {
  grant_type: 'grant-of-the-vendor',
  client_id: 'client-of-the-gateway',
  redirect_uri: 'callback-of-the-gateway',
  tierId: 'tier-of-the-account',
  cloudaicompanionProject: 'project-of-the-account',
}
const fields = { ...open, refresh_token: 'rt-secret-of-the-login' }
const sent = {
  method: 'POST' as const,
  headers: { authorization: 'Bearer ya29.secret-of-the-login' },
  json: fields,
}

t.test('a refusal that quotes the request shows none of its secrets', async (t) => {
  const { json: _, ...formed } = { ...sent, form: fields }
  for (const [code, call] of [
    [400, sent],
    [307, sent],
    [400, formed],
  ] as const) {
    const { status, body } = await http.send({ ...call, url: `${root}/${code}` })
    t.equal(status, code)
    t.notMatch(body, /secret-of-the-login/)
    for (const value of Object.values(open)) t.match(body, value, 'public values stay')
  }
  t.match(
    (await http.send({ ...sent, url: `${root}/taken` })).body,
    /rt-secret/,
    'an answer that is no refusal is left alone',
  )
})

t.test('a login service hears that Baton asks, and that Baton reads plain JSON', async (t) => {
  const { body } = await http.send({ method: 'GET', url: `${root}/echo`, headers: { 'x-beta': 'on' } })
  const plain = { accept: 'application/json', 'accept-encoding': 'identity' }
  t.match(JSON.parse(body), { 'user-agent': USER_AGENT, ...plain, 'x-beta': 'on' })
})

t.test('an answer without end is given up', async (t) => {
  await t.rejects(http.send({ ...sent, url: `${root}/endless` }), { code: 'upstream_disconnected' })
})

t.test('a service that is silent or away is told as such', async (t) => {
  const hasty = createOAuthHttp({ timeoutMs: 50 })
  t.teardown(() => hasty.close())
  await t.rejects(hasty.send({ ...sent, url: `${root}/silent` }), {
    code: 'upstream_timeout',
    message: /within 50 ms/,
  })
  await t.rejects(http.send({ ...sent, url: `http://127.0.0.1:${await freePort()}` }), {
    code: 'upstream_disconnected',
    cause: { code: 'ECONNREFUSED' },
  })
})

t.test('a request waits for no other, which would cost its answer time', async (t) => {
  const waiting: ServerResponse[] = []
  const slow = createServer((_, response) => {
    waiting.push(response)
    if (waiting.length === LOGINS) for (const one of waiting) one.end('answered')
  })
  const url = `http://127.0.0.1:${await listening(t, slow)}`
  const answers = await Promise.all(Array.from({ length: LOGINS }, () => http.send({ ...sent, url })))
  t.strictSame(new Set(answers.map(({ body }) => body)), new Set(['answered']))
})

t.test('an answer that came while the process stood still is read, however late', async (t) => {
  const url = await suspendedWhenAsked(t, 1_500)
  const hasty = createOAuthHttp({ timeoutMs: 1_000 })
  t.teardown(() => hasty.close())
  t.match(await hasty.send({ ...sent, url }), { status: 200, body: 'answered' })
})

t.test('a login service that no tunnel leads to is told with what the forward proxy said', async (t) => {
  const refuses = createServer().on('connect', (_, socket) =>
    socket.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n'),
  )
  const url = `http://127.0.0.1:${await listening(t, refuses)}`
  const behind = createOAuthHttp({ forwardProxy: { url, except: '' } })
  t.teardown(() => behind.close())
  await t.rejects(behind.send({ ...sent, url: 'https://login.vendor.test/token' }), {
    code: 'upstream_disconnected',
    message: /FORWARD_PROXY_407/,
    details: { reason: 'FORWARD_PROXY_407' },
  })
})
