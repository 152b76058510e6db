/**
 * Refuses what the real services refuse, in their words (wire/openai.md 3–5, 7.1). Nothing here is taken from the
 * adapter: model families, field lists and schema rules are written down a second time.
 */
import { hasLoneSurrogate } from './http.ts'
import { isObject, type Json } from './json.ts'
import { checkInput } from './openai-items.ts'
import {
  type Asked,
  checkName,
  listed,
  oneOf,
  onlyFields,
  refuse,
  refuseDetail,
  text,
} from './openai-refusal.ts'

const CHATGPT_FIELDS = new Set(
  'model instructions input tools tool_choice parallel_tool_calls reasoning store stream stream_options include prompt_cache_key text service_tier client_metadata'.split(
    ' ',
  ),
)
const PUBLIC_FIELDS = new Set([
  ...CHATGPT_FIELDS,
  ...'background context_management conversation max_output_tokens max_tool_calls metadata moderation previous_response_id prompt prompt_cache_options prompt_cache_retention safety_identifier temperature top_logprobs top_p truncation user'.split(
    ' ',
  ),
])

/** Throws a Refusal for the first fault of the body for which the service would refuse it. */
export function checkBody(body: unknown, asked: Asked): void {
  if (!isObject(body) || hasLoneSurrogate(body)) {
    refuse('We could not parse the JSON body of your request.')
  }
  for (const field of Object.keys(body)) {
    if (asked.chatgpt && !CHATGPT_FIELDS.has(field)) refuseDetail(`Unsupported parameter: ${field}`)
    if (!PUBLIC_FIELDS.has(field)) refuse(`Unknown parameter: '${field}'.`, field, 'unknown_parameter')
  }
  if (asked.chatgpt) checkChatgptEnvelope(body)
  if (text(body.model) === '')
    refuse("Missing required parameter: 'model'.", 'model', 'missing_required_parameter')
  checkModel(text(body.model), asked)
  checkTypes(body)
  checkSettings(body, asked)
  checkTools(body, asked)
  if (typeof body.input === 'string') return
  if (!Array.isArray(body.input))
    refuse("Missing required parameter: 'input'.", 'input', 'missing_required_parameter')
  checkInput(body.input, asked)
  checkVision(text(body.model), body.input)
}

/** From GPT-6.2 on, instructions follow the input (developers.openai.com, "Using GPT-6.2"). */
export const appendsInstructions = (model: string): boolean => /^gpt-6\.2/.test(model)

function checkChatgptEnvelope(body: Json): void {
  if (text(body.instructions) === '') refuseDetail('Instructions are required')
  if (!Array.isArray(body.input)) refuseDetail('Input must be a list')
  if (body.store !== false) refuseDetail('Store must be set to false')
  if (body.stream !== true) refuseDetail('Stream must be set to true')
}

function checkModel(model: string, { chatgpt }: Asked): void {
  if (!model.startsWith('missing')) return
  if (chatgpt) refuseDetail(`The '${model}' model is not supported when using Codex with a ChatGPT account.`)
  refuse(
    `The model \`${model}\` does not exist or you do not have access to it.`,
    null,
    'model_not_found',
    404,
  )
}

/**
 * Checks images in messages and in results. PDF files count, since their pages are read as images
 * (egoist/chatwise-releases#383).
 */
function checkVision(model: string, input: unknown[]): void {
  if (!/^(ft:)?(gpt-3|gpt-4(-\d|-32k|$)|o1-(mini|preview)|o3-mini)/.test(model)) return
  const contents = input.flatMap((item) => (isObject(item) ? [item.content, item.output].flat() : []))
  for (const part of contents.filter(isObject)) {
    const isPdf = /^data:application\/pdf/.test(text(part.file_data))
    if (part.type === 'input_image' || isPdf)
      refuse(
        'Invalid content type. image_url is only supported by certain models.',
        'model',
        'unsupported_value',
      )
  }
}

