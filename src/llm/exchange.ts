/**
 * One HTTP exchange with an upstream: a request goes out, its response is passed on piece by piece, under three clocks
 * (connect, first byte, silence), a size limit, and a signal that destroys the socket at once. It is built on undici's
 * `dispatch`, the cheapest of its interfaces, and knows nothing of models or events.
 */
import type { Dispatcher } from 'undici'
import { BatonError } from '../errors.ts'
import { flatHeaders } from '../foreign.ts'

/** Bytes of one answer; the longest real ones, with images inside, are a tenth of it. */
export const MAX_ANSWER = 64 << 20

/** The request went out of date between rendering and sending (`beforeSend` said no): render it again. */
export class LlmStale extends Error {
  constructor() {
    super('the request is out of date')
    this.name = 'LlmStale'
  }
}

export interface ExchangeRequest {
  dispatcher: Dispatcher
  url: URL
  headers: Readonly<Record<string, string>>
  /** Sent by POST; null: there is none, for a GET */
  body: Buffer | null
  signal: AbortSignal
  /** Milliseconds from the constructor to the response's head, with the wait for a free connection */
  firstByteMs: number
  /** Milliseconds between any two pieces of the body */
  idleMs: number
  /** Asked right before the first byte leaves; false: nothing is sent, LlmStale is thrown */
  beforeSend?(): boolean
}

export interface ResponseHead {
  status: number
  /** Names in lower case; a repeated one joined by commas */
  headers: Readonly<Record<string, string>>
}

/**
 * Where an exchange broke, as `details.phase` of its error: `queue` while every connection was in use, `connect`,
 * `headers` once the request was sent, `body`.
 */
type Phase = 'queue' | Stage
/** How far an exchange has come. */
type Stage = 'connect' | 'headers' | 'body'

/** How long the rest of a body that nobody needs may take, before its connection is closed instead. */
const DRAIN_MS = 500

/**
 * Every method that waits throws what ended the exchange: the signal's reason, LlmStale, or a BatonError
 * (`upstream_timeout`, `upstream_disconnected`, `upstream_rejected` for a body over the limit).
 */
export class Exchange implements Dispatcher.DispatchHandler {
  /** Without what is sent, which nobody needs while the answer streams */
  readonly #request: Omit<ExchangeRequest, 'dispatcher' | 'url' | 'headers' | 'body'>
  #controller: Dispatcher.DispatchController | null = null
  #stage: Stage = 'connect'
  #head: ResponseHead | null = null
  /** Pieces of the body that came before somebody took them */
  #early: Buffer[] = []
  #take: ((piece: Buffer) => void) | null = null
  #total = 0
  #state: 'open' | 'ended' | 'failed' | 'draining' = 'open'
  #failure: unknown
  #wake: (() => void) | null = null
  #timer: NodeJS.Timeout | undefined

