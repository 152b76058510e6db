/**
 * What the emulated API refuses in a request's headers and top-level fields, in the vendor's words where they are known
 * (wire/anthropic.md 2, 3, 5, 8). It is strict on purpose: a client that passes here sends no field, order or
 * combination that the API is known to refuse.
 */
import { Ajv2020 } from 'ajv/dist/2020.js'
import type { EmulatedModel } from './anthropic-models.ts'
import { hasLoneSurrogate } from './http.ts'
import { isObject, type Json, list, number, object, string } from './json.ts'

/** Thrown for a request that the emulated API refuses. */
export class Refusal extends Error {
  readonly status: number
  readonly type: string
  constructor(status: number, type: string, message: string) {
    super(message)
    this.status = status
    this.type = type
  }
}

export function invalid(message: string): never {
  throw new Refusal(400, 'invalid_request_error', message)
}

/** What the headers say, after they were checked. */
export interface Head {
  version: string
  betas: ReadonlySet<string>
}

const VERSIONS = ['2023-06-01', '2026-10-21']
const BETAS = [
  'oauth-2025-04-20',
  'claude-code-20250219',
  'interleaved-thinking-2025-05-14',
  'fine-grained-tool-streaming-2025-05-14',
  'context-management-2025-06-27',
  'compact-2026-01-12',
  'compact-2026-09-04',
  'mcp-client-2025-11-20',
  'mcp-client-2026-09-15',
  'context-1m-2025-08-07',
  'thinking-binding-controls-2026-08-01',
  'thinking-display-updates-2026-08-18',
  'fast-mode-2026-02-01',
  'task-budgets-2026-03-13',
  'structured-outputs-2025-11-13',
  'mid-conversation-output-config-2026-07-01',
  'mid-conversation-tool-changes-2026-07-01',
  'server-side-fallback-2026-07-01',
  'inline-tools-2026-09-15',
  // Without an effect any more
  'prompt-caching-2024-07-31',
  'pdfs-2024-09-25',
  'token-counting-2024-11-01',
  'token-efficient-tools-2025-02-19',
  'extended-cache-ttl-2025-04-11',
  'message-batches-2024-09-24',
]

export function checkHead(headers: NodeJS.Dict<string | string[]>): Head {
  const version = String(headers['anthropic-version'] ?? '')
  if (version === '') invalid('anthropic-version: header is required')
  if (!VERSIONS.includes(version)) invalid(`anthropic-version: "${version}" is not a valid version`)
  const betas = String(headers['anthropic-beta'] ?? '')
    .split(',')
    .map((beta) => beta.trim())
    .filter((beta) => beta !== '')
  const unknown = betas.filter((beta) => !BETAS.includes(beta))
  if (unknown.length > 0) {
    invalid(
      `Unexpected value(s) ${unknown.map((b) => `\`${b}\``).join(', ')} for the \`anthropic-beta\` header`,
    )
  }
  return { version, betas: new Set(betas) }
}

const FIELDS = [
  'model',
  'max_tokens',
  'messages',
  'system',
  'tools',
  'tool_choice',
  'thinking',
  'output_config',
  'stop_sequences',
  'stream',
  'metadata',
  'service_tier',
  'cache_control',
]
const SAMPLING = ['temperature', 'top_p', 'top_k']
const GATED: [field: string, beta: string][] = [
  ['context_management', 'context-management-2025-06-27'],
  ['mcp_servers', 'mcp-client-2025-11-20'],
  ['speed', 'fast-mode-2026-02-01'],
  ['compaction', 'compact-2026-01-12'],
]

/** Refuses members that are not `allowed`; `path` is written as the vendor does, as in `messages.0.content.1.text`. */
export function onlyKeys(value: Json, allowed: readonly string[], path: string): void {
  const extra = Object.keys(value).find((key) => !allowed.includes(key))
  if (extra !== undefined) invalid(`${path === '' ? '' : `${path}.`}${extra}: Extra inputs are not permitted`)
}

/** By field, what each value must be, and the vendor's words if it is not. */
const TYPED: readonly [says: string, fits: (value: unknown) => boolean, fields: readonly string[]][] = [
  ['Input should be a valid array', Array.isArray, ['tools', 'stop_sequences']],
  ['Input does not match the expected shape.', isObject, ['metadata']],
  ['Input should be a valid number', (value) => typeof value === 'number', ['temperature', 'top_p']],
  ['Input should be a valid integer', Number.isInteger, ['top_k']],
  ['Input should be a valid boolean', (value) => typeof value === 'boolean', ['stream']],
]

