/** Reads the streams of OpenAI and Anthropic, whose frames are JSON objects with a `type`. */
import { parseRecord } from '../src/chat/json.ts'
import { BatonError } from '../src/errors.ts'
import type { SseFrame } from '../src/sse.ts'
import { type Json, number, string } from './json.ts'

/**
 * A frame's event and its type. In an error event that a relay makes, `type` may be the error's own, or missing;
 * OpenAI's SDK goes by these signs, too. Throws `upstream_disconnected` for a frame that is not a JSON object.
 */
export function readFrame({ event: name, data }: SseFrame, vendor: string): { type: string; event: Json } {
  const event = parseRecord(data)
  if (!event) {
    const words = `${vendor} sent a piece of the stream that is no JSON object.`
    throw new BatonError('upstream_disconnected', words, { details: { upstream: data.slice(0, 200) } })
  }
  const isError = name === 'error' || Boolean(event.error)
  return { event, type: isError ? 'error' : (string(event.type) ?? name ?? '') }
}

/**
 * The HTTP status of an error in a stream, or in place of one, if its code is one: OpenRouter and SGLang give it as the
 * code (BerriAI/litellm#25492), LiteLLM as a text (BerriAI/litellm#40243). Other servers have numbers of their own.
 */
export function statusIn(code: unknown): number | null {
  const told = Number(number(code) ?? string(code))
  return told >= 400 && told < 600 ? told : null
}
