/**
 * What a token says of itself. Never a proof: tokens are read here that came straight from a vendor over
 * TLS, or that their owner gave, and only to show and to plan by.
 */
import { parseRecord } from '../src/chat/json.ts'
import type { Json } from './json.ts'

/** The claims of a JWT; empty for a token that is none. Its middle is base64url of UTF-8. */
export function claimsOf(token: string | undefined): Json {
  const [, middle, signature] = token?.split('.') ?? []
  if (middle === undefined || signature === undefined) return {}
  return parseRecord(Buffer.from(middle, 'base64url').toString('utf8')) ?? {}
}

/** When it ends, RFC 3339; undefined where it does not say. */
export const expiryOf = ({ exp }: Json): string | undefined =>
  typeof exp === 'number' ? instantOf(exp * 1000) : undefined

/** RFC 3339 has no later year; milliseconds that were taken for seconds lie far beyond. */
const END_OF_TIME = Date.UTC(9999, 11, 31)

/** Milliseconds that a token or a login file names, as RFC 3339; undefined for what is no such time. */
export const instantOf = (ms: number | undefined): string | undefined =>
  ms !== undefined && ms > 0 && ms < END_OF_TIME ? new Date(ms).toISOString() : undefined
