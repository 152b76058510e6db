/**
 * Logins at a vendor's page: begun here, finished by the vendor's redirect, by what a person pastes, or by a
 * device code, on whichever replica the answer comes to. PKCE and a state of its own for each, single use,
 * bound to its owner, for a few minutes. And login files of vendors' own tools, taken over.
 */
import { setTimeout as sleepFor } from 'node:timers/promises'
import * as oauth from 'oauth4webapi'
import type { Logger } from 'pino'
import { sha256 } from '../chat/json.ts'
import { BatonError, invalid } from '../errors.ts'
import type { DeviceGrant, LoginMode, LoginWish, OAuthCall } from '../oauth-vendor.ts'
import type { OAuthLogin, Scope, Store } from '../store/store.ts'
import type { AddLogin, Credentials, CredentialView } from './credentials.ts'
import { createDevices } from './device.ts'
import { createImport, type ImportFile } from './import.ts'
import { codeIn, codeRefused, endOf, merged, readPasted, readTokens } from './login-answer.ts'
import { errorPageOf, type LoginPage, pageOf } from './login-page.ts'
import type { LoginRow, LoginTable } from './login-table.ts'
import { createLoopback } from './loopback.ts'
import { type OAuthHttp, setUp } from './oauth-http.ts'
import { createPendingLogins, LATE, LIFETIME_SECONDS, USED, wrongState } from './pending-logins.ts'
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

/** Every verb throws oauth_not_enabled, and invalid_request for a wrong state or code. */
export interface Logins {
  /** `mode` null: the default of the deployment. Throws invalid_request where a client is not configured. */
  authorize(caller: Scope, provider: string, mode: LoginMode | null, wish?: LoginWish): Promise<Login>
  /** The vendor's redirect; its single-use `state` stands for the caller. `failed` where the vendor refuses. */
  callback(provider: string, query: Readonly<Record<string, string>>): Promise<LoginStatus>
  /** The page for it, errors included. */
  callbackPage(provider: string, query: Readonly<Record<string, string>>): Promise<LoginPage>
  exchange(
    caller: Scope,
    provider: string,
    answer: { state: string } & ({ code: string } | { pasted: string }),
  ): Promise<CredentialView>
  status(caller: Scope, provider: string, state: string): Promise<LoginStatus>
  importFile: ImportFile
  /** Closes listeners and stops asking about device logins. */
  close(): Promise<void>
}

export interface LoginsDeps {
  store: Pick<Store, 'credentials' | 'logins'>
  vault: Pick<Vault, 'seal' | 'open'>
  table: LoginTable
  http: OAuthHttp
  credentials: Pick<Credentials, 'add'>
  log: Logger
  /** Where the gateway listens, if that is an address of this machine: `http://127.0.0.1:8787` */
  ownUrl(): string | null
  now?(): number
  sleep?(ms: number, signal?: AbortSignal): Promise<unknown>
}

/** What only the login's end needs, sealed. */
interface Kept {
  verifier: string
  wish: LoginWish
  device?: DeviceGrant
}

