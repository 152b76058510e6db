/**
 * Keeps sessions' registries up with what their servers list. What many sessions have to take over at once is
 * read and written together: while one lot is under way the next gathers, sessions whose turn waits first.
 */
import type { Logger } from 'pino'
import { BoundedMap } from '../bounded-map.ts'
import type { McpTool } from '../mcp/contract.ts'
import type { Binding, RegistryRow, RegistryTool, Store } from '../store/store.ts'
import type { Builtin } from './builtin.ts'
import { hashOf } from './definition.ts'
import type { Bound, Discovery, ListedServer } from './discovery.ts'
import type { Change, Ground, Next, Pins, Registries } from './registries.ts'
import { type KnownServer, nextRegistry } from './registry.ts'
import type { ToolboxPolicy } from './toolbox.ts'

/** What is known now: no verb waits for a server, since whoever writes a registry keeps others from it. */
interface Upkeep {
  /** One session by itself. Throws session_not_found. */
  update(session: string): Promise<Change>
  /** Takes over what is known now, for a turn that waits: before all that merely follow. */
  bringUp(session: string): Promise<void>
  /** The same without haste, for those that are still `behind` when it is their turn, by default for all. Never rejects. */
  follow(sessions: readonly string[], behind?: (session: string) => boolean): Promise<void>
  /** Whether its registry is what its servers list now. `bindings`: its own, where they were read a moment ago. */
  standing(session: string, bindings?: readonly Bound[]): Standing
  /** Waits, no longer than told, for lists of its servers that are on their way. */
  announced(session: string, deadlineMs: number): Promise<void>
}

/** How a registry stands to the servers that it was last made of; the first that holds. */
type Standing =
  /** It was not made here */
  | 'unknown'
  /** They are others than the session binds, or were configured otherwise */
  | 'rebound'
  /** One of them has another list since, has announced one, or is being asked for its first */
  | 'moved'
  /** All are there, with the lists that it was made of */
  | 'current'
  /** One is away, or its list has grown old: whether it has moved shows once it is asked */
  | 'doubtful'

export interface UpkeepDeps {
  store: Pick<Store, 'connectors'>
  discovery: Pick<Discovery, 'lookUp' | 'announced' | 'marks' | 'isExpected'>
  registries: Pick<Registries, 'change' | 'changeTogether' | 'weightOf'>
  builtins: readonly Builtin[]
  policy: Pick<ToolboxPolicy, 'admit'>
  log: Logger
}

/** What a registry was last made of. */
interface Look {
  bound: Bound[]
  marks: (string | null)[]
}
interface Wish {
  promise: Promise<void>
  done(failure?: unknown): void
  /** A turn waits for it */
  isUrgent: boolean
  /** Whether it is wanted after all */
  isStill(): boolean
}

/** Servers of all sessions whose last look is known, each session one more: some 40 MB. */
const MOST_LOOKED_AT = 100_000
const always = () => true
/** Of one lot: more would keep the store, and the event loop, from everybody else. */
const TOGETHER = { sessions: 50, tools: 1_000 }

