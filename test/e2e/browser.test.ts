/** What only a real browser can show: logins that end in its window, pages that attack, our own pages under their policies. */
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import t, { type Test } from 'tap'
import { CLIENT as ANTHROPIC, createAnthropicLogins } from '../emulators/oauth-anthropic.ts'
import { createGoogleLogins, CLIENT as GOOGLE, SECRET } from '../emulators/oauth-google.ts'
import { createMcpLogins } from '../emulators/oauth-mcp.ts'
import { listening } from '../listening.ts'
import { eventually } from '../waiting.ts'
import { CHROMIUM, openBrowser, type Page } from './chromium.ts'
import { PLAIN_TURN } from './client.ts'
import { openWorld, type World } from './harness.ts'

const skip = CHROMIUM === null && process.env.CI !== 'true' ? 'there is no Chromium here' : false

t.test('in a real browser', { skip }, async (t) => {
  const [anthropic, google] = await Promise.all([createAnthropicLogins(), createGoogleLogins()])
  t.teardown(() => Promise.all([anthropic.close(), google.close()]))
  // No secure context, as a frontend on a local network without https: its pages lack some of a browser's functions.
  const allowed = (await serve(t, '<title>a frontend</title>')).replace('localhost', 'frontend.test')
  const env = {
    BATON_CORS_ORIGINS: allowed,
    BATON_ANTHROPIC_OAUTH_AUTHORIZE_URL: anthropic.authorizeUrl,
    BATON_ANTHROPIC_OAUTH_TOKEN_URL: anthropic.tokenUrl,
    BATON_ANTHROPIC_OAUTH_CLIENT_ID: ANTHROPIC,
    BATON_GOOGLE_OAUTH_AUTHORIZE_URL: google.authorizeUrl,
    BATON_GOOGLE_OAUTH_TOKEN_URL: google.tokenUrl,
    BATON_CODE_ASSIST_BASE_URL: google.codeAssistUrl,
    BATON_GOOGLE_OAUTH_CLIENT_ID: GOOGLE,
    BATON_GOOGLE_OAUTH_CLIENT_SECRET: SECRET,
  }
  const world = await openWorld(t, 'embedded', { env })
  const page = await openBrowser(t, ['rebound.test', 'frontend.test'])
  await logins(t, world, page, () => anthropic.decline('access_denied'))
  await connectorLogin(t, world, page)
  await attacks(t, world, page)
  await frontend(t, world, page, allowed)
  await t.test('the page of the API’s description works under its policy', async (t) => {
    page.complaints.length = 0
    await page.open(`${world.api.url}/docs`)
    const count = `document.querySelectorAll('.opblock-tag').length || null`
    const groups = await eventually<number>(() => page.evaluate(count))
    t.ok(groups >= 5, `${groups} groups of operations`)
    t.equal(
      await page.evaluate(`fetch('/v1/sessions').then(({ status }) => status)`),
      200,
      'the page can try out an operation',
    )
    // The policy keeps out Swagger UI's inline style, which changes nothing visible. The page before may complain late.
    t.same(
      page.complaints.filter((text) => !/inline style|rebound\.test/.test(text)),
      [],
    )
  })
})

/** The heading of the page, and whether its style was let in. */
const heading = (page: Page) =>
  page.evaluate(
    `[document.querySelector('h1').textContent, getComputedStyle(document.body).maxWidth !== 'none']`,
  )

async function logins(t: Test, { api }: World, page: Page, decline: () => void) {
  for (const [provider, redirect] of [
    // The first login listens for the browser itself, the second sends the browser back to the gateway.
    ['anthropic', /^http:\/\/localhost:\d+\/callback$/],
    ['gemini', new RegExp(`^${api.url}/v1/oauth/callback/gemini$`)],
  ] as const) {
    await t.test(`a login at ${provider} ends in the browser’s window`, async (t) => {
      page.complaints.length = 0
      const login = await api.post(`/v1/oauth/${provider}/authorize`, { mode: 'loopback' })
      t.match(new URL(login.authorization_url).searchParams.get('redirect_uri'), redirect)
      await page.open(login.authorization_url)
      t.same(await heading(page), ['You are logged in', true])
      t.same(page.complaints, [])
      const { state, credential_id } = await api.get(`/v1/oauth/${provider}/status?state=${login.state}`)
      t.equal(state, 'done')
      t.match(await api.get(`/v1/credentials/${credential_id}`), { provider, kind: 'oauth', state: 'active' })
    })
  }

  await t.test('the browser’s window says that a login was declined', async (t) => {
    decline()
    const login = await api.post('/v1/oauth/anthropic/authorize', { mode: 'loopback' })
    await page.open(login.authorization_url)
    t.same(await heading(page), ['The login did not succeed', true])
    t.match(await page.evaluate('document.body.textContent'), /The login was declined/)
    t.match(await api.get(`/v1/oauth/anthropic/status?state=${login.state}`), { state: 'failed' })
  })
}

