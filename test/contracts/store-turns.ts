/** How turns open, wait for one another, and are listed. */
import type { Test } from 'tap'
import type { Message } from '../../src/chat/message.ts'
import type { Store } from '../../src/store/store.ts'
import { NONE } from '../patterns.ts'
import {
  ADMIN,
  allPages,
  announced,
  COMPLETED,
  endTurn,
  id,
  LEASE,
  message,
  newSession,
  openRequest,
  owner,
  runningTurn,
  STRANGER,
  startTurn,
  text,
  unsaidOf,
} from './store-rows.ts'

export async function turnContract(t: Test, store: Store): Promise<void> {
  await t.test('turns are opened', (t) => openingContract(t, store))
  await t.test('turns are queued', (t) => queueContract(t, store))
}

async function openingContract(t: Test, store: Store): Promise<void> {
  await t.test('opening a turn puts its input into the history and takes the lease', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    await store.messages.append(scope, session, [message('before')])
    const context = [
      {
        op: 'insert_before' as const,
        index: 0,
        message: { role: 'system' as const, parts: text('\0 hint') },
      },
      { op: 'delete_at' as const, index: -1 },
    ]
    const request = openRequest(session, {
      turn: { input: text('Hi \ud800'), context, provider: 'p', model: 'm' },
    })
    const ground = await store.turns.ground(scope, session, 'p')
    const opened = await startTurn(store, scope, request)
    const { body_hash, ...given } = request.turn
    t.match(opened.turn, {
      ...given,
      owner: scope.owner,
      state: 'running',
      attempt: 1,
      restarts: 0,
      recoveries: 0,
      steps: NONE,
      base_seq: 1,
      cancel_requested: false,
      finish_reason: null,
      error: null,
      ended_at: null,
      created_at: /Z$/,
      started_at: /Z$/,
    })
    t.notOk('body_hash' in opened.turn, 'the hash is not given out')
    t.strictSame(opened.fence, { session_id: session, owner: LEASE.owner, epoch: 1 })
    t.strictSame(
      opened.start,
      {
        ...ground,
        history: await store.messages.after(session, 0),
        rewrites: 0,
        registry: await store.registry.get(session),
        bindings: [],
        bound: '',
      },
      'the turn comes with what its first step needs',
    )
    t.match(opened.start?.history.at(-1), {
      seq: 2,
      turn_id: given.id,
      role: 'user',
      parts: given.input,
    })
    t.strictSame(await store.turns.get(scope, given.id), opened.turn)
    const { id, session_id, state, started_at, ended_at, steps } = opened.turn
    t.strictSame(await store.turns.standing(scope, given.id), {
      id,
      session_id,
      state,
      started_at,
      ended_at,
      steps,
    })
    t.equal((await store.sessions.get(scope, session))?.active_turn_id, given.id)
  })

  await t.test('the history that a check sees is the history on which the turn is accepted', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const [before] = (await store.messages.append(scope, session, [message('before')])) as Message[]
    const refusal = new Error('does not fit')
    const refuses = () => {
      throw refusal
    }
    await t.rejects(store.turns.open(scope, openRequest(session), refuses), refusal)
    t.match(
      await store.sessions.get(scope, session),
      { active_turn_id: null },
      'a refused turn does not exist',
    )
    t.equal(await store.turns.open(STRANGER, openRequest(session), refuses), null)

    const seen: Message[][] = []
    let between: Promise<unknown> = Promise.resolve()
    const opened = await store.turns.open(scope, openRequest(session), (history) => {
      seen.push(history)
      between = store.messages.append(scope, session, [message('between')])
    })
    t.strictSame(seen, [[before]])
    t.match(opened, { kind: 'running', turn: { base_seq: 1 } })
    t.equal(await between, 'busy', 'a message cannot come between check and acceptance')
  })
  await t.test('a registry that the caller knows is not sent again', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const { revision } = await store.registry.get(session)
    const opened = await store.turns.open(scope, { ...openRequest(session), known_revision: revision })
    t.match(opened, { kind: 'running', start: { registry: null } })
  })

  await t.test('a known history is sent only from its end on, until a message is rewritten', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const stored = await store.messages.append(scope, session, [message('a'), message('b'), message('c')])
    if (!Array.isArray(stored)) return t.fail('the messages were not appended')
    const [a, b] = stored
    const seen = async (known_history: { rewrites: number; seq: number }, fits?: () => void) => {
      const opened = await store.turns.open(scope, { ...openRequest(session), known_history }, fits)
      if (opened?.kind !== 'running') throw new Error(`the turn was not opened: ${opened?.kind}`)
      await endTurn(store, opened.fence, opened.turn.id)
      return { seqs: opened.start?.history.map(({ seq }) => seq), rewrites: opened.start?.rewrites }
    }
    t.strictSame(await seen({ rewrites: 0, seq: 2 }), { seqs: [3, 4], rewrites: 0 })
    await store.messages.replace(scope, session, a?.id ?? '', { role: 'user', parts: text('A') })
    t.strictSame(await seen({ rewrites: 0, seq: 4 }), { seqs: [1, 2, 3, 4, 5], rewrites: 1 })
    await store.messages.delete(scope, session, b?.id ?? '')
    t.strictSame(await seen({ rewrites: 1, seq: 5 }), { seqs: [1, 3, 4, 5, 6], rewrites: 2 })
    t.strictSame(await seen({ rewrites: 2, seq: 6 }), { seqs: [7], rewrites: 2 })
    const checked = (rewrites: number) => seen({ rewrites, seq: 6 }, () => {})
    t.strictSame(await checked(2), { seqs: [7, 8], rewrites: 2 }, 'also of a history that is checked')
    t.strictSame(await checked(1), { seqs: [1, 3, 4, 5, 6, 7, 8, 9], rewrites: 2 })
  })

  await t.test('only the owner and admins can open, read, list and cancel a session’s turns', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    t.equal(await store.turns.open(STRANGER, openRequest(session.id)), null)
    t.equal(await store.turns.ground(STRANGER, session.id, null), null)
    t.match(await store.turns.ground(ADMIN, session.id, null), { session: { id: session.id } })
    t.equal(await store.turns.open(scope, openRequest('ses_none')), null)
    t.equal(await store.turns.get(STRANGER, turn.id), null)
    t.equal(await store.turns.standing(STRANGER, turn.id), null)
    t.equal(await store.turns.list(STRANGER, session.id, { limit: 5 }), null)
    t.equal(await store.turns.requestCancel(STRANGER, turn.id), null)
    t.equal(await store.turns.requestCancel(scope, 'turn_none'), null)
    t.equal((await store.turns.get(ADMIN, turn.id))?.cancel_requested, false)
    t.equal((await store.turns.open(ADMIN, openRequest(session.id)))?.kind, 'busy')
    t.equal((await store.turns.list(ADMIN, session.id, { limit: 5 }))?.data.length, 1)
    t.equal(await store.turns.requestCancel(ADMIN, turn.id), fence.epoch)
    t.equal((await store.turns.get(scope, turn.id))?.cancel_requested, true)
  })

  await t.test('of twenty turns that open at once one runs, and the others are told which', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const opened = await Promise.all(
      Array.from({ length: 20 }, () => store.turns.open(scope, openRequest(session))),
    )
    const running = opened.flatMap((one) => (one?.kind === 'running' ? [one.turn.id] : []))
    t.equal(running.length, 1)
    const busy = opened.flatMap((one) => (one?.kind === 'busy' ? [one.active_turn_id] : []))
    t.strictSame([busy.length, new Set(busy)], [19, new Set(running)])
    t.equal((await store.messages.after(session, 0)).length, 1, 'refused turns leave no message')
  })

  await t.test('the same idempotency key gives the same turn, also at once, and after its end', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const request = () => openRequest(session, { turn: { idempotency_key: 'key-1' } })
    const opened = await Promise.all(Array.from({ length: 10 }, () => store.turns.open(scope, request())))
    const kinds = opened.map((one) => one?.kind).sort()
    t.strictSame(kinds, [...Array.from({ length: 9 }, () => 'replayed'), 'running'])
    t.equal(new Set(opened.map((one) => one && 'turn' in one && one.turn.id)).size, 1)
    const other = openRequest(session, { turn: { idempotency_key: 'key-1', body_hash: 'other' } })
    t.strictSame(await store.turns.open(scope, other), { kind: 'mismatch' })
    for (const one of opened) if (one?.kind === 'running') await endTurn(store, one.fence, one.turn.id)
    const again = await store.turns.open(scope, request())
    t.match(again, { kind: 'replayed', turn: { state: 'completed', finish_reason: 'stop' } })
    t.match(await store.turns.ofKey(session, 'key-1'), {
      turn: { id: again && 'turn' in again && again.turn.id },
      body_hash: request().turn.body_hash,
    })
    t.equal(await store.turns.ofKey(session, 'key-2'), null)
    const elsewhere = await newSession(store, scope)
    const fresh = openRequest(elsewhere.id, { turn: { idempotency_key: 'key-1' } })
    t.equal(await store.turns.ofKey(elsewhere.id, 'key-1'), null)
    t.equal((await store.turns.open(scope, fresh))?.kind, 'running', 'a key counts only within its session')
  })

  await t.test('turns are listed newest first', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    t.strictSame(await store.turns.list(scope, session, { limit: 2 }), { data: [], next_cursor: null })
    const mine: string[] = []
    for (let i = 0; i < 5; i++) {
      const opened = await startTurn(store, scope, openRequest(session))
      await endTurn(store, opened.fence, opened.turn.id)
      mine.unshift(opened.turn.id)
    }
    const { rows, pages } = await allPages((page) => store.turns.list(scope, session, page), 2)
    t.strictSame([rows.map((row) => row.id), pages], [mine, 3])
    const cut = await allPages((page) => store.turns.list(scope, session, { ...page, bytes: 10 }), 100)
    t.strictSame([cut.rows, cut.pages], [rows, 5], 'large turns come one per page')
  })
}

