/**
 * Keeps logins at providers alive: each is renewed before its token expires and after a refusal (renew-login.ts), for
 * turns that use it, and on a timer if nobody does.
 */
import type { LoginSecret } from '../oauth-vendor.ts'
import type { CredentialFacts, CredentialSecret } from '../provider.ts'
import type { Credential } from '../store/store.ts'
import { repeat } from '../within.ts'
import { createSetups } from './logins/setup.ts'
import { AHEAD_SECONDS, createLoginRenewer, type LoginRenewerDeps } from './renew-login.ts'
import { sleepFor, type Timing } from './renew-once.ts'
import { openSecret } from './vault.ts'

/** A login as a turn uses it. */
interface OpenLogin {
  /** The facts with those that the login's setup finds; asks the vendor if the login was never set up. */
  complete(): Promise<CredentialFacts>
  /** A fresh token. Throws credential_needs_reauth, or what kept the token from being renewed. */
  secret(): Promise<CredentialSecret>
  /** After a 401: whether there is another token to try with. Throws as `secret`. */
  onUnauthorized(): Promise<boolean>
}
/** Renews logins: for turns that use them, and on its own for those that nobody uses. */
export interface Renewals {
  /** Throws oauth_not_enabled. */
  open(row: Credential): OpenLogin
  /** Throws credential_needs_reauth if the login's token has expired and nothing renews it; oauth_not_enabled. */
  assertRenewable(row: Credential): Promise<void>
  /** Renews idle logins whose tokens expire soon; returns how many. The timer calls it. */
  tend(): Promise<number>
  /** Stops renewing on its own, and waits for renewals under way, so that no new token is lost. */
  close(): Promise<void>
}

interface RenewalsDeps extends Omit<LoginRenewerDeps, keyof Timing>, Partial<Pick<Timing, 'now' | 'sleep'>> {
  /** Between two rounds of `tend` */
  tendMs?: number
}

const TEND_MS = 60_000

export function createRenewals(deps: RenewalsDeps): Renewals {
  const { store, vault, vendors, http, log, sleep = sleepFor } = deps
  const now = deps.now ?? Date.now
  const uptime = deps.now ?? (() => performance.now())
  const ending = new AbortController()
  const { signal } = ending
  const renewer = createLoginRenewer({ ...deps, now, uptime, sleep, ending: signal })
  const setups = createSetups({ store, vault, http, sleep: (ms) => sleep(ms, signal), renewer })

  function open(row: Credential): OpenLogin {
    const configured = vendors.get(row.provider)
    let current = row
    return {
      async complete() {
        current = await setups.complete(current, configured)
        const { path: _, ...facts } = current.facts
        return { id: current.id, ...facts }
      },
      async secret() {
        current = await renewer.fresh(current)
        const { access_token } = openSecret<LoginSecret>(vault, current)
        return access_token === undefined ? {} : { access_token }
      },
      async onUnauthorized() {
        const { version } = current
        current = await renewer.renewed(current)
        return current.version !== version
      },
    }
  }

  async function tend(): Promise<number> {
    const providers = vendors.keptAlive()
    if (providers.length === 0) return 0
    let count = 0
    // All that are due: logins that fail again and again would fill any limited number.
    for (const { id, owner } of await store.credentials.due(providers, AHEAD_SECONDS)) {
      // The process would end in the middle of a renewal.
      if (signal.aborted) break
      const row = await store.credentials.get({ owner, admin: false }, id)
      if (row?.state !== 'active' || renewer.isPaused(id)) continue
      // A failure is logged where it happens, and tried again once its pause is over.
      const next = await renewer.renewedIfDue(row).catch(() => row)
      if (next.version !== row.version) count++
    }
    return count
  }

  const rounds = repeat(deps.tendMs ?? TEND_MS, () =>
    tend().catch((err: unknown) => log.warn({ err }, 'idle logins could not be renewed')),
  )
  return {
    open,
    assertRenewable: renewer.assertRenewable,
    tend,
    async close() {
      ending.abort()
      await rounds.stop()
      await Promise.allSettled([...renewer.underWay(), ...setups.underWay()])
    },
  }
}
