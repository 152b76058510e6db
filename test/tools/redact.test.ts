import t from 'tap'
import { hasSecret, MASK, redactJson, redactText } from '../../src/tools/redact.ts'

/** Milliseconds of processor time, since other processes may slow the machine down. */
const worked = (): number => process.cpuUsage().user / 1000

/** Built from pieces, so that no scanner takes this file for a leak. */
const PLANTED: Record<string, string> = {
  'an AWS key id': `AKIA${'IOSFODNN7EXAMPLE'}`,
  'a GitHub token': `ghp_${'a1B2'.repeat(9)}`,
  'a Slack token': `xoxb-${'123456789012-123456789012-'}${'abcDEF123456'.repeat(2)}`,
  'an OpenAI key': `sk-proj-${'Ab3_'.repeat(12)}`,
  'an Anthropic key': `sk-ant-api03-${'x'.repeat(93)}AA`,
  'a Google key': `AIza${'B4c_'.repeat(9)}`,
  'a GitLab token': `glpat-${'Zx9-'.repeat(6)}`,
  'a JWT': `eyJ${'hbGciOiJIUzI1NiJ9'}.eyJ${'zdWIiOiIxMjM0NTY3ODkwIn0'}.${'dozjgNryP4J3jVmNHl0w5N'}`,
  'a PEM key': `-----BEGIN RSA ${'PRIVATE KEY'}-----\nMIIEow${'A'.repeat(120)}\n-----END RSA ${'PRIVATE KEY'}-----`,
  'a password in a URL': `postgres://app:${'hunter2hunter2'}@db.example/app`,
  'a fine-grained GitHub token': `github_pat_${'a1B2'.repeat(12)}`,
  'a Slack app token': `xapp-${'1-A1b2-'.repeat(4)}`,
  'a Google access token': `ya29.${'a0Ab_'.repeat(6)}`,
  'an npm token': `npm_${'a1B2c3'.repeat(6)}`,
  'a Stripe key': `sk_live_${'a1B2'.repeat(6)}`,
  'a key of our own': `bk_${'a1B2_'.repeat(9)}`,
  'a bearer token': `Authorization: Bearer ${'a1B2.'.repeat(6)}`,
  'an AWS secret': `aws_secret_access_key = ${'a1B2/'.repeat(8)}`,
  'an AWS secret in JavaScript': `{ secretAccessKey: '${'a1B2/'.repeat(8)}' }`,
  'an AWS secret in XML': `<SecretAccessKey>${'a1B2/'.repeat(8)}</SecretAccessKey>`,
  'a session token of AWS': `AWS_SESSION_TOKEN=${'FwoGZ/+1'.repeat(30)}==`,
  'an installation token of GitHub': `ghs_${'123456_'}eyJ${'hbGciOiJSUzI1NiJ9'}.eyJ${'pc3MiOiIxMjM0NTYifQ'}.${'s1-G_'.repeat(60)}`,
  "a Slack browser's token": `xoxd-${'a1B2%2F'.repeat(9)}`,
  'a Slack webhook': `https://hooks.slack.com/${'services'}/T0A1B2C3D/B0A1B2C3D/${'a1B2'.repeat(6)}`,
  'a PGP key': `-----BEGIN PGP ${'PRIVATE KEY'} BLOCK-----\n\nlQOYBF${'A'.repeat(120)}\n=aBcD\n-----END PGP ${'PRIVATE KEY'} BLOCK-----`,
  'a SendGrid key': `SG.${'a1B2-'.repeat(4)}ab.${'c3D4_'.repeat(8)}efg`,
  'a Shopify token': `shpat_${'a1b2c3d4'.repeat(4)}`,
  'a Linear key': `lin_api_${'a1B2'.repeat(10)}`,
  'a 1Password token': `ops_ey${'JlbWFp'.repeat(40)}fQ==`,
  'a root token of Vault': `hvs.${'a1B2'.repeat(6)}`,
  "a Docker organization's token": `dckr_oat_${'a1B2_c3D'.repeat(4)}`,
  "an npm registry's token": `//registry.example/:_authToken=${'0a1b2c3d-'.repeat(3)}0a1b2c3d`,
  'a quoted token of one': `//registry.example/:_authToken="${'0a1b2c3d-'.repeat(3)}0a1b2c3d`,
  'a password in an environment': `DB_PASSWORD=${'hunter2-Xy9'}`,
  'a quoted key in an environment': `OPENAI_API_KEY="${'hunter2-Xy9'}`,
  'a password of a database client': `MYSQL_PWD=${'hunter2-Xy9'}`,
  'a key in the query of a URL': `https://api.example.com/v1?page=2&api_key=${'hunter2-Xy9'}`,
  'a bootstrap key of our own': `BATON_ADMIN_KEY=${'hunter2-Xy9'}`,
  'an encryption key of our own': `BATON_ENCRYPTION_KEYS=k1:${'a1B2'.repeat(10)}abc=`,
  'a token of an API': `CLOUDFLARE_API_TOKEN=${'hunter2-Xy9'}`,
  'a header with a name and a password': `Authorization: Basic ${'YW5uOmh1bnRlcjI='}`,
  'a password without a user in a URL': `redis://:${'hunter2hunter2'}@cache.example:6379`,
}

