/**
 * Google's logins emulated for an operator's own client with a secret, and the set-up of Code Assist after a login
 * (wire/gemini.md 1 and 2). Accounts answer as the fixtures of test/fixtures/gemini/ do.
 */
import { readFileSync } from 'node:fs'
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

export interface GoogleLogins extends LoginEmulator {
  authorizeUrl: string
  tokenUrl: string
  /** `…/v1internal` */
  codeAssistUrl: string
  /** The account's answer to loadCodeAssist: a fixture's name, or the answer itself */
  account(answer: string | JsonReply): void
  /** How many more times an operation is still under way */
  pending(times: number): void
  /** What the operation answers next, once */
  operation(answer: JsonReply): void
}

/** The secret is not in the vendor's form, so that nobody takes it for a real one. */
export const SECRET = 'emulated-client-secret'
export const CLIENT = 'emulated.apps.example.com'

const fixture = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../../../test/fixtures/gemini/${name}.json`, import.meta.url), 'utf8'))

export async function createGoogleLogins(): Promise<GoogleLogins> {
  let account: string | JsonReply = 'load-code-assist'
  const answers: JsonReply[] = []
  let root = ''
  const issuer = createIssuer({
    client: {
      id: CLIENT,
      secret: SECRET,
      // A desktop client may be redirected to any port and path of this machine.
      isRedirect: (uri) => /^http:\/\/(127\.0\.0\.1|\[::1\]|localhost):\d+\/[\w/-]*$/.test(uri),
    },
    // The public API (gemini.ts) takes only tokens with its own scope.
    access: (serial, { scope }) =>
      `ya29.emulated-${scope.includes('generative-language') ? 'public' : 'code-assist'}-${serial}`,
    refresh: (serial) => `1//emulated-refresh-${serial}`,
    extra: () => ({ iss: root }),
  })

  const authorize = (request: Recorded): JsonReply =>
    issuer.authorize(request, (query) => {
      const scopes = (query.get('scope') ?? '').split(' ')
      if (!scopes.includes('https://www.googleapis.com/auth/cloud-platform')) return 'invalid_scope'
      // Only a person's first login would bring a refresh token without a consent (1.2).
      const isKept = query.get('access_type') === 'offline' && query.get('prompt') === 'consent'
      return isKept ? null : 'no refresh token without access_type=offline and prompt=consent'
    })

  function token(request: Recorded): JsonReply {
    const form = formOf(request)
    if (!form) return failure(400, 'invalid_request', 'Could not parse the request body.')
    if (form.grant_type === 'authorization_code') return tokens(issuer.redeem(form), true)
    if (form.grant_type === 'refresh_token') return tokens(issuer.renew(form, false), false)
    throw new Refused('grant_type')
  }

  /** A renewal brings no refresh token: the old one stays (1.3). */
  const tokens = ({ access, refresh, grant }: Tokens, isFirst: boolean): JsonReply => ({
    status: 200,
    body: {
      access_token: access,
      expires_in: 3599,
      scope: grant.scope,
      token_type: 'Bearer',
      id_token: jwt({ iss: 'https://accounts.google.com', email: 'me@example.com' }),
      ...(isFirst ? { refresh_token: refresh } : {}),
    },
  })

  function codeAssist(request: Recorded, method: string): JsonReply {
    const access = /^Bearer (\S+)$/.exec(request.headers.authorization ?? '')?.[1] ?? ''
    if (!issuer.isLive(access))
      return google(401, 'UNAUTHENTICATED', 'Request had invalid authentication credentials.')
    if (request.method === 'GET') return operation(method)
    const body = jsonOf(request) ?? {}
    const problem = metadataProblem(body)
    if (problem) return google(400, 'INVALID_ARGUMENT', problem)
    const loaded = typeof account === 'string' ? { status: 200, body: fixture(account) } : account
    if (method === ':loadCodeAssist') return loaded
    if (method !== ':onboardUser') return google(404, 'NOT_FOUND', 'Requested entity was not found.')
    if (body.tierId !== tierOf(loaded.body)) return google(400, 'INVALID_ARGUMENT', 'Invalid tier.')
    if (body.tierId === 'free-tier' && body.cloudaicompanionProject !== undefined) {
      return google(400, 'FAILED_PRECONDITION', 'Precondition check failed.')
    }
    return operation(`/${OPERATION}`)
  }

  function operation(path: string): JsonReply {
    if (path !== `/${OPERATION}`) return google(404, 'NOT_FOUND', 'Requested entity was not found.')
    return answers.shift() ?? { status: 200, body: fixture('onboard-user') }
  }

  const emulator = await serveLogins(issuer, '/token', FAILURES, (request, path) => {
    const [, method] = /^\w+ \/v1internal(.*)$/.exec(path) ?? []
    if (method !== undefined) return codeAssist(request, method)
    if (path === 'GET /o/oauth2/v2/auth') return authorize(request)
    return path === 'POST /token' ? token(request) : { status: 404, body: 'Not Found' }
  })
  root = emulator.url
  return {
    ...emulator,
    authorizeUrl: `${root}/o/oauth2/v2/auth`,
    tokenUrl: `${root}/token`,
    codeAssistUrl: `${root}/v1internal`,
    account(name) {
      account = name
    },
    pending(times) {
      for (let n = 0; n < times; n++) answers.push({ status: 200, body: fixture('onboard-user-pending') })
    },
    operation: (answer) => void answers.push(answer),
  }
}

/** The tier to onboard with (2.2, step 5). */
function tierOf(account: unknown): string {
  const { allowedTiers = [] } = account as { allowedTiers?: { id: string; isDefault?: boolean }[] }
  return allowedTiers.find(({ isDefault }) => isDefault)?.id ?? 'legacy-tier'
}

const OPERATION = 'operations/onb.7f3c2b90e1d84a56'

const ENUMS: Record<string, RegExp> = {
  ideType: /^(IDE_UNSPECIFIED|VSCODE|INTELLIJ|CLOUD_SHELL|GEMINI_CLI)$/,
  platform: /^(PLATFORM_UNSPECIFIED|(DARWIN|LINUX)_A(MD|RM)64|WINDOWS_AMD64)$/,
  pluginType: /^(PLUGIN_UNSPECIFIED|CLOUD_CODE|GEMINI)$/,
}

function metadataProblem({ metadata }: Record<string, unknown>): string | null {
  const fields = typeof metadata === 'object' && metadata !== null ? metadata : {}
  const wrong = Object.entries(fields).find(
    ([name, value]) => ENUMS[name] && !ENUMS[name].test(String(value)),
  )
  return wrong ? `Invalid value at 'metadata.${wrong[0]}'` : null
}

const google = (code: number, status: string, message: string): JsonReply => ({
  status: code,
  body: { error: { code, message, status } },
})
const failure = (status: number, error: string, error_description: string): JsonReply => ({
  status,
  body: { error, error_description },
})

const FAILURES: Record<Failure, JsonReply> = {
  client: failure(401, 'invalid_client', 'The OAuth client was not found.'),
  client_secret: failure(400, 'invalid_request', 'client_secret is missing.'),
  code: failure(400, 'invalid_grant', 'Malformed auth code.'),
  redirect_uri: failure(400, 'redirect_uri_mismatch', 'Bad Request'),
  verifier: failure(400, 'invalid_grant', 'Invalid code verifier.'),
  grant_type: failure(400, 'unsupported_grant_type', 'Invalid grant_type'),
  refresh_token: failure(400, 'invalid_grant', 'Token has been expired or revoked.'),
  spent: failure(400, 'invalid_grant', 'Bad Request'),
}
