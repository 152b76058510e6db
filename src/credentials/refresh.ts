/**
 * Keeps logins alive. An access token is renewed ahead of its end and after a refusal, by one caller at a
 * time: in this process by sharing the work, across replicas by a claim on the row that lapses by itself.
 * No transaction is open during the call; the answer is stored before it is used. What a vendor refuses
 * for good ends in `needs_reauth` with the reason, everything else is left for later.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleepFor } from 'node:timers/promises'
import type { Logger } from 'pino'
import { BatonError } from '../errors.ts'
import type { LoginSecret, OAuthAnswer, TokenAnswer, TokenFailure } from '../oauth-vendor.ts'
import type { CredentialSecret } from '../provider.ts'
import type { Credential, Store } from '../store/store.ts'
import { type Breaker, createBreaker } from './breaker.ts'
import type { Vault } from './credentials.ts'
import type { LoginRow, LoginTable } from './login-table.ts'
import type { OAuthHttp } from './oauth-http.ts'
import { setUp } from './setup.ts'

/** A login as a turn uses it. */
export interface OpenLogin {
  /** Complete: what a login's setup finds is among them */
  facts: Readonly<Record<string, string>>
  /** Fresh. Throws credential_needs_reauth, or what kept it from being renewed. */
  secret(): Promise<CredentialSecret>
  /** After a 401: whether there is another token to try with. */
  onUnauthorized(): Promise<boolean>
}
export interface Refresher {
  /** Throws credential_needs_reauth, oauth_not_enabled, what a setup throws. */
  open(row: Credential): Promise<OpenLogin>
  /** Renews what ends soon although nobody uses it; how many. The timer's work. */
  tend(): Promise<number>
  /** Stops the timer and waits for renewals under way, so that no new token is lost. */
  close(): Promise<void>
}

export interface RefresherDeps {
  store: Pick<Store, 'credentials' | 'logins'>
  vault: Vault
  table: LoginTable
  http: OAuthHttp
  log: Logger
  /** Milliseconds between two rounds of `tend`; 0: no timer */
  tendMs?: number
  /** How long a claim holds when its owner dies. Longer than a call to a token endpoint may take. */
  claimSeconds?: number
  now?(): number
  sleep?(ms: number): Promise<unknown>
}

/** A token that still lasts this long serves while its renewal has to wait. */
const SPARE_MS = 10_000
/** The vendor is left alone this long after it failed for one login, unless it names another time. */
const [SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS] = [5_000, 300_000]
/** A token that was refused right after a forced renewal is not renewed again so soon. */
const FORCED_MS = 300_000
const MOST_PER_ROUND = 200

/** The vendor's final word on a login. */
class Refused extends Error {
  readonly failure: TokenFailure
  constructor(failure: TokenFailure) {
    super(failure.code)
    this.failure = failure
  }
}

