/**
 * Keeps a channel for a server's notifications open for as long as somebody is interested, and not a moment longer. A
 * channel is reopened with growing pauses, so that a server which ends each at once is asked twice a minute and not a
 * hundred times a second.
 */
import { isEventStream } from '../guard/body.ts'
import { createDecoder } from '../sse.ts'
import { pause } from '../within.ts'
import { retryAfterOf } from './http.ts'

const FIRST_PAUSE_MS = 1_000
const LONGEST_PAUSE_MS = 30_000
/** A channel that lived this long was no failure: the next one starts with the first pause again. */
const HEALTHY_MS = 60_000

/**
 * After these, asking again on this connection is useless: 405 means by the specification that there is no channel, 404
 * (400 with some servers) that the session is gone, which the next request finds out. Any other failure may pass: a
 * token that has just expired, a rate limit.
 */
const NO_CHANNEL = new Set([204, 400, 404, 405, 410, 501])

/** How a channel ended. `retryMs`: the pause that the server asks for; `lastEventId`: where to resume. */
export interface ChannelEnd {
  /** The server offers no such channel: do not ask again on this connection */
  isUnsupported?: boolean
  /** The server refused the token */
  isUnauthorized?: boolean
  retryMs?: number
  lastEventId?: string
}

/** A channel that is being kept, whether or not it is open at this moment. */
export interface Channel {
  /**
   * Open until this time of `performance.now()`; an earlier time than before has no effect. False if its time had run
   * out: then a new channel is needed.
   */
  extend(untilMs: number): boolean
  stop(): void
}

/** `open` resolves when its channel has ended and gets the previous end; a rejection counts as an end. */
export function keepChannel(
  open: (signal: AbortSignal, previous: ChannelEnd) => Promise<ChannelEnd>,
  untilMs: number,
  rest = pause,
): Channel {
  const stopped = new AbortController()
  let until = untilMs
  let timer: NodeJS.Timeout | undefined
  const arm = (): void => {
    clearTimeout(timer)
    timer = setTimeout(() => stopped.abort(), Math.max(0, until - performance.now()))
    timer.unref()
  }
  const run = async (): Promise<void> => {
    let pauseMs = FIRST_PAUSE_MS
    let end: ChannelEnd = {}
    while (!stopped.signal.aborted && !end.isUnsupported) {
      const opened = performance.now()
      end = await open(stopped.signal, end).catch(() => end)
      if (performance.now() - opened > HEALTHY_MS) pauseMs = FIRST_PAUSE_MS
      const wait = Math.max(pauseMs, Math.min(end.retryMs ?? 0, LONGEST_PAUSE_MS))
      pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS)
      await rest(wait, stopped.signal)
    }
  }
  arm()
  void run().finally(() => {
    clearTimeout(timer)
    // If it ended because the server offers no channel, no later time opens it again.
    until = Number.POSITIVE_INFINITY
  })
  return {
    extend(later) {
      if (stopped.signal.aborted) return false
      if (later > until) {
        until = later
        arm()
      }
      return true
    },
    stop() {
      clearTimeout(timer)
      stopped.abort()
    },
  }
}

interface GetStreamOptions {
  fetch: (url: string | URL, init?: RequestInit) => Promise<Response>
  url: string
  headers: Headers
  /** The server has opened the stream */
  onOpen(): void
  /** Takes a JSON-RPC message; it may throw for anything else */
  onMessage(message: unknown): void
}

/** One GET stream of a legacy Streamable HTTP server (MCP 2025-11-25, "Listening for Messages"). */
export async function readGetStream(
  options: GetStreamOptions,
  signal: AbortSignal,
  previous: ChannelEnd,
): Promise<ChannelEnd> {
  const headers = new Headers(options.headers)
  headers.set('accept', 'text/event-stream')
  // Sends the id's UTF-8 bytes (WHATWG HTML 9.2), each as one character: a header takes no text beyond Latin-1.
  if (previous.lastEventId) headers.set('last-event-id', Buffer.from(previous.lastEventId).toString('latin1'))
  const end: ChannelEnd = previous.lastEventId ? { lastEventId: previous.lastEventId } : {}
  const response = await options.fetch(options.url, { headers, signal })
  if (!response.ok || !response.body) {
    await response.body?.cancel()
    // The official server says so of an id that it has forgotten, too: the next opening asks for no id.
    if (response.status === 400 && previous.lastEventId) return {}
    if (NO_CHANNEL.has(response.status)) return { isUnsupported: true }
    const retryMs = retryAfterOf(response)
    return {
      ...end,
      ...(retryMs !== undefined && { retryMs }),
      ...(response.status === 401 && { isUnauthorized: true }),
    }
  }
  // Some servers show everybody a page, or answer as if they were asked something (awslabs/mcp#3352).
  if (!isEventStream(response)) {
    await response.body.cancel()
    return { isUnsupported: true }
  }
  options.onOpen()
  const decoder = createDecoder(
    (frame) => {
      if (frame.id) end.lastEventId = frame.id
      if (!frame.event || frame.event === 'message') deliver(frame.data, options.onMessage)
    },
    {
      onRetry(retryMs) {
        end.retryMs = retryMs
      },
    },
  )
  try {
    for await (const text of response.body.pipeThrough(new TextDecoderStream())) decoder.push(text)
  } catch {
    // The stream was cut: what counts is that it ended, and after which event.
  }
  return end
}

function deliver(data: string, onMessage: (message: unknown) => void): void {
  try {
    onMessage(JSON.parse(data))
  } catch {
    // No JSON or no JSON-RPC: the next message may be one.
  }
}
