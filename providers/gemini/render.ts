/**
 * A canonical request as the body of `generateContent`, which the public API takes as it is and Code Assist inside its
 * envelope (wire/gemini.md 3, 5, 8, 9).
 */
import { kept, once } from '../../src/chat/once.ts'
import type { ModelRequest, SchemaProfile, ToolDeclaration } from '../../src/provider.ts'
import { familyOf, isGemini3, mostOutput, thinkingConfig } from './capabilities.ts'
import { type Content, toContents } from './contents.ts'

/**
 * What Gemini reads of `parametersJsonSchema` (wire/gemini.md 5.1); it ignores other keywords. It reads `title`, too,
 * but takes the titles that pydantic writes for names of functions: 2.5 Flash then ends every call of such a tool with
 * MALFORMED_FUNCTION_CALL (googleapis/python-genai#1732, PrefectHQ/fastmcp#3860). It reads `maxItems`, too, but refuses
 * every request with a tool whose lists may have more than some 960 items together (googleapis/python-genai#2170). The
 * model gives an object without named properties as empty unless `additionalProperties` allows some
 * (livekit/agents#7312).
 */
export const SCHEMA: SchemaProfile = {
  // Gemini refuses cycles, and keywords next to a `$ref`.
  refs: false,
  openObjects: true,
  propertyPattern: /^[A-Za-z_][A-Za-z0-9_]{0,63}$/,
  takes: (keyword) => KEYWORDS.has(keyword),
}
const KEYWORDS = new Set([
  'type',
  'format',
  'description',
  'enum',
  'items',
  'prefixItems',
  'minItems',
  'minimum',
  'maximum',
  'anyOf',
  'oneOf',
  'properties',
  'additionalProperties',
  'required',
  'propertyOrdering',
])

interface FunctionDeclaration {
  name: string
  description: string
  parametersJsonSchema: Record<string, unknown>
}

/**
 * The `tools` member: one entry with every declaration, or none without tools. `bothSpellings`: the same list under
 * both spellings of the field (an architecture decision that overrules wire 3.1).
 */
export const declareTools = (tools: readonly ToolDeclaration[], bothSpellings: boolean): DeclaredTools[] =>
  tools.length === 0 ? [] : (bothSpellings ? twice : plain)(tools)

interface DeclaredTools {
  functionDeclarations: FunctionDeclaration[]
  function_declarations?: FunctionDeclaration[]
}
const declarations = (tools: readonly ToolDeclaration[]): FunctionDeclaration[] =>
  tools.map(({ name, description, parameters }) => ({
    name,
    description,
    parametersJsonSchema: parameters,
  }))
const plain = once((tools: readonly ToolDeclaration[]) =>
  kept([{ functionDeclarations: declarations(tools) }]),
)
const twice = once((tools: readonly ToolDeclaration[]) => {
  const functionDeclarations = declarations(tools)
  return kept([{ function_declarations: functionDeclarations, functionDeclarations }])
})

export function contentsOf({ model, messages, reported }: ModelRequest): Content[] {
  const gemini3 = isGemini3(model, reported)
  const ids = gemini3 && reported?.call_ids !== false
  return toContents(messages, {
    gemini3,
    ids,
    apart: reported?.results_apart !== false,
    calls: reported?.tools !== false,
    signedTexts: reported?.signed_texts === true,
  })
}

/** The body without envelope, and what had to be left out or changed. `bothSpellings` as for declareTools. */
export function renderBody(
  given: ModelRequest,
  bothSpellings: boolean,
): { body: Record<string, unknown>; notes: string[] } {
  const notes: string[] = []
  const { reported } = given
  const request = reported?.tools === false ? { ...given, tools: [] } : given
  if (request.tools.length < given.tools.length) notes.push('tools: left out, this model takes none')
  const system = [...request.options.system_blocks, request.instructions]
    .filter((text) => text.trim() !== '')
    .map((text) => ({ text: text.toWellFormed() }))
  const isApart = reported?.instructions !== false
  const tools = declareTools(request.tools, bothSpellings)
  const toolConfig = functionCallingConfig(request, notes)
  const generationConfig = generationConfigOf(request, notes)
  const contents = contentsOf(request)
  const body = {
    ...(system.length > 0 && isApart ? { systemInstruction: { role: 'user', parts: system } } : {}),
    contents: isApart ? contents : begunWith(system, contents),
    ...(tools.length > 0 ? { tools } : {}),
    ...(toolConfig ? { toolConfig: { functionCallingConfig: toolConfig } } : {}),
    ...(Object.keys(generationConfig).length > 0 ? { generationConfig } : {}),
  }
  return { body, notes }
}

/** The first content is always the user's. */
const begunWith = (words: readonly { text: string }[], contents: readonly Content[]): Content[] =>
  contents.map((content, i) => (i === 0 ? { ...content, parts: [...words, ...content.parts] } : content))

function generationConfigOf(request: ModelRequest, notes: string[]): Record<string, unknown> {
  const { temperature, top_p, max_output_tokens } = request.settings
  const config: Record<string, unknown> = {}
  const sampling = { temperature: ['temperature', temperature], top_p: ['topP', top_p] } as const
  const samples = familyOf(request.model).sampling && request.reported?.refused?.temperature === undefined
  for (const [name, [field, value]] of Object.entries(sampling)) {
    if (value === undefined) continue
    if (samples) config[field] = value
    else notes.push(`${name}: not accepted by this model`)
  }
  if (max_output_tokens !== undefined) {
    // "the supported range is from 1 (inclusive) to 65537 (exclusive)" (stackblitz-labs/bolt.diy#955)
    const most = mostOutput(request.model, request.reported) ?? max_output_tokens
    config.maxOutputTokens = Math.min(max_output_tokens, most)
    if (max_output_tokens > most)
      notes.push(`max_output_tokens: lowered to ${most}, the most that this model takes`)
  }
  const thinking = thinkingConfig(request, notes)
  if (thinking) config.thinkingConfig = thinking
  return config
}

/** AUTO is the server's default and left out: a session without a choice sends nothing. */
function functionCallingConfig(
  { settings: { tool_choice, parallel_tool_calls }, tools }: ModelRequest,
  notes: string[],
): { mode: string; allowedFunctionNames?: string[] } | null {
  if (parallel_tool_calls === false) notes.push('parallel_tool_calls: Gemini has no such setting')
  if (tool_choice === undefined || tool_choice === 'auto') return null
  if (tools.length === 0) {
    if (tool_choice !== 'none') notes.push('tool_choice: no tool is declared')
    return null
  }
  if (tool_choice === 'none') return { mode: 'NONE' }
  if (tool_choice === 'required') return { mode: 'ANY' }
  const tool = tools.find(({ canonical_name }) => canonical_name === tool_choice.name)
  if (tool) return { mode: 'ANY', allowedFunctionNames: [tool.name] }
  notes.push(`tool_choice: ${tool_choice.name} is not declared`)
  return null
}
