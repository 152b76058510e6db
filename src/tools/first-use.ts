/** Trust on first use: a definition that a model is to get for the first time is kept as accepted before it can. */
import type { McpTool } from '../mcp/contract.ts'
import type { Store } from '../store/store.ts'
import { inSlices } from '../within.ts'
import { definitionOf } from './definition.ts'
import type { Pins } from './registries.ts'

type ToolPins = ReadonlyMap<string, string>

/**
 * Most tools of a server that are accepted by their first use, in all its lists: each session reads the hashes of all of
 * them, and a server may name its tools anew in each list. None is forgotten, else a server could have one forgotten.
 */
const MOST_PINS = 4_000
/** No definition has this hash: a tool beyond them counts as changed, until a person accepts it. */
const NONE = ''

/** Returns the accepted hashes of a connector's tools, by tool. `pins`: those accepted before. */
export function createFirstUse(store: Pick<Store, 'connectors'>) {
  /** First uses that are being written, by list: sessions share lists */
  const underWay = new Map<readonly McpTool[], Promise<ToolPins>>()

  async function pinFirst(connector: string, tools: readonly McpTool[], known: ToolPins): Promise<ToolPins> {
    const fresh = tools.filter(({ name }) => !known.has(name))
    const names = fresh.map(({ name }) => name)
    const first = await inSlices(fresh.slice(0, Math.max(0, MOST_PINS - known.size)), (tool) => {
      return { tool: tool.name, hash: definitionOf(tool).hash, definition: tool }
    })
    const kept = first.length === 0 ? [] : await store.connectors.pinFirst(connector, first)
    // Another replica's first use may have come before this one, with another list.
    const all = kept.length === first.length ? first : await store.connectors.pins(connector, names)
    const accepted = all.map(({ tool, hash }) => [tool, hash] as const)
    return new Map([...names.map((name) => [name, NONE] as const), ...known, ...accepted])
  }

  return async (connector: string, tools: readonly McpTool[] | null, pins: Pins): Promise<ToolPins> => {
    const known: ToolPins = pins.get(connector) ?? new Map()
    if (!tools || tools.every(({ name }) => known.has(name))) return known
    const begun = underWay.get(tools)
    // The write under way may be from before a person accepted another definition: what is known here may be newer.
    if (begun) return new Map([...(await begun), ...known])
    const writing = pinFirst(connector, tools, known)
    underWay.set(tools, writing)
    return writing.finally(() => underWay.delete(tools))
  }
}
