/**
 * A login service and the MCP server behind it (MCP 2025-11-25 "Authorization": RFC 9728, 8414, 7591, PKCE). It is
 * strict where a client can err: exact redirect addresses, S256, codes and refresh tokens that are used once. Each
 * login is another user's. The service records which user's token came with which request.
 */
import { createHash, randomUUID } from 'node:crypto'
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  request,
  type ServerResponse,
} from 'node:http'
import { text } from 'node:stream/consumers'
import { listen } from '../listening.ts'

export interface McpLogins {
  /** Address of the guarded server */
  url: string
  origin: string
  /** Requests that passed, with the user whose token they carried */
  passed: { user: string; headers: IncomingHttpHeaders }[]
  /** Token requests by grant type */
  grants: Record<string, number>
  /** Clients that registered themselves */
  clients: Record<string, unknown>[]
  /** Secrets that were handed out: tokens and client secrets */
  secrets: string[]
  /** From now on the access tokens handed out so far are refused and, with `refresh`, cannot be renewed. */
  revoke(options?: { refresh: boolean }): void
  /** From now on clients that registered themselves are unknown, and their tokens cannot be renewed. */
  forget(): void
  /**
   * From now on it refuses what Microsoft's service does: requests that name a resource, and renewals that do not name
   * the scope that was asked for.
   */
  beMicrosofts(): void
  /** Token requests are answered with this status from now on; null: as usual. */
  outage(status: number | null): void
  /** Replaces the protected resource's metadata. */
  metadata(document: Record<string, unknown> | null): void
  /** From now on a path is answered with this in place of its page; null: with its page again. */
  instead(path: string, answer: Instead | null): void
  /** Changes token answers from now on; null: no longer. */
  told(change: ((answer: Record<string, unknown>) => Record<string, unknown>) | null): void
  /** From now on the answers of the metadata, or of the token endpoint after its work, wait for this. */
  hold(what: 'metadata' | 'token', until: (() => Promise<unknown>) | null): void
  close(): Promise<void>
}

interface Instead {
  status: number
  body?: string
  headers?: Record<string, string>
  /** Only where this is the HTTP method */
  method?: string
}

interface Grant {
  user: string
  client_id: string
  /** As it was asked for */
  scope: string
}

export interface McpLoginsOptions {
  /** The MCP server that is guarded */
  upstream: string
  /** Seconds for which an access token is valid */
  expires_in?: number
  /** No client can register itself; only this client is known */
  client?: { client_id: string; client_secret: string }
  /** The service accepts clients by their documents, which this function reads */
  document?(client_id: string): Promise<Record<string, unknown>>
  /** Path of the issuer */
  tenant?: string
  /** The service gives no refresh tokens */
  refreshless?: boolean
  /** What the service calls itself, if not by its address */
  named?(address: string): string
  /** How clients may prove who they are: a registration that asks for another way is refused */
  methods?: readonly string[]
  /** Changes the answers to registrations */
  registered?(answer: Record<string, unknown>): Record<string, unknown>
  /** Where the service says that browsers log in, if not here */
  page?: string
  /** The server's metadata are at this path, which only the refusal of a POST tells */
  hidden?: string
}

const METHODS = ['client_secret_post', 'client_secret_basic', 'none']

