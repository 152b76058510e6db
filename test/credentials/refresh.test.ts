/** Renewal: once, by one, stored before it is used, and never in a loop. */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { setTimeout as sleepFor } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { createApp } from '../../src/app.ts'
import { loadConfig } from '../../src/config/load.ts'
import { BatonError } from '../../src/errors.ts'
import type { Store } from '../../src/store/store.ts'
import { createAnthropicEmulator } from '../emulators/anthropic.ts'
import { gate } from '../emulators/http.ts'
import { CLIENT } from '../emulators/oauth-anthropic.ts'
import { newDatabase } from '../servers.ts'
import { at, chosen, type Provider, spentLogins, tokenOf, unauthorized } from './spent-logins.ts'
import { createWorld, ME, refusal, sealedOf, visit } from './world.ts'

const { world, emulators, one, two, read, login, ends } = await spentLogins(t)
const { store, vault, openai, anthropic } = world
const PROVIDERS = Object.keys(emulators) as Provider[]

/** The store with some verbs of its credentials replaced. */
const storeWith = (verbs: Partial<Store['credentials']>): Store => ({
  ...store,
  credentials: { ...store.credentials, ...verbs },
})

t.test('many callers on two replicas renew a spent token once', async (t) => {
  for (const provider of PROVIDERS) {
    const emulator = emulators[provider]
    const { id, secret } = await login(provider, -5)
    const before = emulator.renewals()
    const choices = await Promise.all(
      Array.from({ length: 10 }, (_, i) => chosen(i % 2 ? one : two, id, provider)),
    )
    const tokens = await Promise.all(choices.map(tokenOf))
    t.equal(emulator.renewals() - before, 1, provider)
    t.equal(new Set(tokens).size, 1)
    t.ok(emulator.isLive(tokens[0] ?? ''))
    const stored = await sealedOf(world, id)
    t.equal(stored.access_token, tokens[0], 'what they use is what is stored')
    t.equal(stored.refresh_token === secret.refresh_token, provider === 'gemini', 'rotated where it rotates')
    t.ok(Date.parse((await read(id)).expires_at ?? '') > Date.now())
    t.equal((await read(id)).hint, tokens[0]?.slice(-4))
  }
})

t.test('a token is renewed five minutes ahead of its end, and not before', async (t) => {
  for (const provider of PROVIDERS) {
    const emulator = emulators[provider]
    const fresh = await login(provider, 360)
    const due = await login(provider, 240)
    const before = emulator.renewals()
    t.equal(await tokenOf(await chosen(one, fresh.id, provider)), fresh.secret.access_token)
    t.equal(emulator.renewals() - before, 0)
    t.not(await tokenOf(await chosen(one, due.id, provider)), due.secret.access_token)
    t.equal(emulator.renewals() - before, 1)
  }
})

t.test('a short-lived token is not due as soon as it is born', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-short', expires_in: 60 } })
  const before = anthropic.tokenRequests().length
  const choice = await chosen(one, id, 'anthropic')
  for (let uses = 0; uses < 3; uses++) t.equal(await tokenOf(choice), 'sk-ant-oat01-acme-short')
  t.equal(await tokenOf(await chosen(two, id, 'anthropic')), 'sk-ant-oat01-acme-short')
  t.equal(anthropic.tokenRequests().length - before, 1)
  const late = world.replica({ now: () => Date.now() + 46_000 })
  t.not(await tokenOf(await chosen(late, id, 'anthropic')), 'sk-ant-oat01-acme-short')
})

t.test('how long a token lives may be told as text', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { access_token: 'sk-ant-oat01-acme-text', expires_in: '3600' } })
  t.equal(await tokenOf(await chosen(one, id, 'anthropic')), 'sk-ant-oat01-acme-text')
  t.ok(Math.abs(Date.parse((await read(id)).expires_at ?? '') - Date.now() - 3_600_000) < 10_000)
})

t.test('a rotated refresh token is kept though no access token came with it', async (t) => {
  const { id } = await login('anthropic', -5)
  anthropic.answer({ status: 200, body: { refresh_token: 'sk-ant-ort01-acme-next' } })
  t.match(await refusal((await chosen(one, id, 'anthropic')).secret()), { code: 'upstream_rejected' })
  t.match(await read(id), { state: 'active' })
  t.match(await sealedOf(world, id), { refresh_token: 'sk-ant-ort01-acme-next' })
})

