/**
 * One message's stream as ModelEvents (wire/anthropic.md 6): a handler for each event; blocks.ts has the content blocks.
 * A part's index is its block's place among all that opened: some relays give each block the same index, or none.
 * Unknown events are skipped: the vendor adds some at will.
 */
import type { ModelEvent, StepFinish } from '../../src/chat/event.ts'
import type { Finish } from '../../src/chat/fold.ts'
import { type AssistantPart, isBlank, type Usage } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { ModelParser, ParseContext, UpstreamFailure } from '../../src/provider.ts'
import { beginAnswer, readFrame } from '../frames.ts'
import { type Json, number, object, present, string } from '../json.ts'
import { type Block, openBlock } from './blocks.ts'
import { streamError } from './classify.ts'

/** With the index of its part, the vendor's name for its kind, and whether its end has come */
type OpenBlock = Block & { index: number; type: string; isEnded: boolean }
type PartEvent = Extract<ModelEvent, { type: 'part' }>

interface State {
  context: ParseContext
  vendor: string
  headers: UpstreamFailure['headers']
  /** The message's id */
  id: string | undefined
  /** Blocks whose part is not told, by the vendor's index */
  open: Map<number, OpenBlock>
  /** Parts that ended while a call waits for its arguments: they are told with it, so that calls come in their order */
  held: PartEvent[]
  /** Each index of a block that was not of words: arguments for it may be the block's own */
  calls: Set<number>
  /** The index of the block that opened last */
  last: number
  /** How many blocks have opened */
  blocks: number
  counts: Counts
  /** The vendor has counted the tokens of the answer */
  counted: boolean
  stopReason: string | undefined
  /** How many pings came after it */
  lastPings: number
  /** Why the model refused: a sentence, or the kind of its reason */
  refusal: string | undefined
  /** A tool was called in full. */
  called: boolean
  /** There is thinking */
  thought: boolean
  /** There is text to read */
  said: boolean
  /** Why a call cannot be made */
  invalid: string | undefined
}

/** The place of a block that opens without an index */
const NO_INDEX = -1

type Handler = (state: State, event: Json) => ModelEvent[]

const HANDLERS = new Map<string, Handler>([
  ['message_start', onMessageStart],
  ['content_block_start', onBlockStart],
  ['content_block_delta', onBlockDelta],
  ['content_block_stop', onBlockStop],
  ['message_delta', onMessageDelta],
  ['message_stop', onMessageStop],
  // After its stop reason the vendor may send pings for minutes, and no end (tombii/better-ccflare#307). A single one may
  // come before the last counts (wire/anthropic.md 6).
  ['ping', (state) => (state.stopReason !== undefined && ++state.lastPings > 1 ? onMessageStop(state) : [])],
  [
    'error',
    ({ vendor, headers }, event) => {
      throw streamError(event, vendor, headers)
    },
  ],
])

/**
 * Throws the vendor's `error` event as a BatonError, and `upstream_disconnected` for a stream without its end. `vendor`
 * is the service behind the API, as errors name it; `headers` are the response's.
 */
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
    open: new Map(),
    held: [],
    calls: new Set(),
    last: NO_INDEX,
    blocks: 0,
    counts: NO_COUNTS,
    counted: false,
    stopReason: undefined,
    lastPings: 0,
    refusal: undefined,
    called: false,
    thought: false,
    said: false,
    invalid: undefined,
  }
  return {
    push(frame) {
      const { type, event } = readFrame(frame, vendor)
      return HANDLERS.get(type)?.(state, event) ?? []
    },
    end() {
      throw new BatonError(
        'upstream_disconnected',
        `${vendor} ended the stream before the message was complete.`,
      )
    },
  }
}

function onMessageStart(state: State, event: Json): ModelEvent[] {
  const message = object(event.message)
  beginAnswer(state, message, state.blocks > 0)
  return usageEvents(state, message.usage)
}

function onBlockStart(state: State, event: Json): ModelEvent[] {
  const place = number(event.index) ?? NO_INDEX
  const content = object(event.content_block)
  const type = string(content.type) ?? ''
  const isNameless = type === 'tool_use' && !string(content.name)
  // It would stay in the history as one that nobody can make, so it becomes no part.
  if (isNameless) state.invalid = 'It did not name its tool.'
  // Relays that leave out an index may leave out the block's end, too.
  const before = close(state, place)
  const index = state.blocks++
  const block = openBlock(isNameless ? '' : type, content, state.context, index)
  state.open.set(place, { ...block, index, type, isEnded: false })
  if (!TOLD.includes(type)) state.calls.add(place)
  state.last = place
  return [...before, ...(block.opening ?? [])]
}

/**
 * LiteLLM leaves out starts of blocks (BerriAI/litellm#27442), and sends thinking in a block that it began as text
 * (#32357): such words begin a block of their own.
 */
function onBlockDelta(state: State, event: Json): ModelEvent[] {
  const delta = object(event.delta)
  const place = number(event.index) ?? state.last
  const told = TOLD.find((type) => string(delta[type]))
  const open = state.open.get(place)
  const isOther = open && !string(delta[open.type]) && (open.isEnded || TOLD.includes(open.type))
  // Their call is lost, or would be made without them (Wei-Shaw/sub2api#4193: a call beside others).
  if (string(delta.partial_json)?.trim() && isStray(state, place))
    state.invalid ??= 'Its arguments came apart from it. Make one call at a time.'
  if (!told || (open && !isOther)) return open?.delta(delta) ?? []
  const begun = onBlockStart(state, { index: place, content_block: { type: told } })
  return [...begun, ...(state.open.get(place)?.delta(delta) ?? [])]
}

