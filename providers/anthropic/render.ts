/**
 * A canonical request as the body and headers of `POST /v1/messages` (wire/anthropic.md 2 and 3).
 *
 * anthropic-version is 2023-06-01 for every model: it is served next to 2026-10-21, which takes no
 * sampling fields at all, so only the older one can pass a session's temperature to the families that
 * still accept it. Nothing that Baton sends or reads differs otherwise (wire/anthropic.md 3.1).
 */
import { sha256 } from '../../src/chat/json.ts'
import { isBlank } from '../../src/chat/message.ts'
import { kept, once } from '../../src/chat/once.ts'
import type { ModelRequest, RenderedRequest, ToolDeclaration } from '../../src/provider.ts'
import { type Family, familyOf } from './capabilities.ts'
import { withinImages } from './images.ts'
import { renderMessages } from './messages.ts'
import { planThinking, type Thinking } from './thinking.ts'
import type { CacheControl, TextBlock, WireMessage, WireRequest, WireTool, WireToolChoice } from './wire.ts'

export const VERSION_HEADER = { 'anthropic-version': '2023-06-01' }
/** Without it a bearer token is "currently not supported" (wire/anthropic.md 1.6). */
export const OAUTH_BETA = 'oauth-2025-04-20'
const BINDING_BETA = 'thinking-binding-controls-2026-08-01'
/** Lets budget thinking go on between tool calls; adaptive thinking has it built in (wire/anthropic.md 2.3). */
const INTERLEAVED_BETA = 'interleaved-thinking-2025-05-14'

/** For models whose own limit is not known. */
const DEFAULT_MAX_TOKENS = 32_000

/** `oauth`: the request goes out with a bearer token. */
export function renderRequest(request: ModelRequest, oauth: boolean): RenderedRequest {
  const notes: string[] = []
  const family = familyOf(request.model, request.reported)
  const max_tokens = maxTokens(request, family, notes)
  const plan = planThinking(request, family, max_tokens, notes)
  const sent = headers(request, oauth, plan)
  // A login's operator may have named a version that takes no sampling fields (wire/anthropic.md 3.1).
  const samples = family.sampling && sent['anthropic-version'] === VERSION_HEADER['anthropic-version']
  const system = systemBlocks(request)
  const tools = declareTools(request.tools)
  const tool_choice = toolChoice(request, family, plan, notes)
  const thoughtCalls = request.reported?.thought_calls === true
  const replay = plan.replay || thoughtCalls
  const { systemMessages } = family
  const messages = renderMessages(request.messages, { replay, thoughtCalls, systemMessages, notes })
  const body: WireRequest = {
    model: request.model,
    max_tokens,
    stream: true,
    ...(system.length > 0 ? { system } : {}),
    ...(tools.length > 0 ? { tools } : {}),
    ...(tool_choice ? { tool_choice } : {}),
    ...(plan.thinking ? { thinking: plan.thinking } : {}),
    ...(plan.effort ? { output_config: { effort: plan.effort } } : {}),
    ...sampling(request, samples, plan, notes),
    ...(oauth ? { metadata: { user_id: sessionHash(request.session_id) } } : {}),
    messages: withAnchors(withinImages(messages, family.maxImages, notes)),
  }
  return {
    path: oauth ? '/v1/messages?beta=true' : '/v1/messages',
    headers: sent,
    body,
    notes,
  }
}

/** No tool is marked as the end of a cached prefix: such a mark would move with every tool that is appended. */
export const declareTools = once((tools: readonly ToolDeclaration[]) =>
  kept(
    tools.map(
      ({ name, description, parameters }): WireTool => ({
        name,
        ...(description.trim() === '' ? {} : { description }),
        input_schema: { type: 'object', ...parameters },
      }),
    ),
  ),
)

/**
 * All four breakpoints that are allowed (wire/anthropic.md 8): the end of the system blocks, which the tools precede, and
 * the last blocks of three user messages. The last one writes the cache for the next request. The one before is where the
 * request before wrote it: it is found however many blocks have come since. The third is the last that is no results,
 * where the turn before began: what has been sent since may change, as where context was given to that turn alone, or
 * where the vendor drops its thinking. Without it a long turn would leave nothing to find within twenty blocks, and the
 * whole conversation would be paid for again (zeroclaw-labs/zeroclaw#10660).
 */
const CACHED: CacheControl = { type: 'ephemeral' }

