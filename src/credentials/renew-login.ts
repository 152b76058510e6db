/**
 * Renews one login at a provider, by one caller at a time (renew-once.ts). A final refusal by the vendor ends in
 * `needs_reauth` with the reason; any other failure is left for later.
 */
import type { Logger } from 'pino'
import { BoundedMap } from '../bounded-map.ts'
import { BatonError, inFull } from '../errors.ts'
import type { LoginSecret, OAuthCall, TokenFailure } from '../oauth-vendor.ts'
import type { Credential, Store } from '../store/store.ts'
import { within } from '../within.ts'
import type { ConfiguredVendor, Vendors } from './logins/vendors.ts'
import type { OAuthHttp } from './oauth-http.ts'
import { CURE_MS, insist, PATIENCE_MS, SPARE_MS, shared, type Timing, underClaim } from './renew-once.ts'
import { createTokenEndpoints, LoginRefused, type Renewed } from './token-endpoints.ts'
import { hintOf, openSecret, sealSecret, type Vault } from './vault.ts'

/** Verbs that return a row return it as it is afterwards, and throw credential_needs_reauth or no_credential. */
export interface LoginRenewer {
  /**
   * Renews the login if its token expires soon. Throws what kept it from being renewed, unless the token is still
   * valid.
   */
  renewedIfDue(row: Credential): Promise<Credential>
  /**
   * The same for a caller who waits to use the token: while a slow renewal goes on, a token that is still valid serves.
   */
  fresh(row: Credential): Promise<Credential>
  /**
   * Renews a login whose token was refused. If the version is the same, there is no other token, or the refused one came
   * a moment ago in place of another: then renewing is no cure. Throws what kept it from being renewed.
   */
  renewed(row: Credential): Promise<Credential>
  /** Throws if the login's token has expired and nothing renews it. Asks no vendor. */
  assertRenewable(row: Credential): Promise<void>
  /** The row as it is stored now. */
  reread(row: Pick<Credential, 'id' | 'owner'>): Promise<Credential>
  /** Whether the login's last renewal failed a moment ago. */
  isPaused(id: string): boolean
  underWay(): Iterable<Promise<unknown>>
}

export interface LoginRenewerDeps extends Timing {
  store: Pick<Store, 'credentials'>
  vault: Pick<Vault, 'seal' | 'open'>
  vendors: Vendors
  http: OAuthHttp
  log: Logger
  /** How long a claim outlives its owner. Longer than a call to a token endpoint may take. Default 30 */
  claimSeconds?: number
}

/** Why a renewal is begun. */
interface Occasion {
  /** The token was refused; otherwise it ends soon */
  isRefused: boolean
  /** Another process, which this one waited for, tried it and failed */
  wasTried: boolean
}

/**
 * Most logins. Beyond that, a token that is refused in spite of its renewal may be renewed once too often, and a
 * failure logged again.
 */
const MOST_REMEMBERED = 10_000