for (const [what, secret] of Object.entries(PLANTED)) {
  t.test(`${what} is replaced in text, and the words around it stay`, async (t) => {
    const value = await redactText(`before ${secret} after`)
    t.notOk(value.includes(secret))
    t.match(value, /^before .*after$/s)
    t.ok(value.includes(MASK))
  })
}

t.test('a secret is replaced to its end, whichever name stands before it', async (t) => {
  const secret = 'a1B2/'.repeat(8)
  const names = [
    ...['secret_access_key: "', "secretAccessKey: '", 'AWS_SECRET_KEY=', 'aws_secret_key => '],
    ...['"SecretAccessKey": "', '<SecretAccessKey>', 'SECRET_ACCESS_KEY=', '//r.example/:_authToken='],
    ...['//r.example/:_authToken="', "_authToken='", '_authToken=\\"'],
  ]
  for (const name of names) t.equal(await redactText(`${name}${secret}`), `${name}${MASK}`)
  const nested = JSON.stringify({ text: JSON.stringify({ SecretAccessKey: secret }) })
  t.equal(await redactText(nested), nested.replace(secret, MASK), 'in JSON in JSON')
})

t.test('a passphrase in an environment is replaced to the quote that closes it', async (t) => {
  for (const quote of ['"', "'", '\\"'])
    for (const phrase of ['my horse battery staple', 'ключ от моей двери']) {
      const text = `SSH_PASSPHRASE=${quote}${phrase}${quote} is set\nHOME="/a b"`
      t.equal(await redactText(text), text.replace(phrase, MASK))
      t.ok(hasSecret(JSON.stringify({ text })), quote)
    }
  const tabbed = 'SSH_PASSPHRASE="my\thorse"'
  t.equal(
    hasSecret(JSON.stringify({ text: tabbed })),
    (await redactText(tabbed)) !== tabbed,
    'sealed if replaced',
  )
  for (const open of ['SSH_PASSPHRASE="horse battery\nHOME="/a b"', 'SSH_PASSPHRASE=horse HOME="/a b"'])
    t.equal(
      await redactText(open),
      open.replace('horse', MASK),
      'with no quote to close it, to the first blank',
    )
})

t.test('a secret field of JSON within JSON is masked to its end, and no further', async (t) => {
  const inner = JSON.stringify({ user: 'ann', password: 'hun"ter\\2\n', after: 1 })
  const text = JSON.stringify({ body: inner })
  const masked = JSON.stringify({ body: JSON.stringify({ user: 'ann', password: MASK, after: 1 }) })
  t.equal(await redactText(text), masked)
  // .NET writes quotes in this way.
  t.ok(hasSecret(JSON.stringify({ text: text.replaceAll('\\"', '\\u0022') })))
})

t.test('JSON text is searched by its field names, as an object is', async (t) => {
  const text = '{"user": "ann", "dbPassword" : "hunter2 \\" and more", "tokens": 3, "password": ""}'
  t.equal(await redactText(text), text.replace('hunter2 \\" and more', MASK))
  t.same(await redactJson({ text }), { text: await redactText(text) })
})

