/** Credentials, pending logins, the gateway's own keys, and the record of what was done with them. */
import type { LoginMode } from '../../oauth-vendor.ts'
import type { Claims, Page, PageRequest, Scope } from './scope.ts'

export interface Credential {
  id: string
  owner: string
  provider: string
  kind: 'api_key' | 'oauth'
  name: string | null
  state: 'active' | 'needs_reauth' | 'disabled'
  reason: string | null
  is_default: boolean
  /** Last four characters of the key or access token */
  hint: string
  /** account_id, project_id, quota_project, workspace_id, path, … never a secret */
  facts: Record<string, string>
  expires_at: string | null
  secret: Uint8Array
  /** Grows with each write of the secret: a renewal compares before it swaps */
  version: number
  created_at: string
  updated_at: string
}
export type NewCredential = Omit<Credential, 'version' | 'created_at' | 'updated_at'>
/** The credentials that may serve a session's turn. */
export interface CredentialCandidates {
  /** The session's own, of its owner */
  named: Credential | null
  /** What `Credentials.preferred` finds */
  preferred: Credential | null
}

export interface Credentials extends Claims<Credential> {
  create(credential: NewCredential, entry?: AuditEntry): Promise<Credential>
  get(scope: Scope, id: string): Promise<Credential | null>
  list(scope: Scope, page: PageRequest): Promise<Page<Credential>>
  /** Setting is_default clears it on the owner's other credentials for the provider. */
  update(
    scope: Scope,
    id: string,
    patch: { name?: string | null; state?: 'active' | 'disabled'; is_default?: boolean },
    entry?: AuditEntry,
  ): Promise<Credential | null>
  delete(scope: Scope, id: string, entry?: AuditEntry): Promise<boolean>
  /**
   * The owner's default for the provider, active or in need of a new login; else its only active one; else, if none is
   * active, the newest that needs a new login; else null. Never a disabled one.
   */
  preferred(owner: string, provider: string): Promise<Credential | null>
  /** Active logins whose access token expires within `seconds` and that nobody is renewing; soonest first. */
  due(providers: readonly string[], seconds: number): Promise<{ id: string; owner: string }[]>
  /** Stores a rotated secret; false when the version moved. */
  rotate(
    id: string,
    version: number,
    next: { secret: Uint8Array; hint: string; expires_at: string | null; facts: Record<string, string> },
  ): Promise<boolean>
  /**
   * Sets `needs_reauth`; with `ended`, only if the access token has expired by the store's clock. False: nothing was
   * written.
   */
  fail(id: string, version: number, reason: string, ended?: 'ended'): Promise<boolean>
}

/** A login for which a person was sent to the vendor. */
export interface NewOAuthLogin {
  /** SHA-256 of the state, in hex: the state itself is never stored */
  state_hash: string
  owner: string
  provider: string
  mode: LoginMode
  redirect_uri: string
  /** The PKCE verifier, and whatever else only the login's end needs */
  sealed: Uint8Array
  /** How long it may take */
  seconds: number
}
export interface OAuthLogin extends Omit<NewOAuthLogin, 'seconds'> {
  /** `taken`: its one answer has come and is being redeemed */
  state: 'pending' | 'taken' | 'done' | 'failed'
  credential_id: string | null
  /** In words; never a secret */
  error: string | null
  expires_at: string
  is_expired: boolean
}
export interface OAuthLogins {
  /** Null if the owner has `most` pending logins already. */
  create(login: NewOAuthLogin, most: number): Promise<OAuthLogin | null>
  get(stateHash: string): Promise<OAuthLogin | null>
  /**
   * Single use: the first caller gets it, and time to finish it; null for everybody else, another provider, or after its
   * time. `sealed`: what is kept, sealed anew by the caller, who is known by these bytes if its call is repeated.
   */
  take(login: Pick<NewOAuthLogin, 'state_hash' | 'provider'>, sealed: Uint8Array): Promise<OAuthLogin | null>
  finish(stateHash: string, result: { credential_id: string } | { error: string }): Promise<void>
  /**
   * Takes the right to ask the vendor, for `seconds`, whether a device login was granted; null while somebody has it.
   */
  poll(stateHash: string, seconds: number): Promise<OAuthLogin | null>
  /** Forgets logins whose time ended `seconds` ago or earlier. */
  prune(seconds: number): Promise<void>
}

/** A key of the gateway as it is shown; of the key itself only a hash is stored. */
export interface ApiKey {
  id: string
  owner: string
  name: string | null
  scopes: ('chat' | 'admin')[]
  hint: string
  expires_at: string | null
  last_used_at: string | null
  revoked_at: string | null
  created_at: string
}
export type FoundKey = ApiKey & { is_expired: boolean }
export interface Keys {
  create(
    key: Omit<ApiKey, 'last_used_at' | 'revoked_at' | 'created_at'> & { hash: string },
    entry?: AuditEntry,
  ): Promise<ApiKey>
  /** By SHA-256 of the key, whatever its state. */
  byHash(hash: string): Promise<FoundKey | null>
  list(scope: Scope, page: PageRequest): Promise<Page<ApiKey>>
  /**
   * Writes the audit's entry, too, with `by` as its owner; both only once. False: there is no such key, or it is not to
   * be seen.
   */
  revoke(scope: Scope, id: string, by: string): Promise<boolean>
  /**
   * Notes that the keys were used, some seconds late: a key that was revoked or has expired since was last used then.
   */
  used(ids: string[]): Promise<void>
}

/**
 * An entry is given to the verb that changes something and written with the change: neither exists without the other.
 */
export interface AuditEntry {
  /** Who did it */
  owner: string
  /** noun.verb */
  act: string
  /** The id of what it was done to */
  subject: string
  /** No secrets */
  details: Record<string, unknown>
}
export type AuditRecord = AuditEntry & { id: string; at: string }

/** Acts of administration, written once and never changed. */
export interface Audit {
  write(entry: AuditEntry): Promise<void>
  /** Newest first. */
  list(page: PageRequest): Promise<Page<AuditRecord>>
}
