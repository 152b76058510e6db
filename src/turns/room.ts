/**
 * How many turns this replica runs at once, and whether it takes one more. A turn that it cannot serve soon is refused
 * at once, so that the turns taken before keep their pace.
 */
import { BatonError } from '../errors.ts'

/** How many turns this process runs at once, shared fairly: round-robin over owners. */
export interface Slots {
  /**
   * Resolves with the function that gives the slot back. A turn that is told to stop while it waits goes on without a
   * slot, since it only ends.
   */
  take(owner: string, signal: AbortSignal): Promise<() => void>
  /** How many turns have a slot or wait for one. */
  count(): number
  /** A slot that is asked for now has to be waited for. */
  isFull(): boolean
}

export function createSlots(limit: number): Slots {
  /** Who waits, by owner; the map's order is the order in which owners are served next */
  const queues = new Map<string, (() => void)[]>()
  let used = 0
  let waiting = 0
  const give = () => {
    used--
    const next = queues.entries().next()
    if (next.done) return
    const [owner, queue] = next.value
    queues.delete(owner)
    const grant = queue.shift()
    if (queue.length > 0) queues.set(owner, queue)
    grant?.()
  }
  const occupy = () => {
    used++
    return give
  }
  const inQueue = (owner: string, signal: AbortSignal) =>
    new Promise<() => void>((resolve) => {
      const grant = () => {
        signal.removeEventListener('abort', leave)
        resolve(occupy())
      }
      const leave = () => {
        const queue = queues.get(owner)?.filter((one) => one !== grant) ?? []
        if (queue.length > 0) queues.set(owner, queue)
        else queues.delete(owner)
        resolve(NO_SLOT)
      }
      signal.addEventListener('abort', leave, { once: true })
      queues.set(owner, [...(queues.get(owner) ?? []), grant])
    })
  return {
    count: () => used + waiting,
    isFull: () => used >= limit,
    async take(owner, signal) {
      if (signal.aborted) return NO_SLOT
      if (used < limit) return occupy()
      waiting++
      return inQueue(owner, signal).finally(() => waiting--)
    },
  }
}

const NO_SLOT = (): void => {}

interface Room {
  /** Reserves room for a turn that is being opened; returns the function that gives it back. Throws `unavailable`. */
  enter(): () => void
  close(): void
}

/**
 * So few turns are no overload, however late the event loop is: the cause is a start, a long history or a shared
 * machine, and refusing one more turn would spare the others next to nothing.
 */
const FEW = 32

/** `most`: turns that may run or wait here. Where the event loop is behind, one more is refused unless there are few. */
export function createRoom(slots: Slots, most: number, lateness: Lateness): Room {
  let opening = 0
  return {
    enter() {
      const there = slots.count() + opening
      if (there >= most) {
        throw new BatonError(
          'unavailable',
          'This replica has as many running and waiting turns as it can take.',
          { retryAfter: 2 },
        )
      }
      if (there >= FEW && lateness.isBehind()) {
        throw new BatonError('unavailable', 'This replica has more work than it can do in time.', {
          retryAfter: 1,
        })
      }
      opening++
      return () => {
        opening--
      }
    },
    close: lateness.close,
  }
}

export interface Lateness {
  /** The event loop is late more often than not: for want of time, not for one long task. */
  isBehind(): boolean
  close(): void
}

/** The loop is looked at this often, … */
const SAMPLE_MS = 50
/** … and judged by this many looks. */
const SAMPLES = 20
/** The share of a sample that the process must have had the processor for: else the lateness is not its own. */
const OWN_SHARE = 0.5

/**
 * Watches how late timers are. The loop is behind when half of the last samples were late: a burst or a garbage
 * collection is shorter. A sample in which the process got little processor time does not count, since refusing turns
 * would not give it more.
 */
export function watchLateness(limitMs: number): Lateness {
  const seen: boolean[] = []
  let late = 0
  let last = performance.now()
  let used = process.cpuUsage()
  const timer = setInterval(() => {
    const now = performance.now()
    const usage = process.cpuUsage()
    const passed = now - last
    const own = (usage.user + usage.system - used.user - used.system) / 1000
    const isLate = passed - SAMPLE_MS >= limitMs && own >= passed * OWN_SHARE
    seen.push(isLate)
    if (isLate) late++
    if (seen.length > SAMPLES && seen.shift()) late--
    last = now
    used = usage
  }, SAMPLE_MS)
  timer.unref()
  return { isBehind: () => late >= SAMPLES / 2, close: () => clearInterval(timer) }
}
