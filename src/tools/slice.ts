/** A part of a stored tool output: by JSON Pointer, then by bytes, never through a character. */
import { BatonError } from '../errors.ts'

export interface Slice {
  path: string
  offset: number
  limit: number
  total_bytes: number
  /** Where the next slice begins; null at the end */
  next_offset: number | null
  content: string
}

/**
 * `path` is a JSON Pointer (RFC 6901) into a structured output, '' for all of it; `offset` and `limit` are
 * bytes of UTF-8. A slice begins and ends at characters, and holds at least one. Throws invalid_request.
 */
export function outputSlice(
  stored: { output: string; structured: boolean },
  { path, offset, limit }: { path: string; offset: number; limit: number },
): Slice {
  const bytes = Buffer.from(path === '' ? stored.output : textAt(stored, path), 'utf8')
  const start = boundary(bytes, Math.min(offset, bytes.length))
  let end = boundary(bytes, Math.min(start + limit, bytes.length))
  while (end <= start && end < bytes.length) end = next(bytes, end)
  return {
    path,
    offset: start,
    limit,
    total_bytes: bytes.length,
    next_offset: end < bytes.length ? end : null,
    content: bytes.toString('utf8', start, end),
  }
}

const isInside = (byte: number | undefined): boolean => byte !== undefined && (byte & 0xc0) === 0x80

/** The beginning of the character that this place is in. */
function boundary(bytes: Uint8Array, at: number): number {
  let place = at
  while (place > 0 && isInside(bytes[place])) place--
  return place
}

function next(bytes: Uint8Array, at: number): number {
  let place = at + 1
  while (isInside(bytes[place])) place++
  return place
}

function textAt({ output, structured }: { output: string; structured: boolean }, path: string): string {
  if (!structured) throw refused('This output is text; it has no paths.')
  if (!path.startsWith('/')) throw refused('A JSON Pointer begins with /, such as /items/0.')
  let value: unknown = JSON.parse(output)
  for (const step of path.slice(1).split('/')) {
    const key = step.replace(/~1/g, '/').replace(/~0/g, '~')
    const holds = typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    if (!holds || (Array.isArray(value) && !/^(0|[1-9]\d*)$/.test(key))) {
      throw refused(`There is nothing at ${path}.`)
    }
    value = (value as Record<string, unknown>)[key]
  }
  return typeof value === 'string' ? value : JSON.stringify(value)
}

const refused = (message: string) => new BatonError('invalid_request', message, { param: 'path' })
