/**
 * The guarded fetch for addresses that a caller gave: connectors, image URLs, OAuth metadata. A name is
 * resolved once, inside the connection attempt, and the socket uses exactly the addresses that passed:
 * nothing can be rebound between check and use. Knows nothing of MCP.
 */
import { isIP } from 'node:net'
import { Agent, fetch as undiciFetch } from 'undici'
import { parseOpenings } from './addresses.ts'
import { BatonError, invalid } from './errors.ts'
import { capBody } from './guard/body.ts'
import { type ConnectorProxy, createDialer, knownAddresses } from './guard/dial.ts'
import { assertPasses, bareHostname, checkUrl, refused } from './guard/rules.ts'
import { type Resolve, sparing, systemResolve } from './resolve.ts'
import { timeLimit } from './within.ts'

/** Most bytes of one answer, unless a guard is told otherwise. */
export const DEFAULT_MAX_BYTES = 8 * 1024 * 1024
const DEFAULT_TIMEOUT_MS = 30_000
const MAX_REDIRECTS = 5

interface GuardRules {
  /** Opens everything, nothing, or these CIDRs, addresses, host names and `*.suffix` patterns */
  allowPrivate: boolean | readonly string[]
  /** Only https is accepted (OAuth metadata and tokens); default: http too */
  requireHttps?: boolean
}
/** What one guard lets through, and its limits. */
export interface GuardOptions extends GuardRules {
  /** Most bytes of a body, decompressed; of an event stream, of one event. Default 8 MiB */
  maxBytes?: number
  /** For the whole exchange, body included; 0: no limit of its own. Default 30 s */
  timeoutMs?: number
  /** Most connections to one origin; further requests wait. Default 16 */
  connections?: number
  /** The proxy that https goes through. Null, and by default: none */
  proxy?: ConnectorProxy | null
  /** Stands in for the system's resolver in tests */
  resolve?: Resolve
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
  /** What `assertUrl` rejects with for each of a request's URLs; null: it passes. Takes no longer for all than for one. */
  refusals(urls: readonly string[]): Promise<(Error | null)[]>
  /** Whether the URL may be used and is known to lead somewhere: a name that has no address here does not. */
  isReachable(url: string): Promise<boolean>
  /** Cuts all connections. */
  close(): Promise<void>
}

/** A guard with connections of its own. */
export function createGuard(options: GuardOptions): Guard {
  const openings = parseOpenings(options.allowPrivate)
  const resolve: Resolve = options.resolve ?? systemResolve
  const maxBytes = options.maxBytes ?? DEFAULT_MAX_BYTES
  const timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS
  const dialer = createDialer(openings, resolve, options.proxy ?? null)
  const agent = new Agent({
    connect: dialer.connect,
    connections: options.connections ?? 16,
    // Streams stay silent for minutes (undici's default cuts them at 300 s); deadlines are the callers'.
    bodyTimeout: 0,
    headersTimeout: 0,
  })

  /** One request. The casts are for undici's own fetch types and the global ones, which describe the same standard. */
  const send = async (url: URL, init: RequestInit): Promise<Response> => {
    checkUrl(url, openings, options.requireHttps ?? false)
    const request = { ...init, redirect: 'manual', dispatcher: agent } as Parameters<typeof undiciFetch>[1]
    try {
      return (await undiciFetch(url, request)) as unknown as Response
    } catch (error) {
      throw error instanceof TypeError && error.cause instanceof BatonError ? error.cause : error
    }
  }

  /** Whether the URL is known to lead somewhere. Throws for one that may not be used. */
  async function leads(text: string, ask = resolve): Promise<boolean> {
    const url = parseUrl(text)
    checkUrl(url, openings, options.requireHttps ?? false)
    const hostname = bareHostname(url.hostname)
    if (isIP(hostname) !== 0 || openings.name(hostname)) return true
    const found = await knownAddresses(hostname, ask)
    assertPasses(hostname, found, openings)
    return found.length > 0
  }

  return {
    async fetch(url, init = {}) {
      const deadline = timeoutMs > 0 ? timeLimit(timeoutMs) : null
      const signals = [init.signal, deadline].filter((signal) => signal != null)
      const signal = signals.length < 2 ? (signals[0] ?? null) : AbortSignal.any(signals)
      const response = await followWithinOrigin(new URL(url), { ...init, signal }, send)
      return capBody(response, maxBytes)
    },
    assertUrl: async (url) => void (await leads(url)),
    async refusals(urls) {
      const over = new AbortController()
      const ask = sparing(resolve, over.signal)
      const passes = (url: string) =>
        leads(url, ask).then(
          () => null,
          (error: Error) => error,
        )
      return Promise.all(urls.map(passes)).finally(() => over.abort())
    },
    isReachable: (url) => leads(url).catch(() => false),
    async close() {
      await Promise.all([agent.destroy(), dialer.close()])
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

function parseUrl(text: string): URL {
  if (!URL.canParse(text)) throw invalid('url', `"${text}" is not a URL.`)
  return new URL(text)
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