export function createLoginRenewer(deps: LoginRenewerDeps): LoginRenewer {
  const { store, vault, vendors, http, log, claimSeconds = 30, now, uptime, sleep, ending } = deps
  const endpoints = createTokenEndpoints({ http, now, uptime })
  const running = new Map<string, Promise<Credential>>()
  const cured = new BoundedMap<{ version: number; at: number }>(MOST_REMEMBERED)
  /** The failure of each login that the log has: a login that cannot be opened any more fails every minute. */
  const told = new BoundedMap<string>(MOST_REMEMBERED)

  const reread: LoginRenewer['reread'] = async ({ id, owner }) =>
    usable(await store.credentials.get({ owner, admin: false }, id), id)

  /** `refused`: the version whose token was refused; null: none was. */
  function renew(row: Credential, refused: number | null): Promise<Credential> {
    return shared(running, row.id, () => claimed(row, refused))
  }

  /** Renews the login, or takes it over as another replica has renewed it. */
  function claimed(row: Credential, refused: number | null): Promise<Credential> {
    return underClaim(store.credentials, deps, {
      id: row.id,
      seconds: claimSeconds,
      // A process that dies keeps its claim to the end, and the next one may need as long.
      patience: 2 * claimSeconds,
      work: (held, wasTried) => renewHeld(held, { isRefused: held.version === refused, wasTried }),
      async elsewhere() {
        const seen = await reread(row)
        const isOver = seen.version !== row.version || (refused === null && !isSpent(seen, SPARE_MS, now()))
        return isOver ? seen : null
      },
      busy: () => {
        const words = `Credential ${row.id} is being renewed by another process.`
        return new BatonError('unavailable', words, { retryAfter: 2 })
      },
    })
  }

  /** `row` was read as the claim was made. */
  async function renewHeld(row: Credential, occasion: Occasion): Promise<Credential> {
    const configured = vendors.get(row.provider)
    usable(row, row.id)
    const { isRefused } = occasion
    if (!isRefused && !isDue(row, configured, now())) return row
    try {
      return await ask(row, configured, occasion)
    } catch (thrown) {
      if (thrown instanceof LoginRefused) return giveUp(row, thrown.failure)
      tellFailure(row, thrown)
      if (isRefused || isSpent(row, SPARE_MS, now())) throw thrown
      return row
    }
  }

  function tellFailure({ id, provider, version }: Credential, err: unknown): void {
    const failure = `${version} ${inFull(err)}`
    if (told.get(id) !== failure) log.warn({ credential_id: id, provider, err }, 'login not renewed')
    told.put(id, failure)
  }

  async function ask(
    row: Credential,
    configured: ConfiguredVendor,
    { isRefused, wasTried }: Occasion,
  ): Promise<Credential> {
    const secret = openSecret<LoginSecret>(vault, row)
    const call = renewalOf(configured, secret)
    if (!call) {
      if (isSpent(row, 0, now())) throw new LoginRefused(SPENT)
      return row
    }
    if (wasTried) throw endpoints.failedElsewhere(row.id)
    const renewed = await endpoints.renew(configured, row.id, secret, call)
    // The old token stays, and so does its end.
    const saved = await save(row, renewed.problem ? { ...renewed, expires_at: row.expires_at } : renewed)
    if (renewed.problem) throw renewed.problem
    if (isRefused) cured.put(saved.id, { version: saved.version, at: uptime() })
    log.info({ credential_id: row.id, provider: row.provider }, 'login renewed')
    return saved
  }

  async function save(row: Credential, { secret, expires_at }: Renewed): Promise<Credential> {
    const next = {
      secret: sealSecret(vault, row, secret),
      hint: secret.access_token ? hintOf(secret.access_token) : row.hint,
      expires_at,
      facts: { ...vendors.get(row.provider).vendor.identify(secret).facts, ...row.facts },
    }
    // The claim may lapse meanwhile, and a sibling may find the spent token dead: these tokens make the login active
    // again.
    const write = () => store.credentials.rotate(row.id, row.version, next)
    const isStored = await insist(write, sleep, ending)
    // Otherwise somebody wrote the row meanwhile, and what they wrote holds.
    return isStored
      ? { ...row, ...next, version: row.version + 1, updated_at: new Date(now()).toISOString() }
      : reread(row)
  }

  /** Ends the login, unless a sibling has stored new tokens meanwhile: then those hold. */
  async function giveUp(row: Credential, failure: TokenFailure): Promise<Credential> {
    const { code } = failure
    // Only the clock here says that the token has expired, and it may be ahead: a person would have to log in for that.
    const ended = failure === SPENT ? 'ended' : undefined
    const isOver = await store.credentials.fail(row.id, row.version, reasonOf(failure), ended)
    if (isOver) log.warn({ credential_id: row.id, provider: row.provider, code }, 'login needs a new sign-in')
    return reread(row)
  }

  const renewedIfDue: LoginRenewer['renewedIfDue'] = async (row) =>
    isDue(row, vendors.get(row.provider), now()) ? renew(row, null) : row

  return {
    renewedIfDue,
    async assertRenewable(row) {
      if (!isSpent(row, 0, now())) return
      const secret = openSecret<LoginSecret>(vault, row)
      if (whySpent(row, vendors.get(row.provider), secret, now()) !== null) await giveUp(row, SPENT)
    },
    fresh: async (row) => {
      const renewal = renewedIfDue(row)
      return isSpent(row, SPARE_MS, now()) ? renewal : ((await within(PATIENCE_MS, renewal)) ?? row)
    },
    async renewed(row) {
      const { id, version } = row
      const last = cured.get(id)
      const isCured = last?.version === version && uptime() - last.at < CURE_MS
      // A sibling may have renewed it since.
      return isCured ? reread(row) : renew(row, version)
    },
    reread,
    isPaused: endpoints.isPaused,
    underWay: () => running.values(),
  }
}

