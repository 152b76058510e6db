/**
 * One server as its sessions see it: asked for its list, one attempt at a time, and again in the background while it is
 * away. Whether the server may be asked now, and how patiently, is remembered at the MCP door (src/mcp/health.ts); this
 * file has what callers are told meanwhile.
 */
import type { Logger } from 'pino'
import {
  ATTEMPT_MS,
  connectBudgetMs,
  type Mcp,
  McpError,
  type McpServerSpec,
  type ToolList,
} from '../mcp/contract.ts'
import type { Connector, Store } from '../store/store.ts'

export interface WatchDeps {
  store: Pick<Store, 'connectors'>
  mcp: Pick<Mcp, 'list' | 'cached' | 'status' | 'isOutdated' | 'interest'>
  /** The list came for the first time (`before` is null), or changed */
  onMoved?(connector: Connector, before: readonly string[] | null, after: readonly string[]): void
  /** The server came or went away, or its list changed: the sessions that bind it have something to take over */
  onNews(connector: Connector): void
  log: Logger
}

/** By connector: when some replica listed the tools that are in the session's registry. An earlier list is old */
export type Seen = ReadonlyMap<string, string>

/** What a caller wants of a server's list. */
export interface Wanted {
  /** Asks even if a list is fresh */
  refresh?: boolean
  /** A person wants the list: if there is none, the server is asked even during a back-off */
  insists?: boolean
  seen?: Seen
}
type Answer = { list: ToolList } | { failure: string }
/** What is remembered of a list; the door keeps the list itself, as long as there is room. */
interface KnownList {
  hash: string
  names: string[]
}

/** In these states the server is away. */
const AWAY: ReadonlySet<string> = new Set(['down', 'auth_required'])
/** In these, the last list is a memory, not the present. */
const DOWN: ReadonlySet<string> = new Set([...AWAY, 'quarantined'])
/** How long after its last use a server is followed: its notifications, and attempts to reach it again. */
const INTEREST_MS = 10 * 60_000
/** Between attempts to reach a server again: doubled from the first to the last. */
const RETRY_MS = { first: 1_000, last: 60_000 }

/** One connection key, until it is stopped: its connector was changed or deleted, or nobody has used it for long. */
export class Watch {
  connector: Connector
  spec: McpServerSpec
  /** Why the last attempt failed, in words, or that it takes longer than callers wait; null after a success */
  failure: string | null = null
  /** When `failure` was noted, RFC 3339 */
  #failedAt = ''
  readonly #deps: WatchDeps
  /** The last list that came from the server */
  #list: KnownList | null = null
  #failures = 0
  /**
   * The newest date in `seen` that a list was fetched for. For each date it is fetched only once: if the clock here is
   * behind, no list ever seems that new
   */
  #caughtUp = ''
  #retry: NodeJS.Timeout | null = null
  #asking: Promise<Answer> | null = null
  #wantedUntil = performance.now() + INTEREST_MS
  /** Nobody followed the server for a while: its list may have changed unheard, however long it was to be fresh */
  #isUnheard = false
  #isStopped = false

  constructor(connector: Connector, spec: McpServerSpec, deps: WatchDeps) {
    this.connector = connector
    this.spec = spec
    this.#deps = deps
    // Listed at the start, say.
    const list = deps.mcp.cached(spec.key)
    this.#isUnheard = list !== null && Date.now() - list.fetched_at > INTEREST_MS
  }

  /** A session uses the server, and brought these two: they may have been read anew. */
  use(connector: Connector, spec: McpServerSpec): void {
    this.connector = connector
    this.spec = spec
    this.#isUnheard ||= !this.isWanted()
    this.#wantedUntil = performance.now() + INTEREST_MS
    this.#deps.mcp.interest(spec, INTEREST_MS)
  }

  isWanted(): boolean {
    return performance.now() < this.#wantedUntil
  }

