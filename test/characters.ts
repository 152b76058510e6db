/** Characters for made-up texts. */
import fc from 'fast-check'

/** As the unit `binary` of fast-check, which takes two seconds of processor time to begin. */
export const ANY_CHARACTER: fc.Arbitrary<string> = fc
  .nat(0x10ffff)
  // The others are half a character.
  .filter((n) => n < 0xd800 || n > 0xdfff)
  .map(
    (n) => String.fromCodePoint(n),
    // With this, texts that are names of an object's members come up as well.
    (text) => {
      const [first = '', ...others] = String(text)
      return others.length === 0 ? (first.codePointAt(0) ?? Number.NaN) : Number.NaN
    },
  )
