/** Connectors as callers see them: without their secrets, and with what is known of their connections. */
import { type ConnectorSecret, connectorKey } from '../credentials/connector-secret.ts'
import { loginPath, loginWords } from '../credentials/renew-connector.ts'
import type { Vault } from '../credentials/vault.ts'
import type { Mcp, McpState } from '../mcp/contract.ts'
import type { SessionTool, SessionTools } from '../ports.ts'
import type { Connector, Page, PageRequest, Scope, Session, Store } from '../store/store.ts'
import { opened } from './input.ts'

/**
 * Without secrets: only the names of headers and variables (null: they cannot be opened any more). Callers who are not
 * admins see neither the command line of configured connectors nor the URL beyond its host; both may hold secrets.
 */
export type ConnectorView = Omit<Connector, 'secret' | 'config_revision'> & {
  header_names: string[] | null
  env_names: string[] | null
  /** Of this replica's connection; `auth_required`: the connector's owner must log in, by a POST to `login_url` */
  status: { state: McpState; error?: string; login_url?: string }
}

/** A server that a session binds: `unavailable` while its tools cannot be called, with the reason. */
export interface BoundConnector extends Pick<Connector, 'id' | 'name' | 'origin' | 'transport'> {
  alias: string | null
  status: 'available' | 'unavailable'
  reason?: string
}

interface ConnectorViewDeps {
  store: Pick<Store, 'connectors'>
  vault: Pick<Vault, 'open'>
  mcp: Pick<Mcp, 'status'>
  tools: Pick<SessionTools, 'list'>
}

export function createConnectorViews({ store, vault, mcp, tools }: ConnectorViewDeps) {
  /** Shows what is known of the connection; none is made for it. */
  function view({ admin }: Scope, connector: Connector): ConnectorView {
    const { secret: _, config_revision, ...whole } = connector
    const isHidden = connector.origin === 'config' && !admin
    const url = whole.url && new URL(whole.url).origin
    const shown = isHidden ? { ...whole, command: null, args: [], url } : whole
    const secret = opened(vault, connector)
    return {
      ...shown,
      header_names: secret && Object.keys(secret.headers),
      env_names: secret && Object.keys(secret.env),
      status: statusOf(connector, secret),
    }
  }

  function statusOf(connector: Connector, secret: ConnectorSecret | null): ConnectorView['status'] {
    const { state, error } = mcp.status(connectorKey(connector))
    const status = { state, ...(error === undefined ? {} : { error }) }
    if (connector.auth.type !== 'oauth') return status
    const login_url = loginPath(connector.id)
    if (secret?.oauth?.tokens) return { ...status, login_url }
    return { state: 'auth_required', error: loginWords(connector, secret?.oauth?.over), login_url }
  }

  async function boundTo(session: Session, page: PageRequest): Promise<Page<BoundConnector>> {
    const [{ data, next_cursor }, known] = await Promise.all([
      store.connectors.listBound(session.id, page),
      tools.list(session, null),
    ])
    const shown = data.map(async ({ connector, alias }): Promise<BoundConnector> => {
      const { id, name, origin, transport } = connector
      const own = known.tools.filter((tool) => tool.connector_id === id)
      const reason = await whyAway(connector, own)
      const common = { id, name, alias, origin, transport }
      return reason === null
        ? { ...common, status: 'available' }
        : { ...common, status: 'unavailable', reason }
    })
    return { data: await Promise.all(shown), next_cursor }
  }

  /** Null: its tools can be called, as far as is known. */
  async function whyAway(connector: Connector, own: readonly SessionTool[]): Promise<string | null> {
    const { state, error } = statusOf(connector, opened(vault, connector))
    // If a tool of the server can be called, the registry knows more than this replica's connection.
    const telling = own.filter(({ status }) => status === 'available' || status === 'unavailable')
    if (telling.some(({ status }) => status === 'available')) return null
    // The registry may still give the reason of an earlier absence.
    const why = state === 'auth_required' ? error : (telling[0]?.reason ?? error)
    if (why !== undefined) return why
    // A server without a connection may merely be unused: one whose list is known does not count as away.
    const wasThere =
      state !== 'connecting' && (await store.connectors.loadList(connectorKey(connector))) !== null
    return wasThere ? null : `${connector.name} is not ready yet`
  }

  return { view, boundTo }
}