async function queueContract(t: Test, store: Store): Promise<void> {
  await t.test('an owner’s load counts running and queued turns, but not a repeated request', async (t) => {
    const scope = owner()
    const { session, fence, turn } = await runningTurn(store, scope)
    const keyed = openRequest(session.id, { on_busy: 'enqueue', turn: { idempotency_key: 'once' } })
    t.equal((await store.turns.open(scope, keyed))?.kind, 'queued')
    const load = (session: string, idempotency_key: string | null, most = 10, interrupts = false) =>
      store.turns.countOpen(scope.owner, { session, idempotency_key, interrupts }, most)
    t.equal(await load(session.id, null), 2)
    t.equal(await load(session.id, 'another'), 2)
    t.equal(await load(session.id, 'once'), 0)
    t.equal(await load('ses_another', 'once'), 2, 'a key counts only within its session')
    t.equal(await load(session.id, null, 1), 1)
    t.equal(
      await load(session.id, null, 10, true),
      1,
      'an interrupting turn’s load is without the turn that it interrupts',
    )
    t.equal(await load('ses_another', null, 10, true), 2, 'a turn of another session is not interrupted')
    const none = { session: session.id, idempotency_key: null, interrupts: false }
    t.equal(await store.turns.countOpen(owner().owner, none, 10), 0)
    await store.turns.commit(fence, { turn_id: turn.id, state: 'awaiting_input' })
    t.equal(await load(session.id, null), 1, 'a turn that waits for a person does not count')
  })

  await t.test('turns queue behind the running turn and start in order of arrival', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const enqueue = (words: string) =>
      store.turns.open(
        scope,
        openRequest(session.id, { on_busy: 'enqueue', queue_limit: 2, turn: { input: text(words) } }),
      )
    const [second, third] = [await enqueue('second'), await enqueue('third')]
    if (second?.kind !== 'queued' || third?.kind !== 'queued') return t.fail(`${second?.kind} ${third?.kind}`)
    t.match(second.turn, { state: 'queued', started_at: null, base_seq: 1 })
    t.strictSame(await enqueue('fourth'), { kind: 'queue_full' })
    t.equal((await store.messages.after(session.id, 0)).length, 1, 'a queued turn’s input is no message yet')
    t.equal(await store.turns.startQueued(session.id, { id: id('msg') }, LEASE), null, 'a turn still runs')
    t.notOk((await store.turns.idleQueues(1000)).includes(session.id))
    t.equal((await store.sessions.get(scope, session.id))?.active_turn_id, turn.id)
    const own = message('answer', { role: 'assistant', turn_id: turn.id })
    const last = { turn_id: turn.id, messages: [own], end: COMPLETED }
    t.equal((await store.turns.commit(fence, last)).has_queued, true)
    t.equal(
      (await store.turns.commit(fence, last)).has_queued,
      true,
      'the same commit gives the same answer again',
    )

    t.equal(
      (await store.turns.idleQueues(1000)).filter((one) => one === session.id).length,
      1,
      'two turns wait, in one queue',
    )
    t.equal((await store.sessions.get(scope, session.id))?.active_turn_id, second.turn.id)
    t.match(await store.turns.open(scope, openRequest(session.id)), {
      kind: 'busy',
      active_turn_id: second.turn.id,
    })
    const starts = await Promise.all(
      ['replica-1', 'replica-2', 'replica-3'].map((name) =>
        store.turns.startQueued(session.id, { id: id('msg') }, { owner: name, seconds: 60 }),
      ),
    )
    const [started, ...more] = starts.filter((one) => one !== null)
    t.equal(more.length, 0, 'one of three replicas starts the turn')
    t.match(started, { turn: { id: second.turn.id, state: 'running', base_seq: 1 }, fence: { epoch: 2 } })
    t.match(await store.messages.after(session.id, 2), [
      { seq: 3, role: 'user', parts: text('second'), turn_id: second.turn.id },
    ])
    t.notOk((await store.turns.idleQueues(1000)).includes(session.id))
  })

  await t.test(
    'a turn that is asked for as another ends begins at once, or that end knows of it',
    async (t) => {
      const scope = owner()
      const races = Array.from({ length: 10 }, async () => {
        const { session, turn, fence } = await runningTurn(store, scope)
        const [opened, ended] = await Promise.all([
          store.turns.open(scope, openRequest(session.id, { on_busy: 'enqueue' })),
          store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED }),
        ])
        t.equal(opened?.kind, ended.has_queued ? 'queued' : 'running')
      })
      await Promise.all(races)
    },
  )

  await t.test(
    'an interrupting turn comes before queued turns, and marks the running turn as cancelled',
    async (t) => {
      const scope = owner()
      const { session, turn, fence } = await runningTurn(store, scope)
      const open = (on_busy: 'enqueue' | 'interrupt', queue_limit = 1) =>
        store.turns.open(scope, openRequest(session.id, { on_busy, queue_limit }))
      const waits = await open('enqueue')
      const urgent = await open('interrupt')
      if (waits?.kind !== 'queued' || urgent?.kind !== 'queued')
        return t.fail(`${waits?.kind} ${urgent?.kind}`)
      t.equal(waits.interrupted, null)
      t.equal(urgent.interrupted, turn.id)
      t.match(await store.turns.get(scope, turn.id), { state: 'running', cancel_requested: true })
      t.match(await store.turns.get(scope, waits.turn.id), { cancel_requested: false })
      t.strictSame(
        await open('interrupt'),
        { kind: 'queue_full' },
        'interrupting turns have a queue of their own with the same limit',
      )
      await endTurn(store, fence, turn.id)
      const between = await open('interrupt', 2)
      t.match(between, { kind: 'queued', interrupted: null }, 'a queued turn is not interrupted')
      t.match(await store.turns.get(scope, urgent.turn.id), { cancel_requested: false })
      const started = await store.turns.startQueued(session.id, { id: id('msg') }, LEASE)
      t.equal(started?.turn.id, urgent.turn.id)
      const { active_turn_id } = (await store.sessions.get(scope, session.id)) ?? {}
      t.equal(
        active_turn_id,
        urgent.turn.id,
        'the active turn is the one that runs, not the one that waited longest',
      )
      t.match(await open('interrupt', 2), { kind: 'queued', interrupted: urgent.turn.id })
      const idle = await newSession(store, scope)
      t.match(await store.turns.open(scope, openRequest(idle.id, { on_busy: 'interrupt' })), {
        kind: 'running',
      })
    },
  )

  await t.test('a queued turn that is cancelled ends without having run', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const queued = await store.turns.open(scope, openRequest(session.id, { on_busy: 'enqueue' }))
    if (queued?.kind !== 'queued') return t.fail(`${queued?.kind}`)
    const behind = await store.turns.open(scope, openRequest(session.id, { on_busy: 'enqueue' }))
    const cancelled = { state: 'cancelled' as const }
    t.equal(await store.turns.requestCancel(scope, queued.turn.id), fence.epoch)
    const word = announced(queued.turn.id, session.id, 'end')
    t.equal(await store.turns.endQueued(queued.turn, cancelled, [word]), true)
    t.equal(await store.turns.endQueued(queued.turn, cancelled, []), false, 'the turn has ended')
    t.equal(
      await store.turns.endQueued(turn, cancelled, []),
      false,
      'a running turn is not ended as a queued one',
    )
    t.strictSame(await unsaidOf(store, queued.turn.id), {
      session_id: session.id,
      turn_id: queued.turn.id,
      epoch: null,
      events: [word],
    })
    await store.turns.forgetAnnouncements([queued.turn.id], null)
    t.equal(await unsaidOf(store, queued.turn.id), null)
    t.match(await store.turns.get(scope, queued.turn.id), {
      state: 'cancelled',
      started_at: null,
      ended_at: /Z$/,
    })
    t.equal(await store.turns.requestCancel(scope, queued.turn.id), null)
    await endTurn(store, fence, turn.id)
    const next = await store.turns.startQueued(session.id, { id: id('msg') }, LEASE)
    t.equal(next?.turn.id, behind?.kind === 'queued' && behind.turn.id, 'the turn behind it starts next')
    if (next) await endTurn(store, next.fence, next.turn.id)
    t.notOk((await store.turns.idleQueues(1000)).includes(session.id), 'no turn is queued any more')
    t.equal(await store.turns.startQueued(session.id, { id: id('msg') }, LEASE), null)
  })

  await t.test('a queued turn is either started or ended, never both', async (t) => {
    const scope = owner()
    for (let i = 0; i < 5; i++) {
      const { session, turn, fence } = await runningTurn(store, scope)
      const queued = await store.turns.open(scope, openRequest(session.id, { on_busy: 'enqueue' }))
      if (queued?.kind !== 'queued') return t.fail(`${queued?.kind}`)
      await endTurn(store, fence, turn.id)
      const [started, ended] = await Promise.all([
        store.turns.startQueued(session.id, { id: id('msg') }, LEASE),
        store.turns.endQueued(queued.turn, { state: 'cancelled' }, []),
      ])
      t.not(started !== null, ended)
    }
  })
}
