/** Bounded waits, work that is repeated, and long work that yields to the event loop. */
import { setImmediate as nextPass, setTimeout as sleep } from 'node:timers/promises'

/** Resolves after `ms`, or when the signal says so; leaves no timer behind. */
export const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  sleep(ms, undefined, { signal }).catch(() => {})

/** The answer, or null if it takes longer than `ms`; leaves no timer behind. */
export async function within<T>(ms: number, answer: Promise<T>): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined
  const over = new Promise<null>((resolve) => {
    timer = setTimeout(() => resolve(null), ms)
  })
  return Promise.race([answer, over]).finally(() => clearTimeout(timer))
}

/**
 * The answer; rejects with the signal's reason if the signal is aborted first. The work then goes on for others who
 * wait for it. The rejection comes one pass of the event loop later, so that an answer that is there already wins.
 */
export async function unlessAborted<T>(signal: AbortSignal, answer: Promise<T>): Promise<T> {
  let leave = () => {}
  const left = new Promise<never>((_, reject) => {
    leave = () => void setImmediate(() => reject(signal.reason))
    if (signal.aborted) leave()
    else signal.addEventListener('abort', leave, { once: true })
  })
  return Promise.race([answer, left]).finally(() => signal.removeEventListener('abort', leave))
}

/**
 * A signal that aborts after `ms`, once everything that has arrived by then was read. After the whole process was
 * suspended, timers run before the answers that came meanwhile: AbortSignal.timeout throws those away.
 */
export function timeLimit(ms: number): AbortSignal {
  const controller = new AbortController()
  const end = () => controller.abort(new DOMException(`no answer within ${ms} ms`, 'TimeoutError'))
  setTimeout(() => setImmediate(end), ms).unref()
  return controller.signal
}

/** Does the work every `ms`, never twice at once, and keeps no process alive. The work must not reject. */
export function repeat(ms: number, work: () => Promise<unknown>) {
  let round: Promise<unknown> | null = null
  const timer = setInterval(() => {
    round ??= work().finally(() => {
      round = null
    })
  }, ms).unref()
  return {
    /** Waits for work that is under way. */
    async stop(): Promise<void> {
      clearInterval(timer)
      await round
    },
  }
}

/** Longest that long work holds the event loop at once. */
const SLICE_MS = 10

let lastYield: Promise<void> = Promise.resolve()

/** Waits for a pass of the event loop. When many callers yield, each pass resumes one. */
export function yieldToEventLoop(): Promise<void> {
  lastYield = lastYield.then(() => nextPass())
  return lastYield
}

let heldSince: number | null = null

/** How long work has held the event loop without a break, in ms: a tick comes only once no promise is left to run. */
function heldMs(): number {
  if (heldSince === null) {
    heldSince = performance.now()
    process.nextTick(() => {
      heldSince = null
    })
  }
  return performance.now() - heldSince
}

/** Work that goes on now would hold the event loop for long. */
export const isHeld = (): boolean => heldMs() > SLICE_MS

/**
 * Maps the items one by one, and yields to the event loop every few milliseconds, also while many short runs follow
 * each other.
 */
export async function inSlices<T, R>(items: readonly T[], work: (item: T) => R): Promise<R[]> {
  const made: R[] = []
  for (const item of items) {
    if (isHeld()) await yieldToEventLoop()
    made.push(work(item))
  }
  return made
}
