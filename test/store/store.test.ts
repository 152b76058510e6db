/** The store's contract on the embedded PostgreSQL and on a server, and what each of the two owes beside it. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Worker } from 'node:worker_threads'
import t, { type Test } from 'tap'
import type { Part } from '../../src/chat/message.ts'
import { BatonError, inFull } from '../../src/errors.ts'
import { type Db, QueryFailure, unavailable, value, values } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { createExecutions } from '../../src/store/executions.ts'
import { assertCurrent, type Migration, migrate, readMigrations } from '../../src/store/migrate.ts'
import { openStore } from '../../src/store/open.ts'
import { createParts, type PartsCodec, PLAIN_PARTS } from '../../src/store/parts.ts'
import { openPostgres } from '../../src/store/postgres.ts'
import { EVERYONE } from '../../src/store/store.ts'
import { readTemplate } from '../../src/store/template.ts'
import { createLog } from '../../src/telemetry.ts'
import { storeContract } from '../contracts/store.ts'
import {
  COMPLETED,
  id,
  LEASE,
  message,
  newSession,
  openRequest,
  owner,
  rejection,
  runningTurn,
  text,
} from '../contracts/store-rows.ts'
import { newDatabase } from '../servers.ts'

const folder = mkdtempSync(join(tmpdir(), 'baton-store-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))

// ---------------------------------------------------------------- embedded

t.test('the embedded store', async (t) => {
  const store = await openStore({ databaseUrl: null, dataDir: null, poolSize: 1 })
  await storeContract(t, store)
  await t.test('what is sealed is looked for in pages of rows, whatever they hold', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const before = id('msg')
    const sealed = [{ type: 'sealed', sealed: 'AA==' }] as unknown as Part[]
    const given = [message('"type":"sealed"'), message('', { parts: sealed }), message('the next page')]
    await store.messages.append(scope, session, given)
    const page = await store.sealed.documents('message.body', before, 2)
    t.same(
      page.map(({ id, session_id, text }) => [id, session_id, text !== null]),
      given.slice(0, 2).map(({ id, parts }) => [id, session, parts === sealed]),
    )
  })
  await store.close()
  const closed = await rejection(store.ready())
  t.ok(closed instanceof BatonError && closed.code === 'unavailable', 'a closed store says so')
})

t.test('a database that goes away is one line in the log, however many need it', async (t) => {
  const lines: unknown[] = []
  const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  const db = await openEmbedded(null)
  let isAway = false
  const cut: Db = {
    ...db,
    query: (text, params) => (isAway ? Promise.reject(unavailable('cut off')) : db.query(text, params)),
  }
  const options = { databaseUrl: null, dataDir: null, poolSize: 1, log }
  const store = await openStore(options, Promise.resolve(cut))
  isAway = true
  for (let i = 0; i < 3; i++) t.match(await rejection(store.ready()), { code: 'unavailable' })
  t.match(lines, [{ level: 40, msg: 'the embedded database is away', reason: /cut off/ }])
  t.equal(lines.length, 1)
  isAway = false
  await store.ready()
  while (lines.length < 2) await sleep(100)
  t.match(lines[1], { level: 30, msg: 'the embedded database is back' })
  await store.close()
  await rejection(store.ready())
  t.equal(lines.length, 2, 'closing it is no absence')
})

t.test('the build leaves a template for first starts', async (t) => {
  const migrations = readMigrations()
  const template = readTemplate(migrations)
  t.ok(template, 'run `npm run build`, or `node scripts/template.mjs` after tsc')
  const db = await openEmbedded(join(folder, 'first'), () => template)
  t.teardown(() => db.close())
  t.strictSame(await migrate(db, migrations), [], 'with the schema in it')
  const plan = await values<string>(db, `explain select from session where id = 'some'`)
  t.match(plan.join(), 'session_pkey', 'plans made on it are those of a full table')
  const [first, ...rest] = migrations
  t.equal(readTemplate([{ name: first?.name ?? '', sha256: 'other' }, ...rest]), null, 'of other migrations')
  t.equal(readTemplate([]), null, 'of a newer version')
})

t.test('a folder is one process’s, and a kill loses nothing that was acknowledged', async (t) => {
  const dataDir = join(folder, 'killed')
  const script = fileURLToPath(new URL('./writer.js', import.meta.url))
  const writer = spawn(process.execPath, [script, dataDir], { stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => writer.kill('SIGKILL'))
  const [session = '', ...acknowledged] = await firstLines(writer, 60)
  const refused = await rejection(openEmbedded(dataDir))
  t.match(refused, { message: /in use by another Baton process.*BATON_DATA_DIR/ })
  const exited = once(writer, 'exit')
  writer.kill('SIGKILL')
  await exited

  const store = await openStore({ databaseUrl: null, dataDir, poolSize: 1 })
  const kept = new Set((await store.messages.after(session, 0)).map((one) => one.id))
  t.strictSame(
    acknowledged.filter((one) => !kept.has(one)),
    [],
  )
  const inProcess = await rejection(openEmbedded(dataDir))
  t.match(inProcess, { message: /in use/ }, 'the same process counts as another')
  await store.close()
})

t.test('a first start that was killed half way leaves no half database', async (t) => {
  // Its name is too long for a socket, and it is locked all the same.
  const dataDir = join(folder, 'n'.repeat(120))
  mkdirSync(join(dataDir, 'pg.unfinished'), { recursive: true })
  writeFileSync(join(dataDir, 'pg.unfinished', 'PG_VERSION'), 'torn')
  const db = await openEmbedded(dataDir, () => readTemplate(readMigrations()))
  t.equal(await value(db, 'select 1'), 1)
  t.notOk(existsSync(join(dataDir, 'pg.unfinished')))
  t.match(await rejection(openEmbedded(dataDir)), { message: /in use/ })
  await db.close()
})

t.test('the write-ahead log stays short, however much is written', async (t) => {
  const db = await openEmbedded(join(folder, 'log'), () => readTemplate(readMigrations()))
  t.teardown(() => db.close())
  await db.query('create table filler (words text)')
  await db.query('alter table filler alter words set storage external')
  const megabyte = 'x'.repeat(1 << 20)
  for (let i = 0; i < 250; i++) await db.query('insert into filler values ($1)', [megabyte])
  const since = 'select pg_wal_lsn_diff(pg_current_wal_lsn(), redo_lsn)::float8 from pg_control_checkpoint()'
  const bytes = (await value<number>(db, since)) ?? 0
  t.ok(bytes < 150 << 20, `${bytes} bytes since the last checkpoint`)
  const sizes = readdirSync(join(folder, 'log/pg/pg_wal')).filter((name) => /^[0-9A-F]{24}$/.test(name))
  t.ok(sizes.length < 16, `${sizes.length} files of 16 MB`)
})

t.test('a data folder that is no database is refused in words', async (t) => {
  const dataDir = join(folder, 'broken')
  mkdirSync(join(dataDir, 'pg'), { recursive: true })
  writeFileSync(join(dataDir, 'pg', 'PG_VERSION'), '9.6\n')
  t.match(await rejection(openEmbedded(dataDir)), { message: /embedded database in .* does not open/ })
})

t.test('a thread that ends by itself is told, one that is closed is not', async (t) => {
  const threads: Worker[] = []
  const note = (worker: Worker) => void threads.push(worker)
  process.on('worker', note)
  const [ended, closed] = [await openEmbedded(null), await openEmbedded(null)]
  process.off('worker', note)
  await threads[0]?.terminate()
  t.match(await ended.lost, { code: 'unavailable' })
  t.match(await rejection(ended.query('select 1')), { code: 'unavailable' })
  await ended.close()
  await closed.close()
  t.equal(await Promise.race([closed.lost, sleep(50, 'nothing')]), 'nothing')
})

t.test('a ledger is pruned some rows at a time, until none is left', async (t) => {
  const gone = [5000, 3, 0]
  const db = { query: async () => [{ count: gone.shift() }] } as unknown as Db
  const executions = createExecutions(db, createParts(PLAIN_PARTS))
  t.equal(await executions.prune(60), 5003)
  t.same(gone, [])
})

t.test('in memory', async (t) => {
  const db = await openEmbedded(null, () => readTemplate(readMigrations()))
  t.teardown(() => db.close())
  const empty = async () => {
    await db.query('drop schema public cascade')
    await db.query('create schema public')
  }
  await empty()
  await migrationTests(t, async () => db)
  await portTests(t, db)
  await empty()
  await oldRowsTest(t, db)
})

async function firstLines(child: ChildProcess, count: number): Promise<string[]> {
  if (!child.stdout) throw new Error('no stdout')
  const lines: string[] = []
  for await (const line of createInterface({ input: child.stdout })) {
    lines.push(line)
    if (lines.length === count) return lines
  }
  throw new Error('the writer ended early')
}

/** Answers every client like a server that refuses it. */
async function refusingServer(t: Test, code: string, words: string): Promise<number> {
  const fields = Buffer.from(`SFATAL\0C${code}\0M${words}\0\0`)
  const head = Buffer.from('E\0\0\0\0')
  head.writeUInt32BE(fields.length + 4, 1)
  const server = createServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', () => socket.end(Buffer.concat([head, fields])))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return (server.address() as AddressInfo).port
}

