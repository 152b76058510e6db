/**
 * A replica's readers of logs in Redis. A reader listens first, reads the log up to its end, and from then
 * on lives on what is said on the session's channel. Each message names the event before it, so that one
 * that was missed shows; then the log is read again from the last event that the reader has.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { isTerminal } from '../../chat/event.ts'
import { BatonError } from '../../errors.ts'
import type { LoggedEvent, ReadItem, ReadOptions } from '../bus.ts'
import { compareIds, formatCursor, idOf, type Position, sessionTag } from '../cursor.ts'
import { MAX_BUFFER } from '../limits.ts'
import type { Link } from './link.ts'
import { type Page, type ReadFrom, readSaid, type Said, type Scripts } from './scripts.ts'

const LINGER_MS = 30_000
/** Between the tries of a reader that has begun already: it waits for Redis as long as its client does. */
const AWAY_MS = 500
/** Between the tries to find a turn's first event: its owner says it a moment after the store knows that it began. */
const SOON_MS = [10, 40, 200]

/** What one reader has heard and not dealt with; bounded. */
interface Ear {
  /** `null`: the session was dropped */
  heard: (Said | null)[]
  bytes: number
  /** More was said than may wait */
  isFull: boolean
  /** Something may have been missed */
  isStale: boolean
  readonly maxBytes: number
  wake(): void
  news(): Promise<void>
}
/** The readers of one session share its channel. */
interface Hub {
  readonly tag: string
  readonly ears: Set<Ear>
  readonly listening: Promise<void>
  /** Redis has said that it listens */
  isListening: boolean
  /** Runs while it has no reader */
  leaving: NodeJS.Timeout | undefined
}

export interface Readers {
  read(session: string, from: Position | null, options: ReadOptions): AsyncIterable<ReadItem>
  /** A message on the channel of this session. */
  hear(session: string, message: string): void
  /** The connection was gone for a while: every reader asks the log. */
  missed(): void
  /** Ends every read. */
  close(): void
}

/** `lingerMs`: how long a channel is listened to after its last reader, so that a chat's next turn finds it open. */
export function createReaders(link: Link, scripts: Scripts, lingerMs = LINGER_MS): Readers {
  const hubs = new Map<string, Hub>()
  let isClosed = false
  const allEars = () => [...hubs.values()].flatMap(({ ears }) => [...ears])

  function join(session: string, ear: Ear): Hub {
    const known = hubs.get(session)
    if (known) {
      clearTimeout(known.leaving)
      known.ears.add(ear)
      return known
    }
    const listening = link.subscribe(scripts.channel(session))
    const tag = sessionTag(session)
    const hub: Hub = { tag, ears: new Set([ear]), listening, isListening: false, leaving: undefined }
    listening.then(
      () => {
        hub.isListening = true
      },
      () => {},
    )
    hubs.set(session, hub)
    return hub
  }

  function leave(session: string, hub: Hub, ear: Ear): void {
    hub.ears.delete(ear)
    if (hub.ears.size > 0 || hubs.get(session) !== hub) return
    const drop = () => {
      hubs.delete(session)
      link.unsubscribe(scripts.channel(session))
    }
    if (hub.isListening && !isClosed) hub.leaving = setTimeout(drop, lingerMs).unref()
    else drop()
  }

  const ask = (session: string, from: ReadFrom, options: ReadOptions) =>
    link.persist(() => scripts.read(session, from, options))

  /** The first page. What is lost stays lost, but a turn's first event may be on its way into the log. */
  async function askFirst(session: string, from: ReadFrom, options: ReadOptions) {
    const { isYoung = false, signal } = options
    let page = await ask(session, from, options)
    for (const ms of isYoung && from === 'start' ? SOON_MS : []) {
      if (!page.isGap || signal.aborted) break
      await sleep(ms, undefined, { signal }).catch(() => {})
      page = await ask(session, from, options)
    }
    return page
  }

  /** A page for a reader that has begun: null when it was aborted before Redis was back. */
  async function askAgain(session: string, from: Position, options: ReadOptions) {
    while (!options.signal.aborted && !isClosed) {
      try {
        return await ask(session, from, options)
      } catch (thrown) {
        if (!(thrown instanceof BatonError)) throw thrown
        await sleep(AWAY_MS, undefined, { signal: options.signal }).catch(() => {})
      }
    }
    return null
  }

  async function* read(
    session: string,
    from: Position | null,
    options: ReadOptions,
  ): AsyncGenerator<ReadItem> {
    const { signal, turn, after, maxBuffer = MAX_BUFFER } = options
    const ear = newEar(maxBuffer)
    const hub = join(session, ear)
    signal.addEventListener('abort', ear.wake)
    let position = from
    let hasBegun = false
    try {
      await hub.listening
      while (!signal.aborted && !isClosed) {
        // What was heard up to now is in the log already.
        clear(ear)
        const page: Page | null =
          hasBegun && position
            ? await askAgain(session, position, options)
            : await askFirst(session, position ?? (after === 'now' ? 'now' : 'start'), options)
        if (!page || signal.aborted) return
        hasBegun = true
        position = page.position
        if (page.isGap) yield { gap: true, cursor: formatCursor(hub.tag, position) }
        const events = ofTurn(page.events, turn)
        if (events.length > 0) yield { events }
        if (page.isOver) return
        if (!page.isComplete) continue
        position = yield* live(ear, position, options)
        if (!position) return
      }
    } finally {
      signal.removeEventListener('abort', ear.wake)
      leave(session, hub, ear)
    }
  }

  return {
    read,
    hear(session, message) {
      const hub = hubs.get(session)
      if (!hub || hub.ears.size === 0) return
      const said = readSaid(message, hub.tag)
      for (const ear of hub.ears) take(ear, said, message.length)
    },
    missed() {
      for (const ear of allEars()) {
        ear.isStale = true
        ear.wake()
      }
    },
    close() {
      isClosed = true
      for (const ear of allEars()) take(ear, null, 0)
    },
  }
}

