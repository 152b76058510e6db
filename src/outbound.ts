/** Connections outwards: how patiently an address is dialled, and the forward proxy of a network that has no other way out. */
import { Agent, type Dispatcher, EnvHttpProxyAgent, Pool } from 'undici'

/** Its URL, and what is reached without it: hosts and domains, separated by commas. */
export interface ForwardProxy {
  url: string
  except: string
}

/**
 * Node gives each address of a name but the last 250 ms, and none of them more at the end: a host farther away than that,
 * or whose first packet is lost, is never reached where its other address does not answer (nodejs/node#54359).
 */
export const PATIENT = { autoSelectFamily: true, autoSelectFamilyAttemptTimeout: 1_500 }

/** Relays and emulators of this machine; they alone may be plain http. */
const LOOPBACK = 'localhost,127.0.0.1,[::1]'

/** `options.connectTimeout` bounds each part of the way: to the proxy, its answer, and TLS behind it. */
export function upstreamAgent(proxy: ForwardProxy | null, options: Agent.Options): Dispatcher {
  if (!proxy || proxy.except.split(/[\s,]+/).includes('*')) return new Agent({ ...PATIENT, ...options })
  const { origin, username, password } = new URL(proxy.url)
  const asked = Buffer.from(`${decodeURIComponent(username)}:${decodeURIComponent(password)}`)
  const timeout = options.connectTimeout ?? 10_000
  // Nothing is left to the package to find in the environment.
  return new EnvHttpProxyAgent({
    ...PATIENT,
    ...options,
    httpProxy: '',
    httpsProxy: origin,
    noProxy: `${proxy.except},${LOOPBACK}`,
    ...(username !== '' && { token: `Basic ${asked.toString('base64')}` }),
    proxyTls: { ...PATIENT, timeout },
    requestTls: { timeout },
    clientFactory: (url, given) => tunnels(new Pool(url, { ...given, headersTimeout: timeout })),
  })
}

/** A proxy that gave no tunnel; the code says what it did instead. */
class NoTunnelError extends Error {
  override name = 'NoTunnelError'
  readonly code: string

  constructor(what: string, options?: ErrorOptions) {
    super('The forward proxy gave no tunnel', options)
    this.code = `FORWARD_PROXY_${what}`
  }
}

/** As an error of the connection, undici would ask for the tunnel again at once, and for ever. */
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
