/** Random numbers that a seed repeats (mulberry32): a failed run can be run again. */

export interface Random {
  /** From 0 up to, not including, 1 */
  next(): number
  /** A whole number from `low` up to, not including, `high` */
  between(low: number, high: number): number
  pick<T>(list: readonly T[]): T
}

export function createRandom(seed: number): Random {
  let state = seed >>> 0
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = Math.imul(state ^ (state >>> 15), state | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
  const between = (low: number, high: number) => low + Math.floor(next() * (high - low))
  return {
    next,
    between,
    pick(list) {
      const found = list[between(0, list.length)]
      if (found === undefined) throw new Error('nothing to pick from')
      return found
    },
  }
}
