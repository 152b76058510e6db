/**
 * The base of every vendor's emulator: a loopback server that records its requests and answers with JSON or with a
 * stream, whose pace, chunking and end a test controls. It knows no vendor.
 */
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import { text as textOf } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { listen } from '../listening.ts'

/** One request as it came in. */
export interface Recorded {
  method: string
  /** With its query string. */
  path: string
  headers: IncomingHttpHeaders
  /** The parsed JSON, or the text itself if it is no JSON. */
  body: unknown
  text: string
  /** Status of the answer, once it is known */
  status?: number
  /** Settles when the exchange is over: `aborted` if the caller left before the answer's end. */
  closed: Promise<'finished' | 'aborted'>
}

/** A piece of a stream: text to send, or something to wait for before the next piece. */
export type Beat = string | (() => Promise<unknown>)

export interface JsonReply {
  status: number
  headers?: Readonly<Record<string, string>>
  /** A string is sent as it is, everything else as JSON. */
  body: unknown
}
export interface StreamReply {
  /** Default: 200 */
  status?: number
  /** A `content-type` here replaces `text/event-stream`; `''` sends none. */
  headers?: Readonly<Record<string, string>>
  stream: Iterable<Beat>
  /** Bytes per write, which splits frames and UTF-8 characters anywhere. Absent: one frame per write. */
  chunk?: number
  /** How the body ends after the last beat: a clean end (default), a destroyed socket, or never. */
  ending?: 'end' | 'cut' | 'hang'
}
export type Reply = JsonReply | StreamReply

export interface Emulator {
  /** `http://127.0.0.1:<port>` */
  url: string
  /** Every request so far, oldest first. */
  requests: Recorded[]
  /** Settles with the request at this index (from 0) once it has arrived. */
  request(index: number): Promise<Recorded>
  /** Ends every open exchange and stops listening. */
  close(): Promise<void>
}

export const pause = (ms: number) => () => sleep(ms)

/** Serves `answer` on loopback; port 0 means a free port. An error that `answer` throws becomes a 500 that names it. */
export async function serve(
  answer: (request: Recorded) => Reply | Promise<Reply>,
  port = 0,
): Promise<Emulator> {
  const requests: Recorded[] = []
  const waiting: { index: number; resolve: (request: Recorded) => void }[] = []
  const take = async (incoming: IncomingMessage, response: ServerResponse) => {
    const request = await record(incoming, response)
    requests.push(request)
    for (const { index, resolve } of waiting) if (index === requests.length - 1) resolve(request)
    const reply = await Promise.resolve()
      .then(() => answer(request))
      .catch((thrown): JsonReply => ({ status: 500, body: `emulator defect: ${String(thrown)}` }))
    request.status = reply.status ?? 200
    if ('stream' in reply) return sendStream(response, reply)
    sendJson(response, reply)
  }
  const server = createServer((incoming, response) => {
    // A caller that leaves while its body is read leaves nothing to answer.
    take(incoming, response).catch(() => response.destroy())
  })
  const { port: own, close } = await listen(server, port)
  return {
    url: `http://127.0.0.1:${own}`,
    requests,
    request: (index) => {
      const there = requests[index]
      if (there) return Promise.resolve(there)
      return new Promise((resolve) => waiting.push({ index, resolve }))
    },
    close,
  }
}

async function record(incoming: IncomingMessage, response: ServerResponse): Promise<Recorded> {
  const closed = new Promise<'finished' | 'aborted'>((resolve) =>
    response.once('close', () => resolve(response.writableFinished ? 'finished' : 'aborted')),
  )
  const text = await textOf(incoming)
  const { method = '', url = '', headers } = incoming
  return { method, path: url, headers, body: parsed(text), text, closed }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** Whether a request has half a character somewhere, which strict decoders of JSON refuse. */
export function hasLoneSurrogate(value: unknown): boolean {
  if (typeof value === 'string') return /\p{Surrogate}/u.test(value)
  if (Array.isArray(value)) return value.some(hasLoneSurrogate)
  if (typeof value !== 'object' || value === null) return false
  return Object.entries(value).some((entry) => entry.some(hasLoneSurrogate))
}

function sendJson(response: ServerResponse, { status, headers, body }: JsonReply): void {
  const text = typeof body === 'string' ? body : JSON.stringify(body)
  const type = typeof body === 'string' ? 'text/plain' : 'application/json'
  response.writeHead(status, { 'content-type': type, ...headers }).end(text)
}

async function sendStream(response: ServerResponse, reply: StreamReply): Promise<void> {
  const { 'content-type': type = 'text/event-stream', ...headers } = reply.headers ?? {}
  response.writeHead(reply.status ?? 200, { ...(type ? { 'content-type': type } : {}), ...headers })
  response.flushHeaders()
  const left = new Promise<void>((resolve) => response.once('close', () => resolve()))
  for (const beat of reply.stream) {
    if (response.destroyed) return
    if (typeof beat !== 'string') await Promise.race([beat(), left])
    else for (const bytes of cutUp(beat, reply.chunk)) await Promise.race([write(response, bytes), left])
  }
  if (reply.ending === 'hang') return left
  if (reply.ending === 'cut') response.destroy()
  else response.end()
}

const write = (response: ServerResponse, bytes: Uint8Array): Promise<void> =>
  new Promise((resolve) => response.write(bytes, () => resolve()))

function* cutUp(text: string, size?: number): Generator<Uint8Array> {
  const bytes = Buffer.from(text)
  for (let at = 0; at < bytes.length; at += size ?? bytes.length) {
    yield bytes.subarray(at, at + (size ?? bytes.length))
  }
}
