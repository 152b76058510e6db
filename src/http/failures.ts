/** What the OpenAPI document says about an operation's failures: by status, with their codes and what these mean. */
import type { FastifySchema } from 'fastify'
import { ErrorShape } from '../../routes/schemas.ts'
import { type ErrorCode, errorList, statusOf } from '../errors.ts'

/** What any call may answer. */
const COMMON: readonly ErrorCode[] = [
  'unauthenticated',
  'forbidden',
  'body_too_large',
  'unsupported_media_type',
  'rate_limited',
  'internal',
  'unavailable',
]
/** The error for an unknown id in the path, by the noun before it. */
const UNKNOWN: Readonly<Record<string, ErrorCode>> = {
  sessions: 'session_not_found',
  messages: 'message_not_found',
  turns: 'turn_not_found',
  approvals: 'tool_call_not_found',
  answers: 'tool_call_not_found',
  tools: 'tool_not_found',
  connectors: 'connector_not_found',
  credentials: 'credential_not_found',
  keys: 'key_not_found',
  'tool-executions': 'tool_execution_not_found',
}

const answer = (description: string) => ({
  description,
  content: { 'application/json': { schema: ErrorShape } },
})
const OTHERS = answer(`As any call may fail: ${COMMON.map((code) => `\`${code}\``).join(', ')}`)

/** Responses by status; `default` stands for failures that are common to all operations. */
export function failuresOf(url: string, { errors = [], ...takes }: FastifySchema): Record<string, object> {
  const input = takes.body ?? takes.querystring ?? takes.params
  const nouns = [...url.matchAll(/([\w-]+)\/:/g)].flatMap(([, noun = '']) => UNKNOWN[noun] ?? [])
  const own = [...(input ? ['invalid_request' as const] : []), ...nouns, ...errors]
  const statuses = [...new Set(own.map(statusOf))]
  const told = statuses.map((status) => {
    const codes = [...own, ...COMMON].filter((code) => statusOf(code) === status)
    return [status, answer(errorList(codes))]
  })
  return { ...Object.fromEntries(told), default: OTHERS }
}
