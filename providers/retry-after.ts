/**
 * How long a vendor wants no further request, in whole seconds, and whether to try again at all. Times are compared
 * with the answer's own Date, so no clock is needed.
 */

type Headers = Readonly<Record<string, string>>

/** Whole seconds; undefined if the headers say nothing or name a past time. */
export function retryAfterIn(headers: Headers): number | undefined {
  const ms = decimal(headers['retry-after-ms'])
  if (ms) return Math.ceil(ms / 1000)
  const { 'retry-after': told } = headers
  const seconds = decimal(told)
  return seconds === undefined ? secondsUntil(told, headers) : Math.ceil(seconds)
}

/** Whole seconds from the answer's Date until an instant; undefined if it has passed, or either is missing. */
export function secondsUntil(instant: string | undefined, { date }: Headers): number | undefined {
  const left = (Date.parse(instant ?? '') - Date.parse(date ?? '')) / 1000
  return left >= 0 ? Math.ceil(left) : undefined
}

/** Whether trying again may help, if the vendor says so. The SDKs of Anthropic and OpenAI heed this before all else. */
export function shouldRetryIn(headers: Headers): { should_retry?: boolean } {
  const { 'x-should-retry': told } = headers
  return told === 'true' || told === 'false' ? { should_retry: told === 'true' } : {}
}

/** A header's number. */
export const decimal = (value: string | undefined): number | undefined =>
  value !== undefined && /^\d+(\.\d+)?$/.test(value) ? Number(value) : undefined