  /** A list that is here, at once, unless the last attempt to get it failed; else the outcome of an attempt. */
  async answer(wanted: Wanted, deadlineMs: number): Promise<Answer> {
    const list = this.#usable(wanted)
    if (list) return { list }
    const { failure } = this
    // A caller that cannot wait for a whole attempt is told how the last one ended; the next comes soon, or is under
    // way.
    const isSoon = (this.#retry || this.#asking) && deadlineMs < connectBudgetMs(this.connector)
    return failure !== null && isSoon ? { failure } : this.#ask(wanted)
  }

  /**
   * The server has announced another list, may have done so unheard, or was away for a call. It is asked only while
   * somebody uses it, else one that announces often would never be let go; and not in addition to the attempts to reach
   * it again.
   */
  noteChange(): void {
    const isTried = this.#retry !== null && this.#isAway()
    if (this.isWanted() && !isTried) void this.#ask({ refresh: true }, true)
  }

  /**
   * One attempt at a time; callers that come meanwhile share it, unless they want a refresh. `isLenient`: nobody waits
   * for the answer, and a server that was there a moment ago gets a second attempt before it counts as away.
   */
  #ask(wanted: Wanted, isLenient = false): Promise<Answer> {
    const { refresh = false, insists = false, seen } = wanted
    if (this.#asking && !refresh) return this.#asking
    // After a failure the door's own list is only a memory, however fresh.
    const hasFailed = this.failure !== null || this.#failures > 0 || this.#isAway()
    const isMemory = hasFailed || this.#deps.mcp.isOutdated(this.spec.key)
    const isNewer = refresh || insists || isMemory || this.#isSuperseded(seen)
    if (isNewer) this.#isUnheard = false
    this.#dropRetry()
    // The attempt itself may take longer than callers wait: a server that always does joins later.
    const options = { timeoutMs: ATTEMPT_MS, refresh: isNewer, insists }
    const asking = this.#deps.mcp.list(this.spec, options).then(
      (list) => {
        if (isNewer) this.#catchUp(seen)
        return this.#noteList(list)
      },
      (thrown: unknown) => this.#noteFailure(thrown, isLenient),
    )
    this.#asking = asking
    const budgetMs = connectBudgetMs(this.connector)
    // A server that is there and takes its time over a new list is not away.
    const noteLate = () => void (this.#list ?? this.#noteAway(new Error(`not ready within ${budgetMs} ms`)))
    const late = setTimeout(noteLate, budgetMs)
    late.unref()
    void asking.finally(() => {
      clearTimeout(late)
      if (this.#asking === asking) this.#asking = null
    })
    return asking
  }

  /** The last list, if there is no reason to look the server up again: it grows old, or will not be followed for long. */
  current(): ToolList | null {
    const list = this.#present()
    const isFollowed = performance.now() < this.#wantedUntil - INTEREST_MS / 2
    return list && isFollowed && isRecent(list) ? list : null
  }

  /** Another replica has had a list since the last attempt failed here. */
  isFoundSince(seen: Seen | undefined): boolean {
    return this.#failedAt < (seen?.get(this.connector.id) ?? '')
  }

  /** A newer list is on its way: announced, or asked for while there is none and no failure is known. */
  isExpected(): boolean {
    const isFirst = this.#asking !== null && this.failure === null && this.#present() === null
    return isFirst || this.#deps.mcp.isOutdated(this.spec.key)
  }

  /** The door has found that the server is away. */
  #isAway(): boolean {
    return AWAY.has(this.#deps.mcp.status(this.spec.key).state)
  }

  stop(): void {
    this.#isStopped = true
    this.#dropRetry()
  }

  /** The last list, if it may be shown; if it is merely old or unheard, it is asked for again in the background. */
  #usable({ refresh = false, seen }: Wanted): ToolList | null {
    const list = refresh || this.#isSuperseded(seen) ? null : this.#present()
    if (!list) return null
    // Not once more for each turn that comes while the server is slow: each attempt that fails makes the pauses longer.
    if ((this.#isUnheard || !isRecent(list)) && !this.#asking) void this.#ask({ refresh: true }, true)
    // The list was fetched at the start, or by a connector's test: no session has heard of it, and the store does not
    // have it.
    if (this.#list?.hash !== list.hash) void this.#noteList(list)
    return list
  }

  /** The last list of a server that is not known to be away, and has announced no other. */
  #present(): ToolList | null {
    return this.failure === null ? presentList(this.#deps.mcp, this.spec.key) : null
  }

  /** Another replica has listed newer tools, which the older list here would remove again. */
  #isSuperseded(seen: Seen | undefined): boolean {
    const list = this.#deps.mcp.cached(this.spec.key)
    const shown = seen?.get(this.connector.id) ?? ''
    return list !== null && dateOf(list) < shown && this.#caughtUp < shown
  }

  #catchUp(seen: Seen | undefined): void {
    const shown = seen?.get(this.connector.id) ?? ''
    if (this.#caughtUp < shown) this.#caughtUp = shown
  }

  async #noteList(list: ToolList): Promise<Answer> {
    const { onMoved, onNews } = this.#deps
    const [before, connector, failure] = [this.#list, this.connector, this.failure]
    this.failure = null
    this.#failures = 0
    this.#list = { hash: list.hash, names: namesOf(list) }
    const isNew = before?.hash !== list.hash && (await this.#keep(before, list))
    if (isNew) onMoved?.(connector, before?.names ?? null, namesOf(list))
    if (isNew || failure !== null) onNews(connector)
    return { list }
  }

  #noteFailure(thrown: unknown, isLenient: boolean): Answer {
    // A retry is set: an attempt that was under way beside this one has failed already, and both are one failure.
    if (!this.#isStopped && !this.#retry) {
      const wait = Math.min(RETRY_MS.first * 2 ** this.#failures++, RETRY_MS.last)
      const asked = thrown instanceof McpError ? (thrown.retryAfterMs ?? 0) : 0
      this.#retry = setTimeout(() => this.#askAgain(), Math.max(wait, Math.min(asked, RETRY_MS.last)))
      this.#retry.unref()
    }
    const isFirst = this.#failures <= 1 && this.failure === null
    return isLenient && isFirst ? { failure: inWords(thrown) } : this.#noteAway(thrown)
  }

  #noteAway(thrown: unknown): Answer {
    const isNews = this.failure === null && this.#list !== null
    const failure = inWords(thrown)
    this.failure = failure
    this.#failedAt = new Date().toISOString()
    if (isNews) this.#deps.onNews(this.connector)
    return { failure }
  }

  #askAgain(): void {
    this.#retry = null
    if (this.isWanted()) void this.#ask({})
  }

  #dropRetry(): void {
    if (this.#retry) clearTimeout(this.#retry)
    this.#retry = null
  }

  /**
   * Keeps the list for a cold start. False when the store had this very list: another replica, or this one before a
   * restart, has told the sessions.
   */
  async #keep(before: KnownList | null, list: ToolList): Promise<boolean> {
    const { store, log } = this.#deps
    const { id, name } = this.connector
    const { key } = this.spec
    try {
      const stored = before ?? ((await store.connectors.loadList(key)) as Pick<ToolList, 'hash'> | null)
      if (stored?.hash === list.hash) return false
      // How long the list is fresh is counted by this process's own clock.
      const { fresh_until: _, ...kept } = list
      await store.connectors.saveList(key, id, kept)
    } catch (err) {
      log.warn({ err, connector: name }, 'tool list was not kept')
    }
    return true
  }
}

const isRecent = (list: ToolList): boolean => performance.now() < list.fresh_until

/** The last list of a server, unless the door knows that the server is away or has another list by now. */
export const presentList = (
  mcp: Pick<Mcp, 'cached' | 'status' | 'isOutdated'>,
  key: string,
): ToolList | null => (DOWN.has(mcp.status(key).state) || mcp.isOutdated(key) ? null : mcp.cached(key))

/** When the server sent the list, RFC 3339. */
export const dateOf = ({ fetched_at }: ToolList): string => new Date(fetched_at).toISOString()

const namesOf = (list: ToolList): string[] => list.tools.map(({ name }) => name)

/** The failure's words already name the server. */
function inWords(thrown: unknown): string {
  const why = thrown instanceof Error ? thrown.message : String(thrown)
  return `The server is not available: ${why}`.slice(0, 500)
}
