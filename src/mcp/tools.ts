/**
 * A server's tool list, tool by tool: what is malformed is mended or left out with a reason. The SDK
 * throws a whole list away for one bad entry (mend first, then let it look).
 */
import { canonicalJson, isRecord, sha256 } from '../chat/json.ts'
import type { JsonSchema, McpAnnotations, McpTool, ToolProblem } from './contract.ts'

const MAX_TOOLS = 1_000
/** Entries looked at, good or bad: a hostile server can send a million of them in one page. */
export const MAX_ENTRIES = 2_000
const MAX_LIST_BYTES = 8 * 1024 * 1024
const MAX_NAME = 400
/** The largest real definition known is 76 kB (brave_place_search). */
const MAX_TOOL_BYTES = 256 * 1024
const MAX_DEPTH = 64

/** The tools that can be offered, and all that was mended or left out. */
export interface MendedTools {
  tools: McpTool[]
  repaired: ToolProblem[]
}

/** Reads the `tools` of one or more pages. Names come out unique, schemas with `type: 'object'` at the root. */
export function mendTools(entries: readonly unknown[]): MendedTools {
  const tools = new Map<string, McpTool>()
  const repaired: ToolProblem[] = []
  const leftOut = new Map<string, ToolProblem>()
  let bytes = 0
  for (const [index, entry] of entries.slice(0, MAX_ENTRIES).entries()) {
    const problems: string[] = []
    const tool = mendTool(entry, problems)
    const size = tool ? JSON.stringify(tool).length : 0
    if (tool && tools.has(tool.name)) problems.push('left out: another tool of this server has the same name')
    else if (tool && (tools.size >= MAX_TOOLS || bytes + size > MAX_LIST_BYTES))
      problems.push(`left out: the list is longer than ${MAX_TOOLS} tools or ${MAX_LIST_BYTES} bytes`)
    else if (tool) {
      tools.set(tool.name, tool)
      bytes += size
    }
    const named = nameOf(entry)
    const name = named?.slice(0, MAX_NAME).toWellFormed().replaceAll('\0', '\ufffd') ?? `#${index + 1}`
    const found = problems.map((problem): ToolProblem => ({ tool: name, problem }))
    repaired.push(...found)
    const reason = found.at(-1)
    if (tool === null && name === named && reason) leftOut.set(name, reason)
  }
  // Of entries with one name a sound one is the tool, wherever it stands.
  for (const [name, reason] of leftOut) if (!tools.has(name)) reason.left_out = true
  if (entries.length > MAX_ENTRIES)
    repaired.push({ tool: '*', problem: `left out: all entries after the first ${MAX_ENTRIES}` })
  return { tools: [...tools.values()], repaired }
}

const nameOf = (entry: unknown): string | undefined =>
  isRecord(entry) && typeof entry.name === 'string' && entry.name !== '' ? entry.name : undefined

/** Null: the tool cannot be offered; the reason is the last of `problems`. */
function mendTool(entry: unknown, problems: string[]): McpTool | null {
  const leaveOut = (reason: string): null => {
    problems.push(`left out: ${reason}`)
    return null
  }
  const name = nameOf(entry)
  if (!isRecord(entry) || name === undefined) return leaveOut('it has no name')
  if (name.length > MAX_NAME) return leaveOut(`its name is longer than ${MAX_NAME} characters`)
  // No URL of ours could name it, and so nobody could switch it off or accept it.
  if (name.includes('\0') || !name.isWellFormed()) return leaveOut('its name holds NUL or half a character')
  // Tasks (2025-11-25, experimental) are not spoken here, and such a tool answers nothing else.
  if (isRecord(entry.execution) && entry.execution.taskSupport === 'required')
    return leaveOut('it only runs as a task')
  if (depthOf(entry) > MAX_DEPTH)
    return leaveOut(`its definition is nested more than ${MAX_DEPTH} levels deep`)
  if (JSON.stringify(entry).length > MAX_TOOL_BYTES)
    return leaveOut(`its definition is larger than ${MAX_TOOL_BYTES} bytes`)
  const inputSchema = mendInputSchema(entry.inputSchema, problems)
  if (typeof inputSchema === 'string') return leaveOut(inputSchema)
  const text = (field: 'title' | 'description'): string | undefined => {
    const value = entry[field]
    if (value != null && typeof value !== 'string') problems.push(`${field} dropped: it is no text`)
    return typeof value === 'string' ? value : undefined
  }
  const [title, description] = [text('title'), text('description')]
  const outputSchema = mendOutputSchema(entry.outputSchema, problems)
  const annotations = mendAnnotations(entry.annotations, problems)
  return {
    name,
    ...(title === undefined ? {} : { title }),
    ...(description === undefined ? {} : { description }),
    inputSchema,
    ...(outputSchema ? { outputSchema } : {}),
    ...(annotations ? { annotations } : {}),
  }
}

