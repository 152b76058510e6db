/**
 * What a replica hears on the channels of sessions. The readers of one session share its channel; each has an inbox of
 * its own, where what was said waits until the reader takes it.
 */
import { MAX_BUFFER } from '../bus.ts'
import { sessionTag } from '../cursor.ts'
import type { Link } from './link.ts'
import { type Published, readPublished } from './published.ts'
import type { Scripts } from './scripts.ts'

const LINGER_MS = 30_000

/** What one reader has heard and not dealt with; bounded. */
export interface Inbox {
  /** Null: the session was dropped */
  heard: (Published | null)[]
  /** Of what waits behind the first message */
  bytes: number
  /** More was said than may wait */
  isFull: boolean
  /** Something may have been missed */
  isStale: boolean
  wake(): void
  /** Resolves with the next `wake`. */
  news(): Promise<void>
}

/** All that a replica's readers hear. */
export interface Inboxes {
  /** Listens for one more reader. */
  join(session: string): Listening
  /** Takes a message from the channel of this session. */
  hear(session: string, message: string): void
  /** The connection was gone for a while: every reader has to ask the log. */
  missed(): void
  /** Ends every read. */
  close(): void
  isClosed(): boolean
}

interface Listening {
  inbox: Inbox
  /** Once it resolves, nothing that is said is missed. Rejects with `unavailable`. */
  begun: Promise<void>
  leave(): void
}

interface Hub {
  readonly inboxes: Set<Inbox>
  readonly begun: Promise<void>
  /** Redis has confirmed the subscription */
  isListening: boolean
  /** Runs while the hub has no reader */
  leaving: NodeJS.Timeout | undefined
}

/** `lingerMs`: how long a channel is listened to after its last reader, so that a chat's next turn finds it open. */
export function createInboxes(
  link: Link,
  { channel }: Pick<Scripts, 'channel'>,
  lingerMs = LINGER_MS,
): Inboxes {
  const hubs = new Map<string, Hub>()
  let isClosed = false
  const allInboxes = () => [...hubs.values()].flatMap(({ inboxes }) => [...inboxes])

  function hubOf(session: string): Hub {
    const known = hubs.get(session)
    if (known) return known
    const begun = link.subscribe(channel(session))
    const hub: Hub = { inboxes: new Set(), begun, isListening: false, leaving: undefined }
    begun.then(
      () => {
        hub.isListening = true
      },
      () => {},
    )
    hubs.set(session, hub)
    return hub
  }

  function leave(session: string, hub: Hub, inbox: Inbox): void {
    hub.inboxes.delete(inbox)
    if (hub.inboxes.size > 0 || hubs.get(session) !== hub) return
    const drop = () => {
      hubs.delete(session)
      link.unsubscribe(channel(session))
    }
    if (hub.isListening && !isClosed) hub.leaving = setTimeout(drop, lingerMs).unref()
    else drop()
  }

  return {
    join(session) {
      const hub = hubOf(session)
      clearTimeout(hub.leaving)
      const inbox = newInbox()
      hub.inboxes.add(inbox)
      return { inbox, begun: hub.begun, leave: () => leave(session, hub, inbox) }
    },
    hear(session, message) {
      const hub = hubs.get(session)
      if (!hub || hub.inboxes.size === 0) return
      const published = readPublished(message, sessionTag(session))
      for (const inbox of hub.inboxes) take(inbox, published, message.length)
    },
    missed() {
      for (const inbox of allInboxes()) {
        inbox.isStale = true
        inbox.wake()
      }
    },
    close() {
      isClosed = true
      for (const inbox of allInboxes()) take(inbox, null, 0)
    },
    isClosed: () => isClosed,
  }
}

function newInbox(): Inbox {
  let wake = () => {}
  return {
    heard: [],
    bytes: 0,
    isFull: false,
    isStale: false,
    wake: () => wake(),
    news: () =>
      new Promise((resolve) => {
        wake = resolve
      }),
  }
}

function take(inbox: Inbox, published: Published | null, bytes: number): void {
  // What waits first is no sign of a slow reader, however large it is.
  if (inbox.heard.length > 0) inbox.bytes += bytes
  if (inbox.bytes > MAX_BUFFER) {
    inbox.isFull = true
    inbox.heard = []
  } else inbox.heard.push(published)
  inbox.wake()
}

/** Forgets what was heard: the reader has it. */
export function clear(inbox: Inbox): void {
  inbox.heard = []
  inbox.bytes = 0
  inbox.isFull = false
  inbox.isStale = false
}
