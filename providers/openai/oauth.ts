/**
 * ChatGPT logins: browser, paste and device code, renewal, and Codex CLI's login file. Pure; wire/openai.md
 * section 1 is the source of every fact here.
 */
import { parseRecord } from '../../src/chat/json.ts'
import { BatonError, invalid } from '../../src/errors.ts'
import {
  type DeviceFlow,
  type ImportedLogin,
  type LoginIdentity,
  type LoginSecret,
  type OAuthAnswer,
  type OAuthSettings,
  type OAuthVendor,
  secondsIn,
  shortened,
  type TokenFailure,
} from '../../src/oauth-vendor.ts'
import { type Json, object, present, string } from '../json.ts'
import { claimsOf, expiryOf, tokenAnswer, tokensIn } from '../tokens.ts'
import { AUTH_CLAIM, isWorkspace, ORIGINATOR } from './render.ts'

/** The vendor's public client for logins on a person's own machine; it has no secret (1.1). */
const PUBLIC_CLIENT = 'app_EMoamEEZ73f0CkXaXp7hrann'
/** The scopes that inference needs; the vendor's connector scopes are for its own tools (1.1). */
const SCOPE = 'openid profile email offline_access'
const LOOPBACK = { host: 'localhost', ports: [1455, 1457], path: '/auth/callback', anyPath: false } as const

const endpoint = (settings: OAuthSettings, path: string): string => `${settings.issuer ?? ''}${path}`
const clientIdIn = ({ clientId }: OAuthSettings): string => clientId ?? PUBLIC_CLIENT

/** ChatGPT logins, by the vendor's public client unless the operator names another. */
export const openaiLogins: OAuthVendor = {
  provider: 'openai',
  modes: ['loopback', 'paste', 'device'],
  remoteMode: 'device',
  clientId: clientIdIn,
  issuer: ({ issuer = '' }) => issuer,
  loopback: LOOPBACK,
  pasteRedirect: `http://${LOOPBACK.host}:${LOOPBACK.ports[0]}${LOOPBACK.path}`,
  authorization: (settings) => ({
    url: endpoint(settings, '/oauth/authorize'),
    parameters: {
      scope: SCOPE,
      id_token_add_organizations: 'true',
      codex_cli_simplified_flow: 'true',
      ...ORIGINATOR,
    },
  }),
  // `.onboarding_entrypoint=…` may follow the state (1.2), which itself holds no dot.
  stateOf: (returned) => returned.split('.', 1)[0] ?? '',
  exchange: (settings, { code, redirect_uri, verifier }) => ({
    method: 'POST',
    url: endpoint(settings, '/oauth/token'),
    form: {
      grant_type: 'authorization_code',
      code,
      redirect_uri,
      client_id: clientIdIn(settings),
      code_verifier: verifier,
    },
  }),
  renew: (settings, { refresh_token, client_id }) =>
    refresh_token === undefined
      ? null
      : {
          method: 'POST',
          url: endpoint(settings, '/oauth/token'),
          json: {
            client_id: client_id ?? clientIdIn(settings),
            grant_type: 'refresh_token',
            refresh_token,
          },
        },
  readTokens: (body) => tokenAnswer(parseRecord(body)),
  readFailure,
  identify,
  renewAfterSeconds: 8 * 86_400,
  keepAlive: true,
  device: deviceFlow(),
  imports: { codex: readCodexFile },
}

/** Both tokens carry the claims; the id token is the vendor's own source (1.5). */
function identify({ access_token, id_token }: LoginSecret): LoginIdentity {
  const claims = claimsOf(access_token)
  const identity = claimsOf(id_token)
  const held = [identity, claims].map((token) => object(token[AUTH_CLAIM]))
  const accounts = held.map(({ chatgpt_account_id }) => string(chatgpt_account_id))
  // Some valid tokens name no account.
  const account_id = accounts.find(isWorkspace)
  const name = string(identity.email) ?? string(claims.email)
  const isFedramp = held.some(({ chatgpt_account_is_fedramp }) => chatgpt_account_is_fedramp === true)
  return {
    facts: present({ account_id, fedramp: isFedramp ? 'true' : undefined }),
    ...present({ name, expires_at: expiryOf(claims) }),
  }
}