t.test('a server that cannot be used is named, with what to do and without the password', async (t) => {
  const why = async (at: string) => {
    const databaseUrl = `postgres://me:hunter2@${at}`
    const thrown = await rejection(openStore({ databaseUrl, dataDir: null, poolSize: 1 }))
    t.match(thrown, { code: 'unavailable' })
    const words = inFull(thrown)
    t.notMatch(words, /hunter2/)
    return words
  }
  t.equal(
    await why('127.0.0.1:1/chats'),
    'PostgreSQL at 127.0.0.1:1 (database chats) cannot be used. Start it, or correct DATABASE_URL. connect ECONNREFUSED 127.0.0.1:1',
  )
  t.match(await why('localhost:1/chats'), /at localhost:1 .* connect ECONNREFUSED/)
  const port = await refusingServer(t, '28P01', 'password authentication failed for user "me"')
  t.equal(
    await why(`127.0.0.1:${port}/chats`),
    `PostgreSQL at 127.0.0.1:${port} (database chats) cannot be used. Start it, or correct DATABASE_URL. password authentication failed for user "me"`,
  )
})

// ---------------------------------------------------------------- on a server

const url = process.env.TEST_DATABASE_URL
const isWaived = !url && process.env.CI !== 'true' && 'TEST_DATABASE_URL is not set: no PostgreSQL to test on'

