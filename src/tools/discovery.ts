/**
 * What is known of servers, in parallel and within a deadline: a fresh list, an older one, or none. A
 * server that is late or away is asked again behind the callers, for as long as a session uses it, and
 * `onArrival` says when it is there.
 */
import type { Logger } from 'pino'
import {
  ATTEMPT_MS,
  CONNECT_MS,
  type Mcp,
  McpError,
  type McpServerSpec,
  type ToolList,
} from '../mcp/contract.ts'
import { within } from '../mcp/deadline.ts'
import type { Binding, Connector, Store } from '../store/store.ts'
import type { KnownServer } from './registry.ts'

export interface DiscoveryDeps {
  store: Pick<Store, 'connectors'>
  mcp: Mcp
  specFor(connector: Connector): McpServerSpec
  /** A server's list came for the first time (`before` is null), or moved */
  onMoved?(connector: Connector, before: readonly string[] | null, after: readonly string[]): void
  log: Logger
}

/** A server as it is known, its accepted definitions aside. */
export interface ListedServer extends Omit<KnownServer, 'pins' | 'off'> {
  /** Of the list that it shows (see `marks`) */
  mark: string | null
}

export type Asked = Omit<Binding, 'off'>

/** As much of a binding as tells whether its server's list has moved. */
export interface Bound {
  connector: Pick<Connector, 'id' | 'config_revision' | 'updated_at'>
  alias: string | null
}

export interface LookUp {
  /** `budget`: for each server as long as it may take to be reached */
  deadlineMs: number | 'budget'
  /** Asks even where a list is fresh */
  refresh?: boolean
  /** A person wants these servers: where there is no list, one is asked for even in a back-off */
  insists?: boolean
  /** By connector, when the tools in the session's registry were listed, by any replica: an earlier list is an old one */
  seen?: ReadonlyMap<string, string>
}

/** What is known of servers. No verb rejects because a server does. */
export interface Discovery {
  /** Settles within the deadline, whatever the servers do. */
  lookUp(bindings: readonly Asked[], options: LookUp): Promise<ListedServer[]>
  /** Waits, no longer than told, for lists that servers have announced. */
  announced(bindings: readonly Bound[], deadlineMs: number): Promise<void>
  /**
   * For each binding, which list its server shows now, over which connection, under which alias and since which
   * acceptance; null where there is no list, or an old one. Where all are as before, there is nothing to take over.
   */
  marks(bindings: readonly Bound[]): (string | null)[]
  /** When its server listed the tool last, as far as this process knows: RFC 3339. */
  lastSeen(connector: string, tool: string): string | null
  /** Its server has announced a change of the list that is known. */
  isOutdated(connector: string): boolean
  /** A server came in, or its list changed: the sessions that bind it have something to take over. */
  onArrival(fn: (connector: Connector) => void): void
  /** A connector was changed or deleted: nothing known of it holds any more. */
  forget(connector: string): void
  close(): void
}

/** In these states the last list is a memory, not the present. */
const DOWN: ReadonlySet<string> = new Set(['down', 'auth_required', 'quarantined'])
/** How long after its last use a server is followed: its notifications, and attempts to reach it again. */
const INTEREST_MS = 10 * 60_000
const MOST_WATCHED = 1_000
/** Between attempts to reach a server again: doubled from the first to the last. */
const RETRY_MS = { first: 1_000, last: 60_000 }
/** Longest that a caller waits for a server to be reached and to list. */
export const connectBudgetMs = ({ transport }: Pick<Connector, 'transport'>): number =>
  transport === 'stdio' ? CONNECT_MS.stdio : CONNECT_MS.http
/** Whoever waits for all of the budget is to hear what became of it. */
const SLACK_MS = 500

/** One connection key, for as long as the process lives. */
interface Watch {
  connector: Connector
  spec: McpServerSpec
  /** The last list that came from the server */
  list: ToolList | null
  /** Of the last attempt in words, or of one that takes longer than callers wait; null after a success */
  failure: string | null
  failures: number
  /** The newest date of its tools in a registry (`seen`) after which a list was asked for: clocks of replicas differ */
  caughtUp: string
  retry: NodeJS.Timeout | null
  asking: Promise<Answer> | null
  wantedUntil: number
}
type Wanted = Omit<LookUp, 'deadlineMs'>
type Answer = { list: ToolList } | { failure: string }

