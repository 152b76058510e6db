/**
 * The redirect address on this machine, open for as long as a login may take. Logins that need the same
 * port share the listener; the `state` in the request says whose answer it is.
 */
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http'
import type { AddressInfo } from 'node:net'
import { BatonError } from '../../errors.ts'
import type { OAuthVendor } from '../../oauth-vendor.ts'
import { type LoginPage, PAGE_HEADERS } from './page.ts'

type Vendor = Pick<OAuthVendor, 'provider' | 'loopback'>
/** Gets the query of every request to a vendor's redirect address. */
type Answer = (provider: string, query: Readonly<Record<string, string>>) => Promise<LoginPage>
export interface Loopback {
  /**
   * Opens the vendor's redirect address, which it returns, for one login and for `seconds`. Throws `unavailable` if
   * another program has the vendor's ports.
   */
  hold(login: string, vendor: Vendor, seconds: number): Promise<string>
  /** Idempotent. A listener closes with the last login that holds it. */
  release(login: string): void
  /** Resolves once every request that has come already got its page: its code is good for one try. */
  close(): Promise<void>
}

interface Listener {
  /** Rejects if no port could be had */
  bound: Promise<{ server: Server; port: number }>
  holders: number
}

export function createLoopback(answer: Answer): Loopback {
  /** Listeners at a fixed port, by vendor */
  const shared = new Map<string, Listener>()
  /** How each login lets go of its listener */
  const holds = new Map<string, () => void>()
  const underWay = new Set<Promise<unknown>>()

  function listener(vendor: Vendor): Listener {
    const { provider, loopback } = vendor
    const known = shared.get(provider)
    if (known) return known
    const serving: RequestListener = (request, response) => {
      const served = serve(vendor, answer, request, response).finally(() => underWay.delete(served))
      underWay.add(served)
    }
    const made = { bound: bind(loopback.ports, serving), holders: 0 }
    if (loopback.ports.length > 0) shared.set(provider, made)
    return made
  }

  function leave({ provider }: Vendor, held: Listener): void {
    held.holders--
    if (held.holders > 0) return
    shared.delete(provider)
    void held.bound.then(
      async ({ server }) => {
        server.close()
        // Requests under way get their page. Spare connections that browsers have opened would keep the process alive.
        await Promise.all(underWay)
        server.closeAllConnections()
      },
      () => {},
    )
  }

  function release(login: string): void {
    const end = holds.get(login)
    holds.delete(login)
    end?.()
  }

  return {
    release,
    async hold(login, vendor, seconds) {
      const held = listener(vendor)
      held.holders++
      const timer = setTimeout(() => release(login), seconds * 1000).unref()
      holds.set(login, () => {
        clearTimeout(timer)
        leave(vendor, held)
      })
      try {
        const { port } = await held.bound
        return `http://${vendor.loopback.host}:${port}${vendor.loopback.path}`
      } catch (error) {
        release(login)
        throw error
      }
    },
    async close() {
      for (const login of [...holds.keys()]) release(login)
      await Promise.all(underWay)
    },
  }
}

async function bind(ports: readonly number[], serving: RequestListener) {
  for (const wanted of ports.length > 0 ? ports : [0]) {
    const server = createServer(serving)
    const port = await listen(server, wanted)
    if (port !== null) return { server, port }
  }
  throw new BatonError(
    'unavailable',
    `The login's answer must come to port ${ports.join(' or ')} of 127.0.0.1, and another program has it: perhaps the vendor's own tool in the middle of a login. Stop that, or log in with mode paste.`,
    { retryAfter: 5 },
  )
}

/** The port, or null if another program listens there. The address says localhost; the listener is IPv4. */
const listen = (server: Server, port: number): Promise<number | null> =>
  new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) =>
      error.code === 'EADDRINUSE' || error.code === 'EACCES' ? resolve(null) : reject(error),
    )
    server.listen(port, '127.0.0.1', () => {
      server.unref()
      resolve((server.address() as AddressInfo).port)
    })
  })

async function serve(
  { provider, loopback }: Vendor,
  answer: Answer,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const over = new Promise((resolve) => response.once('close', resolve))
  const [pathname, query] = (request.url ?? '').split('?', 2)
  if (request.method !== 'GET' || pathname !== loopback.path) return void response.writeHead(404).end()
  try {
    const { status, html } = await answer(provider, Object.fromEntries(new URLSearchParams(query)))
    response.writeHead(status, { ...PAGE_HEADERS, connection: 'close' }).end(html)
  } catch {
    // Logged where it happened.
    response
      .writeHead(503, { 'content-type': 'text/plain' })
      .end('Baton cannot finish the login at the moment.')
  }
  await over
}