t.test('the store on a PostgreSQL server', { skip: isWaived }, async (t) => {
  if (!url) return t.fail('CI must set TEST_DATABASE_URL')
  const codec = wrapping()
  const databaseUrl = await newDatabase(t, url)
  const store = await openStore({ databaseUrl, dataDir: null, poolSize: 8, codec })
  const raw = openPostgres(databaseUrl, 2)
  t.teardown(async () => {
    await store.close()
    await raw.close()
  })
  await storeContract(t, store)

  await t.test('parts are stored as the codec gives them, wherever they stand', async (t) => {
    const scope = owner()
    const secret = 'hunter2hunter2'
    const { session, turn, fence } = await runningTurn(store, scope)
    const context = [
      { op: 'insert_before' as const, index: 0, message: { role: 'user' as const, parts: text(secret) } },
    ]
    const request = openRequest(session.id, { on_busy: 'enqueue', turn: { input: text(secret), context } })
    t.equal((await store.turns.open(scope, request))?.kind, 'queued')
    const said = message(secret, { turn_id: turn.id })
    const event = {
      type: 'message' as const,
      message: { ...said, session_id: session.id, seq: 1, created_at: '' },
    }
    const head = { session_id: session.id, turn_id: turn.id, step: null, at: '' }
    await store.turns.commit(fence, {
      turn_id: turn.id,
      messages: [said],
      announce: [{ key: 'k', event: { ...event, ...head } }],
      end: COMPLETED,
    })
    const started = await store.turns.startQueued(session.id, { id: id('msg') }, LEASE)
    t.strictSame([started?.turn.input, started?.turn.context], [text(secret), context])
    t.strictSame((await store.messages.after(session.id, 0)).at(-1)?.parts, text(secret))
    for (const table of ['message', 'turn', 'execution']) {
      t.equal(
        await value(raw, `select count(*)::int from ${table} x where x::text like '%${secret}%'`),
        0,
        table,
      )
    }
    t.strictSame(codec.strangers, [], 'everything was opened in the session that it was sealed in')
  })

  await t.test('a commit is made once, also where it is repeated while it is still under way', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const said = [message('said once', { turn_id: turn.id })]
    const commit = () => store.turns.commit(fence, { turn_id: turn.id, messages: said })
    const waiting = `select count(*)::int from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`
    const both = await raw
      .transaction(async (queries) => {
        await queries.query('select from session where id = $1 for update', [session.id])
        const made = [commit(), commit()]
        while ((await value<number>(raw, waiting)) !== made.length) await sleep(10)
        return made
      })
      .then((made) => Promise.all(made))
    t.strictSame(both[0]?.messages, both[1]?.messages)
    t.equal((await store.messages.ofTurn(turn.id)).length, 2)
    await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
  })

  await t.test('an idempotency key is forgotten after a day', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
    const keyed = () => openRequest(session.id, { turn: { idempotency_key: 'k' } })
    const first = await store.turns.open(scope, keyed())
    if (first?.kind !== 'running') return t.fail(`${first?.kind}`)
    await store.turns.commit(first.fence, { turn_id: first.turn.id, end: COMPLETED })
    const age = (hours: number) =>
      raw.query(`update turn set created_at = clock_timestamp() - interval '${hours} hours' where id = $1`, [
        first.turn.id,
      ])
    await age(23)
    t.equal((await store.turns.open(scope, keyed()))?.kind, 'replayed')
    await age(25)
    t.equal((await store.turns.open(scope, keyed()))?.kind, 'running')
  })

  await t.test('the migrations', async (t) => {
    const own = await newDatabase(t, url)
    const open = async (t: Test) => {
      const db = openPostgres(own, 2)
      t.teardown(() => db.close())
      return db
    }
    await migrationTests(t, open)
    await heldTableTest(t, open)
  })

  await t.test('the port', (t) => portTests(t, raw))
  await t.test('connections', (t) => connectionTests(t, databaseUrl))
})

