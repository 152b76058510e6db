/** How requests leave for a deployment: their address and headers, over connections that they all share. */
import type { Config } from '../config/config.ts'
import { BatonError } from '../errors.ts'
import { type ForwardProxy, UNPACKED, upstreamAgent } from '../outbound.ts'
import type { CredentialFacts, CredentialSecret, Deployment } from '../provider.ts'
import { USER_AGENT } from '../version.ts'
import { Exchange, type ExchangeRequest } from './exchange.ts'

/** Shorter than the idle time of common load balancers (60 s), so that a socket is seldom closed under a request. */
const KEEP_ALIVE_MS = 55_000
/** Between two looks at the clock, … */
const LOOK_MS = 5_000
/** … and how much later than the last look tells of a sleep. */
const SLEPT_MS = 30_000

export interface RequestsDeps {
  /** The upstream root of a deployment, without a trailing slash */
  baseUrl(deployment: Deployment): string
  limits: Pick<
    Config['limits'],
    'upstreamConnections' | 'connectTimeoutMs' | 'firstByteTimeoutMs' | 'idleTimeoutMs'
  >
  forwardProxy: ForwardProxy | null
}

/** The credential that a request goes out with, and its other headers. */
interface HeadersInput {
  secret: CredentialSecret
  facts: CredentialFacts
  /** Headers of the request itself; authorization, user agent and encoding override them */
  headers: Readonly<Record<string, string>>
}

interface Outgoing extends HeadersInput, Pick<ExchangeRequest, 'body' | 'signal' | 'beforeSend'> {
  /** Joined to the deployment's root */
  path: string
}

export interface Requests {
  url(deployment: Deployment, path: string): URL
  /** Throws `upstream_auth` for a credential that no header can carry. */
  headers(deployment: Deployment, input: HeadersInput): Record<string, string>
  /** Begins the exchange; throws as `headers` does. */
  send(deployment: Deployment, outgoing: Outgoing): Exchange
  /** Destroys the connections; exchanges under way fail with `draining`. */
  close(): Promise<void>
}

export function createRequests(deps: RequestsDeps): Requests {
  const { firstByteTimeoutMs, idleTimeoutMs } = deps.limits
  const connections = openConnections(deps)

  const url = (deployment: Deployment, path: string) => new URL(deps.baseUrl(deployment) + path)
  const headersFor: Requests['headers'] = (deployment, { secret, facts, headers }) => ({
    ...headers,
    ...UNPACKED,
    'user-agent': USER_AGENT,
    ...sendable(deployment.authorize(secret, facts)),
  })
  return {
    url,
    headers: headersFor,
    send: (deployment, { secret, facts, headers, path, ...request }) =>
      new Exchange({
        ...request,
        dispatcher: connections.awake(),
        url: url(deployment, path),
        headers: headersFor(deployment, { secret, facts, headers }),
        firstByteMs: firstByteTimeoutMs,
        idleMs: idleTimeoutMs,
      }),
    close: connections.close,
  }
}

/**
 * Connections that slept with the machine look as fresh as before, since undici counts ticks of its own: a request on one
 * of them reaches nobody, and waits as long as it may (anthropics/claude-code#32116). After a sleep there are new ones.
 */
function openConnections(deps: RequestsDeps) {
  let agent = newAgent(deps)
  let seenAt = Date.now()
  function awake() {
    const now = Date.now()
    if (now - seenAt > SLEPT_MS) {
      // Once the exchanges under way are over: `close` below does not reach them, but a stop ends them by their signals.
      void agent.close()
      agent = newAgent(deps)
    }
    seenAt = now
    return agent
  }
  const looks = setInterval(awake, LOOK_MS).unref()
  return {
    awake,
    close() {
      clearInterval(looks)
      return agent.destroy()
    },
  }
}

/** TCP_NODELAY is undici's own default; no pipelining, since every answer is a long stream. */
const newAgent = ({ limits, forwardProxy }: RequestsDeps) =>
  upstreamAgent(forwardProxy, {
    connections: limits.upstreamConnections,
    connectTimeout: limits.connectTimeoutMs,
    keepAliveTimeout: KEEP_ALIVE_MS,
    pipelining: 1,
  })

function sendable(headers: Record<string, string>): Record<string, string> {
  for (const [name, value] of Object.entries(headers)) {
    // undici would refuse such a value, too, but as a fault of ours.
    if (!/[^\t\x20-\x7e\x80-\xff]/.test(value)) continue
    const words = `The credential holds characters that the header ${name} cannot carry. Store it again.`
    throw new BatonError('upstream_auth', words)
  }
  return headers
}