async function connectorLogin(t: Test, world: World, page: Page) {
  await t.test('a login at an MCP server ends in the browser’s window, too', async (t) => {
    const { api } = world
    const tools = await world.tools('plain', { look: {} })
    const guarded = await createMcpLogins({ upstream: tools.url })
    t.teardown(() => guarded.close())
    const made = { name: 'guarded', transport: 'streamable_http', url: guarded.url, auth: { type: 'oauth' } }
    const { id, status } = await api.post('/v1/connectors', made)
    t.equal(status.state, 'auth_required')
    await page.open((await api.post(status.login_url)).authorization_url)
    t.same(await heading(page), ['You are logged in', true])
    t.match(await api.post(`/v1/connectors/${id}/test`), { ok: true, tools: [{ name: 'look' }] })
  })
}

/** What a page that a person happens to open may try on the gateway on their machine, which wants no key. */
const DRIVE_BY = (api: string) => `Promise.all([
  fetch('${api}/v1/sessions').then(() => 'read', () => 'refused'),
  fetch('${api}/v1/sessions', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{"provider":"openai","model":"driven-by"}',
  }).then(() => 'sent', () => 'refused'),
  fetch('${api}/v1/sessions', {
    method: 'POST',
    mode: 'no-cors',
    body: '{"provider":"openai","model":"driven-by"}',
  }).then(({ type }) => type, () => 'refused'),
])`

/** A page at an origin of its own. */
async function serve(t: Test, html: string): Promise<string> {
  const server = createServer((_, response) => {
    response.setHeader('content-type', 'text/html')
    response.end(html)
  })
  return `http://localhost:${await listening(t, server)}`
}

async function attacks(t: Test, { api }: World, page: Page) {
  const evil = await serve(
    t,
    `<form method="post" enctype="text/plain" action="${api.url}/v1/sessions">
      <input name='{"provider":"openai","model":"driven-by","title":"' value='"}'></form>`,
  )
  const body = () => page.evaluate('document.body.textContent')

  await t.test('a page of another origin changes and learns nothing', async (t) => {
    await page.open(evil)
    t.same(await page.evaluate(DRIVE_BY(api.url)), ['refused', 'refused', 'opaque'])
    await page.submit('form')
    t.match(JSON.parse(await body()), { error: { code: 'forbidden', message: /origin/ } })
    t.same((await api.get('/v1/sessions')).data, [], 'no session was made')
  })

  await t.test('a page under a foreign name that leads to this machine is refused', async (t) => {
    await page.open(`${api.url.replace('127.0.0.1', 'rebound.test')}/v1/credentials`)
    t.match(JSON.parse(await body()), { error: { code: 'forbidden', message: /rebound\.test/ } })
    const own = `fetch('/v1/credentials').then(({ status }) => status)`
    t.equal(await page.evaluate(own), 403, 'what the page asks of its own origin is refused')
  })
}

const README = readFileSync(new URL('../../../README.md', import.meta.url), 'utf8')

/** Asks as the README's client does, then follows the turn once more: from its start, and from its first event. */
const READER = `(async () => {
  ${/```js\n([\s\S]*?)```/.exec(README)?.[1]}
  const events = []
  await ask(session, text, (event) => events.push(event))
  const turn = events[0].turn_id
  const idsFrom = (query) => new Promise((resolve) => {
    const ids = []
    const source = new EventSource(baton + '/v1/turns/' + turn + '/events' + query)
    for (const type of types) source.addEventListener(type, (event) => ids.push(event.lastEventId))
    source.onerror = () => source.readyState === EventSource.CLOSED && resolve(ids)
  })
  const ids = await idsFrom('')
  return { turn, told: events.map(({ type }) => type), ids, rest: await idsFrom('?after=' + encodeURIComponent(ids[0])) }
})()`

async function frontend(t: Test, { api, session }: World, page: Page, origin: string) {
  await t.test(
    'a page of an allowed origin reads a turn as the README says, to its end and no further',
    async (t) => {
      await page.open(origin)
      const id = await session('openai key')
      const given = { baton: api.url, session: id, key: 'none', text: 'slow 5 50', types: PLAIN_TURN }
      for (const [name, value] of Object.entries(given))
        await page.evaluate(`${name} = ${JSON.stringify(value)}`)
      const { turn, told, ids, rest } = await page.evaluate(READER)
      const frames = await (await api.follow(`/v1/turns/${turn}/events`)).done
      const all = frames.map((frame) => frame.id)
      t.same(
        told,
        frames.map(({ type }) => type),
      )
      t.same(ids, all)
      t.same(rest, all.slice(1))
      const refused = `fetch(baton + '/v1/sessions/' + 'x'.repeat(513)).then(({ status, headers }) => [status, headers.has('x-request-id')])`
      t.same(await page.evaluate(refused), [400, true], 'the page can read why a call is refused')
    },
  )
}