/** The schema with an object root, or why there can be none. */
function mendInputSchema(schema: unknown, problems: string[]): JsonSchema | string {
  if (schema == null || schema === true) {
    problems.push('inputSchema set to an object without properties: there was none')
    return { type: 'object', properties: {} }
  }
  if (!isRecord(schema)) return 'its inputSchema is no JSON Schema object'
  const { type } = schema
  const admitsObject =
    type === undefined || type === 'object' || (Array.isArray(type) && type.includes('object'))
  if (!admitsObject) return `its inputSchema describes ${JSON.stringify(type).slice(0, 100)}, not an object`
  if (type !== 'object') problems.push('inputSchema: type set to "object"')
  const mended: JsonSchema = { ...schema, type: 'object' }
  mendProperties(mended, problems)
  mendRequired(mended, problems)
  return mended
}

function mendProperties(schema: JsonSchema, problems: string[]): void {
  const { properties } = schema
  if (properties === undefined) return
  if (!isRecord(properties)) {
    // An empty PHP array is `[]` in JSON (laravel-mcp-server#74).
    problems.push('inputSchema: properties dropped, they were no object')
    schema.properties = {}
    return
  }
  const bad = Object.keys(properties).filter(
    (key) => !isRecord(properties[key]) && typeof properties[key] !== 'boolean',
  )
  if (bad.length === 0) return
  problems.push(
    `inputSchema: no usable schema for ${bad.map((key) => JSON.stringify(key)).join(', ')}, any value allowed`,
  )
  schema.properties = { ...properties, ...Object.fromEntries(bad.map((key) => [key, {}])) }
}

function mendRequired(schema: JsonSchema, problems: string[]): void {
  const { required } = schema
  if (required === undefined) return
  const names = Array.isArray(required) ? required.filter((name) => typeof name === 'string') : []
  if (Array.isArray(required) && names.length === required.length) return
  problems.push('inputSchema: required mended, it was no list of names')
  if (names.length > 0) schema.required = names
  else delete schema.required
}

function mendOutputSchema(schema: unknown, problems: string[]): JsonSchema | undefined {
  if (schema == null) return undefined
  if (isRecord(schema)) return schema
  problems.push('outputSchema dropped: it is no JSON Schema object')
  return undefined
}

const HINTS = ['readOnlyHint', 'destructiveHint', 'idempotentHint', 'openWorldHint'] as const

function mendAnnotations(raw: unknown, problems: string[]): McpAnnotations | undefined {
  if (!isRecord(raw)) {
    if (raw != null) problems.push('annotations dropped: they are no object')
    return undefined
  }
  const annotations: McpAnnotations = {}
  for (const hint of HINTS) {
    const value = raw[hint]
    if (typeof value === 'boolean') annotations[hint] = value
    else if (value != null) problems.push(`${hint} dropped: it is no boolean`)
  }
  return annotations
}

/**
 * SHA-256 over the canonical JSON (sorted by name, keys sorted) of the tools and of what was left out, so order
 * and spelling do not count.
 */
export function hashTools(tools: readonly McpTool[], leftOut: readonly ToolProblem[] = []): string {
  const sorted = [...tools].sort((a, b) => (a.name < b.name ? -1 : 1))
  const problems = [...leftOut].sort((a, b) => (a.tool < b.tool ? -1 : 1))
  return sha256(canonicalJson([...sorted, ...problems]))
}

/** The problems that cost a tool its place. */
export const leftOutOf = ({ repaired }: Pick<MendedTools, 'repaired'>): ToolProblem[] =>
  repaired.filter(({ left_out }) => left_out)

/** Nesting depth, counted no further than needed: a hostile definition must not exhaust the stack. */
function depthOf(value: unknown, limit = MAX_DEPTH): number {
  if (typeof value !== 'object' || value === null) return 0
  if (limit === 0) return 1
  let deepest = 0
  for (const inner of Object.values(value)) deepest = Math.max(deepest, depthOf(inner, limit - 1))
  return deepest + 1
}