/** Seals everything, and remembers whatever is opened elsewhere than it was sealed. */
function wrapping(): PartsCodec & { strangers: string[] } {
  const strangers: string[] = []
  return {
    strangers,
    seal: (parts, context) => ({ context, sealed: Buffer.from(JSON.stringify(parts)).toString('base64') }),
    open(stored, context) {
      const { context: sealedIn, sealed } = stored as { context: string; sealed: string }
      if (sealedIn !== context) strangers.push(`${sealedIn} opened in ${context}`)
      return JSON.parse(Buffer.from(sealed, 'base64').toString()) as Part[]
    },
  }
}

async function connectionTests(t: Test, databaseUrl: string): Promise<void> {
  const isUnavailable = (thrown: unknown) =>
    thrown instanceof BatonError && thrown.code === 'unavailable' && (thrown.retryAfter ?? 0) > 0
  const admin = openPostgres(databaseUrl, 1)
  t.teardown(() => admin.close())

  await t.test('a lost connection is an answer, and the next one works', async (t) => {
    const db = openPostgres(databaseUrl, 2)
    t.teardown(() => db.close())
    const backend = () => value<number>(db, 'select pg_backend_pid()')
    const idle = await backend()
    await admin.query('select pg_terminate_backend($1)', [idle])
    t.not(await afterLoss(backend), idle, 'an idle one is replaced')
    const lost = await rejection(
      db.transaction(async (queries) => {
        const pid = await value<number>(queries, 'select pg_backend_pid()')
        await admin.query('select pg_terminate_backend($1)', [pid])
        return queries.query('select 1')
      }),
    )
    t.ok(isUnavailable(lost), 'in the middle of a transaction')
    t.type(await backend(), 'number')
  })

  await t.test('a full pool and a server that hangs are told in time', async (t) => {
    const db = openPostgres(databaseUrl, 1, { connectMs: 200, answerMs: 400 })
    t.teardown(() => db.close())
    await db.transaction(async () => {
      t.ok(isUnavailable(await rejection(db.query('select 1'))), 'no connection came free')
    })
    t.ok(isUnavailable(await rejection(db.query('select pg_sleep(60)'))), 'no answer came')
    t.equal(await value(db, 'select 1'), 1)
  })

  await t.test('a server whose defaults are stricter serves all the same', async (t) => {
    const own = await newDatabase(t, databaseUrl)
    const name = new URL(own).pathname.slice(1)
    for (const [setting, value] of [
      ['default_transaction_isolation', 'serializable'],
      ['lock_timeout', '100'],
    ])
      await admin.query(`alter database ${name} set ${setting} = '${value}'`)
    const db = openPostgres(own, 2)
    t.teardown(() => db.close())
    await db.query('create table one (n int)')
    await db.query('insert into one values (0)')
    const add = (queries: Pick<Db, 'query'>) => queries.query('update one set n = n + 1')
    let waiting: Promise<unknown> | undefined
    await db.transaction(async (queries) => {
      await add(queries)
      t.ok(isUnavailable(await rejection(add(db))), 'what it does not wait for may come later')
      waiting = add(db)
      await sleep(30)
    })
    await waiting
    t.equal(await value(db, 'select n from one'), 2)
  })

  await t.test('a server that is not there', async (t) => {
    const nowhere = openStore({ databaseUrl: 'postgresql://127.0.0.1:1/none', dataDir: null, poolSize: 1 })
    t.ok(isUnavailable(await rejection(nowhere)))
  })
}

