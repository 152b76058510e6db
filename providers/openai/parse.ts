/**
 * The Responses stream as ModelEvents (wire/openai.md 6). One output item (items.ts) is one part. `output_item.done`
 * counts first, then the `*.done` events, then the deltas; the terminal event's own `output` is often empty and only
 * fills gaps.
 */
import type { ModelEvent } from '../../src/chat/event.ts'
import type { Finish } from '../../src/chat/fold.ts'
import { standardBase64 } from '../../src/chat/media.ts'
import { type AssistantPart, isBlank, parseArguments, type Usage } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { ModelParser, ParseContext, UpstreamFailure } from '../../src/provider.ts'
import { beginAnswer, readFrame } from '../frames.ts'
import { argumentsJson, type Json, number, object, objects, string } from '../json.ts'
import { classifyEvent } from './classify.ts'
import { createItems, type Item, type Items } from './items.ts'
import { packPhase, packReasoning, phase, SEGMENT_BREAK, segmentsOf } from './opaque.ts'

interface State {
  context: ParseContext
  vendor: string
  headers: UpstreamFailure['headers']
  /** The response's id */
  id: string | undefined
  items: Items
  /** There is reasoning, shown or not */
  thought: boolean
  /** There is text to read, or an image */
  said: boolean
  called: boolean
  nameless: boolean
  refused: boolean
  /** The response of a failure that has come without its reason */
  failure: Json | null
}

type Handler = (state: State, event: Json) => ModelEvent[]

/** `vendor` is the service behind the API, as errors name it; `headers` are the response's. */
export function createParser(
  context: ParseContext,
  vendor: string,
  headers: UpstreamFailure['headers'],
): ModelParser {
  const state: State = {
    context,
    vendor,
    headers,
    id: undefined,
    items: createItems(),
    thought: false,
    said: false,
    called: false,
    nameless: false,
    refused: false,
    failure: null,
  }
  return {
    push(frame) {
      const { type, event } = readFrame(frame, vendor)
      return (HANDLERS.get(type) ?? passOver)(state, event)
    },
    end() {
      if (state.failure) throw classifyEvent(state.failure, vendor, headers)
      throw new BatonError(
        'upstream_disconnected',
        `${vendor} closed the stream before the response was complete.`,
      )
    },
  }
}

const passOver: Handler = () => []

const created: Handler = (state, event) => {
  beginAnswer(state, object(event.response), state.items.size() > 0)
  return []
}

type Worded = 'message' | 'reasoning'

const textDelta =
  (kind: Worded): Handler =>
  (state, event) => {
    const item = state.items.of(event, kind)
    const delta = string(event.delta)
    if (delta === undefined || item.done) return []
    const place = placeIn(event)
    const before = item.pieces.get(place)
    item.pieces.set(place, (before ?? '') + delta)
    item.isShown = true
    const { index } = item
    if (kind === 'message') return [{ type: 'text.delta', index, text: delta }]
    const breaks = before === undefined && place > 0
    return [{ type: 'reasoning.delta', index, text: breaks ? SEGMENT_BREAK + delta : delta }]
  }

/** The event holds the whole text that its deltas built. */
const textDone =
  (kind: Worded): Handler =>
  (state, event) => {
    const item = state.items.of(event, kind)
    const text = string(event.text) ?? string(event.refusal)
    if (text !== undefined) item.pieces.set(placeIn(event), text)
    return []
  }

/** The number of a content, or of a summary's segment. */
const placeIn = ({ content_index, summary_index }: Json): number =>
  number(content_index) || number(summary_index) || 0

const refusal =
  (handler: Handler): Handler =>
  (state, event) => {
    state.refused = true
    return handler(state, event)
  }

const argumentsDelta: Handler = (state, event) => {
  const item = state.items.of(event, 'call')
  const delta = string(event.delta) ?? ''
  if (item.done) return []
  item.pieces.set(0, (item.pieces.get(0) ?? '') + delta)
  // A call whose item was not announced has no name; it comes whole with `output_item.done`.
  const { index, callId: call_id, name } = item
  if (name === '' || delta === '') return []
  return [{ type: 'tool_call.delta', index, call_id, name, arguments_delta: delta }]
}

const argumentsDone: Handler = (state, event) => {
  const item = state.items.of(event, 'call')
  const text = argumentsText(event)
  if (text !== undefined) item.pieces.set(0, text)
  return []
}

const itemAdded: Handler = (state, event) => {
  const wire = object(event.item)
  const item = state.items.own(event, wire, 'begins')
  item.phase = wire.phase
  if (item.kind === 'call') nameCall(state, item, wire)
  return []
}

