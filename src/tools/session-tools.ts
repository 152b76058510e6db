/**
 * The tools of sessions as a live thing: binds and unbinds servers, switches tools, and follows what servers
 * announce. Below it:
 * - discovery.ts: what servers list; watch.ts is one of them
 * - registry.ts: what that makes of a registry (pure); registries.ts keeps and writes them, announced-revisions.ts has
 *   their order
 * - upkeep.ts: bringing registries up to date, many at a time (batches.ts); first-use.ts accepts what is seen first
 * - change-queue.ts: callers' changes in turn
 * - shown-registry.ts, overlay.ts: what callers see, and what a deployment's model sees
 */
import { connectorKey } from '../credentials/connector-secret.ts'
import { BatonError, invalid, isUnavailable } from '../errors.ts'
import { type Mcp, McpError, type McpServerSpec, type ToolList } from '../mcp/contract.ts'
import type { Apply, Caller, SessionTools, ToolsChange, ToolsMove } from '../ports.ts'
import type { Deployment } from '../provider.ts'
import type { Binding, Connector, RegistryRow, RegistryTool, Session, Store } from '../store/store.ts'
import type { Builtin } from './builtin.ts'
import { createChangeQueue } from './change-queue.ts'
import { hashOf } from './definition.ts'
import { type Asked, createDiscovery, type LookUp, lastList } from './discovery.ts'
import { type Overlay, overlayOf } from './overlay.ts'
import {
  type Change,
  createRegistries,
  type Ground,
  Overtaken,
  type Registries,
  type RegistriesDeps,
} from './registries.ts'
import { difference, hasMoved, switched } from './registry.ts'
import { declared, shownRegistry, type View } from './shown-registry.ts'
import type { ToolboxPolicy } from './toolbox.ts'
import { createUpkeep, datesOf } from './upkeep.ts'

interface SessionToolsDeps extends RegistriesDeps {
  store: Pick<Store, 'registry' | 'connectors'>
  mcp: Mcp
  specFor(connector: Connector): McpServerSpec
  builtins: readonly Builtin[]
  policy: Pick<ToolboxPolicy, 'admit'>
  /** What the session's provider has with its present credential */
  viewOf(session: Session, provider: string | null): Promise<View>
  /** All that there are */
  providers: readonly string[]
  /** When it takes effect; for `now`, restarts the step in flight and ends calls of what is `removed` */
  takeEffect(
    session: Session,
    move: ToolsMove,
    apply: Apply,
  ): Promise<Pick<ToolsChange, 'effective' | 'restarted_turn_id'>>
  /** A server's list came for the first time (`before` is null), or moved */
  onMoved?(connector: Connector, before: readonly string[] | null, after: readonly string[]): void
}

/** What the engine needs beside what routes call. */
export interface EngineTools
  extends SessionTools,
    Pick<
      Registries,
      'current' | 'newest' | 'keep' | 'keptRevision' | 'latestRevision' | 'noteRevision' | 'noteAnnounced'
    > {
  /**
   * Brings the session's registry up to date with what its servers list. It waits for them no longer than told, and for
   * callers' changes that are being written. What is known by then is written, however long the store takes. `bindings`:
   * the session's, where they were read a moment ago. Answers how long it waited for servers, in ms.
   */
  bringUpToDate(session: string, deadlineMs: number, bindings?: readonly Binding[]): Promise<number>
  /**
   * The registry for whoever looks at it. What this replica knows to be changed, or announced, is waited for, as a
   * turn would. Throws session_not_found.
   */
  present(session: string): Promise<RegistryRow>
  overlay(row: RegistryRow, deployment: Deployment): Overlay
  /** A list is on its way that the session's registry lacks, or a change is under way here. Costs nothing. */
  isBehind(session: string): boolean
  close(): Promise<void>
}

/**
 * Sessions that follow a server's announcement, a changed connector or an accepted definition at once; the others see
 * it at their next turn.
 */
export const FOLLOWERS = 1_000

/** Longest that a turn waits for servers of its session, all steps together (api.md "Session tools"). */
export const SERVER_WAIT_MS = 400

