/**
 * Keeps logins at MCP servers alive: a token is renewed before it expires and after a refusal (renew-connector.ts), for
 * the calls that use it. A connector belongs to one owner, so its tokens never serve another.
 */
import { BoundedMap } from '../bounded-map.ts'
import type { McpAuth, McpChallenge } from '../mcp/contract.ts'
import type { McpLogin, McpTokens } from '../mcp/oauth.ts'
import type { Connector } from '../store/store.ts'
import { within } from '../within.ts'
import { connectorKey, openConnector, sealConnector } from './connector-secret.ts'
import { type ConnectorRenewerDeps, createConnectorRenewer, loginNeeded } from './renew-connector.ts'
import { CURE_MS, PATIENCE_MS, shared, sleepFor, type Timing } from './renew-once.ts'

export interface ConnectorRenewals {
  /** The authorization that the MCP door uses, of connectors with `auth: oauth`. */
  authFor(connector: Connector): McpAuth
  /** What is known already for a new login at the connector's server. */
  known(connector: Connector): Known
  /** Waits for renewals under way, so that no new token is lost. */
  close(): Promise<void>
}

export type ConnectorRenewalDeps = Omit<ConnectorRenewerDeps, keyof Timing> &
  Partial<Pick<Timing, 'now' | 'sleep'>>

/** Characters of the scopes that a server asks for, as a row keeps them */
const MOST_SCOPES = 4096
/** Connectors come and go in a long-lived process. */
const MOST_KNOWN = 1000

/** One connector at one revision, in this process: its login, and what its server asked for when it refused. */
interface Known {
  login: McpLogin | null
  challenge: McpChallenge | null
  /** The token that came in place of a refused one, and when */
  cure?: { token: string; at: number }
}

type SignedIn = McpLogin & { tokens: McpTokens }

export function createConnectorRenewals(deps: ConnectorRenewalDeps): ConnectorRenewals {
  const { store, vault, sleep = sleepFor } = deps
  const now = deps.now ?? Date.now
  const uptime = deps.now ?? (() => performance.now())
  const ending = new AbortController()
  const renewer = createConnectorRenewer({ ...deps, now, uptime, sleep, ending: ending.signal })
  const entries = new BoundedMap<Known>(MOST_KNOWN)
  const running = new Map<string, Promise<SignedIn>>()
  const noting = new Map<string, Promise<unknown>>()

  function entry(connector: Connector): Known {
    const key = connectorKey(connector)
    const found = entries.get(key)
    if (found) return found
    const { oauth: login = null } = openConnector(vault, connector)
    const fresh: Known = { login, challenge: null }
    entries.put(key, fresh)
    return fresh
  }

  /** The login that is known, or else the stored one: a replica that was late may have stored new tokens since. */
  async function signedIn(connector: Connector): Promise<SignedIn> {
    const found = entry(connector)
    if (!found.login?.tokens) found.login = await renewer.stored(connector)
    return withTokens(connector, found.login)
  }

  /** The login with a token that was not refused. */
  function renewed(connector: Connector, refused: string | null): Promise<SignedIn> {
    return shared(running, connectorKey(connector), async () => {
      const login = await renewer.renewed(connector, refused)
      const found = entry(connector)
      found.login = login
      const left = withTokens(connector, login)
      const token = left.tokens.access_token
      if (token === refused) throw loginNeeded(connector, login.over ?? REFUSED)
      if (refused !== null) found.cure = { token, at: uptime() }
      return left
    })
  }

  /** The login, renewed if that is due. While a slow renewal goes on, a token that is still valid serves. */
  async function fresh(connector: Connector): Promise<SignedIn> {
    const login = await signedIn(connector)
    if (renewer.isFresh(login, null)) return login
    const renewal = renewed(connector, null)
    return renewer.isSpare(login, null) ? ((await within(PATIENCE_MS, renewal)) ?? login) : renewal
  }

  /**
   * Notes in the row what the server asked for, since the next login may begin on another replica. If that fails, the
   * server asks again.
   */
  async function note(connector: Connector, asked: string): Promise<unknown> {
    const { id, owner, config_revision } = connector
    const row = await store.connectors.get({ owner, admin: false }, id)
    if (row?.config_revision !== config_revision) return
    const secret = openConnector(vault, row)
    const lacking = beyond(secret.oauth, asked)
    if (!secret.oauth?.tokens || lacking === secret.oauth.lacking) return
    const sealed = sealConnector(vault, row, { ...secret, oauth: { ...secret.oauth, lacking } })
    return sealed && store.connectors.keep(row, sealed)
  }

  function authFor(connector: Connector): McpAuth {
    return {
      token: async () => (await fresh(connector)).tokens.access_token,
      async onUnauthorized(refused) {
        const { tokens } = await signedIn(connector)
        // Another call that was refused may have brought a newer token.
        if (tokens.access_token !== refused) return
        const found = entry(connector)
        const isCured = found.cure?.token === refused && uptime() - found.cure.at < CURE_MS
        // A sibling may have renewed it since.
        if (isCured) found.login = await renewer.stored(connector)
        else await renewed(connector, refused)
      },
      held: () => entries.get(connectorKey(connector))?.login?.tokens?.access_token,
      onChallenge(challenge) {
        const found = entry(connector)
        found.challenge = challenge
        const { scope } = challenge
        if (!found.login?.tokens || scope === undefined || !beyond(found.login, scope)) return
        shared(noting, connectorKey(connector), () => note(connector, scope)).catch(() => {})
      },
    }
  }

  return {
    authFor,
    known: (connector) => ({
      login: openConnector(vault, connector).oauth ?? null,
      challenge: entry(connector).challenge,
    }),
    async close() {
      ending.abort()
      await Promise.allSettled([...running.values(), ...noting.values()])
    },
  }
}

const REFUSED = 'its server refused the token of the last one, which nothing renews'

function withTokens(connector: Connector, login: McpLogin | null): SignedIn {
  if (login?.tokens) return { ...login, tokens: login.tokens }
  throw loginNeeded(connector, login?.over)
}

/** The scopes that a login is known to lack, those that are asked for now included; empty: none. */
function beyond(login: McpLogin | undefined, asked: string): string {
  const granted = new Set(String(login?.tokens?.scope ?? '').split(' '))
  const missing = `${login?.lacking ?? ''} ${asked}`.split(' ').filter((scope) => !granted.has(scope))
  return [...new Set(missing)].filter(Boolean).join(' ').slice(0, MOST_SCOPES)
}
