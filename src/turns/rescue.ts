/**
 * The scan for work that nobody owns: turns whose owner was lost, idle queues, approvals that expired or were decided,
 * and events that were committed but never said.
 */
import type { Logger } from 'pino'
import type { BusEvent } from '../bus/bus.ts'
import { inFull, isUnavailable } from '../errors.ts'
import { type AnnouncedEvent, EVERYONE, type Unannounced, Unreadable } from '../store/store.ts'
import type { EngineDeps } from './deps.ts'
import { hydrate } from './events.ts'
import type { Owned } from './owned.ts'

/** Turns taken over in one scan: a replica that starts after a crash must not drown in them. */
const SCAN_LIMIT = 20

/**
 * An announcement is left to its turn's owner for this time, which is longer than the bus tries an append. Said by
 * another replica, it could come before the owner's last events.
 */
const LEFT_TO_OWNER_MS = 3_000
/**
 * How often announcements are tried that the log of their session refuses although the bus works, as a Redis does that
 * takes no values as large. Each try costs the events that are said beside them.
 */
const MOST_REFUSALS = 3

export interface Rescue {
  /** `mayTakeOver`: owners have had the time to renew their leases. Throws `unavailable` if the store is away. */
  scan(mayTakeOver: boolean): Promise<void>
  /** A turn turned out to be unreadable while it ran here: that is logged once, and the turn not taken again. */
  leave(turn: string, why: Unreadable): void
  /**
   * A turn is to be cancelled, which needs no reading: if it was left as unreadable (the answer), the next scan takes
   * it.
   */
  retry(turn: string): boolean
}

export type RescueDeps = Pick<EngineDeps, 'store' | 'bus' | 'settings' | 'log' | 'metrics'>

export function createRescue({ store, bus, settings, log, metrics }: RescueDeps, owned: Owned): Rescue {
  /** For turns that are to be run, and for those whose end, or wait, is to be announced */
  const [running, announcing] = [createHelp(log), createHelp(log)]
  /** Announcements that were found unsaid, and when they were first found */
  let unsaidSince = new Map<string, number>()
  /** How often the announcements of a turn were refused */
  const refusals = new Map<string, number>()

  /** Turns that go on here are not lost, even if the store was too slow to keep their leases. */
  const held = () =>
    [...owned.active.values()].flatMap(({ turn, stop }) => (stop.signal.aborted ? [] : turn.id))

  async function takeOver(): Promise<void> {
    let isMore = true
    const takeOne = async () => {
      const lost = await store.turns.recover(settings.lease, [...running.unreadable, ...held()])
      isMore = lost !== null
      if (!lost) return
      const { turn, fence, announce, was_handed_over } = lost
      const reason = was_handed_over ? 'handed_over' : 'lost'
      const line = { turn_id: turn.id, recoveries: turn.recoveries, reason }
      log[was_handed_over ? 'info' : 'warn'](line, 'turn taken over')
      metrics.turnRecovered(reason)
      owned.launch(turn, fence, { kind: 'recovered', announce, was_handed_over })
    }
    for (let count = 0; isMore && !owned.isDraining() && count < SCAN_LIMIT; count++) {
      await running.help(null, takeOne)
    }
  }

  async function expireApprovals(): Promise<void> {
    const expired = { decision: 'expired', reason: null, sealed_arguments: null, by: 'expiry' } as const
    for (const { turn_id, call_id } of await store.turns.expiredApprovals(SCAN_LIMIT)) {
      await running.help(turn_id, () => store.executions.decide(EVERYONE, turn_id, call_id, expired))
    }
  }

  /** Says what a turn that ended, or waits, committed and never said, because its owner died or the bus was away. */
  async function announceLeftovers(): Promise<void> {
    const leftovers = await store.turns.unannounced(SCAN_LIMIT, [...announcing.unreadable])
    // While the bus is away, each try would count as lost events, and start the sessions' logs over.
    if (leftovers.length > 0 && !(await isReady(bus))) return
    const now = performance.now()
    const before = unsaidSince
    unsaidSince = new Map()
    for (const left of leftovers) {
      await announcing.help(left.turn_id, async () => {
        const opened = await left.events()
        const last = opened.at(-1)?.key ?? left.turn_id
        const since = before.get(last) ?? now
        unsaidSince.set(last, since)
        if (now - since >= LEFT_TO_OWNER_MS) await announce(left, opened)
      })
    }
  }

  async function announce(
    { session_id, turn_id, epoch }: Unannounced,
    events: readonly AnnouncedEvent[],
  ): Promise<void> {
    const refused = refusals.get(turn_id) ?? 0
    // Nothing is said then: readers get a gap in place of what was refused, and what is stored.
    const said = refused < MOST_REFUSALS ? await worded(turn_id, events) : []
    try {
      await bus.append(session_id, said)
    } catch (err) {
      refusals.set(turn_id, refused + 1)
      // The log of one session may refuse what the others take.
      return log.warn({ err, turn_id }, 'announcements of a turn could not be said')
    }
    refusals.delete(turn_id)
    await store.turns.forgetAnnouncements([turn_id], epoch)
  }

  async function worded(turn_id: string, events: readonly AnnouncedEvent[]): Promise<BusEvent[]> {
    const messages = await store.messages.ofTurn(turn_id)
    return events.flatMap(({ key, event, lost = false }) => {
      const whole = hydrate(event, messages)
      const data = JSON.stringify(whole)
      return whole ? [{ type: whole.type, turn_id, data, once: key, again: true, lost }] : []
    })
  }

  return {
    async scan(mayTakeOver) {
      const { turns } = store
      if (mayTakeOver) await takeOver()
      for (const session of await turns.idleQueues(SCAN_LIMIT))
        await running.help(session, () => owned.startNext(session))
      await expireApprovals()
      // These expired just now, or the replica that took the decision died before it could resume the turn.
      for (const turn of await turns.resumable(SCAN_LIMIT)) await running.help(turn, () => owned.resume(turn))
      await announceLeftovers()
    },
    leave: running.leave,
    retry: (turn) => running.unreadable.delete(turn),
  }
}

/** One turn that cannot be helped does not stop the help for others; a store that is away does. */
function createHelp(log: Logger) {
  /** Turns that could not be decrypted: only a later process, or another, has their keys */
  const unreadable = new Set<string>()

  function leave(turn: string, why: unknown): void {
    if (!unreadable.has(turn)) log.error({ turn_id: turn, reason: inFull(why) }, UNREADABLE)
    unreadable.add(turn)
  }

  /** `id`: of the turn or session; null if only the thrown error can name it. */
  async function help(id: string | null, work: () => Promise<unknown>): Promise<void> {
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

const isReady = (bus: EngineDeps['bus']): Promise<boolean> =>
  bus.ready().then(
    () => true,
    () => false,
  )