/** Whether arguments for this index are of no call, or come after those of a whole one while another call has none. */
function isStray({ open, calls }: State, place: number): boolean {
  const block = open.get(place)
  if (block) return TOLD.includes(block.type)
  return !calls.has(place) || [...open.values()].some((other) => isBare(other.part()))
}

/** Blocks of words; a delta has its words under the same name. */
const TOLD: readonly string[] = ['text', 'thinking']

/**
 * A call without whole arguments stays open: relays end it as they begin the next one, and go on with its arguments
 * (headroomlabs-ai/headroom#2890). Only its first end is looked at: to read long arguments at each of many takes seconds.
 */
function onBlockStop(state: State, event: Json): ModelEvent[] {
  const place = number(event.index) ?? state.last
  const block = state.open.get(place)
  if (!block || block.isEnded) return []
  block.isEnded = true
  const part = block.part()
  const isWhole = part?.type !== 'tool_call' || (part.arguments_text === undefined && !isBare(part))
  if (!isWhole) return []
  const ended = close(state, place)
  if (![...state.open.values()].some((other) => other.isEnded)) return ended
  state.held.push(...ended)
  return []
}

function close(state: State, place: number): PartEvent[] {
  const block = state.open.get(place)
  state.open.delete(place)
  const part = block?.part()
  return block && part ? [partEvent(state, block.index, part)] : []
}

const isBare = (part: AssistantPart | null): boolean =>
  part?.type === 'tool_call' && Object.keys(part.arguments).length === 0 && part.arguments_text === undefined

function partEvent(state: State, index: number, part: AssistantPart): PartEvent {
  state.called ||= part.type === 'tool_call'
  state.thought ||= part.type === 'reasoning'
  state.said ||= part.type === 'text' && !isBlank(part.text)
  return { type: 'part', index, part }
}

function onMessageDelta(state: State, event: Json): ModelEvent[] {
  const { stop_reason, stop_details } = object(event.delta)
  const { explanation, category } = object(stop_details)
  state.stopReason = string(stop_reason) ?? state.stopReason
  state.refusal = string(explanation) || string(category) || state.refusal
  return usageEvents(state, event.usage)
}

/** Proxies leave out the ends of blocks: such blocks belong to the message all the same. */
function onMessageStop(state: State): ModelEvent[] {
  const isCut = FINISHES.get(state.stopReason ?? '') === 'length'
  for (const [place, block] of state.open) {
    // A length limit may have cut it before its first argument: the call must not be made.
    if (isCut && block.index === state.blocks - 1 && isBare(block.part())) state.open.delete(place)
  }
  const left = [...state.open.keys()].flatMap((place) => close(state, place))
  const rest = [...state.held, ...left].sort((a, b) => a.index - b.index)
  return [...rest, { type: 'finish', ...finishOf(state) }]
}

function finishOf(state: State): Finish {
  const { stopReason, called, invalid, refusal } = state
  const reason = FINISHES.get(stopReason ?? '') ?? (called ? 'tool_calls' : 'stop')
  if (reason === 'refusal') return { reason, ...present({ refusal }) }
  if (invalid) return { reason: 'error', invalid_call: invalid }
  return reason === 'stop' ? { reason, ...present({ silent: silenceOf(state) }) } : { reason }
}

/** wire/anthropic.md 6: a reason not listed is an ordinary end. */
const FINISHES = new Map<string, StepFinish>([
  ['max_tokens', 'length'],
  ['model_context_window_exceeded', 'length'],
  ['refusal', 'refusal'],
])

/**
 * The vendor may say that a call is the reason to stop, and send none: the model wrote it as text
 * (anthropics/claude-code#71952), or it got lost (earendil-works/pi#9681). The vendor's own client asks again for
 * thinking alone (anthropics/claude-code#81016, its changelog of 2.1.183). A server or relay that fails may send an answer
 * without a token (tale-project/tale#3401, BerriAI/litellm#32086); Claude's own empty ones have two or three.
 */
function silenceOf({ stopReason, thought, said, counts, counted }: State): Finish['silent'] {
  if (stopReason === 'tool_use') return 'call'
  if (said) return undefined
  if (thought) return 'thoughts'
  return counted && counts.output === 0 ? 'lost' : undefined
}

/** The vendor's counts; its input leaves out what was read from or written to the cache. */
interface Counts {
  input: number
  written: number
  read: number
  output: number
  thinking: number
}
const NO_COUNTS: Counts = { input: 0, written: 0, read: 0, output: 0, thinking: 0 }

/** Counts are cumulative; one that is null, missing, or 0 at the end (envoyproxy/ai-gateway#1631), keeps its last value. */
function usageEvents(state: State, sent: unknown): ModelEvent[] {
  if (sent === undefined || sent === null) return []
  const usage = object(sent)
  const last = state.counts
  const counts: Counts = {
    input: number(usage.input_tokens) || last.input,
    written: number(usage.cache_creation_input_tokens) || last.written,
    read: number(usage.cache_read_input_tokens) || last.read,
    output: number(usage.output_tokens) || last.output,
    thinking: number(object(usage.output_tokens_details).thinking_tokens) || last.thinking,
  }
  state.counts = counts
  state.counted ||= number(usage.output_tokens) !== undefined
  return [{ type: 'usage', usage: canonicalUsage(counts) }]
}

const canonicalUsage = ({ input, written, read, output, thinking }: Counts): Usage => ({
  input_tokens: input + written + read,
  output_tokens: output,
  reasoning_tokens: thinking,
  cached_tokens: read,
})
