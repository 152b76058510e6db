/** Reads a login's tokens, and the claims of a token. */
import { parseRecord } from '../src/chat/json.ts'
import { type LoginSecret, secondsIn, type TokenAnswer } from '../src/oauth-vendor.ts'
import { instantOf, type Json, present, string } from './json.ts'

type Tokens = Pick<LoginSecret, 'access_token' | 'refresh_token' | 'id_token'>

/** The tokens that an answer or a login file has, by their names in OAuth. */
export const tokensIn = ({ access_token, refresh_token, id_token }: Json): Tokens =>
  present({
    access_token: string(access_token),
    refresh_token: string(refresh_token),
    id_token: string(id_token),
  })

/**
 * A token endpoint's answer; null if it holds no token. One token of any kind is enough: a rotated refresh token must
 * not be lost, whatever else is missing.
 */
export function tokenAnswer(answer: Json | null): TokenAnswer | null {
  const tokens = tokensIn(answer ?? {})
  if (Object.keys(tokens).length === 0) return null
  return { ...tokens, ...present({ expires_in: secondsIn(answer?.expires_in) }) }
}

/**
 * The claims of a JWT; empty for a token that is not one. Its middle is base64url of UTF-8. The claims are not
 * verified: the tokens came straight from a vendor over TLS, or from their owner, and their claims are only shown and
 * used to plan renewals.
 */
export function claimsOf(token: string | undefined): Json {
  const [, middle, signature] = token?.split('.') ?? []
  if (middle === undefined || signature === undefined) return {}
  return parseRecord(Buffer.from(middle, 'base64url').toString('utf8')) ?? {}
}

/** When the token ends, RFC 3339; undefined if it does not say. */
export const expiryOf = ({ exp }: Json): string | undefined =>
  typeof exp === 'number' ? instantOf(exp * 1000) : undefined
