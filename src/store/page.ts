/** Pages of a list. A cursor is the sort key of the page's last row, with the list's name, in base64url. */
import { invalid } from '../errors.ts'
import type { Page, PageRequest } from './store.ts'

/**
 * The sort key after which the page starts, or null for the first one. Throws invalid_request, param
 * `cursor`, for one that this list did not give out.
 */
export function readCursor(list: string, page: PageRequest, keys = ID): string | null {
  if (page.cursor === undefined) return null
  const text = Buffer.from(page.cursor, 'base64url').toString()
  const key = text.slice(list.length + 1)
  if (page.cursor !== cursorOf(list, key) || !keys.test(key)) {
    throw invalid('cursor', 'This list did not issue the cursor; omit it to start from the first page.')
  }
  return key
}

const cursorOf = (list: string, key: string | number): string =>
  Buffer.from(`${list} ${key}`).toString('base64url')

const ID = /^[\w-]{1,200}$/
/** `keys` of a list that is ordered by a number. */
export const SEQ = /^\d{1,15}$/

/**
 * Most bytes in a page of rows that may be large; a single larger row is a page, too. For messages and turns within_bytes
 * in the schema counts their JSON, for other rows `withinBytes` (sql.ts) counts their large columns.
 */
export const PAGE_BYTES = 32 << 20

/**
 * Makes the page. `rows` holds one row more than the page, if there is one. Nulls after the rows say that the page ended
 * early, so that there are more rows; an empty page may be a single null.
 */
export function toPage<T>(
  list: string,
  page: PageRequest,
  rows: readonly (T | null)[],
  key: (row: T) => string | number,
): Page<T> {
  const found = rows.filter((row) => row !== null)
  const data = found.slice(0, page.limit)
  const last = data.at(-1)
  const isMore = last !== undefined && (found.length > page.limit || found.length < rows.length)
  return { data, next_cursor: isMore ? cursorOf(list, key(last)) : null }
}
