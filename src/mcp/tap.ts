/**
 * A tap between a transport and the SDK's client: it reads results before the SDK's strict schemas can
 * throw them away, and answers a pending request itself when its answer can no longer come.
 */
import {
  type JSONRPCMessage,
  type JSONRPCRequest,
  SdkHttpError,
  type Transport,
} from '@modelcontextprotocol/client'
import { within } from '../within.ts'
import { ATTEMPT_MS, type McpErrorKind } from './contract.ts'
import { createExchange, exchanges, inExchange } from './exchange.ts'
import { createQuestions } from './questions.ts'

type Deliver = NonNullable<Transport['onmessage']>
type SendOptions = Parameters<Transport['send']>[1]

/** Marks an error that was made here: no server can send a symbol. */
const LOCAL = Symbol('local failure')

/** The kind of an error that the tap made, by a ProtocolError's `data`; undefined for a server's own error. */
export const localKind = (data: unknown): McpErrorKind | undefined =>
  (data as { [LOCAL]?: McpErrorKind } | null | undefined)?.[LOCAL]

/** Answers in the transport's place. */
export interface Tap {
  /** Hands a message to the client as if the transport had received it. */
  deliver(message: JSONRPCMessage): void
  /** Settles a pending request with a failure; nothing happens if it was answered already. */
  fail(id: string | number, kind: McpErrorKind, text: string): void
}

interface TapOptions {
  /** Sees each result before the SDK and returns what the SDK is to see. Must not throw. */
  onResult(request: JSONRPCRequest, result: unknown): unknown
  /** The result that an error with this code stands for; undefined: none */
  meantBy?(request: JSONRPCRequest, code: number): unknown
  /** Whether answers come in the HTTP response to the request itself, and nowhere else (Streamable HTTP) */
  answersInResponse(): boolean
}

/** How long a server may take to hear that the client is ready: a strict one answers no request before that. */
const READY_MS = 2_000

/**
 * Some servers refuse to be told that the client is ready, and then answer its requests (hyperdx#2686): if not, the first
 * request shows that.
 */
function unlessRefused(error: unknown): void {
  const status = error instanceof SdkHttpError ? error.status : 0
  const isRefused = status >= 400 && status < 500 && status !== 401 && status !== 403
  if (!isRefused) throw error
}

/** Puts itself between the transport and the client, which sets `onmessage` afterwards. */
export function tap(transport: Transport, options: TapOptions): Tap {
  const pending = new Map<unknown, JSONRPCRequest>()
  let handler: Deliver | undefined
  const send = transport.send.bind(transport)
  const questions = createQuestions((message, extra) => handler?.(message, extra))

  const deliver: Deliver = (message, extra) => {
    if ('method' in message) {
      if ('id' in message) return questions.ask(message, extra)
      handler?.(message, extra)
      if (message.method === 'notifications/cancelled') questions.cancelled(message.params?.requestId)
      return
    }
    // Some servers give a number back as text, which the SDK takes as well.
    const request = pending.get(message.id) ?? pending.get(Number(message.id))
    if (!request) return handler?.(message, extra)
    pending.delete(request.id)
    const { jsonrpc, id } = message
    const result =
      'result' in message
        ? options.onResult(request, message.result)
        : options.meantBy?.(request, message.error.code)
    const seen = result === undefined ? message : { jsonrpc, id, result }
    // The SDK puts notifications off by a microtask, but no answers: progress read just before one would go unheard.
    queueMicrotask(() => handler?.(seen as JSONRPCMessage, extra))
  }
  const fail: Tap['fail'] = (id, kind, text) => {
    if (!pending.delete(id)) return
    handler?.({ jsonrpc: '2.0', id, error: { code: -32000, message: text, data: { [LOCAL]: kind } } })
  }

  Object.defineProperty(transport, 'onmessage', {
    get: () => (handler ? deliver : undefined),
    set: (fn: Deliver | undefined) => {
      handler = fn
    },
  })

  const ask = async (request: JSONRPCRequest, sendOptions: SendOptions): Promise<void> => {
    const { id } = request
    pending.set(id, request)
    sendOptions?.requestSignal?.addEventListener('abort', () => pending.delete(id), { once: true })
    const exchange = exchanges.getStore()
    if (exchange) Object.assign(exchange, { id, isStreaming: false })
    const onRequestStreamEnd = (): void => {
      sendOptions?.onRequestStreamEnd?.()
      // Without this the SDK waits for its timeout: 60 s for an answer that cannot come any more.
      fail(id, 'disconnected', 'the stream ended before the answer came')
    }
    try {
      await send(request, { ...sendOptions, onRequestStreamEnd })
    } catch (error) {
      pending.delete(id)
      throw error
    }
    if (options.answersInResponse() && exchange && !exchange.isStreaming)
      fail(id, 'protocol', 'the server accepted the request without answering it')
  }

  /**
   * In an exchange of its own: a notification is no part of the call whose end it may announce, and neither is an answer
   * to the server.
   */
  const tell = (message: JSONRPCMessage, sendOptions: SendOptions): Promise<void> => {
    const own = createExchange()
    // Nobody waits for the response to such a message: a server that gives none must not hold a socket for each.
    const timer = setTimeout(own.abort, ATTEMPT_MS).unref()
    return inExchange(own, () => send(message, sendOptions)).finally(() => {
      clearTimeout(timer)
      own.abort()
    })
  }

  transport.send = async (message, sendOptions) => {
    if (!('method' in message)) return questions.answered(message.id, () => tell(message, sendOptions))
    if ('id' in message) return ask(message, sendOptions)
    if (message.method === 'notifications/cancelled') pending.delete(message.params?.requestId)
    const told = tell(message, sendOptions)
    if (message.method !== 'notifications/initialized') return told
    // Some servers never answer, or open a stream that they do not end (vocs#484), and then answer requests.
    await within(READY_MS, told.catch(unlessRefused))
  }
  return { deliver, fail }
}
