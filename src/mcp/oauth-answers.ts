/**
 * Makes answers of login services fit for the SDK's client: that throws a whole answer away for one odd member, and
 * with a token endpoint's answer the only tokens there are.
 */
import { isWithin, parseRecord } from '../chat/json.ts'
import { secondsIn } from '../oauth-vendor.ts'
import type { McpChallenge } from './contract.ts'
import { retryAfterOf } from './http.ts'
import type { McpLogin, McpTokens, StepContext } from './oauth.ts'

/** The SDK's schemas make an error of each wrong value: those of half a million took a second. */
const READABLE = { depth: 100, values: 10_000 }

const isText = (value: unknown): boolean => typeof value === 'string' && value !== ''
const isList = (value: unknown): boolean =>
  Array.isArray(value) && value.every((item) => typeof item === 'string')
const isFlag = (value: unknown): boolean => typeof value === 'boolean'

/** What is read of metadata and of answers to registrations, and how it must look. */
const READ = new Map<string, (value: unknown) => boolean>([
  ['resource', isText],
  ['authorization_servers', isList],
  ['scopes_supported', isList],
  ['issuer', isText],
  ['authorization_endpoint', isText],
  ['token_endpoint', isText],
  ['registration_endpoint', isText],
  ['response_types_supported', isList],
  ['code_challenge_methods_supported', isList],
  ['token_endpoint_auth_methods_supported', isList],
  ['client_id_metadata_document_supported', isFlag],
  ['authorization_response_iss_parameter_supported', isFlag],
  ['client_id', isText],
  ['client_secret', isText],
  ['token_endpoint_auth_method', isText],
])

/** What the SDK wants of metadata, though plain OAuth services have no id tokens to sign (typescript-sdk#2733). */
const WANTED = {
  response_types_supported: ['code'],
  jwks_uri: 'https://unread.invalid',
  subject_types_supported: [],
  id_token_signing_alg_values_supported: [],
}

/**
 * What is not read is left out, as are members of a wrong type: the SDK would refuse the whole answer. Some services
 * answer a registration only with what they add to it (RFC 7591 3.2.1 wants all of it). Some show a web page, or `{}`,
 * for every path that they do not know (typescript-sdk#2126, envoyproxy/ai-gateway#2049): the SDK would not look for
 * metadata in the next place. `more`: what a registration says besides, asked for when the service's metadata are known.
 */
export const leniently =
  (context: StepContext, more: () => object = () => ({})): StepContext['fetch'] =>
  async (url, init) => {
    const registration = typeof init?.body === 'string' ? parseRecord(init.body) : null
    const asked = registration && { ...registration, ...more() }
    const response = await context.fetch(url, asked ? { ...init, body: JSON.stringify(asked) } : init)
    if (!response.ok) return response
    const answer = parseRecord(await response.text())
    if (answer && !isWithin(answer, READABLE)) throw new Error('too many values, or nested too deeply')
    const said = Object.entries(answer ?? {}).filter(([name, value]) => READ.get(name)?.(value))
    if (asked) return Response.json({ ...asked, ...Object.fromEntries(said) }, { status: response.status })
    if (said.length === 0) return new Response(null, { status: 404 })
    return Response.json({ ...WANTED, ...Object.fromEntries(said) })
  }

type Named = Pick<McpChallenge, 'resource_metadata'> | null

/** Where a server's metadata are, as its refusal names the place. */
export const metadataUrl = (named: Named): { resourceMetadataUrl?: URL } => {
  const url = named?.resource_metadata
  return url !== undefined && URL.canParse(url) ? { resourceMetadataUrl: new URL(url) } : {}
}

/**
 * The named place, unless nothing is there: some servers name a wrong one (Logfire: zed#53502), and the SDK then looks
 * nowhere else. It knows the places that the standard names if it is given none.
 */
