/**
 * What a vendor refused of a chat: tokens and media without which it then answered. The chat still has them: without
 * this, each later turn would be refused for them once more, and lose the tokens and media since then, too. Few refusals
 * name what is at fault: as soon as one of those left out is deleted, the others are sent again. So are those that were
 * only too much, as soon as anything is deleted that was there with them.
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
  /** Marks (chat/repair.ts) of what the target refused of this history of the session, as far as this process knows */
  known(session: string, target: Target, history: readonly MessageInput[]): ReadonlySet<string> | undefined
  /** The provider answered what was sent in the request's place. */
  note(provider: string, request: ModelRequest, sent: ModelRequest, isTooMuch: boolean): void
}

type Target = Pick<RepairTarget, 'provider' | 'model' | 'credential_id'>

interface Refusal {
  /** Marks of what was left out together; no mark is in two of these lists */
  gone: readonly string[]
  /** It is left out as long as all of these are in the chat. */
  among: readonly string[]
}

export function createRefusedContent(now: () => number): RefusedContent {
  const chats = new BoundedMap<{ refusals: readonly Refusal[]; until: number }>(MOST_MARKS, ({ refusals }) =>
    refusals.reduce((sum, { among }) => sum + among.length, 0),
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
      const lasting = chat.refusals.filter(({ among }) => among.every((mark) => there.has(mark)))
      return new Set(lasting.flatMap(({ gone }) => gone))
    },
    note(provider, request, sent, isTooMuch) {
      if (sent.messages === request.messages) return
      const left = new Set(marksIn(sent.messages))
      const shown = marksIn(request.messages)
      const gone = new Set(shown.filter((mark) => !left.has(mark)))
      if (gone.size === 0) return
      const { session_id, model, credential } = request
      const key = keyOf(session_id, { provider, model, credential_id: credential.id })
      const { refusals = [], until = now() + FRESH_MS } = fresh(key) ?? {}
      const others = refusals.filter((known) => !known.gone.some((mark) => gone.has(mark)))
      const refusal = { gone: [...gone], among: isTooMuch ? shown : [...gone] }
      chats.put(key, { refusals: [...others, refusal], until })
    },
  }
}

const keyOf = (session: string, { provider, model, credential_id }: Target): string =>
  [session, provider, model, credential_id].join(' ')

const marksIn = (messages: readonly MessageInput[]): string[] =>
  messages.flatMap(({ parts }) => parts.flatMap(marksOf))
