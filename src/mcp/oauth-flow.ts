/** The login flow with the SDK's client: one provider object for each step, over plain data. */
import {
  auth,
  computeScopeUnion,
  discoverOAuthServerInfo,
  IssuerMismatchError,
  OAuthClientFlowError,
  type OAuthClientProvider,
  type OAuthDiscoveryState,
  OAuthError,
  OAuthErrorCode,
  refreshAuthorization,
  selectResourceURL,
} from '@modelcontextprotocol/client'
import { parseRecord } from '../chat/json.ts'
import { BatonError } from '../errors.ts'
import { challengeIn } from './challenge.ts'
import type { McpChallenge } from './contract.ts'
import type {
  BeginLogin,
  McpClient,
  McpLogin,
  McpLoginTarget,
  McpMetadata,
  McpPending,
  McpTokens,
  StepContext,
} from './oauth.ts'

/** What one step reads and writes. */
interface Desk {
  login: McpLogin
  redirect_url: string
  state: string
  verifier: string
  discovery: OAuthDiscoveryState | undefined
  authorization_url: URL | null
}

/** The first step, as McpOAuth promises it: throws the BatonErrors that it names. */
export async function begin(
  target: McpLoginTarget,
  { login, challenge, redirect_url, state }: BeginLogin,
  context: StepContext,
): Promise<{ authorization_url: string; pending: McpPending }> {
  const known = challenge ?? (await challengeOf(target, context))
  const desk = deskOf(usableClient(login, redirect_url), { redirect_url, state })
  // A step up asks for what was granted, too: else it would be lost.
  const scope = computeScopeUnion(scopeIn(login), known?.scope)
  await step(target, context, async () =>
    auth(providerOver(desk, context), {
      serverUrl: target.url,
      forceReauthorization: true,
      fetchFn: context.fetch,
      ...(scope ? { scope } : {}),
      ...metadataUrl(known),
    }),
  )
  const url = desk.authorization_url
  // A browser is sent there, so nothing but a page it may be.
  if (!url || !/^https?:$/.test(url.protocol)) throw rejected(target, 'it names no page to log in at')
  const { login: kept, verifier, discovery } = desk
  return {
    authorization_url: url.href,
    pending: { login: kept, verifier, discovery, redirect_url, challenge: known },
  }
}

/** The second step. Throws BatonError where the answer is not of this login, or the server refuses it. */
export async function finish(
  target: McpLoginTarget,
  pending: McpPending,
  query: URLSearchParams,
  context: StepContext,
): Promise<McpLogin> {
  const code = query.get('code')
  if (code === null) {
    // Only the code of an error: its words may come from whoever mixed up two servers (RFC 9207).
    const told = /^[\w.-]{1,64}$/.exec(query.get('error') ?? '')?.[0]
    throw rejected(target, told ? `it answered ${told}` : 'its answer holds no code')
  }
  const { redirect_url, verifier } = pending
  // Made by `begin`, sealed in between.
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
  if (!desk.login.tokens) throw rejected(target, 'it gave no token')
  const found = desk.discovery
  const metadata: McpMetadata = {
    ...(found?.resourceMetadataUrl && { resource_metadata: found.resourceMetadataUrl }),
    has_resource: found?.resourceMetadata !== undefined,
    has_issuer: found?.authorizationServerMetadata !== undefined,
  }
  return { ...desk.login, metadata }
}

/** Of the login service's own trouble; the SDK says so of a status 5xx, too. */
const PASSING: ReadonlySet<string> = new Set([
  OAuthErrorCode.ServerError,
  OAuthErrorCode.TemporarilyUnavailable,
])
/** Codes after which only a person can help (RFC 6749 5.2). */
const LASTING: ReadonlySet<string> = new Set([
  OAuthErrorCode.InvalidGrant,
  OAuthErrorCode.InvalidClient,
  OAuthErrorCode.UnauthorizedClient,
])

/**
 * Not by the SDK's `auth`: that begins a new login wherever a refresh fails, and what failed for a moment
 * must not cost the login. The server is discovered anew: it may have changed whom it trusts.
 */
