/** A map with a bound: the oldest entries give way. */

export class BoundedMap<Value> {
  readonly #entries = new Map<string, Value>()
  readonly #most: number
  readonly #weightOf: (value: Value) => number
  #held = 0

  /** `most`: the largest sum of all values' weights. A value's weight never changes; without `weightOf` it is 1. */
  constructor(most: number, weightOf: (value: Value) => number = () => 1) {
    this.#most = most
    this.#weightOf = weightOf
  }

  get(key: string): Value | undefined {
    return this.#entries.get(key)
  }

  values(): Iterable<Value> {
    return this.#entries.values()
  }

  /** Puts the value in as the newest, which stays whatever it weighs. */
  put(key: string, value: Value): void {
    this.drop(key)
    this.#entries.set(key, value)
    this.#held += this.#weightOf(value)
    for (const oldest of this.#entries.keys()) {
      if (this.#held <= this.#most || oldest === key) return
      this.drop(oldest)
    }
  }

  drop(key: string): void {
    const value = this.#entries.get(key)
    if (value === undefined) return
    this.#entries.delete(key)
    this.#held -= this.#weightOf(value)
  }
}
