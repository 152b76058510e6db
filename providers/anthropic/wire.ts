/**
 * The Messages API's request, as far as Baton uses it (wire/anthropic.md 3 and 4). Only shapes; a test
 * holds them against the vendor's own SDK.
 */

export interface CacheControl {
  type: 'ephemeral'
}
interface Cacheable {
  /** At most four in a request, else it is refused (wire/anthropic.md 8). */
  cache_control?: CacheControl
}

export interface TextBlock extends Cacheable {
  type: 'text'
  text: string
}
export type ImageType = 'image/jpeg' | 'image/png' | 'image/gif' | 'image/webp'
export interface ImageBlock extends Cacheable {
  type: 'image'
  source: { type: 'base64'; media_type: ImageType; data: string } | { type: 'url'; url: string }
}
export interface DocumentBlock extends Cacheable {
  type: 'document'
  source:
    | { type: 'base64'; media_type: 'application/pdf'; data: string }
    | { type: 'text'; media_type: 'text/plain'; data: string }
    | { type: 'url'; url: string }
  title?: string
}
interface ToolUseBlock extends Cacheable {
  type: 'tool_use'
  id: string
  name: string
  input: Record<string, unknown>
}
export type ContentBlock = TextBlock | ImageBlock | DocumentBlock
export interface ToolResultBlock extends Cacheable {
  type: 'tool_result'
  tool_use_id: string
  content?: ContentBlock[]
  is_error?: true
}
export interface ThinkingBlock {
  type: 'thinking'
  thinking: string
  signature: string
}
export interface RedactedThinkingBlock {
  type: 'redacted_thinking'
  data: string
}

export type UserBlock = ContentBlock | ToolResultBlock
export type AssistantBlock = TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock
export type WireMessage =
  | { role: 'user'; content: UserBlock[] }
  | { role: 'assistant'; content: AssistantBlock[] }
  | { role: 'system'; content: TextBlock[] }

export interface WireTool extends Cacheable {
  name: string
  description?: string
  input_schema: { type: 'object'; [keyword: string]: unknown }
}

export type WireEffort = 'low' | 'medium' | 'high' | 'xhigh' | 'max'
interface Binding {
  block_binding?: { prefix_mismatch_behavior: 'drop_block' }
}
export type WireThinking =
  | ({ type: 'adaptive'; display?: 'summarized' } & Binding)
  | { type: 'enabled'; budget_tokens: number }
  | { type: 'disabled' }
  | { type: 'between_tools' }

export type WireToolChoice =
  | { type: 'auto' | 'any'; disable_parallel_tool_use?: true }
  | { type: 'tool'; name: string; disable_parallel_tool_use?: true }
  | { type: 'none' }

export type WireRequest = {
  model: string
  max_tokens: number
  stream: true
  system?: TextBlock[]
  tools?: WireTool[]
  tool_choice?: WireToolChoice
  thinking?: WireThinking
  output_config?: { effort: WireEffort }
  temperature?: number
  top_p?: number
  metadata?: { user_id: string }
  messages: WireMessage[]
}
