/**
 * The canonical conversation: what is stored, shown and handed to any provider. No vendor's shape
 * appears here; the one vendor-made thing kept is a part's `provenance.opaque`. Field names are those
 * of the public contract (api.md section 5), so a message is served as it is stored.
 */
import { BEARABLE, isExact, isWithin, parseRecord } from './json.ts'

/** What a part's opaque token is bound to; only the adapter of `provider` reads `opaque`. */
export interface Provenance {
  provider: string
  model: string
  credential_id: string | null
  /** A signature or encrypted reasoning, in whatever encoding the adapter chose. */
  opaque?: string
  /** Hash of the instructions, tools and earlier messages that the token was made under (see repair.ts). */
  prefix?: string
}

export interface TextPart {
  type: 'text'
  text: string
  provenance?: Provenance
}
/** A provider's reasoning: a readable summary (may be empty) and, in provenance, the token to return. */
export interface ReasoningPart {
  type: 'reasoning'
  text: string
  provenance: Provenance
}
export interface ToolCallPart {
  type: 'tool_call'
  /** Canonical id, `call_…`, unique in its session. */
  call_id: string
  /** Canonical tool name, `server.tool` or a built-in's bare name. */
  name: string
  arguments: Record<string, unknown>
  /**
   * The model's own text, if it is not a JSON object that can be passed on; then `arguments` is `{}` and the call is
   * not run.
   */
  arguments_text?: string
  provenance?: Provenance
}
/** Where the rest of an oversized result is kept: the execution's stored output. */
interface Spill {
  exec_id: string
  bytes: number
}
export type Outcome = 'ok' | 'error' | 'cancelled' | 'denied' | 'outcome_unknown'
export interface ToolResultPart {
  type: 'tool_result'
  call_id: string
  name: string
  content: ContentPart[]
  structured?: unknown
  is_error: boolean
  outcome: Outcome
  spill?: Spill
}
export type MediaKind = 'image' | 'audio' | 'file'
/** Binary content: exactly one of `data` (base64) and `url`. */
export interface MediaPart {
  type: MediaKind
  media_type: string
  data?: string
  url?: string
  name?: string
}
/** Shown to people, never sent to a model. */
interface NoticePart {
  type: 'notice'
  text: string
}

export type ContentPart = TextPart | MediaPart
export type AssistantPart = TextPart | ReasoningPart | ToolCallPart | MediaPart
export type Part = TextPart | ReasoningPart | ToolCallPart | ToolResultPart | MediaPart | NoticePart

export type Role = 'user' | 'assistant' | 'tool' | 'system'

/** What a caller or an edit supplies: a message without its identity. */
export interface MessageInput {
  role: Role
  parts: Part[]
}

export interface Message extends MessageInput {
  id: string
  session_id: string
  turn_id: string | null
  /** Position in the session, ascending, with gaps after deletions. */
  seq: number
  /** The turn was cancelled while this text was being written. */
  incomplete?: true
  created_at: string
}

/** Tokens of one model call. `cached_tokens` is a part of input, `reasoning_tokens` a part of output. */
export interface Usage {
  input_tokens: number
  output_tokens: number
  reasoning_tokens: number
  cached_tokens: number
}

export const NO_USAGE: Usage = { input_tokens: 0, output_tokens: 0, reasoning_tokens: 0, cached_tokens: 0 }

export function addUsage(a: Usage, b: Usage): Usage {
  return {
    input_tokens: a.input_tokens + b.input_tokens,
    output_tokens: a.output_tokens + b.output_tokens,
    reasoning_tokens: a.reasoning_tokens + b.reasoning_tokens,
    cached_tokens: a.cached_tokens + b.cached_tokens,
  }
}

/** More than any provider counts in one call; all calls of a session together stay within what the store can hold. */
const MOST_TOKENS = 1e12

/** A provider's token counts; whatever is not a sound number counts as not reported. */
export function soundUsage(told: Usage): Usage {
  const sound = (count: number) => (Number.isInteger(count) && count >= 0 && count <= MOST_TOKENS ? count : 0)
  return {
    input_tokens: sound(told.input_tokens),
    output_tokens: sound(told.output_tokens),
    reasoning_tokens: sound(told.reasoning_tokens),
    cached_tokens: sound(told.cached_tokens),
  }
}

/** A model's argument text as the canonical pair: an object, or `{}` with the text kept (api.md section 5). */
export function parseArguments(text: string): Pick<ToolCallPart, 'arguments' | 'arguments_text'> {
  const json = writtenOnce(text)
  if (json.trim() === '') return { arguments: {} }
  const value = parseRecord(json)
  if (value && isWithin(value, BEARABLE) && isExact(json)) return { arguments: value }
  // The text was cut by the length limit, is simply wrong, or has an id that would change when read: kept as text,
  // never run.
  return { arguments: {}, arguments_text: text }
}

/**
 * The text that a JSON string holds, else the text itself. Some models, and servers that write JSON of what was JSON,
 * send arguments so in each of their calls (vllm-project/vllm#54964, FoundationAgents/OpenManus#989).
 */
function writtenOnce(text: string): string {
  if (!text.trimStart().startsWith('"')) return text
  try {
    return String(JSON.parse(text))
  } catch {
    return text
  }
}

/** The tool calls of a message, in order. */
export const toolCalls = ({ parts }: Pick<MessageInput, 'parts'>): ToolCallPart[] =>
  parts.filter((part): part is ToolCallPart => part.type === 'tool_call')

/** Ids of the calls whose results a message holds. */
export const answeredCalls = ({ parts }: Pick<MessageInput, 'parts'>): string[] =>
  parts.flatMap((part) => (part.type === 'tool_result' ? [part.call_id] : []))

/**
 * Whether nothing of the text can be seen: white space, controls, and invisible characters such as U+200B. Anthropic
 * takes them all for white space, and refuses a text of nothing else (zoedolan/Vybn#2895), with every later request of
 * the conversation.
 */
export const isBlank = (text: string): boolean => !/[^\s\p{Z}\p{Cc}\p{Cf}]/u.test(text)

/** The visible text of a message. */
export const textOf = (message: MessageInput): string =>
  message.parts.map((part) => (part.type === 'text' ? part.text : '')).join('')
