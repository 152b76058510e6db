/**
 * Asks a vendor's token endpoint to renew a login and says what came of it. It keeps a failing endpoint from being
 * hammered: a pause for the login that failed, a circuit breaker for the vendor. It stores nothing.
 */
import { BatonError, type ErrorCode } from '../errors.ts'
import { retryAfterMs } from '../foreign.ts'
import type { LoginSecret, OAuthAnswer, OAuthCall, TokenFailure } from '../oauth-vendor.ts'
import { type Breaker, createBreaker } from './breaker.ts'
import type { ConfiguredVendor } from './logins/vendors.ts'
import type { OAuthHttp } from './oauth-http.ts'
import { createPauses, LONGEST_PAUSE_MS } from './pauses.ts'
import type { Timing } from './renew-once.ts'
import { endOf, failureOf, merged, NO_TOKENS, readTokens } from './token-answer.ts'

/** The vendor's final word on a login: only a new one helps. */
export class LoginRefused extends Error {
  readonly failure: TokenFailure
  constructor(failure: TokenFailure) {
    super(failure.code)
    this.name = 'LoginRefused'
    this.failure = failure
  }
}

/** What a renewal brought, to be stored. */
export interface Renewed {
  secret: LoginSecret
  /** RFC 3339; null: the vendor does not say */
  expires_at: string | null
  /** The answer held other tokens, but no access token: what to say if the old one is spent */
  problem?: BatonError
}
interface TokenEndpoints {
  /** Throws LoginRefused, or a BatonError: then it may succeed later. */
  renew(configured: ConfiguredVendor, id: string, secret: LoginSecret, call: OAuthCall): Promise<Renewed>
  /** Another process failed to renew the login a moment ago: it is left alone here, too. Returns the error to throw. */
  failedElsewhere(id: string): BatonError
  /** Whether the login's last renewal failed a moment ago. */
  isPaused(id: string): boolean
}

interface TokenEndpointsDeps extends Pick<Timing, 'now' | 'uptime'> {
  http: OAuthHttp
}

export function createTokenEndpoints({ http, now, uptime }: TokenEndpointsDeps): TokenEndpoints {
  const pauses = createPauses(uptime)
  const breakers = new Map<string, Breaker>()

  function breakerOf(provider: string): Breaker {
    const breaker = breakers.get(provider) ?? createBreaker(uptime)
    breakers.set(provider, breaker)
    return breaker
  }

  function assertFree(id: string, breaker: Breaker): void {
    pauses.assertOver(id)
    const waitMs = breaker.waitMs()
    if (waitMs === 0) return
    throw new BatonError(
      'upstream_overloaded',
      "The provider's login service failed for several logins in a row and is left alone for a while.",
      { retryAfter: Math.ceil(waitMs / 1000) },
    )
  }

  /** The error for the vendor's refusal: LoginRefused if that is final, else one that is kept for the login's pause. */
  function refusal(id: string, configured: ConfiguredVendor, answer: OAuthAnswer): Error {
    const breaker = breakerOf(configured.vendor.provider)
    const failure = failureOf(configured, answer)
    const retryMs = wantedPauseMs(answer, now())
    // The refusal of one login must not keep others from a service that works.
    if (failure.isLasting || OF_THE_LOGIN.has(answer.status)) breaker.succeeded()
    else breaker.failed(id, retryMs)
    if (failure.isLasting) return new LoginRefused(failure)
    return pauses.begin(id, passing(answer.status, failure), retryMs)
  }

  return {
    isPaused: pauses.isPaused,
    async renew(configured, id, secret, call) {
      const breaker = breakerOf(configured.vendor.provider)
      assertFree(id, breaker)
      const answer = await http.send(call).catch((failure: BatonError) => {
        breaker.failed(id, 0)
        throw pauses.begin(id, failure)
      })
      const tokens = readTokens(configured, answer)
      if (!tokens) throw refusal(id, configured, answer)
      breaker.succeeded()
      const next = merged(secret, tokens)
      const renewed = { secret: next, expires_at: endOf(configured, next, tokens, now()) }
      if (tokens.access_token !== undefined) return renewed
      // The other tokens must be stored, since a rotated refresh token is the only one left; but the vendor is not
      // asked again soon.
      const problem = pauses.begin(id, passing(answer.status, NO_TOKENS), 60_000)
      return { ...renewed, problem }
    },
    failedElsewhere: (id) => pauses.begin(id, new BatonError('upstream_overloaded', FAILED_ELSEWHERE)),
  }
}

const FAILED_ELSEWHERE = 'The login could not be renewed by another process a moment ago.'

/**
 * With these statuses a working service refuses what was sent: a grant or a client, which may be one login's own (RFC
 * 6749 5.2).
 */
const OF_THE_LOGIN = new Set([400, 401])

const byStatus = (status: number): ErrorCode => {
  if (status === 429) return 'upstream_rate_limited'
  return status >= 500 ? 'upstream_overloaded' : 'upstream_rejected'
}

const passing = (status: number, { code, message }: TokenFailure): BatonError =>
  new BatonError(byStatus(status), `The provider did not renew the login (${code}). ${message}`.trim(), {
    details: { upstream: { status, code, message } },
  })

/** What Retry-After asks for, within a bound; 0 if there is none. */
function wantedPauseMs({ headers }: OAuthAnswer, now: number): number {
  const told = retryAfterMs(headers['retry-after'], now)
  return Math.min(told ?? 0, LONGEST_PAUSE_MS)
}
