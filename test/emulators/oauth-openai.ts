/** auth.openai.com emulated: browser and device logins, rotating refresh tokens (wire/openai.md 1). */
import type { JsonReply, Recorded } from './http.ts'
import {
  createIssuer,
  type Failure,
  formOf,
  jsonOf,
  jwt,
  type LoginEmulator,
  Refused,
  serveLogins,
  type Tokens,
} from './oauth.ts'

export interface OpenAiLogins extends LoginEmulator {
  /** A person enters the code at the device page. */
  grantDevice(userCode: string): void
  denyDevice(userCode: string): void
  /** Whether the service offers device logins */
  offerDevices(offered: boolean): void
}

const CLIENT = 'app_EMoamEEZ73f0CkXaXp7hrann'
const ACCESS_SECONDS = 864_000
export const ACCOUNT = '0d1f2e3c-5b6a-4978-8f90-a1b2c3d4e5f6'
/** The service has only ports 1455 and 1457 registered. Other programs of this machine may use those. */
const REDIRECT = /^http:\/\/localhost:\d+\/auth\/callback$/
const DEVICE_REDIRECT = '/deviceauth/callback'

export async function createOpenAiLogins(): Promise<OpenAiLogins> {
  let begun = 0
  const devices = new Map<string, { user_code: string; granted: boolean; denied?: true }>()
  let offersDevices = true
  let root = ''
  const issuer = createIssuer({
    client: { id: CLIENT, isRedirect: (uri) => REDIRECT.test(uri) },
    access: (serial) => jwt(claims(serial)),
    refresh: (serial) => `rt_openai-refresh-${serial}`,
    // The service was seen to do this (1.2): the client sent only the bare state.
    extra: (state) => ({ state: `${state}.onboarding_entrypoint=life_sciences` }),
  })

  function authorize(request: Recorded): JsonReply {
    // This service does not read a plus as a blank (1.2).
    if (/[?&]scope=[^&]*\+/.test(request.path)) {
      return { status: 400, body: 'unknown scope: blanks must be %20' }
    }
    return issuer.authorize(request, (query) => {
      const scopes = (query.get('scope') ?? '').split(' ')
      if (!scopes.includes('openid') || !scopes.includes('offline_access')) return 'invalid_scope'
      if (!query.get('originator')) return 'originator is missing'
      const flags = ['codex_cli_simplified_flow', 'id_token_add_organizations']
      const missing = flags.find((flag) => query.get(flag) !== 'true')
      return missing === undefined ? null : `${missing} is missing`
    })
  }

  function token(request: Recorded): JsonReply {
    const form = formOf(request)
    const fields = form ?? jsonOf(request) ?? {}
    if (fields.grant_type === 'refresh_token') return tokens(issuer.renew(fields, true))
    if (fields.grant_type !== 'authorization_code') throw new Refused('grant_type')
    // Codes are accepted only form-encoded (1.3).
    if (!form) return { status: 415, body: { error: { message: 'Unsupported content type', code: null } } }
    return tokens(issuer.redeem(form))
  }

  function tokens({ access, refresh, grant }: Tokens): JsonReply {
    return {
      status: 200,
      body: {
        id_token: jwt({ ...claims(grant.serial), aud: [CLIENT] }),
        access_token: access,
        refresh_token: refresh,
        token_type: 'Bearer',
        expires_in: ACCESS_SECONDS,
      },
    }
  }

  function begin(request: Recorded): JsonReply {
    if (!offersDevices || jsonOf(request)?.client_id !== CLIENT) return { status: 404, body: 'Not Found' }
    const device_auth_id = `device-${++begun}`
    const user_code = `ABCD-1234${begun}`
    devices.set(device_auth_id, { user_code, granted: false })
    return { status: 200, body: { device_auth_id, user_code, interval: '1' } }
  }

  function poll(request: Recorded): JsonReply {
    const { device_auth_id, user_code } = jsonOf(request) ?? {}
    const device = devices.get(String(device_auth_id))
    if (!device || device.user_code !== user_code)
      return { status: 404, body: { error: { code: 'not_found' } } }
    if (device.denied) return { status: 400, body: { error: { code: 'access_denied', message: 'Denied' } } }
    if (!device.granted) {
      return {
        status: 403,
        body: { error: { code: 'deviceauth_authorization_pending', message: 'Pending' } },
      }
    }
    devices.delete(String(device_auth_id))
    const { code, challenge, verifier } = issuer.issueCode(root + DEVICE_REDIRECT)
    return {
      status: 200,
      body: { authorization_code: code, code_challenge: challenge, code_verifier: verifier },
    }
  }

  const routes: Record<string, (request: Recorded) => JsonReply> = {
    'GET /oauth/authorize': authorize,
    'POST /oauth/token': token,
    'POST /api/accounts/deviceauth/usercode': begin,
    'POST /api/accounts/deviceauth/token': poll,
  }
  const emulator = await serveLogins(
    issuer,
    '/oauth/token',
    FAILURES,
    (request, path) => routes[path]?.(request) ?? { status: 404, body: 'Not Found' },
  )
  root = emulator.url
  return {
    ...emulator,
    grantDevice(userCode) {
      for (const device of devices.values()) if (device.user_code === userCode) device.granted = true
    },
    denyDevice(userCode) {
      for (const device of devices.values()) if (device.user_code === userCode) device.denied = true
    },
    offerDevices(offered) {
      offersDevices = offered
    },
  }
}

/** The claims of both tokens (1.5). */
const claims = (serial: number): Record<string, unknown> => ({
  iss: 'https://auth.openai.com',
  exp: Math.floor(Date.now() / 1000) + ACCESS_SECONDS,
  jti: `token-${serial}`,
  email: 'zoë@example.com',
  'https://api.openai.com/auth': {
    chatgpt_account_id: ACCOUNT,
    chatgpt_plan_type: 'plus',
    chatgpt_user_id: 'user-1',
    organizations: [{ id: 'org-1' }],
  },
})

const failure = (status: number, code: string, message: string): JsonReply => ({
  status,
  body: { error: { message, type: 'invalid_request_error', param: null, code } },
})

const FAILURES: Record<Failure, JsonReply> = {
  client: failure(401, 'invalid_client', 'Unknown client.'),
  client_secret: failure(401, 'invalid_client', 'Unknown client.'),
  code: failure(400, 'invalid_grant', 'The authorization code is invalid or was used.'),
  redirect_uri: failure(400, 'invalid_grant', 'redirect_uri does not match.'),
  verifier: failure(400, 'invalid_grant', 'code_verifier does not match.'),
  grant_type: failure(400, 'unsupported_grant_type', 'Unsupported grant type.'),
  refresh_token: failure(401, 'refresh_token_invalidated', 'Your refresh token has been revoked.'),
  spent: failure(
    401,
    'refresh_token_reused',
    'Your refresh token has already been used to generate a new access token. Please try signing in again.',
  ),
}
