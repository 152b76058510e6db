/**
 * A turn's writer: the only place where deltas are merged, and where events become JSON. The first delta
 * goes out with the present tick; those that come while an append is under way, or within `flushMs` of
 * the last one, travel together. Order is kept: a delta only ever joins the event right before it.
 */
import type { TurnEvent } from '../chat/event.ts'
import { BatonError } from '../errors.ts'
import type { Bus, BusEvent } from './bus.ts'

export interface Writer {
  /** For display only: a loss shows in `close`. */
  delta(event: TurnEvent): void
  /** Resolves with the event's cursor. Rejects with `unavailable`; nobody has to listen. */
  emit(event: TurnEvent, once?: string): Promise<string>
  /** Everything so far has been appended, or refused. Never rejects. */
  flush(): Promise<void>
  /** Flushes; rejects with the first error that cost a delta. What comes later is refused. */
  close(): Promise<void>
}

interface Waiting {
  event: TurnEvent
  isDelta: boolean
  once: string | undefined
  resolve(cursor: string): void
  reject(error: unknown): void
}

/** `flushMs`: how long deltas may be held to travel together; 0 for a bus whose append costs nothing. */
export function createWriter(
  bus: Bus,
  session: string,
  turn: string,
  { flushMs }: { flushMs: number },
): Writer {
  let waiting: Waiting[] = []
  let sending: Promise<void> | null = null
  let isPlanned = false
  /** Something that is no delta waits: it is not held */
  let isUrgent = false
  let timer: NodeJS.Timeout | null = null
  let sentAt = Number.NEGATIVE_INFINITY
  let isClosed = false
  let loss: unknown

  const lose = (error: unknown) => {
    loss ??= error
  }
  const send = (): void => {
    isPlanned = false
    if (timer) clearTimeout(timer)
    timer = null
    if (sending || waiting.length === 0) return
    const batch = waiting
    waiting = []
    isUrgent = false
    sentAt = performance.now()
    sending = bus
      .append(session, batch.map(encoded(turn)))
      .then(
        (cursors) => {
          for (const [i, { resolve }] of batch.entries()) resolve(cursors[i] ?? '')
        },
        (error: unknown) => {
          for (const { reject } of batch) reject(error)
        },
      )
      .then(() => {
        sending = null
        if (waiting.length > 0) plan()
      })
  }
  /** At the end of this tick, or for deltas alone when the last append is `flushMs` old. */
  const plan = (): void => {
    if (sending || isPlanned) return
    const rest = isUrgent ? 0 : sentAt + flushMs - performance.now()
    if (rest > 0) {
      timer ??= setTimeout(send, rest)
      return
    }
    isPlanned = true
    queueMicrotask(send)
  }
  return {
    delta(event) {
      if (isClosed) return
      const before = waiting.at(-1)
      const merged = before?.isDelta ? merge(before.event, event) : null
      if (before && merged) before.event = merged
      else waiting.push({ event, isDelta: true, once: undefined, resolve: () => {}, reject: lose })
      plan()
    },
    emit(event, once) {
      const said = new Promise<string>((resolve, reject) => {
        if (isClosed) return reject(new BatonError('internal', 'The turn has no writer any more.'))
        waiting.push({ event, isDelta: false, once, resolve, reject })
        isUrgent = true
        plan()
      })
      // Announcements are made again from the store: one that was lost must not end the process.
      said.catch(() => {})
      return said
    },
    async flush() {
      while (sending || waiting.length > 0) {
        send()
        await sending
      }
    },
    async close() {
      await this.flush()
      isClosed = true
      if (loss !== undefined) throw loss
    },
  }
}

const encoded =
  (turn: string) =>
  ({ event, once }: Waiting): BusEvent => ({
    type: event.type,
    turn_id: turn,
    data: JSON.stringify(event),
    ...(once === undefined ? {} : { once }),
  })

/** One delta for two of the same text or the same call's arguments; null where they do not belong together. */
function merge(a: TurnEvent, b: TurnEvent): TurnEvent | null {
  if (a.step !== b.step) return null
  if (a.type === 'content.delta' && b.type === 'content.delta') return { ...a, text: a.text + b.text }
  if (a.type === 'reasoning.delta' && b.type === 'reasoning.delta') return { ...a, text: a.text + b.text }
  if (a.type === 'tool_call.delta' && b.type === 'tool_call.delta' && a.call_id === b.call_id) {
    return { ...a, arguments_delta: a.arguments_delta + b.arguments_delta }
  }
  return null
}
