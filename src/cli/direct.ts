/** The command line on the store itself: it needs no running gateway and no key. */
import { pino } from 'pino'
import { DEPLOYMENTS, LOGINS } from '../../providers/index.ts'
import { createKey, revokeKey } from '../auth.ts'
import { openBus } from '../bus/open.ts'
import type { Config } from '../config/config.ts'
import { configConnectors } from '../connectors/input.ts'
import { createConnectorRenewals } from '../credentials/connector-renewals.ts'
import { connectorSpec } from '../credentials/connector-secret.ts'
import { createCredentials } from '../credentials/credentials.ts'
import { rotateEncryption } from '../credentials/key-rotation.ts'
import { createVendors } from '../credentials/logins/vendors.ts'
import { createLogins } from '../credentials/logins.ts'
import { createOAuthHttp } from '../credentials/oauth-http.ts'
import { openVault, type Vault, verifyKeys } from '../credentials/vault.ts'
import { inFull } from '../errors.ts'
import { ATTEMPT_MS, McpError } from '../mcp/contract.ts'
import { createMcp } from '../mcp/mcp.ts'
import { createMcpOAuth } from '../mcp/oauth.ts'
import { openStore } from '../store/open.ts'
import { all, type Connector, EVERYONE, type Store } from '../store/store.ts'
import { sandboxOf, unforeseenIn } from '../tools/startup.ts'
import { createToolboxPolicy } from '../tools/toolbox.ts'
import type { Access, TriedServer } from './access.ts'

const QUIET = pino({ level: 'silent' })

/** Throws FolderInUse while a gateway has the embedded store open, BatonError if the store does not open. */
export async function openDirect(config: Config, owner: string | null): Promise<Access> {
  const vault = openVault(config)
  const { databaseUrl, dataDir } = config
  const store = await openStore({ databaseUrl, dataDir, poolSize: 2, keepsSchema: true })
  try {
    await verifyKeys(store.settings, vault)
  } catch (failure) {
    await store.close()
    throw failure
  }
  const http = createOAuthHttp({ forwardProxy: config.forwardProxy })
  const logins = loginsOf(config, store, vault, http)
  const caller = { owner: owner ?? (config.auth === 'off' ? 'local' : 'admin'), admin: true }
  const scope = owner === null ? EVERYONE : { owner, admin: false }
  return {
    place: databaseUrl === null ? `the store in ${dataDir}` : 'the PostgreSQL server',
    loginFor: (whose) => (whose === caller.owner ? '' : ` --owner ${whose}`),
    createKey: (input) => createKey(store, 'cli', input),
    keys: () => all((page) => store.keys.list(scope, page)),
    revokeKey: (id) => revokeKey(store, 'cli', scope, id),
    rotateEncryption: () => rotateEncryption(store, vault, 'cli'),
    credentials: () => all((page) => logins.credentials.list(scope, page)),
    deleteCredential: (id) => logins.credentials.delete({ ...scope, owner: caller.owner }, id),
    authorize: (provider, mode) =>
      // The person's browser is on this machine, so it can call back here.
      logins.flows.authorize(caller, provider, mode ?? logins.modeHere(provider)),
    status: (provider, state) => logins.flows.status(caller, provider, state),
    exchange: (provider, state, pasted) => logins.flows.exchange(caller, provider, { state, pasted }),
    importFile: (provider, format, content) => logins.flows.importFile(caller, { provider, format, content }),
    problems: () => problems(config, store),
    connectors: () => tryConnectors(config, store, vault),
    async close() {
      await logins.flows.close()
      await http.close()
      await store.close()
    },
  }
}

function loginsOf(config: Config, store: Store, vault: Vault, http: ReturnType<typeof createOAuthHttp>) {
  const vendors = createVendors(LOGINS, config)
  const credentials = createCredentials({ store, vault, config, deployments: DEPLOYMENTS, vendors })
  return {
    credentials,
    flows: createLogins({ store, vault, vendors, http, credentials, log: QUIET, ownUrl: () => null }),
    modeHere: (provider: string) =>
      vendors.get(provider).vendor.modes.includes('loopback') ? ('loopback' as const) : null,
  }
}

async function problems(config: Config, store: Store): Promise<string[]> {
  const found: string[] = []
  await store.ready().catch((failure: Error) => found.push(`store: ${inFull(failure)}`))
  const bus = await openBus({ redisUrl: config.redisUrl, log: QUIET })
  await bus.ready().catch((failure: Error) => found.push(`bus: Check REDIS_URL. ${inFull(failure)}`))
  await bus.close()
  return found
}

async function* tryConnectors(config: Config, store: Store, vault: Vault): AsyncGenerator<TriedServer> {
  const policy = createToolboxPolicy(config.toolbox)
  const {
    connectorProxy: proxy,
    connectorsAllowPrivate: allowPrivate,
    allowStdioConnectors: allowStdio,
  } = config
  const mcp = createMcp({ proxy, allowStdio, sandbox: await sandboxOf(config) })
  const oauth = createMcpOAuth({ proxy })
  // Renews logins, as a gateway does: if nobody has called a server for an hour, its token has expired and its login
  // has not.
  const logins = createConnectorRenewals({ store, vault, oauth, allowPrivate })
  try {
    for (const connector of await connectorsOf(config, store, vault)) {
      const spec = () => connectorSpec(connector, vault, allowPrivate, logins.authFor)
      let listed: string[] = []
      const error = await attempt(async () => {
        // As patiently as a start (src/tools/startup.ts).
        const { tools } = await mcp.list(spec(), { timeoutMs: ATTEMPT_MS })
        listed = tools.map(({ name }) => name)
      })
      const unforeseen = connector.origin === 'config' ? unforeseenIn(listed, connector, policy) : []
      yield { name: connector.name, error, unforeseen }
    }
  } finally {
    await mcp.close()
    await logins.close()
    await oauth.close()
  }
}

/**
 * Callers' connectors as they are stored; the configuration's as the next start will have them, since the store has
 * those of the last start.
 */
async function connectorsOf(config: Config, store: Store, vault: Vault): Promise<Connector[]> {
  const stored = await all((page) => store.connectors.list(EVERYONE, page))
  const unstored = { config_revision: 0, created_at: '', updated_at: '' }
  const configured = configConnectors(config.toolbox.mcps, vault).map((row) => ({ ...row, ...unstored }))
  return [...configured, ...stored.filter(({ origin }) => origin === 'api')]
}

async function attempt(work: () => Promise<unknown>): Promise<string | null> {
  try {
    await work()
    return null
  } catch (failure) {
    return failure instanceof McpError ? failure.forOperator : inFull(failure)
  }
}
