import type { Test } from 'tap'
import { BatonError } from '../../src/errors.ts'
import { type AnnouncedEvent, StaleOwner, type Step, type Store } from '../../src/store/store.ts'
import {
  ADMIN,
  allPages,
  COMPLETED,
  endTurn,
  id,
  LAPSED,
  LEASE,
  message,
  newSession,
  openRequest,
  owner,
  rejection,
  runningTurn,
  STRANGER,
  text,
} from './store-rows.ts'

const usage = (input_tokens: number, output_tokens = 0) => ({
  input_tokens,
  output_tokens,
  reasoning_tokens: 1,
  cached_tokens: 2,
})
const step = (index: number, rest: Partial<Step> = {}): Step => ({
  index,
  attempt: 1,
  provider: 'acme',
  model: 'acme-1',
  tools_revision: 3,
  tool_count: 2,
  finish_reason: 'stop',
  usage: usage(10, 5),
  started_at: '2026-01-31T12:00:00.123Z',
  ended_at: '2026-01-31T12:00:01.000Z',
  ...rest,
})
const announced = (turn: string, session_id: string, key: string): AnnouncedEvent => ({
  key,
  event: { type: 'turn.started', session_id, turn_id: turn, step: null, at: '2026-01-31T12:00:00.000Z' },
})

export async function turnContract(t: Test, store: Store): Promise<void> {
  await t.test('opening', (t) => openingContract(t, store))
  await t.test('queueing', (t) => queueContract(t, store))
  await t.test('reading and committing', (t) => commitContract(t, store))
  await t.test('fencing and taking over', (t) => fencingContract(t, store))
}

