/** The rules for addresses that callers give. */
import { isIP } from 'node:net'
import { isLoopback, isPublicAddress, type Openings } from '../addresses.ts'
import { BatonError } from '../errors.ts'
import { cutUtf8 } from '../text.ts'

/**
 * Checks what can be known without the network: scheme, user information, literal addresses, loopback names. Throws
 * address_not_allowed.
 */
export function checkUrl(url: URL, openings: Openings, requireHttps: boolean): void {
  if (url.protocol !== 'https:' && (requireHttps || url.protocol !== 'http:'))
    throw refused(
      `${url.protocol}//${url.hostname} is not allowed, only ${requireHttps ? 'https' : 'http and https'} URLs are.`,
    )
  if (url.username || url.password) throw refused('A URL must not hold a user name or password.')
  const hostname = bareHostname(url.hostname)
  // The URL parser has turned octal, hexadecimal and short IPv4 forms into dotted quads by now. A loopback name means an
  // address of either family, so both must be open.
  const known = isIP(hostname) !== 0 ? [hostname] : isLoopback(hostname) ? ['127.0.0.1', '::1'] : []
  assertPasses(hostname, known, openings)
}

/** The host without an IPv6 address's brackets, and without the dot that may end a name. */
export const bareHostname = (hostname: string): string => hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '')

/** Throws address_not_allowed unless the host is opened by its name, or every one of its addresses passes. */
export function assertPasses(hostname: string, addresses: readonly string[], openings: Openings): void {
  if (openings.name(bareHostname(hostname))) return
  const passes = addresses.every((address) => isPublicAddress(address) || openings.address(address))
  if (!passes) throw notAllowed(hostname)
}

/** The error of an address that may not be used. What a stranger gives as a host's name may be a megabyte long. */
export const refused = (message: string): BatonError =>
  new BatonError('address_not_allowed', cutUtf8(message, MOST_WORDS), { param: 'url' })

/** Bytes; no name of a host that there is has more than 253 */
const MOST_WORDS = 1000

/** Names the host as given, never what it resolved to: that would tell a tenant of the inner network. */
const notAllowed = (hostname: string): BatonError =>
  refused(
    `${hostname} leads to a loopback, private or special address, which is not allowed. ` +
      'An operator can open it with BATON_CONNECTORS_ALLOW_PRIVATE.',
  )
