/**
 * The guarded fetch for addresses that a caller gave: connectors, image URLs, OAuth metadata. A name is
 * resolved once, inside the connection attempt, and the socket uses exactly the addresses that passed:
 * nothing can be rebound between check and use. Knows nothing of MCP.
 */
import type { LookupAddress } from 'node:dns'
import { lookup as dnsLookup } from 'node:dns/promises'
import { isIP, type LookupFunction, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, buildConnector, fetch as undiciFetch } from 'undici'
import { isPublicAddress, type Openings, parseOpenings } from './addresses.ts'
import { BatonError, invalid } from './errors.ts'
import { createTunnels, type ForwardProxy, NoTunnelError, PATIENT, type Tunnels } from './outbound.ts'

/** Of one answer where nobody says otherwise. */
export const DEFAULT_MAX_BYTES = 8 * 1024 * 1024
const DEFAULT_TIMEOUT_MS = 30_000
const CONNECT_TIMEOUT_MS = 5_000
const MAX_REDIRECTS = 5

/** All addresses of a name; rejects if there is none. */
export type Resolve = (hostname: string) => Promise<LookupAddress[]>

interface GuardRules {
  /** Opens everything, nothing, or these CIDRs, addresses, host names and `*.suffix` patterns */
  allowPrivate: boolean | readonly string[]
  /** Only https is accepted (OAuth metadata and tokens); default: http too */
  requireHttps?: boolean
}
export interface GuardOptions extends GuardRules {
  /** Most bytes of a body, decompressed; of an event stream, of one event. Default 8 MiB */
  maxBytes?: number
  /** For the whole exchange, body included; 0: no limit of its own. Default 30 s */
  timeoutMs?: number
  /** Most connections to one origin; further requests wait. Default 16 */
  connections?: number
  /** What https goes through; null: nothing. Default: nothing */
  proxy?: ConnectorProxy | null
  /** Stands in for the system's resolver in tests */
  resolve?: Resolve
}

/**
 * A forward proxy, and what it is asked for: the address that was checked here, or the host's name, which it resolves
 * and judges itself.
 */
export interface ConnectorProxy extends ForwardProxy {
  asksFor: 'address' | 'name'
}

/** A fetch, and the check of an address before anything is kept. */
export interface Guard {
  /**
   * Like fetch. Redirects are followed within the origin only (`redirect: 'manual'` hands them out).
   * Rejects with BatonError `address_not_allowed`, BodyTooLargeError, or whatever fetch rejects with.
   */
  fetch(url: string | URL, init?: RequestInit): Promise<Response>
  /** Rejects with `address_not_allowed` if the URL may not be used. A name that does not resolve passes. */
  assertUrl(url: string): Promise<void>
  /** Whether it passes and is known to lead somewhere: a name that has no address here does not. */
  isReachable(url: string): Promise<boolean>
  /** Cuts all connections. */
  close(): Promise<void>
}

/** A body, or one event of a stream, was larger than the cap; the rest is not read. */
export class BodyTooLargeError extends Error {
  override name = 'BodyTooLargeError'
}

