/** What the store does on any database, beside its contract (test/contracts/store.ts). */
import { mock } from 'node:test'
import t from 'tap'
import type { Part } from '../../src/chat/message.ts'
import { createLog } from '../../src/log.ts'
import { type Db, unavailable } from '../../src/store/db.ts'
import { createExecutions } from '../../src/store/executions.ts'
import { createMessages } from '../../src/store/messages.ts'
import { createParts, PLAIN_PARTS } from '../../src/store/parts.ts'
import { createRegistry } from '../../src/store/registry.ts'
import {
  connector,
  endTurn,
  message,
  newSession,
  openRequest,
  owner,
  rejection,
  text,
} from '../contracts/store-rows.ts'
import { tool } from '../tools/declared-tool.ts'
import { holdLoop, passesOf } from '../waiting.ts'
import { freshDatabase, storeOn } from './fresh.ts'

const db = await freshDatabase(t)

t.test('rows of many sessions and messages are made ready while others have the event loop', async (t) => {
  let written = 0
  const slow = () => {
    holdLoop(6)
    written++
    return 1
  }
  const passing = async (write: () => Promise<unknown>) => {
    written = 0
    t.ok((await passesOf(write)) > 1)
    t.equal(written, 10)
  }
  const away = { ...db, query: async () => [] }
  const seal: typeof PLAIN_PARTS.seal = (parts) => {
    slow()
    return parts
  }
  const messages = createMessages(away, createParts({ ...PLAIN_PARTS, seal }))
  const given = Array.from({ length: 10 }, () => message('hello'))
  await passing(() => messages.append(owner(), 'ses_1', given))
  // What JSON asks while a whole row is written
  const expected = { toJSON: slow } as unknown as number
  const changes = given.map(({ id }) => ({ session_id: id, expected, tools: [tool()] }))
  await passing(() => createRegistry(away).put(changes))
})

t.test(
  'a history is read before its session is locked, and only its changes are read under the lock',
  async (t) => {
    const plain = await storeOn(db)
    let meanwhile = async (): Promise<unknown> => null
    const locked: string[] = []
    const watched: Db = {
      ...db,
      query: async <Row>(...asked: Parameters<Db['query']>) => {
        const rows = await db.query<Row>(...asked)
        if (asked[0].includes('history(')) await meanwhile()
        return rows
      },
      transaction: (work) =>
        db.transaction((queries) => {
          const query = async <Row>(...asked: Parameters<Db['query']>) => {
            const rows = await queries.query<Row>(...asked)
            locked.push(JSON.stringify(rows))
            return rows
          }
          return work({ ...queries, query })
        }),
    }
    const store = await storeOn(watched)
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const before = message('before')
    await plain.messages.append(scope, session, [before])
    const opens = async (session: string) => {
      const seen: unknown[] = []
      const opened = await store.turns.open(scope, openRequest(session), (history) => {
        seen.push(history.map(({ parts }) => parts))
      })
      return { seen, opened }
    }

    meanwhile = () => plain.messages.append(scope, session, [message('between')])
    const added = await opens(session)
    t.strictSame(added.seen, [[text('before'), text('between')]])
    t.match(added.opened, { kind: 'running', turn: { base_seq: 2 } })
    if (added.opened?.kind === 'running') {
      const { history } = added.opened.start ?? {}
      t.strictSame(history, await plain.messages.after(session, 0))
    }
    t.equal(locked.filter((rows) => rows.includes('between')).length, 1)
    t.notMatch(locked.join(), /before/, "a long history would keep the lock from the owner's heartbeat")

    const { id: rewritten } = await newSession(store, scope)
    const first = message('first')
    await plain.messages.append(scope, rewritten, [first])
    let isOnce = true
    meanwhile = async () => {
      if (isOnce)
        await plain.messages.replace(scope, rewritten, first.id, { role: 'user', parts: text('other') })
      isOnce = false
    }
    t.match(await opens(rewritten), { seen: [[text('other')]], opened: { kind: 'running' } })
  },
)

