/** What the doctor finds out, and what it says to do. */
import { createServer } from 'node:http'
import { mock } from 'node:test'
import t, { type Test } from 'tap'
import { migrate, readMigrations } from '../../src/store/migrate.ts'
import { openPostgres } from '../../src/store/postgres.ts'
import { onServer } from '../any-store.ts'
import { guardedServer } from '../credentials/guarded-server.ts'
import { visit } from '../credentials/world.ts'
import { createClient } from '../e2e/client.ts'
import { ECHO, startToolServer } from '../e2e/tool-server.ts'
import { ON_SERVERS, SERVERS } from '../given-servers.ts'
import { listening } from '../listening.ts'
import { startRig } from '../mcp/servers/rig.ts'
import { scratch } from '../scratch.ts'
import { emptied, freshDatabase } from '../store/fresh.ts'
import { wholeGateway } from '../whole-gateway.ts'
import { run } from './running.ts'

/** An installation of the test's own: on servers where they are given, which opens sooner */
const installation = async (t: Test): Promise<Record<string, string>> =>
  ON_SERVERS.skip ? { BATON_DATA_DIR: scratch(t) } : { ...(await onServer(t)), REDIS_URL: SERVERS.REDIS_URL }
/** For looks that leave nothing in it */
const looked = await installation(t)

t.test('the doctor says what is wrong and what to do, and ends with 1', async (t) => {
  const env = {
    BATON_DATA_DIR: scratch(t),
    BATON_DRAIN_SECONDS: '0',
    BATON_OPENAI_BASE_URL: 'http://127.0.0.1:1',
  }
  const fine = await run(env, 'doctor')
  t.match(fine, {
    code: 0,
    out: [/^ok {4}configuration: auth off, embedded store/, /^ok {4}store and bus/, /^No problem/],
  })
  const wrong = await run({ ...env, BATON_PORT: 'x' }, 'doctor')
  t.match(wrong, { code: 78, out: [/^BAD {3}configuration: BATON_PORT: must be/, /^1 problem found/] })

  const busless = await run({ ...looked, REDIS_URL: 'redis://127.0.0.1:1' }, 'doctor')
  t.match(busless, {
    code: 1,
    out: [/^ok/, /^BAD {3}bus: Check REDIS_URL\. .* ECONNREFUSED 127\.0\.0\.1:1$/],
  })

  const url = await (await wholeGateway(t, env)).listen()
  const away = { name: 'away', transport: 'streamable_http', url: 'http://127.0.0.1:1/mcp' }
  await createClient(url).post('/v1/connectors', away)
  const at = { ...env, BATON_PORT: new URL(url).port }
  const asked = await run(at, 'doctor')
  t.equal(asked.code, 1)
  t.match(
    asked.out.join('\n'),
    /^BAD {3}MCP server away: the connection failed: bad port\. See that it runs/m,
  )
  t.match(asked.out.join('\n'), /by the gateway at http:\/\/127\.0\.0\.1/)
  const scripted = await run(at, 'doctor --json')
  t.match(
    scripted.out.map((line) => JSON.parse(line)),
    [
      { state: 'ok', what: /^configuration: / },
      { state: 'ok', what: /^store and bus/ },
      { state: 'bad', what: /^MCP server away/ },
    ],
  )
  t.equal(scripted.out.length, 3, 'the exit code tells the rest')
  const named = await run({ BATON_PORT: 'x' }, `doctor --url ${url}`)
  t.match(named, { code: 1, out: [/^ok {4}store and bus, by the gateway/, /^BAD {3}MCP server away/] })
  t.notMatch(
    named.out.join(),
    'configuration',
    'the configuration of this shell is not the one of the gateway',
  )
  const closed = Object.fromEntries(
    ['CHATGPT', 'ANTHROPIC', 'GEMINI', 'CODE_ASSIST'].map((name) => [`BATON_${name}_BASE_URL`, url]),
  )
  const online = await run({ ...at, ...closed }, 'doctor --online')
  t.match(online.out.join('\n'), /^BAD {3}openai at http:\/\/127\.0\.0\.1:1 cannot be reached/m)
  t.match(online.out.join('\n'), /^ok {4}anthropic at .* answers/m)
})

