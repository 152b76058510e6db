/** The ledger of tool calls: written under the fence of the turn's owner, decided and read by people. */
import { idAt } from '../chat/ids.ts'
import type { ToolResultPart } from '../chat/message.ts'
import { type Db, type Param, sureValue, value, values } from './db.ts'
import { bytesOf, document, record } from './json.ts'
import { PAGE_BYTES, readCursor, toPage } from './page.ts'
import type { Lost, Parts } from './parts.ts'
import { bulkOf, ownRow, visibleTo, withinBytes } from './sql.ts'
import {
  type Execution,
  type ExecutionFilter,
  type Executions,
  type Scope,
  type Settlement,
  type ShownExecution,
  StaleOwner,
} from './store.ts'

/** As SQL gives it: execution_json in the schema. */
interface StoredExecution extends Omit<Execution, 'result' | 'approval'> {
  result: unknown
  approval:
    | (Omit<NonNullable<Execution['approval']>, 'sealed_arguments'> & { sealed_arguments: string | null })
    | null
}

export function createExecutions(db: Db, parts: Parts): Executions {
  const toExecution = (stored: StoredExecution, lost?: Lost): Execution => {
    const [result] = stored.result === null ? [] : parts.open(stored.result, stored.session_id, lost)
    return { ...toShown(stored), result: (result as ToolResultPart | undefined) ?? null }
  }
  return {
    async get(scope, id) {
      const found = await ownRow<StoredExecution>(db, 'execution', scope, id)
      return found && toShown(found)
    },
    async list(scope, filter, page) {
      const params: Param[] = []
      const where = conditions(scope, filter, params)
      const [cursor, limit, bytes] = [1, 2, 3].map((n) => params.length + n)
      params.push(
        readCursor('executions', page) ?? idAfter(filter.until),
        page.limit + 1,
        page.bytes ?? PAGE_BYTES,
      )
      const listed = `select ${bulkOf('execution')} from execution
        where ${where} and ($${cursor}::text is null or id < $${cursor}) order by id desc limit $${limit}`
      const found = await values<StoredExecution | null>(
        db,
        withinBytes('execution', listed, 'id desc', `$${bytes}`),
        params,
      )
      const rows = found.map((stored) => stored && toShown(stored))
      return toPage('executions', page, rows, ({ id }) => id)
    },
    stats(scope, groupBy, filter) {
      const params: Param[] = []
      return db.query(
        `select ${GROUPS[groupBy]} as key, count(*)::float8 as count,
                count(*) filter (where outcome in ('error', 'outcome_unknown'))::float8 as failures,
                ${percentile(0.5)} as p50_ms, ${percentile(0.95)} as p95_ms,
                max(duration_ms) as max_ms
           from execution where state = 'settled' and ${conditions(scope, filter, params)}
          group by 1 order by 2 desc, 1 limit ${MOST_GROUPS}`,
        params,
      )
    },
    async output(scope, id) {
      const [row] = await db.query<{ output: string; structured: boolean }>(
        `select output, structured from execution
          where id = $1 and ($2::text is null or owner = $2) and output is not null`,
        [id, visibleTo(scope)],
      )
      return row ?? null
    },
    ofTurn: async (turn, lost) => {
      const found = await values<StoredExecution>(
        db,
        'select execution_json(e) from execution e where turn_id = $1 order by id',
        [turn],
      )
      return found.map((stored) => toExecution(stored, lost && (() => lostResult(stored))))
    },
    begin: (fence, id) => fenced(db, 'select begin_execution($1, $2)', [record(fence), id]),
    putBack: (fence, id) => fenced(db, PUT_BACK, [record(fence), id]),
    settle: (fence, settlement) =>
      fenced(db, 'select settle_execution($1, $2)', [
        record(fence),
        record(settlementRecord(settlement, fence.session_id, parts)),
      ]),
    decide(scope, turn, call, { sealed_arguments, arguments: shown, ...decision }) {
      const sealed = sealed_arguments && Buffer.from(sealed_arguments).toString('base64')
      return value<'decided' | 'not_awaiting'>(db, 'select decide_execution($1, $2, $3, $4)', [
        visibleTo(scope),
        turn,
        call,
        record({ ...decision, sealed_arguments: sealed, ...(shown ? { arguments: document(shown) } : {}) }),
      ])
    },
    async prune(seconds, signal) {
      let pruned = 0
      while (!signal?.aborted) {
        const gone = await sureValue<number>(
          db,
          `with gone as (
             delete from execution where id in (
               select id from execution e where state = 'settled' and ended_at < now() - make_interval(secs => $1)
                  and not exists (
                    select from turn where id = e.turn_id and state in ('queued', 'running', 'awaiting_input')
                  )
                order by ended_at limit ${PRUNED_AT_ONCE} for update skip locked
             ) returning 1
           )
           select count(*)::float8 from gone`,
          [seconds],
        )
        if (gone === 0) break
        pruned += gone
      }
      return pruned
    },
  }
}

