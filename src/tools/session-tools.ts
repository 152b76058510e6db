/**
 * The tools of sessions as a live thing: binds and unbinds servers, follows what they announce, writes each
 * change as one new revision, and says so. The rules of what a registry holds are registry.ts.
 */
import type { Logger } from 'pino'
import type { ToolsDelta } from '../chat/event.ts'
import { BatonError } from '../errors.ts'
import type { Mcp, McpServerSpec } from '../mcp/mcp.ts'
import type { Apply, Caller, SessionTool, SessionToolList, SessionTools, ToolsChange } from '../ports.ts'
import type { Deployment, DeploymentOptions } from '../provider.ts'
import type { Binding, Connector, RegistryRow, RegistryTool, Session, Store } from '../store/store.ts'
import type { Builtin } from './builtin.ts'
import { changesIn, type DefinitionChange } from './definition-diff.ts'
import { type Bound, connectBudgetMs, createDiscovery, within } from './discovery.ts'
import { type Overlay, overlayOf } from './overlay.ts'
import { appended, difference, hashOf, nextRegistry } from './registry.ts'
import type { ToolboxPolicy } from './toolbox.ts'

export interface SessionToolsDeps {
  store: Pick<Store, 'registry' | 'connectors' | 'sessions'>
  mcp: Mcp
  specFor(connector: Connector): McpServerSpec
  builtins: readonly Builtin[]
  policy: Pick<ToolboxPolicy, 'admit' | 'admitBuiltin'>
  /** Configuration servers that every new session gets */
  autoBound(): readonly string[]
  /** The deployment and limit that the session's provider has with its present credential */
  viewOf(session: Session, provider: string | null): Promise<View>
  providers: readonly string[]
  /** A revision is written: say it on the session's stream and to the other replicas */
  emit(session: string, delta: ToolsDelta): Promise<void>
  /** When it takes effect; restarts the step in flight for `now` */
  takeEffect(
    session: Session,
    delta: ToolsDelta,
    apply: Apply,
  ): Promise<Pick<ToolsChange, 'effective' | 'restarted_turn_id'>>
  /** A server's list came for the first time (`before` is null), or moved */
  onMoved?(connector: Connector, before: readonly string[] | null, after: readonly string[]): void
  log: Logger
}
export interface View {
  deployment: Deployment
  options: DeploymentOptions
  toolLimit: number | null
}

/** What the engine needs beside what routes call. */
export interface EngineTools extends SessionTools {
  /** `bindings`: of the session, where they were read a moment ago. */
  settle(session: string, owner: string, deadlineMs: number, bindings?: readonly Binding[]): Promise<void>
  /** The revision of the registry that is kept here; -1: none. */
  keptRevision(session: string): number
  /** Keeps a registry that was just read, so that it need not be read again; answers with the newest kept. */
  keep(row: RegistryRow): RegistryRow
  current(session: string): Promise<RegistryRow>
  latestRevision(session: string): number
  overlay(row: RegistryRow, deployment: Deployment, toolLimit: number | null): Overlay
  /** A server of the session announced what its registry lacks, or a change is under way here. Costs nothing. */
  isBehind(session: string): boolean
  /** Another replica wrote this revision. */
  noteRevision(session: string, revision: number): void
  close(): Promise<void>
}

/** What a registry was last made of. */
interface Look {
  bound: Bound[]
  marks: (string | null)[]
  /** Every server was there: nothing is waited for */
  isWhole: boolean
}
interface Change {
  row: RegistryRow
  before: RegistryRow
  delta: ToolsDelta
}

/** Tools in all cached registries together: each holds its schemas. */
const MOST_CACHED = 20_000
/** Sessions whose newest revision is known by number. */
const MOST_NOTED = 50_000
/** Sessions that follow one server's announcement at once; the others see it at their next turn. */
const FOLLOWERS = 1_000
/** Another writer may come first; more often than this it is no race but a defect. */
const MOST_TRIES = 10

