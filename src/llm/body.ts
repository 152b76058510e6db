/**
 * A request's body as the bytes of its JSON. A frozen value never changes, so its bytes are made once, however often it
 * is sent: in a long chat only the last words are new.
 */
import { once } from '../chat/once.ts'
import { inSlices } from '../within.ts'

/**
 * A value's JSON after a comma, as it stands in a list: a piece of its own for each comma would cost more than all the
 * rest. The buffer is not from Node's pool: a kept part of the pool keeps 8 kB of it in memory.
 */
const bytesOf = once((value: object) => {
  const text = JSON.stringify(value)
  const bytes = Buffer.allocUnsafeSlow(1 + Buffer.byteLength(text))
  bytes.write(',')
  bytes.write(text, 1)
  return bytes
})

const isFrozen = (value: unknown): value is object =>
  typeof value === 'object' && value !== null && Object.isFrozen(value)

/** A frozen value's bytes are made when all pieces are known. */
type Piece = string | (() => Buffer)

/**
 * How deep frozen values are nested at most: in an envelope, its request, the list of contents, a content, its list of
 * parts.
 */
const DEPTH = 5

/** The result of JSON.stringify, in UTF-8. In slices: a long history that was not sent before takes half a second. */
export async function bodyBytes(body: Readonly<Record<string, unknown>>): Promise<Buffer> {
  const pieces: Piece[] = []
  addObject(pieces, body, DEPTH)
  const made = await inSlices(pieces, (piece) => (typeof piece === 'string' ? piece : piece()))
  const length = made.reduce((sum, piece) => sum + sizeOf(piece), 0)
  const bytes = Buffer.allocUnsafe(length)
  let at = 0
  for (const piece of made) at += typeof piece === 'string' ? bytes.write(piece, at) : piece.copy(bytes, at)
  return bytes
}

const sizeOf = (piece: string | Buffer): number =>
  typeof piece === 'string' ? Buffer.byteLength(piece) : piece.length

/** Joined to the text before it: each piece is measured and written by itself, so there should be few. */
function addText(pieces: Piece[], text: string): void {
  const last = pieces.at(-1)
  if (typeof last === 'string') pieces[pieces.length - 1] = last + text
  else pieces.push(text)
}

function addObject(pieces: Piece[], value: Readonly<Record<string, unknown>>, depth: number): void {
  let before = '{'
  for (const [name, member] of Object.entries(value)) {
    if (member === undefined) continue
    addText(pieces, `${before}${JSON.stringify(name)}:`)
    addValue(pieces, member, depth - 1)
    before = ','
  }
  addText(pieces, before === '{' ? '{}' : '}')
}

function addValue(pieces: Piece[], value: unknown, depth: number): void {
  if (isFrozen(value)) pieces.push(() => bytesOf(value).subarray(1))
  else if (depth > 0 && Array.isArray(value)) addList(pieces, value, depth)
  else if (depth > 0 && isPlain(value)) addObject(pieces, value, depth)
  else addText(pieces, JSON.stringify(value))
}

function addList(pieces: Piece[], list: readonly unknown[], depth: number): void {
  addText(pieces, '[')
  list.forEach((item, i) => {
    if (i > 0 && isFrozen(item)) {
      pieces.push(() => bytesOf(item))
      return
    }
    if (i > 0) addText(pieces, ',')
    addValue(pieces, item ?? null, depth - 1)
  })
  addText(pieces, ']')
}

const isPlain = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype
