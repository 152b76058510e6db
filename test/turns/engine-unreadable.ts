/** Turns that cannot be read because their encryption key is missing. */
import t from 'tap'
import type { Part, TextPart, ToolCallPart } from '../../src/chat/message.ts'
import { createLog } from '../../src/log.ts'
import type { PartsCodec } from '../../src/store/parts.ts'
import type { Store } from '../../src/store/store.ts'
import { createMetrics } from '../../src/telemetry.ts'
import { sayCreated } from '../../src/turns/events.ts'
import { resultOf, settlement } from '../contracts/store-ledger.ts'
import {
  COMPLETED,
  execution,
  LAPSED,
  message,
  newSession,
  openRequest,
  runningTurn,
  startTurn,
  step,
  text,
} from '../contracts/store-rows.ts'
import { storeOn } from '../store/fresh.ts'
import { eventually } from '../waiting.ts'
import { asked, CALLER, database, follow, NEVER, toolsThat, world } from './engines.ts'

/** A store that loses its key while `isLost`: parts with the word `broken` cannot be opened then. */
async function keyedStore() {
  /** `unread`: how often a part could not be opened; `scans`: how often a replica looked at `scanned` for work */
  const state = { isLost: false, unread: 0, scans: 0 }
  const open: PartsCodec['open'] = (stored, _, lost) => {
    return (stored as Part[]).map((part) => {
      if (!state.isLost || !JSON.stringify(part).includes('broken')) return part
      state.unread++
      const cause = new Error('it cannot be opened')
      if (lost) return lost(cause)
      throw cause
    })
  }
  const codec = { seal: (parts: Part[]) => parts, open }
  const own = await storeOn(database, { codec })
  const unannounced: Store['turns']['unannounced'] = (...given) => {
    state.scans++
    return own.turns.unannounced(...given)
  }
  return { own, scanned: { ...own, turns: { ...own.turns, unannounced } }, state }
}

t.test('turns that cannot be read hold up no other turn, and go on once their key is back', async (t) => {
  const { own, scanned, state: key } = await keyedStore()
  const scope = { owner: 'local', admin: false }
  const said = async (words: string, rest: Parameters<typeof openRequest>[1]) => {
    const { id } = await newSession(own, scope)
    const opened = await startTurn(own, scope, openRequest(id, { ...rest, turn: { input: text(words) } }))
    return { id, ...opened }
  }
  const ended = async (words: string) => {
    const { id, turn, fence } = await said(words, {})
    // `at` has the words: an event of this type has no other field by which `open` could know it.
    const cancelled = {
      type: 'turn.cancelled' as const,
      session_id: id,
      turn_id: turn.id,
      step: null,
      at: words,
    }
    const end = { state: 'cancelled' as const }
    const deleted = { ...message(''), session_id: id, seq: 0, turn_id: turn.id, created_at: '' }
    const announce = [
      {
        key: `${turn.id}:${deleted.id}`,
        event: { ...cancelled, type: 'message' as const, message: deleted },
      },
      { key: `${turn.id}:end`, event: cancelled },
    ]
    await own.turns.commit(fence, { turn_id: turn.id, end, announce })
    return { id, turn }
  }
  const waiting = async (words: string) => {
    const { id, turn, fence } = await said('first', {})
    const queued = openRequest(id, { on_busy: 'enqueue', turn: { input: text(words) } })
    await own.turns.open(scope, queued)
    await own.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
    return queued.turn
  }
  const leave = async (words: string) => ({
    lost: await said(words, { lease: LAPSED }),
    queued: await waiting(words),
    silent: await ended(words),
  })
  const broken = [await leave('broken')]
  // As many as one scan takes, so that they fill it.
  const silenced = await Promise.all(Array.from({ length: 20 }, () => ended('broken')))
  const { lost, queued, silent } = await leave('whole')
  // One more after the readable ones: in either order an unreadable turn comes before them.
  broken.push(await leave('broken'))
  key.isLost = true
  const { bus, say, replica } = world(t, { leaseSeconds: 1.5 })
  say()
  const lines: { level: number; turn_id?: string; reason?: string }[] = []
  const log = createLog('warn', { write: (line) => void lines.push(JSON.parse(line)) })
  await sayCreated({ bus, log }, silent.turn)
  const first = createMetrics({ defaults: false })
  replica({ store: scanned, log, metrics: first })
  const state = async (id: string) => (await own.turns.get(scope, id))?.state
  await eventually(async () => (await state(lost.turn.id)) === 'completed')
  await eventually(async () => (await state(queued.id)) === 'completed')
  const types = follow(t, bus, silent.id, silent.turn.id)
  await eventually(() => types.includes('turn.cancelled'))
  t.notOk(types.includes('message'), 'no event is sent for a message that is gone')
  const [tried, seen] = [key.unread, key.scans]
  const [stuck, waits] = [broken.map((one) => one.lost.turn.id), broken.map((one) => one.queued.id)]
  const unsaid = [...silenced, ...broken.map((one) => one.silent)].map(({ turn }) => turn.id)
  await eventually(() => key.scans > seen + 1)
  t.equal(key.unread, tried, 'turns that cannot be read are not tried again')
  const told = lines.filter(({ level }) => level === 50)
  t.same(
    told.map(({ turn_id }) => turn_id).sort(),
    [...stuck, ...waits, ...unsaid].sort(),
    'the log names each turn once',
  )
  for (const { reason } of told) t.match(reason, /it cannot be opened$/)
  t.match(await first.text(), 'baton_turns_recovered_total{reason="lost"} 1\n')

  key.isLost = false
  const second = createMetrics({ defaults: false })
  replica({ store: own, metrics: second })
  for (const id of [...stuck, ...waits]) await eventually(async () => (await state(id)) === 'completed')
  const recoveries = await Promise.all(stuck.map(async (id) => (await own.turns.get(scope, id))?.recoveries))
  t.same(recoveries, [1, 1], 'each turn counts as lost once, however often it was tried')
  t.match(await second.text(), 'baton_turns_recovered_total{reason="handed_over"} 4\n')
})

