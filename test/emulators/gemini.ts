/**
 * Google's two endpoints for Gemini on one loopback server: the public API under `/v1beta` (key or bearer) and Code
 * Assist under `/v1internal` (bearer). They are as strict as the wire page says the real ones are, so that a request
 * that passes here keeps every documented rule. Answers are scenes (scene.ts).
 */
import { chunksOf, mergeChunks, type Step } from './gemini-answer.ts'
import { traitsOf } from './gemini-models.ts'
import { type Content, checkRequest, createSignatures, type Request } from './gemini-rules.ts'
import { CODE_ASSIST_REQUEST, invalid, PUBLIC_REQUEST, Refusal, readBody } from './gemini-shape.ts'
import { declarationsOf } from './gemini-tools.ts'
import { type Beat, type Emulator, type Recorded, type Reply, serve } from './http.ts'
import type { Json } from './json.ts'
import { type Answer, defaultScene, type SceneInput, type Script } from './scene.ts'

export interface GeminiEmulator extends Emulator {
  /** `…/v1beta` */
  publicBaseUrl: string
  /** `…/v1internal` */
  codeAssistBaseUrl: string
  /** Tools that a model called and that its request did not declare, in the order of the answers. */
  unexpected: string[]
  /** Replaces the default scenes if it returns a scene; null restores the default. */
  script(play: Script | null): void
  /** From now on this key or token is refused. */
  revoke(secret: string): void
}

/**
 * Every key and token is good until it is revoked. A token with `code-assist` in it is one of Gemini CLI's client,
 * which the public API refuses.
 */
export async function createGeminiEmulator(port = 0): Promise<GeminiEmulator> {
  const signatures = createSignatures()
  const revoked = new Set<string>()
  const unexpected: string[] = []
  let play: Script | null = null
  let serial = 0

  const generate = async (request: Recorded, call: Call): Promise<Reply> => {
    const traits = findModel(call)
    checkRequest(call.body, call.model, traits, signatures)
    const input = sceneInput(call.body)
    const scene = (await play?.(request, input)) ?? defaultScene(input)
    if ('status' in scene) return scene
    const config = call.body.toolConfig?.functionCallingConfig
    const steps = chunksOf(scene, {
      model: call.model,
      traits,
      signatures,
      callable: config?.mode === 'NONE' ? [] : input.tools,
      thoughts: call.body.generationConfig?.thinkingConfig?.includeThoughts === true,
      promptTokens: tokensOf(call.body),
      serial: ++serial,
      onUnexpected: (tool) => unexpected.push(tool),
    })
    return call.method === 'generateContent' ? whole(scene, steps, call) : streamed(scene, steps, call)
  }

  const answer = async (request: Recorded): Promise<Reply> => {
    const isCodeAssist = request.path.startsWith('/v1internal')
    try {
      checkCredentials(request, isCodeAssist, revoked)
      return await (isCodeAssist ? codeAssist : publicApi)(request, generate)
    } catch (thrown) {
      if (thrown instanceof Refusal) {
        return { status: thrown.status, body: errorBody(thrown, isCodeAssist) }
      }
      throw thrown
    }
  }

  const server = await serve(answer, port)
  return {
    ...server,
    publicBaseUrl: `${server.url}/v1beta`,
    codeAssistBaseUrl: `${server.url}/v1internal`,
    unexpected,
    script(next) {
      play = next
    },
    revoke: (secret) => void revoked.add(secret),
  }
}

/** A generation request, through either endpoint. */
interface Call {
  method: 'streamGenerateContent' | 'generateContent'
  model: string
  body: Request
  codeAssist: boolean
  /** `alt=sse` */
  events: boolean
}
type Generate = (request: Recorded, call: Call) => Promise<Reply>

const notFound = () => new Refusal(404, 'NOT_FOUND', 'Requested entity was not found.')

/** A model that has another name at the other endpoint (8.1). */
const NAMES_ELSEWHERE = { codeAssist: 'gemini-3.5-flash', publicApi: 'gemini-3-flash' }

function findModel({ model, codeAssist, method }: Call) {
  const traits = traitsOf(model)
  const isElsewhere = model === (codeAssist ? NAMES_ELSEWHERE.codeAssist : NAMES_ELSEWHERE.publicApi)
  if (traits && !isElsewhere) return traits
  throw codeAssist
    ? notFound()
    : new Refusal(
        404,
        'NOT_FOUND',
        `models/${model} is not found for API version v1beta, or is not supported for ${method}. Call ListModels to see the list of available models and their supported methods.`,
      )
}

