/** Renewal among replicas: one asks, the others take what it stored; and what becomes of a login if that one dies. */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import type { ChosenCredential } from '../../src/credentials/choose.ts'
import { createAnthropicEmulator } from '../emulators/anthropic.ts'
import { CLIENT } from '../emulators/oauth-anthropic.ts'
import { ON_POSTGRES, ON_SERVERS, SERVERS } from '../given-servers.ts'
import { migratedDatabase } from '../store/migrated.ts'
import { gate } from '../waiting.ts'
import { wholeGateway } from '../whole-gateway.ts'
import {
  at,
  chosen,
  ends,
  login,
  one,
  read,
  storeWith,
  tokenOf,
  two,
  unauthorized,
  world,
} from './spent-logins.ts'
import { createWorld, loggedIn, ME, refusal, sealedOf } from './world.ts'

const { store, vault, openai, anthropic } = world

t.test('a replica that finds a renewal taken waits for it, or goes on with a token that lasts', async (t) => {
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
  const waits: number[] = []
  const other = world.replica({ sleep: async (ms) => void waits.push(ms) })
  const still = await chosen(other, id, 'openai')
  const old = (await sealedOf(world, id)).access_token
  t.not(old, secret.access_token)
  t.ok(await store.credentials.claim(id, 'elsewhere', 60))
  t.equal(await tokenOf(still), old, 'nobody waits for a token that lasts some minutes more')
  const row = await read(id)
  await store.credentials.rotate(id, row.version, row)
  t.ok(await unauthorized(still), 'nor for another token, once it is stored')
  t.same(waits, [])
  t.equal(openai.renewals() - before, 1)
})

t.test('a renewal whose process died before it asked the vendor costs a wait, nothing else', async (t) => {
  const quick = world.replica({ claimSeconds: 1 })
  const { id } = await login('anthropic', -5)
  t.ok(await store.credentials.claim(id, 'the dead one', 1))
  t.ok(anthropic.isLive(await tokenOf(await chosen(quick, id, 'anthropic'))))
  t.match(await read(id), { state: 'active' })
})

t.test(
  'a token that a sibling has renewed serves, however soon the former one is refused again',
  async (t) => {
    const { id } = await login('openai', 3600)
    const mine = await chosen(one, id, 'openai')
    const theirs = await chosen(two, id, 'openai')
    t.ok(await unauthorized(mine))
    t.notOk(await unauthorized(mine), 'a second refusal so soon is not cured by another renewal')
    await tokenOf(theirs)
    t.ok(await unauthorized(theirs), 'it takes over the renewed token')
    t.ok(await unauthorized(theirs))
    t.ok(await unauthorized(mine))
    t.equal(await tokenOf(mine), await tokenOf(theirs))
  },
)

t.test('a vendor that hangs is asked by one replica, not by all that waited for it', async (t) => {
  const never = gate()
  t.teardown(never.open)
  for (const isRefused of [false, true]) {
    const { id } = await login('openai', isRefused ? 3600 : -5)
    const replicas = [1, 2, 3].map(() => world.replica({ timeoutMs: 1000 }))
    const choices = await Promise.all(replicas.map((replica) => chosen(replica, id, 'openai')))
    const ask = (choice: ChosenCredential) => refusal(isRefused ? unauthorized(choice) : choice.secret())
    const before = openai.tokenRequests().length
    openai.stall(never.opened)
    const failed = await Promise.all(choices.map(ask))
    t.same(failed.map(({ code }) => code).sort(), [
      'upstream_overloaded',
      'upstream_overloaded',
      'upstream_timeout',
    ])
    t.same(
      failed.map(({ retryAfter }) => retryAfter),
      [5, 5, 5],
    )
    const again = failed.map(({ code, message }) => ({ code, message }))
    t.match(await Promise.all(choices.map(ask)), again, 'each replica leaves the vendor alone for a while')
    t.equal(openai.tokenRequests().length - before, 1)
  }
})

