/**
 * Callers' changes of a session's tools. Each is written in the session's queue (change-queue.ts). The wait for the
 * servers that a change is about is outside the queue; what they list by then is written in the queue, too.
 */
import type { Serving } from '../deployments.ts'
import { BatonError, invalid } from '../errors.ts'
import type { Apply, SessionTools, ToolsChange, ToolsEffect, ToolsMove } from '../ports.ts'
import type { Connector, RegistryRow, RegistryTool, Session, Store } from '../store/store.ts'
import type { ChangeQueue } from './change-queue.ts'
import type { Asked, Discovery, LookUp } from './discovery.ts'
import type { Change, Ground, Registries } from './registries.ts'
import { difference, hasMoved, switched } from './registry.ts'
import { declared } from './shown-registry.ts'
import { datesOf, type Upkeep } from './upkeep.ts'

export interface CallerChangesDeps {
  store: Pick<Store, 'connectors'>
  /** What the session's provider has with its present credential */
  viewOf(session: Session, provider: string | null): Promise<Serving>
  /** When it takes effect; for `now`, restarts the step in flight and ends calls of what is `removed` */
  takeEffect(session: Session, move: ToolsMove, apply: Apply): Promise<ToolsEffect>
  discovery: Pick<Discovery, 'lookUp'>
  registries: Pick<Registries, 'ground' | 'change'>
  upkeep: Pick<Upkeep, 'update'>
  queue: Pick<ChangeQueue, 'take' | 'awaits' | 'applyNow'>
}

/**
 * Most servers that a session has when a caller binds one more: each turn reads the connectors of all of them. At its
 * opening a session takes a hundred beside those of the configuration.
 */
const MOST_BOUND = 256

type CallerChanges = Pick<SessionTools, 'open' | 'bind' | 'unbind' | 'setEnabled' | 'refresh'>

export function createCallerChanges(deps: CallerChangesDeps): CallerChanges {
  const { store, discovery, registries, upkeep, queue } = deps

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
      // Also if nothing moved: an earlier change, made for the next step, may be wanted now.
      apply === 'now' ? queue.applyNow(session, move) : deps.takeEffect(session, move, apply),
      isMoved ? isPrefixKept(session, before, row) : true,
    ])
    return { ...delta, ...effect, prompt_cache: isKept ? 'kept' : 'invalidated' }
  }

  async function isPrefixKept(session: Session, before: RegistryRow, after: RegistryRow): Promise<boolean> {
    const view = await deps.viewOf(session, null)
    const [former, present] = [await declared(before, view), await declared(after, view)]
    return JSON.stringify(former) === JSON.stringify(present)
  }

  /**
   * Makes a change: `work` writes it, and returns the servers that it is about. Those are waited for as `wait` says
   * (null: not at all); then the registry takes over what there is.
   */
  async function changeBy(
    session: Session,
    apply: Apply,
    wait: LookUp | null,
    work: (ground: Ground) => Promise<readonly Asked[]>,
  ): Promise<ToolsChange> {
    const [about, first] = await queue.take(session.id, async () => {
      const ground = await registries.ground(session.id)
      return [await work(ground), ground.row.tools] as const
    })
    if (wait) {
      const servers = discovery.lookUp(about, { ...wait, seen: datesOf(first) })
      if (apply === 'now') queue.awaits(session.id, servers)
      await servers
    }
    const { before, row } = await queue.take(session.id, () => upkeep.update(session.id))
    const isOwn = (tool: RegistryTool) => about.some(({ connector }) => connector.id === tool.connector_id)
    // Tells every change to these servers' tools: a server's arrival may have written a part of them in between.
    const tools = [...before.tools.filter((tool) => !isOwn(tool)), ...first.filter(isOwn)]
    const delta = { tools_revision: row.revision, ...difference(tools, row.tools) }
    return finish(session, { before: { ...before, tools }, row, delta }, apply)
  }

  async function connectorNamed(session: Session, idOrName: string): Promise<Connector> {
    const found = await store.connectors.find(session, idOrName)
    if (found) return found
    throw new BatonError('connector_not_found', `No connector ${idOrName} exists.`)
  }

  async function bindAs(session: Session, found: Connector, alias: string | null): Promise<void> {
    if (await store.connectors.bind(session.id, found.id, alias)) return
    const words = `Another server of this session is named ${alias ?? found.name}; bind with an alias that is free.`
    throw new BatonError('name_taken', words, { param: 'alias' })
  }

  return {
    async open(session, connectors) {
      for (const one of connectors) await bindAs(session, one, null)
      const bindings = connectors.map((connector) => ({ connector, alias: null }))
      await discovery.lookUp(bindings, { deadlineMs: 'budget' })
      await queue.take(session.id, () => upkeep.update(session.id))
    },
    async bind(session, idOrName, apply, alias) {
      const found = await connectorNamed(session, idOrName)
      return changeBy(session, apply, { deadlineMs: 'budget', insists: true }, async ({ bindings }) => {
        const isNew = bindings.every(({ connector }) => connector.id !== found.id)
        if (isNew && bindings.length >= MOST_BOUND)
          throw invalid('connector', `A session has at most ${MOST_BOUND} servers; remove one first.`)
        await bindAs(session, found, alias)
        return [{ connector: found, alias }]
      })
    },
    unbind: (session, idOrName, apply) =>
      changeBy(session, apply, null, async ({ bindings, row }) => {
        const bound = bindings.find(({ connector: one }) => one.id === idOrName || one.name === idOrName)
        if (bound) {
          await store.connectors.unbind(session.id, bound.connector.id)
          return [bound]
        }
        // The store may have failed after an earlier request unbound the server: its tools are still to be taken out.
        const connector = await store.connectors.find(session, idOrName)
        if (connector && row.tools.some((tool) => tool.connector_id === connector.id))
          return [{ connector, alias: null }]
        throw new BatonError('connector_not_found', `No connector ${idOrName} is bound to this session.`)
      }),
    async setEnabled(session, name, enabled, apply) {
      const make = async ({ row: { tools } }: Ground) => {
        const tool = tools.find((one) => one.canonical_name === name)
        if (!tool)
          throw new BatonError(
            'tool_not_found',
            `The session has no tool ${name}; its list of tools has their canonical names.`,
          )
        const { connector_id: from, mcp_tool_name: own } = tool
        if (from !== null && own !== null) await store.connectors.switchTool(session.id, from, own, enabled)
        return switched(tools, tool, enabled)
      }
      const change = await queue.take(session.id, () => registries.change(session.id, make))
      return finish(session, change, apply, enabled ? [] : [name])
    },
    refresh: (session, apply) =>
      changeBy(
        session,
        apply,
        { deadlineMs: 'budget', refresh: true, insists: true },
        async ({ bindings }) => bindings,
      ),
  }
}
