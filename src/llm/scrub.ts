/** Keeps a call's own secret out of its errors: vendors quote keys and tokens in theirs. */
import { BatonError } from '../errors.ts'
import { withoutSecrets } from '../foreign.ts'
import type { CredentialSecret } from '../provider.ts'

/** Texts and errors with `***` for the secret. */
export interface Scrub {
  text(text: string): string
  error(error: BatonError): BatonError
}

export function scrubber(secret: CredentialSecret): Scrub {
  const text = (words: string) => withoutSecrets(words, Object.values(secret))
  return {
    text,
    error(error) {
      const details = JSON.stringify(error.details ?? {})
      if (text(error.message) === error.message && text(details) === details) return error
      const { retryAfter } = error
      return new BatonError(error.code, text(error.message), {
        details: JSON.parse(text(details)),
        ...(retryAfter === undefined ? {} : { retryAfter }),
      })
    },
  }
}
