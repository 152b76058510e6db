/** No statement for one tenant reads through everybody's rows: plans of the statements, on tables full of strangers. */
import t, { type Test } from 'tap'
import { idAt } from '../../src/chat/ids.ts'
import type { Db, Param, Queries } from '../../src/store/db.ts'
import { openPostgres } from '../../src/store/postgres.ts'
import { EVERYONE, type Scope, type Store } from '../../src/store/store.ts'
import { credential } from '../contracts/store-credentials.ts'
import { COMPLETED, connector, execution, id, owner, runningTurn } from '../contracts/store-rows.ts'
import { ON_POSTGRES, SERVERS } from '../given-servers.ts'
import { closedWith, freshDatabase, storeOn } from './fresh.ts'
import { migratedDatabase } from './migrated.ts'

/** Rows of strangers in each table; the caller's own are a handful. */
const STRANGERS = 400
/** … and turns with a call each; the ledger tells so many groups of them at most. */
const CALLS = 1_000
const DAY_MS = 86_400_000
/** The most rows that one step of a plan may read: pages hold fewer. */
const MOST_READ = 300

const ROWS: Readonly<Record<string, number>> = { turn: CALLS, execution: CALLS }

/** One row becomes many, each of an owner, a session and a turn of its own. */
const multiplied = (table: string) => `
  insert into ${table} select (jsonb_populate_record(null::${table}, to_jsonb(one) || jsonb_build_object(
    'id', one.id || '_' || n, 'owner', 'stranger-' || n, 'hash', 'hash-' || n,
    'session_id', to_jsonb(one) ->> 'session_id' || '_' || n, 'turn_id', to_jsonb(one) ->> 'turn_id' || '_' || n
  ))).* from (select * from ${table} limit 1) one, generate_series(1, ${ROWS[table] ?? STRANGERS}) n`
const TABLES = ['session', 'turn', 'message', 'execution', 'connector', 'credential', 'api_key']
const BIND = `
  insert into binding (session_id, connector_id)
  select s.id, c.id from session s join connector c on c.owner = s.owner where s.owner like 'stranger-%'`

interface Asked {
  text: string
  params: readonly Param[]
}

/** The database, and the statements that it is asked. */
function recorded(db: Db): { db: Db; asked: Asked[] } {
  const asked: Asked[] = []
  const noting =
    (queries: Pick<Queries, 'query'>): Queries['query'] =>
    (text, params = []) => {
      asked.push({ text, params })
      return queries.query(text, params)
    }
  const transaction: Db['transaction'] = (work) =>
    db.transaction((queries) => work({ ...queries, query: noting(queries) }))
  return { db: { ...db, query: noting(db), transaction }, asked }
}

interface PlanNode {
  'Node Type': string
  'Actual Rows': number
  'Actual Loops': number
  'Rows Removed by Filter'?: number
  'Relation Name'?: string
  'Index Name'?: string
  Plans?: PlanNode[]
}

