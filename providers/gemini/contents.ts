/**
 * Repaired messages as Gemini `contents` (wire/gemini.md 4). Two roles; neighbours of one role are merged; every
 * functionResponse directly follows its call. Knows nothing of envelopes, tools and settings.
 */
import { isJsonOf, isRecord } from '../../src/chat/json.ts'
import { isPlainText } from '../../src/chat/media.ts'
import type {
  ContentPart,
  MediaPart,
  MessageInput,
  Part,
  ToolCallPart,
  ToolResultPart,
} from '../../src/chat/message.ts'
import { kept, once } from '../../src/chat/once.ts'

/** Wire parts as Baton writes them; a part holds exactly one of the data members. */
type WirePart =
  | { text: string; thoughtSignature?: string }
  | { functionCall: FunctionCall; thoughtSignature?: string }
  | { functionResponse: FunctionResponse }
  | BlobPart
  | { fileData: { mimeType: string; fileUri: string } }

interface BlobPart {
  inlineData: { mimeType: string; data: string }
}
interface FunctionCall {
  name: string
  args: Record<string, unknown>
  id?: string
}
interface FunctionResponse {
  name: string
  response: Record<string, unknown>
  id?: string
  parts?: BlobPart[]
}

export interface Content {
  role: 'user' | 'model'
  parts: WirePart[]
}

interface ContentsTarget {
  /** Signed calls and media inside function responses (capabilities.ts) */
  gemini3: boolean
  /** Calls and responses carry their ids (4.5) */
  ids: boolean
  /** Responses have a content of their own */
  apart: boolean
  /** Calls and responses are sent as such, else as text */
  calls: boolean
  /** The model's words are signed, too */
  signedTexts: boolean
}

/**
 * Google's documented stand-in for the signature of a call that Gemini did not make here (wire/gemini.md 4.4), and of
 * words where a model wants them signed.
 */
const DUMMY_SIGNATURE = 'skip_thought_signature_validator'
const FIRST = '[The conversation starts with an answer of the assistant.]'
const LAST = 'Please continue.'

/**
 * Responses have a content of their own; the user's words and media are in the next one. From Gemini 3.6 on, a content
 * that mixes both is refused as if it ended with a model turn; older models continue the user's sentence or say nothing
 * (langchain-ai/langchainjs#11477, MoonshotAI/kimi-code#3274, google-gemini/gemini-cli#28700). Two user contents in a
 * row are accepted (Prism-Shadow/agenthub#189, dust-tt/dust#32270), against 4.3; a backend that refuses them gets one
 * (`apart`). A model content between the two would be repeated by the model later (google-gemini/gemini-cli#28927).
 */
export function toContents(messages: readonly MessageInput[], target: ContentsTarget): Content[] {
  const contents: Content[] = []
  const written = writtenFor(target)
  const add = (next: Content) => {
    if (next.parts.length === 0) return
    const last = contents.at(-1)
    const isApart = target.apart && last !== undefined && answersCalls(last)
    if (last?.role !== next.role || isApart) contents.push(next)
    // One by one: a hundred thousand arguments overflow the stack.
    else for (const part of next.parts) last.parts.push(part)
  }
  for (const { role, parts } of messages) {
    if (role === 'assistant') {
      add({ role: 'model', parts: parts.flatMap(written.model) })
      continue
    }
    const user = parts.map(written.user)
    add({ role: 'user', parts: user.flatMap(({ responses }) => responses) })
    add({ role: 'user', parts: user.flatMap(({ rest }) => rest) })
  }
  if (target.gemini3) for (const content of contents) signFirstCall(content)
  if (contents[0]?.role === 'model') contents.unshift({ role: 'user', parts: [{ text: FIRST }] })
  // "Requests ending with a model turn are not supported." (3.6 and newer)
  if (contents.at(-1)?.role !== 'user') contents.push({ role: 'user', parts: [{ text: LAST }] })
  return contents
}

const answersCalls = ({ parts }: Content): boolean => parts.some((part) => 'functionResponse' in part)

/** A part's wire parts, made once for each kind of target. */
interface Written {
  model(part: Part): readonly WirePart[]
  user(part: Part): UserParts
}

function writtenFor(target: ContentsTarget): Written {
  const kind = `${target.gemini3} ${target.ids} ${target.calls} ${target.signedTexts}`
  const written = WRITTEN.get(kind) ?? {
    model: once((part) => modelPart(part, target).map(kept)),
    user: once((part) => userPart(part, target)),
  }
  WRITTEN.set(kind, written)
  return written
}
const WRITTEN = new Map<string, Written>()

function modelPart(part: Part, target: ContentsTarget): WirePart[] {
  const standIn = target.signedTexts ? DUMMY_SIGNATURE : undefined
  switch (part.type) {
    case 'text':
      return [{ text: part.text, ...signature(part.provenance?.opaque ?? standIn) }]
    case 'tool_call':
      if (!target.calls) {
        // The call's own signature is not of these words.
        return [{ text: `[Call of ${part.name}: ${JSON.stringify(part.arguments)}]`, ...signature(standIn) }]
      }
      return [{ functionCall: functionCall(part, target), ...signature(part.provenance?.opaque) }]
    // Thought summaries are never sent back; the signatures hold what the model needs of them.
    case 'reasoning':
    case 'tool_result':
    case 'notice':
    case 'image':
    case 'audio':
    case 'file':
      return []
    default:
      return part satisfies never
  }
}