t.test('a vendor that does not answer is given up in time', async (t) => {
  const { id } = await login('openai', -5)
  const never = gate()
  t.teardown(never.open)
  openai.hold(never.opened)
  const hasty = world.replica({ timeoutMs: 100 })
  t.match(await refusal((await chosen(hasty, id, 'openai')).secret()), {
    code: 'upstream_timeout',
    message: /did not answer within 100 ms/,
  })
  t.match(await read(id), { state: 'active' })
})

t.test('who finds the renewal taken waits for its result, or goes on with what still lasts', async (t) => {
  const { id, secret } = await login('openai', -5)
  const answered = gate()
  const before = openai.renewals()
  openai.hold(answered.opened)
  const asked = openai.request(openai.requests.length)
  const first = tokenOf(await chosen(one, id, 'openai'))
  await asked
  const second = tokenOf(await chosen(two, id, 'openai'))
  answered.open()
  t.equal(await second, await first)
  t.equal(openai.renewals() - before, 1)

  await ends(id, 200)
  const still = await chosen(two, id, 'openai')
  const old = (await sealedOf(world, id)).access_token
  t.not(old, secret.access_token)
  t.ok(await store.credentials.claim(id, 'elsewhere', 60))
  t.equal(await tokenOf(still), old, 'nobody waits for what lasts some minutes more')
  t.equal(openai.renewals() - before, 1)
})

t.test('a renewal whose process died before the vendor was asked costs a wait, nothing else', async (t) => {
  const quick = world.replica({ claimSeconds: 1 })
  const { id } = await login('anthropic', -5)
  t.ok(await store.credentials.claim(id, 'the dead one', 1))
  t.ok(anthropic.isLive(await tokenOf(await chosen(quick, id, 'anthropic'))))
  t.match(await read(id), { state: 'active' })
})

t.test('a claim that nobody gives up is waited for within a bound', async (t) => {
  let clock = Date.now()
  const sleep = async (ms: number) => {
    clock += ms * 10
  }
  const patient = world.replica({ now: () => clock, sleep })
  const { id } = await login('anthropic', -5)
  t.ok(await store.credentials.claim(id, 'the stuck one', 3600))
  const refused = await refusal((await chosen(patient, id, 'anthropic')).secret())
  t.match(refused, { code: 'unavailable', message: /renewed by another process/, retryAfter: 2 })
})

t.test(
  'a rotation that was lost before it was stored ends the login, with that reason, at once',
  async (t) => {
    for (const [provider, code] of [
      ['openai', 'refresh_token_reused'],
      ['anthropic', 'invalid_grant'],
    ] as const) {
      const emulator = emulators[provider]
      const { id } = await login(provider, -5)
      // The vendor does its work, and the answer never arrives: as if the process had died there.
      emulator.lose()
      const lost = await refusal((await chosen(world.replica(), id, provider)).secret())
      t.match(lost, { code: 'upstream_disconnected' })
      t.match(await read(id), { state: 'active' }, 'nothing is known yet')

      const before = emulator.tokenRequests().length
      const dead = await refusal((await chosen(one, id, provider)).secret())
      t.match(dead, { code: 'credential_needs_reauth', message: /used already.*lost before it was stored/ })
      t.match(await read(id), { state: 'needs_reauth', reason: new RegExp(`^${code}: `) })
      t.equal(emulator.tokenRequests().length - before, 1)
      await refusal(chosen(two, id, provider))
      t.equal(emulator.tokenRequests().length - before, 1, 'nobody asks again')
    }
  },
)

t.test('the store’s bad moment costs no login', async (t) => {
  const away = new BatonError('unavailable', 'The database is not available.')
  let failures = 2
  const shaky = world.replica({
    sleep: async () => {},
    store: storeWith({
      rotate: async (...given) => {
        if (failures-- > 0) throw away
        return store.credentials.rotate(...given)
      },
    }),
  })
  const { id } = await login('openai', -5)
  const before = openai.renewals()
  const token = await tokenOf(await chosen(shaky, id, 'openai'))
  t.equal((await sealedOf(world, id)).access_token, token)

  await ends(id, -5)
  failures = 20
  const late = await tokenOf(await chosen(shaky, id, 'openai'))
  t.equal(failures, -1, 'however long it takes')
  t.equal(openai.renewals() - before, 2, 'without asking again')
  t.match(await sealedOf(world, id), { access_token: late })
})

