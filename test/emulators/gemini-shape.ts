/**
 * The proto-JSON side of Gemini's emulator (wire/gemini.md 3.1, 4.2, 5.1). It takes every field that the server knows,
 * in either spelling but not in both. Any other name is a 400 in the server's words. It returns the body in camelCase,
 * with free-form values untouched. It is written from the wire page, not from the adapter.
 */

import { hasLoneSurrogate } from './http.ts'
import { isObject, type Json } from './json.ts'

/** Thrown for a request that the server refuses; `reason` becomes its ErrorInfo. */
export class Refusal extends Error {
  readonly status: number
  readonly code: string
  readonly reason: string | undefined

  constructor(status: number, code: string, message: string, reason?: string) {
    super(message)
    this.status = status
    this.code = code
    this.reason = reason
  }
}

export const invalid = (message: string) => new Refusal(400, 'INVALID_ARGUMENT', message)

type Kind = Scalar | { list: Kind } | { map: Kind } | { oneOf: readonly string[] } | Message
type Scalar = 'string' | 'bytes' | 'number' | 'integer' | 'boolean' | 'struct' | 'value'
interface Message {
  message: string
  /** A function, since schemas hold schemas. */
  fields: () => Readonly<Record<string, Kind>>
}

const list = (kind: Kind): Kind => ({ list: kind })
const message = (name: string, fields: () => Readonly<Record<string, Kind>>): Message => ({
  message: name,
  fields,
})

const BLOB = message('Blob', () => ({ mimeType: 'string', data: 'bytes', displayName: 'string' }))
const FILE = message('FileData', () => ({ mimeType: 'string', fileUri: 'string', displayName: 'string' }))

const PART = message('Part', () => ({
  text: 'string',
  thought: 'boolean',
  thoughtSignature: 'bytes',
  functionCall: message('FunctionCall', () => ({ name: 'string', args: 'struct', id: 'string' })),
  functionResponse: message('FunctionResponse', () => ({
    name: 'string',
    id: 'string',
    response: 'struct',
    willContinue: 'boolean',
    scheduling: 'string',
    parts: list(message('FunctionResponsePart', () => ({ inlineData: BLOB, fileData: FILE }))),
  })),
  inlineData: BLOB,
  fileData: FILE,
  executableCode: message('ExecutableCode', () => ({ language: 'string', code: 'string' })),
  codeExecutionResult: message('CodeExecutionResult', () => ({ outcome: 'string', output: 'string' })),
  videoMetadata: 'struct',
  mediaResolution: 'struct',
  partMetadata: 'struct',
}))

const CONTENT = message('Content', () => ({ role: 'string', parts: list(PART) }))

const TYPES = ['STRING', 'NUMBER', 'INTEGER', 'BOOLEAN', 'ARRAY', 'OBJECT', 'NULL'].flatMap((name) => [
  name,
  name.toLowerCase(),
])

/** The OpenAPI subset of `parameters`; its keys are proto fields, so unknown ones are refused (5.1). */
const SCHEMA: Message = message('Schema', () => ({
  type: { oneOf: TYPES },
  format: 'string',
  title: 'string',
  description: 'string',
  nullable: 'boolean',
  enum: list('string'),
  items: SCHEMA,
  minItems: 'integer',
  maxItems: 'integer',
  // Keys of a map, not fields: any property name is known, and none is respelled.
  properties: { map: SCHEMA },
  required: list('string'),
  propertyOrdering: list('string'),
  minProperties: 'integer',
  maxProperties: 'integer',
  minLength: 'integer',
  maxLength: 'integer',
  pattern: 'string',
  example: 'value',
  anyOf: list(SCHEMA),
  default: 'value',
  minimum: 'number',
  maximum: 'number',
}))

const TOOL = message('Tool', () => ({
  functionDeclarations: list(
    message('FunctionDeclaration', () => ({
      name: 'string',
      description: 'string',
      parameters: SCHEMA,
      parametersJsonSchema: 'value',
      response: SCHEMA,
      responseJsonSchema: 'value',
      behavior: 'string',
    })),
  ),
  googleSearch: 'struct',
  urlContext: 'struct',
  codeExecution: 'struct',
}))

const TOOL_CONFIG = message('ToolConfig', () => ({
  functionCallingConfig: message('FunctionCallingConfig', () => ({
    mode: { oneOf: ['MODE_UNSPECIFIED', 'AUTO', 'ANY', 'NONE', 'VALIDATED'] },
    allowedFunctionNames: list('string'),
  })),
  retrievalConfig: 'struct',
  includeServerSideToolInvocations: 'boolean',
}))

const GENERATION_CONFIG = message('GenerationConfig', () => ({
  temperature: 'number',
  topP: 'number',
  topK: 'number',
  candidateCount: 'integer',
  maxOutputTokens: 'integer',
  stopSequences: list('string'),
  responseLogprobs: 'boolean',
  logprobs: 'integer',
  presencePenalty: 'number',
  frequencyPenalty: 'number',
  seed: 'integer',
  responseMimeType: 'string',
  responseSchema: SCHEMA,
  responseJsonSchema: 'value',
  responseModalities: list('string'),
  mediaResolution: 'string',
  speechConfig: 'struct',
  thinkingConfig: message('ThinkingConfig', () => ({
    includeThoughts: 'boolean',
    thinkingBudget: 'integer',
    thinkingLevel: { oneOf: ['THINKING_LEVEL_UNSPECIFIED', 'MINIMAL', 'LOW', 'MEDIUM', 'HIGH', 'XHIGH'] },
  })),
}))

