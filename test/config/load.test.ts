/** Environment and file become one frozen configuration, or a list of every problem. */
import { mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import t from 'tap'
import { makeDataDir } from '../../src/config/data-dir.ts'
import { loadConfig } from '../../src/config/load.ts'
import { SETTINGS } from '../../src/config/settings.ts'
import { parseDuration } from '../../src/duration.ts'
import { NONE } from '../patterns.ts'
import { empty, folder, load, problems } from './loading.ts'

const KEY = Buffer.alloc(32, 7).toString('base64')

t.test('without any setting the defaults of the contract hold', async (t) => {
  const { config, warnings } = load({})
  t.match(config, {
    host: '127.0.0.1',
    port: 8787,
    dataDir: join(empty, '.baton'),
    databaseUrl: null,
    redisUrl: null,
    auth: 'off',
    bodyLimit: 32 * 2 ** 20,
    drainSeconds: 30,
    leaseSeconds: 15,
    approvalSeconds: 86_400,
    toolWaitSeconds: 10,
    ledgerRetentionMs: 90 * 86_400_000,
    connectorsAllowPrivate: true,
    allowStdioConnectors: false,
    encryptionKeys: null,
    forwardProxy: null,
    connectorProxy: null,
    deploymentOptions: { dual_declarations: true, unstored: false },
    baseUrls: {
      openai: 'https://api.openai.com/v1',
      chatgpt: 'https://chatgpt.com/backend-api/codex',
      anthropic: 'https://api.anthropic.com',
      gemini: 'https://generativelanguage.googleapis.com/v1beta',
      code_assist: 'https://cloudcode-pa.googleapis.com/v1internal',
    },
    toolbox: { maxConcurrent: Infinity, tools: NONE, mcps: NONE, inspect: true },
  })
  t.same(warnings, [])
  t.throws(() => Object.assign(config.toolbox, { maxConcurrent: 1 }), 'the whole object is frozen')
  t.throws(() => Object.assign(config, { port: 1 }))
})

t.test('every setting can be given by its variable and by its key in the file', async (t) => {
  const values: Record<keyof typeof SETTINGS, string> = {
    host: 'localhost',
    port: '0',
    public_url: 'https://baton.test/',
    data_dir: 'data',
    database_url: 'postgres://u:p@db/baton',
    redis_url: 'rediss://cache:6379',
    log_level: 'warn',
    auth: 'keys',
    admin_key: 'a-long-enough-admin-key',
    cors_origins: 'https://A.test, http://localhost:3000',
    body_limit: '1MiB',
    rate_limit_per_minute: '60',
    turns_per_owner: '8',
    drain_seconds: '5',
    lease_seconds: '2',
    approval_seconds: '60',
    tool_wait_seconds: '5',
    ledger_retention: 'P365D',
    connectors_allow_private: '10.0.0.0/8,tools.internal',
    allow_stdio_connectors: 'true',
    stdio_isolation: 'bubblewrap',
    enable_oauth: 'openai,gemini',
    encryption_keys: `k2:${KEY},k1:${Buffer.alloc(32, 1).toString('base64url')}`,
    https_proxy: 'http://u:p@proxy.test:3128',
    no_proxy: 'relay.test',
    connectors_proxy: 'name',
    openai_base_url: 'http://127.0.0.1:1/v1/',
    chatgpt_base_url: 'http://localhost:1/codex',
    anthropic_base_url: 'http://[::1]:1',
    gemini_base_url: 'https://proxy.test/g',
    code_assist_base_url: 'https://proxy.test/c',
    openai_oauth_issuer: 'http://127.0.0.1:1',
    openai_oauth_client_id: 'o',
    anthropic_oauth_authorize_url: 'http://127.0.0.1:1/a',
    anthropic_oauth_token_url: 'http://127.0.0.1:1/t',
    anthropic_oauth_client_id: 'a',
    google_oauth_authorize_url: 'http://127.0.0.1:1/ga',
    google_oauth_token_url: 'http://127.0.0.1:1/gt',
    google_oauth_client_id: 'g',
    google_oauth_client_secret: 's',
    code_assist_dual_declarations: 'false',
    gemini_store: 'false',
  }
  const entries = Object.entries(SETTINGS).map(([key, { name }]) => [
    name,
    values[key as keyof typeof SETTINGS],
  ])
  const env = Object.fromEntries(entries)
  const fromEnv = load(env).config
  const yaml = Object.entries(values).map(([key, value]) => `${key}: ${JSON.stringify(value)}`)
  const dir = folder(yaml.join('\n'))
  const fromFile = loadConfig({}, dir).config
  t.same({ ...fromEnv, dataDir: '', file: '' }, { ...fromFile, dataDir: '', file: '' })
  t.equal(fromFile.file, join(dir, 'baton.yaml'))
  t.equal(fromFile.dataDir, join(dir, 'data'))
  // Without an encryption key DATABASE_URL is refused; the keys are looked at below.
  const { database_url, encryption_keys, ...others } = SETTINGS
  for (const { name } of [database_url, ...Object.values(others)])
    t.notSame(load({ ...env, [name]: '' }).config, fromEnv, `${name} is in the configuration`)
  t.match(fromEnv, {
    baseUrls: { openai: /:1\/v1$/, anthropic: 'http://[::1]:1' },
    deploymentOptions: { dual_declarations: false, unstored: true },
    bodyLimit: 2 ** 20,
    connectorsAllowPrivate: ['10.0.0.0/8', 'tools.internal'],
    enableOauth: ['openai', 'gemini'],
    corsOrigins: ['https://a.test', 'http://localhost:3000'],
    encryptionKeys: [{ id: 'k2', key: new Uint8Array(32).fill(7) }, { id: 'k1' }],
  })
})

t.test('each limit can be given in the file; a toolbox alone runs ten calls at once', async (t) => {
  const limits = {
    concurrent_turns: 1,
    waiting_turns: 0,
    overload_delay: 'PT0.003S',
    database_pool: 4,
    upstream_connections: 5,
    connect_timeout: 'PT6S',
    first_byte_timeout: 'PT7S',
    idle_timeout: 'PT8S',
  }
  const { config } = load({}, `toolbox: {}\nlimits: ${JSON.stringify(limits)}`)
  t.strictSame(Object.values(config.limits), [1, 0, 3, 4, 5, 6000, 7000, 8000])
  t.equal(config.toolbox.maxConcurrent, 10)
})

t.test('a variable wins over the file; an empty variable counts as not set', async (t) => {
  const yaml = 'port: 1000\nlog_level: error\ncors_origins: [https://a.test, https://b.test]'
  const { config } = load({ BATON_PORT: '2000', BATON_LOG_LEVEL: '' }, yaml)
  t.match(config, { port: 2000, logLevel: 'error', corsOrigins: ['https://a.test', 'https://b.test'] })
  t.match(problems({ BATON_PORT: 'x' }, 'port: 1'), [
    { path: 'BATON_PORT', remedy: /^Port to listen on.*[^.]$/ },
  ])
})

t.test('logins have the blocks and headers that the file gives them, else none', async (t) => {
  const { loginExtras } = load({}, 'providers: {openai: {oauth: {system_blocks: [Hi]}}, gemini: {}}').config
  t.strictSame(loginExtras, {
    openai: { system_blocks: ['Hi'], headers: {} },
    gemini: { system_blocks: [], headers: {} },
  })
})

t.test('the API keys of the environment become credentials', async (t) => {
  const env = { OPENAI_API_KEY: 'sk-1', GEMINI_API_KEY: 'g-1', ANTHROPIC_API_KEY: ' ' }
  t.same(load(env).config.envCredentials, [
    { provider: 'openai', apiKey: 'sk-1' },
    { provider: 'gemini', apiKey: 'g-1' },
  ])
  const placed = { ...env, ANTHROPIC_WORKSPACE_ID: 'wrkspc_1', ANTHROPIC_API_KEY: 'sk-2' }
  t.strictSame(load(placed).config.envCredentials, [
    { provider: 'openai', apiKey: 'sk-1' },
    { provider: 'anthropic', apiKey: 'sk-2', workspaceId: 'wrkspc_1' },
    { provider: 'gemini', apiKey: 'g-1' },
  ])
  const found = problems({ OPENAI_API_KEY: 'sk-secret with\nbreak' })
  t.match(found, [{ path: 'OPENAI_API_KEY' }])
  t.notMatch(JSON.stringify(found), /secret/)
})

t.test(
  'every page may call where each call needs a key, and a proxy is not for connectors unless they are named',
  async (t) => {
    t.same(problems({ BATON_CORS_ORIGINS: '*', BATON_AUTH: 'keys' }), [])
    const { config } = load({ HTTPS_PROXY: 'https://proxy.test:3128' })
    t.match(config, { forwardProxy: { url: /^https:.*proxy\.test/ }, connectorProxy: null })
  },
)

t.test('an encryption key that stands where its id belongs is not shown', async (t) => {
  const key = 'c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U'
  const found = problems({ BATON_ENCRYPTION_KEYS: `${key}:k1` })
  t.match(found, [{ path: 'BATON_ENCRYPTION_KEYS', problem: /key 1/ }])
  t.notMatch(JSON.stringify(found), key)
})

t.test('all problems come at once, each with its path and a remedy, no secret in any', async (t) => {
  const found = problems(
    {
      BATON_PORT: '99999',
      BATON_AUTH: 'maybe',
      BATON_OPENAI_BASE_URL: 'http://proxy.example/v1',
      BATON_ENCRYPTION_KEYS: 'k1:c2VjcmV0',
      DATABASE_URL: 'mysql://root:hunter2@db',
      BATON_ENABLE_OAUTH: 'openai,myspace',
      BATON_ADMIN_KEY: 'hunter2 with space',
      BATON_CORS_ORIGINS: 'https://a.test/path',
      BATON_CONNECTORS_ALLOW_PRIVATE: '10.0.0.0/99',
      BATON_BODY_LIMIT: 'huge',
      BATON__TOOLBOX__NOPE: '1',
    },
    'toolbox: {max_concurrent: 0, mcps: [{name: Bad Name, transport: carrier-pigeon}]}\nprot: 1\n',
  )
  const paths = found.map(({ path }) => path)
  t.same(
    [...paths].sort(),
    [
      'BATON_PORT',
      'BATON_AUTH',
      'BATON_OPENAI_BASE_URL',
      'BATON_ENCRYPTION_KEYS',
      'DATABASE_URL',
      'BATON_ENABLE_OAUTH',
      'BATON_ADMIN_KEY',
      'BATON_CORS_ORIGINS',
      'BATON_CONNECTORS_ALLOW_PRIVATE',
      'BATON_BODY_LIMIT',
      'BATON__TOOLBOX__NOPE',
      'prot',
      'toolbox.max_concurrent',
      'toolbox.mcps[0].name',
      'toolbox.mcps[0].transport',
      'toolbox.mcps[0].mode',
    ].sort(),
  )
  t.notMatch(JSON.stringify(found), /hunter2|c2VjcmV0/)
  t.match(
    found.find(({ path }) => path === 'prot'),
    { problem: 'is not a known field', remedy: /Known fields here: host, port/ },
  )
  t.match(
    found.find(({ path }) => path === 'BATON_OPENAI_BASE_URL'),
    { problem: 'must use https', remedy: /loopback/ },
  )
  try {
    load({ BATON_PORT: 'x', BATON_AUTH: 'y' })
    t.fail('it was accepted')
  } catch (error) {
    t.match(error, { message: /^BATON_PORT: must be .*\nBATON_AUTH: must be one of: off, keys\./ })
  }
})

t.test('a value that is wrong by itself hides no problem of values that do not fit together', async (t) => {
  const mcps = [
    'name: a, transport: stdio, mode: dynamic, max: 1',
    'name: a, transport: sse, url: 5, mode: strict',
    'transport: sse, url: "ftp://x", mode: dynamic, headers: {"b ad": x, ok: [1]}',
  ]
  const found = problems(
    { BATON_PORT: 'x', BATON_HOST: '0.0.0.0', BATON_AUTH: 'off', DATABASE_URL: 'postgresql://db/baton' },
    `toolbox: {mcps: [${mcps.map((mcp) => `{${mcp}}`)}]}\n`,
  )
  t.same(
    found.map(({ path }) => path).sort(),
    [
      'BATON_PORT',
      'BATON_AUTH',
      'BATON_ENCRYPTION_KEYS',
      'toolbox.mcps[0].max',
      'toolbox.mcps[0].command',
      'toolbox.mcps[0].default_tool_config',
      'toolbox.mcps[1].name',
      'toolbox.mcps[1].url',
      'toolbox.mcps[2].name',
      'toolbox.mcps[2].default_tool_config',
      'toolbox.mcps[2].url',
      'toolbox.mcps[2].headers.b ad',
      'toolbox.mcps[2].headers.ok',
    ].sort(),
  )
  t.ok(found.some(({ problem }) => problem.startsWith("MCP server '?' is configured with mode='dynamic'")))
  const dotted = '"toolbox.mcps": 1\ntoolbox: {mcps: [{name: a, transport: stdio, mode: strict}]}\n'
  t.match(problems({}, dotted), [
    { path: 'toolbox.mcps', problem: 'is not a known field' },
    { path: 'toolbox.mcps[0].command', problem: /is required/ },
  ])
  t.match(problems({}, 'cors_origins: [{toString: 1}]\n'), [{ path: 'cors_origins[0]' }])
})

t.test('a value that its setting does not take is a problem with its reason', async (t) => {
  const twice = `a:${KEY},a:${KEY}`
  const cases: [string, string, RegExp][] = [
    ['BATON_ENCRYPTION_KEYS', twice, /'a' is used twice/],
    ['BATON_ENCRYPTION_KEYS', `:${KEY}`, /has no id/],
    ['BATON_ENCRYPTION_KEYS', `a:${KEY}!`, /32 bytes/],
    ['BATON_ENCRYPTION_KEYS', `a:x,b:${KEY},:x`, /^key 1 is not base64.*; key 3 has no id/],
    ['BATON_ENCRYPTION_KEYS', ',', /holds no key/],
    ['BATON_GEMINI_BASE_URL', 'gemini', /absolute URL/],
    ['BATON_GEMINI_BASE_URL', 'https://u:p@g.test', /user name or password/],
    ['BATON_GEMINI_BASE_URL', 'https://u@g.test', /user name or password/],
    ['BATON_GEMINI_BASE_URL', 'https://:p@g.test', /user name or password/],
    ['BATON_GEMINI_BASE_URL', 'https://g.test?key=1', /query/],
    ['BATON_GEMINI_BASE_URL', 'https://g.test#key', /fragment/],
    ['BATON_GEMINI_BASE_URL', 'ftp://127.0.0.1', /must use https/],
    ['BATON_GEMINI_BASE_URL', 'http://127.0.0.1.evil.test', /must use https/],
    ['REDIS_URL', 'not a url', /absolute URL/],
    ['REDIS_URL', 'redis://:100%x@cache', /a % that encodes nothing/],
    ['REDIS_URL', 'redis://cache/baton', /the number of a database/],
    ['BATON_LEASE_SECONDS', '0', /from 1 to 600/],
    ['BATON_DRAIN_SECONDS', '1.5', /whole number/],
    ['BATON_ALLOW_STDIO_CONNECTORS', 'perhaps', /true or false/],
    ['BATON_CORS_ORIGINS', 'https://*.a.test', /not an origin/],
    // Browsers leave a scheme's own port out.
    ['BATON_CORS_ORIGINS', 'https://a.test:443', /not an origin/],
    ['BATON_CORS_ORIGINS', 'chrome-extension://*', /not an origin/],
    ['BATON_CORS_ORIGINS', 'capacitor://localhost/page', /not an origin/],
    [
      'BATON_CORS_ORIGINS',
      'https://a.test\u200b',
      /^holds 'https:\/\/a\.test\\u\{200b\}', which is not an origin$/,
    ],
    [
      'BATON_CONNECTORS_ALLOW_PRIVATE',
      `a.test\n\x1b[2J${'x'.repeat(99)}`,
      /^holds 'a\.test \\u\{1b\}\[2Jx+…', which/,
    ],
    ['BATON_CORS_ORIGINS', '*', /must not hold \* while auth is off/],
    ['BATON_BODY_LIMIT', '1GiB', /from 1 B to 256 MiB/],
    ['BATON_BODY_LIMIT', '-1K', /from 1 B to 256 MiB/],
    ['BATON_BODY_LIMIT', '0', /from 1 B to 256 MiB/],
    ['BATON_BODY_LIMIT', '268435457', /from 1 B to 256 MiB/],
    ['BATON_BODY_LIMIT', '64 KB/s', /from 1 B to 256 MiB/],
    ['BATON_PORT', 'tcp://10.43.161.118:80', /Service named baton/],
    ['BATON_LEASE_SECONDS', '601', /from 1 to 600/],
    ['HTTPS_PROXY', 'ftp://proxy.test', /must begin with http/],
    ['https_proxy', 'socks5://proxy.test', /must begin with http/],
    ['HTTPS_PROXY', 'http://me:100%x@proxy.test', /a % that encodes nothing/],
    ['HTTPS_PROXY', 'http://me:100%E0x@proxy.test', /a % that encodes nothing/],
    ['HTTPS_PROXY', 'http://me:12/34@proxy.test', /an @ after its host/],
    ['HTTPS_PROXY', 'me:p@ss#word@proxy.test', /an @ after its host/],
    ['HTTPS_PROXY', 'ACME\\me:word@proxy.test', /an @ after its host/],
    ['BATON_LOG_LEVEL', 'loud', /fatal, error/],
    // As `docker --env-file` passes them on
    ['BATON_ADMIN_KEY', '"a-long-enough-admin-key"', /stands in quotes/],
    ['BATON_DATA_DIR', "'/data'", /stands in quotes/],
    ['OPENAI_API_KEY', '"sk-1"', /stands in quotes/],
    ['BATON_ADMIN_KEY', `\${BATON_ADMIN_KEY}`, /holds a placeholder/],
    ['OPENAI_API_KEY', '$OPENAI_API_KEY', /holds a placeholder/],
    ['REDIS_URL', 'redis://:$(PASSWORD)@redis:6379', /holds a placeholder/],
    ['BATON_DATA_DIR', '$HOME/baton', /holds a placeholder/],
    ['BATON_DATA_DIR', '~/baton', /begins with ~/],
  ]
  for (const key of ['host', 'data_dir', 'openai_oauth_client_id']) {
    t.match(problems({}, `${key}: ""`), [{ path: key, problem: 'must not be empty' }])
  }
  for (const [name, value, problem] of cases) {
    t.match(problems({ [name]: value }), [{ path: name, problem }], `${name}=${value}`)
  }
  const url = 'redis://:a$(1)@redis:6379'
  t.match(problems({ REDIS_URL: url }), [{ remedy: /%24/ }], 'whose password only looks like a placeholder')
  t.ok(load({ REDIS_URL: url.replace('$', '%24') }))
})

t.test('the problem of a setting that a path variable set wrong names that variable', async (t) => {
  t.match(problems({ BATON__PORT: 'x' }), [{ path: 'port (BATON__PORT)', problem: /whole number/ }])
  t.match(problems({ BATON__PORT: 'x' }, 'port: 8080'), [{ path: 'port (BATON__PORT)' }])
  t.match(problems({ BATON__PORT: '8080' }, 'port: x\nlease_seconds: x'), [{ path: 'lease_seconds' }])
})

t.test('auth is off by default only on a loopback host; elsewhere BATON_AUTH=off is refused', async (t) => {
  t.equal(load({ BATON_HOST: '[::1]' }).config.host, '::1')
  for (const host of ['127.0.0.1', '127.1.2.3', 'localhost', '::1']) {
    t.equal(load({ BATON_HOST: host }).config.auth, 'off', host)
  }
  const { config, warnings } = load({ BATON_HOST: '0.0.0.0' })
  t.match(config, { auth: 'keys', connectorsAllowPrivate: false })
  t.match(warnings, [/BATON_ADMIN_KEY is not set.* before the gateway starts with: .*keys create --owner/])
  t.match(problems({ BATON_HOST: '0.0.0.0', BATON_AUTH: 'off' }), [
    { path: 'BATON_AUTH', problem: /0\.0\.0\.0/, remedy: /BATON_AUTH=keys/ },
  ])
  t.equal(load({ BATON_AUTH: 'keys', BATON_ADMIN_KEY: 'x'.repeat(16) }).config.auth, 'keys')
  t.match(load({ BATON_AUTH: 'off', BATON_CONNECTORS_ALLOW_PRIVATE: 'false' }).config, {
    connectorsAllowPrivate: false,
  })
})

t.test('a database server needs encryption keys', async (t) => {
  const env = { DATABASE_URL: 'postgresql://db/baton' }
  t.match(problems(env), [{ path: 'BATON_ENCRYPTION_KEYS', problem: 'is required with DATABASE_URL' }])
  const unfit = problems({ DATABASE_URL: 'mysql://db/baton' }).map(({ path }) => path)
  t.same(unfit, ['DATABASE_URL', 'BATON_ENCRYPTION_KEYS'], 'an unfit address needs encryption keys, too')
  const half = problems({ DATABASE_URL: 'postgresql://db/100%25%', BATON_ENCRYPTION_KEYS: `k1:${KEY}` })
  t.match(half, [{ path: 'DATABASE_URL', problem: /a % that encodes nothing/, remedy: /%25/ }])
  const { warnings } = load({ ...env, BATON_ENCRYPTION_KEYS: `k1:${KEY}` })
  t.match(warnings, [/one replica/])
  t.match(load({ BATON_CONNECTORS_PROXY: 'address' }).warnings, [/^BATON_CONNECTORS_PROXY .*HTTPS_PROXY/])
  t.same(load({ BATON_CONNECTORS_PROXY: 'address', https_proxy: 'proxy:3128' }).warnings, [])
  const database = (url: string) => problems({ DATABASE_URL: url, BATON_ENCRYPTION_KEYS: `k1:${KEY}` })
  for (const cut of ['hunter2@/b=', 'a@hunter2?b', 'a@hunter2#b', 'a@hunter2/b']) {
    const found = database(`postgres://me:${cut}@db/baton?sslmode=require`)
    t.match(found, [{ path: 'DATABASE_URL', problem: /holds an @ after its host|absolute/ }], cut)
    t.notMatch(JSON.stringify(found), /hunter2/)
  }
  t.same(database('postgres:///baton?host=/run/postgresql&user=me@db'), [])
  for (const slashes of ['', '/'])
    t.match(database(`postgres:${slashes}hunter2@db/baton`), [{ problem: /^must begin with postgres:\/\// }])
  for (const name of ['schema', 'search_path', 'currentSchema']) {
    t.match(database(`postgres://db/baton?${name}=own`), [
      { problem: `the parameter ${name}`, remedy: /search_path/ },
    ])
  }
  const [socket] = problems({ DATABASE_URL: 'postgres://me@/baton?host=/run/postgresql' })
  t.match(socket, { problem: /absolute URL/, remedy: /for a socket see docs\/operations/ })
})

t.test('keys that nobody can make, or anybody can guess, are a warning', async (t) => {
  const warned = (env: Record<string, string>) => load({ BATON_AUTH: 'keys', ...env }).warnings
  t.match(warned({}), [/ADMIN_KEY is not set.* before the gateway starts with: /])
  t.match(warned({ BATON_ADMIN_KEY: 'x'.repeat(15) }), [/ADMIN_KEY is shorter than 16/])
  t.same(warned({ BATON_ADMIN_KEY: 'x'.repeat(16) }), [])
  const servers = { DATABASE_URL: 'postgres://db/baton', BATON_ENCRYPTION_KEYS: `k1:${KEY}` }
  t.match(warned({ ...servers, REDIS_URL: 'redis://cache' }), [/make a first key with: /])
})

t.test(
  'a variable that can only be meant for Baton and that it does not know is a warning; others are ignored',
  async (t) => {
    const { warnings } = load({ BATON_PROT: '1', BATTERY: '2', BATON_CONFIG: '' })
    t.match(warnings, [/^BATON_PROT is not a setting[^;]*$/])
    t.equal(warnings.length, 1)
    t.match(load({ BATON_TOOLBOX__INSPECT: 'false' }).warnings, [/; .* is written BATON__TOOLBOX__INSPECT$/])
    const prefixed = { BATON_DATABASE_URL: 'postgres://h/d', BATON_OPENAI_API_KEY: 'sk-x' }
    t.match(load(prefixed).warnings, [/the setting is named DATABASE_URL$/, /is named OPENAI_API_KEY$/])
    const inFiles = { DATABASE_URL_FILE: '/run/secrets/url', BATON_ADMIN_KEY_FILE: '/run/secrets/key' }
    t.match(load(inFiles).warnings, [
      /^DATABASE_URL_FILE is not .*; set DATABASE_URL to what the file holds$/,
      /^BATON_ADMIN_KEY_FILE is not .*; set BATON_ADMIN_KEY to what the file holds$/,
    ])
    const read = { ...inFiles, DATABASE_URL: 'postgres://h/d', BATON_ADMIN_KEY: KEY, REDIS_URL: 'redis://h' }
    const told = load({ ...read, BATON_ENCRYPTION_KEYS: `k1:${KEY}`, HOME_FILE: '/x' }).warnings
    t.match(told, [/^BATON_ADMIN_KEY_FILE is not [^;]*$/], 'an entry point may have read the files')
    t.equal(told.length, 1)
    const failing = { BATON_PROT: '1', BATON_PORT: 'x' }
    t.throws(() => load(failing), { message: /^BATON_PORT: [^\n]*\nBATON_PROT is not a setting[^\n]*$/ })
  },
)

t.test('a file is a map of settings; a broken or missing file, or an alias, is a problem', async (t) => {
  const dir = folder('port: 1234')
  t.equal(loadConfig({ BATON_CONFIG: join(dir, 'baton.yaml') }, empty).config.port, 1234)
  t.equal(load({}, '').config.port, 8787, 'an empty file is fine')
  t.equal(
    load({}, 'toolbox:\nport:\n').config.toolbox.maxConcurrent,
    Infinity,
    'a key without a value is absent',
  )
  const nameless =
    'toolbox: {mcps: [{name: a, transport: sse, url: "http://x", mode: strict, pim: }]}\nprot:\n'
  t.match(
    problems({}, nameless)
      .map(({ path }) => path)
      .sort(),
    ['prot', 'toolbox.mcps[0].pim'],
  )
  t.match(problems({ BATON_CONFIG: 'missing.yaml' }), [{ path: 'BATON_CONFIG', problem: /ENOENT/ }])
  for (const [yaml, place] of [
    ['toolbox: {tools: [null]}', 'toolbox.tools[0]'],
    ['toolbox: {mcps: [null]}', 'toolbox.mcps[0]'],
    [
      'toolbox: {mcps: [{name: a, transport: stdio, command: x, mode: strict, env: {a.b.c: [1]}}]}',
      'toolbox.mcps[0].env.a.b.c',
    ],
  ] as const)
    t.same(
      problems({}, yaml).map(({ path }) => path),
      [place],
    )
  t.equal(problems({}, 'port: {a: 1}').length, 1)
  const taken = join(empty, 'taken')
  const path = join(taken, 'baton.yaml')
  mkdirSync(path, { recursive: true })
  t.throws(
    () => loadConfig({}, taken),
    { message: `${path}: the file ${path} cannot be read (EISDIR). It is a folder` },
    'also one that nobody named, if it is there',
  )
  for (const bytes of [Buffer.from('\uFEFFport: 1\n', 'utf16le'), Buffer.from('port: 1 # für\n', 'latin1')])
    t.match(problems({}, bytes), [{ path: /baton\.yaml$/, problem: 'is not UTF-8', remedy: /PowerShell/ }])
  t.equal(
    load({}, '\uFEFFport: 1\r\n').config.port,
    1,
    'with the mark that editors on Windows begin UTF-8 with',
  )
  const misnamed = folder('')
  writeFileSync(join(misnamed, 'baton.yml'), 'port: 1')
  t.same(loadConfig({}, misnamed).warnings, [])
  rmSync(join(misnamed, 'baton.yaml'))
  t.match(loadConfig({}, misnamed).warnings, [/baton\.yml is not read; end its name in \.yaml/])
  t.match(problems({}, '- a\n- b\n'), [{ problem: 'must be a map of settings' }])
  const broken = problems({}, 'admin_key: "hunter2\nport: 1\n')
  t.match(broken, [{ path: /baton\.yaml:\d+:\d+$/, problem: /not valid YAML/ }])
  t.notMatch(JSON.stringify(broken), /hunter2/)
  t.match(problems({}, 'port: 1\nport: 2\n'), [{ problem: /duplicate key/ }])
  for (const yaml of ['port: 1\nadmin_key: !vault hunter2\n', 'port: 1\ntoolbox: !include {a: 1}\n']) {
    t.match(
      problems({}, yaml),
      [{ path: /baton\.yaml:2:\d+$/, problem: /has a tag/, remedy: /in quotes/ }],
      yaml,
    )
  }
  const unspaced = problems({}, '{port: 1, admin_key:hunter2}\n')
  t.match(unspaced, [{ path: /baton\.yaml:1:11$/, problem: /no blank after a colon/ }])
  t.notMatch(JSON.stringify(unspaced), /hunter2/)
  const warned: string[] = []
  const hear = ({ message }: Error) => void warned.push(message)
  process.on('warning', hear)
  t.match(problems({}, 'admin_key: {{hunter2}}\n'), [{ path: 'admin_key', problem: /must be a string/ }])
  await setImmediate()
  process.off('warning', hear)
  t.same(warned, [], 'no warning shows a key, which may hold a secret')
  t.match(problems({}, 'port: {a: 1}\n'), [{ path: 'port', problem: /must be a string/ }])
  for (const yaml of [
    'toolbox: *tools\n',
    'toolbox: &a\n  tools: *a\n',
    `a: &a [${'1,'.repeat(200)}]\nb: [${'*a,'.repeat(200)}]\n`,
  ]) {
    t.match(
      problems({}, yaml),
      [{ path: /baton\.yaml$/, problem: /has an alias/, remedy: /in quotes/ }],
      yaml.slice(0, 30),
    )
  }
})

t.test('a size is a number of bytes, or of K, M or G of them, in any case', async (t) => {
  for (const [text, size] of [
    ['1', 1],
    ['512 B', 512],
    ['64K', 65_536],
    ['64kib', 65_536],
    ['2MB', 2_097_152],
    ['256M', 268_435_456],
  ] as const)
    t.equal(load({ BATON_BODY_LIMIT: text }).config.bodyLimit, size, text)
  t.equal(load({ BATON_LEASE_SECONDS: '600' }).config.leaseSeconds, 600)
})

t.test('the log has six levels', async (t) => {
  for (const level of ['fatal', 'error', 'warn', 'info', 'debug', 'trace'])
    t.equal(load({ BATON_LOG_LEVEL: level }).config.logLevel, level)
})

t.test('a flag is one of the usual words, in any case', async (t) => {
  for (const [words, value] of [
    [['true', '1', 'yes', 'On'], true],
    [['False', '0', 'no', 'off'], false],
  ] as const) {
    for (const word of words)
      t.equal(load({ BATON_ALLOW_STDIO_CONNECTORS: word }).config.allowStdioConnectors, value, word)
  }
})

t.test('durations are ISO 8601 without years and months', async (t) => {
  const good: [string, number][] = [
    ['PT30S', 30_000],
    ['P0DT0H0M30S', 30_000],
    ['PT0.5S', 500],
    ['PT0.001S', 1],
    ['PT1.001S', 1001],
    ['PT90.25M', 5_415_000],
    ['PT24.25H', 87_300_000],
    ['P1.25D', 108_000_000],
    ['PT2147483.647S', 2 ** 31 - 1],
    ['P1DT2H', 93_600_000],
    ['P2W', 1_209_600_000],
    ['PT1H30M', 5_400_000],
  ]
  for (const [text, ms] of good) t.same(parseDuration(text), { ms }, text)
  const bad = ['', 'P', 'PT', 'P1', '30', '30s', 'PT30', 'pt30s', 'P1DT', 'PT-5S', ' PT5S', 'PT1S ', 'PT1e3S']
  for (const text of bad) t.match(parseDuration(text), { problem: /ISO 8601/ }, text)
  for (const text of ['P1Y', 'P1M', 'P1Y2M3DT4H'])
    t.match(parseDuration(text), { problem: /years or months/ })
  t.match(parseDuration('PT0S'), { problem: /longer than zero/ })
  for (const text of ['P30D', 'PT2147483.648S'])
    t.match(parseDuration(text), { problem: 'must be at most 24 days' }, text)
  t.same(parseDuration('P30D', 30 * 86_400_000), { ms: 30 * 86_400_000 })
  t.equal(load({ BATON_LEDGER_RETENTION: 'forever' }).config.ledgerRetentionMs, null)
})

t.test('the data folder is made for its owner alone, or an error says why Baton cannot use it', async (t) => {
  const made = join(empty, 'new', 'data')
  makeDataDir(made)
  makeDataDir(made)
  // When `.` is to be made it is there: as if another process had been faster.
  makeDataDir(`${join(empty, 'meanwhile')}/.`)
  t.equal(statSync(made).mode & 0o777, 0o700)
  t.same(readdirSync(made), [], 'the trial write leaves nothing behind')
  const file = join(empty, 'file')
  writeFileSync(file, '')
  // Below /proc a folder is refused as if its parent were not there.
  for (const [dir, failed] of [
    [file, 'mkdtemp'],
    [join(file, 'data'), 'mkdir'],
    ['/proc/baton', 'mkdir'],
    ['/proc/baton/data', 'mkdir'],
  ] as const) {
    const problem = new RegExp(`^Baton cannot keep its data in ${dir} \\(.*, ${failed} '`)
    t.throws(() => makeDataDir(dir), {
      name: 'ConfigError',
      problems: [{ path: 'BATON_DATA_DIR', problem, remedy: /local disk/ }],
    })
  }
})
