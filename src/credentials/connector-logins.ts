/**
 * Logins at MCP servers that want OAuth: begun and finished by a connector's owner, kept in its secret, and kept
 * alive from then on (connector-renewals.ts).
 */
import { randomBytes } from 'node:crypto'
import { BatonError, invalid } from '../errors.ts'
import { clientMetadata, type McpLogin, type McpOAuth, type McpPending } from '../mcp/oauth.ts'
import type { Connector, OAuthLogin, Scope, Store } from '../store/store.ts'
import {
  type ConnectorRenewalDeps,
  type ConnectorRenewals,
  createConnectorRenewals,
} from './connector-renewals.ts'
import { openConnector, sealConnector } from './connector-secret.ts'
import { assertOpen, BUSY, createPendingLogins, LIFETIME_SECONDS, wrongState } from './logins/pending.ts'
import { targetOf } from './renew-connector.ts'
import { sleepFor } from './renew-once.ts'

/** A login that was begun: where to send the browser, and until when. */
export interface ConnectorLogin {
  authorization_url: string
  state: string
  expires_at: string
}
/** Who the gateway is to login services that read it themselves (MCP 2025-11-25 "Client ID Metadata Documents"). */
export interface ClientDocument extends ReturnType<typeof clientMetadata> {
  /** The document's own address */
  client_id: string
  client_uri: string
  application_type: 'web'
  token_endpoint_auth_method: 'none'
}
export interface ConnectorLogins extends Pick<ConnectorRenewals, 'authFor' | 'close'> {
  /**
   * Throws forbidden for anybody but the owner, not_available if no browser can come back or nobody can register, or
   * the failure of the server's login service.
   */
  begin(caller: Scope, connector: Connector): Promise<ConnectorLogin>
  /**
   * The browser's way back; its single-use `state` identifies the caller. Throws invalid_request, or what `begin`
   * throws.
   */
  finish(query: Readonly<Record<string, string>>): Promise<Connector>
  /** Throws not_found if the gateway's address is not https: no other address may identify a client. */
  clientDocument(): ClientDocument
}

interface ConnectorLoginDeps extends ConnectorRenewalDeps {
  store: Pick<Store, 'connectors' | 'logins'>
  oauth: McpOAuth
  /** Where browsers reach the gateway, without a trailing slash; null: nowhere that is known */
  publicUrl(): string | null
  /** Whether a login service on the internet reaches that address, over https */
  isPublic(url: string): Promise<boolean>
}

export function createConnectorLogins(deps: ConnectorLoginDeps): ConnectorLogins {
  const { store, vault, oauth, allowPrivate, sleep = sleepFor } = deps
  const pending = createPendingLogins<Kept>(store, vault, sleep)
  const renewals = createConnectorRenewals(deps)

  async function begin(caller: Scope, connector: Connector): Promise<ConnectorLogin> {
    if (connector.auth.type !== 'oauth') {
      const words = `Connector ${connector.name} needs no login: its auth is ${connector.auth.type}.`
      throw invalid('id', words)
    }
    if (connector.owner !== caller.owner) {
      throw new BatonError('forbidden', `Only ${connector.owner} can log in for this connector.`)
    }
    const root = rootUrl()
    const redirect_url = `${root}${CALLBACK}`
    const client_metadata_url = (await deps.isPublic(root)) ? `${root}${CLIENT}` : ''
    await pending.prune()
    const state = randomBytes(32).toString('base64url')
    const { login, challenge } = renewals.known(connector)
    const target = targetOf(connector, allowPrivate)
    const begun = await oauth.begin(target, {
      login,
      challenge,
      redirect_url,
      client_metadata_url,
      state,
    })
    const { expires_at } = await pending.begin({
      state,
      owner: connector.owner,
      provider: placeOf(connector.id),
      mode: 'loopback',
      redirect_uri: redirect_url,
      kept: { pending: begun.pending, revision: connector.config_revision },
      seconds: LIFETIME_SECONDS,
    })
    return { authorization_url: begun.authorization_url, state, expires_at }
  }

  function rootUrl(): string {
    const root = deps.publicUrl()
    if (root !== null) return root
    throw new BatonError(
      'not_available',
      'The browser could not come back here: the operator must set BATON_PUBLIC_URL.',
    )
  }

  async function finish(query: Readonly<Record<string, string>>): Promise<Connector> {
    const login = await pending.find(query.state ?? '')
    // A login at a provider counts as unknown here, and the other way round.
    const id = login && idIn(login.provider)
    if (!login || id === null) throw wrongState(UNKNOWN)
    assertOpen(login)
    const connector = await pending.use(login, () => redeem(login, id, new URLSearchParams(query)))
    if (connector) return connector
    throw wrongState(BUSY)
  }

  async function redeem(pendingLogin: OAuthLogin, id: string, query: URLSearchParams): Promise<Connector> {
    const { owner } = pendingLogin
    const { pending: sent, revision } = pending.kept(pendingLogin)
    const login = await oauth.finish(
      targetOf(await unchanged(owner, id, revision), allowPrivate),
      sent,
      query,
    )
    return signIn(owner, id, revision, login)
  }

  async function unchanged(owner: string, id: string, revision: number): Promise<Connector> {
    const connector = await pending.stored(() => store.connectors.get({ owner, admin: false }, id))
    if (connector?.config_revision === revision) return connector
    const isLoggedIn = connector && openConnector(vault, connector).oauth?.tokens !== undefined
    throw wrongState(
      isLoggedIn ? OVERTAKEN : 'The connector was changed or deleted since; begin a new login.',
    )
  }

  async function signIn(owner: string, id: string, revision: number, login: McpLogin): Promise<Connector> {
    const read = await unchanged(owner, id, revision)
    const secret = sealConnector(vault, read, { ...openConnector(vault, read), oauth: login })
    const scope = { owner, admin: false }
    const entry = { owner, act: 'connector.login', subject: id, details: {} }
    const written = await pending.stored(async () => {
      // A new revision: what was refused before is tried again, and no connection outlives its login.
      const made = await store.connectors.update(scope, read, { secret }, entry)
      if (made) return made
      // An earlier try that the store did not answer may have written it. Each seals anew, so the bytes tell.
      const now = await store.connectors.get(scope, id)
      return now?.secret && secret && Buffer.compare(now.secret, secret) === 0 ? now : null
    })
    // Null: the connector was changed meanwhile, or its former login was renewed.
    return written && typeof written !== 'string' ? written : signIn(owner, id, revision, login)
  }

  function clientDocument(): ClientDocument {
    const root = deps.publicUrl()
    if (!root?.startsWith('https:')) throw new BatonError('not_found', 'This gateway has no https address.')
    return {
      client_id: `${root}${CLIENT}`,
      client_uri: root,
      ...clientMetadata(`${root}${CALLBACK}`),
      application_type: 'web',
      token_endpoint_auth_method: 'none',
    }
  }

  return {
    authFor: renewals.authFor,
    begin,
    finish,
    clientDocument,
    async close() {
      pending.end()
      await renewals.close()
    },
  }
}

const CALLBACK = '/v1/oauth/connectors/callback'
const CLIENT = '/v1/oauth/connectors/client'

/** What only the login's end needs, sealed. */
interface Kept {
  pending: McpPending
  revision: number
}

const placeOf = (connector: string): string => `connector:${connector}`
const idIn = (place: string): string | null => /^connector:(.+)$/.exec(place)?.[1] ?? null

const OVERTAKEN =
  'The connector was changed since, and is logged in: if that was you, there is nothing left to do; otherwise begin a new login.'
const UNKNOWN = 'No login with this state is under way; begin one at the connector.'
