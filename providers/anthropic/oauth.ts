/**
 * Bearer credentials of Anthropic: logins with the operator's own client, Console profiles, workload
 * identity federation, and Claude Code's login file, which is read and never renewed. Pure; the source of
 * every fact is wire/anthropic.md section 1, and section 10 says what the vendor permits.
 */
import { parseRecord } from '../../src/chat/json.ts'
import { invalid } from '../../src/errors.ts'
import {
  type ImportedLogin,
  type LoginSecret,
  type OAuthAnswer,
  type OAuthCall,
  type OAuthSettings,
  type OAuthVendor,
  shortened,
  type TokenAnswer,
  type TokenFailure,
} from '../../src/oauth-vendor.ts'
import { instantOf, type Json, number, object, present, string } from '../json.ts'
import { tokenAnswer } from '../tokens.ts'
import { OAUTH_BETA } from './render.ts'

const FEDERATION_BETA = 'oidc-federation-2026-04-01'
/** `renewed_by` of logins that the API's own token endpoint issued (1.7). */
const CONSOLE = 'console'
/** Inference, and the account's name (1.2). */
const SCOPE = 'user:inference user:profile'

function clientIdIn({ clientId }: OAuthSettings): string {
  if (clientId !== null) return clientId
  throw invalid(
    'provider',
    'Anthropic logins need an OAuth client of your own: set BATON_ANTHROPIC_OAUTH_CLIENT_ID. Baton brings none and presents itself as no other program.',
  )
}

/** Anthropic's logins, by the operator's client: Baton brings none. */
export const anthropicLogins: OAuthVendor = {
  provider: 'anthropic',
  modes: ['loopback', 'paste'],
  remoteMode: 'paste',
  clientId: clientIdIn,
  issuer: ({ authorizeUrl = '' }) => new URL(authorizeUrl).origin,
  // Any port is accepted; the path is not known to be free (1.3).
  loopback: { host: 'localhost', ports: [], path: '/callback', anyPath: false },
  pasteRedirect: 'https://platform.claude.com/oauth/code/callback',
  authorization: ({ authorizeUrl = '' }) => ({
    url: authorizeUrl,
    // `code`: the page shows the code for pasting if nothing listens (1.2).
    parameters: { code: 'true', scope: SCOPE },
  }),
  // JSON, and the state is part of it (1.4).
  exchange: (settings, { code, state, redirect_uri, verifier }) => ({
    ...tokenCall(settings),
    json: {
      grant_type: 'authorization_code',
      client_id: clientIdIn(settings),
      code,
      state,
      redirect_uri,
      code_verifier: verifier,
    },
  }),
  renew(settings, secret) {
    if (secret.federation) return federationCall(settings, secret.federation)
    const { refresh_token, renewed_by } = secret
    if (refresh_token === undefined) return null
    const call = renewed_by === CONSOLE ? consoleCall(settings, OAUTH_BETA) : tokenCall(settings)
    const client_id = secret.client_id ?? clientIdIn(settings)
    return { ...call, json: { grant_type: 'refresh_token', refresh_token, client_id } }
  },
  readTokens,
  readFailure,
  // Opaque tokens: they say nothing.
  identify: () => ({ facts: {} }),
  renewAfterSeconds: null,
  keepAlive: true,
  imports: { claude: readClaudeFile, 'anthropic-profile': readProfile },
}

const tokenCall = ({ tokenUrl = '' }: OAuthSettings): OAuthCall => ({ method: 'POST', url: tokenUrl })

const consoleCall = ({ baseUrl }: OAuthSettings, betas: string): OAuthCall => ({
  method: 'POST',
  url: `${baseUrl}/v1/oauth/token`,
  headers: { 'anthropic-beta': betas },
})

/** RFC 7523 (1.7). The answer has no refresh token: the assertion is exchanged again, for as long as it lives. */
const federationCall = (
  settings: OAuthSettings,
  federation: NonNullable<LoginSecret['federation']>,
): OAuthCall => ({
  ...consoleCall(settings, `${OAUTH_BETA},${FEDERATION_BETA}`),
  json: { ...federation, grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer' },
})

function readTokens(body: string): TokenAnswer | null {
  const answer = object(parseRecord(body))
  const tokens = tokenAnswer(answer)
  const name = string(object(answer.account).email_address) ?? string(object(answer.organization).name)
  return tokens && { ...tokens, ...present({ name }) }
}

/**
 * An OAuth error, or the API's own error object (1.6). A wrong client is the operator's setting, not the login's end; a
 * 401 says nothing about its cause and is final (federation).
 */
function readFailure({ status, body }: OAuthAnswer): TokenFailure {
  const answer = parseRecord(body) ?? {}
  const error = object(answer.error)
  const code = string(answer.error) ?? string(error.type) ?? `http_${status}`
  const words = string(answer.error_description) ?? string(error.message) ?? ''
  const isClient = code === 'invalid_client' || code === 'unauthorized_client'
  return shortened({
    isLasting: !isClient && (code === 'invalid_grant' || status === 401),
    // The answer is the same for a token that was rotated elsewhere and for a revoked one.
    ...(code === 'invalid_grant' ? { wasSpent: true } : {}),
    code,
    message: words,
  })
}

/** `.credentials.json` of Claude Code (1.8): the refresh token is left in the file, so that Claude Code stays logged in. */
function readClaudeFile(file: Json): ImportedLogin {
  const login = object(file.claudeAiOauth)
  const access_token = string(login.accessToken)
  if (!access_token) throw noLogin('It has no claudeAiOauth.accessToken.')
  return {
    secret: { access_token },
    facts: {},
    ...present({ expires_at: instantOf(number(login.expiresAt)) }),
    warning:
      'Anthropic does not permit other software to store Claude subscription logins or to route requests through them (docs/provider-logins.md). The token is used until it expires and is never renewed; Claude Code keeps its login.',
  }
}

/**
 * A Console profile: `credentials/<profile>.json`. Fields of `configs/<profile>.json` may be added:
 * `authentication.client_id`, without which nobody can renew the login, and `workspace_id`.
 */
function readProfile(file: Json): ImportedLogin {
  const access_token = string(file.access_token)
  if (!access_token) throw noLogin('It has no access_token; give the file below credentials/.')
  const client_id = string(object(file.authentication).client_id) ?? string(file.client_id)
  const seconds = number(file.expires_at)
  const expires_at = seconds === undefined ? undefined : instantOf(seconds * 1000)
  return {
    secret: {
      access_token,
      ...present({ refresh_token: string(file.refresh_token), client_id }),
      renewed_by: CONSOLE,
    },
    facts: present({ workspace_id: string(file.workspace_id) }),
    ...present({ expires_at }),
    warning:
      'Refresh tokens are used once: from its first renewal on, this login belongs to Baton, and the profile must log in again.',
  }
}

const noLogin = (why: string) => invalid('content', `content is no login file of this format. ${why}`)
