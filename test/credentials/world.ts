/** A gateway's logins without the gateway: real store and vault, emulated vendors, as many replicas as wanted. */
import { randomBytes } from 'node:crypto'
import pino, { type Logger } from 'pino'
import type { Test } from 'tap'
import { DEPLOYMENTS, LOGINS } from '../../providers/index.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { type ChooseCredential, createChoice } from '../../src/credentials/choose.ts'
import {
  type Credentials,
  type CredentialView,
  createCredentials,
} from '../../src/credentials/credentials.ts'
import { createVendors, type Vendors } from '../../src/credentials/logins/vendors.ts'
import { createLogins, type Logins } from '../../src/credentials/logins.ts'
import { createOAuthHttp } from '../../src/credentials/oauth-http.ts'
import { createRenewals, type Renewals } from '../../src/credentials/renewals.ts'
import { createVault, openSecret, type Vault } from '../../src/credentials/vault.ts'
import { BatonError } from '../../src/errors.ts'
import type { LoginSecret } from '../../src/oauth-vendor.ts'
import type { Store } from '../../src/store/store.ts'
import {
  CLIENT as ANTHROPIC_CLIENT,
  type AnthropicLogins,
  createAnthropicLogins,
} from '../emulators/oauth-anthropic.ts'
import {
  createGoogleLogins,
  CLIENT as GOOGLE_CLIENT,
  type GoogleLogins,
  SECRET,
} from '../emulators/oauth-google.ts'
import { createOpenAiLogins, type OpenAiLogins } from '../emulators/oauth-openai.ts'
import { freshStore } from '../store/fresh.ts'

export interface Replica {
  credentials: Credentials
  choice: ChooseCredential
  logins: Logins
  renewals: Renewals
  close(): Promise<void>
}
interface ReplicaOptions {
  /** Environment on top of the world's */
  env?: Record<string, string>
  store?: Store
  claimSeconds?: number
  timeoutMs?: number
  ownUrl?: string | null
  /** OpenAI's redirect ports, in place of its fixed ones, which other programs of this machine may have */
  ports?: readonly number[]
  now?(): number
  sleep?(ms: number, signal?: AbortSignal): Promise<unknown>
}
interface World {
  store: Store
  vault: Vault
  openai: OpenAiLogins
  anthropic: AnthropicLogins
  google: GoogleLogins
  /** Everything that was logged, as JSON lines */
  logged: string[]
  /** What configures a gateway for these vendors */
  env: Record<string, string>
  replica(options?: ReplicaOptions): Replica
}

export const ME = { owner: 'me', admin: false }
export const OTHER = { owner: 'other', admin: false }

/** The parts of a replica that logins need, built as the gateway builds them. An empty variable counts as not set. */
export function assemble(
  env: Readonly<Record<string, string>>,
  options: ReplicaOptions & { store: Store; vault: Vault; log: Logger },
): Replica {
  const { store, vault, log, ownUrl = null } = options
  const wanted = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''))
  const { config } = loadConfig(wanted, '/')
  const vendors = vendorsOf(config, options.ports)
  const http = createOAuthHttp(pick(options, 'timeoutMs'))
  const common = { store, vault, vendors, http, log, ...pick(options, 'now') }
  const renewals = createRenewals({
    ...common,
    // Tests call for each round themselves.
    tendMs: 86_400_000,
    ...pick(options, 'claimSeconds'),
    ...pick(options, 'sleep'),
  })
  const credentials = createCredentials({
    store,
    vault,
    config,
    deployments: DEPLOYMENTS,
    vendors,
  })
  const logins = createLogins({ ...common, credentials, ownUrl: () => ownUrl, ...pick(options, 'sleep') })
  return {
    credentials,
    choice: createChoice({ store, vault, config, renewals }),
    logins,
    renewals,
    async close() {
      await logins.close()
      await renewals.close()
      await http.close()
    },
  }
}

