/**
 * What is known of a session's servers, in parallel and within a deadline: a fresh list, an older one, or
 * none. A server that is late goes on in the background and reports itself when it is there.
 */
import type { Logger } from 'pino'
import { type Mcp, McpError, type McpServerSpec, type McpTool, type ToolList } from '../mcp/mcp.ts'
import type { Binding, Connector, Store } from '../store/store.ts'
import { definitionHash, type KnownServer } from './registry.ts'

export interface DiscoveryDeps {
  store: Pick<Store, 'connectors'>
  mcp: Mcp
  specFor(connector: Connector): McpServerSpec
  /** A server's list moved */
  onMoved?(connector: Connector, before: readonly string[], after: readonly string[]): void
  log: Logger
}

export interface Discovery {
  /** Settles within the deadline; `late` is called when a server comes in after it. */
  known(
    bindings: readonly Binding[],
    options: { deadlineMs: number; refresh: boolean },
    late: () => void,
  ): Promise<KnownServer[]>
  /** Nothing would be asked: every list is fresh. */
  isFresh(bindings: readonly Binding[]): boolean
  /** The connectors that announced a changed list, by connection key. */
  connectorOf(key: string): Connector | undefined
}

/** A list is asked for again after this, unless the server says that it changed. */
const FRESH_MS = 5 * 60_000
/** In these states the last list is a memory, not the present. */
const DOWN: ReadonlySet<string> = new Set(['down', 'auth_required', 'quarantined'])
/** How long a connection's notifications stay open after its last use. */
const INTEREST_MS = 10 * 60_000
/** Longest that a server may take to be reached and to list, whoever still waits. */
export const connectBudgetMs = ({ transport }: Pick<Connector, 'transport'>): number =>
  transport === 'stdio' ? 15_000 : 5_000

export function createDiscovery({ store, mcp, specFor, onMoved, log }: DiscoveryDeps): Discovery {
  const byKey = new Map<string, Connector>()
  /** The list that the store has, by key */
  const saved = new Map<string, ToolList>()

  /** The last list of a server that is not known to be away. */
  const usable = (key: string): ToolList | null => (DOWN.has(mcp.status(key).state) ? null : mcp.cached(key))
  const isRecent = (key: string): boolean => Date.now() - (usable(key)?.fetched_at ?? 0) < FRESH_MS

  async function one(
    { connector, alias }: Binding,
    options: { deadlineMs: number; refresh: boolean },
    late: () => void,
  ): Promise<KnownServer> {
    const spec = specFor(connector)
    byKey.set(spec.key, connector)
    mcp.interest(spec.key, spec, Date.now() + INTEREST_MS)
    const [pins, found] = await Promise.all([
      store.connectors.pins(connector.id),
      options.refresh
        ? ask(connector, spec, options, late)
        : (reuse(connector, spec, late) ?? ask(connector, spec, options, late)),
    ])
    const common = {
      connector,
      server: alias ?? connector.name,
      pins: new Map(pins.map(({ tool, hash }) => [tool, hash])),
    }
    if (!('failure' in found)) {
      await remember(connector, spec.key, found, common.pins)
      return { ...common, tools: found.tools, isLive: true, reason: null }
    }
    const older = mcp.cached(spec.key) ?? ((await store.connectors.loadList(spec.key)) as ToolList | null)
    return {
      ...common,
      tools: older?.tools ?? null,
      isLive: false,
      reason: found?.failure ?? 'not ready yet',
    }
  }

  /** A list that is there, at once; an old one is asked for again behind it. */
  function reuse(connector: Connector, spec: McpServerSpec, late: () => void): ToolList | null {
    const list = usable(spec.key)
    if (!list || isRecent(spec.key)) return list
    void mcp.list(spec, { timeoutMs: connectBudgetMs(connector), refresh: true }).then(
      (newer) => newer.hash !== list.hash && late(),
      () => late(),
    )
    return list
  }

  /** The server's list; or, in words, why it is not there within the deadline. */
  async function ask(
    connector: Connector,
    spec: McpServerSpec,
    options: { deadlineMs: number; refresh: boolean },
    late: () => void,
  ): Promise<ToolList | { failure: string }> {
    const budget = connectBudgetMs(connector)
    let isOver = false
    const asked = mcp.list(spec, { timeoutMs: budget, refresh: options.refresh }).then(
      (list) => {
        if (isOver) late()
        return list
      },
      (thrown: unknown) => ({ failure: inWords(connector, thrown) }),
    )
    if (options.deadlineMs >= budget) return asked
    let timer: NodeJS.Timeout | undefined
    const over = new Promise<{ failure: string }>((resolve) => {
      timer = setTimeout(() => {
        isOver = true
        resolve({ failure: `${connector.name} is not ready yet` })
      }, options.deadlineMs)
    })
    return Promise.race([asked, over]).finally(() => clearTimeout(timer))
  }

  /** Keeps the list for a cold start, and the hash of each definition seen for the first time. */
  async function remember(
    connector: Connector,
    key: string,
    list: ToolList,
    pins: ReadonlyMap<string, string>,
  ): Promise<void> {
    const before = saved.get(key)
    if (before?.hash === list.hash) return
    if (before) onMoved?.(connector, namesOf(before), namesOf(list))
    saved.set(key, list)
    try {
      await store.connectors.saveList(key, connector.id, list)
      for (const tool of list.tools) {
        if (pins.has(tool.name)) continue
        await store.connectors.pin(connector.id, tool.name, hashOf(tool), tool, 'first use')
      }
    } catch (err) {
      log.warn({ err, connector: connector.name }, 'tool list was not kept')
    }
  }

  return {
    known: (bindings, options, late) => Promise.all(bindings.map((binding) => one(binding, options, late))),
    isFresh: (bindings) => bindings.every(({ connector }) => isRecent(specFor(connector).key)),
    connectorOf: (key) => byKey.get(key),
  }
}

const namesOf = (list: ToolList): string[] => list.tools.map(({ name }) => name)

/** The same hash as the registry's, so that a pin compares with what a session shows. */
export const hashOf = (tool: McpTool): string =>
  definitionHash(tool.name, tool.description ?? '', tool.inputSchema, tool.annotations ?? {})

function inWords(connector: Connector, thrown: unknown): string {
  const why = thrown instanceof McpError || thrown instanceof Error ? thrown.message : String(thrown)
  return `${connector.name} is not available: ${why}`.slice(0, 500)
}
