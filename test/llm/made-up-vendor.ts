/** A vendor that does not exist, servers that answer for it, and a bench to call them from. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createServer as createTcpServer, type Socket } from 'node:net'
import { pino } from 'pino'
import type { Test } from 'tap'
import type { ModelEvent } from '../../src/chat/event.ts'
import { BatonError } from '../../src/errors.ts'
import { createLlm, type LlmDeps, type ModelCall, noTries } from '../../src/llm.ts'
import type { Deployment, UpstreamFailure } from '../../src/provider.ts'
import type { ModelCallRecord } from '../../src/telemetry.ts'
import { listening } from '../listening.ts'
import { requestOf } from '../providers/exchange.ts'
import { gate } from '../waiting.ts'

export const KEY = 'made-up-key-0123456789'
export const USAGE = { input_tokens: 3, output_tokens: 5, reasoning_tokens: 0, cached_tokens: 1 }

interface Frame {
  text?: string
  usage?: typeof USAGE
  finish?: true
  invalid?: string
  error?: string
  wait?: number
  last?: string
}

/**
 * Frames are JSON: {text}, {usage}, {finish, invalid?}, {error, wait?}, {last}, which the end quotes. Errors quote what
 * came, in a stream its beginning.
 */
export const vendor: Deployment = {
  id: 'made-up-key',
  provider: 'made-up',
  credential: { kind: 'api_key' },
  schema: {
    refs: true,
    propertyPattern: /./,
  },
  toolLimit: null,
  capabilities: () => ({
    boundThinking: false,
    takesMedia: () => false,
    systemMessages: true,
  }),
  declare: () => [],
  render: (request) => ({
    path: '/answer?alt=sse',
    headers: { 'x-session': request.session_id, ...request.options.headers },
    body: { model: request.model, instructions: request.instructions },
    notes: ['temperature: not accepted by this model'],
  }),
  parser() {
    let isWhole = false
    let last: string | undefined
    return {
      push({ data }): ModelEvent[] {
        const frame: Frame = JSON.parse(data)
        last = frame.last ?? last
        if (frame.error) throw upstream(frame.error, data.slice(0, 1000), frame.wait)
        if (frame.usage) return [{ type: 'usage', usage: frame.usage }]
        if (frame.finish) isWhole = true
        const { invalid } = frame
        if (frame.finish)
          return [
            { type: 'finish', reason: 'stop', ...(invalid && { invalid_call: invalid, refusal: invalid }) },
          ]
        return frame.text === undefined ? [] : [{ type: 'text.delta', index: 0, text: frame.text }]
      },
      end() {
        if (isWhole) return []
        if (last) throw upstream('upstream_rejected', last)
        throw new BatonError('upstream_disconnected', 'The stream ended early.')
      },
    }
  },
  classify: ({ status, headers, body }: UpstreamFailure) => {
    const wait = headers['retry-after']
    const code = BY_STATUS[status] ?? (status >= 500 ? 'upstream_overloaded' : 'upstream_rejected')
    const told = headers['x-should-retry']
    const details = told === undefined ? {} : { should_retry: told === 'true' }
    return upstream(code, body, wait === undefined ? undefined : Number(wait), details)
  },
  amend: () => null,
  authorize: ({ api_key }) => ({ authorization: `Bearer ${api_key}` }),
  models: { path: '/models', headers: { 'x-list': '1' }, parse: (body) => body as { id: string }[] },
}
const BY_STATUS: Record<number, string> = {
  401: 'upstream_auth',
  429: 'upstream_rate_limited',
}
export const upstream = (code: string, body: string, retryAfter?: number, details = {}) =>
  new BatonError(code as BatonError['code'], 'The vendor failed.', {
    details: { upstream: { message: body }, ...details },
    ...(retryAfter === undefined ? {} : { retryAfter }),
  })

export const REQUEST = requestOf({ model: 'one', messages: [] })

export const frame = (value: unknown) => `data: ${JSON.stringify(value)}\n\n`
export const WHOLE = frame({ text: 'hello' }) + frame({ usage: USAGE }) + frame({ finish: true })
export const SSE = { 'content-type': 'text/event-stream' }

// ---------------------------------------------------------------- the other end

export type Answer = (response: ServerResponse, request: IncomingMessage & { text: string }) => void
export const status =
  (code: number, body = '', headers = {}): Answer =>
  (response) =>
    response.writeHead(code, headers).end(body)

