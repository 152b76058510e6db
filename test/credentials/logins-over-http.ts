/** Logins through the API of a whole gateway: they serve turns, and are renewed in the middle of a turn. */
import { createServer, request } from 'node:http'
import t, { type Test } from 'tap'
import { anyStore } from '../any-store.ts'
import { createAnthropicEmulator } from '../emulators/anthropic.ts'
import { createGeminiEmulator } from '../emulators/gemini.ts'
import { CLIENT, FEDERATION } from '../emulators/oauth-anthropic.ts'
import { ACCOUNT } from '../emulators/oauth-openai.ts'
import { createOpenAiEmulator } from '../emulators/openai.ts'
import { listening } from '../listening.ts'
import { wholeGateway } from '../whole-gateway.ts'
import { world } from './shared-world.ts'
import { loggedIn, sealedOf, visit } from './world.ts'

const { openai, anthropic } = world
const one = world.replica()

/** Anthropic's API as one address: its token endpoint, and its models. */
async function anthropicApi(t: Test, models: string): Promise<string> {
  const server = createServer((incoming, response) => {
    const { url = '', method, headers } = incoming
    const to = url === '/v1/oauth/token' ? anthropic.url : models
    const outgoing = request(to + url, { method, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 500, answer.headers)
      answer.pipe(response)
    })
    incoming.pipe(outgoing)
  })
  return `http://127.0.0.1:${await listening(t, server)}`
}

const [gpt, claude, gemini] = await Promise.all([
  createOpenAiEmulator(),
  createAnthropicEmulator(),
  createGeminiEmulator(),
])
t.teardown(() => Promise.all([gpt, claude, gemini].map((emulator) => emulator.close())))
const { http, listen } = await wholeGateway(t, {
  ...world.env,
  ...(await anyStore(t)),
  BATON_ANTHROPIC_BASE_URL: await anthropicApi(t, claude.url),
  BATON_CHATGPT_BASE_URL: gpt.chatgptBaseUrl,
  BATON_GEMINI_BASE_URL: gemini.publicBaseUrl,
})

/** The fields of the API's answers that are read here. */
interface Body {
  id: string
  state: string
  authorization_url: string
  error: { code: string }
}