async function openingContract(t: Test, store: Store): Promise<void> {
  await t.test('a turn opens with its input in the history and the lease taken', async (t) => {
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
    const opened = await store.turns.open(scope, request)
    if (opened?.kind !== 'running') return t.fail(`not opened: ${opened?.kind}`)
    const { body_hash, ...given } = request.turn
    t.match(opened.turn, {
      ...given,
      owner: scope.owner,
      state: 'running',
      attempt: 1,
      restarts: 0,
      recoveries: 0,
      steps: [],
      base_seq: 1,
      cancel_requested: false,
      finish_reason: null,
      error: null,
      ended_at: null,
      created_at: /Z$/,
      started_at: /Z$/,
    })
    t.notOk('body_hash' in opened.turn, 'the hash stays in the store')
    t.strictSame(opened.fence, { session_id: session, owner: LEASE.owner, epoch: 1 })
    t.strictSame((await store.messages.after(session, 1))[0], opened.message)
    t.strictSame(
      opened.start,
      {
        ...ground,
        history: await store.messages.after(session, 0),
        rewrites: 0,
        registry: await store.registry.get(session),
        bindings: [],
      },
      'what its first step needs comes with it',
    )
    t.match(opened.message, { seq: 2, turn_id: given.id, role: 'user', parts: given.input })
    t.strictSame(await store.turns.get(scope, given.id), opened.turn)
    t.equal((await store.sessions.get(scope, session))?.active_turn_id, given.id)
  })

  await t.test('a registry that is known already does not come again', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const { revision } = await store.registry.get(session)
    const opened = await store.turns.open(scope, { ...openRequest(session), known_revision: revision })
    t.match(opened, { kind: 'running', start: { registry: null } })
  })

  await t.test(
    'a history that is known already comes from there on, until a message is rewritten',
    async (t) => {
      const scope = owner()
      const { id: session } = await newSession(store, scope)
      const stored = await store.messages.append(scope, session, [message('a'), message('b'), message('c')])
      if (!Array.isArray(stored)) return t.fail('not appended')
      const [a, b] = stored
      const seen = async (known_history: { rewrites: number; seq: number }) => {
        const opened = await store.turns.open(scope, { ...openRequest(session), known_history })
        if (opened?.kind !== 'running') throw new Error(`not opened: ${opened?.kind}`)
        await endTurn(store, opened.fence, opened.turn.id)
        return { seqs: opened.start.history.map(({ seq }) => seq), rewrites: opened.start.rewrites }
      }
      t.strictSame(await seen({ rewrites: 0, seq: 2 }), { seqs: [3, 4], rewrites: 0 })
      await store.messages.replace(scope, session, a?.id ?? '', { role: 'user', parts: text('A') })
      t.strictSame(await seen({ rewrites: 0, seq: 4 }), { seqs: [1, 2, 3, 4, 5], rewrites: 1 })
      await store.messages.delete(scope, session, b?.id ?? '')
      t.strictSame(await seen({ rewrites: 1, seq: 5 }), { seqs: [1, 3, 4, 5, 6], rewrites: 2 })
      t.strictSame(await seen({ rewrites: 2, seq: 6 }), { seqs: [7], rewrites: 2 })
    },
  )

  await t.test('only those who may see the session open, read, list and cancel its turns', async (t) => {
    const scope = owner()
    const { session, turn } = await runningTurn(store, scope)
    t.equal(await store.turns.open(STRANGER, openRequest(session.id)), null)
    t.equal(await store.turns.ground(STRANGER, session.id, null), null)
    t.match(await store.turns.ground(ADMIN, session.id, null), { session: { id: session.id } })
    t.equal(await store.turns.open(scope, openRequest('ses_none')), null)
    t.equal(await store.turns.get(STRANGER, turn.id), null)
    t.equal(await store.turns.list(STRANGER, session.id, { limit: 5 }), null)
    t.equal(await store.turns.requestCancel(STRANGER, turn.id), null)
    t.equal(await store.turns.requestCancel(scope, 'turn_none'), null)
    t.equal((await store.turns.get(ADMIN, turn.id))?.cancel_requested, false)
    t.equal((await store.turns.open(ADMIN, openRequest(session.id)))?.kind, 'busy')
    t.equal((await store.turns.list(ADMIN, session.id, { limit: 5 }))?.data.length, 1)
    t.equal(await store.turns.requestCancel(ADMIN, turn.id), true)
    t.equal((await store.turns.get(scope, turn.id))?.cancel_requested, true)
  })

  await t.test('twenty at once: one runs, the others are told which', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const opened = await Promise.all(
      Array.from({ length: 20 }, () => store.turns.open(scope, openRequest(session))),
    )
    const running = opened.flatMap((one) => (one?.kind === 'running' ? [one.turn.id] : []))
    t.equal(running.length, 1)
    const busy = opened.flatMap((one) => (one?.kind === 'busy' ? [one.active_turn_id] : []))
    t.strictSame([busy.length, new Set(busy)], [19, new Set(running)])
    t.equal((await store.messages.after(session, 0)).length, 1, 'the refused ones left no message')
  })

  await t.test(
    'the same idempotency key is the same turn, also at once, also when it has ended',
    async (t) => {
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
      t.match(again, { kind: 'replayed', turn: { state: 'completed' } })
      t.match(await store.turns.ofKey(session, 'key-1'), {
        turn: { id: again && 'turn' in again && again.turn.id },
        body_hash: request().turn.body_hash,
      })
      t.equal(await store.turns.ofKey(session, 'key-2'), null)
      const elsewhere = await newSession(store, scope)
      const fresh = openRequest(elsewhere.id, { turn: { idempotency_key: 'key-1' } })
      t.equal((await store.turns.open(scope, fresh))?.kind, 'running', 'a key belongs to its session')
    },
  )

  await t.test('turns are listed newest first', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    t.strictSame(await store.turns.list(scope, session, { limit: 2 }), { data: [], next_cursor: null })
    const mine: string[] = []
    for (let i = 0; i < 5; i++) {
      const opened = await store.turns.open(scope, openRequest(session))
      if (opened?.kind !== 'running') return t.fail(`${opened?.kind}`)
      await endTurn(store, opened.fence, opened.turn.id)
      mine.unshift(opened.turn.id)
    }
    const { rows, pages } = await allPages((page) => store.turns.list(scope, session, page), 2)
    t.strictSame([rows.map((row) => row.id), pages], [mine, 3])
  })
}

