/** The vendor's own error inside of a relay's. */
import { isRecord, parseRecord } from '../src/chat/json.ts'
import { type Json, object, string } from './json.ts'

/** Characters of a relay's words that are read, and ends of an object that are tried in them. */
const MOST_READ = 10_000
const MOST_ENDS = 50

/**
 * The error with the fields of the vendor's own laid over the relay's, which says only that there was one, or has the
 * vendor's answer among its words:
 * - OpenRouter in `metadata.raw`, as JSON or as words (farion1231/cc-switch#464, open-webui/computer#293)
 * - LiteLLM as JSON in the message, with words before and behind it (BerriAI/litellm#12083, #9016)
 */
export function vendorsError(error: Json): Json {
  const raw = string(object(error.metadata).raw)
  const inner = errorIn((raw ?? string(error.message) ?? '').slice(0, MOST_READ))
  if (inner) return vendorsError({ ...error, metadata: undefined, ...inner })
  return raw === undefined ? error : { ...error, message: raw }
}

/** The first object in the words if it is a vendor's answer: it has an error, or stands at the beginning with a message. */
function errorIn(words: string): Json | null {
  const start = words.indexOf('{')
  let end = start
  for (let tries = 0; start >= 0 && tries < MOST_ENDS; tries++) {
    end = words.indexOf('}', end + 1)
    if (end < 0) return null
    const answer = parseRecord(words.slice(start, end + 1))
    if (!answer) continue
    const told = answer.error ?? answer.detail ?? (start === 0 ? answer : null)
    if (typeof told === 'string') return { message: told }
    return isRecord(told) && string(told.message) ? told : null
  }
  return null
}
