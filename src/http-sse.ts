/**
 * Event streams out. A stream reads the bus and nothing else; the engine never waits for a client. One
 * write carries all frames that are there; a client that reads slowly is waited for, one that is gone or
 * stuck is let go, and all streams end cleanly when the server closes.
 */
import { Readable } from 'node:stream'
import type { FastifyReply } from 'fastify'
import type { Logger } from 'pino'
import type { ReadItem } from './bus/bus.ts'
import { isTerminal } from './chat/event.ts'
import { encodeComment, encodeEvent } from './sse.ts'
import type { Metrics } from './telemetry.ts'

export interface EventSource {
  /** Ends when the signal fires. Throws invalid_cursor at once, before anything is sent */
  read(signal: AbortSignal): AsyncIterable<ReadItem>
  /** What stands in for events that are no longer kept; `last`: nothing follows it */
  gap(cursor: string): Promise<{ id: string; data: string; last: boolean }>
  /** A turn's stream: closes after its terminal event */
  endsWithTurn: boolean
}

export interface Streams {
  /** Sends the stream as the reply. */
  send(reply: FastifyReply, source: EventSource): FastifyReply
  /** Fires when the server closes: for whatever else makes a client wait. */
  readonly closing: AbortSignal
  /** Ends every stream; for `preClose`. */
  close(): void
}

export interface StreamOptions {
  log: Logger
  metrics: Pick<Metrics, 'streamOpened' | 'streamClosed'>
  /** Default 15 s */
  pingMs?: number | undefined
}

/** Pings in a row that found the client not reading: then it is stuck, not slow. */
const STUCK_PINGS = 4
/** How long a client may take to read the rest when the server closes. */
const CLOSE_MS = 1000

export function createStreams({ log, metrics, pingMs = 15_000 }: StreamOptions): Streams {
  const shutdown = new AbortController()
  return {
    closing: shutdown.signal,
    close: () => shutdown.abort(),
    send(reply, source) {
      const stream = openStream(source, shutdown.signal, pingMs, log)
      // A client that reads no more would keep the server from closing.
      const cut = () => setTimeout(() => reply.raw.destroy(), CLOSE_MS).unref()
      shutdown.signal.addEventListener('abort', cut, { once: true })
      metrics.streamOpened()
      reply.raw.once('close', () => {
        shutdown.signal.removeEventListener('abort', cut)
        metrics.streamClosed()
      })
      // Without `connection: close` the server would wait for the kept-alive socket when it closes.
      return reply
        .header('cache-control', 'no-store')
        .header('connection', 'close')
        .header('x-accel-buffering', 'no')
        .type('text/event-stream; charset=utf-8')
        .send(stream)
    },
  }
}

function openStream(source: EventSource, shutdown: AbortSignal, pingMs: number, log: Logger): Readable {
  const stop = new AbortController()
  const items = source.read(stop.signal)
  let drained: (() => void) | null = null
  let stuck = 0
  const release = () => {
    drained?.()
    drained = null
  }
  const stream = new Readable({
    read: release,
    destroy(error, done) {
      clearInterval(ping)
      shutdown.removeEventListener('abort', onShutdown)
      stop.abort()
      release()
      done(error)
    },
  })
  const ping = setInterval(() => {
    stuck = drained === null ? 0 : stuck + 1
    if (stuck >= STUCK_PINGS) stream.destroy()
    if (drained === null) stream.push(encodeComment('ping'))
  }, pingMs)
  ping.unref()

  function onShutdown(): void {
    stop.abort()
    release()
  }
  shutdown.addEventListener('abort', onShutdown, { once: true })

  /** Resolves when the client can take more; at once while it keeps up. */
  function write(text: string): Promise<void> | undefined {
    if (stream.destroyed || stream.push(text)) return undefined
    return new Promise((resolve) => {
      drained = resolve
    })
  }

  async function copy(): Promise<void> {
    // Headers leave with the first byte.
    await write(encodeComment('baton'))
    for await (const item of items) {
      if (stop.signal.aborted) return
      if ('lagged' in item) return void write(encodeComment('lagged'))
      if ('gap' in item) {
        const { id, data, last } = await source.gap(item.cursor)
        await write(encodeEvent('gap', data, id))
        if (last) return
        continue
      }
      const { text, ended } = frames(item, source.endsWithTurn)
      await write(text)
      if (ended) return
    }
  }

  if (shutdown.aborted) onShutdown()
  copy()
    .catch((err: unknown) => {
      // After the headers nothing can be said but the end: the client resumes by its cursor.
      if (!stop.signal.aborted) log.warn({ err }, 'an event stream broke')
    })
    .finally(() => {
      clearInterval(ping)
      if (!stream.destroyed) stream.push(null)
    })
  return stream
}

function frames(item: Extract<ReadItem, { events: unknown }>, endsWithTurn: boolean) {
  let text = ''
  for (const event of item.events) {
    text += encodeEvent(event.type, event.data, event.cursor)
    if (endsWithTurn && isTerminal(event.type)) return { text, ended: true }
  }
  return { text, ended: false }
}