const SHARED = {
  contents: list(CONTENT),
  systemInstruction: CONTENT,
  tools: list(TOOL),
  toolConfig: TOOL_CONFIG,
  generationConfig: GENERATION_CONFIG,
  safetySettings: list('struct'),
  cachedContent: 'string',
} as const

export const PUBLIC_REQUEST = message('GenerateContentRequest', () => ({
  ...SHARED,
  model: 'string',
  store: 'boolean',
}))

export const CODE_ASSIST_REQUEST = message('CodeAssistRequest', () => ({
  model: 'string',
  project: 'string',
  userPromptId: 'string',
  // Other clients send this field, and it is harmless (3.1).
  userAgent: 'string',
  requestId: 'string',
  enabledCreditTypes: list('string'),
  request: message('VertexRequest', () => ({ ...SHARED, sessionId: 'string', labels: 'struct' })),
}))

/** Checks a whole body. Throws a Refusal. */
export function readBody(body: unknown, shape: Message): Json {
  if (!isObject(body) || hasLoneSurrogate(body)) {
    throw invalid('Invalid JSON payload received. Unexpected token.')
  }
  return readMessage(body, shape, '')
}

const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
const camel = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase())

function readMessage(value: Json, shape: Message, path: string): Json {
  const fields = shape.fields()
  const read: Json = {}
  for (const [key, member] of Object.entries(value)) {
    const name = camel(key)
    const kind = key === name || key === snake(name) ? fields[name] : undefined
    if (kind === undefined) {
      const where = path === '' ? '' : ` at '${path}'`
      throw invalid(`Invalid JSON payload received. Unknown name "${key}"${where}: Cannot find field.`)
    }
    const at = path === '' ? snake(name) : `${path}.${snake(name)}`
    const given = readKind(member, kind, at)
    if (read[name] !== undefined && !mayRepeat(name, read[name], given)) {
      throw invalid(`Invalid JSON payload received. Field '${at}' is set in two spellings.`)
    }
    read[name] = given
  }
  return read
}

/** The one field that may be sent in both spellings, if both have the same value. */
const mayRepeat = (name: string, one: unknown, other: unknown): boolean =>
  name === 'functionDeclarations' && JSON.stringify(one) === JSON.stringify(other)

function readKind(value: unknown, kind: Kind, path: string): unknown {
  // Proto JSON: null is an absent field.
  if (value === null) return undefined
  if (typeof kind === 'string') return readScalar(value, kind, path)
  if ('list' in kind) {
    if (!Array.isArray(value)) throw wrong(path, 'repeated', value)
    return value.map((item, i) => readKind(item, kind.list, `${path}[${i}]`))
  }
  if ('map' in kind) {
    if (!isObject(value)) throw wrong(path, 'map', value)
    const entries = Object.entries(value)
    return Object.fromEntries(
      entries.map(([key, member]) => [key, readKind(member, kind.map, `${path}[${key}]`)]),
    )
  }
  if (Array.isArray(value)) {
    throw invalid(
      `Invalid JSON payload received. Unknown name "${path}": Proto field is not repeating, cannot start list.`,
    )
  }
  if ('oneOf' in kind) {
    if (typeof value === 'string' && kind.oneOf.includes(value)) return value
    throw wrong(path, 'TYPE_ENUM', value)
  }
  if (!isObject(value)) throw wrong(path, kind.message, value)
  return readMessage(value, kind, path)
}

const wrong = (path: string, type: string, value: unknown) =>
  invalid(`Invalid value at '${path}' (${type}), ${JSON.stringify(value)}`)

/**
 * Base64 in either alphabet, padded or not. One character after the last four encodes nothing. No pattern has groups to go
 * back to: over the megabytes of a picture they would overflow the stack.
 */
function isBase64(text: string): boolean {
  const data = text.replace(/={1,2}$/, '')
  const beyond = data.length % 4
  return /^[\w+/-]*$/.test(data) && (beyond > 1 || (beyond === 0 && data === text))
}

const SCALARS: Record<Scalar, { type: string; fits(value: unknown): boolean }> = {
  string: { type: 'TYPE_STRING', fits: (value) => typeof value === 'string' },
  bytes: { type: 'TYPE_BYTES', fits: (value) => typeof value === 'string' && isBase64(value) },
  number: { type: 'TYPE_FLOAT', fits: (value) => typeof value === 'number' },
  integer: {
    type: 'TYPE_INT32',
    fits: (value) => Number.isInteger(value) || (typeof value === 'string' && /^-?\d+$/.test(value)),
  },
  boolean: { type: 'TYPE_BOOL', fits: (value) => typeof value === 'boolean' },
  struct: { type: 'type.googleapis.com/google.protobuf.Struct', fits: isObject },
  value: { type: 'type.googleapis.com/google.protobuf.Value', fits: () => true },
}

function readScalar(value: unknown, kind: Scalar, path: string): unknown {
  if (Array.isArray(value) && kind !== 'value') {
    throw invalid(
      `Invalid JSON payload received. Unknown name "${path}": Proto field is not repeating, cannot start list.`,
    )
  }
  if (!SCALARS[kind].fits(value)) throw wrong(path, SCALARS[kind].type, value)
  return value
}
