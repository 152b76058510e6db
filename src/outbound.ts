/**
 * Outbound connections: how patiently an address is dialled, and the forward proxy of a network that has no other way
 * out.
 */
import type { Socket } from 'node:net'
import { Agent, type Dispatcher, EnvHttpProxyAgent, Pool } from 'undici'
import { lookupBy, remembering } from './resolve.ts'

/** A proxy's URL, and the hosts and domains that are reached without it, separated by commas. */
export interface ForwardProxy {
  url: string
  except: string
}

/**
 * Node tries a name's addresses one after the other, gives each but the last 250 ms, and comes back to none of them. If
 * the last one does not answer, a host that is farther away, or whose first packet is lost, is not reached
 * (nodejs/node#54359).
 */
export const PATIENT = { autoSelectFamily: true, autoSelectFamilyAttemptTimeout: 1_500 }

/**
 * For requests whose answers nobody unpacks. If a request says nothing of it, its answer may be compressed, and now and
 * then a vendor's edge does so (Wei-Shaw/claude-relay-service#1027).
 */
export const UNPACKED = { 'accept-encoding': 'identity' }

/** Relays and emulators of this machine; they alone may be plain http. */
const LOOPBACK = 'localhost,127.0.0.1,[::1]'

/**
 * An agent for addresses from the settings. `options.connectTimeout` bounds each part of the way: to the proxy, its
 * answer, and TLS behind it.
 */
export function upstreamAgent(proxy: ForwardProxy | null, options: Agent.Options): Dispatcher {
  const lookup = lookupBy(remembering())
  const direct = { ...PATIENT, ...options, connect: { lookup } }
  if (!proxy || proxy.except.split(/[\s,]+/).includes('*')) return new Agent(direct)
  const { origin, token } = accessTo(proxy)
  const timeout = options.connectTimeout ?? 10_000
  // All three are given, so that the package reads none from the environment.
  return new EnvHttpProxyAgent({
    ...direct,
    httpProxy: '',
    httpsProxy: origin,
    noProxy: `${proxy.except},${LOOPBACK}`,
    ...(token !== null && { token }),
    proxyTls: { ...PATIENT, timeout, lookup },
    requestTls: { timeout },
    clientFactory: (url, given) => tunnels(new Pool(url, { ...given, headersTimeout: timeout })),
  })
}

/** Tunnels through the proxy, for code that dials by itself. */
export interface Tunnels {
  /** Whether this host, named as in a URL, is reached through the proxy */
  serve(host: string, port: number): boolean
  /** A connection to `host:port`. Rejects with NoTunnelError. */
  open(target: string): Promise<Socket>
  close(): Promise<void>
}

/** `timeout` bounds the way to the proxy, and its answer. */
export function createTunnels(proxy: ForwardProxy, timeout: number): Tunnels {
  const { origin, token } = accessTo(proxy)
  const pool = tunnels(new Pool(origin, { connect: { ...PATIENT, timeout }, headersTimeout: timeout }))
  const excepted = exceptions(`${proxy.except},${LOOPBACK}`)
  return {
    serve: (host, port) => !excepted.some((exception) => exception(host.toLowerCase(), port)),
    async open(target) {
      const headers = { host: target, ...(token !== null && { 'proxy-authorization': token }) }
      const { socket } = await pool.connect({ path: target, headers })
      return socket as Socket
    },
    close: () => pool.destroy(),
  }
}

/** As EnvHttpProxyAgent reads them: `host`, `.domain` and `*.domain` alike, a port after a colon, `*` for all. */
const exceptions = (list: string): ((host: string, port: number) => boolean)[] =>
  list
    .toLowerCase()
    .split(/[\s,]+/)
    .filter((entry) => entry !== '')
    .map((entry) => {
      const [, name = entry, only] = /^(.+):(\d+)$/.exec(entry) ?? []
      const bare = name.replace(/^\*?\./, '')
      return (host, port) =>
        bare === '*' ||
        ((host === bare || host.endsWith(`.${bare}`)) && (only === undefined || Number(only) === port))
    })

function accessTo({ url }: ForwardProxy): { origin: string; token: string | null } {
  const { origin, username, password } = new URL(url)
  const asked = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  return { origin, token: asked === ':' ? null : `Basic ${Buffer.from(asked).toString('base64')}` }
}

/** A proxy that gave no tunnel; the code says what it did instead. */
export class NoTunnelError extends Error {
  override name = 'NoTunnelError'
  readonly what: string
  readonly code: string

  constructor(what: string, options?: ErrorOptions) {
    super(`The forward proxy gave no tunnel: ${what}`, options)
    this.what = what
    this.code = `FORWARD_PROXY_${what}`
  }
}

/**
 * Fails with an error of our own: after a connection's own error undici would ask for the tunnel again at once, for
 * ever.
 */
function tunnels(pool: Pool): Pool {
  const connect = pool.connect.bind(pool)
  return Object.assign(pool, {
    async connect(asked: Dispatcher.ConnectOptions): Promise<Dispatcher.ConnectData> {
      const answer = await connect(asked).catch((cause: unknown) => {
        throw new NoTunnelError('UNREACHABLE', { cause })
      })
      if (answer.statusCode === 200) return answer
      answer.socket.on('error', () => {}).destroy()
      throw new NoTunnelError(`${answer.statusCode}`)
    },
  })
}