/** `our-…` is an operator's own deployment, whose name does not tell its model. */
const reasons = (model: string) => !/^(ft:)?(gpt-4|gpt-3|chatgpt-4o)|^gpt-5-chat|^our-/.test(model)

/** In the words of the API's own checks; null counts as absent. */
function checkType(value: unknown, expected: string, at: string): void {
  if (value === undefined || value === null || KINDS[expected]?.(value)) return
  const kind = Array.isArray(value) ? 'array' : typeof value
  const got = Number.isInteger(value) ? 'integer' : kind === 'number' ? 'decimal number' : kind
  const a = /^[aeiou]/.test(got) ? 'an' : 'a'
  refuse(`Invalid type for '${at}': expected ${expected}, but got ${a} ${got} instead.`, at, 'invalid_type')
}
const KINDS: Record<string, (value: unknown) => boolean> = {
  'a decimal': (value) => typeof value === 'number',
  'an integer': Number.isInteger,
  'a string': (value) => typeof value === 'string',
  'an object': isObject,
  'a metadata object': isObject,
  'an array of tools': Array.isArray,
}

function checkTypes({ temperature, top_p, max_output_tokens, metadata, text: form }: Json): void {
  checkType(temperature, 'a decimal', 'temperature')
  checkType(top_p, 'a decimal', 'top_p')
  checkType(max_output_tokens, 'an integer', 'max_output_tokens')
  checkType(metadata, 'a metadata object', 'metadata')
  for (const [name, value] of Object.entries(metadata ?? {})) checkType(value, 'a string', `metadata.${name}`)
  checkType(form, 'an object', 'text')
  oneOf(isObject(form) ? form.verbosity : undefined, ['low', 'medium', 'high'], 'text.verbosity')
}

function checkSettings(body: Json, asked: Asked): void {
  const model = text(body.model)
  const unsupported = (field: string) =>
    refuse(
      `Unsupported parameter: '${field}' is not supported with this model.`,
      field,
      'unsupported_parameter',
    )
  const unasked = /^gpt-5\.[1-4](-mini|-nano|-\d{4}|$)/.test(model) ? 'none' : 'medium'
  const { effort = unasked } = isObject(body.reasoning) ? body.reasoning : {}
  const canStop = unasked === 'none' || /^gpt-(5\.[56]|6-(sol|luna))/.test(model)
  const samples = !reasons(model) || (effort === 'none' && canStop)
  for (const field of ['temperature', 'top_p']) {
    if (body[field] !== undefined && !samples) unsupported(field)
  }
  const { reasoning, include, max_output_tokens, prompt_cache_key, previous_response_id } = body
  if (isObject(reasoning)) {
    if (!reasons(model)) unsupported(`reasoning.${Object.keys(reasoning)[0] ?? 'effort'}`)
    onlyFields(reasoning, ['effort', 'summary', 'generate_summary', 'context', 'mode'], 'reasoning')
    oneOf(reasoning.summary, ['auto', 'concise', 'detailed'], 'reasoning.summary')
    checkEffort(reasoning.effort, model, asked)
  }
  checkInclude(include, model)
  if (typeof max_output_tokens === 'number' && max_output_tokens < 16) {
    refuse(
      `Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got ${max_output_tokens} instead.`,
      'max_output_tokens',
      'integer_below_min_value',
    )
  }
  const most = /^(ft:)?gpt-4\.1/.test(model) ? 32_768 : 128_000
  if (typeof max_output_tokens === 'number' && max_output_tokens > most) {
    refuse(
      `Invalid 'max_output_tokens': integer above maximum value. Expected a value <= ${most}, but got ${max_output_tokens} instead.`,
      'max_output_tokens',
      'integer_above_max_value',
    )
  }
  if (text(prompt_cache_key).length > 64) {
    refuse(
      "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64.",
      'prompt_cache_key',
      'string_above_max_length',
    )
  }
  if (previous_response_id !== undefined && previous_response_id !== null) {
    refuse(
      `Previous response with id '${String(previous_response_id)}' not found.`,
      'previous_response_id',
      'previous_response_not_found',
    )
  }
}

