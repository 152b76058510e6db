/**
 * What keeps turns alive across processes: the heartbeat of our leases, and the scan for work that nobody owns
 * (rescue.ts). Both run at a third of the lease; losing the bus costs at most that long.
 */
import { isUnavailable } from '../errors.ts'
import { CANCELLED, OWNER_LOST, requestStop } from './active.ts'
import type { Owned } from './owned.ts'
import { createRescue, type Rescue, type RescueDeps } from './rescue.ts'

export interface Leases extends Pick<Rescue, 'leave'> {
  /** Looks for work now: somebody said that there is some */
  look(): Promise<void>
  /** A turn is to be cancelled, which needs no reading: looks for it if it was left as unreadable */
  retry(turn: string): void
  stop(): void
}

/** Looks at once; beats and looks again until `stop`. What fails is logged, and tried again next time. */
export function startLeases(deps: RescueDeps, owned: Owned): Leases {
  const { settings, log } = deps
  const leaseMs = settings.lease.seconds * 1000
  const rescue = createRescue(deps, owned)
  let storeAwayAt = Number.NEGATIVE_INFINITY

  const failed = (message: string) => (err: unknown) => {
    if (isUnavailable(err)) storeAwayAt = performance.now()
    log.warn({ err }, message)
  }
  const beat = oneAtATime(() => heartbeat(deps, owned), failed('heartbeat failed'))
  const look = oneAtATime(async () => {
    if (owned.isDraining()) return
    // A process that was frozen may wake here. Its leases come first, so that the scan does not take its own turns for
    // lost ones.
    await heartbeat(deps, owned)
    // Nobody could renew a lease while the store was away: owners get the time to do so first.
    await owned.track(rescue.scan(performance.now() - storeAwayAt >= leaseMs))
  }, failed('scan failed'))

  const timers = [setInterval(beat, leaseMs / 3), setInterval(look, leaseMs / 3)]
  for (const timer of timers) timer.unref()
  void look()
  return {
    look,
    leave: rescue.leave,
    retry(turn) {
      if (rescue.retry(turn)) void look()
    },
    stop() {
      for (const timer of timers) clearInterval(timer)
    },
  }
}

/** Calls that come during the work share one more run: a slow store must not pile up scans. */
function oneAtATime(work: () => Promise<void>, failed: (err: unknown) => void): () => Promise<void> {
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
      failed(err)
    } finally {
      isBusy = false
    }
  }
}

async function heartbeat(
  { store, settings }: Pick<RescueDeps, 'store' | 'settings'>,
  { active }: Pick<Owned, 'active'>,
): Promise<void> {
  // The turns of this moment: a turn that begins while the store answers has a fresh lease.
  const running = [...active]
  if (running.length === 0) return
  const sessions = running.map(([session]) => session)
  const { owner, seconds } = settings.lease
  const rows = await store.turns.heartbeat(owner, sessions, seconds)
  const kept = new Map(rows.map((row) => [row.session_id, row]))
  for (const [session, mine] of running) {
    const row = kept.get(session)
    if (!row) requestStop(mine, OWNER_LOST)
    // The message may not have reached this process over the bus.
    else if (row.cancelled_turn === mine.turn.id) requestStop(mine, CANCELLED)
  }
}