export function createUpkeep({ store, discovery, registries, log, ...rules }: UpkeepDeps): Upkeep {
  /** What each session's registry was last made of, so that an idle turn start writes and asks nothing */
  const looks = new BoundedMap<Look>(MOST_LOOKED_AT, ({ bound }) => 1 + bound.length)
  const wishes = new Map<string, Wish>()
  /** First uses that are being written, by list: sessions share lists */
  const pinning = new Map<readonly McpTool[], Promise<ReadonlyMap<string, string>>>()
  let isBusy = false

  /** The registry that the bound servers' lists make of it now. */
  async function look({ row, bindings, pins }: Ground): Promise<Next> {
    const servers = await discovery.lookUp(bindings, { deadlineMs: 0, seen: datesOf(row.tools) })
    const pinned = await Promise.all(
      servers.map((server, i) => withPins(server, pins, bindings[i]?.off ?? [])),
    )
    const made: Look = {
      bound: bindings.map(boundIn),
      marks: servers.map(({ mark }) => mark),
    }
    const next = nextRegistry(row.tools, pinned, rules.builtins, rules.policy, new Date().toISOString())
    await keepOff(row, next.removed, bindings)
    return { ...next, onStored: () => looks.put(row.session_id, made) }
  }

  /** Former versions noted with the tool alone that it is off: before it leaves, its binding is told. */
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

  /** Trust on first use: what a model is to get for the first time is kept before it can. */
  async function withPins(server: ListedServer, pins: Pins, off: readonly string[]): Promise<KnownServer> {
    const { connector, tools } = server
    const known = pins.get(connector.id) ?? new Map<string, string>()
    if (!tools || tools.every(({ name }) => known.has(name))) return { ...server, off, pins: known }
    const pinned = pinning.get(tools) ?? pinFirst(connector.id, tools, known)
    pinning.set(tools, pinned)
    return { ...server, off, pins: await pinned.finally(() => pinning.delete(tools)) }
  }

  async function pinFirst(
    connector: string,
    tools: readonly McpTool[],
    known: ReadonlyMap<string, string>,
  ): Promise<ReadonlyMap<string, string>> {
    const first = tools
      .filter(({ name }) => !known.has(name))
      .map((tool) => ({ tool: tool.name, hash: hashOf(tool), definition: tool }))
    const kept = await store.connectors.pinFirst(connector, first)
    // Another's first use may have come before this one, with another list.
    const all = kept.length === first.length ? first : await store.connectors.pins(connector)
    return new Map([...known, ...all.map(({ tool, hash }) => [tool, hash] as const)])
  }

  const update = (session: string): Promise<Change> => registries.change(session, look)

  function wish(session: string, isUrgent: boolean, isStill: Wish['isStill'] = always): Promise<void> {
    const known = wishes.get(session)
    if (known) {
      known.isUrgent ||= isUrgent
      if (isStill === always) known.isStill = always
      return known.promise
    }
    let done: Wish['done'] = () => {}
    const promise = new Promise<void>((resolve, reject) => {
      done = (failure) => (failure === undefined ? resolve() : reject(failure))
    })
    wishes.set(session, { promise, done, isUrgent, isStill })
    if (!isBusy) void work()
    return promise
  }

  /** One lot after the other: they would only wait for each other in the store. */
  async function work(): Promise<void> {
    isBusy = true
    // What is wished for in the same moment goes together.
    await new Promise(setImmediate)
    for (let lot = take(); lot.size > 0; lot = take()) await together(lot)
    isBusy = false
  }

  /** The wishes of as many sessions as may go together, the urgent ones first. */
  function take(): Map<string, Wish> {
    const lot = new Map<string, Wish>()
    let tools = 0
    const all = [...wishes]
    const urgent = all.filter(([, { isUrgent }]) => isUrgent)
    const others = all.filter(([, { isUrgent }]) => !isUrgent)
    for (const [session, one] of [...urgent, ...others]) {
      if (one.isStill()) {
        tools += registries.weightOf(session)
        if (lot.size === TOGETHER.sessions || (lot.size > 0 && tools > TOGETHER.tools)) break
        lot.set(session, one)
      } else one.done()
      wishes.delete(session)
    }
    return lot
  }

  async function together(lot: ReadonlyMap<string, Wish>): Promise<void> {
    const sessions = [...lot.keys()]
    const changed = registries.changeTogether(sessions, look)
    // One that cannot be changed must not keep the others from it.
    const late = new Set(await changed.catch(() => sessions))
    for (const [session, { done }] of lot) {
      if (late.has(session)) update(session).then(() => done(), done)
      else done()
    }
  }

  return {
    update,
    bringUp: (session) => wish(session, true),
    async follow(sessions, behind) {
      const all = await Promise.allSettled(
        sessions.map((id) => wish(id, false, behind && (() => behind(id)))),
      )
      const failed = all.filter((one) => one.status === 'rejected')
      const [first] = failed
      // A store that is away fails all of them alike.
      if (first)
        log.warn({ err: first.reason, sessions: failed.length }, 'tools could not be brought up to date')
    },
    standing(session, bindings) {
      const last = looks.get(session)
      if (!last) return 'unknown'
      const { bound, marks } = last
      if (bindings && JSON.stringify(bound) !== JSON.stringify(bindings.map(boundIn))) return 'rebound'
      const now = discovery.marks(bound)
      const isOther = now.some((mark, i) => mark !== null && mark !== marks[i])
      if (isOther || bound.some(({ connector: { id } }) => discovery.isExpected(id))) return 'moved'
      return now.includes(null) ? 'doubtful' : 'current'
    },
    announced: (session, deadlineMs) => discovery.announced(looks.get(session)?.bound ?? [], deadlineMs),
  }
}

const boundIn = ({ connector: { id, config_revision, updated_at }, alias }: Bound): Bound => ({
  connector: { id, config_revision, updated_at },
  alias,
})

/** When each server listed the newest of these tools. */
export function datesOf(tools: readonly RegistryTool[]): ReadonlyMap<string, string> {
  const seen = new Map<string, string>()
  for (const { connector_id, last_seen_at } of tools) {
    if (connector_id === null || last_seen_at === null) continue
    if (last_seen_at > (seen.get(connector_id) ?? '')) seen.set(connector_id, last_seen_at)
  }
  return seen
}
