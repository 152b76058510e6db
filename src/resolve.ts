/** Names and their addresses: how the system is asked, and what is dialled while it does not answer. */
import type { LookupAddress } from 'node:dns'
import { lookup } from 'node:dns/promises'
import type { LookupFunction } from 'node:net'
import { within } from './within.ts'

/** All addresses of a name; rejects if there is none. */
export type Resolve = (hostname: string) => Promise<LookupAddress[]>

/** How long an answer may take before the last known one stands in for it. */
const LATE_MS = 300

/**
 * Asks for a name once for all who ask meanwhile. Node puts two questions at a time to the system (half of
 * UV_THREADPOOL_SIZE), which may take half a minute if a name's servers do not answer.
 */
export const systemResolve: Resolve = sharing((hostname) => lookup(hostname, { all: true }))

/** Asks once for all who ask before the answer is there. */
export function sharing(resolve: Resolve): Resolve {
  const underWay = new Map<string, Promise<LookupAddress[]>>()
  return (hostname) => {
    const asking = underWay.get(hostname) ?? resolve(hostname).finally(() => underWay.delete(hostname))
    underWay.set(hostname, asking)
    return asking
  }
}

/** Most names of one request that are asked for at a time. */
const MOST_ASKED = 4

/** For the names of one request, each of which it asks for once: a few at a time, and no more after the signal. */
export function sparing(resolve: Resolve, signal: AbortSignal): Resolve {
  const asked = new Map<string, Promise<LookupAddress[]>>()
  const waiting: (() => void)[] = []
  let free = MOST_ASKED
  const ask: Resolve = async (hostname) => {
    if (free > 0) free--
    else await new Promise<void>((go) => waiting.push(go))
    try {
      return signal.aborted ? [] : await resolve(hostname)
    } finally {
      const next = waiting.shift()
      if (next) next()
      else free++
    }
  }
  return (hostname) => {
    const asking = asked.get(hostname) ?? ask(hostname)
    asked.set(hostname, asking)
    return asking
  }
}

/**
 * For names from the settings only, which are few. While a name has no new answer, its last one serves. So a request to
 * a vendor does not wait for the names of tenants' servers, which nobody may answer for.
 */
export function remembering(resolve: Resolve = systemResolve, lateMs = LATE_MS): Resolve {
  const last = new Map<string, LookupAddress[]>()
  return async (hostname) => {
    const asking = resolve(hostname).then((found) => {
      last.set(hostname, found)
      return found
    })
    const known = last.get(hostname)
    if (!known) return asking
    return (await within(lateMs, asking).catch(() => null)) ?? known
  }
}

/** A resolver in the form in which net.connect asks for addresses. */
export function lookupBy(resolve: Resolve): LookupFunction {
  return (hostname, { family, all }, callback) => {
    resolve(hostname).then(
      (found) => {
        const fitting = family ? found.filter((one) => one.family === family) : found
        const [first] = fitting
        if (!first) callback(noAddress(hostname), '')
        else if (all) callback(null, fitting)
        else callback(null, first.address, first.family)
      },
      (error: NodeJS.ErrnoException) => callback(error, ''),
    )
  }
}

/** The failure of a name that leads nowhere. */
export const noAddress = (host: string): NodeJS.ErrnoException =>
  Object.assign(new Error(`${host} has no address`), { code: 'ENOTFOUND' })
