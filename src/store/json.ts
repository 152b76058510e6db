/**
 * How values travel into SQL. PostgreSQL's text and jsonb hold neither NUL nor lone surrogates, and jsonb
 * reorders keys. So what people, models and tools write travels as a document, whose column type json keeps
 * the text as it was given; everything else travels as a record or plain text, where such characters
 * become U+FFFD.
 */
import { storableText } from '../text.ts'
import type { Param } from './db.ts'

/** Exact JSON for a json column: JSON.stringify escapes NUL and lone surrogates, and json keeps escapes. */
export const document = (value: unknown): string => JSON.stringify(value ?? null)

/** JSON for a function's jsonb argument. A document goes into it as text. */
export function record(value: unknown): string {
  const text = JSON.stringify(value)
  // The plain search is ten times faster than the pattern, and mostly all that is needed.
  if (!text.includes('\\u') || !UNSTORABLE_ESCAPE.test(text)) return text
  return JSON.stringify(value, (_, inner: unknown) =>
    typeof inner === 'string' ? storableText(inner) : inner,
  )
}

/** May also match an escaped backslash before such letters: then the slow way finds nothing to do. */
const UNSTORABLE_ESCAPE = /\\u(?:0000|d[89a-f])/

/** Lone surrogates need no care here: on their way as UTF-8 they become U+FFFD anyhow. */
export const plainParam = (param: Param): Param => {
  if (typeof param === 'string') return param.includes('\0') ? storableText(param) : param
  return Array.isArray(param) ? param.map(storableText) : param
}

/** Bytes come out of SQL's JSON as base64. */
export function bytesOf(base64: string): Uint8Array
export function bytesOf(base64: string | null): Uint8Array | null
export function bytesOf(base64: string | null): Uint8Array | null {
  return base64 === null ? null : new Uint8Array(Buffer.from(base64, 'base64'))
}
