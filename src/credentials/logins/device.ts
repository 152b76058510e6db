/**
 * Device logins: asks the vendor every few seconds whether a person has granted them. Whichever replica
 * started one, or is asked for its status, takes part; a place in the row keeps the vendor's pace for all
 * of them together, and lapses with a replica that dies.
 */
import type { Logger } from 'pino'
import { BatonError, isUnavailable } from '../../errors.ts'
import type { DeviceGrant } from '../../oauth-vendor.ts'
import type { OAuthLogin, OAuthLogins } from '../../store/store.ts'
import type { OAuthHttp } from '../oauth-http.ts'
import type { Vendors } from './vendors.ts'

interface Devices {
  /** Asks until the login is granted, refused or expired. Does nothing for a login that is watched already. */
  watch(login: OAuthLogin, grant: DeviceGrant): void
  close(): Promise<void>
}
export interface DevicesDeps {
  rows: OAuthLogins
  vendors: Vendors
  http: OAuthHttp
  log: Logger
  /** Rejects when the signal is aborted */
  sleep(ms: number, signal: AbortSignal): Promise<unknown>
  granted(login: OAuthLogin, answer: { code: string; verifier: string }): Promise<unknown>
  /** If the poll was slow, another replica may have been granted the login meanwhile: then its end counts. */
  refused(login: OAuthLogin, why: BatonError): Promise<unknown>
}

type Outcome = 'pending' | 'too_fast' | 'over'

/** How much slower polls become after one that was too fast (RFC 8628 section 3.5). */
const SLOWER_SECONDS = 5

export function createDevices({ rows, vendors, http, log, sleep, granted, refused }: DevicesDeps): Devices {
  const watched = new Map<string, Promise<void>>()
  const closing = new AbortController()

  async function run(hash: string, grant: DeviceGrant): Promise<void> {
    let seconds = grant.intervalSeconds
    while (!closing.signal.aborted) {
      await sleep(seconds * 1000, closing.signal)
      const poll = await round(hash, grant, seconds).catch(whileAway)
      if (poll === 'over') return
      if (poll === 'too_fast') seconds += SLOWER_SECONDS
    }
  }

  async function round(hash: string, grant: DeviceGrant, seconds: number): Promise<Outcome> {
    // A little less, so that this replica's own next round finds the place free.
    const login = await rows.poll(hash, seconds * 0.9)
    if (login) return ask(login, grant)
    const seen = await rows.get(hash)
    return seen?.state === 'pending' && !seen.is_expired ? 'pending' : 'over'
  }

  async function ask(login: OAuthLogin, grant: DeviceGrant): Promise<Outcome> {
    const { vendor, settings } = vendors.get(login.provider)
    if (!vendor.device) return 'over'
    const answer = await http.send(vendor.device.poll(settings, grant)).catch((err: unknown) => {
      log.debug({ err, provider: login.provider }, 'a device login could not be polled')
      return null
    })
    if (!answer) return 'pending'
    try {
      const poll = vendor.device.readPoll(answer)
      if (poll.state === 'pending') return poll.isTooFast ? 'too_fast' : 'pending'
      await granted(login, poll)
    } catch (thrown) {
      if (!(thrown instanceof BatonError)) throw thrown
      await refused(login, thrown)
    }
    return 'over'
  }

  return {
    watch({ state_hash, provider }, grant) {
      if (watched.has(state_hash) || closing.signal.aborted) return
      const watch = run(state_hash, grant)
        .catch((err: unknown) => {
          if (!closing.signal.aborted) log.warn({ err, provider }, 'a device login is no longer watched')
        })
        .finally(() => watched.delete(state_hash))
      watched.set(state_hash, watch)
    },
    async close() {
      closing.abort()
      await Promise.all(watched.values())
    },
  }
}

/** While the store is away nobody knows what became of the login: the login is looked at again. */
function whileAway(thrown: unknown): Outcome {
  if (isUnavailable(thrown)) return 'pending'
  throw thrown
}
