/**
 * Logins at a vendor's page: begun here (logins/begin.ts), finished by the vendor's redirect, by what a person pastes,
 * or by a device code, on whichever replica the answer comes to. Each serves once, is bound to its owner, and lasts for
 * a few minutes. Login files of vendors' own tools are taken over here, too. Each login ends as a credential
 * (logins/end.ts).
 */
import type { Logger } from 'pino'
import { BatonError, invalid, refuseAt } from '../errors.ts'
import type { LoginChoices, LoginMode } from '../oauth-vendor.ts'
import type { OAuthLogin, Scope, Store } from '../store/store.ts'
import type { Credentials, CredentialView } from './credentials.ts'
import { codeIn, readPasted } from './logins/answer.ts'
import { createLoginBegin, type Kept } from './logins/begin.ts'
import { createDevices } from './logins/device.ts'
import { createLoginEnd } from './logins/end.ts'
import type { LoginFile } from './logins/file.ts'
import { createLoopback } from './logins/loopback.ts'
import { type LoginPage, pageOf } from './logins/page.ts'
import { assertOpen, BUSY, createPendingLogins, wrongState } from './logins/pending.ts'
import type { ConfiguredVendor, Vendors } from './logins/vendors.ts'
import type { OAuthHttp } from './oauth-http.ts'
import { sleepFor } from './renew-once.ts'
import type { Vault } from './vault.ts'

/** A login on its way (api.md "Credentials"). */
export interface Login {
  authorization_url: string
  state: string
  expires_at: string
  mode: LoginMode
  user_code?: string
}
/** What became of a login; `credential_id` once it is done, `error` once it has failed. */
export interface LoginStatus {
  state: 'pending' | 'done' | 'failed' | 'expired'
  credential_id?: string
  error?: string
}

/** What a person brings back from a login's page. */
type Brought = { state: string } & ({ code: string } | { pasted: string })

/** Every verb throws oauth_not_enabled, and invalid_request for a wrong state or code. */
export interface Logins {
  /** `mode` null: the default of the deployment. Throws invalid_request if no client is configured. */
  authorize(caller: Scope, provider: string, mode: LoginMode | null, choices?: LoginChoices): Promise<Login>
  /** The vendor's redirect; its single-use `state` identifies the caller. The page says what came of it. */
  callback(provider: string, query: Readonly<Record<string, string>>): Promise<LoginPage>
  exchange(caller: Scope, provider: string, answer: Brought): Promise<CredentialView>
  status(caller: Scope, provider: string, state: string): Promise<LoginStatus>
  /** Takes over a login file. The warning says what that means for the tool that made it. */
  importFile(caller: Scope, file: LoginFile): Promise<CredentialView & { warning: string }>
  /** Closes listeners and stops asking about device logins. */
  close(): Promise<void>
}

interface LoginsDeps {
  store: Pick<Store, 'credentials' | 'logins'>
  vault: Pick<Vault, 'seal' | 'open'>
  vendors: Vendors
  http: OAuthHttp
  credentials: Pick<Credentials, 'add' | 'get'>
  log: Logger
  /** Where the gateway listens, if that is an address of this machine: `http://127.0.0.1:8787` */
  ownUrl(): string | null
  now?(): number
  sleep?(ms: number, signal?: AbortSignal): Promise<unknown>
}

