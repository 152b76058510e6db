/**
 * What is known of servers, in parallel and within a deadline: a fresh list, an older one, or none. A server that is
 * late or away is asked again in the background, for as long as a session uses it, and `onNews` says when it is there.
 */
import { once } from '../chat/once.ts'
import { connectorKey } from '../credentials/connector-secret.ts'
import { type Mcp, type McpServerSpec, type ToolList, waitOutMs } from '../mcp/contract.ts'
import type { Binding, Connector, Store } from '../store/store.ts'
import { within } from '../within.ts'
import type { KnownServer } from './registry.ts'
import { dateOf, presentList, type Seen, type Wanted, Watch, type WatchDeps } from './watch.ts'

interface DiscoveryDeps extends WatchDeps {
  mcp: Mcp
  specFor(connector: Connector): McpServerSpec
}

/** A server as it is known, without what its sessions and the operator say of its tools. */
export interface ListedServer extends Omit<KnownServer, 'pins' | 'off' | 'refusalOf'> {
  /** The mark of the list that it shows (see `marks`) */
  mark: string | null
}

/** As much of a binding as a look-up needs. */
export type Asked = Omit<Binding, 'off'>

/** As much of a binding as is needed to tell whether its server's list has moved. */
export interface Bound {
  connector: Pick<Connector, 'id' | 'config_revision' | 'updated_at'>
  alias: string | null
}

export interface LookUp extends Wanted {
  /** `budget`: each server gets the time that it may take to be reached */
  deadlineMs: number | 'budget'
}

/** What is known of servers. No verb rejects because a server fails. */
export interface Discovery {
  /** Settles within the deadline, whatever the servers do. */
  lookUp(bindings: readonly Asked[], options: LookUp): Promise<ListedServer[]>
  /** What this process has heard already: no server is asked, and a server without a present list here is `pending`. */
  heard(bindings: readonly Asked[], seen: Seen): ListedServer[]
  /** Waits, at most `deadlineMs`, for lists that are expected (`isExpected`). */
  awaitExpected(bindings: readonly Bound[], deadlineMs: number): Promise<void>
  /**
   * For each binding, which list its server shows now, over which connection, under which alias and since which
   * acceptance; null if there is no list, or an old one. If all marks are as before, there is nothing to take over.
   */
  marks(bindings: readonly Bound[]): (string | null)[]
  /** When its server listed the tool last, as far as this process knows: RFC 3339. */
  lastSeen(connector: string, tool: string): string | null
  /** A list of this connector's server is on its way here, and the known list, if any, is not to be shown. */
  isExpected(connector: string): boolean
  /** A connector was changed or deleted: nothing known of it holds any more. */
  forget(connector: string): void
  /** The same for one connection key, which another replica has changed or deleted. */
  letGo(key: string): void
  /** From now on no server is asked: a look-up answers as `heard`. */
  close(): void
}

const MOST_WATCHED = 1_000

