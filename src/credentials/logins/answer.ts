/** Reads what comes back from a login's page, through the browser or a person's hands. */
import * as oauth from 'oauth4webapi'
import { BatonError, invalid } from '../../errors.ts'
import { oneLine } from '../../text.ts'
import type { ConfiguredVendor } from './vendors.ts'

/**
 * What people bring back from a login page: the whole address that the browser ended at, with or without `http://`,
 * `code#state`, `code=…&state=…`, or the bare code.
 */
export function readPasted(text: string): URLSearchParams {
  const pasted = text.trim().replace(/^["'<]+|(?<!["'>])["'>]+$/g, '')
  if (/^[?#]?(code|error|state)=/.test(pasted)) return new URLSearchParams(pasted.replace(/^[?#]/, ''))
  if (/^https?:\/\/|[?#&](code|error)=/i.test(pasted)) {
    // Browsers show, and some copy, an address without its scheme.
    if (!URL.canParse(pasted, ANY_PAGE)) return new URLSearchParams()
    const { searchParams, hash } = new URL(pasted, ANY_PAGE)
    // Some pages put their answer into the fragment.
    const fragment = new URLSearchParams(hash.slice(1))
    return !searchParams.has('code') && fragment.has('code') ? fragment : searchParams
  }
  // A code is one word; the login stays open for it.
  if (/\s/.test(pasted)) return new URLSearchParams()
  const [code = '', state] = pasted.split('#', 2)
  return new URLSearchParams({ ...(code === '' ? {} : { code: decoded(code) }), ...(state ? { state } : {}) })
}

const ANY_PAGE = 'http://localhost'

/** A code that was copied out of an address may be percent-encoded: Google's hold a slash. */
const decoded = (code: string): string =>
  new URLSearchParams(`code=${code.replaceAll('+', '%2B').replaceAll('&', '%26')}`).get('code') ?? code

/** The code of an authorization response. Throws, in words, the error that the vendor answered with instead. */
export function codeIn(
  { vendor, settings }: ConfiguredVendor,
  answer: URLSearchParams,
  state: string,
): string {
  const server = { issuer: vendor.issuer(settings) }
  const client = { client_id: vendor.clientId(settings) }
  let code: string | null
  try {
    code = oauth.validateAuthResponse(server, client, answer, state).get('code')
  } catch (thrown) {
    throw inWords(thrown)
  }
  if (code) return code
  throw invalid('code', "The provider's answer holds no code.")
}

function inWords(thrown: unknown): unknown {
  if (thrown instanceof oauth.AuthorizationResponseError) {
    const { error, error_description: said } = thrown
    const words = error === 'access_denied' ? 'The login was declined' : 'The provider refused the login'
    return new BatonError(
      'invalid_request',
      `${words} (${oneLine(error)}${said ? `: ${oneLine(said)}` : ''}).`,
    )
  }
  if (thrown instanceof oauth.OperationProcessingError || thrown instanceof oauth.UnsupportedOperationError) {
    const words = `The provider's answer does not fit this login: ${thrown.message}.`
    return new BatonError('invalid_request', words)
  }
  return thrown
}
