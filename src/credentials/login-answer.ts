/** Reads what comes back from a login page and from the exchange of its code; refusals in words. */
import * as oauth from 'oauth4webapi'
import { BatonError, invalid } from '../errors.ts'
import type { LoginRow } from './login-table.ts'

/** The code of an authorization response. Throws in words what the vendor answered in its place. */
export function codeIn({ vendor, settings }: LoginRow, answer: URLSearchParams, state: string): string {
  const server = { issuer: vendor.issuer(settings) }
  const client = { client_id: vendor.client(settings).id }
  try {
    const code = oauth.validateAuthResponse(server, client, answer, state).get('code')
    if (code) return code
  } catch (thrown) {
    if (thrown instanceof oauth.AuthorizationResponseError) {
      const { error, error_description: said } = thrown
      const words = error === 'access_denied' ? 'The login was declined' : 'The provider refused the login'
      throw new BatonError('invalid_request', `${words} (${plain(error)}${said ? `: ${plain(said)}` : ''}).`)
    }
    if (
      !(thrown instanceof oauth.OperationProcessingError || thrown instanceof oauth.UnsupportedOperationError)
    ) {
      throw thrown
    }
    throw new BatonError(
      'invalid_request',
      `The provider's answer does not fit this login: ${thrown.message}.`,
    )
  }
  throw invalid('code', "The provider's answer holds no code.")
}

/** Foreign words as one short line. */
const plain = (text: string): string =>
  text
    .replace(/[\p{C}\s]+/gu, ' ')
    .trim()
    .slice(0, 300)

/** A vendor's refusal of a code or file, by its status: `invalid_request` where another one would help, else `upstream_…`. */
export function codeRefused(
  { vendor }: LoginRow,
  status: number,
  { code, message }: { code: string; message: string },
  param = 'code',
): BatonError {
  const words = `${vendor.provider} did not take the ${param} (${plain(code)}${message ? `: ${plain(message)}` : ''}).`
  const details = { upstream: { status, code, message } }
  if (status === 429) return new BatonError('upstream_rate_limited', words, { details, retryAfter: 30 })
  if (status >= 500) return new BatonError('upstream_overloaded', words, { details })
  if (status < 400) return new BatonError('upstream_rejected', words, { details })
  return new BatonError('invalid_request', `${words} Begin the login again.`, { param, details })
}
