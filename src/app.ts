/**
 * The composition root: builds every part, hands each what it needs, and closes them in order. The only
 * place that knows them all; parts know each other's contracts.
 */
import { randomUUID } from 'node:crypto'
import type { AddressInfo } from 'node:net'
import type { Logger } from 'pino'
import { DEPLOYMENTS, LOGINS } from '../providers/index.ts'
import { inUrl, isLoopback } from './addresses.ts'
import { createAuth } from './auth.ts'
import { BUILTINS } from './builtins/index.ts'
import { openBus } from './bus/open.ts'
import { newId } from './chat/ids.ts'
import type { Config } from './config/config.ts'
import { configConnectors } from './connectors/input.ts'
import { createConnectors } from './connectors.ts'
import { createChoice } from './credentials/choose.ts'
import { createConnectorLogins } from './credentials/connector-logins.ts'
import { connectorSpec } from './credentials/connector-secret.ts'
import { createCredentials } from './credentials/credentials.ts'
import { rotateEncryption } from './credentials/key-rotation.ts'
import { createVendors } from './credentials/logins/vendors.ts'
import { createLogins } from './credentials/logins.ts'
import { createOAuthHttp } from './credentials/oauth-http.ts'
import { createRenewals } from './credentials/renewals.ts'
import { sealArguments, sealParts } from './credentials/sealed-parts.ts'
import { openVault, verifyKeys } from './credentials/vault.ts'
import { createDeployments } from './deployments.ts'
import { createGuard } from './guard.ts'
import { buildHttp } from './http.ts'
import { createLlm } from './llm.ts'
import { createMcp } from './mcp/mcp.ts'
import { createMcpOAuth } from './mcp/oauth.ts'
import { createSessions } from './sessions.ts'
import { type openDatabase, openStore } from './store/open.ts'
import type { Connector } from './store/store.ts'
import { createMetrics } from './telemetry.ts'
import { createExecutor, type ExecutorDeps } from './tools/execute.ts'
import { createGate } from './tools/gate.ts'
import { hasSecret, redactText } from './tools/redact.ts'
import { startRetention } from './tools/retention.ts'
import { createSessionTools, type EngineTools } from './tools/session-tools.ts'
import { createToolboxRules, sandboxOf } from './tools/startup.ts'
import { createToolboxPolicy, type ToolboxPolicy } from './tools/toolbox.ts'
import { createEngine, type Engine } from './turns/engine.ts'

/** A gateway in this process. It listens once `http` is told to. */
interface Gateway {
  http: Awaited<ReturnType<typeof buildHttp>>
  /** How many turns its drain has given away */
  handedOver(): number
  /** Running turns leave at a step boundary, readers get a clean end, then every part closes. */
  close(): Promise<void>
}

/** Deltas may be held this long to travel together where an append costs a round trip. */
const REDIS_FLUSH_MS = 3

interface Given {
  log: Logger
  /** The configuration's database, where it is opening already */
  database?: ReturnType<typeof openDatabase>
  /** For tests, which would wait long for the usual pings */
  pingMs?: number
}

/**
 * Builds every part and opens the store and the bus. If a part cannot start, closes those that are open and throws the
 * reason.
 */
export async function createApp(config: Config, given: Given): Promise<Gateway> {
  const { log } = given
  const closers: (() => Promise<unknown>)[] = []
  const closeLater: CloseLater = (part) => {
    closers.unshift(() => part.close())
    return part
  }
  try {
    const base = await openBase(config, log, closeLater, given.database)
    const { store, bus, vault, metrics } = base
    const listensAt = () => ownUrl(config.host, http.server.address())
    const models = modelParts(base)
    const servers = await serverParts(base, listensAt)
    const logins = loginParts(base, listensAt)
    const tools = await toolParts({ ...base, ...models, ...servers, ...logins }, () => engine)
    const engine: Engine = createEngine({
      ...tools,
      store,
      bus,
      llm: models.llm,
      credentials: logins.choice,
      servedBy: models.deployments.servedBy,
      sealed: sealArguments(vault),
      metrics,
      log,
      settings: engineSettings(config),
    })
    closeLater(startRetention({ store, retentionMs: config.ledgerRetentionMs, log }))
    const http = closeLater(await httpOf(base, given, { ...servers, ...logins, ...tools, turns: engine }))
    closers.unshift(() => engine.drain(config.drainSeconds * 1000))
    // A process whose port is taken must not take turns over only to drop them: a turn fails once it has lost a few
    // owners.
    http.server.once('listening', () => engine.begin())
    return { http, handedOver: engine.handedOver, close: () => closeAll(closers, log) }
  } catch (failure) {
    await closeAll(closers, log)
    throw failure
  }
}