export function createSessionTools(deps: SessionToolsDeps): EngineTools {
  const { store, mcp, log } = deps
  const discovery = createDiscovery(deps)
  const rows = new Map<string, RegistryRow>()
  /** The newest revision known of, which may be newer than the cached row */
  const newest = new Map<string, number>()
  let held = 0
  /** What each session's registry was last made of, so that an idle turn start writes and asks nothing */
  const looks = new Map<string, Look>()
  /** The last change of a session that is under way here: they go one after the other */
  const lines = new Map<string, Promise<unknown>>()

  function keep(row: RegistryRow): RegistryRow {
    const cached = rows.get(row.session_id)
    if (cached && cached.revision >= row.revision) return cached
    drop(row.session_id)
    rows.set(row.session_id, row)
    held += weightOf(row)
    for (const oldest of rows.keys()) {
      if (held <= MOST_CACHED || oldest === row.session_id) break
      drop(oldest)
    }
    noteRevision(row.session_id, row.revision)
    return row
  }

  const weightOf = (row: RegistryRow) => row.tools.length + 1

  function drop(session: string): void {
    const row = rows.get(session)
    if (!row) return
    rows.delete(session)
    held -= weightOf(row)
  }

  function noteRevision(session: string, revision: number): void {
    if (revision <= (newest.get(session) ?? 0)) return
    newest.delete(session)
    newest.set(session, revision)
    const [oldest = ''] = newest.size > MOST_NOTED ? newest.keys() : []
    newest.delete(oldest)
  }

  async function current(session: string): Promise<RegistryRow> {
    const cached = rows.get(session)
    if (cached && cached.revision >= (newest.get(session) ?? 0)) return cached
    return keep(await store.registry.get(session))
  }

  /** Writes what `compute` makes of the newest row; computes anew when another writer came first. */
  async function change(
    session: string,
    compute: (before: RegistryRow) => Pick<Change, 'delta'> & { tools: RegistryTool[] },
  ): Promise<Change> {
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      const before = await store.registry.get(session)
      const { tools, delta } = compute(before)
      if (delta.added.length + delta.removed.length + delta.changed.length === 0) {
        keep(before)
        return { row: before, before, delta: { ...delta, tools_revision: before.revision } }
      }
      const moved = { ...delta, tools_revision: before.revision + 1 }
      if (!(await store.registry.put(session, before.revision, tools, moved))) continue
      const row = keep({
        session_id: session,
        revision: moved.tools_revision,
        updated_at: new Date().toISOString(),
        tools,
      })
      await deps.emit(session, moved).catch((err: unknown) => log.warn({ err, session }, 'an event was lost'))
      return { row, before, delta: moved }
    }
    throw new BatonError('unavailable', 'The tools of this session are changing too fast; try again.', {
      retryAfter: 1,
    })
  }

  /** One change of a session at a time in this process; the compare-and-swap guards against the others. */
  function inLine<T>(session: string, work: () => Promise<T>): Promise<T> {
    const before = lines.get(session) ?? Promise.resolve()
    const mine = before.then(work, work)
    const settled = mine.catch(() => {})
    lines.set(session, settled)
    void settled.then(() => {
      if (lines.get(session) === settled) lines.delete(session)
    })
    return mine
  }

  /** One look at the bound servers, and one revision if anything moved. */
  async function update(session: string, options: { deadlineMs: number; refresh: boolean }): Promise<Change> {
    const bindings = await store.connectors.bindings(session)
    const servers = await discovery.known(bindings, options)
    const marks = discovery.marks(bindings)
    const written = await change(session, (before) => {
      const next = nextRegistry(before.tools, servers, deps.builtins, deps.policy, new Date().toISOString())
      const { added, removed, changed } = next
      return { tools: next.tools, delta: { tools_revision: before.revision, added, removed, changed } }
    })
    looks.delete(session)
    const bound = bindings.map(({ connector: { id, config_revision }, alias }) => ({
      connector: { id, config_revision },
      alias,
    }))
    const isWhole = servers.every(({ state }) => state === 'live') && !marks.includes(null)
    looks.set(session, { bound, marks, isWhole })
    const [oldest = ''] = looks.size > MOST_NOTED ? looks.keys() : []
    looks.delete(oldest)
    return written
  }

  /** Takes over what is known now, without waiting for any server. */
  const follow = (session: string): Promise<unknown> =>
    inLine(session, () => update(session, { deadlineMs: 0, refresh: false })).catch((err: unknown) =>
      log.warn({ err, session_id: session }, 'tools could not be brought up to date'),
    )

  discovery.onArrival((connector) => {
    void followers(connector).catch((err: unknown) => log.warn({ err }, 'tool list was not followed'))
  })

  async function followers(connector: Connector): Promise<void> {
    for (const session of await store.connectors.sessionsOf(connector.id, FOLLOWERS)) await follow(session)
  }

  async function finish(session: Session, change: Change, apply: Apply): Promise<ToolsChange> {
    const { delta, before, row } = change
    const isMoved = row.revision !== before.revision
    const isKept = !isMoved || (await isPrefixKept(session, before, row))
    const effect = await deps.takeEffect(session, delta, isMoved ? apply : 'next')
    return { ...delta, ...effect, prompt_cache: isKept ? 'kept' : 'invalidated' }
  }

  async function isPrefixKept(session: Session, before: RegistryRow, after: RegistryRow): Promise<boolean> {
    const { deployment, options, toolLimit } = await deps.viewOf(session, null)
    const bytes = (row: RegistryRow) =>
      JSON.stringify(deployment.declare(overlayOf(row, deployment, toolLimit).tools, options))
    return bytes(before) === bytes(after)
  }

  const budgetOf = (bindings: readonly Binding[]) =>
    bindings.reduce((most, { connector }) => Math.max(most, connectBudgetMs(connector)), 0)

  const updateFully = async (session: string, refresh: boolean): Promise<Change> => {
    const bindings = await store.connectors.bindings(session)
    return update(session, { deadlineMs: budgetOf(bindings), refresh })
  }

  /**
   * A caller's change: the answer tells all that became of the tools meanwhile, also where a server's
   * arrival, here or on another replica, wrote a part of it first.
   */
  async function made(session: Session, apply: Apply, work: () => Promise<Change>): Promise<ToolsChange> {
    const change = await inLine(session.id, async () => {
      const before = await store.registry.get(session.id)
      const { row } = await work()
      return { before, row, delta: { tools_revision: row.revision, ...difference(before.tools, row.tools) } }
    })
    return finish(session, change, apply)
  }

  async function connector(session: Session, idOrName: string): Promise<Connector> {
    const found = await store.connectors.find({ owner: session.owner, admin: false }, idOrName)
    if (found) return found
    throw new BatonError('connector_not_found', `No connector ${idOrName} exists.`)
  }

  /** Two servers of a session never share a name: their tools' canonical names would meet. */
  function assertFree(bindings: readonly Binding[], id: string, server: string): void {
    const holder = bindings.find(
      (one) => one.connector.id !== id && (one.alias ?? one.connector.name) === server,
    )
    if (!holder) return
    throw new BatonError(
      'name_taken',
      `Another server of this session is named ${server}; bind with an alias.`,
      {
        param: 'alias',
      },
    )
  }

  return {
    current,
    keep,
    keptRevision: (session) => rows.get(session)?.revision ?? -1,
    noteRevision,
    latestRevision: (session) => newest.get(session) ?? 0,
    overlay: (row, deployment, toolLimit) => overlayOf(row, deployment, toolLimit),
    async settle(session, _owner, deadlineMs, known) {
      const bindings = known ?? (await store.connectors.bindings(session))
      const last = looks.get(session)
      const marks = discovery.marks(bindings)
      if (last?.isWhole && marks.join('\n') === last.marks.join('\n') && !lines.has(session)) return
      const work = inLine(session, () => update(session, { deadlineMs, refresh: false }))
      const failed = (err: unknown) =>
        log.warn({ err, session_id: session }, 'tools could not be brought up to date')
      // A bind that waits for its server may be first in line: the turn goes on without it.
      await within(deadlineMs, work.catch(failed))
    },
    isBehind(session) {
      const last = looks.get(session)
      if (lines.has(session)) return true
      if (!last) return false
      const marks = discovery.marks(last.bound)
      return last.bound.some(
        ({ connector: { id } }, i) =>
          discovery.isOutdated(id) || (marks[i] !== null && marks[i] !== last.marks[i]),
      )
    },
    async open(session, connectors) {
      const scope = { owner: session.owner, admin: false }
      const auto = await Promise.all(deps.autoBound().map((name) => store.connectors.find(scope, name)))
      const all = [...auto.filter((one) => one !== null), ...connectors]
      for (const one of all) await store.connectors.bind(session.id, one.id, null)
      await inLine(session.id, () => updateFully(session.id, false))
    },
    async list(session, provider) {
      const row = await current(session.id)
      const view = await deps.viewOf(session, provider)
      return listing(row, view, deps.providers, provider !== null, await changesIn(deps, row))
    },
    async bind(session, idOrName, apply, alias) {
      const found = await connector(session, idOrName)
      const bindings = await store.connectors.bindings(session.id)
      assertFree(bindings, found.id, alias ?? found.name)
      return made(session, apply, async () => {
        await store.connectors.bind(session.id, found.id, alias)
        return updateFully(session.id, false)
      })
    },
    async unbind(session, idOrName, apply) {
      const bindings = await store.connectors.bindings(session.id)
      const bound = bindings.find(({ connector: one }) => one.id === idOrName || one.name === idOrName)
      if (!bound)
        throw new BatonError('connector_not_found', `No connector ${idOrName} is bound to this session.`)
      return made(session, apply, async () => {
        await store.connectors.unbind(session.id, bound.connector.id)
        // What stays is not waited for: taking tools away must be quick.
        return update(session.id, { deadlineMs: 0, refresh: false })
      })
    },
    async setEnabled(session, name, enabled, apply) {
      const compute = (before: RegistryRow) => {
        const tool = before.tools.find((one) => one.canonical_name === name)
        if (!tool) throw new BatonError('tool_not_found', `The session has no tool ${name}.`)
        const others = before.tools.filter((one) => one !== tool)
        // One that comes back is declared behind the others, so that what the model has seen stays.
        const tools = enabled
          ? [...others, ...appended(before.tools, [{ ...tool, enabled }])]
          : before.tools.map((one) => (one === tool ? { ...one, enabled } : one))
        const changed = tool.enabled === enabled ? [] : [name]
        return { tools, delta: { tools_revision: before.revision, added: [], removed: [], changed } }
      }
      const switched = await inLine(session.id, () => change(session.id, compute))
      return finish(session, switched, apply)
    },
    async refresh(session, apply) {
      return made(session, apply, () => updateFully(session.id, true))
    },
    async accept(caller: Caller, from, tool) {
      const spec = deps.specFor(from)
      const list = mcp.cached(spec.key) ?? (await mcp.list(spec, { timeoutMs: connectBudgetMs(from) }))
      const found = list.tools.find(({ name }) => name === tool)
      if (!found) throw new BatonError('tool_not_found', `The connector ${from.name} lists no tool ${tool}.`)
      const hash = hashOf(found)
      await store.connectors.pin(from.id, tool, hash, found, caller.key_id ?? caller.owner)
      await followers(from)
      return { tool, hash }
    },
    connectorChanged(connector, sessions) {
      discovery.forget(connector.id)
      const all = async () => {
        for (const session of sessions) await follow(session)
      }
      void all()
    },
    async close() {
      discovery.close()
    },
  }
}

