/** How a login at a provider begins: a page to open, with a state and a PKCE pair of its own, or a code to type there. */
import * as oauth from 'oauth4webapi'
import { sha256 } from '../../chat/json.ts'
import { invalid } from '../../errors.ts'
import type { DeviceGrant, LoginChoices, LoginMode } from '../../oauth-vendor.ts'
import type { OAuthLogin } from '../../store/store.ts'
import type { Login } from '../logins.ts'
import type { OAuthHttp } from '../oauth-http.ts'
import type { Loopback } from './loopback.ts'
import { LIFETIME_SECONDS, type PendingLogins } from './pending.ts'
import { assertChoices, type ConfiguredVendor } from './vendors.ts'

/** What only the login's end needs, sealed. */
export interface Kept {
  verifier: string
  /** Under its former name: replicas of other versions may end the login */
  wish: LoginChoices
  device?: DeviceGrant
}

interface LoginBeginDeps {
  pending: PendingLogins<Kept>
  loopback: Loopback
  http: OAuthHttp
  /** Asks from now on whether the login was granted */
  watch(login: OAuthLogin, grant: DeviceGrant): void
  ownUrl(): string | null
}

interface Begin {
  owner: string
  configured: ConfiguredVendor
  /** Null: the default of the deployment */
  mode: LoginMode | null
  choices: LoginChoices
}

export function createLoginBegin(deps: LoginBeginDeps): (begin: Begin) => Promise<Login> {
  const { pending, loopback, http, ownUrl } = deps

  function modeFor({ vendor }: ConfiguredVendor, wanted: LoginMode | null): LoginMode {
    const mode = wanted ?? (ownUrl() === null ? vendor.remoteMode : 'loopback')
    if (vendor.modes.includes(mode)) return mode
    const known = vendor.modes.join(', ')
    throw invalid('mode', `mode must be one of ${known} for ${vendor.provider}.`)
  }

  async function byBrowser(
    { owner, configured, choices }: Begin,
    mode: 'loopback' | 'paste',
  ): Promise<Login> {
    const { vendor, settings } = configured
    const state = oauth.generateRandomState()
    const verifier = oauth.generateRandomCodeVerifier()
    const hash = sha256(state)
    const redirect_uri = await redirectFor(configured, mode, hash)
    try {
      const { expires_at } = await pending.begin({
        owner,
        provider: vendor.provider,
        mode,
        state,
        redirect_uri,
        kept: { verifier, wish: choices },
        seconds: LIFETIME_SECONDS,
      })
      const { url, parameters } = vendor.authorization(settings, choices)
      const query = {
        response_type: 'code',
        client_id: vendor.clientId(settings),
        redirect_uri,
        state,
        code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
        code_challenge_method: 'S256',
        ...parameters,
      }
      return { authorization_url: `${url}?${encoded(query)}`, state, expires_at, mode }
    } catch (thrown) {
      loopback.release(hash)
      throw thrown
    }
  }

  /** Where the vendor sends the browser to. For `loopback` somebody listens there from now on. */
  async function redirectFor({ vendor }: ConfiguredVendor, mode: LoginMode, hash: string): Promise<string> {
    if (mode === 'paste') return vendor.pasteRedirect
    const own = ownUrl()
    if (vendor.loopback.anyPath && own !== null) return `${own}/v1/oauth/callback/${vendor.provider}`
    return loopback.hold(hash, vendor, LIFETIME_SECONDS)
  }

  async function byDevice({ owner, configured, choices }: Begin): Promise<Login> {
    const { vendor, settings } = configured
    const flow = vendor.device
    if (!flow) throw new Error(`${vendor.provider} lists the mode device without a flow`)
    const state = oauth.generateRandomState()
    const device = flow.readStart(await http.send(flow.start(settings)))
    const login = await pending.begin({
      owner,
      provider: vendor.provider,
      mode: 'device',
      state,
      redirect_uri: flow.redirectUri(settings),
      kept: { verifier: '', wish: choices, device },
      seconds: flow.lifetimeSeconds,
    })
    deps.watch(login, device)
    return {
      authorization_url: flow.verificationUrl(settings),
      state,
      expires_at: login.expires_at,
      mode: 'device',
      user_code: device.user_code,
    }
  }

  return async (begin) => {
    const { configured, choices } = begin
    // Throws if the operator has configured no client.
    configured.vendor.clientId(configured.settings)
    assertChoices(configured, choices)
    const mode = modeFor(configured, begin.mode)
    await pending.prune()
    return mode === 'device' ? byDevice(begin) : byBrowser(begin, mode)
  }
}

/** Spaces as %20: one vendor does not read a plus (wire/openai.md 1.2). */
const encoded = (query: Readonly<Record<string, string>>): string =>
  Object.entries(query)
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    .join('&')
