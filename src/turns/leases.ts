/**
 * What keeps turns alive across processes: the heartbeat of our leases, and the scan for work that nobody
 * owns. Both run at a third of the lease; losing the bus costs at most that long.
 */
import { inFull, isUnavailable } from '../errors.ts'
import { EVERYONE, type Fence, type Session, type Turn, Unreadable } from '../store/store.ts'
import { type ActiveTurn, CANCELLED, type Entry, OWNER_LOST, requestStop } from './active.ts'
import type { EngineDeps } from './deps.ts'
import { hydrate } from './events.ts'
import type { UnderWay } from './under-way.ts'

/** The turns that this process owns, and how it comes to own one more. */
export interface EngineState {
  deps: EngineDeps
  /** By session: one turn runs in a session at a time */
  active: Map<string, ActiveTurn>
  /** Runs it here, in the background; never throws. `session` null: it is read. */
  launch(turn: Turn, fence: Fence, session: Session | null, entry: Entry): void
  /** Launches the session's next queued turn, where there is one and none runs here. */
  startNext(session: string): Promise<void>
  /** Launches a turn that waits for input, where nothing that it waits for is missing any more. */
  resume(turn: string): Promise<void>
  /** Asking the store for a turn: a drain waits for it, since what it brings runs here. */
  track: UnderWay['track']
  isDraining(): boolean
}

/** Turns taken over in one scan: a replica that starts after a crash must not drown in them. */
const SCAN_LIMIT = 20

/**
 * How long an announcement is its turn's owner's to make: longer than the bus tries an append. Another's
 * would come before the owner's last events.
 */
const OWNERS_WORD_MS = 3_000

export interface Leases {
  /** Looks for work now: somebody said that there is some */
  look(): Promise<void>
  /** A turn turned out to be unreadable while it ran here: it is said once, and not taken again */
  leave(turn: string, why: Unreadable): void
  /** It need not be read any more, for it is to be cancelled */
  retry(turn: string): void
  stop(): void
}

interface Watch {
  /** When the store was last found away */
  storeAwayAt: number
  /** Announcements that were found unsaid, and when first */
  unsaidSince: Map<string, number>
  /** Turns that could not be decrypted, to be run or announced: only a later process, or another, has their keys */
  unreadable: { turns: Set<string>; ends: Set<string> }
}

/** Looks at once; beats and looks again until `stop`. What fails is logged, and tried the next time. */
export function startLeases(state: EngineState): Leases {
  const { leaseSeconds } = state.deps.settings
  const every = (leaseSeconds * 1000) / 3
  const watch: Watch = {
    storeAwayAt: Number.NEGATIVE_INFINITY,
    unsaidSince: new Map(),
    unreadable: { turns: new Set(), ends: new Set() },
  }
  const beat = guarded(state, watch, 'heartbeat failed', () => heartbeat(state))
  const look = guarded(state, watch, 'scan failed', () => scan(state, watch))
  const timers = [setInterval(beat, every), setInterval(look, every)]
  for (const timer of timers) timer.unref()
  void look()
  return {
    look,
    leave: (turn, why) => leave(state, watch.unreadable.turns, turn, why),
    retry(turn) {
      if (watch.unreadable.turns.delete(turn)) void look()
    },
    stop() {
      for (const timer of timers) clearInterval(timer)
    },
  }
}

/** One at a time, and once more for all that came meanwhile: a slow store must not pile up scans. */
function guarded(
  state: EngineState,
  watch: Watch,
  message: string,
  work: () => Promise<void>,
): () => Promise<void> {
  let isBusy = false
  let isAskedAgain = false
  return async () => {
    if (isBusy) {
      isAskedAgain = true
      return
    }
    isBusy = true
    try {
      do {
        isAskedAgain = false
        await work()
      } while (isAskedAgain)
    } catch (err) {
      if (isUnavailable(err)) watch.storeAwayAt = performance.now()
      state.deps.log.warn({ err }, message)
    } finally {
      isBusy = false
    }
  }
}

async function heartbeat(state: EngineState): Promise<void> {
  const { store, settings } = state.deps
  // Those of this moment: one that begins while the store answers has a lease of its own.
  const owned = [...state.active]
  if (owned.length === 0) return
  const sessions = owned.map(([session]) => session)
  const rows = await store.turns.heartbeat(settings.replica, sessions, settings.leaseSeconds)
  const kept = new Map(rows.map((row) => [row.session_id, row]))
  for (const [session, mine] of owned) {
    if (mine.phase === 'ended') continue
    const row = kept.get(session)
    if (!row) requestStop(mine, OWNER_LOST)
    // Whoever asked for it could not reach this process over the bus.
    else if (row.cancelled_turn === mine.turn.id) requestStop(mine, CANCELLED)
  }
}

