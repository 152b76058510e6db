/**
 * Repairs a server's tool list, tool by tool: a malformed tool is repaired or left out with a reason. The SDK throws a
 * whole list away for one bad entry, so it sees the list only after that.
 */
import { canonicalJson, isRecord, isWithin, sha256 } from '../chat/json.ts'
import { once } from '../chat/once.ts'
import type { JsonSchema } from '../provider.ts'
import { cutUtf8 } from '../text.ts'
import { inSlices } from '../within.ts'
import type { McpAnnotations, McpTool, ToolList } from './contract.ts'

const MAX_TOOLS = 1_000
/** Entries looked at, good or bad: a hostile server can send a million of them in one page. */
export const MAX_ENTRIES = 2_000
/**
 * Most bytes of one list, over all its pages: a session offers a quarter of it (src/tools/registry.ts), unless the
 * connector's lists choose. Reading a megabyte takes a tenth of a second, and a session may bind a hundred servers.
 */
export const MAX_LIST_BYTES = 2 * 1024 * 1024
/** No URL of ours could hold a longer name: nobody could switch the tool off, accept it or read about it. */
const MAX_NAME = 400
const LONG_NAME = `its name has more than ${MAX_NAME} characters`
/** The largest real definition known is 76 kB (brave_place_search). */
const MAX_TOOL_BYTES = 256 * 1024
const MAX_DEPTH = 64
const BEYOND = `the server lists more than ${MAX_TOOLS} tools, or ${MAX_LIST_BYTES} bytes of them; this one is beyond`

/** The tools that can be offered, and those that cannot. */
export type RepairedTools = Pick<ToolList, 'tools' | 'left_out'>

/** Reads the `tools` of one or more pages. Names come out unique, schemas with `type: 'object'` at the root. */
export function repairTools(entries: readonly unknown[]): RepairedTools {
  const tools = new Map<string, McpTool>()
  const leftOut = new Map<string, string>()
  let bytes = 0
  let isFull = false
  for (const entry of entries.slice(0, MAX_ENTRIES)) {
    const name = nameOf(entry)
    if (name === undefined || !isRecord(entry) || tools.has(name)) continue
    const repaired: Repaired = isFull ? BEYOND : name === entry.name ? repairTool(entry) : LONG_NAME
    if (typeof repaired === 'string') {
      leftOut.set(name, repaired)
      continue
    }
    isFull = tools.size >= MAX_TOOLS || bytes + repaired.size > MAX_LIST_BYTES
    if (isFull) leftOut.set(name, BEYOND)
    else tools.set(name, repaired.tool)
    bytes += repaired.size
  }
  // Of several entries with one name the first sound one is the tool.
  const gone = [...leftOut].filter(([name]) => !tools.has(name))
  return {
    tools: [...tools.values()],
    left_out: gone.map(([tool, why]) => ({ tool, problem: `left out: ${why}` })),
  }
}

/** The beginning of a name that is too long; undefined if there is none that can be stored. */
function nameOf(entry: unknown): string | undefined {
  if (!isRecord(entry) || typeof entry.name !== 'string') return undefined
  const { name } = entry
  if (name === '' || name.includes('\0') || !name.isWellFormed()) return undefined
  return name.length <= MAX_NAME ? name : `${cutUtf8(name, 100)}…`
}

/** A tool and the length of its JSON, or why it cannot be offered */
type Repaired = { tool: McpTool; size: number } | string

/**
 * Drops malformed parts that the tool can do without. Once: a list is read as its pages come and again as a whole, and
 * megabytes of it would hold up everybody twice.
 */
