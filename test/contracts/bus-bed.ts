/** Buses under test, and readers of them. */
import type { Test } from 'tap'
import type { Bus, BusEvent, LoggedEvent, LogLimits, ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import { encodeEvent } from '../../src/sse.ts'

export interface BusBed {
  /** A bus on a backend of its own, which is closed when the test ends. */
  open(t: Test, limits?: Partial<LogLimits>): Promise<Bus>
  /** Another replica's bus on the same backend; the same bus if there are no replicas. */
  another(t: Test, bus: Bus, limits?: Partial<LogLimits>): Promise<Bus>
  /** Loses everything that the bus kept (flush, restart). Gives the bus that clients meet afterwards. */
  lose(t: Test, bus: Bus): Promise<Bus>
}

export const SESSION = 'ses_one'
export const TURN = 'turn_one'

export const event = (type: string, text: string | number = '', turn: string | null = TURN): BusEvent => ({
  type,
  turn_id: turn,
  data: JSON.stringify({ type, text }),
})
export const delta = (text: string | number, turn: string | null = TURN) => event('content.delta', text, turn)
export const wholeTurn = (turn: string, deltas = 5): BusEvent[] => [
  event('turn.created', '', turn),
  ...Array.from({ length: deltas }, (_, i) => delta(i, turn)),
  event('turn.completed', '', turn),
]

interface Reading {
  items: ReadItem[]
  /** Settles when this many events have come. Rejects if the read ends before. */
  events(count: number): Promise<LoggedEvent[]>
  item(count: number): Promise<ReadItem>
  ended: Promise<void>
  stop(): Promise<void>
}

/** Reads in the background until it is stopped. */
export function start(t: Test, bus: Bus, options: Partial<ReadOptions> = {}, session = SESSION): Reading {
  const abort = new AbortController()
  const items: ReadItem[] = []
  let told = () => {}
  let isOver = false
  const ended = (async () => {
    for await (const item of bus.read(session, { after: 'start', signal: abort.signal, ...options })) {
      items.push(item)
      told()
    }
  })().finally(() => {
    isOver = true
    told()
  })
  ended.catch(() => {})
  const until = async (isThere: () => boolean) => {
    while (!isThere()) {
      if (isOver) throw new Error(`the read ended with ${JSON.stringify(items)}`)
      await new Promise<void>((resolve) => {
        told = resolve
      })
    }
  }
  const stop = async () => {
    abort.abort()
    await ended.catch(() => {})
  }
  t.teardown(stop)
  return {
    items,
    ended,
    stop,
    async events(count) {
      await until(() => eventsOf(items).length >= count)
      return eventsOf(items)
    },
    async item(count) {
      await until(() => items.length > count)
      const item = items[count]
      if (!item) throw new Error('unreachable')
      return item
    },
  }
}

export const eventsOf = (items: ReadItem[]): LoggedEvent[] =>
  items.flatMap((item) => ('events' in item ? item.events : []))
export const bytes = (events: LoggedEvent[]): string =>
  events.map(({ cursor, type, data }) => encodeEvent(type, data, cursor)).join('')
export const textsOf = (events: LoggedEvent[]): unknown[] => events.map(({ data }) => JSON.parse(data).text)

/** Appends the events, and finds their cursors in the log. Nobody else may append meanwhile. */
export async function appended(bus: Bus, session: string, events: BusEvent[]): Promise<string[]> {
  await bus.append(session, events)
  const { signal } = new AbortController()
  for await (const item of bus.read(session, { after: 'start', signal })) {
    const newest = eventsOf([item]).slice(-events.length)
    if (newest.at(-1)?.data === events.at(-1)?.data) return newest.map(({ cursor }) => cursor)
  }
  throw new Error('the session was dropped')
}

let marks = 0
/** What a read gives up to the log's present end, which an event of this function marks. */
export async function readAll(bus: Bus, options: Partial<ReadOptions> = {}, session = SESSION) {
  const abort = new AbortController()
  const mark = event('mark', ++marks, options.turn ?? null)
  await bus.append(session, [mark])
  const items: ReadItem[] = []
  for await (const item of bus.read(session, { after: 'start', signal: abort.signal, ...options })) {
    if ('events' in item) {
      const events = item.events.filter(({ type }) => type !== 'mark')
      if (events.length > 0) items.push({ events })
    } else items.push(item)
    if ('gap' in item || ('events' in item && item.events.some(({ data }) => data === mark.data))) break
  }
  return items
}
