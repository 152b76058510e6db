/** What an address is: public unicast or special, opened by an operator or not, of this machine. */
import { BlockList, isIP, isIPv4 } from 'node:net'

/** IPv4 ranges that are not public unicast (IANA special-purpose registry, multicast, class E). */
const SPECIAL_IPV4 = blockList([
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32', // Azure's host, which gives a machine's credentials
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
])
/** All public IPv6 addresses lie in here, except those that SPECIAL_IPV6 takes out. */
const GLOBAL_IPV6 = blockList(['2000::/3'])
/** Teredo, ORCHID and other protocol assignments; documentation. 6to4 is judged by the IPv4 inside. */
const SPECIAL_IPV6 = blockList(['2001::/23', '2001:db8::/32', '3fff::/20'])

/** Prefixes of IPv6 forms that carry an IPv4 address right after the prefix. */
const CARRIERS = [
  '0:0:0:0:0:ffff', // IPv4-mapped
  '64:ff9b:0:0:0:0', // NAT64 (RFC 6052)
  '2002', // 6to4
]

/** True for an address on the public internet; false for anything special, malformed or zoned. */
export function isPublicAddress(address: string): boolean {
  const plain = plainAddress(address)
  if (plain === null) return false
  if (isIPv4(plain)) return !SPECIAL_IPV4.check(plain, 'ipv4')
  return GLOBAL_IPV6.check(plain, 'ipv6') && !SPECIAL_IPV6.check(plain, 'ipv6')
}

/** The IPv4 address inside a carrier form, any other address as it is, null for anything that is not an address. */
function plainAddress(address: string): string | null {
  const family = isIP(address)
  if (family === 4) return address
  const groups = family === 6 ? ipv6Groups(address) : null
  if (!groups) return null
  const written = groups.map((group) => group.toString(16)).join(':')
  const carrier = CARRIERS.find((prefix) => written.startsWith(`${prefix}:`))
  if (carrier === undefined) return address
  const [high = 0, low = 0] = groups.slice(carrier.split(':').length)
  return `${high >> 8}.${high & 255}.${low >> 8}.${low & 255}`
}

/** Eight 16-bit numbers; null for an address with a zone, which only means something on this host. */
function ipv6Groups(address: string): number[] | null {
  if (!URL.canParse(`http://[${address}]/`)) return null
  // The URL parser writes every form alike: lower case, no dotted quad.
  const [head = '', tail] = new URL(`http://[${address}]/`).hostname.slice(1, -1).split('::')
  const parse = (text: string): number[] =>
    text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16))
  const before = parse(head)
  if (tail === undefined) return before
  const after = parse(tail)
  return [...before, ...new Array<number>(8 - before.length - after.length).fill(0), ...after]
}

/** What an operator has opened beyond the public internet. */
export interface Openings {
  /** The host is opened by name, whatever it resolves to */
  name(hostname: string): boolean
  address(address: string): boolean
}

/**
 * Reads `true`, `false` or a list of CIDRs (`10.0.0.0/8`, `fd00::/8`), addresses, host names and `*.suffix` patterns.
 * `isOpening` checks an entry of the list.
 */
export function parseOpenings(allow: boolean | readonly string[]): Openings {
  if (typeof allow === 'boolean') return { name: () => allow, address: () => allow }
  const ranges = new BlockList()
  const names = new Set<string>()
  const suffixes: string[] = []
  for (const entry of allow) {
    const text = entry.trim().toLowerCase()
    if (addRange(ranges, text)) continue
    if (SUFFIX.test(text)) suffixes.push(text.slice(1))
    else names.add(text)
  }
  return {
    name: (hostname) => names.has(hostname) || suffixes.some((suffix) => hostname.endsWith(suffix)),
    address: (address) => {
      const plain = plainAddress(address)
      return plain !== null && ranges.check(plain, isIPv4(plain) ? 'ipv4' : 'ipv6')
    },
  }
}

/** Whether the entry is a CIDR, an address, a host name or a `*.suffix`. */
export function isOpening(entry: string): boolean {
  const text = entry.trim().toLowerCase()
  return addRange(new BlockList(), text) || SUFFIX.test(text) || NAME.test(text)
}

const SUFFIX = /^\*\.[a-z0-9.-]+$/
const NAME = /^[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?$/

function addRange(list: BlockList, text: string): boolean {
  const [address = '', prefix, ...rest] = text.split('/')
  const family = isIP(address)
  if (family === 0 || rest.length > 0) return false
  const bits = family === 4 ? 32 : 128
  if (prefix !== undefined && !(/^\d{1,3}$/.test(prefix) && Number(prefix) <= bits)) return false
  list.addSubnet(address, prefix === undefined ? bits : Number(prefix), family === 4 ? 'ipv4' : 'ipv6')
  return true
}

function blockList(ranges: string[]): BlockList {
  const list = new BlockList()
  for (const range of ranges) addRange(list, range)
  return list
}

/** The text as an http or https URL; null if it is none. */
export function httpUrl(text: string): URL | null {
  const url = URL.canParse(text) ? new URL(text) : null
  return url && /^https?:$/.test(url.protocol) ? url : null
}

/** A host name or address as a URL has it: an IPv6 address in brackets. */
export const inUrl = (host: string): string => (host.includes(':') ? `[${host}]` : host)

/** Whether a host name or address, without a port, never leaves this machine. */
export function isLoopback(host: string): boolean {
  const bare = host.replace(/^\[|\]$/g, '').toLowerCase()
  if (isIP(bare) === 4) return bare.startsWith('127.')
  return bare === '::1' || bare === 'localhost' || bare.endsWith('.localhost')
}