t.test('over HTTP, a login serves a turn and is renewed in the middle of a turn', async (t) => {
  const root = await listen()
  const call = async (method: string, path: string, body?: unknown) => {
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${root}/v1${path}`, {
      method,
      ...(body === undefined ? {} : { headers, body: JSON.stringify(body) }),
    })
    return { status: answer.status, body: (await answer.json()) as Body }
  }
  const login = await call('POST', '/oauth/openai/authorize', { mode: 'paste' })
  t.match(login, { status: 200, body: { mode: 'paste' } })
  const at = await visit(login.body.authorization_url)
  const { state } = login.body
  const made = await call('POST', '/oauth/openai/exchange', { state, pasted: at.href })
  t.match(made, { status: 200, body: { provider: 'openai', kind: 'oauth', account_id: ACCOUNT } })
  t.notMatch(JSON.stringify(made.body), /eyJ|rt_openai/, 'the answer holds no token')
  t.match(await call('GET', `/oauth/openai/status?state=${state}`), {
    body: { state: 'done', credential_id: made.body.id },
  })
  t.match(await call('POST', '/oauth/openai/exchange', { state, pasted: at.href }), { status: 400 })

  const session = await call('POST', '/sessions', { provider: 'openai', model: 'gpt-5.6-sol' })
  const turn = (input: string) => call('POST', `/sessions/${session.body.id}/turns`, { input, stream: false })
  t.match(await turn('say hello'), { status: 200, body: { output_text: 'hello' } })
  const used = String(gpt.requests.at(-1)?.headers.authorization).slice(7)
  gpt.revoke(used)
  const before = openai.renewals()
  t.match(await turn('say again'), { status: 200, body: { output_text: 'again' } })
  t.equal(openai.renewals() - before, 1)
  t.not(String(gpt.requests.at(-1)?.headers.authorization).slice(7), used)

  const { id } = await loggedIn(one, 'anthropic')
  const { access_token = '', refresh_token } = await sealedOf(world, id)
  const given = { provider: 'anthropic', kind: 'oauth', access_token, refresh_token }
  t.match(await call('POST', '/credentials', given), { status: 201 })
  await call('PATCH', `/sessions/${session.body.id}`, { provider: 'anthropic', model: 'claude-opus-5-5' })
  claude.refuse(access_token, 'revoked')
  const renewals = anthropic.renewals()
  t.match(
    await turn('say hi'),
    { status: 200, body: { output_text: 'hi' } },
    'a revoked token is renewed like an expired one',
  )
  t.equal(anthropic.renewals() - renewals, 1)
  await call('PATCH', `/sessions/${session.body.id}`, { provider: 'openai', model: 'gpt-5.6-sol' })

  for (const token of openai.live()) openai.revoke(token)
  gpt.revoke(String(gpt.requests.at(-1)?.headers.authorization).slice(7))
  const third = await turn('say more')
  t.equal(third.body.error.code, 'upstream_auth', 'a second refusal so soon is not cured by another renewal')
  const file = { tokens: { access_token: 'eyJ.x.y', refresh_token: 'rt_spent' } }
  const taken = await call('POST', '/credentials/import', {
    provider: 'openai',
    format: 'codex',
    content: file,
  })
  t.match(taken, { status: 201, body: { warning: /Codex CLI/, hint: '.x.y' } })
  gpt.revoke('eyJ.x.y')
  await call('PATCH', `/sessions/${session.body.id}`, { credential_id: taken.body.id })
  const dead = await turn('say more')
  t.match(dead, { status: 409, body: { error: { code: 'credential_needs_reauth' } } })
  t.match(await call('GET', `/credentials/${taken.body.id}`), {
    body: { state: 'needs_reauth', reason: /^refresh_token_invalidated: / },
  })
  t.match(await turn('say more'), { status: 409, body: { error: { code: 'credential_needs_reauth' } } })
})

t.test(
  'bearer tokens that vendors mean for programs serve turns, and are renewed after a refusal',
  async (t) => {
    const call = async (method: 'POST' | 'PATCH', url: string, payload: object) => {
      const answer = await http.inject({
        method,
        url: `/v1${url}`,
        headers: { host: 'localhost' },
        payload,
      })
      return { status: answer.statusCode, body: answer.json() as Body }
    }
    const { id: session } = (
      await call('POST', '/sessions', { provider: 'anthropic', model: 'claude-opus-5-5' })
    ).body
    const say = async (credential: Body, chat: object) => {
      t.match(await call('PATCH', `/sessions/${session}`, { ...chat, credential_id: credential.id }), {
        status: 200,
      })
      const answer = await call('POST', `/sessions/${session}/turns`, { input: 'say hi', stream: false })
      t.match(answer, { status: 200, body: { output_text: 'hi' } })
    }
    const opus = { provider: 'anthropic', model: 'claude-opus-5-5' }
    const sentTo = (emulator: typeof claude | typeof gemini) => emulator.requests.at(-1)?.headers ?? {}

    const bearer = { provider: 'anthropic', kind: 'oauth' }
    const workload = await call('POST', '/credentials', { ...bearer, federation: FEDERATION })
    t.equal(workload.status, 201)
    const { federation_rule_id: _, ...unnamed } = FEDERATION
    for (const federation of [unnamed, { ...FEDERATION, assertion: 'a'.repeat(16_385) }]) {
      const refused = await call('POST', '/credentials', { ...bearer, federation })
      t.match(refused, {
        status: 400,
        body: { error: { param: /^federation\.(federation_rule_id|assertion)$/ } },
      })
    }
    const exchanges = anthropic.federated()
    await say(workload.body, opus)
    const first = String(sentTo(claude).authorization)
    t.match(first, /^Bearer sk-ant-oat01-acme-federated-/)
    t.match(sentTo(claude)['anthropic-beta'], /oauth-2025-04-20/)
    t.notMatch(sentTo(claude)['anthropic-beta'], /oidc-federation/, 'this beta is for the exchange alone')
    claude.refuse(first.slice(7), 'expired')
    await say(workload.body, opus)
    t.not(sentTo(claude).authorization, first)
    t.equal(
      anthropic.federated() - exchanges,
      2,
      'the assertion was exchanged once, and once more after the refusal',
    )

    const { id } = await loggedIn(one, 'anthropic')
    const { access_token, refresh_token } = await sealedOf(world, id)
    const content = {
      type: 'oauth_token',
      access_token,
      refresh_token,
      expires_at: 1_500_000_000,
      workspace_id: 'wrkspc_1',
      authentication: { client_id: CLIENT },
    }
    const profile = await call('POST', '/credentials/import', {
      provider: 'anthropic',
      format: 'anthropic-profile',
      content,
    })
    t.equal(profile.status, 201, JSON.stringify(profile.body))
    await say(profile.body, opus)
    t.match(sentTo(claude), { authorization: /^Bearer sk-ant-oat01-/, 'anthropic-workspace-id': 'wrkspc_1' })
    t.not(
      sentTo(claude).authorization,
      `Bearer ${access_token}`,
      'the token had ended, and was renewed at the API itself',
    )

    const choices = { mode: 'paste', path: 'public', quota_project: 'billed-project' }
    const login = await call('POST', '/oauth/gemini/authorize', choices)
    const at = await visit(login.body.authorization_url)
    const { state } = login.body
    const own = await call('POST', '/oauth/gemini/exchange', { state, pasted: at.href })
    t.match(own, { status: 200, body: { path: 'public', quota_project: 'billed-project' } })
    const flash = { provider: 'gemini', model: 'gemini-3.8-flash' }
    await say(own.body, flash)
    t.match(sentTo(gemini), { authorization: /^Bearer ya29\./, 'x-goog-user-project': 'billed-project' })
    t.notOk(sentTo(gemini)['x-goog-api-key'])
    t.match(gemini.requests.at(-1)?.path, /^\/v1beta\/models\/gemini-3\.8-flash:/)
    const spent = String(sentTo(gemini).authorization)
    gemini.revoke(spent.slice(7))
    await say(own.body, flash)
    t.not(sentTo(gemini).authorization, spent)
  },
)