/** As the vendor's SDK lists them (ResponseIncludable) */
const INCLUDABLE = [
  'file_search_call.results',
  'web_search_call.results',
  'web_search_call.action.sources',
  'message.input_image.image_url',
  'computer_call_output.output.image_url',
  'code_interpreter_call.outputs',
  'reasoning.encrypted_content',
  'message.output_text.logprobs',
]

function checkInclude(include: unknown, model: string): void {
  if (!Array.isArray(include)) return
  include.forEach((value, i) => {
    oneOf(value, INCLUDABLE, `include[${i}]`)
  })
  if (include.includes('reasoning.encrypted_content') && !reasons(model))
    refuse('Encrypted content is not supported with this model.', 'include')
  if (include.includes('message.output_text.logprobs') && reasons(model))
    refuse('logprobs are not supported with reasoning models.', 'include')
}

/**
 * The first generation has `minimal`, only by key, and no `none`. Every later generation has `none` and no `minimal`.
 */
function checkEffort(effort: unknown, model: string, { chatgpt }: Asked): void {
  if (effort === undefined || effort === null) return
  const first = /^gpt-5(-mini|-nano)?(-\d{4}.*)?$/.test(model)
  const known = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']
  const refused = first ? ['none', 'xhigh', 'max'] : ['minimal']
  if (chatgpt) refused.push('minimal')
  if (/^(o\d|gpt-6(\.2)?-astra|gpt-6\.[12]-sol|gpt-5\.1-codex)/.test(model)) refused.push('none')
  if (/^gpt-5\.\d-pro/.test(model)) refused.push('none', 'low')
  if (/^gpt-5\.\d-chat/.test(model)) refused.push('none', 'low', 'high', 'xhigh')
  if (/^gpt-5\.[2-5]/.test(model)) refused.push('max')
  if (known.includes(text(effort)) && !refused.includes(text(effort))) return
  const supported = known.filter((value) => !refused.includes(value))
  refuse(
    `Unsupported value: '${String(effort)}' is not supported with the '${model}' model. Supported values are: ${listed(supported)}.`,
    'reasoning.effort',
    'unsupported_value',
  )
}

const HOSTED = [
  'mcp',
  'file_search',
  'code_interpreter',
  'computer',
  'computer_use_preview',
  'shell',
  'apply_patch',
]
const BOTH = ['custom', 'namespace', 'tool_search', 'web_search', 'image_generation']

function checkTools(body: Json, asked: Asked): void {
  checkType(body.tools, 'an array of tools', 'tools')
  const tools = Array.isArray(body.tools) ? body.tools : []
  if (!asked.chatgpt && tools.length > 128) {
    refuse(
      `Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length ${tools.length} instead.`,
      'tools',
      'array_above_max_length',
    )
  }
  const names = new Set<string>()
  tools.forEach((tool, i) => {
    checkTool(isObject(tool) ? tool : {}, `tools[${i}]`, asked)
    if (tool.type !== 'function') return
    if (names.has(tool.name))
      refuse(`Duplicate function name: '${tool.name}'.`, `tools[${i}].name`, 'invalid_value')
    names.add(tool.name)
  })
  if (!asked.chatgpt && body.parallel_tool_calls !== undefined && tools.length === 0) {
    refuse(
      "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
      'parallel_tool_calls',
    )
  }
  checkToolChoice(body.tool_choice, tools.length, names)
}

const TOOL_FIELDS =
  'type name description parameters strict defer_loading output_schema allowed_callers async'.split(' ')

