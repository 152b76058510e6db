/** JSON values from outside: told apart, measured without recursion, written in one form, and hashed. */
import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'

const [QUOTE, COMMA, OPEN_LIST, ESCAPE, CLOSE_LIST, OPEN, CLOSE] = [0x22, 0x2c, 0x5b, 0x5c, 0x5d, 0x7b, 0x7d]

/** A JSON object, neither null nor a list. */
export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** The object that a JSON text holds; null if it holds none. */
export function parseRecord(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text)
    return isRecord(value) ? value : null
  } catch {
    return null
  }
}

/**
 * Whether a JSON text says the same once it is read and written again. A whole number beyond 2^53 may become another
 * one, and ids are such numbers (anthropics/claude-code#78762); one that no double holds, as 1e400, becomes null. The
 * text must be valid JSON.
 */
export function isExact(json: string): boolean {
  if (!/(?<!\d)\d{16}|\de\+?\d{3}/i.test(json)) return true
  for (let at = 0; at < json.length; ) {
    const quote = json.indexOf('"', at)
    const end = quote < 0 ? json.length : quote
    if (end - at >= SHORTEST && !holdsExact(json.slice(at, end))) return false
    at = endOfString(json, end)
  }
  return true
}

/** Characters of a number that may not be exact, as `1e400` */
const SHORTEST = 5

/** Whether all numbers of a JSON text without strings are exact. No double has more than 309 digits before its point. */
function holdsExact(json: string): boolean {
  for (const [digits] of json.matchAll(/(?<![\d.])\d{16,310}/g)) {
    const read = Number(digits)
    if (!Number.isFinite(read) || significant(String(read)) !== significant(digits)) return false
  }
  for (const [number] of json.matchAll(/(?<![\d.])[\d.]+e\+?\d{3,}/gi)) {
    if (!Number.isFinite(Number(number))) return false
  }
  return true
}

/** The place after the string that begins at this quote. */
function endOfString(json: string, quote: number): number {
  for (let at = json.indexOf('"', quote + 1); at >= 0; at = json.indexOf('"', at + 1)) {
    let start = at
    while (json.charCodeAt(start - 1) === ESCAPE) start--
    if ((at - start) % 2 === 0) return at + 1
  }
  return json.length
}

/** The digits of a number, however large it is. */
const significant = (number: string): string => number.replace(/\.|e.*|0+$/g, '')

/**
 * Whether a JSON text is this value, however it is laid out, and says no more: the value may have lost digits of an id.
 * For values that are BEARABLE.
 */
export function isJsonOf(value: unknown, json: string): boolean {
  const held = jsonIn(json)
  return held !== undefined && isDeepStrictEqual(held, value) && isExact(json)
}

/** The value's JSON; null for a value nested some thousands of levels deep, which overflows the stack. */
export function asJson(value: unknown): string | null {
  try {
    return JSON.stringify(value)
  } catch {
    return null
  }
}

/** JSON with sorted keys and no undefined: equal values have equal texts. For values of bounded depth. */
export function canonicalJson(value: unknown): string {
  // By +=, which copies nothing: each level that joined its members would copy a file that is in them.
  let json = ''
  if (Array.isArray(value)) {
    for (const item of value) json += `${json && ','}${canonicalJson(item)}`
    return `[${json}]`
  }
  if (!isRecord(value)) return JSON.stringify(value) ?? 'null'
  for (const key of Object.keys(value).sort()) {
    if (value[key] !== undefined) json += `${json && ','}${JSON.stringify(key)}:${canonicalJson(value[key])}`
  }
  return `{${json}}`
}

interface Limits {
  /** Nesting levels of objects and lists */
  depth?: number
  /** Items and fields, all together */
  values?: number
  /** A lower bound of the JSON's length */
  bytes?: number
}

/** The most that a tool may be given, or may answer: to store, search or send more would hold up everybody's turns. */
export const BEARABLE = { depth: 200, values: 200_000 }

/**
 * Whether a value stays within all limits. Walks level by level, not by recursion: a value nested a hundred thousand
 * deep, which JSON.stringify cannot take, only answers no. It makes no object for each value, which would cost more than
 * all the rest.
 */
export function isWithin(
  value: unknown,
  { depth = Infinity, values = Infinity, bytes = Infinity }: Limits,
): boolean {
  let count = 1
  let length = 0
  let level: readonly unknown[] = [value]
  for (let at = 1; level.length > 0; at++) {
    const below: unknown[] = []
    for (const one of level) {
      length += typeof one === 'string' ? one.length + 2 : 2
      if (typeof one !== 'object' || one === null) {
        if (length > bytes) return false
        continue
      }
      if (at > depth) return false
      const children: unknown[] = Array.isArray(one) ? one : Object.values(one)
      count += children.length
      if (!Array.isArray(one)) for (const key of Object.keys(one)) length += key.length + 3
      // Checked before the children are put into the next level: a list of millions is refused by its length alone.
      if (count > values || length + below.length + children.length > bytes) return false
      for (const child of children) below.push(child)
    }
    level = below
  }
  return true
}

/**
 * The most that is parsed of a text from outside. Deeper nesting can no longer be written again with certainty; each
 * value takes a hundred bytes or more, and the parser makes all of them in one go.
 */
export const READABLE = { depth: 200, values: 1_000_000 }

/** Which limit of READABLE a JSON text is beyond: its brackets and commas tell, in a tenth of the time of parsing it. */
export function excessIn(json: string): keyof typeof READABLE | null {
  let depth = 0
  let values = 0
  for (let at = 0; at < json.length; at++) {
    const code = json.charCodeAt(at)
    if (code === QUOTE) at = endOfString(json, at) - 1
    else if (code === OPEN || code === OPEN_LIST) {
      values++
      if (++depth > READABLE.depth) return 'depth'
    } else if (code === CLOSE || code === CLOSE_LIST) depth--
    else if (code === COMMA) values++
    if (values > READABLE.values) return 'values'
  }
  return null
}

/** What a JSON text holds; undefined: it is none, or beyond READABLE. */
export function jsonIn(text: string): unknown {
  if (excessIn(text)) return undefined
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** The keys that a JSON Pointer names (RFC 6901), as they are. */
export const stepsOf = (pointer: string): string[] =>
  pointer
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))

/** A key as a JSON Pointer writes it. */
export const stepOf = (key: string): string => key.replaceAll('~', '~0').replaceAll('/', '~1')

/** What a JSON Pointer leads to in a JSON value; undefined: there is nothing. */
export function valueAt(root: unknown, pointer: string): unknown {
  let value = root
  for (const key of stepsOf(pointer)) {
    const holds = typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    if (!holds || (Array.isArray(value) && !/^(0|[1-9]\d*)$/.test(key))) return undefined
    value = (value as Record<string, unknown>)[key]
  }
  return value
}

/** In hexadecimal. */
export const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
