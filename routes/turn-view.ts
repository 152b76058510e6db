/** A turn as the API shows it. */
import { Type } from 'typebox'
import { type Message as ChatMessage, textOf } from '../src/chat/message.ts'
import type { Turn } from '../src/store/store.ts'
import {
  ContextEdits,
  Count,
  Failure,
  Id,
  Instant,
  Message,
  nullable,
  Part,
  Provider,
  StepFinish,
  shownBy,
  TurnFinish,
  Usage,
} from './schemas.ts'

const Step = Type.Object(
  {
    index: Count,
    attempt: Count,
    provider: Provider,
    model: Type.String(),
    tools_revision: Count,
    tool_count: Count,
    finish_reason: nullable(StepFinish),
    usage: Usage,
    started_at: Instant,
    ended_at: nullable(Instant),
    discarded: Type.Optional(
      Type.Boolean({ description: 'If true, the step began again and left no message; its `usage` counts' }),
    ),
  },
  { title: 'Step' },
)

export const TurnView = Type.Object(
  {
    id: Id,
    session_id: Id,
    state: Type.Enum(['queued', 'running', 'awaiting_input', 'completed', 'failed', 'cancelled']),
    provider: nullable({ ...Provider, description: "The turn's own; null: the session's" }),
    model: nullable(Type.String()),
    input: Type.Array(Part),
    context: ContextEdits,
    max_steps: Count,
    attempt: Type.Integer({
      minimum: 0,
      description: 'From 1 on; one more each time that a step begins again',
    }),
    steps: Type.Array(Step),
    usage: Usage,
    finish_reason: nullable(TurnFinish),
    error: nullable(Failure),
    idempotency_key: nullable(Type.String()),
    created_at: Instant,
    started_at: nullable(Instant),
    ended_at: nullable(Instant),
    messages: Type.Optional(Type.Array(Message, { description: 'Of this turn, its input first' })),
    output_text: Type.Optional(Type.String({ description: "The assistant's last text" })),
  },
  { title: 'Turn' },
)

/** `messages` are the turn's own; without them the short form, for lists and for answers of actions. */
export const turnView = (turn: Turn, messages?: readonly ChatMessage[]) =>
  shownBy(TurnView, { ...turn, ...(messages && { messages, output_text: outputText(messages) }) })

function outputText(messages: readonly ChatMessage[]): string {
  const spoken = messages.filter(({ role }) => role === 'assistant').map(textOf)
  return spoken.findLast((said) => said !== '') ?? ''
}
