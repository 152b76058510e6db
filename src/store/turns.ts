/**
 * Turns. Each verb is one statement, mostly a function of the schema: what must be decided at once is decided there,
 * under its locks. Only `commit` takes several, if it is made again. How turns are opened is in turn-opening.ts, how they
 * come to another owner in turn-takeovers.ts.
 */
import { answeredCalls } from '../chat/message.ts'
import { BOUND } from './bindings.ts'
import { type Db, matched, sureValue, value, values, violated } from './db.ts'
import { settlementRecord } from './executions.ts'
import { document, record } from './json.ts'
import { allAsStored, type Placed } from './messages.ts'
import { PAGE_BYTES, readCursor, toPage } from './page.ts'
import type { Parts, StoredMessage, StoredTurn } from './parts.ts'
import { ownRow, visibleTo } from './sql.ts'
import {
  type Commit,
  type Fence,
  StaleOwner,
  type StepRead,
  type TurnEnd,
  type Turns,
  type Unannounced,
} from './store.ts'
import { openings } from './turn-opening.ts'
import { takeovers } from './turn-takeovers.ts'

export function createTurns(db: Db, parts: Parts): Turns {
  return {
    ...openings(db, parts),
    ...publicVerbs(db, parts),
    ...engineVerbs(db, parts),
    ...takeovers(db, parts),
  }
}

function publicVerbs(db: Db, parts: Parts) {
  return {
    async get(scope, id) {
      const found = await ownRow<StoredTurn>(db, 'turn', scope, id)
      return found && parts.shownTurn(found)
    },
    standing: (scope, id) =>
      value(
        db,
        `select json_build_object(
                  'id', id, 'session_id', session_id, 'state', state, 'started_at', rfc3339(started_at),
                  'ended_at', rfc3339(ended_at), 'steps', array(select index from step where turn_id = turn.id))
           from turn where id = $1 and ($2::text is null or owner = $2)`,
        [id, visibleTo(scope)],
      ),
    async ofKey(session, key) {
      const [found] = await values<{ turn: StoredTurn; body_hash: string }>(
        db,
        `select json_build_object('turn', turn_json(t), 'body_hash', body_hash) from turn t
          where session_id = $1 and idempotency_key = $2
            and created_at > clock_timestamp() - interval '24 hours'
          order by created_at desc limit 1`,
        [session, key],
      )
      return found ? { ...found, turn: parts.shownTurn(found.turn) } : null
    },
    countOpen: (owner, { session, idempotency_key, interrupts }, most) =>
      sureValue(
        db,
        `select count(*)::float8 from (
           select from turn where owner = $1 and state in ('queued', 'running')
              and not exists (select from turn where session_id = $2 and idempotency_key = $3)
              and not ($5::boolean and session_id = $2 and state = 'running')
            limit $4
         ) unended`,
        [owner, session, idempotency_key, most, interrupts],
      ),
    async list(scope, session, page) {
      const rows = await values<StoredTurn | null>(
        db,
        `select t.body
           from session s left join lateral turn_page(s.id, $3, $4, $5) with ordinality t(body, place) on true
          where s.id = $1 and ($2::text is null or s.owner = $2) order by t.place`,
        [session, visibleTo(scope), readCursor('turns', page), page.limit + 1, page.bytes ?? PAGE_BYTES],
      )
      if (rows.length === 0) return null
      const turns = rows.map((row) => row && parts.shownTurn(row))
      return toPage('turns', page, turns, (turn) => turn.id)
    },
    requestCancel: (scope, id) =>
      value<number>(
        db,
        `update turn t set cancel_requested = true from session s
          where t.id = $1 and ($2::text is null or t.owner = $2) and s.id = t.session_id
            and t.state in ('queued', 'running', 'awaiting_input')
         returning s.lease_epoch::float8`,
        [id, visibleTo(scope)],
      ),
    endQueued: ({ id, session_id }, end, announce) =>
      sureValue(db, 'select end_queued($1, $2, $3)', [
        id,
        record(endRecord(end)),
        parts.events(announce, session_id),
      ]),
  } satisfies Partial<Turns>
}

