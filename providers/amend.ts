/** What becomes of an amended request, whichever vendor refused it. */
import type { Part } from '../src/chat/message.ts'
import type { ModelRequest, ReportedModel } from '../src/provider.ts'

const isShown = ({ type }: Part): boolean => type !== 'reasoning'

/** The request without any reasoning that goes back; null where there is none in it. */
export function withoutReasoning(request: ModelRequest): ModelRequest | null {
  if (request.messages.every(({ parts }) => parts.every(isShown))) return null
  const messages = request.messages
    .map((message) => ({ ...message, parts: message.parts.filter(isShown) }))
    .filter(({ parts }) => parts.length > 0)
  return { ...request, messages }
}

/** The request with what its refusal told of the model. */
export const taught = (request: ModelRequest, told: Partial<ReportedModel>): ModelRequest => ({
  ...request,
  reported: { ...request.reported, ...told, id: request.model },
})
