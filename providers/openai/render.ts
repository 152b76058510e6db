/** A canonical request as the body and headers of one Responses call, on the public API or the ChatGPT path. */
import { kept, once } from '../../src/chat/once.ts'
import type {
  CredentialFacts,
  Effort,
  ModelRequest,
  ModelSettings,
  RenderedRequest,
  ToolDeclaration,
} from '../../src/provider.ts'
import { object, string } from '../json.ts'
import { claimsOf } from '../tokens.ts'
import { appendsInstructions, effortFor, familyOf, refuses } from './capabilities.ts'
import { inputItems, instructionItems } from './input.ts'
import type { FunctionTool, PublicBody, ResponsesBody, WireToolChoice } from './wire.ts'

const PATH = '/responses'

/** A body, and notes on what was left out of it. */
interface Draft<Body> {
  body: Body
  notes: string[]
}

/** `strict` is explicit: without it, the public API makes the schema strict (wire/openai.md 5). */
export const declareTools = once((tools: readonly ToolDeclaration[]) =>
  kept(
    tools.map(
      ({ name, description, parameters }): FunctionTool => ({
        type: 'function',
        name,
        description,
        strict: false,
        parameters,
      }),
    ),
  ),
)

/** For the public API; the operator's headers overrule Baton's. */
export const renderPublic = (request: ModelRequest): RenderedRequest => ({
  path: PATH,
  headers: request.options.headers,
  ...publicBody(request),
})

/**
 * `session-id` and `thread-id` route to the prompt cache's shard; older deployments read the spelling with underscores.
 * `version` only ever comes from the operator (wire/openai.md 2).
 */
export function renderChatgpt(request: ModelRequest): RenderedRequest {
  const conversation = cacheKey(request)
  const headers = {
    ...ORIGINATOR,
    'openai-beta': 'responses=experimental',
    'session-id': conversation,
    'thread-id': conversation,
    'x-client-request-id': conversation,
    session_id: conversation,
    ...request.options.headers,
  }
  return { path: PATH, headers, ...chatgptBody(request) }
}

/** Baton presents itself under its own name. */
export const ORIGINATOR = { originator: 'baton' }

/** An organisation (`org-…`) is not a workspace; sent as one it is refused (wire/openai.md 1.5, 2). */
export const isWorkspace = (account: string | undefined): account is string =>
  account !== undefined && account !== '' && !account.startsWith('org-')

/** Headers that say which account of the login a request is for. */
export const accountHeaders = ({ account_id, fedramp }: CredentialFacts): Record<string, string> => ({
  ...(isWorkspace(account_id) ? { 'chatgpt-account-id': account_id } : {}),
  ...(fedramp ? { 'x-openai-fedramp': fedramp } : {}),
})

/** Where a login's tokens say what they are for (wire/openai.md 1.5). */
export const AUTH_CLAIM = 'https://api.openai.com/auth'

/**
 * The region that the workspace binds its models' work to, by the token at hand. Such a workspace is refused without the
 * header, with a 401 ("Workspace is not authorized in this region") or as `data_residency_mismatch`; all others need
 * none (anomalyco/opencode#40243, NousResearch/hermes-agent#23896, can1357/oh-my-pi#9128). Where its data are kept is
 * another claim, which does not route (vercel-labs/fx#287).
 */
export function residencyHeader(access_token: string): Record<string, string> {
  const region = string(object(claimsOf(access_token)[AUTH_CLAIM]).chatgpt_compute_residency)
  return region && region !== 'no_constraint' ? { 'x-openai-internal-codex-residency': region } : {}
}

/** One key per conversation; the API takes at most 64 characters. */
const cacheKey = ({ session_id }: ModelRequest): string => session_id.slice(0, 64)

/** The public API's body; exported for the test that compares it with the SDK's types. */
export function publicBody(request: ModelRequest): Draft<PublicBody> {
  const { settings } = request
  const notes: string[] = []
  const body: PublicBody = commonBody(request, notes)
  const { parallel_tool_calls: parallel } = settings
  if (request.tools.length > 0 && parallel !== undefined && takes('parallel_tool_calls', request, notes)) {
    body.parallel_tool_calls = parallel
  }
  const { reasoning, samplesAtNone } = familyOf(request.model)
  const effort = body.reasoning?.effort ?? (samplesAtNone === 'unasked' ? 'none' : null)
  for (const field of ['temperature', 'top_p'] as const) {
    const value = settings[field]
    if (value === undefined || !takes(field, request, notes)) continue
    if (!reasoning || (samplesAtNone && effort === 'none')) body[field] = value
    else
      notes.push(
        `${field}: not accepted by ${request.model}${samplesAtNone ? ' unless its effort is none' : ''}`,
      )
  }
  const limit = settings.max_output_tokens
  if (limit !== undefined && takes('max_output_tokens', request, notes)) {
    const most = request.reported?.max_output_tokens ?? limit
    body.max_output_tokens = Math.max(LEAST_OUTPUT_TOKENS, Math.min(limit, most))
    if (limit > most) notes.push(`max_output_tokens: lowered to ${most}, the most that this model takes`)
    if (limit < LEAST_OUTPUT_TOKENS) {
      notes.push(`max_output_tokens: raised to ${LEAST_OUTPUT_TOKENS}, the least that the API accepts`)
    }
  }
  return { body, notes }
}