/** Knows nothing at first: a server is asked when a session's binding is looked up. */
export function createDiscovery(deps: DiscoveryDeps): Discovery {
  const { store, mcp, specFor, log } = deps
  const watches = new Map<string, Watch>()
  /**
   * The watch of each connector as it was looked up last. A caller that read the connector before a change may look it
   * up after the change; the next look-up sets this right.
   */
  const latest = new Map<string, Watch>()
  let isClosed = false

  function watchOf(connector: Connector): Watch {
    const spec = specFor(connector)
    if (watches.size > MOST_WATCHED) forget((watch) => !watch.isWanted())
    const watch = watches.get(spec.key) ?? new Watch(connector, spec, deps)
    watch.use(connector, spec)
    watches.set(spec.key, watch)
    latest.set(connector.id, watch)
    return watch
  }

  function forget(isOver: (watch: Watch) => boolean): void {
    for (const [key, watch] of watches) {
      if (!isOver(watch)) continue
      watch.stop()
      watches.delete(key)
      if (latest.get(watch.connector.id) === watch) latest.delete(watch.connector.id)
    }
  }

  async function lookUpOne(binding: Asked, { deadlineMs, ...wanted }: LookUp): Promise<ListedServer> {
    const { connector } = binding
    const watch = watchOf(connector)
    const ms = deadlineMs === 'budget' ? waitOutMs(connector) : deadlineMs
    const came = await within(ms, watch.answer(wanted, ms))
    if (came && 'list' in came) {
      const mark = mcp.cached(watch.spec.key)?.hash === came.list.hash ? markOf(binding) : null
      return { ...serverWith(binding, came.list, 'live', null), mark }
    }
    const failure = came?.failure ?? watch.failure
    const older = await lastList({ store, mcp }, watch.spec.key)
    return failure !== null && !watch.isFoundSince(wanted.seen)
      ? serverWith(binding, older, 'away', failure)
      : serverWith(binding, older, 'pending', `${connector.name} is not ready yet`)
  }

  function markOf({ connector, alias }: Bound): string | null {
    const watch = latest.get(connector.id)
    if (watch?.connector.config_revision !== connector.config_revision) return null
    const list = watch.current()
    return list && `${watch.spec.key} ${alias ?? ''} ${connector.updated_at} ${list.hash}`
  }

  mcp.onListChanged((key) => watches.get(key)?.noteChange())

  /** A server whose secret cannot be opened, say, is away like any other; the rest goes on. */
  async function safely(binding: Asked, options: LookUp): Promise<ListedServer> {
    try {
      const found = isClosed ? null : await lookUpOne(binding, options)
      // A process that ends has closed its own connections: for other replicas these servers are not away.
      return found && !isClosed ? found : heardOf(binding, options.seen ?? new Map())
    } catch (thrown) {
      const { name } = binding.connector
      log.warn({ err: thrown, connector: name }, 'server was not asked')
      return serverWith(binding, null, 'away', `${name} is not available: it could not be asked`)
    }
  }

  /** A list older than the newest that some replica has seen is not the present one. */
  function heardOf(binding: Asked, seen: Seen): ListedServer {
    const { id, name } = binding.connector
    const key = connectorKey(binding.connector)
    const list = watches.get(key)?.failure ? null : presentList(mcp, key)
    return list && dateOf(list) >= (seen.get(id) ?? '')
      ? serverWith(binding, list, 'live', null)
      : serverWith(binding, null, 'pending', `${name} is not ready yet`)
  }

  return {
    lookUp: (bindings, options) => Promise.all(bindings.map((binding) => safely(binding, options))),
    heard: (bindings, seen) => bindings.map((binding) => heardOf(binding, seen)),
    async awaitExpected(bindings, deadlineMs) {
      const watched = bindings.map(({ connector }) => latest.get(connector.id))
      const asked = watched.map(async (watch) => {
        if (watch?.isExpected()) await watch.answer({}, deadlineMs)
      })
      await within(deadlineMs, Promise.all(asked))
    },
    forget: (id) => forget(({ connector }) => connector.id === id),
    letGo: (key) => forget(({ spec }) => spec.key === key),
    lastSeen(id, tool) {
      const list = mcp.cached(latest.get(id)?.spec.key ?? '')
      return list && namesIn(list).has(tool) ? dateOf(list) : null
    },
    isExpected: (id) => latest.get(id)?.isExpected() ?? false,
    marks: (bindings) => bindings.map(markOf),
    close() {
      isClosed = true
      forget(() => true)
    },
  }
}

/** The newest list that this process or another replica has seen; null: none has seen one. */
export async function lastList(
  { store, mcp }: { store: Pick<Store, 'connectors'>; mcp: Pick<Mcp, 'cached'> },
  key: string,
): Promise<ToolList | null> {
  const stored = (await store.connectors.loadList(key)) as ToolList | null
  const own = mcp.cached(key)
  return own && stored && own.fetched_at < stored.fetched_at ? stored : (own ?? stored)
}

const namesIn = once(({ tools }: ToolList) => new Set(tools.map(({ name }) => name)))

/** A server with its last known list; null: no list is known. */
const serverWith = (
  { connector, alias }: Asked,
  list: ToolList | null,
  state: ListedServer['state'],
  reason: string | null,
): ListedServer => ({
  connector,
  server: alias ?? connector.name,
  tools: list?.tools ?? null,
  seen_at: list && dateOf(list),
  // A list that an older version stored has none.
  left_out: list?.left_out ?? [],
  state,
  reason,
  mark: null,
})
