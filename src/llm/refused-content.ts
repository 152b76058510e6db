/**
 * What a vendor refused of a chat: tokens and media without which it then answered. The chat still has them: without
 * this, each later turn would be refused for them once more, and lose the tokens and media since then, too. Few refusals
 * name what is at fault, and some of it may only be too much together: as soon as one of those left out is deleted, the
 * others are sent again.
 */
import { BoundedMap } from '../bounded-map.ts'
import type { MessageInput } from '../chat/message.ts'
import { marksOf, type RepairTarget } from '../chat/repair.ts'
import type { ModelRequest } from '../provider.ts'

/** As in models.ts: a server may begin to take them, and only a request that has them can tell. */
const FRESH_MS = 3_600_000
/** Of all chats; each takes about two hundred bytes. */
const MOST_MARKS = 50_000

export interface RefusedContent {
  /** Marks (chat/repair.ts) of what the target refused of this session's history, as far as this process knows */
  known(session: string, target: Target, history: readonly MessageInput[]): ReadonlySet<string> | undefined
  /** The provider answered what was sent in the request's place. */
  note(provider: string, request: ModelRequest, sent: ModelRequest): void
}

type Target = Pick<RepairTarget, 'provider' | 'model' | 'credential_id'>

/** Marks that were left out together; no mark is in two lists. */
type Refusals = readonly (readonly string[])[]

export function createRefusedContent(now: () => number): RefusedContent {
  const chats = new BoundedMap<{ refusals: Refusals; until: number }>(
    MOST_MARKS,
    ({ refusals }) => refusals.flat().length,
  )
  const fresh = (key: string) => {
    const chat = chats.get(key)
    return chat && chat.until > now() ? chat : undefined
  }

  return {
    known(session, target, history) {
      const chat = fresh(keyOf(session, target))
      if (!chat) return undefined
      const there = new Set(marksIn(history))
      return new Set(chat.refusals.filter((marks) => marks.every((mark) => there.has(mark))).flat())
    },
    note(provider, request, sent) {
      if (sent.messages === request.messages) return
      const left = new Set(marksIn(sent.messages))
      const gone = new Set(marksIn(request.messages).filter((mark) => !left.has(mark)))
      if (gone.size === 0) return
      const { session_id, model, credential } = request
      const key = keyOf(session_id, { provider, model, credential_id: credential.id })
      const { refusals = [], until = now() + FRESH_MS } = fresh(key) ?? {}
      const others = refusals.filter((marks) => !marks.some((mark) => gone.has(mark)))
      chats.put(key, { refusals: [...others, [...gone]], until })
    },
  }
}

const keyOf = (session: string, { provider, model, credential_id }: Target): string =>
  [session, provider, model, credential_id].join(' ')

const marksIn = (messages: readonly MessageInput[]): string[] =>
  messages.flatMap(({ parts }) => parts.flatMap(marksOf))