function checkTool(tool: Json, at: string, { chatgpt }: Asked): void {
  const { type, name, parameters, strict } = tool
  if (type !== 'function') {
    if (chatgpt ? BOTH.includes(text(type)) : [...BOTH, ...HOSTED].includes(text(type))) return
    refuse(`Unsupported tool type: ${String(type)}`)
  }
  if (name === undefined) {
    refuse(`Missing required parameter: '${at}.name'.`, `${at}.name`, 'missing_required_parameter')
  }
  onlyFields(tool, TOOL_FIELDS, at)
  checkName(name, `${at}.name`)
  const broken =
    schemaFault(parameters, true) ?? (strict === false || strict === null ? null : strictFault(parameters))
  if (broken === null) return
  refuse(
    `Invalid schema for function '${text(name)}': ${broken}`,
    `${at}.parameters`,
    'invalid_function_parameters',
  )
}

function schemaFault(schema: unknown, root = false): string | null {
  if (typeof schema === 'boolean' && !root) return null
  if (!isObject(schema)) return `schema must be a JSON Schema of 'type: "object"', got 'type: "None"'.`
  if (root && schema.type !== 'object') {
    return `schema must be a JSON Schema of 'type: "object"', got 'type: "${String(schema.type ?? 'None')}"'.`
  }
  const combined = ['oneOf', 'anyOf', 'allOf', 'enum', 'not'].filter((word) => root && word in schema)
  if (combined.length > 0) {
    return `schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.`
  }
  if ([schema.type].flat().includes('object') && !isObject(schema.properties))
    return 'object schema missing properties.'
  // This also holds for an array among several types (campfirein/byterover-cli#42).
  if ([schema.type].flat().includes('array') && schema.items === undefined)
    return 'array schema missing items.'
  // nicobailon/pi-interactive-shell#69, BerriAI/litellm#40358
  const pattern = text(schema.pattern)
  if (/\(\?<?[=!]/.test(pattern)) return `regex lookaround is not supported. Found at ${pattern}.`
  if (/\\p\{/i.test(pattern)) return `'${pattern}' is not a 'regex'.`
  for (const child of schemasIn(schema)) {
    const fault = schemaFault(child)
    if (fault) return fault
  }
  return null
}

function schemasIn(schema: Json): unknown[] {
  const named = ['properties', 'patternProperties', '$defs', 'definitions'].map((word) => schema[word])
  const listed = ['anyOf', 'oneOf', 'allOf', 'prefixItems'].map((word) => schema[word])
  const single = [schema.items, schema.additionalProperties, schema.not]
  return [
    ...named.filter(isObject).flatMap(Object.values),
    ...listed.filter(Array.isArray).flat(),
    ...single.filter((child) => child !== undefined),
  ]
}

const NOT_STRICT = 'patternProperties if then else not prefixItems contains allOf oneOf'.split(' ')

function strictFault(schema: unknown): string | null {
  if (!isObject(schema)) return null
  const loose = NOT_STRICT.find((keyword) => keyword in schema)
  if (loose) return `'${loose}' is not permitted.`
  const properties = isObject(schema.properties) ? schema.properties : {}
  if (schema.type === 'object') {
    if (schema.additionalProperties !== false) {
      return "'additionalProperties' is required to be supplied and to be false."
    }
    const required = Array.isArray(schema.required) ? schema.required : []
    const missing = Object.keys(properties).find((name) => !required.includes(name))
    if (missing !== undefined) {
      return `'required' is required to be supplied and to be an array including every key in properties. Missing '${missing}'.`
    }
  }
  for (const child of [schema.items, ...Object.values(properties)]) {
    const fault = strictFault(child)
    if (fault) return fault
  }
  return null
}

function checkToolChoice(choice: unknown, count: number, names: ReadonlySet<string>): void {
  if (choice === undefined || choice === 'auto' || choice === 'none') return
  const kind = isObject(choice) ? text(choice.type) : text(choice)
  if (count === 0) {
    refuse(`Tool choice '${kind}' must be specified with 'tools' parameter.`, 'tool_choice', 'invalid_value')
  }
  if (choice === 'required') return
  if (kind === 'function' && isObject(choice) && names.has(text(choice.name))) return
  if (['custom', 'allowed_tools', 'mcp'].includes(kind)) return
  refuse(`Tool choice '${kind}' not found in 'tools' parameter.`, 'tool_choice', 'invalid_value')
}
