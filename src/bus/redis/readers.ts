/**
 * A replica's readers of logs in Redis. A reader listens first, reads the log up to its end, and then follows the
 * session's channel. Each message names the event before it, so that a missed one shows; then the log is read again
 * from the last event that the reader has.
 */
import { isTerminal } from '../../chat/event.ts'
import { BatonError, isUnavailable } from '../../errors.ts'
import { pause } from '../../within.ts'
import type { LoggedEvent, ReadItem, ReadOptions } from '../bus.ts'
import { compareIds, formatCursor, type Position, sessionTag } from '../cursor.ts'
import { clear, type Inbox, type Inboxes } from './inboxes.ts'
import type { Link } from './link.ts'
import type { Published } from './published.ts'
import type { Page, ReadFrom, Scripts } from './scripts.ts'

/** Between the tries of a reader while Redis is away: one that has begun waits as long as its client does. */
const AWAY_MS = 500
/** Longest that a reader waits for its first page: the client may find a replica that reaches Redis. */
const FIRST_MS = 10_000
/**
 * Between the tries to find a turn's first event: its owner says it a moment, under load up to a second, after the
 * store knows that the turn began.
 */
const SOON_MS = [10, 40, 200, 750]

/** Reads as Bus.read does; `from`: where `options.after` is. */
export function createRead(link: Link, scripts: Scripts, inboxes: Inboxes) {
  const ask = (session: string, from: ReadFrom, options: ReadOptions) =>
    link.persist(() => scripts.read(session, from, options))

  /** The first page. What is lost stays lost, but a turn's first event may be on its way into the log. */
  async function askFirst(session: string, from: ReadFrom, options: ReadOptions) {
    const { isYoung = false, signal } = options
    let page = await ask(session, from, options)
    for (const ms of isYoung && from === 'start' ? SOON_MS : []) {
      if (!page.isGap || signal.aborted) break
      await pause(ms, signal)
      page = await ask(session, from, options)
    }
    return page
  }

  /** A page for a reader that has begun; null if it was aborted before Redis was back. */
  async function askAgain(session: string, from: Position, options: ReadOptions) {
    while (!options.signal.aborted && !inboxes.isClosed()) {
      try {
        return await ask(session, from, options)
      } catch (thrown) {
        if (!(thrown instanceof BatonError)) throw thrown
        await pause(AWAY_MS, options.signal)
      }
    }
    return null
  }

  /** Throws `unavailable` if Redis is away before the first item, never after. */
  async function* readOn(
    session: string,
    from: Position | null,
    options: ReadOptions,
  ): AsyncGenerator<ReadItem> {
    const { signal, turn } = options
    const { inbox, begun, leave } = inboxes.join(session)
    signal.addEventListener('abort', inbox.wake)
    try {
      await begun
      if (signal.aborted || inboxes.isClosed()) return
      // What was heard up to now is in the log already.
      clear(inbox)
      let page: Page | null = await askFirst(session, from ?? 'start', options)
      while (page && !signal.aborted) {
        const { isGap, isComplete, isOver, position } = page
        if (isGap) yield { gap: true, cursor: formatCursor(sessionTag(session), position) }
        const events = ofTurn(page.events, turn)
        if (events.length > 0) yield { events }
        if (isOver) return
        const next: Position | null = isComplete ? yield* live(inbox, position, options) : position
        if (!next) return
        clear(inbox)
        page = await askAgain(session, next, options)
      }
    } finally {
      signal.removeEventListener('abort', inbox.wake)
      leave()
    }
  }

  /** Waits for Redis: a stream that failed at once would be asked for again at once, by all clients while it is away. */
  return async function* read(
    session: string,
    from: Position | null,
    options: ReadOptions,
  ): AsyncGenerator<ReadItem> {
    const until = performance.now() + FIRST_MS
    for (let hasWaited = false; !options.signal.aborted && !inboxes.isClosed(); hasWaited = true) {
      try {
        // A turn that had not begun when the reader came may be over by now.
        const now = hasWaited ? { ...options, begun: true } : options
        return yield* readOn(session, from, now)
      } catch (thrown) {
        if (!isUnavailable(thrown) || performance.now() >= until) throw thrown
        await pause(AWAY_MS, options.signal)
      }
    }
  }
}

/** Yields what is said; returns the last position when the log must be asked again, null when all is over. */
async function* live(
  inbox: Inbox,
  start: Position,
  { signal, turn }: ReadOptions,
): AsyncGenerator<ReadItem, Position | null> {
  let position = start
  while (!signal.aborted) {
    if (inbox.isFull) {
      yield { lagged: true }
      return null
    }
    if (inbox.isStale) return position
    if (inbox.heard.length === 0) {
      await inbox.news()
      continue
    }
    const { heard } = inbox
    clear(inbox)
    const followed = follow(heard, position)
    position = followed.position
    const events = ofTurn(followed.events, turn)
    if (events.length > 0) yield { events }
    const isOver = turn !== undefined && events.some(({ type }) => isTerminal(type))
    if (isOver || followed.end === 'dropped') return null
    if (followed.end === 'missed') return position
  }
  return null
}

/** The events that follow `start` without a hole; `end`: why they stop. */
function follow(
  heard: readonly (Published | null)[],
  start: Position,
): { events: LoggedEvent[]; position: Position; end: 'dropped' | 'missed' | null } {
  const events: LoggedEvent[] = []
  let position = start
  for (const published of heard) {
    if (!published) return { events, position, end: 'dropped' }
    const place = placeOf(published, position)
    if (place === 'later') return { events, position, end: 'missed' }
    if (place === 'earlier') continue
    events.push(...published.events)
    position = { generation: published.generation, id: published.last ?? position.id }
  }
  return { events, position, end: null }
}

/** `next`: right after the position; `earlier`: read already; `later`: what comes between was not heard. */
function placeOf(published: Published, { generation, id }: Position): 'earlier' | 'next' | 'later' {
  const { before, last } = published
  const isNewer = last !== null && compareIds(last, id) > 0
  if (published.generation === generation) {
    if (before === id) return 'next'
    return last === null || isNewer ? 'later' : 'earlier'
  }
  // The former log expired or was flushed, but a reader who listened has missed nothing. A message that is not newer
  // was heard late: its log may be lost by now, too.
  return before === 'fresh' && isNewer ? 'next' : 'later'
}

const ofTurn = (events: LoggedEvent[], turn: string | undefined): LoggedEvent[] =>
  turn === undefined ? events : events.filter(({ turn_id }) => turn_id === turn)