function checkTypes(body: Json): void {
  for (const [says, fits, fields] of TYPED) {
    const wrong = fields.find((field) => body[field] !== undefined && !fits(body[field]))
    if (wrong) invalid(`${wrong}: ${says}`)
  }
}

/** Refuses a value that is given and not among `values`. */
function oneOf(value: unknown, values: readonly string[], path: string): void {
  if (value === undefined || value === null || values.some((one) => one === value)) return
  invalid(`${path}: Input should be ${values.map((one) => `'${one}'`).join(' or ')}`)
}

/** Checks all fields but the messages. */
export function checkFields(body: Json, head: Head, model: EmulatedModel): void {
  if (hasLoneSurrogate(body))
    invalid('The request body is not valid JSON: str is not valid UTF-8: surrogates not allowed')
  const gated = GATED.filter(([, beta]) => head.betas.has(beta)).map(([field]) => field)
  const sampling = head.version === '2023-06-01' ? SAMPLING : []
  onlyKeys(body, [...FIELDS, ...sampling, ...gated], '')
  checkTypes(body)
  checkMaxTokens(body, model)
  checkSystem(body.system)
  checkTools(body.tools)
  checkToolChoice(body, model)
  checkThinking(body, head, model)
  checkSampling(body, model)
  checkRest(body)
  checkCacheControl(body)
}

function checkMaxTokens(body: Json, { id, output }: EmulatedModel): void {
  const max = number(body.max_tokens)
  if (max === undefined) invalid('max_tokens: Field required')
  if (!Number.isInteger(max) || max < 1) invalid('max_tokens: Input should be greater than or equal to 1')
  if (max > output) {
    invalid(`max_tokens: ${max} > ${output}, which is the maximum allowed number of output tokens for ${id}`)
  }
}

function checkSystem(system: unknown): void {
  if (system === undefined || typeof system === 'string') return
  if (!Array.isArray(system)) invalid('system: Input should be a valid array')
  system.forEach((entry, i) => {
    const block = object(entry)
    onlyKeys(block, ['type', 'text', 'cache_control', 'citations'], `system.${i}`)
    if (block.type !== 'text') invalid(`system.${i}.type: Input should be 'text'`)
    checkText(block, `system.${i}`, 'system')
  })
}

/** The rules of text blocks at any place (wire/anthropic.md 4.3). */
export function checkText(block: Json, path: string, where: string): void {
  const text = string(block.text)
  if (text === undefined) invalid(`${path}.text: Field required`)
  if (text === '' && block.cache_control)
    invalid(`${path}: cache_control cannot be set for empty text blocks`)
  if (text === '') invalid(`${where}: text content blocks must be non-empty`)
  // zoedolan/Vybn#2895 met this refusal; the expression also has what else Python calls a space.
  if (/^[\s\p{Cc}\u200b\u2060]*$/u.test(text))
    invalid(`${where}: text content blocks must contain non-whitespace text`)
}

const schemas = new Ajv2020({ strict: false, logger: false })

function isRegex(pattern: string): boolean {
  try {
    return new RegExp(pattern, 'u') instanceof RegExp
  } catch {
    return false
  }
}

function checkTools(tools: unknown): void {
  const names = new Set<string>()
  list(tools).forEach((entry, i) => {
    const tool = object(entry)
    const path = `tools.${i}.custom`
    const known = ['name', 'description', 'input_schema', 'type', 'cache_control', 'strict', 'defer_loading']
    onlyKeys(tool, [...known, 'eager_input_streaming', 'input_examples', 'allowed_callers'], path)
    const name = string(tool.name) ?? ''
    if (!/^[a-zA-Z0-9_-]{1,128}$/.test(name)) {
      invalid(`${path}.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'`)
    }
    if (names.has(name)) invalid('tools: Tool names must be unique.')
    names.add(name)
    if (tool.description === '') invalid(`${path}.description: String should have at least 1 character`)
    checkSchema(object(tool.input_schema), `${path}.input_schema`)
  })
}

