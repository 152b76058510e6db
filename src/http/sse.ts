/**
 * Event streams out. A stream reads the bus and nothing else; the engine never waits for a client. One write carries
 * all frames that are there. A stream waits for a client that reads slowly and lets go of one that is gone or stuck.
 * All streams end cleanly when the server closes.
 */
import type { IncomingHttpHeaders, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { Logger } from 'pino'
import type { ReadItem } from '../bus/bus.ts'
import { endId } from '../bus/cursor.ts'
import { isTerminal } from '../chat/event.ts'
import { BatonError } from '../errors.ts'
import { encodeComment, encodeEvent } from '../sse.ts'
import type { Metrics } from '../telemetry.ts'
import { within } from '../within.ts'
import { createSnapshotFilter, type Snapshot, type SnapshotFilter } from './snapshot-filter.ts'

/** Where a stream gets its events from. */
export interface StreamSource {
  /** Ends when the signal fires */
  read(signal: AbortSignal): AsyncIterable<ReadItem>
  /** What stands in for events that are no longer kept, its `data` as JSON; `last`: nothing follows it */
  gap(cursor: string): Promise<{ id: string; data: string; snapshot: Snapshot; last: boolean }>
  /** The snapshot that the reader has already, if it comes back with the id of a gap */
  known?: (() => Promise<Snapshot>) | undefined
  /** A turn's stream: closes after the turn's terminal event */
  endsWithTurn: boolean
}

/** All event streams of this process. */
export interface Streams {
  /** Sends the stream as the reply. */
  send(reply: FastifyReply, source: StreamSource): FastifyReply
  /** Fires when the client has left or the server closes: for other calls that make a client wait. */
  leaving(reply: FastifyReply): AbortSignal
  /** Fires when the server closes. */
  readonly closing: AbortSignal
  /** Ends every stream; for `preClose`. */
  close(): void
}

interface StreamOptions {
  log: Logger
  metrics: Pick<Metrics, 'streamOpened' | 'streamClosed'>
  /** Called once for each stream, with the head of its response: no `onSend` hook runs for it */
  answered(reply: FastifyReply): void
  /** Called at each ping and, while events go out, each second: throws unauthenticated once the key may call no more */
  authenticate(headers: IncomingHttpHeaders): Promise<unknown>
  /** Milliseconds between two pings */
  pingMs: number
}

export const PING_MS = 15_000
/** A client that takes nothing for as long as this many pings is stuck, not slow. */
export const STUCK_PINGS = 4
/** Milliseconds that a stream's headers wait for a first event, to leave with it. */
const GREETING_MS = 10
const OVER = Symbol('the stream is over')
/** How old the last look at a stream's key may be when an event goes out: revoking a key works within a second. */
const KEY_CHECK_MS = 1000
/** How long an event waits for such a look: a store that is away must not hold events up. */
const KEY_WAIT_MS = 250
/** How long a client may take to read the rest when the server closes. */
const CLOSE_MS = 1000

export function createStreams(options: StreamOptions): Streams {
  const { log, metrics, answered, authenticate, pingMs } = options
  const shutdown = new AbortController()
  /**
   * One function for each client that lets it go. A set, since an AbortSignal searches all its listeners for each one
   * that is removed.
   */
  const open = new Set<() => void>()
  /** `leave` is called when the server closes, `gone` once the client has left. */
  function keep(raw: ServerResponse, leave: () => void, gone: () => void): void {
    open.add(leave)
    if (shutdown.signal.aborted) leave()
    onceClosed(raw, () => {
      open.delete(leave)
      gone()
    })
  }
  return {
    closing: shutdown.signal,
    close() {
      shutdown.abort()
      for (const leave of open) leave()
    },
    leaving({ raw }) {
      const gone = new AbortController()
      const leave = () => gone.abort()
      keep(raw, leave, leave)
      return gone.signal
    },
    send(reply, source) {
      const stop = new AbortController()
      // With a reason of its own: the usual one is an error with a stack, made for each stream that ends.
      const over = () => stop.abort(OVER)
      const items = source.read(stop.signal)
      const paced = openPaced(reply, pingMs, async () => {
        const refusal = await authenticate(reply.request.headers).catch((thrown: unknown) => thrown)
        // A store that is away for a moment ends nothing.
        const isRefused = refusal instanceof BatonError && refusal.code === 'unauthenticated'
        if (isRefused) over()
        return !isRefused
      })
      const { raw } = reply
      const leave = () => {
        over()
        // A client that reads no more must not keep the server from closing.
        setTimeout(() => raw.destroy(), CLOSE_MS).unref()
      }
      answered(reply)
      metrics.streamOpened()
      keep(raw, leave, () => {
        over()
        metrics.streamClosed()
      })
      copy(items, source, paced)
        .catch((err: unknown) => {
          // After the headers nothing can be said but the end: the client resumes by its cursor.
          if (!stop.signal.aborted) log.warn({ err }, 'an event stream broke')
        })
        .finally(paced.end)
      return reply
    },
  }
}

/** A client may have left before anybody listens: then nothing is emitted any more. */
function onceClosed(raw: ServerResponse, done: () => void): void {
  if (raw.destroyed) done()
  else raw.once('close', done)
}

async function copy(items: AsyncIterable<ReadItem>, source: StreamSource, { write }: Paced): Promise<void> {
  const filter = createSnapshotFilter()
  if (source.known) filter.use(await source.known())
  for await (const item of items) {
    if ('lagged' in item) {
      await write(encodeComment('lagged'))
      return
    }
    if ('gap' in item) {
      const { id, data, snapshot, last } = await source.gap(item.cursor)
      filter.use(snapshot)
      await write(encodeEvent('gap', data, id))
      if (last) return
      continue
    }
    const { text, ended } = frames(item, source.endsWithTurn, filter)
    await write(text)
    if (ended) return
  }
}

interface Paced {
  /** Null while the client keeps up; else resolves when it can take more, or once its key has turned out to be over. */
  write(text: string): Promise<void> | null
  end(): void
}

/**
 * The reply as a stream written at its client's pace, with pings in between. It writes straight to the response: a
 * readable stream piped into that takes a buffer and a pass through two more queues for each delta.
 */
function openPaced(reply: FastifyReply, pingMs: number, checkKey: () => Promise<boolean>): Paced {
  const { raw } = reply
  reply
    // Proxies that compress (Next.js, Express, webpack's) hold small frames back until they have a block full.
    .header('cache-control', 'no-store, no-transform')
    .header('x-accel-buffering', 'no')
    .type('text/event-stream; charset=utf-8')
    .hijack()
  raw.writeHead(reply.statusCode, reply.getHeaders() as OutgoingHttpHeaders)
  // Headers leave with the first byte of the body, which is the first event's if there is one soon.
  const greeting = setTimeout(() => raw.write(encodeComment('baton')), GREETING_MS)
  // The client of a large event may take it for minutes: the server lets go only of one that takes nothing.
  raw.setTimeout(STUCK_PINGS * pingMs)
  let drained: (() => void) | null = null
  let checkedAt = performance.now()
  const hurry = () => drained?.()
  const ping = setInterval(() => {
    void checkKey()
    if (!raw.writableEnded) raw.write(encodeComment('ping'))
  }, pingMs).unref()
  const send = (text: string) => {
    if (raw.destroyed || raw.write(text)) return null
    return new Promise<void>((resolve) => {
      drained = resolve
    })
  }
  const sendUnlessRefused = async (text: string) => {
    checkedAt = performance.now()
    if ((await within(KEY_WAIT_MS, checkKey())) !== false) await send(text)
  }
  raw.on('drain', hurry)
  onceClosed(raw, () => {
    clearInterval(ping)
    hurry()
  })
  return {
    write(text) {
      // The reader may have all events of a batch already: the headers still wait.
      if (text === '') return null
      clearTimeout(greeting)
      return performance.now() - checkedAt > KEY_CHECK_MS ? sendUnlessRefused(text) : send(text)
    },
    end() {
      clearTimeout(greeting)
      raw.end()
    },
  }
}

function frames(item: Extract<ReadItem, { events: unknown }>, endsWithTurn: boolean, filter: SnapshotFilter) {
  let text = ''
  for (const event of item.events) {
    if (!filter.passes(event)) continue
    const { type, turn_id, data, cursor } = event
    const isEnd = turn_id !== null && isTerminal(type)
    text += encodeEvent(type, data, isEnd ? endId(cursor, turn_id) : cursor)
    if (endsWithTurn && isEnd) return { text, ended: true }
  }
  return { text, ended: false }
}