export function createLogins(deps: LoginsDeps): Logins {
  const { store, vault, vendors, http, log, ownUrl, sleep = sleepFor } = deps
  const loopback = createLoopback(callback)
  const pending = createPendingLogins<Kept>(store, vault, sleep)
  const end = createLoginEnd({ ...deps, now: deps.now ?? Date.now, sleep, stored: pending.stored })
  const devices = createDevices({
    rows: store.logins,
    vendors,
    http,
    log,
    sleep,
    granted: (login, grant) => redeem(vendors.get(login.provider), login, () => ({ state: '', ...grant })),
    refused: (login, why) => pending.use(login, () => Promise.reject(why)).catch(() => {}),
  })
  const begin = createLoginBegin({ pending, loopback, http, ownUrl, watch: devices.watch })

  async function find(provider: string, state: string): Promise<OAuthLogin | null> {
    const login = await pending.find(state)
    return login?.provider === provider ? login : null
  }

  /** Uses the login up. Null if somebody else has used it. `granted` reads what the vendor gave, and for which state. */
  function redeem(
    configured: ConfiguredVendor,
    login: OAuthLogin,
    granted: () => { code: string; state: string; verifier?: string },
  ): Promise<CredentialView | null> {
    const { owner, provider, redirect_uri, state_hash } = login
    return pending.use(login, async () => {
      loopback.release(state_hash)
      try {
        const grant = granted()
        const { verifier, wish: choices } = pending.kept(login)
        const call = configured.vendor.exchange(configured.settings, { verifier, redirect_uri, ...grant })
        return await end.byCode(configured, owner, call, choices)
      } catch (err) {
        log.warn({ provider, err }, 'login failed')
        throw err
      }
    })
  }

  async function redeemAnswer(
    configured: ConfiguredVendor,
    login: OAuthLogin,
    state: string,
    answer: URLSearchParams,
  ): Promise<CredentialView> {
    const made = await redeem(configured, login, () => ({ state, code: codeIn(configured, answer, state) }))
    if (made) return made
    throw wrongState(BUSY)
  }

  async function callback(provider: string, query: Readonly<Record<string, string>>): Promise<LoginPage> {
    const configured = vendors.get(provider)
    const state = stateIn(configured, query.state ?? '')
    const found = await find(provider, state)
    const finish = async () =>
      redeemAnswer(configured, openOf(found), state, new URLSearchParams({ ...query, state }))
    return pageOf(finish())
  }

  async function exchange(caller: Scope, provider: string, answer: Brought): Promise<CredentialView> {
    const configured = vendors.get(provider)
    const state = stateIn(configured, answer.state)
    const found = await find(provider, state)
    // Another owner's login counts as unknown.
    const login = openOf(found?.owner === caller.owner ? found : null)
    if (login.mode === 'device') {
      const words = 'A device login ends by itself once it is granted; ask for its status.'
      throw invalid('state', words)
    }
    const made = redeemAnswer(configured, login, state, broughtBack(configured, state, answer))
    return 'pasted' in answer ? made.catch(ofPasted) : made
  }

  async function status(caller: Scope, provider: string, state: string): Promise<LoginStatus> {
    const login = await find(provider, stateIn(vendors.get(provider), state))
    if (!login || (login.owner !== caller.owner && !caller.admin)) throw wrongState(UNKNOWN)
    if (login.state === 'done' && login.credential_id) {
      return { state: 'done', credential_id: login.credential_id }
    }
    if (login.state === 'failed') return { state: 'failed', ...(login.error ? { error: login.error } : {}) }
    if (login.is_expired) return { state: 'expired' }
    // The replica that asked the vendor so far may be gone.
    const { device } = pending.kept(login)
    if (device && login.state === 'pending') devices.watch(login, device)
    return { state: 'pending' }
  }

  return {
    authorize: async ({ owner }, provider, mode, choices = {}) =>
      begin({ owner, configured: vendors.get(provider), mode, choices }),
    callback,
    exchange,
    status,
    importFile: async ({ owner }, file) => end.byFile(vendors.get(file.provider), owner, file),
    async close() {
      pending.end()
      await Promise.all([devices.close(), loopback.close()])
    },
  }
}

const stateIn = ({ vendor }: ConfiguredVendor, returned: string): string =>
  vendor.stateOf?.(returned) ?? returned

const UNKNOWN = 'No login of yours with this state is under way; begin one with authorize.'

function openOf(login: OAuthLogin | null): OAuthLogin {
  if (!login) throw wrongState(UNKNOWN)
  assertOpen(login)
  return login
}

/** An error about the code becomes one about the pasted text that held it. */
function ofPasted(thrown: unknown): never {
  if (thrown instanceof BatonError && thrown.param === 'code') refuseAt('pasted')(thrown)
  throw thrown
}

/** The answer of the login's page. Throws invalid_request if it holds neither code nor error, or is another login's. */
function broughtBack(configured: ConfiguredVendor, state: string, answer: Brought): URLSearchParams {
  const [field, text] = 'code' in answer ? ['code', answer.code] : ['pasted', answer.pasted]
  const given = readPasted(text)
  const returned = given.get('state')
  if (returned !== null && stateIn(configured, returned) !== state) {
    throw invalid(field, `${field} belongs to another login: its state is not the one given.`)
  }
  if (!given.get('code') && !given.get('error')) {
    const words = `${field} holds no code. Give what the page showed, or the address that the browser ended at.`
    throw invalid(field, words)
  }
  given.set('state', state)
  return given
}
