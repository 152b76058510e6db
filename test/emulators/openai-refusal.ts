/** How OpenAI's services refuse: two body shapes, which a check throws and the emulator answers. */
import type { JsonReply } from './http.ts'
import type { Json } from './json.ts'

/** Which service is asked, and how it verifies a reasoning token for this caller. */
export interface Asked {
  chatgpt: boolean
  /** As a server of this API that checks the input against the SDK's types: vLLM before mid-2026. */
  typed?: boolean
  verify(token: string, summary: string[]): boolean
}

/** Thrown by a check; becomes the reply. */
export class Refusal extends Error {
  readonly reply: JsonReply
  constructor(reply: JsonReply) {
    super(JSON.stringify(reply.body))
    this.reply = reply
  }
}

/** The public error shape. The ChatGPT path uses it, too, for refusals of the model's own API. */
export function refuse(
  message: string,
  param: string | null = null,
  code: string | null = null,
  status = 400,
): never {
  throw new Refusal({ status, body: { error: { message, type: 'invalid_request_error', param, code } } })
}

/** The shape in which the ChatGPT path's own front door refuses. */
export function refuseDetail(detail: unknown, status = 400): never {
  throw new Refusal({ status, body: { detail } })
}

export const text = (value: unknown): string => (typeof value === 'string' ? value : '')

/** Refuses members that are not `allowed`. */
export function onlyFields(value: Json, allowed: readonly string[], at: string): void {
  const unknown = Object.keys(value).find((field) => !allowed.includes(field))
  if (unknown) refuse(`Unknown parameter: '${at}.${unknown}'.`, `${at}.${unknown}`, 'unknown_parameter')
}

/** `'a'`, `'a' and 'b'`, `'a', 'b', and 'c'` */
export function listed(values: readonly string[]): string {
  const quoted = values.map((one) => `'${one}'`)
  return quoted.length < 3 ? quoted.join(' and ') : `${quoted.slice(0, -1).join(', ')}, and ${quoted.at(-1)}`
}

/** Refuses a value that is given and not among `values`. */
export function oneOf(value: unknown, values: readonly string[], at: string): void {
  if (value === undefined || value === null || values.includes(text(value))) return
  refuse(`Invalid value: '${String(value)}'. Supported values are: ${listed(values)}.`, at, 'invalid_value')
}

/** A function's name, declared or called. */
export function checkName(name: unknown, param: string): void {
  if (!/^[a-zA-Z0-9_-]+$/.test(text(name))) {
    refuse(
      `Invalid '${param}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.`,
      param,
      'invalid_value',
    )
  }
  if (text(name).length > 64) {
    refuse(
      `Invalid '${param}': string too long. Expected a string with maximum length 64.`,
      param,
      'string_above_max_length',
    )
  }
}