t.test('new tokens make a login active that a sibling found dead while the store was away', async (t) => {
  const { id } = await login('openai', -5)
  let isBack = false
  const shaky = world.replica({
    sleep: async () => {},
    store: storeWith({
      async rotate(...given) {
        if (isBack) return store.credentials.rotate(...given)
        // The claim has lapsed, and the sibling was faster.
        isBack = true
        await store.credentials.fail(id, (await read(id)).version, 'invalid_grant')
        throw new BatonError('unavailable', 'The database is not available.')
      },
    }),
  })
  const token = await tokenOf(await chosen(shaky, id, 'openai'))
  t.match(await read(id), { state: 'active', reason: null })
  t.match(await sealedOf(world, id), { access_token: token })
})

t.test('closing tries once more to store what the store did not take yet', async (t) => {
  const { id } = await login('openai', -5)
  const tried = gate()
  let isAway = true
  const leaving = world.replica({
    store: storeWith({
      async rotate(...given) {
        if (!isAway) return store.credentials.rotate(...given)
        tried.open()
        throw new BatonError('unavailable', 'The database is not available.')
      },
    }),
    sleep: (_, signal) => sleepFor(60_000, undefined, signal && { signal }),
  })
  const token = tokenOf(await chosen(leaving, id, 'openai'))
  await tried.opened
  isAway = false
  await leaving.refresher.close()
  t.match(await sealedOf(world, id), { access_token: await token })
})

t.test('a setup seals its login anew, so that no re-encryption is undone', async (t) => {
  const { id } = await login('gemini', 3600)
  const row = await read(id)
  await store.credentials.rotate(id, row.version, { ...row, facts: { path: 'code_assist' } })
  t.match(await (await chosen(one, id, 'gemini')).complete?.(), { project_id: row.facts.project_id })
  const after = await read(id)
  t.equal(after.version, row.version + 2)
  t.notSame(after.secret, row.secret)
})

t.test('a replica whose token was spent by another uses the other’s', async (t) => {
  const { id } = await login('openai', -5)
  const row = await read(id)
  const next = { ...(await sealedOf(world, id)), access_token: 'at-of-the-sibling' }
  const late = world.replica({
    store: storeWith({
      async fail(...given) {
        const secret = vault.seal(JSON.stringify(next), `${row.owner}/${row.id}`)
        await store.credentials.rotate(id, row.version, { ...row, secret, expires_at: at(3600) })
        return store.credentials.fail(...given)
      },
    }),
  })
  openai.spend((await sealedOf(world, id)).refresh_token ?? '')
  t.equal(await tokenOf(await chosen(late, id, 'openai')), 'at-of-the-sibling')
  t.match(await read(id), { state: 'active' })
})

t.test('after a 401 there is one other token to try with', async (t) => {
  const { id, secret } = await login('anthropic', 3600)
  const [here, there] = [await chosen(one, id, 'anthropic'), await chosen(two, id, 'anthropic')]
  const before = anthropic.renewals()
  t.equal(await tokenOf(here), secret.access_token)
  t.equal(await unauthorized(here), true)
  const renewed = await tokenOf(here)
  t.not(renewed, secret.access_token)
  t.equal(anthropic.renewals() - before, 1)
  t.equal(await unauthorized(there), true)
  t.equal(await tokenOf(there), renewed, 'the other replica takes what is stored')
  t.equal(anthropic.renewals() - before, 1)
  t.equal(await unauthorized(here), false, 'a token that is refused right after helps nobody')
  t.equal(anthropic.renewals() - before, 1)

  anthropic.revoke((await sealedOf(world, id)).refresh_token ?? '')
  const third = await chosen(two, id, 'anthropic')
  t.match(await refusal(unauthorized(third)), { code: 'credential_needs_reauth' })
})

t.test('closing waits for a renewal under way', async (t) => {
  const leaving = world.replica()
  const { id } = await login('openai', -5)
  const answered = gate()
  const asked = openai.request(openai.requests.length)
  openai.hold(answered.opened)
  const token = tokenOf(await chosen(leaving, id, 'openai'))
  await asked
  const closed = leaving.refresher.close()
  answered.open()
  await closed
  t.equal((await sealedOf(world, id)).access_token, await token)
})

const url = process.env.TEST_DATABASE_URL
const isWaived = !url && process.env.CI !== 'true' && 'TEST_DATABASE_URL is not set: no PostgreSQL to test on'

const redisUrl = process.env.TEST_REDIS_URL
const isAlone = isWaived || (!redisUrl && process.env.CI !== 'true' && 'TEST_REDIS_URL is not set')

