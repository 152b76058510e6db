/** Reading requests in emulators, which judge the adapters: with code of their own, and without trust in any member. */

export type Json = Record<string, unknown>

export const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** The object that `value` is, or an empty one. */
export const object = (value: unknown): Json => (isObject(value) ? value : {})

export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

export const string = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

export const number = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined)

/** The object that a JSON text holds; null if it holds none. */
export function parseObject(text: string): Json | null {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : null
  } catch {
    return null
  }
}