async function queueContract(t: Test, store: Store): Promise<void> {
  await t.test('an owner’s load is what runs or waits, a repeat apart', async (t) => {
    const scope = owner()
    const { session, fence, turn } = await runningTurn(store, scope)
    const keyed = openRequest(session.id, { on_busy: 'enqueue', turn: { idempotency_key: 'once' } })
    t.equal((await store.turns.open(scope, keyed))?.kind, 'queued')
    const load = (session_id: string, idempotency_key: string | null, most = 10) =>
      store.turns.load(scope.owner, { session: session_id, idempotency_key }, most)
    t.equal(await load(session.id, null), 2)
    t.equal(await load(session.id, 'another'), 2)
    t.equal(await load(session.id, 'once'), 0)
    t.equal(await load('ses_another', 'once'), 2, 'keys belong to a session')
    t.equal(await load(session.id, null, 1), 1)
    t.equal(await store.turns.load(owner().owner, { session: session.id, idempotency_key: null }, 10), 0)
    await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
    t.equal(await load(session.id, null), 1)
  })

  await t.test('turns queue behind the running one and start in the order in which they came', async (t) => {
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
    t.equal((await store.messages.after(session.id, 0)).length, 1, 'a queued input is no message yet')
    t.equal(await store.turns.startQueued(session.id, { id: id('msg') }, LEASE), null, 'one still runs')
    t.notOk((await store.turns.idleQueues(1000)).includes(session.id))
    t.equal((await store.sessions.get(scope, session.id))?.active_turn_id, turn.id)
    const own = message('answer', { role: 'assistant', turn_id: turn.id })
    const last = { turn_id: turn.id, messages: [own], end: COMPLETED }
    t.equal((await store.turns.commit(fence, last)).has_queued, true)
    t.equal((await store.turns.commit(fence, last)).has_queued, true, 'said again with the same commit')

    t.ok((await store.turns.idleQueues(1000)).includes(session.id))
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
    t.equal(more.length, 0, 'of three replicas one starts it')
    t.match(started, { turn: { id: second.turn.id, state: 'running', base_seq: 1 }, fence: { epoch: 2 } })
    t.match(started?.message, { seq: 3, role: 'user', parts: text('second'), turn_id: second.turn.id })
    t.strictSame((await store.messages.after(session.id, 2))[0], started?.message)
    t.notOk((await store.turns.idleQueues(1000)).includes(session.id))
  })

  await t.test(
    'a turn that interrupts comes before those that wait, and the running one is marked',
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
      t.strictSame(await open('interrupt'), { kind: 'queue_full' }, 'a queue of its own, as long')
      await endTurn(store, fence, turn.id)
      const started = await store.turns.startQueued(session.id, { id: id('msg') }, LEASE)
      t.equal(started?.turn.id, urgent.turn.id)
      t.match(await open('interrupt'), { kind: 'queued', interrupted: urgent.turn.id })
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
    const cancelled = { state: 'cancelled' as const, finish_reason: null, error: null }
    t.equal(await store.turns.requestCancel(scope, queued.turn.id), true)
    const word = announced(queued.turn.id, session.id, 'end')
    t.equal(await store.turns.endQueued(queued.turn, cancelled, [word]), true)
    t.equal(await store.turns.endQueued(queued.turn, cancelled, []), false, 'it has ended')
    t.equal(await store.turns.endQueued(turn, cancelled, []), false, 'a running one is not touched')
    t.strictSame(await unsaidOf(store, queued.turn.id), {
      session_id: session.id,
      turn_id: queued.turn.id,
      events: [word],
    })
    await store.turns.announced([queued.turn.id])
    t.equal(await unsaidOf(store, queued.turn.id), null)
    t.match(await store.turns.get(scope, queued.turn.id), {
      state: 'cancelled',
      started_at: null,
      ended_at: /Z$/,
    })
    t.equal(await store.turns.requestCancel(scope, queued.turn.id), false)
    await endTurn(store, fence, turn.id)
    t.equal(await store.turns.startQueued(session.id, { id: id('msg') }, LEASE), null)
  })

  await t.test('a queued turn is started or ended, never both', async (t) => {
    const scope = owner()
    for (let i = 0; i < 5; i++) {
      const { session, turn, fence } = await runningTurn(store, scope)
      const queued = await store.turns.open(scope, openRequest(session.id, { on_busy: 'enqueue' }))
      if (queued?.kind !== 'queued') return t.fail(`${queued?.kind}`)
      await endTurn(store, fence, turn.id)
      const [started, ended] = await Promise.all([
        store.turns.startQueued(session.id, { id: id('msg') }, LEASE),
        store.turns.endQueued(queued.turn, { state: 'cancelled', finish_reason: null, error: null }, []),
      ])
      t.not(started !== null, ended)
    }
  })
}

