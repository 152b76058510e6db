/**
 * A replica's appends to Redis: of each session one at a time, and those that come meanwhile go together.
 * An append whose answer was lost is repeated under the same number and takes effect once. Events that had
 * to be given up leave a mark: the session's log begins anew, so that its readers get a gap.
 */

import type { Bus, BusEvent } from './bus.ts'
import { sessionTag } from './cursor.ts'
import type { Link } from './link.ts'
import type { RedisBusDeps } from './redis.ts'
import type { Scripts } from './scripts.ts'

/** Events of one script call: Redis serves nobody else meanwhile. */
const MOST_AT_ONCE = 500

interface Job {
  events: BusEvent[]
  resolve(cursors: string[]): void
  reject(error: unknown): void
}

export interface Appends {
  append: Bus['append']
  /** Redis is back: sessions whose events were given up say so to their readers. */
  mend(): void
}

export function createAppends(link: Link, scripts: Scripts, metrics: RedisBusDeps['metrics']): Appends {
  const lines = new Map<string, Job[]>()
  const broken = new Set<string>()
  let number = 0

  const append = (session: string, events: BusEvent[]): Promise<string[]> =>
    new Promise((resolve, reject) => {
      const job: Job = { events, resolve, reject }
      const line = lines.get(session)
      if (line) {
        line.push(job)
        return
      }
      const fresh = [job]
      lines.set(session, fresh)
      void drain(session, fresh)
    })

  /** Never rejects. */
  async function drain(session: string, line: Job[]): Promise<void> {
    const tag = sessionTag(session)
    while (line.length > 0) {
      const jobs = takeSome(line)
      const events = jobs.flatMap((job) => job.events)
      const mine = ++number
      const reset = broken.has(session)
      try {
        const cursors = await link.persist(() => scripts.append(session, tag, mine, events, reset))
        broken.delete(session)
        metrics?.eventsAppended(events.length)
        let at = 0
        for (const job of jobs) {
          job.resolve(cursors.slice(at, at + job.events.length))
          at += job.events.length
        }
      } catch (thrown) {
        broken.add(session)
        metrics?.eventsLost(events.length)
        for (const job of jobs) job.reject(thrown)
      }
    }
    lines.delete(session)
  }

  return {
    append,
    mend() {
      for (const session of broken) append(session, []).catch(() => {})
    },
  }
}

/** Whole jobs from the front, at least one. */
function takeSome(line: Job[]): Job[] {
  let size = 0
  let count = 0
  for (const { events } of line) {
    size += events.length
    if (count > 0 && size > MOST_AT_ONCE) break
    count++
  }
  return line.splice(0, count)
}
