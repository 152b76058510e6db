/** How turns come to an owner, and leave it: those that were queued, that waited, or whose owner was lost. */
import { type Db, sureValue, value, values } from './db.ts'
import type { Parts, StoredTurn } from './parts.ts'
import { type Taken, type Turns, Unreadable } from './store.ts'

interface TakenAnswer {
  turn: StoredTurn
  epoch: number
  /** If the turn is recovered, or goes on after it waited */
  announce?: unknown
}

export function takeovers(db: Db, parts: Parts) {
  const handOver: Turns['handOver'] = async ({ session_id, owner, epoch }) => {
    await db.query(
      'update session set lease_owner = null where id = $1 and lease_owner = $2 and lease_epoch = $3',
      [session_id, owner, epoch],
    )
  }

  /**
   * Hands the turn back if it cannot be read. That is no failure of the turn: a replica that has its key may take it at
   * once. A turn that is to be cancelled only ends, which needs no key: if the key is lost for good, nothing else frees
   * its session.
   */
  async function taken({ turn, epoch, announce = null }: TakenAnswer, owner: string): Promise<Taken> {
    const { id, session_id } = turn
    const fence = { session_id, owner, epoch }
    try {
      return { turn: parts.turn(turn), fence, announce: parts.openEvents(announce, session_id) }
    } catch (cause) {
      if (turn.cancel_requested) return { turn: parts.shownTurn(turn), fence, announce: [] }
      await handOver(fence)
      throw new Unreadable(cause, id)
    }
  }
  return {
    handOver,
    async startQueued(session, message, { owner, seconds }) {
      const answer = await value<TakenAnswer>(db, 'select start_queued($1, $2, $3, $4)', [
        session,
        message.id,
        owner,
        seconds,
      ])
      return answer && taken(answer, owner)
    },
    async resumeAwaiting(turn, { owner, seconds }) {
      const answer = await value<TakenAnswer>(db, 'select resume_awaiting($1, $2, $3)', [
        turn,
        owner,
        seconds,
      ])
      return answer && taken(answer, owner)
    },
    async recover({ owner, seconds }, except = []) {
      const [answer] = await sureValue<(TakenAnswer & { was_handed_over: boolean })[]>(
        db,
        'select recover_turns($1, $2, 1, $3)',
        [owner, seconds, except],
      )
      return answer ? { ...(await taken(answer, owner)), was_handed_over: answer.was_handed_over } : null
    },
    idleQueues: (limit) =>
      values<string>(
        db,
        `select distinct session_id from turn q
          where state = 'queued' and not exists (
            select from turn a where a.session_id = q.session_id and a.state in ('running', 'awaiting_input')
          ) limit $1`,
        [limit],
      ),
    resumable: (limit) =>
      values<string>(
        db,
        // With `offset 0` all are looked for first. Else, where many wait, the planner expects to meet enough of these soon
        // among all turns, in the order of their ids.
        `select id from (
           select id from turn t
            where state = 'awaiting_input' and (cancel_requested or not exists (
              select from execution e
               where e.turn_id = t.id and e.state = 'awaiting_approval' and e.decision is null
            )) offset 0
         ) resumable order by id limit $1`,
        [limit],
      ),
    expiredApprovals: (limit) =>
      db.query(
        `select e.turn_id, e.call_id from execution e join turn t on t.id = e.turn_id
          where e.state = 'awaiting_approval' and e.decision is null and e.expires_at < (select clock_timestamp())
            and t.state = 'awaiting_input'
          order by e.expires_at limit $1`,
        [limit],
      ),
  } satisfies Partial<Turns>
}
