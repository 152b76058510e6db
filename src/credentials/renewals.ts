/**
 * Keeps logins at providers alive: an access token is renewed ahead of its end and after a refusal, by one caller at a
 * time (renew-once.ts). What a vendor refuses for good ends in `needs_reauth` with the reason, everything else is left
 * for later.
 */
import { setTimeout as sleepFor } from 'node:timers/promises'
import type { Logger } from 'pino'
import { BoundedMap } from '../bounded-map.ts'
import { BatonError } from '../errors.ts'
import type { LoginSecret, TokenFailure } from '../oauth-vendor.ts'
import type { CredentialFacts, CredentialSecret } from '../provider.ts'
import type { Credential, Store } from '../store/store.ts'
import { createSetups } from './logins/setup.ts'
import type { LoginRow, LoginTable } from './logins/table.ts'
import type { OAuthHttp } from './oauth-http.ts'
import { insist, shared, underClaim } from './renew-once.ts'
import { createTokenEndpoints, LoginRefused, type Renewed } from './token-endpoints.ts'
import { hintOf, openSecret, sealSecret, type Vault } from './vault.ts'

/** A login as a turn uses it. */
interface OpenLogin {
  /** The facts with what the login's setup finds; one call to the vendor if it was never set up. */
  complete(): Promise<CredentialFacts>
  /** Fresh. Throws credential_needs_reauth, or what kept it from being renewed. */
  secret(): Promise<CredentialSecret>
  /** After a 401: whether there is another token to try with. Throws as `secret`. */
  onUnauthorized(): Promise<boolean>
}
/** Renews logins: for turns that use them, and on its own for those that nobody uses. */
export interface Renewals {
  /** Throws oauth_not_enabled. */
  open(row: Credential): OpenLogin
  /** Renews what ends soon although nobody uses it; how many. The timer's work. */
  tend(): Promise<number>
  /** Stops the timer and waits for renewals under way, so that no new token is lost. */
  close(): Promise<void>
}

interface RenewalsDeps {
  store: Pick<Store, 'credentials'>
  vault: Pick<Vault, 'seal' | 'open'>
  table: LoginTable
  http: OAuthHttp
  log: Logger
  /** Milliseconds between two rounds of `tend`; 0: no timer */
  tendMs?: number
  /** How long a claim outlives its owner. Longer than a call to a token endpoint may take. */
  claimSeconds?: number
  now?(): number
  sleep?(ms: number, signal?: AbortSignal): Promise<unknown>
}

/** A token that still lasts this long serves while its renewal has to wait. */
const SPARE_MS = 10_000
/** A token that was refused right after a forced renewal is not renewed again so soon: that is no cure. */
const FORCED_MS = 300_000
/** Without its note such a token is renewed once too often. */
const MOST_FORCED = 10_000
const MOST_PER_ROUND = 200