/** Steps that go through more rows than the caller can have. */
const wide = (node: PlanNode): string[] => {
  const rows = (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops']
  const name = `${node['Node Type']} of ${node['Index Name'] ?? node['Relation Name'] ?? 'rows'}: ${rows}`
  return [...(rows > MOST_READ ? [name] : []), ...(node.Plans ?? []).flatMap(wide)]
}

const literal = (param: Param): string => {
  if (param === null) return 'null'
  const text = Array.isArray(param) ? `{${param.map((one) => JSON.stringify(one)).join(',')}}` : String(param)
  return `'${text.replaceAll("'", "''")}'`
}

/** The steps of the statement's plan that are too wide; the statement takes no effect. */
async function widthOf(db: Db, { text, params }: Asked): Promise<string[]> {
  const undone = new Error('undone')
  let found: string[] = []
  const look = db.transaction(async (queries) => {
    type Explained = { 'QUERY PLAN': [{ Plan: PlanNode }] }
    // In tables as small as these a server takes no index for more than some rows.
    await queries.query('set local enable_seqscan = off')
    // As the store runs it: the embedded database plans for any parameters.
    await queries.query(`prepare probe as ${text}`)
    const given = params.length > 0 ? `(${params.map(literal).join(', ')})` : ''
    const [row] = await queries.query<Explained>(
      `explain (analyze, timing off, format json) execute probe${given}`,
    )
    await queries.query('deallocate probe')
    found = row ? wide(row['QUERY PLAN'][0].Plan) : ['no plan']
    throw undone
  })
  await look.catch((thrown: unknown) => {
    if (thrown !== undone) throw thrown
  })
  return found
}

/** A row of every kind. */
async function furnish(store: Store, scope: Scope) {
  const { session, turn, fence } = await runningTurn(store, scope)
  const call = execution(turn.id, { arguments: {}, state: 'awaiting_approval', lapses_in: 3600 })
  await store.turns.commit(fence, { turn_id: turn.id, executions: [call] })
  await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
  const bound = connector(scope, 'files')
  await store.connectors.create(bound)
  await store.connectors.bind(session.id, bound.id, null)
  await store.credentials.create(credential(scope, { expires_at: '2100-01-01T00:00:00.000Z' }))
  const key = { owner: scope.owner, name: null, scopes: ['chat' as const], hint: 'wxyz', expires_at: null }
  await store.keys.create({ ...key, id: id('key'), hash: id('hash') })
  return { session: session.id, turn: turn.id, execution: call.id, connector: bound.id }
}

async function plansTest(t: Test, plain: Db) {
  const { db, asked } = recorded(plain)
  const store = await storeOn(db)
  await furnish(store, { owner: 'stranger', admin: false })
  for (const table of TABLES) await plain.query(multiplied(table))
  await plain.query(BIND)
  // A quarter of the turns waits for a person.
  await plain.query(`update turn set state = 'awaiting_input' where left(md5(id), 1) < '4'`)
  await plain.query(`update execution set state = 'started' where left(md5(turn_id), 1) >= '4'`)
  // Their ids tell when they were made, too. A list of the older ones is not to read all that came later.
  await plain.query(
    `update execution set id = made || substr(id, 5), created_at = now() - age
       from (values (true, $1, interval '10 days'), (false, $2, interval '1 day')) as v (is_old, made, age)
      where (right(id, 1) < '4') = is_old`,
    [10, 1].map((days) => idAt('exec', Date.now() - days * DAY_MS)),
  )
  const hasStatistics = plain.kind === 'postgres'
  if (hasStatistics) await plain.query('analyze')
  const scope = owner()
  const own = await furnish(store, scope)
  const other = connector(scope, 'other')
  await store.connectors.create(other)
  asked.length = 0

  const page = { limit: 20 }
  const since = new Date(Date.now() - 3_600_000).toISOString()
  // Without statistics the embedded database, which has few callers, reads everyone's rows by whatever index there is.
  for (const who of hasStatistics ? [scope, EVERYONE] : [scope]) {
    await store.sessions.list(who, page)
    await store.messages.list(who, own.session, page)
    await store.turns.list(who, own.session, page)
    await store.connectors.list(who, page)
    await store.credentials.list(who, page)
    await store.keys.list(who, page)
    await store.executions.list(who, {}, page)
    await store.executions.list(who, { since }, page)
    await store.executions.list(who, { until: new Date(Date.now() - 5 * DAY_MS).toISOString() }, page)
    await store.executions.stats(who, 'tool', { since })
  }
  await store.executions.stats(scope, 'tool', {})
  await store.messages.ofTurn(own.turn)
  await store.sessions.ofTurn(own.turn)
  await store.connectors.find(scope, 'other')
  await store.connectors.find(scope, other.id)
  await store.connectors.bind(own.session, other.id, null)
  await store.connectors.listBound(own.session, page)
  await store.connectors.sessionsOf(own.connector, 1000)
  await store.connectors.unbind(own.session, other.id)
  await store.registry.grounds([{ session_id: own.session, revision: -1 }])
  await store.credentials.due(['acme'], 60)
  await store.turns.countOpen(
    scope.owner,
    { session: own.session, idempotency_key: null, interrupts: false },
    9,
  )
  await store.turns.idleQueues(20)
  await store.turns.resumable(20)
  await store.turns.expiredApprovals(20)
  for (const left of await store.turns.unannounced(20)) await left.events()
  await store.executions.prune(60)
  for (const statement of asked.filter(({ text }) => !/^(begin|commit|rollback)/.test(text)))
    t.strictSame(await widthOf(plain, statement), [], statement.text.replace(/\s+/g, ' '))
  await plain.query(`update execution set state = 'settled', duration_ms = 1`)
  const groups = await store.executions.stats(EVERYONE, 'session', {})
  t.equal(groups.length, CALLS, 'no more groups are told, though there are more')
}

t.test('the embedded database', async (t) => {
  await plansTest(t, await freshDatabase(t))
})

t.test('a PostgreSQL server', ON_POSTGRES, async (t) => {
  await plansTest(t, closedWith(t, openPostgres(await migratedDatabase(t, SERVERS.DATABASE_URL), 2)))
})