t.test('with an unreadable conversation a lost turn waits for its key, and a new turn fails', async (t) => {
  const { own, scanned, state: key } = await keyedStore()
  const broken = async () => {
    const { id } = await newSession(own, CALLER)
    await own.messages.append(CALLER, id, [message('broken')])
    return id
  }
  const lost = async (id: string) => {
    const opened = await startTurn(own, CALLER, openRequest(id, { lease: LAPSED }))
    return opened
  }
  const lostWithin = async () => {
    const opened = await lost((await newSession(own, CALLER)).id)
    const turn_id = opened.turn.id
    const messages = [message('broken', { turn_id, role: 'assistant' })]
    await own.turns.commit(opened.fence, { turn_id, messages })
    return opened
  }
  const before = await lost(await broken())
  const within = await lostWithin()
  const turn_id = within.turn.id
  const given = [await lost(await broken()), await lostWithin()].map(({ turn }) => turn)
  const fresh = await broken()
  key.isLost = true
  const { bus, say, replica } = world(t, { leaseSeconds: 1.5 })
  say()
  const lines: { level: number; msg: string; turn_id?: string; reason?: string }[] = []
  const log = createLog('error', { write: (line) => void lines.push(JSON.parse(line)) })
  const one = replica({ store: scanned, log })
  const left = [before.turn.id, turn_id]
  const all = [...left, ...given.map(({ id }) => id)]
  await eventually(() => lines.length >= all.length)
  const seen = key.scans
  await eventually(() => key.scans > seen + 3)
  t.same(lines.map((line) => line.turn_id).sort(), all.sort(), 'the log names each turn once')
  for (const line of lines)
    t.match(line, { msg: /waits for its encryption key/, reason: 'it cannot be opened' })
  for (const { id, session_id } of given) {
    t.match(await one.cancel(CALLER, id, NEVER), { state: 'cancelled' }, 'a cancel needs no key')
    t.equal(await own.sessions.delete(CALLER, session_id), 'deleted')
  }
  const { turn } = await one.start(CALLER, fresh, asked())
  const failed = await one.wait(CALLER, turn.id, 30, NEVER)
  t.match(failed, { state: 'failed', error: { code: 'internal', message: 'it cannot be opened' } })

  const types = follow(t, bus, within.fence.session_id, turn_id)
  key.isLost = false
  replica({ store: own })
  const state = async (id: string) => (await own.turns.get(CALLER, id))?.state
  for (const id of left) await eventually(async () => (await state(id)) === 'completed')
  await eventually(() => types.includes('turn.completed'))
  t.ok(types.includes('step.discarded'), 'what the lost owner streamed is taken back')
})

