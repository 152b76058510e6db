import { BEARABLE, isWithin } from './within.ts'

interface Arguments {
  arguments: Record<string, unknown>
  arguments_text?: string
}

/** A model's arguments as the canonical pair: an object, or `{}` with their text kept (api.md section 5). */
export function canonicalArguments(value: unknown, text: string): Arguments {
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
  if (isObject && isWithin(value, BEARABLE)) return { arguments: value as Record<string, unknown> }
  return { arguments: {}, arguments_text: text }
}

/** The same where they come as text. */
export function parseArguments(text: string): Arguments {
  if (text.trim() === '') return { arguments: {} }
  try {
    return canonicalArguments(JSON.parse(text), text)
  } catch {
    // Cut by the length limit, or simply wrong: kept as text, never run.
    return { arguments: {}, arguments_text: text }
  }
}
