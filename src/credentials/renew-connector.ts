/**
 * Renews one login at an MCP server, by one caller at a time (renew-once.ts). A final refusal by the login service
 * costs a login its tokens, and the reason is kept with it; after any other failure the service is left alone for a
 * while (pauses.ts).
 */
import { BatonError } from '../errors.ts'
import { McpError } from '../mcp/contract.ts'
import type { McpLogin, McpLoginTarget, McpOAuth, McpTokens } from '../mcp/oauth.ts'
import type { Connector, Store } from '../store/store.ts'
import { connectorKey, openConnector, sealConnector } from './connector-secret.ts'
import { createPauses } from './pauses.ts'
import { insist, SPARE_MS, type Timing, underClaim } from './renew-once.ts'
import type { Vault } from './vault.ts'

interface ConnectorRenewer {
  /** Whether the login's token is not the refused one, and does not expire soon. */
  isFresh(login: McpLogin, refused: string | null): boolean
  /** Whether the login's token serves while its renewal has to wait. */
  isSpare(login: McpLogin, refused: string | null): boolean
  /**
   * The login, renewed here or by another replica: without tokens if only a person can help, with the refused token if
   * nothing renews it. Throws McpError, or BatonError, for failures that may pass.
   */
  renewed(connector: Connector, refused: string | null): Promise<McpLogin>
  /** The login as it is stored now, for the server that the connector was read with; null: the connector is gone. */
  stored(connector: Connector): Promise<McpLogin | null>
}

export interface ConnectorRenewerDeps extends Timing {
  store: Pick<Store, 'connectors'>
  vault: Pick<Vault, 'seal' | 'open'>
  oauth: Pick<McpOAuth, 'renew'>
  allowPrivate: McpLoginTarget['allowPrivate']
}

/** A renewal takes 40 s at most: a discovery (oauth.ts) and a token request. */
const CLAIM_SECONDS = 60
/**
 * A token is renewed this long before it expires, or in the second half of a shorter life: a call may take a while to
 * arrive.
 */
const AHEAD_MS = 60_000

/** Why a renewal is begun. */
interface Occasion {
  /** The token that was refused; null: none was, the token ends soon */
  refused: string | null
  /** Another process, which this one waited for, tried it and failed */
  wasTried: boolean
}