/** A guard with connections of its own. Throws invalid_request for an opening that is none. */
export function createGuard(options: GuardOptions): Guard {
  const openings = parseOpenings(options.allowPrivate)
  const resolve: Resolve = options.resolve ?? ((hostname) => dnsLookup(hostname, { all: true }))
  const maxBytes = options.maxBytes ?? DEFAULT_MAX_BYTES
  const timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS
  const { proxy } = options
  const tunnels = proxy ? { ...createTunnels(proxy, CONNECT_TIMEOUT_MS), asksFor: proxy.asksFor } : null
  const agent = new Agent({
    connect: guardedConnector(openings, resolve, tunnels),
    connections: options.connections ?? 16,
    // Streams stay silent for minutes (undici's default cuts them at 300 s); deadlines are the callers'.
    bodyTimeout: 0,
    headersTimeout: 0,
  })

  /** One request. A cast stands where undici's own fetch types meet the global ones: the same standard. */
  const send = async (url: URL, init: RequestInit): Promise<Response> => {
    checkUrl(url, openings, options.requireHttps ?? false)
    const request = { ...init, redirect: 'manual', dispatcher: agent } as Parameters<typeof undiciFetch>[1]
    try {
      return (await undiciFetch(url, request)) as unknown as Response
    } catch (error) {
      throw error instanceof TypeError && error.cause instanceof BatonError ? error.cause : error
    }
  }

  /** Whether it is known to lead somewhere. Throws for what may not be used. */
  async function leads(text: string): Promise<boolean> {
    const url = parseUrl(text)
    checkUrl(url, openings, options.requireHttps ?? false)
    const hostname = bareHostname(url.hostname)
    if (isIP(hostname) !== 0 || openings.name(hostname)) return true
    const found = await known(hostname, resolve)
    if (!allPass(found, openings)) throw notAllowed(hostname)
    return found.length > 0
  }

  return {
    async fetch(url, init = {}) {
      const deadline = timeoutMs > 0 ? AbortSignal.timeout(timeoutMs) : null
      const signals = [init.signal, deadline].filter((signal) => signal != null)
      const request =
        signals.length < 2
          ? { ...init, signal: signals[0] ?? null }
          : { ...init, signal: AbortSignal.any(signals) }
      const response = await followWithinOrigin(new URL(url), request, send)
      return capBody(response, maxBytes)
    },
    assertUrl: async (url) => void (await leads(url)),
    isReachable: (url) => leads(url).catch(() => false),
    async close() {
      await Promise.all([agent.destroy(), tunnels?.close()])
    },
  }
}

/** One guard for each set of rules that is asked for, all of them with the same limits. */
export function createGuards(limits: Omit<GuardOptions, keyof GuardRules>) {
  const guards = new Map<string, Guard>()
  return {
    of({ allowPrivate, requireHttps = false }: GuardRules): Guard {
      const name = JSON.stringify([allowPrivate, requireHttps])
      const guard = guards.get(name) ?? createGuard({ ...limits, allowPrivate, requireHttps })
      guards.set(name, guard)
      return guard
    },
    async close(): Promise<void> {
      await Promise.all([...guards.values()].map((guard) => guard.close()))
    },
  }
}

/** Cuts a body (of an event stream: one event) at a number of bytes; the reader gets a BodyTooLargeError. */
export function capBody(response: Response, maxBytes: number, onExceeded?: () => void): Response {
  if (!response.body || maxBytes === Number.POSITIVE_INFINITY) return response
  const perEvent = isEventStream(response)
  let bytes = 0
  let last = 0
  const body = response.body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        const boundary = perEvent ? afterLastBlankLine(chunk, last) : -1
        last = chunk.at(-1) ?? last
        bytes = boundary < 0 ? bytes + chunk.length : chunk.length - boundary
        if (bytes > maxBytes) {
          onExceeded?.()
          throw new BodyTooLargeError(`The answer is larger than ${maxBytes} bytes.`)
        }
        controller.enqueue(chunk)
      },
    }),
  )
  const { status, statusText, headers } = response
  return new Response(body, { status, statusText, headers: [...headers] })
}

/** Media types are written in any case (RFC 9110 8.3.1). */
export const isEventStream = ({ headers }: Response): boolean =>
  /^text\/event-stream\b/i.test(headers.get('content-type') ?? '')

/** Index behind the last empty line, where an event ends (WHATWG HTML 9.2); -1 without one. */
function afterLastBlankLine(chunk: Uint8Array, before: number): number {
  const [LF, CR] = [10, 13]
  for (let at = chunk.length - 1; at >= 0; at--) {
    if (chunk[at] !== LF) continue
    const previous = chunk[at - 1] === CR ? at - 2 : at - 1
    if ((previous < 0 ? before : chunk[previous]) === LF) return at + 1
  }
  return -1
}

