/**
 * Announces a session's revisions in their order, whichever replicas made them. If they came out of order, a client
 * that applies what was added and removed would end with tools that are gone.
 */
import { EventEmitter, once } from 'node:events'
import { BoundedMap } from '../bounded-map.ts'
import type { RegistryRow } from '../store/store.ts'
import { within } from '../within.ts'

/**
 * How long to wait for the process that wrote a revision to announce it: it takes up to a second under load, or it
 * died.
 */
const ANNOUNCE_MS = 1000
/** Sessions whose newest announced revision is known. */
const MOST_KNOWN = 50_000

interface AnnouncedRevisions {
  /** This revision was announced, here or by another replica. */
  note(session: string, revision: number): void
  /** Whether this revision, or a later one, was announced */
  isKnown(row: RegistryRow): boolean
  /** Settles once this revision, written `ageMs` ago, was announced, or its announcement is no longer expected. */
  whenAnnounced(row: RegistryRow, ageMs: number): Promise<void>
}

export function createAnnouncedRevisions(): AnnouncedRevisions {
  const newest = new BoundedMap<number>(MOST_KNOWN)
  const notes = new EventEmitter().setMaxListeners(0)
  const isKnown = ({ session_id, revision }: RegistryRow) => revision <= (newest.get(session_id) ?? 0)
  async function untilAnnounced(row: RegistryRow, signal: AbortSignal): Promise<void> {
    while (!isKnown(row) && !signal.aborted) await once(notes, row.session_id, { signal }).catch(() => {})
  }
  return {
    isKnown,
    note(session, revision) {
      if (revision <= (newest.get(session) ?? 0)) return
      newest.put(session, revision)
      notes.emit(session)
    },
    async whenAnnounced(row, ageMs) {
      // A store whose clock was set back since, as by a failover, has written the row in the future.
      const left = ANNOUNCE_MS - Math.max(0, ageMs)
      if (left <= 0 || isKnown(row)) return
      const over = new AbortController()
      await within(left, untilAnnounced(row, over.signal))
      over.abort()
    },
  }
}
