/** Keeps sessions' registries up to date with their servers' lists, many at a time (batches.ts). */
import type { Logger } from 'pino'
import { BoundedMap } from '../bounded-map.ts'
import type { Binding, RegistryRow, RegistryTool, Store } from '../store/store.ts'
import { createBatches } from './batches.ts'
import type { Builtin } from './builtin.ts'
import type { Bound, Discovery, ListedServer } from './discovery.ts'
import { createFirstUse } from './first-use.ts'
import type { Change, Ground, Next, Registries } from './registries.ts'
import { type KnownServer, nextRegistry } from './registry.ts'
import type { ToolboxPolicy } from './toolbox.ts'
import type { Seen } from './watch.ts'

/**
 * Works with what is known now. No verb that writes waits for a server, since others cannot write the registry
 * meanwhile.
 */
export interface Upkeep {
  /** One session by itself. Throws session_not_found. */
  update(session: string): Promise<Change>
  /**
   * For a reader of a session whose registry was not made here: takes over what was bound or configured since. No
   * server is asked, so that none is found to be away. Throws session_not_found.
   */
  recall(session: string): Promise<Change>
  /** Takes over what is known now, for a turn that waits: before sessions that merely follow. */
  bringUp(session: string): Promise<void>
  /** The same without urgency; `unlessCurrent` leaves out sessions that are up to date by then. Never rejects. */
  follow(sessions: readonly string[], options?: { unlessCurrent: boolean }): Promise<void>
  /**
   * Whether the session's registry is what its servers list now. `bindings`: the session's, if they were read a moment
   * ago.
   */
  standing(session: string, bindings?: readonly Bound[]): Standing
  /** Waits, at most `deadlineMs`, for lists of its servers that are on their way. */
  awaitExpected(session: string, deadlineMs: number): Promise<void>
}

/** How a registry stands to the servers that it was last made of; the first of these that holds. */
type Standing =
  /** It was not made here */
  | 'unknown'
  /** The session binds other servers now, or they are configured otherwise */
  | 'rebound'
  /** A server has another list by now, has announced one, is being asked for its first, or was changed just now */
  | 'moved'
  /** All servers are there, with the lists that the registry was made of */
  | 'current'
  /** A server is away, or its list has grown old: whether the list has moved shows once the server is asked */
  | 'doubtful'

export interface UpkeepDeps {
  store: Pick<Store, 'connectors'>
  discovery: Pick<Discovery, 'lookUp' | 'heard' | 'awaitExpected' | 'marks' | 'isExpected'>
  registries: Pick<Registries, 'change' | 'changeTogether' | 'weightOf'>
  builtins: readonly Builtin[]
  policy: Pick<ToolboxPolicy, 'admit'>
  log: Logger
}

/** What a registry was last made of: the bindings, and the mark of each one's list (Discovery.marks). */
interface MadeOf {
  bound: Bound[]
  marks: (string | null)[]
}

/** Most bindings of all sessions kept here, each session counted as one more: some 40 MB. */
const MOST_KNOWN = 100_000

export function createUpkeep(deps: UpkeepDeps): Upkeep {
  const { store, discovery, registries, builtins, policy, log } = deps
  /** What each session's registry was last made of, so that a turn that starts without news writes and asks nothing */
  const madeOf = new BoundedMap<MadeOf>(MOST_KNOWN, ({ bound }) => 1 + bound.length)
  const pinned = createFirstUse(store)
  const batches = createBatches({
    weightOf: registries.weightOf,
    isCurrent: (session) => standing(session) === 'current',
    together: (sessions) => registries.changeTogether(sessions, remake),
    alone: update,
  })

  /** The next registry, made from the bound servers' lists as they are now. */
  async function remake(ground: Ground): Promise<Next> {
    const { row, bindings } = ground
    const servers = await discovery.lookUp(bindings, { deadlineMs: 0, seen: datesOf(row.tools) })
    const made: MadeOf = { bound: bindings.map(boundIn), marks: servers.map(({ mark }) => mark) }
    return { ...(await nextOf(ground, servers)), onStored: () => madeOf.put(row.session_id, made) }
  }

  const recalled = (ground: Ground): Promise<Next> =>
    nextOf(ground, discovery.heard(ground.bindings, datesOf(ground.row.tools)))

  async function nextOf({ row, bindings, pins }: Ground, servers: readonly ListedServer[]): Promise<Next> {
    const known: KnownServer[] = []
    // One after the other: each writes up to a whole list.
    for (const [i, server] of servers.entries()) {
      const { connector, tools } = server
      const off = bindings[i]?.off ?? []
      const refusalOf = (tool: string) => {
        const admitted = policy.admit(connector, tool)
        return admitted.ok ? null : admitted.reason
      }
      known.push({ ...server, off, pins: await pinned(connector.id, tools, pins), refusalOf })
    }
    const next = await nextRegistry(row.tools, known, builtins, new Date().toISOString())
    await keepOff(row, next.removed, bindings)
    return next
  }

  /**
   * Former versions noted only in the registry that a tool is off: before the tool leaves it, its binding takes the
   * note over.
   */
  async function keepOff(
    { session_id, tools }: RegistryRow,
    removed: string[],
    bindings: readonly Binding[],
  ) {
    for (const { canonical_name, connector_id, mcp_tool_name: name, enabled } of tools) {
      const from = bindings.find(({ connector }) => connector.id === connector_id)
      if (enabled || !from || name === null || from.off.includes(name)) continue
      if (removed.includes(canonical_name))
        await store.connectors.switchTool(session_id, from.connector.id, name, false)
    }
  }

  function update(session: string): Promise<Change> {
    return registries.change(session, remake)
  }

  function standing(session: string, bindings?: readonly Bound[]): Standing {
    const last = madeOf.get(session)
    if (!last) return 'unknown'
    const { bound, marks } = last
    if (bindings && JSON.stringify(bound) !== JSON.stringify(bindings.map(boundIn))) return 'rebound'
    const now = discovery.marks(bound)
    const isOther = now.some((mark, i) => mark !== null && mark !== marks[i])
    const isExpected = bound.some(({ connector: { id } }) => discovery.isExpected(id))
    // A look-up that began before a change may end after it, and show the servers as they were.
    if (isOther || isExpected || batches.isDue(session)) return 'moved'
    return now.includes(null) ? 'doubtful' : 'current'
  }

  return {
    update,
    recall: (session) => registries.change(session, recalled),
    bringUp: (session) => batches.join(session, { isUrgent: true }),
    async follow(sessions, options) {
      const all = await Promise.allSettled(sessions.map((id) => batches.join(id, options)))
      const failed = all.filter((one) => one.status === 'rejected')
      const [first] = failed
      // A store that is away fails all of them alike.
      if (first)
        log.warn({ err: first.reason, sessions: failed.length }, 'tools could not be brought up to date')
    },
    standing,
    awaitExpected: (session, deadlineMs) =>
      discovery.awaitExpected(madeOf.get(session)?.bound ?? [], deadlineMs),
  }
}

const boundIn = ({ connector: { id, config_revision, updated_at }, alias }: Bound): Bound => ({
  connector: { id, config_revision, updated_at },
  alias,
})

/** When each server listed the newest of these tools. */
export function datesOf(tools: readonly RegistryTool[]): Seen {
  const seen = new Map<string, string>()
  for (const { connector_id, last_seen_at } of tools) {
    if (connector_id === null || last_seen_at === null) continue
    if (last_seen_at > (seen.get(connector_id) ?? '')) seen.set(connector_id, last_seen_at)
  }
  return seen
}