/** If the operator has configured no client, that is no mistake of the caller, who only uses the login. */
function renewalOf({ vendor, settings }: ConfiguredVendor, secret: LoginSecret): OAuthCall | null {
  try {
    return vendor.renew(settings, secret)
  } catch (thrown) {
    const isClient = thrown instanceof BatonError && thrown.code === 'invalid_request'
    throw isClient ? new BatonError('upstream_auth', thrown.message) : thrown
  }
}

/** Whether the login's token expires within `spareMs`. */
const isSpent = ({ expires_at }: Pick<Credential, 'expires_at'>, spareMs: number, now: number): boolean =>
  expires_at !== null && Date.parse(expires_at) - now <= spareMs

/** A login is renewed this long before its access token expires. */
export const AHEAD_SECONDS = 300

/** Whether the login's token expires soon; if nothing says when, whether it is as old as its vendor lets one become. */
function isDue(row: Credential, { vendor }: ConfiguredVendor, now: number): boolean {
  const { renewAfterSeconds } = vendor
  const updated = Date.parse(row.updated_at)
  if (row.expires_at === null) return renewAfterSeconds !== null && now - updated > renewAfterSeconds * 1000
  // The life of a renewed token is known: a short-lived one must not be due as soon as it is there.
  const life = Date.parse(row.expires_at) - updated
  const ahead = row.version === 1 ? Number.POSITIVE_INFINITY : life / 4
  return isSpent(row, Math.min(AHEAD_SECONDS * 1000, ahead), now)
}

const SPENT: TokenFailure = {
  isLasting: true,
  code: 'expired',
  message: 'The access token has ended and there is nothing to renew it with.',
}

/**
 * Why a login of this secret serves no turn any more: its token has expired and nothing renews it. Null: it may serve.
 */
export function whySpent(
  row: Pick<Credential, 'expires_at'>,
  { vendor, settings }: ConfiguredVendor,
  secret: LoginSecret,
  now = Date.now(),
): string | null {
  if (!isSpent(row, 0, now)) return null
  try {
    return vendor.renew(settings, secret) === null ? reasonOf(SPENT) : null
  } catch {
    // The login has what renews it: only the operator's client is missing.
    return null
  }
}

function reasonOf({ code, message, wasSpent }: TokenFailure): string {
  const words = (message || 'The provider refuses to renew this login').replace(/[.\s]+$/, '').slice(0, 300)
  const cause = wasSpent
    ? ' Its refresh token was used already: by another program that shares the login, or by a renewal that was lost before it was stored.'
    : ''
  return `${code}: ${words}.${cause}`
}

/** The error of a login that only a person can renew, with the reason if there is one. */
export const needsReauth = ({ id, reason }: Pick<Credential, 'id' | 'reason'>): BatonError =>
  new BatonError(
    'credential_needs_reauth',
    `Credential ${id} needs a new login${reason ? ` (${reason})` : ''}.`,
    { details: { credential_id: id } },
  )

/** The credential, if a turn may use it. Throws credential_needs_reauth, no_credential. */
function usable(row: Credential | null, id: string): Credential {
  if (row?.state === 'active') return row
  if (row?.state === 'needs_reauth') throw needsReauth(row)
  const words = `Credential ${id} ${row ? 'is disabled' : 'does not exist any more'}.`
  throw new BatonError('no_credential', words, { details: { credential_id: id } })
}