/** The pool may hand out the connection once more before it has seen it die. */
async function afterLoss<T>(work: () => Promise<T>): Promise<T> {
  return work().catch(work)
}

// ---------------------------------------------------------------- on both

async function portTests(t: Test, db: Db): Promise<void> {
  await t.test('a transaction is whole or nothing, and keeps others out of it', async (t) => {
    await db.query('create table port_test (n int primary key)')
    t.teardown(() => db.query('drop table port_test'))
    const failed = await rejection(
      db.transaction(async (queries) => {
        await queries.query('insert into port_test values (1)')
        throw new Error('changed my mind')
      }),
    )
    t.match(failed, { message: 'changed my mind' })
    const insert = (n: number) =>
      db.transaction(async (queries) => {
        await queries.query('insert into port_test values ($1)', [n])
        await queries.query('insert into port_test values ($1)', [n + 100])
      })
    await Promise.all([insert(2), insert(3), db.query('insert into port_test values (4)'), insert(5)])
    t.equal(await value(db, 'select count(*)::int from port_test'), 7)
    const duplicate = await rejection(db.query('insert into port_test values (4)'))
    t.ok(duplicate instanceof QueryFailure)
    t.match(duplicate, { code: '23505', constraint: 'port_test_pkey' })
  })

  await t.test('a full disk is told as a store that is away, its own words as the cause', async (t) => {
    const full = `do $$ begin raise 'No space left on device' using errcode = 'disk_full'; end $$`
    const refused = await rejection(db.query(full))
    const cause = { message: /No space left on device/ }
    t.match(refused, { code: 'unavailable', status: 503, retryAfter: 2, cause })
    t.equal(await value(db, 'select 1'), 1, 'and it goes on')
  })

  await t.test('values come back as they went', async (t) => {
    const [row] = await db.query(
      `select $1::text as t, $2::bytea as b, $3::json as j, $4::boolean as f, $5::text[] as a, $6::float8 as n`,
      ['a\0b', new Uint8Array([0, 255]), '{"b":"\\u0000","a":1}', false, ['x', 'y,"z\\'], 1.5],
    )
    const { b, ...rest } = row as { b: Uint8Array }
    t.strictSame(rest, { t: 'a\ufffdb', j: { b: '\0', a: 1 }, f: false, a: ['x', 'y,"z\\'], n: 1.5 })
    t.strictSame([...b], [0, 255])
  })
}

/** As a backup holds one, for an hour. */
async function heldTableTest(t: Test, open: (t: Test) => Promise<Db>): Promise<void> {
  await t.test(
    'step aside while something holds their table, so that nobody waits behind them',
    async (t) => {
      const [db, holder, reader] = [await open(t), await open(t), await open(t)]
      const more = { name: '9999_x.sql', sha256: 'x', sql: 'alter table session add column x text' }
      const all = [...readMigrations(), more]
      await holder.transaction(async (queries) => {
        await queries.query('lock table session in access share mode')
        const migrating = rejection(migrate(db, all, { lockMs: 100, pauseMs: 100, tries: 5 }))
        const read = async () => {
          for (let i = 0; i < 20; i++) await Promise.all([reader.query('select from session'), sleep(20)])
          return 'read'
        }
        t.equal(await Promise.race([read(), sleep(20_000, 'nothing')]), 'read')
        const thrown = await Promise.race([migrating, sleep(20_000)])
        t.match(thrown, { code: 'internal', message: /something holds a table/ })
      })
      t.strictSame(await migrate(db, all), [more.name])
    },
  )
}