/** Registers a part. The app closes it before the parts that were registered earlier. */
type CloseLater = <T extends { close(): Promise<unknown> }>(part: T) => T

/** What the other parts are built on. */
type Base = Awaited<ReturnType<typeof openBase>>

async function openBase(config: Config, log: Logger, closeLater: CloseLater, database?: Given['database']) {
  const metrics = createMetrics()
  const vault = openVault(config)
  const { databaseUrl, dataDir, redisUrl, limits } = config
  const options = {
    databaseUrl,
    dataDir,
    poolSize: limits.databasePool,
    codec: sealParts(vault, hasSecret),
    log,
  }
  const store = closeLater(await openStore(options, database))
  await verifyKeys(store.settings, vault)
  const bus = closeLater(await openBus({ redisUrl, log, metrics }))
  return { config, log, closeLater, metrics, vault, store, bus }
}

/** The way to the models. */
function modelParts({ config, log, metrics, closeLater }: Base) {
  const { limits, forwardProxy } = config
  const deployments = createDeployments(DEPLOYMENTS, config)
  const { baseUrl } = deployments
  const llm = closeLater(createLlm({ baseUrl, limits, forwardProxy, metrics, log }))
  return { deployments, llm }
}

type ListensAt = () => string | null

/** The way to MCP servers, and the logins there. */
async function serverParts({ config, log, closeLater, store, vault }: Base, listensAt: ListensAt) {
  const allowPrivate = config.connectorsAllowPrivate
  const mcp = closeLater(
    createMcp({
      proxy: config.connectorProxy,
      allowStdio: config.allowStdioConnectors,
      sandbox: await sandboxOf(config),
      onLastWords: (server, words) => void logLastWords(log, server, words),
    }),
  )
  const internet = closeLater(createGuard({ allowPrivate: false, requireHttps: true }))
  const connectorLogins = closeLater(
    createConnectorLogins({
      store,
      vault,
      oauth: closeLater(createMcpOAuth({ proxy: config.connectorProxy })),
      allowPrivate,
      publicUrl: () => config.publicUrl ?? listensAt(),
      isPublic: internet.isReachable,
    }),
  )
  const specFor = (connector: Connector) =>
    connectorSpec(connector, vault, allowPrivate, connectorLogins.authFor)
  return { mcp, connectorLogins, specFor }
}

/**
 * Credentials of providers: those that callers store, the choice of one for a turn, and logins, which become
 * credentials.
 */
function loginParts({ config, log, closeLater, store, vault }: Base, listensAt: ListensAt) {
  const vendors = createVendors(LOGINS, config)
  const http = closeLater(createOAuthHttp({ forwardProxy: config.forwardProxy }))
  const renewals = closeLater(createRenewals({ store, vault, vendors, http, log }))
  const credentials = createCredentials({ store, vault, config, deployments: DEPLOYMENTS, vendors })
  const choice = createChoice({ store, vault, config, renewals })
  const logins = closeLater(
    createLogins({ store, vault, vendors, http, credentials, log, ownUrl: listensAt }),
  )
  return { credentials, choice, logins }
}

type ToolBase = Base &
  ReturnType<typeof modelParts> &
  Awaited<ReturnType<typeof serverParts>> &
  ReturnType<typeof loginParts>

/** The tools that sessions may call, and what runs a call. Reaches the configured servers. */
async function toolParts(base: ToolBase, engine: () => Engine) {
  const { config, log, closeLater, store, deployments, mcp, specFor, choice } = base
  const policy = createToolboxPolicy(config.toolbox)
  const builtins = BUILTINS.filter(({ name }) => policy.offersBuiltin(name))
  const executor = closeLater(
    createExecutor({
      store,
      mcp,
      builtins,
      specFor,
      slot: await slotsOf(base, policy),
      log,
      isRepeatable: policy.isRepeatable,
    }),
  )
  const rules = await configuredServers(base, policy)
  const tools: EngineTools = closeLater(
    createSessionTools({
      store,
      mcp,
      specFor,
      builtins,
      policy,
      async viewOf(session, provider) {
        const id = provider ?? session.provider
        return deployments.servedBy(id, await choice.resolve(session, id).catch(() => null))
      },
      providers: deployments.providers,
      sayToolsChanged: (session, delta, turn) => engine().sayToolsChanged(session, delta, turn),
      onMoved: rules.note,
      takeEffect: (session, move, apply) => engine().takeEffect(session, move, apply),
      log,
    }),
  )
  return { policy, executor, tools }
}