t.test('the doctor says what a forward proxy answered, and that it is the one to look at', async (t) => {
  const refuses = createServer().on('connect', (_, socket) =>
    socket.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n'),
  )
  for (const [port, why] of [
    [await listening(t, refuses), 'The forward proxy gave no tunnel: 407'],
    [1, 'connect ECONNREFUSED 127.0.0.1:1'],
  ] as const) {
    const env = { ...looked, HTTPS_PROXY: `127.0.0.1:${port}` }
    const { code, out } = await run(env, 'doctor --online')
    t.equal(code, 1)
    const words = `BAD   openai at https://api.openai.com/v1 cannot be reached (${why}). Check HTTPS_PROXY, and the proxy's rules.`
    t.ok(out.includes(words), out.join('\n'))
  }
})

t.test('the doctor names the tools because of which the next start would fail', async (t) => {
  const tools = await startToolServer({ echo: ECHO, wipe: ECHO, admin_reset: ECHO })
  t.teardown(() => tools.close())
  const server = `name: files, transport: streamable_http, url: "${tools.url}", mode: strict, deny_tools: ["admin_*"]`
  const env = {
    ...(await installation(t)),
    BATON__TOOLBOX__TOOLS: '[{name: files.echo}]',
    BATON__TOOLBOX__MCPS: `[{${server}}]`,
  }
  await t.rejects(wholeGateway(t, env), /Missing Tool: wipe/)
  const forged = 'x\nok    all is well\u001b[2K'
  tools.tools.set(forged, ECHO)
  t.match(await run(env, 'doctor'), {
    code: 1,
    out: [
      /^ok/,
      /^ok/,
      /^BAD {3}MCP server files is in strict mode.*Missing: files\.wipe, files\.x ok {4}all is well\[2K$/,
      /^1 problem found/,
    ],
  })
  tools.tools.delete(forged)
  const named = { ...env, BATON__TOOLBOX__TOOLS: '[{name: files.echo}, {name: wipe}]' }
  t.match(await run(named, 'doctor'), { code: 0, out: [/^ok/, /^ok/, /^ok {4}MCP server files$/] })
  const since = '[{name: since, transport: sse, url: "http://127.0.0.1:1/", mode: strict}]'
  const checked = await run({ ...env, BATON__TOOLBOX__MCPS: since }, 'doctor')
  t.match(
    checked,
    { code: 1, out: [/^ok/, /^ok/, /^BAD {3}MCP server since: .*See that it runs/, /^1 problem found/] },
    'the servers of the configuration are checked, not those of the start before',
  )
})

t.test('the doctor passes over a connector that is deleted while it looks', async (t) => {
  const page = (...data: object[]) => [200, { data, next_cursor: null }] as const
  const answers: Record<string, readonly [number, object]> = {
    'GET /readyz': [200, { status: 'ready' }],
    'GET /v1/credentials': page(),
    'GET /v1/connectors': page({ id: 'con_2', name: 'gone' }, { id: 'con_1', name: 'here' }),
    'POST /v1/connectors/con_2/test': [404, { error: { code: 'connector_not_found', message: 'Gone.' } }],
    'POST /v1/connectors/con_1/test': [200, { ok: true }],
  }
  const server = createServer(({ method, url = '' }, response) => {
    const [status, body] = answers[`${method} ${url.split('?')[0]}`] ?? [500, {}]
    response.writeHead(status).end(JSON.stringify(body))
  })
  const port = await listening(t, server)
  t.match(await run({}, `doctor --url http://127.0.0.1:${port}`), {
    code: 0,
    out: [/^ok {4}store and bus/, /^ok {4}MCP server here/, /^No problem/],
  })
  answers['GET /v1/credentials'] = [
    401,
    { error: { code: 'unauthenticated', message: 'A key is required.' } },
  ]
  const refused = await run({}, `doctor --url http://127.0.0.1:${port} --json`)
  t.match(refused, {
    code: 1,
    out: [/store and bus/, /"bad".*A key is required\. Give one with --key/],
    err: /^$/,
  })
})

t.test('the doctor renews the login at an MCP server before it reports on the server', async (t) => {
  const guarded = await guardedServer(t)
  const env = { ...(await installation(t)), BATON_DRAIN_SECONDS: '0' }
  const gateway = await wholeGateway(t, env)
  const api = createClient(await gateway.listen())
  const body = { name: 'docs', transport: 'streamable_http', url: guarded.url, auth: { type: 'oauth' } }
  const { id } = await api.post('/v1/connectors', body)
  const { authorization_url } = await api.post(`/v1/connectors/${id}/login`)
  await fetch(await visit(authorization_url))
  await gateway.close()

  guarded.revoke()
  const fine = { code: 0, out: [/^ok/, /^ok/, /^ok {4}MCP server docs$/] }
  t.match(await run(env, 'doctor'), fine)
  t.match(await run(env, 'doctor'), fine, 'the renewed login is kept')
  t.equal(guarded.grants.refresh_token, 1)

  guarded.revoke({ refresh: true })
  t.match(await run(env, 'doctor'), {
    code: 1,
    out: [/^ok/, /^ok/, /^BAD {3}MCP server docs: needs a login: POST \/v1\/connectors\/con_.*invalid_grant/],
  })
})

t.test('the command line leaves the schema of an older version to the start of a gateway', async (t) => {
  const own = await installation(t)
  const env = { ...own, BATON_DRAIN_SECONDS: '0' }
  const { DATABASE_URL, BATON_DATA_DIR } = own
  const db = DATABASE_URL ? openPostgres(DATABASE_URL, 1) : await freshDatabase(t, BATON_DATA_DIR)
  await emptied(db)
  await migrate(db, readMigrations().slice(0, -1))
  await db.query(`insert into setting (name, value) values ('of_the_older_version', '')`)
  await db.close()

  const refused = /has the schema of an older version/
  t.match(await run(env, 'doctor'), { code: 1, out: [/^ok/, refused] })
  t.match(await run(env, 'keys list'), { code: 1, err: refused }, 'also where it was asked before')
  await (await wholeGateway(t, env)).close()
  t.match(await run(env, 'doctor'), { code: 0 })
})

t.test('the doctor hears why a server was too slow, however late it began to ask', async (t) => {
  const rig = await startRig(t)
  rig.on('initialize', () => mock.timers.tick(6_000))
  const server = 'BATON__TOOLBOX__MCPS__0__'
  const env = {
    ...looked,
    [`${server}NAME`]: 'slow',
    [`${server}TRANSPORT`]: 'streamable_http',
    [`${server}URL`]: rig.url,
    [`${server}MODE`]: 'strict',
  }
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { out } = await run(env, 'doctor')
  t.match(out, [/^ok/, /^ok/, /^BAD {3}MCP server slow: did not connect in 5000 ms/])
})

t.test('the doctor names the command that makes a login anew for the owner of the login', async (t) => {
  const env = {
    ...(await installation(t)),
    BATON_DRAIN_SECONDS: '0',
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: 'the-bootstrap-admin-key',
    BATON_ENABLE_OAUTH: 'anthropic,gemini',
  }
  const gateway = await wholeGateway(t, env)
  const url = await gateway.listen()
  const api = createClient(url)
  const as = (key: string, path: string, body: object) =>
    api.call('POST', path, body, { authorization: `Bearer ${key}` })
  const { key } = (await as(env.BATON_ADMIN_KEY, '/v1/keys', { owner: 'ann', scopes: ['chat'] })).body
  const ended = {
    provider: 'anthropic',
    kind: 'oauth',
    access_token: 'spent',
    expires_at: '2020-01-01T00:00:00Z',
  }
  for (const owner of [key, env.BATON_ADMIN_KEY]) await as(owner, '/v1/credentials', ended)
  await as(key, '/v1/credentials', { ...ended, provider: 'gemini', path: 'public' })
  const said = async (line: string) => (await run(env, line)).out.slice(-4, -1)
  const publicly = /needs a new login .*: POST \/v1\/oauth\/gemini\/authorize {"path":"public"}, as ann$/
  t.match(await said(`doctor --url ${url}`), [
    publicly,
    /needs a new login .*: baton login anthropic --key <a key of admin>$/,
    /needs a new login .*: baton login anthropic --key <a key of ann>$/,
  ])
  await gateway.close()
  t.match(await said('doctor'), [
    publicly,
    /needs a new login .*: baton login anthropic$/,
    /needs a new login .*: baton login anthropic --owner ann$/,
  ])
})
