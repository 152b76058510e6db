/** Logins that a person is in the middle of. Those at providers and those at MCP servers share a table. */
import { sha256 } from '../../chat/json.ts'
import { BatonError, invalid } from '../../errors.ts'
import type { OAuthLogin, Store } from '../../store/store.ts'
import { insist } from '../renew-once.ts'
import type { Vault } from '../vault.ts'

/** How long a login may take in a browser. */
export const LIFETIME_SECONDS = 600
/** Most pending logins of an owner: more are a mistake or an attack on the table. */
const MOST_PENDING = 100
/** How long a login's outcome can be asked for. */
const KEPT_SECONDS = 86_400
/** How long to wait for a store that is away, while a person waits: longer than a failover. */
const PATIENCE_MS = 90_000

/** `kept` is what only the login's end needs; it is sealed. */
interface NewPending<Kept> extends Pick<OAuthLogin, 'owner' | 'provider' | 'mode' | 'redirect_uri'> {
  state: string
  kept: Kept
  seconds: number
}

export function createPendingLogins<Kept>(
  { logins }: Pick<Store, 'logins'>,
  vault: Pick<Vault, 'seal' | 'open'>,
  sleep: (ms: number, signal: AbortSignal) => Promise<unknown>,
) {
  const ending = new AbortController()

  /** Writes what follows from a login's answer, which nobody gives again: tries until a store that is away is back. */
  const stored = <T>(write: () => Promise<T>): Promise<T> =>
    insist(write, sleep, AbortSignal.any([ending.signal, AbortSignal.timeout(PATIENCE_MS)]))

  /** Throws invalid_request if its encryption key was taken out since. */
  function open({ owner, sealed, state_hash }: OAuthLogin): string {
    try {
      return vault.open(sealed, contextOf(owner, state_hash))
    } catch {
      throw wrongState(UNREADABLE)
    }
  }

  return {
    stored,
    /** The process ends: what the store has not taken is tried once more, and no longer. */
    end: () => ending.abort(),
    /** Deletes logins whose outcome nobody asks for any more. */
    prune: () => logins.prune(KEPT_SECONDS),
    /** Throws rate_limited. */
    async begin({ state, kept, ...login }: NewPending<Kept>): Promise<OAuthLogin> {
      const state_hash = sha256(state)
      const sealed = vault.seal(JSON.stringify(kept), contextOf(login.owner, state_hash))
      const made = await logins.create({ ...login, state_hash, sealed }, MOST_PENDING)
      if (made) return made
      throw new BatonError('rate_limited', `${MOST_PENDING} logins are under way; finish one or wait.`, {
        retryAfter: 60,
      })
    },
    find: (state: string): Promise<OAuthLogin | null> => logins.get(sha256(state)),
    /** The `kept` that `begin` was given. Throws as `open`. */
    kept: (login: OAuthLogin): Kept => JSON.parse(open(login)) as Kept,
    /**
     * Uses a login up: whatever comes of `work`, its state opens nothing afterwards. Writes down the id of what `work`
     * made, or why it failed. Null: the login was used before, or its time is over. Throws as `open`.
     */
    async use<T extends { id: string }>(login: OAuthLogin, work: () => Promise<T>): Promise<T | null> {
      const { owner, state_hash } = login
      // The same bytes for each try: one that the store did not answer may have taken it.
      const sealed = vault.seal(open(login), contextOf(owner, state_hash))
      if (!(await stored(() => logins.take(login, sealed)))) return null
      const made = await work().catch(async (thrown: unknown) => {
        const error = thrown instanceof BatonError ? thrown.message : 'An internal error occurred.'
        // The caller gets the reason, whether or not it can be written down.
        await stored(() => logins.finish(state_hash, { error: error.slice(0, 1000) })).catch(() => {})
        throw thrown
      })
      // What `work` made is stored by now: if this note is lost, only the login's status is wrong.
      await stored(() => logins.finish(state_hash, { credential_id: made.id })).catch(() => {})
      return made
    },
  }
}
export type PendingLogins<Kept> = ReturnType<typeof createPendingLogins<Kept>>

/** The table has only the state's hash, so that reading the table gives nobody a state to answer with. */
const contextOf = (owner: string, hash: string): string => `${owner}/login/${hash}`

/** Throws invalid_request if the login is over, or is being finished. */
export function assertOpen(login: OAuthLogin): void {
  if (login.state === 'done') throw wrongState('This login is complete already; there is nothing left to do.')
  if (login.state === 'taken' && !login.is_expired) throw wrongState(BUSY)
  if (login.state !== 'pending') throw wrongState('This login was used already; begin a new one.')
  if (login.is_expired) throw wrongState('This login took too long; begin a new one.')
}

export const BUSY = 'This login is being finished: see what comes of it before you begin another one.'
const UNREADABLE = 'This login can no longer be read, since its encryption key is gone; begin a new one.'
/** invalid_request for a `state` that opens nothing. */
export const wrongState = (words: string) => invalid('state', words)
