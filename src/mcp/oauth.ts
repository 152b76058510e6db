/**
 * Logins at MCP servers (MCP 2026-07-28 "Authorization"): discovery, registration, PKCE, renewal. Every
 * address comes from a server that a caller named, so all of them go through the guarded fetch. Keeps
 * nothing: what must be kept is handed out as JSON, secrets in it. The flow itself is oauth-flow.ts, which
 * is loaded with the first login, as the SDK costs half a second.
 */
import { isLoopback } from '../addresses.ts'
import { BatonError } from '../errors.ts'
import type { ConnectorProxy } from '../guard/dial.ts'
import { createGuards } from '../guard.ts'
import type { Resolve } from '../resolve.ts'
import type { McpChallenge, McpServerSpec } from './contract.ts'

/** What a login at one server is made of. Secret. */
export interface McpLogin {
  /** The client that the server's issuer knows us by, registered or given: `client_id`, `client_secret`? … */
  client?: McpClient
  /** What the login service calls itself, where its owner said so: its metadata must say the same */
  issuer?: string
  /** What its owner wants asked for, whatever the server says */
  scope?: string
  /** What its server refused the tokens for lack of: the next login asks for it */
  lacking?: string
  /** Why nothing renews it any more, for its owner to read */
  over?: string
  tokens?: McpTokens
  /** When the access token ends, milliseconds since the epoch */
  expires_at?: number
  /** Not known of logins that former versions made */
  metadata?: McpMetadata
}
/** What was found when the login was made: a renewal that finds less waits until it is there again. */
export interface McpMetadata {
  /** Where the server's refusal said that its metadata is */
  resource_metadata?: string
  has_resource: boolean
  has_issuer: boolean
}
/** Who we are to one login server: registered, or made there by hand. */
export interface McpClient {
  client_id: string
  client_secret?: string
  [field: string]: unknown
}
/** What a token endpoint answered. Secret. */
export interface McpTokens {
  access_token: string
  token_type: string
  refresh_token?: string
  [field: string]: unknown
}
/** A login on its way, until the browser comes back. Secret. */
export interface McpPending {
  login: McpLogin
  verifier: string
  /** What was discovered when it began: the answer must come from there */
  discovery: unknown
  redirect_url: string
  challenge: McpChallenge | null
  /** What was asked for; not known of logins that a former version began */
  scope?: string
}
/** The server that a login is for. */
export type McpLoginTarget = Pick<McpServerSpec, 'name' | 'allowPrivate'> & { url: string }

/** Logins at MCP servers, a step at a time: what a step needs of the one before is data that the caller keeps. */
export interface McpOAuth {
  /**
   * Where a browser logs in. `login`: what is known of an earlier one. Throws BatonError `address_not_allowed`,
   * `not_available` (no way to register), `upstream_rejected`, `upstream_overloaded` (it may work later).
   */
  begin(
    target: McpLoginTarget,
    begin: BeginLogin,
  ): Promise<{ authorization_url: string; pending: McpPending }>
  /** The redirect's query for tokens. Throws BatonError `upstream_rejected`, `upstream_overloaded`. */
  finish(target: McpLoginTarget, pending: McpPending, query: URLSearchParams): Promise<McpLogin>
  /** Where only a new login helps: why, in words without secrets. Throws BatonError for what may pass. */
  renew(target: McpLoginTarget, login: McpLogin): Promise<McpLogin | string>
  close(): Promise<void>
}
/** What a login begins with: what is known already, and where the browser comes back to. */
export interface BeginLogin {
  login: McpLogin | null
  challenge: McpChallenge | null
  redirect_url: string
  /** Where the login service may read who we are, in place of a registration; empty: nowhere */
  client_metadata_url: string
  state: string
}

/** What one step works with: its way out, and what it met there. */
export interface StepContext {
  fetch(url: string | URL, init?: RequestInit): Promise<Response>
  /** An address that the guard kept it from */
  refused: BatonError | null
  now(): number
  discoveryMs: number
}

interface McpOAuthOptions {
  now?(): number
  /** How long a renewal may look for the login service. With the token request it must end within a claim. */
  discoveryMs?: number
  /** What login services are reached through over https */
  proxy?: ConnectorProxy | null
  /** Stands in for the system's resolver in tests */
  resolve?: Resolve
}

/** Who we are: what a registration says, and the document that stands in its place. */
export const clientMetadata = (redirect_url: string) => ({
  client_name: 'Baton',
  redirect_uris: [redirect_url],
  grant_types: ['authorization_code', 'refresh_token'],
  response_types: ['code'],
})

/**
 * What the owner said of the login service. A client that registered itself does so again with each login: services
 * forget such clients, and show one that they do not know an error page from which no browser comes back.
 */
export function givenIn(login: McpLogin | null | undefined): McpLogin {
  const { client, issuer, scope } = login ?? {}
  return {
    ...(client && client.redirect_uris === undefined && { client }),
    ...(issuer !== undefined && { issuer }),
    ...(scope !== undefined && { scope }),
  }
}

const TIMEOUT_MS = 15_000
const DISCOVERY_MS = 25_000
const MAX_BYTES = 1 << 20

/** Makes the steps; the flow itself is loaded with the first of them. */
export function createMcpOAuth(options: McpOAuthOptions = {}): McpOAuth {
  const guards = createGuards({
    timeoutMs: TIMEOUT_MS,
    maxBytes: MAX_BYTES,
    proxy: options.proxy ?? null,
    ...(options.resolve && { resolve: options.resolve }),
  })
  const flow = () => import('./oauth-flow.ts')
  function contextOf({ allowPrivate }: McpLoginTarget): StepContext {
    const context: StepContext = {
      refused: null,
      async fetch(url, init) {
        // https alone, but for this machine, where that is open at all.
        const guard = guards.of({ allowPrivate, requireHttps: !isLoopback(new URL(url).hostname) })
        try {
          return await guard.fetch(url, init)
        } catch (failure) {
          // The SDK takes what it cannot read for what is not there, and looks elsewhere.
          if (failure instanceof BatonError) context.refused = failure
          throw failure
        }
      },
      now: options.now ?? Date.now,
      discoveryMs: options.discoveryMs ?? DISCOVERY_MS,
    }
    return context
  }
  return {
    begin: async (target, begin) => (await flow()).begin(target, begin, contextOf(target)),
    finish: async (target, pending, query) =>
      (await flow()).finish(target, pending, query, contextOf(target)),
    renew: async (target, login) => (await flow()).renew(target, login, contextOf(target)),
    close: guards.close,
  }
}
