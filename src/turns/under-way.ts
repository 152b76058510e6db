/** Turns that are opened, taken, run or given away: what a process that leaves waits for. */
import { within } from '../within.ts'

export interface UnderWay {
  /** The work itself; whoever asked for it hears of its failure. */
  track<T>(work: Promise<T>): Promise<T>
  /** Resolves when nothing is under way, or after `ms`. */
  over(ms: number): Promise<void>
}

export function createUnderWay(): UnderWay {
  const works = new Set<Promise<unknown>>()
  /** Those included that come meanwhile: a turn that was being opened is given away. */
  const all = async () => {
    while (works.size > 0) await Promise.allSettled(works)
  }
  return {
    track(work) {
      works.add(work)
      const over = () => void works.delete(work)
      work.then(over, over)
      return work
    },
    async over(ms) {
      await within(ms, all())
    },
  }
}