async function commitContract(t: Test, store: Store): Promise<void> {
  await t.test('a step reads what is new, the registry if it moved, and a wish to cancel', async (t) => {
    const scope = owner()
    const { session, turn, fence, message: input } = await runningTurn(store, scope)
    const first = await store.turns.readStep(fence, turn.id, 0, -1)
    t.match(first, {
      messages: [input],
      registry: { session_id: session.id, revision: 0, tools: [] },
      cancel_requested: false,
    })
    t.strictSame(await store.turns.readStep(fence, turn.id, input.seq, 0), {
      messages: [],
      registry: null,
      cancel_requested: false,
    })
    await store.registry.put([
      {
        session_id: session.id,
        expected: 0,
        tools: [],
        delta: { tools_revision: 1, added: [], removed: [], changed: [] },
      },
    ])
    await store.turns.requestCancel(scope, turn.id)
    t.match(await store.turns.readStep(fence, turn.id, 1, 0), {
      registry: { revision: 1 },
      cancel_requested: true,
    })
  })

  await t.test('a commit writes its step, messages and the turn together', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const answer = message('\0', { role: 'assistant', turn_id: turn.id, incomplete: true })
    const { messages: stored } = await store.turns.commit(fence, {
      turn_id: turn.id,
      step: step(0),
      messages: [answer],
      attempt: 2,
      restarts: 1,
    })
    t.match(stored, [{ ...answer, session_id: session.id, seq: 2, created_at: /Z$/ }])
    t.strictSame(await store.messages.after(session.id, 1), stored)
    t.match(await store.turns.get(scope, turn.id), {
      steps: [step(0)],
      attempt: 2,
      restarts: 1,
      state: 'running',
    })
    const error = {
      code: 'upstream_rejected' as const,
      message: 'no \0',
      param: null,
      details: { b: 1, a: 2 },
    }
    t.strictSame(
      await store.turns.commit(fence, {
        turn_id: turn.id,
        end: { state: 'failed', finish_reason: null, error },
      }),
      { messages: [], has_queued: false },
    )
    t.match(await store.turns.get(scope, turn.id), {
      state: 'failed',
      finish_reason: null,
      error,
      ended_at: /Z$/,
    })
    t.equal((await store.sessions.get(scope, session.id))?.active_turn_id, null)
  })

  await t.test('an end or a wait without messages may be said again by whoever said it', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const park = () => store.turns.commit(fence, { turn_id: turn.id, state: 'awaiting_input' })
    await park()
    t.strictSame(await park(), { messages: [], has_queued: false })
    const resumed = await store.turns.resumeAwaiting(turn.id, LEASE)
    if (!resumed) return t.fail('not resumed')
    t.ok((await rejection(park())) instanceof StaleOwner, 'another has it')
    await store.turns.open(scope, openRequest(session.id, { on_busy: 'enqueue' }))
    const end = () => endTurn(store, resumed.fence, turn.id)
    await end()
    t.strictSame(await end(), { messages: [], has_queued: true })
    await store.turns.startQueued(session.id, { id: id('msg') }, LEASE)
    t.ok((await rejection(end())) instanceof StaleOwner, 'the next turn runs')
  })

  await t.test('usage adds up in the turn and the session, once for a step written twice', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const put = (one: Step) => store.turns.commit(fence, { turn_id: turn.id, step: one })
    await put(step(0, { usage: usage(10, 5) }))
    await put(step(1, { usage: usage(100), ended_at: null, finish_reason: null }))
    await put(step(1, { usage: usage(30, 7) }))
    await put(step(1, { attempt: 2, usage: usage(1, 1), discarded: true }))
    const sum = { input_tokens: 41, output_tokens: 13, reasoning_tokens: 3, cached_tokens: 6 }
    const read = await store.turns.get(scope, turn.id)
    t.strictSame(read?.usage, sum)
    t.strictSame(read?.steps, [
      step(0),
      step(1, { usage: usage(30, 7) }),
      step(1, { attempt: 2, usage: usage(1, 1), discarded: true }),
    ])
    t.strictSame((await store.sessions.get(scope, session.id))?.usage, sum)
    await endTurn(store, fence, turn.id)
    const next = await store.turns.open(scope, openRequest(session.id))
    if (next?.kind !== 'running') return t.fail(`${next?.kind}`)
    await store.turns.commit(next.fence, { turn_id: next.turn.id, step: step(0, { usage: usage(1) }) })
    t.equal((await store.sessions.get(scope, session.id))?.usage.input_tokens, 42)
  })

  await t.test('announcements of the last commit are kept until they are known to be said', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const [one, two] = [announced(turn.id, session.id, 'one \0'), announced(turn.id, session.id, 'two')]
    await store.turns.commit(fence, { turn_id: turn.id, announce: [one] })
    const unsaid = () => unsaidOf(store, turn.id)
    t.equal(await unsaid(), null, 'those of a running turn are its owner’s')
    await store.turns.commit(fence, { turn_id: turn.id, attempt: 2 })
    await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED, announce: [one, two] })
    t.strictSame(await unsaid(), { session_id: session.id, turn_id: turn.id, events: [one, two] })
    await store.turns.announced([turn.id])
    t.equal(await unsaid(), null)
  })
}

