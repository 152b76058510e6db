/** Pages of a list. A cursor is the sort key of the page's last row, with the list's name, in base64url. */
import { invalid } from '../errors.ts'
import type { Page, PageRequest } from './store.ts'

/**
 * The sort key after which the page starts, or null for the first one. Throws invalid_request, param
 * `cursor`, for one that this list did not give out.
 */
export function readCursor(list: string, page: PageRequest, keys = ID): string | null {
  if (page.cursor === undefined) return null
  const text = Buffer.from(page.cursor, 'base64url').toString('utf8')
  const isOurs = Buffer.from(text, 'utf8').toString('base64url') === page.cursor
  const [name, key] = text.split(' ', 2)
  if (!isOurs || name !== list || !key || !keys.test(key)) {
    throw invalid('cursor', 'This list did not issue the cursor; omit it to start from the first page.')
  }
  return key
}

const ID = /^[\w-]{1,200}$/
/** `keys` of a list that is ordered by a number. */
export const SEQ = /^\d{1,15}$/

/**
 * In a page of rows that may be large, unless it is a single one: of messages and turns within_bytes in the schema counts
 * their JSON, of other rows `withinBytes` (sql.ts) what is large in them.
 */
export const PAGE_BYTES = 32 << 20

/** Whether such a page ended early: a null stands behind its rows. An empty page may be a single null. */
export const isCut = (rows: readonly unknown[]): boolean => rows.length > 1 && rows.at(-1) === null

/** Of one row more than the page holds, if there is one: the page, and whether there is a next one. `isCut`: there is. */
export function toPage<T>(
  list: string,
  page: PageRequest,
  rows: T[],
  key: (row: T) => string | number,
  isCut = false,
): Page<T> {
  const data = rows.slice(0, page.limit)
  const last = data.at(-1)
  const isMore = (isCut || rows.length > page.limit) && last !== undefined
  return { data, next_cursor: isMore ? Buffer.from(`${list} ${key(last)}`).toString('base64url') : null }
}