t.test('a list under a secret’s name is replaced, in JSON text too, and sealed', async (t) => {
  const headers = (cookies: string[]) => ({ 'Set-Cookie': cookies, Vary: ['Origin', 'Accept'] })
  const value = headers(['sid="abc"; Path=/', 'b=c'])
  t.strictSame(await redactJson(value), headers([MASK, MASK]))
  t.equal(await redactText(JSON.stringify(value, null, 8)), JSON.stringify(headers([MASK]), null, 8))
  for (const list of [['a'], ['', 'a'], [null, 'a'], [['a']], [{ x: 1 }, 'a']]) {
    const json = JSON.stringify({ arguments: { api_key: list } })
    t.not(JSON.stringify(await redactJson(JSON.parse(json))), json)
    t.ok(hasSecret(json), json)
  }
  t.notOk(hasSecret(JSON.stringify({ api_key: [], tokens: ['a'] })))
})

t.test('a short secret is replaced in a short text', async (t) => {
  t.equal(await redactText('SECRET=abcd'), `SECRET=${MASK}`)
  t.equal(await redactText('{"pwd":"x"}'), `{"pwd":"${MASK}"}`)
})

t.test('a secret behind an escape is found, whichever letter the escape ends with', async (t) => {
  const escapes = [
    '\\n',
    '\x1b[31m',
    '\x1b[m',
    '[0;1m',
    '\\u001b[0m',
    '\\x1b[m',
    '\\u003e',
    '\\u0026',
    '%3D',
    '%26',
  ]
  for (const what of ['an Anthropic key', 'a JWT', 'a Slack token', 'a bearer token']) {
    const secret = PLANTED[what]?.replace('Authorization: ', '') ?? ''
    const masked = what === 'a bearer token' ? `Bearer ${MASK}` : MASK
    for (const before of escapes) {
      const text = `key${before}${secret}`
      t.equal(await redactText(text), `key${before}${masked}`, `${what} behind ${JSON.stringify(before)}`)
      t.ok(hasSecret(JSON.stringify({ text })), `${what} behind ${JSON.stringify(before)}`)
    }
  }
})

t.test('a secret behind an escaped line break is found', async (t) => {
  const begins = [
    'a GitHub token',
    'an AWS key id',
    'a JWT',
    'an OpenAI key',
    'an npm token',
    'a Slack token',
  ]
  for (const what of begins) {
    const text = JSON.stringify({ log: `first\n${PLANTED[what]}\nlast` })
    t.equal(await redactText(text), JSON.stringify({ log: `first\n${MASK}\nlast` }), what)
    t.ok(hasSecret(JSON.stringify({ text })), what)
    t.ok(hasSecret(text), what)
  }
})

t.test('the quick look at JSON text finds every planted secret and every secret field name', async (t) => {
  for (const [what, secret] of Object.entries(PLANTED)) {
    t.ok(hasSecret(JSON.stringify({ type: 'text', text: `before ${secret} after` })), what)
  }
  const names = [
    'password',
    'client_secret',
    'clientSecret',
    'secretKey',
    'refresh_token',
    'apiKey',
    'dbPassword',
    'DB_PASSWORD',
    'authToken',
    'Authorization',
    'pwd',
    'dbPwd',
    'DB_PWD',
    'id_token',
    'apiToken',
    'encryptionKey',
    'cookie',
    'Set-Cookie',
  ]
  for (const name of names) {
    const value = { [name]: 'x=' }
    t.ok(hasSecret(JSON.stringify(value)), name)
    t.strictSame(await redactJson(value), { [name]: MASK }, name)
  }
  t.notOk(hasSecret(JSON.stringify({ text: 'see https://example.com/a?b=c@d for tokens', password: '' })))
})

t.test('the quick look finds a secret exactly where the replacing rules do', async (t) => {
  const more = {
    'a GitHub token with a dash below': `ghp_${'a1B2_'.repeat(7)}c`,
    'an npm token with one': `npm_${'a1B2_'.repeat(7)}c`,
    'a short SendGrid key': `SG.${'a1B2'}.${'c3D4'}`,
    'an id of an AWS role': `AROA${'IOSFODNN7EXAMPLE'}`,
  }
  for (const [what, secret] of Object.entries({ ...PLANTED, ...more })) {
    for (const before of ['', '_', '1', '-', '=', 'é']) {
      const text = `before ${before}${secret} after`
      const isReplaced = (await redactText(text)) !== text
      t.equal(hasSecret(JSON.stringify({ text })), isReplaced, `${what} behind '${before}'`)
    }
  }
})

