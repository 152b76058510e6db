/** The command line over HTTP: a running gateway does the work, under the key that is given. */
import { httpUrl, inUrl, isLoopback } from '../addresses.ts'
import { isRecord, parseRecord } from '../chat/json.ts'
import type { Config } from '../config/config.ts'
import { inFull } from '../errors.ts'
import { all, type Page } from '../store/store.ts'
import type { Access } from './access.ts'
import { UsageError, whyNot } from './command.ts'

interface RemoteOptions {
  /** Without a slash at its end */
  root: string
  key: string | null
  owner: string | undefined
  /** The data folder that a process has open: this gateway, it is hoped, and not another command */
  openFolder?: string
}

/** The gateway refused, or cannot be reached; the message says what to do. */
class RemoteError extends Error {
  override name = 'RemoteError'
  readonly param: string | null
  readonly code: string | undefined
  constructor(message: string, { param = null, code }: Refused = {}) {
    super(message)
    this.param = param
    this.code = code
  }
}

const TIMEOUT_MS = 60_000
/** A rotation reads and writes everything that is sealed; a login may wait until its vendor has set up the account. */
const LONG_TIMEOUT_MS = 290_000

/** The URL of this configuration's gateway, as this machine reaches it. */
export function urlOf({ host, port }: Pick<Config, 'host' | 'port'>): string {
  const everywhere: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' }
  return `http://${inUrl(everywhere[host] ?? host)}:${port}`
}

/** Throws UsageError for a key that no request can carry. Every verb throws RemoteError for what the gateway refused. */
export function openRemote({ root, key, owner, openFolder }: RemoteOptions): Access {
  if (owner !== undefined) {
    throw new RemoteError(`--owner has no effect at ${root}: a gateway knows the owner by the key.`)
  }
  // `fetch` would fail as if the gateway were away, with the key in its words.
  if (key !== null && /[^\x21-\x7e]/.test(key)) {
    throw new UsageError('The key (--key or BATON_ADMIN_KEY) must be printable ASCII without spaces.')
  }

  /** Answers follow this very program's contract, so their shapes are not checked. */
  async function call<T>(method: string, path: string, body?: object, ms = TIMEOUT_MS): Promise<T> {
    const headers = {
      ...(key === null ? {} : { authorization: `Bearer ${key}` }),
      ...(body ? { 'content-type': 'application/json' } : {}),
    }
    let response: Response
    let text: string
    try {
      response = await fetch(`${root}${path}`, {
        method,
        headers,
        body: body ? JSON.stringify(body) : null,
        // A redirect is not followed: the key is for the gateway that was named.
        redirect: 'manual',
        signal: AbortSignal.timeout(ms),
      })
      text = await response.text()
    } catch (failure) {
      const whose = openFolder ? `Another Baton process has ${openFolder} open: a gateway or a command. ` : ''
      const words = `The gateway at ${root} does not answer (${whyNot(failure)}). Name another with --url.`
      throw new RemoteError(whose + words)
    }
    if (!response.ok) throw refusal(root, response, text)
    const isEmpty = response.status === 204
    // Baton answers a deletion so, and nothing else: a stranger's 200 must not be told as a key that is revoked.
    if (isEmpty !== (method === 'DELETE')) throw stranger(root)
    if (isEmpty) return undefined as T
    const value = parseRecord(text)
    if (!value) throw stranger(root)
    return value as T
  }

  const list = <T>(path: string): Promise<T[]> =>
    all(async ({ limit, cursor }) => {
      const rest = cursor ? `&cursor=${at(cursor)}` : ''
      const page = await call<Page<T>>('GET', `${path}?limit=${limit}${rest}`)
      if (!Array.isArray(page.data) || page.next_cursor === undefined) throw stranger(root)
      return page
    })
  const at = encodeURIComponent

  return {
    place: `the gateway at ${root}`,
    // Without keys everything is local's.
    loginFor: (whose) => (whose === 'local' ? '' : ` --key <a key of ${whose}>`),
    createKey: (input) => call('POST', '/v1/keys', input),
    keys: () => list('/v1/keys'),
    revokeKey: (id) => call('DELETE', `/v1/keys/${at(id)}`),
    rotateEncryption: () => call('POST', '/v1/keys/rotate-encryption', undefined, LONG_TIMEOUT_MS),
    credentials: () => list('/v1/credentials'),
    deleteCredential: (id) => call('DELETE', `/v1/credentials/${at(id)}`),
    authorize: (provider, mode) => call('POST', `/v1/oauth/${at(provider)}/authorize`, mode ? { mode } : {}),
    status: (provider, state) => call('GET', `/v1/oauth/${at(provider)}/status?state=${at(state)}`),
    exchange: (provider, state, pasted) =>
      call('POST', `/v1/oauth/${at(provider)}/exchange`, { state, pasted }, LONG_TIMEOUT_MS),
    importFile: (provider, format, content) =>
      call('POST', '/v1/credentials/import', { provider, format, content }, LONG_TIMEOUT_MS),
    async problems() {
      try {
        const { status } = await call<{ status?: unknown }>('GET', '/readyz')
        return status === 'ready' ? [] : [stranger(root).message]
      } catch (failure) {
        return [inFull(failure)]
      }
    },
    async *connectors() {
      for (const { id, name } of await list<{ id: string; name: string }>('/v1/connectors')) {
        const tried = await call<{ error?: string }>('POST', `/v1/connectors/${at(id)}/test`).catch(ifGone)
        // A running gateway leaves out tools that the toolbox does not name.
        if (tried) yield { name, error: tried.error ?? null, unforeseen: [] }
      }
    },
    close: async () => {},
  }
}

/**
 * The gateway that --url names. Throws UsageError if it names none, if the key would go there in the clear, or if it
 * holds a password: that would go where the key does, in Authorization.
 */
export function rootOf(text: string, key: string | null): string {
  const url = httpUrl(text)
  if (!url) throw new UsageError('--url must be an http or https URL, such as http://127.0.0.1:8787.')
  if (url.username || url.password) throw new UsageError('--url must not hold a user name or password.')
  if (url.protocol === 'http:' && key !== null && !isLoopback(url.hostname)) {
    throw new UsageError(`--url must use https: a key is sent to ${url.host}.`)
  }
  return `${url.origin}${url.pathname}`.replace(/\/+$/, '')
}

function refusal(root: string, { status, headers }: Response, text: string): RemoteError {
  const refused = errorIn(text)
  const { message, code } = refused
  if (status === 401) {
    const words = `${root}: ${message ?? 'It requires a key.'} Give one with --key or BATON_ADMIN_KEY.`
    return new RemoteError(words, refused)
  }
  // Baton knows every path that is asked for here.
  if (status === 404 && (code === undefined || code === 'not_found')) return stranger(root)
  const target = headers.get('location')
  if (target !== null) return new RemoteError(`${root} redirects to ${target}. Name the gateway with --url.`)
  return new RemoteError(message ? `${message} (${code})` : `${root} answered HTTP ${status}.`, refused)
}

const stranger = (root: string) =>
  new RemoteError(`${root} answers, but not as Baton does. Name the gateway with --url.`)

/** Null: a connector that was listed a moment ago has been deleted since. */
function ifGone(failure: unknown): null {
  if (failure instanceof RemoteError && failure.code === 'connector_not_found') return null
  throw failure
}

interface Refused {
  message?: string
  code?: string
  param?: string | null
}
function errorIn(text: string): Refused {
  const error = parseRecord(text)?.error
  return isRecord(error) ? error : {}
}