export function createRefresher(deps: RefresherDeps): Refresher {
  const { store, vault, table, http, log } = deps
  const now = deps.now ?? Date.now
  const sleep = deps.sleep ?? ((ms) => sleepFor(ms, undefined, { ref: false }))
  const claimSeconds = deps.claimSeconds ?? 30
  const renewals = new Map<string, Promise<Credential>>()
  const setups = new Map<string, Promise<Credential>>()
  const breakers = new Map<string, Breaker>()
  /** Logins whose last renewal failed: not before that time, and with what it failed */
  const paused = new Map<string, { until: number; error: BatonError }>()
  /** Tokens that the vendor issued and the store did not take yet: they are the only ones left */
  const unsaved = new Map<string, { version: number; secret: LoginSecret; expires_at: string | null }>()
  const forced = new Map<string, { version: number; at: number }>()

  const endOf = (row: Credential) => (row.expires_at === null ? null : Date.parse(row.expires_at))
  const isSpent = (row: Credential, spareMs: number) => {
    const end = endOf(row)
    return end !== null && end - now() <= spareMs
  }
  function isDue(row: Credential, { vendor }: LoginRow): boolean {
    const { renewAheadSeconds, renewAfterSeconds } = vendor
    if (endOf(row) !== null) return isSpent(row, renewAheadSeconds * 1000)
    return renewAfterSeconds !== null && now() - Date.parse(row.updated_at) > renewAfterSeconds * 1000
  }
  // Sealed by this module or at creation; the seal proves that nobody else wrote it.
  const secretOf = (row: Credential) =>
    JSON.parse(vault.open(row.secret, `${row.owner}/${row.id}`)) as LoginSecret

  /** One renewal of a login at a time in this process; who comes meanwhile shares its outcome. */
  function renewed(row: Credential, isForced: boolean): Promise<Credential> {
    const running = renewals.get(row.id)
    if (running) return running
    const renewal = claimed(row, isForced).finally(() => renewals.delete(row.id))
    renewals.set(row.id, renewal)
    return renewal
  }

  /** Gets the claim, or the result of whoever has it. */
  async function claimed(row: Credential, isForced: boolean): Promise<Credential> {
    const patience = now() + (claimSeconds + 10) * 1000
    const scope = { owner: row.owner, admin: false }
    for (let pause = 50; ; pause = Math.min(pause * 2, 1000)) {
      const claimant = randomUUID()
      const held = await store.credentials.claim(row.id, claimant, claimSeconds)
      if (held) {
        try {
          return await renew(usable(held, row.id), row.version, isForced)
        } finally {
          // If this fails, the claim lapses.
          await store.credentials.release(row.id, claimant).catch(() => {})
        }
      }
      const seen = usable(await store.credentials.get(scope, row.id), row.id)
      if (seen.version !== row.version) return seen
      if (!isForced && !isSpent(seen, SPARE_MS)) return seen
      if (now() > patience) {
        throw new BatonError('unavailable', `Credential ${row.id} is being renewed by another process.`, {
          retryAfter: 2,
        })
      }
      await sleep(pause)
    }
  }

  /** Under the claim: `row` was read after it was made. */
  async function renew(row: Credential, knownVersion: number, isForced: boolean): Promise<Credential> {
    const login = table.row(row.provider)
    const late = unsaved.get(row.id)
    if (late?.version === row.version) return save(row, late.secret, late.expires_at)
    unsaved.delete(row.id)
    const isOthers = row.version !== knownVersion
    if (!isDue(row, login) && (isOthers || !isForced)) return row
    try {
      return await ask(row, login, isForced && !isOthers)
    } catch (thrown) {
      if (thrown instanceof Refused) return giveUp(row, thrown.failure)
      log.warn({ credential_id: row.id, provider: row.provider, err: thrown }, 'login not renewed')
      if (isForced || isSpent(row, SPARE_MS)) throw thrown
      return row
    }
  }

  async function ask(row: Credential, login: LoginRow, isForced: boolean): Promise<Credential> {
    const { vendor, settings } = login
    const secret = secretOf(row)
    const call = vendor.renew(settings, secret)
    if (!call) return withoutRenewal(row)
    assertNotPaused(row)
    const answer = await http.send(call).catch((thrown) => failed(row, thrown, 0))
    const tokens = answer.status < 300 ? vendor.readTokens(answer.body) : null
    if (!tokens?.access_token && !secret.access_token) throw refusalOf(row, login, answer)
    if (!tokens) throw refusalOf(row, login, answer)
    breakerOf(row).succeeded()
    paused.delete(row.id)
    const next = { ...secret, ...named(tokens) }
    const saved = await save(row, next, expiryOf(login, next, tokens, now()))
    if (isForced) forced.set(row.id, { version: saved.version, at: now() })
    log.info({ credential_id: row.id, provider: row.provider }, 'login renewed')
    return saved
  }

  /** A Refused, or what is worth another try later. */
  function refusalOf(row: Credential, { vendor }: LoginRow, answer: OAuthAnswer): Error {
    const failure: TokenFailure =
      answer.status < 300
        ? { isLasting: false, code: 'no_tokens', message: 'The answer held no tokens.' }
        : vendor.readFailure(answer)
    if (failure.isLasting) {
      breakerOf(row).succeeded()
      return new Refused(failure)
    }
    const { code, message } = failure
    const retryMs = retryAfterMs(answer, now())
    const error = new BatonError(
      answer.status === 429 ? 'upstream_rate_limited' : answer.status >= 500 ? 'upstream_overloaded' : 'upstream_rejected',
      `The provider did not renew the login (${code}). ${message}`.trim(),
      {
        details: { credential_id: row.id, upstream: { status: answer.status, code, message } },
        retryAfter: Math.ceil(retryMs / 1000),
      },
    )
    note(row, error, retryMs)
    return error
  }

  function failed(row: Credential, thrown: unknown, retryMs: number): never {
    if (thrown instanceof BatonError) note(row, thrown, retryMs)
    throw thrown
  }

  function note(row: Credential, error: BatonError, retryMs: number): void {
    breakerOf(row).failed(retryMs)
    paused.set(row.id, { until: now() + Math.max(retryMs, SHORTEST_PAUSE_MS), error })
  }

  function assertNotPaused(row: Credential): void {
    const pause = paused.get(row.id)
    if (pause && pause.until > now()) throw pause.error
    const waitMs = breakerOf(row).waitMs()
    if (waitMs === 0) return
    throw new BatonError(
      'upstream_overloaded',
      "The provider's login service failed several times in a row and is left alone for a while.",
      { retryAfter: Math.ceil(waitMs / 1000) },
    )
  }

  function breakerOf({ provider }: Credential): Breaker {
    const known = breakers.get(provider) ?? createBreaker({ now })
    breakers.set(provider, known)
    return known
  }

  /** The login has no refresh token: it serves until it ends. */
  async function withoutRenewal(row: Credential): Promise<Credential> {
    if (!isSpent(row, 0)) return row
    return giveUp(row, {
      isLasting: true,
      code: 'expired',
      message: 'The access token has ended and there is nothing to renew it with.',
    })
  }

  /** Before the new token is used it is stored: a rotated refresh token exists nowhere else. */
  async function save(row: Credential, secret: LoginSecret, expires_at: string | null): Promise<Credential> {
    unsaved.set(row.id, { version: row.version, secret, expires_at })
    const next = {
      secret: vault.seal(JSON.stringify(secret), `${row.owner}/${row.id}`),
      hint: (secret.access_token ?? '').slice(-4),
      expires_at,
      facts: { ...table.row(row.provider).vendor.identify(secret).facts, ...row.facts },
    }
    const isStored = await insisting(() => store.credentials.rotate(row.id, row.version, next))
    unsaved.delete(row.id)
    if (isStored) return { ...row, ...next, version: row.version + 1, updated_at: new Date(now()).toISOString() }
    // Somebody wrote it meanwhile; theirs holds.
    return usable(await store.credentials.get({ owner: row.owner, admin: false }, row.id), row.id)
  }

  async function insisting<T>(work: () => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries++) {
      try {
        return await work()
      } catch (thrown) {
        if (tries === 4) throw thrown
        await sleep(100 * 2 ** tries)
      }
    }
  }

  /** Unless another replica won: then its tokens are the ones. */
  async function giveUp(row: Credential, { code, message }: TokenFailure): Promise<Credential> {
    const reason = `${code}: ${message || 'The provider refuses to renew this login.'}`.slice(0, 500)
    await store.credentials.fail(row.id, row.version, reason)
    log.warn({ credential_id: row.id, provider: row.provider, code }, 'login needs a new sign-in')
    return usable(await store.credentials.get({ owner: row.owner, admin: false }, row.id), row.id)
  }

  /** The first use of a login whose setup was not run: one call for everybody who waits. */
  function complete(row: Credential, login: LoginRow): Promise<Credential> {
    if (!login.vendor.setup?.isNeeded(row.facts)) return Promise.resolve(row)
    const running = setups.get(row.id)
    if (running) return running
    const setup = setUpRow(row, login).finally(() => setups.delete(row.id))
    setups.set(row.id, setup)
    return setup
  }

  async function setUpRow(row: Credential, login: LoginRow): Promise<Credential> {
    const fresh = isDue(row, login) ? await renewed(row, false) : row
    const accessToken = secretOf(fresh).access_token ?? ''
    const found = await setUp(login, { accessToken, facts: fresh.facts }, { http, sleep })
    const next = { ...fresh, facts: { ...fresh.facts, ...found } }
    const isStored = await store.credentials.rotate(fresh.id, fresh.version, next)
    if (isStored) return { ...next, version: fresh.version + 1 }
    // A renewal came between; the next use finds the same facts again.
    return { ...next, version: fresh.version }
  }

  async function open(row: Credential): Promise<OpenLogin> {
    const login = table.row(row.provider)
    let current = await complete(usable(row, row.id), login)
    return {
      facts: current.facts,
      async secret() {
        if (isDue(current, login)) current = await renewed(current, false)
        const { access_token } = secretOf(current)
        return access_token === undefined ? {} : { access_token }
      },
      async onUnauthorized() {
        const last = forced.get(current.id)
        if (last?.version === current.version && now() - last.at < FORCED_MS) return false
        const next = await renewed(current, true)
        const isOther = next.version !== current.version
        current = next
        return isOther
      },
    }
  }

  async function tend(): Promise<number> {
    const kept = table.keptAlive()
    if (kept.providers.length === 0) return 0
    const due = await store.logins.due(kept.providers, kept.aheadSeconds, MOST_PER_ROUND)
    let count = 0
    for (const { id, owner } of due) {
      const row = await store.credentials.get({ owner, admin: false }, id)
      if (row?.state !== 'active' || (paused.get(id)?.until ?? 0) > now()) continue
      // What fails is logged where it fails, and tried again when its pause is over.
      const next = await renewed(row, false).catch(() => row)
      if (next.version !== row.version) count++
    }
    return count
  }

  const tending = createTimer(deps.tendMs ?? 60_000, tend, log)
  return {
    open,
    tend,
    async close() {
      await tending.stop()
      await Promise.allSettled([...renewals.values()])
    },
  }
}
