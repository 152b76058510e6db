/** The request to send in place of one that Google refused. */
import type { Part } from '../../src/chat/message.ts'
import type { ModelRequest, ReportedModel, UpstreamFailure } from '../../src/provider.ts'
import {
  isFile,
  isImage,
  isLinked,
  isNamed,
  taught,
  type Unread,
  withoutMedia,
  withoutUnread,
  withParts,
} from '../amend.ts'
import { isGemini3, thinkingConfig } from './capabilities.ts'
import { NO_FILE, readFailure, TOO_MANY_BYTES } from './classify.ts'
import { contentsOf } from './render.ts'

/** "Invalid thought signature." is 3.7 Flash's (lbjlaq/Antigravity-Manager#3342). */
const BAD_SIGNATURE =
  /thought.?signature is not valid|(?:corrupted|invalid) thought.?signature|thought_?signature' \(TYPE_BYTES\)/i

/** A refusal by a model that the table counts as an older one (rowboatlabs/rowboat#694). */
const UNSIGNED = /missing a.{0,3}thought_?signature/i

/**
 * Refusals by a model that does not think, or not in the form that the table has (RooCodeInc/Roo-Code#10700,
 * lobehub/lobehub#7985).
 */
const BAD_THINKING =
  /\bthinking[ _](?:level|budget|config)|thinking is not (?:supported|enabled)|thinking mode/i

/** All that Google says of some refusals. */
const WORDLESS = /^request contains an invalid argument\.?$/i

/**
 * The refusal that Google has announced for future models ("What's new in Gemini 3.6 Flash and 3.5 Flash-Lite"), which
 * may answer under an older id, too.
 */
const BAD_SAMPLING = /^(?=.*\b(?:temperature|top_?p)\b).*(?:not supported|unsupported|deprecated)/i

/** Refusals of what a model or backend never takes. */
const UNTAKEN: readonly (readonly [RegExp, Partial<ReportedModel>])[] = [
  // Ids of calls (4.5)
  [/unknown name "id"/i, { call_ids: false }],
  [BAD_THINKING, { efforts: [] }],
  [BAD_SAMPLING, { refused: { temperature: 'any', top_p: 'any' } }],
  // "Function calling is not enabled for models/gemma-3-27b-it", and for image models (agno-agi/agno#3505); of Vertex AI's
  // image models "the model does not support function calling" (anomalyco/opencode#41464).
  [/function calling is not (?:enabled|supported)|not support function calling/i, { tools: false }],
  // Gemini 3 Pro Image, of answers of other models (googleapis/js-genai#1116, lobehub/lobehub#10404)
  [/text part is missing a.{0,3}thought_?signature/i, { signed_texts: true }],
  // "Developer instruction is not enabled for models/gemma-3-27b-it" (CherryHQ/cherry-studio#3242)
  [/developer instruction is not (?:enabled|supported)/i, { instructions: false }],
]

/**
 * "Please ensure that multiturn requests alternate between user and model", the words of 4.3 on turns with functions,
 * and words that a relay may use instead.
 */
const TURN_ORDER = /turn comes immediately|\balternat(?:e|ing)\b|\bconsecutive\b|\bsame role\b/i

/**
 * The request without what Google refused: what it never takes, an end to thinking, a forced choice among too many tools,
 * calls without signatures, signatures that it cannot verify, results kept apart from words, media that it cannot read
 * or that are too large.
 */
export function amendRequest(failure: UpstreamFailure, request: ModelRequest): ModelRequest | null {
  const { message } = readFailure(failure.body, failure.status)
  if (failure.status === 413 || TOO_MANY_BYTES.test(message)) return withoutMedia(request)
  if (failure.status !== 400 && !NO_FILE.test(message)) return null
  const [, told] = UNTAKEN.find(([words]) => words.test(message)) ?? []
  if (told) return taught(request, told)
  // The cheapest guess comes first: in error it costs some thoughts, the next a call that the caller relies on, the last
  // all media.
  if (WORDLESS.test(message))
    return stillThinking(request) ?? unforced(request) ?? withoutUnread(request, message, UNREAD)
  if (UNSIGNED.test(message) && !isGemini3(request.model, request.reported))
    return taught(request, { signed_calls: true })
  if (BAD_SIGNATURE.test(message)) return withParts(request, withoutSignature)
  if (/too many states/i.test(message)) return unforced(request)
  return (
    withoutUnread(request, message, UNREAD) ?? (TURN_ORDER.test(message) ? withResultsJoined(request) : null)
  )
}

/** Null if no results are apart from the user's other content. */
function withResultsJoined(request: ModelRequest): ModelRequest | null {
  const joined = taught(request, { results_apart: false })
  return joined && contentsOf(joined).length < contentsOf(request).length ? joined : null
}

/**
 * With many tools, Google refuses to force the model to call one of them: with words (wire/gemini.md 5.2), or without
 * (googleapis/python-genai#2293, #2291 and #2133).
 */
function unforced(request: ModelRequest): ModelRequest | null {
  const { tool_choice = 'auto', ...settings } = request.settings
  return tool_choice === 'auto' || tool_choice === 'none' ? null : { ...request, settings }
}

/**
 * A model that cannot stop thinking refuses a budget of 0 without words (kayac/nepp-chan#989). 3.5 Flash-Lite is one
 * (googleapis/python-genai#2936), and answers as `gemini-2.5-flash` from 2026-12-01 on (8.2). Null if the request asks
 * for no such budget.
 */
function stillThinking(request: ModelRequest): ModelRequest | null {
  return thinkingConfig(request)?.thinkingBudget === 0 ? taught(request, { efforts: BUT_NONE }) : null
}
const BUT_NONE = ['minimal', 'low', 'medium', 'high', 'xhigh', 'max']

const UNREAD: Unread = [
  // `provided image is not valid`: google-gemini/gemini-cli#27244.
  [/process input image|provided image is not valid/i, isImage],
  // "The document contains 1438 pages which exceeds the supported page limit of 1000." (suurt8ll/open_webui_functions#267)
  [/document has no pages|supported page limit/i, isFile],
  [/cannot fetch content|file ?uri/i, isLinked],
  [NO_FILE, isLinked],
  // "… it has a mimeType parameter with value audio/x-odd, which is not supported": Vertex AI's and Code Assist's words;
  // they spell it `mime_type`, too (google-gemini/gemini-cli#16995).
  [/unsupported mime type|\bmime_?type\b.*not supported/i, isNamed],
  // "Image input modality is not enabled for models/gemma-3-1b-it"
  [
    /input modality is not/i,
    ({ media_type }, words) => words.toLowerCase().includes(`${media_type.split('/', 1)[0]} input`),
  ],
  // All that is said of audio that is none (google-gemini/gemini-cli#13755), and by Code Assist of a type that it does not
  // read (google-gemini/gemini-cli#14838), as of faults that are no medium's.
  [WORDLESS, () => true],
]

/**
 * A signature is refused if the model or its backend has changed since, or a caller made it up. On calls the documented
 * dummy takes its place (4.4).
 */
function withoutSignature(part: Part): Part[] {
  if (!('provenance' in part) || part.provenance?.opaque === undefined) return [part]
  // An empty text was kept only for its signature.
  if (part.type === 'text' && part.text === '') return []
  const { opaque: _, ...provenance } = part.provenance
  return [{ ...part, provenance }]
}