export function createLogins(deps: LoginsDeps): Logins {
  const { store, vault, table, http, log } = deps
  const now = deps.now ?? Date.now
  const sleep = deps.sleep ?? ((ms, signal) => sleepFor(ms, undefined, { signal }))
  const loopback = createLoopback()
  const pending = createPendingLogins<Kept>(store, vault)

  // ---- beginning

  async function authorize(
    caller: Scope,
    provider: string,
    wanted: LoginMode | null,
    wish: LoginWish = {},
  ): Promise<Login> {
    const row = table.row(provider)
    row.vendor.client(row.settings)
    assertWish(row, wish)
    const mode = modeFor(row, wanted)
    await pending.prune()
    const begin = { caller, row, mode, wish, state: oauth.generateRandomState() }
    return mode === 'device' ? beginDevice(begin) : beginBrowser(begin)
  }

  function modeFor({ vendor }: LoginRow, wanted: LoginMode | null): LoginMode {
    const mode = wanted ?? (deps.ownUrl() === null ? vendor.remoteMode : 'loopback')
    if (vendor.modes.includes(mode)) return mode
    const known = vendor.modes.join(', ')
    throw invalid('mode', `mode must be one of ${known} for ${vendor.provider}.`)
  }

  interface Begin {
    caller: Scope
    row: LoginRow
    mode: LoginMode
    wish: LoginWish
    state: string
  }

  async function beginBrowser(begin: Begin): Promise<Login> {
    const { row, mode, wish, state } = begin
    const verifier = oauth.generateRandomCodeVerifier()
    const hash = sha256(state)
    const redirect_uri = await redirectFor(row, mode, hash)
    try {
      const login = await keep(begin, { redirect_uri, kept: { verifier, wish }, seconds: LIFETIME_SECONDS })
      const { url, parameters } = row.vendor.authorization(row.settings, wish)
      const query = {
        response_type: 'code',
        client_id: row.vendor.client(row.settings).id,
        redirect_uri,
        state,
        code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
        code_challenge_method: 'S256',
        ...parameters,
      }
      return { authorization_url: `${url}?${encoded(query)}`, state, expires_at: login.expires_at, mode }
    } catch (thrown) {
      loopback.release(hash)
      throw thrown
    }
  }

  /** Where the vendor sends the browser to. For `loopback` somebody listens there from now on. */
  async function redirectFor({ vendor }: LoginRow, mode: LoginMode, hash: string): Promise<string> {
    if (mode === 'paste') return vendor.pasteRedirect
    const own = deps.ownUrl()
    if (vendor.loopback.anyPath && own !== null) return `${own}/v1/oauth/callback/${vendor.provider}`
    return loopback.hold(hash, vendor, LIFETIME_SECONDS, (query) =>
      callbackPage(vendor.provider, Object.fromEntries(query)),
    )
  }

  async function beginDevice(begin: Begin): Promise<Login> {
    const { row, mode, wish, state } = begin
    const flow = row.vendor.device
    if (!flow) throw new Error(`${row.vendor.provider} lists the mode device without a flow`)
    const device = flow.readStart(await http.send(flow.start(row.settings)))
    const login = await keep(begin, {
      redirect_uri: flow.redirectUri(row.settings),
      kept: { verifier: '', wish, device },
      seconds: flow.lifetimeSeconds,
    })
    devices.watch(login, device)
    return {
      authorization_url: flow.verificationUrl(row.settings),
      state,
      expires_at: login.expires_at,
      mode,
      user_code: device.user_code,
    }
  }

  const keep = (
    { caller, row, mode, state }: Begin,
    login: { redirect_uri: string; kept: Kept; seconds: number },
  ): Promise<OAuthLogin> =>
    pending.begin({ ...login, owner: caller.owner, provider: row.vendor.provider, mode, state })

  // ---- finishing

  async function callback(provider: string, query: Readonly<Record<string, string>>): Promise<LoginStatus> {
    const row = table.row(provider)
    const state = stateIn(row, query.state ?? '')
    const login = assertOpen(await find(provider, state))
    try {
      const view = await redeem(row, login, state, new URLSearchParams({ ...query, state }))
      return { state: 'done', credential_id: view.id }
    } catch (thrown) {
      if (!(thrown instanceof BatonError)) throw thrown
      return { state: 'failed', error: thrown.message }
    }
  }

  const callbackPage: Logins['callbackPage'] = (provider, query) =>
    callback(provider, query).then(pageOf, errorPageOf)

  async function exchange(
    caller: Scope,
    provider: string,
    answer: { state: string } & ({ code: string } | { pasted: string }),
  ): Promise<CredentialView> {
    const row = table.row(provider)
    const state = stateIn(row, answer.state)
    const found = await find(provider, state)
    // Another owner's login is as unknown as none.
    const login = assertOpen(found?.owner === caller.owner ? found : null)
    if (login.mode === 'device') {
      const words = 'A device login ends by itself once it is granted; ask for its status.'
      throw invalid('state', words)
    }
    const [field, text] = 'code' in answer ? ['code', answer.code] : ['pasted', answer.pasted]
    const given = readPasted(text)
    const returned = given.get('state')
    if (returned !== null && stateIn(row, returned) !== state) {
      const words = `${field} belongs to another login: its state is not the one given.`
      throw invalid(field, words)
    }
    if (!given.get('code') && !given.get('error')) {
      const words = `${field} holds no code. Give what the page showed, or the address that the browser ended at.`
      throw invalid(field, words)
    }
    given.set('state', state)
    return redeem(row, login, state, given)
  }

  /** Uses the login up: whatever comes of it, its state is worth nothing afterwards. */
  async function redeem(
    row: LoginRow,
    { state_hash, provider, redirect_uri }: OAuthLogin,
    state: string,
    answer: URLSearchParams,
  ): Promise<CredentialView> {
    const login = await store.logins.take(state_hash, provider)
    if (!login) throw wrongState(USED)
    return ending(login, async () => {
      const code = codeIn(row, answer, state)
      const { verifier, wish } = pending.kept(login)
      const call = row.vendor.exchange(row.settings, { code, state, redirect_uri, verifier })
      return obtain(row, login, call, wish)
    })
  }

  function ending(login: OAuthLogin, work: () => Promise<CredentialView>): Promise<CredentialView> {
    loopback.release(login.state_hash)
    return pending.ending(login, () =>
      work().catch((thrown: unknown) => {
        log.warn({ provider: login.provider, err: thrown }, 'login failed')
        throw thrown
      }),
    )
  }

  /** Gives the vendor its code for tokens, and stores these as a credential. */
  async function obtain(
    row: LoginRow,
    { owner }: OAuthLogin,
    call: OAuthCall,
    wish: LoginWish,
  ): Promise<CredentialView> {
    const answer = await http.send(call)
    const tokens = readTokens(row, answer)
    if (!tokens?.access_token) throw codeRefused(row, answer)
    const secret = merged({ client_id: row.vendor.client(row.settings).id }, tokens)
    const { facts, name = tokens.name } = row.vendor.identify(secret)
    const known = { ...facts, ...wishFacts(row, wish) }
    const found = await setUp(row, { accessToken: tokens.access_token, facts: known }, { http, sleep })
    return add(owner, {
      provider: row.vendor.provider,
      secret,
      facts: { ...known, ...found },
      expires_at: endOf(row, secret, tokens, now()),
      name: name ?? null,
    })
  }

  /** A new login steps into the place of a default that needs one. */
  async function add(owner: string, login: Omit<AddLogin, 'default'>): Promise<CredentialView> {
    const preferred = await store.credentials.preferred(owner, login.provider)
    const isSuccessor = preferred?.is_default === true && preferred.state === 'needs_reauth'
    return deps.credentials.add(owner, { ...login, default: isSuccessor })
  }

  const devices = createDevices({
    rows: store.logins,
    table,
    http,
    log,
    sleep,
    async granted(login, { code, verifier }) {
      const row = table.row(login.provider)
      const taken = await store.logins.take(login.state_hash, login.provider)
      if (!taken) return
      const { redirect_uri } = taken
      const call = row.vendor.exchange(row.settings, { code, state: '', redirect_uri, verifier })
      // The failure is the login's outcome, written down there.
      await ending(taken, () => obtain(row, taken, call, pending.kept(taken).wish)).catch(() => {})
    },
  })

  // ---- looking

  const find = async (provider: string, state: string): Promise<OAuthLogin | null> => {
    const login = await store.logins.get(sha256(state))
    return login?.provider === provider ? login : null
  }

  async function status(caller: Scope, provider: string, state: string): Promise<LoginStatus> {
    const row = table.row(provider)
    const login = await find(provider, stateIn(row, state))
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
    authorize,
    callback,
    callbackPage,
    exchange,
    status,
    importFile: createImport({ table, http, sleep, now, add }),
    async close() {
      await Promise.all([devices.close(), loopback.close()])
    },
  }
}

const stateIn = ({ vendor }: LoginRow, returned: string): string => vendor.stateOf?.(returned) ?? returned

/** Blanks as %20: one vendor does not read a plus (wire/openai.md 1.2). */
const encoded = (query: Readonly<Record<string, string>>): string =>
  Object.entries(query)
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    .join('&')

const UNKNOWN = 'No login of yours with this state is under way; begin one with authorize.'

function assertOpen(login: OAuthLogin | null): OAuthLogin {
  if (!login) throw wrongState(UNKNOWN)
  if (login.state === 'done') throw wrongState('This login is complete already; there is nothing left to do.')
  if (login.state !== 'pending') throw wrongState(USED)
  if (login.is_expired) throw wrongState(LATE)
  return login
}

function assertWish({ vendor }: LoginRow, wish: LoginWish): void {
  const [field] = Object.keys(wish)
  if (field === undefined || vendor.setup) return
  throw invalid(field, `${vendor.provider} logins take no ${field}.`)
}

/** Which of the vendor's APIs the login is for, where it has several. */
const wishFacts = ({ vendor }: LoginRow, { path = 'code_assist', ...rest }: LoginWish): LoginWish =>
  vendor.setup ? { path, ...rest } : {}
