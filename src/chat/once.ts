/**
 * A pure function of something that never changes (a stored message, a list of declarations), evaluated once
 * for each and let go with it. What it makes is shared: freeze it, and the door sends its JSON from memory.
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

/** As it is from now on: not the values inside, which nobody changes either. */
export function frozen<T extends object>(value: T): T {
  Object.freeze(value)
  return value
}
