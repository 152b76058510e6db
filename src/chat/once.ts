import { wellFormedValue } from './well-formed.ts'

/**
 * Remembers what a pure function makes of each object (a stored message, a list of declarations), for as long as that
 * object lives; the object must never change. The result is shared. If the result is frozen as well, src/llm/body.ts
 * writes its JSON only once.
 */
export function once<K extends object, V>(make: (from: K) => V): (from: K) => V {
  const made = new WeakMap<K, V>()
  return (from) => {
    const known = made.get(from)
    if (known !== undefined) return known
    const fresh = make(from)
    made.set(from, fresh)
    return fresh
  }
}

/**
 * The value as it is sent from now on: without lone surrogates, and frozen, so that its bytes are kept. The values
 * inside it are not frozen, but nobody changes them either.
 */
export const kept = <T extends object>(value: T): T => Object.freeze(wellFormedValue(value))
