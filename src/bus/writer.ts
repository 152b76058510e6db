/**
 * A turn's writer: the only place where deltas are merged, and where events become JSON. The first delta of a part goes
 * out with the present tick; later ones are held while an append is under way, and for as long as deltas of any turn on
 * this bus went out less than `flushMs` ago, so that under load the deltas of many turns travel together. Order is
 * kept: a delta only ever joins the event right before it.
 */
import type { TurnEvent } from '../chat/event.ts'
import { BatonError } from '../errors.ts'
import type { Bus, BusEvent } from './bus.ts'

/** Says the events of one turn. */
export interface Writer {
  /** For display only: a loss shows in `close`. The writer owns the event from now on, and may extend it. */
  delta(event: TurnEvent): void
  /**
   * Resolves once it is in the log. Rejects with `unavailable`, which may be ignored. `once` and `lost` as of a
   * BusEvent.
   */
  emit(event: TurnEvent, once?: string, lost?: boolean): Promise<void>
  /** Resolves once everything so far has been appended, or refused. Never rejects. */
  flush(): Promise<void>
  /** Events were given up, and only this process knows that the log is not whole. */
  isBroken(): boolean
  /** Flushes; rejects with the first error that cost a delta. Later events are refused. */
  close(): Promise<void>
}

interface Waiting {
  readonly event: TurnEvent
  isDelta: boolean
  once: string | undefined
  lost: boolean
  resolve(): void
  reject(error: unknown): void
}

const NOTHING = (): void => {}

/** When deltas may go out, for all writers on one bus; all deltas that are held go in one tick. */
interface Pace {
  /** When deltas last went out, on the monotonic clock */
  sentAt: number
  held: Set<() => void>
  timer: NodeJS.Timeout | null
}
const paces = new WeakMap<Bus, Pace>()

function paceOf(bus: Bus): Pace {
  const pace = paces.get(bus) ?? { sentAt: Number.NEGATIVE_INFINITY, held: new Set(), timer: null }
  paces.set(bus, pace)
  return pace
}

function hold(pace: Pace, send: () => void, ms: number): void {
  pace.held.add(send)
  pace.timer ??= setTimeout(() => {
    const { held } = pace
    pace.held = new Set()
    pace.timer = null
    pace.sentAt = performance.now()
    for (const go of held) go()
  }, ms)
}

function release(pace: Pace, send: () => void): void {
  if (!pace.held.delete(send) || pace.held.size > 0 || !pace.timer) return
  clearTimeout(pace.timer)
  pace.timer = null
}

/**
 * `flushMs`: how long deltas may be held to travel together; 0 for a bus whose append costs nothing. `epoch`: the lease
 * under which the turn's owner speaks. `again`: the turn had another owner, or waited, so that events may be said twice.
 */
export function createWriter(
  bus: Bus,
  session: string,
  { flushMs, epoch, again = false }: { flushMs: number; epoch: number; again?: boolean },
): Writer {
  let waiting: Waiting[] = []
  let sending: Promise<void> | null = null
  let isPlanned = false
  /** The next delta is the first of its part: somebody waits for it */
  let isFirst = true
  const pace = paceOf(bus)
  let isClosed = false
  let loss: unknown
  /** The last append was given up */
  let isBroken = false

  const lose = (error: unknown) => {
    loss ??= error
  }
  const send = (): void => {
    isPlanned = false
    release(pace, send)
    if (sending || waiting.length === 0) return
    const batch = waiting
    waiting = []
    isFirst = !batch.at(-1)?.isDelta
    const settled = () => {
      sending = null
      if (waiting.length > 0) plan()
    }
    sending = bus.append(session, encoded(batch, { epoch, again })).then(
      () => {
        for (const { resolve } of batch) resolve()
        isBroken = false
        settled()
      },
      (error: unknown) => {
        for (const { reject } of batch) reject(error)
        isBroken = true
        settled()
      },
    )
  }
  /** Sends at the end of this tick; if only later deltas of a part wait, when the pace allows it. */
  const plan = (): void => {
    if (sending || isPlanned) return
    // An event other than a delta is not held, nor are the deltas before it.
    const isUrgent = waiting.some(({ isDelta }) => !isDelta)
    if (flushMs > 0 && !isUrgent) {
      const now = performance.now()
      const rest = isFirst ? 0 : pace.sentAt + flushMs - now
      if (rest > 0) return hold(pace, send, rest)
      pace.sentAt = now
    }
    isPlanned = true
    // If an append is a round trip, the turn's model request is sent first, and the turn's first events then travel
    // together. In memory they are in the log at once: a repeat of the request that began the turn finds the turn's
    // beginning there.
    if (flushMs > 0 && isUrgent) setImmediate(send)
    else queueMicrotask(send)
  }
  return {
    delta(event) {
      if (isClosed) return
      const before = waiting.at(-1)
      if (before?.isDelta && join(before.event, event)) return plan()
      waiting.push({ event, isDelta: true, once: undefined, lost: false, resolve: NOTHING, reject: lose })
      plan()
    },
    emit(event, once, lost = false) {
      const said = new Promise<void>((resolve, reject) => {
        if (isClosed) return reject(new BatonError('internal', 'The turn has no writer any more.'))
        waiting.push({ event, isDelta: false, once, lost, resolve, reject })
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
      // Only this process knows of the loss: should it die, the log must not look whole. An append of nothing marks it.
      if (!isBroken) return
      await bus.append(session, []).then(
        () => {
          isBroken = false
        },
        () => {},
      )
    },
    isBroken: () => isBroken,
    async close() {
      await this.flush()
      isClosed = true
      if (loss !== undefined) throw loss
    },
  }
}

const encoded = (
  batch: readonly Waiting[],
  { epoch, again }: { epoch: number; again: boolean },
): BusEvent[] =>
  batch.map(({ event, once, lost }) => {
    const { type, turn_id } = event
    return { type, turn_id, data: JSON.stringify(event), once, epoch, again, lost }
  })

/** Merges `b` into `a`; false if they do not belong together. */
function join(a: TurnEvent, b: TurnEvent): boolean {
  if (a.step !== b.step) return false
  if (a.type === 'content.delta' && b.type === 'content.delta') a.text += b.text
  else if (a.type === 'reasoning.delta' && b.type === 'reasoning.delta') a.text += b.text
  else if (a.type === 'tool_call.delta' && b.type === 'tool_call.delta' && a.call_id === b.call_id) {
    a.arguments_delta += b.arguments_delta
  } else return false
  return true
}
