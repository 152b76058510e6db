/**
 * What a vendor refused of a chat: tokens and media without which it then answered. The chat still has them: without
 * this, each later turn would be refused for them once more, and lose the tokens and media since then, too.
 */
import { BoundedMap } from '../bounded-map.ts'
import { marksOf } from '../chat/repair.ts'
import type { ModelRequest } from '../provider.ts'

/** As in models.ts: a server may begin to take them, and only a request that has them can tell. */
const FRESH_MS = 3_600_000
/** Of all chats; each takes about two hundred bytes. */
const MOST_MARKS = 50_000

export interface RefusedContent {
  /** Marks (chat/repair.ts) of what the model refused in this session, as far as this process knows */
  known(session: string, provider: string, model: string): ReadonlySet<string> | undefined
  /** The provider answered what was sent in the request's place. */
  note(provider: string, request: ModelRequest, sent: ModelRequest): void
}

export function createRefusedContent(now: () => number): RefusedContent {
  const chats = new BoundedMap<{ marks: ReadonlySet<string>; until: number }>(
    MOST_MARKS,
    ({ marks }) => marks.size,
  )
  const fresh = (key: string) => {
    const chat = chats.get(key)
    return chat && chat.until > now() ? chat : undefined
  }

  return {
    known: (...names) => fresh(names.join(' '))?.marks,
    note(provider, request, sent) {
      if (sent.messages === request.messages) return
      const left = new Set(marksIn(sent))
      const gone = marksIn(request).filter((mark) => !left.has(mark))
      if (gone.length === 0) return
      const key = [request.session_id, provider, request.model].join(' ')
      const { marks = [], until = now() + FRESH_MS } = fresh(key) ?? {}
      chats.put(key, { marks: new Set([...marks, ...gone]), until })
    },
  }
}

const marksIn = ({ messages }: ModelRequest): string[] =>
  messages.flatMap(({ parts }) => parts.flatMap(marksOf))
