/**
 * The registries of sessions: a cache that never serves an older revision than the newest one known, and the only way
 * to write the next. What a registry holds is registry.ts; when one changes is session-tools.ts.
 */
import type { Logger } from 'pino'
import { BoundedMap } from '../bounded-map.ts'
import type { ToolsDelta } from '../chat/event.ts'
import { isRecord } from '../chat/json.ts'
import { once } from '../chat/once.ts'
import { BatonError } from '../errors.ts'
import type { Binding, RegistryChange, RegistryRow, Store } from '../store/store.ts'
import { createAnnouncedRevisions } from './announced-revisions.ts'
import { difference, hasMoved, type NextRegistry } from './registry.ts'

/** What a session's registry is made of, as the store had it. */
export interface Ground {
  row: RegistryRow
  /** How long before it was read the row was written, by the store's clock */
  ageMs: number
  bindings: readonly Binding[]
  pins: Pins
}
/** Accepted definition hashes: connector → tool → hash. */
export type Pins = ReadonlyMap<string, ReadonlyMap<string, string>>

/** A registry before and after; equal revisions where nothing moved. */
export interface Change {
  row: RegistryRow
  before: RegistryRow
  delta: ToolsDelta
}
type Unanswered = Pick<RegistryRow, 'tools'> & Pick<Change, 'delta'>
/** Makes a session's next registry of what the store has; called again if another writer came first. */
export type Make = (ground: Ground) => Promise<Next>
export interface Next extends NextRegistry {
  /** Called once the store holds this registry, also if it held it before */
  onStored?(): void
}

export interface Registries {
  /** The kept row, or the store's if a newer one is known of. It may be old: another replica's message can be lost. */
  current(session: string): Promise<RegistryRow>
  /** The store's own. Throws session_not_found. */
  newest(session: string): Promise<RegistryRow>
  /** Keeps a registry that was just read; answers with the newest kept. */
  keep(row: RegistryRow): RegistryRow
  /** The revision that is kept here; -1: none. */
  keptRevision(session: string): number
  /** The store has this revision. */
  noteRevision(session: string, revision: number): void
  /** Another replica wrote this revision and has announced it. */
  noteAnnounced(session: string, revision: number): void
  /** The newest revision known of, which may be newer than the kept row. */
  latestRevision(session: string): number
  /** Throws session_not_found. */
  ground(session: string): Promise<Ground>
  /** Makes one revision, if anything moved. Throws session_not_found. */
  change(session: string, make: Make): Promise<Change>
  /**
   * `change` for many sessions, with one read and one write for all. Sessions that are gone are left out; answers with
   * those for which another writer came first.
   */
  changeTogether(sessions: readonly string[], make: Make): Promise<string[]>
  /** The number of tools in the kept registry, plus one. */
  weightOf(session: string): number
}

export interface RegistriesDeps {
  store: Pick<Store, 'registry'>
  /** Called when a revision is written: says so on the session's stream and to the other replicas */
  sayToolsChanged(session: string, delta: ToolsDelta, turn: string | null): Promise<void>
  log: Logger
}

/**
 * Characters of JSON in all cached registries together, counted as if they shared no schemas. They take about as many
 * bytes of memory, and half as many again for their declarations.
 */
const MOST_CACHED = 64 << 20
/** Sessions whose newest revision is known by number. */
const MOST_NOTED = 50_000
/** Another writer may come first; if one does more often than this, that is a defect, not a race. */
const MOST_TRIES = 10

/** Another writer came first each time. The store itself is there, so nobody should wait for it to come back. */
export class Overtaken extends BatonError {}

