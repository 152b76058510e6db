/**
 * Gemini's event stream as ModelEvents (wire/gemini.md 6). One parser for the public API and for Code
 * Assist, which wraps every event in `response`.
 */
import type { ModelEvent } from '../../src/chat/event.ts'
import type { Finish } from '../../src/chat/fold.ts'
import { isRecord } from '../../src/chat/json.ts'
import { mediaKind, standardBase64 } from '../../src/chat/media.ts'
import {
  isBlank,
  type MediaPart,
  parseArguments,
  type ReasoningPart,
  type TextPart,
  type Usage,
} from '../../src/chat/message.ts'
import { BatonError, type ErrorCode } from '../../src/errors.ts'
import type { ModelParser, ParseContext, UpstreamFailure } from '../../src/provider.ts'
import type { SseFrame } from '../../src/sse.ts'
import { argumentsJson, type Json, number, object, objects, string } from '../json.ts'
import { errorFromStream } from './classify.ts'

/** Throws an error in the stream or at its end as a BatonError, and `upstream_disconnected` if no finish reason came. */
export const createParser = (context: ParseContext, headers: UpstreamFailure['headers']): ModelParser =>
  new Answer(context, headers)

type Growing = { kind: 'text' | 'reasoning'; index: number; text: string }
interface Call {
  index: number
  call_id: string
  name: string
  /** As JSON */
  args: string
  opaque: string | undefined
}

/** How Google says that the answer ended */
interface Ending {
  reason: string
  message: string | undefined
}

/** The answer so far: the text part that is still growing, the calls held back, the latest finish reason. */
class Answer implements ModelParser {
  readonly #context: ParseContext
  readonly #headers: UpstreamFailure['headers']
  #events: ModelEvent[] = []
  #nextIndex = 0
  #growing: Growing | null = null
  /**
   * Calls are emitted at the end: only the finish reason, which may come in a later chunk, tells whether the model was
   * allowed to make them (6.4: the part of an undeclared call is in the content too).
   */
  readonly #calls: Call[] = []
  /** A call named no tool */
  #isNameless = false
  readonly #usage: Json = {}
  #hasOutput = false
  /** The answer holds nothing to read and no calls */
  #isSilent = true
  /** There are thoughts to read */
  #hasThoughts = false
  #finish: Ending | null = null
  /** Why the vendor blocked the prompt */
  #blocked: string | null = null

  constructor(context: ParseContext, headers: UpstreamFailure['headers']) {
    this.#context = context
    this.#headers = headers
  }

  push(frame: SseFrame): ModelEvent[] {
    // Without `alt=sse` the method streams one array; some proxies pass that on (6.1).
    const value = parseFrame(frame.data)
    for (const chunk of Array.isArray(value) ? value : [value]) this.#chunk(object(chunk))
    return this.#taken()
  }

  /**
   * A body that ends without a finish reason is a broken stream, with or without calls. The vendor's own client accepts
   * such an end after a call or a tool result (6.5); a gateway cannot tell it from a cut between two parallel calls,
   * and would run half of a plan.
   */
  end(): ModelEvent[] {
    if (!this.#finish && !this.#blocked) {
      throw new BatonError('upstream_disconnected', 'The stream ended before the model finished its answer.')
    }
    this.#close()
    const finish = this.#outcome()
    // Calls that are refused with the answer, or cannot be made at all, are not shown.
    if (finish.reason !== 'error' && finish.reason !== 'refusal') {
      for (const call of this.#calls) this.#events.push(...this.#written(call))
    }
    this.#events.push({ type: 'finish', ...finish })
    return this.#taken()
  }

  #taken(): ModelEvent[] {
    const events = this.#events
    this.#events = []
    return events
  }