const repairTool = once((entry: Record<string, unknown>): Repaired => {
  // Baton does not speak tasks (2025-11-25, experimental), and such a tool answers no other call.
  if (isRecord(entry.execution) && entry.execution.taskSupport === 'required') return 'it only runs as a task'
  if (isForAppAlone(entry._meta)) return "it is for the server's own user interface, not for a model"
  const tooLarge = `its definition is larger than ${MAX_TOOL_BYTES} bytes`
  // Megabytes are neither walked nor written only to find that they are too many.
  if (!isWithin(entry, { bytes: MAX_TOOL_BYTES })) return tooLarge
  if (!isWithin(entry, { depth: MAX_DEPTH }))
    return `its definition is nested more than ${MAX_DEPTH} levels deep`
  if (JSON.stringify(entry).length > MAX_TOOL_BYTES) return tooLarge
  const inputSchema = repairInputSchema(entry.inputSchema)
  if (typeof inputSchema === 'string') return inputSchema
  const { name, title, description } = entry
  const tool: McpTool = {
    name: String(name),
    ...(typeof title === 'string' ? { title } : {}),
    ...(typeof description === 'string' ? { description } : {}),
    inputSchema,
    ...(isRecord(entry.annotations) ? { annotations: repairAnnotations(entry.annotations) } : {}),
  }
  return { tool, size: JSON.stringify(tool).length }
})

/** MCP Apps: such a tool serves the pages that a host shows, as by waiting for what a person does there. */
function isForAppAlone(meta: unknown): boolean {
  const ui = isRecord(meta) && isRecord(meta.ui) ? meta.ui : {}
  // An empty list counts as none: everybody may call the tool.
  return Array.isArray(ui.visibility) && ui.visibility.includes('app') && !ui.visibility.includes('model')
}

/** The schema with an object root, or why there can be none. */
function repairInputSchema(schema: unknown): JsonSchema | string {
  if (schema == null || schema === true) return { type: 'object', properties: {} }
  if (!isRecord(schema)) return 'its inputSchema is not a JSON Schema object'
  const { type } = schema
  const admitsObject =
    type === undefined || type === 'object' || (Array.isArray(type) && type.includes('object'))
  if (!admitsObject) return `its inputSchema describes ${JSON.stringify(type).slice(0, 100)}, not an object`
  const repaired: JsonSchema = { ...schema, type: 'object' }
  repairProperties(repaired)
  repairRequired(repaired)
  return repaired
}

/** A property without a usable schema takes any value. */
function repairProperties(schema: JsonSchema): void {
  const { properties } = schema
  if (properties === undefined) return
  if (!isRecord(properties)) {
    // An empty PHP array is `[]` in JSON (laravel-mcp-server#74).
    schema.properties = {}
    return
  }
  const bad = Object.keys(properties).filter(
    (key) => !isRecord(properties[key]) && typeof properties[key] !== 'boolean',
  )
  if (bad.length === 0) return
  schema.properties = { ...properties, ...Object.fromEntries(bad.map((key) => [key, {}])) }
}

function repairRequired(schema: JsonSchema): void {
  const { required } = schema
  if (required === undefined) return
  const names = Array.isArray(required) ? required.filter((name) => typeof name === 'string') : []
  if (Array.isArray(required) && names.length === required.length) return
  if (names.length > 0) schema.required = names
  else delete schema.required
}

const HINTS = ['readOnlyHint', 'destructiveHint', 'idempotentHint', 'openWorldHint'] as const

function repairAnnotations(raw: Record<string, unknown>): McpAnnotations {
  const annotations: McpAnnotations = {}
  for (const hint of HINTS) {
    const value = raw[hint]
    if (typeof value === 'boolean') annotations[hint] = value
  }
  return annotations
}

/**
 * SHA-256 over the canonical JSON (sorted by name, keys sorted) of the tools and of those left out, so that order and
 * spelling do not count.
 */
export async function hashTools({ tools, left_out }: RepairedTools): Promise<string> {
  const sorted = [...tools].sort((a, b) => (a.name < b.name ? -1 : 1))
  const problems = [...left_out].sort((a, b) => (a.tool < b.tool ? -1 : 1))
  const texts = await inSlices<object, string>([...sorted, ...problems], canonicalJson)
  return sha256(`[${texts.join(',')}]`)
}
