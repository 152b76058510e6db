/**
 * Credentials: written once, shown never. The secret is sealed with the vault under its owner and id, so that a
 * row put in another's place opens nothing. Keys from the environment appear as read-only credentials that every
 * owner may use.
 */
import { newId } from '../chat/ids.ts'
import type { Config } from '../config/config.ts'
import { BatonError, invalid } from '../errors.ts'
import type { LoginSecret } from '../oauth-vendor.ts'
import type { CredentialSecret, Deployment } from '../provider.ts'
import type { Credential, Page, PageRequest, Scope, Store } from '../store/store.ts'
import { inMilliseconds } from '../validation.ts'
import { envId } from './choose.ts'
import type { Vendors } from './logins/vendors.ts'
import { whySpent } from './renew-login.ts'
import { merged } from './token-answer.ts'
import { hintOf, sealSecret, type Vault } from './vault.ts'

/** A credential as the API shows it. */
export type CredentialView = Omit<Credential, 'secret' | 'version' | 'is_default' | 'facts'> & {
  default: boolean
  origin: 'api' | 'env'
} & Facts
type Facts = Partial<Record<(typeof FACTS)[number], string>>
const FACTS = ['account_id', 'project_id', 'path', 'quota_project', 'workspace_id'] as const

/** A login whose tokens the caller has already. */
interface NewLogin {
  kind: 'oauth'
  /** Only a federated login may come without one */
  access_token?: string
  refresh_token?: string
  id_token?: string
  federation?: Record<string, string>
  expires_at?: string
  account_id?: string
  project_id?: string
  path?: 'code_assist' | 'public'
  quota_project?: string
  workspace_id?: string
}
type CreateCredential = { provider: string; name?: string | null; default?: boolean } & (
  | { kind: 'api_key'; api_key: string; workspace_id?: string }
  | NewLogin
)
/** A login with its tokens, as flows and imported files bring it. */
export interface AddLogin {
  /** A caller that must be sure looks for this id before another try */
  id: string
  provider: string
  secret: LoginSecret
  facts: Readonly<Record<string, string>>
  expires_at: string | null
  name: string | null
  default: boolean
}
/** Fields that are absent stay as they are. */
interface PatchCredential {
  name?: string | null
  state?: 'active' | 'disabled'
  default?: boolean
}

/** Credentials as callers make and see them. Every change is on record in the audit trail. */
export interface Credentials {
  /** Throws oauth_not_enabled, invalid_request. */
  create(owner: string, input: CreateCredential): Promise<CredentialView>
  /** Stores a login that was just made. */
  add(owner: string, login: AddLogin): Promise<CredentialView>
  /** Null for an unknown id or another owner's. */
  get(scope: Scope, id: string): Promise<CredentialView | null>
  /** Stored ones newest first, then the environment's. */
  list(scope: Scope, page: PageRequest): Promise<Page<CredentialView>>
  /** Throws credential_not_found, read_only. */
  update(scope: Scope, id: string, patch: PatchCredential): Promise<CredentialView>
  delete(scope: Scope, id: string): Promise<void>
}

interface CredentialDeps {
  store: Pick<Store, 'credentials'>
  vault: Pick<Vault, 'seal'>
  config: Pick<Config, 'envCredentials'>
  deployments: readonly { deployment: Pick<Deployment, 'provider' | 'credential'> }[]
  vendors: Vendors
}

