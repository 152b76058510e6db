/**
 * A gateway that is told many secrets, made to use them and to fail with them, and searched for them: its
 * answers, events, metrics, logs, and every file that it wrote. A real process, so that nothing which any
 * library prints is missed.
 */
import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { visit } from './credentials/world.ts'
import type { Json } from './e2e/client.ts'
import { startToolServer, textResult } from './e2e/tool-server.ts'
import { createAnthropicEmulator } from './emulators/anthropic.ts'
import { createMcpLogins } from './emulators/oauth-mcp.ts'
import { createOpenAiEmulator } from './emulators/openai.ts'
import { startParrot } from './emulators/parrot.ts'
import { gatewayProcess } from './gateway-process.ts'
import { scratch } from './scratch.ts'

const secret = (prefix: string) => `${prefix}${randomBytes(20).toString('hex')}`
/** Most have no shape that a redactor could know. */
const PLANTED = {
  'admin key': secret('adm'),
  'encryption key': randomBytes(32).toString('base64'),
  'key of the environment': secret('envkey'),
  'client secret of the operator': secret('gcs'),
  'provider key': secret('sk-proj-'),
  'key of no known shape': secret('plain'),
  'access token': secret('sk-ant-oat01-'),
  'refresh token': secret('sk-ant-ort01-'),
  'connector header': secret('hdr'),
  'connector bearer': secret('brr'),
  'connector variable': secret('var'),
  'connector client secret': secret('ccs'),
  'spent refresh token': secret('1//'),
  'assertion of a workload': secret('eyassert'),
  'token in a tool result': secret('ghp_').slice(0, 40),
  'token in a word of refusal': secret('ghp_').slice(0, 40),
}
/** No secret at all: if even this is not found, the search does not work. */
const MARKER = secret('marker')

/** Everything that was told to anybody, and where. */
const seen: { where: string; text: string }[] = []
const told = (where: string, text: string): string => {
  seen.push({ where, text })
  return text
}

/** Every file below, with what it holds. */
function* filesIn(folder: string): Generator<{ path: string; bytes: Buffer }> {
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) yield* filesIn(path)
    else if (entry.isFile()) yield { path, bytes: readFileSync(path) }
  }
}

/** The text as it is, and as it looks in an address, in base64 and in hex. */
const looksOf = (text: string): string[] => [
  ...new Set([
    text,
    encodeURIComponent(text),
    // From each of the three places at which a text may begin in base64; its ends depend on the neighbours.
    ...[0, 1, 2].map((shift) =>
      Buffer.from(' '.repeat(shift) + text)
        .toString('base64')
        .slice(4, -4),
    ),
    Buffer.from(text).toString('hex'),
  ]),
]

