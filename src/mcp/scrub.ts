/** Keeps a connector's own secrets out of its errors: servers quote headers and variables in theirs. */
import { withoutSecrets } from '../foreign.ts'
import { McpError, type McpServerSpec } from './contract.ts'

const BEARER = /\b(Bearer|Basic|DPoP)\s+[\w.~+/=-]{8,}/gi

/** The same failure where it holds none. */
export function scrubbed(
  failure: McpError,
  { headers = {}, env = {}, auth }: Pick<McpServerSpec, 'headers' | 'env' | 'auth'>,
): McpError {
  const secrets = [...Object.values(headers), ...Object.values(env), auth?.held?.() ?? '']
  const clean = (text: string): string => withoutSecrets(text, secrets).replace(BEARER, '$1 ***')
  const message = clean(failure.message)
  const lastWords = failure.lastWords && clean(failure.lastWords)
  if (message === failure.message && lastWords === failure.lastWords) return failure
  // Without its cause, which holds the same words.
  const { kind, sent, retryAfterMs, rpcCode } = failure
  return new McpError(kind, message, { sent, retryAfterMs, rpcCode, lastWords })
}
