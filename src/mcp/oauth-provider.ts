/** What the SDK's client is given for a step of a login: a provider over plain data, with single services' quirks. */
import {
  checkResourceAllowed,
  IssuerMismatchError,
  type OAuthClientProvider,
  type OAuthDiscoveryState,
  type OAuthServerInfo,
} from '@modelcontextprotocol/client'
import { BatonError } from '../errors.ts'
import { clientMetadata, type McpClient, type McpLogin, type McpTokens, type StepContext } from './oauth.ts'

/** What one step reads and writes. */
interface Desk {
  login: McpLogin
  redirect_url: string
  client_metadata_url: string
  state: string
  verifier: string
  discovery: OAuthDiscoveryState | undefined
  authorization_url: URL | null
}

export const deskOf = (login: McpLogin, brought: Partial<Desk>): Desk => ({
  login,
  redirect_url: '',
  client_metadata_url: '',
  state: '',
  verifier: '',
  discovery: undefined,
  authorization_url: null,
  ...brought,
})

/** What the SDK tells it, it writes on the desk. */
export function providerOver(desk: Desk, context: StepContext): OAuthClientProvider {
  return {
    redirectUrl: desk.redirect_url,
    get clientMetadataUrl() {
      return takesNoSecret(desk.discovery) ? desk.client_metadata_url : ''
    },
    get validateResourceURL() {
      // The SDK takes a provider without this function to name the resource.
      return (isMicrosofts(desk.discovery) ? unnamed : undefined) as typeof unnamed
    },
    clientMetadata: clientMetadata(desk.redirect_url),
    state: () => desk.state,
    clientInformation(asked) {
      const { client } = desk.login
      // A client given by hand belongs to the issuer that it is first used with.
      if (client && client.issuer === undefined && asked) {
        desk.login = { ...desk.login, client: { ...client, issuer: asked.issuer } }
      }
      return desk.login.client
    },
    saveClientInformation(client) {
      // The redirect_uris tell this client from one that was given by hand.
      const { redirect_uris } = clientMetadata(desk.redirect_url)
      desk.login = { ...desk.login, client: { redirect_uris, ...(client as McpClient) } }
    },
    // Each login is a new one.
    tokens: () => undefined,
    saveTokens(tokens) {
      desk.login = withTokens(desk.login, tokens, context)
    },
    // The SDK calls this only after a code was refused, and would send the same code again.
    invalidateCredentials() {
      throw new BatonError('upstream_rejected', 'The login service refused the code or the client.')
    },
    redirectToAuthorization(url) {
      desk.authorization_url = url
      // The SDK adds `offline_access`, and with it a prompt, if the service lists that scope.
      if (desk.login.scope !== undefined && url.searchParams.get('scope') !== desk.login.scope) {
        url.searchParams.set('scope', desk.login.scope)
        url.searchParams.delete('prompt')
      }
      // Microsoft asks for a consent that it lacks. Told to ask, it turns those away whose administrator has consented
      // for them (opencode#46361).
      if (isMicrosofts(desk.discovery)) url.searchParams.delete('prompt')
      if (url.hostname !== 'accounts.google.com') return
      // Google knows no `offline_access`: it gives a refresh token for `access_type`, and another one only after a new
      // consent.
      url.searchParams.set('access_type', 'offline')
      url.searchParams.set('prompt', 'consent')
    },
    saveCodeVerifier(verifier) {
      desk.verifier = verifier
    },
    codeVerifier: () => desk.verifier,
    discoveryState: () => desk.discovery,
    saveDiscoveryState(found) {
      assertIssuer(found, desk.login)
      desk.discovery = found
    },
  }
}

const methodsAt = (found: OAuthDiscoveryState | undefined) =>
  found?.authorizationServerMetadata?.token_endpoint_auth_methods_supported

/**
 * Microsoft's v2.0 endpoints learn the resource from the scope. They refuse most requests that name it, too
 * (AADSTS9010010; mcp-remote#217), and many renewals that do not name the scope as it was asked for (AADSTS90009;
 * typescript-sdk#2718); what they call granted may be more than they take back (github/copilot-cli#4464).
 */
export function isMicrosofts(found: OAuthDiscoveryState | undefined): boolean {
  const { authorization_endpoint = '', token_endpoint = '' } = found?.authorizationServerMetadata ?? {}
  return ENTRA.test(authorization_endpoint) || ENTRA.test(token_endpoint)
}
const ENTRA = /^https:\/\/login\.(?:partner\.)?microsoftonline\.(?:com|us|cn)\/.*\/v2\.0\//

/** Names no resource; throws, as the SDK does, if the metadata are for another server. */
async function unnamed(requestedResource: string | URL, configuredResource?: string): Promise<undefined> {
  const isOurs =
    configuredResource === undefined || checkResourceAllowed({ requestedResource, configuredResource })
  if (!isOurs)
    throw new Error(`Protected resource ${configuredResource} does not match expected ${requestedResource}`)
}

/**
 * Whether the service takes clients without a secret: a client that is known by a document has none. A service that
 * does not say what it takes may do so.
 */
const takesNoSecret = (found: OAuthDiscoveryState | undefined): boolean =>
  methodsAt(found)?.includes('none') ?? true

/**
 * How the client that is to be registered proves who it is. Left out, it is `client_secret_basic` (RFC 7591 2), which
 * some services do not take.
 */
export function authMethodAt(found: OAuthDiscoveryState | undefined): {
  token_endpoint_auth_method?: string | undefined
} {
  const methods = methodsAt(found)
  if (!methods || methods.includes('client_secret_basic')) return {}
  const method = ['client_secret_post', 'none'].find((known) => methods.includes(known))
  return { token_endpoint_auth_method: method }
}

/** The login with these tokens, and with the time of their end if they name it. */
export function withTokens(login: McpLogin, tokens: object, { now }: StepContext): McpLogin {
  // The SDK has checked the answer by its schema.
  const known = tokens as McpTokens & { expires_in?: number }
  const { expires_in = 0 } = known
  const { expires_at: _, ...rest } = login
  const lives = expires_in > 0 && expires_in < 1e9
  return { ...rest, tokens: known, ...(lives ? { expires_at: now() + expires_in * 1000 } : {}) }
}

/**
 * Throws if the metadata is another issuer's (RFC 8414 3.3). A slash at the end does not count: many services write
 * their issuer with one, while the servers that trust them leave it out, and both lead to the same metadata. Only the
 * owner may name another issuer: a service that could claim to be any issuer would be sent the codes meant for others.
 */
export function assertIssuer(
  { authorizationServerUrl, authorizationServerMetadata }: OAuthServerInfo,
  login: McpLogin,
) {
  const issuer = authorizationServerMetadata?.issuer
  const expected = login.issuer ?? String(authorizationServerUrl)
  if (issuer !== undefined && !isSame(issuer, expected))
    throw new IssuerMismatchError('metadata', expected, issuer)
}

/**
 * Compared as addresses: an issuer whose metadata is missing is known by its URL, and one is told to people as a URL has
 * it (Microsoft's holds `{tenantid}`).
 */
export const isSame = (one: unknown, other: unknown): boolean => addressIn(one) === addressIn(other)

const addressIn = (issuer: unknown): string => {
  const text = String(issuer)
  return (URL.canParse(text) ? new URL(text).href : text).replace(/\/$/, '')
}
