/** How a refused request is amended, for every vendor. */
import { mediaAsText } from '../src/chat/media.ts'
import type { MediaPart, Part, TextPart } from '../src/chat/message.ts'
import { messageWith, withContent } from '../src/chat/repair.ts'
import type { ModelRequest, ReportedModel } from '../src/provider.ts'

/** What takes a part's place: itself, another, or nothing. */
type Change = (part: Part) => Part[]

/**
 * The request with the parts of earlier turns changed; if nothing changes in those, with all its parts changed; null if
 * nothing changes at all. The turn under way is spared if possible: the backend has just made its calls and thoughts,
 * and can read them; and the model needs that turn most.
 */
export function withParts(request: ModelRequest, change: Change): ModelRequest | null {
  const { messages } = request
  const start = messages.findLastIndex(({ role }) => role === 'user')
  for (const end of [Math.max(0, start), messages.length]) {
    const earlier = messages
      .slice(0, end)
      .map((message) => messageWith(message, message.role, message.parts.flatMap(change)))
    if (earlier.every((message, i) => message === messages[i])) continue
    const shown = earlier.filter(({ parts }) => parts.length > 0)
    return { ...request, messages: [...shown, ...messages.slice(end)] }
  }
  return null
}

/** The request without reasoning that goes back. */
export const withoutReasoning = (request: ModelRequest): ModelRequest | null =>
  withParts(request, (part) => (part.type === 'reasoning' ? [] : [part]))

/** A vendor's words when it cannot read a medium, and which media these may mean. */
export type Unread = readonly (readonly [
  words: RegExp,
  mayBe: (part: MediaPart, message: string) => boolean,
])[]
export const isImage = ({ type }: MediaPart): boolean => type === 'image'
export const isFile = ({ type }: MediaPart): boolean => type === 'file'
export const isLinked = ({ url }: MediaPart): boolean => url !== undefined
export const isNamed = ({ media_type }: MediaPart, message: string): boolean => message.includes(media_type)

/**
 * The request with media put in words that the vendor cannot read: a damaged image, a file with a password, an address
 * that has expired. The vendor would refuse every later request that shows them, too. Media of the user's last message
 * stay: the person who just gave them is to hear of the failure (openai/codex#9146).
 */
export function withoutUnread(request: ModelRequest, message: string, unread: Unread): ModelRequest | null {
  const [, mayBe] = unread.find(([words]) => words.test(message)) ?? []
  return mayBe ? inWords(request, (part) => mayBe(part, message), givenIn(request)) : null
}

/**
 * For a request that is larger than the vendor takes: its media, which are most of it, in words. Those that came last
 * stay.
 */
export const withoutMedia = (request: ModelRequest): ModelRequest | null =>
  inWords(request, () => true, [...givenIn(request), ...(request.messages.at(-1)?.parts ?? [])])

const givenIn = ({ messages }: ModelRequest): readonly Part[] =>
  messages.findLast(({ role }) => role === 'user')?.parts ?? []

function inWords(
  request: ModelRequest,
  mayBe: (part: MediaPart) => boolean,
  staying: readonly Part[],
): ModelRequest | null {
  // Asked for each part of a history, where a message may have a thousand.
  const stays = new Set(staying)
  const worded = <P extends Part>(part: P): P | TextPart =>
    'media_type' in part && mayBe(part) ? { type: 'text', text: mediaAsText(part) } : part
  return withParts(request, (part) => {
    if (stays.has(part)) return [part]
    if (part.type !== 'tool_result') return [worded(part)]
    const content = part.content.map(worded)
    return [content.every((item, i) => item === part.content[i]) ? part : withContent(part, content)]
  })
}

/** The request with what its refusal says about the model; null if that was known. */
export function taught(request: ModelRequest, told: Partial<ReportedModel>): ModelRequest | null {
  const reported = { ...request.reported, ...told, id: request.model }
  return JSON.stringify(reported) === JSON.stringify(request.reported) ? null : { ...request, reported }
}
