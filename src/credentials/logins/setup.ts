/**
 * What a vendor wants to know, or to have done, before a login can be used. The account's facts are found once and
 * kept.
 */
import { isRecord } from '../../chat/json.ts'
import { BatonError } from '../../errors.ts'
import type { LoginSecret } from '../../oauth-vendor.ts'
import type { Credential, Store } from '../../store/store.ts'
import type { OAuthHttp } from '../oauth-http.ts'
import type { LoginRenewer } from '../renew-login.ts'
import { shared } from '../renew-once.ts'
import { openSecret, sealSecret, type Vault } from '../vault.ts'
import type { ConfiguredVendor } from './vendors.ts'

/**
 * Runs a vendor's steps between the tokens of a login and a credential that can be used: the facts found, to be added
 * to the credential's. Throws a BatonError for an account that cannot be used.
 */
export async function setUp(
  { vendor, settings }: ConfiguredVendor,
  secret: LoginSecret,
  facts: Readonly<Record<string, string>>,
  { http, sleep }: { http: OAuthHttp; sleep(ms: number): Promise<unknown> },
): Promise<Record<string, string>> {
  if (!vendor.setup) return {}
  const steps = vendor.setup.steps(settings, secret.access_token ?? '', facts)
  let step = steps.next()
  while (!step.done) {
    const { call, afterMs } = step.value
    if (afterMs > 0) await sleep(afterMs)
    step = steps.next(await http.send(call))
  }
  return step.value
}

interface SetupDeps {
  store: Pick<Store, 'credentials'>
  vault: Pick<Vault, 'seal' | 'open'>
  http: OAuthHttp
  sleep(ms: number): Promise<unknown>
  renewer: Pick<LoginRenewer, 'fresh' | 'renewed' | 'reread'>
}

/** A setup that failed is not tried again with every turn. */
const PAUSE_MS = 30_000

/** Sets up logins that were stored without a setup: at their first use, by one call for everybody who waits for it. */
export function createSetups({ store, vault, http, sleep, renewer }: SetupDeps) {
  const running = new Map<string, Promise<Credential>>()

  async function setUpNow(row: Credential, configured: ConfiguredVendor): Promise<Credential> {
    const { setup } = configured.vendor
    const stored = await renewer.reread(row)
    if (!setup?.isNeeded(stored.facts)) return stored
    const { ready, found } = await foundWith(await renewer.fresh(stored), configured)
    // Sealed anew: a re-encryption since must not be undone.
    const sealed = sealSecret(vault, ready, openSecret<LoginSecret>(vault, ready))
    const next = { ...ready, secret: sealed, facts: { ...ready.facts, ...found } }
    const isStored = await store.credentials.rotate(ready.id, ready.version, next)
    // Not stored: a renewal came between, and the next use finds the same facts once more.
    return isStored ? { ...next, version: ready.version + 1 } : next
  }

  /** A token may be spent though nobody said when it ends: as in a turn, it is renewed and tried once more. */
  async function foundWith(row: Credential, configured: ConfiguredVendor) {
    const found = (ready: Credential) =>
      setUp(configured, openSecret<LoginSecret>(vault, ready), ready.facts, { http, sleep })
    try {
      return { ready: row, found: await found(row) }
    } catch (thrown) {
      if (!isTokenRefused(thrown)) throw thrown
      const ready = await renewer.renewed(row)
      if (ready.version === row.version) throw thrown
      return { ready, found: await found(ready) }
    }
  }

  return {
    /** The credential, set up if it was not yet. Throws what `setUp` does, and what kept its token from being renewed. */
    async complete(row: Credential, configured: ConfiguredVendor): Promise<Credential> {
      if (!configured.vendor.setup?.isNeeded(row.facts)) return row
      return shared(running, row.id, () => setUpNow(row, configured), PAUSE_MS)
    },
    underWay: () => running.values(),
  }
}

const isTokenRefused = (thrown: unknown): boolean =>
  thrown instanceof BatonError &&
  thrown.code === 'upstream_auth' &&
  isRecord(thrown.details?.upstream) &&
  thrown.details.upstream.status === 401