/** A stream of this text, … */
export const stream = (text = ''): Answer => status(200, text, SSE)
/** … one that never ends, … */
export const unended =
  (text: string): Answer =>
  (response) =>
    response.writeHead(200, SSE).write(text)
/** … and one that is cut. */
export const cut =
  (text: string): Answer =>
  (response) =>
    response.writeHead(200, SSE).write(text, () => response.destroy())
export const whole = stream(WHOLE)

/** Answers the n-th request by the n-th function, the last one from then on. */
export async function upstreamServer(t: Test, ...answers: Answer[]) {
  const requests: (IncomingMessage & { text: string })[] = []
  let connections = 0
  const server = createServer(async (incoming, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of incoming) chunks.push(chunk)
    const request = Object.assign(incoming, { text: Buffer.concat(chunks).toString('utf8') })
    requests.push(request)
    answers[Math.min(requests.length, answers.length) - 1]?.(response, request)
  })
  server.on('connection', () => connections++)
  return {
    url: `http://127.0.0.1:${await listening(t, server)}`,
    requests,
    connections: () => connections,
  }
}

/** A server that handles the raw socket; for answers that no HTTP library would send. */
export async function rawServer(t: Test, onSocket: (socket: Socket) => void) {
  return { port: await listening(t, createTcpServer(onSocket)) }
}

interface Calling {
  /** The events so far: those of one pass of the event loop together */
  batches: ModelEvent[][]
  first: Promise<unknown>
  done: Promise<void>
}
interface Bench {
  waits: number[]
  calls: ModelCallRecord[]
  retries: string[]
  logged: string[]
  call(options?: Partial<ModelCall>): Calling
  llm: ReturnType<typeof createLlm>
}

export function bench(
  t: Test,
  url: string,
  options: Omit<Partial<LlmDeps>, 'limits'> & { limits?: Partial<LlmDeps['limits']> } = {},
): Bench {
  const waits: number[] = []
  const calls: ModelCallRecord[] = []
  const retries: string[] = []
  const logged: string[] = []
  const { limits, ...rest } = options
  const llm = createLlm({
    baseUrl: () => url,
    forwardProxy: null,
    metrics: {
      modelCallEnded: (call) => calls.push(call),
      modelRetried: (_, code) => retries.push(code),
    },
    log: pino({ level: 'trace' }, { write: (line: string) => logged.push(line) }),
    pause: async (ms) => waits.push(ms),
    random: () => 0.5,
    ...rest,
    limits: {
      upstreamConnections: 8,
      connectTimeoutMs: 5000,
      firstByteTimeoutMs: 30_000,
      idleTimeoutMs: 30_000,
      ...limits,
    },
  })
  t.teardown(() => llm.close())
  const call = (options: Partial<ModelCall> = {}): Calling => {
    const batches: ModelEvent[][] = []
    let batch: ModelEvent[] | null = null
    const { opened: first, open: begun } = gate()
    const take = (event: ModelEvent) => {
      if (!batch) {
        batch = []
        batches.push(batch)
        queueMicrotask(() => {
          batch = null
        })
      }
      batch.push(event)
      begun()
    }
    const done = llm.stream(newCall(options), take)
    done.catch(() => {})
    return { batches, first, done }
  }
  return { waits, calls, retries, logged, llm, call }
}
const PROVENANCE = { provider: 'made-up', model: 'one', credential_id: 'cred_1' }
export const newCall = (own: Partial<ModelCall> = {}): ModelCall => ({
  turn_id: 'turn_1',
  deployment: vendor,
  request: REQUEST,
  secret: async () => ({ api_key: KEY }),
  context: { callId: () => 'call_1', toolName: (name) => name, provenance: () => PROVENANCE },
  signal: new AbortController().signal,
  beforeSend: () => true,
  amended: [],
  tries: noTries(),
  ...own,
})

export async function collect({
  batches,
  done,
}: Calling): Promise<{ batches: ModelEvent[][]; thrown: unknown }> {
  const thrown = await done.then(
    () => undefined,
    (error: unknown) => error,
  )
  return { batches, thrown }
}
export const textOf = (batches: ModelEvent[][]) =>
  batches
    .flat()
    .map((event) => (event.type === 'text.delta' ? event.text : ''))
    .join('')

export async function failure(calling: Calling): Promise<BatonError> {
  const { thrown } = await collect(calling)
  if (thrown instanceof BatonError) return thrown
  throw new Error(`expected a BatonError, got ${String(thrown)}`)
}
