/** The events of a stream, for the OpenAPI document; src/chat/event.ts writes them, and tests compare them with this. */
import { type TProperties, Type } from 'typebox'
import type { TurnEvent } from '../src/chat/event.ts'
import {
  ContentPart,
  Count,
  Failure,
  Flag,
  Id,
  Instant,
  Json,
  Message,
  nullable,
  Outcome,
  Provider,
  StepFinish,
  TurnFinish,
  taggedBy,
  toolsDelta,
  Usage,
} from './schemas.ts'
import { TurnView } from './turn-view.ts'

const text = Type.String()
const call = { call_id: text }
const execution = { ...call, exec_id: Id }
/** `nullable` would make a second schema of the same name. */
const TurnOrNone = Type.Union([TurnView, Type.Null()])

/** A failed step leaves no message, and a cancelled one only its text. */
const OVER =
  'The last event of its turn. Drop what was streamed and no `message` has replaced: it is not kept'

/** The fields of each event besides the common ones, and what a client does with it, if that is not obvious. */
const EVENTS: Record<TurnEvent['type'] | 'gap', [fields: TProperties, meaning?: string]> = {
  'turn.created': [{}, '`GET /v1/turns/{id}` has what was asked: `input`'],
  'turn.started': [{}],
  'step.started': [{ provider: Provider, model: text, tools_revision: Count, tool_count: Count }],
  'content.delta': [{ text }, "Append it to the step's text"],
  'reasoning.delta': [{ text }, "Append it to the step's reasoning"],
  'tool_call.delta': [
    { ...call, name: text, arguments_delta: text },
    'A piece of the arguments as the model writes them',
  ],
  tool_call: [{ ...call, name: text, arguments: Json }, 'The whole call, in place of its deltas'],
  'tool_execution.started': [execution],
  'tool_execution.progress': [
    {
      ...execution,
      progress: Type.Number(),
      total: Type.Optional(Type.Number()),
      message: Type.Optional(text),
    },
  ],
  'tool_execution.completed': [
    { ...execution, outcome: Outcome, is_error: Flag, duration_ms: Count, content: Type.Array(ContentPart) },
    'Also of a call that was never started: denied, refused, or cancelled while it waited',
  ],
  'approval.required': [
    { ...call, name: text, arguments: Json },
    'Ask a person, then POST /v1/turns/{id}/approvals/{call_id}',
  ],
  'input.required': [{ ...call, prompt: text, schema: Type.Optional(Type.Unknown()) }, 'Reserved'],
  usage: [Usage.properties, "Of the step's model call so far"],
  message: [{ message: Message }, 'As it is stored: in place of what was streamed for it'],
  'step.completed': [{ finish_reason: StepFinish, usage: Usage }],
  'step.discarded': [
    { reason: Type.Enum(['tools_changed', 'owner_lost', 'retry']) },
    'Drop what this step has streamed so far',
  ],
  'tools.changed': [
    toolsDelta,
    'Changes that are made on several replicas may come out of order: apply them in the order of `tools_revision`, of which the ' +
      'highest counts',
  ],
  'turn.restarted': [{ attempt: Count, tools_revision: Count }],
  'turn.awaiting_input': [{}, 'Goes on, with no event of its own, once every call that waits is decided'],
  'turn.completed': [{ finish_reason: TurnFinish, usage: Usage }, OVER],
  'turn.failed': [{ error: Failure }, OVER],
  'turn.cancelled': [{}, OVER],
  gap: [
    { snapshot: Type.Object({ turn: TurnOrNone, messages: Type.Array(Message) }) },
    "What came after your cursor is no longer kept: start from the snapshot. Its messages are the turn's, or, in a session's stream, the " +
      "session's (the turn's, if those are more than 128 MiB). It lacks the step under way: that step's events follow from its " +
      '`step.started`; if this is not kept either, the step comes whole with its `message`. If the turn of the snapshot has ended, no ' +
      'other event says so. If it is `awaiting_input`, ask ' +
      '`GET /v1/tool-executions?turn_id=` which calls wait (`state: awaiting_approval`)',
  ],
}

export const Event = taggedBy(
  'type',
  'Event',
  ...Object.entries(EVENTS).map(([type, [fields, description]]) =>
    Type.Object(
      {
        type: Type.Literal(type),
        session_id: Id,
        turn_id: nullable(Id),
        step: nullable(Count),
        at: Instant,
        ...fields,
      },
      description === undefined ? {} : { description },
    ),
  ),
)

const EXAMPLE: Extract<TurnEvent, { type: 'content.delta' }> = {
  type: 'content.delta',
  session_id: 'ses_01j9z',
  turn_id: 'turn_01j9z',
  step: 0,
  at: '2026-11-23T12:00:00.000Z',
  text: 'Hello',
}

/** Documents an event stream: `contentSchema` describes each frame's data. */
export const EventStream = {
  description: 'Server-sent events: `id` is a cursor, `event` a type, `data` an Event as JSON',
  content: {
    'text/event-stream': {
      schema: {
        type: 'string',
        contentMediaType: 'text/event-stream',
        contentSchema: Event,
        examples: [`id: 7-1.ab\nevent: ${EXAMPLE.type}\ndata: ${JSON.stringify(EXAMPLE)}\n\n`],
      },
    },
  },
}
