/**
 * An emulated api.anthropic.com for both deployments: /v1/messages and /v1/models, as strict as the vendor is known to
 * be (anthropic-rules.ts, -order.ts, -thinking.ts).
 *
 * Secrets name their organization: `sk-ant-api03-<organization>…` and `sk-ant-oat01-<organization>…`, up to the next
 * dash. Another organization cannot send back thinking that was made for this one.
 */
import { readFileSync } from 'node:fs'
import { MODELS, modelInfo, modelOf } from './anthropic-models.ts'
import { base64In, checkMessages, mergeRoles, type Turn } from './anthropic-order.ts'
import { checkFields, checkHead, type Head, invalid, Refusal } from './anthropic-rules.ts'
import { createPromptCache, requestId, tell } from './anthropic-stream.ts'
import { type Asker, checkReplay } from './anthropic-thinking.ts'
import { type Emulator, type JsonReply, type Recorded, type Reply, serve } from './http.ts'
import { type Json, list, object, parseObject, string } from './json.ts'
import { defaultScene, type SceneInput, type Script } from './scene.ts'

export interface AnthropicEmulator extends Emulator {
  /** Replaces the default scenes; null restores them. */
  script(fn: Script | null): void
  /** Makes a secret fail from now on, in the vendor's words. */
  refuse(secret: string, as: keyof typeof REFUSED): void
}

const REFUSED = {
  expired: [
    401,
    'authentication_error',
    'OAuth token has expired. Please obtain a new token or refresh your existing token.',
  ],
  revoked: [403, 'permission_error', 'OAuth token has been revoked. Please obtain a new token.'],
  unknown: [401, 'authentication_error', 'invalid x-api-key'],
} as const

/** An error in the vendor's shape, for scripts. */
export const anthropicError = (
  status: number,
  type: string,
  message: string,
  headers: Record<string, string> = {},
): JsonReply => ({
  status,
  headers,
  body: { type: 'error', error: { details: null, type, message }, request_id: headers['request-id'] ?? null },
})

/** The invented failure with this name in test/fixtures/anthropic, as a reply. */
export function anthropicFixture(name: string): JsonReply {
  const path = new URL(`../../../test/fixtures/anthropic/${name}`, import.meta.url)
  const { status, headers, body } = JSON.parse(readFileSync(path, 'utf8'))
  return { status, headers, body }
}

export async function createAnthropicEmulator(port = 0): Promise<AnthropicEmulator> {
  const refused = new Map<string, keyof typeof REFUSED>()
  const cache = createPromptCache()
  let script: Script | null = null
  let serial = 0

  const answer = async (request: Recorded): Promise<Reply> => {
    const mine = ++serial
    try {
      return await route(request, mine)
    } catch (thrown) {
      if (!(thrown instanceof Refusal)) throw thrown
      return anthropicError(thrown.status, thrown.type, thrown.message, { 'request-id': requestId(mine) })
    }
  }

  const route = async (request: Recorded, mine: number): Promise<Reply> => {
    const { pathname } = new URL(request.path, 'http://emulator')
    const organization = authenticate(request, refused)
    const head = checkHead(request.headers)
    const target = `${request.method} ${pathname}`
    if (target === 'GET /v1/models') return models()
    if (target !== 'POST /v1/messages') throw new Refusal(404, 'not_found_error', 'Not found')
    const { asker, turns } = read(request.text, organization, head)
    const dropped = checkReplay(asker, turns)
    const input = sceneInput(asker.body, turns)
    const scene = (await script?.(request, input)) ?? defaultScene(input)
    if ('status' in scene) return scene
    return tell(scene, { asker, turns, serial: mine, cached: cache(asker, turns), dropped })
  }

  return {
    ...(await serve(answer, port)),
    script(fn) {
      script = fn
    },
    refuse: (secret, as) => void refused.set(secret, as),
  }
}

