/** A tool as its server defines it: which parts of it count, its identity, and how it differs from the accepted one. */
import { canonicalJson, isRecord, sha256, stepOf } from '../chat/json.ts'
import { once } from '../chat/once.ts'
import type { McpTool } from '../mcp/contract.ts'
import { cutUtf8, spelledOut, visibleText } from '../text.ts'
import { normalise } from './schema/normalise.ts'

const DESCRIPTION_BYTES = 4096

/** Everything that the server says of the tool to a model. */
const comparedOf = ({ description, title, inputSchema, annotations = {} }: McpTool) => ({
  description: description ?? title ?? '',
  inputSchema,
  annotations,
})

/** A definition's identity, which pins and registries compare: where the tool was seen is no part of it. */
export function hashOf(tool: McpTool): string {
  const { description, inputSchema: schema, annotations } = comparedOf(tool)
  return sha256(canonicalJson({ name: tool.name, description, schema, annotations }))
}

/**
 * What Baton makes of a definition, wherever it is bound; `bytes`: how much the server wrote. A list's tools are the
 * same objects for as long as the door keeps the list, and sessions share lists.
 */
export const definitionOf = once((tool: McpTool) => {
  const description = visibleText(comparedOf(tool).description, DESCRIPTION_BYTES)
  const bytes = JSON.stringify(tool.inputSchema).length + description.length
  return { hash: hashOf(tool), description, bytes }
})

/** Made separately, and only for tools within the limits: for a list of megabytes it would take a minute. */
export const schemaOf = once((tool: McpTool) => normalise(tool.inputSchema))

/** One place where two definitions differ. A side that has nothing there is left out. */
export interface DefinitionChange {
  /** JSON Pointer (RFC 6901) into `{description, inputSchema, annotations}`, or the start of it if it is long */
  path: string
  before?: unknown
  after?: unknown
}

/** Most that is shown of one tool; a definition that was written anew differs everywhere. */
const MOST_CHANGES = 100
const MOST_BYTES = 4096

/**
 * The first hundred places that differ, in the definitions' own order, for the person who decides on them. Characters
 * that a reader would not see are written out, since they may be the whole change.
 */
export function definitionDiff(before: McpTool, after: McpTool): DefinitionChange[] {
  const changes: DefinitionChange[] = []
  compare('', comparedOf(before), comparedOf(after), changes)
  return changes
}

function compare(path: string, before: unknown, after: unknown, changes: DefinitionChange[]): void {
  if (changes.length >= MOST_CHANGES) return
  if (isRecord(before) && isRecord(after)) {
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
      const step = stepOf(spelledOut(key))
      compare(`${path}/${step}`, own(before, key), own(after, key), changes)
    }
    return
  }
  if (canonicalJson(before ?? null) === canonicalJson(after ?? null)) return
  changes.push({
    // A name of thousands of characters stands before each change below it.
    path: cut(path),
    ...(before === undefined ? {} : { before: shown(before) }),
    ...(after === undefined ? {} : { after: shown(after) }),
  })
}

/** Inherited members are no part of a definition: a property may be named `constructor`. */
const own = (record: Record<string, unknown>, key: string): unknown =>
  Object.hasOwn(record, key) ? record[key] : undefined

/**
 * A value as it is; if it is long, or holds characters that a reader would not see, its text or the start of its text.
 */
function shown(value: unknown): unknown {
  const plain = typeof value === 'string' ? value : JSON.stringify(value)
  const text = cut(spelledOut(plain))
  return text === plain ? value : text
}

const cut = (text: string): string =>
  Buffer.byteLength(text) > MOST_BYTES ? `${cutUtf8(text, MOST_BYTES)}…` : text
