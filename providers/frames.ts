/** Reads the streams of OpenAI and Anthropic, whose frames are JSON objects with a `type`. */
import { parseRecord } from '../src/chat/json.ts'
import { BatonError } from '../src/errors.ts'
import type { SseFrame } from '../src/sse.ts'
import { type Json, number, string } from './json.ts'

/** The answer that a stream holds; `vendor` is the service behind the API, as errors name it. */
type Answer = { vendor: string; id: string | undefined }

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
 * Notes the id under which an answer begins. When a connection breaks, the service or a relay may go on in the same
 * stream with another answer (vercel/ai#18331): to keep both would repeat the texts, and the calls. Relays also repeat
 * an answer's start. `hasContent`: something of the answer has come.
 */
export function beginAnswer(answer: Answer, told: Json, hasContent: boolean): void {
  const id = string(told.id) ?? answer.id
  if (hasContent && id !== (answer.id ?? id))
    throw new BatonError(
      'upstream_disconnected',
      `${answer.vendor} broke the answer off and began another one.`,
    )
  answer.id = id
}

/**
 * The HTTP status of an error in a stream, or in place of one, if its code is one: OpenRouter and SGLang give it as the
 * code (BerriAI/litellm#25492), LiteLLM as a text (BerriAI/litellm#40243). Other servers have numbers of their own.
 */
export function statusIn(code: unknown): number | null {
  const told = Number(number(code) ?? string(code))
  return told >= 400 && told < 600 ? told : null
}
