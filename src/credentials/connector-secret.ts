/**
 * A connector's secrets: header values, variables of a started program, its bearer token, its login. They are sealed as
 * one piece under owner and id, and opened where a connection is made.
 */
import type { McpAuth, McpServerSpec } from '../mcp/contract.ts'
import type { McpLogin } from '../mcp/oauth.ts'
import type { Connector } from '../store/store.ts'
import { openSecret, sealSecret, type Vault } from './vault.ts'

/** Headers and variables by name. */
export interface ConnectorSecret {
  headers: Record<string, string>
  env: Record<string, string>
  /** Sent as `Authorization: Bearer …` */
  bearer?: string
  /** The owner's login (connector-renewals.ts), or just the client that was given for it */
  oauth?: McpLogin
}

/** Null when there is nothing to hide. */
export function sealConnector(
  vault: Pick<Vault, 'seal'>,
  connector: Pick<Connector, 'owner' | 'id'>,
  secret: ConnectorSecret,
): Uint8Array | null {
  const isEmpty =
    Object.keys(secret.headers).length === 0 &&
    Object.keys(secret.env).length === 0 &&
    secret.bearer === undefined &&
    secret.oauth === undefined
  return isEmpty ? null : sealSecret(vault, connector, secret)
}

/** Empty for a connector without secrets. Throws as `vault.open`. */
export function openConnector(
  vault: Pick<Vault, 'open'>,
  { owner, id, secret }: Pick<Connector, 'owner' | 'id' | 'secret'>,
): ConnectorSecret {
  return secret ? openSecret(vault, { owner, id, secret }) : { headers: {}, env: {} }
}

/** The key of the connector's connection in the MCP door's pool: another with each change. */
export const connectorKey = ({ id, config_revision }: Pick<Connector, 'id' | 'config_revision'>): string =>
  `${id}@${config_revision}`

/**
 * A stored connector as the MCP door takes it. `allowPrivate` is the operator's setting for callers'
 * connectors; those of the configuration are exempt. `login` keeps an OAuth login alive.
 */
export function connectorSpec(
  connector: Connector,
  vault: Pick<Vault, 'open'>,
  allowPrivate: boolean | readonly string[],
  login: (connector: Connector) => McpAuth,
): McpServerSpec {
  const { headers, env, bearer } = openConnector(vault, connector)
  const fixed = bearer === undefined ? null : { token: async () => bearer, held: () => bearer }
  const auth = connector.auth.type === 'oauth' ? login(connector) : fixed
  return {
    key: connectorKey(connector),
    name: connector.name,
    transport: connector.transport,
    ...(connector.url === null ? {} : { url: connector.url, headers }),
    ...(connector.command === null ? {} : { command: connector.command, args: connector.args, env }),
    ...(connector.origin === 'config' ? { allowPrivate: true, isConfigured: true } : { allowPrivate }),
    ...(auth ? { auth } : {}),
  }
}