  #chunk(outer: Json): void {
    const chunk = isRecord(outer.response) ? outer.response : outer
    // Relays write empty fields as null.
    const error = chunk.error ?? outer.error ?? undefined
    if (error !== undefined) throw errorFromStream({ error }, this.#headers)
    this.#measure(object(chunk.usageMetadata))
    const { blockReason, blockReasonMessage } = object(chunk.promptFeedback)
    const blocked = specified(blockReason)
    if (blocked) this.#blocked = string(blockReasonMessage) ?? blocked
    // More than one candidate is never asked for.
    const [candidate = {}] = objects(chunk.candidates)
    for (const part of objects(object(candidate.content).parts)) this.#part(part)
    const reason = specified(candidate.finishReason)
    // Some gateways put STOP on every chunk (6.2): it never overwrites another reason.
    if (reason && (!this.#finish || reason !== 'STOP')) {
      this.#finish = { reason, message: string(candidate.finishMessage) }
    }
  }

  #part(part: Json): void {
    const { text, functionCall: call, inlineData: blob } = part
    const kind = part.thought === true ? 'reasoning' : 'text'
    const isText = typeof text === 'string'
    // Backends put calls into parts of text, mostly empty ones (trpc-group/trpc-agent-go#1087).
    const isCall = isRecord(call) && (!isText || Boolean(string(call.name) ?? call.args))
    if (isText) this.#text(kind, text, isCall ? undefined : string(part.thoughtSignature))
    if (isCall) this.#call(part, call)
    else if (isRecord(blob) && kind === 'text') this.#media(blob)
    // Code that the server ran, its own tool calls and future kinds have no canonical form.
  }

  /** Deltas of one kind make one part; a signature closes it, and an empty signed one is its own part (4.4). */
  #text(kind: Growing['kind'], delta: string, opaque: string | undefined): void {
    if (delta === '' && opaque === undefined) return
    if (this.#growing?.kind !== kind || delta === '') this.#close()
    this.#growing ??= { kind, index: this.#nextIndex++, text: '' }
    if (delta !== '') {
      this.#growing.text += delta
      this.#hasOutput ||= kind === 'text'
      this.#hasThoughts ||= kind === 'reasoning'
      this.#isSilent &&= kind === 'reasoning' || isBlank(delta)
      this.#events.push({ type: `${kind}.delta`, index: this.#growing.index, text: delta })
    }
    if (opaque !== undefined) this.#close(opaque)
  }

  #close(opaque?: string): void {
    if (!this.#growing) return
    const { kind, index, text } = this.#growing
    this.#growing = null
    const part: TextPart | ReasoningPart = { type: kind, text, provenance: this.#context.provenance(opaque) }
    this.#events.push({ type: 'part', index, part })
  }

  /**
   * A call without a name holds the arguments of the call before it, if that came without any. Any other nameless call
   * would stay in the history, and the vendor would refuse that from then on (smallmain/vscode-unify-chat-provider#48).
   */
  #call(part: Json, call: Json): void {
    this.#close()
    const name = string(call.name) ?? ''
    const args = argumentsJson(call.args ?? {})
    const opaque = string(part.thoughtSignature)
    const before = this.#calls.at(-1)
    if (name !== '') {
      const call_id = this.#context.callId(string(call.id))
      this.#calls.push({ index: this.#nextIndex++, call_id, name, args, opaque })
    } else if (before?.args === '{}') {
      before.args = args
      before.opaque ??= opaque
    } else this.#isNameless = true
  }