function checkSchema(schema: Json, path: string): void {
  if (schema.type === undefined) invalid(`${path}.type: Field required`)
  if (schema.type !== 'object') invalid(`${path}.type: Input should be 'object'`)
  if (['oneOf', 'allOf', 'anyOf'].some((keyword) => keyword in schema)) {
    invalid(`${path}: input_schema does not support oneOf, allOf, or anyOf at the top level`)
  }
  if (badProperty(schema)) {
    invalid(`${path}.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'`)
  }
  // Every schema is read as 2020-12, whatever draft it names.
  const { $schema: _, ...rest } = schema
  if (badPattern(rest) || !schemas.validateSchema(rest)) {
    invalid(
      `${path}: JSON schema is invalid. It must match JSON Schema draft 2020-12 (https://json-schema.org/draft/2020-12).`,
    )
  }
}

const badProperty = (schema: unknown): boolean =>
  anyKeyword(
    schema,
    (keyword, value) =>
      keyword === 'properties' &&
      !Object.keys(object(value)).every((name) => /^[a-zA-Z0-9_.-]{1,64}$/.test(name)),
  )

/** Ajv leaves formats out when it checks a schema, and so the format of patterns, too. */
const badPattern = (schema: unknown): boolean =>
  anyKeyword(
    schema,
    (keyword, value) =>
      (keyword === 'pattern' && !isRegex(String(value))) ||
      (keyword === 'patternProperties' && !Object.keys(object(value)).every(isRegex)),
  )

const NAMED = ['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas']
const DATA = ['enum', 'const', 'default', 'examples']

/** Whether `isBad` holds for a keyword anywhere in the schema; names of properties and plain data are no keywords. */
function anyKeyword(schema: unknown, isBad: (keyword: string, value: unknown) => boolean): boolean {
  if (Array.isArray(schema)) return schema.some((item) => anyKeyword(item, isBad))
  return Object.entries(object(schema)).some(([keyword, value]) => {
    if (DATA.includes(keyword)) return false
    if (isBad(keyword, value)) return true
    const inner = NAMED.includes(keyword) ? Object.values(object(value)) : value
    return anyKeyword(inner, isBad)
  })
}

function checkToolChoice(body: Json, model: EmulatedModel): void {
  if (body.tool_choice === undefined) return
  const choice = object(body.tool_choice)
  const type = string(choice.type) ?? ''
  const keys: Record<string, string[]> = {
    auto: ['type', 'disable_parallel_tool_use'],
    any: ['type', 'disable_parallel_tool_use'],
    tool: ['type', 'name', 'disable_parallel_tool_use'],
    none: ['type'],
  }
  if (!keys[type])
    invalid(`tool_choice: Input tag '${type}' found using 'type' does not match any of the expected tags`)
  onlyKeys(choice, keys[type], `tool_choice.${type}`)
  const tools = list(body.tools)
  if (tools.length === 0) invalid('tool_choice may only be specified while providing tools')
  if (type === 'auto' || type === 'none') return
  if (!model.forced) invalid('tool_choice: type "tool" and "any" are not supported for this model.')
  if (object(body.thinking).type === 'enabled')
    invalid('Thinking may not be enabled when tool_choice forces tool use.')
  if (type === 'tool' && !tools.some((tool) => object(tool).name === choice.name)) {
    invalid(`tool_choice.tool: Tool '${choice.name}' not found in provided tools`)
  }
}

const BINDING_BETA = 'thinking-binding-controls-2026-08-01'
const UPDATES_BETA = 'thinking-display-updates-2026-08-18'

