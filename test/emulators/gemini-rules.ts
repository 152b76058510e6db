/**
 * What Gemini's server refuses besides unknown fields, in its words where they are known (wire/gemini.md 4, 8): order
 * of contents, answers to calls, signatures and settings; gemini-tools.ts has the tools. Reads bodies that
 * gemini-shape.ts has spelled in camelCase. Independent of the adapter, so that an error there cannot hide here.
 */
import { DAMAGED, isDead, pdfPages, seenAs } from './bytes.ts'
import type { Traits } from './gemini-models.ts'
import { invalid } from './gemini-shape.ts'
import { checkTools, NAME, NAME_RULE, type Tool, type ToolConfig } from './gemini-tools.ts'
import { isObject, type Json } from './json.ts'

interface Part {
  text?: string
  thought?: boolean
  thoughtSignature?: string
  functionCall?: { name?: string; args?: Json; id?: string }
  functionResponse?: {
    name?: string
    response?: Json
    id?: string
    parts?: { inlineData?: { mimeType?: string; data?: string } }[]
  }
  inlineData?: { mimeType?: string; data?: string }
  fileData?: { mimeType?: string; fileUri?: string }
}
export interface Content {
  role?: string
  parts?: Part[]
}
export interface Request {
  contents?: Content[]
  systemInstruction?: Content
  tools?: Tool[]
  toolConfig?: ToolConfig
  generationConfig?: Json & {
    thinkingConfig?: { includeThoughts?: boolean; thinkingBudget?: number; thinkingLevel?: string }
  }
}

/** The signatures that this server has given out. `accepts` is false for all others. */
export interface Signatures {
  issue(model: string, on: string): string
  accepts(model: string, on: string, signature: string): boolean
}

/** A signature belongs to a model and to the part with which it came. */
export function createSignatures(): Signatures {
  const issued = new Set<string>()
  const key = (...names: string[]) => names.join('\n')
  return {
    issue(model, on) {
      const signature = Buffer.from(`${model} thought no. ${issued.size + 1}`).toString('base64')
      issued.add(key(model, on, signature))
      return signature
    },
    accepts: (model, on, signature) => issued.has(key(model, on, signature)),
  }
}

/** What a signature is tied to: its part's call or text. */
export const signedPart = ({ functionCall, text }: Part): string =>
  functionCall ? `call ${functionCall.name} ${JSON.stringify(functionCall.args ?? {})}` : `text ${text}`

/** Throws a Refusal for a request that the server would answer with a 400. */
export function checkRequest(request: Request, model: string, traits: Traits, signatures: Signatures): void {
  const contents = request.contents ?? []
  checkParts(contents)
  checkFilled(contents)
  const { systemInstruction: system } = request
  if (system && !system.parts?.length) {
    throw invalid('* GenerateContentRequest.system_instruction.parts: contents.parts must not be empty.\n')
  }
  checkResponses(contents, traits)
  checkTurns(contents, traits)
  if (traits.signed) checkSignatures(contents, model, signatures)
  if (traits.signedTexts) checkSignedTexts(contents)
  checkTools(request, traits)
  checkSettings(request.generationConfig ?? {}, traits)
}

const DATA_FIELDS = [
  'text',
  'functionCall',
  'functionResponse',
  'inlineData',
  'fileData',
  'executableCode',
  'codeExecutionResult',
]

const MEDIA =
  /^image\/(png|jpeg|webp|heic|heif)$|^(audio|video)\/[\w.+-]+$|^application\/pdf$|^text\/(plain|html|css|csv|xml|rtf|javascript|markdown|md)$/

function checkParts(contents: readonly Content[]): void {
  const at = 'GenerateContentRequest.contents'
  if (contents.length === 0) throw invalid(`* ${at}: contents is not specified\n`)
  contents.forEach(({ role, parts = [] }, i) => {
    if (role !== undefined && role !== 'user' && role !== 'model') {
      throw invalid('Please use a valid role: user, model.')
    }
    if (parts.length === 0) throw invalid(`* ${at}[${i}].parts: contents.parts must not be empty.\n`)
    parts.forEach((part, j) => {
      const data = DATA_FIELDS.filter((field) => field in part)
      if (data.length > 1) {
        throw invalid(
          `Invalid value at 'contents[${i}].parts[${j}]' (oneof), oneof field 'data' is already set. Cannot set '${data[1]}'`,
        )
      }
      if (data.length === 0 || (part.text === '' && !part.thoughtSignature)) {
        throw invalid(
          `* ${at}[${i}].parts[${j}].data: required oneof field 'data' must have one initialized field\n`,
        )
      }
      const { mimeType = '' } = part.inlineData ?? part.fileData ?? {}
      if ((part.inlineData || part.fileData) && !MEDIA.test(mimeType)) {
        throw invalid(`Unsupported MIME type: ${mimeType}`)
      }
      checkBytes(part.inlineData ?? {})
      // googleapis/js-genai#1385
      if (isDead(part.fileData?.fileUri)) throw invalid('Cannot fetch content from the provided URL.')
    })
  })
}

