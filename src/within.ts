/** Waits that end in time, and long work that lets others have the event loop. */
import { setImmediate as nextPass, setTimeout as sleep } from 'node:timers/promises'

/** Resolves after `ms`, or when the signal says so; leaves no timer behind. */
export const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  sleep(ms, undefined, { signal }).catch(() => {})

/** The answer, or null when it takes longer; leaves no timer behind. */
export async function within<T>(ms: number, answer: Promise<T>): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined
  const over = new Promise<null>((resolve) => {
    timer = setTimeout(() => resolve(null), ms)
  })
  return Promise.race([answer, over]).finally(() => clearTimeout(timer))
}

/**
 * The answer; rejects with the signal's reason if it is aborted before. The work goes on then, for others who wait for
 * it. It rejects one pass of the event loop later, so that an answer which is there already wins.
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
 * A signal that aborts after so many milliseconds, once everything that has arrived by then was read. After the whole
 * process was suspended, timers run before the answers that came meanwhile: AbortSignal.timeout throws those away.
 */
export function timeLimit(ms: number): AbortSignal {
  const controller = new AbortController()
  const end = () => controller.abort(new DOMException(`no answer within ${ms} ms`, 'TimeoutError'))
  setTimeout(() => setImmediate(end), ms).unref()
  return controller.signal
}

/** Longest that long works hold the event loop at once. */
const BREATH_MS = 10

let lastBreath: Promise<void> = Promise.resolve()

/** Waits for a pass of the event loop of its own: of many long works, each pass goes on with one. */
export function breathe(): Promise<void> {
  lastBreath = lastBreath.then(() => nextPass())
  return lastBreath
}

let heldSince: number | null = null

/** How long works have held the event loop without a break: a tick comes only once no promise is left to go on. */
function heldMs(): number {
  if (heldSince === null) {
    heldSince = performance.now()
    process.nextTick(() => {
      heldSince = null
    })
  }
  return performance.now() - heldSince
}

/**
 * What `work` makes of the items, one by one. Others have the event loop every few milliseconds, also while many short
 * works follow each other.
 */
export async function inBreaths<T, R>(items: readonly T[], work: (item: T) => R): Promise<R[]> {
  const made: R[] = []
  for (const item of items) {
    if (heldMs() > BREATH_MS) await breathe()
    made.push(work(item))
  }
  return made
}