t.test('the quick look finds a secret among control characters, which JSON escapes', async (t) => {
  const text = 'DB_PASSWORD=\x1b[1mab\x1b[0m'
  t.not(await redactText(text), text)
  t.ok(hasSecret(JSON.stringify({ text })))
})

t.test('a secret at any depth of a JSON value, or in a name, is replaced, and the shape stays', async (t) => {
  const secret = PLANTED['a GitHub token'] ?? ''
  const value = await redactJson({
    list: [1, { deep: `x ${secret}` }],
    [secret]: true,
    none: null,
  })
  t.same(value, { list: [1, { deep: `x ${MASK}` }], [MASK]: true, none: null })
})

t.test('a field with a secret’s name is replaced whatever it holds', async (t) => {
  const value = await redactJson({ password: 'abc', client_secret: 'd', apiKey: 'e', author: 'someone' })
  t.same(value, { password: MASK, client_secret: MASK, apiKey: MASK, author: 'someone' })
})

t.test('plain prose and ids are left alone', async (t) => {
  const values = { nextPageToken: 'abc', passwords: 'def', cookie: '^2.0.1', pwd: '/home/ann', secret: '' }
  t.same(await redactJson(values), values)
  for (const text of [
    'API_KEY=$KEY, DB_PASSWORD= ',
    '_authToken="$NPM_TOKEN" _authToken=$NPM_TOKEN',
    'print("PASSWORD=" + words + "; SECRET=", other, "!")',
    JSON.stringify({ text: 'DB_PASSWORD=\nDB_HOST=db.example\n' }),
    'PWD=/home/ann OLDPWD=/work',
    JSON.stringify(values),
    JSON.stringify({ text: JSON.stringify(values) }),
    'hugs, xoxo-abc',
    'a && password=x, ?password=$SECRET&api_key=<yours>',
    '[msk-clusters-and-their-brokers](https://example.com/)',
  ])
    t.equal(await redactText(text), text)
  const text = 'turn_01 called everything.echo with a message of 36 characters; see https://example.com/a?b=c'
  t.equal(await redactText(text), text)
})

t.test('a secret across a slice boundary of a long text is found', async (t) => {
  const secret = PLANTED['a PEM key'] ?? ''
  for (const before of [174_950, 199_990, 200_010]) {
    const value = await redactText(
      `${'lorem ipsum '.repeat(Math.ceil(before / 12)).slice(0, before)}${secret} end`,
    )
    t.notOk(value.includes('MIIEow'), `at ${before}`)
  }
})

t.test('the longest token that a rule knows is found whole across a slice boundary', async (t) => {
  const token = `eyJ${'h'.repeat(8_192)}.eyJ${'p'.repeat(16_384)}.${'s'.repeat(2_048)}`
  for (const before of [170_001, 173_400, 174_999]) {
    const value = await redactText(`${' '.repeat(before)}${token} end`)
    t.equal(value.trim(), `${MASK} end`, `at ${before}`)
  }
})

t.test('texts that are made to slow the rules down do not', async (t) => {
  const tokens = [
    '-----BEGIN PRIVATE KEY-----',
    'a://b:',
    'eyJ',
    'eyJ-',
    'eyJ.',
    'sk-',
    '://',
    'Bearer ',
    'AKIA',
    'xoxb-',
    'xoxo-a',
    '[1;',
    '\\u003',
    '%3Dsk-',
    '?password=',
    '?a.',
    'authorization\\\\',
    'password\\":\\"',
    '-',
    '_',
    '\n',
    // Each repetition is a secret
    `xoxp-${'1-1-x '}`,
  ]
  const hostile = tokens.map((token) => token.repeat(Math.ceil(100_000 / token.length)))
  for (const text of hostile) {
    const started = worked()
    await redactText(text)
    t.ok(worked() - started < 5_000)
  }
})

t.test('many short texts at once leave the event loop its turns', async (t) => {
  let turns = 0
  let isOver = false
  const count = () => {
    turns++
    if (!isOver) setImmediate(count)
  }
  setImmediate(count)
  const texts = Array.from({ length: 2_000 }, (_, i) => `There is no tool ${i}; it was not called.`)
  t.strictSame(await Promise.all(texts.map(redactText)), texts)
  isOver = true
  t.ok(turns > 5, `${turns} turns`)
})