function checkThinking(body: Json, { betas }: Head, model: EmulatedModel): void {
  const { effort } = object(body.output_config)
  onlyKeys(object(body.output_config), ['effort', 'format'], 'output_config')
  // anthropics/claude-code#30010
  if (effort !== undefined && model.efforts.length === 0)
    invalid('This model does not support the effort parameter.')
  if (effort !== undefined && !model.efforts.includes(String(effort))) {
    const levels = [...model.efforts].sort().join(', ')
    invalid(`This model does not support effort level '${effort}'. Supported levels: ${levels}.`)
  }
  if (body.thinking === undefined) return
  const thinking = object(body.thinking)
  const type = string(thinking.type) ?? ''
  if (!model.types.some((accepted) => accepted === type)) {
    if (type === 'adaptive') invalid('adaptive thinking is not supported on this model')
    invalid(
      `"thinking.type.${type}" is not supported for this model. Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.`,
    )
  }
  const thinks = type === 'adaptive' || type === 'enabled'
  onlyKeys(
    thinking,
    [
      'type',
      ...(type === 'enabled' ? ['budget_tokens'] : []),
      ...(thinks && model.display === 'omitted' ? ['display'] : []),
      ...(thinks && betas.has(BINDING_BETA) ? ['block_binding'] : []),
    ],
    `thinking.${type}`,
  )
  const displays = ['summarized', 'omitted', ...(betas.has(UPDATES_BETA) ? ['updates'] : [])]
  oneOf(thinking.display, displays, `thinking.${type}.display`)
  const { prefix_mismatch_behavior } = object(thinking.block_binding)
  oneOf(prefix_mismatch_behavior, ['error', 'drop_block'], `thinking.${type}.block_binding`)
  if (type === 'enabled') checkBudget(thinking, number(body.max_tokens))
  const rank = (level: unknown) => model.efforts.indexOf(String(level))
  if (!thinks && model.effortWhenOff && rank(effort) > rank(model.effortWhenOff)) {
    invalid(`output_config.effort: '${effort}' requires thinking on this model`)
  }
}

function checkBudget({ budget_tokens }: Json, maxTokens?: number): void {
  const budget = number(budget_tokens)
  if (budget === undefined) invalid('thinking.enabled.budget_tokens: Field required')
  if (budget < 1024) invalid('thinking.enabled.budget_tokens: Input should be greater than or equal to 1024')
  if (maxTokens !== undefined && budget >= maxTokens)
    invalid('`max_tokens` must be greater than `thinking.budget_tokens`.')
}

function checkSampling(body: Json, model: EmulatedModel): void {
  const { temperature, top_p, top_k } = body
  if (!model.sampling) {
    if (temperature !== undefined && temperature !== 1) invalid('`temperature` is deprecated for this model.')
    if (top_p !== undefined && Number(top_p) < 0.99) invalid('`top_p` is deprecated for this model.')
    if (top_k !== undefined) invalid('`top_k` is deprecated for this model.')
    return
  }
  if (Number(temperature ?? 1) > 1 || Number(temperature ?? 1) < 0) invalid('temperature: range: 0..1')
  if (temperature !== undefined && top_p !== undefined) {
    invalid('`temperature` and `top_p` cannot both be specified for this model. Please use only one.')
  }
  if (!['adaptive', 'enabled'].includes(String(object(body.thinking).type))) return
  if (temperature !== undefined && temperature !== 1)
    invalid('`temperature` may only be set to 1 when thinking is enabled.')
  if (top_p !== undefined && Number(top_p) < 0.95)
    invalid('`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.')
  if (top_k !== undefined) invalid('`top_k` must be unset when thinking is enabled.')
}

function checkRest({ stop_sequences, metadata, service_tier }: Json): void {
  if (list(stop_sequences).some((text) => String(text).trim() === '')) {
    invalid('stop_sequences: each stop sequence must contain non-whitespace')
  }
  onlyKeys(object(metadata), ['user_id'], 'metadata')
  if (typeof (object(metadata).user_id ?? '') !== 'string')
    invalid('metadata.user_id: Input should be a valid string')
  oneOf(service_tier, ['auto', 'standard_only'], 'service_tier')
}

function checkCacheControl(body: Json): void {
  const marks: Json[] = []
  const walk = (value: unknown) => {
    const block = object(value)
    if ('cache_control' in block) marks.push(block)
    for (const part of list(block.content)) walk(part)
  }
  for (const block of [...list(body.tools), ...list(body.system), ...list(body.messages)]) walk(block)
  if (body.cache_control) marks.push(body)
  for (const { type, cache_control } of marks) {
    if (type === 'thinking' || type === 'redacted_thinking')
      invalid(`${type}.cache_control: Extra inputs are not permitted`)
    if (object(cache_control).type !== 'ephemeral') invalid("cache_control.type: Input should be 'ephemeral'")
    oneOf(object(cache_control).ttl, ['5m', '1h'], 'cache_control.ttl')
  }
  const isLong = marks.map(({ cache_control }) => object(cache_control).ttl === '1h')
  if (isLong.some((long, i) => !long && isLong[i + 1]))
    invalid("cache_control: a block with ttl='1h' must not come after a block with ttl='5m'")
  if (marks.length > 4) {
    invalid(`A maximum of 4 blocks with cache_control may be provided. Found ${marks.length}.`)
  }
}