/** A settlement as settle_executions takes it. `answered`: calls whose results are in a message of the same commit. */
export const settlementRecord = (
  settlement: Settlement,
  session: string,
  parts: Parts,
  answered?: ReadonlySet<string>,
) => ({
  ...settlement,
  output: document(settlement.output),
  result: answered?.has(settlement.result.call_id) ? null : parts.seal([settlement.result], session),
})

const toShown = ({ result: _, approval, ...row }: StoredExecution): ShownExecution => ({
  ...row,
  approval: approval && { ...approval, sealed_arguments: bytesOf(approval.sealed_arguments) },
})

/** The result that a model gets for a call whose own result cannot be opened. */
const lostResult = ({ call_id, tool, outcome, is_error }: StoredExecution): ToolResultPart => ({
  type: 'tool_result',
  call_id,
  name: tool,
  content: [{ type: 'text', text: 'The result of this call cannot be read any more.' }],
  is_error: is_error ?? true,
  outcome: outcome ?? 'outcome_unknown',
})

/**
 * A statement that deleted a year's rows at once would hold its locks, and the embedded store's thread, for minutes. It
 * skips locked rows: deleting a session locks its rows in another order, and one of the two would be refused.
 */
const PRUNED_AT_ONCE = 5000

/** Over calls that took time: a call that was denied, or never made, would make its tool look quick. */
const percentile = (part: number): string =>
  `coalesce(round(percentile_cont(${part}) within group (order by duration_ms) filter (where duration_ms > 0)), 0)`

/** Sessions may be hundreds of thousands: writing them all out would hold up every stream. */
const MOST_GROUPS = 1000

/**
 * Built-in tools have no connector: their group has the name `builtin`. Nor has a call of a tool that is not there or
 * whose arguments are no JSON: that is the model's failure, not a built-in's (`isNoCall` of fate.ts tells them apart
 * likewise).
 */
const GROUPS = {
  tool: 'tool',
  connector: `coalesce(connector, case when repeatable then 'builtin' else 'unknown' end)`,
  session: 'session_id::text',
} as const

/**
 * Where a list of calls up to a time begins: it goes by id, and would read all that came later. An id has the time when
 * it was made by a replica's clock, no later than the start by the database's clock: a day allows for their difference.
 */
function idAfter(until: string | undefined): string | null {
  const ms = Date.parse(until ?? '') + 86_400_000
  return Number.isNaN(ms) ? null : idAt('exec', ms)
}

/** A call's start; before it has started, when it was asked for. The index `execution_start` has the same. */
const START = 'coalesce(started_at, created_at)'

const PUT_BACK = `
  with held as materialized (select lock_fence($1::jsonb) as holds), back as (
    update execution set state = 'awaiting_approval', started_at = null
     where id = $2 and session_id = $1::jsonb ->> 'session_id' and state = 'started' and decision = 'approve'
       and (select holds from held)
  )
  select holds from held`

async function fenced(db: Db, text: string, params: Param[]): Promise<void> {
  if (!(await value<boolean>(db, text, params))) throw new StaleOwner()
}

function conditions(scope: Scope, filter: ExecutionFilter, params: Param[]): string {
  const all = ['true']
  const add = (sql: (param: string) => string, param: Param | undefined) => {
    if (param === undefined || param === null) return
    params.push(param)
    all.push(sql(`$${params.length}`))
  }
  add((param) => `owner = ${param}`, visibleTo(scope))
  add((param) => `session_id = ${param}`, filter.session_id)
  add((param) => `turn_id = ${param}`, filter.turn_id)
  add((param) => `tool = ${param}`, filter.tool)
  add((param) => `outcome = ${param}`, filter.outcome)
  // The start is shown in milliseconds, and a call is found by what is shown.
  const since = (param: string) => `date_trunc('milliseconds', ${param}::timestamptz + interval '0.999 ms')`
  const until = (param: string) => `date_trunc('milliseconds', ${param}::timestamptz) + interval '1 ms'`
  add((param) => `${START} >= ${since(param)}`, filter.since)
  add((param) => `${START} < ${until(param)}`, filter.until)
  return all.join(' and ')
}
