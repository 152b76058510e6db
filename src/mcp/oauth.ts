/**
 * Logins at MCP servers (MCP 2026-07-28 "Authorization"): discovery, registration, PKCE, renewal. Every address comes
 * from a server that a caller named, so all of them go through the guarded fetch. Keeps nothing: data that must be kept
 * is handed out as JSON, with the secrets in it. The flow itself is oauth-flow.ts, which is loaded with the first
 * login, as the SDK costs half a second.
 */
import { isLoopback } from '../addresses.ts'
import { BatonError } from '../errors.ts'
import type { ConnectorProxy } from '../guard/dial.ts'
import { createGuards } from '../guard.ts'
import type { Resolve } from '../resolve.ts'
import type { McpChallenge, McpServerSpec } from './contract.ts'

/** The data of a login at one server. Secret. */
export interface McpLogin {
  /** The client that the server's issuer knows us by, registered or given: `client_id`, `client_secret`? … */
  client?: McpClient
  /**
   * The login service's name for itself, if the login's owner gave it: its metadata must say the same. Of a server that
   * names several services, or none that is found, it is the service's address, too
   */
  issuer?: string
  /** The scope that the login's owner wants, whatever the server says */
  scope?: string
  /** The scope that the tokens were asked for with; missing in logins that former versions made */
  asked?: string
  /** The scope for lack of which the server refused the tokens: the next login asks for it */
  lacking?: string
  /** Why nothing renews the login any more, for its owner to read */
  over?: string
  tokens?: McpTokens
  /** When the access token expires, milliseconds since the epoch */
  expires_at?: number
  /** Missing in logins that former versions made */
  metadata?: McpMetadata
}
/** What was found when the login was made: a renewal that finds less waits until it is there again. */
export interface McpMetadata {
  /** Where the metadata is, by the server's refusal */
  resource_metadata?: string
  has_resource: boolean
  has_issuer: boolean
  /** It was found at the issuer that the login's owner gave, by whomever told of it */
  is_given?: boolean
}
/** Our client at one login server: registered by Baton, or made there by hand. */
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
/** A pending login, until the browser comes back. Secret. */
export interface McpPending {
  login: McpLogin
  verifier: string
  /** What was discovered when it began: the answer must come from there */
  discovery: unknown
  redirect_url: string
  challenge: McpChallenge | null
  /** The scope that was asked for; missing in logins that a former version began */
  scope?: string
}
/** The server that a login is for. */
export type McpLoginTarget = Pick<McpServerSpec, 'name' | 'allowPrivate'> & { url: string }

/** Logins at MCP servers, a step at a time: the caller keeps the data that a step hands to the next. */
export interface McpOAuth {
  /**
   * Returns where a browser logs in. `login`: what is known from an earlier login. Throws BatonError
   * `address_not_allowed`, `not_available` (no way to register), `upstream_rejected`, `upstream_overloaded` (it may
   * work later).
   */
  begin(
    target: McpLoginTarget,
    begin: BeginLogin,
  ): Promise<{ authorization_url: string; pending: McpPending }>
  /** Exchanges the redirect's query for tokens. Throws BatonError `upstream_rejected`, `upstream_overloaded`. */
  finish(target: McpLoginTarget, pending: McpPending, query: URLSearchParams): Promise<McpLogin>
  /**
   * The renewed login; if only a new login helps, the reason in words without secrets. Throws BatonError for failures
   * that may pass.
   */
  renew(target: McpLoginTarget, login: McpLogin): Promise<McpLogin | string>
  close(): Promise<void>
}
/** What a login begins with: the facts known already, and where the browser comes back to. */
export interface BeginLogin {
  login: McpLogin | null
  challenge: McpChallenge | null
  redirect_url: string
  /** Where the login service may read who we are, instead of a registration; empty: nowhere */
  client_metadata_url: string
  state: string
}

/** What one step works with: its fetch, and an address that was refused to it. */
export interface StepContext {
  fetch(url: string | URL, init?: RequestInit): Promise<Response>
  /** Rejects with `address_not_allowed` if a browser may not be sent there. */
  assertUrl(url: string): Promise<void>
  /** The guard's refusal of an address that the step asked for */
  refused: BatonError | null
  now(): number
  discoveryMs: number
}

interface McpOAuthOptions {
  now?(): number
  /** How long a renewal may look for the login service. This and the token request must fit into the time of a claim. */
  discoveryMs?: number
  /** The proxy through which login services are reached over https */
  proxy?: ConnectorProxy | null
  /** Stands in for the system's resolver in tests */
  resolve?: Resolve
}

/** Who we are: what a registration says, and the document that replaces it. */
export const clientMetadata = (redirect_url: string) => ({
  client_name: 'Baton',
  redirect_uris: [redirect_url],
  grant_types: ['authorization_code', 'refresh_token'],
  response_types: ['code'],
})

/**
 * What the owner gave for the login. A client that registered itself does so again with each login: services forget
 * such clients, and answer an unknown one with an error page from which no browser comes back.
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
/**
 * To one login service, as many as renewals may come at once: the time that one waits for its turn is taken from its
 * answer's, and an answer that is given up costs a login.
 */
const CONNECTIONS = 1024

/** Makes the steps; the flow itself is loaded with the first of them. */
export function createMcpOAuth(options: McpOAuthOptions = {}): McpOAuth {
  const guards = createGuards({
    timeoutMs: TIMEOUT_MS,
    maxBytes: MAX_BYTES,
    connections: CONNECTIONS,
    proxy: options.proxy ?? null,
    ...(options.resolve && { resolve: options.resolve }),
  })
  const flow = () => import('./oauth-flow.ts')
  function contextOf({ allowPrivate }: McpLoginTarget): StepContext {
    // Only https, except to this machine, if its addresses are open at all.
    const guardFor = (url: string | URL) =>
      guards.of({ allowPrivate, requireHttps: !isLoopback(new URL(url).hostname) })
    const context: StepContext = {
      refused: null,
      async fetch(url, init) {
        try {
          return await guardFor(url).fetch(url, init)
        } catch (failure) {
          // The SDK takes metadata that it cannot read for missing, and looks elsewhere.
          if (failure instanceof BatonError) context.refused = failure
          throw failure
        }
      },
      assertUrl: (url) => guardFor(url).assertUrl(url),
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