/** How a call gets its tool's slot. */
async function slotsOf(
  { config, store, bus, metrics }: Base,
  policy: ToolboxPolicy,
): Promise<ExecutorDeps['slot']> {
  const gate = createGate({
    // The replicas of one database share the tools' slots; other users of the same Redis have their own.
    slots: bus.slots(await store.settings.init('deployment', randomUUID()), config.toolbox.maxConcurrent),
    metrics,
    queueMs: config.toolWaitSeconds * 1000,
  })
  return (tool, connector, signal) =>
    gate.enter(
      `${connector?.id ?? 'builtin'}/${tool.mcp_tool_name ?? tool.canonical_name}`,
      policy.limits(tool, connector).maxInstances,
      signal,
      tool.canonical_name,
    )
}

/** Reaches the servers of the configuration, and writes their rows once all fit the toolbox. */
async function configuredServers(
  { config, log, store, vault, mcp, specFor }: ToolBase,
  policy: ToolboxPolicy,
) {
  const { toolbox } = config
  const configured = configConnectors(toolbox.mcps, vault)
  const rules = createToolboxRules({
    toolbox,
    connectors: await store.connectors.planConfig(configured),
    policy,
    mcp,
    specFor,
    builtins: BUILTINS.map(({ name }) => name),
    log,
  })
  await rules.check()
  // A start that is stopped must change nothing: other replicas go on with these rows, and with a row go its bindings
  // and its accepted definitions.
  await store.connectors.syncConfig(configured)
  return rules
}

const engineSettings = (config: Config) => ({
  // A new id for each process: one that was restarted owns nothing.
  lease: { owner: newId('replica'), seconds: config.leaseSeconds },
  concurrentTurns: config.limits.concurrentTurns,
  waitingTurns: config.limits.waitingTurns,
  overloadMs: config.limits.overloadMs,
  turnsPerOwner: config.turnsPerOwner,
  flushMs: config.redisUrl === null ? 0 : REDIS_FLUSH_MS,
  approvalSeconds: config.approvalSeconds,
})

type HttpParts = Pick<ToolBase, 'mcp' | 'specFor' | 'connectorLogins' | 'credentials' | 'logins'> & {
  tools: EngineTools
  turns: Engine
}

/** What callers reach. */
function httpOf(
  { config, log, closeLater, metrics, vault, store, bus }: Base,
  { pingMs }: Given,
  parts: HttpParts,
) {
  const { mcp, specFor, connectorLogins, credentials, logins, tools, turns } = parts
  const { assertUrl, refusals } = createGuard({ allowPrivate: config.connectorsAllowPrivate })
  return buildHttp({
    config,
    log,
    store,
    bus,
    auth: closeLater(createAuth({ config, store, bus })),
    sessions: createSessions({ store, bus, credentials, config, tools }),
    turns,
    tools,
    connectors: createConnectors({
      store,
      bus,
      vault,
      config,
      assertUrl,
      mcp,
      logins: connectorLogins,
      specFor,
      tools,
    }),
    credentials,
    rotateEncryption: (by) => rotateEncryption(store, vault, by),
    logins,
    refusals,
    metrics,
    isDraining: turns.isDraining,
    pingMs,
  })
}

/** One after the other: turns first, then readers, then what both depend on. A part that fails stops no other. */
async function closeAll(closers: (() => Promise<unknown>)[], log: Logger): Promise<void> {
  for (const close of closers.splice(0)) {
    await close().catch((err: unknown) => log.warn({ err }, 'a part did not close cleanly'))
  }
}

/** Where a browser on this machine reaches the gateway; null if it serves other machines, or has no port. */
function ownUrl(host: string, address: AddressInfo | string | null): string | null {
  if (!isLoopback(host) || typeof address === 'string') return null
  return address && `http://${inUrl(host)}:${address.port}`
}

/** Redacted: the server may have printed a secret that it was given, or what a caller asked it. */
async function logLastWords(log: Logger, server: string, words: string): Promise<void> {
  const said = await redactText(words).catch(() => null)
  log.warn({ server, words: said }, 'what a server process said last')
}