const signature = (opaque: string | undefined) => (opaque === undefined ? {} : { thoughtSignature: opaque })

const functionCall = (part: ToolCallPart, { ids }: ContentsTarget): FunctionCall => ({
  name: functionName(part.name),
  args: part.arguments,
  ...(ids ? { id: part.call_id } : {}),
})

/** A function's name must begin with a letter or `_` (5.2). Every declared name does; a history may hold others. */
const functionName = (name: string): string => (/^[A-Za-z_]/.test(name) ? name : `_${name}`)

/** Gemini signs only the first of parallel calls, and checks that signature (4.4). */
function signFirstCall({ parts }: Content): void {
  const at = parts.findIndex((part) => 'functionCall' in part)
  const first = parts[at]
  if (first && !('thoughtSignature' in first)) parts[at] = { ...first, thoughtSignature: DUMMY_SIGNATURE }
}

interface UserParts {
  responses: readonly WirePart[]
  /** Words, and media that could not go inside the responses */
  rest: readonly WirePart[]
}

function userPart(part: Part, target: ContentsTarget): UserParts {
  if (part.type === 'text') return { responses: [], rest: [kept({ text: part.text })] }
  if (isMedia(part)) return { responses: [], rest: [kept(mediaPart(part))] }
  if (part.type !== 'tool_result') return { responses: [], rest: [] }
  if (!target.calls) {
    const text = `[Result of ${part.name}: ${JSON.stringify(responseObject(part))}]`
    return { responses: [], rest: [{ text }, ...part.content.filter(isMedia).map(mediaPart)].map(kept) }
  }
  const { inside, outside } = placeMedia(part, target)
  const named = outside.length > 0 ? [{ text: `[From the result of ${part.name}:]` }] : []
  return {
    responses: [kept({ functionResponse: functionResponse(part, inside, target) })],
    rest: [...named, ...outside.map(mediaPart)].map(kept),
  }
}

const isMedia = (part: Part): part is MediaPart =>
  part.type === 'image' || part.type === 'audio' || part.type === 'file'

const INSIDE = /^image\/(png|jpeg|webp)$|^application\/pdf$/

/** Gemini 3 takes images and PDFs inside a response (4.2); all other media go into the content after it. */
function placeMedia(
  result: ToolResultPart,
  { gemini3 }: ContentsTarget,
): { inside: BlobPart[]; outside: MediaPart[] } {
  const inside: BlobPart[] = []
  const outside: MediaPart[] = []
  for (const part of result.content.filter(isMedia)) {
    if (gemini3 && part.data !== undefined && INSIDE.test(part.media_type))
      inside.push({ inlineData: { mimeType: part.media_type, data: part.data } })
    else outside.push(part)
  }
  return { inside, outside }
}

function functionResponse(
  part: ToolResultPart,
  media: BlobPart[],
  { ids }: ContentsTarget,
): FunctionResponse {
  return {
    name: functionName(part.name),
    ...(ids ? { id: part.call_id } : {}),
    response: responseObject(part),
    ...(media.length > 0 ? { parts: media } : {}),
  }
}

/**
 * `response` must be an object. The server reads its `output` or `error` if there is one, else all of it (4.2). So a
 * structured result that is an object is sent whole, unless it has such a key itself. It replaces a text that only
 * repeats it, as MCP servers write; but a text that says something else is sent in its place.
 */
function responseObject(part: ToolResultPart): Record<string, unknown> {
  const said = textOfResult(part.content)
  const structured = hasReference(part.structured)
    ? JSON.stringify(part.structured)
    : (part.structured ?? undefined)
  if (part.is_error)
    return { error: said === '' ? (structured ?? 'The tool failed without a message.') : said }
  if (structured === undefined || (said !== '' && !isJsonOf(structured, said))) {
    return { output: said }
  }
  const isWhole = isRecord(structured) && !('output' in structured) && !('error' in structured)
  return isWhole && Object.keys(structured).length > 0 ? structured : { output: structured }
}

/**
 * Whether a result holds a `$ref` anywhere, as schemas and OpenAPI documents do. Gemini takes it for the name of a
 * medium among the response's `parts`, and refuses the request and every later one of the conversation
 * (BerriAI/litellm#38223, NousResearch/hermes-agent#93014). In a text it is read as it is.
 */
const hasReference = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && ('$ref' in value || Object.values(value).some(hasReference))

const textOfResult = (content: readonly ContentPart[]): string =>
  content.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n')

/** Every kind of text is sent as `text/plain`: `text/x-python` and others are refused (googleapis/python-genai#744). */
function mediaPart({ media_type, data = '', url }: MediaPart): WirePart {
  const mimeType = isPlainText(media_type) ? 'text/plain' : media_type
  return url === undefined ? { inlineData: { mimeType, data } } : { fileData: { mimeType, fileUri: url } }
}
