/**
 * Whether this replica takes one more turn. What it cannot serve soon it refuses at once, so that the turns
 * that it has taken keep their pace.
 */
import { BatonError } from '../errors.ts'
import type { Slots } from './slots.ts'

interface Room {
  /** Room for a turn while it is opened, until the answer is called. Throws `unavailable`. */
  enter(): () => void
  close(): void
}

/** `most`: turns that may run or wait here; `lateness`: refuses too, as soon as there is a turn to suffer from another. */
export function createRoom(slots: Slots, most: number, lateness: Lateness): Room {
  let opening = 0
  return {
    enter() {
      const there = slots.running() + slots.waiting() + opening
      if (there >= most) {
        throw new BatonError(
          'unavailable',
          'This replica has as many running and waiting turns as it can take.',
          { retryAfter: 2 },
        )
      }
      if (there > 0 && lateness.isBehind()) {
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
  /** The event loop is late more often than not: not for one long task, but for want of time. */
  isBehind(): boolean
  close(): void
}

/** Of the time that passed, what the process must have had for its lateness to be its own work's. */
const OWN_SHARE = 0.5

/**
 * Watches how late timers are. Half of a while's looks tell a queue that does not empty from peaks, the collector's
 * or a burst's. A time in which the process got little of a processor does not count: to refuse turns would not give
 * it any.
 */
export function watchLateness(limitMs: number, sampleMs = 50, samples = 20): Lateness {
  const seen: boolean[] = []
  let late = 0
  let last = performance.now()
  let used = process.cpuUsage()
  const timer = setInterval(() => {
    const now = performance.now()
    const usage = process.cpuUsage()
    const passed = now - last
    const own = (usage.user + usage.system - used.user - used.system) / 1000
    const isLate = passed - sampleMs >= limitMs && own >= passed * OWN_SHARE
    seen.push(isLate)
    if (isLate) late++
    if (seen.length > samples && seen.shift()) late--
    last = now
    used = usage
  }, sampleMs)
  timer.unref()
  return { isBehind: () => late >= samples / 2, close: () => clearInterval(timer) }
}
