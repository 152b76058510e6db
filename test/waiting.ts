/**
 * Waiting in tests: for a state that no event tells, for a gate that the test itself opens, for a clock that it holds, and
 * for the event loop.
 */
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'

/** A wait that has not ended by then on a healthy machine never ends. */
const PATIENCE_MS = 60_000

/** Asks until the answer fits, by default until it is truthy, and gives that answer. An event is better where there is one. */
export async function eventually<T>(
  ask: () => T | Promise<T>,
  fits: (answer: T) => boolean = Boolean,
): Promise<NonNullable<T>> {
  for (const until = performance.now() + PATIENCE_MS; ; await sleep(5)) {
    const answer = await ask()
    if (fits(answer)) return answer as NonNullable<T>
    if (performance.now() > until) throw new Error(`it never became so: ${JSON.stringify(answer)}`)
  }
}

/** A promise and the function that settles it: what a test waits for, or holds something with. */
export function gate(): { opened: Promise<void>; open: () => void } {
  let open = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open }
}

/** Stops the clock. Returns what lets `ms` pass, and then what waited for it run. */
export function heldClock(t: Test): (ms: number) => Promise<void> {
  let now = 0
  mock.method(performance, 'now', () => now)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => {
    mock.restoreAll()
    mock.timers.reset()
  })
  return async (ms) => {
    now += ms
    mock.timers.tick(ms)
    await new Promise(setImmediate)
  }
}

/** Holds the event loop, as long work does. */
export function holdLoop(ms: number): void {
  const end = performance.now() + ms
  while (performance.now() < end);
}

/** How often the event loop went round while the work was done. */
export async function passesOf(work: () => Promise<unknown>): Promise<number> {
  let passes = 0
  let next = setImmediate(function count() {
    passes++
    next = setImmediate(count)
  })
  await work()
  clearImmediate(next)
  return passes
}
