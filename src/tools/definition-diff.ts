/**
 * What became of a tool's definition since it was accepted, for the person who decides on it. Characters
 * that a reader would not see are written out, since they may be the whole change.
 */
import { canonicalJson, isRecord, stepOf } from '../chat/json.ts'
import type { McpTool } from '../mcp/contract.ts'
import { comparedOf } from './registry.ts'
import { cutUtf8, spelledOut } from './text.ts'

/** One place that differs. A side that has nothing there is left out. */
export interface DefinitionChange {
  /** JSON Pointer (RFC 6901) into `{description, inputSchema, annotations}` */
  path: string
  before?: unknown
  after?: unknown
}

/** Shown of one tool; a definition that was written anew differs everywhere. */
const MOST_CHANGES = 100
const MOST_BYTES = 4096

/** The first hundred places that differ, in the definitions' own order. */
export function definitionDiff(before: McpTool, after: McpTool): DefinitionChange[] {
  const changes: DefinitionChange[] = []
  compare('', comparedOf(before), comparedOf(after), changes)
  return changes.slice(0, MOST_CHANGES)
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
    path,
    ...(before === undefined ? {} : { before: shown(before) }),
    ...(after === undefined ? {} : { after: shown(after) }),
  })
}

/** What every object inherits is no part of a definition: a property may be named `constructor`. */
const own = (record: Record<string, unknown>, key: string): unknown =>
  Object.hasOwn(record, key) ? record[key] : undefined

/** A value as it is; its text, or the start of that, where it is long or holds what a reader would not see. */
function shown(value: unknown): unknown {
  const plain = typeof value === 'string' ? value : JSON.stringify(value)
  const text = spelledOut(plain)
  if (Buffer.byteLength(text) > MOST_BYTES) return `${cutUtf8(text, MOST_BYTES)}…`
  return text === plain ? value : text
}
