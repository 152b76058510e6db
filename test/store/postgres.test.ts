/** The store on a PostgreSQL server: its connections, and behaviour that only several connections show. */

import { readFileSync } from 'node:fs'
import { connect, createServer, Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { Part } from '../../src/chat/message.ts'
import { BatonError, inFull } from '../../src/errors.ts'
import { type Db, matched, type Querying, value, values } from '../../src/store/db.ts'
import { migrate, readMigrations } from '../../src/store/migrate.ts'
import { openStore } from '../../src/store/open.ts'
import type { PartsCodec } from '../../src/store/parts.ts'
import { openPostgres } from '../../src/store/postgres.ts'
import { StaleOwner, type Step } from '../../src/store/store.ts'
import { within } from '../../src/within.ts'
import { databaseContract } from '../contracts/database.ts'
import { migrationContract } from '../contracts/migrations.ts'
import { storeContract } from '../contracts/store.ts'
import {
  announced,
  COMPLETED,
  connector,
  execution,
  id,
  LAPSED,
  LEASE,
  message,
  newSession,
  openRequest,
  owner,
  recoverAll,
  rejection,
  runningTurn,
  step,
  text,
} from '../contracts/store-rows.ts'
import { ON_POSTGRES, SERVERS } from '../given-servers.ts'
import { listening } from '../listening.ts'
import { newDatabase } from '../servers.ts'
import { eventually } from '../waiting.ts'

/** What ends a connection. */
function errorOf(code: string, words: string): Buffer {
  const fields = Buffer.from(`SFATAL\0C${code}\0M${words}\0\0`)
  const head = Buffer.from('E\0\0\0\0')
  head.writeUInt32BE(fields.length + 4, 1)
  return Buffer.concat([head, fields])
}

/** Answers every client like a server that refuses it. */
const refusingServer = (t: Test, code: string, words: string): Promise<number> =>
  listening(
    t,
    createServer((socket) => {
      socket.once('data', () => socket.end(errorOf(code, words)))
    }),
  )

t.test('a server that cannot be used is named, with what to do and without the password', async (t) => {
  const why = async (at: string) => {
    const databaseUrl = `postgres://me:hunter2@${at}`
    const thrown = await rejection(openStore({ databaseUrl, dataDir: '', poolSize: 1 }))
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
  t.match(await why('localhost:1/chats?sslrootcert=/no/ca.crt'), /correct DATABASE_URL\. ENOENT.*ca\.crt/)
  const warnings: Error[] = []
  process.on('warning', (warning) => warnings.push(warning))
  t.match(await why('localhost:1/chats?application_name=x&sslmode=require'), /ECONNREFUSED/)
  t.strictSame(warnings, [], 'a managed service puts sslmode=require into its URLs')
  const unencrypted = await listening(
    t,
    createServer((socket) => socket.once('data', () => socket.end('N'))),
  )
  for (const usual of ['sslrootcert=system', 'sslmode=verify-full&sslrootcert=system&application_name=x']) {
    t.match(await why(`127.0.0.1:${unencrypted}/chats?${usual}`), /server does not support SSL/, usual)
  }
  const port = await refusingServer(t, '28P01', 'password authentication failed for user "me"')
  t.equal(
    await why(`127.0.0.1:${port}/chats`),
    `PostgreSQL at 127.0.0.1:${port} (database chats) cannot be used. Start it, or correct DATABASE_URL. password authentication failed for user "me"`,
  )
})

t.test(
  'a server that refuses a connection counts as away, whatever its words, and connections are kept alive',
  async (t) => {
    const kept = t.capture(Socket.prototype, 'setKeepAlive', Socket.prototype.setKeepAlive)
    for (const [code, words] of [
      ['XX000', 'MaxClientsInSessionMode: max clients reached'],
      ['28P01', 'password authentication failed for user "me"'],
      ['3D000', 'database "chats" does not exist'],
    ] as const) {
      const port = await refusingServer(t, code, words)
      const db = openPostgres(`postgres://me:hunter2@127.0.0.1:${port}/chats`, 1)
      t.teardown(() => db.close())
      const thrown = await rejection(db.query('select 1'))
      t.match(thrown, { code: 'unavailable' }, code)
      t.match(inFull(thrown), words)
    }
    // A balancer forgets a connection after some minutes of silence (Azure 4, AWS 6); the kernel would ask after two hours.
    t.match(kept()[0]?.args, [true, 60_000])
  },
)

t.test('a pooler that has no connection left is waited for as long as for a connection', async (t) => {
  const admitted = Buffer.from('R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I')
  const server = createServer((socket) => socket.once('data', () => socket.write(admitted)))
  const url = `postgres://me@127.0.0.1:${await listening(t, server)}/chats`
  const db = openPostgres(url, 1, { connectMs: 200, answerMs: 30_000 })
  t.teardown(() => db.close())
  t.match(await within(10_000, rejection(db.query('select 1'))), { code: 'unavailable' })
})

t.test(
  'a pooler that gives a connection up in mid-use counts as away, and the next statement gets another',
  async (t) => {
    const admitted = Buffer.from('R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I')
    const done = Buffer.from('C\0\0\0\x08SET\0Z\0\0\0\x05I')
    let connections = 0
    const server = createServer((socket) => {
      connections++
      // Supavisor lets its client in, and closes the connection only later.
      const answers = [admitted, done, errorOf('XX000', '(ECHECKOUTTIMEOUT) Pool checkout timeout.')]
      socket.on('data', () => socket.write(answers.shift() ?? ''))
    })
    const db = openPostgres(`postgres://me@127.0.0.1:${await listening(t, server)}/chats`, 1)
    t.teardown(() => db.close())
    for (const count of [1, 2]) {
      t.match(await rejection(db.query('select 1')), { code: 'unavailable' })
      t.equal(connections, count)
    }
  },
)

t.test('a history that no process can hold is refused, and can be mended', ON_POSTGRES, async (t) => {
  const databaseUrl = await newDatabase(t, SERVERS.DATABASE_URL)
  const store = await openStore({ databaseUrl, dataDir: '', poolSize: 2 })
  const db = openPostgres(databaseUrl, 1)
  t.teardown(() => Promise.all([store.close(), db.close()]))
  const scope = owner()
  const { id: session } = await newSession(store, scope)
  const messages = [message('a'), message('b'), message('c')]
  await store.messages.append(scope, session, messages)
  const refused = {
    code: 'context_too_long',
    message: "The session's messages are more than 128 MiB. Delete some of them, or go on in a new session.",
  }
  await db.query(
    `update message
        set body = message_body(id, session_id, null, seq, 'user', json_build_array(json_build_object(
              'type', 'text', 'text', repeat('x', 45 * 1024 * 1024))), false, created_at)
      where session_id = $1`,
    [session],
  )
  t.match(await rejection(store.messages.after(session, 0)), refused)
  t.match(await rejection(store.turns.open(scope, openRequest(session))), refused)
  for (const { id } of messages.slice(1)) t.ok(await store.messages.delete(scope, session, id))
  t.equal((await store.messages.after(session, 0)).length, 1)
})

t.test('the store on a PostgreSQL server', ON_POSTGRES, async (t) => {
  const codec = wrapping()
  const databaseUrl = await newDatabase(t, SERVERS.DATABASE_URL)
  const store = await openStore({ databaseUrl, dataDir: '', poolSize: 8, codec })
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
    t.strictSame(codec.strangers, [], 'every part was opened in the session that it was sealed in')
  })

  await t.test('a deleted session leaves no row behind', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const made = await store.connectors.create(connector(scope, 'bound'))
    if (made === 'name_taken') return t.fail(made)
    await store.connectors.bind(session.id, made.id, null)
    const executions = [execution(turn.id)]
    await store.turns.commit(fence, { turn_id: turn.id, step: step(0), executions, end: COMPLETED })
    const tables = await values<string>(
      raw,
      `select table_name::text from information_schema.tables where table_schema = 'public'`,
    )
    const having = async () => {
      const found: string[] = []
      for (const table of tables) {
        const text = `select 1 from ${table} x where x::text ~ $1 limit 1`
        if (await matched(raw, text, [`${session.id}|${turn.id}`])) found.push(table)
      }
      return found.sort()
    }
    t.strictSame(await having(), ['binding', 'execution', 'message', 'registry', 'session', 'step', 'turn'])
    t.equal(await store.sessions.delete(scope, session.id), 'deleted')
    t.strictSame(await having(), [])
  })

  const allWait = (works: unknown[], at: Querying = raw) =>
    eventually(async () => {
      const waiting = `select count(*)::int from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`
      return (await value<number>(at, waiting)) === works.length
    })

  await t.test('a statement that waits for a session sees what was done to it meanwhile', async (t) => {
    const scope = owner()
    const taken = await runningTurn(store, scope)
    const idle = await runningTurn(store, scope)
    await store.turns.commit(idle.fence, { turn_id: idle.turn.id, end: COMPLETED })
    const late = await raw.transaction(async (queries) => {
      await queries.query('update session set lease_epoch = lease_epoch + 1 where id = any($1)', [
        [taken.session.id, idle.session.id],
      ])
      await queries.query(`update turn set state = 'running' where id = $1`, [idle.turn.id])
      const works = [
        rejection(store.executions.begin(taken.fence, 'exec_none')),
        store.messages.append(scope, idle.session.id, [message('late')]),
      ]
      await allWait(works)
      return works
    })
    const [begun, appended] = await Promise.all(late)
    t.ok(begun instanceof StaleOwner, 'the lease was lost meanwhile')
    t.equal(appended, 'busy', 'a turn began meanwhile')
    await raw.query(`update turn set state = 'completed' where id = $1`, [idle.turn.id])
  })

  await t.test(
    'a check that waits for a session sees the history on which the turn is accepted',
    async (t) => {
      const scope = owner()
      const [kept, gone] = [await newSession(store, scope), await newSession(store, scope)]
      const seen: number[] = []
      const open = (session: string) =>
        store.turns.open(scope, openRequest(session), (history) => void seen.push(history.length))
      const late = await raw.transaction(async (queries) => {
        await queries.query('select from session where id = any($1) for update', [[kept.id, gone.id]])
        const appending = store.messages.append(scope, kept.id, [message('meanwhile')])
        await allWait([appending])
        const opening = [open(kept.id), open(gone.id)]
        await allWait([appending, ...opening])
        await queries.query('delete from session where id = $1', [gone.id])
        return opening
      })
      const [accepted, deleted] = await Promise.all(late)
      t.match(accepted, { kind: 'running', turn: { base_seq: 1 } })
      t.strictSame(seen, [1])
      t.equal(deleted, null, 'the session was deleted meanwhile')
    },
  )

  await t.test('a commit is made once, also where it is repeated while it is still under way', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const said = [message('said once', { turn_id: turn.id })]
    const commit = () => store.turns.commit(fence, { turn_id: turn.id, messages: said })
    const both = await raw
      .transaction(async (queries) => {
        await queries.query('select from session where id = $1 for update', [session.id])
        const made = [commit(), commit()]
        await allWait(made)
        return made
      })
      .then((made) => Promise.all(made))
    t.strictSame(both[0]?.messages, both[1]?.messages)
    t.equal((await store.messages.ofTurn(turn.id)).length, 2)
    await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
  })

  await t.test('a lost turn that another replica is taking is passed over', async (t) => {
    const scope = owner()
    const lease = { owner: 'replica-2', seconds: 60 }
    await recoverAll(store, lease)
    const { session, turn } = await runningTurn(store, scope, LAPSED)
    await raw.transaction(async (queries) => {
      await queries.query('select from session where id = $1 for update', [session.id])
      t.equal(await within(10_000, store.turns.recover(lease)), null)
    })
    const taken = await store.turns.recover(lease)
    t.match(taken, { turn: { id: turn.id, recoveries: 1 }, fence: { epoch: 2 } })
    if (taken) await store.turns.commit(taken.fence, { turn_id: turn.id, end: COMPLETED })
  })

  await t.test('the ledger is pruned around rows that somebody else deletes', async (t) => {
    const scope = owner()
    const add = async () => {
      const [session, execution] = [id('ses'), id('exec')]
      await raw.query(
        `insert into execution (id, session_id, turn_id, owner, step, call_id, tool, tools_revision, arguments,
                                state, repeatable, ended_at)
         values ($1, $2, $3, $4, 0, 'call_1', 'now', 1, '{}', 'settled', false, now() - interval '2 days')`,
        [execution, session, id('turn'), scope.owner],
      )
      return execution
    }
    const [held, free] = [await add(), await add()]
    const left = async () => (await store.executions.list(scope, {}, { limit: 9 })).data.map((row) => row.id)
    await raw.transaction(async (queries) => {
      await queries.query('select from execution where id = $1 for update', [held])
      const pruned = await within(5_000, store.executions.prune(86_400))
      t.equal(pruned, 1, `${free} alone, and at once`)
    })
    t.strictSame(await left(), [held])
    t.equal(await store.executions.prune(86_400), 1)
    t.strictSame(await left(), [])
  })

  await t.test('announcements are forgotten around turns that somebody else deletes', async (t) => {
    const ended = async () => {
      const { session, turn, fence } = await runningTurn(store, owner())
      const announce = [announced(turn.id, session.id, 'end')]
      await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED, announce })
      return turn.id
    }
    const turns = [await ended(), await ended()]
    const [held = ''] = turns
    const unsaid = () =>
      values<string>(raw, 'select id from turn where id = any($1::text[]) and announce is not null', [turns])
    const forget = () => within(5_000, store.turns.forgetAnnouncements(turns, null))
    await raw.transaction(async (queries) => {
      await queries.query('select from turn where id = $1 for update', [held])
      await forget()
    })
    t.strictSame(await unsaid(), [held])
    await forget()
    t.strictSame(await unsaid(), [])
  })

  await t.test('uses of keys are noted around those that another replica notes', async (t) => {
    const scope = owner()
    const add = async () => {
      const key = { id: id('key'), hash: id('hash'), owner: scope.owner, name: null, scopes: [] }
      return (await store.keys.create({ ...key, hint: '', expires_at: null })).id
    }
    const [held, free] = [await add(), await add()]
    await raw.transaction(async (queries) => {
      await queries.query('select from api_key where id = $1 for update', [held])
      await within(5_000, store.keys.used([held, free]))
    })
    const { data } = await store.keys.list(scope, { limit: 9 })
    const used = data.filter(({ last_used_at }) => last_used_at !== null)
    t.strictSame(
      used.map((key) => key.id),
      [free],
    )
  })

  await t.test('a claim of a connector, and who waits for it, do not lock each other out', async (t) => {
    const scope = owner()
    const { connectors } = store
    const made = await connectors.create(connector(scope, 'claimed'))
    if (made === 'name_taken') return t.fail(made)
    const session = await newSession(store, scope)
    const ends = await raw.transaction(async (pinning) => {
      // As a pin's foreign key does.
      await pinning.query('select from connector where id = $1 for key share', [made.id])
      const works = await raw.transaction(async (queries) => {
        await queries.query('update connector set updated_at = now() where id = $1', [made.id])
        const claiming = connectors.claim(made.id, 'r1', 0)
        await allWait([claiming], pinning)
        const both = [claiming, connectors.bind(session.id, made.id, null)]
        await allWait(both, pinning)
        return both
      })
      return Promise.all(works)
    })
    t.match(ends, [{ row: { id: made.id }, hasLapsed: false }, true])
    const late = await raw.transaction(async (queries) => {
      // As syncConfig does.
      await queries.query('lock table connector in share row exclusive mode')
      const claiming = connectors.claim(made.id, 'r2', 60)
      await allWait([claiming])
      await queries.query('update connector set updated_at = now() where id = $1', [made.id])
      return [claiming]
    })
    t.match(await Promise.all(late), [{ hasLapsed: true }])
  })

  await t.test('a connector can be deleted while a pin or a list of its tools is written', async (t) => {
    const scope = owner()
    const { connectors } = store
    const pin = (tool: string) => ({ tool, hash: 'hash-2', definition: {} })
    const writes: Record<string, [write: (id: string) => Promise<unknown>, end: string]> = {
      pin: [(id) => connectors.pin(id, 'read', 'hash-2', {}, 'me'), 'connector_not_found'],
      pinFirst: [(id) => connectors.pinFirst(id, [pin('write')]), 'done'],
      saveList: [(id) => connectors.saveList(`${id}@2`, id, {}), 'done'],
    }
    for (const [verb, [write, end]] of Object.entries(writes)) {
      const made = await connectors.create(connector(scope, verb.toLowerCase()))
      if (made === 'name_taken') return t.fail(made)
      await connectors.pin(made.id, 'read', 'hash-1', {}, 'me')
      await connectors.saveList(`${made.id}@1`, made.id, {})
      await raw.query('update connector set config_revision = 2 where id = $1', [made.id])
      const written = await raw.transaction(async (queries) => {
        await queries.query('select from connector where id = $1 for update', [made.id])
        const writing = write(made.id).then(
          () => 'done',
          ({ code }: BatonError) => code,
        )
        await allWait([writing])
        await queries.query('delete from connector where id = $1', [made.id])
        return [writing]
      })
      t.strictSame(await Promise.all(written), [end], verb)
    }
  })

  await t.test(
    'the statement of docs/operations.md deletes sessions that nobody has used for a year',
    async (t) => {
      const scope = owner()
      const [unused, used] = [await newSession(store, scope), await newSession(store, scope)]
      const { session: busy } = await runningTurn(store, scope)
      await raw.query(
        `update session set updated_at = now() - interval '366 days' where id = any($1::text[])`,
        [[unused.id, busy.id]],
      )
      const page = readFileSync(new URL('../../../docs/operations.md', import.meta.url), 'utf8')
      const [, statement = ''] = /```\n(select count[^`]+);\n```/.exec(page) ?? []
      t.equal(await value(raw, statement), '1')
      t.equal(await value(raw, statement), '0')
      const left = (await store.sessions.list(scope, { limit: 9 })).data.map(({ id }) => id)
      t.strictSame(left.sort(), [used.id, busy.id].sort())
    },
  )

  await t.test('the statement of docs/operations.md adds up what each owner used in a month', async (t) => {
    const page = readFileSync(new URL('../../../docs/operations.md', import.meta.url), 'utf8')
    const [, statement = ''] = /```\n(select owner[^`]+);\n```/.exec(page) ?? []
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    const spent = { input_tokens: 100, output_tokens: 20, reasoning_tokens: 5, cached_tokens: 60 }
    const ended = (ended_at: string, index: number, more: Partial<Step> = {}) =>
      store.turns.commit(fence, { turn_id: turn.id, step: step(index, { usage: spent, ended_at, ...more }) })
    await ended('2026-10-31T23:59:59.999Z', 0)
    await ended('2026-11-01T00:00:00.000Z', 1)
    await ended('2026-11-30T23:59:59.999Z', 2, { discarded: true })
    await ended('2026-12-01T00:00:00.000Z', 3)
    const used = await raw.query<{ owner: string }>(statement)
    const { provider, model } = step(0)
    t.strictSame(
      used.filter((row) => row.owner === scope.owner),
      [{ owner: scope.owner, provider, model, input: '200', cached: '120', output: '40', reasoning: '10' }],
    )
  })

  await t.test('the migrations', async (t) => {
    const own = await newDatabase(t, SERVERS.DATABASE_URL)
    const open = async (t: Test) => {
      const db = openPostgres(own, 2)
      t.teardown(() => db.close())
      return db
    }
    await migrationContract(t, open)
    await heldTableTest(t, open)
  })

  await t.test('the port', (t) => databaseContract(t, raw))
  await t.test('connections', (t) => connectionTests(t, databaseUrl))
})