t.test('a comment in a text cannot keep a secret from being replaced', async (t) => {
  const text = `# secretlint-disable\nxoxp-${'1-1-x'}\n`
  t.equal(await redactText(text), `# secretlint-disable\n${MASK}\n`)
})

t.test('a text of millions of escapes is searched quickly', (t) => {
  for (const escaped of ['\n', '"', '\\']) {
    const json = JSON.stringify({ text: `${escaped.repeat(12_000_000)}${PLANTED['a GitLab token']}` })
    const started = worked()
    t.ok(hasSecret(json))
    t.ok(worked() - started < 2_000, JSON.stringify(escaped))
  }
  t.end()
})

t.test('a long text behind the name of a secret is searched quickly', (t) => {
  for (const piece of [' '.repeat(99), `${'"'.repeat(50)}=${'"'.repeat(99)}`, 'abcdEFGH0123+/']) {
    const json = JSON.stringify({ text: `secretKey sessionToken ${piece.repeat(2_000_000 / piece.length)}` })
    const started = worked()
    t.notOk(hasSecret(json))
    t.ok(worked() - started < 1_500, piece)
  }
  t.end()
})

t.test('a secret of megabytes is found', (t) => {
  const begins = ['sk-', 'glpat-', 'xapp-', 'bk_', 'ghs_', '_authToken=', 'Bearer ', 'secretKey: ', 'ops_ey']
  for (const begin of begins) t.ok(hasSecret(JSON.stringify({ text: begin + 'a1'.repeat(4_000_000) })), begin)
  t.end()
})

t.test('ten thousand strings of a value cost little more than one text of their length', async (t) => {
  const secret = PLANTED['a GitLab token'] ?? ''
  const items = Array.from({ length: 5_000 }, (_, i) => ({ id: `item number ${i}`, note: `some words ${i}` }))
  const started = worked()
  const value = await redactJson({ items, last: `a ${secret} b` })
  t.ok(worked() - started < 5_000)
  t.same(value, { items, last: `a ${MASK} b` })
})

t.test('a key that was split over the strings of a list is found, and no string moves', async (t) => {
  const [begin = '', middle = '', end = ''] = (PLANTED['a PEM key'] ?? '').split('\n')
  const value = await redactJson({ lines: ['first', begin, middle, end, 'last'], more: ['x', 'y'] })
  t.same(value, { lines: ['first', MASK, MASK, MASK, 'last'], more: ['x', 'y'] })
})

t.test(
  'a secret that the ledger replaces is sealed in the conversation, whichever is asked first',
  async (t) => {
    for (const [what, secret] of Object.entries(PLANTED)) {
      const part = { type: 'text', text: `before ${secret} after` }
      t.ok(hasSecret(JSON.stringify(part)), what)
      t.notOk((await redactText(part.text)).includes(secret), `${what}, replaced after it was found`)
    }
    const named = JSON.stringify({ aws_secret_access_key: `${'wJalrXUtn'.repeat(4)}FEMI` })
    t.match(await redactText(named), MASK)
    const isSealed = (text: string) => hasSecret(JSON.stringify({ type: 'text', text }))
    const short = JSON.stringify({ password: 'hunter2' })
    for (const json of [named, short]) {
      t.ok(isSealed(json), 'in JSON that stands in a text')
      t.ok(isSealed(JSON.stringify({ text: json })), 'in JSON in JSON')
    }
    t.ok(isSealed(`Bearer\n${'a1'.repeat(15)}`), 'on a line of its own')
    t.ok(isSealed(`Bearer\t${'a1'.repeat(15)}`), 'behind a tab')
    t.notOk(isSealed('sk-short'), 'the beginning of a secret alone is no secret')
    t.notOk(hasSecret(JSON.stringify({ type: 'text', text: 'a "quoted" word\nand a \\ backslash' })))
  },
)

t.test('redacting a text leaves no performance marks', async (t) => {
  await redactText('the quick brown fox jumps over the lazy dog')
  t.same(performance.getEntriesByType('mark'), [])
})
