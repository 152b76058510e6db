/**
 * Cancels a turn, wherever it runs, waits or is queued. The mark in the store comes first: the process that owns the
 * turn, or takes it later, sees the mark there even if no message reaches it.
 */
import { NO_USAGE } from '../chat/message.ts'
import type { Caller, Turns } from '../ports.ts'
import type { Standing, Turn } from '../store/store.ts'
import { CANCELLED, requestStop } from './active.ts'
import { tell } from './control.ts'
import type { EngineDeps } from './deps.ts'
import { announcedEnd, sayDirectly } from './events.ts'
import type { Owned } from './owned.ts'
import { findStanding, findTurn, type Wait } from './wait.ts'

/** How long a waiting cancel gives the running turn to end. */
const WAIT_SECONDS = 30
/** A cancelled turn that has not ended after this time is taken from its owner, alive or not. */
const DEADLINE_MS = 10_000

/** `noteEndAnnounced`: the end of this turn is in the stream. */
export function createCancel(
  { store, bus, log }: Pick<EngineDeps, 'store' | 'bus' | 'log'>,
  { active, resume }: Owned,
  wait: Wait,
  noteEndAnnounced: (turn: string) => void,
): Turns['cancel'] {
  /** Turns whose owner has been told to end them and has until a deadline */
  const watched = new Set<string>()

  /** An owner that does not act on a cancel in time loses the turn; the process that takes it over only ends it. */
  function breakLater({ id, session_id }: Standing, epoch: number): void {
    if (watched.has(id)) return
    watched.add(id)
    const timer = setTimeout(() => {
      watched.delete(id)
      const broken = store.turns.breakLease(id, epoch).then(async (isBroken) => {
        if (!isBroken) return
        log.warn({ turn_id: id }, 'a cancelled turn was taken from its owner')
        await tell(bus, { op: 'handed_over', session_id })
      })
      broken.catch((err: unknown) => log.warn({ err, turn_id: id }, 'a lease could not be broken'))
    }, DEADLINE_MS)
    timer.unref()
  }

  async function endQueued(turn: Standing): Promise<void> {
    const end = { state: 'cancelled' } as const
    const announced = announcedEnd({ ...turn, usage: NO_USAGE }, end)
    // It may have begun to run meanwhile: then its owner sees the request before its first step.
    if (!(await store.turns.endQueued(turn, end, [announced]))) return
    await sayDirectly(bus, announced).then(
      () => noteEndAnnounced(turn.id),
      (err: unknown) => log.warn({ err, turn_id: turn.id }, 'announcement is left to the scan'),
    )
  }

  return async (caller: Caller, id: string, waits: AbortSignal | null): Promise<Turn> => {
    const epoch = await store.turns.requestCancel(caller, id)
    const turn = await findStanding(store, caller, id)
    const mine = active.get(turn.session_id)
    if (mine?.turn.id === id) requestStop(mine, CANCELLED)
    else if (turn.state === 'queued') await endQueued(turn)
    else if (turn.state === 'awaiting_input') await resume(id)
    else if (turn.state === 'running')
      await tell(bus, { op: 'cancel', turn_id: id, session_id: turn.session_id })
    if (epoch !== null && turn.state === 'running') breakLater(turn, epoch)
    return waits
      ? wait(caller, id, WAIT_SECONDS, waits, ({ ended_at }) => ended_at !== null)
      : findTurn(store, caller, id)
  }
}
