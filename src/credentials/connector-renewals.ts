/**
 * Keeps logins at MCP servers alive: a token is renewed ahead of its end and after a refusal, by one caller at a time
 * (renew-once.ts). A connector belongs to one owner, so its tokens never serve another.
 */
import { setTimeout as sleepFor } from 'node:timers/promises'
import { BoundedMap } from '../bounded-map.ts'
import { BatonError } from '../errors.ts'
import { type McpAuth, type McpChallenge, McpError } from '../mcp/contract.ts'
import type { McpLogin, McpLoginTarget, McpOAuth, McpTokens } from '../mcp/oauth.ts'
import type { Connector, Store } from '../store/store.ts'
import { connectorKey, openConnector, sealConnector } from './connector-secret.ts'
import { insist, shared, underClaim } from './renew-once.ts'
import type { Vault } from './vault.ts'

export interface ConnectorRenewals {
  /** For the MCP door; of connectors with `auth: oauth`. */
  authFor(connector: Connector): McpAuth
  /** What a new login at its server goes on from. */
  known(connector: Connector): Known
  /** Waits for renewals under way, so that no new token is lost. */
  close(): Promise<void>
}

export interface ConnectorRenewalDeps {
  store: Pick<Store, 'connectors'>
  vault: Pick<Vault, 'seal' | 'open'>
  oauth: Pick<McpOAuth, 'renew'>
  allowPrivate: McpLoginTarget['allowPrivate']
  now?(): number
  sleep?(ms: number, signal?: AbortSignal): Promise<unknown>
}

/** A renewal takes 40 s at most: a discovery (oauth.ts) and a token request. */
const CLAIM_SECONDS = 60
/** Renewed so long before its end, or in the second half of a shorter life: a call may take a while to arrive. */
const AHEAD_MS = 60_000
/** Characters of the scopes that a server asks for, as a row keeps them */
const MOST_SCOPES = 4096
/** Connectors come and go in a long-lived process. */
const MOST_KNOWN = 1000

/** One connector at one revision, in this process: its login, and what its server asked for when it refused. */
interface Known {
  login: McpLogin | null
  challenge: McpChallenge | null
}

type SignedIn = McpLogin & { tokens: McpTokens }

