/**
 * A request's body as the bytes of its JSON. What is frozen never changes, so its bytes are made once, however
 * often they are sent: of a long chat only the last words are new.
 */
import { once } from '../chat/once.ts'

/** In memory of their own: a piece of Node's pool keeps all of its 8 kB for as long as it is kept itself. */
const bytesOf = once((value: object) => {
  const text = JSON.stringify(value)
  const bytes = Buffer.allocUnsafeSlow(Buffer.byteLength(text))
  bytes.write(text)
  return bytes
})

const isFrozen = (value: unknown): value is object =>
  typeof value === 'object' && value !== null && Object.isFrozen(value)

/** Between the items of a list that is kept in memory: thousands of them, so bytes already, like the items. */
const COMMA = Buffer.from(',')

type Piece = string | Buffer
type Pieces = Piece[]

const sizeOf = (piece: Piece): number => (typeof piece === 'string' ? Buffer.byteLength(piece) : piece.length)

/** What JSON.stringify would say, in UTF-8. */
export function bodyBytes(body: Readonly<Record<string, unknown>>): Buffer {
  const pieces: Pieces = []
  // Long lists stand in the body, or in one object of it; deeper down nothing is looked for.
  addObject(pieces, body, 1)
  if (!pieces.some((piece) => typeof piece !== 'string')) return Buffer.from(pieces.join(''))
  const length = pieces.reduce((sum, piece) => sum + sizeOf(piece), 0)
  const bytes = Buffer.allocUnsafe(length)
  let at = 0
  for (const piece of pieces) at += typeof piece === 'string' ? bytes.write(piece, at) : piece.copy(bytes, at)
  return bytes
}

function addObject(pieces: Pieces, value: Readonly<Record<string, unknown>>, depth: number): void {
  let before = '{'
  for (const [name, member] of Object.entries(value)) {
    if (member === undefined) continue
    pieces.push(`${before}${JSON.stringify(name)}:`)
    addValue(pieces, member, depth)
    before = ','
  }
  pieces.push(before === '{' ? '{}' : '}')
}

function addValue(pieces: Pieces, value: unknown, depth: number): void {
  if (isFrozen(value)) pieces.push(bytesOf(value))
  else if (Array.isArray(value) && value.some(isFrozen)) addList(pieces, value)
  else if (depth > 0 && isPlain(value)) addObject(pieces, value, depth - 1)
  else pieces.push(JSON.stringify(value))
}

function addList(pieces: Pieces, list: readonly unknown[]): void {
  let before: Piece = '['
  for (const item of list) {
    pieces.push(before, isFrozen(item) ? bytesOf(item) : JSON.stringify(item ?? null))
    before = COMMA
  }
  pieces.push(']')
}

const isPlain = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype
