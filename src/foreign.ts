/** How doors read the answers of services that are not ours: words without secrets, headers, Retry-After. */
import { overlap, placeIn } from './text.ts'

export type Pair = [name: string, value: string]

/**
 * Names of values that authorise Baton. Other values name a tenant or region, say, and occur in many texts. A virtual
 * key of Bifrost is in x-bf-vk (docs.getbifrost.ai/features/governance/virtual-keys).
 */
const CREDENTIAL = /auth|cookie|cred|key|pass|pwd|secret|token|(?:^|[_-])(?:pat|vk)$/i
/** Such as a database's address */
const WITH_PASSWORD = /:\/\/[^/@\s]*:[^/@\s]+@/

/** Those of the values that are secrets. */
export const authorising = (pairs: readonly Pair[]): string[] =>
  pairs
    .filter(([name, value]) => CREDENTIAL.test(name) || WITH_PASSWORD.test(value))
    .map(([, value]) => value)

/** Shorter values occur in innocent texts, and nobody issues secrets so short. */
const SHORTEST_SECRET = 8

/**
 * The secrets as they are and without an Authorization's scheme, each also as a form or URL holds it (Google's tokens
 * have slashes), and as a JSON text does.
 */
const formsOf = (sent: readonly string[]): string[] =>
  sent
    .flatMap((value) => [value, value.replace(/^(Bearer|Basic|DPoP) +/i, '')])
    .filter((value) => value.length >= SHORTEST_SECRET)
    .flatMap((value) => [value, encodeURIComponent(value.toWellFormed()), JSON.stringify(value).slice(1, -1)])

/** The text with `***` for each of the secrets that were sent. */
export const withoutSecrets = (text: string, sent: readonly string[]): string => masking(sent)(text)

/** The same for many texts: to write the secrets' forms down anew for each would cost more than to look for them. */
export function masking(sent: readonly string[]): (text: string) => string {
  // The longest first: one may be the beginning of another.
  const forms = [...new Set(formsOf(sent))].sort((a, b) => b.length - a.length)
  return (text) => forms.reduce(without, text)
}

/**
 * The text with `***` for each place of the form. Callers choose a secret and what their server says, and may choose
 * both so that the search is slow.
 */
function without(text: string, form: string): string {
  let rest = ''
  let from = 0
  for (let at = placeIn(text, form); at >= 0; at = placeIn(text, form, from)) {
    rest += `${text.slice(from, at)}***`
    from = at + form.length
  }
  return rest + text.slice(from)
}

/** As `withoutSecrets`, for the end of a longer text: it may begin in the middle of a secret. */
export function endWithoutSecrets(end: string, sent: readonly string[]): string {
  const text = withoutSecrets(end, sent)
  const halves = formsOf(sent).map((form) => overlap(form, text))
  return text.slice(Math.max(0, ...halves))
}

/** undici's headers of an answer, a repeated one joined by commas. Their names are in lower case already. */
export const flatHeaders = (
  headers: Readonly<Record<string, string | string[] | undefined>>,
): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined ? [] : [[name, [value].flat().join(', ')]],
    ),
  )

/** Longest wait that a service's answer may ask for. */
const LONGEST_MS = 86_400_000

/**
 * Seconds or an HTTP date (RFC 9110 10.2.3) in milliseconds from `now`, a day at most. Some services send fractions
 * (SpaceTradersAPI/api-docs#24); `Date.parse` reads these, and every text of numbers alone, as dates of long ago.
 */
export function retryAfterMs(header: string | null | undefined, now: number): number | undefined {
  const told = header?.trim() ?? ''
  if (/^\d+(\.\d+)?$/.test(told)) return Math.min(Number(told) * 1000, LONGEST_MS)
  const date = /[a-z]/i.test(told) ? Date.parse(told) : Number.NaN
  return Number.isNaN(date) ? undefined : Math.min(Math.max(0, date - now), LONGEST_MS)
}