async function publicApi(request: Recorded, generate: Generate): Promise<Reply> {
  const { pathname, searchParams } = new URL(request.path, 'http://emulator')
  if (request.method === 'GET' && pathname === '/v1beta/models') return { status: 200, body: MODEL_LIST }
  const [, name, method] = /^\/v1beta\/models\/([^/:]+):(\w+)$/.exec(pathname) ?? []
  if (request.method !== 'POST' || name === undefined) throw notFound()
  const model = decodeURIComponent(name)
  if (method !== 'streamGenerateContent' && method !== 'generateContent') throw notFound()
  // gemini-shape.ts has checked this shape.
  const body = readBody(request.body, PUBLIC_REQUEST) as Request
  return generate(request, {
    method,
    model,
    body,
    codeAssist: false,
    events: searchParams.get('alt') === 'sse',
  })
}

async function codeAssist(request: Recorded, generate: Generate): Promise<Reply> {
  const { pathname, searchParams } = new URL(request.path, 'http://emulator')
  const method = pathname.slice('/v1internal:'.length)
  if (request.method !== 'POST') throw notFound()
  if (method === 'loadCodeAssist') return { status: 200, body: ACCOUNT }
  if (method === 'onboardUser') return { status: 200, body: ONBOARDED }
  if (method !== 'streamGenerateContent' && method !== 'generateContent') throw notFound()
  const envelope = readBody(request.body, CODE_ASSIST_REQUEST)
  const { project, model } = envelope
  if (typeof model !== 'string' || model.startsWith('models/')) throw invalid('Invalid model name.')
  if (typeof project !== 'string' || project === '') {
    throw new Refusal(500, 'INTERNAL', 'Internal error encountered.')
  }
  if (project === 'default') {
    throw new Refusal(
      403,
      'PERMISSION_DENIED',
      'Permission denied on resource project default.',
      'CONSUMER_INVALID',
    )
  }
  const body = (envelope.request ?? {}) as Request
  // No Files API on this path (9.1).
  if (body.contents?.some(({ parts }) => parts?.some(({ fileData }) => fileData))) {
    throw invalid('File data is not supported; use inline data.')
  }
  return generate(request, {
    method,
    model,
    body,
    codeAssist: true,
    events: searchParams.get('alt') === 'sse',
  })
}

const denied = (message: string, reason?: string) => new Refusal(403, 'PERMISSION_DENIED', message, reason)

/**
 * Checks that there is one credential of the endpoint's kind: a key or a token at the public API, a token at Code
 * Assist.
 */
function checkCredentials({ headers }: Recorded, isCodeAssist: boolean, revoked: ReadonlySet<string>): void {
  const key = headers['x-goog-api-key']
  const token = /^Bearer (\S+)$/.exec(headers.authorization ?? '')?.[1]
  if (key && headers.authorization) {
    throw invalid('Multiple authentication credentials received. Please pass only one.')
  }
  if (isCodeAssist || headers.authorization) {
    if (token === undefined) throw unauthenticated('CREDENTIALS_MISSING')
    if (revoked.has(token)) throw unauthenticated('ACCESS_TOKEN_EXPIRED')
  } else if (!key) {
    throw denied(
      "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.",
    )
  } else if (revoked.has(String(key))) {
    const message = 'API key not valid. Please pass a valid API key.'
    throw new Refusal(400, 'INVALID_ARGUMENT', message, 'API_KEY_INVALID')
  }
  if (!isCodeAssist && token?.includes('code-assist')) {
    throw denied('Request had insufficient authentication scopes.', 'ACCESS_TOKEN_SCOPE_INSUFFICIENT')
  }
}

const unauthenticated = (reason: string) =>
  new Refusal(
    401,
    'UNAUTHENTICATED',
    'Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.',
    reason,
  )