  /** The single delta is for readers that show calls as they are written. */
  #written({ index, call_id, args, opaque, ...call }: Call): ModelEvent[] {
    const name = this.#context.toolName(call.name)
    const read = parseArguments(args)
    const parsed = mayBeRounded(read.arguments) ? { arguments: {}, arguments_text: args } : read
    // A signature holds for the part that it came with, which goes back without these arguments.
    const provenance = this.#context.provenance(parsed.arguments_text === undefined ? opaque : undefined)
    return [
      { type: 'tool_call.delta', index, call_id, name, arguments_delta: args },
      { type: 'part', index, part: { type: 'tool_call', call_id, name, ...parsed, provenance } },
    ]
  }

  #media(blob: Json): void {
    const data = standardBase64(string(blob.data) ?? '')
    if (data === null) return
    this.#close()
    this.#hasOutput = true
    this.#isSilent = false
    const media_type = string(blob.mimeType) ?? 'application/octet-stream'
    const part: MediaPart = { type: mediaKind(media_type) ?? 'file', media_type, data }
    this.#events.push({ type: 'part', index: this.#nextIndex++, part })
  }

  /** Counts are cumulative and may be partial in early chunks (6.3): each field's last value counts. */
  #measure(metadata: Json): void {
    const counts = Object.entries(metadata).filter(([, value]) => number(value) !== undefined)
    if (counts.length === 0) return
    Object.assign(this.#usage, Object.fromEntries(counts))
    this.#events.push({ type: 'usage', usage: toUsage(this.#usage) })
  }

  #outcome(): Finish {
    if (!this.#finish) return { reason: 'refusal', refusal: this.#blocked ?? '' }
    const { reason, message } = this.#finish
    if (reason === ACCOUNT_LIMITED)
      throw failed('upstream_auth', 'Google limited or disabled this account by its policy.', this.#finish)
    if (INVALID_CALL.has(reason)) return { reason: 'error', invalid_call: message ?? reason }
    const known = Object.hasOwn(FINISH, reason) ? FINISH[reason] : undefined
    if (this.#isNameless && known !== 'refusal')
      return { reason: 'error', invalid_call: 'It did not name its tool.' }
    if (known === 'refusal') return { reason: known, refusal: message ?? reason }
    if (known === 'length') return { reason: known }
    // OTHER, LANGUAGE, and future reasons: what the model said is kept; if it said nothing, that is a failure.
    if (this.#calls.length > 0) return { reason: 'tool_calls' }
    if (!known && !this.#hasOutput)
      throw failed('upstream_rejected', `Gemini ended without an answer (${reason}).`, this.#finish)
    // Thoughts alone, blank text or nothing at all: the vendor's own client asks again (6.5).
    return { reason: 'stop', ...(this.#isSilent ? { silent: this.#hasThoughts ? 'thoughts' : 'empty' } : {}) }
  }
}

/**
 * Whether there is a whole number beyond 2^53 that may be another one than the model wrote: Google keeps arguments as
 * doubles (google/adk-python#3592). One that has no more digits than a double keeps of any number is taken as meant.
 */
const mayBeRounded = (value: unknown): boolean =>
  typeof value === 'number'
    ? Math.abs(value) > Number.MAX_SAFE_INTEGER && Number(value.toPrecision(15)) !== value
    : typeof value === 'object' && value !== null && Object.values(value).some(mayBeRounded)

/** The meaningless zero value of each enum; proto JSON leaves it out, but some backends write it into every chunk. */
const UNSPECIFIED = /^(FINISH|BLOCK(ED)?)_REASON_UNSPECIFIED$/

const specified = (value: unknown): string | undefined =>
  UNSPECIFIED.test(String(value)) ? undefined : string(value)

/** Finish reasons (6.4); a turn that calls tools ends with STOP like any other. */
const FINISH: Readonly<Record<string, 'stop' | 'length' | 'refusal'>> = {
  STOP: 'stop',
  MAX_TOKENS: 'length',
  // A very long answer that can be continued on request (9.4); Baton does not opt in.
  CONTINUATION: 'length',
  SAFETY: 'refusal',
  RECITATION: 'refusal',
  BLOCKLIST: 'refusal',
  PROHIBITED_CONTENT: 'refusal',
  SPII: 'refusal',
  // A filter of the customer's own cloud project (seen on Vertex AI)
  MODEL_ARMOR: 'refusal',
  ESCALATION: 'refusal',
  IMAGE_SAFETY: 'refusal',
  IMAGE_PROHIBITED_CONTENT: 'refusal',
  IMAGE_RECITATION: 'refusal',
  IMAGE_OTHER: 'refusal',
}

const INVALID_CALL: ReadonlySet<string> = new Set([
  'MALFORMED_FUNCTION_CALL',
  'UNEXPECTED_TOOL_CALL',
  'TOO_MANY_TOOL_CALLS',
  'MALFORMED_RESPONSE',
  'MISSING_THOUGHT_SIGNATURE',
])

/** For violations of the "Prohibited Use Policy" (the SDK's FinishReason); what was said or called until then is cut. */
const ACCOUNT_LIMITED = 'PUP_LIMITED_DISABLED'

/** The message, from an earlier frame, is not cut here: the door takes secrets out of it first, then cuts it. */
function failed(code: ErrorCode, says: string, { reason, message = '' }: Ending): BatonError {
  const said = message === '' ? 'It gave no words.' : `It said: ${message}`
  return new BatonError(code, `${says} ${said}`, { details: { upstream: { reason, message } } })
}

function parseFrame(data: string): unknown {
  try {
    return JSON.parse(data)
  } catch (cause) {
    // Events are whole JSON values: half of one means that the body was cut off.
    throw new BatonError('upstream_disconnected', 'The stream broke in the middle of an event.', { cause })
  }
}

/** Input counts what the server's own tools read; thoughts are output, which the candidates' count leaves out (6.3). */
function toUsage(metadata: Json): Usage {
  const tokens = (name: string) => number(metadata[name]) ?? 0
  return {
    input_tokens: tokens('promptTokenCount') + tokens('toolUsePromptTokenCount'),
    output_tokens: tokens('candidatesTokenCount') + tokens('thoughtsTokenCount'),
    reasoning_tokens: tokens('thoughtsTokenCount'),
    cached_tokens: tokens('cachedContentTokenCount'),
  }
}