t.test('no planted secret is found in anything that Baton says or writes', async (t) => {
  const folder = scratch(t)
  const [openai, anthropic, parrot] = [
    await createOpenAiEmulator(),
    await createAnthropicEmulator(),
    await startParrot(t),
  ]
  const tools = await startToolServer({
    leak: { run: () => textResult(`found ${PLANTED['token in a tool result']}`) },
  })
  const guarded = await createMcpLogins({ upstream: tools.url })
  t.teardown(() => Promise.all([openai.close(), anthropic.close(), tools.close(), guarded.close()]))
  const env = {
    BATON_DATA_DIR: folder,
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: PLANTED['admin key'],
    BATON_ENCRYPTION_KEYS: `k1:${PLANTED['encryption key']}`,
    BATON_LOG_LEVEL: 'trace',
    BATON_DRAIN_SECONDS: '0',
    BATON_CONNECTORS_ALLOW_PRIVATE: 'true',
    BATON_ALLOW_STDIO_CONNECTORS: 'true',
    BATON_ENABLE_OAUTH: 'anthropic,gemini',
    BATON_GOOGLE_OAUTH_CLIENT_ID: 'some-client',
    BATON_GOOGLE_OAUTH_CLIENT_SECRET: PLANTED['client secret of the operator'],
    BATON_OPENAI_BASE_URL: openai.keyBaseUrl,
    BATON_ANTHROPIC_BASE_URL: anthropic.url,
    BATON_ANTHROPIC_OAUTH_TOKEN_URL: parrot.url,
    BATON_ANTHROPIC_OAUTH_CLIENT_ID: 'another-client',
    GEMINI_API_KEY: PLANTED['key of the environment'],
  }
  const baton = await gatewayProcess(t, folder, env, (text) => told('log', text))
  let key = PLANTED['admin key']
  const leaked = PLANTED['token in a tool result']
  /** Any call; its whole answer counts as told, except the answer to the call that makes a key. */
  async function call(method: string, path: string, body?: unknown, isMaking = false): Promise<Json> {
    const response = await fetch(`${baton.url}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${key}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    })
    const text = await response.text()
    const headers = JSON.stringify([...response.headers])
    // A session's own views show what its tools said: that is the conversation.
    const shown = path.startsWith('/v1/sessions') ? text.replaceAll(leaked, '') : text
    if (!isMaking)
      told(`${method} ${path.replace(/[a-z]+_\w{20,}/g, '…')} ${response.status}`, headers + shown)
    return response.headers.get('content-type')?.startsWith('application/json') ? JSON.parse(text) : text
  }
  // The caller has a key of their own, which is told once by design.
  const made = await call('POST', '/v1/keys', { owner: 'ann', scopes: ['admin'] }, true)
  const secrets: Record<string, string> = { ...PLANTED, 'gateway key': made.key }
  key = made.key

  // ---- told
  const login = { access_token: PLANTED['access token'], refresh_token: PLANTED['refresh token'] }
  const credentials = {
    openai: await call('POST', '/v1/credentials', {
      provider: 'openai',
      kind: 'api_key',
      api_key: PLANTED['provider key'],
    }),
    odd: await call('POST', '/v1/credentials', {
      provider: 'openai',
      kind: 'api_key',
      api_key: PLANTED['key of no known shape'],
    }),
    login: await call('POST', '/v1/credentials', {
      provider: 'anthropic',
      kind: 'oauth',
      default: true,
      ...login,
    }),
    spent: await call('POST', '/v1/credentials', {
      provider: 'anthropic',
      kind: 'oauth',
      access_token: secret('sk-ant-oat01-'),
      refresh_token: PLANTED['spent refresh token'],
      expires_at: new Date().toISOString(),
    }),
    workload: await call('POST', '/v1/credentials', {
      provider: 'anthropic',
      kind: 'oauth',
      federation: {
        assertion: PLANTED['assertion of a workload'],
        federation_rule_id: 'fdrl_1',
        organization_id: 'org_1',
      },
    }),
  }
  const http = { transport: 'streamable_http' }
  const connectors: Json[] = [
    await call('POST', '/v1/connectors', { ...http, name: 'tools', url: tools.url }),
    await call('POST', '/v1/connectors', {
      ...http,
      name: 'parrot',
      url: parrot.url,
      headers: { 'x-token': PLANTED['connector header'] },
      auth: { type: 'bearer', token: PLANTED['connector bearer'] },
    }),
    await call('POST', '/v1/connectors', {
      name: 'program',
      transport: 'stdio',
      command: process.execPath,
      args: ['-e', 'console.error("no start with", process.env.APP_TOKEN); process.exit(3)'],
      env: { APP_TOKEN: PLANTED['connector variable'] },
    }),
    await call('POST', '/v1/connectors', {
      ...http,
      name: 'guarded',
      url: guarded.url,
      auth: { type: 'oauth' },
    }),
    await call('POST', '/v1/connectors', {
      ...http,
      name: 'given',
      url: guarded.url,
      auth: { type: 'oauth', client_id: 'given', client_secret: PLANTED['connector client secret'] },
    }),
  ]
  const byName = Object.fromEntries(connectors.map((one) => [one.name, one.id]))
  const begun = await call('POST', `/v1/connectors/${byName.guarded}/login`)
  told('login page', await (await fetch(await visit(begun.authorization_url))).text())

  // ---- used
  const tested: Json = {}
  for (const { id, name } of connectors) tested[name] = await call('POST', `/v1/connectors/${id}/test`)
  const chat = {
    provider: 'openai',
    model: 'gpt-5.6-sol',
    title: MARKER,
    connectors: ['tools', 'parrot', 'program', 'guarded'],
  }
  const session = await call('POST', '/v1/sessions', { ...chat, credential_id: credentials.openai.id })
  const at = `/v1/sessions/${session.id}`
  const turn = await call('POST', `${at}/turns`, { input: 'call tools__leak with {}', stream: false })
  t.equal(turn.state, 'completed', JSON.stringify(turn))
  for (const [id, word] of [
    [credentials.openai.id, PLANTED['provider key']],
    [credentials.odd.id, PLANTED['key of no known shape']],
  ]) {
    openai.script(() => ({
      status: 401,
      body: { error: { message: `Incorrect API key provided: ${word}`, code: word } },
    }))
    await call('PATCH', at, { provider: 'openai', model: 'gpt-5.6-sol', credential_id: id })
    const failed = await call('POST', `${at}/turns`, { input: 'hello', stream: false })
    t.match(JSON.stringify(failed), /Incorrect API key provided/, 'the words of the vendor, without the key')
    await call('POST', `${at}/render`, {})
  }
  const claude = { provider: 'anthropic', model: 'claude-opus-5-5' }
  for (const { id } of [credentials.spent, credentials.workload]) {
    await call('PATCH', at, { ...claude, credential_id: id })
    const refused = await call('POST', `${at}/turns`, { input: 'hello', stream: false })
    t.match(refused.error, { message: String }, 'a login that cannot be renewed')
  }
  t.match(await call('GET', `/v1/credentials/${credentials.spent.id}`), { state: 'needs_reauth' })
  await call('PATCH', at, { ...claude, credential_id: credentials.login.id })
  await call('POST', `${at}/turns`, { input: 'hello', stream: false })
  await call('POST', `${at}/render`, {})
  await call('POST', `${at}/render`, { provider: 'gemini', model: 'gemini-3.8-flash' })
  await call('POST', '/v1/oauth/gemini/authorize', { mode: 'paste' })
  await call('PATCH', `/v1/connectors/${byName.tools}`, { require_approval: 'always' })
  const asking = { input: 'call tools__leak with {}', stream: false }
  await call('PATCH', at, { provider: 'openai', model: 'gpt-5.6-sol', credential_id: credentials.openai.id })
  openai.script(null)
  const waiting = await call('POST', `${at}/turns`, asking)
  t.equal(waiting.state, 'awaiting_input', JSON.stringify(waiting))
  const asked = waiting.messages.at(-1).parts.find(({ type }: Json) => type === 'tool_call')
  const denial = {
    decision: 'deny',
    reason: `Use ${PLANTED['token in a word of refusal']} in its place`,
  }
  await call('POST', `/v1/turns/${waiting.id}/approvals/${asked.call_id}`, denial)
  const afterwards = await call('GET', `/v1/turns/${waiting.id}?wait=30`)
  t.match(JSON.stringify(afterwards.messages), /Use \[redacted\] in its place/)

  // ---- asked wrongly
  const wrong = PLANTED['provider key']
  await call('POST', '/v1/credentials', { provider: 'openai', kind: 'api_key', api_key: [wrong] })
  await call('POST', '/v1/credentials', {
    provider: 'openai',
    kind: 'api_key',
    api_key: `${wrong} with blanks`,
  })
  await call('POST', '/v1/credentials', `{"provider":"openai","api_key":"${wrong}"`)
  await call('POST', '/v1/credentials/import', {
    provider: 'anthropic',
    format: 'claude',
    content: `{"x":"${wrong}`,
  })
  await call('POST', '/v1/connectors', {
    ...http,
    name: 'x',
    url: parrot.url,
    headers: { 'bad name': wrong },
  })
  await call('POST', '/v1/connectors', { ...http, name: 'x', url: `http://u:${wrong}@127.0.0.1/` })
  await call('GET', `/v1/oauth/connectors/callback?state=${wrong}&code=${wrong}`)

  // ---- looked at
  for (const path of [
    '/v1/keys',
    '/v1/credentials',
    '/v1/connectors',
    '/v1/sessions',
    at,
    `${at}/connectors`,
    `${at}/tools`,
    `${at}/tools?provider=openai`,
  ])
    await call('GET', path)
  for (const { id } of connectors) await call('GET', `/v1/connectors/${id}`)
  for (const { id } of Object.values(credentials)) await call('GET', `/v1/credentials/${id}`)
  const ledger = await call('GET', '/v1/tool-executions')
  const [denied, ran] = ledger.data
  t.match([denied.outcome, ran.outcome], ['denied', 'ok'])
  await call('GET', `/v1/tool-executions/${denied.id}`)
  await call('GET', `/v1/tool-executions/${ran.id}`)
  const output = await call('GET', `/v1/tool-executions/${ran.id}/output`)
  t.match(output.content, /found /)
  await call('GET', '/v1/tool-executions/stats?group_by=tool')
  for (const path of ['/metrics', '/healthz', '/readyz', '/openapi.json', '/docs']) await call('GET', path)
  const stream = await fetch(`${baton.url}${at}/events?after=start`, {
    headers: { authorization: `Bearer ${key}`, accept: 'text/event-stream' },
  })
  const events = await everythingSoFar(stream)
  t.match(events, /turn\.failed/)
  told('events', events.replaceAll(leaked, ''))

  // ---- it was all in use
  t.match(JSON.stringify(openai.requests.map(({ headers }) => headers)), PLANTED['provider key'])
  t.match(JSON.stringify(openai.requests.map(({ headers }) => headers)), PLANTED['key of no known shape'])
  t.match(JSON.stringify(anthropic.requests.map(({ headers }) => headers)), PLANTED['access token'])
  t.match(JSON.stringify(parrot.heard), PLANTED['connector header'])
  t.match(JSON.stringify(parrot.heard), PLANTED['connector bearer'])
  t.match(JSON.stringify(parrot.heard), PLANTED['spent refresh token'])
  t.match(JSON.stringify(anthropic.requests.map(({ text }) => text)), PLANTED['assertion of a workload'])
  t.match(tested.program.error, /no start with \*\*\*/, 'the variable reached its program')
  t.ok(guarded.passed.length > 0)
  guarded.secrets.forEach((text, i) => {
    secrets[`of the MCP login ${i}`] = text
  })
  await tools.called('leak')
  await baton.stop()

  // ---- searched
  const files = [...filesIn(folder)]
  const isFound = (text: string) => files.some(({ bytes }) => bytes.includes(text))
  t.ok(isFound(MARKER), 'the search finds what is there: in files,')
  t.ok(
    seen.some(({ text }) => text.includes(MARKER)),
    'and in answers;',
  )
  t.ok(
    seen.some(({ where, text }) => where === 'log' && text.includes('baton is ready')),
    'and there is a log',
  )
  for (const [name, text] of Object.entries(secrets)) {
    for (const look of looksOf(text)) {
      t.same(
        seen.filter((one) => one.text.includes(look)).map(({ where }) => where),
        [],
        `${name} was told to nobody`,
      )
      t.same(
        files.filter(({ bytes }) => bytes.includes(look)).map(({ path }) => path.slice(folder.length)),
        [],
        `${name} is in no file`,
      )
    }
  }
})

/** The frames of a stream until it has nothing more to say. */
async function everythingSoFar(response: Response): Promise<string> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader()
  let text = ''
  while (
    reader &&
    !/event: turn\.completed[\s\S]*event: turn\.failed[\s\S]*event: turn\.(completed|failed)/.test(text)
  ) {
    const { done, value } = await reader.read()
    if (done) break
    text += value
  }
  await reader?.cancel()
  return text
}