export function createSessionTools(deps: SessionToolsDeps): EngineTools {
  const { store, mcp, log } = deps
  const discovery = createDiscovery({
    ...deps,
    onNews: (connector) => void followers(connector, (id) => upkeep.standing(id) !== 'current'),
  })
  const registries = createRegistries(deps)
  const upkeep = createUpkeep({ ...deps, discovery, registries })
  const changes = createChangeQueue((session, move) => deps.takeEffect(session, move, 'now'))

  const sessionsOf = ({ id }: Connector) =>
    store.connectors.sessionsOf(id, FOLLOWERS).catch((err: unknown) => {
      log.warn({ err }, 'tool list was not followed')
      return []
    })
  const followers = async (connector: Connector, behind?: (session: string) => boolean) =>
    upkeep.follow(await sessionsOf(connector), behind)

  /** `off`: tools that stay, and may not be called any more. */
  async function finish(
    session: Session,
    { delta, before, row }: Change,
    apply: Apply,
    off: readonly string[] = [],
  ): Promise<ToolsChange> {
    const isMoved = hasMoved(delta)
    const { tools_revision, removed } = delta
    const move = { tools_revision, removed: [...removed, ...off], isMoved }
    const [effect, isKept] = await Promise.all([
      // Whether or not it moved: what was changed for the next step may be wanted now.
      apply === 'now' ? changes.applyNow(session, move) : deps.takeEffect(session, move, apply),
      isMoved ? isPrefixKept(session, before, row) : true,
    ])
    return { ...delta, ...effect, prompt_cache: isKept ? 'kept' : 'invalidated' }
  }

  async function isPrefixKept(session: Session, before: RegistryRow, after: RegistryRow): Promise<boolean> {
    const view = await deps.viewOf(session, null)
    return JSON.stringify(declared(before, view)) === JSON.stringify(declared(after, view))
  }

  /**
   * A caller's change: `work` makes it, and answers with the servers that it is about. Those are waited for,
   * as long as `wait` says; then the registry takes over what there is.
   */
  async function changeBy(
    session: Session,
    apply: Apply,
    wait: LookUp | null,
    work: (bindings: readonly Binding[]) => Promise<readonly Asked[]>,
  ): Promise<ToolsChange> {
    const [about, first] = await changes.take(session.id, async () => {
      const { bindings, row } = await registries.ground(session.id)
      return [await work(bindings), row.tools] as const
    })
    if (wait) {
      const servers = discovery.lookUp(about, { ...wait, seen: datesOf(first) })
      if (apply === 'now') changes.awaits(session.id, servers)
      await servers
    }
    const { before, row } = await changes.take(session.id, () => upkeep.update(session.id))
    const isOwn = (tool: RegistryTool) => about.some(({ connector }) => connector.id === tool.connector_id)
    // All that became of these servers' tools is told: a server's arrival may have written a part of it in between.
    const tools = [...before.tools.filter((tool) => !isOwn(tool)), ...first.filter(isOwn)]
    const delta = { tools_revision: row.revision, ...difference(tools, row.tools) }
    return finish(session, { before: { ...before, tools }, row, delta }, apply)
  }

  /** The list of a server that nobody has asked yet. */
  async function listed(connector: Connector): Promise<ToolList> {
    try {
      return await mcp.list(deps.specFor(connector))
    } catch (thrown) {
      if (!(thrown instanceof McpError)) throw thrown
      throw new BatonError('unavailable', thrown.message, { cause: thrown })
    }
  }

  async function connectorNamed(session: Session, idOrName: string): Promise<Connector> {
    const found = await store.connectors.find(session, idOrName)
    if (found) return found
    throw new BatonError('connector_not_found', `No connector ${idOrName} exists.`)
  }

  async function bindAs(session: Session, found: Connector, alias: string | null): Promise<void> {
    if (await store.connectors.bind(session.id, found.id, alias)) return
    const words = `Another server of this session is named ${alias ?? found.name}; bind with an alias.`
    throw new BatonError('name_taken', words, { param: 'alias' })
  }

  async function bringUpToDate(session: string, deadlineMs: number, known?: readonly Binding[]) {
    await changes.whenEmpty(session)
    const standing = upkeep.standing(session, known)
    if (standing === 'current') return 0
    const from = performance.now()
    if (known || standing === 'unknown')
      await discovery.lookUp(known ?? (await store.connectors.bindings(session)), { deadlineMs })
    else await upkeep.awaitExpected(session, deadlineMs)
    const waited = performance.now() - from
    await upkeep.bringUp(session).catch((err: unknown) => {
      const isGone = err instanceof BatonError && err.code === 'session_not_found'
      if (isGone || (isUnavailable(err) && !(err instanceof Overtaken))) throw err
      log.warn({ err, session_id: session }, 'tools could not be brought up to date')
    })
    return waited
  }

  async function present(session: string): Promise<RegistryRow> {
    const bindings = await store.connectors.bindings(session)
    // A list that merely grew old is left to the next turn: a read must not write down that it reached no server.
    if (upkeep.standing(session, bindings) === 'rebound')
      await bringUpToDate(session, SERVER_WAIT_MS, bindings)
    else if (isBehind(session)) await bringUpToDate(session, SERVER_WAIT_MS)
    return registries.newest(session)
  }

  const isBehind = (session: string) => changes.isTaken(session) || upkeep.standing(session) === 'moved'

  const { current, newest, keep, keptRevision, noteRevision, noteAnnounced, latestRevision } = registries
  return {
    current,
    newest,
    keep,
    keptRevision,
    noteRevision,
    noteAnnounced,
    latestRevision,
    overlay: overlayOf,
    bringUpToDate,
    present,
    isBehind,
    async open(session, connectors) {
      for (const one of connectors) await bindAs(session, one, null)
      const bindings = connectors.map((connector) => ({ connector, alias: null }))
      await discovery.lookUp(bindings, { deadlineMs: 'budget' })
      await changes.take(session.id, () => upkeep.update(session.id))
    },
    async list(session, provider) {
      const row = await present(session.id)
      const view = await deps.viewOf(session, provider)
      const shown = await shownRegistry(row, view, { ...deps, lastSeen: discovery.lastSeen })
      // As the provider gets them, where one was asked for.
      return provider === null ? shown : { ...shown, declarations: declared(row, view) }
    },
    async bind(session, idOrName, apply, alias) {
      const found = await connectorNamed(session, idOrName)
      return changeBy(session, apply, { deadlineMs: 'budget', insists: true }, async () => {
        await bindAs(session, found, alias)
        return [{ connector: found, alias }]
      })
    },
    unbind: (session, idOrName, apply) =>
      changeBy(session, apply, null, async (bindings) => {
        const bound = bindings.find(({ connector: one }) => one.id === idOrName || one.name === idOrName)
        if (bound) {
          await store.connectors.unbind(session.id, bound.connector.id)
          return [bound]
        }
        throw new BatonError('connector_not_found', `No connector ${idOrName} is bound to this session.`)
      }),
    async setEnabled(session, name, enabled, apply) {
      const make = async ({ row: { tools } }: Ground) => {
        const tool = tools.find((one) => one.canonical_name === name)
        if (!tool) throw new BatonError('tool_not_found', `The session has no tool ${name}.`)
        const { connector_id: from, mcp_tool_name: own } = tool
        if (from !== null && own !== null) await store.connectors.switchTool(session.id, from, own, enabled)
        return switched(tools, tool, enabled)
      }
      const change = await changes.take(session.id, () => registries.change(session.id, make))
      return finish(session, change, apply, enabled ? [] : [name])
    },
    refresh: (session, apply) =>
      changeBy(
        session,
        apply,
        { deadlineMs: 'budget', refresh: true, insists: true },
        async (bindings) => bindings,
      ),
    async accept(caller: Caller, from, tool, expected) {
      const list = (await lastList(deps, connectorKey(from))) ?? (await listed(from))
      const found = list.tools.find(({ name }) => name === tool)
      if (!found) throw new BatonError('tool_not_found', `The connector ${from.name} lists no tool ${tool}.`)
      const hash = hashOf(found)
      if (expected !== undefined && expected !== hash)
        throw invalid('hash', `The definition of ${tool} has changed since: read its diff again.`)
      await store.connectors.pin(from.id, tool, hash, found, caller.key_id ?? caller.owner)
      await followers(from)
      return { tool, hash }
    },
    async connectorChanged(connector, sessions) {
      discovery.forget(connector.id)
      const all = sessions ?? (await sessionsOf(connector))
      // From here on a step of theirs waits for it.
      void upkeep.follow(all)
    },
    async close() {
      discovery.close()
    },
  }
}