/** Seals everything, and remembers each part that is opened in another session than it was sealed in. */
function wrapping(): PartsCodec & { strangers: string[] } {
  const strangers: string[] = []
  return {
    strangers,
    seal: (parts, context) =>
      parts.map((part) => ({ context, sealed: Buffer.from(JSON.stringify(part)).toString('base64') })),
    open: (stored, context) =>
      (stored as { context: string; sealed: string }[]).map(({ context: sealedIn, sealed }) => {
        if (sealedIn !== context) strangers.push(`${sealedIn} opened in ${context}`)
        return JSON.parse(Buffer.from(sealed, 'base64').toString()) as Part
      }),
  }
}

async function connectionTests(t: Test, databaseUrl: string): Promise<void> {
  const isUnavailable = (thrown: unknown) =>
    thrown instanceof BatonError && thrown.code === 'unavailable' && (thrown.retryAfter ?? 0) > 0
  const admin = openPostgres(databaseUrl, 1)
  t.teardown(() => admin.close())

  await t.test('a lost connection is told as unavailable, and the next connection works', async (t) => {
    const db = openPostgres(databaseUrl, 2)
    t.teardown(() => db.close())
    const backend = () => value<number>(db, 'select pg_backend_pid()')
    const idle = await backend()
    await admin.query('select pg_terminate_backend($1)', [idle])
    t.not(await afterLoss(backend), idle, 'a lost idle connection is replaced')
    const lost = await rejection(
      db.transaction(async (queries) => {
        const pid = await value<number>(queries, 'select pg_backend_pid()')
        await admin.query('select pg_terminate_backend($1)', [pid])
        return queries.query('select 1')
      }),
    )
    t.ok(isUnavailable(lost), 'a connection is lost in the middle of a transaction')
    t.type(await backend(), 'number')
  })

  await t.test('a full pool and a server that hangs are told as unavailable in time', async (t) => {
    const db = openPostgres(databaseUrl, 1, { connectMs: 1_000, answerMs: 1_500 })
    t.teardown(() => db.close())
    await db.transaction(async () => {
      t.ok(isUnavailable(await rejection(db.query('select 1'))), 'no connection came free')
    })
    t.ok(isUnavailable(await rejection(db.query('select pg_sleep(60)'))), 'no answer came')
    t.equal(await value(db, 'select 1'), 1)
  })

  await t.test('where a server has fewer connections than the pool, callers wait for those', async (t) => {
    const own = new URL(await newDatabase(t, databaseUrl))
    const name = own.pathname.slice(1)
    await admin.query(`create role ${name} login connection limit 2 password 'secret'`)
    t.teardown(() => admin.query(`drop role ${name}`))
    own.username = name
    own.password = 'secret'
    const db = openPostgres(own.href, 8)
    t.teardown(() => db.close())
    await db.query('select 1')
    const answers = await Promise.allSettled(Array.from({ length: 24 }, () => db.query('select 1')))
    t.strictSame([...new Set(answers.map(({ status }) => status))], ['fulfilled'])
  })

  await t.test('a server that falls silent in a transaction is waited for once', async (t) => {
    const own = new URL(databaseUrl)
    const { hostname, port } = own
    const lines: Socket[] = []
    const between = createServer((near) => {
      const far = connect(Number(port || 5432), hostname)
      near.pipe(far).pipe(near)
      lines.push(far)
      near.on('close', () => far.destroy())
    })
    own.host = `127.0.0.1:${await listening(t, between)}`
    const db = openPostgres(own.href, 1, { connectMs: 2_000, answerMs: 100 })
    t.teardown(() => db.close())
    let silentAt = 0
    const lost = db.transaction((queries) => {
      silentAt = performance.now()
      for (const line of lines) line.unpipe()
      return queries.query('select 1')
    })
    t.ok(isUnavailable(await rejection(lost)))
    // The time for an answer and two seconds of grace; the rollback would take as much again.
    t.ok(performance.now() - silentAt < 3_500)
  })

  await t.test('a statement that is given up waits at the server no more and writes nothing', async (t) => {
    const own = await newDatabase(t, databaseUrl)
    const [holder, db] = [openPostgres(own, 1), openPostgres(own, 2, { connectMs: 2_000, answerMs: 300 })]
    t.teardown(() => Promise.all([holder.close(), db.close()]))
    await holder.query('create table one (n int)')
    await holder.query('insert into one values (0)')
    const add = () => db.query('update one set n = n + 1')
    await holder.transaction(async (queries) => {
      await queries.query('update one set n = 0')
      for (let i = 0; i < 3; i++)
        for (const refused of await Promise.all([add(), add()].map(rejection))) t.ok(isUnavailable(refused))
      const waiting = `select count(*)::int from pg_stat_activity where datname = $1 and wait_event_type = 'Lock'`
      t.equal(await value(admin, waiting, [new URL(own).pathname.slice(1)]), 0)
    })
    await sleep(100)
    t.equal(await value(holder, 'select n from one'), 0)
  })

  await t.test('a migration may take longer than a statement', async (t) => {
    const db = openPostgres(await newDatabase(t, databaseUrl), 1, { connectMs: 2_000, answerMs: 100 })
    t.teardown(() => db.close())
    const long = { name: '0001_long.sql', sha256: 'x', sql: 'select pg_sleep(0.4)' }
    t.same(await migrate(db, [long]), ['0001_long.sql'])
  })

  await t.test(
    'a replica that hangs in a transaction holds its locks no longer than a statement',
    async (t) => {
      const own = await newDatabase(t, databaseUrl)
      const [hung, db] = [openPostgres(own, 1, { connectMs: 2_000, answerMs: 300 }), openPostgres(own, 1)]
      t.teardown(() => Promise.all([hung.close(), db.close()]))
      await db.query('create table one (n int)')
      await db.query('insert into one values (0)')
      const lost = hung.transaction(async (queries) => {
        await queries.query('update one set n = 7')
        await db.query('update one set n = n + 1')
        return queries.query('select 1')
      })
      t.ok(isUnavailable(await rejection(lost)))
      t.equal(await value(db, 'select n from one'), 1)
    },
  )

  await t.test('a server whose defaults are stricter serves all the same', async (t) => {
    const own = await newDatabase(t, databaseUrl)
    const name = new URL(own).pathname.slice(1)
    for (const [setting, value] of [
      ['default_transaction_isolation', 'serializable'],
      ['lock_timeout', '1000'],
      ['statement_timeout', '100'],
    ])
      await admin.query(`alter database ${name} set ${setting} = '${value}'`)
    const db = openPostgres(own, 2)
    t.teardown(() => db.close())
    t.equal(await value(db, `select current_setting('jit')`), 'off', 'no statement waits to be compiled')
    await db.query('create table one (n int)')
    await db.query('insert into one values (0)')
    const add = (queries: Pick<Db, 'query'>) => queries.query('update one set n = n + 1')
    let waiting: Promise<unknown> | undefined
    await db.transaction(async (queries) => {
      await add(queries)
      t.ok(
        isUnavailable(await rejection(add(db))),
        'a statement that hits the lock_timeout is told as unavailable',
      )
      waiting = add(db)
      await sleep(300)
    })
    await waiting
    t.equal(await value(db, 'select n from one'), 2)
  })

  await t.test('a server that does not fit is refused, and the words say what it lacks', async (t) => {
    const own = await newDatabase(t, databaseUrl)
    const nowhere = `${own}?options=-c%20search_path%3Dnowhere`
    const thrown = await rejection(openStore({ databaseUrl: nowhere, dataDir: '', poolSize: 1 }))
    t.match(
      inFull(thrown),
      /^PostgreSQL at .* no schema has been selected .* needs USAGE and CREATE on one schema/,
    )
    for (const [settings, words] of [
      [['UTF8', '12.22 (Debian)'], 'The server is PostgreSQL 12.22 (Debian); Baton needs 13 or later.'],
      [['SQL_ASCII', '18beta1'], "The database's encoding is SQL_ASCII; Baton needs one with encoding UTF8."],
    ] as const) {
      const query: Db['query'] = async <Row>() => settings.map((value) => ({ value })) as Row[]
      t.match(await rejection(migrate({ ...admin, query }, [])), { code: 'internal', message: words })
    }
  })

  await t.test('a server that is not there is told as unavailable', async (t) => {
    const nowhere = openStore({ databaseUrl: 'postgresql://127.0.0.1:1/none', dataDir: '', poolSize: 1 })
    t.ok(isUnavailable(await rejection(nowhere)))
  })
}

/** The pool may hand out the connection once more before it has seen it die. */
async function afterLoss<T>(work: () => Promise<T>): Promise<T> {
  return work().catch(work)
}

/** A table is held as a backup holds one, for an hour. */
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
        t.equal(await Promise.race([read(), sleep(20_000, 'nothing', { ref: false })]), 'read')
        const thrown = await Promise.race([migrating, sleep(20_000, undefined, { ref: false })])
        t.match(thrown, { code: 'internal', message: /something holds a table/ })
      })
      t.strictSame(await migrate(db, all), [more.name])
    },
  )
}
