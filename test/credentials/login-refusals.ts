/** Logins that vendors refuse, and the words in which callers hear of it. */
import t from 'tap'
import { LOGINS } from '../../providers/index.ts'
import { world } from './shared-world.ts'
import { begun, loggedIn, ME, noSecretIn, refusal } from './world.ts'

const { openai, anthropic, google, logged } = world
const one = world.replica()

t.test('a login that the vendor refuses ends with a reason, on the page too', async (t) => {
  openai.decline('access_denied', 'missing_codex_entitlement <b>')
  const { state, at } = await begun(one, 'openai')
  const answer = Object.fromEntries(at.searchParams)
  const page = await one.logins.callback('openai', answer)
  t.match(page, {
    status: 400,
    html: /The login was declined \(access_denied: missing_codex_entitlement &lt;b&gt;\)/,
  })
  t.match(await one.logins.status(ME, 'openai', state), { state: 'failed', error: /declined/ })

  openai.decline('server_error', 'Try\nlater\u200b')
  const refused = await refusal(loggedIn(one, 'openai'))
  t.match(refused, { code: 'invalid_request', message: /refused the login \(server_error: Try later\)/ })

  openai.decline(null)

  anthropic.answer({ status: 503, body: 'upstream connect error' })
  t.match(await refusal(loggedIn(one, 'anthropic')), { code: 'upstream_overloaded' })
  anthropic.answer({ status: 429, body: { error: { type: 'rate\nlimit_error' } } })
  const limited = { code: 'upstream_rate_limited', retryAfter: 30, message: /\(rate limit_error\)\.$/ }
  t.match(await refusal(loggedIn(one, 'anthropic')), limited)
  anthropic.answer({ status: 200, body: { token_type: 'Bearer' } })
  t.match(await refusal(loggedIn(one, 'anthropic')), { code: 'upstream_rejected' })
})

t.test('only the beginning of what a vendor says about a failed login is kept', async (t) => {
  const much = 'x'.repeat(100_000)
  const bodies = {
    openai: { error: { code: much, message: much } },
    anthropic: { error: much, error_description: much },
    gemini: { error: much, error_description: much },
  }
  for (const { vendor } of LOGINS) {
    const body = JSON.stringify(bodies[vendor.provider as keyof typeof bodies])
    const { code, message } = vendor.readFailure({ status: 400, headers: {}, body })
    t.match({ code, message }, { code: /^x{100}$/, message: /^x{1000}$/ }, vendor.provider)
  }
  anthropic.answer({ status: 400, body: bodies.anthropic })
  const refused = await refusal(loggedIn(one, 'anthropic'))
  t.ok(JSON.stringify(refused.toBody()).length < 2000)
})

t.test('the emulated vendors refuse what the real ones refuse', async (t) => {
  const page = async (provider: string, change: (query: URLSearchParams) => void) => {
    const { authorization_url } = await one.logins.authorize(ME, provider, 'paste')
    const url = new URL(authorization_url)
    const query = new URLSearchParams(url.search)
    change(query)
    // A blank as %20, as the client sends it.
    return fetch(`${url.origin}${url.pathname}?${query.toString().replaceAll('+', '%20')}`, {
      redirect: 'manual',
    })
  }
  const changes: [string, (query: URLSearchParams) => void][] = [
    ['another client', (query) => query.set('client_id', 'x')],
    ['another address', (query) => query.set('redirect_uri', 'https://evil.example/cb')],
    ['no challenge', (query) => query.delete('code_challenge')],
    ['a plain challenge', (query) => query.set('code_challenge_method', 'plain')],
    ['no state', (query) => query.delete('state')],
    ['no scope', (query) => query.delete('scope')],
  ]
  for (const provider of ['openai', 'anthropic', 'gemini']) {
    t.equal((await page(provider, () => {})).status, 302, provider)
    for (const [name, change] of changes)
      t.equal((await page(provider, change)).status, 400, `${provider}: ${name}`)
  }
  const plus = await one.logins.authorize(ME, 'openai', 'paste')
  t.equal((await fetch(plus.authorization_url.replaceAll('%20', '+'), { redirect: 'manual' })).status, 400)

  const token = async (fields: Record<string, string>) => {
    const { at } = await begun(one, 'gemini')
    const exact = {
      grant_type: 'authorization_code',
      client_id: 'emulated.apps.example.com',
      client_secret: 'emulated-client-secret',
      redirect_uri: at.origin + at.pathname,
      code: at.searchParams.get('code') ?? '',
      code_verifier: 'v'.repeat(43),
      ...fields,
    }
    const answer = await fetch(google.tokenUrl, { method: 'POST', body: new URLSearchParams(exact) })
    const { error } = (await answer.json()) as { error: string }
    return [answer.status, error]
  }
  t.same(await token({}), [400, 'invalid_grant'], 'a verifier that does not fit the challenge')
  t.same(await token({ client_secret: 'x' }), [401, 'invalid_client'])
  t.same(await token({ redirect_uri: 'http://127.0.0.1:1/' }), [400, 'redirect_uri_mismatch'])
  const form = new URLSearchParams({ grant_type: 'refresh_token', refresh_token: 'x', client_id: 'y' })
  t.equal(
    (await fetch(anthropic.tokenUrl, { method: 'POST', body: form })).status,
    400,
    'a form in place of JSON',
  )
})

t.test('no secret is in any log line or error', async (t) => {
  t.match(logged.join('\n'), /login failed/)
  noSecretIn(t, logged)
  const told: [status: number, words: RegExp][] = [
    [400, /Malformed auth code \*\*\*/],
    [200, /no_tokens/],
  ]
  for (const [status, words] of told) {
    const { state, at } = await begun(one, 'gemini')
    const code = at.searchParams.get('code') ?? ''
    google.answer({
      status,
      body: { error: 'invalid_grant', error_description: `Malformed auth code ${code}` },
    })
    const refused = await refusal(one.logins.exchange(ME, 'gemini', { state, code }))
    t.match(refused.message, words)
    t.notMatch([refused.message, JSON.stringify(refused.details), ...logged].join('\n'), code, `${status}`)
  }
})
