/**
 * Mends what stands around a JSON-RPC result: for one member that is null the SDK refuses a whole answer, and with it
 * the result of a tool that has run.
 */
import { isRecord } from '../chat/json.ts'

/** JSON-RPC 5.1 */
const INTERNAL_ERROR = -32603

/** An answer as the SDK takes it; anything else as it is. */
export function mendAnswer(message: unknown): unknown {
  if (!isRecord(message)) return message
  const { method, error, result, ...envelope } = message
  const isAnswer = method == null && envelope.id != null && ('error' in message || 'result' in message)
  if (!isAnswer) return message
  return error == null
    ? { ...envelope, result: mendResult(result) }
    : { ...envelope, error: mendError(error) }
}

/** A result that is no object is taken for its content, as content.ts takes it. */
function mendResult(result: unknown): object {
  if (!isRecord(result)) return { content: result }
  const { _meta, ...own } = result
  return _meta === undefined || isRecord(_meta) ? result : own
}

function mendError(error: unknown): object {
  const { code, message, data } = isRecord(error) ? error : { message: error }
  return {
    code: Number.isInteger(code) ? code : INTERNAL_ERROR,
    message: typeof message === 'string' ? message : '',
    ...(data != null && { data }),
  }
}
