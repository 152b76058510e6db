/**
 * Google logins with the operator's own OAuth client, for Code Assist or for the public API, and gemini-cli's
 * login file. Pure; wire/gemini.md 1 is the source of every fact here, and 11 says what the vendor permits.
 */
import { parseRecord } from '../../src/chat/json.ts'
import { BatonError, invalid } from '../../src/errors.ts'
import {
  type ImportedLogin,
  type LoginChoices,
  type LoginIdentity,
  type LoginSecret,
  type OAuthAnswer,
  type OAuthSettings,
  type OAuthVendor,
  shortened,
  type TokenFailure,
} from '../../src/oauth-vendor.ts'
import { instantOf, type Json, number, object, present, string } from '../json.ts'
import { claimsOf, tokenAnswer, tokensIn } from '../tokens.ts'
import { isSetupNeeded, setUpCodeAssist } from './setup.ts'

const USER_SCOPES = [
  'https://www.googleapis.com/auth/cloud-platform',
  'https://www.googleapis.com/auth/userinfo.email',
  'https://www.googleapis.com/auth/userinfo.profile',
]
/** The public API's own scope; the Code Assist scopes alone do not open it (9.1). */
const PUBLIC_SCOPE = 'https://www.googleapis.com/auth/generative-language.retriever'
const LOOPBACK_PATH = '/oauth2callback'

/** The token endpoint refuses every call without the client's secret (1.1). */
function clientIn({ clientId, clientSecret }: OAuthSettings): { client_id: string; client_secret: string } {
  if (clientId !== null && clientSecret) return { client_id: clientId, client_secret: clientSecret }
  throw invalid(
    'provider',
    'Google logins need an OAuth client of your own: set BATON_GOOGLE_OAUTH_CLIENT_ID and BATON_GOOGLE_OAUTH_CLIENT_SECRET. Baton brings none and presents itself as no other program.',
  )
}

/** Google's logins, for Code Assist and for the public API, by the operator's client and its secret. */
export const googleLogins: OAuthVendor = {
  provider: 'gemini',
  modes: ['loopback', 'paste'],
  remoteMode: 'paste',
  clientId: (settings) => clientIn(settings).client_id,
  // https://accounts.google.com names itself as the issuer, and the login begins there.
  issuer: ({ authorizeUrl = '' }) => new URL(authorizeUrl).origin,
  // A desktop client takes any port and path; a web client only the registered one (1.2).
  loopback: { host: '127.0.0.1', ports: [], path: LOOPBACK_PATH, anyPath: true },
  // Nothing needs to listen there: the person copies the address that the browser could not open.
  pasteRedirect: `http://127.0.0.1:8085${LOOPBACK_PATH}`,
  authorization: ({ authorizeUrl = '' }, choices) => ({
    url: authorizeUrl,
    // Without `prompt=consent` only a person's first login brings a refresh token (1.2).
    parameters: { scope: scopeOf(choices), access_type: 'offline', prompt: 'consent' },
  }),
  exchange: (settings, { code, redirect_uri, verifier }) => ({
    method: 'POST',
    url: settings.tokenUrl ?? '',
    form: {
      grant_type: 'authorization_code',
      code,
      redirect_uri,
      code_verifier: verifier,
      ...clientIn(settings),
    },
  }),
  renew(settings, { refresh_token, client_id }) {
    if (refresh_token === undefined) return null
    const own = clientIn(settings)
    if (client_id !== undefined && client_id !== own.client_id) {
      throw new BatonError(
        'upstream_auth',
        'The login was made with another OAuth client than BATON_GOOGLE_OAUTH_CLIENT_ID names now.',
      )
    }
    return {
      method: 'POST',
      url: settings.tokenUrl ?? '',
      form: { grant_type: 'refresh_token', refresh_token, ...own },
    }
  },
  readTokens: (body) => tokenAnswer(parseRecord(body)),
  readFailure,
  identify,
  renewAfterSeconds: 3300,
  // The refresh token stays the same and outlives months without use (1.3).
  keepAlive: false,
  setup: { isNeeded: isSetupNeeded, steps: setUpCodeAssist },
  imports: { 'gemini-cli': readCliFile },
}

const scopeOf = ({ path }: LoginChoices): string =>
  (path === 'public' ? [...USER_SCOPES, PUBLIC_SCOPE] : USER_SCOPES).join(' ')

/**
 * The code tells whether the grant is dead; a refused client is the operator's settings to fix, not the login's end
 * (1.3).
 */
function readFailure({ status, body }: OAuthAnswer): TokenFailure {
  const answer = object(parseRecord(body))
  const code = string(answer.error) ?? `http_${status}`
  const words = string(answer.error_description) ?? ''
  const isRapt = answer.error_subtype === 'invalid_rapt'
  return shortened({
    isLasting: code === 'invalid_grant',
    code: isRapt ? 'invalid_rapt' : code,
    message: isRapt ? 'The organisation asks for a new sign-in from time to time.' : words,
  })
}

/** Access tokens are opaque; the id token names the account and lives for the same hour. */
function identify({ id_token }: LoginSecret): LoginIdentity {
  return { facts: {}, ...present({ name: string(claimsOf(id_token).email) }) }
}

/** `oauth_creds.json` (1.4). It names no client: the configured client must be the one that made the login. */
function readCliFile(file: Json): ImportedLogin {
  const secret = tokensIn(file)
  if (secret.access_token === undefined && secret.refresh_token === undefined) {
    const why =
      'It has neither access_token nor refresh_token; gemini-cli may keep its login in the keychain instead.'
    throw invalid('content', `content is no gemini-cli login. ${why}`)
  }
  return {
    secret,
    ...identify(secret),
    facts: { path: 'code_assist' },
    ...present({ expires_at: instantOf(number(file.expiry_date)) }),
    warning:
      "Google forbids other software to use gemini-cli's login and may suspend the account for it (docs/provider-logins.md). Renewing it needs the OAuth client that made it in BATON_GOOGLE_OAUTH_CLIENT_ID and _SECRET.",
  }
}
