/**
 * The rules of every renewal of a login, since a refresh token is spent by its first use: callers of this process share
 * the work, replicas take turns by a claim on the row, which lapses by itself (no transaction is open meanwhile), and
 * the answer is stored before it is used.
 */
import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import timers from 'node:timers/promises'
import { isUnavailable } from '../errors.ts'
import type { Claims } from '../store/store.ts'

/** How renewals tell the time, wait, and learn that the process ends. */
export interface Timing {
  now(): number
  /** Clock of what is kept in memory: a clock that is set back must not make that longer */
  uptime(): number
  /** Rejects when the signal is aborted */
  sleep(ms: number, signal?: AbortSignal): Promise<unknown>
  /**
   * Aborted when the process ends: what could not be stored so far is tried once more, and no other process is waited
   * for.
   */
  ending: AbortSignal
}

/** Any number of logins may wait for one signal; Node would take more than ten for a leak, and warn of it. */
export const sleepFor: Timing['sleep'] = (ms, signal) => {
  if (signal) setMaxListeners(Number.POSITIVE_INFINITY, signal)
  return timers.setTimeout(ms, undefined, { signal })
}

/** Joins the work under way for a key, or begins it; a failure that may last is kept for `failureMs`. */
export function shared<T>(
  works: Map<string, Promise<T>>,
  key: string,
  begin: () => Promise<T>,
  failureMs = 0,
): Promise<T> {
  const found = works.get(key)
  if (found) return found
  const work = begin()
  works.set(key, work)
  const forget = () => void works.delete(key)
  work.then(forget, (failure) => {
    if (failureMs === 0 || isUnavailable(failure)) forget()
    else setTimeout(forget, failureMs).unref()
  })
  return work
}

/** A token that is still valid for this long serves while its renewal has to wait. */
export const SPARE_MS = 10_000
/** How long somebody who has such a token waits for another. */
export const PATIENCE_MS = 2_000

/** Once a refused token was renewed, another refusal within this time is not cured by renewing again. */
export const CURE_MS = 300_000

interface Claimed<Row, T> {
  id: string
  /** How long the claim outlives its process: longer than the work takes */
  seconds: number
  /** How long another process is waited for, in seconds */
  patience: number
  /**
   * `row` as it was when the claim was made. `wasTried`: another process did the work while this caller waited. If
   * nothing came of that, the service is not to be asked again: all who wait for a service that hangs would ask it one
   * after the other.
   */
  work(row: Row, wasTried: boolean): Promise<T>
  /** Called while another has the claim: returns what came of its work, or null to keep waiting. */
  elsewhere(): Promise<T | null>
  /** What to throw if that takes too long, or this process ends */
  busy(): Error
}

const LONGEST_PAUSE_MS = 500
/** A claim that took longer to answer, as in a process that was suspended, may lapse in the middle of the work. */
const LATE_MS = 5_000

/** Does the work under the row's claim, or returns what came of it elsewhere. */
export async function underClaim<Row, T>(
  rows: Claims<Row>,
  { now, sleep, ending }: Timing,
  { id, seconds, patience, work, elsewhere, busy }: Claimed<Row, T>,
): Promise<T> {
  // The process does not wait for what begins now, and new tokens would end with it.
  if (ending.aborted) throw busy()
  const by = randomUUID()
  const until = now() + patience * 1000
  // If that fails, the claim lapses.
  const release = () => rows.release(id, by).catch(() => {})
  let isWaiting = false
  for (let pause = 50; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
    const asked = now()
    const claim = await rows.claim(id, by, seconds)
    if (claim && now() - asked < LATE_MS) {
      return work(claim.row, isWaiting && !claim.hasLapsed).finally(release)
    }
    if (claim) await release()
    isWaiting = claim === null
    const outcome = await elsewhere()
    if (outcome !== null) return outcome
    if (now() > until || ending.aborted) throw busy()
    await sleep(pause, ending).catch(() => {})
  }
}

const TRIES = 4

/**
 * Writes what cannot be had again, such as rotated tokens: while the store is away the write is tried until the store
 * is back, and once more when the process ends. `sleep` rejects when `ending` is aborted.
 */
export async function insist<T>(
  write: () => Promise<T>,
  sleep: (ms: number, ending: AbortSignal) => Promise<unknown>,
  ending: AbortSignal,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    // What is written first as the process ends has a second try, too: a lost connection shows by its first use.
    const isLast = ending.aborted && tries > 1
    try {
      return await write()
    } catch (thrown) {
      if (isLast || (tries >= TRIES && !isUnavailable(thrown))) throw thrown
      await sleep(Math.min(200 * tries, LONGEST_PAUSE_MS), ending).catch(() => {})
    }
  }
}
