/** Where every login at a provider ends: tokens for what the vendor granted, the account set up, a credential stored. */
import { newId } from '../../chat/ids.ts'
import { BatonError } from '../../errors.ts'
import type { LoginChoices, LoginSecret, OAuthAnswer, OAuthCall } from '../../oauth-vendor.ts'
import type { Store } from '../../store/store.ts'
import { oneLine } from '../../text.ts'
import type { AddLogin, Credentials, CredentialView } from '../credentials.ts'
import type { OAuthHttp } from '../oauth-http.ts'
import { endOf, failureOf, merged, readTokens } from '../token-answer.ts'
import { type LoginFile, readLoginFile } from './file.ts'
import type { PendingLogins } from './pending.ts'
import { setUp } from './setup.ts'
import { assertChoices, type ConfiguredVendor } from './vendors.ts'

interface LoginEndDeps {
  store: Pick<Store, 'credentials'>
  http: OAuthHttp
  credentials: Pick<Credentials, 'add' | 'get'>
  now(): number
  sleep(ms: number): Promise<unknown>
  stored: PendingLogins<unknown>['stored']
}

/** Both throw the vendor's refusal, and what a setup throws. */
interface LoginEnd {
  /** `call` sends the code back to the vendor. */
  byCode(
    configured: ConfiguredVendor,
    owner: string,
    call: OAuthCall,
    choices: LoginChoices,
  ): Promise<CredentialView>
  /** The warning says what the import means for the tool that made the file. Throws invalid_request. */
  byFile(
    configured: ConfiguredVendor,
    owner: string,
    file: LoginFile,
  ): Promise<CredentialView & { warning: string }>
}

export function createLoginEnd(deps: LoginEndDeps): LoginEnd {
  const { store, http, credentials, now, stored } = deps

  /** `param`: the caller's field that the vendor may refuse. */
  async function tokensBy(
    configured: ConfiguredVendor,
    call: OAuthCall,
    secret: LoginSecret,
    param: 'code' | 'content',
  ) {
    const answer = await http.send(call)
    const tokens = readTokens(configured, answer)
    if (!tokens?.access_token) throw codeRefused(configured, answer, param)
    const next = merged(secret, tokens)
    return { secret: next, expires_at: endOf(configured, next, tokens, now()), name: tokens.name }
  }

  /**
   * A setup uses the token at once, so a spent one is renewed first. (Vendors whose refresh tokens serve only once have
   * no setup: their tokens are stored before they are renewed.)
   */
  async function fresh(
    configured: ConfiguredVendor,
    secret: LoginSecret,
    expires_at: string | null,
  ): Promise<Pick<AddLogin, 'secret' | 'expires_at'>> {
    const isSpent =
      secret.access_token === undefined || (expires_at !== null && Date.parse(expires_at) <= now())
    const call =
      isSpent && configured.vendor.setup ? configured.vendor.renew(configured.settings, secret) : null
    return call ? tokensBy(configured, call, secret, 'content') : { secret, expires_at }
  }

  /** A new login becomes the default if the present default needs a new login. */
  function add(owner: string, login: Omit<AddLogin, 'id' | 'default'>): Promise<CredentialView> {
    const id = newId('cred')
    return stored(async () => {
      // An earlier try that the store did not answer may have written it.
      const written = await credentials.get({ owner, admin: false }, id)
      if (written) return written
      const preferred = await store.credentials.preferred(owner, login.provider)
      const isSuccessor = preferred?.is_default === true && preferred.state === 'needs_reauth'
      return credentials.add(owner, { ...login, id, default: isSuccessor })
    })
  }

  return {
    async byCode(configured, owner, call, choices) {
      const { vendor, settings } = configured
      const got = await tokensBy(configured, call, { client_id: vendor.clientId(settings) }, 'code')
      const { secret, expires_at } = got
      const { facts, name = got.name ?? null } = vendor.identify(secret)
      const known = { ...facts, ...factsOf(configured, choices) }
      const found = await setUp(configured, secret, known, deps)
      return add(owner, {
        provider: vendor.provider,
        secret,
        facts: { ...known, ...found },
        expires_at,
        name,
      })
    },
    async byFile(configured, owner, file) {
      const given = file.project_id === undefined ? {} : { project_id: file.project_id }
      assertChoices(configured, given)
      const { warning, name = null, ...read } = readLoginFile(configured, file)
      const { secret, expires_at } = await fresh(configured, read.secret, read.expires_at ?? null)
      const known = { ...read.facts, ...given }
      const found = configured.vendor.setup?.isNeeded(known)
        ? await setUp(configured, secret, known, deps)
        : {}
      const facts = { ...known, ...found }
      const view = await add(owner, { provider: configured.vendor.provider, secret, facts, expires_at, name })
      return { ...view, warning }
    },
  }
}

/** Which of the vendor's APIs the login is for, if it has several. */
const factsOf = (
  { vendor }: ConfiguredVendor,
  { path = 'code_assist', ...rest }: LoginChoices,
): LoginChoices => (vendor.setup ? { path, ...rest } : {})

/**
 * A vendor's refusal of a code or file, by its status: `invalid_request` if another code or file would help, else
 * `upstream_…`.
 */
function codeRefused(configured: ConfiguredVendor, answer: OAuthAnswer, param: string): BatonError {
  const { status } = answer
  const { code, message } = failureOf(configured, answer)
  const words = `${configured.vendor.provider} did not take the ${param} (${oneLine(code)}${message ? `: ${oneLine(message)}` : ''}).`
  const details = { upstream: { status, code, message } }
  if (status === 429) return new BatonError('upstream_rate_limited', words, { details, retryAfter: 30 })
  if (status >= 500) return new BatonError('upstream_overloaded', words, { details })
  if (status < 400) return new BatonError('upstream_rejected', words, { details })
  return new BatonError('invalid_request', `${words} Begin the login again.`, { param, details })
}
