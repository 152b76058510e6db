/** Prefixed ids that sort by the time they were made. */
import { randomBytes } from 'node:crypto'

type IdPrefix = 'ses' | 'turn' | 'msg' | 'con' | 'cred' | 'exec' | 'key' | 'req' | 'call' | 'replica'

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz'
let lastMs = 0
let count = 0

/** `ses_` + 10 characters of milliseconds + 2 of a counter within a millisecond + 12 random ones. */
export function newId(prefix: IdPrefix): string {
  const now = Date.now()
  if (now > lastMs) {
    lastMs = now
    count = 0
  } else if (++count > 1023) {
    // So many ids in one millisecond, or the clock was set back and will be behind for a while.
    lastMs++
    count = 0
  }
  return `${prefix}_${base32(lastMs, 10)}${base32(count, 2)}${random(12)}`
}

/** Sorts after all ids with the prefix that were made before the time, in Unix milliseconds, and before all others. */
export const idAt = (prefix: IdPrefix, ms: number): string => `${prefix}_${base32(Math.max(0, ms), 10)}`

function base32(value: number, length: number): string {
  let text = ''
  for (let rest = value, i = 0; i < length; i++) {
    text = ALPHABET[rest % 32] + text
    rest = Math.floor(rest / 32)
  }
  return text
}

/** Random bytes are fetched many at once: asking the system for a few costs more than all the rest of an id. */
let pool = randomBytes(0)
let used = 0

function random(length: number): string {
  if (used + length > pool.length) {
    pool = randomBytes(3072)
    used = 0
  }
  let text = ''
  for (const end = used + length; used < end; used++) text += ALPHABET[(pool[used] ?? 0) & 31]
  return text
}
