/**
 * A tool's answer as the model gets it and as it is kept. An answer that is too long for a model is stored whole; the
 * model gets its head and tail with a notice that says how to read on (outputSlice). Nothing is cut in silence.
 */
import { BEARABLE, isJsonOf, isRecord, isWithin, jsonIn, valueAt } from '../chat/json.ts'
import { asItIs, fileAsText } from '../chat/media.ts'
import type { ContentPart, MediaPart, TextPart, ToolResultPart } from '../chat/message.ts'
import { wellFormedValue } from '../chat/well-formed.ts'
import { invalid } from '../errors.ts'
import type { McpResult } from '../mcp/contract.ts'
import { characterStart, cutUtf8, endUtf8, nextCharacter, placeIn, storableText } from '../text.ts'
import { MASK, redactJson, redactText } from './redact.ts'

/** The built-in that reads the rest of a result that was too long. */
export const INSPECT = 'inspect_tool_output'

/** Bytes of text that a model gets of one result: about 16,000 tokens, a fraction of any window. */
export const MODEL_LIMIT = 65_536
const HEAD = 40_960
const TAIL = 16_384
/** Bytes of a structure that is shown beside a text: cheaper than the step in which the model would ask for it. */
const BESIDE = 4_096
/** Most values of a structure that are looked for in the text beside it: a hostile server must not hold the gateway. */
const COMPARED = 100
/** Characters of a medium's data from which on it counts as repeated; shorter texts may be the same by chance. */
const REPEATED = 64
/** Decoded bytes of one medium; larger ones are refused by the vendors or fill a window alone. */
const MEDIA_LIMIT = 5 * 1024 * 1024
/**
 * `text/…`: with bytes that no text has. A longer name (RFC 6838 4.2) would escape the limits of what a result may hold: a
 * hostile server could put megabytes there.
 */
const MEDIA_TYPES = /^(?:image\/(?:png|jpeg|gif|webp)|application\/pdf|(?:audio|text)\/[a-z0-9.+-]{1,127})$/i

/** A whole result without its secrets: JSON that a pointer can walk (`structured`), or its texts with media named. */
interface StoredOutput {
  output: string
  structured: boolean
}

interface ShapedResult {
  content: ContentPart[]
  structured?: unknown
  spill?: { exec_id: string; bytes: number }
  stored: StoredOutput
  /** Length of the stored output */
  bytes: number
}

/** `execId` names the stored output; `canInspect`: the model has the built-in that reads it. */
export async function shapeResult(
  raw: McpResult,
  execId: string,
  canInspect: boolean,
): Promise<ShapedResult> {
  const { content, texts, media, structured } = fitted(raw)
  const text = texts.map((one) => one.text).join('\n\n')
  const json = structured === undefined ? null : JSON.stringify(structured)
  // Servers repeat a structured result as text; one of the two is enough (MCP, tools: structured content).
  const isRepeated = json !== null && (text === '' || isSaid(structured, texts, text))
  const isLongText = !isRepeated && isLong(text)
  const isLongJson = json !== null && isLong(json)
  const isTextEnough = isRepeated && text !== '' && !isLong(text)
  // Without the built-in, the model could not ask for it.
  const isShort = json !== null && Buffer.byteLength(json) <= (canInspect ? BESIDE : MODEL_LIMIT)
  // The document that is abridged for the model is also the stored one, so that the model can read on at an offset.
  const document = !isLongText ? structured : json === null || isShort ? undefined : { text, structured }
  const plain = [text, ...media.map(named)].filter((one) => one !== '').join('\n\n')
  const stored = await storedForm(document, plain)
  const bytes = Buffer.byteLength(stored.output)
  const readOn = (offset: number) => (canInspect ? inspecting(execId, offset) : UNREADABLE)
  const head = () => {
    const whole = document === undefined ? plain : JSON.stringify(document)
    return part(abridged(whole, stored.output, readOn))
  }
  const shown = (): ContentPart[] => {
    if (isTextEnough) return content
    // Whether so long a text tells an exit code cannot be seen: each digit is somewhere in it.
    if (isLongText) return [head(), ...media, ...(isShort ? [part(json)] : [])]
    if (json === null) return content
    // A text may be several times as long as the JSON that it lays out.
    if (isRepeated) return [isLongJson ? head() : part(json), ...media]
    if (!isLongJson && isTold(structured, text)) return content
    const elsewhere = `[There is also a structured result of ${bytes} bytes. ${readOn(0)}]`
    return [...content, part(isShort ? json : elsewhere)]
  }
  return {
    content: shown(),
    ...(structured === undefined || isLongJson ? {} : { structured }),
    ...((isLongText || isLongJson) && !isTextEnough ? { spill: { exec_id: execId, bytes } } : {}),
    stored,
    bytes,
  }
}

