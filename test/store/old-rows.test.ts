/** Migrations of databases that an older version has left. */
import t from 'tap'
import { values } from '../../src/store/db.ts'
import { migrate, readMigrations } from '../../src/store/migrate.ts'
import { EVERYONE } from '../../src/store/store.ts'
import { LEASE, recoverAll } from '../contracts/store-rows.ts'
import { NONE } from '../patterns.ts'
import { emptyDatabase, storeOn } from './fresh.ts'

/** The beginning of each migration's SHA-256. */
const APPLIED = [
  'a9f112d9',
  '42bfed45',
  '2c0d1943',
  '09dc02fd',
  '0263a55a',
  '45233840',
  '036650cc',
  '0c44f432',
  'da0cdd81',
  '147b27f9',
  '354c14e8',
  'f2e8bee1',
  '95df7b79',
  '822fcb9d',
  'dd0e9fe8',
  '5be18149',
  'f54a99ad',
  '59302bc8',
]

/** A session for each state of a turn, with a call in each state of the ledger, and a connector that all of them bind. */
const OLD_ROWS = `
  insert into session (id, owner, provider, model, instructions, settings, metadata, lease_owner, lease_epoch, lease_until)
    select 'ses_' || state, 'ann', 'openai', 'm', '', '{}', '{}', 'gone', 1, now() - interval '1 minute'
      from unnest(enum_range(null::turn_state)) state;
  insert into turn (id, session_id, owner, state, input, context, max_steps, body_hash, base_seq, announce)
    select 'turn_' || state, 'ses_' || state, 'ann', state, '[]', '[]', 16, 'hash', 0, '[]'
      from unnest(enum_range(null::turn_state)) state;
  insert into message (id, session_id, turn_id, seq, calls, results, created_at, body)
    select 'msg_' || id, session_id, id, 1, '{}', '{}', now(),
           message_body('msg_' || id, session_id, id, 1, 'user', '[{"type":"text","text":"hi"}]', false, now())
      from turn where state <> 'queued';
  insert into step (turn_id, index, attempt, provider, model, tools_revision, tool_count, usage, started_at, discarded)
    select id, 0, 1, 'openai', 'm', 1, 1, '(1,2,3,4)'::token_usage, now(), false from turn where state <> 'queued';
  insert into execution (id, session_id, turn_id, owner, step, call_id, tool, tools_revision, arguments, state, repeatable)
    select 'exec_' || e || t.id, session_id, t.id, 'ann', 0, 'call_' || e, 's.t', 1, '{}', e, false
      from turn t, unnest(enum_range(null::execution_state)) e;
  insert into connector (id, owner, name, origin, transport, args, auth, mode, allow_tools, deny_tools,
                         require_approval, trust_annotations, pin, secret)
    values ('con_s', 'ann', 's', 'api', 'streamable_http', '[]', '{"type":"none"}', 'dynamic', '[]', '[]',
            'never', false, 'warn', 'x');
  insert into binding (session_id, connector_id) select id, 'con_s' from session;
  insert into registry (session_id, revision) select id, 1 from session;
  insert into tool_list (key, connector_id, list) values ('k', 'con_s', '{}');
  insert into tool_pin (connector_id, tool, hash, definition, accepted_by) values ('con_s', 't', 'h', '{}', 'ann');
  insert into credential (id, owner, provider, kind, state, is_default, hint, facts, expires_at, secret)
    values ('cred_1', 'ann', 'openai', 'oauth', 'active', true, '…', '{}', now(), 'x');
  insert into api_key (id, hash, owner, scopes, hint) values ('key_1', 'h', 'ann', '["chat"]', '…');
  insert into audit (owner, act, subject, details) values ('ann', 'key.create', 'key_1', '{}');
`

t.test('no migration was changed: a database that has the former text is refused', async (t) => {
  const found = readMigrations().map(({ sha256 }) => sha256.slice(0, 8))
  t.strictSame(found, APPLIED, 'put what is to be changed into a new migration, and its hash here')
})

t.test(
  'each later migration keeps the rows of the first, and the columns and functions that the version before asks for',
  async (t) => {
    const db = await emptyDatabase(t)
    const migrations = readMigrations()
    const kept = () =>
      values<string>(
        db,
        `select oid::regprocedure::text from pg_proc where pronamespace = 'public'::regnamespace union all
       select table_name || '.' || column_name from information_schema.columns where table_schema = 'public'`,
      )
    await migrate(db, migrations.slice(0, 1))
    await db.transaction((queries) => queries.script(OLD_ROWS))
    for (let count = 2; count <= migrations.length; count++) {
      const before = await kept()
      await migrate(db, migrations.slice(0, count))
      const after = new Set(await kept())
      const lost = before.filter((one) => !after.has(one))
      t.strictSame(lost, [], `${migrations[count - 1]?.name} leaves what the version before asks for`)
    }
    const store = await storeOn(db)
    const states = ['awaiting_input', 'cancelled', 'completed', 'failed', 'queued', 'running']
    for (const state of states)
      t.match(await store.turns.get(EVERYONE, `turn_${state}`), {
        state,
        steps: state === 'queued' ? NONE : [{ attempt: 1 }],
      })
    t.match(await store.connectors.bindings('ses_running'), [
      { connector: { name: 's' }, alias: null, off: NONE },
    ])
    t.match(await recoverAll(store, LEASE), [{ turn: { id: 'turn_running' }, was_handed_over: false }])
    t.strictSame(await store.turns.idleQueues(9), ['ses_queued'])
    t.equal((await store.executions.ofTurn('turn_awaiting_input')).length, 3)
  },
)