t.test(
  'ten turns at once on two replicas renew a spent login once, and all of them end well',
  { skip: isAlone },
  async (t) => {
    if (!url || !redisUrl) return t.fail('CI must set TEST_DATABASE_URL and TEST_REDIS_URL')
    const claude = await createAnthropicEmulator()
    t.teardown(() => claude.close())
    const env = {
      DATABASE_URL: await newDatabase(t, url),
      REDIS_URL: redisUrl,
      BATON_ENCRYPTION_KEYS: `k1:${randomBytes(32).toString('base64')}`,
      BATON_ENABLE_OAUTH: 'anthropic',
      BATON_ANTHROPIC_BASE_URL: claude.baseUrl,
      BATON_ANTHROPIC_OAUTH_TOKEN_URL: anthropic.tokenUrl,
      BATON_ANTHROPIC_OAUTH_CLIENT_ID: CLIENT,
      BATON_LOG_LEVEL: 'fatal',
      BATON_DRAIN_SECONDS: '0',
    }
    const replicas = await Promise.all([1, 2].map(() => createApp(loadConfig(env, '/nowhere').config)))
    t.teardown(() => Promise.all(replicas.map((replica) => replica.close())))
    const post = async (i: number, path: string, payload: object) => {
      const headers = { host: 'localhost' }
      const answer = await replicas[i % 2]?.http.inject({
        method: 'POST',
        url: `/v1${path}`,
        headers,
        payload,
      })
      return { status: answer?.statusCode, body: answer?.json() }
    }
    const { secret } = await login('anthropic', 3600)
    const { access_token, refresh_token } = secret
    const spent = { provider: 'anthropic', kind: 'oauth', access_token, refresh_token, expires_at: at(-60) }
    const { body: credential } = await post(0, '/credentials', spent)
    const chat = { provider: 'anthropic', model: 'claude-opus-5-5', credential_id: credential.id }
    const ten = Array.from({ length: 10 }, (_, i) => i)
    const sessions = await Promise.all(ten.map((i) => post(i, '/sessions', chat)))
    const before = anthropic.tokenRequests().length
    const said = await Promise.all(
      sessions.map(({ body }, i) =>
        post(i, `/sessions/${body.id}/turns`, { input: `say ${i}`, stream: false }),
      ),
    )
    t.match(
      said,
      ten.map((i) => ({ status: 200, body: { state: 'completed', output_text: String(i) } })),
    )
    t.equal(anthropic.tokenRequests().length - before, 1, 'one request at the token endpoint')
    const used = claude.requests.filter(({ path }) => path.startsWith('/v1/messages'))
    t.equal(new Set(used.map(({ headers }) => headers.authorization)).size, 1, 'the new token alone is used')
    t.not(used[0]?.headers.authorization, `Bearer ${access_token}`)
  },
)

t.test(
  'killed in the middle of a renewal, a process leaves what the vendor knows',
  { skip: isWaived },
  async (t) => {
    if (!url) return t.fail('CI must set TEST_DATABASE_URL')
    const databaseUrl = await newDatabase(t, url)
    const key = randomBytes(32)
    const shared = await createWorld({ databaseUrl, key: new Uint8Array(key) })
    t.teardown(() => shared.close())
    const survivor = shared.replica({ claimSeconds: 2 })

    async function spentLogin(): Promise<string> {
      const { authorization_url, state } = await survivor.logins.authorize(ME, 'openai', 'paste')
      const { href } = await visit(authorization_url)
      const { id } = await survivor.logins.exchange(ME, 'openai', { state, pasted: href })
      const row = await shared.store.credentials.get(ME, id)
      if (row) await shared.store.credentials.rotate(id, 1, { ...row, expires_at: at(-5) })
      return id
    }
    /** Another process asks for its token, and dies while the vendor has its request. */
    async function dieRenewing(id: string): Promise<void> {
      const script = fileURLToPath(new URL('./renewer.js', import.meta.url))
      const asked = shared.openai.request(shared.openai.requests.length)
      const args = [script, databaseUrl, key.toString('base64'), id, 'openai', JSON.stringify(shared.env)]
      const renewer = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'inherit'] })
      const exited = once(renewer, 'exit')
      await asked
      renewer.kill('SIGKILL')
      await exited
    }
    const asking = gate()
    t.teardown(asking.open)

    const early = await spentLogin()
    shared.openai.stall(asking.opened)
    await dieRenewing(early)
    const choice = await chosen(survivor, early, 'openai')
    t.ok(
      shared.openai.isLive((await choice.secret()).access_token ?? ''),
      'not asked yet: the login lives on',
    )

    const late = await spentLogin()
    shared.openai.hold(asking.opened)
    await dieRenewing(late)
    const dead = await refusal((await chosen(survivor, late, 'openai')).secret())
    t.match(dead, { code: 'credential_needs_reauth', message: /lost before it was stored/ })
  },
)