export async function renew(
  target: McpLoginTarget,
  login: McpLogin,
  context: StepContext,
): Promise<McpLogin | null> {
  const { client, tokens } = login
  if (!client || !tokens?.refresh_token) return null
  const { refresh_token } = tokens
  return step(target, context, async () => {
    const found = await discovered(target, login, context)
    const issuer = found.authorizationServerMetadata?.issuer ?? String(found.authorizationServerUrl)
    // A refresh token is for the server that made it, and nobody else (MCP 2026-07-28 "Authorization").
    if (!isSame(tokens.issuer, issuer) || !isSame(client.issuer ?? issuer, issuer)) return null
    if (isLess(found, login))
      throw away(target, new Error('metadata that the login was made by is not there'))
    const provider = providerOver(deskOf(login), context)
    const resource = await selectResourceURL(target.url, provider, found.resourceMetadata)
    try {
      const next = await refreshAuthorization(found.authorizationServerUrl, {
        ...(found.authorizationServerMetadata && { metadata: found.authorizationServerMetadata }),
        clientInformation: client,
        refreshToken: refresh_token,
        ...(resource && { resource: found.resourceMetadata?.resource ?? resource }),
        fetchFn: tokenFetch(context),
      })
      return withTokens(login, { ...next, issuer, scope: next.scope ?? tokens.scope }, context)
    } catch (failure) {
      // Whatever else it said, the one that was sent is spent.
      if (failure instanceof TokenlessError) return failure.refreshed(login, tokens)
      if (failure instanceof OAuthError && LASTING.has(failure.code)) return null
      throw failure
    }
  })
}

/** An answer without an access token. */
class TokenlessError extends Error {
  override name = 'TokenlessError'
  readonly #refresh_token: unknown
  constructor({ refresh_token }: Record<string, unknown>) {
    super('the answer holds no access token')
    this.#refresh_token = refresh_token
  }

  refreshed(login: McpLogin, tokens: McpTokens): McpLogin | null {
    const refresh_token = this.#refresh_token
    return typeof refresh_token === 'string' ? { ...login, tokens: { ...tokens, refresh_token } } : null
  }
}

const TEXTS = new Set(['access_token', 'refresh_token', 'token_type', 'scope', 'id_token'])
const isMember = (name: string): boolean => TEXTS.has(name) || name === 'expires_in'

/**
 * Some token endpoints send null for what they leave out, or no token_type. The SDK would refuse the answer,
 * and with it the only tokens there are.
 */
const tokenFetch =
  (context: StepContext): StepContext['fetch'] =>
  async (url, init) => {
    const response = await context.fetch(url, init)
    if (init?.method !== 'POST' || !response.ok) return response
    const text = await response.text()
    const answer = parseRecord(text)
    // What stands in the way, or a refusal with status 200: the SDK's to read.
    const isOfTokens =
      answer !== null && Object.keys(answer).some(isMember) && typeof answer.error !== 'string'
    if (!isOfTokens) return new Response(text, { status: response.status })
    const known = Object.entries(answer).filter(([name, value]) => {
      if (TEXTS.has(name)) return typeof value === 'string' && value !== ''
      return name === 'expires_in' ? Number(value ?? Number.NaN) >= 0 : value !== null
    })
    const tokens = Object.fromEntries(known)
    if (tokens.access_token === undefined) throw new TokenlessError(tokens)
    return Response.json({ token_type: 'Bearer', ...tokens })
  }

/** Throws `away` where the server does not say whom it trusts: the SDK guesses then that it is the server itself. */
async function discovered(target: McpLoginTarget, { tokens, metadata }: McpLogin, context: StepContext) {
  const inTime = AbortSignal.timeout(context.discoveryMs)
  const found = await discoverOAuthServerInfo(target.url, {
    fetchFn: (url, init) => context.fetch(url, { ...init, signal: inTime }),
    ...metadataUrl(metadata ?? null),
  })
  if (found.resourceMetadata || isSame(tokens?.issuer, found.authorizationServerUrl)) return found
  throw away(target, new Error('its resource metadata cannot be read'))
}

/** Whether there was more when the login was made: a moment's trouble, and no token must go to a guessed address. */
const isLess = (
  { resourceMetadata, authorizationServerMetadata }: Awaited<ReturnType<typeof discovered>>,
  { metadata }: McpLogin,
): boolean =>
  metadata !== undefined &&
  ((metadata.has_resource && !resourceMetadata) || (metadata.has_issuer && !authorizationServerMetadata))

/** As addresses: an issuer whose metadata is missing is known by its URL. */
const isSame = (one: unknown, other: unknown): boolean =>
  String(one).replace(/\/$/, '') === String(other).replace(/\/$/, '')

const deskOf = (login: McpLogin, brought: Partial<Desk> = {}): Desk => ({
  login,
  redirect_url: '',
  state: '',
  verifier: '',
  discovery: undefined,
  authorization_url: null,
  ...brought,
})