t.test('a call result that cannot be read hinders neither decisions nor cancels of its turn', async (t) => {
  const { own, state: key } = await keyedStore()
  /** A turn whose first call has a result that cannot be opened. Its second call waits for a person's decision. */
  const asking = async ({ words = 'whole', waits = true } = {}) => {
    const { session, turn, fence } = await runningTurn(own, CALLER)
    const call = (name: string): ToolCallPart => {
      return { type: 'tool_call', call_id: `call_${name}`, name, arguments: {} }
    }
    const row = (tool: string) => execution(turn.id, { call_id: `call_${tool}`, tool, connector: null })
    const ran = row('a.b')
    await own.turns.commit(fence, {
      turn_id: turn.id,
      messages: [
        message('', {
          turn_id: turn.id,
          role: 'assistant',
          parts: [...text(words), call('a.b'), call('a.c')],
        }),
      ],
      step: step(0, { finish_reason: 'tool_calls' }),
      executions: [ran, { ...row('a.c'), state: 'awaiting_approval', lapses_in: 600 }],
    })
    const result = { ...resultOf(ran.call_id), content: text('broken') as TextPart[] }
    await own.executions.settle(fence, settlement(ran, { result }))
    if (waits) await own.turns.commit(fence, { turn_id: turn.id, state: 'awaiting_input' })
    return { session, id: turn.id }
  }
  const [changed, decided, running] = [await asking(), await asking(), await asking({ waits: false })]
  const cancelled = [await asking(), await asking({ words: 'broken' })]
  key.isLost = true
  const { replica } = world(t)
  const one = replica({ ...toolsThat(() => null), store: own })
  const ledger = async (turn_id: string) =>
    (await own.executions.list(CALLER, { turn_id }, { limit: 10 })).data

  const move = { tools_revision: 1, removed: ['a.c'], isMoved: true }
  const effect = await one.takeEffect(changed.session, move, 'now')
  t.match(effect, { effective: { turn_id: changed.id, from: 'next_step' } })
  t.match(await ledger(changed.id), [{ approval: { decision: 'expired' } }, { approval: null }])
  await t.rejects(one.answer(CALLER, decided.id, 'call_a.c'), { code: 'not_awaiting' })
  await one.decide(CALLER, decided.id, 'call_a.c', { decision: 'approve' })
  t.match(await ledger(decided.id), [{ approval: { decision: 'approve' } }, { approval: null }])
  await t.rejects(one.restart(CALLER, running.id), { code: 'not_restartable' })

  for (const { id, session } of cancelled) {
    t.match(await one.cancel(CALLER, id, NEVER), { state: 'cancelled' })
    t.match((await own.messages.after(session.id, 0, 'told')).at(-1)?.parts, [
      { call_id: 'call_a.b', outcome: 'ok', content: [{ text: /cannot be read any more/ }] },
      { call_id: 'call_a.c', outcome: 'cancelled' },
    ])
    t.match(await ledger(id), [{ outcome: 'cancelled' }, { outcome: 'ok' }])
  }
})

t.test('a cancelled turn ends without the key to its own input, whether it ran or waited', async (t) => {
  const { own, scanned, state: key } = await keyedStore()
  const begin = async (rest: Parameters<typeof openRequest>[1]) => {
    const { id } = await newSession(own, CALLER)
    return startTurn(own, CALLER, openRequest(id, { ...rest, turn: { input: text('broken') } }))
  }
  const { turn: lost } = await begin({ lease: LAPSED })
  const { turn: waiting, fence } = await begin({})
  const { id: turn_id, session_id } = waiting
  const asks = { type: 'turn.awaiting_input' as const, session_id, turn_id, step: 0, at: 'broken' }
  const announce = [{ key: `${turn_id}:awaiting:0`, event: asks }]
  await own.turns.commit(fence, { turn_id, state: 'awaiting_input', announce })
  key.isLost = true
  const { replica } = world(t, { leaseSeconds: 1.5 })
  const one = replica({ store: scanned, log: createLog('silent') })
  await eventually(() => key.scans > 1)
  for (const { id, session_id } of [lost, waiting]) {
    t.match(await one.cancel(CALLER, id, NEVER), { state: 'cancelled' })
    t.equal(await own.sessions.delete(CALLER, session_id), 'deleted')
  }
})