/**
 * Whether the texts are the structure and no more, or what FastMCP wraps in one (`{"result": …}`): a text, or a list,
 * which it writes as one text or as one for each item.
 */
function isSaid(structured: unknown, texts: readonly TextPart[], text: string): boolean {
  const [only, ...others] = isRecord(structured) ? Object.values(structured) : []
  const wrapped = others.length === 0 ? only : undefined
  if (wrapped === text) return true
  if (!Array.isArray(wrapped)) return isJsonOf(structured, text)
  // Only one of them is compared: the text may be megabytes.
  const whole = /^\s*\[/.test(text) ? wrapped : structured
  const isItem = (one: TextPart, i: number) => wrapped[i] === one.text || isJsonOf(wrapped[i], one.text)
  return isJsonOf(whole, text) || (wrapped.length === texts.length && texts.every(isItem))
}

/**
 * Whether the text has what the structure says, in whatever words around it. Many servers send only a summary, with the
 * data in the structure alone (@primevue/mcp: "50 components returned."; opencode#38923).
 */
function isTold(structured: unknown, text: string): boolean {
  let compared = 0
  for (const value of scalars(structured)) {
    if (placeIn(text, value) < 0 && placeIn(text, JSON.stringify(value).slice(1, -1)) < 0) return false
    if (++compared === COMPARED) break
  }
  return true
}

/** The texts and numbers in a structure; other values say too little without their names. */
function* scalars(value: unknown): Generator<string> {
  // A larger number may have lost digits here that the text has.
  const isExact = typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER
  if (typeof value === 'string' || isExact) yield String(value)
  else if (typeof value === 'object' && value !== null)
    for (const inner of Object.values(value)) yield* scalars(inner)
}

const isLong = (text: string): boolean => Buffer.byteLength(text) > MODEL_LIMIT

const part = (text: string): TextPart => ({ type: 'text', text })

interface Fitted {
  /** In the server's order: a text may refer to the image above it */
  content: ContentPart[]
  texts: TextPart[]
  media: MediaPart[]
  structured: unknown
}

/** A result's texts and media within their limits, and its structure where that can be written down. */
function fitted(raw: McpResult): Fitted {
  const content = raw.content
    .map(fitMedia)
    .map((one) => (one.type === 'text' ? part(storableText(one.text)) : one))
  const isSound = isWithin(raw.structured, BEARABLE)
  const structured = isSound ? (wellFormedValue(raw.structured) ?? undefined) : undefined
  if (!isSound) content.push(part(UNBEARABLE))
  return {
    content,
    texts: content.filter((one): one is TextPart => one.type === 'text'),
    media: content.filter((one): one is MediaPart => one.type !== 'text'),
    structured: mediaNamed(structured, raw.content, content),
  }
}

/**
 * The structure with names in place of the data of media that are passed on. With some tools the structure is the whole
 * result again (server-filesystem 2026.8.31, read_media_file): a model would get each picture a second time, as 57,000
 * letters.
 */
function mediaNamed(
  structured: unknown,
  given: readonly ContentPart[],
  passed: readonly ContentPart[],
): unknown {
  const names = new Map<string, string>()
  for (const [i, one] of given.entries()) {
    const shown = passed[i]
    if (one.type === 'text' || !one.data || one.data.length < REPEATED) continue
    // Of others, such as an archive, the structure has the only copy. And the type of one that is shown is short: a
    // hostile server may repeat its name thousands of times.
    if (shown && shown.type !== 'text') names.set(one.data, named(shown))
  }
  if (structured === undefined || names.size === 0) return structured
  const nameOf = (text: string) =>
    names.get(text.startsWith('data:') ? text.slice(text.indexOf(',') + 1) : text)
  const worded = (_key: string, value: unknown) =>
    typeof value === 'string' ? (nameOf(value) ?? value) : value
  return JSON.parse(JSON.stringify(structured, worded))
}

const UNBEARABLE = `[The structured result is nested more than ${BEARABLE.depth} levels deep, or holds more than ${BEARABLE.values} values, and was left out]`

async function storedForm(structured: unknown, text: string): Promise<StoredOutput> {
  if (structured === undefined) {
    return { output: await redactText(text), structured: false }
  }
  return { output: JSON.stringify(await redactJson(structured)), structured: true }
}

const inspecting = (execId: string, offset: number): string =>
  `Read on with ${INSPECT}: {"exec_id": "${execId}", "offset": ${offset}}.`
const UNREADABLE = 'The rest is kept with the tool execution and cannot be read from here.'

function abridged(whole: string, stored: string, readOn: (offset: number) => string): string {
  const head = cutUtf8(whole, HEAD)
  const offset = Buffer.byteLength(stored.slice(0, storedIndex(whole, stored, head.length)))
  const bytes = Buffer.byteLength(stored)
  const notice = `[The result is ${bytes} bytes long; its middle is left out here. ${readOn(offset)}]`
  return `${head}\n\n${notice}\n\n${endUtf8(whole, TAIL)}`
}

/**
 * Where `index` of the whole text is in the stored one. It is found by the pieces between the secrets: a masked secret
 * is shorter or longer, and one may begin before the index and end after it.
 */
function storedIndex(whole: string, stored: string, index: number): number {
  let [from, to] = [0, 0]
  const near = whole.slice(0, 2 * index)
  for (const piece of stored.split(MASK)) {
    // No more is compared than the model has been shown: any place where so much is the same will do.
    const start = placeIn(near, piece.slice(0, index), from)
    // Not found: keys of an object that were secrets are one key now, so members are gone. The place before is safe:
    // some text is read twice, and none is lost.
    if (start < 0 || start >= index) return to
    from = start + piece.length
    if (from >= index) return to + index - start
    to += piece.length + MASK.length
  }
  return stored.length
}

function fitMedia(part: ContentPart): ContentPart {
  if (part.type === 'text') return part
  const size = mediaBytes(part)
  if (size > MEDIA_LIMIT)
    return note(part, `${size} bytes is more than the ${MEDIA_LIMIT} that may be passed on`)
  const known = asItIs(part)
  if (!known) return note(part, 'its bytes are something else')
  // As if its server had written the text out: if it is too long, the model can read on in it, too.
  const words = fileAsText(known)
  if (words) return words
  return MEDIA_TYPES.test(known.media_type) ? known : note(part, 'this type is not passed on')
}

const note = (part: MediaPart, why: string): ContentPart => ({
  type: 'text',
  text: `[${[part.type, part.name, part.media_type].filter(Boolean).join(', ')}: ${why}]`,
})

/** The result with its media in words; beside a structure there is a text that tells it (shapeResult). */
export const withoutMedia = (result: ToolResultPart, why: string): ToolResultPart => ({
  ...result,
  content: result.content.map((part) => (part.type === 'text' ? part : note(part, why))),
})

const mediaBytes = (part: MediaPart): number => Math.floor(((part.data?.length ?? 0) * 3) / 4)

const named = (part: MediaPart): string => `[${part.type}, ${part.media_type}, ${mediaBytes(part)} bytes]`

// ---------------------------------------------------------------- reading on

/** A part of a stored output, and its place in the whole; offsets are bytes. */
interface Slice {
  path: string
  offset: number
  limit: number
  total_bytes: number
  /** Where the next slice begins; null at the end */
  next_offset: number | null
  content: string
}

/**
 * `path` is a JSON Pointer (RFC 6901) into a structured output, '' for all of it; `offset` and `limit` are
 * bytes of UTF-8. A slice begins and ends at characters, and holds at least one. Throws invalid_request.
 */
export function outputSlice(
  stored: StoredOutput,
  { path, offset, limit }: Pick<Slice, 'path' | 'offset' | 'limit'>,
): Slice {
  const bytes = Buffer.from(path === '' ? stored.output : textAt(stored, path), 'utf8')
  const start = characterStart(bytes, Math.min(offset, bytes.length))
  let end = characterStart(bytes, Math.min(start + limit, bytes.length))
  if (end === start && end < bytes.length) end = nextCharacter(bytes, end + 1)
  return {
    path,
    offset: start,
    limit,
    total_bytes: bytes.length,
    next_offset: end < bytes.length ? end : null,
    content: bytes.toString('utf8', start, end),
  }
}

function textAt({ output, structured }: StoredOutput, path: string): string {
  if (!path.startsWith('/')) throw refused('A JSON Pointer begins with /, such as /items/0.')
  // Text that happens to be JSON can be walked too.
  const document: unknown = structured ? JSON.parse(output) : jsonIn(output)
  if (document === undefined) throw refused('This output is text; read it by offset, without a path.')
  // Of a long text with a structure, shapeResult keeps {text, structured}; a path may begin in the structure as well.
  const outer = valueAt(document, path)
  const found = outer === undefined && structured ? valueAt(document, `/structured${path}`) : outer
  if (found === undefined) throw refused(`There is nothing at ${path}.`)
  return typeof found === 'string' ? found : JSON.stringify(found)
}

const refused = (message: string) => invalid('path', message)
