/** How a setting's text is read: each gives the value, or throws UnfitValue with what it must be. */
import { httpUrl, isLoopback, isOpening } from '../addresses.ts'
import { parseDuration } from '../duration.ts'
import { oneLine, spelledOut } from '../text.ts'

/**
 * A value that a setting does not take. The message says what it must be and never repeats it, but for an item of a
 * list of hosts.
 */
export class UnfitValue extends Error {
  readonly remedy: string
  constructor(problem: string, remedy = '') {
    super(problem)
    this.remedy = remedy
  }
}

/** `docker --env-file` keeps quotes. With them a key is another key, which shows only once it is refused. */
export const isQuoted = (value: string): boolean => /^(["']).*\1$/s.test(value)

/** What is wrong with a text in quotes. */
export const QUOTED = {
  problem: 'stands in quotes, which would be part of it',
  remedy: 'Leave them out: unlike a shell, docker --env-file takes them as they are',
}

/** As shells and Compose fill them in: `${TOKEN}`, `$(TOKEN)`, `$TOKEN`, `$HOME/data`. */
const PLACEHOLDER = /\$\{[^{}]+\}|\$\(\w+\)|(?<!\S)\$[A-Z_][A-Z0-9_]*(?=\/|$)/
export const holdsPlaceholder = (value: string): boolean => PLACEHOLDER.test(value)
export const isPlaceholder = (value: string): boolean => PLACEHOLDER.exec(value)?.[0] === value

/** What is wrong with a text that holds a placeholder. */
export const UNFILLED = 'holds a placeholder, which nothing fills in here'

/** Only the file can give an empty text: an empty variable counts as not set. */
export const text = (value: string): string => {
  if (value !== '') return value
  throw new UnfitValue('must not be empty', 'Leave it out for the default')
}

/** Neither Compose nor systemd replaces the ~, and all data would lie in a folder of that name. */
export const folder = (value: string): string => {
  if (!/^~(\/|$)/.test(value)) return text(value)
  throw new UnfitValue('begins with ~, which only a shell replaces', 'Write the whole path')
}

/** An IPv6 address may come in the brackets that it has in a URL. */
export const address = (value: string): string => text(value).replace(/^\[(.*)\]$/, '$1')

export const whole = (min: number, max: number) => (value: string) => {
  const number = /^\d+$/.test(value) ? Number(value) : Number.NaN
  if (number >= min && number <= max) return number
  throw new UnfitValue(`must be a whole number from ${min} to ${max}`)
}

export const port = (value: string): number => {
  if (!value.startsWith('tcp://')) return whole(0, 65535)(value)
  throw new UnfitValue(
    'is the URL that Kubernetes gives the pods of a namespace with a Service named baton',
    'Set enableServiceLinks: false for the pod, or give it a BATON_PORT of its own',
  )
}

export const oneOf =
  <const T extends string>(...values: T[]) =>
  (value: string): T => {
    const found = values.find((known) => known === value)
    if (found !== undefined) return found
    throw new UnfitValue(`must be one of: ${values.join(', ')}`)
  }

const FLAGS = new Map([
  ...['true', '1', 'yes', 'on'].map((word) => [word, true] as const),
  ...['false', '0', 'no', 'off'].map((word) => [word, false] as const),
])
export const flag = (value: string): boolean => {
  const read = FLAGS.get(value.toLowerCase())
  if (read !== undefined) return read
  throw new UnfitValue('must be true or false')
}

/** Items that commas separate; empty ones do not count. */
export const list = (value: string): string[] =>
  value
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '')

/** A size in bytes; K, M and G are powers of 1024. */
export const bytes = (value: string): number => {
  const match = /^(\d{1,12})\s*(B|[KMG]i?B?)?$/i.exec(value)
  const unit = { K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 }[match?.[2]?.[0]?.toUpperCase() ?? ''] ?? 1
  const size = match ? Number(match[1]) * unit : 0
  // Strings of the engine end near 512 MiB; a body must stay well below.
  if (size >= 1 && size <= 256 * 2 ** 20) return size
  throw new UnfitValue('must be a size from 1 B to 256 MiB, such as 33554432 or 32MiB')
}

/** Milliseconds; null: for ever. It may be longer than any timer, since no timer waits for it. */
export const retention = (value: string): number | null => {
  if (value === 'forever') return null
  const read = parseDuration(value, LONGEST_RETENTION_MS)
  if ('ms' in read) return read.ms
  throw new UnfitValue(read.problem, 'Write it like P90D or PT12H, or set it to forever')
}
const LONGEST_RETENTION_MS = 36_500 * 86_400_000

function parsed(value: string, remedy = ''): URL {
  if (URL.canParse(value)) return new URL(value)
  throw new UnfitValue('must be an absolute URL', remedy)
}

/** Checks that the parts of a URL which are sent can be decoded: a later failure would not name the setting. */
function decodable(url: URL): URL {
  try {
    for (const part of [url.username, url.password, url.pathname]) decodeURIComponent(part)
    return url
  } catch {
    throw new UnfitValue('holds a % that encodes nothing', 'A percent sign in it is written %25')
  }
}

/** A root of an upstream: plain http only if it cannot leave this machine. */
export const upstream = (value: string): string => {
  const url = parsed(value)
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && isLoopback(url.hostname))) {
    throw new UnfitValue('must use https', 'Plain http is accepted only for loopback hosts')
  }
  if (url.username || url.password) throw new UnfitValue('must not hold a user name or password')
  if (url.search || url.hash) throw new UnfitValue('must not have a query or fragment')
  return value.replace(/\/+$/, '')
}