function providerOver(desk: Desk, context: StepContext): OAuthClientProvider {
  return {
    redirectUrl: desk.redirect_url,
    ...(context.clientMetadataUrl && { clientMetadataUrl: context.clientMetadataUrl }),
    clientMetadata: {
      client_name: 'Baton',
      redirect_uris: [desk.redirect_url],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
    },
    state: () => desk.state,
    clientInformation(asked) {
      const { client } = desk.login
      // A client given by hand belongs to the issuer it is first used with.
      if (client && client.issuer === undefined && asked) {
        desk.login = { ...desk.login, client: { ...client, issuer: asked.issuer } }
      }
      return desk.login.client
    },
    saveClientInformation(client) {
      desk.login = { ...desk.login, client: client as McpClient }
    },
    tokens: () => desk.login.tokens,
    saveTokens(tokens) {
      desk.login = withTokens(desk.login, tokens, context)
    },
    // Only after a code was refused: the SDK would send the same one again.
    invalidateCredentials() {
      throw new BatonError('upstream_rejected', 'The login service refused the code or the client.')
    },
    redirectToAuthorization(url) {
      desk.authorization_url = url
    },
    saveCodeVerifier(verifier) {
      desk.verifier = verifier
    },
    codeVerifier: () => desk.verifier,
    discoveryState: () => desk.discovery,
    saveDiscoveryState(found) {
      desk.discovery = found
    },
  }
}

function withTokens(login: McpLogin, tokens: object, { now }: StepContext): McpLogin {
  // The SDK has checked the answer by its schema.
  const known = tokens as McpTokens & { expires_in?: number }
  const { expires_at: _, ...rest } = login
  const lives = known.expires_in !== undefined && known.expires_in > 0 && known.expires_in < 1e9
  return { ...rest, tokens: known, ...(lives ? { expires_at: now() + Number(known.expires_in) * 1000 } : {}) }
}

/** A client that was registered for another redirect address is no use; one that was given always is. */
function usableClient(login: McpLogin | null, redirect_url: string): Pick<McpLogin, 'client'> {
  const client = login?.client
  if (!client) return {}
  const registered = client.redirect_uris
  return Array.isArray(registered) && !registered.includes(redirect_url) ? {} : { client }
}

const scopeIn = (login: McpLogin | null): string | undefined => {
  const scope = login?.tokens?.scope
  return typeof scope === 'string' ? scope : undefined
}

const metadataUrl = (challenge: Pick<McpChallenge, 'resource_metadata'> | null) => {
  const url = challenge?.resource_metadata
  return url !== undefined && URL.canParse(url) ? { resourceMetadataUrl: new URL(url) } : {}
}

/** What the server asks for, where nobody heard it yet: any request without a token is answered with it. */
async function challengeOf({ url }: McpLoginTarget, context: StepContext): Promise<McpChallenge | null> {
  const headers = { accept: 'application/json, text/event-stream' }
  const response = await context.fetch(url, { headers }).catch((failure: unknown) => {
    if (failure instanceof BatonError) throw failure
    return null
  })
  await response?.body?.cancel()
  return response && challengeIn(response)
}

/** Runs one step, and turns what is thrown into ours. Nothing of what was sent is in the words. */
async function step<T>(target: McpLoginTarget, context: StepContext, work: () => Promise<T>): Promise<T> {
  try {
    const result = await work()
    if (context.refused) throw context.refused
    return result
  } catch (failure) {
    throw context.refused ?? inWords(target, failure)
  }
}

function inWords(target: McpLoginTarget, failure: unknown): BatonError {
  if (failure instanceof BatonError) return failure
  if (failure instanceof IssuerMismatchError) return rejected(target, 'its issuer is not the one expected')
  if (failure instanceof OAuthError) {
    const code = /^[\w.-]{1,64}$/.exec(failure.code)?.[0] ?? 'an unknown error'
    return PASSING.has(failure.code) ? away(target, failure) : rejected(target, `it answered ${code}`)
  }
  if (failure instanceof TokenlessError) return rejected(target, 'it gave no token')
  if (failure instanceof OAuthClientFlowError) return rejected(target, `${failure.name}`)
  if (failure instanceof Error && /dynamic client registration/.test(failure.message)) {
    return new BatonError(
      'not_available',
      `${target.name} lets no client register itself. Register Baton there and give auth.client_id (and auth.client_secret) to the connector.`,
    )
  }
  if (failure instanceof Error && /resource .* does not match/.test(failure.message)) {
    return rejected(target, 'its metadata is for another server')
  }
  return away(target, failure)
}

const away = (target: McpLoginTarget, cause: unknown) =>
  new BatonError('upstream_overloaded', `The login service of ${target.name} cannot be used now.`, { cause })

const rejected = (target: McpLoginTarget, why: string) =>
  new BatonError('upstream_rejected', `The login at ${target.name} failed: ${why}.`)