/** Checks the media whose type can be told from their beginning. */
function checkBytes({ mimeType = '', data }: { mimeType?: string; data?: string }): void {
  const seen = seenAs(data)
  if (mimeType === 'application/pdf' && seen !== mimeType) throw invalid('The document has no pages.')
  const pages = pdfPages(data)
  if (pages > 1000)
    throw invalid(`The document contains ${pages} pages which exceeds the supported page limit of 1000.`)
  if (!/^image\/(png|jpeg|webp)$/.test(mimeType) || seen?.startsWith('image/')) return
  throw invalid(data === DAMAGED ? 'Provided image is not valid.' : 'Unable to process input image.')
}

const roleOf = ({ role }: Content) => role ?? 'user'
const callsOf = ({ parts = [] }: Content) => parts.flatMap((part) => part.functionCall ?? [])
const responsesOf = ({ parts = [] }: Content) => parts.flatMap((part) => part.functionResponse ?? [])
const hasFunctions = (content: Content) => callsOf(content).length + responsesOf(content).length > 0

const CALL_ORDER =
  'Please ensure that function call turn comes immediately after a user turn or after a function response turn.'
const RESPONSE_ORDER =
  'Please ensure that function response turn comes immediately after a function call turn.'

const ENDS_WITH_MODEL = 'Requests ending with a model turn are not supported.'

function checkTurns(contents: readonly Content[], { newest }: Traits): void {
  contents.forEach((content, i) => {
    const before = contents[i - 1]
    const repeated = before !== undefined && roleOf(before) === roleOf(content)
    if (roleOf(content) === 'model') {
      if (!before) throw invalid('Please ensure that multiturn requests start with a user turn.')
      if (hasFunctions(content) && repeated) throw invalid(CALL_ORDER)
    } else if (callsOf(content).length > 0) throw invalid(CALL_ORDER)
    // Models from 3.6 on say this (agentgateway/agentgateway#2811, vellum-ai/vellum-assistant#39495). Older models take
    // the request and answer something else (langchain-ai/langchainjs#11477).
    if (responsesOf(content).length > 0 && !content.parts?.every(isResponse)) throw invalid(ENDS_WITH_MODEL)
  })
  const last = contents.at(-1)
  if (newest && last && roleOf(last) === 'model') throw invalid(ENDS_WITH_MODEL)
}

const COUNT =
  'Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.'

function checkResponses(contents: readonly Content[], { signed }: Traits): void {
  contents.forEach((content, i) => {
    const before = contents[i - 1]
    const calls = before ? callsOf(before) : []
    const responses = responsesOf(content)
    if (responses.length > 0 && calls.length === 0) throw invalid(RESPONSE_ORDER)
    if (responses.length !== calls.length) throw invalid(COUNT)
    if (responses.length > 0 && !(content.parts ?? []).slice(0, responses.length).every(isResponse)) {
      throw invalid(RESPONSE_ORDER)
    }
    responses.forEach((response, n) => {
      const call = calls[n]
      const isSame = response.name === call?.name && (response.id === undefined || response.id === call?.id)
      if (!isSame) {
        throw invalid(
          `Please ensure that function response part ${n + 1} has the name and id of function call part ${n + 1}.`,
        )
      }
      if (!isObject(response.response)) {
        throw invalid(
          `* GenerateContentRequest.contents[${i}].parts[${n}].function_response.response: is required\n`,
        )
      }
      const reference = referenceIn(response.response)
      if (reference !== undefined) {
        throw invalid(
          `The referenced name \`${reference}\` in function_response.response does not match to a display_name in the function_response.parts.`,
        )
      }
      checkMedia(response.parts ?? [], signed)
    })
  })
  const last = contents.at(-1)
  if (last && callsOf(last).length > 0) throw invalid(COUNT)
}

/** The first `$ref` in a response's value, which names a medium of the response (googleapis/python-genai#2792). */
function referenceIn(value: unknown): string | undefined {
  if (typeof value !== 'object' || value === null) return undefined
  const own = '$ref' in value ? String(value.$ref) : undefined
  return (
    own ??
    Object.values(value)
      .map(referenceIn)
      .find((name) => name !== undefined)
  )
}

const isResponse = (part: Part) => part.functionResponse !== undefined

function checkMedia(
  parts: readonly { inlineData?: { mimeType?: string; data?: string } }[],
  signed: boolean,
): void {
  if (parts.length > 0 && !signed) {
    throw invalid('Multimodal function responses are not supported by this model.')
  }
  for (const { inlineData } of parts) {
    const type = inlineData?.mimeType ?? ''
    if (!/^image\/(png|jpeg|webp)$|^application\/pdf$/.test(type)) {
      throw invalid(`Unsupported MIME type in a function response: ${type}`)
    }
    checkBytes(inlineData ?? {})
  }
}