async function scan(state: EngineState, watch: Watch): Promise<void> {
  if (state.isDraining()) return
  // A process that was frozen wakes here: it must not take its own turns for somebody's.
  await heartbeat(state)
  await takeOver(state, watch)
  const { store } = state.deps
  const { turns } = watch.unreadable
  await each(state, turns, await store.turns.idleQueues(SCAN_LIMIT), (session) => session, state.startNext)
  await expireApprovals(state, watch)
  // Decided, and whoever took the decision died before it could resume the turn.
  await each(state, turns, await store.turns.resumable(SCAN_LIMIT), (turn) => turn, state.resume)
  await announceLeftovers(state, watch)
}

/** One turn that cannot be helped keeps no other from its help; a store that is away keeps all of them. */
async function each<T>(
  state: EngineState,
  unreadable: Set<string>,
  items: T[],
  idOf: (item: T) => string,
  help: (item: T) => Promise<void>,
): Promise<void> {
  for (const item of items) await helped(state, unreadable, idOf(item), () => help(item))
}

/** `id`: of the turn or session; null where only what is thrown can tell. */
async function helped(
  state: EngineState,
  unreadable: Set<string>,
  id: string | null,
  work: () => Promise<void>,
): Promise<void> {
  await work().catch((err: unknown) => {
    if (isUnavailable(err)) throw err
    const turn = err instanceof Unreadable ? (err.turn ?? id) : null
    if (turn === null) return state.deps.log.error({ err, id }, 'a turn could not be helped')
    leave(state, unreadable, turn, err)
  })
}

function leave({ deps: { log } }: EngineState, unreadable: Set<string>, turn: string, why: unknown): void {
  if (!unreadable.has(turn)) log.error({ turn_id: turn, reason: inFull(why) }, UNREADABLE)
  unreadable.add(turn)
}

const UNREADABLE =
  'a turn waits for its encryption key: put the key back into BATON_ENCRYPTION_KEYS and start again'

async function takeOver(state: EngineState, watch: Watch): Promise<void> {
  const { store, settings, log, metrics } = state.deps
  const lease = { owner: settings.replica, seconds: settings.leaseSeconds }
  // Nobody could prolong a lease while the store was away: its owners come first.
  if (performance.now() - watch.storeAwayAt < settings.leaseSeconds * 1000) return
  let isMore = true
  const { turns } = watch.unreadable
  // One by one: what cannot be read must not take others along.
  const takeOne = async () => {
    const [lost] = await store.turns.recover(lease, 1, [...turns])
    isMore = lost !== undefined
    if (!lost) return
    const { turn, fence, announce, was_handed_over } = lost
    const reason = was_handed_over ? 'handed_over' : 'lost'
    const line = { turn_id: turn.id, recoveries: turn.recoveries, reason }
    log[was_handed_over ? 'info' : 'warn'](line, 'turn taken over')
    metrics.turnRecovered(reason)
    state.launch(turn, fence, null, { kind: 'recovered', announce, was_handed_over })
  }
  for (let count = 0; isMore && !state.isDraining() && count < SCAN_LIMIT; count++) {
    await helped(state, turns, null, () => state.track(takeOne()))
  }
}

const turnOf = ({ turn_id }: { turn_id: string }): string => turn_id

async function expireApprovals(state: EngineState, { unreadable }: Watch): Promise<void> {
  const { store } = state.deps
  const lapsed = await store.turns.lapsedApprovals(SCAN_LIMIT)
  await each(state, unreadable.turns, lapsed, turnOf, async ({ turn_id, call_id }) => {
    await store.executions.decide(EVERYONE, turn_id, call_id, {
      decision: 'expired',
      reason: null,
      sealed_arguments: null,
      by: 'expiry',
    })
    await state.resume(turn_id)
  })
}

/** What a turn that ended, or waits, committed and, because its owner died or the bus was away, never said. */
async function announceLeftovers(state: EngineState, watch: Watch): Promise<void> {
  const { store, bus, log } = state.deps
  const { ends } = watch.unreadable
  const leftovers = await store.turns.unannounced(SCAN_LIMIT, [...ends])
  // A bus that is away would count each try as events lost, and start their sessions' logs over.
  if (leftovers.length > 0 && !(await isReady(bus))) return
  const now = performance.now()
  const before = watch.unsaidSince
  watch.unsaidSince = new Map()
  await each(state, ends, leftovers, turnOf, async ({ session_id, turn_id, events }) => {
    const opened = events()
    const last = opened.at(-1)?.key ?? turn_id
    const since = before.get(last) ?? now
    watch.unsaidSince.set(last, since)
    if (now - since < OWNERS_WORD_MS) return
    const messages = await store.messages.ofTurn(turn_id)
    const said = opened.flatMap(({ key, event }) => {
      const whole = hydrate(event, messages)
      return whole ? [{ type: whole.type, turn_id, data: JSON.stringify(whole), once: key, again: true }] : []
    })
    // The log of one session may refuse what the others take.
    const isSaid = await bus.append(session_id, said).catch((err: unknown) => {
      log.warn({ err, turn_id }, 'announcements of a turn could not be said')
      return null
    })
    if (isSaid) await store.turns.forgetAnnouncements([turn_id])
  })
}

const isReady = (bus: EngineState['deps']['bus']): Promise<boolean> =>
  bus.ready().then(
    () => true,
    () => false,
  )