/** Knows nothing at first: a server is asked when a session's binding is looked up. */
export function createDiscovery({ store, mcp, specFor, onMoved, log }: DiscoveryDeps): Discovery {
  const watches = new Map<string, Watch>()
  /** The newest watch of each connector */
  const latest = new Map<string, Watch>()
  const listeners = new Set<(connector: Connector) => void>()

  function watchOf(connector: Connector): Watch {
    const spec = specFor(connector)
    if (watches.size > MOST_WATCHED) forget(({ wantedUntil }) => wantedUntil < performance.now())
    const wantedUntil = performance.now() + INTEREST_MS
    const known = watches.get(spec.key)
    if (known) return Object.assign(known, { connector, spec, wantedUntil })
    const none = { list: null, failure: null, failures: 0, caughtUp: '', retry: null, asking: null }
    const watch: Watch = { connector, spec, wantedUntil, ...none }
    watches.set(spec.key, watch)
    latest.set(connector.id, watch)
    return watch
  }

  function forget(isOver: (watch: Watch) => boolean): void {
    for (const [key, watch] of watches) {
      if (!isOver(watch)) continue
      if (watch.retry) clearTimeout(watch.retry)
      watches.delete(key)
      if (latest.get(watch.connector.id) === watch) latest.delete(watch.connector.id)
    }
  }

  /** The last list of a server that is not known to be away. */
  const usable = ({ key }: McpServerSpec): ToolList | null =>
    DOWN.has(mcp.status(key).state) ? null : mcp.cached(key)
  const isRecent = (list: ToolList): boolean => performance.now() < list.fresh_until

  /** A change was announced, or another replica has listed newer tools, which this list would take away again. */
  function isOutdated({ connector, spec: { key }, caughtUp }: Watch, seen: Wanted['seen']): boolean {
    const list = mcp.cached(key)
    const shown = seen?.get(connector.id) ?? ''
    return (list !== null && dateOf(list) < shown && caughtUp < shown) || mcp.isOutdated(key)
  }

  /** One attempt at a time for a server; who comes meanwhile shares it, unless they want it newer. */
  function ask(watch: Watch, { refresh = false, insists = false, seen }: Wanted = {}): Promise<Answer> {
    if (watch.asking && !refresh) return watch.asking
    const { spec, connector, failure } = watch
    // After a failure the door's own list is only a memory, however fresh.
    const isNewer = refresh || insists || failure !== null || isOutdated(watch, seen)
    if (watch.retry) clearTimeout(watch.retry)
    watch.retry = null
    // The attempt itself may take longer than callers wait: a server that always does joins later.
    const asking = mcp.list(spec, { timeoutMs: ATTEMPT_MS, refresh: isNewer, insists }).then(
      (list) => {
        const shown = seen?.get(connector.id) ?? ''
        if (isNewer && watch.caughtUp < shown) watch.caughtUp = shown
        return noteList(watch, list)
      },
      (thrown: unknown) => noteFailure(watch, thrown),
    )
    watch.asking = asking
    const budgetMs = connectBudgetMs(connector)
    // One that is there and takes its time over a new list is not away.
    const tell = () => void (watch.list ?? noteAway(watch, new Error(`not ready within ${budgetMs} ms`)))
    const late = setTimeout(tell, budgetMs)
    late.unref()
    void asking.finally(() => {
      clearTimeout(late)
      if (watch.asking === asking) watch.asking = null
    })
    return asking
  }

  async function noteList(watch: Watch, list: ToolList): Promise<Answer> {
    const { list: before, connector, failure } = watch
    Object.assign(watch, { failure: null, failures: 0, list })
    const isNew = before?.hash !== list.hash && (await remember(watch, before, list))
    if (isNew) onMoved?.(connector, before && namesOf(before), namesOf(list))
    if (isNew || failure !== null) for (const tell of listeners) tell(connector)
    return { list }
  }

  function noteFailure(watch: Watch, thrown: unknown): Answer {
    const wait = Math.min(RETRY_MS.first * 2 ** watch.failures++, RETRY_MS.last)
    const asked = thrown instanceof McpError ? (thrown.retryAfterMs ?? 0) : 0
    // Forgotten meanwhile: its connector was changed or deleted, or this is closed.
    const isWatched = watches.get(watch.spec.key) === watch
    if (isWatched && !watch.retry) {
      watch.retry = setTimeout(() => askAgain(watch), Math.max(wait, Math.min(asked, RETRY_MS.last)))
      watch.retry.unref()
    }
    return noteAway(watch, thrown)
  }

  function noteAway(watch: Watch, thrown: unknown): Answer {
    const isNews = watch.failure === null && watch.list !== null
    const failure = inWords(watch.connector, thrown)
    watch.failure = failure
    if (isNews) for (const tell of listeners) tell(watch.connector)
    return { failure }
  }

  /** Only while a session has use for it: a server that nobody wants is left alone. */
  function askAgain(watch: Watch): void {
    watch.retry = null
    if (performance.now() < watch.wantedUntil) void ask(watch)
  }

  async function lookUpOne(binding: Asked, { deadlineMs, ...wanted }: LookUp): Promise<ListedServer> {
    const { connector } = binding
    const watch = watchOf(connector)
    const { spec } = watch
    mcp.interest(spec, INTEREST_MS)
    const ms = deadlineMs === 'budget' ? connectBudgetMs(connector) + SLACK_MS : deadlineMs
    const came = await within(ms, reuse(watch, wanted) ?? attempt(watch, ms, wanted))
    const answer = came ?? (watch.failure === null ? null : { failure: watch.failure })
    if (!answer || 'failure' in answer) {
      const older = await lastList({ store, mcp }, spec.key)
      if (answer) return serverWith(binding, older, 'away', answer.failure)
      return serverWith(binding, older, 'pending', `${connector.name} is not ready yet`)
    }
    const mark = usable(spec)?.hash === answer.list.hash ? markOf(binding) : null
    return { ...serverWith(binding, answer.list, 'live', null), mark }
  }

  function markOf({ connector, alias }: Bound): string | null {
    const watch = latest.get(connector.id)
    const isSame = watch?.connector.config_revision === connector.config_revision
    const list = watch && isSame ? usable(watch.spec) : null
    const isNow = list && watch?.failure === null && isRecent(list) && !mcp.isOutdated(watch.spec.key)
    return isNow ? `${watch.spec.key} ${alias ?? ''} ${connector.updated_at} ${list.hash}` : null
  }

  /** A list that is there, at once, unless the last attempt to get it failed; an old one is asked for again behind it. */
  function reuse(watch: Watch, { refresh = false, seen }: Wanted): Promise<Answer> | null {
    const isOld = refresh || watch.failure !== null || isOutdated(watch, seen)
    const list = isOld ? null : usable(watch.spec)
    if (!list) return null
    if (!isRecent(list)) void ask(watch, { refresh: true })
    // It came by another way, at start or by a connector's test: nobody was told of it, and no cold start has it.
    if (watch.list?.hash !== list.hash) void noteList(watch, list)
    return Promise.resolve({ list })
  }

  /** Who cannot wait for a whole attempt is told how the last one ended; the next one comes soon, or is under way. */
  function attempt(watch: Watch, deadlineMs: number, wanted: Wanted): Promise<Answer> {
    const { failure, connector, retry, asking } = watch
    if (failure !== null && (retry || asking) && deadlineMs < connectBudgetMs(connector)) {
      return Promise.resolve({ failure })
    }
    return ask(watch, wanted)
  }

  /**
   * Keeps the list for a cold start. False when the store had this very list: another replica, or this one
   * before its start, told the sessions.
   */
  async function remember(
    { connector, spec }: Watch,
    before: ToolList | null,
    list: ToolList,
  ): Promise<boolean> {
    try {
      const stored = before ?? ((await store.connectors.loadList(spec.key)) as ToolList | null)
      if (stored?.hash === list.hash) return false
      // For how long it is fresh is this process's own time.
      const { fresh_until: _, ...kept } = list
      await store.connectors.saveList(spec.key, connector.id, kept)
    } catch (err) {
      log.warn({ err, connector: connector.name }, 'tool list was not kept')
    }
    return true
  }

  const unsubscribe = mcp.onListChanged((key) => {
    const watch = watches.get(key)
    // Otherwise one that announces often would never be let go, where its connector was changed elsewhere.
    if (watch && performance.now() < watch.wantedUntil) void ask(watch, { refresh: true })
  })

  /** A server whose secret cannot be opened, say, is away like any other; the rest goes on. */
  async function safely(binding: Asked, options: LookUp): Promise<ListedServer> {
    try {
      return await lookUpOne(binding, options)
    } catch (thrown) {
      const { name } = binding.connector
      log.warn({ err: thrown, connector: name }, 'server was not asked')
      return serverWith(binding, null, 'away', `${name} is not available: it could not be asked`)
    }
  }

  return {
    lookUp: (bindings, options) => Promise.all(bindings.map((binding) => safely(binding, options))),
    async announced(bindings, deadlineMs) {
      const watched = bindings.map(({ connector }) => latest.get(connector.id))
      const asked = watched.map(async (watch) => {
        if (watch && mcp.isOutdated(watch.spec.key)) await attempt(watch, deadlineMs, {})
      })
      await within(deadlineMs, Promise.all(asked))
    },
    forget: (id) => forget(({ connector }) => connector.id === id),
    lastSeen(id, tool) {
      const list = mcp.cached(latest.get(id)?.spec.key ?? '')
      return list?.tools.some(({ name }) => name === tool) ? dateOf(list) : null
    },
    isOutdated: (id) => mcp.isOutdated(latest.get(id)?.spec.key ?? ''),
    marks: (bindings) => bindings.map(markOf),
    onArrival: (fn) => void listeners.add(fn),
    close() {
      unsubscribe()
      forget(() => true)
    },
  }
}

/** The newest list that is known of, by this process or by another replica; null: nobody saw one. */
export async function lastList(
  { store, mcp }: { store: Pick<Store, 'connectors'>; mcp: Pick<Mcp, 'cached'> },
  key: string,
): Promise<ToolList | null> {
  const stored = (await store.connectors.loadList(key)) as ToolList | null
  const own = mcp.cached(key)
  return own && stored && own.fetched_at < stored.fetched_at ? stored : (own ?? stored)
}

/** A server with the last list that is known of it; null: none is. */
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
  // One that was stored by an older version has none.
  left_out: list?.left_out ?? [],
  state,
  reason,
  mark: null,
})

const dateOf = ({ fetched_at }: ToolList): string => new Date(fetched_at).toISOString()

const namesOf = (list: ToolList): string[] => list.tools.map(({ name }) => name)

function inWords(connector: Connector, thrown: unknown): string {
  const why = thrown instanceof Error ? thrown.message : String(thrown)
  return `${connector.name} is not available: ${why}`.slice(0, 500)
}
