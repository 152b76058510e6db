/** The command line: on the store, on a gateway that has it open, and what it says to mistakes. */
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createApp } from '../src/app.ts'
import type { TurnEvent } from '../src/chat/event.ts'
import { runCli } from '../src/cli/main.ts'
import { openRemote } from '../src/cli/remote.ts'
import { loadConfig } from '../src/config/load.ts'
import { rotateKeys } from '../src/credentials/rotation.ts'
import { sealParts } from '../src/credentials/sealed-parts.ts'
import { createVault, secretContext, verifyKeys } from '../src/credentials/vault.ts'
import { openStore } from '../src/store/open.ts'
import type { Store } from '../src/store/store.ts'
import { visit } from './credentials/world.ts'
import { startToolServer } from './e2e/tool-server.ts'
import { CLIENT, createAnthropicLogins } from './emulators/oauth-anthropic.ts'
import { createOpenAiEmulator } from './emulators/openai.ts'
import { newDatabase } from './servers.ts'

interface Ran {
  code: number
  /** Lines of the answer */
  out: string[]
  /** Everything beside it */
  err: string
}

function home(t: Test): string {
  const folder = mkdtempSync(join(tmpdir(), 'baton-cli-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/**
 * Runs one command line in this process. `answer` is what a person gives to a question about the lines so
 * far, `open` what a browser does with the page that is shown.
 */
async function run(
  env: Record<string, string>,
  line: string,
  answer: (out: string[]) => Promise<string | null> = async () => null,
  open: (page: string) => Promise<void> = async () => {},
): Promise<Ran> {
  const out: string[] = []
  const err: string[] = []
  let opened: Promise<void> | null = null
  const code = await runCli(line.split(' ').filter(Boolean), {
    env,
    cwd: env.BATON_DATA_DIR ?? '/nowhere',
    io: {
      say(text) {
        out.push(text)
        opened ??= /^http/.test(text) ? open(text) : null
      },
      note: (text) => void err.push(text),
      ask: () => answer(out),
      sleep: async () => opened,
      readFile: (path) => {
        if (path.endsWith('missing.json')) throw new Error(`${path} cannot be read`)
        return FILE
      },
    },
  })
  return { code, out, err: err.join('\n') }
}

const FILE = JSON.stringify({
  claudeAiOauth: {
    accessToken: 'sk-ant-oat01-from-a-file-0123456789',
    refreshToken: 'sk-ant-ort01-from-a-file-0123456789',
    expiresAt: Date.now() + 3_600_000,
    scopes: ['user:inference'],
  },
})

async function gateway(t: Test, env: Record<string, string>): Promise<string> {
  const app = await createApp(loadConfig(env, '/').config, { log: pino({ level: 'silent' }) })
  t.teardown(() => app.close())
  await app.http.listen({ host: '127.0.0.1', port: Number(env.BATON_PORT ?? 0) })
  return `http://127.0.0.1:${(app.http.server.address() as AddressInfo).port}`
}

t.test('a wrong command line ends with 64, a wrong configuration with 78, help with 0', async (t) => {
  const env = { BATON_DATA_DIR: home(t) }
  for (const [line, words] of [
    ['frobnicate', /There is no command frobnicate\. Known: login, /],
    ['keys', /There is no command keys\. Known: keys create, keys list/],
    ['keys create', /needs --owner/],
    ['keys create --owner a --scope root', /--scope must be chat or admin/],
    ['keys create --owner a --expires tomorrow', /--expires must be a date or time/],
    ['keys create --owner a --expires 9999-12-31T23:59:59-12:00', /--expires must be a date or time/],
    [`keys create --owner a --name ${'x'.repeat(201)}`, /--name must have 1 to 200 characters/],
    ['keys create --owner a --expires 2031-02-29', /--expires must be a date or time/],
    ['keys create --owner a --expires 2001-01-01', /--expires is in the past/],
    ['keys revoke', /Usage: baton keys revoke <id>/],
    ['keys list --nonsense', /Unknown option '--nonsense'[\s\S]*Usage: baton keys list/],
    ['login acme', /<provider> must be one of: openai, anthropic, gemini/],
    ['import acme codex login.json', /<provider> must be one of: openai, anthropic, gemini/],
    ['keys create --owner a --scope admin --scope chat', /--scope is given twice/],
    ['doctor --url http://127.0.0.1:1 --online', /--online asks the providers from this machine/],
    ['login openai --mode pigeon', /--mode must be one of: loopback, paste, device/],
  ] as const) {
    const { code, err, out } = await run(env, line)
    t.equal(code, 64, line)
    t.match(err, words)
    t.same(out, [])
  }
  t.equal((await run(env, '')).code, 64)
  const wrong = await run({ ...env, BATON_PORT: 'x', BATON_BODY_LIMIT: 'y' }, 'keys list')
  t.equal(wrong.code, 78)
  t.match(wrong.err, /BATON_PORT: [\s\S]*BATON_BODY_LIMIT: /, 'all problems at once')
  const help = await run(env, '--help')
  t.equal(help.code, 0)
  for (const word of ['login', 'logout', 'import', 'credentials', 'keys rotate-encryption', 'doctor'])
    t.match(help.out.join('\n'), new RegExp(`^  ${word}`, 'm'))
  const { version } = JSON.parse(
    readFileSync(fileURLToPath(new URL('../../package.json', import.meta.url)), 'utf8'),
  )
  t.same(await run(env, '--version'), { code: 0, out: [version], err: '' })
  t.match((await run(env, 'keys create --help')).out[0], /^Usage: baton keys create --owner/)
})

t.test('the program itself answers on its streams and with its exit code', async (t) => {
  const cli = fileURLToPath(new URL('../src/cli.js', import.meta.url))
  const ran = (...args: string[]) =>
    spawnSync(process.execPath, [cli, ...args], { encoding: 'utf8', env: { PATH: process.env.PATH } })
  t.match(ran('--help'), { status: 0, stdout: /^Usage: baton <command>/, stderr: '' })
  t.match(ran('nothing'), { status: 64, stdout: '', stderr: /There is no command nothing/ })
})

t.test('keys are made on the store, used at the gateway, and taken back through it', async (t) => {
  const env = {
    BATON_DATA_DIR: home(t),
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: 'the-bootstrap-admin-key',
    BATON_DRAIN_SECONDS: '0',
  }
  const made = await run(env, 'keys create --owner ann --name laptop --expires 2999-01-01')
  t.equal(made.code, 0)
  const [key = ''] = made.out
  t.match(key, /^bk_[\w-]{43}$/)
  t.same(made.out.length, 1, 'the key alone, for scripts')
  const listed = await run(env, 'keys list --json')
  t.notMatch(listed.out.join(), key)
  const row = JSON.parse(listed.out[0] ?? '')
  t.match(row, { owner: 'ann', name: 'laptop', scopes: ['chat'], hint: key.slice(-4) })

  const url = await gateway(t, { ...env, BATON_PORT: '0' })
  const call = () => fetch(`${url}/v1/sessions`, { headers: { authorization: `Bearer ${key}` } })
  t.equal((await call()).status, 200)
  // The folder is in use now: the configured address is asked.
  const at = { ...env, BATON_PORT: new URL(url).port }
  const other = await run(at, 'keys create --owner bob --scope admin --json')
  t.match(JSON.parse(other.out[0] ?? ''), { owner: 'bob', scopes: ['admin'], key: /^bk_/ })
  const table = await run(at, 'keys list')
  t.match(table.out, [/^id +owner +scopes/, /bob +admin/, /ann +chat/])
  t.equal((await run(at, `keys revoke ${row.id}`)).code, 0)
  t.equal((await call()).status, 401)
  const again = await run(at, `keys revoke ${JSON.parse(other.out[0] ?? '').id} --json`)
  t.match(JSON.parse(again.out[0] ?? ''), { id: /^key_/, state: 'revoked' })
  t.match(await run(at, 'keys revoke key_unknown'), { code: 1, err: /No key key_unknown exists/ })

  t.match(
    await run({}, `keys list --url ${url} --key wrong`),
    { code: 1, err: /The key is not known\. Give one with --key/ },
    'a wrong key is told from a wrong command',
  )
  t.match(await run({}, 'keys list --url http://gateway.test --key k'), { code: 1, err: /must use https/ })
  t.match(await run({}, 'credentials --url http://127.0.0.1:1'), { code: 1, err: /does not answer/ })
  t.match(await run(at, 'credentials --owner ann'), { code: 1, err: /--owner has no effect/ })
})

t.test('an admin key that is set to nothing is none', async (t) => {
  const keys: (string | undefined)[] = []
  const server = createServer((request, response) => {
    keys.push(request.headers.authorization)
    response.end('{"data":[],"next_cursor":null}')
  }).listen(0, '127.0.0.1')
  t.teardown(() => server.close())
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  for (const BATON_ADMIN_KEY of ['', ' ']) await run({ BATON_ADMIN_KEY }, `keys list --url ${url}`)
  await run({ BATON_ADMIN_KEY: ' k ' }, `keys list --url ${url}`)
  t.same(keys, [undefined, undefined, 'Bearer k'])
})

t.test('a gateway that has the embedded store seals anew while it serves', async (t) => {
  const [old, fresh] = ['old', 'new'].map((id) => `${id}:${randomBytes(32).toString('base64')}`)
  const env = { BATON_DATA_DIR: home(t), BATON_DRAIN_SECONDS: '0', BATON_PORT: '0' }
  const serve = async (keys: string | undefined, work: (url: string) => Promise<void>) => {
    const with_keys = { ...env, BATON_ENCRYPTION_KEYS: keys ?? '' }
    const app = await createApp(loadConfig(with_keys, '/').config, { log: pino({ level: 'silent' }) })
    await app.http.listen({ host: '127.0.0.1', port: 0 })
    await work(`http://127.0.0.1:${(app.http.server.address() as AddressInfo).port}`).finally(() =>
      app.close(),
    )
  }
  const credential = JSON.stringify({ provider: 'openai', kind: 'api_key', api_key: 'sk-of-the-old-key' })
  const headers = { 'content-type': 'application/json' }
  await serve(old, async (url) => {
    const made = await fetch(`${url}/v1/credentials`, { method: 'POST', headers, body: credential })
    t.equal(made.status, 201)
  })
  await serve(`${fresh},${old}`, async (url) => {
    const at = { ...env, BATON_ENCRYPTION_KEYS: `${fresh},${old}`, BATON_PORT: new URL(url).port }
    t.match(await run(at, 'keys rotate-encryption'), { code: 0, err: /^1 secrets are sealed anew; all are/ })
    t.match(await run({}, `keys rotate-encryption --url ${url}`), { code: 0, err: /^0 secrets/ })
    const { out } = await run(at, 'keys rotate-encryption --json')
    t.same(
      out.map((line) => JSON.parse(line)),
      [{ resealed: 0, left: 0 }],
    )
  })
  await serve(fresh, async (url) => {
    const asked = JSON.stringify({ provider: 'openai', model: 'gpt-5.6-sol' })
    const made = await fetch(`${url}/v1/sessions`, { method: 'POST', headers, body: asked })
    const { id } = (await made.json()) as { id: string }
    const body = JSON.stringify({ input: 'hello' })
    const shown = await fetch(`${url}/v1/sessions/${id}/render`, { method: 'POST', headers, body })
    t.equal(shown.status, 200, 'the new key alone opens it')
  })
})

t.test('a person logs in, sees the credential, and logs out, with or without a gateway', async (t) => {
  const anthropic = await createAnthropicLogins()
  t.teardown(() => anthropic.close())
  const env = {
    BATON_DATA_DIR: home(t),
    BATON_DRAIN_SECONDS: '0',
    BATON_ENABLE_OAUTH: 'anthropic',
    BATON_ANTHROPIC_OAUTH_AUTHORIZE_URL: anthropic.authorizeUrl,
    BATON_ANTHROPIC_OAUTH_TOKEN_URL: anthropic.tokenUrl,
    BATON_ANTHROPIC_BASE_URL: anthropic.url,
    BATON_ANTHROPIC_OAUTH_CLIENT_ID: CLIENT,
  }
  const paste = async (out: string[]) => (await visit(out[0] ?? '')).href
  async function into(place: Record<string, string>): Promise<string> {
    const login = await run(place, 'login anthropic --mode paste', paste)
    t.equal(login.code, 0, login.err)
    return /Logged in: (cred_\w+)/.exec(login.err)?.[1] ?? ''
  }
  const first = await into(env)
  t.equal((await run(env, `logout ${first}`)).code, 0)
  t.match(await run(env, 'import anthropic codex login.json'), { code: 64, err: /format must be one of/ })
  const url = await gateway(t, { ...env, BATON_PORT: '0' })
  const at = { ...env, BATON_PORT: new URL(url).port }
  const second = await into(at)
  const { out } = await run(at, 'credentials')
  t.match(out, [/^id +owner +provider/, new RegExp(`${second} +local +anthropic +oauth .* active`)])
  t.equal(out.length, 2, 'the first one is gone')
  t.notMatch(out.join(), /sk-ant/)
  t.match(await run(at, `logout ${first}`), { code: 1, err: new RegExp(first) })
  t.match(await run(at, 'login anthropic --mode paste'), { code: 64, err: /Nothing was pasted/ })
  t.match(await run(at, 'login openai'), { code: 1, err: /OAuth for openai is off.*BATON_ENABLE_OAUTH/ })
  // Here the answer comes by itself, from the browser to the gateway, while the command waits.
  const waiting = run(at, 'login anthropic', undefined, async (page) => {
    await fetch(await visit(page))
  })
  t.match(await waiting, { code: 0, err: /Logged in: cred_/ })

  const imported = await run(at, 'import anthropic claude login.json --json')
  t.match(imported, { code: 0, err: /claude/i })
  const { id } = JSON.parse(imported.out[0] ?? '')
  const gone = await run({}, `logout ${id} --url ${url} --json`)
  t.equal(gone.code, 0, 'a gateway can be named')
  t.same(
    gone.out.map((line) => JSON.parse(line)),
    [{ id, state: 'deleted' }],
  )
  const bare = (out: string[]) => paste([JSON.parse(out[0] ?? '').authorization_url])
  const scripted = await run(at, 'login anthropic --mode paste --json', bare)
  t.match(
    scripted.out.map((line) => JSON.parse(line)),
    [{ mode: 'paste', state: String }, { credential_id: /^cred_/ }],
  )
  t.match(await run(at, 'import anthropic claude missing.json'), { code: 1, err: /cannot be read/ })
  t.match(await run(at, 'import anthropic codex login.json'), { code: 64, err: /format must be one of/ })
})

t.test('a login may take its gateway minutes', async (t) => {
  const waits: number[] = []
  const { timeout } = AbortSignal
  t.teardown(() => {
    AbortSignal.timeout = timeout
  })
  AbortSignal.timeout = (ms) => {
    waits.push(ms)
    return timeout.call(AbortSignal, ms)
  }
  const access = openRemote({ url: 'http://127.0.0.1:1', key: null })
  await t.rejects(access.exchange('gemini', 's', 'code'), /does not answer/)
  await t.rejects(access.importFile('gemini', 'gemini-cli', '{}'), /does not answer/)
  t.ok(
    waits.length === 2 && waits.every((ms) => ms > 24 * 5000),
    'as long as the vendor is asked whether it is done',
  )
})

t.test('the doctor passes over a connector that is deleted while it looks', async (t) => {
  const page = (...data: object[]) => [200, { data, next_cursor: null }] as const
  const answers: Record<string, readonly [number, object]> = {
    'GET /readyz': [200, {}],
    'GET /v1/credentials': page(),
    'GET /v1/connectors': page({ id: 'con_2', name: 'gone' }, { id: 'con_1', name: 'here' }),
    'POST /v1/connectors/con_2/test': [404, { error: { code: 'connector_not_found', message: 'Gone.' } }],
    'POST /v1/connectors/con_1/test': [200, { ok: true }],
  }
  const server = createServer(({ method, url = '' }, response) => {
    const [status, body] = answers[`${method} ${url.split('?')[0]}`] ?? [500, {}]
    response.writeHead(status).end(JSON.stringify(body))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  t.match(await run({}, `doctor --url http://127.0.0.1:${port}`), {
    code: 0,
    out: [/^ok {4}store and bus/, /^ok {4}MCP server here/, /^No problem/],
  })
})

t.test('the doctor says what is wrong and what to do, and ends with 1', async (t) => {
  const env = {
    BATON_DATA_DIR: home(t),
    BATON_DRAIN_SECONDS: '0',
    BATON_OPENAI_BASE_URL: 'http://127.0.0.1:1',
  }
  const fine = await run(env, 'doctor')
  t.match(fine, {
    code: 0,
    out: [/^ok {4}configuration: auth off, embedded store/, /^ok {4}store and bus/, /^No problem/],
  })
  const scripted = await run(env, 'doctor --json')
  t.match(
    scripted.out.map((line) => JSON.parse(line)),
    [
      { state: 'ok', what: /^configuration: / },
      { state: 'ok', what: /^store and bus/ },
    ],
  )
  t.equal(scripted.out.length, 2, 'the exit code tells the rest')
  const wrong = await run({ ...env, BATON_PORT: 'x' }, 'doctor')
  t.match(wrong, { code: 78, out: [/^BAD {3}configuration: BATON_PORT: must be/, /^1 problem found/] })

  const url = await gateway(t, { ...env, BATON_PORT: '0' })
  const made = await fetch(`${url}/v1/connectors`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'away', transport: 'streamable_http', url: 'http://127.0.0.1:1/mcp' }),
  })
  t.equal(made.status, 201)
  const asked = await run({ ...env, BATON_PORT: new URL(url).port }, 'doctor')
  t.equal(asked.code, 1)
  t.match(asked.out.join('\n'), /^BAD {3}MCP server away: .*See that it runs/m)
  t.match(asked.out.join('\n'), /by the gateway at http:\/\/127\.0\.0\.1/)
  const named = await run({ BATON_PORT: 'x' }, `doctor --url ${url}`)
  t.match(named, { code: 1, out: [/^ok {4}store and bus, by the gateway/, /^BAD {3}MCP server away/] })
  t.notMatch(named.out.join(), 'configuration', 'that of this shell is not that of the gateway')
  const closed = Object.fromEntries(
    ['CHATGPT', 'ANTHROPIC', 'GEMINI', 'CODE_ASSIST'].map((name) => [`BATON_${name}_BASE_URL`, url]),
  )
  const online = await run({ ...env, ...closed, BATON_PORT: new URL(url).port }, 'doctor --online')
  t.match(online.out.join('\n'), /^BAD {3}openai at http:\/\/127\.0\.0\.1:1 cannot be reached/m)
  t.match(online.out.join('\n'), /^ok {4}anthropic at .* answers/m)
})

const OLD = { id: 'old', key: new Uint8Array(32).fill(1) }
const NEW = { id: 'new', key: new Uint8Array(32).fill(2) }
const ME = { owner: 'me', admin: false }
const SAID = 'the token is ghp_0123456789abcdefghijklmnopqrstuvwxyz'

/** Something sealed under the old key at every place that has such things. */
async function fill(store: Store): Promise<void> {
  const vault = createVault([OLD])
  const common = { owner: 'me', name: null, state: 'active' as const, reason: null, is_default: false }
  for (const id of ['cred_1', 'cred_2']) {
    await store.credentials.create({
      ...common,
      id,
      provider: 'openai',
      kind: 'api_key',
      hint: '',
      facts: {},
      expires_at: null,
      secret: vault.seal(`secret of ${id}`, secretContext('me', id)),
    })
  }
  const place = { provider: 'openai', model: 'm', title: null, metadata: {}, settings: {} }
  await store.sessions.create({ ...place, id: 'ses_1', owner: 'me', credential_id: null, instructions: '' })
  const text = [{ type: 'text' as const, text: SAID }]
  // What only looks like a sealed part stays what it is.
  const call = { type: 'tool_call' as const, call_id: 'call_0', name: 'f', arguments: LOOKALIKE }
  await store.messages.append(ME, 'ses_1', [
    { id: 'msg_1', turn_id: null, role: 'user', parts: text },
    { id: 'msg_2', turn_id: null, role: 'assistant', parts: [call, ...text] },
  ])
  const opened = await store.turns.open(ME, {
    turn: {
      id: 'turn_1',
      session_id: 'ses_1',
      input: text,
      context: [{ op: 'insert_after', index: -1, message: { role: 'user', parts: text } }],
      max_steps: 1,
      provider: null,
      model: null,
      idempotency_key: null,
      body_hash: '',
    },
    message: { id: 'msg_3', turn_id: 'turn_1', role: 'user', parts: text },
    on_busy: 'reject',
    queue_limit: 1,
    lease: { owner: 'me', seconds: 60 },
  })
  if (opened?.kind !== 'running') throw new Error('the turn does not run')
  const execution = (id: string, state: 'started' | 'awaiting_approval') => ({
    id,
    turn_id: 'turn_1',
    step: 0,
    call_id: `call_${id}`,
    tool: 'f',
    connector: null,
    tools_revision: 0,
    arguments: {},
    state,
    repeatable: false,
  })
  await store.turns.commit(opened.fence, {
    turn_id: 'turn_1',
    executions: [execution('exec_1', 'started'), execution('exec_2', 'awaiting_approval')],
    announce: [{ key: 'k', event: ANNOUNCED }],
  })
  const result = { type: 'tool_result' as const, call_id: 'call_exec_1', name: 'f', content: text }
  await store.executions.settle(opened.fence, {
    id: 'exec_1',
    outcome: 'ok',
    is_error: false,
    error: null,
    duration_ms: 1,
    bytes: 1,
    output: '***',
    structured: false,
    result: { ...result, is_error: false, outcome: 'ok' },
  })
  await store.executions.decide(ME, 'turn_1', 'call_exec_2', {
    decision: 'approve',
    reason: null,
    sealed_arguments: vault.seal(SAID, 'exec_2'),
    by: 'me',
  })
  await store.turns.commit(opened.fence, {
    turn_id: 'turn_1',
    end: { state: 'failed', finish_reason: null, error: null },
  })
}
const LOOKALIKE = { type: 'sealed', sealed: 'AQNvbGQ=' }
const ANNOUNCED: TurnEvent = {
  type: 'content.delta',
  text: SAID,
  session_id: 'ses_1',
  turn_id: 'turn_1',
  step: 0,
  at: '2027-01-01T00:00:00.000Z',
}

t.test('after re-encryption the former key opens nothing and is not needed for anything', async (t) => {
  let vault = createVault([OLD])
  const keys = {
    seal: (plain: string, context: string) => vault.seal(plain, context),
    open: (sealed: Uint8Array, context: string) => vault.open(sealed, context),
  }
  const codec = sealParts(keys, (text) => text.includes('ghp_'))
  const store = await openStore({ databaseUrl: null, dataDir: null, poolSize: 1, codec })
  t.teardown(() => store.close())
  await verifyKeys(store.settings, vault)
  await fill(store)

  /** Everything that was sealed, opened with the keys of the moment. */
  async function everything() {
    const rows = await store.credentials.sealed('', 100)
    const [turn, messages, executions, announced] = [
      await store.turns.get(ME, 'turn_1'),
      await store.messages.after('ses_1', 0),
      await store.executions.ofTurn('turn_1'),
      await store.turns.unannounced(10),
    ]
    return {
      credentials: rows.map(({ id, owner, secret }) => keys.open(secret, secretContext(owner, id))),
      messages: messages.map(({ parts }) => parts),
      turn: [turn?.input, turn?.context],
      results: executions.map(({ result }) => result?.content ?? null),
      edits: executions.map(({ id, approval }) =>
        approval?.sealed_arguments ? keys.open(approval.sealed_arguments, id) : null,
      ),
      announced: announced.map(({ events }) => events()),
    }
  }
  const before = await everything()
  t.match(before, {
    credentials: ['secret of cred_1', 'secret of cred_2'],
    messages: [[{ text: SAID }], [{ arguments: LOOKALIKE }, { text: SAID }], [{ text: SAID }]],
    turn: [[{ text: SAID }], [{ message: { parts: [{ text: SAID }] } }]],
    results: [[{ text: SAID }], null],
    edits: [null, SAID],
    announced: [[{ event: { text: SAID } }]],
  })

  vault = createVault([NEW, OLD])
  // A refresh comes between the read and the write of one credential, once.
  let isDisturbed = false
  const busy = {
    ...store,
    credentials: {
      ...store.credentials,
      async reseal(...args: Parameters<Store['credentials']['reseal']>) {
        if (!isDisturbed) {
          isDisturbed = true
          const secret = createVault([OLD]).seal('refreshed', secretContext('me', 'cred_1'))
          await store.credentials.rotate('cred_1', 1, { secret, hint: '', expires_at: null, facts: {} })
        }
        return store.credentials.reseal(...args)
      },
    },
  }
  t.same(await rotateKeys(busy, vault), { resealed: 10, left: 0 })
  vault = createVault([NEW])
  await verifyKeys(store.settings, vault)
  t.same(await everything(), { ...before, credentials: ['refreshed', 'secret of cred_2'] })
  t.same(
    await rotateKeys(store, createVault([NEW, OLD])),
    { resealed: 0, left: 0 },
    'and there is nothing left to do',
  )

  const never = { ...store, credentials: { ...store.credentials, reseal: async () => false } }
  t.same(await rotateKeys(never, createVault([OLD, NEW])), { resealed: 8, left: 2 })
  await t.rejects(
    verifyKeys(store.settings, createVault([OLD])),
    /do not fit/,
    'the former key is still asked for',
  )
})

const servers = {
  DATABASE_URL: process.env.TEST_DATABASE_URL ?? '',
  REDIS_URL: process.env.TEST_REDIS_URL ?? '',
}
const hasServers = servers.DATABASE_URL !== '' && servers.REDIS_URL !== ''

t.test(
  'secrets are re-encrypted while a gateway serves with them',
  {
    skip:
      hasServers || process.env.CI === 'true'
        ? false
        : 'TEST_DATABASE_URL and TEST_REDIS_URL name no servers',
  },
  async (t) => {
    const vendor = await createOpenAiEmulator()
    const tools = await startToolServer({ look: {} })
    t.teardown(() => Promise.all([vendor.close(), tools.close()]))
    const [old, next] = ['old', 'new'].map((id) => `${id}:${randomBytes(32).toString('base64')}`)
    const env = {
      ...servers,
      DATABASE_URL: await newDatabase(t, servers.DATABASE_URL),
      BATON_DRAIN_SECONDS: '0',
      BATON_OPENAI_BASE_URL: vendor.keyBaseUrl,
    }
    const serving = async (keys: string) => {
      const { config } = loadConfig({ ...env, BATON_ENCRYPTION_KEYS: keys }, '/')
      const app = await createApp(config, { log: pino({ level: 'silent' }) })
      t.teardown(() => app.close())
      const call = async (method: 'GET' | 'POST', path: string, payload?: object) => {
        const headers = { host: 'localhost' }
        const answer = await app.http.inject({
          method,
          url: `/v1${path}`,
          headers,
          ...(payload && { payload }),
        })
        if (answer.statusCode >= 300) throw new Error(answer.body)
        return answer.json()
      }
      return { call, close: () => app.close() }
    }
    const before = await serving(old ?? '')
    const key = { provider: 'openai', kind: 'api_key', api_key: 'sk-test-openai' }
    const { id: credential_id } = await before.call('POST', '/credentials', key)
    const connector = {
      name: 'files',
      transport: 'streamable_http',
      url: tools.url,
      headers: { 'x-key': 'told' },
    }
    const { id } = await before.call('POST', '/connectors', connector)
    const chat = { provider: 'openai', model: 'gpt-5.6-sol', credential_id, connectors: ['files'] }
    const session = await before.call('POST', '/sessions', chat)
    await before.close()

    const both = { ...env, BATON_ENCRYPTION_KEYS: `${next},${old}` }
    const during = await serving(both.BATON_ENCRYPTION_KEYS)
    const turn = (input: string) => ({ input, stream: false })
    const said = during.call('POST', `/sessions/${session.id}/turns`, turn('call files__look with {}'))
    t.match(await run(both, 'keys rotate-encryption'), { code: 0 })
    t.match(await said, { state: 'completed' })
    await during.close()

    const after = await serving(next ?? '')
    t.match(await after.call('POST', `/sessions/${session.id}/turns`, turn('say hello')), {
      output_text: 'hello',
    })
    t.match(await after.call('POST', `/connectors/${id}/test`), { ok: true })
    t.match(await after.call('GET', `/connectors/${id}`), { header_names: ['x-key'] })
    await after.close()
    await t.rejects(serving(old ?? ''), /do not fit/)
  },
)
