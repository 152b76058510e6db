/**
 * What the command line needs of an installation, and where it gets that: from the store, or, while a gateway has the
 * embedded store open, from that gateway. The rule is in RULE, for people.
 */
import type { NewKey } from '../auth.ts'
import type { Config } from '../config/config.ts'
import type { CredentialView } from '../credentials/credentials.ts'
import type { KeyRotation } from '../credentials/key-rotation.ts'
import type { Login, LoginStatus } from '../credentials/logins.ts'
import type { LoginMode } from '../oauth-vendor.ts'
import { FolderInUse } from '../store/lock.ts'
import type { ApiKey } from '../store/store.ts'
import { openRemote, rootOf, urlOf } from './remote.ts'

export interface TriedServer {
  name: string
  error: string | null
  /** Tools of a configured strict server that the toolbox does not name: because of them, the next start would fail */
  unforeseen: readonly string[]
}

/** The verbs of an installation. On the store they throw BatonErrors, over HTTP RemoteErrors. */
export interface Access {
  /** Where the verbs work, in words */
  readonly place: string
  /** What to write after `baton login`, so that the login becomes this owner's */
  loginFor(owner: string): string
  createKey(input: NewKey): Promise<ApiKey & { key: string }>
  keys(): Promise<ApiKey[]>
  revokeKey(id: string): Promise<void>
  rotateEncryption(): Promise<KeyRotation>
  credentials(): Promise<CredentialView[]>
  deleteCredential(id: string): Promise<void>
  authorize(provider: string, mode: LoginMode | null): Promise<Login>
  status(provider: string, state: string): Promise<LoginStatus>
  exchange(provider: string, state: string, pasted: string): Promise<CredentialView>
  importFile(provider: string, format: string, content: string): Promise<CredentialView & { warning: string }>
  /** What keeps the installation from working, each with what to do. */
  problems(): Promise<string[]>
  /** Connects to each MCP server and lists its tools. */
  connectors(): AsyncIterable<TriedServer>
  close(): Promise<void>
}

/** What the options of the command line say about where to work. */
export interface Target {
  /** The gateway to ask, whatever the configuration says */
  url: string | undefined
  key: string | undefined
  /** Whose keys and credentials are meant; only on the store, since a gateway knows the owner by the key */
  owner: string | undefined
}

/** Which place a command works on, as the help says it. */
export const RULE = `--url: the gateway to ask. Without it the command works on the configured store; while a gateway has the
embedded store open, it asks that gateway, at BATON_HOST and BATON_PORT (default http://127.0.0.1:8787).
--key: for a gateway with keys. Default: BATON_ADMIN_KEY, which no list of processes shows.`

/** Throws ConfigError from `load`, and whatever opening the place throws. */
export async function openAccess(
  target: Target,
  load: () => Config,
  adminKey: string | null,
): Promise<Access> {
  const key = target.key ?? adminKey
  if (target.url !== undefined) return openRemote({ ...target, root: rootOf(target.url, key), key })
  const config = load()
  // The import loads most of Baton: help and mistakes need not wait for it.
  const { openDirect } = await import('./direct.ts')
  try {
    return await openDirect(config, target.owner ?? null)
  } catch (failure) {
    if (!(failure instanceof FolderInUse)) throw failure
    // This gateway is on this machine, whatever its address: the key that is sent to it does not leave the machine.
    const place = { root: urlOf(config), openFolder: config.dataDir }
    return openRemote({ ...target, ...place, key: target.key ?? config.adminKey })
  }
}
