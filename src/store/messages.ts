/**
 * What was said in a session. Rewrites are counted, so that a replica that keeps a history knows when it is out of
 * date.
 */
import type { Message } from '../chat/message.ts'
import { inSlices } from '../within.ts'
import { type Db, type Queries, sureValue, value, values } from './db.ts'
import { document, record } from './json.ts'
import { PAGE_BYTES, readCursor, SEQ, toPage } from './page.ts'
import type { Parts, StoredMessage } from './parts.ts'
import { visibleTo } from './sql.ts'
import type { Messages, NewMessage } from './store.ts'

/** Where SQL put new messages: the seq before the first one's, and their time (put_messages in the schema). */
export interface Placed {
  after: number
  created_at: string
}

export function createMessages(db: Db, parts: Parts): Messages {
  return {
    async get(scope, session, id) {
      const found = await value<StoredMessage>(
        db,
        `select m.body from message m join session s on s.id = m.session_id
          where m.id = $3 and s.id = $1 and ($2::text is null or s.owner = $2)`,
        [session, visibleTo(scope), id],
      )
      return found && parts.shown(found)
    },
    async list(scope, session, page) {
      const after = readCursor('messages', page, SEQ)
      const rows = await values<StoredMessage | null>(
        db,
        `select m.body
           from session s left join lateral message_page(s.id, $3, $4, $5) with ordinality m(body, place) on true
          where s.id = $1 and ($2::text is null or s.owner = $2) order by m.place`,
        [session, visibleTo(scope), Number(after ?? 0), page.limit + 1, page.bytes ?? PAGE_BYTES],
      )
      if (rows.length === 0) return null
      const messages = rows.map((row) => row && parts.shown(row))
      return toPage('messages', page, messages, (message) => message.seq)
    },
    after: async (session, seq, lost) => {
      const found = await sureValue<StoredMessage[]>(db, 'select history($1, $2)', [session, seq])
      return found.map(lost ? parts.shown : parts.message)
    },
    async newest(session, seq) {
      const found = await value<StoredMessage>(
        db,
        'select body from message where session_id = $1 and seq > $2 order by seq desc limit 1',
        [session, seq],
      )
      return found && parts.shown(found)
    },
    ofTurn: async (turn, lost) => {
      const found = await values<StoredMessage>(
        db,
        `select m.body from turn t join message m on m.session_id = t.session_id
          where t.id = $1 and m.seq > t.base_seq and m.turn_id = t.id order by m.seq`,
        [turn],
      )
      return found.map(lost ? parts.shown : parts.message)
    },
    async append(scope, session, messages) {
      const given = await inSlices(messages, (message) => record(parts.newMessage(message, session)))
      const done = await value<{ busy?: true; placed?: Placed }>(db, 'select append_messages($1, $2, $3)', [
        visibleTo(scope),
        session,
        `[${given.join(',')}]`,
      ])
      if (done === null) return null
      return done.placed ? allAsStored(session, messages, done.placed) : 'busy'
    },
    async replace(scope, session, id, message) {
      const done = await value<{ busy?: true; message?: StoredMessage }>(
        db,
        'select replace_message($1, $2, $3, $4)',
        [visibleTo(scope), session, id, record(parts.content(message, session))],
      )
      if (done === null) return null
      return done.message ? parts.message(done.message) : 'busy'
    },
    delete: (scope, session, id) =>
      db.transaction(async (queries) => {
        const isThere = await value<boolean>(queries, 'select lock_session($1, $2)', [
          visibleTo(scope),
          session,
        ])
        if (!isThere) return null
        const [target] = await queries.query<{ calls: string[]; seq: number; busy: boolean }>(
          `select to_json(calls) as calls, seq::float8 as seq, is_busy(session_id) as busy
             from message where session_id = $1 and id = $2`,
          [session, id],
        )
        if (!target) return null
        if (target.busy) return 'busy'
        const gone = [id, ...(await dropResults(queries, session, target))]
        await queries.query('delete from message where id = any($1::text[])', [gone])
        await queries.query(REWRITTEN, [session])
        return gone
      }),
  }
}

const REWRITTEN = 'update session set updated_at = clock_timestamp(), rewrites = rewrites + 1 where id = $1'

/** A message as it is stored now; `i` is its place among those that were handed in together. */
export function asStored(session: string, message: NewMessage, placed: Placed, i = 0): Message {
  const { id, turn_id, role, parts, incomplete } = message
  // Member by member: Node 20 gives each object that adds to a spread one a hidden class of its own, and every later
  // pass over a long history then looks each member up the slow way.
  const seq = placed.after + i + 1
  const stored: Message = {
    id,
    session_id: session,
    turn_id,
    seq,
    role,
    parts,
    created_at: placed.created_at,
  }
  if (incomplete) stored.incomplete = true
  return stored
}

export const allAsStored = (session: string, messages: readonly NewMessage[], placed: Placed): Message[] =>
  messages.map((message, i) => asStored(session, message, placed, i))

/**
 * Takes the results of a message's calls out of the messages after it, up to where another call has the same id.
 * Returns the ids of messages that held nothing else, which are to be deleted. No part is opened: a lost key must not
 * keep anybody from deleting.
 */
async function dropResults(
  queries: Queries,
  session: string,
  target: { calls: string[]; seq: number },
): Promise<string[]> {
  const later = await queries.query<{ id: string; calls: string[]; results: string[] }>(
    `select id, to_json(calls) as calls, to_json(results) as results from message
      where session_id = $1 and seq > $2 and (results && $3::text[] or calls && $3::text[]) order by seq`,
    [session, target.seq, target.calls],
  )
  const empty: string[] = []
  const open = new Set(target.calls)
  for (const { id, calls, results } of later) {
    for (const call of calls) open.delete(call)
    const isKept = (call: string) => !open.has(call)
    const kept = results.filter(isKept)
    if (kept.length === results.length) continue
    if (kept.length === 0) {
      empty.push(id)
      continue
    }
    // A message that holds results holds nothing else: each part has the place that its call's id has in the column.
    // Read by itself: those that go whole need not be read, and all together may be gigabytes.
    const body = await value(queries, 'select body from message where id = $1', [id])
    const { role, parts } = body as StoredMessage
    const rest = (parts as unknown[]).filter((_, i) => isKept(results[i] ?? ''))
    await queries.query(
      `update message
          set results = $2::text[],
              body = message_body(id, session_id, turn_id, seq, $3, $4::json, false, created_at)
        where id = $1`,
      [id, kept, role, document(rest)],
    )
  }
  return empty
}
