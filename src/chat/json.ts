/** JSON values from outside: told apart, measured without recursion, written in one form, and hashed. */
import { createHash } from 'node:crypto'

/** A JSON object, neither null nor a list. */
export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** JSON with sorted keys and no undefined: equal values have equal texts. For values of bounded depth. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map((item) => canonicalJson(item ?? null)).join(',')}]`
  if (!isRecord(value)) return JSON.stringify(value) ?? 'null'
  const members = Object.keys(value)
    .filter((key) => value[key] !== undefined)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonicalJson(value[key])}`)
  return `{${members.join(',')}}`
}

/**
 * Whether a value stays within both limits. Walks with its own stack: a value nested a hundred thousand
 * deep, which JSON.stringify cannot take, only answers no. `bytes` is a lower bound of the JSON's length.
 */
export function isWithin(value: unknown, limits: { depth: number; bytes: number }): boolean {
  const open: { value: unknown; depth: number }[] = [{ value, depth: 1 }]
  let bytes = 0
  for (let next = open.pop(); next; next = open.pop()) {
    bytes += typeof next.value === 'string' ? next.value.length + 2 : 2
    if (typeof next.value !== 'object' || next.value === null) {
      if (bytes > limits.bytes) return false
      continue
    }
    if (next.depth > limits.depth) return false
    for (const [key, child] of Object.entries(next.value)) {
      if (!Array.isArray(next.value)) bytes += key.length + 3
      open.push({ value: child, depth: next.depth + 1 })
    }
    if (bytes + open.length > limits.bytes) return false
  }
  return true
}

/** In hexadecimal. */
export const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