export function createConnectorRenewer(deps: ConnectorRenewerDeps): ConnectorRenewer {
  const { store, vault, oauth, allowPrivate, now, uptime, sleep, ending } = deps
  const pauses = createPauses(uptime)
  const persist = <T>(write: () => Promise<T>) => insist(write, sleep, ending)
  const rowOf = ({ owner, id }: Connector) => store.connectors.get({ owner, admin: false }, id)

  const lasts = (
    { tokens, expires_at = Number.POSITIVE_INFINITY }: McpLogin,
    refused: string | null,
    ms: number,
  ): boolean => tokens !== undefined && tokens.access_token !== refused && expires_at > now() + ms

  const isFresh: ConnectorRenewer['isFresh'] = (login, refused) =>
    lasts(login, refused, aheadMs(login.tokens))
  const isSpare: ConnectorRenewer['isSpare'] = (login, refused) => lasts(login, refused, SPARE_MS)

  function renewed(connector: Connector, refused: string | null): Promise<McpLogin> {
    return underClaim(store.connectors, deps, {
      id: connector.id,
      seconds: CLAIM_SECONDS,
      patience: CLAIM_SECONDS,
      work: (row, wasTried) => renewHeld(connector, row, { refused, wasTried }),
      async elsewhere() {
        const seen = await rowOf(connector)
        if (!seen) throw loginNeeded(connector)
        const { oauth: login = {} } = openConnector(vault, seen)
        return isFresh(login, refused) || isSpare(login, refused) ? loginAt(connector, seen) : null
      },
      busy: () => busy(connector),
    })
  }

  /** A row's login, if it is at the server that the connector was read with: a token goes nowhere else. */
  const loginAt = ({ url }: Connector, row: Connector): McpLogin =>
    row.url === url ? (openConnector(vault, row).oauth ?? {}) : {}

  async function renewHeld(connector: Connector, row: Connector, occasion: Occasion): Promise<McpLogin> {
    const login = loginAt(connector, row)
    if (!login.tokens || isFresh(login, occasion.refused)) return login
    // The access token was refused or is about to end: only the refresh token is left.
    const left = await ask(row, login, occasion)
    return left === login ? login : kept(connector, row, login, left)
  }

  /** The login renewed, or what is left of it. */
  async function ask(row: Connector, login: McpLogin, { refused, wasTried }: Occasion): Promise<McpLogin> {
    try {
      const next = await renewedUnlessPaused(row, login, wasTried)
      return typeof next === 'string' ? rest(login, refused, next) : next
    } catch (failure) {
      if (!(failure instanceof BatonError)) throw failure
      // A token that still holds will do while the login service is away.
      if (lasts(login, refused, 0)) return login
      // Some services have a code of their own for a dead refresh token, or say `invalid_request`. The token stays, in
      // case it was the service's mistake; but a person can help now.
      throw failure.code === 'upstream_rejected' ? loginNeeded(row, failure.message) : failure
    }
  }

  /**
   * Without the pause, each call and each list would ask a failing login service again. A changed connector is tried at
   * once.
   */
  async function renewedUnlessPaused(row: Connector, login: McpLogin, wasTried: boolean) {
    const key = connectorKey(row)
    pauses.assertOver(key)
    try {
      if (wasTried && login.tokens?.refresh_token !== undefined) throw failedElsewhere(row)
      return await oauth.renew(targetOf(row, allowPrivate), login)
    } catch (failure) {
      if (!(failure instanceof BatonError)) throw failure
      throw pauses.begin(key, failure, (failure.retryAfter ?? 0) * 1000)
    }
  }

  /**
   * What is left of a login that cannot be renewed: its token, until that expires. A refusal of the access token alone
   * ends no login, since servers refuse good tokens while they are in trouble.
   */
  function rest(login: McpLogin, refused: string | null, why: string): McpLogin {
    const { tokens, expires_at = Number.POSITIVE_INFINITY, ...signedOut } = login
    // The first reason counts: it cost the refresh token.
    const over = { over: login.over ?? why }
    if (!tokens || expires_at <= now()) return { ...signedOut, ...over }
    const { refresh_token, ...left } = tokens
    if (refresh_token === undefined) return login
    return left.access_token === refused ? { ...signedOut, ...over } : { ...login, tokens: left, ...over }
  }

  /**
   * Stores the login. If the service rotates its tokens, these are the only ones now: a change of the row meanwhile
   * must not cost them, unless it made another login or took this one away. Then the change holds.
   */
  async function kept(
    connector: Connector,
    read: Connector,
    before: McpLogin,
    login: McpLogin,
  ): Promise<McpLogin> {
    const secret = sealConnector(vault, read, { ...openConnector(vault, read), oauth: login })
    if (secret && (await persist(() => store.connectors.keep(read, secret)))) return login
    const seen = await persist(() => rowOf(read))
    if (!seen) return {}
    const token = openConnector(vault, seen).oauth?.tokens?.access_token
    // The row was only sealed anew, or changed in something else …
    const isOurs = token === before.tokens?.access_token
    // … or a sibling had its turn meanwhile, and found the spent token dead.
    const isGivenUp = token === undefined && seen.config_revision === read.config_revision
    return isOurs || isGivenUp ? kept(connector, seen, before, login) : loginAt(connector, seen)
  }

  return {
    isFresh,
    isSpare,
    renewed,
    async stored(connector) {
      const row = await rowOf(connector)
      return row && loginAt(connector, row)
    },
  }
}

/** How long before it expires a token is renewed, in ms. One that nothing can renew serves to its end. */
function aheadMs(tokens: McpTokens | undefined): number {
  if (tokens?.refresh_token === undefined) return 0
  const { expires_in } = tokens
  return typeof expires_in === 'number' ? Math.min(AHEAD_MS, expires_in * 500) : AHEAD_MS
}

/** The server to log in at. */
export const targetOf = (
  { name, url }: Pick<Connector, 'name' | 'url'>,
  allowPrivate: McpLoginTarget['allowPrivate'],
): McpLoginTarget => ({ name, url: url ?? '', allowPrivate })

/** The words end up in the registry's reason, and in what a model is told. `why`: how its last login ended. */
export function loginWords({ name, id }: Pick<Connector, 'name' | 'id'>, why?: string): string {
  const words = `${name} needs a login: POST ${loginPath(id)}`
  return why === undefined ? words : `${words} (${why})`
}

export const loginNeeded = (connector: Connector, why?: string): McpError =>
  new McpError('auth_required', loginWords(connector, why), { sent: false })

/** Where a login is begun over HTTP. */
export const loginPath = (id: string): string => `/v1/connectors/${encodeURIComponent(id)}/login`

const busy = ({ name }: Pick<Connector, 'name'>): McpError =>
  new McpError('unavailable', `${name}: its login is being renewed by another process`, { sent: false })
const failedElsewhere = ({ name }: Pick<Connector, 'name'>): BatonError =>
  new BatonError(
    'upstream_overloaded',
    `The login at ${name} could not be renewed by another process a moment ago.`,
  )
