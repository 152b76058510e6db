/**
 * What keeps turns alive across processes: the heartbeat of our leases, and the scan for work that nobody
 * owns. Both run at a third of the lease; losing the bus costs at most that long.
 */
import type { Logger } from 'pino'
import { inFull, isUnavailable } from '../errors.ts'
import { type AnnouncedEvent, EVERYONE, Unreadable } from '../store/store.ts'
import { CANCELLED, OWNER_LOST, requestStop } from './active.ts'
import { hydrate } from './events.ts'
import type { Owned } from './owned.ts'

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
  /** Of turns that are to be run */
  running: Help
  /** Of turns whose end, or wait, is to be announced */
  announcing: Help
}

/** Looks at once; beats and looks again until `stop`. What fails is logged, and tried the next time. */
export function startLeases(owned: Owned): Leases {
  const { settings, log } = owned.deps
  const every = (settings.leaseSeconds * 1000) / 3
  const watch: Watch = {
    storeAwayAt: Number.NEGATIVE_INFINITY,
    unsaidSince: new Map(),
    running: createHelp(log),
    announcing: createHelp(log),
  }
  const beat = guarded(owned, watch, 'heartbeat failed', () => heartbeat(owned))
  const look = guarded(owned, watch, 'scan failed', () => scan(owned, watch))
  const timers = [setInterval(beat, every), setInterval(look, every)]
  for (const timer of timers) timer.unref()
  void look()
  return {
    look,
    leave: watch.running.leave,
    retry(turn) {
      if (watch.running.unreadable.delete(turn)) void look()
    },
    stop() {
      for (const timer of timers) clearInterval(timer)
    },
  }
}

/** One at a time, and once more for all that came meanwhile: a slow store must not pile up scans. */
function guarded(
  owned: Owned,
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
      owned.deps.log.warn({ err }, message)
    } finally {
      isBusy = false
    }
  }
}

async function heartbeat(owned: Owned): Promise<void> {
  const { store, settings } = owned.deps
  // Those of this moment: one that begins while the store answers has a lease of its own.
  const running = [...owned.active]
  if (running.length === 0) return
  const sessions = running.map(([session]) => session)
  const rows = await store.turns.heartbeat(settings.replica, sessions, settings.leaseSeconds)
  const kept = new Map(rows.map((row) => [row.session_id, row]))
  for (const [session, mine] of running) {
    if (mine.phase === 'ended') continue
    const row = kept.get(session)
    if (!row) requestStop(mine, OWNER_LOST)
    // Whoever asked for it could not reach this process over the bus.
    else if (row.cancelled_turn === mine.turn.id) requestStop(mine, CANCELLED)
  }
}

async function scan(owned: Owned, watch: Watch): Promise<void> {
  if (owned.isDraining()) return
  // A process that was frozen wakes here: it must not take its own turns for somebody's.
  await heartbeat(owned)
  await takeOver(owned, watch)
  const { turns } = owned.deps.store
  const { help } = watch.running
  for (const session of await turns.idleQueues(SCAN_LIMIT))
    await help(session, () => owned.startNext(session))
  await expireApprovals(owned, watch)
  // Decided, and whoever took the decision died before it could resume the turn.
  for (const turn of await turns.resumable(SCAN_LIMIT)) await help(turn, () => owned.resume(turn))
  await announceLeftovers(owned, watch)
}

type Help = ReturnType<typeof createHelp>

/** One turn that cannot be helped keeps no other from its help; a store that is away keeps all of them. */
function createHelp(log: Logger) {
  /** Turns that could not be decrypted: only a later process, or another, has their keys */
  const unreadable = new Set<string>()

  function leave(turn: string, why: unknown): void {
    if (!unreadable.has(turn)) log.error({ turn_id: turn, reason: inFull(why) }, UNREADABLE)
    unreadable.add(turn)
  }

  /** `id`: of the turn or session; null where only what is thrown can tell. */
  async function help(id: string | null, work: () => Promise<void>): Promise<void> {
    await work().catch((err: unknown) => {
      if (isUnavailable(err)) throw err
      const turn = err instanceof Unreadable ? (err.turn ?? id) : null
      if (turn === null) return log.error({ err, id }, 'a turn could not be helped')
      leave(turn, err)
    })
  }

  return { unreadable, leave, help }
}

