/**
 * Who calls: gateway keys, the bootstrap admin key, and, with auth off, anyone on this machine. Keys are
 * stored as SHA-256: they are 256 random bits, so a slow hash would add nothing.
 */
import { randomBytes, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { isLoopback } from './addresses.ts'
import { BoundedMap } from './bounded-map.ts'
import type { Bus } from './bus/bus.ts'
import { newId } from './chat/ids.ts'
import { sha256 } from './chat/json.ts'
import type { Config } from './config/config.ts'
import { BatonError } from './errors.ts'
import type { Caller } from './ports.ts'
import type { ApiKey, FoundKey, Scope, Store } from './store/store.ts'
import { inMilliseconds } from './validation.ts'

/** A key to be made; without `expires_at` it holds until it is revoked. */
export interface NewKey {
  owner: string
  scopes: ApiKey['scopes']
  name?: string | undefined
  /** RFC 3339 */
  expires_at?: string | undefined
}

/** Makes a key; the text is returned this once. Also the command line's way to the first key. */
export async function createKey(
  store: Pick<Store, 'keys'>,
  by: string,
  input: NewKey,
): Promise<ApiKey & { key: string }> {
  const key = `bk_${randomBytes(32).toString('base64url')}`
  const made = {
    id: newId('key'),
    owner: input.owner,
    name: input.name ?? null,
    scopes: [...new Set(input.scopes)],
    hint: key.slice(-4),
    expires_at: input.expires_at === undefined ? null : inMilliseconds(input.expires_at),
    hash: sha256(key),
  }
  const details = { owner: made.owner, scopes: made.scopes }
  const row = await store.keys.create(made, { owner: by, act: 'key.create', subject: made.id, details })
  return { ...row, key }
}

/** Revokes a key; one that was revoked before stays as it is. Throws key_not_found. */
export async function revokeKey(
  store: Pick<Store, 'keys'>,
  by: string,
  scope: Scope,
  id: string,
): Promise<void> {
  if (!(await store.keys.revoke(scope, id, by)))
    // The message does not repeat the id: it may be the key itself.
    throw new BatonError('key_not_found', 'No key has this id. The list of keys shows the ids: key_….')
}

export interface Auth {
  /** Throws unauthenticated; with auth off the caller is the admin `local`. */
  authenticate(headers: IncomingHttpHeaders): Promise<Caller>
  /**
   * With auth off, refuses what no local program sends: a foreign Host (DNS rebinding) or Origin (a drive-by page).
   * Throws forbidden.
   */
  assertLocal(headers: IncomingHttpHeaders): void
  create(caller: Caller, input: NewKey): Promise<ApiKey & { key: string }>
  /** Every replica forgets the key at once, or within a second at most. Throws key_not_found. */
  revoke(caller: Caller, id: string): Promise<void>
  /** Writes the last uses that are not stored yet. */
  close(): Promise<void>
}

interface AuthDeps {
  config: Pick<Config, 'auth' | 'adminKey' | 'corsOrigins'>
  store: Pick<Store, 'keys'>
  bus: Pick<Bus, 'publish' | 'subscribe'>
}

/** How long a key that was found may be used without asking the store again. */
const CACHE_MS = 1000
const CACHE_SIZE = 10_000
const USES_EVERY_MS = 10_000

export function createAuth({ config, store, bus }: AuthDeps): Auth {
  const known = new BoundedMap<{ hash: string; key: FoundKey; until: number }>(CACHE_SIZE)
  const uses = new Set<string>()
  const adminHash = config.adminKey === null ? null : Buffer.from(sha256(config.adminKey), 'hex')
  bus.subscribe('keys', forget)
  const timer = setInterval(() => void flushUses(), USES_EVERY_MS).unref()

  function forget(id: string): void {
    for (const { hash, key } of known.values()) if (key.id === id) known.drop(hash)
  }

  async function flushUses(): Promise<void> {
    const ids = [...uses]
    uses.clear()
    // Losing a last-used time is no reason to fail.
    if (ids.length > 0) await store.keys.used(ids).catch(() => {})
  }

  async function byHash(hash: string): Promise<FoundKey> {
    const cached = known.get(hash)
    if (cached && cached.until > performance.now()) return cached.key
    known.drop(hash)
    const key = await store.keys.byHash(hash)
    if (!key)
      throw unauthenticated("The key is not known. It must be one of this gateway's, not a provider's.")
    known.put(hash, { hash, key, until: performance.now() + CACHE_MS })
    return key
  }

  async function authenticate(headers: IncomingHttpHeaders): Promise<Caller> {
    if (config.auth === 'off') return { owner: 'local', admin: true, key_id: null }
    const hash = sha256(presented(headers))
    if (adminHash && timingSafeEqual(Buffer.from(hash, 'hex'), adminHash)) {
      return { owner: 'admin', admin: true, key_id: 'bootstrap' }
    }
    const key = await byHash(hash)
    if (key.revoked_at !== null) throw unauthenticated('The key was revoked.')
    if (key.is_expired) throw unauthenticated('The key has expired.')
    uses.add(key.id)
    return { owner: key.owner, admin: key.scopes.includes('admin'), key_id: key.id }
  }

  return {
    authenticate,
    assertLocal(headers) {
      if (config.auth === 'off') assertLocal(headers, config.corsOrigins)
    },
    create: (caller, input) => createKey(store, caller.owner, input),
    async revoke(caller, id) {
      try {
        await revokeKey(store, caller.owner, caller, id)
      } finally {
        forget(id)
        // Also after a failure: perhaps only the store's answer was lost. If this message is lost, the key works until
        // the caches expire.
        await bus.publish('keys', id)
      }
    },
    async close() {
      clearInterval(timer)
      await flushUses()
    },
  }
}

/** The key of `Authorization: Bearer …`, else of `x-api-key`. */
function presented(headers: IncomingHttpHeaders): string {
  const bearer = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  const plain = headers['x-api-key']
  const key = bearer ?? (typeof plain === 'string' ? plain.trim() : '')
  if (key !== '') return key
  throw unauthenticated('A key is required: send Authorization: Bearer bk_… or x-api-key.')
}

function assertLocal(headers: IncomingHttpHeaders, allowed: readonly string[]): void {
  const { host } = headers
  if (host === undefined)
    throw forbidden('A Host header is required: while auth is off only loopback names are served.')
  // In a URL these characters end the host, or come before it: the name that is checked would not be the one that was
  // sent.
  const isPlain = !/[/?#@\\\s]/.test(host) && URL.canParse(`http://${host}`)
  const url = isPlain ? new URL(`http://${host}`) : null
  if (url === null || !isLoopback(url.hostname)) {
    throw forbidden(`The Host ${host} is not this machine; while auth is off only loopback names are served.`)
  }
  const origin = headers.origin
  if (origin === undefined || origin === url.origin || allowed.includes(origin)) return
  // As any sandboxed page may be: to name it would let every page call (lemonade-sdk/lemonade#3537).
  if (origin === 'null') {
    throw forbidden(
      'A page without an origin, such as one that is opened from a file, may not call; serve it over http.',
    )
  }
  throw forbidden(`The origin ${origin} may not call; add it to BATON_CORS_ORIGINS if it should.`)
}

const unauthenticated = (message: string) => new BatonError('unauthenticated', message)
const forbidden = (message: string) => new BatonError('forbidden', message)
