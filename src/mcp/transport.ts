/**
 * The SDK's transport for one server, as its connector says: HTTP with the guarded fetch, the connector's headers and
 * its token; or a process.
 */
import {
  type AuthProvider,
  SSEClientTransport,
  StreamableHTTPClientTransport,
  type StreamableHTTPClientTransportOptions,
  type Transport,
} from '@modelcontextprotocol/client'
import { LONGEST_MS } from '../duration.ts'
import { challengeIn } from './challenge.ts'
import { type ElicitHandler, type McpAuth, McpError, type McpServerSpec } from './contract.ts'
import { exchanges, holdingBack } from './exchange.ts'
import { createMcpFetch, refusedAuthorization } from './http.ts'
import type { Sandbox } from './sandbox.ts'
import { createStdioTransport, type StdioTransport } from './stdio.ts'
import type { Watchdog } from './watchdog.ts'

/** Settings of all connections to one server. */
export interface ConnectionSettings {
  fetch: (url: string | URL, init?: RequestInit) => Promise<Response>
  maxBytes: number
  watchdog: Watchdog
  /** Whether a server that is not configured may be a program */
  allowStdio: boolean
  sandbox: Sandbox | null
  elicit?: ElicitHandler | undefined
  /** Hears what a configured server's process said last, for the operator's log */
  onLastWords?: ((server: string, words: string) => void) | undefined
}

/** A transport, also by its kind; the HTTP transport of 2024-11-05 is neither kind. */
export interface Transports {
  transport: Transport
  stdio: StdioTransport | null
  http: StreamableHTTPClientTransport | null
}

/**
 * Transports that are not started yet; `isModern` tells of the revision that was agreed on. Throws McpError for a
 * program that its owner may not start.
 */
export function createTransport(
  spec: McpServerSpec,
  settings: ConnectionSettings,
  isModern: () => boolean,
): Transports {
  if (spec.transport === 'stdio') {
    // It was stored while the operator allowed programs.
    if (!spec.isConfigured && !settings.allowStdio) {
      const words = `${spec.name} is a program, and the operator allows callers none (BATON_ALLOW_STDIO_CONNECTORS).`
      throw new McpError('unavailable', words, { sent: false })
    }
    const stdio = createStdioTransport(spec, settings)
    return { transport: stdio, stdio, http: null }
  }
  const options = {
    fetch: createMcpFetch({
      fetch: hearing(settings.fetch, spec.auth),
      maxBytes: settings.maxBytes,
      keepsGetStream: spec.transport === 'sse',
    }),
    ...(spec.headers && { requestInit: { headers: spec.headers } }),
    ...(spec.auth && { authProvider: providerOf(spec.auth) }),
    redirectPolicy: 'same-origin' as const,
  }
  const url = new URL(spec.url ?? '')
  if (spec.transport === 'sse')
    return { transport: new SSEClientTransport(url, options), stdio: null, http: null }
  const http = new StreamableHTTPClientTransport(url, {
    ...options,
    onInsufficientScope: 'throw',
    reconnectionScheduler: resumptionPacer(isModern),
  })
  return { transport: http, stdio: null, http }
}

/** A fetch that reports what a refusal asks for. */
function hearing(fetch: ConnectionSettings['fetch'], auth: McpAuth | undefined): ConnectionSettings['fetch'] {
  if (!auth?.onChallenge) return fetch
  return async (url, init) => {
    const response = await fetch(url, init)
    const challenge = challengeIn(response)
    if (challenge) auth.onChallenge?.(challenge)
    return response
  }
}

/** Reports which token was refused: when calls are refused together, the first renews the token for all. */
const providerOf = ({ token, onUnauthorized }: McpAuth): AuthProvider => ({
  token: () => holdingBack(token),
  ...(onUnauthorized && {
    onUnauthorized: ({ response }) =>
      holdingBack(() => onUnauthorized(refusedAuthorization.get(response)?.replace(/^Bearer /, ''))),
  }),
})

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 30_000
/** A stream that lived this long was no failure: the next pause is the first again. */
const STEADY_MS = 10_000

/**
 * Paces the GETs by which the SDK resumes a call's broken stream: the server's `retry` counts, but a
 * server that cuts every stream at once is asked less and less, and not at all once the call is over.
 */
const resumptionPacer =
  (isModern: () => boolean): NonNullable<StreamableHTTPClientTransportOptions['reconnectionScheduler']> =>
  (reconnect, delay) => {
    const exchange = exchanges.getStore()
    // From 2026-07-28 on there is nothing to resume; the SDK takes an error thrown here for the stream's end.
    if (isModern() || !exchange) throw new Error('there is nothing to resume')
    if (exchange.signal.aborted) return
    const now = performance.now()
    const { pauseMs, until } = exchange.resumption ?? { pauseMs: 0, until: now }
    const grown = now - until > STEADY_MS ? 0 : pauseMs * 2
    const next = Math.min(Math.max(grown, FIRST_PAUSE_MS), LONGEST_PAUSE_MS)
    // A `retry` that is longer than a timer can run would make it fire at once.
    const wait = Math.min(Math.max(delay, next), LONGEST_MS)
    exchange.resumption = { pauseMs: next, until: now + wait }
    const timer = setTimeout(reconnect, wait).unref()
    const cancel = () => clearTimeout(timer)
    exchange.signal.addEventListener('abort', cancel, { once: true })
    return cancel
  }
