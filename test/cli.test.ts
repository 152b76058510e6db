/** The command line: on the store, through a gateway that has the store open, and what it says to mistakes. */
import { spawn, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { openRemote } from '../src/cli/remote.ts'
import { run } from './cli/running.ts'
import { visit } from './credentials/world.ts'
import { CLIENT, createAnthropicLogins } from './emulators/oauth-anthropic.ts'
import { listening } from './listening.ts'
import { scratch } from './scratch.ts'
import { wholeGateway } from './whole-gateway.ts'

const cli = fileURLToPath(new URL('../src/cli.js', import.meta.url))

t.test('a wrong command line ends with 64, a wrong configuration with 78, help with 0', async (t) => {
  const env = { BATON_DATA_DIR: scratch(t) }
  for (const [line, words] of [
    ['frobnicate', /There is no command frobnicate\. Known: login, /],
    ['keys', /There is no command keys\. Known: keys create, keys list/],
    ['keys lost', /There is no command keys lost\. Known: /],
    ['keys --key=bk_1', /There is no command keys\. Known: /],
    ['--key bk_1 keys list', /^The command comes first, then its options\.$/],
    ['keys create', /needs --owner/],
    ['keys create --owner a --scope root', /--scope must be chat or admin/],
    ['keys create --owner a --expires tomorrow', /--expires must be a date or time/],
    ['keys create --owner a --expires 9999-12-31T23:59:59-12:00', /--expires must be a date or time/],
    [`keys create --owner a --name ${'x'.repeat(201)}`, /--name must have 1 to 200 characters/],
    ['keys create --owner a --expires 2031-02-29', /--expires must be a date or time/],
    ['keys create --owner a --expires 2001-01-01', /--expires is in the past/],
    ['keys revoke', /Usage: baton keys revoke <id>/],
    ['keys list --owner=', /--owner must have 1 to 128 characters without white space/],
    ['import anthropic claude login.json --owner=', /--owner must have 1 to 128 characters/],
    ['keys list --nonsense', /Unknown option '--nonsense'[\s\S]*Usage: baton keys list/],
    ['login nobody', /<provider> must be one of: openai, anthropic, gemini/],
    ['import nobody codex login.json', /<provider> must be one of: openai, anthropic, gemini/],
    ['keys create --owner a --scope admin --scope chat', /--scope is given twice/],
    ['keys list --url 127.0.0.1:8787', /--url must be an http or https URL/],
    ['keys list --url http://ann@127.0.0.1:1', /^--url must not hold a user name or password\./],
    ['keys list --url http://:hidden@127.0.0.1:1', /^--url must not hold a user name or password\./],
    [
      'keys list --url http://127.0.0.1:1 --key bk_…x',
      /^The key \(.*\) must be printable ASCII without spaces\.$/,
    ],
    ['doctor --url baton', /--url must be an http or https URL, such as http:/],
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
  t.match(help.out[1], /npm run -s baton --/, 'npm would write lines of its own above the answer')
  for (const word of ['login', 'logout', 'import', 'credentials', 'keys rotate-encryption', 'doctor'])
    t.match(help.out.join('\n'), new RegExp(`^  ${word}`, 'm'))
  for (const line of ['keys --help', 'keys -h', 'keys help']) {
    const { code, out } = await run(env, line)
    t.equal(code, 0, line)
    t.same(
      out.flatMap((shown) => /^ {2}(\w+)/.exec(shown)?.[1] ?? []),
      ['keys', 'keys', 'keys', 'keys'],
      'the commands that begin so, and no other',
    )
  }
  const { version } = JSON.parse(
    readFileSync(fileURLToPath(new URL('../../package.json', import.meta.url)), 'utf8'),
  )
  t.same(await run(env, '--version'), { code: 0, out: [version], err: '' })
  t.match((await run(env, 'keys create --help')).out[0], /^Usage: baton keys create --owner/)
})

t.test('the program itself answers on its streams and with its exit code', async (t) => {
  const ran = (...args: string[]) =>
    spawnSync(process.execPath, [cli, ...args], { encoding: 'utf8', env: { PATH: process.env.PATH } })
  t.match(ran('--help'), { status: 0, stdout: /^Usage: baton <command>/, stderr: '' })
  t.match(ran('nothing'), { status: 64, stdout: '', stderr: /There is no command nothing/ })
  const unread = `"${process.execPath}" "${cli}" --help | true`
  t.match(
    spawnSync(unread, { shell: true, encoding: 'utf8' }),
    { stderr: '' },
    'an answer that nobody reads is no error',
  )
})

const isMissing = !existsSync('/dev/full') && 'there is no /dev/full'
t.test('the command line ends with 1 when its answer cannot be written', { skip: isMissing }, async (t) => {
  const unwritten = `"${process.execPath}" "${cli}" --help > /dev/full`
  const { status, stderr } = spawnSync(unwritten, { shell: true, encoding: 'utf8' })
  t.match([status, stderr], [1, /^The answer cannot be written: ENOSPC/])
})

t.test('keys are made on the store, used at the gateway, and revoked through the gateway', async (t) => {
  const env = {
    BATON_DATA_DIR: scratch(t),
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: 'the-bootstrap-admin-key',
    BATON_DRAIN_SECONDS: '0',
  }
  const made = await run(env, 'keys create --owner ann --name laptop --expires 2999-01-01')
  t.equal(made.code, 0)
  const [key = ''] = made.out
  t.match(key, /^bk_[\w-]{43}$/)
  t.same(made.out.length, 1, 'the answer is the key alone, for scripts')
  const listed = await run(env, 'keys list --json')
  t.notMatch(listed.out.join(), key)
  const row = JSON.parse(listed.out[0] ?? '')
  t.match(row, { owner: 'ann', name: 'laptop', scopes: ['chat'], hint: key.slice(-4) })

  const url = await (await wholeGateway(t, env)).listen()
  const call = () => fetch(`${url}/v1/sessions`, { headers: { authorization: `Bearer ${key}` } })
  t.equal((await call()).status, 200)
  // The folder is in use now, so the command asks the gateway at the configured address.
  const at = { ...env, BATON_PORT: new URL(url).port }
  const other = await run(at, 'keys create --owner bob --scope admin --json')
  t.match(JSON.parse(other.out[0] ?? ''), { owner: 'bob', scopes: ['admin'], key: /^bk_/ })
  const table = await run(at, 'keys list')
  t.match(table.out, [/^id +owner +scopes/, /bob +admin/, /ann +chat/])
  t.equal((await run(at, `keys revoke ${row.id}`)).code, 0)
  t.equal((await call()).status, 401)
  const again = await run(at, `keys revoke ${JSON.parse(other.out[0] ?? '').id} --json`)
  t.match(JSON.parse(again.out[0] ?? ''), { id: /^key_/, state: 'revoked' })
  const secret = JSON.parse(other.out[0] ?? '').key
  const revoked = await run(at, `keys revoke ${secret}`)
  t.match(revoked, { code: 1, err: /No key has this id.*key_/ })
  t.notMatch(revoked.err, secret, 'a key that is given for its id is not shown')

  t.match(
    await run({}, `keys list --url ${url} --key wrong`),
    { code: 1, err: /The key is not known\. .*Give one with --key/ },
    'a wrong key is told from a wrong command',
  )
  t.match(await run({}, 'keys list --url http://gateway.test --key k'), { code: 64, err: /must use https/ })
  t.match(await run({}, 'credentials --url http://127.0.0.1:1'), { code: 1, err: /does not answer/ })
  t.match(await run(at, 'credentials --owner ann'), { code: 1, err: /--owner has no effect/ })
  t.match(
    await run({ ...at, BATON_HOST: 'gateway.invalid' }, 'keys list --key k'),
    { code: 1, err: /gateway\.invalid:\d+ does not answer/ },
    'a key may go in the clear to an address of this machine, which it does not leave',
  )
})

t.test('the command line says so when the server that answers is no Baton gateway', async (t) => {
  const keys: (string | undefined)[] = []
  let answer: [number, Record<string, string>, string] = [200, {}, '']
  const server = createServer(({ headers }, response) => {
    keys.push(headers.authorization)
    const [status, head, body] = answer
    response.writeHead(status, head).end(body)
  })
  const url = `http://127.0.0.1:${await listening(t, server)}`
  const said = `${url} answers, but not as Baton does. Name the gateway with --url.`
  for (const body of ['', '<html>', '[]', '{"status":"ok"}', '{"object":"list","data":[]}']) {
    answer = [200, {}, body]
    t.match(await run({}, `keys list --url ${url}`), { code: 1, err: said }, body)
    t.match(await run({}, `doctor --url ${url}`), { code: 1, out: [`BAD   ${said}`] }, body)
    t.match(await run({}, `keys revoke key_0 --url ${url}`), { code: 1, err: said }, body)
  }
  answer = [204, {}, '']
  t.match(await run({}, `doctor --url ${url}`), { code: 1, out: [`BAD   ${said}`] })
  answer = [404, {}, '{"error":{"code":"not_found","message":"There is nothing at /v1/v1/keys."}}']
  t.match(await run({}, `keys list --url ${url}/v1`), { code: 1, err: /\/v1 answers, but not as Baton does/ })
  answer = [308, { location: 'https://gateway.test/baton' }, '']
  keys.length = 0
  t.match(await run({}, `keys list --url ${url} --key k`), {
    code: 1,
    err: `${url} redirects to https://gateway.test/baton. Name the gateway with --url.`,
  })
  t.equal(keys.length, 1, 'the key does not follow the redirect')
  answer = [502, {}, '{"error":"bad gateway"}']
  t.match(await run({}, `keys list --url ${url}`), { code: 1, err: /answered HTTP 502/ })
})

t.test('an admin key that is empty or blank is not sent', async (t) => {
  const keys: (string | undefined)[] = []
  const server = createServer((request, response) => {
    keys.push(request.headers.authorization)
    response.end('{"data":[],"next_cursor":null}')
  })
  const url = `http://127.0.0.1:${await listening(t, server)}`
  for (const BATON_ADMIN_KEY of ['', ' ']) await run({ BATON_ADMIN_KEY }, `keys list --url ${url}`)
  await run({ BATON_ADMIN_KEY: ' k ' }, `keys list --url ${url}`)
  t.same(keys, [undefined, undefined, 'Bearer k'])
})

t.test('a gateway with the embedded store seals its secrets under the new key while it serves', async (t) => {
  const key = (id: string) => `${id}:${randomBytes(32).toString('base64')}`
  const old = key('old')
  const both = `${key('new')},${old}`
  const env = { BATON_DATA_DIR: scratch(t), BATON_DRAIN_SECONDS: '0' }
  const serve = async (keys: string, work: (url: string) => Promise<void>) => {
    const app = await wholeGateway(t, { ...env, BATON_ENCRYPTION_KEYS: keys })
    await work(await app.listen()).finally(() => app.close())
  }
  const credential = JSON.stringify({ provider: 'openai', kind: 'api_key', api_key: 'sk-of-the-old-key' })
  const headers = { 'content-type': 'application/json' }
  await serve(old, async (url) => {
    const made = await fetch(`${url}/v1/credentials`, { method: 'POST', headers, body: credential })
    t.equal(made.status, 201)
  })
  await serve(both, async (url) => {
    const at = { ...env, BATON_ENCRYPTION_KEYS: both, BATON_PORT: new URL(url).port }
    t.match(await run(at, 'keys rotate-encryption'), {
      code: 0,
      err: /^1 secrets are re-encrypted; all are under the first key, new\. .* take old out there\.$/m,
    })
    t.match(await run({}, `keys rotate-encryption --url ${url}`), { code: 0, err: /^0 secrets/ })
    const { out } = await run(at, 'keys rotate-encryption --json')
    t.same(
      out.map((line) => JSON.parse(line)),
      [{ resealed: 0, left: 0, unopened: [], key: 'new', others: ['old'] }],
    )
  })
})

t.test('a person logs in, sees the credential, and logs out, with or without a gateway', async (t) => {
  const anthropic = await createAnthropicLogins()
  t.teardown(() => anthropic.close())
  const env = {
    BATON_DATA_DIR: scratch(t),
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
  await run(env, 'login anthropic --mode paste', async () => {
    const err =
      /^Another Baton process has .* open: a gateway or a command\. The gateway at .* does not answer/
    t.match(await run({ ...env, BATON_PORT: '1' }, 'keys list'), { code: 1, err })
    return null
  })
  const first = await into(env)
  t.equal((await run(env, `logout ${first}`)).code, 0)
  t.match(await run(env, 'import anthropic codex login.json'), { code: 64, err: /format must be one of/ })
  const url = await (await wholeGateway(t, env)).listen()
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
  t.match(await waiting, {
    code: 0,
    err: /on the machine of the gateway.* --mode paste[\s\S]*Logged in: cred_/,
  })

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

t.test('the command line gives a gateway minutes to finish a login', async (t) => {
  const waits: number[] = []
  const { timeout } = AbortSignal
  t.teardown(() => {
    AbortSignal.timeout = timeout
  })
  AbortSignal.timeout = (ms) => {
    waits.push(ms)
    return timeout.call(AbortSignal, ms)
  }
  const access = openRemote({ root: 'http://127.0.0.1:1', key: null, owner: undefined })
  await t.rejects(access.exchange('gemini', 's', 'code'), /does not answer/)
  await t.rejects(access.importFile('gemini', 'gemini-cli', '{}'), /does not answer/)
  t.ok(
    waits.length === 2 && waits.every((ms) => ms > 24 * 5000),
    'at least as long as the gateway asks the vendor whether it is done',
  )
})

t.test('a command that waits for a login goes on if the gateway cannot be asked for a moment', async (t) => {
  const login = { authorization_url: 'https://login.test/', state: 's', expires_at: '', mode: 'device' }
  const away = [503, { error: { code: 'unavailable', message: 'The database is away.' } }] as const
  const pending = [200, { state: 'pending' }] as const
  const done = [200, { state: 'done', credential_id: 'cred_1' }] as const
  const statuses: (readonly [number, object] | null)[] = [pending, null, away, pending, away, done]
  const server = createServer(({ method }, response) => {
    const answer = method === 'POST' ? ([200, login] as const) : statuses.shift()
    if (answer) response.writeHead(answer[0]).end(JSON.stringify(answer[1]))
    else response.destroy()
  })
  const url = `http://127.0.0.1:${await listening(t, server)}`
  t.match(await run({}, `login openai --url ${url}`), { code: 0, err: /Logged in: cred_1/ })
  statuses.push(...Array.from({ length: 20 }, () => away))
  t.match(await run({}, `login openai --url ${url}`), { code: 1, err: /The database is away/ })

  const refused = [401, { error: { code: 'unauthenticated', message: 'The key is not known.' } }] as const
  statuses.splice(0, Number.POSITIVE_INFINITY, pending, refused, done)
  t.match(await run({}, `login openai --url ${url}`), { code: 1, err: /The key is not known/ })
  t.equal(statuses.length, 1, 'after its key was refused the command does not ask again')
})

t.test('a login goes on when whoever reads what is said beside the answer has gone', async (t) => {
  const login = { authorization_url: 'https://login.test/', state: 's', expires_at: '', mode: 'device' }
  const statuses = [{ state: 'pending' }, { state: 'done', credential_id: 'cred_1' }]
  const server = createServer(({ method }, response) => {
    response.end(JSON.stringify(method === 'POST' ? login : statuses.shift()))
  })
  const url = `http://127.0.0.1:${await listening(t, server)}`
  const child = spawn(process.execPath, [cli, 'login', 'openai', '--url', url], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { PATH: process.env.PATH },
  })
  await once(child.stderr, 'data')
  child.stderr.destroy()
  t.same(await once(child, 'exit'), [0, null])
  t.same(statuses, [])
})

t.test('names and errors of strangers cannot move the cursor, hide or make lines of their own', async (t) => {
  const words = 'a\u001b[2J\u009b1A\u202eb\u{e0041}\nok    all is well'
  const shown = 'a\\u001b[2J\\u009b1A\\u202eb\\udb40\\udc41 ok    all is well'
  const credential = {
    id: 'cred_1',
    owner: 'o',
    provider: 'openai',
    kind: 'api_key',
    hint: 'abcd',
    name: words,
  }
  const page = (row: object) => ({ data: [row], next_cursor: null })
  const answers: Record<string, object> = {
    'GET /readyz': { status: 'ready' },
    'GET /v1/credentials': page({ ...credential, state: 'active', reason: null }),
    'GET /v1/connectors': page({ id: 'con_1', name: 'one' }),
    'POST /v1/connectors/con_1/test': { error: words },
  }
  const server = createServer(({ method, url = '' }, response) => {
    const body = answers[`${method} ${url.split('?')[0]}`]
    response.writeHead(body ? 200 : 400).end(JSON.stringify(body ?? { error: { message: words, code: 'c' } }))
  })
  const url = `http://127.0.0.1:${await listening(t, server)}`
  const [, row = ''] = (await run({}, `credentials --url ${url}`)).out
  t.ok(row.includes(shown), row)
  const [json = ''] = (await run({}, `credentials --url ${url} --json`)).out
  t.equal(JSON.parse(json).name, words, 'as JSON the name is whole')
  t.notMatch(json, /\u009b|\u202e/)
  const { out } = await run({}, `doctor --url ${url}`)
  t.ok(out.join().includes(`MCP server one: ${shown}`), out.join())
  const refused = await run({}, `logout cred_1 --url ${url}`)
  t.match(refused, { code: 1, err: /^a\\u001b\[2J/ })
})
