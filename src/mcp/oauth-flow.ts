/** The login flow with the SDK's client: one provider object for each step, over plain data. */
import {
  auth,
  checkResourceAllowed,
  computeScopeUnion,
  discoverOAuthServerInfo,
  IssuerMismatchError,
  type OAuthClientProvider,
  type OAuthDiscoveryState,
  OAuthError,
  OAuthErrorCode,
  type OAuthServerInfo,
  refreshAuthorization,
  selectResourceURL,
} from '@modelcontextprotocol/client'
import { BatonError } from '../errors.ts'
import { challengeIn } from './challenge.ts'
import type { McpChallenge } from './contract.ts'
import {
  type BeginLogin,
  clientMetadata,
  givenIn,
  type McpClient,
  type McpLogin,
  type McpLoginTarget,
  type McpMetadata,
  type McpPending,
  type McpTokens,
  type StepContext,
} from './oauth.ts'
import { leniently, metadataUrl, namedMetadata, TokenlessError, tokenFetch } from './oauth-answers.ts'
import { away, bounded, errorCodeIn, MOST_ADDRESS, rejected, step } from './oauth-failures.ts'

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

/** The first step, as in McpOAuth: throws the BatonErrors that are named there. */
export async function begin(
  target: McpLoginTarget,
  { login, challenge, redirect_url, client_metadata_url, state }: BeginLogin,
  context: StepContext,
): Promise<{ authorization_url: string; pending: McpPending }> {
  // Some servers name their metadata to a client without a token, but not to one that lacks a scope.
  const first = challenge?.resource_metadata === undefined ? await challengeOf(target, context) : null
  const known = (first || challenge) && { ...first, ...challenge }
  const desk = deskOf(givenIn(login), { redirect_url, client_metadata_url, state })
  // A step up also asks for the scope that was granted before: else that would be lost.
  const scope = login?.scope ?? computeScopeUnion(scopeIn(login), login?.lacking, known?.scope)
  await step(target, context, async () =>
    auth(providerOver(desk, context), {
      serverUrl: target.url,
      forceReauthorization: true,
      fetchFn: leniently(context, () => authMethodAt(desk.discovery)),
      // `saveDiscoveryState` checks the issuer.
      skipIssuerMetadataValidation: true,
      ...(scope ? { scope } : {}),
      ...(await namedMetadata(known, context)),
    }),
  )
  const url = desk.authorization_url
  // A browser is sent to this URL, so it must be a page's.
  if (!url || !/^https?:$/.test(url.protocol)) throw rejected(target, 'it names no page to log in at')
  if (url.href.length > MOST_ADDRESS) throw rejected(target, 'the address of its page is too long')
  await context.assertUrl(url.href)
  const { login: kept, verifier, discovery } = desk
  const asked = url.searchParams.get('scope')
  const scoped = asked === null ? {} : { scope: asked }
  const pending = { login: kept, verifier, discovery, redirect_url, challenge: known, ...scoped }
  return { authorization_url: url.href, pending: bounded(target, pending) }
}

/** The second step. Throws BatonError if the answer is not for this login, or the server refuses it. */
export async function finish(
  target: McpLoginTarget,
  pending: McpPending,
  query: URLSearchParams,
  context: StepContext,
): Promise<McpLogin> {
  const code = query.get('code')
  if (code === null) {
    // Only an error's code: its words may come from an attacker who mixes up two servers (RFC 9207).
    const told = errorCodeIn(query.get('error'))
    throw rejected(target, told ? `it answered ${told}` : 'its answer holds no code')
  }
  const { redirect_url, verifier } = pending
  // `begin` made it, and it was sealed in between.
  const discovery = pending.discovery as OAuthDiscoveryState
  const desk = deskOf(pending.login, { redirect_url, verifier, discovery })
  const iss = query.get('iss')
  await step(target, context, async () =>
    auth(providerOver(desk, context), {
      serverUrl: target.url,
      authorizationCode: code,
      fetchFn: tokenFetch(context),
      ...(iss === null ? {} : { iss }),
      ...metadataUrl(pending.challenge),
    }),
  )
  const { tokens } = desk.login
  if (!tokens) throw rejected(target, 'it gave no token')
  const found = desk.discovery
  const metadata: McpMetadata = {
    ...(found?.resourceMetadataUrl && { resource_metadata: found.resourceMetadataUrl }),
    has_resource: found?.resourceMetadata !== undefined,
    has_issuer: found?.authorizationServerMetadata !== undefined,
  }
  // A service that names no scope has granted what was asked for (RFC 6749 5.1).
  const { scope } = pending
  const granted = { ...(scope !== undefined && { scope }), ...tokens }
  return bounded(target, { ...desk.login, tokens: granted, metadata })
}

