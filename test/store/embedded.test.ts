/** The store on the embedded PostgreSQL: its folder, its thread, its first start. */

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Worker } from 'node:worker_threads'
import t from 'tap'
import type { Part } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { type Queries, value, values } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { migrate, readMigrations } from '../../src/store/migrate.ts'
import { readTemplate } from '../../src/store/template.ts'
import { databaseContract } from '../contracts/database.ts'
import { migrationContract } from '../contracts/migrations.ts'
import { storeContract } from '../contracts/store.ts'
import { credential } from '../contracts/store-credentials.ts'
import {
  ADMIN,
  connector,
  id,
  LEASE,
  message,
  newSession,
  owner,
  rejection,
  runningTurn,
} from '../contracts/store-rows.ts'
import { scratch } from '../scratch.ts'
import { freshDatabase, freshStore } from './fresh.ts'

const folder = scratch(t)

t.test('the embedded store', async (t) => {
  const store = await freshStore(t, { dataDir: scratch(t) })
  await storeContract(t, store)
  await t.test('sealed parts are looked for in pages of rows, in plain rows without success', async (t) => {
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
  await t.test('a page of sealed parts ends before the row with which it would be too large', async (t) => {
    const { id: session } = await newSession(store, owner())
    const before = id('msg')
    const sealed = [{ type: 'sealed', sealed: 'A'.repeat(1000) }] as unknown as Part[]
    const given = [message('plain'), message('', { parts: sealed }), message('', { parts: sealed })]
    await store.messages.append(ADMIN, session, given)
    const ids = async (after: string, bytes: number) =>
      (await store.sealed.documents('message.body', after, 3, bytes)).map((row) => row.id)
    const [plain = '', first = '', second = ''] = given.map((one) => one.id)
    t.strictSame(await ids(before, 1), [plain])
    t.strictSame(await ids(plain, 1), [first], 'one row at least')
    t.strictSame(await ids(before, 2000), [plain, first])
    t.strictSame(await ids(before, 4000), [plain, first, second])
  })
  await store.close()
  const closed = await rejection(store.ready())
  t.ok(closed instanceof BatonError && closed.code === 'unavailable', 'a closed store says so')
})

t.test('the build leaves a template for first starts', async (t) => {
  const migrations = readMigrations()
  const template = readTemplate(migrations)
  t.ok(template, 'run `npm run build`, or `node scripts/template.mjs` after tsc')
  const db = await openEmbedded(join(folder, 'first'), () => template)
  t.teardown(() => db.close())
  t.strictSame(await migrate(db, migrations), [], 'the template has the schema in it')
  const plan = await values<string>(db, `explain select from session where id = 'some'`)
  t.match(plan.join(), 'session_pkey', 'plans made on the template are those of a full table')
  const [first, ...rest] = migrations
  t.equal(
    readTemplate([{ name: first?.name ?? '', sha256: 'other' }, ...rest]),
    null,
    'a template of other migrations is not used',
  )
  t.equal(readTemplate([]), null, 'a template of a newer version is not used')
})

t.test('a folder belongs to one process, and a kill loses nothing that was acknowledged', async (t) => {
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

  const store = await freshStore(t, { dataDir })
  const kept = new Set((await store.messages.after(session, 0)).map((one) => one.id))
  t.strictSame(
    acknowledged.filter((one) => !kept.has(one)),
    [],
  )
  const inProcess = await rejection(openEmbedded(dataDir))
  t.match(inProcess, { message: /in use/ }, 'a second database in the same process counts as another process')
})

t.test(
  'a process that begins on a folder waits for no lease and no claim of the process before',
  async (t) => {
    const open = () => freshStore(t, { dataDir: join(folder, 'leases') })
    let store = await open()
    const { turn } = await runningTurn(store, owner(), { owner: 'dead', seconds: 3_600 })
    const login = await store.credentials.create(credential(owner()))
    const server = connector(owner(), 'tracker')
    await store.connectors.create(server)
    const claims = () =>
      Promise.all([
        store.credentials.claim(login.id, 'a claim', 3_600),
        store.connectors.claim(server.id, 'a claim', 3_600),
      ])
    await claims()
    t.equal(await store.turns.recover(LEASE), null)
    t.strictSame(await claims(), [null, null])
    await store.close()
    store = await open()
    t.match(await store.turns.recover(LEASE), { turn: { id: turn.id } })
    t.match(await claims(), [{ hasLapsed: true }, { hasLapsed: true }], 'nobody released them')
  },
)

t.test('a folder with a long path is locked, too, for those who have another TMPDIR', async (t) => {
  // Its name is too long for a socket.
  const dataDir = join(folder, 'l'.repeat(120))
  const link = join(folder, 'link')
  mkdirSync(join(dataDir, 'pg.unfinished'), { recursive: true })
  writeFileSync(join(dataDir, 'pg.unfinished', 'PG_VERSION'), 'torn')
  const db = await freshDatabase(t, dataDir)
  t.equal(await value(db, 'select 1'), 1)
  t.notOk(
    existsSync(join(dataDir, 'pg.unfinished')),
    'a first start that was killed half way leaves no half database',
  )
  t.match(await rejection(openEmbedded(dataDir)), { message: /in use/ })
  symlinkSync(dataDir, link)
  // Only Linux has a short path to every folder.
  if (process.platform === 'linux')
    t.match(
      await rejection(openEmbedded(link)),
      { message: /in use/ },
      'its path is short enough for a socket',
    )
  const { TMPDIR } = process.env
  process.env.TMPDIR = scratch(t)
  t.teardown(() => {
    if (TMPDIR === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = TMPDIR
  })
  t.match(await rejection(openEmbedded(dataDir)), { message: /in use/ })
  await db.close()
  await (await openEmbedded(dataDir)).close()
  const left = readdirSync(dataDir).filter((name) => name !== 'pg')
  t.same(left, [], 'nothing of the lock is left')
})

t.test('one database, in one test after the other', async (t) => {
  const db = await freshDatabase(t, join(folder, 'log'))
  await t.test(
    'a transaction that fails is rolled back, however many statements came before it',
    async (t) => {
      // With `begin` and the failing statement these are as many as are kept prepared: the rollback is one more.
      for (let i = 2; i < 500; i++) await db.query(`select ${i}`)
      const failing = db.transaction((queries) => queries.query('select 1 / 0'))
      t.match(await rejection(failing), { code: '22012' })
      t.equal(await value(db, `select 'served'`), 'served')
    },
  )

  await t.test('the write-ahead log stays short, however much is written', async (t) => {
    await db.query('create table filler (words text)')
    await db.query('alter table filler alter words set storage external')
    for (let i = 0; i < 250; i++) await db.query(`insert into filler values (repeat('x', 1 << 20))`)
    const since =
      'select pg_wal_lsn_diff(pg_current_wal_lsn(), redo_lsn)::float8 from pg_control_checkpoint()'
    const bytes = (await value<number>(db, since)) ?? 0
    t.ok(bytes < 150 << 20, `${bytes} bytes since the last checkpoint`)
    const sizes = readdirSync(join(folder, 'log/pg/pg_wal')).filter((name) => /^[0-9A-F]{24}$/.test(name))
    t.ok(sizes.length < 16, `${sizes.length} files of 16 MB`)
    await db.query('drop table filler')
  })

  await t.test('the embedded database keeps the contracts of any database', async (t) => {
    for (const sql of ['drop schema public cascade', 'create schema public']) await db.query(sql)
    await migrationContract(t, async () => db)
    await databaseContract(t, db)
  })

  await t.test('a thread that ends by itself is reported as lost, one that is closed is not', async (t) => {
    const threads: Worker[] = []
    const note = (worker: Worker) => void threads.push(worker)
    process.on('worker', note)
    const ended = await freshDatabase(t)
    process.off('worker', note)
    await threads[0]?.terminate()
    t.match(await ended.lost, { code: 'unavailable' })
    t.match(await rejection(ended.query('select 1')), { code: 'unavailable' })
    await ended.close()
    await db.close()
    t.equal(await Promise.race([db.lost, sleep(50, 'nothing')]), 'nothing')
  })
})

t.test('the room of deleted rows is used again, and no transaction is cut in two for it', async (t) => {
  const open = () => freshDatabase(t, join(folder, 'vacuum'))
  let db = await open()
  const fill = () =>
    db.query(`insert into setting select 'name ' || n, repeat('x', 100) from generate_series(1, 10000) n`)
  const empty = () => db.query(`delete from setting where name like 'name %'`)
  const size = async () => (await value<number>(db, `select pg_relation_size('setting')::float8`)) ?? 0
  // The database checks once in a hundred statements what there is to vacuum.
  const much = async (queries: Pick<Queries, 'query'>) => {
    for (let i = 0; i < 100; i++) await queries.query('select 1')
    await sleep(400)
  }
  const vacuums = async (count: number) => {
    const text = `select pg_stat_get_vacuum_count('setting'::regclass)::int`
    for (let tries = 0; ((await value<number>(db, text)) ?? 0) < count && tries < 20; tries++) await much(db)
  }
  await fill()
  const full = await size()
  await empty()
  await db.close()

  db = await open()
  await db.transaction(async (queries) => {
    await queries.query(`insert into setting values ('kept', '')`)
    await much(queries)
  })
  await vacuums(1)
  await fill()
  t.ok(
    (await size()) < full * 1.1,
    `${await size()} bytes after ${full}: the room that another process has left`,
  )
  await empty()
  // PostgreSQL notes once a second which rows were deleted.
  await sleep(1_100)
  await vacuums(2)
  await fill()
  t.ok(
    (await size()) < full * 1.1,
    `${await size()} bytes after ${full}: the room that this process has left`,
  )
  t.equal(await value(db, `select count(*)::int from setting where name = 'kept'`), 1)
  const known = await value(
    db,
    `select max(reltuples) from pg_class where relname in ('setting', 'setting_pkey')`,
  )
  t.equal(known, -1, 'plans are made as if the size of the table was not known')
})

t.test('a data folder that is no database is refused with a reason', async (t) => {
  const dataDir = join(folder, 'broken')
  mkdirSync(join(dataDir, 'pg'), { recursive: true })
  writeFileSync(join(dataDir, 'pg', 'PG_VERSION'), '9.6\n')
  t.match(await rejection(openEmbedded(dataDir)), { message: /does not open: PostgreSQL gave up\..* backup/ })
  rmSync(join(dataDir, 'pg', 'PG_VERSION'))
  symlinkSync('PG_VERSION', join(dataDir, 'pg', 'PG_VERSION'))
  const refused = { message: /does not open: one of its files cannot be used \(WASI error 32\)/ }
  t.match(await rejection(openEmbedded(dataDir)), refused, 'the embedded file system throws no Error here')
})

/** The folder that is harmed, and restored in part, and opened again: a database costs a second to open. */
const kept = join(folder, 'kept')

t.test('no new database is made over one that lost the file which tells its version', async (t) => {
  const version = join(kept, 'pg', 'PG_VERSION')
  const db = await freshDatabase(t, kept)
  await db.query(`insert into setting values ('kept', 'yes')`)
  await db.close()
  const words = readFileSync(version)
  rmSync(version)
  const refused = { message: /does not open: its file PG_VERSION is missing.*backup/ }
  t.match(await rejection(freshDatabase(t, kept)), refused)
  writeFileSync(version, words)
})

t.test('a data folder is opened although a copy of it left empty folders out', async (t) => {
  const pg = join(kept, 'pg')
  const isEmpty = (name: string) =>
    statSync(join(pg, name)).isDirectory() && readdirSync(join(pg, name)).length === 0
  const empty = readdirSync(pg, { recursive: true, encoding: 'utf8' }).filter(isEmpty)
  for (const name of empty) rmdirSync(join(pg, name))
  const copied = await freshDatabase(t, kept)
  t.equal(await value(copied, `select value from setting where name = 'kept'`), 'yes', 'nothing is lost')
  await copied.query('checkpoint')
  t.strictSame(
    empty.filter((name) => !existsSync(join(pg, name))),
    [],
  )
})

t.test('a first start that cannot write says why', async (t) => {
  const dataDir = join(folder, 'refused')
  const script = fileURLToPath(new URL('./writer.js', import.meta.url))
  const limited = ['-c', 'ulimit -f 64; exec "$@"', 'sh', process.execPath, script, dataDir]
  const { stderr, status } = spawnSync('sh', limited, { encoding: 'utf8' })
  t.not(status, 0)
  t.match(stderr, /does not open: EFBIG/)
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
