/**
 * Whether this replica takes one more turn. What it cannot serve soon it refuses at once, so that the turns
 * that it has taken keep their pace.
 */
import { BatonError } from '../errors.ts'
import type { Slots } from './slots.ts'

export interface Room {
  /** A place for a turn while it is opened, until the answer is called. Throws `unavailable`. */
  enter(): () => void
  close(): void
}

/** `most`: turns that may run or wait here; `pace`: refuses too, however few they are. */
export function createRoom(slots: Slots, most: number, pace: Pace): Room {
  let opening = 0
  return {
    enter() {
      if (slots.running() + slots.waiting() + opening >= most) {
        throw new BatonError('unavailable', 'Too many turns run and wait here.', { retryAfter: 2 })
      }
      if (pace.isBehind()) {
        throw new BatonError('unavailable', 'This replica has more work than it can do in time.', {
          retryAfter: 1,
        })
      }
      opening++
      return () => {
        opening--
      }
    },
    close: pace.close,
  }
}

export interface Pace {
  /** The event loop has been late without a pause: not for one long task, but for want of time. */
  isBehind(): boolean
  close(): void
}

/** Of the time that passed, what the process must have had for its lateness to be its own work's. */
const OWN_SHARE = 0.25

/**
 * Watches how late timers are. The least lateness of a while is that of a queue that never empties; peaks, the
 * collector's or a burst's, do not count (the same reasoning as CoDel's, RFC 8289 section 3). Nor does a time in
 * which the process got next to no processor: to refuse turns would not give it any.
 */
export function watchPace(limitMs: number, sampleMs = 50, samples = 20): Pace {
  let late = 0
  let last = performance.now()
  let used = process.cpuUsage()
  const timer = setInterval(() => {
    const now = performance.now()
    const { user, system } = process.cpuUsage(used)
    const passed = now - last
    const isLate = passed - sampleMs >= limitMs && (user + system) / 1000 >= passed * OWN_SHARE
    late = isLate ? late + 1 : 0
    last = now
    used = process.cpuUsage()
  }, sampleMs)
  timer.unref()
  return { isBehind: () => late >= samples, close: () => clearInterval(timer) }
}