export function createRenewals(deps: RenewalsDeps): Renewals {
  const { store, vault, table, http, log } = deps
  const now = deps.now ?? Date.now
  const uptime = deps.now ?? (() => performance.now())
  const sleep = deps.sleep ?? ((ms, signal) => sleepFor(ms, undefined, signal && { signal }))
  const claimSeconds = deps.claimSeconds ?? 30
  const endpoints = createTokenEndpoints({ http, now, uptime })
  const running = new Map<string, Promise<Credential>>()
  const forced = new BoundedMap<{ version: number; at: number }>(MOST_FORCED)
  const ending = new AbortController()

  const secretOf = (row: Credential) => openSecret<LoginSecret>(vault, row)
  const reread = async ({ id, owner }: Pick<Credential, 'id' | 'owner'>) =>
    usable(await store.credentials.get({ owner, admin: false }, id), id)

  const fresh = (row: Credential, login: LoginRow) =>
    isDue(row, login, now()) ? renew(row, false) : Promise.resolve(row)
  const renewed = (row: Credential) => renew(row, true)
  const setups = createSetups({ store, vault, http, sleep, reread, fresh, renewed })

  function renew(row: Credential, isForced: boolean): Promise<Credential> {
    return shared(running, row.id, () => claimed(row, isForced))
  }

  /** Renews it, or takes over what another replica made of it. */
  function claimed(row: Credential, isForced: boolean): Promise<Credential> {
    const until = now() + (claimSeconds + 10) * 1000
    return underClaim(store.credentials, {
      id: row.id,
      seconds: claimSeconds,
      sleep,
      work: (held) => renewHeld(held, row.version, isForced),
      async elsewhere() {
        const seen = await reread(row)
        if (seen.version !== row.version || (!isForced && !isSpent(seen, SPARE_MS, now()))) return seen
        if (now() <= until) return null
        const words = `Credential ${row.id} is being renewed by another process.`
        throw new BatonError('unavailable', words, { retryAfter: 2 })
      },
    })
  }

  /** `row` was read as the claim was made; `known` is the version that the caller had. */
  async function renewHeld(row: Credential, known: number, isForced: boolean): Promise<Credential> {
    const login = table.row(row.provider)
    usable(row, row.id)
    const isRefused = isForced && row.version === known
    if (!isRefused && !isDue(row, login, now())) return row
    try {
      return await ask(row, login, isRefused)
    } catch (thrown) {
      if (thrown instanceof LoginRefused) return giveUp(row, thrown.failure)
      log.warn({ credential_id: row.id, provider: row.provider, err: thrown }, 'login not renewed')
      if (isRefused || isSpent(row, SPARE_MS, now())) throw thrown
      return row
    }
  }

  async function ask(row: Credential, login: LoginRow, isRefused: boolean): Promise<Credential> {
    const secret = secretOf(row)
    const call = login.vendor.renew(login.settings, secret)
    if (!call) {
      if (isSpent(row, 0, now())) throw new LoginRefused(SPENT)
      return row
    }
    const renewed = await endpoints.renew(login, row.id, secret, call)
    // The old token stays, and so does its end.
    const saved = await save(row, renewed.problem ? { ...renewed, expires_at: row.expires_at } : renewed)
    if (renewed.problem && isSpent(saved, SPARE_MS, now())) throw renewed.problem
    if (isRefused) forced.put(saved.id, { version: saved.version, at: uptime() })
    log.info({ credential_id: row.id, provider: row.provider }, 'login renewed')
    return saved
  }

  async function save(row: Credential, { secret, expires_at }: Renewed): Promise<Credential> {
    const next = {
      secret: sealSecret(vault, row, secret),
      hint: secret.access_token ? hintOf(secret.access_token) : row.hint,
      expires_at,
      facts: { ...table.row(row.provider).vendor.identify(secret).facts, ...row.facts },
    }
    // The claim may lapse meanwhile, and a sibling find the spent token dead: these make the login active again.
    const write = () => store.credentials.rotate(row.id, row.version, next)
    const isStored = await insist(write, sleep, ending.signal)
    // Otherwise somebody wrote it meanwhile, and theirs holds.
    return isStored
      ? { ...row, ...next, version: row.version + 1, updated_at: new Date(now()).toISOString() }
      : reread(row)
  }

  /** Unless a sibling won meanwhile: then its tokens are the ones. */
  async function giveUp(row: Credential, failure: TokenFailure): Promise<Credential> {
    const { code } = failure
    // That it has ended is only what the clock here says, which may be ahead: a person would have to log in for that.
    const ended = failure === SPENT ? 'ended' : undefined
    const isOver = await store.credentials.fail(row.id, row.version, reasonOf(failure), ended)
    if (isOver) log.warn({ credential_id: row.id, provider: row.provider, code }, 'login needs a new sign-in')
    return reread(row)
  }

  function open(row: Credential): OpenLogin {
    const login = table.row(row.provider)
    let current = row
    return {
      async complete() {
        current = await setups.complete(current, login)
        const { path: _, ...facts } = current.facts
        return { id: current.id, ...facts }
      },
      async secret() {
        current = await fresh(current, login)
        const { access_token } = secretOf(current)
        return access_token === undefined ? {} : { access_token }
      },
      async onUnauthorized() {
        const last = forced.get(current.id)
        if (last?.version === current.version && uptime() - last.at < FORCED_MS) return false
        const { version } = current
        current = await renew(current, true)
        return current.version !== version
      },
    }
  }

  async function tend(): Promise<number> {
    const { providers, aheadSeconds } = table.keptAlive()
    if (providers.length === 0) return 0
    let count = 0
    for (const { id, owner } of await store.credentials.due(providers, aheadSeconds, MOST_PER_ROUND)) {
      const row = await store.credentials.get({ owner, admin: false }, id)
      if (row?.state !== 'active' || endpoints.isPaused(id)) continue
      // A failure is logged where it happens, and tried again once its pause is over.
      const next = await renew(row, false).catch(() => row)
      if (next.version !== row.version) count++
    }
    return count
  }

  const timer = repeat(deps.tendMs ?? 60_000, tend, log)
  return {
    open,
    tend,
    async close() {
      ending.abort()
      await timer.stop()
      await Promise.allSettled([...running.values(), ...setups.underWay()])
    },
  }
}