export function createCredentials(deps: CredentialDeps): Credentials {
  const { store, vault, config, deployments, vendors } = deps
  const env = envViews(config.envCredentials)

  /** Which of a provider's APIs a login is for, if it has several. */
  function pathOf(provider: string, wanted: string | undefined): string | undefined {
    const paths = deployments
      .map(({ deployment }) => deployment)
      .filter((row) => row.provider === provider && row.credential.kind === 'oauth')
      .flatMap(({ credential }) => credential.path ?? [])
    if (wanted === undefined) return paths.includes('code_assist') ? 'code_assist' : paths[0]
    if (paths.some((path) => path === wanted)) return wanted
    const known = paths.length > 0 ? `one of: ${paths.join(', ')}` : 'left out for this provider'
    throw invalid('path', `path must be ${known}.`)
  }

  async function create(owner: string, input: CreateCredential): Promise<CredentialView> {
    const id = newId('cred')
    const { provider, name = null, default: is_default = false } = input
    if (input.kind === 'oauth') {
      return add(owner, { id, provider, name, default: is_default, ...givenLogin(provider, input) })
    }
    const { api_key, workspace_id } = input
    const facts = picked({ workspace_id })
    const row = { id, provider, kind: 'api_key' as const, name, is_default, facts, expires_at: null }
    return credentialView(await put(owner, row, { api_key }))
  }

  async function add(
    owner: string,
    { default: is_default, secret, ...login }: AddLogin,
  ): Promise<CredentialView> {
    const made = await put(owner, { ...login, kind: 'oauth', is_default }, secret)
    // With a spent login a turn would begin only to fail.
    const reason = whySpent(made, vendors.get(made.provider), secret)
    const isSpent = reason !== null && (await store.credentials.fail(made.id, made.version, reason, 'ended'))
    const now = isSpent ? await store.credentials.get({ owner, admin: false }, made.id) : made
    return credentialView(now ?? made)
  }

  async function put(
    owner: string,
    row: Pick<Credential, 'id' | 'provider' | 'kind' | 'name' | 'is_default' | 'expires_at' | 'facts'>,
    secret: CredentialSecret,
  ): Promise<Credential> {
    const { id, provider, kind } = row
    return store.credentials.create(
      {
        ...row,
        owner,
        state: 'active',
        reason: null,
        hint: hintOf(secret.api_key ?? secret.access_token ?? ''),
        secret: sealSecret(vault, { owner, id }, secret),
      },
      { owner, act: 'credential.create', subject: id, details: { provider, kind } },
    )
  }

  /** What a caller gave, with what the tokens say of themselves. */
  function givenLogin(provider: string, input: NewLogin): Pick<AddLogin, 'secret' | 'facts' | 'expires_at'> {
    const { vendor, settings } = vendors.get(provider)
    const { access_token, federation } = input
    if (federation && vendor.renew(settings, { federation }) === null) {
      throw invalid('federation', `${provider} takes no federation.`)
    }
    if (access_token === undefined && !federation) {
      throw invalid('access_token', 'access_token is required.')
    }
    const secret = merged(federation ? { federation } : {}, input)
    const own = vendor.identify(secret)
    // Without a token, one is to be fetched at the first use.
    const end = access_token === undefined ? new Date().toISOString() : null
    return {
      secret,
      facts: { ...own.facts, ...picked({ ...input, path: pathOf(provider, input.path) }) },
      expires_at: input.expires_at === undefined ? (own.expires_at ?? end) : inMilliseconds(input.expires_at),
    }
  }

  async function list(scope: Scope, page: PageRequest): Promise<Page<CredentialView>> {
    const skip = /^env:(\d{1,3})$/.exec(page.cursor ?? '')?.[1]
    const stored =
      skip === undefined ? await store.credentials.list(scope, page) : { data: [], next_cursor: null }
    const data = stored.data.map(credentialView)
    if (stored.next_cursor !== null) return { data, next_cursor: stored.next_cursor }
    const from = Number(skip ?? 0)
    const to = from + page.limit - data.length
    return {
      data: [...data, ...env.slice(from, to)],
      next_cursor: to < env.length ? `env:${to}` : null,
    }
  }

  async function update(scope: Scope, id: string, patch: PatchCredential): Promise<CredentialView> {
    assertWritable(id)
    const { default: is_default, ...rest } = patch
    const change = is_default === undefined ? rest : { ...rest, is_default }
    const entry = { owner: scope.owner, act: 'credential.update', subject: id, details: { ...patch } }
    const row = await store.credentials.update(scope, id, change, entry)
    if (!row) throw notFound(id)
    return credentialView(row)
  }

  async function remove(scope: Scope, id: string): Promise<void> {
    assertWritable(id)
    const entry = { owner: scope.owner, act: 'credential.delete', subject: id, details: {} }
    if (!(await store.credentials.delete(scope, id, entry))) throw notFound(id)
  }

  function assertWritable(id: string): void {
    if (!env.some((view) => view.id === id)) return
    throw new BatonError('read_only', `${id} comes from the environment; change it there.`)
  }

  async function get(scope: Scope, id: string): Promise<CredentialView | null> {
    const known = env.find((view) => view.id === id)
    if (known) return known
    const row = await store.credentials.get(scope, id)
    return row && credentialView(row)
  }

  return { create, add, get, list, update, delete: remove }
}

function envViews(keys: Config['envCredentials']): CredentialView[] {
  const now = new Date().toISOString()
  return keys.map(({ provider, apiKey, workspaceId }) => ({
    id: envId(provider),
    owner: '*',
    provider,
    kind: 'api_key',
    name: null,
    state: 'active',
    reason: null,
    default: false,
    origin: 'env',
    hint: hintOf(apiKey),
    ...picked({ workspace_id: workspaceId }),
    expires_at: null,
    created_at: now,
    updated_at: now,
  }))
}

/** The credential without its secret. */
export function credentialView(row: Credential): CredentialView {
  const { secret, version, is_default, facts, ...shown } = row
  return { ...shown, default: is_default, origin: 'api', ...picked(facts) }
}

function picked(from: Readonly<Record<string, unknown>>): Facts {
  const facts: Facts = {}
  for (const name of FACTS) {
    const value = from[name]
    if (typeof value === 'string') facts[name] = value
  }
  return facts
}

const notFound = (id: string) => new BatonError('credential_not_found', `No credential has the id ${id}.`)