async function unsaidOf(store: Store, turn: string) {
  const row = (await store.turns.unannounced(1000)).find(({ turn_id }) => turn_id === turn)
  return row ? { ...row, events: row.events() } : null
}

async function fencingContract(t: Test, store: Store): Promise<void> {
  await t.test(
    'a heartbeat tells of a cancel, and an owner that does not act on it loses the turn',
    async (t) => {
      const scope = owner()
      const { session, turn, fence } = await runningTurn(store, scope, LEASE)
      t.equal(await store.turns.breakLease(turn.id), false, 'nobody asked for its end')
      await store.turns.requestCancel(scope, turn.id)
      t.strictSame(await store.turns.heartbeat(LEASE.owner, [session.id], 60), [
        { session_id: session.id, cancelled_turn: turn.id },
      ])
      t.equal(await store.turns.breakLease(turn.id), true)
      const late = store.turns.commit(fence, { turn_id: turn.id, attempt: 2 })
      t.ok((await rejection(late)) instanceof StaleOwner)
      const [taken] = (await store.turns.recover({ owner: 'replica-2', seconds: 60 }, 1000)).filter(
        (one) => one.turn.id === turn.id,
      )
      t.match(taken, { turn: { recoveries: 0, cancel_requested: true }, fence: { epoch: 2 } })
      if (taken) await endTurn(store, taken.fence, turn.id)
      t.equal(await store.turns.breakLease(turn.id), false, 'it has ended')
    },
  )

  await t.test('a former owner’s write fails and leaves nothing', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope, LAPSED)
    const [taken] = (await store.turns.recover({ owner: 'replica-2', seconds: 60 }, 1000)).filter(
      (one) => one.turn.id === turn.id,
    )
    t.match(taken, {
      turn: { recoveries: 1, state: 'running' },
      fence: { owner: 'replica-2', epoch: 2 },
      was_handed_over: false,
    })
    const before = [await store.turns.get(scope, turn.id), await store.messages.after(session.id, 0)]
    const late = message('too late', { role: 'assistant', turn_id: turn.id })
    const writes = [
      store.turns.commit(fence, {
        turn_id: turn.id,
        step: step(0),
        messages: [late],
        end: COMPLETED,
        announce: [],
      }),
      store.turns.readStep(fence, turn.id, 0, 0),
      store.executions.begin(fence, 'exec_1'),
      store.turns.commit({ ...fence, epoch: 2 }, { turn_id: turn.id, attempt: 9 }),
      store.turns.commit({ ...fence, owner: 'replica-2' }, { turn_id: turn.id, attempt: 9 }),
    ]
    for (const thrown of await Promise.all(writes.map(rejection))) t.ok(thrown instanceof StaleOwner)
    t.strictSame([await store.turns.get(scope, turn.id), await store.messages.after(session.id, 0)], before)
    t.strictSame(await store.turns.heartbeat(LEASE.owner, [session.id], 60), [])
    await store.turns.handOver(fence)
    t.strictSame(
      await store.turns.heartbeat('replica-2', [session.id], 60),
      [{ session_id: session.id, cancelled_turn: null }],
      'nor gives it away',
    )
    if (taken) await endTurn(store, taken.fence, turn.id)
  })

  await t.test('a lapsed lease that nobody took is still its owner’s', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope, LAPSED)
    await store.turns.commit(fence, {
      turn_id: turn.id,
      messages: [message('still here', { turn_id: turn.id })],
    })
    t.strictSame(await store.turns.heartbeat(LAPSED.owner, [session.id], 60), [
      { session_id: session.id, cancelled_turn: null },
    ])
    const taken = await store.turns.recover({ owner: 'replica-2', seconds: 60 }, 1000)
    t.notOk(
      taken.some((one) => one.turn.id === turn.id),
      'and prolonged it cannot be taken',
    )
    await endTurn(store, fence, turn.id)
  })

  await t.test(
    'an ended turn, or one of another session, cannot be written under a good lease',
    async (t) => {
      const scope = owner()
      const one = await runningTurn(store, scope)
      const other = await runningTurn(store, scope)
      t.ok(
        (await rejection(store.turns.commit(one.fence, { turn_id: other.turn.id, attempt: 5 }))) instanceof
          StaleOwner,
      )
      await endTurn(store, one.fence, one.turn.id)
      const late = store.turns.commit(one.fence, {
        turn_id: one.turn.id,
        end: { state: 'cancelled', finish_reason: null, error: null },
      })
      t.ok((await rejection(late)) instanceof StaleOwner, 'the end gave the lease back')
      t.strictSame(await store.turns.heartbeat(LEASE.owner, [one.session.id], 60), [])
      await endTurn(store, other.fence, other.turn.id)
      t.equal(await store.sessions.delete(scope, other.session.id), 'deleted')
      t.ok(
        (await rejection(endTurn(store, other.fence, other.turn.id))) instanceof StaleOwner,
        'a deleted session',
      )
    },
  )

  await t.test('two that recover at once get each lost turn once, with what may be unsaid', async (t) => {
    const scope = owner()
    const lost = await Promise.all(Array.from({ length: 12 }, () => runningTurn(store, scope, LAPSED)))
    const [first] = lost
    if (!first) return t.fail()
    const event = announced(first.turn.id, first.session.id, 'unsaid')
    await store.turns.commit(first.fence, { turn_id: first.turn.id, announce: [event] })
    const recoverAll = async (name: string) => {
      const taken = []
      for (;;) {
        const some = await store.turns.recover({ owner: name, seconds: 60 }, 4)
        if (some.length === 0) return taken
        taken.push(...some)
      }
    }
    const taken = (await Promise.all([recoverAll('replica-2'), recoverAll('replica-3')])).flat()
    const mine = taken.filter((one) => one.turn.owner === scope.owner)
    t.strictSame(mine.map((one) => one.turn.id).sort(), lost.map((one) => one.turn.id).sort())
    t.ok(mine.every((one) => one.turn.recoveries === 1 && one.fence.epoch === 2))
    t.strictSame(mine.find((one) => one.turn.id === first.turn.id)?.announce, [event])
    for (const one of taken) await endTurn(store, one.fence, one.turn.id)
  })

  await t.test('a turn that is handed over can be taken at once, and that is no recovery', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    await store.turns.handOver(fence)
    t.ok((await rejection(endTurn(store, fence, turn.id))) instanceof StaleOwner)
    const lease = { owner: 'replica-2', seconds: 60 }
    const others = await store.turns.recover(lease, 1000, [turn.id])
    t.notOk(
      others.some((one) => one.turn.id === turn.id),
      'not by one that does not want it',
    )
    const taken = [...others, ...(await store.turns.recover(lease, 1000))]
    const mine = taken.find((one) => one.turn.id === turn.id)
    t.match(mine, {
      turn: { recoveries: 0 },
      fence: { owner: 'replica-2' },
      announce: [],
      was_handed_over: true,
    })
    for (const one of taken) await endTurn(store, one.fence, one.turn.id)
  })

  await t.test('a turn that waits for input is resumed by one owner', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    t.equal(await store.turns.resumeAwaiting(turn.id, LEASE), null, 'it does not wait')
    t.equal(await store.turns.resumeAwaiting('turn_none', LEASE), null)
    const event = announced(turn.id, session.id, 'awaiting')
    await store.turns.commit(fence, { turn_id: turn.id, state: 'awaiting_input', announce: [event] })
    t.equal((await store.sessions.get(scope, session.id))?.active_turn_id, turn.id)
    t.match(await store.turns.open(scope, openRequest(session.id)), { kind: 'busy', active_turn_id: turn.id })
    t.ok((await store.turns.unannounced(1000)).some((left) => left.turn_id === turn.id))
    t.notOk(
      (await store.turns.recover(LEASE, 1000)).some((one) => one.turn.id === turn.id),
      'it is not lost',
    )
    const resumed = await Promise.all(
      ['replica-2', 'replica-3'].map((name) =>
        store.turns.resumeAwaiting(turn.id, { owner: name, seconds: 60 }),
      ),
    )
    const [mine, ...more] = resumed.filter((one) => one !== null)
    t.match([mine?.turn.state, mine?.fence.epoch, more.length], ['running', 2, 0])
    t.ok((await rejection(endTurn(store, fence, turn.id))) instanceof StaleOwner)
    if (mine) await endTurn(store, mine.fence, turn.id)
  })

  await t.test('the store says when it is ready', async (t) => {
    t.equal(await store.ready(), undefined)
    t.ok(store.kind === 'postgres' || store.kind === 'embedded')
    const thrown = await rejection(store.registry.get('ses_none'))
    t.ok(thrown instanceof BatonError && thrown.code === 'session_not_found')
  })
}
