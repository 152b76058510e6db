/** Callers' changes of a session's tools: made one after the other, and brought to the turn under way together. */
import type { ToolsEffect, ToolsMove } from '../ports.ts'
import type { Session } from '../store/store.ts'
import { within } from '../within.ts'

/** Longest that a turn waits for changes that are being written. */
const WRITE_MS = 1_000
/**
 * Longest that a change with `apply: now` waits for others, since together they are one restart: for the others to be
 * written, which takes a busy store seconds for twenty, and for their servers.
 */
const GATHER_MS = { written: 5_000, servers: 400 }

/** Each session has its own queue in this process. */
export interface ChangeQueue {
  /**
   * One change at a time; the compare-and-swap of the registry guards against other processes. No `work` may wait for a
   * server: all later changes would wait, too.
   */
  take<T>(session: string, work: () => Promise<T>): Promise<T>
  isTaken(session: string): boolean
  /** Settles once no change is being written any more, or when that takes too long. */
  whenEmpty(session: string): Promise<void>
  /** A change that is to take effect at once waits for its servers. */
  awaits(session: string, servers: Promise<unknown>): void
  /**
   * Makes a change take effect at once. Changes that come together take effect together, since each may be a restart:
   * once no other change is under way and no server is waited for, or when that takes too long.
   */
  applyNow(session: Session, move: ToolsMove): Promise<ToolsEffect>
}

export function createChangeQueue(
  takeEffect: (session: Session, move: ToolsMove) => Promise<ToolsEffect>,
): ChangeQueue {
  const last = new Map<string, Promise<unknown>>()
  const servers = new Map<string, Promise<unknown>>()
  const pending = new Map<string, { move: ToolsMove; effect: Promise<ToolsEffect> }>()

  async function whenQuiet(session: string): Promise<void> {
    const written = () => whenGone(last, session, GATHER_MS.written)
    await written()
    // A change whose servers have answered goes on in the queue.
    await whenGone(servers, session, GATHER_MS.servers, written)
  }

  return {
    take(session, work) {
      const mine = (last.get(session) ?? Promise.resolve()).then(work, work)
      const settled = mine.catch(() => {})
      put(last, session, settled)
      return mine
    },
    isTaken: (session) => last.has(session),
    whenEmpty: (session) => whenGone(last, session, WRITE_MS),
    awaits: (session, more) => put(servers, session, Promise.allSettled([servers.get(session), more])),
    applyNow(session, move) {
      const known = pending.get(session.id)
      if (known) {
        known.move.removed.push(...move.removed)
        known.move.tools_revision = Math.max(known.move.tools_revision, move.tools_revision)
        known.move.isMoved ||= move.isMoved
        return known.effect
      }
      const effect = whenQuiet(session.id).then(() => {
        pending.delete(session.id)
        return takeEffect(session, move)
      })
      pending.set(session.id, { move, effect })
      return effect
    },
  }
}

/** Keeps the work in the map until it has settled; the work never rejects. */
function put(map: Map<string, Promise<unknown>>, session: string, work: Promise<unknown>): void {
  map.set(session, work)
  void work.then(() => {
    if (map.get(session) === work) map.delete(session)
  })
}

/** Waits until the map has nothing for the session, at most `ms`; `then` runs after each work that it waited for. */
async function whenGone(
  map: ReadonlyMap<string, Promise<unknown>>,
  session: string,
  ms: number,
  then: () => Promise<void> = async () => {},
): Promise<void> {
  const until = performance.now() + ms
  for (let left = ms; left > 0; left = until - performance.now()) {
    const work = map.get(session)
    if (!work) return
    await within(left, work)
    await then()
  }
}