const itemDone: Handler = (state, event) => {
  const wire = object(event.item)
  const item = state.items.own(event, wire, 'ends')
  if (item.done) return []
  item.done = true
  return settle(state, item, wire)
}

/**
 * `response.done` (a relay's, or the WebSocket's) says by its status if it is another end than `end`, and so does vLLM's
 * `response.completed` (vllm-project/agentic-api#273).
 */
const ended =
  (end: Handler): Handler =>
  (state, event) => {
    const response = object(event.response)
    return (ENDS.get(string(response.status) ?? '') ?? end)(state, response)
  }

/** The rest of the answer, its counts and its finish. `status`: of items that have no end of their own. */
const finished =
  (status: 'completed' | 'incomplete', finishOf: (state: State, response: Json) => Finish): Handler =>
  (state, response) => {
    const rest = settleRest(state, response, status)
    const counted = response.usage ? [{ type: 'usage' as const, usage: usageOf(object(response.usage)) }] : []
    const told = finishOf(state, response)
    const end = state.nameless && told.reason !== 'refusal' ? NAMELESS : told
    return [...rest, ...counted, { type: 'finish', ...end }]
  }

const NAMELESS: Finish = { reason: 'error', invalid_call: 'It did not name its tool.' }

const completed = finished('completed', ({ said, thought, called, refused }, { end_turn, usage }) => {
  if (called) return { reason: 'tool_calls' }
  if (refused) return { reason: 'refusal' }
  // The model wants to go on without the user (wire/openai.md 6.3).
  if (said && end_turn === false) return { reason: 'stop', goes_on: true }
  // Bedrock now and then ends so in the middle of a task (anomalyco/opencode#31430); an answer that is meant to be empty
  // has its tokens.
  if (!said && !thought && object(usage).output_tokens === 0) return { reason: 'stop', silent: 'lost' }
  // Models now and then end with reasoning alone (openai/openai-dotnet#1050). To go on would repeat the request: the API
  // takes no reasoning with nothing after it.
  return thought && !said ? { reason: 'stop', silent: 'thoughts' } : { reason: 'stop' }
})

const incomplete = finished('incomplete', (_state, { incomplete_details }) => {
  const why = string(object(incomplete_details).reason)
  return why === 'content_filter' ? { reason: 'refusal', refusal: why } : { reason: 'length' }
})

/** Azure gives the reason in an `error` event of its own, after this one (maximhq/bifrost#6419). */
const failed: Handler = (state, response) => {
  if (response.error) throw classifyEvent(response, state.vendor, state.headers)
  state.failure = response
  return []
}

const ENDS: ReadonlyMap<string, Handler> = new Map([
  ['incomplete', incomplete],
  ['failed', failed],
])

/** The error is nested under `error`, or flat (wire/openai.md 6.2). */
const errorEvent: Handler = ({ vendor, headers }, event) => {
  const type = event.type === 'error' ? undefined : event.type
  throw classifyEvent(event.error ? event : { ...event, error: { ...event, type } }, vendor, headers)
}

/** Every other type is passed over: keepalives, limits, hosted tools, and any that the vendor adds. */
const HANDLERS: ReadonlyMap<string, Handler> = new Map([
  ['response.created', created],
  ['response.output_item.added', itemAdded],
  ['response.output_item.done', itemDone],
  ['response.output_text.delta', textDelta('message')],
  ['response.output_text.done', textDone('message')],
  ['response.refusal.delta', refusal(textDelta('message'))],
  ['response.refusal.done', refusal(textDone('message'))],
  ['response.reasoning_summary_text.delta', textDelta('reasoning')],
  ['response.reasoning_summary_text.done', textDone('reasoning')],
  ['response.reasoning_text.delta', textDelta('reasoning')],
  ['response.reasoning_text.done', textDone('reasoning')],
  ['response.function_call_arguments.delta', argumentsDelta],
  ['response.function_call_arguments.done', argumentsDone],
  ['response.completed', ended(completed)],
  ['response.done', ended(completed)],
  ['response.incomplete', ended(incomplete)],
  ['response.failed', (state, event) => failed(state, object(event.response))],
  ['error', errorEvent],
])

const piecesOf = ({ pieces }: Item): string[] => [...pieces].sort(([a], [b]) => a - b).map(([, text]) => text)

/** A call gets its canonical id once: its deltas and its part agree. */
function nameCall(state: State, item: Item, wire: Json): void {
  item.callId ||= state.context.callId(string(wire.call_id))
  item.name ||= state.context.toolName(string(wire.name) ?? '')
}

