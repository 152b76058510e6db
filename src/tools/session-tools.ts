/**
 * The tools of sessions as they change: by callers, by servers' announcements, and how a turn takes over both. Below
 * it:
 * - discovery.ts: what servers list; watch.ts is one of them
 * - registry.ts: what that makes of a registry (pure); offered.ts has the connectors' globs, registries.ts keeps and
 *   writes registries, announced-revisions.ts has their order
 * - upkeep.ts: bringing registries up to date, many at a time (batches.ts); first-use.ts accepts what is seen first
 * - caller-changes.ts: binding and unbinding servers, switching tools; change-queue.ts makes that one after the other
 * - shown-registry.ts, overlay.ts: what callers see, and what a deployment's model sees
 */
import { connectorKey } from '../credentials/connector-secret.ts'
import { BatonError, invalid, isUnavailable } from '../errors.ts'
import { type Mcp, McpError, type McpServerSpec, type ToolList } from '../mcp/contract.ts'
import type { Caller, SessionTools } from '../ports.ts'
import type { Deployment } from '../provider.ts'
import type { Binding, Connector, RegistryRow, Store } from '../store/store.ts'
import type { Builtin } from './builtin.ts'
import { type CallerChangesDeps, createCallerChanges } from './caller-changes.ts'
import { createChangeQueue } from './change-queue.ts'
import { hashOf } from './definition.ts'
import { createDiscovery, lastList } from './discovery.ts'
import { type Overlay, overlayOf } from './overlay.ts'
import { createRegistries, Overtaken, type Registries, type RegistriesDeps } from './registries.ts'
import { declared, shownRegistry } from './shown-registry.ts'
import type { ToolboxPolicy } from './toolbox.ts'
import { createUpkeep } from './upkeep.ts'

interface SessionToolsDeps extends RegistriesDeps, Pick<CallerChangesDeps, 'viewOf' | 'takeEffect'> {
  store: Pick<Store, 'registry' | 'connectors'>
  mcp: Mcp
  specFor(connector: Connector): McpServerSpec
  builtins: readonly Builtin[]
  policy: Pick<ToolboxPolicy, 'admit'>
  /** All providers that there are */
  providers: readonly string[]
  /** A server's list came for the first time (`before` is null), or changed */
  onMoved?(connector: Connector, before: readonly string[] | null, after: readonly string[]): void
}

/** What the engine needs besides what routes call. */
export interface EngineTools
  extends SessionTools,
    Pick<
      Registries,
      'current' | 'newest' | 'keep' | 'keptRevision' | 'latestRevision' | 'noteRevision' | 'noteAnnounced'
    > {
  /**
   * Brings the session's registry up to date with its servers' lists. It waits for the servers, at most `deadlineMs`,
   * and for callers' changes that are being written. What is known by then is written, however long the store takes.
   * `bindings`: the session's, if they were read a moment ago. Returns how long it waited for servers, in ms.
   */
  bringUpToDate(session: string, deadlineMs: number, bindings?: readonly Binding[]): Promise<number>
  /**
   * The registry for a reader. Changes that this replica knows of, made or announced, are waited for, as a turn would.
   * Throws session_not_found.
   */
  present(session: string): Promise<RegistryRow>
  overlay(row: RegistryRow, deployment: Deployment): Promise<Overlay>
  /** The session's registry lacks a list that is here or on its way, or a change is under way here. Cheap to ask. */
  isBehind(session: string): boolean
  close(): Promise<void>
}

/**
 * Most sessions that follow a server's announcement, a changed connector or an accepted definition at once; others see
 * it at their next turn.
 */
export const FOLLOWERS = 1_000

/** Longest that a turn waits for servers of its session, all steps together (api.md "Session tools"). */
export const SERVER_WAIT_MS = 400

export function createSessionTools(deps: SessionToolsDeps): EngineTools {
  const { store, mcp, log } = deps
  const discovery = createDiscovery({
    ...deps,
    onNews: (connector) => void followers(connector, { unlessCurrent: true }),
  })
  const registries = createRegistries(deps)
  const upkeep = createUpkeep({ ...deps, discovery, registries })
  const queue = createChangeQueue((session, move) => deps.takeEffect(session, move, 'now'))
  const changes = createCallerChanges({ ...deps, discovery, registries, upkeep, queue })

  const sessionsOf = ({ id }: Connector) =>
    store.connectors.sessionsOf(id, FOLLOWERS).catch((err: unknown) => {
      log.warn({ err }, 'the sessions that follow a tool list could not be read')
      return []
    })
  const followers = async (connector: Connector, options?: { unlessCurrent: boolean }) =>
    upkeep.follow(await sessionsOf(connector), options)

  /** The list of a server that nobody has asked yet. */
  async function listed(connector: Connector): Promise<ToolList> {
    try {
      return await mcp.list(deps.specFor(connector))
    } catch (thrown) {
      if (!(thrown instanceof McpError)) throw thrown
      throw new BatonError('unavailable', thrown.message, { cause: thrown })
    }
  }

  async function bringUpToDate(session: string, deadlineMs: number, known?: readonly Binding[]) {
    await queue.whenEmpty(session)
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
    // A list that is merely old is left to the next turn: a read must not write down that it reached no server.
    if (upkeep.standing(session, bindings) === 'rebound')
      await bringUpToDate(session, SERVER_WAIT_MS, bindings)
    else if (isBehind(session)) await bringUpToDate(session, SERVER_WAIT_MS)
    // The process before this one may have had another configuration.
    if (upkeep.standing(session) === 'unknown') return (await upkeep.recall(session)).row
    return registries.newest(session)
  }

  const isBehind = (session: string) => queue.isTaken(session) || upkeep.standing(session) === 'moved'

  return {
    ...registries,
    ...changes,
    overlay: overlayOf,
    bringUpToDate,
    present,
    isBehind,
    async list(session, provider) {
      const row = await present(session.id)
      const view = await deps.viewOf(session, provider)
      const shown = await shownRegistry(row, view, { ...deps, lastSeen: discovery.lastSeen })
      // The tools as the provider gets them, if the caller named one.
      return provider === null ? shown : { ...shown, declarations: await declared(row, view) }
    },
    async accept(caller: Caller, from, tool, expected) {
      const list = (await lastList(deps, connectorKey(from))) ?? (await listed(from))
      const found = list.tools.find(({ name }) => name === tool)
      if (!found) {
        const words = `The connector ${from.name} lists no tool ${tool}; here a tool has the name that its server gives it.`
        throw new BatonError('tool_not_found', words)
      }
      const hash = hashOf(found)
      if (expected !== undefined && expected !== hash)
        throw invalid('hash', `The definition of ${tool} has changed since: read its diff again.`)
      const accepted = { tool, hash }
      const { owner, key_id } = caller
      const details = { name: from.name, ...accepted }
      const entry = { owner, act: 'connector.accept', subject: from.id, details }
      await store.connectors.pin(from.id, tool, hash, found, key_id ?? owner, entry)
      await followers(from)
      return accepted
    },
    async connectorChanged(connector, sessions) {
      discovery.forget(connector.id)
      const all = sessions ?? (await sessionsOf(connector))
      // From here on a step in these sessions waits for the connector's list.
      void upkeep.follow(all)
    },
    letGo(key) {
      discovery.letGo(key)
      mcp.release(key)
    },
    async close() {
      discovery.close()
    },
  }
}