/** A password's / ? or # ended the host. What is left of the password would be shown as a host and a database. */
const CUT_PASSWORD = /^[^/]*\/\/[^/?#]*(\/[^?]*|[?#][^=]*)@/
function assertWholePassword(value: string, remedy: string): void {
  if (CUT_PASSWORD.test(value)) throw new UnfitValue('holds an @ after its host', remedy)
}

/** A connection string that begins with one of the protocols, such as `redis:`. */
function connection(value: string, ...protocols: string[]): URL {
  const words = protocols.map((protocol) => `${protocol}//`).join(' or ')
  const remedy = value.includes('@/')
    ? 'An @ stands before a host; for a socket see docs/operations.md, The two servers'
    : `It begins with ${words} and names one host, and odd characters of its password are percent-encoded`
  const url = decodable(parsed(value, remedy))
  if (!protocols.includes(url.protocol)) throw new UnfitValue(`must begin with ${words}`)
  assertWholePassword(value, remedy)
  return url
}

/**
 * A PostgreSQL server. The driver ignores a schema, and the tables would be made in another one. It
 * takes all of `postgres:password@host` for the name of a database on this machine, which its failure would show.
 */
export const postgresServer = (value: string): string => {
  const { href, searchParams } = connection(value, 'postgres:', 'postgresql:')
  if (!/^\w+:\/\//.test(href)) throw new UnfitValue('must begin with postgres:// or postgresql://')
  const named = ['schema', 'search_path', 'currentSchema'].find((name) => searchParams.has(name))
  if (named === undefined) return value
  throw new UnfitValue(
    `must not have the parameter ${named}`,
    "Leave it out: Baton takes the first schema of the role's search_path (alter role … set search_path = …)",
  )
}

/** A Redis server; the driver takes a path that is not a number for database 0. */
export const redisServer = (value: string): string => {
  const { pathname } = connection(value, 'redis:', 'rediss:')
  if (/^\/?\d*\/?$/.test(pathname)) return value
  throw new UnfitValue('must have the number of a database, or nothing, as its path')
}

/** A proxy as other programs take it: the scheme may be left out. */
export const forwardProxy = (value: string): string => {
  const whole = value.includes('://') ? value : `http://${value}`
  const remedy = 'Odd characters of its user name and password are percent-encoded'
  const url = decodable(parsed(whole, remedy))
  if (!/^https?:$/.test(url.protocol)) throw new UnfitValue('must begin with http:// or https://')
  // A backslash ends the host of such a URL, too, and Windows writes users as DOMAIN\user.
  assertWholePassword(whole.replaceAll('\\', '/'), remedy)
  return url.href
}

/** An item of a list of hosts as a line of the log takes it, with what nobody would see. */
const quoted = (item: string): string => `'${oneLine(spelledOut(item), 100)}'`

/** Origins as browsers send them, or `*`. */
export const origins = (value: string): string[] =>
  list(value).map((item) => {
    if (item === '*') return item
    const web = httpUrl(item)
    if (web && web.origin === item.toLowerCase() && !web.host.includes('*')) return web.origin
    // Pages of apps have schemes of their own (capacitor://localhost), for which `URL` knows no origin (Fetch, 3.2
    // "Origin").
    const isApp = !web && URL.canParse(item) && /^[a-z][a-z\d+.-]*:\/\/[\w.:-]+$/i.test(item)
    if (isApp) return item.toLowerCase()
    const remedy = 'An origin is scheme://host[:port], without a path or wildcard; * alone is any'
    throw new UnfitValue(`holds ${quoted(item)}, which is not an origin`, remedy)
  })

/** A flag, or a list that the guard of addresses reads. */
export const openNetworks = (value: string): boolean | string[] => {
  const isOpen = FLAGS.get(value.toLowerCase())
  if (isOpen !== undefined) return isOpen
  const entries = list(value)
  const unfit = entries.find((entry) => !isOpening(entry))
  if (unfit === undefined) return entries
  throw new UnfitValue(
    `holds ${quoted(unfit)}, which is not a CIDR, address, host name or *.suffix`,
    'Or set it to true',
  )
}

/** The id of an encryption key; it is in everything that is sealed under the key. */
export const KEY_ID = /^[\w.-]{1,64}$/

/** `id:base64` of 32 bytes, in the order given; at least one. */
export const encryptionKeys = (value: string): { id: string; key: Uint8Array }[] => {
  const remedy = 'Write id:base64[,id:base64…], 32 random bytes each; make one with: openssl rand -base64 32'
  const unfit: string[] = []
  const keys = list(value).map((item, i) => {
    const [, id = '', base64 = ''] = /^([^:]*):(.*)$/.exec(item) ?? []
    const key = Buffer.from(base64, 'base64')
    const isWhole = /^[A-Za-z0-9+/_-]+={0,2}$/.test(base64) && key.length === 32
    // The message names the key by its place: if id and key are swapped, the id is the secret.
    if (!KEY_ID.test(id)) unfit.push(`key ${i + 1} has no id of 1 to 64 letters, digits, ., - or _`)
    else if (!isWhole) unfit.push(`key ${i + 1} is not base64 of exactly 32 bytes`)
    return { id, key: new Uint8Array(key) }
  })
  if (unfit.length > 0) throw new UnfitValue(unfit.join('; '), remedy)
  const twice = keys.find(({ id }, i) => keys.findIndex((key) => key.id === id) !== i)
  if (twice) throw new UnfitValue(`the id '${twice.id}' is used twice`, 'Give every key its own id')
  if (keys.length === 0) throw new UnfitValue('holds no key', remedy)
  return keys
}

/** What can stand in an HTTP header. */
export const headerText = (value: string): string => {
  if (/^[\x21-\x7e]+$/.test(value)) return value
  throw new UnfitValue('must be printable ASCII without spaces')
}