function engineVerbs(db: Db, parts: Parts) {
  return {
    async readStep(fence, turn, afterSeq, knownRevision) {
      const [row] = await db.query<{ read: StoredRead | null; bound: string }>(
        `select read_step($1, $2, $3, $4) as read, (${BOUND}) as bound`,
        [record(fence), turn, afterSeq, knownRevision, fence.session_id],
      )
      if (!row?.read) throw new StaleOwner()
      return { ...row.read, bound: row.bound, messages: row.read.messages.map(parts.message) }
    },
    async commit(fence, commit) {
      const change = record(commitRecord(commit, fence.session_id, parts))
      const write = () =>
        value<CommitAnswer>(db, commit.executions ? COMMIT_CALLS : COMMIT, [record(fence), change])
      const answer =
        (await write().catch((thrown: unknown) => {
          // The same commit was still under way on a connection that was given up, and has been made by now.
          if (violated(thrown) === 'message_pkey') return write()
          throw thrown
        })) ?? (await leftBefore(db, fence, commit))
      if (!answer) throw new StaleOwner()
      const { placed, ...rest } = answer
      const messages = placed ? allAsStored(fence.session_id, commit.messages ?? [], placed) : []
      return { messages, ...rest }
    },
    heartbeat: (owner, sessions, seconds) =>
      db.query(
        `with kept as (
           update session set lease_until = seconds_from_now($3)
            where lease_owner = $1 and id = any($2::text[]) returning id
         )
         select k.id as session_id, t.id as cancelled_turn
           from kept k left join turn t
             on t.session_id = k.id and t.state = 'running' and t.cancel_requested`,
        [owner, sessions, seconds],
      ),
    breakLease: (turn, epoch) =>
      matched(
        db,
        `update session s set lease_owner = null from turn t
          where t.id = $1 and t.session_id = s.id and t.state = 'running' and t.cancel_requested
            and s.lease_epoch = $2
         returning s.id`,
        [turn, epoch],
      ),
    async forgetAnnouncements(turns, epoch) {
      // It skips locked rows: deleting a session locks its turns in another order, and one of the two would be refused.
      // What is skipped and stays is said again by the scan, and the bus drops the copy.
      await db.query(
        `update turn set announce = null where id in (
           select id from turn t
            where id = any($1::text[]) and case when $2::bigint is null then ended_at is not null
              else state = 'awaiting_input' and $2 = (select lease_epoch from session where id = t.session_id) end
              for no key update skip locked
         )`,
        [turns, epoch],
      )
    },
    async unannounced(limit, except = []) {
      const rows = await db.query<Omit<Unannounced, 'events'>>(
        `select t.session_id, t.id as turn_id,
                case when ended_at is null then s.lease_epoch::float8 end as epoch
           from turn t join session s on s.id = t.session_id
          where announce is not null and state <> 'running' and t.id <> all ($2::text[]) order by t.id limit $1`,
        [limit, except],
      )
      const announced = (id: string) =>
        value<unknown>(db, `select announce from turn where id = $1 and state <> 'running'`, [id])
      return rows.map((row) => ({
        ...row,
        events: async () => parts.openEvents(await announced(row.turn_id), row.session_id),
      }))
    },
  } satisfies Partial<Turns>
}

type StoredRead = Omit<StepRead, 'messages' | 'bound'> & { messages: StoredMessage[] }

interface CommitAnswer {
  placed: Placed | null
  has_queued: boolean
  tools_revision?: number
}
const COMMIT = 'select commit_turn($1, $2)'
/** With the revision of the tools as the calls begin: so it costs no statement of its own. */
const COMMIT_CALLS = `select commit_turn($1, $2)::jsonb || jsonb_build_object(
  'tools_revision', (select revision from registry where session_id = $1::jsonb ->> 'session_id')
)`

/**
 * For a commit without messages that ended or parked the turn, and is made again because its answer was lost. It had
 * been made before if the lease was given back, nobody has had it since, and the turn is in the commit's state: only
 * its owner could have left it so.
 */
function leftBefore(
  db: Db,
  { session_id, epoch }: Fence,
  { turn_id, messages = [], end, state }: Commit,
): Promise<CommitAnswer | null> {
  const left = end?.state ?? (state === 'awaiting_input' ? state : null)
  if (left === null || messages.length > 0) return Promise.resolve(null)
  return value(
    db,
    `select json_build_object('placed', null, 'has_queued', $4::boolean and has_queued(s.id))
       from session s join turn t on t.session_id = s.id
      where s.id = $1 and s.lease_epoch = $2 and s.lease_owner is null and t.id = $3 and t.state::text = $5`,
    [session_id, epoch, turn_id, end !== undefined, left],
  )
}

const endRecord = (end: TurnEnd) => ('error' in end ? { ...end, error: document(end.error) } : end)

/** A commit as commit_turn takes it: absent members stay absent in its JSON. */
function commitRecord(commit: Commit, session: string, parts: Parts): Record<string, unknown> {
  const { turn_id, step, messages, executions, settlements, state, attempt, restarts, end, announce } = commit
  const answered = new Set(messages?.flatMap(answeredCalls))
  return {
    turn_id,
    step,
    state,
    attempt,
    restarts,
    messages: messages?.map((message) => parts.newMessage(message, session)),
    answered: answered.size > 0 ? [...answered] : undefined,
    executions: executions?.map((execution) => ({ ...execution, arguments: document(execution.arguments) })),
    settlements: settlements?.map((settlement) => settlementRecord(settlement, session, parts, answered)),
    end: end && endRecord(end),
    announce: announce && parts.events(announce, session),
  }
}
