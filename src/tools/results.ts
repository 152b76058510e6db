/**
 * A tool's answer as the model gets it and as it is kept. What is too long for a model is stored whole and
 * given as its head and tail with a notice that says how to read on; nothing is cut in silence.
 */
import type { ContentPart, MediaPart } from '../chat/message.ts'
import { cutUtf8, endUtf8 } from './text.ts'

/** Bytes of text that a model gets of one result: about 16,000 tokens, a fraction of any window. */
export const MODEL_LIMIT = 65_536
const HEAD = 40_960
const TAIL = 16_384
const MOST_ITEMS = 64
/** Decoded bytes of one medium; larger ones are refused by the vendors or fill a window alone. */
const MEDIA_LIMIT = 5 * 1024 * 1024
const MEDIA_TYPES =
  /^(?:image\/(?:png|jpeg|gif|webp)|audio\/[a-z0-9.+-]+|application\/pdf|text\/[a-z0-9.+-]+)$/i

export interface RawResult {
  content: ContentPart[]
  structured?: unknown
  is_error: boolean
}

export interface ShapedResult {
  content: ContentPart[]
  structured?: unknown
  spill?: { exec_id: string; bytes: number }
  /** The whole result as text: JSON when it is structured, else its texts with media named */
  output: string
  /** `output` is JSON that a pointer can walk */
  isStructured: boolean
  bytes: number
}

/** `canInspect`: the session has the built-in that reads a stored output. */
export function shapeResult(raw: RawResult, execId: string, canInspect: boolean): ShapedResult {
  const isStructured = raw.structured !== undefined
  const output = isStructured ? JSON.stringify(raw.structured) : raw.content.map(asText).join('\n\n')
  const bytes = Buffer.byteLength(output)
  // Servers repeat structured content as text; it is the answer only where nothing else is (mcp: tools).
  const given: ContentPart[] =
    raw.content.length > 0 || !isStructured ? raw.content : [{ type: 'text', text: output }]
  const content = given.slice(0, MOST_ITEMS).map(fitMedia)
  if (given.length > MOST_ITEMS) {
    content.push({ type: 'text', text: `[${given.length - MOST_ITEMS} more items are left out]` })
  }
  const texts = content.flatMap((part) => (part.type === 'text' ? [part.text] : []))
  const length = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0)
  const structuredBytes = isStructured ? bytes : 0
  if (Math.max(length, structuredBytes) <= MODEL_LIMIT) {
    return { content, ...(isStructured ? { structured: raw.structured } : {}), output, isStructured, bytes }
  }
  const media = content.filter((part) => part.type !== 'text')
  const whole = isStructured ? output : texts.join('\n\n')
  return {
    content: [{ type: 'text', text: abridged(whole, bytes, execId, canInspect) }, ...media],
    spill: { exec_id: execId, bytes },
    output,
    isStructured,
    bytes,
  }
}

function abridged(whole: string, bytes: number, execId: string, canInspect: boolean): string {
  const head = cutUtf8(whole, HEAD)
  const tail = endUtf8(whole, TAIL)
  const how = canInspect
    ? `Read on with inspect_tool_output: {"exec_id": "${execId}", "offset": ${Buffer.byteLength(head)}}.`
    : 'The rest is kept with the tool execution and cannot be read from here.'
  return `${head}\n\n[The result is ${bytes} bytes long; its middle is left out here. ${how}]\n\n${tail}`
}

function fitMedia(part: ContentPart): ContentPart {
  if (part.type === 'text') return part
  const size = mediaBytes(part)
  if (size > MEDIA_LIMIT)
    return note(part, `${size} bytes is more than the ${MEDIA_LIMIT} that may be passed on`)
  if (!MEDIA_TYPES.test(part.media_type)) return note(part, 'this type is not passed on')
  return part
}

const note = (part: MediaPart, why: string): ContentPart => ({
  type: 'text',
  text: `[${part.type}, ${part.media_type}: ${why}]`,
})

const mediaBytes = (part: MediaPart): number => Math.floor(((part.data?.length ?? 0) * 3) / 4)

const asText = (part: ContentPart): string =>
  part.type === 'text' ? part.text : `[${part.type}, ${part.media_type}, ${mediaBytes(part)} bytes]`