/** False for a setting that the model has refused; noted if the request has it. */
function takes(name: keyof ModelSettings, request: ModelRequest, notes: string[]): boolean {
  if (!refuses(name, request)) return true
  if (request.settings[name] !== undefined) notes.push(`${name}: not accepted by ${request.model}`)
  return false
}

/** The public API refuses a lower limit with `integer_below_min_value`. */
const LEAST_OUTPUT_TOKENS = 16

/** Has only fields that this path accepts: for any other it refuses the whole request. */
export function chatgptBody(request: ModelRequest): Draft<ResponsesBody> {
  const { settings, tools } = request
  const notes: string[] = []
  const body = commonBody(request, notes, 'minimal')
  // The path requires the field. Nothing shows that it takes the message in which newer models have theirs instead.
  body.instructions ??= DEFAULT_INSTRUCTIONS
  if (allInstructions(request) === '')
    notes.push(`instructions: this path requires some; "${DEFAULT_INSTRUCTIONS}" stands in`)
  if (tools.length > 0 && takes('parallel_tool_calls', request, notes)) {
    body.parallel_tool_calls = settings.parallel_tool_calls ?? !request.follow_up
  }
  for (const field of ['temperature', 'top_p', 'max_output_tokens'] as const) {
    if (settings[field] !== undefined) notes.push(`${field}: not accepted with a ChatGPT login`)
  }
  return { body, notes }
}

const DEFAULT_INSTRUCTIONS = 'You are a helpful assistant.'

const allInstructions = ({ options, instructions }: ModelRequest): string =>
  [...options.system_blocks, instructions]
    .filter((text) => text !== '')
    .join('\n\n')
    .toWellFormed()

function commonBody(request: ModelRequest, notes: string[], refusedEffort?: Effort): ResponsesBody {
  const { model, messages, tools, reported } = request
  const choice = toolChoice(request, notes)
  const reasoning = reasoningField(request, notes, refusedEffort)
  const instructions = allInstructions(request)
  const isLead = appendsInstructions(model)
  const items = inputItems(messages, reported?.answer_lists === false ? 'strings' : 'lists')
  return {
    model,
    ...(isLead || instructions === '' ? {} : { instructions }),
    input: isLead ? [...instructionItems(instructions), ...items] : items,
    ...(tools.length > 0 ? { tools: declareTools(tools) } : {}),
    ...(choice === undefined ? {} : { tool_choice: choice }),
    ...(reasoning && Object.keys(reasoning).length > 0 ? { reasoning } : {}),
    ...(reasoning && isKept(request, notes) ? { include: ['reasoning.encrypted_content'] } : {}),
    store: false,
    stream: true,
    prompt_cache_key: cacheKey(request),
  }
}

/** The requested choice, if it can be met: without tools, the API refuses all but auto and none. */
function toolChoice(request: ModelRequest, notes: string[]): WireToolChoice | undefined {
  const { tools, settings } = request
  const choice = settings.tool_choice
  if (choice === undefined || choice === 'auto' || choice === 'none')
    return tools.length > 0 ? choice : undefined
  if (tools.length === 0) {
    notes.push('tool_choice: no tool is declared')
    return undefined
  }
  if (choice === 'required') return choice
  const tool = tools.find(({ canonical_name }) => canonical_name === choice.name)
  if (tool) return { type: 'function', name: tool.name }
  notes.push(`tool_choice: tool ${choice.name} is not declared`)
  return undefined
}

/** Whether the answer's reasoning can be sent back later. */
function isKept({ model, reported }: ModelRequest, notes: string[]): boolean {
  const keeps = reported?.encrypted_reasoning !== false
  if (!keeps) notes.push(`include: ${model} gives out no encrypted reasoning`)
  return keeps
}

/** Null for a model that does not reason: it refuses the field, and `include` with it. */
function reasoningField(
  request: ModelRequest,
  notes: string[],
  refusedEffort?: Effort,
): ResponsesBody['reasoning'] | null {
  const { model, settings } = request
  const wanted = settings.reasoning?.effort
  const effort = wanted === undefined ? null : effortFor(wanted, request, refusedEffort)
  if (!familyOf(model).reasoning) {
    if (wanted !== undefined) notes.push(`reasoning.effort: not accepted by ${model}`)
    return null
  }
  if (wanted !== undefined && effort !== wanted) {
    notes.push(`reasoning.effort: ${model} has no ${wanted}, ${effort ?? 'its default'} stands in`)
  }
  const summary = request.reported?.reasoning_summary !== false
  if (!summary) notes.push('reasoning.summary: refused to this credential')
  return { ...(effort === null ? {} : { effort }), ...(summary ? { summary: 'auto' } : {}) }
}
