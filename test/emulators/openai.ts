/**
 * OpenAI emulated on loopback, both paths: `/v1/responses` with a key and `/backend-api/codex/responses`
 * with a ChatGPT login, and their lists of models. It refuses what the real services refuse.
 */
import { createHash, createHmac } from 'node:crypto'
import { type Emulator, type JsonReply, type Recorded, type Reply, serve } from './http.ts'
import { isObject, type Json } from './json.ts'
import { appendsInstructions, checkBody } from './openai-check.ts'
import { Refusal, refuse, refuseDetail, text } from './openai-refusal.ts'
import { type Play, streamReply, wholeResponse } from './openai-stream.ts'
import { type Answer, defaultScene, type SceneInput, type SceneUsage, type Script } from './scene.ts'

export interface OpenAiEmulator extends Emulator {
  /** `…/v1` and `…/backend-api/codex`: what BATON_OPENAI_BASE_URL and BATON_CHATGPT_BASE_URL take. */
  keyBaseUrl: string
  chatgptBaseUrl: string
  /** A test's own behaviour, after the checks; null restores the default scene. */
  script(play: Script | null): void
  /** From now on this token or key is answered with a 401. */
  revoke(token: string): void
  /** From now on the path with a key is as strict as a server that checks the input against the SDK's types. */
  typed(): void
}

interface World {
  script: Script | null
  revoked: Set<string>
  typed: boolean
  ids: number
  /** Last prompt of every cache key. What the next prompt has in common with it counts as cached. */
  prompts: Map<string, string>
}

/** Who the caller proved to be. Reasoning tokens are bound to this identity. */
interface Caller {
  chatgpt: boolean
  account: string
}

export async function createOpenAiEmulator(port = 0): Promise<OpenAiEmulator> {
  const world: World = { script: null, revoked: new Set(), typed: false, ids: 0, prompts: new Map() }
  const server = await serve(async (request) => {
    try {
      return await route(world, request)
    } catch (thrown) {
      if (thrown instanceof Refusal) return thrown.reply
      throw thrown
    }
  }, port)
  return {
    ...server,
    keyBaseUrl: `${server.url}/v1`,
    chatgptBaseUrl: `${server.url}/backend-api/codex`,
    script: (play) => {
      world.script = play
    },
    revoke: (token) => {
      world.revoked.add(token)
    },
    typed: () => {
      world.typed = true
    },
  }
}

async function route(world: World, request: Recorded): Promise<Reply> {
  const [path = ''] = request.path.split('?')
  const chatgpt = path.startsWith('/backend-api/codex/')
  const key = `${request.method} ${path.replace(/^\/(v1|backend-api\/codex)\//, '')}`
  if (key === 'GET models') {
    authenticate(world, request, chatgpt)
    // The list is filtered by this version (wire/openai.md 9).
    if (chatgpt && !request.path.includes('client_version=')) refuseDetail('client_version is required')
    return { status: 200, body: chatgpt ? CHATGPT_MODELS : PUBLIC_MODELS }
  }
  if (key !== 'POST responses') return { status: 404, body: { detail: 'Not Found' } }
  return respond(world, request, authenticate(world, request, chatgpt))
}

function authenticate(world: World, { headers }: Recorded, chatgpt: boolean): Caller {
  const token = /^Bearer (\S+)$/.exec(headers.authorization ?? '')?.[1] ?? ''
  if (world.revoked.has(token)) {
    const message = 'Your authentication token has been invalidated. Please try signing in again.'
    refuse(message, null, 'token_invalidated', 401)
  }
  if (!chatgpt) {
    if (token.startsWith('sk-')) return { chatgpt, account: token }
    refuse(`Incorrect API key provided: ${token.slice(0, 4)}***.`, null, 'invalid_api_key', 401)
  }
  const account = text(headers['chatgpt-account-id'])
  const known = token !== '' && !token.startsWith('sk-') && account !== '' && !account.startsWith('org-')
  if (!known || !headers.originator || !headers['user-agent']) refuseDetail('Unauthorized', 401)
  return { chatgpt, account }
}

