/** Keeps a call's own secret out of its errors: vendors quote keys and tokens in theirs. */
import { BatonError } from '../errors.ts'
import type { CredentialSecret, Deployment, UpstreamFailure } from '../provider.ts'

export interface Scrub {
  text(text: string): string
  error(error: BatonError): BatonError
}

/** Shorter ones stand in many an innocent text; no vendor issues them. */
const SHORTEST_SECRET = 8

export function scrubber(secret: CredentialSecret): Scrub {
  const secrets = Object.values(secret).filter((value) => value.length >= SHORTEST_SECRET)
  const text = (words: string) => secrets.reduce((rest, value) => rest.replaceAll(value, '***'), words)
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

/** The adapter's `classify`, over a body that no longer holds the secret. */
export function classifier(deployment: Deployment, secret: CredentialSecret) {
  const { text } = scrubber(secret)
  return (failure: UpstreamFailure): BatonError =>
    deployment.classify({ ...failure, body: text(failure.body) })
}
