import { isUnavailable } from '../errors.ts'

const TRIES = 4
const LONGEST_PAUSE_MS = 500

/**
 * Writes what nobody could give again, such as rotated tokens: while the store is away it is tried until it is
 * back, and once more when the process ends. `sleep` rejects when that begins.
 */
export async function insist<T>(
  write: () => Promise<T>,
  sleep: (ms: number, ending: AbortSignal) => Promise<unknown>,
  ending: AbortSignal,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    const isLast = ending.aborted
    try {
      return await write()
    } catch (thrown) {
      if (isLast || (tries >= TRIES && !isUnavailable(thrown))) throw thrown
      await sleep(Math.min(100 * 2 ** tries, LONGEST_PAUSE_MS), ending).catch(() => {})
    }
  }
}
