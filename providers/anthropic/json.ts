/** Reading JSON that the vendor sent: only what is used, and nothing trusted to be there. */

export type Json = Record<string, unknown>

/** The object that `value` is, or an empty one. */
export const object = (value: unknown): Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {}

export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

export const string = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

export const number = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined)

/** The object that a JSON text holds; null if it holds none. */
export function parseObject(text: string): Json | null {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : null
  } catch {
    return null
  }
}