/** Google's two documented dummy signatures (4.4). */
const DUMMIES = ['skip_thought_signature_validator', 'context_engineering_is_the_way_to_go']

function checkSignatures(contents: readonly Content[], model: string, signatures: Signatures): void {
  const start = contents.findLastIndex(startsTurn)
  contents.forEach((content, i) => {
    for (const part of content.parts ?? []) {
      const signature = part.thoughtSignature
      if (signature === undefined || DUMMIES.includes(signature)) continue
      if (!signatures.accepts(model, signedPart(part), signature)) {
        throw invalid('Thought signature is not valid.')
      }
    }
    const first = (content.parts ?? []).find((part) => part.functionCall)
    if (i > start && first && !first.thoughtSignature) {
      throw invalid(
        'Function call is missing a thought_signature in functionCall parts. This is required for tools to work ' +
          'correctly, and missing thought_signature may lead to degraded model performance. Additional data, ' +
          `function call \`default_api:${first.functionCall?.name}\` , position ${i + 1}. Please refer to ` +
          'https://ai.google.dev/gemini-api/docs/thought-signatures for more details.',
      )
    }
  })
}

function checkSignedTexts(contents: readonly Content[]): void {
  contents.forEach((content, i) => {
    if (roleOf(content) !== 'model') return
    const at = (content.parts ?? []).findIndex((part) => part.text && !part.thoughtSignature)
    if (at >= 0) {
      throw invalid(
        `Text part is missing a thought_signature in content position ${i + 1}, part position ${at + 1}.`,
      )
    }
  })
}

/** The current turn starts with the last user content that has text and answers no call. */
const startsTurn = (content: Content): boolean =>
  roleOf(content) === 'user' &&
  responsesOf(content).length === 0 &&
  (content.parts ?? []).some((part) => part.text !== undefined)

function checkFilled(contents: readonly Content[]): void {
  contents.forEach(({ parts = [] }, i) => {
    parts.forEach(({ functionCall, functionResponse, inlineData }, j) => {
      if (inlineData && !inlineData.data) {
        throw invalid(`* GenerateContentRequest.contents[${i}].parts[${j}].inline_data.data: is required\n`)
      }
      const named = functionCall ?? functionResponse
      if (!named) return
      const field = functionCall ? 'function_call' : 'function_response'
      const at = `* GenerateContentRequest.contents[${i}].parts[${j}].${field}.name`
      if (!named.name) throw invalid(`${at}: Name cannot be empty.\n`)
      if (!NAME.test(named.name)) throw invalid(`${at}: ${NAME_RULE}\n`)
    })
  })
}

function checkSettings(config: NonNullable<Request['generationConfig']>, traits: Traits): void {
  const sampling = ['temperature', 'topP', 'topK'].find((field) => config[field] !== undefined)
  if (traits.newest && sampling) throw invalid(`${sampling} is not supported by this model.`)
  if (traits.signed && Number(config.candidateCount ?? 1) !== 1)
    throw invalid('Multiple candidates is not enabled for this model')
  const most = Number(config.maxOutputTokens ?? 1)
  if (most < 1 || most > traits.output) {
    throw invalid(
      `Unable to submit request because it has a maxOutputTokens value of ${most} but the supported range is from 1 (inclusive) to ${traits.output + 1} (exclusive). Update the value and try again.`,
    )
  }
  if (config.thinkingConfig === undefined) return
  const { includeThoughts, thinkingBudget: budget, thinkingLevel: level } = config.thinkingConfig
  if (budget !== undefined && level !== undefined) {
    throw invalid('You can only set only one of thinking budget and thinking level.')
  }
  if (traits.levels.length === 0 && !traits.budget) throw invalid('Thinking is not supported by this model.')
  if (level !== undefined && !traits.levels.includes(level)) {
    throw invalid(`Thinking level ${level} is not supported for this model.`)
  }
  // googleapis/python-genai#2936, in the words of kayac/nepp-chan#989
  if (budget === 0 && traits.cannotStop) throw invalid('Request contains an invalid argument.')
  // Gemini 3 takes a budget in place of a level (8.2), Gemma does not (aduermael/herm#23).
  if (budget !== undefined && !traits.budget && !traits.signed)
    throw invalid('Thinking budget is not supported for this model.')
  // google-gemini/gemini-cli#1953
  if (includeThoughts && (budget === 0 || (budget === undefined && traits.idle))) {
    throw invalid('Thinking_config.include_thoughts is only enabled when thinking is enabled.')
  }
  const range = traits.budget
  if (budget === undefined || budget === -1 || !range || (budget === 0 && range.off)) return
  if (budget < range.min || budget > range.max || budget === 0) {
    throw invalid(
      `The thinking budget ${budget} is invalid. Please choose a value between ${range.min} and ${range.max}.`,
    )
  }
}