const UNREADABLE =
  'a turn waits for its encryption key: put the key back into BATON_ENCRYPTION_KEYS and start again'

async function takeOver(owned: Owned, watch: Watch): Promise<void> {
  const { store, settings, log, metrics } = owned.deps
  const lease = { owner: settings.replica, seconds: settings.leaseSeconds }
  // Nobody could prolong a lease while the store was away: its owners come first.
  if (performance.now() - watch.storeAwayAt < settings.leaseSeconds * 1000) return
  let isMore = true
  const { unreadable, help } = watch.running
  // One by one: what cannot be read must not take others along.
  const takeOne = async () => {
    const [lost] = await store.turns.recover(lease, 1, [...unreadable])
    isMore = lost !== undefined
    if (!lost) return
    const { turn, fence, announce, was_handed_over } = lost
    const reason = was_handed_over ? 'handed_over' : 'lost'
    const line = { turn_id: turn.id, recoveries: turn.recoveries, reason }
    log[was_handed_over ? 'info' : 'warn'](line, 'turn taken over')
    metrics.turnRecovered(reason)
    owned.launch(turn, fence, null, { kind: 'recovered', announce, was_handed_over })
  }
  for (let count = 0; isMore && !owned.isDraining() && count < SCAN_LIMIT; count++) {
    await help(null, () => owned.track(takeOne()))
  }
}

async function expireApprovals(owned: Owned, { running }: Watch): Promise<void> {
  const { store } = owned.deps
  const lapsed = { decision: 'expired', reason: null, sealed_arguments: null, by: 'expiry' } as const
  for (const { turn_id, call_id } of await store.turns.lapsedApprovals(SCAN_LIMIT)) {
    await running.help(turn_id, async () => {
      await store.executions.decide(EVERYONE, turn_id, call_id, lapsed)
      await owned.resume(turn_id)
    })
  }
}

/** What a turn that ended, or waits, committed and, because its owner died or the bus was away, never said. */
async function announceLeftovers(owned: Owned, watch: Watch): Promise<void> {
  const { store, bus } = owned.deps
  const { unreadable, help } = watch.announcing
  const leftovers = await store.turns.unannounced(SCAN_LIMIT, [...unreadable])
  // A bus that is away would count each try as events lost, and start their sessions' logs over.
  if (leftovers.length > 0 && !(await isReady(bus))) return
  const now = performance.now()
  const before = watch.unsaidSince
  watch.unsaidSince = new Map()
  for (const { session_id, turn_id, events } of leftovers) {
    await help(turn_id, async () => {
      const opened = events()
      const last = opened.at(-1)?.key ?? turn_id
      const since = before.get(last) ?? now
      watch.unsaidSince.set(last, since)
      if (now - since >= OWNERS_WORD_MS) await announce(owned, session_id, turn_id, opened)
    })
  }
}

async function announce(
  { deps: { store, bus, log } }: Owned,
  session: string,
  turn_id: string,
  events: readonly AnnouncedEvent[],
): Promise<void> {
  const messages = await store.messages.ofTurn(turn_id)
  const said = events.flatMap(({ key, event }) => {
    const whole = hydrate(event, messages)
    return whole ? [{ type: whole.type, turn_id, data: JSON.stringify(whole), once: key, again: true }] : []
  })
  // The log of one session may refuse what the others take.
  const isSaid = await bus.append(session, said).catch((err: unknown) => {
    log.warn({ err, turn_id }, 'announcements of a turn could not be said')
    return null
  })
  if (isSaid) await store.turns.forgetAnnouncements([turn_id])
}

const isReady = (bus: Owned['deps']['bus']): Promise<boolean> =>
  bus.ready().then(
    () => true,
    () => false,
  )