function parseUrl(text: string): URL {
  if (!URL.canParse(text)) throw invalid('url', `"${text}" is not a URL.`)
  return new URL(text)
}

/** What can be told without the network: scheme, user information, literal addresses, loopback names. */
function checkUrl(url: URL, openings: Openings, requireHttps: boolean): void {
  if (url.protocol !== 'https:' && (requireHttps || url.protocol !== 'http:'))
    throw refused(`Only ${requireHttps ? 'https' : 'http and https'} URLs are allowed.`)
  if (url.username || url.password) throw refused('A URL must not hold a user name or password.')
  const hostname = bareHostname(url.hostname)
  if (openings.name(hostname)) return
  const isLoopbackName = hostname === 'localhost' || hostname.endsWith('.localhost')
  // The URL parser has turned octal, hexadecimal and short IPv4 forms into dotted quads by now.
  const passes = isIP(hostname) === 0 ? !isLoopbackName : allPass([{ address: hostname }], openings)
  // localhost means a loopback address of either family, so both must be open.
  const isOpenLoopback = isLoopbackName && openings.address('127.0.0.1') && openings.address('::1')
  if (!passes && !isOpenLoopback) throw notAllowed(hostname)
}

const bareHostname = (hostname: string): string => hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '')

/** A name's addresses as far as they can be had; the system may take half a minute where its servers do not answer. */
async function known(hostname: string, resolve: Resolve): Promise<LookupAddress[]> {
  const late = sleep(CONNECT_TIMEOUT_MS, [], { ref: false })
  return Promise.race([resolve(hostname).catch(() => []), late])
}

const allPass = (addresses: { address: string }[], openings: Openings): boolean =>
  addresses.every(({ address }) => isPublicAddress(address) || openings.address(address))

const refused = (message: string): BatonError =>
  new BatonError('address_not_allowed', message, { param: 'url' })

/** Names the host as given, never what it resolved to: that would tell a tenant of the inner network. */
const notAllowed = (hostname: string): BatonError =>
  refused(
    `${hostname} leads to a loopback, private or special address, which is not allowed. ` +
      'An operator can open it with BATON_CONNECTORS_ALLOW_PRIVATE.',
  )

/**
 * Connects only to addresses that pass; the resolver is asked once and its answer is what gets dialled. A
 * literal address is not looked up: checkUrl has judged it before each request.
 */
function guardedConnector(
  openings: Openings,
  resolve: Resolve,
  tunnels: Tunneling | null,
): buildConnector.connector {
  const lookup: LookupFunction = (hostname, options, callback) => {
    resolve(hostname).then(
      (found) => {
        const addresses = options.family ? found.filter(({ family }) => family === options.family) : found
        const [first] = addresses
        if (!openings.name(bareHostname(hostname)) && !allPass(found, openings))
          callback(notAllowed(hostname), '')
        else if (!first)
          callback(Object.assign(new Error(`${hostname} has no address`), { code: 'ENOTFOUND' }), '')
        else if (options.all) callback(null, addresses)
        else callback(null, first.address, first.family)
      },
      (error: NodeJS.ErrnoException) => callback(error, ''),
    )
  }
  const connect = buildConnector({ ...PATIENT, timeout: CONNECT_TIMEOUT_MS, lookup })
  return (options, callback) => {
    const dial = (more?: { httpSocket: Socket }) =>
      connect({ ...options, ...more }, (...[error, socket]) => {
        if (error) return callback(error, null)
        // Before undici's own listeners, which it adds next.
        for (const end of ['end', 'error', 'close']) socket.on(end, letGoOn)
        callback(null, socket)
      })
    const { protocol, hostname } = options
    const port = Number(options.port || 443)
    if (protocol !== 'https:' || !tunnels?.serve(bracketed(hostname), port)) return dial()
    tunnelTo(hostname, port, { openings, resolve, tunnels }).then(
      (httpSocket) => dial({ httpSocket }),
      (error: Error) => callback(error, null),
    )
  }
}

