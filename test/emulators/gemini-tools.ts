/** What Gemini's server refuses in a request's tools (wire/gemini.md 5). Independent of the adapter. */
import type { Traits } from './gemini-models.ts'
import { invalid } from './gemini-shape.ts'
import { isObject, type Json, list, number, object, string } from './json.ts'

interface Declaration {
  name?: string
  parameters?: Json
  parametersJsonSchema?: unknown
}
export interface Tool {
  functionDeclarations?: Declaration[]
  googleSearch?: Json
  urlContext?: Json
  codeExecution?: Json
}
export interface ToolConfig {
  functionCallingConfig?: { mode?: string; allowedFunctionNames?: string[] }
  includeServerSideToolInvocations?: boolean
}
interface Tools {
  tools?: Tool[]
  toolConfig?: ToolConfig
}

export const NAME_RULE =
  'Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.) or dashes (-), with a maximum length of 64.'

export const NAME = /^[A-Za-z_][A-Za-z0-9_.-]{0,63}$/

export const declarationsOf = ({ tools = [] }: Tools): Declaration[] =>
  tools.flatMap((tool) => tool.functionDeclarations ?? [])

export function checkTools(request: Tools, traits: Traits): void {
  const declarations = declarationsOf(request)
  if (declarations.length > 512) throw invalid('At most 512 function declarations can be specified.')
  checkServerTools(request, declarations.length, traits)
  const names = new Set<string>()
  for (const [i, { name = '', parameters, parametersJsonSchema: schema }] of declarations.entries()) {
    const at = `GenerateContentRequest.tools[0].function_declarations[${i}]`
    if (!NAME.test(name)) throw invalid(`* ${at}.name: ${NAME_RULE}\n`)
    if (names.has(name)) throw invalid(`Duplicate function declaration found: ${name}`)
    names.add(name)
    if (parameters !== undefined && schema !== undefined) {
      throw invalid(`* ${at}: parameters and parameters_json_schema are mutually exclusive.\n`)
    }
    if (parameters !== undefined) checkParameters(parameters, `* ${at}.parameters`)
    if (schema === undefined) continue
    if (!(isObject(schema) && schema.type === 'object')) {
      throw invalid(`* ${at}.parameters_json_schema: schema must describe an object.\n`)
    }
    checkJsonSchema(schema, `* ${at}.parameters_json_schema`)
  }
  const { mode = 'AUTO', allowedFunctionNames = [] } = request.toolConfig?.functionCallingConfig ?? {}
  if (allowedFunctionNames.length > 0 && mode !== 'ANY' && mode !== 'VALIDATED') {
    throw invalid('Allowed function names should only be set when mode is ANY or VALIDATED.')
  }
  if (mode === 'ANY' && names.size === 0)
    throw invalid('Function calling mode ANY needs a function declaration.')
  const stranger = allowedFunctionNames.find((name) => !names.has(name))
  if (stranger) throw invalid(`Allowed function name ${stranger} is not declared.`)
}

/** Google's own tools beside functions: only where the request asks to be told of their calls. */
function checkServerTools({ tools = [], toolConfig }: Tools, functions: number, { signed }: Traits): void {
  const has = tools.some((tool) => tool.googleSearch || tool.urlContext || tool.codeExecution)
  if (!has || functions === 0) return
  if (!signed) throw invalid('Tool use with function calling is unsupported by the model.')
  if (toolConfig?.includeServerSideToolInvocations === true) return
  throw invalid(
    'Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function calling.',
  )
}

/** The OpenAPI subset; gemini-shape.ts has looked at its fields. */
function checkParameters(schema: Json, at: string): void {
  const type = string(schema.type)?.toUpperCase()
  const properties = object(schema.properties)
  if (type === undefined && schema.anyOf === undefined)
    throw invalid(`${at}: schema didn't specify the schema type field\n`)
  if (type !== undefined && schema.anyOf !== undefined)
    throw invalid(`${at}.any_of: when using any_of, it must be the only field set\n`)
  if (type === 'ARRAY' && schema.items === undefined) throw invalid(`${at}.items: missing field.\n`)
  if (schema.enum !== undefined && type !== 'STRING')
    throw invalid(`${at}.enum: only allowed for STRING type\n`)
  const blank = list(schema.enum).indexOf('')
  if (blank >= 0) throw invalid(`${at}.enum[${blank}]: cannot be empty\n`)
  if (type === 'STRING' && !/^(enum|date-time)?$/.test(string(schema.format) ?? ''))
    throw invalid(`${at}.format: only 'enum' and 'date-time' are supported for STRING type\n`)
  const unknown = list(schema.required).findIndex((key) => !Object.hasOwn(properties, String(key)))
  if (unknown >= 0) throw invalid(`${at}.required[${unknown}]: property is not defined\n`)
  for (const [key, sub] of Object.entries(properties))
    checkParameters(object(sub), `${at}.properties[${key}]`)
  if (schema.items !== undefined) checkParameters(object(schema.items), `${at}.items`)
  for (const [i, sub] of list(schema.anyOf).entries()) checkParameters(object(sub), `${at}.any_of[${i}]`)
}

/**
 * Of a JSON Schema unknown keywords are ignored, but beside a `$ref` there may be only names with `$`, and the lengths of
 * a tool's lists may not sum up to more than some 960 (googleapis/python-genai#2170).
 */
function checkJsonSchema(schema: Json, at: string): void {
  let items = 0
  for (const sub of subschemas(schema)) {
    if (typeof sub.$ref === 'string' && Object.keys(sub).some((key) => !key.startsWith('$')))
      throw invalid(`${at}: $ref cannot have other keywords beside it.\n`)
    items += number(sub.maxItems) ?? 0
  }
  if (items > 960) throw invalid('Request contains an invalid argument.')
}

const MAPS = ['properties', '$defs']
const HOLDERS = ['items', 'prefixItems', 'anyOf', 'oneOf', 'additionalProperties']

/** What a property or a definition is called is no keyword. */
function* subschemas(schema: Json): Generator<Json> {
  yield schema
  const mapped = MAPS.flatMap((key) => Object.values(object(schema[key])))
  const held = HOLDERS.flatMap((key) => schema[key])
  for (const sub of [...mapped, ...held].filter(isObject)) yield* subschemas(sub)
}
