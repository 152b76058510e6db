/** A part of a stored tool output: by JSON Pointer, then by bytes, never through a character. */
import { stepsOf } from '../chat/json.ts'
import { invalid } from '../errors.ts'
import { characterStart, nextCharacter } from '../text.ts'

/** One part, and where it stands in the whole; offsets are bytes. */
interface Slice {
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
  const start = characterStart(bytes, Math.min(offset, bytes.length))
  let end = characterStart(bytes, Math.min(start + limit, bytes.length))
  if (end === start && end < bytes.length) end = nextCharacter(bytes, end + 1)
  return {
    path,
    offset: start,
    limit,
    total_bytes: bytes.length,
    next_offset: end < bytes.length ? end : null,
    content: bytes.toString('utf8', start, end),
  }
}

function textAt({ output, structured }: { output: string; structured: boolean }, path: string): string {
  if (!path.startsWith('/')) throw refused('A JSON Pointer begins with /, such as /items/0.')
  // Text that happens to be JSON can be walked too.
  let value: unknown = structured ? JSON.parse(output) : readJson(output)
  if (value === undefined) throw refused('This output is text; read it by offset, without a path.')
  for (const key of stepsOf(path)) {
    const holds = typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    if (!holds || (Array.isArray(value) && !/^(0|[1-9]\d*)$/.test(key))) {
      throw refused(`There is nothing at ${path}.`)
    }
    value = (value as Record<string, unknown>)[key]
  }
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function readJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const refused = (message: string) => invalid('path', message)
