/** Makes the guard's connections: to the very addresses that were checked, or through the forward proxy. */
import { isIP, type Socket } from 'node:net'
import { buildConnector } from 'undici'
import { inUrl, type Openings } from '../addresses.ts'
import { BatonError } from '../errors.ts'
import { createTunnels, type ForwardProxy, NoTunnelError, PATIENT, type Tunnels } from '../outbound.ts'
import { lookupBy, noAddress, type Resolve } from '../resolve.ts'
import { within } from '../within.ts'
import { assertPasses } from './rules.ts'

const CONNECT_TIMEOUT_MS = 5_000
/** Most addresses of a name that one connection tries: a stranger's name may lead to thousands of other people's. */
const MOST_TRIED = 16

/**
 * A forward proxy, and what it is asked for: the address that was checked here, or the host's name, which the proxy
 * resolves and judges itself.
 */
export interface ConnectorProxy extends ForwardProxy {
  asksFor: 'address' | 'name'
}

/**
 * A name's addresses, none if they take too long: the system may take half a minute if the name's servers do not
 * answer.
 */
export async function knownAddresses(hostname: string, resolve: Resolve): Promise<string[]> {
  const asking = resolve(hostname).catch(() => [])
  return addressesOf((await within(CONNECT_TIMEOUT_MS, asking)) ?? [])
}

const addressesOf = (found: readonly { address: string }[]): string[] => found.map(({ address }) => address)

/** Makes the connections of one guard, only to hosts that pass. */
interface Dialer {
  /** In the form that an agent of undici takes */
  connect: buildConnector.connector
  /** Closes the connections to the proxy. */
  close(): Promise<void>
}

/**
 * The resolver is asked once for a name and its answer is what gets dialled. A literal address is not looked up:
 * checkUrl has judged it before each request.
 */
export function createDialer(openings: Openings, resolve: Resolve, proxy: ConnectorProxy | null): Dialer {
  const tunnels = proxy ? { ...createTunnels(proxy, CONNECT_TIMEOUT_MS), asksFor: proxy.asksFor } : null
  const lookup = lookupBy(async (hostname) => {
    const found = await resolve(hostname)
    assertPasses(hostname, addressesOf(found), openings)
    return found.slice(0, MOST_TRIED)
  })
  const connect = buildConnector({ ...PATIENT, timeout: CONNECT_TIMEOUT_MS, lookup })
  return {
    connect(options, callback) {
      const dial = (more?: { httpSocket: Socket }) =>
        connect({ ...options, ...more }, (...[error, socket]) => {
          if (error) return callback(error, null)
          // Before undici's own listeners, which it adds next.
          for (const end of ['end', 'error', 'close']) socket.on(end, finishParsing)
          callback(null, socket)
        })
      const { protocol, hostname } = options
      const port = Number(options.port || 443)
      if (protocol !== 'https:' || !tunnels?.serve(inUrl(hostname), port)) return dial()
      tunnelTo(hostname, port, { openings, resolve, tunnels }).then(
        (httpSocket) => dial({ httpSocket }),
        (error: Error) => callback(error, null),
      )
    },
    close: async () => tunnels?.close(),
  }
}

interface Tunneling {
  openings: Openings
  resolve: Resolve
  tunnels: Tunnels & Pick<ConnectorProxy, 'asksFor'>
}

/** A tunnel to a host that passes. TLS is begun behind it with the host's name, whatever the proxy is asked for. */
async function tunnelTo(
  host: string,
  port: number,
  { openings, resolve, tunnels }: Tunneling,
): Promise<Socket> {
  const isName = isIP(host) === 0
  const found = isName ? await knownAddresses(host, resolve) : []
  assertPasses(host, found, openings)
  const targets = isName && tunnels.asksFor === 'address' ? found.slice(0, MOST_TRIED) : [host]
  let failure: Error = noAddress(host)
  for (const target of targets) {
    try {
      return await tunnels.open(`${inUrl(target)}:${port}`)
    } catch (thrown) {
      if (!(thrown instanceof NoTunnelError)) throw thrown
      // A tenant is not told where the proxy itself is.
      const words = `${host} cannot be reached: the forward proxy gave no tunnel (${thrown.what}).`
      failure = new BatonError('upstream_disconnected', words)
    }
  }
  throw failure
}

/** The members needed of undici's parser, which its socket carries. */
interface Parser {
  /** The answer's reader has fallen behind */
  paused: boolean
  /** Null once it is freed */
  ptr: number | null
  llhttp: { llhttp_resume(ptr: number): void }
  execute(chunk: Uint8Array): void
}

/**
 * When an answer's connection ends, or is reset, while its reader is behind, an assertion of undici 7 fails that nobody
 * can catch: any server could end the process that way (nodejs/undici#5360; fixed in undici 8, which needs Node 22). So
 * the parser takes what is left, as undici 8's does; the caps on bodies bound what it gives.
 */
function finishParsing(this: Socket): void {
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
