/**
 * Histories that this process has read or written itself, so that a chat's next turn reads only what is new.
 * The store says with each turn whether what is kept still holds (TurnStart.rewrites).
 */
import { getHeapStatistics } from 'node:v8'
import { BoundedMap } from '../bounded-map.ts'
import { isWithin } from '../chat/json.ts'
import type { Message } from '../chat/message.ts'
import type { TurnStart } from '../store/store.ts'

/** A session's messages up to one of them, without a gap. */
interface KeptHistory {
  readonly rewrites: number
  readonly seq: number
  readonly messages: readonly Message[]
  readonly size: number
}

export interface Histories {
  kept(session: string): KeptHistory | undefined
  /** Takes ownership of the list. */
  keep(session: string, rewrites: number, messages: readonly Message[]): void
}

/**
 * Characters of JSON, all sessions together. Each takes about five bytes of memory, since a message carries what was
 * rendered of it for each provider, as objects and as bytes. In all that is a twelfth of the heap that this process may have.
 */
const MOST_KEPT = Math.max(8 << 20, getHeapStatistics().heap_size_limit / 64)

export function createHistories(most = MOST_KEPT): Histories {
  const histories = new BoundedMap<KeptHistory>(most, ({ size }) => size)
  return {
    kept: (session) => histories.get(session),
    keep(session, rewrites, messages) {
      // One giant chat must not push out all others.
      const size = sizeOf(messages, histories.get(session), most / 4)
      const seq = messages.at(-1)?.seq
      if (seq === undefined || size > most / 4) histories.drop(session)
      else histories.put(session, { rewrites, seq, messages, size })
    },
  }
}

/**
 * Measures only the messages that the list kept before does not have, and no more of them than it takes to pass `most`:
 * a giant chat is measured at the end of each of its turns.
 */
function sizeOf(messages: readonly Message[], before: KeptHistory | undefined, most: number): number {
  const goesOn = before !== undefined && messages[before.messages.length - 1] === before.messages.at(-1)
  let [at, size] = goesOn ? [before.messages.length, before.size] : [0, 0]
  for (; at < messages.length && size <= most; at++) {
    const { parts } = messages[at] as Message
    // A file of many megabytes would be copied to be measured.
    if (!isWithin(parts, { bytes: most })) return Infinity
    size += JSON.stringify(parts).length + OVERHEAD
  }
  return size
}

/** What a message takes besides its parts. */
const OVERHEAD = 300

/** All messages of a session whose turn begins, in a list of its own. */
export const wholeHistory = (
  start: Pick<TurnStart, 'history' | 'rewrites'>,
  kept: KeptHistory | undefined,
): Message[] => (kept?.rewrites === start.rewrites ? [...kept.messages, ...start.history] : start.history)