  constructor({ dispatcher, url, headers, body, ...request }: ExchangeRequest) {
    this.#request = request
    const { signal, firstByteMs } = request
    if (signal.aborted) {
      this.#fail(signal.reason)
      return
    }
    signal.addEventListener('abort', this.#onAbort)
    this.#timer = setTimeout(this.#onSilence, firstByteMs)
    // undici's own timeouts are off: its clock ticks about once a second.
    dispatcher.dispatch(
      {
        origin: url.origin,
        path: url.pathname + url.search,
        method: body ? 'POST' : 'GET',
        headers,
        body,
        headersTimeout: 0,
        bodyTimeout: 0,
      },
      this,
    )
  }

  /** The response's status and headers. */
  async head(): Promise<ResponseHead> {
    while (!this.#head && this.#state === 'open') await this.#news()
    if (this.#head) return this.#head
    throw this.#failure
  }

  /**
   * Passes the body on as it comes, in the pass of the event loop that reads it. Resolves at its end, or once it is
   * drained; what came before a failure is passed on first.
   */
  async body(take: (piece: Buffer) => void): Promise<void> {
    this.#handOnEarly(take)
    this.#take = take
    while (this.#state === 'open') await this.#news()
    if (this.#state === 'failed') throw this.#failure
  }

  /** The body as text, cut off after `limit` bytes; if it breaks, the part that had come. */
  async text(limit: number): Promise<string> {
    const parts: Buffer[] = []
    let size = 0
    try {
      await this.body((part) => {
        parts.push(part)
        size += part.length
        if (size >= limit) this.drain()
      })
    } catch (thrown) {
      if (!(thrown instanceof BatonError)) throw thrown
    }
    return Buffer.concat(parts).subarray(0, limit).toString('utf8')
  }

  /** Gives the exchange up and destroys its socket. Does nothing once it is over or drained. */
  abort(reason: unknown): void {
    if (this.#state !== 'open') return
    this.#fail(reason)
    this.#destroy()
  }

  /** Nothing more is wanted of the body; a short rest is read, so that the connection can be used again. */
  drain(): void {
    if (this.#state !== 'open') return
    this.#state = 'draining'
    this.#request.signal.removeEventListener('abort', this.#onAbort)
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#destroy(), DRAIN_MS).unref()
    this.#notify()
  }

  // ---- undici's side

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#state === 'open') this.#permit()
    if (this.#state === 'failed') this.#destroy()
    else this.#stage = 'headers'
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    if (status < 200) return
    // The headers once more, as bytes: a stream would keep this kilobyte for as long as it is open.
    controller.rawHeaders = null
    this.#stage = 'body'
    this.#head = { status, headers: flatHeaders(headers) }
    clearTimeout(this.#timer)
    this.#timer = setTimeout(this.#onSilence, this.#request.idleMs)
    this.#notify()
  }

  onResponseData(_: unknown, piece: Buffer): void {
    if (this.#state !== 'open') return
    this.#total += piece.length
    if (this.#total > MAX_ANSWER) {
      const words = `The provider's answer is larger than ${MAX_ANSWER} bytes.`
      return this.abort(new BatonError('upstream_rejected', words, { details: { phase: 'body' } }))
    }
    this.#timer?.refresh()
    if (this.#take) this.#take(piece)
    else this.#early.push(piece)
  }

  onResponseEnd(): void {
    this.#state = 'ended'
    this.#settle()
  }

  onResponseError(_: unknown, error: Error): void {
    if (this.#state === 'open') this.#fail(this.#broken(error))
  }

  // ---- inside

  #permit(): void {
    try {
      if (this.#request.beforeSend?.() === false) this.#fail(new LlmStale())
    } catch (thrown) {
      this.#fail(thrown)
    }
  }

  /**
   * A function of its own: an async one keeps the last piece of its loop while it waits, here for as long as the stream
   * is open.
   */
  #handOnEarly(take: (piece: Buffer) => void): void {
    for (const piece of this.#early.splice(0)) take(piece)
  }

  readonly #onAbort = (): void => this.abort(this.#request.signal.reason)

  readonly #onSilence = (): void => {
    const { firstByteMs, idleMs } = this.#request
    const silences: Record<Stage, [Phase, string]> = {
      // Making a connection has a shorter clock of its own, so the request waited for a free one.
      connect: ['queue', `No connection to the provider became free within ${firstByteMs} ms.`],
      headers: ['headers', `The provider did not answer within ${firstByteMs} ms.`],
      body: ['body', `The provider's answer was silent for ${idleMs} ms.`],
    }
    const [phase, words] = silences[this.#stage]
    this.abort(new BatonError('upstream_timeout', words, { details: { phase } }))
  }

  #destroy(): void {
    // undici hands the reason back to onResponseError, where it is of no use.
    this.#controller?.abort(new Error('aborted'))
  }

  #fail(reason: unknown): void {
    this.#state = 'failed'
    this.#failure = reason
    this.#settle()
  }

  #settle(): void {
    clearTimeout(this.#timer)
    this.#request.signal.removeEventListener('abort', this.#onAbort)
    this.#notify()
  }

  #notify(): void {
    const wake = this.#wake
    this.#wake = null
    wake?.()
  }

  /** Resolves when the head is there, or the exchange is over. */
  #news(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve
    })
  }

  #broken(error: Error & { code?: string }): BatonError {
    const details = { phase: this.#stage, reason: error.code ?? error.name }
    if (error.code === 'UND_ERR_CONNECT_TIMEOUT') {
      return new BatonError('upstream_timeout', 'No connection to the provider in time.', {
        details,
        cause: error,
      })
    }
    // Such as `connection: a b`, or `proxy-authorization` on the way through a forward proxy.
    if (error.code === 'UND_ERR_INVALID_ARG') {
      const words = 'The request cannot be sent over HTTP: check headers that the configuration adds.'
      return new BatonError('internal', words, { details, cause: error })
    }
    if (error.code === 'UND_ERR_DESTROYED') {
      return new BatonError('draining', 'Baton is shutting down.', { retryAfter: 1, cause: error })
    }
    return new BatonError('upstream_disconnected', WHERE[this.#stage], { details, cause: error })
  }
}

const WHERE: Readonly<Record<Stage, string>> = {
  connect: 'The provider cannot be reached.',
  headers: 'The provider closed the connection before it answered.',
  body: "The connection broke in the middle of the provider's answer.",
}
