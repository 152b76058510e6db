/**
 * A server's `tools/call` result as canonical parts. By the time a result arrives the tool has run, so a part that
 * cannot be understood becomes a note and never fails the call.
 */
import { isRecord, isWithin } from '../chat/json.ts'
import { standardBase64 } from '../chat/media.ts'
import type { ContentPart, MediaPart } from '../chat/message.ts'
import { oneLine } from '../text.ts'
import type { McpResult } from './contract.ts'

type Block = Record<string, unknown>

/** Most parts of one result; texts beyond them become one text. A hostile server can send a million parts. */
const MOST_BLOCKS = 64
const NOTE_LENGTH = 2_000
const NOTABLE = { depth: 200, values: 2_000 }

/** `raw` is the `result` of the JSON-RPC answer, as it came. */
export function readResult(raw: unknown): McpResult {
  const result = isRecord(raw) ? raw : { content: raw }
  // Servers of 2024-10-07 answered with `toolResult`.
  const content = result.content ?? result.toolResult ?? ownShape(result)
  const blocks = Array.isArray(content) ? content : content == null ? [] : [content]
  const given = blocks.slice(0, MOST_BLOCKS).map(readBlock)
  const beyond = blocks.slice(MOST_BLOCKS)
  // The Python SDK makes a text of each item of a list (FastMCP, `_convert_to_content`): none is lost.
  const texts = beyond.map(textOf).filter((text) => text !== null)
  if (texts.length > 0) given.push({ type: 'text', text: texts.join('\n\n') })
  const left = beyond.length - texts.length
  if (left > 0) given.push({ type: 'text', text: `[${left} more items are left out]` })
  const read: McpResult = { content: given, is_error: result.isError === true }
  if (result.structuredContent !== undefined) read.structured = result.structuredContent
  return read
}

/** All that was said by a server that knows nothing of `content`, or answers with a task. */
function ownShape({ _meta, isError, resultType, ...own }: Block): unknown {
  const isAll = own.structuredContent === undefined && Object.values(own).some((value) => value != null)
  return isAll ? own : undefined
}

const READERS = new Map<unknown, (block: Block) => ContentPart | null>([
  ['image', ({ data, mimeType }) => media('image', data, mimeType)],
  ['audio', ({ data, mimeType }) => media('audio', data, mimeType)],
  ['resource', ({ resource }) => (isRecord(resource) ? embedded(resource) : null)],
  ['resource_link', link],
])

const textOf = (block: unknown): string | null => {
  const text = isRecord(block) && block.type === 'text' ? block.text : block
  return typeof text === 'string' ? text : null
}

function readBlock(block: unknown): ContentPart {
  const text = textOf(block)
  if (text !== null) return { type: 'text', text }
  return (isRecord(block) && READERS.get(block.type)?.(block)) || note(block)
}

function media(type: MediaPart['type'], data: unknown, mimeType: unknown): MediaPart | null {
  // Servers leave the padding out, break lines, use the alphabet of URLs, or send a whole data URL.
  const base64 = typeof data === 'string' ? standardBase64(data.replace(DATA_URL, '')) : null
  if (base64 === null) return null
  return {
    type,
    media_type: typeof mimeType === 'string' && mimeType ? mimeType : FALLBACK_TYPE[type],
    data: base64,
  }
}

const DATA_URL = /^\s*data:[^,]{0,200};base64,/i

const FALLBACK_TYPE = { image: 'image/png', audio: 'audio/wav', file: 'application/octet-stream' } as const

function embedded(resource: Block): ContentPart | null {
  const uri = typeof resource.uri === 'string' ? resource.uri : ''
  if (typeof resource.text === 'string')
    return { type: 'text', text: `[${uri || 'resource'}]\n${resource.text}` }
  const mimeType = typeof resource.mimeType === 'string' ? resource.mimeType : ''
  const [, family] = /^(image|audio)\//i.exec(mimeType) ?? []
  const blob = media(family ? (family.toLowerCase() as 'image' | 'audio') : 'file', resource.blob, mimeType)
  // The URI is sent on as a file's name: a name that no vendor takes would fail each request from then on.
  const name = oneLine(uri)
  return blob && (name ? { ...blob, name } : blob)
}

/** A link is told, never followed: the server chooses where it leads. */
function link(block: Block): ContentPart | null {
  if (typeof block.uri !== 'string') return null
  const facts = [block.title ?? block.name, block.mimeType, block.description].filter(
    (fact) => typeof fact === 'string' && fact !== '',
  )
  return { type: 'text', text: `[link: ${[block.uri, ...facts].join(', ')}]` }
}

/** Puts an unreadable part in words: its kind, and its JSON without long strings of data. */
function note(block: unknown): ContentPart {
  const kind = isRecord(block) && typeof block.type === 'string' ? block.type : 'unknown'
  return { type: 'text', text: `[unreadable content of type ${kind}: ${excerpt(block)}]` }
}

function excerpt(block: unknown): string {
  const shorten = (_key: string, value: unknown): unknown =>
    typeof value === 'string' && value.length > 200
      ? `${value.slice(0, 80)}… (${value.length} characters)`
      : value
  // JSON can be parsed deeper than it can be written.
  if (!isWithin(block, NOTABLE)) return 'too many values, or nested too deeply'
  return (JSON.stringify(block, shorten) ?? 'nothing').slice(0, NOTE_LENGTH)
}