export function createRegistries({ store, sayToolsChanged, log }: RegistriesDeps): Registries {
  const rows = new BoundedMap<RegistryRow>(MOST_CACHED, sizeOf)
  const newest = new BoundedMap<number>(MOST_NOTED)
  const announced = createAnnouncedRevisions()
  /** Changes that the store may hold although it failed when they were written */
  const unanswered = new BoundedMap<Unanswered>(MOST_CACHED, sizeOf)

  function keep(row: RegistryRow): RegistryRow {
    const cached = rows.get(row.session_id)
    if (cached && cached.revision >= row.revision) return cached
    rows.put(row.session_id, row)
    noteRevision(row.session_id, row.revision)
    return row
  }

  function noteRevision(session: string, revision: number): void {
    if (revision > (newest.get(session) ?? 0)) newest.put(session, revision)
  }

  async function grounds(sessions: readonly string[]): Promise<Ground[]> {
    const known = new Map(sessions.map((id) => [id, rows.get(id)]))
    const found = await store.registry.grounds(
      sessions.map((id) => ({ session_id: id, revision: known.get(id)?.revision ?? -1 })),
    )
    const pins = new Map<string, Map<string, string>>()
    for (const { connector_id, tool, hash } of found.pins) {
      const own = pins.get(connector_id) ?? new Map<string, string>()
      pins.set(connector_id, own.set(tool, hash))
    }
    const read = found.sessions.flatMap(({ session_id, registry, age_ms: ageMs, bindings }) => {
      const row = registry ?? known.get(session_id)
      return row ? [{ row, ageMs, bindings, pins }] : []
    })
    await Promise.all(read.map(({ row }) => announceUnanswered(row)))
    return read
  }

  /** Whoever made the change was told of a failure, and would find that nothing moved. */
  async function announceUnanswered(row: RegistryRow): Promise<void> {
    const change = unanswered.get(row.session_id)
    // The store may still be writing it: the statement waits for another writer, say.
    if (!change || row.revision < change.delta.tools_revision) return
    unanswered.drop(row.session_id)
    // Another replica may have written this revision.
    const isStored =
      change.delta.tools_revision === row.revision && !hasMoved(difference(change.tools, row.tools))
    if (isStored && !announced.isKnown(row)) await announce(row.session_id, change.delta, null)
  }

  async function made(ground: Ground, make: Make) {
    const { tools, added, removed, changed, onStored } = await make(ground)
    const { row: before, ageMs } = ground
    const { session_id, revision: expected } = before
    const isMoved = hasMoved({ added, removed, changed })
    const delta = { tools_revision: expected + (isMoved ? 1 : 0), added, removed, changed }
    return { session_id, expected, tools, delta, before, ageMs, isMoved, onStored }
  }

  /**
   * Reads registries, makes the next ones, and writes those that moved. Null: another writer came first. Sessions that
   * are gone are left out.
   */
  async function attempt(
    sessions: readonly string[],
    make: Make,
  ): Promise<ReadonlyMap<string, Change | null>> {
    const all = await Promise.all((await grounds(sessions)).map((ground) => made(ground, make)))
    const moved = all.filter(({ isMoved }) => isMoved)
    const answers = moved.length === 0 ? [] : await put(moved)
    const written = new Map(answers.map(({ session_id, ...rest }) => [session_id, rest]))
    const changes = all.map(async ({ session_id, tools, delta, before, ageMs, isMoved, onStored }) => {
      const stored = written.get(session_id)
      if (isMoved && !stored) return [session_id, null] as const
      const revision = delta.tools_revision
      const row = stored ? { session_id, revision, updated_at: stored.updated_at, tools } : before
      const kept = keep(row)
      onStored?.()
      if (!stored) return [session_id, { before, row: kept, delta }] as const
      unanswered.drop(session_id)
      await announced.whenAnnounced(before, ageMs)
      await announce(session_id, delta, stored.turn_id)
      return [session_id, { before, row, delta }] as const
    })
    return new Map(await Promise.all(changes))
  }

  function put(moved: readonly (RegistryChange & Unanswered)[]) {
    return store.registry.put(moved).catch((failure: unknown) => {
      for (const { session_id, tools, delta } of moved) unanswered.put(session_id, { tools, delta })
      throw failure
    })
  }

  async function announce(session_id: string, delta: ToolsDelta, turn: string | null): Promise<void> {
    await sayToolsChanged(session_id, delta, turn).catch((err: unknown) =>
      log.warn({ err }, 'an event was lost'),
    )
    announced.note(session_id, delta.tools_revision)
  }

  async function ground(session: string): Promise<Ground> {
    const [found] = await grounds([session])
    if (!found) throw deleted()
    return found
  }

  return {
    keep,
    noteRevision,
    noteAnnounced(session, revision) {
      noteRevision(session, revision)
      announced.note(session, revision)
    },
    newest: async (session) => keep((await ground(session)).row),
    ground,
    keptRevision: (session) => rows.get(session)?.revision ?? -1,
    latestRevision: (session) => newest.get(session) ?? 0,
    async current(session) {
      const cached = rows.get(session)
      if (cached && cached.revision >= (newest.get(session) ?? 0)) return cached
      return keep(await store.registry.get(session))
    },
    async change(session, make) {
      for (let tries = 0; tries < MOST_TRIES; tries++) {
        const change = (await attempt([session], make)).get(session)
        if (change === undefined) throw deleted()
        if (change) return change
      }
      throw new Overtaken('unavailable', 'The tools of this session are changing too fast; try again.', {
        retryAfter: 1,
      })
    },
    async changeTogether(sessions, make) {
      const changes = await attempt(sessions, make)
      return [...changes].flatMap(([session, change]) => (change ? [] : [session]))
    },
    weightOf: (session) => (rows.get(session)?.tools.length ?? 0) + 1,
  }
}

const deleted = () => new BatonError('session_not_found', 'The session was deleted.')

const sizeOf = once(({ tools }: Pick<RegistryRow, 'tools'>): number =>
  tools
    .flatMap(({ description, parameters, input_schema }) => [description, parameters, input_schema])
    .reduce<number>((sum, one) => sum + lengthOf(one), OVERHEAD * (tools.length + 1)),
)
/** Sessions share their servers' lists, so the length is mostly known. */
const lengthOfSchema = once((schema: object) => JSON.stringify(schema).length)
const lengthOf = (value: unknown): number =>
  typeof value === 'string' ? value.length : isRecord(value) ? lengthOfSchema(value) : 0
/** What a tool takes besides its schemas and its description */
const OVERHEAD = 500
