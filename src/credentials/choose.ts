/**
 * Which credential serves a turn: the session's, the owner's default or only one, or the environment's key. The rule is
 * here; the schema finds the rows that it needs (preferred_credential), and opens a turn without asking here if the
 * answer is sure to be yes (has_credential). The secret is opened only when it is asked for, at the door that sends it.
 */
import type { Config } from '../config/config.ts'
import { BatonError } from '../errors.ts'
import type { CredentialFacts, CredentialSecret } from '../provider.ts'
import type { Credential, CredentialCandidates, Environment, Session, Store } from '../store/store.ts'
import { needsReauth } from './renew-login.ts'
import type { Renewals } from './renewals.ts'
import { openSecret, type Vault } from './vault.ts'

/** A credential chosen for a turn. */
export interface ChosenCredential {
  facts: CredentialFacts
  kind: 'api_key' | 'oauth'
  /** If a provider's logins have several APIs: which one they are for */
  path?: 'code_assist' | 'public'
  /** A login's secret is fresh. Throws credential_needs_reauth, or what kept the login from being renewed. */
  secret(): Promise<CredentialSecret>
  /** Logins: after a refusal that `renewOn` names, whether there is another token to try with */
  onUnauthorized?(): Promise<boolean>
  /** Logins: the facts with what the login's first use finds; it may ask the vendor. */
  complete?(): Promise<CredentialFacts>
}
export interface ChooseCredential {
  readonly environment: Environment
  /**
   * The session's credential if the provider is the session's and the credential is for it, else the owner's default
   * unless it is disabled, else the owner's only active one, else the environment's. `known`: the rows, if they were
   * read a moment ago. Throws no_credential, credential_needs_reauth.
   */
  resolve(session: Choosing, provider: string, known?: CredentialCandidates): Promise<ChosenCredential>
}
/** What a session says of its credential: `credential_id` holds for its own provider only. */
type Choosing = Pick<Session, 'owner' | 'provider' | 'credential_id'>

interface ChooseDeps {
  store: Pick<Store, 'credentials'>
  vault: Pick<Vault, 'open'>
  config: Pick<Config, 'envCredentials' | 'enableOauth'>
  renewals: Pick<Renewals, 'open' | 'assertRenewable'>
}

export function createChoice({ store, vault, config, renewals }: ChooseDeps): ChooseCredential {
  const keys = new Map(config.envCredentials.map((key) => [key.provider, key]))

  async function resolve(
    session: Choosing,
    provider: string,
    known?: CredentialCandidates,
  ): Promise<ChosenCredential> {
    const { owner } = session
    const key = keys.get(provider)
    const id = provider === session.provider ? session.credential_id : null
    if (id !== null) {
      if (key !== undefined && id === envId(provider)) return fromEnv(key)
      const named = known ? known.named : await store.credentials.get({ owner, admin: false }, id)
      if (!named) throw refusal(provider, `The session's credential ${id} does not exist any more`)
      if (named.provider === provider) {
        if (named.state === 'disabled') throw refusal(provider, `The session's credential ${id} is disabled`)
        return chosen(named)
      }
    }
    const preferred = known ? known.preferred : await store.credentials.preferred(owner, provider)
    if (preferred?.state === 'active') return chosen(preferred)
    // A default that needs a login must not be skipped silently.
    if (preferred?.is_default) throw needsReauth(preferred)
    if (key !== undefined) return fromEnv(key)
    if (preferred) throw needsReauth(preferred)
    throw refusal(provider, `No active credential for ${provider} is the default or the only one`)
  }

  async function chosen(row: Credential): Promise<ChosenCredential> {
    if (row.state === 'needs_reauth') throw needsReauth(row)
    // Checked before the turn is opened, rather than in its first step.
    if (row.kind === 'oauth') await renewals.assertRenewable(row)
    const { path, ...facts } = row.facts
    return {
      facts: { id: row.id, ...facts },
      kind: row.kind,
      ...(path === 'code_assist' || path === 'public' ? { path } : {}),
      ...(row.kind === 'oauth'
        ? renewals.open(row)
        : { secret: async () => openSecret<{ api_key: string }>(vault, row) }),
    }
  }

  return { environment: { keys: [...keys.keys()], logins: config.enableOauth }, resolve }
}

/** The id that a provider's key from the environment is shown by. */
export const envId = (provider: string): string => `cred_env_${provider}`

const fromEnv = ({ provider, apiKey, workspaceId }: Config['envCredentials'][number]): ChosenCredential => ({
  facts: { id: envId(provider), ...(workspaceId === undefined ? {} : { workspace_id: workspaceId }) },
  kind: 'api_key',
  secret: async () => ({ api_key: apiKey }),
})

const refusal = (provider: string, why: string) =>
  new BatonError(
    'no_credential',
    `${why}. Add one with POST /v1/credentials, make one the default, or name it in the session.`,
    { details: { provider } },
  )
