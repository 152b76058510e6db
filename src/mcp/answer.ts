/**
 * Repairs what stands around a JSON-RPC result, and what a server says unasked: for one member that is null the SDK
 * refuses a whole message, and with it the result of a tool that has run.
 */
import { isRecord } from '../chat/json.ts'

/** JSON-RPC 5.1 */
const INTERNAL_ERROR = -32603

/** Whether a message answers a request, in whatever form. */
export function isAnswer(message: unknown): message is Record<string, unknown> {
  if (!isRecord(message)) return false
  return message.method == null && message.id != null && ('error' in message || 'result' in message)
}

/**
 * A message as the SDK takes it; what needs no repairing, as it is. `asked`: the request that an answer must be of if it
 * is an error and names none (MCP 2025-11-25; JSON-RPC 5 has null there).
 */
export function repairMessage(message: unknown, asked?: string | number): unknown {
  if (asked !== undefined && isNameless(message)) return repairMessage({ ...message, id: asked })
  if (!isAnswer(message)) return isUnasked(message) ? repairUnasked(message) : message
  const { method: _, error, result, ...envelope } = message
  if (error != null) return { ...envelope, error: repairError(error) }
  const repaired = repairResult(result)
  const isSound = repaired === result && !('error' in message) && !('method' in message)
  return isSound ? message : { ...envelope, result: repaired }
}

/** A notification, or a request of the server */
const isUnasked = (message: unknown): message is Record<string, unknown> =>
  isRecord(message) && typeof message.method === 'string'

/**
 * Servers send null for what they leave out, PHP's an empty list for no members (context-hub/generator#303). Lost, a
 * change of tools would be unheard, and a call that shows progress would time out.
 */
function repairUnasked(message: Record<string, unknown>): unknown {
  const { id, params, ...rest } = message
  const members = isRecord(params) ? Object.entries(params) : []
  const given = members.filter(([, value]) => value !== null)
  const isSound = given.length === members.length && (params === undefined || isRecord(params)) && id !== null
  if (isSound) return message
  return {
    ...rest,
    ...(id != null && { id }),
    ...(isRecord(params) && { params: Object.fromEntries(given) }),
  }
}

const isNameless = (message: unknown): message is Record<string, unknown> =>
  isRecord(message) && message.method == null && message.id == null && message.error != null

/** A result that is no object is taken for its content, as content.ts takes it. */
function repairResult(result: unknown): object {
  if (!isRecord(result)) return { content: result }
  const { _meta, ...own } = result
  return _meta === undefined || isRecord(_meta) ? result : own
}

function repairError(error: unknown): object {
  const { code, message, data } = isRecord(error) ? error : { message: error }
  return {
    code: Number.isInteger(code) ? code : INTERNAL_ERROR,
    message: typeof message === 'string' ? message : '',
    ...(data != null && { data }),
  }
}