/** Codes after which only a person can help (RFC 6749 5.2). */
const LASTING: ReadonlySet<string> = new Set([
  OAuthErrorCode.InvalidGrant,
  OAuthErrorCode.InvalidClient,
  OAuthErrorCode.UnauthorizedClient,
])

/**
 * Not by the SDK's `auth`: that begins a new login whenever a renewal fails, and a passing failure must not cost the
 * login. The server is discovered anew: it may trust another login service now.
 */
export async function renew(
  target: McpLoginTarget,
  login: McpLogin,
  context: StepContext,
): Promise<McpLogin | string> {
  const { client, tokens } = login
  if (!client || !tokens?.refresh_token) return 'the last one came without a refresh token'
  const { refresh_token } = tokens
  const renewed = await step(target, context, async () => {
    const found = await discovered(target, login, context)
    const { authorizationServerMetadata: metadata, authorizationServerUrl } = found
    const issuer = metadata?.issuer ?? login.issuer ?? String(authorizationServerUrl)
    // A refresh token is only for the server that made it (MCP 2026-07-28 "Authorization").
    if (!isSame(tokens.issuer, issuer) || !isSame(client.issuer ?? issuer, issuer)) {
      return 'its server trusts another login service than that of the last one'
    }
    if (isLess(found, login))
      throw away(target, new Error('metadata that the login was made by is not there'))
    const provider = providerOver(deskOf(login, { discovery: found }), context)
    const resource = await selectResourceURL(target.url, provider, found.resourceMetadata)
    try {
      const next = await refreshAuthorization(authorizationServerUrl, {
        ...(metadata && { metadata }),
        clientInformation: client,
        refreshToken: refresh_token,
        ...(resource && { resource: found.resourceMetadata?.resource ?? resource }),
        fetchFn: tokenFetch(context),
      })
      return withTokens(login, { ...next, issuer, scope: next.scope ?? tokens.scope }, context)
    } catch (failure) {
      // Whatever else the answer says, the refresh token that was sent is spent.
      if (failure instanceof TokenlessError)
        return failure.renewed(login, tokens) ?? 'its login service renewed the last one without a token'
      if (failure instanceof OAuthError && LASTING.has(failure.code)) {
        return `its login service answered ${failure.code} to the renewal of the last one`
      }
      throw failure
    }
  })
  return bounded(target, renewed)
}

/**
 * Throws `away` if the server does not say which login service it trusts: the SDK then guesses that it is the server
 * itself.
 */
async function discovered(
  target: McpLoginTarget,
  login: McpLogin,
  context: StepContext,
): Promise<OAuthServerInfo> {
  const { tokens, metadata } = login
  const inTime = AbortSignal.timeout(context.discoveryMs)
  const fetch = leniently(context)
  const found = await discoverOAuthServerInfo(target.url, {
    fetchFn: (url, init) => fetch(url, { ...init, signal: inTime }),
    skipIssuerMetadataValidation: true,
    ...metadataUrl(metadata ?? null),
  })
  // The SDK has looked elsewhere then: tokens of a renewal from there would be thrown away, with the refresh token
  // spent.
  if (context.refused) throw context.refused
  assertIssuer(found, login)
  const guessed = login.issuer ?? found.authorizationServerUrl
  if (found.resourceMetadata || isSame(tokens?.issuer, guessed)) return found
  throw away(target, new Error('its resource metadata cannot be read'))
}

