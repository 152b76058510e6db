/** The one frozen configuration object; everything below is validated (load.ts) before anything starts. */
import type { ConnectorProxy } from '../guard/dial.ts'
import type { Isolation } from '../mcp/sandbox.ts'
import type { ForwardProxy } from '../outbound.ts'
import type { DeploymentOptions } from '../provider.ts'
import type { ConnectorInput } from './connector-shape.ts'
import type { limitsOf } from './limits.ts'
import type { Base } from './settings.ts'

/** What everything else works from: whole, checked and frozen. */
export interface Config {
  host: string
  port: number
  /** Where browsers reach the gateway, without a trailing slash; null: where it listens, if that is loopback */
  publicUrl: string | null
  dataDir: string
  /** The YAML file, whether or not it is there */
  file: string
  databaseUrl: string | null
  redisUrl: string | null
  logLevel: 'fatal' | 'error' | 'warn' | 'info' | 'debug' | 'trace'
  auth: 'off' | 'keys'
  adminKey: string | null
  corsOrigins: readonly string[]
  /** Bytes */
  bodyLimit: number
  /** Calls of one key; null: no limit */
  rateLimitPerMinute: number | null
  /** Turns that run or are queued; null: no limit */
  turnsPerOwner: number | null
  drainSeconds: number
  leaseSeconds: number
  /** How long a tool call waits for a decision */
  approvalSeconds: number
  /** How long a tool call waits for a free slot */
  toolWaitSeconds: number
  /** How long ended tool calls are kept; null: for ever */
  ledgerRetentionMs: number | null
  connectorsAllowPrivate: boolean | readonly string[]
  allowStdioConnectors: boolean
  /** The sandbox that stdio servers run in */
  stdioIsolation: Isolation
  enableOauth: readonly string[]
  /** The first encrypts, all decrypt; null: a key file in the data dir (embedded only) */
  encryptionKeys: readonly { id: string; key: Uint8Array }[] | null
  /** The proxy for requests to providers */
  forwardProxy: ForwardProxy | null
  /** The proxy for https requests of connectors */
  connectorProxy: ConnectorProxy | null
  /** Upstream roots by deployment base, without a trailing slash */
  baseUrls: Readonly<Record<Base, string>>
  oauth: {
    openai: { issuer: string; clientId: string | null }
    anthropic: { authorizeUrl: string; tokenUrl: string; clientId: string | null }
    gemini: { authorizeUrl: string; tokenUrl: string; clientId: string | null; clientSecret: string | null }
  }
  /** API keys from the environment: credentials with origin `env` */
  envCredentials: readonly { provider: string; apiKey: string; workspaceId?: string }[]
  /** What the operator adds to requests of logins, by provider id (`providers.<id>.oauth` in the YAML file) */
  loginExtras: Readonly<Record<string, Pick<DeploymentOptions, 'system_blocks' | 'headers'>>>
  /** Options that every deployment is given, though one may concern a single vendor */
  deploymentOptions: Omit<DeploymentOptions, 'system_blocks' | 'headers'>
  toolbox: Toolbox
  limits: ReturnType<typeof limitsOf>
}

/** `toolbox` of the file. */
export interface Toolbox {
  /** Infinity without a `toolbox` in the file */
  maxConcurrent: number
  tools: readonly ToolSetting[]
  mcps: readonly McpSetting[]
  inspect: boolean
}
/**
 * What `toolbox.tools` says of one tool. A field that is left out has the default of the tool's server
 * (tools/toolbox.ts). The timeout is milliseconds here, ISO 8601 in the file.
 */
export interface ToolSetting {
  name: string
  maxInstances?: number | undefined
  timeoutMs?: number | undefined
  /** Which calls wait for a person; `destructive`: calls that are not known to be harmless */
  requireApproval?: ConnectorInput['require_approval']
}
/** One server of `toolbox.mcps`. */
export interface McpSetting extends Omit<ConnectorInput, 'auth'> {
  mode: 'strict' | 'dynamic'
  bind: 'auto' | 'manual'
}
