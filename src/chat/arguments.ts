import { isRecord } from './json.ts'

/** Deeper than anybody writes; what nests without end could be neither stored, searched nor sent. */
const MOST_LEVELS = 200

/** A model's argument text as the canonical pair: an object, or `{}` with the text kept (api.md section 5). */
export function parseArguments(text: string): {
  arguments: Record<string, unknown>
  arguments_text?: string
} {
  if (text.trim() === '') return { arguments: {} }
  try {
    const value: unknown = JSON.parse(text)
    if (isRecord(value) && !nestsBeyond(value, MOST_LEVELS)) return { arguments: value }
  } catch {
    // Cut by the length limit, or simply wrong: kept as text, never run.
  }
  return { arguments: {}, arguments_text: text }
}

const nestsBeyond = (value: unknown, levels: number): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (levels === 0 || Object.values(value).some((inner) => nestsBeyond(inner, levels - 1)))