/**
 * Whether less is found than when the login was made: that is passing trouble, and no token may go to a guessed
 * address.
 */
const isLess = (
  { resourceMetadata, authorizationServerMetadata }: OAuthServerInfo,
  { metadata }: McpLogin,
): boolean =>
  metadata !== undefined &&
  ((metadata.has_resource && !resourceMetadata) || (metadata.has_issuer && !authorizationServerMetadata))

/**
 * Throws if the metadata is another issuer's (RFC 8414 3.3). A slash at the end does not count: many services write
 * their issuer with one, while the servers that trust them leave it out, and both lead to the same metadata. Only the
 * owner may name another issuer: a service that could claim to be any issuer would be sent the codes meant for others.
 */
function assertIssuer(
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
const isSame = (one: unknown, other: unknown): boolean => addressIn(one) === addressIn(other)

const addressIn = (issuer: unknown): string => {
  const text = String(issuer)
  return (URL.canParse(text) ? new URL(text).href : text).replace(/\/$/, '')
}

const deskOf = (login: McpLogin, brought: Partial<Desk>): Desk => ({
  login,
  redirect_url: '',
  client_metadata_url: '',
  state: '',
  verifier: '',
  discovery: undefined,
  authorization_url: null,
  ...brought,
})

function providerOver(desk: Desk, context: StepContext): OAuthClientProvider {
  return {
    redirectUrl: desk.redirect_url,
    get clientMetadataUrl() {
      return takesNoSecret(desk.discovery) ? desk.client_metadata_url : ''
    },
    get validateResourceURL() {
      // The SDK takes a provider without this function to name the resource.
      return (takesNoResource(desk.discovery) ? unnamed : undefined) as typeof unnamed
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
    tokens: () => desk.login.tokens,
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
 * Microsoft's v2.0 endpoints learn the resource from the scope, and refuse most requests that name it, too
 * (AADSTS9010010; mcp-remote#217).
 */
const takesNoResource = (found: OAuthDiscoveryState | undefined): boolean => {
  const at = found?.authorizationServerMetadata?.authorization_endpoint
  return at !== undefined && ENTRA.test(at)
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
function authMethodAt(found: OAuthDiscoveryState | undefined): { token_endpoint_auth_method?: string } {
  const methods = methodsAt(found)
  if (!methods || methods.includes('client_secret_basic')) return {}
  const method = ['client_secret_post', 'none'].find((known) => methods.includes(known))
  return method === undefined ? {} : { token_endpoint_auth_method: method }
}

function withTokens(login: McpLogin, tokens: object, { now }: StepContext): McpLogin {
  // The SDK has checked the answer by its schema.
  const known = tokens as McpTokens & { expires_in?: number }
  const { expires_at: _, ...rest } = login
  const lives = known.expires_in !== undefined && known.expires_in > 0 && known.expires_in < 1e9
  return { ...rest, tokens: known, ...(lives ? { expires_at: now() + Number(known.expires_in) * 1000 } : {}) }
}

const scopeIn = (login: McpLogin | null): string | undefined => {
  const scope = login?.tokens?.scope
  return typeof scope === 'string' ? scope : undefined
}

/**
 * The server's challenge, unless all of it is known: any request without a token is answered with it. Some servers refuse
 * every GET before they ask for a token, or lead it to their documentation, so a POST follows.
 */
async function challengeOf({ url }: McpLoginTarget, context: StepContext): Promise<McpChallenge | null> {
  const headers = { accept: 'application/json, text/event-stream' }
  for (const init of [{ headers }, { ...LIST, headers: { ...headers, ...LIST.headers } }]) {
    try {
      const response = await context.fetch(url, init)
      await response.body?.cancel()
      const challenge = challengeIn(response)
      if (challenge) return challenge
    } catch (failure) {
      if (!(failure instanceof BatonError)) return null
      // If it is not the redirect that is refused but the server's own address, so is the next request.
      context.refused = null
    }
  }
  return null
}

/** A request that begins no session if a server answers it. */
const LIST = {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }),
}