function settle(state: State, item: Item, wire: Json): ModelEvent[] {
  state.thought ||= item.kind === 'reasoning'
  const part = SETTLERS[item.kind](state, item, wire)
  if (!part) return []
  state.said ||= part.type === 'image' || (part.type === 'text' && !isBlank(part.text))
  const shown = unshown(item, part)
  item.isShown = true
  return [...shown, { type: 'part', index: item.index, part }]
}

/** Readers rely on deltas, which may be absent (wire/openai.md 6.3): then the whole text becomes one delta. */
function unshown({ index, isShown }: Item, part: AssistantPart): ModelEvent[] {
  if (isShown || (part.type !== 'text' && part.type !== 'reasoning') || part.text === '') return []
  return [{ type: `${part.type}.delta`, index, text: part.text }]
}

type Settler = (state: State, item: Item, wire: Json) => AssistantPart | null

const settleMessage: Settler = (state, item, wire) => {
  const contents = objects(wire.content)
  if (contents.some(({ type }) => type === 'refusal')) state.refused = true
  const whole = contents.map(({ text, refusal }) => string(text) ?? string(refusal) ?? '').join('')
  const text = whole || piecesOf(item).join('')
  if (text === '') return null
  const known = phase(wire.phase) ?? phase(item.phase)
  return { type: 'text', text, provenance: state.context.provenance(known && packPhase(known)) }
}

const settleReasoning: Settler = ({ context }, item, wire) => {
  const whole = segmentsOf(wire)
  const segments = whole.length > 0 ? whole : piecesOf(item)
  const encrypted = string(wire.encrypted_content)
  item.isBare = encrypted === undefined
  if (segments.length === 0 && encrypted === undefined) return null
  const opaque = encrypted === undefined ? undefined : packReasoning(encrypted, segments)
  return { type: 'reasoning', text: segments.join(SEGMENT_BREAK), provenance: context.provenance(opaque) }
}

/** The arguments as JSON; relays give the value itself. Undefined if there are none, or the text is empty. */
const argumentsText = ({ arguments: told }: Json): string | undefined =>
  typeof told === 'object' && told !== null ? argumentsJson(told) : string(told)

const settleCall: Settler = (state, item, wire) => {
  const text = argumentsText(wire) ?? item.pieces.get(0) ?? ''
  const cut = (wire.status ?? 'completed') !== 'completed'
  // The call was cut off before its first argument: there is nothing to show, and `{}` would be run. What was cut after
  // its last one is whole: models may write blanks up to the limit then.
  if (cut && text.trim() === '') return null
  nameCall(state, item, wire)
  if (item.name === '') {
    state.nameless ||= !cut
    return null
  }
  state.called = true
  return {
    type: 'tool_call',
    call_id: item.callId,
    name: item.name,
    ...parseArguments(text),
    provenance: state.context.provenance(),
  }
}

/** Hosted tools run at the vendor and leave items in the answer, of which only an image is content. */
const settlePassedOver: Settler = (_state, _item, wire) => {
  const data = standardBase64(string(wire.result) ?? '')
  if (wire.type !== 'image_generation_call' || data === null) return null
  return { type: 'image', media_type: `image/${string(wire.output_format) ?? 'png'}`, data }
}

const SETTLERS: Record<Item['kind'], Settler> = {
  message: settleMessage,
  reasoning: settleReasoning,
  call: settleCall,
  'passed over': settlePassedOver,
}

/**
 * Settles items that never got their `done`: as the terminal event lists them, else from their deltas. Also reasoning
 * whose token comes only there.
 */
function settleRest(state: State, response: Json, status: 'completed' | 'incomplete'): ModelEvent[] {
  const told = state.items.listed(objects(response.output))
  const isLate = (item: Item) => item.isBare && string(told.get(item)?.encrypted_content) !== undefined
  const open = [...state.items.all()].filter((item) => !item.done || isLate(item))
  return open.flatMap((item) => settle(state, item, told.get(item) ?? { status }))
}

/** The details may be missing; their tokens are parts of the totals (wire/openai.md 6.4). */
function usageOf(usage: Json): Usage {
  return {
    input_tokens: number(usage.input_tokens) ?? 0,
    output_tokens: number(usage.output_tokens) ?? 0,
    reasoning_tokens: number(object(usage.output_tokens_details).reasoning_tokens) ?? 0,
    cached_tokens: number(object(usage.input_tokens_details).cached_tokens) ?? 0,
  }
}