/** Without a `databaseUrl`: on a store of its own. All of it is closed with the test. */
export async function createWorld(
  t: Test,
  { databaseUrl, key = randomBytes(32) }: { databaseUrl?: string; key?: Uint8Array } = {},
): Promise<World> {
  const [store, openai, anthropic, google] = await Promise.all([
    freshStore(t, databaseUrl === undefined ? {} : { databaseUrl, poolSize: 4 }),
    createOpenAiLogins(),
    createAnthropicLogins(),
    createGoogleLogins(),
  ])
  const vault = createVault([{ id: 'k1', key }])
  const logged: string[] = []
  const log: Logger = pino({ level: 'debug' }, { write: (line: string) => void logged.push(line) })
  const replicas: Replica[] = []
  const env = {
    BATON_ENABLE_OAUTH: 'openai,anthropic,gemini',
    BATON_OPENAI_OAUTH_ISSUER: openai.url,
    BATON_ANTHROPIC_OAUTH_AUTHORIZE_URL: anthropic.authorizeUrl,
    BATON_ANTHROPIC_OAUTH_TOKEN_URL: anthropic.tokenUrl,
    BATON_ANTHROPIC_BASE_URL: anthropic.url,
    BATON_ANTHROPIC_OAUTH_CLIENT_ID: ANTHROPIC_CLIENT,
    BATON_GOOGLE_OAUTH_AUTHORIZE_URL: google.authorizeUrl,
    BATON_GOOGLE_OAUTH_TOKEN_URL: google.tokenUrl,
    BATON_CODE_ASSIST_BASE_URL: google.codeAssistUrl,
    BATON_GOOGLE_OAUTH_CLIENT_ID: GOOGLE_CLIENT,
    BATON_GOOGLE_OAUTH_CLIENT_SECRET: SECRET,
  }

  function replica(options: ReplicaOptions = {}): Replica {
    const made = assemble({ ...env, ...options.env }, { store, vault, log, ...options })
    replicas.push(made)
    return made
  }

  t.teardown(async () => {
    for (const one of replicas) await one.close()
    await Promise.all([openai.close(), anthropic.close(), google.close()])
  })
  return { store, vault, openai, anthropic, google, logged, env, replica }
}

function vendorsOf(config: Config, ports: readonly number[] = []): Vendors {
  const rows = LOGINS.map((row) =>
    row.vendor.provider === 'openai'
      ? { ...row, vendor: { ...row.vendor, loopback: { ...row.vendor.loopback, ports } } }
      : row,
  )
  return createVendors(rows, config)
}

/** The sealed secret of a credential, opened. */
export async function sealedOf(
  { store, vault }: Pick<World, 'store' | 'vault'>,
  id: string,
): Promise<LoginSecret> {
  const row = await store.credentials.get({ owner: '', admin: true }, id)
  if (!row) throw new Error(`no credential ${id}`)
  return openSecret<LoginSecret>(vault, row)
}

function pick<T extends object, K extends keyof T>(from: T, key: K): Partial<Pick<T, K>> {
  const picked: Partial<Pick<T, K>> = {}
  if (from[key] !== undefined) picked[key] = from[key]
  return picked
}

/** Opens the vendor's page as a browser does, and gives the address that it sends the person to, not opened. */
export async function visit(url: string): Promise<URL> {
  const response = await fetch(url, { redirect: 'manual' })
  const words = await response.text()
  const location = response.headers.get('location')
  if (response.status !== 302 || !location) throw new Error(`the page says ${response.status}: ${words}`)
  return new URL(location)
}

/** Begins a login by paste and goes through the vendor's page; `at`: the address that the browser ended at. */
export async function begun({ logins }: Replica, provider: string): Promise<{ state: string; at: URL }> {
  const login = await logins.authorize(ME, provider, 'paste')
  return { state: login.state, at: await visit(login.authorization_url) }
}

/** Goes through a login by paste to its end. */
export async function loggedIn(replica: Replica, provider: string): Promise<CredentialView> {
  const { state, at } = await begun(replica, provider)
  return replica.logins.exchange(ME, provider, { state, pasted: at.href })
}

/** The error that was thrown; a resolved promise fails the test. */
export async function refusal(work: Promise<unknown>): Promise<BatonError> {
  const thrown = await work.then(
    () => new Error('it was not refused'),
    (error: unknown) => error,
  )
  if (thrown instanceof BatonError) return thrown
  throw thrown
}
export const invalid = (param: string | null, message: RegExp) => ({
  code: 'invalid_request',
  param,
  message,
})

/** The last of a file's tests: whatever went before, no log line tells a secret. */
export function noSecretIn(t: Test, logged: readonly string[]): void {
  const said = logged.join('\n')
  for (const secret of [
    'rt_openai',
    'sk-ant-o',
    'ya29.',
    '1//',
    'eyJ',
    'code_verifier',
    'emulated-client-secret',
  ]) {
    t.notOk(said.includes(secret), secret)
  }
}
