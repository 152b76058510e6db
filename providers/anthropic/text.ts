/** Lone surrogates, halves of a character, are no UTF-8 and break the vendor's JSON decoder (wire/anthropic.md 4.3). */

export const wellFormed = (text: string): string => text.replace(/\p{Surrogate}/gu, '\uFFFD')

/** The same for every string in a JSON value, keys included. */
export function wellFormedValue<T>(value: T): T
export function wellFormedValue(value: unknown): unknown {
  if (typeof value === 'string') return wellFormed(value)
  if (Array.isArray(value)) return value.map((item) => wellFormedValue(item))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [wellFormed(key), wellFormedValue(item)]),
  )
}
