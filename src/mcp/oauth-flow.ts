/** The steps of a login with the SDK's client; what that is given for each of them is in oauth-provider.ts. */
import {
  auth,
  computeScopeUnion,
  discoverAuthorizationServerMetadata,
  discoverOAuthProtectedResourceMetadata,
  type OAuthDiscoveryState,
  OAuthError,
  OAuthErrorCode,
  type OAuthServerInfo,
  refreshAuthorization,
  selectResourceURL,
  validateAuthorizationResponseIssuer,
} from '@modelcontextprotocol/client'
import { BatonError } from '../errors.ts'
import { challengeIn } from './challenge.ts'
import type { McpChallenge } from './contract.ts'
import {
  type BeginLogin,
  givenIn,
  type McpLogin,
  type McpLoginTarget,
  type McpMetadata,
  type McpPending,
  type StepContext,
} from './oauth.ts'
import { leniently, metadataUrl, namedMetadata, TokenlessError, tokenFetch } from './oauth-answers.ts'
import { atGuess, away, bounded, errorCodeIn, MOST_ADDRESS, rejected, step } from './oauth-failures.ts'
import {
  assertIssuer,
  authMethodAt,
  deskOf,
  isMicrosofts,
  isSame,
  providerOver,
  withTokens,
} from './oauth-provider.ts'

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
  // A step up also asks for the scope of the login before: else that would be lost.
  const scope = login?.scope ?? computeScopeUnion(scopeIn(login), login?.lacking, known?.scope)
  await step(target, context, async () => {
    const named = await namedMetadata(known, context)
    const { issuer } = desk.login
    if (issuer !== undefined) {
      const { authorizationServerUrl } = await serviceOf(target, named, leniently(context), issuer)
      desk.discovery = { authorizationServerUrl }
    }
    return auth(providerOver(desk, context), {
      serverUrl: target.url,
      fetchFn: leniently(context, () => authMethodAt(desk.discovery)),
      // `saveDiscoveryState` checks the issuer.
      skipIssuerMetadataValidation: true,
      ...(scope ? { scope } : {}),
      ...named,
    }).catch((failure: unknown) => {
      const { authorizationServerUrl = '', authorizationServerMetadata } = desk.discovery ?? {}
      throw authorizationServerMetadata ? failure : atGuess(failure, target, authorizationServerUrl)
    })
  })
  const url = desk.authorization_url
  // A browser is sent to this URL, so it must be a page's.
  if (!url || !/^https?:$/.test(url.protocol)) throw rejected(target, 'it names no page to log in at')
  if (url.href.length > MOST_ADDRESS) throw rejected(target, 'the address of its page is too long')
  const { login: kept, verifier, discovery } = desk
  const { token_endpoint } = discovery?.authorizationServerMetadata ?? {}
  // Nobody is sent to a login whose code could not be exchanged.
  for (const address of [url.href, token_endpoint])
    if (address !== undefined) await context.assertUrl(address)
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
  // `begin` made it, and it was sealed in between.
  const discovery = pending.discovery as OAuthDiscoveryState
  const iss = query.get('iss') ?? undefined
  const code = query.get('code')
  if (code === null) {
    await step(target, context, async () => assertAnswerer(discovery, iss))
    // Only an error's code: its words are a stranger's.
    const told = errorCodeIn(query.get('error'))
    throw rejected(target, told ? `it answered ${told}` : 'its answer holds no code')
  }
  const { redirect_url, verifier } = pending
  const desk = deskOf(pending.login, { redirect_url, verifier, discovery })
  await step(target, context, async () =>
    auth(providerOver(desk, context), {
      serverUrl: target.url,
      authorizationCode: code,
      fetchFn: tokenFetch(context),
      ...(iss === undefined ? {} : { iss }),
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
    is_given: isSame(found?.authorizationServerUrl, desk.login.issuer),
  }
  const { scope: asked } = pending
  // A service that names no scope has granted what was asked for (RFC 6749 5.1).
  const granted = { ...(asked !== undefined && { scope: asked }), ...tokens }
  return bounded(target, { ...desk.login, ...(asked !== undefined && { asked }), tokens: granted, metadata })
}

/** Throws if a refusal is not from the service that was asked (RFC 9207 2.4); of an answer with a code the SDK asks it. */
function assertAnswerer(
  { authorizationServerMetadata: metadata }: OAuthDiscoveryState,
  iss: string | undefined,
): void {
  validateAuthorizationResponseIssuer({
    iss,
    expectedIssuer: metadata?.issuer,
    issParameterSupported: metadata?.authorization_response_iss_parameter_supported === true,
  })
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
    const scope = isMicrosofts(found) ? (login.asked ?? login.scope) : undefined
    try {
      const next = await refreshAuthorization(authorizationServerUrl, {
        ...(metadata && { metadata }),
        clientInformation: client,
        refreshToken: refresh_token,
        ...(scope !== undefined && { scope }),
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
  const lenient = leniently(context)
  const fetch: StepContext['fetch'] = (url, init) => lenient(url, { ...init, signal: inTime })
  const issuer = metadata?.is_given ? login.issuer : undefined
  const found = await serviceOf(target, metadataUrl(metadata ?? null), fetch, issuer)
  // The SDK has looked elsewhere then: tokens of a renewal from there would be thrown away, with the refresh token
  // spent.
  if (context.refused) throw context.refused
  assertIssuer(found, login)
  const guessed = login.issuer ?? found.authorizationServerUrl
  if (found.resourceMetadata || isSame(tokens?.issuer, guessed)) return found
  throw away(target, new Error('its resource metadata cannot be read'))
}

/**
 * The login service that the server trusts: of several the one that the owner named as `issuer`, else the first. Where
 * no metadata are at what the server names, or at the server itself, it is the owner's issuer: some servers behind API
 * gateways publish nothing (BuilderIO/agent-native#5268, pi-mcp-adapter#458), some name no service or their own endpoint
 * (cloudflare/agents#689).
 */
async function serviceOf(
  { url }: McpLoginTarget,
  named: { resourceMetadataUrl?: URL },
  fetchFn: StepContext['fetch'],
  issuer: string | undefined,
): Promise<OAuthServerInfo> {
  const resource = await discoverOAuthProtectedResourceMetadata(url, named, fetchFn).catch(unlessUnreached)
  const trusted = resource?.authorization_servers ?? []
  const first = trusted.find((one) => isSame(one, issuer)) ?? trusted[0] ?? new URL('/', url).href
  const serviceAt = async (authorizationServerUrl: string): Promise<OAuthServerInfo> => {
    const asked = { fetchFn, skipIssuerValidation: true }
    const metadata = await discoverAuthorizationServerMetadata(authorizationServerUrl, asked)
    return {
      authorizationServerUrl,
      ...(metadata && { authorizationServerMetadata: metadata }),
      ...(resource && { resourceMetadata: resource }),
    }
  }
  const found = await serviceAt(first)
  return found.authorizationServerMetadata || issuer === undefined ? found : serviceAt(issuer)
}

/** What cannot be read counts as missing; a TypeError is fetch's word for a server that cannot be reached. */
function unlessUnreached(failure: unknown): undefined {
  if (failure instanceof TypeError) throw failure
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

/** What a login asked for, as long as it lasts: the server may trust a service by now that knows no such scope. */
function scopeIn(login: McpLogin | null): string | undefined {
  if (!login?.tokens) return undefined
  const scope = login.asked ?? login.tokens.scope
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
