/**
 * A tap between a transport and the SDK's client: it reads results before the SDK's strict schemas can
 * throw them away, and answers a pending request itself when its answer can no longer come.
 */
import type { JSONRPCMessage, JSONRPCRequest, Transport } from '@modelcontextprotocol/client'
import type { McpErrorKind } from './contract.ts'
import { exchanges } from './http.ts'

type Deliver = NonNullable<Transport['onmessage']>

/** Marks an error that was made here: no server can send a symbol. */
const LOCAL = Symbol('local failure')

export interface LocalFailure {
  kind: McpErrorKind
}

/** What the tap put into a ProtocolError's `data`; undefined for a server's own error. */
export function localFailure(data: unknown): LocalFailure | undefined {
  return typeof data === 'object' && data !== null && LOCAL in data
    ? (data[LOCAL] as LocalFailure)
    : undefined
}

export interface Tap {
  /** Number of requests without an answer */
  size(): number
  /** Hands a message to the client as if the transport had received it. */
  deliver(message: JSONRPCMessage): void
  /** Settles a pending request with a failure; nothing happens if it was answered already. */
  fail(id: string | number, kind: McpErrorKind, text: string): void
}

export interface TapOptions {
  /** Sees each result before the SDK and returns what the SDK shall see. Must not throw. */
  onResult(request: JSONRPCRequest, result: unknown): unknown
  /** The transport answers in the HTTP response of the request itself (Streamable HTTP) */
  answersInResponse: boolean
}

/** What a server may ask while its answers are on their way: over HTTP each is a request of its own. */
const MOST_ASKED = 16

/** Puts itself between the transport and whoever sets its `onmessage` afterwards. */
export function tap(transport: Transport, options: TapOptions): Tap {
  const pending = new Map<string | number, JSONRPCRequest>()
  let handler: Deliver | undefined
  const send = transport.send.bind(transport)
  /** Ids of what the server asked and is not answered; it may use one twice */
  const asked: unknown[] = []
  const settled = (id: unknown): void => {
    const at = asked.indexOf(id)
    if (at >= 0) asked.splice(at, 1)
  }

  /** False: it asks for more than can be answered, and gets no answer. */
  const admits = (message: JSONRPCMessage): boolean => {
    if (!('method' in message)) return true
    if (!('id' in message)) {
      if (message.method === 'notifications/cancelled') settled(message.params?.requestId)
      return true
    }
    if (asked.length >= MOST_ASKED) return false
    asked.push(message.id)
    return true
  }

  const deliver = (message: JSONRPCMessage, extra?: Parameters<Deliver>[1]): void => {
    if (!admits(message)) return
    const request =
      'id' in message && message.id !== undefined && !('method' in message)
        ? // Some servers give a number back as text, which the SDK takes as well.
          (pending.get(message.id) ?? pending.get(Number(message.id)))
        : undefined
    if (!request) return handler?.(message, extra)
    pending.delete(request.id)
    const seen =
      'result' in message ? { ...message, result: options.onResult(request, message.result) } : message
    handler?.(seen as JSONRPCMessage, extra)
  }
  const fail: Tap['fail'] = (id, kind, text) => {
    if (!pending.delete(id)) return
    const failure: LocalFailure = { kind }
    handler?.({ jsonrpc: '2.0', id, error: { code: -32000, message: text, data: { [LOCAL]: failure } } })
  }

  const forget = (id: unknown): void => {
    if (typeof id === 'number' || typeof id === 'string') pending.delete(id)
  }

  Object.defineProperty(transport, 'onmessage', {
    configurable: true,
    get: () => (handler ? deliver : undefined),
    set: (fn: Deliver | undefined) => {
      handler = fn
    },
  })

  transport.send = async (message, sendOptions) => {
    if (!('method' in message) || !('id' in message)) {
      if ('method' in message && message.method === 'notifications/cancelled')
        forget(message.params?.requestId)
      // A notification is no part of the call whose end it may announce.
      return exchanges
        .exit(() => send(message, sendOptions))
        .finally(() => {
          if (!('method' in message)) settled(message.id)
        })
    }
    const { id } = message
    pending.set(id, message)
    sendOptions?.requestSignal?.addEventListener('abort', () => forget(id), { once: true })
    const exchange = exchanges.getStore()
    if (exchange) exchange.isStreaming = false
    const onRequestStreamEnd = (): void => {
      sendOptions?.onRequestStreamEnd?.()
      // Without this the SDK waits for its timeout: 60 s for an answer that cannot come any more.
      fail(id, 'disconnected', 'the stream ended before the answer came')
    }
    try {
      await send(message, { ...sendOptions, onRequestStreamEnd })
    } catch (error) {
      pending.delete(id)
      throw error
    }
    if (options.answersInResponse && exchange && !exchange.isStreaming)
      fail(id, 'protocol', 'the server accepted the request without answering it')
  }
  return { size: () => pending.size, deliver, fail }
}
