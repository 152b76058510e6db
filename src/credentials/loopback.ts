/**
 * The redirect address on this machine, open for as long as a login may take. Logins that need the same
 * port share the listener; the `state` in the request says whose answer it is.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { BatonError } from '../errors.ts'
import type { OAuthVendor } from '../oauth-vendor.ts'

/** A page for the person, after the answer was redeemed. */
export interface LoginPage {
  status: 200 | 400
  html: string
}
export interface Loopback {
  /**
   * Opens the vendor's redirect address, which it returns, for one login and so many seconds. `answer` gets
   * the query of every request to it. Throws `unavailable` where another program has the vendor's ports.
   */
  hold(
    login: string,
    vendor: OAuthVendor,
    seconds: number,
    answer: (query: URLSearchParams) => Promise<LoginPage>,
  ): Promise<string>
  /** Idempotent. A listener closes with the last login that holds it. */
  release(login: string): void
  close(): Promise<void>
}

interface Listener {
  server: Server
  port: number
  holders: number
}

export function createLoopback(): Loopback {
  /** Those at a fixed port, by vendor and port */
  const shared = new Map<string, Listener>()
  const open = new Set<Listener>()
  /** How each login lets go of its listener */
  const holds = new Map<string, () => void>()

  async function listener(
    vendor: OAuthVendor,
    answer: (query: URLSearchParams) => Promise<LoginPage>,
  ): Promise<Listener> {
    const { ports, path } = vendor.loopback
    const taken = ports.map((port) => shared.get(`${vendor.provider} ${port}`)).find((known) => known)
    if (taken) return taken
    for (const port of ports.length > 0 ? ports : [0]) {
      const server = createServer((request, response) => void serve(path, answer, request, response))
      const bound = await listen(server, port)
      if (bound === null) continue
      const made: Listener = { server, port: bound, holders: 0 }
      if (port > 0) shared.set(`${vendor.provider} ${port}`, made)
      open.add(made)
      return made
    }
    throw new BatonError(
      'unavailable',
      `The login's answer must come to port ${ports.join(' or ')} of 127.0.0.1, and another program has it: perhaps the vendor's own tool in the middle of a login. Stop that, or log in with mode paste.`,
      { retryAfter: 5 },
    )
  }

  function leave(vendor: OAuthVendor, held: Listener): void {
    held.holders--
    if (held.holders > 0) return
    shared.delete(`${vendor.provider} ${held.port}`)
    open.delete(held)
    // Requests under way get their page.
    held.server.close()
  }

  function release(login: string): void {
    const end = holds.get(login)
    holds.delete(login)
    end?.()
  }

  return {
    release,
    async hold(login, vendor, seconds, answer) {
      const held = await listener(vendor, answer)
      held.holders++
      const timer = setTimeout(() => release(login), seconds * 1000).unref()
      holds.set(login, () => {
        clearTimeout(timer)
        leave(vendor, held)
      })
      return `http://${vendor.loopback.host}:${held.port}${vendor.loopback.path}`
    },
    async close() {
      for (const login of [...holds.keys()]) release(login)
      for (const { server } of open) {
        server.close()
        server.closeAllConnections()
      }
      open.clear()
      shared.clear()
    },
  }
}

/** The port, or null where another program listens there. The address says localhost; the listener is IPv4. */
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
  path: string,
  answer: (query: URLSearchParams) => Promise<LoginPage>,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const [pathname, query] = (request.url ?? '').split('?', 2)
  if (request.method !== 'GET' || pathname !== path) return void response.writeHead(404).end()
  try {
    const { status, html } = await answer(new URLSearchParams(query))
    response.writeHead(status, { ...PAGE_HEADERS, connection: 'close' }).end(html)
  } catch {
    // Logged where it happened.
    response
      .writeHead(503, { 'content-type': 'text/plain' })
      .end('Baton cannot finish the login at the moment.')
  }
}

/** For pages whose address holds a code: kept nowhere, told to nobody, without any content of others. */
export const PAGE_HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'cache-control': 'no-store',
  'referrer-policy': 'no-referrer',
  'content-security-policy': "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
}
