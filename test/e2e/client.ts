/**
 * A client of Baton for tests: JSON with its status and headers, event streams with every frame as it came. A frame
 * that is not what the OpenAPI document says breaks its stream, and an answer that is not rejects its call.
 */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { Event } from '../../routes/turn-event.ts'
import { type Document, documented } from '../routes/document.ts'

// biome-ignore lint/suspicious/noExplicitAny: a test's view of JSON answers; the contract is the API's
export type Json = any

export interface Answer {
  status: number
  headers: Headers
  body: Json
}

export interface Frame {
  id: string
  type: string
  data: Json
  /** The frame as it was sent, without its closing blank line */
  raw: string
}

export interface EventStream {
  status: number
  headers: Headers
  /** Id of the turn that a POST began or found; empty for other streams */
  turn: string
  /** Grows while the stream is read */
  frames: Frame[]
  comments: string[]
  /** The first frame that fits, once it is there; rejects when the stream breaks, or ends without one. */
  until(fits: string | ((frame: Frame) => boolean)): Promise<Frame>
  /** All frames, once the stream has ended. */
  done: Promise<Frame[]>
  /** Leaves, as a client that closes its connection does; throws if the stream is broken. */
  leave(): void
}

export interface Client {
  url: string
  call(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>
  /** These throw unless the answer is a 2xx, and give its body. */
  get(path: string): Promise<Json>
  post(path: string, body?: unknown): Promise<Json>
  put(path: string, body?: unknown): Promise<Json>
  patch(path: string, body: unknown): Promise<Json>
  delete(path: string): Promise<Json>
  /** A streamed turn; resolves with the response's head. */
  turn(session: string, input: string | Json, headers?: Record<string, string>): Promise<EventStream>
  follow(path: string, headers?: Record<string, string>): Promise<EventStream>
}

/** Every gateway of these tests has the same document. */
let conforms: ReturnType<typeof documented> | undefined

export function createClient(url: string): Client {
  const send = (
    method: string,
    path: string,
    body: unknown,
    headers: Record<string, string>,
    signal?: AbortSignal,
  ) =>
    fetch(url + path, {
      method,
      headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    })

  async function call(method: string, path: string, body?: unknown, headers = {}): Promise<Answer> {
    const response = await send(method, path, body, headers)
    const text = await response.text()
    const answer = text === '' ? null : JSON.parse(text)
    conforms ??= documented((await (await fetch(`${url}/openapi.json`)).json()) as Document)
    conforms(method, path, response.status, answer ?? undefined, Object.fromEntries(response.headers))
    return { status: response.status, headers: response.headers, body: answer }
  }
  const good = async (method: string, path: string, body?: unknown): Promise<Json> => {
    const answer = await call(method, path, body)
    if (answer.status < 300) return answer.body
    throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
  }
  async function stream(method: string, path: string, body: unknown, headers = {}): Promise<EventStream> {
    const abort = new AbortController()
    const response = await send(method, path, body, headers, abort.signal)
    return read(response, () => abort.abort())
  }
  return {
    url,
    call,
    get: (path) => good('GET', path),
    post: (path, body) => good('POST', path, body),
    put: (path, body) => good('PUT', path, body),
    patch: (path, body) => good('PATCH', path, body),
    delete: (path) => good('DELETE', path),
    turn: (session, input, headers) =>
      stream('POST', `/v1/sessions/${session}/turns`, typeof input === 'string' ? { input } : input, headers),
    follow: (path, headers) => stream('GET', path, undefined, headers),
  }
}

async function read(response: Response, leave: () => void): Promise<EventStream> {
  const { status, headers } = response
  const frames: Frame[] = []
  const comments: string[] = []
  const isStream = headers.get('content-type')?.startsWith('text/event-stream') ?? false
  const text = isStream ? '' : await response.text()
  let wake = () => {}
  let isOver = !isStream
  let broken: unknown
  const take = (raw: string) => {
    if (raw.startsWith(':')) return void comments.push(raw.slice(1).trim())
    if (raw === '') return
    try {
      frames.push(frameOf(raw))
    } catch (thrown) {
      broken = thrown
      throw thrown
    }
  }
  const assertSound = () => {
    if (broken !== undefined) throw broken
  }
  async function consume(): Promise<Frame[]> {
    if (!isStream || !response.body) return frames
    const utf8 = new TextDecoder()
    let rest = ''
    try {
      for await (const chunk of response.body) {
        const pieces = (rest + utf8.decode(chunk, { stream: true })).split('\n\n')
        rest = pieces.pop() ?? ''
        for (const piece of pieces) take(piece)
        wake()
      }
    } catch (thrown) {
      if (!(thrown instanceof Error) || thrown.name !== 'AbortError') throw thrown
    } finally {
      isOver = true
      wake()
    }
    return frames
  }
  const done = consume()
  // A test that never awaits `done` sees a frame that does not fit in `until` or `leave`.
  done.catch(() => {})
  return {
    status,
    headers,
    turn: headers.get('x-baton-turn') ?? '',
    frames,
    comments,
    done,
    leave() {
      assertSound()
      leave()
    },
    async until(fits) {
      const test = typeof fits === 'string' ? ({ type }: Frame) => type === fits : fits
      while (true) {
        assertSound()
        const found = frames.find(test)
        if (found) return found
        if (isOver) {
          const seen = frames.map(({ type }) => type).join(' ')
          throw new Error(`the stream (${status}) ended without the frame ${fits}: ${seen} ${text}`)
        }
        await new Promise<void>((resolve) => {
          const before = wake
          wake = () => {
            before()
            resolve()
          }
        })
      }
    },
  }
}

function frameOf(raw: string): Frame {
  const field = (name: string) =>
    raw
      .split('\n')
      .find((line) => line.startsWith(`${name}: `))
      ?.slice(name.length + 2) ?? ''
  const data = JSON.parse(field('data'))
  const check = checkOf(data.type)
  if (!check(data)) throw new Error(`${raw} does not fit the document: ${JSON.stringify(check.errors)}`)
  return { id: field('id'), type: field('event'), data, raw }
}

const BRANCHES = (Event as unknown as { oneOf: { properties: { type: { const: string } } }[] }).oneOf
const ajv = new Ajv2020({
  strict: false,
  validateFormats: false,
  discriminator: true,
  // It compiles in a third of the time.
  code: { optimize: false },
})
const checks = new Map<string, ValidateFunction>()
/**
 * What checks an event of this type against the document, and allows no field that the document does not name. Compiled
 * with the first event of the type: all of them together take half a second.
 */
function checkOf(type: string): ValidateFunction {
  const branch = BRANCHES.find(({ properties }) => properties.type.const === type)
  if (!branch) throw new Error(`${type} is no event of the document`)
  const check = checks.get(type) ?? ajv.compile({ ...branch, additionalProperties: false })
  checks.set(type, check)
  return check
}

export const typesOf = (frames: readonly Frame[]): string[] => frames.map(({ type }) => type)
/** The types, with runs of one type as one: how many deltas are merged depends on the clock. */
export const outline = (frames: readonly Frame[]): string[] =>
  typesOf(frames).filter((type, i, all) => type !== all[i - 1])
/** Pieces of outlines: how every turn begins, how a step ends, and how a step with words ends. */
export const BEGUN = ['turn.created', 'turn.started', 'step.started']
export const COMMITTED = ['usage', 'message', 'step.completed']
export const ANSWERED = ['content.delta', ...COMMITTED]
/** The outline of a turn that calls no tool */
export const PLAIN_TURN = [...BEGUN, ...ANSWERED, 'turn.completed']

export const ofType = (frames: readonly Frame[], type: string): Json[] =>
  frames.filter((frame) => frame.type === type).map(({ data }) => data)
/** What was said in a session: each message's role and words. */
export const spoken = (messages: Json[]) =>
  messages.map(({ role, parts }) => [
    role,
    parts.map((part: Json) => part.text ?? part.name ?? part.type).join(''),
  ])
