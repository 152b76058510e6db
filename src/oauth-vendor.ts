/**
 * The contract between Baton and a vendor's logins, the OAuth side of an adapter. Pure like the rest of it:
 * it says what to send, where, and what an answer means; src/credentials/ sends, waits, stores and draws
 * random numbers.
 */
import type { UpstreamFailure } from './provider.ts'

/** How the vendor's answer gets back: to an address on this machine, by the person's hand, or on its own. */
export const LOGIN_MODES = ['loopback', 'paste', 'device'] as const
export type LoginMode = (typeof LOGIN_MODES)[number]

/** The operator's client and the vendor's addresses, as configured. */
export interface OAuthSettings {
  issuer?: string
  authorizeUrl?: string
  tokenUrl?: string
  clientId: string | null
  clientSecret?: string | null
  /** Root of the API that the logins are for, without a trailing slash */
  baseUrl: string
}

/** One request to a vendor. `form` or `json` is its body. */
export interface OAuthCall {
  method: 'GET' | 'POST'
  url: string
  headers?: Readonly<Record<string, string>>
  form?: Readonly<Record<string, string>>
  json?: Readonly<Record<string, unknown>>
}
/** What came back, whatever its status. */
export type OAuthAnswer = UpstreamFailure

/** The part of a login that is sealed. */
export interface LoginSecret {
  access_token?: string
  refresh_token?: string
  id_token?: string
  /** What a workload proves itself with, in place of a refresh token: fields of the token request */
  federation?: Readonly<Record<string, string>>
  /** The client that the tokens were issued to; absent: the configured one */
  client_id?: string
  /** Which of the vendor's token endpoints renews it, in the vendor's own word; absent: that of its logins */
  renewed_by?: string
}

/** A token endpoint's answer. What is absent keeps its old value (refresh tokens above all). */
export interface TokenAnswer extends Pick<LoginSecret, 'access_token' | 'refresh_token' | 'id_token'> {
  /** Seconds */
  expires_in?: number
  /** How a person knows the account */
  name?: string
}

/** The seconds of an `expires_in`: a number (RFC 6749 5.1), or its text, as some write it; undefined for all else. */
export function secondsIn(value: unknown): number | undefined {
  const seconds = typeof value === 'string' && value.trim() !== '' ? Number(value) : value
  return typeof seconds === 'number' && Number.isFinite(seconds) ? seconds : undefined
}

/** Why a token endpoint refused. */
export interface TokenFailure {
  /** Only a new login helps; otherwise the same call may succeed later */
  isLasting: boolean
  /** The refresh token was spent or revoked before this call */
  wasSpent?: true
  /** The vendor's own code, or `http_<status>` */
  code: string
  /** The vendor's words; may be empty */
  message: string
}

/** With code and message cut: a vendor's words may be endless, and they go into errors, events and log lines. */
export const shortened = ({ code, message, ...failure }: TokenFailure): TokenFailure => ({
  ...failure,
  code: code.slice(0, 100),
  message: message.slice(0, 1000),
})

/** What the tokens say about their account and their own expiry. */
export interface LoginIdentity {
  /** What requests may show: `account_id`, … */
  facts: Readonly<Record<string, string>>
  name?: string
  /** RFC 3339 */
  expires_at?: string
}

/** A login file of the vendor's own tool, read. */
export interface ImportedLogin extends LoginIdentity {
  secret: LoginSecret
  /** What taking it over means for that tool */
  warning: string
}

/** What the caller chose for a login besides its mode. */
export interface LoginChoices {
  path?: 'code_assist' | 'public'
  project_id?: string
  quota_project?: string
}

export interface OAuthVendor {
  /** The public provider id */
  provider: string
  modes: readonly LoginMode[]
  /** The mode if nothing can listen for the browser */
  remoteMode: LoginMode
  /** If the operator has configured no client, throws `invalid_request` that names the setting. */
  clientId(settings: OAuthSettings): string
  /** What an `iss` that comes with a code must be (RFC 9207). */
  issuer(settings: OAuthSettings): string
  /**
   * Redirect addresses that the vendor takes on this machine: `http://<host>:<port><path>`. No ports: any.
   * With `anyPath` the gateway's own callback will do.
   */
  loopback: { host: 'localhost' | '127.0.0.1'; ports: readonly number[]; path: string; anyPath: boolean }
  /** The redirect address of a login whose answer a person carries over. */
  pasteRedirect: string
  /**
   * Where the login begins, and its parameters besides the standard ones (response_type, client_id, redirect_uri,
   * state, code_challenge and its method).
   */
  authorization(
    settings: OAuthSettings,
    choices: LoginChoices,
  ): { url: string; parameters: Readonly<Record<string, string>> }
  /** The state as it was sent: the vendor may have added to the one that it returned. */
  stateOf?(returned: string): string
  exchange(
    settings: OAuthSettings,
    answer: { code: string; state: string; redirect_uri: string; verifier: string },
  ): OAuthCall
  /** Null: nothing in the secret can renew it. Throws as `clientId` does. */
  renew(settings: OAuthSettings, secret: LoginSecret): OAuthCall | null
  /** Null if the body is not a token answer. */
  readTokens(body: string): TokenAnswer | null
  readFailure(answer: OAuthAnswer): TokenFailure
  identify(secret: LoginSecret): LoginIdentity
  /** A token that does not say when it expires is renewed at this age. Null: only after a refusal. */
  renewAfterSeconds: number | null
  /** Logins that nobody uses are renewed too, since they die otherwise. */
  keepAlive: boolean
  device?: DeviceFlow
  /**
   * Steps between the tokens and a usable credential; absent: none. Yields calls, is given their answers,
   * returns the facts found. Throws a BatonError for an account that cannot be used.
   */
  setup?: {
    isNeeded(facts: Readonly<Record<string, string>>): boolean
    steps(
      settings: OAuthSettings,
      accessToken: string,
      facts: Readonly<Record<string, string>>,
    ): Generator<SetupStep, Record<string, string>, OAuthAnswer>
  }
  /** By the format's public name. Throws `invalid_request` with param `content`. */
  imports: Readonly<Record<string, (file: Readonly<Record<string, unknown>>) => ImportedLogin>>
}

export interface SetupStep {
  call: OAuthCall
  /** Wait before it is sent */
  afterMs: number
}

/** What a device login needs for its next steps, kept until it is granted. */
export interface DeviceGrant {
  device: string
  user_code: string
  intervalSeconds: number
}
type DevicePoll =
  | { state: 'pending'; isTooFast: boolean }
  /** The vendor made the PKCE pair */
  | { state: 'granted'; code: string; verifier: string }

export interface DeviceFlow {
  /** Where a person types the code */
  verificationUrl(settings: OAuthSettings): string
  redirectUri(settings: OAuthSettings): string
  start(settings: OAuthSettings): OAuthCall
  /** Throws a BatonError if the vendor does not offer it. */
  readStart(answer: OAuthAnswer): DeviceGrant
  poll(settings: OAuthSettings, grant: DeviceGrant): OAuthCall
  /** Throws a BatonError for a refusal that is final. */
  readPoll(answer: OAuthAnswer): DevicePoll
  lifetimeSeconds: number
}
