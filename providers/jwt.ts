/**
 * What a token says of itself. Never a proof: tokens are read here that came straight from a vendor over
 * TLS, or that their owner gave, and only to show and to plan by.
 */

export type Claims = Readonly<Record<string, unknown>>

/** The claims of a JWT; empty for a token that is none. Its middle is base64url of UTF-8. */
export function claimsOf(token: string | undefined): Claims {
  const [, middle, signature] = token?.split('.') ?? []
  if (middle === undefined || signature === undefined) return {}
  try {
    const value: unknown = JSON.parse(Buffer.from(middle, 'base64url').toString('utf8'))
    return typeof value === 'object' && value !== null ? (value as Claims) : {}
  } catch {
    return {}
  }
}

/** When it ends, RFC 3339; undefined where it does not say. */
export function expiryOf(claims: Claims): string | undefined {
  const { exp } = claims
  // Beyond it a Date holds nothing.
  return typeof exp === 'number' && exp > 0 && exp < 8.64e12 ? new Date(exp * 1000).toISOString() : undefined
}