/** The error body of either endpoint (7.1). Code Assist adds the older `errors` list. */
function errorBody({ status, code, message, reason }: Refusal, isCodeAssist: boolean): Json {
  const OLD: Record<number, string> = {
    400: 'badRequest',
    401: 'authError',
    403: 'forbidden',
    404: 'notFound',
  }
  const domain = isCodeAssist ? 'cloudcode-pa.googleapis.com' : 'googleapis.com'
  const details = reason ? [{ '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason, domain }] : []
  const errors = isCodeAssist
    ? { errors: [{ message, domain: 'global', reason: OLD[status] ?? 'backendError' }] }
    : {}
  return {
    error: { code: status, message, ...errors, status: code, ...(details.length > 0 ? { details } : {}) },
  }
}

const tokensOf = (body: Request): number => Math.ceil(JSON.stringify(body).length / 4)

/** What a scene may read of the request. */
function sceneInput(body: Request): SceneInput {
  const contents = body.contents ?? []
  const said = contents.map((content, i) => userText(content, contents[i - 1]))
  const start = said.findLastIndex((text) => text !== '')
  const answers = contents.slice(start + 1).filter((content) => resultsOf(content).length > 0)
  return {
    tools: declarationsOf(body).flatMap(({ name }) => name ?? []),
    user: said[start] ?? '',
    step: answers.length,
    results: resultsOf(answers.at(-1) ?? {}),
  }
}

/** The user's own text. After results it is without the caption in brackets that precedes their media. */
const userText = ({ role = 'user', parts = [] }: Content, before: Content = {}): string => {
  if (role !== 'user') return ''
  const answersCalls = resultsOf(before).length > 0
  const texts = parts.flatMap(({ text }) => (text === undefined ? [] : [text]))
  return texts.filter((text) => !(answersCalls && text.startsWith('[From the result of '))).join('\n')
}

const resultsOf = ({ parts = [] }: Content): string[] =>
  parts.flatMap(({ functionResponse }) => {
    if (!functionResponse) return []
    const { response = {} } = functionResponse
    const said = response.output ?? response.error ?? response
    return [typeof said === 'string' ? said : JSON.stringify(said)]
  })

/** A chunk as the call's endpoint sends it (3.2). */
const enveloped = (chunk: Json, { codeAssist }: Call): string =>
  JSON.stringify(codeAssist ? { response: chunk, traceId: '5c1e9f0a3b7d2e64' } : chunk)

/** Without `alt=sse` the stream is one JSON array. The public API ends its lines with CRLF (6.1). */
function streamed(answer: Answer, steps: readonly Step[], call: Call): Reply {
  const line = call.codeAssist ? '\n' : '\r\n'
  const frame = (json: string, n: number) => {
    if (call.events) return `data: ${json}${line}${line}`
    return n === 0 ? `[${json}` : `,\r\n${json}`
  }
  const { ending } = answer
  const chunks = steps.filter((step) => 'chunk' in step).length
  // The last chunk is the vendor's end of stream, and every scripted ending replaces it.
  const sent = ending === undefined ? chunks : Math.min(answer.after ?? chunks - 1, chunks - 1)
  const beats: Beat[] = []
  let n = 0
  for (const step of steps) {
    if (n >= sent) break
    beats.push('wait' in step ? step.wait : frame(enveloped(step.chunk, call), n++))
  }
  if (typeof ending === 'object') {
    const { status, body } = failed(ending)
    beats.push(frame(status === 200 ? enveloped(body, call) : JSON.stringify(body), n))
  }
  if (!call.events) beats.push(']')
  return {
    stream: beats,
    ...(answer.chunk === undefined ? {} : { chunk: answer.chunk }),
    ...(call.events ? {} : { headers: { 'content-type': 'application/json' } }),
    ending: ending === 'cut' || ending === 'hang' ? ending : 'end',
  }
}

const CODES: Readonly<Record<string, number>> = {
  INVALID_ARGUMENT: 400,
  RESOURCE_EXHAUSTED: 429,
  INTERNAL: 500,
  DEADLINE_EXCEEDED: 504,
}

/** Failures that come as the reason why the answer ends (6.4), and so under a 200. */
const REASONS = ['OTHER', 'LANGUAGE', 'NO_IMAGE']

function failed({ code, message }: { code: string; message: string }): { status: number; body: Json } {
  if (REASONS.includes(code)) {
    return { status: 200, body: { candidates: [{ finishReason: code, finishMessage: message, index: 0 }] } }
  }
  const status = CODES[code] ?? 503
  return { status, body: { error: { code: status, message, status: code in CODES ? code : 'UNAVAILABLE' } } }
}

async function whole(answer: Answer, steps: readonly Step[], call: Call): Promise<Reply> {
  if (typeof answer.ending === 'object') {
    const { status, body } = failed(answer.ending)
    return { status, body: status === 200 ? enveloped(body, call) : body }
  }
  if (answer.ending === 'cut' || answer.ending === 'hang') return { stream: [], ending: answer.ending }
  const chunks: Json[] = []
  for (const step of steps) {
    if ('wait' in step) await step.wait()
    else chunks.push(step.chunk)
  }
  return {
    status: 200,
    headers: { 'content-type': 'application/json' },
    body: enveloped(mergeChunks(chunks), call),
  }
}

const model = (id: string, methods: string[], thinking: boolean): Json => ({
  name: `models/${id}`,
  version: '001',
  displayName: id,
  inputTokenLimit: 1_048_576,
  outputTokenLimit: 65_536,
  supportedGenerationMethods: methods,
  ...(thinking ? { thinking } : {}),
})

const MODEL_LIST: Json = {
  models: [
    model('gemini-2.5-flash', ['generateContent', 'countTokens'], true),
    model('gemini-3.1-pro-preview', ['generateContent', 'countTokens'], true),
    model('gemini-3.8-flash', ['generateContent', 'countTokens'], true),
    model('gemini-embedding-001', ['embedContent'], false),
  ],
}

const ACCOUNT: Json = {
  currentTier: { id: 'standard-tier', name: 'Gemini Code Assist', userDefinedCloudaicompanionProject: true },
  allowedTiers: [{ id: 'standard-tier', name: 'Gemini Code Assist', isDefault: true }],
  cloudaicompanionProject: 'acme-dev-482910',
}

const ONBOARDED: Json = {
  name: 'operations/onboarding-1',
  done: true,
  response: { cloudaicompanionProject: { id: 'acme-dev-482910', name: 'acme-dev-482910' } },
}
