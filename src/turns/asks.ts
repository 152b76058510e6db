/**
 * Wishes that only a turn's owner can answer. They go over the bus, where a wish and its answer may be lost, and
 * nobody answers for an owner that died: then it is not claimed that anything was done.
 */
import { newId } from '../chat/ids.ts'
import type { RestartAnswer } from './active.ts'

const ANSWER_MS = 1_000

/** `tell` sends the wish under an id, with which its answer comes back. */
export function createAsks<Wish>(tell: (wish: Wish & { ask: string }) => Promise<void>) {
  const open = new Map<string, (answer: RestartAnswer) => void>()
  return {
    /** Null: nobody answered in time. */
    async ask(wish: Wish): Promise<RestartAnswer | null> {
      const ask = newId('req')
      let timer: NodeJS.Timeout | undefined
      const answered = new Promise<RestartAnswer | null>((resolve) => {
        open.set(ask, resolve)
        timer = setTimeout(() => resolve(null), ANSWER_MS)
      })
      try {
        await tell({ ...wish, ask })
        return await answered
      } finally {
        clearTimeout(timer)
        open.delete(ask)
      }
    },
    answered: (ask: string, answer: RestartAnswer) => open.get(ask)?.(answer),
  }
}
