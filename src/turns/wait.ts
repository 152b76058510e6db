/** Finds a turn for a caller, or waits for it: for its end, or until it needs input. */
import type { Bus } from '../bus/bus.ts'
import { TERMINAL } from '../chat/event.ts'
import { BatonError, isUnavailable } from '../errors.ts'
import type { Caller } from '../ports.ts'
import type { Scope, Standing, Store, Turn } from '../store/store.ts'
import { pause } from '../within.ts'
import { PATIENCE_MS } from './loop-deps.ts'

/** The turn is polled, too: without the bus a caller would wait for ever. */
const POLL_MS = 1_000
const SETTLING: ReadonlySet<string> = new Set([...TERMINAL, 'turn.awaiting_input'])
const isSettled = (turn: Pick<Turn, 'state' | 'ended_at'>) =>
  turn.ended_at !== null || turn.state === 'awaiting_input'

/** Throws turn_not_found. */
export const findTurn = async (store: Pick<Store, 'turns'>, scope: Scope, id: string): Promise<Turn> =>
  (await store.turns.get(scope, id)) ?? noTurn(id)

/** Likewise, for those who only have to know how far the turn is. */
export const findStanding = async (
  store: Pick<Store, 'turns'>,
  scope: Scope,
  id: string,
): Promise<Standing> => (await store.turns.standing(scope, id)) ?? noTurn(id)

function noTurn(id: string): never {
  throw new BatonError('turn_not_found', `No turn ${id} exists.`)
}

export type Wait = ReturnType<typeof createWait>

/**
 * Throws turn_not_found, and `unavailable` if the store is away at the beginning or the end. The wait resolves with the
 * turn as it is then. `seconds` null: no limit. A turn that was just read need not be read at the beginning.
 */
export function createWait(store: Pick<Store, 'turns'>, bus: Pick<Bus, 'read' | 'present'>) {
  async function watch({ id, session_id }: Standing, signal: AbortSignal, wake: () => void): Promise<void> {
    const after = await bus.present(session_id)
    // What was said before, the store has by now.
    wake()
    for await (const item of bus.read(session_id, { turn: id, after, signal })) {
      if (!('events' in item) || item.events.some(({ type }) => SETTLING.has(type))) wake()
    }
  }

  return async (
    caller: Caller,
    known: string | Standing,
    seconds: number | null,
    signal: AbortSignal,
    isDone = isSettled,
  ): Promise<Turn> => {
    const id = typeof known === 'string' ? known : known.id
    // The turn may be megabytes: it is read as a whole only when it is given out.
    if (seconds === 0) return findTurn(store, caller, id)
    const turn = typeof known === 'string' ? await findStanding(store, caller, id) : known
    const settled = isDone(turn) ? await findTurn(store, caller, id) : null
    // A person may have decided in between: then the turn goes on.
    if (settled && isDone(settled)) return settled
    let seenAt = performance.now()
    const until = seconds === null ? Number.POSITIVE_INFINITY : seenAt + seconds * 1000
    /** Null while the turn goes on. A store that is away costs the caller what it costs the turn: time. */
    const look = async (isLast: boolean): Promise<Turn | null> => {
      try {
        const isOver = isLast || isDone(await findStanding(store, caller, id))
        const now = isOver ? await findTurn(store, caller, id) : null
        seenAt = performance.now()
        return now && (isLast || isDone(now)) ? now : null
      } catch (thrown) {
        if (isLast || !isUnavailable(thrown) || performance.now() > seenAt + PATIENCE_MS) throw thrown
        return null
      }
    }
    const stop = new AbortController()
    const over = AbortSignal.any([signal, stop.signal])
    let wake = () => {}
    const news = () =>
      new Promise<void>((resolve) => {
        wake = resolve
      })
    let signalled = news()
    watch(turn, over, () => wake()).catch(() => {})
    try {
      while (true) {
        const left = Math.max(0, until - performance.now())
        await Promise.race([signalled, pause(Math.min(POLL_MS, left), over)])
        signalled = news()
        const now = await look(signal.aborted || performance.now() >= until)
        if (now) return now
      }
    } finally {
      stop.abort()
    }
  }
}