/** The organization behind the request's secret (wire/anthropic.md 1.6, 2.2). */
function authenticate({ headers }: Recorded, refused: ReadonlyMap<string, keyof typeof REFUSED>): string {
  const fail = (message: string) => new Refusal(401, 'authentication_error', message)
  const key = string(headers['x-api-key'])
  const bearer = /^Bearer (.+)$/.exec(headers.authorization ?? '')?.[1]
  const secret = key ?? bearer
  if (secret === undefined) throw fail('x-api-key header is required')
  if (key !== undefined && bearer !== undefined) throw fail('invalid x-api-key')
  if (headers.origin !== undefined) throw fail('CORS requests are not allowed for this Organization')
  const [, kind, organization] = /^sk-ant-(api03|oat01)-([^-]+)/.exec(secret) ?? []
  if (!organization || (kind === 'oat01' && key !== undefined)) {
    throw fail(key === undefined ? 'Invalid bearer token' : 'invalid x-api-key')
  }
  const betas = String(headers['anthropic-beta'] ?? '').split(',')
  if (kind === 'oat01' && !betas.includes('oauth-2025-04-20')) {
    throw fail('OAuth authentication is currently not supported.')
  }
  const why = refused.get(secret)
  if (why) {
    const [status, type, message] = REFUSED[why]
    throw new Refusal(status, type, message)
  }
  return organization
}

/** A message request as the API reads it. Throws a Refusal for a request that the API does not take. */
function read(text: string, organization: string, head: Head): { asker: Asker; turns: Turn[] } {
  if (Buffer.byteLength(text) > 32 * 1024 * 1024)
    throw new Refusal(413, 'request_too_large', 'Request exceeds the maximum size')
  const body = parseObject(text)
  if (!body) invalid('The request body is not valid JSON')
  const id = string(body.model)
  if (id === undefined) invalid('model: Field required')
  const model = modelOf(id)
  if (!model) throw new Refusal(404, 'not_found_error', `model: ${id}`)
  checkFields(body, head, model)
  const turns = checkMessages(body.messages, model)
  const size = Math.ceil((text.length - base64In(turns)) / 4)
  if (size > model.window) invalid(`prompt is too long: ${size} tokens > ${model.window} maximum`)
  return { asker: { model, organization, body }, turns }
}

/** The API's refusal of a rendered request, without a look at credentials and signatures; null if the API takes it. */
export function refusalOf({
  headers,
  body,
}: {
  headers: Record<string, string>
  body: unknown
}): string | null {
  try {
    read(JSON.stringify(body), '', checkHead(headers))
    return null
  } catch (thrown) {
    if (thrown instanceof Refusal) return thrown.message
    throw thrown
  }
}

function models(): JsonReply {
  const ids = MODELS.map(({ id }) => id)
  const body = { data: MODELS.map(modelInfo), has_more: false, first_id: ids[0], last_id: ids.at(-1) }
  return { status: 200, body }
}

/** What the scenes may depend on. The turn begins with the last user message that has text. */
function sceneInput(body: Json, sent: readonly Turn[]): SceneInput {
  const turns = mergeRoles(sent.filter(({ role }) => role !== 'system'))
  const begin = turns.findLastIndex(({ role, blocks }) => role === 'user' && userText(blocks) !== '')
  const answered = turns.slice(begin + 1).filter(({ role }) => role === 'user')
  const results = (turns.at(-1)?.blocks ?? []).filter(({ type }) => type === 'tool_result')
  const callable = object(body.tool_choice).type === 'none' ? [] : list(body.tools)
  return {
    tools: callable.map((tool) => String(object(tool).name)),
    user: userText(turns[begin]?.blocks ?? []),
    step: answered.length,
    results: results.map(({ content }) =>
      typeof content === 'string' ? content : textOf(list(content).map(object)),
    ),
  }
}

/** The user's own text, without the words that Baton puts before the media of a failed result. */
function userText(blocks: readonly Json[]): string {
  const answersCalls = blocks.some(({ type }) => type === 'tool_result')
  const isCaption = ({ text }: Json) => answersCalls && String(text).startsWith('[From the result of ')
  return textOf(blocks.filter((block) => !isCaption(block)))
}

const textOf = (blocks: readonly Json[]): string =>
  blocks.flatMap(({ type, text }) => (type === 'text' ? [String(text)] : [])).join('\n')
