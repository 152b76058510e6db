/** The named options as numbers. Throws where an option is no number. */
export function numbersIn<K extends string>(
  values: Readonly<Record<K, string>>,
  ...names: K[]
): Record<K, number> {
  const read = names.map((name): [K, number] => {
    const number = values[name].trim() === '' ? Number.NaN : Number(values[name])
    if (!(number >= 0)) throw new Error(`--${name} takes a number, not '${values[name]}'`)
    return [name, number]
  })
  return Object.fromEntries(read) as Record<K, number>
}

/** How often a run repeats. Throws where that is no number of times: a run of no rounds would find nothing, and end well. */
export function roundsIn(values: Readonly<Record<'rounds', string>>): number {
  const { rounds } = numbersIn(values, 'rounds')
  if (Number.isInteger(rounds) && rounds > 0) return rounds
  throw new Error(`--rounds takes a whole number from 1, not '${values.rounds}'`)
}
