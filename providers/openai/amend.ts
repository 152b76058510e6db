/** The request to send in place of one that the Responses API refused. */
import type { ModelRequest, UpstreamFailure } from '../../src/provider.ts'
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
import { refuses } from './capabilities.ts'
import { type Facts, factsOf, isStale } from './classify.ts'

/**
 * The request without what the vendor could not verify or may not give: encrypted reasoning of another account or
 * model, items that were never stored or lack their pair, media that cannot be read or are too large, readable
 * summaries for an unverified organisation (param `reasoning.summary`), encrypted reasoning of a model that has none,
 * or has it elsewhere (`include`; pydantic/pydantic-ai#6289), more output than the model gives, an effort that it
 * lacks, a setting that it does not know; or with earlier answers as plain strings. All but the first three are facts
 * about the model. Null if that would change nothing.
 */
export function amendRequest(failure: UpstreamFailure, request: ModelRequest): ModelRequest | null {
  const facts = factsOf(failure)
  const { status, code, message, error } = facts
  if (code === 'invalid_encrypted_content' || isStale(message)) return withoutReasoning(request)
  if (status === 413) return withoutMedia(request)
  const isTyped = (status === 400 || status === 422) && LISTED.test(failure.body)
  const strings = isTyped ? withPlainAnswers(request) : null
  if (strings || status !== 400) return strings
  if (error.param === 'reasoning.summary') return taught(request, { reasoning_summary: false })
  if (error.param === 'include') return taught(request, { encrypted_reasoning: false })
  if (error.param === 'reasoning.effort') return withListedEffort(request, facts)
  if (error.param === 'max_output_tokens' && code !== 'unsupported_parameter')
    return withinLimit(request, facts)
  const plain = code.startsWith('unsupported_') ? withoutSetting(request, facts) : null
  return plain ?? withoutUnread(request, `${code} ${error.param} ${message}`, UNREAD)
}

/**
 * Of servers that check the input against the SDK's types, in which a list of `output_text` needs an id and a status:
 * vLLM before mid-2026, gateways (openai/codex#12669, anomalyco/opencode#42613). They name the type, vLLM
 * after it has quoted the whole input, of which only the beginning is read. Envoy's gateway (envoyproxy/ai-gateway#1881)
 * and OpenRouter (CherryHQ/cherry-studio#10477) say only that the request is malformed.
 */
const LISTED =
  /ResponseOutputMessage|'body', 'input', 'str'|failed to parse JSON for \/v1\/responses|Invalid Responses API request/

const withPlainAnswers = (request: ModelRequest): ModelRequest | null =>
  request.messages.some(
    ({ role, parts }) => role === 'assistant' && parts.some(({ type }) => type === 'text'),
  )
    ? taught(request, { answer_lists: false })
    : null

/**
 * Matched against code, parameter and message: any of them may name the fault (openai/codex#23829). A refusal of files
 * names the kinds that are taken, with images among them.
 */
const UNREAD: Unread = [
  // "Failed to download file." is Azure's (strands-agents/harness-sdk#3576).
  [/while downloading|failed.to.download|file_url/i, isLinked],
  [/Invalid value: 'input_file'|'input_file' is not supported/i, isFile],
  // llama.cpp and LM Studio take no images in results (ggml-org/llama.cpp#20663, lmstudio-bug-tracker#2248).
  [/image|Output of tool call should be|invalid_union/i, isImage],
  [/\bPDF\b|file_data|unsupported_file|file type/i, isFile],
]

/**
 * With the limit that the refusal names ("Expected a value <= 16384"), which is listed nowhere. Without any limit if
 * the refusal names no lower one: then nobody knows which would do.
 */
function withinLimit(request: ModelRequest, { message }: Facts): ModelRequest | null {
  const { max_output_tokens, ...settings } = request.settings
  if (max_output_tokens === undefined) return null
  const most = Number(/(?:<=|at most) ?(\d+)/.exec(message)?.[1] ?? Number.NaN)
  const sent = Math.min(max_output_tokens, request.reported?.max_output_tokens ?? max_output_tokens)
  const isLower = most >= 1 && most < sent
  return isLower ? taught(request, { max_output_tokens: most }) : { ...request, settings }
}

/**
 * With the efforts that the refusal lists as supported ("'medium', 'high', and 'xhigh'"), which overrule the table;
 * without an effort if the model takes none.
 */
function withListedEffort(request: ModelRequest, { code, message }: Facts): ModelRequest | null {
  const [, list = ''] = /Supported values are: (.+)/.exec(message) ?? []
  const efforts = [...list.matchAll(/'(\w+)'/g)].map(([, effort = '']) => effort)
  if (efforts.length === 0 && code !== 'unsupported_parameter') return null
  return taught(request, { efforts })
}

/**
 * No list says which models refuse these; o-series models refuse parallel calls, for example
 * (run-llama/llama_index#20865).
 */
const REFUSED_BY_SOME = ['temperature', 'top_p', 'parallel_tool_calls', 'max_output_tokens'] as const

function withoutSetting(request: ModelRequest, { code, error }: Facts): ModelRequest | null {
  const name = REFUSED_BY_SOME.find((one) => one === error.param)
  const value = name && request.settings[name]
  if (name === undefined || value === undefined || refuses(name, request)) return null
  // The refusal of a value says nothing about other values.
  const refused = code === 'unsupported_value' ? value : 'any'
  return taught(request, { refused: { ...request.reported?.refused, [name]: refused } })
}
