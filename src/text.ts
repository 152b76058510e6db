/** Text from outside: what a model or a terminal may see of it, and cuts that never split a character. */

/**
 * Characters that a reader does not see but a model does: controls, zero-width, bidirectional overrides,
 * tag and variation characters (mcp.md 7.5: hidden instructions), and halves of surrogate pairs.
 */
const UNSEEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: taking them out is the point
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]|\p{Cs}/gu

/** A description as a model may see it: no unseen characters, no HTML comments, at most `limit` bytes. */
export function visibleText(text: string, limit: number): string {
  // Cut generously first, so that a description of megabytes costs no more than a long one.
  const clean = withoutComments(text.slice(0, limit * 4).replace(UNSEEN, ''))
  return Buffer.byteLength(clean) <= limit ? clean : `${cutUtf8(clean, limit - 3)}…`
}

/** A text with its unseen characters written out (`\u{200b}`), for people to judge. */
export const spelledOut = (text: string): string =>
  text.replace(UNSEEN, (character) => `\\u{${character.codePointAt(0)?.toString(16)}}`)

/** The same as JSON writes them (`\u200b`): JSON text keeps its meaning. */
export const jsonEscaped = (text: string): string =>
  text.replace(UNSEEN, (character) => character.replace(/./gs, jsonEscape))

/** One UTF-16 unit as JSON may write it. */
export const jsonEscape = (unit: string): string => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`

/** One line for a log or a terminal: nothing unseen, no control character that could add a line. */
export const oneLine = (text: string, limit = 400): string => visibleText(text, limit).replace(/[\t\n]/g, ' ')

function withoutComments(text: string): string {
  let kept = ''
  let at = 0
  while (true) {
    const start = text.indexOf('<!--', at)
    if (start < 0) return kept + text.slice(at)
    kept += text.slice(at, start)
    // The text around a comment must not form another one.
    if (/<!?-?$/.test(kept.slice(-3))) kept += ' '
    const end = text.indexOf('-->', start + 4)
    if (end < 0) return kept
    at = end + 3
  }
}

/** The longest start of the text that takes at most `bytes` bytes as UTF-8. */
export function cutUtf8(text: string, bytes: number): string {
  if (text.length * 3 <= bytes) return text
  const buffer = Buffer.from(text)
  return buffer.length <= bytes ? text : buffer.toString('utf8', 0, characterStart(buffer, bytes))
}

/** The longest end of the text that takes at most `bytes` bytes as UTF-8. */
export function endUtf8(text: string, bytes: number): string {
  if (text.length * 3 <= bytes) return text
  const buffer = Buffer.from(text)
  if (buffer.length <= bytes) return text
  return buffer.toString('utf8', nextCharacter(buffer, buffer.length - bytes))
}

/** The place itself if a character starts there, else the start of the one that it lies in. */
export function characterStart(buffer: Buffer, at: number): number {
  let start = at
  while (start > 0 && isContinuation(buffer[start])) start--
  return start
}

/** The place itself if a character starts there, else the start of the next one. */
export function nextCharacter(buffer: Buffer, at: number): number {
  let start = at
  while (start < buffer.length && isContinuation(buffer[start])) start++
  return start
}

const isContinuation = (byte: number | undefined): boolean => byte !== undefined && (byte & 0xc0) === 0x80

/** V8 finds pieces up to this length in linear time: its search has a table for the last 250 characters of one. */
const SHORT = 250

/**
 * As `text.indexOf(piece, from)`, in time that grows with the two lengths and not with their product. Where texts repeat
 * themselves, `indexOf` compares a long piece anew at each place: a minute for megabytes of one letter. But it finds
 * the beginning of a long piece twenty times as fast as the careful search does, and few texts have that without the
 * rest.
 */
export function placeIn(text: string, piece: string, from = 0): number {
  if (piece.length <= SHORT) return text.indexOf(piece, from)
  const beginning = piece.slice(0, SHORT)
  let place = text.indexOf(beginning, from)
  // What was compared in vain is no more than what was passed by: `without` begins anew behind each piece that it finds.
  for (let compared = 0; place >= 0 && compared <= place - from; compared += piece.length) {
    if (text.startsWith(piece, place)) return place
    place = text.indexOf(beginning, place + 1)
  }
  return place < 0 ? -1 : carefully(text, piece, place)
}

function carefully(text: string, piece: string, from: number): number {
  const borders = bordersOf(piece)
  let known = 0
  for (let at = from; at < text.length; at++) {
    known = extended(borders, piece, known, text.charCodeAt(at))
    if (known === piece.length) return at + 1 - known
  }
  return -1
}

/** The length of the longest end of `text`, short of all of it, that `next` begins with; in linear time, too. */
export function overlap(text: string, next: string): number {
  const borders = bordersOf(next)
  let known = 0
  for (let at = Math.max(1, text.length - next.length); at < text.length; at++) {
    known = extended(borders, next, known, text.charCodeAt(at))
  }
  return known
}

/** For each beginning of the piece, the length of the longest shorter one that it ends with (Knuth, Morris, Pratt). */
function bordersOf(piece: string): Uint32Array {
  const borders = new Uint32Array(piece.length + 1)
  for (let at = 1; at < piece.length; at++) {
    borders[at + 1] = extended(borders, piece, borders[at] ?? 0, piece.charCodeAt(at))
  }
  return borders
}

/** How much of the piece a text is known to end with, once it has one more character. */
function extended(borders: Uint32Array, piece: string, known: number, code: number): number {
  let length = known
  while (length > 0 && piece.charCodeAt(length) !== code) length = borders[length] ?? 0
  return piece.charCodeAt(length) === code ? length + 1 : length
}

/** PostgreSQL keeps no NUL, and half a surrogate pair has no UTF-8: both become U+FFFD. */
export const storableText = (text: string): string => text.replace(/\0|\p{Cs}/gu, '\ufffd')
