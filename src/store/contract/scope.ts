/** Whose rows, how many of them at once, and who may renew one. */

/** Whose rows a verb may see: an owner's own, or everything for an admin. */
export interface Scope {
  owner: string
  admin: boolean
}
/** On nobody's behalf: the engine's own acts, and the command line on the store itself. */
export const EVERYONE: Scope = { owner: '', admin: true }

export interface PageRequest {
  limit: number
  /** Opaque, from the page before */
  cursor?: string | undefined
  /** Most bytes of rows that may be large: a page ends before it has more, but has at least one. Default 32 MiB */
  bytes?: number
}
export interface Page<T> {
  data: T[]
  next_cursor: string | null
}

/** Claims on rows with a login: one process at a time renews it. */
export interface Claims<Row> {
  /** Claims the renewal for `seconds`; null if anybody holds it, the same caller included, or the row is gone. */
  claim(id: string, by: string, seconds: number): Promise<Claim<Row> | null>
  release(id: string, by: string): Promise<void>
}
interface Claim<Row> {
  row: Row
  /** The claim before this one was not released but lapsed, as with a process that died */
  hasLapsed: boolean
}

/** Every row of a paged list. */
export async function all<T>(page: (request: PageRequest) => Promise<Page<T>>): Promise<T[]> {
  const rows: T[] = []
  let cursor: string | undefined
  do {
    const { data, next_cursor }: Page<T> = await page({ limit: 100, cursor })
    rows.push(...data)
    cursor = next_cursor ?? undefined
  } while (cursor !== undefined)
  return rows
}
