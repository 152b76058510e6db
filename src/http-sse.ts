/**
 * Event streams out. A stream reads the bus and nothing else; the engine never waits for a client. One
 * write carries all frames that are there; a client that reads slowly is waited for, one that is gone or
 * stuck is let go, and all streams end cleanly when the server closes.
 */
import { Readable } from 'node:stream'
import type { FastifyReply } from 'fastify'
import type { Logger } from 'pino'
import type { LoggedEvent, ReadItem } from './bus/bus.ts'
import { isTerminal } from './chat/event.ts'
import { encodeComment, encodeEvent } from './sse.ts'
import type { Turn } from './store/store.ts'
import type { Metrics } from './telemetry.ts'

export interface EventSource {
  /** Ends when the signal fires. Throws invalid_cursor at once, before anything is sent */
  read(signal: AbortSignal): AsyncIterable<ReadItem>
  /** What stands in for events that are no longer kept; `turn`: the one that it shows; `last`: nothing follows it */
  gap(cursor: string): Promise<{ id: string; data: string; turn: Beginning | null; last: boolean }>
  /** A turn's stream: closes after its terminal event */
  endsWithTurn: boolean
}

type Beginning = Pick<Turn, 'id' | 'started_at'>

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
const OVER = Symbol('the stream is over')
/** How long a client may take to read the rest when the server closes. */
const CLOSE_MS = 1000

export function createStreams({ log, metrics, pingMs = 15_000 }: StreamOptions): Streams {
  const shutdown = new AbortController()
  /** Ends an open stream each; a set, since a signal walks through its listeners for each that comes or goes. */
  const open = new Set<() => void>()
  return {
    closing: shutdown.signal,
    close() {
      shutdown.abort()
      for (const leave of open) leave()
    },
    send(reply, source) {
      const { stream, leave } = openStream(source, pingMs, log)
      // A client that reads no more must neither keep its socket nor keep the server from closing.
      let timer: NodeJS.Timeout | undefined
      const cut = (ms: number) => {
        clearTimeout(timer)
        timer = setTimeout(() => reply.raw.destroy(), ms).unref()
      }
      const { socket } = reply.raw
      const leaveSoon = () => {
        // The server lets idle connections go before this one is idle, and would wait for it.
        reply.raw.once('finish', () => socket?.end())
        leave()
        cut(CLOSE_MS)
      }
      open.add(leaveSoon)
      if (shutdown.signal.aborted) leaveSoon()
      stream.once('close', () => {
        if (!shutdown.signal.aborted) cut(pingMs * STUCK_PINGS)
      })
      metrics.streamOpened()
      reply.raw.once('close', () => {
        clearTimeout(timer)
        open.delete(leaveSoon)
        metrics.streamClosed()
      })
      return reply
        .header('cache-control', 'no-store')
        .header('x-accel-buffering', 'no')
        .type('text/event-stream; charset=utf-8')
        .send(stream)
    },
  }
}

/** `leave` ends the stream at once, as if nothing more were to come. */
function openStream(
  source: EventSource,
  pingMs: number,
  log: Logger,
): { stream: Readable; leave: () => void } {
  const stop = new AbortController()
  const items = source.read(stop.signal)
  // With a reason of its own: the usual one is an error with a stack, made for each stream that ends.
  const { stream, write, hurry, end } = pacedStream(pingMs, () => stop.abort(OVER))
  function leave(): void {
    stop.abort(OVER)
    hurry()
  }

  const told = createTold()

  async function copy(): Promise<void> {
    // Headers leave with the first byte.
    await write(encodeComment('baton'))
    for await (const item of items) {
      if (stop.signal.aborted) return
      if ('lagged' in item) return write(encodeComment('lagged'))
      if ('gap' in item) {
        const { id, data, turn, last } = await source.gap(item.cursor)
        if (turn) told.learn(turn)
        await write(encodeEvent('gap', data, id))
        if (last) return
        continue
      }
      const { text, ended } = frames(item, source.endsWithTurn, told)
      await write(text)
      if (ended) return
    }
  }
  copy()
    .catch((err: unknown) => {
      // After the headers nothing can be said but the end: the client resumes by its cursor.
      if (!stop.signal.aborted) log.warn({ err }, 'an event stream broke')
    })
    .finally(end)
  return { stream, leave }
}

interface Paced {
  stream: Readable
  /** Resolves when the client can take more; at once while it keeps up. */
  write(text: string): Promise<void>
  /** Lets whoever waits for the client go on. */
  hurry(): void
  end(): void
}

/** A stream written at its client's pace, with pings in between. `onClose` is called once, however it ends. */
function pacedStream(pingMs: number, onClose: () => void): Paced {
  let drained: (() => void) | null = null
  let isOver = false
  let stuck = 0
  const hurry = () => {
    drained?.()
    drained = null
  }
  const stream = new Readable({
    read: hurry,
    destroy(error, done) {
      clearInterval(ping)
      onClose()
      hurry()
      done(error)
    },
  })
  const ping = setInterval(() => {
    const isRead = drained === null && !isOver
    stuck = isRead ? 0 : stuck + 1
    if (isRead) stream.push(encodeComment('ping'))
    else if (stuck >= STUCK_PINGS) stream.destroy()
  }, pingMs)
  ping.unref()
  return {
    stream,
    hurry,
    async write(text) {
      if (stream.destroyed || stream.push(text)) return
      await new Promise<void>((resolve) => {
        drained = resolve
      })
    },
    end() {
      isOver = true
      if (!stream.destroyed) stream.push(null)
    },
  }
}

/** What this stream's reader knows of how turns began. */
interface Told {
  learn(turn: Beginning): void
  isNew(event: LoggedEvent): boolean
}

/**
 * Where the log was lost, a turn's next owner says in the new one how the turn began: whoever stayed knows that, or has
 * it from a snapshot.
 */
function createTold(): Told {
  const known = new Set<string>()
  const key = (type: string, turn: string | null) => `${type} ${turn}`
  return {
    learn({ id, started_at }) {
      known.add(key('turn.created', id))
      if (started_at !== null) known.add(key('turn.started', id))
    },
    isNew({ type, turn_id }) {
      if (isTerminal(type)) for (const first of BEGINNING) known.delete(key(first, turn_id))
      if (!BEGINNING.includes(type)) return true
      const size = known.size
      return known.add(key(type, turn_id)).size > size
    },
  }
}
const BEGINNING: readonly string[] = ['turn.created', 'turn.started']

function frames(item: Extract<ReadItem, { events: unknown }>, endsWithTurn: boolean, told: Told) {
  let text = ''
  for (const event of item.events) {
    if (!told.isNew(event)) continue
    text += encodeEvent(event.type, event.data, event.cursor)
    if (endsWithTurn && isTerminal(event.type)) return { text, ended: true }
  }
  return { text, ended: false }
}