/** The way through the forward proxy. */
interface Tunneling extends Tunnels, Pick<ConnectorProxy, 'asksFor'> {}

/** A tunnel to a host that passes. TLS is begun behind it with the host's name, whatever the proxy is asked for. */
async function tunnelTo(
  host: string,
  port: number,
  { openings, resolve, tunnels }: { openings: Openings; resolve: Resolve; tunnels: Tunneling },
): Promise<Socket> {
  const isName = isIP(host) === 0
  const found = isName ? await known(host, resolve) : []
  if (!openings.name(bareHostname(host)) && !allPass(found, openings)) throw notAllowed(host)
  const targets = isName && tunnels.asksFor === 'address' ? found.map(({ address }) => address) : [host]
  let failure: Error = Object.assign(new Error(`${host} has no address`), { code: 'ENOTFOUND' })
  for (const target of targets) {
    try {
      return await tunnels.open(`${bracketed(target)}:${port}`)
    } catch (thrown) {
      if (!(thrown instanceof NoTunnelError)) throw thrown
      // Where the proxy itself stands is nothing for a tenant.
      const words = `${host} cannot be reached: the forward proxy gave no tunnel (${thrown.what}).`
      failure = new BatonError('upstream_disconnected', words)
    }
  }
  throw failure
}

const bracketed = (host: string): string => (isIP(host) === 6 ? `[${host}]` : host)

/** Of undici's parser, which its socket carries. */
interface Parser {
  /** The answer's reader has fallen behind */
  paused: boolean
  /** Null once it is freed */
  ptr: number | null
  llhttp: { llhttp_resume(ptr: number): void }
  execute(chunk: Uint8Array): void
}

/**
 * An answer's connection that ends, or is reset, while its reader is behind fails an assertion of undici 7 that nobody can
 * catch: any server could end the process so (nodejs/undici#5360; mended in undici 8, which needs Node 22). So the
 * parser takes what is left, as it does there; the caps on bodies hold what it gives.
 */
function letGoOn(this: Socket): void {
  const key = Object.getOwnPropertySymbols(this).find(({ description }) => description === 'parser')
  const parser = key && (this as unknown as Record<symbol, Parser | null>)[key]
  if (!parser?.paused || parser.ptr === null) return
  const resume = (ptr: number) => {
    parser.llhttp.llhttp_resume(ptr)
    parser.paused = false
  }
  let rest: Uint8Array
  do {
    resume(parser.ptr)
    rest = this.read() ?? new Uint8Array()
    parser.execute(rest)
  } while (parser.paused && rest.length > 0)
  if (parser.paused) resume(parser.ptr)
}

/** Follows redirects that keep origin and method; one that leads elsewhere is refused, not handed out. */
async function followWithinOrigin(
  start: URL,
  init: RequestInit,
  send: (url: URL, init: RequestInit) => Promise<Response>,
): Promise<Response> {
  const isRead = ['GET', 'HEAD'].includes((init.method ?? 'GET').toUpperCase())
  let url = start
  for (let hops = 0; ; hops++) {
    const response = await send(url, init)
    const location = [301, 302, 303, 307, 308].includes(response.status)
      ? response.headers.get('location')
      : null
    if (init.redirect === 'manual' || location === null || !URL.canParse(location, url.href)) return response
    await response.body?.cancel()
    const next = new URL(location, url)
    const keepsMethod = isRead || response.status === 307 || response.status === 308
    if (next.origin !== start.origin || !keepsMethod || init.redirect === 'error' || hops === MAX_REDIRECTS)
      throw refused(
        `${start.origin} redirects to ${next.origin}${next.pathname}, which is not followed. Use the final URL.`,
      )
    url = next
  }
}