export async function namedMetadata(
  named: Named,
  context: StepContext,
): Promise<{ resourceMetadataUrl?: URL }> {
  const { resourceMetadataUrl: url } = metadataUrl(named)
  const response = url && (await leniently(context)(url).catch(() => null))
  if (!response) return metadataUrl(named)
  await response.body?.cancel()
  return response.status >= 400 && response.status < 500 ? {} : metadataUrl(named)
}

/** Too many requests. */
export class LimitedError extends Error {
  override name = 'LimitedError'
  /** How long the service wants no other, in seconds, if it says so */
  readonly retryAfter: number | undefined
  constructor(response: Response) {
    super('HTTP 429')
    const waitMs = retryAfterOf(response)
    this.retryAfter = waitMs === undefined ? undefined : Math.ceil(waitMs / 1000)
  }
}

/** An answer without an access token. */
export class TokenlessError extends Error {
  override name = 'TokenlessError'
  readonly #refresh_token: unknown
  constructor({ refresh_token }: Record<string, unknown>) {
    super('the answer holds no access token')
    this.#refresh_token = refresh_token
  }

  /** The login with the refresh token that came without an access token; null: none came. */
  renewed(login: McpLogin, tokens: McpTokens): McpLogin | null {
    const refresh_token = this.#refresh_token
    return typeof refresh_token === 'string' ? { ...login, tokens: { ...tokens, refresh_token } } : null
  }
}

const TEXTS = new Set(['access_token', 'refresh_token', 'token_type', 'scope', 'id_token'])
const isMember = (name: string): boolean => TEXTS.has(name) || name === 'expires_in'

/** With these a service refuses what was sent: as OAuth has it (RFC 6749 5.2), or as its framework does. */
const REFUSALS = new Set([400, 401, 422])

/**
 * The code of a refusal; null: it is none. Some services have words of their own, as Supabase's
 * `{"code": 400, "error_code": "refresh_token_not_found"}`, null for a member, or no object at all (claude-code#83679):
 * the SDK takes these for an outage.
 */
function refusalIn({ error, error_code, code }: Record<string, unknown>, status: number): string | null {
  if (typeof error === 'string') return error
  if (!REFUSALS.has(status)) return null
  const named = [error_code, code].find((text) => typeof text === 'string')
  return typeof named === 'string' ? named : `http_${status}`
}

/**
 * Some token endpoints send null for members that they leave out, or no token_type, and some refuse in words of their
 * own. Throws TokenlessError, and LimitedError for too many requests.
 */
export const tokenFetch =
  (context: StepContext): StepContext['fetch'] =>
  async (url, init) => {
    // Metadata that were missing when the login began are looked for again.
    if (init?.method !== 'POST') return leniently(context)(url, init)
    const response = await context.fetch(url, init)
    const { status } = response
    if (status >= 300 && status < 400) return response
    if (status === 429) {
      await response.body?.cancel()
      // This passes, whatever code the body names.
      throw new LimitedError(response)
    }
    const text = await response.text()
    const answer = parseRecord(text)
    if (!response.ok) {
      // A page is a proxy's.
      const error = /^\s*</.test(text) ? null : refusalIn(answer ?? {}, status)
      return error === null ? new Response(text, { status }) : Response.json({ error }, { status })
    }
    // An answer that is not about tokens, or a refusal with status 200, is for the SDK to read.
    const isOfTokens =
      answer !== null && Object.keys(answer).some(isMember) && typeof answer.error !== 'string'
    if (!isOfTokens) return new Response(text, { status })
    const known = Object.entries(answer).filter(([name, value]) => {
      if (TEXTS.has(name)) return typeof value === 'string' && value !== ''
      return name === 'expires_in' ? secondsIn(value) !== undefined : value !== null
    })
    const tokens = Object.fromEntries(known)
    if (tokens.access_token === undefined) throw new TokenlessError(tokens)
    return Response.json({ token_type: 'Bearer', ...tokens })
  }