/** Each later migration over rows in every state of the first, and with all that replicas of the version before ask for. */
async function oldRowsTest(t: Test, db: Db): Promise<void> {
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
  const store = await openStore({ databaseUrl: null, dataDir: null, poolSize: 1 }, Promise.resolve(db))
  const states = ['awaiting_input', 'cancelled', 'completed', 'failed', 'queued', 'running']
  for (const state of states)
    t.match(await store.turns.get(EVERYONE, `turn_${state}`), {
      state,
      steps: state === 'queued' ? [] : [{ attempt: 1 }],
    })
  t.match(await store.connectors.bindings('ses_running'), [
    { connector: { name: 's' }, alias: null, off: [] },
  ])
  t.match(await store.turns.recover(LEASE, 9), [{ turn: { id: 'turn_running' }, was_handed_over: false }])
  t.strictSame(await store.turns.idleQueues(9), ['ses_queued'])
  t.equal((await store.executions.ofTurn('turn_awaiting_input')).length, 3)
}

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

async function migrationTests(t: Test, open: (t: Test) => Promise<Db>): Promise<void> {
  const migrations = readMigrations()
  const next: Migration = { name: '9999_add_column.sql', sha256: 'n', sql: 'create table next_one ()' }
  const why = async (work: Promise<unknown>) => {
    const thrown = await rejection(work)
    return thrown instanceof BatonError ? `${thrown.code}: ${thrown.message}` : thrown
  }

  await t.test('are applied once, by whoever comes first', async (t) => {
    const [one, two] = [await open(t), await open(t)]
    t.match(await why(assertCurrent(one, migrations)), /schema_migration|unavailable/, 'nothing is there yet')
    const applied = await Promise.all([migrate(one, migrations), migrate(two, migrations)])
    t.strictSame(
      applied.sort((a, b) => a.length - b.length),
      [[], migrations.map(({ name }) => name)],
    )
    t.equal(await assertCurrent(two, migrations), undefined)
  })

  await t.test('a database that takes no writes is not ready, though it can be read', async (t) => {
    const db = await open(t)
    await migrate(db, migrations)
    const demoted: Db = {
      ...db,
      query: (text, params) =>
        db.transaction(async (queries) => {
          await queries.query('set transaction read only')
          return queries.query(text, params)
        }),
    }
    t.match(await why(assertCurrent(demoted, migrations)), /^unavailable: .*read-only/)
  })

  await t.test('refuse to start on a schema that is newer than the code', async (t) => {
    const db = await open(t)
    t.strictSame(await migrate(db, [...migrations, next]), [next.name])
    t.match(await why(migrate(db, migrations)), /^internal: .*9999_add_column\.sql.*newer version/)
    t.equal(await assertCurrent(db, migrations), undefined, 'a running replica of the old code stays ready')
    await db.query('drop table next_one')
    await db.query('delete from schema_migration where name = $1', [next.name])
    t.match(
      await why(assertCurrent(db, [...migrations, next])),
      /^unavailable: /,
      'one of the new code is not',
    )
  })

  await t.test('refuse a file that was changed, or one that comes too late', async (t) => {
    const db = await open(t)
    const [first, ...rest] = migrations
    if (!first) throw new Error('there is a first migration')
    t.match(
      await why(migrate(db, [{ ...first, sha256: 'other' }, ...rest])),
      /^internal: .*was changed after/,
    )
    const early = { ...next, name: '0000_too_late.sql' }
    t.match(await why(migrate(db, [early, ...migrations])), /^internal: .*0000_too_late\.sql comes before/)
  })

  await t.test('leave nothing behind when one fails', async (t) => {
    const db = await open(t)
    const broken = { ...next, name: '9999_broken.sql', sql: 'create table half (); select nonsense' }
    t.ok((await rejection(migrate(db, [...migrations, next, broken]))) instanceof QueryFailure)
    t.equal(await value(db, `select to_regclass('half')::text`), null)
    t.strictSame(await migrate(db, migrations), [])
  })
}
