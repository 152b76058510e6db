/** Keeps a connector's own secrets out of its errors: servers quote headers and variables in theirs. */
import { McpError, type McpServerSpec } from './contract.ts'

/** Shorter values stand in many an innocent text. */
const SHORTEST_SECRET = 8
const BEARER = /\b(Bearer|Basic|DPoP)\s+[\w.~+/=-]{8,}/gi

/** The same failure where it holds none. */
export function scrubbed(
  failure: McpError,
  { headers = {}, env = {}, auth }: Pick<McpServerSpec, 'headers' | 'env' | 'auth'>,
): McpError {
  const secrets = [...Object.values(headers), ...Object.values(env), auth?.held?.() ?? ''].filter(
    (value) => value.length >= SHORTEST_SECRET,
  )
  const clean = (text: string): string =>
    secrets.reduce((rest, secret) => rest.replaceAll(secret, '***'), text).replace(BEARER, '$1 ***')
  const message = clean(failure.message)
  const lastWords = failure.lastWords && clean(failure.lastWords)
  if (message === failure.message && lastWords === failure.lastWords) return failure
  // Without its cause, which holds the same words.
  const { kind, sent, retryAfterMs, rpcCode } = failure
  return new McpError(kind, message, { sent, retryAfterMs, rpcCode, lastWords })
}