function withAnchors(messages: WireMessage[]): WireMessage[] {
  const given = messages.filter((message) => message.role === 'user')
  const begun = given.slice(0, -2).findLast(({ content }) => content.at(-1)?.type !== 'tool_result')
  for (const { content } of [...given.slice(-2), ...(begun ? [begun] : [])]) {
    // A user's blocks can all be marked: none is thinking, none is empty text.
    const block = content.at(-1)
    if (block) content[content.length - 1] = { ...block, cache_control: CACHED }
  }
  return messages
}

function systemBlocks({ instructions, options }: ModelRequest): TextBlock[] {
  return [...options.system_blocks, instructions]
    .filter((text) => !isBlank(text))
    .map((text, i, all) => ({
      type: 'text',
      text: text.toWellFormed(),
      ...(i === all.length - 1 ? { cache_control: CACHED } : {}),
    }))
}

export function maxTokens({ settings }: ModelRequest, { maxOutput }: Family, notes: string[] = []): number {
  const wanted = settings.max_output_tokens
  if (wanted === undefined) return maxOutput ?? DEFAULT_MAX_TOKENS
  if (maxOutput === null || wanted <= maxOutput) return wanted
  notes.push(`max_output_tokens: lowered to ${maxOutput}, the most that this model takes`)
  return maxOutput
}

function toolChoice(
  request: ModelRequest,
  family: Family,
  plan: Thinking,
  notes: string[],
): WireToolChoice | undefined {
  const { tool_choice: choice, parallel_tool_calls: parallel } = request.settings
  if (request.tools.length === 0) {
    if (choice !== undefined && choice !== 'auto' && choice !== 'none')
      notes.push('tool_choice: left out, there are no tools')
    return undefined
  }
  if (choice === 'none') return { type: 'none' }
  const single = parallel === false ? { disable_parallel_tool_use: true as const } : {}
  const auto: WireToolChoice = { type: 'auto', ...single }
  if (choice === undefined || choice === 'auto') return parallel === false ? auto : undefined
  if (!family.forcedToolChoice) {
    notes.push('tool_choice: this model cannot be forced to call a tool; sent as auto')
    return auto
  }
  if (plan.thinking?.type === 'enabled') {
    notes.push('tool_choice: this model cannot be forced to call a tool while it thinks; sent as auto')
    return auto
  }
  if (choice === 'required') return { type: 'any', ...single }
  const tool = request.tools.find(({ canonical_name }) => canonical_name === choice.name)
  if (tool) return { type: 'tool', name: tool.name, ...single }
  notes.push(`tool_choice: ${choice.name} is not among the tools; sent as auto`)
  return auto
}

/** wire/anthropic.md 3.5: temperature 0 to 1; never both fields; with thinking only top_p, from 0.95. */
function sampling(
  { settings }: ModelRequest,
  samples: boolean,
  plan: Thinking,
  notes: string[],
): { temperature?: number; top_p?: number } {
  const { temperature, top_p } = settings
  const thinks = plan.thinking?.type === 'adaptive' || plan.thinking?.type === 'enabled'
  if (!samples) {
    if (temperature !== undefined) notes.push('temperature: not accepted by this model')
    if (top_p !== undefined) notes.push('top_p: not accepted by this model')
    return {}
  }
  if (temperature !== undefined && !thinks) {
    if (top_p !== undefined) notes.push('top_p: not accepted together with temperature')
    if (temperature > 1) notes.push('temperature: lowered to 1, the most that this vendor takes')
    return { temperature: Math.min(temperature, 1) }
  }
  if (temperature !== undefined) notes.push('temperature: not accepted while the model thinks')
  if (top_p === undefined) return {}
  if (!thinks || top_p >= 0.95) return { top_p }
  notes.push('top_p: below 0.95, not accepted while the model thinks')
  return {}
}

/** One identity per session: a new one for each request would count as many users (wire/anthropic.md 11.18). */
const sessionHash = (session: string): string => sha256(`baton:${session}`)

function headers({ options }: ModelRequest, oauth: boolean, { thinking }: Thinking): Record<string, string> {
  const betas = new Set(oauth ? [OAUTH_BETA] : [])
  if (thinking?.type === 'enabled') betas.add(INTERLEAVED_BETA)
  // A field and its beta travel together: either alone is refused (wire/anthropic.md 2.3).
  if (thinking?.type === 'adaptive' && thinking.block_binding) betas.add(BINDING_BETA)
  const own: Record<string, string> = { ...VERSION_HEADER }
  for (const [name, value] of Object.entries(options.headers)) {
    if (name !== 'anthropic-beta') own[name] = value
    else for (const beta of value.split(',')) if (beta.trim() !== '') betas.add(beta.trim())
  }
  return betas.size > 0 ? { ...own, 'anthropic-beta': [...betas].join(',') } : own
}