const isSpent = ({ expires_at }: Credential, spareMs: number, now: number): boolean =>
  expires_at !== null && Date.parse(expires_at) - now <= spareMs

function isDue(row: Credential, { vendor }: LoginRow, now: number): boolean {
  const { renewAheadSeconds, renewAfterSeconds } = vendor
  const updated = Date.parse(row.updated_at)
  if (row.expires_at === null) return renewAfterSeconds !== null && now - updated > renewAfterSeconds * 1000
  // Of one that was renewed its life is known: a short one must not be due as soon as it is born.
  const life = Math.max(0, Date.parse(row.expires_at) - updated)
  const ahead = row.version === 1 ? Number.POSITIVE_INFINITY : life / 4
  return isSpent(row, Math.min(renewAheadSeconds * 1000, ahead), now)
}

const SPENT: TokenFailure = {
  isLasting: true,
  code: 'expired',
  message: 'The access token has ended and there is nothing to renew it with.',
}

function reasonOf({ code, message, wasSpent }: TokenFailure): string {
  const words = (message || 'The provider refuses to renew this login').replace(/[.\s]+$/, '').slice(0, 300)
  const cause = wasSpent
    ? ' Its refresh token was used already: by another program that shares the login, or by a renewal that was lost before it was stored.'
    : ''
  return `${code}: ${words}.${cause}`
}

/** With the reason in its words, where there is one. */
export const needsReauth = ({ id, reason }: Pick<Credential, 'id' | 'reason'>): BatonError =>
  new BatonError(
    'credential_needs_reauth',
    `Credential ${id} needs a new login${reason ? ` (${reason})` : ''}.`,
    { details: { credential_id: id } },
  )

/** The credential, if a turn may use it. Throws credential_needs_reauth, no_credential. */
export function usable(row: Credential | null, id: string): Credential {
  if (row?.state === 'active') return row
  if (row?.state === 'needs_reauth') throw needsReauth(row)
  throw new BatonError(
    'no_credential',
    `Credential ${id} ${row ? 'is disabled' : 'does not exist any more'}.`,
    {
      details: { credential_id: id },
    },
  )
}

/** Does the work again and again, never twice at once; keeps no process alive. */
function repeat(ms: number, work: () => Promise<unknown>, log: Logger): { stop(): Promise<void> } {
  if (ms === 0) return { stop: async () => {} }
  let round: Promise<unknown> | null = null
  const timer = setInterval(() => {
    round ??= work()
      .catch((err: unknown) => log.warn({ err }, 'logins could not be tended'))
      .finally(() => {
        round = null
      })
  }, ms).unref()
  return {
    async stop() {
      clearInterval(timer)
      await round
    },
  }
}
