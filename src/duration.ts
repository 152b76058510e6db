/** ISO 8601 durations (`PT30S`, `P0DT0H0M30S`, `P2W`), as every timeout in the file and the API is written. */

import { Type } from 'typebox'

/** The schema of a duration in the file; `durationMs` reads it. */
export const Duration = Type.String({ format: 'duration' })

const SHAPE =
  /^P(?:(\d+(?:\.\d+)?)W)?(?:(\d+(?:\.\d+)?)D)?(?:T(?=\d)(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?$/
const MS = [7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000]

/** Longest that any timer takes (2^31 - 1 ms, about 24.8 days). */
export const LONGEST_MS = 2 ** 31 - 1

/**
 * Milliseconds of a duration, or why it is none, in words. Years and months are refused: they have no fixed length.
 * Zero is refused too, and so is more than `longestMs`: by default, the longest that a timer takes.
 */
export function parseDuration(text: string, longestMs = LONGEST_MS): { ms: number } | { problem: string } {
  if (/^P[^T]*[YM]/.test(text)) {
    return { problem: 'must not use years or months, which have no fixed length; use W, D, H, M, S' }
  }
  const match = text.length > 1 && text.length <= 64 ? SHAPE.exec(text) : null
  if (!match) return { problem: 'must be an ISO 8601 duration such as PT30S or PT5M' }
  const ms = Math.round(MS.reduce((sum, unit, i) => sum + unit * Number(match[i + 1] ?? 0), 0))
  if (ms < 1) return { problem: 'must be longer than zero' }
  if (ms > longestMs) return { problem: `must be at most ${Math.floor(longestMs / 86_400_000)} days` }
  return { ms }
}

/** A duration that validation has passed already. */
export function durationMs(text: string): number {
  const read = parseDuration(text)
  if ('problem' in read) throw new RangeError(`'${text}' ${read.problem}`)
  return read.ms
}