export function createConnectorRenewals(deps: ConnectorRenewalDeps): ConnectorRenewals {
  const { store, vault, oauth, allowPrivate } = deps
  const now = deps.now ?? Date.now
  const sleep = deps.sleep ?? ((ms, signal) => sleepFor(ms, undefined, { signal }))
  const known = new BoundedMap<Known>(MOST_KNOWN)
  const running = new Map<string, Promise<McpLogin>>()
  const noting = new Map<string, Promise<unknown>>()
  const ending = new AbortController()
  const persist = <T>(write: () => Promise<T>) => insist(write, sleep, ending.signal)

  function entry(connector: Connector): Known {
    const key = connectorKey(connector)
    const found = known.get(key)
    if (found) return found
    const { oauth: login = null } = openConnector(vault, connector)
    const fresh: Known = { login, challenge: null }
    known.put(key, fresh)
    return fresh
  }

  /** The login that is known, or else the stored one: a replica that was late may have stored new tokens since. */
  async function signedIn(connector: Connector): Promise<SignedIn> {
    const found = entry(connector)
    if (!found.login?.tokens) {
      const { id, owner } = connector
      const row = await store.connectors.get({ owner, admin: false }, id)
      found.login = row && loginAt(connector, row)
    }
    const { login } = found
    if (!login?.tokens) throw needed(connector)
    return { ...login, tokens: login.tokens }
  }

  const isFresh = ({ tokens, expires_at }: McpLogin, refused: string | null): boolean =>
    tokens !== undefined &&
    tokens.access_token !== refused &&
    (expires_at === undefined || expires_at > now() + aheadMs(tokens))

  /** The login with a token that was not refused. */
  function renewed(connector: Connector, refused: string | null): Promise<McpLogin> {
    return shared(running, connectorKey(connector), async () => {
      const login = await claimed(connector, refused)
      entry(connector).login = login
      if (!login.tokens || login.tokens.access_token === refused) throw needed(connector)
      return login
    })
  }

  /** Renews it, or takes over what another replica made of it: without tokens where only a person can help. */
  function claimed(connector: Connector, refused: string | null): Promise<McpLogin> {
    const { id, owner } = connector
    const until = now() + CLAIM_SECONDS * 1000
    return underClaim(store.connectors, {
      id,
      seconds: CLAIM_SECONDS,
      now,
      sleep: (ms) => sleep(ms, ending.signal).catch(() => {}),
      work: (row) => renewHeld(connector, row, refused),
      async elsewhere() {
        const seen = await store.connectors.get({ owner, admin: false }, id)
        const login = seen && openConnector(vault, seen).oauth
        if (seen && login && isFresh(login, refused)) return loginAt(connector, seen)
        if (!seen) throw needed(connector)
        if (now() > until || ending.signal.aborted) throw busy(connector)
        return null
      },
    })
  }

  async function renewHeld(connector: Connector, row: Connector, refused: string | null): Promise<McpLogin> {
    const login = loginAt(connector, row)
    if (!login.tokens || isFresh(login, refused)) return login
    // The access token was refused or is about to end: only the refresh token is left.
    const next = await oauth.renew(targetOf(row, allowPrivate), login).catch((failure: unknown) => {
      // A token that still holds will do while the login service is away.
      const holds = login.tokens?.access_token !== refused && (login.expires_at ?? 0) > now()
      if (holds && failure instanceof BatonError) return login
      throw failure
    })
    const left = next ?? rest(login, refused)
    return left === login ? login : kept(connector, row, login, left)
  }

  /** A row's login, if it is at the server that the connector was read with: a token goes nowhere else. */
  const loginAt = ({ url }: Connector, row: Connector): McpLogin =>
    row.url === url ? (openConnector(vault, row).oauth ?? {}) : {}

  /**
   * What is left of a login that cannot be renewed: its token, until that ends. A refusal of it alone ends no
   * login, since servers refuse good tokens while they are in trouble.
   */
  function rest(login: McpLogin, refused: string | null): McpLogin {
    const { tokens, expires_at = Number.POSITIVE_INFINITY, ...signedOut } = login
    if (!tokens || expires_at <= now()) return signedOut
    const { refresh_token, ...left } = tokens
    if (refresh_token === undefined) return login
    return left.access_token === refused ? signedOut : { ...login, tokens: left }
  }

  /**
   * Where the service rotates its tokens, these are the only ones now: what was written in the meantime must
   * not cost them, unless it made another login or took this one away. Then that holds.
   */
  async function kept(
    connector: Connector,
    read: Connector,
    before: McpLogin,
    login: McpLogin,
  ): Promise<McpLogin> {
    const secret = sealConnector(vault, read, { ...openConnector(vault, read), oauth: login })
    if (secret && (await persist(() => store.connectors.keep(read, secret)))) return login
    const { id, owner } = read
    const seen = await persist(() => store.connectors.get({ owner, admin: false }, id))
    if (!seen) return {}
    const token = openConnector(vault, seen).oauth?.tokens?.access_token
    // Sealed anew or changed in something else; or a sibling whose turn it was found the spent token dead.
    const isOurs = token === before.tokens?.access_token
    const isGivenUp = token === undefined && seen.config_revision === read.config_revision
    return isOurs || isGivenUp ? kept(connector, seen, before, login) : loginAt(connector, seen)
  }

  /** Notes it in the row, since the next login may begin on another replica. If that fails, the server asks again. */
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
      async token() {
        const login = await signedIn(connector)
        if (isFresh(login, null)) return login.tokens.access_token
        return (await renewed(connector, null)).tokens?.access_token
      },
      async onUnauthorized() {
        const { tokens } = await signedIn(connector)
        await renewed(connector, tokens.access_token)
      },
      held: () => known.get(connectorKey(connector))?.login?.tokens?.access_token,
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

/** The scopes that a login is known to lack, with what is asked for now; empty: none. */
function beyond(login: McpLogin | undefined, asked: string): string {
  const granted = new Set(String(login?.tokens?.scope ?? '').split(' '))
  const missing = `${login?.lacking ?? ''} ${asked}`.split(' ').filter((scope) => !granted.has(scope))
  return [...new Set(missing)].filter(Boolean).join(' ').slice(0, MOST_SCOPES)
}

/** The server to log in at. */
export const targetOf = (
  { name, url }: Connector,
  allowPrivate: McpLoginTarget['allowPrivate'],
): McpLoginTarget => ({ name, url: url ?? '', allowPrivate })

/** One that nothing can renew serves to its end. */
function aheadMs({ expires_in, refresh_token }: McpTokens): number {
  if (refresh_token === undefined) return 0
  return typeof expires_in === 'number' ? Math.min(AHEAD_MS, expires_in * 500) : AHEAD_MS
}

/** The words end up in the registry's reason, and in what a model is told. */
const needed = ({ name, id }: Pick<Connector, 'name' | 'id'>): McpError =>
  new McpError('auth_required', `${name} needs a login: POST ${loginPath(id)}`, { sent: false })
const busy = ({ name }: Pick<Connector, 'name'>): McpError =>
  new McpError('unavailable', `${name}: its login is being renewed by another process`, { sent: false })

/** Where a login is begun over HTTP. */
export const loginPath = (id: string): string => `/v1/connectors/${encodeURIComponent(id)}/login`