/** Yields what is said; returns the last position when the log must be asked again, null when all is over. */
async function* live(
  ear: Ear,
  start: Position,
  { signal, turn }: ReadOptions,
): AsyncGenerator<ReadItem, Position | null> {
  let position = start
  while (!signal.aborted) {
    if (ear.isFull) {
      yield { lagged: true }
      return null
    }
    if (ear.isStale) return position
    if (ear.heard.length === 0) {
      await ear.news()
      continue
    }
    const { heard } = ear
    clear(ear)
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

/** The events that come after `start` without a hole; `end`: why no more of them do. */
function follow(
  heard: readonly (Said | null)[],
  start: Position,
): { events: LoggedEvent[]; position: Position; end: 'dropped' | 'missed' | null } {
  const events: LoggedEvent[] = []
  let position = start
  for (const said of heard) {
    if (!said) return { events, position, end: 'dropped' }
    const place = placeOf(said, position)
    if (place === 'later') return { events, position, end: 'missed' }
    if (place === 'earlier') continue
    events.push(...said.events)
    const newest = said.events.at(-1)
    position = { generation: said.generation, id: newest ? idOf(newest.cursor) : position.id }
  }
  return { events, position, end: null }
}

/** `next`: right after the position; `earlier`: read already; `later`: what comes between was not heard. */
function placeOf(said: Said, { generation, id }: Position): 'earlier' | 'next' | 'later' {
  const newest = said.events.at(-1)
  const isNewer = newest !== undefined && compareIds(idOf(newest.cursor), id) > 0
  if (said.generation === generation) {
    if (said.before === id) return 'next'
    return newest && !isNewer ? 'earlier' : 'later'
  }
  // The log expired or was flushed, but whoever listened has missed nothing. If it was heard late, that log may be lost too.
  return said.before === 'fresh' && isNewer ? 'next' : 'later'
}

const ofTurn = (events: LoggedEvent[], turn: string | undefined): LoggedEvent[] =>
  turn === undefined ? events : events.filter(({ turn_id }) => turn_id === turn)

function newEar(maxBytes: number): Ear {
  let wake = () => {}
  return {
    heard: [],
    bytes: 0,
    isFull: false,
    isStale: false,
    maxBytes,
    wake: () => wake(),
    news: () =>
      new Promise((resolve) => {
        wake = resolve
      }),
  }
}

function take(ear: Ear, said: Said | null, bytes: number): void {
  ear.bytes += bytes
  // What nothing waits in front of is no sign of a slow reader, however large.
  if (ear.bytes > ear.maxBytes && ear.heard.length > 0) {
    ear.isFull = true
    ear.heard = []
  } else ear.heard.push(said)
  ear.wake()
}

function clear(ear: Ear): void {
  ear.heard = []
  ear.bytes = 0
  ear.isFull = false
  ear.isStale = false
}