async function respond(world: World, request: Recorded, caller: Caller): Promise<Reply> {
  const { headers } = request
  if (!headers['content-type']?.startsWith('application/json')) {
    return { status: 415, body: { detail: 'Unsupported Media Type' } }
  }
  if (headers['x-openai-internal-codex-responses-lite']) {
    const message = 'This model is not supported when using X-OpenAI-Internal-Codex-Responses-Lite.'
    refuse(message, 'model', 'unsupported_value')
  }
  const body: Json = isObject(request.body) ? request.body : {}
  const seal = (segments: string[]) => sealed(caller, text(body.model), segments)
  checkBody(request.body, {
    chatgpt: caller.chatgpt,
    typed: world.typed && !caller.chatgpt,
    verify: (token, segments) => token === seal(segments),
  })
  const input = sceneInput(body)
  const scene = (await world.script?.(request, input)) ?? defaultScene(input)
  if ('body' in scene) return scene
  const id = (prefix: string) => `${prefix}_${hash(`${world.ids++}`, prefix === 'call' ? 24 : 48)}`
  const play: Play = {
    body,
    scene,
    chatgpt: caller.chatgpt,
    usage: { ...counted(world, body, scene), ...scene.usage },
    issue: seal,
    id,
    response: id('resp'),
  }
  if (body.stream === true) return streamReply(play, replyHeaders(play))
  return notStreamed(play)
}

async function notStreamed(play: Play): Promise<JsonReply> {
  const { ending } = play.scene
  if (typeof ending !== 'object')
    return { status: 200, headers: replyHeaders(play), body: await wholeResponse(play) }
  return { status: 500, body: { error: { ...ending, type: 'server_error', param: null } } }
}

/** A token that only this account and model can send back, and only with the summary with which it came. */
function sealed({ chatgpt, account }: Caller, model: string, segments: string[]): string {
  const bound = JSON.stringify([chatgpt, account, model, segments])
  return `gAAAAAB${createHmac('sha256', 'emulated').update(bound).digest('base64url')}`
}

const hash = (value: string, length: number): string =>
  createHash('sha256').update(value).digest('hex').slice(0, length)

function replyHeaders({ chatgpt, id }: Play): Record<string, string> {
  const request = { 'x-request-id': id('req') }
  if (!chatgpt) return { ...request, 'x-ratelimit-remaining-requests': '4999' }
  return {
    ...request,
    'x-codex-plan-type': 'plus',
    'x-codex-primary-used-percent': '31',
    'x-codex-primary-reset-after-seconds': '7200',
  }
}

/**
 * Counts about four characters per token. The common beginning with the conversation's last prompt counts as cached.
 */
function counted(world: World, body: Json, scene: Answer): SceneUsage {
  const items = Array.isArray(body.input) ? body.input : [body.input]
  const said = appendsInstructions(text(body.model))
    ? [...items, body.instructions]
    : [body.instructions, ...items]
  const prompt = [body.tools, ...said].map((part) => JSON.stringify(part)).join('\n')
  const key = text(body.prompt_cache_key)
  const before = key === '' ? '' : (world.prompts.get(key) ?? '')
  let common = 0
  while (common < before.length && before[common] === prompt[common]) common++
  if (key !== '') world.prompts.set(key, prompt)
  const written = JSON.stringify(scene.items.filter(({ type }) => type !== 'wait')).length
  return {
    input_tokens: Math.ceil(prompt.length / 4),
    cached_tokens: Math.floor(common / 4),
    output_tokens: Math.ceil(written / 4),
    reasoning_tokens: scene.items.some(({ type }) => type === 'reasoning') ? 8 : 0,
  }
}

/** What the scene language needs to know of a request. */
function sceneInput({ input, tools, tool_choice }: Json): SceneInput {
  const items = (Array.isArray(input) ? input : [{ role: 'user', content: text(input) }]).filter(isObject)
  const user = items.findLastIndex(({ role }) => role === 'user')
  const since = items.slice(user + 1)
  const answered = (item: Json | undefined) => item?.type === 'function_call_output'
  const last = since.findLastIndex((item) => !answered(item))
  const callable = Array.isArray(tools) && tool_choice !== 'none' ? tools : []
  return {
    tools: callable.map((tool) => text(tool.name)),
    user: contentText(items[user]?.content),
    step: since.filter((item, i) => answered(item) && !answered(since[i + 1])).length,
    results: since.slice(last + 1).map(({ output }) => contentText(output)),
  }
}

function contentText(content: unknown): string {
  if (!Array.isArray(content)) return text(content)
  return content.map((part) => (part.type === 'input_text' ? part.text : `[${part.type}]`)).join('\n')
}

const PUBLIC_MODELS = {
  object: 'list',
  data: ['gpt-5.6-sol', 'gpt-4.1'].map((id) => ({
    id,
    object: 'model',
    created: 1790000000,
    owned_by: 'openai',
  })),
}
const LEVELS = ['low', 'medium', 'high', 'xhigh', 'max', 'ultra']
const CHATGPT_MODELS = {
  models: ['gpt-5.6-sol', 'codex-auto-review'].map((slug, i) => ({
    slug,
    display_name: slug,
    visibility: i === 0 ? 'list' : 'hide',
    context_window: 272000,
    supported_reasoning_levels: LEVELS.map((effort) => ({ effort, description: effort })),
  })),
}
