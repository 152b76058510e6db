/** What becomes of an amended request, whichever vendor refused it. */
import type { MessageInput, Part } from '../src/chat/message.ts'
import type { ModelRequest, ReportedModel } from '../src/provider.ts'

/** What stands in a part's place: itself, another, or nothing. */
type Change = (part: Part) => Part[]

/**
 * The request with its parts changed, those of earlier turns or else all; null where nothing changes. The turn under way
 * comes last: the backend that is asked has just made what it holds, and reads its own thoughts in that.
 */
export function withParts(request: ModelRequest, change: Change): ModelRequest | null {
  const { messages } = request
  const start = messages.findLastIndex(({ role }) => role === 'user')
  for (const end of [Math.max(0, start), messages.length]) {
    const earlier = messages.slice(0, end).map((message) => changed(message, change))
    if (earlier.every((message, i) => message === messages[i])) continue
    const shown = earlier.filter(({ parts }) => parts.length > 0)
    return { ...request, messages: [...shown, ...messages.slice(end)] }
  }
  return null
}

function changed(message: MessageInput, change: Change): MessageInput {
  const parts = message.parts.flatMap(change)
  const isSame = parts.length === message.parts.length && parts.every((part, i) => part === message.parts[i])
  return isSame ? message : { ...message, parts }
}

/** The request without reasoning that goes back. */
export const withoutReasoning = (request: ModelRequest): ModelRequest | null =>
  withParts(request, (part) => (part.type === 'reasoning' ? [] : [part]))

/** The request with what its refusal told of the model. */
export const taught = (request: ModelRequest, told: Partial<ReportedModel>): ModelRequest => ({
  ...request,
  reported: { ...request.reported, ...told, id: request.model },
})
