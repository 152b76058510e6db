/**
 * The fetch that the SDK's HTTP transports use: body cap, no standing GET stream, one patient repeat
 * after a 429, and the facts of an exchange that the SDK hides (status, Retry-After, kind of body).
 */
import { setImmediate as nextPass, setTimeout as sleep } from 'node:timers/promises'
import type { FetchLike } from '@modelcontextprotocol/client'
import { isRecord } from '../chat/json.ts'
import { retryAfterMs } from '../foreign.ts'
import { BodyTooLargeError, capBody, isEventStream } from '../guard/body.ts'
import { USER_AGENT } from '../version.ts'
import { isAnswer, repairMessage } from './answer.ts'
import { type Exchange, either, exchanges } from './exchange.ts'
import { repairStream } from './stream.ts'

/** The authorization that a 401 refused, as it was sent; the SDK does not tell which token that was. */
export const refusedAuthorization = new WeakMap<Response, string | null>()

const LONGEST_PATIENCE_MS = 2_000

interface McpFetchOptions {
  fetch: (url: string | URL, init?: RequestInit) => Promise<Response>
  maxBytes: number
  /** The legacy SSE transport lives on its GET stream, and channel.ts listens to one */
  keepsGetStream: boolean
}

/** A fetch for one transport; it rejects as the fetch below it does, and notes the facts in the exchange. */
export function createMcpFetch(options: McpFetchOptions): FetchLike {
  const send = async (url: string | URL, init: RequestInit, exchange?: Exchange): Promise<Response> => {
    if (!exchange) return readable(bounded(await options.fetch(url, init), options.maxBytes))
    const signal = init.signal ? either(init.signal, exchange.signal) : exchange.signal
    const isPost = init.method === 'POST'
    exchange.request = 'sent'
    const response = await options.fetch(url, { ...init, signal })
    if (isPost && response.status === 401) exchange.request = undefined
    if (isPost && response.status === 429) exchange.request = 'limited'
    exchange.status = response.status
    exchange.isStreaming = isEventStream(response)
    const retryAfter = retryAfterOf(response)
    if (retryAfter !== undefined) exchange.retryAfterMs = retryAfter
    const capped = bounded(response, options.maxBytes, exchange.id, () => {
      exchange.failure = new BodyTooLargeError(
        `The server's answer is larger than ${options.maxBytes} bytes.`,
      )
      exchange.abort()
    })
    return readable(capped, exchange.id)
  }

  return async (url, init = {}) => {
    // Asked for once: when its call is given up during a wait, the storage may be off, and the call would be sent.
    const exchange = exchanges.getStore()
    const headers = new Headers(init.headers)
    if (!headers.has('user-agent')) headers.set('user-agent', USER_AGENT)
    // A server that compresses its event streams keeps messages back until much has come together (tower-http#419).
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', 'identity')
    // After `initialize` the SDK opens a GET stream and reopens it without end (555 times in 5 s against
    // a server that sends `retry: 0`). A server may refuse it with 405, so that is what the SDK gets;
    // channel.ts opens one when somebody listens. A GET that resumes a call's broken stream passes.
    if (init.method === 'GET' && !options.keepsGetStream) {
      const lastEventId = headers.get('last-event-id') ?? exchange?.resumedAfter
      if (lastEventId === undefined) return new Response(null, { status: 405 })
      headers.set('last-event-id', lastEventId)
      if (exchange) exchange.resumedAfter = lastEventId
    }
    const ask = async () => {
      const response = await send(url, { ...init, headers }, exchange)
      if (response.status === 401) refusedAuthorization.set(response, headers.get('authorization'))
      return response
    }
    const response = await ask()
    const patience = response.status === 429 ? retryAfterOf(response) : undefined
    if (patience === undefined || patience > LONGEST_PATIENCE_MS) return response
    // The server has not run a request that a rate limit refused.
    await response.body?.cancel()
    await sleep(patience, undefined, exchange && { signal: exchange.signal })
    return ask()
  }
}

/** Bytes of an event stream that are read in one pass of the event loop: short lines may be thousands of messages. */
const PIECE = 16 * 1024

/**
 * Limits the body to a number of bytes (capBody), and reads an event stream in pieces, with its answers repaired: a
 * flood of messages must not hold up everybody else.
 */
function bounded(
  response: Response,
  maxBytes: number,
  asked?: string | number,
  onExceeded?: () => void,
): Response {
  const capped = capBody(response, maxBytes, onExceeded)
  if (!capped.body || !isEventStream(capped)) return capped
  const pieces = new TransformStream<Uint8Array, Uint8Array>({
    async transform(chunk, controller) {
      for (let at = 0; at < chunk.length; at += PIECE) {
        const piece = chunk.subarray(at, at + PIECE)
        controller.enqueue(piece)
        // A piece without a line break is part of one long message, which costs no more if it is read at once.
        if (piece.includes(10) || piece.includes(13)) await nextPass()
      }
    },
  })
  const { status, statusText, headers } = capped
  return new Response(capped.body.pipeThrough(pieces).pipeThrough(repairStream(asked)), {
    status,
    statusText,
    headers: [...headers],
  })
}

/** Some servers name no type for their JSON, or call it text (helidon-mcp#97, zilla#2214). */
const UNTYPED = /^(?:$|text\/plain\b)/i

/**
 * The answer to a request with the status, the type and the members that the SDK wants: it reads JSON only with `json`,
 * and nothing under a 202. Servers made with mcp-go before 0.33 stream a tool's answer under one once the tool has sent
 * a notification (mcp-go#473).
 */
function readable(response: Response, asked?: string | number): Response {
  const { statusText, headers, body } = response
  const isStream = response.status === 202 && isEventStream(response)
  const isUntyped = response.status === 200 && UNTYPED.test(headers.get('content-type') ?? '')
  const status = isStream ? 200 : response.status
  const typed = new Headers(headers)
  if (isUntyped) typed.set('content-type', 'application/json')
  const isOdd = isUntyped || isStream
  const answer = isOdd ? new Response(body, { status, statusText, headers: typed }) : response
  const json = answer.json.bind(answer)
  return Object.assign(answer, {
    async json() {
      const said: unknown = await json()
      if (isReceipt(said)) return []
      return Array.isArray(said) ? batched(said).map((one) => repairMessage(one)) : repairMessage(said, asked)
    },
  })
}

/** What Ruby's SDK said before February 2026 in place of an answer that it gave in the GET stream (ruby-sdk#245) */
const isReceipt = (said: unknown): boolean => isRecord(said) && said.accepted === true && !isAnswer(said)

/** Most messages of a batch (MCP 2025-03-26): the SDK handles all of them at once, and eight megabytes held seconds. */
const MOST_BATCHED = 1_000

/** Of a larger batch only answers are read: one of them is waited for. */
const batched = (messages: unknown[]): unknown[] =>
  messages.length <= MOST_BATCHED ? messages : messages.filter(isAnswer).slice(0, MOST_BATCHED)

/** What the server's Retry-After asks for, in milliseconds. */
export const retryAfterOf = ({ headers }: Response): number | undefined =>
  retryAfterMs(headers.get('retry-after'), Date.now())
