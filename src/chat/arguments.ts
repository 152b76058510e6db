import { BEARABLE, isWithin, parseRecord } from './json.ts'

/** A model's argument text as the canonical pair: an object, or `{}` with the text kept (api.md section 5). */
export function parseArguments(text: string): {
  arguments: Record<string, unknown>
  arguments_text?: string
} {
  if (text.trim() === '') return { arguments: {} }
  const value = parseRecord(text)
  if (value && isWithin(value, BEARABLE)) return { arguments: value }
  // Cut by the length limit, or simply wrong: kept as text, never run.
  return { arguments: {}, arguments_text: text }
}
