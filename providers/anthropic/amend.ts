/** The request to send in place of one that Anthropic refused. */
import type { ModelRequest, ReportedModel, UpstreamFailure } from '../../src/provider.ts'
import {
  isFile,
  isImage,
  isLinked,
  taught,
  type Unread,
  withoutMedia,
  withoutReasoning,
  withoutUnread,
} from '../amend.ts'
import { familyOf } from './capabilities.ts'
import { reportOf } from './classify.ts'
import { maxTokens } from './render.ts'

/**
 * Refusals of thinking that is sent back: not the vendor's own, changed, or missing at the head of a tool turn; the last
 * are those of a server that sends thinking and takes none (vLLM of early 2026: intel/llm-scaler#341).
 */
const BAD_THINKING =
  /Invalid `(?:signature|data)` in `(?:redacted_)?thinking` block|`thinking` or `redacted_thinking` blocks .* cannot be modified|Expected `thinking` or `redacted_thinking`|the first block must be `?thinking|cannot contain `?thinking|validation errors?:.*'type': 'thinking'/s

/**
 * Refusals of calls whose thinking is not sent, in DeepSeek's words (VicBilibily/GCMP#26: older models), which MiMo has
 * in `param` (earendil-works/pi#4602), and Kimi's (farion1231/cc-switch#3351): another model made them, say, or another
 * credential did.
 */
const MISSED_THINKING =
  /in the thinking mode must be passed back|Missing thinking block|reasoning_content is missing/

/**
 * Refusals of a system message in mid-conversation: two wordings of the vendor's (anthropics/claude-code#61412,
 * ianarawjo/ChainForge#271), then DeepSeek's and MiniMax's, who serve names of Claudes
 * (deepseek-ai/awesome-deepseek-integration#639, MiniMax-AI/MiniMax-M2.7#43).
 */
const BAD_SYSTEM =
  /role 'system' is not supported|Unexpected role "system"|unknown variant `system`|invalid message role: system/

/** For a fault, or a limit passed, the vendor names the place: `messages.4.content.1.image.source.base64.data: …`. */
const UNREAD: Unread = [
  [/image_dimensions_too_large|\bimage\.source\.|Could not process image/, isImage],
  // Of models that see none, behind Ollama (ollama/ollama#17301), llama.cpp, and at DeepSeek (its DeepSeek-V3#1026)
  [/image input|variant `image`/, isImage],
  [/\b(?:pdf|document)\.source\.|tag 'document'|Could not process PDF|PDF pages/, isFile],
  [/Unable to download the file|robots\.txt/, isLinked],
  // images.ts keeps the images within the limit, but nobody has counted the files' pages.
  [/Too much media|too many images and documents/, isFile],
]

/**
 * The request without what the vendor refused: media that it cannot read or that are too much are put in words,
 * thinking that was sent back is left out. With a budget, that leaves an open tool turn without thinking, so
 * thinking.ts switches thinking off. Where thinking is missed, calls get some. A model is asked for no more than the
 * refusal says that it takes.
 */
export function amendRequest(failure: UpstreamFailure, request: ModelRequest): ModelRequest | null {
  const { status, code, message } = reportOf(failure)
  if (status === 413) return withoutMedia(request)
  if (status !== 400) return null
  if (BAD_THINKING.test(message)) return withoutReasoning(request)
  if (MISSED_THINKING.test(failure.body)) return taught(request, { thought_calls: true })
  const told = toldOf(message, request)
  if (told) return taught(request, told)
  return withinWindow(message, request) ?? withoutUnread(request, `${code} ${message}`, UNREAD)
}

/** With less room an answer would be cut off at once, and its user not hear that the chat is too long. */
const LEAST_ROOM = 1000

/**
 * With an answer no longer than the conversation leaves room for. Claudes before 4.5 (docker/docker-agent#569), vLLM,
 * SGLang, Z.AI (foreveryh/claude-code-switch#12) and Bedrock (gsd-build/gsd-2#5409) count `max_tokens` as used. vLLM
 * counts no more of a conversation than has room beside the answer, and names that number (vllm/renderers/params.py):
 * then nobody knows what is left, and an eighth of what may be is asked for.
 */
function withinWindow(message: string, request: ModelRequest): ModelRequest | null {
  const [, window = ''] = /context (?:length (?:is (?:only )?|of )?|limit: .* > )(\d+)/.exec(message) ?? []
  const [used = ''] =
    /\d+(?= (?:\+ \d+ >|input tokens|tokens from the input|in the messages))|(?<=input length of )\d+/.exec(
      message,
    ) ?? []
  if (window === '' || used === '') return null
  const { model, settings, reported } = request
  const asked = maxTokens(request, familyOf(model, reported))
  const left = Number(window) - Number(used)
  const most = left < asked - 1 ? left : Math.floor(left / 8)
  if (most < LEAST_ROOM || most >= asked) return null
  return { ...request, settings: { ...settings, max_output_tokens: most } }
}

/**
 * What the refusal says about the model, in the words of wire/anthropic.md 3.3 to 3.6 and anthropics/claude-code#30010.
 */
function toldOf(message: string, { model, reported }: ModelRequest): Partial<ReportedModel> | null {
  const family = familyOf(model, reported)
  const { thinking, efforts, maxOutput, maxImages, forcedToolChoice, dropsUnbound } = family
  if (/adaptive thinking is not supported/.test(message)) {
    // A model without adaptive thinking thinks by budget.
    return thinking.includes('adaptive') ? { thinking_types: ['enabled', 'disabled'] } : null
  }
  const [, type = ''] = /"thinking\.type\.(\w+)" is not supported/.exec(message) ?? []
  if (thinking.includes(type)) return { thinking_types: thinking.filter((one) => one !== type) }
  if (efforts.length > 0 && /does not support the effort parameter/.test(message)) return { efforts: [] }
  if (family.systemMessages && BAD_SYSTEM.test(message)) return { system_messages: false }
  // "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium."; "valid levels" is a
  // relay's (nguyenphutrong/quotio#287).
  const [, levels] = /(?:Supported|valid) levels: ([\w, ]+)/.exec(message) ?? []
  if (levels) return { efforts: levels.split(', ') }
  // Bedrock takes 20 (boto/boto3#4632).
  const [, images] = /too many images and documents: .*> (\d+)/.exec(message) ?? []
  if (images && Number(images) < maxImages) return { max_images: Number(images) }
  // Relays may not pass the field's beta on, and other clouds not know it (BerriAI/litellm#41202, #41203).
  if (dropsUnbound && /block_binding: Extra|value.*thinking-binding|invalid beta flag/.test(message))
    return { block_binding: false }
  if (forcedToolChoice && /tool_choice: type .*not supported/.test(message))
    return { refused: { tool_choice: 'any' } }
  // `[1, …`: words of others who speak the protocol (NousResearch/hermes-agent#7566, mnfst/llm-gateway#1177). The last
  // are vLLM's of a window that is smaller (vllm/renderers/params.py).
  const [, most] =
    /max_tokens(?:: \d+ > | .*\[1, |=\d+ ?cannot be greater than max_model_len=\D*)(\d+)/.exec(message) ?? []
  return most && Number(most) !== maxOutput ? { max_output_tokens: Number(most) } : null
}
