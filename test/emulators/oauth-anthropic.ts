/**
 * Anthropic's logins emulated: the authorize page, the token endpoint of logins, and the API's own token endpoint for
 * Console profiles and federation (wire/anthropic.md 1).
 */
import type { JsonReply, Recorded } from './http.ts'
import {
  createIssuer,
  type Failure,
  jsonOf,
  jwt,
  type LoginEmulator,
  Refused,
  serveLogins,
  type Tokens,
} from './oauth.ts'

export interface AnthropicLogins extends LoginEmulator {
  authorizeUrl: string
  tokenUrl: string
  /** How many federated tokens were handed out */
  federated(): number
}

export const CLIENT = '11111111-2222-4333-8444-555555555555'
/** What the emulated organization trusts. */
export const FEDERATION = {
  assertion: jwt({ sub: 'workload', aud: 'https://api.anthropic.com' }),
  federation_rule_id: 'fdrl_1',
  organization_id: 'org-1',
  service_account_id: 'svac_1',
  workspace_id: 'wrkspc_1',
}
const ACCESS_SECONDS = 28_800
const PASTE = 'https://platform.claude.com/oauth/code/callback'

export async function createAnthropicLogins(): Promise<AnthropicLogins> {
  let federated = 0
  const issuer = createIssuer({
    client: {
      id: CLIENT,
      isRedirect: (uri) => uri === PASTE || /^http:\/\/localhost:\d+\/callback$/.test(uri),
    },
    access: (serial) => `sk-ant-oat01-acme-${serial}-access-token`,
    refresh: (serial) => `sk-ant-ort01-acme-${serial}-refresh-token`,
  })

  const authorize = (request: Recorded): JsonReply =>
    issuer.authorize(request, (query) => {
      if (query.get('code') !== 'true') return 'code=true is missing'
      return (query.get('scope') ?? '').split(' ').includes('user:inference') ? null : 'invalid_scope'
    })

  const tokens = ({ access, refresh, grant }: Tokens): JsonReply => ({
    status: 200,
    body: {
      token_type: 'Bearer',
      access_token: access,
      refresh_token: refresh,
      expires_in: ACCESS_SECONDS,
      scope: grant.scope,
      organization: { uuid: 'org-uuid', name: 'Acme' },
      account: { uuid: 'account-uuid', email_address: 'me@example.com' },
    },
  })

  function token(request: Recorded): JsonReply {
    // The endpoint refuses the vendor's own client, which it knows by its name (1.6).
    if (/^claude-(cli|code)\//.test(request.headers['user-agent'] ?? '')) return { status: 404, body: '' }
    const fields = jsonOf(request)
    if (!fields) return invalid('The body must be JSON.')
    if (fields.grant_type === 'refresh_token') return tokens(issuer.renew(fields, true))
    if (fields.grant_type !== 'authorization_code') throw new Refused('grant_type')
    if (typeof fields.state !== 'string') return invalid('state: Field required')
    const redeemed = issuer.redeem(fields)
    if (redeemed.grant.state !== fields.state) throw new Refused('code')
    return tokens(redeemed)
  }

  /** The API's own token endpoint. */
  function console(request: Recorded): JsonReply {
    const fields = jsonOf(request)
    const betas = String(request.headers['anthropic-beta'] ?? '').split(',')
    if (!fields || !betas.includes('oauth-2025-04-20'))
      return invalid('anthropic-beta: oauth-2025-04-20 is missing')
    const isFederation = fields.grant_type === 'urn:ietf:params:oauth:grant-type:jwt-bearer'
    if (isFederation !== betas.includes('oidc-federation-2026-04-01')) return OPAQUE
    if (!isFederation && fields.grant_type !== 'refresh_token') throw new Refused('grant_type')
    if (!isFederation) return tokens(issuer.renew(fields, true))
    const isTrusted = Object.entries(FEDERATION).every(([name, value]) => fields[name] === value)
    if (!isTrusted) return OPAQUE
    federated++
    const access_token = `sk-ant-oat01-acme-federated-${federated}`
    return { status: 200, body: { token_type: 'Bearer', access_token, expires_in: ACCESS_SECONDS } }
  }

  const routes: Record<string, (request: Recorded) => JsonReply> = {
    'GET /oauth/authorize': authorize,
    'POST /oauth/token': token,
    'POST /v1/oauth/token': console,
  }
  const emulator = await serveLogins(
    issuer,
    '/oauth/token',
    FAILURES,
    (request, path) => routes[path]?.(request) ?? { status: 404, body: '' },
  )
  return {
    ...emulator,
    authorizeUrl: `${emulator.url}/oauth/authorize`,
    tokenUrl: `${emulator.url}/oauth/token`,
    federated: () => federated,
  }
}

const oauthError = (status: number, error: string, error_description: string): JsonReply => ({
  status,
  body: { error, error_description },
})
const invalid = (message: string): JsonReply => ({
  status: 400,
  body: { type: 'error', error: { type: 'invalid_request_error', message } },
})
/** Federation does not tell the cause. */
const OPAQUE: JsonReply = {
  status: 401,
  body: { type: 'error', error: { type: 'authentication_error', message: 'Authentication failed' } },
}

const FAILURES: Record<Failure, JsonReply> = {
  client: oauthError(401, 'invalid_client', 'Client not found'),
  client_secret: oauthError(401, 'invalid_client', 'Client not found'),
  code: oauthError(400, 'invalid_grant', "Invalid 'code' in request."),
  redirect_uri: oauthError(400, 'invalid_grant', "Invalid 'redirect_uri' in request."),
  verifier: oauthError(400, 'invalid_grant', "Invalid 'code_verifier' in request."),
  grant_type: oauthError(400, 'unsupported_grant_type', 'Unsupported grant type'),
  refresh_token: oauthError(400, 'invalid_grant', 'Refresh token not found or invalid'),
  spent: oauthError(400, 'invalid_grant', 'Refresh token not found or invalid'),
}
