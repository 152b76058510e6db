/** The Responses API's request, as far as Baton uses it (wire/openai.md 3 to 5). Only shapes. */
import type { Effort } from '../../src/provider.ts'

export type TextInput = { type: 'input_text'; text: string }
type ImageInput = { type: 'input_image'; image_url: string; detail: 'auto' }
type FileInput =
  | { type: 'input_file'; filename: string; file_data: string }
  | { type: 'input_file'; file_url: string }
export type InputContent = TextInput | ImageInput | FileInput

export type Phase = 'commentary' | 'final_answer'
type AssistantContent = { type: 'output_text'; text: string; annotations: [] }

/** Ids and `status` are left out everywhere: with `store: false` they would only be refused (wire/openai.md 4). */
export type InputItem =
  | { type: 'message'; role: 'user' | 'developer'; content: InputContent[] }
  | { type: 'message'; role: 'assistant'; content: AssistantContent[]; phase?: Phase }
  | { type: 'message'; role: 'assistant'; content: string; phase?: Phase }
  | { type: 'reasoning'; summary: { type: 'summary_text'; text: string }[]; encrypted_content: string }
  | { type: 'function_call'; call_id: string; name: string; arguments: string }
  | { type: 'function_call_output'; call_id: string; output: string | InputContent[] }

export type FunctionTool = {
  type: 'function'
  name: string
  description: string
  strict: false
  parameters: Record<string, unknown>
}

export type WireToolChoice = 'auto' | 'none' | 'required' | { type: 'function'; name: string }

/** Fields that both paths take; the ChatGPT path takes no others (wire/openai.md 3.2). */
export type ResponsesBody = {
  model: string
  instructions?: string
  input: InputItem[]
  tools?: FunctionTool[]
  tool_choice?: WireToolChoice
  parallel_tool_calls?: boolean
  reasoning?: { effort?: Effort; summary?: 'auto' }
  store: false
  stream: true
  include?: 'reasoning.encrypted_content'[]
  prompt_cache_key: string
}
/** … with those that only the public API takes. */
export type PublicBody = ResponsesBody & {
  max_output_tokens?: number
  temperature?: number
  top_p?: number
}
