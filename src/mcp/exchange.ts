/**
 * An exchange: one call, or one attempt to connect, with all the HTTP requests that it takes. The SDK tells neither its
 * fetch whose request it sends, nor its caller what came of it.
 */
import { AsyncLocalStorage } from 'node:async_hooks'
import { setMaxListeners } from 'node:events'

/** What one call's HTTP requests have shown so far; the call reads it when it has to explain a failure. */
export interface Exchange {
  /** Of the request that was sent last */
  id?: string | number
  /** Status of the last answer; undefined while nothing has come back */
  status?: number
  retryAfterMs?: number
  /** The answer is an event stream, so it may not be there yet when the request's promise settles */
  isStreaming: boolean
  /**
   * Whether the request was sent, waits for a token, or was refused by a rate limit: absent before, and again once a
   * 401 has refused it
   */
  request?: 'held' | 'sent' | 'limited' | undefined
  /**
   * The event after which a broken stream was resumed: if the next one brings no event with an id, the SDK has forgotten
   * it (typescript-sdk#2499)
   */
  resumedAfter?: string
  /** The pause before a broken stream was resumed last, and when it ends */
  resumption?: { pauseMs: number; until: number }
  /** Why the exchange failed, if the SDK would report something else */
  failure?: Error
  /** Ends the request at once: the SDK would wait, or fetch the same body again */
  abort(): void
  /** Ends the exchange's sockets: an answer that nobody waits for any more must not hold one */
  signal: AbortSignal
}

/** An exchange that has not begun. */
export function createExchange(): Exchange {
  const ending = new AbortController()
  return { isStreaming: false, abort: () => ending.abort(), signal: ending.signal }
}

/** Set around each call and each connection attempt; the SDK passes no context to its fetch. */
export const exchanges = new AsyncLocalStorage<Exchange>()

let underWay = 0

/**
 * Runs work as a part of the exchange. When the last work ends, the storage is switched off: while it is on, every
 * promise pays for it.
 */
export async function inExchange<T>(exchange: Exchange, work: () => Promise<T>): Promise<T> {
  underWay++
  try {
    return await exchanges.run(exchange, work)
  } finally {
    underWay--
    if (underWay === 0) exchanges.disable()
  }
}

/**
 * Runs work that a request waits for before it is sent: the first time, or again after a 401. Throws if its exchange is
 * over by then.
 */
export async function holdingBack<T>(work: () => Promise<T>): Promise<T> {
  const exchange = exchanges.getStore()
  // If the request was sent before, it is the SDK's GET for its broken stream that needs a token now.
  if (exchange && exchange.request !== 'sent') exchange.request = 'held'
  const done = await work()
  // The storage may be off by now: the SDK would send the request of a call that was given up.
  exchange?.signal.throwIfAborted()
  return done
}

/**
 * Aborts with the first of the two. The SDK hands in its connection's signal, which may live for weeks, and on Node 20
 * such a signal keeps an entry for each that AbortSignal.any ever made of it (nodejs/node#55351). So do listeners that
 * an option `signal` removes.
 */
export function either(lasting: AbortSignal, ending: AbortSignal): AbortSignal {
  const both = [lasting, ending]
  const over = new AbortController()
  const end = () => {
    for (const signal of both) signal.removeEventListener('abort', end)
    over.abort(both.find(({ aborted }) => aborted)?.reason)
  }
  // Node warns of more than ten listeners, and any number of requests may be under way. With 0, which means the same,
  // Node's getMaxListeners fails, and undici calls that.
  setMaxListeners(Number.POSITIVE_INFINITY, ...both)
  for (const signal of both) signal.addEventListener('abort', end)
  if (both.some(({ aborted }) => aborted)) end()
  return over.signal
}