/** The registry as api.md shows it. What the session's provider cannot declare carries the reason. */
function listing(
  row: RegistryRow,
  view: View,
  providers: readonly string[],
  withDeclarations: boolean,
  changes: ReadonlyMap<string, DefinitionChange[]>,
): SessionToolList {
  const overlay = overlayOf(row, view.deployment, view.toolLimit)
  const undeclared = new Map(overlay.undeclared.map(({ canonical_name, reason }) => [canonical_name, reason]))
  const tools = [...row.tools]
    .sort((a, b) => a.order - b.order)
    .map((tool): SessionTool => {
      const reason = tool.reason ?? undeclared.get(tool.canonical_name)
      const diff = changes.get(tool.canonical_name)
      const isLeftOut = tool.status === 'available' && undeclared.has(tool.canonical_name)
      return {
        canonical_name: tool.canonical_name,
        provider_exposed_name: Object.fromEntries(providers.map((id) => [id, tool.exposed_name])),
        connector_id: tool.connector_id,
        mcp_tool_name: tool.mcp_tool_name,
        server: tool.server,
        description: tool.description,
        parameters: tool.parameters,
        enabled: tool.enabled,
        source: tool.source,
        last_seen_at: tool.last_seen_at,
        status: isLeftOut ? 'undeclarable' : tool.status,
        ...(reason ? { reason } : {}),
        ...(diff ? { diff } : {}),
      }
    })
  return {
    revision: row.revision,
    updated_at: row.updated_at,
    tools,
    ...(withDeclarations ? { declarations: view.deployment.declare(overlay.tools, view.options) } : {}),
  }
}