export async function createMcpLogins(options: McpLoginsOptions): Promise<McpLogins> {
  const codes = new Map<
    string,
    Grant & { challenge: string; redirect_uri: string; resource: string | null }
  >()
  const access = new Map<string, Grant>()
  const refresh = new Map<string, Grant>()
  const known = new Map<string, { redirect_uris: string[] | null; secret: string | null }>()
  if (options.client) {
    known.set(options.client.client_id, { redirect_uris: null, secret: options.client.client_secret })
  }
  let users = 0
  let outage: number | null = null
  let isMicrosofts = false
  let metadata: Record<string, unknown> | null = null
  let told = (answer: Record<string, unknown>) => answer
  const instead = new Map<string, Instead>()
  const held: Partial<Record<'metadata' | 'token', () => Promise<unknown>>> = {}

  const server = createServer((incoming, response) => {
    serve(incoming, response).catch(() => response.destroy())
  })
  const { port, close } = await listen(server)
  const origin = `http://127.0.0.1:${port}`
  const { tenant = '' } = options
  const address = `${origin}${tenant}`
  const issuer = options.named?.(address) ?? address
  const { hidden, methods = METHODS, registered = (answer) => answer } = options
  const resource = hidden ?? '/.well-known/oauth-protected-resource/mcp'

  const made: McpLogins = {
    url: `${origin}/mcp`,
    origin,
    passed: [],
    grants: {},
    clients: [],
    secrets: [],
    revoke({ refresh: isAll } = { refresh: false }) {
      access.clear()
      if (isAll) refresh.clear()
    },
    forget() {
      known.clear()
      refresh.clear()
    },
    beMicrosofts() {
      isMicrosofts = true
    },
    outage(status) {
      outage = status
    },
    metadata(document) {
      metadata = document
    },
    instead(path, answer) {
      if (answer) instead.set(path, answer)
      else instead.delete(path)
    },
    told(change) {
      told = change ?? ((answer) => answer)
    },
    hold(what, until) {
      if (until) held[what] = until
      else delete held[what]
    },
    close,
  }

  const PAGES: Record<string, (incoming: IncomingMessage, url: URL, response: ServerResponse) => unknown> = {
    '/mcp': guarded,
    [resource]: (_, __, response) =>
      json(
        response,
        200,
        metadata ?? { resource: made.url, authorization_servers: [address], scopes_supported: ['tools'] },
      ),
    [`/.well-known/oauth-authorization-server${tenant}`]: (_, __, response) =>
      json(response, 200, {
        issuer,
        authorization_endpoint: options.page ?? `${origin}/authorize`,
        token_endpoint: `${origin}/token`,
        ...(options.client ? {} : { registration_endpoint: `${origin}/register` }),
        ...(options.document && { client_id_metadata_document_supported: true }),
        response_types_supported: ['code'],
        code_challenge_methods_supported: ['S256'],
        authorization_response_iss_parameter_supported: true,
        token_endpoint_auth_methods_supported: methods,
      }),
    '/register': register,
    '/authorize': authorize,
    '/token': token,
  }

  async function serve(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(incoming.url ?? '/', origin)
    if (url.pathname.startsWith('/.well-known/')) await held.metadata?.()
    const other = instead.get(url.pathname)
    if (other && (other.method ?? incoming.method) === incoming.method)
      return void response.writeHead(other.status, other.headers).end(other.body)
    const page = PAGES[url.pathname]
    if (!page) return void response.writeHead(404).end()
    await page(incoming, url, response)
  }

  function guarded(incoming: IncomingMessage, _: URL, response: ServerResponse): void {
    const grant = access.get(/^Bearer (.+)$/.exec(incoming.headers.authorization ?? '')?.[1] ?? '')
    if (!grant) {
      if (hidden !== undefined && incoming.method === 'GET') return void response.writeHead(405).end()
      const where = `${origin}${resource}`
      response.setHeader('www-authenticate', `Bearer resource_metadata="${where}", scope="tools"`)
      return void response.writeHead(401).end()
    }
    made.passed.push({ user: grant.user, headers: incoming.headers })
    const onward = request(
      options.upstream,
      { method: incoming.method, headers: incoming.headers },
      (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers)
        response.flushHeaders()
        answer.pipe(response)
      },
    )
    onward.on('error', () => response.destroy())
    response.on('close', () => onward.destroy())
    incoming.pipe(onward)
  }

  async function register(incoming: IncomingMessage, _: URL, response: ServerResponse): Promise<void> {
    const asked = JSON.parse(await text(incoming)) as {
      redirect_uris: string[]
      token_endpoint_auth_method?: string
    }
    const { redirect_uris, token_endpoint_auth_method: method = 'client_secret_basic' } = asked
    if (!methods.includes(method)) return json(response, 400, { error: 'invalid_client_metadata' })
    const client_id = `client-${randomUUID()}`
    const client_secret = method === 'none' ? null : secret('client-secret')
    made.clients.push({ ...asked, client_id })
    known.set(client_id, { redirect_uris, secret: client_secret })
    const answer = client_secret === null ? {} : { client_secret, client_secret_expires_at: 0 }
    json(response, 201, registered({ ...asked, client_id, ...answer }))
  }

  /**
   * Learns a client from its document, which must name its own address as the client, and a client without a secret.
   */
  async function meet(client_id: string): Promise<void> {
    if (!options.document || !client_id.startsWith('https:')) return
    const said = await options.document(client_id)
    const { redirect_uris, client_name, token_endpoint_auth_method = 'client_secret_basic' } = said
    const isWhole = typeof client_name === 'string' && Array.isArray(redirect_uris)
    if (said.client_id !== client_id || token_endpoint_auth_method !== 'none' || !isWhole) return
    known.set(client_id, { redirect_uris, secret: null })
  }

  /** Every person agrees at once, and is a new user. */
  async function authorize(_: IncomingMessage, url: URL, response: ServerResponse): Promise<void> {
    const asked = (name: string) => url.searchParams.get(name) ?? ''
    await meet(asked('client_id'))
    const client = known.get(asked('client_id'))
    const redirect_uri = asked('redirect_uri')
    const isKnown = client && (client.redirect_uris === null || client.redirect_uris.includes(redirect_uri))
    if (!isKnown) return json(response, 400, { error: 'invalid_client' })
    const back = new URL(redirect_uri)
    back.searchParams.set('state', asked('state'))
    back.searchParams.set('iss', issuer)
    if (asked('code_challenge_method') !== 'S256' || asked('response_type') !== 'code') {
      back.searchParams.set('error', 'invalid_request')
    } else {
      const code = randomUUID()
      const grant = { user: `user-${++users}`, client_id: asked('client_id'), scope: asked('scope') }
      const resource = url.searchParams.get('resource')
      codes.set(code, { ...grant, challenge: asked('code_challenge'), redirect_uri, resource })
      back.searchParams.set('code', code)
    }
    response.writeHead(302, { location: back.href }).end()
  }

  async function token(incoming: IncomingMessage, _: URL, response: ServerResponse): Promise<void> {
    const form = new URLSearchParams(await text(incoming))
    const grant_type = form.get('grant_type') ?? ''
    made.grants[grant_type] = (made.grants[grant_type] ?? 0) + 1
    if (outage !== null) return void response.writeHead(outage).end('out of order')
    const [client_id, given] = clientOf(incoming, form)
    const client = known.get(client_id)
    if (!client || (client.secret !== null && client.secret !== given)) {
      return json(response, 401, { error: 'invalid_client' })
    }
    const grant = grant_type === 'refresh_token' ? renewed(form) : redeemed(form)
    if (!grant || grant.client_id !== client_id) return json(response, 400, { error: 'invalid_grant' })
    const [access_token, refresh_token] = [secret('access'), secret('refresh')]
    access.set(access_token, grant)
    if (!options.refreshless) refresh.set(refresh_token, grant)
    const expires_in = options.expires_in ?? 3600
    const answer = { access_token, token_type: 'Bearer', expires_in, scope: 'tools' }
    await held.token?.()
    json(response, 200, told(options.refreshless ? answer : { ...answer, refresh_token }))
  }

  function redeemed(form: URLSearchParams): Grant | null {
    const code = form.get('code') ?? ''
    const found = codes.get(code)
    codes.delete(code)
    const proof = createHash('sha256')
      .update(form.get('code_verifier') ?? '')
      .digest('base64url')
    const named = nameable()
    const fits =
      found?.challenge === proof &&
      found.redirect_uri === form.get('redirect_uri') &&
      found.resource === named &&
      form.get('resource') === named
    return fits ? { user: found.user, client_id: found.client_id, scope: found.scope } : null
  }

  /** The resource that token requests must name; none while its metadata are not there. */
  const nameable = () =>
    isMicrosofts || instead.get(resource)?.status === 404 ? null : (metadata?.resource ?? made.url)

  function renewed(form: URLSearchParams): Grant | null {
    if (form.get('resource') !== nameable()) return null
    const old = form.get('refresh_token') ?? ''
    const grant = refresh.get(old) ?? null
    if (isMicrosofts && form.get('scope') !== grant?.scope) return null
    refresh.delete(old)
    return grant
  }

  function secret(kind: string): string {
    const text = `mcp-${kind}-${randomUUID()}`
    made.secrets.push(text)
    return text
  }
  return made
}

function clientOf({ headers }: IncomingMessage, form: URLSearchParams): [id: string, secret: string | null] {
  const basic = /^Basic (.+)$/.exec(headers.authorization ?? '')?.[1]
  if (basic === undefined) return [form.get('client_id') ?? '', form.get('client_secret')]
  const [id = '', secret = ''] = Buffer.from(basic, 'base64').toString().split(':').map(decodeURIComponent)
  return [id, secret]
}

const json = (response: ServerResponse, status: number, body: object): void =>
  void response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
