/**
 * A replica's appends to Redis, one script call at a time: what comes meanwhile, for whatever session, goes with the
 * next one. A call whose answer was lost is repeated under the same number and takes effect once. Events that had to be
 * given up leave a mark: their session's log starts over, so that its readers get a gap and not a log that only looks
 * whole.
 */
import { BatonError } from '../../errors.ts'
import type { Bus, BusEvent } from '../bus.ts'
import type { RedisBusDeps } from '../redis.ts'
import type { Link } from './link.ts'
import type { Group, Scripts } from './scripts.ts'

/** Events of one script call: Redis serves nobody else meanwhile. */
const MOST_AT_ONCE = 500

interface Job {
  events: BusEvent[]
  resolve(): void
  reject(error: unknown): void
}
interface Batch extends Group {
  jobs: Job[]
}

/** All appends of a replica. */
interface Appends {
  append: Bus['append']
  /** Redis is back: sessions whose events were given up say so to their readers. */
  resetBroken(): void
}

/** One for each `scripts`: Redis knows a repeated call by the writer's name and its number. */
export function createAppends(link: Link, scripts: Scripts, metrics: RedisBusDeps['metrics']): Appends {
  const waiting = new Map<string, Job[]>()
  const broken = new Set<string>()
  let isSending = false
  let number = 0

  const append = (session: string, events: BusEvent[]): Promise<void> =>
    new Promise((resolve, reject) => {
      const jobs = waiting.get(session)
      const job: Job = { events, resolve, reject }
      if (jobs) jobs.push(job)
      else waiting.set(session, [job])
      if (isSending) return
      isSending = true
      // Other appends of this tick join.
      queueMicrotask(() => void send())
    })

  /** Never rejects. */
  async function send(): Promise<void> {
    while (waiting.size > 0) {
      const batches = takeSome(waiting, broken)
      const mine = ++number
      try {
        let tries = 0
        const answers = await link.persist(() => scripts.append(mine, batches, tries++ > 0))
        for (const [i, batch] of batches.entries()) settle(batch, answers[i])
      } catch (thrown) {
        for (const batch of batches) settle(batch, thrown)
      }
    }
    isSending = false
  }

  function settle({ session, events, jobs }: Batch, failure: unknown): void {
    if (failure === null) {
      broken.delete(session)
      metrics?.eventsAppended(events.length)
      for (const { resolve } of jobs) resolve()
      return
    }
    broken.add(session)
    metrics?.eventsLost(events.length)
    const error =
      failure instanceof BatonError
        ? failure
        : new BatonError('unavailable', 'The event bus refused events.', { retryAfter: 1, cause: failure })
    for (const { reject } of jobs) reject(error)
  }

  return {
    append,
    resetBroken() {
      for (const session of broken) append(session, []).catch(() => {})
    },
  }
}

/** Takes whole jobs, at least one, with sessions in the order in which they came. */
function takeSome(waiting: Map<string, Job[]>, broken: ReadonlySet<string>): Batch[] {
  const batches: Batch[] = []
  let room = MOST_AT_ONCE
  for (const [session, jobs] of waiting) {
    let count = 0
    for (const { events } of jobs) {
      // A log that only starts over (resetBroken) is work as well.
      const work = Math.max(1, events.length)
      if (room < work && room < MOST_AT_ONCE) break
      room -= work
      count++
    }
    if (count === 0) break
    const taken = jobs.splice(0, count)
    if (jobs.length === 0) waiting.delete(session)
    const events = taken.flatMap((job) => job.events)
    batches.push({ session, events, reset: broken.has(session), jobs: taken })
  }
  return batches
}
