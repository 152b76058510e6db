import type { Bus, BusEvent, LoggedEvent, ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import { formatCursor, numbersOf, parseCursor, sessionTag } from '../../src/bus/cursor.ts'
import { createMemorySlots } from '../../src/bus/slots.ts'

/** The cursor of a session's nth event, from 1 on. */
export const cursorAt = (session: string, n: number): string =>
  formatCursor(sessionTag(session), { generation: '000000', id: `0-${n}` })

/** A bus whose logs a test fills; readers see what is there and what comes. */
export function fakeBus() {
  const logs = new Map<string, LoggedEvent[]>()
  const waiting = new Set<() => void>()
  const topics = new Map<string, Set<(message: string) => void>>()
  const published: [string, string][] = []
  const tallies = new Map<string, number>()
  const logOf = (session: string) => {
    const log = logs.get(session) ?? []
    logs.set(session, log)
    return log
  }
  const place = (session: string, cursor: string): number => numbersOf(parseCursor(cursor, session).id)[1]
  async function* follow(session: string, options: ReadOptions, from: number): AsyncGenerator<ReadItem> {
    let next = from
    while (!options.signal.aborted) {
      const events = logOf(session)
        .slice(next)
        .filter(({ turn_id }) => options.turn === undefined || turn_id === options.turn)
      next = logOf(session).length
      if (events.length > 0) yield { events }
      else await new Promise<void>((resolve) => wake(resolve, options.signal))
    }
  }
  function wake(resolve: () => void, signal: AbortSignal): void {
    const once = () => {
      waiting.delete(once)
      signal.removeEventListener('abort', once)
      resolve()
    }
    waiting.add(once)
    signal.addEventListener('abort', once)
  }
  const bus: Bus = {
    slots: (_, total) => createMemorySlots(total),
    async append(session, events: BusEvent[]) {
      const log = logOf(session)
      for (const { type, turn_id, data } of events)
        log.push({ cursor: cursorAt(session, log.length + 1), type, turn_id, data })
      for (const once of [...waiting]) once()
    },
    read(session, options) {
      return follow(session, options, options.after === 'start' ? 0 : place(session, options.after))
    },
    present: async (session) => cursorAt(session, logOf(session).length),
    oldest: async (session) => cursorAt(session, 0),
    async pastEnd(session, turn, cursor) {
      const at = place(session, cursor)
      const end = logOf(session).findIndex(
        ({ type, turn_id }) => turn_id === turn && /^turn\.(completed|failed|cancelled)$/.test(type),
      )
      return end >= 0 && at > end
    },
    drop: async (session) => void logs.delete(session),
    async publish(topic, message) {
      published.push([topic, message])
      for (const fn of topics.get(topic) ?? []) fn(message)
    },
    subscribe(topic, fn) {
      const fns = topics.get(topic) ?? new Set()
      topics.set(topic, fns.add(fn))
    },
    async tally(name) {
      tallies.set(name, (tallies.get(name) ?? 0) + 1)
      return tallies.get(name) ?? 0
    },
    ready: async () => {},
    close: async () => {},
  }
  return { bus, published }
}
