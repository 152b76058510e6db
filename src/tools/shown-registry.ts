/** A session's registry as callers see it (api.md "Session tools"), and as a provider gets it. */
import { connectorKey } from '../credentials/connector-secret.ts'
import type { Serving } from '../deployments.ts'
import type { Mcp, McpTool, ToolList } from '../mcp/contract.ts'
import type { SessionTool, SessionToolList } from '../ports.ts'
import type { Pin, RegistryRow, RegistryTool, Store } from '../store/store.ts'
import { definitionDiff, hashOf } from './definition.ts'
import { type Discovery, lastList } from './discovery.ts'
import { overlayOf } from './overlay.ts'

/** The registry's tools in the provider's own shape. */
export const declared = async (row: RegistryRow, { deployment, options }: Serving): Promise<unknown[]> =>
  deployment.declare((await overlayOf(row, deployment)).tools, options)

interface Known extends Pick<Discovery, 'lastSeen'> {
  store: Pick<Store, 'connectors'>
  mcp: Pick<Mcp, 'cached'>
  providers: readonly string[]
}

/** A tool that the view's provider cannot declare carries the reason; a changed one shows how its definition differs. */
export async function shownRegistry(row: RegistryRow, view: Serving, known: Known): Promise<SessionToolList> {
  const { providers, lastSeen } = known
  const changes = await changesIn(row, known)
  const { undeclared } = await overlayOf(row, view.deployment)
  const reasons = new Map(undeclared.map(({ canonical_name, reason }) => [canonical_name, reason]))
  const tools = [...row.tools]
    .sort((a, b) => a.order - b.order)
    .map((tool): SessionTool => {
      const { canonical_name: name, connector_id, mcp_tool_name } = tool
      const reason = tool.reason ?? reasons.get(name)
      const isLeftOut = tool.status === 'available' && reasons.has(name)
      return {
        canonical_name: name,
        provider_exposed_name: Object.fromEntries(providers.map((id) => [id, tool.exposed_name])),
        connector_id,
        mcp_tool_name,
        server: tool.server,
        description: tool.description,
        parameters: tool.parameters,
        enabled: tool.enabled,
        source: tool.source,
        last_seen_at: later(tool.last_seen_at, lastSeen(connector_id ?? '', mcp_tool_name ?? '')),
        status: isLeftOut ? 'undeclarable' : tool.status,
        ...(reason ? { reason } : {}),
        ...changes.get(name),
      }
    })
  return { revision: row.revision, updated_at: row.updated_at, tools }
}

/** A registry is not written only because its tools were seen again. */
const later = (kept: string | null, seen: string | null): string | null =>
  (seen ?? '') > (kept ?? '') ? seen : kept

/** Tools that are compared with their accepted definitions at once, and most characters that are read and shown for that. */
const AT_ONCE = 16
const MOST_COMPARED = 4 * 1024 * 1024

type Difference = Pick<SessionTool, 'diff' | 'hash'>

/**
 * The changed tools by canonical name: each one's hash, to accept it by, and how it differs from its accepted definition,
 * unless all differences are too much for one answer.
 */
async function changesIn(
  row: RegistryRow,
  { store, mcp }: Pick<Known, 'store' | 'mcp'>,
): Promise<ReadonlyMap<string, Difference>> {
  const changed = row.tools.filter(({ status }) => status === 'changed')
  const found = new Map<string, Difference>()
  if (changed.length === 0) return found
  for (const { canonical_name, hash } of changed) found.set(canonical_name, { hash })
  let compared = 0
  for (const { connector } of await store.connectors.bindings(row.session_id)) {
    const mine = changed.filter(({ connector_id }) => connector_id === connector.id)
    if (mine.length === 0) continue
    const list = await lastList({ store, mcp }, connectorKey(connector))
    for (let at = 0; at < mine.length && compared < MOST_COMPARED; at += AT_ONCE) {
      const some = mine.slice(at, at + AT_ONCE)
      const names = some.map(({ mcp_tool_name }) => mcp_tool_name ?? '')
      const accepted = await store.connectors.pins(connector.id, names)
      const differences = differing(some, list, accepted)
      for (const [name, difference] of differences) found.set(name, difference)
      compared += JSON.stringify([accepted, differences]).length
    }
  }
  return found
}

function differing(
  tools: readonly RegistryTool[],
  list: ToolList | null,
  accepted: readonly Pin[],
): [string, Difference][] {
  const pins = new Map(accepted.map(({ tool, definition }) => [tool, definition]))
  return tools.flatMap(({ canonical_name, mcp_tool_name }): [string, Difference][] => {
    const after = list?.tools.find(({ name }) => name === mcp_tool_name)
    const before = pins.get(mcp_tool_name ?? '') as McpTool | undefined
    return before && after
      ? [[canonical_name, { diff: definitionDiff(before, after), hash: hashOf(after) }]]
      : []
  })
}
