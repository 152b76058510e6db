/**
 * Lone surrogates, halves of a character, are not valid UTF-8: strict decoders of JSON refuse a request that holds one,
 * and every later one of the conversation (wire/anthropic.md 4.3, anomalyco/opencode#17758).
 */

/** The JSON value with U+FFFD for each half in its strings and keys; the value itself if there is none. */
export function wellFormedValue<T>(value: T): T
export function wellFormedValue(value: unknown): unknown {
  return isWellFormed(value) ? value : repaired(value)
}

/** Runs over all declarations with every request: `for … in` costs a fifth of `Object.entries` here. */
function isWellFormed(value: unknown): boolean {
  if (typeof value === 'string') return value.isWellFormed()
  if (typeof value !== 'object' || value === null) return true
  if (Array.isArray(value)) return value.every(isWellFormed)
  for (const key in value) {
    if (!key.isWellFormed() || !isWellFormed(value[key as keyof typeof value])) return false
  }
  return true
}

function repaired(value: unknown): unknown {
  if (typeof value === 'string') return value.toWellFormed()
  if (Array.isArray(value)) return value.map(repaired)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key.toWellFormed(), repaired(item)]))
}