t.test(
  'results that are deleted with their calls are read one message at a time, and only where some stay',
  async (t) => {
    let read: number[] = []
    const store = await storeOn({
      ...db,
      transaction: (work) =>
        db.transaction((queries) => {
          const query = async <Row>(...asked: Parameters<Db['query']>) => {
            const rows = await queries.query<Row>(...asked)
            read.push(JSON.stringify(rows).length)
            return rows
          }
          return work({ ...queries, query })
        }),
    })
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const calls = ['call_1', 'call_2', 'call_3'].map(
      (call_id): Part => ({ type: 'tool_call', call_id, name: 'x.y', arguments: {} }),
    )
    const resultOf = (call_id: string): Part => ({
      type: 'tool_result',
      call_id,
      name: 'x.y',
      content: [{ type: 'text', text: 'x'.repeat(10_000) }],
      is_error: false,
      outcome: 'ok',
    })
    const asks = message('', { role: 'assistant', parts: calls })
    const answers = [['call_1'], ['call_2', 'call_0'], ['call_3', 'call_0']].map((ids) =>
      message('', { role: 'tool', parts: ids.map(resultOf) }),
    )
    await store.messages.append(scope, session, [asks, ...answers])
    read = []
    t.strictSame(await store.messages.delete(scope, session, asks.id), [asks.id, answers[0]?.id])
    const large = read.filter((length) => length > 2000)
    t.equal(large.length, 2)
    for (const length of large) t.ok(length < 25_000, `${length}`)
  },
)

t.test('a connector that many sessions bind is read once for all of them', async (t) => {
  let read = 0
  const store = await storeOn({
    ...db,
    query: async <Row>(...asked: Parameters<Db['query']>) => {
      const rows = await db.query<Row>(...asked)
      read += JSON.stringify(rows).length
      return rows
    },
  })
  const scope = owner()
  const given = connector(scope, 'wide', { args: ['x'.repeat(20_000)] })
  await store.connectors.create(given)
  const known = []
  for (let i = 0; i < 5; i++) {
    const { id } = await newSession(store, scope)
    await store.connectors.bind(id, given.id, `alias-${i}`)
    known.push({ session_id: id, revision: -1 })
  }
  read = 0
  const { sessions } = await store.registry.grounds(known)
  const bound = await store.connectors.bindings(known[0]?.session_id ?? '')
  t.strictSame(sessions[0]?.bindings, bound)
  t.strictSame(
    sessions.map(({ bindings }) => bindings.map(({ alias, connector: { args } }) => [alias, args])),
    known.map((_, i) => [[`alias-${i}`, given.args]]),
  )
  t.ok(read < 60_000, `${read}`)
})

t.test('an idempotency key is good for 24 hours', async (t) => {
  const store = await storeOn(db)
  const scope = owner()
  const { id: session } = await newSession(store, scope)
  const open = async () => {
    const opened = await store.turns.open(scope, openRequest(session, { turn: { idempotency_key: 'key' } }))
    if (opened?.kind === 'running') await endTurn(store, opened.fence, opened.turn.id)
    return opened?.kind
  }
  const age = (by: string) => db.query('update turn set created_at = created_at - $1::interval', [by])
  t.equal(await open(), 'running')
  await age('23 hours 50 minutes')
  t.equal(await open(), 'replayed')
  t.ok(await store.turns.ofKey(session, 'key'))
  await age('10 minutes')
  t.equal(await store.turns.ofKey(session, 'key'), null)
  t.equal(await open(), 'running')
})

t.test('a ledger is pruned some rows at a time, until none is left', async (t) => {
  const gone = [5000, 3, 0]
  const db = { query: async () => [{ count: gone.shift() }] } as unknown as Db
  const executions = createExecutions(db, createParts(PLAIN_PARTS))
  t.equal(await executions.prune(60), 5003)
  t.same(gone, [])
})

t.test('the log has one line for a database that goes away, however many calls need it', async (t) => {
  const lines: unknown[] = []
  const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  let isAway = false
  const cut: Db = {
    ...db,
    query: (text, params) => (isAway ? Promise.reject(unavailable('cut off')) : db.query(text, params)),
  }
  const store = await storeOn(cut, { log })
  isAway = true
  for (let i = 0; i < 3; i++) t.match(await rejection(store.ready()), { code: 'unavailable' })
  t.match(lines, [{ level: 40, msg: 'the embedded database is away', reason: /cut off/ }])
  t.equal(lines.length, 1)
  isAway = false
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  await store.ready()
  mock.timers.tick(5_000)
  t.match(lines[1], { level: 30, msg: 'the embedded database is back' })
  await store.close()
  await rejection(store.ready())
  t.equal(lines.length, 2, 'a store that is closed is not away')
})
