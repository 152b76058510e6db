/** Keeps what a call authorises itself with out of its errors: vendors quote keys and tokens in their messages. */
import { BatonError } from '../errors.ts'
import { withoutSecrets } from '../foreign.ts'

/** Texts and errors with `***` for each secret. */
export interface Scrub {
  text(text: string): string
  /** The same, then cut to LONGEST: a cut before might leave half of the secret, which would not be found. */
  words(text: string): string
  error(error: BatonError): BatonError
}

/** Characters of one text */
const LONGEST = 2_500

export function scrubber(secrets: readonly string[]): Scrub {
  const text = (words: string) => withoutSecrets(words, secrets)
  const words = (all: string) => text(all).slice(0, LONGEST)
  return {
    text,
    words,
    error(error) {
      const details = JSON.stringify(error.details ?? {})
      // Each text by itself: a secret may be what separates two of them, such as `","type":"`.
      const told = JSON.parse(details, (_, value) => (typeof value === 'string' ? words(value) : value))
      const message = words(error.message)
      if (message === error.message && JSON.stringify(told) === details) return error
      return new BatonError(error.code, message, { details: told, retryAfter: error.retryAfter })
    },
  }
}
