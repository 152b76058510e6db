/**
 * Histories that this process has read or written itself, so that a chat's next turn reads only what is new.
 * The store says with each turn whether what is kept still holds (TurnStart.rewrites).
 */
import type { Message } from '../chat/message.ts'
import type { TurnStart } from '../store/store.ts'

/** A session's messages up to one of them, without a gap. */
interface KeptHistory {
  readonly rewrites: number
  readonly seq: number
  readonly messages: readonly Message[]
}

export interface Histories {
  kept(session: string): KeptHistory | undefined
  /** The list is the keeper's from now on. */
  keep(session: string, rewrites: number, messages: readonly Message[]): void
}

/**
 * Characters of JSON, all sessions together. Five times as many bytes of memory: with a message goes what was rendered
 * of it for each provider that it was sent to, and that as bytes.
 */
const MOST_KEPT = 8 << 20

export function createHistories(most = MOST_KEPT): Histories {
  /** Least recently used first */
  const entries = new Map<string, KeptHistory & { size: number }>()
  let total = 0
  const drop = (session: string) => {
    total -= entries.get(session)?.size ?? 0
    entries.delete(session)
  }
  return {
    kept: (session) => entries.get(session),
    keep(session, rewrites, messages) {
      const size = sizeOf(messages, entries.get(session))
      drop(session)
      const seq = messages.at(-1)?.seq
      // One giant must not push out everyone else.
      if (seq === undefined || size > most / 4) return
      entries.set(session, { rewrites, seq, messages, size })
      total += size
      for (const [oldest] of entries) {
        if (total <= most) return
        drop(oldest)
      }
    },
  }
}

/** Only what the list has beyond the one before is measured. */
function sizeOf(messages: readonly Message[], before: (KeptHistory & { size: number }) | undefined): number {
  const count = before?.messages.length ?? 0
  const goesOn = before !== undefined && messages[count - 1] === before.messages[count - 1]
  const fresh = goesOn ? messages.slice(count) : messages
  return fresh.reduce(
    (sum, { parts }) => sum + JSON.stringify(parts).length + OVERHEAD,
    goesOn ? before.size : 0,
  )
}

/** Of a message beside its parts. */
const OVERHEAD = 300

/** All messages of a session whose turn begins, in a list of its own. */
export const wholeHistory = (
  start: Pick<TurnStart, 'history' | 'rewrites'>,
  kept: KeptHistory | undefined,
): Message[] => (kept?.rewrites === start.rewrites ? [...kept.messages, ...start.history] : start.history)
