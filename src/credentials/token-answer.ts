/** What a token endpoint's answer makes of a login: when it is made, and at each renewal. */
import type { LoginSecret, OAuthAnswer, TokenAnswer, TokenFailure } from '../oauth-vendor.ts'
import type { ConfiguredVendor } from './logins/vendors.ts'

/** Null for a refusal, and for a body that holds no tokens. */
export function readTokens({ vendor }: ConfiguredVendor, { status, body }: OAuthAnswer): TokenAnswer | null {
  return status < 300 ? vendor.readTokens(body) : null
}

export const NO_TOKENS: TokenFailure = {
  isLasting: false,
  code: 'no_tokens',
  message: 'Its answer held no access token.',
}

/** Why there are no tokens. A body with a good status is not quoted: what was sent is still in it (oauth-http.ts). */
export const failureOf = ({ vendor }: ConfiguredVendor, answer: OAuthAnswer): TokenFailure =>
  answer.status < 300 ? NO_TOKENS : vendor.readFailure(answer)

/** What the vendor left out keeps its old value. */
export function merged(secret: LoginSecret, tokens: TokenAnswer): LoginSecret {
  const { access_token, refresh_token, id_token } = tokens
  return {
    ...secret,
    ...(access_token === undefined ? {} : { access_token }),
    ...(refresh_token === undefined ? {} : { refresh_token }),
    ...(id_token === undefined ? {} : { id_token }),
  }
}

/** When the access token expires: the token's own word wins over the answer's, which counts by our clock. */
export function endOf(
  { vendor }: ConfiguredVendor,
  secret: LoginSecret,
  { expires_in }: TokenAnswer,
  now: number,
): string | null {
  const own = vendor.identify(secret).expires_at
  if (own !== undefined) return own
  const isPlain = expires_in !== undefined && expires_in > 0 && expires_in < 1e10
  return isPlain ? new Date(now + expires_in * 1000).toISOString() : null
}