const LASTING = new Set([
  'refresh_token_expired',
  'refresh_token_reused',
  'refresh_token_invalidated',
  'invalid_grant',
  'invalid_refresh_token',
  'app_session_terminated',
  // openai/codex#27351
  'app_session_expired',
  'invalid_client',
  'unauthorized_client',
  'access_denied',
])
/** By code first: the same failure comes as 400 and as 401 (1.6). A 401 is lasting with any code. */
function readFailure({ status, body }: OAuthAnswer): TokenFailure {
  const answer = parseRecord(body) ?? {}
  const error = object(answer.error)
  const code = string(error.code) ?? string(answer.error) ?? string(answer.code)
  const words = string(error.message) ?? string(answer.error_description) ?? string(answer.message)
  return shortened({
    isLasting: LASTING.has(code ?? '') || status === 401,
    ...(code === 'refresh_token_reused' ? { wasSpent: true } : {}),
    code: code ?? `http_${status}`,
    message: words ?? '',
  })
}

/** A device login that can no longer be granted (RFC 8628 3.5), whatever the status says. */
const ENDED = new Set(['access_denied', 'expired_token'])

/** wire/openai.md 1.4 */
function deviceFlow(): DeviceFlow {
  const accounts = (settings: OAuthSettings, path: string) =>
    endpoint(settings, `/api/accounts/deviceauth/${path}`)
  return {
    lifetimeSeconds: 900,
    verificationUrl: (settings) => endpoint(settings, '/codex/device'),
    redirectUri: (settings) => endpoint(settings, '/deviceauth/callback'),
    start: (settings) => ({
      method: 'POST',
      url: accounts(settings, 'usercode'),
      json: { client_id: clientIdIn(settings) },
    }),
    readStart(answer) {
      const { device_auth_id, user_code, usercode, interval } = parseRecord(answer.body) ?? {}
      const device = string(device_auth_id)
      const code = string(user_code) ?? string(usercode)
      if (answer.status === 200 && device && code) {
        return { device, user_code: code, intervalSeconds: intervalIn(interval) }
      }
      throw deviceRefused(answer)
    },
    poll: (settings, { device, user_code }) => ({
      method: 'POST',
      url: accounts(settings, 'token'),
      json: { device_auth_id: device, user_code },
    }),
    readPoll(answer) {
      const { authorization_code, code_verifier } = parseRecord(answer.body) ?? {}
      const code = string(authorization_code)
      if (answer.status === 200 && code) {
        return { state: 'granted', code, verifier: string(code_verifier) ?? '' }
      }
      const failure = readFailure(answer)
      if (ENDED.has(failure.code)) throw deviceRefused(answer)
      const isTooFast = failure.code === 'slow_down' || answer.status === 429
      const isPending = answer.status === 403 || answer.status === 404 || answer.status >= 500
      if (isPending || isTooFast || failure.code.endsWith('authorization_pending')) {
        return { state: 'pending', isTooFast }
      }
      throw deviceRefused(answer)
    },
  }
}

/** The interval is a number in a text; at least a second, at most a minute, 5 seconds if unreadable. */
const intervalIn = (interval: unknown): number => Math.min(Math.max(secondsIn(interval) ?? 5, 1), 60)

function deviceRefused(answer: OAuthAnswer): BatonError {
  if (answer.status === 404) {
    return invalid(
      'mode',
      'OpenAI does not offer device logins here. Switch them on in the security settings of ChatGPT, or log in with mode paste.',
    )
  }
  const { status } = answer
  const { code, message } = readFailure(answer)
  const words = `OpenAI refused the device login (${code}).`
  const details = { upstream: { status, code, message } }
  if (status === 429) return new BatonError('upstream_rate_limited', words, { details, retryAfter: 30 })
  return new BatonError(status >= 500 ? 'upstream_overloaded' : 'upstream_rejected', words, { details })
}

/** Codex CLI's `auth.json` (1.8). */
function readCodexFile(file: Json): ImportedLogin {
  const tokens = object(file.tokens)
  const secret = tokensIn(tokens)
  if (secret.access_token === undefined) {
    const held =
      string(file.OPENAI_API_KEY) === undefined
        ? 'It has no tokens.access_token. Log in with Codex CLI first, with its credentials stored in a file.'
        : 'It holds an API key and no login. Store that with POST /v1/credentials, kind api_key.'
    throw invalid('content', `content is no Codex login. ${held}`)
  }
  const { facts, ...identity } = identify(secret)
  const account = string(tokens.account_id)
  return {
    secret,
    facts: isWorkspace(account) ? { ...facts, account_id: account } : facts,
    ...identity,
    warning:
      'Refresh tokens are used once: from its first renewal on, this login belongs to Baton, and Codex CLI must log in again. Do not use the file in both.',
  }
}