t.test('a replica that hears late of its claim does not use it: a sibling may have it by now', async (t) => {
  const { id } = await login('openai', -5)
  const before = openai.renewals()
  let clock = Date.now()
  const asked: number[] = []
  const suspended = world.replica({
    now: () => clock,
    store: storeWith({
      async claim(...given) {
        const row = await store.credentials.claim(...given)
        asked.push(openai.renewals() - before)
        if (asked.length === 1) clock += 26_000
        return row
      },
    }),
  })
  t.ok(openai.isLive(await tokenOf(await chosen(suspended, id, 'openai'))))
  t.same(asked, [0, 0], 'the renewal is claimed anew')
  t.equal(openai.renewals() - before, 1)
})

t.test('a replica waits within a bound for a claim that nobody gives up', async (t) => {
  let clock = Date.now()
  let longest = 0
  const sleep = async (ms: number) => {
    clock += ms * 10
    longest = Math.max(longest, ms)
  }
  const patient = world.replica({ now: () => clock, sleep })
  const { id } = await login('anthropic', -5)
  t.ok(await store.credentials.claim(id, 'the stuck one', 3600))
  const refused = await refusal((await chosen(patient, id, 'anthropic')).secret())
  t.match(refused, { code: 'unavailable', message: /renewed by another process/, retryAfter: 2 })
  t.equal(longest, 500, 'it looks twice a second whether the claim was given up')
})

t.test('a replica also waits for a renewal that began when a dead process’s claim had lapsed', async (t) => {
  const { id } = await login('anthropic', -5)
  const row = await read(id)
  const start = Date.now()
  let clock = start
  const sleep = async (ms: number) => {
    clock += ms * 10
    // 30 s for the dead process, and as long as the vendor may take to answer the next one.
    if (clock - start > 45_000)
      await store.credentials.rotate(id, row.version, { ...row, expires_at: at(3600) })
  }
  const patient = world.replica({ now: () => clock, sleep })
  t.ok(await store.credentials.claim(id, 'one after the other', 3600))
  t.equal(await tokenOf(await chosen(patient, id, 'anthropic')), (await sealedOf(world, id)).access_token)
})

t.test('a replica whose refresh token another replica has spent uses the other’s new token', async (t) => {
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

t.test(
  'ten turns at once on two replicas renew a spent login once, and all of them end well',
  ON_SERVERS,
  async (t) => {
    const claude = await createAnthropicEmulator()
    t.teardown(() => claude.close())
    const env = {
      DATABASE_URL: await migratedDatabase(t, SERVERS.DATABASE_URL),
      REDIS_URL: SERVERS.REDIS_URL,
      BATON_ENCRYPTION_KEYS: `k1:${randomBytes(32).toString('base64')}`,
      BATON_ENABLE_OAUTH: 'anthropic',
      BATON_ANTHROPIC_BASE_URL: claude.url,
      BATON_ANTHROPIC_OAUTH_TOKEN_URL: anthropic.tokenUrl,
      BATON_ANTHROPIC_OAUTH_CLIENT_ID: CLIENT,
      BATON_DRAIN_SECONDS: '0',
    }
    const replicas = await Promise.all([1, 2].map(() => wholeGateway(t, env)))
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
  'a process that is killed in the middle of a renewal costs the login only if the vendor had renewed it',
  ON_POSTGRES,
  async (t) => {
    const databaseUrl = await migratedDatabase(t, SERVERS.DATABASE_URL)
    const key = randomBytes(32)
    const shared = await createWorld(t, { databaseUrl, key })
    const survivor = shared.replica({ claimSeconds: 2 })

    async function spentLogin(): Promise<string> {
      const { id } = await loggedIn(survivor, 'openai')
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
      'the vendor had not renewed it yet: the login lives on',
    )

    const late = await spentLogin()
    shared.openai.hold(asking.opened)
    await dieRenewing(late)
    const dead = await refusal((await chosen(survivor, late, 'openai')).secret())
    t.match(dead, { code: 'credential_needs_reauth', message: /lost before it was stored/ })
  },
)
